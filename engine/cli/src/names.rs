//! Readable column names of an answer: `sum(price)` for DataFusion's `sum(data/sales.parquet.price)`.
//!
//! ```text
//!   logical plan ─► the expression of each column ─ qualifiers dropped ─► SQL ─► its name, if it is unique
//! ```
//!
//! A name from the statement (`AS n`, a column) is kept. Inside the engine, columns keep DataFusion's names.

use millpond::datafusion::common::tree_node::{Transformed, TreeNode};
use millpond::datafusion::common::{Column, Result};
use millpond::datafusion::logical_expr::{Expr, LogicalPlan};
use millpond::datafusion::sql::unparser::Unparser;
use millpond::datafusion::sql::unparser::dialect::Dialect;

/// The column names of a plan's answer.
pub fn of_answer(plan: &LogicalPlan) -> Vec<String> {
    let fields = plan.schema().fields();
    let names: Vec<String> =
        (0..fields.len()).map(|at| short(plan, at).unwrap_or_else(|| fields[at].name().clone())).collect();
    let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    // Names that are ambiguous without their table keep DataFusion's form.
    fields.iter().zip(&names).map(|(field, name)| if is_unique(name) { name } else { field.name() }.clone()).collect()
}

/// The SQL of a column's expression; `None` if it has none.
fn short(plan: &LogicalPlan, at: usize) -> Option<String> {
    match expression(plan, at)? {
        Expr::Column(column) => Some(column.name),
        Expr::Alias(alias) => Some(alias.name),
        other if is_written_otherwise(&other) => Some(other.schema_name().to_string()),
        other => {
            let sql = Unparser::new(&Plain).with_pretty(true).expr_to_sql(&other).ok()?.to_string();
            Some(without_default_frames(sql))
        }
    }
}

/// True if the expression's SQL would be incomplete or different: orders in aggregates, SIMILAR TO.
fn is_written_otherwise(expr: &Expr) -> bool {
    let found = expr.exists(|expr| {
        Ok(match expr {
            Expr::SimilarTo(_) => true,
            Expr::AggregateFunction(aggregate) => !aggregate.params.order_by.is_empty(),
            _ => false,
        })
    });
    found.unwrap_or(true)
}

/// Quotes only identifiers that SQL would read differently; words such as `value` stay unquoted.
struct Plain;

impl Dialect for Plain {
    fn identifier_quote_style(&self, name: &str) -> Option<char> {
        let is_plain = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        (!is_plain).then_some('"')
    }
}

/// Removes the default window frames that the SQL generation adds.
fn without_default_frames(mut sql: String) -> String {
    const TO_PEERS: &str = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)";
    const WHOLE: &str = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)";
    for frame in [TO_PEERS, WHOLE] {
        let mut from = 0;
        while let Some(at) = sql[from..].find(frame).map(|at| from + at) {
            let window = sql[..at].rfind("OVER (").map_or("", |begin| &sql[begin..at]);
            if frame == WHOLE && window.contains("ORDER BY") {
                from = at + frame.len();
                continue;
            }
            let kept = sql[..at].trim_end().len();
            sql.replace_range(kept..at + frame.len() - 1, "");
            from = kept;
        }
    }
    sql
}

/// The expression of a plan's column `at`, over columns without qualifiers.
fn expression(plan: &LogicalPlan, at: usize) -> Option<Expr> {
    let (expr, input) = match plan {
        LogicalPlan::Projection(projection) => (projection.expr.get(at)?, projection.input.as_ref()),
        // A grouping set is one expression for several columns, so column indices then differ from those of group
        // expressions.
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr_len().ok()? == aggregate.group_expr.len() => {
            (aggregate.group_expr.iter().chain(&aggregate.aggr_expr).nth(at)?, aggregate.input.as_ref())
        }
        LogicalPlan::Aggregate(aggregate) => {
            let before = plan.schema().fields().len().checked_sub(aggregate.aggr_expr.len())?;
            let Some(expr) = at.checked_sub(before).and_then(|at| aggregate.aggr_expr.get(at)) else {
                return Some(Expr::Column(Column::from_name(plan.schema().field(at).name())));
            };
            (expr, aggregate.input.as_ref())
        }
        LogicalPlan::Window(window) => {
            let columns = window.input.schema().fields().len();
            let Some(expr) = at.checked_sub(columns).map(|at| &window.window_expr[at]) else {
                return expression(&window.input, at);
            };
            (expr, window.input.as_ref())
        }
        LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::Distinct(_) | LogicalPlan::Filter(_) => {
            return expression(plan.inputs().first()?, at);
        }
        LogicalPlan::SubqueryAlias(alias) => return expression(&alias.input, at),
        LogicalPlan::Union(union) => return expression(union.inputs.first()?, at),
        _ => return Some(Expr::Column(Column::from_name(plan.schema().field(at).name()))),
    };
    // If the expression does not match the column's name, the column keeps its name.
    if expr.qualified_name().1 != *plan.schema().field(at).name() {
        return Some(Expr::Column(Column::from_name(plan.schema().field(at).name())));
    }
    // A column below that has an alias is replaced by its name, one without by its expression.
    let resolved = |column: &Column| -> Result<Expr> {
        let place = input.schema().index_of_column(column)?;
        Ok(match expression(input, place) {
            Some(Expr::Alias(alias)) => Expr::Column(Column::from_name(alias.name)),
            Some(expr) => expr,
            None => Expr::Column(Column::from_name(&column.name)),
        })
    };
    if let Expr::Alias(alias) = expr {
        return Some(Expr::Column(Column::from_name(&alias.name)));
    }
    let written = expr.clone().transform_up(|expr| match &expr {
        Expr::Column(column) => Ok(Transformed::yes(resolved(column)?)),
        _ => Ok(Transformed::no(expr)),
    });
    written.ok().map(|written| written.data)
}

