//! Casts between types that have a device form.
//!
//!   integer → integer, float     range-checked; rounds to nearest
//!   float → integer              truncates, range-checked
//!   number → float of 16 bits    via 32 bits; rounds to nearest
//!   decimal → decimal            scales; halves away from zero when digits are dropped; precision checked
//!   decimal ↔ integer, float     by powers of ten
//!   date ↔ timestamp, units      multiplied, or divided towards the past for days
//!   timestamp → time             the time of day
//!   ticks ↔ numbers              via 64-bit integers
//!   number, boolean, date → text as DataFusion writes them; text → integer
//!
//! A value that does not fit is an error under CAST and NULL under TRY_CAST.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use millpond_kernels::codegen::Decimal;
use millpond_kernels::codegen::ir::{
    Arithmetic, FloatFunction, GraphError, Literal, NodeId, Overflow, Repr, TimeUnit as KernelUnit,
};

use crate::column::nested::same_nested;
use crate::column::{is_characters, is_coded, is_nested, is_string, plain_repr, time_unit, value_type};
use crate::expr::{Lowered, Lowering, Refusal, Value, digits, refusal};

/// True if both types hold text, or both bytes, or nested values of one type, so that codes mean the same in both.
/// Bytes of one length are separate: not every string has that length.
pub(crate) fn same_strings(a: &DataType, b: &DataType) -> bool {
    let length = |t: &DataType| match value_type(t) {
        DataType::FixedSizeBinary(bytes) => Some(*bytes),
        _ => None,
    };
    if is_nested(a) || is_nested(b) {
        return same_nested(a, b);
    }
    is_string(a) && is_string(b) && is_characters(a) == is_characters(b) && length(a) == length(b)
}

/// True when equal numbers of both types mean the same value.
pub(crate) fn same_representation(a: &DataType, b: &DataType) -> bool {
    match (value_type(a), value_type(b)) {
        (DataType::Decimal128(_, s1), DataType::Decimal128(_, s2))
        | (DataType::Decimal64(_, s1), DataType::Decimal64(_, s2))
        | (DataType::Decimal32(_, s1), DataType::Decimal32(_, s2)) => s1 == s2,
        (DataType::Timestamp(u1, _), DataType::Timestamp(u2, _)) => u1 == u2,
        (a, b) => a == b,
    }
}

