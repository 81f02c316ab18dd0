//! Leaves out the first rows, and stops after some: OFFSET and LIMIT.
//!
//!   each extent   materialised columns ─► how many rows? ─► all of them, or those between offset and limit
//!   enough        nothing more is read; at the top of a program rows are left out, and counted, as they leave
//!
//! Order      that of the input: over a sort the first rows are those of the order, elsewhere any.
//! Memory     the rows that are kept, and an extent's.
//! Waits      for the number of rows of each extent, unless it is at the top.
//! Stands for GlobalLimitExec, LocalLimitExec, and what stops by itself (`fetch`) below something that reads on.

mod lower;
mod run;

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::operator::limit::lower::LimitSink;
use crate::program::contract::Cut;
use crate::program::segments::{Open, Segments};

/// A limit on the device.
#[derive(Debug, Clone)]
pub struct DeviceLimitExec {
    skip: usize,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceLimitExec {
    /// Of the rows of `input`, which are `sorted`, those after the first `skip`, at most `fetch`.
    pub fn new(input: Arc<dyn ExecutionPlan>, skip: usize, fetch: Option<usize>, sorted: Option<LexOrdering>) -> Self {
        let properties = crate::operator::properties(input.schema(), sorted);
        Self { skip, fetch, input, properties }
    }

    /// Rows that are left out.
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// Rows that leave it, at most.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for DeviceLimitExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let fetch = self.fetch.map_or("None".to_string(), |fetch| fetch.to_string());
        match t {
            DisplayFormatType::TreeRender => write!(f, "skip={}\nlimit={fetch}", self.skip),
            _ => write!(f, "DeviceLimitExec: skip={}, fetch={fetch}", self.skip),
        }
    }
}

crate::operator::device_node!(DeviceLimitExec, execute: refuse);

/// How limits become sinks.
#[derive(Debug)]
pub(crate) struct Limit;

impl Cut for Limit {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let limit = node.downcast_ref::<DeviceLimitExec>()?;
        let open = into.open_input(node, false);
        Some(open.map(|open| {
            if top {
                // Rows are left out, and counted, as they leave.
                into.leave(limit.skip, limit.fetch);
                return open;
            }
            Open::reading(into.close(open, LimitSink { skip: limit.skip, fetch: limit.fetch }))
        }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceLimitExec>() && b.is::<DeviceLimitExec>()).then_some(false)
    }
}
