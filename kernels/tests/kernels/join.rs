//! Joins against nested loops in plain Rust: every kind of table, key and match; skew, NULLs, keys out of range, marks.

use millpond_kernels::codegen::ir::*;
use millpond_kernels::error::KernelError;
use millpond_kernels::join::{Expansion, TableFacts, TableInput, TableLayout, list_rows, mark_bits, mark_bytes};
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::scan;
use millpond_memory::DeviceBuffer;

use super::pipeline_rig::*;

/// A built table and the extent of its rows.
struct Built {
    spec: TableSpec,
    table: TableInput,
    columns: Vec<Column>,
    extent: ExtentInput,
    facts: TableFacts,
}

/// Builds a table over the first `keys` columns, with lists if some key has several rows.
fn build(rig: &Rig, columns: &[Column], keys: usize, kind: TableKind, nulls_equal: bool) -> Built {
    let mut case = Case::new(columns.to_vec());
    let types: Vec<Ty> = columns[..keys].iter().map(|column| column.spec.ty).collect();
    let lists = kind != TableKind::Bitmap;
    let spec = TableSpec { keys: types, kind, lists, nulls_equal };
    let keys = (0..keys as u32).map(|i| case.column(i)).collect();
    case.spec.sink = SinkSpec::Table { table: spec.clone(), keys };
    let (table, extent, facts) = run_build(rig, &case);
    let spec = TableSpec { lists: table.lists.is_some(), ..spec };
    Built { spec, table, columns: columns.to_vec(), extent, facts }
}

fn run_build(rig: &Rig, case: &Case) -> (TableInput, ExtentInput, TableFacts) {
    let SinkSpec::Table { table: spec, .. } = &case.spec.sink else { panic!("this builds no table") };
    let pipeline = rig.pipeline(&case.spec);
    let extent = rig.extent(&case.columns, &rig.stream);
    let layout = pipeline.table_layout(extent.rows.upper_bound()).unwrap();
    let table = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let leaders = DeviceBuffer::new(layout.scratch_bytes(), &rig.stream, &rig.pool).unwrap();
    let extents = std::slice::from_ref(&extent);
    let input = Input { extents, literals: &case.literals, ..Input::default() };
    let images = millpond_kernels::Images::new(&rig.device);
    let scratch = spec.lists.then_some(leaders.as_view());
    let built = pipeline.build_table(input, table.as_view(), &layout, scratch, &rig.stream);
    built.unwrap_or_else(|error| panic!("{error}"));
    let facts = TableLayout::facts(&rig.download(&table.view(TableLayout::CONTROL).unwrap())).unwrap();
    let mut lists = None;
    if spec.lists && facts.has_duplicates {
        let buffer = DeviceBuffer::new(layout.lists_bytes(), &rig.stream, &rig.pool).unwrap();
        list_rows(&images, &layout, leaders.as_view(), buffer.as_view(), &rig.stream).unwrap();
        lists = Some(buffer.as_view().clone());
    }
    (TableInput { table: table.as_view().clone(), layout, lists }, extent, facts)
}

impl Built {
    /// The list of row numbers, then the columns after the keys, as lookup tables by row number.
    fn lookups(&self) -> (Vec<LookupSpec>, Vec<LookupInput>) {
        let anything = || LookupInput { values: self.table.table.clone(), validity: None };
        let mut specs = vec![TableInput::LIST];
        let mut inputs = vec![self.table.rows().unwrap_or_else(|_| anything())];
        let payload = self.columns.iter().zip(&self.extent.columns).skip(self.spec.keys.len());
        for (column, input) in payload {
            let input = input.as_ref().unwrap();
            specs.push(LookupSpec { physical: column.spec.physical, ty: column.spec.ty });
            inputs.push(LookupInput { values: input.values.clone(), validity: input.validity.clone() });
        }
        (specs, inputs)
    }
}

/// A probing case over `columns`, with the keys in its first columns. Returns the node of the matches.
fn probing(built: &Built, columns: &[Column]) -> (Case, NodeId) {
    let mut case = Case::new(columns.to_vec());
    case.spec.tables = vec![built.spec.clone()];
    let keys: Vec<NodeId> = (0..built.spec.keys.len() as u32).map(|i| case.column(i)).collect();
    let matches = case.graph().probe(0, &built.spec, &keys).unwrap();
    (case, matches)
}

