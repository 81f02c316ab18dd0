//! Group keys: as a dense code that addresses a table, or as words of a hash table's record.
//!
//!   dense    code = ((k0 − low0) · codes1 + (k1 − low1)) · codes2 + …         NULL is a key's last code
//!   words    one 64-bit word per key (two for 128 bits), 0 for NULL, and a mask of NULLs beside the tag
//!
//! Texts    are always words, those of `text::key_words`.
//! Floats   are compared by their bits, so that NaNs of different sign or payload differ, but −0.0 is 0.0: as in
//!          DataFusion.
//! Ranges   lowest values and numbers of codes are parameters: other ranges use the same kernel.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg};

use super::cells::{AggregatePlan, KeyPlan};
use crate::codegen::expr::Expressions;
use crate::codegen::ir::*;
use crate::codegen::load::{RowLeaves, canonical, lane_type, to_64, to_128, truth_bit};
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Value};

/// Parameters of one key, each U32; in an emit, `low` is U64.
struct DenseKeyParams {
    low: Reg,
    /// The code of NULL.
    null: Option<Reg>,
    /// Number of codes.
    codes: Reg,
}

/// Parameters of the dense code, in registers.
pub(crate) struct DenseParams {
    keys: Vec<DenseKeyParams>,
}

impl DenseParams {
    pub(crate) fn new(
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        plan: &AggregatePlan,
        low_type: Type,
    ) -> DenseParams {
        let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
            let param = params.declare(f, slot, ty);
            f.load_param(&param)
        };
        let keys = plan.keys.iter().enumerate().map(|(i, key)| {
            let i = i as u32;
            let low = read(f, Slot::KeyLow(i), low_type);
            let null = key.ty.nullable.then(|| read(f, Slot::KeyNull(i), Type::U32));
            let codes = read(f, Slot::KeyCodes(i), Type::U32);
            DenseKeyParams { low, null, codes }
        });
        DenseParams { keys: keys.collect() }
    }

    /// Computes the code of `keys` (U32), and whether each key is in its range.
    pub(crate) fn code(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        keys: &[NodeId],
    ) -> Result<(Reg, Option<Reg>), CodegenError> {
        let mut code: Option<Reg> = None;
        let mut inside: Option<Reg> = None;
        for (&key, &DenseKeyParams { low, null, codes }) in keys.iter().zip(&self.keys) {
            let value = expressions.value(emit, leaves, key)?;
            let f = &mut *emit.f;
            // Modulo 2^32: the difference is below 2^32, so the low halves give it exactly.
            let bits = match value.lane {
                Lane::Pred => truth_bit(f, value.low),
                Lane::S32 | Lane::U32 => value.low.view(Type::U32),
                Lane::S64 | Lane::U64 => f.convert(Type::U32, value.low.view(Type::U64)),
                Lane::S128 | Lane::F32 | Lane::F64 | Lane::Text => {
                    return Err(CodegenError::Malformed { what: "a dense key".into(), why: "it is a float".into() });
                }
            };
            let mut own = f.sub(bits, low);
            if let (Some(null), Some(valid)) = (null, value.valid) {
                own = f.select(valid, own, null);
            }
            let here = f.setp(Compare::Lt, own, codes);
            inside = Some(match inside {
                Some(inside) => f.and(inside, here),
                None => here,
            });
            code = Some(match code {
                Some(code) => f.mad(code, codes, own),
                None => own,
            });
        }
        let code = match code {
            Some(code) => code,
            None => emit.f.copy(Type::U32, 0u32),
        };
        Ok((code, inside))
    }

    /// Decodes `code` (U32) to the keys that [`Self::code`] encoded; keys that are never NULL have no validity.
    pub(crate) fn split(&self, f: &mut FunctionBuilder, plan: &AggregatePlan, code: Reg) -> Vec<Value> {
        let mut rest = code;
        let mut values = Vec::new();
        for (i, (key, params)) in plan.keys.iter().zip(&self.keys).enumerate().rev() {
            let mut own = rest;
            if i > 0 {
                let above = f.div(rest, params.codes);
                let whole = f.mul(above, params.codes);
                own = f.sub(rest, whole);
                rest = above;
            }
            let valid = params.null.map(|null| f.setp(Compare::Ne, own, null));
            let value = from_difference(f, key, own, params.low);
            values.push(Value { valid, ..value });
        }
        values.reverse();
        values
    }
}

