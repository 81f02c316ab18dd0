//! Description of a pipeline as data: columns in, one expression graph, filters in order, one sink.
//!
//!   columns ──► graph (a DAG; equal nodes are one node) ──► filters ──► sink
//!
//! NULL       every node says whether it may be NULL; a node that cannot be gets no code for it.
//! Width      the SQL type determines `Repr`; the proven range determines the register (`Lane`) and the stored width
//!            (`Physical`).
//! Literals   are parameter slots: another constant keeps the structure and compiles nothing.
//! Projection is inlining into the graph, so a pipeline has no stage for it.
//! Errors     are raised only for rows that reach a node: after earlier filters, in the CASE branch taken.

pub use super::graph::*;
pub use super::text_function::TextFunction;

/// Register form of a value. [`lane`] chooses it, equally for the producer and the consumer of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// A predicate.
    Pred,
    /// One 32-bit register, the value sign-extended.
    S32,
    /// One 32-bit register, the value zero-extended.
    U32,
    /// One 64-bit register, signed.
    S64,
    /// One 64-bit register, unsigned.
    U64,
    /// Two 64-bit registers: low half, then high half (signed).
    S128,
    /// One f32 register.
    F32,
    /// One f64 register.
    F64,
    /// Two 64-bit registers: the address of the bytes, then their number.
    Text,
}

impl Lane {
    /// Bytes of a parameter slot or of an accumulator word sequence that holds this lane.
    pub fn bytes(self) -> u32 {
        match self {
            Lane::Pred | Lane::S32 | Lane::U32 | Lane::F32 => 4,
            Lane::S64 | Lane::U64 | Lane::F64 => 8,
            Lane::S128 | Lane::Text => 16,
        }
    }
}

/// Register form of a value of type `ty`. Integers wider than 32 bits use the narrowest signed lane that the range
/// proves.
pub fn lane(ty: Ty) -> Lane {
    let Some(bounds) = ty.bounds() else {
        return match ty.repr {
            Repr::F32 => Lane::F32,
            Repr::F64 => Lane::F64,
            Repr::Text => Lane::Text,
            _ => Lane::Pred,
        };
    };
    let fits = |low: i128, high: i128| Range { low, high }.contains(bounds);
    if fits(i32::MIN as i128, i32::MAX as i128) {
        Lane::S32
    } else if fits(0, u32::MAX as i128) && ty.repr == Repr::U32 {
        Lane::U32
    } else if fits(i64::MIN as i128, i64::MAX as i128) {
        Lane::S64
    } else if ty.repr == Repr::U64 {
        Lane::U64
    } else {
        Lane::S128
    }
}

/// Format of a column in device memory (design: "Data on the device").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Physical {
    /// A bitmap, least significant bit first.
    Bit,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    I128,
    F32,
    F64,
    /// A `u32` offset per row and one more, then bytes: row `i` has the bytes from the `i`-th to the next offset, both
    /// relative to the start of the column. Offsets never decrease; NULL rows have offsets, too.
    Text,
    /// As `Text`, with `u64` offsets: the total number of bytes is not limited.
    LongText,
    /// Sixteen bytes: the length (u32), then up to twelve bytes of text; for longer texts the first four bytes and the
    /// address of the whole text (u64). NULL rows have length 0.
    View,
}

impl Physical {
    /// Format of a materialised column of type `ty` (without base).
    pub fn of(ty: Ty) -> Physical {
        match ty.repr {
            Repr::Bool => Physical::Bit,
            Repr::I8 => Physical::I8,
            Repr::I16 => Physical::I16,
            Repr::U8 => Physical::U8,
            Repr::U16 => Physical::U16,
            Repr::I32 => Physical::I32,
            Repr::U32 => Physical::U32,
            Repr::F32 => Physical::F32,
            Repr::F64 => Physical::F64,
            Repr::Text => Physical::View,
            Repr::I64 | Repr::U64 | Repr::I128 => match lane(ty) {
                Lane::S32 => Physical::I32,
                Lane::U32 => Physical::U32,
                Lane::S64 => Physical::I64,
                Lane::U64 => Physical::U64,
                _ => Physical::I128,
            },
        }
    }

