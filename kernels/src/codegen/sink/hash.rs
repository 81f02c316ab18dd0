//! A hash table of groups in device memory that several launches and streams fill at once.
//!
//!   record   tag u32 | NULL mask u32 | key words | cells            slots: a power of two, linear probing
//!   tag      0 empty ─ cas ─► claimed ─ keys written, release ─► ready       30 bits of hash above the two state bits
//!
//! Order     whoever reads a tag as ready (acquire) sees the keys. Cells are touched by atomics alone.
//! Progress  a claimed slot with our hash is waited for by reading it again; its owner never waits for anyone.
//! Room      the host keeps at least half of the slots free; if it fails to, `ErrorCode::TableFull` is raised, nothing hangs.
//! Leftover  where rows may be left for later, no group is made beyond a limit: a row with a new key then sets its bit, touches
//!           no cell, and comes again when the table has grown. Rows of groups that are there go on as ever.
//! Parts     a table may be for one part of the keys only, by the top bits of the hash; rows of others are passed over.
//! Texts     are a hash of their bytes and a view. The view is the first one that came with the text: what it leads to stays.
//! After     keys of NULL are words of 0 and a bit in the mask, so NULL is a group like any other.

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

/// Registers of the table that stay the same for all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub control: Reg,
    /// First record (U64).
    pub records: Reg,
    /// Number of slots less one (U32).
    pub mask: Reg,
    /// Where it is for one part of the keys: the number of parts less one, and the part (U32).
    pub part: Option<(Reg, Reg)>,
    /// Groups that it may have (U64), where rows beyond may be left for later.
    pub limit: Option<Reg>,
}

/// Where a key was found, or made room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Address of the group's cells (U64).
    pub cells: Reg,
    /// Whether there is one: a key of another part has none, nor one that found the table full.
    pub found: Reg,
    /// Its slot (U32).
    pub slot: Reg,
    /// The table was full. Raised here already unless the table has a limit.
    pub full: Reg,
}

/// How a key is found to be the one of a record with its hash.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Same<'a> {
    /// Word by word.
    Words,
    /// The same; texts by [`text::comparison`].
    Texts(&'a Callee),
    /// Never: each key comes once.
    Never,
}

impl<'a> Same<'a> {
    pub(crate) fn of(comparison: &'a Option<Callee>) -> Same<'a> {
        comparison.as_ref().map_or(Same::Words, Same::Texts)
    }
}

/// Where the words of each key begin, with the key's lane.
fn places(plan: &AggregatePlan) -> Vec<(usize, Lane)> {
    let mut at = 0;
    let place = |key: &KeyPlan| {
        at += key.words() as usize;
        (at - key.words() as usize, key.lane)
    };
    plan.keys.iter().map(place).collect()
}

/// Whether a record with the tag of these keys holds others (`None`: it cannot). `load` reads a word of it.
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
        // Texts of one hash, length and beginning may still lie in two places.
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

/// A hash of the key words (U64): every bit of it depends on every bit of them.
fn hash(f: &mut FunctionBuilder, plan: &AggregatePlan, words: &[Reg], nulls: Option<Reg>) -> Reg {
    // Multipliers and shifts of the finaliser of MurmurHash3, by Austin Appleby.
    let mut state = match nulls {
        Some(nulls) => f.convert(Type::U64, nulls),
        None => f.copy(Type::U64, 0x9e37_79b9_7f4a_7c15u64),
    };
    // Of a text its own hash is enough, and says the same wherever the text lies.
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

/// Bits of the hash's upper word below those that say to which part a key belongs: tags and slots hardly use those.
const PART_SHIFT: u32 = u32::BITS - tune::MAX_KEY_PARTS.trailing_zeros();

/// The group with these keys: found, or made.
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
                let room = f.not(full);
                f.open_if(room)
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
        // Lost the race for an empty slot, or somebody is still writing a key of our hash: look again.
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

/// Where rows are noted that found the table full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leftover {
    control: Reg,
    /// Address of the count of such rows, with their bits behind it (U64); 0 where none may be left.
    address: Reg,
    /// Whether only rows with a bit are taken.
    again: Reg,
}

impl Leftover {
    /// Declares the parameters and reads them; also the limit of the table (U64).
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

    /// Whether row `row` (U32) is to be taken now.
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

    /// Notes what became of row `row`.
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

    /// Counts what found the table full; an error where nothing may be left. Returns whether something may.
    pub fn count(&self, f: &mut FunctionBuilder) -> Reg {
        let may = f.setp(Compare::Ne, self.address, 0u64);
        f.guarded(may, true, |f| f.reduce(Atomic::Add, Space::Global, Type::U64, self.address, 1u64));
        let must_not = f.not(may);
        raise(f, self.control, ErrorCode::TableFull, NodeId(u32::MAX), must_not);
        may
    }

    /// The word with the bit of row `row`, and the bit (B32).
    fn bit(&self, f: &mut FunctionBuilder, row: Reg) -> (Address, Reg) {
        let word = f.shr(row, 5);
        let word = f.element(self.address, word, 4);
        let number = f.and(row, 31u32);
        let one = f.copy(Type::U32, 1u32);
        let bit = f.shl(one, number);
        (word.at(abi::LEFTOVER_BITS as i64), bit)
    }
}

/// Whether the record at `record` holds a group. For launches that run after the table was filled.
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
