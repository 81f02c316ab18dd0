//! Joins rows of a probe side with those of a build side.
//!
//!   build side ──► all rows, and a table from keys to rows        a pipeline of its own, first
//!   probe side   … ──► [ probe ─ residual filter ] ──► later stages of the same pipeline
//!
//! NULL       NULL keys match nothing, or each other if the join treats NULLs as equal.
//! Order      not promised.
//! Memory     the build side's columns and its table, until the probe side has been processed.
//! Sides      DataFusion's left side builds, which it chose by size; for NOT IN, the subquery's side.
//! Stands for a hash, nested-loop, cross, sort-merge or piecewise merge join of any mode: one device has one table.

pub(crate) mod bounds;
pub(crate) mod build;
mod cut;
pub(crate) mod lower;
pub mod probe;
pub(crate) mod run;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, DynamicFilterPhysicalExpr};
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::operator::join::lower::{BuildSink, MarkSink, Marked, Probe, Unmatched, judge_join};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::materialise::Materialise;
use crate::program::segments::{Open, Origin, Segments};

/// Rows that a join outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// One row for each match.
    Inner,
    /// Like `Inner`, plus rows without a match, the build side NULL.
    Outer,
    /// Like `Outer`, plus build rows without a match, the probe side NULL.
    Full,
    /// Rows with a match, once.
    Semi,
    /// Rows without a match.
    Anti,
    /// Rows whose key is certain to be in no build row: NOT IN. No rows if the build side has a NULL key.
    NullAwareAnti,
    /// All rows, with a flag for a match.
    Mark,
    /// One row for each match, plus build rows without a match, the probe side NULL.
    BuildOuter,
    /// Build rows with a match, once; those without; all, with a flag for a match.
    BuildSemi,
    BuildAnti,
    BuildMark,
}

impl JoinKind {
    /// True for joins that only determine for each build row whether it has a match.
    pub fn is_about_build_rows(self) -> bool {
        matches!(self, Self::BuildSemi | Self::BuildAnti | Self::BuildMark)
    }

    /// True for joins that output a row for each match, and build rows without a match as well.
    pub fn keeps_build_rows(self) -> bool {
        matches!(self, Self::Full | Self::BuildOuter)
    }
}

/// A column of a join's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinColumn {
    Build(usize),
    Probe(usize),
    /// Whether there was a match.
    Mark,
}

/// Two expressions that must be equal, one over each side.
pub type KeyPair = (Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>);

/// A condition on pairs of rows, over columns of both sides.
#[derive(Debug, Clone)]
pub struct Residual {
    pub expression: Arc<dyn PhysicalExpr>,
    /// Origins of the expression's columns.
    pub columns: Vec<JoinColumn>,
    pub schema: SchemaRef,
}

/// A join on the device.
#[derive(Debug, Clone)]
pub struct DeviceJoinExec {
    join_type: JoinType,
    kind: JoinKind,
    /// Build side and probe side of each equality.
    on: Vec<KeyPair>,
    residual: Option<Residual>,
    nulls_equal: bool,
    columns: Vec<JoinColumn>,
    fetch: Option<usize>,
    /// Filter for scans of the probe side, from the build side's keys.
    filter_of_scans: Option<Arc<DynamicFilterPhysicalExpr>>,
    /// True when DataFusion's left side builds.
    left_builds: bool,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

/// A join of the CPU, of any algorithm.
pub struct CpuJoin<'a> {
    pub left: &'a Arc<dyn ExecutionPlan>,
    pub right: &'a Arc<dyn ExecutionPlan>,
    join_type: JoinType,
    on: Vec<KeyPair>,
    filter: Option<Cow<'a, JoinFilter>>,
    nulls_equal: bool,
    null_aware: bool,
    projection: Option<Vec<usize>>,
    fetch: Option<usize>,
    schema: SchemaRef,
    filter_of_scans: Option<Arc<DynamicFilterPhysicalExpr>>,
}

