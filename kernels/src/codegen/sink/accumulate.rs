//! Adds one row to its cells: in registers, in shared bins, or in a table of groups.
//!
//!   row ──► value ──► word(s)            registers   w ← w + v                 ungrouped
//!                     guarded by         bins        ld.shared, add, st.shared few groups: one per thread, no atomics
//!                     validity, FILTER   block       red.shared                up to some thousands: one per block
//!                                        table       red.global                direct and hash
//!
//! Order     none: every word has one associative, commutative operation.
//! Strength  the table is only accessed by atomics, so blocks, launches and streams may share it.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Address, Atomic, Callee, Compare, FunctionBuilder, Reg, Value as Operand};

use super::cells::{AggregatePlan, BestPlan, Cell, Contribution, WordOp};
use super::{block, exact, runs};
use crate::codegen::expr::Expressions;
use crate::codegen::ir::*;
use crate::codegen::load::{RowLeaves, to_64, to_128, truth_bit};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Value};
use crate::tune;

/// The sign bit of 64 bits.
const SIGN: u64 = 1 << 63;

/// Location of the words of the current row's group.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// This thread's registers, by thread word, and the global address of the group's cells.
    Registers(Vec<Reg>, Reg),
    /// Shared address of this thread's first word of the group; consecutive words are `AGGREGATE_THREADS` · 8 bytes
    /// apart. With anchors also the global address of the group's cells.
    Bins(Reg, Option<Reg>),
    /// Shared address of the group's words in this block's table.
    Block(Reg),
    /// Global address of the group's cells.
    Table(Reg),
    /// `Block` or `Table`, with the number of the record: rows of one group in a warp are combined into one update, see
    /// [`runs`].
    Runs(Box<Place>, Reg),
}

/// Byte distance between consecutive words of a thread's bin.
pub(crate) const BIN_WORD_STRIDE: i64 = tune::AGGREGATE_THREADS as i64 * 8;

/// Adds the current row to the cells at `place`.
pub(crate) fn accumulate(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    plan: &AggregatePlan,
    place: &Place,
) -> Result<(), CodegenError> {
    let mut filters: Vec<Option<NodeId>> = vec![None];
    filters.extend(plan.cells.iter().filter_map(|cell| cell.filter).map(Some));
    filters.sort();
    filters.dedup();
    let brought = match place {
        Place::Runs(..) => runs::words(emit.f, plan),
        _ => vec![],
    };
    for filter in filters {
        let open = match filter {
            None => None,
            Some(node) => {
                let value = expressions.value(emit, leaves, node)?;
                let holds = truth(emit.f, value);
                expressions.push_scope();
                Some(emit.f.open_if(holds))
            }
        };
        let mut anchors = Anchors::default();
        for (at, cell) in plan.cells.iter().enumerate().filter(|(_, cell)| cell.filter == filter) {
            if let (Contribution::Best(at), Place::Table(record)) = (cell.from, place) {
                bring(emit, leaves, expressions, cell, &plan.bests[at as usize], *record)?;
                continue;
            }
            let brought = brought.get(at).map(Vec::as_slice);
            add_row(emit, leaves, expressions, cell, place, &mut anchors, brought)?;
        }
        if let Some(open) = open {
            emit.f.close(open);
            expressions.pop_scope();
        }
    }
    if let Place::Runs(to, group) = place {
        runs::update(emit.f, plan, &brought, *group, to);
    }
    Ok(())
}

/// Anchors read for the current row, each with its argument and the node whose validity decides whether the row counts.
/// Anchor cells precede the cells of their deviations.
#[derive(Debug, Default)]
struct Anchors(Vec<(NodeId, Option<NodeId>, Reg)>);

impl Anchors {
    fn of(&self, of: NodeId, valid: Option<NodeId>) -> Result<Reg, CodegenError> {
        let found = self.0.iter().find(|(known, among, _)| (*known, *among) == (of, valid));
        found
            .map(|(_, _, anchor)| *anchor)
            .ok_or_else(|| CodegenError::Malformed { what: "a deviation".into(), why: "nothing anchors it".into() })
    }
}

