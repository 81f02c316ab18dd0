//! Feeders: each of DataFusion's partitions is converted to extents in its own task.
//!
//!   partition 0 ─► feeder: decode ─ intern ─ collect ──► extent: narrow into pinned memory ─ copy ─ launch
//!   partition 1 ─► feeder: …                    │        up to `millpond.partitions` at once, each on its own stream
//!                                               └─ at the end: its last rows ─► rest of all feeders ─► extents
//!
//! Order    of rows is preserved within a partition, but not between partitions.
//! Threads  feeders are independent, except for shared dictionaries, which they lock to add new values. All partitions
//!          are polled, regardless of the others: a partitioned join below may wait for all of them. If there are few
//!          partitions for the threads, another task decodes ahead of each feeder.
//! Memory   decoded rows of an extent per feeder, and its staging while it is sent; extents are smaller with more than
//!          four feeders.
//! Waits    for a turn to send, holding only rows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::UInt32Array;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use millpond_memory::recorder;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::device::host_memory::HostHold;
use crate::error::failure::Failure;
use crate::error::panics;
use crate::parquet::{Codes, Undecoded};
use crate::profile::{self, step};
use crate::program::run::Run;
use crate::program::segment_run::SegmentRun;
use crate::source::codes;
use crate::source::extent::Sending;
use crate::source::upload::rows::Rows;

/// Number of batches decoded ahead of their feeder, if another task decodes.
const BATCHES_AHEAD: usize = 2;

