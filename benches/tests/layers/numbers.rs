//! Numbers of the source that may only fall, counted anew by each run; a test that fails prints the offenders.
//!
//! ```text
//!   Circle         files that import each other, directly or through others, of a crate or of one folder
//!   Inherent impl  `impl Type { … }` of a type that the file imports, in another folder than the definitions of
//!                  `Type` in the crate. The folder of `x.rs` is also `x/`
//!   Deref          `impl Deref for Type` and `impl DerefMut for Type`: only those of DEREFS
//!   File           more than 700 lines: those of FILES_OVER_700
//!   Function       more than 100 lines from the word `fn` to its last brace
//!   Struct         more than 12 named fields
//!   Type name      of structs, enums, unions, traits and aliases outside of functions and impls: a name with more
//!                  than one definition in a crate
//!   Test folder    more than 16 files of Rust, without those of its subfolders
//!   Comment        a line that begins with `//`: more than 120 columns, or one of the words of WORDS, however it is
//!                  written; of Rust, and of CUDA below `kernels`
//! ```
//!
//! Source    means the folders of CRATES without items under `#[cfg(test)]`, files called `tests.rs` and folders called
//!           `tests`. Comments are counted everywhere, test folders below every `tests`.
//! Numbers   are those of today. A change that lowers one writes it here: the test is as strict below as above.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::imports::{File, Imports, Token, largest_circle, structs_of, tokens, without_tests};
use crate::{root, rust_files};

const CIRCLE_OF_AGGREGATE: usize = 0;
/// Apart from what a folder's own file imports of its files. In the end 6.
const CIRCLE_OF_MEMORY: usize = 18;
const CIRCLE_OF_MEMORY_WITH_CHILDREN: usize = 28;
/// In the end 0.
const STRAY_INHERENT_IMPLS: usize = 4;
const FUNCTIONS_OVER_100_LINES: usize = 3;
const STRUCTS_OVER_12_FIELDS: usize = 21;
const TEST_FOLDERS_OVER_16_FILES: usize = 4;
const COMMENT_LINES_OVER_120_COLUMNS: usize = 130;

/// Type names with more than one definition, by crate.
const TYPE_NAMES_DEFINED_TWICE: [(&str, usize); 10] = [
    ("engine", 75),
    ("engine/cli", 5),
    ("engine/parquet", 4),
    ("engine/python", 1),
    ("memory", 34),
    ("kernels", 20),
    ("kernels/ptx", 17),
    ("queries", 3),
    ("benches", 9),
    ("data", 5),
];

/// Words that stand for a noun of the field, in comments.
const WORDS: [(&str, usize); 8] = [
    ("nobody", 1),
    ("somebody", 0),
    ("whoever", 0),
    ("anybody", 0),
    ("so many", 5),
    ("home", 13),
    ("told", 3),
    ("asked", 51),
];

const FILES_OVER_700: &[&str] = &[];

/// Types that lend a field, and which: the field is the value, the rest is what keeps it valid.
const DEREFS: &[(&str, &str, &str)] = &[
    ("engine/src/parquet/scratch.rs", "ChunkPages", "the page positions; beside them, whether they were decoded"),
    ("engine/src/parquet/scratch.rs", "Scratch", "the bytes of a buffer that goes back to its room"),
    ("memory/src/buffer.rs", "DeviceBuffer", "the view of all its bytes; it owns the allocation"),
    ("memory/src/cursor.rs", "Locked", "the end of a stream, locked"),
    ("memory/src/ipc/import.rs", "ImportedBuffer", "the view of the allocation; its drop reports to the other process"),
    ("memory/src/pinned/block.rs", "FrozenBlock", "the bytes of a pinned block that is frozen"),
    ("memory/src/pinned/block.rs", "HostReadGuard", "the bytes of a pinned block, for reading"),
    ("memory/src/pinned/block.rs", "HostWriteGuard", "the bytes of a pinned block, for writing"),
    ("memory/src/pinned/buffer.rs", "PinnedBytes", "the written part of a pinned buffer"),
    ("memory/src/spill/mod.rs", "Resident", "the views of a group that is held on the device"),
];