#[cfg(test)]
mod tests {
    use millpond::datafusion::prelude::SessionContext;

    use super::*;

    async fn names(sql: &str) -> Vec<String> {
        let context = SessionContext::new();
        for definition in ["CREATE TABLE t (a BIGINT, b BIGINT, \"C d\" TEXT)", "CREATE TABLE u (a BIGINT)"] {
            context.sql(definition).await.expect("a table").collect().await.expect("made");
        }
        of_answer(&context.state().create_logical_plan(sql).await.expect("a plan"))
    }

    #[tokio::test]
    async fn expressions_are_named_by_their_sql() {
        assert_eq!(names("SELECT 1, 'x', sum(t.a), count(*) FROM t").await, ["1", "'x'", "sum(a)", "count(*)"]);
        assert_eq!(names("SELECT (a + 1) * b, a AS n, t.b, \"C d\" FROM t").await, ["(a + 1) * b", "n", "b", "C d"]);
        assert_eq!(names("SELECT sum(a) + 1 FROM t GROUP BY b ORDER BY max(b) LIMIT 3").await, ["sum(a) + 1"]);
        assert_eq!(names("SELECT n + 1 FROM (SELECT a * 2 AS n FROM t) AS s").await, ["n + 1"]);
        assert_eq!(names("SELECT a + 1 FROM t UNION ALL SELECT a FROM u").await, ["a + 1"]);
        assert_eq!(names("SELECT CAST(a AS INT), a IS NULL FROM t").await, ["CAST(a AS INTEGER)", "a IS NULL"]);
    }

    #[tokio::test]
    async fn grouping_sets_shift_no_name() {
        let sql = "SELECT a, b, count(*), sum(t.a) FROM t GROUP BY ROLLUP (a, b)";
        assert_eq!(names(sql).await, ["a", "b", "count(*)", "sum(a)"]);
        let sql = "SELECT b, a, sum(b) FROM t GROUP BY CUBE (a, b) ORDER BY 1";
        assert_eq!(names(sql).await, ["b", "a", "sum(b)"]);
        let sql = "SELECT sum(a), grouping(b), b FROM t GROUP BY GROUPING SETS ((b), ())";
        assert_eq!(names(sql).await, ["sum(a)", "grouping(b)", "b"]);
        assert_eq!(names("SELECT a FROM t GROUP BY ROLLUP (a)").await, ["a"]);
        assert_eq!(
            names("SELECT a + 1, count(*) FROM t GROUP BY a + 1, ROLLUP (b)").await,
            ["t.a + Int64(1)", "count(*)"]
        );
    }

    #[tokio::test]
    async fn a_name_says_what_the_column_has() {
        assert_eq!(names("SELECT * FROM (SELECT a + 1 FROM t) AS s").await, ["a + 1"]);
        let names = names("SELECT array_agg(a ORDER BY b), \"C d\" SIMILAR TO 'x|y' FROM t GROUP BY \"C d\"").await;
        assert!(names[0].contains("ORDER BY") && names[1].contains("SIMILAR TO"), "{names:?}");
    }

    #[tokio::test]
    async fn windows_have_the_frames_that_were_written() {
        let sql = "SELECT sum(a) OVER (), rank() OVER (PARTITION BY b ORDER BY a), sum(b) OVER (PARTITION BY a), \
                   sum(a) OVER (ORDER BY b ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM t";
        let expected = [
            "sum(a) OVER ()",
            "rank() OVER (PARTITION BY b ORDER BY a ASC NULLS LAST)",
            "sum(b) OVER (PARTITION BY a)",
            "sum(a) OVER (ORDER BY b ASC NULLS LAST ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        ];
        assert_eq!(names(sql).await, expected);
    }

    #[tokio::test]
    async fn a_name_of_two_columns_stays_long() {
        assert_eq!(names("SELECT sum(t.a), sum(u.a) FROM t, u").await, ["sum(t.a)", "sum(u.a)"]);
        assert_eq!(names("SELECT t.a, u.a FROM t, u").await, ["a", "a"]);
    }
}
