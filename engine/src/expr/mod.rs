//! Physical expressions, lowered to the kernels' expression graph.
//!
//!   l_extendedprice@1 * (1 - l_discount@2)   ──►  graph nodes with types and proven ranges
//!   l_shipmode@3 IN ('MAIL', 'SHIP')         ──►  lookup table over l_shipmode's dictionary
//!
//! Semantics  DataFusion's, node by node; an expression without an exact form is a [`Reason`], never an approximation.
//! Strings    any deterministic expression over one dictionary column is evaluated by DataFusion on the dictionary's
//!            values, and applied by code. Lists, structures and maps are such columns, too. Strings without a
//!            dictionary are texts, with functions of their own (text.rs, regex.rs).
//! Errors     overflow, division by zero and failed casts raise the device's error flag; the CPU then reports the
//!            error.
//! Pure       lowering allocates no device memory; the same call judges at plan time and compiles at run time.

pub(crate) mod arithmetic;
pub(crate) mod build;
pub(crate) mod builtin;
pub(crate) mod cast;
pub(crate) mod checked;
pub(crate) mod dictionary;
pub(crate) mod function;
pub(crate) mod interval;
pub(crate) mod list;
pub(crate) mod made;
pub(crate) mod math;
pub(crate) mod mended;
mod ordered;
pub(crate) mod overlay;
pub(crate) mod parameter;
pub(crate) mod pattern;
pub(crate) mod regex;
mod row;
pub mod sketch;
pub(crate) mod text;
pub(crate) mod time;
pub mod udf;
pub(crate) mod zone;

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal as LiteralExpr, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};
use millpond_kernels::codegen::ir::{
    Comparison, Graph, GraphError, Literal, NodeId, Overflow, Repr, TableSpec, Test, Ty,
};

use crate::column::half::widened;
use crate::column::{
    ColumnInfo, DictionaryId, Form, has_two_zeros, is_coded, is_nested, is_wide, plain_repr, scalar_integer,
    type_unsupported, value_type,
};
use crate::error::reason::Reason;

pub(crate) use crate::expr::build::try_build;
pub use crate::expr::build::{Built, DeviceExpr, ExprBuilder};
use crate::expr::dictionary::StringPart;
pub use crate::expr::dictionary::{Dictionaries, Dictionary, Lookup, LookupKind, LookupTable, NumberTable};
pub(crate) use crate::expr::dictionary::{evaluate, sorted_so};
pub use crate::expr::parameter::Parameter;
use crate::expr::sketch::SketchExpr;

/// Why the expression at hand has no device form. [`Lowering::lower`] makes it a [`Reason`] with the expression.
#[derive(Debug)]
pub enum Refusal {
    Why(String),
    /// Its values have this type.
    Type(DataType),
    /// The reason of an expression within it.
    Within(Reason),
}

/// What the parts of an expression's lowering give.
pub type Lowered<T> = Result<T, Refusal>;

impl Refusal {
    /// The reason of `expr`.
    pub fn of(self, expr: &Arc<dyn PhysicalExpr>) -> Reason {
        match self {
            Refusal::Within(reason) => reason,
            other => other.named(&expr.to_string()),
        }
    }

    /// The reason of a value of this name.
    pub fn named(self, name: &str) -> Reason {
        match self {
            Refusal::Why(why) => Reason::ExprUnsupported { expr: name.to_string(), why },
            Refusal::Type(data_type) => type_unsupported(name, &data_type),
            Refusal::Within(reason) => reason,
        }
    }
}

impl From<GraphError> for Refusal {
    fn from(error: GraphError) -> Self {
        Refusal::Why(error.to_string())
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Refusal::Within(reason)
    }
}

/// The expression at hand has no device form.
fn refusal(why: impl Into<String>) -> Refusal {
    Refusal::Why(why.into())
}

/// The result of lowering one expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    pub node: NodeId,
    pub data_type: DataType,
    /// For strings and nested values: the dictionary of the codes.
    pub dictionary: Option<DictionaryId>,
}

