//! Results from accumulators: an ordinary pipeline over the emitted table.
//!
//!   keys · sum · count · anchor · deviations   ──►   keys · sum / count · √(m2 / (n − 1)) · …
//!
//! NULL     a group without a valid row has no result; nor have statistics of too few rows.
//! Errors   averages of decimals, and checked sums beyond their type, raise the device's error flag; DataFusion then
//!          reports the error.

use datafusion::arrow::datatypes::{DataType, Field, IntervalUnit, SchemaRef};
use millpond_kernels::codegen::ir::{
    AggregateSpec, Arithmetic, Comparison, Graph, GraphError, NodeId, Overflow, Range, Repr, Ty,
};

use crate::column::{ColumnInfo, DictionaryId, is_string, plain_repr};
use crate::error::reason::Reason;
use crate::expr::interval;
use crate::expr::{Lowering, Scope, Value};
use crate::operator::aggregate::describe::Number;
use crate::operator::aggregate::moments::Moments;
use crate::operator::aggregate::ordered::InOrder;
use crate::operator::aggregate::ranked::Place;
use crate::operator::aggregate::ranks::Ranked;
use crate::operator::aggregate::sketch::Estimate;

/// An aggregation, lowered.
#[derive(Debug, Clone)]
pub struct LoweredAggregate {
    /// The sink: keys and accumulators over the rows' graph.
    pub spec: AggregateSpec,
    /// The emitted table: keys, then accumulators.
    pub emitted: Vec<ColumnInfo>,
    /// The aggregate's output columns.
    pub columns: Vec<ColumnInfo>,
    /// Its own filters, after those of the pipeline.
    pub row_filters: Vec<NodeId>,
    /// Launches over the same rows, numbered as
    /// [`Literal::Variant`](millpond_kernels::codegen::ir::Literal::Variant).
    pub variants: u32,
    /// Columns to be ordered within the groups before the aggregation reads the rows, and their types as columns.
    pub(crate) ranked: Vec<Ranked>,
    pub ranked_types: Vec<Ty>,
    pub(crate) keys: Vec<DataType>,
    /// Use of the key after these, which is the number of a variant or set.
    pub(crate) number: Option<Number>,
    pub(crate) finals: Vec<Final>,
}

/// Final step of one aggregate; numbers are positions among the accumulators.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Final {
    /// The accumulator is the result.
    Is(usize),
    /// The accumulator, or 0 where it is NULL.
    Counted(usize),
    /// The accumulator in the result's own width, with wrapping.
    Converted(usize),
    /// A 128-bit accumulator as a 64-bit result, which must hold it.
    Narrowed(usize),
    /// The accumulator is 0 or 1, the result a boolean.
    Truth(usize),
    /// The accumulator is a rank: a code into the sorted dictionary.
    Ranked(usize, DictionaryId),
    FloatAverage {
        sum: usize,
        count: usize,
    },
    /// sum / count, truncated.
    WholeAverage {
        sum: usize,
        count: usize,
    },
    /// sum · 10^digits / count, as a decimal of that precision.
    DecimalAverage {
        sum: usize,
        count: usize,
        digits: i8,
        precision: u8,
    },
    /// Sums of the parts of intervals, each in its own width, with wrapping.
    Interval(IntervalUnit, Vec<usize>),
    /// A statistic of one column or of pairs.
    Moments(Moments),
    /// A value at a position in its group's order.
    Placed(Place),
    /// An ordered aggregate of a column in its group's order.
    InOrder(InOrder),
    /// Estimated number of distinct values.
    Estimate(Estimate),
}

impl LoweredAggregate {
    /// The output columns, over a pipeline whose input is the emitted table.
    pub fn finish(&self, lowering: &mut Lowering<'_>, schema: &SchemaRef) -> Result<Scope, Reason> {
        let table = lowering.scope();
        let mut results = Vec::new();
        for (index, data_type) in self.keys.iter().enumerate() {
            let mut value = table.column(index)?;
            if plain_repr(data_type) == Some(Repr::Bool) {
                let node = lowering.graph.convert(value.node, Repr::Bool, Overflow::Wrap);
                value.node = node.map_err(|e| graph(schema.field(index).name(), &e))?;
            }
            value.data_type = data_type.clone();
            results.push((schema.field(index).name().clone(), Ok(value), data_type.clone()));
        }
        if let Some(number) = &self.number {
            let field = schema.field(self.keys.len());
            let mut value = table.column(self.keys.len())?;
            if let Number::Ids(ids) | Number::ReadIds { ids, .. } = number {
                value.node = grouping_id(&mut lowering.graph, value.node, ids, field.data_type())
                    .map_err(|e| graph(field.name(), &e))?;
            }
            value.data_type = field.data_type().clone();
            results.push((field.name().clone(), Ok(value), field.data_type().clone()));
        }
        let first = self.keys.len() + usize::from(self.number.is_some());
        for (index, finish) in self.finals.iter().enumerate() {
            let field = schema.field(first + index);
            let data_type = field.data_type().clone();
            let accumulator = |at: usize| table.column(first + at).map(|value| value.node);
            let node = self.result(lowering, finish, field, &accumulator)?;
            let dictionary = match finish {
                Final::Ranked(_, id) => Some(*id),
                Final::InOrder(of) => of.dictionary,
                _ => None,
            };
            let repr = lowering.graph.ty(node).repr;
            let fits = if repr == Repr::Text { is_string(&data_type) } else { plain_repr(&data_type) == Some(repr) };
            if dictionary.is_none() && !fits {
                return Err(Reason::AggregateUnsupported {
                    aggregate: field.name().clone(),
                    why: format!("it gives {data_type}, and the device {repr:?}"),
                });
            }
            let value = Value { node, data_type: data_type.clone(), dictionary };
            results.push((field.name().clone(), Ok(value), data_type));
        }
        Ok(Scope::new(results))
    }

