//! Lexicon words with their sentences, all sentences, and all words, against plain Rust.

use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::sentences::{self, DELETED, Ends, Hits, Lexicon, Texts, What};
use millpond_kernels::{Images, scan};
use millpond_memory::DeviceBuffer;
use millpond_memory::driver::sim::SimOptions;

use crate::pipeline_rig::{Random, Rig};

/// Row, sentence, word number, index of the meaning bit.
type Hit = (u32, String, u32, u32);

const WORDS: [(&str, u32); 9] = [
    ("good", 0b10),
    ("bad", 0b01),
    ("sick", 0b11),
    ("wellmade", 0b10),
    ("üb!er", 0b01),
    ("fine!", 0b10),
    ("mère", 0b10),
    ("a", 0b100),
    // The following entries never occur as a word of a sentence.
    ("well-made", 0b01),
];

/// Splits at the separators, which are strings; `. ` precedes `.`.
fn sentences(ends: Ends, text: &str) -> Vec<&str> {
    let separators: &[&str] = match ends {
        Ends::Any => &[".", "?", "!", "è"],
        Ends::Spaced => &[". ", "? ", "! ", "è"],
        Ends::Stop => &["."],
        Ends::Never => &[],
    };
    let mut rest = text;
    let mut found = vec![];
    while let Some((at, separator)) =
        separators.iter().filter_map(|separator| Some((rest.find(separator)?, *separator))).min_by_key(|(at, _)| *at)
    {
        found.push(&rest[..at]);
        rest = &rest[at + separator.len()..];
    }
    found.push(rest);
    found
}

fn expected(ends: Ends, texts: &[Option<String>]) -> Vec<Hit> {
    let mut hits = vec![];
    for (row, text) in texts.iter().enumerate() {
        for sentence in sentences(ends, text.as_deref().unwrap_or_default()) {
            for word in sentence.split(' ') {
                let word: String = word.chars().filter(|c| !".,;-\"".contains(*c)).collect();
                let known = WORDS.iter().position(|(known, _)| *known == word);
                let Some(number) = known else { continue };
                let bits = (0..3_u32).filter(|bit| WORDS[number].1 >> bit & 1 == 1);
                hits.extend(bits.map(|bit| (row as u32, sentence.to_string(), number as u32, bit)));
            }
        }
    }
    hits
}

/// The parts of all texts.
fn parts(texts: &[Option<String>], of: impl Fn(&str) -> Vec<String>) -> Vec<(u32, String)> {
    let parts = |(row, text): (usize, &Option<String>)| {
        of(text.as_deref().unwrap_or_default()).into_iter().map(move |part| (row as u32, part))
    };
    texts.iter().enumerate().flat_map(parts).collect()
}

fn found(rig: &Rig, ends: Ends, texts: &[Option<String>], room: u64) -> Vec<Hit> {
    let lexicon = Lexicon::new(WORDS.into_iter()).expect("few words");
    let uploaded = rig.upload(lexicon.bytes(), &rig.stream);
    let what = What::Hits { lexicon: &lexicon, uploaded: uploaded.as_view() };
    found_of(rig, what, ends, texts, room)
}

/// Results of the kernels, `room` hits at a time; parts have word number 0.
fn found_of(rig: &Rig, what: What<'_>, ends: Ends, texts: &[Option<String>], room: u64) -> Vec<Hit> {
    let images = Images::new(&rig.device);
    let all: String = texts.iter().flatten().map(String::as_str).collect();
    let bytes = rig.upload(format!("_{all}_").as_bytes(), &rig.stream);
    let mut at = bytes.as_view().address().0 + 1;
    let mut views = vec![];
    for text in texts {
        let text = text.as_deref().unwrap_or_default().as_bytes();
        let mut view = (text.len() as u32).to_le_bytes().to_vec();
        match text.len() {
            0..=12 => view.extend(text),
            _ => view.extend(text[..4].iter().copied().chain(at.to_le_bytes())),
        }
        view.resize(16, 0);
        views.extend(view);
        at += text.len() as u64;
    }
    let views = rig.upload(&views, &rig.stream);
    let rows = ExtentRows::Known(texts.len() as u64);
    let reached = [bytes.as_view().clone()];
    let of = Texts { views: views.as_view(), rows: &rows, reached: &reached, what, ends };
    let buffer = |bytes: u64| DeviceBuffer::new(bytes as usize, &rig.stream, &rig.pool).expect("memory");
    let count = texts.len() as u64;
    let (counts, scratch) = (buffer(4 * count), buffer(scan::scratch_bytes(count)));
    let sums = buffer(scan::expansion_bytes(count));
    sentences::count(&images, of, counts.as_view(), &rig.stream).expect("the launch is right");
    scan::running_sums(&images, counts.as_view(), &rows, sums.as_view(), scratch.as_view(), &rig.stream)
        .expect("the launch is right");
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let all = u64::from(word(&rig.download(&sums.view(8..16).expect("a control block")), 0));
    let mut hits = vec![];
    for first in (0..all).step_by(room as usize) {
        let own = room.min(all - first);
        let columns = buffer(sentences::hits_layout(own).1 as u64);
        let columns = Hits::within(columns.as_view(), own).expect("columns fit");
        sentences::write(&images, of, sums.as_view(), first, own, &columns, &rig.stream).expect("the launch is right");
        let (numbers, sentences) = (rig.download(&columns.rows), rig.download(&columns.sentences));
        let numbered = |column| match what {
            What::Hits { .. } => rig.download(column),
            _ => vec![0; 4 * own as usize],
        };
        let (words, says) = (numbered(&columns.words), numbered(&columns.says));
        for hit in 0..own as usize {
            let view = &sentences[hit * 16..hit * 16 + 16];
            let length = word(view, 0) as usize;
            let text = match length {
                0..=12 => view[4..4 + length].to_vec(),
                _ => {
                    let to = u64::from_le_bytes(view[8..16].try_into().expect("eight bytes"));
                    let start = (to - bytes.as_view().address().0) as usize;
                    rig.download(&bytes.view(start..start + length).expect("a sentence lies in its text"))
                }
            };
            assert_eq!(view[4..8.min(4 + length)], text[..length.min(4)], "the view begins as its text");
            let text = String::from_utf8(text).expect("a sentence is text");
            hits.push((word(&numbers, hit * 4), text, word(&words, hit * 4), word(&says, hit * 4)));
        }
    }
    rig.assert_clean();
    hits
}

