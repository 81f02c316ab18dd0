//! Hash joins: tables built from an extent, pipelines that probe them, expansion of rows, marks. Device side:
//! `cuda/join.cu`.
//!
//!   build side   extent ──► build_table ──► table: one row per key    keys with several rows: list_rows ──► row lists
//!   probe side   extent ──► pipeline with Node::Probe ──► matches (count, place) per row
//!        at most one match   the row is kept; columns of the build side are lookup tables by row number
//!        several             rows with their counts ──► scan::running_sums ──► expanded pipeline, a row per match
//!   outer, semi  marks: a bit per row with a match
//!
//! Memory   callers allocate: one buffer for a table, one of scratch while it is built, one for lists, one for marks.
//! Waits    never. The row count after an expansion is on the device; a caller that needs the exact size waits for it.
//!          The facts of a table, which say whether it needs lists, are on the device, too.
//! Lists    `TableInput::rows` is a lookup table of row numbers: entry `match_start + k` is the k-th match.

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

/// Layout of a join table: control block, slots and, for a hashed table, the keys by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableLayout {
    /// Length of the allocation.
    pub bytes: usize,
    /// Number of codes of a bitmap or an array, or slots of a hash table.
    pub slots: u32,
    /// Upper bound of the build side's rows. If every row matches: the exact number of rows.
    pub rows_upper_bound: u64,
    /// Bytes of a slot of an array.
    slot_bytes: u32,
}

impl TableLayout {
    /// Range of the control block: see [`TableLayout::facts`].
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// Layout of a table of `spec` for a build side of up to `rows` rows.
    ///
    /// # Errors
    /// [`KernelError::Codegen`] if no kernel supports the spec.
    pub fn new(spec: &TableSpec, rows: u64) -> Result<TableLayout> {
        let plan = JoinPlan::new(spec)?;
        let (mut slots, mut slot_bytes) = (plan.codes().unwrap_or(0), 0);
        let records = match spec.kind {
            TableKind::Every => {
                slots = 0;
                0
            }
            TableKind::Bitmap => u64::from(slots).div_ceil(32) * 4,
            TableKind::Array => {
                // A slot holds the row number plus one.
                slot_bytes = [1, 2].into_iter().find(|bytes| rows < 1 << (8 * bytes)).unwrap_or(4);
                (u64::from(slots) * u64::from(slot_bytes)).next_multiple_of(4)
            }
            TableKind::Hash => {
                let wanted = rows.saturating_mul(tune::JOIN_SLOTS_PER_ROW).max(32);
                slots = u32::try_from(wanted).unwrap_or(u32::MAX);
                8 * (u64::from(slots) + plan.width() * rows)
            }
        };
        let bytes = (abi::CONTROL_BYTES + records) as usize;
        Ok(TableLayout { bytes, slots, rows_upper_bound: rows, slot_bytes })
    }

    /// Bytes of scratch for building a table that may get lists: the leader of each row.
    pub fn scratch_bytes(&self) -> usize {
        4 * self.rows_upper_bound.max(1) as usize
    }

    /// Bytes of the lists: a control block, count and end by leader, and the list of rows.
    pub fn lists_bytes(&self) -> usize {
        self.list().end
    }

    /// Range of the row numbers within the lists.
    fn list(&self) -> Range<usize> {
        let start = (abi::CONTROL_BYTES as usize + 8 * self.rows_upper_bound as usize).next_multiple_of(256);
        start..start + 4 * self.rows_upper_bound.max(1) as usize
    }

    /// Reads the facts of a table from a copy of its control block.
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
                has_duplicates: word(abi::CONTROL_DUPLICATES)? != 0,
                has_null_keys: word(abi::CONTROL_NULL_KEYS)? != 0,
            })
        };
        facts().ok_or_else(|| shape("a control block", format!("it has {} bytes, not 64", control.len())))
    }
}

/// Facts about a table that has been built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// The error word: see [`ErrorCode::from_word`].
    pub error: u64,
    /// True if some key has several rows.
    pub has_duplicates: bool,
    /// True if some row that passed the filters has a NULL among its keys.
    pub has_null_keys: bool,
}

