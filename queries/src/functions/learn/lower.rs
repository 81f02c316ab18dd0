//! Columns that the sinks of machine learning write.
//!
//! ```text
//!   k-means            id │ label: 0            │ features …
//!   centers only                                  features …
//!   predictions        id │ label: 0            │ features …          their centers: label │ features …
//!   regression         id │ label … prediction: 0 │ truth │ features …         its report: truth │ features …
//! ```
//!
//! NULL     in a feature becomes NaN, which makes every sum NaN.

use std::sync::Arc;

use millpond::column::{ColumnInfo, Form};
use millpond::datafusion::arrow::datatypes::{DataType, SchemaRef};
use millpond::datafusion::physical_expr::PhysicalExpr;
use millpond::datafusion::physical_expr::expressions::{CastExpr, Column};
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::error::reason::Reason;
use millpond::expr::{Lowering, Scope};
use millpond::kernels::codegen::ir::{Literal, NodeId, Repr, Ty};
use millpond::program::lower::SegmentLowering;
use millpond::program::piece::LoweredSink;

use crate::functions::{Function, KMeansOutput, LogisticOutput, RelationExec};

/// Input columns that a sink writes, and the result columns.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// The CPU form.
    pub cpu: RelationExec,
    /// Index of the input.
    pub input: usize,
}

/// Layout of the written columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Number of result columns before the columns to learn from, including the id.
    pub result: usize,
    /// Whether the first number column is the truth.
    pub with_truth: bool,
    pub features: usize,
}

impl Places {
    /// Number of columns of doubles.
    pub fn numbers(&self) -> usize {
        self.features + usize::from(self.with_truth)
    }
}

impl Written {
    /// The sink, and the columns of the result.
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

    /// Number of features of a function with `columns` columns.
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

    /// Values to write, and the result columns; for the centers of predictions, their labels.
    pub fn lower(&self, lowering: &mut Lowering<'_>, scope: &Scope) -> Result<(Vec<NodeId>, Vec<ColumnInfo>), Reason> {
        let (places, schema, function) = (self.places(), self.schema(), self.function());
        let columns = self.cpu.columns();
        let (mut nodes, mut outputs) = (vec![], vec![]);
        let own: Vec<usize> =
            (0..columns.len()).filter(|position| function.input_of(*position) == self.input).collect();
        let mut numbers = &own[..];
        if places.result > 0 {
            // The id, or the label of a center.
            let (name, value) = (schema.field(usize::from(self.input == 1)).name(), scope.column(columns[own[0]])?);
            if self.input == 1 && value.data_type != DataType::Int64 {
                let why = format!("labels of type {} stay on the CPU", value.data_type);
                return Err(Reason::ExprUnsupported { expr: function.sql_name().to_string(), why });
            }
            nodes.push(value.node);
            outputs.push(lowering.info(name, &value));
            numbers = &own[1..];
        } else if matches!(self.function(), Function::KMeans { .. }) {
            // The id only orders the rows and is not a feature.
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

/// Result columns that are not per input row.
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
