//! First rows of an order: a cell keeps the keys and the payload of the best row so far, under a lock.
//!
//! ```text
//!   cell     keys, most significant first │ payload │ lock          the row with the greatest keys stays
//!   row      not above the keys in the cell? ──► done               else lock ─ compare again ─ store ─ release
//! ```
//!
//! NULL     a nullable key has a word before it that sorts NULL first or last.
//! Texts    among the keys are two words of bytes, the length and the address; the bytes behind decide the rest.
//! Progress the holder of the lock updates and releases within one iteration: lanes of its warp may wait for it.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Address, Callee, Compare, FunctionBuilder, Reg};

use super::cells::{BestPlan, Cell};
use super::encode::{ordered, whole};
use crate::codegen::expr::Expressions;
use crate::codegen::ir::Lane;
use crate::codegen::load::{RowLeaves, to_128, truth_bit};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Value};

/// Stores the current row in a cell of the table if it precedes the row stored there.
pub(super) fn store(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    cell: &Cell,
    best: &BestPlan,
    record: Reg,
) -> Result<(), CodegenError> {
    let when = match cell.valid {
        Some(node) => expressions.value(emit, leaves, node)?.valid,
        None => None,
    };
    let mut keys = Vec::new();
    // Positions of texts among the keys, and whether each is descending.
    let mut texts = Vec::new();
    for (i, key) in best.order.iter().enumerate() {
        let value = expressions.value(emit, leaves, key.node)?;
        // The greatest words win: ascending keys are complemented.
        let mut words = match value.lane {
            Lane::Text => text::order_words(emit, value, key.descending)?,
            _ => ordered(emit.f, Value { valid: None, ..value }, !key.descending),
        };
        let f = &mut *emit.f;
        if value.lane != Lane::Text {
            words.reverse();
        }
        match value.valid {
            Some(valid) => {
                let (null, some) = if key.nulls_first { (2u64, 1u64) } else { (1, 2) };
                let flag = f.copy(Type::U64, null);
                f.guarded(valid, true, |f| f.assign(flag, some));
                keys.push(flag);
                for word in &mut words {
                    *word = f.select(valid, *word, 0u64).view(Type::U64);
                }
            }
            None if i == 0 || expressions.ty(key.node).nullable => {
                let some = if key.nulls_first { 1u64 } else { 2 };
                keys.push(f.copy(Type::U64, some));
            }
            None => {}
        }
        if value.lane == Lane::Text {
            texts.push((keys.len(), key.descending));
        }
        keys.append(&mut words);
    }
    let payload = payload(emit, leaves, expressions, best)?;
    let compare = if texts.is_empty() { None } else { Some(text::order(emit.module)?) };
    let f = &mut *emit.f;
    let open = when.map(|when| f.open_if(when));
    let at = |i: usize| record.at((cell.table_word as i64 + i as i64) * 8);
    match compare {
        None => best_locked(f, &keys, &payload, at),
        Some(compare) => best_of_texts(f, &keys, &texts, &payload, &compare, at),
    }
    if let Some(open) = open {
        f.close(open);
    }
    Ok(())
}

/// Words of the values that are kept with the best row, each followed by its validity if it is nullable.
fn payload(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    best: &BestPlan,
) -> Result<Vec<Reg>, CodegenError> {
    let mut payload = Vec::new();
    for &of in &best.payload {
        let value = expressions.value(emit, leaves, of)?;
        let f = &mut *emit.f;
        match value.lane {
            Lane::S128 => {
                let (low, high) = to_128(f, value);
                payload.extend([low, high.view(Type::U64)]);
            }
            Lane::F32 => {
                let bits = f.reinterpret(Type::U32, value.low);
                payload.push(f.convert(Type::U64, bits));
            }
            Lane::F64 => payload.push(f.reinterpret(Type::U64, value.low)),
            Lane::Text => {
                for word in text::view_words(emit, value)? {
                    // The view of a NULL is empty.
                    payload.push(match value.valid {
                        Some(valid) => emit.f.select(valid, word, 0u64).view(Type::U64),
                        None => word,
                    });
                }
            }
            _ => payload.push(whole(f, value)),
        }
        let f = &mut *emit.f;
        if expressions.ty(of).nullable {
            let bit = match value.valid {
                Some(valid) => truth_bit(f, valid),
                None => f.copy(Type::U32, 1u32),
            };
            payload.push(f.convert(Type::U64, bit));
        }
    }
    Ok(payload)
}

/// True if the words `a` are greater than `b`, most significant first.
fn is_above(f: &mut FunctionBuilder, a: &[Reg], b: &[Reg]) -> Reg {
    let mut above: Option<Reg> = None;
    for (&a, &b) in a.iter().zip(b).rev() {
        let greater = f.setp(Compare::Gt, a, b);
        above = Some(match above {
            Some(below) => {
                let equal = f.setp(Compare::Eq, a, b);
                let below = f.and(equal, below);
                f.or(greater, below)
            }
            None => greater,
        });
    }
    above.expect("an order has keys")
}

