//! Sorting against `slice::sort_by` over rows of cells, by every method.

use crate::pipeline_rig::Rig;
use millpond_kernels::abi;
use millpond_kernels::codegen::ir::{Physical, Range};
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::sort::{Method, Sort, SortKey};
use millpond_kernels::{Images, tune};
use millpond_memory::{DeviceBuffer, DeviceView};
use proptest::prelude::*;
use std::cmp::Ordering;

/// The values of one key, valid or not.
#[derive(Debug, Clone)]
pub enum Values {
    Bits(Vec<bool>),
    Integers(Physical, Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Strings(Vec<Vec<u8>>),
    /// Codes and the rank of each code.
    Ranked(Physical, Vec<u32>, Vec<u32>),
}

#[derive(Debug, Clone)]
pub struct Key {
    pub values: Values,
    pub valid: Option<Vec<bool>>,
    pub descending: bool,
    pub nulls_first: bool,
    /// True to pass the minimum and maximum to the sort.
    pub ranged: bool,
}

impl Key {
    pub fn new(values: Values) -> Key {
        Key { values, valid: None, descending: false, nulls_first: false, ranged: false }
    }

    /// Range of the valid integers, or of the ranks.
    fn range(&self) -> Option<Range> {
        let valid = |row: usize| self.valid.as_ref().is_none_or(|valid| valid[row]);
        let sorted: Vec<i128> = match &self.values {
            Values::Integers(_, values) => values.clone(),
            Values::Ranked(_, codes, ranks) => codes.iter().map(|code| ranks[*code as usize].into()).collect(),
            _ => return None,
        };
        let known = || sorted.iter().enumerate().filter(|(row, _)| valid(*row)).map(|(_, value)| *value);
        Some(Range { low: known().min()?, high: known().max()? })
    }

    /// Expected order: arrow's comparison, with NULLs first or last as requested.
    pub fn compare(&self, a: usize, b: usize) -> Ordering {
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

/// Uploads a key; also returns the buffer of its strings.
pub fn upload(rig: &Rig, key: &Key) -> (SortKey, Option<DeviceView>) {
    let view = |bytes: &[u8]| rig.upload(bytes, &rig.stream).as_view().clone();
    let low_bytes = |values: &[i128], width: usize| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
    };
    let (mut ranks_view, mut reached) = (None, None);
    let (values, kind) = match &key.values {
        Values::Bits(bits) => (view(&packed(bits)), Physical::Bit),
        Values::Integers(physical, values) => (view(&low_bytes(values, physical.width() as usize)), *physical),
        Values::F32(values) => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (view(&bytes), Physical::F32)
        }
        Values::F64(values) => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (view(&bytes), Physical::F64)
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
            (view(&views), Physical::View)
        }
        Values::Ranked(physical, codes, ranks) => {
            let ranks: Vec<i128> = ranks.iter().map(|&rank| rank.into()).collect();
            ranks_view = Some(view(&low_bytes(&ranks, 4)));
            let codes: Vec<i128> = codes.iter().map(|&code| code.into()).collect();
            (view(&low_bytes(&codes, physical.width() as usize)), *physical)
        }
    };
    let sort_key = SortKey {
        validity: key.valid.as_ref().map(|valid| view(&packed(valid))),
        ranks: ranks_view,
        range: key.range().filter(|_| key.ranged),
        descending: key.descending,
        nulls_first: key.nulls_first,
        ..SortKey::new(&values, kind)
    };
    (sort_key, reached)
}

/// Parameters of a sort: method and number of rows.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    /// Upper bound above the number of rows, if that is counted on the device.
    bound: Option<usize>,
    limit: Option<u64>,
    method: Option<Method>,
}

impl Case {
    fn of(rows: usize) -> Case {
        Case { rows, bound: None, limit: None, method: None }
    }

    fn by(self, method: Method) -> Case {
        Case { method: Some(method), ..self }
    }

    fn first(self, limit: u64) -> Case {
        Case { limit: Some(limit), ..self }
    }
}

/// Error word of the kernel that wrote the rows.
pub const ERROR: u64 = 7 << 32 | 2;

