//! The plan node of an aggregation on the device; a program runs it.

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::operator::aggregate::describe::Aggregation;

/// An aggregation on the device.
#[derive(Debug, Clone)]
pub struct DeviceAggregateExec {
    aggregation: Arc<Aggregation>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceAggregateExec {
    pub fn new(aggregation: Aggregation, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = crate::plan::node::properties(Arc::clone(&aggregation.schema), None);
        Self { aggregation: Arc::new(aggregation), input, properties }
    }

    /// The aggregation that it computes.
    pub fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// Number of columns that it reads.
    pub fn input_width(&self) -> usize {
        self.input.schema().fields().len()
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.aggregation.expressions()
    }
}

impl DisplayAs for DeviceAggregateExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "{}", self.aggregation),
            _ => write!(f, "DeviceAggregateExec: {}", self.aggregation),
        }
    }
}

crate::plan::node::device_node!(DeviceAggregateExec, execute: refuse);
