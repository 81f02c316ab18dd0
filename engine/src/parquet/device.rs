//! Decodes rows of row groups on the device.
//!
//!   pinned   [ descriptors │ tables │ columns that the host decoded ]  [ pages, read from the file ] ── uploaded ────┐
//!   device   decompress ─ prepare ─ numbers ─ codes ─ texts ─► extent ─► error words and facts to the host ─► caller │
//!                                                               └── columns decoded by the host ─────────────────────┘
//!
//! Memory   the extent, the pages' bytes, and their decompressed bytes; all but the extent is freed after the last
//!          kernel.
//! Waits    for the error words: the caller receives either decoded rows or none.
//! Pinned   a caller that holds pages in pinned memory does not wait for more: it is requested to release that first.
//! Wrong    pages that the kernels refuse are decoded by the host from the same bytes.

use std::ops::Range as ByteRange;

use millpond_kernels::codegen::ir::{ColumnSpec, MAX_TEXT_BYTES, Physical};
use millpond_kernels::parquet::{self as kernels, ColumnOutput, Dictionary, Facts, Fault, PageError, PageInput, Plan};
use millpond_kernels::pipeline::ColumnInput;
use millpond_memory::{
    DeviceBuffer, DeviceView, HostKind, MemoryError, PinnedBuffer, PinnedPool, Reservation, Stream, recorder,
};

use crate::column::layout::{ExtentLayout, Region, Shape, write_codes};
use crate::device::workers::off_workers;
use crate::error::failure::Failure;
use crate::parquet::decode::{Decoded, Decoding};
use crate::parquet::pages::{DeviceColumn, DevicePage, DevicePart, Table};
use crate::parquet::unit::{Chunks, OVERRUN};
use crate::profile::step;
use crate::program::context::RunContext;

/// Number of attempts to allocate the two pinned buffers, each in both orders.
const MOST_TRIES: usize = 8;
/// Alignment in bytes of buffer parts that the kernels read.
const ALIGNMENT: usize = 256;
/// Maximum bytes of descriptors per batch, column, page, block of a page, and 4,096 rows of a column.
const DESCRIPTOR_BYTES: [usize; 5] = [8192, 1024, 512, 32, 64];

/// Columns of some rows: those that the host has decoded, and those for the device to decode.
pub(crate) struct Columns {
    pub host: Vec<Option<Decoded>>,
    pub device: Vec<(usize, DeviceColumn)>,
}

/// A column that the host has decoded, or that the device will decode.
pub(crate) enum Column {
    Host(Decoded),
    Device(DeviceColumn),
}

/// Decoded rows on the device.
pub(crate) struct OnDevice {
    pub buffer: DeviceBuffer,
    pub promise: Reservation,
    /// By the scan's columns; text values may have unused space after them.
    pub inputs: Vec<Option<ColumnInput>>,
    /// Facts of each column decoded on the device, if the columns are stored.
    pub facts: Vec<Option<Facts>>,
}

/// Result of passing rows on.
pub(crate) enum Outcome<T> {
    Done(T),
    /// The host has to decode these columns, or all if none is named.
    Refused(Refused),
    /// Too little pinned memory is left because of the chunks in it: they must be moved out.
    Unpin,
}

/// Why the device did not decode the rows.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Columns with a page that the kernels refuse.
    pub columns: Vec<usize>,
    /// Values contradict their statistics.
    pub lied: bool,
}

/// Layout of a column in an extent, and the base that is subtracted from its values.
pub(crate) type Spec = (ColumnSpec, i64);

impl Columns {
    /// No columns yet, of `number`.
    pub fn new(number: usize) -> Self {
        Self { host: (0..number).map(|_| None).collect(), device: vec![] }
    }

    /// Sets a column; those of the device in ascending order.
    pub fn set(&mut self, index: usize, column: Column) {
        match column {
            Column::Host(decoded) => self.host[index] = Some(decoded),
            Column::Device(column) => self.device.push((index, column)),
        }
    }

