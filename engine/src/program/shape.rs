//! A segment's lowering with the facts that it assumed, and its compiled pipelines.
//!
//! ```text
//!   facts ─► Program::lower ─► Shape ─ compile ─► Pipelines        kept with the plan: see `Prepared::shape_for`
//! ```
//!
//! Stale    never: a shape serves a segment only if all facts are equal. A plan's program, lessons and output columns
//!          are fixed before.

use std::sync::{Arc, OnceLock};

use millpond_kernels::KernelError;
use millpond_kernels::pipeline::Pipeline;

use crate::column::ColumnInfo;
use crate::program::build_side::{BuildForm, KeySlice};
use crate::program::context::RunContext;
use crate::program::piece::{LoweredSegment, Piece};
use crate::program::segment_result::Details;

/// Facts that the lowering of a segment depends on.
#[derive(Clone)]
pub struct SegmentFacts {
    /// Columns of the source.
    pub columns: Vec<ColumnInfo>,
    /// Approximate row count.
    pub rows_hint: Option<u64>,
    /// Details from the sink of the preceding segment.
    pub produced: Option<Details>,
    /// For rows of a build side: the required output columns.
    pub like: Option<Vec<ColumnInfo>>,
    /// Forms of the probed build sides, ordered by segment.
    pub builds: Vec<BuildForm>,
    /// Parts of the keys of joins, by the building segment.
    pub slices: Vec<(usize, KeySlice)>,
    /// Number of passes over the source, one for each part of the table's keys.
    pub passes: u32,
}

impl PartialEq for SegmentFacts {
    fn eq(&self, other: &Self) -> bool {
        let produced = match (&self.produced, &other.produced) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        produced
            && self.rows_hint == other.rows_hint
            && self.columns == other.columns
            && self.like == other.like
            && self.builds == other.builds
            && self.slices == other.slices
            && self.passes == other.passes
    }
}

/// A lowered segment, and its pipelines once they are compiled.
pub struct Shape {
    pub facts: SegmentFacts,
    pub lowered: LoweredSegment,
    /// Dictionaries whose codes must stay below a bound, by column.
    pub bounds: Vec<(usize, usize)>,
    compiled: OnceLock<Arc<Pipelines>>,
}

/// Compiled pipelines of a segment.
pub struct Pipelines {
    /// Of each cut.
    pub cuts: Vec<CutPipelines>,
    /// The pipeline with the sink.
    pub last: Arc<Pipeline>,
    /// Pipelines that the sink's run launches itself.
    pub beside: Vec<Arc<Pipeline>>,
}

/// Compiled pipelines of a cut.
pub struct CutPipelines {
    pub rows: Arc<Pipeline>,
    /// Pipelines that the cut's stage launches itself.
    pub beside: Vec<Arc<Pipeline>>,
}

impl Shape {
    pub fn new(facts: SegmentFacts, lowered: LoweredSegment, bounds: Vec<(usize, usize)>) -> Self {
        Self { facts, lowered, bounds, compiled: OnceLock::new() }
    }

    /// True if it covers all keys at once, its own and those of its builds.
    pub fn is_whole(&self) -> bool {
        self.facts.slices.is_empty() && self.facts.passes == 1
    }

    /// The pipelines, if they are compiled.
    pub fn compiled(&self) -> Option<&Arc<Pipelines>> {
        self.compiled.get()
    }

    /// The pipelines, compiled on the first call; counted as used by the run of `context`.
    ///
    /// # Errors
    /// The kernel that cannot be assembled.
    pub fn compile(&self, context: &RunContext) -> Result<&Arc<Pipelines>, KernelError> {
        if let Some(compiled) = self.compiled() {
            compiled.all().for_each(|pipeline| context.tally.note(pipeline));
            return Ok(compiled);
        }
        let pipelines = |pieces: &[Piece]| {
            pieces.iter().map(|piece| context.pipeline(&piece.spec)).collect::<Result<Vec<_>, KernelError>>()
        };
        let mut cuts = Vec::with_capacity(self.lowered.cuts.len());
        for cut in &self.lowered.cuts {
            cuts.push(CutPipelines { rows: context.pipeline(&cut.rows.spec)?, beside: pipelines(&cut.beside)? });
        }
        let last = context.pipeline(&self.lowered.last.spec)?;
        let beside = pipelines(&self.lowered.beside)?;
        Ok(self.compiled.get_or_init(|| Arc::new(Pipelines { cuts, last, beside })))
    }
}

impl Pipelines {
    pub fn all(&self) -> impl Iterator<Item = &Arc<Pipeline>> {
        let of_cuts = self.cuts.iter().flat_map(|cut| std::iter::once(&cut.rows).chain(&cut.beside));
        of_cuts.chain([&self.last]).chain(&self.beside)
    }
}
