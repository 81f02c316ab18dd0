//! Removes unused parts of a pipeline: nodes, literals, lookup tables and join tables.
//!
//!   graph n0 … n9, filters and sink use n3 n7   ──►   n0 … n4, tables renumbered      columns keep their numbers
//!
//! A join puts every column of its build side into scope, but later stages use few of them. Each unused one would cost
//! a parameter and its loads.

use std::collections::HashMap;

use super::ir::*;

/// A pipeline without unused parts.
#[derive(Debug, Clone)]
pub struct Pruned {
    pub spec: PipelineSpec,
    /// Original numbers of the remaining literals and tables, by new number.
    pub literals: Vec<usize>,
    pub lookups: Vec<usize>,
    pub tables: Vec<usize>,
}

/// New numbers, assigned in order of first use.
#[derive(Default)]
struct Numbers {
    new: HashMap<u32, u32>,
    old: Vec<usize>,
}

impl Numbers {
    fn of(&mut self, old: u32) -> u32 {
        *self.new.entry(old).or_insert_with(|| {
            self.old.push(old as usize);
            self.old.len() as u32 - 1
        })
    }
}

impl PipelineSpec {
    /// Keeps only the nodes, literals and tables that the filters and the sink use.
    pub fn pruned(&self) -> Pruned {
        let mut wanted = vec![false; self.graph.len()];
        let mut open = self.roots();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut wanted[id.0 as usize], true) {
                open.extend(self.graph.inputs(id));
            }
        }
        let (mut literals, mut lookups, mut tables) = (Numbers::default(), Numbers::default(), Numbers::default());
        let mut graph = Graph::new();
        let mut new: HashMap<NodeId, NodeId> = HashMap::new();
        // Children come before parents.
        for id in self.graph.ids().filter(|id| wanted[id.0 as usize]) {
            let mut node = self.graph.node(id).over(|input| new[&input]);
            match &mut node {
                Node::Literal { slot } => *slot = literals.of(*slot),
                Node::Lookup { table, .. } => *table = lookups.of(*table),
                Node::Find { places, .. } | Node::CountOf { places, .. } => {
                    places.table = lookups.of(places.table);
                }
                Node::Among { of, inside, .. } => {
                    of.table = lookups.of(of.table);
                    inside.table = lookups.of(inside.table);
                }
                Node::Probe { table, .. } => *table = tables.of(*table),
                _ => {}
            }
            new.insert(id, graph.push(node, self.graph.ty(id)));
        }
        let to = |id: NodeId| new[&id];
        let all = |ids: &[NodeId]| ids.iter().map(|id| to(*id)).collect::<Vec<_>>();
        let sink = match &self.sink {
            SinkSpec::Table { table, keys } => SinkSpec::Table { table: table.clone(), keys: all(keys) },
            SinkSpec::Mark { row } => SinkSpec::Mark { row: to(*row) },
            SinkSpec::Materialise { outputs } => SinkSpec::Materialise { outputs: all(outputs) },
            SinkSpec::MaterialiseAndMark { outputs, row } => {
                SinkSpec::MaterialiseAndMark { outputs: all(outputs), row: to(*row) }
            }
            SinkSpec::Aggregate(aggregate) => SinkSpec::Aggregate(AggregateSpec {
                keys: all(&aggregate.keys),
                accumulators: aggregate
                    .accumulators
                    .iter()
                    .map(|one| Accumulator { aggregate: one.aggregate.over(to), filter: one.filter.map(to) })
                    .collect(),
                orders: aggregate
                    .orders
                    .iter()
                    .map(|order| order.iter().map(|key| OrderKey { node: to(key.node), ..*key }).collect())
                    .collect(),
                seed: aggregate.seed.as_ref().map(|seed| Seed { when: to(seed.when), keys: all(&seed.keys) }),
                ..aggregate.clone()
            }),
        };
        let spec = PipelineSpec {
            extents: self.extents,
            columns: self.columns.clone(),
            literals: literals.old.iter().map(|slot| self.literals[*slot]).collect(),
            lookups: lookups.old.iter().map(|table| self.lookups[*table]).collect(),
            tables: tables.old.iter().map(|table| self.tables[*table].clone()).collect(),
            expanded: self.expanded,
            graph,
            filters: all(&self.filters),
            sink,
        };
        Pruned { spec, literals: literals.old, lookups: lookups.old, tables: tables.old }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_left_and_renumbered() {
        let ty = Ty::new(Repr::I64);
        let mut graph = Graph::new();
        let code = Ty::new(Repr::U32);
        let columns: Vec<NodeId> = [code, ty, ty].iter().zip(0..).map(|(ty, i)| graph.column(i, *ty)).collect();
        let table = |i: u32, graph: &mut Graph| graph.lookup(columns[0], i, ty).unwrap();
        let (unused, used) = (table(0, &mut graph), table(1, &mut graph));
        let dead = graph.literal(0, ty);
        let limit = graph.literal(1, ty.within(0, 9));
        let _ = graph.arithmetic(Arithmetic::Add, unused, dead, Overflow::Wrap).unwrap();
        let filter = graph.compare(Comparison::Less, used, limit).unwrap();
        let lookup = LookupSpec { physical: Physical::I64, ty };
        let other = LookupSpec { physical: Physical::I32, ty: Ty::new(Repr::I32) };
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: [code, ty, ty].map(|ty| ColumnSpec { physical: Physical::of(ty), has_base: false, ty }).to_vec(),
            literals: vec![ty, ty.within(0, 9)],
            lookups: vec![other, lookup],
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![filter],
            sink: SinkSpec::Materialise { outputs: vec![columns[2], used] },
        };
        let pruned = spec.pruned();
        assert_eq!((pruned.literals, pruned.lookups), (vec![1], vec![1]));
        assert_eq!((pruned.spec.literals.len(), pruned.spec.lookups.clone()), (1, vec![lookup]));
        // Two columns, the lookup, the literal, the comparison.
        assert_eq!(pruned.spec.graph.len(), 5);
        assert_eq!(pruned.spec.used_columns(), vec![0, 2]);
        assert_eq!(pruned.spec.pruned().spec, pruned.spec);
    }
}
