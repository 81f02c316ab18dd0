//! One attempt at running a program: its inputs and its state.
//!
//!   Prepared ─┬─► Run ─► segments, one after the other ─► results
//!   RunContext┘    └─ tables on the device · texts · lessons               no state outlives the attempt
//!
//! Dropped  with its stream: tasks end, buffers are freed in the order of their streams.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::physical_plan::displayable;
use millpond_kernels::codegen::ir::{Literal, PipelineSpec};
use millpond_kernels::pipeline::{Input, LookupInput, Pipeline};
use millpond_kernels::text;
use millpond_memory::Stream;
use tokio::sync::RwLock;

use crate::column::{ColumnInfo, DictionaryId, Form};
use crate::device::workers::off_workers;
use crate::error::failure::Failure;
use crate::expr::{Dictionary, Lookup};
use crate::program::answers::Questions;
use crate::program::context::RunContext;
use crate::program::contract::SourceRun;
use crate::program::kept_ptx::{self, Generated};
use crate::program::movers::Mover;
use crate::program::piece::Piece;
use crate::program::prepared::{Lessons, Prepared};
use crate::program::results::{Output, Results};
use crate::program::tables::{HostTable, RunTables};
use crate::program::texts::{self, NewTexts, Reached};

/// One attempt at running a program.
pub struct Run {
    pub prepared: Arc<Prepared>,
    pub context: Arc<RunContext>,
    pub sources: Vec<Box<dyn SourceRun>>,
    tables: Mutex<RunTables>,
    /// Buffers that views point to.
    pub reached: Reached,
    /// Shared by feeders with an extent in flight; exclusive for a feeder that ran out of memory.
    pub gate: RwLock<()>,
    /// Lessons from before the attempt, and those learnt since.
    lessons: Mutex<Lessons>,
    pub results: Results,
}

impl Run {
    /// An attempt at the program that was prepared over these sources.
    pub fn new(
        prepared: Arc<Prepared>,
        sources: Vec<Box<dyn SourceRun>>,
        context: &Arc<RunContext>,
        out: &Output,
    ) -> Self {
        let (program, lessons) = (&prepared.program, &prepared.lessons);
        Self {
            context: Arc::clone(context),
            sources,
            tables: Mutex::default(),
            reached: Reached::new(lessons.arena_times),
            gate: RwLock::default(),
            lessons: Mutex::new(lessons.clone()),
            results: Results::new(
                out.clone(),
                program.row_offset,
                program.row_limit,
                Questions::new(prepared.answers_hold()),
            ),
            prepared,
        }
    }

    /// The tables of this run. Lock order: run tables before program tables.
    fn tables(&self) -> MutexGuard<'_, RunTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lessons so far.
    pub fn lessons(&self) -> MutexGuard<'_, Lessons> {
        self.lessons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum rows of an extent: fewer after memory has run out.
    pub fn extent_rows(&self) -> usize {
        self.lessons().extent_rows.unwrap_or(usize::MAX)
    }

    /// Limits later extents to `rows` rows.
    pub fn smaller_extents(&self, rows: usize) {
        let mut lessons = self.lessons();
        lessons.extent_rows = Some(rows.min(lessons.extent_rows.unwrap_or(usize::MAX)));
    }

    /// The parameters of a launch.
    ///
    /// # Errors
    /// A subquery has no value yet.
    pub fn literals(&self, piece: &Piece) -> Result<Vec<Literal>, Failure> {
        let literals = piece.parameters.iter().map(|parameter| parameter.literal(&self.context.subqueries));
        Ok(literals.collect::<datafusion::error::Result<_>>()?)
    }

    /// Maximum values of a dictionary that expressions require.
    pub(crate) fn most_values_if_needed(&self) -> usize {
        self.context.options.most_dictionary_values() * texts::IF_NEEDED
    }

    /// A launch's table over the current values of a dictionary. While values are evaluated, here or by another thread,
    /// the runtime's other tasks continue elsewhere.
    pub fn lookup(&self, lookup: &Lookup, stream: &Stream) -> Result<LookupInput, Failure> {
        let is_there = self.prepared.tables_now().is_some_and(|tables| tables.is_evaluated(lookup));
        match is_there {
            true => self.lookup_here(lookup, stream),
            false => off_workers(|| self.lookup_here(lookup, stream)),
        }
    }

