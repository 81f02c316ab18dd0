//! Mends that need the syntax tree because the planner no longer sees the syntax.
//!
//! ```text
//!   1_000                                 refused: the tokens are the number 1 and the name _000
//!   FROM t                            ─►  SELECT * FROM t
//!   GROUP BY a WITH ROLLUP            ─►  GROUP BY ROLLUP (a)                 ignored clauses: refused (`dropped`)
//!   a = ANY (list)                    ─►  NULL if only a NULL item could match (`anys`)
//!   OVER (w ORDER BY a)               ─►  OVER (PARTITION BY … ORDER BY a)    if w is a named window (`windows`)
//!   a IS DISTINCT FROM b AND c        ─►  (a IS DISTINCT FROM b) AND c        the parser reads IS … (b AND c)
//!   t, a FULL JOIN b USING (k) JOIN c ─►  t, (a FULL JOIN b USING (k)) JOIN c     for the relation planner (`using`)
//!   COPY q TO 'x.csv.gz' (HEADER false) ─► … STORED AS CSV OPTIONS (…)        options, file names (`copy_options`)
//! ```
//!
//! Depth  trees have few levels at this point (`levels`), and only the joins of one FROM are nested deeper here.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, Ident, Query, Select, SelectFlavor, SelectItem, TableAlias, TableAliasColumnDef,
    TableFactor, TableWithJoins, UnaryOperator, VisitMut, VisitorMut, WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::mends::using::{is_lateral, kind};
use crate::mends::{anys, copy_options, dropped, windows};
use crate::plan::levels;

/// Refuses digits with underscores if the dialect has no such numbers.
///
/// # Errors
/// The refusal. A text that cannot be tokenized is left to the parser.
pub(crate) fn numbers(sql: &str, dialect: &dyn Dialect) -> Result<()> {
    if !sql.as_bytes().windows(2).any(|pair| pair[0].is_ascii_digit() && pair[1] == b'_') {
        return Ok(());
    }
    let tokens = Tokenizer::new(dialect, sql).tokenize().unwrap_or_default();
    for (at, pair) in tokens.windows(2).enumerate() {
        let (Token::Number(digits, false), Token::Word(word)) = (&pair[0], &pair[1]) else { continue };
        // 1_000, and 1_000e3.
        let is_rest = |word: &str| {
            word.starts_with('_') && word.trim_start_matches('_').starts_with(|c: char| c.is_ascii_digit())
        };
        if word.quote_style.is_some() || !is_rest(&word.value) {
            continue;
        }
        let mut written = format!("{digits}{}", word.value);
        let follows = |token: &&Token| match token {
            Token::Number(..) | Token::Period => true,
            Token::Word(word) => word.quote_style.is_none() && is_rest(&word.value),
            _ => false,
        };
        written.extend(tokens[at + 2..].iter().take_while(follows).map(ToString::to_string));
        let number = written.replace('_', "");
        return plan_err!(
            "{written} is not read as a number, but as {digits} with the name {}: write {number}",
            word.value
        );
    }
    Ok(())
}

/// Applies all mends to a statement.
///
/// # Errors
/// If a part of the statement cannot be mended.
pub(crate) fn mended(statement: &mut Statement) -> Result<()> {
    copy_options::completed(statement)?;
    let mut names = Names::default();
    let _ = levels::visit(statement, &mut names);
    let mut mends = Mends { names, is_raised: false, merging: 0 };
    match levels::visit(statement, &mut mends) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(refusal) => plan_err!("{refusal}"),
    }
}

/// Column names that a statement qualifies with a table.
#[derive(Default, Clone)]
struct Names {
    columns: BTreeSet<String>,
    /// The statement contains `t.*`.
    all: bool,
}

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundIdentifier(parts) => {
                self.columns.extend(parts.iter().skip(1).map(|part| part.value.to_lowercase()))
            }
            Expr::CompoundFieldAccess { .. } | Expr::QualifiedWildcard(..) => self.all = true,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.all |= select.projection.iter().any(|item| matches!(item, SelectItem::QualifiedWildcard(..)));
        ControlFlow::Continue(())
    }
}

/// USING columns that a statement qualifies with a table.
pub(super) enum Named {
    /// The statement is not known.
    Unknown,
    /// These columns, or all if there is a `*`; and the relation name of the merged columns.
    Some { columns: BTreeSet<String>, all: bool, merged: Option<String> },
}

