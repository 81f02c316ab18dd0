//! Copies a table of groups to dense columns, or a small hash table to a larger one.
//!
//!   record ──► is it a group? ──► keys (code split, or words) ─ cells (limbs recombined, encodings undone) ──► columns
//!
//! NULL      an accumulator that saw no row is NULL; sums wrap at the width of their type, as DataFusion's do.
//! Room      groups are written as long as they fit; if not all fit, the table's count shows the full number.
//! Order     direct tables are emitted in code order, hash tables in no order.
//! Errors    an error in the state is copied to the output.
//! After     the last launch that fills the table: its words are read without atomics.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Compare, FunctionBuilder, ModuleBuilder, Reg, Value as Operand};

use super::accumulate::{combine, word_type};
use super::cells::{AggregatePlan, Reading, ResultPlan, WordOp};
use super::encode::restore;
use super::exact;
use super::fold::zero;
use super::hash_table;
use super::keys::{DenseParams, from_words};
use crate::abi;
use crate::codegen::ir::*;
use crate::codegen::load::{lane_type, raise};
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::rows::compact::Compaction;
use crate::codegen::rows::take_over_error;
use crate::codegen::rows::write::Outputs;
use crate::codegen::value::Value;
use crate::tune;

/// Writes the emit kernel.
pub(crate) fn emit_kernel(
    module: &mut ModuleBuilder,
    plan: &AggregatePlan,
    types: &[Ty],
) -> (FunctionBuilder, ParamList) {
    let mut f = FunctionBuilder::kernel("emit");
    let f = &mut f;
    let mut params = ParamList::default();
    f.max_threads(tune::COMPACT_THREADS);
    let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
        let param = params.declare(f, slot, ty);
        f.load_param(&param)
    };
    let control = read(f, Slot::Control, Type::U64);
    let output = read(f, Slot::Output, Type::U64);
    let records = read(f, Slot::Records, Type::U32);
    let num_tiles = read(f, Slot::NumTiles, Type::U32);
    let copies = (plan.copies > 1).then(|| (read(f, Slot::CopyMask, Type::U32), read(f, Slot::CopyBytes, Type::U64)));
    let dense = (plan.regime != Regime::Hash).then(|| DenseParams::new(f, &mut params, plan, Type::U64));
    let outputs = Outputs::new(f, &mut params, output, types);
    let table = f.add(control, abi::CONTROL_BYTES);

    let thread = f.global_thread();
    let first = f.setp(Compare::Eq, thread, 0u32);
    f.if_(first, |f| take_over_error(f, control, output));
    if plan.keys.is_empty() {
        f.if_(first, |f| {
            let index = f.copy(Type::U64, 0u64);
            let flags = outputs.flags(f);
            for (i, result) in plan.results.iter().enumerate() {
                let value = read_result(f, result, &Cells::Memory(table), output);
                outputs.store(f, i, value, index, &flags);
            }
            // The only row: its flags are the first bit of each bitmap.
            outputs.write_single_flags(f, &flags);
            f.store(Space::Global, Type::U64, output.at(abi::CONTROL_ROWS as i64), 1u64);
        });
        return (std::mem::replace(f, FunctionBuilder::kernel("emit")), params);
    }

    let room = params.declare(f, Slot::Room, Type::U64);
    let room = f.load_param(&room);
    let compaction = Compaction::new(module, f, output, num_tiles, Some(room), outputs.has_flags());
    f.loop_(|f| {
        let tile = compaction.next_tile(f);
        let slot = f.mad(tile, tune::COMPACT_THREADS, compaction.thread);
        let keep = f.constant_pred(false);
        let record = f.element(table, slot, plan.record_bytes() as u32);
        let exists = f.setp(Compare::Lt, slot, records);
        let folded = copies.map(|copies| folded_words(f, plan, record, copies, exists));
        f.if_(exists, |f| {
            let group = match (plan.presence, &folded) {
                (Some(word), Some(words)) => f.setp(Compare::Ne, words[word as usize], 0u64),
                (Some(word), None) => {
                    let rows = f.load(Space::Global, Type::U64, record.at(word as i64 * 8));
                    f.setp(Compare::Ne, rows, 0u64)
                }
                (None, _) => hash_table::is_ready(f, record),
            };
            f.assign(keep, group);
        });
        let places = compaction.place(f, tile, keep);
        let flags = outputs.flags(f);
        f.if_(places.kept, |f| {
            let keys = match &dense {
                Some(dense) => dense.split(f, plan, slot),
                None => table_keys(f, plan, record),
            };
            let cells = match &folded {
                Some(words) => Cells::Registers(words.clone()),
                None => Cells::Memory(f.add(record, plan.cells_offset() as u64)),
            };
            for (i, key) in keys.into_iter().enumerate() {
                outputs.store(f, i, key, places.index, &flags);
            }
            for (i, result) in plan.results.iter().enumerate() {
                let value = read_result(f, result, &cells, output);
                outputs.store(f, plan.keys.len() + i, value, places.index, &flags);
            }
        });
        outputs.write_flags(f, &compaction, &places, &flags);
    });
    (std::mem::replace(f, FunctionBuilder::kernel("emit")), params)
}

