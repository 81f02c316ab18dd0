//! Path patterns with the rules of shells.
//!
//! ```text
//!   data/{a,b}/**/part-[0-9]*.parquet     in the folder data/: a/**/part-[0-9]*.parquet, or b/**/part-[0-9]*.parquet
//!
//!   *   any characters of one name        [a-c]  [!a-c]   one of these characters, one not among them
//!   ?   one character                     {a,b}           either text
//!   **  as a whole name: any number of folders, including none
//! ```
//!
//! Names    are matched by the crate `glob`; braces are expanded here.
//! Dots     a leading dot of a name is matched only by a literal dot.
//! Literal  a brace without a comma and an unclosed bracket are literal characters; `[*]` is a star.

use datafusion::common::plan_err;
use datafusion::error::Result;
use glob::{MatchOptions, Pattern as Names};

/// Maximum number of alternatives of one pattern; `{a,b}` and `{c,d}` together make four.
const ALTERNATIVES: usize = 1000;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Matches any number of folders.
const FOLDERS: &str = "**";

/// Pattern of paths relative to a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    alternatives: Vec<Names>,
}

impl Pattern {
    /// Splits a path into the folder before the first name with a pattern, including its slash, and the pattern; `None`
    /// for a plain path.
    ///
    /// # Errors
    /// If the pattern has too many alternatives.
    pub fn split(path: &str) -> Result<Option<(&str, Self)>> {
        let Some(special) = path.find(['*', '?', '[', '{']) else { return Ok(None) };
        let at = path[..special].rfind('/').map_or(0, |slash| slash + 1);
        let (folder, rest) = path.split_at(at);
        let mut texts = Vec::new();
        alternatives(rest, &mut texts)?;
        if let [text] = &texts[..]
            && text.split('/').all(is_plain)
        {
            return Ok(None);
        }
        let alternatives = texts.iter().map(|text| names(text)).collect();
        Ok(Some((if folder.is_empty() { "./" } else { folder }, Self { alternatives })))
    }

    /// True for a file whose path relative to the folder consists of these names.
    pub fn matches(&self, names: &[&str]) -> bool {
        let path = names.join("/");
        self.alternatives.iter().any(|pattern| pattern.matches_with(&path, OPTIONS))
    }
}

/// Adds the expansions of the braces in `text`.
fn alternatives(text: &str, found: &mut Vec<String>) -> Result<()> {
    let Some((before, items, after)) = braces(text) else {
        if found.len() >= ALTERNATIVES {
            return plan_err!(
                "a pattern of paths with more than {ALTERNATIVES} alternatives: use * for some of its braces"
            );
        }
        found.push(text.to_string());
        return Ok(());
    };
    for item in items {
        alternatives(&format!("{before}{item}{after}"), found)?;
    }
    Ok(())
}

