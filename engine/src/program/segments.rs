//! A device subtree, cut into segments.
//!
//!   Sort ─ Aggregate ─ Join ─┬─ Filter ─ Upload A          segment 0   A ─ filter ─ build
//!                            └─ Upload B                   segment 1   B ─ probe 0 ─ aggregate
//!                                                          segment 2   groups ─ finish ─ materialise with sort keys ─ sort
//!
//! Order    a segment comes after those it reads and probes; of several joins, the outermost builds first.
//! A [`Program`] is what can be known from the plan; what a segment becomes in the kernels' language depends on dictionaries
//! and on what builds find: see `lower`.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;

use crate::error::EngineError;
use crate::operator::aggregate::DeviceAggregateExec;
use crate::operator::filter::DeviceFilterExec;
use crate::operator::join::DeviceJoinExec;
use crate::operator::limit::DeviceLimitExec;
use crate::operator::project::DeviceProjectExec;
use crate::operator::sort::DeviceSortExec;
use crate::operator::union::DeviceUnionExec;
use crate::program::common_subplans::is_same;
use crate::source::upload::UploadExec;

/// Where a segment's rows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The fed rows of this upload.
    Upload(usize),
    /// What these segments gave, one after the other. Their columns are the same.
    Segments(Vec<usize>),
    /// The rows that segment `build` built of, as far as segment `like`, whose join is full, has found no match for them. Its
    /// columns are those of `like`.
    Unmatched { build: usize, like: usize },
    /// The rows that segment `build` built of, as far as the join asks for them, once their matches are marked.
    Marked { build: usize },
}

/// One step between a segment's source and its sink.
#[derive(Debug, Clone)]
pub enum Stage {
    Filter {
        predicate: Arc<dyn PhysicalExpr>,
        projection: Option<Vec<usize>>,
    },
    Project(Vec<(Arc<dyn PhysicalExpr>, String)>),
    /// Looks keys up in what segment `build` has built.
    Probe {
        join: Arc<DeviceJoinExec>,
        build: usize,
    },
}

/// Where a segment's rows go.
#[derive(Debug, Clone)]
pub enum Sink {
    /// Dense columns: a result, or another segment's input.
    Materialise,
    /// One table; its groups are another segment's input, which begins by finishing them.
    Aggregate(Arc<DeviceAggregateExec>),
    /// The rows of an aggregation in the order of its groups, and beside them each column of values that it looks up by their
    /// place in that order. The aggregation reads them next; what finishes its groups looks the values up.
    Rank(Arc<DeviceAggregateExec>),
    /// Dense columns and sort keys; the sorted columns are another segment's input, or the result.
    Sort { order: LexOrdering, fetch: Option<usize> },
    /// Dense columns, and a table from keys to rows.
    Build(Arc<DeviceJoinExec>),
    /// Marks among the rows that segment `build` built of those that have a match.
    Mark { build: usize },
    /// Dense columns, without the first `skip` rows, and of the others at most `fetch`.
    Limit { skip: usize, fetch: Option<usize> },
    /// Dense columns, of the types that all inputs of a union have in common.
    Branch,
}

/// A pipeline's worth of operators.
#[derive(Debug, Clone)]
pub struct Segment {
    pub source: Source,
    pub stages: Vec<Stage>,
    pub sink: Sink,
}

/// A device subtree, ready to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The sources, each an [`UploadExec`].
    uploads: Vec<Arc<dyn ExecutionPlan>>,
    /// The last one gives the result.
    pub segments: Vec<Segment>,
    /// The result's schema.
    pub schema: SchemaRef,
    /// Rows that leave the program, at most; and how many are left out before.
    pub row_limit: Option<usize>,
    pub row_offset: usize,
    /// Columns of the last segment that are the result, where a projection above a sort does no more than choose.
    pub selection: Option<Vec<usize>>,
    /// Aggregations, and the segments that end in them.
    found: Vec<(Arc<dyn ExecutionPlan>, usize)>,
}

/// A segment that has no sink yet.
struct Open {
    source: Source,
    stages: Vec<Stage>,
}

