//! Integer and decimal arithmetic in the narrowest lane that is exact.
//!
//!   proven to fit        price * (100 - discount)          mul.wide.s32, nothing else
//!   wraps                i32 column + i32 column           add.s32: the lane has the width of the type
//!   checked              decimal * decimal, unproven       128-bit product and overflow check, for valid rows

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::lanes::{Number, join, lane_for};
use super::{Computed, Row, wide};
use crate::codegen::ir::{Arithmetic, Bitwise, ErrorCode, Lane, NodeId, Overflow, Range, Repr, Rounding, lane};
use crate::codegen::value::CodegenError;

impl Row<'_, '_> {
    pub(super) fn integer_arithmetic(
        &mut self,
        id: NodeId,
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
        overflow: Overflow,
    ) -> Result<Computed, CodegenError> {
        let (a, b) = (self.node(left)?, self.node(right)?);
        let valid = self.both_valid(a.valid, b.valid);
        match op {
            Arithmetic::Divide | Arithmetic::Remainder => {
                self.divide(id, op, left, right, (a.number, b.number), valid, overflow)
            }
            _ => self.add_like(id, op, left, right, (a.number, b.number), valid, overflow),
        }
    }

    /// Addition, subtraction and multiplication.
    #[expect(clippy::too_many_arguments, reason = "one operation, all of it")]
    fn add_like(
        &mut self,
        id: NodeId,
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
        (a, b): (Number, Number),
        valid: Option<Reg>,
        overflow: Overflow,
    ) -> Result<Computed, CodegenError> {
        let ty = self.ty(id);
        let all = bounds(ty.repr);
        let exact = exact(op, self.range(left), self.range(right));
        let target = lane(ty);
        if exact.is_some_and(|exact| all.contains(exact)) {
            // The low bits of the result depend only on the low bits of the operands.
            return Ok(Computed { number: compute(self.f, op, a, b, target), valid });
        }
        if overflow == Overflow::Wrap {
            let number = match ty.repr {
                Repr::I64 => compute(self.f, op, a, b, Lane::S64),
                Repr::U64 => compute(self.f, op, a, b, Lane::U64),
                Repr::I128 => compute(self.f, op, a, b, Lane::S128),
                _ => compute(self.f, op, a, b, if ty.repr == Repr::U32 { Lane::U32 } else { Lane::S32 }),
            };
            let number = wrap(self.f, number, ty.repr);
            return Ok(Computed { number: number.to(self.f, target), valid });
        }
        let (number, too_large) = match exact {
            Some(exact) => {
                let work = lane_for(exact.low, exact.high);
                let number = compute(self.f, op, a, b, work);
                let outside = self.outside(number, exact, all);
                (number, outside)
            }
            // Beyond 128 bits, the operation itself detects overflow.
            None => {
                let (a, b) = (a.to(self.f, Lane::S128), b.to(self.f, Lane::S128));
                let (number, too_large) = checked(self.f, op, a, b);
                let outside = self.outside(number, bounds(Repr::I128), all);
                let too_large = match outside {
                    Some(outside) => self.f.or(too_large, outside),
                    None => too_large,
                };
                (number, Some(too_large))
            }
        };
        let valid = match too_large {
            Some(too_large) => self.overflowed(id, ErrorCode::Overflow, too_large, valid, overflow)?,
            None => valid,
        };
        Ok(Computed { number: number.to(self.f, target), valid })
    }

