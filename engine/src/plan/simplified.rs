//! Guards against steps of DataFusion's simplifier that change a result.
//!
//!   TRY_CAST(b AS SMALLINT) < 9            a cast that loses values          b < 9: TRUE where the cast is NULL
//!   a IN (1, 2) AND a IN (3, 4)            lists over one expression         FALSE where a is NULL
//!   a IN (b, 1) AND a IN (c, 2)            lists with non-constant items     FALSE where b = c
//!   a ^ b ^ a                              repeated operands of XOR          b where a is NULL
//!   s ~ 'a\\b'                             patterns with a backslash         s LIKE '%a\b%', which matches ab
//!   s ~ '.*'                               the pattern that matches all      s IS NOT NULL: FALSE where s is NULL
//!   9223372036854775807 + 1                integers that overflow            -9223372036854775808 (`overflow.rs`)
//!   coalesce(9223372036854775807, a) + 1   overflow after simplification     -9223372036854775808
//!   CASE WHEN a THEN false ELSE 1/b > 0    branches of conditions            NOT a AND 1/b > 0: an error where b is 0
//!
//! Hidden     while the rule works on a node, such a part is wrapped in a function unknown to DataFusion. No two are
//!            equal, and none is evaluated. Afterwards the part is unwrapped.
//! Untouched  nodes without such parts go to DataFusion's rule directly.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, ScalarValue, exec_err, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{BinaryExpr, Case, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, TryCastExpr};
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;

use crate::options::IntegerOverflow;
use crate::plan::overflow::{is_whole_but_zero, leaves_type};

/// DataFusion's rule that simplifies expressions.
pub(crate) const RULE: &str = "simplify_expressions";

/// Name of the function that wraps the tested expression of an IN list whose items are hidden in a template.
pub(crate) const LISTED: &str = "millpond_listed";

/// Name of the function that wraps a constant of a template. It is volatile, so that no rule evaluates it, but returns
/// the same value each time.
pub(crate) const PARAMETER: &str = "millpond_parameter";

/// Wraps the rule so that it does not see the parts that it would change wrongly.
pub(crate) fn guarded(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(Guarded(rule))
}

#[derive(Debug)]
struct Guarded(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for Guarded {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // Most nodes have no cast and need no schema.
        let known = OnceCell::new();
        let schema = || known.get_or_init(|| schema_of(&plan).ok()).as_deref();
        let filters = matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::Join(_) | LogicalPlan::TableScan(_));
        let mut risky = false;
        plan.apply_expressions(|expr| {
            risky = has_risks(expr, filters, &schema);
            Ok(if risky { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        if !risky {
            return self.0.rewrite(plan, config);
        }
        let schema = match known.into_inner().flatten() {
            Some(schema) => schema,
            None => schema_of(&plan)?,
        };
        let mut hiding = Hiding { schema: &schema, count: 0 };
        // Names of aggregates and windows with a FILTER contain its text.
        let names = NamePreserver::new(&plan);
        let hidden = plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(Transformed::yes(name.restore(hiding.expression(expr, filters)?)))
        });
        let hidden = hidden?.data;
        let Transformed { data, transformed, tnr } = self.0.rewrite(hidden, config)?;
        // The rule may have turned one node into several.
        let mut shown = data.map_expressions(|expr| expr.transform_up(show))?.data;
        if shown.exists(|node| Ok(node.expressions().iter().any(is_hidden_in)))? {
            shown = shown.transform_up(|node| node.map_expressions(|expr| expr.transform_up(show)))?.data;
        }
        if IntegerOverflow::is_error(&config.options()) {
            refuse_overflow(&shown)?;
        }
        Ok(Transformed::new(shown, transformed, tnr))
    }
}

/// Refuses overflow in VALUES, which the planner evaluates with wrapping.
///
/// # Errors
/// If a value exceeds its type.
fn refuse_overflow(plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Values(values) = plan else { return Ok(()) };
    let none = DFSchema::empty();
    for value in values.values.iter().flatten() {
        if value.exists(|part| Ok(leaves_type(part, &none)))? {
            return exec_err!("overflow: {value} leaves its type: cast an operand to a wider one");
        }
    }
    Ok(())
}

/// Columns that the expressions of a node refer to.
fn schema_of(plan: &LogicalPlan) -> Result<DFSchemaRef> {
    Ok(match plan {
        LogicalPlan::TableScan(scan) => {
            Arc::new(DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?)
        }
        other => Arc::new(merge_schema(&other.inputs())),
    })
}

/// True for an expression with a part that the simplifier would change wrongly. `filters` is set where FALSE and NULL
/// are equivalent.
fn has_risks<'s>(expr: &Expr, filters: bool, schema: &impl Fn() -> Option<&'s DFSchema>) -> bool {
    let is_plain = |expr: &Expr| matches!(expr, Expr::Column(_) | Expr::Literal(..));
    let mut expr = expr;
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    // Most expressions of projections are plain.
    if is_plain(expr) {
        return false;
    }
    let mut parts = vec![(expr, filters)];
    while let Some((part, filters)) = parts.pop() {
        if is_alone(part, schema) {
            return true;
        }
        match part {
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or | Operator::BitwiseXor), .. }) => {
                let terms = chain(part, *op);
                let may_meet =
                    *op == Operator::BitwiseXor || terms.iter().filter(|term| may_be_list(term)).nth(1).is_some();
                if may_meet && meeting(&terms, *op, filters).contains(&true) {
                    return true;
                }
                let filters = filters && *op != Operator::BitwiseXor;
                parts.extend(terms.into_iter().filter(|term| !is_plain(term)).map(|term| (term, filters)));
            }
            _ => {
                let pushed = part.apply_children(|child| {
                    if !is_plain(child) {
                        parts.push((child, false));
                    }
                    Ok(TreeNodeRecursion::Continue)
                });
                if pushed.is_err() {
                    return false;
                }
            }
        }
    }
    false
}

