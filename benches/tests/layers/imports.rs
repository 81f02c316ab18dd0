//! Dependencies between the files of a crate: each path in code is resolved to the file that defines its item.
//!
//! ```text
//!   crate::program::Program   in session.rs       ─► program/mod.rs re-exports it ─► session.rs uses
//!                                                                                    program/compile.rs
//!   use super::judge;  judge::filter(…)           ─► uses placement/judge.rs, for what is named through it
//!   use cast::cast;           in expr/mod.rs      ─► uses expr/cast.rs, which it declares: distinguished on request
//! ```
//!
//! Left out   modules under `#[cfg(test)]`, comments, texts; `mod x;` alone, and a re-export of what the file itself
//!            does not name.
//! By hand    a tokenizer without a parser: sufficient for code that the compiler has accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A file of the crate by its path below `src`, such as `program/run.rs`.
pub type File = String;
/// The file, and the modules inside it that follow.
type Module = Vec<String>;

/// Named fields, each with the words of its type.
type Fields = Vec<(String, BTreeSet<String>)>;

/// A struct with named fields.
#[derive(Debug)]
pub struct Struct {
    pub file: File,
    pub fields: Fields,
}

/// Files of a crate, and their dependencies.
pub struct Imports {
    /// Every file, and what it uses.
    pub uses: BTreeMap<File, BTreeSet<File>>,
    /// The same without what a file uses of modules that it declares itself.
    pub uses_but_children: BTreeMap<File, BTreeSet<File>>,
    /// Every word of each file.
    pub words: BTreeMap<File, BTreeSet<String>>,
    pub structs: BTreeMap<String, Struct>,
}

#[derive(Debug, Default)]
struct Source {
    file: File,
    tokens: Vec<String>,
    /// Items that are defined in the file, modules in braces among them; and its modules that are files.
    items: BTreeSet<String>,
    modules: BTreeSet<String>,
    /// Names that `use` imports: the path, and whether it is a re-export. A `*` imports all of a module.
    names: BTreeMap<String, (Vec<String>, bool)>,
    globs: Vec<Vec<String>>,
    /// Words outside of `use`.
    outside: BTreeSet<String>,
}

/// A word or a sign, and the line that it begins on, from 1.
#[derive(Debug, Clone)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

