//! Limits the depth of statements. Recursive functions walk, compare and drop trees on stacks of threads that a program
//! has created: a tree too deep for them is refused before it is built, with its size and an alternative.
//!
//!   text ─► syntax tree ─ long chains balanced ─► levels? ─► logical plan ─► levels? ─► physical plan ─► levels?
//!                         a OR b OR c OR d            a + b …    views, WITH,    WHERE a AND b AND …
//!                         └► (a OR b) OR (c OR d)                joins
//!
//! Chains    of AND and OR of thousands of terms become shallow trees with the terms in order: both operators are
//!           associative, also with NULL. DataFusion splits the AND of a filter and nests it again, so the plan that
//!           would run is counted as well.
//! Refused   more than [`LEVELS`] levels, or [`TERMS`] operands of AND and OR in all.
//! Stacks    a long text is parsed, and a deep statement planned, on a separate stack, which is freed afterwards.
//!           Nearly all statements are shallow and use the thread's own stack.
//! Drop      a refused syntax tree is dismantled from its leaves.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::common::config::ConfigOptions;
use datafusion::common::plan_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{self, BinaryOperator, SetExpr, SetOperator, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// Maximum nesting depth of a statement: expressions, queries and operators. A worker thread has 2 MiB of stack, in
/// which DataFusion can evaluate expressions four times as deep.
pub const LEVELS: usize = 500;

/// Maximum number of AND and OR operands in a statement. Planning time grows faster than their number.
pub const TERMS: usize = 20_000;

/// Number of terms up to which a chain of AND or OR stays as written.
const SHORT_CHAIN: usize = 32;

/// Maximum levels and terms for planning on the thread's own stack.
const SHALLOW: usize = 64;

/// Bytes of stack per level during planning: twice what DataFusion's walks used in an unoptimized build.
const LEVEL_BYTES: usize = 16 << 10;

/// Bytes of stack in addition to those per level.
const BASE_BYTES: usize = 1 << 20;

/// Bytes of stack for dropping a logical plan of any depth that a text can express.
const DROP_BYTES: usize = 1 << 30;

/// Maximum bytes of a text that is parsed on the thread's own stack.
const SHORT_TEXT: usize = 1 << 11;

/// Bytes of stack per byte of a long text: a level has at least two bytes, and needs twice this amount while its tree
/// is dropped.
const TEXT_BYTES: usize = 256;

/// Maximum nesting of `NOT (`. Once the parser has reached its own depth limit, it tries each level twice, which
/// doubles the time per level.
const NOTS: usize = 24;

/// Bytes above which a text is scanned first: most such texts are lists of rows, which have no levels.
const LONG_TEXT: usize = 1 << 19;

/// Maximum number of tokens of a long text between two commas in the same parentheses.
const TOKENS: usize = 1 << 19;

/// Parses with `parse` and shapes the statements.
///
/// # Errors
/// Those of `parse`, and an error for a statement with too many levels.
pub(crate) fn parsed(sql: &str, parse: impl FnOnce() -> Result<VecDeque<Statement>>) -> Result<VecDeque<Statement>> {
    let nots = nested_nots(sql);
    if nots > NOTS {
        return plan_err!(
            "{nots} times NOT ( lies within one another, and a statement has at most {NOTS}; two of them are none"
        );
    }
    let mut statements = on_stack(stack_of_text(sql)?, parse)?;
    if let Some(error) = statements.iter_mut().find_map(|statement| shaped(statement).err()) {
        statements.into_iter().for_each(dismantled);
        return Err(error);
    }
    Ok(statements)
}

/// Converts the long chains of a statement into balanced trees and returns the stack that logical planning needs.
///
/// # Errors
/// If there are too many levels.
pub(crate) fn shaped(statement: &mut Statement) -> Result<usize> {
    let (mut explained, mut inner) = (0, &*statement);
    while let Statement::Explain(explain) = inner {
        explained += 1;
        inner = &explain.statement;
    }
    if explained > LEVELS {
        return plan_err!("{}", too_deep(&format!("it has {explained} times EXPLAIN"), "once is enough"));
    }
    let mut shape = Shape::default();
    match visit(statement, &mut shape) {
        ControlFlow::Continue(()) => Ok(stack_of(shape.most, 0)),
        ControlFlow::Break(refusal) => plan_err!("{refusal}"),
    }
}

/// Returns a logical plan if it is within the limits; a plan beyond them is dropped on a large stack.
///
/// # Errors
/// If there are too many levels or terms.
pub(crate) fn limited(plan: LogicalPlan) -> Result<LogicalPlan> {
    match stack_of_plan(&plan) {
        Ok(_) => Ok(plan),
        Err(error) => {
            on_stack(DROP_BYTES, || drop(plan));
            Err(error)
        }
    }
}

/// Bytes of stack for optimizing a logical plan and planning it physically; 0 for the thread's own stack.
///
/// # Errors
/// If there are too many levels or terms.
pub(crate) fn stack_of_plan(plan: &LogicalPlan) -> Result<usize> {
    if let LogicalPlan::Statement(_) = plan {
        // The plan of EXECUTE is stored elsewhere.
        return Ok(stack_of(LEVELS, TERMS));
    }
    let mut count = Count::default();
    let mut subqueries = vec![];
    count.plan(plan, 0, &mut subqueries)?;
    while let Some((plan, level)) = subqueries.pop() {
        count.plan(&plan, level, &mut subqueries)?;
    }
    Ok(stack_of(count.levels, count.terms))
}

fn stack_of(levels: usize, terms: usize) -> usize {
    if levels + terms <= SHALLOW { 0 } else { BASE_BYTES + (levels + terms) * LEVEL_BYTES }
}

/// Runs `work` on a stack of `bytes`; 0 for the thread's own.
pub(crate) fn on_stack<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes == 0 { work() } else { stacker::maybe_grow(bytes, bytes, work) }
}

