//! Window functions as data: placement makes them from DataFusion's nodes, and programs lower them.
//!
//!   BoundedWindowAggExec: [sum(x), lag(y, 2)]   ──►   Function { calls, PARTITION BY, ORDER BY, frame }
//!
//! Probed   DataFusion exposes neither whether a function skips NULLs nor whether it is reversed. Its evaluator,
//!          applied to a few rows, shows both.
//! Refused  functions without a device form, with a reason.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{ArrayRef, Int64Array, new_null_array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::functions_window::all_default_window_functions;
use datafusion::logical_expr::{PartitionEvaluator, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowUDF};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::windows::{WindowExpr, WindowUDFExpr};
use millpond_kernels::window::{MAX_ROWS, Ranking, Units};

use crate::error::reason::Reason;
use crate::expr::builtin::is_own_aggregate;
use crate::operator::aggregate::call::{Ordered, ordered, percentile};

/// Maximum distance of NTH_VALUE's row from the end of its frame; beyond it the function stays on the CPU.
const MOST_NTH: i64 = 1 << 16;

/// One window function.
#[derive(Debug, Clone)]
pub struct Function {
    /// Name of its column, as DataFusion's plans print it.
    pub name: String,
    pub data_type: DataType,
    pub call: Call,
    pub partition: Vec<Arc<dyn PhysicalExpr>>,
    /// Without keys of the partition, and without repeated keys.
    pub order: Vec<PhysicalSortExpr>,
    pub frame: FrameOf,
}

/// Kind of a window function.
#[derive(Debug, Clone)]
pub enum Call {
    Rank(Ranking),
    Take {
        argument: Arc<dyn PhysicalExpr>,
        from: From,
        skips_nulls: bool,
        otherwise: ScalarValue,
    },
    Aggregate {
        function: Arc<AggregateFunctionExpr>,
        arguments: Vec<Arc<dyn PhysicalExpr>>,
        constant: Option<Constant>,
    },
}

/// Constant argument of an aggregate.
#[derive(Debug, Clone)]
pub enum Constant {
    /// `percentile_cont`: the fraction of the values below, from 0 to 1.
    Percentile(f64),
    /// `string_agg`: the separator.
    Between(String),
}

/// Row whose value is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// Number of rows ahead in the partition.
    Row(i64),
    /// Number in the frame: from the first row, which is 1, or from the last, which is -1.
    Frame(i64),
}

/// A frame as in SQL.
#[derive(Debug, Clone)]
pub struct FrameOf {
    pub units: Units,
    pub start: Edge,
    pub end: Edge,
}

/// One end of a frame.
#[derive(Debug, Clone)]
pub enum Edge {
    Unbounded,
    Preceding(ScalarValue),
    Current,
    Following(ScalarValue),
}

impl Function {
    /// Describes `expr`.
    ///
    /// # Errors
    /// Why it has no device form.
    pub fn of(expr: &Arc<dyn WindowExpr>) -> Result<Function, Reason> {
        let field = expr.field().map_err(|e| refused(expr.name(), e.strip_backtrace()))?;
        let call = call(expr)?;
        let mut order: Vec<PhysicalSortExpr> = Vec::new();
        for key in expr.order_by() {
            let known =
                expr.partition_by().iter().any(|of| of == &key.expr) || order.iter().any(|of| of.expr.eq(&key.expr));
            if !known {
                order.push(key.clone());
            }
        }
        Ok(Function {
            name: expr.name().to_string(),
            data_type: field.data_type().clone(),
            call,
            partition: expr.partition_by().to_vec(),
            order,
            frame: FrameOf::of(expr.get_window_frame(), expr.order_by().len()),
        })
    }

    /// Its arguments.
    pub fn arguments(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        match &self.call {
            Call::Rank(_) => vec![],
            Call::Take { argument, .. } => vec![Arc::clone(argument)],
            Call::Aggregate { arguments, .. } => arguments.clone(),
        }
    }

