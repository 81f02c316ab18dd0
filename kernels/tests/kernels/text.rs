//! Text functions in pipelines: every function against plain Rust, over edge lengths, characters and NULLs.

use millpond_kernels::abi;
use millpond_kernels::codegen::ir::*;

use crate::pipeline_rig::Random;
use crate::text_bench::{Bench, Out, as_bytes, assert_same, some_texts, with_nulls};

/// Expected result for a row's text.
type Expected<'a> = &'a dyn Fn(Option<&str>) -> Out;

#[test]
fn texts_come_through_and_are_packed() {
    let million = vec![b'x'; 1 << 20];
    for twice in [false, true] {
        for (name, texts) in [
            ("none", vec![]),
            ("one", vec![Some(&b"abc"[..])]),
            ("all NULL", vec![None; 40]),
            ("all empty", vec![Some(&b""[..]); 33]),
            ("a long one", vec![Some(&b"ab"[..]), Some(&million), None, Some(&b"c"[..])]),
            ("not UTF-8", vec![Some(&b"\xff\x00\xfe"[..]); 3]),
        ] {
            let mut bench = Bench::new();
            bench.twice = twice;
            let column = bench.texts(texts.clone());
            if texts.is_empty() {
                assert_eq!(bench.values(column), []);
                continue;
            }
            assert_same(name, &bench.values(column), texts.into_iter().map(Out::from).collect());
        }
    }
}

#[test]
fn random_lengths_are_packed_whatever_their_skew() {
    let mut random = Random(7);
    for most in [3, 20, 60, 900] {
        let texts: Vec<Option<Vec<u8>>> = (0..700)
            .map(|row| {
                let length = if row % 97 == 0 { most * 4 } else { random.below(most) };
                (random.below(5) != 0).then(|| (0..length).map(|_| random.next() as u8).collect())
            })
            .collect();
        let mut bench = Bench::new();
        bench.twice = most == 20;
        let column = bench.texts(texts.iter().map(Option::as_deref));
        let half: Vec<Option<i64>> = (0..700).map(|row| Some(row % 2)).collect();
        let even = bench.numbers(half);
        let zero = bench.graph.integer(0, Repr::I64);
        let even = bench.graph.compare(Comparison::Equal, even, zero).expect("numbers");
        bench.filters.push(even);
        let kept = texts.iter().step_by(2).map(|text| Out::from(text.as_deref())).collect();
        assert_same("the even rows", &bench.values(column), kept);
    }
}

#[test]
fn comparisons_are_those_of_the_bytes() {
    let texts = some_texts();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (i, a) in texts.iter().enumerate() {
        // Neighbours, equal texts, extensions, and a text that differs late.
        let mut late = a.clone();
        late.pop();
        for b in [a, &texts[(i + 1) % texts.len()], &format!("{a}\0"), &format!("{a}b"), &late, &format!("{late}~")] {
            left.push((i % 7 != 3).then(|| a.clone()));
            right.push((i % 5 != 3).then(|| b.clone()));
        }
    }
    let bytes = |texts: &[Option<String>]| -> Vec<Option<Vec<u8>>> {
        texts.iter().map(|text| text.as_ref().map(|text| text.as_bytes().to_vec())).collect()
    };
    let (a, b) = (bytes(&left), bytes(&right));
    let mut bench = Bench::new();
    let l = bench.texts(a.iter().map(Option::as_deref));
    let r = bench.texts(b.iter().map(Option::as_deref));
    use Comparison::*;
    let operators = [Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Distinct, NotDistinct];
    let nodes: Vec<NodeId> = operators.iter().map(|op| bench.graph.compare(*op, l, r).expect("texts")).collect();
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0);
    for (op, got) in operators.iter().zip(&columns) {
        let expected = left.iter().zip(&right).map(|(a, b)| {
            let known = a.as_ref().zip(b.as_ref()).map(|(a, b)| match op {
                Equal => a == b,
                NotEqual => a != b,
                Less => a < b,
                LessEqual => a <= b,
                Greater => a > b,
                GreaterEqual => a >= b,
                _ => false,
            });
            match op {
                Distinct => Out::from(a != b),
                NotDistinct => Out::from(a == b),
                _ => Out::from(known),
            }
        });
        assert_same(&format!("{op:?}"), got, expected.collect());
    }
}

