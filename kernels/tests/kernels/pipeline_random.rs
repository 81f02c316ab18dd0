//! Random pipelines against plain Rust: columns of any width, filters, keys, accumulators, extents; reproducible by
//! seed.

use std::collections::BTreeMap;

use millpond_kernels::codegen::ir::*;
use millpond_memory::driver::sim::SimOptions;

use super::pipeline_rig::*;

/// A random integer column that fits some stored width.
fn random_column(random: &mut Random, rows: usize) -> Column {
    let reprs = [Repr::I8, Repr::I16, Repr::I32, Repr::I64, Repr::U8, Repr::U16, Repr::U32, Repr::U64, Repr::I128];
    let repr = reprs[random.below(9) as usize];
    let whole = repr.bounds().unwrap();
    // A range of up to 2^span values somewhere in the representation, mostly small.
    let span = 1i128 << [0, 1, 2, 5, 8, 16, 31, 40, 63][random.below(9) as usize];
    let low = match random.below(3) {
        0 => whole.low,
        1 => 0,
        _ => (whole.high - span.min(whole.high)).max(whole.low),
    };
    let high = low.saturating_add(span - 1).min(whole.high);
    let nullable = random.below(2) == 0;
    let cells = (0..rows).map(|_| {
        if nullable && random.below(4) == 0 {
            return Cell::Null;
        }
        let wide = (random.next() as u128) << 64 | random.next() as u128;
        Cell::Int(low + (wide % ((high - low) as u128 + 1)) as i128)
    });
    let cells = cells.collect();
    let mut ty = Ty::new(repr).nullable(nullable);
    if random.below(4) > 0 {
        ty = ty.within(low, high);
    }
    let bounds = ty.bounds().unwrap();
    let unsigned = [Physical::U8, Physical::U16, Physical::U32];
    let narrow = unsigned.into_iter().find(|p| p.bounds().unwrap().high >= bounds.high.saturating_sub(bounds.low));
    let mut column = match (narrow, i64::try_from(bounds.low)) {
        (Some(physical), Ok(base)) if random.below(2) == 0 => stored(physical, ty, Some(base), cells),
        _ => stored(Physical::of(ty), ty, None, cells),
    };
    column.omit_validity = random.below(2) == 0;
    column
}

fn random_extents(random: &mut Random, rows: usize) -> Vec<usize> {
    let mut left = rows;
    let mut extents = Vec::new();
    while left > 0 {
        let own = (random.below(700) as usize).min(left);
        extents.push(own);
        left -= own;
    }
    if extents.is_empty() { vec![0] } else { extents }
}

/// Compares a column with a literal near one of its values.
fn random_filter(case: &mut Case, random: &mut Random) -> (NodeId, impl Fn(&[Cell]) -> bool + use<>) {
    let index = random.below(case.columns.len() as u64) as usize;
    let column = &case.columns[index];
    let pick = column.cells.get(random.below(column.cells.len().max(1) as u64) as usize);
    let value = match pick {
        Some(Cell::Int(value)) => *value,
        _ => column.spec.ty.bounds().unwrap().low,
    };
    let ty = Ty::new(column.spec.ty.repr);
    case.spec.literals.push(ty);
    case.literals.push(Literal::Int(value));
    let slot = case.spec.literals.len() as u32 - 1;
    let node = case.column(index as u32);
    let literal = case.graph().literal(slot, ty);
    let op = [Comparison::LessEqual, Comparison::Greater, Comparison::NotEqual][random.below(3) as usize];
    let filter = case.graph().compare(op, node, literal).unwrap();
    let keep = move |row: &[Cell]| match (row[index], op) {
        (Cell::Int(own), Comparison::LessEqual) => own <= value,
        (Cell::Int(own), Comparison::Greater) => own > value,
        (Cell::Int(own), _) => own != value,
        _ => false,
    };
    (filter, keep)
}