    /// All expressions over the input.
    pub fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let order = self.order.iter().map(|key| Arc::clone(&key.expr));
        self.arguments().into_iter().chain(self.partition.iter().cloned()).chain(order).collect()
    }

    /// Numbers of keys of `sort` that define its partitions, and its peers; `None` if its rows need another order.
    pub fn keys_in(&self, sort: &[PhysicalSortExpr]) -> Option<(usize, usize)> {
        let mut partition: Vec<&Arc<dyn PhysicalExpr>> = Vec::new();
        for key in &self.partition {
            if !partition.contains(&key) {
                partition.push(key);
            }
        }
        let parts = partition.len();
        let leading = sort.get(..parts)?;
        let peers = sort.get(parts..parts + self.order.len())?;
        let fits = leading.iter().all(|key| partition.contains(&&key.expr)) && peers == self.order;
        fits.then_some((parts, parts + self.order.len()))
    }

    /// An order for its rows: that of `found` if it fits.
    pub fn sort(&self, found: &[PhysicalSortExpr]) -> Vec<PhysicalSortExpr> {
        if let Some((_, peers)) = self.keys_in(found) {
            return found[..peers].to_vec();
        }
        let mut sort: Vec<PhysicalSortExpr> = Vec::new();
        for key in &self.partition {
            if !sort.iter().any(|of| of.expr.eq(key)) {
                let options = datafusion::arrow::compute::SortOptions { descending: false, nulls_first: false };
                sort.push(PhysicalSortExpr { expr: Arc::clone(key), options });
            }
        }
        sort.extend(self.order.iter().cloned());
        sort
    }
}

impl FrameOf {
    fn of(frame: &WindowFrame, order_keys: usize) -> FrameOf {
        let edge = |bound: &WindowFrameBound| match bound {
            WindowFrameBound::CurrentRow => Edge::Current,
            WindowFrameBound::Preceding(by) | WindowFrameBound::Following(by) if by.is_null() => Edge::Unbounded,
            WindowFrameBound::Preceding(by) => Edge::Preceding(by.clone()),
            WindowFrameBound::Following(by) => Edge::Following(by.clone()),
        };
        let units = match frame.units {
            WindowFrameUnits::Rows => Units::Rows,
            WindowFrameUnits::Groups => Units::Groups,
            WindowFrameUnits::Range => Units::Range,
        };
        let (start, end) = (edge(&frame.start_bound), edge(&frame.end_bound));
        // Without an order all rows of a partition are peers.
        match (units, order_keys) {
            (Units::Range, 0) => FrameOf { units, start: Edge::Unbounded, end: Edge::Unbounded },
            _ => FrameOf { units, start, end },
        }
    }
}

pub(super) fn refused(function: &str, why: impl Into<String>) -> Reason {
    Reason::ExprUnsupported { expr: function.to_string(), why: why.into() }
}

fn call(expr: &Arc<dyn WindowExpr>) -> Result<Call, Reason> {
    let any = expr.as_any();
    if let Some(standard) = any.downcast_ref::<StandardWindowExpr>() {
        let function = standard.get_standard_func_expr();
        return match function.as_any().downcast_ref::<WindowUDFExpr>() {
            Some(function) if is_own(function.fun()) => of_rows(expr, function),
            _ => Err(refused(expr.name(), "it is a window function of the session's own, not DataFusion's")),
        };
    }
    let function = if let Some(plain) = any.downcast_ref::<PlainAggregateWindowExpr>() {
        plain.get_aggregate_expr()
    } else if let Some(sliding) = any.downcast_ref::<SlidingAggregateWindowExpr>() {
        sliding.get_aggregate_expr()
    } else {
        return Err(refused(expr.name(), "it is no window function of DataFusion's"));
    };
    if !is_own_aggregate(function.fun()) {
        return Err(refused(expr.name(), "it is a function of the session's own, not DataFusion's"));
    }
    if function.fun().name().starts_with("approx_") {
        return Err(refused(expr.name(), "the device approximates nothing in a window"));
    }
    // DataFusion shows the filter of a window only in its debug text.
    if !format!("{expr:?}").trim_end_matches([' ', '}']).ends_with("filter: None") {
        return Err(refused(expr.name(), "FILTER of a window is not shown to the device"));
    }
    if function.is_distinct() {
        distinct(expr, function)?;
    }
    let mut arguments = function.expressions();
    let mut constant = percentile(function, &mut arguments)?.map(Constant::Percentile);
    if function.fun().name() == "string_agg" {
        if !any.is::<PlainAggregateWindowExpr>() {
            return Err(refused(expr.name(), "DataFusion takes no texts off a frame"));
        }
        constant = match ordered(function, &mut arguments)? {
            Some((Ordered::Text(between), order)) if order.is_empty() => Some(Constant::Between(between)),
            _ => return Err(refused(expr.name(), "the texts of a frame are in the order of the window")),
        };
    }
    Ok(Call::Aggregate { function: Arc::new(function.clone()), arguments, constant })
}

