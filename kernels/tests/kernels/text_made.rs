//! Functions that create texts, against plain Rust: letters, slices, numbers, and the arena.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::text;

use crate::text_bench::{Bench, Out, assert_same, some_texts, with_nulls};

/// The expected result of a text function, per row.
type Makes<'a> = &'a dyn Fn(&str) -> String;

/// Characters with a longer case mapping, a mapping outside the table, or one that depends on neighbours: left to the
/// CPU.
const BEYOND: [&str; 4] = ["\u{149}n", "ΟΔΟΣ", "\u{1e9e}", "\u{10400}"];

#[test]
fn texts_are_made_as_rust_makes_them() {
    let mut texts = some_texts();
    texts.extend(
        ["ÀÉÎÕÜ straße", "ﬀ is left out", "Здравствуй, МИР", "ÿ ſ µ", "pond,mill,,wheel", "a😀b日本語"]
            .map(String::from),
    );
    texts.push("Mixed CASE text, of more than a few words: ÄÖÜ äöü".repeat(20));
    texts.retain(|text| !text.contains(['ﬀ', '\u{212a}']));
    let column = with_nulls(&texts);
    let times: Vec<Option<i64>> = (0..texts.len()).map(|row| (row % 5 != 4).then_some(row as i64 % 9 - 2)).collect();
    let mut bench = Bench::new();
    bench.twice = true;
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let n = bench.numbers(times.clone());
    let constant = |bench: &mut Bench, text: &str| bench.constant(text.as_bytes());
    let upper = bench.constant(&text::case_table(true));
    let lower = bench.constant(&text::case_table(false));
    let (e, uml, comma, nothing) =
        (constant(&mut bench, "e"), constant(&mut bench, "¨é"), constant(&mut bench, ", "), constant(&mut bench, ""));
    let (from, to) = (constant(&mut bench, "aeé日b"), constant(&mut bench, "é1日x"));
    let ten = bench.graph.integer(10, Repr::I64);
    use TextFunction::*;
    let mut node = |function, of: &[NodeId]| bench.graph.text(function, of).expect("texts");
    let nodes = [
        node(Upper, &[c, upper]),
        node(Lower, &[c, lower]),
        node(Reverse, &[c]),
        node(Replace, &[c, e, uml]),
        node(Replace, &[c, e, nothing]),
        node(Replace, &[c, nothing, e]),
        node(Translate, &[c, from, to]),
        node(PadStart, &[c, ten, uml]),
        node(PadEnd, &[c, ten, nothing]),
        node(Concatenate { strict: true }, &[c, comma, c]),
    ];
    let mut expected: Vec<Makes<'_>> = Vec::new();
    let translate = |text: &str| -> String {
        let to: Vec<char> = "é1日x".chars().collect();
        let as_is = |c: char| "aeé日b".chars().position(|from| from == c).map_or(Some(c), |at| to.get(at).copied());
        text.chars().filter_map(as_is).collect()
    };
    let padded = |text: &str| -> String {
        let missing = 10_usize.saturating_sub(text.chars().count());
        "¨é".chars().cycle().take(missing).chain(text.chars()).take(10).collect()
    };
    expected.push(&|text| text.to_uppercase());
    expected.push(&|text| text.to_lowercase());
    expected.push(&|text| text.chars().rev().collect());
    expected.push(&|text| text.replace('e', "¨é"));
    expected.push(&|text| text.replace('e', ""));
    expected.push(&|text| text.to_string());
    expected.push(&translate);
    expected.push(&padded);
    expected.push(&|text| text.chars().take(10).collect());
    expected.push(&|text| format!("{text}, {text}"));
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
    for (i, expected) in expected.iter().enumerate() {
        let wanted = column.iter().map(|text| Out::from(text.map(expected).as_deref())).collect();
        assert_same(&format!("output {i}"), &columns[i], wanted);
    }

    // With numbers, and with NULLs on either side.
    let mut node = |function, of: &[NodeId]| bench.graph.text(function, of).expect("texts");
    let twice = node(Reverse, &[c]);
    let nodes = [
        node(Repeat, &[c, n]),
        node(PadEnd, &[c, n, comma]),
        node(OfInteger { scale: 0 }, &[n]),
        node(Concatenate { strict: false }, &[c, comma, twice]),
        node(Join, &[comma, c, e, c, twice]),
        node(Join, &[c, e, e]),
        node(Reverse, &[twice]),
    ];
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
    for (row, (text, n)) in column.iter().zip(&times).enumerate() {
        let both = text.zip(*n);
        let reversed = text.map(|text| text.chars().rev().collect::<String>());
        let rest = |text: &str, n: usize| text.chars().chain(", ".chars().cycle()).take(n).collect::<String>();
        let own = [text.map(str::to_string), Some("e".into()), text.map(str::to_string), reversed.clone()];
        let wanted = [
            both.map(|(text, n)| text.repeat(n.max(0) as usize)),
            both.map(|(text, n)| rest(text, n.max(0) as usize)),
            n.map(|n| n.to_string()),
            Some(format!("{}, {}", text.unwrap_or(""), reversed.as_deref().unwrap_or(""))),
            Some(own.into_iter().flatten().collect::<Vec<_>>().join(", ")),
            text.map(|text| format!("e{text}e")),
            text.map(str::to_string),
        ];
        for (i, wanted) in wanted.into_iter().enumerate() {
            assert_eq!(columns[i][row], Out::from(wanted.as_deref()), "output {i} of {text:?}, {n:?}");
        }
    }
}

