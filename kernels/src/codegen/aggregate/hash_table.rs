//! A hash table of groups in device memory; several launches and streams may fill it concurrently.
//!
//!   record   tag u32 | NULL mask u32 | key words | cells            slots: a power of two, linear probing
//!   tag      0 empty ─ cas ─► claimed ─ keys written, release ─► ready       30 bits of hash above the two state bits
//!
//! Order     a thread that reads a tag as ready (acquire) sees the keys. Cells are only accessed by atomics.
//! Progress  a thread polls a claimed slot with its own hash until it is ready; the slot's owner never waits.
//! Room      the host keeps at least half of the slots free; otherwise `ErrorCode::TableFull` is raised, and no thread
//!           hangs.
//! Leftover  if rows may be deferred, no group is created beyond a limit: a row with a new key then sets its bit,
//!           updates no cell, and is retried after the table has grown. Rows of existing groups are added as usual.
//! Parts     a table may hold one part of the keys, selected by the top bits of the hash; rows of other parts are
//!           skipped.
//! Texts     are stored as a hash of their bytes and a view: that of the first row with the text. Its bytes must stay
//!           allocated.
//! NULL      keys are words of 0 and a bit in the mask, so NULL is a group like any other.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Address, Atomic, Callee, Compare, FunctionBuilder, Reg};

use super::cells::{AggregatePlan, KeyPlan};
use crate::abi;
use crate::codegen::ir::{ErrorCode, Lane, NodeId};
use crate::codegen::load::raise;
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::text;
use crate::tune;

/// State bits of a tag.
const CLAIMED: u32 = 1;
const READY: u32 = 3;
/// Byte offset of the NULL mask in a record.
pub(crate) const NULLS: i64 = 4;
/// Byte offset of the first key word in a record.
pub(crate) const KEYS: i64 = 8;

/// Registers of the table; equal for all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub control: Reg,
    /// Address of the first record (U64).
    pub records: Reg,
    /// Number of slots minus one (U32).
    pub mask: Reg,
    /// For a table of one part of the keys: the number of parts minus one, and the part (U32).
    pub part: Option<(Reg, Reg)>,
    /// Maximum number of groups (U64), if rows beyond may be deferred.
    pub limit: Option<Reg>,
}

/// Result of finding or inserting a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Address of the group's cells (U64).
    pub cells: Reg,
    /// False if the key belongs to another part, or if the table is full.
    pub found: Reg,
    /// Slot of the group (U32).
    pub slot: Reg,
    /// True if the table was full. The error is already raised, unless the table has a limit.
    pub full: Reg,
}

/// Comparison of a key with a record of equal hash.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Same<'a> {
    /// Word by word.
    Words,
    /// Word by word, and texts by [`text::comparison`].
    Texts(&'a Callee),
    /// Never equal: each key occurs once.
    Never,
}

