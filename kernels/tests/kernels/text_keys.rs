//! Texts as keys of groups and joins, against hash maps.

use std::collections::HashMap;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::join::TableInput;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, Input};
use millpond_memory::{DeviceBuffer, DeviceView};

use crate::pipeline_rig::Random;
use crate::text_bench::{Bench, Out, some_texts};

impl Bench {
    /// Rows of each group, from several launches over the same rows; the table grows between them.
    fn grouped(&self, keys: &[NodeId], launches: usize) -> HashMap<Vec<Out>, i128> {
        let (specs, inputs): (Vec<_>, Vec<_>) = self.columns.iter().map(|column| self.column(column)).unzip();
        let mut aggregate = AggregateSpec::new(keys.to_vec());
        aggregate.accumulate(&self.graph, Accumulator { aggregate: Aggregate::CountStar, filter: None });
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: specs,
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph: self.graph.clone(),
            filters: vec![],
            sink: SinkSpec::Aggregate(aggregate),
        };
        let reached: Vec<DeviceView> = inputs.iter().map(|column| column.values.clone()).collect();
        let rows = self.rows() as u64;
        let extent = ExtentInput { rows: ExtentRows::Known(rows), columns: inputs.into_iter().map(Some).collect() };
        let (rig, pipeline) = (&self.rig, self.rig.pipeline(&spec));
        let mut layout = pipeline.state_layout(rows).expect("few");
        let mut state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).expect("room");
        for launch in 0..launches {
            if launch > 0 {
                let larger = pipeline.state_layout(rows << (2 * launch)).expect("few");
                let next = DeviceBuffer::zeroed(larger.bytes, &rig.stream, &rig.pool).expect("room");
                pipeline.rehash(state.as_view(), &layout, next.as_view(), &larger, &rig.stream).expect("fits");
                (state, layout) = (next, larger);
            }
            let input = Input { extents: std::slice::from_ref(&extent), texts: &reached, ..Input::default() };
            pipeline.accumulate(input, state.as_view(), &layout, &rig.stream).unwrap_or_else(|e| panic!("{e}"));
        }
        let out_layout = pipeline.emit_layout(&layout, rows).expect("few");
        let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).expect("room");
        pipeline.emit(state.as_view(), &layout, output.as_view(), &out_layout, &rig.stream).expect("fits");
        let reached: Vec<DeviceView> = reached.into_iter().chain([output.as_view().clone()]).collect();
        let (columns, error) = self.read(&output, &out_layout, &reached);
        assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
        rig.assert_clean();
        let mut groups = HashMap::new();
        for group in 0..columns[0].len() {
            let key = columns[..keys.len()].iter().map(|column| column[group].clone()).collect();
            let Out::Int(count) = columns[keys.len()][group] else { panic!("a count is a number") };
            assert!(groups.insert(key, count).is_none(), "a group comes once");
        }
        groups
    }
}

#[test]
fn texts_are_keys_of_groups() {
    let million = "x".repeat(1 << 20);
    let another = "x".repeat((1 << 20) - 1) + "y";
    let mut some = some_texts();
    // Equal length and prefix, up to twelve bytes and beyond.
    some.extend((0..40).map(|i| format!("the same{:0width$}", i % 20, width = if i < 20 { 4 } else { 30 })));
    let mut random = Random(11);
    let mut rows: Vec<Option<&str>> = (0..600)
        .map(|_| (random.below(9) != 0).then(|| some[random.below(some.len() as u64) as usize].as_str()))
        .collect();
    rows.extend([Some(&*million), Some(&another), Some(&million), None]);
    let numbers: Vec<Option<i64>> =
        rows.iter().map(|_| (random.below(4) != 0).then(|| random.below(3) as i64)).collect();

    let mut bench = Bench::new();
    let text = bench.texts(rows.iter().map(|text| text.map(str::as_bytes)));
    let number = bench.numbers(numbers.clone());
    let left = {
        let three = bench.graph.integer(3, Repr::I64);
        bench.graph.text(TextFunction::Left, &[text, three]).expect("a text")
    };
    let short = |text: &Option<&str>| text.map(|text| text.chars().take(3).collect::<String>());
    for (name, keys) in [("a text", vec![text]), ("two texts and a number", vec![left, number, text])] {
        let mut expected: HashMap<Vec<Out>, i128> = HashMap::new();
        for (own, number) in rows.iter().zip(&numbers) {
            let (whole, number) = (Out::from(*own), number.map_or(Out::Null, |number| Out::Int(number.into())));
            let key = match keys.len() {
                1 => vec![whole],
                _ => vec![short(own).map_or(Out::Null, |text| text.as_str().into()), number, whole],
            };
            *expected.entry(key).or_default() += 3;
        }
        assert_eq!(bench.grouped(&keys, 3), expected, "{name}");
    }
}

