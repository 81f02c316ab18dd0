//! Rows of row groups, decoded on the device.
//!
//!   pinned   [ descriptors │ tables │ columns that the host decoded ]  [ pages, read from the file ] ── copied up ──┐
//!   device   decompress ─ prepare ─ numbers ─ codes ─ texts ─► extent ─► error words and facts home ─► caller       │
//!                                                               └── columns of the host ────────────────────────────┘
//!
//! Memory   the extent, the pages' bytes, and as much again as they decompress to; all but the extent is freed behind the last kernel.
//! Waits    for the error words: the caller gets rows that are decoded, or none.
//! Pinned   who holds pages in pinned memory does not wait for more of it: it is told to leave that first.
//! Wrong    what the kernels refuse the host decodes from the same bytes.

use std::ops::Range as ByteRange;

use millpond_kernels::codegen::ir::{ColumnSpec, MAX_TEXT_BYTES, Physical};
use millpond_kernels::parquet::{self as kernels, ColumnOutput, Dictionary, Facts, Fault, PageError, PageInput, Plan};
use millpond_kernels::pipeline::ColumnInput;
use millpond_memory::{
    DeviceBuffer, DeviceView, HostKind, MemoryError, PinnedBuffer, PinnedPool, Reservation, Stream, recorder,
};

use crate::column::layout::{ExtentLayout, Region, Shape, write_codes};
use crate::parquet::decode::{Decoded, Decoding};
use crate::parquet::pages::{DeviceColumn, DevicePage, DevicePart, Table};
use crate::parquet::unit::{Chunks, OVERRUN};
use crate::profile::step;
use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::workers::off_workers;

/// So often pinned memory is asked for in both orders.
const MOST_TRIES: usize = 8;
/// Parts of a buffer that the kernels read begin at multiples of so many bytes.
const ALIGNMENT: usize = 256;
/// Descriptors take at most so many bytes for a batch, a column, a page, a block of a page, and 4,096 rows of a column.
const DESCRIPTOR_BYTES: [usize; 5] = [8192, 1024, 512, 32, 64];

/// Columns of some rows: those that the host has decoded, and those that the device will.
pub(crate) struct Columns {
    pub host: Vec<Option<Decoded>>,
    pub device: Vec<(usize, DeviceColumn)>,
}

/// Rows on the device.
pub(crate) struct OnDevice {
    pub buffer: DeviceBuffer,
    pub promise: Reservation,
    /// By the scan's columns; values of texts may have room behind them.
    pub inputs: Vec<Option<ColumnInput>>,
    /// Of each of the columns that the device has decoded, if they stay.
    pub facts: Vec<Option<Facts>>,
}

/// How it went.
pub(crate) enum Up {
    Yes(Box<OnDevice>),
    /// The host has to decode these columns; all, if it names none.
    No(Refused),
    /// There is too little pinned memory beside what the chunks lie in: they are to leave it.
    Unpin,
}

/// Why the device has not decoded rows.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Columns with a page that the kernels refuse.
    pub columns: Vec<usize>,
    /// Values are not as their statistics have it.
    pub lied: bool,
}

/// How a column is to lie in an extent, and what is subtracted from its values.
pub(crate) type Spec = (ColumnSpec, i64);

impl Columns {
    /// Pages that the device decodes.
    fn pages(&self) -> usize {
        self.device.iter().flat_map(|(_, column)| &column.parts).map(|part| part.pages.len()).sum()
    }

    /// Blocks of pages that are decompressed apart.
    fn blocks(&self) -> usize {
        let parts = self.device.iter().flat_map(|(_, column)| &column.parts);
        let pages = parts.flat_map(|part| part.pages.iter().chain(part.table.iter().flat_map(|table| &table.page)));
        pages.map(|page| page.blocks.len()).sum()
    }

    fn on_device(&self, index: usize) -> Option<&DeviceColumn> {
        self.device.iter().find(|(at, _)| *at == index).map(|(_, column)| column)
    }
}

/// Where a chunk lies.
struct Place {
    /// Its table, or the page that it is made of, as the host writes it.
    written: ByteRange<usize>,
    /// The table.
    table: ByteRange<usize>,
    pages: ByteRange<usize>,
}

/// Where what goes up lies on the device: at the same places what the host writes into pinned memory for it, behind that what has been read
/// into such memory.
struct Staging {
    /// By device column and chunk.
    parts: Vec<Vec<Place>>,
    /// Tables that the device makes of pages lie behind all that goes up.
    up: usize,
    descriptors: usize,
    /// The end of what the host writes.
    written: usize,
    /// Bytes of the memory that was read into, and where they go.
    runs: Vec<(ByteRange<usize>, usize)>,
    bytes: usize,
}

