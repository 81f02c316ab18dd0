//! Rows to columns: every stored width, filters, extents, lookups, and outputs as input of another pipeline.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, Input};
use millpond_kernels::tune;
use millpond_memory::DeviceBuffer;

use super::pipeline_rig::*;

const TILE: usize = tune::COMPACT_THREADS as usize;
const LENGTHS: [usize; 10] = [0, 1, 31, 32, 33, TILE - 1, TILE, TILE + 1, 3 * TILE, 5 * TILE + 17];

/// A column of any storable kind with edge values, varied by `seed`.
fn sample(physical: Physical, ty: Ty, base: Option<i64>, rows: usize, nulls: fn(usize) -> bool, seed: u64) -> Column {
    let mut random = Random(seed);
    let cells = (0..rows).map(|row| {
        if nulls(row) {
            return Cell::Null;
        }
        let bits = (random.next() as u128) << 64 | random.next() as u128;
        match ty.repr {
            Repr::Bool => Cell::Bool(bits & 1 == 1),
            Repr::F32 => Cell::F32(if row % 5 == 0 { f32::NAN.to_bits() } else { bits as u32 }),
            Repr::F64 => Cell::F64(if row % 7 == 0 { (-0.0f64).to_bits() } else { bits as u64 }),
            _ => {
                // Every stored value plus the base must fit the type.
                let stored = physical.bounds().unwrap();
                let own = ty.bounds().unwrap();
                let base = base.unwrap_or(0) as i128;
                let low = own.low.max(stored.low.saturating_add(base));
                let high = own.high.min(stored.high.saturating_add(base));
                let span = (high as u128).wrapping_sub(low as u128);
                Cell::Int(match row % 4 {
                    0 => low,
                    1 => high,
                    _ if span == u128::MAX => bits as i128,
                    _ => low.wrapping_add((bits % (span + 1)) as i128),
                })
            }
        }
    });
    let cells = cells.collect();
    let ty = ty.nullable(ty.nullable || (0..rows).any(nulls));
    stored(physical, ty, base, cells)
}

fn never(_: usize) -> bool {
    false
}

fn odd(row: usize) -> bool {
    row % 2 == 1
}

fn always(_: usize) -> bool {
    true
}

/// Every integer width with and without a base, and every other storable kind.
fn storable() -> Vec<(Physical, Ty, Option<i64>)> {
    let all = [
        Physical::U8,
        Physical::U16,
        Physical::U32,
        Physical::U64,
        Physical::I8,
        Physical::I16,
        Physical::I32,
        Physical::I64,
        Physical::I128,
    ];
    let mut list = vec![
        (Physical::Bit, Ty::new(Repr::Bool), None),
        (Physical::F32, Ty::new(Repr::F32), None),
        (Physical::F64, Ty::new(Repr::F64), None),
    ];
    let reprs = [Repr::I8, Repr::I16, Repr::I32, Repr::I64, Repr::U8, Repr::U16, Repr::U32, Repr::U64, Repr::I128];
    for repr in reprs {
        let ty = Ty::new(repr);
        for physical in all {
            list.push((physical, ty, None));
            if matches!(repr, Repr::I32 | Repr::I64 | Repr::I128) {
                list.push((physical, ty, Some(-100)));
            }
        }
        // Proven ranges choose narrower lanes.
        list.push((Physical::I64, ty.within(-100, 100), None));
        list.push((Physical::U16, ty.within(0, 70_000), Some(5)));
        list.push((Physical::I128, ty.within(-1 << 40, 1 << 40), None));
    }
    list
}

#[test]
fn every_stored_width_comes_back() {
    let rig = Rig::new();
    for (i, (physical, ty, base)) in storable().into_iter().enumerate() {
        for (j, nulls) in [never as fn(usize) -> bool, odd, always].into_iter().enumerate() {
            let rows = LENGTHS[(i + j) % LENGTHS.len()].min(TILE + 1);
            let column = sample(physical, ty, base, rows, nulls, i as u64);
            let expected = column.cells.clone();
            let given = rig.materialise(&Case::new(vec![column]));
            assert_eq!(given, [expected], "{physical:?} {ty:?} {base:?} {rows} rows");
        }
    }
}

