//! Numbers in registers, and conversion between lanes: the narrowest register that a range proves, up to two 64-bit
//! words.
//!
//!   S32 ─ sign ─► S64 ─ sign ─► S128 (low, high)        U32 ─ zero ─► S64, U64        narrowing keeps the low bits

use millpond_ptx::ast::Type;
use millpond_ptx::build::{FunctionBuilder, Reg, Value as Operand};

use crate::codegen::ir::Lane;

/// A number: registers or constants of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    pub lane: Lane,
    pub low: Operand,
    /// The high word of `S128`, or the length in bytes of `Text`.
    pub high: Option<Operand>,
}

/// Register type of a lane; for `S128`, of its low word.
pub(super) fn type_of(lane: Lane) -> Type {
    match lane {
        Lane::Pred => Type::Pred,
        Lane::S32 => Type::S32,
        Lane::U32 => Type::U32,
        Lane::S64 => Type::S64,
        Lane::U64 | Lane::S128 | Lane::Text => Type::U64,
        Lane::F32 => Type::F32,
        Lane::F64 => Type::F64,
    }
}

impl Number {
    pub(super) fn reg(lane: Lane, low: Reg) -> Number {
        Number { lane, low: Operand::Reg(low.view(type_of(lane))), high: None }
    }

    pub(super) fn wide(low: impl Into<Operand>, high: impl Into<Operand>) -> Number {
        let view = |word: Operand, ty| match word {
            Operand::Reg(reg) => Operand::Reg(reg.view(ty)),
            constant => constant,
        };
        Number { lane: Lane::S128, low: view(low.into(), Type::U64), high: Some(view(high.into(), Type::S64)) }
    }

    /// A text: its address and its length in bytes.
    pub(super) fn text(at: impl Into<Operand>, bytes: impl Into<Operand>) -> Number {
        Number { lane: Lane::Text, ..Number::wide(at, bytes) }
    }

    /// An integer constant in a lane that holds it.
    pub(super) fn constant(lane: Lane, value: i128) -> Number {
        match lane {
            Lane::S128 => Number::wide(Operand::Integer(i128::from(value as u64)), Operand::Integer(value >> 64)),
            Lane::Text => Number::text(Operand::Integer(0), Operand::Integer(0)),
            Lane::U64 => Number { lane, low: Operand::Integer(i128::from(value as u64)), high: None },
            Lane::U32 => Number { lane, low: Operand::Integer(i128::from(value as u32)), high: None },
            Lane::S32 => Number { lane, low: Operand::Integer(i128::from(value as i32)), high: None },
            _ => Number { lane, low: Operand::Integer(i128::from(value as i64)), high: None },
        }
    }

    /// The value, if it is a constant.
    fn as_constant(self) -> Option<i128> {
        match (self.low, self.high) {
            (Operand::Integer(low), None) => Some(low),
            (Operand::Integer(low), Some(Operand::Integer(high))) => Some(high << 64 | low),
            _ => None,
        }
    }

    /// The register of a one-word number; a constant is put into a new register.
    pub(super) fn low_reg(self, f: &mut FunctionBuilder) -> Reg {
        match self.low {
            Operand::Reg(reg) => reg,
            constant => f.copy(type_of(self.lane), constant),
        }
    }

    /// Low and high word as registers.
    pub(super) fn words(self, f: &mut FunctionBuilder) -> (Reg, Reg) {
        let low = self.low_reg(f).view(Type::U64);
        let high = match self.high {
            Some(Operand::Reg(reg)) => reg,
            Some(constant) => f.copy(Type::S64, constant),
            None => f.copy(Type::S64, 0),
        };
        (low, high.view(Type::S64))
    }

    /// Both words as operands.
    pub(super) fn word_operands(self) -> (Operand, Operand) {
        (self.low, self.high.unwrap_or(Operand::Integer(0)))
    }

    /// The number in another integer lane. Narrowing keeps the low bits: the caller ensures that they suffice.
    pub(super) fn to(self, f: &mut FunctionBuilder, lane: Lane) -> Number {
        if self.lane == lane {
            return self;
        }
        if let Some(value) = self.as_constant() {
            return Number::constant(lane, value);
        }
        let low = self.low_reg(f);
        let signed_source = matches!(self.lane, Lane::S32 | Lane::S64 | Lane::S128);
        match (self.lane, lane) {
            (Lane::S32 | Lane::U32, Lane::S32 | Lane::U32) => Number::reg(lane, low),
            (Lane::S64 | Lane::U64 | Lane::S128, Lane::S64 | Lane::U64) => Number::reg(lane, low),
            (Lane::S64 | Lane::U64 | Lane::S128, Lane::S32 | Lane::U32) => {
                let narrow = f.convert(Type::U32, low.view(Type::U64));
                Number::reg(lane, narrow)
            }
            (Lane::S32 | Lane::U32, Lane::S64 | Lane::U64) => {
                let ty = if signed_source { Type::S64 } else { Type::U64 };
                let wide = f.convert(ty, low);
                Number::reg(lane, wide)
            }
            (_, Lane::S128) => {
                let low = self.to(f, if signed_source { Lane::S64 } else { Lane::U64 }).low_reg(f);
                if signed_source {
                    let high = f.shr(low.view(Type::S64), 63);
                    Number::wide(low, high)
                } else {
                    Number::wide(low, 0)
                }
            }
            _ => self,
        }
    }
}

/// The lane that holds both of two integers of one representation.
pub(super) fn join(a: Lane, b: Lane) -> Lane {
    use Lane::{S32, S64, S128, U32, U64};
    match (a, b) {
        _ if a == b => a,
        (S128, _) | (_, S128) => S128,
        // One of them is `U64`, so the representation is unsigned: neither is negative.
        (U64, _) | (_, U64) => U64,
        (S64, _) | (_, S64) => S64,
        (U32, _) | (_, U32) => U32,
        _ => S32,
    }
}

/// The narrowest lane that holds every value from `low` to `high`.
pub(super) fn lane_for(low: i128, high: i128) -> Lane {
    if low >= i128::from(i32::MIN) && high <= i128::from(i32::MAX) {
        Lane::S32
    } else if low >= i128::from(i64::MIN) && high <= i128::from(i64::MAX) {
        Lane::S64
    } else {
        Lane::S128
    }
}