impl<'a> Same<'a> {
    pub(crate) fn of(comparison: &'a Option<Callee>) -> Same<'a> {
        comparison.as_ref().map_or(Same::Words, Same::Texts)
    }
}

/// Index of each key's first word, with the key's lane.
fn places(plan: &AggregatePlan) -> Vec<(usize, Lane)> {
    let mut at = 0;
    let place = |key: &KeyPlan| {
        at += key.words() as usize;
        (at - key.words() as usize, key.lane)
    };
    plan.keys.iter().map(place).collect()
}

/// True if a record with an equal tag holds different keys (`None`: it cannot). `load` reads a word of the record.
fn differs(
    f: &mut FunctionBuilder,
    plan: &AggregatePlan,
    words: &[Reg],
    nulls: Option<Reg>,
    same: Same<'_>,
    load: impl Fn(&mut FunctionBuilder, Type, i64) -> Reg,
) -> Option<Reg> {
    let mut differs: Option<Reg> = None;
    let mut also = |f: &mut FunctionBuilder, own: Reg, wanted: Reg| {
        let other = f.setp(Compare::Ne, own, wanted);
        differs = Some(match differs {
            Some(differs) => f.or(differs, other),
            None => other,
        });
    };
    let place = |word: usize| KEYS + 8 * word as i64;
    if let Some(nulls) = nulls {
        let own = load(f, Type::U32, NULLS);
        also(f, own, nulls);
    }
    let mut texts = Vec::new();
    for (at, lane) in places(plan) {
        // Texts with equal hash, length and prefix may still be stored at two addresses.
        let plain = match lane {
            Lane::Text => {
                texts.push(at + 1);
                at..at + 2
            }
            Lane::S128 => at..at + 2,
            _ => at..at + 1,
        };
        for word in plain {
            let own = load(f, Type::U64, place(word));
            also(f, own, words[word]);
        }
    }
    let (Same::Texts(comparison), Some(so_far)) = (same, differs) else { return differs };
    let alike = f.not(so_far);
    f.if_(alike, |f| {
        for at in texts {
            let own = load(f, Type::U64, place(at + 1));
            let equal = text::same_views(f, comparison, words[at], words[at + 1], own);
            let other = f.not(equal);
            let other = f.or(so_far, other);
            f.assign(so_far, other);
        }
    });
    Some(so_far)
}

/// A hash of the key words (U64): every bit depends on every input bit.
fn hash(f: &mut FunctionBuilder, plan: &AggregatePlan, words: &[Reg], nulls: Option<Reg>) -> Reg {
    // Multipliers and shifts of MurmurHash3's finalizer, by Austin Appleby.
    let mut state = match nulls {
        Some(nulls) => f.convert(Type::U64, nulls),
        None => f.copy(Type::U64, 0x9e37_79b9_7f4a_7c15u64),
    };
    // A text contributes its own hash, which does not depend on its address.
    let hashed =
        places(plan).into_iter().flat_map(|(at, lane)| if lane == Lane::S128 { at..at + 2 } else { at..at + 1 });
    for word in hashed.map(|word| words[word]) {
        let mixed = f.xor(state, word);
        let mixed = f.mul(mixed, 0xff51_afd7_ed55_8ccdu64);
        let high = f.shr(mixed, 33);
        state = f.xor(mixed, high);
    }
    let mixed = f.mul(state, 0xc4ce_b9fe_1a85_ec53u64);
    let high = f.shr(mixed, 29);
    f.xor(mixed, high)
}

/// Number of bits below the part bits in the hash's upper word: tags and slots hardly use the part bits.
const PART_SHIFT: u32 = u32::BITS - tune::MAX_KEY_PARTS.trailing_zeros();

/// Finds or creates the group with these keys.
pub(crate) fn find_or_insert(
    f: &mut FunctionBuilder,
    plan: &AggregatePlan,
    table: Table,
    words: &[Reg],
    nulls: Option<Reg>,
    same: Same<'_>,
) -> Entry {
    let hash = hash(f, plan, words, nulls);
    let (low, high) = f.unpack(hash);
    let tag_bits = f.shl(high.view(Type::U32), 2);
    let claimed = f.or(tag_bits, CLAIMED);
    let ready = f.or(tag_bits, READY);
    let slot = f.and(low.view(Type::U32), table.mask);
    let probes = f.copy(Type::U32, 0u32);
    let record = f.copy(Type::U64, table.records);
    let found = f.constant_pred(false);
    let full = f.constant_pred(false);
    let inside = table.part.map(|(part_mask, part)| {
        let own = f.shr(high.view(Type::U32), PART_SHIFT);
        let own = f.and(own, part_mask);
        let ours = f.setp(Compare::Eq, own, part);
        f.open_if(ours)
    });
    f.loop_(|f| {
        let here = f.element(table.records, slot, plan.record_bytes() as u32);
        f.assign(record, here);
        let tag = f.load_with("ld.acquire.gpu.global", Type::U32, record);
        let empty = f.setp(Compare::Eq, tag, 0u32);
        f.if_(empty, |f| {
            let open = table.limit.map(|limit| {
                let groups =
                    f.load_with("ld.relaxed.gpu.global", Type::U64, table.control.at(abi::CONTROL_ROWS as i64));
                f.setp_into(full, Compare::Ge, groups, limit);
                let free = f.not(full);
                f.open_if(free)
            });
            let old =
                f.compare_exchange_with("atom.relaxed.gpu.global", Type::B32, record, 0u32, claimed.view(Type::B32));
            let ours = f.setp(Compare::Eq, old, 0u32);
            f.if_(ours, |f| {
                if let Some(nulls) = nulls {
                    f.store_with("st.relaxed.gpu.global", Type::U32, record.at(NULLS), nulls);
                }
                for (i, &word) in words.iter().enumerate() {
                    f.store_with("st.relaxed.gpu.global", Type::U64, record.at(KEYS + 8 * i as i64), word);
                }
                f.store_with("st.release.gpu.global", Type::U32, record, ready);
                f.reduce(Atomic::Add, Space::Global, Type::U64, table.control.at(abi::CONTROL_ROWS as i64), 1u64);
                f.assign_pred(found, true);
            });
            if let Some(open) = open {
                f.close(open);
            }
        });
        f.break_if(found);
        if table.limit.is_some() {
            f.break_if(full);
        }
        // Lost the race for an empty slot, or another thread is still writing a key with this hash: read again.
        let pending = f.setp(Compare::Eq, tag, claimed);
        let again = f.or(empty, pending);
        f.continue_if(again);
        if !matches!(same, Same::Never) {
            let alike = f.setp(Compare::Eq, tag, ready);
            f.if_(alike, |f| {
                let load = |f: &mut FunctionBuilder, ty, at| f.load_with("ld.relaxed.gpu.global", ty, record.at(at));
                match differs(f, plan, words, nulls, same, load) {
                    Some(differs) => {
                        let equal = f.not(differs);
                        f.assign(found, equal);
                    }
                    None => f.assign_pred(found, true),
                }
            });
            f.break_if(found);
        }
        let next = f.add(slot, 1u32);
        let next = f.and(next, table.mask);
        f.assign(slot, next);
        let next = f.add(probes, 1u32);
        f.assign(probes, next);
        let all_seen = f.setp(Compare::Gt, probes, table.mask);
        f.break_if(all_seen);
    });
    let nowhere = f.not(found);
    f.assign(full, nowhere);
    if table.limit.is_none() {
        raise(f, table.control, ErrorCode::TableFull, NodeId(u32::MAX), full);
    }
    if let Some(inside) = inside {
        f.close(inside);
    }
    let cells = f.add(record, plan.cells_offset() as u64);
    Entry { cells, found, slot, full }
}

/// Notes of rows that found the table full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leftover {
    control: Reg,
    /// Address of the count of such rows, followed by their bits (U64); 0 if no row may be deferred.
    address: Reg,
    /// True if only noted rows are processed.
    again: Reg,
}

