//! One segment while it runs: its facts, its shape, the rows that it keeps, and its result.
//!
//! ```text
//!   SegmentStart ─► SegmentRun ─► prepared ─► extents pass through, see `extent` ─► parts ─► result
//! ```
//!
//! Shape    is taken from the plan's memory if all facts are equal, and lowered otherwise: see [`Prepared::shape_for`].
//! Waits    as its sink and its cuts do: see `extent`.
//!
//! [`Prepared::shape_for`]: crate::program::prepared::Prepared::shape_for

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millpond_kernels::codegen::ir::{Regime, Repr, SinkSpec};
use millpond_memory::{Stream, recorder};

use crate::column::{ColumnInfo, Form};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::profile::step::PREPARE;
use crate::program::build_side::{BuildForm, Built, KeySlice};
use crate::program::contract::{SinkRun, TableSize};
use crate::program::kept_ptx::Generated;
use crate::program::lower::{Builds, SegmentInput};
use crate::program::part::{Kept, Part};
use crate::program::piece::LoweredSegment;
use crate::program::run::Run;
use crate::program::segment_result::{Details, LookedUp, SegmentResult};
use crate::program::segments::Origin;
use crate::program::shape::{Pipelines, SegmentFacts, Shape};
use crate::program::texts::NewTexts;

/// Minimum number of values that a key's codes are planned for.
const LEAST_CODES: usize = 16;
/// Number of values beyond which a key's codes have no bound, and groups are hashed.
pub(crate) const MOST_BOUNDED_CODES: usize = 1 << 16;

/// A lowered segment with its compiled pipelines.
#[derive(Clone)]
pub struct PreparedSegment {
    pub shape: Arc<Shape>,
    pub pipelines: Arc<Pipelines>,
}

/// Initial state of a segment in a run.
pub struct SegmentStart {
    pub index: usize,
    /// Columns of its source.
    pub columns: Vec<ColumnInfo>,
    /// Details from the sink of the preceding segment.
    pub produced: Option<Details>,
    pub like: Option<Vec<ColumnInfo>>,
    pub builds: HashMap<usize, Built>,
    /// Lookup columns beside its source rows: for an aggregation, values sorted within the groups that it finishes.
    pub looked_up: Arc<LookedUp>,
    /// Parts of the keys of joins, by the building segment.
    pub slices: Vec<(usize, KeySlice)>,
    pub rows_hint: u64,
}

impl SegmentStart {
    /// Segment `index` over rows of these columns, with nothing else known.
    pub fn over(index: usize, columns: Vec<ColumnInfo>) -> Self {
        Self {
            index,
            columns,
            produced: None,
            like: None,
            builds: HashMap::new(),
            looked_up: Arc::default(),
            slices: vec![],
            rows_hint: 0,
        }
    }
}

/// One segment of a run, while it processes rows.
pub struct SegmentRun {
    pub run: Arc<Run>,
    pub index: usize,
    pub start: SegmentStart,
    prepared: OnceLock<PreparedSegment>,
    /// Held by the feeder that prepares it.
    preparing: tokio::sync::Mutex<()>,
    pub(super) sink: Box<dyn SinkRun>,
    /// Rows of the source, in this pass.
    pub(super) rows_in: AtomicU64,
    /// Number of passes over the source, one for each part of the table's keys, and the number of the current pass.
    pub(crate) passes: u32,
    pub(crate) pass: AtomicU32,
    /// Number of extents whose rows were kept.
    pub(super) extents_kept: AtomicU32,
    parts: Mutex<Vec<Kept>>,
}

impl SegmentRun {
    pub fn new(run: &Arc<Run>, start: SegmentStart) -> Self {
        let index = start.index;
        Self {
            run: Arc::clone(run),
            index,
            start,
            prepared: OnceLock::new(),
            preparing: tokio::sync::Mutex::default(),
            sink: run.prepared.program.segments[index].sink.begin(),
            rows_in: AtomicU64::new(0),
            passes: run.passes(index),
            pass: AtomicU32::new(0),
            extents_kept: AtomicU32::new(0),
            parts: Mutex::default(),
        }
    }

    /// True if enough rows were processed: for a result that streams out, or for a limit.
    pub fn has_enough(&self) -> bool {
        self.sink.rows_sought(self) == 0
    }

    pub fn begin_pass(&self, pass: u32) {
        self.pass.store(pass, Ordering::Relaxed);
        self.rows_in.store(0, Ordering::Relaxed);
    }

    /// Continues where `before` ended, which ran this segment over another part of the keys.
    pub fn after(mut self, before: Option<Arc<SegmentRun>>) -> Result<Self, EngineError> {
        if let Some(before) = before {
            let unfinished = |_| EngineError::internal("a pass has ended when the next one begins");
            let before = Arc::try_unwrap(before).map_err(unfinished)?;
            (self.sink, self.parts) = (before.sink, before.parts);
        }
        Ok(self)
    }

    /// Size of the table that could be split by parts of its keys, after memory has run out.
    pub fn may_cut(&self) -> Option<TableSize> {
        self.sink.may_cut(self)
    }