#[test]
fn letters_with_cases_that_no_table_holds_raise_the_flag() {
    for text in BEYOND {
        let mut bench = Bench::new();
        let c = bench.texts([Some(text.as_bytes()), None]);
        let (upper, lower) = (bench.constant(&text::case_table(true)), bench.constant(&text::case_table(false)));
        let nodes = [
            bench.graph.text(TextFunction::Upper, &[c, upper]).expect("texts"),
            bench.graph.text(TextFunction::Lower, &[c, lower]).expect("texts"),
        ];
        let codes: Vec<_> = nodes.iter().map(|node| ErrorCode::from_word(bench.run(&[*node]).1)).collect();
        assert!(codes.iter().flatten().any(|(code, _)| *code == ErrorCode::Argument), "{text}: {codes:?}");
    }
}

#[test]
fn every_letter_of_two_bytes_has_its_other_case_or_none() {
    let letters: Vec<String> = (0x80..0x800).filter_map(char::from_u32).map(String::from).collect();
    for upper in [true, false] {
        let other = |text: &str| if upper { text.to_uppercase() } else { text.to_lowercase() };
        // Letters with longer mappings, and the sigma, are refused.
        let known: Vec<&String> = letters.iter().filter(|c| other(c).len() <= 2 && (upper || *c != "Σ")).collect();
        assert!(known.len() > 1800, "{} letters", known.len());
        let mut bench = Bench::new();
        let c = bench.texts(known.iter().map(|text| Some(text.as_bytes())));
        let table = bench.constant(&text::case_table(upper));
        let function = if upper { TextFunction::Upper } else { TextFunction::Lower };
        let node = bench.graph.text(function, &[c, table]).expect("texts");
        assert_same("letters", &bench.values(node), known.iter().map(|text| Out::from(other(text).as_str())).collect());
    }
}

