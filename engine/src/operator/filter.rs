//! Keeps the rows for which a predicate is true.
//!
//!   pipeline   … ──► [ load predicate columns ─ test ─ any row left? ] ──► later stages load only for survivors
//!
//! NULL     a NULL predicate drops its row, as in WHERE.
//! Order    not promised: feeders race. Over a sort the output is sorted too.
//! Memory   none of its own: it is a stage of the pipeline that contains it.
//! Waits    never.
//! Stands for FilterExec, with its projection and its limit; for a scan that filters, if its columns may be stored.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::cast::as_boolean_array;
use datafusion::error::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, split_conjunction};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Lowering};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::{Stage, ToSegments};
use crate::program::lower::SegmentLowering;
use crate::program::segments::{Open, Segments};

/// A filter on the device, with DataFusion's embedded projection and row limit.
#[derive(Debug, Clone)]
pub struct DeviceFilterExec {
    predicate: Arc<dyn PhysicalExpr>,
    projection: Option<Vec<usize>>,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceFilterExec {
    /// The device's form of `filter`, over `input`; `sorted` is the order that it keeps, if there is one.
    pub fn new(filter: &FilterExec, input: Arc<dyn ExecutionPlan>, sorted: Option<LexOrdering>) -> Self {
        let schema: SchemaRef = filter.schema();
        Self {
            predicate: Arc::clone(filter.predicate()),
            projection: filter.projection().as_ref().map(|p| p.to_vec()),
            fetch: ExecutionPlan::fetch(filter),
            input,
            properties: crate::plan::node::properties(schema, sorted),
        }
    }

    /// Removes the row limit.
    pub fn without_limit(self) -> Self {
        Self { fetch: None, ..self }
    }

    pub fn predicate(&self) -> &Arc<dyn PhysicalExpr> {
        &self.predicate
    }

    /// Input columns of the output, in order; all when `None`.
    pub fn projection(&self) -> Option<&[usize]> {
        self.projection.as_deref()
    }

    /// Number of rows that suffice.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![Arc::clone(&self.predicate)]
    }
}

impl DisplayAs for DeviceFilterExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if let DisplayFormatType::TreeRender = t {
            return write!(f, "predicate={}", self.predicate);
        }
        write!(f, "DeviceFilterExec: {}", self.predicate)?;
        if let Some(projection) = &self.projection {
            let schema = self.input.schema();
            let columns: Vec<String> =
                projection.iter().map(|index| format!("{}@{index}", schema.field(*index).name())).collect();
            write!(f, ", projection=[{}]", columns.join(", "))?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        Ok(())
    }
}

crate::plan::node::device_node!(DeviceFilterExec, execute: refuse);

impl DeviceOperator for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let Some(filter) = node.downcast_ref::<FilterExec>() else { return place_scan(node, to) };
        let placed =
            to.place(filter.input()).and_then(|child| to.unary(node, child, |input| judge(node, filter, input, to)));
        Some(placed)
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        (node.is::<FilterExec>() || node.is::<DeviceFilterExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceFilterExec>()
    }
}

/// Places a scan that filters: the device filters all of the scan's rows, if it can. `None` for other nodes.
fn place_scan(node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
    let apart = to.apart(node)?;
    let Some(filter) = apart.downcast_ref::<FilterExec>() else { return Some(to.place(&apart)) };
    let place = |child: Placed| match to.tree(&child).and_then(|input| judge(node, filter, &input, to)) {
        Ok(tree) => Placed::Device(tree),
        // The scan filters.
        Err(_) => Placed::Host { plan: Arc::clone(node), pending: vec![] },
    };
    Some(to.place(filter.input()).map(place))
}

/// The device's form of `filter`, which is `node`, over `input`.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    filter: &FilterExec,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    // Sorted rows stay sorted; a limit then keeps the first rows of the order.
    let kept = node.properties().output_ordering().filter(|_| input.sorted);
    let columns = columns(filter, &input.columns, &mut to.lowering())?;
    let mut device = DeviceFilterExec::new(filter, Arc::clone(&input.plan), kept.cloned());
    let needs_order = kept.is_some() || to.needs_order(node.as_ref());
    if needs_order {
        device = device.without_limit();
    }
    let tree = DeviceTree {
        plan: Arc::new(device),
        cpu: Arc::clone(node),
        columns,
        row_limit: node.fetch().filter(|_| !needs_order),
        sorted: kept.is_some(),
        aggregated: input.aggregated,
    };
    match kept {
        Some(_) => to.limit(tree, 0, node.fetch(), node),
        None => to.restore_order(node, tree),
    }
}

/// The output columns of a filter.
fn columns(
    filter: &FilterExec,
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    lowering.predicate(filter.predicate(), &scope)?;
    let kept: Vec<ColumnInfo> = match filter.projection() {
        Some(projection) => projection.iter().map(|index| input[*index].clone()).collect(),
        None => input.to_vec(),
    };
    for column in &kept {
        column.ty()?;
    }
    Ok(kept)
}

/// Filters: their placement, and their stages.
#[derive(Debug)]
pub(crate) struct Filter;

impl ToSegments for Filter {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let filter = node.downcast_ref::<DeviceFilterExec>()?;
        if top {
            into.leave(0, filter.row_limit());
        }
        let stage = FilterStage {
            predicate: Arc::clone(filter.predicate()),
            projection: filter.projection().map(<[usize]>::to_vec),
        };
        Some(into.open_input(node, false).map(|open| open.with(stage)))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<DeviceFilterExec>()?, b.downcast_ref::<DeviceFilterExec>()?);
        Some(a.predicate() == b.predicate() && a.projection() == b.projection() && a.row_limit() == b.row_limit())
    }
}

/// Keeps the rows for which a predicate is true, and selects columns.
#[derive(Debug)]
struct FilterStage {
    predicate: Arc<dyn PhysicalExpr>,
    projection: Option<Vec<usize>>,
}

impl Stage for FilterStage {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        segment.with_filters(|lowering, scope, filters| {
            // The parts of an AND are separate filters, so that a later one sees only the survivors.
            for part in split_conjunction(&self.predicate) {
                filters.push(lowering.predicate(part, scope)?);
            }
            Ok(())
        })?;
        if let Some(projection) = &self.projection {
            segment.scope = segment.scope.select(projection);
        }
        Ok(())
    }

    fn on_cpu(&self, batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        let keep = self.predicate.evaluate(batch)?.into_array(batch.num_rows())?;
        let kept = filter_record_batch(batch, as_boolean_array(&keep)?)?;
        Ok(match &self.projection {
            Some(projection) => kept.project(projection)?,
            None => kept,
        })
    }
}
