//! What the syntax tree alone knows, and the planner no more.
//!
//! ```text
//!   1_000                                 refused: the tokens are the number 1 and the name _000
//!   FROM t                            ─►  SELECT * FROM t
//!   GROUP BY a WITH ROLLUP            ─►  GROUP BY ROLLUP (a)                 other clauses that the planner drops: refused (`dropped`)
//!   a = ANY (list)                    ─►  with NULL, where an item is (`anys`)
//!   OVER (w ORDER BY a)               ─►  OVER (PARTITION BY … ORDER BY a)    where w is a window of the statement (`windows`)
//!   a IS DISTINCT FROM b AND c        ─►  (a IS DISTINCT FROM b) AND c        the parser gives all of `b AND c` to IS
//!   t, a FULL JOIN b USING (k) JOIN c ─►  t, (a FULL JOIN b USING (k)) JOIN c     for the planner of relations (`using`)
//!   COPY q TO 'x.csv.gz' (HEADER false) ─► … STORED AS CSV OPTIONS (…)              options and names of files (`copy_options`)
//! ```
//!
//! Depth  trees that come here have few levels (`levels`), and get no deeper but by the joins of one FROM.

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

use crate::levels;
use crate::mends::using::{is_lateral, kind};
use crate::mends::{anys, copy_options, dropped, windows};

/// Refuses digits with underscores where the dialect has no such numbers.
///
/// # Errors
/// That refusal. What is no text of tokens is the parser's to refuse.
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

/// Brings a statement to what it says.
///
/// # Errors
/// A refusal of what cannot be brought there.
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

/// Names of columns that a statement has behind the name of a table.
#[derive(Default, Clone)]
struct Names {
    columns: BTreeSet<String>,
    /// It has `t.*`.
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

/// Which columns of USING a statement names by their table.
pub(super) enum Named {
    /// Nothing is known of the statement.
    Unknown,
    /// These; all, if there is a `*`. The relation of the columns that the join makes, too.
    Some { columns: BTreeSet<String>, all: bool, merged: Option<String> },
}

/// The alias that brings them to the planner of relations: no name that a text has.
const NAMED: &str = "\u{1}named";

/// What stands for `t.*` among them.
const ALL: &str = "\u{1}all";

/// What is before the relation of the columns that a join makes.
const MERGED: char = '\u{2}';

impl Named {
    /// What an alias says; `None` for one of the statement.
    pub fn of(alias: Option<&TableAlias>) -> Option<Self> {
        let alias = alias.filter(|alias| alias.name.value == NAMED)?;
        let mut columns: BTreeSet<String> = alias.columns.iter().map(|column| column.name.value.clone()).collect();
        let all = columns.remove(ALL);
        let merged = columns.iter().find_map(|column| column.strip_prefix(MERGED)).map(str::to_string);
        Some(Self::Some { columns, all, merged })
    }

    /// True if a column of this name may be named by its table.
    pub fn names(&self, column: &str) -> bool {
        match self {
            Self::Unknown => true,
            Self::Some { columns, all, .. } => *all || columns.contains(&column.to_lowercase()),
        }
    }

    /// The relation of the columns that the join makes, where the statement names it.
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
    /// The expression that was left last is AND or OR that an IS DISTINCT FROM has given back.
    is_raised: bool,
    /// Joins that merge columns, so far.
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
        // Of those that are there twice, the planner says that they are not clear.
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
            // What was nested here has one join, and is done.
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

/// A column that a join makes, beside those of its sides.
#[derive(Clone)]
struct Merged {
    key: String,
    relation: String,
}

/// Names in a condition the columns that joins have made by their relations: there, DataFusion's planner asks no join of USING.
struct Clear {
    merged: Vec<Merged>,
    /// Queries that are entered: their names are their own.
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

/// A name as the planner has it.
pub(super) fn plain(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

impl Mends {
    /// Puts each join that merges columns into parentheses, with all that is before it. Gives the columns that stand beside those of their sides.
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

    /// The same for a join in parentheses.
    fn inner(&mut self, relation: &mut TableFactor) -> ControlFlow<String, Vec<Merged>> {
        match relation {
            TableFactor::NestedJoin { table_with_joins, alias: None } => self.nest(table_with_joins),
            _ => ControlFlow::Continue(Vec::new()),
        }
    }

    /// What the planner of relations is to know.
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

/// Gives back the AND and OR that the parser has given to an IS DISTINCT FROM; true if `expr` is such a one now.
fn raised(expr: &mut Expr, is_right_raised: bool) -> bool {
    let binds: fn(&BinaryOperator) -> bool = match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) if joins(right, |_| true) => |_| true,
        Expr::UnaryOp { op: UnaryOperator::Not, expr: right } if is_right_raised && joins(right, |_| true) => |_| true,
        // a OR (b OR c) is (a OR b) OR c, and a OR (b AND c) is as it should be.
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
    // The operand that is the expression's own.
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

/// True for an AND or OR, without parentheses, that `binds`.
fn joins(expr: &Expr, binds: impl Fn(&BinaryOperator) -> bool) -> bool {
    matches!(expr, Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } if binds(op))
}
