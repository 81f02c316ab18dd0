//! Rows of a pipeline: extents one after the other, strided over the grid's threads, through the filters.
//!
//! ```text
//!   Rows ─ each_extent ─► strided ─► at_row ─► open_filters ─► a sink's body ─► close_all
//!                            └ strided_ahead: loads several rows before it processes the first
//! ```
//!
//! Upstream  the control block of the kernel that wrote an extent holds the extent's row count and error word.
//! Order     any: sinks that need row order take tiles instead.

pub(crate) mod compact;
pub(crate) mod write;

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Compare, FunctionBuilder, ModuleBuilder, Open, Param, Reg};

use super::aggregate::prefetch::Prefetch;
use super::expr::Expressions;
use super::ir::{Extents, NodeId, PipelineSpec};
use super::load::RowLeaves;
use super::params::{ParamList, Slot};
use super::value::{CodegenError, Emit};
use crate::abi;

/// Common part of every `pipeline` kernel: parameters, leaves and the source of rows.
pub(crate) struct Rows<'a> {
    pub(crate) leaves: RowLeaves<'a>,
    pub(crate) control: Reg,
    pub(crate) source: Source,
    /// True in exactly one thread of the grid.
    pub(crate) first_thread: Reg,
}

pub(crate) enum Source {
    One { extent: Param },
    Many { extents: Reg, count: Reg },
}

impl<'a> Rows<'a> {
    pub(crate) fn new(
        spec: &'a PipelineSpec,
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        params: &mut ParamList,
    ) -> Result<Rows<'a>, CodegenError> {
        let source = match spec.extents {
            Extents::One => {
                let bytes = abi::extent_bytes(spec.columns.len()) as u32;
                Source::One { extent: params.declare_bytes(f, Slot::Extent, bytes) }
            }
            Extents::Many => {
                let extents = params.declare(f, Slot::Extents, Type::U64);
                let count = params.declare(f, Slot::NumExtents, Type::U32);
                Source::Many { extents: f.load_param(&extents), count: f.load_param(&count) }
            }
        };
        let control = params.declare(f, Slot::Control, Type::U64);
        let control = f.load_param(&control);
        let leaves = RowLeaves::new(spec, module, f, params, control)?;
        let thread = f.global_thread();
        let first_thread = f.setp(Compare::Eq, thread, 0u32);
        Ok(Rows { leaves, control, source, first_thread })
    }

    /// Emits `body` for each extent, with its row count (U32). The code of `body` is emitted once.
    pub(crate) fn each_extent(
        &mut self,
        f: &mut FunctionBuilder,
        body: impl FnOnce(&mut Self, &mut FunctionBuilder, Reg) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        match &self.source {
            Source::One { extent } => {
                let extent = extent.clone();
                let rows = self.rows(f, |f, at| f.load(Space::Param, Type::U64, extent.at(at as i64)), true);
                self.leaves.enter_only_extent(f, &extent);
                body(self, f, rows)
            }
            &Source::Many { extents, count } => {
                let width = abi::extent_bytes(self.leaves.num_columns()) as u32;
                f.for_(0u32, count, 1u32, |f, index| {
                    let descriptor = f.element(extents, index, width);
                    let rows = self.rows(f, |f, at| f.load_constant(Type::U64, descriptor.at(at as i64)), true);
                    self.leaves.enter_extent(f, descriptor);
                    body(self, f, rows)
                })
            }
        }
    }

    /// Row count of the extent (U32). With `take_error`, the first thread also takes over the error of the kernel that
    /// wrote it.
    pub(crate) fn rows(
        &mut self,
        f: &mut FunctionBuilder,
        mut word: impl FnMut(&mut FunctionBuilder, u64) -> Reg,
        take_error: bool,
    ) -> Reg {
        let rows = word(f, abi::EXTENT_ROWS);
        let source = word(f, abi::EXTENT_SOURCE);
        let has_source = f.setp(Compare::Ne, source, 0u64);
        f.if_(has_source, |f| {
            let count = f.load(Space::Global, Type::U64, source.at(abi::CONTROL_ROWS as i64));
            let count = f.min(count, rows);
            f.assign(rows, count);
            if take_error {
                f.if_(self.first_thread, |f| take_over_error(f, source, self.control));
            }
        });
        f.convert(Type::U32, rows)
    }
}

