//! One run of a program: its attempts, and in each the segments one after the other.
//!
//!   attempt ──► plan (columns, what is read, keys) ──► segment 0 ─► segment 1 ─► … ─► the result goes home
//!
//! Attempts a value outside its range, or a dictionary that outgrew the width planned for its codes, starts the run again
//!          with what was learnt; nothing has left the device by then, and nothing of the first attempt is kept.
//! Dropped  with its stream: tasks end, buffers are freed in the order of their streams.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::tune;
use millpond_memory::{ByteSize, Participant, Request, Reservation, Scope, recorder};
use tokio::sync::{RwLock, mpsc};

use crate::column::{ColumnInfo, Form, uploaded_columns};
use crate::device::Engine;
use crate::device::host_memory::HostHold;
use crate::device::learnt::{PlanKey, PlanLearnt, StringForm};
use crate::expr::{Dictionaries, Dictionary, LookupTable};
use crate::options::MillpondOptions;
use crate::placement::statistics;
use crate::profile::{self, step};
use crate::program::build_side::{Build, BuildForm, KeyForm};
use crate::program::contract::Details;
use crate::program::counts::Tally;
use crate::program::failure::Failure;
use crate::program::lower::{Builds, SegmentInput};
use crate::program::part::{Kept, Part};
use crate::program::schedule::Schedule;
use crate::program::segments::{Program, Source};
use crate::program::tables::{Limits, Seeds, Tables};
use crate::program::texts;
use crate::program::texts::{Beginning, Reached};
use crate::reason::Reason;
use crate::result::node::DownloadExec;
use crate::source::reset::ready_again;

/// What attempts learn from each other.
#[derive(Debug, Default)]
struct Learnt {
    /// Statistics were wrong: take every column at its native width.
    wide: bool,
    /// Least sizes to plan dictionaries for, by upload and column.
    dictionaries: HashMap<(usize, usize), usize>,
    /// String columns without a dictionary, and those that need one whatever its size.
    strings: StringForm,
    /// How much larger than planned the room for texts is that the device makes; 0 as 1.
    arena_times: u64,
    /// Dictionaries of an earlier attempt, for the next one alone.
    seeds: Seeds,
    /// Groups that the tables of segments came to have room for.
    groups: HashMap<usize, u64>,
    /// Into how many parts the keys of a segment's table are cut, one pass over its input for each.
    passes: HashMap<usize, u32>,
    /// Into how many parts the keys of a join are cut, by the segment that builds: one after the other is built and probed.
    join_parts: HashMap<usize, u32>,
}

/// What to take in smaller pieces after memory has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The groups of a segment, in so many passes.
    Groups(usize, u32),
    /// The join whose build side a segment builds, in so many parts.
    Join(usize, u32),
}

/// The kinds of buffers of a run.
pub struct Tags {
    pub extents: Scope,
    pub groups: Scope,
    pub output: Scope,
    pub sort: Scope,
    pub joins: Scope,
}

impl Tags {
    fn of(scope: &Scope) -> Self {
        let tag = |name| scope.child(name);
        let (extents, groups, output, sort) = (tag("extents"), tag("groups"), tag("output"), tag("sort"));
        Self { extents, groups, output, sort, joins: tag("joins") }
    }
}

/// What is fed from one upload.
pub struct Uploaded {
    /// The plan whose rows are fed.
    pub input: Arc<dyn ExecutionPlan>,
    pub columns: Vec<ColumnInfo>,
    /// Which of them anything reads.
    pub used: Vec<bool>,
    /// Rows by statistics; 0 when they do not say.
    pub rows_known: u64,
}

/// What a segment gave.
#[derive(Default)]
pub struct Given {
    pub(crate) parts: Vec<Kept>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// What its sink says of itself to the segments that read it.
    pub(crate) details: Option<Details>,
    /// Columns that those look up by row number, each a part of its own.
    pub(crate) looked_up: Arc<Vec<Part>>,
    /// In the place of rows: what others look up.
    pub(crate) built: Option<Build>,
}

