//! Sessions, earlier rows and row pairs, against loops over sorted rows.

use std::cmp::Ordering;

use millpond_kernels::clicks::{self, Near, Sorted};
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use millpond_kernels::sort::SortKey;
use millpond_kernels::{Images, abi, tune};
use millpond_memory::{DeviceBuffer, DeviceView};

use crate::pipeline_rig::Rig;
use crate::sort::{ERROR, Key, Values, expected, scrambled, upload};

const TILE: usize = tune::SCAN_THREADS as usize * 4;
const LENGTHS: [usize; 9] = [0, 1, 31, 33, TILE - 1, TILE, TILE + 1, 3 * TILE + 7, 40 * TILE];

/// Rows on the device, and their numbers in key order.
struct Rows {
    keys: Vec<Key>,
    order: Vec<u32>,
    device_keys: Vec<SortKey>,
    reached: Vec<DeviceView>,
    extent: ExtentInput,
}

impl Rows {
    /// Sorts by all of `keys` except the last `others`. An odd number of rows has its count on the device.
    fn new(rig: &Rig, keys: Vec<Key>, others: usize, rows: usize) -> Rows {
        let order = expected(&keys[..keys.len() - others], rows);
        let (device_keys, reached): (Vec<_>, Vec<_>) = keys.iter().map(|key| upload(rig, key)).unzip();
        let mut numbers: Vec<u8> = order.iter().flat_map(|row| row.to_le_bytes()).collect();
        let on_device = rows % 2 == 1;
        if on_device {
            numbers.extend([0xa5; 20]);
        }
        let values = rig.upload(&numbers, &rig.stream).as_view().clone();
        let mut control = vec![0; abi::CONTROL_BYTES as usize];
        control[..8].copy_from_slice(&ERROR.to_le_bytes());
        control[8..16].copy_from_slice(&(rows as u64).to_le_bytes());
        let control = rig.upload(&control, &rig.stream).as_view().clone();
        let count = match on_device {
            true => ExtentRows::OnDevice { control, upper_bound: rows as u64 + 5 },
            false => ExtentRows::Known(rows as u64),
        };
        // Columns have room for the upper bound of rows.
        let device_keys = device_keys.into_iter().map(|key| padded(rig, key)).collect();
        let extent = ExtentInput { rows: count, columns: vec![Some(ColumnInput { values, validity: None, base: 0 })] };
        Rows { keys, order, device_keys, reached: reached.into_iter().flatten().collect(), extent }
    }

    fn same(&self, keys: usize, a: usize, b: usize) -> bool {
        self.keys[..keys].iter().all(|key| key.compare(a, b) == Ordering::Equal)
    }

    fn sorted(&self) -> Sorted<'_> {
        Sorted { order: &self.extent, keys: &self.device_keys, reached: &self.reached }
    }

    /// Columns that `launch` writes.
    fn run(&self, rig: &Rig, columns: usize, launch: impl FnOnce(&DeviceView)) -> Vec<Vec<u32>> {
        let bound = self.extent.rows.upper_bound();
        let layout = clicks::layout(columns, bound);
        let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
        output.fill(0xa5, &rig.stream).unwrap();
        launch(output.as_view());
        let control = rig.download(&output.view(0..16).unwrap());
        let word = |at: usize| u64::from_le_bytes(control[at..at + 8].try_into().unwrap());
        let error = if matches!(self.extent.rows, ExtentRows::OnDevice { .. }) { ERROR } else { 0 };
        assert_eq!(word(0), error, "an error of the rows is taken over");
        let found = word(8) as usize;
        assert!(found as u64 <= bound);
        let column = |at: usize| {
            let start = layout.columns[at].values.start;
            let bytes = rig.download(&output.view(start..start + 4 * found).unwrap());
            bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        (0..columns).map(column).collect()
    }
}

/// The key with room for some more rows.
fn padded(rig: &Rig, key: SortKey) -> SortKey {
    let longer = |view: &DeviceView, bytes: usize| {
        let longer = DeviceBuffer::zeroed(view.len() + bytes, &rig.stream, &rig.pool).unwrap();
        if !view.is_empty() {
            view.copy_to(&longer.view(0..view.len()).unwrap(), &rig.stream).unwrap();
        }
        longer.as_view().clone()
    };
    SortKey { values: longer(&key.values, 80), validity: key.validity.as_ref().map(|view| longer(view, 8)), ..key }
}

