//! The table functions on the CPU: one operator, parameterized by its [`Function`].
//!
//! ```text
//!   SessionizeExec: [user@0, ts@1], gap=3600
//!     SortExec: user, ts          ◄── required: rows of a key in one partition, in order; added by DataFusion
//!       RepartitionExec: Hash(user)
//!         anything, on the CPU or below a DownloadExec
//! ```
//!
//! Order    sessions keep their input's order. Pairs and earlier rows are ordered by their keys; labels by id.
//! Memory   sessions: one batch. Pairs: one group. Earlier rows: n rows. Machine learning: its numbers, or the hash
//!          buckets. All memory is reserved in the session's memory pool.
//! Threads  one task per partition; machine learning computes on rayon's threads, and its result is independent of
//!          their number.
//! Cancel   dropping the stream stops it between batches, and between iterations of machine learning.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use millpond::datafusion::arrow::compute::SortOptions;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::memory_pool::MemoryConsumer;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::physical_expr::expressions::Column;
use millpond::datafusion::physical_expr::{
    EquivalenceProperties, LexRequirement, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
    PhysicalSortRequirement,
};
use millpond::datafusion::physical_plan::coop::make_cooperative;
use millpond::datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use millpond::datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    Partitioning, PlanProperties,
};

use super::before::LastBefore;
use super::ml::tables;
use super::pairs::Pairs;
use super::sessions::Sessions;
use super::{Function, KMeansOutput};

/// An operator over sorted rows.
pub(crate) trait Scan: Send {
    /// Consumes the next rows. Only called after [`Self::next`] has returned `None`.
    fn feed(&mut self, batch: &RecordBatch) -> Result<()>;
    /// Marks the end of the input.
    fn finish(&mut self) -> Result<()>;
    /// The next rows of the result, at most one batch; `None` requests more input.
    fn next(&mut self) -> Result<Option<RecordBatch>>;
    /// Bytes held between two calls of [`Self::feed`].
    fn held_bytes(&self) -> usize;
}

/// A table function, executed on the CPU.
#[derive(Debug, Clone)]
pub struct RelationExec {
    function: Function,
    columns: Vec<usize>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RelationExec {
    /// Creates the operator over `inputs`; `columns` are positions in them, in the order of [`Function`].
    ///
    /// # Errors
    /// If a position is outside its input, or the number of inputs does not match the function.
    pub fn try_new(
        function: Function,
        columns: Vec<usize>,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        schema: SchemaRef,
    ) -> Result<Self> {
        let outside = |(index, column): (usize, &usize)| {
            inputs.get(function.input_of(index)).is_none_or(|input| *column >= input.schema().fields().len())
        };
        if inputs.len() != function.num_inputs() || columns.is_empty() || columns.iter().enumerate().any(outside) {
            let name = function.exec_name();
            return Err(DataFusionError::Internal(format!("{name} got {} inputs, columns {columns:?}", inputs.len())));
        }
        let properties = Arc::new(Self::properties_of(&function, &columns, &inputs, &schema));
        Ok(Self { function, columns, inputs, schema, properties, metrics: ExecutionPlanMetricsSet::new() })
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Position of each column in its input, in the order of [`Function`].
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    fn properties_of(
        function: &Function,
        columns: &[usize],
        inputs: &[Arc<dyn ExecutionPlan>],
        schema: &SchemaRef,
    ) -> PlanProperties {
        let input = &inputs[0];
        let partitions = input.output_partitioning().partition_count();
        let ascending = |index: usize| {
            let column = Arc::new(Column::new(schema.field(index).name(), index));
            PhysicalSortExpr::new(column, SortOptions { descending: false, nulls_first: function.nulls_first() })
        };
        let (orderings, partitioning): (Vec<Vec<PhysicalSortExpr>>, Partitioning) = match function {
            Function::Sessionize { keys, .. } => {
                let kept =
                    input.equivalence_properties().oeq_class().iter().map(|order| order.iter().cloned().collect());
                let session = schema.fields().len() - 1;
                let by_session = columns[..*keys].iter().chain([&session]).map(|index| ascending(*index)).collect();
                (kept.chain([by_session]).collect(), input.output_partitioning().clone())
            }
            Function::BasketPairs => {
                let all = (0..schema.fields().len()).map(ascending).collect();
                (vec![all], Partitioning::UnknownPartitioning(partitions))
            }
            Function::LastBefore { .. } => (vec![], Partitioning::UnknownPartitioning(partitions)),
            Function::Logistic { output: super::LogisticOutput::Predictions, .. }
            | Function::KMeans { output: KMeansOutput::Labels, .. }
            | Function::KMeans { output: KMeansOutput::Centers, .. }
            | Function::NaiveBayes { .. } => (vec![vec![ascending(0)]], Partitioning::UnknownPartitioning(1)),
            Function::Logistic { .. } | Function::KMeansPredict { .. } => {
                (vec![], Partitioning::UnknownPartitioning(1))
            }
        };
        let equivalences = EquivalenceProperties::new_with_orderings(Arc::clone(schema), orderings);
        let streaming =
            matches!(function, Function::Sessionize { .. } | Function::BasketPairs | Function::LastBefore { .. });
        let emission = if streaming { EmissionType::Incremental } else { EmissionType::Final };
        let bounded = inputs.iter().all(|input| !input.boundedness().is_unbounded());
        let boundedness = match (bounded, inputs[0].boundedness()) {
            (true, _) => Boundedness::Bounded,
            (false, unbounded) => unbounded,
        };
        PlanProperties::new(equivalences, partitioning, emission, boundedness)
            .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn column(&self, position: usize) -> Arc<dyn PhysicalExpr> {
        let (input, index) = (&self.inputs[self.function.input_of(position)], self.columns[position]);
        Arc::new(Column::new(input.schema().field(index).name(), index))
    }

    fn scan(&self, batch_rows: usize) -> Result<Option<Box<dyn Scan>>> {
        let (input, schema, columns) = (self.inputs[0].schema(), Arc::clone(&self.schema), &self.columns);
        Ok(match &self.function {
            Function::Sessionize { gap, .. } => Some(Box::new(Sessions::try_new(&input, columns, *gap, schema)?)),
            Function::BasketPairs => Some(Box::new(Pairs::try_new(&input, columns, batch_rows, schema)?)),
            Function::LastBefore { keys, n, within } => {
                Some(Box::new(LastBefore::try_new(&input, columns, *keys, *n, *within, batch_rows, schema)?))
            }
            Function::KMeans { .. }
            | Function::KMeansPredict { .. }
            | Function::Logistic { .. }
            | Function::NaiveBayes { .. } => None,
        })
    }
}

impl DisplayAs for RelationExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns: Vec<String> = (0..self.columns.len()).map(|position| self.column(position).to_string()).collect();
        let constants = self.function.to_string();
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "{}: [{}]", self.function.exec_name(), columns.join(", "))?;
                if constants.is_empty() { Ok(()) } else { write!(f, ", {constants}") }
            }
            DisplayFormatType::TreeRender => {
                write!(f, "columns=[{}]", columns.join(", "))?;
                if constants.is_empty() { Ok(()) } else { write!(f, "\n{constants}") }
            }
        }
    }
}