/// Keeps the rows whose first column is below `limit`.
fn below(limit: i64) -> impl FnOnce(&mut Case) -> NodeId {
    move |case| {
        let column = case.column(0);
        let ty = Ty::new(Repr::I64);
        case.spec.literals.push(ty);
        case.literals.push(Literal::Int(limit as i128));
        let slot = case.spec.literals.len() as u32 - 1;
        let limit = case.graph().literal(slot, ty);
        case.graph().compare(Comparison::Less, column, limit).unwrap()
    }
}

/// Random numbers below 100 to filter by, with payload columns.
fn mixed(rows: usize, seed: u64) -> Vec<Column> {
    let mut random = Random(seed);
    vec![
        column(Repr::I64, (0..rows).map(|row| (row % 3 != 1).then(|| random.below(100) as i64))).nullable(),
        column(Repr::I32, (0..rows).map(|row| row as i32)),
        column(Repr::Bool, (0..rows).map(|row| (row % 5 != 0).then_some(row % 3 == 0))).nullable(),
        column(Repr::I128, (0..rows).map(|row| (row as i128) << 70)),
        column(Repr::F64, (0..rows).map(|row| Some(row as f64))).nullable(),
    ]
}

/// The rows of `columns` for which `keep` holds.
fn kept(columns: &[Column], keep: impl Fn(usize) -> bool) -> Vec<Vec<Cell>> {
    columns.iter().map(|c| (0..c.cells.len()).filter(|&row| keep(row)).map(|row| c.cells[row]).collect()).collect()
}

fn is_below(columns: &[Column], limit: i128) -> impl Fn(usize) -> bool + '_ {
    move |row| matches!(columns[0].cells[row], Cell::Int(value) if value < limit)
}

#[test]
fn filter_keeps_order_at_every_length_and_share() {
    let rig = Rig::new();
    for rows in LENGTHS {
        for limit in [0, 1, 50, 100] {
            let columns = mixed(rows, rows as u64);
            let expected = kept(&columns, is_below(&columns, limit));
            let given = rig.materialise(&Case::new(columns).filter(below(limit as i64)));
            assert_eq!(given, expected, "{rows} rows, limit {limit}");
        }
    }
}

#[test]
fn null_predicate_drops_row() {
    let rig = Rig::new();
    let columns = vec![column(Repr::I64, [Some(1), None, Some(3), None]), column(Repr::I32, [1, 2, 3, 4])];
    let given = rig.materialise(&Case::new(columns).filter(below(100)));
    assert_eq!(given, [cells([1, 3]), cells([1, 3])]);
}

#[test]
fn filters_apply_in_order() {
    let rig = Rig::new();
    let columns = mixed(1000, 4);
    let expected = kept(&columns, |row| is_below(&columns, 60)(row) && columns[2].cells[row] == Cell::Bool(true));
    let case = Case::new(columns).filter(below(60)).filter(|case| case.column(2));
    assert_eq!(rig.materialise(&case), expected);
}

#[test]
fn many_extents_in_one_launch_keep_their_order() {
    let extents = [0, 1, 33, TILE, 0, TILE + 1, 2 * TILE - 5, 7, 0];
    let rows = extents.iter().sum();
    let rig = Rig::new();
    let columns = mixed(rows, 9);
    let expected = kept(&columns, is_below(&columns, 30));
    let compacted = rig.materialise(&Case::new(columns.clone()).filter(below(30)).many(&extents));
    assert_eq!(compacted, expected);
    let dense = rig.materialise(&Case::new(columns.clone()).many(&extents));
    assert_eq!(dense, kept(&columns, |_| true));
}

#[test]
fn compaction_is_right_under_every_schedule() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let columns = mixed(4 * TILE + 3, seed);
        let expected = kept(&columns, is_below(&columns, 50));
        assert_eq!(rig.materialise(&Case::new(columns).filter(below(50))), expected, "seed {seed}");
    }
}