impl Program {
    /// Cuts the device subtree `plan`.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self, EngineError> {
        let (row_offset, row_limit) = rows_that_leave(plan);
        let (uploads, segments) = (vec![], vec![]);
        let (schema, found) = (plan.schema(), vec![]);
        let mut program = Self { uploads, segments, schema, row_limit, row_offset, selection: None, found };
        let Open { source, stages } = program.open(plan, true)?;
        let sorted = match &source {
            Source::Segments(from) => matches!(from.as_slice(), [one] if program.sorts(*one)),
            _ => false,
        };
        program.selection = if sorted { selection(&stages) } else { None };
        if !(sorted && (stages.is_empty() || program.selection.is_some())) {
            program.segments.push(Segment { source, stages, sink: Sink::Materialise });
        }
        Ok(program)
    }

    fn sorts(&self, segment: usize) -> bool {
        matches!(self.segments[segment].sink, Sink::Sort { .. })
    }

    /// The segments of `node`, the last of them still open. A limit at the `top` is for those rows that leave the program.
    fn open(&mut self, node: &Arc<dyn ExecutionPlan>, top: bool) -> Result<Open, EngineError> {
        if node.is::<UploadExec>() {
            self.uploads.push(Arc::clone(node));
            return Ok(Open { source: Source::Upload(self.uploads.len() - 1), stages: vec![] });
        }
        if let Some(join) = node.downcast_ref::<DeviceJoinExec>() {
            return self.join(&Arc::new(join.clone()));
        }
        if let Some(union) = node.downcast_ref::<DeviceUnionExec>() {
            let mut branches = Vec::new();
            for input in union.inputs() {
                let open = self.open(input, false)?;
                self.close(open, Sink::Branch);
                branches.push(self.segments.len() - 1);
            }
            return Ok(Open { source: Source::Segments(branches), stages: vec![] });
        }
        if node.is::<DeviceAggregateExec>()
            && let Some((_, known)) = self.found.iter().find(|(known, _)| is_same(known, node))
        {
            return Ok(Open { source: Source::Segments(vec![*known]), stages: vec![] });
        }
        let input = node.children().first().copied();
        let input = input.ok_or_else(|| EngineError::internal(format!("{} has no input", node.name())))?;
        let mut open = self.open(input, top && node.is::<DeviceProjectExec>())?;
        if let Some(filter) = node.downcast_ref::<DeviceFilterExec>() {
            let projection = filter.projection().map(<[usize]>::to_vec);
            open.stages.push(Stage::Filter { predicate: Arc::clone(filter.predicate()), projection });
        } else if let Some(project) = node.downcast_ref::<DeviceProjectExec>() {
            open.stages.push(Stage::Project(project.columns().to_vec()));
        } else if let Some(aggregate) = node.downcast_ref::<DeviceAggregateExec>() {
            let aggregate = Arc::new(aggregate.clone());
            if aggregate.aggregation().ranks() {
                open = self.close(open, Sink::Rank(Arc::clone(&aggregate)));
            }
            open = self.close(open, Sink::Aggregate(aggregate));
            self.found.push((Arc::clone(node), self.segments.len() - 1));
        } else if let Some(sort) = node.downcast_ref::<DeviceSortExec>() {
            open = self.close(open, Sink::Sort { order: sort.order().clone(), fetch: sort.row_limit() });
        } else if let Some(limit) = node.downcast_ref::<DeviceLimitExec>() {
            if !top {
                open = self.close(open, Sink::Limit { skip: limit.skip(), fetch: limit.row_limit() });
            }
        } else {
            return Err(EngineError::internal(format!("{} in a device subtree", node.name())));
        }
        Ok(open)
    }

    /// Ends a segment; the next one reads it.
    fn close(&mut self, open: Open, sink: Sink) -> Open {
        self.segments.push(Segment { source: open.source, stages: open.stages, sink });
        Open { source: Source::Segments(vec![self.segments.len() - 1]), stages: vec![] }
    }

    fn join(&mut self, join: &Arc<DeviceJoinExec>) -> Result<Open, EngineError> {
        let built = self.open(join.build(), false)?;
        self.close(built, Sink::Build(Arc::clone(join)));
        let build = self.segments.len() - 1;
        let mut open = self.open(join.probe(), false)?;
        open.stages.push(Stage::Probe { join: Arc::clone(join), build });
        if join.kind().is_about_build_rows() {
            self.close(open, Sink::Mark { build });
            return Ok(Open { source: Source::Marked { build }, stages: vec![] });
        }
        if !join.kind().keeps_build_rows() {
            return Ok(open);
        }
        self.close(open, Sink::Materialise);
        let matched = self.segments.len() - 1;
        let unmatched = Open { source: Source::Unmatched { build, like: matched }, stages: vec![] };
        self.close(unmatched, Sink::Materialise);
        Ok(Open { source: Source::Segments(vec![matched, matched + 1]), stages: vec![] })
    }

    /// Uploading node `index`.
    pub fn upload(&self, index: usize) -> &UploadExec {
        self.uploads[index].downcast_ref::<UploadExec>().expect("only uploads are among them")
    }

    pub fn num_uploads(&self) -> usize {
        self.uploads.len()
    }

    /// The segments whose builds segment `index` uses.
    pub fn probed(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let segment = &self.segments[index];
        let source = match &segment.source {
            Source::Unmatched { build, .. } | Source::Marked { build } => Some(*build),
            _ => None,
        };
        let stages = segment.stages.iter().filter_map(|stage| match stage {
            Stage::Probe { build, .. } => Some(*build),
            _ => None,
        });
        source.into_iter().chain(stages)
    }

    /// The aggregate that ended the segment which segment `index` reads.
    pub fn finishes(&self, index: usize) -> Option<usize> {
        match &self.segments[index].source {
            Source::Segments(from) => {
                from.first().copied().filter(|from| matches!(self.segments[*from].sink, Sink::Aggregate(_)))
            }
            _ => None,
        }
    }

    /// The segment that put the rows in order which segment `index` aggregates.
    pub fn ranks(&self, index: usize) -> Option<usize> {
        match (&self.segments[index].sink, &self.segments[index].source) {
            (Sink::Aggregate(_), Source::Segments(from)) => {
                from.first().copied().filter(|from| matches!(self.segments[*from].sink, Sink::Rank(_)))
            }
            _ => None,
        }
    }

    /// The segment whose sorted columns segment `index` looks values up in.
    pub fn looks_up(&self, index: usize) -> Option<usize> {
        self.finishes(index).and_then(|aggregate| self.ranks(aggregate))
    }
}

