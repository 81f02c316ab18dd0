//! Medians and percentiles: for each group, the values at one or two positions in their order.
//!
//!   rows in the order of (keys, x)     a 1 │ a 4 │ a 9 │ a NULL │ b 2 │ b 7
//!   groups                             a: first row 0, 3 values       b: first row 4, 2 values
//!   median(x)                          x[0 + 1] = 4                   (x[4] + x[5]) / 2 = 4.5
//!
//! NULL    sorts last in its group, and is not a value; a group without values has no median.
//! Several arguments, or one under several filters: a sorted column each. Groups begin at the same rows in all of them.
//! Floats  in total order, as in DataFusion; a median has the argument's own width, a percentile is computed in 64
//!         bits.
//! After   DataFusion's median and percentile_cont: weights of an interpolation are cut to six digits. For digests:
//!         digest.rs.

use datafusion::arrow::datatypes::DataType;
use millpond_kernels::abi::MAX_EXTENT_ROWS;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Comparison, FloatFunction, Graph, GraphError, Literal, NodeId,
    Overflow, Range, Repr, Rounding, Ty,
};

use crate::error::reason::Reason;
use crate::expr::{LookupTable, refused};
use crate::expr::{Lowering, Scope, Value};
use crate::operator::aggregate::call::{Call, unsupported};
use crate::operator::aggregate::digest::{self, Asked};
use crate::operator::aggregate::ranks::{Becomes, Ranked, RankedBy, looked_up_at};

/// Inverse of the step between weights of an interpolation.
const WEIGHTS: f64 = 1_000_000.0;

/// Position of a result in its group's order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    /// Accumulators: the group's first row, and its number of values.
    start: usize,
    count: usize,
    /// Index of the sorted column.
    column: usize,
    /// `None` for the median.
    percentile: Option<f64>,
    digest: Option<Digested>,
    /// The values are floats of 16 bits.
    half: bool,
}

/// Parameters of a digest's estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Digested {
    /// Number of values that are kept apart.
    most: u64,
    /// Accumulator of the marks of zeros.
    zeros: Option<usize>,
}

/// The accumulators of a median or percentile; adds the column to be sorted to `ranked`.
pub(crate) fn lower(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    ranked: &mut Vec<Ranked>,
    (call, result): (&Call, &DataType),
    filter: Option<NodeId>,
) -> Result<Place, Reason> {
    let function = call.function.as_ref();
    let argument = call.only_argument()?;
    let value = lowering.lower(argument, scope)?;
    let repr = lowering.graph.ty(value.node).repr;
    let half = value.data_type == DataType::Float16;
    if half && call.percentile.is_some() {
        let why = "how DataFusion rounds from 64 bits to 16 depends on the processor";
        return Err(unsupported(function, why));
    }
    let decimal =
        matches!(value.data_type, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..));
    if *result != value.data_type || !(repr.is_float() || decimal && call.percentile.is_none()) {
        return Err(unsupported(function, format!("it gives {result} for {}", value.data_type)));
    }
    let value_node = value.node;
    let mut node = value_node;
    if let Some(filter) = filter {
        node = lowering.graph.case(vec![(filter, node)], None).map_err(|e| refused(argument, &e))?;
    }
    let ascending = RankedBy { node, dictionary: None, descending: false, nulls_first: false };
    let info = lowering.info("value", &Value { node, ..value });
    let own = Ranked { value: node, info, order: vec![ascending], becomes: Becomes::Values };
    let column = ranked.iter().position(|known| *known == own).unwrap_or_else(|| {
        ranked.push(own);
        ranked.len() - 1
    });
    let row = lowering.graph.source_row();
    let start = spec.accumulate(&lowering.graph, Accumulator { aggregate: Aggregate::Min(row), filter: None });
    let count = spec.accumulate(&lowering.graph, Accumulator { aggregate: Aggregate::Count(node), filter: None });
    let digest = match call.digest {
        Some(most) if digest::is_whole(&lowering.graph, value_node) => Some(Digested { most, zeros: None }),
        Some(most) => {
            let zero = digest::zeros(&mut lowering.graph, node).map_err(|e| refused(argument, &e))?;
            let zeros = Accumulator { aggregate: Aggregate::BitOr(zero), filter: None };
            Some(Digested { most, zeros: Some(spec.accumulate(&lowering.graph, zeros)) })
        }
        None => None,
    };
    Ok(Place { start, count, column, percentile: call.percentile, digest, half })
}