/// True for a part that is at risk by itself.
fn is_alone<'s>(part: &Expr, schema: &impl Fn() -> Option<&'s DFSchema>) -> bool {
    match part {
        Expr::Cast(cast) => loses(&cast.expr, cast.field.data_type(), false, schema),
        Expr::TryCast(cast) => loses(&cast.expr, cast.field.data_type(), true, schema),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus | Operator::Multiply, right }) => {
            let is_null = |side: &Expr| bare(side).as_literal().is_some_and(ScalarValue::is_null);
            // An operation with NULL cannot overflow, but the other operand may.
            let is_null = (is_null(left) && !computes(right)) || (is_null(right) && !computes(left));
            !is_null
                && may_become_constant(part)
                && schema().is_some_and(|schema| match reads_columns(part) {
                    // The operands may become other constants.
                    true => part.get_type(schema).is_ok_and(|of| of.is_integer()),
                    false => leaves_type(part, schema),
                })
        }
        Expr::Case(case) if case.expr.is_none() => {
            may_fail(case) && schema().is_some_and(|schema| is_condition(part, schema))
        }
        Expr::BinaryExpr(BinaryExpr { op, right, .. }) if is_regex(*op) => match bare(right).as_literal() {
            Some(value) => value.try_as_str().flatten().is_some_and(|of| of == ANYTHING || may_have_backslash(of)),
            // A constant expression is evaluated before the pattern is examined.
            None => !reads_columns(right),
        },
        _ => false,
    }
}

/// True for an expression that contains arithmetic that may overflow.
fn computes(expr: &Expr) -> bool {
    use Operator::{Minus, Multiply, Plus};
    let found = expr.exists(|part| {
        Ok(match part {
            Expr::BinaryExpr(of) => matches!(of.op, Plus | Minus | Multiply),
            part => matches!(part, Expr::Negative(_)),
        })
    });
    found.unwrap_or(true)
}

