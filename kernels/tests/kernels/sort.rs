//! Sorting against `slice::sort_by` over rows of cells.

use crate::pipeline_rig::Rig;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::sort::{self, KeyValues, SortKey};
use millpond_kernels::{Images, Rows, tune};
use millpond_memory::{DeviceBuffer, DeviceView};
use proptest::prelude::*;
use std::cmp::Ordering;

/// The values of one key, valid or not.
#[derive(Debug, Clone)]
enum Values {
    Bits(Vec<bool>),
    Integers(Physical, Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Strings(Vec<Vec<u8>>),
    /// Codes and the rank of each code.
    Ranked(Physical, Vec<u32>, Vec<u32>),
}

#[derive(Debug, Clone)]
struct Key {
    values: Values,
    valid: Option<Vec<bool>>,
    descending: bool,
    nulls_first: bool,
}

impl Key {
    fn new(values: Values) -> Key {
        Key { values, valid: None, descending: false, nulls_first: false }
    }

    /// What the order means: arrow's comparison, with NULLs where they are asked for.
    fn compare(&self, a: usize, b: usize) -> Ordering {
        let valid = |row: usize| self.valid.as_ref().is_none_or(|valid| valid[row]);
        match (valid(a), valid(b)) {
            (false, false) => return Ordering::Equal,
            (false, true) => return if self.nulls_first { Ordering::Less } else { Ordering::Greater },
            (true, false) => return if self.nulls_first { Ordering::Greater } else { Ordering::Less },
            (true, true) => {}
        }
        let order = match &self.values {
            Values::Bits(values) => values[a].cmp(&values[b]),
            Values::Integers(_, values) => values[a].cmp(&values[b]),
            Values::F32(values) => values[a].total_cmp(&values[b]),
            Values::F64(values) => values[a].total_cmp(&values[b]),
            Values::Strings(values) => values[a].cmp(&values[b]),
            Values::Ranked(_, codes, ranks) => ranks[codes[a] as usize].cmp(&ranks[codes[b] as usize]),
        };
        if self.descending { order.reverse() } else { order }
    }
}

fn packed(bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; bits.len().div_ceil(8)];
    bits.iter().enumerate().for_each(|(row, &bit)| bytes[row / 8] |= u8::from(bit) << (row % 8));
    bytes
}

/// A key on the device, and the bytes that its strings lie in.
fn upload(rig: &Rig, key: &Key) -> (SortKey, Option<DeviceView>) {
    let view = |bytes: &[u8]| rig.upload(bytes, &rig.stream).as_view().clone();
    let low_bytes = |values: &[i128], width: usize| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
    };
    let (mut ranks_view, mut reached) = (None, None);
    let (values, kind) = match &key.values {
        Values::Bits(bits) => (view(&packed(bits)), KeyValues::Plain(Physical::Bit)),
        Values::Integers(physical, values) => {
            (view(&low_bytes(values, physical.width() as usize)), KeyValues::Plain(*physical))
        }
        Values::F32(values) => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (view(&bytes), KeyValues::Plain(Physical::F32))
        }
        Values::F64(values) => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (view(&bytes), KeyValues::Plain(Physical::F64))
        }
        Values::Strings(strings) => {
            let bytes = view(&strings.concat());
            let mut at = bytes.address().0;
            let mut views = Vec::new();
            for string in strings {
                views.extend((string.len() as u32).to_le_bytes());
                let mut inline = string[..string.len().min(12)].to_vec();
                inline.resize(12, 0);
                if string.len() > 12 {
                    inline[4..].copy_from_slice(&at.to_le_bytes());
                }
                views.extend(inline);
                at += string.len() as u64;
            }
            reached = Some(bytes);
            (view(&views), KeyValues::Views)
        }
        Values::Ranked(physical, codes, ranks) => {
            let ranks: Vec<i128> = ranks.iter().map(|&rank| rank.into()).collect();
            ranks_view = Some(view(&low_bytes(&ranks, 4)));
            let codes: Vec<i128> = codes.iter().map(|&code| code.into()).collect();
            (view(&low_bytes(&codes, physical.width() as usize)), KeyValues::Plain(*physical))
        }
    };
    let sort_key = SortKey {
        validity: key.valid.as_ref().map(|valid| view(&packed(valid))),
        ranks: ranks_view,
        descending: key.descending,
        nulls_first: key.nulls_first,
        ..SortKey::new(&values, kind)
    };
    (sort_key, reached)
}