/// The crates, by their folders.
const CRATES: [&str; 10] = [
    "engine",
    "engine/cli",
    "engine/parquet",
    "engine/python",
    "memory",
    "kernels",
    "kernels/ptx",
    "queries",
    "benches",
    "data",
];

/// A file of source.
struct Source {
    /// Its crate's folder, and its path from the root.
    of: &'static str,
    path: String,
    lines: usize,
    tokens: Vec<Token>,
}

impl Source {
    fn words(&self) -> Vec<String> {
        self.tokens.iter().map(|token| token.text.clone()).collect()
    }

    /// The folder that the file lies in, and that of its own modules.
    fn folders(&self) -> [&str; 2] {
        let stem = self.path.trim_end_matches(".rs");
        let parent = stem.rsplit_once('/').map_or("", |(parent, _)| parent);
        [parent, if stem.ends_with("/mod") || stem.ends_with("/lib") { parent } else { stem }]
    }
}

fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
        let mut sources = Vec::new();
        for path in rust_files().into_iter().filter(|path| !is_test(path)) {
            let Some(of) = CRATES.into_iter().find(|of| path.starts_with(&format!("{of}/src/"))) else { continue };
            let text = fs::read_to_string(root().join(&path)).expect("source");
            let (tokens, tests) = without_tests(tokens(&text));
            sources.push(Source { of, path, lines: text.lines().count() - tests, tokens });
        }
        sources
    })
}

/// The message, with the offenders, if there are more or fewer than `bound`.
fn count(what: &str, bound: usize, offenders: &[impl Debug]) -> Option<String> {
    let list: Vec<String> = offenders.iter().map(|offender| format!("  {offender:?}")).collect();
    let (today, list) = (offenders.len(), list.join("\n"));
    println!("{today}: {what}\n{list}");
    let message = format!("{what}: {today}, not {bound}. The number goes down, here too; it does not go up\n{list}");
    (today != bound).then_some(message)
}

fn holds(what: &str, bound: usize, offenders: &[impl Debug]) {
    all_hold([count(what, bound, offenders)]);
}

fn all_hold(counts: impl IntoIterator<Item = Option<String>>) {
    let wrong: Vec<String> = counts.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What of `found` is in no line of `listed`, and the other way round.
fn is_list(what: &str, listed: &[&str], found: &[String]) {
    println!("{}: {what}: {found:#?}", found.len());
    let new: Vec<_> = found.iter().filter(|found| !listed.contains(&found.as_str())).collect();
    let gone: Vec<_> = listed.iter().filter(|listed| !found.iter().any(|found| found == *listed)).collect();
    assert!(new.is_empty(), "{what}: the list grows shorter, not longer: {new:#?}");
    assert!(gone.is_empty(), "{what}: strike out {gone:#?}");
}

/// Functions with a body: name, first line, last line.
fn functions(tokens: &[Token]) -> Vec<(&str, usize, usize)> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "fn") {
        let Some(name) = tokens.get(i + 1).filter(|name| name.text != "(") else { continue };
        // Parentheses and brackets of the head, braces of the body.
        let (mut head, mut body) = (0_usize, 0_usize);
        for next in &tokens[i..] {
            match next.text.as_str() {
                "{" => body += 1,
                "}" if body == 1 => {
                    found.push((name.text.as_str(), token.line, next.line));
                    break;
                }
                "}" => body -= 1,
                "(" | "[" => head += 1,
                ")" | "]" => head -= 1,
                ";" if body == 0 && head == 0 => break,
                _ => {}
            }
        }
    }
    found
}

/// Types that are defined outside of functions, traits and impls: names and lines.
fn types(tokens: &[Token]) -> Vec<(&str, usize)> {
    let mut depth = 0_usize;
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            // A declaration macro's brace holds definitions, too.
            "struct" | "enum" | "union" | "trait" | "type"
                if (depth == 0 || depth == 1 && tokens[i - 1].text == "pub") && i + 2 < tokens.len() =>
            {
                let is_name = tokens[i + 1].text.starts_with(|c: char| c.is_ascii_uppercase());
                if is_name {
                    found.push((tokens[i + 1].text.as_str(), token.line));
                }
            }
            _ => {}
        }
    }
    found
}