    /// Bytes of the rows that were kept so far.
    pub fn kept_bytes(&self) -> usize {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Kept::bytes).sum()
    }

    /// The probed builds, with their bytes.
    pub fn builds(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.start.builds.iter().map(|(build, built)| (*build, built.bytes()))
    }

    pub(crate) fn built(&self, build: usize) -> Result<&Built, EngineError> {
        self.start.builds.get(&build).ok_or_else(|| EngineError::internal(format!("segment {build} has built nothing")))
    }

    /// True if memory ran out before half of the rows were processed.
    pub fn was_early(&self) -> bool {
        match &self.run.prepared.program.segments[self.index].origin {
            Origin::Source(upload) => {
                self.rows_in.load(Ordering::Relaxed) * 2 < self.run.prepared.sources[*upload].rows
            }
            _ => false,
        }
    }

    /// Reads all rows of other segments' results.
    pub async fn read(&self, parts: Vec<Kept>, stream: &Stream) -> Result<(), Failure> {
        for part in parts {
            self.read_part(part.on_device(stream)?, stream).await?;
        }
        Ok(())
    }

    /// Like [`read`](Self::read), for parts that are read again later.
    pub async fn read_and_leave(&self, parts: &[Kept], stream: &Stream) -> Result<(), Failure> {
        for part in parts {
            self.read_part(part.lend(stream)?, stream).await?;
        }
        Ok(())
    }

    async fn read_part(&self, part: Part, stream: &Stream) -> Result<(), Failure> {
        if !self.has_enough() {
            let extent = part.as_extent()?;
            // The views keep the memory alive; the reservation counts until they are dropped.
            let _promise = part.promise;
            self.process(extent, stream, false).await?;
        }
        Ok(())
    }

    /// True if kept rows may be views of texts.
    pub fn keeps_texts(&self) -> bool {
        // A sort's keys are kept beside its output.
        let written = |prepared: &PreparedSegment| prepared.shape.lowered.last.spec.output_types();
        let kept = |prepared: &PreparedSegment| written(prepared).iter().any(|ty| ty.repr == Repr::Text);
        !self.run.streams_out() && self.prepared_already().is_some_and(kept)
    }

    /// Keeps the texts that a launch made, if kept rows may be views of them.
    pub fn keep_new_texts(&self, made: Option<NewTexts<'_>>) {
        if let (Some(made), true) = (made, self.keeps_texts()) {
            made.stay();
        }
    }

    pub fn keep(&self, part: Kept) {
        self.kept().push(part);
    }

    /// The parts that were kept so far.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a pass over the source: the groups of its part of the keys are complete.
    pub async fn end_pass(&self, stream: &Stream) -> Result<(), Failure> {
        self.prepared(0)?;
        self.check_ranks()?;
        self.sink.end_pass(self, stream).await
    }

    /// The segment's output columns, without rows.
    pub fn shape(&self) -> Result<SegmentResult, Failure> {
        let columns = self.prepared(0)?.shape.lowered.outputs.clone();
        Ok(SegmentResult { columns, ..SegmentResult::default() })
    }

    /// The segment's result.
    pub async fn finish(&self, stream: &Stream) -> Result<SegmentResult, Failure> {
        self.prepared(0)?;
        let parts = std::mem::take(&mut *self.kept());
        self.sink.finish(self, parts, stream).await
    }

    /// These parts as the segment's result.
    pub fn result(&self, parts: Vec<Kept>) -> Result<SegmentResult, Failure> {
        let prepared = self.prepared(0)?;
        let mut columns = prepared.shape.lowered.outputs.clone();
        self.run.bounded(&mut columns);
        Ok(SegmentResult {
            parts,
            columns,
            details: Some(Arc::clone(&prepared.shape.lowered.details)),
            ..SegmentResult::default()
        })
    }

    /// The segment's compiled form, made on the first call. `rows` is the number of rows to process now; statistics may
    /// report more. Concurrent feeders call [`ready`](Self::ready).
    pub fn prepared(&self, rows: u64) -> Result<&PreparedSegment, Failure> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        self.run.context.tally.preparing(|| {
            let shape = self.shape_of(rows)?;
            let pipelines = Arc::clone(shape.compile(&self.run.context)?);
            self.run.keep_ptx(Generated::Segment(self.index), pipelines.all());
            let prepared = self.prepared.get_or_init(|| PreparedSegment { shape, pipelines });
            self.run.compile_after(self.index, prepared);
            Ok(prepared)
        })
    }

    /// Like [`prepared`](Self::prepared), for concurrent callers: they wait for the first.
    pub async fn ready(&self, rows: u64) -> Result<&PreparedSegment, Failure> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let _first = recorder::during(PREPARE, self.preparing.lock()).await;
        self.prepared(rows)
    }

    /// The compiled form, if it exists.
    pub fn prepared_already(&self) -> Option<&PreparedSegment> {
        self.prepared.get()
    }

    /// The segment's lowering for about `rows` rows, from the plan's memory if the facts are equal.
    pub(crate) fn shape_of(&self, rows: u64) -> Result<Arc<Shape>, Failure> {
        let (facts, bounds) = self.facts(rows);
        if let Some(shape) = self.run.prepared.shape_for(self.index, &facts) {
            return Ok(shape);
        }
        let mut lowered = self.lower(&facts)?;
        if let SinkSpec::Aggregate(aggregate) = &mut lowered.last.spec.sink
            && self.passes > 1
        {
            // Only a hash table can hold a part of the keys.
            aggregate.regime = Some(Regime::Hash);
        }
        let shape = Arc::new(Shape::new(facts, lowered, bounds));
        self.run.prepared.keep_shape(self.index, &shape);
        Ok(shape)
    }

    /// The facts that lowering depends on, and the bounds of dictionaries' codes that its columns assume.
    fn facts(&self, rows: u64) -> (SegmentFacts, Vec<(usize, usize)>) {
        let (start, prepared) = (&self.start, &self.run.prepared);
        let source = match &prepared.program.segments[self.index].origin {
            Origin::Source(source) => Some(*source),
            _ => None,
        };
        let known = source.map_or(start.rows_hint, |source| prepared.sources[source].rows);
        let mut columns = start.columns.clone();
        let bounds = source.map_or_else(Vec::new, |source| self.bound_key_codes(source, &mut columns));
        let mut builds: Vec<BuildForm> = start.builds.values().map(|built| built.form().clone()).collect();
        builds.sort_by_key(|form| form.build);
        let facts = SegmentFacts {
            columns,
            // Rounded, so that a few more rows need no new compilation.
            rows_hint: Some(known.max(rows).next_power_of_two()),
            produced: start.produced.clone(),
            like: start.like.clone(),
            builds,
            slices: start.slices.clone(),
            passes: self.passes,
        };
        (facts, bounds)
    }

    /// Bounds the codes that are keys, so that few groups can be addressed directly. Returns the bounds by column.
    fn bound_key_codes(&self, source: usize, columns: &mut [ColumnInfo]) -> Vec<(usize, usize)> {
        let prepared = &self.run.prepared;
        let tables = prepared.tables();
        let mut bounds = Vec::new();
        for id in prepared.key_codes[self.index].iter().copied() {
            let of = |column: &ColumnInfo| matches!(column.form, Form::Codes(_, of) if of == id);
            let Some(index) = columns.iter().position(of) else { continue };
            let Form::Codes(ty, _) = columns[index].form else { continue };
            if ty.range.is_some() {
                // A dictionary that is complete before the run bounds its codes already.
                continue;
            }
            let learnt = prepared.lessons.dictionaries.get(&(source, index)).copied().unwrap_or(0);
            let bound = tables.len(id).max(learnt).max(LEAST_CODES).next_power_of_two();
            if bound <= MOST_BOUNDED_CODES {
                columns[index].form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                bounds.push((index, bound));
            }
        }
        bounds
    }

    fn lower(&self, facts: &SegmentFacts) -> Result<LoweredSegment, Failure> {
        let (run, prepared) = (&self.run, &self.run.prepared);
        run.context.tally.lowerings.fetch_add(1, Ordering::Relaxed);
        let input = SegmentInput {
            columns: &facts.columns,
            produced: facts.produced.as_ref(),
            like: facts.like.as_deref(),
            rows_hint: facts.rows_hint,
            common: prepared.common.get(&self.index).map(Vec::as_slice),
            needed: prepared.needed.get(&self.index).map(Vec::as_slice),
            slices: &facts.slices,
            own_keys: prepared.keys.get(&self.index).map(Vec::as_slice),
        };
        let mut builds = BuiltForms(&facts.builds);
        Ok(prepared.program.lower(self.index, &input, &mut prepared.tables().definitions, &mut builds)?)
    }

    /// Fails if a dictionary has outgrown the bound of its codes.
    pub fn check_bounds(&self, prepared: &PreparedSegment) -> Result<(), Failure> {
        let Origin::Source(upload) = &self.run.prepared.program.segments[self.index].origin else { return Ok(()) };
        let tables = self.run.prepared.tables();
        let mut sizes = HashMap::new();
        for (column, bound) in &prepared.shape.bounds {
            if let Form::Codes(_, id) = self.start.columns[*column].form
                && tables.len(id) > *bound
            {
                sizes.insert((*upload, *column), tables.len(id));
            }
        }
        if sizes.is_empty() { Ok(()) } else { Err(Failure::Dictionaries(sizes)) }
    }

    /// Fails if a state keeps string ranks that moved as their dictionary grew, even if no rows followed.
    fn check_ranks(&self) -> Result<(), Failure> {
        if self.run.ranks_moved() { Err(Failure::Ranks) } else { Ok(()) }
    }
}

/// Forms of completed build sides, ordered by segment.
struct BuiltForms<'a>(&'a [BuildForm]);

impl Builds for BuiltForms<'_> {
    fn form(
        &mut self,
        build: usize,
        _plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        let unbuilt = || Reason::NodeUnsupported { node: format!("a join with segment {build}") };
        self.0.iter().find(|form| form.build == build).cloned().ok_or_else(unbuilt)
    }
}
