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
use crate::error::reason::Reason;
use crate::expr::cast::nanos;
use crate::expr::zone::{Zone, zone};
use crate::expr::{Lowering, Scope, Value, digits, refused, unsupported};

pub(super) const DAY_NANOS: i64 = 86_400_000_000_000;

impl Lowering<'_> {
    /// A function of dates and times, if `name` has a device form.
    pub(super) fn time_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        name: &str,
        arguments: &[Arc<dyn PhysicalExpr>],
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<NodeId>, Reason> {
        Ok(Some(match (name, arguments) {
            ("date_part", [part, of]) => {
                let part = text(part).and_then(|text| date_part(&text));
                let part = part.ok_or_else(|| unsupported(expr, "this field has no device form"))?;
                let of = self.lower(of, scope)?;
                self.date_part(expr, part, &of)?
            }
            ("date_trunc", [grain, of]) => {
                let grain = text(grain).and_then(|text| date_grain(&text));
                let grain = grain.ok_or_else(|| unsupported(expr, "this grain has no device form"))?;
                let of = self.lower(of, scope)?;
                if of.data_type != *data_type {
                    return Err(unsupported(expr, &format!("it gives {data_type} for {}", of.data_type)));
                }
                self.date_truncate(expr, grain, &of)?
            }
            ("date_bin", [stride, of]) => self.date_bin(expr, stride, of, None, scope)?,
            ("date_bin", [stride, of, origin]) => self.date_bin(expr, stride, of, Some(origin), scope)?,
            ("make_date", [year, month, day]) => {
                let parts = [year, month, day].map(|part| self.whole(expr, part, scope));
                let [year, month, day] = parts;
                self.graph.make_date(year?, month?, day?).map_err(|e| refused(expr, &e))?
            }
            ("make_time", [hour, minute, second]) => {
                let [hour, minute, second] = [hour, minute, second].map(|part| self.whole(expr, part, scope));
                self.graph.make_time(hour?, minute?, second?).map_err(|e| refused(expr, &e))?
            }
            ("to_date", [of]) => {
                let of = self.lower(of, scope)?;
                let through = match &of.data_type {
                    DataType::Int32 | DataType::Int64 | DataType::Date32 | DataType::Date64 => None,
                    DataType::Timestamp(..) => None,
                    small if small.is_integer() => Some(DataType::Int32),
                    text if is_string(text) => {
                        return Err(unsupported(
                            expr,
                            "dates are read from the values of a dictionary, and there is none",
                        ));
                    }
                    _ => Some(DataType::Int64),
                };
                self.cast_through(expr, of, through, data_type)?
            }
            ("from_unixtime", [of] | [of, _]) => {
                let of = self.lower(of, scope)?;
                self.cast_through(expr, of, Some(DataType::Int64), data_type)?
            }
            ("to_local_time", [of]) => {
                let of = self.lower(of, scope)?;
                let DataType::Timestamp(unit, Some(_)) = &of.data_type else {
                    return self.cast_through(expr, of, None, data_type).map(Some);
                };
                let local = self.local(expr, &of)?;
                self.graph.dated(local, time_unit(unit), Overflow::Fail).map_err(|e| refused(expr, &e))?
            }
            ("to_unixtime", [of]) => {
                let of = self.lower(of, scope)?;
                let through = match &of.data_type {
                    DataType::Date32 | DataType::Date64 => Some(DataType::Timestamp(TimeUnit::Second, None)),
                    DataType::Timestamp(_, zone) => Some(DataType::Timestamp(TimeUnit::Second, zone.clone())),
                    _ => None,
                };
                self.cast_through(expr, of, through, data_type)?
            }
            ("to_timestamp", [of]) => {
                let of = self.lower(of, scope)?;
                self.timestamp_of(expr, of, data_type)?
            }
            ("to_timestamp_seconds" | "to_timestamp_millis" | "to_timestamp_micros" | "to_timestamp_nanos", [of]) => {
                let of = self.lower(of, scope)?;
                let number = of.data_type.is_numeric() || matches!(of.data_type, DataType::Timestamp(..));
                if !number {
                    return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type)));
                }
                let through = of.data_type.is_floating().then_some(DataType::Int64);
                self.cast_through(expr, of, through, data_type)?
            }
            _ => return Ok(None),
        }))
    }

    /// Casts `of` to `to`, optionally via another type.
    fn cast_through(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: Value,
        through: Option<DataType>,
        to: &DataType,
    ) -> Result<NodeId, Reason> {
        let of = match through {
            Some(through) => self.cast(expr, of, &through, Overflow::Fail)?,
            None => of,
        };
        Ok(self.cast(expr, of, to, Overflow::Fail)?.node)
    }

    fn timestamp_of(&mut self, expr: &Arc<dyn PhysicalExpr>, of: Value, to: &DataType) -> Result<NodeId, Reason> {
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        match &of.data_type {
            DataType::Timestamp(..) => self.cast_through(expr, of, None, to),
            integer if integer.is_integer() => self.cast_through(expr, of, Some(seconds), to),
            DataType::Float32 | DataType::Float64 => {
                let wide = self.graph.convert(of.node, Repr::F64, Overflow::Wrap);
                wide.and_then(|wide| self.graph.seconds_to_nanoseconds(wide)).map_err(|e| refused(expr, &e))
            }
            DataType::Decimal128(_, scale) => {
                let graph = &mut self.graph;
                let shift = 9 - i32::from(*scale);
                let power = 10_i128.checked_pow(shift.unsigned_abs());
                let power = power.ok_or_else(|| unsupported(expr, "its scale has no device form"))?;
                let nanos = if shift >= 0 {
                    let power = graph.integer(power, Repr::I128);
                    graph.arithmetic(Arithmetic::Multiply, of.node, power, Overflow::Fail)
                } else {
                    graph.divide_constant(of.node, power, Rounding::Truncate)
                };
                let narrow = nanos.and_then(|nanos| graph.convert(nanos, Repr::I64, Overflow::Fail));
                narrow.map_err(|e| refused(expr, &e))
            }
            other => Err(unsupported(expr, &format!("it has no device form over {other}"))),
        }
    }

    /// The node of an `Int32` argument.
    fn whole(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        argument: &Arc<dyn PhysicalExpr>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
        let of = self.lower(argument, scope)?;
        match of.data_type {
            DataType::Int32 => Ok(of.node),
            other => Err(unsupported(expr, &format!("it has no device form over {other}"))),
        }
    }

    fn date_part(&mut self, expr: &Arc<dyn PhysicalExpr>, part: DatePart, of: &Value) -> Result<NodeId, Reason> {
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
                (unit, node.map_err(|e| refused(expr, &e))?)
            }
            _ if part == DatePart::Epoch => (self.calendar_unit(expr, of)?, of.node),
            _ => (self.calendar_unit(expr, of)?, self.local(expr, of)?),
        };
        self.graph.date_part(part, node, unit).map_err(|e| refused(expr, &e))
    }

    fn date_truncate(&mut self, expr: &Arc<dyn PhysicalExpr>, grain: DateGrain, of: &Value) -> Result<NodeId, Reason> {
        let coarse = matches!(grain, DateGrain::Week | DateGrain::Month | DateGrain::Quarter | DateGrain::Year);
        let (unit, mut node) = match &of.data_type {
            DataType::Time32(unit) | DataType::Time64(unit) if !coarse && grain != DateGrain::Day => {
                (time_unit(unit), of.node)
            }
            _ => (self.calendar_unit(expr, of)?, of.node),
        };
        // With a time zone, hours and days go via nanoseconds, too; finer grains are cut off in UTC.
        let zoned = matches!(&of.data_type, DataType::Timestamp(_, Some(_)));
        let local = zoned && (coarse || matches!(grain, DateGrain::Hour | DateGrain::Day));
        let scale = per_day(KernelUnit::Nanosecond) / per_day(unit);
        let limits = Range::new(i128::from(i64::MIN) / scale, i128::from(i64::MAX) / scale);
        if local {
            node = self.graph.check(node, limits, Overflow::Fail).map_err(|e| refused(expr, &e))?;
        }
        let zone = match &of.data_type {
            DataType::Timestamp(ticks, name) if local => zone(name).map(|zone| (ticks, zone)),
            _ => None,
        };
        let within = node;
        if let Some((ticks, zone)) = &zone {
            node = self.local_time(expr, node, ticks, zone)?;
        }
        let start = self.graph.date_truncate(grain, node, unit).map_err(|e| refused(expr, &e))?;
        match &zone {
            Some((ticks, zone)) => {
                let start = self.instant_of_start(expr, start, ticks, zone, within)?;
                self.graph.check(start, limits, Overflow::Fail).map_err(|e| refused(expr, &e))
            }
            None => Ok(start),
        }
    }

    /// A date or timestamp in the local time of its own zone.
    fn local(&mut self, expr: &Arc<dyn PhysicalExpr>, of: &Value) -> Result<NodeId, Reason> {
        match &of.data_type {
            DataType::Timestamp(unit, name) => match zone(name) {
                Some(zone) => self.local_time(expr, of.node, unit, &zone),
                None => Ok(of.node),
            },
            _ => Ok(of.node),
        }
    }

    fn date_bin(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        stride: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        origin: Option<&Arc<dyn PhysicalExpr>>,
        scope: &Scope,
    ) -> Result<NodeId, Reason> {
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
            return Err(unsupported(expr, "a stride that is no positive constant has no device form"));
        }
        let of = self.lower(of, scope)?;
        let DataType::Timestamp(unit, _) = &of.data_type else {
            return Err(unsupported(expr, &format!("it has no device form over {}", of.data_type)));
        };
        let origin = match origin.map(literal) {
            None => 0,
            Some(Some(ScalarValue::TimestampNanosecond(Some(origin), _))) => origin,
            _ => return Err(unsupported(expr, "an origin that is no constant timestamp has no device form")),
        };
        let origin = self.slot(digits(Repr::I64, origin.into()), Literal::Int(origin.into()));
        let node = match (stride, months) {
            (Some(stride), _) => self.graph.date_bin(of.node, time_unit(unit), stride, origin),
            (None, months) => month_bin(&mut self.graph, of.node, time_unit(unit), months.unwrap_or(1), origin),
        };
        node.map_err(|e| refused(expr, &e))
    }

    fn calendar_unit(&self, expr: &Arc<dyn PhysicalExpr>, of: &Value) -> Result<KernelUnit, Reason> {
        match &of.data_type {
            DataType::Date32 => Ok(KernelUnit::Day),
            DataType::Timestamp(unit, name) if zone(name).is_some() => Ok(time_unit(unit)),
            other => Err(unsupported(expr, &format!("fields of {other} have no device form"))),
        }
    }

    /// Differences of dates and timestamps, and sums with durations; `None` for other operands.
    pub(super) fn time_arithmetic(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        op: Arithmetic,
        left: &Value,
        right: &Value,
    ) -> Result<Option<NodeId>, Reason> {
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
        node.map(Some).map_err(|e| refused(expr, &e))
    }

    /// A date, time or timestamp plus or minus a literal interval.
    pub(super) fn plus_interval(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
        data_type: &DataType,
        scope: &Scope,
    ) -> Result<Option<Value>, Reason> {
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
            return Err(unsupported(expr, &format!("{} plus an interval gives {data_type}", of.data_type)));
        }
        let (months, days, nanoseconds) = match literal {
            ScalarValue::IntervalYearMonth(Some(months)) => (months, 0, 0),
            ScalarValue::IntervalDayTime(Some(v)) => (0, v.days, i64::from(v.milliseconds) * 1_000_000),
            ScalarValue::IntervalMonthDayNano(Some(v)) => (v.months, v.days, v.nanoseconds),
            _ => {
                let node = self.null_of(expr, data_type)?;
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
                    return Err(unsupported(expr, "so long an interval has no device form"));
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
                    let node = self.step_by_step(expr, of.node, unit, &zone, parts)?;
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
                let local = self.local_time(expr, of.node, unit, &zone)?;
                let sum = self.graph.add_interval(local, time_unit(unit), parts).map_err(|e| refused(expr, &e))?;
                Ok(self.instant(expr, sum, unit, &zone, Overflow::Fail)?)
            }
            DataType::Time32(unit) | DataType::Time64(unit) => {
                let rest = i128::from(nanoseconds % DAY_NANOS) * sign_wide;
                let ticks = rest.div_euclid(i128::from(nanos(unit)));
                match self.ticks(Repr::I64, ticks) {
                    Some(ticks) => self.graph.add_to_time(of.node, time_unit(unit), ticks),
                    None => Ok(of.node),
                }
            }
            other => return Err(unsupported(expr, &format!("{other} plus an interval is not lowered"))),
        };
        let node = node.map_err(|e| refused(expr, &e))?;
        Ok(Some(Value { node, data_type: of.data_type, dictionary: None }))
    }

    /// A timestamp plus months, days and ticks in a zone whose offset changes: months and days lead to a local time,
    /// which must be exactly one instant.
    fn step_by_step(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: NodeId,
        unit: &TimeUnit,
        zone: &Zone,
        (months, days, rest): (Option<NodeId>, Option<NodeId>, Option<NodeId>),
    ) -> Result<NodeId, Reason> {
        let nothing = IntervalParts { months: None, days: None, rest: None };
        let mut node = of;
        for (part, is_local) in [
            (months.map(|months| IntervalParts { months: Some(months), ..nothing }), true),
            (days.map(|days| IntervalParts { days: Some(days), ..nothing }), true),
            (rest.map(|rest| IntervalParts { rest: Some(rest), ..nothing }), false),
        ] {
            let Some(part) = part else { continue };
            let from = if is_local { self.local_time(expr, node, unit, zone)? } else { node };
            let sum = self.graph.add_interval(from, time_unit(unit), part).map_err(|e| refused(expr, &e))?;
            node = if is_local { self.instant(expr, sum, unit, zone, Overflow::Fail)? } else { sum };
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
