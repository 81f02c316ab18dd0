//! Groups in tables of thread blocks: every supported accumulator, against plain Rust and against the table in device
//! memory.

use std::collections::BTreeMap;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::tune;
use millpond_memory::driver::sim::{Shape, SimOptions};

use super::pipeline_rig::*;

/// Columns of rows as plain values.
struct Data {
    keys: Vec<Option<i64>>,
    numbers: Vec<Option<i64>>,
    medium: Vec<i128>,
    wide: Vec<i128>,
    floats: Vec<f64>,
    flags: Vec<Option<bool>>,
    kept: Vec<bool>,
}

/// Group of a row, out of a number of groups.
type Pattern = fn(usize, i64, &mut Random) -> i64;

/// Random, clustered, one group for nearly all rows.
const PATTERNS: [Pattern; 3] = [
    |_, groups, random| random.below(groups as u64) as i64,
    |row, groups, _| (row / 11) as i64 % groups,
    |_, groups, random| if random.below(10) > 0 { groups / 2 } else { random.below(groups as u64) as i64 },
];

impl Data {
    fn new(rows: usize, groups: i64, pattern: Pattern, nulls: bool) -> Data {
        let random = &mut Random(rows as u64 + groups as u64);
        let mut data = Data {
            keys: vec![],
            numbers: vec![],
            medium: vec![],
            wide: vec![],
            floats: vec![],
            flags: vec![],
            kept: vec![],
        };
        for row in 0..rows {
            let key = pattern(row, groups, random) - 7;
            data.keys.push((!nulls || random.below(9) > 0).then_some(key));
            // Large values of both signs: lower halves carry, and whole sums wrap.
            data.numbers.push((random.below(4) > 0).then(|| random.next() as i64 >> (random.below(3) * 20)));
            data.medium.push(i128::from(random.next() >> 28) - (1 << 35));
            data.wide.push(i128::from(random.next() as i64) << random.below(50));
            data.floats.push(random.below(4_000) as f64 / 8.0 - 200.0);
            data.flags.push([None, Some(false), Some(true)][random.below(3) as usize]);
            data.kept.push(random.below(6) > 0);
        }
        data
    }

    /// Every accumulator that blocks support, grouped by one key of `groups` values.
    fn case(&self, groups: i64, nulls: bool, regime: Regime) -> Case {
        let key = column(Repr::I64, self.keys.clone()).ranged(-7, i128::from(groups) - 8);
        let mut case = Case::new(vec![
            if nulls { key.nullable() } else { key },
            column(Repr::I64, self.numbers.clone()).nullable(),
            column(Repr::I128, self.medium.clone()).ranged(-(1 << 36), 1 << 36),
            column(Repr::I128, self.wide.clone()),
            column(Repr::F64, self.floats.clone()),
            column(Repr::Bool, self.flags.clone()).nullable(),
            column(Repr::Bool, self.kept.clone()),
        ]);
        let [number, medium, wide, float, flag] = [1, 2, 3, 4, 5].map(|index| case.column(index));
        case.filter(|case| case.column(6)).group(&[0], Some(regime), |_| {
            vec![
                all(Aggregate::CountStar),
                all(Aggregate::Count(number)),
                all(Aggregate::Sum(number)),
                all(Aggregate::Min(number)),
                all(Aggregate::Max(number)),
                all(Aggregate::Sum(medium)),
                all(Aggregate::SumChecked(wide)),
                all(Aggregate::Sum(float)),
                all(Aggregate::Min(float)),
                all(Aggregate::BitAnd(number)),
                all(Aggregate::BitOr(number)),
                all(Aggregate::BitXor(number)),
                Accumulator { aggregate: Aggregate::Sum(number), filter: Some(flag) },
            ]
        })
    }

