//! Strings without a dictionary in a run: whose bytes views lead to, and their way home.
//!
//!   extent of texts ─► pipelines ─► views, 16 bytes each ─► pack: dense bytes ─► an Arrow array
//!        └── kept while a view may lead there
//!
//! Learnt    a string column is codes at first. One whose first rows are nearly all different, or that outgrows its dictionary,
//!           starts the run again as texts, where every expression over it has a form without a dictionary; where one has none
//!           its dictionary may become larger.
//! Made      texts lie in an arena of their launch, kept as extents are.
//! Waits     two: for the number of rows and of bytes, and for both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond_kernels::abi;
use millpond_kernels::codegen::ir::{Aggregate, Physical, PipelineSpec, Repr, SinkSpec, Ty};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::Input;
use millpond_kernels::text::{self, Working};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Reservation, Stream};

use crate::column::Form;
use crate::column::layout::read_array;
use crate::error::EngineError;
use crate::program::failure::{Failure, control_words, flagged};
use crate::program::part::Part;
use crate::program::run::Run;

/// A dictionary may have so many times the values if an expression needs one.
pub(crate) const IF_NEEDED: usize = 4;
/// So many rows are looked at before a column is told to be nearly all different.
const ROWS_LOOKED_AT: usize = 1 << 16;
/// Bytes of a text, as long as nothing is known of a column's.
pub(crate) const TYPICAL_BYTES: usize = 32;

/// True when a column with so many different values among its first rows is better off without a dictionary.
pub(crate) fn nearly_all_different(values: usize, rows: usize) -> bool {
    rows >= ROWS_LOOKED_AT && values * 2 > rows
}

/// True when the pipeline has a table that leads to texts of earlier launches: as keys of groups or joins, as the first or
/// last ones of a group.
fn has_texts_in_tables(spec: &PipelineSpec) -> bool {
    let is_text = |ty: &Ty| ty.repr == Repr::Text;
    let groups = match &spec.sink {
        SinkSpec::Aggregate(aggregate) => {
            let ordered = aggregate.orders.iter().flatten().map(|key| key.node);
            let firsts = aggregate.accumulators.iter().filter_map(|one| match one.aggregate {
                Aggregate::First { of, .. } => Some(of),
                _ => None,
            });
            aggregate.keys.iter().copied().chain(ordered).chain(firsts).any(|node| is_text(&spec.graph.ty(node)))
        }
        SinkSpec::Table { table, .. } => table.keys.iter().any(is_text),
        _ => false,
    };
    groups || spec.tables.iter().any(|table| table.keys.iter().any(is_text))
}

/// Buffers that views lead to, and how much room for texts the device makes.
pub struct Reached {
    buffers: Mutex<Vec<(DeviceView, Option<Reservation>)>>,
    /// How much larger than planned the room is.
    arena_times: AtomicU64,
}

impl Reached {
    /// None yet; the room is so many `times` as large as planned, 0 as 1.
    pub fn new(times: u64) -> Self {
        Self { buffers: Mutex::default(), arena_times: AtomicU64::new(times.max(1)) }
    }

    /// More room for the texts that are made from now on: how much more than planned.
    pub fn larger_arenas(&self) -> Result<u64, Failure> {
        let times = self.arena_times.load(Ordering::Relaxed) * ARENA_GROWTH;
        if times > MOST_ARENA_TIMES {
            return Err(Failure::trouble("the texts that the query makes take more room than there can be"));
        }
        self.arena_times.fetch_max(times, Ordering::Relaxed);
        Ok(times)
    }

    /// Keeps a buffer, and what the governor promised for it.
    pub fn keep(&self, bytes: &DeviceView, promise: Option<Reservation>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffers.iter().any(|(known, _)| known.address() == bytes.address()) {
            buffers.push((bytes.clone(), promise));
        }
    }

    /// Lets a buffer go: no view leads there any more.
    pub fn forget(&self, bytes: &DeviceView) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.retain(|(known, _)| known.address() != bytes.address());
    }

    pub fn all(&self) -> Vec<DeviceView> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// What a launch of `spec` may reach: nothing unless it reads views.
    pub fn by(&self, spec: &PipelineSpec) -> Vec<DeviceView> {
        let columns = spec.columns.iter().map(|column| column.physical);
        let views = columns.chain(spec.lookups.iter().map(|table| table.physical)).any(|p| p == Physical::View);
        if views || has_texts_in_tables(spec) { self.all() } else { Vec::new() }
    }
}

/// Room for the texts that one launch makes. Views lead there until it is dropped, or as long as the run if it stays.
pub struct Made<'r> {
    reached: &'r Reached,
    bytes: DeviceView,
    stays: bool,
}

impl Made<'_> {
    pub fn view(&self) -> &DeviceView {
        &self.bytes
    }

    /// Views that are kept may lead there.
    pub fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.reached.forget(&self.bytes);
        }
    }
}

/// True when the pipeline gives texts: views that outlive its launch.
pub(crate) fn gives_texts(spec: &PipelineSpec) -> bool {
    spec.output_types().iter().any(|ty| ty.repr == Repr::Text)
}