    #[expect(clippy::too_many_arguments, reason = "one operation, all of it")]
    fn divide(
        &mut self,
        id: NodeId,
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
        (a, b): (Number, Number),
        mut valid: Option<Reg>,
        overflow: Overflow,
    ) -> Result<Computed, CodegenError> {
        let ty = self.ty(id);
        let all = bounds(ty.repr);
        let (dividend, divisor) = (self.range(left), self.range(right));
        // The quotient of the lowest value and -1 needs the next wider lane.
        let work = join(join(a.lane, b.lane), lane(ty));
        let (a, mut b) = (a.to(self.f, work), b.to(self.f, work));
        if divisor.holds(0) {
            let zero = equals(self.f, b, 0);
            valid = self.overflowed(id, ErrorCode::DivisionByZero, zero, valid, overflow)?;
        }
        let extreme = dividend.holds(all.low) && all.low < 0 && divisor.holds(-1);
        if extreme {
            let minus_one = equals(self.f, b, -1);
            if op == Arithmetic::Divide {
                let lowest = equals(self.f, a, all.low);
                let too_large = self.f.and(lowest, minus_one);
                valid = self.overflowed(id, ErrorCode::Overflow, too_large, valid, overflow)?;
            } else {
                // x % -1 is 0, as is x % 1, which never overflows.
                let one = Number::constant(work, 1);
                b = select(self.f, minus_one, one, b);
            }
        }
        let number = match (work, op) {
            (Lane::S128, _) => {
                let (quotient, rest) = self.divide_wide(a, b);
                if op == Arithmetic::Divide { quotient } else { rest }
            }
            (_, Arithmetic::Divide) => {
                let (x, y) = self.operands(a, b);
                Number::reg(work, self.f.div(x, y))
            }
            _ => {
                let (x, y) = self.operands(a, b);
                Number::reg(work, self.f.rem(x, y))
            }
        };
        // The minimum divided by -1 does not fit the type: the error is raised, and the bits are arbitrary.
        Ok(Computed { number: number.to(self.f, lane(ty)), valid })
    }

    /// Two operands, at least one of them a register.
    pub(super) fn operands(&mut self, a: Number, b: Number) -> (Operand, Operand) {
        let a_reg = a.low_reg(self.f);
        (a_reg.into(), b.low)
    }

    /// Signed quotient and remainder of 128 bits, truncated.
    fn divide_wide(&mut self, a: Number, b: Number) -> (Number, Number) {
        let (_, ah) = a.words(self.f);
        let (_, bh) = b.words(self.f);
        let a_negative = self.f.setp(Compare::Lt, ah, 0);
        let b_negative = self.f.setp(Compare::Lt, bh, 0);
        let negative = self.f.xor(a_negative, b_negative);
        let (al, ah) = wide::magnitude(self.f, a);
        let (bl, bh) = wide::magnitude(self.f, b);
        let (q, r) = wide::divide_unsigned(self.module, self.f, (al, ah), (bl.into(), bh.into()));
        let quotient = wide::with_sign(self.f, q.0, q.1, negative);
        let rest = wide::with_sign(self.f, r.0, r.1, a_negative);
        (quotient, rest)
    }

    pub(super) fn negate(&mut self, id: NodeId, of: NodeId, overflow: Overflow) -> Result<Computed, CodegenError> {
        let ty = self.ty(id);
        if ty.repr.is_float() {
            return self.float_sign(of, false);
        }
        let a = self.node(of)?;
        let all = bounds(ty.repr);
        let zero = Number::constant(a.number.lane, 0);
        let range = self.range(of);
        if range.holds(all.low) && all.low < 0 && overflow != Overflow::Wrap {
            let lowest = equals(self.f, a.number, all.low);
            let valid = self.overflowed(id, ErrorCode::Overflow, lowest, a.valid, overflow)?;
            let number = compute(self.f, Arithmetic::Subtract, zero, a.number, lane(ty));
            return Ok(Computed { number, valid });
        }
        let number = compute(self.f, Arithmetic::Subtract, zero, a.number, lane(ty));
        let number = if range.holds(all.low) { wrap(self.f, number, ty.repr) } else { number };
        Ok(Computed { number, valid: a.valid })
    }

    pub(super) fn absolute(&mut self, id: NodeId, of: NodeId, overflow: Overflow) -> Result<Computed, CodegenError> {
        let ty = self.ty(id);
        if ty.repr.is_float() {
            return self.float_sign(of, true);
        }
        let mut a = self.node(of)?;
        // The magnitude of a lane's lowest value needs the next wider lane; so does a result in a wider lane.
        a.number = a.number.to(self.f, join(a.number.lane, lane(ty)));
        let all = bounds(ty.repr);
        let mut valid = a.valid;
        if self.range(of).holds(all.low) && all.low < 0 && overflow != Overflow::Wrap {
            let lowest = equals(self.f, a.number, all.low);
            valid = self.overflowed(id, ErrorCode::Overflow, lowest, valid, overflow)?;
        }
        let number = if a.number.lane == Lane::S128 {
            let (low, high) = wide::magnitude(self.f, a.number);
            Number::wide(low, high)
        } else {
            let low = a.number.low_reg(self.f);
            Number::reg(a.number.lane, self.f.abs(low))
        };
        let number = if self.range(of).holds(all.low) { wrap(self.f, number, ty.repr) } else { number };
        Ok(Computed { number: number.to(self.f, lane(ty)), valid })
    }

