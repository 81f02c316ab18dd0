//! Regular expressions by automata, against the `regex` crate: matches, counts, positions, replacements.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::regex::{Automata, automata};
use regex::Regex;

use crate::text_bench::{Bench, Out, assert_same, some_texts, with_nulls};

/// Expressions of every kind that has an automaton.
const PATTERNS: [&str; 60] = [
    "",
    "a",
    "ab",
    "special",
    "a|b",
    "a*",
    "a+",
    "a?",
    "a*?",
    "a+?b",
    "(a|ab)(c|bcd)?",
    "^",
    "$",
    "^$",
    "^a",
    "b$",
    "^a+$",
    "(?m)^",
    "(?m)$",
    "(?m)^b",
    "[a-c]",
    "[^a-c]",
    "[^a]*",
    ".",
    ".*",
    "(?s).*",
    ".+?",
    "é",
    "[é日]",
    "日本?",
    r"\d+",
    r"\w+",
    r"\W",
    r"\s+",
    r"\S+$",
    "(?i)special",
    "(?i)É",
    "(?i)k",
    r"\p{Greek}+",
    r"\p{L}\p{N}",
    "(?-u:\\b)a",
    "(?-u:\\B)",
    r"a{2,3}",
    "(ab){2}",
    "(?:a|b)*c",
    "(?U)a+",
    "x*y*",
    "(?x) a b ",
    "[[:alpha:]]+",
    "r.*s",
    "r.*?s",
    "(requests|request)",
    "(request|requests)",
    "a😀",
    "[😀-😂]",
    r"\x{e9}",
    "(?R)$",
    "a$|b",
    "(?m)a$",
    "|a",
];

/// Texts that distinguish the expressions.
fn texts() -> Vec<String> {
    let mut texts = some_texts();
    let more = [
        "a\nb",
        "\n\n",
        "ab\nab\n",
        "a\r\nb\r\n",
        "aaaa",
        "abab",
        "abcbcd",
        "aab b",
        "ÉÉé",
        "日本語 日",
        "a😀b",
        "12 ab 34",
        "αβγ1",
        "K\u{212a}k",
        "special requests",
        "SPECIAL",
        "request",
        "requests",
        "xxyyx",
        "éa",
        "aé",
        "é",
        "bbb",
        "c",
    ];
    texts.extend(more.map(String::from));
    texts.push("ab c\n".repeat(40));
    texts
}

fn own(pattern: &str) -> Automata {
    automata(pattern, true).unwrap_or_else(|why| panic!("{pattern:?}: {why}"))
}

#[test]
fn automata_match_where_the_regex_crate_does() {
    let texts = texts();
    let column = with_nulls(&texts);
    for some in PATTERNS.chunks(6) {
        let mut bench = Bench::new();
        let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
        let (one, two) = (bench.graph.integer(1, Repr::I64), bench.graph.integer(2, Repr::I64));
        let to = bench.constant("¨x".as_bytes());
        let mut nodes = Vec::new();
        for pattern in some {
            let Automata { bytes, quits } = own(pattern);
            let own = bench.constant(&bytes);
            let mut node = |function, of: &[NodeId]| bench.graph.text(function, of).expect("a text");
            nodes.extend([
                node(TextFunction::RegexMatch { quits }, &[c, own]),
                node(TextFunction::RegexCount { quits }, &[c, own, one]),
                node(TextFunction::RegexCount { quits }, &[c, own, two]),
                node(TextFunction::RegexPlace { quits }, &[c, own, one, one]),
                node(TextFunction::RegexPlace { quits }, &[c, own, two, two]),
                node(TextFunction::RegexReplace { all: false, quits }, &[c, own, to]),
                node(TextFunction::RegexReplace { all: true, quits }, &[c, own, to]),
            ]);
        }
        let (columns, error) = bench.run(&nodes);
        assert_eq!(error, 0, "{some:?}");
        for (pattern, got) in some.iter().zip(columns.chunks(7)) {
            let regex = Regex::new(pattern).expect("an expression");
            let from = |text: &str, start: usize| -> Option<usize> {
                text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(start - 1)
            };
            let count = |text: &str, start: usize| -> Out {
                from(text, start).map_or(0, |at| regex.find_iter(&text[at..]).count()).into()
            };
            let place = |text: &str, start: usize| -> Out {
                let found = from(text, start).and_then(|at| {
                    regex
                        .find_iter(&text[at..])
                        .nth(start - 1)
                        .map(|found| text[..at + found.start()].chars().count() + 1)
                });
                found.unwrap_or(0).into()
            };
            let expected: [&dyn Fn(&str) -> Out; 7] = [
                &|text| regex.is_match(text).into(),
                &|text| count(text, 1),
                &|text| count(text, 2),
                &|text| place(text, 1),
                &|text| place(text, 2),
                &|text| Out::from(&*regex.replace(text, "¨x")),
                &|text| Out::from(&*regex.replace_all(text, "¨x")),
            ];
            for (which, (expected, got)) in expected.iter().zip(got).enumerate() {
                let expected = column.iter().map(|text| text.map_or(Out::Null, expected)).collect();
                assert_same(&format!("{pattern:?}, function {which}"), got, expected);
            }
        }
    }
}

#[test]
fn boundaries_of_words_are_known_in_ascii_alone() {
    let Automata { bytes, quits } = own(r"\bpond\b");
    assert!(quits, "it cannot say for every text");
    let regex = Regex::new(r"\bpond\b").expect("an expression");
    for (text, known) in [("a pond", true), ("ponds", true), ("é pond", false), ("pond é", true), ("pondé", false)] {
        let mut bench = Bench::new();
        let c = bench.texts([Some(text.as_bytes()), None]);
        let own = bench.constant(&bytes);
        let node = bench.graph.text(TextFunction::RegexMatch { quits }, &[c, own]).expect("a text");
        let (columns, error) = bench.run(&[node]);
        assert_eq!(error == 0, known, "{text:?}");
        if known {
            assert_same(text, &columns[0], vec![regex.is_match(text).into(), Out::Null]);
        }
    }
}

#[test]
fn what_has_no_automaton_says_why() {
    for (pattern, why) in [
        ("a(", "unclosed group"),
        (r"(?-u:\xff)", "UTF-8"),
        (r"(a)\1", "backreferences"),
        (r"(?:\pL\pN){40}.{200}x", "256 KiB"),
        ("(?:a{1000}){1000}", "too large"),
        (r"[01]*1[01]{20}", "256 KiB"),
    ] {
        let said = automata(pattern, false).expect_err(pattern);
        assert!(said.contains(why), "{pattern:?}: {said}");
    }
    // The `regex` crate rejects it, too.
    assert!(Regex::new("(?:a{1000}){1000}").is_err());
}
