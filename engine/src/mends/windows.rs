//! Named windows: DataFusion's planner ignores the name in `OVER (w ORDER BY a)` and in `v AS (w ORDER BY a)`.
//!
//! ```text
//!   sum(a) OVER (w ORDER BY a) … WINDOW w AS (PARTITION BY b)     ─►     sum(a) OVER (PARTITION BY b ORDER BY a)
//! ```
//!
//! As in PostgreSQL, a window based on another has no PARTITION BY of its own, at most one of the two has ORDER BY, and
//! only the new one may have a frame.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowDefinition, NamedWindowExpr, Query, Select, VisitMut, VisitorMut, WindowSpec, WindowType,
};

use super::syntax::plain;

/// Expands the windows of a SELECT that are based on named windows.
pub(super) fn written_out(select: &mut Select) -> ControlFlow<String> {
    let mut windows = Windows { known: Vec::new(), queries: 0 };
    for NamedWindowDefinition(name, window) in &mut select.named_window {
        if let NamedWindowExpr::NamedWindow(other) = window
            && let Some(spec) = windows.of(other)
        {
            *window = NamedWindowExpr::WindowSpec(spec.clone());
        }
        if let NamedWindowExpr::WindowSpec(spec) = window {
            windows.complete(spec)?;
            windows.known.push((plain(name), spec.clone()));
        }
    }
    VisitMut::visit(&mut select.projection, &mut windows)?;
    match &mut select.qualify {
        Some(condition) => VisitMut::visit(condition, &mut windows),
        None => ControlFlow::Continue(()),
    }
}

struct Windows {
    known: Vec<(String, WindowSpec)>,
    /// Depth of nested queries, whose windows are resolved separately.
    queries: usize,
}

impl Windows {
    fn of(&self, name: &Ident) -> Option<&WindowSpec> {
        self.known.iter().find(|(known, _)| *known == plain(name)).map(|(_, spec)| spec)
    }

    /// Adds the clauses of its base window to a window.
    fn complete(&self, spec: &mut WindowSpec) -> ControlFlow<String> {
        let Some(name) = spec.window_name.take() else { return ControlFlow::Continue(()) };
        let Some(base) = self.of(&name) else {
            return ControlFlow::Break(format!("the window {name} is not defined: write WINDOW {name} AS (…)"));
        };
        let refused = if base.window_frame.is_some() {
            Some("a frame in it")
        } else if !spec.partition_by.is_empty() {
            Some("PARTITION BY beside it")
        } else if !spec.order_by.is_empty() && !base.order_by.is_empty() {
            Some("ORDER BY in both")
        } else {
            None
        };
        if let Some(refused) = refused {
            let why = format!("the window {name} cannot be built on with {refused}: write the whole window out");
            return ControlFlow::Break(why);
        }
        spec.partition_by = base.partition_by.clone();
        if spec.order_by.is_empty() {
            spec.order_by = base.order_by.clone();
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Windows {
    type Break = String;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<String> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<String> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        match &mut function.over {
            Some(WindowType::WindowSpec(spec)) if self.queries == 0 => self.complete(spec),
            Some(WindowType::NamedWindow(name)) if self.queries == 0 => {
                if let Some(spec) = self.of(name) {
                    function.over = Some(WindowType::WindowSpec(spec.clone()));
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