    pub(super) fn bitwise(
        &mut self,
        id: NodeId,
        op: Bitwise,
        left: NodeId,
        right: NodeId,
    ) -> Result<Computed, CodegenError> {
        let repr = self.ty(id).repr;
        let (a, b) = (self.node(left)?, self.node(right)?);
        let valid = self.both_valid(a.valid, b.valid);
        // Extended by sign or zero to the type's own width: AND, OR and XOR keep the extension, shifts restore it.
        let work = match repr {
            Repr::I64 => Lane::S64,
            Repr::U64 => Lane::U64,
            Repr::U32 => Lane::U32,
            _ => Lane::S32,
        };
        let width = bits(repr);
        let (x, y) = (a.number.to(self.f, work), b.number.to(self.f, work));
        let x = x.low_reg(self.f);
        let result = match op {
            Bitwise::And => self.f.and(x, y.low),
            Bitwise::Or => self.f.or(x, y.low),
            Bitwise::Xor => self.f.xor(x, y.low),
            Bitwise::ShiftLeft | Bitwise::ShiftRight => {
                let count = match y.to(self.f, Lane::U32).low {
                    Operand::Integer(count) => Operand::Integer(count & i128::from(width - 1)),
                    count => self.f.and(count, width - 1).into(),
                };
                if op == Bitwise::ShiftLeft { self.f.shl(x, count) } else { self.f.shr(x, count) }
            }
        };
        let number = Number::reg(work, result);
        let number = if op == Bitwise::ShiftLeft { wrap(self.f, number, repr) } else { number };
        Ok(Computed { number: number.to(self.f, self.lane(id)), valid })
    }

