//! A value's contribution to DataFusion's HyperLogLog sketch: the number of its register, and its run for that
//! register.
//!
//!   x ─► hash of 64 bits ─► register: the lowest 14 bits · run: trailing zero bits of the rest, plus one
//!
//! Equal     the hash is DataFusion's, with its fixed seed, so that registers have the same contents there.
//! Strings   DataFusion hashes the values of the dictionary; a string without one has no device form here.

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
use millpond_kernels::codegen::ir::{Arithmetic, Bitwise, Graph, GraphError, NodeId, Overflow, Range, Repr, Rounding};

use crate::expr::{Lowered, Lowering, Scope, Value};

/// Number of hash bits that select a register.
const REGISTER_BITS: u32 = 14;
pub(crate) const REGISTERS: u64 = 1 << REGISTER_BITS;
/// Number of hash bits that determine the run.
pub(crate) const RUN_BITS: u32 = u64::BITS - REGISTER_BITS;

/// Initial state of DataFusion's hasher, the constant that its upper half is mixed with, and its last factor.
const SEED: u64 = 0x082e_fa98_ec4e_6c89;
const UPPER: u64 = 0xc0ac_29b7_c97c_50dd;
const LAST: u64 = 0x243f_6a88_85a3_08d3;

/// Number that is taken from a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SketchPart {
    /// `UInt16`.
    Register,
    /// `UInt8`, from 1 to 51.
    Run,
}

/// A value's register or run in a sketch; NULL has none.
#[derive(Debug, Clone, Eq)]
pub struct SketchExpr {
    pub part: SketchPart,
    pub of: Arc<dyn PhysicalExpr>,
}

impl Lowering<'_> {
    /// The register or the run of a number. Those of a string come from its dictionary, not from here.
    pub(crate) fn sketch(&mut self, sketch: &SketchExpr, scope: &Scope) -> Lowered<Value> {
        let value = self.lower(&sketch.of, scope)?;
        let graph = &mut self.graph;
        if value.dictionary.is_some() || graph.ty(value.node).repr == Repr::Text {
            let why = "approx_distinct needs the hash of each string, which DataFusion takes of the values of a dictionary, and \
                       these strings have none";
            return Err(crate::expr::unsupported(&sketch.of, why).into());
        }
        let part = hash(graph, value.node).and_then(|hash| match sketch.part {
            SketchPart::Register => register(graph, hash),
            SketchPart::Run => run(graph, hash),
        });
        let node = part?;
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

/// Exclusive OR of the two halves of a 128-bit product (`U64`).
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
    // Bits 32 and above.
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

/// The register's number (`U16`).
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
    // The lowest bit alone is a power of two, and a float's exponent is its position.
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
