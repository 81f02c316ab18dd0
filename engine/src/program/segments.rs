//! A device subtree, cut into segments.
//!
//!   Sort ─ Aggregate ─ Join ─┬─ Filter ─ Upload A      segment 0   A ─ filter ─ build
//!                            └─ Upload B               segment 1   B ─ probe 0 ─ aggregate
//!                                                      segment 2   groups ─ finish ─ materialise with sort keys ─ sort
//!
//! Order    a segment follows those that it reads and probes; of several joins, the outermost builds first.
//! Common   an aggregation that a plan contains twice, as for a CTE with two readers, is computed once:
//!            WITH c AS (… GROUP BY k) SELECT … FROM c a JOIN c b …      segment 0   scan ─ groups
//!                                                                       segment 1   groups ─ finish ─ build
//!                                                                       segment 2   groups ─ finish ─ probe
//!          if both subtrees have equal expressions and read the same files, or the same batches in memory.
//! Filters  that a join pushes into scans at run time only drop rows that this join drops anyway. Filters of a join
//!          inside the subtree are accepted; a filter of another join changes the subtree's rows.
//! A [`Program`] holds what the plan alone determines; the lowering of a segment also depends on dictionaries and on
//! build sides: see `lower`.

use std::collections::HashSet;
use std::fmt::{self, Debug, Write};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;

use crate::error::EngineError;
use crate::program::contract::{Operators, Sink, Source, Stage};
use crate::program::materialise::Materialise;

/// Origin of a segment's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The rows of this source.
    Source(usize),
    /// The results of these segments, one after the other, with equal columns.
    Segments(Vec<usize>),
    /// The rows that segment `build` built from, with the marks of those that have a match. The output columns are
    /// those of segment `like`, if it is set.
    Built { build: usize, like: Option<usize> },
}

/// A source, stages and a sink that run together.
#[derive(Debug, Clone)]
pub struct Segment {
    pub origin: Origin,
    pub stages: Vec<Arc<dyn Stage>>,
    pub sink: Arc<dyn Sink>,
}

/// A node of a device subtree, and the segments that do its work.
#[derive(Debug, Clone)]
pub struct NodeWork {
    pub node: Arc<dyn ExecutionPlan>,
    /// Segments whose sinks belong to this node.
    pub ends: Vec<usize>,
    /// Segment that contains its stages, or reads its source.
    pub within: Option<usize>,
    /// An equal node has done the work: no input of this node is read.
    pub shared: bool,
}

/// A device subtree, ready to run.
#[derive(Debug, Clone)]
pub struct Program {
    pub sources: Vec<Arc<dyn Source>>,
    /// The last one produces the result.
    pub segments: Vec<Segment>,
    /// The nodes of the subtree, for EXPLAIN ANALYZE; the first is its root.
    pub works: Vec<NodeWork>,
    /// The result's schema.
    pub schema: SchemaRef,
    /// Maximum number of rows that leave the program, and number of rows skipped before them.
    pub row_limit: Option<usize>,
    pub row_offset: usize,
    /// Columns of the last segment that form the result, if a projection above a sort only selects.
    pub selection: Option<Vec<usize>>,
    /// The result stays on the device: no row leaves before the result is complete.
    pub stays: bool,
}

/// A segment that has no sink yet.
pub struct Open {
    pub origin: Origin,
    pub stages: Vec<Arc<dyn Stage>>,
}

impl Open {
    /// A segment that reads the result of segment `index`.
    pub fn reading(index: usize) -> Self {
        Self { origin: Origin::Segments(vec![index]), stages: vec![] }
    }

    /// Adds a stage.
    pub fn with(mut self, stage: impl Stage + 'static) -> Self {
        self.stages.push(Arc::new(stage));
        self
    }
}

/// A program being cut.
pub struct Segments<'o> {
    operators: &'o Operators,
    program: Program,
    /// Works of the nodes being cut, the innermost last.
    cutting: Vec<usize>,
    /// Works of nodes whose segment is still open.
    open: Vec<usize>,
    /// Nodes whose segments equal nodes can read, with the stages that this reading begins with.
    found: Vec<Found>,
}

/// A node, the segment that produces its rows, and the stages that reading them begins with.
type Found = (Arc<dyn ExecutionPlan>, usize, Vec<Arc<dyn Stage>>);