    pub(super) fn divide_constant(
        &mut self,
        id: NodeId,
        of: NodeId,
        divisor: i128,
        rounding: Rounding,
    ) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let range = self.range(of);
        let number = self.quotient(a.number, range, divisor, rounding);
        Ok(Computed { number: number.to(self.f, self.lane(id)), valid: a.valid })
    }

    /// `number / divisor` for a number within `range`.
    pub(super) fn quotient(&mut self, number: Number, range: Range, divisor: i128, rounding: Rounding) -> Number {
        // Largest magnitude in the unsigned division, rounding included.
        let bias = if rounding == Rounding::HalfAway { divisor - divisor / 2 } else { 0 };
        let largest = range.low.unsigned_abs().max(range.high.unsigned_abs()).saturating_add(bias.unsigned_abs());
        let lane = match number.lane {
            Lane::S32 | Lane::U32 if largest <= u128::from(u32::MAX) => number.lane,
            Lane::S32 | Lane::U32 | Lane::S64 | Lane::U64 if largest <= u128::from(u64::MAX) => {
                if number.lane == Lane::U64 { Lane::U64 } else { Lane::S64 }
            }
            _ => Lane::S128,
        };
        let number = number.to(self.f, lane);
        if lane == Lane::S128 {
            return self.quotient_wide(number, range, divisor, rounding, bias);
        }
        let value = number.low_reg(self.f);
        let (signed, unsigned, width) = match lane {
            Lane::S32 | Lane::U32 => (Type::S32, Type::U32, 32),
            _ => (Type::S64, Type::U64, 64),
        };
        let f = &mut *self.f;
        let quotient = if range.low >= 0 {
            let value = if bias > 0 { f.add(value.view(unsigned), bias) } else { value.view(unsigned) };
            divide_unsigned_constant(f, value, largest, divisor.unsigned_abs())
        } else {
            let sign = f.shr(value.view(signed), width - 1).view(unsigned);
            let flipped = f.xor(value.view(unsigned), sign);
            match rounding {
                // floor(-1 - x) = -1 - floor(x)
                Rounding::Floor => {
                    let quotient = divide_unsigned_constant(f, flipped, largest, divisor.unsigned_abs());
                    f.xor(quotient, sign)
                }
                Rounding::Truncate | Rounding::HalfAway => {
                    let mut magnitude = f.sub(flipped, sign);
                    if bias > 0 {
                        magnitude = f.add(magnitude, bias);
                    }
                    let quotient = divide_unsigned_constant(f, magnitude, largest, divisor.unsigned_abs());
                    let flipped = f.xor(quotient, sign);
                    f.sub(flipped, sign)
                }
            }
        };
        Number::reg(lane, quotient)
    }

    fn quotient_wide(&mut self, number: Number, range: Range, divisor: i128, rounding: Rounding, bias: i128) -> Number {
        let f = &mut *self.f;
        let (_, high) = number.words(f);
        let negative = f.setp(Compare::Lt, high, 0);
        let sign = f.shr(high, 63);
        let magnitude = match rounding {
            _ if range.low >= 0 => number,
            Rounding::Floor => {
                let (low, high) = number.words(f);
                let (low, high) = (f.xor(low, sign.view(Type::U64)), f.xor(high, sign));
                Number::wide(low, high)
            }
            _ => {
                let (low, high) = wide::magnitude(f, number);
                Number::wide(low, high)
            }
        };
        let magnitude = if bias > 0 { wide::add(f, magnitude, Number::constant(Lane::S128, bias)) } else { magnitude };
        let (low, high) = magnitude.words(f);
        let (dl, dh) = Number::constant(Lane::S128, divisor).word_operands();
        let ((low, high), _) = wide::divide_unsigned(self.module, f, (low, high.view(Type::U64)), (dl, dh));
        match rounding {
            _ if range.low >= 0 => Number::wide(low, high),
            Rounding::Floor => {
                let (low, high) = (f.xor(low, sign.view(Type::U64)), f.xor(high, sign.view(Type::U64)));
                Number::wide(low, high)
            }
            _ => wide::with_sign(f, low, high, negative),
        }
    }

    pub(super) fn check(
        &mut self,
        id: NodeId,
        of: NodeId,
        range: Range,
        overflow: Overflow,
    ) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let own = self.range(of);
        let outside = if overflow == Overflow::Wrap { None } else { self.outside(a.number, own, range) };
        let valid = match outside {
            Some(outside) => self.overflowed(id, ErrorCode::Cast, outside, a.valid, overflow)?,
            None => a.valid,
        };
        Ok(Computed { number: a.number.to(self.f, self.lane(id)), valid })
    }

    /// Predicate: a number within `own` is outside `range`; `None` if it never is.
    pub(super) fn outside(&mut self, number: Number, own: Range, range: Range) -> Option<Reg> {
        let f = &mut *self.f;
        if number.lane == Lane::S128
            && (range == bounds(Repr::I64) || range == bounds(Repr::U64))
            && !range.contains(own)
        {
            // The high word must repeat the sign of the low one, or be zero.
            let (low, high) = number.words(f);
            let expected: Operand =
                if range.low < 0 { f.shr(low.view(Type::S64), 63).into() } else { Operand::Integer(0) };
            return Some(f.setp(Compare::Ne, high, expected));
        }
        let below = (own.low < range.low).then(|| relate(f, Compare::Lt, number, range.low, own));
        let above = (own.high > range.high).then(|| relate(f, Compare::Gt, number, range.high, own));
        match (below, above) {
            (Some(below), Some(above)) => Some(f.or(below, above)),
            (below, above) => below.or(above),
        }
    }

    /// The proven range of an integer node.
    pub(super) fn range(&self, id: NodeId) -> Range {
        self.ty(id).bounds().unwrap_or(Range { low: 0, high: 1 })
    }
}

pub(super) fn bounds(repr: Repr) -> Range {
    repr.bounds().unwrap_or(Range { low: 0, high: 1 })
}