/// A future that is polled and dropped on a stack of `bytes`.
pub(crate) struct OnStack<F: Future> {
    /// `None` after it was dropped.
    future: Option<Pin<Box<F>>>,
    bytes: usize,
}

impl<F: Future> OnStack<F> {
    pub fn new(bytes: usize, future: F) -> Self {
        Self { future: Some(Box::pin(future)), bytes }
    }
}

impl<F: Future> Future for OnStack<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let bytes = self.bytes;
        match &mut self.future {
            Some(future) => on_stack(bytes, || future.as_mut().poll(context)),
            None => Poll::Pending,
        }
    }
}

impl<F: Future> Drop for OnStack<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        on_stack(self.bytes, || drop(future));
    }
}

/// Bytes of stack for parsing a text, and for dropping its tree if the parser refuses it.
fn stack_of_text(sql: &str) -> Result<usize> {
    match sql.len() {
        0..=SHORT_TEXT => Ok(0),
        bytes @ ..=LONG_TEXT => Ok(BASE_BYTES + bytes * TEXT_BYTES),
        _ => {
            let tokens = longest_run(sql);
            if tokens > TOKENS {
                return plan_err!(
                    "a statement of {tokens} words and signs without a comma between them cannot be parsed: at most {TOKENS} can"
                );
            }
            Ok(BASE_BYTES + tokens * TEXT_BYTES * 2)
        }
    }
}

/// Maximum nesting of `NOT (` in a text.
fn nested_nots(sql: &str) -> usize {
    if sql.matches('(').nth(NOTS).is_none() {
        return 0;
    }
    let (mut open, mut nested, mut most, mut after_not) = (vec![], 0, 0, false);
    for token in Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default() {
        match &token {
            Token::Whitespace(_) => continue,
            Token::LParen => {
                open.push(after_not);
                nested += usize::from(after_not);
                most = most.max(nested);
            }
            Token::RParen => nested -= usize::from(open.pop().unwrap_or(false)),
            _ => {}
        }
        after_not = matches!(&token, Token::Word(word) if word.keyword == Keyword::NOT);
    }
    most
}

