//! Sorts a part: row numbers by key, then every column fetched in their order.
//!
//!   [price | name | rank of name]   ── keys ──►  [2, 0, 1]  ── gather ──►  [price | name] in order
//!
//! Order    stable, NULLs first or last by key, floats in total order.
//! Memory   the part once more, and its row numbers.
//! Waits    never: the number of rows stays on the device.

use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::{Rows, gather, sort};
use millpond_memory::{DeviceBuffer, Stream};

use super::compile::SortKey;
use super::run::{Failure, Part, output_buffer};
use crate::device::Engine;

/// `part` in the order of `keys`, which name its columns.
pub(super) fn sorted(part: Part, keys: &[SortKey], engine: &Engine, stream: &Stream) -> Result<Part, Failure> {
    let layout = &part.layout;
    let rows = Rows::try_from(&part.as_extent()?.rows)?;
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
            descending: key.descending,
            nulls_first: key.nulls_first,
            ..sort::SortKey::new(&values, sort::KeyValues::Plain(column.physical))
        });
    }
    let descriptors = sort::descriptors(&columns);
    // One allocation: the descriptors, the row numbers, and what the sort itself needs.
    let at = |bytes: usize| bytes.next_multiple_of(256);
    let numbers = at(descriptors.len());
    let scratch = at(numbers + bound as usize * 4);
    let end = scratch + sort::scratch_bytes(bound) as usize;
    let working = DeviceBuffer::new(end, stream, &engine.pool)?;
    let descriptor_view = working.view(0..descriptors.len())?;
    descriptor_view.upload_from(&descriptors, stream, &engine.pinned)?;
    let map = working.view(numbers..numbers + bound as usize * 4)?;
    let scratch = (end > scratch).then(|| working.view(scratch..end)).transpose()?;
    sort::sort(&engine.images, &columns, &descriptor_view, &[], &rows, &map, scratch.as_ref(), stream)?;

    let out = output_buffer(layout, engine, stream)?;
    part.buffer.view(OutputLayout::CONTROL)?.copy_to(&out.view(OutputLayout::CONTROL)?, stream)?;
    for column in layout.columns.iter().take(part.outputs.len()) {
        let (from, to) = (part.buffer.view(column.values.clone())?, out.view(column.values.clone())?);
        match column.physical {
            Physical::Bit => gather::gather_bits(&engine.images, &from, &map, &rows, &to, stream)?,
            physical => gather::gather(&engine.images, &from, physical.width(), &map, &rows, &to, stream)?,
        }
        if let Some(validity) = &column.validity {
            let (from, to) = (part.buffer.view(validity.clone())?, out.view(validity.clone())?);
            gather::gather_bits(&engine.images, &from, &map, &rows, &to, stream)?;
        }
    }
    Ok(Part { buffer: out, layout: part.layout.clone(), outputs: part.outputs.clone() })
}
