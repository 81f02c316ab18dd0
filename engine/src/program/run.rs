//! One attempt at running a program: what it works with, and what it comes to know.
//!
//!   Prepared ─┬─► Run ─► segments, one after the other ─► results
//!   RunContext┘    └─ tables · texts · pace · what was seen       nothing of it outlives the attempt
//!
//! Dropped  with its stream: tasks end, buffers are freed in the order of their streams.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::UInt32Array;
use datafusion::arrow::record_batch::RecordBatch;
use millpond_kernels::codegen::ir::PipelineSpec;
use millpond_kernels::pipeline::Input;
use millpond_kernels::text;
use millpond_memory::Stream;

use crate::column::{ColumnInfo, Form};
use crate::expr::Dictionary;
use crate::program::context::RunContext;
use crate::program::contract::SourceRun;
use crate::program::extents::Shapes;
use crate::program::failure::Failure;
use crate::program::pace::Pace;
use crate::program::prepared::Prepared;
use crate::program::segments::Origin;
use crate::program::tables::{Limits, Tables};
use crate::program::texts::{self, Made, Reached};
use crate::result::results::{Output, Results};

/// What to take in smaller pieces after memory has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The groups of a segment, in so many passes.
    Groups(usize, u32),
    /// The join whose build side a segment builds, in so many parts.
    Join(usize, u32),
}

/// What a run has come to know, for the next attempt and for later runs.
#[derive(Default)]
pub struct Seen {
    /// Groups that the tables of segments had room for at last: in earlier runs of the plan, and in this one where they grew.
    pub groups: HashMap<usize, u64>,
    /// What to try next where memory has run out.
    pub split_next: Option<Split>,
}

/// One attempt at running a program.
pub struct Run {
    pub prepared: Arc<Prepared>,
    context: RunContext,
    pub sources: Vec<Box<dyn SourceRun>>,
    tables: Mutex<Tables>,
    shapes: Mutex<Shapes>,
    /// Where views lead to.
    pub reached: Reached,
    pub pace: Pace,
    pub seen: Mutex<Seen>,
    pub results: Results,
}

impl Deref for Run {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.context
    }
}

impl Run {
    pub fn new(prepared: Arc<Prepared>, context: RunContext, out: &Output) -> Result<Self, Failure> {
        let (program, lessons) = (&prepared.program, &prepared.lessons);
        let sources = program.sources.iter().map(|source| source.open()).collect::<Result<_, _>>()?;
        let most = context.options.most_dictionary_values();
        let limits = Limits { most, most_if_needed: most * texts::IF_NEEDED, needed: lessons.strings.needed.clone() };
        let tables = Tables::new(prepared.definitions.clone(), prepared.dictionaries.clone(), limits);
        let seen = Seen { groups: lessons.groups.clone(), split_next: None };
        Ok(Self {
            context,
            sources,
            tables: Mutex::new(tables),
            shapes: Mutex::default(),
            reached: Reached::new(lessons.arena_times),
            pace: Pace::default(),
            seen: Mutex::new(seen),
            results: Results::new(out.clone(), program.row_offset, program.row_limit),
            prepared,
        })
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shapes(&self) -> MutexGuard<'_, Shapes> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes over the input of a segment, one for each part of its keys.
    pub fn passes(&self, segment: usize) -> u32 {
        self.prepared.lessons.passes.get(&segment).copied().unwrap_or(1)
    }

    /// True when the rows of an extent can leave as soon as they are there.
    pub fn streams_out(&self) -> bool {
        match self.prepared.program.segments.as_slice() {
            [one] => {
                matches!(one.origin, Origin::Source(_))
                    && one.sink.passes_rows_on()
                    && self.prepared.program.probed(0).next().is_none()
            }
            _ => false,
        }
    }

    /// True for the segment that gives the result.
    pub fn is_last(&self, segment: usize) -> bool {
        segment + 1 == self.prepared.program.segments.len()
    }

    /// Room for what a launch makes; none if it makes no texts.
    pub fn made(&self, spec: &PipelineSpec, input: &Input<'_>, stream: &Stream) -> Result<Option<Made<'_>>, Failure> {
        let bytes = text::arena_bytes(spec, input, self.reached.arena_times()) as usize;
        if bytes == 0 {
            return Ok(None);
        }
        let (buffer, promise) = self.memory.take_zeroed(bytes, &self.tags.output, stream)?;
        let bytes = buffer.as_view().clone();
        self.reached.keep(&bytes, Some(promise));
        Ok(Some(Made::in_arena(&self.reached, bytes)))
    }

    /// The codes of an extent's strings, batch by batch, for the columns of `upload` that are codes.
    ///
    /// # Errors
    /// [`Failure::Texts`] where some are better off without a dictionary, as long as no row has left; later a dictionary may
    /// become larger.
    pub fn interned(&self, upload: usize, batches: &[RecordBatch]) -> Result<Vec<Vec<UInt32Array>>, Failure> {
        let (columns, used) = (&self.prepared.sources[upload].columns, &self.prepared.used[upload]);
        loop {
            let mut texts = Vec::new();
            let mut codes = Vec::with_capacity(columns.len());
            let mut tables = self.tables();
            for (index, column) in columns.iter().enumerate() {
                let mut arrays = Vec::new();
                if let (Form::Codes(_, id), true) = (&column.form, used[index]) {
                    for batch in batches {
                        match tables.intern(*id, batch.column(index)) {
                            Ok(codes) => arrays.push(codes),
                            Err(Failure::Texts(columns)) => {
                                texts.extend(columns);
                                break;
                            }
                            Err(failure) => return Err(failure),
                        }
                        if tables.nearly_all_different(*id) {
                            texts.push((upload, index));
                            break;
                        }
                    }
                }
                codes.push(arrays);
            }
            if texts.is_empty() {
                return Ok(codes);
            }
            if self.results.give_up(&texts) {
                return Err(Failure::Texts(texts));
            }
            tables.need(texts);
        }
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
