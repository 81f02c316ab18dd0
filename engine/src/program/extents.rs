//! One segment while it runs: extents in, through its pieces, into its sink.
//!
//!   extent ─► piece ─► … ─► last piece ──┬─ materialise: parts, or rows for the host
//!               │                        ├─ aggregate: one table, emitted at the end
//!               └─ cut: rows ─ running sums ─ pairs, some at a time
//!
//! Waits    where a cut needs the number of pairs, where a hash table may be full, and for results. Later runs wait
//!          only for results.
//! Memory   an extent that runs out of memory has no effect, unless some of its pairs were processed: see
//!          [`Failure::Midway`].

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use millpond_kernels::abi::CONTROL_BYTES;
use millpond_kernels::codegen::ir::{Literal, Regime, Repr, SinkSpec};
use millpond_kernels::join::{Expansion, TableInput, mark_bits, mark_bytes};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput, Pipeline};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Stream, recorder};

use crate::column::{ColumnInfo, Form};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::expr::{Lookup, LookupKind, LookupTable};
use crate::options::MAX_BATCH_ROWS;
use crate::profile::step::PREPARE;
use crate::program::answers::{Question, no_error, rows_of_each};
use crate::program::build_side::{BuildForm, Built, KeySlice};
use crate::program::contract::{SinkRun, TableSize};
use crate::program::expansion::{Pairs, running_sums};
use crate::program::given::{Details, Given, LookedUp};
use crate::program::kept_ptx::Generated;
use crate::program::lower::{Builds, Cut, LoweredSegment, Piece, SegmentInput};
use crate::program::part::{Kept, Part};
use crate::program::prepared::Compiled;
use crate::program::run::Run;
use crate::program::segments::Origin;
use crate::program::texts::{Made, gives_texts};

/// Minimum number of values that a key's codes are planned for.
const LEAST_CODES: usize = 16;
/// Number of values beyond which a key's codes have no bound, and groups are hashed.
pub(crate) const MOST_BOUNDED_CODES: usize = 1 << 16;
/// Bytes of an extent's part beyond which the rows that passed a filter are counted, and the part is shrunk.
const ROOMY_BYTES: usize = 16 << 20;
/// Minimum number of pairs per launch.
const LEAST_PAIRS: u64 = 1 << 10;

/// Pipelines of a cut.
pub struct CutPipelines {
    rows: Arc<Pipeline>,
    marks: Option<Arc<Pipeline>>,
    build_marks: Option<Arc<Pipeline>>,
    recount: Option<Arc<Pipeline>>,
}

/// A segment's lowering, and the facts that it assumed.
pub struct Shape {
    columns: Vec<ColumnInfo>,
    rows_hint: Option<u64>,
    produced: Option<Details>,
    pub lowered: LoweredSegment,
    /// Dictionaries whose codes must stay below a bound, by column.
    bounds: Vec<(usize, usize)>,
    /// Independent of build sides, key parts and other segments' columns.
    is_alone: bool,
    /// Build-side forms (by segment) and required output columns that this lowering assumed.
    forms: Vec<BuildForm>,
    like: Option<Vec<ColumnInfo>>,
    /// Number of times the segment was lowered in this attempt.
    lowerings: u32,
}

impl Shape {
    /// True if lowering `segment` again would give an equal result. Its builds, slices and required columns never
    /// change.
    fn fits(&self, segment: &SegmentRun, columns: &[ColumnInfo], rows_hint: Option<u64>) -> bool {
        let produced = match (&self.produced, &segment.produced) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        produced && self.rows_hint == rows_hint && self.columns == columns
    }

    /// Like [`fits`](Self::fits), for a segment of another run, which may have other build sides.
    fn serves(&self, segment: &SegmentRun, columns: &[ColumnInfo], rows_hint: Option<u64>) -> bool {
        segment.is_whole()
            && self.fits(segment, columns, rows_hint)
            && self.like == segment.like
            && self.forms == segment.forms()
    }
}

/// A lowered segment with its compiled pipelines.
pub struct PreparedSegment {
    cuts: Vec<CutPipelines>,
    /// The pipeline with the sink.
    pub pipeline: Arc<Pipeline>,
    /// Pipelines that the sink's run launches itself.
    beside: Vec<Arc<Pipeline>>,
    shape: Arc<Shape>,
}

impl PreparedSegment {
    /// True if it was compiled from `shape`.
    pub(crate) fn is(&self, shape: &Arc<Shape>) -> bool {
        Arc::ptr_eq(&self.shape, shape)
    }

    fn pipelines(&self) -> impl Iterator<Item = &Arc<Pipeline>> {
        let of_cuts = self.cuts.iter().flat_map(|cut| {
            let others = [&cut.marks, &cut.build_marks, &cut.recount];
            std::iter::once(&cut.rows).chain(others.into_iter().flatten())
        });
        of_cuts.chain([&self.pipeline]).chain(&self.beside)
    }
}

