//! Ungrouped aggregates: exact sums at the edges, order of floats, NULL and FILTER.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::tune;

use super::pipeline_rig::*;

const LENGTHS: [usize; 8] = [0, 1, 31, 32, 33, 127, 129, 4000];

/// Sum, min, max and count of one column.
fn four(column: Column) -> Case {
    let mut case = Case::new(vec![column]);
    let node = case.column(0);
    case.group(&[], None, |_| {
        vec![
            all(Aggregate::Sum(node)),
            all(Aggregate::Min(node)),
            all(Aggregate::Max(node)),
            all(Aggregate::Count(node)),
            all(Aggregate::CountStar),
        ]
    })
}

/// Expected values in plain Rust: sums wrap at `bits`.
fn expected(cells: &[Cell], bits: u32) -> Vec<Cell> {
    let values: Vec<i128> = cells
        .iter()
        .filter_map(|cell| match cell {
            Cell::Int(value) => Some(*value),
            _ => None,
        })
        .collect();
    let sum = values.iter().fold(0i128, |sum, value| sum.wrapping_add(*value));
    let sum = match bits {
        128 => sum,
        64 => sum as i64 as i128,
        _ => sum as u64 as i128, // 65: unsigned
    };
    let some = |value: Option<i128>| value.map_or(Cell::Null, Cell::Int);
    vec![
        some((!values.is_empty()).then_some(sum)),
        some(values.iter().min().copied()),
        some(values.iter().max().copied()),
        Cell::Int(values.len() as i128),
        Cell::Int(cells.len() as i128),
    ]
}

fn integers(repr: Repr, range: Option<(i128, i128)>, rows: usize, nulls: fn(usize) -> bool, seed: u64) -> Column {
    let whole = repr.bounds().unwrap();
    let (low, high) = range.unwrap_or((whole.low, whole.high));
    let mut random = Random(seed);
    let cells = (0..rows).map(|row| {
        let bits = (random.next() as u128) << 64 | random.next() as u128;
        let span = (high as u128).wrapping_sub(low as u128);
        let value = match row % 3 {
            0 => low,
            1 => high,
            _ if span == u128::MAX => bits as i128,
            _ => low.wrapping_add((bits % (span + 1)) as i128),
        };
        if nulls(row) { Cell::Null } else { Cell::Int(value) }
    });
    let cells: Vec<Cell> = cells.collect();
    let mut ty = Ty::new(repr).nullable((0..rows.max(1)).any(nulls));
    if let Some((low, high)) = range {
        ty = ty.within(low, high);
    }
    stored(Physical::of(ty), ty, None, cells)
}

#[test]
fn integers_of_every_width() {
    let rig = Rig::new();
    let reprs = [
        (Repr::I8, 64),
        (Repr::I16, 64),
        (Repr::I32, 64),
        (Repr::I64, 64),
        (Repr::U8, 65),
        (Repr::U16, 65),
        (Repr::U32, 65),
        (Repr::U64, 65),
        (Repr::I128, 128),
    ];
    for (repr, bits) in reprs {
        for (i, nulls) in [|_| false, |row| row % 2 == 1, |_| true].into_iter().enumerate() {
            for rows in LENGTHS {
                let column = integers(repr, None, rows, nulls, rows as u64 + i as u64);
                let mut expected = expected(&column.cells, bits);
                // Without NULLs the two counts merge.
                expected.truncate(if column.spec.ty.nullable { 5 } else { 4 });
                assert_eq!(rig.aggregate(&four(column)), [expected], "{repr:?}, {rows} rows, nulls {i}");
            }
        }
    }
}

#[test]
fn decimal_sums_are_exact_in_every_split() {
    let rig = Rig::new();
    let ranges = [
        (-5000, 5000),
        (0, 10_494_950),
        (-(1 << 31), 1 << 31),
        (-(1 << 36), 1 << 36),
        (0, 1 << 37),
        (i64::MIN as i128, i64::MAX as i128),
        (i64::MIN as i128 - 1, i64::MAX as i128),
        (-(1 << 100), 1 << 100),
        (i128::MIN, i128::MAX),
    ];
    for range in ranges {
        let column = integers(Repr::I128, Some(range), 3000, |row| row % 7 == 3, 5);
        let expected = expected(&column.cells, 128);
        assert_eq!(rig.aggregate(&four(column)), [expected], "{range:?}");
    }
}

#[test]
fn extents_and_launches_add_up() {
    let rig = Rig::new();
    let extents = [0, 1, 1000, 33, 2000];
    let column = integers(Repr::I128, None, 3034, |row| row % 3 == 0, 8);
    let expected = expected(&column.cells, 128);
    assert_eq!(rig.aggregate(&four(column.clone()).many(&extents)), std::slice::from_ref(&expected));
    assert_eq!(rig.aggregate(&four(column).fed(&extents)), [expected]);
}

fn floats(values: &[f64]) -> Vec<Vec<Cell>> {
    let rig = Rig::new();
    rig.aggregate(&four(column(Repr::F64, values.iter().map(|value| Some(*value))).nullable()))
}

