//! Groups in a hash table. With one extent, rows that find the table full are noted for a retry.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Callee, FunctionBuilder, Open, Reg};

use super::{Kernel, RegimeCode};
use crate::codegen::aggregate::accumulate::Place;
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::hash_table::{Leftover, Same, Table, find_or_insert};
use crate::codegen::aggregate::{keys, runs};
use crate::codegen::expr::Expressions;
use crate::codegen::ir::Extents;
use crate::codegen::load::RowLeaves;
use crate::codegen::params::Slot;
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit};

pub(super) struct Hash<'s> {
    plan: &'s AggregatePlan,
    table: Table,
    leftover: Option<Leftover>,
    /// Helper that compares texts among the keys.
    comparison: Option<Callee>,
}

impl<'s> Hash<'s> {
    pub(super) fn begin(mut kernel: Kernel<'_, 's>) -> Result<Hash<'s>, CodegenError> {
        let control = kernel.rows.control;
        let mask = kernel.read(Slot::SlotMask, Type::U32);
        let part = (kernel.read(Slot::PartMask, Type::U32), kernel.read(Slot::Part, Type::U32));
        // Row numbers exist only with a single extent.
        let (leftover, limit) =
            (kernel.spec.extents == Extents::One).then(|| Leftover::new(kernel.emit.f, kernel.params, control)).unzip();
        let table = Table { control, records: kernel.table, mask, part: Some(part), limit };
        plant(&mut kernel, table, leftover)?;
        let comparison = text::comparison(kernel.emit.module, kernel.plan.keys.iter().map(|key| key.lane))?;
        Ok(Hash { plan: kernel.plan, table, leftover, comparison })
    }
}

/// Inserts the group of the seed.
fn plant(kernel: &mut Kernel<'_, '_>, table: Table, leftover: Option<Leftover>) -> Result<(), CodegenError> {
    let (Some(seed), plan) = (kernel.seed(), kernel.plan) else { return Ok(()) };
    kernel.plant(seed, |kernel| {
        let (emit, leaves) = (&mut kernel.emit, &mut kernel.rows.leaves);
        let (words, nulls) = keys::words(emit, leaves, kernel.expressions, plan, &seed.keys)?;
        let comparison = text::comparison(emit.module, plan.keys.iter().map(|key| key.lane))?;
        let entry = find_or_insert(emit.f, plan, table, &words, nulls, Same::of(&comparison));
        if let Some(leftover) = leftover {
            // The seed has no bit among the leftovers: every retry inserts it again.
            emit.f.if_(entry.full, |f| leftover.count(f));
        }
        Ok(())
    })
}

impl RegimeCode for Hash<'_> {
    fn skip(&self, f: &mut FunctionBuilder, row: Reg) -> Option<Open> {
        let wanted = self.leftover?.wants(f, row);
        Some(f.open_if(wanted))
    }

    fn place(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        row: Reg,
        open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError> {
        let (words, nulls) = keys::words(emit, leaves, expressions, self.plan, &self.plan.key_nodes())?;
        let entry = find_or_insert(emit.f, self.plan, self.table, &words, nulls, Same::of(&self.comparison));
        if let Some(leftover) = self.leftover {
            leftover.note(emit.f, row, entry);
        }
        open.push(emit.f.open_if(entry.found));
        Ok(runs::combined(self.plan, Place::Table(entry.cells), entry.slot))
    }
}
