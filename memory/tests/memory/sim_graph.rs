//! Random operator graphs over several streams: no finding with all edges, and a finding when one edge is removed.
//!
//!   op 0 (stream 2)  writes buffer a
//!   op 1 (stream 0)  reads a, writes b          edge 0 → 1: an event, or none if the streams are the same
//!   op 2 (stream 2)  reads b, frees a           edge 1 → 2
//!
//! Edges implied by other edges are not removed: without them the order is unchanged.

use super::sim_rig::Rig;
use millpond_memory::driver::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;

const BYTES: usize = 1024;

/// One operator: reads some buffers of earlier operators, writes one new buffer.
#[derive(Debug, Clone)]
struct Op {
    stream: usize,
    inputs: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Graph {
    streams: usize,
    ops: Vec<Op>,
    seed: u64,
}

fn graphs() -> impl Strategy<Value = Graph> {
    (2usize..=8, 3usize..24, any::<u64>()).prop_flat_map(|(streams, ops, seed)| {
        proptest::collection::vec((0..streams, proptest::collection::vec(any::<prop::sample::Index>(), 1..4)), ops)
            .prop_map(move |ops| {
                let ops = ops
                    .into_iter()
                    .enumerate()
                    .map(|(i, (stream, inputs))| {
                        let mut inputs: Vec<usize> =
                            if i == 0 { Vec::new() } else { inputs.iter().map(|index| index.index(i)).collect() };
                        inputs.sort_unstable();
                        inputs.dedup();
                        Op { stream, inputs }
                    })
                    .collect();
                Graph { streams, ops, seed }
            })
    })
}

impl Graph {
    /// All pairs (earlier, later) that must be ordered. A buffer is freed on its last reader's stream, in a separate
    /// step after all ops, numbered `ops + buffer`.
    fn edges(&self) -> Vec<(usize, usize)> {
        let n = self.ops.len();
        let mut edges = Vec::new();
        for (later, op) in self.ops.iter().enumerate() {
            edges.extend(op.inputs.iter().map(|&earlier| (earlier, later)));
        }
        for buffer in 0..n {
            edges.push((buffer, n + buffer));
            edges.extend((0..n).filter(|&op| self.ops[op].inputs.contains(&buffer)).map(|op| (op, n + buffer)));
        }
        edges
    }

    fn stream_of(&self, step: usize) -> usize {
        let n = self.ops.len();
        if step < n {
            return self.ops[step].stream;
        }
        let last = (0..n).rev().find(|&op| self.ops[op].inputs.contains(&(step - n))).unwrap_or(step - n);
        self.ops[last].stream
    }

    /// Edges without which two steps would be unordered.
    fn needed_edges(&self) -> Vec<(usize, usize)> {
        let edges = self.edges();
        let steps = 2 * self.ops.len();
        edges
            .iter()
            .copied()
            .filter(|&(from, to)| {
                // Reachability over program order within streams and all other edges.
                let mut reached = vec![false; steps];
                reached[from] = true;
                for step in from + 1..=to {
                    reached[step] = (from..step).any(|before| {
                        reached[before]
                            && (self.stream_of(before) == self.stream_of(step)
                                || (before, step) != (from, to) && edges.contains(&(before, step)))
                    });
                }
                !reached[to]
            })
            .collect()
    }

    /// Runs the graph without one edge, and returns each operator's result and the findings.
    fn run(&self, without: Option<(usize, usize)>) -> (Vec<Vec<u8>>, Vec<Finding>) {
        let rig = Rig::new(self.seed);
        let streams: Vec<_> = (0..self.streams).map(|_| rig.stream()).collect();
        let edges = self.edges();
        let n = self.ops.len();
        let mut events = Vec::new();
        let mut buffers = Vec::new();
        let mut results = Vec::new();
        for step in 0..2 * n {
            let stream = streams[self.stream_of(step)];
            for &(from, _) in edges.iter().filter(|&&edge| edge.1 == step && Some(edge) != without) {
                if self.stream_of(from) != self.stream_of(step) {
                    rig.wait(stream, events[from]);
                }
            }
            if step < n {
                let out = rig.alloc(BYTES, stream);
                rig.fill(out, step as u8, BYTES, stream);
                for (i, &input) in self.ops[step].inputs.iter().enumerate() {
                    rig.copy(buffers[input], out.offset(i * 32), 32, stream);
                }
                buffers.push(out);
                results.push(rig.download(out, BYTES, stream));
            } else {
                rig.free(buffers[step - n], stream);
            }
            events.push(rig.record(stream));
        }
        let findings = rig.findings();
        let results = results.iter().map(|span| span.block().read().unwrap().to_vec()).collect();
        (results, findings)
    }

    fn expected(&self) -> Vec<Vec<u8>> {
        let mut results: Vec<Vec<u8>> = Vec::new();
        for (step, op) in self.ops.iter().enumerate() {
            let mut bytes = vec![step as u8; BYTES];
            for (i, &input) in op.inputs.iter().enumerate() {
                bytes[i * 32..][..32].copy_from_slice(&results[input][..32]);
            }
            results.push(bytes);
        }
        results
    }
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn graphs_with_all_their_edges_are_silent_and_right_under_every_order() {
    runner(200)
        .run(&graphs(), |graph| {
            let (results, findings) = graph.run(None);
            prop_assert!(findings.is_empty(), "{}", findings[0]);
            prop_assert_eq!(results, graph.expected());
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_removed_edge_is_found() {
    let removed = Cell::new(0);
    runner(60)
        .run(&graphs(), |graph| {
            for edge in graph.needed_edges() {
                removed.set(removed.get() + 1);
                let (_, findings) = graph.run(Some(edge));
                prop_assert!(!findings.is_empty(), "nothing found without {edge:?}");
                let allowed = [
                    FindingKind::UseBeforeAllocation,
                    FindingKind::UnorderedAccess,
                    FindingKind::UnorderedFree,
                    FindingKind::UseAfterFree,
                    FindingKind::Uninitialised,
                ];
                prop_assert!(findings.iter().all(|finding| allowed.contains(&finding.kind)), "{findings:?}");
            }
            Ok(())
        })
        .unwrap();
    assert!(removed.get() > 300, "{} edges", removed.get());
}