/// Seconds by which local time is ahead of UTC: 0 without a time zone; `None` for named zones.
pub(super) fn zone_offset(zone: &Option<Arc<str>>) -> Option<i64> {
    let Some(zone) = zone.as_deref() else { return Some(0) };
    if matches!(zone, "UTC" | "Etc/UTC") {
        return Some(0);
    }
    // +09:00, -0930 or +09, as arrow reads them.
    let (sign, digits) = match zone.as_bytes() {
        [sign, a, b, b':', c, d] | [sign, a, b, c, d] => (sign, [*a, *b, *c, *d]),
        [sign, a, b] => (sign, [*a, *b, b'0', b'0']),
        _ => return None,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let [a, b, c, d] = digits.map(|digit| i64::from(digit - b'0'));
    let seconds = (a * 10 + b) * 3600 + (c * 10 + d) * 60;
    match sign {
        b'+' if seconds < 86_400 => Some(seconds),
        b'-' if seconds < 86_400 => Some(-seconds),
        _ => None,
    }
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

/// Nanoseconds in a tick.
pub(super) fn nanos(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

impl Lowering<'_> {
    /// Casts `of` to `to`.
    pub(super) fn cast(&mut self, of: Value, to: &DataType, overflow: Overflow) -> Lowered<Value> {
        if of.data_type == DataType::Null && is_coded(to) {
            let null = ScalarValue::try_from(to).map_err(|e| refusal(e.strip_backtrace()))?;
            return self.literal(&null);
        }
        if let Some(value) = self.said(&of, to)? {
            return Ok(value);
        }
        if let Some(value) = self.read_integer(&of, to, overflow)? {
            return Ok(value);
        }
        let node = self.cast_node(&of, to, overflow)?;
        Ok(Value { node, data_type: to.clone(), dictionary: None })
    }

    fn cast_node(&mut self, of: &Value, to: &DataType, overflow: Overflow) -> Lowered<NodeId> {
        use DataType::*;
        let whole = to;
        let (from, to) = (value_type(&of.data_type), value_type(whole));
        let refuse = |why: &str| Err(refusal(why));
        if of.dictionary.is_some() || is_coded(to) {
            return refuse(&format!("a cast from {from} to {to} is not lowered"));
        }
        let repr = plain_repr(whole).ok_or_else(|| Refusal::Type(whole.clone()))?;
        let number = |t: &DataType| t.is_integer() || matches!(t, Float16 | Float32 | Float64 | Boolean);
        let graph = &mut self.graph;
        let built: Result<NodeId, GraphError> = match (from, to) {
            (Null, _) => Ok(graph.null(repr)),
            (a, b) if a == b => Ok(of.node),
            // Via 32 bits, as in arrow.
            (a, Float16) if number(a) => {
                let wide = graph.convert(of.node, Repr::F32, overflow);
                wide.and_then(|wide| graph.float_function(FloatFunction::Narrow, wide))
            }
            // The value is exact; a NaN is made quiet.
            (Float16, Float32) => graph.float_function(FloatFunction::Narrow, of.node),
            (a, b) if number(a) && number(b) => graph.convert(of.node, repr, overflow),
            // Ticks are numbers of 64 bits.
            (number, Timestamp(..) | Duration(_)) if number.is_numeric() => {
                let ticks = self.cast(of.clone(), &Int64, overflow)?;
                return Ok(ticks.node);
            }
            (Timestamp(..) | Duration(_), number) if number.is_numeric() => {
                let ticks = Value { node: of.node, data_type: Int64, dictionary: None };
                return self.cast_node(&ticks, to, overflow);
            }
            (a, b) if a.is_decimal() || b.is_decimal() => match (decimal_type(a), decimal_type(b)) {
                (Some(a), Some(b)) => graph.decimal_to_decimal(of.node, a, b, repr, overflow),
                (Some(a), None) if to.is_integer() => graph.decimal_to_integer(of.node, a, repr, overflow),
                (Some(a), None) if matches!(to, Float32 | Float64) => graph.decimal_to_float(of.node, a, repr),
                (None, Some(b)) if from.is_integer() => graph.integer_to_decimal(of.node, b, repr, overflow),
                (None, Some(b)) if matches!(from, Float16 | Float32 | Float64) => {
                    graph.float_to_decimal(of.node, b, repr, overflow)
                }
                _ => return refuse(&format!("a cast from {from} to {to} is not lowered")),
            },
            // Equal ticks of another type.
            (Int32, Date32 | Time32(_)) | (Date32 | Time32(_), Int32) => Ok(of.node),
            (Int64, Time64(_) | Date64) | (Time64(_) | Date64, Int64) => Ok(of.node),
            (Date32 | Time32(_), Int64) => graph.convert(of.node, Repr::I64, Overflow::Wrap),
            (Int64, Date32) | (Date64, Int32) => graph.convert(of.node, repr, overflow),
            (Int32, Date64) => graph.convert_time(of.node, KernelUnit::Day, KernelUnit::Millisecond, Overflow::Wrap),
            // A date begins at midnight in the zone of the timestamp.
            (Date32 | Date64, Timestamp(unit, name)) => {
                let zone = Self::known_zone(name)?;
                let (own, checked) = if *from == Date32 {
                    (KernelUnit::Day, overflow)
                } else {
                    (KernelUnit::Millisecond, Overflow::Fail)
                };
                let local = graph.convert_time(of.node, own, time_unit(unit), checked)?;
                return self.instant(local, unit, &zone, overflow);
            }
            (Date32, Date64) => graph.convert_time(of.node, KernelUnit::Day, KernelUnit::Millisecond, Overflow::Wrap),
            (Date64, Date32) => graph.date64_to_date32(of.node, overflow),
            (Timestamp(unit, name), Date32) => {
                let zone = Self::known_zone(name)?;
                let local = self.local_time(of.node, unit, &zone)?;
                self.graph.convert_time(local, time_unit(unit), KernelUnit::Day, overflow)
            }
            (Timestamp(unit, _), Date64) => {
                graph.convert_time(of.node, time_unit(unit), KernelUnit::Millisecond, overflow)
            }
            (Timestamp(a, name), Time32(b) | Time64(b)) => {
                let zone = Self::known_zone(name)?;
                let local = self.local_time(of.node, a, &zone)?;
                self.graph.time_of_day(local, time_unit(a), time_unit(b), repr)
            }
            // Only a local time that receives a zone is shifted.
            (Timestamp(a, from), Timestamp(b, to)) => {
                let zone = Self::known_zone(if from.is_some() { &None } else { to })?;
                let node = graph.convert_time(of.node, time_unit(a), time_unit(b), overflow);
                let node = match (from, to) {
                    (None, Some(_)) => node.and_then(|node| graph.dated(node, time_unit(b), overflow)),
                    _ => node,
                };
                let node = node?;
                return self.instant(node, b, &zone, overflow);
            }
            (Duration(a), Duration(b)) => graph.convert_time(of.node, time_unit(a), time_unit(b), overflow),
            (Time32(a) | Time64(a), Time32(b) | Time64(b)) => {
                graph.convert_time_of_day(of.node, time_unit(a), time_unit(b), repr, overflow)
            }
            (a, b) => return refuse(&format!("a cast from {a} to {b} is not lowered")),
        };
        Ok(built?)
    }

    /// A timestamp `seconds` later.
    pub(super) fn moved(&mut self, of: NodeId, unit: &TimeUnit, seconds: i64, overflow: Overflow) -> Lowered<NodeId> {
        if seconds == 0 {
            return Ok(of);
        }
        let ticks = i128::from(seconds) * i128::from(1_000_000_000 / nanos(unit));
        let ticks = self.slot(digits(Repr::I64, ticks), Literal::Int(ticks));
        Ok(self.graph.arithmetic(Arithmetic::Add, of, ticks, overflow)?)
    }
}