fn sorted(rig: &Rig, images: &Images, keys: &[Key], case: Case) -> Vec<u32> {
    let (device_keys, reached): (Vec<SortKey>, Vec<Option<DeviceView>>) =
        keys.iter().map(|key| upload(rig, key)).unzip();
    let reached: Vec<DeviceView> = reached.into_iter().flatten().collect();
    let bound = case.bound.unwrap_or(case.rows);
    let mut sort = Sort::new(device_keys, bound as u64, case.limit).unwrap_or_else(|error| panic!("{error}"));
    if let Some(method) = case.method {
        sort = sort.by(method).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut control = vec![0; abi::CONTROL_BYTES as usize];
    control[..8].copy_from_slice(&ERROR.to_le_bytes());
    control[8..16].copy_from_slice(&(case.rows as u64).to_le_bytes());
    let control = rig.upload(&control, &rig.stream).as_view().clone();
    let rows = match case.bound {
        Some(bound) => ExtentRows::OnDevice { control, upper_bound: bound as u64 },
        None => ExtentRows::Known(case.rows as u64),
    };
    let order = DeviceBuffer::new(sort.order_bytes(), &rig.stream, &rig.pool).unwrap();
    let scratch = DeviceBuffer::new(sort.scratch_bytes(), &rig.stream, &rig.pool).unwrap();
    // The initial contents of the scratch must not matter.
    scratch.fill(0xa5, &rig.stream).unwrap();
    let launches = rig.stream.scope().counters().launches;
    sort.run(images, &reached, &rows, &order, Some(&scratch), &rig.stream).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rig.stream.scope().counters().launches - launches, u64::from(sort.launches()), "{case:?}");
    let extent = sort.order(&order).unwrap();
    let ExtentRows::OnDevice { control, upper_bound } = &extent.rows else { panic!("counted on the device") };
    let words: Vec<u64> = rig
        .download(&control.view(0..16).unwrap())
        .chunks(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let wanted = (case.rows as u64).min(case.limit.unwrap_or(u64::MAX));
    assert_eq!(words, [if case.bound.is_some() { ERROR } else { 0 }, wanted], "{case:?}");
    assert!(wanted <= *upper_bound);
    let numbers = &extent.columns[0].as_ref().unwrap().values;
    let bytes = rig.download(&numbers.view(0..4 * wanted as usize).unwrap());
    bytes.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

pub fn expected(keys: &[Key], rows: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_by(|&a, &b| {
        let one_by_one = keys.iter().map(|key| key.compare(a as usize, b as usize));
        one_by_one.fold(Ordering::Equal, Ordering::then)
    });
    order
}

fn check_case(rig: &Rig, images: &Images, keys: &[Key], case: Case) {
    let mut expected = expected(keys, case.rows);
    expected.truncate(case.limit.unwrap_or(u64::MAX).min(case.rows as u64) as usize);
    assert_eq!(sorted(rig, images, keys, case), expected, "{case:?} by {keys:?}");
}

fn check(rig: &Rig, images: &Images, keys: &[Key], rows: usize) {
    check_case(rig, images, keys, Case::of(rows));
}

/// Sorts by every applicable method, with and without the keys' ranges.
fn check_all(rig: &Rig, images: &Images, keys: &[Key], rows: usize, limit: u64) {
    let strings = keys.iter().any(|key| matches!(key.values, Values::Strings(_)));
    for ranged in [false, true] {
        let keys: Vec<Key> = keys.iter().map(|key| Key { ranged, ..key.clone() }).collect();
        if ranged || strings {
            check_case(rig, images, &keys, Case::of(rows).first(limit).by(Method::Top));
            check_case(rig, images, &keys, Case::of(rows).by(Method::Merge));
        }
        if !strings {
            check_case(rig, images, &keys, Case::of(rows).by(Method::Radix));
        }
    }
}

/// Both directions and both positions of NULL, with absent, alternating, all-set and all-clear validity.
fn variants(values: Values, rows: usize) -> Vec<Key> {
    let valid =
        [None, Some(vec![true; rows]), Some(vec![false; rows]), Some((0..rows).map(|row| row % 3 != 0).collect())];
    let mut keys = Vec::new();
    for valid in valid {
        for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let valid = valid.clone();
            keys.push(Key { values: values.clone(), valid, descending, nulls_first, ranged: false });
        }
    }
    keys
}

/// A pseudo-random number from a row and a salt.
pub fn scrambled(row: usize, salt: u64) -> u64 {
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
            check_all(&rig, &images, &[key], rows, 20);
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
        let (few, distinct) = few_and_distinct(rows);
        check_case(&rig, &images, &[few], Case::of(rows).by(Method::Merge));
        check(&rig, &images, &[distinct], rows);
    }
    rig.assert_clean();
}