/// Maximum number of tokens between two commas in the same parentheses: an upper bound of the depth there.
fn longest_run(sql: &str) -> usize {
    let (mut runs, mut longest) = (vec![0], 0);
    // A text that cannot be tokenized is refused by the parser.
    for token in Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default() {
        match token {
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket | Token::LBrace => runs.push(0),
            Token::RParen | Token::RBracket | Token::RBrace if runs.len() > 1 => drop(runs.pop()),
            Token::Comma | Token::SemiColon => runs.last_mut().into_iter().for_each(|run| *run = 0),
            _ => {}
        }
        if let Some(run) = runs.last_mut() {
            *run += 1;
            longest = longest.max(*run + runs.len());
        }
    }
    longest
}

/// Walks a statement.
pub(crate) fn visit<V: VisitorMut>(statement: &mut Statement, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut statement = statement;
    loop {
        match statement {
            Statement::Statement(inner) => return inner.visit(visitor),
            Statement::Explain(explain) => statement = &mut explain.statement,
            Statement::CopyTo(copy) => match &mut copy.source {
                CopyToSource::Query(query) => return query.visit(visitor),
                CopyToSource::Relation(_) => return ControlFlow::Continue(()),
            },
            Statement::CreateExternalTable(_) | Statement::Reset(_) => return ControlFlow::Continue(()),
        }
    }
}

/// Error message: what is too deep, and an alternative.
fn too_deep(what: &str, way_out: &str) -> String {
    format!("{what}, and a statement has at most {LEVELS} levels; {way_out}")
}

/// Error message: too many operands of AND and OR.
fn too_many() -> String {
    format!(
        "a statement has at most {TERMS} operands of AND and OR: a list (a IN (…)) or a join with VALUES takes more values"
    )
}

/// Alternative to many conditions.
const MORE_VALUES: &str = "a list (a NOT IN (…)) or a join with VALUES takes more values";

/// Alternative if there is no better one.
const KEEP_PARTS: &str = "tables that keep parts of it (CREATE TABLE … AS) make it less deep";

/// Counts the levels of a syntax tree, and balances its long chains.
#[derive(Default)]
struct Shape {
    level: usize,
    most: usize,
    terms: usize,
}

impl Shape {
    /// Enters a node at the top of a chain of `links`.
    fn enter(&mut self, links: usize, chain: impl FnOnce() -> String) -> ControlFlow<String> {
        if self.level + links > LEVELS {
            return ControlFlow::Break(match links * 2 > LEVELS {
                true => chain(),
                false => too_deep("its expressions and queries lie deeper within one another", KEEP_PARTS),
            });
        }
        self.level += 1;
        self.most = self.most.max(self.level);
        ControlFlow::Continue(())
    }

