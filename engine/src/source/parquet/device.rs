//! Rows of a row group, decoded on the device.
//!
//!   pinned   [ descriptors │ tables │ pages as the file has them │ columns that the host decoded ] ── copied up ──┐
//!   device   decompress ─ prepare ─ codes ─ numbers ─► extent ─► error words home ─► pipeline                     │
//!                                                       └── columns of the host ──────────────────────────────────┘
//!
//! Memory   the extent, the pages' bytes, and as much again as they decompress to; all but the extent is freed behind the last kernel.
//! Waits    for the error words: no pipeline sees rows that were not decoded.
//! Wrong    what the kernels refuse, and an extent for which memory is short, the host decodes from the same bytes.

use std::ops::Range as ByteRange;

use datafusion::physical_plan::metrics::MetricBuilder;
use millpond_kernels::codegen::ir::{ColumnSpec, MAX_TEXT_BYTES, Physical};
use millpond_kernels::parquet::{self as kernels, ColumnOutput, Dictionary, Fault, PageInput, Plan};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use millpond_memory::{DeviceView, HostKind, MemoryError, recorder};

use crate::column::layout::{ExtentLayout, Shape, write_codes};
use crate::metric;
use crate::parquet::{Decoded, Decoding, DeviceColumn, DevicePart};
use crate::profile::step;
use crate::program::failure::Failure;
use crate::source::extent::Sending;
use crate::workers::off_workers;

/// Parts of a buffer that the kernels read begin at multiples of so many bytes.
const ALIGNMENT: usize = 256;
/// Descriptors take at most so many bytes for a batch, a column, a page, and 4,096 rows of a column.
const DESCRIPTOR_BYTES: [usize; 4] = [8192, 1024, 512, 64];

/// Columns of some rows: those that the host has decoded, and those that the device will.
pub(super) struct Columns {
    pub host: Vec<Option<Decoded>>,
    pub device: Vec<(usize, DeviceColumn)>,
}

impl Columns {
    /// Pages that the device decodes.
    fn pages(&self) -> usize {
        self.device.iter().flat_map(|(_, column)| &column.parts).map(|part| part.pages.len()).sum()
    }
}

/// How it went.
pub(super) enum Sent {
    /// The rows are up, and their pipeline is launched.
    Yes,
    /// The host has to decode them.
    No,
}

/// Where what goes up lies in pinned memory and, at the same places, on the device.
struct Staging {
    /// By device column and chunk: its table, and its pages.
    parts: Vec<Vec<(ByteRange<usize>, ByteRange<usize>)>>,
    descriptors: usize,
    bytes: usize,
}

impl Staging {
    fn of(columns: &Columns, rows: usize) -> Self {
        let [batch, column, page, segment] = DESCRIPTOR_BYTES;
        let pages = columns.pages();
        let chunks: usize = columns.device.iter().map(|(_, column)| column.parts.len()).sum();
        let segments = columns.device.len() * rows.div_ceil(4096);
        let descriptors = batch + column * chunks + page * pages + segment * segments;
        let mut end = descriptors;
        let mut place = |bytes: usize| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            start..end
        };
        let mut part = |part: &DevicePart| {
            let table = place(part.table.as_ref().map_or(0, Vec::len));
            (table, place(part.bytes.len()))
        };
        let of = columns.device.iter().map(|(_, column)| column.parts.iter().map(&mut part).collect());
        let parts = of.collect();
        Self { parts, descriptors, bytes: end.next_multiple_of(ALIGNMENT) + ALIGNMENT }
    }
}

impl Sending {
    /// Sends rows up as one extent.
    ///
    /// # Errors
    /// [`Failure::Ranges`] where statistics were wrong, the device's where it is lost, the pipeline's.
    pub(super) async fn decode_up(&self, decoding: &Decoding<'_>, columns: &Columns) -> Result<Sent, Failure> {
        let turn = self.turn().await?;
        match self.decode_in_turn(decoding, columns, turn.stream()).await {
            Err(failure) if failure.is_out_of_memory() => Ok(Sent::No),
            sent => sent,
        }
    }

