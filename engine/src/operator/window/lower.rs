//! Window functions as a sink: dense columns, then arguments, then sort keys; and the details for its run.
//!
//!   written    [ columns of the input │ arguments │ keys ]
//!   output     [ columns of the input │ a column for each function ]
//!
//! Strings    with codes compare by rank, in keys as in MIN and MAX. Texts without a dictionary are sorted and taken;
//!            they have no MIN and MAX here.
//! Distances  of RANGE frames are integers in the unit of the key, or floats.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use millpond_kernels::codegen::ir::{NodeId, Physical, Range, Repr, Ty};
use millpond_kernels::window::{Bound, MAX_KEYS, Operation, Ranking, Statistic, Units};

use crate::column::half::widened;
use crate::column::nested::has_least;
use crate::column::{ColumnInfo, DictionaryId, Form, is_nested, number_repr};
use crate::error::reason::Reason;
use crate::expr::mended::is_checked;
use crate::expr::{Lowering, Scope, Value, sorted_so};
use crate::operator::sort::lower::SortedBy;
use crate::operator::window::bivariate::{LoweredBivariate, statistic};
use crate::operator::window::concat::LoweredConcat;
use crate::operator::window::describe::{Call, Constant, Edge, FrameOf, From, Function, refused};
use crate::operator::window::distance::{distance, limits};
use crate::operator::window::distinct::Once;
use crate::operator::window::percentile::LoweredPercentile;
use crate::operator::window::run::WindowRun;
use crate::program::contract::{Sink, SinkRun};
use crate::program::lower::SegmentLowering;
use crate::program::piece::LoweredSink;

/// Maximum digits of a decimal for AVG: the scaled sum of all rows that a window takes stays within 128 bits.
const MOST_AVERAGED_DIGITS: u8 = 24;

/// Sink of rows with a column for each function, in an order that all functions share.
#[derive(Debug, Clone)]
pub(crate) struct WindowSink {
    pub sort: Vec<PhysicalSortExpr>,
    pub functions: Arc<Vec<Function>>,
}

/// Details for a window's run.
#[derive(Debug, Clone)]
pub(crate) struct LoweredWindow {
    /// Number of columns to be ordered: those of the input, and arguments.
    pub ordered: usize,
    /// Number of input columns among them.
    pub inputs: usize,
    pub sort: Vec<SortedBy>,
    pub functions: Vec<LoweredFunction>,
}

/// One function, and its result's type.
#[derive(Debug, Clone)]
pub(crate) struct LoweredFunction {
    /// Number of leading sort keys that define partitions, and peers.
    pub partition: usize,
    pub peers: usize,
    pub work: Work,
    pub ty: Ty,
}

/// Computation of a function; columns are positions among those to be ordered.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Rank(Ranking),
    Take {
        column: usize,
        from: From,
        frame: LoweredFrame,
        skips_nulls: bool,
        otherwise: Option<u128>,
    },
    Fold {
        column: Option<usize>,
        dictionary: Option<DictionaryId>,
        operation: Operation,
        frame: LoweredFrame,
        /// For distinct values.
        once: Option<LoweredOnce>,
    },
    /// The rows of a frame, which refer to the items of a column.
    List {
        column: usize,
        skips_nulls: bool,
        frame: LoweredFrame,
        id: DictionaryId,
        item: ColumnInfo,
        /// For distinct values.
        once: Option<LoweredOnce>,
    },
    Percentile(LoweredPercentile),
    Bivariate(LoweredBivariate),
    Concat(LoweredConcat),
}

/// Method of counting each value of a column once.
#[derive(Debug, Clone)]
pub(crate) struct LoweredOnce {
    pub how: Once,
    /// The column as a sort key.
    pub value: SortedBy,
}

#[derive(Debug, Clone)]
pub(crate) struct LoweredFrame {
    pub units: Units,
    pub start: Bound,
    pub end: Bound,
    /// For distances.
    pub key: Option<LoweredKey>,
}

/// The key that distances apply to.
#[derive(Debug, Clone)]
pub(crate) struct LoweredKey {
    pub column: usize,
    pub descending: bool,
    /// Limits of its SQL type.
    pub limits: Option<Range>,
}

