//! Classes, counts of words and word pairs, and predicted classes of texts, against plain Rust.

use std::collections::HashMap;

use millpond_kernels::Images;
use millpond_kernels::bayes::{self, Cells, Classes, FoundClass, Model, Texts};
use millpond_kernels::pipeline::ExtentRows;
use millpond_memory::DeviceBuffer;

use crate::pipeline_rig::{Random, Rig};

/// MurmurHash3 of 32 bits, seed 0.
fn murmur(bytes: &[u8]) -> u32 {
    let scrambled = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut hash = 0_u32;
    for part in bytes.chunks(4) {
        let word = part.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash ^= scrambled(word);
        if part.len() == 4 {
            hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
        }
    }
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

fn grams(text: &str, buckets: u32) -> Vec<u32> {
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let pairs = words.windows(2).map(|pair| pair.join(" "));
    words.iter().map(ToString::to_string).chain(pairs).map(|gram| murmur(gram.as_bytes()) % buckets).collect()
}

/// Texts with their classes; NULL texts have a class, too.
struct Rows {
    texts: Vec<Option<String>>,
    classes: Vec<i64>,
}

impl Rows {
    fn random(rows: usize, classes: &[i64], seed: u64) -> Self {
        const WORDS: [&str; 14] = [
            "good",
            "bad",
            "the",
            "a",
            "mère",
            "日本",
            "well-made,",
            "sandwiches",
            "x",
            "yz",
            "😀",
            "the",
            "the",
            "shoe",
        ];
        let mut random = Random(seed);
        let class = (0..rows).map(|_| classes[random.below(classes.len() as u64) as usize]).collect::<Vec<_>>();
        let text = |class: &i64| {
            let words = random.below(9);
            let mut word = |_| {
                // The words depend on the class.
                let number = random.below(6) + class.unsigned_abs() % 9;
                [WORDS[number as usize], [" ", "  "][random.below(2) as usize]].concat()
            };
            let text: String = (0..words).map(&mut word).collect();
            (random.below(10) > 0).then_some(text)
        };
        let texts = class.iter().map(text).collect();
        Self { texts, classes: class }
    }

    /// Per class: texts, grams, and counts per bucket.
    fn counted(&self, buckets: u32) -> HashMap<i64, (u64, u64, HashMap<u32, u64>)> {
        let mut all: HashMap<i64, (u64, u64, HashMap<u32, u64>)> = HashMap::new();
        for (text, class) in self.texts.iter().zip(&self.classes) {
            let (texts, number, counts) = all.entry(*class).or_default();
            let Some(text) = text else { continue };
            *texts += 1;
            for bucket in grams(text, buckets) {
                *number += 1;
                *counts.entry(bucket).or_default() += 1;
            }
        }
        all
    }
}

/// The rows, uploaded.
struct Uploaded {
    views: DeviceBuffer,
    bytes: DeviceBuffer,
    valid: DeviceBuffer,
    classes: DeviceBuffer,
    rows: ExtentRows,
}

impl Uploaded {
    fn new(rig: &Rig, rows: &Rows) -> Self {
        let all: String = rows.texts.iter().flatten().map(String::as_str).collect();
        let bytes = rig.upload(format!("_{all}_").as_bytes(), &rig.stream);
        let mut at = bytes.as_view().address().0 + 1;
        let (mut views, mut valid) = (vec![], vec![0_u8; rows.texts.len().div_ceil(32) * 4]);
        for (row, text) in rows.texts.iter().enumerate() {
            valid[row / 8] |= u8::from(text.is_some()) << (row % 8);
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
        let classes: Vec<u8> = rows.classes.iter().flat_map(|class| class.to_le_bytes()).collect();
        Self {
            views: rig.upload(&views, &rig.stream),
            bytes,
            valid: rig.upload(&valid, &rig.stream),
            classes: rig.upload(&classes, &rig.stream),
            rows: ExtentRows::Known(rows.texts.len() as u64),
        }
    }

    fn with_texts<T>(&self, with: impl FnOnce(Texts<'_>) -> T) -> T {
        let reached = [self.bytes.as_view().clone()];
        with(Texts { views: self.views.as_view(), rows: &self.rows, reached: &reached })
    }
}

fn room(rig: &Rig, bytes: usize) -> DeviceBuffer {
    DeviceBuffer::new(bytes, &rig.stream, &rig.pool).expect("memory")
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Trains on all of `parts` and predicts the first; compares with plain loops.
fn trained_and_judged(seed: u64, parts: &[Rows], buckets: u32, alpha: f64, width: u32) {
    let rig = Rig::seeded(seed);
    let images = Images::new(&rig.device);
    let uploaded: Vec<Uploaded> = parts.iter().map(|part| Uploaded::new(&rig, part)).collect();
    let all = Rows {
        texts: parts.iter().flat_map(|part| part.texts.clone()).collect(),
        classes: parts.iter().flat_map(|part| part.classes.clone()).collect(),
    };
    let expected = all.counted(buckets);

    let table = room(&rig, Classes::BYTES);
    let classes = Classes { table: table.as_view() };
    classes.prepare(&rig.stream).expect("it is filled");
    let mut slots = vec![];
    for (part, rows) in uploaded.iter().zip(parts) {
        let own = room(&rig, 4 * rows.texts.len());
        part.with_texts(|texts| {
            let (valid, known_by) = (Some(part.valid.as_view()), part.classes.as_view());
            bayes::classes(&images, texts, valid, known_by, classes, own.as_view(), &rig.stream)
        })
        .expect("the launch is right");
        slots.push(own);
    }
    let mut found = Classes::found(&rig.download(&table)).expect("there are slots enough");
    found.sort_by_key(|class| class.key);
    let as_found: HashMap<i64, (u64, u64)> =
        found.iter().map(|class| (class.key, (class.texts, class.grams))).collect();
    let counted = expected.iter().map(|(class, (texts, grams, _))| (*class, (*texts, *grams))).collect();
    assert_eq!(as_found, counted);
    assert_eq!(found.len(), expected.len(), "each class has one slot");

    let mut numbers = vec![u32::MAX; Classes::SLOTS];
    found.iter().enumerate().for_each(|(number, class)| numbers[class.slot] = number as u32);
    let numbers: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
    let numbers = rig.upload(&numbers, &rig.stream);
    let grams_of_all = found.iter().map(|class| class.grams).sum();
    let cells = Cells::new(buckets, found.len() as u32, grams_of_all).expect("few counts");
    let counts = DeviceBuffer::zeroed(cells.bytes(), &rig.stream, &rig.pool).expect("memory");
    for (part, slots) in uploaded.iter().zip(&slots) {
        let (slots, numbers) = (slots.as_view(), numbers.as_view());
        part.with_texts(|texts| bayes::train(&images, texts, slots, numbers, cells, counts.as_view(), &rig.stream))
            .expect("the launch is right");
    }

    let totals: Vec<f64> = found.iter().map(|class| (class.grams as f64 + alpha * f64::from(buckets)).ln()).collect();
    let priors: Vec<f64> = found.iter().map(|class| (class.texts as f64 / 7.0).ln()).collect();
    let (up_priors, up_totals) =
        (rig.upload(&doubles(&priors), &rig.stream), rig.upload(&doubles(&totals), &rig.stream));
    let value = |class: usize| -> Vec<u8> { (0..width).map(|byte| (class * 31) as u8 ^ byte as u8).collect() };
    let values: Vec<u8> = (0..found.len()).flat_map(value).collect();
    let values = rig.upload(&values, &rig.stream);
    let out = room(&rig, parts[0].texts.len() * width as usize);
    let (priors_view, totals_view) = (up_priors.as_view(), up_totals.as_view());
    let model = Model { cells, table: counts.as_view(), alpha, priors: priors_view, totals: totals_view };
    uploaded[0]
        .with_texts(|texts| bayes::predict(&images, texts, model, values.as_view(), width, out.as_view(), &rig.stream))
        .expect("the launch is right");
    let out = rig.download(&out);
    let mut judged = 0;
    for (row, text) in parts[0].texts.iter().enumerate() {
        let own = grams(text.as_deref().unwrap_or_default(), buckets);
        let score = |class: &FoundClass| {
            let (_, _, counts) = &expected[&class.key];
            let likelihood = |bucket: &u32| (counts.get(bucket).copied().unwrap_or(0) as f64 + alpha).ln();
            let number = found.iter().position(|other| other == class).expect("it is one of them");
            priors[number] + own.iter().map(|bucket| likelihood(bucket) - totals[number]).sum::<f64>()
        };
        let scores: Vec<f64> = found.iter().map(score).collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Of classes whose scores differ only in the last digits, either may win.
        let mut likely = (0..scores.len()).filter(|class| scores[*class] >= best - 1e-9 * best.abs());
        let bytes = &out[row * width as usize..][..width as usize];
        judged += 1;
        assert!(likely.any(|class| bytes == value(class)), "row {row}: {text:?} has {bytes:?} of {scores:?}");
    }
    assert_eq!(judged, parts[0].texts.len());
    rig.assert_clean();
}

#[test]
fn texts_of_three_classes_are_counted_and_judged() {
    for (seed, rows, buckets) in [(1, 1, 1 << 23), (2, 33, 1 << 23), (3, 700, 1 << 23), (4, 700, 37), (5, 300, 1)] {
        let parts = [Rows::random(rows, &[0, 1, 2], seed), Rows::random(40, &[0, 1, 2], seed + 50)];
        trained_and_judged(seed, &parts, buckets, 0.001, 16);
    }
}

#[test]
fn classes_may_be_many_and_any_integers() {
    let odd = [i64::MIN, -1, 0, 1, i64::MAX, 1 << 32, 3];
    trained_and_judged(6, &[Rows::random(400, &odd, 6)], 1 << 20, 0.5, 8);
    let many: Vec<i64> = (0..90).map(|class| class * 7 - 200).collect();
    trained_and_judged(7, &[Rows::random(500, &many, 7)], 1000, 1.0, 4);
    trained_and_judged(8, &[Rows::random(20, &[5], 8)], 64, 1.0, 1);
}

#[test]
fn words_of_any_length_and_texts_of_blanks_are_read() {
    let long = "w".repeat(70);
    let texts = ["", " ", "   ", "a", " a", "a ", "ab abc abcd abcde", "abcd  efgh", &long, "x"];
    let parts = [Rows {
        texts: texts.iter().map(|text| Some(text.to_string())).chain([None]).collect(),
        classes: (0..11).map(|row| row % 2).collect(),
    }];
    trained_and_judged(9, &parts, 1 << 23, 0.001, 2);
}

#[test]
fn more_classes_than_slots_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let classes: Vec<i64> = (0..3000).collect();
    let rows = Rows { texts: vec![None; 3000], classes };
    let (uploaded, table) = (Uploaded::new(&rig, &rows), room(&rig, Classes::BYTES));
    let (classes, slots) = (Classes { table: table.as_view() }, room(&rig, 4 * 3000));
    classes.prepare(&rig.stream).expect("it is filled");
    uploaded
        .with_texts(|texts| {
            let known_by = uploaded.classes.as_view();
            bayes::classes(&images, texts, None, known_by, classes, slots.as_view(), &rig.stream)
        })
        .expect("the launch is right");
    assert_eq!(Classes::found(&rig.download(&table)), None);
    assert_eq!(Cells::new(1 << 30, 1000, u64::MAX), None, "a million million counts");
    rig.assert_clean();
}