    /// Number of pages that the device decodes.
    fn pages(&self) -> usize {
        self.device.iter().flat_map(|(_, column)| &column.parts).map(|part| part.pages.len()).sum()
    }

    /// Number of blocks that are decompressed independently.
    fn blocks(&self) -> usize {
        let parts = self.device.iter().flat_map(|(_, column)| &column.parts);
        let pages = parts.flat_map(|part| part.pages.iter().chain(part.table.iter().flat_map(|table| &table.page)));
        pages.map(|page| page.blocks.len()).sum()
    }

    pub fn on_device(&self, index: usize) -> Option<&DeviceColumn> {
        self.device.iter().find(|(at, _)| *at == index).map(|(_, column)| column)
    }
}

/// Positions of a chunk's parts in the device buffer.
struct Place {
    /// Its table, or the page that the device builds the table from, as written by the host.
    written: ByteRange<usize>,
    /// Its table.
    table: ByteRange<usize>,
    pages: ByteRange<usize>,
}

/// Layout of the uploaded bytes on the device: first what the host writes into pinned memory, at equal offsets; then
/// what was read directly into pinned memory.
struct Staging {
    /// By device column and chunk.
    parts: Vec<Vec<Place>>,
    /// End of the uploaded bytes; tables that the device builds from pages follow.
    up: usize,
    descriptors: usize,
    /// End of the bytes that the host writes.
    written: usize,
    /// Ranges of the pinned read buffer, and their positions on the device.
    runs: Vec<(ByteRange<usize>, usize)>,
    bytes: usize,
}

/// Maximum gap in bytes between chunks that are uploaded in one copy, including the gap.
const GAP: usize = 1 << 16;

impl Staging {
    fn of(decoding: &Decoding<'_>, columns: &Columns, specs: &[Spec]) -> Self {
        let [batch, column, page, block, segment] = DESCRIPTOR_BYTES;
        let pages = columns.pages();
        let chunks: usize = columns.device.iter().map(|(_, column)| column.parts.len()).sum();
        let segments = columns.device.len() * decoding.rows.div_ceil(4096);
        let descriptors = batch + column * chunks + page * pages + block * columns.blocks() + segment * segments;
        let mut end = descriptors;
        let mut place = |bytes: usize| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            start..end
        };
        let mut read: Vec<ByteRange<usize>> = Vec::new();
        let mut part = |index: usize, part: &DevicePart| {
            let written = place(part.table.as_ref().map_or(0, |table| table.bytes.len()));
            let pages = match decoding.chunks[part.unit].pinned(index) {
                Some((_, range)) => {
                    let from = range.start + part.bytes.start..range.start + part.bytes.end;
                    read.push(from.clone());
                    from
                }
                None => place(part.bytes.len()),
            };
            Place { table: written.clone(), written, pages }
        };
        let of_columns = columns.device.iter();
        let mut parts: Vec<Vec<_>> =
            of_columns.map(|(index, column)| column.parts.iter().map(|of| part(*index, of)).collect()).collect();
        // Kernels read beyond the end of the last page.
        let written = (end + OVERRUN).next_multiple_of(ALIGNMENT);
        let mut end = written;
        read.sort_by_key(|range| range.start);
        let mut runs: Vec<(ByteRange<usize>, usize)> = Vec::new();
        for range in read {
            match runs.last_mut() {
                Some((run, _)) if range.start <= run.end + GAP => run.end = run.end.max(range.end),
                _ => runs.push((range, 0)),
            }
        }
        for (run, to) in &mut runs {
            run.end += OVERRUN;
            *to = end;
            end = (end + run.len()).next_multiple_of(ALIGNMENT);
        }
        // Sets the device position of pages that were read directly into pinned memory.
        for ((index, column), places) in columns.device.iter().zip(&mut parts) {
            for (part, Place { pages, .. }) in column.parts.iter().zip(places) {
                if decoding.chunks[part.unit].pinned(*index).is_some()
                    && let Some((run, to)) = runs.iter().rfind(|(run, _)| run.start <= pages.start)
                {
                    *pages = pages.start - run.start + to..pages.end - run.start + to;
                }
            }
        }
        let up = end + ALIGNMENT;
        let mut bytes = up;
        for ((index, column), places) in columns.device.iter().zip(&mut parts) {
            let width = specs[*index].0.physical.width().max(1) as usize;
            for (part, Place { table, .. }) in column.parts.iter().zip(places) {
                if let Some(Table { entries, page: Some(_), .. }) = &part.table {
                    *table = bytes..bytes + entries * width;
                    bytes = table.end.next_multiple_of(ALIGNMENT);
                }
            }
        }
        Self { parts, up, descriptors, written, runs, bytes: bytes.next_multiple_of(ALIGNMENT) }
    }
}