/// First braces with a comma: the text before them, their items, and the text after them.
fn braces(text: &str) -> Option<(&str, Vec<&str>, &str)> {
    text.match_indices('{').find_map(|(open, _)| {
        let (mut depth, mut begin, mut items) = (0, open + 1, Vec::new());
        for (at, character) in text[open..].char_indices().map(|(at, character)| (open + at, character)) {
            match character {
                '{' => depth += 1,
                ',' if depth == 1 => {
                    items.push(&text[begin..at]);
                    begin = at + 1;
                }
                '}' if depth == 1 => {
                    items.push(&text[begin..at]);
                    return (items.len() > 1).then(|| (&text[..open], items, &text[at + 1..]));
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        None
    })
}

/// Pattern without braces. If it ends in a slash or in `**`, it matches all files below.
fn names(text: &str) -> Names {
    let mut names: Vec<String> = text.split('/').filter(|name| !matches!(*name, "" | ".")).map(name).collect();
    if text.ends_with('/') {
        names.push(FOLDERS.to_string());
    }
    if names.last().is_some_and(|last| last == FOLDERS) {
        names.push("*".to_string());
    }
    let whole = names.join("/");
    Names::new(&whole).unwrap_or_else(|_| Names::new(&Names::escape(text)).unwrap_or_default())
}

/// Pattern of one name in the syntax of `glob`.
fn name(text: &str) -> String {
    if text == FOLDERS {
        return text.to_string();
    }
    let mut name = text.replace("[^", "[!");
    while name.contains(FOLDERS) {
        name = name.replace(FOLDERS, "*");
    }
    if Names::new(&name).is_err() { name.replace('[', "[[]") } else { name }
}

/// True for a name without a pattern.
fn is_plain(text: &str) -> bool {
    !text.contains(['*', '?']) && (!text.contains('[') || Names::new(text).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected matches in `paths` are those of bash 5.2 with `shopt -s globstar`, files only.
    #[test]
    fn patterns_find_what_a_shell_finds() {
        let paths = [
            "a.parquet",
            "a10.parquet",
            "b.csv",
            "s/b.parquet",
            "s/t/c.parquet",
            "u/t/d.parquet",
            ".h.parquet",
            "_m.parquet",
            "s/.git/e.parquet",
            "x[1].parquet",
            "x1.parquet",
            "y=1/m=2/f.parquet",
            "é.parquet",
            "a{b}.parquet",
        ];
        let found = |pattern: &str| {
            let (folder, pattern) = Pattern::split(pattern).expect("few alternatives").expect("a pattern");
            let folder = folder.trim_start_matches("./");
            let is_found = |path: &&&str| {
                let below = path.strip_prefix(folder);
                below.is_some_and(|below| pattern.matches(&below.split('/').collect::<Vec<_>>()))
            };
            paths.iter().filter(is_found).copied().collect::<Vec<_>>().join(" ")
        };
        for (pattern, right) in [
            ("*.csv", "b.csv"),
            ("?.parquet", "a.parquet é.parquet"),
            ("[a-b]*.parquet", "a.parquet a10.parquet a{b}.parquet"),
            ("[!a-z_é]*.parquet", ""),
            ("[!a]*.parquet", "_m.parquet x[1].parquet x1.parquet é.parquet"),
            ("[^a]*.parquet", "_m.parquet x[1].parquet x1.parquet é.parquet"),
            ("x[1].parquet", "x1.parquet"),
            ("x[[]1].parquet", "x[1].parquet"),
            ("x[]1].parquet", "x1.parquet"),
            (".*.parquet", ".h.parquet"),
            ("*/*.parquet", "s/b.parquet"),
            ("*/*/*.parquet", "s/t/c.parquet u/t/d.parquet y=1/m=2/f.parquet"),
            ("**/c.parquet", "s/t/c.parquet"),
            ("**/a.parquet", "a.parquet"),
            ("s/**/*.parquet", "s/b.parquet s/t/c.parquet"),
            ("s/**", "s/b.parquet s/t/c.parquet"),
            ("s/.git/*", "s/.git/e.parquet"),
            ("*/t/", "s/t/c.parquet u/t/d.parquet"),
            ("{a,a10}.parquet", "a.parquet a10.parquet"),
            ("{s,u}/*/*.parquet", "s/t/c.parquet u/t/d.parquet"),
            ("{a,s/{b,t/c}}.parquet", "a.parquet s/b.parquet s/t/c.parquet"),
            ("a{,10}.parquet", "a.parquet a10.parquet"),
            ("a{b}*", "a{b}.parquet"),
            ("*a*0*t", "a10.parquet"),
            ("**a**10.parquet", "a10.parquet"),
            ("y=*/m=?/*", "y=1/m=2/f.parquet"),
        ] {
            assert_eq!(found(pattern), right, "{pattern}");
        }
    }

    #[test]
    fn plain_paths_are_no_patterns() {
        for path in ["a/b.parquet", "a{b}.parquet", "a[b.parquet", "/"] {
            assert_eq!(Pattern::split(path).expect("no alternatives"), None, "{path}");
        }
        let split = |path| Pattern::split(path).expect("few alternatives").map(|(folder, _)| folder);
        assert_eq!(split("/data/x/*.csv"), Some("/data/x/"));
        assert_eq!(split("/data/x{1,2}/a.csv"), Some("/data/"));
        assert_eq!(split("*.csv"), Some("./"));
        assert!(Pattern::split(&"{a,b}".repeat(11)).is_err(), "2,048 alternatives");
    }
}
