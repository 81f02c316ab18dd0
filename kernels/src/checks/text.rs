//! Claims about texts: search, slices, lengths, packing to dense bytes, creation, and use as group keys.

use std::collections::BTreeMap;

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer, DeviceView};

use super::{Rig, mixed, packed, word};
use crate::codegen::ir::*;
use crate::layout::OutputLayout;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput, PipelineCache};
use crate::regex::{Automata, automata};
use crate::text::{self, Working};

/// The pattern `%ond%w_e%`, in the kernels' format and as a search in plain Rust.
const PATTERN: [u8; 9] = [ANY_CHARACTERS, b'o', b'n', b'd', ANY_CHARACTERS, b'w', ONE_CHARACTER, b'e', ANY_CHARACTERS];

fn matches(text: &str) -> bool {
    let Some(at) = text.find("ond") else { return false };
    let rest: Vec<char> = text[at + 3..].chars().collect();
    rest.windows(3).any(|three| three[0] == 'w' && three[2] == 'e')
}

fn texts(rows: usize) -> Vec<Option<String>> {
    let one = |row: usize| {
        let salt = mixed(row as u64);
        let parts = ["mill", "pond", " wheel", "日本", "é", "wée ", "", "x"];
        let count = if row % 257 == 7 { 300 } else { salt % 7 };
        let part = |i: u64| parts[(mixed(salt ^ i << 8) % parts.len() as u64) as usize];
        (salt >> 32 & 7 != 0).then(|| (0..count).map(part).collect())
    };
    (0..rows).map(one).collect()
}

/// Offsets, then bytes.
fn stored(texts: &[Option<String>]) -> Vec<u8> {
    let mut at = (texts.len() as u32 + 1) * 4;
    let mut offsets = at.to_le_bytes().to_vec();
    for text in texts {
        at += text.as_deref().map_or(0, str::len) as u32;
        offsets.extend(at.to_le_bytes());
    }
    offsets.extend(texts.iter().flatten().flat_map(|text| text.bytes()));
    offsets
}

/// The rows of a column of views, `None` for NULL.
fn packed_texts(
    rig: &Rig,
    output: &DeviceBuffer,
    layout: &OutputLayout,
    column: usize,
    reached: &[DeviceView],
) -> Result<Vec<Option<String>>, CheckError> {
    let rows = layout.extent(output.as_view())?.rows;
    let count = word(&rig.download(&output.view(OutputLayout::CONTROL)?)?, 8) as usize;
    let column = &layout.columns[column];
    let views = output.view(column.values.clone())?;
    let place = Working::new(layout.rows_upper_bound);
    let working = rig.output(place.bytes())?;
    text::dense_ends(&rig.images, &views, &rows, working.as_view(), rig.stream())?;
    let total = word(&rig.download(&working.view(Working::CONTROL)?)?, 8) as usize;
    let dense = rig.output(total.max(1))?;
    text::pack(&rig.images, &views, reached, &rows, working.as_view(), dense.as_view(), rig.stream())?;
    if count == 0 {
        return Ok(vec![]);
    }
    let ends = rig.download(&working.view(place.ends())?.view(0..count * 8)?)?;
    let bytes = if total == 0 { vec![] } else { rig.download(&dense.view(0..total)?)? };
    let valid = match &column.validity {
        Some(validity) => rig.download(&output.view(validity.clone())?)?,
        None => vec![0xff; count.div_ceil(8)],
    };
    let mut from = 0;
    let row = |row: usize| {
        let to = word(&ends, row * 8) as usize;
        let text = String::from_utf8_lossy(&bytes[from..to]).into_owned();
        from = to;
        (valid[row / 8] >> (row % 8) & 1 == 1).then_some(text)
    };
    Ok((0..count).map(row).collect())
}

