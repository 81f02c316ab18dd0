//! One run of a program.
//!
//!   feeders ──► extents ──► segment 0 ──┬─ materialise: every extent's rows go home as they come
//!   (feed.rs)                           └─ one table ─► emit ─► segment 1 ─► … ─► result, one copy, one wait
//!
//! Attempts a value outside its range, or a dictionary that outgrew the width planned for its codes, starts the run again
//!          with what was learnt; nothing has left the device by then, and nothing of the first attempt is kept.
//! Waits    for the result; while feeding, for pinned memory; and where a hash table may be full, for its number of groups.
//! Dropped  with its stream: tasks end, buffers are freed in the order of their streams.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::{Aggregate, ErrorCode, Node, Regime, SinkSpec};
use millpond_kernels::layout::{OutputLayout, StateLayout};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput, Pipeline};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, MemoryError, Scope, Stream};
use tokio::sync::mpsc;

use super::compile::{LoweredSegment, Program, Sink};
use super::feed;
use super::tables::{Seeds, Tables};
use super::{Trouble, sort};
use crate::column::{ColumnInfo, Form, uploaded_columns};
use crate::device::Engine;
use crate::error::EngineError;
use crate::exec::DownloadExec;
use crate::expr::{Dictionaries, Dictionary};
use crate::extent::read_array;
use crate::options::MillpondOptions;
use crate::placement::statistics;

/// Why a run stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The device cannot go on: the CPU may take over.
    Trouble(Trouble),
    /// Pinned memory is all under way; it comes back.
    Pinned(Trouble),
    /// The plan below failed; the CPU would, too.
    Input(DataFusionError),
    /// Values left the ranges that the plan relied on.
    Ranges,
    /// Dictionaries outgrew their codes' widths; these sizes were seen.
    Dictionaries(HashMap<usize, usize>),
    /// Ranks of strings moved between launches whose results meet; these are the dictionaries, complete by now.
    Ranks(Seeds),
    /// Whoever reads the result has gone.
    Cancelled,
}

impl Failure {
    pub fn trouble(what: impl Into<String>) -> Self {
        Self::Trouble(Trouble { what: what.into(), ..Trouble::default() })
    }

    /// An error of the query's own, met while evaluating an expression on a dictionary. Not every value of a dictionary is
    /// in a row that reaches the expression, so DataFusion has the last word.
    pub fn query(error: DataFusionError) -> Self {
        Self::Trouble(Trouble { what: error.strip_backtrace(), sql: Some(Arc::new(error)), ..Trouble::default() })
    }
}