/// Integers of `physical`.
fn integers(physical: Physical, values: impl Iterator<Item = i128>) -> Key {
    Key { ranged: true, ..Key::new(Values::Integers(physical, values.collect())) }
}

/// Keys of several run lengths, by row number: one key, long runs, short runs, all distinct.
fn key_of(shape: usize, row: usize) -> i128 {
    match shape {
        0 => 7,
        1 => (scrambled(row, 3) % 3) as i128 - 1,
        2 => (scrambled(row, 4) % 701) as i128,
        _ => row as i128,
    }
}

fn check_sessions(rig: &Rig, images: &Images, keys: Vec<Key>, rows: usize, gap: u64) {
    let rows = Rows::new(rig, keys, 0, rows);
    let found = rows.run(rig, 2, |output| {
        clicks::sessions(images, rows.sorted(), gap, output, &rig.stream).unwrap();
    });
    let num_keys = rows.keys.len() - 1;
    let Values::Integers(_, times) = &rows.keys[num_keys].values else { panic!("times are integers") };
    let mut expected = vec![];
    for (place, row) in rows.order.iter().map(|row| *row as usize).enumerate() {
        let before = place.checked_sub(1).map(|before| rows.order[before] as usize);
        expected.push(match before.filter(|before| rows.same(num_keys, *before, row)) {
            None => 0,
            Some(before) => expected[place - 1] + u32::from(times[row] - times[before] > i128::from(gap)),
        });
    }
    assert_eq!(found[0], rows.order, "the order");
    assert_eq!(found[1], expected, "gap {gap}");
}

/// Sessions of a few large keys, so that most thread blocks continue the count of the previous block; and pairs, whose
/// results are written contiguously.
pub fn check_many(rig: &Rig, rows: usize) {
    let images = Images::new(&rig.device);
    for shape in 0..2 {
        let keys = integers(Physical::I32, (0..rows).map(|row| key_of(shape, row)));
        let times = integers(Physical::I64, (0..rows).map(|row| i128::from(scrambled(row, 9) % 1_000_000)));
        check_sessions(rig, &images, vec![keys, times], rows, 100);
    }
    check_pairs(rig, &images, vec![integers(Physical::I16, (0..rows).map(|row| key_of(2, row)))], rows);
    rig.assert_clean();
}

#[test]
fn sessions_begin_where_keys_do_and_after_gaps() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for (index, rows) in LENGTHS.into_iter().enumerate() {
        for shape in 0..4 {
            let keys = integers(Physical::I64, (0..rows).map(|row| key_of(shape, row)));
            let times = integers(Physical::I32, (0..rows).map(|row| (scrambled(row, 5) % 5_000) as i128 - 700));
            check_sessions(&rig, &images, vec![keys, times], rows, [0, 3, 100, u64::MAX][(index + shape) % 4]);
        }
    }
    rig.assert_clean();
}

#[test]
fn gaps_are_found_at_the_ends_of_64_bits() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let times = [i64::MIN, i64::MIN, -1, 0, i64::MAX - 1, i64::MAX].map(i128::from);
    for ranged in [false, true] {
        for gap in [0, 1, 1 << 63, (1 << 63) - 1, u64::MAX - 2, u64::MAX] {
            let key = integers(Physical::U8, (0..12).map(|row| row % 2));
            let time = integers(Physical::I64, (0..12).map(|row| times[row as usize / 2]));
            check_sessions(&rig, &images, vec![key, Key { ranged, ..time }], 12, gap);
        }
    }
    rig.assert_clean();
}

