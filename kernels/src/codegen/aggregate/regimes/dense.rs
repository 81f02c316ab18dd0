//! Groups by the code of their keys, for the regimes whose table has a record for every code.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Open, Reg};

use super::Kernel;
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::keys::DenseParams;
use crate::codegen::expr::Expressions;
use crate::codegen::ir::{ErrorCode, NodeId};
use crate::codegen::load::{RowLeaves, raise};
use crate::codegen::value::{CodegenError, Emit};

/// The codes of an aggregation's keys.
pub(super) struct Codes<'s> {
    params: DenseParams,
    plan: &'s AggregatePlan,
    control: Reg,
}

impl<'s> Codes<'s> {
    pub(super) fn begin(kernel: &mut Kernel<'_, 's>) -> Codes<'s> {
        let params = DenseParams::new(kernel.emit.f, kernel.params, kernel.plan, Type::U32);
        Codes { params, plan: kernel.plan, control: kernel.rows.control }
    }

    /// Marks the group of the seed as present in the table.
    pub(super) fn plant(&self, kernel: &mut Kernel<'_, 's>) -> Result<(), CodegenError> {
        let Some(seed) = kernel.seed() else { return Ok(()) };
        let presence = self.plan.presence.expect("dense regimes mark the groups that have a row");
        kernel.plant(seed, |kernel| {
            let (emit, leaves) = (&mut kernel.emit, &mut kernel.rows.leaves);
            let (code, _) = self.params.code(emit, leaves, kernel.expressions, &seed.keys)?;
            let record = emit.f.element(kernel.table, code, self.plan.record_bytes() as u32);
            emit.f.reduce(Atomic::Max, Space::Global, Type::U64, record.at(presence as i64 * 8), 1u64);
            Ok(())
        })
    }

    /// Code of the current row's group (U32). A key outside its range raises the error flag, and the row has no group.
    pub(super) fn of_row(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        open: &mut Vec<Open>,
    ) -> Result<Reg, CodegenError> {
        let (code, inside) = self.params.code(emit, leaves, expressions, &self.plan.key_nodes())?;
        if let Some(inside) = inside {
            let outside = emit.f.not(inside);
            raise(emit.f, self.control, ErrorCode::KeyRange, NodeId(u32::MAX), outside);
            open.push(emit.f.open_if(inside));
        }
        Ok(code)
    }
}