/// True if the simplifier may evaluate the expression although it reads columns: in `coalesce(7, a) + 1`, `coalesce(7,
/// a)` is 7.
fn may_become_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::ScalarSubquery(_) => false,
        Expr::Cast(cast) => may_become_constant(&cast.expr),
        Expr::TryCast(cast) => may_become_constant(&cast.expr),
        Expr::Negative(of) => may_become_constant(of),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus, right }) => {
            may_become_constant(left) && may_become_constant(right)
        }
        // A product with zero becomes a constant.
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) => {
            let is_other = |side: &Expr| !is_whole_but_zero(side) && may_become_constant(side);
            is_other(left) || is_other(right) || (is_whole_but_zero(left) && is_whole_but_zero(right))
        }
        _ => true,
    }
}

/// True if a branch may fail that other rows do not take: the simplifier converts `CASE WHEN a THEN false ELSE b END`
/// to `NOT a AND b`, and evaluates both.
fn may_fail(case: &Case) -> bool {
    let branches = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
    let fails = |part: &Expr| {
        Ok(match part {
            Expr::Cast(_) | Expr::Negative(_) => true,
            Expr::BinaryExpr(of) => {
                use Operator::{Divide, IntegerDivide, Minus, Modulo, Multiply, Plus};
                matches!(of.op, Plus | Minus | Multiply | Divide | IntegerDivide | Modulo)
            }
            _ => false,
        })
    };
    branches.into_iter().any(|branch| branch.exists(fails).unwrap_or(true))
}

fn is_condition(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|of| of == DataType::Boolean)
}

fn loses<'s>(expr: &Expr, to: &DataType, tries: bool, schema: &impl Fn() -> Option<&'s DFSchema>) -> bool {
    reads_columns(expr)
        && schema().is_some_and(|schema| expr.get_type(schema).is_ok_and(|from| !keeps(&from, to, tries)))
}

fn reads_columns(expr: &Expr) -> bool {
    let found = expr.exists(|part| Ok(matches!(part, Expr::Column(_) | Expr::OuterReferenceColumn(..))));
    matches!(found, Ok(true))
}

/// True if comparing the cast value is equivalent to comparing the value itself: the cast is injective and monotonic,
/// and, if it `tries`, none becomes NULL. Also true for types between which DataFusion does not replace such
/// comparisons.
fn keeps(from: &DataType, to: &DataType, tries: bool) -> bool {
    use DataType::{Date32, Date64, Decimal32, Decimal64, Decimal128, Dictionary};
    match (from, to) {
        (Dictionary(_, from), _) => return keeps(from, to, tries),
        (_, Dictionary(_, to)) => return keeps(from, to, tries),
        _ if from == to => return true,
        _ => {}
    }
    let digits = |of: &DataType| match of {
        Decimal32(precision, scale) | Decimal64(precision, scale) | Decimal128(precision, scale) => {
            Some((i32::from(*precision) - i32::from(*scale), i32::from(*scale)))
        }
        _ => None,
    };
    match (whole(from), whole(to), digits(from), digits(to)) {
        // The least and the greatest value must fit.
        (Some(from), Some(to), ..) => to.0 <= from.0 && from.1 <= to.1,
        (Some(from), None, None, Some((before, scale))) => {
            let room = u32::try_from(before).ok().and_then(|before| 10_i128.checked_pow(before));
            // A cast to more fraction digits fails only by overflow, and DataFusion's rewrite ignores that error.
            scale >= 0 && (!tries || room.is_none_or(|room| from.1.max(-from.0) < room))
        }
        (None, Some(_), Some((_, scale)), None) => scale <= 0 && !tries,
        (None, None, Some((before, scale)), Some((room, finer))) => finer >= scale && (!tries || room >= before),
        _ if matches!((from, to), (Date32, Date64)) => true,
        _ => !tries || !(from.is_temporal() && (to.is_temporal() || to.is_integer())),
    }
}

/// Least and greatest value of an integer type.
fn whole(of: &DataType) -> Option<(i128, i128)> {
    Some(match of {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::Int64 => (i64::MIN.into(), i64::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        _ => return None,
    })
}

/// The pattern that matches every text.
const ANYTHING: &str = ".*";

fn is_regex(op: Operator) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    matches!(op, RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch)
}

