//! Sorts rows, and keeps the first of them when only those are asked for.
//!
//!   each extent   materialised columns ──► its first rows, where only those are wanted
//!   all extents   together ──► row numbers sorted by key (radix sort, or the first few in one launch) ──► gather
//!
//! NULL     first or last, as each key says; floats in total order, from -NaN to NaN.
//! Order    as sorted; ties in no particular order.
//! Memory   the materialised input, once more as one, once more when gathered, and up to 24 bytes a row while it is sorted. Under a
//!          limit up to 1,024 the input is not materialised, but some thousands of rows of it at a time (see `top`).
//! Limit    exact: what reads on sees the first rows alone.

pub(crate) mod lower;
pub(crate) mod run;
mod top;

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::operator::sort::lower::SortSink;
use crate::program::contract::Cut;
use crate::program::segments::{Open, Segments};

/// A sort on the device.
#[derive(Debug, Clone)]
pub struct DeviceSortExec {
    order: LexOrdering,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceSortExec {
    /// The device's form of `sort`, over `input`, giving at most `fetch` rows.
    pub fn new(sort: &SortExec, fetch: Option<usize>, input: Arc<dyn ExecutionPlan>) -> Self {
        let order = sort.expr().clone();
        let properties = crate::operator::properties(sort.schema(), Some(order.clone()));
        Self { order, fetch, input, properties }
    }

    pub fn order(&self) -> &LexOrdering {
        &self.order
    }

    /// Rows that leave the sort, at most.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.order.iter().map(|e| Arc::clone(&e.expr)).collect()
    }
}

impl DisplayAs for DeviceSortExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if let DisplayFormatType::TreeRender = t {
            return write!(f, "{}", self.order);
        }
        match self.fetch {
            Some(fetch) => write!(f, "DeviceSortExec: TopK(fetch={fetch}), expr=[{}]", self.order),
            None => write!(f, "DeviceSortExec: expr=[{}]", self.order),
        }
    }
}

crate::operator::device_node!(DeviceSortExec, execute: refuse);

/// How sorts become sinks.
#[derive(Debug)]
pub(crate) struct Sort;

impl Cut for Sort {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let sort = node.downcast_ref::<DeviceSortExec>()?;
        if top {
            into.leave(0, sort.row_limit());
        }
        let sink = SortSink { order: sort.order().clone(), fetch: sort.row_limit() };
        Some(into.open_input(node, false).map(|open| Open::reading(into.close(open, sink))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceSortExec>() && b.is::<DeviceSortExec>()).then_some(false)
    }
}