impl Deref for PreparedSegment {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.shape
    }
}

/// Input of a piece.
pub struct PieceInput {
    pub extent: ExtentInput,
    pub expansion: Option<Expansion>,
    /// Marks of rows that have a pair.
    pub marks: Option<LookupInput>,
}

/// The rows of an extent on their way into a sink.
pub struct Extent<'a> {
    pub segment: &'a SegmentRun,
    /// The segment's kernels, and its sink's lowering.
    pub prepared: &'a PreparedSegment,
    /// Input of the last piece.
    pub from: PieceInput,
    /// Stream that writes the rows. The sink launches its own kernels over them here, too.
    pub stream: &'a Stream,
    /// Waits count as feeding the device, not as waiting for a result.
    pub feeding: bool,
}

/// Context of an extent that remains after its rows were read.
#[derive(Clone, Copy)]
pub struct ExtentRest<'a> {
    pub segment: &'a SegmentRun,
    pub prepared: &'a PreparedSegment,
    pub stream: &'a Stream,
}

impl<'a> Extent<'a> {
    /// A copy over other rows of the extent.
    pub(crate) fn with_rows(&self, rows: ExtentRows) -> Self {
        let extent = ExtentInput { rows, columns: self.from.extent.columns.clone() };
        let from = PieceInput { extent, expansion: self.from.expansion.clone(), marks: self.from.marks.clone() };
        Self { from, ..*self }
    }

    pub fn rest(&self) -> ExtentRest<'a> {
        ExtentRest { segment: self.segment, prepared: self.prepared, stream: self.stream }
    }

    /// Writes the rows as dense columns; also returns the new texts that their views refer to. `waits` if the part may
    /// have to be spilled to the host. Consumes the extent.
    pub async fn materialise(self, waits: bool) -> Result<(Part, Option<Made<'a>>), Failure> {
        let lowered = &self.prepared.lowered;
        let (part, made) = self.launch_variant(0, u64::MAX, waits).await?;
        Ok((part.arranged(&lowered.outputs, &lowered.at), made))
    }

    /// Like [`materialise`](Self::materialise), by launch `variant` of several over the same rows, with room for `room`
    /// rows; the columns keep the order in which they are written.
    pub(crate) async fn launch_variant(
        &self,
        variant: u32,
        room: u64,
        waits: bool,
    ) -> Result<(Part, Option<Made<'a>>), Failure> {
        let piece = &self.prepared.lowered.last;
        let launch = Materialised { variant, room, waits };
        self.segment.materialise(&self.prepared.pipeline, piece, &self.from, launch, self.stream).await
    }

    /// Writes the rows as dense columns, and keeps them for the segment that reads them.
    pub async fn keep_rows(self) -> Result<(), Failure> {
        let rest = self.rest();
        let rows = self.rows_foreseen();
        // One row more, so that an overflow shows in the count.
        let room = rows.map_or(u64::MAX, |rows| rows.saturating_add(1));
        let (part, made) = self.launch_variant(0, room, true).await?;
        let lowered = &self.prepared.lowered;
        let mut part = part.arranged(&lowered.outputs, &lowered.at);
        drop(self);
        if let Some(rows) = rows {
            let ExtentRest { segment, stream, .. } = rest;
            let control = [part.buffer.view(OutputLayout::CONTROL)?];
            if segment.run.assume(vec![rows], &control, rows_of_each, stream)? {
                part.rows_known(rows)?;
            } else if segment.run.count_rows_of(segment.index, std::slice::from_mut(&mut part), stream).await? > rows {
                return Err(Failure::Surprise);
            }
        }
        rest.keep_part(part, made, true).await
    }

    /// Expected row count from an earlier run; only for the first extent, and only if that run had no other.
    fn rows_foreseen(&self) -> Option<u64> {
        let segment = self.segment;
        let is_first = segment.foreseen.fetch_add(1, Ordering::Relaxed) == 0;
        let leaves_some_out = self.prepared.pipeline.compiled().compacts;
        if is_first && leaves_some_out { segment.run.known_room(segment.index) } else { None }
    }
}

impl<'a> ExtentRest<'a> {
    /// Rows that pass piece `index` of those that the sink's run launches itself, as dense columns that may be spilled.
    pub(crate) async fn launch_beside(
        self,
        index: usize,
        from: &PieceInput,
    ) -> Result<(Part, Option<Made<'a>>), Failure> {
        let none = || EngineError::internal("a sink launches pieces that it was lowered to");
        let piece = self.prepared.lowered.beside.get(index).ok_or_else(none)?;
        let pipeline = self.prepared.beside.get(index).ok_or_else(none)?;
        let how = Materialised { waits: true, ..Materialised::ONCE };
        self.segment.materialise(pipeline, piece, from, how, self.stream).await
    }

