//! The kernel that adds rows to groups. Each regime keeps the words of a group in another place.
//!
//! ```text
//!   row ─ filters ─► place: registers │ thread's bins │ block's table │ record by code │ slot by hash ─► accumulate
//!
//!   cells ─ keys ─ encode ─ accumulate ─ exact │ first │ runs    words of a row, and how they are combined
//!   regimes ─ fold │ block_table │ hash_table                    where they are combined
//!   emit                                                         a table of groups to dense columns
//! ```
//!
//! Ahead  several rows of a thread are loaded before the first is processed, so that enough bytes are in flight.
//!        Columns that are only needed by rows that pass several conditions are loaded late.

mod accumulate;
mod block_table;
pub(crate) mod cells;
pub(crate) mod emit;
mod encode;
mod exact;
mod first;
mod fold;
mod hash_table;
pub(crate) mod keys;
pub(crate) mod prefetch;
mod regimes;
mod runs;

use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg};

use super::expr::Expressions;
use super::ir::PipelineSpec;
use super::load::RowLeaves;
use super::params::ParamList;
use super::rows::{Rows, close_all, open_filters, strided, strided_ahead};
use super::value::{CodegenError, Emit};
use crate::abi;
use cells::AggregatePlan;
use prefetch::Prefetch;

/// Writes the kernel that adds rows to groups.
pub(super) fn aggregate_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    plan: &AggregatePlan,
    ahead: &Prefetch,
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(plan.threads());
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let mut expressions = Expressions::new(&spec.graph);
    let table = f.add(rows.control, abi::CONTROL_BYTES);
    let regime = regimes::begin(regimes::Kernel {
        emit: Emit { module: &mut *module, f: &mut *f },
        params: &mut params,
        rows: &mut rows,
        expressions: &mut expressions,
        spec,
        plan,
        table,
    })?;
    let thread = f.global_thread();
    let step = f.grid_threads();
    let mut add_row = |emit: &mut Emit<'_>, leaves: &mut RowLeaves<'_>, row: Reg| -> Result<(), CodegenError> {
        expressions.clear();
        let skipped = regime.skip(emit.f, row);
        let mut open = open_filters(emit, leaves, &mut expressions, &spec.filters)?;
        let place = regime.place(emit, leaves, &mut expressions, row, &mut open)?;
        accumulate::accumulate(emit, leaves, &mut expressions, plan, &place)?;
        close_all(emit.f, open);
        close_all(emit.f, skipped.into_iter().collect());
        Ok(())
    };
    rows.each_extent(f, |rows, f, extent_rows| {
        let mut emit = Emit { module, f };
        if ahead.rows == 1 {
            strided(&mut emit, thread, extent_rows, step, |emit, row| {
                rows.leaves.at_row(emit.f, row);
                add_row(emit, &mut rows.leaves, row)
            })
        } else {
            strided_ahead(&mut emit, &mut rows.leaves, thread, extent_rows, step, ahead, &mut add_row)
        }
    })?;
    regime.end(f);
    Ok((kernel, params))
}