    /// The result of one aggregate, from the accumulators of the groups.
    fn result(
        &self,
        lowering: &mut Lowering<'_>,
        finish: &Final,
        field: &Field,
        accumulator: &impl Fn(usize) -> Result<NodeId, Reason>,
    ) -> Result<NodeId, Reason> {
        let refuse = |e| graph(field.name(), &e);
        Ok(match finish {
            Final::Ranked(at, _) | Final::Is(at) => accumulator(*at)?,
            Final::Counted(at) => {
                let count = accumulator(*at)?;
                let zero = lowering.graph.integer(0, lowering.graph.ty(count).repr);
                lowering.graph.coalesce(&[count, zero]).map_err(refuse)?
            }
            Final::Converted(at) => {
                let repr = plain_repr(field.data_type()).unwrap_or(Repr::I64);
                lowering.graph.convert(accumulator(*at)?, repr, Overflow::Wrap).map_err(refuse)?
            }
            Final::Narrowed(at) => {
                let repr = plain_repr(field.data_type()).unwrap_or(Repr::I64);
                lowering.graph.convert(accumulator(*at)?, repr, Overflow::Fail).map_err(refuse)?
            }
            Final::Placed(place) => {
                let repr = plain_repr(field.data_type()).unwrap_or(Repr::F64);
                place.finish(lowering, &self.ranked, &self.ranked_types, repr, accumulator)?.map_err(refuse)?
            }
            Final::InOrder(of) => {
                of.finish(lowering, &self.ranked, &self.ranked_types, accumulator)?.map_err(refuse)?
            }
            Final::Estimate(estimate) => estimate.finish(&mut lowering.graph, accumulator)?.map_err(refuse)?,
            Final::Interval(unit, sums) => {
                let sums = sums.iter().map(|at| accumulator(*at)).collect::<Result<Vec<_>, _>>()?;
                interval::of_parts(&mut lowering.graph, *unit, &sums).map_err(refuse)?
            }
            Final::Moments(moments) => moments.finish(&mut lowering.graph, accumulator)?.map_err(refuse)?,
            Final::WholeAverage { sum, count } => {
                let (sum, count) = (accumulator(*sum)?, accumulator(*count)?);
                // Without a valid row the sum is NULL: the quotient is NULL, and nothing is divided by 0.
                let graph = &mut lowering.graph;
                graph.arithmetic(Arithmetic::Divide, sum, count, Overflow::Wrap).map_err(refuse)?
            }
            Final::Truth(at) => {
                let number = accumulator(*at)?;
                lowering.graph.convert(number, Repr::Bool, Overflow::Wrap).map_err(refuse)?
            }
            Final::FloatAverage { sum, count } => {
                let (sum, count) = (accumulator(*sum)?, accumulator(*count)?);
                let g = &mut lowering.graph;
                let count = g.convert(count, Repr::F64, Overflow::Wrap).map_err(refuse)?;
                g.arithmetic(Arithmetic::Divide, sum, count, Overflow::Wrap).map_err(refuse)?
            }
            Final::DecimalAverage { sum, count, digits, precision } => {
                let (sum, count) = (accumulator(*sum)?, accumulator(*count)?);
                let g = &mut lowering.graph;
                let factor = g.integer(10_i128.pow(digits.unsigned_abs().into()), Repr::I128);
                let scaled = g.arithmetic(Arithmetic::Multiply, sum, factor, Overflow::Fail).map_err(refuse)?;
                let count = g.convert(count, Repr::I128, Overflow::Wrap).map_err(refuse)?;
                let quotient = g.arithmetic(Arithmetic::Divide, scaled, count, Overflow::Fail).map_err(refuse)?;
                let limit = 10_i128.checked_pow(u32::from(*precision)).map_or(i128::MAX, |limit| limit - 1);
                let average = g.check(quotient, Range::new(-limit, limit), Overflow::Fail).map_err(refuse)?;
                let repr = plain_repr(field.data_type()).unwrap_or(Repr::I128);
                g.convert(average, repr, Overflow::Wrap).map_err(refuse)?
            }
        })
    }
}

/// DataFusion's id of grouping set `set`.
fn grouping_id(graph: &mut Graph, set: NodeId, ids: &[u64], data_type: &DataType) -> Result<NodeId, GraphError> {
    let repr = plain_repr(data_type).unwrap_or(Repr::U64);
    let mut branches = Vec::new();
    for (number, id) in ids.iter().enumerate().skip(1) {
        let number = graph.integer(number as i128, Repr::U32);
        let this = graph.compare(Comparison::Equal, set, number)?;
        branches.push((this, graph.integer((*id).into(), repr)));
    }
    let first = graph.integer(ids.first().copied().unwrap_or(0).into(), repr);
    if branches.is_empty() { Ok(first) } else { graph.case(branches, Some(first)) }
}

pub(crate) fn graph(name: &str, error: &GraphError) -> Reason {
    Reason::AggregateUnsupported { aggregate: name.to_string(), why: error.to_string() }
}