impl Given {
    /// A build side.
    pub(crate) fn built(built: Build) -> Self {
        Self { built: Some(built), ..Self::default() }
    }
}

/// One attempt at running a program.
pub struct Run {
    pub program: Program,
    /// The node that runs it, for notes.
    pub border: DownloadExec,
    pub engine: Arc<Engine>,
    pub options: MillpondOptions,
    pub context: Arc<TaskContext>,
    pub scope: Scope,
    /// Under what its buffers are counted, and named when memory runs out.
    pub tags: Tags,
    pub uploads: Vec<Uploaded>,
    /// How the keys of each building segment are represented.
    pub keys: HashMap<usize, Vec<KeyForm>>,
    /// Which columns of each building segment anything reads.
    pub needed: HashMap<usize, Vec<bool>>,
    /// Building segments whose columns anybody reads who probes them.
    pub payload: HashSet<usize>,
    /// The columns that segments give of which another one reads all, one after the other.
    pub common: HashMap<usize, Vec<ColumnInfo>>,
    pub learnt_sizes: HashMap<(usize, usize), usize>,
    /// How much larger than planned the room for texts is that the device makes.
    pub arena_times: AtomicU64,
    /// Groups that the tables of segments had room for at last: in earlier runs of the plan, and in this one where they grew.
    pub group_sizes: HashMap<usize, u64>,
    pub group_sizes_seen: Mutex<HashMap<usize, u64>>,
    /// Where views lead to.
    pub reached: Reached,
    pub beginning: Beginning,
    tables: Mutex<Tables>,
    pub(crate) tally: Arc<Tally>,
    /// Passes over the input of a segment, one for each part of its keys.
    pub passes: HashMap<usize, u32>,
    /// Parts of joins' keys, by the segment that builds; 1 for those that are not there.
    pub join_parts: HashMap<usize, u32>,
    /// Held shared by who has an extent under way, alone by who found no memory for one.
    pub gate: RwLock<()>,
    /// Rows of an extent; fewer when memory has run out.
    pub extent_rows: AtomicUsize,
    /// Whom the governor knows as this run.
    pub participant: Participant,
    /// Rows that may still leave, those among them that an offset leaves out; and how many it has left out.
    pub(crate) remaining: AtomicUsize,
    pub(crate) left_out: AtomicUsize,
    /// Batches that are home and wait for the others, and their rows.
    home: Mutex<Vec<RecordBatch>>,
    rows_home: AtomicUsize,
    /// What to try next where memory has run out.
    pub cut_next: Mutex<Option<Cut>>,
    pub out: Output,
}

/// Where result batches go.
#[derive(Clone)]
pub struct Output {
    pub sender: mpsc::Sender<datafusion::error::Result<RecordBatch>>,
    pub sent: Arc<AtomicU64>,
    pub batch_rows: usize,
    /// No batch leaves; they are counted as if they did.
    pub is_mute: bool,
}

impl Output {
    /// Sends a batch in pieces of the session's batch size.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), Failure> {
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = self.batch_rows.max(1).min(batch.num_rows() - from);
            self.sent.fetch_add(rows as u64, Ordering::Relaxed);
            if !self.is_mute {
                let sent = self.sender.send(Ok(batch.slice(from, rows)));
                recorder::during(step::DELIVER, sent).await.map_err(|_| Failure::Cancelled)?;
            }
            from += rows;
        }
        Ok(())
    }
}

