//! UNNEST of lists that never become a column, and of columns of lists (`flatten`): makes a row of each item, and
//! splits items that are structures.
//!
//!   ProjectionExec: id, hit['word']          DeviceProjectExec: id@0, word@3
//!     UnnestExec: hit                   ─►     DeviceUnnestExec: id@0, sentence, sentiment, word
//!       ProjectionExec: id, f(text) as hit       …
//!         …
//!
//! Lists      from functions that search a text ([`Unnest::with`] sets them), and lists that are written out, several
//!            beside each other or constant: `[a, b, c]`.
//! NULL       in place of a text gives no row; UNNEST of texts that keeps NULLs stays on the CPU. A NULL item is a row.
//! Order      not promised.
//! Memory     as in `run` for texts, and in `each` for lists that are written out.
//! Waits      for the number of items in the texts of each extent, in a first run.
//! Stands for UnnestExec, with the projection below that makes the lists, and the one above that splits structures.

mod each;
mod flatten;
mod found;
mod lower;
mod recognise;
mod run;

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use self::each::EachSink;
use self::flatten::DeviceFlattenExec;
pub use self::found::{Found, HitField, Items, ListFunction, WordHits};
use self::lower::HitsSink;
use self::recognise::{Columns, Unnested};
use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Lowering};
use crate::operator::project::{self, DeviceProjectExec};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

/// Repeats the rows of its input for each item of their lists.
#[derive(Debug, Clone)]
pub struct DeviceUnnestExec {
    sink: ItemsSink,
    /// Expressions that make the lists, for EXPLAIN.
    lists: String,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceUnnestExec {
    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.sink.expressions()
    }
}

impl DisplayAs for DeviceUnnestExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (payload, lists) = (crate::plan::node::named(self.sink.payload()), &self.lists);
        match t {
            DisplayFormatType::TreeRender => write!(f, "lists={lists}"),
            _ => write!(f, "DeviceUnnestExec: lists=[{lists}], payload=[{payload}]"),
        }
    }
}

crate::plan::node::device_node!(DeviceUnnestExec, execute: refuse);

/// Sink for the items.
#[derive(Debug, Clone, PartialEq)]
enum ItemsSink {
    Hits(HitsSink),
    Each(EachSink),
}

impl ItemsSink {
    fn payload(&self) -> &Columns {
        match self {
            Self::Hits(hits) => &hits.payload,
            Self::Each(each) => &each.payload,
        }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let mut all: Vec<Arc<dyn PhysicalExpr>> = self.payload().iter().map(|(expr, _)| Arc::clone(expr)).collect();
        match self {
            Self::Hits(hits) => all.push(Arc::clone(&hits.text)),
            Self::Each(each) => all.extend(each.lists.iter().flat_map(|(_, list)| list.items.iter().cloned())),
        }
        all
    }

    /// The output columns.
    fn columns(
        &self,
        input: &[ColumnInfo],
        dictionaries: &mut Dictionaries,
    ) -> std::result::Result<Vec<ColumnInfo>, Reason> {
        let mut lowering = Lowering::new(input, dictionaries);
        let scope = lowering.scope();
        let (_, columns) = match self {
            Self::Hits(hits) => hits.columns(&mut lowering, &scope)?,
            Self::Each(each) => each.columns(&mut lowering, &scope)?,
        };
        Ok(columns)
    }

    fn close(&self, open: Open, into: &mut Segments<'_>) -> usize {
        match self {
            Self::Hits(hits) => into.close(open, hits.clone()),
            Self::Each(each) => into.close(open, each.clone()),
        }
    }
}

/// UNNEST: its placement, and its sink.
#[derive(Debug, Clone, Default)]
pub struct Unnest {
    functions: Vec<Arc<dyn ListFunction>>,
}

impl Unnest {
    /// The operator for these functions. Added to a session it replaces the engine's own, which has none.
    pub fn with(functions: Vec<Arc<dyn ListFunction>>) -> Self {
        Self { functions }
    }

    fn found<'c>(&self, call: &'c Arc<dyn PhysicalExpr>) -> Option<(Found, &'c ScalarFunctionExpr)> {
        let call = call.downcast_ref::<ScalarFunctionExpr>()?;
        let found = self.functions.iter().find_map(|function| function.found(call))?;
        Some((found, call))
    }
}

impl Unnested {
    fn place(self, to: &Placing<'_>) -> Result<Placed> {
        let child = to.after_limit(to.place(&self.input)?)?;
        let works = self.nodes.iter().any(|node| node.is::<UnnestExec>() && to.counts(node.as_ref()));
        if !works && matches!(child, Placed::Host { .. }) {
            return self.stay(child, None, to);
        }
        match to.tree(&child).and_then(|tree| self.judge(&tree, to)) {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => self.stay(child, Some(reason), to),
        }
    }

    /// Leaves all nodes on the CPU.
    fn stay(&self, child: Placed, mut reason: Option<Reason>, to: &Placing<'_>) -> Result<Placed> {
        let mut placed = child;
        for node in self.nodes.iter().rev() {
            placed = to.stay(node, vec![placed], reason.take())?;
        }
        Ok(placed)
    }

    /// The device's form over `input`.
    fn judge(&self, input: &DeviceTree, to: &Placing<'_>) -> std::result::Result<DeviceTree, Reason> {
        let node = &self.nodes[0];
        let columns = {
            let mut dictionaries = to.lowering();
            let items = self.sink.columns(&input.columns, &mut dictionaries)?;
            project::columns(&self.above, &items, &mut dictionaries)?
        };
        let unnest = DeviceUnnestExec {
            sink: self.sink.clone(),
            lists: self.lists.clone(),
            input: Arc::clone(&input.plan),
            properties: crate::plan::node::properties(Arc::clone(&self.schema), None),
        };
        let project = DeviceProjectExec::of(self.above.clone(), node.schema(), Arc::new(unnest));
        let tree = DeviceTree {
            plan: Arc::new(project),
            cpu: Arc::clone(node),
            columns,
            row_limit: None,
            sorted: false,
            aggregated: true,
        };
        to.limit(to.restore_order(node, tree)?, 0, self.fetch, node)
    }
}

impl DeviceOperator for Unnest {
    fn name(&self) -> &'static str {
        "unnest"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        match self.recognise(node) {
            Some(unnested) => Some(unnested.place(to)),
            None => flatten::place(node, to),
        }
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        (node.is::<UnnestExec>() || self.is_device_node(node)).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceUnnestExec>() || node.is::<DeviceFlattenExec>()
    }
}

impl ToSegments for Unnest {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        if let Some(flatten) = node.downcast_ref::<DeviceFlattenExec>() {
            return Some(into.open_input(node, false).map(|open| open.with(flatten.stage())));
        }
        let unnest = node.downcast_ref::<DeviceUnnestExec>()?;
        Some(into.open_input(node, false).map(|open| Open::reading(unnest.sink.close(open, into))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        if let (Some(a), Some(b)) = (a.downcast_ref::<DeviceFlattenExec>(), b.downcast_ref::<DeviceFlattenExec>()) {
            return Some(a.does_the_same(b));
        }
        Some(a.downcast_ref::<DeviceUnnestExec>()?.sink == b.downcast_ref::<DeviceUnnestExec>()?.sink)
    }
}
