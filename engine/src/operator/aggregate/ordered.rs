//! Aggregates over the ordered rows of a group: nth_value, array_agg, string_agg.
//!
//!   rows by (keys, ORDER BY)      a 9 │ a 4 │ a 1 │ b 7 │ b 2
//!   groups                        a: first row 0, 3 rows          b: first row 3, 2 rows
//!   nth_value(x, 2)               x[0 + 1] = 4                    x[3 + 1] = 2
//!   array_agg(x)                  rows 0 to 2 of x                rows 3 and 4, for the host (program/lists.rs)
//!   string_agg(x, '-')            of the text -9-4-1-7-2 the bytes 1 to 6, and 7 to 10
//!
//! NULL    counts for nth_value and array_agg, unless they ignore it; string_agg skips it. Without a row there is no
//!         result.
//! Order   without ORDER BY that of the input: for one partition its own. Ties are in any order.
//! DISTINCT  over the groups of another aggregation, which have no order except that of the argument.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use millpond_kernels::abi::MAX_EXTENT_ROWS;
use millpond_kernels::codegen::ir::{
    Accumulator, Aggregate, AggregateSpec, Arithmetic, Comparison, Graph, GraphError, Literal as Slot, MAX_TEXT_BYTES,
    NodeId, Overflow, Range, Repr, Test, TextFunction, Ty,
};

use crate::column::{DictionaryId, is_characters, is_nested};
use crate::error::reason::Reason;
use crate::expr::{LookupTable, Lowering, Scope, Value, refused, sorted_so};
use crate::operator::aggregate::call::{Call, Ordered, unsupported};
use crate::operator::aggregate::ranked::{present, value_at};
use crate::operator::aggregate::ranks::{Becomes, Ranked, RankedBy, looked_up_at};

/// Result from a column in its order, by the first row of each group and its number of rows or values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InOrder {
    ordered: Ordered,
    /// Accumulators: the group's first row, its number of rows that take part, and its number of rows.
    start: usize,
    count: usize,
    rows: usize,
    /// Index of the ordered column.
    column: usize,
    /// Dictionary of the result: of lists, or of the values' codes.
    pub dictionary: Option<DictionaryId>,
}

/// The accumulators of an ordered aggregate; adds the column to be ordered to `ranked`.
pub(crate) fn lower(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    spec: &mut AggregateSpec,
    ranked: &mut Vec<Ranked>,
    (call, ordered, result): (&Call, &Ordered, &DataType),
    filter: Option<NodeId>,
) -> Result<InOrder, Reason> {
    let function = call.function.as_ref();
    let argument = call.only_argument()?;
    let value = lowering.lower(argument, scope)?;
    let mut order = Vec::new();
    let column = match ordered {
        Ordered::Text(between) => {
            if !is_characters(&value.data_type) || *result != DataType::LargeUtf8 {
                return Err(unsupported(function, format!("it gives {result} for {}", value.data_type)));
            }
            Column::of_text(lowering, scope, argument, &value, between, filter)?
        }
        Ordered::List => {
            let items = match result {
                DataType::List(item) => item.data_type() == &value.data_type,
                _ => false,
            };
            if !items {
                return Err(unsupported(function, format!("it gives {result} for {}", value.data_type)));
            }
            if is_nested(&value.data_type) {
                return Err(unsupported(function, "lists of nested items do not leave the device as one"));
            }
            let among = match function.ignore_nulls() && lowering.graph.ty(value.node).nullable {
                true => {
                    let valid = lowering.graph.test(Test::IsNotNull, value.node).map_err(|e| refused(argument, &e))?;
                    Some(match filter {
                        Some(filter) => lowering.graph.and(filter, valid).map_err(|e| refused(argument, &e))?,
                        None => valid,
                    })
                }
                false => filter,
            };
            let becomes = Becomes::Items(DictionaryId::of_lists(Arc::as_ptr(&call.function).addr()));
            Column { value, becomes, counted: Aggregate::CountStar, among }
        }
        Ordered::Nth(_) => {
            if *result != value.data_type {
                return Err(unsupported(function, format!("it gives {result} for {}", value.data_type)));
            }
            Column { value, becomes: Becomes::Values, counted: Aggregate::CountStar, among: filter }
        }
    };
    // Rows that do not take part sort last; texts of such rows have no bytes, wherever they are.
    if let (Some(among), true) = (column.among, column.becomes != Becomes::Text) {
        let graph = &mut lowering.graph;
        let (here, elsewhere) = (graph.integer(0, Repr::U8), graph.integer(1, Repr::U8));
        let node = graph.case(vec![(among, here)], Some(elsewhere)).map_err(|e| refused(argument, &e))?;
        order.push(RankedBy { node, dictionary: None, descending: false, nulls_first: false });
    }
    for key in &call.order {
        let of = lowering.lower(&key.expr, scope)?;
        sorted_so(key, &of.data_type)?;
        let (descending, nulls_first) = (key.options.descending, key.options.nulls_first);
        order.push(RankedBy { node: of.node, dictionary: of.dictionary, descending, nulls_first });
    }
    let info = lowering.info("item", &column.value);
    let own = Ranked { value: column.value.node, info, order, becomes: column.becomes };
    let at = ranked.iter().position(|known| *known == own).unwrap_or_else(|| {
        ranked.push(own);
        ranked.len() - 1
    });
    let row = lowering.graph.source_row();
    let mut add = |aggregate, filter| spec.accumulate(&lowering.graph, Accumulator { aggregate, filter });
    let start = add(Aggregate::Min(row), None);
    let count = add(column.counted, column.among);
    let rows = add(Aggregate::CountStar, None);
    let dictionary = match column.becomes {
        Becomes::Items(id) => Some(id),
        _ => column.value.dictionary,
    };
    Ok(InOrder { ordered: ordered.clone(), start, count, rows, column: at, dictionary })
}

