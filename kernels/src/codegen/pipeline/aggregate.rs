//! The kernel that adds rows to groups, for every regime.
//!
//! ```text
//!   row ─ filters ─► place: registers │ thread's bins │ block's table │ record by code │ slot by hash ─► accumulate
//! ```
//!
//! Ahead  several rows of a thread are loaded before the first is processed, so that enough bytes are in flight.
//!        Columns that are only needed by rows that pass several conditions are loaded late.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, FunctionBuilder, ModuleBuilder, Reg};

use super::super::ahead::RowAhead;
use super::super::expr::Expressions;
use super::super::ir::{AggregateSpec, ErrorCode, Extents, NodeId, PipelineSpec, Regime, Seed, SinkSpec};
use super::super::load::{RowLeaves, raise};
use super::super::params::{ParamList, Slot};
use super::super::sink::accumulate::{self, BIN_WORD_STRIDE, Place, word_type};
use super::super::sink::block;
use super::super::sink::cells::AggregatePlan;
use super::super::sink::compact::shared_address;
use super::super::sink::fold::{fold, zero};
use super::super::sink::hash;
use super::super::sink::keys::{self, DenseParams};
use super::super::sink::runs;
use super::super::text;
use super::super::value::{CodegenError, Emit};
use super::rows::{Rows, close_all, open_filters, strided, strided_ahead};
use crate::abi;

/// Writes the kernel that adds rows to groups.
pub(super) fn aggregate_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    plan: &AggregatePlan,
    ahead: &RowAhead,
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(plan.threads());
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let control = rows.control;
    let table = f.add(control, abi::CONTROL_BYTES);
    let mut read = |f: &mut FunctionBuilder, slot: Slot| {
        let param = params.declare(f, slot, Type::U32);
        f.load_param(&param)
    };
    let mut bins = None;
    let mut groups = None;
    let mut own_groups = None;
    let mut hashed = None;
    let mut leftover = None;
    let in_registers = plan.in_registers();
    let combines = runs::apply_to(plan);
    let together = |to: Place, group: Reg| if combines { Place::Runs(Box::new(to), group) } else { to };
    match plan.regime {
        Regime::Scalar if in_registers => {
            let symbol = module.dynamic_shared();
            bins = Some(shared_address(f, &symbol));
            groups = Some(f.copy(Type::U32, 1u32));
        }
        Regime::Private => {
            let symbol = module.dynamic_shared();
            bins = Some(shared_address(f, &symbol));
            groups = Some(read(f, Slot::Records));
        }
        Regime::Block => {
            let symbol = module.dynamic_shared();
            let words = shared_address(f, &symbol);
            let groups = read(f, Slot::Records);
            own_groups = Some(block::BlockTable::new(f, plan, words, groups));
        }
        Regime::Hash => {
            let mask = read(f, Slot::SlotMask);
            let part = Some((read(f, Slot::PartMask), read(f, Slot::Part)));
            // Row numbers exist only with a single extent.
            let limit = (spec.extents == Extents::One).then(|| {
                let (noted, limit) = hash::Leftover::new(f, &mut params, control);
                leftover = Some(noted);
                limit
            });
            hashed = Some(hash::Table { control, records: table, mask, part, limit });
        }
        Regime::Scalar | Regime::Direct => {}
    }
    let dense = matches!(plan.regime, Regime::Private | Regime::Block | Regime::Direct)
        .then(|| DenseParams::new(f, &mut params, plan, Type::U32));

    // A block adds to its own copy, or to one shared by few blocks.
    let own_table = match plan.copies {
        1 => table,
        _ => {
            let mask = params.declare(f, Slot::CopyMask, Type::U32);
            let bytes = params.declare(f, Slot::CopyBytes, Type::U64);
            let (mask, bytes) = (f.load_param(&mask), f.load_param(&bytes));
            let block = f.block_index();
            let copy = f.and(block, mask);
            let copy = f.convert(Type::U64, copy.view(Type::U32));
            f.mad(copy, bytes, table)
        }
    };

    let registers: Vec<Reg> = if in_registers { thread_words(f, plan) } else { Vec::new() };
    let own_bin = bins.map(|bins| {
        let thread = f.thread_index();
        f.mad(thread, 8u32, bins)
    });
    if let (Regime::Private, Some(own), Some(groups)) = (plan.regime, own_bin, groups) {
        clear_bins(f, plan, own, groups);
    }

    let mut expressions = Expressions::new(&spec.graph);
    if let SinkSpec::Aggregate(AggregateSpec { seed: Some(seed), .. }) = &spec.sink {
        let table = SeedTable { plan, table, dense: dense.as_ref(), hashed, leftover };
        plant(&mut Emit { module, f }, &mut rows, &mut expressions, seed, table)?;
    }
    let keys: Vec<NodeId> = plan.keys.iter().map(|key| key.node).collect();
    let comparison = text::comparison(module, plan.keys.iter().map(|key| key.lane))?;
    let thread = f.global_thread();
    let step = f.grid_threads();
    let mut add_row = |emit: &mut Emit<'_>, leaves: &mut RowLeaves<'_>, row: Reg| -> Result<(), CodegenError> {
        expressions.clear();
        let wanted = leftover.map(|leftover| {
            let wanted = leftover.wants(emit.f, row);
            emit.f.open_if(wanted)
        });
        let mut open = open_filters(emit, leaves, &mut expressions, &spec.filters)?;
        let place = match plan.regime {
            Regime::Scalar if in_registers => Place::Registers(registers.clone(), table),
            Regime::Scalar => Place::Table(table),
            Regime::Private | Regime::Block | Regime::Direct => {
                let dense = dense.as_ref().expect("dense regimes have dense keys");
                let (code, inside) = dense.code(emit, leaves, &mut expressions, &keys)?;
                if let Some(inside) = inside {
                    let outside = emit.f.not(inside);
                    raise(emit.f, control, ErrorCode::KeyRange, NodeId(u32::MAX), outside);
                    open.push(emit.f.open_if(inside));
                }
                match (own_bin, &own_groups) {
                    (_, Some(own)) => together(Place::Block(own.words_of(emit.f, plan, code)), code),
                    (Some(own), None) if plan.regime == Regime::Private => {
                        let bytes = plan.thread_words * BIN_WORD_STRIDE as u32;
                        let record =
                            plan.has_anchors().then(|| emit.f.element(table, code, plan.record_bytes() as u32));
                        Place::Bins(emit.f.mad(code, bytes, own), record)
                    }
                    _ => {
                        let record = emit.f.element(own_table, code, plan.record_bytes() as u32);
                        together(Place::Table(record), code)
                    }
                }
            }
            Regime::Hash => {
                let at = hashed.expect("the hash regime has a hash table");
                let (words, nulls) = keys::words(emit, leaves, &mut expressions, plan, &keys)?;
                let same = hash::Same::of(&comparison);
                let entry = hash::find_or_insert(emit.f, plan, at, &words, nulls, same);
                if let Some(leftover) = leftover {
                    leftover.note(emit.f, row, entry);
                }
                open.push(emit.f.open_if(entry.found));
                together(Place::Table(entry.cells), entry.slot)
            }
        };
        accumulate::accumulate(emit, leaves, &mut expressions, plan, &place)?;
        close_all(emit.f, open);
        if let Some(wanted) = wanted {
            emit.f.close(wanted);
        }
        Ok(())
    };
    rows.each_extent(f, |rows, f, extent_rows| {
        let mut emit = Emit { module, f };
        if ahead.rows == 1 {
            strided(&mut emit, thread, extent_rows, step, |emit, row| {
                rows.leaves.at_row(emit.f, row);
                add_row(emit, &mut rows.leaves, row)
            })
        } else {
            strided_ahead(&mut emit, &mut rows.leaves, thread, extent_rows, step, ahead, &mut add_row)
        }
    })?;

    if let (Some(bins), Some(own), Some(groups)) = (bins, own_bin, groups) {
        for (word, register) in registers.iter().enumerate() {
            f.store(Space::Shared, register.ty(), own.at(word as i64 * BIN_WORD_STRIDE), *register);
        }
        fold(f, plan, bins, groups, table);
    }
    if let Some(own) = own_groups {
        own.merge(f, plan, table);
    }
    Ok((kernel, params))
}