/// True for a regular expression that may match a backslash, which LIKE treats as an escape character.
fn may_have_backslash(pattern: &str) -> bool {
    [r"\\", r"\x", r"\u", r"\U", r"[\"].iter().any(|sign| pattern.contains(sign))
}

/// Operands of a chain of one operator, from left to right.
fn chain(expr: &Expr, op: Operator) -> Vec<&Expr> {
    let (mut terms, mut left) = (vec![], vec![expr]);
    while let Some(part) = left.pop() {
        match part {
            Expr::BinaryExpr(of) if of.op == op => left.extend([of.right.as_ref(), of.left.as_ref()]),
            term => terms.push(term),
        }
    }
    terms
}

/// Like [`chain`], consuming the expression.
fn chain_owned(expr: Expr, op: Operator) -> Vec<Expr> {
    let (mut terms, mut left) = (vec![], vec![expr]);
    while let Some(part) = left.pop() {
        match part {
            Expr::BinaryExpr(of) if of.op == op => left.extend([*of.right, *of.left]),
            term => terms.push(term),
        }
    }
    terms
}

/// Marks the terms of a chain that the simplifier must not merge.
fn meeting(terms: &[&Expr], op: Operator, filters: bool) -> Vec<bool> {
    if op == Operator::BitwiseXor {
        let mut seen = HashSet::new();
        return terms.iter().map(|term| !seen.insert(*term)).collect();
    }
    let lists: Vec<Option<List>> = terms.iter().map(|term| list_in(term)).collect();
    if lists.iter().flatten().nth(1).is_none() {
        return vec![false; terms.len()];
    }
    let mut over: HashMap<&Expr, Vec<&List>> = HashMap::new();
    lists.iter().flatten().for_each(|list| over.entry(list.of).or_default().push(list));
    let at_risk = |list: &List| {
        let others = &over[list.of];
        let negated = others.iter().filter(|other| other.negated).count();
        let unknown = others.iter().any(|other| other.unknown);
        others.len() > 1
            && match op {
                Operator::And => negated < others.len() && (unknown || !filters),
                _ => negated > 0,
            }
    };
    lists.iter().map(|list| list.as_ref().is_some_and(at_risk)).collect()
}

/// A condition that the simplifier treats as a list.
struct List<'e> {
    of: &'e Expr,
    negated: bool,
    /// The list has an item that is NULL or not constant.
    unknown: bool,
}

/// False if the operator alone shows that [`list_in`] finds no list in the term.
fn may_be_list(term: &Expr) -> bool {
    match term {
        Expr::Not(of) => may_be_list(of),
        Expr::InList(_) => true,
        Expr::BinaryExpr(of) => matches!(of.op, Operator::Or | Operator::And),
        _ => false,
    }
}

/// The list that a term represents: IN, NOT IN, or a chain of comparisons of one column.
fn list_in(term: &Expr) -> Option<List<'_>> {
    let (mut term, mut denied) = (term, false);
    while let Expr::Not(of) = term {
        (term, denied) = (of, !denied);
    }
    let is_known = |item: &Expr| item.as_literal().is_some_and(|value| !value.is_null());
    let (join, one, negated) = match term {
        Expr::InList(InList { expr, negated, list }) => {
            let unknown = !list.iter().all(is_known);
            return Some(List { of: bare(expr), negated: *negated != denied, unknown });
        }
        Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) => (Operator::Or, Operator::Eq, denied),
        Expr::BinaryExpr(BinaryExpr { op: Operator::And, .. }) => (Operator::And, Operator::NotEq, !denied),
        _ => return None,
    };
    let mut seen = HashSet::new();
    let twice = chain(term, join).into_iter().find_map(|term| match term {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if *op == one => {
            let column = [left, right].into_iter().map(|side| bare(side)).find(|side| side.try_as_col().is_some())?;
            (!seen.insert(column)).then_some(column)
        }
        _ => None,
    });
    twice.map(|of| List { of, negated, unknown: false })
}

/// Removes casts, and the wrapping functions of lists and of this module.
fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) => bare(&cast.expr),
        Expr::TryCast(cast) => bare(&cast.expr),
        Expr::ScalarFunction(call) if call.func.name() == LISTED || is_hidden(expr) => {
            call.args.first().map_or(expr, bare)
        }
        other => other,
    }
}