const ALL: [Ends; 3] = [Ends::Any, Ends::Spaced, Ends::Stop];

#[test]
fn words_at_every_border_are_found() {
    let texts: Vec<Option<String>> = [
        "good",
        "",
        "Good",
        " good ",
        "good.bad",
        "good. bad",
        "good? bad! sick",
        "so good!bad",
        "fine! fine!",
        "fine!. bad. . bad",
        "-g,o;o\"d-",
        "well-made; and well - made, sick.",
        "...? ! ",
        "..good..",
        "a a a a a a a a a a a",
        "goodèbadè sickè",
        "è",
        "mère è mère",
        "é good à bad",
        "this is üb!er and bad indeed, \"sick\" too. It is so good",
        "goo good_ _good goodgood",
        ".",
        "good.",
        "a sentence of more than twelve bytes is bad and sick",
    ]
    .into_iter()
    .map(|text| Some(text.to_string()))
    .chain([None])
    .collect();
    for ends in ALL {
        let rig = Rig::new();
        let wanted = expected(ends, &texts);
        assert!(wanted.len() > 20, "{ends:?}");
        assert_eq!(found(&rig, ends, &texts, 1 << 20), wanted, "{ends:?}");
    }
}

#[test]
fn random_texts_are_cut_as_plain_rust_cuts_them() {
    const PARTS: [&str; 22] = [
        "good", "bad", "sick", "well", "made", "fine", "mère", "a", " ", " ", " ", ".", "?", "!", ". ", "è", "È", "-",
        "\"", "日本", "😀", "ü",
    ];
    let mut random = Random(11);
    for (rows, most, room) in
        [(0, 3, 1), (1, 5, 1), (31, 9, 7), (32, 4, 1000), (33, 40, 64), (700, 12, 333), (3, 4000, 50)]
    {
        let texts: Vec<Option<String>> = (0..rows)
            .map(|_| {
                let parts = random.below(most + 1);
                (random.below(6) != 0)
                    .then(|| (0..parts).map(|_| PARTS[random.below(PARTS.len() as u64) as usize]).collect())
            })
            .collect();
        for (seed, ends) in ALL.into_iter().enumerate() {
            let rig = Rig::with(SimOptions { seed: seed as u64, ..SimOptions::default() });
            let case = format!("{ends:?}, {rows} rows of {most} parts");
            assert_eq!(found(&rig, ends, &texts, room), expected(ends, &texts), "{case}");
            let pieces = |what, ends| {
                found_of(&rig, what, ends, &texts, room)
                    .into_iter()
                    .map(|(row, part, ..)| (row, part))
                    .collect::<Vec<_>>()
            };
            let wanted = parts(&texts, |text| {
                sentences(ends, text).into_iter().filter(|part| !part.is_empty()).map(str::to_string).collect()
            });
            assert_eq!(pieces(What::Sentences, ends), wanted, "{case}");
            let wanted = parts(&texts, |text| {
                let left = |word: &&str| word.chars().any(|c| !DELETED.contains(c));
                text.split(' ').filter(left).map(str::to_string).collect()
            });
            assert_eq!(pieces(What::Words, Ends::Never), wanted, "{case}");
        }
    }
}

/// Empty words, and words without meaning bits, are ignored.
#[test]
fn a_lexicon_of_nothing_finds_nothing() {
    let rig = Rig::new();
    let lexicon = Lexicon::new([("", 1), ("silent", 0)].into_iter()).expect("no words");
    assert!(lexicon.bytes().iter().all(|byte| *byte == 0));
    let images = Images::new(&rig.device);
    let uploaded = rig.upload(lexicon.bytes(), &rig.stream);
    let mut view = 6_u32.to_le_bytes().to_vec();
    view.extend(b"silent\0\0\0\0\0\0");
    let (views, rows) = (rig.upload(&view, &rig.stream), ExtentRows::Known(1));
    let counts = DeviceBuffer::new(4, &rig.stream, &rig.pool).expect("memory");
    let texts = Texts {
        views: views.as_view(),
        rows: &rows,
        reached: &[],
        what: What::Hits { lexicon: &lexicon, uploaded: uploaded.as_view() },
        ends: Ends::Any,
    };
    sentences::count(&images, texts, counts.as_view(), &rig.stream).expect("the launch is right");
    assert_eq!(rig.download(&counts), [0; 4]);
    rig.assert_clean();
}
