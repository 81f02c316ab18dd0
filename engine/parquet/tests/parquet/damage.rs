//! Damaged chunks end in an error or in rows, never in a panic, and soon.
//!
//!   chunk ──► flip bits · cut · extend · copy a part elsewhere ──► walk, read, dictionary
//!
//! `MILLPOND_DAMAGES=1000000 cargo test -p millpond-parquet damage` for a night.

use std::time::{Duration, Instant};

use millpond_parquet::*;

use crate::cases::{Nulls, Order, Random, array, nulls, properties, types};
use crate::file::File;
use crate::matrix::layout;
use crate::read::Numbering;

fn damaged(random: &mut Random, chunk: &[u8]) -> Vec<u8> {
    let mut bytes = chunk.to_vec();
    for _ in 0..random.one_of(&[1, 1, 1, 2, 5, 20]) {
        if bytes.is_empty() {
            break;
        }
        // Headers and the beginnings of pages are where sizes are; half of all damage goes to the first of them.
        let near = if random.is_one_in(2) { bytes.len().min(100) } else { bytes.len() };
        let at = random.below(near);
        match random.below(8) {
            0..3 => bytes[at] ^= 1 << random.below(8),
            3 | 4 => bytes[at] = random.one_of(&[0, 1, 0x7f, 0x80, 0xff, 33, 64]),
            5 => bytes.truncate(at),
            6 => {
                let more = random.below(20);
                bytes.splice(at..at, (0..more).map(|_| random.next() as u8));
            }
            _ => {
                let from = random.below(bytes.len());
                let length = random.below(20).min(bytes.len() - from.max(at));
                bytes.copy_within(from..from + length, at);
            }
        }
    }
    bytes
}

/// Reads the chunk as far as it goes.
fn read(file: &File, chunk: &[u8], layout: Layout, random: &mut Random) -> Result<(), ReadError> {
    let (_, meta, rows) = file.chunks()[0];
    let column = meta.column_descr();
    let conversion = Conversion::of(column, &file.data_type).unwrap();
    let pages = walk(chunk, meta, rows)?;
    let mut codes = Numbering::default();
    let _ = dictionary(chunk, &pages, meta, &conversion, layout, &mut codes);
    let mut reader = ColumnReader::new(chunk, &pages, meta, column, &conversion, layout)?;
    let (mut values, mut validity) = (vec![0; rows as usize * 16 + 16], vec![0; rows as usize / 8 + 4]);
    let mut texts = Vec::new();
    let mut out = Out::new(&mut values, Some(&mut validity), Some(&mut texts));
    let mut left = rows;
    let mut first = 0;
    while left > 0 {
        let skip = random.one_of(&[0, 0, 5, 500]).min(left);
        let rows = random.one_of(&[1, 100, 5_000]).min(left - skip);
        reader.skip(skip)?;
        reader.read(rows, first, &mut out, &mut codes)?;
        left -= skip + rows;
        first += rows;
    }
    Ok(())
}

#[test]
fn damage() {
    let damages: u64 = std::env::var("MILLPOND_DAMAGES").map_or(20_000, |count| count.parse().expect("a number"));
    let first: u64 = std::env::var("MILLPOND_CASE").map_or(0, |number| number.parse().expect("a number"));
    let all = types();
    let (mut errors, mut slowest) = (0, Duration::ZERO);
    for number in first..first + damages / 50 {
        let random = &mut Random(number);
        let data_type = all[number as usize % all.len()].clone();
        let rows = random.one_of(&[1, 100, 1_000, 2_500]);
        let null = random.one_of(&[Nulls::None, Nulls::Few, Nulls::Half, Nulls::Runs]);
        let valid = nulls(random, rows, null);
        let (distinct, order) = (random.one_of(&[1, 100, u64::MAX]), random.one_of(&[Order::Random, Order::Runs]));
        let is_nullable = valid.is_some();
        let array = array(random, &data_type, rows, distinct, order, valid);
        let file = File::write(&array, is_nullable, properties(random, &data_type));
        let layout = layout(random, &file);
        let chunk = file.chunks()[0].0;
        for _ in 0..50 {
            let bytes = damaged(random, chunk);
            let begin = Instant::now();
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&file, &bytes, layout, random).is_err()));
            let elapsed = begin.elapsed();
            errors += u64::from(*result.as_ref().unwrap_or(&false));
            slowest = slowest.max(elapsed);
            assert!(result.is_ok(), "MILLPOND_CASE={number} panics: {data_type}, {layout:?}");
            assert!(elapsed < Duration::from_secs(5), "MILLPOND_CASE={number} takes {elapsed:?}: {data_type}");
        }
    }
    println!("{errors} of {damages} damaged chunks were refused, the slowest took {slowest:?}");
    // Otherwise the damage does not reach what is decoded.
    assert!(errors > damages / 10);
}
