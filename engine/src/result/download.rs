//! Downloads a part as an Arrow batch.
//!
//!   part ── small ──► one copy, including the control block
//!        └─ large ──► one copy for the row count, one for the rows
//!
//! Texts    are packed on the device first: one wait for the numbers of rows and bytes, and one for the data.
//! Waits    for the copies.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond_kernels::abi;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::text::{self, Working};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, MemoryError, Reservation, Stream, recorder};

use crate::column::Form;
use crate::column::layout::read_array;
use crate::error::EngineError;
use crate::error::failure::{Failure, control_words, flagged};
use crate::profile::step::DOWNLOAD;
use crate::program::part::{Part, SMALL_RESULT_BYTES};
use crate::program::run::Run;
use crate::result::lists::{ItemsOf, put_together};

/// Divisor of the pinned memory limit; a larger result is downloaded in pieces.
const PINNED_SHARE: usize = 4;

/// A column of string views during its download.
struct Packed {
    /// Column index in the part.
    column: usize,
    views: DeviceView,
    place: Working,
    working: DeviceBuffer,
    dense: Option<DeviceBuffer>,
    bytes: usize,
    _promises: Vec<Reservation>,
}

/// Requested form of a part.
pub(super) struct Wanted {
    schema: SchemaRef,
    /// Items that its lists refer to.
    items: ItemsOf,
    /// Download all rows, regardless of the number still wanted from the result.
    all: bool,
}

impl Wanted {
    /// Requests all rows.
    pub fn all(schema: SchemaRef, items: ItemsOf) -> Self {
        Self { schema, items, all: true }
    }

    /// Number of `rows` that are still wanted; that number never grows later.
    fn of(&self, rows: u64, run: &Run) -> usize {
        if self.all { rows as usize } else { (rows as usize).min(run.results.wanted()) }
    }
}