/// The anchor of the cell at `at`, for rows where `when` is true; the first row sets it to its own value `own`.
fn anchor(f: &mut FunctionBuilder, at: Address, own: Reg, when: Option<Reg>) -> Reg {
    let word = f.copy(Type::U64, 0u64);
    let open = when.map(|when| f.open_if(when));
    f.load_into("ld.relaxed.gpu.global", Type::U64, word, at.clone());
    let empty = f.setp(Compare::Eq, word, 0u64);
    f.if_(empty, |f| {
        // A NaN of all ones cannot be an anchor; its deviation is NaN for any anchor.
        let bits = f.reinterpret(Type::B64, own);
        let bits = f.not(bits);
        let old = f.compare_exchange_with("atom.relaxed.gpu.global", Type::B64, at, 0u64, bits.view(Type::B64));
        let ours = f.setp(Compare::Eq, old.view(Type::U64), 0u64);
        let stays = f.select(ours, bits.view(Type::U64), old.view(Type::U64));
        f.assign(word, stays);
    });
    if let Some(open) = open {
        f.close(open);
    }
    let bits = f.not(word);
    f.reinterpret(Type::F64, bits.view(Type::B64))
}

/// True if a boolean value is true: neither false nor NULL.
pub(crate) fn truth(f: &mut FunctionBuilder, value: Value) -> Reg {
    match value.valid {
        Some(valid) => f.and(value.low, valid),
        None => value.low,
    }
}

fn add_row(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    cell: &Cell,
    place: &Place,
    anchors: &mut Anchors,
    brought: Option<&[Reg]>,
) -> Result<(), CodegenError> {
    let when = match cell.valid {
        Some(node) => expressions.value(emit, leaves, node)?.valid,
        None => None,
    };
    let words = match cell.from {
        Contribution::One | Contribution::Presence => vec![Operand::Integer(1)],
        Contribution::Whole(node) => {
            let value = expressions.value(emit, leaves, node)?;
            vec![whole(emit.f, value).into()]
        }
        Contribution::Limb { of, index, last } => {
            let value = expressions.value(emit, leaves, of)?;
            vec![limb(emit.f, value, index, last).into()]
        }
        Contribution::Float(node) => {
            let value = expressions.value(emit, leaves, node)?;
            vec![emit.f.convert(Type::F64, value.low).into()]
        }
        Contribution::Ordered { of, min } => {
            let value = expressions.value(emit, leaves, of)?;
            ordered(emit.f, value, min).into_iter().map(Operand::from).collect()
        }
        Contribution::Bits { of, complement } => {
            let value = expressions.value(emit, leaves, of)?;
            let bits = whole(emit.f, value);
            vec![if complement { emit.f.not(bits).view(Type::U64) } else { bits }.into()]
        }
        Contribution::Anchor(of) => {
            let value = expressions.value(emit, leaves, of)?;
            let own = emit.f.convert(Type::F64, value.low);
            let record = match place {
                Place::Registers(_, record) | Place::Bins(_, Some(record)) | Place::Table(record) => *record,
                Place::Bins(_, None) => unreachable!("bins know their record where there are anchors"),
                Place::Block(_) | Place::Runs(..) => unreachable!("no rows are put together where there are anchors"),
            };
            let anchor = anchor(emit.f, record.at(cell.table_word as i64 * 8), own, when);
            anchors.0.push((of, cell.valid, anchor));
            return Ok(());
        }
        Contribution::Best(_) => unreachable!("first rows are in the table alone"),
        Contribution::Deviation(of) => vec![deviation(emit, leaves, expressions, cell, anchors, of)?.into()],
        Contribution::CoDeviation(left, right) => {
            let left = deviation(emit, leaves, expressions, cell, anchors, left)?;
            let right = deviation(emit, leaves, expressions, cell, anchors, right)?;
            vec![emit.f.mul(left, right).into()]
        }
    };
    match brought {
        // So far this lane's contribution is a single row.
        Some(brought) => {
            for (&to, word) in brought.iter().zip(words) {
                guarded(emit.f, when, |f| f.assign(to, word));
            }
        }
        None => apply(emit.f, cell, &words, place, when),
    }
    Ok(())
}