impl From<DataFusionError> for Failure {
    /// An expression failed on a dictionary's values; whether any row has that value, only the CPU can tell.
    fn from(error: DataFusionError) -> Self {
        let what = error.strip_backtrace();
        Self::Trouble(Trouble { what, sql: Some(Arc::new(error)), ..Trouble::default() })
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        Self::trouble(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::trouble(error.to_string())
    }
}

impl From<crate::placement::Reason> for Failure {
    fn from(reason: crate::placement::Reason) -> Self {
        Self::trouble(reason.to_string())
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let (out_of_memory, lost) = (error.is_out_of_memory(), error.is_device_lost());
        let trouble = Trouble { what: error.to_string(), out_of_memory, lost, sql: None };
        match error {
            MemoryError::PinnedExhausted { .. } => Self::Pinned(trouble),
            _ => Self::Trouble(trouble),
        }
    }
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Self {
        let (out_of_memory, lost) = (error.is_out_of_memory(), error.is_device_lost());
        Self::Trouble(Trouble { what: error.to_string(), out_of_memory, lost, sql: None })
    }
}

/// Segment 0, once its input's columns are known.
pub(super) struct Prepared {
    pub lowered: LoweredSegment,
    pub pipeline: Arc<Pipeline>,
    /// Dictionaries whose codes must stay below a bound, by column.
    pub bounds: Vec<(usize, usize)>,
}

/// The table of an aggregating segment.
pub(super) struct State {
    pub buffer: DeviceBuffer,
    pub layout: StateLayout,
    /// Groups it may have by now.
    pub groups: u64,
}

/// What attempts learn from each other.
#[derive(Debug, Default)]
struct Learnt {
    /// Statistics were wrong: take every column at its native width.
    wide: bool,
    /// Least sizes to plan dictionaries for, by column.
    dictionaries: HashMap<usize, usize>,
    /// Dictionaries of an earlier attempt, for the next one alone.
    seeds: Seeds,
}

/// One attempt at running a program.
pub(super) struct Run {
    pub program: Program,
    /// The plan whose rows are fed.
    pub input: Arc<dyn ExecutionPlan>,
    pub engine: Arc<Engine>,
    pub options: MillpondOptions,
    pub context: Arc<TaskContext>,
    pub scope: Scope,
    /// Columns of the uploaded rows.
    pub columns: Vec<ColumnInfo>,
    /// Which of them segment 0 reads.
    pub used: Vec<bool>,
    /// Rows of the input by statistics; 0 when they do not say.
    rows_known: u64,
    learnt_sizes: HashMap<usize, usize>,
    tables: Mutex<Tables>,
    prepared: Mutex<Option<Arc<Prepared>>>,
    pub state: tokio::sync::Mutex<Option<State>>,
    pub pipeline_launches: Arc<AtomicU64>,
    pub rows_fed: AtomicU64,
    /// Rows that may still leave.
    remaining: AtomicUsize,
    pub out: Output,
}

/// Where result batches go.
#[derive(Clone)]
pub(super) struct Output {
    pub sender: mpsc::Sender<datafusion::error::Result<RecordBatch>>,
    pub sent: Arc<AtomicU64>,
    pub batch_rows: usize,
}

impl Output {
    /// Sends a batch in pieces of the session's batch size.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), Failure> {
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = self.batch_rows.max(1).min(batch.num_rows() - from);
            self.sent.fetch_add(rows as u64, Ordering::Relaxed);
            self.sender.send(Ok(batch.slice(from, rows))).await.map_err(|_| Failure::Cancelled)?;
            from += rows;
        }
        Ok(())
    }
}

/// Runs `program` for `download`, attempt after attempt.
pub(super) async fn run(
    download: &DownloadExec,
    context: &Arc<TaskContext>,
    scope: &Scope,
    launches: &Arc<AtomicU64>,
    out: &Output,
) -> Result<(), Failure> {
    let program = Program::of(download.input())?;
    let options = context.session_config().options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
    let mut learnt = Learnt::default();
    let mut untouched = download.begin();
    for _ in 0..8 {
        // A scan that was read before has nothing left to give: whoever comes later reads a fresh copy of it.
        let mut input = Arc::clone(program.upload().input());
        if !std::mem::take(&mut untouched) {
            input = reset_plan_states(input).map_err(Failure::Input)?;
        }
        let program = program.clone();
        let attempt =
            Arc::new(Run::new(download, program, input, &options, context, scope, launches, out, &mut learnt)?);
        match attempt.attempt().await {
            Err(Failure::Ranges) if !learnt.wide && out.sent.load(Ordering::Relaxed) == 0 => learnt.wide = true,
            Err(Failure::Dictionaries(sizes)) if out.sent.load(Ordering::Relaxed) == 0 => {
                for (column, size) in sizes {
                    let known = learnt.dictionaries.entry(column).or_default();
                    // Four times what was seen, so that a slowly growing dictionary does not restart the run each time.
                    *known = (*known).max(size * 4);
                }
            }
            Err(Failure::Ranks(seeds)) => learnt.seeds = seeds,
            other => return other,
        }
    }
    Err(Failure::trouble("the plan for the input's values was wrong too often"))
}

/// A hash table grows before it is full: this many extents' rows might all be new groups.
const EXTENTS_AHEAD: u64 = 2;

