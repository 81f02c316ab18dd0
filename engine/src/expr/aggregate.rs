//! Aggregates, lowered in two halves: what accumulates per row, and what is made of the accumulators per group.
//!
//!   avg(l_quantity), sum(l_quantity), count(*)
//!      rows    ──►  accumulators: sum(l_quantity), count(*)              equal ones merge
//!      groups  ──►  columns: sum · 10^4 / count, sum, count
//!
//! The second half is an ordinary pipeline over the emitted table: keys, then accumulators.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal as LiteralExpr;
use millpond_kernels::codegen::ir::{Accumulator, Aggregate, AggregateSpec, Arithmetic, Overflow, Range, Repr};

use super::{Dictionary, Lowering, Scope, Value, refused};
use crate::column::{ColumnInfo, DictionaryId, Form, plain_repr};
use crate::placement::Reason;

/// What becomes of the accumulators of one aggregate; numbers are positions among the accumulators.
#[derive(Debug, Clone, PartialEq)]
enum Final {
    /// The accumulator is the result.
    Is(usize),
    /// The accumulator is 0 or 1, the result a boolean.
    Truth(usize),
    /// The accumulator is a rank: a code into the sorted dictionary.
    Ranked(usize, DictionaryId),
    FloatAverage {
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
}

/// An aggregation, lowered.
#[derive(Debug, Clone)]
pub struct LoweredAggregate {
    /// The sink: keys and accumulators over the rows' graph.
    pub spec: AggregateSpec,
    /// The emitted table: keys, then accumulators.
    pub emitted: Vec<ColumnInfo>,
    /// The aggregate's output columns.
    pub columns: Vec<ColumnInfo>,
    keys: Vec<DataType>,
    finals: Vec<Final>,
}

fn unsupported(function: &AggregateFunctionExpr, why: impl Into<String>) -> Reason {
    Reason::AggregateUnsupported { aggregate: function.name().to_string(), why: why.into() }
}

/// Lowers grouping expressions and aggregates over `scope`. `schema` is that of the results: keys, then aggregates.
pub fn lower(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    groups: &[(Arc<dyn PhysicalExpr>, String)],
    functions: &[Arc<AggregateFunctionExpr>],
    filters: &[Option<Arc<dyn PhysicalExpr>>],
    schema: &SchemaRef,
) -> Result<LoweredAggregate, Reason> {
    let mut keys = Vec::new();
    let mut emitted = Vec::new();
    let mut key_types = Vec::new();
    let mut columns = Vec::new();
    for (expr, name) in groups {
        let value = lowering.lower(expr, scope)?;
        let ty = lowering.graph.ty(value.node);
        columns.push(lowering.info(name, &value));
        key_types.push(value.data_type.clone());
        // A boolean key is the number 0 or 1.
        let node = match ty.repr {
            Repr::Bool => {
                lowering.graph.convert(value.node, Repr::U8, Overflow::Wrap).map_err(|e| refused(expr, &e))?
            }
            _ => value.node,
        };
        keys.push(node);
        let mut info = lowering.info(name, &Value { node, ..value });
        if ty.repr == Repr::Bool {
            info.data_type = DataType::UInt8;
        }
        emitted.push(info);
    }

    let mut spec = AggregateSpec::new(keys);
    let mut finals = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let filter = match filters.get(index).and_then(|f| f.as_ref()) {
            Some(filter) => Some(lowering.predicate(filter, scope)?),
            None => None,
        };
        let result = schema.field(groups.len() + index).data_type().clone();
        finals.push(one(lowering, scope, &mut spec, function, filter, &result)?);
    }

    let types = spec.output_types(&lowering.graph);
    for (index, ty) in types.iter().enumerate().skip(spec.keys.len()) {
        let name = format!("accumulator {}", index - spec.keys.len());
        let data_type = lane_type(ty.repr);
        emitted.push(ColumnInfo { name, data_type, form: Form::Plain(*ty) });
    }
    let mut lowered = LoweredAggregate { spec, emitted, columns, keys: key_types, finals };

    // The results' types follow from finishing, in a graph that is thrown away.
    let emitted = lowered.emitted.clone();
    let mut finishing = Lowering::new(&emitted, lowering.dictionaries);
    let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
    let results = lowered.finish(&mut finishing, schema)?;
    lowered.columns = names
        .iter()
        .enumerate()
        .map(|(index, name)| Ok(finishing.info(name, &results.column(index)?)))
        .collect::<Result<_, Reason>>()?;
    Ok(lowered)
}

