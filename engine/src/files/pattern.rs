//! Patterns of paths, by the rules of shells.
//!
//! ```text
//!   data/{a,b}/**/part-[0-9]*.parquet     in the folder data/: a/**/part-[0-9]*.parquet, or b/**/part-[0-9]*.parquet
//!
//!   *   any characters of one name        [a-c]  [!a-c]   one of these characters, one that is none of them
//!   ?   one character                     {a,b}           either text
//!   **  as a whole name: any folders, none among them
//! ```
//!
//! Dots     a name that begins with a dot is met by a dot alone.
//! Literal  a brace without a comma and a bracket without its end are characters; `[*]` is a star.

use datafusion::common::plan_err;
use datafusion::error::Result;

/// Alternatives of one pattern; `{a,b}` beside `{c,d}` are four.
const ALTERNATIVES: usize = 1000;

/// A pattern of paths below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    alternatives: Vec<Vec<Part>>,
}

/// What meets one name of a path, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Any folders.
    Folders,
    Name(Vec<Token>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Character(char),
    /// Any characters.
    Any,
    /// Any one character.
    One,
    /// One character, of these ranges or of none of them.
    Of {
        ranges: Vec<(char, char)>,
        is_one: bool,
    },
}

impl Pattern {
    /// The folder of a path's names before the first that is a pattern, with its slash, and the pattern; `None` for a plain path.
    ///
    /// # Errors
    /// A pattern of too many alternatives.
    pub fn split(path: &str) -> Result<Option<(&str, Self)>> {
        let Some(special) = path.find(['*', '?', '[', '{']) else { return Ok(None) };
        let at = path[..special].rfind('/').map_or(0, |slash| slash + 1);
        let (folder, rest) = path.split_at(at);
        let mut texts = Vec::new();
        alternatives(rest, &mut texts)?;
        let pattern = Self { alternatives: texts.iter().map(|text| parts(text)).collect() };
        let is_plain = |part: &Part| match part {
            Part::Folders => false,
            Part::Name(tokens) => tokens.iter().all(|token| matches!(token, Token::Character(_))),
        };
        if pattern.alternatives.len() == 1 && pattern.alternatives.iter().flatten().all(is_plain) {
            return Ok(None);
        }
        Ok(Some((if folder.is_empty() { "./" } else { folder }, pattern)))
    }

    /// True for a file whose path below the folder has these names.
    pub fn matches(&self, names: &[&str]) -> bool {
        self.alternatives.iter().any(|parts| meets(parts, names))
    }
}

/// Adds the texts that the braces of `text` stand for.
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

/// The first braces with a comma: what is before them, their items, and what is after them.
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

/// The parts of a pattern without braces. One that ends in a slash, or in `**`, means all files below.
fn parts(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = text.split('/').filter(|name| !matches!(*name, "" | ".")).map(part).collect();
    if text.ends_with('/') {
        parts.push(Part::Folders);
    }
    if parts.last() == Some(&Part::Folders) {
        parts.push(Part::Name(vec![Token::Any]));
    }
    parts
}

fn part(name: &str) -> Part {
    if name == "**" {
        return Part::Folders;
    }
    let characters: Vec<char> = name.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(character) = characters.get(at) {
        at += 1;
        tokens.push(match character {
            '*' => Token::Any,
            '?' => Token::One,
            '[' => match set(&characters[at..]) {
                Some((set, length)) => {
                    at += length;
                    set
                }
                None => Token::Character('['),
            },
            other => Token::Character(*other),
        });
    }
    Part::Name(tokens)
}

/// What follows an opening bracket, and its length to the closing one.
fn set(text: &[char]) -> Option<(Token, usize)> {
    let is_not = matches!(text.first(), Some('!' | '^'));
    let begin = usize::from(is_not);
    // A closing bracket that comes first is one of the characters.
    let end = begin + 1 + text.get(begin + 1..)?.iter().position(|character| *character == ']')?;
    let (mut ranges, mut inside) = (Vec::new(), &text[begin..end]);
    while let Some((first, rest)) = inside.split_first() {
        inside = match rest {
            ['-', last, rest @ ..] => {
                ranges.push((*first, *last));
                rest
            }
            rest => {
                ranges.push((*first, *first));
                rest
            }
        };
    }
    Some((Token::Of { ranges, is_one: !is_not }, end + 1))
}

/// True where the parts meet all of these names.
fn meets(parts: &[Part], names: &[&str]) -> bool {
    // reached[n]: the parts so far meet the first n names.
    let mut reached = vec![false; names.len() + 1];
    reached[0] = true;
    for part in parts {
        let mut next = vec![false; names.len() + 1];
        for at in 0..=names.len() {
            next[at] = match part {
                Part::Folders => reached[at] || (at > 0 && next[at - 1] && !names[at - 1].starts_with('.')),
                Part::Name(tokens) => at > 0 && reached[at - 1] && is_name(tokens, names[at - 1]),
            };
        }
        reached = next;
    }
    reached[names.len()]
}

fn is_name(tokens: &[Token], name: &str) -> bool {
    if name.starts_with('.') && tokens.first() != Some(&Token::Character('.')) {
        return false;
    }
    let name: Vec<char> = name.chars().collect();
    let (mut token, mut at) = (0, 0);
    // The last star, and where it began to meet characters.
    let mut star = None;
    while at < name.len() {
        let is_met = match tokens.get(token) {
            Some(Token::Any) => {
                star = Some((token, at));
                token += 1;
                continue;
            }
            Some(Token::Character(own)) => *own == name[at],
            Some(Token::One) => true,
            Some(Token::Of { ranges, is_one }) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&name[at])) == *is_one
            }
            None => false,
        };
        match (is_met, star) {
            (true, _) => (token, at) = (token + 1, at + 1),
            // The star meets a character more.
            (false, Some((of, from))) => {
                star = Some((of, from + 1));
                (token, at) = (of + 1, from + 1);
            }
            (false, None) => return false,
        }
    }
    tokens[token..].iter().all(|token| *token == Token::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of `paths` that bash 5.2 finds with `shopt -s globstar`, of files alone.
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
            assert_eq!(folder, "./");
            let names = |path: &str| pattern.matches(&path.split('/').collect::<Vec<_>>());
            paths.iter().filter(|path| names(path)).copied().collect::<Vec<_>>().join(" ")
        };
        for (pattern, right) in [
            ("*.csv", "b.csv"),
            ("?.parquet", "a.parquet é.parquet"),
            ("[a-b]*.parquet", "a.parquet a10.parquet a{b}.parquet"),
            ("[!a-z_é]*.parquet", ""),
            ("[!a]*.parquet", "_m.parquet x[1].parquet x1.parquet é.parquet"),
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
