//! The expression language of pipelines: a hash-consed graph of typed nodes over one row.
//!
//!   l_extendedprice * (1 - l_discount)          n0 column 0   n1 literal 0   n2 column 1
//!                                               n3 = n1 - n2      n4 = n0 * n3
//!
//! Types    `Repr` fixes meaning (where a value wraps, where it overflows); the proven range fixes the width it is computed in.
//!          Dates are `I32` days, times, timestamps and durations `I64`, decimals `I128` scaled integers whatever their
//!          precision (`I32` or `I64` for Decimal32 and Decimal64), dictionary strings `U32` codes, other strings `Text`.
//! NULL     a value at a NULL row is unspecified: it may lie outside its range and never raises an error. A text can be read.
//! Errors   `Overflow::Fail` raises the error flag, for valid rows that reach the node; `Overflow::Null` gives NULL instead.
//! Sharing  equal nodes are one node, so a common subexpression is computed once per row.
//! Literals are parameters. Their range may be given, and is then part of the structure: give digits, not the value.

use std::collections::HashMap;
use std::sync::Arc;

use super::function::Function;
use super::ir::ErrorCode;

/// A node of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// What a value means, and where it wraps or overflows. How wide it is computed follows from its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Repr {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    I128,
    F32,
    F64,
    /// A string: where its bytes are, and how many. Bytes compare as unsigned numbers.
    Text,
}

/// Inclusive bounds of an integer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    pub low: i128,
    pub high: i128,
}

/// The type of a node: its meaning, whether it can be NULL, and what is proven about valid values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ty {
    pub repr: Repr,
    pub nullable: bool,
    /// Bounds of every valid value; `None` means whatever `repr` holds. Integers only.
    pub range: Option<Range>,
}

/// What happens to a valid row whose result does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Wraps at the width of `repr`, as DataFusion's integers do.
    Wrap,
    /// Raises the error flag.
    Fail,
    /// Becomes NULL (TRY_CAST).
    Null,
}

/// Two numbers in, one out. Division and remainder truncate; by zero they raise the error flag (floats follow IEEE 754).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Integer operations on bits; shift counts are taken modulo the width, as arrow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bitwise {
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// Floats compare in IEEE total order with -0.0 equal to 0.0, as DataFusion does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// IS DISTINCT FROM: never NULL.
    Distinct,
    /// IS NOT DISTINCT FROM: never NULL.
    NotDistinct,
    /// As `Equal`, but floats are equal only bit by bit: IN, NULLIF and `CASE x WHEN` compare so.
    Identical,
}

/// Tests that are never NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    IsNull,
    IsNotNull,
    IsTrue,
    IsNotTrue,
    IsFalse,
    IsNotFalse,
}

/// How a division by a constant rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Towards zero.
    Truncate,
    /// Towards minus infinity.
    Floor,
    /// To nearest, halves away from zero (decimal casts).
    HalfAway,
}

/// Unit of a date (`Day`), time or timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    Day,
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

/// Fields of a date or timestamp. Results are `I32`, except `Nanosecond` (`I64`) and `Epoch` (`F64`). Dates outside the
/// calendar's years -262143 … 262142 have no fields: NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatePart {
    Year,
    IsoYear,
    Quarter,
    Month,
    /// ISO week, 1 to 53.
    Week,
    Day,
    DayOfYear,
    /// 0 is Sunday.
    DayOfWeek,
    /// 1 is Monday.
    IsoDayOfWeek,
    Hour,
    Minute,
    /// Whole seconds of the minute.
    Second,
    /// Seconds of the minute with their fraction, in whole milliseconds; the next two likewise.
    Millisecond,
    Microsecond,
    Nanosecond,
    /// Seconds since 1970, with fraction.
    Epoch,
}

/// Start of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DateGrain {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

/// Functions of one float.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatFunction {
    Sqrt,
    Floor,
    Ceil,
    Truncate,
    /// Halves away from zero.
    Round,
    /// The nearest number of 16 bits, ties to the even one, as the `F32` that it is. `F32` alone.
    Narrow,
}

