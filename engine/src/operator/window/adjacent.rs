//! Merges adjacent windows, if one order serves both.
//!
//!   DeviceWindowExec c: sort a          DeviceProjectExec: the same columns
//!     DeviceProjectExec: columns    ►     DeviceWindowExec b, c: sort a, x
//!       DeviceWindowExec b: sort a, x
//!
//! Which   windows that do not read each other's results, with equal orders, or one that begins with the other.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::operator::project::DeviceProjectExec;
use crate::operator::window::DeviceWindowExec;
use crate::operator::window::describe::{Call, Function};
use crate::placement::contract::DeviceTree;

/// Replaces `functions` over `input`, which is a window, with the output of `node`; also returns the order of its rows.
pub(super) fn merge(
    functions: &[Function],
    sort: &[PhysicalSortExpr],
    input: &DeviceTree,
    node: &Arc<dyn ExecutionPlan>,
) -> Option<(Arc<dyn ExecutionPlan>, Option<LexOrdering>)> {
    let (below, chosen) = window_below(&input.plan)?;
    if below.keeps.is_some() {
        return None;
    }
    let columns = Columns { schema: Arc::clone(&below.input.schema()), chosen: &chosen };
    let functions = functions.iter().map(|function| columns.function(function)).collect::<Option<Vec<_>>>()?;
    let sort = sort.iter().map(|key| columns.key(key)).collect::<Option<Vec<_>>>()?;
    let all: Vec<Function> = below.functions.iter().chain(&functions).cloned().collect();
    let serves = |sort: &&[PhysicalSortExpr]| all.iter().all(|function| function.keys_in(sort).is_some());
    let sort = [below.sort.as_slice(), &sort].into_iter().find(serves)?.to_vec();
    let (schema, given) = (below.schema(), node.schema());
    let own = given.fields().iter().skip(chosen.len());
    let fields: Vec<_> = schema.fields().iter().chain(own).cloned().collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let window = DeviceWindowExec::new(sort.clone(), all, None, Arc::clone(&below.input), Arc::clone(&schema));
    let window: Arc<dyn ExecutionPlan> = Arc::new(window);
    let width = schema.fields().len();
    let places: Vec<usize> = chosen.iter().copied().chain(width - functions.len()..width).collect();
    let order = LexOrdering::new(sort.iter().map_while(|key| above(key, &places, &given)));
    if places.iter().copied().eq(0..width) {
        return Some((window, LexOrdering::new(sort)));
    }
    let column = |(place, field): (&usize, &Arc<datafusion::arrow::datatypes::Field>)| ProjectionExpr {
        expr: Arc::new(Column::new(schema.field(*place).name(), *place)),
        alias: field.name().clone(),
    };
    let columns: Vec<ProjectionExpr> = places.iter().zip(given.fields()).map(column).collect();
    let projection = ProjectionExec::try_new(columns, Arc::clone(&window)).ok()?;
    let project = DeviceProjectExec::new(&projection, window, order.clone());
    Some((Arc::new(project), order))
}

/// A window below projections that only select columns, and the window's column for each of theirs.
fn window_below(plan: &Arc<dyn ExecutionPlan>) -> Option<(&DeviceWindowExec, Vec<usize>)> {
    let mut plan = plan;
    let mut chosen: Vec<usize> = (0..plan.schema().fields().len()).collect();
    loop {
        if let Some(window) = plan.downcast_ref::<DeviceWindowExec>() {
            return Some((window, chosen));
        }
        let project = plan.downcast_ref::<DeviceProjectExec>()?;
        let column = |index: usize| project.columns().get(index)?.0.downcast_ref::<Column>().map(Column::index);
        chosen = chosen.into_iter().map(column).collect::<Option<_>>()?;
        plan = project.children().into_iter().next()?;
    }
}

/// A key over the columns at `places`, with the names of `given`; `None` if it reads another column.
fn above(key: &PhysicalSortExpr, places: &[usize], given: &Schema) -> Option<PhysicalSortExpr> {
    let column = key.expr.downcast_ref::<Column>()?;
    let place = places.iter().position(|place| *place == column.index())?;
    let expr: Arc<dyn PhysicalExpr> = Arc::new(Column::new(given.field(place).name(), place));
    Some(PhysicalSortExpr { expr, options: key.options })
}

/// Columns of a window's input, by their numbers above the window.
struct Columns<'a> {
    schema: Arc<Schema>,
    chosen: &'a [usize],
}

impl Columns<'_> {
    /// The expression over the input; `None` if it reads a result of the window.
    fn expr(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let mut inside = true;
        let moved = Arc::clone(expr).transform_up(|part| {
            let Some(column) = part.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
            let place = self.chosen.get(column.index()).copied().filter(|place| *place < self.schema.fields().len());
            let Some(place) = place else {
                inside = false;
                return Ok(Transformed::no(part));
            };
            Ok(Transformed::yes(Arc::new(Column::new(self.schema.field(place).name(), place)) as Arc<dyn PhysicalExpr>))
        });
        let moved: Result<Arc<dyn PhysicalExpr>> = moved.data();
        moved.ok().filter(|_| inside)
    }

    fn key(&self, key: &PhysicalSortExpr) -> Option<PhysicalSortExpr> {
        Some(PhysicalSortExpr { expr: self.expr(&key.expr)?, options: key.options })
    }

    fn function(&self, of: &Function) -> Option<Function> {
        let call = match &of.call {
            Call::Rank(ranking) => Call::Rank(*ranking),
            Call::Take { argument, from, skips_nulls, otherwise } => Call::Take {
                argument: self.expr(argument)?,
                from: *from,
                skips_nulls: *skips_nulls,
                otherwise: otherwise.clone(),
            },
            Call::Aggregate { function, arguments, constant } => Call::Aggregate {
                function: Arc::clone(function),
                arguments: arguments.iter().map(|argument| self.expr(argument)).collect::<Option<_>>()?,
                constant: constant.clone(),
            },
        };
        Some(Function {
            call,
            partition: of.partition.iter().map(|key| self.expr(key)).collect::<Option<_>>()?,
            order: of.order.iter().map(|key| self.key(key)).collect::<Option<_>>()?,
            ..of.clone()
        })
    }
}
