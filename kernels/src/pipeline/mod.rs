//! Pipelines on a device, launched over extents.
//!
//!   PipelineCache::pipeline(&spec) ──► Pipeline        (see `cache`)
//!       rows to columns      output_layout(rows) ─ allocate ─ materialise(input, output)
//!       rows to groups       state_layout(groups) ─ allocate zeroed ─ accumulate(input, state) … from any stream
//!                            emit_layout(state, groups) ─ allocate ─ emit(state, output)
//!
//! Memory   callers allocate: one buffer for an output, one for a state. Nothing else is needed.
//! Order    by the uses of the buffers. Streams that accumulate share a state; `rehash` and `emit` wait for all of
//!          them.
//! Waits    never. The error word and the row count are in the output's control block, on the device.
//! Launches one per call; clearing is a fill, not a launch.

mod values;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millpond_memory::{DeviceView, Kernel, Position, Stream};

use crate::abi::{self, ColumnAddress, RowCount};
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::ir::*;
use crate::codegen::params::Slot;
use crate::codegen::{CompiledKernel, CompiledPipeline, Helper};
use crate::error::KernelError;
use crate::join::{Expansion, TableInput};
use crate::launch::{Launch, LaunchConfig};
use crate::layout::{KeyPart, OutputLayout, StateLayout};
use crate::pipeline::values::output_value;
use crate::tune;

pub use crate::cache::{CacheStatistics, PipelineCache};

type Result<T> = std::result::Result<T, KernelError>;

/// One input column of an extent.
#[derive(Debug, Clone)]
pub struct ColumnInput {
    pub values: DeviceView,
    /// `None` if no row is NULL.
    pub validity: Option<DeviceView>,
    /// Added to every stored value of a column that has a base.
    pub base: i64,
}

/// Row count of an extent.
#[derive(Debug, Clone)]
pub enum ExtentRows {
    Known(u64),
    /// The control block of the output that forms the extent, and an upper bound of its count.
    OnDevice {
        control: DeviceView,
        upper_bound: u64,
    },
}

impl ExtentRows {
    pub fn upper_bound(&self) -> u64 {
        match self {
            ExtentRows::Known(rows) => *rows,
            ExtentRows::OnDevice { upper_bound, .. } => *upper_bound,
        }
    }
}

/// One extent: its rows and its columns, in the order of the spec. Unread columns may be `None`.
#[derive(Debug, Clone)]
pub struct ExtentInput {
    pub rows: ExtentRows,
    pub columns: Vec<Option<ColumnInput>>,
}

/// A lookup table: one value per code.
#[derive(Debug, Clone)]
pub struct LookupInput {
    pub values: DeviceView,
    /// Present if and only if the table's type is nullable.
    pub validity: Option<DeviceView>,
}

/// Inputs of a launch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Input<'a> {
    /// One extent for [`Extents::One`].
    pub extents: &'a [ExtentInput],
    /// For [`Extents::Many`]: a buffer with the bytes of [`Pipeline::descriptors`].
    pub descriptors: Option<&'a DeviceView>,
    pub literals: &'a [Literal],
    pub lookups: &'a [LookupInput],
    /// Join tables that the pipeline probes, in the order of the spec.
    pub tables: &'a [TableInput],
    /// Byte buffers that views in columns and lookup tables point into.
    pub texts: &'a [DeviceView],
    /// Arena for the texts that the pipeline creates ([`crate::text::arena_bytes`]), zeroed; used by this launch only.
    pub arena: Option<&'a DeviceView>,
    /// Value of [`Literal::Variant`].
    pub variant: u32,
    /// Value of [`Literal::Extent`].
    pub extent: u32,
    /// For [`SinkSpec::MaterialiseAndMark`]: a buffer of [`mark_bytes`](crate::join::mark_bytes), zeroed before the
    /// first launch. Other launches may mark it concurrently.
    pub marks: Option<&'a DeviceView>,
    /// For an expanded pipeline: the expansion of its rows. The row count of the extent is then that of
    /// [`Expansion::control`].
    pub expansion: Option<&'a Expansion>,
    /// For a hash table that may be too small for the rows of the extent: notes the rows that found no room.
    pub leftover: Option<&'a Leftover>,
}

