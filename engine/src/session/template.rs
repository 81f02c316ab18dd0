//! Shared plans of statements that differ only in the constants of their conditions.
//!
//!   WHERE a < 7 AND b LIKE 'x%' ─► a < $0 AND b LIKE $1, [7, 'x%'] ─ first time: recorded
//!                                           │                      └ second time: DataFusion plans it once
//!   WHERE a < 9 AND b LIKE 'y%' ─► the same ┘ ─► that plan with 9 and 'y%' inserted ─► placed on the device
//!
//! Constants  are the constant operands of conditions in WHERE, HAVING or ON: whole operands, evaluated, of a type with
//!            more than two values. Their types, list lengths, NULL and all other constants belong to the template.
//! Unknown    to DataFusion during planning: its rules see no values, so the plan is correct for all of them. Its scans
//!            contain no condition with a constant and no dynamic filter.
//! Unequal    placeholders may have equal values. The only rule that assumes different values for different expressions
//!            is the simplifier's merge of two lists over one expression: it never sees two such lists ([`Listed`]).
//! Complete   as a safeguard against all other rules, a plan that lacks a placeholder is refused: a rule may have
//!            relied on it.
//! Bound      per statement: its constants are passed to scans, and the plan is placed. Placement and lowering read the
//!            actual constants.
//! Kept       for statements whose plans may be kept and run entirely on the device. Others are planned each time.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, internal_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, Like, Placeholder, ScalarFunction};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TableProviderFilterPushDown, Volatility,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::expressions::{Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::mends::zeros::is_zero;
use crate::placement::{RULE, asks_constants, plan_reasons};
use crate::plan::node::REPLACE;
use crate::plan::overflow::leaves_type;
use crate::plan::rewrite::{reads, with_expressions};
use crate::plan::simplified::{LISTED, PARAMETER, simplified};
use crate::result::node::DownloadExec;
use crate::tables;

/// A statement without the constants of its conditions, and these constants.
pub(crate) struct Template {
    /// The plan with a placeholder for each constant.
    pub plan: LogicalPlan,
    values: Vec<ScalarValue>,
}

impl Template {
    /// Template of a query as planned by DataFusion's SQL planner; `None` if it has no such constants.
    pub fn of(query: &LogicalPlan, state: &SessionState) -> Option<Self> {
        let mut values = vec![];
        let context = SimplifyContext::builder().with_config_options(Arc::clone(state.config().options())).build();
        let mut constants = Constants { values: &mut values, lists: 0, simplifier: ExprSimplifier::new(context) };
        let plan = query.clone().transform_up_with_subqueries(|node| match node {
            LogicalPlan::Filter(_) | LogicalPlan::Join(_) => node.map_expressions(|expr| constants.condition(expr)),
            other => Ok(Transformed::no(other)),
        });
        let plan = plan.data().ok()?;
        (!values.is_empty()).then_some(Self { plan, values })
    }