impl Program {
    /// Cuts the device subtree `plan`.
    ///
    /// # Errors
    /// An internal one, if a node belongs to none of `operators`.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, operators: &Operators) -> Result<Self, EngineError> {
        let program = Self {
            sources: vec![],
            segments: vec![],
            works: vec![],
            schema: plan.schema(),
            row_limit: None,
            row_offset: 0,
            selection: None,
            stays: false,
        };
        let mut segments = Segments { operators, program, cutting: vec![], open: vec![], found: vec![] };
        let open = segments.open(plan, true)?;
        let program = &mut segments.program;
        let sorted = match &open.origin {
            Origin::Segments(from) => matches!(from.as_slice(), [one] if program.segments[*one].sink.sorts()),
            _ => false,
        };
        program.selection = if sorted { selection(&open.stages) } else { None };
        if !(sorted && (open.stages.is_empty() || program.selection.is_some())) {
            segments.close(open, Materialise::default());
        }
        segments.leave_open_works();
        Ok(segments.program)
    }

    /// Short name of a segment, for profiles: "segment 1: upload 1 → Probe 0 → AggregateSink".
    pub fn segment_name(&self, index: usize) -> String {
        let Segment { origin, stages, sink } = &self.segments[index];
        let mut steps = vec![match origin {
            Origin::Source(source) => format!("upload {source}"),
            Origin::Segments(from) => {
                let from: Vec<String> = from.iter().map(ToString::to_string).collect();
                format!("rows of {}", from.join(" + "))
            }
            Origin::Built { build, .. } => format!("built rows of {build}"),
        }];
        for stage in stages {
            let build = stage.build().map(|build| format!(" {build}"));
            steps.push(type_name(stage) + &build.unwrap_or_default());
        }
        steps.push(type_name(sink));
        format!("segment {index}: {}", steps.join(" → "))
    }

    /// True if the rows of an extent can leave as soon as they are produced.
    pub fn streams_out(&self) -> bool {
        let [one] = self.segments.as_slice() else { return false };
        !self.stays
            && matches!(one.origin, Origin::Source(_))
            && one.sink.passes_rows_on()
            && !one.stages.iter().any(|stage| stage.leaves_with_others())
            && self.probed(0).next().is_none()
    }

    /// The segments whose build sides segment `index` uses.
    pub fn probed(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let segment = &self.segments[index];
        let source = match &segment.origin {
            Origin::Built { build, .. } => Some(*build),
            _ => None,
        };
        source.into_iter().chain(segment.stages.iter().filter_map(|stage| stage.build()))
    }

    /// The first of the segments that segment `index` reads.
    pub fn reads(&self, index: usize) -> Option<usize> {
        match &self.segments[index].origin {
            Origin::Segments(from) => from.first().copied(),
            _ => None,
        }
    }

    /// The segment read by `index`, if it writes only the columns that `index` needs.
    pub fn on_demand(&self, index: usize) -> Option<usize> {
        let from = match &self.segments[index].origin {
            Origin::Built { build, .. } => Some(*build),
            _ => self.reads(index),
        };
        from.filter(|from| self.segments[*from].sink.columns_on_demand().is_some())
    }
}

