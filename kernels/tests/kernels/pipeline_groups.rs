//! Grouped aggregates: each regime against a map in plain Rust, with NULL keys, floats, growth, parts, and streams that
//! share a table.

use std::collections::BTreeMap;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::layout::KeyPart;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, Input};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::{DeviceBuffer, Stream};

use super::pipeline_rig::*;

/// Groups by `keys`; sum, count and bounds of the last column, an I64.
pub fn grouped(columns: Vec<Column>, keys: u32, regime: Option<Regime>) -> Case {
    let last = columns.len() as u32 - 1;
    let mut case = Case::new(columns);
    let x = case.column(last);
    let keys: Vec<u32> = (0..keys).collect();
    case.group(&keys, regime, |_| {
        vec![all(Aggregate::CountStar), all(Aggregate::Sum(x)), all(Aggregate::Min(x)), all(Aggregate::Max(x))]
    })
}

/// The expected groups, in plain Rust.
pub fn expected(columns: &[Column], keys: usize) -> Vec<Vec<Cell>> {
    let mut groups: BTreeMap<Vec<Cell>, (i128, Vec<i128>)> = BTreeMap::new();
    for row in 0..columns[0].cells.len() {
        let key = columns[..keys].iter().map(|column| canonical(column.cells[row])).collect();
        let group = groups.entry(key).or_default();
        group.0 += 1;
        if let Cell::Int(value) = columns[columns.len() - 1].cells[row] {
            group.1.push(value);
        }
    }
    let rows = groups.into_iter().map(|(mut key, (rows, values))| {
        let some = |value: Option<i128>| value.map_or(Cell::Null, Cell::Int);
        key.push(Cell::Int(rows));
        key.push(some(
            (!values.is_empty()).then(|| values.iter().fold(0i64, |s, v| s.wrapping_add(*v as i64)) as i128),
        ));
        key.push(some(values.iter().min().copied()));
        key.push(some(values.iter().max().copied()));
        key
    });
    rows.collect()
}

/// −0.0 becomes 0.0; NaNs keep their bits.
fn canonical(cell: Cell) -> Cell {
    match cell {
        Cell::F64(bits) if f64::from_bits(bits) == 0.0 => 0.0f64.into(),
        Cell::F32(bits) if f32::from_bits(bits) == 0.0 => 0.0f32.into(),
        other => other,
    }
}

fn values(rows: usize, nulls: bool, random: &mut Random) -> Column {
    let cells = (0..rows).map(|_| (!nulls || random.below(3) > 0).then(|| random.next() as i64));
    let column = column(Repr::I64, cells.collect::<Vec<_>>());
    if nulls { column.nullable() } else { column }
}

/// Two keys with few values: a nullable code and a date far from 0.
fn small_keys(rows: usize, random: &mut Random, spread: u64) -> Vec<Column> {
    let codes = (0..rows).map(|_| (random.below(7) > 0).then(|| random.below(spread) as u32)).collect::<Vec<_>>();
    let dates = (0..rows).map(|_| 19_000 - random.below(4) as i32).collect::<Vec<_>>();
    vec![
        column(Repr::U32, codes).nullable().ranged(0, spread as i128 - 1),
        column(Repr::I32, dates).ranged(18_997, 19_000),
        values(rows, true, random),
    ]
}

#[test]
fn every_regime_gives_the_same_groups() {
    let rig = Rig::new();
    for rows in [0, 1, 31, 33, 127, 129, 3000] {
        for regime in [Regime::Private, Regime::Block, Regime::Direct, Regime::Hash] {
            let columns = small_keys(rows, &mut Random(rows as u64), 3);
            let expected = expected(&columns, 2);
            let given = rig.aggregate(&grouped(columns, 2, Some(regime)));
            assert_eq!(given, expected, "{regime:?}, {rows} rows");
        }
    }
}