    async fn decode_in_turn(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        stream: &millpond_memory::Stream,
    ) -> Result<Sent, Failure> {
        let (run, rows) = (self.run(), decoding.rows);
        let prepared = self.segment.ready(rows as u64).await?;
        self.segment.check_bounds(&prepared)?;
        let specs = &prepared.lowered.first().spec.columns;
        let shape = |(index, spec): (usize, &ColumnSpec)| {
            if let Some(host) = &columns.host[index] {
                return Some(host.shape(spec.physical, 0, rows));
            }
            let (_, column) = columns.device.iter().find(|(at, _)| *at == index)?;
            let has_nulls = spec.ty.nullable && column.has_levels && decoding.units.bounds(index).1;
            let text_bytes = match spec.physical {
                Physical::Text => (rows + 1) * 4 + column.most_text_bytes(),
                _ => 0,
            };
            Some(Shape { physical: spec.physical, text_bytes, has_nulls })
        };
        let shapes: Vec<Option<Shape>> = specs.iter().enumerate().map(shape).collect();
        let layout = ExtentLayout::of(rows, &shapes);
        let staging = Staging::of(columns, rows);
        // The host's columns lie behind it, as the extent has them.
        let of_host = |region: &crate::column::layout::Region| {
            let end = region.validity.as_ref().map_or(region.values.end, |validity| validity.end);
            ExtentLayout::padded(&(region.values.start..end))
        };
        let mut end = staging.bytes;
        let host: Vec<(usize, ByteRange<usize>, usize)> = columns
            .host
            .iter()
            .enumerate()
            .filter_map(|(index, host)| {
                host.as_ref()?;
                let region = of_host(layout.columns[index].as_ref()?);
                let at = end;
                end += region.len();
                Some((index, region, at))
            })
            .collect();

        // What waits for pinned memory holds no device memory.
        let mut held = run.host_memory("staging");
        if !held.try_grow(end) {
            return Ok(Sent::No);
        }
        let mut pinned = run.engine.pinned.take(HostKind::Upload, end).await?;
        let errors = columns.pages() * 4 + 4096;
        let home = run.engine.pinned.take(HostKind::Download, errors).await?;
        let base = |spec: &ColumnSpec| match spec.has_base {
            true => spec.ty.range.and_then(|range| i64::try_from(range.low).ok()).unwrap_or(0),
            false => 0,
        };

        let (memory, tag) = (&run.memory, &run.tags.extents);
        let (extent, promise) = memory.take_zeroed(layout.bytes, tag, stream)?;
        let (up, _up_promise) = memory.take(staging.bytes, tag, stream)?;
        let inputs = layout.columns.iter().zip(specs).map(|(region, spec)| {
            let Some(region) = region else { return Ok(None) };
            let validity = region.validity.clone().map(|range| extent.view(range)).transpose()?;
            Ok(Some(ColumnInput { values: extent.view(region.values.clone())?, validity, base: base(spec) }))
        });
        let inputs = inputs.collect::<Result<Vec<_>, MemoryError>>()?;
        let plan = self.plan(columns, specs, &inputs, (&staging, up.as_view()), rows)?;
        let Some(plan) = plan else { return Ok(Sent::No) };
        let work = plan.scratch_bytes().next_multiple_of(ALIGNMENT as u64) as usize;
        // Kernels load words that end behind a page.
        let (room, _room_promise) = memory.take_zeroed(work + plan.result_bytes() as usize, tag, stream)?;
        if plan.descriptors().len() > staging.descriptors || plan.result_bytes() as usize > errors {
            return Ok(Sent::No);
        }

        let written = off_workers(|| {
            let _step = recorder::step(step::NARROW);
            let mut out = pinned.write()?;
            out[..plan.descriptors().len()].copy_from_slice(plan.descriptors());
            for ((index, column), places) in columns.device.iter().zip(&staging.parts) {
                for (part, (table, pages)) in column.parts.iter().zip(places) {
                    if let Some(values) = &part.table {
                        let spec = &specs[*index];
                        if !write_table(&mut out[table.clone()], values, column, spec, base(spec)) {
                            return Err(Failure::Ranges);
                        }
                    }
                    let bytes = decoding.chunks[part.unit].bytes_of(*index, part.bytes.clone());
                    out[pages.clone()].copy_from_slice(bytes);
                }
            }
            for (index, region, at) in &host {
                let (Some(decoded), Some(of)) = (&columns.host[*index], &layout.columns[*index]) else { continue };
                let moved = |range: &ByteRange<usize>| range.start - region.start..range.end - region.start;
                let of = crate::column::layout::Region {
                    values: moved(&of.values),
                    validity: of.validity.as_ref().map(moved),
                };
                let spec = &specs[*index];
                decoded.write(&mut out[*at..*at + region.len()], &of, (0, rows), Decoded::stored(spec, base(spec)))?;
            }
            Ok(())
        });
        written?;
        let copying = recorder::step(step::COPY);
        for part in [0..plan.descriptors().len(), staging.descriptors..staging.bytes] {
            pinned.enqueue_to_device(part.clone(), &up.view(part)?, stream)?;
        }
        for (_, region, at) in &host {
            pinned.enqueue_to_device(*at..*at + region.len(), &extent.view(region.clone())?, stream)?;
        }
        drop((pinned, copying));
        let results = room.view(work..work + plan.result_bytes() as usize)?;
        let launched = kernels::decode(
            &run.engine.images,
            &plan,
            &up.view(0..plan.descriptors().len())?,
            up.as_view(),
            &room.view(0..plan.scratch_bytes() as usize)?,
            &results,
            stream,
        );
        launched?;
        let mut home = home;
        home.set_len(plan.result_bytes() as usize)?;
        let home = recorder::during(step::WAIT, home.copy_to_host(&results, stream)?).await?;
        let outcome = plan.outcome(&home.read()?)?;
        if let Some(error) = outcome.errors.first() {
            tracing::debug!(file = ?decoding.units.file(), "not decoded on the device: {error:?}");
            let lied = |fault: Fault| matches!(fault, Fault::Range | Fault::Null);
            return if outcome.errors.iter().any(|error| lied(error.fault)) {
                Err(Failure::Ranges)
            } else {
                Ok(Sent::No)
            };
        }
        drop((up, room));
        let input = ExtentInput { rows: ExtentRows::Known(rows as u64), columns: inputs };
        self.process(input, (extent, promise), stream).await?;
        MetricBuilder::new(&self.metrics).global_counter(metric::COLUMNS_ON_DEVICE).add(columns.device.len());
        Ok(Sent::Yes)
    }