/// Functions of strings. Characters are UTF-8 code points and counted from 1; patterns and sets are texts themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextFunction {
    /// Text and pattern: LIKE, where the pattern has [`ANY_CHARACTERS`] for `%` and [`ONE_CHARACTER`] for `_`. `Bool`.
    Like,
    /// The same whatever the case. The pattern is ASCII, its letters small. `Bool`.
    LikeAnyCase,
    /// Text and what it is to begin with, end with or contain. `Bool`.
    StartsWith,
    EndsWith,
    Contains,
    /// The number of bytes (`I64`).
    Bytes,
    /// The number of characters (`I64`).
    Characters,
    /// Text and pattern: the character where it first begins, 0 where it does not occur (`I64`).
    Position,
    /// Text, the first character (`I64`), how many (`I64`). Those before the first do not exist but count. Raises the error
    /// flag where the number is negative. `Text`.
    Substring,
    /// Text and a number (`I64`): the first characters, or all but so many of the last if it is negative. `Text`.
    Left,
    /// The same from the other end.
    Right,
    /// Text, and the bytes (`I64`) where a part of it begins and ends: that part. Both lie within the text, in this order. `Text`.
    Slice,
    /// Text and a set of characters that are taken away at the beginning, the end, or both. `Text`.
    TrimStart,
    TrimEnd,
    TrimBoth,
    /// The eight bytes from `8 * index` on, as a number that orders as they do (`U64`); those behind the end are 0.
    Word {
        index: u32,
    },
    /// A hash of the bytes (`U64`).
    Hash,
    /// Text, delimiter, a number (`I64`) from 1, or from the end below 0: that part. Raises the error flag where the number is
    /// 0 or the delimiter has no bytes. `Text`.
    SplitPart,
    /// The number of the first character, or 0 (`I32`).
    Code,
    /// The integer that the text is in decimal digits (`I64`); else the overflow.
    ToInteger(Overflow),
    /// Any number of texts, one behind the other. NULLs are left out, or, where `strict`, make it NULL. `Text`, made.
    Concatenate {
        strict: bool,
    },
    /// A separator and any number of texts, NULLs left out; NULL where the separator is. `Text`, made.
    Join,
    /// Text, and [`case_table`](crate::text::case_table). Raises the error flag where the table does not know. `Text`, made.
    Upper,
    Lower,
    /// Words with a capital first. Raises the error flag beyond ASCII. `Text`, made.
    Capitals,
    Reverse,
    /// Text, what is sought, and what comes in its place. `Text`, made.
    Replace,
    /// Text and the [automata](crate::regex::automata) of a regular expression: whether it matches somewhere. Raises the error flag
    /// where they cannot say, if they `quit`. `Bool`.
    RegexMatch {
        quits: bool,
    },
    /// The same and the first character (`I64`): how many matches there are from there on. Raises the error flag where that is
    /// below 1, too (`I64`).
    RegexCount {
        quits: bool,
    },
    /// The same and a number (`I64`): the character where that match begins, 0 where there are fewer. Automata of both directions.
    /// Raises the error flag where one of the numbers is below 1, too (`I64`).
    RegexPlace {
        quits: bool,
    },
    /// Text, automata of both directions, and what comes in the place of the first match, or of `all`. `Text`, made.
    RegexReplace {
        all: bool,
        quits: bool,
    },
    /// Text, characters, and those that come in their places. `Text`, made.
    Translate,
    /// Text, a number of characters (`I64`), and what fills it up at the beginning or the end. `Text`, made.
    PadStart,
    PadEnd,
    /// Text, and how often (`I64`). Raises the error flag where it becomes too long. `Text`, made.
    Repeat,
    /// The character with a number (`I64`). Raises the error flag where there is none. `Text`, made.
    OfCode,
    /// An `I64` in decimal digits, the last `scale` of them behind a point. `Text`, made.
    OfInteger {
        scale: u8,
    },
    /// A day (`I64`) as year, month and day. Raises the error flag beyond the years 0 to 9999. `Text`, made.
    OfDate,
}

impl TextFunction {
    /// Whether its results are new bytes, for which the launch needs room.
    pub fn makes(self) -> bool {
        use TextFunction::*;
        matches!(
            self,
            Concatenate { .. }
                | Join
                | Upper
                | Lower
                | Capitals
                | Reverse
                | Replace
                | RegexReplace { .. }
                | Translate
                | PadStart
                | PadEnd
                | Repeat
                | OfCode
                | OfInteger { .. }
                | OfDate
        )
    }
}