    fn leave(&mut self) -> ControlFlow<String> {
        self.level -= 1;
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Shape {
    type Break = String;

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<String> {
        if let Some(terms) = anded(expr) {
            let what = format!("a chain of {terms} conditions is joined by AND");
            return ControlFlow::Break(too_deep(&what, MORE_VALUES));
        }
        pair(expr);
        if let ast::Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, .. } = expr {
            self.terms += 1;
            if self.terms > TERMS {
                return ControlFlow::Break(too_many());
            }
        }
        let (links, operator) = operators(expr);
        self.enter(links, || {
            let way_out = match operator {
                Some(BinaryOperator::StringConcat) => "concat(a, b, …) takes any number of texts",
                _ => "parentheses around parts of it make it less deep",
            };
            let last = operator.map_or_else(String::new, |operator| format!(", the last of them {operator}"));
            too_deep(&format!("an expression is a chain of {links} operators{last}"), way_out)
        })
    }

    fn post_visit_expr(&mut self, _: &mut ast::Expr) -> ControlFlow<String> {
        self.leave()
    }

    /// Joins in parentheses are planned as nested joins.
    fn pre_visit_table_factor(&mut self, relation: &mut ast::TableFactor) -> ControlFlow<String> {
        match relation {
            ast::TableFactor::NestedJoin { .. } => self.enter(0, String::new),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_table_factor(&mut self, relation: &mut ast::TableFactor) -> ControlFlow<String> {
        match relation {
            ast::TableFactor::NestedJoin { .. } => self.leave(),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<String> {
        let (links, operator) = set_operators(&query.body);
        self.enter(links, || {
            let last = operator.map_or_else(String::new, |operator| format!(", the last of them {operator}"));
            let way_out = "parentheses around parts of it, or tables that keep parts, make it less deep";
            too_deep(&format!("a query is a chain of {links} set operations{last}"), way_out)
        })
    }

    fn post_visit_query(&mut self, _: &mut ast::Query) -> ControlFlow<String> {
        self.leave()
    }
}

/// Number of consecutive operators down the left sides of an expression, and the topmost binary operator.
fn operators(expr: &ast::Expr) -> (usize, Option<&BinaryOperator>) {
    let (mut links, mut last, mut rest) = (0, None, expr);
    loop {
        rest = match rest {
            ast::Expr::BinaryOp { left, op, .. } => {
                last = last.or(Some(op));
                left
            }
            ast::Expr::Cast { expr, .. } | ast::Expr::IsNull(expr) | ast::Expr::IsNotNull(expr) => expr,
            _ => return (links, last),
        };
        links += 1;
    }
}

/// Number of consecutive set operations down the left sides, and the topmost operator.
fn set_operators(body: &SetExpr) -> (usize, Option<SetOperator>) {
    let (mut links, mut last, mut rest) = (0, None, body);
    while let SetExpr::SetOperation { left, op, .. } = rest {
        last = last.or(Some(*op));
        links += 1;
        rest = left;
    }
    (links, last)
}

/// Number of conditions in a chain of AND, if it exceeds the level limit: after DataFusion's planning a filter is such
/// a chain again.
fn anded(expr: &ast::Expr) -> Option<usize> {
    let (mut terms, mut rest) = (1, expr);
    while let ast::Expr::BinaryOp { left, op: BinaryOperator::And, .. } = rest {
        terms += 1;
        rest = left;
    }
    (terms > LEVELS).then_some(terms)
}

/// Balances a long chain of AND or of OR, keeping its terms in order.
fn pair(expr: &mut ast::Expr) {
    let ast::Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } = &*expr else { return };
    let op = op.clone();
    let (mut links, mut rest) = (0, &*expr);
    while let ast::Expr::BinaryOp { left, op: inner, .. } = rest
        && *inner == op
        && links <= SHORT_CHAIN
    {
        links += 1;
        rest = left;
    }
    if links <= SHORT_CHAIN {
        return;
    }
    let (mut terms, mut rest) = (vec![], std::mem::replace(expr, nothing()));
    loop {
        match rest {
            ast::Expr::BinaryOp { left, op: inner, right } if inner == op => {
                terms.push(*right);
                rest = *left;
            }
            first => {
                terms.push(first);
                break;
            }
        }
    }
    terms.reverse();
    while terms.len() > 1 {
        let mut pairs = Vec::with_capacity(terms.len().div_ceil(2));
        let mut rest = terms.into_iter();
        while let Some(left) = rest.next() {
            pairs.push(match rest.next() {
                Some(right) => ast::Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) },
                None => left,
            });
        }
        terms = pairs;
    }
    terms.into_iter().for_each(|all| *expr = all);
}

/// A leaf expression.
fn nothing() -> ast::Expr {
    ast::Expr::Value(ast::Value::Null.into())
}

/// Drops a statement of any depth.
fn dismantled(mut statement: Statement) {
    while let Statement::Explain(explain) = statement {
        statement = *explain.statement;
    }
    let _ = visit(&mut statement, &mut Dismantle);
}

/// Dismantles a syntax tree, leaves first.
struct Dismantle;

impl VisitorMut for Dismantle {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        *expr = nothing();
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        let nothing = || SetExpr::Values(ast::Values { explicit_row: false, value_keyword: false, rows: vec![] });
        let mut body = std::mem::replace(query.body.as_mut(), nothing());
        while let SetExpr::SetOperation { left, .. } = body {
            body = *left;
        }
        ControlFlow::Continue(())
    }
}

/// Counts the levels of a logical plan, and its operands of AND and OR.
#[derive(Default)]
struct Count {
    levels: usize,
    terms: usize,
}

impl Count {
    /// Counts a plan at the given level; its subqueries are added to `subqueries`.
    fn plan(
        &mut self,
        plan: &LogicalPlan,
        level: usize,
        subqueries: &mut Vec<(Arc<LogicalPlan>, usize)>,
    ) -> Result<()> {
        let mut nodes = vec![(plan, level)];
        while let Some((node, level)) = nodes.pop() {
            self.level(
                level,
                "its queries and joins, those of views and of WITH among them, lie deeper within one another",
            )?;
            node.apply_expressions(|expr| {
                self.expression(expr, level, subqueries)?;
                Ok(TreeNodeRecursion::Continue)
            })?;
            nodes.extend(node.inputs().into_iter().map(|input| (input, level + 1)));
        }
        Ok(())
    }

