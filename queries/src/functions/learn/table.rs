//! Uploads a few rows from the host as the result of a segment.
//!
//! ```text
//!   arrays ─ one upload ─► columns ─ one launch ─► part
//! ```

use millpond::column::ColumnInfo;
use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray};
use millpond::datafusion::arrow::datatypes::{Float64Type, Int64Type};
use millpond::error::EngineError;
use millpond::error::failure::Failure;
use millpond::kernels::codegen::ir::{ColumnSpec, Extents, Graph, Physical, PipelineSpec, SinkSpec};
use millpond::kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input};
use millpond::program::part::Part;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::rows::Launches;

/// Alignment of columns, in bytes.
const ALIGNMENT: usize = 256;

/// Bytes of several columns, concatenated.
#[derive(Default)]
struct Columns {
    bytes: Vec<u8>,
}

impl Columns {
    fn put(&mut self, bytes: impl IntoIterator<Item = u8>) -> Range<usize> {
        let start = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(start, 0);
        self.bytes.extend(bytes);
        start..self.bytes.len()
    }

    /// Appends bits in whole words.
    fn put_bits(&mut self, bits: impl Iterator<Item = bool>) -> Range<usize> {
        let mut words: Vec<u32> = vec![];
        for (row, bit) in bits.enumerate() {
            words.resize(row / 32 + 1, 0);
            words[row / 32] |= u32::from(bit) << (row % 32);
        }
        self.put(words.into_iter().flat_map(u32::to_le_bytes))
    }

    fn put_values(&mut self, array: &ArrayRef, physical: Physical) -> Result<Range<usize>, Failure> {
        Ok(match physical {
            Physical::F64 => {
                self.put(array.as_primitive::<Float64Type>().values().iter().flat_map(|v| v.to_le_bytes()))
            }
            Physical::I64 => self.put(array.as_primitive::<Int64Type>().values().iter().flat_map(|v| v.to_le_bytes())),
            Physical::Bit => self.put_bits(array.as_boolean().values().iter()),
            other => return Err(EngineError::internal(format!("a table with a column of {other:?}")).into()),
        })
    }
}

/// Uploads `arrays` as a part with these columns.
pub(super) fn table(at: Launches<'_>, arrays: &[ArrayRef], outputs: &[ColumnInfo]) -> Result<Part, Failure> {
    let mut columns = Columns::default();
    let (mut specs, mut places) = (vec![], vec![]);
    for (array, output) in arrays.iter().zip(outputs) {
        let ty = output.ty()?;
        let physical = Physical::of(ty);
        let values = columns.put_values(array, physical)?;
        let valid = |nulls: &millpond::datafusion::arrow::buffer::NullBuffer| columns.put_bits(nulls.iter());
        places.push((values, array.nulls().filter(|nulls| nulls.null_count() > 0).map(valid)));
        specs.push(ColumnSpec { physical, has_base: false, ty });
    }
    let uploaded = at.upload_bytes(&columns.bytes)?;
    let inputs = places.into_iter().map(|(values, validity)| {
        let validity = validity.map(|range| uploaded.buffer.view(range)).transpose()?;
        Ok(Some(ColumnInput { values: uploaded.buffer.view(values)?, validity, base: 0 }))
    });
    let rows = ExtentRows::Known(arrays.first().map_or(0, |array| array.len() as u64));
    let extents = [ExtentInput { rows, columns: inputs.collect::<Result<_, millpond::memory::MemoryError>>()? }];
    let pipeline = at.run.context.pipeline(&as_they_are(specs))?;
    let layout = pipeline.output_layout(&extents);
    let (buffer, promise) = at.run.output(&layout, true, at.stream)?;
    pipeline.materialise(Input { extents: &extents, ..Input::default() }, &buffer, &layout, at.stream)?;
    at.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
    Ok(Part::new(&buffer, layout, outputs.to_vec()).promised(promise))
}

/// A pipeline that copies all rows of one extent as dense columns.
fn as_they_are(columns: Vec<ColumnSpec>) -> PipelineSpec {
    let mut graph = Graph::new();
    let outputs = columns.iter().enumerate().map(|(index, of)| graph.column(index as u32, of.ty)).collect();
    PipelineSpec {
        extents: Extents::One,
        columns,
        literals: vec![],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Materialise { outputs },
    }
}