fn bits(repr: Repr) -> u32 {
    match repr {
        Repr::I8 | Repr::U8 => 8,
        Repr::I16 | Repr::U16 => 16,
        Repr::I64 | Repr::U64 => 64,
        Repr::I128 => 128,
        _ => 32,
    }
}

/// The exact range of a result; `None` if it exceeds 128 bits.
fn exact(op: Arithmetic, a: Range, b: Range) -> Option<Range> {
    let corners: Option<Vec<i128>> = [(a.low, b.low), (a.low, b.high), (a.high, b.low), (a.high, b.high)]
        .into_iter()
        .map(|(x, y)| match op {
            Arithmetic::Add => x.checked_add(y),
            Arithmetic::Subtract => x.checked_sub(y),
            _ => x.checked_mul(y),
        })
        .collect();
    let corners = corners?;
    Some(Range { low: *corners.iter().min()?, high: *corners.iter().max()? })
}

/// `a op b` modulo the width of `lane`.
fn compute(f: &mut FunctionBuilder, op: Arithmetic, a: Number, b: Number, lane: Lane) -> Number {
    if op == Arithmetic::Multiply {
        return multiply(f, a, b, lane);
    }
    let (a, b) = (a.to(f, lane), b.to(f, lane));
    match (lane, op) {
        (Lane::S128, Arithmetic::Add) => wide::add(f, a, b),
        (Lane::S128, _) => wide::subtract(f, a, b),
        _ => {
            let a = match (a.low, b.low) {
                (Operand::Integer(_), Operand::Integer(_)) => a.low_reg(f).into(),
                _ => a.low,
            };
            let result = if op == Arithmetic::Add { f.add(a, b.low) } else { f.sub(a, b.low) };
            Number::reg(lane, result)
        }
    }
}

/// A product modulo the width of `lane`, from factors in their narrow lanes.
fn multiply(f: &mut FunctionBuilder, a: Number, b: Number, lane: Lane) -> Number {
    let narrow = |n: Number| n.lane == Lane::S32;
    let word = |n: Number| matches!(n.lane, Lane::S32 | Lane::S64 | Lane::U32);
    let register_first = |f: &mut FunctionBuilder, a: Number, b: Number| -> (Operand, Operand) {
        match (a.low, b.low) {
            (Operand::Integer(_), Operand::Integer(_)) => (a.low_reg(f).into(), b.low),
            (Operand::Integer(_), _) => (b.low, a.low),
            _ => (a.low, b.low),
        }
    };
    match lane {
        Lane::S64 | Lane::U64 if narrow(a) && narrow(b) => {
            let (x, y) = register_first(f, a, b);
            Number::reg(lane, f.mul_wide(x, y))
        }
        Lane::S64 | Lane::U64 if a.lane == Lane::U32 && b.lane == Lane::U32 => {
            let (x, y) = register_first(f, a, b);
            Number::reg(lane, f.mul_wide(x, y))
        }
        Lane::S128 if word(a) && word(b) => {
            let (a, b) = (a.to(f, Lane::S64), b.to(f, Lane::S64));
            let (x, y) = register_first(f, a, b);
            wide::multiply_words(f, x, y)
        }
        Lane::S128 => {
            let (a, b) = (a.to(f, lane), b.to(f, lane));
            wide::multiply(f, a, b)
        }
        _ => {
            let (a, b) = (a.to(f, lane), b.to(f, lane));
            let (x, y) = register_first(f, a, b);
            Number::reg(lane, f.mul(x, y))
        }
    }
}

/// A 128-bit operation, with a predicate for overflow.
fn checked(f: &mut FunctionBuilder, op: Arithmetic, a: Number, b: Number) -> (Number, Reg) {
    if op == Arithmetic::Multiply {
        return wide::multiply_checked(f, a, b);
    }
    let result = if op == Arithmetic::Add { wide::add(f, a, b) } else { wide::subtract(f, a, b) };
    let (_, ah) = a.words(f);
    let (_, bh) = b.words(f);
    let (_, rh) = result.words(f);
    // A sum overflows if both operands differ in sign from the result; a difference if also the operands differ in
    // sign.
    let first = f.xor(ah, rh);
    let second = if op == Arithmetic::Add { f.xor(bh, rh) } else { f.xor(ah, bh) };
    let both = f.and(first, second);
    (result, f.setp(Compare::Lt, both, 0))
}