/// Destination of a seed.
struct SeedTable<'a> {
    plan: &'a AggregatePlan,
    table: Reg,
    dense: Option<&'a DenseParams>,
    hashed: Option<hash::Table>,
    leftover: Option<hash::Leftover>,
}

/// Inserts the group of `seed` into the table, in the first thread of the grid. Rows of the group are added
/// independently.
fn plant(
    emit: &mut Emit<'_>,
    rows: &mut Rows<'_>,
    expressions: &mut Expressions<'_>,
    seed: &Seed,
    to: SeedTable<'_>,
) -> Result<(), CodegenError> {
    expressions.clear();
    let first = emit.f.open_if(rows.first_thread);
    let holds = expressions.truth(emit, &mut rows.leaves, seed.when)?;
    let planted = emit.f.open_if(holds);
    match (to.dense, to.hashed, to.plan.presence) {
        (Some(dense), _, Some(presence)) => {
            let (code, _) = dense.code(emit, &mut rows.leaves, expressions, &seed.keys)?;
            let record = emit.f.element(to.table, code, to.plan.record_bytes() as u32);
            emit.f.reduce(Atomic::Max, Space::Global, Type::U64, record.at(presence as i64 * 8), 1u64);
        }
        (_, Some(table), _) => {
            let (words, nulls) = keys::words(emit, &mut rows.leaves, expressions, to.plan, &seed.keys)?;
            let comparison = text::comparison(emit.module, to.plan.keys.iter().map(|key| key.lane))?;
            let entry = hash::find_or_insert(emit.f, to.plan, table, &words, nulls, hash::Same::of(&comparison));
            if let Some(leftover) = to.leftover {
                // The seed has no bit among the leftovers: every retry inserts it again.
                emit.f.if_(entry.full, |f| leftover.count(f));
            }
        }
        _ => {
            return Err(CodegenError::Malformed {
                what: "a seed".into(),
                why: "without keys the one group is always there".into(),
            });
        }
    }
    emit.f.close(planted);
    emit.f.close(first);
    expressions.clear();
    Ok(())
}

/// Registers for a thread's own words, initially "nothing yet".
fn thread_words(f: &mut FunctionBuilder, plan: &AggregatePlan) -> Vec<Reg> {
    let mut registers = Vec::new();
    for cell in &plan.cells {
        for _ in 0..cell.op.thread_words() {
            registers.push(zero(f, word_type(cell.op)));
        }
    }
    registers
}

/// Clears this thread's bins.
fn clear_bins(f: &mut FunctionBuilder, plan: &AggregatePlan, own: Reg, groups: Reg) {
    let words = f.mul(groups, plan.thread_words);
    let bytes = f.mul(words, BIN_WORD_STRIDE as u32);
    let end = f.add(own, bytes);
    f.for_(own, end, BIN_WORD_STRIDE as u32, |f, at| f.store(Space::Shared, Type::U64, at, 0u64));
}