/// The key `difference + low` in its lane; `low` is U64.
fn from_difference(f: &mut FunctionBuilder, key: &KeyPlan, difference: Reg, low: Reg) -> Value {
    let register = match key.lane {
        Lane::Pred => f.setp(Compare::Ne, difference, 0u32),
        Lane::S32 | Lane::U32 => {
            let low = f.convert(Type::U32, low);
            f.add(difference, low).view(lane_type(key.lane))
        }
        _ => {
            let wide = f.convert(Type::U64, difference);
            let sum = f.add(wide, low);
            sum.view(lane_type(key.lane))
        }
    };
    Value { lane: key.lane, low: register, high: None, valid: None }
}

/// Encodes `keys` as words, with the mask of NULLs (`None`: no key is nullable).
pub(crate) fn words(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    plan: &AggregatePlan,
    keys: &[NodeId],
) -> Result<(Vec<Reg>, Option<Reg>), CodegenError> {
    let mut words = Vec::new();
    let nullable = plan.keys.iter().any(|key| key.ty.nullable);
    let mut nulls = nullable.then(|| emit.f.copy(Type::U32, 0u32));
    for (i, (key, &node)) in plan.keys.iter().zip(keys).enumerate() {
        let value = expressions.value(emit, leaves, node)?;
        let view = match value.lane {
            Lane::Text => Some(expressions.stored(emit, leaves, node)?),
            _ => None,
        };
        let f = &mut *emit.f;
        let mut own = match value.lane {
            Lane::F32 if key.bitwise => {
                let bits = f.reinterpret(Type::U32, value.low);
                vec![f.convert(Type::U64, bits)]
            }
            Lane::F64 if key.bitwise => vec![f.reinterpret(Type::U64, value.low)],
            Lane::S128 => {
                let (low, high) = to_128(f, value);
                vec![low, high.view(Type::U64)]
            }
            Lane::Pred => {
                let bit = truth_bit(f, value.low);
                vec![f.convert(Type::U64, bit)]
            }
            Lane::F32 => {
                let bits = canonical(f, value.low, Type::U32);
                vec![f.convert(Type::U64, bits)]
            }
            Lane::F64 => vec![canonical(f, value.low, Type::U64)],
            Lane::Text => text::key_words(emit, value, view)?,
            _ => vec![to_64(f, value.low).view(Type::U64)],
        };
        let f = &mut *emit.f;
        if let Some(valid) = value.valid {
            for word in &mut own {
                *word = f.select(valid, *word, 0u64);
            }
            if let Some(mask) = nulls {
                let with = f.or(mask, 1u32 << i);
                nulls = Some(f.select(valid, mask, with));
            }
        }
        words.append(&mut own);
    }
    Ok((words, nulls))
}

/// Decodes a value from its words.
pub(crate) fn from_words(f: &mut FunctionBuilder, lane: Lane, words: &[Reg]) -> Value {
    let mut high = None;
    let low = match lane {
        Lane::Pred => f.setp(Compare::Ne, words[0], 0u64),
        Lane::S32 | Lane::U32 => f.convert(lane_type(lane), words[0]),
        Lane::S64 | Lane::U64 => words[0].view(lane_type(lane)),
        // A text in stored form: the two words of its view.
        Lane::Text => {
            high = Some(words[2].view(Type::S64));
            words[1]
        }
        Lane::S128 => {
            high = Some(words[1].view(Type::S64));
            words[0]
        }
        Lane::F32 => {
            let bits = f.convert(Type::U32, words[0]);
            f.reinterpret(Type::F32, bits)
        }
        Lane::F64 => f.reinterpret(Type::F64, words[0]),
    };
    Value { lane, low, high, valid: None }
}