/// Replaces keys and payload (words 0 and on) if `keys` are greater, under the lock in the word after them.
///
/// Words only change to those of greater keys, last word first, and are read first word first. The words read may mix
/// several rows, but keys that are not greater than the mix are not greater than the latest of these rows.
fn best_locked(f: &mut FunctionBuilder, keys: &[Reg], payload: &[Reg], at: impl Fn(usize) -> Address) {
    let lock = at(keys.len() + payload.len());
    let read = |f: &mut FunctionBuilder| {
        let old: Vec<Reg> = (0..keys.len()).map(|i| f.load_with("ld.acquire.gpu.global", Type::U64, at(i))).collect();
        is_above(f, keys, &old)
    };
    f.loop_(|f| {
        let above = read(f);
        let done = f.not(above);
        f.break_if(done);
        let held = f.compare_exchange_with("atom.acquire.gpu.global", Type::B64, lock.clone(), 0u64, 1u64);
        let ours = f.setp(Compare::Eq, held, 0u64);
        // The holder updates and releases within one iteration: other lanes of its warp may be waiting for the lock.
        f.if_(ours, |f| {
            let above = read(f);
            f.if_(above, |f| {
                for (i, &word) in payload.iter().enumerate() {
                    f.store_with("st.relaxed.gpu.global", Type::U64, at(keys.len() + i), word);
                }
                for (i, &word) in keys.iter().enumerate().rev() {
                    f.store_with("st.release.gpu.global", Type::U64, at(i), word);
                }
            });
            f.store_with("st.release.gpu.global", Type::U64, lock.clone(), 0u64);
        });
    });
}

/// As [`best_locked`] for keys with texts, at the positions `texts`. A comparison may have to read the texts' bytes, so
/// the words that it reads must belong to one row.
///
/// The lock is a counter: even while it is free, odd while it is held. Words read between two readings of one even
/// count belong to one row; a thread that then acquires the lock from that count knows that they are still current.
fn best_of_texts(
    f: &mut FunctionBuilder,
    keys: &[Reg],
    texts: &[(usize, bool)],
    payload: &[Reg],
    compare: &Callee,
    at: impl Fn(usize) -> Address,
) {
    let lock = at(keys.len() + payload.len());
    // Numbers decide up to the first bytes of the first text.
    let numbers = texts.first().map_or(keys.len(), |(place, _)| place + 2);
    let acquired = |f: &mut FunctionBuilder, i: usize| f.load_with("ld.acquire.gpu.global", Type::U64, at(i));
    let read = |f: &mut FunctionBuilder| f.load_with("ld.acquire.gpu.global", Type::U64, lock.clone());
    let done = f.constant_pred(false);
    f.loop_(|f| {
        // Words only grow, last word first: keys below the words read now stay below.
        let old: Vec<Reg> = (0..numbers).map(|i| acquired(f, i)).collect();
        let below = is_above(f, &old, &keys[..numbers]);
        f.break_if(below);
        let count = read(f);
        let odd = f.and(count, 1u64);
        let free = f.setp(Compare::Eq, odd, 0u64);
        f.if_(free, |f| {
            let old: Vec<Reg> = (0..keys.len()).map(|i| acquired(f, i)).collect();
            let again = read(f);
            let of_one_row = f.setp(Compare::Eq, again, count);
            f.if_(of_one_row, |f| {
                let above = is_above_with_texts(f, keys, &old, texts, compare);
                let not_above = f.not(above);
                f.assign(done, not_above);
                f.if_(above, |f| {
                    let taken = f.add(count, 1u64);
                    let held = f.compare_exchange_with(
                        "atom.acquire.gpu.global",
                        Type::B64,
                        lock.clone(),
                        count.view(Type::B64),
                        taken.view(Type::B64),
                    );
                    let ours = f.setp(Compare::Eq, held.view(Type::U64), count);
                    // The holder updates and releases within one iteration: other lanes of its warp may be waiting for
                    // the lock.
                    f.if_(ours, |f| {
                        for (i, &word) in payload.iter().enumerate() {
                            f.store_with("st.release.gpu.global", Type::U64, at(keys.len() + i), word);
                        }
                        for (i, &word) in keys.iter().enumerate().rev() {
                            f.store_with("st.release.gpu.global", Type::U64, at(i), word);
                        }
                        let let_go = f.add(count, 2u64);
                        f.store_with("st.release.gpu.global", Type::U64, lock.clone(), let_go);
                        f.assign_pred(done, true);
                    });
                });
            });
        });
        f.break_if(done);
    });
}

/// True if `keys` are greater than `old`, most significant word first, with texts at these positions.
fn is_above_with_texts(
    f: &mut FunctionBuilder,
    keys: &[Reg],
    old: &[Reg],
    texts: &[(usize, bool)],
    compare: &Callee,
) -> Reg {
    let (above, undecided) = (f.constant_pred(false), f.constant_pred(true));
    let mut at = 0;
    while at < keys.len() {
        let text = texts.iter().find(|(place, _)| *place == at);
        for word in at..at + if text.is_some() { 2 } else { 1 } {
            let greater = f.setp(Compare::Gt, keys[word], old[word]);
            let greater = f.and(undecided, greater);
            let either = f.or(above, greater);
            f.assign(above, either);
            let equal = f.setp(Compare::Eq, keys[word], old[word]);
            let still = f.and(undecided, equal);
            f.assign(undecided, still);
        }
        at += 1;
        if let Some(&(place, descending)) = text {
            let part = |words: &[Reg]| [words[place + 2], words[place + 3]];
            f.if_(undecided, |f| {
                let order = text::compare_rest(f, compare, part(keys), part(old));
                let first = f.setp(if descending { Compare::Gt } else { Compare::Lt }, order, 0);
                f.assign(above, first);
                let same = f.setp(Compare::Eq, order, 0);
                f.assign(undecided, same);
            });
            at += text::ORDER_WORDS as usize - 1;
        }
    }
    above
}
