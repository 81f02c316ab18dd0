//! Kernels that write rows, insert them into join tables, or mark them.
//!
//! ```text
//!   without filters   row i ─► output row i                               dense
//!   with filters      tiles by ticket, kept rows compacted, in order      compact
//!   tables, marks     rows in any order
//! ```

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, ModuleBuilder, Param, Reg};

use super::super::expr::Expressions;
use super::super::ir::{NodeId, PipelineSpec, SinkSpec, TableSpec, Ty};
use super::super::join::table::TableBuild;
use super::super::load::RowLeaves;
use super::super::params::{ParamList, Slot};
use super::super::rows::compact::Compaction;
use super::super::rows::write::Outputs;
use super::super::rows::{Rows, Source, close_all, each_row, open_filters, take_over_error};
use super::super::value::{CodegenError, Emit};
use crate::abi;
use crate::tune;

/// Writes the kernel that writes rows to dense columns.
pub(super) fn materialise_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    outputs: &[NodeId],
) -> Result<(FunctionBuilder, ParamList, bool), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    let compacts = !spec.filters.is_empty();
    f.max_threads(if compacts { tune::COMPACT_THREADS } else { tune::DENSE_THREADS });
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let types: Vec<Ty> = outputs.iter().map(|&node| spec.graph.ty(node)).collect();
    let columns = Outputs::new(f, &mut params, rows.control, &types);
    let marks = match &spec.sink {
        SinkSpec::MaterialiseAndMark { row, .. } => {
            let marks = params.declare(f, Slot::Marks, Type::U64);
            Some(Marks::new(f, &marks, *row))
        }
        _ => None,
    };
    let mut expressions = Expressions::new(&spec.graph);
    if compacts {
        let num_tiles = params.declare(f, Slot::NumTiles, Type::U32);
        let num_tiles = f.load_param(&num_tiles);
        let room = params.declare(f, Slot::Room, Type::U64);
        let room = f.load_param(&room);
        let sizes = (num_tiles, room);
        compact_rows(module, f, spec, outputs, &mut rows, &columns, &marks, &mut expressions, sizes)?;
    } else {
        dense_rows(module, f, outputs, &mut rows, &columns, &marks, &mut expressions)?;
    }
    Ok((kernel, params, compacts))
}

/// Takes tiles by ticket and compacts the rows that pass the filters. The sizes are the number of tiles and the rows
/// that fit the output.
#[expect(clippy::too_many_arguments, reason = "the parts of one kernel, each built by its own module")]
fn compact_rows(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    spec: &PipelineSpec,
    outputs: &[NodeId],
    rows: &mut Rows<'_>,
    columns: &Outputs,
    marks: &Option<Marks>,
    expressions: &mut Expressions<'_>,
    (num_tiles, room): (Reg, Reg),
) -> Result<(), CodegenError> {
    let compaction = Compaction::new(module, f, rows.control, num_tiles, Some(room), columns.has_flags());
    // One extent: addresses and row count are known before the loop. Many extents: the block advances through them with
    // its tiles.
    let mut one_rows = None;
    let cursor = match &rows.source {
        Source::One { extent } => {
            let extent = extent.clone();
            one_rows = Some(rows.rows(f, |f, at| f.load(Space::Param, Type::U64, extent.at(at as i64)), true));
            rows.leaves.enter_only_extent(f, &extent);
            None
        }
        &Source::Many { extents, count } => {
            let width = abi::extent_bytes(rows.leaves.num_columns()) as u32;
            // Take over the errors of all kernels that wrote an extent, once.
            f.if_(rows.first_thread, |f| {
                f.for_(0u32, count, 1u32, |f, index| {
                    let descriptor = f.element(extents, index, width);
                    let source = f.load_constant(Type::U64, descriptor.at(abi::EXTENT_SOURCE as i64));
                    let has_source = f.setp(Compare::Ne, source, 0u64);
                    f.if_(has_source, |f| take_over_error(f, source, rows.control));
                });
            });
            Some((f.copy(Type::U64, extents), f.copy(Type::U32, 0u32), width))
        }
    };
    f.loop_(|f| {
        let tile = compaction.next_tile(f);
        let (extent_rows, in_extent) = match (cursor, one_rows) {
            (Some((descriptor, first_tile, width)), _) => {
                // Advance to the extent that contains the tile.
                f.loop_(|f| {
                    let upper = f.load_constant(Type::U64, descriptor.at(abi::EXTENT_ROWS as i64));
                    let upper = f.convert(Type::U32, upper);
                    let tiles = f.add(upper, tune::COMPACT_THREADS - 1);
                    let tiles = f.shr(tiles, tune::COMPACT_THREADS.trailing_zeros());
                    let end = f.add(first_tile, tiles);
                    let here = f.setp(Compare::Lt, tile, end);
                    f.break_if(here);
                    f.assign(first_tile, end);
                    let next = f.add(descriptor, width as u64);
                    f.assign(descriptor, next);
                });
                let extent_rows = rows.rows(f, |f, at| f.load_constant(Type::U64, descriptor.at(at as i64)), false);
                rows.leaves.enter_extent(f, descriptor);
                (extent_rows, f.sub(tile, first_tile))
            }
            (None, Some(extent_rows)) => (extent_rows, tile),
            (None, None) => unreachable!("one extent has its rows"),
        };
        let row = f.mad(in_extent, tune::COMPACT_THREADS, compaction.thread);
        let keep = f.constant_pred(false);
        expressions.clear();
        let exists = f.setp(Compare::Lt, row, extent_rows);
        let row_open = f.open_if(exists);
        rows.leaves.at_row(f, row);
        let mut emit = Emit { module, f };
        let open = open_filters(&mut emit, &mut rows.leaves, expressions, &spec.filters)?;
        emit.f.assign_pred(keep, true);
        close_all(emit.f, open);
        emit.f.close(row_open);
        // Registers set by the filters stay valid: a kept row has passed through all of them.
        let places = compaction.place(emit.f, tile, keep);
        let flags = columns.flags(emit.f);
        let kept = emit.f.open_if(places.kept);
        for (i, &output) in outputs.iter().enumerate() {
            let value = expressions.stored(&mut emit, &mut rows.leaves, output)?;
            columns.store(emit.f, i, value, places.index, &flags);
        }
        if let Some(marks) = marks {
            marks.set(&mut emit, &mut rows.leaves, expressions)?;
        }
        emit.f.close(kept);
        columns.write_flags(emit.f, &compaction, &places, &flags);
        Ok(())
    })
}