/// A pipeline over one nullable text column and constant texts.
fn over_texts(graph: &Graph, constants: usize, sink: SinkSpec) -> PipelineSpec {
    let ty = Ty::new(Repr::Text);
    PipelineSpec {
        extents: Extents::One,
        columns: vec![ColumnSpec { physical: Physical::Text, has_base: false, ty: ty.nullable(true) }],
        literals: vec![],
        lookups: vec![LookupSpec { physical: Physical::Text, ty }; constants],
        tables: vec![],
        expanded: false,
        graph: graph.clone(),
        filters: vec![],
        sink,
    }
}

pub(super) fn texts_are_searched_and_cut(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    let mut graph = Graph::new();
    let ty = Ty::new(Repr::Text).nullable(true);
    let column = graph.column(0, ty);
    let code = graph.integer(0, Repr::U32);
    let pattern = graph.lookup(code, 0, Ty::new(Repr::Text))?;
    let found = graph.text(TextFunction::Like, &[column, pattern])?;
    let (second, four) = (graph.integer(2, Repr::I64), graph.integer(4, Repr::I64));
    let part = graph.text(TextFunction::Substring, &[column, second, four])?;
    let sink = SinkSpec::Materialise { outputs: vec![column, part] };
    let pipeline = cache.pipeline(&PipelineSpec { filters: vec![found], ..over_texts(&graph, 1, sink) })?;
    let lookups = constants(&rig, &[&PATTERN])?;
    for rows in [1, 33, 4_097, 20_011] {
        let texts = texts(rows);
        let values = rig.upload(&stored(&texts))?;
        let validity = rig.upload(&packed(&texts.iter().map(Option::is_some).collect::<Vec<_>>()))?;
        let input =
            ColumnInput { values: values.as_view().clone(), validity: Some(validity.as_view().clone()), base: 0 };
        let extents = [ExtentInput { rows: ExtentRows::Known(rows as u64), columns: vec![Some(input)] }];
        let layout = pipeline.output_layout(&extents);
        let output = rig.output(layout.bytes)?;
        let input = Input { extents: &extents, lookups: &lookups, ..Input::default() };
        pipeline.materialise(input, output.as_view(), &layout, rig.stream())?;
        let reached = [values.as_view().clone(), output.as_view().clone()];
        let kept: Vec<Option<String>> = texts.into_iter().filter(|text| text.as_deref().is_some_and(matches)).collect();
        let cut = |text: &Option<String>| text.as_ref().map(|text| text.chars().skip(1).take(4).collect::<String>());
        let parts: Vec<Option<String>> = kept.iter().map(cut).collect();
        same(&format!("texts found among {rows}"), packed_texts(&rig, &output, &layout, 0, &reached)?, kept)?;
        same(&format!("parts of texts among {rows}"), packed_texts(&rig, &output, &layout, 1, &reached)?, parts)?;
    }
    drop(lookups);
    rig.base.finish()
}

/// Lookup tables of the constant texts.
fn constants(rig: &Rig, texts: &[&[u8]]) -> Result<Vec<LookupInput>, CheckError> {
    let table = |text: &&[u8]| {
        let mut table = [8_u32, 8 + text.len() as u32].iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<_>>();
        table.extend(*text);
        Ok(LookupInput { values: rig.upload(&table)?.as_view().clone(), validity: None })
    };
    texts.iter().map(table).collect()
}

