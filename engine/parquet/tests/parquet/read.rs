//! Reads a file through this crate, and compares rows and facts with what was expected.

use std::collections::HashMap;

use arrow::array::ArrayRef;
use millpond_parquet::*;

use crate::file::{File, Value, values};

/// Numbers strings in the order in which they come.
#[derive(Default)]
pub struct Numbering(pub HashMap<Vec<u8>, u32>);

impl Intern for Numbering {
    fn codes(&mut self, texts: &ArrayRef) -> Result<Vec<u32>, Stopped> {
        let code = |value| {
            let next = self.0.len() as u32 + 1;
            match value {
                Value::Text(text) => *self.0.entry(text).or_insert(next),
                other => panic!("{other:?} is no text"),
            }
        };
        Ok(values(texts).into_iter().map(code).collect())
    }
}

/// A step through a chunk: rows to skip, then rows to read.
pub type Step = (u64, u64);

/// The bytes that rows are stored as.
pub fn stored(expected: &[Value], layout: Layout, codes: &Numbering) -> (Vec<u8>, Vec<u8>) {
    let mut texts = Vec::new();
    let mut bytes = Vec::new();
    let mut bits = vec![0_u8; expected.len().div_ceil(32) * 4];
    for (row, value) in expected.iter().enumerate() {
        match (layout, value) {
            (Layout::Integers { width, .. }, Value::Null) => bytes.extend(vec![0; width.into()]),
            (Layout::Integers { width, base, .. }, Value::Number(number)) => {
                bytes.extend(&number.wrapping_sub(base.into()).to_le_bytes()[..width.into()]);
            }
            (Layout::Bits, value) => bits[row / 8] |= u8::from(*value == Value::Flag(true)) << (row % 8),
            (Layout::Codes, Value::Null) => bytes.extend([0; 4]),
            (Layout::Codes, Value::Text(text)) => bytes.extend(codes.0[text].to_le_bytes()),
            (Layout::Texts, value) => {
                if row == 0 {
                    bytes.extend([0; 4]);
                }
                if let Value::Text(text) = value {
                    texts.extend(text);
                }
                bytes.extend((texts.len() as u32).to_le_bytes());
            }
            (layout, value) => panic!("{value:?} as {layout:?}"),
        }
    }
    match layout {
        Layout::Bits => (bits, texts),
        Layout::Texts if expected.is_empty() => (vec![0; 4], texts),
        _ => (bytes, texts),
    }
}

/// Facts by a plain loop.
pub fn facts(expected: &[Value]) -> Facts {
    let mut facts = Facts { rows: expected.len() as u64, ..Facts::default() };
    let mut last = None;
    for value in expected {
        let Value::Number(number) = value else {
            (facts.nulls, facts.sorted) = (facts.nulls + 1, false);
            continue;
        };
        let (low, high) = facts.range.unwrap_or((*number, *number));
        facts.range = Some((low.min(*number), high.max(*number)));
        facts.sorted &= last.is_none_or(|last| last <= *number);
        facts.ascending &= last.is_none_or(|last| last < *number);
        facts.steps += u64::from(last != Some(*number));
        facts.ends = Some((facts.ends.map_or(*number, |(first, _)| first), *number));
        last = Some(*number);
    }
    facts.ascending &= facts.sorted;
    if !facts.sorted {
        (facts.steps, facts.ends) = (0, None);
    }
    facts
}

/// Reads all chunks of `file` in steps, the rows one behind the other, and compares everything.
pub fn check(file: &File, layout: Layout, mut step: impl FnMut() -> Step) {
    let expected = file.expected();
    let is_number = matches!(layout, Layout::Integers { .. });
    let is_float = layout == Layout::Floats;
    // The bits of floats are stored as numbers of their width are.
    let as_stored = match (layout, file.data_type.primitive_width()) {
        (Layout::Floats, Some(width)) => Layout::Integers { width: width as u8, base: 0, range: None },
        _ => layout,
    };
    let width = match as_stored {
        Layout::Integers { width, .. } => width.into(),
        _ => 4,
    };
    let rows = expected.len();
    let mut buffer = vec![0xaa; (rows + 1) * width];
    let mut validity = vec![0xaa; rows.div_ceil(32) * 4];
    let mut texts = Vec::new();
    let has_nulls = expected.contains(&Value::Null);
    let mut codes = Numbering::default();
    let mut kept = Vec::new();
    let mut out = Out::new(&mut buffer, has_nulls.then_some(&mut validity), Some(&mut texts));
    let mut start = 0;
    for (chunk, meta, rows) in file.chunks() {
        let column = meta.column_descr();
        let conversion = Conversion::of(column, &file.data_type).unwrap();
        let pages = walk(chunk, meta, rows).unwrap();
        let mut reader = ColumnReader::new(chunk, &pages, meta, column, &conversion, layout).unwrap();
        let (mut at, mut is_broken) = (0, false);
        while at < rows {
            let (skipped, read) = step();
            let skipped = skipped.min(rows - at);
            let read = read.min(rows - at - skipped);
            reader.skip(skipped).unwrap();
            at += skipped;
            let found = reader.read(read, kept.len() as u64, &mut out, &mut codes).unwrap();
            let part = &expected[start + at as usize..start + (at + read) as usize];
            if is_number {
                let mut naive = facts(part);
                if is_broken && read > 0 {
                    naive = Facts { sorted: false, ascending: false, steps: 0, ends: None, ..naive };
                }
                is_broken |= !naive.sorted;
                assert_eq!(found, naive, "facts of rows {at}..{}", at + read);
            } else {
                let nulls = part.iter().filter(|value| **value == Value::Null).count() as u64;
                assert_eq!((found.rows, found.nulls), (read, nulls));
                assert!(is_float || layout != Layout::Codes || found.range.is_some());
            }
            kept.extend_from_slice(part);
            at += read;
        }
        assert!(reader.skip(1).is_err() && reader.read(1, 0, &mut out, &mut codes).is_err());
        check_statistics(meta, &conversion, &expected[start..start + rows as usize]);
        start += rows as usize;
    }
    if file.chunks().is_empty() {
        return;
    }
    let (expected_bytes, expected_texts) = stored(&kept, as_stored, &codes);
    assert!(buffer[..expected_bytes.len()] == expected_bytes, "values differ");
    assert!(texts == expected_texts, "texts differ");
    if has_nulls {
        let valid = |row: usize| validity[row / 8] >> (row % 8) & 1 == 1;
        assert!(kept.iter().enumerate().all(|(row, value)| valid(row) == (*value != Value::Null)), "validity differs");
    }
}

fn check_statistics(meta: &parquet::file::metadata::ColumnChunkMetaData, conversion: &Conversion, rows: &[Value]) {
    let found = statistics(meta, conversion);
    let numbers = rows.iter().filter_map(|value| if let Value::Number(n) = value { Some(*n) } else { None });
    if let Some((low, high)) = found.range {
        assert!(numbers.clone().all(|number| low <= number && number <= high), "statistics {low}..={high}");
    }
    if let Some(nulls) = found.nulls {
        assert_eq!(nulls, rows.iter().filter(|value| **value == Value::Null).count() as u64);
    }
}