/// A table that a launch probes.
#[derive(Debug, Clone)]
pub struct TableInput {
    pub table: DeviceView,
    pub layout: TableLayout,
    /// Output of [`list_rows`], if the spec has lists.
    pub lists: Option<DeviceView>,
}

impl TableInput {
    /// The row numbers of the lists, as a lookup table of spec [`TableInput::LIST`].
    ///
    /// # Errors
    /// If there are no lists, or the view does not have the layout.
    pub fn rows(&self) -> Result<LookupInput> {
        let lists = self.lists.as_ref().ok_or_else(|| shape("a join table", "it has no lists".into()))?;
        Ok(LookupInput { values: lists.view(self.layout.list())?, validity: None })
    }

    /// Spec with which pipelines read [`Self::rows`].
    pub const LIST: LookupSpec =
        LookupSpec { physical: Physical::U32, ty: Ty { repr: Repr::U32, nullable: false, range: None } };
}

/// Builds the row lists of a table: a buffer of `layout.lists_bytes()`. `leaders` is the scratch that the table was
/// built with. Three launches.
///
/// # Errors
/// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
#[track_caller]
pub fn list_rows(
    images: &Images,
    layout: &TableLayout,
    leaders: &DeviceView,
    lists: &DeviceView,
    on: &Stream,
) -> Result<Position> {
    check_buffer("the leaders", leaders, layout.scratch_bytes())?;
    check_buffer("the lists", lists, layout.lists_bytes())?;
    let list = layout.list();
    lists.view(0..list.end)?.fill(0, on)?;
    let rows = layout.rows_upper_bound as u32;
    let [count, allot, place] = ["join_count", "join_allot", "join_place"].map(|name| images.kernel("join", name));
    let (count, allot, place) = (count?, allot?, place?);
    let full = allot.persistent_blocks(tune::JOIN_THREADS, 0)?.max(1);
    let config = LaunchConfig::linear(rows.div_ceil(tune::JOIN_THREADS).clamp(1, full), tune::JOIN_THREADS);
    let over = |kernel| Launch::new(kernel, config).over_rows(layout.rows_upper_bound);
    over(&count).read(leaders).write(lists).value(rows).submit(on)?;
    over(&allot).write(lists).value(rows).submit(on)?;
    let launch = over(&place).read(leaders).write(lists);
    Ok(launch.value(list.start as u64).value(rows).submit(on)?)
}

/// Output of [`running_sums`](crate::scan::running_sums): the rows of an expanded pipeline.
#[derive(Debug, Clone)]
pub struct Expansion {
    /// Control block and running sums.
    pub sums: DeviceView,
    /// Upper bound of the rows before the expansion.
    pub source_rows: u64,
    /// First row after the expansion that a launch processes: a large expansion can be processed in several launches.
    pub first: u64,
}

impl Expansion {
    /// The control block: error word and row count, as in an output.
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

/// View of the bitmap in a buffer of marks of `rows` rows.
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

    /// Layout of the table that this pipeline builds from up to `rows` rows.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if the pipeline builds no table.
    pub fn table_layout(&self, rows: u64) -> Result<TableLayout> {
        TableLayout::new(self.table_spec()?, rows)
    }