impl Run {
    /// Downloads a result as an Arrow batch: one copy if it is small, else one for its size and one for its rows.
    pub async fn download(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<RecordBatch, Failure> {
        let items = self.items_of(part, stream, feeding).await?;
        let wanted = Wanted { schema: Arc::clone(&self.prepared.program.schema), items, all: false };
        self.download_columns(part, &wanted, stream, feeding).await
    }

    /// Downloads a part as an Arrow batch of the requested schema.
    pub(super) async fn download_columns(
        &self,
        part: &Part,
        wanted: &Wanted,
        stream: &Stream,
        feeding: bool,
    ) -> Result<RecordBatch, Failure> {
        let _step = recorder::step(DOWNLOAD);
        if part.has_views() {
            return self.download_texts(part, wanted, stream, feeding).await;
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
        let rows = wanted.of(rows, self);
        if small {
            let bytes = first.read()?;
            return self.batch(part, wanted, rows, |range| bytes.get(range).unwrap_or(&[]));
        }
        // While waiting for pinned memory, none is held.
        drop(first);
        // Copies only the bytes of the rows, region by region, into one pinned buffer.
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
            self.batch(part, wanted, rows, |range| {
                let at = pieces.iter().find(|(start, ..)| *start == range.start).map_or(0, |(_, _, at)| *at);
                bytes.get(at..at + range.len()).unwrap_or(&[])
            })
        };
        if self.is_in_pieces(end) {
            let mut bytes = vec![0; end];
            for (start, len, at) in &pieces {
                let view = part.buffer.view(*start..start + len)?;
                self.copy_in_pieces(&view, &mut bytes[*at..at + len], stream, feeding).await?;
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

    /// Maximum bytes that are downloaded at once.
    fn largest_piece(&self) -> usize {
        (self.engine.pinned.limit().as_u64() as usize / PINNED_SHARE).max(1)
    }

    /// True for results that exceed their share of pinned memory.
    pub(crate) fn is_in_pieces(&self, bytes: usize) -> bool {
        bytes > self.largest_piece()
    }

    /// Copies a view to the host through pinned memory, piece by piece.
    pub(crate) async fn copy_in_pieces(
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
        wanted: &Wanted,
        rows: usize,
        bytes: impl Fn(std::ops::Range<usize>) -> &'b [u8],
    ) -> Result<RecordBatch, Failure> {
        let schema = Arc::clone(&wanted.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(part.outputs.len());
        for (index, column) in part.outputs.iter().enumerate() {
            let layout =
                part.column(index).ok_or_else(|| EngineError::internal("every column of a result is there"))?;
            let values = layout.values.start..layout.values.start + layout.physical.value_bytes(rows as u64) as usize;
            let validity = layout.validity.as_ref().map(|range| bytes(range.start..range.start + rows.div_ceil(8)));
            let data_type = schema.field(arrays.len()).data_type();
            let of = (&column.form, layout.physical);
            arrays.push(self.array(data_type, of, wanted, (rows, bytes(values), validity))?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }

    /// Array of a column other than texts, from the downloaded bytes of `rows` rows.
    fn array(
        &self,
        data_type: &DataType,
        (form, physical): (&Form, Physical),
        wanted: &Wanted,
        (rows, values, validity): (usize, &[u8], Option<&[u8]>),
    ) -> Result<ArrayRef, Failure> {
        if let Form::Lists(_, id) = form {
            let words = read_array(&DataType::UInt64, physical, rows, values, validity, None)?;
            return put_together(data_type, words.as_primitive::<UInt64Type>(), wanted.items.get(id));
        }
        let dictionary = match form {
            Form::Codes(_, id) => Some(self.values(*id)?),
            _ => None,
        };
        Ok(read_array(data_type, physical, rows, values, validity, dictionary.as_ref())?)
    }

    /// Downloads a part with texts as an Arrow batch.
    async fn download_texts(
        &self,
        part: &Part,
        wanted: &Wanted,
        stream: &Stream,
        feeding: bool,
    ) -> Result<RecordBatch, Failure> {
        let (engine, layout) = (&self.engine, &part.layout);
        let stream = &stream.with_scope(&self.tags.output);
        let extent = part.as_extent()?;
        let mut packed = Vec::new();
        for index in 0..part.outputs.len() {
            let Some(column) = part.column(index).filter(|column| column.physical == Physical::View) else { continue };
            let views = part.buffer.view(column.values.clone())?;
            let place = Working::new(extent.rows.upper_bound());
            let (working, promise) = self.memory.take(place.bytes(), &self.tags.output, stream)?;
            text::dense_ends(&engine.images, &views, &extent.rows, working.as_view(), stream)?;
            packed.push(Packed {
                column: index,
                views,
                place,
                working,
                dense: None,
                bytes: 0,
                _promises: vec![promise],
            });
        }
        // Copies the number of rows, and the number of bytes of each text column.
        let control = abi::CONTROL_BYTES as usize;
        let mut staging = engine.pinned.take(HostKind::Download, control * (packed.len() + 1)).await?;
        staging.enqueue_to_host(0..control, &part.buffer.view(OutputLayout::CONTROL)?, stream)?;
        for (place, column) in (1..).zip(&packed) {
            let from = column.working.view(Working::CONTROL)?;
            staging.enqueue_to_host(control * place..control * (place + 1), &from, stream)?;
        }
        let pending = staging.idle()?;
        let staging = if feeding { pending.feeding().await? } else { pending.await? };
        let rows = {
            let words = staging.read()?;
            let (error, rows) = control_words(&words[..control])?;
            flagged(error)?;
            if rows > layout.rows_upper_bound {
                let bound = layout.rows_upper_bound;
                return Err(Failure::trouble(format!("the device says {rows} rows of at most {bound}")));
            }
            for (place, column) in (1..).zip(&mut packed) {
                column.bytes = control_words(&words[control * place..][..control])?.1 as usize;
            }
            wanted.of(rows, self)
        };
        drop(staging);

        let reached = self.reached.all();
        for column in &mut packed {
            if rows == 0 || column.bytes == 0 {
                continue;
            }
            let (dense, promise) = self.memory.take(column.bytes, &self.tags.output, stream)?;
            column._promises.push(promise);
            let (views, working) = (&column.views, column.working.as_view());
            text::pack(&engine.images, views, &reached, &extent.rows, working, dense.as_view(), stream)?;
            column.dense = Some(dense);
        }
        // Copies the regions into one pinned buffer.
        let mut pieces: Vec<(DeviceView, usize)> = Vec::new();
        let mut end = 0;
        let mut piece = |view: DeviceView| {
            let at = end;
            end += view.len().next_multiple_of(64);
            let range = at..at + view.len();
            pieces.push((view, at));
            range
        };
        let mut places = Vec::with_capacity(part.outputs.len());
        for index in 0..part.outputs.len() {
            let column =
                part.column(index).ok_or_else(|| EngineError::internal("every column of a result is there"))?;
            let mut take = |buffer: &DeviceView, start: usize, bytes: usize| match bytes {
                0 => Ok(0..0),
                bytes => buffer.view(start..start + bytes).map(&mut piece),
            };
            let validity = match &column.validity {
                Some(validity) => Some(take(&part.buffer, validity.start, rows.div_ceil(8))?),
                None => None,
            };
            let (values, bytes) = match packed.iter().find(|packed| packed.column == index) {
                Some(text) => {
                    let ends = take(text.working.as_view(), text.place.ends().start, rows * 8)?;
                    let bytes = match &text.dense {
                        Some(dense) => take(dense.as_view(), 0, text.bytes)?,
                        None => 0..0,
                    };
                    (ends, Some(bytes))
                }
                None => {
                    let bytes = column.physical.value_bytes(rows as u64) as usize;
                    (take(&part.buffer, column.values.start, bytes)?, None)
                }
            };
            places.push((values, bytes, validity));
        }
        let (copied, staging, read);
        let bytes_read: &[u8] = if self.is_in_pieces(end) {
            let mut bytes = vec![0; end];
            for (view, at) in &pieces {
                self.copy_in_pieces(view, &mut bytes[*at..at + view.len()], stream, feeding).await?;
            }
            copied = bytes;
            &copied
        } else {
            let mut taken = engine.pinned.take(HostKind::Download, end).await?;
            for (view, at) in &pieces {
                taken.enqueue_to_host(*at..at + view.len(), view, stream)?;
            }
            let pending = taken.idle()?;
            staging = if feeding { pending.feeding().await? } else { pending.await? };
            read = staging.read()?;
            &read
        };
        let schema = Arc::clone(&wanted.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(places.len());
        for (index, (values, bytes, validity)) in places.into_iter().enumerate() {
            let data_type = schema.field(index).data_type();
            let validity = validity.map(|range| &bytes_read[range]);
            arrays.push(match bytes {
                Some(bytes) => {
                    // Rows that are no longer wanted have their bytes after those of the others.
                    let ends = &bytes_read[values];
                    let last = ends.last_chunk::<8>().map_or(0, |end| u64::from_le_bytes(*end) as usize);
                    let bytes = bytes_read[bytes].get(..last).unwrap_or(&[]);
                    crate::column::text::read(data_type, rows, ends, bytes, validity)?
                }
                None => {
                    let physical = part.column(index).map_or(Physical::Bit, |column| column.physical);
                    let of = (&part.outputs[index].form, physical);
                    self.array(data_type, of, wanted, (rows, &bytes_read[values], validity))?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }
}
