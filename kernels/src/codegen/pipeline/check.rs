//! Preconditions on a pipeline's description, checked before code generation.
//!
//! Errors  name the node, column or sink, and the reason; unsupported and malformed specs are different errors.

use super::super::aggregate::cells::AggregatePlan;
use super::super::ir::*;
use super::super::value::CodegenError;
use crate::abi;
use crate::tune;

/// Rejects specs that would fail during code generation.
pub(super) fn check(spec: &PipelineSpec) -> Result<(), CodegenError> {
    let malformed = |what: String, why: &str| Err(CodegenError::Malformed { what, why: why.into() });
    for root in spec.roots() {
        if !spec.graph.contains(root) {
            return malformed(format!("node {}", root.0), "it is not in the pipeline's graph");
        }
    }
    for column in spec.used_columns() {
        if column as usize >= spec.columns.len() {
            return malformed(format!("column {column}"), "the pipeline has no such column");
        }
    }
    if spec.extents == Extents::One && abi::extent_bytes(spec.columns.len()) > tune::MAX_EXTENT_PARAM_BYTES {
        return Err(CodegenError::Unsupported { what: format!("a pipeline over {} columns", spec.columns.len()) });
    }
    let is_bool = |node: NodeId| spec.graph.ty(node).repr == Repr::Bool;
    if let Some(filter) = spec.filters.iter().find(|filter| !is_bool(**filter)) {
        return malformed(format!("filter {}", filter.0), "it is not boolean");
    }
    if spec.expanded && spec.extents == Extents::Many {
        return malformed("an expanded pipeline".into(), "it reads one extent");
    }
    if let SinkSpec::Table { table, keys } = &spec.sink {
        if spec.extents == Extents::Many {
            return malformed("a join table".into(), "its rows are numbered in one extent");
        }
        let reprs: Vec<Repr> = keys.iter().map(|key| spec.graph.ty(*key).repr).collect();
        if reprs != table.keys.iter().map(|key| key.repr).collect::<Vec<_>>() {
            return malformed("a join table".into(), "its keys are not of its types");
        }
    }
    if let SinkSpec::Mark { row } | SinkSpec::MaterialiseAndMark { row, .. } = &spec.sink
        && spec.graph.ty(*row).repr != Repr::U32
    {
        return malformed(format!("node {}", row.0), "a row to mark is a U32");
    }
    let is_text = |node: &NodeId| spec.graph.ty(*node).repr == Repr::Text;
    let unsupported = |what: &str| Err(CodegenError::Unsupported { what: what.into() });
    if let SinkSpec::Aggregate(aggregate) = &spec.sink {
        let takes_texts = |a: &Accumulator| matches!(a.aggregate, Aggregate::Count(_) | Aggregate::First { .. });
        let over_text = |a: &Accumulator| !takes_texts(a) && a.aggregate.args().iter().any(is_text);
        if aggregate.accumulators.iter().any(over_text) {
            return unsupported("an aggregate of a text");
        }
        if aggregate.keys.len() > 32 {
            return Err(CodegenError::Unsupported { what: format!("grouping by {} keys", aggregate.keys.len()) });
        }
        if let Some(seed) = &aggregate.seed {
            let lanes = |keys: &[NodeId]| keys.iter().map(|key| lane(spec.graph.ty(*key))).collect::<Vec<_>>();
            if lanes(&seed.keys) != lanes(&aggregate.keys) || !is_bool(seed.when) {
                return malformed("a seed".into(), "its keys are not of the types of the aggregation's");
            }
        }
        for accumulator in &aggregate.accumulators {
            if let Aggregate::First { order, .. } = accumulator.aggregate
                && aggregate.orders.get(order as usize).is_none_or(|order| order.is_empty())
            {
                return malformed(format!("order {order}"), "the aggregation has none such");
            }
        }
        let plan = AggregatePlan::new(&spec.graph, aggregate);
        let fits = match plan.regime {
            Regime::Scalar => plan.keys.is_empty(),
            Regime::Private => !plan.keys.is_empty() && plan.max_groups.is_some() && plan.fits_threads(),
            Regime::Block => !plan.keys.is_empty() && plan.max_groups.is_some() && plan.fits_blocks(),
            Regime::Direct => !plan.keys.is_empty() && plan.max_groups.is_some(),
            Regime::Hash => !plan.keys.is_empty(),
        };
        if !fits {
            return malformed(format!("regime {:?}", plan.regime), "the keys, or their ranges, do not allow it");
        }
        for accumulator in &aggregate.accumulators {
            if accumulator.filter.is_some_and(|filter| !is_bool(filter)) {
                return malformed("the filter of an aggregate".into(), "it is not boolean");
            }
        }
    }
    Ok(())
}
