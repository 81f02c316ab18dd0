//! Casts between the types that live on the device.
//!
//!   integer → integer, float     range-checked; rounds to nearest
//!   float → integer              truncates, range-checked
//!   decimal → decimal            scales; halves away from zero when digits are dropped; precision checked
//!   decimal ↔ integer, float     by powers of ten
//!   date ↔ timestamp, units      multiplied, or divided towards the past for days
//!   timestamp → time             what is left of a day
//!   ticks ↔ numbers              by way of 64-bit integers
//!
//! A value that does not fit is an error under CAST and NULL under TRY_CAST.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::Decimal;
use millpond_kernels::codegen::ir::{GraphError, NodeId, Overflow, Repr, TimeUnit as KernelUnit};

use super::{Lowering, Value, refused, unsupported};
use crate::column::{is_string, plain_repr, time_unit, type_unsupported};
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

/// True for no time zone, and for the one whose local time is the timestamp's own.
pub(super) fn is_utc(zone: &Option<Arc<str>>) -> bool {
    zone.as_deref()
        .is_none_or(|zone| matches!(zone, "UTC" | "utc" | "Z" | "+00:00" | "-00:00" | "+00" | "+0000" | "Etc/UTC"))
}

/// Precision and scale of a decimal of up to 128 bits.
pub(super) fn decimal_type(data_type: &DataType) -> Option<Decimal> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => Some(Decimal::new(*precision, *scale)),
        _ => None,
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
            // Ticks are numbers of 64 bits.
            (number, Timestamp(..) | Duration(_)) if number.is_numeric() => {
                let ticks = self.cast(expr, of.clone(), &Int64, overflow)?;
                return Ok(ticks.node);
            }
            (Timestamp(..) | Duration(_), number) if number.is_numeric() => {
                let ticks = Value { node: of.node, data_type: Int64, dictionary: None };
                return self.cast_node(expr, &ticks, to, overflow);
            }
            (a, b) if a.is_decimal() || b.is_decimal() => match (decimal_type(a), decimal_type(b)) {
                (Some(a), Some(b)) => graph.decimal_to_decimal(of.node, a, b, repr, overflow),
                (Some(a), None) if to.is_integer() => graph.decimal_to_integer(of.node, a, repr, overflow),
                (Some(a), None) if matches!(to, Float32 | Float64) => graph.decimal_to_float(of.node, a, repr),
                (None, Some(b)) if from.is_integer() => graph.integer_to_decimal(of.node, b, repr, overflow),
                (None, Some(b)) if matches!(from, Float32 | Float64) => {
                    graph.float_to_decimal(of.node, b, repr, overflow)
                }
                _ => return refuse(&format!("a cast from {from} to {to} is not lowered")),
            },
            // The same ticks under another name.
            (Int32, Date32 | Time32(_)) | (Date32 | Time32(_), Int32) => Ok(of.node),
            (Int64, Time64(_) | Date64) | (Time64(_) | Date64, Int64) => Ok(of.node),
            (Date32 | Time32(_), Int64) => graph.convert(of.node, Repr::I64, Overflow::Wrap),
            (Int64, Date32) | (Date64, Int32) => graph.convert(of.node, repr, overflow),
            (Int32, Date64) => graph.convert_time(of.node, KernelUnit::Day, KernelUnit::Millisecond, Overflow::Wrap),
            (Date32, Timestamp(unit, zone)) if is_utc(zone) => {
                graph.convert_time(of.node, KernelUnit::Day, time_unit(unit), overflow)
            }
            (Date64, Timestamp(unit, zone)) if is_utc(zone) => {
                graph.convert_time(of.node, KernelUnit::Millisecond, time_unit(unit), Overflow::Fail)
            }
            (Date32, Date64) => graph.convert_time(of.node, KernelUnit::Day, KernelUnit::Millisecond, Overflow::Wrap),
            (Date64, Date32) => graph.date64_to_date32(of.node, overflow),
            (Timestamp(unit, zone), Date32) if is_utc(zone) => {
                graph.convert_time(of.node, time_unit(unit), KernelUnit::Day, overflow)
            }
            (Timestamp(unit, _), Date64) => {
                graph.convert_time(of.node, time_unit(unit), KernelUnit::Millisecond, overflow)
            }
            (Timestamp(a, zone), Time32(b) | Time64(b)) if is_utc(zone) => {
                graph.time_of_day(of.node, time_unit(a), time_unit(b), repr)
            }
            // Only a local time that gets a zone is moved.
            (Timestamp(a, from), Timestamp(b, to)) if from.is_some() || is_utc(to) => {
                graph.convert_time(of.node, time_unit(a), time_unit(b), overflow)
            }
            (Duration(a), Duration(b)) => graph.convert_time(of.node, time_unit(a), time_unit(b), overflow),
            (Time32(a) | Time64(a), Time32(b) | Time64(b)) => {
                graph.convert_time_of_day(of.node, time_unit(a), time_unit(b), repr, overflow)
            }
            (a, b) => return refuse(&format!("a cast from {a} to {b} is not lowered")),
        };
        built.map_err(|e| refused(expr, &e))
    }
}