#[test]
fn every_length_sorts_by_digits() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let tile = tune::RADIX_TILE_ROWS as usize;
    for rows in [0, 1, 31, 32, 33, 255, 256, 257, 511, 512, 513, tile - 1, tile, tile + 1, 2 * tile, 5 * tile + 7] {
        let (few, distinct) = few_and_distinct(rows);
        check_case(&rig, &images, std::slice::from_ref(&few), Case::of(rows).by(Method::Radix));
        check_case(&rig, &images, &[Key { ranged: true, ..few }], Case::of(rows).by(Method::Radix));
        check_case(&rig, &images, &[distinct], Case::of(rows).by(Method::Radix));
    }
    rig.assert_clean();
}

#[test]
fn the_first_of_every_length() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let block = 2 * (tune::SORT_THREADS * tune::TOP_TILES_PER_BLOCK) as usize;
    let most = u64::from(tune::TOP_MAX_ROWS);
    for rows in [0, 1, 31, 33, 1023, 1024, 1025, 2048, 2049, block - 1, block + 1, 5 * block + 3] {
        for limit in [0, 1, 10, most - 1, most] {
            let (few, distinct) = few_and_distinct(rows);
            let key = if limit % 2 == 1 { few } else { distinct };
            check_case(&rig, &images, &[key], Case::of(rows).first(limit).by(Method::Top));
        }
    }
    rig.assert_clean();
}

#[test]
fn a_limit_beyond_the_best_few_cuts_the_sorted_rows() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for (rows, limit) in [(100, 30), (2048, 2000), (9000, 1500), (9000, 8999), (9000, 20_000)] {
        let (few, distinct) = few_and_distinct(rows);
        for key in [few, distinct] {
            check_case(&rig, &images, std::slice::from_ref(&key), Case::of(rows).first(limit));
            check_case(&rig, &images, std::slice::from_ref(&key), Case::of(rows).first(limit).by(Method::Radix));
            check_case(&rig, &images, &[key], Case::of(rows).first(limit).by(Method::Merge));
        }
    }
    rig.assert_clean();
}

/// Ten values, some NULL; and as many distinct values as rows, descending.
fn few_and_distinct(rows: usize) -> (Key, Key) {
    let few = Values::Integers(Physical::I32, (0..rows).map(|row| (scrambled(row, 8) % 10) as i128 - 5).collect());
    let few = Key { valid: Some((0..rows).map(|row| row % 11 != 3).collect()), ..Key::new(few) };
    let distinct = Values::Integers(Physical::U64, (0..rows).map(|row| scrambled(row, 9).into()).collect());
    (few, Key { descending: true, ..Key::new(distinct) })
}

#[test]
fn sorted_reversed_skewed_and_equal_rows_sort() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 9000;
    let makers: [fn(usize) -> i128; 4] = [
        |row| row as i128,
        |row| -(row as i128),
        |_| 42,
        |row| if row.is_multiple_of(5) { scrambled(row, 1) as i64 as i128 } else { 1 << 40 },
    ];
    for make in makers {
        let key = Key::new(Values::Integers(Physical::I64, (0..rows).map(make).collect()));
        check_all(&rig, &images, &[key], rows, 100);
    }
    rig.assert_clean();
}

