//! Rows of row groups that the device decodes, on their way into a pipeline.
//!
//!   pages ─► device ─► extent ─► pipeline            what the device does not take the feeder decodes and sends
//!
//! Short    of memory, the host decodes: its extents can be halved.

use datafusion::physical_plan::metrics::MetricBuilder;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows};
use millpond_memory::Stream;

use crate::metric;
use crate::parquet::{Columns, Decoding, Refused, Spec, Up};
use crate::program::failure::Failure;
use crate::source::extent::{Sending, Turn};

/// How it went.
pub(super) enum Sent {
    Yes,
    /// The host has to decode some of their columns.
    No(Refused),
    /// Their chunks are to leave pinned memory.
    Unpin,
}

impl Sending {
    /// Sends rows up as one extent, in a turn.
    ///
    /// # Errors
    /// [`Failure::Ranges`] where statistics were wrong, the device's where it is lost, the pipeline's.
    pub(super) async fn decode_up(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        turn: &Turn<'_>,
    ) -> Result<Sent, Failure> {
        match self.decode_in_turn(decoding, columns, turn.stream()).await {
            // Nothing has come of it: what runs out of memory once there are effects says so.
            Err(failure) if failure.is_out_of_memory() => Ok(Sent::No(Refused::default())),
            sent => sent,
        }
    }

    async fn decode_in_turn(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        stream: &Stream,
    ) -> Result<Sent, Failure> {
        let rows = decoding.rows as u64;
        let prepared = self.segment.ready(rows).await?;
        self.segment.check_bounds(&prepared)?;
        let specs = prepared.lowered.first().spec.columns.iter().map(|spec| {
            let low = spec.ty.range.filter(|_| spec.has_base).and_then(|range| i64::try_from(range.low).ok());
            (*spec, low.unwrap_or(0))
        });
        let specs: Vec<Spec> = specs.collect();
        let up = match decoding.up(self.run(), columns, &specs, (stream, false)).await {
            Ok(Up::Yes(up)) => up,
            Ok(Up::No(refused)) if refused.lied => return Err(Failure::Ranges),
            Ok(Up::No(refused)) => return Ok(Sent::No(refused)),
            Ok(Up::Unpin) => return Ok(Sent::Unpin),
            // Pages may be larger than all of pinned memory: the host decodes them piece by piece.
            Err(Failure::Pinned(_)) => return Ok(Sent::No(Refused::default())),
            Err(failure) => return Err(failure),
        };
        let input = ExtentInput { rows: ExtentRows::Known(rows), columns: up.inputs };
        self.process(input, (up.buffer, up.promise), stream).await?;
        MetricBuilder::new(&self.metrics).global_counter(metric::COLUMNS_ON_DEVICE).add(columns.device.len());
        Ok(Sent::Yes)
    }
}