/// Runs `program` for `download`, attempt after attempt.
pub(crate) async fn run(
    download: &DownloadExec,
    context: &Arc<TaskContext>,
    scope: &Scope,
    tally: &Arc<Tally>,
    out: &Output,
) -> Result<(), Failure> {
    let cut = || Program::of(download.input(), download.operators());
    let program = tally.preparing(cut)?.counting(&tally.lowerings);
    tally.segments.store(program.segments.len() as u64, Ordering::Relaxed);
    let options = context.session_config().options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
    let key = tally.preparing(|| PlanKey::of(download.input()));
    let engine = download.engine();
    let PlanLearnt { strings, groups } = engine.learnt.get(key);
    let mut learnt = Learnt { strings, groups, ..Learnt::default() };
    let remembered = learnt.strings.clone();
    let mut untouched = download.begin();
    for _ in 0..MAX_ATTEMPTS {
        // A scan that was read before has nothing left to give: whoever comes later reads a fresh copy of it.
        let fresh = std::mem::take(&mut untouched);
        let input = |index: usize| {
            let input = Arc::clone(program.upload(index).input());
            if fresh { Ok(input) } else { ready_again(input).map_err(Failure::Input) }
        };
        let inputs = (0..program.num_uploads()).map(input).collect::<Result<Vec<_>, _>>()?;
        let program = program.clone();
        tally.attempts.fetch_add(1, Ordering::Relaxed);
        let begin = || Run::new(download, program, inputs, &options, context, scope, tally, out, &mut learnt);
        let attempt = Arc::new(tally.preparing(begin)?);
        let nothing_left = || out.sent.load(Ordering::Relaxed) == 0;
        match profile::attempt(attempt.attempt(), Failure::lesson).await {
            Err(Failure::Ranges) if !learnt.wide && nothing_left() => learnt.wide = true,
            Err(Failure::Dictionaries(sizes)) if nothing_left() => {
                for (column, size) in sizes {
                    let known = learnt.dictionaries.entry(column).or_default();
                    // Four times what was seen, so that a slowly growing dictionary does not restart the run each time.
                    *known = (*known).max(size * 4);
                }
            }
            Err(Failure::Texts(columns)) if nothing_left() => learnt.strings.texts.extend(columns),
            Err(Failure::Ranks(seeds)) => learnt.seeds = seeds,
            Err(Failure::Arena) if nothing_left() => learnt.arena_times = attempt.larger_arenas()?,
            Err(failure) if failure.wants_less() && nothing_left() => {
                match attempt.cut_next.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    Some(Cut::Groups(segment, passes)) => {
                        learnt.passes.insert(segment, passes.min(tune::MAX_KEY_PARTS))
                    }
                    Some(Cut::Join(build, parts)) => learnt.join_parts.insert(build, parts.min(tune::MAX_KEY_PARTS)),
                    None => return Err(failure),
                };
            }
            other => {
                if learnt.strings != remembered {
                    // What did not go well is not worth remembering.
                    let strings = if other.is_ok() { learnt.strings } else { StringForm::default() };
                    engine.learnt.learn(key, |known| known.strings = strings);
                }
                if other.is_ok() {
                    let seen = attempt.group_sizes_seen.lock().unwrap_or_else(PoisonError::into_inner);
                    if !seen.is_empty() {
                        engine.learnt.learn(key, |known| known.groups.clone_from(&seen));
                    }
                }
                return other;
            }
        }
    }
    Err(Failure::trouble("the plan for the input's values was wrong too often"))
}

/// How often a run begins again with what it has learnt.
const MAX_ATTEMPTS: usize = 12;

/// What follows from the plan and the uploads' columns alone.
#[derive(Default)]
struct Plan {
    used: Vec<Vec<bool>>,
    keys: HashMap<usize, Vec<KeyForm>>,
    needed: HashMap<usize, Vec<bool>>,
    payload: HashSet<usize>,
    common: HashMap<usize, Vec<ColumnInfo>>,
}

