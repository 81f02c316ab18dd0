//! What the sinks of functions that learn write of each row.
//!
//! ```text
//!   k-means            id │ label: 0            │ features …
//!   centres alone                                 features …
//!   predictions        id │ label: 0            │ features …          their centres: label │ features …
//!   regression         id │ label … prediction: 0 │ truth │ features …         its report: truth │ features …
//! ```
//!
//! NULL     of a feature becomes NaN, which no sum hides.

use std::sync::Arc;

use millpond::column::{ColumnInfo, Form};
use millpond::datafusion::arrow::datatypes::{DataType, SchemaRef};
use millpond::datafusion::physical_expr::PhysicalExpr;
use millpond::datafusion::physical_expr::expressions::{CastExpr, Column};
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::expr::{Lowering, Scope};
use millpond::kernels::codegen::ir::{Literal, NodeId, Repr, Ty};
use millpond::program::lower::{LoweredSink, SegmentLowering};
use millpond::reason::Reason;

use crate::functions::{Function, KMeansOutput, LogisticOutput, RelationExec};

/// Which columns of an input a sink writes, and what the function gives.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// What it stands for.
    pub cpu: RelationExec,
    /// Which of its inputs this is.
    pub input: usize,
}

/// How the columns that are written lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Columns of the result before those that are learnt from; its id among them.
    pub result: usize,
    /// The truth is the first of the numbers.
    pub with_truth: bool,
    pub features: usize,
}

impl Places {
    /// Columns of doubles.
    pub fn numbers(&self) -> usize {
        self.features + usize::from(self.with_truth)
    }
}

impl Written {
    /// The sink that writes it, and the columns of the result.
    pub fn sink(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, outputs) = segment.with_filters(|lowering, scope, _| self.lower(lowering, scope))?;
        Ok(LoweredSink::new(segment.write(nodes), outputs))
    }

    pub fn function(&self) -> &Function {
        self.cpu.function()
    }

    pub fn schema(&self) -> SchemaRef {
        self.cpu.schema()
    }

    /// Features of a function with so many columns.
    pub fn num_features(function: &Function, columns: usize) -> usize {
        match function {
            Function::KMeansPredict { features } => *features,
            Function::Logistic { output: LogisticOutput::Predictions, .. } => columns.saturating_sub(2),
            _ => columns.saturating_sub(1),
        }
    }

    pub fn places(&self) -> Places {
        let features = Self::num_features(self.function(), self.cpu.columns().len());
        let result = match self.function() {
            Function::KMeans { output: KMeansOutput::Labels, .. } => 2,
            Function::KMeansPredict { .. } if self.input == 0 => 2,
            Function::KMeansPredict { .. } => 1,
            Function::Logistic { output: LogisticOutput::Predictions, .. } => 5,
            _ => 0,
        };
        Places { result, with_truth: matches!(self.function(), Function::Logistic { .. }), features }
    }

    /// What is written, and the columns of the result; for the centres of predictions, their labels.
    pub fn lower(&self, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
        let (places, schema, function) = (self.places(), self.schema(), self.function());
        let columns = self.cpu.columns();
        let (mut nodes, mut outputs) = (vec![], vec![]);
        let own: Vec<usize> =
            (0..columns.len()).filter(|position| function.input_of(*position) == self.input).collect();
        let mut numbers = &own[..];
        if places.result > 0 {
            // The id, or the label of a centre.
            let (name, value) = (schema.field(usize::from(self.input == 1)).name(), scope.column(columns[own[0]])?);
            if self.input == 1 && value.data_type != DataType::Int64 {
                let why = format!("labels of type {} stay on the CPU", value.data_type);
                return Err(Reason::ExprUnsupported { expr: function.sql_name().to_string(), why });
            }
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
            numbers = &own[1..];
        } else if matches!(self.function(), Function::KMeans { .. }) {
            // The id orders the rows, and is not learnt from.
            numbers = &own[1..];
        }
        for field in schema.fields().iter().skip(nodes.len()).take(places.result.saturating_sub(nodes.len())) {
            let (ty, zero) = match field.data_type() {
                DataType::Float64 => (Ty::new(Repr::F64), Literal::F64(0.0)),
                _ => (Ty::new(Repr::I64), Literal::Int(0)),
            };
            nodes.push(lowering.slot(ty, zero));
            outputs.push(ColumnInfo::new(field.name().clone(), field.data_type().clone(), Form::Plain(ty)));
        }
        for position in numbers {
            nodes.push(number(lowering, scope, columns[*position])?);
        }
        if places.result == 0 {
            outputs = table_columns(&schema);
        }
        Ok((nodes, outputs))
    }
}

/// The columns of a result that no row of the input gives.
pub(super) fn table_columns(schema: &SchemaRef) -> Vec<ColumnInfo> {
    let column = |(name, data_type, nullable): (&str, &DataType, bool)| {
        let repr = match data_type {
            DataType::Float64 => Repr::F64,
            DataType::Boolean => Repr::Bool,
            _ => Repr::I64,
        };
        let form = Form::Plain(Ty::new(repr).nullable(nullable));
        ColumnInfo::new(name.to_string(), data_type.clone(), form)
    };
    let fields = schema.fields().iter();
    fields.map(|field| column((field.name(), field.data_type(), field.is_nullable()))).collect()
}

/// A column as doubles without NULLs.
fn number(lowering: &mut Lowering<'_>, scope: &Scope, index: usize) -> Result<NodeId, Reason> {
    let name = scope.columns().nth(index).map_or("", |(name, _)| name);
    let column = Arc::new(Column::new(name, index)) as Arc<dyn PhysicalExpr>;
    let double = Arc::new(CastExpr::new(column, DataType::Float64, None)) as Arc<dyn PhysicalExpr>;
    let value = lowering.lower(&double, scope)?;
    let nan = lowering.graph.float(f64::NAN, Repr::F64);
    let refused = |why: String| Reason::ExprUnsupported { expr: double.to_string(), why };
    lowering.graph.coalesce(&[value.node, nan]).map_err(|error| refused(error.to_string()))
}
