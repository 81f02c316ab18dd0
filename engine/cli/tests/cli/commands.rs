//! The commands of the README and of `docs/`: each is run here, or listed with the reason why it is not run.
//!
//! ```text
//!   ```sh blocks ─► lines, without comments ─┬─ listed ─► must still be on a page, with flags of the program
//!                                            └─ else ──► run in a folder with the sample and small data of the suites
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;
use millpond_cli::args::Cli;

use crate::{clean, root};

/// Reason why a command is not run here.
#[derive(Debug, Clone, Copy)]
enum Why {
    NeedsGpu,
    NeedsNetwork,
    TakesMinutes,
    /// Builds the workspace or a package, or needs the result of such a build.
    Builds,
    /// Needs a program that is not part of this workspace.
    NeedsTools,
}

/// All commands that are not run, as on the pages but without their comments.
const NOT_RUN: &[(Why, &[&str])] = &[
    (
        Why::NeedsGpu,
        &[
            "millpond run gpu-bdb --data bdb-10 --device cuda --repeat 6",
            "millpond run gpu-bdb --data bdb-10 --device cuda --repeat 3 --validate cpu",
            "millpond run gpu-bdb --data bdb-1 --device cuda --repeat 6 --validate cpu",
            "millpond run gpu-bdb --data bdb-30 --device cuda --repeat 3 --validate cpu",
            "millpond run gpu-bdb --data bdb-10 --device cuda --allocator cuda_async,cuda_async_default,caching,cuda --repeat 4 --validate cpu --report md",
            "MILLPOND_PARTITIONS=12 millpond run gpu-bdb --data bdb-10 --device cuda --allocator cuda_async,cuda_async_default,caching,cuda --repeat 3 --validate cpu --report md",
            "millpond run gpu-bdb --data bdb-1 --device cuda --repeat 3 --allocator cuda",
            "millpond run gpu-bdb --data bdb-1 --device cuda --repeat 4 --allocator cuda_async,cuda --report md",
            "millpond run gpu-bdb --data bdb1 --device cuda --repeat 3 --allocator cuda_async",
            "millpond run tpch --data sf10 --device cuda --repeat 8 --allocator cuda",
            "millpond run tpch --data sf10 --device cuda --repeat 8",
            "millpond run tpch --data sf10 --device cuda --repeat 8 --vary 7",
            "millpond run tpch --data sf10 --device cuda --repeat 3 --validate cpu",
            "compute-sanitizer --tool memcheck millpond run tpch --data sf002 --device cuda --repeat 3",
            "millpond run tpch --data sf10 --device cuda --set millpond.cache=off --repeat 4 --json",
            "millpond run tpch --data sf10 --device cuda --repeat 8 --json",
            "millpond run tpch --data sf10 --device cuda --repeat 8 --set millpond.cache=off --json",
            "millpond run tpch --data sf10 --device cuda --json",
            "millpond run tpch --data sf10 --device cuda --query 6 --set millpond.cache=off --repeat 7",
            "millpond run tpch --data sf10 --device cuda --set millpond.cache=off --validate cpu",
            "millpond parquet measure sf10/lineitem.parquet --device cuda",
            "millpond selftest --device cuda --thorough --only kernels/parquet",
            "millpond run tpch --data sf100 --device cuda --repeat 4",
            "MILLPOND_PARTITIONS=12 millpond run tpch --data sf10 --device cuda --repeat 4 --json",
            "MILLPOND_PARTITIONS=12 millpond run tpch --data sf10 --device cuda --validate cpu",
            "MILLPOND_PARTITIONS=12 millpond run tpch --data sf10 --device cuda --validate cpu --json",
            "export CUDA_CACHE_DISABLE=1",
            "millpond run tpch --data sf1 --device cuda --set millpond.kernel_cache=off",
            "millpond run tpch --data sf1 --device cuda --set millpond.kernel_cache=kernels",
            "millpond run tpch --data sf10 --device cuda --repeat 2 --json",
            "millpond run tpch --data sf10 --device cuda --validate cpu",
            "millpond run tpch --data data --device cuda --query 6 --repeat 3 --json",
            "millpond run tpch --data data --device cuda --query 6 --trace q06.json",
            "python memory/examples/torch_allocator.py --library target/release/examples/libmillpond_allocator.so",
        ],
    ),
    (
        Why::NeedsNetwork,
        &[
            "git clone https://github.com/gregrahn/sqllogictest && git -C sqllogictest checkout d8d4f4b9a351102ec63196a920e8052f4f025509",
            "cargo new sums && cd sums",
            "cargo add millpond --git https://github.com/millpond-sql/millpond",
            "cargo add tokio --features rt-multi-thread,macros",
        ],
    ),
    (
        Why::TakesMinutes,
        &[
            "millpond run gpu-bdb --data bdb-1 --validate cpu",
            "millpond run gpu-bdb --data bdb-1 --json",
            "millpond run gpu-bdb --data bdb-0.01 --device sim --validate cpu --allocator all --report md",
            "millpond run gpu-bdb --data bdb-10 --device cpu --repeat 3",
            "millpond run tpch --data tpch-0.01 --device sim --fallback error --validate cpu",
            "cargo slt-sqlite sqllogictest --seed 1 --records 50000 --devices cpu,sim",
        ],
    ),
    (
        Why::Builds,
        &[
            "cargo test --workspace",
            "cargo run --release -p millpond-data --example gpu_bdb_check -- bdb-1",
            "cargo run -p millpond-memory --example whole_layer caching",
            "cargo bench -p millpond-memory --bench host_cost",
            "cargo test -p millpond-memory --test loom",
            "cargo run -p millpond-memory --example ipc",
            "cargo build --release -p millpond-memory --example millpond_allocator",
            ".ci/package target/package",
            "tar -xJf millpond-*-linux.tar.xz",
            "cp millpond-*-linux/bin/millpond ~/.local/bin/",
            "cargo bench --workspace --bench host -- \"first launch\"",
            "cargo bench --workspace --bench host --profile dev --config 'profile.dev.package.millpond.opt-level=3' -- \"other constants\"",
            "cargo bench --workspace --bench host",
            "cargo bench --workspace --bench host --profile dev --config 'profile.dev.package.millpond.opt-level=3' --config 'profile.dev.package.millpond-bench.opt-level=3'",
        ],
    ),
    (
        Why::NeedsTools,
        &[
            // Git's history is not in an archive of the sources.
            r#"git diff -M -l99999 --diff-filter=R --name-status 11fa644 HEAD | awk -F'\t' '{ print "| `" $2 "` | `" $3 "` |" }'"#,
            "valgrind --tool=callgrind --collect-atstart=no --toggle-collect='datafusion::dataframe::DataFrame::create_physical_plan*' <the binary of `cargo bench --workspace --bench host --no-run`> --bench --test \"first launch of q.*/sql\"",
        ],
    ),
];

