//! Calls of functions, and requirements.
//!
//!   strict       @!valid bra over; call (r), math_sin, (x); over:        r has a value only if valid
//!   sees NULL    call (bytes), f, (x, x_valid, …); r, valid = bytes
//!
//! NULL     a strict function never receives the bits of a NULL row.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg, Value as Operand};

use super::integer::wrap;
use super::lanes::{Number, type_of};
use super::{Computed, Row};
use crate::codegen::function::{Function, Nulls};
use crate::codegen::ir::{ErrorCode, Lane, NodeId, Overflow, Repr, Ty};
use crate::codegen::value::CodegenError;

impl Row<'_, '_> {
    pub(super) fn call_function(
        &mut self,
        function: &Function,
        arguments: &[NodeId],
    ) -> Result<Computed, CodegenError> {
        let broken = |error: millpond_ptx::PtxError| CodegenError::Ptx(error.to_string());
        let callee = function.paste(self.module).map_err(broken)?;
        let mut operands: Vec<Operand> = Vec::new();
        let mut valid = None;
        for &argument in arguments {
            let computed = self.node(argument)?;
            self.pass(self.ty(argument).repr, computed.number, &mut operands);
            match function.nulls {
                Nulls::Strict => valid = self.both_valid(valid, computed.valid),
                Nulls::Seen => {
                    let present = match computed.valid {
                        Some(valid) => self.bit(valid).into(),
                        None => Operand::from(1),
                    };
                    // An integer operand has no type of its own: the parameter's type applies.
                    operands.push(present);
                }
            }
        }
        let lane = full_lane(function.result);
        let reads = match (function.nulls, lane) {
            (Nulls::Strict, _) => None,
            (Nulls::Seen, Lane::S128) => Some([vec![(Type::B64, 0), (Type::B64, 8), (Type::B32, 16)]]),
            (Nulls::Seen, Lane::S64 | Lane::U64 | Lane::F64) => Some([vec![(Type::B64, 0), (Type::B32, 8)]]),
            (Nulls::Seen, _) => Some([vec![(Type::B32, 0), (Type::B32, 8)]]),
        };
        let results: Vec<Reg> = match valid {
            None => match &reads {
                Some(reads) => self.f.call_reading(&callee, &operands, reads),
                None => self.f.call(&callee, &operands),
            },
            Some(valid) => {
                let types: Vec<Type> = match lane {
                    Lane::S128 => vec![Type::B64; 2],
                    Lane::Pred => vec![Type::B32],
                    lane => vec![type_of(lane)],
                };
                let kept: Vec<Reg> = types
                    .into_iter()
                    .map(|ty| match ty {
                        Type::F32 => self.f.copy(ty, 0.0_f32),
                        Type::F64 => self.f.copy(ty, 0.0_f64),
                        ty => self.f.copy(ty, 0),
                    })
                    .collect();
                self.f.if_(valid, |f| {
                    let results = f.call(&callee, &operands);
                    for (kept, result) in kept.iter().zip(results) {
                        let result = f.reinterpret(kept.ty(), result);
                        f.assign(*kept, result);
                    }
                });
                kept
            }
        };
        let short = || CodegenError::Malformed {
            what: format!("function {}", function.name()),
            why: "gives too little".into(),
        };
        let word = |at: usize| results.get(at).copied().ok_or_else(short);
        let valid = match function.nulls {
            Nulls::Strict => valid,
            Nulls::Seen => {
                let at = if function.result == Repr::I128 { 2 } else { 1 };
                Some(self.f.setp(Compare::Ne, word(at)?.view(Type::U32), 0))
            }
        };
        let number = match lane {
            Lane::S128 => Number::wide(word(0)?, word(1)?),
            _ => self.received(function, lane, word(0)?),
        };
        let wanted = self.lane_of(Ty::new(function.result));
        let number = if function.result.is_integer() { number.to(self.f, wanted) } else { number };
        Ok(Computed { number, valid })
    }

    /// Appends the registers of an argument.
    fn pass(&mut self, repr: Repr, number: Number, operands: &mut Vec<Operand>) {
        match full_lane(repr) {
            Lane::Pred => {
                let truth = number.low_reg(self.f);
                operands.push(self.bit(truth).into());
            }
            Lane::S128 => {
                let (low, high) = number.to(self.f, Lane::S128).words(self.f);
                operands.extend([Operand::Reg(low), Operand::Reg(high)]);
            }
            Lane::F32 | Lane::F64 => operands.push(number.low_reg(self.f).into()),
            lane => operands.push(number.to(self.f, lane).low_reg(self.f).into()),
        }
    }

    /// The first returned word, as a number of `lane`.
    fn received(&mut self, function: &Function, lane: Lane, word: Reg) -> Number {
        let f = &mut *self.f;
        match lane {
            Lane::F32 | Lane::F64 => Number::reg(lane, f.reinterpret(type_of(lane), word)),
            Lane::Pred => Number::reg(lane, f.setp(Compare::Ne, word.view(Type::U32), 0)),
            Lane::S32 | Lane::U32 => wrap(f, Number::reg(lane, word), function.result),
            lane => Number::reg(lane, word),
        }
    }

    /// 1 if the predicate is true, else 0.
    fn bit(&mut self, truth: Reg) -> Reg {
        let one = self.f.copy(Type::U32, 1);
        self.f.select(truth, one, 0)
    }

    fn lane_of(&self, ty: Ty) -> Lane {
        crate::codegen::ir::lane(ty)
    }

    pub(super) fn require(
        &mut self,
        id: NodeId,
        (of, that): (NodeId, NodeId),
        overflow: Overflow,
        code: ErrorCode,
    ) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let condition = self.node(that)?;
        let holds = condition.number.low_reg(self.f);
        let broken = self.f.not(holds);
        let broken = self.where_valid(broken, condition.valid);
        let valid = self.overflowed(id, code, broken, a.valid, overflow)?;
        Ok(Computed { number: a.number, valid })
    }
}

/// The lane that holds every value of a representation.
fn full_lane(repr: Repr) -> Lane {
    match repr {
        Repr::Bool => Lane::Pred,
        Repr::I64 => Lane::S64,
        Repr::U64 => Lane::U64,
        Repr::I128 => Lane::S128,
        Repr::U32 => Lane::U32,
        Repr::F32 => Lane::F32,
        Repr::F64 => Lane::F64,
        _ => Lane::S32,
    }
}