/// Bytes of one text, at most.
pub const MAX_TEXT_BYTES: u32 = i32::MAX as u32;
/// Stands for `%` in a pattern of [`TextFunction::Like`]: no byte of UTF-8.
pub const ANY_CHARACTERS: u8 = 0xff;
/// Stands for `_` in a pattern of [`TextFunction::Like`]: no byte of UTF-8.
pub const ONE_CHARACTER: u8 = 0xfe;

/// Tests of a float by IEEE 754, not by the total order: no NaN is below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatTest {
    Nan,
    /// 0.0 or -0.0.
    Zero,
    /// Below zero; -0.0 is not.
    Negative,
}

/// Some values of a lookup table, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Places {
    pub from: NodeId,
    pub to: NodeId,
    pub table: u32,
}

/// One operator of the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Node {
    /// Column `index` of the pipeline's input.
    Column {
        index: u32,
    },
    /// Kernel parameter `slot`; NULL when the parameter says so and the type is nullable.
    Literal {
        slot: u32,
    },
    /// A number that belongs to the operator, not to the query, such as 10^scale. It is text. Floats as their bits.
    Constant {
        bits: i128,
    },
    /// NULL of the node's type.
    Null,
    /// The rows of join table `table` whose keys equal these, as a [`MatchList`](super::ir::TableSpec): NULL where there are
    /// none. A NULL key equals nothing, or NULL alone, as the table says.
    Probe {
        table: u32,
        keys: Vec<NodeId>,
    },
    /// In an expanded pipeline: the number of this row among those that its source row became, from 0.
    Ordinal,
    /// The number of the row in its extent; in an expanded pipeline, that of the source row.
    SourceRow,
    /// `of`, which is not NULL in any row that gets here: an earlier filter has seen to it.
    Present {
        of: NodeId,
    },
    /// `table[code]`: a scalar function of a dictionary column, evaluated on its values. NULL codes give NULL.
    Lookup {
        code: NodeId,
        table: u32,
    },
    /// The first of these places where the table has `sought`, floats bit by bit; NULL where there is none. `nulls` says
    /// that NULL is found where the table has NULL; otherwise it is nowhere.
    Find {
        sought: NodeId,
        places: Places,
        nulls: bool,
    },
    /// At how many of these places the table has `sought`, by the same rules. Never NULL: where a place is, there are none.
    CountOf {
        sought: NodeId,
        places: Places,
        nulls: bool,
    },
    /// Whether each, or `any`, of the values from `from` to below `to` in `table` is among those of `inside`, NULL among them where that
    /// has NULL. Never NULL: where a place is, there are no values.
    Among {
        of: Places,
        inside: Places,
        any: bool,
    },
    Arithmetic {
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
        overflow: Overflow,
    },
    Negate {
        of: NodeId,
        overflow: Overflow,
    },
    Absolute {
        of: NodeId,
        overflow: Overflow,
    },
    Bitwise {
        op: Bitwise,
        left: NodeId,
        right: NodeId,
    },
    Float {
        function: FloatFunction,
        of: NodeId,
    },
    FloatTest {
        test: FloatTest,
        of: NodeId,
    },
    /// The integer of the float's width that sorts as its total order does, -0.0 below 0.0.
    FloatKey {
        of: NodeId,
    },
    /// A function of a module of its own.
    Call {
        function: Arc<Function>,
        arguments: Vec<NodeId>,
    },
    /// `of`, where `that` is not false; otherwise the overflow (`Wrap` as `Fail`), whose error is `code`.
    Require {
        of: NodeId,
        that: NodeId,
        overflow: Overflow,
        code: ErrorCode,
    },
    Compare {
        op: Comparison,
        left: NodeId,
        right: NodeId,
    },
    /// Kleene logic.
    And {
        left: NodeId,
        right: NodeId,
    },
    Or {
        left: NodeId,
        right: NodeId,
    },
    Not {
        of: NodeId,
    },
    Test {
        test: Test,
        of: NodeId,
    },
    /// The first branch whose condition is true; `otherwise` (NULL if absent) when none is. Errors only in the branch taken.
    Case {
        branches: Vec<(NodeId, NodeId)>,
        otherwise: Option<NodeId>,
    },
    /// `of IN (list)`: NULL when nothing matches and anything is NULL.
    InList {
        of: NodeId,
        list: Vec<NodeId>,
        negated: bool,
    },
    /// The same number in another representation; floats to integers truncate, integers to floats round to nearest.
    Convert {
        of: NodeId,
        overflow: Overflow,
    },
    /// Division by a constant above zero.
    DivideConstant {
        of: NodeId,
        divisor: i128,
        rounding: Rounding,
    },
    /// `of`, where it lies between the bounds; otherwise the overflow. `Wrap` promises that it does.
    Check {
        of: NodeId,
        range: Range,
        overflow: Overflow,
    },
    DatePart {
        part: DatePart,
        of: NodeId,
        unit: TimeUnit,
    },
    DateTruncate {
        grain: DateGrain,
        of: NodeId,
        unit: TimeUnit,
    },
    /// Date or timestamp plus a number of months, the day clamped to the month's last. `months` is an `I32`.
    AddMonths {
        of: NodeId,
        months: NodeId,
        unit: TimeUnit,
    },
    /// A function of strings, and what goes into it.
    Text {
        function: TextFunction,
        of: Vec<NodeId>,
    },
}

