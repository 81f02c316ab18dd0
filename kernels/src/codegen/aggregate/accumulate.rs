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
use millpond_ptx::build::{Address, Atomic, Compare, FunctionBuilder, Reg, Value as Operand};

use super::cells::{AggregatePlan, Cell, Contribution, WordOp};
use super::encode::{limb, ordered, whole};
use super::{block_table, exact, first, runs};
use crate::codegen::expr::Expressions;
use crate::codegen::ir::*;
use crate::codegen::load::RowLeaves;
use crate::codegen::value::{CodegenError, Emit, Value};
use crate::tune;

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
                first::store(emit, leaves, expressions, cell, &plan.bests[at as usize], *record)?;
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
        Place::Block(words_of_group) => block_table::add(f, cell, words[0], *words_of_group, when),
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
