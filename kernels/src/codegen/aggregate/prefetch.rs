//! Number of rows that a thread of an aggregate loads ahead of their use, and their columns.
//!
//!   bytes in flight = resident threads · bytes per row · rows ahead  ≥  the bytes that saturate the memory bandwidth
//!
//!   narrow columns, or few threads due to large bins   ──►   more rows ahead, up to four
//!   several conditions in the filters                  ──►   only the filters' columns; others after a row has passed
//!
//! Hash tables are limited by atomics, not by loads: one row at a time.

use super::cells::AggregatePlan;
use crate::codegen::ir::*;
use crate::tune;

/// Rows and columns that a thread loads ahead, so that enough bytes are in flight.
pub(crate) struct Prefetch {
    /// Rows loaded ahead; 1: each column is loaded where it is used.
    pub rows: u32,
    pub columns: Vec<u32>,
}

impl Prefetch {
    pub(crate) fn new(spec: &PipelineSpec) -> Prefetch {
        let one = Prefetch { rows: 1, columns: Vec::new() };
        let SinkSpec::Aggregate(aggregate) = &spec.sink else { return one };
        let plan = AggregatePlan::new(&spec.graph, aggregate);
        let bins = match plan.regime {
            // A hash table is limited by atomics, not by loads.
            Regime::Hash => return one,
            Regime::Private | Regime::Block => plan.shared_bytes(),
            Regime::Scalar | Regime::Direct => 0,
        };
        // Several conditions together pass few rows: columns that only passing rows need are loaded late.
        let selective = spec.filters.iter().map(|&filter| conditions(&spec.graph, filter)).sum::<u32>() > 1;
        let columns = if selective { spec.graph.columns(&spec.filters) } else { spec.used_columns() };
        let bytes = columns.iter().map(|&i| spec.columns.get(i as usize).map_or(0, |c| c.physical.width().max(1)));
        let bytes = bytes.sum::<u32>() as u64;
        if bytes == 0 {
            return one;
        }
        let resident = match bins {
            0 => tune::RESIDENT_THREADS as u64,
            bins => (tune::SHARED_PER_MULTIPROCESSOR / bins).max(1) * plan.threads() as u64,
        };
        let resident = resident.min(tune::RESIDENT_THREADS as u64);
        let rows = tune::BYTES_IN_FLIGHT.div_ceil(resident * bytes).clamp(1, tune::MAX_ROWS_AHEAD as u64) as u32;
        Prefetch { rows: rows.next_power_of_two(), columns }
    }
}

/// Number of conditions that a filter combines with AND.
fn conditions(graph: &Graph, filter: NodeId) -> u32 {
    match graph.node(filter) {
        Node::And { left, right } => conditions(graph, *left) + conditions(graph, *right),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(filters: usize) -> PipelineSpec {
        let mut graph = Graph::new();
        let ty = Ty::new(Repr::I64).within(0, 200);
        let columns = vec![ColumnSpec { physical: Physical::U8, has_base: false, ty }; 4];
        let nodes: Vec<NodeId> = (0..4).map(|i| graph.column(i, ty)).collect();
        let limit = graph.integer(7, Repr::I64);
        let filters = (0..filters).map(|i| graph.compare(Comparison::Less, nodes[i], limit).unwrap()).collect();
        let mut aggregate = AggregateSpec::new(vec![]);
        aggregate.accumulate(&graph, Accumulator { aggregate: Aggregate::Sum(nodes[3]), filter: None });
        let sink = SinkSpec::Aggregate(aggregate);
        PipelineSpec {
            extents: Extents::One,
            columns,
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph,
            filters,
            sink,
        }
    }

    #[test]
    fn narrow_rows_are_loaded_four_ahead() {
        let ahead = Prefetch::new(&spec(1));
        assert_eq!((ahead.rows, ahead.columns), (4, vec![0, 3]));
    }

    #[test]
    fn past_several_conditions_columns_are_loaded_late() {
        let ahead = Prefetch::new(&spec(2));
        assert_eq!((ahead.rows, ahead.columns), (4, vec![0, 1]));
    }

    #[test]
    fn wide_rows_and_hash_tables_take_one_at_a_time() {
        let mut wide = spec(1);
        wide.columns[0].physical = Physical::I128;
        wide.columns[3].physical = Physical::I128;
        assert_eq!(Prefetch::new(&wide).rows, 1);
        let mut hash = spec(1);
        let key = hash.graph.column(1, Ty::new(Repr::I64));
        hash.sink = SinkSpec::Aggregate(AggregateSpec::new(vec![key]));
        assert_eq!(Prefetch::new(&hash).rows, 1);
    }
}
