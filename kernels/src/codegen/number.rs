//! Functions of numbers by DataFusion's rules, written as nodes: rounding, roots, logarithms, signs, the largest of several.
//!
//!   round(12.345, 2)        (x * 100) rounded / 100                 halves away from zero
//!   round(DECIMAL, 1)       n0 / 10^(scale - 1), rounded, then the scale that the result has
//!   sqrt(x)                 x required not to be below zero, then its root
//!   greatest(a, b, c)       by total order; NULL loses, and is the result where nothing else is there
//!
//! Floats   inverse hyperbolic functions and logarithms of any base are the formulas of Rust's library, so that they lose the
//!          same digits that the CPU's lose.
//! After    datafusion-functions `math/*.rs`, `core/greatest.rs`.

use super::decimal::Decimal;
use super::function::Math;
use super::graph::*;
use FloatTest::{Nan, Negative, Zero};
use Overflow::{Fail, Wrap};

impl Graph {
    // Whole numbers

    /// An integer, rounded to a multiple of 10^`digits`, halves away from zero. Overflow is an error.
    ///
    /// # Errors
    /// If the operand is no integer.
    pub fn round_integer(&mut self, of: NodeId, digits: u32) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let factor = 10_i128.checked_pow(digits).filter(|power| repr.bounds().is_some_and(|all| all.holds(*power)));
        let Some(factor) = factor else { return self.zero_for(of, repr) };
        let quotient = self.divide_constant(of, factor, Rounding::HalfAway)?;
        let factor = self.integer(factor, repr);
        self.arithmetic(Arithmetic::Multiply, quotient, factor, Fail)
    }

    /// The greatest common divisor of two `I64`; an error where it does not fit.
    ///
    /// # Errors
    /// If the operands are not `I64`.
    pub fn gcd(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Gcd, &[left, right])?;
        self.check(node, Range::new(0, i64::MAX.into()), Fail)
    }

    /// The least common multiple of two `I64`; an error where it does not fit.
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
    /// If the operand is no `I64`.
    pub fn factorial(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let node = self.math(Math::Factorial, &[of])?;
        self.check(node, Range::new(1, i64::MAX.into()), Fail)
    }

    // Decimals

    /// A decimal rounded to `places` digits behind the point, as `to` (whose scale is at most that of `from`).
    ///
    /// # Errors
    /// If the operand is no decimal.
    pub fn round_decimal(&mut self, of: NodeId, from: Decimal, to: Decimal, places: i32) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        // Beyond the leading digit everything rounds to zero.
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
        // 99 rounds to 100, and a type of all digits has none to spare.
        if to.precision == most && from.scale == 0 && places < 0 {
            self.check(node, to.range(), Fail)
        } else {
            Ok(node)
        }
    }

    /// A decimal whose digits behind the `places`-th are cut off; its type stays.
    ///
    /// # Errors
    /// If the operand is no decimal.
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

    /// The largest whole number not above a decimal, or the smallest not below it (`up`); its type stays.
    ///
    /// # Errors
    /// If the operand is no decimal, or 10^scale does not fit.
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

    /// Zero, NULL where `of` is; what `of` raises is raised.
    fn zero_for(&mut self, of: NodeId, repr: Repr) -> Result<NodeId, GraphError> {
        let zero = self.integer(0, repr);
        if !self.ty(of).nullable && !self.can_fail(of) {
            return Ok(zero);
        }
        let valid = self.test(Test::IsNotNull, of)?;
        self.case(vec![(valid, zero)], None)
    }

    // Floats

    /// `function(of * factor) / factor`: rounding to digits, `factor` being their power of ten. A NaN stays the one it is.
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

    /// A float without what is behind its point. As DataFusion has it, -0.0 becomes 0.0, although -0.5 becomes -0.0.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn truncate(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let whole = self.float_function(FloatFunction::Truncate, of)?;
        let zero = self.float_test(Zero, of)?;
        let none = self.float(0.0, self.ty(of).repr);
        self.case(vec![(zero, none)], Some(whole))
    }

    /// The square root; below zero there is none, and that is an error.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn square_root(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let negative = self.float_test(Negative, of)?;
        let fine = self.not(negative)?;
        let of = self.require(of, fine, Fail)?;
        self.float_function(FloatFunction::Sqrt, of)
    }

    /// `base` to the power of `exponent`, both `F64`; zero to a power below zero is an error.
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

    /// One over the tangent.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn cotangent(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let tangent = self.math(Math::Tan, &[of])?;
        let one = self.float(1.0, self.ty(of).repr);
        self.arithmetic(Arithmetic::Divide, one, tangent, Wrap)
    }

    /// `of` times a constant.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn times(&mut self, of: NodeId, factor: f64) -> Result<NodeId, GraphError> {
        let factor = self.float(factor, self.ty(of).repr);
        self.arithmetic(Arithmetic::Multiply, of, factor, Wrap)
    }

    /// The inverse hyperbolic sine: with the sign of `x`, `ln(1 + (|x| + |x| / (hypot(1, 1 / |x|) + 1 / |x|)))`.
    ///
    /// # Errors
    /// If the operand is no float.
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

    /// The inverse hyperbolic cosine: `ln(x + sqrt(x - 1) * sqrt(x + 1))`, NaN below one.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn inverse_cosh(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let one = self.float(1.0, self.ty(of).repr);
        let below = self.arithmetic(Arithmetic::Subtract, of, one, Wrap)?;
        let above = self.arithmetic(Arithmetic::Add, of, one, Wrap)?;
        // The root of what is below zero is NaN, and so is all that follows.
        let (below, above) =
            (self.float_function(FloatFunction::Sqrt, below)?, self.float_function(FloatFunction::Sqrt, above)?);
        let product = self.arithmetic(Arithmetic::Multiply, below, above, Wrap)?;
        let sum = self.arithmetic(Arithmetic::Add, of, product, Wrap)?;
        self.math(Math::Ln, &[sum])
    }

    /// The inverse hyperbolic tangent: `ln(1 + 2x / (1 - x)) / 2`.
    ///
    /// # Errors
    /// If the operand is no float.
    pub fn inverse_tanh(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        // By its size: the formula loses digits below zero.
        let size = self.absolute(of, Wrap)?;
        let one = self.float(1.0, repr);
        let twice = self.times(size, 2.0)?;
        let rest = self.arithmetic(Arithmetic::Subtract, one, size, Wrap)?;
        let quotient = self.arithmetic(Arithmetic::Divide, twice, rest, Wrap)?;
        let whole = self.math(Math::Ln1p, &[quotient])?;
        let half = self.times(whole, 0.5)?;
        self.with_sign_of(half, of)
    }

    /// 1 or -1 by the sign, 0 for both zeros, NaN for NaN.
    ///
    /// # Errors
    /// If the operand is no float.
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

    /// `of`, or `instead` where that is NaN. Both are computed everywhere.
    ///
    /// # Errors
    /// If the operands are not floats of one width.
    pub fn nan_or(&mut self, of: NodeId, instead: NodeId) -> Result<NodeId, GraphError> {
        let nan = self.float_test(Nan, of)?;
        let nan = self.with_errors_of(nan, instead)?;
        self.case(vec![(nan, instead)], Some(of))
    }

    /// The largest or the smallest of several values of one representation; NULL only where all are. Floats by total order.
    ///
    /// # Errors
    /// If there are none, or several representations.
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
                // Where the best so far is NULL the comparison is, too.
                let nothing = self.test(Test::IsNull, best)?;
                branches.push((nothing, next));
            }
            best = self.case(branches, Some(best))?;
        }
        Ok(best)
    }

    /// `size`, negative where `of` is, -0.0 included.
    fn with_sign_of(&mut self, size: NodeId, of: NodeId) -> Result<NodeId, GraphError> {
        let key = self.float_key(of)?;
        let zero = self.integer(0, self.ty(key).repr);
        let negative = self.compare(Comparison::Less, key, zero)?;
        let opposite = self.negate(size, Wrap)?;
        self.case(vec![(negative, opposite)], Some(size))
    }

    /// `node`, NULL where `of` is.
    fn null_with(&mut self, node: NodeId, of: NodeId) -> Result<NodeId, GraphError> {
        if !self.ty(of).nullable {
            return Ok(node);
        }
        let valid = self.test(Test::IsNotNull, of)?;
        self.case(vec![(valid, node)], None)
    }

    /// A boolean unchanged, computed beside `other`, so that what `other` raises is raised wherever the boolean is wanted.
    ///
    /// # Errors
    /// If `boolean` is no boolean.
    pub fn with_errors_of(&mut self, boolean: NodeId, other: NodeId) -> Result<NodeId, GraphError> {
        if !self.can_fail(other) {
            return Ok(boolean);
        }
        let (null, valid) = (self.test(Test::IsNull, other)?, self.test(Test::IsNotNull, other)?);
        let always = self.or(null, valid)?;
        self.and(boolean, always)
    }
}
