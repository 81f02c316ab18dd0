//! Functions and arithmetic of dates, times and timestamps.
//!
//!   ts + INTERVAL '1 month 2 hours'    months, then days, then ticks, each inside the calendar
//!   date_bin(stride, ts, origin)       floor((ts - origin) / stride) * stride + origin
//!   to_timestamp(f64)                  seconds to nanoseconds
//!
//! Zones    fields, periods, months and days are those of local time: see zone.rs.
//! Errors   results beyond the calendar or 64 bits raise the error flag, except in date_bin, where they are NULL.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal as LiteralExpr};
use millpond_kernels::codegen::IntervalParts;
use millpond_kernels::codegen::ir::{
    Arithmetic, Comparison, DateGrain, DatePart, Graph, GraphError, Literal, NodeId, Overflow, Range, Repr, Rounding,
    TimeUnit as KernelUnit, Ty,
};

use crate::column::{is_string, time_unit};
use crate::expr::cast::nanos;
use crate::expr::row::{Call, Form, Row};
use crate::expr::zone::{Zone, zone};
use crate::expr::{Lowered, Lowering, Scope, Value, digits, refusal};

pub(super) const DAY_NANOS: i64 = 86_400_000_000_000;

/// Functions of dates and times.
pub(super) const TIMES: &[Row] = &[
    Row::new("date_bin", (2, 3), Form::Plain(|lowering, call| lowering.date_bin(call))),
    Row::new("date_part", (2, 2), Form::Plain(|lowering, call| lowering.part_of_date(call))),
    Row::new("date_trunc", (2, 2), Form::Plain(|lowering, call| lowering.start_of_period(call))),
    Row::new("from_unixtime", (1, 2), Form::Plain(|lowering, call| lowering.seconds_as_timestamp(call))),
    Row::new("make_date", (3, 3), Form::Plain(|lowering, call| lowering.of_parts(call, Graph::make_date))),
    Row::new("make_time", (3, 3), Form::Plain(|lowering, call| lowering.of_parts(call, Graph::make_time))),
    Row::new("to_date", (1, 1), Form::Plain(|lowering, call| lowering.date_of(call))),
    Row::new("to_local_time", (1, 1), Form::Plain(|lowering, call| lowering.without_zone(call))),
    Row::new("to_timestamp", (1, 1), Form::Plain(|lowering, call| lowering.as_timestamp(call))),
    Row::new("to_timestamp_micros", (1, 1), Form::Plain(|lowering, call| lowering.of_ticks(call))),
    Row::new("to_timestamp_millis", (1, 1), Form::Plain(|lowering, call| lowering.of_ticks(call))),
    Row::new("to_timestamp_nanos", (1, 1), Form::Plain(|lowering, call| lowering.of_ticks(call))),
    Row::new("to_timestamp_seconds", (1, 1), Form::Plain(|lowering, call| lowering.of_ticks(call))),
    Row::new("to_unixtime", (1, 1), Form::Plain(|lowering, call| lowering.seconds_of(call))),
];