/// Rows of an extent that found a hash table full: they were not accumulated and can be retried after it has grown.
#[derive(Debug, Clone)]
pub struct Leftover {
    /// Buffer of [`Leftover::bytes`] bytes, zeroed before the first launch: the number of such rows, and a bit per row.
    pub noted: DeviceView,
    /// If true, only the noted rows are processed; a row that finds its group is removed from the notes.
    pub again: bool,
    /// Maximum number of groups. Blocks that insert groups concurrently may each exceed it by a few.
    pub limit: u64,
}

impl Leftover {
    /// Range of the number of noted rows (u64). It only counts up: zero it before a retry.
    pub const COUNT: std::ops::Range<usize> = 0..8;

    /// Bytes needed to note rows of an extent of up to `rows` rows.
    pub fn bytes(rows: u64) -> usize {
        (abi::LEFTOVER_BITS + (rows.div_ceil(32) * 4).next_multiple_of(256)) as usize
    }
}

/// Loaded kernels of one text.
#[derive(Debug)]
pub(crate) struct Kernels {
    pipeline: Kernel,
    emit: Option<Kernel>,
    rehash: Option<Kernel>,
    /// Bytes of dynamic shared memory that launches of `pipeline` may use at present.
    allowed_shared: AtomicU64,
}

/// A pipeline that is ready to run. Many queries may use it concurrently.
#[derive(Debug)]
pub struct Pipeline {
    compiled: CompiledPipeline,
    kernels: Arc<Kernels>,
    /// Blocks of a grid that fills the device: for `pipeline`, `emit` and `rehash`.
    blocks: [OnceLock<u32>; 3],
}

/// Bytes of dynamic shared memory of a block of `pipeline`.
pub(crate) fn shared_bytes(compiled: &CompiledPipeline) -> u64 {
    compiled.plan.as_ref().map_or(0, AggregatePlan::shared_bytes)
}

impl Pipeline {
    pub(crate) fn new(compiled: CompiledPipeline, kernels: Arc<Kernels>) -> Pipeline {
        Pipeline { compiled, kernels, blocks: Default::default() }
    }

    /// Identity of the module, which its pipelines share, and the number of instructions in the text of its kernels.
    pub fn module_size(&self) -> (usize, u32) {
        let compiled = &self.compiled;
        let others = [&compiled.emit, &compiled.rehash];
        let instructions = others.into_iter().flatten().map(|kernel| kernel.instructions).sum::<u32>();
        (Arc::as_ptr(&self.kernels) as usize, compiled.pipeline.instructions + instructions)
    }

    /// Helper functions that the kernels of the module call.
    pub fn helpers(&self) -> &[Helper] {
        &self.compiled.helpers
    }

    pub fn spec(&self) -> &PipelineSpec {
        &self.compiled.spec
    }

    pub fn compiled(&self) -> &CompiledPipeline {
        &self.compiled
    }

    /// Regime of an aggregate; `None` for a pipeline from rows to columns.
    pub fn regime(&self) -> Option<Regime> {
        self.compiled.regime()
    }

    /// True if the table of groups points to texts.
    fn holds_texts(&self) -> bool {
        self.compiled.plan.as_ref().is_some_and(|plan| plan.holds_texts)
    }

    /// Upper bound of the number of groups, if the ranges of the keys give one.
    pub fn max_groups(&self) -> Option<u64> {
        self.compiled.plan.as_ref().and_then(|plan| plan.max_groups)
    }

    /// Maximum rows that one state may take over all launches: up to this number every sum is exact.
    pub fn max_rows(&self) -> u64 {
        self.compiled.plan.as_ref().map_or(u64::MAX, |plan| plan.max_rows)
    }

    // Rows to columns.

    /// Layout of the output for extents with these upper bounds of rows.
    pub fn output_layout(&self, extents: &[ExtentInput]) -> OutputLayout {
        let bounds = extents.iter().map(|extent| extent.rows.upper_bound());
        let tiles = if self.compiled.compacts {
            bounds.clone().map(|rows| rows.div_ceil(tune::COMPACT_THREADS as u64)).sum()
        } else {
            0
        };
        OutputLayout::new(&self.compiled.spec.output_types(), bounds.sum(), tiles)
    }

