//! Recursive queries: the host iterates over the steps, and each step runs on the device.
//!
//! ```text
//!   RecursionExec            rows of all steps, step by step
//!     DownloadExec ─ …       static term: the rows of the first step
//!     DownloadExec ─ … ─ UploadExec ─ WorkRowsExec      recursive term: runs once per step, over the rows before
//!
//!   step 0 ─► rows ─┬─► out          until a step has no rows
//!                   └─► step 1 ─► rows ─┬─► out
//!                                       └─► step 2 ─► …
//! ```
//!
//! Rows     of the previous step stay on the host while a step runs: a device that runs out of memory reads them again,
//!          and so does the CPU in its place. They are stored in the step's task context, so that copies of a plan, and
//!          concurrent runs, have their own.
//! Once     a step's borders are prepared once: later steps lower and compile nothing.
//! UNION    the CPU compares new rows with those of all steps before, in DataFusion's own table of groups; that is a
//!          fallback, with a reason. UNION ALL only passes rows on.
//! Memory   two steps of rows on the host, counted in the session's pool.
//! Limits   a recursion may end only by a limit above it: if a plan has one, rows of a recursion are not uploaded.
//! Stands for RecursiveQueryExec, and the WorkTableExec below it.

mod run;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::operator::recursion::run::{Steps, WorkRows};
use crate::placement::contract::{DeviceOperator, Placed};
use crate::placement::walk::Placing;
use crate::plan::node::REPLACE;
use crate::program::contract::ToSegments;

/// Number of the next recursion in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Properties of rows that arrive step by step.
fn properties(schema: SchemaRef) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

/// A recursive query whose step inputs can be read again.
#[derive(Debug, Clone)]
pub struct RecursionExec {
    name: String,
    number: u64,
    static_term: Arc<dyn ExecutionPlan>,
    recursive_term: Arc<dyn ExecutionPlan>,
    is_distinct: bool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RecursionExec {
    /// The device's form of `recursion`; `None` if the columns that its step reads cannot be determined.
    fn of(recursion: &RecursiveQueryExec) -> Result<Option<Self>> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let steps = Rebinding { name: recursion.name(), number, schema: ExecutionPlan::schema(recursion) };
        let Some(recursive_term) = steps.rebound(recursion.recursive_term())? else { return Ok(None) };
        Ok(Some(Self {
            name: recursion.name().to_string(),
            number,
            static_term: Arc::clone(recursion.static_term()),
            recursive_term,
            is_distinct: recursion.is_distinct(),
            properties: properties(steps.schema),
            metrics: ExecutionPlanMetricsSet::new(),
        }))
    }
}

/// Replaces a work table by rows that can be read again.
struct Rebinding<'a> {
    name: &'a str,
    number: u64,
    /// Schema of the recursion's rows.
    schema: SchemaRef,
}

impl Rebinding<'_> {
    /// `plan` with such rows; `None` if the columns of a work table cannot be determined.
    fn rebound(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(table) = plan.downcast_ref::<WorkTableExec>()
            && table.name() == self.name
        {
            let schema = table.schema();
            let columns = self.columns(&schema);
            return Ok(columns.map(|columns| Arc::new(WorkRowsExec::new(self, schema, columns)) as _));
        }
        // A recursion of the same name inside this one has a work table of its own.
        if plan.downcast_ref::<RecursiveQueryExec>().is_some_and(|inner| inner.name() == self.name) {
            return Ok(None);
        }
        let mut changed = false;
        let mut children = vec![];
        for child in plan.children() {
            let Some(rebound) = self.rebound(child)? else { return Ok(None) };
            changed |= !Arc::ptr_eq(child, &rebound);
            children.push(rebound);
        }
        let plan = Arc::clone(plan);
        Ok(Some(if changed { plan.replace_children(children, REPLACE)? } else { plan }))
    }

    /// Positions of a work table's columns among the recursion's: found by name, if each name occurs once.
    fn columns(&self, table: &Schema) -> Option<Vec<usize>> {
        let all = self.schema.fields();
        let column = |field: &datafusion::arrow::datatypes::FieldRef| {
            let mut named = all.iter().enumerate().filter(|(_, own)| own.name() == field.name());
            let (index, own) = named.next().filter(|_| named.next().is_none())?;
            // A NULL in a column declared without NULLs would be read as a value.
            let fits = own.data_type() == field.data_type() && (field.is_nullable() || !own.is_nullable());
            fits.then_some(index)
        };
        table.fields().iter().map(column).collect()
    }
}

impl DisplayAs for RecursionExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "name={}", self.name),
            _ => write!(f, "RecursionExec: name={}, is_distinct={}", self.name, self.is_distinct),
        }
    }
}

impl ExecutionPlan for RecursionExec {
    fn name(&self) -> &'static str {
        "RecursionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.static_term, &self.recursive_term]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false, false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false, false]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition; 2])
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let [static_term, recursive_term] = <[_; 2]>::try_from(children)
            .map_err(|_| EngineError::internal("a recursion has a static and a recursive term"))?;
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Arc::new(Self { static_term, recursive_term, metrics, ..Self::clone(&self) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return Err(EngineError::internal("a recursion has one partition").into());
        }
        Steps::begin(self, context, BaselineMetrics::new(&self.metrics, partition))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The rows of the previous step, which can be read any number of times.
#[derive(Debug, Clone)]
struct WorkRowsExec {
    name: String,
    /// Number of the recursion.
    number: u64,
    /// Columns of the recursion.
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
}

impl WorkRowsExec {
    fn new(of: &Rebinding<'_>, schema: SchemaRef, columns: Vec<usize>) -> Self {
        Self { name: of.name.to_string(), number: of.number, columns, properties: properties(schema) }
    }
}

impl DisplayAs for WorkRowsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "name={}", self.name),
            _ => write!(f, "WorkRowsExec: name={}", self.name),
        }
    }
}

impl ExecutionPlan for WorkRowsExec {
    fn name(&self) -> &'static str {
        "WorkRowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        WorkRows::of(self.number, &context)?.stream(self.schema(), &self.columns)
    }
}

/// Placement of recursive queries.
#[derive(Debug)]
pub(crate) struct Recursion;

impl ToSegments for Recursion {}

impl DeviceOperator for Recursion {
    fn name(&self) -> &'static str {
        "recursion"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let recursion = node.downcast_ref::<RecursiveQueryExec>()?;
        let place = |own: Option<RecursionExec>| {
            let distinct = own.as_ref().is_some_and(|own| own.is_distinct);
            let reason = match (&own, distinct) {
                (None, _) => Some(Reason::NodeUnsupported { node: node.name().to_string() }),
                (Some(_), true) => Some(Reason::ExprUnsupported {
                    expr: "UNION of a recursive query".to_string(),
                    why: "the CPU tells new rows from those of all steps before".to_string(),
                }),
                (Some(_), false) => None,
            };
            let node = own.map_or_else(|| Arc::clone(node), |own| Arc::new(own) as _);
            let terms = node.children().into_iter().map(|term| to.in_order(|| to.place(term)));
            let terms = terms.collect::<Result<Vec<_>>>()?;
            to.stay(&node, terms, reason)
        };
        Some(RecursionExec::of(recursion).and_then(place))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        if node.is::<RecursiveQueryExec>() {
            return Some(true);
        }
        let recursion = node.downcast_ref::<RecursionExec>().map(|own| own.is_distinct);
        recursion.or_else(|| node.is::<WorkRowsExec>().then_some(false))
    }

    fn may_never_end(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<RecursionExec>()
    }
}
