//! Labels of rows by given centers: the label of the nearest one.
//!
//! ```text
//!   centers ─► CentersSink ─ kept in the run ─┐
//!   rows ────► PredictSink, each extent: id │ label │ features …  ◄── the label is filled in
//! ```
//!
//! Memory   an extent's numbers stay allocated until its labels are read.
//! Waits    for the centers, and for the check that all numbers were finite.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond::error::EngineError;
use millpond::error::failure::Failure;
use millpond::error::reason::Reason;
use millpond::kernels::Rows;
use millpond::kernels::codegen::ir::Physical;
use millpond::kernels::learn as kernels;
use millpond::memory::Stream;
use millpond::program::contract::{Sink, SinkRun};
use millpond::program::extent::Extent;
use millpond::program::lower::SegmentLowering;
use millpond::program::part::{Kept, Part};
use millpond::program::piece::LoweredSink;
use millpond::program::segment_result::SegmentResult;
use millpond::program::segment_run::SegmentRun;

use super::lower::Written;
use super::rows::{Launches, Room, column, not_finite, numbers};

/// Maximum number of centers.
const MAX_CENTERS: u64 = 65_536;

/// Centers on the device, used for all rows of a run.
struct Centers {
    /// Column-major.
    values: Room,
    names: Room,
    clusters: u32,
    /// Set to 1 if a row has a number that is not finite.
    refused: Room,
}

/// Collects the centers.
#[derive(Debug)]
pub(super) struct CentersSink {
    pub written: Written,
}

impl Sink for CentersSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        self.written.sink(segment)
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(CentersRun { written: self.written.clone() })
    }
}

struct CentersRun {
    written: Written,
}

impl SinkRun for CentersRun {
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
            let at = Launches { run: &segment.run, stream };
            let centers = self.centers(at, segment.index, parts).await?;
            at.run.leave(segment.index, Arc::new(centers));
            segment.result(vec![])
        }
        .boxed()
    }
}

impl CentersRun {
    async fn centers(&self, at: Launches<'_>, segment: usize, parts: Vec<Kept>) -> Result<Centers, Failure> {
        let none = || Failure::trouble("there are no centres, so rows have no labels");
        if parts.is_empty() {
            return Err(none());
        }
        let mut part = at.run.together(parts, at.stream)?;
        let count = at.run.count_rows_of(segment, std::slice::from_mut(&mut part), at.stream).await?;
        match count {
            0 => return Err(none()),
            1..=MAX_CENTERS => {}
            _ => return Err(Failure::trouble(format!("{count} centres are too many to compare with"))),
        }
        let places = self.written.places();
        let mut values = vec![];
        for feature in 0..places.features {
            let bytes = count as usize * 8;
            values.extend(at.read_doubles(&column(&part, places.result + feature)?.view(0..bytes)?).await?);
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(not_finite());
        }
        let names: Vec<u8> = names(at, &part, count as usize).await?.into_iter().flat_map(i64::to_le_bytes).collect();
        Ok(Centers {
            values: at.upload(&values)?,
            names: at.upload_bytes(&names)?,
            clusters: count as u32,
            refused: at.take_zeroed(4)?,
        })
    }
}

/// Labels of the centers, from the first column.
async fn names(at: Launches<'_>, part: &Part, count: usize) -> Result<Vec<i64>, Failure> {
    let labels = part.layout.columns.first().ok_or_else(|| EngineError::internal("labels are written"))?;
    if let Some(validity) = labels.validity.clone() {
        let bits = at.read(&part.buffer.view(validity)?).await?;
        if (0..count).any(|row| bits.get(row / 8).is_none_or(|byte| byte >> (row % 8) & 1 == 0)) {
            return Err(Failure::trouble("the label of a centre is NULL"));
        }
    }
    let width = labels.physical.width() as usize;
    let bytes = at.read(&column(part, 0)?.view(0..count * width)?).await?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    let name = |bytes: &[u8]| match labels.physical {
        Physical::I64 | Physical::U64 => Ok(word(bytes) as i64),
        Physical::U32 => Ok(word(bytes) as i64),
        Physical::I32 => Ok(i64::from(word(bytes) as i32)),
        other => Err(EngineError::internal(format!("64-bit labels lie as {other:?}")).into()),
    };
    bytes.chunks_exact(width.max(1)).map(name).collect()
}

/// Writes the labels for each extent. `centers` is the segment of the centers.
#[derive(Debug)]
pub(super) struct PredictSink {
    pub written: Written,
    pub centers: usize,
}

impl Sink for PredictSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        self.written.sink(segment)
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(PredictRun { written: self.written.clone(), centers: self.centers })
    }
}

struct PredictRun {
    written: Written,
    centers: usize,
}

impl PredictRun {
    fn centers(&self, segment: &SegmentRun) -> Result<Arc<Centers>, Failure> {
        let centers = segment.run.left(self.centers);
        centers.ok_or_else(|| EngineError::internal("centres come before the rows").into())
    }
}

impl SinkRun for PredictRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, stream, .. } = extent;
            let (rest, centers) = (extent.rest(), self.centers(segment)?);
            let (part, made) = extent.materialise(true).await?;
            let rows = Rows::try_from(&part.as_extent()?.rows)?;
            let (numbers, labels) = (numbers(&part, self.written.places(), rows)?, column(&part, 1)?);
            let Centers { values, names, clusters, refused } = centers.as_ref();
            let (values, names, refused) = (values.buffer.as_view(), names.buffer.as_view(), refused.buffer.as_view());
            Launches { run: &segment.run, stream }.launch(|images, on| {
                kernels::nearest(images, &numbers, values, *clusters, Some(names), &labels, refused, on)
            })?;
            rest.keep_part(part, made, true).await
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
            let centers = self.centers(segment)?;
            let refused = Launches { run: &segment.run, stream }.read(centers.refused.buffer.as_view()).await?;
            match refused.iter().all(|byte| *byte == 0) {
                true => segment.result(parts),
                false => Err(not_finite()),
            }
        }
        .boxed()
    }
}
