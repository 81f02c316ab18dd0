//! Runs of a join's sinks: a build side, whose table is made once all rows are kept, and marks among its rows.
//!
//! Waits    as [`build`](super::build) does; marks wait once at the end, for an error raised while they were set.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::pipeline::Input;
use millpond_memory::Stream;

use crate::error::failure::Failure;
use crate::operator::join::DeviceJoinExec;
use crate::operator::join::build::build;
use crate::program::contract::SinkRun;
use crate::program::extent::Extent;
use crate::program::part::Kept;
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::SegmentRun;
use crate::program::texts::NewTexts;

/// Keeps the rows of a build side, and makes its table from them.
pub(crate) struct BuildRun(pub Arc<DeviceJoinExec>);

impl SinkRun for BuildRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        extent.keep_rows().boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            let given = segment.result(parts)?;
            let built = build(&segment.run, segment.index, &self.0, given, stream).await?;
            Ok(SegmentResult::built(built))
        }
        .boxed()
    }
}

/// Marks the rows of a build side that have a match.
pub(crate) struct MarkRun {
    pub build: usize,
}

impl SinkRun for MarkRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, prepared, from, stream, .. } = extent;
            let built = segment.built(self.build)?;
            let Some(marks) = built.marks(&segment.run.context, stream)? else { return Ok(()) };
            let piece = &prepared.shape.lowered.last;
            let launch = segment.launch(piece, &from, stream).await?;
            let input = launch.input(&from);
            let made = segment.run.new_texts(&piece.spec, &input, stream)?;
            let input = Input { arena: made.as_ref().map(NewTexts::view), ..input };
            prepared.pipelines.last.mark(input, &marks, built.rows_bound(), stream)?;
            segment.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            let built = segment.built(self.build)?;
            if let Some(marks) = built.marks(&segment.run.context, stream)? {
                // An error in a condition is raised where rows are marked; no later step checks for it.
                segment.check_raised(&marks, stream).await?;
            }
            segment.result(parts)
        }
        .boxed()
    }
}