/// Feeds all rows of `input`, the plan below upload `upload`, to a segment.
pub(in crate::source) async fn feed(
    segment: &Arc<SegmentRun>,
    upload: usize,
    input: &Arc<dyn ExecutionPlan>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<(), Failure> {
    let partitions = input.output_partitioning().partition_count();
    let feeding = Arc::new(Feeding::new(segment, upload, partitions, metrics));
    // Two tasks per partition would only alternate if all threads are already busy.
    let ahead = partitions * 2 <= Handle::current().metrics().num_workers();
    let input = profile::timed_reads(input);
    let mut tasks = JoinSet::new();
    for partition in 0..partitions {
        let (feeding, input) = (Arc::clone(&feeding), Arc::clone(&input));
        let feeder = async move { feeding.feed(&input, partition, ahead).await };
        tasks.spawn(profile::beside("feeder", if ahead { step::ROWS } else { step::READ }, feeder));
    }
    // If a feeder fails or the run is dropped, dropping the set ends the others.
    while let Some(joined) = tasks.join_next().await {
        joined.map_err(|error| Failure::from(panics::task_ended(error)))??;
    }
    Ok(())
}

/// State shared by the feeders of one upload.
struct Feeding {
    sending: Sending,
    rest: Mutex<Rest>,
}

/// Last rows of completed feeders: each too few for an extent.
struct Rest {
    collected: Collected,
    /// Number of active feeders.
    feeders: usize,
}

impl Feeding {
    fn new(segment: &Arc<SegmentRun>, upload: usize, feeders: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let rest = Rest { collected: Collected::new(&segment.run), feeders };
        Self { sending: Sending::new(segment, upload, feeders, metrics), rest: Mutex::new(rest) }
    }

    fn run(&self) -> &Run {
        self.sending.run()
    }

    /// Uploads all rows of a partition except the last ones.
    async fn feed(&self, input: &Arc<dyn ExecutionPlan>, partition: usize, ahead: bool) -> Result<(), Failure> {
        let rows_metric = MetricBuilder::new(&self.sending.metrics).global_counter("output_rows");
        let mut batches = match ahead {
            true => self.decoded_ahead(input, partition)?,
            false => self.open(input, partition)?,
        };
        let path = if ahead { None } else { recorder::current() };
        let mut codes = codes::codes(self.run(), self.sending.source);
        let mut collected = Collected::new(self.run());
        while let Some(batch) = profile::decoded(&path, batches.next()).await {
            let batch = batch.map_err(Failure::Input)?;
            rows_metric.add(batch.num_rows());
            match profile::timed(step::INTERN, || self.intern(&mut codes, &batch)) {
                Ok(coded) => self.collect(Rows::of(batch, coded), &mut collected).await?,
                Err(failure) => {
                    self.sending.extents(collected.take()).await?;
                    collected.free();
                    self.sending.instead(failure, &[batch]).await?;
                }
            }
            if self.sending.segment.has_enough() {
                return Ok(());
            }
        }
        self.end(collected).await
    }

    fn open(&self, input: &Arc<dyn ExecutionPlan>, partition: usize) -> Result<SendableRecordBatchStream, Failure> {
        profile::timed(step::OPEN, || input.execute(partition, Arc::clone(&self.run().context.task)))
            .map_err(Failure::Input)
    }

    /// Batches of a partition, decoded by a separate task. Dropping the stream ends it.
    fn decoded_ahead(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
    ) -> Result<SendableRecordBatchStream, Failure> {
        let mut stream = self.open(input, partition)?;
        let mut reader = RecordBatchReceiverStream::builder(input.schema(), BATCHES_AHEAD);
        let batches = reader.tx();
        let reading = async move {
            let path = recorder::current();
            while let Some(batch) = profile::decoded(&path, stream.next()).await {
                let failed = batch.is_err();
                let _step = path.as_ref().map(|path| path.step(step::ROOM));
                if batches.send(batch).await.is_err() || failed {
                    break;
                }
            }
            Ok(())
        };
        reader.spawn(profile::beside("reader", step::READ, reading));
        Ok(reader.build())
    }

    /// Collects rows, and uploads complete extents.
    async fn collect(&self, mut rows: Rows, collected: &mut Collected) -> Result<(), Failure> {
        while rows.len() > 0 {
            let room = self.sending.most_rows().saturating_sub(collected.rows.len());
            let taken = rows.len().min(room);
            if taken == 0 || collected.bytes >= self.sending.most_bytes || !collected.add(rows.slice(0, taken))? {
                self.sending.extents(collected.take()).await?;
                collected.free();
                continue;
            }
            rows = rows.slice(taken, rows.len() - taken);
        }
        Ok(())
    }

    /// Adds a feeder's last rows to those of the others. A feeder that finds enough rows there uploads an extent; the
    /// last feeder uploads all of them.
    async fn end(&self, mut last: Collected) -> Result<(), Failure> {
        let mut is_last = None;
        loop {
            {
                let mut rest = self.rest();
                if is_last.is_none() {
                    rest.feeders -= 1;
                    rest.collected.take_from(&mut last);
                }
                let is_last = *is_last.get_or_insert(rest.feeders == 0);
                let most = self.sending.most_rows();
                if rest.collected.rows.len() == 0 || !is_last && rest.collected.rows.len() < most {
                    return Ok(());
                }
                last.split_from(&mut rest.collected, most);
            }
            if self.sending.segment.has_enough() {
                return Ok(());
            }
            self.sending.extents(last.take()).await?;
            last.free();
        }
    }

    /// Codes of a batch's strings, by column.
    fn intern(&self, codes: &mut Codes, batch: &RecordBatch) -> Result<Vec<Option<UInt32Array>>, Failure> {
        let give_up = |columns: &[usize]| codes::give_up(self.run(), self.sending.source, columns);
        let coded = codes.intern(give_up, |index, column| Ok(column.codes.codes(batch.column(index), column.most)?));
        coded.map_err(Undecoded::into_failure)
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows collected for an extent, with their reservation in the session's memory pool.
struct Collected {
    rows: Rows,
    bytes: usize,
    held: HostHold,
}

impl Collected {
    fn new(run: &Run) -> Self {
        Self { rows: Rows::default(), bytes: 0, held: run.context.host_memory("extents") }
    }

    /// Adds rows; false if the session's pool cannot hold them in addition to the collected ones. The first rows
    /// already exist and are uploaded next, so they are counted even beyond the limit, unless they exceed the whole
    /// pool.
    fn add(&mut self, rows: Rows) -> Result<bool, Failure> {
        let bytes = rows.bytes();
        if !self.held.try_grow(bytes) {
            if self.rows.len() > 0 {
                return Ok(false);
            }
            if !self.held.could_hold(bytes) {
                return Err(Failure::from(self.held.refused()));
            }
            self.held.grow(bytes);
        }
        self.bytes += bytes;
        self.rows.append(rows);
        Ok(true)
    }

    /// Takes the rows; their reservation remains until `free`.
    fn take(&mut self) -> Rows {
        self.bytes = 0;
        std::mem::take(&mut self.rows)
    }

    fn free(&mut self) {
        self.held.free();
    }

    /// Takes all rows of `other`, with their reservation.
    fn take_from(&mut self, other: &mut Self) {
        let bytes = other.bytes;
        self.rows.append(other.take());
        other.free();
        self.held.grow(bytes);
        self.bytes += bytes;
    }

    /// Takes the first rows of `other`; must be empty before.
    fn split_from(&mut self, other: &mut Self, rows: usize) {
        let (first, second) = other.take().halves(rows);
        other.free();
        for (collected, rows) in [(self, first), (other, second)] {
            collected.bytes = rows.bytes();
            collected.held.grow(collected.bytes);
            collected.rows = rows;
        }
    }
}
