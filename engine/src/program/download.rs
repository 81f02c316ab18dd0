//! Downloads a part as an Arrow batch.
//!
//!   part ── small ──► one copy, including the control block
//!        └─ large ──► one copy for the row count, one for the rows
//!
//! Texts    are packed on the device first: one wait for the numbers of rows and bytes, and one for the data.
//! Waits    for the copies.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond_kernels::abi;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::text::{self, Working};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, MemoryError, Reservation, Stream, recorder};

use crate::column::Form;
use crate::column::layout::read_array;
use crate::error::EngineError;
use crate::error::failure::{Failure, control_words, flagged};
use crate::profile::step::DOWNLOAD;
use crate::program::lists::{ItemsOf, put_together};
use crate::program::part::{Part, SMALL_RESULT_BYTES};
use crate::program::run::Run;

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

/// Regions of device memory on their way to the host, one after the other.
#[derive(Default)]
struct Regions {
    /// Each with its first byte on the host.
    views: Vec<(DeviceView, usize)>,
    end: usize,
}

impl Regions {
    /// Adds `bytes` bytes from `start` of a buffer; returns their range on the host.
    fn add(&mut self, buffer: &DeviceView, start: usize, bytes: usize) -> Result<Range<usize>, Failure> {
        let at = self.end;
        if bytes > 0 {
            self.views.push((buffer.view(start..start + bytes)?, at));
            self.end += bytes.next_multiple_of(64);
        }
        Ok(at..at + bytes)
    }
}

