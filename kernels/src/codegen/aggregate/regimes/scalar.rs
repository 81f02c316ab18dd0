//! One group: in registers of each thread if they are few, else in the table.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{FunctionBuilder, Open, Reg};

use super::{Kernel, RegimeCode};
use crate::codegen::aggregate::accumulate::{BIN_WORD_STRIDE, Place, word_type};
use crate::codegen::aggregate::cells::AggregatePlan;
use crate::codegen::aggregate::fold::{fold, zero};
use crate::codegen::expr::Expressions;
use crate::codegen::load::RowLeaves;
use crate::codegen::rows::compact::shared_address;
use crate::codegen::value::{CodegenError, Emit};

pub(super) struct ScalarCode<'s> {
    plan: &'s AggregatePlan,
    /// Address of the only record (U64).
    table: Reg,
    threads: Option<ThreadWords>,
}

/// Words of a thread in registers, initially "nothing yet", and the shared memory in which a block folds them.
struct ThreadWords {
    registers: Vec<Reg>,
    /// Shared address of the block's first bin, and of this thread's (U32).
    bins: Reg,
    own: Reg,
    /// Number of groups (U32): one.
    groups: Reg,
}

impl<'s> ScalarCode<'s> {
    pub(super) fn begin(mut kernel: Kernel<'_, 's>) -> Result<ScalarCode<'s>, CodegenError> {
        if kernel.seed().is_some() {
            return Err(CodegenError::Malformed {
                what: "a seed".into(),
                why: "without keys the one group is always there".into(),
            });
        }
        let threads = kernel.plan.in_registers().then(|| ThreadWords::begin(&mut kernel));
        Ok(ScalarCode { plan: kernel.plan, table: kernel.table, threads })
    }
}

impl ThreadWords {
    fn begin(kernel: &mut Kernel<'_, '_>) -> ThreadWords {
        let symbol = kernel.emit.module.dynamic_shared();
        let f = &mut *kernel.emit.f;
        let bins = shared_address(f, &symbol);
        let groups = f.copy(Type::U32, 1u32);
        let mut registers = Vec::new();
        for cell in &kernel.plan.cells {
            for _ in 0..cell.op.thread_words() {
                registers.push(zero(f, word_type(cell.op)));
            }
        }
        let thread = f.thread_index();
        let own = f.mad(thread, 8u32, bins);
        ThreadWords { registers, bins, own, groups }
    }
}

impl RegimeCode for ScalarCode<'_> {
    fn place(
        &self,
        _emit: &mut Emit<'_>,
        _leaves: &mut RowLeaves<'_>,
        _expressions: &mut Expressions<'_>,
        _row: Reg,
        _open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError> {
        Ok(match &self.threads {
            Some(threads) => Place::Registers(threads.registers.clone(), self.table),
            None => Place::Table(self.table),
        })
    }

    fn end(&self, f: &mut FunctionBuilder) {
        let Some(threads) = &self.threads else { return };
        for (word, register) in threads.registers.iter().enumerate() {
            f.store(Space::Shared, register.ty(), threads.own.at(word as i64 * BIN_WORD_STRIDE), *register);
        }
        fold(f, self.plan, threads.bins, threads.groups, self.table);
    }
}
