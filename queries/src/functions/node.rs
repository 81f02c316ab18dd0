//! A function of relations in a logical plan.
//!
//! ```text
//!   Filter: user = 7                     the filter on a key moves below; the one on session_id stays
//!     Sessionize: keys=[user], time=[ts], gap=3600
//!       TableScan: clicks                projection=[user, ts, page]: only what is read
//! ```
//!
//! Optimiser  filters on the columns that keep rows together move below; columns that nobody reads are not read.
//! After      an [`ExtensionPlanner`](super::WorkloadExtensionPlanner) makes it a [`RelationExec`](super::RelationExec), or, one
//!            day, a device node: everything that needs to be known is in [`RelationNode::function`] and `columns`.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use millpond::datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError};
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use super::Function;

/// A function, the columns it reads, and the relations they come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RelationNode {
    function: Function,
    columns: Vec<Expr>,
    inputs: Vec<LogicalPlan>,
    schema: DFSchemaRef,
}

impl RelationNode {
    /// The function over `inputs`; `columns` in the order that [`Function`] gives.
    ///
    /// # Errors
    /// If a column is not there, its type does not fit, or a name of the result is taken.
    pub fn try_new(function: Function, columns: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        if inputs.len() != function.num_inputs() || columns.is_empty() {
            let (name, given) = (function.node_name(), inputs.len());
            return Err(DataFusionError::Internal(format!("{name} of {} columns got {given} inputs", columns.len())));
        }
        let schemas: Vec<&DFSchema> = inputs.iter().map(|input| input.schema().as_ref()).collect();
        let positions = positions(&function, &columns, &schemas)?;
        let output = function.output(&schemas, &positions)?;
        let schema = Arc::new(DFSchema::new_with_metadata(output, HashMap::new())?);
        Ok(Self { function, columns, inputs, schema })
    }

    /// The node as a plan.
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Where each column of the list is in its input.
    ///
    /// # Errors
    /// If an optimiser rule has put something else than a column there.
    pub fn positions(&self) -> Result<Vec<usize>> {
        let schemas: Vec<&DFSchema> = self.inputs.iter().map(|input| input.schema().as_ref()).collect();
        positions(&self.function, &self.columns, &schemas)
    }

    /// The columns under their names' roles, for EXPLAIN.
    fn columns_text(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|column| column.schema_name().to_string()).collect();
        names.join(", ")
    }
}

fn positions(function: &Function, columns: &[Expr], inputs: &[&DFSchema]) -> Result<Vec<usize>> {
    let position = |(index, expr): (usize, &Expr)| match expr.clone().unalias_nested().data {
        Expr::Column(column) => inputs[function.input_of(index)].index_of_column(&column),
        other => Err(DataFusionError::Internal(format!("{} reads columns, not {other}", function.node_name()))),
    };
    columns.iter().enumerate().map(position).collect()
}

impl PartialOrd for RelationNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let order = (&self.function, &self.columns).partial_cmp(&(&other.function, &other.columns))?;
        if order != Ordering::Equal {
            return Some(order);
        }
        self.inputs.partial_cmp(&other.inputs).filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for RelationNode {
    fn name(&self) -> &str {
        self.function.node_name()
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.columns.clone()
    }

    /// A filter may move below when it keeps or drops all rows of a key: then no session, pair or distance changes.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let keys: HashSet<Column> = self.columns[..self.function.num_keys(self.columns.len())]
            .iter()
            .filter_map(|key| match key.clone().unalias_nested().data {
                Expr::Column(column) => Some(column),
                _ => None,
            })
            .collect();
        let is_key = |column: &Column| {
            keys.iter()
                .any(|key| key.name == column.name && (key.relation.is_none() || key.relation == column.relation))
        };
        // A name is free only if every column that has it is a key.
        self.schema.columns().into_iter().filter(|column| !is_key(column)).map(|column| column.name).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: [{}]", self.function.node_name(), self.columns_text())?;
        match self.function.to_string() {
            constants if constants.is_empty() => Ok(()),
            constants => write!(f, ", {constants}"),
        }
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::try_new(self.function.clone(), exprs, inputs)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let positions = self.positions().ok()?;
        let reads = |(index, input): (usize, &LogicalPlan)| {
            self.function.reads(index, input.schema().fields().len(), &positions, output_columns)
        };
        Some(self.inputs.iter().enumerate().map(reads).collect())
    }
}
