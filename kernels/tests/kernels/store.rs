//! Writes chunks of a column, against plain Rust.

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::store::{self, Stored};

use crate::pipeline_rig::Rig;

/// Values in stored form, modulo their width.
fn lying(values: &[i128], physical: Physical, base: i64) -> Vec<u8> {
    let width = physical.width() as usize;
    values.iter().flat_map(|value| (value - i128::from(base)).to_le_bytes()[..width].to_vec()).collect()
}

const LENGTHS: [usize; 6] = [1, 31, 33, 255, 257, 3000];

#[test]
fn values_of_every_width_become_those_of_every_wider_one() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let chunks = [
        (Physical::U8, 100),
        (Physical::U8, -7),
        (Physical::U16, -5),
        (Physical::U32, 1 << 40),
        (Physical::I8, 0),
        (Physical::I16, 0),
        (Physical::I32, 0),
        (Physical::I64, 0),
        (Physical::I128, 0),
    ];
    for (physical, base) in chunks {
        for rows in LENGTHS {
            let bounds = physical.bounds().expect("integers");
            let values: Vec<i128> = (0..rows as i128)
                .map(|row| (row * 7919 - 1000).clamp(bounds.low, bounds.high) + i128::from(base))
                .collect();
            let (least, most) = (values.iter().min().expect("rows"), values.iter().max().expect("rows"));
            let outs = [
                (Physical::U8, *least as i64),
                (Physical::U16, *least as i64),
                (Physical::U32, *least as i64),
                (Physical::I64, 0),
                (Physical::I128, 0),
            ];
            for (wide, wide_base) in outs {
                let room = wide.bounds().expect("integers");
                let fits = |value: i128| room.low <= value && value <= room.high;
                if !fits(most - i128::from(wide_base)) || (wide == Physical::I64 && !fits(*most)) {
                    continue;
                }
                let input = rig.upload(&lying(&values, physical, base), &rig.stream);
                let out = rig.upload(&vec![0xaa; (rows + 2) * wide.width() as usize], &rig.stream);
                // Begins one row after the start of the column, and ends one row before its end.
                let width = wide.width() as usize;
                let place = out.view(width..(rows + 1) * width).expect("inside");
                let (from, to) = (Stored { physical, base }, Stored { physical: wide, base: wide_base });
                store::values(&images, &input, from, None, &place, to, rows as u64, &rig.stream).expect("launched");
                let found = rig.download(&out);
                let what = format!("{rows} rows of {physical:?} from {base} as {wide:?} from {wide_base}");
                assert_eq!(found[width..(rows + 1) * width], lying(&values, wide, wide_base), "{what}");
                let around = found[..width].iter().chain(&found[(rows + 1) * width..]);
                assert!(around.clone().all(|byte| *byte == 0xaa), "{what}: what lies around is untouched");
            }
        }
    }
}

#[test]
fn codes_become_what_a_table_has_for_them() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    // The value of a NULL row is not a valid code.
    let codes: Vec<i128> = (0..1000).map(|row| if row % 9 == 8 { 200 + row % 50 } else { row * 31 % 200 }).collect();
    let table: Vec<u8> = (0..200_u32).flat_map(|code| (code * 7 % 200).to_le_bytes()).collect();
    let input = rig.upload(&lying(&codes, Physical::U8, 0), &rig.stream);
    let table = rig.upload(&table, &rig.stream);
    let out = rig.upload(&[0; 2000], &rig.stream);
    let (from, to) = (Stored { physical: Physical::U8, base: 0 }, Stored { physical: Physical::U16, base: 0 });
    store::values(&images, &input, from, Some(&table), &out, to, 1000, &rig.stream).expect("launched");
    let expected: Vec<i128> = codes.iter().map(|code| if *code < 200 { code * 7 % 200 } else { 0 }).collect();
    assert_eq!(rig.download(&out), lying(&expected, Physical::U16, 0));
}

#[test]
fn bits_of_chunks_share_words() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let chunks = [5_usize, 27, 1, 64, 100, 31, 33];
    let all: usize = chunks.iter().sum();
    let out = rig.upload(&vec![0; all.div_ceil(32) * 4], &rig.stream);
    let (mut first, mut expected) = (0, vec![false; all]);
    for (number, rows) in chunks.into_iter().enumerate() {
        // Bits before and after a chunk's rows do not belong to it.
        let before = number * 9 % 32;
        let words = (before + rows).div_ceil(32);
        let is_set = |row: usize| !(row * 7 + number).is_multiple_of(3);
        let bit = |at: usize| at < before || at >= before + rows || is_set(at - before);
        let mut bytes = vec![0_u8; words * 4];
        (0..words * 32).for_each(|at| bytes[at / 8] |= u8::from(bit(at)) << (at % 8));
        let input = rig.upload(&bytes, &rig.stream);
        let input = (number != 3).then(|| input.as_view());
        store::bits(&images, input, before as u32, &out, first as u64, rows as u64, &rig.stream).expect("launched");
        (0..rows).for_each(|row| expected[first + row] = number == 3 || is_set(row));
        first += rows;
    }
    let found = rig.download(&out);
    let bit = |row: usize| found[row / 8] >> (row % 8) & 1 == 1;
    assert_eq!((0..all).map(bit).collect::<Vec<_>>(), expected);
}

