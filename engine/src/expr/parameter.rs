//! Parameters of a pipeline: values that its code reads from the arguments of each launch.
//!
//!   x < 24             slot of "two digits", filled with 24: another constant of that size needs no new compilation
//!   x < (SELECT …)     slot of the subquery's type, filled with the value of this run's subquery
//!
//! NULL     a subquery without a row is NULL.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::Literal;

use crate::column::half::widened;
use crate::column::scalar_integer;
use crate::error::EngineError;
use crate::plan::subqueries::Subqueries;

/// Value of a parameter slot.
#[derive(Debug, Clone)]
pub enum Parameter {
    /// A constant, equal in each run.
    Value(Literal),
    /// The value of this scalar subquery, which each run evaluates.
    Subquery(Arc<dyn PhysicalExpr>),
}

impl Parameter {
    /// The value that a launch of a run passes.
    ///
    /// # Errors
    /// DataFusion's: the subquery has no value yet.
    pub fn literal(&self, subqueries: &Subqueries) -> Result<Literal> {
        match self {
            Self::Value(literal) => Ok(*literal),
            Self::Subquery(subquery) => {
                let value = subqueries.value(subquery)?;
                let no_form = || EngineError::internal(format!("{value:?} of a subquery has no device form"));
                Ok(literal(&value).ok_or_else(no_form)?)
            }
        }
    }

    /// True if both have equal values in each run.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(Literal::F32(a)), Self::Value(Literal::F32(b))) => a.to_bits() == b.to_bits(),
            (Self::Value(Literal::F64(a)), Self::Value(Literal::F64(b))) => a.to_bits() == b.to_bits(),
            (Self::Value(a), Self::Value(b)) => a == b,
            (Self::Subquery(a), Self::Subquery(b)) => a == b,
            _ => false,
        }
    }
}

/// A value as a parameter; `None` for types without one.
fn literal(value: &ScalarValue) -> Option<Literal> {
    Some(match value {
        value if value.is_null() => Literal::Null,
        ScalarValue::Boolean(Some(v)) => Literal::Bool(*v),
        ScalarValue::Float16(Some(v)) => Literal::F32(widened(*v)),
        ScalarValue::Float32(Some(v)) => Literal::F32(*v),
        ScalarValue::Float64(Some(v)) => Literal::F64(*v),
        value => Literal::Int(scalar_integer(value)?),
    })
}
