//! A table function in a logical plan.
//!
//! ```text
//!   Filter: user = 7                     a filter on a key moves below; one on session_id stays
//!     Sessionize: keys=[user], time=[ts], gap=3600
//!       TableScan: clicks                projection=[user, ts, page]: only columns that are read
//! ```
//!
//! Optimizer  filters on the key columns move below; unused columns are not read.
//! After      an [`ExtensionPlanner`](super::WorkloadExtensionPlanner) plans a [`RelationExec`](super::RelationExec)
//!            from it, with the data of [`RelationNode::function`] and `columns`; device operators may replace that
//!            (`clicks`, `learn`).

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use millpond::datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError};
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use super::Function;

/// A function, the columns it reads, and its input relations.
#[derive(Debug, Clone)]
pub struct RelationNode {
    function: Function,
    columns: Vec<Column>,
    inputs: Vec<Arc<LogicalPlan>>,
    /// Hash of the inputs, compared instead of them: the derived comparison of whole plans, which include every kind of
    /// statement, takes a minute to compile.
    inputs_hash: u64,
    schema: DFSchemaRef,
}

impl RelationNode {
    /// Creates the node over `inputs`; `columns` are in the order of [`Function`].
    ///
    /// # Errors
    /// If a column does not exist, its type does not fit, or a name of the result is taken.
    pub fn try_new(function: Function, columns: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        if inputs.len() != function.num_inputs() || columns.is_empty() {
            let (name, given) = (function.node_name(), inputs.len());
            return Err(DataFusionError::Internal(format!("{name} of {} columns got {given} inputs", columns.len())));
        }
        let column = |expr: Expr| match expr.unalias_nested().data {
            Expr::Column(column) => Ok(column),
            other => Err(DataFusionError::Internal(format!("{} reads columns, not {other}", function.node_name()))),
        };
        let columns = columns.into_iter().map(column).collect::<Result<Vec<_>>>()?;
        let schemas: Vec<&DFSchema> = inputs.iter().map(|input| input.schema().as_ref()).collect();
        let positions = positions(&function, &columns, &schemas)?;
        let output = function.output(&schemas, &positions)?;
        let schema = Arc::new(DFSchema::new_with_metadata(output, HashMap::new())?);
        let mut hasher = DefaultHasher::new();
        inputs.hash(&mut hasher);
        let (inputs, inputs_hash) = (inputs.into_iter().map(Arc::new).collect(), hasher.finish());
        Ok(Self { function, columns, inputs, inputs_hash, schema })
    }

    /// The node as a plan.
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Position of each column of the list in its input.
    ///
    /// # Errors
    /// DataFusion's error if an input no longer has a column.
    pub fn positions(&self) -> Result<Vec<usize>> {
        let schemas: Vec<&DFSchema> = self.inputs.iter().map(|input| input.schema().as_ref()).collect();
        positions(&self.function, &self.columns, &schemas)
    }

    /// Names of the columns, for EXPLAIN.
    fn columns_text(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(Column::flat_name).collect();
        names.join(", ")
    }
}

fn positions(function: &Function, columns: &[Column], inputs: &[&DFSchema]) -> Result<Vec<usize>> {
    let position = |(index, column): (usize, &Column)| inputs[function.input_of(index)].index_of_column(column);
    columns.iter().enumerate().map(position).collect()
}

impl RelationNode {
    /// The fields that determine equality; the schema follows from them.
    fn identity(&self) -> (&Function, &[Column], u64) {
        (&self.function, &self.columns, self.inputs_hash)
    }
}

impl PartialEq for RelationNode {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for RelationNode {}

impl PartialOrd for RelationNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.identity().partial_cmp(&other.identity())
    }
}

impl Hash for RelationNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for RelationNode {
    fn name(&self) -> &str {
        self.function.node_name()
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().map(AsRef::as_ref).collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.columns.iter().cloned().map(Expr::Column).collect()
    }

    /// A filter may move below if it keeps or drops all rows of a key, because sessions, pairs and distances do not
    /// change then.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let keys = &self.columns[..self.function.num_keys(self.columns.len())];
        let is_key = |column: &Column| {
            keys.iter()
                .any(|key| key.name == column.name && (key.relation.is_none() || key.relation == column.relation))
        };
        // A name allows it only if every column with that name is a key.
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
        let reads = |(index, input): (usize, &Arc<LogicalPlan>)| {
            self.function.reads(index, input.schema().fields().len(), &positions, output_columns)
        };
        Some(self.inputs.iter().enumerate().map(reads).collect())
    }
}