/// The columns that expressions refer to by index.
#[derive(Debug, Clone)]
pub struct Scope {
    values: Vec<Result<Value, Reason>>,
    schema: Schema,
}

impl Scope {
    /// A scope of the given values, with their names.
    pub fn new(values: Vec<(String, Result<Value, Reason>, DataType)>) -> Self {
        let fields: Vec<Field> = values.iter().map(|(name, _, ty)| Field::new(name, ty.clone(), true)).collect();
        Self { values: values.into_iter().map(|(_, value, _)| value).collect(), schema: Schema::new(fields) }
    }

    /// Column `index`, or why it is not on the device.
    pub fn column(&self, index: usize) -> Result<Value, Reason> {
        match self.values.get(index) {
            Some(value) => value.clone(),
            None => Err(Reason::ExprUnsupported {
                expr: format!("column {index}"),
                why: format!("the input has {} columns", self.values.len()),
            }),
        }
    }

    /// The columns at `indices`, in that order.
    pub fn select(&self, indices: &[usize]) -> Scope {
        let fields: Vec<Field> = indices.iter().map(|i| self.schema.field(*i).clone()).collect();
        Self { values: indices.iter().map(|i| self.values[*i].clone()).collect(), schema: Schema::new(fields) }
    }

    /// Every column with its name.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Result<Value, Reason>)> {
        self.schema.fields().iter().map(|f| f.name().as_str()).zip(&self.values)
    }

    /// True if the expression reads a column of lists.
    fn reads_lists(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let is_list = |value: &Result<Value, Reason>| {
            value.as_ref().is_ok_and(|value| value.dictionary.is_some_and(DictionaryId::is_of_lists))
        };
        let reads = |expr: &Arc<dyn PhysicalExpr>| {
            collect_columns(expr).iter().any(|column| self.values.get(column.index()).is_some_and(is_list))
        };
        self.values.iter().any(is_list) && reads(expr)
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Lowers expressions of one pipeline into one graph.
pub struct Lowering<'d> {
    pub graph: Graph,
    /// Parameter slots: their types and their values.
    pub parameters: Vec<(Ty, Parameter)>,
    /// Lookup tables, in the order of their numbers in the graph.
    pub lookups: Vec<LookupTable>,
    /// Join tables, likewise; segment `.0` built the table.
    pub tables: Vec<(usize, TableSpec)>,
    pub dictionaries: &'d mut Dictionaries,
    columns: Vec<ColumnInfo>,
    /// Number of expressions around the one being lowered.
    depth: usize,
}

/// Maximum depth of nested expressions: each level takes space on the stack, here and in code generation.
const MOST_NESTED: usize = 128;
/// Reason for expressions over lists, which have no device form.
pub(crate) const LISTS_ARE_CARRIED: &str =
    "lists and structures that are made of rows leave the device before anything reads them";
/// Maximum operands of AND or OR that are lowered as nested expressions; a longer chain is lowered as a list.
const LONG_CHAIN: usize = 32;

impl<'d> Lowering<'d> {
    /// Lowers over input columns `columns`.
    pub fn new(columns: &[ColumnInfo], dictionaries: &'d mut Dictionaries) -> Self {
        let (parameters, lookups, tables) = (vec![], vec![], vec![]);
        Self { graph: Graph::new(), parameters, lookups, tables, dictionaries, columns: columns.to_vec(), depth: 0 }
    }

    /// The input columns as a scope.
    pub fn scope(&mut self) -> Scope {
        let columns = self.columns.clone();
        let values = columns.into_iter().enumerate().map(|(index, column)| {
            let value = column.ty().map(|ty| Value {
                node: self.graph.column(index as u32, ty),
                data_type: column.data_type.clone(),
                dictionary: column.form.dictionary(),
            });
            (column.name, value, column.data_type)
        });
        Scope::new(values.collect())
    }