fn table_keys(f: &mut FunctionBuilder, plan: &AggregatePlan, record: Reg) -> Vec<Value> {
    let (words, nulls) = hash_table::read_keys(f, plan, record);
    let mut at = 0;
    let mut keys = Vec::new();
    for (i, key) in plan.keys.iter().enumerate() {
        let count = key.words() as usize;
        let value = from_words(f, key.lane, &words[at..at + count]);
        at += count;
        let valid = match (key.ty.nullable, nulls) {
            (true, Some(nulls)) => {
                let bit = f.and(nulls, 1u32 << i);
                Some(f.setp(Compare::Eq, bit, 0u32))
            }
            _ => None,
        };
        keys.push(Value { valid, ..value });
    }
    keys
}

/// Location of the words of a group.
enum Cells {
    /// In memory, at this address.
    Memory(Reg),
    /// In registers, folded from the copies of a table.
    Registers(Vec<Reg>),
}

impl Cells {
    fn word(&self, f: &mut FunctionBuilder, word: u32, ty: Type) -> Reg {
        match self {
            Cells::Memory(cells) => f.load(Space::Global, ty, cells.at(word as i64 * 8)),
            Cells::Registers(words) => words[word as usize],
        }
    }
}

/// Folds the words of the group at `record` over all copies of the table, if `exists` is true; otherwise "nothing yet".
fn folded_words(
    f: &mut FunctionBuilder,
    plan: &AggregatePlan,
    record: Reg,
    (mask, bytes): (Reg, Reg),
    exists: Reg,
) -> Vec<Reg> {
    let mut words = Vec::new();
    for cell in &plan.cells {
        let ty = word_type(cell.op);
        words.extend((0..cell.op.table_words()).map(|_| zero(f, ty)));
    }
    let here = f.copy(Type::U64, record);
    let left = f.add(mask, 1u32);
    let left = f.select(exists, left, 0u32);
    f.while_(
        |f| f.setp(Compare::Ne, left, 0u32),
        |f| {
            for cell in &plan.cells {
                let at = cell.table_word as usize;
                // The two words of a split sum are plain additions here; locks are ignored.
                let (op, count) = match cell.op {
                    WordOp::AddSplit => (WordOp::Add, 2),
                    WordOp::MaxWide => (WordOp::MaxWide, 2),
                    op => (op, op.table_words() as usize),
                };
                let ty = word_type(op);
                let own = &words[at..at + count];
                let new: Vec<Operand> =
                    (0..count).map(|i| f.load(Space::Global, ty, here.at((at + i) as i64 * 8)).into()).collect();
                let both = match op {
                    WordOp::MaxWide => combine(f, op, own, &new),
                    _ => own.iter().zip(&new).map(|(&own, new)| combine(f, op, &[own], &[*new])[0]).collect(),
                };
                for (&own, both) in own.iter().zip(both) {
                    f.assign(own, both);
                }
            }
            let next = f.add(here, bytes);
            f.assign(here, next);
            let next = f.sub(left, 1u32);
            f.assign(left, next);
        },
    );
    words
}

/// Computes the value of an accumulator from its cells; an error goes to the control block at `control`.
fn read_result(f: &mut FunctionBuilder, result: &ResultPlan, cells: &Cells, control: Reg) -> Value {
    let word = |f: &mut FunctionBuilder, word: u32| cells.word(f, word, Type::U64);
    let lane = lane(result.ty);
    let mut value = match result.reading {
        Reading::Word(at) => {
            let low = word(f, at).view(lane_type(lane));
            Value { lane, low, high: None, valid: None }
        }
        Reading::Widened(at) => {
            let low = word(f, at);
            let high = f.shr(low.view(Type::S64), 63);
            Value { lane, low, high: Some(high), valid: None }
        }
        Reading::Bits { word: at, complement } => {
            let bits = word(f, at);
            let bits = if complement { f.not(bits).view(Type::U64) } else { bits };
            let low = match lane {
                Lane::S32 | Lane::U32 => f.convert(Type::U32, bits).view(lane_type(lane)),
                _ => bits.view(lane_type(lane)),
            };
            Value { lane, low, high: None, valid: None }
        }
        Reading::Exact(at) => {
            let Cells::Memory(cells) = cells else { unreachable!("tables with exact sums have no copies") };
            let at = f.add(*cells, at as u64 * 8);
            Value { lane, low: exact::read(f, at), high: None, valid: None }
        }
        Reading::Plain { word: at, ty } => {
            let own = crate::codegen::ir::lane(ty);
            let count = if matches!(own, Lane::S128 | Lane::Text) { 2 } else { 1 };
            let words: Vec<Reg> = (at..at + count).map(|at| word(f, at)).collect();
            match own {
                // A text in stored form: the two words of its view.
                Lane::Text => Value { lane: own, low: words[0], high: Some(words[1].view(Type::S64)), valid: None },
                own => from_words(f, own, &words),
            }
        }
        Reading::Anchor(at) => {
            let bits = word(f, at);
            let bits = f.not(bits);
            let low = f.reinterpret(Type::F64, bits.view(Type::B64));
            Value { lane, low, high: None, valid: None }
        }
        Reading::Limbs { first, count, checked } => {
            let words: Vec<Reg> = (first..first + count).map(|at| word(f, at)).collect();
            // Each limb weighs 2^32 times the previous one; the last is signed.
            let shifted = f.shl(words[1], 32);
            let above = if count == 2 { f.shr(words[1].view(Type::S64), 32) } else { f.shr(words[1], 32) };
            let mut above = above.view(Type::U64);
            if count == 4 {
                let top = f.shl(words[3], 32);
                let high = f.add(words[2], top);
                above = f.add(above, high);
            }
            let low = f.add_cc(words[0], shifted);
            let high = f.addc(above, 0u64);
            if checked {
                raise_if_beyond(f, &words, high, control);
            }
            Value { lane, low, high: Some(high.view(Type::S64)), valid: None }
        }
        Reading::Float(at) => {
            let low = cells.word(f, at, Type::F64);
            Value { lane, low, high: None, valid: None }
        }
        Reading::Ordered { word: at, ty, min } => {
            let count = if lane == Lane::S128 { 2 } else { 1 };
            let words: Vec<Reg> = (at..at + count).map(|at| word(f, at)).collect();
            restore(f, &words, ty, min)
        }
    };
    value.valid = result.seen.map(|at| {
        let rows = word(f, at);
        f.setp(Compare::Ne, rows, 0u64)
    });
    value
}