/// Runs a materialising case; returns its columns, and the output as an extent.
fn materialise(
    rig: &Rig,
    case: &Case,
    extent: &ExtentInput,
    lookups: &[LookupInput],
    tables: &[TableInput],
    expansion: Option<&Expansion>,
) -> (Vec<Vec<Cell>>, ExtentInput) {
    let pipeline = rig.pipeline(&case.spec);
    let extents = std::slice::from_ref(extent);
    let input = Input { extents, literals: &case.literals, lookups, tables, expansion, ..Input::default() };
    let layout = pipeline.output_layout(extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap_or_else(|error| panic!("{error}"));
    let columns = rig.read(&output, &layout);
    rig.assert_clean();
    (columns, layout.extent(output.as_view()).unwrap())
}

fn canonical(cell: Cell) -> Cell {
    match cell {
        Cell::F64(bits) if f64::from_bits(bits) == 0.0 => 0.0f64.into(),
        Cell::F32(bits) if f32::from_bits(bits) == 0.0 => 0.0f32.into(),
        other => other,
    }
}

/// Rows of `build` that match each row of `probe`, by nested loops.
fn matching(build: &[Column], probe: &[Column], keys: usize, nulls_equal: bool) -> Vec<Vec<u32>> {
    let equal = |a: Cell, b: Cell| match (a, b) {
        (Cell::Null, Cell::Null) => nulls_equal,
        (Cell::Null, _) | (_, Cell::Null) => false,
        (a, b) => canonical(a) == canonical(b),
    };
    let row = |p: usize| {
        let rows = 0..build[0].cells.len();
        rows.filter(|&b| (0..keys).all(|k| equal(build[k].cells[b], probe[k].cells[p]))).map(|b| b as u32).collect()
    };
    (0..probe[0].cells.len()).map(row).collect()
}

/// All pairs of (probe id, payload of the build row), sorted; `left` keeps probe rows without a match.
fn expected_pairs(build: &[Column], probe: &[Column], keys: usize, nulls_equal: bool, left: bool) -> Vec<Vec<Cell>> {
    let mut pairs = Vec::new();
    for (p, rows) in matching(build, probe, keys, nulls_equal).into_iter().enumerate() {
        let id = probe[keys].cells[p];
        if left && rows.is_empty() {
            pairs.push(vec![id, Cell::Null]);
        }
        pairs.extend(rows.into_iter().map(|b| vec![id, build[keys].cells[b as usize]]));
    }
    pairs.sort();
    pairs
}

/// These pairs from the device: rows with their counts, running sums, one row per match.
fn device_pairs(rig: &Rig, built: &Built, probe: &[Column], left: bool) -> Vec<Vec<Cell>> {
    let keys = built.spec.keys.len();
    let (mut case, matches) = probing(built, probe);
    let id = case.column(keys as u32);
    let g = case.graph();
    let count = g.match_count(matches).unwrap();
    let start = g.match_start(matches).unwrap();
    let found = g.test(Test::IsNotNull, matches).unwrap();
    let one = g.integer(1, Repr::U32);
    let count = g.case(vec![(found, count)], Some(one)).unwrap();
    if !left {
        case.spec.filters.push(found);
    }
    case.spec.sink = SinkSpec::Materialise { outputs: vec![id, start, count] };
    let extent = rig.extent(probe, &rig.stream);
    let tables = std::slice::from_ref(&built.table);
    let (rows, kept) = materialise(rig, &case, &extent, &[], tables, None);
    let total: i128 = rows[2].iter().map(|cell| if let Cell::Int(count) = cell { *count } else { 0 }).sum();

    let bound = kept.rows.upper_bound();
    let sums = DeviceBuffer::new(scan::expansion_bytes(bound) as usize, &rig.stream, &rig.pool).unwrap();
    let scratch = DeviceBuffer::new(scan::scratch_bytes(bound) as usize, &rig.stream, &rig.pool).unwrap();
    let images = millpond_kernels::Images::new(&rig.device);
    let counts = kept.columns[2].as_ref().unwrap().values.clone();
    scan::running_sums(&images, &counts, &kept.rows, sums.as_view(), scratch.as_view(), &rig.stream).unwrap();
    let expansion = Expansion { sums: sums.as_view().clone(), source_rows: bound, first: 0 };

    let types = [probe[keys].spec.ty, Ty::new(Repr::U32).nullable(true), Ty::new(Repr::U32).nullable(true)];
    let mut case = Case::new(vec![]);
    case.spec.columns =
        types.iter().map(|&ty| ColumnSpec { physical: Physical::of(ty), has_base: false, ty }).collect();
    case.spec.expanded = true;
    let (specs, inputs) = built.lookups();
    let payload = specs[1].ty;
    case.spec.lookups = specs;
    let g = case.graph();
    let (id, start) = (g.column(0, types[0]), g.column(1, types[1]));
    let ordinal = g.ordinal();
    let place = g.arithmetic(Arithmetic::Add, start, ordinal, Overflow::Wrap).unwrap();
    let row = if built.spec.lists { g.lookup(place, 0, Ty::new(Repr::U32)).unwrap() } else { place };
    let value = g.lookup(row, 1, payload).unwrap();
    case.spec.sink = SinkSpec::Materialise { outputs: vec![id, value] };
    let rows = ExtentRows::OnDevice { control: expansion.control().unwrap(), upper_bound: total as u64 };
    let extent = ExtentInput { rows, columns: kept.columns.clone() };
    let (columns, _) = materialise(rig, &case, &extent, &inputs, &[], Some(&expansion));
    assert_eq!(columns[0].len(), total as usize);
    sorted_rows(&columns)
}

fn ids(rows: usize) -> Column {
    column(Repr::I64, (0..rows as i64).map(|i| i * 10))
}

fn payload(rows: usize) -> Column {
    column(Repr::I64, (0..rows as i64).map(|i| if i % 7 == 3 { None } else { Some(1000 + i) }))
}

/// Every kind of table that compares keys.
const KINDS: [TableKind; 3] = [TableKind::Bitmap, TableKind::Array, TableKind::Hash];

/// Builds and probes a table, for all pairs and for the existence of a match.
fn check(build_side: Vec<Column>, probe: Vec<Column>, keys: usize, kind: TableKind, nulls_equal: bool) {
    check_on(&Rig::seeded(build_side[0].cells.len() as u64 + 3), build_side, probe, keys, kind, nulls_equal);
}

pub fn check_on(
    rig: &Rig,
    build_side: Vec<Column>,
    probe: Vec<Column>,
    keys: usize,
    kind: TableKind,
    nulls_equal: bool,
) {
    let built = build(rig, &build_side, keys, kind, nulls_equal);
    assert_eq!(built.facts.error, 0);
    for left in [false, true].into_iter().filter(|_| kind != TableKind::Bitmap) {
        let expected = expected_pairs(&build_side, &probe, keys, nulls_equal, left);
        assert_eq!(device_pairs(rig, &built, &probe, left), expected, "{kind:?} left {left}");
    }
    // Semi and anti joins: rows with a match, and rows without.
    let matching = matching(&build_side, &probe, keys, nulls_equal);
    for (test, wanted) in [(Test::IsNotNull, true), (Test::IsNull, false)] {
        let (mut case, matches) = probing(&built, &probe);
        let id = case.column(keys as u32);
        let passes = case.graph().test(test, matches).unwrap();
        case.spec.filters.push(passes);
        case.spec.sink = SinkSpec::Materialise { outputs: vec![id] };
        let extent = rig.extent(&probe, &rig.stream);
        let (columns, _) = materialise(rig, &case, &extent, &[], std::slice::from_ref(&built.table), None);
        let rows = (0..probe[0].cells.len()).filter(|&row| matching[row].is_empty() != wanted);
        assert_eq!(columns[0], rows.map(|row| probe[keys].cells[row]).collect::<Vec<_>>(), "{kind:?} {test:?}");
    }
    let rows = build_side[0].cells.len();
    let own = self::matching(&build_side, &build_side, keys, nulls_equal);
    assert_eq!(built.facts.has_duplicates, own.iter().any(|rows| rows.len() > 1), "{kind:?}");
    let any_null = (0..rows).any(|row| build_side[..keys].iter().any(|column| column.cells[row] == Cell::Null));
    assert_eq!(built.facts.has_null_keys, any_null);
}

#[test]
fn integer_keys_at_every_length() {
    for rows in [0usize, 1, 31, 32, 33, 511, 513, 1500] {
        for kind in KINDS {
            // Every third key twice; probes below, inside and above the range.
            let key = |i: usize| 100 + (i - i % 3 / 2) as i64;
            let high = 100 + rows.max(1) as i128;
            let side = vec![column(Repr::I64, (0..rows).map(key)).ranged(100, high), payload(rows)];
            let probe = (0..rows + 40).map(|i| 80 + i as i64);
            check(side, vec![column(Repr::I64, probe), ids(rows + 40)], 1, kind, false);
        }
    }
}

#[test]
fn probes_beyond_32_bits_do_not_come_round_to_a_key() {
    for kind in KINDS {
        let side = vec![column(Repr::I64, [5i64, 6, 7]).ranged(5, 7), payload(3)];
        let probe = [5i64, 5 + (1 << 32), 6 - (1 << 32), 7, i64::MIN, i64::MAX, -1];
        check(side, vec![column(Repr::I64, probe), ids(7)], 1, kind, false);
        let side = vec![column(Repr::I128, [5i128, -6, 7]).ranged(-6, 7), payload(3)];
        let probe = [5i128, 5 + (1 << 64), -6, -6 + (1 << 64), 7 - (1 << 100), i128::MIN];
        check(side, vec![column(Repr::I128, probe), ids(6)], 1, kind, false);
        let side = vec![
            column(Repr::U64, [u64::MAX, u64::MAX - 2]).ranged(i128::from(u64::MAX) - 2, u64::MAX.into()),
            payload(2),
        ];
        check(side, vec![column(Repr::U64, [u64::MAX, 0, u64::MAX - 1, u64::MAX - 2]), ids(4)], 1, kind, false);
    }
}

#[test]
fn wide_keys_take_two_words() {
    let wide = |i: i128| i << 90 | (i % 5);
    let side = vec![column(Repr::I128, (-20..20).map(wide)), payload(40)];
    check(side, vec![column(Repr::I128, (-40..10).map(wide)), ids(50)], 1, TableKind::Hash, false);
    // The probing side is narrow: its values are sign-extended.
    let side = vec![column(Repr::I128, [3i128, 1 << 100, -4]), payload(3)];
    let probe = column(Repr::I128, [-4i128, 3, 4]).ranged(-10, 10);
    check(side, vec![probe, ids(3)], 1, TableKind::Hash, false);
}

#[test]
fn several_keys_with_nulls_that_equal_nothing_or_each_other() {
    let mut random = Random(11);
    for nulls_equal in [false, true] {
        for kind in KINDS {
            let mut some = |n: u64| (random.below(4) > 0).then(|| random.below(n) as i32);
            let first = column(Repr::I32, (0..200).map(|_| some(6)).collect::<Vec<_>>()).ranged(0, 5);
            let second = column(Repr::I32, (0..200).map(|_| some(9)).collect::<Vec<_>>()).ranged(0, 8);
            let probe_first = column(Repr::I32, (0..90).map(|_| some(8)).collect::<Vec<_>>());
            let probe_second = column(Repr::I32, (0..90).map(|_| some(9)).collect::<Vec<_>>());
            check(vec![first, second, payload(200)], vec![probe_first, probe_second, ids(90)], 2, kind, nulls_equal);
        }
    }
}

#[test]
fn a_null_probe_finds_nothing_where_the_build_side_has_none() {
    for kind in KINDS {
        let side = vec![column(Repr::I32, [0, 1, 2]).ranged(0, 2), payload(3)];
        let probe = column(Repr::I32, [None, Some(0), Some(2), None, Some(3)]);
        check(side, vec![probe, ids(5)], 1, kind, true);
    }
}

#[test]
fn slots_of_an_array_are_as_narrow_as_the_rows_allow() {
    let rig = Rig::seeded(2);
    for (rows, slot_bytes) in [(1usize, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)] {
        // Neighbouring slots share words: keys alternate in sign.
        let key = |i: usize| if i.is_multiple_of(2) { i as i64 } else { -(i as i64) };
        let side = [column(Repr::I64, (0..rows).map(key)).ranged(1 - rows as i128, rows as i128), payload(rows)];
        let built = build(&rig, &side, 1, TableKind::Array, false);
        assert!(!built.facts.has_duplicates);
        assert_eq!(built.table.layout.bytes, 64 + (2 * rows * slot_bytes).next_multiple_of(4), "{rows} rows");
        let probe = [column(Repr::I64, (0..rows + 2).map(|i| key(rows + 1 - i))), ids(rows + 2)];
        let (mut case, matches) = probing(&built, &probe);
        let row = case.graph().match_start(matches).unwrap();
        case.spec.sink = SinkSpec::Materialise { outputs: vec![row] };
        let extent = rig.extent(&probe, &rig.stream);
        let (columns, _) = materialise(&rig, &case, &extent, &[], std::slice::from_ref(&built.table), None);
        let row = |i: usize| if i < 2 { Cell::Null } else { Cell::Int((rows + 1 - i) as i128) };
        assert_eq!(columns[0], (0..rows + 2).map(row).collect::<Vec<_>>(), "{rows} rows");
    }
    rig.assert_clean();
}

#[test]
fn where_every_row_matches_nothing_is_built() {
    let rig = Rig::new();
    for rows in [0u64, 1, 77] {
        let spec = TableSpec {
            keys: vec![Ty::new(Repr::U32).within(0, 0)],
            kind: TableKind::Every,
            lists: false,
            nulls_equal: false,
        };
        let layout = TableLayout::new(&spec, rows).unwrap();
        assert_eq!(layout.bytes, 64);
        let table = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).unwrap();
        let table = TableInput { table: table.as_view().clone(), layout, lists: None };
        let probe = [column(Repr::U32, [Some(0u32), None, Some(9)])];
        let mut case = Case::new(probe.to_vec());
        case.spec.tables = vec![spec.clone()];
        let key = case.column(0);
        let g = case.graph();
        let matches = g.probe(0, &spec, &[key]).unwrap();
        let outputs = vec![g.match_count(matches).unwrap(), g.match_start(matches).unwrap()];
        case.spec.sink = SinkSpec::Materialise { outputs };
        let extent = rig.extent(&probe, &rig.stream);
        let (columns, _) = materialise(&rig, &case, &extent, &[], std::slice::from_ref(&table), None);
        let (count, start) = if rows == 0 { (Cell::Null, Cell::Null) } else { (Cell::Int(rows.into()), Cell::Int(0)) };
        assert_eq!(columns, vec![vec![count; 3], vec![start; 3]]);
        let mut case = Case::new(probe.to_vec());
        let key = case.column(0);
        case.spec.sink = SinkSpec::Table { table: spec, keys: vec![key] };
        assert!(rig.cache.pipeline(&case.spec).unwrap_err().to_string().contains("nothing to build"));
    }
    rig.assert_clean();
}

