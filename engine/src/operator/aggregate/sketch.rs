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

use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Bitwise, FloatFunction, Graph, GraphError, NodeId, Overflow,
    Repr,
};

use crate::error::reason::Reason;
use crate::expr::sketch::{REGISTERS, RUN_BITS};
use crate::expr::{Lowering, Scope, refused};
use crate::operator::aggregate::call::Call;

/// Number of steps after which the series of [`sigma`] no longer changes, for any number of empty registers.
const SIGMA_STEPS: usize = 21;

/// Accumulators of an estimate: the number of registers with a run, and the sum of their shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    registers: usize,
    sum: usize,
}

/// The accumulator of the longest run of a register.
pub(crate) fn longest(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<usize, Reason> {
    let run = lowering.lower(call.only_argument()?, scope)?.node;
    Ok(spec.accumulate(&lowering.graph, Accumulator { aggregate: Aggregate::Max(run), filter }))
}

/// The accumulators of an estimate, over the longest runs.
pub(crate) fn estimate(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<Estimate, Reason> {
    let argument = call.only_argument()?;
    let run = lowering.lower(argument, scope)?.node;
    let share = share(&mut lowering.graph, run).map_err(|e| refused(argument, &e))?;
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    Ok(Estimate { registers: add(Aggregate::Count(run)), sum: add(Aggregate::Sum(share)) })
}

impl Estimate {
    /// The result, from the accumulators of the groups.
    pub(crate) fn finish(
        self,
        graph: &mut Graph,
        accumulator: &impl Fn(usize) -> Result<NodeId, Reason>,
    ) -> Result<Result<NodeId, GraphError>, Reason> {
        let (registers, sum) = (accumulator(self.registers)?, accumulator(self.sum)?);
        Ok(number(graph, registers, sum))
    }
}

/// 2^-run, in units of 2^-50.
fn share(graph: &mut Graph, run: NodeId) -> Result<NodeId, GraphError> {
    let run = graph.convert(run, Repr::U64, Overflow::Wrap)?;
    let one = graph.integer(1 << RUN_BITS, Repr::U64);
    graph.bitwise(Bitwise::ShiftRight, one, run)
}

/// The estimate (`U64`), from the number of registers with a run (`I64`) and the sum of their [`share`]s.
fn number(graph: &mut Graph, registers: NodeId, sum: NodeId) -> Result<NodeId, GraphError> {
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