    fn lookup_here(&self, lookup: &Lookup, stream: &Stream) -> Result<LookupInput, Failure> {
        let (mut own, most) = (self.tables(), self.most_values_if_needed());
        let kept = |(source, column): (usize, usize), table: &HostTable<'_>| match self.sources.get(source) {
            Some(source) => source.lookup(column, table, &self.context, stream),
            None => Ok(None),
        };
        own.lookup(lookup, &mut self.prepared.tables(), most, (&self.context.engine, stream), &kept)
    }

    /// All values of a dictionary.
    pub fn values(&self, id: DictionaryId) -> datafusion::error::Result<ArrayRef> {
        self.tables().values(id, &self.prepared.tables())
    }

    /// True if a state holds ranks that have changed since a launch read them.
    pub fn ranks_moved(&self) -> bool {
        self.tables().ranks_moved() && !self.context.options.debug_forget_ranks
    }

    /// The pipeline that moves rows this way; its spec is made on the first request.
    pub fn mover(
        &self,
        mover: Mover,
        spec: impl FnOnce() -> Result<PipelineSpec, Failure>,
    ) -> Result<Arc<Pipeline>, Failure> {
        self.prepared.movers().pipeline(mover, &self.context, spec)
    }

    /// Number of passes over a segment's input, one for each part of its keys.
    pub fn passes(&self, segment: usize) -> u32 {
        self.prepared.lessons.passes.get(&segment).copied().unwrap_or(1)
    }

    /// True if the rows of an extent can leave as soon as they are produced.
    pub fn streams_out(&self) -> bool {
        self.prepared.program.streams_out()
    }

    /// True if some source provides whole columns.
    pub fn reads_whole_columns(&self) -> bool {
        self.sources.iter().any(|source| source.texts().is_some())
    }

    /// True if some source is read during the run: there are scans that may leave rows out.
    pub fn feeds(&self) -> bool {
        self.sources.iter().any(|source| source.texts().is_none())
    }

    /// True for the segment that produces the result.
    pub fn is_last(&self, segment: usize) -> bool {
        segment + 1 == self.prepared.program.segments.len()
    }

    /// Arena for the texts of a launch; `None` if it makes none.
    pub fn new_texts(
        &self,
        spec: &PipelineSpec,
        input: &Input<'_>,
        stream: &Stream,
    ) -> Result<Option<NewTexts<'_>>, Failure> {
        let bytes = text::arena_bytes(spec, input, self.reached.arena_times()) as usize;
        if bytes == 0 {
            return Ok(None);
        }
        let (buffer, promise) = self.context.memory.take_zeroed(bytes, &self.context.tags.output, stream)?;
        let bytes = buffer.as_view().clone();
        self.reached.keep(&bytes, Some(promise));
        Ok(Some(NewTexts::in_arena(&self.reached, bytes)))
    }

    /// Writes the PTX of pipelines where `millpond.debug_keep_ptx` names a folder.
    pub fn keep_ptx<'p>(&self, of: Generated, pipelines: impl IntoIterator<Item = &'p Arc<Pipeline>>) {
        let folder = &self.context.options.debug_keep_ptx;
        if folder.is_empty() {
            return;
        }
        let program = &self.prepared.program;
        let plan = program.works.first().map(|work| displayable(work.node.as_ref()).indent(false).to_string());
        let title = match of {
            Generated::Segment(index) => program.segment_name(index),
            Generated::JoinTable => "table of a join's build side".to_string(),
            Generated::Unnest => "values of unnested rows".to_string(),
        };
        for pipeline in pipelines {
            let (plan, text) = (plan.as_deref().unwrap_or_default(), &pipeline.compiled().text);
            if let Err(error) = kept_ptx::write(Path::new(folder), of, &title, plan, text) {
                tracing::warn!("PTX is not kept in '{folder}': {error}");
                return;
            }
        }
    }

    /// Bounds the codes of the columns whose dictionaries are complete.
    pub fn bounded(&self, columns: &mut [ColumnInfo]) {
        let tables = self.prepared.tables();
        for column in columns {
            if let Form::Codes(ty, id) = column.form
                && matches!(tables.definitions.get(id), Some(Dictionary::Source { .. } | Dictionary::Constants { .. }))
            {
                let bound = tables.len(id).max(1).next_power_of_two();
                if bound <= crate::program::segment_run::MOST_BOUNDED_CODES {
                    column.form = Form::Codes(ty.within(0, bound as i128 - 1), id);
                }
            }
        }
    }
}