/// Alias that carries the names to the relation planner; no statement text can contain this name.
const NAMED: &str = "\u{1}named";

/// Stands for `t.*` in the alias.
const ALL: &str = "\u{1}all";

/// Prefix of the relation name of merged columns.
const MERGED: char = '\u{2}';

impl Named {
    /// Decodes an alias; `None` for an alias of the statement.
    pub fn of(alias: Option<&TableAlias>) -> Option<Self> {
        let alias = alias.filter(|alias| alias.name.value == NAMED)?;
        let mut columns: BTreeSet<String> = alias.columns.iter().map(|column| column.name.value.clone()).collect();
        let all = columns.remove(ALL);
        let merged = columns.iter().find_map(|column| column.strip_prefix(MERGED)).map(str::to_string);
        Some(Self::Some { columns, all, merged })
    }

    /// True if the statement may qualify a column of this name with its table.
    pub fn names(&self, column: &str) -> bool {
        match self {
            Self::Unknown => true,
            Self::Some { columns, all, .. } => *all || columns.contains(&column.to_lowercase()),
        }
    }

    /// Relation name of the merged columns, if the alias contains it.
    pub fn merged(&self) -> Option<&str> {
        match self {
            Self::Unknown => None,
            Self::Some { merged, .. } => merged.as_deref(),
        }
    }
}

/// Mends a tree from its leaves.
struct Mends {
    names: Names,
    /// The last visited expression is now an AND or OR that was raised out of an IS DISTINCT FROM.
    is_raised: bool,
    /// Number of joins with merged columns so far.
    merging: usize,
}

