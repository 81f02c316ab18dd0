//! approx_distinct: DataFusion's HyperLogLog, as two aggregations.
//!
//!   rows      x ─► hash of 64 bits ─► register: the lowest 14 · run: zero bits at the low end of the rest, and one
//!   first     (keys, register) ─► the longest run
//!   second    keys ─► registers with a run, Σ 2^-run ─► estimate
//!
//! Equal     the hash is DataFusion's, with its fixed seed, so that a register holds what it holds there; and so does the
//!           estimate follow, in floats, from the same numbers in the same steps.
//! Strings   DataFusion hashes the values of the dictionary; a string without one has no device form here.
//! Exact     of booleans and integers of 8 or 16 bits DataFusion counts the distinct values: so does `count(DISTINCT x)`.
//! Beyond    a run of 51, which one value of 2^50 has, adds nothing to the estimate here, and next to nothing there.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt8Array, UInt16Array};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{HLL_RANDOM_STATE, create_hashes};
use datafusion::common::{Result as DataFusionResult, internal_datafusion_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Bitwise, FloatFunction, Graph, GraphError, NodeId, Overflow,
    Range, Repr, Rounding,
};

use crate::expr::refused;
use crate::expr::{Lowering, Scope, Value};
use crate::operator::aggregate::finish::Final;
use crate::operator::aggregate::lower::unsupported;
use crate::reason::Reason;

/// Bits of a hash that are the number of a register.
const REGISTER_BITS: u32 = 14;
const REGISTERS: u64 = 1 << REGISTER_BITS;
/// Bits that a run is of.
const RUN_BITS: u32 = u64::BITS - REGISTER_BITS;
/// Steps after which the series of [`sigma`] no longer changes, with any number of empty registers.
const SIGMA_STEPS: usize = 21;

/// The state of DataFusion's hasher before a value comes, what its upper half is mixed with, and its last factor.
const SEED: u64 = 0x082e_fa98_ec4e_6c89;
const UPPER: u64 = 0xc0ac_29b7_c97c_50dd;
const LAST: u64 = 0x243f_6a88_85a3_08d3;

/// Which number a hash gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SketchPart {
    /// `UInt16`.
    Register,
    /// `UInt8`, from 1 to 51.
    Run,
}

/// What a value of `of` does to a sketch; NULL does nothing.
#[derive(Debug, Clone, Eq)]
pub struct SketchExpr {
    pub part: SketchPart,
    pub of: Arc<dyn PhysicalExpr>,
}

/// What an aggregation does for `approx_distinct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sketch {
    /// The longest run of each register.
    Longest,
    /// The estimate, from those.
    Estimate,
}

/// How DataFusion finds `approx_distinct` of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Exact,
    Sketch,
}

/// How `function` counts values of `data_type`.
pub(crate) fn method(function: &AggregateFunctionExpr, data_type: &DataType) -> Result<Method, Reason> {
    use DataType::*;
    match data_type {
        Boolean | Int8 | Int16 | UInt8 | UInt16 => Ok(Method::Exact),
        Int32 | Int64 | UInt32 | UInt64 | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_)
        | Decimal32(..) | Decimal64(..) | Decimal128(..) => Ok(Method::Sketch),
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView => Ok(Method::Sketch),
        // DataFusion has none of floats and of dictionaries, and says so.
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

impl Lowering<'_> {
    /// The register or the run of a number. Those of a string's come from its dictionary, and never here.
    pub(crate) fn sketch(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        sketch: &SketchExpr,
        scope: &Scope,
    ) -> Result<Value, Reason> {
        let value = self.lower(&sketch.of, scope)?;
        let graph = &mut self.graph;
        if value.dictionary.is_some() || graph.ty(value.node).repr == Repr::Text {
            let why = "approx_distinct needs the hash of each string, which DataFusion takes of the values of a dictionary, and \
                       these strings have none";
            return Err(crate::expr::unsupported(&sketch.of, why));
        }
        let part = hash(graph, value.node).and_then(|hash| match sketch.part {
            SketchPart::Register => register(graph, hash),
            SketchPart::Run => run(graph, hash),
        });
        let node = part.map_err(|e| refused(expr, &e))?;
        Ok(Value { node, data_type: sketch.part.data_type(), dictionary: None })
    }
}