#[test]
fn texts_are_keys_of_joins() {
    let million = "x".repeat(1 << 20);
    let another = "x".repeat((1 << 20) - 1) + "y";
    let mut some = some_texts();
    // Equal length and prefix, up to twelve bytes and beyond.
    some.extend((0..40).map(|i| format!("the same{:0width$}", i % 20, width = if i < 20 { 4 } else { 30 })));
    let mut random = Random(12);
    let mut side = |rows: usize| -> Vec<Option<&str>> {
        let mut texts: Vec<Option<&str>> = (0..rows)
            .map(|_| (random.below(9) != 0).then(|| some[random.below(some.len() as u64) as usize].as_str()))
            .collect();
        texts.extend([Some(&*million), None, Some("only here")]);
        texts
    };
    let (built, probing) = (side(90), side(150));
    let probing = [probing, vec![Some(&*another)]].concat();
    for nulls_equal in [false, true] {
        // The build side: a table of texts, and the leaders of the rows.
        let mut bench = Bench::new();
        let key = bench.texts(built.iter().map(|text| text.map(str::as_bytes)));
        let (spec, input) = bench.column(&bench.columns[0]);
        let table = TableSpec { keys: vec![spec.ty], kind: TableKind::Hash, lists: false, nulls_equal };
        let pipeline = |columns: Vec<ColumnSpec>, tables: Vec<TableSpec>, graph: &Graph, sink: SinkSpec| PipelineSpec {
            extents: Extents::One,
            columns,
            literals: vec![],
            lookups: vec![],
            tables,
            expanded: false,
            graph: graph.clone(),
            filters: vec![],
            sink,
        };
        let sink = SinkSpec::Table { table: table.clone(), keys: vec![key] };
        let build = bench.rig.pipeline(&pipeline(vec![spec], vec![], &bench.graph, sink));
        assert!(build.compiled().pipeline.instructions <= 400, "{}", build.compiled().pipeline.instructions);
        let rows = ExtentRows::Known(built.len() as u64);
        let extent = ExtentInput { rows, columns: vec![Some(input.clone())] };
        let layout = build.table_layout(built.len() as u64).expect("few");
        let buffer = DeviceBuffer::new(layout.bytes, &bench.rig.stream, &bench.rig.pool).expect("room");
        let from = Input { extents: std::slice::from_ref(&extent), ..Input::default() };
        build.build_table(from, buffer.as_view(), &layout, None, &bench.rig.stream).expect("fits");

        let mut other = Bench::new();
        let key = other.texts(probing.iter().map(|text| text.map(str::as_bytes)));
        other.rig = bench.rig;
        let (spec, probed) = other.column(&other.columns[0]);
        let matches = other.graph.probe(0, &table, &[key]).expect("a key");
        let row = other.graph.match_start(matches).expect("a row");
        let sink = SinkSpec::Materialise { outputs: vec![row] };
        let probe = other.rig.pipeline(&pipeline(vec![spec], vec![table], &other.graph, sink));
        let rows = ExtentRows::Known(probing.len() as u64);
        let extent = ExtentInput { rows, columns: vec![Some(probed)] };
        let extents = std::slice::from_ref(&extent);
        let tables = [TableInput { table: buffer.as_view().clone(), layout, lists: None }];
        let (views, texts) = (probe.output_layout(extents), [input.values]);
        let output = DeviceBuffer::new(views.bytes, &other.rig.stream, &other.rig.pool).expect("room");
        let from = Input { extents, tables: &tables, texts: &texts, ..Input::default() };
        probe.materialise(from, output.as_view(), &views, &other.rig.stream).expect("fits");
        other.rig.assert_clean();
        let column = &views.columns[0];
        let values = other.rig.download(&output.view(column.values.clone()).expect("inside"));
        let valid = other.rig.download(&output.view(column.validity.clone().expect("nullable")).expect("inside"));
        for (row, text) in probing.iter().enumerate() {
            let leader = u32::from_le_bytes(values[row * 4..][..4].try_into().unwrap()) as usize;
            let leader = (valid[row / 8] >> (row % 8) & 1 == 1).then(|| built[leader]);
            let there = built.contains(text) && (nulls_equal || text.is_some());
            assert_eq!(leader, there.then_some(*text), "row {row}");
        }
    }
}