impl<'a> CpuJoin<'a> {
    /// The join in `plan`, if a device can replace it.
    pub fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let schema = plan.schema();
        let fetch = plan.fetch();
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            return Some(Self {
                left: join.left(),
                right: join.right(),
                join_type: *join.join_type(),
                on: join.on().to_vec(),
                filter: join.filter().map(Cow::Borrowed),
                nulls_equal: join.null_equality() == NullEquality::NullEqualsNull,
                null_aware: join.null_aware,
                projection: join.projection.as_ref().map(|columns| columns.to_vec()),
                fetch,
                schema,
                filter_of_scans: produced(plan.as_ref()),
            });
        }
        let keyless = |left, right, join_type| Self {
            left,
            right,
            join_type,
            on: vec![],
            filter: None,
            nulls_equal: false,
            null_aware: false,
            projection: None,
            fetch,
            schema: Arc::clone(&schema),
            filter_of_scans: None,
        };
        if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
            return Some(Self {
                on: join.on().to_vec(),
                filter: join.filter().as_ref().map(Cow::Borrowed),
                nulls_equal: join.null_equality() == NullEquality::NullEqualsNull,
                ..keyless(join.left(), join.right(), join.join_type())
            });
        }
        if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            return Some(Self {
                filter: join.filter().map(Cow::Borrowed),
                projection: join.projection().as_ref().map(|columns| columns.to_vec()),
                ..keyless(join.left(), join.right(), *join.join_type())
            });
        }
        if let Some(join) = plan.downcast_ref::<PiecewiseMergeJoinExec>() {
            let filter = Some(Cow::Owned(range_filter(join)?));
            return Some(Self { filter, ..keyless(join.buffered(), join.streamed(), join.join_type()) });
        }
        let join = plan.downcast_ref::<CrossJoinExec>()?;
        Some(keyless(join.left(), join.right(), JoinType::Inner))
    }
}

/// The comparison of a piecewise merge join, as a condition on pairs of rows.
fn range_filter(join: &PiecewiseMergeJoinExec) -> Option<JoinFilter> {
    let (mut fields, mut columns) = (vec![], vec![]);
    let mut over_pair = |key: &Arc<dyn PhysicalExpr>, side: JoinSide, input: &Arc<dyn ExecutionPlan>| {
        let key = Arc::clone(key).transform_up(|part| {
            Ok(match part.downcast_ref::<Column>() {
                Some(column) => {
                    fields.push(input.schema().field(column.index()).clone());
                    columns.push(ColumnIndex { index: column.index(), side });
                    Transformed::yes(Arc::new(Column::new(column.name(), columns.len() - 1)))
                }
                None => Transformed::no(part),
            })
        });
        key.data().ok()
    };
    let left = over_pair(&join.on.0, JoinSide::Left, join.buffered())?;
    let right = over_pair(&join.on.1, JoinSide::Right, join.streamed())?;
    let expression = Arc::new(BinaryExpr::new(left, join.operator, right));
    Some(JoinFilter::new(expression, columns, Arc::new(Schema::new(fields))))
}

/// The filter that a join pushes into scans of its right side once it knows its left side.
fn produced(join: &dyn ExecutionPlan) -> Option<Arc<DynamicFilterPhysicalExpr>> {
    let expression = join.dynamic_expressions_produced().into_iter().next()?;
    let expression: Arc<dyn Any + Send + Sync> = expression;
    expression.downcast::<DynamicFilterPhysicalExpr>().ok()
}

impl DeviceJoinExec {
    /// The device's form of `join`, over other inputs.
    pub fn new(join: &CpuJoin<'_>, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Self {
        use JoinType::*;
        let (kind, left_builds) = match join.join_type {
            Inner => (JoinKind::Inner, true),
            Left => (JoinKind::BuildOuter, true),
            Right => (JoinKind::Outer, true),
            Full => (JoinKind::Full, true),
            LeftSemi => (JoinKind::BuildSemi, true),
            RightSemi => (JoinKind::Semi, true),
            LeftAnti if join.null_aware => (JoinKind::NullAwareAnti, false),
            LeftAnti => (JoinKind::BuildAnti, true),
            RightAnti => (JoinKind::Anti, true),
            LeftMark => (JoinKind::BuildMark, true),
            RightMark => (JoinKind::Mark, true),
        };
        let side = |left: bool, index: usize| match left == left_builds {
            true => JoinColumn::Build(index),
            false => JoinColumn::Probe(index),
        };
        let (lefts, rights) = (join.left.schema().fields().len(), join.right.schema().fields().len());
        let from_left = (0..lefts).map(|index| side(true, index));
        let from_right = (0..rights).map(|index| side(false, index));
        let mut columns: Vec<JoinColumn> = match join.join_type {
            Inner | Left | Right | Full => from_left.chain(from_right).collect(),
            LeftSemi | LeftAnti => from_left.collect(),
            RightSemi | RightAnti => from_right.collect(),
            LeftMark => from_left.chain([JoinColumn::Mark]).collect(),
            RightMark => from_right.chain([JoinColumn::Mark]).collect(),
        };
        if let Some(projection) = &join.projection {
            columns = projection.iter().map(|index| columns[*index]).collect();
        }
        let residual = join.filter.as_ref().map(|filter| Residual {
            expression: Arc::clone(filter.expression()),
            columns: filter
                .column_indices()
                .iter()
                .map(|column| match column.side {
                    JoinSide::Left => side(true, column.index),
                    JoinSide::Right => side(false, column.index),
                    JoinSide::None => JoinColumn::Mark,
                })
                .collect(),
            schema: Arc::clone(filter.schema()),
        });
        let on = join.on.iter().map(|(left, right)| match left_builds {
            true => (Arc::clone(left), Arc::clone(right)),
            false => (Arc::clone(right), Arc::clone(left)),
        });
        Self {
            join_type: join.join_type,
            kind,
            on: on.collect(),
            residual,
            nulls_equal: join.nulls_equal,
            columns,
            fetch: join.fetch,
            filter_of_scans: join.filter_of_scans.clone().filter(|_| left_builds),
            left_builds,
            left,
            right,
            properties: crate::plan::node::properties(Arc::clone(&join.schema), None),
        }
    }