/// The accumulators of one aggregate function.
fn one(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    function: &AggregateFunctionExpr,
    filter: Option<millpond_kernels::codegen::ir::NodeId>,
    result: &DataType,
) -> Result<Final, Reason> {
    if function.is_distinct() {
        return Err(unsupported(function, "DISTINCT is not lowered"));
    }
    if !function.order_bys().is_empty() {
        return Err(unsupported(function, "an ordered aggregate is not lowered"));
    }
    let arguments = function.expressions();
    let name = function.fun().name().to_string();
    if name == "count" {
        let constant =
            |e: &Arc<dyn PhysicalExpr>| e.downcast_ref::<LiteralExpr>().is_some_and(|l| !l.value().is_null());
        let aggregate = match arguments.as_slice() {
            [one] if constant(one) => Aggregate::CountStar,
            [] => Aggregate::CountStar,
            [one] => Aggregate::Count(lowering.lower(one, scope)?.node),
            _ => return Err(unsupported(function, "COUNT of several arguments is not lowered")),
        };
        return Ok(Final::Is(spec.accumulate(&lowering.graph, Accumulator { aggregate, filter })));
    }
    let [argument] = arguments.as_slice() else {
        return Err(unsupported(function, "it takes one argument on the device"));
    };
    let value = lowering.lower(argument, scope)?;
    if let Some(id) = value.dictionary {
        // The least string is the one of the least rank.
        let rank = lowering.rank(argument, &value, id)?;
        let sorted = lowering.dictionaries.add(Dictionary::Sorted { of: id, data_type: value.data_type });
        let aggregate = match name.as_str() {
            "min" => Aggregate::Min(rank.node),
            "max" => Aggregate::Max(rank.node),
            _ => return Err(unsupported(function, "strings have a least and a greatest value on the device, no more")),
        };
        let at = spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
        return Ok(Final::Ranked(at, sorted));
    }
    let repr = lowering.graph.ty(value.node).repr;
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    match name.as_str() {
        "min" | "max" if repr == Repr::Bool => {
            let number = lowering.graph.convert(value.node, Repr::U8, Overflow::Wrap);
            let number = number.map_err(|e| refused(argument, &e))?;
            let aggregate = if name == "min" { Aggregate::Min(number) } else { Aggregate::Max(number) };
            Ok(Final::Truth(spec.accumulate(&lowering.graph, Accumulator { aggregate, filter })))
        }
        "min" => Ok(Final::Is(add(Aggregate::Min(value.node)))),
        "max" => Ok(Final::Is(add(Aggregate::Max(value.node)))),
        "sum" => {
            let sum = add(Aggregate::Sum(value.node));
            let matches = match result {
                DataType::Int64 => repr.is_integer() && repr.is_signed() && repr != Repr::I128,
                DataType::UInt64 => repr.is_integer() && !repr.is_signed(),
                DataType::Float64 => repr.is_float(),
                DataType::Decimal128(_, s) => matches!(&value.data_type, DataType::Decimal128(_, of) if of == s),
                _ => false,
            };
            match matches {
                true => Ok(Final::Is(sum)),
                false => Err(unsupported(function, format!("it gives {result} for {}", value.data_type))),
            }
        }
        "avg" => {
            let sum = add(Aggregate::Sum(value.node));
            let count = add(Aggregate::Count(value.node));
            match (&value.data_type, result) {
                (DataType::Float32 | DataType::Float64, DataType::Float64) => Ok(Final::FloatAverage { sum, count }),
                (DataType::Decimal128(_, from), DataType::Decimal128(precision, to)) if to >= from => {
                    Ok(Final::DecimalAverage { sum, count, digits: to - from, precision: *precision })
                }
                (from, to) => Err(unsupported(function, format!("it gives {to} for {from}"))),
            }
        }
        _ => Err(unsupported(function, "this function is not lowered")),
    }
}

/// An Arrow type for an accumulator's column; only its width matters.
fn lane_type(repr: Repr) -> DataType {
    match repr {
        Repr::Bool => DataType::Boolean,
        Repr::I8 => DataType::Int8,
        Repr::I16 => DataType::Int16,
        Repr::I32 => DataType::Int32,
        Repr::I64 => DataType::Int64,
        Repr::U8 => DataType::UInt8,
        Repr::U16 => DataType::UInt16,
        Repr::U32 => DataType::UInt32,
        Repr::U64 => DataType::UInt64,
        Repr::I128 => DataType::Decimal128(38, 0),
        Repr::F32 => DataType::Float32,
        Repr::F64 => DataType::Float64,
    }
}

impl LoweredAggregate {
    /// The output columns, over a pipeline whose input is the emitted table.
    pub fn finish(&self, lowering: &mut Lowering<'_>, schema: &SchemaRef) -> Result<Scope, Reason> {
        let table = lowering.scope();
        let mut results = Vec::new();
        for (index, data_type) in self.keys.iter().enumerate() {
            let mut value = table.column(index)?;
            if *data_type == DataType::Boolean {
                let node = lowering.graph.convert(value.node, Repr::Bool, Overflow::Wrap);
                value.node = node.map_err(|e| graph(schema.field(index).name(), &e))?;
            }
            value.data_type = data_type.clone();
            results.push((schema.field(index).name().clone(), Ok(value), data_type.clone()));
        }
        for (index, finish) in self.finals.iter().enumerate() {
            let field = schema.field(self.keys.len() + index);
            let accumulator = |at: usize| table.column(self.keys.len() + at).map(|value| value.node);
            let refuse = |e| graph(field.name(), &e);
            let node = match finish {
                Final::Ranked(at, id) => {
                    let data_type = field.data_type().clone();
                    let value = Value { node: accumulator(*at)?, data_type: data_type.clone(), dictionary: Some(*id) };
                    results.push((field.name().clone(), Ok(value), data_type));
                    continue;
                }
                Final::Is(at) => accumulator(*at)?,
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
                    g.check(quotient, Range::new(-limit, limit), Overflow::Fail).map_err(refuse)?
                }
            };
            let data_type = field.data_type().clone();
            let repr = lowering.graph.ty(node).repr;
            if plain_repr(&data_type) != Some(repr) {
                return Err(Reason::AggregateUnsupported {
                    aggregate: field.name().clone(),
                    why: format!("it gives {data_type}, and the device {repr:?}"),
                });
            }
            results.push((
                field.name().clone(),
                Ok(Value { node, data_type: data_type.clone(), dictionary: None }),
                data_type,
            ));
        }
        Ok(Scope::new(results))
    }
}

fn graph(name: &str, error: &millpond_kernels::codegen::ir::GraphError) -> Reason {
    Reason::AggregateUnsupported { aggregate: name.to_string(), why: error.to_string() }
}
