//! Conversions of numbers between representations, as arrow casts them.
//!
//!   float → integer    truncates; NaN and values that do not fit are an error or NULL
//!   i128 → float       rounded once: the leading 64 bits with a sticky bit, scaled by a power of two

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::integer::{bounds, wrap};
use super::lanes::{Number, type_of};
use super::{Computed, Row, float, wide};
use crate::codegen::ir::{ErrorCode, Lane, NodeId, Overflow, Range, Repr};
use crate::codegen::value::CodegenError;

impl Row<'_, '_> {
    pub(super) fn convert(&mut self, id: NodeId, of: NodeId, overflow: Overflow) -> Result<Computed, CodegenError> {
        let (from, to) = (self.ty(of), self.ty(id));
        let target = self.lane(id);
        let a = self.node(of)?;
        let number = match (from.repr, to.repr) {
            (from, to) if from.is_integer() && to.is_integer() => return self.convert_integer(id, of, a, overflow),
            (from, to) if from.is_float() && to.is_integer() => return self.float_to_integer(id, a, overflow),
            (Repr::Bool, to) => {
                let truth = a.number.low_reg(self.f);
                let (one, zero): (Operand, Operand) = if to.is_float() {
                    (float::constant(target, 1.0), float::constant(target, 0.0))
                } else {
                    (Operand::Integer(1), Operand::Integer(0))
                };
                let one = self.f.copy(type_of(target), one);
                Number::reg(target, self.f.select(truth, one, zero))
            }
            (from, Repr::Bool) => {
                let truth = match a.number.lane {
                    Lane::S128 => {
                        let zero = Number::constant(Lane::S128, 0);
                        wide::compare(self.f, Compare::Ne, a.number, zero)
                    }
                    lane if from.is_float() => {
                        // NaN is true.
                        let x = a.number.low_reg(self.f);
                        self.f.setp(Compare::NeOrNan, x, float::constant(lane, 0.0))
                    }
                    _ => {
                        let x = a.number.low_reg(self.f);
                        self.f.setp(Compare::Ne, x, 0)
                    }
                };
                Number::reg(Lane::Pred, truth)
            }
            (from, _) if from.is_integer() => integer_to_float(self.f, a.number, target),
            _ => {
                let x = a.number.low_reg(self.f);
                Number::reg(target, self.f.convert(type_of(target), x))
            }
        };
        Ok(Computed { number, valid: a.valid })
    }

    fn convert_integer(
        &mut self,
        id: NodeId,
        of: NodeId,
        a: Computed,
        overflow: Overflow,
    ) -> Result<Computed, CodegenError> {
        let to = self.ty(id).repr;
        let (own, all) = (self.range(of), bounds(to));
        if all.contains(own) {
            return Ok(Computed { number: a.number.to(self.f, self.lane(id)), valid: a.valid });
        }
        if overflow == Overflow::Wrap {
            let narrow = match to {
                Repr::I64 => Lane::S64,
                Repr::U64 => Lane::U64,
                Repr::U32 => Lane::U32,
                Repr::I128 => Lane::S128,
                _ => Lane::S32,
            };
            let number = a.number.to(self.f, narrow);
            let number = wrap(self.f, number, to);
            return Ok(Computed { number: number.to(self.f, self.lane(id)), valid: a.valid });
        }
        let valid = match self.outside(a.number, own, all) {
            Some(outside) => self.overflowed(id, ErrorCode::Cast, outside, a.valid, overflow)?,
            None => a.valid,
        };
        Ok(Computed { number: a.number.to(self.f, self.lane(id)), valid })
    }

    fn float_to_integer(&mut self, id: NodeId, a: Computed, overflow: Overflow) -> Result<Computed, CodegenError> {
        let to = self.ty(id).repr;
        let lane = a.number.lane;
        let x = a.number.low_reg(self.f);
        let Range { low, high } = bounds(to);
        // One above the highest is a power of two, which every float format represents exactly; one below the lowest
        // may not be.
        let above = 2_f64.powi(128 - (high as u128).leading_zeros() as i32);
        let mantissa = if lane == Lane::F32 { 24 } else { 53 };
        let below = if (low.unsigned_abs() + 1) >> mantissa == 0 { Some(low as f64 - 1.0) } else { None };
        let fits_above = self.f.setp(Compare::Lt, x, float::constant(lane, above));
        let fits_below = match below {
            Some(below) => self.f.setp(Compare::Gt, x, float::constant(lane, below)),
            None => self.f.setp(Compare::Ge, x, float::constant(lane, low as f64)),
        };
        let fits = self.f.and(fits_above, fits_below);
        let outside = self.f.not(fits);
        let valid = self.overflowed(id, ErrorCode::Cast, outside, a.valid, overflow)?;
        let number = if to == Repr::I128 {
            float_to_wide(self.f, lane, x)
        } else {
            let work = match to {
                Repr::U64 => Lane::U64,
                Repr::I64 | Repr::U32 => Lane::S64,
                _ => Lane::S32,
            };
            Number::reg(work, self.f.convert(type_of(work), x))
        };
        Ok(Computed { number: number.to(self.f, self.lane(id)), valid })
    }
}

/// An integer as a float, rounded to nearest even.
pub(super) fn integer_to_float(f: &mut FunctionBuilder, number: Number, lane: Lane) -> Number {
    let ty = type_of(lane);
    if number.lane != Lane::S128 {
        let low = number.low_reg(f);
        return Number::reg(lane, f.convert(ty, low));
    }
    let (_, high) = number.words(f);
    let negative = f.setp(Compare::Lt, high, 0);
    let (low, high) = wide::magnitude(f, number);
    // The leading 64 bits, with all lower bits ORed into the last bit, so that rounding is correct.
    let shift = f.clz(high);
    let back = f.sub(64, shift);
    let leading = {
        let (shifted, carried) = (f.shl(high, shift), f.shr(low, back));
        f.or(shifted, carried)
    };
    let below = f.shl(low, shift);
    let sticky = f.setp(Compare::Ne, below, 0);
    let one = f.copy(Type::U64, 1);
    let sticky = f.select(sticky, one, 0);
    let leading = f.or(leading, sticky);
    let rounded = f.convert(ty, leading);
    // 2^(64 - shift), by its exponent field.
    let (bits, bias, mantissa) = if lane == Lane::F32 { (Type::U32, 127, 23) } else { (Type::U64, 1023, 52) };
    let exponent = f.add(back, bias);
    let exponent = if bits == Type::U64 { f.convert(Type::U64, exponent) } else { exponent };
    let scale = f.shl(exponent, mantissa);
    let scale = f.reinterpret(ty, scale);
    let magnitude = f.mul(rounded, scale);
    let opposite = f.neg(magnitude);
    Number::reg(lane, f.select(negative, opposite, magnitude))
}

/// A float within the range as a 128-bit integer, truncated.
fn float_to_wide(f: &mut FunctionBuilder, lane: Lane, x: Reg) -> Number {
    let ty = type_of(lane);
    let negative = f.setp(Compare::Lt, x, float::constant(lane, 0.0));
    let magnitude = f.abs(x);
    let high = f.mul(magnitude, float::constant(lane, 2_f64.powi(-64)));
    let high = f.convert_with(".rzi", ty, high);
    // Exact: the float's significand ends above or within the low word.
    let scale = f.copy(ty, float::constant(lane, -(2_f64.powi(64))));
    let low = f.fma(high, scale, magnitude);
    let high = f.convert(Type::U64, high);
    let low = f.convert(Type::U64, low);
    wide::with_sign(f, low, high, negative)
}