fn deviation(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    cell: &Cell,
    anchors: &Anchors,
    of: NodeId,
) -> Result<Reg, CodegenError> {
    let anchor = anchors.of(of, cell.valid)?;
    let value = expressions.value(emit, leaves, of)?;
    let value = emit.f.convert(Type::F64, value.low);
    Ok(emit.f.sub(value, anchor))
}

/// An integer or boolean as 64 bits.
fn whole(f: &mut FunctionBuilder, value: Value) -> Reg {
    let reg = if value.lane == Lane::Pred { truth_bit(f, value.low) } else { value.low };
    to_64(f, reg).view(Type::U64)
}

/// Extracts 32 bits of an integer, zero-extended; the last limb is all higher bits, sign-extended.
fn limb(f: &mut FunctionBuilder, value: Value, index: u32, last: bool) -> Reg {
    let (half, odd) = match value.lane {
        Lane::S128 => {
            let (low, high) = to_128(f, value);
            (if index < 2 { low } else { high.view(Type::U64) }, index % 2 == 1)
        }
        _ => (whole(f, value), index == 1),
    };
    match (odd, last) {
        (true, true) => f.shr(half.view(Type::S64), 32).view(Type::U64),
        (true, false) => f.shr(half, 32),
        (false, _) => f.and(half, 0xffff_ffffu64),
    }
}

/// Encodes a value so that unsigned order is the order of values (for min: its reverse). Floats: IEEE total order, from
/// -NaN to NaN.
fn ordered(f: &mut FunctionBuilder, value: Value, min: bool) -> Vec<Reg> {
    let mut words = match value.lane {
        Lane::S128 => {
            let (low, high) = to_128(f, value);
            let high = f.xor(high.view(Type::U64), SIGN);
            vec![low, high]
        }
        Lane::S32 | Lane::S64 => {
            let wide = to_64(f, value.low).view(Type::U64);
            vec![f.xor(wide, SIGN)]
        }
        // A pipeline with the minimum of texts is refused earlier.
        Lane::Pred | Lane::U32 | Lane::U64 | Lane::Text => vec![whole(f, value)],
        Lane::F32 => {
            let bits = f.reinterpret(Type::S32, value.low);
            let flip = f.shr(bits, 31);
            let flip = f.or(flip, 0x8000_0000u32);
            let bits = f.xor(bits, flip);
            vec![f.convert(Type::U64, bits.view(Type::U32))]
        }
        Lane::F64 => {
            let bits = f.reinterpret(Type::S64, value.low);
            let flip = f.shr(bits, 63);
            let flip = f.or(flip, SIGN);
            vec![f.xor(bits, flip).view(Type::U64)]
        }
    };
    if min {
        for word in &mut words {
            *word = f.not(*word).view(Type::U64);
        }
    }
    words
}

/// Decodes a value encoded by [`ordered`], in the lane of `ty`.
pub(crate) fn restore(f: &mut FunctionBuilder, words: &[Reg], ty: Ty, min: bool) -> Value {
    let lane = lane(ty);
    let mut words: Vec<Reg> = words.iter().map(|word| word.view(Type::U64)).collect();
    if min {
        for word in &mut words {
            *word = f.not(*word).view(Type::U64);
        }
    }
    let mut high = None;
    let low = match lane {
        Lane::S128 => {
            high = Some(f.xor(words[1], SIGN).view(Type::S64));
            words[0]
        }
        Lane::S32 => {
            let signed = f.xor(words[0], SIGN).view(Type::S64);
            f.convert(Type::S32, signed)
        }
        Lane::S64 => f.xor(words[0], SIGN).view(Type::S64),
        Lane::U32 => f.convert(Type::U32, words[0]),
        Lane::U64 | Lane::Text => words[0],
        Lane::Pred => f.setp(Compare::Ne, words[0], 0u64),
        Lane::F32 => {
            let bits = f.convert(Type::U32, words[0]);
            let positive = f.shr(bits.view(Type::S32), 31);
            let flip = f.not(positive);
            let flip = f.or(flip, 0x8000_0000u32);
            let bits = f.xor(bits.view(Type::B32), flip.view(Type::B32));
            f.reinterpret(Type::F32, bits)
        }
        Lane::F64 => {
            let positive = f.shr(words[0].view(Type::S64), 63);
            let flip = f.not(positive);
            let flip = f.or(flip, SIGN);
            let bits = f.xor(words[0].view(Type::B64), flip.view(Type::B64));
            f.reinterpret(Type::F64, bits)
        }
    };
    Value { lane, low, high, valid: None }
}