#[test]
fn all_keys_null() {
    for kind in KINDS {
        let null: Vec<Option<i32>> = vec![None; 40];
        let side = vec![column(Repr::I32, null.clone()).ranged(0, 3), payload(40)];
        check(side.clone(), vec![column(Repr::I32, null.clone()), ids(40)], 1, kind, false);
        check(side, vec![column(Repr::I32, null), ids(40)], 1, kind, true);
    }
}

#[test]
fn booleans_and_floats() {
    let flags = vec![column(Repr::Bool, [Some(true), None, Some(true), Some(false)]), payload(4)];
    let probe = vec![column(Repr::Bool, [Some(false), None, Some(true)]), ids(3)];
    check(flags.clone(), probe.clone(), 1, TableKind::Array, false);
    check(flags, probe, 1, TableKind::Hash, true);
    let odd = f64::from_bits(0xfff8_0000_0000_0123);
    let side = vec![column(Repr::F64, [0.0, -0.0, f64::NAN, 1.5, odd]), payload(5)];
    let probe = vec![column(Repr::F64, [-0.0, odd, 1.5, -f64::NAN, f64::NAN]), ids(5)];
    check(side, probe, 1, TableKind::Hash, false);
    let side = vec![column(Repr::F32, [0.0f32, f32::NAN, 2.5]), payload(3)];
    check(side.clone(), vec![column(Repr::F32, [-0.0f32, -f32::NAN, 3.5]), ids(3)], 1, TableKind::Hash, false);
    check(side, vec![column(Repr::F32, [-0.0f32, f32::NAN, 3.5]), ids(3)], 1, TableKind::Hash, false);
}