#[test]
fn regime_follows_from_ranges() {
    let rig = Rig::new();
    let regime = |spread: u64| {
        let case = grouped(small_keys(10, &mut Random(1), spread), 2, None);
        rig.pipeline(&case.spec).regime()
    };
    assert_eq!(regime(2), Some(Regime::Private));
    assert_eq!(regime(1000), Some(Regime::Direct));
    assert_eq!(regime(1 << 30), Some(Regime::Hash));
}

#[test]
fn several_extents_and_launches_share_the_groups() {
    let rig = Rig::new();
    let extents = [700, 0, 1, 1500, 99];
    for regime in [Regime::Private, Regime::Block, Regime::Direct, Regime::Hash] {
        let columns = small_keys(2300, &mut Random(6), 3);
        let expected = expected(&columns, 2);
        assert_eq!(rig.aggregate(&grouped(columns.clone(), 2, Some(regime)).fed(&extents)), expected, "{regime:?}");
        assert_eq!(rig.aggregate(&grouped(columns, 2, Some(regime)).many(&extents)), expected, "{regime:?}");
    }
}

#[test]
fn keys_of_every_kind_are_groups() {
    let rig = Rig::new();
    let rows = 400;
    let mut random = Random(3);
    let mut pick = |list: Vec<Cell>| (0..rows).map(|_| list[random.below(list.len() as u64) as usize]).collect();
    let kinds: Vec<(Repr, Vec<Cell>)> = vec![
        (Repr::Bool, cells([Some(true), Some(false), None])),
        (Repr::I8, cells([Some(i8::MIN), Some(i8::MAX), None, Some(0)])),
        (Repr::U16, cells([0u16, u16::MAX, 5])),
        (Repr::I64, cells([Some(i64::MIN), Some(i64::MAX), Some(0), Some(-1), None])),
        (Repr::U64, cells([0u64, u64::MAX, 1 << 63])),
        (Repr::I128, cells([Some(i128::MIN), Some(i128::MAX), Some(0), Some(1 << 64), None])),
        (Repr::F64, cells([Some(f64::NAN), Some(-f64::NAN), Some(0.0), Some(-0.0), Some(f64::INFINITY), None])),
        (Repr::F32, cells([f32::NAN, f32::from_bits(0xffc0_1234), 0.0, -0.0, 1.5])),
    ];
    for (repr, list) in kinds {
        let ty = Ty::new(repr).nullable(list.contains(&Cell::Null));
        let keys = stored(Physical::of(ty), ty, None, pick(list));
        let columns = vec![keys, values(rows, false, &mut Random(9))];
        let expected = expected(&columns, 1);
        assert_eq!(rig.aggregate(&grouped(columns, 1, Some(Regime::Hash))), expected, "{repr:?}");
    }
}

#[test]
fn narrow_ranges_of_wide_types_address_a_table() {
    let rig = Rig::new();
    let rows = 500;
    for repr in [Repr::I8, Repr::I64, Repr::I128, Repr::U64, Repr::Bool] {
        let base: i128 = if repr == Repr::U64 {
            1 << 63
        } else if repr == Repr::I8 {
            -128
        } else {
            -(1 << 40)
        };
        let cell = |row: usize| match (row % 11, repr) {
            (0, _) => Cell::Null,
            (n, Repr::Bool) => Cell::Bool(n % 2 == 0),
            (n, _) => Cell::Int(base + n as i128),
        };
        let mut ty = Ty::new(repr).nullable(true);
        if repr != Repr::Bool {
            ty = ty.within(base + 1, base + 10);
        }
        let keys = stored(Physical::of(ty), ty, None, (0..rows).map(cell).collect());
        let columns = vec![keys, values(rows, true, &mut Random(2))];
        let expected = expected(&columns, 1);
        for regime in [Regime::Private, Regime::Direct] {
            assert_eq!(rig.aggregate(&grouped(columns.clone(), 1, Some(regime))), expected, "{repr:?} {regime:?}");
        }
    }
}