fn sorted(rig: &Rig, images: &Images, keys: &[Key], rows: usize, on_device: bool) -> Vec<u32> {
    let (device_keys, reached): (Vec<SortKey>, Vec<Option<DeviceView>>) =
        keys.iter().map(|key| upload(rig, key)).unzip();
    let reached: Vec<DeviceView> = reached.into_iter().flatten().collect();
    let descriptors = rig.upload(&sort::descriptors(&device_keys), &rig.stream);
    let count = rig.upload(&(rows as u64).to_le_bytes(), &rig.stream);
    let number = if on_device { Rows::on_device(&count, rows as u64).unwrap() } else { Rows::known(rows as u64) };
    let out = DeviceBuffer::new(rows * 4, &rig.stream, &rig.pool).unwrap();
    let scratch = match sort::scratch_bytes(rows as u64) {
        0 => None,
        bytes => Some(DeviceBuffer::new(bytes as usize, &rig.stream, &rig.pool).unwrap()),
    };
    let scratch = scratch.as_ref().map(DeviceBuffer::as_view);
    sort::sort(images, &device_keys, &descriptors, &reached, &number, &out, scratch, &rig.stream)
        .unwrap_or_else(|error| panic!("{error}"));
    rig.download(&out).chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn expected(keys: &[Key], rows: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_by(|&a, &b| {
        let one_by_one = keys.iter().map(|key| key.compare(a as usize, b as usize));
        one_by_one.fold(Ordering::Equal, Ordering::then)
    });
    order
}

fn check(rig: &Rig, images: &Images, keys: &[Key], rows: usize) {
    assert_eq!(sorted(rig, images, keys, rows, false), expected(keys, rows), "{rows} rows by {keys:?}");
}

/// Both directions and both places of NULL, over validity that is absent, alternating, all set and all clear.
fn variants(values: Values, rows: usize) -> Vec<Key> {
    let valid =
        [None, Some(vec![true; rows]), Some(vec![false; rows]), Some((0..rows).map(|row| row % 3 != 0).collect())];
    let mut keys = Vec::new();
    for valid in valid {
        for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
            keys.push(Key { values: values.clone(), valid: valid.clone(), descending, nulls_first });
        }
    }
    keys
}