/// Keys of every kind; the first column alone distinguishes few rows.
fn kinds(rows: usize) -> Vec<Vec<Key>> {
    let few = |row: usize| scrambled(row, 6) % 5;
    let floats = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY];
    let strings = ["", "a", "ab\0", "twelve bytes", "thirteen byte", "thirteen bytf"];
    let valid = Some((0..rows).map(|row| !scrambled(row, 8).is_multiple_of(4)).collect());
    let wide = |row: usize| (few(row) as i128 - 2) << 100;
    vec![
        vec![Key::new(Values::Bits((0..rows).map(|row| few(row) == 1).collect()))],
        vec![Key::new(Values::F64((0..rows).map(|row| floats[few(row) as usize]).collect()))],
        vec![Key::new(Values::F32((0..rows).map(|row| floats[few(row) as usize] as f32).collect()))],
        vec![Key::new(Values::Integers(Physical::I128, (0..rows).map(wide).collect()))],
        vec![integers(Physical::I16, (0..rows).map(|row| few(row) as i128 * 1000 - 2000))],
        vec![Key::new(Values::Strings(
            (0..rows).map(|row| strings[few(row) as usize + 1].as_bytes().to_vec()).collect(),
        ))],
        vec![
            Key {
                valid,
                nulls_first: true,
                ..Key::new(Values::Strings((0..rows).map(|row| strings[row % 6].as_bytes().to_vec()).collect()))
            },
            Key::new(Values::Ranked(
                Physical::U16,
                (0..rows).map(|row| few(row) as u32).collect(),
                vec![4, 2, 0, 1, 3],
            )),
        ],
    ]
}

#[test]
fn keys_of_every_kind_are_distinct() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in [700, 701] {
        for keys in kinds(rows) {
            let times = integers(Physical::U32, (0..rows).map(|row| (scrambled(row, 7) % 900) as i128));
            let all = [keys.clone(), vec![times]].concat();
            check_sessions(&rig, &images, all, rows, 5);
            check_pairs(&rig, &images, keys, rows);
        }
    }
    rig.assert_clean();
}

/// Distinct rows by `keys` and another column, and the later rows of each in its group.
fn check_pairs(rig: &Rig, images: &Images, mut keys: Vec<Key>, rows: usize) {
    keys.push(integers(Physical::I8, (0..rows).map(|row| (scrambled(row, 10) % 9) as i128 - 4)));
    let all = Rows::new(rig, keys, 0, rows);
    let found = all.run(rig, 1, |output| {
        clicks::distinct(images, all.sorted(), output, &rig.stream).unwrap();
    });
    let mut distinct: Vec<u32> = vec![];
    for row in &all.order {
        let is_new = distinct.last().is_none_or(|last| !all.same(all.keys.len(), *last as usize, *row as usize));
        if is_new {
            distinct.push(*row);
        }
    }
    assert_eq!(found, std::slice::from_ref(&distinct));

    let groups = all.keys.len() - 1;
    let numbers: Vec<u8> = distinct.iter().flat_map(|row| row.to_le_bytes()).collect();
    let values = rig.upload(&numbers, &rig.stream).as_view().clone();
    let extent = ExtentInput {
        rows: ExtentRows::Known(distinct.len() as u64),
        columns: vec![Some(ColumnInput { values, validity: None, base: 0 })],
    };
    let device_keys = all.device_keys[..groups].to_vec();
    let some = Rows { keys: all.keys.clone(), order: distinct.clone(), device_keys, reached: all.reached, extent };
    let found = some.run(rig, 2, |output| {
        clicks::after(images, some.sorted(), output, &rig.stream).unwrap();
    });
    let (mut places, mut counts) = (vec![], vec![]);
    for (place, row) in distinct.iter().enumerate() {
        let later = distinct[place + 1..].iter().take_while(|later| some.same(groups, **later as usize, *row as usize));
        let count = later.count() as u32;
        if count > 0 {
            places.push(place as u32);
            counts.push(count);
        }
    }
    assert_eq!(found, [places, counts]);
}

#[test]
fn pairs_are_counted_in_groups_of_any_size() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in LENGTHS {
        for shape in 0..4 {
            check_pairs(&rig, &images, vec![integers(Physical::I64, (0..rows).map(|row| key_of(shape, row)))], rows);
        }
    }
    rig.assert_clean();
}