/// Why a node cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("{operator} takes no {}: cast the operands first", names(.operands))]
    Operands { operator: String, operands: Vec<Repr> },
    #[error("node {0} is not in this graph")]
    UnknownNode(u32),
    #[error("{operator} has no result: {why}")]
    Impossible { operator: String, why: String },
}

fn names(operands: &[Repr]) -> String {
    operands.iter().map(|repr| format!("{repr:?}")).collect::<Vec<_>>().join(" and ")
}

/// Expressions of a pipeline over one input row. Equal nodes are one node; children come before parents.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    nodes: Vec<(Node, Ty)>,
    known: HashMap<(Node, Ty), NodeId>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
    }
}

impl Eq for Graph {}

impl std::hash::Hash for Graph {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
    }
}

impl Graph {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    pub fn contains(&self, id: NodeId) -> bool {
        (id.0 as usize) < self.nodes.len()
    }

    /// # Panics
    /// If `id` comes from another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize].0
    }

    /// # Panics
    /// If `id` comes from another graph.
    pub fn ty(&self, id: NodeId) -> Ty {
        self.nodes[id.0 as usize].1
    }

    /// The nodes that `id` reads directly.
    pub fn inputs(&self, id: NodeId) -> Vec<NodeId> {
        self.node(id).inputs()
    }

    /// The columns that the given nodes read, ascending.
    pub fn columns(&self, roots: &[NodeId]) -> Vec<u32> {
        let mut seen = vec![false; self.nodes.len()];
        let mut columns = Vec::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            if let Node::Column { index } = self.node(id) {
                columns.push(*index);
            }
            open.extend(self.inputs(id));
        }
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The nodes among what the given ones read that make texts, each once.
    pub fn made_texts(&self, roots: &[NodeId]) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        let mut made = Vec::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            if matches!(self.node(id), Node::Text { function, .. } if function.makes()) {
                made.push(id);
            }
            open.extend(self.inputs(id));
        }
        made
    }

    /// Adds a node as it stands, or finds the equal one. The typed constructors are the usual way in.
    pub fn push(&mut self, node: Node, ty: Ty) -> NodeId {
        if let Some(&id) = self.known.get(&(node.clone(), ty)) {
            return id;
        }
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push((node.clone(), ty));
        self.known.insert((node, ty), id);
        id
    }
}

impl Node {
    /// The nodes that this one reads directly, in order of evaluation.
    pub fn inputs(&self) -> Vec<NodeId> {
        let mut inputs = Vec::new();
        self.over(|input| {
            inputs.push(input);
            input
        });
        inputs
    }

