//! Casts between the types that live on the device.
//!
//!   integer → integer, float     range-checked; rounds to nearest
//!   float → integer              truncates, range-checked
//!   decimal → decimal            scales; halves away from zero when digits are dropped; precision checked
//!   decimal ↔ integer, float     by powers of ten
//!   date ↔ timestamp, units      multiplied, or divided towards the past for days
//!
//! A value that does not fit is an error under CAST and NULL under TRY_CAST.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{Arithmetic, FloatFunction, GraphError, NodeId, Overflow, Range, Repr, Rounding};

use super::{Lowering, Value, refused, unsupported};
use crate::column::{is_string, plain_repr, type_unsupported};
use crate::placement::Reason;

/// True when both types hold text, so that codes mean the same in either.
pub(super) fn same_strings(a: &DataType, b: &DataType) -> bool {
    fn text(t: &DataType) -> Option<bool> {
        match t {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(true),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(false),
            DataType::Dictionary(_, values) => text(values),
            _ => None,
        }
    }
    is_string(a) && text(a) == text(b)
}

/// True when equal numbers of both types mean the same value.
pub(super) fn same_representation(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::Decimal128(_, s1), DataType::Decimal128(_, s2))
        | (DataType::Decimal64(_, s1), DataType::Decimal64(_, s2))
        | (DataType::Decimal32(_, s1), DataType::Decimal32(_, s2)) => s1 == s2,
        (DataType::Timestamp(u1, _), DataType::Timestamp(u2, _)) => u1 == u2,
        _ => a == b,
    }
}

/// 10^digits, or a reason when 128 bits do not hold it.
pub(super) fn power_of_ten(expr: &Arc<dyn PhysicalExpr>, digits: i8) -> Result<i128, Reason> {
    u32::try_from(digits)
        .ok()
        .and_then(|digits| 10_i128.checked_pow(digits))
        .ok_or_else(|| unsupported(expr, &format!("10 to the power {digits} does not fit")))
}

fn ticks_per_day(unit: &TimeUnit) -> i128 {
    86_400 * ticks_per_second(unit)
}