#[test]
fn keys_beyond_64_bits_are_hashed_however_near_to_each_other() {
    let rig = Rig::new();
    let keys = column(Repr::I128, (0..50).map(|row| i128::MIN + row % 3)).ranged(i128::MIN, i128::MIN + 2);
    let columns = vec![keys, values(50, false, &mut Random(4))];
    let expected = expected(&columns, 1);
    let case = grouped(columns, 1, None);
    assert_eq!(rig.pipeline(&case.spec).regime(), Some(Regime::Hash));
    assert_eq!(rig.aggregate(&case), expected);
}

#[test]
fn bins_may_take_more_shared_memory_than_a_launch_has_by_default() {
    let rig = Rig::new();
    let rows = 2000;
    let keys = column(Repr::I32, (0..rows).map(|row| row as i32 % 18)).ranged(0, 17);
    let columns = vec![keys, values(rows, false, &mut Random(8))];
    let expected = expected(&columns, 1);
    // 18 groups of four 8-byte words for each of 128 threads are 72 KiB.
    let case = grouped(columns, 1, None);
    assert_eq!(rig.pipeline(&case.spec).regime(), Some(Regime::Private));
    assert_eq!(rig.aggregate(&case), expected);
}

/// `count(*)` reads no column.
#[test]
fn rows_are_counted_without_columns() {
    let rig = Rig::new();
    let case = Case::new(vec![]).group(&[], None, |_| vec![all(Aggregate::CountStar)]);
    let pipeline = rig.pipeline(&case.spec);
    let layout = pipeline.state_layout(0).unwrap();
    let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    for rows in [0, 1, 12_345] {
        let extents = [ExtentInput { rows: ExtentRows::Known(rows), columns: vec![] }];
        let input = Input { extents: &extents, descriptors: None, literals: &[], lookups: &[], ..Input::default() };
        pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
    }
    let out_layout = pipeline.emit_layout(&layout, 1).unwrap();
    let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.emit(&state, &layout, &output, &out_layout, &rig.stream).unwrap();
    assert_eq!(rig.read(&output, &out_layout), [cells([12_346i64])]);
    rig.assert_clean();
}

#[test]
fn a_regime_that_the_keys_do_not_allow_is_refused() {
    let rig = Rig::new();
    let wide = || vec![column(Repr::I64, [1i64, 2]), column(Repr::I64, [1i64, 2])];
    let refused = |case: Case| rig.cache.pipeline(&case.spec).unwrap_err().to_string();
    for regime in [Regime::Private, Regime::Direct, Regime::Scalar] {
        let error = refused(grouped(wide(), 1, Some(regime)));
        assert!(error.contains("the keys, or their ranges, do not allow it"), "{error}");
    }
    let error = refused(grouped(wide(), 0, Some(Regime::Hash)));
    assert!(error.contains("regime Hash"), "{error}");
}

#[test]
fn a_key_outside_its_promised_range_is_an_error() {
    let rig = Rig::new();
    for regime in [Regime::Private, Regime::Direct] {
        let columns = vec![column(Repr::I32, [1, 2, 9, 1]).ranged(1, 2), column(Repr::I64, [1i64, 2, 3, 4])];
        let case = grouped(columns.clone(), 1, Some(regime));
        let pipeline = rig.pipeline(&case.spec);
        let layout = pipeline.state_layout(4).unwrap();
        let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
        let extents = [rig.extent(&columns, &rig.stream)];
        let input = Input { extents: &extents, descriptors: None, literals: &[], lookups: &[], ..Input::default() };
        pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
        let out_layout = pipeline.emit_layout(&layout, 4).unwrap();
        let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
        pipeline.emit(&state, &layout, &output, &out_layout, &rig.stream).unwrap();
        let (error, _) = rig.read_with_error(&output, &out_layout);
        assert_eq!(ErrorCode::from_word(error).map(|(code, _)| code), Some(ErrorCode::KeyRange));
        rig.assert_clean();
    }
}

