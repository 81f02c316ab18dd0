//! Keeps computations out of scans: DataFusion moves projections into file scans, where only the CPU can compute them.
//!
//! ```text
//!   Project: a + 1, b          Project: a + 1, b            Project: a + 1, b          DataFusion's rule alone:
//!     Scan: a, b, c       ──►    Fence                ──►     Scan: a, b                 Scan: a + 1, b
//!                                  Scan: a, b, c
//! ```
//!
//! Columns   are still pruned: a fence lets projections that only select columns pass.
//! Left      to DataFusion: expressions over a column without a plain device form, such as struct fields, which scans
//!           can skip; the projection operator takes them back where the device can compute them. Also expressions
//!           without columns, such as the file name, which only the scan knows.
//! No-op     without a device, and with `millpond.enabled = false`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::column::{is_coded, plain_repr};
use crate::error::reason::Reason;
use crate::options::{DeviceChoice, MillpondOptions};
use crate::placement::namesakes::PASS_FILTERS;
use crate::plan::missing::Missing;
use crate::plan::node::device_node;
use crate::plan::overflow::CheckWhole;
use crate::source::bounds::{Bounds, GUARD};
use crate::source::computed::{computes, says_by_itself};

/// True for the name of a rule that reads the constants of conditions: it pushes conditions to scans, or guards those
/// of scans.
pub(crate) fn asks_constants(rule: &str) -> bool {
    PASS_FILTERS.contains(&rule) || rule == GUARD
}

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Physical rules of a session: the arithmetic check first, then DataFusion's rules between those that hide float
/// bounds and restore them as guards; with a device, rules that move projections are wrapped in fences.
pub(crate) fn rules(given: Vec<Rule>, has_device: bool, missing: &mut Missing) -> Vec<Rule> {
    let fenced = |rule: Rule| match rule.name() {
        "ProjectionPushdown" if has_device => Arc::new(Fenced { inner: rule }),
        _ => rule,
    };
    let mut rules: Vec<Rule> = vec![Arc::new(CheckWhole), Arc::new(Bounds::Forget)];
    rules.extend(crate::placement::namesakes::rules(given, missing).into_iter().map(fenced));
    rules.push(Arc::new(Bounds::Guard));
    rules
}

/// A rule that sees fences above file scans.
#[derive(Debug)]
struct Fenced {
    inner: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
}

impl PhysicalOptimizerRule for Fenced {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let defaults = MillpondOptions::default();
        let options = config.extensions.get::<MillpondOptions>().unwrap_or(&defaults);
        if !options.enabled || options.device == DeviceChoice::Cpu {
            return self.inner.optimize(plan, config);
        }
        let fence = |node: Arc<dyn ExecutionPlan>| {
            Ok(match is_file_scan(node.as_ref()) {
                true => Transformed::yes(Arc::new(ScanFence::new(node)) as Arc<dyn ExecutionPlan>),
                false => Transformed::no(node),
            })
        };
        let plan = self.inner.optimize(plan.transform_up(fence).data()?, config)?;
        plan.transform_up(|node| {
            Ok(match node.downcast_ref::<ScanFence>() {
                Some(fence) => Transformed::yes(Arc::clone(&fence.input)),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// An expression that DataFusion moved into the scan `plan`, if `plan` is a file scan and there is one. Constants do
/// not count.
pub(super) fn computed_in_scan(plan: &dyn ExecutionPlan) -> Option<Reason> {
    let scan = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let computed = scan.file_source().projection()?.iter().find(|column| computes(&column.expr))?;
    Some(Reason::ComputedInScan { expr: computed.expr.to_string() })
}

fn is_file_scan(node: &dyn ExecutionPlan) -> bool {
    node.downcast_ref::<DataSourceExec>()
        .is_some_and(|scan| scan.data_source().downcast_ref::<FileScanConfig>().is_some())
}

/// Blocks projections above a scan while the rule runs.
#[derive(Debug)]
struct ScanFence {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl ScanFence {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { properties: Arc::clone(input.properties()), input }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }

    /// True if the device can compute these expressions, judging by their columns.
    fn keeps_out(&self, projection: &ProjectionExec) -> bool {
        let schema = self.input.schema();
        // An expression without columns may be one that only the scan can evaluate, such as the file name.
        let says = |part: &Arc<dyn PhysicalExpr>| Ok(says_by_itself(part));
        if projection.expr().iter().any(|column| column.expr.exists(says).unwrap_or(true)) {
            return false;
        }
        let computed = projection.expr().iter().filter(|column| !column.expr.is::<Column>());
        let mut read = computed.flat_map(|column| collect_columns(&column.expr)).peekable();
        let on_device = |column: Column| {
            let data_type = schema.fields().get(column.index()).map(|field| field.data_type());
            data_type.is_some_and(|of| is_coded(of) || plain_repr(of).is_some())
        };
        read.peek().is_some() && read.all(on_device)
    }
}

impl DisplayAs for ScanFence {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("ScanFence")
    }
}

device_node!(ScanFence, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let fenced = |scan: Arc<dyn ExecutionPlan>| Arc::new(Self::new(scan)) as Arc<dyn ExecutionPlan>;
        if !self.keeps_out(projection) {
            return Ok(self.input.try_swapping_with_projection(projection)?.map(fenced));
        }
        let read: BTreeSet<usize> =
            projection.expr().iter().flat_map(|column| collect_columns(&column.expr)).map(|c| c.index()).collect();
        let schema = self.input.schema();
        if read.len() == schema.fields().len() {
            return Ok(None);
        }
        let pick = |index: &usize| {
            let name = schema.field(*index).name();
            ProjectionExpr::new(Arc::new(Column::new(name, *index)), name.clone())
        };
        let picked = ProjectionExec::try_new(read.iter().map(pick).collect::<Vec<_>>(), Arc::clone(&self.input))?;
        let Some(narrow) = self.input.try_swapping_with_projection(&picked)? else { return Ok(None) };
        let moved = |expr: Arc<dyn PhysicalExpr>| {
            Ok(match expr.downcast_ref::<Column>() {
                Some(column) => {
                    let index = read.range(..column.index()).count();
                    Transformed::yes(Arc::new(Column::new(column.name(), index)) as Arc<dyn PhysicalExpr>)
                }
                None => Transformed::no(expr),
            })
        };
        let over_narrow = |column: &ProjectionExpr| {
            let expr = Arc::clone(&column.expr).transform_up(moved).data()?;
            Ok(ProjectionExpr::new(expr, column.alias.clone()))
        };
        let expressions = projection.expr().iter().map(over_narrow).collect::<Result<Vec<_>>>()?;
        Ok(Some(Arc::new(ProjectionExec::try_new(expressions, fenced(narrow))?)))
    }
});