/// A group key as a sort key: keys of one group become one value.
pub(crate) fn key(graph: &mut Graph, key: NodeId) -> Result<NodeId, GraphError> {
    let repr = graph.ty(key).repr;
    if !repr.is_float() {
        return Ok(key);
    }
    let (zero, one_zero) = (graph.is_zero(key)?, graph.float(0.0, repr));
    graph.case(vec![(zero, one_zero)], Some(key))
}

impl Place {
    /// The result, from the accumulators of the groups.
    pub(crate) fn finish(
        self,
        lowering: &mut Lowering<'_>,
        ranked: &[Ranked],
        types: &[Ty],
        repr: Repr,
        accumulator: &dyn Fn(usize) -> Result<NodeId, Reason>,
    ) -> Result<Result<NodeId, GraphError>, Reason> {
        let (start, count) = (accumulator(self.start)?, accumulator(self.count)?);
        let Some(ty) = types.get(self.column).copied() else {
            return Err(Reason::NodeUnsupported { node: "a percentile without a sorted column".into() });
        };
        let table = lowering.lookup_table(LookupTable::Ranked { column: looked_up_at(ranked, self.column), ty });
        let percentile = self.percentile.map(|p| lowering.slot(Ty::new(Repr::F64), Literal::F64(p)));
        let values = Values { start, table, ty, half: self.half };
        if let (Some(digest), Some(percentile)) = (self.digest, percentile) {
            let most = lowering.slot(Ty::new(Repr::I64), Literal::Int(digest.most.into()));
            let zeros = digest.zeros.map(accumulator).transpose()?;
            let graph = &mut lowering.graph;
            return Ok(present(graph, count).and_then(|count| {
                let asked = Asked { count, percentile, most, zeros, repr };
                digest::estimate(graph, &asked, &|graph, place| values.at(graph, place))
            }));
        }
        let graph = &mut lowering.graph;
        let result = present(graph, count).and_then(|count| match percentile {
            None => values.median(graph, count, repr),
            Some(percentile) => values.percentile(graph, count, percentile, repr),
        });
        Ok(result)
    }
}

/// Number of values, NULL if there are none.
pub(super) fn present(graph: &mut Graph, count: NodeId) -> Result<NodeId, GraphError> {
    let count = graph.assume(count, Range { low: 0, high: MAX_EXTENT_ROWS.into() });
    let none = graph.is_zero(count)?;
    let some = graph.not(none)?;
    graph.case(vec![(some, count)], None)
}

/// The value in row `start + offset` (`I64`) of an ordered column.
pub(super) fn value_at(
    graph: &mut Graph,
    start: NodeId,
    offset: NodeId,
    table: u32,
    ty: Ty,
) -> Result<NodeId, GraphError> {
    let start = graph.convert(start, Repr::I64, Overflow::Wrap)?;
    let row = graph.arithmetic(Arithmetic::Add, start, offset, Overflow::Wrap)?;
    let row = graph.convert(row, Repr::U32, Overflow::Wrap)?;
    graph.lookup(row, table, ty)
}

/// The values of a group, in order.
struct Values {
    start: NodeId,
    table: u32,
    ty: Ty,
    half: bool,
}

impl Values {
    /// The value at position `offset` (`I64`).
    fn at(&self, graph: &mut Graph, offset: NodeId) -> Result<NodeId, GraphError> {
        value_at(graph, self.start, offset, self.table, self.ty)
    }

    /// A computed value in the values' own width.
    fn rounded(&self, graph: &mut Graph, of: NodeId) -> Result<NodeId, GraphError> {
        if self.half { graph.float_function(FloatFunction::Narrow, of) } else { Ok(of) }
    }

    fn median(&self, graph: &mut Graph, count: NodeId, repr: Repr) -> Result<NodeId, GraphError> {
        let one = graph.integer(1, Repr::I64);
        let before = graph.arithmetic(Arithmetic::Subtract, count, one, Overflow::Wrap)?;
        let lower = graph.divide_constant(before, 2, Rounding::Truncate)?;
        let upper = graph.divide_constant(count, 2, Rounding::Truncate)?;
        let is_one = graph.compare(Comparison::Equal, lower, upper)?;
        let (lower, upper) = (self.at(graph, lower)?, self.at(graph, upper)?);
        let middle = match repr.is_float() {
            true => {
                let sum = graph.arithmetic(Arithmetic::Add, lower, upper, Overflow::Wrap)?;
                let sum = self.rounded(graph, sum)?;
                let two = graph.float(2.0, repr);
                let middle = graph.arithmetic(Arithmetic::Divide, sum, two, Overflow::Wrap)?;
                self.rounded(graph, middle)?
            }
            false => {
                let middle = middle(graph, lower, upper)?;
                graph.convert(middle, repr, Overflow::Wrap)?
            }
        };
        graph.case(vec![(is_one, lower)], Some(middle))
    }