    /// Bytes of `rows` values, without padding; for texts, of the offsets only.
    pub fn value_bytes(self, rows: u64) -> u64 {
        match self {
            Physical::Bit => rows.div_ceil(8),
            Physical::Text | Physical::LongText if rows == 0 => 0,
            Physical::Text | Physical::LongText => (rows + 1) * u64::from(self.width()),
            other => rows * other.width() as u64,
        }
    }

    /// Bytes of one value; 0 for bitmaps; for texts, of one offset.
    pub fn width(self) -> u32 {
        match self {
            Physical::Bit => 0,
            Physical::U8 | Physical::I8 => 1,
            Physical::U16 | Physical::I16 => 2,
            Physical::U32 | Physical::I32 | Physical::F32 | Physical::Text => 4,
            Physical::U64 | Physical::I64 | Physical::F64 | Physical::LongText => 8,
            Physical::I128 | Physical::View => 16,
        }
    }

    /// Smallest and largest stored value of an integer format.
    pub fn bounds(self) -> Option<Range> {
        match self {
            Physical::U8 => Repr::U8,
            Physical::U16 => Repr::U16,
            Physical::U32 => Repr::U32,
            Physical::U64 => Repr::U64,
            Physical::I8 => Repr::I8,
            Physical::I16 => Repr::I16,
            Physical::I32 => Repr::I32,
            Physical::I64 => Repr::I64,
            Physical::I128 => Repr::I128,
            Physical::Bit | Physical::F32 | Physical::F64 | Physical::Text | Physical::LongText | Physical::View => {
                return None;
            }
        }
        .bounds()
    }
}

/// One input column of a pipeline: its stored format, and the type of the loaded value.
///
/// The loaded value is `stored + base`, as `ty.repr` (the base is 64-bit, from the extent descriptor; 0 without
/// `has_base`). Any integer width may hold any integer representation: a decimal stored as `u8` with a base is `I128`
/// with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnSpec {
    pub physical: Physical,
    pub has_base: bool,
    /// If `nullable`, extents may have validity; an extent without it has validity address 0 in its descriptor.
    pub ty: Ty,
}

/// A table with one value per dictionary code, made by the host or by an earlier kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LookupSpec {
    pub physical: Physical,
    /// If `nullable`, the table has a validity bitmap.
    pub ty: Ty,
}

/// A literal's value, packed into its parameter slot by the slot's type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Literal {
    /// Only for a slot whose type is nullable.
    Null,
    Bool(bool),
    /// Every integer and decimal.
    Int(i128),
    F32(f32),
    F64(f64),
    /// Index of the launch among several over the same rows (`Input::variant`). For grouping sets.
    Variant,
    /// Index of the extent in order of arrival at the sink (`Input::extent`). Rows of later extents arrived later.
    Extent,
}

/// Aggregate over the rows of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// Number of rows. Result: `I64`, never NULL.
    CountStar,
    /// Number of rows with a valid argument. Result: `I64`, never NULL.
    Count(NodeId),
    /// Sum. Result: `I64` or `U64` (wrapping) for integers, `I128` for decimals (wrapping at 128 bits, as in
    /// DataFusion), `F64` for floats; NULL without a valid row.
    Sum(NodeId),
    /// As `Sum`, but a total that exceeds 128 bits raises the error flag. Over integers, the number of rows is limited
    /// so that the sum fits 64 bits.
    SumChecked(NodeId),
    /// As `Sum` of floats, but exact and rounded once at the end: the order of rows does not change the result.
    SumExact(NodeId),
    /// Result: the argument's representation; NULL without a valid row. Floats are ordered from -NaN to NaN.
    Min(NodeId),
    Max(NodeId),
    /// Integers of at most 64 bits. Result: the argument's representation; NULL without a valid row.
    BitAnd(NodeId),
    BitOr(NodeId),
    BitXor(NodeId),
    /// The value of `of` in an unspecified row where `among` is valid. It anchors deviations, so that squares do not
    /// cancel. Result: `F64`; NULL without such a row.
    Anchor {
        of: NodeId,
        among: NodeId,
    },
    /// The sum of `of` minus its anchor, over the rows where `among` is valid. Result: `F64`; NULL without such a row.
    Deviation {
        of: NodeId,
        among: NodeId,
    },
    /// The sum of the products of both arguments' deviations. Result: `F64`; NULL without such a row.
    CoDeviation {
        left: NodeId,
        right: NodeId,
        among: NodeId,
    },
    /// The argument in the first row by `AggregateSpec::orders[order]`; among ties an unspecified row, but the same one
    /// for all arguments. `skip_nulls` ignores rows where the argument is NULL. Result: the argument's representation;
    /// NULL without a row.
    First {
        of: NodeId,
        order: u32,
        skip_nulls: bool,
    },
}

