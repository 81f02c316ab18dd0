//! Scalar subqueries of a plan that many runs share: each run has result containers of its own.
//!
//!   kept plan   ScalarSubqueryExec ─ results R ─ ScalarSubqueryExpr in the plan below
//!   a run of it ScalarSubqueryExec ─ results S ─ Subqueries { R → S } ─► device parameters, expressions of nodes on the CPU
//!
//! Why      DataFusion's node fills one container, which expressions hold: a second run would find it full, and two runs at once
//!          would read each other's values.
//! Device   nodes stay as they are. What is lowered names the plan's container, and a launch asks for the run's value.
//! CPU      nodes whose expressions read a subquery are made anew where we know how; a plan with others is not kept.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{ScalarValue, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::logical_expr::physical_planning_context::ScalarSubqueryResults;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;

use crate::rewrite::{reads, with_expressions};

/// Result containers of a plan, and those of one run of it. None: the plan is run itself.
#[derive(Debug, Clone, Default)]
pub struct Subqueries {
    pairs: Vec<(ScalarSubqueryResults, ScalarSubqueryResults)>,
}

impl Subqueries {
    /// True if no subquery is around what is looked at.
    pub fn are_none(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The same with a container of the run's own for the subqueries of `node`, and that container.
    pub fn with(&self, node: &ScalarSubqueryExec) -> (Self, ScalarSubqueryResults) {
        let own = ScalarSubqueryResults::new(node.subqueries().len());
        let mut pairs = self.pairs.clone();
        pairs.push((node.results().clone(), own.clone()));
        (Self { pairs }, own)
    }

    /// The same for expressions of a plan of which a copy was made before, with the containers of `copy`: that copy is copied.
    pub fn of_copy(&self, copy: &Self) -> Self {
        let again = copy.pairs.iter().filter_map(|(planned, copied)| {
            let (_, own) = self.pairs.iter().find(|(container, _)| container == copied)?;
            Some((planned.clone(), own.clone()))
        });
        Self { pairs: again.chain(self.pairs.iter().cloned()).collect() }
    }

    /// What stands in this run for an expression of the plan; `None` for one that stays.
    fn of_run(&self, expression: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let subquery = expression.downcast_ref::<ScalarSubqueryExpr>()?;
        let (_, own) = self.pairs.iter().find(|(planned, _)| planned == subquery.results())?;
        let field = subquery.return_field(&Schema::empty()).ok()?;
        #[expect(deprecated, reason = "nothing else says which of the results it reads")]
        let index = subquery.index();
        Some(Arc::new(ScalarSubqueryExpr::new(field.data_type().clone(), field.is_nullable(), index, own.clone())))
    }

    /// The value of a subquery in this run.
    ///
    /// # Errors
    /// DataFusion's: it has none yet.
    pub fn value(&self, subquery: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
        let own = self.of_run(subquery);
        match own.as_ref().unwrap_or(subquery).evaluate(&RecordBatch::new_empty(Arc::new(Schema::empty())))? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(_) => Err(internal_datafusion_err!("{subquery} is not one value")),
        }
    }

    /// An expression of the plan for this run.
    fn expression(&self, expression: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let own = |part: Arc<dyn PhysicalExpr>| {
            Ok(match self.of_run(&part) {
                Some(own) => Transformed::yes(own),
                None => Transformed::no(part),
            })
        };
        Arc::clone(expression).transform_up(own).data()
    }

    /// True if an expression of the node itself reads a subquery that is another's in this run.
    fn are_read_by(&self, node: &dyn ExecutionPlan) -> bool {
        !self.are_none() && reads(node, |part| self.of_run(part).is_some())
    }

    /// A plan on the CPU for this run.
    ///
    /// # Errors
    /// A subquery is read by a node that cannot be made anew.
    pub fn rewrite(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if self.are_none() {
            return Ok(Arc::clone(plan));
        }
        let node = |node: Arc<dyn ExecutionPlan>| {
            Ok(match self.are_read_by(node.as_ref()) {
                true => Transformed::yes(self.node(&node)?),
                false => Transformed::no(node),
            })
        };
        Arc::clone(plan).transform_up(node).data()
    }

    /// The same of a single node.
    ///
    /// # Errors
    /// The node reads a subquery and cannot be made anew.
    pub fn node(&self, node: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if !self.are_read_by(node.as_ref()) {
            return Ok(Arc::clone(node));
        }
        let unknown = || internal_datafusion_err!("{} reads a subquery, and is not made for another run", node.name());
        let own = with_expressions(node, &|expression, _| self.expression(expression))?.ok_or_else(unknown)?;
        // What it reads beside what was looked at, such as the keys of a join.
        if self.are_read_by(own.as_ref()) { Err(unknown()) } else { Ok(own) }
    }
}

/// True if an expression of the node itself reads a subquery whose value is of such a type.
pub fn reads_subquery(node: &dyn ExecutionPlan, of: impl Fn(&DataType) -> bool) -> bool {
    let of_type = |part: &Arc<dyn PhysicalExpr>| part.data_type(&Schema::empty()).is_ok_and(|ty| of(&ty));
    reads(node, |part| part.is::<ScalarSubqueryExpr>() && of_type(part))
}