/// DataFusion's hash of a number (`U64`).
fn hash(graph: &mut Graph, value: NodeId) -> Result<NodeId, GraphError> {
    let (low, high) = match graph.ty(value).repr {
        Repr::I128 => {
            let high = graph.divide_constant(value, 1 << 64, Rounding::Floor)?;
            let high = graph.convert(high, Repr::U64, Overflow::Wrap)?;
            (graph.convert(value, Repr::U64, Overflow::Wrap)?, Some(high))
        }
        _ => (unsigned(graph, value)?, None),
    };
    let seed = graph.integer(SEED.into(), Repr::U64);
    let upper = graph.integer(UPPER.into(), Repr::U64);
    let last = graph.integer(LAST.into(), Repr::U64);
    let low = graph.bitwise(Bitwise::Xor, low, seed)?;
    let high = match high {
        Some(high) => graph.bitwise(Bitwise::Xor, high, upper)?,
        None => upper,
    };
    let first = folded_product(graph, low, high)?;
    folded_product(graph, first, last)
}

/// The bits of an integer, with zeros above them (`U64`).
fn unsigned(graph: &mut Graph, value: NodeId) -> Result<NodeId, GraphError> {
    let value = match graph.ty(value).repr {
        Repr::I32 => graph.convert(value, Repr::U32, Overflow::Wrap)?,
        _ => value,
    };
    graph.convert(value, Repr::U64, Overflow::Wrap)
}

/// The two halves of a product of 128 bits, one or the other (`U64`).
fn folded_product(graph: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
    let low_half = |graph: &mut Graph, of| {
        let mask = graph.integer(u32::MAX.into(), Repr::U64);
        graph.bitwise(Bitwise::And, of, mask)
    };
    let high_half = |graph: &mut Graph, of| {
        let bits = graph.integer(32, Repr::U64);
        let half = graph.bitwise(Bitwise::ShiftRight, of, bits)?;
        Ok::<_, GraphError>(graph.assume(half, Range { low: 0, high: u32::MAX.into() }))
    };
    let multiply = |graph: &mut Graph, a, b| graph.arithmetic(Arithmetic::Multiply, a, b, Overflow::Wrap);
    let add = |graph: &mut Graph, a, b| graph.arithmetic(Arithmetic::Add, a, b, Overflow::Wrap);
    let (a_low, a_high) = (low_half(graph, a)?, high_half(graph, a)?);
    let (b_low, b_high) = (low_half(graph, b)?, high_half(graph, b)?);
    let (lows, highs) = (multiply(graph, a_low, b_low)?, multiply(graph, a_high, b_high)?);
    let (one, other) = (multiply(graph, a_low, b_high)?, multiply(graph, a_high, b_low)?);
    // What lies at bit 32 and above.
    let mut middle = high_half(graph, lows)?;
    let mut high = highs;
    for cross in [one, other] {
        let (below, above) = (low_half(graph, cross)?, high_half(graph, cross)?);
        middle = add(graph, middle, below)?;
        high = add(graph, high, above)?;
    }
    let carry = high_half(graph, middle)?;
    let high = add(graph, high, carry)?;
    let low = multiply(graph, a, b)?;
    graph.bitwise(Bitwise::Xor, low, high)
}

/// The number of the register (`U16`).
fn register(graph: &mut Graph, hash: NodeId) -> Result<NodeId, GraphError> {
    let mask = graph.integer((REGISTERS - 1).into(), Repr::U64);
    let register = graph.bitwise(Bitwise::And, hash, mask)?;
    graph.convert(register, Repr::U16, Overflow::Wrap)
}

