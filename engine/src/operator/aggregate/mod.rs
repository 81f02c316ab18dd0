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

use crate::error::EngineError;
use crate::operator::aggregate::describe::{Aggregation, Call};
use crate::operator::aggregate::lower::{AggregateSink, FinishGroups, RankSink, RankedRows};
use crate::program::contract::Cut;
use crate::program::segments::{Open, Segments};

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

/// How aggregations become segments: one that ends in a table, which another one begins with; before them, where values are looked
/// up by their place in an order, one that puts the rows in it.
#[derive(Debug)]
pub(crate) struct Aggregate;

impl Cut for Aggregate {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let aggregate = Arc::new(node.downcast_ref::<DeviceAggregateExec>()?.clone());
        Some(into.open_input(node, false).map(|mut open| {
            let ranks = aggregate.aggregation().ranks();
            if ranks {
                let ranked = into.close(open, RankSink(Arc::clone(&aggregate)));
                open = Open::reading(ranked).with(RankedRows(Arc::clone(&aggregate)));
            }
            let groups = into.close(open, AggregateSink { node: Arc::clone(&aggregate), ranks });
            let finished = Open::reading(groups).with(FinishGroups(aggregate));
            into.share(node, &finished);
            finished
        }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<DeviceAggregateExec>()?, b.downcast_ref::<DeviceAggregateExec>()?);
        Some(same_aggregation(a.aggregation(), b.aggregation()))
    }
}

fn same_aggregation(a: &Aggregation, b: &Aggregation) -> bool {
    let variants = a.variants.len() == b.variants.len()
        && a.variants.iter().zip(&b.variants).all(|(a, b)| a.absent == b.absent && a.filter == b.filter);
    let calls = a.calls.len() == b.calls.len() && a.calls.iter().zip(&b.calls).all(|(a, b)| same_call(a, b));
    let rest = (a.arguments, a.exact_floats, &a.number) == (b.arguments, b.exact_floats, &b.number);
    a.keys == b.keys && variants && calls && rest
}

fn same_call(a: &Call, b: &Call) -> bool {
    let marks = |call: &Call| (call.taken, call.function.is_distinct(), call.function.ignore_nulls());
    a.function == b.function
        && a.function.order_bys() == b.function.order_bys()
        && marks(a) == marks(b)
        && a.arguments == b.arguments
        && a.filter == b.filter
        && a.among == b.among
        && a.percentile == b.percentile
        && a.sketch == b.sketch
}