/// The heads of `impl`s: the trait's last name, if it has one, the type's name and the line.
fn impls(tokens: &[Token]) -> Vec<(Option<&str>, &str, usize)> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let begins = i == 0 || matches!(tokens[i - 1].text.as_str(), "}" | ";" | "]" | "{" | "unsafe");
        if token.text != "impl" || !begins {
            continue;
        }
        let (mut angle, mut names, mut of) = (0_i32, Vec::new(), None);
        for (j, next) in tokens.iter().enumerate().skip(i + 1) {
            match next.text.as_str() {
                "<" => angle += 1,
                ">" if tokens[j - 1].text != "-" => angle -= 1,
                "{" | "where" if angle == 0 => break,
                "for" if angle == 0 => of = names.pop(),
                word if angle == 0 && word.starts_with(|c: char| c.is_alphanumeric()) => names.push(next.text.as_str()),
                _ => {}
            }
        }
        if let Some(name) = names.last() {
            found.push((of, *name, token.line));
        }
    }
    found
}

/// Whether a `use` of the file brings `name`: not if its path begins with `name`, which is in scope then.
fn imports(tokens: &[Token], name: &str) -> bool {
    let uses = tokens.split(|token| token.text == ";").filter_map(|statement| {
        let begin = statement.iter().rposition(|token| token.text == "use")?;
        statement.get(begin + 2..)
    });
    uses.flatten().any(|token| token.text == name)
}

fn circle(mut uses: BTreeMap<File, BTreeSet<File>>, folder: &str) -> Vec<File> {
    uses.retain(|file, _| file.starts_with(folder));
    let inside: BTreeSet<File> = uses.keys().cloned().collect();
    for used in uses.values_mut() {
        used.retain(|file| inside.contains(file));
    }
    largest_circle(&uses).into_iter().cloned().collect()
}

#[test]
fn circles_grow_no_larger() {
    let engine = Imports::of(&root().join("engine/src"));
    holds("files of aggregate in one circle", CIRCLE_OF_AGGREGATE, &circle(engine.uses, "operator/aggregate/"));
    let memory = Imports::of(&root().join("memory/src"));
    let what = "files of memory in one circle";
    holds(&format!("{what}, all counted"), CIRCLE_OF_MEMORY_WITH_CHILDREN, &circle(memory.uses, ""));
    holds(
        &format!("{what}, a folder's file and its own files left out"),
        CIRCLE_OF_MEMORY,
        &circle(memory.uses_but_children, ""),
    );
}

#[test]
fn inherent_impls_stand_in_the_folder_of_their_type() {
    let mut defined: BTreeMap<(&str, &str), Vec<&Source>> = BTreeMap::new();
    for source in sources() {
        for (name, _) in types(&source.tokens) {
            defined.entry((source.of, name)).or_default().push(source);
        }
    }
    let mut stray = Vec::new();
    for source in sources() {
        for (_, name, line) in impls(&source.tokens).into_iter().filter(|(of, _, _)| of.is_none()) {
            let Some(at) = defined.get(&(source.of, name)).filter(|_| imports(&source.tokens, name)) else { continue };
            if !at.iter().any(|at| at.folders().iter().any(|folder| source.folders().contains(folder))) {
                stray.push(format!(
                    "{}:{line}: {name} of {:?}",
                    source.path,
                    at.iter().map(|at| &at.path).collect::<Vec<_>>()
                ));
            }
        }
    }
    holds("inherent impls in another folder than their type", STRAY_INHERENT_IMPLS, &stray);
}

#[test]
fn deref_leads_only_to_the_value() {
    let mut found = BTreeSet::new();
    for source in sources() {
        let derefs = impls(&source.tokens).into_iter().filter(|(of, _, _)| matches!(of, Some("Deref" | "DerefMut")));
        found.extend(derefs.map(|(_, name, _)| format!("{} {name}", source.path)));
    }
    let listed: Vec<String> = DEREFS.iter().map(|(path, name, _)| format!("{path} {name}")).collect();
    let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
    is_list("types with Deref", &listed, &Vec::from_iter(found));
}

#[test]
fn files_have_700_lines() {
    let long: Vec<String> =
        sources().iter().filter(|source| source.lines > 700).map(|source| source.path.clone()).collect();
    is_list("files of more than 700 lines", FILES_OVER_700, &long);
}