    /// Layout with room for `most` rows, if the pipeline filters rows: the first rows that pass are written, and all
    /// are counted ([`OutputLayout::passed`]). Without a filter there is room for all rows.
    pub fn short_layout(&self, extents: &[ExtentInput], most: u64) -> OutputLayout {
        let whole = self.output_layout(extents);
        if !self.compiled.compacts || most >= whole.rows_upper_bound {
            return whole;
        }
        let layout = OutputLayout::new(&self.compiled.spec.output_types(), most, whole.num_tiles.into());
        OutputLayout { short: true, ..layout }
    }

    /// Writes the rows that pass, in order, to `output`: a buffer of `layout.bytes`. One launch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
    #[track_caller]
    pub fn materialise(
        &self,
        input: Input<'_>,
        output: &DeviceView,
        layout: &OutputLayout,
        on: &Stream,
    ) -> Result<Position> {
        if self.compiled.plan.is_some() {
            return Err(shape("materialise", "this pipeline aggregates: accumulate, then emit".into()));
        }
        let rows = self.check_input(&input)?;
        check_buffer("the output", output, layout.bytes)?;
        if rows > layout.rows_upper_bound && !(layout.short && self.compiled.compacts) {
            return Err(shape(
                "the output",
                format!("it has room for {} rows, the input has up to {rows}", layout.rows_upper_bound),
            ));
        }
        output.view(0..layout.zeroed_bytes)?.fill(0, on)?;
        let compiled = &self.compiled.pipeline;
        let wanted =
            if self.compiled.compacts { layout.num_tiles as u64 } else { rows.div_ceil(compiled.threads as u64) };
        let blocks = self.grid(0, &self.kernels.pipeline, compiled, 0, wanted)?;
        let mut launch = Launch::new(&self.kernels.pipeline, LaunchConfig::linear(blocks, compiled.threads));
        for slot in &compiled.params.slots {
            launch = match slot.slot {
                Slot::Control => launch.write(output),
                Slot::NumTiles => launch.value(layout.num_tiles),
                Slot::Room => launch.value(layout.rows_upper_bound),
                Slot::Marks => match input.marks {
                    Some(marks) => launch.share(marks),
                    None => return Err(shape("the marks", "they have no place".into())),
                },
                slot => self.input_or_output(launch, slot, &input, Some(layout))?,
            };
        }
        Ok(reads(launch, &input).submit(on)?)
    }

    // Rows to groups.

    /// Layout of a state with room for `groups` groups; only hash tables use the number. The caller zeroes the buffer.
    pub fn state_layout(&self, groups: u64) -> Result<StateLayout> {
        let plan = self.plan("a state")?;
        Ok(match plan.regime {
            Regime::Hash => StateLayout::hash(groups, plan.record_bytes()),
            regime => StateLayout::dense(regime, plan.groups(), plan.record_bytes(), plan.copies),
        })
    }

