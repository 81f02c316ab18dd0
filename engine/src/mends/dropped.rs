//! Clauses that the parser accepts and DataFusion's planner ignores: refused, with an alternative. WITH ROLLUP and WITH
//! CUBE become ROLLUP and CUBE.

use datafusion::sql::sqlparser::ast::{Expr, GroupByExpr, GroupByWithModifier, Query, Select, TableFactor};

/// Why a query is refused, because of a clause outside its SELECT.
pub(super) fn in_query(query: &Query) -> Option<&'static str> {
    if query.for_clause.is_some() {
        return Some(
            "FOR XML, FOR JSON and FOR BROWSE are not answered: leave them out, and ask for JSON by --format json",
        );
    }
    if query.settings.is_some() {
        return Some("SETTINGS is not read in a query: write SET name = value before it");
    }
    if query.format_clause.is_some() {
        return Some("FORMAT is not read in a query: leave it out, or write COPY (…) TO 'file.json'");
    }
    None
}

/// Why a SELECT is refused.
pub(super) fn in_select(select: &Select) -> Option<&'static str> {
    if select.prewhere.is_some() {
        return Some("PREWHERE is not answered: write WHERE");
    }
    if !select.connect_by.is_empty() {
        return Some("CONNECT BY and START WITH are not answered: write WITH RECURSIVE");
    }
    if select.value_table_mode.is_some() {
        return Some("SELECT AS STRUCT and SELECT AS VALUE are not answered: write struct(…)");
    }
    if select.exclude.is_some() {
        return Some("EXCLUDE behind the whole list is not answered: write it behind the *, as * EXCLUDE (a)");
    }
    let (GroupByExpr::Expressions(_, modifiers) | GroupByExpr::All(modifiers)) = &select.group_by;
    let is_translated = matches!(
        (&select.group_by, modifiers.as_slice()),
        (_, []) | (GroupByExpr::Expressions(..), [GroupByWithModifier::Rollup | GroupByWithModifier::Cube])
    );
    (!is_translated).then_some(
        "GROUP BY is answered WITH ROLLUP or WITH CUBE alone behind its expressions: write GROUPING SETS ((a, b), (a), ())",
    )
}

/// Why a relation is refused.
pub(super) fn in_relation(relation: &TableFactor) -> Option<&'static str> {
    let (version, partitions, ordinality) = match relation {
        TableFactor::Table { version, partitions, with_ordinality, .. } => {
            (version.is_some(), !partitions.is_empty(), *with_ordinality)
        }
        TableFactor::Function { with_ordinality, .. } => (false, false, *with_ordinality),
        _ => return None,
    };
    if version {
        return Some("a table has no earlier versions: leave out FOR SYSTEM_TIME, AT and BEFORE");
    }
    if partitions {
        return Some("PARTITION behind a table is not answered: write WHERE over the partition's column");
    }
    ordinality.then_some("WITH ORDINALITY is not answered: write row_number() OVER ()")
}

/// Rewrites `GROUP BY a, b WITH ROLLUP` to `GROUP BY ROLLUP (a, b)`, and likewise for CUBE.
pub(super) fn with_sets(select: &mut Select) {
    let GroupByExpr::Expressions(groups, modifiers) = &mut select.group_by else { return };
    let sets = match modifiers.as_slice() {
        [GroupByWithModifier::Rollup] => Expr::Rollup,
        [GroupByWithModifier::Cube] => Expr::Cube,
        _ => return,
    };
    modifiers.clear();
    let all = std::mem::take(groups).into_iter().map(|group| vec![group]).collect();
    groups.push(sets(all));
}