#[test]
fn wide_bounds_of_groups_are_exact() {
    let rig = Rig::new();
    let rows = 600;
    let mut random = Random(12);
    let wide = (0..rows).map(|_| {
        let bits = (random.next() as u128) << 64 | random.next() as u128;
        (!bits.is_multiple_of(5)).then_some(bits as i128)
    });
    let wide = column(Repr::I128, wide.collect::<Vec<_>>()).nullable();
    let keys = column(Repr::I32, (0..rows).map(|row| row as i32 % 4)).ranged(0, 3);
    for regime in [Regime::Private, Regime::Direct, Regime::Hash] {
        let mut case = Case::new(vec![keys.clone(), wide.clone()]);
        let x = case.column(1);
        let case = case.group(&[0], Some(regime), |_| {
            vec![all(Aggregate::Sum(x)), all(Aggregate::Min(x)), all(Aggregate::Max(x))]
        });
        let expected: Vec<Vec<Cell>> = (0..4)
            .map(|key| {
                let values: Vec<i128> = (0..rows)
                    .filter(|row| row % 4 == key)
                    .filter_map(|row| match wide.cells[row] {
                        Cell::Int(value) => Some(value),
                        _ => None,
                    })
                    .collect();
                let sum = values.iter().fold(0i128, |sum, value| sum.wrapping_add(*value));
                cells([key as i128, sum, *values.iter().min().unwrap(), *values.iter().max().unwrap()])
            })
            .collect();
        assert_eq!(rig.aggregate(&case), expected, "{regime:?}");
    }
}

/// Float sums per group, for values whose addition is exact.
#[test]
fn floats_of_groups_add_up() {
    let rig = Rig::new();
    let rows = 1000;
    let keys = column(Repr::I32, (0..rows).map(|row| row % 3)).ranged(0, 2);
    let x = column(Repr::F64, (0..rows).map(|row| (row % 4 != 0).then_some(row as f64 / 8.0))).nullable();
    for regime in [Regime::Private, Regime::Block, Regime::Direct, Regime::Hash] {
        let mut case = Case::new(vec![keys.clone(), x.clone()]);
        let node = case.column(1);
        let case = case.group(&[0], Some(regime), |_| vec![all(Aggregate::Sum(node)), all(Aggregate::Count(node))]);
        let expected: Vec<Vec<Cell>> = (0..3)
            .map(|key| {
                let chosen = (0..rows).filter(|row| row % 3 == key && row % 4 != 0);
                let (sum, count) = chosen.fold((0.0, 0i64), |(sum, n), row| (sum + row as f64 / 8.0, n + 1));
                vec![key.into(), sum.into(), count.into()]
            })
            .collect();
        assert_eq!(rig.aggregate(&case), expected, "{regime:?}");
    }
}

/// Runs a hash aggregation whose table starts small and grows before a launch could overfill it; feeds alternate
/// between streams.
pub fn growing(rig: &Rig, case: &Case, feeds: &[Vec<Column>], streams: &[Stream]) -> (Vec<Vec<Cell>>, usize) {
    let pipeline = rig.pipeline(&case.spec);
    let mut layout = pipeline.state_layout(0).unwrap();
    let mut state = DeviceBuffer::zeroed(layout.bytes, &streams[0], &rig.pool).unwrap();
    let (mut bound, mut grown) = (0, 0);
    for (i, columns) in feeds.iter().enumerate() {
        let stream = &streams[i % streams.len()];
        let extent: ExtentInput = rig.extent(columns, stream);
        bound += extent.rows.upper_bound();
        if bound > layout.max_groups() {
            let larger = pipeline.state_layout(bound).unwrap();
            let next = DeviceBuffer::zeroed(larger.bytes, stream, &rig.pool).unwrap();
            pipeline.rehash(&state, &layout, &next, &larger, stream).unwrap();
            (state, layout) = (next, larger);
            grown += 1;
        }
        let extents = [extent];
        let input =
            Input { extents: &extents, descriptors: None, literals: &case.literals, lookups: &[], ..Input::default() };
        pipeline.accumulate(input, &state, &layout, stream).unwrap();
    }
    let out_layout = pipeline.emit_layout(&layout, bound).unwrap();
    let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.emit(&state, &layout, &output, &out_layout, &rig.stream).unwrap();
    let rows = sorted_rows(&rig.read(&output, &out_layout));
    rig.assert_clean();
    (rows, grown)
}

