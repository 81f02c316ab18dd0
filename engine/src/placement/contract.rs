//! The trait that the engine requires of an operator; it contains the operator's placement. [`ToSegments`] splits its
//! device nodes into segments of a program.
//!
//! ```text
//!   placement walks a plan from its root and offers each node to the operators of the registry, in their order
//!
//!     SortExec        [ filter, project, …, sort ].place(node, to) ──► None: the node belongs to another operator
//!       FilterExec                                     │          └──► Some(placed): with the whole subtree below it
//!         Scan                                         │
//!                                      to.place(input)   places an input, by the same walk
//!                                      to.upload(…)      a CPU input, as the source of a device subtree
//!                                      to.stay(…)        the node stays on the CPU, for a reason that EXPLAIN prints
//! ```
//!
//! Ground    this file imports no operator, and neither does placement: it calls operators through this trait. The list
//!           of all operators is [`operator::registry`](crate::operator::registry), which only a session imports.
//! Open      other crates add operators with [`MillpondBuilder::operator`](crate::MillpondBuilder::operator).
//! Refusals  are reasons, not errors: no plan that DataFusion can run fails in placement.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use datafusion::error::Result;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;

use crate::column::ColumnInfo;
use crate::error::reason::Reason;
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;

/// An operator: which nodes of a CPU plan it replaces, and under which conditions. Without a device form its
/// [`ToSegments`] is empty.
///
/// ```
/// use std::sync::Arc;
/// use millpond::contract::{DeviceOperator, Placed};
/// use millpond::datafusion::error::Result;
/// use millpond::datafusion::physical_plan::{ExecutionPlan, unnest::UnnestExec};
/// use millpond::placement::Placing;
/// use millpond::program::contract::ToSegments;
/// use millpond::error::reason::Reason;
///
/// /// Says in EXPLAIN why lists are not unnested on the device.
/// #[derive(Debug)]
/// struct Unnest;
///
/// impl ToSegments for Unnest {}
///
/// impl DeviceOperator for Unnest {
///     fn name(&self) -> &'static str {
///         "unnest"
///     }
///
///     fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
///         let unnest = node.downcast_ref::<UnnestExec>()?;
///         let why = "lists have no device form".to_string();
///         let reason = Reason::ExprUnsupported { expr: "unnest".into(), why };
///         Some(to.in_order(|| to.place(unnest.input())).and_then(|input| to.stay(node, vec![input], Some(reason))))
///     }
///
///     fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
///         node.is::<UnnestExec>().then_some(true)
///     }
/// }
///
/// let session = millpond::Millpond::builder().operator(Arc::new(Unnest)).build()?;
/// # Ok::<_, millpond::EngineError>(())
/// ```
pub trait DeviceOperator: ToSegments {
    /// Name in the registry. An added operator replaces an earlier one of the same name.
    fn name(&self) -> &'static str;

    /// Places `node` and everything below it. `None`: the node does not belong to this operator.
    ///
    /// # Errors
    /// DataFusion's, if it refuses changed inputs. A node that the device cannot run [stays](Placing::stay): no error.
    fn place(&self, _node: &Arc<dyn ExecutionPlan>, _to: &Placing<'_>) -> Option<Result<Placed>> {
        None
    }

    /// True if `node`, in its CPU or device form, processes the rows it reads: reports then count it as an operator,
    /// and a CPU placement as a fallback. `None`: the node does not belong to this operator.
    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool>;

    /// True for this operator's own device nodes.
    fn is_device_node(&self, _node: &dyn ExecutionPlan) -> bool {
        false
    }

    /// True for a node whose rows may never end, so that only a limit above it stops them.
    fn may_never_end(&self, _node: &dyn ExecutionPlan) -> bool {
        false
    }

    /// A node above `tree` that skips the first `skip` rows and returns exactly the first `fetch` of the others.
    /// Placement calls this where a node stops after some rows. `None`: this operator does not limit.
    fn limit(&self, _tree: &DeviceTree, _skip: usize, _fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        None
    }

    /// A node above `tree` that returns the first `fetch` rows of the CPU plan `node` in `order`. Placement calls this
    /// where the device has lost an order. `None`: this operator does not sort.
    fn sort(
        &self,
        _node: &Arc<dyn ExecutionPlan>,
        _tree: &DeviceTree,
        _order: &LexOrdering,
        _fetch: Option<usize>,
        _to: &Placing<'_>,
    ) -> Option<Result<Arc<dyn ExecutionPlan>, Reason>> {
        None
    }
}

