//! approx_distinct: DataFusion's HyperLogLog, as two aggregations.
//!
//!   rows      x ─► hash of 64 bits ─► register: the lowest 14 bits · run: trailing zero bits of the rest, plus one
//!   first     (keys, register) ─► the longest run
//!   second    keys ─► registers with a run, Σ 2^-run ─► estimate
//!
//! Equal     the hash is DataFusion's, with its fixed seed, so that registers have the same contents there; the
//!           estimate is computed in floats, from the same numbers in the same steps.
//! Strings   DataFusion hashes the values of the dictionary; a string without one has no device form here.
//! Exact     DataFusion counts the distinct values of booleans and of integers of 8 or 16 bits, as `count(DISTINCT x)`
//!           does.
//! Beyond    a run of 51, which one value in 2^50 has, adds nothing to the estimate here, and almost nothing in
//!           DataFusion.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Bitwise, FloatFunction, Graph, GraphError, NodeId, Overflow,
    Repr,
};

use crate::error::reason::Reason;
use crate::expr::sketch::{REGISTERS, RUN_BITS};
use crate::expr::{Lowering, Scope, refused};
use crate::operator::aggregate::finish::Final;
use crate::operator::aggregate::lower::unsupported;

/// Number of steps after which the series of [`sigma`] no longer changes, for any number of empty registers.
const SIGMA_STEPS: usize = 21;

/// Step of `approx_distinct` in an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sketch {
    /// The longest run of each register.
    Longest,
    /// The estimate, from the longest runs.
    Estimate,
}

/// DataFusion's method for `approx_distinct` of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Exact,
    Sketch,
}

/// The method of `function` for values of `data_type`.
pub(crate) fn method(function: &AggregateFunctionExpr, data_type: &DataType) -> Result<Method, Reason> {
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

/// The accumulators of one of the two aggregations.
pub(crate) fn lower(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    (function, sketch, arguments): (&AggregateFunctionExpr, Sketch, &[Arc<dyn PhysicalExpr>]),
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    let [argument] = arguments else {
        return Err(unsupported(function, "it takes one argument on the device"));
    };
    let run = lowering.lower(argument, scope)?.node;
    let graph = &mut lowering.graph;
    let share = match sketch {
        Sketch::Longest => None,
        Sketch::Estimate => Some(share(graph, run).map_err(|e| refused(argument, &e))?),
    };
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    Ok(match share {
        None => Final::Is(add(Aggregate::Max(run))),
        Some(share) => Final::Estimate { registers: add(Aggregate::Count(run)), sum: add(Aggregate::Sum(share)) },
    })
}

/// 2^-run, in units of 2^-50.
fn share(graph: &mut Graph, run: NodeId) -> Result<NodeId, GraphError> {
    let run = graph.convert(run, Repr::U64, Overflow::Wrap)?;
    let one = graph.integer(1 << RUN_BITS, Repr::U64);
    graph.bitwise(Bitwise::ShiftRight, one, run)
}

/// The estimate (`U64`), from the number of registers with a run (`I64`) and the sum of their [`share`]s.
pub(crate) fn estimate(graph: &mut Graph, registers: NodeId, sum: NodeId) -> Result<NodeId, GraphError> {
    let all = REGISTERS as f64;
    let multiply = |graph: &mut Graph, a, b| graph.arithmetic(Arithmetic::Multiply, a, b, Overflow::Wrap);
    let add = |graph: &mut Graph, a, b| graph.arithmetic(Arithmetic::Add, a, b, Overflow::Wrap);
    let none = graph.integer(0, Repr::U64);
    let sum = graph.coalesce(&[sum, none])?;
    let sum = graph.convert(sum, Repr::F64, Overflow::Wrap)?;
    let unit = graph.float((0.5_f64).powi(RUN_BITS as i32), Repr::F64);
    let shares = multiply(graph, sum, unit)?;

    let nothing = graph.is_zero(registers)?;
    let registers = graph.convert(registers, Repr::F64, Overflow::Wrap)?;
    let all_registers = graph.float(all, Repr::F64);
    let empty = graph.arithmetic(Arithmetic::Subtract, all_registers, registers, Overflow::Wrap)?;
    let empty = graph.arithmetic(Arithmetic::Divide, empty, all_registers, Overflow::Wrap)?;
    let empty = sigma(graph, empty)?;
    let empty = multiply(graph, empty, all_registers)?;
    let sum = add(graph, shares, empty)?;

    let factor = graph.float(0.5 / 2_f64.ln() * all * all, Repr::F64);
    let estimate = graph.arithmetic(Arithmetic::Divide, factor, sum, Overflow::Wrap)?;
    let estimate = graph.float_function(FloatFunction::Round, estimate)?;
    let estimate = graph.convert(estimate, Repr::U64, Overflow::Fail)?;
    graph.case(vec![(nothing, none)], Some(estimate))
}

/// x + x^2 + 2 x^4 + 4 x^8 + …, for x below 1: the contribution of empty registers, after O. Ertl, "New cardinality
/// estimation algorithms for HyperLogLog sketches".
fn sigma(graph: &mut Graph, x: NodeId) -> Result<NodeId, GraphError> {
    let (mut power, mut sum) = (x, x);
    for step in 0..SIGMA_STEPS {
        power = graph.arithmetic(Arithmetic::Multiply, power, power, Overflow::Wrap)?;
        let factor = graph.float(2_f64.powi(step as i32), Repr::F64);
        let term = graph.arithmetic(Arithmetic::Multiply, power, factor, Overflow::Wrap)?;
        sum = graph.arithmetic(Arithmetic::Add, sum, term, Overflow::Wrap)?;
    }
    Ok(sum)
}
