//! Operations on parts: counting their rows, packing several into one, and shrinking a part to its rows.
//!
//!   parts ─ count ─► [ 4 rows of 100 ] [ 7 of 100 ] ─ one launch ─► [ 11 rows ]
//!
//! Memory   the packed part beside the others, which are freed once it is written.
//! Waits    to count, in a first run; packing does not.

use millpond_kernels::abi::extent_bytes;
use millpond_kernels::codegen::ir::{ColumnSpec, Extents, Graph, PipelineSpec, SinkSpec};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::Input;
use millpond_kernels::tune::MAX_EXTENT_PARAM_BYTES;
use millpond_memory::{DeviceBuffer, Reservation, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::answers::{Question, rows_of_each};
use crate::program::movers::{Mover, Moves};
use crate::program::part::{Kept, Part, SMALL_RESULT_BYTES};
use crate::program::run::Run;

impl Run {
    /// A reserved buffer for an output.
    pub fn output(
        &self,
        layout: &OutputLayout,
        waits: bool,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), Failure> {
        // A buffer that may be downloaded whole, or spilled to the host, is cleared: its rows do not fill it.
        let tag = &self.context.tags.output;
        Ok(match waits || layout.bytes <= SMALL_RESULT_BYTES {
            true => self.context.memory.take_zeroed(layout.bytes, tag, stream)?,
            false => self.context.memory.take(layout.bytes, tag, stream)?,
        })
    }

    /// Reads back the row counts of a segment's parts, if unknown, keeps them as upper bounds, and returns the sum.
    pub async fn count_rows_of(&self, segment: usize, parts: &mut [Part], stream: &Stream) -> Result<u64, Failure> {
        if let Some(rows) = rows_known_of(parts) {
            return Ok(rows);
        }
        let control = |part: &Part| part.buffer.view(OutputLayout::CONTROL);
        let controls = parts.iter().map(control).collect::<Result<Vec<_>, _>>()?;
        let counts = self.read_back((segment, Question::Rows), &controls, rows_of_each, stream).await?;
        for (part, rows) in parts.iter_mut().zip(&counts) {
            part.rows_known(*rows)?;
        }
        if let [rows] = counts.as_slice() {
            self.keep_capacity(segment, *rows);
        }
        Ok(counts.iter().sum())
    }

    /// Packs several parts with the same columns into one.
    pub fn together(&self, parts: Vec<Kept>, stream: &Stream) -> Result<Part, Failure> {
        let parts = parts.into_iter().map(|part| part.on_device(stream)).collect::<Result<Vec<_>, _>>()?;
        self.joined(parts, false, stream)
    }

    /// Like [`together`](Self::together); `waits` if the part may have to be spilled to the host.
    pub(crate) fn joined(&self, parts: Vec<Part>, waits: bool, stream: &Stream) -> Result<Part, Failure> {
        let one_is_enough = match parts.as_slice() {
            [one] => !one.is_sparse(),
            _ => false,
        };
        self.packed(parts, one_is_enough, waits, stream)
    }

    /// Shrinks a part to the room that its rows need.
    pub async fn shrink(&self, segment: usize, part: Part, stream: &Stream) -> Result<Part, Failure> {
        let mut parts = vec![part];
        let rows = self.count_rows_of(segment, &mut parts, stream).await?;
        let stays = parts.first().is_some_and(|part| rows * 2 > part.layout.rows_upper_bound);
        self.packed(parts, stays, true, stream)
    }

    /// Packs parts into one, unless `one_is_enough`.
    fn packed(&self, mut parts: Vec<Part>, one_is_enough: bool, waits: bool, stream: &Stream) -> Result<Part, Failure> {
        if one_is_enough {
            return parts.pop().ok_or_else(|| EngineError::internal("there is a part at least").into());
        }
        let first = parts.first().ok_or_else(|| EngineError::internal("there is a part at least"))?;
        // Every column of the layout is copied: sort keys follow those of the result.
        let columns = first.layout.column_specs();
        // One part is described by the launch itself; descriptors of several are uploaded.
        let is_one = parts.len() == 1 && extent_bytes(columns.len()) <= MAX_EXTENT_PARAM_BYTES;
        let number = if is_one { Extents::One } else { Extents::Many };
        let mover = Mover { moves: Moves::Pack(number), columns: columns.clone() };
        let pipeline = self.mover(mover, || Ok(packing(number, columns)))?;
        let extents = parts.iter().map(|part| part.all_columns()).collect::<Result<Vec<_>, _>>()?;
        let descriptors = match is_one {
            true => None,
            false => {
                let bytes = pipeline.descriptors(&extents)?;
                Some(DeviceBuffer::upload(&bytes, stream, &self.context.engine.pool, &self.context.engine.pinned)?)
            }
        };
        let descriptors = descriptors.as_ref().map(DeviceBuffer::as_view);
        let layout = pipeline.output_layout(&extents);
        let (buffer, promise) = self.output(&layout, waits, stream)?;
        let texts = self.reached.by(&pipeline.compiled().spec);
        let input = Input { extents: &extents, descriptors, texts: &texts, ..Input::default() };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.context.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut packed = Part::new(&buffer, layout, vec![]).arranged(&first.outputs, &first.at).promised(promise);
        if let Some(rows) = rows_known_of(&parts) {
            packed.rows_known(rows)?;
        }
        Ok(packed)
    }
}

/// Row count of all parts, if each is known.
fn rows_known_of(parts: &[Part]) -> Option<u64> {
    parts.iter().map(Part::known_rows).sum()
}

/// Spec that writes all rows of the extents as dense columns.
fn packing(extents: Extents, columns: Vec<ColumnSpec>) -> PipelineSpec {
    let mut graph = Graph::new();
    let outputs = columns.iter().enumerate().map(|(index, of)| graph.column(index as u32, of.ty)).collect();
    PipelineSpec {
        extents,
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