impl AsRef<str> for Token {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Words and signs, without comments and texts. `::` is one sign.
pub fn tokens(code: &str) -> Vec<Token> {
    let letters: Vec<char> = code.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let at = |i: usize| letters.get(i).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let (mut i, mut counted, mut line) = (0, 0, 1);
    while i < letters.len() {
        line += letters[counted..i].iter().filter(|letter| **letter == '\n').count();
        counted = i;
        let mut push = |text: String| tokens.push(Token { text, line });
        let c = letters[i];
        if c == '/' && at(i + 1) == '/' {
            while i < letters.len() && letters[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= letters.len() {
                    break;
                }
            }
        } else if c == '"' {
            i += 1;
            while i < letters.len() && letters[i] != '"' {
                i += if letters[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if (c == 'r' || (c == 'b' && at(i + 1) == 'r')) && raw_text(&letters, i).is_some() {
            i = raw_text(&letters, i).unwrap_or(letters.len());
        } else if c == '\'' {
            // A letter in quotes, or a lifetime.
            if at(i + 1) == '\\' {
                i += 3;
                while i < letters.len() && letters[i] != '\'' {
                    i += 1;
                }
                i += 1;
            } else if at(i + 2) == '\'' {
                i += 3;
            } else {
                i += 1;
                while is_word(at(i)) {
                    i += 1;
                }
            }
        } else if is_word(c) {
            let begin = i;
            while is_word(at(i)) {
                i += 1;
            }
            push(letters[begin..i].iter().collect());
        } else if c == ':' && at(i + 1) == ':' {
            push("::".to_string());
            i += 2;
        } else {
            if !c.is_whitespace() {
                push(c.to_string());
            }
            i += 1;
        }
    }
    tokens
}

/// End of the raw string that begins at `from`.
fn raw_text(letters: &[char], from: usize) -> Option<usize> {
    let mut i = from + usize::from(letters[from] == 'b') + 1;
    let begin = i;
    while letters.get(i) == Some(&'#') {
        i += 1;
    }
    let hashes = i - begin;
    if letters.get(i) != Some(&'"') {
        return None;
    }
    i += 1;
    while i < letters.len() {
        let closed = letters[i] == '"' && (1..=hashes).all(|n| letters.get(i + n) == Some(&'#'));
        i += 1;
        if closed {
            return Some(i + hashes);
        }
    }
    None
}

/// The tokens without items under `#[cfg(test)]`, and the number of lines of these items.
pub fn without_tests(tokens: Vec<Token>) -> (Vec<Token>, usize) {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut lines) = (Vec::new(), 0);
    let mut i = 0;
    while i < tokens.len() {
        if tokens[i..].iter().zip(mark).filter(|(token, mark)| token.text == *mark).count() < mark.len() {
            kept.push(tokens[i].clone());
            i += 1;
            continue;
        }
        let first = tokens[i].line;
        i += mark.len();
        let mut depth = 0;
        while i < tokens.len() {
            match tokens[i].text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && matches!(tokens[i].text.as_str(), "}" | ";");
            i += 1;
            if ends {
                break;
            }
        }
        lines += tokens[i - 1].line - first + 1;
    }
    (kept, lines)
}

/// The paths of a `use`, from behind the word to its `;`: each with the name it brings, or `*`.
fn use_tree(tokens: &[String], prefix: &[String], out: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    let mut i = 0;
    while i < tokens.len() {
        match tokens[i].as_str() {
            "::" => {}
            "{" => {
                let mut depth = 0;
                let mut begin = i + 1;
                for (j, token) in tokens.iter().enumerate().skip(i) {
                    match token.as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    if (depth == 1 && token == ",") || depth == 0 {
                        use_tree(&tokens[begin..j], &path, out);
                        begin = j + 1;
                    }
                    if depth == 0 {
                        return;
                    }
                }
                return;
            }
            "as" => {
                let name = tokens.get(i + 1).cloned().unwrap_or_default();
                out.push((path, name));
                return;
            }
            "*" => {
                out.push((path, "*".to_string()));
                return;
            }
            word => path.push(word.to_string()),
        }
        i += 1;
    }
    if path.len() > prefix.len() {
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = path.last().cloned().unwrap_or_default();
        out.push((path, name));
    }
}

impl Source {
    fn read(file: &str, code: &str) -> Self {
        let tokens: Vec<String> = without_tests(tokens(code)).0.into_iter().map(|token| token.text).collect();
        let mut source = Self { file: file.to_string(), tokens, ..Self::default() };
        let tokens = source.tokens.clone();
        let (mut depth, mut i) = (0_usize, 0);
        while i < tokens.len() {
            let next = |n: usize| tokens.get(i + n).map_or("", String::as_str);
            match tokens[i].as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "use" => {
                    let end = tokens[i..].iter().position(|token| token == ";").map_or(tokens.len(), |end| i + end);
                    let is_public = i > 0 && (tokens[i - 1] == "pub" || tokens[i - 1] == ")");
                    let mut paths = Vec::new();
                    use_tree(&tokens[i + 1..end], &[], &mut paths);
                    for (path, name) in paths {
                        match name.as_str() {
                            "*" => source.globs.push(path),
                            _ => drop(source.names.insert(name, (path, is_public))),
                        }
                    }
                    i = end;
                }
                "mod" if depth == 0 && next(2) == ";" => drop(source.modules.insert(next(1).to_string())),
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" | "mod" if depth == 0 => {
                    source.items.insert(next(1).to_string());
                }
                "macro_rules" => drop(source.items.insert(next(2).to_string())),
                word => drop(source.outside.insert(word.to_string())),
            }
            i += 1;
        }
        source
    }

    /// Every path with `::` outside of `use`, and what `use` brings where the file names it.
    fn paths(&self) -> Vec<Vec<String>> {
        let is_word = |token: &String| token.chars().all(|c| c.is_alphanumeric() || c == '_');
        let mut paths = Vec::new();
        let mut i = 0;
        while i < self.tokens.len() {
            if self.tokens[i] == "use" {
                i += self.tokens[i..].iter().position(|token| token == ";").unwrap_or(0) + 1;
                continue;
            }
            let begins = is_word(&self.tokens[i]) && (i == 0 || self.tokens[i - 1] != "::");
            let mut path = vec![self.tokens[i].clone()];
            while begins
                && self.tokens.get(i + 1).is_some_and(|token| token == "::")
                && self.tokens.get(i + 2).is_some_and(is_word)
            {
                path.push(self.tokens[i + 2].clone());
                i += 2;
            }
            if path.len() > 1 {
                paths.push(path);
            }
            i += 1;
        }
        for (name, (path, is_public)) in &self.names {
            // Traits are used without being named.
            if !is_public || self.outside.contains(name) {
                paths.push(path.clone());
            }
        }
        paths.extend(self.globs.iter().cloned());
        paths
    }
}

/// What a path leads to.
enum Target {
    Module(Module),
    Item(File),
}

/// Re-exports of re-exports that a path may lead through.
const MOST_STEPS: usize = 16;

struct Resolver<'a> {
    sources: &'a BTreeMap<Module, Source>,
}

