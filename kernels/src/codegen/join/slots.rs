//! Slots of a join table: from a key to its leader, one row that represents all rows of the key.
//!
//! ```text
//!   bitmap   bit of code                                          set: the key exists; no row number is stored
//!   array    row + 1 at code, 8, 16 or 32 bits wide               0: no such key
//!   hash     row + 1 | hash, 64 bits, linear probing              0: empty        then keys of row r: words r · width
//! ```
//!
//! Publish   a row's keys are written before its hashed slot (release) and read after the slot (acquire). No thread
//!           waits for another, and a taken slot never changes.
//! Narrow    slots share a word with their neighbours: a row retries only if a neighbour changed the word in between.
//! Skew      a taken slot is only read, so rows of one key do not queue for it.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Atomic, Callee, Compare, FunctionBuilder, Reg};

use super::{JoinPlan, TableRegisters, Where};
use crate::abi;
use crate::codegen::ir::{ErrorCode, Lane, NodeId};
use crate::codegen::load::raise;
use crate::codegen::text;

/// Key words of a row, and the comparison of texts in hashed keys.
pub(crate) struct Words<'a> {
    /// All words, with the mask of NULLs first if there is one (U64).
    pub words: Vec<Reg>,
    /// Helper that compares the bytes behind views, if some key is a text.
    pub comparison: &'a Option<Callee>,
}

/// A hash of the words (U64): every bit depends on every input bit. Of a text only its own hash is used.
fn hash(f: &mut FunctionBuilder, plan: &JoinPlan, words: &[Reg]) -> Reg {
    // Multipliers and shifts of MurmurHash3's finalizer, by Austin Appleby.
    let mut state = f.copy(Type::U64, 0x9e37_79b9_7f4a_7c15u64);
    for (&word, part) in words.iter().zip(plan.word_parts()) {
        if part == WordPart::View {
            continue;
        }
        let mixed = f.xor(state, word);
        let mixed = f.mul(mixed, 0xff51_afd7_ed55_8ccdu64);
        let high = f.shr(mixed, 33);
        state = f.xor(mixed, high);
    }
    let mixed = f.mul(state, 0xc4ce_b9fe_1a85_ec53u64);
    let high = f.shr(mixed, 29);
    f.xor(mixed, high)
}

/// Kind of a key word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordPart {
    /// A key, half of a key, or the mask of NULLs.
    Plain,
    /// The first or the second word of a text's view; the text's hash is `Plain`.
    View,
}

impl JoinPlan {
    /// Kinds of the words of a row's keys, in order.
    pub(crate) fn word_parts(&self) -> Vec<WordPart> {
        let mut parts = vec![WordPart::Plain; self.has_null_mask() as usize];
        for key in &self.keys {
            parts.push(WordPart::Plain);
            match key.lane {
                Lane::Text => parts.extend([WordPart::View; 2]),
                _ => parts.extend(vec![WordPart::Plain; key.words() as usize - 1]),
            }
        }
        parts
    }
}

/// Location of a code's slot: the address of its word (U64), and its lowest bit there (U32).
fn array_slot(f: &mut FunctionBuilder, table: &TableRegisters, code: Reg, shift: Reg) -> (Reg, Reg) {
    let wide = f.convert(Type::U64, code);
    let byte = f.shl(wide, shift);
    let word = f.and(byte, !3u64);
    let at = f.add(table.records, word);
    let within = f.convert(Type::U32, byte);
    let within = f.and(within, 3u32);
    (at, f.shl(within, 3))
}

/// Location of a code's bit in a bitmap: address of the word (U64) and mask (U32).
fn bitmap_bit(f: &mut FunctionBuilder, table: &TableRegisters, code: Reg) -> (Reg, Reg) {
    let word = f.shr(code, 5);
    let at = f.element(table.records, word, 4);
    let bit = f.and(code, 31u32);
    let one = f.copy(Type::U32, 1u32);
    (at, f.shl(one, bit))
}