#[test]
fn floats_order_as_total_order_says() {
    let nan = f64::NAN;
    let given = floats(&[1.5, -2.5, 4.0]);
    assert_eq!(given, [vec![3.0.into(), (-2.5).into(), 4.0.into(), 3i64.into(), 3i64.into()]]);
    let given = floats(&[1.0, nan, -1.0]);
    assert_eq!(given[0][1..3], [(-1.0).into(), nan.into()]);
    let given = floats(&[0.0, -0.0]);
    assert_eq!(given[0][1..3], [(-0.0).into(), 0.0.into()]);
    let given = floats(&[f64::NEG_INFINITY, f64::MIN, f64::MAX, f64::INFINITY, f64::MIN_POSITIVE]);
    assert_eq!(given[0][1..3], [f64::NEG_INFINITY.into(), f64::INFINITY.into()]);
    let given = floats(&[-nan, f64::NEG_INFINITY]);
    assert_eq!(given[0][1..3], [(-nan).into(), f64::NEG_INFINITY.into()]);
}

#[test]
fn narrow_floats_sum_as_wide_ones() {
    let rig = Rig::new();
    let values = [1.0e38f32, 1.0e38, 1.0e38, 1.0e38, -0.5];
    let given = rig.aggregate(&four(column(Repr::F32, values)));
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let Cell::F64(bits) = given[0][0] else { panic!("{given:?}") };
    assert!((f64::from_bits(bits) - sum).abs() <= sum.abs() * 1e-15);
    assert_eq!(given[0][1..3], [(-0.5f32).into(), 1.0e38f32.into()]);
}

#[test]
fn booleans_have_a_least_and_a_greatest() {
    let rig = Rig::new();
    let case = |values: Vec<Option<bool>>| {
        let mut case = Case::new(vec![column(Repr::Bool, values).nullable()]);
        let node = case.column(0);
        rig.aggregate(&case.group(&[], None, |_| vec![all(Aggregate::Min(node)), all(Aggregate::Max(node))]))
    };
    assert_eq!(case(vec![Some(true), None, Some(true)]), [cells([true, true])]);
    assert_eq!(case(vec![Some(true), Some(false)]), [cells([false, true])]);
    assert_eq!(case(vec![None, None]), [vec![Cell::Null, Cell::Null]]);
}

#[test]
fn filter_of_an_aggregate_chooses_its_rows() {
    let rig = Rig::new();
    let rows = 1000;
    let value = column(Repr::I64, (0..rows).map(|row| (row % 10 != 0).then_some(row as i64))).nullable();
    let flag = column(Repr::Bool, (0..rows).map(|row| (row % 4 != 1).then_some(row % 3 == 0))).nullable();
    let mut case = Case::new(vec![value.clone(), flag.clone()]);
    let (x, filter) = (case.column(0), case.column(1));
    let filtered = |aggregate| Accumulator { aggregate, filter: Some(filter) };
    let case = case.group(&[], None, |_| {
        vec![
            filtered(Aggregate::Sum(x)),
            filtered(Aggregate::CountStar),
            filtered(Aggregate::Count(x)),
            all(Aggregate::Count(x)),
            filtered(Aggregate::Max(x)),
        ]
    });
    let chosen: Vec<Cell> = (0..rows)
        .filter(|&row| flag.cells[row as usize] == Cell::Bool(true))
        .map(|row| value.cells[row as usize])
        .collect();
    let chosen_four = expected(&chosen, 64);
    let all_four = expected(&value.cells, 64);
    let expected = vec![chosen_four[0], chosen_four[4], chosen_four[3], all_four[3], chosen_four[2]];
    assert_eq!(rig.aggregate(&case), [expected]);
}

#[test]
fn more_words_than_a_thread_keeps_are_added_row_by_row() {
    let rig = Rig::new();
    let columns: Vec<Column> = (0..15).map(|i| integers(Repr::I128, None, 500, |row| row % 5 == 0, i)).collect();
    let mut case = Case::new(columns.clone());
    let nodes: Vec<NodeId> = (0..15).map(|i| case.column(i)).collect();
    let case = case
        .group(&[], None, |_| nodes.iter().flat_map(|&n| [all(Aggregate::Sum(n)), all(Aggregate::Min(n))]).collect());
    const { assert!(15 * 6 > tune::REGISTER_WORDS) };
    let expected: Vec<Cell> = columns
        .iter()
        .flat_map(|column| {
            let four = expected(&column.cells, 128);
            [four[0], four[1]]
        })
        .collect();
    assert_eq!(rig.aggregate(&case), [expected]);
}

#[test]
fn equal_accumulators_merge() {
    let mut case = Case::new(vec![column(Repr::I64, [1, 2, 3])]);
    let x = case.column(0);
    let case = case.group(&[], None, |_| {
        vec![all(Aggregate::Sum(x)), all(Aggregate::Count(x)), all(Aggregate::CountStar), all(Aggregate::Sum(x))]
    });
    let SinkSpec::Aggregate(aggregate) = &case.spec.sink else { panic!() };
    assert_eq!(aggregate.accumulators.len(), 2);
    assert_eq!(Rig::new().aggregate(&case), [cells([6i64, 3])]);
}