impl Decoding<'_> {
    /// True if some of the chunks are in pinned memory.
    pub fn is_pinned(&self) -> bool {
        self.chunks.iter().any(Chunks::is_pinned)
    }

    /// Decodes columns on the device into an extent with the layout `specs`. With `stays`, the kernels also compute
    /// facts, and a full session memory pool does not refuse the rows.
    ///
    /// # Errors
    /// The device's, or out of memory.
    pub async fn up(
        &self,
        context: &RunContext,
        columns: &Columns,
        specs: &[Spec],
        (stream, stays): (&Stream, bool),
    ) -> Result<Outcome<OnDevice>, Failure> {
        let rows = self.rows;
        let shape = |(index, (spec, _)): (usize, &Spec)| {
            if let Some(host) = &columns.host[index] {
                return Some(host.shape(spec.physical, 0, rows));
            }
            let column = columns.on_device(index)?;
            let has_nulls = spec.ty.nullable && column.has_levels && self.units.bounds(index).1;
            let text_bytes = match spec.physical {
                Physical::Text => (rows + 1) * 4 + column.most_text_bytes,
                _ => 0,
            };
            Some(Shape { physical: spec.physical, text_bytes, has_nulls })
        };
        let shapes: Vec<Option<Shape>> = specs.iter().enumerate().map(shape).collect();
        let layout = ExtentLayout::of(rows, &shapes);
        let staging = Staging::of(self, columns, specs);
        // Columns decoded by the host follow, in extent layout.
        let mut end = staging.written;
        let mut host: Vec<(usize, ByteRange<usize>, usize)> = Vec::new();
        for (index, _) in columns.host.iter().enumerate().filter(|(_, host)| host.is_some()) {
            let Some(region) = layout.columns[index].as_ref().map(whole) else { continue };
            let at = end;
            end += region.len();
            host.push((index, region, at));
        }

        // No device memory is held while waiting for pinned memory.
        let mut held = context.host_memory("staging");
        if stays {
            held.grow(end);
        } else if !held.try_grow(end) {
            return Ok(Outcome::Refused(Refused::default()));
        }
        // Error words, and facts of each column and of each table built on the device.
        let parts: usize = columns.device.iter().map(|(_, column)| column.parts.len() + 1).sum();
        let errors = columns.pages() * 4 + parts * 64 + 4096;
        let pool = &context.engine.pinned;
        let (mut pinned, mut down) = if self.is_pinned() {
            let both = pool.take_now(HostKind::Upload, end).and_then(|pinned| {
                let down = pool.take_now(HostKind::Download, errors)?;
                Ok((pinned, down))
            });
            match both {
                Ok(both) => both,
                Err(MemoryError::PinnedExhausted { .. }) => return Ok(Outcome::Unpin),
                Err(error) => return Err(error.into()),
            }
        } else {
            match take_both(pool, end, errors).await? {
                Some(both) => both,
                None => return Ok(Outcome::Refused(Refused::default())),
            }
        };

        let (memory, tag) = (&context.memory, &context.tags.extents);
        let (buffer, promise) = memory.take_zeroed(layout.bytes, tag, stream)?;
        let (up, _up_promise) = memory.take(staging.bytes, tag, stream)?;
        let inputs = layout.columns.iter().zip(specs).map(|(region, (_, base))| {
            let Some(region) = region else { return Ok(None) };
            let validity = region.validity.clone().map(|range| buffer.view(range)).transpose()?;
            Ok(Some(ColumnInput { values: buffer.view(region.values.clone())?, validity, base: *base }))
        });
        let inputs = inputs.collect::<Result<Vec<_>, MemoryError>>()?;
        let plan = plan(columns, specs, &inputs, (&staging, up.as_view()), (rows, stays))?;
        let (plan, page_columns) = match plan {
            Ok(plan) => plan,
            Err(refused) => return Ok(Outcome::Refused(refused)),
        };
        let work = plan.scratch_bytes().next_multiple_of(ALIGNMENT as u64) as usize;
        // Kernels load whole words beyond the end of a page.
        let (scratch, _scratch_promise) = memory.take_zeroed(work + plan.result_bytes() as usize, tag, stream)?;
        if plan.descriptors().len() > staging.descriptors || plan.result_bytes() as usize > errors {
            return Ok(Outcome::Refused(Refused::default()));
        }

        let written = off_workers(|| {
            let _step = recorder::step(step::NARROW);
            let mut out = pinned.write()?;
            out[..plan.descriptors().len()].copy_from_slice(plan.descriptors());
            for ((index, column), places) in columns.device.iter().zip(&staging.parts) {
                for (part, Place { written, pages, .. }) in column.parts.iter().zip(places) {
                    if let Some(of) = &part.table
                        && !write_table(&mut out[written.clone()], of, &specs[*index])
                    {
                        return Ok(Some(Refused { columns: vec![*index], lied: true }));
                    }
                    let chunks = &self.chunks[part.unit];
                    if chunks.pinned(*index).is_none() {
                        out[pages.clone()].copy_from_slice(chunks.bytes_of(*index, part.bytes.clone()));
                    }
                }
            }
            for (index, region, at) in &host {
                let (Some(decoded), Some(of)) = (&columns.host[*index], &layout.columns[*index]) else { continue };
                let moved = |range: &ByteRange<usize>| range.start - region.start..range.end - region.start;
                let of = Region { values: moved(&of.values), validity: of.validity.as_ref().map(moved) };
                let (spec, base) = &specs[*index];
                decoded.write(&mut out[*at..*at + region.len()], &of, (0, rows), Decoded::stored(spec, *base))?;
            }
            Ok::<_, Failure>(None)
        });
        if let Some(refused) = written? {
            return Ok(Outcome::Refused(refused));
        }
        let copying = recorder::step(step::COPY);
        for part in [0..plan.descriptors().len(), staging.descriptors..staging.written] {
            pinned.enqueue_to_device(part.clone(), &up.view(part)?, stream)?;
        }
        let mut read = self.chunks.iter().flat_map(|chunks| (0..columns.host.len()).filter_map(|at| chunks.pinned(at)));
        if let Some((bytes, _)) = read.next() {
            for (run, to) in &staging.runs {
                bytes.enqueue_to_device(run.clone(), &up.view(*to..*to + run.len())?, stream)?;
            }
        }
        for (_, region, at) in &host {
            pinned.enqueue_to_device(*at..*at + region.len(), &buffer.view(region.clone())?, stream)?;
        }
        drop((pinned, copying));
        if columns.device.is_empty() {
            return Ok(Outcome::Done(OnDevice { buffer, promise, inputs, facts: vec![] }));
        }
        let results = scratch.view(work..work + plan.result_bytes() as usize)?;
        kernels::decode(
            &context.engine.images,
            &plan,
            &up.view(0..plan.descriptors().len())?,
            &up.view(0..staging.up)?,
            &scratch.view(0..plan.scratch_bytes() as usize)?,
            &results,
            stream,
        )?;
        down.set_len(plan.result_bytes() as usize)?;
        let down = recorder::during(step::WAIT, down.copy_to_host(&results, stream)?).await?;
        let outcome = plan.outcome(&down.read()?)?;
        if !outcome.errors.is_empty() {
            tracing::debug!(file = ?self.units.file(), "not decoded on the device: {:?}", outcome.errors[0]);
            // An unused dictionary entry may be outside the range: the host checks the rows instead.
            let of_rows = |error: &&PageError| !page_columns[error.page as usize].1;
            let lied = outcome.errors.iter().filter(of_rows).any(|error| match error.fault {
                Fault::Range => true,
                // If the column is nullable, only its validity was left out: the host creates it.
                Fault::Null => !specs[page_columns[error.page as usize].0].0.ty.nullable,
                _ => false,
            });
            let mut columns: Vec<usize> =
                outcome.errors.iter().map(|error| page_columns[error.page as usize].0).collect();
            columns.sort_unstable();
            columns.dedup();
            return Ok(Outcome::Refused(Refused { columns, lied }));
        }
        Ok(Outcome::Done(OnDevice { buffer, promise, inputs, facts: outcome.facts }))
    }
}

