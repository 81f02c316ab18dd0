//! A table of groups per thread block, in shared memory, addressed by the keys.
//!
//! ```text
//!   shared   [group][word]      all zero ──barrier──► rows: atomics ──barrier──► merge
//!   table    one atomic per word and block; skipped if the block has nothing to add
//! ```
//!
//! Words    are thread words: a sum that is split in the table is not split here.
//! Sums     of 64 bits are two 32-bit additions, which shared memory does atomically: the second adds the upper half
//!          and the carry of the first, and is skipped if that is 0. Exactly one thread sees each carry of the lower
//!          half, so the two halves form the sum when all threads are done.
//! Maxima   of 64 bits, and sums of floats, are loops in shared memory: a maximum is read first, and most rows do not
//!          raise it.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, Reg, Value as Operand};

use super::accumulate::{add_to_table, guarded, word_type};
use super::cells::{AggregatePlan, Cell, WordOp};
use super::fold::{plain, runs};

/// Table of this thread's block.
pub(crate) struct BlockTable {
    /// Shared address of the first word (U32).
    words: Reg,
    /// Number of groups (U32).
    groups: Reg,
}

impl BlockTable {
    /// Clears the table at `words`. All threads of the block must call it.
    pub(crate) fn new(f: &mut FunctionBuilder, plan: &AggregatePlan, words: Reg, groups: Reg) -> BlockTable {
        let thread = f.thread_index();
        let from = f.mad(thread, 8u32, words);
        let end = f.mad(groups, plan.thread_words * 8, words);
        f.for_(from, end, plan.threads() * 8, |f, at| f.store(Space::Shared, Type::U64, at, 0u64));
        f.barrier();
        BlockTable { words, groups }
    }

    /// Shared address of the words of group `code` (U32).
    pub(crate) fn words_of(&self, f: &mut FunctionBuilder, plan: &AggregatePlan, code: Reg) -> Reg {
        f.mad(code, plan.thread_words * 8, self.words)
    }

    /// Merges the table into the one at `table`. All threads of the block must call it.
    pub(crate) fn merge(&self, f: &mut FunctionBuilder, plan: &AggregatePlan, table: Reg) {
        f.barrier();
        let thread = f.thread_index();
        f.for_(thread, self.groups, plan.threads(), |f, group| {
            let words = self.words_of(f, plan, group);
            let record = f.element(table, group, plan.record_bytes() as u32);
            for run in runs(&plan.cells) {
                let from = f.add(words, run[0].thread_word * 8);
                let to = f.add(record, run[0].table_word as u64 * 8);
                merge_run(f, run, from, to);
            }
        });
    }
}

/// Merges cells of one operation; several cells are merged in a loop, to keep the text short.
fn merge_run(f: &mut FunctionBuilder, run: &[Cell], from: Reg, to: Reg) {
    let op = run[0].op;
    if run.len() == 1 {
        merge_word(f, op, from, to);
        return;
    }
    let end = f.add(from, run.len() as u32 * op.thread_words() * 8);
    f.while_(
        |f| f.setp(Compare::Lt, from, end),
        |f| {
            merge_word(f, op, from, to);
            let next = f.add(from, op.thread_words() * 8);
            f.assign(from, next);
            let next = f.add(to, op.table_words() as u64 * 8);
            f.assign(to, next);
        },
    );
}

fn merge_word(f: &mut FunctionBuilder, op: WordOp, from: Reg, to: Reg) {
    let ty = word_type(op);
    let word = f.load(Space::Shared, ty, from);
    // A word of 0 changes nothing.
    let some = if ty == Type::F64 { f.setp(Compare::NeOrNan, word, 0.0f64) } else { f.setp(Compare::Ne, word, 0u64) };
    add_to_table(f, &plain(op, 0), &[word.into()], to, Some(some));
}

/// Combines a word with a cell of the group at shared address `group` (U32), atomically, if `when` is true.
pub(crate) fn add(f: &mut FunctionBuilder, cell: &Cell, word: Operand, group: Reg, when: Option<Reg>) {
    let at = |offset: i64| group.at(cell.thread_word as i64 * 8 + offset);
    match cell.op {
        WordOp::AddFloat => guarded(f, when, |f| f.reduce(Atomic::Add, Space::Shared, Type::F64, at(0), word)),
        WordOp::Max => {
            let old = f.load_with("ld.relaxed.cta.shared", Type::U64, at(0));
            let greater = f.setp(Compare::Lt, old, word);
            let when = match when {
                Some(when) => f.and(when, greater),
                None => greater,
            };
            f.guarded(when, true, |f| f.reduce(Atomic::Max, Space::Shared, Type::U64, at(0), word));
        }
        WordOp::Add | WordOp::AddSplit => {
            let open = when.map(|when| f.open_if(when));
            let (low, high) = halves(f, word);
            let before = f.atomic(Atomic::Add, Space::Shared, Type::U32, at(0), low);
            let after = f.add(before, low);
            let carries = f.setp(Compare::Lt, after, before);
            let one = f.copy(Type::U32, 1u32);
            let carried = f.select(carries, one, 0u32);
            let high = f.add(carried, high);
            let some = f.setp(Compare::Ne, high, 0u32);
            f.guarded(some, true, |f| f.reduce(Atomic::Add, Space::Shared, Type::U32, at(4), high));
            if let Some(open) = open {
                f.close(open);
            }
        }
        WordOp::Or | WordOp::Xor => {
            let op = if cell.op == WordOp::Or { Atomic::Or } else { Atomic::Xor };
            let (low, high) = halves(f, word);
            guarded(f, when, |f| {
                f.reduce(op, Space::Shared, Type::B32, at(0), low);
                f.reduce(op, Space::Shared, Type::B32, at(4), high);
            });
        }
        WordOp::Anchor | WordOp::MaxWide | WordOp::AddExact | WordOp::Best { .. } => {
            unreachable!("blocks keep none: {:?}", cell.op)
        }
    }
}

/// Lower and upper half of a word, each U32; a constant fits the lower half.
fn halves(f: &mut FunctionBuilder, word: Operand) -> (Operand, Operand) {
    let Operand::Reg(word) = word else { return (word, Operand::Integer(0)) };
    let bits = f.reinterpret(Type::B64, word);
    let (low, high) = f.unpack(bits);
    (low.view(Type::U32).into(), high.view(Type::U32).into())
}
