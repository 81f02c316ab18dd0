//! CPU node → device node, from the leaves up.
//!
//!   FilterExec        over a scan or a device node   ──► DeviceFilterExec
//!   ProjectionExec    over a device node, or a scan if it computes ──► DeviceProjectExec
//!   AggregateExec     Final over Partial, or Single   ──► one DeviceAggregateExec
//!   HashJoinExec, …   of two inputs, scans or not     ──► DeviceJoinExec, whatever the algorithm and the mode
//!   UnionExec, …      of any inputs                   ──► DeviceUnionExec
//!   SortExec          over a scan or a device node   ──► DeviceSortExec; the merge above it vanishes
//!   GlobalLimitExec, … over a device node             ──► DeviceLimitExec; over a scan it stays, so that the scan stops
//!
//! Each step leaves a plan that would run. The original nodes are kept whole: a border holds on to the subplan it replaced.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode, AggregateMode, AggregateOutputMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, ReplaceChildrenOptions,
};

use crate::column::uploaded_columns;
use crate::expr::{Dictionaries, Dictionary};
use crate::operator::aggregate::DeviceAggregateExec;
use crate::operator::filter::DeviceFilterExec;
use crate::operator::join::{CpuJoin, DeviceJoinExec};
use crate::operator::limit::DeviceLimitExec;
use crate::operator::project::DeviceProjectExec;
use crate::operator::sort::DeviceSortExec;
use crate::operator::union::DeviceUnionExec;
use crate::operator::union::lower::union_columns;
use crate::options::MillpondOptions;
use crate::placement::bridge::Bridge;
use crate::placement::simplify::only_moves;
use crate::placement::{DeviceTree, Placed, judge};
use crate::reason::Reason;

/// Rows that are sorted as one: what one pipeline may read.
const MAX_SORTED_ROWS: usize = millpond_kernels::abi::MAX_EXTENT_ROWS as usize;

/// How often inputs of a plan are converted as if their order did not matter.
const MOST_TRIES: u32 = 256;

/// Converts one plan.
pub(super) struct Converter<'a> {
    options: &'a MillpondOptions,
    bridge: &'a Bridge<'a>,
    /// Numbers every string column of the plan, so that no two are taken for one.
    dictionaries: RefCell<Dictionaries>,
    uploads: Cell<usize>,
    /// Something on the device that sorts, groups or joins reads what is being converted: an order that it has may be lost.
    order_free: Cell<bool>,
    /// Orders that are lost, and needed, are made again by a sort. Otherwise what keeps one stays on the CPU.
    restores: bool,
    /// How often an input was converted again because its order is needed after all.
    again: Cell<u32>,
}

