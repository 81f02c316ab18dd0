//! Walks a plan from its root, and calls the registry's operators to place each node.
//!
//!   node ──► an operator's          it places the node and its inputs: CPU node → device node, or the node stays
//!        ──► only moves rows        is removed above a device node, and stays above a CPU node
//!        ──► any other              stays, with a reason if it processes rows
//!
//! Leaves up  an operator first places its inputs, by the same walk, and then its node.
//! Order      of rows: an input may lose it if a device operator sorts, groups or joins its rows. An order that is lost
//!            but needed is restored by a sort above the node.
//! Kept       each step returns an executable plan and leaves the original nodes intact: a border keeps the subplan
//!            that it replaced.
//! Pure       expressions are lowered to the kernels' language and discarded; that shows whether a node can run, and
//!            its output types.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, ReplaceChildrenOptions,
};

use crate::column::uploaded_columns;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Dictionary};
use crate::options::MillpondOptions;
use crate::placement::contract::{DeviceTree, Operators, Placed};
use crate::placement::fence::computed_in_scan;
use crate::placement::simplify::{below_moves, only_moves};
use crate::placement::statistics::PlanStatistics;
use crate::program::judged::Judged;
use crate::source::computed::computed_apart;
use crate::source::filtered::apart;

/// Maximum number of times that inputs of a plan are placed as if their order did not matter.
const MOST_TRIES: u32 = 256;

/// Creates the nodes between CPU and device.
pub(super) trait Borders {
    /// Lower border: `plan` stays on the CPU for `reasons`, and feeds the device. Its statistics are already known.
    fn upload(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        reasons: Vec<Reason>,
        statistics: Option<Arc<Statistics>>,
    ) -> Arc<dyn ExecutionPlan>;

    /// Upper border: the nodes above stay on the CPU for `reasons`, and, if `hashed`, rely on rows hashed by key.
    fn download(&self, tree: DeviceTree, reasons: Vec<Reason>, hashed: bool) -> Result<Arc<dyn ExecutionPlan>>;
}

/// Placement of one plan: the services for an operator that places a node.
pub struct Placing<'a> {
    options: &'a MillpondOptions,
    operators: &'a Operators,
    borders: &'a dyn Borders,
    statistics: &'a PlanStatistics<'a>,
    judged: &'a Judged,
    /// Assigns an ID to each string column of the plan.
    dictionaries: RefCell<Dictionaries>,
    uploads: Cell<usize>,
    /// True if a device operator above sorts, groups or joins the rows: their order may be lost.
    order_free: Cell<bool>,
    /// True if lost orders are restored by a sort where needed; otherwise nodes that keep an order stay on the CPU.
    restores: bool,
    /// Number of times that an input was placed as if its order did not matter.
    tries: Cell<u32>,
    /// True if a node of the plan stops after some rows.
    stops: bool,
}

/// True for plans in which a node stops after some rows of its input. A sort reads all of them.
fn stops(plan: &dyn ExecutionPlan) -> bool {
    let limits = plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>();
    let own = limits || plan.fetch().is_some() && !plan.is::<SortExec>() && !plan.is::<SortPreservingMergeExec>();
    own || plan.children().into_iter().any(|child| stops(child.as_ref()))
}

