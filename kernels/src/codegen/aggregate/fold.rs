//! Merges threads into the table: the words of a block's threads become one update per word and group.
//!
//! ```text
//!   shared   [group][word][thread]       warp w handles groups w, w + warps, …
//!            Σ over threads: lane l reads threads l, l + 32, …; then five exchanges between lanes
//!   table    one atomic per word and block; skipped if the block has nothing to add
//! ```

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::accumulate::{BIN_WORD_STRIDE, add_to_table, combine, word_type};
use super::cells::{AggregatePlan, Cell, Contribution, WordOp};
use crate::tune;

const WARPS: u32 = tune::AGGREGATE_THREADS / 32;

/// Folds the bins of all threads into the table. All threads of the block must call it.
///
/// `bins` is the shared address of the first bin (U32), `groups` their number (U32), `table` the first record.
pub(crate) fn fold(f: &mut FunctionBuilder, plan: &AggregatePlan, bins: Reg, groups: Reg, table: Reg) {
    f.barrier();
    let thread = f.thread_index();
    let warp = f.shr(thread, 5);
    let lane = f.and(thread, 31u32);
    let first_lane = f.setp(Compare::Eq, lane, 0u32);
    let lane_bytes = f.shl(lane, 3);
    f.for_(warp, groups, WARPS, |f, group| {
        let group_bytes = plan.thread_words * BIN_WORD_STRIDE as u32;
        let bin = f.mad(group, group_bytes, bins);
        let bin = f.add(bin, lane_bytes);
        let record = f.element(table, group, plan.record_bytes() as u32);
        for run in runs(&plan.cells) {
            fold_run(f, run, bin, record, first_lane);
        }
    });
}

/// Runs of consecutive cells with one operation, for cells with thread words.
pub(super) fn runs(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    cells.chunk_by(|a, b| a.op == b.op).filter(|run| run[0].op.thread_words() > 0)
}

/// Folds cells of one operation; several cells are folded in a loop, to keep the text short.
fn fold_run(f: &mut FunctionBuilder, run: &[Cell], bin: Reg, record: Reg, first_lane: Reg) {
    let op = run[0].op;
    let first = run[0].thread_word as i64 * BIN_WORD_STRIDE;
    let from = f.add(bin, first as u32);
    let to = f.add(record, run[0].table_word as u64 * 8);
    if run.len() == 1 {
        fold_word(f, op, from, to, first_lane);
        return;
    }
    let bytes = op.thread_words() * BIN_WORD_STRIDE as u32;
    let end = f.add(from, run.len() as u32 * bytes);
    f.while_(
        |f| f.setp(Compare::Lt, from, end),
        |f| {
            fold_word(f, op, from, to, first_lane);
            let next = f.add(from, bytes);
            f.assign(from, next);
            let next = f.add(to, op.table_words() as u64 * 8);
            f.assign(to, next);
        },
    );
}

/// Folds one word of one group over the block's threads: `from` is the address of this lane's first word, `to` the
/// table's cell.
fn fold_word(f: &mut FunctionBuilder, op: WordOp, from: Reg, to: Reg, first_lane: Reg) {
    // A thread's sum is split before sums of several threads could exceed 64 bits.
    let words = match op {
        WordOp::AddSplit | WordOp::MaxWide => 2,
        _ => 1,
    };
    let ty = word_type(op);
    let fold_op = if op == WordOp::AddSplit { WordOp::Add } else { op };
    let total: Vec<Reg> = (0..words).map(|_| zero(f, ty)).collect();
    let end = f.add(from, BIN_WORD_STRIDE as u32);
    f.for_(from, end, 32 * 8, |f, at| {
        let own: Vec<Reg> = match op {
            WordOp::AddSplit => {
                let whole = f.load(Space::Shared, Type::U64, at);
                vec![f.and(whole, 0xffff_ffffu64), f.shr(whole.view(Type::S64), 32).view(Type::U64)]
            }
            WordOp::MaxWide => {
                vec![f.load(Space::Shared, ty, at), f.load(Space::Shared, ty, at.at(BIN_WORD_STRIDE))]
            }
            _ => vec![f.load(Space::Shared, ty, at)],
        };
        merge(f, fold_op, &total, &own);
    });
    let distance = f.copy(Type::U32, 16u32);
    f.while_(
        |f| f.setp(Compare::Ne, distance, 0u32),
        |f| {
            let others: Vec<Reg> = total.iter().map(|&word| shuffle(f, word, distance)).collect();
            merge(f, fold_op, &total, &others);
            let next = f.shr(distance, 1);
            f.assign(distance, next);
        },
    );
    // A word of 0 changes nothing. The first lane updates the table.
    if op == WordOp::AddSplit {
        for (i, &word) in total.iter().enumerate() {
            let some = f.setp(Compare::Ne, word, 0u64);
            let update = f.and(first_lane, some);
            add_to_table(f, &plain(WordOp::Add, i as u32), &[Operand::from(word)], to, Some(update));
        }
        return;
    }
    let update = if ty == Type::F64 {
        let some = f.setp(Compare::NeOrNan, total[0], 0.0f64);
        f.and(first_lane, some)
    } else {
        let bits = total.iter().skip(1).fold(total[0], |bits, &word| f.or(bits, word));
        let some = f.setp(Compare::Ne, bits, 0u64);
        f.and(first_lane, some)
    };
    let words: Vec<Operand> = total.iter().map(|&word| word.into()).collect();
    add_to_table(f, &plain(op, 0), &words, to, Some(update));
}

/// A cell at offset 0 of the given address.
pub(super) fn plain(op: WordOp, table_word: u32) -> Cell {
    Cell { op, from: Contribution::One, valid: None, filter: None, table_word, thread_word: 0 }
}

fn merge(f: &mut FunctionBuilder, op: WordOp, total: &[Reg], others: &[Reg]) {
    match op {
        WordOp::Add | WordOp::AddSplit | WordOp::AddFloat | WordOp::Max | WordOp::Or | WordOp::Xor => {
            for (&total, &other) in total.iter().zip(others) {
                let sum = combine(f, op, &[total], &[other.into()])[0];
                f.assign(total, sum);
            }
        }
        WordOp::Anchor | WordOp::AddExact | WordOp::Best { .. } => unreachable!("threads keep none"),
        WordOp::MaxWide => {
            let both = combine(f, op, total, &[others[0].into(), others[1].into()]);
            for (&total, both) in total.iter().zip(both) {
                f.assign(total, both);
            }
        }
    }
}

fn shuffle(f: &mut FunctionBuilder, word: Reg, distance: Reg) -> Reg {
    let bits = f.reinterpret(Type::B64, word);
    let other = f.shuffle64("bfly", bits, distance, 31);
    f.reinterpret(word.ty(), other)
}

/// A word meaning "nothing yet".
pub(crate) fn zero(f: &mut FunctionBuilder, ty: Type) -> Reg {
    if ty == Type::F64 { f.copy(ty, 0.0f64) } else { f.copy(ty, 0u64) }
}
