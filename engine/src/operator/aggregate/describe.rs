//! An aggregation as data: placement makes it from DataFusion's nodes, and programs lower it.
//!
//!   GROUP BY ROLLUP (a, b)                      one table, the number of the set among its keys, a launch for each set
//!       set 0 (a, b) · set 1 (a, NULL) · set 2 (NULL, NULL)
//!
//!   sum(x), count(DISTINCT y) GROUP BY k        two tables, one after the other
//!       first    (k, 0, NULL) ─► sum(x)         (k, 1, y) ─► no value: only its existence counts
//!       second   k ─► the one sum of set 0 · count(y) over the groups of set 1
//!
//!   approx_distinct(y) GROUP BY k               the same two tables, over registers instead of values (sketch.rs)
//!
//! Sets     equal keys in different sets are different groups, because the number of the set is one of the keys.
//! DISTINCT and plain aggregates, and several DISTINCT ones, share both tables: an aggregate of a plain argument adds
//! up rows, one of a distinct argument adds up groups.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::AggregateExec;

use crate::error::reason::Reason;
use crate::expr::sketch::{SketchExpr, SketchPart};
use crate::operator::aggregate::call::{Call, Sketch, is_over_distinct, is_ranked, unsupported};

/// Maximum launches over the same rows: sets, times one more than the number of distinct arguments.
const MAX_VARIANTS: usize = 128;

/// A grouping expression and its name.
pub type NamedKey = (Arc<dyn PhysicalExpr>, String);

/// An aggregation.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// Grouping expressions with their names.
    pub keys: Vec<NamedKey>,
    /// Number of the last keys that are arguments of DISTINCT, which compares floats by their bits where GROUP BY does
    /// not.
    pub arguments: usize,
    /// Launches over the same rows.
    pub variants: Vec<Variant>,
    pub number: Number,
    pub calls: Vec<Call>,
    /// Sums of floats do not depend on the order of the rows.
    pub exact_floats: bool,
    /// Keys, the number's column, results.
    pub schema: SchemaRef,
}

/// One launch over the rows.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Flags of the keys that are NULL in it.
    pub absent: Vec<bool>,
    /// Condition for its rows; all rows when `None`.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
}

/// Origin and use of a variant's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Number {
    /// Unused.
    None,
    /// From the launch; a key, and a column of the output.
    Kept,
    /// From the launch; a key, which becomes DataFusion's grouping id.
    Ids(Vec<u64>),
    /// From this column, which the first of two tables writes; not a key.
    Read(usize),
    /// Like `Read`, with `variants` variants for each grouping set; the set is a key, and becomes DataFusion's grouping
    /// id.
    ReadIds { column: usize, variants: usize, ids: Vec<u64> },
}

/// Arguments that several DISTINCT aggregates share.
struct Distinct {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    /// The calls that share them.
    calls: Vec<usize>,
}

impl Aggregation {
    /// The aggregations that replace `first`, the aggregate that reads rows, with results of `schema`: the one that
    /// reads rows and, if two are needed, the one that reads its groups. With `exact_floats` sums of floats do not
    /// depend on the order of the rows.
    pub fn of(first: &AggregateExec, schema: SchemaRef, exact_floats: bool) -> Result<Vec<Aggregation>, Reason> {
        let group_by = first.group_expr();
        let keys = group_by.expr().to_vec();
        let sets: Vec<Vec<bool>> = group_by.groups().to_vec();
        let sets = if sets.is_empty() { vec![vec![]] } else { sets };
        let ids = group_by.has_grouping_set().then(|| grouping_ids(&sets));
        let call = |(index, function): (usize, &Arc<AggregateFunctionExpr>)| {
            let filter = first.filter_expr().get(index).cloned().flatten();
            Call::of(function, filter, &first.input().schema())
        };
        let calls = first.aggr_expr().iter().enumerate().map(call).collect::<Result<Vec<Call>, Reason>>()?;
        let distinct = distinct(&calls);
        let several = |call: &&Call| call.function.is_distinct() && call.arguments.len() > 1;
        if let Some(call) = calls.iter().find(several) {
            // DataFusion reports this error itself.
            return Err(unsupported(&call.function, "DISTINCT takes one argument"));
        }
        // The order of a percentile is that of its argument.
        let ordered = |call: &&Call| {
            let own = call.percentile.is_some() || call.ordered.is_some();
            call.function.is_distinct() && !call.function.order_bys().is_empty() && !own
        };
        if let (Some(call), false) = (calls.iter().find(ordered), distinct.is_empty()) {
            return Err(unsupported(&call.function, "an ordered DISTINCT aggregate is not lowered"));
        }
        if sets.len() * (1 + distinct.len()) > MAX_VARIANTS {
            return Err(Reason::NodeUnsupported {
                node: format!("AggregateExec with {} grouping sets", sets.len() * (1 + distinct.len())),
            });
        }
        if distinct.is_empty() {
            let variants = sets.into_iter().map(|absent| Variant { absent, filter: None }).collect();
            let number = ids.map_or(Number::None, Number::Ids);
            return Ok(vec![Aggregation { keys, arguments: 0, variants, number, calls, exact_floats, schema }]);
        }
        let phases = in_two(first, schema, keys, sets, ids, calls, distinct)?;
        Ok(phases.into_iter().map(|phase| Aggregation { exact_floats, ..phase }).collect())
    }