/// The same node over other children.
pub(super) fn with_children(
    plan: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

impl<'a> Converter<'a> {
    pub(super) fn new(options: &'a MillpondOptions, bridge: &'a Bridge<'a>, restores: bool) -> Self {
        Self {
            options,
            bridge,
            dictionaries: RefCell::default(),
            uploads: Cell::new(0),
            order_free: Cell::new(false),
            restores,
            again: Cell::new(0),
        }
    }

    /// What a node is lowered with; counts that one is.
    fn lowering(&self) -> RefMut<'_, Dictionaries> {
        self.bridge.count_lowering();
        self.dictionaries.borrow_mut()
    }

    /// The placed form of `plan` and everything below.
    pub(super) fn convert(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Placed> {
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let child = self.convert(filter.input())?;
            return self.unary(plan, child, |input| {
                // Rows that come sorted stay so; the first of them are those of the order.
                let kept = plan.properties().output_ordering().filter(|_| input.sorted);
                let columns = judge::filter(filter, &input.columns, &mut self.lowering())?;
                let mut device = DeviceFilterExec::new(filter, Arc::clone(&input.plan), kept.cloned());
                let needs_order = kept.is_some() || self.needs_order(plan.as_ref());
                if needs_order {
                    device = device.without_limit();
                }
                let tree = DeviceTree {
                    plan: Arc::new(device),
                    cpu: Arc::clone(plan),
                    columns,
                    row_limit: plan.fetch().filter(|_| !needs_order),
                    sorted: kept.is_some(),
                    aggregated: input.aggregated,
                };
                match kept {
                    Some(_) => Ok(limited(tree, 0, plan.fetch(), plan)),
                    None => self.restored(plan, tree),
                }
            });
        }
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let child = self.convert(projection.input())?;
            // A projection that only picks columns, or that computes one row, is no reason to move anything.
            if !judge::counts_as_operator(plan.as_ref()) && matches!(child, Placed::Host { .. }) {
                return self.stay(plan, vec![child], None);
            }
            return self.projection(plan, projection, child);
        }
        if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            return self.aggregate(plan, aggregate);
        }
        if let Some(sort) = plan.downcast_ref::<SortExec>() {
            return self.sort(plan, sort);
        }
        if let Some(partial) = plan.downcast_ref::<PartialSortExec>() {
            let whole = SortExec::new(partial.expr().clone(), Arc::clone(partial.input()));
            return self.sort(plan, &whole.with_fetch(partial.fetch()));
        }
        if let Some(join) = CpuJoin::of(plan) {
            return self.join(plan, &join);
        }
        if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
            return self.union(plan);
        }
        if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
            return self.merge(plan, merge);
        }
        if only_moves(plan.as_ref())
            && let Some(input) = plan.children().first()
        {
            return match self.convert(input)? {
                Placed::Device(tree) => Ok(Placed::Device(DeviceTree { cpu: Arc::clone(plan), ..tree })),
                child => self.stay(plan, vec![child], None),
            };
        }
        if let (Some((skip, fetch)), [input]) = (judge::limit(plan.as_ref()), plan.children().as_slice()) {
            return match self.with_order_free(false, || self.convert(input))? {
                Placed::Device(tree) => Ok(Placed::Device(limited(tree, skip, fetch, plan))),
                child => self.stay(plan, vec![child], None),
            };
        }
        let convert = || plan.children().into_iter().map(|c| self.convert(c)).collect::<Result<Vec<_>>>();
        let children = self.with_order_free(false, convert)?;
        let reason = Reason::NodeUnsupported { node: plan.name().to_string() };
        let reason = judge::counts_as_operator(plan.as_ref()).then_some(reason);
        self.stay(plan, children, reason.or_else(|| judge::computed_in_scan(plan.as_ref())))
    }

    /// Does `what` where the order of rows may be lost, or where it may not.
    fn with_order_free<T>(&self, order_free: bool, what: impl FnOnce() -> T) -> T {
        let before = self.order_free.replace(order_free);
        let done = what();
        self.order_free.set(before);
        done
    }

    /// True for a node whose order those above may count on, or that stops somewhere in an order.
    fn needs_order(&self, node: &dyn ExecutionPlan) -> bool {
        node.properties().output_ordering().is_some() && (node.fetch().is_some() || !self.order_free.get())
    }

    /// `tree`, which stands for `plan`, in the order that `plan` keeps, where that is needed.
    fn restored(&self, plan: &Arc<dyn ExecutionPlan>, tree: DeviceTree) -> Result<DeviceTree, Reason> {
        let Some(order) = plan.properties().output_ordering().filter(|_| self.needs_order(plan.as_ref())) else {
            return Ok(tree);
        };
        if !self.restores {
            return Err(Reason::OrderKept { node: plan.name().to_string() });
        }
        self.sorted(plan, tree, order, plan.fetch())
    }

    /// The first rows of `tree` in this order, which is what `plan` gives.
    fn sorted(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        tree: DeviceTree,
        order: &LexOrdering,
        fetch: Option<usize>,
    ) -> Result<DeviceTree, Reason> {
        judge::sort(order, &tree.columns, &mut self.lowering())?;
        countable(self.bridge, plan.as_ref(), tree.aggregated, fetch)?;
        let sort = SortExec::new(order.clone(), Arc::clone(plan));
        let plan_on_device = Arc::new(DeviceSortExec::new(&sort, fetch, Arc::clone(&tree.plan)));
        Ok(DeviceTree { plan: plan_on_device, cpu: Arc::clone(plan), row_limit: fetch, sorted: true, ..tree })
    }

    /// A merge of sorted partitions is their sort: those below it need not have an order of their own.
    fn merge(&self, plan: &Arc<dyn ExecutionPlan>, merge: &SortPreservingMergeExec) -> Result<Placed> {
        if self.order_free.get() && plan.fetch().is_none() {
            return Ok(match self.convert(merge.input())? {
                Placed::Device(tree) => Placed::Device(DeviceTree { cpu: Arc::clone(plan), ..tree }),
                Placed::Host { plan: input, pending } => {
                    Placed::Host { plan: Arc::new(CoalescePartitionsExec::new(input)), pending }
                }
            });
        }
        // A sort right below has the order already; its limit is the merge's. It may have left out keys that are constant in each
        // partition, and not in all together.
        let sorts = sorts_below(merge.input());
        let whole = if sorts { sorted_by(merge.input(), merge.expr())? } else { None };
        let as_sorted = whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, merge.input()));
        if let (Some(input), false) = (whole, as_sorted) {
            let merge = SortPreservingMergeExec::new(merge.expr().clone(), input).with_fetch(merge.fetch());
            if let Placed::Device(tree) = self.convert(&(Arc::new(merge) as Arc<dyn ExecutionPlan>))? {
                return Ok(Placed::Device(tree));
            }
        }
        let in_order = |tree: &DeviceTree| {
            tree.sorted && (as_sorted || tree.plan.properties().output_ordering() == Some(merge.expr()))
        };
        if !sorts
            && let Some(child) = self.in_any_order(|| self.convert(merge.input()))?
            && let Placed::Device(tree) = self.after_limit(child)
        {
            let tree = match in_order(&tree) {
                true => Ok(limited(tree, 0, plan.fetch(), plan)),
                // Sorted by fewer keys and cut, these may not be the first rows.
                false if tree.sorted && tree.row_limit.is_some() => Err(kept(plan)),
                false => self.sorted(plan, tree, merge.expr(), plan.fetch()),
            };
            if let Ok(tree) = tree {
                return Ok(Placed::Device(tree));
            }
        }
        match self.with_order_free(false, || self.convert(merge.input()))? {
            Placed::Device(tree) if in_order(&tree) => Ok(Placed::Device(limited(tree, 0, plan.fetch(), plan))),
            // With all below it: what is on the device has lost the order.
            Placed::Device(_) => Ok(Placed::Host { plan: Arc::clone(plan), pending: vec![kept(plan)] }),
            child => self.stay(plan, vec![child], None),
        }
    }

    /// What `convert` makes of an input whose order may be lost; nothing where that was tried often, and in vain.
    fn in_any_order<T>(&self, convert: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let tried = self.again.replace(self.again.get() + 1);
        if self.restores && tried < MOST_TRIES { self.with_order_free(true, convert).map(Some) } else { Ok(None) }
    }

    /// A node with one input goes to the device if `judge` agrees, above an upload if its input is a CPU plan.
    fn unary(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        child: Placed,
        judge: impl FnOnce(&DeviceTree) -> Result<DeviceTree, Reason>,
    ) -> Result<Placed> {
        if !judge::counts_as_operator(plan.as_ref()) && matches!(child, Placed::Host { .. }) {
            return self.stay(plan, vec![child], None);
        }
        let child = self.after_limit(child);
        let judged = match &child {
            Placed::Device(tree) => judge(tree),
            Placed::Host { plan: input, pending } => self.uploaded(input, pending).and_then(|tree| judge(&tree)),
        };
        match judged {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => self.stay(plan, vec![child], Some(reason)),
        }
    }

    /// What reads a subtree that stops after some rows must not see past them. A sort leaves none to see.
    fn after_limit(&self, child: Placed) -> Placed {
        match child {
            Placed::Device(tree) if tree.row_limit.is_some() && !tree.sorted => Placed::Device(stopped(tree)),
            other => other,
        }
    }

    /// A CPU plan as the source of a device subtree.
    fn uploaded(&self, input: &Arc<dyn ExecutionPlan>, pending: &[Reason]) -> Result<DeviceTree, Reason> {
        self.bridge.count_statistics();
        let statistics = judge::upload(input, self.options.min_rows)?;
        let upload = self.uploads.replace(self.uploads.get() + 1);
        let schema = input.schema();
        let columns = uploaded_columns(&schema, statistics.as_deref(), |column, data_type| {
            self.dictionaries.borrow_mut().add(Dictionary::Source { upload, column, data_type })
        });
        Ok(DeviceTree {
            plan: self.bridge.upload(Arc::clone(input), pending.to_vec()),
            cpu: Arc::clone(input),
            columns,
            row_limit: None,
            sorted: false,
            aggregated: false,
        })
    }

    /// The node stays on the CPU: device children get their upper borders, which show `reason`.
    fn stay(&self, plan: &Arc<dyn ExecutionPlan>, children: Vec<Placed>, reason: Option<Reason>) -> Result<Placed> {
        if children.is_empty() {
            return Ok(Placed::Host { plan: Arc::clone(plan), pending: reason.into_iter().collect() });
        }
        let requirements = plan.input_distribution_requirements();
        let distributions: Vec<Distribution> = requirements.per_child_distributions().cloned().collect();
        let mut pending = Vec::new();
        let mut shown = false;
        let mut changed = false;
        let mut inputs = Vec::with_capacity(children.len());
        for (index, child) in children.into_iter().enumerate() {
            match child {
                Placed::Device(tree) => {
                    let distribution = distributions.get(index).unwrap_or(&Distribution::UnspecifiedDistribution);
                    let hashed =
                        matches!(distribution, Distribution::KeyPartitioned(_)) || passes_hashing_on(plan, &tree);
                    inputs.push(self.bridge.download_for(tree, reason.iter().cloned().collect(), hashed)?);
                    shown = true;
                    changed = true;
                }
                Placed::Host { plan: input, pending: below } => {
                    changed |= !plan.children().get(index).is_some_and(|old| Arc::ptr_eq(old, &input));
                    pending.extend(below);
                    inputs.push(input);
                }
            }
        }
        if !shown {
            pending.extend(reason);
        }
        let plan = if changed { with_children(Arc::clone(plan), inputs)? } else { Arc::clone(plan) };
        Ok(Placed::Host { plan, pending })
    }

    fn projection(&self, plan: &Arc<dyn ExecutionPlan>, projection: &ProjectionExec, child: Placed) -> Result<Placed> {
        // A projection keeps the number and the order of rows, so limits and sorts below it do not matter.
        let judged = match &child {
            Placed::Device(tree) => {
                judge::projection(projection, &tree.columns, &mut self.lowering()).map(|columns| DeviceTree {
                    plan: Arc::new(DeviceProjectExec::new(
                        projection,
                        Arc::clone(&tree.plan),
                        plan.properties().output_ordering().filter(|_| tree.sorted).cloned(),
                    )),
                    cpu: Arc::clone(plan),
                    columns,
                    row_limit: tree.row_limit,
                    sorted: tree.sorted,
                    aggregated: tree.aggregated,
                })
            }
            Placed::Host { plan: input, pending } => self.uploaded(input, pending).and_then(|tree| {
                let columns = judge::projection(projection, &tree.columns, &mut self.lowering())?;
                let device = Arc::new(DeviceProjectExec::new(projection, Arc::clone(&tree.plan), None));
                self.restored(plan, DeviceTree { plan: device, cpu: Arc::clone(plan), columns, ..tree })
            }),
        };
        match judged {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => {
                let reason = judge::counts_as_operator(plan.as_ref()).then_some(reason);
                self.stay(plan, vec![child], reason)
            }
        }
    }

    /// A Final aggregate with its Partial, or a Single one.
    fn aggregate(&self, plan: &Arc<dyn ExecutionPlan>, last: &AggregateExec) -> Result<Placed> {
        let first = match last.mode().input_mode() {
            AggregateInputMode::Raw => Some(last),
            AggregateInputMode::Partial => partial_below(last),
        };
        let pair = first.filter(|_| last.mode().output_mode() == AggregateOutputMode::Final);
        let Some(first) = pair else {
            // A lone phase: its state is DataFusion's private matter.
            let child = self.with_order_free(false, || self.convert(last.input()))?;
            let reason = Reason::NodeUnsupported { node: format!("AggregateExec in mode {:?}", last.mode()) };
            let reason = (!matches!(last.mode(), AggregateMode::Partial)).then_some(reason);
            return self.stay(plan, vec![child], reason);
        };
        let child = self.with_order_free(true, || self.convert(first.input()))?;
        // On the CPU it may count on the order of its input: then that is converted again.
        let stays = |child: Placed, reason: Option<Reason>| {
            let child = match first.input().properties().output_ordering() {
                Some(_) => self.with_order_free(false, || self.convert(first.input()))?,
                None => child,
            };
            match std::ptr::eq(first, last) {
                true => self.stay(plan, vec![child], reason),
                false => self.rebuild_pair(plan, last, child, reason),
            }
        };
        let judged = |input: &DeviceTree| {
            let mut dictionaries = self.lowering();
            let (phases, columns) =
                judge::aggregate(first, last, &input.columns, self.options.deterministic_floats, &mut dictionaries)?;
            let phase = |input, phase| Arc::new(DeviceAggregateExec::new(phase, input)) as Arc<dyn ExecutionPlan>;
            let mut device = phases.into_iter().fold(Arc::clone(&input.plan), phase);
            // Groups that DataFusion would find one after the other in a sorted input: those above may count on it.
            let order = plan.properties().output_ordering().filter(|_| !self.order_free.get());
            if let Some(order) = order {
                self.bridge.count_lowering();
                judge::sort(order, &columns, &mut dictionaries)?;
                let sort = SortExec::new(order.clone(), Arc::clone(plan));
                device = Arc::new(DeviceSortExec::new(&sort, None, device));
            }
            Ok(DeviceTree {
                plan: device,
                cpu: Arc::clone(plan),
                columns,
                row_limit: None,
                sorted: order.is_some(),
                aggregated: true,
            })
        };
        if !judge::counts_as_operator(plan.as_ref()) && matches!(child, Placed::Host { .. }) {
            return stays(child, None);
        }
        let child = self.after_limit(child);
        let outcome = match &child {
            Placed::Device(tree) => judged(tree),
            Placed::Host { plan: input, pending } => self.uploaded(input, pending).and_then(|tree| judged(&tree)),
        };
        match outcome {
            Ok(tree) => Ok(Placed::Device(tree)),
            // The pair stays together: the reason is shown below the Partial, and all nodes between stay as they were.
            Err(reason) => stays(child, Some(reason)),
        }
    }

    /// Everything from `last` down to its Partial stays; the Partial's input is `child`.
    fn rebuild_pair(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        last: &AggregateExec,
        child: Placed,
        reason: Option<Reason>,
    ) -> Result<Placed> {
        let mut between: Vec<&Arc<dyn ExecutionPlan>> = vec![plan];
        let mut node = last.input();
        while node.downcast_ref::<AggregateExec>().is_none() {
            between.push(node);
            let Some(input) = node.children().first().copied() else { break };
            node = input;
        }
        let mut placed = self.stay(node, vec![child], reason)?;
        for node in between.into_iter().rev() {
            placed = self.stay(node, vec![placed], None)?;
        }
        Ok(placed)
    }

    /// A join goes to the device with both its inputs, whatever its algorithm and its mode.
    fn join(&self, plan: &Arc<dyn ExecutionPlan>, join: &CpuJoin<'_>) -> Result<Placed> {
        let inputs = || {
            let (left, right) = (self.convert(join.left)?, self.convert(join.right)?);
            Ok((self.after_limit(left), self.after_limit(right)))
        };
        let ordered = [join.left, join.right].iter().any(|input| input.properties().output_ordering().is_some());
        if !judge::counts_as_operator(plan.as_ref()) {
            let (left, right) = self.with_order_free(false, inputs)?;
            return self.stay(plan, vec![left, right], None);
        }
        let (left, right) = match self.in_any_order(inputs)? {
            Some(inputs) => inputs,
            None => self.with_order_free(false, inputs)?,
        };
        let own = |child: &Placed| -> Result<Option<DeviceTree>, Reason> {
            match child {
                Placed::Device(_) => Ok(None),
                Placed::Host { plan: input, pending } => self.uploaded(input, pending).map(Some),
            }
        };
        let judged = || -> Result<DeviceTree, Reason> {
            let uploaded = (own(&left)?, own(&right)?);
            let tree = |child: &'_ Placed, uploaded: &Option<DeviceTree>| match (child, uploaded) {
                (_, Some(tree)) | (Placed::Device(tree), None) => (Arc::clone(&tree.plan), tree.columns.clone()),
                (Placed::Host { plan, .. }, None) => (Arc::clone(plan), vec![]),
            };
            let ((left_plan, lefts), (right_plan, rights)) = (tree(&left, &uploaded.0), tree(&right, &uploaded.1));
            let device = DeviceJoinExec::new(join, Arc::clone(&left_plan), right_plan);
            let (build, probe) = match Arc::ptr_eq(device.build(), &left_plan) {
                true => (lefts, rights),
                false => (rights, lefts),
            };
            let columns = judge::join(&device, &build, &probe, &mut self.lowering())?;
            let device = if self.needs_order(plan.as_ref()) { device.without_limit() } else { device };
            let row_limit = device.row_limit();
            let tree = DeviceTree {
                plan: Arc::new(device),
                cpu: Arc::clone(plan),
                columns,
                row_limit,
                sorted: false,
                aggregated: true,
            };
            self.restored(plan, tree)
        };
        match judged() {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => {
                // On the CPU it may count on the order of its inputs.
                let (left, right) = if ordered { self.with_order_free(false, inputs)? } else { (left, right) };
                self.stay(plan, vec![left, right], Some(reason))
            }
        }
    }

    /// A union goes to the device whole, its inputs that are on the CPU above uploads.
    fn union(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Placed> {
        let convert = |child| Ok(self.after_limit(self.convert(child)?));
        let children = plan.children().into_iter().map(convert).collect::<Result<Vec<_>>>()?;
        if !judge::counts_as_operator(plan.as_ref()) {
            return self.stay(plan, children, None);
        }
        let judged = || -> Result<DeviceTree, Reason> {
            let (mut inputs, mut columns) = (Vec::new(), Vec::new());
            for child in &children {
                let (input, own) = match child {
                    Placed::Device(tree) => (Arc::clone(&tree.plan), tree.columns.clone()),
                    Placed::Host { plan, pending } => {
                        let tree = self.uploaded(plan, pending)?;
                        (tree.plan, tree.columns)
                    }
                };
                inputs.push(input);
                columns.push(own);
            }
            let columns = union_columns(&columns, &mut self.dictionaries.borrow_mut());
            for column in &columns {
                column.ty()?;
            }
            let tree = DeviceTree {
                plan: Arc::new(DeviceUnionExec::new(plan.as_ref(), inputs)),
                cpu: Arc::clone(plan),
                columns,
                row_limit: None,
                sorted: false,
                aggregated: true,
            };
            self.restored(plan, tree)
        };
        match judged() {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => self.stay(plan, children, Some(reason)),
        }
    }

    /// A sort goes with the device subtree below it. Rows that are on the CPU anyway are moved for a sort alone, too.
    fn sort(&self, plan: &Arc<dyn ExecutionPlan>, sort: &SortExec) -> Result<Placed> {
        let child = self.with_order_free(self.restores, || self.convert(sort.input()))?;
        if self.restores && self.order_free.get() && sort.fetch().is_none() {
            // Nobody sees the order.
            return Ok(match self.after_limit(child) {
                Placed::Device(tree) => {
                    let cpu = Arc::clone(plan);
                    Placed::Device(DeviceTree { cpu, row_limit: None, sorted: false, ..tree })
                }
                child => child,
            });
        }
        self.unary(plan, child, |input| {
            judge::sort(sort.expr(), &input.columns, &mut self.lowering())?;
            countable(self.bridge, sort.input().as_ref(), input.aggregated, sort.fetch())?;
            let fetch = sort.fetch();
            Ok(DeviceTree {
                plan: Arc::new(DeviceSortExec::new(sort, fetch, Arc::clone(&input.plan))),
                cpu: Arc::clone(plan),
                columns: input.columns.clone(),
                row_limit: fetch,
                sorted: true,
                aggregated: input.aggregated,
            })
        })
    }
}