/// Raises the error flag if four limbs exceed 128 bits, of which `high` is the upper half.
///
/// The total fits if and only if the bits of (top limb + carries) from bit 31 on all equal its sign.
fn raise_if_beyond(f: &mut FunctionBuilder, words: &[Reg], high: Reg, control: Reg) {
    // Carry into the third limb: bits of limbs 0 and 1 above 64 bits; then the carry into the top limb, rounded down.
    let first = f.shr(words[0], 32);
    let second = f.add(words[1], first);
    let carried = f.shr(second, 32);
    let third = f.add(words[2], carried);
    let carried = f.shr(third, 32);
    let top = f.add(words[3], carried).view(Type::S64);
    let whole = f.shr(top, 31);
    let sign = f.shr(high.view(Type::S64), 63);
    let beyond = f.setp(Compare::Ne, whole, sign);
    raise(f, control, ErrorCode::Overflow, NodeId(u32::MAX), beyond);
}

/// Writes the kernel that moves the groups of a hash table, or those of one part of the keys, to a larger table.
pub(crate) fn rehash_kernel(plan: &AggregatePlan) -> (FunctionBuilder, ParamList) {
    let mut f = FunctionBuilder::kernel("rehash");
    let mut params = ParamList::default();
    f.max_threads(tune::COMPACT_THREADS);
    let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
        let param = params.declare(f, slot, ty);
        f.load_param(&param)
    };
    let control = read(&mut f, Slot::Control, Type::U64);
    let old = read(&mut f, Slot::OldTable, Type::U64);
    let records = read(&mut f, Slot::Records, Type::U32);
    let mask = read(&mut f, Slot::SlotMask, Type::U32);
    let part_mask = read(&mut f, Slot::PartMask, Type::U32);
    let part = read(&mut f, Slot::Part, Type::U32);
    let thread = f.global_thread();
    let first = f.setp(Compare::Eq, thread, 0u32);
    f.if_(first, |f| take_over_error(f, old, control));
    let records_there = f.add(control, abi::CONTROL_BYTES);
    let table = hash_table::Table { control, records: records_there, mask, part: Some((part_mask, part)), limit: None };
    let old = f.add(old, abi::CONTROL_BYTES);
    // Keys of the old table are distinct, so texts need no comparison.
    let texts = plan.keys.iter().any(|key| key.lane == Lane::Text);
    let same = if texts { hash_table::Same::Never } else { hash_table::Same::Words };
    f.grid_stride(records, |f, slot| {
        let record = f.element(old, slot, plan.record_bytes() as u32);
        let group = hash_table::is_ready(f, record);
        f.if_(group, |f| {
            let (words, nulls) = hash_table::read_keys(f, plan, record);
            let entry = hash_table::find_or_insert(f, plan, table, &words, nulls, same);
            f.if_(entry.found, |f| {
                // Keys of the old table are distinct, so only this thread accesses the new record.
                let from = f.add(record, plan.cells_offset() as u64);
                let words = f.copy(Type::U32, plan.table_words);
                f.for_(0u32, words, 1u32, |f, word| {
                    let (from, to) = (f.element(from, word, 8), f.element(entry.cells, word, 8));
                    let value = f.load(Space::Global, Type::U64, from);
                    f.store_with("st.relaxed.gpu.global", Type::U64, to, value);
                });
            });
        });
    });
    (f, params)
}
