//! What the engine asks of an operator: the trait behind which each operator's placement lies. How its device nodes become segments
//! of a program is its [`Cut`].
//!
//! ```text
//!   placement walks a plan from its root, and asks the operators of the registry about each node, in their order
//!
//!     SortExec        [ filter, project, …, sort ].place(node, to) ──► None: the node is another operator's
//!       FilterExec                                     │          └──► Some(placed): with all that is below it
//!         Scan                                         │
//!                                      to.place(input)   an input, by the same walk
//!                                      to.upload(…)      an input that stays on the CPU, as the source of a device subtree
//!                                      to.stay(…)        the node stays on the CPU, for a reason that EXPLAIN prints
//! ```
//!
//! Ground    this file imports no operator. Placement imports none either: it asks operators through this trait. The list of all
//!           is [`operator::registry`](crate::operator::registry), which only a session imports.
//! Open      a crate that uses the engine adds operators with [`MillpondBuilder::operator`](crate::MillpondBuilder::operator).
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
use crate::placement::walk::Placing;
use crate::program::contract::Cut;
use crate::reason::Reason;

/// One operator: which nodes of a CPU plan it stands for, and when it may. One without a device form has an empty [`Cut`].
///
/// ```
/// use std::sync::Arc;
/// use millpond::contract::{DeviceOperator, Placed};
/// use millpond::datafusion::error::Result;
/// use millpond::datafusion::physical_plan::{ExecutionPlan, unnest::UnnestExec};
/// use millpond::placement::Placing;
/// use millpond::program::contract::Cut;
/// use millpond::reason::Reason;
///
/// /// Says in EXPLAIN why lists are not unnested on the device.
/// #[derive(Debug)]
/// struct Unnest;
///
/// impl Cut for Unnest {}
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
pub trait DeviceOperator: Cut {
    /// Its name in the registry. An operator that is added takes the place of an earlier one of the same name.
    fn name(&self) -> &'static str;

    /// Places `node` and everything below it. `None`: the node is not this operator's.
    ///
    /// # Errors
    /// DataFusion's, when it refuses changed inputs. A node that the device cannot run is no error: it [stays](Placing::stay).
    fn place(&self, _node: &Arc<dyn ExecutionPlan>, _to: &Placing<'_>) -> Option<Result<Placed>> {
        None
    }

    /// Whether `node`, in its CPU form or its device form, works on the rows that it reads: if so, it counts as an operator in
    /// reports, and its staying on the CPU is a fallback. `None`: the node is not this operator's.
    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool>;

    /// True for this operator's own device nodes.
    fn is_device_node(&self, _node: &dyn ExecutionPlan) -> bool {
        false
    }

    /// True for a node whose rows may never end, so that only a limit above it stops them.
    fn may_never_end(&self, _node: &dyn ExecutionPlan) -> bool {
        false
    }

    /// A node above `tree` that leaves out the first `skip` rows, and of the others gives exactly the first `fetch`. Placement asks
    /// for it where a node stops after some rows. `None`: this operator does not limit.
    fn limit(&self, _tree: &DeviceTree, _skip: usize, _fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        None
    }

    /// A node above `tree` that gives the rows of the CPU plan `node` in `order`, the first `fetch` of them. Placement asks for it
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

/// The operators that a session's plans are placed with. Its clones share one list.
#[derive(Clone, Default)]
pub struct Operators {
    list: Arc<RwLock<OperatorList>>,
}

/// Operators in the order in which they are asked.
type OperatorList = Arc<[Arc<dyn DeviceOperator>]>;

/// What placement made of a subtree.
pub enum Placed {
    /// A device subtree without its upper border.
    Device(DeviceTree),
    /// A plan that runs on the CPU (device subtrees inside it have their borders), and reasons that no border shows yet.
    Host {
        /// The plan.
        plan: Arc<dyn ExecutionPlan>,
        /// Reasons that no border shows yet.
        pending: Vec<Reason>,
    },
}

/// A device subtree, and what is known of its output.
#[derive(Debug, Clone)]
pub struct DeviceTree {
    /// Its top node.
    pub plan: Arc<dyn ExecutionPlan>,
    /// What DataFusion planned for the same rows.
    pub cpu: Arc<dyn ExecutionPlan>,
    /// Types, widths and ranges of its columns.
    pub columns: Vec<ColumnInfo>,
    /// At most this many rows leave it, because a limit was built into its top node.
    pub row_limit: Option<usize>,
    /// The rows leave it sorted.
    pub sorted: bool,
    /// Its number of rows is not that of a scan: an aggregate, a join or a union is inside.
    pub aggregated: bool,
}

impl Operators {
    /// A registry of these operators, which are asked in this order.
    pub fn new(operators: impl IntoIterator<Item = Arc<dyn DeviceOperator>>) -> Self {
        Self { list: Arc::new(RwLock::new(operators.into_iter().collect())) }
    }

    /// Adds an operator to this registry and its clones, in the place of an earlier one of the same name. Plans that are made later
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

    /// The same operators, as a program asks them.
    pub fn cuts(&self) -> Arc<[Arc<dyn Cut>]> {
        self.all().iter().map(|operator| Arc::clone(operator) as Arc<dyn Cut>).collect()
    }

    /// True for operators that work on table rows: those that may run on the device, and whose running on the CPU is a fallback.
    /// Scans, one-row plans, catalog statements, EXPLAIN and pass-through nodes do not count.
    pub fn counts(&self, node: &dyn ExecutionPlan) -> bool {
        let works = self.all().iter().find_map(|operator| operator.works(node));
        works.unwrap_or_else(|| is_cpu_operator(node)) && reads_rows(node)
    }

    /// True for plans in which there are rows that [may never end](DeviceOperator::may_never_end).
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

/// True for DataFusion's operators over rows that no device operator stands for.
fn is_cpu_operator(node: &dyn ExecutionPlan) -> bool {
    let name = node.name();
    let kinds = ["Join", "Window", "TopK"];
    kinds.iter().any(|kind| name.contains(kind)) || name == "UnnestExec"
}

/// True when a scan lies below: something with more rows than a constant.
fn reads_rows(plan: &dyn ExecutionPlan) -> bool {
    let children = plan.children();
    if children.is_empty() {
        return !(plan.is::<PlaceholderRowExec>() || plan.is::<EmptyExec>() || plan.is::<ExplainExec>());
    }
    children.into_iter().any(|child| reads_rows(child.as_ref()))
}