    /// A value described as a column of the next node.
    pub fn info(&self, name: &str, value: &Value) -> ColumnInfo {
        let ty = self.graph.ty(value.node);
        let form = match value.dictionary {
            Some(id) if id.is_of_lists() => Form::Lists(ty, id),
            Some(id) => Form::Codes(ty, id),
            None => Form::Plain(ty),
        };
        ColumnInfo::new(name.to_string(), value.data_type.clone(), form)
    }

    /// Lowers a filter's predicate, which must be a boolean.
    pub fn predicate(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<NodeId, Reason> {
        let value = self.lower(expr, scope)?;
        match self.graph.ty(value.node).repr {
            Repr::Bool => Ok(value.node),
            _ => Err(unsupported(expr, "a filter needs a boolean")),
        }
    }

    /// Lowers an expression whose value is carried unchanged: it may be a column of lists, which no expression computes
    /// with.
    pub fn carried(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<Value, Reason> {
        match expr.downcast_ref::<Column>() {
            Some(column) => scope.column(column.index()),
            None => self.lower(expr, scope),
        }
    }

    /// Lowers one expression.
    ///
    /// # Errors
    /// The reason, of this expression or of one within it.
    pub fn lower(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<Value, Reason> {
        if self.depth == MOST_NESTED {
            return Err(unsupported(
                expr,
                &format!("it lies within {MOST_NESTED} other expressions, and no more have a device form"),
            ));
        }
        self.depth += 1;
        let value = self.lower_here(expr, scope);
        self.depth -= 1;
        value.map_err(|refusal| refusal.of(expr))
    }

    fn lower_here(&mut self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Lowered<Value> {
        if let Some(column) = expr.downcast_ref::<Column>() {
            let value = scope.column(column.index())?;
            return match value.dictionary {
                Some(id) if id.is_of_lists() => Err(refusal(LISTS_ARE_CARRIED)),
                _ => Ok(value),
            };
        }
        if scope.reads_lists(expr) {
            return Err(refusal(LISTS_ARE_CARRIED));
        }
        if let Some(literal) = expr.downcast_ref::<LiteralExpr>() {
            return self.literal(literal.value());
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            // Another string type has the same codes.
            let of = self.lower(cast.expr(), scope);
            if let Ok(of) = &of
                && cast::same_strings(&of.data_type, cast.cast_type())
            {
                return Ok(Value { data_type: cast.cast_type().clone(), ..of.clone() });
            }
        }
        if expr.is::<DynamicFilterPhysicalExpr>() {
            // It drops rows early that a join or a limit above drops anyway. No update of it reaches the device.
            return self.literal(&ScalarValue::Boolean(Some(true)));
        }
        if let Some(value) = self.over_dictionary(expr, scope)? {
            return Ok(value);
        }
        if let Some(sketch) = expr.downcast_ref::<SketchExpr>() {
            return self.sketch(sketch, scope);
        }
        let data_type = self.type_of(expr, scope)?;
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            return self.binary(binary, data_type, scope);
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            let of = self.lower(cast.expr(), scope)?;
            let overflow = if cast.cast_options().safe { Overflow::Null } else { Overflow::Fail };
            return self.cast(of, cast.cast_type(), overflow);
        }
        if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
            let of = self.lower(cast.expr(), scope)?;
            return self.cast(of, cast.cast_type(), Overflow::Null);
        }
        if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            return self.case(case, data_type, scope);
        }
        if let Some(list) = expr.downcast_ref::<InListExpr>() {
            return self.in_list(list, scope);
        }
        if let Some(like) = expr.downcast_ref::<LikeExpr>() {
            return self.like(like, scope);
        }
        if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
            return self.function(expr, function, &data_type, scope);
        }
        if expr.downcast_ref::<ScalarSubqueryExpr>().is_some() {
            return self.subquery(expr, data_type);
        }
        let node = if let Some(of) = expr.downcast_ref::<IsNullExpr>() {
            let of = self.lower(of.arg(), scope)?;
            self.graph.test(Test::IsNull, of.node)
        } else if let Some(of) = expr.downcast_ref::<IsNotNullExpr>() {
            let of = self.lower(of.arg(), scope)?;
            self.graph.test(Test::IsNotNull, of.node)
        } else if let Some(of) = expr.downcast_ref::<NotExpr>() {
            let of = self.lower(of.arg(), scope)?;
            self.graph.not(of.node)
        } else if let Some(of) = expr.downcast_ref::<NegativeExpr>() {
            // DataFusion leaves a constant unfolded only if it refuses the negation.
            if of.arg().is::<LiteralExpr>() {
                return Err(refusal("a constant has no device form where DataFusion does not fold it"));
            }
            let of = self.lower(of.arg(), scope)?;
            if is_wide(&of.data_type) {
                return Err(refusal(arithmetic::WIDE));
            }
            if let DataType::Interval(unit) = value_type(&of.data_type) {
                let node = self.negated_interval(&of, *unit)?;
                return Ok(Value { node, data_type, dictionary: None });
            }
            // Arrow wraps integers here, and checks decimals.
            let overflow = if value_type(&of.data_type).is_decimal() { Overflow::Fail } else { Overflow::Wrap };
            self.graph.negate(of.node, overflow)
        } else {
            return Err(refusal("this kind of expression is not lowered"));
        };
        Ok(Value { node: node?, data_type, dictionary: None })
    }