/// A number that looks random, from a row and a salt.
fn scrambled(row: usize, salt: u64) -> u64 {
    let mut x = (row as u64).wrapping_add(salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
}

fn integers(physical: Physical, rows: usize) -> Values {
    let bounds = physical.bounds().unwrap();
    let width = 8 * physical.width();
    let value = |row: usize| match row % 7 {
        0 => bounds.low,
        1 => bounds.high,
        2 => 0,
        3 => (scrambled(row, 1) % 5) as i128,
        _ => {
            let wide = (scrambled(row, 2) as i128) << 64 | scrambled(row, 3) as i128;
            if bounds.low == 0 { wide >> (128 - width) & bounds.high } else { wide >> (128 - width) }
        }
    };
    Values::Integers(physical, (0..rows).map(value).collect())
}

const FLOATS: [f64; 12] = [
    0.0,
    -0.0,
    1.5,
    -1.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    -f64::NAN,
    f64::MIN_POSITIVE,
    f64::MAX,
    f64::MIN,
    5e-324,
];

fn every_type(rows: usize) -> Vec<Values> {
    let floats: Vec<f64> = (0..rows).map(|row| FLOATS[(scrambled(row, 4) % 12) as usize]).collect();
    let strings = (0..rows).map(|row| {
        let choices: [&[u8]; 10] = [
            b"",
            b"a",
            b"a\0",
            b"abcdefgh",
            b"abcdefghi",
            b"abcdefghijkl",
            b"abcdefghijklm",
            b"abcdefghijklmn",
            "é".as_bytes(),
            b"zzzzzzzzzzzzzzzzzzzzzzzzzz",
        ];
        choices[(scrambled(row, 5) % 10) as usize].to_vec()
    });
    let codes: Vec<u32> = (0..rows).map(|row| (scrambled(row, 6) % 5) as u32).collect();
    let ranks = vec![3, 1, 4, 0, 2];
    use Physical::*;
    let mut all: Vec<Values> = [I8, I16, I32, I64, U8, U16, U32, U64, I128].map(|p| integers(p, rows)).to_vec();
    all.push(Values::Bits((0..rows).map(|row| scrambled(row, 7).is_multiple_of(2)).collect()));
    all.push(Values::F32(floats.iter().map(|value| *value as f32).collect()));
    all.push(Values::F64(floats));
    all.push(Values::Strings(strings.collect()));
    all.extend([U8, U16, U32].map(|physical| Values::Ranked(physical, codes.clone(), ranks.clone())));
    all
}

#[test]
fn every_type_sorts_in_both_directions_with_nulls_at_both_ends() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 97;
    for values in every_type(rows) {
        for key in variants(values, rows) {
            check(&rig, &images, &[key], rows);
        }
    }
    rig.assert_clean();
}

#[test]
fn every_length_sorts() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let tile = tune::SORT_TILE_ROWS as usize;
    let lengths =
        [0, 1, 2, 3, 4, 5, 31, 32, 33, 511, 512, 513, tile - 1, tile, tile + 1, 2 * tile, 3 * tile + 5, 9 * tile];
    for rows in lengths {
        let few = Values::Integers(Physical::I32, (0..rows).map(|row| (scrambled(row, 8) % 10) as i128 - 5).collect());
        let key = Key { valid: Some((0..rows).map(|row| row % 11 != 3).collect()), ..Key::new(few) };
        check(&rig, &images, &[key], rows);
        let distinct = Values::Integers(Physical::U64, (0..rows).map(|row| scrambled(row, 9).into()).collect());
        check(&rig, &images, &[Key { descending: true, ..Key::new(distinct) }], rows);
    }
    rig.assert_clean();
}

#[test]
fn sorted_reversed_and_equal_rows_sort() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 5000;
    let makers: [fn(usize) -> i128; 3] = [|row| row as i128, |row| -(row as i128), |_| 42];
    for make in makers {
        let key = Key::new(Values::Integers(Physical::I64, (0..rows).map(make).collect()));
        check(&rig, &images, &[key], rows);
    }
    rig.assert_clean();
}

#[test]
fn later_keys_break_ties() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 3000;
    let narrow =
        |salt: u64, of: u64| -> Vec<i128> { (0..rows).map(|row| (scrambled(row, salt) % of).into()).collect() };
    // Two keys share the first word; the third begins in it; the others lie behind it.
    let keys = [
        Key { descending: true, ..Key::new(Values::Integers(Physical::U8, narrow(1, 3))) },
        Key {
            valid: Some((0..rows).map(|row| !scrambled(row, 2).is_multiple_of(4)).collect()),
            nulls_first: true,
            ..Key::new(Values::Integers(Physical::I16, narrow(3, 4)))
        },
        Key { descending: true, ..Key::new(Values::Integers(Physical::I64, narrow(4, 5))) },
        Key::new(Values::Bits((0..rows).map(|row| scrambled(row, 5).is_multiple_of(2)).collect())),
        Key {
            descending: true,
            ..Key::new(Values::F64((0..rows).map(|row| (scrambled(row, 6) % 3) as f64).collect()))
        },
    ];
    for count in 1..=keys.len() {
        check(&rig, &images, &keys[..count], rows);
    }
    rig.assert_clean();
}

