//! Tells scans of a probe side what is known of the keys that they are joined with.
//!
//!   build side ─► least and greatest key ─► 10 <= o_custkey AND o_custkey <= 900 ─► row groups without such keys are not read
//!
//! Only joins for which DataFusion has put such a filter into a scan. It says no more than that other keys match nothing, so a
//! run that began and failed leaves nothing behind that is wrong.
//! Waits    once for each such join.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use millpond_kernels::Rows;
use millpond_kernels::reduce::{RESULT_BYTES, Reduction, SCRATCH_BYTES, reduce};
use millpond_memory::{DeviceBuffer, Stream};

use super::failure::Failure;
use super::part::Part;
use super::run::Run;
use crate::column::{ColumnInfo, Form};
use crate::exec::DeviceJoinExec;
use crate::extent::read_array;

impl Run {
    /// Fills in the filter of `join`, whose build side is `part`, if it has one.
    pub async fn tell_scans(
        &self,
        join: &DeviceJoinExec,
        columns: &[ColumnInfo],
        part: Option<&Part>,
        stream: &Stream,
    ) -> Result<(), Failure> {
        // Where NULL equals NULL, a filter would lose the NULLs.
        let Some(filter) = join.filter_of_scans().filter(|_| !join.nulls_equal()) else { return Ok(()) };
        let condition = match part {
            None => Some(lit(false)),
            Some(part) => self.bounds(join, columns, part, stream).await?,
        };
        if let Some(condition) = condition {
            filter.update(condition)?;
        }
        filter.mark_complete();
        Ok(())
    }

    /// What every key of the probe side that matches anything fulfils.
    async fn bounds(
        &self,
        join: &DeviceJoinExec,
        columns: &[ColumnInfo],
        part: &Part,
        stream: &Stream,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>, Failure> {
        let mut keys = Vec::new();
        for (build, probe) in join.on() {
            let Some(index) = build.downcast_ref::<Column>().map(Column::index) else { continue };
            let (Some(info), Some(column)) = (columns.get(index), part.column(index)) else { continue };
            if matches!(info.form, Form::Plain(ty) if ty.repr.is_integer()) {
                keys.push((index, column.physical, info.data_type.clone(), probe));
            }
        }
        if keys.is_empty() {
            return Ok(None);
        }
        // One allocation: a result for each key, and what reducing takes.
        let each = RESULT_BYTES as usize;
        let results = (each * keys.len()).next_multiple_of(256);
        let bytes = results + SCRATCH_BYTES as usize;
        let _promise = self.promise(bytes)?;
        let buffer = DeviceBuffer::new(bytes, &stream.with_scope(&self.tags.joins), &self.engine.pool)?;
        let scratch = buffer.view(results..bytes)?;
        let rows = Rows::try_from(&part.as_extent()?.rows)?;
        for (at, (index, physical, ..)) in keys.iter().enumerate() {
            let Some(column) = part.input(*index)? else { continue };
            let out = buffer.view(at * each..(at + 1) * each)?;
            let validity = column.validity.as_ref();
            reduce(&self.engine.images, &column.values, *physical, validity, &rows, &out, &scratch, stream)?;
        }
        let results = buffer.view(0..each * keys.len())?.download_vec(stream, &self.engine.pinned)?.await?;
        let mut condition: Option<Arc<dyn PhysicalExpr>> = None;
        for ((_, physical, data_type, probe), bytes) in keys.iter().zip(results.chunks(each)) {
            let Some(Reduction::Integers { count, min, max, .. }) = Reduction::from_bytes(bytes, *physical) else {
                return Ok(None);
            };
            if count == 0 {
                return Ok(Some(lit(false)));
            }
            for (bound, op) in [(min, Operator::GtEq), (max, Operator::LtEq)] {
                let bytes = bound.to_le_bytes();
                let value = bytes.get(..physical.width() as usize).unwrap_or(&bytes);
                let array = read_array(data_type, *physical, 1, value, None, None)?;
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
}
