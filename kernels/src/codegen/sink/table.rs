//! Builds a join table in three kernels: count, allot, place.
//!
//! ```text
//!   pipeline   row ──► its key's record: rank = count++                 scratch[row] = (record, rank)
//!   allot      record with count rows ──► start = listed, listed += count
//!   place      list[start(record) + rank] = row                       or, where no key has two rows: start(record) = row
//! ```
//!
//! Skew      a key with many rows costs one atomic a row, in any order; nobody waits for anybody.
//! Order     the rows of a key come in no particular order, keys neither.
//! Rows      that a filter drops, or with a NULL that equals nothing, keep the scratch word "none" and are in no list.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, Reg};

use super::hash;
use crate::abi;
use crate::codegen::expr::Expressions;
use crate::codegen::ir::*;
use crate::codegen::join::{JoinPlan, TableRegisters, Wanted, row_keys};
use crate::codegen::load::{RowLeaves, raise};
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::value::{CodegenError, Emit};
use crate::tune;

/// The record of a row that is in no list.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// What the counting kernel keeps in registers.
pub(crate) struct TableBuild {
    plan: JoinPlan,
    table: TableRegisters,
    control: Reg,
    scratch: Reg,
}

impl TableBuild {
    /// Declares the parameters and reads them; `control` is the address of the table's allocation.
    pub(crate) fn new(
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        spec: &TableSpec,
        control: Reg,
    ) -> Result<TableBuild, CodegenError> {
        let plan = JoinPlan::new(spec)?;
        let table = TableRegisters::new(f, params, &plan, 0, control);
        let scratch = params.declare(f, Slot::Scratch, Type::U64);
        let scratch = f.load_param(&scratch);
        Ok(TableBuild { plan, table, control, scratch })
    }

    /// Counts row `row` (U32), which has passed, to its key.
    pub(crate) fn add_row(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        keys: &[NodeId],
        row: Reg,
    ) -> Result<(), CodegenError> {
        let mut values = Vec::with_capacity(keys.len());
        for &key in keys {
            values.push(expressions.value(emit, leaves, key)?);
        }
        let f = &mut *emit.f;
        let own = row_keys(f, &self.plan, &self.table, &values)?;
        if let Some(null) = own.null {
            let seen = self.control.at(abi::CONTROL_NULL_KEYS as i64);
            f.guarded(null, true, |f| f.store_with("st.relaxed.gpu.global", Type::U32, seen, 1u32));
        }
        if let Some(outside) = own.outside {
            raise(f, self.control, ErrorCode::KeyRange, NodeId(u32::MAX), outside);
        }
        let open = own.usable.map(|usable| f.open_if(usable));
        match own.wanted {
            Wanted::Code(code) => {
                let record = f.element(self.table.records, code, self.plan.record_bytes() as u32);
                self.count(f, record, code, row);
            }
            Wanted::Words(words, nulls) => {
                let mask = self.table.mask.expect("a hashed table has a slot mask");
                let at = hash::Table { control: self.control, records: self.table.records, mask, part: None };
                let (cells, found, slot) = hash::find_or_insert(f, &self.plan.groups, at, &words, nulls);
                f.if_(found, |f| self.count(f, cells, slot, row));
            }
        }
        if let Some(open) = open {
            f.close(open);
        }
        Ok(())
    }

    fn count(&self, f: &mut FunctionBuilder, matches: Reg, record: Reg, row: Reg) {
        // The count is the low half of the matches.
        let rank = f.atomic(Atomic::Add, Space::Global, Type::U32, matches, 1u32);
        let later = f.setp(Compare::Ne, rank, 0u32);
        let duplicates = self.control.at(abi::CONTROL_DUPLICATES as i64);
        f.guarded(later, true, |f| f.store_with("st.relaxed.gpu.global", Type::U32, duplicates, 1u32));
        let at = f.element(self.scratch, row, 8);
        f.store_vector("st.global", Type::U32, at, &[record.view(Type::U32), rank.view(Type::U32)]);
    }
}