impl ExecutionPlan for RelationExec {
    fn name(&self) -> &str {
        self.function.exec_name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let keys: Vec<_> =
            (0..self.function.num_keys(self.columns.len())).map(|position| self.column(position)).collect();
        let one = match keys.is_empty() {
            true => Distribution::SinglePartition,
            false => Distribution::KeyPartitioned(keys),
        };
        InputDistributionRequirements::new(vec![one; self.inputs.len()])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let order = |input: usize| {
            let sorted = self.function.sorted_by(input, self.columns.len());
            let options = SortOptions { descending: false, nulls_first: self.function.nulls_first() };
            let keys = sorted.map(|position| PhysicalSortRequirement::new(self.column(position), Some(options)));
            LexRequirement::new(keys).map(OrderingRequirements::new)
        };
        (0..self.inputs.len()).map(order).collect()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![matches!(self.function, Function::Sessionize { .. }); self.inputs.len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for position in 0..self.columns.len() {
            if f(&self.column(position))? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (function, columns) = (self.function.clone(), self.columns.clone());
        Ok(Arc::new(Self::try_new(function, columns, children, Arc::clone(&self.schema))?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let reservation = MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool());
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let batch_rows = context.session_config().batch_size().max(1);
        let batches: BoxStream<'static, Result<RecordBatch>> = match self.scan(batch_rows)? {
            Some(scan) => {
                let input = self.inputs[0].execute(partition, context)?;
                let state = (Phase::Running { input, scan }, reservation, metrics);
                let rows = stream::try_unfold(state, |(mut phase, reservation, metrics)| async move {
                    let batch = phase.next(&reservation, &metrics).await?;
                    Ok(batch.map(|batch| (batch, (phase, reservation, metrics))))
                });
                rows.boxed()
            }
            None => {
                let inputs: Result<Vec<_>> =
                    self.inputs.iter().map(|input| input.execute(partition, Arc::clone(&context))).collect();
                tables::run(&self.function, &self.columns, inputs?, &self.schema, batch_rows, reservation, metrics)
            }
        };
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// State of a partition.
enum Phase {
    /// The input has more rows.
    Running {
        input: SendableRecordBatchStream,
        scan: Box<dyn Scan>,
    },
    /// The input has ended and is dropped; the scan may have results.
    Draining {
        scan: Box<dyn Scan>,
    },
    Done,
}

impl Phase {
    async fn next(
        &mut self,
        reservation: &millpond::datafusion::execution::memory_pool::MemoryReservation,
        metrics: &BaselineMetrics,
    ) -> Result<Option<RecordBatch>> {
        loop {
            let timer = metrics.elapsed_compute().timer();
            let ready = match self {
                Phase::Running { scan, .. } | Phase::Draining { scan } => scan.next()?,
                Phase::Done => return Ok(None),
            };
            drop(timer);
            if let Some(batch) = ready {
                return Ok(Some(batch.record_output(metrics)));
            }
            *self = match std::mem::replace(self, Phase::Done) {
                Phase::Running { mut input, mut scan } => match input.next().await {
                    Some(batch) => {
                        let _timer = metrics.elapsed_compute().timer();
                        scan.feed(&batch?)?;
                        reservation.try_resize(scan.held_bytes())?;
                        Phase::Running { input, scan }
                    }
                    None => {
                        let _timer = metrics.elapsed_compute().timer();
                        scan.finish()?;
                        Phase::Draining { scan }
                    }
                },
                Phase::Draining { .. } | Phase::Done => Phase::Done,
            };
        }
    }
}
