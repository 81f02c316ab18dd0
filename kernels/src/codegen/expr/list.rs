//! Searches in the items of a list, which are consecutive entries of a lookup table.
//!
//!   items   7 8 9 9 5       list from 1 to below 4, search for 9   ──►   place 2
//!
//! NULL     NULL finds a NULL item if the node requests it; otherwise it finds nothing. A NULL list is not read.
//! Loops    run over the row's own list; a row leaves the loop at the first match.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::integer::relate_numbers;
use super::lanes::{Number, join};
use super::{Computed, Row};
use crate::codegen::ir::{Lane, NodeId, Places};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Leaves, Value};

/// Range of a list's places in registers, and whether the list exists.
struct Span {
    start: Reg,
    stop: Reg,
    table: u32,
    valid: Option<Reg>,
}

impl Row<'_, '_> {
    /// Places from `from` to below `to`; an empty range if one of them is NULL, or `also` is false.
    fn span(&mut self, places: Places, also: Option<Reg>) -> Result<Span, CodegenError> {
        let (first, end) = (self.node(places.from)?, self.node(places.to)?);
        let valid = self.both_valid(first.valid, end.valid);
        let valid = self.both_valid(valid, also);
        let start = first.number.to(self.f, Lane::U32).low_reg(self.f);
        let mut stop = end.number.to(self.f, Lane::U32).low_reg(self.f);
        if let Some(valid) = valid {
            stop = self.f.select(valid, stop, start);
        }
        Ok(Span { start, stop, table: places.table, valid })
    }

    pub(super) fn find(&mut self, sought: NodeId, places: Places, nulls: bool) -> Result<Computed, CodegenError> {
        let needle = self.node(sought)?;
        let span = self.span(places, needle.valid.filter(|_| !nulls))?;
        let Row { f, module, leaves, .. } = self;
        let (hit, place) = search(&mut Emit { module, f }, *leaves, needle, &span, nulls)?;
        Ok(Computed { number: Number::reg(Lane::U32, place), valid: Some(hit) })
    }

    pub(super) fn count_of(&mut self, sought: NodeId, places: Places, nulls: bool) -> Result<Computed, CodegenError> {
        let needle = self.node(sought)?;
        let span = self.span(places, needle.valid.filter(|_| !nulls))?;
        let count = self.f.copy(Type::U32, 0u32);
        let Row { f, module, leaves, .. } = self;
        f.for_(span.start, span.stop, 1u32, |f, at| {
            let here = equal_at(&mut Emit { module, f }, *leaves, needle, (span.table, at), nulls)?;
            f.guarded(here, true, |f| {
                let more = f.add(count, 1u32);
                f.assign(count, more);
            });
            Ok::<(), CodegenError>(())
        })?;
        Ok(Computed { number: Number::reg(Lane::U32, count), valid: None })
    }

    pub(super) fn among(&mut self, of: Places, inside: Places, any: bool) -> Result<Computed, CodegenError> {
        let (of, inside) = (self.span(of, None)?, self.span(inside, None)?);
        let valid = self.both_valid(of.valid, inside.valid);
        let stop = match valid {
            Some(valid) => self.f.select(valid, of.stop, of.start),
            None => of.stop,
        };
        // The result is decided by the first hit (for `any`) or the first miss.
        let decided = self.f.constant_pred(false);
        let Row { f, module, leaves, .. } = self;
        f.for_(of.start, stop, 1u32, |f, at| {
            let mut emit = Emit { module, f };
            let code = Value { lane: Lane::U32, low: at, high: None, valid: None };
            let item = leaves.lookup(&mut emit, of.table, code)?;
            let item = Computed { number: number(item)?, valid: item.valid };
            let (hit, _) = search(&mut emit, *leaves, item, &inside, true)?;
            let decides = if any { hit } else { emit.f.not(hit) };
            assign(emit.f, decided, decides);
            emit.f.break_if(decided);
            Ok::<(), CodegenError>(())
        })?;
        let value = if any { decided } else { self.f.not(decided) };
        Ok(Computed { number: Number::reg(Lane::Pred, value), valid: None })
    }
}

/// Assigns a value to a predicate.
fn assign(f: &mut FunctionBuilder, to: Reg, value: Reg) {
    let one = f.copy(Type::U32, 1u32);
    let word = f.select(value, one, 0u32);
    f.setp_into(to, Compare::Ne, word, 0u32);
}

/// Whether `sought` is among the items of a list, and the first place of it.
fn search(
    emit: &mut Emit<'_>,
    leaves: &mut dyn Leaves,
    sought: Computed,
    list: &Span,
    nulls: bool,
) -> Result<(Reg, Reg), CodegenError> {
    let Emit { module, f } = emit;
    let place = f.copy(Type::U32, 0u32);
    let hit = f.setp(Compare::Ne, place, 0u32);
    f.for_(list.start, list.stop, 1u32, |f, at| {
        let here = equal_at(&mut Emit { module, f }, leaves, sought, (list.table, at), nulls)?;
        assign(f, hit, here);
        f.guarded(hit, true, |f| f.assign(place, at));
        f.break_if(hit);
        Ok::<(), CodegenError>(())
    })?;
    Ok((hit, place))
}

/// Compares `sought` with the table's entry at a place.
fn equal_at(
    emit: &mut Emit<'_>,
    leaves: &mut dyn Leaves,
    sought: Computed,
    (table, place): (u32, Reg),
    nulls: bool,
) -> Result<Reg, CodegenError> {
    let code = Value { lane: Lane::U32, low: place, high: None, valid: None };
    let item = leaves.lookup(emit, table, code)?;
    let mut here = equal(emit, sought.number, number(item)?)?;
    let f = &mut emit.f;
    if let Some(valid) = item.valid {
        here = f.and(here, valid);
    }
    if let (true, Some(own)) = (nulls, sought.valid) {
        here = f.and(here, own);
        if let Some(valid) = item.valid {
            let either = f.or(own, valid);
            let neither = f.not(either);
            here = f.or(here, neither);
        }
    }
    Ok(here)
}

/// Converts a value to a number.
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

/// True if both values are equal; floats by their bits.
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
