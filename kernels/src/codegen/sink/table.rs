//! Counts the rows of each key of a join table. `cuda/join.cu` then allots and places them.
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
                let at =
                    hash::Table { control: self.control, records: self.table.records, mask, part: None, limit: None };
                let entry = hash::find_or_insert(f, &self.plan.groups, at, &words, nulls, hash::Same::Words);
                f.if_(entry.found, |f| self.count(f, entry.cells, entry.slot, row));
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
