//! Groups rows and accumulates.
//!
//!   pipeline   … ──► [ keys, arguments ] ──► one table on the device ──► emit ──► next pipeline (averages, HAVING)
//!
//! NULL     NULL keys form one group; NULL arguments are skipped.
//! Order    of groups: not promised.
//! Memory   the table: direct-addressed where the keys' ranges allow, hashed otherwise.
//! Stands for a Partial/Final pair, whose intermediate state is DataFusion's private matter, or for a Single one. DISTINCT
//!          arguments beside others take two of these nodes: see [`Aggregation`].

pub mod describe;
mod finish;
pub mod lower;
mod moments;
mod ranked;
pub(crate) mod run;
pub mod sketch;

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
        let properties = crate::operator::properties(Arc::clone(&aggregation.schema), None);
        Self { aggregation: Arc::new(aggregation), input, properties }
    }

    /// What it computes.
    pub fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// Columns that it reads.
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

/// Expressions in EXPLAIN's words: `x@0 as y`, the name left out where it repeats the expression.
pub(crate) fn named(expressions: &[(Arc<dyn PhysicalExpr>, String)]) -> String {
    let one = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
        let text = expression.to_string();
        if &text == name { text } else { format!("{text} as {name}") }
    };
    expressions.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl DisplayAs for DeviceAggregateExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => write!(f, "{}", self.aggregation),
            _ => write!(f, "DeviceAggregateExec: {}", self.aggregation),
        }
    }
}

crate::operator::device_node!(DeviceAggregateExec, execute: refuse);
