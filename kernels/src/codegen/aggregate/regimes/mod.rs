//! The five regimes: where the words of a row's group are, and when they reach the table.
//!
//! ```text
//!            begin                          place of a row's words              end
//!   scalar   registers                      this thread's registers             fold of the block into the table
//!   private  bins per thread, cleared       this thread's bin, by code          fold of the block into the table
//!   block    a table per block, cleared     the block's record, by code         merge of the block's table
//!   direct   a copy of the table            the record in the table, by code    –
//!   hash     slots, limit, leftover rows    the slot of the keys                –
//! ```
//!
//! Seed     a group that exists without rows is inserted at the beginning, by one thread of the grid.
//! Shared   `end` of scalar, private and block waits for all threads of the block: all of them reach it.

mod block;
mod dense;
mod direct;
mod hash;
mod private;
mod scalar;

use millpond_ptx::ast::Type;
use millpond_ptx::build::{FunctionBuilder, Open, Reg};

use super::accumulate::Place;
use super::cells::AggregatePlan;
use crate::codegen::expr::Expressions;
use crate::codegen::ir::{AggregateSpec, PipelineSpec, Regime, Seed, SinkSpec};
use crate::codegen::load::RowLeaves;
use crate::codegen::params::{ParamList, Slot};
use crate::codegen::rows::Rows;
use crate::codegen::value::{CodegenError, Emit};

/// Code generation of an aggregating kernel, before its first row.
pub(super) struct Kernel<'k, 's> {
    pub(super) emit: Emit<'k>,
    pub(super) params: &'k mut ParamList,
    pub(super) rows: &'k mut Rows<'s>,
    pub(super) expressions: &'k mut Expressions<'s>,
    pub(super) spec: &'s PipelineSpec,
    pub(super) plan: &'s AggregatePlan,
    /// Address of the first record of the table (U64).
    pub(super) table: Reg,
}

impl Kernel<'_, '_> {
    /// Declares a parameter and reads it.
    fn read(&mut self, slot: Slot, ty: Type) -> Reg {
        let param = self.params.declare(self.emit.f, slot, ty);
        self.emit.f.load_param(&param)
    }
}

/// The code of one regime, after its parameters are read and its own words are cleared.
pub(super) trait RegimeCode {
    /// Opens a branch for the rows that this launch adds, if it leaves out others.
    fn skip(&self, _f: &mut FunctionBuilder, _row: Reg) -> Option<Open> {
        None
    }

    /// Finds the words of the current row's group. Branches for rows that have a group are opened, and added to `open`.
    ///
    /// # Errors
    /// Those of the keys' expressions.
    fn place(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
        row: Reg,
        open: &mut Vec<Open>,
    ) -> Result<Place, CodegenError>;

    /// Adds words that are not in the table yet to the table, after the last row.
    fn end(&self, _f: &mut FunctionBuilder) {}
}

/// Reads the parameters of the plan's regime, clears its words and inserts the seed.
///
/// # Errors
/// Those of the seed's expressions, and for a seed of an aggregation without keys.
pub(super) fn begin<'s>(kernel: Kernel<'_, 's>) -> Result<Box<dyn RegimeCode + 's>, CodegenError> {
    Ok(match kernel.plan.regime {
        Regime::Scalar => Box::new(scalar::ScalarCode::begin(kernel)?),
        Regime::Private => Box::new(private::Private::begin(kernel)?),
        Regime::Block => Box::new(block::Block::begin(kernel)?),
        Regime::Direct => Box::new(direct::Direct::begin(kernel)?),
        Regime::Hash => Box::new(hash::Hash::begin(kernel)?),
    })
}

impl<'s> Kernel<'_, 's> {
    /// The group that exists without rows.
    fn seed(&self) -> Option<&'s Seed> {
        match &self.spec.sink {
            SinkSpec::Aggregate(AggregateSpec { seed, .. }) => seed.as_ref(),
            _ => None,
        }
    }

    /// Emits `insert` for the first thread of the grid, if the condition of the seed holds. Rows of the group are added
    /// independently.
    fn plant(
        &mut self,
        seed: &Seed,
        insert: impl FnOnce(&mut Self) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        self.expressions.clear();
        let first = self.emit.f.open_if(self.rows.first_thread);
        let holds = self.expressions.truth(&mut self.emit, &mut self.rows.leaves, seed.when)?;
        let planted = self.emit.f.open_if(holds);
        insert(self)?;
        self.emit.f.close(planted);
        self.emit.f.close(first);
        self.expressions.clear();
        Ok(())
    }
}