impl Leftover {
    /// Declares and reads the parameters; also returns the limit of the table (U64).
    pub fn new(f: &mut FunctionBuilder, params: &mut ParamList, control: Reg) -> (Leftover, Reg) {
        let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
            let param = params.declare(f, slot, ty);
            f.load_param(&param)
        };
        let address = read(f, Slot::Leftover, Type::U64);
        let again = read(f, Slot::Again, Type::U32);
        let limit = read(f, Slot::Limit, Type::U64);
        let again = f.setp(Compare::Ne, again, 0u32);
        (Leftover { control, address, again }, limit)
    }

    /// True if row `row` (U32) is to be processed by this launch.
    pub fn wants(&self, f: &mut FunctionBuilder, row: Reg) -> Reg {
        let wanted = f.constant_pred(true);
        f.if_(self.again, |f| {
            let (at, bit) = self.bit(f, row);
            let word = f.load_with("ld.relaxed.gpu.global", Type::U32, at);
            let own = f.and(word, bit);
            f.setp_into(wanted, Compare::Ne, own, 0u32);
        });
        wanted
    }

    /// Updates the notes for row `row`: sets its bit if the table was full, clears it if a retry found the group.
    pub fn note(&self, f: &mut FunctionBuilder, row: Reg, entry: Entry) {
        f.if_(entry.full, |f| {
            let may = self.count(f);
            f.if_(may, |f| {
                let (at, bit) = self.bit(f, row);
                f.reduce(Atomic::Or, Space::Global, Type::B32, at, bit);
            });
        });
        let done = f.and(entry.found, self.again);
        f.if_(done, |f| {
            let (at, bit) = self.bit(f, row);
            let others = f.not(bit);
            f.reduce(Atomic::And, Space::Global, Type::B32, at, others);
        });
    }

    /// Counts a row that found the table full; raises an error if rows may not be deferred. Returns whether they may.
    pub fn count(&self, f: &mut FunctionBuilder) -> Reg {
        let may = f.setp(Compare::Ne, self.address, 0u64);
        f.guarded(may, true, |f| f.reduce(Atomic::Add, Space::Global, Type::U64, self.address, 1u64));
        let must_not = f.not(may);
        raise(f, self.control, ErrorCode::TableFull, NodeId(u32::MAX), must_not);
        may
    }

    /// Word that holds the bit of row `row`, and the bit (B32).
    fn bit(&self, f: &mut FunctionBuilder, row: Reg) -> (Address, Reg) {
        let word = f.shr(row, 5);
        let word = f.element(self.address, word, 4);
        let number = f.and(row, 31u32);
        let one = f.copy(Type::U32, 1u32);
        let bit = f.shl(one, number);
        (word.at(abi::LEFTOVER_BITS as i64), bit)
    }
}

/// True if the record at `record` holds a group. Only for launches after the table is complete.
pub(crate) fn is_ready(f: &mut FunctionBuilder, record: Reg) -> Reg {
    let tag = f.load(Space::Global, Type::U32, record);
    let state = f.and(tag, READY);
    f.setp(Compare::Eq, state, READY)
}

/// Key words and NULL mask of a finished record.
pub(crate) fn read_keys(f: &mut FunctionBuilder, plan: &AggregatePlan, record: Reg) -> (Vec<Reg>, Option<Reg>) {
    let nullable = plan.keys.iter().any(|key| key.ty.nullable);
    let nulls = nullable.then(|| f.load(Space::Global, Type::U32, record.at(NULLS)));
    let words =
        (0..plan.key_words()).map(|i| f.load(Space::Global, Type::U64, record.at(KEYS + 8 * i as i64))).collect();
    (words, nulls)
}