    /// The same operator over other nodes, which are asked for in order of evaluation.
    pub fn over(&self, mut to: impl FnMut(NodeId) -> NodeId) -> Node {
        let mut node = self.clone();
        match &mut node {
            Node::Column { .. }
            | Node::Literal { .. }
            | Node::Constant { .. }
            | Node::Null
            | Node::Ordinal
            | Node::SourceRow => {}
            Node::Probe { keys, .. } => keys.iter_mut().for_each(|key| *key = to(*key)),
            Node::Lookup { code, .. } => *code = to(*code),
            Node::Find { sought, places, .. } | Node::CountOf { sought, places, .. } => {
                *sought = to(*sought);
                (places.from, places.to) = (to(places.from), to(places.to));
            }
            Node::Among { of, inside, .. } => {
                for places in [of, inside] {
                    (places.from, places.to) = (to(places.from), to(places.to));
                }
            }
            Node::Arithmetic { left, right, .. }
            | Node::Bitwise { left, right, .. }
            | Node::Compare { left, right, .. }
            | Node::And { left, right }
            | Node::Or { left, right } => (*left, *right) = (to(*left), to(*right)),
            Node::Present { of }
            | Node::Negate { of, .. }
            | Node::Absolute { of, .. }
            | Node::Float { of, .. }
            | Node::FloatTest { of, .. }
            | Node::FloatKey { of }
            | Node::Not { of }
            | Node::Test { of, .. }
            | Node::Convert { of, .. }
            | Node::DivideConstant { of, .. }
            | Node::Check { of, .. }
            | Node::DatePart { of, .. }
            | Node::DateTruncate { of, .. } => *of = to(*of),
            Node::Call { arguments, .. } => arguments.iter_mut().for_each(|input| *input = to(*input)),
            Node::Require { of, that, .. } => (*of, *that) = (to(*of), to(*that)),
            Node::AddMonths { of, months, .. } => (*of, *months) = (to(*of), to(*months)),
            Node::Case { branches, otherwise } => {
                branches.iter_mut().for_each(|(when, then)| (*when, *then) = (to(*when), to(*then)));
                if let Some(otherwise) = otherwise {
                    *otherwise = to(*otherwise);
                }
            }
            Node::InList { of, list, .. } => {
                *of = to(*of);
                list.iter_mut().for_each(|item| *item = to(*item));
            }
            Node::Text { of, .. } => of.iter_mut().for_each(|input| *input = to(*input)),
        }
        node
    }
}

impl Repr {
    /// Bounds of an integer representation.
    pub fn bounds(self) -> Option<Range> {
        let (low, high) = match self {
            Repr::I8 => (i8::MIN as i128, i8::MAX as i128),
            Repr::I16 => (i16::MIN as i128, i16::MAX as i128),
            Repr::I32 => (i32::MIN as i128, i32::MAX as i128),
            Repr::I64 => (i64::MIN as i128, i64::MAX as i128),
            Repr::U8 => (0, u8::MAX as i128),
            Repr::U16 => (0, u16::MAX as i128),
            Repr::U32 => (0, u32::MAX as i128),
            Repr::U64 => (0, u64::MAX as i128),
            Repr::I128 => (i128::MIN, i128::MAX),
            Repr::Bool | Repr::F32 | Repr::F64 | Repr::Text => return None,
        };
        Some(Range { low, high })
    }

    pub fn is_integer(self) -> bool {
        self.bounds().is_some()
    }

    pub fn is_number(self) -> bool {
        self.is_integer() || self.is_float()
    }

    pub fn is_float(self) -> bool {
        matches!(self, Repr::F32 | Repr::F64)
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Repr::I8 | Repr::I16 | Repr::I32 | Repr::I64 | Repr::I128)
    }
}

impl Range {
    pub fn new(low: i128, high: i128) -> Self {
        debug_assert!(low <= high);
        Self { low, high }
    }

    pub fn contains(self, other: Range) -> bool {
        self.low <= other.low && other.high <= self.high
    }

    pub fn holds(self, value: i128) -> bool {
        self.low <= value && value <= self.high
    }

    /// The values in both, if any.
    pub fn intersect(self, other: Range) -> Option<Range> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Range { low, high })
    }

    pub fn union(self, other: Range) -> Range {
        Range { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

impl Ty {
    pub fn new(repr: Repr) -> Self {
        Self { repr, nullable: false, range: None }
    }

    pub fn nullable(mut self, nullable: bool) -> Self {
        self.nullable = nullable;
        self
    }

    /// Narrows the values to `low..=high`; bounds outside the representation are cut to it.
    pub fn within(mut self, low: i128, high: i128) -> Self {
        self.range = self.repr.bounds().map(|all| Range { low, high }.intersect(all).unwrap_or(all));
        if self.range == self.repr.bounds() {
            self.range = None;
        }
        self
    }

    /// The proven range, or all that the representation holds. `None` for booleans and floats.
    pub fn bounds(self) -> Option<Range> {
        self.range.or_else(|| self.repr.bounds())
    }
}