#[test]
fn nine_of_ten_rows_have_one_key() {
    let mut random = Random(5);
    let mut skewed = |rows: usize| -> Vec<i64> {
        (0..rows).map(|_| if random.below(10) > 0 { 7 } else { random.below(50) as i64 }).collect()
    };
    let (side, probe) = (skewed(300), skewed(60));
    for kind in KINDS {
        let side = vec![column(Repr::I64, side.clone()).ranged(0, 49), payload(300)];
        check(side, vec![column(Repr::I64, probe.clone()), ids(60)], 1, kind, false);
    }
}

#[test]
fn rows_that_a_filter_drops_are_not_in_the_table() {
    let rig = Rig::new();
    let columns = vec![column(Repr::I64, [1i64, 2, 3, 2]).ranged(1, 3), payload(4)];
    let mut case = Case::new(columns.clone());
    let key = case.column(0);
    let two = case.graph().integer(2, Repr::I64);
    let keep = case.graph().compare(Comparison::NotEqual, key, two).unwrap();
    case.spec.filters.push(keep);
    for kind in KINDS {
        let spec = TableSpec { keys: vec![columns[0].spec.ty], kind, lists: false, nulls_equal: false };
        case.spec.sink = SinkSpec::Table { table: spec.clone(), keys: vec![key] };
        let (table, extent, facts) = run_build(&rig, &case);
        assert_eq!((facts.has_duplicates, facts.has_null_keys, facts.error), (false, false, 0));
        let built = Built { spec, table, columns: columns.clone(), extent, facts };
        let probe = [column(Repr::I64, [1i64, 2, 3, 4]), ids(4)];
        let (mut case, matches) = probing(&built, &probe);
        let found = case.graph().test(Test::IsNotNull, matches).unwrap();
        case.spec.sink = SinkSpec::Materialise { outputs: vec![found] };
        let extent = rig.extent(&probe, &rig.stream);
        let (columns, _) = materialise(&rig, &case, &extent, &[], std::slice::from_ref(&built.table), None);
        assert_eq!(columns[0], [true, false, true, false].map(Cell::from), "{kind:?}");
    }
    rig.assert_clean();
}