#[test]
fn lookup_gives_the_value_of_the_code() {
    let rig = Rig::new();
    let rows = 700;
    let codes = column(Repr::U32, (0..rows).map(|row| (row % 4 != 3).then_some(row as u32 % 3))).nullable();
    let narrow = stored(Physical::U8, codes.spec.ty, None, codes.cells.clone());
    let tables: [(LookupSpec, Vec<Cell>); 3] = [
        (LookupSpec { physical: Physical::I64, ty: Ty::new(Repr::I64) }, cells([-5i64, i64::MIN, 7])),
        (
            LookupSpec { physical: Physical::Bit, ty: Ty::new(Repr::Bool).nullable(true) },
            cells([Some(true), None, Some(false)]),
        ),
        (
            LookupSpec { physical: Physical::F64, ty: Ty::new(Repr::F64).nullable(true) },
            cells([None, Some(f64::NAN), Some(1.5)]),
        ),
    ];
    let mut case = Case::new(vec![narrow]);
    let code = case.column(0);
    let mut outputs = vec![code];
    for (i, (spec, _)) in tables.iter().enumerate() {
        outputs.push(case.graph().lookup(code, i as u32, spec.ty).unwrap());
    }
    case.spec.sink = SinkSpec::Materialise { outputs };
    case.spec.lookups = tables.iter().map(|(spec, _)| *spec).collect();
    case.lookups = tables.iter().map(|(_, cells)| cells.clone()).collect();
    let given = rig.materialise(&case);
    for (i, (_, table)) in tables.iter().enumerate() {
        let expected: Vec<Cell> = codes
            .cells
            .iter()
            .map(|code| match code {
                Cell::Int(code) => table[*code as usize],
                _ => Cell::Null,
            })
            .collect();
        assert_eq!(given[i + 1], expected, "table {i}");
    }
}

#[test]
fn another_constant_compiles_nothing_and_other_ranges_load_nothing() {
    let rig = Rig::new();
    let columns = mixed(100, 1);
    rig.materialise(&Case::new(columns.clone()).filter(below(10)));
    rig.materialise(&Case::new(columns.clone()).filter(below(20)));
    let statistics = rig.cache.statistics();
    assert_eq!((statistics.compiled, statistics.loaded, statistics.hits), (1, 1, 1));
    let mut other = columns;
    other[1] = other[1].clone().ranged(0, 1000);
    rig.materialise(&Case::new(other).filter(below(20)));
    let statistics = rig.cache.statistics();
    assert_eq!((statistics.compiled, statistics.loaded), (2, 1));
}

#[test]
fn pipelines_prepared_together_are_one_module_and_run() {
    let alone = Rig::new();
    let columns = mixed(2 * TILE + 3, 1);
    let cases = [
        Case::new(columns.clone()).filter(below(10)),
        Case::new(columns.clone()),
        Case::new(columns.clone()).filter(below(20)),
    ];
    // A pipeline that groups in a hash table: three kernels.
    let groups = Case::new(columns).group(&[0], Some(Regime::Hash), |_| vec![all(Aggregate::CountStar)]);
    let expected: Vec<_> = cases.iter().map(|case: &Case| alone.materialise(case)).collect();
    let expected_groups = sorted_rows(&alone.aggregate(&groups));

    let rig = Rig::new();
    let mut specs: Vec<PipelineSpec> = cases.iter().map(|case| case.spec.clone()).collect();
    specs.push(groups.spec.clone());
    rig.cache.prepare(&specs).expect("they compile");
    let prepared = rig.cache.statistics();
    // The first and the third differ only in a constant.
    assert_eq!((prepared.loaded, prepared.modules), (3, 1));
    rig.cache.prepare(&specs).expect("they are there");
    let again = rig.cache.statistics();
    assert_eq!((again.compiled, again.loaded, again.modules), (prepared.compiled, prepared.loaded, prepared.modules));
    for (case, expected) in cases.iter().zip(expected) {
        assert_eq!(rig.materialise(case), expected);
    }
    assert_eq!(sorted_rows(&rig.aggregate(&groups)), expected_groups);
    let after = rig.cache.statistics();
    assert_eq!((after.loaded, after.modules, after.compiled), (3, 1, prepared.compiled));
    rig.assert_clean();
}

