//! Joins on a device (`cuda/join.cu` and generated pipelines): tables built from an extent, pipelines that probe them, rows that become several, rows that matched.
//!
//!   build side   extent ──► build_table ──► table: lists of matches by key │ list of row numbers
//!   probe side   extent ──► pipeline with Node::Probe ──► matches (count, start) per row
//!        one match at most   the row goes on; the build side's columns are lookup tables by row number
//!        several             rows with their counts ──► scan::running_sums ──► expanded pipeline, a row per match
//!   outer, semi  marks: a bit per row that found a match
//!
//! Memory   callers allocate: one buffer for a table, one of scratch while it is built, one for marks.
//! Waits    never. The number of rows after an expansion is on the device; who wants the exact size waits for it.
//! Lists    `TableInput::rows` is a lookup table of row numbers: entry `match_start + k` is the k-th match. Where no key has
//!          two rows, `match_start` is the row itself, and the list is not written.

use std::ops::Range;

use millpond_memory::{DeviceView, Position, Stream};

use crate::abi;
use crate::codegen::ir::*;
use crate::codegen::join::JoinPlan;
use crate::codegen::params::Slot;
use crate::error::KernelError;
use crate::image::Images;
use crate::launch::{Launch, LaunchConfig};
use crate::pipeline::{Input, LookupInput, Pipeline, check_buffer, reads, shape, unknown};
use crate::tune;

type Result<T> = std::result::Result<T, KernelError>;

/// A join table's allocation: control block, records (zeroed at first), list of row numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableLayout {
    /// Length of the allocation.
    pub bytes: usize,
    /// Codes of a direct table, slots of a hash table.
    pub records: u32,
    /// Rows of the build side, at most.
    pub rows_upper_bound: u64,
    /// Bytes from the beginning that a build zeroes.
    zeroed_bytes: usize,
    /// The list of row numbers, u32 each.
    list: Range<usize>,
}

impl TableLayout {
    /// Bytes of the control block: see [`TableLayout::facts`].
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// A table as `spec` says, for a build side of up to `rows` rows.
    ///
    /// # Errors
    /// [`KernelError::Codegen`] if there is no such table.
    pub fn new(spec: &TableSpec, rows: u64) -> Result<TableLayout> {
        let plan = JoinPlan::new(spec)?;
        let records = match spec.kind {
            TableKind::Direct => plan.groups.max_groups.unwrap_or(0),
            TableKind::Hash => {
                let slots = rows.saturating_mul(tune::HASH_SLOTS_PER_GROUP).max(tune::HASH_MIN_SLOTS);
                slots.next_power_of_two().min(1 << 31)
            }
        };
        let zeroed = abi::CONTROL_BYTES + records * plan.record_bytes();
        let start = zeroed.next_multiple_of(256);
        let end = start + 4 * rows;
        Ok(TableLayout {
            bytes: end as usize,
            records: records as u32,
            rows_upper_bound: rows,
            zeroed_bytes: zeroed as usize,
            list: start as usize..end as usize,
        })
    }

    /// Bytes of scratch while the table is built.
    pub fn scratch_bytes(&self) -> usize {
        8 * self.rows_upper_bound.max(1) as usize
    }

    /// What a control block that came home says about the table.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if it has fewer than 64 bytes.
    pub fn facts(control: &[u8]) -> Result<TableFacts> {
        let word = |at: u64| {
            let bytes = control.get(at as usize..at as usize + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let facts = || {
            let error = u64::from(word(abi::CONTROL_ERROR)?) | u64::from(word(abi::CONTROL_ERROR + 4)?) << 32;
            Some(TableFacts {
                error,
                rows: word(abi::CONTROL_LISTED)?,
                has_duplicates: word(abi::CONTROL_DUPLICATES)? != 0,
                has_null_keys: word(abi::CONTROL_NULL_KEYS)? != 0,
            })
        };
        facts().ok_or_else(|| shape("a control block", format!("it has {} bytes, not 64", control.len())))
    }
}

/// What is known of a table once it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// The error word: see [`ErrorCode::from_word`].
    pub error: u64,
    /// Rows that have keys.
    pub rows: u32,
    /// Some key has several rows.
    pub has_duplicates: bool,
    /// Some row that passed the filters has a NULL among its keys.
    pub has_null_keys: bool,
}

/// A table that a launch probes.
#[derive(Debug, Clone)]
pub struct TableInput {
    pub table: DeviceView,
    pub layout: TableLayout,
}

impl TableInput {
    /// The list of row numbers, as a lookup table of [`TableInput::LIST`].
    ///
    /// # Errors
    /// If the view is not of the layout.
    pub fn rows(&self) -> Result<LookupInput> {
        Ok(LookupInput { values: self.table.view(self.layout.list.clone())?, validity: None })
    }

