//! The sink that writes dense columns: a result, or the input of another segment.
//!
//!   last of a program that reads one upload   each extent's rows leave as they are produced
//!   last, and a few rows suffice              rows are downloaded at once, so that the run can stop early
//!   otherwise                                 parts wait for the segment that reads them
//!
//! Waits    for rows that leave; if most of a large part may be empty, for its row count.

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::program::contract::{Sink, SinkRun};
use crate::program::extent::Extent;
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;
use crate::program::segment_run::SegmentRun;

/// Sink that writes dense columns.
#[derive(Debug, Default)]
pub struct Materialise(());

impl Sink for Materialise {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, outputs) = segment.outputs()?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(MaterialiseRun)
    }

    fn passes_rows_on(&self) -> bool {
        true
    }
}

/// Keeps the rows of each extent for the segment that reads them.
pub struct KeepRows;

impl SinkRun for KeepRows {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        extent.keep_rows().boxed()
    }
}

struct MaterialiseRun;

impl SinkRun for MaterialiseRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, stream, feeding, .. } = extent;
            let run = &segment.run;
            let leaves = run.is_last(segment.index) && (run.streams_out() || run.prepared.program.row_limit.is_some());
            if !leaves {
                return extent.keep_rows().await;
            }
            let (part, made) = extent.materialise(false).await?;
            let batch = run.download(&part, stream, feeding).await?;
            drop((part, made));
            match run.streams_out() {
                true => run.results.send(batch).await?,
                false => run.results.keep(batch),
            }
            Ok(())
        }
        .boxed()
    }

    fn rows_sought(&self, segment: &SegmentRun) -> u64 {
        if segment.run.is_last(segment.index) { segment.run.results.wanted() as u64 } else { u64::MAX }
    }
}