    pub fn kind(&self) -> JoinKind {
        self.kind
    }

    /// Expressions that must be equal: over the build side, over the probe side. If empty, every pair of rows matches.
    pub fn on(&self) -> &[KeyPair] {
        &self.on
    }

    pub fn residual(&self) -> Option<&Residual> {
        self.residual.as_ref()
    }

    /// True if NULL keys equal each other.
    pub fn nulls_equal(&self) -> bool {
        self.nulls_equal
    }

    /// Origins of the result's columns.
    pub fn columns(&self) -> &[JoinColumn] {
        &self.columns
    }

    /// Number of rows that suffice.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    /// Removes the row limit.
    pub fn without_limit(self) -> Self {
        Self { fetch: None, ..self }
    }

    /// The filter to fill in once the build side's keys are known, before the probe side is scanned.
    pub fn filter_of_scans(&self) -> Option<&Arc<DynamicFilterPhysicalExpr>> {
        self.filter_of_scans.as_ref()
    }

    /// The side whose rows are stored in a table.
    pub fn build(&self) -> &Arc<dyn ExecutionPlan> {
        if self.left_builds { &self.left } else { &self.right }
    }

    /// The side whose rows look up their keys.
    pub fn probe(&self) -> &Arc<dyn ExecutionPlan> {
        if self.left_builds { &self.right } else { &self.left }
    }
}