/// True where `plan` is a sort, but for projections and nodes that only move rows.
fn sorts_below(mut plan: &Arc<dyn ExecutionPlan>) -> bool {
    while only_moves(plan.as_ref()) || plan.is::<ProjectionExec>() {
        let Some(input) = plan.children().first().copied() else { return false };
        plan = input;
    }
    plan.is::<SortExec>()
}

/// `plan` with the sort that [`sorts_below`] finds in each partition by all of `order`; `plan` itself where it is so already, nothing where
/// `order` has no form below a projection.
fn sorted_by(plan: &Arc<dyn ExecutionPlan>, order: &LexOrdering) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        if sort.expr() == order {
            return Ok(Some(Arc::clone(plan)));
        }
        let whole = SortExec::new(order.clone(), Arc::clone(sort.input()));
        let whole = whole.with_preserve_partitioning(sort.preserve_partitioning()).with_fetch(sort.fetch());
        return Ok(Some(Arc::new(whole)));
    }
    let children = plan.children();
    let [input] = children.as_slice() else { return Ok(None) };
    let below = match plan.downcast_ref::<ProjectionExec>() {
        None => Some(order.clone()),
        Some(projection) => {
            let through = |of: &PhysicalSortExpr| {
                let expr = Arc::clone(&of.expr).transform_up(|part| {
                    Ok(match part.downcast_ref::<Column>() {
                        Some(column) => Transformed::yes(Arc::clone(&projection.expr()[column.index()].expr)),
                        None => Transformed::no(part),
                    })
                });
                Ok::<_, DataFusionError>(PhysicalSortExpr { expr: expr.data()?, options: of.options })
            };
            LexOrdering::new(order.iter().map(through).collect::<Result<Vec<_>>>()?)
        }
    };
    let Some(below) = below else { return Ok(None) };
    match sorted_by(input, &below)? {
        Some(sorted) if Arc::ptr_eq(&sorted, input) => Ok(Some(Arc::clone(plan))),
        Some(sorted) => with_children(Arc::clone(plan), vec![sorted]).map(Some),
        None => Ok(None),
    }
}