    /// Hash of the template; equal for equal templates.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.plan.hash(&mut hasher);
        hasher.finish()
    }

    /// Plans the template with unknown constants; the plan is not yet placed.
    ///
    /// # Errors
    /// DataFusion's, and an internal error if the plan would depend on constants.
    pub async fn planned(&self, state: &SessionState) -> Result<Arc<dyn ExecutionPlan>> {
        let rules = state.physical_optimizers().iter().take_while(|rule| rule.name() != RULE).cloned();
        let mut unplaced =
            SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(rules.collect());
        // A configuration of its own: with a new one, the builder would give the session an empty catalog.
        let optimizer = &mut unplaced.config().get_or_insert_default().options_mut().optimizer;
        optimizer.enable_dynamic_filter_pushdown = false;
        optimizer.enable_join_dynamic_filter_pushdown = false;
        optimizer.enable_topk_dynamic_filter_pushdown = false;
        optimizer.enable_aggregate_dynamic_filter_pushdown = false;
        let unplaced = unplaced.build();
        let optimised = unplaced.optimize(&self.plan)?;
        let optimised = self.callable(optimised)?;
        let plan = DefaultPhysicalPlanner::default().create_physical_plan(&optimised, &unplaced).await?;
        let is_known = |node: &Arc<dyn ExecutionPlan>| {
            let is_leaf = node.children().is_empty();
            !is_leaf || node.is::<DataSourceExec>() || node.is::<EmptyExec>() || node.is::<PlaceholderRowExec>()
        };
        if plan.exists(|node| Ok(!is_known(node)))? {
            return internal_err!("a leaf that may not be ready to run again");
        }
        if let Some(lost) = self.lost(&plan)? {
            return internal_err!("the plan has no place for constant {lost}");
        }
        Ok(plan)
    }

    /// Index of the first constant that is missing from a plan.
    fn lost(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<usize>> {
        let found = vec![Cell::new(false); self.values.len()];
        plan.apply(|node| {
            reads(node.as_ref(), |part| {
                if let Some(place) = parameter(part).and_then(|parameter| found.get(parameter.index)) {
                    place.set(true);
                }
                false
            });
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(found.iter().position(|place| !place.get()))
    }

    /// Replaces each placeholder by a function that DataFusion can plan; removes conditions with placeholders from
    /// scans.
    fn callable(&self, optimised: LogicalPlan) -> Result<LogicalPlan> {
        let call = |part: Expr| {
            let Expr::Placeholder(placeholder) = &part else { return Ok(unlisted(part)) };
            let Some(index) = index_of(placeholder) else { return Ok(Transformed::no(part)) };
            let Some(value) = self.values.get(index) else { return internal_err!("{} has no value", placeholder.id) };
            let parameter =
                Parameter { index, value: value.clone(), signature: Signature::nullary(Volatility::Volatile) };
            Ok(Transformed::yes(ScalarUDF::new_from_impl(parameter).call(vec![])))
        };
        let node = |node: LogicalPlan| {
            if let LogicalPlan::TableScan(mut scan) = node {
                let provider = source_as_provider(&scan.source)?;
                let partitions = tables::listing(provider.as_ref()).map(|table| &table.options().table_partition_cols);
                let is_partition = |part: &Expr| match part {
                    Expr::Column(column) => {
                        partitions.is_some_and(|of| of.iter().any(|(name, _)| *name == column.name))
                    }
                    _ => false,
                };
                let mut kept = vec![];
                for filter in std::mem::take(&mut scan.filters) {
                    if !has_placeholder(&filter) {
                        kept.push(filter);
                    } else if provider.supports_filters_pushdown(&[&filter])? != [TableProviderFilterPushDown::Inexact]
                        || filter.exists(|part| Ok(is_partition(part)))?
                    {
                        return internal_err!("a scan that tests a constant by itself, or chooses files by it");
                    }
                }
                scan.filters = kept;
                return Ok(Transformed::yes(LogicalPlan::TableScan(scan)));
            }
            node.map_expressions(|expr| {
                // DataFusion may evaluate such a condition below an aggregation, which then still returns a row.
                if split_conjunction(&expr).into_iter().any(|part| has_placeholder(part) && !has_column(part)) {
                    return internal_err!("a condition of constants alone");
                }
                expr.transform_up(call)
            })
        };
        optimised.transform_up_with_subqueries(node).data()
    }

    /// Inserts the statement's constants into a copy of the template's plan, and places it; `None` if it is not
    /// entirely on the device, or would be planned differently.
    ///
    /// # Errors
    /// DataFusion's, if a constant does not fit; those of placement.
    pub fn bound(&self, plan: Arc<dyn ExecutionPlan>, state: &SessionState) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let mut plan = self.with_values(&plan)?;
        let mut places = false;
        for rule in state.physical_optimizers() {
            places |= rule.name() == RULE;
            // Conditions with constants are pushed to scans, and guarded again.
            if places || asks_constants(rule.name()) {
                plan = rule.optimize(plan, state.config_options())?;
            }
        }
        let is_placed = plan.exists(|node| Ok(node.is::<DownloadExec>()))?;
        Ok((is_placed && plan_reasons(&plan).is_empty()).then_some(plan))
    }

    fn with_values(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let children = plan.children().into_iter().map(|child| self.with_values(child)).collect::<Result<Vec<_>>>()?;
        let is_parameter = |part: &Arc<dyn PhysicalExpr>| parameter(part).is_some();
        let mut own = Arc::clone(plan);
        if reads(plan.as_ref(), is_parameter) {
            let change =
                |expression: &Arc<dyn PhysicalExpr>, schema: Option<&Schema>| self.value_in(expression, schema);
            own = match with_expressions(plan, &change)? {
                Some(own) if !reads(own.as_ref(), is_parameter) => own,
                _ => return internal_err!("{} reads a parameter, and is not made for another", plan.name()),
            };
        }
        own.replace_children(children, REPLACE)
    }

    /// Inserts the constants into an expression and simplifies it.
    fn value_in(&self, expression: &Arc<dyn PhysicalExpr>, schema: Option<&Schema>) -> Result<Arc<dyn PhysicalExpr>> {
        let value = |part: Arc<dyn PhysicalExpr>| {
            let Some(parameter) = parameter(&part) else { return Ok(Transformed::no(part)) };
            let Some(value) = self.values.get(parameter.index) else { return internal_err!("a parameter has a value") };
            Ok(Transformed::yes(lit(value.clone())))
        };
        let bound = Arc::clone(expression).transform_up(value).data()?;
        let Some(schema) = schema else { return Ok(bound) };
        let simple = simplified(bound, schema)?;
        // Errors of constant expressions, such as the cast of a word to a number, must occur during planning, as in
        // DataFusion.
        let nothing = RecordBatch::new_empty(Arc::new(Schema::empty()));
        simple.apply(|part| {
            let of = part.children();
            if !of.is_empty() && of.into_iter().all(|child| child.is::<Literal>()) {
                part.evaluate(&nothing)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(simple)
    }
}

/// Extracts the constants from conditions.
struct Constants<'v> {
    values: &'v mut Vec<ScalarValue>,
    /// Number of lists with placeholders.
    lists: usize,
    simplifier: ExprSimplifier,
}

impl Constants<'_> {
    /// Extracts constants from a condition, or from an expression that contains conditions.
    fn condition(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.transform_down(|part| {
            let taken = match part {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
                    let (left, right) = self.sides(*left, *right);
                    Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) })
                }
                Expr::Between(Between { expr, negated, low, high }) if has_column(&expr) => {
                    let (low, high) = (self.operand(*low), self.operand(*high));
                    Expr::Between(Between { expr, negated, low: Box::new(low), high: Box::new(high) })
                }
                // Lists of floats with one zero are extended by the other (`mends::zeros`).
                Expr::InList(InList { expr, list, negated }) if has_column(&expr) && !list.iter().any(is_zero) => {
                    let list: Vec<Expr> = list.into_iter().map(|item| self.operand(item)).collect();
                    let expr = if list.iter().any(has_placeholder) { Box::new(self.listed(*expr)) } else { expr };
                    Expr::InList(InList { expr, list, negated })
                }
                Expr::Like(Like { negated, expr, pattern, escape_char, case_insensitive }) if has_column(&expr) => {
                    let pattern = Box::new(self.operand(*pattern));
                    Expr::Like(Like { negated, expr, pattern, escape_char, case_insensitive })
                }
                other => return Ok(Transformed::no(other)),
            };
            // Other parts of its operands are unchanged.
            Ok(Transformed::new(taken, true, TreeNodeRecursion::Jump))
        })
    }

    fn sides(&mut self, left: Expr, right: Expr) -> (Expr, Expr) {
        match (has_column(&left), has_column(&right)) {
            (true, false) => (left, self.operand(right)),
            (false, true) => (self.operand(left), right),
            _ => (left, right),
        }
    }

    /// Wraps the expression of a list with placeholders, so that it differs from those of all other lists.
    fn listed(&mut self, expr: Expr) -> Expr {
        self.lists += 1;
        let listed = Listed { number: self.lists, signature: Signature::any(1, Volatility::Immutable) };
        ScalarUDF::new_from_impl(listed).call(vec![expr])
    }

    /// Replaces a constant by a placeholder; returns any other expression unchanged.
    fn operand(&mut self, expr: Expr) -> Expr {
        if !is_constant(&expr) {
            return expr;
        }
        let none = DFSchema::empty();
        let computed = self.simplifier.coerce(expr.clone(), &none).and_then(|typed| {
            let overflows = typed.exists(|part| Ok(leaves_type(part, &none)))?;
            if overflows { Ok(typed) } else { self.simplifier.simplify(typed) }
        });
        let Ok(Expr::Literal(value, None)) = computed else { return expr };
        if value.is_null() || !has_values(&value.data_type()) {
            return expr;
        }
        let field = Arc::new(Field::new("", value.data_type(), false));
        self.values.push(value);
        Expr::Placeholder(Placeholder::new_with_field(format!("{PREFIX}{}", self.values.len() - 1), Some(field)))
    }
}