impl VisitorMut for Mends {
    type Break = String;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<String> {
        answered(dropped::in_query(query))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<String> {
        answered(dropped::in_select(select))?;
        dropped::with_sets(select);
        windows::written_out(select)?;
        if select.flavor == SelectFlavor::FromFirstNoSelect {
            select.flavor = SelectFlavor::Standard;
            select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
        }
        let mut merged: Vec<Merged> = Vec::new();
        for from in &mut select.from {
            merged.extend(self.nest(from)?);
        }
        // Duplicates are left out: the planner reports them as ambiguous.
        let is_clear = |one: &&Merged| merged.iter().filter(|other| other.key == one.key).count() == 1;
        let mut clear = Clear { merged: merged.iter().filter(is_clear).cloned().collect(), queries: 0 };
        if let (Some(condition), false) = (&mut select.selection, clear.merged.is_empty()) {
            let _ = VisitMut::visit(condition, &mut clear);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, relation: &mut TableFactor) -> ControlFlow<String> {
        answered(dropped::in_relation(relation))?;
        match relation {
            // Joins nested here contain a single join and are complete.
            TableFactor::NestedJoin { table_with_joins, alias } if Named::of(alias.as_ref()).is_none() => {
                self.nest(table_with_joins).map_continue(drop)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        self.is_raised = raised(expr, self.is_raised);
        anys::with_null(expr)
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<String> {
        self.is_raised = false;
        ControlFlow::Continue(())
    }
}

fn answered(refusal: Option<&str>) -> ControlFlow<String> {
    refusal.map_or(ControlFlow::Continue(()), |refusal| ControlFlow::Break(refusal.to_string()))
}

/// A merged column of a join, in addition to those of its sides.
#[derive(Clone)]
struct Merged {
    key: String,
    relation: String,
}

/// Qualifies merged columns in a condition with their relation: DataFusion's planner does not consult USING joins
/// there.
struct Clear {
    merged: Vec<Merged>,
    /// Depth of nested queries, whose names are resolved separately.
    queries: usize,
}

impl VisitorMut for Clear {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let (Expr::Identifier(ident), 0) = (&*expr, self.queries)
            && let Some(one) = self.merged.iter().find(|one| one.key == plain(ident))
        {
            *expr = Expr::CompoundIdentifier(vec![Ident::with_quote('"', &one.relation), ident.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// A name in the planner's normalized form.
pub(super) fn plain(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

impl Mends {
    /// Parenthesizes each join that merges columns, together with everything before it. Returns the merged columns.
    fn nest(&mut self, from: &mut TableWithJoins) -> ControlFlow<String, Vec<Merged>> {
        let mut merged = self.inner(&mut from.relation)?;
        if !from.joins.iter().any(|join| kind(join).is_some()) {
            for join in &mut from.joins {
                merged.extend(self.inner(&mut join.relation)?);
            }
            return ControlFlow::Continue(merged);
        }
        if is_lateral(&from.relation) {
            return ControlFlow::Break(
                "USING and NATURAL are not answered behind a LATERAL or UNNEST that begins a join: write ON"
                    .to_string(),
            );
        }
        let placeholder = || TableFactor::TableFunction { expr: Expr::Value(ast::Value::Null.into()), alias: None };
        let mut relation = std::mem::replace(&mut from.relation, placeholder());
        let mut before: Vec<ast::Join> = Vec::new();
        for mut join in std::mem::take(&mut from.joins) {
            merged.extend(self.inner(&mut join.relation)?);
            let Some((_, constraint)) = kind(&join) else {
                before.push(join);
                continue;
            };
            if !before.is_empty() {
                let joins = std::mem::take(&mut before);
                relation = nested(relation, joins, None);
            }
            self.merging += 1;
            let made = format!("(join {})", self.merging);
            if let ast::JoinConstraint::Using(names) = constraint {
                for key in names.iter().filter_map(|name| name.0.last()?.as_ident()).map(plain) {
                    merged.retain(|one| one.key != key);
                    if self.names.all || self.names.columns.contains(&key.to_lowercase()) {
                        merged.push(Merged { key, relation: made.clone() });
                    }
                }
            }
            relation = nested(relation, vec![join], Some(self.alias(&made)));
        }
        from.relation = relation;
        from.joins = before;
        ControlFlow::Continue(merged)
    }

    /// Like `nest`, for a join in parentheses.
    fn inner(&mut self, relation: &mut TableFactor) -> ControlFlow<String, Vec<Merged>> {
        match relation {
            TableFactor::NestedJoin { table_with_joins, alias: None } => self.nest(table_with_joins),
            _ => ControlFlow::Continue(Vec::new()),
        }
    }

    /// Alias with the information for the relation planner.
    fn alias(&self, made: &str) -> TableAlias {
        let marks = self.names.all.then(|| ALL.to_string()).into_iter().chain([format!("{MERGED}{made}")]);
        let names = self.names.columns.iter().cloned().chain(marks);
        let column = |name| TableAliasColumnDef { name: Ident::new(name), data_type: None };
        TableAlias { explicit: true, name: Ident::new(NAMED), columns: names.map(column).collect(), at: None }
    }
}

fn nested(relation: TableFactor, joins: Vec<ast::Join>, alias: Option<TableAlias>) -> TableFactor {
    TableFactor::NestedJoin { table_with_joins: Box::new(TableWithJoins { relation, joins }), alias }
}

/// Raises the AND or OR that the parser put below an IS DISTINCT FROM; true if `expr` is now such an AND or OR.
fn raised(expr: &mut Expr, is_right_raised: bool) -> bool {
    let binds: fn(&BinaryOperator) -> bool = match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) if joins(right, |_| true) => |_| true,
        Expr::UnaryOp { op: UnaryOperator::Not, expr: right } if is_right_raised && joins(right, |_| true) => |_| true,
        // a OR (b OR c) becomes (a OR b) OR c; a OR (b AND c) is already correct.
        Expr::BinaryOp { op: BinaryOperator::Or, right, .. } if is_right_raised => {
            if !joins(right, |op| *op == BinaryOperator::Or) {
                return joins(expr, |_| true);
            }
            |op| *op == BinaryOperator::Or
        }
        Expr::BinaryOp { right, .. } if is_right_raised && joins(right, |_| true) => |_| true,
        _ => return false,
    };
    let placeholder = || Expr::Value(ast::Value::Null.into());
    let mut whole = std::mem::replace(expr, placeholder());
    let right = match &mut whole {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => right,
        Expr::UnaryOp { expr: right, .. } | Expr::BinaryOp { right, .. } => right,
        _ => return false,
    };
    let mut top = std::mem::replace(right.as_mut(), placeholder());
    // The operand that belongs to the expression itself.
    let mut first = &mut top;
    while joins(first, binds) {
        let Expr::BinaryOp { left, .. } = first else { break };
        first = left;
    }
    std::mem::swap(right.as_mut(), first);
    *first = whole;
    *expr = top;
    true
}

/// True for an AND or OR, without parentheses, that `binds` accepts.
fn joins(expr: &Expr, binds: impl Fn(&BinaryOperator) -> bool) -> bool {
    matches!(expr, Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } if binds(op))
}