#[test]
fn words_that_are_all_equal_are_passed_over() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let rows = 5000;
    let constant = Key::new(Values::Integers(Physical::I64, vec![-7; rows]));
    let varied =
        Key::new(Values::Integers(Physical::I64, (0..rows).map(|row| scrambled(row, 3) as i64 as i128).collect()));
    let narrow =
        Key::new(Values::Integers(Physical::I64, (0..rows).map(|row| (scrambled(row, 4) % 7) as i128).collect()));
    // The only varying word is the most significant, the least significant, or in between; or no word varies.
    let (c, v, n) = (&constant, &varied, &narrow);
    for keys in [[c, c, c], [v, c, c], [c, v, c], [c, c, v], [n, c, n], [c, n, v], [n, n, c]] {
        let keys: Vec<Key> = keys.into_iter().cloned().collect();
        check_case(&rig, &images, &keys, Case::of(rows).by(Method::Radix));
        check_case(&rig, &images, &keys, Case::of(rows).first(2000).by(Method::Radix));
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
    // Two keys share the first word; the third begins in it; the others are in later words.
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
        check_all(&rig, &images, &keys[..count], rows, 500);
    }
    rig.assert_clean();
}

#[test]
fn fewer_rows_on_the_device_than_the_bound() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let bound = 3 * tune::RADIX_TILE_ROWS as usize;
    let values: Vec<i128> = (0..bound).map(|row| (scrambled(row, 1) % 1000).into()).collect();
    let key = Key::new(Values::Integers(Physical::I32, values));
    for rows in [0, 1, 100, 2048, 2049, 4097, bound] {
        let counted = Case { bound: Some(bound), ..Case::of(rows) };
        for case in [counted.by(Method::Merge), counted.by(Method::Radix), counted.first(64)] {
            check_case(&rig, &images, std::slice::from_ref(&key), case);
        }
    }
    rig.assert_clean();
}

#[test]
fn any_number_of_keys_sorts_and_each_counts() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let few = tune::SORT_FEW_KEYS as usize;
    let rows = tune::SORT_TILE_ROWS as usize + 200;
    for num_keys in [few, few + 1, 40] {
        // Each key distinguishes the rows of its own turn from those of later turns.
        let key = |turn: usize| {
            let own = (0..rows).map(|row| scrambled(row, 8) as usize % (num_keys + 1) == turn);
            let values = match turn % 3 {
                0 => Values::Bits(own.collect()),
                1 => Values::Integers(Physical::I32, own.map(|own| i128::from(own) * 1000).collect()),
                _ => Values::Strings(own.map(|own| if own { b"own, and long".to_vec() } else { vec![] }).collect()),
            };
            let valid = turn.is_multiple_of(4).then(|| (0..rows).map(|row| row % 50 != turn).collect());
            Key { descending: turn.is_multiple_of(5), nulls_first: turn.is_multiple_of(8), valid, ..Key::new(values) }
        };
        let keys: Vec<Key> = (0..num_keys).map(key).collect();
        check(&rig, &images, &keys, 300);
        check(&rig, &images, &keys, rows);
        check_case(&rig, &images, &keys, Case::of(300).first(20).by(Method::Top));
        let whole: Vec<Key> = keys.into_iter().filter(|key| !matches!(key.values, Values::Strings(_))).collect();
        check_case(&rig, &images, &whole, Case::of(300).by(Method::Radix));
    }
    rig.assert_clean();
}