    fn percentile(
        &self,
        graph: &mut Graph,
        count: NodeId,
        percentile: NodeId,
        repr: Repr,
    ) -> Result<NodeId, GraphError> {
        let one = graph.integer(1, Repr::I64);
        let last = graph.arithmetic(Arithmetic::Subtract, count, one, Overflow::Wrap)?;
        let last = graph.convert(last, Repr::F64, Overflow::Wrap)?;
        let place = graph.arithmetic(Arithmetic::Multiply, percentile, last, Overflow::Wrap)?;
        let below = graph.float_function(FloatFunction::Floor, place)?;
        let above = graph.float_function(FloatFunction::Ceil, place)?;
        let is_one = graph.compare(Comparison::Equal, below, above)?;
        let fraction = graph.arithmetic(Arithmetic::Subtract, place, below, Overflow::Wrap)?;
        let weights = graph.float(WEIGHTS, Repr::F64);
        let weight = graph.arithmetic(Arithmetic::Multiply, fraction, weights, Overflow::Wrap)?;
        let weight = graph.float_function(FloatFunction::Truncate, weight)?;
        let weight = graph.arithmetic(Arithmetic::Divide, weight, weights, Overflow::Wrap)?;
        let mut at = |place: NodeId| {
            let place = graph.convert(place, Repr::I64, Overflow::Null)?;
            let place = graph.assume(place, Range { low: 0, high: MAX_EXTENT_ROWS.into() });
            self.at(graph, place)
        };
        let (lower, upper) = (at(below)?, at(above)?);
        let low = graph.convert(lower, Repr::F64, Overflow::Wrap)?;
        let high = graph.convert(upper, Repr::F64, Overflow::Wrap)?;
        let gap = graph.arithmetic(Arithmetic::Subtract, high, low, Overflow::Wrap)?;
        let step = graph.arithmetic(Arithmetic::Multiply, gap, weight, Overflow::Wrap)?;
        let between = graph.arithmetic(Arithmetic::Add, low, step, Overflow::Wrap)?;
        let between = graph.convert(between, repr, Overflow::Wrap)?;
        graph.case(vec![(is_one, lower)], Some(between))
    }
}

/// (a + b) / 2 of two integers of any size, rounded towards zero.
fn middle(graph: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
    let (a, b) = (graph.convert(a, Repr::I128, Overflow::Wrap)?, graph.convert(b, Repr::I128, Overflow::Wrap)?);
    let whole = graph.arithmetic(Arithmetic::Add, a, b, Overflow::Wrap)?;
    let simple = graph.divide_constant(whole, 2, Rounding::Truncate)?;
    let most = Range { low: i128::MIN / 2, high: i128::MAX / 2 };
    if graph.ty(a).bounds().is_some_and(|range| most.contains(range)) {
        return Ok(simple);
    }
    // If the sum exceeds 128 bits, both have one sign: halves and remainders add up without overflow.
    let two = graph.integer(2, Repr::I128);
    let half = |graph: &mut Graph, of| graph.divide_constant(of, 2, Rounding::Truncate);
    let rest = |graph: &mut Graph, of| graph.arithmetic(Arithmetic::Remainder, of, two, Overflow::Wrap);
    let (half_a, half_b) = (half(graph, a)?, half(graph, b)?);
    let (rest_a, rest_b) = (rest(graph, a)?, rest(graph, b)?);
    let halves = graph.arithmetic(Arithmetic::Add, half_a, half_b, Overflow::Wrap)?;
    let rests = graph.arithmetic(Arithmetic::Add, rest_a, rest_b, Overflow::Wrap)?;
    let carry = half(graph, rests)?;
    let sum = graph.arithmetic(Arithmetic::Add, halves, carry, Overflow::Wrap)?;
    let zero = graph.integer(0, Repr::I128);
    let (a_below, b_below) = (graph.compare(Comparison::Less, a, zero)?, graph.compare(Comparison::Less, b, zero)?);
    let one_sign = graph.compare(Comparison::Equal, a_below, b_below)?;
    graph.case(vec![(one_sign, sum)], Some(simple))
}
