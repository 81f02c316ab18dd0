//! Inserts the keys of a build side into a join table. If lists are needed, `cuda/join.cu` builds them afterwards.
//!
//! ```text
//!   pipeline   row ──► slot of its key: the first row takes it and becomes the key's leader      scratch[row] = leader
//!   count      leader: rows += 1
//!   allot      leader with rows ──► end = listed                                                  listed += rows
//!   place      list[end++] = row
//! ```
//!
//! Skew      rows of an existing key only read its slot; no thread waits for another.
//! Order     the choice of the leader, and the order of a key's rows, are unspecified.
//! Rows      that a filter drops, or with a NULL that equals nothing, keep the scratch word "none" and are in no list.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg};

use super::slots;
use super::{JoinPlan, TableRegisters, row_keys};
use crate::abi;
use crate::codegen::expr::Expressions;
use crate::codegen::ir::*;
use crate::codegen::load::{RowLeaves, raise};
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::value::{CodegenError, Emit};

/// State of the building kernel, in registers.
pub(crate) struct TableBuild {
    plan: JoinPlan,
    table: TableRegisters,
    control: Reg,
    /// Address of the leaders of the rows, if lists are needed.
    leaders: Option<Reg>,
}

impl TableBuild {
    /// Declares and reads the parameters; `control` is the address of the table's allocation.
    pub(crate) fn new(
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        params: &mut ParamList,
        spec: &TableSpec,
        control: Reg,
    ) -> Result<TableBuild, CodegenError> {
        let plan = JoinPlan::new(spec)?;
        if plan.kind == TableKind::Every {
            let why = "there is nothing to build where every row matches".into();
            return Err(CodegenError::Malformed { what: "a join table".into(), why });
        }
        let table = TableRegisters::new(module, f, params, &plan, 0, control, true)?;
        let leaders = plan.lists.then(|| {
            let leaders = params.declare(f, Slot::Scratch, Type::U64);
            f.load_param(&leaders)
        });
        Ok(TableBuild { plan, table, control, leaders })
    }

    /// Inserts the key of row `row` (U32), which has passed the filters, into the table.
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
        let own = row_keys(emit, &self.plan, &self.table, &values)?;
        let f = &mut *emit.f;
        if let Some(null) = own.null {
            let seen = self.control.at(abi::CONTROL_NULL_KEYS as i64);
            f.guarded(null, true, |f| f.store_with("st.relaxed.gpu.global", Type::U32, seen, 1u32));
        }
        if let Some(outside) = own.outside {
            raise(f, self.control, ErrorCode::KeyRange, NodeId(u32::MAX), outside);
        }
        let open = own.usable.map(|usable| f.open_if(usable));
        let leader = slots::insert(f, &self.plan, &self.table, self.control, &own.wanted, row);
        if let (Some(leaders), Some(leader)) = (self.leaders, leader) {
            let at = f.element(leaders, row, 4);
            f.store(Space::Global, Type::U32, at, leader);
        }
        if let Some(open) = open {
            f.close(open);
        }
        Ok(())
    }
}
