//! Combines rows of one group in a warp into one update of the table.
//!
//! ```text
//!   lane    0  1  2  3  4  5  6  7            group   7  7  7  2  7  9  9  2
//!   peers   0 ► 1 ► 2 ► 4     3 ► 7     5 ► 6          each lane knows the next lane of its group
//!   words   add the words of the next lane, then those of the lane after its next, …     at most five rounds
//!   update  lanes 0, 3 and 5, the first of their groups: 3 updates instead of 8
//! ```
//!
//! When     enough neighbouring lanes are of one group: input clustered by the key, matches of one row of a join, a key
//!          that most rows have. Otherwise every lane updates the table itself; the cost is one shuffle and one vote.
//! Lanes    the lanes that are active together: rows that a filter dropped are not gaps.
//! Order    sums of floats are added in another order than without this; all other operations are independent of the
//!          order.
//! After    list ranking by pointer jumping, Wyllie 1979.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, FunctionBuilder, Reg, Value as Operand};

use super::accumulate::{Place, add_to, combine, word_type};
use super::cells::{AggregatePlan, Cell, WordOp};
use super::fold::zero;
use crate::codegen::ir::Regime;
use crate::tune;

/// Marks the last lane of a group.
const NONE: u32 = 32;

/// True if rows of `plan` are combined: they go to a table, and all contributions of a row have thread words.
fn apply_to(plan: &AggregatePlan) -> bool {
    let table = matches!(plan.regime, Regime::Block | Regime::Direct | Regime::Hash);
    table && plan.thread_words <= tune::RUN_WORDS && plan.cells.iter().all(|cell| cell.op.thread_words() > 0)
}

/// The place of a row in record number `group` (U32): rows of one group in a warp are combined, if that applies.
pub(crate) fn combined(plan: &AggregatePlan, to: Place, group: Reg) -> Place {
    if apply_to(plan) { Place::Runs(Box::new(to), group) } else { to }
}

/// Registers for one row's contribution to each cell, initially "nothing".
pub(crate) fn words(f: &mut FunctionBuilder, plan: &AggregatePlan) -> Vec<Vec<Reg>> {
    let cell = |cell: &Cell| (0..cell.op.thread_words()).map(|_| zero(f, word_type(cell.op))).collect();
    plan.cells.iter().map(cell).collect()
}

/// Adds `words` of this lane's row to the cells at `place`, in the table's record number `group` (U32).
pub(crate) fn update(f: &mut FunctionBuilder, plan: &AggregatePlan, words: &[Vec<Reg>], group: Reg, place: &Place) {
    let mask = f.raw("activemask.b32", &[Type::B32], &[])[0];
    let below = f.special("%lanemask_lt");
    let below = f.and(mask, below);
    let updates = f.constant_pred(true);
    let neighbours = neighbours(f, group, mask, below);
    let enough = f.setp(Compare::Ge, neighbours, tune::RUN_NEIGHBOURS);
    f.if_(enough, |f| {
        let peers = f.raw("match.any.sync.b32", &[Type::B32], &[group.into(), mask.into()])[0];
        let before = f.and(peers, below);
        f.setp_into(updates, Compare::Eq, before.view(Type::U32), 0u32);
        let above = f.special("%lanemask_gt");
        let above = f.and(peers, above);
        // Index of the lowest bit; 32 if there is none, which equals `NONE`.
        let reversed = f.brev(above);
        let next = f.clz(reversed).view(Type::U32);
        f.while_(
            |f| {
                let more = f.setp(Compare::Ne, next, NONE);
                f.raw("vote.sync.any.pred", &[Type::Pred], &[more.into(), mask.into()])[0]
            },
            |f| {
                let more = f.setp(Compare::Ne, next, NONE);
                // A lane without a next lane reads its own value and ignores it.
                let own = f.lane();
                let from = f.select(more, next, own);
                for (cell, own) in plan.cells.iter().zip(words) {
                    let theirs: Vec<Operand> = own.iter().map(|&word| shuffle64(f, word, from, mask).into()).collect();
                    let both = combine(f, cell.op, own, &theirs);
                    for (&own, both) in own.iter().zip(both) {
                        f.guarded(more, true, |f| f.assign(own, both));
                    }
                }
                let after = shuffle(f, next, from, mask);
                f.guarded(more, true, |f| f.assign(next, after));
            },
        );
    });
    for (cell, words) in plan.cells.iter().zip(words) {
        // A word of 0 changes nothing.
        let some = match cell.op {
            WordOp::AddFloat => f.setp(Compare::NeOrNan, words[0], 0.0f64),
            _ => {
                let bits = words[1..].iter().fold(words[0], |bits, &word| f.or(bits, word));
                f.setp(Compare::Ne, bits.view(Type::U64), 0u64)
            }
        };
        let when = f.and(updates, some);
        let words: Vec<Operand> = words.iter().map(|&word| word.into()).collect();
        add_to(f, cell, &words, place, Some(when));
    }
}

/// Number of lanes of `mask` whose previous active lane is of their group (U32).
fn neighbours(f: &mut FunctionBuilder, group: Reg, mask: Reg, below: Reg) -> Reg {
    let first = f.setp(Compare::Eq, below.view(Type::U32), 0u32);
    let before = f.raw("bfind.u32", &[Type::U32], &[below.into()])[0];
    let own = f.lane();
    let before = f.select(first, own, before);
    let theirs = shuffle(f, group, before, mask);
    let same = f.setp(Compare::Eq, theirs, group);
    let later = f.not(first);
    let same = f.and(same, later);
    let lanes = f.raw("vote.sync.ballot.b32", &[Type::B32], &[same.into(), mask.into()])[0];
    f.popc(lanes).view(Type::U32)
}

/// Value of another lane in `mask`.
fn shuffle(f: &mut FunctionBuilder, value: Reg, lane: Reg, mask: Reg) -> Reg {
    let operands = [value.into(), lane.into(), Operand::Integer(31), mask.into()];
    f.raw("shfl.sync.idx.b32", &[Type::B32], &operands)[0].view(value.ty())
}

fn shuffle64(f: &mut FunctionBuilder, value: Reg, lane: Reg, mask: Reg) -> Reg {
    let bits = f.reinterpret(Type::B64, value);
    let (low, high) = f.unpack(bits);
    let (low, high) = (shuffle(f, low, lane, mask), shuffle(f, high, lane, mask));
    let both = f.pack(low, high);
    f.reinterpret(value.ty(), both)
}
