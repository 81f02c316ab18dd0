//! Searches among the items of a list, which lie behind each other in a lookup table.
//!
//!   items   7 8 9 9 5       list from 1 to below 4, 9 is sought   ──►   place 2
//!
//! NULL     an item that is NULL is found by NULL where that is asked for, and otherwise by nothing. A list that is NULL is not read.
//! Loop     as long as the row's own list; a row leaves it when it has found what it seeks.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg, Value as Operand};

use super::integer::relate_numbers;
use super::lanes::{Number, join};
use super::{Computed, Row};
use crate::codegen::ir::{Lane, NodeId};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Value};

impl Row<'_, '_> {
    pub(super) fn find(
        &mut self,
        sought: NodeId,
        (from, to): (NodeId, NodeId),
        table: u32,
        nulls: bool,
    ) -> Result<Computed, CodegenError> {
        let needle = self.node(sought)?;
        let (first, end) = (self.node(from)?, self.node(to)?);
        let mut valid = self.both_valid(first.valid, end.valid);
        if !nulls {
            valid = self.both_valid(valid, needle.valid);
        }
        let start = first.number.to(self.f, Lane::U32).low_reg(self.f);
        let mut stop = end.number.to(self.f, Lane::U32).low_reg(self.f);
        if let Some(valid) = valid {
            stop = self.f.select(valid, stop, start);
        }
        let place = self.f.copy(Type::U32, 0u32);
        let hit = self.f.constant_pred(false);
        let one = self.f.copy(Type::U32, 1u32);
        let Row { f, module, leaves, .. } = self;
        f.for_(start, stop, 1u32, |f, at| {
            let mut emit = Emit { module, f };
            let item = leaves.lookup(&mut emit, table, Value { lane: Lane::U32, low: at, high: None, valid: None })?;
            let mut here = equal(&mut emit, needle.number, number(item)?)?;
            let f = emit.f;
            if let Some(valid) = item.valid {
                here = f.and(here, valid);
            }
            if let (true, Some(own)) = (nulls, needle.valid) {
                here = f.and(here, own);
                if let Some(valid) = item.valid {
                    let either = f.or(own, valid);
                    let neither = f.not(either);
                    here = f.or(here, neither);
                }
            }
            let found = f.select(here, one, 0u32);
            f.setp_into(hit, Compare::Ne, found, 0u32);
            f.guarded(hit, true, |f| f.assign(place, at));
            f.break_if(hit);
            Ok::<(), CodegenError>(())
        })?;
        Ok(Computed { number: Number::reg(Lane::U32, place), valid: Some(hit) })
    }
}

/// The number of a value.
fn number(value: Value) -> Result<Number, CodegenError> {
    Ok(match (value.lane, value.high) {
        (Lane::Text, _) => {
            let (at, bytes) = text::words(value)?;
            Number::text(at, bytes)
        }
        (Lane::S128, Some(high)) => Number::wide(value.low, high),
        (lane, _) => Number::reg(lane, value.low),
    })
}

/// Where both are the same value; of floats, the same bits.
fn equal(emit: &mut Emit<'_>, a: Number, b: Number) -> Result<Reg, CodegenError> {
    Ok(match a.lane {
        Lane::Text => {
            let callee = text::paste(emit.module, "text_equal")?;
            let mut arguments: Vec<Operand> = Vec::with_capacity(4);
            for text in [a, b] {
                let (at, bytes) = text.words(emit.f);
                arguments.extend([Operand::from(at), bytes.view(Type::U64).into()]);
            }
            let equal = emit.f.call(&callee, &arguments);
            emit.f.setp(Compare::Ne, equal[0].view(Type::U32), 0u32)
        }
        Lane::Pred => {
            let (a, b) = (a.low_reg(emit.f), b.low_reg(emit.f));
            let differ = emit.f.xor(a, b);
            emit.f.not(differ)
        }
        Lane::F32 | Lane::F64 => {
            let bits = if a.lane == Lane::F32 { Type::B32 } else { Type::B64 };
            let (a, b) = (a.low_reg(emit.f), b.low_reg(emit.f));
            let (a, b) = (emit.f.reinterpret(bits, a), emit.f.reinterpret(bits, b));
            emit.f.setp(Compare::Eq, a, b)
        }
        _ => {
            let lane = join(a.lane, b.lane);
            let (a, b) = (a.to(emit.f, lane), b.to(emit.f, lane));
            relate_numbers(emit.f, Compare::Eq, a, b)
        }
    })
}