/// Inserts the key `wanted` unless it exists; returns the key's leader (U32), if rows have numbers. `row` is the number
/// of the current row (U32).
pub(crate) fn insert(
    f: &mut FunctionBuilder,
    plan: &JoinPlan,
    table: &TableRegisters,
    control: Reg,
    wanted: &Wanted<'_>,
    row: Reg,
) -> Option<Reg> {
    let duplicate = |f: &mut FunctionBuilder, when: Reg| {
        let at = control.at(abi::CONTROL_DUPLICATES as i64);
        f.guarded(when, true, |f| f.store_with("st.relaxed.gpu.global", Type::U32, at, 1u32));
    };
    match (wanted, &table.place) {
        (Wanted::Code(code), Where::Bits) => {
            let (at, bit) = bitmap_bit(f, table, *code);
            let before = f.load_with("ld.relaxed.gpu.global", Type::U32, at);
            let seen = f.and(before, bit);
            let absent = f.setp(Compare::Eq, seen, 0u32);
            f.if_(absent, |f| {
                let before = f.atomic_with("atom.relaxed.gpu.global", Atomic::Or, Type::B32, at, bit.view(Type::B32));
                let own = f.and(before.view(Type::U32), bit);
                f.assign(seen, own);
            });
            let again = f.setp(Compare::Ne, seen, 0u32);
            duplicate(f, again);
            None
        }
        (Wanted::Code(code), Where::Array { shift, field }) => {
            let (at, up) = array_slot(f, table, *code, *shift);
            let leader = f.copy(Type::U32, row);
            let own = f.add(row, 1u32);
            let own = f.shl(own, up);
            f.loop_(|f| {
                let word = f.load_with("ld.relaxed.gpu.global", Type::U32, at);
                let slot = f.shr(word, up);
                let slot = f.and(slot, *field);
                let taken = f.setp(Compare::Ne, slot, 0u32);
                f.if_(taken, |f| {
                    let other = f.sub(slot, 1u32);
                    f.assign(leader, other);
                    f.store_with("st.relaxed.gpu.global", Type::U32, control.at(abi::CONTROL_DUPLICATES as i64), 1u32);
                });
                f.break_if(taken);
                let with = f.or(word, own);
                let (old, new) = (word.view(Type::B32), with.view(Type::B32));
                let before = f.compare_exchange_with("atom.relaxed.gpu.global", Type::B32, at, old, new);
                let ours = f.setp(Compare::Eq, before.view(Type::U32), word);
                f.break_if(ours);
            });
            Some(leader)
        }
        (Wanted::Words(words), Where::Hashed { slots }) => {
            let keys = f.element(table.records, *slots, 8);
            let width = 8 * plan.width() as u32;
            let mine = f.element(keys, row, width);
            for (i, &word) in words.words.iter().enumerate() {
                f.store_with("st.relaxed.gpu.global", Type::U64, mine.at(8 * i as i64), word);
            }
            let leader = f.copy(Type::U32, row);
            let number = f.add(row, 1u32);
            let walk = Walk::new(f, plan, *slots, &words.words);
            let own = f.pack(number.view(Type::B32), walk.tag.view(Type::B32));
            let found = f.constant_pred(false);
            f.loop_(|f| {
                let at = f.element(table.records, walk.slot, 8);
                let there = f.load_with("ld.acquire.gpu.global", Type::U64, at);
                let empty = f.setp(Compare::Eq, there, 0u64);
                f.if_(empty, |f| {
                    let before = f.compare_exchange_with("atom.release.gpu.global", Type::B64, at, 0u64, own);
                    let ours = f.setp(Compare::Eq, before.view(Type::U64), 0u64);
                    f.assign(found, ours);
                });
                f.break_if(found);
                // Lost the race for an empty slot: read the winner's.
                f.continue_if(empty);
                let (low, high) = f.unpack(there);
                let alike = f.setp(Compare::Eq, high.view(Type::U32), walk.tag);
                f.if_(alike, |f| {
                    let other = f.sub(low.view(Type::U32), 1u32);
                    let theirs = f.element(keys, other, width);
                    let load = |f: &mut FunctionBuilder, at: i64| {
                        f.load_with("ld.relaxed.gpu.global", Type::U64, theirs.at(at))
                    };
                    let equal = equal(f, plan, words, load);
                    f.assign(found, equal);
                    f.guarded(found, true, |f| f.assign(leader, other));
                });
                duplicate(f, found);
                f.break_if(found);
                walk.step(f, *slots);
            });
            let full = f.not(found);
            raise(f, control, ErrorCode::TableFull, NodeId(u32::MAX), full);
            Some(leader)
        }
        _ => unreachable!("a table is addressed as its plan says"),
    }
}

/// Probe sequence over hashed slots.
struct Walk {
    /// Upper half of the hash (U32).
    tag: Reg,
    slot: Reg,
    seen: Reg,
}