impl Aggregate {
    /// The arguments.
    pub fn args(self) -> Vec<NodeId> {
        let mut arguments = Vec::new();
        self.over(|argument| {
            arguments.push(argument);
            argument
        });
        arguments
    }

    /// Replaces the arguments, in order, by the results of `to`.
    pub fn over(mut self, mut to: impl FnMut(NodeId) -> NodeId) -> Aggregate {
        match &mut self {
            Aggregate::CountStar => {}
            Aggregate::Count(arg)
            | Aggregate::Sum(arg)
            | Aggregate::SumChecked(arg)
            | Aggregate::SumExact(arg)
            | Aggregate::Min(arg)
            | Aggregate::Max(arg)
            | Aggregate::BitAnd(arg)
            | Aggregate::BitOr(arg)
            | Aggregate::BitXor(arg) => *arg = to(*arg),
            Aggregate::Anchor { of, among } | Aggregate::Deviation { of, among } => {
                (*of, *among) = (to(*of), to(*among))
            }
            Aggregate::CoDeviation { left, right, among } => {
                (*left, *right, *among) = (to(*left), to(*right), to(*among));
            }
            Aggregate::First { of, .. } => *of = to(*of),
        }
        self
    }
}

/// An aggregate with its FILTER (WHERE …). AVG is a sum and a count; a later stage divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Accumulator {
    pub aggregate: Aggregate,
    /// Condition on the rows that contribute.
    pub filter: Option<NodeId>,
}

/// Storage of groups while rows arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Regime {
    /// No keys: registers, then one reduction per thread block.
    Scalar,
    /// Few groups: bins per thread in shared memory, folded once per thread block into the global table.
    Private,
    /// Up to some thousands of groups: a table per thread block in shared memory, addressed by the keys and merged once
    /// per thread block into the global table.
    Block,
    /// A global table addressed by the keys.
    Direct,
    /// A global hash table that grows.
    Hash,
}

/// Addressing of a join table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// No table: every row matches every row of the build side, whatever the keys.
    Every,
    /// One bit per combination of key values: set if it exists. The ranges of the keys are part of `TableSpec::keys`. A
    /// match has no row number.
    Bitmap,
    /// A row number per combination of key values.
    Array,
    /// Slots addressed by a hash of the keys.
    Hash,
}

/// A join table: maps each key of a build side to its rows.
///
/// A list of matches is 64 bits: the number of rows in the low half, a place in the high half (`Graph::match_count`,
/// `Graph::match_start`). With `lists`, the place is the start of the key's rows in the table's list of row numbers,
/// which is a lookup table. Without, the count is 1 and the place is the key's leader: one of its rows, or its only row
/// if no key has two (`TableFacts::has_duplicates`). For [`TableKind::Every`] the count is the number of all rows and
/// the place is 0. Row `place + k` is the k-th match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableSpec {
    /// Types of the build side's keys. Probing keys have equal representations and any range.
    pub keys: Vec<Ty>,
    pub kind: TableKind,
    /// When building: record the leader of each row, so that lists can be built. When probing: lists exist.
    pub lists: bool,
    /// NULL equals NULL, as in IS NOT DISTINCT FROM. Otherwise rows with a NULL key match nothing.
    pub nulls_equal: bool,
}