    /// The expected groups, in plain Rust.
    fn expected(&self) -> Vec<Vec<Cell>> {
        let mut groups: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
        let rows = (0..self.keys.len()).filter(|&row| self.kept[row]);
        rows.for_each(|row| groups.entry(self.keys[row]).or_default().push(row));
        let group = |(key, rows): (Option<i64>, Vec<usize>)| {
            let numbers: Vec<i64> = rows.iter().filter_map(|&row| self.numbers[row]).collect();
            let chosen = rows.iter().filter(|&&row| self.flags[row] == Some(true));
            let chosen: Vec<i64> = chosen.filter_map(|&row| self.numbers[row]).collect();
            let sum = |numbers: &[i64]| numbers.iter().copied().reduce(i64::wrapping_add);
            vec![
                key.into(),
                (rows.len() as i64).into(),
                (numbers.len() as i64).into(),
                sum(&numbers).into(),
                numbers.iter().copied().min().into(),
                numbers.iter().copied().max().into(),
                rows.iter().map(|&row| self.medium[row]).sum::<i128>().into(),
                rows.iter().map(|&row| self.wide[row]).sum::<i128>().into(),
                rows.iter().map(|&row| self.floats[row]).sum::<f64>().into(),
                rows.iter().map(|&row| self.floats[row]).fold(f64::INFINITY, f64::min).into(),
                numbers.iter().copied().reduce(|a, b| a & b).into(),
                numbers.iter().copied().reduce(|a, b| a | b).into(),
                numbers.iter().copied().reduce(|a, b| a ^ b).into(),
                sum(&chosen).into(),
            ]
        };
        let mut rows: Vec<Vec<Cell>> = groups.into_iter().map(group).collect();
        rows.sort();
        rows
    }
}

#[test]
fn blocks_keep_every_accumulator_of_any_number_of_groups() {
    let rig = Rig::new();
    for (groups, rows) in [(1, 700), (17, 700), (20, 5_000), (100, 5_000), (100, 33), (1_000, 9_000), (20, 1), (20, 0)]
    {
        for (number, pattern) in PATTERNS.into_iter().enumerate() {
            let nulls = number == 0;
            let data = Data::new(rows, groups, pattern, nulls);
            let case = data.case(groups, nulls, Regime::Block);
            assert_eq!(rig.pipeline(&case.spec).regime(), Some(Regime::Block), "{groups} groups");
            let expected = data.expected();
            let case_name = format!("{groups} groups, {rows} rows, pattern {number}");
            assert_eq!(rig.aggregate(&case), expected, "{case_name}");
            assert_eq!(rig.aggregate(&data.case(groups, nulls, Regime::Direct)), expected, "{case_name}, direct");
        }
    }
}

/// For any order of threads and blocks: extents in one launch, and in several.
#[test]
fn blocks_of_several_extents_and_launches_share_the_groups() {
    let lengths = [1_700, 0, 1, 2_500, 99];
    let data = Data::new(lengths.iter().sum(), 40, PATTERNS[0], true);
    let expected = data.expected();
    for seed in 0..3 {
        let rig = Rig::seeded(seed);
        assert_eq!(rig.aggregate(&data.case(40, true, Regime::Block).fed(&lengths)), expected, "seed {seed}");
        assert_eq!(rig.aggregate(&data.case(40, true, Regime::Block).many(&lengths)), expected, "seed {seed}");
    }
}

/// Rows counted and summed by one key of `codes` values.
fn counted(codes: i64, rows: i64, hint: Option<u64>, regime: Option<Regime>) -> (Case, Vec<Vec<Cell>>) {
    let keys: Vec<i64> = (0..rows).map(|row| row * 7 % codes).collect();
    let mut groups: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for (row, key) in keys.iter().enumerate() {
        let group = groups.entry(*key).or_default();
        (group.0, group.1) = (group.0 + 1, group.1 + row as i64);
    }
    let expected = groups.into_iter().map(|(key, (count, sum))| cells([key, count, sum])).collect();
    let keys = column(Repr::I64, keys).ranged(0, i128::from(codes) - 1);
    let mut case = Case::new(vec![keys, column(Repr::I64, 0..rows)]);
    let value = case.column(1);
    let mut case = case.group(&[0], regime, |_| vec![all(Aggregate::CountStar), all(Aggregate::Sum(value))]);
    let SinkSpec::Aggregate(aggregate) = &mut case.spec.sink else { unreachable!("it aggregates") };
    aggregate.rows_hint = hint;
    (case, expected)
}

