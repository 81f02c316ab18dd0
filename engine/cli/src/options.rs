//! The session options that each command uses, and the order of `-c` and `-f`.
//!
//! Session options are global, so that they may precede or follow a command. The help of a command lists the options
//! that it uses; it refuses the others.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::args::Script;

/// Session options that some commands do not use: the name of the field, and the flag.
const OPTIONS: [(&str, &str); 7] = [
    ("device", "--device"),
    ("fallback", "--fallback"),
    ("allocator", "--allocator"),
    ("memory_log", "--memory-log"),
    ("trace", "--trace"),
    ("tables", "--table"),
    ("set", "--set"),
];

/// Options of statements alone.
const OF_STATEMENTS: [(&str, &str); 8] = [
    ("commands", "-c"),
    ("files", "-f"),
    ("output", "-o"),
    ("format", "--format"),
    ("rows", "--rows"),
    ("keep_going", "--keep-going"),
    ("no_rc", "--no-rc"),
    ("data", "--data"),
];

/// The session options that a command uses, by its path (`mem bench`). Statements and `run` use all of them.
fn used(path: &str) -> &'static [&'static str] {
    match path {
        "info" | "selftest" | "mem bench" | "mem replay" | "parquet measure" => &["device", "allocator", "set"],
        "soak" => &["device", "fallback", "allocator", "memory_log", "set"],
        "qualify" => &["device", "tables", "set"],
        "gen" | "parquet check" | "parquet rewrite" | "completions" | "man" => &[],
        _ => &["device", "fallback", "allocator", "memory_log", "trace", "tables", "set"],
    }
}

/// True for commands that only group others; they use no options.
fn is_group(path: &str) -> bool {
    matches!(path, "mem" | "parquet" | "help")
}

/// The command line; each command hides the options that it does not use.
pub fn shown_where_used(mut command: clap::Command) -> clap::Command {
    // `build` adds the global options to every command.
    command.build();
    shown_below(command, "")
}

fn shown_below(command: clap::Command, above: &str) -> clap::Command {
    command.mut_subcommands(|command| {
        let path = below(above, command.get_name());
        let unused = |id: &str| OPTIONS.iter().any(|(option, _)| *option == id) && !used(&path).contains(&id);
        let command = command.mut_args(|arg| match is_group(&path) || unused(arg.get_id().as_str()) {
            true if arg.is_global_set() => arg.hide(true),
            _ => arg,
        });
        shown_below(command, &path)
    })
}

fn below(above: &str, name: &str) -> String {
    format!("{above} {name}").trim_start().to_string()
}

/// Refuses a session option that the command does not use.
///
/// # Errors
/// A message with the option and the command.
pub fn refuse_unused(command: &clap::Command, matches: &ArgMatches) -> Result<(), String> {
    if let Some((name, _)) = matches.subcommand() {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if let Some((_, flag)) = OF_STATEMENTS.iter().find(|(id, _)| is_given(id)) {
            return Err(format!("{flag} before {name} has no use: it is for statements, which run without a command"));
        }
    }
    let (mut path, mut command, mut matches) = (String::new(), command, matches);
    while let Some((name, below_it)) = matches.subcommand() {
        let Some(subcommand) = command.find_subcommand(name) else { break };
        (path, command, matches) = (below(&path, name), subcommand, below_it);
    }
    // gen has its own --tables option.
    let is_of_session = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id && arg.is_global_set());
    let is_given = |id: &str| is_of_session(id) && matches.value_source(id) == Some(ValueSource::CommandLine);
    match OPTIONS.iter().find(|(id, _)| is_given(id) && !used(&path).contains(id)) {
        Some((_, flag)) => Err(format!("{path} does not use {flag}; millpond {path} --help lists its options")),
        None => Ok(()),
    }
}

/// The scripts without a flag, of `-c` and of `-f`, in the order of the command line.
pub fn scripts(matches: &ArgMatches) -> Vec<Script> {
    // Commands have no argument of this name.
    let bare = matches.try_get_one::<String>("text").ok().flatten().cloned().map(Script::Bare);
    let bare = bare.and_then(|bare| Some((matches.index_of("text")?, bare)));
    let texts = matches.get_many::<String>("commands").into_iter().flatten().cloned().map(Script::Text);
    let files = matches.get_many("files").into_iter().flatten().cloned().map(Script::File);
    let texts = matches.indices_of("commands").into_iter().flatten().zip(texts);
    let files = matches.indices_of("files").into_iter().flatten().zip(files);
    let mut scripts: Vec<(usize, Script)> = texts.chain(files).chain(bare).collect();
    scripts.sort_by_key(|(place, _)| *place);
    scripts.into_iter().map(|(_, script)| script).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_option_of_a_session_is_an_option() {
        let command = Cli::command();
        for (id, flag) in OPTIONS {
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect("an option");
            assert_eq!(arg.get_long().map(|long| format!("--{long}")).as_deref(), Some(flag));
        }
    }

    #[test]
    fn every_command_has_its_options() {
        fn paths(command: &clap::Command, above: &str) -> Vec<String> {
            let below_it = command.get_subcommands().flat_map(|command| {
                let path = below(above, command.get_name());
                let mut all = paths(command, &path);
                all.push(path);
                all
            });
            below_it.collect()
        }
        let known = ["run", "mem", "parquet"];
        for path in paths(&Cli::command(), "") {
            assert!(used(&path).len() < OPTIONS.len() || known.contains(&path.as_str()), "{path} is not listed");
        }
    }
}