/// Whether a function of distinct values has a device form: DataFusion removes values from the frames of few of them.
fn distinct(expr: &Arc<dyn WindowExpr>, function: &AggregateFunctionExpr) -> Result<(), Reason> {
    let name = function.fun().name();
    let grows = expr.as_any().is::<PlainAggregateWindowExpr>();
    match name {
        // Repeated values change nothing.
        "min" | "max" | "bit_and" | "bit_or" | "bool_and" | "bool_or" => Ok(()),
        "count" => Ok(()),
        "sum" if grows || *function.field().data_type() == DataType::Int64 => Ok(()),
        "avg" | "median" | "var" | "var_pop" if grows => Ok(()),
        "percentile_cont" | "array_agg" => Ok(()),
        "sum" | "avg" | "median" | "var" | "var_pop" => {
            Err(refused(expr.name(), "DataFusion takes no such distinct values off a frame"))
        }
        _ => Err(refused(expr.name(), format!("{name} of distinct values is not lowered in a window"))),
    }
}

/// True only for DataFusion's functions.
fn is_own(function: &WindowUDF) -> bool {
    static KNOWN: LazyLock<HashMap<String, TypeId>> = LazyLock::new(|| {
        all_default_window_functions().iter().map(|known| (known.name().to_string(), body(known))).collect()
    });
    KNOWN.get(function.name()).is_some_and(|known| *known == body(function))
}

fn body(function: &WindowUDF) -> TypeId {
    let body: &dyn Any = function.inner().as_ref();
    body.type_id()
}

/// A function of the order of rows.
fn of_rows(expr: &Arc<dyn WindowExpr>, function: &WindowUDFExpr) -> Result<Call, Reason> {
    let name = function.fun().name();
    let arguments = function.args();
    let other = || refused(expr.name(), format!("{name} is not lowered"));
    let evaluator = || {
        let made =
            expr.as_any().downcast_ref::<StandardWindowExpr>().map(|e| e.get_standard_func_expr().create_evaluator());
        made.ok_or_else(other)?.map_err(|e| refused(expr.name(), e.strip_backtrace()))
    };
    let ranking = match name {
        "row_number" => Ranking::RowNumber,
        "rank" => Ranking::Rank,
        "dense_rank" => Ranking::DenseRank,
        "percent_rank" => Ranking::PercentRank,
        "cume_dist" => Ranking::CumeDist,
        "ntile" => Ranking::Ntile(literal(arguments.first()).and_then(unsigned).filter(|n| *n > 0).ok_or_else(other)?),
        "lag" | "lead" => {
            let argument = expr.expressions().into_iter().next().ok_or_else(other)?;
            let by = match arguments.get(1) {
                None => 1,
                given => literal(given).and_then(signed).ok_or_else(other)?,
            };
            return shift(expr, evaluator()?.as_mut(), argument, by, arguments.get(2));
        }
        "first_value" | "last_value" | "nth_value" => {
            let argument = arguments.first().cloned().ok_or_else(other)?;
            let number = match name {
                "first_value" => 1,
                "last_value" => -1,
                // DataFusion treats NULL as 0.
                _ => match literal(arguments.get(1)) {
                    Some(number) if number.is_null() => 0,
                    number => number.and_then(signed).ok_or_else(other)?,
                },
            };
            return nth(expr, &evaluator, argument, number);
        }
        _ => return Err(other()),
    };
    Ok(Call::Rank(ranking))
}

