//! Bitwise aggregates, sums with overflow checks at 128 bits, and deviations from anchors: each regime against plain
//! Rust.

use std::collections::BTreeMap;

use millpond_kernels::codegen::ir::*;

use super::pipeline_rig::*;

/// No keys, then few groups in every kind of table.
const REGIMES: [(u32, Option<Regime>); 4] =
    [(0, None), (1, Some(Regime::Private)), (1, Some(Regime::Direct)), (1, Some(Regime::Hash))];

fn keys(rows: usize) -> Column {
    column(Repr::I32, (0..rows as i32).map(|row| row % 3)).ranged(0, 2)
}

/// The rows of each group, by key; without keys one group of all rows.
fn groups(rows: usize, keys: u32) -> BTreeMap<i32, Vec<usize>> {
    let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    if keys == 0 {
        groups.insert(0, (0..rows).collect());
    } else {
        (0..rows).for_each(|row| groups.entry(row as i32 % 3).or_default().push(row));
    }
    groups
}

#[test]
fn bits_are_put_together_in_every_regime() {
    let rig = Rig::new();
    for (repr, signed) in [(Repr::I8, true), (Repr::U16, false), (Repr::I64, true), (Repr::U64, false)] {
        for (num_keys, regime) in REGIMES {
            for rows in [1, 33, 700] {
                let mut random = Random(rows as u64);
                let bounds = repr.bounds().unwrap();
                let values: Vec<Option<i128>> = (0..rows)
                    .map(|row| {
                        let bits = random.next();
                        let value = if signed { bits as i64 as i128 } else { bits as i128 };
                        let value = (value % (bounds.high + 1)).clamp(bounds.low, bounds.high);
                        (row % 5 != 1).then_some(value)
                    })
                    .collect();
                let values_column = column(repr, values.iter().copied()).nullable();
                let mut case = Case::new(vec![keys(rows), values_column]);
                let x = case.column(1);
                let list: Vec<u32> = (0..num_keys).collect();
                let case = case.group(&list, regime, |_| {
                    vec![all(Aggregate::BitAnd(x)), all(Aggregate::BitOr(x)), all(Aggregate::BitXor(x))]
                });
                let expected: Vec<Vec<Cell>> = groups(rows, num_keys)
                    .into_iter()
                    .map(|(key, rows)| {
                        let own: Vec<i128> = rows.iter().filter_map(|&row| values[row]).collect();
                        let fold = |f: fn(i128, i128) -> i128| Cell::from(own.iter().copied().reduce(f));
                        let results = [fold(|a, b| a & b), fold(|a, b| a | b), fold(|a, b| a ^ b)];
                        (num_keys > 0).then_some(Cell::from(key)).into_iter().chain(results).collect()
                    })
                    .collect();
                assert_eq!(rig.aggregate(&case), expected, "{repr:?} {regime:?} {rows} rows");
            }
        }
    }
}

#[test]
fn deviations_from_an_anchor_give_moments_without_cancellation() {
    let rig = Rig::new();
    for (num_keys, regime) in REGIMES {
        for rows in [1usize, 32, 900] {
            let mut random = Random(rows as u64 + 7);
            // A mean of 10^9 with a spread of 1: squares of the values themselves would keep only two digits.
            let mut spread = |every: usize, row: usize| {
                let unit = random.below(1 << 20) as f64 / (1 << 20) as f64;
                (row % every != 3).then_some(1e9 + unit)
            };
            let x: Vec<Option<f64>> = (0..rows).map(|row| spread(7, row)).collect();
            let y: Vec<Option<f64>> = (0..rows).map(|row| spread(11, row)).collect();
            let columns = vec![
                keys(rows),
                column(Repr::F64, x.iter().copied()).nullable(),
                column(Repr::F64, y.iter().copied()).nullable(),
            ];
            let mut case = Case::new(columns);
            let (a, b) = (case.column(1), case.column(2));
            let both = case.graph().arithmetic(Arithmetic::Add, a, b, Overflow::Wrap).unwrap();
            let list: Vec<u32> = (0..num_keys).collect();
            let case = case.group(&list, regime, |_| {
                vec![
                    all(Aggregate::Count(both)),
                    all(Aggregate::Anchor { of: a, among: both }),
                    all(Aggregate::Deviation { of: a, among: both }),
                    all(Aggregate::Deviation { of: b, among: both }),
                    all(Aggregate::CoDeviation { left: a, right: a, among: both }),
                    all(Aggregate::CoDeviation { left: a, right: b, among: both }),
                ]
            });
            let actual = rig.aggregate(&case);
            let groups = groups(rows, num_keys);
            assert_eq!(actual.len(), groups.len());
            for (row, (_, rows)) in actual.iter().zip(groups) {
                let pairs: Vec<(f64, f64)> = rows.iter().filter_map(|&row| Some((x[row]?, y[row]?))).collect();
                let row = &row[num_keys as usize..];
                assert_eq!(row[0], Cell::Int(pairs.len() as i128));
                let float = |at: usize| match row[at] {
                    Cell::F64(bits) => f64::from_bits(bits),
                    _ => f64::NAN,
                };
                if pairs.is_empty() {
                    assert!(row[1..].iter().all(|cell| *cell == Cell::Null));
                    continue;
                }
                let n = pairs.len() as f64;
                let offset =
                    |values: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(|p| values(p) - 1e9).sum::<f64>() / n;
                let (mean_x, mean_y) = (offset(&|p| p.0), offset(&|p| p.1));
                let sxx: f64 = pairs.iter().map(|p| (p.0 - 1e9 - mean_x).powi(2)).sum();
                let sxy: f64 = pairs.iter().map(|p| (p.0 - 1e9 - mean_x) * (p.1 - 1e9 - mean_y)).sum();
                assert!(pairs.iter().any(|p| p.0 == float(1)), "the anchor is one of the values");
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * n;
                assert!(near(float(1) - 1e9 + float(2) / n, mean_x), "{regime:?}");
                assert!(near(float(4) - float(2) * float(2) / n, sxx), "{regime:?}");
                assert!(near(float(5) - float(2) * float(3) / n, sxy), "{regime:?}");
            }
        }
    }
}

#[test]
fn a_checked_sum_notices_when_it_leaves_128_bits() {
    let rig = Rig::new();
    let sum = |values: Vec<i128>, checked: bool| {
        let mut case = Case::new(vec![column(Repr::I128, values)]);
        let x = case.column(0);
        let aggregate = if checked { Aggregate::SumChecked(x) } else { Aggregate::Sum(x) };
        case.group(&[], None, |_| vec![all(aggregate)])
    };
    let fits: [&[i128]; 4] = [
        &[i128::MAX, -1, 1],
        &[i128::MIN, 1, -1],
        &[i128::MAX, i128::MAX, i128::MIN, i128::MIN],
        &[u64::MAX as i128, u64::MAX as i128, -1],
    ];
    for values in fits {
        let total = values.iter().fold(0i128, |sum, value| sum.wrapping_add(*value));
        assert_eq!(rig.aggregate(&sum(values.to_vec(), true)), [[Cell::Int(total)]]);
    }
    for values in [[i128::MAX, 1], [i128::MIN, -1], [i128::MAX, i128::MAX], [i128::MIN, i128::MIN]] {
        let wrapped = values[0].wrapping_add(values[1]);
        assert_eq!(rig.aggregate(&sum(values.to_vec(), false)), [[Cell::Int(wrapped)]]);
        let error = rig.aggregate_error(&sum(values.to_vec(), true));
        assert_eq!(error.map(|(code, _)| code), Some(ErrorCode::Overflow), "{values:?}");
    }
}
