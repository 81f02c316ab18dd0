//! Groups rows and accumulates.
//!
//!   pipeline   … ──► [ keys, arguments ] ──► one table on the device ──► emit ──► next pipeline (averages, HAVING)
//!
//! NULL     NULL keys form one group; NULL arguments are skipped.
//! Order    of groups: not promised.
//! Memory   the table: direct-addressed where the keys' ranges allow, hashed otherwise.
//! Stands for a Partial/Final pair, whose intermediate state is DataFusion's private matter, or for a Single one.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// An aggregation on the device.
#[derive(Debug, Clone)]
pub struct DeviceAggregateExec {
    groups: Vec<(Arc<dyn PhysicalExpr>, String)>,
    aggregates: Vec<Arc<AggregateFunctionExpr>>,
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceAggregateExec {
    /// The device's form of `first`, the aggregate that reads rows, with the schema of the one that gives results.
    pub fn new(first: &AggregateExec, schema: SchemaRef, input: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            groups: first.group_expr().expr().to_vec(),
            aggregates: first.aggr_expr().to_vec(),
            filters: first.filter_expr().to_vec(),
            input,
            properties: super::properties(schema, None),
        }
    }

    /// Grouping expressions with their names.
    pub fn groups(&self) -> &[(Arc<dyn PhysicalExpr>, String)] {
        &self.groups
    }

    pub fn aggregates(&self) -> &[Arc<AggregateFunctionExpr>] {
        &self.aggregates
    }

    /// FILTER (WHERE …) of each aggregate.
    pub fn filters(&self) -> &[Option<Arc<dyn PhysicalExpr>>] {
        &self.filters
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let groups = self.groups.iter().map(|(e, _)| Arc::clone(e));
        let arguments = self.aggregates.iter().flat_map(|a| a.expressions());
        groups.chain(arguments).chain(self.filters.iter().flatten().cloned()).collect()
    }
}

/// Expressions in EXPLAIN's words: `x@0 as y`, the name left out where it repeats the expression.
pub(super) fn named(expressions: &[(Arc<dyn PhysicalExpr>, String)]) -> String {
    let one = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
        let text = expression.to_string();
        if &text == name { text } else { format!("{text} as {name}") }
    };
    expressions.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl DisplayAs for DeviceAggregateExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let groups = named(&self.groups);
        let aggregates = self.aggregates.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "group_by={groups}\naggr={aggregates}"),
            _ => write!(f, "DeviceAggregateExec: gby=[{groups}], aggr=[{aggregates}]"),
        }
    }
}

super::device_node!(DeviceAggregateExec, execute: refuse);