    /// Keeps a part, and shrinks its buffer to its rows if that is worthwhile. `waits` as when it was written.
    pub async fn keep_part(self, part: Part, made: Option<Made<'_>>, waits: bool) -> Result<(), Failure> {
        let Self { segment, prepared, stream } = self;
        let run = &segment.run;
        // A part of the keys leaves most rows of an extent out; and after memory has run out, or if it may, unused room
        // is missed elsewhere.
        let is_large = part.layout.bytes > ROOMY_BYTES && prepared.pipeline.compiled().compacts;
        let shrinks = !segment.slices.is_empty() || !run.prepared.lessons.passes.is_empty() || waits && is_large;
        let part = if shrinks { run.shrink(segment.index, part, stream).await? } else { part };
        segment.keep(Kept::spillable(part, &run.engine)?);
        segment.keep_made(made);
        Ok(())
    }
}

/// Parameters for writing dense columns.
#[derive(Clone, Copy)]
struct Materialised {
    /// Number of the launch, of several over the same rows.
    variant: u32,
    /// Row capacity: if more rows pass, only the first are written.
    room: u64,
    /// The part may have to be spilled to the host.
    waits: bool,
}

impl Materialised {
    /// The only launch over its rows, into a part that is read at once.
    const ONCE: Self = Self { variant: 0, room: u64::MAX, waits: false };
}

/// The parameters and tables of a launch.
pub struct Launch {
    literals: Vec<Literal>,
    lookups: Vec<LookupInput>,
    tables: Vec<TableInput>,
    texts: Vec<DeviceView>,
}

impl Launch {
    /// The launch's input, over the rows of `from`.
    pub fn input<'i>(&'i self, from: &'i PieceInput) -> Input<'i> {
        Input {
            extents: std::slice::from_ref(&from.extent),
            texts: &self.texts,
            literals: &self.literals,
            lookups: &self.lookups,
            tables: &self.tables,
            expansion: from.expansion.as_ref(),
            ..Input::default()
        }
    }
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
    start: SegmentStart,
    /// Its latest lowering.
    guessed: Mutex<Option<Arc<Shape>>>,
    prepared: Mutex<Option<Arc<PreparedSegment>>>,
    /// Held by the feeder that prepares it.
    preparing: tokio::sync::Mutex<()>,
    sink: Box<dyn SinkRun>,
    /// Rows of the source, in this pass.
    rows_in: AtomicU64,
    /// Number of passes over the source, one for each part of the table's keys, and the number of the current pass.
    pub(crate) passes: u32,
    pub(crate) pass: AtomicU32,
    /// Number of extents whose rows were kept.
    foreseen: AtomicU32,
    parts: Mutex<Vec<Kept>>,
}

impl Deref for SegmentRun {
    type Target = SegmentStart;
    fn deref(&self) -> &SegmentStart {
        &self.start
    }
}