impl Plan {
    /// Lowers every segment as if nothing were known of builds, first for the columns that each gives, then, from the last to
    /// the first, for those that each reads.
    fn of(program: &Program, uploads: &[Vec<ColumnInfo>], dictionaries: &mut Dictionaries) -> Result<Self, Reason> {
        let used = uploads.iter().map(|columns| vec![false; columns.len()]).collect();
        let mut plan = Self { used, ..Self::default() };
        let mut given: Vec<(Vec<ColumnInfo>, Details)> = Vec::new();
        let mut forms: HashMap<usize, BuildForm> = HashMap::new();
        for (index, segment) in program.segments.iter().enumerate() {
            if let Some(columns) = segment.sink.columns_on_demand() {
                plan.needed.insert(index, vec![false; columns]);
            }
            if let Source::Segments(from) = &segment.source {
                let inputs: Vec<Vec<ColumnInfo>> = from.iter().map(|from| given[*from].0.clone()).collect();
                let common = from.first().map(|from| &program.segments[*from].sink);
                if let Some(columns) = common.and_then(|sink| sink.common_columns(&inputs, dictionaries)) {
                    for from in from {
                        given[*from].0.clone_from(&columns);
                        plan.common.insert(*from, columns.clone());
                    }
                }
            }
            let columns = source_columns(program, index, uploads, &given);
            let input = plan.input(program, index, &columns, &given);
            let mut builds = PlannedForms { forms: &mut forms, given: Some(&given) };
            let lowered = program.lower(index, &input, dictionaries, &mut builds)?;
            given.push((lowered.outputs, lowered.details));
        }
        for (index, segment) in program.segments.iter().enumerate().rev() {
            let columns = source_columns(program, index, uploads, &given);
            let input = plan.input(program, index, &columns, &given);
            let mut builds = PlannedForms { forms: &mut forms, given: None };
            let lowered = program.lower(index, &input, dictionaries, &mut builds)?;
            let columns_read = match &segment.source {
                Source::Upload(upload) => Some(&mut plan.used[*upload]),
                _ => program.on_demand(index).and_then(|from| plan.needed.get_mut(&from)),
            };
            if let Some(columns) = columns_read {
                // Behind the columns of ranked rows lies what was added to them, which is always there.
                for column in lowered.first().spec.used_columns() {
                    if let Some(column) = columns.get_mut(column as usize) {
                        *column = true;
                    }
                }
            }
            for table in lowered.pieces().flat_map(|piece| &piece.lookups) {
                if let LookupTable::BuildColumn { build, column, .. } = table
                    && let Some(needed) = plan.needed.get_mut(build)
                {
                    needed[*column] = true;
                    plan.payload.insert(*build);
                }
            }
            // What the keys of a build side read is needed, too.
            for build in program.probed(index) {
                let Some(form) = forms.get(&build) else { continue };
                program.count_lowering();
                let read = program.segments[build].sink.key_columns(form, &given[build].0, dictionaries)?;
                if let Some(needed) = plan.needed.get_mut(&build) {
                    read.into_iter().for_each(|column| needed[column as usize] = true);
                }
            }
        }
        plan.keys = forms.into_iter().map(|(build, form)| (build, form.keys)).collect();
        Ok(plan)
    }

    /// The plan with the string columns that were learnt to be better off without a dictionary as texts, as far as every
    /// expression over them has a form; the others need their dictionary, whatever its size.
    fn with_texts(
        program: &Program,
        columns: Vec<Vec<ColumnInfo>>,
        dictionaries: &mut Dictionaries,
        learnt: &mut Learnt,
    ) -> Result<(Vec<Vec<ColumnInfo>>, Self), Reason> {
        let with = |texts: &HashSet<(usize, usize)>| {
            let mut columns = columns.clone();
            for (upload, column) in texts {
                if let Some(info) = columns.get_mut(*upload).and_then(|columns| columns.get_mut(*column)) {
                    *info = info.clone().as_text();
                }
            }
            columns
        };
        let learnt = &mut learnt.strings;
        if !learnt.texts.is_empty() {
            let all = with(&learnt.texts);
            let mut tried = dictionaries.clone();
            if let Ok(plan) = Self::of(program, &all, &mut tried) {
                *dictionaries = tried;
                return Ok((all, plan));
            }
            // Not all of them together: those that can be texts alone, if they can be so together.
            let alone = |column: &(usize, usize)| {
                Self::of(program, &with(&HashSet::from([*column])), &mut dictionaries.clone()).is_ok()
            };
            let (texts, needed): (HashSet<_>, HashSet<_>) = learnt.texts.iter().copied().partition(alone);
            learnt.needed.extend(needed);
            let some = with(&texts);
            let mut tried = dictionaries.clone();
            if let Ok(plan) = Self::of(program, &some, &mut tried) {
                *dictionaries = tried;
                learnt.texts = texts;
                return Ok((some, plan));
            }
            learnt.needed.extend(texts);
            learnt.texts.clear();
        }
        let plan = Self::of(program, &columns, dictionaries)?;
        Ok((columns, plan))
    }