const PREFIX: &str = "$millpond_";

fn index_of(placeholder: &Placeholder) -> Option<usize> {
    placeholder.id.strip_prefix(PREFIX)?.parse().ok()
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

fn has_placeholder(expr: &Expr) -> bool {
    matches!(expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_)))), Ok(true))
}

fn has_column(expr: &Expr) -> bool {
    let is_column = |part: &Expr| matches!(part, Expr::Column(_) | Expr::OuterReferenceColumn(..));
    matches!(expr.exists(|part| Ok(is_column(part))), Ok(true))
}

/// True for an expression of constants only.
fn is_constant(expr: &Expr) -> bool {
    let other = expr.exists(|part| {
        Ok(!matches!(
            part,
            Expr::Literal(_, None)
                | Expr::BinaryExpr(_)
                | Expr::Cast(_)
                | Expr::TryCast(_)
                | Expr::Negative(_)
                | Expr::ScalarFunction(_)
        ))
    });
    matches!(other, Ok(false))
}

/// True for types with arbitrary values; rules examine booleans.
fn has_values(data_type: &DataType) -> bool {
    data_type.is_numeric()
        || matches!(
            data_type,
            DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
        )
}

/// Identity function around the tested expression of list `number`. DataFusion's simplifier merges two lists over equal
/// expressions by their common items, and assumes that different item expressions have different values; filter
/// pushdown may bring any two lists of a statement together. So the tested expressions of lists with placeholders must
/// all differ during optimization.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Listed {
    number: usize,
    signature: Signature,
}