#[test]
fn in_lists_and_choices_of_texts() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let list = [&b"a"[..], b"special requests", "é".as_bytes(), b""].map(|text| bench.constant(text));
    let inside = bench.graph.in_list(c, list.to_vec(), false).expect("texts");
    let outside = bench.graph.in_list(c, list.to_vec(), true).expect("texts");
    let coalesced = bench.graph.coalesce(&[c, list[1]]).expect("texts");
    let either = bench.graph.case(vec![(inside, list[2])], Some(c)).expect("texts");
    let only = bench.graph.case(vec![(inside, c)], None).expect("texts");
    let null = bench.graph.null_if(c, list[0]).expect("texts");
    let (columns, error) = bench.run(&[inside, outside, coalesced, either, only, null]);
    assert_eq!(error, 0);
    let wanted = ["a", "special requests", "é", ""];
    let hit = |text: Option<&str>| text.map(|text| wanted.contains(&text));
    let expected: [Expected<'_>; 6] = [
        &|text| hit(text).into(),
        &|text| hit(text).map(|hit| !hit).into(),
        &|text| text.or(Some("special requests")).into(),
        &|text| if hit(text) == Some(true) { "é".into() } else { text.into() },
        &|text| text.filter(|_| hit(text) == Some(true)).into(),
        &|text| text.filter(|text| *text != "a").into(),
    ];
    for (i, expected) in expected.iter().enumerate() {
        assert_same(&format!("output {i}"), &columns[i], column.iter().map(|text| expected(*text)).collect());
    }
}

/// Constants of one table are compared in a loop, together with other members and a NULL.
#[test]
fn long_lists_of_constants() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let wanted = [&b"special requests"[..], b"", "é".as_bytes(), b"unknown", b"a"];
    let constants = bench.constants(2, &wanted);
    let alone = bench.constant(b"b");
    let null = bench.graph.null(Repr::Text);
    let lists = [
        constants.clone(),
        [vec![alone], constants.clone()].concat(),
        [constants[..3].to_vec(), vec![alone], constants[3..].to_vec()].concat(),
        [vec![null], constants.clone()].concat(),
        vec![constants[4], constants[1], constants[0]],
        vec![constants[0], constants[1], constants[3]],
    ];
    let mut outputs = Vec::new();
    for list in &lists {
        for negated in [false, true] {
            outputs.push(bench.graph.in_list(c, list.clone(), negated).expect("texts"));
        }
    }
    let filter = bench.graph.in_list(c, constants.clone(), false).expect("texts");
    let counted = outputs.len();
    let (columns, error) = bench.run(&outputs);
    assert_eq!(error, 0);
    assert_eq!(columns.len(), counted);
    let named = ["special requests", "", "é", "unknown", "a"];
    for (i, output) in columns.iter().enumerate() {
        let (list, negated) = (i / 2, i % 2 == 1);
        let members: Vec<&str> = match list {
            1 | 2 => [&named[..], &["b"]].concat(),
            4 => vec!["a", "", "special requests"],
            5 => vec!["special requests", "", "unknown"],
            _ => named.to_vec(),
        };
        let expected = column.iter().map(|text| {
            let hit = text.map(|text| members.contains(&text));
            let known = if list == 3 { hit.filter(|hit| *hit) } else { hit };
            Out::from(known.map(|hit| hit != negated))
        });
        assert_same(&format!("list {list}, negated: {negated}"), output, expected.collect());
    }
    bench.filters = vec![filter];
    let (columns, error) = bench.run(&[c]);
    assert_eq!(error, 0);
    let passed = column.iter().filter(|text| text.is_some_and(|text| named.contains(&text)));
    assert_same("a filter", &columns[0], passed.map(|text| Out::from(*text)).collect());
}

/// LIKE by exhaustive matching of characters, with `%` and `_`.
fn like(text: &[char], pattern: &[char], equal: &dyn Fn(char, char) -> bool) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skipped| like(&text[skipped..], rest, equal)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest, equal),
        [own, rest @ ..] => text.first().is_some_and(|c| equal(*c, *own)) && like(&text[1..], rest, equal),
    }
}