/// Operators that place a session's plans. Clones share one list.
#[derive(Clone, Default)]
pub struct Operators {
    list: Arc<RwLock<OperatorList>>,
}

/// Operators in the order in which placement calls them.
type OperatorList = Arc<[Arc<dyn DeviceOperator>]>;

/// Result of placing a subtree.
pub enum Placed {
    /// A device subtree without its upper border.
    Device(DeviceTree),
    /// A plan that runs on the CPU (device subtrees inside it have their borders), and reasons not yet shown by any
    /// border.
    Host {
        /// The plan.
        plan: Arc<dyn ExecutionPlan>,
        /// Reasons not yet shown by any border.
        pending: Vec<Reason>,
    },
}

/// A device subtree and the known properties of its output.
#[derive(Debug, Clone)]
pub struct DeviceTree {
    /// Its top node.
    pub plan: Arc<dyn ExecutionPlan>,
    /// DataFusion's plan for the same rows.
    pub cpu: Arc<dyn ExecutionPlan>,
    /// Types, widths and ranges of its columns.
    pub columns: Vec<ColumnInfo>,
    /// Maximum number of output rows, if a limit was built into the top node.
    pub row_limit: Option<usize>,
    /// The rows leave it sorted.
    pub sorted: bool,
    /// The row count is not that of a scan: the subtree contains an aggregate, a join or a union.
    pub aggregated: bool,
}

impl Operators {
    /// A registry of these operators, in calling order.
    pub fn new(operators: impl IntoIterator<Item = Arc<dyn DeviceOperator>>) -> Self {
        Self { list: Arc::new(RwLock::new(operators.into_iter().collect())) }
    }

    /// Adds an operator to this registry and its clones, replacing an earlier one of the same name. Only later plans
    /// see it.
    pub fn add(&self, operator: Arc<dyn DeviceOperator>) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = list.to_vec();
        match all.iter_mut().find(|known| known.name() == operator.name()) {
            Some(known) => *known = operator,
            None => all.push(operator),
        }
        *list = all.into();
    }

    /// All operators, in their order.
    pub fn all(&self) -> Arc<[Arc<dyn DeviceOperator>]> {
        Arc::clone(&self.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same operators, as a program's [`ToSegments`]s.
    pub fn cuts(&self) -> Arc<[Arc<dyn ToSegments>]> {
        self.all().iter().map(|operator| Arc::clone(operator) as Arc<dyn ToSegments>).collect()
    }

    /// True for operators that process table rows: those that may run on the device, and whose CPU placement is a
    /// fallback. Scans, one-row plans, catalog statements, EXPLAIN and pass-through nodes do not count.
    pub fn counts(&self, node: &dyn ExecutionPlan) -> bool {
        let works = self.all().iter().find_map(|operator| operator.works(node));
        works.unwrap_or_else(|| is_cpu_operator(node)) && reads_rows(node)
    }

    /// True for plans with rows that [may never end](DeviceOperator::may_never_end).
    pub fn may_never_end(&self, plan: &dyn ExecutionPlan) -> bool {
        let own = self.all().iter().any(|operator| operator.may_never_end(plan));
        own || plan.children().into_iter().any(|child| self.may_never_end(child.as_ref()))
    }

    /// True for the device nodes of these operators.
    pub fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        self.all().iter().any(|operator| operator.is_device_node(node))
    }
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().iter().map(|operator| operator.name())).finish()
    }
}

/// True for DataFusion's row operators that have no device operator.
fn is_cpu_operator(node: &dyn ExecutionPlan) -> bool {
    let name = node.name();
    let kinds = ["Join", "Window", "TopK"];
    kinds.iter().any(|kind| name.contains(kind)) || name == "UnnestExec"
}

/// True if the plan contains a scan, that is, more rows than a constant.
fn reads_rows(plan: &dyn ExecutionPlan) -> bool {
    let children = plan.children();
    if children.is_empty() {
        return !(plan.is::<PlaceholderRowExec>() || plan.is::<EmptyExec>() || plan.is::<ExplainExec>());
    }
    children.into_iter().any(|child| reads_rows(child.as_ref()))
}