/// Codes of a key are planned for at least this many values.
const LEAST_CODES: usize = 16;
/// Beyond this many values a key's codes have no bound, and groups are hashed.
const MOST_BOUNDED_CODES: usize = 1 << 16;

impl Run {
    #[expect(clippy::too_many_arguments, reason = "a run is all of these")]
    fn new(
        download: &DownloadExec,
        program: Program,
        input: Arc<dyn ExecutionPlan>,
        options: &MillpondOptions,
        context: &Arc<TaskContext>,
        scope: &Scope,
        launches: &Arc<AtomicU64>,
        out: &Output,
        learnt: &mut Learnt,
    ) -> Result<Self, Failure> {
        let known = if learnt.wide { None } else { statistics(input.as_ref()) };
        let mut definitions = Dictionaries::default();
        let schema = input.schema();
        let columns = uploaded_columns(&schema, known.as_deref(), |column| {
            let data_type = schema.field(column).data_type().clone();
            definitions.add(Dictionary::Source { upload: 0, column, data_type })
        });
        // Which columns are read does not depend on what dictionaries will hold.
        let lowered = program.lower(0, &columns, None, None, &mut definitions.clone())?;
        let mut used = vec![false; columns.len()];
        lowered.spec.used_columns().iter().for_each(|index| used[*index as usize] = true);
        Ok(Self {
            used,
            remaining: AtomicUsize::new(program.row_limit.unwrap_or(usize::MAX)),
            program,
            input,
            engine: Arc::clone(download.engine()),
            options: options.clone(),
            context: Arc::clone(context),
            scope: scope.clone(),
            columns,
            rows_known: known.as_ref().and_then(|s| s.num_rows.get_value().copied()).unwrap_or(0) as u64,
            learnt_sizes: learnt.dictionaries.clone(),
            tables: Mutex::new(Tables::new(definitions).with_seeds(std::mem::take(&mut learnt.seeds))),
            prepared: Mutex::new(None),
            state: tokio::sync::Mutex::new(None),
            pipeline_launches: Arc::clone(launches),
            rows_fed: AtomicU64::new(0),
            out: out.clone(),
        })
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when the rows of an extent can go home as soon as they are there.
    pub fn streams_out(&self) -> bool {
        self.program.segments.len() == 1 && matches!(self.program.segments[0].sink, Sink::Materialise)
    }

    /// True when all rows must lie in one extent.
    pub fn one_extent(&self) -> bool {
        matches!(self.program.segments[0].sink, Sink::Sort { .. })
    }

    /// Rows that may still leave.
    pub fn wanted(&self) -> usize {
        self.remaining.load(Ordering::Relaxed)
    }

    async fn attempt(self: &Arc<Self>) -> Result<(), Failure> {
        let fed = feed::feed(self).await?;
        if self.streams_out() {
            return Ok(());
        }
        let stream = self.engine.streams.take(&self.scope)?;
        let prepared = self.prepared(0)?;
        self.check_ranks(&prepared)?;
        let mut current = match &self.program.segments[0].sink {
            Sink::Aggregate(_) => self.emitted(&prepared, &stream).await?,
            _ => match fed {
                Some(part) => part,
                None => return Ok(()),
            },
        };
        let mut finish = prepared.lowered.aggregate.clone();
        for index in 1..self.program.segments.len() {
            let lowered = {
                let mut tables = self.tables();
                let rows_hint = Some(current.layout.rows_upper_bound.next_power_of_two());
                self.program.lower(index, &current.outputs, finish.as_ref(), rows_hint, &mut tables.definitions)?
            };
            let pipeline = self.engine.pipelines.pipeline(&lowered.spec)?;
            finish.clone_from(&lowered.aggregate);
            current = match &self.program.segments[index].sink {
                Sink::Aggregate(_) => self.aggregate_again(&pipeline, lowered, current, &stream).await?,
                Sink::Materialise => self.materialised(&pipeline, &lowered, &current.as_extent()?, &stream).await?,
                Sink::Sort { .. } => {
                    let part = self.materialised(&pipeline, &lowered, &current.as_extent()?, &stream).await?;
                    sort::sorted(part, &lowered.sort_keys, &self.engine, &stream)?
                }
            };
        }
        if let Some(selection) = &self.program.selection {
            current = current.select(selection)?;
        }
        let batch = self.downloaded(&current, &stream, false).await?;
        drop(current);
        self.out.send(batch).await
    }

    /// Segment 0 in the kernels' language, made by whoever asks first.
    /// `rows` are those at hand; statistics may know of more.
    pub fn prepared(&self, rows: u64) -> Result<Arc<Prepared>, Failure> {
        let mut slot = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = &*slot {
            return Ok(Arc::clone(prepared));
        }
        // Rounded, so that a few rows more compile nothing.
        let rows_hint = Some(self.rows_known.max(rows).next_power_of_two());
        let mut tables = self.tables();
        let mut lowered = self.program.lower(0, &self.columns, None, rows_hint, &mut tables.definitions)?;
        let mut bounds = Vec::new();
        if let SinkSpec::Aggregate(aggregate) = &lowered.spec.sink {
            // Codes that are keys get a bound, so that few groups can be addressed directly.
            let mut columns = self.columns.clone();
            for key in &aggregate.keys {
                let Node::Column { index } = lowered.spec.graph.node(*key) else { continue };
                let index = *index as usize;
                let Form::Codes(ty, id) = columns[index].form else { continue };
                let learnt = self.learnt_sizes.get(&index).copied().unwrap_or(0);
                let bound = tables.len(id).max(learnt).max(LEAST_CODES).next_power_of_two();
                if bound <= MOST_BOUNDED_CODES {
                    columns[index].form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                    bounds.push((index, bound));
                }
            }
            if !bounds.is_empty() {
                lowered = self.program.lower(0, &columns, None, rows_hint, &mut tables.definitions)?;
            }
        }
        drop(tables);
        let pipeline = self.engine.pipelines.pipeline(&lowered.spec)?;
        let prepared = Arc::new(Prepared { lowered, pipeline, bounds });
        *slot = Some(Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Fails when a dictionary has outgrown the bound of its codes.
    pub fn check_bounds(&self, prepared: &Prepared) -> Result<(), Failure> {
        let tables = self.tables();
        let mut sizes = HashMap::new();
        for (column, bound) in &prepared.bounds {
            if let Form::Codes(_, id) = self.columns[*column].form
                && tables.len(id) > *bound
            {
                sizes.insert(*column, tables.len(id));
            }
        }
        if sizes.is_empty() { Ok(()) } else { Err(Failure::Dictionaries(sizes)) }
    }

    /// Fails when the least or greatest string was sought by ranks that moved as its dictionary grew.
    fn check_ranks(&self, prepared: &Prepared) -> Result<(), Failure> {
        let SinkSpec::Aggregate(aggregate) = &prepared.lowered.spec.sink else { return Ok(()) };
        let mut tables = self.tables();
        for accumulator in &aggregate.accumulators {
            if let Aggregate::Min(of) | Aggregate::Max(of) = accumulator.aggregate
                && let Node::Lookup { table, .. } = prepared.lowered.spec.graph.node(of)
                && tables.ranks_moved(&prepared.lowered.lookups[*table as usize])
            {
                return Err(Failure::Ranks(tables.take_seeds()));
            }
        }
        Ok(())
    }

    /// The tables of a launch. Where there is no pinned memory for a large one, it waits until some has come back.
    async fn lookups(&self, lowered: &LoweredSegment, stream: &Stream) -> Result<Vec<LookupInput>, Failure> {
        loop {
            let made = self.tables().lookups(&lowered.lookups, &lowered.spec.lookups, &self.engine, stream);
            match made {
                Err(Failure::Pinned(_)) => drop(self.engine.pinned.take(HostKind::Upload, LARGE_TABLE_BYTES).await?),
                other => return other,
            }
        }
    }

    /// Adds an extent's rows to the table of segment 0.
    pub async fn accumulate(&self, prepared: &Prepared, extent: ExtentInput, stream: &Stream) -> Result<(), Failure> {
        let rows = extent.rows.upper_bound();
        let lookups = self.lookups(&prepared.lowered, stream).await?;
        let mut slot = self.state.lock().await;
        let state = self.with_room(&mut slot, &prepared.pipeline, rows, stream).await?;
        let input = Input {
            extents: std::slice::from_ref(&extent),
            descriptors: None,
            literals: &prepared.lowered.literals,
            lookups: &lookups,
            ..Input::default()
        };
        prepared.pipeline.accumulate(input, &state.buffer, &state.layout, stream)?;
        state.groups = state.groups.saturating_add(rows);
        self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The table, with room for `rows` groups more.
    async fn with_room<'s>(
        &self,
        slot: &'s mut Option<State>,
        pipeline: &Pipeline,
        rows: u64,
        stream: &Stream,
    ) -> Result<&'s mut State, Failure> {
        let most = pipeline.max_groups().unwrap_or(u64::MAX);
        if slot.is_none() {
            let layout = pipeline.state_layout(rows.min(most))?;
            let buffer = DeviceBuffer::zeroed(layout.bytes, stream, &self.engine.pool)?;
            *slot = Some(State { buffer, layout, groups: 0 });
        }
        let state = slot.as_mut().ok_or_else(|| EngineError::internal("the table was just made"))?;
        if state.layout.regime != Regime::Hash || (state.groups + rows).min(most) <= state.layout.room() {
            return Ok(state);
        }
        // The bound counts every row as a group; the device knows better.
        let control = state.buffer.view(StateLayout::CONTROL)?.download_vec(stream, &self.engine.pinned)?.await?;
        let (error, groups) = control_words(&control)?;
        flagged(error)?;
        state.groups = groups;
        // Room for some extents more, so that not every one of them has to ask.
        if (groups + rows * EXTENTS_AHEAD).min(most) > state.layout.room() {
            let layout = pipeline.state_layout(((groups + rows * EXTENTS_AHEAD) * 2).min(most))?;
            let buffer = DeviceBuffer::zeroed(layout.bytes, stream, &self.engine.pool)?;
            pipeline.rehash(&state.buffer, &state.layout, &buffer, &layout, stream)?;
            *state = State { buffer, layout, groups };
        }
        Ok(state)
    }

    /// The groups of segment 0 as columns.
    async fn emitted(&self, prepared: &Prepared, stream: &Stream) -> Result<Part, Failure> {
        let mut slot = self.state.lock().await;
        self.with_room(&mut slot, &prepared.pipeline, 0, stream).await?;
        let state = slot.take().ok_or_else(|| EngineError::internal("the table was just made"))?;
        self.emit(&prepared.pipeline, &state, &prepared.lowered, self.rows_fed.load(Ordering::Relaxed), stream)
    }

    fn emit(
        &self,
        pipeline: &Pipeline,
        state: &State,
        lowered: &LoweredSegment,
        rows: u64,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let layout = pipeline.emit_layout(&state.layout, rows)?;
        let buffer = output_buffer(&layout, &self.engine, stream)?;
        pipeline.emit(&state.buffer, &state.layout, &buffer, &layout, stream)?;
        Ok(Part { buffer, layout, outputs: lowered.outputs.clone() })
    }

    /// An aggregate over the result of another segment.
    async fn aggregate_again(
        &self,
        pipeline: &Pipeline,
        lowered: LoweredSegment,
        input: Part,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let rows = input.layout.rows_upper_bound;
        let layout = pipeline.state_layout(rows.min(pipeline.max_groups().unwrap_or(u64::MAX)))?;
        let state = State { buffer: DeviceBuffer::zeroed(layout.bytes, stream, &self.engine.pool)?, layout, groups: 0 };
        let lookups = self.lookups(&lowered, stream).await?;
        let extent = input.as_extent()?;
        let extents = std::slice::from_ref(&extent);
        let input =
            Input { extents, descriptors: None, literals: &lowered.literals, lookups: &lookups, ..Input::default() };
        pipeline.accumulate(input, &state.buffer, &state.layout, stream)?;
        self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        self.emit(pipeline, &state, &lowered, rows, stream)
    }

    /// The rows of `extent` that pass, as dense columns.
    pub async fn materialised(
        &self,
        pipeline: &Pipeline,
        lowered: &LoweredSegment,
        extent: &ExtentInput,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let lookups = self.lookups(lowered, stream).await?;
        let extents = std::slice::from_ref(extent);
        let layout = pipeline.output_layout(extents);
        let buffer = output_buffer(&layout, &self.engine, stream)?;
        let input =
            Input { extents, descriptors: None, literals: &lowered.literals, lookups: &lookups, ..Input::default() };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        Ok(Part { buffer, layout, outputs: lowered.outputs.clone() })
    }

    /// A result as an Arrow batch: one copy where it is small, else one for its size and one for its rows.
    pub async fn downloaded(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<RecordBatch, Failure> {
        let pinned = &self.engine.pinned;
        let home = async |view: &DeviceView| -> Result<_, MemoryError> {
            let pending = pinned.take(HostKind::Download, view.len()).await?.copy_to_host(view, stream)?;
            if feeding { pending.feeding().await } else { pending.await }
        };
        let layout = &part.layout;
        let small = layout.bytes <= SMALL_RESULT_BYTES;
        let first = match small {
            true => home(&part.buffer).await?,
            false => home(&part.buffer.view(OutputLayout::CONTROL)?).await?,
        };
        let (error, rows) = control_words(&first.read()?)?;
        flagged(error)?;
        if rows > layout.rows_upper_bound {
            return Err(Failure::trouble(format!(
                "the device says {rows} rows of at most {}",
                layout.rows_upper_bound
            )));
        }
        let rows = self.take_rows(rows as usize);
        if small {
            let bytes = first.read()?;
            return self.batch(part, rows, |range| bytes.get(range).unwrap_or(&[]));
        }
        // Only what the rows take is copied, region by region, into one piece of pinned memory.
        let mut pieces: Vec<(usize, usize, usize)> = Vec::new();
        let mut end = 0;
        let mut piece = |start: usize, bytes: usize| {
            pieces.push((start, bytes, end));
            end += bytes.next_multiple_of(64);
        };
        for column in layout.columns.iter().take(part.outputs.len()) {
            piece(column.values.start, column.physical.value_bytes(rows as u64) as usize);
            if let Some(validity) = &column.validity {
                piece(validity.start, rows.div_ceil(8));
            }
        }
        let mut staging = pinned.take(HostKind::Download, end).await?;
        for (start, bytes, at) in pieces.iter().filter(|(_, bytes, _)| *bytes > 0) {
            staging.enqueue_to_host(*at..at + bytes, &part.buffer.view(*start..start + bytes)?, stream)?;
        }
        let pending = staging.idle()?;
        let staging = if feeding { pending.feeding().await? } else { pending.await? };
        let bytes = staging.read()?;
        self.batch(part, rows, |range| {
            let at = pieces.iter().find(|(start, ..)| *start == range.start).map_or(0, |(_, _, at)| *at);
            bytes.get(at..at + range.len()).unwrap_or(&[])
        })
    }

    /// Takes up to `rows` of the rows that may still leave.
    fn take_rows(&self, rows: usize) -> usize {
        let mut taken = 0;
        let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            taken = rows.min(left);
            Some(left - taken)
        });
        taken
    }

    fn batch<'b>(
        &self,
        part: &Part,
        rows: usize,
        bytes: impl Fn(std::ops::Range<usize>) -> &'b [u8],
    ) -> Result<RecordBatch, Failure> {
        let schema = Arc::clone(&self.program.schema);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(part.outputs.len());
        for (column, layout) in part.outputs.iter().zip(&part.layout.columns) {
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

/// Room for any table: 16 bytes for each of a dictionary's values, and their validity.
const LARGE_TABLE_BYTES: usize = 18 << 20;

/// A result of up to this many bytes comes home whole, its count and its error with it.
const SMALL_RESULT_BYTES: usize = 4 << 20;

/// Memory for an output. One that may come home whole is cleared: its rows do not fill it.
pub(super) fn output_buffer(
    layout: &OutputLayout,
    engine: &Engine,
    stream: &Stream,
) -> Result<DeviceBuffer, MemoryError> {
    match layout.bytes <= SMALL_RESULT_BYTES {
        true => DeviceBuffer::zeroed(layout.bytes, stream, &engine.pool),
        false => DeviceBuffer::new(layout.bytes, stream, &engine.pool),
    }
}

/// The output of a segment.
pub(super) struct Part {
    pub buffer: DeviceBuffer,
    pub layout: OutputLayout,
    /// What its first columns are; sort keys may follow them.
    pub outputs: Vec<ColumnInfo>,
}

impl Part {
    /// The columns at `indices`, in that order; nothing moves.
    fn select(mut self, indices: &[usize]) -> Result<Self, Failure> {
        let missing = || EngineError::internal("a projection of a column that was not sorted");
        let outputs = indices.iter().map(|i| self.outputs.get(*i).cloned());
        let columns = indices.iter().map(|i| self.layout.columns.get(*i).cloned());
        (self.outputs, self.layout.columns) =
            (outputs.collect::<Option<_>>().ok_or_else(missing)?, columns.collect::<Option<_>>().ok_or_else(missing)?);
        Ok(self)
    }

    /// As the input of the next segment.
    pub fn as_extent(&self) -> Result<ExtentInput, Failure> {
        let control = self.buffer.view(OutputLayout::CONTROL)?;
        let columns = self.layout.columns.iter().take(self.outputs.len()).map(|column| {
            let validity = column.validity.clone().map(|range| self.buffer.view(range)).transpose()?;
            Ok(Some(ColumnInput { values: self.buffer.view(column.values.clone())?, validity, base: 0 }))
        });
        Ok(ExtentInput {
            rows: ExtentRows::OnDevice { control, upper_bound: self.layout.rows_upper_bound },
            columns: columns.collect::<Result<_, MemoryError>>()?,
        })
    }
}

/// Error word and row count of a control block.
fn control_words(bytes: &[u8]) -> Result<(u64, u64), Failure> {
    let words = bytes.as_chunks::<8>().0;
    match words {
        [error, rows, ..] => Ok((u64::from_le_bytes(*error), u64::from_le_bytes(*rows))),
        _ => Err(EngineError::internal(format!("a control block of {} bytes", bytes.len())).into()),
    }
}

/// Fails when a kernel raised the error flag.
fn flagged(word: u64) -> Result<(), Failure> {
    if word == 0 {
        return Ok(());
    }
    let (what, sql) = match ErrorCode::from_word(word) {
        Some((ErrorCode::DivisionByZero, _)) => ("division by zero", Some(ArrowError::DivideByZero)),
        Some((ErrorCode::Overflow, _)) => {
            let error = ArrowError::ArithmeticOverflow("Overflow happened in an expression".into());
            ("arithmetic overflow", Some(error))
        }
        Some((ErrorCode::Cast, _)) => {
            ("a failed cast", Some(ArrowError::CastError("A value does not fit the type it is cast to".into())))
        }
        Some((ErrorCode::TableFull, _)) => ("a hash table that was too small", None),
        Some((ErrorCode::KeyRange, _)) => ("a key outside its range", None),
        None => ("an unknown error", None),
    };
    let what = format!("the device met {what}");
    let sql = sql.map(|error| Arc::new(DataFusionError::from(error)));
    Err(Failure::Trouble(Trouble { what, sql, ..Trouble::default() }))
}
