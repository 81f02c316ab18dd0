//! One call of an aggregate function as data: constants are taken out of its arguments; refused calls have a reason.
//!
//! ```text
//!   percentile_cont(x, 0.9)               arguments x        percentile 0.9
//!   approx_percentile_cont(x, 0.9, 200)   arguments x        percentile 0.9    digest: values kept apart
//!   string_agg(x, '-' ORDER BY y)         arguments x        ordered Text("-") order y
//!   approx_distinct(x)                    arguments: the register of x         sketch Estimate
//! ```

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use crate::error::reason::Reason;
use crate::expr::builtin::is_own_aggregate;
use crate::expr::sketch::{SketchExpr, SketchPart};
use crate::operator::aggregate::digest::{USUAL_SIZE, most_apart};

/// One result of an aggregation.
#[derive(Debug, Clone)]
pub struct Call {
    pub function: Arc<AggregateFunctionExpr>,
    pub arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// FILTER (WHERE …).
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Variants whose rows are aggregated; all when `None`.
    pub among: Option<Vec<u32>>,
    /// The argument is the result, in the only row of its group that has it.
    pub taken: bool,
    /// For `percentile_cont` and digests: the fraction of the values below, from 0 to 1.
    pub percentile: Option<f64>,
    /// For a digest: the number of values of a group that it keeps apart.
    pub digest: Option<u64>,
    /// For `approx_distinct`, if it is estimated.
    pub sketch: Option<Sketch>,
    /// For an aggregate over rows in an order: its kind, and the order; if that is empty, the order of input.
    pub ordered: Option<Ordered>,
    pub order: Vec<PhysicalSortExpr>,
}

/// Kind of an ordered aggregate.
#[derive(Debug, Clone, PartialEq)]
pub enum Ordered {
    /// The value in this row, counted from 1, or from the end if negative.
    Nth(i64),
    /// The list of all values.
    List,
    /// The texts concatenated, with this separator.
    Text(String),
}

/// Step of `approx_distinct` in an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sketch {
    /// The longest run of each register.
    Longest,
    /// The estimate, from the longest runs.
    Estimate,
}

impl Call {
    /// The call of `function` over rows of `input`.
    ///
    /// # Errors
    /// A reason, if the function or one of its constants has no device form.
    pub fn of(
        function: &Arc<AggregateFunctionExpr>,
        filter: Option<Arc<dyn PhysicalExpr>>,
        input: &Schema,
    ) -> Result<Call, Reason> {
        if !is_own_aggregate(function.fun()) {
            return Err(unsupported(function, "it is a function of the session's own, not DataFusion's"));
        }
        let mut arguments = function.expressions();
        let digest = digest(function, &mut arguments)?;
        let percentile = percentile(function, &mut arguments)?;
        let sketch = sketch(function, &mut arguments, input)?;
        let (ordered, order) = ordered(function, &mut arguments)?.unzip();
        Ok(Call {
            function: Arc::clone(function),
            arguments,
            filter,
            among: None,
            taken: false,
            percentile,
            digest,
            sketch,
            ordered,
            order: order.unwrap_or_default(),
        })
    }

    /// The argument of a function that has one on the device.
    pub(crate) fn only_argument(&self) -> Result<&Arc<dyn PhysicalExpr>, Reason> {
        match self.arguments.as_slice() {
            [argument] => Ok(argument),
            _ => Err(unsupported(&self.function, "it takes one argument on the device")),
        }
    }
}

pub(crate) fn unsupported(function: &AggregateFunctionExpr, why: impl Into<String>) -> Reason {
    Reason::AggregateUnsupported { aggregate: function.name().to_string(), why: why.into() }
}

/// Whether the result of function `name` depends neither on the order of the values nor on repetition.
fn is_insensitive(name: &str) -> bool {
    matches!(name, "min" | "max" | "bool_and" | "bool_or" | "bit_and" | "bit_or")
}

/// Whether a call aggregates the distinct values of its arguments.
pub(crate) fn is_over_distinct(call: &Call) -> bool {
    let name = call.function.fun().name();
    // The first row does not depend on equal rows behind it.
    let first = matches!(name, "first_value" | "last_value") && call.function.order_bys().is_empty();
    if call.digest.is_some() {
        // DataFusion's digest adds every value.
        return false;
    }
    name == "approx_distinct" || call.function.is_distinct() && !first && !is_insensitive(name)
}

/// Whether function `name` reads positions in the order of its argument.
pub(crate) fn is_ranked(name: &str) -> bool {
    matches!(name, "median" | "percentile_cont" | "approx_median" | "approx_percentile_cont")
}

/// Whether function `name` is an ordered aggregate.
pub(crate) fn is_ordered(name: &str) -> bool {
    matches!(name, "nth_value" | "array_agg" | "string_agg")
}