#[test]
fn offsets_of_a_chunk_begin_where_the_column_has_its_texts() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let offsets: Vec<u64> = (0..=600).map(|row| 2404 + row * row % 17 * 3 + row * 60).collect();
    let stored = |offsets: &[u64], form: Physical| -> Vec<u8> {
        let bytes = offsets.iter().map(|offset| offset.to_le_bytes());
        bytes.flat_map(|bytes| bytes[..form.width() as usize].to_vec()).collect()
    };
    let (short, long) = (Physical::Text, Physical::LongText);
    for (from, to, start) in [(short, short, 77_000), (short, long, 5 << 32), (long, long, 5 << 32), (long, short, 3)] {
        let input = rig.upload(&stored(&offsets, from), &rig.stream);
        let moved: Vec<u64> = offsets.iter().map(|offset| offset - 2404 + start).collect();
        let expected = stored(&moved, to);
        let out = rig.upload(&vec![0; expected.len()], &rig.stream);
        store::offsets(&images, &input, from, &out, to, start, 600, &rig.stream).expect("launched");
        assert_eq!(rig.download(&out), expected, "{from:?} to {to:?}");
    }
}

#[test]
fn lengths_and_kinds_that_do_not_fit_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let bytes = rig.upload(&[0; 64], &rig.stream);
    let (narrow, wide) = (Stored { physical: Physical::U8, base: 0 }, Stored { physical: Physical::U64, base: 0 });
    let values = |from, to, rows| store::values(&images, &bytes, from, None, &bytes, to, rows, &rig.stream);
    assert!(values(narrow, wide, 9).is_err() && values(wide, narrow, 9).is_err());
    assert!(values(Stored { physical: Physical::Bit, base: 0 }, narrow, 1).is_err());
    assert!(store::bits(&images, None, 0, &bytes, 1 << 20, 1, &rig.stream).is_err());
    assert!(store::bits(&images, Some(&bytes), 32, &bytes, 0, 8, &rig.stream).is_err());
    // Whole words are read, up to the end of the allocation.
    let all = bytes.padded().len() as u64 * 8;
    assert!(store::bits(&images, Some(&bytes), 31, &bytes, 0, all - 30, &rig.stream).is_err());
    assert!(store::offsets(&images, &bytes, Physical::Text, &bytes, Physical::Text, 0, 16, &rig.stream).is_err());
    assert!(store::offsets(&images, &bytes, Physical::U32, &bytes, Physical::Text, 0, 1, &rig.stream).is_err());
}

#[test]
fn different_integers_are_counted_once() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for (physical, base) in
        [(Physical::U8, 100), (Physical::I16, 0), (Physical::U32, -7), (Physical::I64, 0), (Physical::I128, 0)]
    {
        for rows in LENGTHS {
            let bounds = physical.bounds().expect("integers");
            let value = |row: i128| (row * row % 701 - 40).clamp(bounds.low, bounds.high) + i128::from(base);
            let values: Vec<i128> = (0..rows as i128).map(value).collect();
            let valid: Vec<bool> = (0..rows).map(|row| row % 5 != 3).collect();
            let words: Vec<u8> = valid
                .chunks(32)
                .flat_map(|of| {
                    of.iter().enumerate().fold(0_u32, |word, (at, bit)| word | u32::from(*bit) << at).to_le_bytes()
                })
                .collect();
            let low = *values.iter().min().expect("rows") as i64 - 3;
            let input = rig.upload(&lying(&values, physical, base), &rig.stream);
            let validity = rig.upload(&words, &rig.stream);
            for (validity, with_nulls) in [(None, true), (Some(validity.as_view()), false)] {
                // The largest values have no bit.
                let bits = rig.upload(&[0; 64], &rig.stream);
                let count = rig.upload(&[0; 8], &rig.stream);
                let from = Stored { physical, base };
                let (bits, view) = (bits.as_view(), count.as_view());
                store::count_different(&images, &input, from, validity, low, bits, view, rows as u64, &rig.stream)
                    .expect("launched");
                let counted = values
                    .iter()
                    .zip(&valid)
                    .filter(|(value, valid)| (with_nulls || **valid) && **value - i128::from(low) < 512);
                let expected = counted.map(|(value, _)| *value).collect::<std::collections::BTreeSet<_>>().len() as u64;
                let found = rig.download(&count);
                assert_eq!(
                    found,
                    expected.to_le_bytes(),
                    "{rows} rows of {physical:?} from {base}, NULL counted: {with_nulls}"
                );
            }
        }
    }
}