#[test]
fn fewer_rows_on_the_device_than_the_bound() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let bound = 3 * tune::SORT_TILE_ROWS as usize;
    let values: Vec<i128> = (0..bound).map(|row| (scrambled(row, 1) % 1000).into()).collect();
    for rows in [0, 1, 100, 2048, 2049, 5000, bound] {
        let key = Key::new(Values::Integers(Physical::I32, values.clone()));
        let (sort_key, _) = upload(&rig, &key);
        let descriptors = rig.upload(&sort::descriptors(std::slice::from_ref(&sort_key)), &rig.stream);
        let count = rig.upload(&(rows as u64).to_le_bytes(), &rig.stream);
        let number = Rows::on_device(&count, bound as u64).unwrap();
        let out = rig.upload(&vec![0xff; bound * 4], &rig.stream);
        let scratch_bytes = sort::scratch_bytes(bound as u64) as usize;
        let scratch = DeviceBuffer::new(scratch_bytes, &rig.stream, &rig.pool).unwrap();
        sort::sort(&images, &[sort_key], &descriptors, &[], &number, &out, Some(&scratch), &rig.stream).unwrap();
        let order: Vec<u32> =
            rig.download(&out).chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(order[..rows], expected(&[key], rows), "{rows} rows");
        if bound.div_ceil(2048).is_multiple_of(2) {
            assert!(order[rows..].iter().all(|&row| row == u32::MAX), "nothing is written behind the last row");
        }
    }
    rig.assert_clean();
}

#[test]
fn count_on_the_device_gives_the_same_order() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 700;
    let key = Key::new(integers(Physical::I64, rows));
    assert_eq!(sorted(&rig, &images, std::slice::from_ref(&key), rows, true), expected(&[key], rows));
    rig.assert_clean();
}

#[test]
fn ranks_of_values_that_are_no_codes_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let (mut key, _) = upload(&rig, &Key::new(Values::Integers(Physical::I64, vec![1, 2])));
    key.ranks = Some(key.values.clone());
    let descriptors = rig.upload(&sort::descriptors(std::slice::from_ref(&key)), &rig.stream);
    let out = rig.upload(&[0; 8], &rig.stream);
    let error = sort::sort(&images, &[key], &descriptors, &[], &Rows::known(2), &out, None, &rig.stream).unwrap_err();
    assert_eq!(error.to_string(), "sort: ranks are for dictionary codes, not for Plain(I64)");
    rig.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_keys_sort(
        rows in 0usize..300, picks in proptest::collection::vec((0usize..16, 0usize..16, any::<u64>()), 1..5),
    ) {
        let rig = Rig::new();
        let images = Images::new(&rig.device);
        let types = every_type(rows + 3);
        let keys: Vec<Key> = picks
            .iter()
            .map(|&(ty, variant, salt)| {
                // Every key starts somewhere else in its list, so that keys differ.
                let mut key = variants(types[ty].clone(), rows).swap_remove(variant);
                let from = (salt % 4) as usize;
                macro_rules! cut { ($list:expr) => { $list[from..from + rows].to_vec() } }
                key.values = match &types[ty] {
                    Values::Bits(list) => Values::Bits(cut!(list)),
                    Values::Integers(physical, list) => Values::Integers(*physical, cut!(list)),
                    Values::F32(list) => Values::F32(cut!(list)),
                    Values::F64(list) => Values::F64(cut!(list)),
                    Values::Strings(list) => Values::Strings(cut!(list)),
                    Values::Ranked(physical, list, ranks) => Values::Ranked(*physical, cut!(list), ranks.clone()),
                };
                key
            })
            .collect();
        prop_assert_eq!(sorted(&rig, &images, &keys, rows, false), expected(&keys, rows));
        rig.assert_clean();
    }
}