fn check_before(rig: &Rig, images: &Images, key: Key, rows: usize, near: Near, null_times: bool) {
    let valid = |salt: u64, of: u64| (0..rows).map(|row| !scrambled(row, salt).is_multiple_of(of)).collect();
    let time = Key {
        valid: null_times.then(|| valid(11, 6)),
        nulls_first: true,
        ..integers(Physical::I32, (0..rows).map(|row| (scrambled(row, 12) % 3_000) as i128))
    };
    let bits = (0..rows).map(|row| scrambled(row, 13).is_multiple_of(4)).collect();
    let anchor = Key { valid: Some(valid(14, 7)), ..Key::new(Values::Bits(bits)) };
    let timed = near.within.is_some();
    let keys = if timed { vec![key, time, anchor] } else { vec![key, anchor] };
    let all = Rows::new(rig, keys, 1, rows);
    let found = all.run(rig, 2, |output| {
        clicks::before(images, all.sorted(), near, output, &rig.stream).unwrap();
    });
    let is_valid = |key: &Key, row: u32| key.valid.as_ref().is_none_or(|valid| valid[row as usize]);
    let is_anchor = |row: u32| {
        let anchor = all.keys.last().expect("there are keys");
        matches!(&anchor.values, Values::Bits(bits) if bits[row as usize]) && is_valid(anchor, row)
    };
    let is_near = |row: u32, earlier: u32| {
        let Some(within) = near.within else { return true };
        let Values::Integers(_, times) = &all.keys[1].values else { panic!("times are integers") };
        let distance = times[row as usize] - times[earlier as usize];
        is_valid(&all.keys[1], row) && is_valid(&all.keys[1], earlier) && distance <= i128::from(within)
    };
    let (mut places, mut counts) = (vec![], vec![]);
    for (place, row) in all.order.iter().enumerate().filter(|(_, row)| is_anchor(**row)) {
        let earlier = all.order[..place].iter().rev().take(near.most as usize);
        let count = earlier.take_while(|e| all.same(1, **e as usize, *row as usize) && is_near(*row, **e)).count();
        if count > 0 {
            places.push(place as u32);
            counts.push(count as u32);
        }
    }
    assert_eq!(found, [places, counts], "{near:?} of {rows} rows");
}

#[test]
fn earlier_rows_are_counted_back_from_each_anchor() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for (index, rows) in LENGTHS.into_iter().enumerate() {
        for shape in 0..4 {
            let most = [1, 5, 1000, u32::MAX][(index + shape) % 4];
            let within = [None, Some(0), Some(40), Some(u64::MAX)][index % 4];
            let key = integers(Physical::I64, (0..rows).map(|row| key_of(shape, row)));
            check_before(&rig, &images, key, rows, Near { most, within }, shape % 2 == 0);
        }
    }
    rig.assert_clean();
}

#[test]
fn many_schedules_give_the_same() {
    for seed in 1..=12 {
        let rig = Rig::seeded(seed);
        let images = Images::new(&rig.device);
        check_many(&rig, 6 * TILE + 3);
        let key = integers(Physical::I16, (0..5 * TILE).map(|row| key_of(2, row)));
        check_before(&rig, &images, key, 5 * TILE, Near { most: 3, within: Some(90) }, true);
        rig.assert_clean();
    }
}

#[test]
fn too_many_keys_and_short_outputs_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let key = integers(Physical::I64, 0..4);
    let many = Rows::new(&rig, vec![key.clone(); tune::SORT_FEW_KEYS as usize + 1], 0, 4);
    let output = DeviceBuffer::new(clicks::layout(2, 4).bytes, &rig.stream, &rig.pool).unwrap();
    let refused = clicks::sessions(&images, many.sorted(), 1, output.as_view(), &rig.stream).unwrap_err().to_string();
    assert!(refused.contains("17 keys, where there may be 2 to 16"), "{refused}");
    let none = Rows::new(&rig, vec![key.clone()], 0, 4);
    let refused = clicks::sessions(&images, none.sorted(), 1, output.as_view(), &rig.stream).unwrap_err().to_string();
    assert!(refused.contains("1 keys"), "{refused}");
    let short = output.view(0..256).unwrap();
    let rows = Rows::new(&rig, vec![key.clone(), key], 0, 4);
    let refused = clicks::sessions(&images, rows.sorted(), 1, &short, &rig.stream).unwrap_err().to_string();
    assert!(refused.contains("the output has 256 bytes"), "{refused}");
}