/// How many rows the uppermost node of `plan` but projections leaves out, and after how many others it stops.
fn rows_that_leave(plan: &Arc<dyn ExecutionPlan>) -> (usize, Option<usize>) {
    let mut node = plan;
    while node.is::<DeviceProjectExec>()
        && let Some(input) = node.children().first().copied()
    {
        node = input;
    }
    if let Some(limit) = node.downcast_ref::<DeviceLimitExec>() {
        return (limit.skip(), limit.row_limit());
    }
    let row_limit = if let Some(filter) = node.downcast_ref::<DeviceFilterExec>() {
        filter.row_limit()
    } else if let Some(sort) = node.downcast_ref::<DeviceSortExec>() {
        sort.row_limit()
    } else {
        node.downcast_ref::<DeviceJoinExec>().and_then(DeviceJoinExec::row_limit)
    };
    (0, row_limit)
}

/// The columns that `stages` choose, if choosing is all they do.
fn selection(stages: &[Stage]) -> Option<Vec<usize>> {
    let mut chosen: Option<Vec<usize>> = None;
    for stage in stages {
        let Stage::Project(expressions) = stage else { return None };
        let indices = expressions.iter().map(|(expr, _)| expr.downcast_ref::<Column>().map(Column::index));
        let indices = indices.collect::<Option<Vec<usize>>>()?;
        chosen = Some(match chosen {
            Some(before) => indices.into_iter().map(|index| before.get(index).copied()).collect::<Option<_>>()?,
            None => indices,
        });
    }
    chosen
}