/// Destination of the rows that pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SinkSpec {
    /// Inserts the keys of the rows that pass into a join table; rows are identified by their number in the only
    /// extent.
    Table { table: TableSpec, keys: Vec<NodeId> },
    /// Sets bit `row` (a `U32`; NULL sets none) of a bitmap for each row that passes. The bits mark build rows, or
    /// source rows of an expansion, that found a match.
    Mark { row: NodeId },
    /// Writes the rows that pass to dense columns, in input order, and their count to the control block.
    /// Output `i` is stored as `Physical::of(graph.ty(outputs[i]))`, with a validity bitmap when the type is nullable.
    Materialise { outputs: Vec<NodeId> },
    /// Materialises the rows that pass, and sets bit `row` for each.
    MaterialiseAndMark { outputs: Vec<NodeId>, row: NodeId },
    /// Groups by `keys` (without keys: one group, which exists even without rows) and accumulates.
    /// Emitted columns: the keys in order, then the accumulators in order.
    Aggregate(AggregateSpec),
}

/// Grouped or ungrouped aggregation. Use [`AggregateSpec::accumulate`] so that equal accumulators merge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AggregateSpec {
    pub keys: Vec<NodeId>,
    pub accumulators: Vec<Accumulator>,
    /// `None`: the generator chooses from the keys' ranges and the state's size.
    pub regime: Option<Regime>,
    /// Upper bound of the input rows, if known: much larger direct tables are not worth clearing.
    pub rows_hint: Option<u64>,
    /// A group that exists even without rows.
    pub seed: Option<Seed>,
    /// Orders that [`Aggregate::First`] refers to.
    pub orders: Vec<Vec<OrderKey>>,
    /// Positions of float keys that distinguish -0.0 from 0.0; in other keys they are equal.
    pub bitwise: Vec<u32>,
}

/// One expression of an order. Floats are ordered from -NaN to NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OrderKey {
    pub node: NodeId,
    pub descending: bool,
    pub nulls_first: bool,
}

/// A group that a launch inserts even without rows: the empty grouping set has one. The table and its output need room
/// for it in addition to the groups of the rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seed {
    /// Whether this launch inserts it. The condition, as the keys, reads only literals.
    pub when: NodeId,
    /// One value per key of the aggregation, of the key's type.
    pub keys: Vec<NodeId>,
}

impl AggregateSpec {
    pub fn new(keys: Vec<NodeId>) -> Self {
        AggregateSpec {
            keys,
            accumulators: vec![],
            regime: None,
            rows_hint: None,
            seed: None,
            orders: vec![],
            bitwise: vec![],
        }
    }

    /// Adds an accumulator, or finds an equal one; returns its position among the accumulators. `count(x)` becomes
    /// `count(*)` if `x` is never NULL; a checked sum that cannot exceed 128 bits becomes a plain sum.
    pub fn accumulate(&mut self, graph: &Graph, accumulator: Accumulator) -> usize {
        let mut accumulator = accumulator;
        if let Aggregate::Count(arg) = accumulator.aggregate
            && !graph.ty(arg).nullable
        {
            accumulator.aggregate = Aggregate::CountStar;
        }
        if let Aggregate::SumChecked(arg) = accumulator.aggregate
            && graph.ty(arg).repr == Repr::I128
            && let Some(Range { low, high }) = graph.ty(arg).bounds()
            && low.unsigned_abs().max(high.unsigned_abs())
                <= i128::MAX as u128 / crate::tune::MAX_ROWS_PER_STATE as u128
        {
            accumulator.aggregate = Aggregate::Sum(arg);
        }
        if let Some(at) = self.accumulators.iter().position(|a| *a == accumulator) {
            return at;
        }
        self.accumulators.push(accumulator);
        self.accumulators.len() - 1
    }