/// The run (`U8`).
fn run(graph: &mut Graph, hash: NodeId) -> Result<NodeId, GraphError> {
    let own = graph.integer(REGISTER_BITS.into(), Repr::U64);
    let end = graph.integer(1 << RUN_BITS, Repr::U64);
    let rest = graph.bitwise(Bitwise::ShiftRight, hash, own)?;
    let rest = graph.bitwise(Bitwise::Or, rest, end)?;
    let zero = graph.integer(0, Repr::U64);
    let minus = graph.arithmetic(Arithmetic::Subtract, zero, rest, Overflow::Wrap)?;
    // The lowest bit alone is a power of two, and a float's exponent says which.
    let lowest = graph.bitwise(Bitwise::And, rest, minus)?;
    let power = graph.convert(lowest, Repr::F64, Overflow::Wrap)?;
    let bits = graph.float_key(power)?;
    let mantissa = graph.integer(52, Repr::I64);
    let exponent = graph.bitwise(Bitwise::ShiftRight, bits, mantissa)?;
    let bias = graph.integer(1022, Repr::I64);
    let run = graph.arithmetic(Arithmetic::Subtract, exponent, bias, Overflow::Wrap)?;
    let run = graph.assume(run, Range { low: 1, high: i128::from(RUN_BITS) + 1 });
    graph.convert(run, Repr::U8, Overflow::Wrap)
}

/// The estimate (`U64`), from the number of registers that have a run (`I64`) and the sum of their [`share`]s.
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

/// x + x^2 + 2 x^4 + 4 x^8 + …, for x below 1: what empty registers add, after O. Ertl, "New cardinality estimation algorithms
/// for HyperLogLog sketches".
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

impl SketchPart {
    fn data_type(self) -> DataType {
        match self {
            Self::Register => DataType::UInt16,
            Self::Run => DataType::UInt8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Register => "hll_register",
            Self::Run => "hll_run",
        }
    }
}

impl PartialEq for SketchExpr {
    fn eq(&self, other: &Self) -> bool {
        self.part == other.part && self.of.eq(&other.of)
    }
}

impl Hash for SketchExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.part.hash(state);
        self.of.hash(state);
    }
}

impl fmt::Display for SketchExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.part.name(), self.of)
    }
}

impl PhysicalExpr for SketchExpr {
    fn data_type(&self, _: &Schema) -> DataFusionResult<DataType> {
        Ok(self.part.data_type())
    }

    fn nullable(&self, input: &Schema) -> DataFusionResult<bool> {
        self.of.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> DataFusionResult<ColumnarValue> {
        let values = self.of.evaluate(batch)?.into_array(batch.num_rows())?;
        let mut hashes = vec![0_u64; values.len()];
        create_hashes([values.as_ref()], &HLL_RANDOM_STATE, &mut hashes)?;
        let nulls = values.logical_nulls();
        let valid = hashes.iter().enumerate().map(|(row, hash)| {
            let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
            valid.then_some(*hash)
        });
        let run = |hash: u64| (hash >> REGISTER_BITS | 1 << RUN_BITS).trailing_zeros() as u8 + 1;
        let parts: ArrayRef = match self.part {
            SketchPart::Register => {
                Arc::new(valid.map(|hash| hash.map(|hash| (hash % REGISTERS) as u16)).collect::<UInt16Array>())
            }
            SketchPart::Run => Arc::new(valid.map(|hash| hash.map(run)).collect::<UInt8Array>()),
        };
        Ok(ColumnarValue::Array(parts))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.of]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DataFusionResult<Arc<dyn PhysicalExpr>> {
        let of = children.into_iter().next();
        let of = of.ok_or_else(|| internal_datafusion_err!("{} has one argument", self.part.name()))?;
        Ok(Arc::new(Self { part: self.part, of }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