/// Combines a row's words with the cell, if `when` is true.
fn apply(f: &mut FunctionBuilder, cell: &Cell, words: &[Operand], place: &Place, when: Option<Reg>) {
    match place {
        Place::Registers(registers, _) => {
            let own = &registers[cell.thread_word as usize..];
            let old: Vec<Reg> = own[..words.len()].to_vec();
            let new = combine(f, cell.op, &old, words);
            for (old, new) in old.into_iter().zip(new) {
                guarded(f, when, |f| f.assign(old, new));
            }
        }
        Place::Bins(bin, _) => {
            let at = |i: usize| bin.at((cell.thread_word as i64 + i as i64) * BIN_WORD_STRIDE);
            let ty = word_type(cell.op);
            let old: Vec<Reg> = (0..words.len()).map(|i| f.load(Space::Shared, ty, at(i))).collect();
            let new = combine(f, cell.op, &old, words);
            for (i, new) in new.into_iter().enumerate() {
                guarded(f, when, |f| f.store(Space::Shared, ty, at(i), new));
            }
        }
        Place::Block(_) | Place::Table(_) | Place::Runs(..) => add_to(f, cell, words, place, when),
    }
}

/// Combines words with a cell that other threads also update, if `when` is true.
pub(crate) fn add_to(f: &mut FunctionBuilder, cell: &Cell, words: &[Operand], place: &Place, when: Option<Reg>) {
    match place {
        Place::Block(words_of_group) => block::add(f, cell, words[0], *words_of_group, when),
        Place::Table(record) => add_to_table(f, cell, words, *record, when),
        Place::Runs(to, _) => add_to(f, cell, words, to, when),
        Place::Registers(..) | Place::Bins(..) => unreachable!("these are a thread's own"),
    }
}

/// Register type of a word.
pub(crate) fn word_type(op: WordOp) -> Type {
    if op == WordOp::AddFloat { Type::F64 } else { Type::U64 }
}

/// Combines two thread-side values of a word (or word pair).
pub(crate) fn combine(f: &mut FunctionBuilder, op: WordOp, old: &[Reg], new: &[Operand]) -> Vec<Reg> {
    match op {
        WordOp::Add | WordOp::AddSplit | WordOp::AddFloat => vec![f.add(old[0], new[0])],
        WordOp::Max => vec![f.max(old[0], new[0])],
        WordOp::Or => vec![f.or(old[0], new[0]).view(Type::U64)],
        WordOp::Xor => vec![f.xor(old[0], new[0]).view(Type::U64)],
        WordOp::Anchor | WordOp::AddExact | WordOp::Best { .. } => unreachable!("threads keep none"),
        WordOp::MaxWide => {
            let (Operand::Reg(low), Operand::Reg(high)) = (new[0], new[1]) else {
                unreachable!("128-bit encodings are in registers")
            };
            let greater = is_greater_wide(f, (low, high), (old[0], old[1]));
            vec![f.select(greater, low, old[0]), f.select(greater, high, old[1])]
        }
    }
}

/// True if the unsigned 128-bit `a` is greater than `b`; both are (low, high).
fn is_greater_wide(f: &mut FunctionBuilder, a: (Reg, Reg), b: (Reg, Reg)) -> Reg {
    let low = f.setp(Compare::Gt, a.0, b.0);
    let equal = f.setp(Compare::Eq, a.1, b.1);
    let high = f.setp(Compare::Gt, a.1, b.1);
    let low = f.and(equal, low);
    f.or(high, low)
}

