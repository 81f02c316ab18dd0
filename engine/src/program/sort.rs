//! Sorts a part: row numbers by key, then every column fetched in their order.
//!
//!   [price | name | rank of name]   ── keys ──►  [2, 0, 1]  ── fetch ──►  [price | name] in order
//!
//! Order    stable, NULLs first or last by key, floats in total order.
//! Limit    where only the first rows are wanted, the others are not fetched, and up to 1,024 not sorted.
//! Memory   the part once more, its row numbers, and up to 24 bytes a row while they are sorted.
//! Waits    never: the number of rows stays on the device.

use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, Graph, LookupSpec, Physical, PipelineSpec, Repr, SinkSpec, Ty,
};
use millpond_kernels::pipeline::{Input, LookupInput};
use millpond_kernels::sort;
use millpond_memory::{DeviceBuffer, Stream};

use super::failure::Failure;
use super::lower::SortKey;
use super::part::Part;
use super::run::Run;

/// `part` in the order of `keys`, which name its columns; of its rows the first `limit`, or all.
pub(super) fn sorted(
    part: Part,
    keys: &[SortKey],
    limit: Option<usize>,
    run: &Run,
    stream: &Stream,
) -> Result<Part, Failure> {
    let engine = &run.engine;
    let layout = &part.layout;
    let rows = part.as_extent()?.rows;
    let bound = layout.rows_upper_bound;
    if bound == 0 {
        return Ok(part);
    }
    let mut columns = Vec::with_capacity(keys.len());
    for key in keys {
        let column = &layout.columns[key.output];
        let values = part.buffer.view(column.values.clone())?;
        columns.push(sort::SortKey {
            validity: column.validity.clone().map(|range| part.buffer.view(range)).transpose()?,
            range: column.ty.range,
            descending: key.descending,
            nulls_first: key.nulls_first,
            ..sort::SortKey::new(&values, column.physical)
        });
    }
    let sort = sort::Sort::new(columns, bound, limit.map(|limit| limit as u64))?;
    let descriptors = sort.descriptors();
    // One allocation: the descriptors, the order, and what the sort itself needs.
    let at = |bytes: usize| bytes.next_multiple_of(256);
    let order = at(descriptors.len());
    let scratch = at(order + sort.order_bytes());
    let end = scratch + sort.scratch_bytes();
    let _promise = run.promise(end)?;
    let working = DeviceBuffer::new(end, &stream.with_scope(&run.tags.sort), &engine.pool)?;
    let descriptor_view = working.view(0..descriptors.len())?;
    descriptor_view.upload_from(&descriptors, stream, &engine.pinned)?;
    let order = working.view(order..order + sort.order_bytes())?;
    let scratch = working.view(scratch..end)?;
    let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
    sort.run(&engine.images, &descriptor_view, &reached, &rows, &order, Some(&scratch), stream)?;

    // All columns are fetched by one launch: a pipeline over the row numbers, in which every column is a lookup table.
    let columns = &layout.columns[..part.outputs.len()];
    let mut graph = Graph::new();
    let row = graph.column(0, Ty::new(Repr::U32));
    let mut outputs = Vec::with_capacity(columns.len());
    let mut tables = Vec::with_capacity(columns.len());
    for (table, column) in columns.iter().enumerate() {
        outputs.push(graph.lookup(row, table as u32, column.ty).map_err(|e| Failure::trouble(e.to_string()))?);
        let validity = column.validity.clone().map(|range| part.buffer.view(range)).transpose()?;
        tables.push(LookupInput { values: part.buffer.view(column.values.clone())?, validity });
    }
    let spec = PipelineSpec {
        extents: Extents::One,
        columns: vec![ColumnSpec { physical: Physical::U32, has_base: false, ty: Ty::new(Repr::U32) }],
        literals: vec![],
        lookups: columns.iter().map(|c| LookupSpec { physical: c.physical, ty: c.ty }).collect(),
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Materialise { outputs },
    };
    let fetch = run.pipeline(&spec)?;
    let extents = &[sort.order(&order)?];
    let layout = fetch.output_layout(extents);
    let (buffer, promise) = run.output(&layout, false, stream)?;
    let input = Input { extents, lookups: &tables, texts: &reached, ..Input::default() };
    fetch.materialise(input, &buffer, &layout, stream)?;
    Ok(Part::new(&buffer, layout, part.outputs.clone()).promised(promise))
}