    /// How pipelines read [`Self::rows`].
    pub const LIST: LookupSpec =
        LookupSpec { physical: Physical::U32, ty: Ty { repr: Repr::U32, nullable: false, range: None } };
}

/// What [`running_sums`](crate::scan::running_sums) wrote: the rows of an expanded pipeline.
#[derive(Debug, Clone)]
pub struct Expansion {
    /// Control block and running sums.
    pub sums: DeviceView,
    /// Rows before the expansion, at most.
    pub source_rows: u64,
    /// The first row after the expansion that a launch is for, so that very many can be taken some at a time.
    pub first: u64,
}

impl Expansion {
    /// The control block: error word and number of rows, as of an output.
    ///
    /// # Errors
    /// If the view is too short.
    pub fn control(&self) -> Result<DeviceView> {
        Ok(self.sums.view(0..abi::CONTROL_BYTES as usize)?)
    }
}

/// Bytes of marks for `rows` rows: a control block, and a bitmap from byte [`abi::MARK_BITS`] on.
pub fn mark_bytes(rows: u64) -> usize {
    (abi::MARK_BITS + rows.div_ceil(32) * 4).next_multiple_of(256) as usize
}

/// The bitmap among marks of `rows` rows.
///
/// # Errors
/// If the view is too short.
pub fn mark_bits(marks: &DeviceView, rows: u64) -> Result<DeviceView> {
    let start = abi::MARK_BITS as usize;
    Ok(marks.view(start..start + (rows.div_ceil(32) * 4) as usize)?)
}

impl Pipeline {
    fn table_spec(&self) -> Result<&TableSpec> {
        match &self.spec().sink {
            SinkSpec::Table { table, .. } => Ok(table),
            _ => Err(shape("a join table", "this pipeline builds none".into())),
        }
    }

    /// The table that this pipeline builds of up to `rows` rows.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if it builds none.
    pub fn table_layout(&self, rows: u64) -> Result<TableLayout> {
        TableLayout::new(self.table_spec()?, rows)
    }

    /// Builds a join table from the rows of the extent that pass: a buffer of `layout.bytes`, with
    /// `layout.scratch_bytes()` of scratch. Three launches.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before anything is launched if arguments do not fit; else what the device says.
    #[track_caller]
    pub fn build_table(
        &self,
        input: Input<'_>,
        table: &DeviceView,
        layout: &TableLayout,
        scratch: &DeviceView,
        images: &Images,
        on: &Stream,
    ) -> Result<Position> {
        let spec = self.table_spec()?;
        let plan = JoinPlan::new(spec)?;
        let rows = self.check_input(&input)?;
        check_buffer("the table", table, layout.bytes)?;
        check_buffer("the scratch", scratch, layout.scratch_bytes())?;
        if rows > layout.rows_upper_bound {
            let why = format!("it has room for {} rows, the input has up to {rows}", layout.rows_upper_bound);
            return Err(shape("the table", why));
        }
        table.view(0..layout.zeroed_bytes)?.fill(0, on)?;
        scratch.view(0..layout.scratch_bytes())?.fill(0xff, on)?;
        let count = &self.compiled().pipeline;
        let blocks = self.blocks(rows)?;
        let mut launch = Launch::new(self.kernel(), LaunchConfig::linear(blocks, count.threads));
        for slot in &count.params.slots {
            launch = match slot.slot {
                Slot::Control => launch.write(table),
                Slot::Scratch => launch.write(scratch),
                Slot::JoinMask(0) => launch.value(layout.records - 1),
                Slot::JoinLow(0, key) => launch.value(dense_key(&plan, key)?.0 as u64),
                Slot::JoinCodes(0, key) => launch.value(dense_key(&plan, key)?.1),
                slot => self.input_or_output(launch, slot, &input, None)?,
            };
        }
        reads(launch, &input).submit(on)?;

        let (record_bytes, offset) = (plan.record_bytes() as u32, plan.matches_offset() as u32);
        let allot = images.kernel("join", "join_allot")?;
        let place = images.kernel("join", "join_place")?;
        let config = |items: u64| -> Result<LaunchConfig> {
            let full = allot.persistent_blocks(tune::JOIN_THREADS, 0)?.max(1);
            let blocks = items.div_ceil(tune::JOIN_THREADS.into()).clamp(1, full.into()) as u32;
            Ok(LaunchConfig::linear(blocks, tune::JOIN_THREADS))
        };
        let launch = Launch::new(&allot, config(layout.records.into())?);
        launch.write(table).value(layout.records).value(record_bytes).value(offset).submit(on)?;
        let rows = layout.rows_upper_bound;
        let launch = Launch::new(&place, config(rows)?).write(table).value(layout.list.start as u64).read(scratch);
        Ok(launch.value(rows as u32).value(record_bytes).value(offset).submit(on)?)
    }

