//! A recursion while it runs: steps, one after the other, and the rows that each reads.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, RecordBatch};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};

use crate::error::EngineError;
use crate::operator::recursion::RecursionExec;
use crate::placement::for_the_next_run;

/// The rows of the previous step.
#[derive(Debug, Clone)]
pub(super) struct WorkRows(Arc<Vec<RecordBatch>>);

/// Those of each recursion around a step, by its number: of the innermost one, and of those around it.
#[derive(Debug, Default, Clone)]
struct AllWorkRows(HashMap<u64, WorkRows>);

impl WorkRows {
    /// The rows of recursion `number` in this context.
    pub fn of(number: u64, context: &TaskContext) -> Result<Self> {
        let all = context.session_config().get_extension::<AllWorkRows>();
        let own = all.and_then(|all| all.0.get(&number).cloned());
        own.ok_or_else(|| EngineError::internal("a recursive term runs in a step of its recursion").into())
    }

    /// A stream of these columns of the rows.
    pub fn stream(&self, schema: SchemaRef, columns: &[usize]) -> Result<SendableRecordBatchStream> {
        let chosen = |batch: &RecordBatch| {
            let arrays = columns.iter().map(|column| Arc::clone(batch.column(*column))).collect();
            let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options)?)
        };
        let batches = self.0.iter().map(chosen).collect::<Result<_>>()?;
        Ok(Box::pin(cooperative(MemoryStream::try_new(batches, Arc::clone(&schema), None)?)))
    }

    /// The context of a step of recursion `number` over these rows.
    fn into_context(self, number: u64, context: &TaskContext) -> Arc<TaskContext> {
        let config = context.session_config();
        let mut all = config.get_extension::<AllWorkRows>().map_or_else(AllWorkRows::default, |all| (*all).clone());
        all.0.insert(number, self);
        Arc::new(TaskContext::new(
            context.task_id(),
            context.session_id(),
            config.clone().with_extension(Arc::new(all)),
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        ))
    }
}

/// A running recursion.
pub(super) struct Steps {
    context: Arc<TaskContext>,
    number: u64,
    recursive_term: Arc<dyn ExecutionPlan>,
    /// The rows of the current step.
    step: SendableRecordBatchStream,
    /// Rows of the current step so far.
    rows: Vec<RecordBatch>,
    row_bytes: usize,
    /// Bytes of the rows that the step reads.
    read_bytes: usize,
    reservation: MemoryReservation,
    seen: Option<Seen>,
    metrics: BaselineMetrics,
}

impl Steps {
    /// A stream of the rows of all steps.
    pub fn begin(
        of: &RecursionExec,
        context: Arc<TaskContext>,
        metrics: BaselineMetrics,
    ) -> Result<SendableRecordBatchStream> {
        let schema = of.schema();
        let consumer = |name: &str| MemoryConsumer::new(name).register(context.memory_pool());
        let seen = || {
            Ok::<_, datafusion::error::DataFusionError>(Seen {
                groups: new_group_values(Arc::clone(&schema), &GroupOrdering::None)?,
                reservation: consumer("RecursionExec: rows of all steps"),
            })
        };
        let steps = Self {
            number: of.number,
            recursive_term: Arc::clone(&of.recursive_term),
            step: of.static_term.execute(0, Arc::clone(&context))?,
            rows: vec![],
            row_bytes: 0,
            read_bytes: 0,
            reservation: consumer("RecursionExec"),
            seen: of.is_distinct.then(seen).transpose()?,
            metrics,
            context,
        };
        let rows =
            stream::try_unfold(steps, |mut steps| async move { Ok(steps.next().await?.map(|batch| (batch, steps))) });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// The next rows, of this step or of a later one.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(batch) = self.step.next().await else {
                if self.rows.is_empty() {
                    return Ok(None);
                }
                self.begin_step()?;
                continue;
            };
            let batch = match &mut self.seen {
                Some(seen) => seen.new_rows(&batch?)?,
                None => batch?,
            };
            if batch.num_rows() == 0 {
                continue;
            }
            self.row_bytes += batch.get_array_memory_size();
            self.reservation.try_resize(self.row_bytes + self.read_bytes)?;
            self.rows.push(batch.clone());
            return Ok(Some(batch.record_output(&self.metrics)));
        }
    }

    fn begin_step(&mut self) -> Result<()> {
        let rows = WorkRows(Arc::new(std::mem::take(&mut self.rows)));
        (self.read_bytes, self.row_bytes) = (std::mem::take(&mut self.row_bytes), 0);
        self.reservation.try_resize(self.read_bytes)?;
        let context = rows.into_context(self.number, &self.context);
        self.step = for_the_next_run(&self.recursive_term)?.execute(0, context)?;
        Ok(())
    }
}

/// The distinct rows of all steps.
struct Seen {
    groups: Box<dyn GroupValues>,
    reservation: MemoryReservation,
}

impl Seen {
    /// The rows of `batch` that are new: of equal ones the first.
    fn new_rows(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut known = self.groups.len();
        let mut numbers = Vec::with_capacity(batch.num_rows());
        self.groups.intern(batch.columns(), &mut numbers)?;
        self.reservation.try_resize(self.groups.size())?;
        // Numbers are assigned in order of first appearance.
        let is_new = |number: &usize| {
            let is_new = *number >= known;
            known = known.max(*number + 1);
            is_new
        };
        let new: BooleanArray = numbers.iter().map(is_new).map(Some).collect();
        Ok(filter_record_batch(batch, &new)?)
    }
}