fn ticks_per_second(unit: &TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

impl Lowering<'_> {
    /// `of` as `to`.
    pub(super) fn cast(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: Value,
        to: &DataType,
        overflow: Overflow,
    ) -> Result<Value, Reason> {
        let node = self.cast_node(expr, &of, to, overflow)?;
        Ok(Value { node, data_type: to.clone(), dictionary: None })
    }

    fn cast_node(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Value,
        to: &DataType,
        overflow: Overflow,
    ) -> Result<NodeId, Reason> {
        use DataType::*;
        let from = &of.data_type;
        let refuse = |why: &str| Err(unsupported(expr, why));
        if of.dictionary.is_some() || is_string(to) {
            return refuse("a cast between strings and other types is done on a dictionary only");
        }
        let repr = plain_repr(to).ok_or_else(|| type_unsupported(&expr.to_string(), to))?;
        let number = |t: &DataType| t.is_integer() || matches!(t, Float32 | Float64 | Boolean);
        let graph = &mut self.graph;
        let built: Result<NodeId, GraphError> = match (from, to) {
            (Null, _) => Ok(graph.null(repr)),
            (a, b) if a == b => Ok(of.node),
            (a, b) if number(a) && number(b) => graph.convert(of.node, repr, overflow),
            (a, Decimal128(p, s)) if a.is_integer() && *s >= 0 => {
                let wide = graph.convert(of.node, Repr::I128, Overflow::Wrap).map_err(|e| refused(expr, &e))?;
                let factor = graph.integer(power_of_ten(expr, *s)?, Repr::I128);
                graph
                    .arithmetic(Arithmetic::Multiply, wide, factor, overflow)
                    .and_then(|scaled| graph.check(scaled, precision(*p), overflow))
            }
            (Float32 | Float64, Decimal128(p, s)) if *s >= 0 => {
                let factor = 10_f64.powi(i32::from(*s));
                let wide = graph.convert(of.node, Repr::F64, Overflow::Wrap).map_err(|e| refused(expr, &e))?;
                let factor = graph.float(factor, Repr::F64);
                graph
                    .arithmetic(Arithmetic::Multiply, wide, factor, Overflow::Wrap)
                    .and_then(|scaled| graph.float_function(FloatFunction::Round, scaled))
                    .and_then(|rounded| graph.convert(rounded, Repr::I128, overflow))
                    .and_then(|integer| graph.check(integer, precision(*p), overflow))
            }
            (Decimal128(p1, s1), Decimal128(p2, s2)) => {
                let scaled = match s2.cmp(s1) {
                    std::cmp::Ordering::Equal => Ok(of.node),
                    std::cmp::Ordering::Greater => {
                        let factor = graph.integer(power_of_ten(expr, s2 - s1)?, Repr::I128);
                        graph.arithmetic(Arithmetic::Multiply, of.node, factor, overflow)
                    }
                    std::cmp::Ordering::Less => {
                        graph.divide_constant(of.node, power_of_ten(expr, s1 - s2)?, Rounding::HalfAway)
                    }
                };
                // Arrow checks no precision where the type alone says that every value fits.
                let digits_kept = i16::from(*p2) - i16::from(*s2) >= i16::from(*p1) - i16::from(*s1);
                match digits_kept && s2 >= s1 {
                    true => scaled,
                    false => scaled.and_then(|node| graph.check(node, precision(*p2), overflow)),
                }
            }
            (Decimal128(_, s), b) if b.is_integer() && *s >= 0 => graph
                .divide_constant(of.node, power_of_ten(expr, *s)?, Rounding::Truncate)
                .and_then(|whole| graph.convert(whole, repr, overflow)),
            (Decimal128(_, s), Float64) if *s >= 0 => {
                let divisor = graph.float(10_f64.powi(i32::from(*s)), Repr::F64);
                graph
                    .convert(of.node, Repr::F64, Overflow::Wrap)
                    .and_then(|wide| graph.arithmetic(Arithmetic::Divide, wide, divisor, Overflow::Wrap))
            }
            // The same ticks under another name.
            (Int32, Date32) | (Date32, Int32) => Ok(of.node),
            (Int64, Timestamp(..) | Date64 | Duration(_)) | (Timestamp(..) | Date64 | Duration(_), Int64) => {
                Ok(of.node)
            }
            (Date32, Int64) => graph.convert(of.node, Repr::I64, Overflow::Wrap),
            (Date32, Timestamp(unit, None)) => {
                let factor = graph.integer(ticks_per_day(unit), Repr::I64);
                graph
                    .convert(of.node, Repr::I64, Overflow::Wrap)
                    .and_then(|days| graph.arithmetic(Arithmetic::Multiply, days, factor, overflow))
            }
            (Timestamp(unit, None), Date32) => graph
                .divide_constant(of.node, ticks_per_day(unit), Rounding::Floor)
                .and_then(|days| graph.convert(days, Repr::I32, overflow)),
            (Timestamp(a, tz1), Timestamp(b, tz2)) if tz1 == tz2 => {
                let (a, b) = (ticks_per_second(a), ticks_per_second(b));
                if a >= b {
                    graph.divide_constant(of.node, a / b, Rounding::Truncate)
                } else {
                    let factor = graph.integer(b / a, Repr::I64);
                    graph.arithmetic(Arithmetic::Multiply, of.node, factor, overflow)
                }
            }
            (a, b) => return refuse(&format!("a cast from {a} to {b} is not lowered")),
        };
        built.map_err(|e| refused(expr, &e))
    }
}

/// The values that a decimal of precision `p` holds.
fn precision(p: u8) -> Range {
    let limit = 10_i128.checked_pow(u32::from(p)).map_or(i128::MAX, |limit| limit - 1);
    Range::new(-limit, limit)
}