impl Run {
    /// Room for what a launch makes; none if it makes no texts.
    pub fn made(&self, spec: &PipelineSpec, input: &Input<'_>, stream: &Stream) -> Result<Option<Made<'_>>, Failure> {
        let bytes = text::arena_bytes(spec, input, self.reached.arena_times.load(Ordering::Relaxed)) as usize;
        if bytes == 0 {
            return Ok(None);
        }
        let promise = self.promise(bytes)?;
        let buffer = DeviceBuffer::zeroed(bytes, &stream.with_scope(&self.tags.output), &self.engine.pool)?;
        let bytes = buffer.as_view().clone();
        self.reached.keep(&bytes, Some(promise));
        Ok(Some(Made { reached: &self.reached, bytes, stays: false }))
    }
}

/// How much more room there is after there was too little.
const ARENA_GROWTH: u64 = 4;
/// Beyond that it is not the plan that was too small.
const MOST_ARENA_TIMES: u64 = 1 << 16;

/// A column of views on its way home.
struct Packed {
    /// Of the part.
    column: usize,
    views: DeviceView,
    place: Working,
    working: DeviceBuffer,
    dense: Option<DeviceBuffer>,
    bytes: usize,
    _promises: Vec<Reservation>,
}

impl Part {
    /// True when anything in it is views, sort keys included.
    pub fn reaches_texts(&self) -> bool {
        self.layout.columns.iter().any(|column| column.physical == Physical::View)
    }

    /// True when a column is of views.
    pub fn has_views(&self) -> bool {
        (0..self.outputs.len()).any(|index| self.column(index).is_some_and(|column| column.physical == Physical::View))
    }
}

impl Run {
    /// The codes of an extent's strings, batch by batch, for the columns of `upload` that are codes.
    ///
    /// # Errors
    /// [`Failure::Texts`] where some are better off without a dictionary, as long as no row has left; later a dictionary may
    /// become larger.
    pub fn interned(&self, upload: usize, batches: &[RecordBatch]) -> Result<Vec<Vec<UInt32Array>>, Failure> {
        let (columns, used) = (&self.prepared.sources[upload].columns, &self.prepared.used[upload]);
        loop {
            let mut texts = Vec::new();
            let mut codes = Vec::with_capacity(columns.len());
            let mut tables = self.tables();
            for (index, column) in columns.iter().enumerate() {
                let mut arrays = Vec::new();
                if let (Form::Codes(_, id), true) = (&column.form, used[index]) {
                    for batch in batches {
                        match tables.intern(*id, batch.column(index)) {
                            Ok(codes) => arrays.push(codes),
                            Err(Failure::Texts(columns)) => {
                                texts.extend(columns);
                                break;
                            }
                            Err(failure) => return Err(failure),
                        }
                        if tables.nearly_all_different(*id) {
                            texts.push((upload, index));
                            break;
                        }
                    }
                }
                codes.push(arrays);
            }
            if texts.is_empty() {
                return Ok(codes);
            }
            if self.results.give_up(&texts) {
                return Err(Failure::Texts(texts));
            }
            tables.need(texts);
        }
    }

    /// A result with texts as an Arrow batch.
    pub async fn download_texts(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<RecordBatch, Failure> {
        let (engine, layout) = (&self.engine, &part.layout);
        let stream = &stream.with_scope(&self.tags.output);
        let extent = part.as_extent()?;
        let mut packed = Vec::new();
        for index in 0..part.outputs.len() {
            let Some(column) = part.column(index).filter(|column| column.physical == Physical::View) else { continue };
            let views = part.buffer.view(column.values.clone())?;
            let place = Working::new(extent.rows.upper_bound());
            let promise = self.promise(place.bytes())?;
            let working = DeviceBuffer::new(place.bytes(), stream, &engine.pool)?;
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
        // How many rows, and how many bytes in each column.
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
            (rows as usize).min(self.results.wanted())
        };
        drop(staging);

        let reached = self.reached.all();
        for column in &mut packed {
            if rows == 0 || column.bytes == 0 {
                continue;
            }
            column._promises.push(self.promise(column.bytes)?);
            let dense = DeviceBuffer::new(column.bytes, stream, &engine.pool)?;
            let (views, working) = (&column.views, column.working.as_view());
            text::pack(&engine.images, views, &reached, &extent.rows, working, dense.as_view(), stream)?;
            column.dense = Some(dense);
        }
        // Region by region into one piece of pinned memory.
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
        let home: &[u8] = if self.goes_in_pieces(end) {
            let mut bytes = vec![0; end];
            for (view, at) in &pieces {
                self.in_pieces(view, &mut bytes[*at..at + view.len()], stream, feeding).await?;
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
        let schema = Arc::clone(&self.prepared.program.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(places.len());
        for (index, (values, bytes, validity)) in places.into_iter().enumerate() {
            let data_type = schema.field(index).data_type();
            let validity = validity.map(|range| &home[range]);
            arrays.push(match bytes {
                Some(bytes) => {
                    // Rows that are not wanted any more have bytes behind those of the others.
                    let ends = &home[values];
                    let last = ends.last_chunk::<8>().map_or(0, |end| u64::from_le_bytes(*end) as usize);
                    let bytes = home[bytes].get(..last).unwrap_or(&[]);
                    crate::column::text::read(data_type, rows, ends, bytes, validity)?
                }
                None => {
                    let dictionary = match part.outputs[index].form {
                        Form::Codes(_, id) => Some(self.tables().values(id)?),
                        _ => None,
                    };
                    let physical = part.column(index).map_or(Physical::Bit, |column| column.physical);
                    read_array(data_type, physical, rows, &home[values], validity, dictionary.as_ref())?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }
}