pub fn split(columns: &[Column], parts: &[usize]) -> Vec<Vec<Column>> {
    let mut from = 0;
    let mut list = Vec::new();
    for &rows in parts {
        let part = columns.iter().map(|c| Column { cells: c.cells[from..from + rows].to_vec(), ..c.clone() });
        list.push(part.collect());
        from += rows;
    }
    list
}

/// Many distinct keys of two columns, one nullable.
pub fn many_keys(rows: usize, seed: u64) -> Vec<Column> {
    let mut random = Random(seed);
    let a = (0..rows).map(|_| (random.below(10) > 0).then(|| random.below(rows as u64) as i64)).collect::<Vec<_>>();
    let b = (0..rows).map(|_| random.below(2) as i32).collect::<Vec<_>>();
    vec![column(Repr::I64, a).nullable(), column(Repr::I32, b), values(rows, true, &mut random)]
}

#[test]
fn a_full_table_grows_and_loses_nothing() {
    let rig = Rig::new();
    let columns = many_keys(4000, 5);
    let case = grouped(columns.clone(), 2, Some(Regime::Hash));
    let feeds = split(&columns, &[300, 500, 0, 1200, 2000]);
    let (rows, grown) = growing(&rig, &case, &feeds, std::slice::from_ref(&rig.stream));
    assert_eq!(rows, expected(&columns, 2));
    assert!(grown >= 2, "{grown}");
}

#[test]
fn two_streams_fill_one_table_under_a_hundred_seeds() {
    let columns = many_keys(600, 77);
    let case = grouped(columns.clone(), 2, Some(Regime::Hash));
    let expected = expected(&columns, 2);
    let feeds = split(&columns, &[150, 150, 300]);
    for seed in 0..100 {
        let rig = Rig::with(SimOptions { seed, multiprocessors: 2, ..SimOptions::default() });
        let streams = [Stream::new(&rig.device).unwrap(), Stream::new(&rig.device).unwrap()];
        let (rows, _) = growing(&rig, &case, &feeds, &streams);
        assert_eq!(rows, expected, "seed {seed}");
    }
}

#[test]
fn two_streams_share_dense_tables_too() {
    for regime in [Regime::Private, Regime::Direct] {
        for seed in 0..10 {
            let rig = Rig::seeded(seed);
            let columns = small_keys(900, &mut Random(seed), 3);
            let case = grouped(columns.clone(), 2, Some(regime));
            let streams = [Stream::new(&rig.device).unwrap(), Stream::new(&rig.device).unwrap()];
            let (rows, _) = growing(&rig, &case, &split(&columns, &[400, 200, 300]), &streams);
            assert_eq!(rows, expected(&columns, 2), "{regime:?}, seed {seed}");
        }
    }
}

#[test]
fn a_table_without_room_says_so_and_ends() {
    let rig = Rig::new();
    let columns = vec![column(Repr::I64, 0..1040i64), column(Repr::I64, 0..1040i64)];
    let case = grouped(columns.clone(), 1, Some(Regime::Hash));
    let pipeline = rig.pipeline(&case.spec);
    let layout = pipeline.state_layout(1).unwrap();
    assert!(layout.records < 1040);
    let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let extents = [rig.extent(&columns, &rig.stream)];
    let input = Input { extents: &extents, descriptors: None, literals: &[], lookups: &[], ..Input::default() };
    pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
    let out_layout = pipeline.emit_layout(&layout, 1040).unwrap();
    let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.emit(&state, &layout, &output, &out_layout, &rig.stream).unwrap();
    let (error, _) = rig.read_with_error(&output, &out_layout);
    assert_eq!(ErrorCode::from_word(error).map(|(code, _)| code), Some(ErrorCode::TableFull));
    rig.assert_clean();
}