impl ScalarUDFImpl for Listed {
    fn name(&self) -> &str {
        LISTED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match args {
            [one] => Ok(one.clone()),
            _ => internal_err!("a list has one expression"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [one] => Ok(Arc::clone(one)),
            _ => internal_err!("a list has one expression"),
        }
    }

    // Called when a rule evaluates constants, or tests a condition with NULLs.
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.pop() {
            Some(one) => Ok(one),
            None => internal_err!("a list has one expression"),
        }
    }
}

/// True for the expression of a list with placeholders.
fn is_listed(call: &ScalarFunction) -> bool {
    call.func.inner().downcast_ref::<Listed>().is_some()
}

/// Maximum items of a list over a column that DataFusion plans as comparisons.
const SHORT_LIST: usize = 3;

/// Unwraps the expression of a list; converts a short list to comparisons, as DataFusion does for constant lists.
fn unlisted(part: Expr) -> Transformed<Expr> {
    match part {
        Expr::ScalarFunction(mut call) if is_listed(&call) => match call.args.pop() {
            Some(one) => Transformed::yes(one),
            None => Transformed::no(Expr::ScalarFunction(call)),
        },
        Expr::InList(InList { expr, list, negated })
            if list.len() == 1 || (list.len() <= SHORT_LIST && expr.try_as_col().is_some()) =>
        {
            let (one, join): (Operator, fn(Expr, Expr) -> Expr) = match negated {
                true => (Operator::NotEq, Expr::and),
                false => (Operator::Eq, Expr::or),
            };
            let compare = |item| Expr::BinaryExpr(BinaryExpr::new(expr.clone(), one, Box::new(item)));
            match list.into_iter().map(compare).reduce(join) {
                Some(comparisons) => Transformed::yes(comparisons),
                None => Transformed::yes(Expr::Literal(ScalarValue::Boolean(Some(negated)), None)),
            }
        }
        other => Transformed::no(other),
    }
}

/// A constant in a template's plan, with its value at the time of planning.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Parameter {
    index: usize,
    value: ScalarValue,
    signature: Signature,
}

impl ScalarUDFImpl for Parameter {
    fn name(&self) -> &str {
        PARAMETER
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    // Same name as the placeholder that it replaces.
    fn schema_name(&self, _args: &[Expr]) -> Result<String> {
        Ok(format!("{PREFIX}{}", self.index))
    }

    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(self.value.data_type())
    }

    fn return_field_from_args(&self, _args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::new("", self.value.data_type(), false)))
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("a parameter of a template is no function that runs")
    }
}

/// The parameter that an expression represents, if any.
fn parameter(expression: &Arc<dyn PhysicalExpr>) -> Option<&Parameter> {
    expression.downcast_ref::<ScalarFunctionExpr>()?.fun().inner().downcast_ref()
}