/// Truncates to the type's width and extends the result by the type's signedness.
pub(super) fn wrap(f: &mut FunctionBuilder, number: Number, repr: Repr) -> Number {
    let narrow = match repr {
        Repr::I8 => Type::S8,
        Repr::I16 => Type::S16,
        Repr::U8 => Type::U8,
        Repr::U16 => Type::U16,
        _ => return number,
    };
    let low = number.low_reg(f);
    let extended = f.extend(narrow, low);
    Number::reg(number.lane, extended)
}

pub(super) fn select(f: &mut FunctionBuilder, condition: Reg, a: Number, b: Number) -> Number {
    if a.lane == Lane::S128 {
        return wide::select(f, condition, a, b);
    }
    if a.lane == Lane::Text {
        let Number { low, high, .. } = wide::select(f, condition, a, b);
        return Number { lane: Lane::Text, low, high };
    }
    let (x, y) = match (a.low, b.low) {
        (Operand::Reg(_), _) | (_, Operand::Reg(_)) => (a.low, b.low),
        _ => (a.low_reg(f).into(), b.low),
    };
    Number::reg(a.lane, f.select(condition, x, y))
}

/// True if a number equals a constant that fits its lane.
fn equals(f: &mut FunctionBuilder, number: Number, value: i128) -> Reg {
    let constant = Number::constant(number.lane, value);
    relate_numbers(f, Compare::Eq, number, constant)
}

/// Compares with a constant, which may be outside the lane.
fn relate(f: &mut FunctionBuilder, relation: Compare, number: Number, value: i128, own: Range) -> Reg {
    let lane = join(number.lane, lane_for(value, value));
    let lane = match lane {
        Lane::U32 if value < 0 => Lane::S64,
        Lane::U64 if value < 0 || own.low < 0 => Lane::S128,
        lane => lane,
    };
    let number = number.to(f, lane);
    let constant = Number::constant(lane, value);
    relate_numbers(f, relation, number, constant)
}

/// Compares two numbers of one lane.
pub(super) fn relate_numbers(f: &mut FunctionBuilder, relation: Compare, a: Number, b: Number) -> Reg {
    if a.lane == Lane::S128 {
        return wide::compare(f, relation, a, b);
    }
    let a = a.low_reg(f);
    f.setp(relation, a, b.low)
}

/// `value / divisor` for an unsigned value of at most `largest`, by multiply-high and shift.
///
/// After    Warren, Hacker's Delight 2nd ed., chapter 10.
pub(super) fn divide_unsigned_constant(f: &mut FunctionBuilder, value: Reg, largest: u128, divisor: u128) -> Reg {
    let width = value.ty().bits();
    if divisor > largest {
        return f.copy(value.ty(), 0);
    }
    if divisor.is_power_of_two() {
        return if divisor == 1 { value } else { f.shr(value, divisor.trailing_zeros()) };
    }
    for shift in 0..width {
        // multiplier = ceil(2^(width + shift) / divisor); exact if value * error < 2^(width + shift)
        let Some(power) = 1_u128.checked_shl(width + shift) else { break };
        let multiplier = power.div_ceil(divisor);
        let error = multiplier * divisor - power;
        if multiplier >> width != 0 {
            break;
        }
        if error.checked_mul(largest).is_some_and(|product| product < power) {
            let high = f.mul_hi(value, multiplier as i128);
            return if shift == 0 { high } else { f.shr(high, shift) };
        }
    }
    // The multiplier is one bit wider than the register.
    let shift = 128 - (divisor - 1).leading_zeros();
    // ceil(2^(width + shift) / divisor) - 2^width = floor(2^width * (2^shift - divisor) / divisor) + 1
    let multiplier = ((1_u128 << shift) - divisor) * (1_u128 << width) / divisor + 1;
    let high = f.mul_hi(value, multiplier as i128);
    let rest = f.sub(value, high);
    let half = f.shr(rest, 1);
    let sum = f.add(half, high);
    if shift == 1 { sum } else { f.shr(sum, shift - 1) }
}