/// Groups of one part of the keys, from tables that grow.
fn of_part(rig: &Rig, case: &Case, feeds: &[Vec<Column>], part: KeyPart) -> Vec<Vec<Cell>> {
    let pipeline = rig.pipeline(&case.spec);
    let mut layout = pipeline.state_layout(0).unwrap().of_part(part);
    let mut state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let mut bound = 0;
    for columns in feeds {
        let extent = rig.extent(columns, &rig.stream);
        bound += extent.rows.upper_bound();
        if bound > layout.max_groups() {
            let larger = pipeline.state_layout(bound).unwrap().of_part(part);
            let next = DeviceBuffer::zeroed(larger.bytes, &rig.stream, &rig.pool).unwrap();
            pipeline.rehash(&state, &layout, &next, &larger, &rig.stream).unwrap();
            (state, layout) = (next, larger);
        }
        let extents = [extent];
        let input =
            Input { extents: &extents, descriptors: None, literals: &case.literals, lookups: &[], ..Input::default() };
        pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
    }
    let out_layout = pipeline.emit_layout(&layout, bound).unwrap();
    let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.emit(&state, &layout, &output, &out_layout, &rig.stream).unwrap();
    sorted_rows(&rig.read(&output, &out_layout))
}

#[test]
fn parts_of_the_keys_are_all_groups_each_once() {
    let rig = Rig::new();
    let columns = many_keys(3000, 21);
    let case = grouped(columns.clone(), 2, Some(Regime::Hash));
    let feeds = split(&columns, &[400, 1100, 1500]);
    let all = expected(&columns, 2);
    for parts in [1, 2, 8, 256] {
        let mut together = Vec::new();
        let mut largest = 0;
        // Of many parts, only a few are tested.
        let some: Vec<u32> = if parts > 8 { vec![0, 100, 255] } else { (0..parts).collect() };
        for index in &some {
            let groups = of_part(&rig, &case, &feeds, KeyPart::new(*index, parts).expect("a part"));
            largest = largest.max(groups.len());
            together.extend(groups);
        }
        together.sort();
        match some.len() == parts as usize {
            true => assert_eq!(together, all, "{parts} parts"),
            false => assert!(together.iter().all(|group| all.contains(group)) && !together.is_empty()),
        }
        together.dedup();
        // A good hash: no part has more than twice its share, except for small numbers.
        assert!(largest <= all.len() * 2 / parts as usize + 20, "{largest} of {} groups in one of {parts}", all.len());
    }
    rig.assert_clean();
}

#[test]
fn a_rehash_leaves_groups_of_other_parts_behind() {
    let rig = Rig::new();
    let columns = many_keys(600, 33);
    let case = grouped(columns.clone(), 2, Some(Regime::Hash));
    let pipeline = rig.pipeline(&case.spec);
    let layout = pipeline.state_layout(600).unwrap();
    let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let extents = [rig.extent(&columns, &rig.stream)];
    let input =
        Input { extents: &extents, descriptors: None, literals: &case.literals, lookups: &[], ..Input::default() };
    pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
    let mut together = Vec::new();
    for index in 0..4 {
        let part = layout.clone().of_part(KeyPart::new(index, 4).expect("a part"));
        let next = DeviceBuffer::zeroed(part.bytes, &rig.stream, &rig.pool).unwrap();
        pipeline.rehash(&state, &layout, &next, &part, &rig.stream).unwrap();
        let out_layout = pipeline.emit_layout(&part, 600).unwrap();
        let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).unwrap();
        pipeline.emit(&next, &part, &output, &out_layout, &rig.stream).unwrap();
        together.extend(sorted_rows(&rig.read(&output, &out_layout)));
    }
    together.sort();
    assert_eq!(together, expected(&columns, 2));
    rig.assert_clean();
}

