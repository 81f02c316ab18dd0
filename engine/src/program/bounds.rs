//! Tells scans of a probe side what is known of the keys that they are joined with.
//!
//!   build side ─► least and greatest key ─► 10 <= o_custkey AND o_custkey <= 900 ─► row groups without such keys are not read
//!
//! Only joins for which DataFusion has put such a filter into a scan. It says no more than that other keys match nothing, so a
//! run that began and failed leaves nothing behind that is wrong.
//! Waits    once for each such join.

use std::sync::Arc;

use datafusion::arrow::array::Array;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, lit};
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Extents, LookupSpec, Physical, PipelineSpec, SinkSpec,
};
use millpond_kernels::pipeline::Input;
use millpond_memory::{DeviceBuffer, Stream};

use super::failure::{Failure, control_words, flagged};
use super::lower::column_spec;
use super::part::Part;
use super::run::Run;
use crate::column::ColumnInfo;
use crate::exec::DeviceJoinExec;
use crate::expr::Lowering;
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
        let mut definitions = self.tables().definitions.clone();
        let mut lowering = Lowering::new(columns, &mut definitions);
        let scope = lowering.scope();
        let mut spec = AggregateSpec::new(vec![]);
        let mut keys = Vec::new();
        for (build, probe) in join.on() {
            let value = lowering.lower(build, &scope)?;
            if value.dictionary.is_some() || !lowering.graph.ty(value.node).repr.is_integer() {
                continue;
            }
            let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter: None });
            let (least, greatest) = (add(Aggregate::Min(value.node)), add(Aggregate::Max(value.node)));
            keys.push((probe, value.data_type, least, greatest));
        }
        let Lowering { graph, literals, lookups, .. } = lowering;
        if keys.is_empty() || !lookups.is_empty() {
            return Ok(None);
        }
        let (literal_types, literals): (Vec<_>, Vec<_>) = literals.into_iter().unzip();
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: columns.iter().map(|column| column_spec(column, false)).collect(),
            literals: literal_types,
            lookups: Vec::<LookupSpec>::new(),
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Aggregate(spec),
        };
        let pipeline = self.pipeline(&spec)?;
        let extent = part.as_extent()?;
        let state_layout = pipeline.state_layout(1)?;
        let layout = pipeline.emit_layout(&state_layout, 1)?;
        let _promise = self.promise(state_layout.bytes + layout.bytes)?;
        let scoped = stream.with_scope(&self.tags.joins);
        let state = DeviceBuffer::zeroed(state_layout.bytes, &scoped, &self.engine.pool)?;
        let input = Input { extents: std::slice::from_ref(&extent), literals: &literals, ..Input::default() };
        pipeline.accumulate(input, &state, &state_layout, stream)?;
        let output = DeviceBuffer::zeroed(layout.bytes, &scoped, &self.engine.pool)?;
        pipeline.emit(&state, &state_layout, &output, &layout, stream)?;
        self.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bytes = output.as_view().download_vec(stream, &self.engine.pinned)?.await?;
        let (error, _) = control_words(&bytes)?;
        flagged(error)?;
        let mut condition: Option<Arc<dyn PhysicalExpr>> = None;
        for (probe, data_type, least, greatest) in keys {
            for (at, op) in [(least, Operator::GtEq), (greatest, Operator::LtEq)] {
                let column = &layout.columns[at];
                let physical: Physical = column.physical;
                let validity = column.validity.clone().and_then(|range| bytes.get(range));
                let values = bytes.get(column.values.clone()).unwrap_or(&[]);
                let array = read_array(&data_type, physical, 1, values, validity, None)?;
                if array.is_null(0) {
                    return Ok(Some(lit(false)));
                }
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
