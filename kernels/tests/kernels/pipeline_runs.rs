//! Rows of one group within a warp, and rows that find a table full, against maps in plain Rust.

use std::collections::BTreeMap;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::layout::StateLayout;
use millpond_kernels::pipeline::{Input, Leftover};
use millpond_memory::DeviceBuffer;

use super::pipeline_rig::*;

/// Key of a row.
type Pattern = fn(usize, &mut Random) -> i64;

/// Clustered, sorted, one key for nearly all rows, one key, pairs, all distinct, random.
const PATTERNS: [Pattern; 7] = [
    |row, _| (row / 5) as i64,
    |row, random| (row / 9) as i64 + random.below(2) as i64,
    |row, random| if random.below(10) > 0 { 7 } else { row as i64 % 100 },
    |_, _| 3,
    |row, _| (row / 2) as i64,
    |row, _| row as i64,
    |_, random| random.below(40) as i64,
];

#[test]
fn rows_of_a_warp_that_are_of_one_group_add_up() {
    let rig = Rig::new();
    let rows = 777;
    for (number, pattern) in PATTERNS.into_iter().enumerate() {
        let mut random = Random(number as u64);
        let keys: Vec<i64> = (0..rows).map(|row| pattern(row, &mut random)).collect();
        let values: Vec<Option<i128>> = (0..rows)
            .map(|_| (random.below(4) > 0).then(|| i128::from(random.next() as i64) << random.below(50)))
            .collect();
        let medium: Vec<i128> = (0..rows).map(|_| i128::from(random.next() >> 28) - (1 << 35)).collect();
        let floats: Vec<f64> = (0..rows).map(|_| random.below(1000) as f64 / 8.0).collect();
        let chosen: Vec<bool> = (0..rows).map(|_| random.below(3) > 0).collect();
        let kept: Vec<bool> = (0..rows).map(|_| random.below(5) > 0).collect();
        for regime in [Regime::Direct, Regime::Hash] {
            let mut case = Case::new(vec![
                column(Repr::I64, keys.clone()).ranged(0, 999),
                column(Repr::I128, values.clone()).nullable(),
                column(Repr::I128, medium.clone()).ranged(-(1 << 36), 1 << 36),
                column(Repr::F64, floats.clone()),
                column(Repr::Bool, chosen.clone()),
                column(Repr::Bool, kept.clone()),
            ]);
            let [wide, medium_node, float, chosen_node] = [1, 2, 3, 4].map(|index| case.column(index));
            let case = case.filter(|case| case.column(5)).group(&[0], Some(regime), |_| {
                vec![
                    all(Aggregate::CountStar),
                    all(Aggregate::Sum(medium_node)),
                    all(Aggregate::Max(wide)),
                    all(Aggregate::Sum(float)),
                    all(Aggregate::BitXor(NodeId(0))),
                    Accumulator { aggregate: Aggregate::Count(wide), filter: Some(chosen_node) },
                ]
            });
            assert!(rig.pipeline(&case.spec).compiled().text.contains("match.any"), "{regime:?}");
            let mut groups: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
            (0..rows).filter(|&row| kept[row]).for_each(|row| groups.entry(keys[row]).or_default().push(row));
            let expected: Vec<Vec<Cell>> = groups
                .into_iter()
                .map(|(key, rows)| {
                    let odd = rows.len() % 2 == 1;
                    let counted = rows.iter().filter(|&&row| chosen[row] && values[row].is_some()).count();
                    vec![
                        key.into(),
                        (rows.len() as i64).into(),
                        rows.iter().map(|&row| medium[row]).sum::<i128>().into(),
                        rows.iter().filter_map(|&row| values[row]).max().into(),
                        rows.iter().map(|&row| floats[row]).sum::<f64>().into(),
                        if odd { key } else { 0 }.into(),
                        (counted as i64).into(),
                    ]
                })
                .collect();
            assert_eq!(rig.aggregate(&case), expected, "pattern {number}, {regime:?}");
        }
    }
}