/// Wraps the parts of one node in functions.
struct Hiding<'s> {
    schema: &'s DFSchema,
    count: usize,
}

impl Hiding<'_> {
    fn expression(&mut self, expr: Expr, filters: bool) -> Result<Expr> {
        // Statements have hundreds of levels, and lists of conditions have thousands of terms.
        stacker::maybe_grow(RED_ZONE, STACK, || match expr {
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or | Operator::BitwiseXor), .. }) => {
                let met = meeting(&chain(&expr, op), op, filters);
                let filters = filters && op != Operator::BitwiseXor;
                let mut whole: Option<Expr> = None;
                for (term, meets) in chain_owned(expr, op).into_iter().zip(met) {
                    let mut term = self.expression(term, filters)?;
                    if meets {
                        term = self.hidden(term);
                    }
                    whole = Some(match whole {
                        Some(left) => Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(term))),
                        None => term,
                    });
                }
                match whole {
                    Some(whole) => Ok(whole),
                    None => internal_err!("a chain has terms"),
                }
            }
            expr => {
                let alone = is_alone(&expr, &|| Some(self.schema));
                let expr = expr.map_children(|child| self.expression(child, false).map(Transformed::yes))?.data;
                Ok(match expr {
                    // Hiding the right operand suffices, and keeps constants inside evaluable.
                    Expr::BinaryExpr(BinaryExpr { left, op, right }) if alone => {
                        Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(self.hidden(*right)) })
                    }
                    Expr::Case(case) if alone => self.hidden_case(case),
                    other if alone => self.hidden(other),
                    other => other,
                })
            }
        })
    }

    fn hidden(&mut self, expr: Expr) -> Expr {
        self.called(vec![expr], None)
    }

    /// Wraps a CASE without a subject in a function of its conditions and branches, which the rule simplifies as usual.
    fn hidden_case(&mut self, case: Case) -> Expr {
        let field = Expr::Case(case.clone()).to_field(self.schema).map(|(_, field)| field);
        let Ok(field) = field else { return Expr::Case(case) };
        let pairs = case.when_then_expr.into_iter().flat_map(|(when, then)| [*when, *then]);
        let parts = pairs.chain(case.else_expr.map(|other| *other)).collect();
        self.called(parts, Some(field))
    }

    fn called(&mut self, parts: Vec<Expr>, case: Option<FieldRef>) -> Expr {
        self.count += 1;
        let signature = Signature::any(parts.len(), Volatility::Volatile);
        ScalarUDF::new_from_impl(Hidden { number: self.count, case, signature }).call(parts)
    }
}

const RED_ZONE: usize = 128 << 10;
const STACK: usize = 2 << 20;

/// A part that is opaque to DataFusion's rule.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Hidden {
    number: usize,
    /// Type of a CASE, whose conditions and branches are the arguments; `None` if the only argument is the part itself.
    case: Option<FieldRef>,
    signature: Signature,
}

impl Hidden {
    /// Unwraps the part with the given arguments.
    fn shown(&self, args: Vec<Expr>) -> Result<Expr> {
        let mut args = args.into_iter();
        if self.case.is_none() {
            return args.next().map_or_else(|| internal_err!("one part is hidden"), Ok);
        }
        let mut case = Case { expr: None, when_then_expr: vec![], else_expr: None };
        while let Some(one) = args.next() {
            match args.next() {
                Some(then) => case.when_then_expr.push((Box::new(one), Box::new(then))),
                None => case.else_expr = Some(Box::new(one)),
            }
        }
        Ok(Expr::Case(case))
    }
}

impl ScalarUDFImpl for Hidden {
    fn name(&self) -> &str {
        "millpond_hidden"
    }