/// LAG and LEAD. The range that their evaluator requests shows the direction, and whether NULLs count.
fn shift(
    expr: &Arc<dyn WindowExpr>,
    evaluator: &mut dyn PartitionEvaluator,
    argument: Arc<dyn PhysicalExpr>,
    by: i64,
    otherwise: Option<&Arc<dyn PhysicalExpr>>,
) -> Result<Call, Reason> {
    let (row, rows) = (1usize << 40, 1usize << 41);
    // Beyond any partition there is no row, whether NULLs count or not.
    let far = by.unsigned_abs() > MAX_ROWS;
    let by = by.unsigned_abs().min(MAX_ROWS) as i64;
    let seen = evaluator.get_range(row, rows).map_err(|e| refused(expr.name(), e.strip_backtrace()))?;
    let lags = evaluator.is_causal();
    let skips_nulls = by != 0 && !far && if lags { seen.start == 0 } else { seen.end == rows };
    if by == 0 && otherwise.is_some() {
        own_row(expr, evaluator)?;
    }
    if skips_nulls && !lags && by > 1 {
        return Err(refused(
            expr.name(),
            "DataFusion loses count where it skips NULLs ahead by more than one, and the device does not",
        ));
    }
    let null = || ScalarValue::try_from(&DataType::Null);
    let otherwise = match otherwise {
        None => null(),
        Some(value) => match literal(Some(value)) {
            Some(value) if value.is_null() => null(),
            Some(value) => expr.field().and_then(|field| value.cast_to(field.data_type())),
            None => return Err(refused(expr.name(), "what it gives where there is no row is no literal")),
        },
    };
    let otherwise = otherwise.map_err(|e| refused(expr.name(), e.strip_backtrace()))?;
    Ok(Call::Take { argument, from: From::Row(if lags { -by } else { by }), skips_nulls, otherwise })
}

/// LAG and LEAD by 0 are the value itself. If they skip NULLs, DataFusion replaces NULL, but only when it evaluates row
/// by row.
fn own_row(expr: &Arc<dyn WindowExpr>, evaluator: &mut dyn PartitionEvaluator) -> Result<(), Reason> {
    let why = |e: DataFusionError| refused(expr.name(), e.strip_backtrace());
    let null = new_null_array(expr.field().map_err(why)?.data_type(), 1);
    match evaluator.evaluate(&[null], &(0..1)).map_err(why)?.is_null() {
        true => Ok(()),
        false => Err(refused(expr.name(), "it looks at its own row, and puts something in the place of NULL")),
    }
}

/// FIRST_VALUE, LAST_VALUE and NTH_VALUE. The result of their evaluator for a few rows shows from which end it counts,
/// and whether NULLs count.
fn nth(
    expr: &Arc<dyn WindowExpr>,
    evaluator: &dyn Fn() -> Result<Box<dyn PartitionEvaluator>, Reason>,
    argument: Arc<dyn PhysicalExpr>,
    number: i64,
) -> Result<Call, Reason> {
    let far = i64::try_from(number.unsigned_abs()).ok().filter(|far| *far <= MOST_NTH);
    let far = far.ok_or_else(|| refused(expr.name(), "it looks too far"))?;
    let evaluate = |values: Vec<Option<i64>>| {
        let rows = values.len();
        let array: ArrayRef = Arc::new(Int64Array::from(values));
        let value =
            evaluator()?.evaluate(&[array], &(0..rows)).map_err(|e| refused(expr.name(), e.strip_backtrace()))?;
        match value {
            ScalarValue::Int64(value) => Ok(value),
            _ => Err(refused(expr.name(), "it changes the type of its argument")),
        }
    };
    // Equally many rows on both sides of the middle row, which is the result from neither end.
    let rows: Vec<Option<i64>> = (0..=2 * far).map(Some).collect();
    let from_start = match evaluate(rows.clone())? {
        // Row 0 does not exist, and neither does a row beyond every partition.
        None if far == 0 => {
            let from = From::Row(MAX_ROWS as i64);
            return Ok(Call::Take { argument, from, skips_nulls: false, otherwise: ScalarValue::Null });
        }
        Some(value) if value == far - 1 => true,
        Some(value) if value == far + 1 => false,
        _ => return Err(refused(expr.name(), "its evaluator says something else")),
    };
    let mut with_null = rows;
    let last = with_null.len() - 1;
    with_null[if from_start { 0 } else { last }] = None;
    let skips_nulls = evaluate(with_null)? == Some(far);
    let from = From::Frame(if from_start { far } else { -far });
    Ok(Call::Take { argument, from, skips_nulls, otherwise: ScalarValue::Null })
}

fn literal(expr: Option<&Arc<dyn PhysicalExpr>>) -> Option<&ScalarValue> {
    expr?.downcast_ref::<Literal>().map(Literal::value)
}

/// An integer literal.
fn signed(value: &ScalarValue) -> Option<i64> {
    match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(number)) if value.data_type().is_integer() => number,
        _ => None,
    }
}

fn unsigned(value: &ScalarValue) -> Option<u64> {
    signed(value).and_then(|value| u64::try_from(value).ok())
}
