//! Interval arithmetic: the range of a result, from the ranges of its operands.
//!
//! ```text
//!   [0, 10] + [90, 100] = [90, 110]        [-2, 3] × [5, 7] = [-14, 21]        beyond i128: no range
//! ```

use super::*;

/// Ticks of a unit in a day.
pub(crate) fn per_day(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Day => 1,
        TimeUnit::Second => 86_400,
        TimeUnit::Millisecond => 86_400_000,
        TimeUnit::Microsecond => 86_400_000_000,
        TimeUnit::Nanosecond => 86_400_000_000_000,
    }
}

/// Range of instants that have a date: years -262143 to 262142.
pub(crate) fn calendar(unit: TimeUnit) -> Range {
    let ticks = per_day(unit);
    Range::new(-96_465_292 * ticks, 95_026_237 * ticks - 1)
}

pub(super) fn sum(a: Range, b: Range) -> Option<Range> {
    Some(Range::new(a.low.checked_add(b.low)?, a.high.checked_add(b.high)?))
}

pub(super) fn negated(a: Range) -> Option<Range> {
    Some(Range::new(a.high.checked_neg()?, a.low.checked_neg()?))
}

pub(super) fn magnitude(a: Range) -> Option<Range> {
    let (low, high) = (a.low.checked_abs()?, a.high.checked_abs()?);
    Some(Range::new(if a.holds(0) { 0 } else { low.min(high) }, low.max(high)))
}

pub(super) fn product(a: Range, b: Range) -> Option<Range> {
    let corners = [
        a.low.checked_mul(b.low)?,
        a.low.checked_mul(b.high)?,
        a.high.checked_mul(b.low)?,
        a.high.checked_mul(b.high)?,
    ];
    hull(&corners)
}

fn hull(values: &[i128]) -> Option<Range> {
    Some(Range::new(*values.iter().min()?, *values.iter().max()?))
}

/// Range of a truncating division; a zero divisor contributes no value.
pub(super) fn quotient(a: Range, b: Range) -> Option<Range> {
    let mut values = Vec::new();
    for divisor in [b.low, b.high, -1, 1] {
        if divisor != 0 && b.holds(divisor) {
            values.push(a.low.checked_div(divisor)?);
            values.push(a.high.checked_div(divisor)?);
        }
    }
    hull(&values).or(Some(Range::new(0, 0)))
}

pub(super) fn remainder(a: Range, b: Range) -> Range {
    // |a % b| < |b|; the result has the sign of a, and at most its magnitude.
    let size = b.low.unsigned_abs().max(b.high.unsigned_abs()).saturating_sub(1);
    let size = i128::try_from(size).unwrap_or(i128::MAX);
    let low = if a.low < 0 { a.low.max(-size) } else { 0 };
    let high = if a.high > 0 { a.high.min(size) } else { 0 };
    Range::new(low, high)
}

/// Semantics of `Node::DivideConstant`.
pub(super) fn divide(value: i128, divisor: i128, rounding: Rounding) -> i128 {
    match rounding {
        Rounding::Truncate => value / divisor,
        Rounding::Floor => value.div_euclid(divisor),
        Rounding::HalfAway => {
            let (quotient, rest) = (value / divisor, value % divisor);
            let half = divisor / 2;
            if value >= 0 && rest >= half {
                quotient + 1
            } else if value < 0 && rest <= -half {
                quotient - 1
            } else {
                quotient
            }
        }
    }
}