impl Walk {
    fn new(f: &mut FunctionBuilder, plan: &JoinPlan, slots: Reg, words: &[Reg]) -> Walk {
        let hash = hash(f, plan, words);
        let (low, high) = f.unpack(hash);
        // Scales the lower half to the number of slots, which may be any number.
        let first = f.mul_hi(low.view(Type::U32), slots);
        let slot = f.copy(Type::U32, first);
        let seen = f.copy(Type::U32, 0u32);
        Walk { tag: high.view(Type::U32), slot, seen }
    }

    /// Advances to the next slot; leaves the loop after all slots.
    fn step(&self, f: &mut FunctionBuilder, slots: Reg) {
        let next = f.add(self.slot, 1u32);
        let past = f.setp(Compare::Eq, next, slots);
        let next = f.select(past, 0u32, next);
        f.assign(self.slot, next);
        let seen = f.add(self.seen, 1u32);
        f.assign(self.seen, seen);
        let all = f.setp(Compare::Ge, seen, slots);
        f.break_if(all);
    }
}

/// Compares the keys that `load` reads, by byte offset, with `words`.
fn equal(
    f: &mut FunctionBuilder,
    plan: &JoinPlan,
    words: &Words<'_>,
    mut load: impl FnMut(&mut FunctionBuilder, i64) -> Reg,
) -> Reg {
    let parts = plan.word_parts();
    let mut differs: Option<Reg> = None;
    let mut views = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let own = load(f, 8 * at as i64);
        let other = f.setp(Compare::Ne, own, words.words[at]);
        differs = Some(match differs {
            Some(differs) => f.or(differs, other),
            None => other,
        });
        // Texts with equal hash, length and prefix may still be stored at two addresses.
        if parts[at] == WordPart::View {
            views.push(at);
            at += 1;
        }
        at += 1;
    }
    let differs = differs.expect("a join has a key");
    let same = f.not(differs);
    if let (Some(comparison), false) = (words.comparison, views.is_empty()) {
        f.if_(same, |f| {
            for at in views {
                let own = load(f, 8 * (at + 1) as i64);
                let equal = text::same_views(f, comparison, words.words[at], own, words.words[at + 1]);
                let both = f.and(same, equal);
                f.assign(same, both);
            }
        });
    }
    same
}

/// Prepared keys of a row to look up.
pub(crate) enum Wanted<'a> {
    /// Code of the combination of keys (U32).
    Code(Reg),
    Words(Words<'a>),
}

/// Looks up a key: whether it exists, and its leader (U32; arbitrary if it does not exist). Only for launches after the
/// table is complete.
pub(crate) fn find(
    f: &mut FunctionBuilder,
    plan: &JoinPlan,
    table: &TableRegisters,
    wanted: &Wanted<'_>,
) -> (Reg, Reg) {
    match (wanted, &table.place) {
        (Wanted::Code(code), Where::Bits) => {
            let (at, bit) = bitmap_bit(f, table, *code);
            let word = f.load_constant(Type::U32, at);
            let own = f.and(word, bit);
            (f.setp(Compare::Ne, own, 0u32), f.copy(Type::U32, 0u32))
        }
        (Wanted::Code(code), Where::Array { shift, field }) => {
            let (at, up) = array_slot(f, table, *code, *shift);
            let word = f.load_constant(Type::U32, at);
            let slot = f.shr(word, up);
            let slot = f.and(slot, *field);
            (f.setp(Compare::Ne, slot, 0u32), f.sub(slot, 1u32))
        }
        (Wanted::Words(words), Where::Hashed { slots }) => {
            let keys = f.element(table.records, *slots, 8);
            let width = 8 * plan.width() as u32;
            let leader = f.copy(Type::U32, 0u32);
            let walk = Walk::new(f, plan, *slots, &words.words);
            let found = f.constant_pred(false);
            f.loop_(|f| {
                let at = f.element(table.records, walk.slot, 8);
                let halves = f.load_vector("ld.global.nc", 2, Type::U32, at);
                let empty = f.setp(Compare::Eq, halves[0], 0u32);
                f.break_if(empty);
                let alike = f.setp(Compare::Eq, halves[1], walk.tag);
                f.if_(alike, |f| {
                    let other = f.sub(halves[0], 1u32);
                    f.assign(leader, other);
                    let theirs = f.element(keys, other, width);
                    let equal = equal(f, plan, words, |f, at| f.load_constant(Type::U64, theirs.at(at)));
                    f.assign(found, equal);
                });
                f.break_if(found);
                walk.step(f, *slots);
            });
            (found, leader)
        }
        _ => unreachable!("a table is addressed as its plan says"),
    }
}