/// Gives every key its part of the list.
pub(crate) fn allot_kernel(spec: &TableSpec) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let plan = JoinPlan::new(spec)?;
    let mut kernel = FunctionBuilder::kernel("allot");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::COMPACT_THREADS);
    let control = params.declare(f, Slot::Control, Type::U64);
    let control = f.load_param(&control);
    let records = params.declare(f, Slot::Records, Type::U32);
    let records = f.load_param(&records);
    let first = f.add(control, abi::CONTROL_BYTES);
    let thread = f.global_thread();
    let lane = f.and(thread, 31u32);
    let warp_start = f.sub(thread, lane);
    let step = f.grid_threads();
    // A warp stays together: it takes room for its 32 records at once.
    f.for_(warp_start, records, step, |f, start| {
        let record = f.add(start, lane);
        let exists = f.setp(Compare::Lt, record, records);
        let matches = f.element(first, record, plan.record_bytes() as u32);
        let matches = f.add(matches, plan.matches_offset() as u64);
        let count = f.copy(Type::U32, 0u32);
        f.guarded(exists, true, |f| f.load_into("ld.global", Type::U32, count, matches));
        let sum = f.copy(Type::U32, count);
        let distance = f.copy(Type::U32, 1u32);
        f.while_(
            |f| f.setp(Compare::Lt, distance, 32u32),
            |f| {
                let other = f.shuffle("up", sum, distance, 0);
                let has = f.setp(Compare::Ge, lane, distance);
                let both = f.add(sum, other);
                f.guarded(has, true, |f| f.assign(sum, both));
                let next = f.shl(distance, 1);
                f.assign(distance, next);
            },
        );
        let base = f.copy(Type::U32, 0u32);
        let last = f.setp(Compare::Eq, lane, 31u32);
        let some = f.setp(Compare::Ne, sum, 0u32);
        let takes = f.and(last, some);
        f.if_(takes, |f| {
            let listed = control.at(abi::CONTROL_LISTED as i64);
            let old = f.atomic(Atomic::Add, Space::Global, Type::U32, listed, sum);
            f.assign(base, old.view(Type::U32));
        });
        let base = f.shuffle("idx", base, 31u32, 31);
        let before = f.sub(sum, count);
        let start = f.add(base.view(Type::U32), before);
        let used = f.setp(Compare::Ne, count, 0u32);
        f.guarded(used, true, |f| f.store(Space::Global, Type::U32, matches.at(4), start));
    });
    Ok((kernel, params))
}

/// Writes the row numbers to the list.
pub(crate) fn place_kernel(spec: &TableSpec) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let plan = JoinPlan::new(spec)?;
    let mut kernel = FunctionBuilder::kernel("place");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::COMPACT_THREADS);
    let mut read = |f: &mut FunctionBuilder, slot: Slot, ty: Type| {
        let param = params.declare(f, slot, ty);
        f.load_param(&param)
    };
    let control = read(f, Slot::Control, Type::U64);
    let list = read(f, Slot::RowList, Type::U64);
    let scratch = read(f, Slot::Scratch, Type::U64);
    let rows = read(f, Slot::Records, Type::U32);
    let first = f.add(control, abi::CONTROL_BYTES);
    let list = f.add(control, list);
    let duplicates = f.load(Space::Global, Type::U32, control.at(abi::CONTROL_DUPLICATES as i64));
    let unique = f.setp(Compare::Eq, duplicates, 0u32);
    let several = f.setp(Compare::Ne, duplicates, 0u32);
    f.grid_stride(rows, |f, row| {
        let at = f.element(scratch, row, 8);
        let noted = f.load_vector("ld.global.nc", 2, Type::U32, at);
        let (record, rank) = (noted[0], noted[1]);
        let listed = f.setp(Compare::Ne, record, NO_RECORD);
        f.if_(listed, |f| {
            let matches = f.element(first, record, plan.record_bytes() as u32);
            let start_at = matches.at(plan.matches_offset() + 4);
            f.guarded(unique, true, |f| f.store(Space::Global, Type::U32, start_at.clone(), row));
            f.if_(several, |f| {
                let start = f.load(Space::Global, Type::U32, start_at);
                let place = f.add(start, rank);
                let to = f.element(list, place, 4);
                f.store(Space::Global, Type::U32, to, row);
            });
        });
    });
    Ok((kernel, params))
}
