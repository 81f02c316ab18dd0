//! Decimals by arrow's rules, written as integer nodes: scales become constants, proven checks disappear.
//!
//!   DECIMAL(15, 2) * DECIMAL(15, 2)     n0 * n1, scale 4                          checked at 128 bits unless proven
//!   DECIMAL(15, 2) / DECIMAL(15, 2)     (n0 * 10^6) / n1, scale 6                 truncated; by zero: an error
//!   CAST(d AS DECIMAL(10, 1))           n0 / 10, halves away from zero            checked against 10 digits
//!
//! Width     a decimal's representation is `I128` (Decimal128), `I64` (Decimal64) or `I32` (Decimal32).
//! Overflow  in arithmetic arrow checks the width of the representation, not the precision; in casts it checks the
//!           precision.
//! After     arrow-arith `numeric.rs` (decimal_op) and arrow-cast `decimal.rs`.

use super::graph::*;

/// Precision and scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    pub precision: u8,
    pub scale: i8,
}

impl Decimal {
    pub fn new(precision: u8, scale: i8) -> Self {
        Self { precision, scale }
    }

    /// Range of values with this precision.
    pub fn range(self) -> Range {
        let high = power(u32::from(self.precision)).map_or(i128::MAX, |power| power - 1);
        Range { low: -high, high }
    }
}