impl Sink for WindowSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (nodes, mut outputs) = segment.outputs()?;
        let (lowering, scope) = segment.expressions();
        let (window, nodes, columns) = lower(lowering, scope, nodes, &self.sort, &self.functions)?;
        outputs.extend(columns);
        Ok(LoweredSink { details: Arc::new(window), ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(WindowRun)
    }

    fn sorts(&self) -> bool {
        true
    }
}

/// Lowers `functions` beside the columns `nodes`; also returns the nodes to write, and the functions' columns.
pub(crate) fn lower(
    lowering: &mut Lowering<'_>,
    scope: &Scope,
    nodes: Vec<NodeId>,
    sort: &[PhysicalSortExpr],
    functions: &[Function],
) -> Result<(LoweredWindow, Vec<NodeId>, Vec<ColumnInfo>), Reason> {
    if sort.len() > MAX_KEYS {
        let node = format!("a window with {} keys", sort.len());
        return Err(Reason::NodeUnsupported { node });
    }
    let inputs = nodes.len();
    let mut columns = Columns { lowering, scope, nodes };
    let (mut lowered, mut outputs) = (Vec::new(), Vec::new());
    for function in functions {
        let (work, form) = columns.work(function)?;
        let (partition, peers) =
            function.keys_in(sort).ok_or_else(|| refused(&function.name, "its order is not that of the others"))?;
        let ty = match form {
            Form::Plain(ty) | Form::Codes(ty, _) | Form::Lists(ty, _) => ty,
            Form::Unsupported(reason) => return Err(reason),
        };
        lowered.push(LoweredFunction { partition, peers, work, ty });
        outputs.push(ColumnInfo::new(function.name.clone(), function.data_type.clone(), form));
    }
    let ordered = columns.nodes.len();
    let mut keys = Vec::new();
    for key in sort {
        let (output, value) = columns.add(&key.expr)?;
        sorted_so(key, &value.data_type)?;
        let (descending, nulls_first) = (key.options.descending, key.options.nulls_first);
        keys.push(SortedBy { output, dictionary: value.dictionary, descending, nulls_first });
    }
    let window = LoweredWindow { ordered, inputs, sort: keys, functions: lowered };
    Ok((window, columns.nodes, outputs))
}

/// The columns to write, as far as they were requested.
pub(super) struct Columns<'a, 'd> {
    pub(super) lowering: &'a mut Lowering<'d>,
    pub(super) scope: &'a Scope,
    nodes: Vec<NodeId>,
}