#[test]
fn blocks_keep_groups_up_to_their_limit() {
    let rig = Rig::new();
    // Two words per group.
    let most = (tune::BLOCK_TABLE_BYTES / 16) as i64;
    let few = (tune::PRIVATE_BIN_BYTES / 16 / u64::from(tune::AGGREGATE_THREADS)) as i64;
    for (codes, regime) in [
        (few, Regime::Private),
        (few + 1, Regime::Block),
        (most - 1, Regime::Block),
        (most, Regime::Block),
        (most + 1, Regime::Direct),
    ] {
        let (case, expected) = counted(codes, 2_000, None, None);
        assert_eq!(rig.pipeline(&case.spec).regime(), Some(regime), "{codes} groups");
        assert_eq!(rig.aggregate(&case), expected, "{codes} groups");
    }
}

#[test]
fn blocks_keep_no_groups_where_few_rows_come() {
    let rig = Rig::new();
    let regime = |rows: u64| rig.pipeline(&counted(100, 10, Some(rows), None).0.spec).regime();
    assert_eq!(regime(100 * tune::BLOCK_ROWS_PER_GROUP), Some(Regime::Block));
    assert_eq!(regime(100 * tune::BLOCK_ROWS_PER_GROUP - 1), Some(Regime::Direct));
}

/// No device has a block with this much shared memory: the table is in device memory.
#[test]
fn blocks_without_room_use_the_direct_table() {
    let rig = Rig::new();
    let (case, expected) = counted(20_000, 1_000, None, Some(Regime::Block));
    assert_eq!(rig.pipeline(&case.spec).regime(), Some(Regime::Direct));
    assert_eq!(rig.aggregate(&case), expected);
}

/// Tables that exactly fill the default shared memory of a launch, and those that exactly fill the device's maximum.
#[test]
fn blocks_keep_what_fits_the_device_and_leave_the_rest_to_the_direct_table() {
    for shape in Shape::ALL {
        let rig = Rig::with(SimOptions { shape, ..SimOptions::default() });
        let optin = u64::from(shape.shared_bytes_per_block_optin);
        let bins = tune::PRIVATE_BIN_BYTES / 16 / u64::from(tune::AGGREGATE_THREADS);
        for groups in [bins, bins + 1, (48 << 10) / 16, (48 << 10) / 16 + 1, optin / 16, optin / 16 + 1] {
            let bytes = 16 * if groups <= bins { groups * u64::from(tune::AGGREGATE_THREADS) } else { groups };
            let wanted = match groups {
                _ if bytes > optin || bytes > tune::BLOCK_TABLE_BYTES => Regime::Direct,
                _ if groups <= bins => Regime::Private,
                _ => Regime::Block,
            };
            let (case, expected) = counted(groups as i64, 2_000, None, None);
            assert_eq!(rig.pipeline(&case.spec).regime(), Some(wanted), "{groups} groups on {}", shape.name());
            assert_eq!(rig.aggregate(&case), expected, "{groups} groups on {}", shape.name());
        }
    }
}

/// Accumulators with a lock, or with a value shared by all threads, use the table in device memory.
#[test]
fn blocks_leave_what_they_cannot_keep_to_the_direct_table() {
    let rig = Rig::new();
    let case = |regime: Option<Regime>, aggregate: fn(NodeId, NodeId) -> Aggregate| {
        let keys = column(Repr::I64, (0..600i64).map(|row| row % 100)).ranged(0, 99);
        let wide = column(Repr::I128, (0..600).map(|row| i128::from(row) << 70));
        let mut case = Case::new(vec![keys, wide, column(Repr::F64, (0..600).map(f64::from))]);
        let (wide, float) = (case.column(1), case.column(2));
        case.group(&[0], regime, |_| vec![all(aggregate(wide, float))])
    };
    for aggregate in [
        (|wide, _| Aggregate::Max(wide)) as fn(NodeId, NodeId) -> Aggregate,
        |_, float| Aggregate::SumExact(float),
        |_, float| Aggregate::Deviation { of: float, among: float },
    ] {
        let free = case(None, aggregate);
        assert_eq!(rig.pipeline(&free.spec).regime(), Some(Regime::Direct));
        assert_eq!(rig.aggregate(&free).len(), 100);
        let error = rig.cache.pipeline(&case(Some(Regime::Block), aggregate).spec).unwrap_err().to_string();
        assert!(error.contains("regime Block"), "{error}");
    }
}
