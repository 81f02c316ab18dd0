//! The expression language of pipelines: a hash-consed graph of typed nodes over one row.
//!
//!   l_extendedprice * (1 - l_discount)          n0 column 0   n1 literal 0   n2 column 1
//!                                               n3 = n1 - n2      n4 = n0 * n3
//!
//! Types    `Repr` determines the meaning (where a value wraps, where it overflows); the proven range determines the
//!          computed width. Dates are `I32` days; times, timestamps and durations `I64`; decimals `I128` scaled
//!          integers of any precision (`I32` or `I64` for Decimal32 and Decimal64); dictionary strings `U32` codes;
//!          other strings `Text`.
//! NULL     the value of a NULL row is unspecified: it may be outside its range, and never raises an error. A text is
//!          readable.
//! Errors   `Overflow::Fail` raises the error flag for valid rows that reach the node; `Overflow::Null` gives NULL
//!          instead.
//! Sharing  equal nodes are one node, so a common subexpression is computed once per row.
//! Literals are parameters. A range of a literal is part of the structure: give its number of digits, not its value.

mod dates;
mod leaves;
mod operators;
mod range;
mod ty;

use std::collections::HashMap;
use std::sync::Arc;

use crate::codegen::function::Function;
use crate::codegen::ir::ErrorCode;
use crate::codegen::text_function::TextFunction;

pub(crate) use range::{calendar, per_day};
pub use ty::{Range, Repr, Ty};

/// A node of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Treatment of a valid row whose result does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Wraps at the width of `repr`, as DataFusion's integers do.
    Wrap,
    /// Raises the error flag.
    Fail,
    /// The result is NULL (TRY_CAST).
    Null,
}

/// Binary arithmetic. Division and remainder truncate; a zero divisor raises the error flag (floats follow IEEE 754).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Bitwise operations on integers; shift counts are taken modulo the width, as in arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bitwise {
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// Comparison of two values. Floats compare in IEEE total order with -0.0 equal to 0.0, as in DataFusion.
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
    /// As `Equal`, but floats are equal only if their bits are: for IN, NULLIF and `CASE x WHEN`.
    Identical,
}

/// Tests whose result is never NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    IsNull,
    IsNotNull,
    IsTrue,
    IsNotTrue,
    IsFalse,
    IsNotFalse,
}

/// Rounding of a division by a constant.
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
/// calendar's years -262143 … 262142 have no fields: the result is NULL.
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
    /// Seconds of the minute with their fraction, in whole milliseconds; the next two likewise in their units.
    Millisecond,
    Microsecond,
    Nanosecond,
    /// Seconds since 1970, with fraction.
    Epoch,
}

/// Start of a period, for `date_trunc`.
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
    /// The nearest 16-bit float, ties to even, represented as `F32`. For `F32` only.
    Narrow,
}

/// Maximum bytes of one text.
pub const MAX_TEXT_BYTES: u32 = i32::MAX as u32;
/// Byte for `%` in a pattern of [`TextFunction::Like`]; it does not occur in UTF-8.
pub const ANY_CHARACTERS: u8 = 0xff;
/// Byte for `_` in a pattern of [`TextFunction::Like`]; it does not occur in UTF-8.
pub const ONE_CHARACTER: u8 = 0xfe;

/// Tests of a float by IEEE 754 instead of the total order: no NaN is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatTest {
    Nan,
    /// 0.0 or -0.0.
    Zero,
    /// Below zero; -0.0 is not.
    Negative,
}

/// A range of consecutive entries of a lookup table.
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
    /// Kernel parameter `slot`; if the type is nullable, a second parameter says whether it is NULL.
    Literal {
        slot: u32,
    },
    /// A number that belongs to the operator, not to the query, such as 10^scale. It is part of the kernel's text.
    /// Floats are given by their bits.
    Constant {
        bits: i128,
    },
    /// NULL of the node's type.
    Null,
    /// Rows of join table `table` with these keys, as a [`MatchList`](super::ir::TableSpec); NULL without a match. The
    /// table determines whether a NULL key equals NULL or nothing.
    Probe {
        table: u32,
        keys: Vec<NodeId>,
    },
    /// In an expanded pipeline: index of this row among the rows of its source row, from 0.
    Ordinal,
    /// Index of the row in its extent; in an expanded pipeline, that of the source row.
    SourceRow,
    /// `of` as a non-nullable value: an earlier filter has removed its NULLs.
    Present {
        of: NodeId,
    },
    /// `table[code]`: a scalar function of a dictionary column, evaluated over its values. A NULL code gives NULL.
    Lookup {
        code: NodeId,
        table: u32,
    },
    /// First of these places at which the table has `sought` (floats by their bits); NULL if there is none. With
    /// `nulls`, NULL matches a NULL in the table; otherwise it matches nothing.
    Find {
        sought: NodeId,
        places: Places,
        nulls: bool,
    },
    /// Number of these places at which the table has `sought`, by the rules of `Find`. Never NULL: if a place is NULL,
    /// the range is empty.
    CountOf {
        sought: NodeId,
        places: Places,
        nulls: bool,
    },
    /// Whether each value of `of` (or `any` value) occurs among those of `inside`; NULL matches NULL. Never NULL: if a
    /// place is NULL, its range is empty.
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
    /// Integer of the float's width that sorts in the float's total order, with -0.0 below 0.0.
    FloatKey {
        of: NodeId,
    },
    /// Call of a function in a separate module.
    Call {
        function: Arc<Function>,
        arguments: Vec<NodeId>,
    },
    /// `of` if `that` is not false; otherwise the overflow, with error `code` (`Wrap` acts as `Fail`).
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
    /// The first branch whose condition is true; otherwise `otherwise` (NULL if absent). Only the taken branch raises
    /// errors.
    Case {
        branches: Vec<(NodeId, NodeId)>,
        otherwise: Option<NodeId>,
    },
    /// `of IN (list)`: NULL if nothing matches and any operand is NULL.
    InList {
        of: NodeId,
        list: Vec<NodeId>,
        negated: bool,
    },
    /// A number in another representation; floats to integers truncate, integers to floats round to nearest.
    Convert {
        of: NodeId,
        overflow: Overflow,
    },
    /// Division by a positive constant.
    DivideConstant {
        of: NodeId,
        divisor: i128,
        rounding: Rounding,
    },
    /// `of` if it is between the bounds; otherwise the overflow. `Wrap` promises that it is.
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
    /// Date or timestamp plus months; the day is clamped to the last day of the month. `months` is an `I32`.
    AddMonths {
        of: NodeId,
        months: NodeId,
        unit: TimeUnit,
    },
    /// A text function and its arguments.
    Text {
        function: TextFunction,
        of: Vec<NodeId>,
    },
}

/// Reason why a node cannot be created.
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

/// Expressions of a pipeline over one input row. Equal nodes are one node; children precede parents.
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
    /// If `id` is from another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize].0
    }

    /// # Panics
    /// If `id` is from another graph.
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

    /// Nodes below the given ones that create texts, once each.
    pub fn new_texts(&self, roots: &[NodeId]) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        let mut texts = Vec::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            if matches!(self.node(id), Node::Text { function, .. } if function.spec().arena.is_some()) {
                texts.push(id);
            }
            open.extend(self.inputs(id));
        }
        texts
    }

    /// Adds a node without checks, or finds an equal one. Use the typed constructors if possible.
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

    /// Replaces the input nodes, in order of evaluation, by the results of `to`.
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
