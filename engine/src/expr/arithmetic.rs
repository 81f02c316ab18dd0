//! Numbers: what `+ - * / %` and the bitwise operators mean for each type.
//!
//!   integers   wrap, as arrow's `*_wrapping` do; division by zero is an error
//!   floats     IEEE 754
//!   decimals   scaled integers: addends are brought to the larger scale, products add scales, quotients gain four digits
//!   dates      date − date is a number of days; date ± interval moves by months, then days
//!
//! Decimals are checked at their full width (128 bits), as arrow checks them; the precision of a result is not.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal as LiteralExpr};
use millpond_kernels::codegen::ir::{Arithmetic, Bitwise, Literal, Overflow, Repr, TimeUnit as KernelUnit, Ty};

use super::cast::decimal_type;
use super::{Lowering, Scope, Value, refused, unsupported};
use crate::column::time_unit;
use crate::placement::Reason;

impl Lowering<'_> {
    pub(super) fn arithmetic(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        op: Operator,
        left: Value,
        right: Value,
        data_type: DataType,
    ) -> Result<Value, Reason> {
        let bitwise = match op {
            Operator::BitwiseAnd => Some(Bitwise::And),
            Operator::BitwiseOr => Some(Bitwise::Or),
            Operator::BitwiseXor => Some(Bitwise::Xor),
            Operator::BitwiseShiftLeft => Some(Bitwise::ShiftLeft),
            Operator::BitwiseShiftRight => Some(Bitwise::ShiftRight),
            _ => None,
        };
        if let Some(bitwise) = bitwise {
            let node = self.graph.bitwise(bitwise, left.node, right.node).map_err(|e| refused(expr, &e))?;
            return Ok(Value { node, data_type, dictionary: None });
        }
        let op = match op {
            Operator::Plus => Arithmetic::Add,
            Operator::Minus => Arithmetic::Subtract,
            Operator::Multiply => Arithmetic::Multiply,
            Operator::Divide => Arithmetic::Divide,
            Operator::Modulo => Arithmetic::Remainder,
            other => return Err(unsupported(expr, &format!("operator {other} is not lowered"))),
        };
        let node = match (&left.data_type, &right.data_type) {
            (l, r) if l.is_decimal() && r.is_decimal() => {
                let operand = |value: &Value| Some((value.node, decimal_type(&value.data_type)?));
                let (Some(l), Some(r)) = (operand(&left), operand(&right)) else {
                    return Err(unsupported(expr, &format!("arithmetic of {l} and {r} is not lowered")));
                };
                self.graph.decimal_arithmetic(op, l, r).map_err(|e| refused(expr, &e))?.0
            }
            (DataType::Date32, DataType::Date32) if op == Arithmetic::Subtract => {
                let mut days = |of| self.graph.convert(of, Repr::I64, Overflow::Wrap);
                let days = days(left.node).and_then(|l| Ok((l, days(right.node)?)));
                let (l, r) = days.map_err(|e| refused(expr, &e))?;
                self.graph.arithmetic(op, l, r, Overflow::Wrap).map_err(|e| refused(expr, &e))?
            }
            (l, r) if l == r && (l.is_integer() || matches!(l, DataType::Float32 | DataType::Float64)) => {
                self.graph.arithmetic(op, left.node, right.node, Overflow::Wrap).map_err(|e| refused(expr, &e))?
            }
            (l, r) => return Err(unsupported(expr, &format!("arithmetic of {l} and {r} is not lowered"))),
        };
        Ok(Value { node, data_type, dictionary: None })
    }

    /// A date or timestamp plus or minus a literal interval.
    pub(super) fn plus_interval(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
        let sign = match binary.op() {
            Operator::Plus => 1,
            Operator::Minus => -1,
            _ => return Ok(None),
        };
        let Some(literal) = binary.right().downcast_ref::<LiteralExpr>() else { return Ok(None) };
        if !matches!(literal.value().data_type(), DataType::Interval(_)) {
            return Ok(None);
        }
        let (months, days, nanoseconds) = match literal.value() {
            ScalarValue::IntervalYearMonth(Some(months)) => (*months, 0, 0),
            ScalarValue::IntervalDayTime(Some(v)) => (0, v.days, i64::from(v.milliseconds) * 1_000_000),
            ScalarValue::IntervalMonthDayNano(Some(v)) => (v.months, v.days, v.nanoseconds),
            _ => return Err(unsupported(expr, "a NULL interval is not lowered")),
        };
        let of = self.lower(binary.left(), scope)?;
        let (unit, per_day, nanos_per_tick) = match &of.data_type {
            DataType::Date32 if nanoseconds == 0 => (KernelUnit::Day, 1_i64, 1),
            DataType::Timestamp(unit, None) => {
                let nanos: i64 = match unit {
                    TimeUnit::Second => 1_000_000_000,
                    TimeUnit::Millisecond => 1_000_000,
                    TimeUnit::Microsecond => 1_000,
                    TimeUnit::Nanosecond => 1,
                };
                (time_unit(unit), 86_400_000_000_000 / nanos, nanos)
            }
            other => return Err(unsupported(expr, &format!("{other} plus an interval is not lowered"))),
        };
        if data_type != &of.data_type || nanoseconds % nanos_per_tick != 0 {
            return Err(unsupported(expr, "the interval does not fit the type's unit"));
        }
        let mut node = of.node;
        if months != 0 {
            let months = self.slot(Ty::new(Repr::I32), Literal::Int(i128::from(months * sign)));
            node = self.graph.add_months(node, months, unit).map_err(|e| refused(expr, &e))?;
        }
        let ticks = i128::from(days) * i128::from(per_day) + i128::from(nanoseconds / nanos_per_tick);
        if ticks != 0 {
            let repr = self.graph.ty(node).repr;
            let ticks =
                self.slot(super::digits(repr, ticks * i128::from(sign)), Literal::Int(ticks * i128::from(sign)));
            let sum = self.graph.arithmetic(Arithmetic::Add, node, ticks, Overflow::Fail);
            node = sum.map_err(|e| refused(expr, &e))?;
        }
        Ok(Some(Value { node, data_type: of.data_type, dictionary: None }))
    }
}