fn coded(pattern: &str) -> Vec<u8> {
    let code = |c: char| match c {
        '%' => vec![ANY_CHARACTERS],
        '_' => vec![ONE_CHARACTER],
        c => c.to_string().into_bytes(),
    };
    pattern.chars().flat_map(code).collect()
}

#[test]
fn like_matches_as_its_definition() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    let patterns = [
        "",
        "%",
        "%%",
        "_",
        "__",
        "%_",
        "_%_",
        "a",
        "a%",
        "%b",
        "%special%requests%",
        "special%",
        "%requests",
        "%quick%",
        "s%l%",
        "%é%",
        "_é%",
        "é%zz",
        "%日_語%",
        "a_b",
        "%a%b",
        "%ab",
        "%aab%",
        "special_requests",
        "%e%e%e%e%s",
        "%pecialspecialspecialr_quests",
    ];
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let mut nodes = Vec::new();
    for pattern in patterns {
        let pattern = bench.constant(&coded(pattern));
        nodes.push(bench.graph.text(TextFunction::Like, &[c, pattern]).expect("texts"));
    }
    for (pattern, node) in patterns.iter().zip(&nodes) {
        let pattern: Vec<char> = pattern.chars().collect();
        let matches = |text: &str| like(&text.chars().collect::<Vec<_>>(), &pattern, &|a, b| a == b);
        let expected = column.iter().map(|text| text.map(matches).into()).collect();
        assert_same(&format!("LIKE {pattern:?}"), &bench.values(*node), expected);
    }
}

#[test]
fn like_in_any_case_knows_the_long_s_and_the_kelvin_sign() {
    let mut texts = some_texts();
    texts.extend(["STOP", "KELVIN", "Special ReqUests", "kelvin", "ſſ", "Ss"].map(String::from));
    let patterns = ["stop", "%s%", "kelvin", "k%", "%special%requests%", "s_op", "__", "%n", "ss"];
    let mut bench = Bench::new();
    let c = bench.texts(as_bytes(&texts));
    let mut nodes = Vec::new();
    for pattern in patterns {
        let pattern = bench.constant(&coded(pattern));
        nodes.push(bench.graph.text(TextFunction::LikeAnyCase, &[c, pattern]).expect("texts"));
    }
    let folded = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let (columns, _) = bench.run(&nodes);
    for (pattern, got) in patterns.iter().zip(&columns) {
        let pattern: Vec<char> = pattern.chars().collect();
        let matches = |text: &String| like(&text.chars().collect::<Vec<_>>(), &pattern, &|a, b| folded(a) == b);
        assert_same(&format!("ILIKE {pattern:?}"), got, texts.iter().map(|text| matches(text).into()).collect());
    }
}

#[test]
fn searches_and_measures() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    for wanted in ["", "a", "special", "é", "語", "ab", "aaaaaaaaaaaab", "requests", "special requests"] {
        let mut bench = Bench::new();
        let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
        let w = bench.constant(wanted.as_bytes());
        use TextFunction::*;
        let two = [StartsWith, EndsWith, Contains, Position].map(|f| bench.graph.text(f, &[c, w]).expect("texts"));
        let one = [Bytes, Characters].map(|f| bench.graph.text(f, &[c]).expect("a text"));
        let (columns, error) = bench.run(&[two, [one[0], one[1], c, c]].concat()[..6]);
        assert_eq!(error, 0);
        let expected: [&dyn Fn(&str) -> Out; 6] = [
            &|text| text.starts_with(wanted).into(),
            &|text| text.ends_with(wanted).into(),
            &|text| text.contains(wanted).into(),
            &|text| text.find(wanted).map_or(0, |at| text[..at].chars().count() + 1).into(),
            &|text| text.len().into(),
            &|text| text.chars().count().into(),
        ];
        for (i, expected) in expected.iter().enumerate() {
            let expected = column.iter().map(|text| text.map_or(Out::Null, expected)).collect();
            assert_same(&format!("function {i} of {wanted:?}"), &columns[i], expected);
        }
    }
}

