//! Up to some thousands of groups: each block has a table in shared memory, which it merges into that of the launch.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{FunctionBuilder, Open, Reg};

use super::dense::Codes;
use super::{Kernel, RegimeCode};
use crate::codegen::aggregate::accumulate::Place;
use crate::codegen::aggregate::block_table::BlockTable;
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::runs;
use crate::codegen::expr::Expressions;
use crate::codegen::load::RowLeaves;
use crate::codegen::params::Slot;
use crate::codegen::rows::compact::shared_address;
use crate::codegen::value::{CodegenError, Emit};

pub(super) struct Block<'s> {
    plan: &'s AggregatePlan,
    table: Reg,
    own: BlockTable,
    codes: Codes<'s>,
}

impl<'s> Block<'s> {
    pub(super) fn begin(mut kernel: Kernel<'_, 's>) -> Result<Block<'s>, CodegenError> {
        let symbol = kernel.emit.module.dynamic_shared();
        let words = shared_address(kernel.emit.f, &symbol);
        let groups = kernel.read(Slot::Records, Type::U32);
        let own = BlockTable::new(kernel.emit.f, kernel.plan, words, groups);
        let codes = Codes::begin(&mut kernel);
        codes.plant(&mut kernel)?;
        Ok(Block { plan: kernel.plan, table: kernel.table, own, codes })
    }
}

impl RegimeCode for Block<'_> {
    fn place(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        _row: Reg,
        open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError> {
        let code = self.codes.of_row(emit, leaves, expressions, open)?;
        Ok(runs::combined(self.plan, Place::Block(self.own.words_of(emit.f, self.plan, code)), code))
    }

    fn end(&self, f: &mut FunctionBuilder) {
        self.own.merge(f, self.plan, self.table);
    }
}