#[test]
fn functions_have_100_lines() {
    let mut long = Vec::new();
    for source in sources() {
        for (name, first, last) in functions(&source.tokens) {
            if last - first + 1 > 100 {
                long.push(format!("{}:{first} {name}: {}", source.path, last - first + 1));
            }
        }
    }
    holds("functions of more than 100 lines", FUNCTIONS_OVER_100_LINES, &long);
}

#[test]
fn structs_have_12_fields() {
    let mut large = Vec::new();
    for source in sources() {
        let structs = structs_of(&source.words()).into_iter().filter(|(_, fields)| fields.len() > 12);
        large.extend(structs.map(|(name, fields)| format!("{} {name}: {}", source.path, fields.len())));
    }
    holds("structs of more than 12 fields", STRUCTS_OVER_12_FIELDS, &large);
}

#[test]
fn type_names_are_defined_once_in_a_crate() {
    all_hold(TYPE_NAMES_DEFINED_TWICE.map(|(of, bound)| {
        let mut defined: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for source in sources().iter().filter(|source| source.of == of) {
            for (name, line) in types(&source.tokens) {
                defined.entry(name).or_default().push(format!("{}:{line}", source.path));
            }
        }
        defined.retain(|_, at| at.len() > 1);
        count(&format!("type names of {of} with two definitions"), bound, &Vec::from_iter(defined))
    }));
}

#[test]
fn test_folders_have_16_files() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for file in rust_files().iter().filter(|file| file.contains("/tests/")) {
        let folder = Path::new(file).parent().expect("a folder").to_string_lossy().into_owned();
        *folders.entry(folder).or_default() += 1;
    }
    folders.retain(|_, files| *files > 16);
    holds("test folders of more than 16 files", TEST_FOLDERS_OVER_16_FILES, &Vec::from_iter(folders));
}

/// Comment lines of Rust and CUDA: place and text.
fn comments() -> Vec<(String, String)> {
    let mut files = rust_files();
    for entry in fs::read_dir(root().join("kernels/cuda")).expect("folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            files.push(format!("kernels/cuda/{name}"));
        }
    }
    let mut comments = Vec::new();
    for file in files {
        let text = fs::read_to_string(root().join(&file)).expect("source");
        let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        comments.extend(lines.map(|(i, line)| (format!("{file}:{}", i + 1), line.to_string())));
    }
    comments
}

#[test]
fn comments_have_120_columns() {
    let wide = comments().into_iter().filter(|(_, line)| line.chars().count() > 120).map(|(place, _)| place);
    holds("comment lines of more than 120 columns", COMMENT_LINES_OVER_120_COLUMNS, &Vec::from_iter(wide));
}

#[test]
fn comments_name_their_subjects() {
    let words = |line: &str| {
        let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        format!(" {} ", words.collect::<Vec<_>>().join(" ").to_lowercase())
    };
    let comments: Vec<_> =
        comments().into_iter().map(|(place, line)| (format!("{place} {}", line.trim()), words(&line))).collect();
    all_hold(WORDS.map(|(word, bound)| {
        let found = comments.iter().filter(|(_, words)| words.contains(&format!(" {word} "))).map(|(line, _)| line);
        count(&format!("comment lines with {word:?}"), bound, &Vec::from_iter(found))
    }));
}

#[test]
fn code_is_counted_as_it_is_defined() {
    let code = "use a::{B, C}; struct S { a: [u8; 2], b: fn(u8) }\n impl<T: Fn() -> u8> Deref for B<T> { type Target = C; }\n\
        impl C {\n fn f<'a>(self: [u8; 2]) -> impl Fn() {\n \"}\"; // }\n }\n fn g(); } mod m { pub type D = C; }\n\
        #[cfg(test)]\n mod tests {\n enum E {} }";
    let (tokens, tests) = without_tests(tokens(code));
    assert_eq!(tests, 3);
    assert_eq!(functions(&tokens), [("f", 4, 6)]);
    assert_eq!(types(&tokens), [("S", 1), ("D", 7)]);
    assert_eq!(impls(&tokens), [(Some("Deref"), "B", 2), (None, "C", 3)]);
    assert!(imports(&tokens, "B") && !imports(&tokens, "S") && !imports(&tokens, "a"));
}