#[test]
fn parts_of_texts_count_characters() {
    let texts = some_texts();
    let (mut rows, mut starts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for text in &texts {
        for start in [i64::MIN + 1, -3, 0, 1, 2, 5, 9, 40, i64::MAX] {
            for count in [0, 1, 2, 8, 33, i64::MAX] {
                rows.push(text.as_str());
                starts.push(Some(start));
                counts.push(Some(count));
            }
        }
    }
    let mut bench = Bench::new();
    let c = bench.texts(rows.iter().map(|text| Some(text.as_bytes())));
    let (s, n) = (bench.numbers(starts.clone()), bench.numbers(counts.clone()));
    let part = bench.graph.text(TextFunction::Substring, &[c, s, n]).expect("a text and numbers");
    let left = bench.graph.text(TextFunction::Left, &[c, s]).expect("a text and a number");
    let right = bench.graph.text(TextFunction::Right, &[c, s]).expect("a text and a number");
    let (columns, error) = bench.run(&[part, left, right]);
    assert_eq!(error, 0);
    for row in 0..rows.len() {
        let (start, count) = (i128::from(starts[row].unwrap()), i128::from(counts[row].unwrap()));
        let all: Vec<char> = rows[row].chars().collect();
        let number = |place: i128| place + 1;
        let inside = |place: usize| (start..start + count).contains(&number(place as i128));
        let wanted: String = all.iter().enumerate().filter(|(i, _)| inside(*i)).map(|(_, c)| *c).collect();
        assert_eq!(columns[0][row], Out::from(wanted.as_str()), "{:?} from {start} for {count}", rows[row]);
        let length = all.len() as i128;
        let kept = if start >= 0 { start.min(length) } else { (length + start).max(0) } as usize;
        let wanted: String = all[..kept].iter().collect();
        assert_eq!(columns[1][row], Out::from(wanted.as_str()), "left of {:?}: {start}", rows[row]);
        let wanted: String = all[all.len() - kept..].iter().collect();
        assert_eq!(columns[2][row], Out::from(wanted.as_str()), "right of {:?}: {start}", rows[row]);
    }
}

#[test]
fn a_slice_is_the_bytes_between_two_places() {
    let text = "mill-pond and a wheel";
    let places: Vec<(i64, i64)> = (0..=text.len() as i64).flat_map(|to| (0..=to).map(move |from| (from, to))).collect();
    let mut bench = Bench::new();
    let c = bench.texts(places.iter().map(|_| Some(text.as_bytes())));
    // One row in nine has a NULL number.
    let from =
        bench.numbers(places.iter().enumerate().map(|(row, (from, _))| (row % 9 != 4).then_some(*from)).collect());
    let to = bench.numbers(places.iter().map(|(_, to)| Some(*to)).collect());
    let part = bench.graph.text(TextFunction::Slice, &[c, from, to]).expect("a text and numbers");
    let (columns, error) = bench.run(&[part]);
    assert_eq!(error, 0);
    for (row, (from, to)) in places.iter().enumerate() {
        let wanted = if row % 9 == 4 { Out::Null } else { Out::from(&text[*from as usize..*to as usize]) };
        assert_eq!(columns[0][row], wanted, "bytes {from} to {to}");
    }
    assert!(bench.graph.text(TextFunction::Slice, &[c, from]).is_err());
}

#[test]
fn a_negative_number_of_characters_is_an_error_where_it_is_reached() {
    let texts = ["abc", "def", "ghi"].map(String::from);
    let run = |counts: Vec<Option<i64>>, keep: &str| {
        let mut bench = Bench::new();
        let c = bench.texts(as_bytes(&texts));
        let n = bench.numbers(counts);
        let one = bench.graph.integer(1, Repr::I64);
        let part = bench.graph.text(TextFunction::Substring, &[c, one, n]).expect("a text and numbers");
        let kept = bench.constant(keep.as_bytes());
        let kept = bench.graph.compare(Comparison::Equal, c, kept).expect("texts");
        bench.filters.push(kept);
        let (_, error) = bench.run(&[part]);
        ErrorCode::from_word(error).map(|(code, _)| code)
    };
    assert_eq!(run(vec![Some(1), Some(-1), Some(1)], "def"), Some(ErrorCode::Argument));
    assert_eq!(run(vec![Some(1), Some(-1), Some(1)], "abc"), None, "an earlier filter drops the row");
    assert_eq!(run(vec![Some(1), None, Some(1)], "def"), None, "NULL raises nothing");
}

#[test]
fn trims_take_characters_of_a_set() {
    let mut texts = some_texts();
    texts.extend(["xxaxx", "éaé", "日日", " \t a ", "abcabc"].map(String::from));
    for set in [" ", "ax", "é", "日é", "", "abcdefghijklmnopqrstuvwxyzé "] {
        let mut bench = Bench::new();
        let c = bench.texts(as_bytes(&texts));
        let s = bench.constant(set.as_bytes());
        use TextFunction::*;
        let nodes = [TrimStart, TrimEnd, TrimBoth].map(|f| bench.graph.text(f, &[c, s]).expect("texts"));
        let (columns, error) = bench.run(&nodes);
        assert_eq!(error, 0);
        let own = |c: char| set.contains(c);
        let expected: [&dyn Fn(&String) -> Out; 3] =
            [&|text| text.trim_start_matches(own).into(), &|text| text.trim_end_matches(own).into(), &|text| {
                text.trim_matches(own).into()
            }];
        for (i, expected) in expected.iter().enumerate() {
            assert_same(&format!("trim {i} of {set:?}"), &columns[i], texts.iter().map(expected).collect());
        }
    }
}

#[test]
fn words_order_as_texts_and_hashes_tell_them_apart() {
    let texts = some_texts();
    let mut bench = Bench::new();
    let c = bench.texts(as_bytes(&texts));
    let words = [0, 1, 2].map(|index| bench.graph.text(TextFunction::Word { index }, &[c]).expect("a text"));
    let hash = bench.graph.text(TextFunction::Hash, &[c]).expect("a text");
    let (columns, error) = bench.run(&[words[0], words[1], words[2], hash]);
    assert_eq!(error, 0);
    for (row, text) in texts.iter().enumerate() {
        for (index, got) in columns[..3].iter().enumerate() {
            let mut bytes = [0; 8];
            let part = text.as_bytes().get(index * 8..).unwrap_or(&[]);
            let part = &part[..part.len().min(8)];
            bytes[..part.len()].copy_from_slice(part);
            assert_eq!(got[row], Out::Int(u64::from_be_bytes(bytes).into()), "word {index} of {text:?}");
        }
    }
    let mut hashes: Vec<String> = columns[3].iter().map(|hash| format!("{hash:?}")).collect();
    hashes.sort();
    hashes.dedup();
    let mut distinct = texts.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(hashes.len(), distinct.len());
}

#[test]
fn what_has_no_device_form_is_refused_with_its_name() {
    let mut bench = Bench::new();
    let c = bench.texts([Some(&b"a"[..])]);
    let number = bench.graph.integer(1, Repr::I64);
    assert!(bench.graph.arithmetic(Arithmetic::Add, c, c, Overflow::Wrap).is_err());
    assert!(bench.graph.convert(c, Repr::I64, Overflow::Null).is_err());
    assert!(bench.graph.compare(Comparison::Equal, c, number).is_err());
    assert!(bench.graph.text(TextFunction::Like, &[c, number]).is_err());
    assert!(bench.graph.text(TextFunction::Left, &[c]).is_err());
    let refused = |sink: SinkSpec| {
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: vec![ColumnSpec { physical: Physical::Text, has_base: false, ty: Ty::new(Repr::Text) }],
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph: bench.graph.clone(),
            filters: vec![],
            sink,
        };
        let error = bench.rig.cache.pipeline(&spec).expect_err("it has no device form");
        assert!(error.is_unsupported(), "{error}");
        error.to_string()
    };
    let mut least = AggregateSpec::new(vec![]);
    least.accumulate(&bench.graph, Accumulator { aggregate: Aggregate::Min(c), filter: None });
    assert_eq!(refused(SinkSpec::Aggregate(least)), "an aggregate of a text has no device form");
    // The control block's row count is at the offset that the abi defines.
    assert_eq!(abi::CONTROL_ROWS, 8);
}
