//! Arithmetic: the meaning of `+ - * / %` and of the bitwise operators for each type.
//!
//!   integers   overflow is an error, or wraps as in arrow's `*_wrapping` (`overflow.rs`); division by zero is an error
//!   floats     IEEE 754; those of 16 bits are computed in 32 and rounded
//!   decimals   scaled integers: addends get the larger scale, products add scales, quotients gain four digits
//!   dates      see time.rs
//!
//! Decimals are checked at their full width (128 bits), as arrow checks them; the precision of a result is not.

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::BinaryExpr;
use millpond_kernels::codegen::ir::{Arithmetic, Bitwise, FloatFunction, Overflow};

use crate::column::{is_wide, plain_repr, value_type};
use crate::expr::cast::decimal_type;
use crate::expr::{Lowered, Lowering, Value, refusal};
use crate::plan::overflow::is_checked;

/// Reason for expressions over decimals of 256 bits, which have no device form.
pub(super) const WIDE: &str =
    "decimals of 256 bits are computed with on the dictionary of one column, and it reads several";

impl Lowering<'_> {
    pub(super) fn arithmetic(
        &mut self,
        op: Operator,
        binary: Option<&BinaryExpr>,
        left: Value,
        right: Value,
        data_type: DataType,
    ) -> Lowered<Value> {
        if [&left.data_type, &right.data_type, &data_type].into_iter().any(is_wide) {
            return Err(refusal(WIDE));
        }
        let bitwise = match op {
            Operator::BitwiseAnd => Some(Bitwise::And),
            Operator::BitwiseOr => Some(Bitwise::Or),
            Operator::BitwiseXor => Some(Bitwise::Xor),
            Operator::BitwiseShiftLeft => Some(Bitwise::ShiftLeft),
            Operator::BitwiseShiftRight => Some(Bitwise::ShiftRight),
            _ => None,
        };
        if let Some(bitwise) = bitwise {
            let node = self.graph.bitwise(bitwise, left.node, right.node)?;
            return Ok(Value { node, data_type, dictionary: None });
        }
        let op = match op {
            Operator::Plus => Arithmetic::Add,
            Operator::Minus => Arithmetic::Subtract,
            Operator::Multiply => Arithmetic::Multiply,
            Operator::Divide => Arithmetic::Divide,
            Operator::Modulo => Arithmetic::Remainder,
            other => return Err(refusal(format!("operator {other} is not lowered"))),
        };
        let node = match (value_type(&left.data_type), value_type(&right.data_type)) {
            (l, r) if l.is_decimal() && r.is_decimal() => {
                let operand = |value: &Value| Some((value.node, decimal_type(value_type(&value.data_type))?));
                let (Some(l), Some(r)) = (operand(&left), operand(&right)) else {
                    return Err(refusal(format!("arithmetic of {l} and {r} is not lowered")));
                };
                self.graph.decimal_arithmetic(op, l, r)?.0
            }
            (l, r) if l == r && (l.is_integer() || matches!(l, DataType::Float32 | DataType::Float64)) => {
                let fails = l.is_integer() && binary.is_some_and(is_checked);
                let overflow = if fails { Overflow::Fail } else { Overflow::Wrap };
                self.graph.arithmetic(op, left.node, right.node, overflow)?
            }
            (DataType::Float16, DataType::Float16) => {
                let graph = &mut self.graph;
                let wide = graph.arithmetic(op, left.node, right.node, Overflow::Wrap);
                let node = wide.and_then(|wide| graph.float_function(FloatFunction::Narrow, wide));
                node?
            }
            (l, r) => match self.time_arithmetic(op, &left, &right)? {
                Some(node) => node,
                None if let Some(node) = self.interval_arithmetic(op, &left, &right, &data_type)? => node,
                None => return Err(refusal(format!("arithmetic of {l} and {r} is not lowered"))),
            },
        };
        let expected = plain_repr(&data_type);
        if expected.is_some_and(|expected| expected != self.graph.ty(node).repr) {
            return Err(refusal(format!("it gives {data_type}, which is not lowered")));
        }
        Ok(Value { node, data_type, dictionary: None })
    }
}
