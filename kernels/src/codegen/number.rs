//! Functions of numbers by DataFusion's rules, written as nodes: rounding, roots, logarithms, signs, greatest and
//! least.
//!
//!   round(12.345, 2)        (x * 100) rounded / 100                 halves away from zero
//!   round(DECIMAL, 1)       n0 / 10^(scale - 1), rounded, then scaled to the scale of the result
//!   sqrt(x)                 requires that x is not negative, then the root
//!   greatest(a, b, c)       by total order; NULL loses, and is the result only if all are NULL
//!
//! Floats   inverse hyperbolic functions and logarithms of any base use the formulas of Rust's library, so that they
//!          lose the digits that the CPU loses.
//! After    datafusion-functions `math/*.rs`, `core/greatest.rs`.

use super::decimal::Decimal;
use super::function::Math;
use super::graph::*;
use FloatTest::{Nan, Negative, Zero};
use Overflow::{Fail, Wrap};

impl Graph {
    // Integers.

    /// An integer, rounded to a multiple of 10^`digits`, halves away from zero. Overflow is an error.
    ///
    /// # Errors
    /// If the operand is not an integer.
    pub fn round_integer(&mut self, of: NodeId, digits: u32) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let factor = 10_i128.checked_pow(digits).filter(|power| repr.bounds().is_some_and(|all| all.holds(*power)));
        let Some(factor) = factor else { return self.zero_for(of, repr) };
        let quotient = self.divide_constant(of, factor, Rounding::HalfAway)?;
        let factor = self.integer(factor, repr);
        self.arithmetic(Arithmetic::Multiply, quotient, factor, Fail)
    }

    /// The greatest common divisor of two `I64`; an error if it does not fit.
    ///
    /// # Errors
    /// If the operands are not `I64`.
    pub fn gcd(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Gcd, &[left, right])?;
        self.check(node, Range::new(0, i64::MAX.into()), Fail)
    }

    /// The least common multiple of two `I64`; an error if it does not fit.
    ///
    /// # Errors
    /// If the operands are not `I64`.
    pub fn lcm(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Lcm, &[left, right])?;
        self.check(node, Range::new(0, i64::MAX.into()), Fail)
    }

    /// `of!`; an error below 0 and above 20.
    ///
    /// # Errors
    /// If the operand is not `I64`.
    pub fn factorial(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Factorial, &[of])?;
        self.check(node, Range::new(1, i64::MAX.into()), Fail)
    }

    // Decimals.

    /// A decimal rounded to `places` digits after the point, as `to` (with at most the scale of `from`).
    ///
    /// # Errors
    /// If the operand is not a decimal.
    pub fn round_decimal(&mut self, of: NodeId, from: Decimal, to: Decimal, places: i32) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        // Positions above the leading digit: all values round to zero.
        let leading = i32::from(from.precision) - i32::from(from.scale);
        if places < 0 && (leading <= 0 || -i64::from(places) > i64::from(leading)) {
            return self.zero_for(of, repr);
        }
        let dropped = i64::from(from.scale) - i64::from(places);
        if dropped <= 0 {
            return Ok(of);
        }
        let divisor = self.ten_to(dropped, repr)?;
        let quotient = self.divide_constant(of, divisor, Rounding::HalfAway)?;
        let back = i64::from(to.scale) - i64::from(places);
        let mut node = quotient;
        if back > 0 {
            let factor = self.ten_to(back, repr)?;
            let factor = self.integer(factor, repr);
            node = self.arithmetic(Arithmetic::Multiply, quotient, factor, Fail)?;
        }
        let most = match repr {
            Repr::I32 => 9,
            Repr::I64 => 18,
            _ => 38,
        };
        // 99 rounds to 100, which may need a digit more than the type has.
        if to.precision == most && from.scale == 0 && places < 0 {
            self.check(node, to.range(), Fail)
        } else {
            Ok(node)
        }
    }

    /// A decimal truncated to `places` digits after the point; its type does not change.
    ///
    /// # Errors
    /// If the operand is not a decimal.
    pub fn truncate_decimal(&mut self, of: NodeId, from: Decimal, places: i64) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let dropped = i64::from(from.scale).saturating_sub(places);
        if dropped <= 0 {
            return Ok(of);
        }
        let Ok(factor) = self.ten_to(dropped, repr) else { return self.zero_for(of, repr) };
        let quotient = self.divide_constant(of, factor, Rounding::Truncate)?;
        let factor = self.integer(factor, repr);
        self.arithmetic(Arithmetic::Multiply, quotient, factor, Wrap)
    }

    /// The largest whole number not above a decimal, or the smallest not below it (`up`); its type does not change.
    ///
    /// # Errors
    /// If the operand is not a decimal, or 10^scale does not fit.
    pub fn floor_decimal(&mut self, of: NodeId, from: Decimal, up: bool) -> Result<NodeId, GraphError> {
        if from.scale <= 0 {
            return Ok(of);
        }
        let repr = self.ty(of).repr;
        let factor = self.ten_to(from.scale.into(), repr)?;
        let of = if up { self.negate(of, Fail)? } else { of };
        let quotient = self.divide_constant(of, factor, Rounding::Floor)?;
        let factor = self.integer(factor, repr);
        let node = self.arithmetic(Arithmetic::Multiply, quotient, factor, Fail)?;
        let node = if up { self.negate(node, Fail)? } else { node };
        self.check(node, from.range(), Fail)
    }

    fn ten_to(&self, exponent: i64, repr: Repr) -> Result<i128, GraphError> {
        let power = u32::try_from(exponent).ok().and_then(|exponent| 10_i128.checked_pow(exponent));
        power.filter(|power| repr.bounds().is_some_and(|all| all.holds(*power))).ok_or_else(|| GraphError::Impossible {
            operator: "rounding".into(),
            why: format!("10^{exponent} does not fit in {repr:?}"),
        })
    }

    /// Zero, or NULL if `of` is NULL; errors of `of` are still raised.
    fn zero_for(&mut self, of: NodeId, repr: Repr) -> Result<NodeId, GraphError> {
        let zero = self.integer(0, repr);
        if !self.ty(of).nullable && !self.can_fail(of) {
            return Ok(zero);
        }
        let valid = self.test(Test::IsNotNull, of)?;
        self.case(vec![(valid, zero)], None)
    }

    // Floats.

    /// `function(of * factor) / factor`: rounding to digits, where `factor` is their power of ten. A NaN is not
    /// changed.
    ///
    /// # Errors
    /// If the operands are not floats of one width.
    pub fn scaled(&mut self, function: FloatFunction, of: NodeId, factor: NodeId) -> Result<NodeId, GraphError> {
        let node = self.arithmetic(Arithmetic::Multiply, of, factor, Wrap)?;
        let node = self.float_function(function, node)?;
        let node = self.arithmetic(Arithmetic::Divide, node, factor, Wrap)?;
        let nan = self.float_test(Nan, of)?;
        self.case(vec![(nan, of)], Some(node))
    }

    /// A float truncated to an integer. As in DataFusion, -0.0 becomes 0.0, although -0.5 becomes -0.0.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn truncate(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let whole = self.float_function(FloatFunction::Truncate, of)?;
        let zero = self.float_test(Zero, of)?;
        let none = self.float(0.0, self.ty(of).repr);
        self.case(vec![(zero, none)], Some(whole))
    }

    /// The square root; a negative operand is an error.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn square_root(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let negative = self.float_test(Negative, of)?;
        let fine = self.not(negative)?;
        let of = self.require(of, fine, Fail)?;
        self.float_function(FloatFunction::Sqrt, of)
    }

    /// `base` to the power of `exponent`, both `F64`; zero to a negative power is an error.
    ///
    /// # Errors
    /// If the operands are not `F64`.
    pub fn power(&mut self, base: NodeId, exponent: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Power, &[base, exponent])?;
        let (zero, negative) = (self.float_test(Zero, base)?, self.float_test(Negative, exponent)?);
        let undefined = self.and(zero, negative)?;
        let fine = self.not(undefined)?;
        self.require(node, fine, Fail)
    }

    /// The logarithm of a float to a base of the same width.
    ///
    /// # Errors
    /// If the operands are not floats of one width.
    pub fn logarithm(&mut self, base: NodeId, of: NodeId) -> Result<NodeId, GraphError> {
        let (above, below) = (self.math(Math::Ln, &[of])?, self.math(Math::Ln, &[base])?);
        self.arithmetic(Arithmetic::Divide, above, below, Wrap)
    }

    /// The reciprocal of the tangent.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn cotangent(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let tangent = self.math(Math::Tan, &[of])?;
        let one = self.float(1.0, self.ty(of).repr);
        self.arithmetic(Arithmetic::Divide, one, tangent, Wrap)
    }

    /// `of` times a constant.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn times(&mut self, of: NodeId, factor: f64) -> Result<NodeId, GraphError> {
        let factor = self.float(factor, self.ty(of).repr);
        self.arithmetic(Arithmetic::Multiply, of, factor, Wrap)
    }

    /// The inverse hyperbolic sine, with the sign of `x`: `ln(1 + (|x| + |x| / (hypot(1, 1 / |x|) + 1 / |x|)))`.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn inverse_sinh(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let one = self.float(1.0, repr);
        let size = self.absolute(of, Wrap)?;
        let inverse = self.arithmetic(Arithmetic::Divide, one, size, Wrap)?;
        let root = self.math(Math::Hypot, &[one, inverse])?;
        let sum = self.arithmetic(Arithmetic::Add, root, inverse, Wrap)?;
        let quotient = self.arithmetic(Arithmetic::Divide, size, sum, Wrap)?;
        let sum = self.arithmetic(Arithmetic::Add, size, quotient, Wrap)?;
        let result = self.math(Math::Ln1p, &[sum])?;
        self.with_sign_of(result, of)
    }

    /// The inverse hyperbolic cosine: `ln(x + sqrt(x - 1) * sqrt(x + 1))`, NaN below 1.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn inverse_cosh(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let one = self.float(1.0, self.ty(of).repr);
        let below = self.arithmetic(Arithmetic::Subtract, of, one, Wrap)?;
        let above = self.arithmetic(Arithmetic::Add, of, one, Wrap)?;
        // The root of a negative number is NaN, and so is every later result.
        let (below, above) =
            (self.float_function(FloatFunction::Sqrt, below)?, self.float_function(FloatFunction::Sqrt, above)?);
        let product = self.arithmetic(Arithmetic::Multiply, below, above, Wrap)?;
        let sum = self.arithmetic(Arithmetic::Add, of, product, Wrap)?;
        self.math(Math::Ln, &[sum])
    }

    /// The inverse hyperbolic tangent: `ln(1 + 2x / (1 - x)) / 2`.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn inverse_tanh(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        // Computed from the magnitude: the formula loses digits for negative numbers.
        let size = self.absolute(of, Wrap)?;
        let one = self.float(1.0, repr);
        let twice = self.times(size, 2.0)?;
        let rest = self.arithmetic(Arithmetic::Subtract, one, size, Wrap)?;
        let quotient = self.arithmetic(Arithmetic::Divide, twice, rest, Wrap)?;
        let whole = self.math(Math::Ln1p, &[quotient])?;
        let half = self.times(whole, 0.5)?;
        self.with_sign_of(half, of)
    }

    /// 1 or -1 by sign, 0 for both zeros, NaN for NaN.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn signum(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let (zero, nan, negative) =
            (self.float_test(Zero, of)?, self.float_test(Nan, of)?, self.float_test(Negative, of)?);
        let (none, one, minus) = (self.float(0.0, repr), self.float(1.0, repr), self.float(-1.0, repr));
        let not_a_number = self.float(f64::NAN, repr);
        let chosen = self.case(vec![(zero, none), (nan, not_a_number), (negative, minus)], Some(one))?;
        self.null_with(chosen, of)
    }

    /// Whether a number is NaN. Integers never are.
    ///
    /// # Errors
    /// If the operand is a boolean.
    pub fn is_nan(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        if self.ty(of).repr.is_float() { self.float_test(Nan, of) } else { self.compare(Comparison::NotEqual, of, of) }
    }

    /// Whether a number is zero, of either sign.
    ///
    /// # Errors
    /// If the operand is a boolean.
    pub fn is_zero(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        if repr.is_float() {
            return self.float_test(Zero, of);
        }
        let zero = self.integer(0, repr);
        self.compare(Comparison::Equal, of, zero)
    }

    /// `of`, or `instead` if `of` is NaN. Both are computed for every row.
    ///
    /// # Errors
    /// If the operands are not floats of one width.
    pub fn nan_or(&mut self, of: NodeId, instead: NodeId) -> Result<NodeId, GraphError> {
        let nan = self.float_test(Nan, of)?;
        let nan = self.with_errors_of(nan, instead)?;
        self.case(vec![(nan, instead)], Some(of))
    }

    /// The greatest (or least) of several values of one representation; NULL only if all are NULL. Floats by total
    /// order.
    ///
    /// # Errors
    /// If there are no values, or different representations.
    pub fn extreme(&mut self, of: &[NodeId], least: bool) -> Result<NodeId, GraphError> {
        let Some((&first, rest)) = of.split_first() else {
            let operator = if least { "LEAST" } else { "GREATEST" };
            return Err(GraphError::Impossible { operator: operator.into(), why: "it has no arguments".into() });
        };
        let op = if least { Comparison::Less } else { Comparison::Greater };
        let mut best = first;
        for &next in rest {
            let wins = if self.ty(next).repr.is_float() && self.ty(best).repr == self.ty(next).repr {
                let (a, b) = (self.float_key(next)?, self.float_key(best)?);
                self.compare(op, a, b)?
            } else {
                self.compare(op, next, best)?
            };
            let mut branches = vec![(wins, next)];
            if self.ty(best).nullable {
                // If the best so far is NULL, the comparison is NULL, too.
                let nothing = self.test(Test::IsNull, best)?;
                branches.push((nothing, next));
            }
            best = self.case(branches, Some(best))?;
        }
        Ok(best)
    }

    /// `size` with the sign of `of`, including -0.0.
    fn with_sign_of(&mut self, size: NodeId, of: NodeId) -> Result<NodeId, GraphError> {
        let key = self.float_key(of)?;
        let zero = self.integer(0, self.ty(key).repr);
        let negative = self.compare(Comparison::Less, key, zero)?;
        let opposite = self.negate(size, Wrap)?;
        self.case(vec![(negative, opposite)], Some(size))
    }

    /// `node`, or NULL if `of` is NULL.
    fn null_with(&mut self, node: NodeId, of: NodeId) -> Result<NodeId, GraphError> {
        if !self.ty(of).nullable {
            return Ok(node);
        }
        let valid = self.test(Test::IsNotNull, of)?;
        self.case(vec![(valid, node)], None)
    }

    /// Returns the boolean unchanged, combined with `other` so that errors of `other` are raised wherever the boolean
    /// is used.
    ///
    /// # Errors
    /// If `boolean` is not a boolean.
    pub fn with_errors_of(&mut self, boolean: NodeId, other: NodeId) -> Result<NodeId, GraphError> {
        if !self.can_fail(other) {
            return Ok(boolean);
        }
        let (null, valid) = (self.test(Test::IsNull, other)?, self.test(Test::IsNotNull, other)?);
        let always = self.or(null, valid)?;
        self.and(boolean, always)
    }
}