    /// What segment `index` reads.
    fn input<'a>(
        &'a self,
        program: &Program,
        index: usize,
        columns: &'a [ColumnInfo],
        given: &'a [(Vec<ColumnInfo>, Details)],
    ) -> SegmentInput<'a> {
        let like = match &program.segments[index].source {
            Source::Built { like: Some(like), .. } => Some(given[*like].0.as_slice()),
            _ => None,
        };
        SegmentInput {
            produced: program.reads(index).map(|from| &given[from].1),
            like,
            common: self.common.get(&index).map(Vec::as_slice),
            needed: self.needed.get(&index).map(Vec::as_slice),
            ..SegmentInput::rows(columns)
        }
    }
}

/// Build sides of which no more is known than the plan tells.
struct PlannedForms<'a> {
    forms: &'a mut HashMap<usize, BuildForm>,
    /// What segments give, as long as forms are planned.
    given: Option<&'a [(Vec<ColumnInfo>, Details)]>,
}

impl Builds for PlannedForms<'_> {
    fn form(
        &mut self,
        build: usize,
        plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        if let Some(form) = self.forms.get(&build) {
            return Ok(form.clone());
        }
        let Some((columns, _)) = self.given.and_then(|given| given.get(build)) else {
            return Err(Reason::NodeUnsupported { node: format!("a join with segment {build}") });
        };
        let form = plan(columns)?;
        self.forms.insert(build, form.clone());
        Ok(form)
    }
}

/// The columns of the source of segment `index`.
fn source_columns(
    program: &Program,
    index: usize,
    uploads: &[Vec<ColumnInfo>],
    given: &[(Vec<ColumnInfo>, Details)],
) -> Vec<ColumnInfo> {
    match &program.segments[index].source {
        Source::Upload(upload) => uploads[*upload].clone(),
        Source::Segments(from) => merged(from.iter().map(|from| given[*from].0.as_slice())),
        Source::Built { build, .. } => given[*build].0.clone(),
    }
}