    // Column names must be those of the statement.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.shown(args.to_vec())?.schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match (&self.case, args) {
            (Some(case), _) => Ok(case.data_type().clone()),
            (None, [one]) => Ok(one.clone()),
            _ => internal_err!("one part is hidden"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match (&self.case, args.arg_fields) {
            (Some(case), _) => Ok(Arc::clone(case)),
            (None, [one]) => Ok(Arc::clone(one)),
            _ => internal_err!("one part is hidden"),
        }
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.pop() {
            Some(one) if self.case.is_none() => Ok(one),
            _ => internal_err!("a hidden part is never run"),
        }
    }
}

fn is_hidden(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Hidden>().is_some())
}

fn is_hidden_in(expr: &Expr) -> bool {
    matches!(expr.exists(|part| Ok(is_hidden(part))), Ok(true))
}

/// Unwraps a hidden part; removes an alias that is redundant then.
fn show(part: Expr) -> Result<Transformed<Expr>> {
    match part {
        Expr::ScalarFunction(call) => match call.func.inner().downcast_ref::<Hidden>() {
            Some(hidden) => Ok(Transformed::yes(hidden.shown(call.args)?)),
            None => Ok(Transformed::no(Expr::ScalarFunction(call))),
        },
        Expr::Alias(alias) if alias.relation.is_none() && alias.expr.schema_name().to_string() == alias.name => {
            Ok(Transformed::yes(*alias.expr))
        }
        part => Ok(Transformed::no(part)),
    }
}

/// Applies DataFusion's simplifier of physical expressions, but leaves casts that lose values unchanged.
///
/// # Errors
/// DataFusion's, if the evaluation of constants fails.
pub(crate) fn simplified(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let columns = schema.fields().len();
    let mut casts: Vec<(Arc<dyn PhysicalExpr>, FieldRef)> = vec![];
    let without = expr.transform_up(|part| {
        if !part.is::<CastExpr>() && !part.is::<TryCastExpr>() {
            return Ok(Transformed::no(part));
        }
        let Some(to) = lost_in(&part, &extended(schema, &casts))? else { return Ok(Transformed::no(part)) };
        let name = format!("millpond_hidden_{}", casts.len());
        let field = Arc::new(Field::new(&name, to, true));
        let column = Arc::new(Column::new(&name, columns + casts.len()));
        casts.push((part, field));
        Ok(Transformed::yes(column as Arc<dyn PhysicalExpr>))
    });
    let without = without.data()?;
    if casts.is_empty() {
        return PhysicalExprSimplifier::new(schema).simplify(without);
    }
    let mut simple = PhysicalExprSimplifier::new(&extended(schema, &casts)).simplify(without)?;
    // In reverse order: a cast may contain an earlier one.
    for (number, (cast, _)) in casts.iter().enumerate().rev() {
        let back = |part: Arc<dyn PhysicalExpr>| match part.downcast_ref::<Column>() {
            Some(column) if column.index() == columns + number => Ok(Transformed::yes(Arc::clone(cast))),
            _ => Ok(Transformed::no(part)),
        };
        simple = simple.transform_up(back).data()?;
    }
    Ok(simple)
}

/// Type of a cast that loses values; `None` for any other expression.
fn lost_in(part: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<DataType>> {
    let (of, to, tries) = if let Some(cast) = part.downcast_ref::<CastExpr>() {
        (cast.expr(), cast.cast_type(), false)
    } else if let Some(cast) = part.downcast_ref::<TryCastExpr>() {
        (cast.expr(), cast.cast_type(), true)
    } else {
        return Ok(None);
    };
    let reads_columns = of.exists(|part| Ok(part.is::<Column>()))?;
    Ok((reads_columns && !keeps(&of.data_type(schema)?, to, tries)).then(|| to.clone()))
}

/// True for a filter that DataFusion's file readers would change: they simplify the filters that they receive.
pub(crate) fn is_at_risk(filter: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    // The readers accept no expression without a type.
    filter.exists(|part| Ok(lost_in(part, schema)?.is_some())).unwrap_or(true)
}

/// A schema with one additional column per hidden cast.
fn extended(schema: &Schema, casts: &[(Arc<dyn PhysicalExpr>, FieldRef)]) -> Schema {
    let fields = schema.fields().iter().chain(casts.iter().map(|(_, field)| field));
    Schema::new(fields.cloned().collect::<Vec<_>>())
}