/// The node with other children.
pub(crate) fn with_children(
    plan: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

impl<'a> Placing<'a> {
    pub(super) fn new(
        options: &'a MillpondOptions,
        operators: &'a Operators,
        borders: &'a dyn Borders,
        statistics: &'a PlanStatistics<'a>,
        judged: &'a Judged,
        restores: bool,
    ) -> Self {
        Self {
            options,
            operators,
            borders,
            statistics,
            judged,
            dictionaries: RefCell::default(),
            uploads: Cell::new(0),
            order_free: Cell::new(false),
            restores,
            tries: Cell::new(0),
            stops: false,
        }
    }

    /// Sets whether a node of `plan` stops after some rows.
    pub(super) fn of(self, plan: &dyn ExecutionPlan) -> Self {
        Self { stops: stops(plan), ..self }
    }

    /// Places `plan` and everything below it.
    ///
    /// # Errors
    /// DataFusion's, if it refuses the changed inputs.
    pub fn place(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Placed> {
        if let Some(placed) = self.operators.all().iter().find_map(|operator| operator.place(plan, self)) {
            return placed;
        }
        if only_moves(plan.as_ref())
            && let Some(input) = plan.children().first()
        {
            return match self.place(input)? {
                Placed::Device(tree) => Ok(Placed::Device(DeviceTree { cpu: Arc::clone(plan), ..tree })),
                child => self.stay(plan, vec![child], None),
            };
        }
        let place = || plan.children().into_iter().map(|child| self.place(child)).collect::<Result<Vec<_>>>();
        let children = self.in_order(place)?;
        let reason = Reason::NodeUnsupported { node: plan.name().to_string() };
        let reason = self.counts(plan.as_ref()).then_some(reason);
        self.stay(plan, children, reason.or_else(|| computed_in_scan(plan.as_ref())))
    }

    /// Splits a filtering scan into a filter above a scan: stored columns, and the device's decoder, contain all rows.
    pub fn apart(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
        apart(plan)
    }

    /// Splits a computing scan into a projection above a scan of columns.
    pub fn computed_apart(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
        computed_apart(plan)
    }

    /// The session's options.
    pub fn options(&self) -> &MillpondOptions {
        self.options
    }

    /// Dictionaries for lowering the expressions of a node, to check whether it can run on the device. Reports count
    /// the calls.
    pub fn lowering(&self) -> RefMut<'_, Dictionaries> {
        self.judged.lowerings.fetch_add(1, Ordering::Relaxed);
        self.dictionaries.borrow_mut()
    }

    /// Dictionaries of the plan's string columns.
    pub fn dictionaries(&self) -> RefMut<'_, Dictionaries> {
        self.dictionaries.borrow_mut()
    }

    /// DataFusion's statistics of a CPU plan; computed once per plan.
    pub fn statistics(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<Statistics>> {
        self.statistics.of(plan)
    }

    /// True if `node` [counts](Operators::counts) as an operator.
    pub fn counts(&self, node: &dyn ExecutionPlan) -> bool {
        self.operators.counts(node)
    }

    /// True if lost orders are restored by a sort where needed; otherwise nodes that keep an order stay on the CPU.
    pub fn restores(&self) -> bool {
        self.restores
    }

    /// True if the node being placed may lose the order of its rows.
    pub fn is_order_free(&self) -> bool {
        self.order_free.get()
    }

    /// Runs `what` with the order of rows free to be lost, or not.
    pub fn with_order_free<T>(&self, order_free: bool, what: impl FnOnce() -> T) -> T {
        let before = self.order_free.replace(order_free);
        let done = what();
        self.order_free.set(before);
        done
    }

    /// Runs `what` with the order of rows preserved.
    pub fn in_order<T>(&self, what: impl FnOnce() -> T) -> T {
        self.with_order_free(false, what)
    }

    /// Runs `place` for an input whose order may be lost; `None` if orders are not restored, or after too many
    /// attempts.
    pub fn in_any_order<T>(&self, place: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let tried = self.tries.replace(self.tries.get() + 1);
        if self.restores && tried < MOST_TRIES { self.with_order_free(true, place).map(Some) } else { Ok(None) }
    }

    /// True for a node whose order the nodes above may rely on, or that stops after some rows of an order.
    pub fn needs_order(&self, node: &dyn ExecutionPlan) -> bool {
        node.properties().output_ordering().is_some() && (node.fetch().is_some() || !self.order_free.get())
    }

    /// Restores the order of `plan` in `tree`, its device form, if needed.
    ///
    /// # Errors
    /// The reason why the order cannot be restored.
    pub fn restore_order(&self, plan: &Arc<dyn ExecutionPlan>, tree: DeviceTree) -> Result<DeviceTree, Reason> {
        let Some(order) = plan.properties().output_ordering().filter(|_| self.needs_order(plan.as_ref())) else {
            return Ok(tree);
        };
        if !self.restores {
            return Err(Reason::OrderKept { node: plan.name().to_string() });
        }
        self.sort(plan, tree, order, plan.fetch())
    }

    /// Sorts `tree` and keeps the first rows, which replaces `plan`.
    ///
    /// # Errors
    /// The reason why the device cannot sort them.
    pub fn sort(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        tree: DeviceTree,
        order: &LexOrdering,
        fetch: Option<usize>,
    ) -> Result<DeviceTree, Reason> {
        let sort = |tree: &DeviceTree| {
            self.operators.all().iter().find_map(|operator| operator.sort(plan, tree, order, fetch, self))
        };
        let sorted = sort(&tree).unwrap_or_else(|| Err(Reason::OrderKept { node: plan.name().to_string() }))?;
        Ok(DeviceTree { plan: sorted, cpu: Arc::clone(plan), row_limit: fetch, sorted: true, ..tree })
    }

    /// Skips the first `skip` rows of a subtree and keeps at most `fetch`, which replaces `plan`.
    ///
    /// # Errors
    /// If no operator limits.
    pub fn limit(
        &self,
        tree: DeviceTree,
        skip: usize,
        fetch: Option<usize>,
        plan: &Arc<dyn ExecutionPlan>,
    ) -> Result<DeviceTree, Reason> {
        let cpu = Arc::clone(plan);
        let already = fetch.is_none() || tree.row_limit.is_some_and(|own| fetch.is_some_and(|fetch| own <= fetch));
        if skip == 0 && already {
            return Ok(DeviceTree { cpu, ..tree });
        }
        // A subtree that stops by itself, earlier than `plan` requires, has to stop exactly at its limit.
        let enough = |own: usize| fetch.is_some_and(|fetch| skip.saturating_add(fetch) <= own);
        let stops_early = tree.row_limit.is_some_and(|own| !tree.sorted && !enough(own));
        let tree = if stops_early { self.stop(&tree)? } else { tree };
        let limited = self.limit_node(&tree, skip, fetch)?;
        Ok(DeviceTree { plan: limited, cpu, row_limit: fetch.filter(|_| tree.sorted), ..tree })
    }

    /// An operator above a subtree that stops after some rows must not receive more. A sort outputs exactly its limit.
    pub fn after_limit(&self, child: Placed) -> Result<Placed> {
        match child {
            Placed::Device(tree) if tree.row_limit.is_some() && !tree.sorted => match self.stop(&tree) {
                Ok(tree) => Ok(Placed::Device(tree)),
                Err(reason) => {
                    let plan = self.borders.download(tree, vec![reason], false)?;
                    Ok(Placed::Host { plan, pending: vec![] })
                }
            },
            other => Ok(other),
        }
    }

    /// A subtree with a row limit, with a node above it that enforces the limit.
    fn stop(&self, tree: &DeviceTree) -> Result<DeviceTree, Reason> {
        let plan = self.limit_node(tree, 0, tree.row_limit)?;
        Ok(DeviceTree { plan, row_limit: None, ..tree.clone() })
    }

    fn limit_node(
        &self,
        tree: &DeviceTree,
        skip: usize,
        fetch: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, Reason> {
        let limit = self.operators.all().iter().find_map(|operator| operator.limit(tree, skip, fetch));
        limit.ok_or_else(|| Reason::NodeUnsupported { node: "GlobalLimitExec".to_string() })
    }

    /// Places a node with one input on the device if `judge` agrees, above an upload if its input is a CPU plan.
    ///
    /// # Errors
    /// DataFusion's, if it refuses the changed inputs.
    pub fn unary(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        child: Placed,
        judge: impl FnOnce(&DeviceTree) -> Result<DeviceTree, Reason>,
    ) -> Result<Placed> {
        if !self.counts(plan.as_ref()) && matches!(child, Placed::Host { .. }) {
            return self.stay(plan, vec![child], None);
        }
        let child = self.after_limit(child)?;
        match self.tree(&child).and_then(|tree| judge(&tree)) {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => self.stay(plan, vec![child], Some(reason)),
        }
    }

    /// The device subtree for the rows of `child`; a CPU plan is uploaded.
    ///
    /// # Errors
    /// The reason why its rows are not uploaded.
    pub fn tree(&self, child: &Placed) -> Result<DeviceTree, Reason> {
        match child {
            Placed::Device(tree) => Ok(tree.clone()),
            Placed::Host { plan, pending } => self.upload(plan, pending),
        }
    }

    /// Uploads a CPU plan as the source of a device subtree. A plan that is known to be small, or that never ends,
    /// stays on the CPU.
    ///
    /// # Errors
    /// The reason why its rows are not uploaded.
    pub fn upload(&self, input: &Arc<dyn ExecutionPlan>, pending: &[Reason]) -> Result<DeviceTree, Reason> {
        if input.boundedness().is_unbounded() {
            return Err(Reason::Unbounded { node: input.name().to_string() });
        }
        // A recursive query outputs the rows of its last step only once.
        let once = input.exists(|node| Ok(node.is::<WorkTableExec>())).unwrap_or(true);
        if once {
            return Err(Reason::ReadOnce { node: "WorkTableExec".to_string() });
        }
        if self.stops && self.operators.may_never_end(input.as_ref()) {
            return Err(Reason::StoppedAbove { node: input.name().to_string() });
        }
        let read = below_moves(Arc::clone(input));
        let statistics = self.statistics(&read);
        let min_rows = self.options.min_rows;
        if let Some(Precision::Exact(rows)) = statistics.as_ref().map(|s| s.num_rows)
            && rows < min_rows
        {
            return Err(Reason::TooFewRows { rows, min_rows });
        }
        let upload = self.uploads.replace(self.uploads.get() + 1);
        let columns = uploaded_columns(&input.schema(), statistics.as_deref(), |column, data_type| {
            self.dictionaries.borrow_mut().add(Dictionary::Source { upload, column, data_type })
        });
        Ok(DeviceTree {
            plan: self.borders.upload(read, pending.to_vec(), statistics),
            cpu: Arc::clone(input),
            columns,
            row_limit: None,
            sorted: false,
            aggregated: false,
        })
    }

    /// Leaves the node on the CPU: device children get their upper borders, which show `reason`.
    ///
    /// # Errors
    /// DataFusion's, if it refuses the changed inputs.
    pub fn stay(&self, plan: &Arc<dyn ExecutionPlan>, children: Vec<Placed>, reason: Option<Reason>) -> Result<Placed> {
        let note = |plan: &Arc<dyn ExecutionPlan>, reason: &Option<Reason>| {
            reason.iter().for_each(|reason| self.judged.stays(plan, reason.clone()));
        };
        if children.is_empty() {
            note(plan, &reason);
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
                    inputs.push(self.borders.download(tree, reason.iter().cloned().collect(), hashed)?);
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
        let plan = if changed { with_children(Arc::clone(plan), inputs)? } else { Arc::clone(plan) };
        note(&plan, &reason);
        if !shown {
            pending.extend(reason);
        }
        Ok(Placed::Host { plan, pending })
    }
}

/// True if `plan` preserves hash partitioning of its input, and a join further up may rely on it.
fn passes_hashing_on(plan: &Arc<dyn ExecutionPlan>, input: &DeviceTree) -> bool {
    let (above, below) = (plan.output_partitioning(), input.cpu.output_partitioning());
    match (above, below) {
        (Partitioning::Hash(_, n), Partitioning::Hash(_, m)) => n == m && !input.sorted,
        _ => false,
    }
}