/// Writes every row at its own index.
fn dense_rows(
    module: &mut ModuleBuilder,
    f: &mut FunctionBuilder,
    outputs: &[NodeId],
    rows: &mut Rows<'_>,
    columns: &Outputs,
    marks: &Option<Marks>,
    expressions: &mut Expressions<'_>,
) -> Result<(), CodegenError> {
    let first_row = f.copy(Type::U64, 0u64);
    let thread = f.global_thread();
    let lane = f.and(thread, 31u32);
    let first_lane = f.setp(Compare::Eq, lane, 0u32);
    let warp_start = f.sub(thread, lane);
    let step = f.grid_threads();
    rows.each_extent(f, |rows, f, extent_rows| {
        // A warp stays converged, since it writes bits together.
        f.for_(warp_start, extent_rows, step, |f, start| {
            let row = f.add(start, lane);
            let flags = columns.flags(f);
            expressions.clear();
            let exists = f.setp(Compare::Lt, row, extent_rows);
            let open = f.open_if(exists);
            rows.leaves.at_row(f, row);
            let wide = f.convert(Type::U64, row);
            let index = f.add(first_row, wide);
            let mut emit = Emit { module, f };
            for (i, &output) in outputs.iter().enumerate() {
                let value = expressions.stored(&mut emit, &mut rows.leaves, output)?;
                columns.store(emit.f, i, value, index, &flags);
            }
            if let Some(marks) = marks {
                marks.set(&mut emit, &mut rows.leaves, expressions)?;
            }
            emit.f.close(open);
            if columns.has_flags() {
                let wide = emit.f.convert(Type::U64, start);
                let first = emit.f.add(first_row, wide);
                columns.write_dense_flags(emit.f, first, first_lane, &flags);
            }
            Ok(())
        })?;
        let wide = f.convert(Type::U64, extent_rows);
        let next = f.add(first_row, wide);
        f.assign(first_row, next);
        Ok(())
    })?;
    let count = rows.control.at(abi::CONTROL_ROWS as i64);
    f.guarded(rows.first_thread, true, |f| f.store(Space::Global, Type::U64, count, first_row));
    Ok(())
}

/// Writes the kernel that inserts the keys of rows into a join table.
pub(super) fn table_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    table: &TableSpec,
    keys: &[NodeId],
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::DENSE_THREADS);
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let build = TableBuild::new(module, f, &mut params, table, rows.control)?;
    each_row(module, f, spec, &mut rows, |emit, leaves, expressions, row| {
        build.add_row(emit, leaves, expressions, keys, row)
    })?;
    Ok((kernel, params))
}

/// Writes the kernel that sets the bits of rows.
pub(super) fn mark_kernel(
    module: &mut ModuleBuilder,
    spec: &PipelineSpec,
    marked: NodeId,
) -> Result<(FunctionBuilder, ParamList), CodegenError> {
    let mut kernel = FunctionBuilder::kernel("pipeline");
    let f = &mut kernel;
    let mut params = ParamList::default();
    f.max_threads(tune::DENSE_THREADS);
    let mut rows = Rows::new(spec, module, f, &mut params)?;
    let marks = Marks { bits: f.add(rows.control, abi::MARK_BITS), row: marked };
    each_row(module, f, spec, &mut rows, |emit, leaves, expressions, _| marks.set(emit, leaves, expressions))?;
    Ok((kernel, params))
}

/// Bitmap of marked rows.
struct Marks {
    /// Address of the bitmap (U64).
    bits: Reg,
    /// Node with the number of the row to mark.
    row: NodeId,
}

impl Marks {
    fn new(f: &mut FunctionBuilder, marks: &Param, row: NodeId) -> Marks {
        let marks = f.load_param(marks);
        Marks { bits: f.add(marks, abi::MARK_BITS), row }
    }

    /// Sets the bit of the current row's mark, if any.
    fn set(
        &self,
        emit: &mut Emit<'_>,
        leaves: &mut RowLeaves<'_>,
        expressions: &mut Expressions<'_>,
    ) -> Result<(), CodegenError> {
        let value = expressions.value(emit, leaves, self.row)?;
        let f = &mut *emit.f;
        let open = value.valid.map(|valid| f.open_if(valid));
        let row = value.low.view(Type::U32);
        let word = f.shr(row, 5);
        let at = f.element(self.bits, word, 4);
        let bit = f.and(row, 31u32);
        let one = f.copy(Type::U32, 1u32);
        let bit = f.shl(one, bit);
        f.reduce(Atomic::Or, Space::Global, Type::B32, at, bit);
        if let Some(open) = open {
            f.close(open);
        }
        Ok(())
    }
}