/// The columns of several segments' results, one after the other.
pub(crate) fn merged<'c>(mut all: impl Iterator<Item = &'c [ColumnInfo]>) -> Vec<ColumnInfo> {
    let mut columns = all.next().unwrap_or_default().to_vec();
    for others in all {
        for (column, other) in columns.iter_mut().zip(others) {
            column.form = column.form.clone().or(&other.form);
        }
    }
    columns
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "a run is all of these")]
    fn new(
        download: &DownloadExec,
        program: Program,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        options: &MillpondOptions,
        context: &Arc<TaskContext>,
        scope: &Scope,
        tally: &Arc<Tally>,
        out: &Output,
        learnt: &mut Learnt,
    ) -> Result<Self, Failure> {
        let mut definitions = Dictionaries::default();
        let mut uploads = Vec::with_capacity(inputs.len());
        for (upload, input) in inputs.into_iter().enumerate() {
            let known = if learnt.wide {
                None
            } else {
                tally.statistics_read.fetch_add(1, Ordering::Relaxed);
                statistics(input.as_ref())
            };
            let schema = input.schema();
            let columns = uploaded_columns(&schema, known.as_deref(), |column, data_type| {
                definitions.add(Dictionary::Source { upload, column, data_type })
            });
            let rows_known = known.as_ref().and_then(|s| s.num_rows.get_value().copied()).unwrap_or(0) as u64;
            uploads.push(Uploaded { input, columns, used: vec![], rows_known });
        }
        let columns: Vec<Vec<ColumnInfo>> = uploads.iter().map(|upload| upload.columns.clone()).collect();
        let (columns, plan) = Plan::with_texts(&program, columns, &mut definitions, learnt)?;
        for (upload, columns) in uploads.iter_mut().zip(columns) {
            upload.columns = columns;
        }
        let most = options.most_dictionary_values();
        let limits = Limits { most, most_if_needed: most * texts::IF_NEEDED, needed: learnt.strings.needed.clone() };
        for (upload, used) in uploads.iter_mut().zip(plan.used) {
            upload.used = used;
        }
        Ok(Self {
            remaining: AtomicUsize::new(program.row_limit.map_or(usize::MAX, |n| n.saturating_add(program.row_offset))),
            left_out: AtomicUsize::new(0),
            program,
            border: download.clone(),
            engine: Arc::clone(download.engine()),
            options: options.clone(),
            context: Arc::clone(context),
            scope: scope.clone(),
            tags: Tags::of(scope),
            uploads,
            keys: plan.keys,
            needed: plan.needed,
            payload: plan.payload,
            common: plan.common,
            learnt_sizes: learnt.dictionaries.clone(),
            arena_times: AtomicU64::new(learnt.arena_times.max(1)),
            group_sizes: learnt.groups.clone(),
            group_sizes_seen: Mutex::new(learnt.groups.clone()),
            reached: Reached::default(),
            beginning: Beginning::default(),
            tables: Mutex::new(Tables::new(definitions, limits).with_seeds(std::mem::take(&mut learnt.seeds))),
            tally: Arc::clone(tally),
            passes: learnt.passes.clone(),
            join_parts: learnt.join_parts.clone(),
            gate: RwLock::new(()),
            extent_rows: AtomicUsize::new(usize::MAX),
            participant: download.engine().governor.participant(scope.path(), 0),
            home: Mutex::default(),
            rows_home: AtomicUsize::new(0),
            cut_next: Mutex::new(None),
            out: out.clone(),
        })
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when the rows of an extent can go home as soon as they are there.
    pub fn streams_out(&self) -> bool {
        match self.program.segments.as_slice() {
            [one] => {
                matches!(one.source, Source::Upload(_))
                    && one.sink.passes_rows_on()
                    && self.program.probed(0).next().is_none()
            }
            _ => false,
        }
    }

    /// True for the segment that gives the result.
    pub fn is_last(&self, segment: usize) -> bool {
        segment + 1 == self.program.segments.len()
    }

    /// Rows that may still leave.
    pub fn wanted(&self) -> usize {
        self.remaining.load(Ordering::Relaxed).saturating_sub(self.rows_home.load(Ordering::Relaxed))
    }

    async fn attempt(self: &Arc<Self>) -> Result<(), Failure> {
        let stream = self.engine.streams.take(&self.scope)?;
        let Some(result) = Schedule::new(self, &stream).result().await? else { return Ok(()) };
        // Batches stay here until the last one is home: until then the CPU can take over.
        let mut held = self.host_memory("results");
        for part in result.parts {
            let mut part = part.on_device(&stream)?;
            if let Some(selection) = &self.program.selection {
                part = part.select(selection)?;
            }
            let batch = self.download(&part, &stream, false).await?;
            held.grow(batch.get_array_memory_size());
            self.came_home(batch);
        }
        let home = std::mem::take(&mut *self.home.lock().unwrap_or_else(PoisonError::into_inner));
        self.rows_home.store(0, Ordering::Relaxed);
        for batch in home {
            self.leave(batch).await?;
        }
        Ok(())
    }

    /// Keeps a batch until the others are home, too.
    pub fn came_home(&self, batch: RecordBatch) {
        self.rows_home.fetch_add(batch.num_rows(), Ordering::Relaxed);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
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

    /// Columns whose dictionaries are complete, with the bound that gives their codes.
    pub fn bounded(&self, columns: &mut [ColumnInfo]) {
        let tables = self.tables();
        for column in columns {
            if let Form::Codes(ty, id) = column.form
                && matches!(tables.definitions.get(id), Some(Dictionary::Source { .. } | Dictionary::Constants { .. }))
            {
                let bound = tables.len(id).max(1).next_power_of_two();
                if bound <= crate::program::extents::MOST_BOUNDED_CODES {
                    column.form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                }
            }
        }
    }
}