pub(super) fn texts_are_made_and_grouped(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let cache = PipelineCache::new(device);
    let mut graph = Graph::new();
    let ty = Ty::new(Repr::Text).nullable(true);
    let column = graph.column(0, ty);
    let code = graph.integer(0, Repr::U32);
    let plain = Ty::new(Repr::Text);
    let [cases, sought, other] =
        [graph.lookup(code, 0, plain)?, graph.lookup(code, 1, plain)?, graph.lookup(code, 2, plain)?];
    let expression = graph.lookup(code, 3, plain)?;
    let matched = graph.text(TextFunction::RegexReplace { all: true, quits: false }, &[column, expression, other])?;
    let upper = graph.text(TextFunction::Upper, &[column, cases])?;
    let replaced = graph.text(TextFunction::Replace, &[upper, sought, other])?;
    let twice = graph.text(TextFunction::Concatenate { strict: true }, &[replaced, other, matched])?;
    let table = text::case_table(true);
    let Automata { bytes, .. } = automata("mi?l{2}", true).map_err(CheckError::Refused)?;
    let lookups = constants(&rig, &[&table, b"MILL", "wée".as_bytes(), &bytes])?;
    let mut aggregate = AggregateSpec::new(vec![replaced]);
    aggregate.accumulate(&graph, Accumulator { aggregate: Aggregate::CountStar, filter: None });
    let spec = |sink: SinkSpec| over_texts(&graph, 4, sink);
    let making = cache.pipeline(&spec(SinkSpec::Materialise { outputs: vec![twice] }))?;
    let grouping = cache.pipeline(&spec(SinkSpec::Aggregate(aggregate)))?;
    let new_arena = |spec: &PipelineSpec, input: &Input<'_>| -> Result<DeviceBuffer, CheckError> {
        let bytes = text::arena_bytes(spec, input, 4) as usize;
        Ok(DeviceBuffer::zeroed(bytes, rig.stream(), &rig.base.pool)?)
    };
    for rows in [1, 33, 4_097, 20_011] {
        let texts = texts(rows);
        let values = rig.upload(&stored(&texts))?;
        let validity = rig.upload(&packed(&texts.iter().map(Option::is_some).collect::<Vec<_>>()))?;
        let input =
            ColumnInput { values: values.as_view().clone(), validity: Some(validity.as_view().clone()), base: 0 };
        let extents = [ExtentInput { rows: ExtentRows::Known(rows as u64), columns: vec![Some(input)] }];
        let input = Input { extents: &extents, lookups: &lookups, ..Input::default() };
        let becomes = |text: &String| text.to_uppercase().replace("MILL", "wée");

        let layout = making.output_layout(&extents);
        let output = rig.output(layout.bytes)?;
        let arena = new_arena(&making.compiled().spec, &input)?;
        making.materialise(Input { arena: Some(arena.as_view()), ..input }, output.as_view(), &layout, rig.stream())?;
        let mut reached: Vec<DeviceView> = lookups.iter().map(|table| table.values.clone()).collect();
        reached.extend([&values, &arena, &output].map(|buffer| buffer.as_view().clone()));
        let matched = |text: &String| text.replace("mill", "wée");
        let expected =
            texts.iter().map(|text| text.as_ref().map(|text| format!("{}wée{}", becomes(text), matched(text))));
        same(&format!("texts made of {rows}"), packed_texts(&rig, &output, &layout, 0, &reached)?, expected.collect())?;

        // Two launches into one table: the second finds the keys of the first.
        let state_layout = grouping.state_layout(2 * rows as u64)?;
        let state = DeviceBuffer::zeroed(state_layout.bytes, rig.stream(), &rig.base.pool)?;
        let mut expected: BTreeMap<Option<String>, u64> = BTreeMap::new();
        for _ in 0..2 {
            let arena = new_arena(&grouping.compiled().spec, &input)?;
            let input = Input { texts: &reached, arena: Some(arena.as_view()), ..input };
            grouping.accumulate(input, state.as_view(), &state_layout, rig.stream())?;
            reached.push(arena.as_view().clone());
            for text in &texts {
                *expected.entry(text.as_ref().map(becomes)).or_default() += 1;
            }
        }
        let layout = grouping.emit_layout(&state_layout, rows as u64)?;
        let output = rig.output(layout.bytes)?;
        grouping.emit(state.as_view(), &state_layout, output.as_view(), &layout, rig.stream())?;
        reached.push(output.as_view().clone());
        let keys = packed_texts(&rig, &output, &layout, 0, &reached)?;
        let counts = rig.download(&output.view(layout.columns[1].values.clone())?)?;
        let groups: Vec<_> = keys.into_iter().enumerate().map(|(at, key)| (key, word(&counts, at * 8))).collect();
        same(&format!("groups of {rows} texts"), groups.len(), expected.len())?;
        same(&format!("rows of groups of {rows} texts"), groups.into_iter().collect(), expected)?;
    }
    drop(lookups);
    rig.base.finish()
}
