//! Many groups in a dense table: rows are added to the record of their code, in the table or in one of its copies.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Open, Reg};

use super::dense::Codes;
use super::{Kernel, RegimeCode};
use crate::codegen::aggregate::accumulate::Place;
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::runs;
use crate::codegen::expr::Expressions;
use crate::codegen::load::RowLeaves;
use crate::codegen::params::Slot;
use crate::codegen::value::{CodegenError, Emit};

pub(super) struct Direct<'s> {
    plan: &'s AggregatePlan,
    /// Address of the first record to which this block adds (U64).
    records: Reg,
    codes: Codes<'s>,
}

impl<'s> Direct<'s> {
    pub(super) fn begin(mut kernel: Kernel<'_, 's>) -> Result<Direct<'s>, CodegenError> {
        let codes = Codes::begin(&mut kernel);
        let records = own_copy(&mut kernel);
        codes.plant(&mut kernel)?;
        Ok(Direct { plan: kernel.plan, records, codes })
    }
}

/// The table of this block: a copy that it shares with few others, or the only one.
fn own_copy(kernel: &mut Kernel<'_, '_>) -> Reg {
    if kernel.plan.copies == 1 {
        return kernel.table;
    }
    let f = &mut *kernel.emit.f;
    let mask = kernel.params.declare(f, Slot::CopyMask, Type::U32);
    let bytes = kernel.params.declare(f, Slot::CopyBytes, Type::U64);
    let (mask, bytes) = (f.load_param(&mask), f.load_param(&bytes));
    let block = f.block_index();
    let copy = f.and(block, mask);
    let copy = f.convert(Type::U64, copy.view(Type::U32));
    f.mad(copy, bytes, kernel.table)
}

impl RegimeCode for Direct<'_> {
    fn place(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        _row: Reg,
        open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError> {
        let code = self.codes.of_row(emit, leaves, expressions, open)?;
        let record = emit.f.element(self.records, code, self.plan.record_bytes() as u32);
        Ok(runs::combined(self.plan, Place::Table(record), code))
    }
}