impl Lowering<'_> {
    fn part_of_date(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [part, of] = call.arguments else { return Ok(None) };
        let part = text(part).and_then(|text| date_part(&text));
        let part = part.ok_or_else(|| refusal("this field has no device form"))?;
        let of = self.lower(of, call.scope)?;
        let node = self.date_part(part, &of)?;
        call.plain(node)
    }

    fn start_of_period(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [grain, of] = call.arguments else { return Ok(None) };
        let grain = text(grain).and_then(|text| date_grain(&text));
        let grain = grain.ok_or_else(|| refusal("this grain has no device form"))?;
        let of = self.lower(of, call.scope)?;
        if of.data_type != *call.data_type {
            return Err(refusal(format!("it gives {} for {}", call.data_type, of.data_type)));
        }
        let node = self.date_truncate(grain, &of)?;
        call.plain(node)
    }

    /// `make_date` and `make_time`.
    fn of_parts(
        &mut self,
        call: &Call<'_>,
        build: fn(&mut Graph, NodeId, NodeId, NodeId) -> Result<NodeId, GraphError>,
    ) -> Lowered<Option<Value>> {
        let [first, second, third] = call.arguments else { return Ok(None) };
        let [first, second, third] = [first, second, third].map(|part| self.whole(part, call.scope));
        let node = build(&mut self.graph, first?, second?, third?)?;
        call.plain(node)
    }

    fn date_of(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let through = match &of.data_type {
            DataType::Int32 | DataType::Int64 | DataType::Date32 | DataType::Date64 => None,
            DataType::Timestamp(..) => None,
            small if small.is_integer() => Some(DataType::Int32),
            text if is_string(text) => {
                return Err(refusal("dates are read from the values of a dictionary, and there is none"));
            }
            _ => Some(DataType::Int64),
        };
        let node = self.cast_through(of, through, call.data_type)?;
        call.plain(node)
    }

    fn seconds_as_timestamp(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let node = self.cast_through(of, Some(DataType::Int64), call.data_type)?;
        call.plain(node)
    }

    fn without_zone(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let node = match &of.data_type {
            DataType::Timestamp(unit, Some(_)) => {
                let local = self.local(&of)?;
                self.graph.dated(local, time_unit(unit), Overflow::Fail)?
            }
            _ => self.cast_through(of, None, call.data_type)?,
        };
        call.plain(node)
    }

    fn seconds_of(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let through = match &of.data_type {
            DataType::Date32 | DataType::Date64 => Some(DataType::Timestamp(TimeUnit::Second, None)),
            DataType::Timestamp(_, zone) => Some(DataType::Timestamp(TimeUnit::Second, zone.clone())),
            _ => None,
        };
        let node = self.cast_through(of, through, call.data_type)?;
        call.plain(node)
    }

    fn as_timestamp(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        let node = self.timestamp_of(of, call.data_type)?;
        call.plain(node)
    }

    /// A timestamp of a number of its own ticks.
    fn of_ticks(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let of = self.lower(&call.arguments[0], call.scope)?;
        if !of.data_type.is_numeric() && !matches!(of.data_type, DataType::Timestamp(..)) {
            return Err(refusal(format!("it has no device form over {}", of.data_type)));
        }
        let through = of.data_type.is_floating().then_some(DataType::Int64);
        let node = self.cast_through(of, through, call.data_type)?;
        call.plain(node)
    }

    /// Casts `of` to `to`, optionally via another type.
    fn cast_through(&mut self, of: Value, through: Option<DataType>, to: &DataType) -> Lowered<NodeId> {
        let of = match through {
            Some(through) => self.cast(of, &through, Overflow::Fail)?,
            None => of,
        };
        Ok(self.cast(of, to, Overflow::Fail)?.node)
    }

    fn timestamp_of(&mut self, of: Value, to: &DataType) -> Lowered<NodeId> {
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        match &of.data_type {
            DataType::Timestamp(..) => self.cast_through(of, None, to),
            integer if integer.is_integer() => self.cast_through(of, Some(seconds), to),
            DataType::Float32 | DataType::Float64 => {
                let wide = self.graph.convert(of.node, Repr::F64, Overflow::Wrap);
                Ok(wide.and_then(|wide| self.graph.seconds_to_nanoseconds(wide))?)
            }
            DataType::Decimal128(_, scale) => {
                let graph = &mut self.graph;
                let shift = 9 - i32::from(*scale);
                let power = 10_i128.checked_pow(shift.unsigned_abs());
                let power = power.ok_or_else(|| refusal("its scale has no device form"))?;
                let nanos = if shift >= 0 {
                    let power = graph.integer(power, Repr::I128);
                    graph.arithmetic(Arithmetic::Multiply, of.node, power, Overflow::Fail)
                } else {
                    graph.divide_constant(of.node, power, Rounding::Truncate)
                };
                let narrow = nanos.and_then(|nanos| graph.convert(nanos, Repr::I64, Overflow::Fail));
                Ok(narrow?)
            }
            other => Err(refusal(format!("it has no device form over {other}"))),
        }
    }

    /// The node of an `Int32` argument.
    fn whole(&mut self, argument: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<NodeId> {
        let of = self.lower(argument, scope)?;
        match of.data_type {
            DataType::Int32 => Ok(of.node),
            other => Err(refusal(format!("it has no device form over {other}"))),
        }
    }

    fn date_part(&mut self, part: DatePart, of: &Value) -> Lowered<NodeId> {
        let fine = matches!(part, DatePart::Millisecond | DatePart::Microsecond | DatePart::Nanosecond);
        let of_day = fine || matches!(part, DatePart::Hour | DatePart::Minute | DatePart::Second | DatePart::Epoch);
        let (unit, node) = match &of.data_type {
            DataType::Date64 if !fine => (KernelUnit::Millisecond, of.node),
            DataType::Time32(unit) | DataType::Time64(unit) if of_day => {
                // A number outside the day has no fields.
                let unit = time_unit(unit);
                let inside = Range::new(0, per_day(unit) - 1);
                let node = if part == DatePart::Epoch {
                    Ok(of.node)
                } else {
                    self.graph.check(of.node, inside, Overflow::Null)
                };
                (unit, node?)
            }
            _ if part == DatePart::Epoch => (self.calendar_unit(of)?, of.node),
            _ => (self.calendar_unit(of)?, self.local(of)?),
        };
        Ok(self.graph.date_part(part, node, unit)?)
    }

    fn date_truncate(&mut self, grain: DateGrain, of: &Value) -> Lowered<NodeId> {
        let coarse = matches!(grain, DateGrain::Week | DateGrain::Month | DateGrain::Quarter | DateGrain::Year);
        let (unit, mut node) = match &of.data_type {
            DataType::Time32(unit) | DataType::Time64(unit) if !coarse && grain != DateGrain::Day => {
                (time_unit(unit), of.node)
            }
            _ => (self.calendar_unit(of)?, of.node),
        };
        // With a time zone, hours and days go via nanoseconds, too; finer grains are cut off in UTC.
        let zoned = matches!(&of.data_type, DataType::Timestamp(_, Some(_)));
        let local = zoned && (coarse || matches!(grain, DateGrain::Hour | DateGrain::Day));
        let scale = per_day(KernelUnit::Nanosecond) / per_day(unit);
        let limits = Range::new(i128::from(i64::MIN) / scale, i128::from(i64::MAX) / scale);
        if local {
            node = self.graph.check(node, limits, Overflow::Fail)?;
        }
        let zone = match &of.data_type {
            DataType::Timestamp(ticks, name) if local => zone(name).map(|zone| (ticks, zone)),
            _ => None,
        };
        let within = node;
        if let Some((ticks, zone)) = &zone {
            node = self.local_time(node, ticks, zone)?;
        }
        let start = self.graph.date_truncate(grain, node, unit)?;
        match &zone {
            Some((ticks, zone)) => {
                let start = self.instant_of_start(start, ticks, zone, within)?;
                Ok(self.graph.check(start, limits, Overflow::Fail)?)
            }
            None => Ok(start),
        }
    }

    /// A date or timestamp in the local time of its own zone.
    fn local(&mut self, of: &Value) -> Lowered<NodeId> {
        match &of.data_type {
            DataType::Timestamp(unit, name) => match zone(name) {
                Some(zone) => self.local_time(of.node, unit, &zone),
                None => Ok(of.node),
            },
            _ => Ok(of.node),
        }
    }

    /// `date_bin(stride, of[, origin])`.
    fn date_bin(&mut self, call: &Call<'_>) -> Lowered<Option<Value>> {
        let [stride, of, origin @ ..] = call.arguments else { return Ok(None) };
        let literal =
            |of: &Arc<dyn PhysicalExpr>| of.downcast_ref::<LiteralExpr>().map(|literal| literal.value().clone());
        let stride = literal(stride);
        // DataFusion refuses months with days.
        let months = match &stride {
            Some(ScalarValue::IntervalMonthDayNano(Some(v))) if v.days == 0 && v.nanoseconds == 0 => Some(v.months),
            _ => None,
        };
        let stride = match stride {
            Some(ScalarValue::IntervalDayTime(Some(v))) => {
                Some(i128::from(v.days) * i128::from(DAY_NANOS) + i128::from(v.milliseconds) * 1_000_000)
            }
            Some(ScalarValue::IntervalMonthDayNano(Some(v))) if v.months == 0 => {
                Some(i128::from(v.days) * i128::from(DAY_NANOS) + i128::from(v.nanoseconds))
            }
            _ => None,
        };
        let stride = stride.and_then(|stride| i64::try_from(stride).ok()).filter(|stride| *stride > 0);
        let months = months.filter(|months| *months > 0);
        if stride.is_none() && months.is_none() {
            return Err(refusal("a stride that is no positive constant has no device form"));
        }
        let of = self.lower(of, call.scope)?;
        let DataType::Timestamp(unit, _) = &of.data_type else {
            return Err(refusal(format!("it has no device form over {}", of.data_type)));
        };
        let origin = match origin.first().map(literal) {
            None => 0,
            Some(Some(ScalarValue::TimestampNanosecond(Some(origin), _))) => origin,
            _ => return Err(refusal("an origin that is no constant timestamp has no device form")),
        };
        let origin = self.slot(digits(Repr::I64, origin.into()), Literal::Int(origin.into()));
        let node = match (stride, months) {
            (Some(stride), _) => self.graph.date_bin(of.node, time_unit(unit), stride, origin),
            (None, months) => month_bin(&mut self.graph, of.node, time_unit(unit), months.unwrap_or(1), origin),
        };
        call.plain(node?)
    }

    fn calendar_unit(&self, of: &Value) -> Lowered<KernelUnit> {
        match &of.data_type {
            DataType::Date32 => Ok(KernelUnit::Day),
            DataType::Timestamp(unit, name) if zone(name).is_some() => Ok(time_unit(unit)),
            other => Err(refusal(format!("fields of {other} have no device form"))),
        }
    }

    /// Differences of dates and timestamps, and sums with durations; `None` for other operands.
    pub(super) fn time_arithmetic(&mut self, op: Arithmetic, left: &Value, right: &Value) -> Lowered<Option<NodeId>> {
        use DataType::{Date32, Date64, Duration, Timestamp};
        let graph = &mut self.graph;
        let node = match (&left.data_type, &right.data_type) {
            (Date32, Date32) if op == Arithmetic::Subtract => {
                let mut days = |of| graph.convert(of, Repr::I64, Overflow::Wrap);
                let days = days(left.node).and_then(|l| Ok((l, days(right.node)?)));
                days.and_then(|(l, r)| graph.arithmetic(op, l, r, Overflow::Wrap))
            }
            (Date64, Date64) if op == Arithmetic::Subtract => {
                let difference = graph.arithmetic(op, left.node, right.node, Overflow::Wrap);
                difference.and_then(|millis| graph.divide_constant(millis, 86_400_000, Rounding::Truncate))
            }
            (Timestamp(a, _), Timestamp(b, _)) if a == b && op == Arithmetic::Subtract => {
                graph.arithmetic(op, left.node, right.node, Overflow::Fail)
            }
            (Timestamp(a, _) | Duration(a), Duration(b))
                if a == b && matches!(op, Arithmetic::Add | Arithmetic::Subtract) =>
            {
                graph.arithmetic(op, left.node, right.node, Overflow::Fail)
            }
            (Duration(a), Timestamp(b, _)) if a == b && op == Arithmetic::Add => {
                graph.arithmetic(op, left.node, right.node, Overflow::Fail)
            }
            _ => return Ok(None),
        };
        Ok(node.map(Some)?)
    }

    /// A date, time or timestamp plus or minus a literal interval.
    pub(super) fn plus_interval(
        &mut self,
        binary: &BinaryExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Lowered<Option<Value>> {
        let interval = |of: &Arc<dyn PhysicalExpr>| {
            let literal = of.downcast_ref::<LiteralExpr>()?.value();
            matches!(literal.data_type(), DataType::Interval(_)).then(|| literal.clone())
        };
        let (of, literal, sign) = match binary.op() {
            Operator::Plus => match (interval(binary.left()), interval(binary.right())) {
                (None, Some(literal)) => (binary.left(), literal, 1),
                (Some(literal), None) => (binary.right(), literal, 1),
                _ => return Ok(None),
            },
            Operator::Minus => match interval(binary.right()) {
                Some(literal) => (binary.left(), literal, -1),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let of = self.lower(of, scope)?;
        if matches!(of.data_type, DataType::Interval(_)) {
            return Ok(None);
        }
        if *data_type != of.data_type {
            return Err(refusal(format!("{} plus an interval gives {data_type}", of.data_type)));
        }
        let (months, days, nanoseconds) = match literal {
            ScalarValue::IntervalYearMonth(Some(months)) => (months, 0, 0),
            ScalarValue::IntervalDayTime(Some(v)) => (0, v.days, i64::from(v.milliseconds) * 1_000_000),
            ScalarValue::IntervalMonthDayNano(Some(v)) => (v.months, v.days, v.nanoseconds),
            _ => {
                let node = self.null_of(data_type)?;
                return Ok(Some(Value { node, data_type: of.data_type, dictionary: None }));
            }
        };
        let sign_wide = i128::from(sign);
        let node = match &of.data_type {
            DataType::Date32 => {
                // A date has no time of day: only whole days of the nanoseconds count.
                let whole = i128::from(days) + i128::from(nanoseconds / DAY_NANOS);
                let parts = IntervalParts {
                    months: self.months(months, sign),
                    days: self.ticks(Repr::I32, whole * sign_wide),
                    rest: None,
                };
                if i32::try_from(whole * sign_wide).is_err() {
                    return Err(refusal("so long an interval has no device form"));
                }
                self.graph.add_interval(of.node, KernelUnit::Day, parts)
            }
            DataType::Timestamp(unit, name) if zone(name).is_some() || (months == 0 && days == 0) => {
                let tick = nanos(unit);
                let days = i128::from(days) * i128::from(DAY_NANOS / tick);
                let rest = i128::from(nanoseconds) * sign_wide;
                let rest = rest.div_euclid(i128::from(tick));
                let days = days * sign_wide;
                let zone = zone(name).unwrap_or(Zone::Ahead(0));
                if let Zone::Changing(_) = zone {
                    let parts = (self.months(months, sign), self.ticks(Repr::I64, days), self.ticks(Repr::I64, rest));
                    let node = self.step_by_step(of.node, unit, &zone, parts)?;
                    return Ok(Some(Value { node, data_type: of.data_type, dictionary: None }));
                }
                // Steps in one direction are combined; otherwise the first of them may leave the calendar.
                let (days, rest) = if (days < 0) == (rest < 0) { (days + rest, 0) } else { (days, rest) };
                let parts = IntervalParts {
                    months: self.months(months, sign),
                    days: self.ticks(Repr::I64, days),
                    rest: self.ticks(Repr::I64, rest),
                };
                // Months are added in local time.
                let zone = if months == 0 { Zone::Ahead(0) } else { zone };
                let local = self.local_time(of.node, unit, &zone)?;
                let sum = self.graph.add_interval(local, time_unit(unit), parts)?;
                Ok(self.instant(sum, unit, &zone, Overflow::Fail)?)
            }
            DataType::Time32(unit) | DataType::Time64(unit) => {
                let rest = i128::from(nanoseconds % DAY_NANOS) * sign_wide;
                let ticks = rest.div_euclid(i128::from(nanos(unit)));
                match self.ticks(Repr::I64, ticks) {
                    Some(ticks) => self.graph.add_to_time(of.node, time_unit(unit), ticks),
                    None => Ok(of.node),
                }
            }
            other => return Err(refusal(format!("{other} plus an interval is not lowered"))),
        };
        let node = node?;
        Ok(Some(Value { node, data_type: of.data_type, dictionary: None }))
    }

    /// A timestamp plus months, days and ticks in a zone whose offset changes: months and days lead to a local time,
    /// which must be exactly one instant.
    fn step_by_step(
        &mut self,
        of: NodeId,
        unit: &TimeUnit,
        zone: &Zone,
        (months, days, rest): (Option<NodeId>, Option<NodeId>, Option<NodeId>),
    ) -> Lowered<NodeId> {
        let nothing = IntervalParts { months: None, days: None, rest: None };
        let mut node = of;
        for (part, is_local) in [
            (months.map(|months| IntervalParts { months: Some(months), ..nothing }), true),
            (days.map(|days| IntervalParts { days: Some(days), ..nothing }), true),
            (rest.map(|rest| IntervalParts { rest: Some(rest), ..nothing }), false),
        ] {
            let Some(part) = part else { continue };
            let from = if is_local { self.local_time(node, unit, zone)? } else { node };
            let sum = self.graph.add_interval(from, time_unit(unit), part)?;
            node = if is_local { self.instant(sum, unit, zone, Overflow::Fail)? } else { sum };
        }
        Ok(node)
    }

    fn months(&mut self, months: i32, sign: i32) -> Option<NodeId> {
        let months = i128::from(months) * i128::from(sign);
        (months != 0)
            .then(|| self.slot(Ty::new(Repr::I32), Literal::Int(months.clamp(i32::MIN.into(), i32::MAX.into()))))
    }

    fn ticks(&mut self, repr: Repr, ticks: i128) -> Option<NodeId> {
        (ticks != 0).then(|| self.slot(digits(repr, ticks), Literal::Int(ticks)))
    }
}

/// The start of a timestamp's bin of `stride` months, counted from `origin` (nanoseconds). The bin is found by month
/// numbers alone; if its start is later than the timestamp, the bin before it is used.
fn month_bin(
    graph: &mut Graph,
    of: NodeId,
    unit: KernelUnit,
    stride: i32,
    origin: NodeId,
) -> Result<NodeId, GraphError> {
    let nano = KernelUnit::Nanosecond;
    let nanos = graph.convert_time(of, unit, nano, Overflow::Null)?;
    let mut months = |of| {
        let (year, month) = (graph.date_part(DatePart::Year, of, nano)?, graph.date_part(DatePart::Month, of, nano)?);
        let twelve = graph.integer(12, graph.ty(year).repr);
        let whole = graph.arithmetic(Arithmetic::Multiply, year, twelve, Overflow::Wrap)?;
        graph.arithmetic(Arithmetic::Add, whole, month, Overflow::Wrap)
    };
    let (own, first) = (months(nanos)?, months(origin)?);
    let since = graph.arithmetic(Arithmetic::Subtract, own, first, Overflow::Wrap)?;
    let bin = graph.divide_constant(since, stride.into(), Rounding::Floor)?;
    let width = graph.integer(stride.into(), graph.ty(bin).repr);
    let delta = graph.arithmetic(Arithmetic::Multiply, bin, width, Overflow::Wrap)?;
    let before = graph.arithmetic(Arithmetic::Subtract, delta, width, Overflow::Wrap)?;
    let mut after = |months| {
        let months = graph.convert(months, Repr::I32, Overflow::Wrap)?;
        graph.add_interval(origin, nano, IntervalParts { months: Some(months), days: None, rest: None })
    };
    let (start, earlier) = (after(delta)?, after(before)?);
    let later = graph.compare(Comparison::Greater, start, nanos)?;
    let start = graph.case(vec![(later, earlier)], Some(start))?;
    graph.convert_time(start, nano, unit, Overflow::Wrap)
}

fn per_day(unit: KernelUnit) -> i128 {
    match unit {
        KernelUnit::Day => 1,
        KernelUnit::Second => 86_400,
        KernelUnit::Millisecond => 86_400_000,
        KernelUnit::Microsecond => 86_400_000_000,
        KernelUnit::Nanosecond => 86_400_000_000_000,
    }
}

/// A literal string, in lower case.
fn text(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let literal = expr.downcast_ref::<LiteralExpr>()?.value();
    literal.try_as_str().flatten().map(|text| text.trim().trim_matches('\'').to_ascii_lowercase())
}

fn date_part(name: &str) -> Option<DatePart> {
    Some(match name {
        "year" => DatePart::Year,
        "isoyear" => DatePart::IsoYear,
        "quarter" | "qtr" => DatePart::Quarter,
        "month" => DatePart::Month,
        "week" => DatePart::Week,
        "day" => DatePart::Day,
        "doy" => DatePart::DayOfYear,
        "dow" => DatePart::DayOfWeek,
        "isodow" => DatePart::IsoDayOfWeek,
        "hour" => DatePart::Hour,
        "minute" => DatePart::Minute,
        "second" => DatePart::Second,
        "millisecond" => DatePart::Millisecond,
        "microsecond" => DatePart::Microsecond,
        "nanosecond" => DatePart::Nanosecond,
        "epoch" => DatePart::Epoch,
        _ => return None,
    })
}

fn date_grain(name: &str) -> Option<DateGrain> {
    Some(match name {
        "microsecond" => DateGrain::Microsecond,
        "millisecond" => DateGrain::Millisecond,
        "second" => DateGrain::Second,
        "minute" => DateGrain::Minute,
        "hour" => DateGrain::Hour,
        "day" => DateGrain::Day,
        "week" => DateGrain::Week,
        "month" => DateGrain::Month,
        "quarter" => DateGrain::Quarter,
        "year" => DateGrain::Year,
        _ => return None,
    })
}