/// Pinned memory for the upload and for the download; `None` if there is never enough for both. While waiting for one
/// buffer, the other is not held.
async fn take_both(
    pool: &PinnedPool,
    up: usize,
    down: usize,
) -> Result<Option<(PinnedBuffer, PinnedBuffer)>, MemoryError> {
    let now = |kind, bytes| match pool.take_now(kind, bytes) {
        Ok(buffer) => Ok(Some(buffer)),
        Err(MemoryError::PinnedExhausted { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    for _ in 0..MOST_TRIES {
        let first = pool.take(HostKind::Upload, up).await?;
        if let Some(second) = now(HostKind::Download, down)? {
            return Ok(Some((first, second)));
        }
        drop(first);
        let second = pool.take(HostKind::Download, down).await?;
        if let Some(first) = now(HostKind::Upload, up)? {
            return Ok(Some((first, second)));
        }
    }
    Ok(None)
}

/// Range of a column in an extent, including padding.
fn whole(region: &Region) -> ByteRange<usize> {
    let end = region.validity.as_ref().map_or(region.values.end, |validity| validity.end);
    ExtentLayout::padded(&(region.values.start..end))
}

/// Kernel plan, and for each page its scan column and whether it is a dictionary.
type Planned = (Plan, Vec<(usize, bool)>);

/// Kernel plan, or the column that the kernels do not support.
fn plan(
    columns: &Columns,
    specs: &[Spec],
    inputs: &[Option<ColumnInput>],
    (staging, up): (&Staging, &DeviceView),
    (rows, stays): (usize, bool),
) -> Result<Result<Planned, Refused>, Failure> {
    let (mut outputs, mut dictionaries, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    let (mut page_columns, mut tables) = (Vec::new(), Vec::new());
    for ((index, column), places) in columns.device.iter().zip(&staging.parts) {
        let (Some(input), (spec, _)) = (&inputs[*index], &specs[*index]) else {
            return Ok(Err(Refused { columns: vec![*index], lied: false }));
        };
        if spec.physical == Physical::Text && input.values.len() > MAX_TEXT_BYTES as usize {
            return Ok(Err(Refused { columns: vec![*index], lied: false }));
        }
        let number = outputs.len() as u32;
        let whole = |bound: i128| i64::try_from(bound).ok();
        let range = match column.source {
            kernels::Source::Text => None,
            _ => spec.ty.range.and_then(|range| whole(range.low).zip(whole(range.high))),
        };
        outputs.push(ColumnOutput {
            source: column.source,
            stored: spec.physical,
            values: input.values.clone(),
            validity: input.validity.clone(),
            base: input.base,
            range,
            utf8: column.is_utf8,
            rows: rows as u64,
            facts: stays,
        });
        for (part, place) in column.parts.iter().zip(places) {
            let dictionary = match &part.table {
                None => None,
                Some(table) => {
                    if let Some(page) = &table.page {
                        let of_file = table.bytes.is_empty();
                        let start = if of_file {
                            place.pages.start.wrapping_sub(part.bytes.start)
                        } else {
                            place.written.start
                        };
                        tables.push(((*index, number as usize), page, up.view(place.table.clone())?, start));
                    }
                    dictionaries.push(dictionary(table, &place.table, up, spec)?);
                    Some(dictionaries.len() as u32 - 1)
                }
            };
            page_columns.resize(page_columns.len() + part.pages.len(), (*index, false));
            // Plain pages in a chunk with a dictionary do not use it.
            let of = |page: &DevicePage| dictionary.filter(|_| page.encoding == kernels::Encoding::Dictionary);
            pages.extend(part.pages.iter().map(|page| PageInput {
                has_levels: column.has_levels,
                dictionary: of(page),
                ..page_input(page, number, place.pages.start.wrapping_sub(part.bytes.start))
            }));
        }
    }
    for ((index, of), page, values, start) in tables {
        let number = outputs.len() as u32;
        let (validity, rows) = (None, u64::from(page.values));
        outputs.push(ColumnOutput { values, validity, rows, facts: false, ..outputs[of].clone() });
        page_columns.push((index, true));
        pages.push(page_input(page, number, start));
    }
    // Shapes that the plan refuses are decoded by the host.
    Ok(Plan::of(&pages, &outputs, &dictionaries).map(|plan| (plan, page_columns)).map_err(|_| Refused::default()))
}

/// A page without levels and dictionary; `start` is the position of the first byte that its offsets are relative to.
fn page_input(page: &DevicePage, column: u32, start: usize) -> PageInput {
    let start = start.wrapping_add(page.bytes.start) as u64;
    PageInput {
        bytes: start..start + page.bytes.len() as u64,
        raw_bytes: page.raw_bytes,
        codec: page.codec,
        encoding: page.encoding,
        level_bytes: page.level_bytes,
        has_levels: false,
        values: page.values,
        skip: page.skip,
        rows: page.rows,
        first_row: page.first_row,
        column,
        dictionary: None,
        blocks: page.blocks.clone(),
    }
}

/// A chunk's dictionary at `place` on the device.
fn dictionary(
    table: &Table,
    place: &ByteRange<usize>,
    up: &DeviceView,
    spec: &ColumnSpec,
) -> Result<Dictionary, Failure> {
    if spec.physical == Physical::Text {
        let bytes = place.start + (table.entries + 1) * 4;
        return Ok(Dictionary::Texts { offsets: up.view(place.start..bytes)?, bytes: up.view(bytes..place.end)? });
    }
    let values = up.view(place.start..place.start + table.entries * spec.physical.width().max(1) as usize)?;
    Ok(Dictionary::Table { values, entries: table.entries as u32 })
}

/// Writes a dictionary's table in the width of its column; returns false for a code outside the column's range.
fn write_table(out: &mut [u8], table: &Table, (spec, base): &Spec) -> bool {
    if spec.physical == Physical::Text || table.page.is_some() {
        out.copy_from_slice(&table.bytes);
        return true;
    }
    let (_, _, range) = Decoded::stored(spec, *base);
    let bytes = table.bytes.len() / 4 * spec.physical.width().max(1) as usize;
    out[bytes..].fill(0);
    let codes = &table.bytes;
    spec.physical != Physical::Bit && write_codes(&mut out[..bytes], codes, None, 0, (spec.physical, *base, range))
}
