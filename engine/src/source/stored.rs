//! Stored columns of a scan, as a source.
//!
//!   View { rows, columns } ─► one extent of all rows ─► pipeline         no file is opened, nothing is uploaded
//!
//! Order    is that of the table.
//! Short    of device memory, the rows are halved repeatedly; text columns are processed as a whole.
//! Waits    only where the segment's sink waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, LookupInput};
use millpond_memory::Stream;

use crate::column::{DictionaryId, Form, uploaded_columns};
use crate::error::failure::Failure;
use crate::options::MAX_BATCH_ROWS;
use crate::profile::metric;
use crate::program::context::RunContext;
use crate::program::contract::{Opening, SourceFacts, SourceRun};
use crate::program::segment_run::SegmentRun;
use crate::program::tables::HostTable;
use crate::store::{ColumnForm, Scan, Store, StoredColumn, View};

/// Minimum rows of an extent.
const LEAST_ROWS: u64 = 1 << 12;

/// Stored columns in one attempt.
pub(super) struct StoredRun {
    view: View,
    schema: SchemaRef,
    metrics: ExecutionPlanMetricsSet,
}

/// Stored columns of the scan `plan`, if they are or can be stored on the device.
///
/// # Errors
/// If the device is lost.
pub(super) async fn stored(
    plan: &Arc<dyn ExecutionPlan>,
    metrics: &ExecutionPlanMetricsSet,
    attempt: &Opening<'_>,
) -> Result<Option<StoredRun>, Failure> {
    let Opening { context, needed, streams_out, piecewise } = attempt;
    if !context.options.cache.stores() || *piecewise {
        return Ok(None);
    }
    let Some(scan) = Scan::of(plan) else { return Ok(None) };
    let view = Store::of(&context.engine).view(&scan, context, needed).await?;
    let view = view.filter(|view| !(*streams_out && view.rows > MAX_BATCH_ROWS as u64));
    Ok(view.map(|view| StoredRun { view, schema: scan.schema, metrics: metrics.clone() }))
}

impl SourceRun for StoredRun {
    fn facts(&self, _wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts {
        let mut columns = uploaded_columns(&self.schema, None, define);
        let mut dictionaries = HashMap::new();
        for (index, (info, stored)) in columns.iter_mut().zip(&self.view.columns).enumerate() {
            let Some(stored) = stored else { continue };
            info.long = stored.about.long;
            info.form = match (&info.form, stored.about.form) {
                (Form::Plain(_), ColumnForm::Plain) => Form::Plain(stored.about.ty),
                (Form::Codes(_, id), ColumnForm::Codes) => {
                    dictionaries.extend(stored.about.dictionary.clone().map(|dictionary| (index, dictionary)));
                    Form::Codes(stored.about.ty, *id)
                }
                // The prepared program treats the column as text.
                (Form::Codes(ty, id), ColumnForm::Text) => Form::Codes(ty.nullable(stored.about.ty.nullable), *id),
                (form, _) => form.clone(),
            };
        }
        SourceFacts { columns, rows: self.view.rows, dictionaries }
    }

    fn texts(&self) -> Option<HashSet<usize>> {
        let is_text = |(index, column): (usize, &Option<Arc<StoredColumn>>)| {
            column.as_ref().filter(|column| column.about.form == ColumnForm::Text).map(|_| index)
        };
        Some(self.view.columns.iter().enumerate().filter_map(is_text).collect())
    }

    fn distinct(&self, column: usize) -> Option<u64> {
        self.view.columns.get(column)?.as_ref()?.about.different()
    }

    fn stamp(&self) -> u64 {
        self.view.stamp()
    }

    fn lookup(
        &self,
        column: usize,
        table: &HostTable<'_>,
        context: &RunContext,
        stream: &Stream,
    ) -> Result<Option<LookupInput>, Failure> {
        match self.view.columns.get(column) {
            Some(Some(column)) => Store::of(&context.engine).lookup(column, table, context, stream),
            _ => Ok(None),
        }
    }

    fn extents<'a>(&'a self, number: usize, to: &'a Arc<SegmentRun>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let (run, rows) = (&to.run, self.view.rows);
            MetricBuilder::new(&self.metrics).global_counter("output_rows").add(rows as usize);
            if rows == 0 {
                return Ok(());
            }
            let used = &run.prepared.used[number];
            let stream = run.context.engine.streams.take(&run.context.tags.extents)?;
            let mut whole = false;
            for (column, used) in self.view.columns.iter().zip(used) {
                if let (Some(column), true) = (column, used)
                    && column.about.form == ColumnForm::Text
                {
                    whole = true;
                    run.reached.keep(&column.input(0, rows)?.values, None);
                }
            }
            let (mut first, mut most) = (0, if whole { rows } else { rows.min(run.extent_rows() as u64) });
            while first < rows && !to.has_enough() {
                let some = most.min(rows - first);
                let column = |(column, used): (&Option<Arc<StoredColumn>>, &bool)| match (column, used) {
                    (Some(column), true) => column.input(first, some).map(Some),
                    _ => Ok(None),
                };
                let columns = self.view.columns.iter().zip(used).map(column);
                let columns: Vec<Option<ColumnInput>> = columns.collect::<Result<_, _>>()?;
                let extent = ExtentInput { rows: ExtentRows::Known(some), columns };
                match to.process(extent, &stream, true).await {
                    Ok(()) => first += some,
                    // A streaming run sends no row before its single extent is complete, so the whole attempt is
                    // repeated instead.
                    Err(failure) if failure.is_out_of_memory() && !whole && !run.streams_out() && some > LEAST_ROWS => {
                        most = (some / 2).next_multiple_of(256);
                        run.smaller_extents(most as usize);
                        continue;
                    }
                    Err(failure) => return Err(failure),
                }
                MetricBuilder::new(&self.metrics).global_counter(metric::EXTENTS).add(1);
            }
            Ok(())
        }
        .boxed()
    }
}
