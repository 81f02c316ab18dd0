//! Filters that DataFusion pushes down to scans, if columns share a name: they must not reach another column.
//!
//! ```text
//!   Join: id@2 = x               its scans skip rows by what it learns of id@2 while it runs
//!     Fence                      stops filters on columns whose name is not unique
//!       Repartition: id@0, id@2  DataFusion alone: id@2 becomes id@0, the first column of that name, and rows are lost
//! ```
//!
//! Volatile  columns: filters on them stop above the projection that computes them.
//! Casts     that lose values also stop at a fence, with other filters on their columns: file readers compare without
//!           the cast.
//! Columns   with a unique name pass: fences exist only during DataFusion's two rules, above nodes with shared names.
//! Left      unchanged: filters created below a fence are pushed further.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{ChildFilterDescription, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::plan::missing::Missing;
use crate::plan::node::{REPLACE, device_node};
use crate::plan::simplified::{PARAMETER, is_at_risk};

/// DataFusion's rules that push filters, and dynamic filters of joins, down to scans.
pub(crate) const PASS_FILTERS: [&str; 2] = ["FilterPushdown", "FilterPushdown(Post)"];

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Physical rules of a session, with those that push filters wrapped so that they see fences.
pub(crate) fn rules(mut rules: Vec<Rule>, missing: &mut Missing) -> Vec<Rule> {
    for name in PASS_FILTERS {
        match rules.iter_mut().find(|rule| rule.name() == name) {
            Some(rule) => *rule = Arc::new(Fenced(Arc::clone(rule))),
            None => missing.note(name),
        }
    }
    rules
}

/// A rule that sees fences above nodes whose columns share a name.
#[derive(Debug)]
struct Fenced(Rule);

impl PhysicalOptimizerRule for Fenced {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let mut fences = 0;
        let fenced = plan.transform_up(|node| {
            // A projection pushes filters to the right columns of its input, but confuses its own columns.
            let is_exact = node.is::<ProjectionExec>();
            let children = node.children();
            let is_lossy = node.downcast_ref::<FilterExec>().is_some_and(|filter| {
                let schema = filter.input().schema();
                is_at_risk(filter.predicate(), &schema)
            });
            let needs = |child: &Arc<dyn ExecutionPlan>| {
                is_lossy
                    || (!is_exact || child.is::<ProjectionExec>()) && has_namesakes(&child.schema())
                    || drawn(child).next().is_some()
            };
            if !children.iter().any(|child| needs(child)) {
                return Ok(Transformed::no(node));
            }
            let fence = |child: &Arc<dyn ExecutionPlan>| match needs(child) {
                true => Arc::new(Fence::new(Arc::clone(child))) as Arc<dyn ExecutionPlan>,
                false => Arc::clone(child),
            };
            let children = children.into_iter().map(fence).collect();
            fences += 1;
            node.replace_children(children, REPLACE).map(Transformed::yes)
        });
        let plan = self.0.optimize(fenced.data()?, config)?;
        if fences == 0 {
            return Ok(plan);
        }
        let without = |node: Arc<dyn ExecutionPlan>| {
            Ok(match node.downcast_ref::<Fence>() {
                Some(fence) => Transformed::yes(Arc::clone(&fence.input)),
                None => Transformed::no(node),
            })
        };
        plan.transform_up(without).data()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Volatile columns of a projection.
fn drawn(node: &Arc<dyn ExecutionPlan>) -> impl Iterator<Item = usize> {
    let columns = node.downcast_ref::<ProjectionExec>().map(ProjectionExec::expr).unwrap_or_default();
    let is_drawn = |part: &Arc<dyn PhysicalExpr>| {
        let call = part.downcast_ref::<ScalarFunctionExpr>();
        Ok(part.is_volatile_node() && call.is_none_or(|call| call.fun().name() != PARAMETER))
    };
    let drawn = columns.iter().enumerate().filter(move |(_, column)| column.expr.exists(is_drawn).unwrap_or(true));
    drawn.map(|(index, _)| index)
}

/// True if two columns share a name. Called for each node of each plan; most have few columns.
fn has_namesakes(schema: &Schema) -> bool {
    const FEW: usize = 32;
    let fields = schema.fields();
    match fields.len() {
        0..=FEW => (1..fields.len()).any(|at| fields[..at].iter().any(|field| field.name() == fields[at].name())),
        _ => !unique(schema).1,
    }
}

/// Columns with a unique name, and whether all are unique.
fn unique(schema: &Schema) -> (HashSet<usize>, bool) {
    let mut times = HashMap::<&str, usize>::new();
    schema.fields().iter().for_each(|field| *times.entry(field.name()).or_default() += 1);
    let own = schema.fields().iter().enumerate().filter(|(_, field)| times[field.name().as_str()] == 1);
    let own: HashSet<usize> = own.map(|(index, _)| index).collect();
    let all = own.len() == schema.fields().len();
    (own, all)
}

/// Blocks filters above a node whose columns share a name.
#[derive(Debug)]
struct Fence {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl Fence {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { properties: Arc::clone(input.properties()), input }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for Fence {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Fence")
    }
}

device_node!(Fence, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let schema = self.input.schema();
        let (mut own, _) = unique(&schema);
        drawn(&self.input).for_each(|column| _ = own.remove(&column));
        for filter in parent_filters.iter().filter(|filter| is_at_risk(filter, &schema)) {
            collect_columns(filter).iter().for_each(|column| _ = own.remove(&column.index()));
        }
        let passed = ChildFilterDescription::from_child_with_allowed_indices(&parent_filters, own, &self.input)?;
        Ok(FilterDescription::new().with_child(passed))
    }
});