/// Chunks that lie so close together go up in one copy, with what lies between them.
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
        // Kernels read over the end of the last page.
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
        // Where pages were read to is where they go, now that this is known.
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
    /// Puts the rows of columns on the device, as an extent of columns that lie as `specs` says. With `stays`, the
    /// kernels find facts of them, and a session's memory pool that is full does not refuse them.
    ///
    /// # Errors
    /// The device's, and that it has no memory for them.
    pub async fn up(
        &self,
        context: &RunContext,
        columns: &Columns,
        specs: &[Spec],
        (stream, stays): (&Stream, bool),
    ) -> Result<Up, Failure> {
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
        // The host's columns lie behind it, as the extent has them.
        let mut end = staging.written;
        let mut host: Vec<(usize, ByteRange<usize>, usize)> = Vec::new();
        for (index, _) in columns.host.iter().enumerate().filter(|(_, host)| host.is_some()) {
            let Some(region) = layout.columns[index].as_ref().map(whole) else { continue };
            let at = end;
            end += region.len();
            host.push((index, region, at));
        }

        // What waits for pinned memory holds no device memory.
        let mut held = context.host_memory("staging");
        if stays {
            held.grow(end);
        } else if !held.try_grow(end) {
            return Ok(Up::No(Refused::default()));
        }
        // Error words, and facts of each column and of each table that becomes one.
        let parts: usize = columns.device.iter().map(|(_, column)| column.parts.len() + 1).sum();
        let errors = columns.pages() * 4 + parts * 64 + 4096;
        let pool = &context.engine.pinned;
        let (mut pinned, mut home) = if self.chunks.iter().any(Chunks::is_pinned) {
            let both = pool.take_now(HostKind::Upload, end).and_then(|pinned| {
                let home = pool.take_now(HostKind::Download, errors)?;
                Ok((pinned, home))
            });
            match both {
                Ok(both) => both,
                Err(MemoryError::PinnedExhausted { .. }) => return Ok(Up::Unpin),
                Err(error) => return Err(error.into()),
            }
        } else {
            match take_both(pool, end, errors).await? {
                Some(both) => both,
                None => return Ok(Up::No(Refused::default())),
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
            Err(refused) => return Ok(Up::No(refused)),
        };
        let work = plan.scratch_bytes().next_multiple_of(ALIGNMENT as u64) as usize;
        // Kernels load words that end behind a page.
        let (room, _room_promise) = memory.take_zeroed(work + plan.result_bytes() as usize, tag, stream)?;
        if plan.descriptors().len() > staging.descriptors || plan.result_bytes() as usize > errors {
            return Ok(Up::No(Refused::default()));
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
            return Ok(Up::No(refused));
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
            return Ok(Up::Yes(Box::new(OnDevice { buffer, promise, inputs, facts: vec![] })));
        }
        let results = room.view(work..work + plan.result_bytes() as usize)?;
        kernels::decode(
            &context.engine.images,
            &plan,
            &up.view(0..plan.descriptors().len())?,
            &up.view(0..staging.up)?,
            &room.view(0..plan.scratch_bytes() as usize)?,
            &results,
            stream,
        )?;
        home.set_len(plan.result_bytes() as usize)?;
        let home = recorder::during(step::WAIT, home.copy_to_host(&results, stream)?).await?;
        let outcome = plan.outcome(&home.read()?)?;
        if !outcome.errors.is_empty() {
            tracing::debug!(file = ?self.units.file(), "not decoded on the device: {:?}", outcome.errors[0]);
            // An entry of a dictionary that no row has may lie outside the range: the host looks at rows.
            let of_rows = |error: &&PageError| !page_columns[error.page as usize].1;
            let lied = outcome.errors.iter().filter(of_rows).any(|error| match error.fault {
                Fault::Range => true,
                // Where NULLs are allowed for, only the room for them was left out: the host makes it.
                Fault::Null => !specs[page_columns[error.page as usize].0].0.ty.nullable,
                _ => false,
            });
            let mut columns: Vec<usize> =
                outcome.errors.iter().map(|error| page_columns[error.page as usize].0).collect();
            columns.sort_unstable();
            columns.dedup();
            return Ok(Up::No(Refused { columns, lied }));
        }
        Ok(Up::Yes(Box::new(OnDevice { buffer, promise, inputs, facts: outcome.facts })))
    }
}

/// Pinned memory to write what goes up, and for what comes home; `None` where there is never enough for both. Who waits for one of them
/// holds none.
async fn take_both(
    pool: &PinnedPool,
    up: usize,
    home: usize,
) -> Result<Option<(PinnedBuffer, PinnedBuffer)>, MemoryError> {
    let now = |kind, bytes| match pool.take_now(kind, bytes) {
        Ok(buffer) => Ok(Some(buffer)),
        Err(MemoryError::PinnedExhausted { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    for _ in 0..MOST_TRIES {
        let first = pool.take(HostKind::Upload, up).await?;
        if let Some(second) = now(HostKind::Download, home)? {
            return Ok(Some((first, second)));
        }
        drop(first);
        let second = pool.take(HostKind::Download, home).await?;
        if let Some(first) = now(HostKind::Upload, up)? {
            return Ok(Some((first, second)));
        }
    }
    Ok(None)
}

/// Where a column of an extent lies, with its padding.
fn whole(region: &Region) -> ByteRange<usize> {
    let end = region.validity.as_ref().map_or(region.values.end, |validity| validity.end);
    ExtentLayout::padded(&(region.values.start..end))
}

/// What the kernels are told, and for each page which of the scan's columns it is of, and whether it is a dictionary.
type Planned = (Plan, Vec<(usize, bool)>);

/// What the kernels are told; or for which column they have no form.
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
            // Plain pages beside coded ones have no dictionary.
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
    // What its shapes refuse the host decodes.
    Ok(Plan::of(&pages, &outputs, &dictionaries).map(|plan| (plan, page_columns)).map_err(|_| Refused::default()))
}

/// A page without levels and dictionary, of bytes whose first one lies, or would lie, at `start`.
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

/// A chunk's dictionary, which lies at `place` on the device.
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

/// Writes a dictionary's table in the width of its column; false for a code outside the column's range.
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