#[test]
fn the_table_tells_whether_keys_are_unique() {
    let rig = Rig::new();
    for (keys, duplicates) in [([4i64, 5, 6], false), ([4, 5, 4], true)] {
        for kind in KINDS {
            let built = build(&rig, &[column(Repr::I64, keys).ranged(4, 6), payload(3)], 1, kind, false);
            assert_eq!(built.facts.has_duplicates, duplicates, "{kind:?} {keys:?}");
        }
    }
    rig.assert_clean();
}

#[test]
fn a_key_outside_the_range_of_its_type_is_an_error() {
    let rig = Rig::new();
    let mut lying = column(Repr::I64, [1i64, 9]);
    lying.spec.ty = lying.spec.ty.within(0, 5);
    for kind in [TableKind::Bitmap, TableKind::Array] {
        let built = build(&rig, &[lying.clone(), payload(2)], 1, kind, false);
        assert_eq!(ErrorCode::from_word(built.facts.error).map(|(code, _)| code), Some(ErrorCode::KeyRange));
    }
    rig.assert_clean();
}

#[test]
fn an_error_travels_through_an_expansion() {
    let rig = Rig::new();
    let columns = vec![column(Repr::U32, [1u32, 2, 0])];
    let mut case = Case::new(columns.clone());
    let count = case.column(0);
    let hundred = case.graph().integer(100, Repr::U32);
    let quotient = case.graph().arithmetic(Arithmetic::Divide, hundred, count, Overflow::Wrap).unwrap();
    case.spec.sink = SinkSpec::Materialise { outputs: vec![count, quotient] };
    let pipeline = rig.pipeline(&case.spec);
    let extents = [rig.extent(&columns, &rig.stream)];
    let layout = pipeline.output_layout(&extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let input = Input { extents: &extents, ..Input::default() };
    pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap();
    let extent = layout.extent(output.as_view()).unwrap();
    let sums = DeviceBuffer::new(scan::expansion_bytes(3) as usize, &rig.stream, &rig.pool).unwrap();
    let scratch = DeviceBuffer::new(scan::scratch_bytes(3) as usize, &rig.stream, &rig.pool).unwrap();
    let images = millpond_kernels::Images::new(&rig.device);
    let counts = extent.columns[0].as_ref().unwrap().values.clone();
    scan::running_sums(&images, &counts, &extent.rows, sums.as_view(), scratch.as_view(), &rig.stream).unwrap();
    let control = rig.download(sums.as_view());
    let words: Vec<u64> = control.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    assert_eq!(ErrorCode::from_word(words[0]).map(|(code, _)| code), Some(ErrorCode::DivisionByZero));
    // Rows after the expansion, rows before, and the running sums.
    assert_eq!((words[1], words[3], &words[8..]), (3, 3, [1u64, 3, 3].as_slice()));
    rig.assert_clean();
}

#[test]
fn running_sums_over_many_tiles() {
    let rig = Rig::seeded(4);
    check_sums(&rig, &[0, 1, 1023, 1024, 1025, 5000]);
}

pub fn check_sums(rig: &Rig, lengths: &[usize]) {
    for &rows in lengths {
        let counts: Vec<u32> = (0..rows).map(|i| if i % 100 == 0 { u32::MAX } else { i as u32 % 5 }).collect();
        let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let counts_on_device = rig.upload(&bytes, &rig.stream);
        let length = scan::expansion_bytes(rows as u64) as usize;
        let sums = DeviceBuffer::new(length, &rig.stream, &rig.pool).unwrap();
        let scratch = DeviceBuffer::new(scan::scratch_bytes(rows as u64) as usize, &rig.stream, &rig.pool).unwrap();
        let images = millpond_kernels::Images::new(&rig.device);
        let known = ExtentRows::Known(rows as u64);
        scan::running_sums(&images, counts_on_device.as_view(), &known, sums.as_view(), scratch.as_view(), &rig.stream)
            .unwrap();
        let words: Vec<u64> =
            rig.download(sums.as_view()).as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut expected = Vec::new();
        let mut sum = 0u64;
        for count in &counts {
            sum += u64::from(*count);
            expected.push(sum);
        }
        assert_eq!((words[1], words[3]), (sum, rows as u64));
        assert_eq!(&words[8..], expected.as_slice(), "{rows} rows");
    }
    rig.assert_clean();
}

#[test]
fn marks_are_the_build_rows_that_found_a_match() {
    let rig = Rig::seeded(9);
    let side = vec![column(Repr::I64, (0..70i64).map(|i| i * 2)).ranged(0, 138), payload(70)];
    let built = build(&rig, &side, 1, TableKind::Array, false);
    let probe = vec![column(Repr::I64, (0..50i64).map(|i| i * 3)), ids(50)];
    let (mut case, matches) = probing(&built, &probe);
    // No key has two rows: the match start is the row itself.
    let row = case.graph().match_start(matches).unwrap();
    case.spec.sink = SinkSpec::Mark { row };
    let pipeline = rig.pipeline(&case.spec);
    let extents = [rig.extent(&probe, &rig.stream)];
    let marks = DeviceBuffer::zeroed(mark_bytes(70), &rig.stream, &rig.pool).unwrap();
    let tables = std::slice::from_ref(&built.table);
    let input = Input { extents: &extents, tables, ..Input::default() };
    pipeline.mark(input, marks.as_view(), 70, &rig.stream).unwrap();
    let bits = rig.download(&mark_bits(marks.as_view(), 70).unwrap());
    for row in 0..70usize {
        // Build row i has key 2i; it is probed by the multiples of 6 up to 147.
        assert_eq!(bits[row / 8] >> (row % 8) & 1 == 1, row % 3 == 0 && 2 * row <= 147, "row {row}");
    }
    rig.assert_clean();
}

#[test]
fn rows_are_written_and_marked_by_one_launch() {
    let rig = Rig::seeded(10);
    let side = vec![column(Repr::I64, (0..700i64).map(|i| i * 2)).ranged(0, 1398), payload(700)];
    let built = build(&rig, &side, 1, TableKind::Array, false);
    let keys: Vec<i64> = (0..900).map(|i| i * 3 % 1500).collect();
    let probe = vec![column(Repr::I64, keys.clone()), ids(900)];
    // A left join keeps the rows that match; a full join keeps all rows, but marks nothing for those without a match.
    for filtered in [true, false] {
        let (mut case, matches) = probing(&built, &probe);
        let id = case.column(1);
        let row = case.graph().match_start(matches).unwrap();
        if filtered {
            let found = case.graph().test(Test::IsNotNull, matches).unwrap();
            case.spec.filters.push(found);
        }
        case.spec.sink = SinkSpec::MaterialiseAndMark { outputs: vec![id, row], row };
        let pipeline = rig.pipeline(&case.spec);
        let extents = [rig.extent(&probe, &rig.stream)];
        let layout = pipeline.output_layout(&extents);
        let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
        let marks = DeviceBuffer::zeroed(mark_bytes(700), &rig.stream, &rig.pool).unwrap();
        let tables = std::slice::from_ref(&built.table);
        let input = Input { extents: &extents, tables, ..Input::default() };
        let error = pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap_err();
        assert!(error.to_string().contains("they have no place"), "{error}");
        let input = Input { marks: Some(marks.as_view()), ..input };
        pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap();
        let matched = |key: i64| (key % 2 == 0 && key < 1400).then_some(key / 2);
        let rows = (0..900).filter(|&i| !filtered || matched(keys[i]).is_some());
        let expected: Vec<Vec<Cell>> = rows
            .map(|i| vec![Cell::Int(10 * i as i128), matched(keys[i]).map_or(Cell::Null, |row| Cell::Int(row.into()))])
            .collect();
        let columns = rig.read(&output, &layout);
        let given: Vec<Vec<Cell>> = (0..columns[0].len()).map(|i| vec![columns[0][i], columns[1][i]]).collect();
        assert_eq!(given, expected);
        let bits = rig.download(&mark_bits(marks.as_view(), 700).unwrap());
        for row in 0..700usize {
            let marked = keys.iter().any(|key| matched(*key) == Some(row as i64));
            assert_eq!(bits[row / 8] >> (row % 8) & 1 == 1, marked, "row {row}");
        }
    }
    rig.assert_clean();
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let rig = Rig::new();
    let side = vec![column(Repr::I64, [1i64, 2]).ranged(1, 2), payload(2)];
    let built = build(&rig, &side, 1, TableKind::Array, false);
    let probe = vec![column(Repr::I64, [1i64]), ids(1)];
    let (case, matches) = probing(&built, &probe);
    let mut case = case;
    case.spec.sink = SinkSpec::Materialise { outputs: vec![matches] };
    let pipeline = rig.pipeline(&case.spec);
    let extents = [rig.extent(&probe, &rig.stream)];
    let layout = pipeline.output_layout(&extents);
    let output = DeviceBuffer::new(layout.bytes, &rig.stream, &rig.pool).unwrap();
    let run = |input: Input<'_>| pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap_err();
    let refused = |error: KernelError, what: &str| assert!(error.to_string().contains(what), "{error}");
    refused(run(Input { extents: &extents, ..Input::default() }), "0 join tables where the pipeline probes 1");
    let other = build(&rig, &[column(Repr::I64, [1i64, 9]).ranged(1, 9), payload(2)], 1, TableKind::Array, false);
    let tables = std::slice::from_ref(&other.table);
    refused(run(Input { extents: &extents, tables, ..Input::default() }), "laid out for other keys");
    let short = [TableInput { table: built.table.table.view(0..64).unwrap(), ..built.table.clone() }];
    refused(run(Input { extents: &extents, tables: &short, ..Input::default() }), "64 bytes where");

    // Keys of another representation, a direct table without a range, no keys.
    let mut graph = Graph::new();
    let key = graph.column(0, Ty::new(Repr::I32));
    assert!(graph.probe(0, &built.spec, &[key]).unwrap_err().to_string().contains("I32"));
    let unbounded =
        TableSpec { keys: vec![Ty::new(Repr::I64)], kind: TableKind::Array, lists: false, nulls_equal: false };
    refused(TableLayout::new(&unbounded, 10).unwrap_err(), "cannot address");
    let none = TableSpec { keys: vec![], kind: TableKind::Hash, lists: false, nulls_equal: false };
    refused(TableLayout::new(&none, 10).unwrap_err(), "no keys");
    let listed = TableSpec { kind: TableKind::Bitmap, lists: true, ..built.spec.clone() };
    refused(TableLayout::new(&listed, 10).unwrap_err(), "no lists");

    // Lists that were not built, leaders without a buffer, lists in a buffer that is too small.
    let mut listed = case.clone();
    listed.spec.tables[0].lists = true;
    let pipeline = rig.pipeline(&listed.spec);
    let tables = std::slice::from_ref(&built.table);
    let input = Input { extents: &extents, tables, ..Input::default() };
    refused(pipeline.materialise(input, output.as_view(), &layout, &rig.stream).unwrap_err(), "it has no lists");
    let mut case = Case::new(side.clone());
    let key = case.column(0);
    let table = TableSpec { lists: true, ..built.spec.clone() };
    case.spec.sink = SinkSpec::Table { table, keys: vec![key] };
    let pipeline = rig.pipeline(&case.spec);
    let input = Input { extents: std::slice::from_ref(&built.extent), ..Input::default() };
    let (table, layout) = (&built.table.table, &built.table.layout);
    let error = pipeline.build_table(input, table, layout, None, &rig.stream).unwrap_err();
    refused(error, "the leaders have no place");
    let images = millpond_kernels::Images::new(&rig.device);
    let error = list_rows(&images, layout, output.as_view(), &table.view(0..8).unwrap(), &rig.stream).unwrap_err();
    refused(error, "8 bytes where");
    rig.assert_clean();
}