    /// Every expression over the input.
    pub fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let keys = self.keys.iter().map(|(key, _)| Arc::clone(key));
        let filters = self.variants.iter().filter_map(|variant| variant.filter.clone());
        let order = |call: &Call| {
            let keys = if call.ordered.is_some() { &call.order } else { call.function.order_bys() };
            keys.iter().map(|key| Arc::clone(&key.expr)).collect::<Vec<_>>()
        };
        let own = |call: &Call| [call.arguments.clone(), order(call)].concat().into_iter().chain(call.filter.clone());
        let calls = self.calls.iter().filter(|call| !call.taken).flat_map(own);
        keys.chain(filters).chain(calls).collect()
    }

    /// Whether some result depends on an order of its group's rows.
    pub fn ranks(&self) -> bool {
        let ranks = |call: &Call| call.ordered.is_some() || is_ranked(call.function.fun().name());
        self.calls.iter().any(|call| !call.taken && ranks(call))
    }

    /// Whether the number of the variant is an additional key and column.
    pub fn has_number(&self) -> bool {
        !matches!(self.number, Number::None | Number::Read(_))
    }
}

/// Distinct arguments of DISTINCT aggregates. Aggregates that ignore repeated values are left out.
fn distinct(calls: &[Call]) -> Vec<Distinct> {
    let mut found: Vec<Distinct> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        if !is_over_distinct(call) {
            continue;
        }
        match found.iter_mut().find(|known| known.arguments == call.arguments && known.filter == call.filter) {
            Some(known) => known.calls.push(index),
            None => found.push(Distinct {
                arguments: call.arguments.clone(),
                filter: call.filter.clone(),
                calls: vec![index],
            }),
        }
    }
    found
}

/// Two aggregations: one by keys and distinct arguments, then one over its groups.
fn in_two(
    first: &AggregateExec,
    schema: SchemaRef,
    keys: Vec<NamedKey>,
    sets: Vec<Vec<bool>>,
    ids: Option<Vec<u64>>,
    calls: Vec<Call>,
    distinct: Vec<Distinct>,
) -> Result<Vec<Aggregation>, Reason> {
    let input = first.input().schema();
    let num_keys = keys.len();
    let (all_keys, places) = with_arguments(keys, &distinct);
    let plain: Vec<usize> =
        (0..calls.len()).filter(|index| !distinct.iter().any(|distinct| distinct.calls.contains(index))).collect();
    // A group exists because of a row in any variant: without plain results, a variant without a filter suffices. The
    // empty set needs the plain variant, because its group exists without rows.
    let no_keys = num_keys > 0 && sets.iter().any(|absent| absent.iter().all(|absent| *absent));
    let with_plain = !plain.is_empty() || no_keys || distinct.iter().all(|distinct| distinct.filter.is_some());
    let variants = variants(&sets, num_keys, &places, &distinct, with_plain);
    let per_set = distinct.len() + usize::from(with_plain);
    // The variants of all sets that have number `number` in their set.
    let among = |number: usize| (0..sets.len()).map(|set| (set * per_set + number) as u32).collect::<Vec<_>>();

    let mut fields = all_keys.iter().map(|key| key_field(key, &input)).collect::<Result<Vec<Field>, Reason>>()?;
    let number_column = fields.len();
    fields.push(Field::new("variant", DataType::UInt32, false));
    let column = |at: usize| Arc::new(Column::new(&all_keys[at].1, at)) as Arc<dyn PhysicalExpr>;
    let mut below = Vec::new();
    let mut above: Vec<Option<Call>> = vec![None; calls.len()];
    for &index in &plain {
        let column = fields.len();
        let field = calls[index].function.field();
        fields.push(Field::new(field.name(), field.data_type().clone(), true));
        below.push(Call { among: Some(among(0)), ..calls[index].clone() });
        above[index] = Some(Call {
            arguments: vec![Arc::new(Column::new(field.name(), column))],
            filter: None,
            among: Some(among(0)),
            taken: true,
            ..calls[index].clone()
        });
    }
    for (number, (distinct, place)) in distinct.iter().zip(&places).enumerate() {
        let among = among(number + usize::from(with_plain));
        // If the argument is a register, its group keeps the longest run.
        let register = distinct.arguments.first().and_then(|argument| argument.downcast_ref::<SketchExpr>());
        let estimated = distinct.calls.iter().find(|index| calls[**index].sketch.is_some());
        let run = register.zip(estimated).map(|(register, &index)| {
            let (name, column) = (format!("run {number}"), fields.len());
            fields.push(Field::new(&name, DataType::UInt8, true));
            below.push(Call {
                arguments: vec![Arc::new(SketchExpr { part: SketchPart::Run, of: Arc::clone(&register.of) })],
                filter: None,
                among: Some(among.clone()),
                sketch: Some(Sketch::Longest),
                ..calls[index].clone()
            });
            Arc::new(Column::new(&name, column)) as Arc<dyn PhysicalExpr>
        });
        for &index in &distinct.calls {
            let mut arguments: Vec<_> = place.clone().map(column).collect();
            // DataFusion counts a constant without evaluating it.
            arguments.truncate(calls[index].arguments.len());
            if let (Some(run), Some(_)) = (&run, calls[index].sketch) {
                arguments = vec![Arc::clone(run)];
            }
            // Distinct values are ordered by themselves.
            let by_argument = |key: &PhysicalSortExpr| PhysicalSortExpr { expr: column(place.start), ..key.clone() };
            let order = calls[index].order.iter().map(by_argument).collect();
            let among = Some(among.clone());
            above[index] = Some(Call { arguments, filter: None, among, order, ..calls[index].clone() });
        }
    }
    let lower = Aggregation {
        keys: all_keys.clone(),
        arguments: all_keys.len() - num_keys,
        variants,
        number: Number::Kept,
        calls: below,
        exact_floats: false,
        schema: Arc::new(Schema::new(fields)),
    };
    let keys = (0..num_keys).map(|at| (column(at), all_keys[at].1.clone()));
    let number = match ids {
        Some(ids) => Number::ReadIds { column: number_column, variants: per_set, ids },
        None => Number::Read(number_column),
    };
    let upper = Aggregation {
        keys: keys.collect(),
        arguments: 0,
        variants: vec![Variant { absent: vec![false; num_keys], filter: None }],
        number,
        calls: above.into_iter().flatten().collect(),
        exact_floats: false,
        schema,
    };
    Ok(vec![lower, upper])
}