/// 10^exponent, if it fits 128 bits.
fn power(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

/// Maximum number of digits, and maximum scale, of a representation.
fn most_digits(repr: Repr) -> u8 {
    match repr {
        Repr::I32 => 9,
        Repr::I64 => 18,
        _ => 38,
    }
}

impl Graph {
    /// `left op right`, and the type of the result.
    ///
    /// # Errors
    /// If the operands are not decimals of one representation, or no power of ten aligns the scales.
    pub fn decimal_arithmetic(
        &mut self,
        op: Arithmetic,
        (left, l): (NodeId, Decimal),
        (right, r): (NodeId, Decimal),
    ) -> Result<(NodeId, Decimal), GraphError> {
        let repr = self.ty(left).repr;
        let most = most_digits(repr);
        let whole = |d: Decimal| d.precision as i8 - d.scale;
        let scale = l.scale.max(r.scale);
        match op {
            Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Remainder => {
                let digits = if op == Arithmetic::Remainder {
                    scale.saturating_add(whole(l).min(whole(r))) as u8
                } else {
                    (scale.saturating_add(whole(l).max(whole(r))) as u8).saturating_add(1)
                };
                let shifts = (i32::from(scale) - i32::from(l.scale), i32::from(scale) - i32::from(r.scale));
                let (left, right) = self.scale_both(left, right, shifts)?;
                let node = self.arithmetic(op, left, right, Overflow::Fail)?;
                Ok((node, Decimal::new(digits.min(most), scale)))
            }
            Arithmetic::Multiply => {
                let scale = l.scale.saturating_add(r.scale);
                if scale > most as i8 {
                    return Err(impossible("decimal *", format!("scale {scale} exceeds {most}")));
                }
                let node = self.arithmetic(op, left, right, Overflow::Fail)?;
                Ok((node, Decimal::new(l.precision.saturating_add(r.precision + 1).min(most), scale)))
            }
            Arithmetic::Divide => {
                let scale = l.scale.saturating_add(4).min(most as i8);
                let shift = scale - l.scale + r.scale;
                let digits = (shift.saturating_add(l.precision as i8) as u8).min(most);
                let shifts = (i32::from(shift.max(0)), i32::from(-shift.min(0)));
                let (left, right) = self.scale_both(left, right, shifts)?;
                let node = self.arithmetic(op, left, right, Overflow::Fail)?;
                Ok((node, Decimal::new(digits, scale)))
            }
        }
    }

    /// Casts a decimal to another decimal type, in representation `repr`. `overflow` is `Fail` for CAST and `Null` for
    /// TRY_CAST.
    ///
    /// # Errors
    /// If the operand is not a decimal, or the scale exceeds the maximum.
    pub fn decimal_to_decimal(
        &mut self,
        of: NodeId,
        from: Decimal,
        to: Decimal,
        repr: Repr,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let shift = i32::from(to.scale) - i32::from(from.scale);
        if shift >= 0 {
            if shift > i32::from(most_digits(repr)) {
                return Err(impossible("a decimal cast", format!("the scale grows by {shift}")));
            }
            let proven = i32::from(from.precision) + shift <= i32::from(to.precision);
            let node = self.convert(of, repr, overflow)?;
            if proven {
                return self.scale_up(node, shift, Overflow::Wrap);
            }
            let node = self.scale_up(node, shift, overflow)?;
            return self.check(node, to.range(), overflow);
        }
        let own = self.ty(of).repr;
        let Some(divisor) = power(shift.unsigned_abs()).filter(|_| shift.unsigned_abs() <= u32::from(most_digits(own)))
        else {
            // All values round to zero; NULL stays NULL.
            let zero = self.integer(0, repr);
            if !self.ty(of).nullable {
                return Ok(zero);
            }
            let valid = self.test(Test::IsNotNull, of)?;
            return self.case(vec![(valid, zero)], None);
        };
        let node = self.divide_constant(of, divisor, Rounding::HalfAway)?;
        let proven = i32::from(from.precision) + shift < i32::from(to.precision);
        let node = self.convert(node, repr, overflow)?;
        if proven { Ok(node) } else { self.check(node, to.range(), overflow) }
    }

    /// An integer as a decimal in representation `repr`.
    ///
    /// # Errors
    /// If the operand is not an integer, or 10^scale does not fit.
    pub fn integer_to_decimal(
        &mut self,
        of: NodeId,
        to: Decimal,
        repr: Repr,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let node = self.convert(of, repr, Overflow::Wrap)?;
        let node = if to.scale < 0 {
            let divisor = self.power_of_ten(to.scale.unsigned_abs().into(), repr)?;
            self.divide_constant(node, divisor, Rounding::Truncate)?
        } else {
            self.scale_up(node, to.scale.into(), overflow)?
        };
        self.check(node, to.range(), overflow)
    }

    /// A decimal as an integer, truncated.
    ///
    /// # Errors
    /// If the operand is not a decimal.
    pub fn decimal_to_integer(
        &mut self,
        of: NodeId,
        from: Decimal,
        repr: Repr,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let node = if from.scale < 0 {
            self.scale_up(of, -i32::from(from.scale), overflow)?
        } else {
            let divisor = self.power_of_ten(from.scale.unsigned_abs().into(), self.ty(of).repr)?;
            self.divide_constant(of, divisor, Rounding::Truncate)?
        };
        self.convert(node, repr, overflow)
    }

    /// A decimal as a float: the integer rounded to `F64`, divided by the power of ten, then rounded to `F32` for that
    /// `repr`.
    ///
    /// # Errors
    /// If the operand is not a decimal.
    pub fn decimal_to_float(&mut self, of: NodeId, from: Decimal, repr: Repr) -> Result<NodeId, GraphError> {
        let mut node = self.convert(of, Repr::F64, Overflow::Wrap)?;
        if from.scale != 0 {
            let divisor = self.float(10_f64.powi(from.scale.into()), Repr::F64);
            node = self.arithmetic(Arithmetic::Divide, node, divisor, Overflow::Wrap)?;
        }
        self.convert(node, repr, Overflow::Wrap)
    }

    /// A float as a decimal: times the power of ten, rounded half away from zero.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn float_to_decimal(
        &mut self,
        of: NodeId,
        to: Decimal,
        repr: Repr,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let node = self.convert(of, Repr::F64, Overflow::Wrap)?;
        let factor = self.float(10_f64.powi(to.scale.into()), Repr::F64);
        let node = self.arithmetic(Arithmetic::Multiply, factor, node, Overflow::Wrap)?;
        let node = self.float_function(FloatFunction::Round, node)?;
        let node = self.convert(node, repr, overflow)?;
        self.check(node, to.range(), overflow)
    }

    /// Average from a sum and a count: `sum * 10^(to.scale - sum.scale) / count`, truncated. NULL if the count is 0.
    ///
    /// # Errors
    /// If the operands are not integers, or the scale shrinks.
    pub fn decimal_average(
        &mut self,
        sum: NodeId,
        from: Decimal,
        count: NodeId,
        to: Decimal,
    ) -> Result<NodeId, GraphError> {
        let repr = self.ty(sum).repr;
        let sum = self.scale_up(sum, i32::from(to.scale) - i32::from(from.scale), Overflow::Fail)?;
        let count = self.convert(count, repr, Overflow::Fail)?;
        let zero = self.integer(0, repr);
        let count = self.null_if(count, zero)?;
        // A count of 0 is NULL by now, so the division cannot fail in a valid row.
        let most = self.ty(count).bounds().map_or(i128::MAX, |bounds| bounds.high.max(1));
        let count = self.assume(count, Range { low: 1, high: most });
        let node = self.arithmetic(Arithmetic::Divide, sum, count, Overflow::Fail)?;
        self.check(node, to.range(), Overflow::Fail)
    }

    /// Multiplies both operands by their powers of ten. Arrow computes only rows where both are valid, so a
    /// multiplication beside a NULL must not overflow.
    fn scale_both(&mut self, left: NodeId, right: NodeId, shifts: (i32, i32)) -> Result<(NodeId, NodeId), GraphError> {
        let beside = |graph: &mut Self, node: NodeId, of: NodeId, other: NodeId| {
            if !graph.fails(node) || !graph.ty(other).nullable {
                return Ok(node);
            }
            let mut valid = graph.test(Test::IsNotNull, other)?;
            // The operand may fail in every row, so every row must evaluate it: the condition includes it.
            if graph.can_fail(of) {
                let own = graph.test(Test::IsNotNull, of)?;
                valid = graph.and(own, valid)?;
            }
            graph.case(vec![(valid, node)], None)
        };
        let scaled_left = self.scale_up(left, shifts.0, Overflow::Fail)?;
        let scaled_right = self.scale_up(right, shifts.1, Overflow::Fail)?;
        let left_or_null = if scaled_left == left { left } else { beside(self, scaled_left, left, right)? };
        let right_or_null = if scaled_right == right { right } else { beside(self, scaled_right, right, left)? };
        Ok((left_or_null, right_or_null))
    }

    /// `of * 10^shift`.
    fn scale_up(&mut self, of: NodeId, shift: i32, overflow: Overflow) -> Result<NodeId, GraphError> {
        if shift == 0 {
            return Ok(of);
        }
        let repr = self.ty(of).repr;
        let Ok(exponent) = u32::try_from(shift) else {
            return Err(impossible("a decimal operation", format!("the scale shrinks by {}", -shift)));
        };
        let factor = self.power_of_ten(exponent, repr)?;
        let factor = self.integer(factor, repr);
        self.arithmetic(Arithmetic::Multiply, of, factor, overflow)
    }

    fn power_of_ten(&self, exponent: u32, repr: Repr) -> Result<i128, GraphError> {
        let bounds = repr.bounds().filter(|_| matches!(repr, Repr::I32 | Repr::I64 | Repr::I128));
        power(exponent)
            .filter(|power| bounds.is_some_and(|bounds| bounds.holds(*power)))
            .ok_or_else(|| impossible("a decimal operation", format!("10^{exponent} does not fit in {repr:?}")))
    }
}

fn impossible(operator: &str, why: String) -> GraphError {
    GraphError::Impossible { operator: operator.into(), why }
}