#[test]
fn what_cannot_be_sorted_is_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let (mut key, _) = upload(&rig, &Key::new(Values::Integers(Physical::I64, vec![1, 2])));
    let refusal = |result: Result<Sort, millpond_kernels::KernelError>| result.unwrap_err().to_string();
    assert_eq!(refusal(Sort::new(vec![], 2, None)), "sort: there is nothing to sort by");
    assert!(refusal(Sort::new(vec![key.clone()], 200, None)).starts_with("sort: a key has"));
    let sort = |limit| Sort::new(vec![key.clone()], 2, limit).unwrap();
    assert_eq!(refusal(sort(None).by(Method::Top)), "sort: Top cannot give all of 2 rows by fixed-width keys");
    let short = Sort::new(vec![key.clone()], 2, None).unwrap().by(Method::Radix).unwrap();
    let order = DeviceBuffer::new(short.order_bytes(), &rig.stream, &rig.pool).unwrap();
    let run = |rows: u64| short.run(&images, &[], &ExtentRows::Known(rows), &order, None, &rig.stream);
    let wanted = format!("sort: {} bytes of scratch are needed", short.scratch_bytes());
    assert_eq!(run(2).unwrap_err().to_string(), wanted);
    assert_eq!(run(3).unwrap_err().to_string(), "sort: 3 rows where at most 2 were to come");
    key.ranks = Some(key.values.clone());
    let error = refusal(Sort::new(vec![key], 2, None));
    assert_eq!(error, "sort: ranks are for dictionary codes, not for I64");
    rig.assert_clean();
}

#[test]
fn the_keys_decide_how_many_launches_there_are() {
    let rig = Rig::new();
    let rows = 1_000_000;
    let values = DeviceBuffer::new(8 * rows, &rig.stream, &rig.pool).unwrap();
    let key = |physical| SortKey::new(&values, physical);
    let ranged = |low, high| SortKey { range: Some(Range { low, high }), ..key(Physical::I64) };
    let launches = |keys: Vec<SortKey>, rows: usize, limit| {
        let sort = Sort::new(keys, rows as u64, limit).unwrap();
        (sort.method(), sort.launches())
    };
    assert_eq!(launches(vec![key(Physical::I64)], 2048, None), (Method::Tile, 1));
    assert_eq!(launches(vec![key(Physical::I64)], rows, Some(10)), (Method::Top, 1));
    assert_eq!(launches(vec![key(Physical::I64)], rows, None), (Method::Radix, 1 + 8));
    assert_eq!(launches(vec![ranged(1_000_000, 1_000_255)], rows, None), (Method::Radix, 1 + 1));
    assert_eq!(launches(vec![ranged(5, 5)], rows, None), (Method::Radix, 1 + 1));
    // 20 bits, 30 bits and a NULL bit share a word.
    let nullable = SortKey { validity: Some(values.as_view().clone()), ..ranged(0, (1 << 30) - 1) };
    assert_eq!(launches(vec![ranged(0, (1 << 20) - 1), nullable], rows, None), (Method::Radix, 1 + 7));
    assert_eq!(launches(vec![key(Physical::I64), key(Physical::I32)], rows, None), (Method::Radix, 2 + 12));
    assert_eq!(launches(vec![key(Physical::I64)], 3000, None), (Method::Merge, 2));
    // Sixteen descriptors fit the parameters of a launch.
    assert_eq!(launches(vec![key(Physical::I64); 16], 2048, None), (Method::Tile, 1));
    assert_eq!(launches(vec![key(Physical::I64); 17], 2048, None), (Method::Tile, 2 + 1));
    assert_eq!(launches(vec![key(Physical::I64); 40], rows, Some(10)), (Method::Top, 3 + 1));
    drop((values, rig));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_keys_sort(
        rows in 0usize..300, picks in proptest::collection::vec((0usize..16, 0usize..16, any::<u64>()), 1..5),
        salt in 0u64..50,
    ) {
        let rig = Rig::new();
        let images = Images::new(&rig.device);
        let types = every_type(rows + 3);
        let keys: Vec<Key> = picks
            .iter()
            .map(|&(ty, variant, salt)| {
                // Every key starts at a different offset of its list, so that keys differ.
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
                key.ranged = salt & 8 != 0;
                key
            })
            .collect();
        check_all(&rig, &images, &keys, rows, salt % 50);
        rig.assert_clean();
    }
}

/// The first few of many rows, or all rows: by 64-bit words, and by 32-bit words.
pub fn check_many(rig: &Rig, method: Method, limit: Option<u64>, rows: usize) {
    let images = Images::new(&rig.device);
    let (few, distinct) = few_and_distinct(rows);
    for key in [distinct, Key { ranged: true, ..few }] {
        check_case(rig, &images, &[key], Case { limit, ..Case::of(rows) }.by(method));
    }
}
