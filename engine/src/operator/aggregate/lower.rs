//! Aggregates, lowered in two halves: accumulation per row, and results from accumulators per group.
//!
//!   avg(l_quantity), sum(l_quantity), count(*)
//!      rows    ──►  accumulators: sum(l_quantity), count(*)              equal ones merge
//!      groups  ──►  columns: sum · 10^4 / count, sum, count
//!
//! The second half is an ordinary pipeline over the emitted table: keys, then accumulators.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{CaseExpr, Literal as LiteralExpr};
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Graph, GraphError, Literal, NodeId, OrderKey, Overflow, Range,
    Repr, Rounding, Seed, SinkSpec, Test, Ty,
};

use crate::column::nested::has_least;
use crate::column::{
    ColumnInfo, DictionaryId, Form, TWO_ZEROS, has_two_zeros, is_nested, is_wide, scalar_integer, value_type,
};
use crate::error::reason::Reason;
use crate::expr::mended::is_checked;
use crate::expr::{Dictionary, Lowering, Scope, Value, interval, refused};
use crate::operator::aggregate::call::{Call, Sketch, is_ranked, unsupported};
use crate::operator::aggregate::describe::{Aggregation, Number, Variant};
use crate::operator::aggregate::finish::{Final, LoweredAggregate};
use crate::operator::aggregate::node::DeviceAggregateExec;
use crate::operator::aggregate::run::AggregateRun;
use crate::operator::aggregate::{finish, moments, ordered, ranked, sketch};
use crate::program::contract::{Sink, SinkRun, Stage, never_alone};
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;