    /// Sets the bits of the rows that pass among `marks`: a buffer of [`mark_bytes`]`(rows)`, zeroed at first. One launch;
    /// other launches may mark the same buffer at once.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before anything is launched if arguments do not fit; else what the device says.
    #[track_caller]
    pub fn mark(&self, input: Input<'_>, marks: &DeviceView, rows: u64, on: &Stream) -> Result<Position> {
        if !matches!(self.spec().sink, SinkSpec::Mark { .. }) {
            return Err(shape("mark", "this pipeline marks no rows".into()));
        }
        let input_rows = self.check_input(&input)?;
        check_buffer("the marks", marks, mark_bytes(rows))?;
        let compiled = &self.compiled().pipeline;
        let blocks = self.blocks(input_rows)?;
        let mut launch = Launch::new(self.kernel(), LaunchConfig::linear(blocks, compiled.threads));
        for slot in &compiled.params.slots {
            launch = match slot.slot {
                Slot::Control => launch.share(marks),
                slot => self.input_or_output(launch, slot, &input, None)?,
            };
        }
        Ok(reads(launch, &input).submit(on)?)
    }

    /// Parameters of the tables that are probed.
    pub(crate) fn join_value<'k>(&self, launch: Launch<'k>, slot: Slot, input: &Input<'_>) -> Result<Launch<'k>> {
        let table = |i: u32| {
            let spec = self.spec().tables.get(i as usize).zip(input.tables.get(i as usize));
            spec.ok_or_else(|| shape("the input", format!("join table {i} is not there")))
        };
        Ok(match slot {
            Slot::Join(i) => launch.read(&table(i)?.1.table),
            Slot::JoinMask(i) => launch.value(table(i)?.1.layout.records - 1),
            Slot::JoinLow(i, key) => launch.value(dense_key(&JoinPlan::new(table(i)?.0)?, key)?.0 as u64),
            Slot::JoinCodes(i, key) => launch.value(dense_key(&JoinPlan::new(table(i)?.0)?, key)?.1),
            Slot::Ends => match input.expansion {
                Some(expansion) => launch.read(&expansion.sums),
                None => return Err(shape("the input", "no running sums where the pipeline expands rows".into())),
            },
            Slot::FirstRow => launch.value(input.expansion.map_or(0, |expansion| expansion.first)),
            other => return Err(unknown(other)),
        })
    }

    /// Checks the tables and the expansion of an input.
    pub(crate) fn check_joins(&self, input: &Input<'_>) -> Result<()> {
        let spec = self.spec();
        if input.tables.len() != spec.tables.len() {
            let (given, wanted) = (input.tables.len(), spec.tables.len());
            return Err(shape("the input", format!("{given} join tables where the pipeline probes {wanted}")));
        }
        for (table, spec) in input.tables.iter().zip(&spec.tables) {
            if table.layout != TableLayout::new(spec, table.layout.rows_upper_bound)? {
                return Err(shape("a join table", "it is laid out for other keys".into()));
            }
            check_buffer("a join table", &table.table, table.layout.bytes)?;
        }
        if spec.expanded != input.expansion.is_some() {
            let why = if spec.expanded { "no running sums are there" } else { "the pipeline expands no rows" };
            return Err(shape("the input", why.into()));
        }
        if let Some(expansion) = input.expansion {
            check_buffer("the running sums", &expansion.sums, expansion_bytes(expansion.source_rows))?;
        }
        Ok(())
    }
}

fn expansion_bytes(rows: u64) -> usize {
    crate::scan::expansion_bytes(rows) as usize
}

fn dense_key(plan: &JoinPlan, key: u32) -> Result<(i128, u64)> {
    plan.dense_key(key).ok_or_else(|| shape("a join table", format!("key {key} cannot address it")))
}
