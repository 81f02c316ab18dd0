//! Few groups: each thread has a bin for every code in shared memory, and adds to it without atomics.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{FunctionBuilder, Open, Reg};

use super::dense::Codes;
use super::{Kernel, RegimeCode};
use crate::codegen::aggregate::accumulate::{BIN_WORD_STRIDE, Place};
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::fold::fold;
use crate::codegen::expr::Expressions;
use crate::codegen::load::RowLeaves;
use crate::codegen::params::Slot;
use crate::codegen::rows::compact::shared_address;
use crate::codegen::value::{CodegenError, Emit};

pub(super) struct Private<'s> {
    plan: &'s AggregatePlan,
    table: Reg,
    /// Shared address of the block's first bin, and of this thread's (U32).
    bins: Reg,
    own: Reg,
    /// Number of groups (U32).
    groups: Reg,
    codes: Codes<'s>,
}

impl<'s> Private<'s> {
    pub(super) fn begin(mut kernel: Kernel<'_, 's>) -> Result<Private<'s>, CodegenError> {
        let symbol = kernel.emit.module.dynamic_shared();
        let bins = shared_address(kernel.emit.f, &symbol);
        let groups = kernel.read(Slot::Records, Type::U32);
        let codes = Codes::begin(&mut kernel);
        let f = &mut *kernel.emit.f;
        let thread = f.thread_index();
        let own = f.mad(thread, 8u32, bins);
        clear(f, kernel.plan, own, groups);
        codes.plant(&mut kernel)?;
        Ok(Private { plan: kernel.plan, table: kernel.table, bins, own, groups, codes })
    }
}

impl RegimeCode for Private<'_> {
    fn place(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        _row: Reg,
        open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError> {
        let code = self.codes.of_row(emit, leaves, expressions, open)?;
        let bytes = self.plan.thread_words * BIN_WORD_STRIDE as u32;
        let record_bytes = self.plan.record_bytes() as u32;
        let record = self.plan.has_anchors().then(|| emit.f.element(self.table, code, record_bytes));
        Ok(Place::Bins(emit.f.mad(code, bytes, self.own), record))
    }

    fn end(&self, f: &mut FunctionBuilder) {
        fold(f, self.plan, self.bins, self.groups, self.table);
    }
}

/// Clears this thread's bins.
fn clear(f: &mut FunctionBuilder, plan: &AggregatePlan, own: Reg, groups: Reg) {
    let words = f.mul(groups, plan.thread_words);
    let bytes = f.mul(words, BIN_WORD_STRIDE as u32);
    let end = f.add(own, bytes);
    f.for_(own, end, BIN_WORD_STRIDE as u32, |f, at| f.store(Space::Shared, Type::U64, at, 0u64));
}