impl Segments<'_> {
    /// Cuts `node`, and leaves the last of its segments open. At the `top` its rows are those that leave the program.
    ///
    /// # Errors
    /// An internal one, if no operator knows the node.
    pub fn open(&mut self, node: &Arc<dyn ExecutionPlan>, top: bool) -> Result<Open, EngineError> {
        let work = self.program.works.len();
        self.program.works.push(NodeWork { node: Arc::clone(node), ends: vec![], within: None, shared: false });
        self.cutting.push(work);
        let open = self.open_or_share(node, top);
        self.cutting.pop();
        self.open.push(work);
        self.program.works[work].shared = matches!(&open, Ok((_, true)));
        open.map(|(open, _)| open)
    }

    /// Like [`open`](Self::open); also true if an equal node has done the work.
    fn open_or_share(&mut self, node: &Arc<dyn ExecutionPlan>, top: bool) -> Result<(Open, bool), EngineError> {
        let known = self.found.iter().find(|(known, ..)| is_same(known, node, self.operators));
        if let Some((_, segment, stages)) = known {
            return Ok((Open { origin: Origin::Segments(vec![*segment]), stages: stages.clone() }, true));
        }
        let operators = Arc::clone(self.operators);
        let cut = operators.iter().find_map(|operator| operator.cut(node, top, self));
        let cut = cut.unwrap_or_else(|| Err(EngineError::internal(format!("{} in a device subtree", node.name()))));
        cut.map(|open| (open, false))
    }

    /// Like [`open`](Self::open), for the only input of `node`.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and if the node has no input.
    pub fn open_input(&mut self, node: &Arc<dyn ExecutionPlan>, top: bool) -> Result<Open, EngineError> {
        let input = node.children().first().copied();
        self.open(input.ok_or_else(|| EngineError::internal(format!("{} has no input", node.name())))?, top)
    }

    /// A segment that reads a source that is new to the program.
    pub fn source(&mut self, source: impl Source + 'static) -> Open {
        self.program.sources.push(Arc::new(source));
        Open { origin: Origin::Source(self.program.sources.len() - 1), stages: vec![] }
    }

    /// Ends a segment; returns its number.
    pub fn close(&mut self, open: Open, sink: impl Sink + 'static) -> usize {
        self.program.segments.push(Segment { origin: open.origin, stages: open.stages, sink: Arc::new(sink) });
        let segment = self.program.segments.len() - 1;
        // If no node is being cut, the root's rows become the result.
        let work = self.cutting.last().copied().unwrap_or(0);
        self.program.works.get_mut(work).into_iter().for_each(|work| work.ends.push(segment));
        self.put_open_works_in(segment);
        segment
    }

    fn put_open_works_in(&mut self, segment: usize) {
        for work in self.open.drain(..) {
            self.program.works[work].within = Some(segment);
        }
    }

    /// Assigns open works to the last segment: stages above it only select columns of its result.
    fn leave_open_works(&mut self) {
        if let Some(last) = self.program.segments.len().checked_sub(1) {
            self.put_open_works_in(last);
        }
    }

    /// Registers `open`, which reads a closed segment, as the shared result of `node`: later requests for an equal node
    /// reuse it.
    pub fn share(&mut self, node: &Arc<dyn ExecutionPlan>, open: &Open) {
        if let Origin::Segments(from) = &open.origin
            && let [segment] = from.as_slice()
        {
            self.found.push((Arc::clone(node), *segment, open.stages.clone()));
        }
    }

    /// Sets the rows that leave the program: the first `skip` are dropped, and after `limit` others it may stop.
    pub fn leave(&mut self, skip: usize, limit: Option<usize>) {
        (self.program.row_offset, self.program.row_limit) = (skip, limit);
    }
}

/// The columns that `stages` select, if they do nothing else.
fn selection(stages: &[Arc<dyn Stage>]) -> Option<Vec<usize>> {
    let mut chosen: Option<Vec<usize>> = None;
    for stage in stages {
        let indices = stage.selection()?;
        chosen = Some(match chosen {
            Some(before) => indices.into_iter().map(|index| before.get(index).copied()).collect::<Option<_>>()?,
            None => indices,
        });
    }
    chosen
}

/// A value's type name: the first word of its debug output.
fn type_name(value: &impl Debug) -> String {
    struct FirstWord(String);
    impl Write for FirstWord {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let word = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
            self.0.push_str(&text[..word]);
            // The rest, which may be a whole subtree, is not printed.
            if word < text.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut word = FirstWord(String::new());
    let _ = write!(word, "{value:?}");
    word.0
}

/// Whether `first`, which runs, produces the rows that `second` needs.
fn is_same(first: &Arc<dyn ExecutionPlan>, second: &Arc<dyn ExecutionPlan>, operators: &Operators) -> bool {
    if first.name() != second.name() {
        return false;
    }
    let mut own = HashSet::new();
    let walked = first.apply(|node| {
        own.extend(operators.iter().find_map(|operator| operator.filter_of_scans(node.as_ref())));
        Ok(TreeNodeRecursion::Continue)
    });
    walked.is_ok() && same(first, second, operators, &own)
}

fn same(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>, operators: &Operators, own: &HashSet<u64>) -> bool {
    if a.name() != b.name() || a.schema() != b.schema() {
        return false;
    }
    if let Some(same) = operators.iter().find_map(|operator| operator.reads_same(a.as_ref(), b.as_ref(), own)) {
        return same;
    }
    let alike = operators.iter().find_map(|operator| operator.computes_same(a.as_ref(), b.as_ref()));
    let (a, b) = (a.children(), b.children());
    alike == Some(true) && a.len() == b.len() && a.into_iter().zip(b).all(|(a, b)| same(a, b, operators, own))
}
