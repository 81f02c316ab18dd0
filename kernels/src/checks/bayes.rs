//! Claim about naive Bayes: counts of words and word pairs over thousands of texts, some of them very frequent, and
//! predictions from them.

use std::collections::HashMap;

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer};

use super::{Rig, mixed, word};
use crate::bayes::{self, Cells, Classes, Model, Texts};
use crate::pipeline::ExtentRows;

const ROWS: usize = 20_000;
const CLASSES: usize = 3;
/// Number of buckets; large enough that no two of the grams share one.
const BUCKETS: u32 = 1 << 30;
const ALPHA: f64 = 0.5;

fn class(row: usize) -> usize {
    (mixed(row as u64) % CLASSES as u64) as usize
}

/// Up to five words of one or two letters, biased by the class. The whole text fits its view.
fn text(row: usize) -> Vec<String> {
    let number = |of: usize| mixed((row * 8 + of) as u64);
    let word = |of: usize| {
        let letter = char::from(b'a' + ((number(of) % 5) as usize + class(row)) as u8);
        if of == 0 && row.is_multiple_of(3) { format!("{letter}{letter}") } else { letter.to_string() }
    };
    (0..number(7) as usize % 6).map(word).collect()
}

fn grams(words: &[String]) -> Vec<String> {
    words.iter().cloned().chain(words.windows(2).map(|pair| pair.join(" "))).collect()
}

fn doubles(rig: &Rig, values: &[f64]) -> Result<DeviceBuffer, CheckError> {
    rig.upload(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

pub(super) fn texts_are_counted_and_judged(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    count_and_judge(&rig)?;
    rig.base.finish()
}

fn count_and_judge(rig: &Rig) -> Result<(), CheckError> {
    let texts: Vec<Vec<String>> = (0..ROWS).map(text).collect();
    let mut views = vec![];
    for words in &texts {
        let text = words.join(" ");
        views.extend((text.len() as u32).to_le_bytes());
        views.extend(text.bytes().chain([0; 12]).take(12));
    }
    let known_by: Vec<u8> = (0..ROWS).flat_map(|row| (class(row) as i64 - 1).to_le_bytes()).collect();
    let (views, known_by) = (rig.upload(&views)?, rig.upload(&known_by)?);
    let rows = ExtentRows::Known(ROWS as u64);
    let of = Texts { views: views.as_view(), rows: &rows, reached: &[] };

    let (table, slots) = (rig.output(Classes::BYTES)?, rig.output(4 * ROWS)?);
    let classes = Classes { table: table.as_view() };
    classes.prepare(rig.stream())?;
    bayes::classes(&rig.images, of, None, known_by.as_view(), classes, slots.as_view(), rig.stream())?;
    let mut expected: Vec<(u64, HashMap<String, u64>)> = vec![(0, HashMap::new()); CLASSES];
    for (row, words) in texts.iter().enumerate() {
        let (number, counts) = &mut expected[class(row)];
        *number += 1;
        grams(words).into_iter().for_each(|gram| *counts.entry(gram).or_default() += 1);
    }
    let totals: Vec<u64> = expected.iter().map(|(_, counts)| counts.values().sum()).collect();
    let mut found = Classes::found(&rig.download(&table)?).unwrap_or_default();
    found.sort_by_key(|class| class.key);
    let as_found: Vec<(i64, u64, u64)> = found.iter().map(|class| (class.key, class.texts, class.grams)).collect();
    let as_counted: Vec<(i64, u64, u64)> =
        (0..CLASSES).map(|class| (class as i64 - 1, expected[class].0, totals[class])).collect();
    same("classes with their texts and grams", as_found, as_counted)?;

    let mut numbers = vec![u32::MAX; Classes::SLOTS];
    found.iter().enumerate().for_each(|(number, class)| numbers[class.slot] = number as u32);
    let numbers = rig.words(&numbers)?;
    let train = |buckets: u32| -> Result<(Cells, DeviceBuffer), CheckError> {
        let cells = Cells::new(buckets, CLASSES as u32, totals.iter().sum())
            .ok_or_else(|| crate::KernelError::Shape { what: "cells", why: "there are too many".into() })?;
        let counts = rig.output(cells.bytes())?;
        counts.as_view().fill(0, rig.stream())?;
        let (slots, numbers) = (slots.as_view(), numbers.as_view());
        bayes::train(&rig.images, of, slots, numbers, cells, counts.as_view(), rig.stream())?;
        Ok((cells, counts))
    };
    let (_, counts) = train(1)?;
    let counts = rig.download(&counts)?;
    same(
        "counts of one bucket",
        (0..CLASSES).map(|class| word(&counts, 8 * class)).collect::<Vec<_>>(),
        totals.clone(),
    )?;

    let (cells, counts) = train(BUCKETS)?;
    let log_totals: Vec<f64> = totals.iter().map(|total| (*total as f64 + ALPHA * f64::from(BUCKETS)).ln()).collect();
    let (priors, up_totals) = (doubles(rig, &[0.0; CLASSES])?, doubles(rig, &log_totals)?);
    let (priors, up_totals) = (priors.as_view(), up_totals.as_view());
    let model = Model { cells, table: counts.as_view(), alpha: ALPHA, priors, totals: up_totals };
    let (values, out) = (rig.words(&[0, 1, 2])?, rig.output(4 * ROWS)?);
    bayes::predict(&rig.images, of, model, values.as_view(), 4, out.as_view(), rig.stream())?;
    let out = rig.download(&out)?;
    let score = |words: &[String], class: usize| {
        let seen = |gram: &String| expected[class].1.get(gram).copied().unwrap_or(0) as f64;
        grams(words).iter().map(|gram| (seen(gram) + ALPHA).ln() - log_totals[class]).sum::<f64>()
    };
    let likeliest = |(row, words): (usize, &Vec<String>)| {
        let scores: Vec<f64> = (0..CLASSES).map(|class| score(words, class)).collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let own = out[4 * row] as usize;
        // Of two classes whose scores differ in the last digits, either may win.
        scores.get(own).is_some_and(|score| best - score <= 1e-9 * best.abs())
    };
    same("texts of their likeliest class", texts.iter().enumerate().filter(|text| likeliest(*text)).count(), ROWS)
}