/// Words of commands and their replacements here, such as folders with smaller data.
const INSTEAD: &[(&str, &str)] = &[
    ("bdb-1", "bdb"),
    ("bdb-10", "bdb"),
    ("bdb1", "bdb"),
    ("bdb-0.01", "bdb"),
    ("bdb-1000", "bdb-zstd"),
    ("tpch-0.01", "tpch"),
    ("sf10", "tpch"),
    ("sf100", "tpch"),
    ("data", "tpch"),
];

/// The pages' query placeholder, and the query to run.
const QUERY: (&str, &str) = ("SELECT …", "SELECT count(*) FROM 'data/samples/sales.parquet'");

/// Scales of the data generated here.
const SCALES: [(&str, &str); 2] = [("tpch", "0.001"), ("gpu-bdb", "0.01")];

/// The commands in the shell blocks of a page, with their continuation lines and without comments.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let (mut in_block, mut begun) = (false, String::new());
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            in_block = !in_block && ["sh", "console"].contains(&language);
            continue;
        }
        if !in_block {
            continue;
        }
        let line = without_comment(line).trim().trim_start_matches("$ ");
        match line.strip_suffix('\\') {
            Some(part) => begun += &format!("{} ", part.trim_end()),
            None if begun.is_empty() && line.is_empty() => {}
            None => commands.push(std::mem::take(&mut begun) + line),
        }
    }
    commands
}

/// A line up to a `#` that begins a word outside quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

/// The words of a command, without shell quotes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut quote, mut word): (Vec<String>, _, Option<String>) = (Vec::new(), None, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A call of the program: its environment variables and its arguments.
struct Call {
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
}

/// The call in a command that runs the program by name, under another program, or through cargo.
fn call(command: &str) -> Option<Call> {
    let words = words(command);
    let by_cargo = ["cargo", "run", "--release", "--bin", "millpond", "--"];
    if words.starts_with(&by_cargo.map(String::from)) {
        return Some(Call { variables: Vec::new(), arguments: words[by_cargo.len()..].to_vec() });
    }
    let at = words.iter().position(|word| word == "millpond").filter(|_| words[0] != "cargo")?;
    let set = words[..at].iter().filter_map(|word| word.split_once('='));
    let variables = set.filter(|(name, _)| name.starts_with("MILLPOND_"));
    let variables = variables.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Some(Call { variables, arguments: words[at + 1..].to_vec() })
}