/// A column to be ordered.
struct Column {
    value: Value,
    becomes: Becomes,
    /// Aggregate that counts the rows that take part, and the condition for these rows.
    counted: Aggregate,
    among: Option<NodeId>,
}

impl Column {
    /// Each text with the separator before it.
    fn of_text(
        lowering: &mut Lowering<'_>,
        scope: &Scope,
        argument: &Arc<dyn PhysicalExpr>,
        value: &Value,
        between: &str,
        filter: Option<NodeId>,
    ) -> Result<Self, Reason> {
        let text = lowering.as_text(value).map_err(|refusal| refusal.of(argument))?;
        let mut node = behind(lowering, scope, (argument, text), between)?;
        if let Some(filter) = filter {
            node = lowering.graph.case(vec![(filter, node)], None).map_err(|e| refused(argument, &e))?;
        }
        let value = Value { node, data_type: DataType::LargeUtf8, dictionary: None };
        Ok(Self { value, becomes: Becomes::Text, counted: Aggregate::Count(text), among: filter })
    }
}

/// A text with the separator before it; NULL stays NULL.
pub(crate) fn behind(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    (argument, text): (&Arc<dyn PhysicalExpr>, NodeId),
    between: &str,
) -> Result<NodeId, Reason> {
    if between.is_empty() {
        return Ok(text);
    }
    let between: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::from(between)));
    let between_value = lowering.lower(&between, scope)?;
    let between = lowering.as_text(&between_value).map_err(|refusal| refusal.of(&between))?;
    let both = lowering.graph.text(TextFunction::Concatenate { strict: true }, &[between, text]);
    both.map_err(|e| refused(argument, &e))
}

impl InOrder {
    /// The result, from the accumulators of the groups. `types` are those of the ordered columns.
    pub(crate) fn finish(
        &self,
        lowering: &mut Lowering<'_>,
        ranked: &[Ranked],
        types: &[Ty],
        accumulator: &dyn Fn(usize) -> Result<NodeId, Reason>,
    ) -> Result<Result<NodeId, GraphError>, Reason> {
        let (start, count, rows) = (accumulator(self.start)?, accumulator(self.count)?, accumulator(self.rows)?);
        let Some(ty) = types.get(self.column).copied() else {
            return Err(Reason::NodeUnsupported { node: "an ordered aggregate without its column".into() });
        };
        let first = looked_up_at(ranked, self.column);
        let mut table = |offset: usize, ty| lowering.lookup_table(LookupTable::Ranked { column: first + offset, ty });
        Ok(match &self.ordered {
            Ordered::Nth(n) => {
                let table = table(0, ty);
                let place = if *n > 0 { n - 1 } else { n.abs() };
                let place = lowering.slot(Ty::new(Repr::I64).within(0, i64::MAX.into()), Slot::Int(place.into()));
                nth(&mut lowering.graph, (start, count), (place, *n > 0), (table, ty))
            }
            Ordered::List => list(&mut lowering.graph, start, count),
            Ordered::Text(between) => {
                let ends = Ty::new(Repr::U64);
                let (whole, ends) = (table(0, Ty::new(Repr::Text)), (table(1, ends), ends));
                let between = Slot::Int(between.len() as i128);
                let between = lowering.slot(Ty::new(Repr::I64).within(0, MAX_TEXT_BYTES.into()), between);
                text(&mut lowering.graph, (start, count, rows), whole, ends, between)
            }
        })
    }
}

