//! The way of an extent through a segment: from the source's rows into the sink.
//!
//! ```text
//!   extent ─► piece ─► … ─► last piece ──┬─ materialise: parts, or rows for the host
//!               │                        ├─ aggregate: one table, emitted at the end
//!               └─ cut: rows ─ the cut's stage ─ next piece: see `expand`
//! ```
//!
//! Waits    where a cut needs the number of rows of the next piece, where a hash table may be full, and for results.
//!          Later runs wait only for results.
//! Memory   an extent that runs out of memory has no effect, unless some of its expanded rows were processed: see
//!          [`Failure::Midway`].

use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use millpond_kernels::abi::CONTROL_BYTES;
use millpond_kernels::codegen::ir::{Literal, SinkSpec};
use millpond_kernels::join::{Expansion, TableInput, mark_bytes};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput, Pipeline};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::expr::{Lookup, LookupKind, LookupTable};
use crate::program::answers::{Question, no_error, rows_of_each};
use crate::program::part::{Kept, Part};
use crate::program::piece::{Cut, Piece};
use crate::program::segment_run::{PreparedSegment, SegmentRun};
use crate::program::shape::CutPipelines;
use crate::program::texts::{NewTexts, gives_texts};

/// Bytes of an extent's part beyond which the rows that passed a filter are counted, and the part is shrunk.
const ROOMY_BYTES: usize = 16 << 20;
/// Bytes for any table: 16 for each of a dictionary's values, and their validity.
const LARGE_TABLE_BYTES: usize = 18 << 20;

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
    pub async fn materialise(self, waits: bool) -> Result<(Part, Option<NewTexts<'a>>), Failure> {
        let lowered = &self.prepared.shape.lowered;
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
    ) -> Result<(Part, Option<NewTexts<'a>>), Failure> {
        let piece = &self.prepared.shape.lowered.last;
        let launch = Materialised { variant, room, waits };
        self.segment.materialise(&self.prepared.pipelines.last, piece, &self.from, launch, self.stream).await
    }

    /// Writes the rows as dense columns, and keeps them for the segment that reads them.
    pub async fn keep_rows(self) -> Result<(), Failure> {
        let rest = self.rest();
        let rows = self.rows_foreseen();
        // One row more, so that an overflow shows in the count.
        let room = rows.map_or(u64::MAX, |rows| rows.saturating_add(1));
        let (part, made) = self.launch_variant(0, room, true).await?;
        let lowered = &self.prepared.shape.lowered;
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
        let is_first = segment.extents_kept.fetch_add(1, Ordering::Relaxed) == 0;
        let leaves_some_out = self.prepared.pipelines.last.compiled().compacts;
        if is_first && leaves_some_out { segment.run.known_capacity(segment.index) } else { None }
    }
}

impl<'a> ExtentRest<'a> {
    /// Rows that pass piece `index` of those that the sink's run launches itself, as dense columns that may be spilled.
    pub(crate) async fn launch_beside(
        self,
        index: usize,
        from: &PieceInput,
    ) -> Result<(Part, Option<NewTexts<'a>>), Failure> {
        let none = || EngineError::internal("a sink launches pieces that it was lowered to");
        let piece = self.prepared.shape.lowered.beside.get(index).ok_or_else(none)?;
        let pipeline = self.prepared.pipelines.beside.get(index).ok_or_else(none)?;
        let how = Materialised { waits: true, ..Materialised::ONCE };
        self.segment.materialise(pipeline, piece, from, how, self.stream).await
    }

    /// Keeps a part, and shrinks its buffer to its rows if that is worthwhile. `waits` as when it was written.
    pub async fn keep_part(self, part: Part, made: Option<NewTexts<'_>>, waits: bool) -> Result<(), Failure> {
        let Self { segment, prepared, stream } = self;
        let run = &segment.run;
        // A part of the keys leaves most rows of an extent out; and after memory has run out, or if it may, unused room
        // is missed elsewhere.
        let is_large = part.layout.bytes > ROOMY_BYTES && prepared.pipelines.last.compiled().compacts;
        let shrinks = !segment.start.slices.is_empty() || !run.prepared.lessons.passes.is_empty() || waits && is_large;
        let part = if shrinks { run.shrink(segment.index, part, stream).await? } else { part };
        segment.keep(Kept::spillable(part, &run.context.engine)?);
        segment.keep_new_texts(made);
        Ok(())
    }
}