impl Resolver<'_> {
    /// The target of `path`, seen from `module`; `None` if it lies in another crate.
    fn resolve(&self, module: &Module, path: &[String], tries: usize) -> Option<Target> {
        let mut at = module.clone();
        let mut rest = path;
        let mut is_first = true;
        while let [segment, after @ ..] = rest {
            match segment.as_str() {
                "crate" if is_first => at = vec![],
                "self" if is_first => {}
                "super" => drop(at.pop()),
                name => match self.named(&at, name, tries) {
                    Some(Target::Module(next)) => at = next,
                    Some(item) => return Some(item),
                    // A macro has defined it.
                    None if !is_first => return self.sources.get(&at).map(|of| Target::Item(of.file.clone())),
                    None => return None,
                },
            }
            (rest, is_first) = (after, false);
        }
        Some(Target::Module(at))
    }

    /// What `name` is in a module.
    fn named(&self, module: &Module, name: &str, tries: usize) -> Option<Target> {
        let source = self.sources.get(module)?;
        if source.modules.contains(name) {
            return Some(Target::Module([module.clone(), vec![name.to_string()]].concat()));
        }
        if source.items.contains(name) {
            return Some(Target::Item(source.file.clone()));
        }
        let tries = tries.checked_sub(1)?;
        if let Some((path, _)) = source.names.get(name) {
            return self.resolve(module, path, tries);
        }
        // A module in braces says `super` for the file itself.
        source.globs.iter().find_map(|glob| match self.resolve(module, glob, tries)? {
            Target::Module(of) if of != *module => self.named(&of, name, tries),
            _ => None,
        })
    }
}

impl Imports {
    /// Of the crate whose `lib.rs` lies in `src`.
    pub fn of(src: &Path) -> Self {
        let mut sources = BTreeMap::new();
        let mut folders = vec![src.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let file = path.strip_prefix(src).expect("inside").to_string_lossy().replace('\\', "/");
                let Some(stem) = file.strip_suffix(".rs") else { continue };
                let stem = stem.strip_suffix("/mod").unwrap_or(stem);
                let module: Module = match stem {
                    "lib" => vec![],
                    stem => stem.split('/').map(str::to_string).collect(),
                };
                sources.insert(module, Source::read(&file, &fs::read_to_string(&path).expect("source")));
            }
        }
        Self::resolved(&sources)
    }

    fn resolved(sources: &BTreeMap<Module, Source>) -> Self {
        let resolver = Resolver { sources };
        let (mut uses, mut uses_but_children) = (BTreeMap::new(), BTreeMap::new());
        let mut words = BTreeMap::new();
        let mut structs = BTreeMap::new();
        for (module, source) in sources {
            let mut of_file = BTreeSet::new();
            for path in source.paths() {
                match resolver.resolve(module, &path, MOST_STEPS) {
                    // A module is used for what is named through it, by a path of its own.
                    Some(Target::Module(_)) | None => {}
                    Some(Target::Item(file)) => drop(of_file.insert(file)),
                }
            }
            of_file.remove(&source.file);
            let child = |name| sources.get(&[module.clone(), vec![name]].concat()).map(|child| &child.file);
            let children: BTreeSet<&File> = source.modules.iter().cloned().filter_map(child).collect();
            let others = of_file.iter().filter(|file| !children.contains(file)).cloned().collect();
            uses_but_children.insert(source.file.clone(), others);
            uses.insert(source.file.clone(), of_file);
            words.insert(source.file.clone(), source.tokens.iter().cloned().collect());
            for (name, fields) in structs_of(&source.tokens) {
                structs.insert(name, Struct { file: source.file.clone(), fields });
            }
        }
        Self { uses, uses_but_children, words, structs }
    }
}