    /// Types of the emitted columns: keys, then accumulators.
    pub fn output_types(&self, graph: &Graph) -> Vec<Ty> {
        let keys = self.keys.iter().map(|key| graph.ty(*key));
        keys.chain(self.accumulators.iter().map(|a| self.result_type(graph, a))).collect()
    }

    /// True if a group may exist without rows.
    pub(crate) fn has_rowless_group(&self) -> bool {
        self.keys.is_empty() || self.seed.is_some()
    }

    pub(crate) fn result_type(&self, graph: &Graph, accumulator: &Accumulator) -> Ty {
        // A group exists because of a row; a result is NULL only through a filter, a NULL, or an ungrouped query
        // without rows.
        let unseen = |arg: NodeId| graph.ty(arg).nullable || accumulator.filter.is_some() || self.has_rowless_group();
        match accumulator.aggregate {
            Aggregate::CountStar | Aggregate::Count(_) => Ty::new(Repr::I64),
            Aggregate::Sum(arg) | Aggregate::SumChecked(arg) | Aggregate::SumExact(arg) => {
                Ty::new(sum_repr(graph.ty(arg).repr)).nullable(unseen(arg))
            }
            Aggregate::Min(arg) | Aggregate::Max(arg) => graph.ty(arg).nullable(unseen(arg)),
            Aggregate::First { of, .. } => graph.ty(of).nullable(unseen(of)),
            // Combined bits may lie outside the range of the single values.
            Aggregate::BitAnd(arg) | Aggregate::BitOr(arg) | Aggregate::BitXor(arg) => {
                Ty::new(graph.ty(arg).repr).nullable(unseen(arg))
            }
            Aggregate::Anchor { among, .. }
            | Aggregate::Deviation { among, .. }
            | Aggregate::CoDeviation { among, .. } => Ty::new(Repr::F64).nullable(unseen(among)),
        }
    }
}

/// Representation of a sum: 64 bits of the same signedness for integers, 128 bits for decimals, `F64` for floats.
pub fn sum_repr(arg: Repr) -> Repr {
    match arg {
        Repr::I8 | Repr::I16 | Repr::I32 | Repr::I64 | Repr::Bool => Repr::I64,
        Repr::U8 | Repr::U16 | Repr::U32 | Repr::U64 => Repr::U64,
        Repr::I128 => Repr::I128,
        Repr::F32 | Repr::F64 => Repr::F64,
        // Texts have no sum: a pipeline with one is refused.
        Repr::Text => Repr::Text,
    }
}

/// Number of extents per launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extents {
    /// One; its descriptor is part of the kernel's parameters. For fed sources and intermediates.
    One,
    /// Any number; their descriptors are an array in device memory. For resident sources.
    Many,
}

/// A pipeline, complete: equal values compile to the same module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PipelineSpec {
    pub extents: Extents,
    pub columns: Vec<ColumnSpec>,
    /// Types of the parameter slots, by slot of [`Node::Literal`].
    pub literals: Vec<Ty>,
    pub lookups: Vec<LookupSpec>,
    /// Join tables that the graph probes.
    pub tables: Vec<TableSpec>,
    /// Each row of the extent becomes a number of rows given by a column of counts (see [`Node::Ordinal`]). There is
    /// one extent, and its row count is that after the expansion.
    pub expanded: bool,
    pub graph: Graph,
    /// In order: a row reaches a filter only if the earlier ones are true for it.
    pub filters: Vec<NodeId>,
    pub sink: SinkSpec,
}

