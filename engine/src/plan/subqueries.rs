//! Scalar subqueries of a shared plan: each run has its own result containers.
//!
//!   kept plan   ScalarSubqueryExec ─ results R ─ ScalarSubqueryExpr in the plan below
//!   a run of it ScalarSubqueryExec ─ results S ─ Subqueries { R → S } ─► device parameters, expressions of CPU nodes
//!
//! Why      DataFusion's node fills one container that the expressions reference: a second run would find it filled,
//!          and concurrent runs would read each other's values.
//! Device   nodes are unchanged. Lowered code refers to the plan's container, and a launch looks up the run's value.
//! CPU      nodes with expressions that read a subquery are rebuilt, if their kind is supported; other plans are not
//!          kept.

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

use crate::plan::rewrite::{reads, with_expressions};

/// Maps the result containers of a plan to those of one run. Empty if the plan itself is run.
#[derive(Debug, Clone, Default)]
pub struct Subqueries {
    pairs: Vec<(ScalarSubqueryResults, ScalarSubqueryResults)>,
}

impl Subqueries {
    /// True if there are no subqueries.
    pub fn are_none(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds a new container for the subqueries of `node`; returns the mapping and the container.
    pub fn with(&self, node: &ScalarSubqueryExec) -> (Self, ScalarSubqueryResults) {
        let own = ScalarSubqueryResults::new(node.subqueries().len());
        let mut pairs = self.pairs.clone();
        pairs.push((node.results().clone(), own.clone()));
        (Self { pairs }, own)
    }

    /// Mapping for expressions of the original plan, where this one maps the containers of `copy`, an earlier copy.
    pub fn of_copy(&self, copy: &Self) -> Self {
        let again = copy.pairs.iter().filter_map(|(planned, copied)| {
            let (_, own) = self.pairs.iter().find(|(container, _)| container == copied)?;
            Some((planned.clone(), own.clone()))
        });
        Self { pairs: again.chain(self.pairs.iter().cloned()).collect() }
    }

    /// The run's expression for a subquery of the plan; `None` for other expressions.
    fn of_run(&self, expression: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let subquery = expression.downcast_ref::<ScalarSubqueryExpr>()?;
        let (_, own) = self.pairs.iter().find(|(planned, _)| planned == subquery.results())?;
        let field = subquery.return_field(&Schema::empty()).ok()?;
        #[expect(deprecated, reason = "nothing else says which of the results it reads")]
        let index = subquery.index();
        Some(Arc::new(ScalarSubqueryExpr::new(field.data_type().clone(), field.is_nullable(), index, own.clone())))
    }

    /// Value of a subquery in this run.
    ///
    /// # Errors
    /// DataFusion's, if there is no value yet.
    pub fn value(&self, subquery: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
        let own = self.of_run(subquery);
        match own.as_ref().unwrap_or(subquery).evaluate(&RecordBatch::new_empty(Arc::new(Schema::empty())))? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(_) => Err(internal_datafusion_err!("{subquery} is not one value")),
        }
    }

    /// Rewrites an expression of the plan for this run.
    fn expression(&self, expression: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let own = |part: Arc<dyn PhysicalExpr>| {
            Ok(match self.of_run(&part) {
                Some(own) => Transformed::yes(own),
                None => Transformed::no(part),
            })
        };
        Arc::clone(expression).transform_up(own).data()
    }

    /// True if an expression of the node itself reads a subquery with another container in this run.
    fn are_read_by(&self, node: &dyn ExecutionPlan) -> bool {
        !self.are_none() && reads(node, |part| self.of_run(part).is_some())
    }

    /// Rewrites a CPU plan for this run.
    ///
    /// # Errors
    /// If a node that reads a subquery cannot be rebuilt.
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

    /// Rewrites a single node for this run.
    ///
    /// # Errors
    /// If the node reads a subquery and cannot be rebuilt.
    pub fn node(&self, node: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if !self.are_read_by(node.as_ref()) {
            return Ok(Arc::clone(node));
        }
        let unknown = || internal_datafusion_err!("{} reads a subquery, and is not made for another run", node.name());
        let own = with_expressions(node, &|expression, _| self.expression(expression))?.ok_or_else(unknown)?;
        // Expressions that were not rewritten, such as join keys, may also read a subquery.
        if self.are_read_by(own.as_ref()) { Err(unknown()) } else { Ok(own) }
    }
}

/// True if an expression of the node itself reads a subquery whose type `of` accepts.
pub fn reads_subquery(node: &dyn ExecutionPlan, of: impl Fn(&DataType) -> bool) -> bool {
    let of_type = |part: &Arc<dyn PhysicalExpr>| part.data_type(&Schema::empty()).is_ok_and(|ty| of(&ty));
    reads(node, |part| part.is::<ScalarSubqueryExpr>() && of_type(part))
}
