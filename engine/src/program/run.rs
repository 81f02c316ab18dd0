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
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::{Aggregate, ErrorCode, Extents, Graph, Node, PipelineSpec, Regime, SinkSpec, Ty};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ExtentInput, Input, LookupInput, Pipeline};
use millpond_kernels::tune;
use millpond_memory::{
    ByteSize, DeviceBuffer, DeviceView, HostKind, MemoryError, Participant, Request, Reservation, Scope, Stream,
};
use tokio::sync::{RwLock, mpsc};

use super::compile::{LoweredSegment, Program, Sink};
use super::feed;
use super::groups::State;
use super::part::{Kept, Part, SMALL_RESULT_BYTES};
use super::tables::{Seeds, Tables};
use super::{Trouble, sort};
use crate::column::{ColumnInfo, Form, uploaded_columns};
use crate::device::Engine;
use crate::error::EngineError;
use crate::exec::DownloadExec;
use crate::expr::{Dictionaries, Dictionary};
use crate::extent::read_array;
use crate::memory::{HostHold, HostRefusal};
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
    /// True when a smaller bite, or fewer others, might have had the memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Trouble(Trouble { out_of_memory: true, .. }))
    }

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

impl From<HostRefusal> for Failure {
    fn from(refusal: HostRefusal) -> Self {
        Self::Trouble(Trouble { what: refusal.to_string(), out_of_memory: true, lost: false, sql: None })
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let (out_of_memory, lost) = (error.is_out_of_memory(), error.is_device_lost());
        let what = match &error {
            // To a user, what was not promised is not there.
            MemoryError::ReservationRefused { space, .. } => format!("out of {space} memory: {error}"),
            _ => error.to_string(),
        };
        let trouble = Trouble { what, out_of_memory, lost, sql: None };
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

/// What attempts learn from each other.
#[derive(Debug, Default)]
struct Learnt {
    /// Statistics were wrong: take every column at its native width.
    wide: bool,
    /// Least sizes to plan dictionaries for, by column.
    dictionaries: HashMap<usize, usize>,
    /// Dictionaries of an earlier attempt, for the next one alone.
    seeds: Seeds,
    /// Into how many parts the keys of the first table are cut, one pass over the input for each.
    passes: u32,
}

/// The kinds of buffers of a run.
pub(super) struct Tags {
    pub extents: Scope,
    pub groups: Scope,
    pub output: Scope,
    pub sort: Scope,
}

impl Tags {
    fn of(scope: &Scope) -> Self {
        let [extents, groups, output, sort] = ["extents", "groups", "output", "sort"].map(|name| scope.child(name));
        Self { extents, groups, output, sort }
    }
}

/// One attempt at running a program.
pub(super) struct Run {
    pub program: Program,
    /// The node that runs it, for notes.
    pub border: DownloadExec,
    /// The plan whose rows are fed.
    pub input: Arc<dyn ExecutionPlan>,
    pub engine: Arc<Engine>,
    pub options: MillpondOptions,
    pub context: Arc<TaskContext>,
    pub scope: Scope,
    /// Under what its buffers are counted, and named when memory runs out.
    pub tags: Tags,
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
    /// Passes over the input, one for each part of the first table's keys, and which one this is.
    pub passes: u32,
    pub pass: AtomicU32,
    /// Records of the largest table that was wanted.
    pub most_groups: AtomicU64,
    /// Held shared by who has an extent under way, alone by who found no memory for one.
    pub gate: RwLock<()>,
    /// Rows of an extent; fewer when memory has run out.
    pub extent_rows: AtomicUsize,
    /// Whom the governor knows as this run.
    participant: Participant,
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
    let mut learnt = Learnt { passes: 1, ..Learnt::default() };
    let mut untouched = download.begin();
    for _ in 0..MAX_ATTEMPTS {
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
            Err(failure)
                if failure.is_out_of_memory() && attempt.may_cut_table() && out.sent.load(Ordering::Relaxed) == 0 =>
            {
                // Where memory ended early in the input, half the keys at a time would not go far.
                let early = attempt.rows_fed.load(Ordering::Relaxed) * 2 < attempt.rows_known;
                learnt.passes = (attempt.passes * if early { 4 } else { 2 }).min(tune::MAX_KEY_PARTS);
            }
            other => return other,
        }
    }
    Err(Failure::trouble("the plan for the input's values was wrong too often"))
}

/// How often a run begins again with what it has learnt.
const MAX_ATTEMPTS: usize = 12;

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
            border: download.clone(),
            input,
            engine: Arc::clone(download.engine()),
            options: options.clone(),
            context: Arc::clone(context),
            scope: scope.clone(),
            tags: Tags::of(scope),
            columns,
            rows_known: known.as_ref().and_then(|s| s.num_rows.get_value().copied()).unwrap_or(0) as u64,
            learnt_sizes: learnt.dictionaries.clone(),
            tables: Mutex::new(Tables::new(definitions).with_seeds(std::mem::take(&mut learnt.seeds))),
            prepared: Mutex::new(None),
            state: tokio::sync::Mutex::new(None),
            pipeline_launches: Arc::clone(launches),
            rows_fed: AtomicU64::new(0),
            passes: learnt.passes,
            pass: AtomicU32::new(0),
            most_groups: AtomicU64::new(0),
            gate: RwLock::new(()),
            extent_rows: AtomicUsize::new(usize::MAX),
            participant: download.engine().governor.participant(scope.path(), 0),
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
        let keyed = matches!(self.program.segments[0].sink, Sink::Aggregate(_));
        let stream = self.engine.streams.take(&self.scope)?;
        let mut current: Vec<Kept> = Vec::new();
        for pass in 0..self.passes {
            self.pass.store(pass, Ordering::Relaxed);
            self.rows_fed.store(0, Ordering::Relaxed);
            let input = match pass {
                0 => Arc::clone(&self.input),
                _ => reset_plan_states(Arc::clone(&self.input)).map_err(Failure::Input)?,
            };
            let fed = feed::feed(self, &input).await?;
            if self.streams_out() {
                return Ok(());
            }
            if keyed {
                let prepared = self.prepared(0)?;
                self.check_ranks(&prepared)?;
                current.push(self.emitted(&prepared, &stream, self.passes > 1).await?);
            } else {
                current.extend(fed.map(Kept::staying));
            }
        }
        if current.is_empty() {
            return Ok(());
        }
        let mut finish = self.prepared(0)?.lowered.aggregate.clone();
        // Batches stay here until the last one is home: until then the CPU can take over.
        let mut home = Vec::new();
        let mut held = self.host_memory("results");
        for index in 1..self.program.segments.len() {
            let lowered = {
                let mut tables = self.tables();
                let rows_hint = Some(current.iter().map(Kept::rows).sum::<u64>().next_power_of_two());
                self.program.lower(index, current[0].outputs(), finish.as_ref(), rows_hint, &mut tables.definitions)?
            };
            let pipeline = self.engine.pipelines.pipeline(&lowered.spec)?;
            finish.clone_from(&lowered.aggregate);
            let inputs = std::mem::take(&mut current);
            match &self.program.segments[index].sink {
                Sink::Aggregate(_) => {
                    current = vec![Kept::staying(self.aggregate_again(&pipeline, &lowered, inputs, &stream).await?)];
                }
                Sink::Materialise => {
                    for input in inputs {
                        let input = input.on_device(&stream)?;
                        let extent = input.as_extent()?;
                        let part = self.materialised(&pipeline, &lowered, &extent, false, &stream).await?;
                        drop((input, extent));
                        let batch = self.downloaded(&part, &stream, false).await?;
                        held.grow(batch.get_array_memory_size());
                        home.push(batch);
                    }
                }
                Sink::Sort { fetch, .. } => {
                    let several = inputs.len() > 1;
                    for input in inputs {
                        let input = input.on_device(&stream)?;
                        let extent = input.as_extent()?;
                        let part = self.materialised(&pipeline, &lowered, &extent, several, &stream).await?;
                        drop((input, extent));
                        current.push(if several { Kept::spillable(part, &self.engine)? } else { Kept::staying(part) });
                    }
                    let part = self.together(std::mem::take(&mut current), &stream)?;
                    current = vec![Kept::staying(sort::sorted(part, &lowered.sort_keys, *fetch, self, &stream)?)];
                }
            }
        }
        for part in current {
            let mut part = part.on_device(&stream)?;
            if let Some(selection) = &self.program.selection {
                part = part.select(selection)?;
            }
            let batch = self.downloaded(&part, &stream, false).await?;
            held.grow(batch.get_array_memory_size());
            home.push(batch);
        }
        for batch in home {
            self.leave(batch).await?;
        }
        Ok(())
    }

    /// Asks the governor for `bytes` of the device; it may spill what waits, here and in other runs.
    pub fn promise(&self, bytes: usize) -> Result<Reservation, Failure> {
        Ok(self.participant.try_reserve(Request::device(ByteSize::from(bytes.next_multiple_of(256))))?)
    }

    /// The same, when other runs have given enough back.
    pub async fn promise_in_turn(&self, bytes: usize) -> Result<Reservation, Failure> {
        Ok(self.participant.reserve(Request::device(ByteSize::from(bytes.next_multiple_of(256)))).await?)
    }

    /// What the session's own memory pool holds for this run's bytes on the host: none at first.
    pub fn host_memory(&self, what: &str) -> HostHold {
        HostHold::new(&format!("millpond {} {what}", self.scope.path()), &self.context.runtime_env().memory_pool)
    }

    /// Segment 0, if anything of it has run.
    pub fn prepared_already(&self) -> Option<Arc<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Several parts of the same columns as one.
    fn together(&self, parts: Vec<Kept>, stream: &Stream) -> Result<Part, Failure> {
        let mut parts = parts.into_iter().map(|part| part.on_device(stream)).collect::<Result<Vec<_>, _>>()?;
        let (Some(first), true) = (parts.first(), parts.len() > 1) else {
            return parts.pop().ok_or_else(|| EngineError::internal("there is a part at least").into());
        };
        // Every column of the layout travels: sort keys follow those of the result.
        let types: Vec<Ty> = first.layout.columns.iter().map(|column| column.ty).collect();
        let mut graph = Graph::new();
        let outputs = types.iter().enumerate().map(|(index, ty)| graph.column(index as u32, *ty)).collect();
        let spec = PipelineSpec {
            extents: Extents::Many,
            columns: first.layout.column_specs(),
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Materialise { outputs },
        };
        let pipeline = self.engine.pipelines.pipeline(&spec)?;
        let extents = parts.iter().map(|part| part.layout.extent(&part.buffer)).collect::<Result<Vec<_>, _>>()?;
        let bytes = pipeline.descriptors(&extents)?;
        let descriptors = DeviceBuffer::upload(&bytes, stream, &self.engine.pool, &self.engine.pinned)?;
        let layout = pipeline.output_layout(&extents);
        let (buffer, promise) = self.output(&layout, false, stream)?;
        let input = Input {
            extents: &extents,
            descriptors: Some(&descriptors),
            literals: &[],
            lookups: &[],
            ..Input::default()
        };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        Ok(Part::new(&buffer, layout, first.outputs.clone()).promised(promise))
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
        if let SinkSpec::Aggregate(aggregate) = &mut lowered.spec.sink
            && self.passes > 1
        {
            // Only a hash table can be for a part of the keys.
            aggregate.regime = Some(Regime::Hash);
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
        let sought = aggregate.accumulators.iter().filter_map(|accumulator| match accumulator.aggregate {
            Aggregate::Min(of) | Aggregate::Max(of) => Some(of),
            _ => None,
        });
        for of in sought.chain(aggregate.orders.iter().flatten().map(|key| key.node)) {
            if let Node::Lookup { table, .. } = prepared.lowered.spec.graph.node(of)
                && tables.ranks_moved(&prepared.lowered.lookups[*table as usize])
            {
                return Err(Failure::Ranks(tables.take_seeds()));
            }
        }
        Ok(())
    }

    /// The tables of a launch. Where there is no pinned memory for a large one, it waits until some has come back.
    pub(super) async fn lookups(&self, lowered: &LoweredSegment, stream: &Stream) -> Result<Vec<LookupInput>, Failure> {
        loop {
            let made = self.tables().lookups(&lowered.lookups, &lowered.spec.lookups, &self.engine, stream);
            match made {
                Err(Failure::Pinned(_)) => drop(self.engine.pinned.take(HostKind::Upload, LARGE_TABLE_BYTES).await?),
                other => return other,
            }
        }
    }

    /// The rows of `extent` that pass, as dense columns.
    pub async fn materialised(
        &self,
        pipeline: &Pipeline,
        lowered: &LoweredSegment,
        extent: &ExtentInput,
        waits: bool,
        stream: &Stream,
    ) -> Result<Part, Failure> {
        let lookups = self.lookups(lowered, stream).await?;
        let extents = std::slice::from_ref(extent);
        let layout = pipeline.output_layout(extents);
        let (buffer, promise) = self.output(&layout, waits, stream)?;
        let input =
            Input { extents, descriptors: None, literals: &lowered.literals, lookups: &lookups, ..Input::default() };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.pipeline_launches.fetch_add(1, Ordering::Relaxed);
        Ok(Part::new(&buffer, layout, lowered.outputs.clone()).promised(promise))
    }

    /// A result as an Arrow batch: one copy where it is small, else one for its size and one for its rows.
    pub async fn downloaded(&self, part: &Part, stream: &Stream, feeding: bool) -> Result<RecordBatch, Failure> {
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
        // More than are wanted now are never wanted later.
        let rows = (rows as usize).min(self.wanted());
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

    /// Sends as many rows of a batch as may still leave. They are counted here, once nothing can fail any more, so that rows
    /// whose way home failed are not missing from a LIMIT.
    pub async fn leave(&self, batch: RecordBatch) -> Result<(), Failure> {
        let mut taken = 0;
        let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            taken = batch.num_rows().min(left);
            Some(left - taken)
        });
        self.out.send(batch.slice(0, taken)).await
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

/// Error word and row count of a control block.
pub(super) fn control_words(bytes: &[u8]) -> Result<(u64, u64), Failure> {
    let words = bytes.as_chunks::<8>().0;
    match words {
        [error, rows, ..] => Ok((u64::from_le_bytes(*error), u64::from_le_bytes(*rows))),
        _ => Err(EngineError::internal(format!("a control block of {} bytes", bytes.len())).into()),
    }
}

/// Fails when a kernel raised the error flag.
pub(super) fn flagged(word: u64) -> Result<(), Failure> {
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
        Some((ErrorCode::Argument, _)) => {
            let error = ArrowError::InvalidArgumentError("An argument is outside what its function takes".into());
            ("an argument that a function refuses", Some(error))
        }
        Some((ErrorCode::TableFull, _)) => ("a hash table that was too small", None),
        Some((ErrorCode::KeyRange, _)) => ("a key outside its range", None),
        None => ("an unknown error", None),
    };
    let what = format!("the device met {what}");
    let sql = sql.map(|error| Arc::new(DataFusionError::from(error)));
    Err(Failure::Trouble(Trouble { what, sql, ..Trouble::default() }))
}