/// The keys with the distinct arguments behind them, and the positions of each one's arguments.
fn with_arguments(mut keys: Vec<NamedKey>, distinct: &[Distinct]) -> (Vec<NamedKey>, Vec<Range<usize>>) {
    let mut places = Vec::new();
    for (number, distinct) in distinct.iter().enumerate() {
        let from = keys.len();
        for (index, argument) in distinct.arguments.iter().enumerate() {
            keys.push((Arc::clone(argument), format!("distinct {number}.{index}")));
        }
        places.push(from..keys.len());
    }
    (keys, places)
}

/// Launches of the first of two aggregations: for each set one for plain results, and one for each distinct argument.
fn variants(
    sets: &[Vec<bool>],
    num_keys: usize,
    places: &[Range<usize>],
    distinct: &[Distinct],
    with_plain: bool,
) -> Vec<Variant> {
    let mut variants = Vec::new();
    for set in sets {
        let absent = |own: Option<usize>| {
            let mut absent = set.clone();
            absent.resize(num_keys, false);
            for (number, place) in places.iter().enumerate() {
                absent.extend(place.clone().map(|_| Some(number) != own));
            }
            absent
        };
        if with_plain {
            variants.push(Variant { absent: absent(None), filter: None });
        }
        for (number, distinct) in distinct.iter().enumerate() {
            variants.push(Variant { absent: absent(Some(number)), filter: distinct.filter.clone() });
        }
    }
    variants
}

/// Column of a key in the table between two aggregations.
fn key_field((key, name): &NamedKey, input: &Schema) -> Result<Field, Reason> {
    let data_type = key
        .data_type(input)
        .map_err(|e| Reason::ExprUnsupported { expr: key.to_string(), why: e.strip_backtrace() })?;
    Ok(Field::new(name, data_type, true))
}

/// DataFusion's grouping id of each set: one bit for each key that is NULL in it, the last key's lowest; above them the
/// number of equal sets before it.
fn grouping_ids(sets: &[Vec<bool>]) -> Vec<u64> {
    let mut seen: HashMap<&[bool], u64> = HashMap::new();
    let id = |set: &'_ Vec<bool>, before: u64| {
        let bits = set.iter().fold(0, |bits, absent| bits << 1 | u64::from(*absent));
        bits | before.checked_shl(set.len() as u32).unwrap_or(0)
    };
    let ids = sets.iter().map(|set| {
        let before = seen.entry(set).or_insert(0);
        *before += 1;
        id(set, *before - 1)
    });
    ids.collect()
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = crate::plan::node::named(&self.keys);
        let aggregates = self.calls.iter().map(|call| call.function.name()).collect::<Vec<_>>().join(", ");
        write!(f, "gby=[{groups}], aggr=[{aggregates}]")?;
        if self.variants.len() > 1 {
            let set = |variant: &Variant| {
                let present = self.keys.iter().zip(&variant.absent).filter(|(_, absent)| !**absent);
                format!("({})", present.map(|((_, name), _)| name.as_str()).collect::<Vec<_>>().join(", "))
            };
            write!(f, ", sets=[{}]", self.variants.iter().map(set).collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}