/// Combines words with a cell of the table, atomically, if `when` is true.
pub(crate) fn add_to_table(f: &mut FunctionBuilder, cell: &Cell, words: &[Operand], record: Reg, when: Option<Reg>) {
    let at = |i: i64| record.at((cell.table_word as i64 + i) * 8);
    match cell.op {
        WordOp::Add => guarded(f, when, |f| f.reduce(Atomic::Add, Space::Global, Type::U64, at(0), words[0])),
        WordOp::AddSplit => {
            let Operand::Reg(whole) = words[0] else { unreachable!("a split sum is in a register") };
            let low = f.and(whole, 0xffff_ffffu64);
            let high = f.shr(whole.view(Type::S64), 32).view(Type::U64);
            guarded(f, when, |f| {
                f.reduce(Atomic::Add, Space::Global, Type::U64, at(0), low);
                f.reduce(Atomic::Add, Space::Global, Type::U64, at(1), high);
            });
        }
        WordOp::AddFloat => guarded(f, when, |f| f.reduce(Atomic::Add, Space::Global, Type::F64, at(0), words[0])),
        WordOp::Max => guarded(f, when, |f| f.reduce(Atomic::Max, Space::Global, Type::U64, at(0), words[0])),
        WordOp::Or => guarded(f, when, |f| f.reduce(Atomic::Or, Space::Global, Type::B64, at(0), words[0])),
        WordOp::Xor => guarded(f, when, |f| f.reduce(Atomic::Xor, Space::Global, Type::B64, at(0), words[0])),
        WordOp::AddExact => {
            let Operand::Reg(value) = words[0] else { unreachable!("a float is in a register") };
            let at = f.add(record, cell.table_word as u64 * 8);
            exact::add(f, value, at, when);
        }
        WordOp::Anchor | WordOp::Best { .. } => unreachable!("these are set, not added to"),
        WordOp::MaxWide => {
            let (Operand::Reg(low), Operand::Reg(high)) = (words[0], words[1]) else {
                unreachable!("128-bit encodings are in registers")
            };
            let open = when.map(|when| f.open_if(when));
            max_wide_locked(f, (low, high), (at(0), at(1), at(2)));
            if let Some(open) = open {
                f.close(open);
            }
        }
    }
}

/// Raises the 128-bit word at (low, high) to at least `new`, under the lock word.
///
/// The word only grows, and its low half is written first. A reader that sees a high half therefore sees the low half
/// written with it, or that of a still greater value: a value not above the pair it reads never needs the lock.
fn max_wide_locked(f: &mut FunctionBuilder, new: (Reg, Reg), (low, high, lock): (Address, Address, Address)) {
    let read = |f: &mut FunctionBuilder| {
        let old_high = f.load_with("ld.acquire.gpu.global", Type::U64, high.clone());
        let old_low = f.load_with("ld.relaxed.gpu.global", Type::U64, low.clone());
        is_greater_wide(f, new, (old_low, old_high))
    };
    f.loop_(|f| {
        let greater = read(f);
        let done = f.not(greater);
        f.break_if(done);
        let held = f.compare_exchange_with("atom.acquire.gpu.global", Type::B64, lock.clone(), 0u64, 1u64);
        let ours = f.setp(Compare::Eq, held, 0u64);
        // The holder updates and releases within one iteration: other lanes of its warp may be waiting for the lock.
        f.if_(ours, |f| {
            let greater = read(f);
            f.guarded(greater, true, |f| {
                f.store_with("st.relaxed.gpu.global", Type::U64, low.clone(), new.0);
                f.store_with("st.release.gpu.global", Type::U64, high.clone(), new.1);
            });
            f.store_with("st.release.gpu.global", Type::U64, lock.clone(), 0u64);
        });
    });
}

/// Stores the current row in a cell of the table if it precedes the row stored there.
fn bring(
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

pub(crate) fn guarded<T>(f: &mut FunctionBuilder, when: Option<Reg>, body: impl FnOnce(&mut FunctionBuilder) -> T) {
    match when {
        Some(when) => {
            f.guarded(when, true, body);
        }
        None => {
            body(f);
        }
    }
}