    /// The expression's SQL type.
    fn type_of(&self, expr: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<DataType, Reason> {
        expr.data_type(&scope.schema).map_err(|e| unsupported(expr, &e.strip_backtrace()))
    }

    /// A literal: a parameter slot, or for strings and nested values a dictionary with this single value.
    fn literal(&mut self, value: &ScalarValue) -> Lowered<Value> {
        let data_type = value.data_type();
        if is_coded(&data_type) {
            let id = self.dictionaries.constants(data_type.clone(), vec![value.clone()]);
            let node = match value.is_null() {
                true => self.graph.null(Repr::U32),
                false => self.graph.integer(0, Repr::U32),
            };
            return Ok(Value { node, data_type, dictionary: Some(id) });
        }
        if data_type == DataType::Null {
            return Ok(Value { node: self.graph.null(Repr::Bool), data_type, dictionary: None });
        }
        let repr = plain_repr(&data_type).ok_or_else(|| Refusal::Type(data_type.clone()))?;
        if value.is_null() {
            return Ok(Value { node: self.graph.null(repr), data_type, dictionary: None });
        }
        let value = match value {
            ScalarValue::Dictionary(_, value) | ScalarValue::RunEndEncoded(_, _, value) => value,
            value => value,
        };
        let (ty, literal) = match value {
            ScalarValue::Boolean(Some(v)) => (Ty::new(repr), Literal::Bool(*v)),
            ScalarValue::Float16(Some(v)) => (Ty::new(repr), Literal::F32(widened(*v))),
            ScalarValue::Float32(Some(v)) => (Ty::new(repr), Literal::F32(*v)),
            ScalarValue::Float64(Some(v)) => (Ty::new(repr), Literal::F64(*v)),
            other => {
                let integer = scalar_integer(other).ok_or_else(|| Refusal::Type(data_type.clone()))?;
                (digits(repr, integer), Literal::Int(integer))
            }
        };
        Ok(Value { node: self.slot(ty, literal), data_type, dictionary: None })
    }

    /// The parameter slot that holds `literal`; equal ones share it, so that equal expressions are equal nodes.
    pub fn slot(&mut self, ty: Ty, literal: Literal) -> NodeId {
        self.parameter(ty, Parameter::Value(literal))
    }

    fn parameter(&mut self, ty: Ty, parameter: Parameter) -> NodeId {
        let same = |(known_ty, known): &(Ty, Parameter)| *known_ty == ty && known.is(&parameter);
        let slot = match self.parameters.iter().position(same) {
            Some(slot) => slot,
            None => {
                self.parameters.push((ty, parameter));
                self.parameters.len() - 1
            }
        };
        self.graph.literal(slot as u32, ty)
    }

    /// The value of an uncorrelated subquery. The node that runs subqueries has evaluated it before any launch above.
    fn subquery(&mut self, expr: &Arc<dyn PhysicalExpr>, data_type: DataType) -> Lowered<Value> {
        if is_coded(&data_type) {
            return self.coded_subquery(expr, data_type);
        }
        let repr = plain_repr(&data_type).ok_or_else(|| Refusal::Type(data_type.clone()))?;
        let node = self.parameter(Ty::new(repr).nullable(true), Parameter::Subquery(Arc::clone(expr)));
        Ok(Value { node, data_type, dictionary: None })
    }

    /// Like [`subquery`](Self::subquery), for a string or a nested value: a dictionary with this single value, and a
    /// parameter that is its code or NULL. At plan time the value is not known, and a placeholder is used; a plan that
    /// is kept for other runs has no such subquery.
    fn coded_subquery(&mut self, expr: &Arc<dyn PhysicalExpr>, data_type: DataType) -> Lowered<Value> {
        let value = match expr.evaluate(&RecordBatch::new_empty(Arc::new(Schema::empty()))) {
            Ok(ColumnarValue::Scalar(value)) if !value.is_null() => Some(value),
            _ => None,
        };
        let (value, literal) = match value {
            Some(value) => (value, Literal::Int(0)),
            None => {
                let nothing = match is_nested(&data_type) {
                    true => ScalarValue::try_from(&data_type),
                    false => ScalarValue::from("").cast_to(&data_type),
                };
                (nothing.map_err(|e| refusal(e.strip_backtrace()))?, Literal::Null)
            }
        };
        let id = self.dictionaries.constants(data_type.clone(), vec![value]);
        let node = self.slot(Ty::new(Repr::U32).within(0, 0).nullable(true), literal);
        Ok(Value { node, data_type, dictionary: Some(id) })
    }

    fn case(&mut self, case: &CaseExpr, data_type: DataType, scope: &Scope) -> Lowered<Value> {
        let base = case.expr().map(|base| self.lower(base, scope)).transpose()?;
        let mut conditions = Vec::new();
        for (when, _) in case.when_then_expr() {
            let condition = self.lower(when, scope)?;
            conditions.push(match &base {
                Some(base) => {
                    let (base, condition) = self.same_meaning(base.clone(), condition)?;
                    let equal = self.graph.compare(Comparison::Identical, base.node, condition.node);
                    equal?
                }
                None => condition.node,
            });
        }
        let results: Vec<&Arc<dyn PhysicalExpr>> =
            case.when_then_expr().iter().map(|(_, then)| then).chain(case.else_expr()).collect();
        let (nodes, dictionary) = self.results(&results, &data_type, scope)?;
        let (thens, otherwise) = nodes.split_at(conditions.len());
        let branches = conditions.into_iter().zip(thens.iter().copied()).collect();
        let node = self.graph.case(branches, otherwise.first().copied())?;
        Ok(Value { node, data_type, dictionary })
    }

    /// Lowers several expressions to one type, and strings and nested values to one dictionary.
    pub(crate) fn results(
        &mut self,
        parts: &[&Arc<dyn PhysicalExpr>],
        data_type: &DataType,
        scope: &Scope,
    ) -> Lowered<(Vec<NodeId>, Option<DictionaryId>)> {
        if is_coded(data_type) {
            let mut strings = Vec::with_capacity(parts.len());
            for part in parts {
                strings.push(match part.downcast_ref::<LiteralExpr>() {
                    Some(literal) => StringPart::Constant(literal.value().clone()),
                    None => StringPart::Value(self.lower(part, scope)?),
                });
            }
            if let Some(nodes) = self.texts(&strings, data_type)? {
                return Ok((nodes, None));
            }
            let (nodes, id) = self.merged(&strings, data_type)?;
            return Ok((nodes, Some(id)));
        }
        let repr = plain_repr(data_type).ok_or_else(|| Refusal::Type(data_type.clone()))?;
        let mut nodes = Vec::new();
        for part in parts {
            let null = part.downcast_ref::<LiteralExpr>().is_some_and(|l| l.value().is_null());
            nodes.push(if null {
                self.graph.null(repr)
            } else {
                let value = self.lower(part, scope)?;
                if value.data_type == DataType::Null {
                    nodes.push(self.graph.null(repr));
                    continue;
                }
                if !cast::same_representation(&value.data_type, data_type) {
                    return Err(refusal(format!("it mixes {} and {data_type}", value.data_type)));
                }
                value.node
            });
        }
        Ok((nodes, None))
    }

    fn in_list(&mut self, list: &InListExpr, scope: &Scope) -> Lowered<Value> {
        let of = self.lower(list.expr(), scope)?;
        if self.is_text(&of) {
            return self.text_in_list(&of, list, scope);
        }
        if is_coded(&of.data_type) {
            // Strings of one column would be a lookup; these are merged into one dictionary, or are texts.
            let all: Vec<&Arc<dyn PhysicalExpr>> = [list.expr()].into_iter().chain(list.list()).collect();
            let (mut nodes, _) = self.results(&all, &of.data_type, scope)?;
            let items = nodes.split_off(1);
            let node = self.graph.in_list(nodes[0], items, list.negated())?;
            return Ok(Value { node, data_type: DataType::Boolean, dictionary: None });
        }
        let repr = self.graph.ty(of.node).repr;
        let mut items = Vec::new();
        for item in list.list() {
            let null = item.downcast_ref::<LiteralExpr>().is_some_and(|l| l.value().is_null());
            items.push(if null {
                self.graph.null(repr)
            } else {
                let item = self.lower(item, scope)?;
                self.same_meaning(of.clone(), item)?.1.node
            });
        }
        let node = self.graph.in_list(of.node, items, list.negated())?;
        Ok(Value { node, data_type: DataType::Boolean, dictionary: None })
    }

    /// Two comparable values: of one type, and strings as codes into one dictionary.
    fn same_meaning(&mut self, a: Value, b: Value) -> Lowered<(Value, Value)> {
        if self.is_text(&a) || self.is_text(&b) {
            return self.both_texts(a, b);
        }
        match (a.dictionary, b.dictionary) {
            (Some(_), Some(_)) => self.same_dictionary(a, b),
            (None, None) if cast::same_representation(&a.data_type, &b.data_type) => Ok((a, b)),
            _ => Err(refusal(format!("it compares {} with {}", a.data_type, b.data_type))),
        }
    }

    /// A value to order by in a kept state: numbers unchanged, strings and nested values by their rank in the
    /// dictionary.
    pub fn sort_key(&mut self, key: &PhysicalSortExpr, scope: &Scope) -> Result<Value, Reason> {
        let expr = &key.expr;
        let value = self.lower(expr, scope)?;
        dictionary::sorted_so(key, &value.data_type)?;
        match value.dictionary {
            None => Ok(value),
            Some(id) => self.kept_rank(&value, id).map_err(|refusal| refusal.of(expr)),
        }
    }

    fn binary(&mut self, binary: &BinaryExpr, data_type: DataType, scope: &Scope) -> Lowered<Value> {
        let op = binary.op();
        if let Some(operands) = long_chain(binary) {
            let nodes = operands.into_iter().map(|operand| Ok(self.lower(operand, scope)?.node));
            let nodes = nodes.collect::<Lowered<Vec<NodeId>>>()?;
            let node = self.chained(*op == Operator::And, nodes)?;
            return Ok(Value { node, data_type, dictionary: None });
        }
        if let Some(value) = self.plus_interval(binary, &data_type, scope)? {
            return Ok(value);
        }
        if let Some(value) = self.regex_operator(binary, scope)? {
            return Ok(value);
        }
        let left = self.lower(binary.left(), scope)?;
        let right = self.lower(binary.right(), scope)?;
        let comparison = match op {
            Operator::Eq => Some(Comparison::Equal),
            Operator::NotEq => Some(Comparison::NotEqual),
            Operator::Lt => Some(Comparison::Less),
            Operator::LtEq => Some(Comparison::LessEqual),
            Operator::Gt => Some(Comparison::Greater),
            Operator::GtEq => Some(Comparison::GreaterEqual),
            Operator::IsDistinctFrom => Some(Comparison::Distinct),
            Operator::IsNotDistinctFrom => Some(Comparison::NotDistinct),
            _ => None,
        };
        let node = if let Some(comparison) = comparison {
            let (left, right) = self.same_meaning(left, right)?;
            let (mut a, mut b) = (left.node, right.node);
            let ordered = !matches!(op, Operator::Eq | Operator::NotEq)
                && !matches!(comparison, Comparison::Distinct | Comparison::NotDistinct);
            if let (Some(id), true) = (left.dictionary, ordered) {
                a = self.rank(&left, id)?.node;
                b = self.rank(&right, id)?.node;
            }
            if has_two_zeros(&left.data_type) {
                a = self.graph.float_key(a)?;
                b = self.graph.float_key(b)?;
            }
            self.graph.compare(comparison, a, b)
        } else {
            match op {
                Operator::StringConcat => return self.strung(&left, &right, data_type),
                Operator::And | Operator::Or => self.logic(*op == Operator::And, left.node, right.node),
                _ => return self.arithmetic(*op, Some(binary), left, right, data_type),
            }
        };
        Ok(Value { node: node?, data_type, dictionary: None })
    }

    /// AND or OR. An error of the right operand is raised even if the left operand decides: DataFusion evaluates the
    /// right operand over all rows of a batch unless few rows need it, so the CPU has to decide.
    fn logic(&mut self, and: bool, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        if and { self.graph.and(left, right) } else { self.graph.or(left, right) }
    }

    /// Like [`logic`](Self::logic), for many operands: combines neighbors first, which keeps the nesting shallow.
    fn chained(&mut self, and: bool, mut nodes: Vec<NodeId>) -> Result<NodeId, GraphError> {
        while nodes.len() > 1 {
            let pairs = nodes.chunks(2).map(|pair| match pair {
                [left, right] => self.logic(and, *left, *right),
                rest => Ok(rest[0]),
            });
            nodes = pairs.collect::<Result<_, _>>()?;
        }
        Ok(nodes[0])
    }
}

/// The operands of AND or OR, if they form a long chain.
fn long_chain(binary: &BinaryExpr) -> Option<Vec<&Arc<dyn PhysicalExpr>>> {
    let op = binary.op();
    if !matches!(op, Operator::And | Operator::Or) {
        return None;
    }
    let mut operands = vec![binary.right()];
    let mut left = binary.left();
    while let Some(more) = left.downcast_ref::<BinaryExpr>().filter(|more| more.op() == op) {
        operands.push(more.right());
        left = more.left();
    }
    operands.push(left);
    operands.reverse();
    (operands.len() > LONG_CHAIN).then_some(operands)
}

/// The type of a literal: wide enough for its number of digits, so that another constant of that size needs no new
/// compilation.
fn digits(repr: Repr, value: i128) -> Ty {
    let mut limit: i128 = 10;
    while limit <= value.unsigned_abs().min(i128::MAX as u128) as i128 {
        match limit.checked_mul(10) {
            Some(next) => limit = next,
            None => return Ty::new(repr),
        }
    }
    let (low, high) = if value < 0 { (-(limit - 1), -1) } else { (0, limit - 1) };
    Ty::new(repr).within(low, high)
}

/// The reason for an expression without a device form.
pub(crate) fn unsupported(expr: &Arc<dyn PhysicalExpr>, why: &str) -> Reason {
    Reason::ExprUnsupported { expr: expr.to_string(), why: why.to_string() }
}

/// The reason for an expression that the graph refuses.
pub(crate) fn refused(expr: &Arc<dyn PhysicalExpr>, error: &GraphError) -> Reason {
    unsupported(expr, &error.to_string())
}