#[test]
fn parts_are_powers_of_two_and_only_for_hash_tables() {
    assert_eq!(KeyPart::new(0, 1), Some(KeyPart::ALL));
    for (index, parts) in [(0, 0), (0, 3), (2, 2), (0, 512), (256, 256)] {
        assert_eq!(KeyPart::new(index, parts), None, "{index} of {parts}");
    }
    let rig = Rig::new();
    let columns = small_keys(64, &mut Random(3), 3);
    let case = grouped(columns.clone(), 2, Some(Regime::Direct));
    let pipeline = rig.pipeline(&case.spec);
    let layout = pipeline.state_layout(64).unwrap().of_part(KeyPart::new(1, 2).expect("a part"));
    let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let extents = [rig.extent(&columns, &rig.stream)];
    let input =
        Input { extents: &extents, descriptors: None, literals: &case.literals, lookups: &[], ..Input::default() };
    let refused = pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap_err();
    assert!(refused.to_string().contains("only a hash table"), "{refused}");
}

#[test]
fn copies_of_a_small_table_are_one() {
    let rig = Rig::new();
    let mut random = Random(11);
    let rows = 5000;
    let keys: Vec<i32> = (0..rows).map(|_| random.below(300) as i32).collect();
    let wide: Vec<i128> =
        (0..rows).map(|row| (i128::from(random.next()) << 40) * if row % 2 == 0 { 1 } else { -1 }).collect();
    let float: Vec<f64> = (0..rows).map(|row| f64::from(row) / 4.0).collect();
    let make = |hint: Option<u64>| {
        let mut case = Case::new(vec![
            column(Repr::I32, keys.clone()).ranged(0, 299),
            column(Repr::I128, wide.clone()),
            column(Repr::F64, float.clone()),
        ]);
        let (wide, float) = (case.column(1), case.column(2));
        let mut case = case.group(&[0], Some(Regime::Direct), |_| {
            vec![
                all(Aggregate::CountStar),
                all(Aggregate::Sum(wide)),
                all(Aggregate::Min(wide)),
                all(Aggregate::Max(float)),
                all(Aggregate::Sum(float)),
                all(Aggregate::BitXor(case_key())),
            ]
        });
        let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
        aggregate.rows_hint = hint;
        case
    };
    let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    keys.iter().enumerate().for_each(|(row, key)| groups.entry(*key).or_default().push(row));
    let expected: Vec<Vec<Cell>> = groups
        .into_iter()
        .map(|(key, rows)| {
            let own = || rows.iter().map(|&row| wide[row]);
            vec![
                key.into(),
                (rows.len() as i64).into(),
                own().sum::<i128>().into(),
                own().min().into(),
                rows.iter().map(|&row| float[row]).fold(0.0, f64::max).into(),
                // Quarters of small numbers add exactly.
                rows.iter().map(|&row| float[row]).sum::<f64>().into(),
                (if rows.len() % 2 == 1 { key } else { 0 }).into(),
            ]
        })
        .collect();
    // Enough rows for copies, and too few.
    for (hint, copies) in [(None, 32), (Some(300 * 64 * 5), 4), (Some(100), 1)] {
        let case = make(hint);
        assert_eq!(rig.pipeline(&case.spec).state_layout(300).unwrap().copies, copies);
        assert_eq!(rig.aggregate(&case.fed(&[3000, 2000])), expected, "{hint:?}");
    }
}

/// Node of column 0, the first node that [`Case::new`] creates.
fn case_key() -> NodeId {
    NodeId(0)
}