/// Lowers an aggregation over `scope`.
pub fn lower(lowering: &mut Lowering<'_>, scope: &Scope, of: &Aggregation) -> Result<LoweredAggregate, Reason> {
    let schema = &of.schema;
    let number = number(lowering, scope, of)?;
    let Keys { nodes: keys, mut emitted, types: key_types } = keys(lowering, scope, of, number)?;
    let row_filters = row_filters(lowering, scope, of, number)?;
    let seed = seed(lowering, of, &keys, number)?;
    let bitwise = (of.keys.len() - of.arguments..of.keys.len()).map(|at| at as u32).collect();
    let mut spec = AggregateSpec { seed, bitwise, ..AggregateSpec::new(keys) };
    let mut finals = Vec::new();
    let mut ranked = Vec::new();
    let first_result = of.keys.len() + usize::from(of.has_number());
    for (index, call) in of.calls.iter().enumerate() {
        let mut filter = match &call.among {
            Some(among) => Some(is_among(lowering, number, among)?),
            None => None,
        };
        if let Some(own) = &call.filter {
            let own_node = lowering.predicate(own, scope)?;
            filter = Some(match filter {
                Some(filter) => lowering.graph.and(filter, own_node).map_err(|e| refused(own, &e))?,
                None => own_node,
            });
        }
        let result = schema.field(first_result + index).data_type().clone();
        let finish = match call.taken {
            true => taken(lowering, scope, &mut spec, call, filter)?,
            false if let Some(ordered) = &call.ordered => {
                let of = (call, ordered, &result);
                Final::InOrder(ordered::lower(lowering, scope, &mut spec, &mut ranked, of, filter)?)
            }
            false if is_ranked(call.function.fun().name()) => {
                Final::Placed(ranked::lower(lowering, scope, &mut spec, &mut ranked, (call, &result), filter)?)
            }
            false => one(lowering, scope, &mut spec, call, filter, &result, of.exact_floats)?,
        };
        finals.push(finish);
    }

    let types = spec.output_types(&lowering.graph);
    for (index, ty) in types.iter().enumerate().skip(spec.keys.len()) {
        let name = format!("accumulator {}", index - spec.keys.len());
        let data_type = lane_type(ty.repr);
        emitted.push(ColumnInfo::new(name, data_type, Form::Plain(*ty)));
    }
    let variants = of.variants.len() as u32;
    let mut lowered = LoweredAggregate {
        spec,
        row_filters,
        variants,
        ranked_types: ranked.iter().map(|of| lowering.graph.ty(of.value)).collect(),
        ranked,
        emitted,
        columns: vec![],
        keys: key_types,
        number: of.has_number().then(|| of.number.clone()),
        finals,
    };

    // The results' types are found by finishing in a temporary graph.
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

/// Keys of an aggregation.
struct Keys {
    nodes: Vec<NodeId>,
    /// Their columns in the emitted table.
    emitted: Vec<ColumnInfo>,
    /// Types of the query's own keys.
    types: Vec<DataType>,
}

/// Lowers the keys, and the number of the variant if it is one.
fn keys(lowering: &mut Lowering<'_>, scope: &Scope, of: &Aggregation, number: Option<NodeId>) -> Result<Keys, Reason> {
    let mut keys = Vec::new();
    let mut emitted = Vec::new();
    let mut types = Vec::new();
    for (index, (expr, name)) in of.keys.iter().enumerate() {
        let value = lowering.lower(expr, scope)?;
        if has_two_zeros(&value.data_type) && index < of.keys.len() - of.arguments {
            return Err(crate::expr::unsupported(expr, TWO_ZEROS));
        }
        let ty = lowering.graph.ty(value.node);
        types.push(value.data_type.clone());
        // A boolean key is the number 0 or 1.
        let mut node = match ty.repr {
            Repr::Bool => {
                lowering.graph.convert(value.node, Repr::U8, Overflow::Wrap).map_err(|e| refused(expr, &e))?
            }
            _ => value.node,
        };
        // It is NULL in some variants.
        let present = |variant: &Variant| !variant.absent.get(index).copied().unwrap_or(false);
        if !of.variants.iter().all(present) {
            let present: Vec<u32> = (0..).zip(&of.variants).filter(|(_, v)| present(v)).map(|(at, _)| at).collect();
            let among = is_among(lowering, number, &present)?;
            node = lowering.graph.case(vec![(among, node)], None).map_err(|e| refused(expr, &e))?;
        }
        keys.push(node);
        let mut info = lowering.info(name, &Value { node, ..value });
        if ty.repr == Repr::Bool {
            info.data_type = DataType::UInt8;
        }
        emitted.push(info);
    }
    if let (true, Some(node)) = (of.has_number(), number) {
        let node = match of.number {
            Number::ReadIds { variants, .. } => {
                let set = lowering.graph.divide_constant(node, variants as i128, Rounding::Truncate);
                set.map_err(|e| finish::graph("grouping_id", &e))?
            }
            _ => node,
        };
        keys.push(node);
        emitted.push(lowering.info("variant", &Value { node, data_type: DataType::UInt32, dictionary: None }));
    }
    Ok(Keys { nodes: keys, emitted, types })
}

/// One filter for all launches: for each variant with a condition of its own, another variant or the condition.
fn row_filters(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    of: &Aggregation,
    number: Option<NodeId>,
) -> Result<Vec<NodeId>, Reason> {
    let mut row_filters = Vec::new();
    for (at, variant) in (0..).zip(&of.variants) {
        if let Some(filter) = &variant.filter {
            let others: Vec<u32> = (0..of.variants.len() as u32).filter(|other| *other != at).collect();
            let other = is_among(lowering, number, &others)?;
            let holds = lowering.predicate(filter, scope)?;
            let holds = lowering.graph.case(vec![(other, other)], Some(holds)).map_err(|e| refused(filter, &e))?;
            row_filters.push(holds);
        }
    }
    Ok(row_filters)
}

impl LoweredAggregate {
    /// The group keys by which the rows are sorted, if something is ranked.
    pub fn sort_keys(&self, lowering: &mut Lowering<'_>) -> Result<Vec<NodeId>, Reason> {
        let key = |node: &NodeId| ranked::key(&mut lowering.graph, *node).map_err(|e| finish::graph("a key", &e));
        self.spec.keys.iter().map(key).collect()
    }
}

/// The group of the empty grouping set, which exists without rows, if this aggregation has that set.
fn seed(
    lowering: &mut Lowering<'_>,
    of: &Aggregation,
    keys: &[NodeId],
    number: Option<NodeId>,
) -> Result<Option<Seed>, Reason> {
    let group_keys = of.keys.len() - of.arguments;
    let (Some(number), true) = (number, group_keys > 0) else { return Ok(None) };
    let is_empty = |variant: &Variant| variant.absent.iter().all(|absent| *absent);
    let empty: Vec<u32> = (0..).zip(&of.variants).filter(|(_, v)| is_empty(v)).map(|(at, _)| at).collect();
    if empty.is_empty() || matches!(of.number, Number::Read(_) | Number::ReadIds { .. }) {
        return Ok(None);
    }
    let when = is_among(lowering, Some(number), &empty)?;
    let graph = &mut lowering.graph;
    let null = |(at, key): (usize, &NodeId)| if at < of.keys.len() { graph.null_of(graph.ty(*key)) } else { *key };
    Ok(Some(Seed { when, keys: keys.iter().enumerate().map(null).collect() }))
}

/// The number of the current row's variant, if it is used.
fn number(lowering: &mut Lowering<'_>, scope: &Scope, of: &Aggregation) -> Result<Option<NodeId>, Reason> {
    Ok(match of.number {
        Number::None => None,
        Number::Read(column) | Number::ReadIds { column, .. } => Some(scope.column(column)?.node),
        Number::Kept | Number::Ids(_) => Some(variant(lowering, of)),
    })
}

/// The number of the launch.
pub fn variant(lowering: &mut Lowering<'_>, of: &Aggregation) -> NodeId {
    lowering.slot(Ty::new(Repr::U32).within(0, of.variants.len() as i128 - 1), Literal::Variant)
}

/// A number of the current row that is greater than those of all earlier rows (`U64`).
fn arrival(lowering: &mut Lowering<'_>) -> Result<NodeId, GraphError> {
    let extent = lowering.slot(Ty::new(Repr::U64).within(0, u32::MAX.into()), Literal::Extent);
    let row = lowering.graph.source_row();
    let row = lowering.graph.convert(row, Repr::U64, Overflow::Wrap)?;
    let rows = lowering.graph.integer(1 << 32, Repr::U64);
    let before = lowering.graph.arithmetic(Arithmetic::Multiply, extent, rows, Overflow::Wrap)?;
    lowering.graph.arithmetic(Arithmetic::Add, before, row, Overflow::Wrap)
}

/// Whether the current row's variant is one of these.
fn is_among(lowering: &mut Lowering<'_>, number: Option<NodeId>, variants: &[u32]) -> Result<NodeId, Reason> {
    let graph = &mut lowering.graph;
    let (Some(number), false) = (number, variants.is_empty()) else { return Ok(graph.boolean(false)) };
    let list = variants.iter().map(|variant| graph.integer((*variant).into(), Repr::U32)).collect();
    graph.in_list(number, list, false).map_err(|e| finish::graph("a grouping set", &e))
}

/// A result of another aggregation, taken from the one group that has it.
fn taken(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    let [argument] = call.arguments.as_slice() else {
        return Err(unsupported(&call.function, "it has more than one result"));
    };
    let value = lowering.carried(argument, scope)?;
    let mut node = value.node;
    let truth = lowering.graph.ty(node).repr == Repr::Bool;
    if truth {
        node = lowering.graph.convert(node, Repr::U8, Overflow::Wrap).map_err(|e| refused(argument, &e))?;
    }
    if lowering.graph.ty(node).repr == Repr::Text {
        return Ok(Final::Is(first_text(spec, &lowering.graph, node, false, filter)));
    }
    let at = spec.accumulate(&lowering.graph, Accumulator { aggregate: Aggregate::Min(node), filter });
    Ok(match (value.dictionary, truth, call.function.fun().name()) {
        (Some(id), ..) => Final::Ranked(at, id),
        (None, true, _) => Final::Truth(at),
        // Without any row there is no group to count in: the count is 0.
        (None, false, "count" | "regr_count") => Final::Counted(at),
        (None, false, _) => Final::Is(at),
    })
}

/// The accumulators of one aggregate function.
fn one(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
    result: &DataType,
    exact: bool,
) -> Result<Final, Reason> {
    let function = call.function.as_ref();
    let name = function.fun().name();
    let moments = matches!(name, "var" | "var_pop" | "stddev" | "stddev_pop" | "covar_pop" | "covar_samp" | "corr");
    if exact && (moments || name.starts_with("regr_")) {
        let why = "its last bits depend on the order of the rows, which millpond.deterministic_floats rules out";
        return Err(unsupported(function, why));
    }
    if let Some(finish) = with_own_arguments(lowering, scope, spec, call, filter)? {
        return Ok(finish);
    }
    let argument = call.only_argument()?;
    let value = lowering.lower(argument, scope)?;
    if let Some(id) = value.dictionary {
        return least_code(lowering, spec, function, (argument, &value, id), filter);
    }
    let repr = lowering.graph.ty(value.node).repr;
    if repr == Repr::Text {
        return least_text(spec, &lowering.graph, function, value.node, filter);
    }
    let checks = is_checked(function.fun()) && !range_of_literals(argument).is_some_and(is_small);
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    match name {
        "min" | "max" | "bool_and" | "bool_or" | "any_value" if repr == Repr::Bool => {
            let number = lowering.graph.convert(value.node, Repr::U8, Overflow::Wrap);
            let number = number.map_err(|e| refused(argument, &e))?;
            let least = matches!(name, "min" | "bool_and" | "any_value");
            let aggregate = if least { Aggregate::Min(number) } else { Aggregate::Max(number) };
            Ok(Final::Truth(spec.accumulate(&lowering.graph, Accumulator { aggregate, filter })))
        }
        "min" | "max" => {
            let least = name == "min";
            Ok(Final::Is(add(if least { Aggregate::Min(value.node) } else { Aggregate::Max(value.node) })))
        }
        // Any value is correct, so the least is used.
        "any_value" => Ok(Final::Is(add(Aggregate::Min(value.node)))),
        "bit_and" | "bit_or" | "bit_xor" if repr.is_integer() && repr != Repr::I128 => Ok(Final::Is(add(match name {
            "bit_and" => Aggregate::BitAnd(value.node),
            "bit_or" => Aggregate::BitOr(value.node),
            _ => Aggregate::BitXor(value.node),
        }))),
        "sum" if let DataType::Interval(unit) = value_type(&value.data_type) => {
            let parts = interval::parts(&mut lowering.graph, value.node, *unit).map_err(|e| refused(argument, &e))?;
            let sum = |part| Accumulator { aggregate: Aggregate::Sum(part), filter };
            let sums = parts.into_iter().map(|part| spec.accumulate(&lowering.graph, sum(part)));
            Ok(Final::Interval(*unit, sums.collect()))
        }
        "sum" if checks && !sum_fits(lowering.graph.ty(value.node)) => {
            let wide = lowering.graph.convert(value.node, Repr::I128, Overflow::Wrap);
            let wide = wide.map_err(|e| refused(argument, &e))?;
            let aggregate = Aggregate::Sum(wide);
            Ok(Final::Narrowed(spec.accumulate(&lowering.graph, Accumulator { aggregate, filter })))
        }
        "sum" => {
            let aggregate = match checks {
                true => Aggregate::SumChecked(value.node),
                false if exact && repr.is_float() => Aggregate::SumExact(value.node),
                false => Aggregate::Sum(value.node),
            };
            let sum = add(aggregate);
            match is_sum_of(result, &value.data_type, repr) {
                true => Ok(Final::Converted(sum)),
                false => Err(unsupported(function, format!("it gives {result} for {}", value.data_type))),
            }
        }
        "avg" => average(lowering, spec, function, &value, filter, (result, exact)),
        "var" | "var_pop" | "stddev" | "stddev_pop" => {
            Ok(Final::Moments(moments::single(lowering, spec, function, &value, filter)?))
        }
        _ => Err(unsupported(function, "this function is not lowered")),
    }
}

/// Whether DataFusion's type `result` is that of the device's sums of `data_type`.
fn is_sum_of(result: &DataType, data_type: &DataType, repr: Repr) -> bool {
    match result {
        DataType::Int64 => repr.is_integer() && repr.is_signed() && repr != Repr::I128,
        DataType::UInt64 => repr.is_integer() && !repr.is_signed(),
        DataType::Float64 => repr.is_float(),
        DataType::Decimal128(_, s) => matches!(data_type, DataType::Decimal128(_, of) if of == s),
        DataType::Decimal64(_, s) => matches!(data_type, DataType::Decimal64(_, of) if of == s),
        DataType::Decimal32(_, s) => matches!(data_type, DataType::Decimal32(_, of) if of == s),
        DataType::Duration(_) => result == data_type,
        _ => false,
    }
}

/// The accumulators of a function that does not take the value of one argument: counts, first rows, pairs, sketches.
fn with_own_arguments(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<Option<Final>, Reason> {
    match call.sketch {
        Some(Sketch::Longest) => return Ok(Some(Final::Is(sketch::longest(lowering, scope, spec, call, filter)?))),
        Some(Sketch::Estimate) => {
            return Ok(Some(Final::Estimate(sketch::estimate(lowering, scope, spec, call, filter)?)));
        }
        None => {}
    }
    let (name, arguments) = (call.function.fun().name(), &call.arguments);
    Ok(Some(match name {
        // The counted values are distinct already.
        "approx_distinct" => match count(lowering, scope, spec, arguments, filter)? {
            Final::Is(at) => Final::Converted(at),
            other => other,
        },
        "count" => count(lowering, scope, spec, arguments, filter)?,
        "first_value" | "last_value" => first(lowering, scope, spec, call, filter)?,
        "regr_count" => Final::Converted(moments::pair_count(lowering, scope, spec, call, filter)?),
        _ if matches!(name, "covar_pop" | "covar_samp" | "corr") || name.starts_with("regr_") => {
            Final::Moments(moments::pair(lowering, scope, spec, call, filter)?)
        }
        _ if name.starts_with("approx_") => {
            return Err(unsupported(
                &call.function,
                "the centroids of DataFusion's digest have weights of their own there, so that its answer depends on the order of \
                 the rows",
            ));
        }
        _ => return Ok(None),
    }))
}

/// MIN and MAX of a column with a dictionary: the least string or list has the least rank.
fn least_code(
    lowering: &mut Lowering<'_>,
    spec: &mut AggregateSpec,
    function: &AggregateFunctionExpr,
    (argument, value, id): (&Arc<dyn PhysicalExpr>, &Value, DictionaryId),
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    if is_nested(&value.data_type) && !has_least(&value.data_type) {
        return Err(unsupported(function, "it has no device form over structures, maps and lists of nested items"));
    }
    let rank = lowering.kept_rank(value, id).map_err(|refusal| refusal.of(argument))?;
    let sorted = lowering.dictionaries.add(Dictionary::Sorted { of: id, data_type: value.data_type.clone() });
    let aggregate = match function.fun().name() {
        "min" | "any_value" => Aggregate::Min(rank.node),
        "max" => Aggregate::Max(rank.node),
        _ if is_wide(&value.data_type) => {
            return Err(unsupported(
                function,
                "decimals of 256 bits have a least and a greatest value on the device, no more",
            ));
        }
        _ => return Err(unsupported(function, "strings have a least and a greatest value on the device, no more")),
    };
    let at = spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    Ok(Final::Ranked(at, sorted))
}

/// True for numbers so small that 64 bits hold the sum of some 2^32 of them.
fn sum_fits(of: Ty) -> bool {
    of.bounds().is_some_and(|Range { low, high }| low.unsigned_abs().max(high.unsigned_abs()) <= 1 << 31)
}

/// True for numbers so small that no table has enough rows for their sum to exceed 64 bits.
fn is_small(Range { low, high }: Range) -> bool {
    low.unsigned_abs().max(high.unsigned_abs()) <= 1 << 20
}

/// The range of a CASE whose results are constants: if a dictionary decides the CASE, its values have no range.
fn range_of_literals(expr: &Arc<dyn PhysicalExpr>) -> Option<Range> {
    if let Some(literal) = expr.downcast_ref::<LiteralExpr>() {
        let value = scalar_integer(literal.value())?;
        return Some(Range::new(value, value));
    }
    let case = expr.downcast_ref::<CaseExpr>()?;
    let results = case.when_then_expr().iter().map(|(_, result)| result).chain(case.else_expr());
    results.map(range_of_literals).reduce(|a, b| Some(a?.union(b?)))?
}

/// COUNT: of rows, of rows where an argument is valid, of rows where all are.
fn count(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    arguments: &[Arc<dyn PhysicalExpr>],
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    let constant = |e: &Arc<dyn PhysicalExpr>| e.downcast_ref::<LiteralExpr>().is_some_and(|l| !l.value().is_null());
    let arguments: Vec<_> = arguments.iter().filter(|e| !constant(e)).collect();
    let mut filter = filter;
    let aggregate = match arguments.as_slice() {
        [] => Aggregate::CountStar,
        [one] => {
            let node = lowering.lower(one, scope)?.node;
            let graph = &mut lowering.graph;
            if filter.is_none() && !graph.ty(node).nullable && graph.can_fail(node) {
                // All rows count, and the value is computed only for its errors.
                let all = graph.boolean(true);
                filter = Some(graph.with_errors_of(all, node).map_err(|e| refused(one, &e))?);
            }
            Aggregate::Count(node)
        }
        several => {
            for argument in several {
                let node = lowering.lower(argument, scope)?.node;
                let graph = &mut lowering.graph;
                let valid = graph.test(Test::IsNotNull, node).map_err(|e| refused(argument, &e))?;
                filter = Some(match filter {
                    Some(filter) => graph.and(filter, valid).map_err(|e| refused(argument, &e))?,
                    None => valid,
                });
            }
            Aggregate::CountStar
        }
    };
    Ok(Final::Is(spec.accumulate(&lowering.graph, Accumulator { aggregate, filter })))
}

/// FIRST_VALUE and LAST_VALUE in an order; the last value is the first in the opposite order. Without ORDER BY rows are
/// in the order of input: for one partition its own, for several any.
fn first(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    call: &Call,
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    let function = call.function.as_ref();
    let argument = call.only_argument()?;
    let last = function.fun().name() == "last_value";
    let mut order = Vec::new();
    for key in function.order_bys() {
        let node = lowering.sort_key(key, scope)?.node;
        let (descending, nulls_first) = (key.options.descending != last, key.options.nulls_first != last);
        order.push(OrderKey { node, descending, nulls_first });
    }
    if order.is_empty() {
        let node = arrival(lowering).map_err(|e| unsupported(function, e.to_string()))?;
        order.push(OrderKey { node, descending: last, nulls_first: false });
    }
    let value = lowering.lower(argument, scope)?;
    let mut node = value.node;
    let truth = lowering.graph.ty(node).repr == Repr::Bool;
    if truth {
        node = lowering.graph.convert(node, Repr::U8, Overflow::Wrap).map_err(|e| refused(argument, &e))?;
    }
    let aggregate =
        Aggregate::First { of: node, order: order_number(spec, order), skip_nulls: function.ignore_nulls() };
    let at = spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    Ok(match value.dictionary {
        Some(id) => Final::Ranked(at, id),
        None if truth => Final::Truth(at),
        None => Final::Is(at),
    })
}

/// The number of an order; equal orders share it.
fn order_number(spec: &mut AggregateSpec, order: Vec<OrderKey>) -> u32 {
    let number = spec.orders.iter().position(|known| *known == order).unwrap_or_else(|| {
        spec.orders.push(order);
        spec.orders.len() - 1
    });
    number as u32
}

/// MIN and MAX of texts without codes: the first text in the order of their bytes.
fn least_text(
    spec: &mut AggregateSpec,
    graph: &Graph,
    function: &AggregateFunctionExpr,
    node: NodeId,
    filter: Option<NodeId>,
) -> Result<Final, Reason> {
    let descending = match function.fun().name() {
        "min" | "any_value" => false,
        "max" => true,
        _ => return Err(unsupported(function, "strings have a least and a greatest value on the device, no more")),
    };
    Ok(Final::Is(first_text(spec, graph, node, descending, filter)))
}

fn first_text(
    spec: &mut AggregateSpec,
    graph: &Graph,
    node: NodeId,
    descending: bool,
    filter: Option<NodeId>,
) -> usize {
    let order = order_number(spec, vec![OrderKey { node, descending, nulls_first: false }]);
    spec.accumulate(graph, Accumulator { aggregate: Aggregate::First { of: node, order, skip_nulls: true }, filter })
}

fn average(
    lowering: &mut Lowering<'_>,
    spec: &mut AggregateSpec,
    function: &AggregateFunctionExpr,
    value: &Value,
    filter: Option<NodeId>,
    (result, exact): (&DataType, bool),
) -> Result<Final, Reason> {
    let mut node = value.node;
    let decimals = match (&value.data_type, result) {
        (DataType::Decimal128(_, from), DataType::Decimal128(precision, to))
        | (DataType::Decimal64(_, from), DataType::Decimal64(precision, to))
        | (DataType::Decimal32(_, from), DataType::Decimal32(precision, to))
            if to >= from =>
        {
            node = lowering
                .graph
                .convert(node, Repr::I128, Overflow::Wrap)
                .map_err(|e| unsupported(function, e.to_string()))?;
            Some((to - from, *precision))
        }
        _ => None,
    };
    // Values so small that their sum never needs 128 bits need no check, and share the sum of SUM.
    let small = |range: Range| range.high.unsigned_abs().max(range.low.unsigned_abs()) < 1 << 80;
    let fits = lowering.graph.ty(node).range.is_some_and(small);
    let mut add = |aggregate| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    let count = add(Aggregate::Count(value.node));
    match (&value.data_type, result, decimals) {
        (DataType::Float32 | DataType::Float64, DataType::Float64, _) => {
            let sum = add(if exact { Aggregate::SumExact(node) } else { Aggregate::Sum(node) });
            Ok(Final::FloatAverage { sum, count })
        }
        (DataType::Duration(_), DataType::Duration(_), _) if value.data_type == *result => {
            Ok(Final::WholeAverage { sum: add(Aggregate::Sum(node)), count })
        }
        // DataFusion sums in a wider type than its results have: a total beyond 128 bits is left to the CPU.
        (_, _, Some((digits, precision))) => {
            let sum = if fits { Aggregate::Sum(node) } else { Aggregate::SumChecked(node) };
            Ok(Final::DecimalAverage { sum: add(sum), count, digits, precision })
        }
        (from, to, None) => Err(unsupported(function, format!("it gives {to} for {from}"))),
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
        Repr::Text => DataType::Utf8View,
    }
}

/// Sink into one table. The segment that reads its groups begins by finishing them.
#[derive(Debug)]
pub(crate) struct AggregateSink {
    pub node: Arc<DeviceAggregateExec>,
    /// Rows are in the order of their groups, with lookup values beside them.
    pub ranks: bool,
}

impl Sink for AggregateSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let input = segment.input;
        let mut lowered = segment.with_filters(|lowering, scope, filters| {
            let lowered = lower(lowering, scope, self.node.aggregation())?;
            filters.extend(&lowered.row_filters);
            Ok(lowered)
        })?;
        if self.ranks {
            let sorted = input.columns.len() - lowered.ranked.len();
            lowered.ranked_types = input.columns[sorted..].iter().map(ColumnInfo::ty).collect::<Result<_, _>>()?;
        }
        lowered.spec.rows_hint = input.rows_hint;
        let spec = SinkSpec::Aggregate(lowered.spec.clone());
        let code = |key: &ColumnInfo| match key.form {
            Form::Codes(_, id) => Some(id),
            _ => None,
        };
        let key_codes = lowered.emitted[..lowered.spec.keys.len()].iter().filter_map(code).collect();
        let (outputs, variants) = (lowered.emitted.clone(), lowered.variants);
        Ok(LoweredSink { spec, outputs, variants, beside: vec![], key_codes, details: Arc::new(lowered) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(AggregateRun::default())
    }

    fn may_take_passes(&self) -> bool {
        !self.node.aggregation().keys.is_empty()
    }
}

/// First stage of a segment that reads a table of groups.
#[derive(Debug)]
pub(crate) struct FinishGroups(pub Arc<DeviceAggregateExec>);

impl Stage for FinishGroups {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let lowered = segment.input.produced.and_then(|details| details.downcast_ref::<LoweredAggregate>());
        let lowered = lowered.ok_or_else(|| Reason::NodeUnsupported { node: "groups of no aggregation".into() })?;
        segment.scope = lowered.finish(&mut segment.piece().lowering, &self.0.schema())?;
        Ok(())
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        never_alone(self)
    }
}
