//! The way home: a part as an Arrow batch, and batches to whoever reads the result.
//!
//!   part ── small ──► one copy, control block and all
//!        └─ large ──► one copy for the number of rows, one for what they take
//!
//! Waits    for the copies. Rows are counted to a LIMIT when they leave.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond_kernels::layout::OutputLayout;
use millpond_memory::{DeviceView, HostKind, MemoryError, Stream, recorder};

use crate::column::Form;
use crate::column::layout::read_array;
use crate::error::EngineError;
use crate::profile::step::DOWNLOAD;
use crate::program::failure::{Failure, control_words, flagged};
use crate::program::part::{Part, SMALL_RESULT_BYTES};
use crate::program::run::Run;

/// A result that takes more of the pinned memory than one such share goes home in pieces.
const PINNED_SHARE: usize = 4;

impl Run {
    /// A result as an Arrow batch: one copy where it is small, else one for its size and one for its rows.
    pub async fn download(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<RecordBatch, Failure> {
        let _step = recorder::step(DOWNLOAD);
        if part.has_views() {
            return self.download_texts(part, stream, feeding).await;
        }
        let pinned = &self.engine.pinned;
        let fetch = async |view: &DeviceView| -> Result<_, MemoryError> {
            let pending = pinned.take(HostKind::Download, view.len()).await?.copy_to_host(view, stream)?;
            if feeding { pending.feeding().await } else { pending.await }
        };
        let layout = &part.layout;
        let small = layout.bytes <= SMALL_RESULT_BYTES;
        let first = match small {
            true => fetch(&part.buffer).await?,
            false => fetch(&part.buffer.view(OutputLayout::CONTROL)?).await?,
        };
        let (error, rows) = control_words(&first.read()?)?;
        flagged(error)?;
        if rows > layout.rows_upper_bound {
            return Err(Failure::trouble(format!(
                "the device says {rows} rows of at most {}",
                layout.rows_upper_bound
            )));
        }
        // More than are wanted now are never wanted later.
        let rows = (rows as usize).min(self.results.wanted());
        if small {
            let bytes = first.read()?;
            return self.batch(part, rows, |range| bytes.get(range).unwrap_or(&[]));
        }
        // Whoever waits for pinned memory holds none.
        drop(first);
        // Only what the rows take is copied, region by region, into one piece of pinned memory.
        let mut pieces: Vec<(usize, usize, usize)> = Vec::new();
        let mut end = 0;
        let mut piece = |start: usize, bytes: usize| {
            pieces.push((start, bytes, end));
            end += bytes.next_multiple_of(64);
        };
        for column in (0..part.outputs.len()).filter_map(|index| part.column(index)) {
            piece(column.values.start, column.physical.value_bytes(rows as u64) as usize);
            if let Some(validity) = &column.validity {
                piece(validity.start, rows.div_ceil(8));
            }
        }
        let batch = |bytes: &[u8]| {
            self.batch(part, rows, |range| {
                let at = pieces.iter().find(|(start, ..)| *start == range.start).map_or(0, |(_, _, at)| *at);
                bytes.get(at..at + range.len()).unwrap_or(&[])
            })
        };
        if self.goes_in_pieces(end) {
            let mut bytes = vec![0; end];
            for (start, len, at) in &pieces {
                let view = part.buffer.view(*start..start + len)?;
                self.in_pieces(&view, &mut bytes[*at..at + len], stream, feeding).await?;
            }
            return batch(&bytes);
        }
        let mut staging = pinned.take(HostKind::Download, end).await?;
        for (start, bytes, at) in pieces.iter().filter(|(_, bytes, _)| *bytes > 0) {
            staging.enqueue_to_host(*at..at + bytes, &part.buffer.view(*start..start + bytes)?, stream)?;
        }
        let pending = staging.idle()?;
        let staging = if feeding { pending.feeding().await? } else { pending.await? };
        let bytes = staging.read()?;
        batch(&bytes)
    }

    /// The largest piece that goes home at once.
    fn largest_piece(&self) -> usize {
        (self.engine.pinned.limit().as_u64() as usize / PINNED_SHARE).max(1)
    }

    /// True for results that take more than their share of pinned memory.
    pub(crate) fn goes_in_pieces(&self, bytes: usize) -> bool {
        bytes > self.largest_piece()
    }

    /// Copies a view home through pinned memory, a piece at a time.
    pub(crate) async fn in_pieces(
        &self,
        view: &DeviceView,
        to: &mut [u8],
        stream: &Stream,
        feeding: bool,
    ) -> Result<(), Failure> {
        let piece = self.largest_piece();
        for (index, to) in to.chunks_mut(piece).enumerate() {
            let from = index * piece;
            let mut staging = self.engine.pinned.take(HostKind::Download, to.len()).await?;
            staging.enqueue_to_host(0..to.len(), &view.view(from..from + to.len())?, stream)?;
            let pending = staging.idle()?;
            let staging = if feeding { pending.feeding().await? } else { pending.await? };
            to.copy_from_slice(&staging.read()?);
        }
        Ok(())
    }

    fn batch<'b>(
        &self,
        part: &Part,
        rows: usize,
        bytes: impl Fn(std::ops::Range<usize>) -> &'b [u8],
    ) -> Result<RecordBatch, Failure> {
        let schema = Arc::clone(&self.prepared.program.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(part.outputs.len());
        for (index, column) in part.outputs.iter().enumerate() {
            let layout =
                part.column(index).ok_or_else(|| EngineError::internal("every column of a result is there"))?;
            let values = layout.values.start..layout.values.start + layout.physical.value_bytes(rows as u64) as usize;
            let validity = layout.validity.as_ref().map(|range| bytes(range.start..range.start + rows.div_ceil(8)));
            let dictionary = match column.form {
                Form::Codes(_, id) => Some(self.tables().values(id)?),
                _ => None,
            };
            let data_type = schema.field(arrays.len()).data_type();
            let array = read_array(data_type, layout.physical, rows, bytes(values), validity, dictionary.as_ref())?;
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }
}