    /// Builds a join table from the rows of the extent that pass: a buffer of `layout.bytes`. If lists may be needed,
    /// `leaders` is a buffer of `layout.scratch_bytes()`. One launch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
    #[track_caller]
    pub fn build_table(
        &self,
        input: Input<'_>,
        table: &DeviceView,
        layout: &TableLayout,
        leaders: Option<&DeviceView>,
        on: &Stream,
    ) -> Result<Position> {
        let spec = self.table_spec()?;
        let plan = JoinPlan::new(spec)?;
        let rows = self.check_input(&input)?;
        check_buffer("the table", table, layout.bytes)?;
        if rows > layout.rows_upper_bound {
            let why = format!("it has room for {} rows, the input has up to {rows}", layout.rows_upper_bound);
            return Err(shape("the table", why));
        }
        if spec.lists != leaders.is_some() {
            let why = if spec.lists { "the leaders have no place" } else { "nobody notes leaders" };
            return Err(shape("the leaders", why.into()));
        }
        table.view(0..layout.bytes)?.fill(0, on)?;
        if let Some(leaders) = leaders {
            check_buffer("the leaders", leaders, layout.scratch_bytes())?;
            leaders.view(0..layout.scratch_bytes())?.fill(0xff, on)?;
        }
        let build = &self.compiled().pipeline;
        let blocks = self.blocks(rows)?;
        let mut launch = Launch::new(self.kernel(), LaunchConfig::linear(blocks, build.threads));
        for slot in &build.params.slots {
            launch = match (slot.slot, leaders) {
                (Slot::Control, _) => launch.write(table),
                (Slot::Scratch, Some(leaders)) => launch.write(leaders),
                (slot, _) => match table_value(slot, &plan, layout)? {
                    Some(TableValue::Narrow(value)) => launch.value(value),
                    Some(TableValue::Wide(value)) => launch.value(value),
                    None => self.input_or_output(launch, slot, &input, None)?,
                },
            };
        }
        Ok(reads(launch, &input).submit(on)?)
    }

    /// Sets the bits of the rows that pass in `marks`: a buffer of [`mark_bytes`]`(rows)`, zeroed before the first
    /// launch. One launch; other launches may mark the same buffer concurrently.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
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

    /// Adds the parameter of `slot`, which describes a probed table or the expansion.
    pub(crate) fn join_value<'k>(&self, launch: Launch<'k>, slot: Slot, input: &Input<'_>) -> Result<Launch<'k>> {
        let table = |i: u32| {
            let spec = self.spec().tables.get(i as usize).zip(input.tables.get(i as usize));
            spec.ok_or_else(|| shape("the input", format!("join table {i} is not there")))
        };
        Ok(match slot {
            Slot::Join(i) => launch.read(&table(i)?.1.table),
            Slot::JoinLists(i) => match &table(i)?.1.lists {
                Some(lists) => launch.read(lists),
                None => return Err(shape("a join table", "it has no lists".into())),
            },
            Slot::JoinRows(i)
            | Slot::JoinShift(i)
            | Slot::JoinField(i)
            | Slot::JoinSlots(i)
            | Slot::JoinLow(i, _)
            | Slot::JoinCodes(i, _) => {
                let (spec, table) = table(i)?;
                match table_value(slot, &JoinPlan::new(spec)?, &table.layout)? {
                    Some(TableValue::Narrow(value)) => launch.value(value),
                    Some(TableValue::Wide(value)) => launch.value(value),
                    None => return Err(unknown(slot)),
                }
            }
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
            match (&table.lists, spec.lists) {
                (Some(lists), true) => check_buffer("the lists of a join table", lists, table.layout.lists_bytes())?,
                (None, true) => return Err(shape("a join table", "it has no lists".into())),
                _ => {}
            }
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

/// A parameter that describes how a table is addressed.
enum TableValue {
    Narrow(u32),
    Wide(u64),
}

/// The value of `slot` for a table of this layout; `None` if the slot does not describe its addressing.
fn table_value(slot: Slot, plan: &JoinPlan, layout: &TableLayout) -> Result<Option<TableValue>> {
    use TableValue::*;
    let dense = |key| plan.dense_key(key).ok_or_else(|| shape("a join table", format!("key {key} cannot address it")));
    Ok(Some(match slot {
        Slot::JoinRows(_) => Narrow(layout.rows_upper_bound as u32),
        Slot::JoinShift(_) => Narrow(layout.slot_bytes.trailing_zeros()),
        Slot::JoinField(_) => Narrow(u32::MAX >> (32 - 8 * layout.slot_bytes)),
        Slot::JoinSlots(_) => Narrow(layout.slots),
        Slot::JoinLow(_, key) => Wide(dense(key)?.0 as u64),
        Slot::JoinCodes(_, key) => Wide(dense(key)?.1),
        _ => return Ok(None),
    }))
}