#[test]
fn parts_between_delimiters_numbers_and_characters() {
    let texts = [
        "a,b,,c",
        "",
        ",",
        "no delimiter",
        "aaa",
        "日本,語",
        "x,aaaa,y",
        "-12",
        " +7 ",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "1.5",
        "-",
        "007",
        "1 2",
    ];
    let column: Vec<Option<&str>> = texts.iter().copied().map(Some).chain([None]).collect();
    for (delimiter, wanted) in
        [(",", 1_i64), (",", 2), (",", -1), (",", -3), ("aa", 2), ("aa", -1), ("aa", -2), ("日本", 2), (",", 9)]
    {
        let mut bench = Bench::new();
        let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
        let own = bench.constant(delimiter.as_bytes());
        let at = bench.graph.integer(wanted.into(), Repr::I64);
        let node = bench.graph.text(TextFunction::SplitPart, &[c, own, at]).expect("a text");
        let part = |text: &str| {
            let at = wanted.unsigned_abs() as usize - 1;
            let part = if wanted > 0 { text.split(delimiter).nth(at) } else { text.rsplit(delimiter).nth(at) };
            part.unwrap_or("").to_string()
        };
        let expected = column.iter().map(|text| Out::from(text.map(part).as_deref())).collect();
        assert_same(&format!("part {wanted} at {delimiter}"), &bench.values(node), expected);
    }
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let number = bench.graph.text(TextFunction::ToInteger(Overflow::Null), &[c]).expect("a text");
    let code = bench.graph.text(TextFunction::Code, &[c]).expect("a text");
    let (columns, error) = bench.run(&[number, code]);
    assert_eq!(error, 0);
    let read = |text: &&str| text.trim().parse::<i64>().ok().map(|n| Out::Int(n.into())).unwrap_or(Out::Null);
    let first = |text: &&str| Out::Int(text.chars().next().map_or(0, |c| c as i128));
    assert_same("numbers", &columns[0], column.iter().map(|text| text.as_ref().map_or(Out::Null, read)).collect());
    assert_same("characters", &columns[1], column.iter().map(|text| text.as_ref().map_or(Out::Null, first)).collect());

    let numbers = [0, 65, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x1_0000, 0x10_ffff, i64::MIN, i64::MAX, -1, 0xd800];
    for (i, number) in numbers.into_iter().enumerate() {
        let mut bench = Bench::new();
        let n = bench.numbers(vec![Some(number), None]);
        let (of_code, said) = (
            bench.graph.text(TextFunction::OfCode, &[n]).expect("a number"),
            bench.graph.text(TextFunction::OfInteger { scale: 0 }, &[n]).expect("a number"),
        );
        assert_eq!(bench.values(said), [number.to_string().as_str().into(), Out::Null]);
        let scaled = bench.graph.text(TextFunction::OfInteger { scale: 3 }, &[n]).expect("a number");
        let whole = i128::from(number).abs();
        let point = format!("{}{}.{:03}", if number < 0 { "-" } else { "" }, whole / 1000, whole % 1000);
        assert_eq!(bench.values(scaled), [point.as_str().into(), Out::Null]);
        let (columns, error) = bench.run(&[of_code]);
        match u32::try_from(number).ok().and_then(char::from_u32) {
            Some(c) => assert_eq!((&columns[0], error), (&vec![c.to_string().as_str().into(), Out::Null], 0), "{i}"),
            None => assert_eq!(ErrorCode::from_word(error).expect("refused").0, ErrorCode::Argument, "{number}"),
        }
    }
}

#[test]
fn too_little_room_raises_the_flag_and_more_of_it_does() {
    let mut bench = Bench::new();
    let c = bench.texts((0..100).map(|row| Some(if row % 2 == 0 { &b"abc"[..] } else { b"" })));
    let n = bench.numbers(vec![Some(1000); 100]);
    let node = bench.graph.text(TextFunction::Repeat, &[c, n]).expect("a text");
    bench.times = 1;
    let (_, error) = bench.run(&[node]);
    assert_eq!(ErrorCode::from_word(error).expect("there is too little").0, ErrorCode::ArenaFull);
    bench.times = 256;
    let expected =
        (0..100).map(|row| Out::from(if row % 2 == 0 { "abc".repeat(1000) } else { String::new() }.as_str()));
    assert_same("room enough", &bench.values(node), expected.collect());
}