impl Columns<'_, '_> {
    /// The column of an expression; an existing column is not written twice.
    pub(super) fn add(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<(usize, Value), Reason> {
        let value = self.lowering.lower(expr, self.scope)?;
        Ok((self.written(value.node), value))
    }

    /// The column of a node.
    pub(super) fn written(&mut self, of: NodeId) -> usize {
        let known = self.nodes.iter().position(|node| *node == of);
        known.unwrap_or_else(|| {
            self.nodes.push(of);
            self.nodes.len() - 1
        })
    }

    pub(super) fn ty(&self, value: &Value) -> Ty {
        self.lowering.graph.ty(value.node)
    }

    /// The computation of a function, and the form of its result.
    fn work(&mut self, function: &Function) -> Result<(Work, Form), Reason> {
        match &function.call {
            Call::Rank(ranking) => {
                let ty = match ranking {
                    Ranking::PercentRank | Ranking::CumeDist => Ty::new(Repr::F64),
                    _ => Ty::new(Repr::U64).within(0, 1 << 31),
                };
                Ok((Work::Rank(*ranking), Form::Plain(ty)))
            }
            Call::Take { argument, from, skips_nulls, otherwise } => {
                let (column, value) = self.add(argument)?;
                let frame = match from {
                    From::Row(_) => LoweredFrame::whole(),
                    From::Frame(_) => self.frame(function)?,
                };
                let mut ty = self.ty(&value).nullable(true);
                let otherwise = match otherwise.is_null() {
                    true => None,
                    false => {
                        let plain = value.dictionary.is_none() && has_order(&function.data_type);
                        let bits = bits(otherwise).filter(|_| plain);
                        let with = bits.and_then(|bits| with_value(ty, bits).map(|with| (bits, with)));
                        let why = "of what it gives where there is no row the type is not lowered";
                        let (bits, with) = with.ok_or_else(|| refused(&function.name, why))?;
                        ty = with;
                        Some(bits)
                    }
                };
                let form = match value.dictionary {
                    Some(id) => Form::Codes(ty, id),
                    None => Form::Plain(ty),
                };
                Ok((Work::Take { column, from: *from, frame, skips_nulls: *skips_nulls, otherwise }, form))
            }
            Call::Aggregate { function: aggregate, arguments, constant } => {
                let frame = self.frame(function)?;
                let name = aggregate.fun().name();
                if name == "count" && !aggregate.is_distinct() {
                    return self.count(function, arguments, frame);
                }
                if let Some(statistic) = statistic(name) {
                    return self.bivariate(function, statistic, arguments, frame);
                }
                let [argument] = arguments.as_slice() else {
                    return Err(refused(
                        &function.name,
                        format!("{name} of several arguments is not lowered in a window"),
                    ));
                };
                match (name, constant) {
                    ("median", _) => return self.percentile(function, aggregate, (argument, None), frame),
                    (_, Some(Constant::Percentile(of))) => {
                        return self.percentile(function, aggregate, (argument, Some(*of)), frame);
                    }
                    (_, Some(Constant::Between(between))) => return self.concat(function, (argument, between), frame),
                    _ => {}
                }
                let (column, value) = self.add(argument)?;
                if name == "array_agg" {
                    return self.list(function, aggregate, (column, value), frame);
                }
                let ty = self.ty(&value);
                if is_checked(aggregate.fun()) && !sum_fits(ty) {
                    let why = "of distinct whole numbers it may leave 64 bits: cast them to DECIMAL, or SET millpond.integer_overflow = 'wrap'";
                    return Err(refused(&function.name, why));
                }
                let (operation, form) = operation(function, name, &value, ty)?;
                let dictionary = value.dictionary;
                let mut once = None;
                let once_counts = matches!(name, "count" | "sum" | "avg" | "var" | "var_pop");
                if aggregate.is_distinct() && once_counts {
                    if is_nested(&value.data_type) {
                        let why = format!("distinct values of {} are not found in a window", value.data_type);
                        return Err(refused(&function.name, why));
                    }
                    let value = SortedBy { output: column, dictionary, descending: false, nulls_first: false };
                    once = Some(LoweredOnce { how: Once::of(&frame), value });
                }
                Ok((Work::Fold { column: Some(column), dictionary, operation, frame, once }, form))
            }
        }
    }

    /// COUNT, of rows or of those where the argument is valid.
    fn count(
        &mut self,
        function: &Function,
        arguments: &[Arc<dyn PhysicalExpr>],
        frame: LoweredFrame,
    ) -> Result<(Work, Form), Reason> {
        let form = counts();
        let literal = |e: &Arc<dyn PhysicalExpr>| {
            e.downcast_ref::<datafusion::physical_expr::expressions::Literal>().is_some_and(|l| !l.value().is_null())
        };
        let column = match arguments {
            [] => None,
            [one] if literal(one) => None,
            [one] => {
                let value = self.lowering.lower(one, self.scope)?;
                if self.ty(&value).nullable { Some(self.add(one)?.0) } else { None }
            }
            _ => return Err(refused(&function.name, "count of several arguments is not lowered in a window")),
        };
        Ok((Work::Fold { column, dictionary: None, operation: Operation::Count, frame, once: None }, form))
    }

    /// ARRAY_AGG: a list of the rows of each frame.
    fn list(
        &mut self,
        function: &Function,
        aggregate: &AggregateFunctionExpr,
        (column, value): (usize, Value),
        frame: LoweredFrame,
    ) -> Result<(Work, Form), Reason> {
        let items = match &function.data_type {
            DataType::List(item) => item.data_type() == &value.data_type,
            _ => false,
        };
        if !items {
            let why = format!("it gives {} for {}", function.data_type, value.data_type);
            return Err(refused(&function.name, why));
        }
        if is_nested(&value.data_type) {
            return Err(refused(&function.name, "lists of nested items do not leave the device as one"));
        }
        if !aggregate.order_bys().is_empty() {
            return Err(refused(&function.name, "the items of a frame are in the order of the window"));
        }
        let how = Once::of(&frame);
        if aggregate.is_distinct() && how == Once::Less {
            return Err(refused(&function.name, "the distinct values of a frame are no rows in a row"));
        }
        let by = SortedBy { output: column, dictionary: value.dictionary, descending: false, nulls_first: false };
        let once = aggregate.is_distinct().then_some(LoweredOnce { how, value: by });
        let id = DictionaryId::of_lists(std::ptr::from_ref(aggregate).addr());
        let item = self.lowering.info("item", &value);
        let skips_nulls = aggregate.ignore_nulls();
        Ok((
            Work::List { column, skips_nulls, frame, id, item, once },
            Form::Lists(Ty::new(Repr::U64).nullable(true), id),
        ))
    }

    /// The frame of a function.
    fn frame(&mut self, function: &Function) -> Result<LoweredFrame, Reason> {
        let FrameOf { units, start, end } = &function.frame;
        let by_distance = |edge: &Edge| matches!(edge, Edge::Preceding(_) | Edge::Following(_));
        let mut distances = None;
        if *units == Units::Range && (by_distance(start) || by_distance(end)) {
            let [key] = function.order.as_slice() else {
                return Err(refused(
                    &function.name,
                    "a distance in RANGE needs one key that is no key of the partition",
                ));
            };
            let (column, value) = self.add(&key.expr)?;
            distances = Some((column, key.options.descending, value));
        }
        let bound = |edge: &Edge| {
            let number = |by: &ScalarValue| match &distances {
                Some((_, _, value)) => distance(by, value, self.lowering.graph.ty(value.node)),
                None => match by {
                    ScalarValue::UInt64(Some(rows)) => Some(*rows),
                    _ => None,
                },
            };
            let why =
                |by: &ScalarValue| refused(&function.name, format!("a frame of {by} in its order is not lowered"));
            Ok(match edge {
                Edge::Unbounded => Bound::Unbounded,
                Edge::Current => Bound::Current,
                Edge::Preceding(by) => Bound::Preceding(number(by).ok_or_else(|| why(by))?),
                Edge::Following(by) => Bound::Following(number(by).ok_or_else(|| why(by))?),
            })
        };
        let (start, end) = (bound(start)?, bound(end)?);
        Ok(LoweredFrame {
            units: *units,
            start,
            end,
            key: distances.map(|(column, descending, value)| LoweredKey {
                column,
                descending,
                limits: limits(&value.data_type),
            }),
        })
    }
}

impl LoweredFunction {
    /// True if the order of its rows affects the last bits.
    pub fn adds_floats(&self) -> bool {
        use Operation::{Deviation, Mean, SumFloats, Variance};
        match &self.work {
            Work::Fold { operation, .. } => matches!(operation, SumFloats | Mean | Variance(_) | Deviation(_)),
            Work::Bivariate(of) => of.statistic != Statistic::RegrCount,
            _ => false,
        }
    }
}

impl LoweredFrame {
    /// The whole partition.
    fn whole() -> Self {
        Self { units: Units::Rows, start: Bound::Unbounded, end: Bound::Unbounded, key: None }
    }
}

/// True for numbers whose values on the device sort in their order.
fn has_order(data_type: &DataType) -> bool {
    number_repr(data_type).is_some() || *data_type == DataType::Float16
}

/// True for numbers so small that a window has too few rows for their sum to exceed 64 bits.
fn sum_fits(of: Ty) -> bool {
    of.bounds().is_some_and(|Range { low, high }| low.unsigned_abs().max(high.unsigned_abs()) <= 1 << 32)
}

/// The form of a number of rows.
fn counts() -> Form {
    Form::Plain(Ty::new(Repr::I64).within(0, 1 << 31))
}

/// The operation of an aggregate of one argument, and the form of its result.
fn operation(function: &Function, name: &str, value: &Value, ty: Ty) -> Result<(Operation, Form), Reason> {
    if name == "count" {
        return Ok((Operation::Count, counts()));
    }
    let repr = ty.repr;
    let other = || refused(&function.name, format!("{name} of {} is not lowered in a window", value.data_type));
    if is_nested(&value.data_type) && !has_least(&value.data_type) {
        return Err(other());
    }
    if value.dictionary.is_some() || repr == Repr::Text {
        let operation = match name {
            "min" => Operation::Min,
            "max" => Operation::Max,
            _ => return Err(other()),
        };
        let id =
            value.dictionary.ok_or_else(|| refused(&function.name, "texts without a dictionary have no order here"))?;
        return Ok((operation, Form::Codes(ty.nullable(true), id)));
    }
    let plain = |repr: Repr| Form::Plain(Ty::new(repr).nullable(true));
    let same = Form::Plain(ty.nullable(true));
    let integers = repr.is_integer() && number_repr(&value.data_type).is_some();
    Ok(match name {
        "min" | "bool_and" if repr == Repr::Bool => (Operation::Min, same),
        "max" | "bool_or" if repr == Repr::Bool => (Operation::Max, same),
        "min" if has_order(&value.data_type) => (Operation::Min, same),
        "max" if has_order(&value.data_type) => (Operation::Max, same),
        "bit_and" if integers => (Operation::BitAnd, plain(repr)),
        "bit_or" if integers => (Operation::BitOr, plain(repr)),
        "bit_xor" if integers => (Operation::BitXor, plain(repr)),
        "sum" => match (&function.data_type, &value.data_type) {
            (DataType::Int64, _) if integers && repr.is_signed() && repr != Repr::I128 => {
                (Operation::Sum, plain(Repr::I64))
            }
            (DataType::UInt64, _) if integers && !repr.is_signed() => (Operation::Sum, plain(Repr::U64)),
            (DataType::Float64, _) if repr.is_float() => (Operation::SumFloats, plain(Repr::F64)),
            (DataType::Decimal128(_, s), DataType::Decimal128(_, of)) if s == of => (Operation::Sum, plain(Repr::I128)),
            (DataType::Decimal64(_, s), DataType::Decimal64(_, of)) if s == of => (Operation::Sum, plain(Repr::I64)),
            (DataType::Decimal32(_, s), DataType::Decimal32(_, of)) if s == of => (Operation::Sum, plain(Repr::I32)),
            _ => return Err(other()),
        },
        "avg" => match (&function.data_type, &value.data_type) {
            (DataType::Float64, _) if repr.is_float() => (Operation::Mean, plain(Repr::F64)),
            (DataType::Decimal128(_, to), DataType::Decimal128(digits, of))
                if *digits <= MOST_AVERAGED_DIGITS && (0..=8).contains(&(to - of)) =>
            {
                (Operation::DecimalMean(10u64.pow((to - of) as u32)), plain(Repr::I128))
            }
            _ => return Err(other()),
        },
        "var" | "var_pop" | "stddev" | "stddev_pop" if repr.is_float() => {
            let off = u64::from(matches!(name, "var" | "stddev"));
            let operation = if name.starts_with("var") { Operation::Variance(off) } else { Operation::Deviation(off) };
            (operation, plain(Repr::F64))
        }
        _ => return Err(other()),
    })
}

/// A type with room for one more value; `None` if its memory form would change.
fn with_value(ty: Ty, bits: u128) -> Option<Ty> {
    let one = Range { low: bits as i128, high: bits as i128 };
    let mut with = Ty::new(ty.repr).nullable(true);
    if let Some(range) = ty.range.map(|range| range.union(one)) {
        with = with.within(range.low, range.high);
    }
    (Physical::of(with) == Physical::of(ty)).then_some(with)
}

/// Bits of a literal as stored in a column.
fn bits(value: &ScalarValue) -> Option<u128> {
    Some(match value {
        ScalarValue::Boolean(Some(v)) => u128::from(*v),
        ScalarValue::Int8(Some(v)) => *v as u128,
        ScalarValue::Int16(Some(v)) => *v as u128,
        ScalarValue::Int32(Some(v)) | ScalarValue::Date32(Some(v)) => *v as u128,
        ScalarValue::Int64(Some(v))
        | ScalarValue::Date64(Some(v))
        | ScalarValue::TimestampSecond(Some(v), _)
        | ScalarValue::TimestampMillisecond(Some(v), _)
        | ScalarValue::TimestampMicrosecond(Some(v), _)
        | ScalarValue::TimestampNanosecond(Some(v), _) => *v as u128,
        ScalarValue::UInt8(Some(v)) => (*v).into(),
        ScalarValue::UInt16(Some(v)) => (*v).into(),
        ScalarValue::UInt32(Some(v)) => (*v).into(),
        ScalarValue::UInt64(Some(v)) => (*v).into(),
        ScalarValue::Float16(Some(v)) => widened(*v).to_bits().into(),
        ScalarValue::Float32(Some(v)) => v.to_bits().into(),
        ScalarValue::Float64(Some(v)) => v.to_bits().into(),
        ScalarValue::Decimal128(Some(v), ..) => *v as u128,
        _ => return None,
    })
}