    /// Adds the rows that pass to the groups of `state`. One launch; other streams may accumulate concurrently. The
    /// caller must keep the rows of all launches within [`max_rows`](Self::max_rows).
    ///
    /// # Errors
    /// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
    #[track_caller]
    pub fn accumulate(
        &self,
        input: Input<'_>,
        state: &DeviceView,
        layout: &StateLayout,
        on: &Stream,
    ) -> Result<Position> {
        let plan = self.plan("a state")?;
        let rows = self.check_input(&input)?;
        check_buffer("the state", state, layout.bytes)?;
        if layout.part != KeyPart::ALL && layout.regime != Regime::Hash {
            return Err(shape("the state", "only a hash table can be for a part of the keys".into()));
        }
        if let Some(leftover) = input.leftover {
            if layout.regime != Regime::Hash || self.compiled.spec.extents != Extents::One {
                return Err(shape("leftover rows", "only a hash table fed from one extent leaves rows".into()));
            }
            check_buffer("leftover rows", &leftover.noted, Leftover::bytes(rows))?;
        }
        let compiled = &self.compiled.pipeline;
        let shared = shared_bytes(&self.compiled);
        self.kernels.allow_shared(shared)?;
        let wanted = rows.div_ceil(compiled.threads as u64 * compiled.rows_per_thread as u64);
        // A block with its own table needs enough rows to be worth it, and few enough rows for its sums.
        let (worth, least) = match plan.regime {
            Regime::Block => {
                (rows / (plan.groups() * tune::BLOCK_ROWS_PER_RECORD), rows.div_ceil(tune::MAX_ROWS_PER_BLOCK))
            }
            _ => (u64::MAX, 1),
        };
        let blocks = self.grid(0, &self.kernels.pipeline, compiled, shared as u32, wanted.min(worth))?;
        let blocks = blocks.max(least as u32);
        if rows / (blocks as u64 * compiled.threads as u64) >= tune::MAX_ROWS_PER_THREAD {
            return Err(shape("a launch", format!("{rows} rows are too many at once; use more extents and launches")));
        }
        let config = LaunchConfig::linear(blocks, compiled.threads).with_shared(shared as u32);
        let mut launch = Launch::new(&self.kernels.pipeline, config);
        for slot in &compiled.params.slots {
            launch = match slot.slot {
                // A launch reads texts of other launches through the table, so these launches run one after the other.
                Slot::Control if self.holds_texts() => launch.write(state),
                Slot::Control => launch.share(state),
                Slot::Leftover => match input.leftover {
                    Some(leftover) => launch.write(&leftover.noted),
                    None => launch.value(0u64),
                },
                Slot::Again => launch.value(u32::from(input.leftover.is_some_and(|leftover| leftover.again))),
                Slot::Limit => launch.value(input.leftover.map_or(u64::MAX, |leftover| leftover.limit)),
                slot => match self.table_value(slot, layout) {
                    Some(value) => value.give(launch),
                    None => self.input_or_output(launch, slot, &input, None)?,
                },
            };
        }
        Ok(reads(launch, &input).submit(on)?)
    }

    /// Moves the groups of a hash table to a larger, zeroed table. If that table is for one part of the keys, groups of
    /// other parts are not moved. One launch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if this is not a hash table or the buffers are too small; else errors of the device.
    #[track_caller]
    pub fn rehash(
        &self,
        from: &DeviceView,
        from_layout: &StateLayout,
        to: &DeviceView,
        to_layout: &StateLayout,
        on: &Stream,
    ) -> Result<Position> {
        let (Some(compiled), Some(kernel)) = (&self.compiled.rehash, &self.kernels.rehash) else {
            return Err(shape("rehash", "the groups are not in a hash table".into()));
        };
        check_buffer("the old state", from, from_layout.bytes)?;
        check_buffer("the new state", to, to_layout.bytes)?;
        if to_layout.records < from_layout.records {
            return Err(shape("the new state", "it is smaller than the old one".into()));
        }
        let wanted = (from_layout.records as u64).div_ceil(compiled.threads as u64);
        let blocks = self.grid(2, kernel, compiled, 0, wanted)?;
        let config = LaunchConfig::linear(blocks, compiled.threads);
        let mut launch = Launch::new(kernel, config).over_rows(from_layout.records as u64);
        for slot in &compiled.params.slots {
            launch = match slot.slot {
                Slot::Control => launch.write(to),
                Slot::OldTable => launch.read(from),
                Slot::Records => launch.value(from_layout.records),
                Slot::SlotMask => launch.value(to_layout.records - 1),
                Slot::PartMask => launch.value(to_layout.part.parts() - 1),
                Slot::Part => launch.value(to_layout.part.index()),
                other => return Err(unknown(other)),
            };
        }
        Ok(launch.submit(on)?)
    }

    /// Layout of the output of [`Self::emit`] for at most `groups` groups; the number of accumulated rows is such a
    /// bound.
    pub fn emit_layout(&self, state: &StateLayout, groups: u64) -> Result<OutputLayout> {
        let plan = self.plan("an emit")?;
        let bound = if plan.keys.is_empty() { 1 } else { groups.min(state.records as u64) };
        let bound = plan.max_groups.map_or(bound, |most| bound.min(most));
        let tiles =
            if plan.keys.is_empty() { 0 } else { (state.records as u64).div_ceil(tune::COMPACT_THREADS as u64) };
        Ok(OutputLayout::new(&self.compiled.spec.output_types(), bound, tiles))
    }