    /// What the kernels are told; `None` if they have no form for a column.
    fn plan(
        &self,
        columns: &Columns,
        specs: &[ColumnSpec],
        inputs: &[Option<ColumnInput>],
        (staging, up): (&Staging, &DeviceView),
        rows: usize,
    ) -> Result<Option<Plan>, Failure> {
        let (mut outputs, mut dictionaries, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        for ((index, column), places) in columns.device.iter().zip(&staging.parts) {
            let (Some(input), spec) = (&inputs[*index], &specs[*index]) else { return Ok(None) };
            if spec.physical == Physical::Text && input.values.len() > MAX_TEXT_BYTES as usize {
                return Ok(None);
            }
            let number = outputs.len() as u32;
            let whole = |bound: i128| i64::try_from(bound).ok();
            let range = match (column.source, spec.physical) {
                (kernels::Source::Text, Physical::Text) => column.is_ascii.then_some((0, i64::from(i8::MAX))),
                (kernels::Source::Text, _) => None,
                _ => spec.ty.range.and_then(|range| whole(range.low).zip(whole(range.high))),
            };
            outputs.push(ColumnOutput {
                source: column.source,
                stored: spec.physical,
                values: input.values.clone(),
                validity: input.validity.clone(),
                base: input.base,
                range,
                rows: rows as u64,
            });
            for (part, (table, at)) in column.parts.iter().zip(places) {
                let dictionary = match &part.table {
                    None => None,
                    Some(values) => {
                        let (own, stored) = table_width(column, spec);
                        let entries = (values.len() / own) as u32;
                        let table = table.start..table.start + entries as usize * stored;
                        dictionaries.push(Dictionary::Table { values: up.view(table)?, entries });
                        Some(dictionaries.len() as u32 - 1)
                    }
                };
                pages.extend(part.pages.iter().map(|page| {
                    let start = (at.start + page.bytes.start - part.bytes.start) as u64;
                    PageInput {
                        bytes: start..start + page.bytes.len() as u64,
                        raw_bytes: page.raw_bytes,
                        codec: page.codec,
                        encoding: page.encoding,
                        level_bytes: page.level_bytes,
                        has_levels: column.has_levels,
                        values: page.values,
                        skip: page.skip,
                        rows: page.rows,
                        first_row: page.first_row,
                        column: number,
                        dictionary,
                    }
                }));
            }
        }
        // What its shapes refuse the host decodes.
        Ok(Plan::of(&pages, &outputs, &dictionaries).ok())
    }
}

/// Bytes of a table's entry on the host, and as it goes up.
fn table_width(column: &DeviceColumn, spec: &ColumnSpec) -> (usize, usize) {
    let stored = spec.physical.width().max(1) as usize;
    if column.source == kernels::Source::Text { (4, stored) } else { (stored, stored) }
}

/// Writes a dictionary's table in the width of its column; false for a code outside the column's range.
fn write_table(out: &mut [u8], values: &[u8], column: &DeviceColumn, spec: &ColumnSpec, base: i64) -> bool {
    if column.source != kernels::Source::Text {
        out.copy_from_slice(values);
        return true;
    }
    let (_, _, range) = Decoded::stored(spec, base);
    let bytes = values.len() / 4 * spec.physical.width().max(1) as usize;
    out[bytes..].fill(0);
    spec.physical != Physical::Bit && write_codes(&mut out[..bytes], values, None, 0, (spec.physical, base, range))
}