impl DisplayAs for DeviceJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let pair = |(build, probe): &KeyPair| match self.left_builds {
            true => format!("({build}, {probe})"),
            false => format!("({probe}, {build})"),
        };
        let on = self.on.iter().map(pair).collect::<Vec<_>>().join(", ");
        let join_type = self.join_type;
        if let DisplayFormatType::TreeRender = t {
            writeln!(f, "join_type={join_type}")?;
            return write!(f, "on={on}");
        }
        let builds = if self.left_builds { "left" } else { "right" };
        write!(f, "DeviceJoinExec: join_type={join_type}, build={builds}, on=[{on}]")?;
        if let Some(residual) = &self.residual {
            write!(f, ", filter={}", residual.expression)?;
        }
        if self.kind == JoinKind::NullAwareAnti {
            write!(f, ", null_aware")?;
        }
        if self.nulls_equal {
            write!(f, ", NullsEqual: true")?;
        }
        let names: Vec<String> = self.schema().fields().iter().map(|field| field.name().clone()).collect();
        write!(f, ", columns=[{}]", names.join(", "))?;
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for DeviceJoinExec {
    fn name(&self) -> &str {
        "DeviceJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.left, &self.right]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let keys = self.on.iter().flat_map(|(build, probe)| [build, probe]);
        for expression in keys.chain(self.residual.iter().map(|residual| &residual.expression)) {
            if f(expression)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[Arc<dyn ExecutionPlan>; 2]>::try_from(children) {
            Ok([left, right]) => Ok(Arc::new(Self { left, right, ..(*self).clone() })),
            Err(_) => Err(EngineError::internal("DeviceJoinExec has two inputs").into()),
        }
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(EngineError::internal("DeviceJoinExec runs as part of a DownloadExec").into())
    }
}

impl DeviceOperator for Join {
    fn name(&self) -> &'static str {
        "join"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        CpuJoin::of(node).map(|join| place(node, &join, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        let hashes = node.is::<HashJoinExec>() || node.is::<SortMergeJoinExec>();
        let pairs =
            node.is::<NestedLoopJoinExec>() || node.is::<PiecewiseMergeJoinExec>() || node.is::<CrossJoinExec>();
        (hashes || pairs || node.is::<DeviceJoinExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceJoinExec>()
    }
}

/// Places a join on the device together with both inputs, for any algorithm and mode.
fn place(node: &Arc<dyn ExecutionPlan>, join: &CpuJoin<'_>, to: &Placing<'_>) -> Result<Placed> {
    let inputs = || Ok([to.after_limit(to.place(join.left)?)?, to.after_limit(to.place(join.right)?)?]);
    let ordered = [join.left, join.right].iter().any(|input| input.properties().output_ordering().is_some());
    if !to.counts(node.as_ref()) {
        let children = to.in_order(inputs)?;
        return to.stay(node, children.into(), None);
    }
    let children = match to.in_any_order(inputs)? {
        Some(children) => children,
        None => to.in_order(inputs)?,
    };
    match judge(node, join, &children, to) {
        Ok(tree) => Ok(Placed::Device(tree)),
        Err(reason) => {
            // On the CPU it may depend on the order of its inputs.
            let children = if ordered { to.in_order(inputs)? } else { children };
            to.stay(node, children.into(), Some(reason))
        }
    }
}

/// The device's form of `join`, which is `node`, over these inputs.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    join: &CpuJoin<'_>,
    [left, right]: &[Placed; 2],
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    let (left, right) = (to.tree(left)?, to.tree(right)?);
    let device = DeviceJoinExec::new(join, left.plan, right.plan);
    let (build, probe) = match device.left_builds {
        true => (left.columns, right.columns),
        false => (right.columns, left.columns),
    };
    let columns = judge_join(&device, &build, &probe, &mut to.lowering())?;
    let device = if to.needs_order(node.as_ref()) { device.without_limit() } else { device };
    let tree = DeviceTree {
        row_limit: device.row_limit(),
        plan: Arc::new(device),
        cpu: Arc::clone(node),
        columns,
        sorted: false,
        aggregated: true,
    };
    to.restore_order(node, tree)
}

/// Joins: their placement, and their segments: the build side first, then the probe side, whose segment stays open; for
/// joins that keep build rows, these follow.
#[derive(Debug)]
pub(crate) struct Join;

impl ToSegments for Join {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let join = Arc::new(node.downcast_ref::<DeviceJoinExec>()?.clone());
        if top {
            into.leave(0, join.row_limit());
        }
        Some(cut(&join, into))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        Some(same(a.downcast_ref()?, b.downcast_ref()?))
    }

    fn filter_of_scans(&self, node: &dyn ExecutionPlan) -> Option<u64> {
        node.downcast_ref::<DeviceJoinExec>()?.filter_of_scans()?.expression_id()
    }
}

fn cut(join: &Arc<DeviceJoinExec>, into: &mut Segments<'_>) -> Result<Open, EngineError> {
    let built = into.open(join.build(), false)?;
    let build = into.close(built, BuildSink(Arc::clone(join)));
    let open = into.open(join.probe(), false)?.with(Probe { join: Arc::clone(join), build });
    if join.kind().is_about_build_rows() {
        into.close(open, MarkSink { build });
        let rows = Open { origin: Origin::Built { build, like: None }, stages: vec![] };
        return Ok(rows.with(Marked { join: Arc::clone(join), build }));
    }
    if !join.kind().keeps_build_rows() {
        return Ok(open);
    }
    let matched = into.close(open, Materialise::default());
    let rest = Open { origin: Origin::Built { build, like: Some(matched) }, stages: vec![] };
    let unmatched = into.close(rest.with(Unmatched(Arc::clone(join))), Materialise::default());
    Ok(Open { origin: Origin::Segments(vec![matched, unmatched]), stages: vec![] })
}

fn same(a: &DeviceJoinExec, b: &DeviceJoinExec) -> bool {
    let residual = match (a.residual(), b.residual()) {
        (Some(a), Some(b)) => a.expression.eq(&b.expression) && a.columns == b.columns,
        (None, None) => true,
        _ => false,
    };
    let rest = |join: &DeviceJoinExec| (join.kind(), join.nulls_equal(), join.row_limit());
    residual && a.on() == b.on() && a.columns() == b.columns() && rest(a) == rest(b)
}