/// Ranges of a column's bytes on the host. For texts, `values` are the ends of the rows, and `texts` their bytes.
struct ColumnRanges {
    values: Range<usize>,
    texts: Option<Range<usize>>,
    validity: Option<Range<usize>>,
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
        let pinned = &self.context.engine.pinned;
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
        let rows = wanted.of(rows_of(&first.read()?, part)?, self);
        if small {
            let bytes = first.read()?;
            return self.batch(part, wanted, rows, |range| bytes.get(range).unwrap_or(&[]));
        }
        // While waiting for pinned memory, none is held.
        drop(first);
        // Copies only the bytes of the rows, region by region.
        let (mut regions, mut ranges) = (Regions::default(), Vec::new());
        let mut add = |start: usize, bytes: usize| -> Result<(), Failure> {
            ranges.push((start, regions.add(&part.buffer, start, bytes)?));
            Ok(())
        };
        for column in (0..part.outputs.len()).filter_map(|index| part.column(index)) {
            add(column.values.start, column.physical.value_bytes(rows as u64) as usize)?;
            if let Some(validity) = &column.validity {
                add(validity.start, rows.div_ceil(8))?;
            }
        }
        let batch = |bytes: &[u8]| {
            self.batch(part, wanted, rows, |range| {
                let at = ranges.iter().find(|(start, _)| *start == range.start).map_or(0, |(_, at)| at.start);
                bytes.get(at..at + range.len()).unwrap_or(&[])
            })
        };
        self.fetch(&regions, stream, feeding, batch).await
    }

    /// Copies regions into one pinned buffer, or piece by piece if they exceed their share of pinned memory; returns
    /// the result of `read` over their bytes.
    async fn fetch<T>(
        &self,
        regions: &Regions,
        stream: &Stream,
        feeding: bool,
        read: impl FnOnce(&[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.is_in_pieces(regions.end) {
            let mut bytes = vec![0; regions.end];
            for (view, at) in &regions.views {
                self.copy_in_pieces(view, &mut bytes[*at..at + view.len()], stream, feeding).await?;
            }
            return read(&bytes);
        }
        let mut staging = self.context.engine.pinned.take(HostKind::Download, regions.end).await?;
        for (view, at) in &regions.views {
            staging.enqueue_to_host(*at..at + view.len(), view, stream)?;
        }
        let pending = staging.idle()?;
        let staging = if feeding { pending.feeding().await? } else { pending.await? };
        let bytes = staging.read()?;
        read(&bytes)
    }

    /// Maximum bytes that are downloaded at once.
    fn largest_piece(&self) -> usize {
        (self.context.engine.pinned.limit().as_u64() as usize / PINNED_SHARE).max(1)
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
            let mut staging = self.context.engine.pinned.take(HostKind::Download, to.len()).await?;
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
        bytes: impl Fn(Range<usize>) -> &'b [u8],
    ) -> Result<RecordBatch, Failure> {
        let schema = Arc::clone(&wanted.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(part.outputs.len());
        for (index, column) in part.outputs.iter().enumerate() {
            let layout = part.column(index).ok_or_else(no_column)?;
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
        let stream = &stream.with_scope(&self.context.tags.output);
        let extent = part.as_extent()?;
        let mut texts = self.measure_texts(part, &extent.rows, stream)?;
        let rows = wanted.of(self.sizes(part, &mut texts, stream, feeding).await?, self);
        self.pack(&mut texts, rows, &extent.rows, stream)?;
        let (mut regions, mut columns) = (Regions::default(), Vec::with_capacity(part.outputs.len()));
        for index in 0..part.outputs.len() {
            let column = part.column(index).ok_or_else(no_column)?;
            let validity = column.validity.as_ref();
            let validity =
                validity.map(|range| regions.add(&part.buffer, range.start, rows.div_ceil(8))).transpose()?;
            let (values, bytes) = match texts.iter().find(|text| text.column == index) {
                Some(text) => {
                    let ends = regions.add(text.working.as_view(), text.place.ends().start, rows * 8)?;
                    let bytes = match &text.dense {
                        Some(dense) => regions.add(dense.as_view(), 0, text.bytes)?,
                        None => 0..0,
                    };
                    (ends, Some(bytes))
                }
                None => {
                    let bytes = column.physical.value_bytes(rows as u64) as usize;
                    (regions.add(&part.buffer, column.values.start, bytes)?, None)
                }
            };
            columns.push(ColumnRanges { values, texts: bytes, validity });
        }
        self.fetch(&regions, stream, feeding, |bytes| self.text_batch(part, wanted, rows, &columns, bytes)).await
    }

    /// Starts to compute the positions of each text column's rows once they are dense.
    fn measure_texts(&self, part: &Part, rows: &ExtentRows, stream: &Stream) -> Result<Vec<Packed>, Failure> {
        let context = &self.context;
        let mut packed = Vec::new();
        for index in 0..part.outputs.len() {
            let Some(column) = part.column(index).filter(|column| column.physical == Physical::View) else { continue };
            let views = part.buffer.view(column.values.clone())?;
            let place = Working::new(rows.upper_bound());
            let (working, promise) = context.memory.take(place.bytes(), &context.tags.output, stream)?;
            text::dense_ends(&context.engine.images, &views, rows, working.as_view(), stream)?;
            let _promises = vec![promise];
            packed.push(Packed { column: index, views, place, working, dense: None, bytes: 0, _promises });
        }
        Ok(packed)
    }

    /// Reads back the number of rows, and the number of bytes of each text column.
    async fn sizes(&self, part: &Part, texts: &mut [Packed], stream: &Stream, feeding: bool) -> Result<u64, Failure> {
        let control = abi::CONTROL_BYTES as usize;
        let mut staging = self.context.engine.pinned.take(HostKind::Download, control * (texts.len() + 1)).await?;
        staging.enqueue_to_host(0..control, &part.buffer.view(OutputLayout::CONTROL)?, stream)?;
        for (place, column) in (1..).zip(&*texts) {
            let from = column.working.view(Working::CONTROL)?;
            staging.enqueue_to_host(control * place..control * (place + 1), &from, stream)?;
        }
        let pending = staging.idle()?;
        let staging = if feeding { pending.feeding().await? } else { pending.await? };
        let words = staging.read()?;
        let rows = rows_of(&words[..control], part)?;
        for (place, column) in (1..).zip(texts) {
            column.bytes = control_words(&words[control * place..][..control])?.1 as usize;
        }
        Ok(rows)
    }

    /// Starts to pack the texts of the rows into dense bytes.
    fn pack(&self, texts: &mut [Packed], rows: usize, of: &ExtentRows, stream: &Stream) -> Result<(), Failure> {
        let (context, reached) = (&self.context, self.reached.all());
        for column in texts.iter_mut().filter(|column| rows > 0 && column.bytes > 0) {
            let (dense, promise) = context.memory.take(column.bytes, &context.tags.output, stream)?;
            column._promises.push(promise);
            let (views, working) = (&column.views, column.working.as_view());
            text::pack(&context.engine.images, views, &reached, of, working, dense.as_view(), stream)?;
            column.dense = Some(dense);
        }
        Ok(())
    }

    /// Batch of a part with texts, from the downloaded bytes of `rows` rows.
    fn text_batch(
        &self,
        part: &Part,
        wanted: &Wanted,
        rows: usize,
        columns: &[ColumnRanges],
        read: &[u8],
    ) -> Result<RecordBatch, Failure> {
        let schema = Arc::clone(&wanted.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            let data_type = schema.field(index).data_type();
            let (values, validity) = (&read[column.values.clone()], column.validity.clone().map(|range| &read[range]));
            arrays.push(match &column.texts {
                Some(bytes) => {
                    // Rows that are no longer wanted have their bytes after those of the others.
                    let last = values.last_chunk::<8>().map_or(0, |end| u64::from_le_bytes(*end) as usize);
                    let bytes = read[bytes.clone()].get(..last).unwrap_or(&[]);
                    crate::column::text::read(data_type, rows, values, bytes, validity)?
                }
                None => {
                    let physical = part.column(index).map_or(Physical::Bit, |column| column.physical);
                    self.array(data_type, (&part.outputs[index].form, physical), wanted, (rows, values, validity))?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }
}

/// Row count of a part's control block.
///
/// # Errors
/// The error that the block holds, or a count beyond the part's upper bound.
fn rows_of(control: &[u8], part: &Part) -> Result<u64, Failure> {
    let (error, rows) = control_words(control)?;
    flagged(error)?;
    let bound = part.layout.rows_upper_bound;
    if rows > bound {
        return Err(Failure::trouble(format!("the device says {rows} rows of at most {bound}")));
    }
    Ok(rows)
}

fn no_column() -> EngineError {
    EngineError::internal("every column of a result is there")
}