    /// Writes every group to `output`: keys, then accumulators. One launch.
    ///
    /// # Errors
    /// [`KernelError::Shape`] before any launch if arguments do not fit; else errors of the device.
    #[track_caller]
    pub fn emit(
        &self,
        state: &DeviceView,
        state_layout: &StateLayout,
        output: &DeviceView,
        layout: &OutputLayout,
        on: &Stream,
    ) -> Result<Position> {
        let (Some(compiled), Some(kernel)) = (&self.compiled.emit, &self.kernels.emit) else {
            return Err(shape("emit", "this pipeline does not aggregate".into()));
        };
        check_buffer("the state", state, state_layout.bytes)?;
        check_buffer("the output", output, layout.bytes)?;
        output.view(0..layout.zeroed_bytes)?.fill(0, on)?;
        let blocks = self.grid(1, kernel, compiled, 0, layout.num_tiles.max(1) as u64)?;
        let config = LaunchConfig::linear(blocks, compiled.threads);
        let mut launch = Launch::new(kernel, config).over_rows(state_layout.records as u64);
        for slot in &compiled.params.slots {
            launch = match slot.slot {
                Slot::Control => launch.read(state),
                Slot::Output => launch.write(output),
                Slot::Records => launch.value(state_layout.records),
                Slot::NumTiles => launch.value(layout.num_tiles),
                Slot::Room => launch.value(layout.rows_upper_bound),
                Slot::KeyLow(i) => launch.value(self.dense_key(i).low as u64),
                slot => match self.table_value(slot, state_layout).or_else(|| output_value(slot, layout)) {
                    Some(value) => value.give(launch),
                    None => return Err(unknown(slot)),
                },
            };
        }
        Ok(launch.submit(on)?)
    }

