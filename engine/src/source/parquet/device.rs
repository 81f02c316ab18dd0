//! Decodes rows of row groups on the device, as input of a pipeline.
//!
//!   pages ─► device ─► extent ─► pipeline            refused columns are decoded and sent by the feeder
//!
//! Short    of memory, the host decodes: its extents can be halved.

use datafusion::physical_plan::metrics::MetricBuilder;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows};
use millpond_memory::Stream;

use crate::metric;
use crate::parquet::{Columns, Decoding, Outcome, Refused, Spec};
use crate::program::failure::Failure;
use crate::source::extent::{Sending, Turn};

impl Sending {
    /// Decodes rows on the device into one extent, in a turn.
    ///
    /// # Errors
    /// [`Failure::Ranges`] if statistics were wrong, the device's if it is lost, the pipeline's.
    pub(super) async fn decode_up(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        turn: &Turn<'_>,
    ) -> Result<Outcome<()>, Failure> {
        match self.decode_in_turn(decoding, columns, turn.stream()).await {
            // There are no side effects yet: after them, running out of memory is reported as another failure.
            Err(failure) if failure.is_out_of_memory() => Ok(Outcome::Refused(Refused::default())),
            sent => sent,
        }
    }

    async fn decode_in_turn(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        stream: &Stream,
    ) -> Result<Outcome<()>, Failure> {
        let rows = decoding.rows as u64;
        let prepared = self.segment.ready(rows).await?;
        self.segment.check_bounds(&prepared)?;
        let specs = prepared.lowered.first().spec.columns.iter().map(|spec| {
            let low = spec.ty.range.filter(|_| spec.has_base).and_then(|range| i64::try_from(range.low).ok());
            (*spec, low.unwrap_or(0))
        });
        let specs: Vec<Spec> = specs.collect();
        let up = match decoding.up(self.run(), columns, &specs, (stream, false)).await {
            Ok(Outcome::Done(up)) => up,
            Ok(Outcome::Refused(refused)) if refused.lied => return Err(Failure::Ranges),
            Ok(Outcome::Refused(refused)) => return Ok(Outcome::Refused(refused)),
            Ok(Outcome::Unpin) => return Ok(Outcome::Unpin),
            // Pages may exceed all of pinned memory: the host decodes them in pieces.
            Err(Failure::Pinned(_)) => return Ok(Outcome::Refused(Refused::default())),
            Err(failure) => return Err(failure),
        };
        let input = ExtentInput { rows: ExtentRows::Known(rows), columns: up.inputs };
        self.process(input, (up.buffer, up.promise), stream).await?;
        MetricBuilder::new(&self.metrics).global_counter(metric::COLUMNS_ON_DEVICE).add(columns.device.len());
        Ok(Outcome::Done(()))
    }
}