/// The rows that a cut has written, on their way to the next piece.
pub struct CutRows<'a> {
    pub segment: &'a SegmentRun,
    pub prepared: &'a PreparedSegment,
    /// Number of the cut in the segment.
    pub number: usize,
    /// The written rows: columns as [`Cut::columns`](crate::program::piece::Cut::columns) lists them.
    pub extent: ExtentInput,
    pub stream: &'a Stream,
    /// Waits count as feeding the device, not as waiting for a result.
    pub feeding: bool,
}

impl CutRows<'_> {
    pub fn cut(&self) -> &Cut {
        &self.prepared.shape.lowered.cuts[self.number]
    }

    pub fn pipelines(&self) -> &CutPipelines {
        &self.prepared.pipelines.cuts[self.number]
    }

    /// Piece `index` of those that the cut's stage launches itself, and its pipeline.
    ///
    /// # Errors
    /// An internal one, if the stage was not lowered to such a piece.
    pub fn beside(&self, index: usize) -> Result<(&Piece, &Pipeline), EngineError> {
        let none = || EngineError::internal("a stage launches pieces that it was lowered to");
        let piece = self.cut().beside.get(index).ok_or_else(none)?;
        Ok((piece, self.pipelines().beside.get(index).ok_or_else(none)?))
    }

    /// Writes the rows that pass piece `index` of those that the cut's stage launches itself as dense columns.
    pub async fn launch_beside(&self, index: usize, from: &PieceInput) -> Result<Part, Failure> {
        let (piece, pipeline) = self.beside(index)?;
        let (part, _) = self.segment.materialise(pipeline, piece, from, Materialised::ONCE, self.stream).await?;
        Ok(part)
    }

    /// Runs the next piece over the written rows themselves; `marks` are those of rows that have a match.
    pub async fn pass_on(self, marks: Option<LookupInput>) -> Result<(), Failure> {
        let Self { segment, prepared, number, extent, stream, feeding } = self;
        segment.through(prepared, number + 1, PieceInput { extent, expansion: None, marks }, stream, feeding).await
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

impl SegmentRun {
    /// Reads the rows of a build side, with the marks of those that have a match.
    pub async fn read_build(&self, build: usize, stream: &Stream) -> Result<(), Failure> {
        let built = self.built(build)?;
        let Some(extent) = built.rows()? else { return Ok(()) };
        let prepared = self.prepared(extent.rows.upper_bound())?;
        // Allocates clear marks if no row of the probe side was processed.
        built.marks(&self.run.context, stream)?;
        let marks = built.marked()?.map(|values| LookupInput { values, validity: None });
        self.rows_in.fetch_add(extent.rows.upper_bound(), Ordering::Relaxed);
        self.through(prepared, 0, PieceInput { extent, expansion: None, marks }, stream, false).await
    }

    /// Processes rows of the source: through all pieces into the sink.
    pub async fn process(&self, extent: ExtentInput, stream: &Stream, feeding: bool) -> Result<(), Failure> {
        let rows = extent.rows.upper_bound();
        let prepared = self.prepared(rows)?;
        loop {
            let from = PieceInput { extent: extent.clone(), expansion: None, marks: None };
            match self.through(prepared, 0, from, stream, feeding).await {
                // If rows stream out, none of this extent's rows has left yet.
                Err(Failure::Arena) if self.run.streams_out() => self.run.reached.larger_arenas()?,
                other => break other?,
            };
        }
        self.rows_in.fetch_add(rows, Ordering::Relaxed);
        Ok(())
    }

    /// Runs piece `cut` and those that follow it.
    pub(super) fn through<'a>(
        &'a self,
        prepared: &'a PreparedSegment,
        cut: usize,
        from: PieceInput,
        stream: &'a Stream,
        feeding: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match prepared.shape.lowered.cuts.get(cut) {
                Some(_) => self.through_cut(prepared, cut, from, stream, feeding).await,
                None => self.sink.rows(Extent { segment: self, prepared, from, stream, feeding }).await,
            }
        })
    }

    /// Writes the rows that pass the piece before cut `number`; the cut's stage takes them to the next piece.
    async fn through_cut(
        &self,
        prepared: &PreparedSegment,
        number: usize,
        from: PieceInput,
        stream: &Stream,
        feeding: bool,
    ) -> Result<(), Failure> {
        let cut = &prepared.shape.lowered.cuts[number];
        let pipeline = &prepared.pipelines.cuts[number].rows;
        let (part, made) = self.materialise(pipeline, &cut.rows, &from, Materialised::ONCE, stream).await?;
        drop(from);
        let part = part.arranged(&cut.columns, &cut.at);
        if part.layout.rows_upper_bound == 0 {
            return Ok(());
        }
        let rows = CutRows { segment: self, prepared, number, extent: part.as_extent()?, stream, feeding };
        self.run.prepared.program.segments[self.index].stages[cut.stage].cross(rows).await?;
        self.keep_new_texts(made);
        // The reservation of the written rows counts until the next pieces have read them.
        drop(part);
        Ok(())
    }

    /// Fails if an error was raised while rows were marked.
    pub(crate) async fn check_raised(&self, marks: &DeviceView, stream: &Stream) -> Result<(), Failure> {
        let control = [marks.view(0..CONTROL_BYTES as usize)?];
        self.run.read_back((self.index, Question::Raised), &control, no_error, stream).await.map(drop)
    }

    /// Launches the last piece over no rows.
    pub async fn no_rows(&self, prepared: &PreparedSegment, stream: &Stream) -> Result<(), Failure> {
        let nothing = DeviceBuffer::zeroed(256, stream, &self.run.context.engine.pool)?;
        let spec = &prepared.shape.lowered.last.spec;
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
                    drop(self.run.context.engine.pinned.take(HostKind::Upload, LARGE_TABLE_BYTES).await?);
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
        match self.start.looked_up.column(column) {
            Some(column) => Ok(column.clone()),
            None => {
                let nothing = DeviceBuffer::zeroed(256, stream, &self.run.context.engine.pool)?;
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
    ) -> Result<(Part, Option<NewTexts<'s>>), Failure> {
        let launch = self.launch(piece, from, stream).await?;
        let layout = pipeline.short_layout(std::slice::from_ref(&from.extent), how.room);
        let (buffer, promise) = self.run.output(&layout, how.waits, stream)?;
        let marks = match &piece.spec.sink {
            SinkSpec::MaterialiseAndMark { .. } => Some(self.marks_of_kept(stream)?),
            _ => None,
        };
        let input = Input { marks: marks.as_ref(), variant: how.variant, ..launch.input(from) };
        let made = self.run.new_texts(&piece.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(NewTexts::view), ..input };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        self.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        let made = made.filter(|_| gives_texts(&piece.spec));
        Ok((Part::new(&buffer, layout, vec![]).promised(promise), made))
    }

    /// Marks of the build side whose unmatched rows are kept.
    fn marks_of_kept(&self, stream: &Stream) -> Result<DeviceView, Failure> {
        let mut stages = self.run.prepared.program.segments[self.index].stages.iter();
        let kept = stages.find(|stage| stage.marks_build_rows()).and_then(|stage| stage.build());
        let kept = kept.ok_or_else(|| EngineError::internal("marks belong to a join"))?;
        match self.built(kept)?.marks(&self.run.context, stream)? {
            Some(marks) => Ok(marks),
            // It has no rows, so no bit is set, but the launch needs an address.
            None => Ok(DeviceBuffer::zeroed(mark_bytes(0), stream, &self.run.context.engine.pool)?.as_view().clone()),
        }
    }
}
