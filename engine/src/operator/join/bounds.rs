//! Minimum and maximum of a build side's keys, and the resulting filter for scans of the probe side.
//!
//!   build side ─► least and greatest key ─┬─► number of codes: see [`table_spec`](super::lower::table_spec)
//!                                         └─► 10 <= o_custkey AND o_custkey <= 900 ─► other row groups are not read
//!
//! Only joins for which DataFusion has put such a filter into a scan have one. It only says that other keys match
//! nothing, so a run that began and failed leaves no wrong filter behind.
//! Waits    once for each join whose keys are measured.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use millpond_kernels::Rows;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::reduce::{RESULT_BYTES, Reduction, SCRATCH_BYTES, reduce};
use millpond_memory::Stream;

use crate::column::layout::read_array;
use crate::column::{ColumnInfo, Form};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::operator::join::DeviceJoinExec;
use crate::program::part::Part;
use crate::program::run::Run;

/// Bounds of a key.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// Position among the join's keys.
    pub key: usize,
    physical: Physical,
    data_type: DataType,
    /// Its values are the column's own, not codes.
    plain: bool,
    /// Minimum and maximum; `None` if all are NULL.
    pub range: Option<(i128, i128)>,
}

/// True if the filter of `join` is to be filled in.
pub(crate) fn pushes_bounds(run: &Run, build: usize, join: &DeviceJoinExec) -> bool {
    // If NULL equals NULL, a filter would drop the NULLs; a filter from one part of the keys would drop the rows of
    // the others.
    let holds = !join.nulls_equal() && run.parts(build) == 1;
    join.filter_of_scans().is_some() && holds && run.feeds()
}

/// Fills in the filter of `join` from the bounds of its build side's keys; `None` if that side has no rows.
pub(crate) fn push_bounds(join: &DeviceJoinExec, measured: Option<&[Measured]>) -> Result<(), Failure> {
    let Some(filter) = join.filter_of_scans() else { return Ok(()) };
    let condition = match measured {
        None => Some(lit(false)),
        Some(measured) => condition(join, measured)?,
    };
    if let Some(condition) = condition {
        filter.update(condition)?;
    }
    filter.mark_complete();
    Ok(())
}

/// The bounds of a build side's keys that are columns of integers or codes.
pub(crate) async fn measure(
    run: &Run,
    join: &DeviceJoinExec,
    columns: &[ColumnInfo],
    part: &Part,
    stream: &Stream,
) -> Result<Vec<Measured>, Failure> {
    let mut measured = Vec::new();
    let mut places = Vec::new();
    for (key, (build, _)) in join.on().iter().enumerate() {
        let Some(index) = build.downcast_ref::<Column>().map(Column::index) else { continue };
        let (Some(info), Some(column)) = (columns.get(index), part.column(index)) else { continue };
        let plain = match info.form {
            Form::Plain(ty) if ty.repr.is_integer() => true,
            Form::Codes(..) => false,
            _ => continue,
        };
        places.push(index);
        let data_type = info.data_type.clone();
        measured.push(Measured { key, physical: column.physical, data_type, plain, range: None });
    }
    if measured.is_empty() {
        return Ok(measured);
    }
    // One allocation: a result for each key, and the scratch space of the reduction.
    let each = RESULT_BYTES as usize;
    let results = (each * measured.len()).next_multiple_of(256);
    let bytes = results + SCRATCH_BYTES as usize;
    let (buffer, _promise) = run.context.memory.take(bytes, &run.context.tags.joins, stream)?;
    let scratch = buffer.view(results..bytes)?;
    let rows = Rows::try_from(&part.as_extent()?.rows)?;
    for (at, (index, one)) in places.iter().zip(&measured).enumerate() {
        let Some(column) = part.input(*index)? else { continue };
        let out = buffer.view(at * each..(at + 1) * each)?;
        let validity = column.validity.as_ref();
        reduce(&run.context.engine.images, &column.values, one.physical, validity, &rows, &out, &scratch, stream)?;
    }
    let results = buffer.view(0..each * measured.len())?.download_vec(stream, &run.context.engine.pinned)?.await?;
    for (one, bytes) in measured.iter_mut().zip(results.chunks(each)) {
        let Some(Reduction { count, min, max, .. }) = Reduction::from_bytes(bytes) else {
            return Err(EngineError::internal("a reduction has fewer bytes than it must").into());
        };
        one.range = (count > 0).then_some((min, max));
    }
    Ok(measured)
}

/// Condition that every matching key of the probe side satisfies.
fn condition(join: &DeviceJoinExec, measured: &[Measured]) -> Result<Option<Arc<dyn PhysicalExpr>>, Failure> {
    let mut condition: Option<Arc<dyn PhysicalExpr>> = None;
    for one in measured.iter().filter(|one| one.plain) {
        let Some((min, max)) = one.range else { return Ok(Some(lit(false))) };
        let (_, probe) = &join.on()[one.key];
        for (bound, op) in [(min, Operator::GtEq), (max, Operator::LtEq)] {
            let bytes = bound.to_le_bytes();
            let value = bytes.get(..one.physical.width() as usize).unwrap_or(&bytes);
            let array = read_array(&one.data_type, one.physical, 1, value, None, None)?;
            let bound = lit(ScalarValue::try_from_array(&array, 0)?);
            let own: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(Arc::clone(probe), op, bound));
            condition = Some(match condition {
                Some(before) => Arc::new(BinaryExpr::new(before, Operator::And, own)),
                None => own,
            });
        }
    }
    Ok(condition)
}