/// The kind of an ordered `function` and its order; an argument that is not evaluated per row is removed from
/// `arguments`.
pub(crate) fn ordered(
    function: &AggregateFunctionExpr,
    arguments: &mut Vec<Arc<dyn PhysicalExpr>>,
) -> Result<Option<(Ordered, Vec<PhysicalSortExpr>)>, Reason> {
    let name = function.fun().name();
    if !is_ordered(name) {
        return Ok(None);
    }
    let number = if name == "array_agg" { 1 } else { 2 };
    if arguments.len() != number {
        return Err(unsupported(function, "it has arguments that no device form knows"));
    }
    let constant = if number == 2 { arguments.pop() } else { None };
    let constant = constant.as_ref().and_then(|e| e.downcast_ref::<Literal>()).map(Literal::value);
    let kind = match (name, constant) {
        ("array_agg", _) => Ordered::List,
        ("nth_value", _) if function.is_distinct() => {
            return Err(unsupported(function, "DataFusion does not ask it for distinct values"));
        }
        ("nth_value", Some(ScalarValue::Int64(Some(n)))) if !matches!(n, 0 | &i64::MIN) => Ordered::Nth(*n),
        ("string_agg", Some(between)) if between.is_null() => Ordered::Text(String::new()),
        ("string_agg", Some(between)) => match between.try_as_str() {
            Some(Some(between)) => Ordered::Text(between.to_string()),
            _ => return Err(unsupported(function, "what comes between the texts is none")),
        },
        // DataFusion reports this error itself.
        _ => return Err(unsupported(function, "its second argument is no constant that it takes")),
    };
    let mut order = function.order_bys().to_vec();
    if function.is_reversed() {
        if order.is_empty() {
            return Err(unsupported(function, "the order in which rows come has no reverse"));
        }
        order.iter_mut().for_each(|key| key.options = !key.options);
    }
    let by_argument = |key: &PhysicalSortExpr| arguments.first().is_some_and(|argument| argument.eq(&key.expr));
    if function.is_distinct() && !(order.is_empty() || order.len() == 1 && by_argument(&order[0])) {
        return Err(unsupported(function, "distinct values have no order but their own"));
    }
    Ok(Some((kind, order)))
}

/// The percentile of `function`, which is removed from `arguments`.
pub fn percentile(
    function: &AggregateFunctionExpr,
    arguments: &mut Vec<Arc<dyn PhysicalExpr>>,
) -> Result<Option<f64>, Reason> {
    match function.fun().name() {
        "approx_median" => return Ok(Some(0.5)),
        "percentile_cont" | "approx_percentile_cont" if arguments.len() == 2 => {}
        _ => return Ok(None),
    }
    let literal = arguments.pop();
    let value = literal.as_ref().and_then(|e| e.downcast_ref::<Literal>()).map(Literal::value);
    let percentile = match value {
        Some(ScalarValue::Float64(Some(p))) => *p,
        Some(ScalarValue::Float32(Some(p))) => f64::from(*p),
        _ => return Err(unsupported(function, "its percentile is not a number")),
    };
    if !(0.0..=1.0).contains(&percentile) {
        // DataFusion reports this error itself.
        return Err(unsupported(function, format!("its percentile, {percentile}, is not between 0 and 1")));
    }
    let descending = function.order_bys().first().is_some_and(|key| key.options.descending);
    Ok(Some(if descending { 1.0 - percentile } else { percentile }))
}

/// Number of values of a group that DataFusion's digest keeps apart. Removes the number of centroids from `arguments`.
fn digest(function: &AggregateFunctionExpr, arguments: &mut Vec<Arc<dyn PhysicalExpr>>) -> Result<Option<u64>, Reason> {
    let size = match (function.fun().name(), arguments.len()) {
        // DataFusion reports this error itself.
        ("approx_median", _) if function.is_distinct() => {
            return Err(unsupported(function, "it is not there with DISTINCT"));
        }
        ("approx_median", _) | ("approx_percentile_cont", 2) => Some(USUAL_SIZE),
        ("approx_percentile_cont", 3) => {
            let literal = arguments.pop();
            let value = literal.as_ref().and_then(|e| e.downcast_ref::<Literal>()).map(Literal::value);
            let value = value.and_then(|value| value.cast_to(&DataType::Int64).ok());
            match value {
                Some(ScalarValue::Int64(Some(size))) if size > 0 => Some(size.unsigned_abs()),
                _ => return Err(unsupported(function, "its number of centroids is not a positive number")),
            }
        }
        _ => None,
    };
    Ok(size.map(most_apart))
}

/// Method for `approx_distinct`; its argument may become the register of a sketch.
fn sketch(
    function: &AggregateFunctionExpr,
    arguments: &mut [Arc<dyn PhysicalExpr>],
    input: &Schema,
) -> Result<Option<Sketch>, Reason> {
    let ("approx_distinct", [argument]) = (function.fun().name(), arguments) else { return Ok(None) };
    let data_type = argument.data_type(input);
    let data_type = data_type.map_err(|e| unsupported(function, e.strip_backtrace()))?;
    Ok(match method(function, &data_type)? {
        Method::Exact => None,
        Method::Sketch => {
            *argument = Arc::new(SketchExpr { part: SketchPart::Register, of: Arc::clone(argument) });
            Some(Sketch::Estimate)
        }
    })
}

/// DataFusion's method for `approx_distinct` of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Exact,
    Sketch,
}

/// The method of `function` for values of `data_type`.
fn method(function: &AggregateFunctionExpr, data_type: &DataType) -> Result<Method, Reason> {
    use DataType::*;
    match data_type {
        Boolean | Int8 | Int16 | UInt8 | UInt16 => Ok(Method::Exact),
        Int32 | Int64 | UInt32 | UInt64 | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_)
        | Decimal32(..) | Decimal64(..) | Decimal128(..) => Ok(Method::Sketch),
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView => Ok(Method::Sketch),
        // DataFusion has none for floats and dictionaries, and reports that itself.
        _ => Err(unsupported(function, format!("it is not lowered for {data_type}"))),
    }
}