impl PipelineSpec {
    /// Every node that the filters and the sink use directly.
    pub fn roots(&self) -> Vec<NodeId> {
        let mut roots = self.filters.clone();
        match &self.sink {
            SinkSpec::Table { keys, .. } => roots.extend(keys),
            SinkSpec::Mark { row } => roots.push(*row),
            SinkSpec::Materialise { outputs } => roots.extend(outputs),
            SinkSpec::MaterialiseAndMark { outputs, row } => roots.extend(outputs.iter().chain([row])),
            SinkSpec::Aggregate(aggregate) => {
                roots.extend(&aggregate.keys);
                roots.extend(aggregate.orders.iter().flatten().map(|key| key.node));
                roots.extend(aggregate.seed.iter().flat_map(|seed| seed.keys.iter().chain([&seed.when])));
                for accumulator in &aggregate.accumulators {
                    roots.extend(accumulator.filter);
                    roots.extend(accumulator.aggregate.args());
                }
            }
        }
        roots
    }

    /// Columns that are read, ascending. Other columns cost nothing; their addresses may be 0.
    pub fn used_columns(&self) -> Vec<u32> {
        self.graph.columns(&self.roots())
    }

    /// True if a launch needs an arena for texts.
    pub fn makes_texts(&self) -> bool {
        !self.graph.new_texts(&self.roots()).is_empty()
    }

    /// Types of the output columns: outputs, or keys and accumulators.
    pub fn output_types(&self) -> Vec<Ty> {
        match &self.sink {
            SinkSpec::Materialise { outputs } | SinkSpec::MaterialiseAndMark { outputs, .. } => {
                outputs.iter().map(|id| self.graph.ty(*id)).collect()
            }
            SinkSpec::Aggregate(aggregate) => aggregate.output_types(&self.graph),
            SinkSpec::Table { .. } | SinkSpec::Mark { .. } => Vec::new(),
        }
    }
}

/// Error on the device; the low 32 bits of the error word (0: no error). The high 32 bits identify the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    DivisionByZero = 1,
    Overflow = 2,
    Cast = 3,
    /// The host made a hash table too small: a bug.
    TableFull = 4,
    /// A group or build key is outside the range of its type: run again with the true range, or without one.
    KeyRange = 5,
    /// A function rejected an argument.
    Argument = 6,
    /// The host made the arena for texts too small: run again with a larger one.
    ArenaFull = 7,
    /// DataFusion's own answer depends on its batch boundaries.
    Undecided = 8,
}

impl ErrorCode {
    /// Decodes an error word: the code and the node that raised it.
    pub fn from_word(word: u64) -> Option<(ErrorCode, NodeId)> {
        let code = match word as u32 {
            1 => ErrorCode::DivisionByZero,
            2 => ErrorCode::Overflow,
            3 => ErrorCode::Cast,
            4 => ErrorCode::TableFull,
            5 => ErrorCode::KeyRange,
            6 => ErrorCode::Argument,
            7 => ErrorCode::ArenaFull,
            8 => ErrorCode::Undecided,
            _ => return None,
        };
        Some((code, NodeId((word >> 32) as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_chooses_lane_and_width() {
        let of = |repr, low, high| {
            let ty = Ty::new(repr).within(low, high);
            (lane(ty), Physical::of(ty))
        };
        assert_eq!(of(Repr::I128, 0, 10), (Lane::S32, Physical::I32));
        assert_eq!(of(Repr::I128, 0, 1 << 31), (Lane::S64, Physical::I64));
        assert_eq!(of(Repr::I128, i64::MIN as i128 - 1, 0), (Lane::S128, Physical::I128));
        assert_eq!(of(Repr::U64, 0, i64::MAX as i128), (Lane::S64, Physical::I64));
        assert_eq!(of(Repr::U64, 0, u64::MAX as i128), (Lane::U64, Physical::U64));
        assert_eq!(of(Repr::U32, 0, u32::MAX as i128), (Lane::U32, Physical::U32));
        // A type of 32 bits or less keeps its own width.
        assert_eq!(of(Repr::U32, 0, 10), (Lane::S32, Physical::U32));
        assert_eq!(of(Repr::I16, 0, 10), (Lane::S32, Physical::I16));
    }

    #[test]
    fn error_words_name_code_and_node() {
        assert_eq!(ErrorCode::from_word(0), None);
        assert_eq!(ErrorCode::from_word(7 << 32 | 2), Some((ErrorCode::Overflow, NodeId(7))));
    }
}