impl SegmentRun {
    pub fn new(run: &Arc<Run>, start: SegmentStart) -> Self {
        let index = start.index;
        Self {
            run: Arc::clone(run),
            index,
            start,
            guessed: Mutex::new(None),
            prepared: Mutex::new(None),
            preparing: tokio::sync::Mutex::default(),
            sink: run.prepared.program.segments[index].sink.begin(),
            rows_in: AtomicU64::new(0),
            passes: run.passes(index),
            pass: AtomicU32::new(0),
            foreseen: AtomicU32::new(0),
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
        self.builds.iter().map(|(build, built)| (*build, built.bytes()))
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

    /// Reads the rows of a build side, with the marks of those that have a match.
    pub async fn read_build(&self, build: usize, stream: &Stream) -> Result<(), Failure> {
        let built = self.built(build)?;
        let Some(extent) = built.rows()? else { return Ok(()) };
        let prepared = self.prepared(extent.rows.upper_bound())?;
        // Allocates clear marks if no row of the probe side was processed.
        built.marks(&self.run, stream)?;
        let marks = built.marked()?.map(|values| LookupInput { values, validity: None });
        self.rows_in.fetch_add(extent.rows.upper_bound(), Ordering::Relaxed);
        self.through(&prepared, 0, PieceInput { extent, expansion: None, marks }, stream, false).await
    }

    /// Processes rows of the source: through all pieces into the sink.
    pub async fn process(&self, extent: ExtentInput, stream: &Stream, feeding: bool) -> Result<(), Failure> {
        let rows = extent.rows.upper_bound();
        let prepared = self.prepared(rows)?;
        loop {
            let from = PieceInput { extent: extent.clone(), expansion: None, marks: None };
            match self.through(&prepared, 0, from, stream, feeding).await {
                // If rows stream out, none of this extent's rows has left yet.
                Err(Failure::Arena) if self.run.streams_out() => self.run.reached.larger_arenas()?,
                other => break other?,
            };
        }
        self.rows_in.fetch_add(rows, Ordering::Relaxed);
        Ok(())
    }

    /// Runs piece `cut` and those that follow it.
    fn through<'a>(
        &'a self,
        prepared: &'a PreparedSegment,
        cut: usize,
        from: PieceInput,
        stream: &'a Stream,
        feeding: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match prepared.lowered.cuts.get(cut) {
                Some(at) => self.through_cut(prepared, cut, at, from, stream, feeding).await,
                None => self.sink.rows(Extent { segment: self, prepared, from, stream, feeding }).await,
            }
        })
    }

    async fn through_cut(
        &self,
        prepared: &PreparedSegment,
        index: usize,
        cut: &Cut,
        from: PieceInput,
        stream: &Stream,
        feeding: bool,
    ) -> Result<(), Failure> {
        let pipelines = &prepared.cuts[index];
        let (part, made) = self.materialise(&pipelines.rows, &cut.rows, &from, Materialised::ONCE, stream).await?;
        drop(from);
        let part = part.arranged(&cut.columns, &cut.at);
        let bound = part.layout.rows_upper_bound;
        if bound == 0 {
            return Ok(());
        }
        let mut extent = part.as_extent()?;
        let (mut sums, mut pairs) = self.pairs(&extent, cut.counts, stream).await?;
        let mut marks = None;
        if let (Some(piece), Some(pipeline)) = (&cut.marks, &pipelines.marks) {
            let run = &self.run;
            let (marked, _promise) = run.memory.take_zeroed(mark_bytes(bound), &run.tags.joins, stream)?;
            self.mark(pipeline, piece, &extent, &sums, pairs, (marked.as_view(), bound), stream).await?;
            marks = Some(LookupInput { values: mark_bits(marked.as_view(), bound)?, validity: None });
        }
        if let (Some((piece, build)), Some(pipeline)) = (&cut.build_marks, &pipelines.build_marks) {
            let built = self.built(*build)?;
            if let Some(marked) = built.marks(&self.run, stream)? {
                let rows = built.rows_bound();
                self.mark(pipeline, piece, &extent, &sums, pairs, (&marked, rows), stream).await?;
            }
        }
        let mut recounted = None;
        if let (Some(piece), Some(pipeline)) = (&cut.recount, &pipelines.recount) {
            let from = PieceInput { extent: extent.clone(), expansion: None, marks: marks.clone() };
            let (again, _) = self.materialise(pipeline, piece, &from, Materialised::ONCE, stream).await?;
            for (column, output) in [(cut.start, 0), (cut.counts, 1)] {
                let layout = &again.layout.columns[output];
                let validity = layout.validity.clone().map(|range| again.buffer.view(range)).transpose()?;
                let values = again.buffer.view(layout.values.clone())?;
                extent.columns[column] = Some(ColumnInput { values, validity, base: 0 });
            }
            (sums, pairs) = self.pairs(&extent, cut.counts, stream).await?;
            recounted = Some(again);
        }
        if !cut.expands {
            self.through(prepared, index + 1, PieceInput { extent, expansion: None, marks }, stream, feeding).await?;
            self.keep_made(made);
            return Ok(());
        }
        let mut first = 0;
        let mut ceiling = MAX_BATCH_ROWS as u64;
        let mut most = self.pairs_at_once();
        while first < pairs.rows && !self.has_enough() {
            let rows = most.min(self.run.extent_rows() as u64).max(LEAST_PAIRS).min(pairs.rows - first);
            let expansion = Some(Expansion { first, ..sums.clone() });
            let some = ExtentInput { rows: some_pairs(&sums, pairs, rows)?, ..extent.clone() };
            let from = PieceInput { extent: some, expansion, marks: None };
            match self.through(prepared, index + 1, from, stream, feeding).await {
                Ok(()) => {
                    first += rows;
                    most = (rows * 4).min(ceiling);
                }
                Err(failure) if failure.is_out_of_memory() && rows > LEAST_PAIRS && !pairs.assumed => {
                    ceiling = rows / 2;
                    most = ceiling;
                }
                Err(failure) if first > 0 => return Err(failure.midway()),
                Err(failure) => return Err(failure),
            }
        }
        self.keep_made(made);
        drop((part, recounted));
        Ok(())
    }

    /// Running sums over a column of counts; the last sum is the number of pairs.
    async fn pairs(&self, extent: &ExtentInput, counts: usize, stream: &Stream) -> Result<(Expansion, Pairs), Failure> {
        let (run, bound) = (&self.run, extent.rows.upper_bound());
        let counts = extent.columns[counts].as_ref().ok_or_else(|| EngineError::internal("counts are written"))?;
        let sums = running_sums(run, &counts.values, &extent.rows, bound, stream)?;
        // A count that takes several launches is awaited.
        let most = self.pairs_at_once().min(run.extent_rows() as u64);
        let (asked, control) = ((self.index, Question::Pairs), [sums.control()?]);
        let (words, assumed) = run.ask_below(asked, most, &control, rows_of_each, stream).await?;
        Ok((sums, Pairs { rows: words.iter().sum(), assumed }))
    }

    /// Number of pairs to try at first: few, if few rows suffice.
    fn pairs_at_once(&self) -> u64 {
        (MAX_BATCH_ROWS as u64).min(self.sink.rows_sought(self))
    }

    /// Marks the rows that have a pair.
    #[expect(clippy::too_many_arguments, reason = "a launch is all of these")]
    async fn mark(
        &self,
        pipeline: &Pipeline,
        piece: &Piece,
        extent: &ExtentInput,
        sums: &Expansion,
        pairs: Pairs,
        (marks, rows): (&DeviceView, u64),
        stream: &Stream,
    ) -> Result<(), Failure> {
        let lookups = self.lookups(piece, None, stream).await?;
        let (literals, tables) = (self.run.literals(piece)?, self.tables(piece)?);
        let mut first = 0;
        while first < pairs.rows {
            let some = (pairs.rows - first).min(MAX_BATCH_ROWS as u64);
            let expansion = Expansion { first, ..sums.clone() };
            let extent = ExtentInput { rows: some_pairs(sums, pairs, some)?, ..extent.clone() };
            let texts = self.run.reached.by(&piece.spec);
            let input = Input {
                extents: std::slice::from_ref(&extent),
                texts: &texts,
                literals: &literals,
                lookups: &lookups,
                tables: &tables,
                expansion: Some(&expansion),
                ..Input::default()
            };
            let made = self.run.made(&piece.spec, &input, stream)?;
            let input = Input { arena: made.as_ref().map(Made::view), ..input };
            pipeline.mark(input, marks, rows, stream)?;
            self.run.tally.launches.fetch_add(1, Ordering::Relaxed);
            first += some;
        }
        // Errors of pairs are raised where rows are marked; no later step checks for them.
        self.check_raised(marks, stream).await
    }

    /// Fails if an error was raised while rows were marked.
    pub(crate) async fn check_raised(&self, marks: &DeviceView, stream: &Stream) -> Result<(), Failure> {
        let control = [marks.view(0..CONTROL_BYTES as usize)?];
        self.run.ask((self.index, Question::Raised), &control, no_error, stream).await.map(drop)
    }

    /// Launches the last piece over no rows.
    pub async fn no_rows(&self, prepared: &PreparedSegment, stream: &Stream) -> Result<(), Failure> {
        let nothing = DeviceBuffer::zeroed(256, stream, &self.run.engine.pool)?;
        let spec = &prepared.lowered.last.spec;
        let column = ColumnInput { values: nothing.view(0..0)?, validity: None, base: 0 };
        let columns = vec![Some(column); spec.columns.len()];
        let sums = nothing.view(0..64)?;
        let from = PieceInput {
            extent: ExtentInput { rows: ExtentRows::Known(0), columns },
            expansion: spec.expanded.then_some(Expansion { sums, source_rows: 0, first: 0 }),
            marks: Some(LookupInput { values: nothing.as_view().clone(), validity: None }),
        };
        self.sink.rows(Extent { segment: self, prepared, from, stream, feeding: false }).await
    }

    /// True if kept rows may be views of texts.
    pub fn keeps_texts(&self) -> bool {
        // A sort's keys are kept beside its output.
        let written = |prepared: &PreparedSegment| prepared.lowered.last.spec.output_types();
        let kept = |prepared: &PreparedSegment| written(prepared).iter().any(|ty| ty.repr == Repr::Text);
        !self.run.streams_out() && self.prepared_already().is_some_and(|prepared| kept(&prepared))
    }

    /// Keeps the texts that a launch made, if kept rows may be views of them.
    pub fn keep_made(&self, made: Option<Made<'_>>) {
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
    pub fn shape(&self) -> Result<Given, Failure> {
        let columns = self.prepared(0)?.lowered.outputs.clone();
        Ok(Given { columns, ..Given::default() })
    }

    /// The segment's result.
    pub async fn finish(&self, stream: &Stream) -> Result<Given, Failure> {
        self.prepared(0)?;
        let parts = std::mem::take(&mut *self.kept());
        self.sink.finish(self, parts, stream).await
    }

    /// These parts as the segment's result.
    pub fn given(&self, parts: Vec<Kept>) -> Result<Given, Failure> {
        let prepared = self.prepared(0)?;
        let mut columns = prepared.lowered.outputs.clone();
        self.run.bounded(&mut columns);
        Ok(Given { parts, columns, details: Some(Arc::clone(&prepared.lowered.details)), ..Given::default() })
    }

    /// The segment's compiled form, made on the first call. `rows` is the number of rows to process now; statistics may
    /// report more. Concurrent feeders call [`ready`](Self::ready).
    pub fn prepared(&self, rows: u64) -> Result<Arc<PreparedSegment>, Failure> {
        if let Some(prepared) = self.prepared_already() {
            return Ok(prepared);
        }
        self.run.tally.preparing(|| {
            // No lock is held while kernels are assembled.
            let prepared = self.prepare(rows)?;
            *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&prepared));
            self.run.compile_after(self.index, &prepared);
            Ok(prepared)
        })
    }

    /// Like [`prepared`](Self::prepared), for concurrent callers: they wait for the first.
    pub async fn ready(&self, rows: u64) -> Result<Arc<PreparedSegment>, Failure> {
        if let Some(prepared) = self.prepared_already() {
            return Ok(prepared);
        }
        let _first = recorder::during(PREPARE, self.preparing.lock()).await;
        self.prepared(rows)
    }

    fn prepare(&self, rows: u64) -> Result<Arc<PreparedSegment>, Failure> {
        let shape = self.shape_of(rows)?;
        if let Some(compiled) = self.compiled_before().filter(|compiled| compiled.is(&shape)) {
            compiled.pipelines().for_each(|pipeline| self.run.tally.note(pipeline));
            self.run.keep_ptx(Generated::Segment(self.index), compiled.pipelines());
            return Ok(compiled);
        }
        let lowered = &shape.lowered;
        let pipelines = &self.run;
        let optional = |piece: Option<&Piece>| piece.map(|piece| pipelines.pipeline(&piece.spec)).transpose();
        let mut cuts = Vec::with_capacity(lowered.cuts.len());
        for cut in &lowered.cuts {
            cuts.push(CutPipelines {
                rows: pipelines.pipeline(&cut.rows.spec)?,
                marks: optional(cut.marks.as_ref())?,
                build_marks: optional(cut.build_marks.as_ref().map(|(piece, _)| piece))?,
                recount: optional(cut.recount.as_ref())?,
            });
        }
        let pipeline = pipelines.pipeline(&lowered.last.spec)?;
        let beside = lowered.beside.iter().map(|piece| pipelines.pipeline(&piece.spec)).collect::<Result<_, _>>()?;
        let prepared = Arc::new(PreparedSegment { cuts, pipeline, beside, shape });
        self.run.keep_ptx(Generated::Segment(self.index), prepared.pipelines());
        if self.is_whole() {
            self.run.prepared.keep_compiled(self.index, Arc::clone(&prepared) as Compiled);
        }
        Ok(prepared)
    }

    /// The segment's compiled form from an earlier run.
    pub(crate) fn compiled_before(&self) -> Option<Arc<PreparedSegment>> {
        self.run.prepared.compiled(self.index)?.downcast().ok()
    }

    /// True if it covers all keys at once, its own and those of its builds.
    fn is_whole(&self) -> bool {
        self.slices.is_empty() && self.passes == 1
    }

    /// Forms of the build sides that it probes, ordered by segment.
    fn forms(&self) -> Vec<BuildForm> {
        let mut forms: Vec<BuildForm> = self.builds.values().map(|built| built.form().clone()).collect();
        forms.sort_by_key(|form| form.build);
        forms
    }

    /// The segment's lowering for about `rows` rows. It is lowered once for a guess, and again if later facts differ.
    pub(crate) fn shape_of(&self, rows: u64) -> Result<Arc<Shape>, Failure> {
        let run = &self.run;
        let source = match &run.prepared.program.segments[self.index].origin {
            Origin::Source(source) => Some(*source),
            _ => None,
        };
        let known = source.map_or(self.rows_hint, |source| run.prepared.sources[source].rows);
        // Rounded, so that a few more rows need no new compilation.
        let rows_hint = Some(known.max(rows).next_power_of_two());
        let mut columns = self.columns.clone();
        let mut bounds = Vec::new();
        if let Some(source) = source {
            // Codes that are keys get a bound, so that few groups can be addressed directly.
            let tables = run.prepared.tables();
            for id in run.prepared.key_codes[self.index].iter().copied() {
                let of = |column: &ColumnInfo| matches!(column.form, Form::Codes(_, of) if of == id);
                let Some(index) = columns.iter().position(of) else { continue };
                let Form::Codes(ty, _) = columns[index].form else { continue };
                if ty.range.is_some() {
                    // A dictionary that is complete before the run bounds its codes already.
                    continue;
                }
                let learnt = run.prepared.lessons.dictionaries.get(&(source, index)).copied().unwrap_or(0);
                let bound = tables.len(id).max(learnt).max(LEAST_CODES).next_power_of_two();
                if bound <= MOST_BOUNDED_CODES {
                    columns[index].form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                    bounds.push((index, bound));
                }
            }
        }
        if let Some(guess) = self.guessed.lock().unwrap_or_else(PoisonError::into_inner).clone()
            && guess.fits(self, &columns, rows_hint)
        {
            return Ok(guess);
        }
        // An independent segment may have been lowered before its turn.
        let is_alone = self.builds.is_empty() && self.slices.is_empty() && self.like.is_none();
        let known = run.shapes().get(&self.index).cloned();
        let fits = |guess: &&Arc<Shape>| is_alone && guess.is_alone && guess.fits(self, &columns, rows_hint);
        if let Some(guess) = known.as_ref().filter(fits) {
            return Ok(Arc::clone(guess));
        }
        if let Some(compiled) = self.compiled_before().filter(|c| c.shape.serves(self, &columns, rows_hint)) {
            let shape = Arc::clone(&compiled.shape);
            *self.guessed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&shape));
            return Ok(shape);
        }
        let lowerings = known.map_or(0, |known| known.lowerings) + 1;
        // Once for a guess, and once for the facts; each part of the keys has a shape of its own.
        debug_assert!(
            lowerings <= 2 || self.passes > 1 || !self.slices.is_empty(),
            "segment {} is lowered {lowerings} times in one attempt",
            self.index
        );
        let mut lowered = self.lower(&columns, rows_hint)?;
        if let SinkSpec::Aggregate(aggregate) = &mut lowered.last.spec.sink
            && self.passes > 1
        {
            // Only a hash table can hold a part of the keys.
            aggregate.regime = Some(Regime::Hash);
        }
        let produced = self.produced.clone();
        let (forms, like) = (self.forms(), self.like.clone());
        let shape = Shape { columns, rows_hint, produced, lowered, bounds, is_alone, forms, like, lowerings };
        let shape = Arc::new(shape);
        *self.guessed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&shape));
        run.shapes().insert(self.index, Arc::clone(&shape));
        Ok(shape)
    }

    fn lower(&self, columns: &[ColumnInfo], rows_hint: Option<u64>) -> Result<LoweredSegment, Failure> {
        let (run, prepared) = (&self.run, &self.run.prepared);
        run.tally.lowerings.fetch_add(1, Ordering::Relaxed);
        let input = SegmentInput {
            columns,
            produced: self.produced.as_ref(),
            like: self.like.as_deref(),
            rows_hint,
            common: prepared.common.get(&self.index).map(Vec::as_slice),
            needed: prepared.needed.get(&self.index).map(Vec::as_slice),
            slices: &self.slices,
            own_keys: prepared.keys.get(&self.index).map(Vec::as_slice),
        };
        let mut builds = BuiltForms(&self.builds);
        Ok(prepared.program.lower(self.index, &input, &mut prepared.tables().definitions, &mut builds)?)
    }

    /// The compiled form, if it exists.
    pub fn prepared_already(&self) -> Option<Arc<PreparedSegment>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if a dictionary has outgrown the bound of its codes.
    pub fn check_bounds(&self, prepared: &PreparedSegment) -> Result<(), Failure> {
        let Origin::Source(upload) = &self.run.prepared.program.segments[self.index].origin else { return Ok(()) };
        let tables = self.run.prepared.tables();
        let mut sizes = HashMap::new();
        for (column, bound) in &prepared.bounds {
            if let Form::Codes(_, id) = self.columns[*column].form
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

    pub(crate) fn built(&self, build: usize) -> Result<&Built, EngineError> {
        self.builds.get(&build).ok_or_else(|| EngineError::internal(format!("segment {build} has built nothing")))
    }

    /// The join tables of a launch.
    pub fn tables(&self, piece: &Piece) -> Result<Vec<TableInput>, Failure> {
        piece.tables.iter().map(|build| Ok(self.built(*build)?.table.clone())).collect()
    }

    /// Parameters, tables and texts for a launch of `piece` over `from`.
    pub(crate) async fn launch(&self, piece: &Piece, from: &PieceInput, stream: &Stream) -> Result<Launch, Failure> {
        let (lookups, tables) = (self.lookups(piece, from.marks.as_ref(), stream).await?, self.tables(piece)?);
        let literals = self.run.literals(piece)?;
        Ok(Launch { literals, lookups, tables, texts: self.run.reached.by(&piece.spec) })
    }

    /// The lookup tables of a launch.
    async fn lookups(
        &self,
        piece: &Piece,
        marks: Option<&LookupInput>,
        stream: &Stream,
    ) -> Result<Vec<LookupInput>, Failure> {
        let mut inputs = Vec::with_capacity(piece.lookups.len());
        for table in &piece.lookups {
            inputs.push(match table {
                LookupTable::Dictionary(lookup) => self.dictionary_table(lookup, stream).await?,
                LookupTable::BuildColumn { build, column, .. } => self.built(*build)?.column(*column)?,
                LookupTable::Best { .. } => self.sink.lookup(table, self, stream)?,
                LookupTable::Ranked { column, .. } => self.looked_up_column(*column, stream)?,
                LookupTable::Matches { build } => self.built(*build)?.table.rows()?,
                LookupTable::Marks => {
                    marks.cloned().ok_or_else(|| EngineError::internal("rows are marked before they are looked up"))?
                }
            });
        }
        Ok(inputs)
    }

    /// A lookup table over a dictionary. If a large one finds no pinned memory, waits until some is returned.
    pub(crate) async fn dictionary_table(&self, lookup: &Lookup, stream: &Stream) -> Result<LookupInput, Failure> {
        loop {
            match self.run.lookup(lookup, stream) {
                Err(Failure::Pinned(_)) => {
                    drop(self.run.engine.pinned.take(HostKind::Upload, LARGE_TABLE_BYTES).await?);
                }
                other => {
                    let table = other?;
                    if lookup.kind == LookupKind::Text {
                        self.run.reached.keep(&table.values, None);
                    }
                    return Ok(table);
                }
            }
        }
    }

    /// A lookup column beside the source rows; a placeholder if there are no rows.
    fn looked_up_column(&self, column: usize, stream: &Stream) -> Result<LookupInput, Failure> {
        match self.looked_up.column(column) {
            Some(column) => Ok(column.clone()),
            None => {
                let nothing = DeviceBuffer::zeroed(256, stream, &self.run.engine.pool)?;
                let nothing = nothing.as_view().clone();
                Ok(LookupInput { values: nothing.clone(), validity: Some(nothing) })
            }
        }
    }

    /// Writes the rows that pass a piece as dense columns; also returns the new texts that their views refer to.
    async fn materialise<'s>(
        &'s self,
        pipeline: &Pipeline,
        piece: &Piece,
        from: &PieceInput,
        how: Materialised,
        stream: &Stream,
    ) -> Result<(Part, Option<Made<'s>>), Failure> {
        let launch = self.launch(piece, from, stream).await?;
        let layout = pipeline.short_layout(std::slice::from_ref(&from.extent), how.room);
        let (buffer, promise) = self.run.output(&layout, how.waits, stream)?;
        let marks = match &piece.spec.sink {
            SinkSpec::MaterialiseAndMark { .. } => Some(self.marks_of_kept(stream)?),
            _ => None,
        };
        let input = Input { marks: marks.as_ref(), variant: how.variant, ..launch.input(from) };
        let made = self.run.made(&piece.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(Made::view), ..input };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.run.tally.launches.fetch_add(1, Ordering::Relaxed);
        let made = made.filter(|_| gives_texts(&piece.spec));
        Ok((Part::new(&buffer, layout, vec![]).promised(promise), made))
    }

    /// Marks of the build side whose unmatched rows are kept.
    fn marks_of_kept(&self, stream: &Stream) -> Result<DeviceView, Failure> {
        let mut stages = self.run.prepared.program.segments[self.index].stages.iter();
        let kept = stages.find(|stage| stage.marks_build_rows()).and_then(|stage| stage.build());
        let kept = kept.ok_or_else(|| EngineError::internal("marks belong to a join"))?;
        match self.built(kept)?.marks(&self.run, stream)? {
            Some(marks) => Ok(marks),
            // It has no rows, so no bit is set, but the launch needs an address.
            None => Ok(DeviceBuffer::zeroed(mark_bytes(0), stream, &self.run.engine.pool)?.as_view().clone()),
        }
    }
}

/// The next `rows` pairs as rows of an expansion; an assumed count is read on the device.
fn some_pairs(sums: &Expansion, pairs: Pairs, rows: u64) -> Result<ExtentRows, Failure> {
    Ok(match pairs.assumed {
        true => ExtentRows::OnDevice { control: sums.control()?, upper_bound: rows },
        false => ExtentRows::Known(rows),
    })
}

/// Forms of completed build sides.
struct BuiltForms<'a>(&'a HashMap<usize, Built>);

impl Builds for BuiltForms<'_> {
    fn form(
        &mut self,
        build: usize,
        _plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        let unbuilt = || Reason::NodeUnsupported { node: format!("a join with segment {build}") };
        self.0.get(&build).map(|built| built.form().clone()).ok_or_else(unbuilt)
    }
}

/// Bytes for any table: 16 for each of a dictionary's values, and their validity.
const LARGE_TABLE_BYTES: usize = 18 << 20;