fn kept(plan: &Arc<dyn ExecutionPlan>) -> Reason {
    Reason::OrderKept { node: plan.name().to_string() }
}

/// Refuses to sort more rows than can be. Rows of a scan are counted beforehand; groups are not. The first few of any number are
/// found.
fn countable(
    bridge: &Bridge<'_>,
    input: &dyn ExecutionPlan,
    aggregated: bool,
    fetch: Option<usize>,
) -> Result<(), Reason> {
    if aggregated || fetch.is_some() {
        return Ok(());
    }
    bridge.count_statistics();
    if let Some(statistics) = judge::statistics(input)
        && let Precision::Exact(rows) | Precision::Inexact(rows) = statistics.num_rows
        && rows > MAX_SORTED_ROWS
    {
        return Err(Reason::TooManyRowsToSort { rows, limit: MAX_SORTED_ROWS });
    }
    Ok(())
}

/// A subtree that stops after some rows, with a node above it that holds it to that.
fn stopped(tree: DeviceTree) -> DeviceTree {
    let plan = Arc::new(DeviceLimitExec::new(Arc::clone(&tree.plan), 0, tree.row_limit, None));
    DeviceTree { plan, row_limit: None, ..tree }
}

/// The rows of a subtree after the first `skip`, at most `fetch`, which is what `plan` gives.
fn limited(tree: DeviceTree, skip: usize, fetch: Option<usize>, plan: &Arc<dyn ExecutionPlan>) -> DeviceTree {
    let cpu = Arc::clone(plan);
    let stops = |tree: &DeviceTree| tree.row_limit.filter(|_| !tree.sorted);
    let already = fetch.is_none() || tree.row_limit.is_some_and(|own| fetch.is_some_and(|fetch| own <= fetch));
    if skip == 0 && already {
        return DeviceTree { cpu, ..tree };
    }
    // Whoever stops by itself, and earlier than this asks, has to stop exactly there.
    let enough = |own: usize| fetch.is_some_and(|fetch| skip.saturating_add(fetch) <= own);
    let tree = if stops(&tree).is_some_and(|own| !enough(own)) { stopped(tree) } else { tree };
    let order = tree.plan.properties().output_ordering().filter(|_| tree.sorted).cloned();
    let plan = Arc::new(DeviceLimitExec::new(Arc::clone(&tree.plan), skip, fetch, order));
    DeviceTree { plan, cpu, row_limit: fetch.filter(|_| tree.sorted), ..tree }
}

/// True when rows hashed by key below `plan` are so above it, and a join further up may count on that.
fn passes_hashing_on(plan: &Arc<dyn ExecutionPlan>, input: &DeviceTree) -> bool {
    let (above, below) = (plan.output_partitioning(), input.cpu.output_partitioning());
    match (above, below) {
        (Partitioning::Hash(_, n), Partitioning::Hash(_, m)) => n == m && !input.sorted,
        _ => false,
    }
}

/// The Partial aggregate below a Final one, through nodes that only move rows or put them in the order of their keys.
fn partial_below(last: &AggregateExec) -> Option<&AggregateExec> {
    let mut node = last.input();
    loop {
        if let Some(first) = node.downcast_ref::<AggregateExec>() {
            return (*first.mode() == AggregateMode::Partial).then_some(first);
        }
        let sorts = node.is::<SortExec>() && node.fetch().is_none();
        if !only_moves(node.as_ref()) && !sorts {
            return None;
        }
        node = node.children().first().copied()?;
    }
}