/// Runs a case over a table with initial `room` for groups, which grows if rows are left over. Returns the sorted rows,
/// and the number of times the table was full.
fn with_leftovers(rig: &Rig, case: &Case, room: u64) -> (Vec<Vec<Cell>>, u32) {
    let pipeline = rig.pipeline(&case.spec);
    let rows = case.columns[0].cells.len() as u64;
    let extents = [rig.extent(&case.columns, &rig.stream)];
    let mut layout = pipeline.state_layout(room).unwrap();
    let mut state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let noted = DeviceBuffer::zeroed(Leftover::bytes(rows), &rig.stream, &rig.pool).unwrap();
    let mut times = 0;
    loop {
        noted.view(Leftover::COUNT).unwrap().fill(0, &rig.stream).unwrap();
        let leftover = Leftover {
            noted: noted.as_view().clone(),
            again: times > 0,
            limit: layout.max_groups().min(room << (2 * times)),
        };
        let input =
            Input { extents: &extents, literals: &case.literals, leftover: Some(&leftover), ..Input::default() };
        pipeline.accumulate(input, &state, &layout, &rig.stream).unwrap();
        let count = rig.download(&noted.view(Leftover::COUNT).unwrap());
        if count == [0; 8] {
            break;
        }
        times += 1;
        let larger = pipeline.state_layout(room << (2 * times)).unwrap();
        let next = DeviceBuffer::zeroed(larger.bytes, &rig.stream, &rig.pool).unwrap();
        pipeline.rehash(&state, &layout, &next, &larger, &rig.stream).unwrap();
        (state, layout) = (next, larger);
    }
    let out = pipeline.emit_layout(&layout, rows + 1).unwrap();
    let output = DeviceBuffer::new(out.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.emit(&state, &layout, &output, &out, &rig.stream).unwrap();
    let columns = rig.read(&output, &out);
    rig.assert_clean();
    (sorted_rows(&columns), times)
}

#[test]
fn rows_that_find_the_table_full_are_taken_again_each_once() {
    let rig = Rig::new();
    for (rows, distinct) in [(1, 1), (33, 33), (3000, 10), (3000, 700), (5001, 5001)] {
        let mut random = Random(rows as u64);
        let keys: Vec<i64> = (0..rows)
            .map(|row| if row < distinct { row as i64 } else { random.below(distinct as u64) as i64 })
            .map(|key| key * 0x1_0000_0001)
            .collect();
        let values: Vec<i64> = (0..rows).map(|_| random.next() as i64).collect();
        let kept: Vec<bool> = (0..rows).map(|_| random.below(8) > 0).collect();
        let mut case = Case::new(vec![
            column(Repr::I64, keys.clone()),
            column(Repr::I64, values.clone()),
            column(Repr::Bool, kept.clone()),
        ]);
        let x = case.column(1);
        let case = case.filter(|case| case.column(2)).group(&[0], Some(Regime::Hash), |_| {
            vec![all(Aggregate::CountStar), all(Aggregate::Sum(x)), all(Aggregate::Min(x))]
        });
        let mut groups: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
        for row in (0..rows).filter(|&row| kept[row]) {
            let group = groups.entry(keys[row]).or_insert((0, 0, i64::MAX));
            *group = (group.0 + 1, group.1.wrapping_add(values[row]), group.2.min(values[row]));
        }
        let expected: Vec<Vec<Cell>> =
            groups.into_iter().map(|(key, (n, sum, min))| vec![key.into(), n.into(), sum.into(), min.into()]).collect();
        let (given, times) = with_leftovers(&rig, &case, 20);
        assert_eq!(given, expected, "{rows} rows, {distinct} keys");
        // Threads that create groups concurrently may pass the limit together, so the exact number of groups at which
        // it is full varies.
        assert!(times > 0 || distinct <= 300, "{rows} rows, {distinct} keys");
        assert!(times == 0 || distinct > 20, "{rows} rows, {distinct} keys, {times} times full");
    }
}

#[test]
fn a_seed_that_finds_the_table_full_is_planted_later() {
    let rig = Rig::new();
    let rows = 900;
    let keys: Vec<Option<i64>> = (0..rows).map(Some).collect();
    let mut case = Case::new(vec![column(Repr::I64, keys).nullable(), column(Repr::I64, 0..rows)]);
    let x = case.column(1);
    let mut case = case.group(&[0], Some(Regime::Hash), |_| vec![all(Aggregate::CountStar), all(Aggregate::Sum(x))]);
    let key = case.column(0);
    let ty = case.spec.graph.ty(key);
    let null = case.graph().null_of(ty);
    let when = case.graph().boolean(true);
    let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
    aggregate.seed = Some(Seed { when, keys: vec![null] });
    // No initial room at all: not even the seed finds a slot.
    let (given, times) = with_leftovers(&rig, &case, 1);
    assert!(times > 1, "{times}");
    let mut expected: Vec<Vec<Cell>> = (0..rows).map(|key| vec![key.into(), 1i64.into(), key.into()]).collect();
    expected.push(vec![Cell::Null, 0i64.into(), Cell::Null]);
    expected.sort();
    assert_eq!(given, expected);
}

#[test]
fn leftovers_are_for_hash_tables_fed_from_one_extent() {
    let rig = Rig::new();
    let columns = vec![column(Repr::I64, 0..10i64).ranged(0, 9)];
    let noted = DeviceBuffer::zeroed(Leftover::bytes(10), &rig.stream, &rig.pool).unwrap();
    let leftover = Leftover { noted: noted.as_view().clone(), again: false, limit: 10 };
    let refused = |regime: Regime, leftover: &Leftover| {
        let case = Case::new(columns.clone()).group(&[0], Some(regime), |_| vec![all(Aggregate::CountStar)]);
        let pipeline = rig.pipeline(&case.spec);
        let layout: StateLayout = pipeline.state_layout(10).unwrap();
        let state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
        let extents = [rig.extent(&columns, &rig.stream)];
        let input = Input { extents: &extents, leftover: Some(leftover), ..Input::default() };
        pipeline.accumulate(input, &state, &layout, &rig.stream).map(|_| ()).map_err(|error| error.to_string())
    };
    assert!(refused(Regime::Direct, &leftover).unwrap_err().contains("only a hash table"));
    let short = Leftover { noted: noted.view(0..128).unwrap(), ..leftover.clone() };
    assert!(refused(Regime::Hash, &short).unwrap_err().contains("128 bytes"));
    assert!(refused(Regime::Hash, &leftover).is_ok());
}