    fn expression(&mut self, expr: &Expr, level: usize, subqueries: &mut Vec<(Arc<LogicalPlan>, usize)>) -> Result<()> {
        let mut parts = vec![(expr, level)];
        while let Some((part, level)) = parts.pop() {
            self.level(level, "its expressions, those of views among them, lie deeper within one another")?;
            match part {
                Expr::BinaryExpr(binary) if matches!(binary.op, Operator::And | Operator::Or) => self.terms += 1,
                Expr::ScalarSubquery(subquery) => subqueries.push((Arc::clone(&subquery.subquery), level + 1)),
                Expr::Exists(exists) => subqueries.push((Arc::clone(&exists.subquery.subquery), level + 1)),
                Expr::InSubquery(of) => subqueries.push((Arc::clone(&of.subquery.subquery), level + 1)),
                Expr::SetComparison(of) => subqueries.push((Arc::clone(&of.subquery.subquery), level + 1)),
                _ => {}
            }
            part.apply_children(|child| {
                parts.push((child, level + 1));
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        if self.terms > TERMS {
            return plan_err!("{}", too_many());
        }
        Ok(())
    }

    fn level(&mut self, level: usize, what: &str) -> Result<()> {
        self.levels = self.levels.max(level);
        if level > LEVELS { Err(DataFusionError::Plan(too_deep(what, KEEP_PARTS))) } else { Ok(()) }
    }
}

/// Refuses a physical plan that is too deep to run; runs after all of DataFusion's rules.
#[derive(Debug)]
pub(crate) struct LimitLevels;

impl PhysicalOptimizerRule for LimitLevels {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let mut nodes = vec![(Arc::clone(&plan), 0)];
        while let Some((node, level)) = nodes.pop() {
            if level > PLAN_LEVELS {
                return plan_err!(
                    "{}",
                    too_deep(
                        "its operators, those of views and of WITH among them, lie deeper within one another",
                        KEEP_PARTS
                    )
                );
            }
            node.apply_expressions(&mut |expression| {
                let mut parts = vec![(expression, 0)];
                while let Some((part, level)) = parts.pop() {
                    if level > LEVELS {
                        return plan_err!(
                            "{}",
                            too_deep(
                                "a condition has more terms that are joined by AND, or parts deeper within one another",
                                MORE_VALUES
                            )
                        );
                    }
                    parts.extend(part.children().into_iter().map(|child| (child, level + 1)));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
            nodes.extend(node.children().into_iter().map(|child| (Arc::clone(child), level + 1)));
        }
        Ok(plan)
    }

    fn name(&self) -> &str {
        "limit_levels"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Maximum levels of a physical plan: an operator of a statement becomes about three.
const PLAN_LEVELS: usize = 4 * LEVELS;
