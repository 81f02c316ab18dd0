//! Expressions as PTX: one row per thread, straight-line code, each node once.
//!
//!   n4 = n0 * n3  ──►  value(n4): value(n0), value(n3), mul.wide.s32      remembered until the next row or the end of the scope
//!
//! Errors    are raised where a row is valid, reaches the node (no CASE branch leads elsewhere), and fails.

use super::graph::{Graph, NodeId};
use super::value::{CodegenError, Emit, Leaves, Value};
use millpond_ptx::build::Reg;

/// The expressions of one row.
#[derive(Debug)]
pub struct Expressions<'g> {
    graph: &'g Graph,
}

impl<'g> Expressions<'g> {
    pub fn new(graph: &'g Graph) -> Self {
        Self { graph }
    }

    /// The value of a node, computed here unless it is at hand. Columns come by [`Leaves::column`], once per row.
    ///
    /// # Errors
    /// [`CodegenError`] when a node has no device form.
    pub fn value(&mut self, emit: &mut Emit<'_>, leaves: &mut dyn Leaves, node: NodeId) -> Result<Value, CodegenError> {
        let _ = (emit, leaves, self.graph);
        Err(CodegenError::Unsupported { what: format!("node {}", node.0) })
    }

    /// A predicate that is true where a boolean node is true: false and NULL alike give false. The form for filters.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub fn truth(&mut self, emit: &mut Emit<'_>, leaves: &mut dyn Leaves, node: NodeId) -> Result<Reg, CodegenError> {
        self.value(emit, leaves, node).map(|value| value.low)
    }

    /// From here to [`Self::pop_scope`] the code is inside a branch: what is computed there is forgotten at its end.
    pub fn push_scope(&mut self) {}

    /// Ends the innermost scope.
    pub fn pop_scope(&mut self) {}

    /// Forgets everything: the next row begins, or this one's registers are no longer its own.
    pub fn clear(&mut self) {}
}