    /// Bytes of an array of extent descriptors, for [`Input::descriptors`].
    pub fn descriptors(&self, extents: &[ExtentInput]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for extent in extents {
            self.describe(extent, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn describe(&self, extent: &ExtentInput, bytes: &mut Vec<u8>) -> Result<()> {
        let rows = match &extent.rows {
            ExtentRows::Known(rows) => RowCount::Known(*rows),
            ExtentRows::OnDevice { control, upper_bound } => {
                RowCount::OnDevice { control: control.address().0, upper_bound: *upper_bound }
            }
        };
        let columns: Vec<ColumnAddress> = extent
            .columns
            .iter()
            .map(|column| match column {
                None => ColumnAddress::default(),
                Some(column) => ColumnAddress {
                    values: column.values.address().0,
                    validity: column.validity.as_ref().map_or(0, |view| view.address().0),
                    base: column.base,
                },
            })
            .collect();
        abi::write_extent(bytes, rows, &columns);
        Ok(())
    }

    fn plan(&self, what: &'static str) -> Result<&AggregatePlan> {
        self.compiled.plan.as_ref().ok_or_else(|| shape(what, "this pipeline does not aggregate".into()))
    }

    /// Checks the input against the spec; returns the upper bound of its rows.
    pub(crate) fn check_input(&self, input: &Input<'_>) -> Result<u64> {
        let spec = &self.compiled.spec;
        self.check_joins(input)?;
        if spec.extents == Extents::One && input.extents.len() != 1 {
            return Err(shape("the input", format!("{} extents where the pipeline reads one", input.extents.len())));
        }
        if spec.extents == Extents::Many && input.descriptors.is_none() {
            return Err(shape("the input", "no descriptors where the pipeline reads many extents".into()));
        }
        for (what, given, wanted) in [
            ("literals", input.literals.len(), spec.literals.len()),
            ("lookup tables", input.lookups.len(), spec.lookups.len()),
        ] {
            if given != wanted {
                return Err(shape("the input", format!("{given} {what} where the pipeline has {wanted}")));
            }
        }
        let used = spec.used_columns();
        let mut rows = 0u64;
        for extent in input.extents {
            let own = extent.rows.upper_bound();
            if own > abi::MAX_EXTENT_ROWS {
                return Err(shape("an extent", format!("it has {own} rows, at most {} fit", abi::MAX_EXTENT_ROWS)));
            }
            rows += own;
            if extent.columns.len() != spec.columns.len() {
                let (given, wanted) = (extent.columns.len(), spec.columns.len());
                return Err(shape("an extent", format!("{given} columns where the pipeline has {wanted}")));
            }
            let stored = input.expansion.map_or(own, |expansion| expansion.source_rows);
            for &i in &used {
                self.check_column(i, &extent.columns[i as usize], stored)?;
            }
        }
        Ok(rows)
    }

    fn check_column(&self, index: u32, column: &Option<ColumnInput>, rows: u64) -> Result<()> {
        let spec = self.compiled.spec.columns[index as usize];
        let Some(column) = column else {
            return Err(shape("an extent", format!("column {index} is read but not there")));
        };
        let wanted = spec.physical.value_bytes(rows);
        if (column.values.len() as u64) < wanted {
            return Err(shape(
                "an extent",
                format!("column {index} has {} bytes where {rows} rows take {wanted}", column.values.len()),
            ));
        }
        if column.validity.is_some() && !spec.ty.nullable {
            return Err(shape("an extent", format!("column {index} has validity but its type has no NULL")));
        }
        if column.base != 0 && !spec.has_base {
            return Err(shape("an extent", format!("column {index} has a base that the pipeline does not add")));
        }
        Ok(())
    }

    /// Blocks of a persistent grid of the pipeline's own kernel over `items`, one thread per item.
    pub(crate) fn blocks(&self, items: u64) -> Result<u32> {
        let compiled = &self.compiled.pipeline;
        self.grid(0, &self.kernels.pipeline, compiled, 0, items.div_ceil(compiled.threads.into()))
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernels.pipeline
    }

    /// Blocks of a persistent grid, at most `wanted`.
    fn grid(&self, which: usize, kernel: &Kernel, compiled: &CompiledKernel, shared: u32, wanted: u64) -> Result<u32> {
        let full = match self.blocks[which].get() {
            Some(blocks) => *blocks,
            None => {
                let blocks = kernel.persistent_blocks(compiled.threads, shared)?;
                *self.blocks[which].get_or_init(|| blocks)
            }
        };
        Ok(wanted.clamp(1, full.max(1) as u64) as u32)
    }
}

impl Kernels {
    pub fn new(pipeline: Kernel, compiled: &CompiledKernel, emit: Option<Kernel>, rehash: Option<Kernel>) -> Kernels {
        let allowed = tune::SHARED_WITHOUT_ASKING.saturating_sub(compiled.static_shared_bytes);
        Kernels { pipeline, emit, rehash, allowed_shared: AtomicU64::new(allowed) }
    }

    /// Raises the limit of dynamic shared memory of `pipeline` to at least `bytes`.
    fn allow_shared(&self, bytes: u64) -> Result<()> {
        if bytes > self.allowed_shared.load(Ordering::Relaxed) {
            self.pipeline.allow_shared(bytes as u32)?;
            self.allowed_shared.fetch_max(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Declares the buffers that the kernel reaches through extent descriptors.
pub(crate) fn reads<'k>(mut launch: Launch<'k>, input: &Input<'_>) -> Launch<'k> {
    for extent in input.extents {
        if let ExtentRows::OnDevice { control, .. } = &extent.rows {
            launch = launch.reads(control);
        }
        for column in extent.columns.iter().flatten() {
            launch = launch.reads(column.values.padded());
            if let Some(validity) = &column.validity {
                launch = launch.reads(validity.padded());
            }
        }
    }
    for bytes in input.texts {
        launch = launch.reads(bytes.padded());
    }
    launch.over_rows(input.extents.iter().map(|extent| extent.rows.upper_bound()).sum())
}

pub(crate) fn check_buffer(what: &'static str, view: &DeviceView, bytes: usize) -> Result<()> {
    if view.len() < bytes {
        return Err(shape(what, format!("it has {} bytes where {bytes} are needed", view.len())));
    }
    Ok(())
}

pub(crate) fn shape(what: &'static str, why: String) -> KernelError {
    KernelError::Shape { what, why }
}

pub(crate) fn unknown(slot: Slot) -> KernelError {
    shape("a kernel", format!("nothing fills its parameter {slot:?}"))
}