/// The value `place` rows after the first, or before the end.
fn nth(
    graph: &mut Graph,
    (start, count): (NodeId, NodeId),
    (place, from_start): (NodeId, bool),
    (table, ty): (u32, Ty),
) -> Result<NodeId, GraphError> {
    let count = present(graph, count)?;
    let (is_there, offset) = match from_start {
        true => (graph.compare(Comparison::Less, place, count)?, place),
        false => {
            let offset = graph.arithmetic(Arithmetic::Subtract, count, place, Overflow::Wrap)?;
            (graph.compare(Comparison::LessEqual, place, count)?, offset)
        }
    };
    let offset = graph.case(vec![(is_there, offset)], None)?;
    let offset = graph.assume(offset, Range { low: 0, high: MAX_EXTENT_ROWS.into() });
    value_at(graph, start, offset, table, ty)
}

/// The word of a list.
fn list(graph: &mut Graph, start: NodeId, count: NodeId) -> Result<NodeId, GraphError> {
    let count = present(graph, count)?;
    let (start, count) =
        (graph.convert(start, Repr::U64, Overflow::Wrap)?, graph.convert(count, Repr::U64, Overflow::Wrap)?);
    let half = graph.integer(1 << 32, Repr::U64);
    let high = graph.arithmetic(Arithmetic::Multiply, start, half, Overflow::Wrap)?;
    let word = graph.arithmetic(Arithmetic::Add, high, count, Overflow::Wrap)?;
    // Words have no known range, so that all lists have one type.
    graph.convert(word, Repr::U64, Overflow::Wrap)
}

/// The texts of a group, without the separator before the first.
fn text(
    graph: &mut Graph,
    (start, count, rows): (NodeId, NodeId, NodeId),
    whole: u32,
    (ends, ends_ty): (u32, Ty),
    between: NodeId,
) -> Result<NodeId, GraphError> {
    let one = graph.integer(1, Repr::I64);
    let zero = graph.integer(0, Repr::I64);
    let first_row = graph.convert(start, Repr::I64, Overflow::Wrap)?;
    let end_of = |graph: &mut Graph, row: NodeId| {
        let row = graph.assume(row, Range { low: 0, high: MAX_EXTENT_ROWS.into() });
        let row = graph.convert(row, Repr::U32, Overflow::Wrap)?;
        let end = graph.lookup(row, ends, ends_ty)?;
        graph.convert(end, Repr::I64, Overflow::Wrap)
    };
    // Before the first row of all there is no byte.
    let has_earlier = graph.compare(Comparison::Greater, first_row, zero)?;
    let earlier = graph.arithmetic(Arithmetic::Subtract, first_row, one, Overflow::Wrap)?;
    let earlier = graph.case(vec![(has_earlier, earlier)], None)?;
    let begin = end_of(graph, earlier)?;
    let begin = graph.coalesce(&[begin, zero])?;
    let last = graph.arithmetic(Arithmetic::Add, first_row, rows, Overflow::Wrap)?;
    let last = graph.arithmetic(Arithmetic::Subtract, last, one, Overflow::Wrap)?;
    let end = end_of(graph, last)?;
    let begin = graph.arithmetic(Arithmetic::Add, begin, between, Overflow::Wrap)?;
    // Without a text there is no separator to leave out.
    let some = graph.compare(Comparison::Greater, count, zero)?;
    let begin = graph.case(vec![(some, begin)], None)?;
    let code = graph.integer(0, Repr::U32);
    let whole = graph.lookup(code, whole, Ty::new(Repr::Text))?;
    graph.text(TextFunction::Slice, &[whole, begin, end])
}