fn start(seed: u64) -> (Random, Case, Vec<Vec<Cell>>) {
    let mut random = Random(seed);
    let rows = [0, 1, 40, 700, 2000][random.below(5) as usize] + random.below(3) as usize;
    let columns: Vec<Column> = (0..1 + random.below(4)).map(|_| random_column(&mut random, rows)).collect();
    let extents = random_extents(&mut random, rows);
    let mut case = Case::new(columns).many(&extents);
    let mut kept: Vec<Vec<Cell>> = (0..rows).map(|row| case.columns.iter().map(|c| c.cells[row]).collect()).collect();
    for _ in 0..random.below(3) {
        let (filter, keep) = random_filter(&mut case, &mut random);
        case.spec.filters.push(filter);
        kept.retain(|row| keep(row));
    }
    (random, case, kept)
}

fn rig(seed: u64) -> Rig {
    Rig::with(SimOptions { seed, multiprocessors: 2, ..SimOptions::default() })
}

#[test]
fn random_rows_are_kept() {
    for seed in 0..60 {
        let (_, case, kept) = start(seed);
        let given = rig(seed).materialise(&case);
        let expected: Vec<Vec<Cell>> =
            (0..case.columns.len()).map(|i| kept.iter().map(|row| row[i]).collect()).collect();
        assert_eq!(given, expected, "seed {seed}: {:?}", case.spec);
    }
}

#[test]
fn random_groups_add_up() {
    for seed in 0..250u64 {
        let (mut random, mut case, kept) = start(seed.wrapping_mul(0x1000_0001));
        let columns = case.columns.len() as u64;
        let keys: Vec<u32> = (0..random.below(3)).map(|_| random.below(columns) as u32).collect();
        let mut accumulators = vec![all(Aggregate::CountStar)];
        let mut wanted: Vec<(usize, usize)> = vec![(0, 0)];
        for _ in 0..1 + random.below(4) {
            let index = random.below(columns) as usize;
            let kind = 1 + random.below(4) as usize;
            if kind == 1 && !case.columns[index].spec.ty.nullable {
                continue; // This merges with count(*).
            }
            if wanted.contains(&(kind, index)) {
                continue;
            }
            let node = case.column(index as u32);
            accumulators.push(all(match kind {
                1 => Aggregate::Count(node),
                2 => Aggregate::Sum(node),
                3 => Aggregate::Min(node),
                _ => Aggregate::Max(node),
            }));
            wanted.push((kind, index));
        }
        let regime = (!keys.is_empty() && random.below(3) == 0).then_some(Regime::Hash);
        let mut case = case.group(&keys, regime, |_| accumulators);
        if random.below(2) == 0 {
            case.spec.extents = Extents::One;
        }

        let mut groups: BTreeMap<Vec<Cell>, Vec<&Vec<Cell>>> = BTreeMap::new();
        if keys.is_empty() {
            groups.insert(vec![], vec![]);
        }
        for row in &kept {
            groups.entry(keys.iter().map(|&key| row[key as usize]).collect()).or_default().push(row);
        }
        let expected: Vec<Vec<Cell>> = groups
            .into_iter()
            .map(|(mut key, rows)| {
                for &(kind, index) in &wanted {
                    let values: Vec<i128> = rows
                        .iter()
                        .filter_map(|row| match row[index] {
                            Cell::Int(value) => Some(value),
                            _ => None,
                        })
                        .collect();
                    let some = |value: Option<i128>| value.map_or(Cell::Null, Cell::Int);
                    key.push(match kind {
                        0 => Cell::Int(rows.len() as i128),
                        1 => Cell::Int(values.len() as i128),
                        2 if values.is_empty() => Cell::Null,
                        2 => {
                            let sum = values.iter().fold(0i128, |sum, value| sum.wrapping_add(*value));
                            Cell::Int(match case.columns[index].spec.ty.repr {
                                Repr::I128 => sum,
                                Repr::U8 | Repr::U16 | Repr::U32 | Repr::U64 => sum as u64 as i128,
                                _ => sum as i64 as i128,
                            })
                        }
                        3 => some(values.iter().min().copied()),
                        _ => some(values.iter().max().copied()),
                    });
                }
                key
            })
            .collect();
        let mut expected = expected;
        expected.sort();
        assert_eq!(rig(seed).aggregate(&case), expected, "seed {seed}: {:?}", case.spec);
    }
}