/// The arguments with small data.
fn small(arguments: &[String]) -> Vec<String> {
    let scale = SCALES.iter().find(|(suite, _)| arguments.iter().any(|word| word == suite)).map(|(_, scale)| *scale);
    let mut small: Vec<String> = Vec::with_capacity(arguments.len());
    for word in arguments {
        let stands = INSTEAD.iter().find(|(written, _)| written == word).map_or(word.as_str(), |(_, here)| here);
        let stands = match (small.last().map(String::as_str), scale) {
            (Some("--scale"), Some(scale)) => scale,
            _ => stands,
        };
        small.push(stands.replace(QUERY.0, QUERY.1));
    }
    small
}

/// The pages, with the commands of each.
fn pages() -> Vec<(String, Vec<String>)> {
    let mut pages = vec!["README.md".to_string()];
    for entry in std::fs::read_dir(root().join("docs")).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        pages.extend(name.ends_with(".md").then(|| format!("docs/{name}")));
    }
    pages.sort();
    let read = |page: &String| std::fs::read_to_string(root().join(page)).expect("a page");
    pages.iter().map(|page| (page.clone(), commands(&read(page)))).filter(|(_, all)| !all.is_empty()).collect()
}

fn is_listed(command: &str) -> bool {
    NOT_RUN.iter().any(|(_, listed)| listed.contains(&command))
}

#[test]
fn commands_of_pages_have_flags_of_the_program_and_no_list_is_stale() {
    let pages = pages();
    let mut wrong = Vec::new();
    for (page, commands) in &pages {
        for command in commands {
            match call(command) {
                Some(call) => {
                    let words = [&["millpond".to_string()], &call.arguments[..]].concat();
                    if let Err(error) = Cli::try_parse_from(words) {
                        wrong.push(format!("{page}: {command}\n{error}"));
                    }
                }
                None if is_listed(command) => {}
                None => wrong.push(format!(
                    "{page}: {command}\nis no call of the program: list it in {} with the reason why it is not run",
                    file!()
                )),
            }
        }
    }
    let there: BTreeSet<&str> = pages.iter().flat_map(|(_, commands)| commands).map(String::as_str).collect();
    for (why, command) in NOT_RUN.iter().flat_map(|(why, listed)| listed.iter().map(move |command| (why, command))) {
        if !there.contains(command) {
            wrong.push(format!("{command}\nis listed ({why:?}), and in no page any more"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(there.len() > 60, "only {} commands were found", there.len());
}

#[test]
fn commands_of_pages_that_are_not_listed_run() {
    let folder = tempfile::tempdir().expect("folder");
    let samples = folder.path().join("data/samples");
    std::fs::create_dir_all(&samples).expect("folders");
    std::fs::copy(root().join("data/samples/sales.parquet"), samples.join("sales.parquet")).expect("the sample");
    let (mut ran, mut failed) = (BTreeSet::new(), Vec::new());
    // Commands that make data run first, whichever page they are on.
    let mut calls: Vec<(String, String, Call)> = Vec::new();
    for (page, commands) in pages() {
        for command in commands.into_iter().filter(|command| !is_listed(command)) {
            if let Some(call) = call(&command) {
                calls.push((page.clone(), command, call));
            }
        }
    }
    calls.sort_by_key(|(.., call)| call.arguments.first().is_none_or(|word| word != "gen"));
    for (page, command, call) in calls {
        let arguments = small(&call.arguments);
        if !ran.insert((call.variables.clone(), arguments.clone())) {
            continue;
        }
        let output = run(folder.path(), &call.variables, &arguments);
        if let Err(said) = output {
            failed.push(format!("{page}: {command}\nrun as {arguments:?}: {said}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(ran.len() > 8, "only {} commands ran", ran.len());
}

/// Runs the program in a folder; its standard error if it fails.
fn run(folder: &Path, variables: &[(String, String)], arguments: &[String]) -> Result<(), String> {
    let mut program = clean(env!("CARGO_BIN_EXE_millpond"));
    program.args(arguments).envs(variables.iter().cloned()).current_dir(PathBuf::from(folder));
    let output = program.stdin(std::process::Stdio::null()).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
}

#[test]
fn commands_are_taken_from_shell_blocks_alone() {
    let page = "```sh\nmillpond -c \"SELECT '#'\"   # a comment\n# another\na --b \\\n    --c\n```\n```text\nno\n```\n\
                ```console\n$ d\n```\n";
    assert_eq!(commands(page), ["millpond -c \"SELECT '#'\"", "a --b --c", "d"]);
    assert_eq!(words("a --b=\"c 'd'\" '' e"), ["a", "--b=c 'd'", "", "e"]);
}
