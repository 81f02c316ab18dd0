//! `x = ANY (list)` for lists that contain NULL: NULL unless another item decides. DataFusion's planner returns FALSE.
//!
//!   x = ANY (a) ─► CASE WHEN x = ANY (a) THEN TRUE WHEN a contains NULL THEN NULL ELSE x = ANY (a) END
//!
//! Left   unchanged: subqueries; literal lists without NULL; parameters.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Array, Expr, Value, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// The replacement, with the names of [`ANY`] and [`LIST`] as placeholders for the comparison and its list.
const ANSWER: &str =
    r#"CASE WHEN "any" THEN TRUE WHEN array_position("list", NULL) IS NOT NULL THEN NULL ELSE "any" END"#;
const ANY: &str = "any";
const LIST: &str = "list";

/// Makes a comparison with the items of a list return NULL where SQL does.
pub(super) fn with_null(expr: &mut Expr) -> ControlFlow<String> {
    let Expr::AnyOp { right, .. } = &*expr else { return ControlFlow::Continue(()) };
    if has_no_null(right) {
        return ControlFlow::Continue(());
    }
    let (any, list) = (expr.clone(), right.as_ref().clone());
    let parsed = Parser::new(&GenericDialect {}).try_with_sql(ANSWER).and_then(|mut parser| parser.parse_expr());
    let mut answer = match parsed {
        Ok(answer) => answer,
        Err(error) => return ControlFlow::Break(error.to_string()),
    };
    let _ = VisitMut::visit(&mut answer, &mut Filled { any: &any, list: &list });
    *expr = answer;
    ControlFlow::Continue(())
}

fn has_no_null(list: &Expr) -> bool {
    match list {
        Expr::Subquery(_) => true,
        Expr::Value(value) => matches!(value.value, Value::Placeholder(_)),
        Expr::Nested(inner) => has_no_null(inner),
        Expr::Array(Array { elem, .. }) => elem.iter().all(is_constant),
        _ => false,
    }
}

fn is_constant(item: &Expr) -> bool {
    match item {
        Expr::Value(value) => !matches!(value.value, Value::Null | Value::Placeholder(_)),
        Expr::UnaryOp { expr, .. } => is_constant(expr),
        _ => false,
    }
}

/// Fills in the comparison and its list.
struct Filled<'e> {
    any: &'e Expr,
    list: &'e Expr,
}

impl VisitorMut for Filled<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Identifier(name) = &*expr else { return ControlFlow::Continue(()) };
        let whole = if name.value == ANY { Some(self.any) } else { Some(self.list).filter(|_| name.value == LIST) };
        if let Some(whole) = whole {
            *expr = whole.clone();
        }
        ControlFlow::Continue(())
    }
}