/// Copies the error word of one control block to another that has none. Exactly one thread must call it.
pub(crate) fn take_over_error(f: &mut FunctionBuilder, from: Reg, to: Reg) {
    let error = f.load(Space::Global, Type::B64, from.at(abi::CONTROL_ERROR as i64));
    let some = f.setp(Compare::Ne, error, 0u64);
    f.guarded(some, true, |f| {
        f.compare_exchange(Space::Global, Type::B64, to.at(abi::CONTROL_ERROR as i64), 0u64, error)
    });
}

/// Opens a branch for each filter, in order. Close the branches in reverse order.
pub(crate) fn open_filters(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    expressions: &mut Expressions<'_>,
    filters: &[NodeId],
) -> Result<Vec<Open>, CodegenError> {
    let mut open = Vec::new();
    for &filter in filters {
        let holds = expressions.truth(emit, leaves, filter)?;
        open.push(emit.f.open_if(holds));
    }
    Ok(open)
}

pub(crate) fn close_all(f: &mut FunctionBuilder, open: Vec<Open>) {
    for branch in open.into_iter().rev() {
        f.close(branch);
    }
}

/// Runs `body` for each row that passes the filters, one row per thread, in any order.
pub(crate) fn each_row(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    spec: &PipelineSpec,
    rows: &mut Rows<'_>,
    mut body: impl FnMut(&mut Emit<'_>, &mut RowLeaves<'_>, &mut Expressions<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    let mut expressions = Expressions::new(&spec.graph);
    let thread = f.global_thread();
    let step = f.grid_threads();
    rows.each_extent(f, |rows, f, extent_rows| {
        let mut emit = Emit { module, f };
        strided(&mut emit, thread, extent_rows, step, |emit, row| {
            expressions.clear();
            rows.leaves.at_row(emit.f, row);
            let open = open_filters(emit, &mut rows.leaves, &mut expressions, &spec.filters)?;
            body(emit, &mut rows.leaves, &mut expressions, row)?;
            close_all(emit.f, open);
            Ok(())
        })
    })
}

/// Runs `body` for `start`, `start + step`, … below `end`.
pub(crate) fn strided(
    emit: &mut Emit<'_>,
    start: Reg,
    end: Reg,
    step: Reg,
    body: impl FnOnce(&mut Emit<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    let module = &mut *emit.module;
    emit.f.for_(start, end, step, |f, row| body(&mut Emit { module, f }, row))
}

/// As [`strided`], several rows at a time: first loads all of them, then processes them one after the other.
pub(crate) fn strided_ahead(
    emit: &mut Emit<'_>,
    leaves: &mut RowLeaves<'_>,
    start: Reg,
    end: Reg,
    step: Reg,
    ahead: &Prefetch,
    add_row: &mut dyn FnMut(&mut Emit<'_>, &mut RowLeaves<'_>, Reg) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    // Rows past the end load the last row and are skipped.
    let last = emit.f.sub(end, 1u32);
    let turn = emit.f.mul(step, ahead.rows);
    strided(emit, start, end, turn, |emit, first| {
        let mut loaded = Vec::new();
        let mut row = first;
        for turn in 0..ahead.rows {
            let mut exists = None;
            let mut number = row;
            if turn > 0 {
                row = emit.f.add(row, step);
                exists = Some(emit.f.setp(Compare::Lt, row, end));
                number = emit.f.min(row, last);
            }
            loaded.push((exists, number, leaves.load_row(emit, number, &ahead.columns)?));
        }
        for (exists, number, row) in loaded {
            let open = exists.map(|exists| emit.f.open_if(exists));
            leaves.enter_row(row);
            add_row(emit, leaves, number)?;
            if let Some(open) = open {
                emit.f.close(open);
            }
        }
        Ok(())
    })
}