#[test]
fn a_pipeline_that_is_under_way_is_waited_for() {
    let rig = Rig::new();
    let case = Case::new(mixed(100, 1)).filter(below(10));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| rig.pipeline(&case.spec));
            scope.spawn(|| rig.cache.prepare(std::slice::from_ref(&case.spec)).expect("it compiles"));
        }
    });
    assert_eq!(rig.cache.statistics().loaded, 1, "assembled once");
}

/// The columns of an output as an extent for another pipeline.
fn as_extent(output: &DeviceBuffer, layout: &OutputLayout) -> ExtentInput {
    layout.extent(output.as_view()).unwrap()
}

#[test]
fn a_pipeline_reads_the_rows_that_another_made_without_the_host() {
    let rig = Rig::new();
    let columns = mixed(3 * TILE + 11, 2);
    let expected = kept(&columns, |row| is_below(&columns, 80)(row) && is_below(&columns, 40)(row));
    let first = Case::new(columns.clone()).filter(below(80));
    let pipeline = rig.pipeline(&first.spec);
    let extents = [rig.extent(&columns, &rig.stream)];
    let layout = pipeline.output_layout(&extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let input =
        Input { extents: &extents, descriptors: None, literals: &first.literals, lookups: &[], ..Input::default() };
    pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap();

    let second = Case::new(columns).filter(below(40));
    let pipeline = rig.pipeline(&second.spec);
    let extents = [as_extent(&output, &layout)];
    assert!(matches!(extents[0].rows, ExtentRows::OnDevice { upper_bound, .. } if upper_bound == 3 * TILE as u64 + 11));
    let layout = pipeline.output_layout(&extents);
    let last = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let input =
        Input { extents: &extents, descriptors: None, literals: &second.literals, lookups: &[], ..Input::default() };
    pipeline.materialise(input, last.as_view(), &layout, &rig.stream).unwrap();
    assert_eq!(rig.read(&last, &layout), expected);
    rig.assert_clean();
}

#[test]
fn an_error_is_raised_for_rows_that_pass_the_filter_only_and_travels_on() {
    let rig = Rig::new();
    // 100 / x, with x = 0 in the second row.
    let columns = vec![column(Repr::I64, [5, 50, 5]), column(Repr::I64, [4, 0, 25])];
    let mut case = Case::new(columns.clone());
    let x = case.column(1);
    let hundred = case.graph().integer(100, Repr::I64);
    let quotient = case.graph().arithmetic(Arithmetic::Divide, hundred, x, Overflow::Wrap).unwrap();
    case.spec.sink = SinkSpec::Materialise { outputs: vec![quotient] };
    assert_eq!(rig.materialise(&case.clone().filter(below(10))), [cells([25, 4])]);

    let case = case.filter(below(100));
    let pipeline = rig.pipeline(&case.spec);
    let extents = [rig.extent(&columns, &rig.stream)];
    let layout = pipeline.output_layout(&extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let input =
        Input { extents: &extents, descriptors: None, literals: &case.literals, lookups: &[], ..Input::default() };
    pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap();
    let (error, _) = rig.read_with_error(&output, &layout);
    assert_eq!(ErrorCode::from_word(error), Some((ErrorCode::DivisionByZero, quotient)));

    let quotient_spec = layout.column_specs()[0];
    let next = Case::new(vec![stored(quotient_spec.physical, quotient_spec.ty, None, vec![])]);
    let pipeline = rig.pipeline(&next.spec);
    let extents = [as_extent(&output, &layout)];
    let layout = pipeline.output_layout(&extents);
    let last = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let input = Input { extents: &extents, descriptors: None, literals: &[], lookups: &[], ..Input::default() };
    pipeline.materialise(input, last.as_view(), &layout, &rig.stream).unwrap();
    let (error, _) = rig.read_with_error(&last, &layout);
    assert_eq!(ErrorCode::from_word(error), Some((ErrorCode::DivisionByZero, quotient)));
    rig.assert_clean();
}

#[test]
fn input_that_does_not_fit_is_refused_before_a_launch() {
    let rig = Rig::new();
    let columns = mixed(100, 1);
    let case = Case::new(columns.clone()).filter(below(10));
    let pipeline = rig.pipeline(&case.spec);
    let extents = [rig.extent(&columns, &rig.stream)];
    let layout = pipeline.output_layout(&extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let launches = rig.device.counters().launches;
    let refuse = |extents: &[ExtentInput], literals: &[Literal], what: &str| {
        let input = Input { extents, descriptors: None, literals, lookups: &[], ..Input::default() };
        let error = pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refuse(&[], &case.literals, "0 extents where the pipeline reads one");
    refuse(&extents, &[], "0 literals where the pipeline has 1");
    refuse(&extents, &[Literal::F64(1.0)], "does not fit slot 0");
    let mut fewer = extents.clone();
    fewer[0].columns.pop();
    refuse(&fewer, &case.literals, "4 columns where the pipeline has 5");
    let mut longer = extents.clone();
    longer[0].rows = ExtentRows::Known(10_000);
    refuse(&longer, &case.literals, "10000 rows");
    assert_eq!(rig.device.counters().launches, launches);
}

/// The first rows that pass are written as long as they fit, nothing after them, and all are counted.
#[test]
fn an_output_shorter_than_the_rows_that_pass_holds_the_first_of_them() {
    let rows = 3 * TILE + 77;
    for (seed, limit) in [(1, 100), (2, 40), (3, 0)] {
        let rig = Rig::seeded(seed);
        let columns = mixed(rows, seed);
        let all = kept(&columns, is_below(&columns, limit.into()));
        let passing = all[0].len();
        for room in [0, 1, 31, 32, 33, TILE - 1, TILE, TILE + 40, passing.saturating_sub(1), passing, rows, 2 * rows] {
            let case = Case::new(columns.clone()).filter(below(limit));
            let pipeline = rig.pipeline(&case.spec);
            let extents = [rig.extent(&columns, &rig.stream)];
            let layout = pipeline.short_layout(&extents, room as u64);
            assert_eq!((layout.short, layout.rows_upper_bound), (room < rows, room.min(rows) as u64));
            // Bytes after the output must not be written.
            let output = DeviceBuffer::zeroed(layout.bytes + 256, &rig.stream, &rig.pool).unwrap();
            output.view(layout.bytes..layout.bytes + 256).unwrap().fill(0xab, &rig.stream).unwrap();
            let input = Input { extents: &extents, literals: &case.literals, ..Input::default() };
            pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap();
            let expected: Vec<Vec<Cell>> = all.iter().map(|c| c.iter().copied().take(room).collect()).collect();
            assert_eq!(rig.read(&output, &layout), expected, "seed {seed}, room {room}");
            let control = rig.download(&output.view(OutputLayout::CONTROL).unwrap());
            assert_eq!(OutputLayout::passed(&control), Some(passing as u64), "seed {seed}, room {room}");
            let behind = rig.download(&output.view(layout.bytes..layout.bytes + 256).unwrap());
            assert!(behind.iter().all(|byte| *byte == 0xab), "seed {seed}, room {room}");
            rig.assert_clean();
        }
    }
    assert_eq!(OutputLayout::passed(&[0; 16]), None);
}

/// Rows that are not filtered are written at their own index, so there must be room for all.
#[test]
fn an_output_of_unfiltered_rows_is_never_short() {
    let rig = Rig::new();
    let columns = mixed(100, 1);
    let extents = [rig.extent(&columns, &rig.stream)];
    let case = Case::new(columns);
    let layout = rig.pipeline(&case.spec).short_layout(&extents, 10);
    assert_eq!((layout.short, layout.rows_upper_bound), (false, 100));
}