/// The largest set of files of which each uses each other, directly or through others.
pub fn largest_circle(uses: &BTreeMap<File, BTreeSet<File>>) -> BTreeSet<&File> {
    let reach = |from: &File| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for next in &uses[file] {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&File, BTreeSet<&File>> = uses.keys().map(|file| (file, reach(file))).collect();
    let circle = |file: &File| -> BTreeSet<&File> {
        reached[file].iter().filter(|other| reached[**other].contains(file)).copied().collect()
    };
    uses.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
}

/// Structs with named fields.
pub fn structs_of(tokens: &[String]) -> Vec<(String, Fields)> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if token != "struct" {
            continue;
        }
        let Some(name) = tokens.get(i + 1) else { continue };
        let Some(open) = tokens[i..].iter().position(|token| matches!(token.as_str(), "{" | ";" | "(")) else {
            continue;
        };
        if tokens[i + open] != "{" {
            continue;
        }
        let mut fields = Fields::new();
        let (mut depth, mut angle, mut at_name) = (0_i32, 0_i32, true);
        let mut j = i + open;
        while j < tokens.len() {
            let token = tokens[j].as_str();
            match token {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                "<" => angle += 1,
                ">" if tokens[j - 1] != "-" => angle -= 1,
                "," if depth == 1 && angle == 0 => at_name = true,
                ":" if depth == 1 && at_name => {
                    fields.push((tokens[j - 1].clone(), BTreeSet::new()));
                    at_name = false;
                }
                word if !at_name => {
                    if let Some((_, words)) = fields.last_mut() {
                        words.insert(word.to_string());
                    }
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
            j += 1;
        }
        found.push((name.clone(), fields));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Imports {
        let mut sources = BTreeMap::new();
        for (file, code) in files {
            let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let module: Module = match stem {
                "lib" => vec![],
                stem => stem.split('/').map(str::to_string).collect(),
            };
            sources.insert(module, Source::read(file, code));
        }
        Imports::resolved(&sources)
    }

    fn uses<'i>(imports: &'i Imports, file: &str) -> Vec<&'i str> {
        imports.uses[file].iter().map(String::as_str).collect()
    }

    #[test]
    fn a_path_leads_to_the_file_that_defines_what_it_names() {
        let imports = crate_of(&[
            ("lib.rs", "pub mod a; mod b; pub use a::Deep;"),
            (
                "a/mod.rs",
                "mod deep; pub mod other; pub use deep::{Deep, Deep as Renamed}; pub(crate) use other::help; pub fn own() {}",
            ),
            ("a/deep.rs", "use super::own; pub struct Deep; impl Deep { fn f() { own(); super::other::help() } }"),
            ("a/other.rs", "pub fn help() {} /* crate::b::nothing */"),
            ("b.rs", "use crate::a::{self, Renamed}; use std::fmt; fn f(_: Renamed) { a::help(); \"crate::a::own\"; }"),
        ]);
        assert_eq!(uses(&imports, "b.rs"), ["a/deep.rs", "a/other.rs"]);
        assert_eq!(uses(&imports, "a/deep.rs"), ["a/mod.rs", "a/other.rs"]);
        // What is passed on, and not named otherwise, is not used.
        assert_eq!(uses(&imports, "a/mod.rs"), [""; 0]);
        assert_eq!(uses(&imports, "lib.rs"), [""; 0]);
    }

    #[test]
    fn what_a_file_uses_of_its_own_modules_is_told_apart() {
        let imports = crate_of(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; use b::B; fn f(_: B) {} pub struct A;"),
            ("a/b.rs", "pub struct B(super::A);"),
        ]);
        assert_eq!(uses(&imports, "a/mod.rs"), ["a/b.rs"]);
        assert_eq!(imports.uses_but_children["a/mod.rs"], BTreeSet::new());
        assert_eq!(largest_circle(&imports.uses).len(), 2);
        assert_eq!(largest_circle(&imports.uses_but_children).len(), 0);
    }

    #[test]
    fn what_a_macro_defines_belongs_to_its_file() {
        let imports = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "options! { pub struct Options { pub x: u8 } }"),
            ("b.rs", "use crate::a::Options; fn f() { Vec::new(); Options::new(); }"),
        ]);
        assert_eq!(uses(&imports, "b.rs"), ["a.rs"]);
    }

    #[test]
    fn tests_are_left_out_and_letters_are_no_texts() {
        let imports = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; fn f() { if true {} } } fn g<'x>(c: char) { c == '\"'; }",
            ),
            ("b.rs", "pub struct B; fn f() { let _ = r#\"\" crate::a::A \"#; crate::a::A; }"),
        ]);
        assert_eq!(uses(&imports, "a.rs"), [""; 0]);
        assert_eq!(uses(&imports, "b.rs"), ["a.rs"]);
    }

    #[test]
    fn files_that_use_each_other_by_way_of_others_are_a_circle() {
        let imports = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "pub struct B(crate::c::C);"),
            ("c.rs", "pub struct C(crate::a::A);"),
            ("d.rs", "pub struct D(crate::a::A);"),
        ]);
        assert_eq!(largest_circle(&imports.uses).len(), 3);
    }

    #[test]
    fn a_struct_has_its_fields() {
        let imports = crate_of(&[(
            "lib.rs",
            "struct S<T> { pub a: Vec<(T, u8)>, #[doc = \"x\"] b: fn(u8) -> Map<K, V>, pub(super) c: [W; 2] } struct T(u8);",
        )]);
        let fields: Vec<&str> = imports.structs["S"].fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(fields, ["a", "b", "c"]);
        assert!(imports.structs["S"].fields[1].1.contains("Map"));
    }
}
