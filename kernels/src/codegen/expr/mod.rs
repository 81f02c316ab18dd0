//! Expressions as PTX: one row per thread, straight-line code nearly everywhere, each node once.
//!
//!   n4 = n0 * n3  ──►  value(n4): value(n0), value(n3), mul.wide.s32      cached until the next row or scope end
//!
//! Width     a number is in the lane that its range proves; an operator computes in the narrowest lane that is exact.
//! NULL      validity is a predicate beside the value; a value that cannot be NULL has none, at no cost.
//! Errors    are raised if a row is valid, reaches the node (is in the taken CASE branches), and fails. Both sides of
//!           AND and OR are evaluated. Whether the CPU would have skipped one depends on its batches, so on an error
//!           the host repeats the work on the CPU.
//! Branches  CASE computes every side and selects; errors of the sides not taken are masked. A long IN over texts, and
//!           a search in the items of a list, are loops.

mod call;
mod choice;
mod convert;
mod date;
mod float;
mod integer;
mod lanes;
mod list;
mod text;
mod wide;

use std::collections::{HashMap, HashSet};

use millpond_ptx::build::{FunctionBuilder, ModuleBuilder, Reg, Value as Operand};

use self::lanes::Number;
use super::ir::{ErrorCode, Graph, Lane, Node, NodeId, Overflow, TimeUnit, Ty, lane};
use super::value::{CodegenError, Emit, Leaves, Value};

/// Code generator for the expressions of one row.
#[derive(Debug)]
pub struct Expressions<'g> {
    graph: &'g Graph,
    /// Per node: whether it, or one of its inputs, can fail.
    can_fail: Vec<bool>,
    reach: Vec<float::Reach>,
    known: Known,
    scopes: Vec<Known>,
}

/// Cached results of this row and scope.
#[derive(Debug, Clone, Default)]
struct Known {
    values: HashMap<NodeId, Computed>,
    truths: HashMap<NodeId, Reg>,
    /// Failure predicates of nodes, without masks.
    fails: HashMap<NodeId, Vec<(ErrorCode, Reg)>>,
    /// Failures reported under a mask, by the mask's number.
    reported: HashSet<(NodeId, usize)>,
    float_keys: HashMap<NodeId, Reg>,
    days: HashMap<(NodeId, TimeUnit), Reg>,
    civil: HashMap<Reg, date::Civil>,
    /// Number of masks created so far: mask numbers never repeat within a row.
    num_masks: usize,
}

/// A number and its validity.
#[derive(Debug, Clone, Copy)]
struct Computed {
    number: Number,
    valid: Option<Reg>,
}

impl<'g> Expressions<'g> {
    pub fn new(graph: &'g Graph) -> Self {
        let mut can_fail = vec![false; graph.len()];
        for id in graph.ids() {
            can_fail[id.0 as usize] =
                graph.fails(id) || graph.inputs(id).into_iter().any(|input| can_fail[input.0 as usize]);
        }
        Self { graph, can_fail, reach: float::Reach::of_nodes(graph), known: Known::default(), scopes: Vec::new() }
    }

    /// The type of a node.
    pub fn ty(&self, node: NodeId) -> Ty {
        self.graph.ty(node)
    }

    /// Returns the value of a node, computed here unless it is cached. [`Leaves::column`] loads each column once per
    /// row.
    ///
    /// # Errors
    /// [`CodegenError`] if a node has no device form.
    pub fn value(&mut self, emit: &mut Emit<'_>, leaves: &mut dyn Leaves, node: NodeId) -> Result<Value, CodegenError> {
        let mut row = Row::new(self, emit, leaves);
        let computed = row.node(node)?;
        Ok(row.as_value(computed))
    }

    /// The value of a node in stored form: as [`Self::value`], except that a text is the two words of its view (empty
    /// for NULL).
    ///
    /// # Errors
    /// As [`Self::value`].
    pub fn stored(
        &mut self,
        emit: &mut Emit<'_>,
        leaves: &mut dyn Leaves,
        node: NodeId,
    ) -> Result<Value, CodegenError> {
        let mut row = Row::new(self, emit, leaves);
        if let Some(view) = row.view_at_hand(node)? {
            return Ok(view);
        }
        let computed = row.node(node)?;
        match computed.number.lane {
            Lane::Text => row.view(computed),
            _ => Ok(row.as_value(computed)),
        }
    }

    /// A predicate that is true if a boolean node is true: false and NULL both give false. Used for filters.
    ///
    /// # Errors
    /// As [`Self::value`]; also if the node is not a boolean.
    pub fn truth(&mut self, emit: &mut Emit<'_>, leaves: &mut dyn Leaves, node: NodeId) -> Result<Reg, CodegenError> {
        Row::new(self, emit, leaves).truth(node)
    }

    /// Begins a branch: values computed before the matching [`Self::pop_scope`] are dropped from the cache there.
    pub fn push_scope(&mut self) {
        self.scopes.push(self.known.clone());
    }

    /// Ends the innermost scope.
    pub fn pop_scope(&mut self) {
        if let Some(outer) = self.scopes.pop() {
            self.known = outer;
        }
    }

    /// Clears the cache: the next row begins, or the row's registers are reused.
    pub fn clear(&mut self) {
        self.known = Known::default();
        self.scopes.clear();
    }
}

/// State of one row: the expressions, the builders, the active masks.
struct Row<'x, 'g> {
    graph: &'g Graph,
    can_fail: &'x [bool],
    /// Per node: the possible values as a float.
    reach: &'x [float::Reach],
    known: &'x mut Known,
    module: &'x mut ModuleBuilder,
    f: &'x mut FunctionBuilder,
    leaves: &'x mut dyn Leaves,
    /// Predicates of the enclosing CASE branches, innermost last, each with its mask number.
    masks: Vec<(usize, Reg)>,
}

impl<'x, 'g> Row<'x, 'g> {
    fn new(expressions: &'x mut Expressions<'g>, emit: &'x mut Emit<'_>, leaves: &'x mut dyn Leaves) -> Self {
        Row {
            graph: expressions.graph,
            can_fail: &expressions.can_fail,
            reach: &expressions.reach,
            known: &mut expressions.known,
            module: &mut *emit.module,
            f: &mut *emit.f,
            leaves,
            masks: Vec::new(),
        }
    }

    fn ty(&self, id: NodeId) -> Ty {
        self.graph.ty(id)
    }

    fn lane(&self, id: NodeId) -> Lane {
        lane(self.graph.ty(id))
    }

    /// Constants are put into registers at the interface.
    fn as_value(&mut self, computed: Computed) -> Value {
        let number = computed.number;
        if matches!(number.lane, Lane::S128 | Lane::Text) {
            let (low, high) = number.words(self.f);
            return Value { lane: number.lane, low, high: Some(high), valid: computed.valid };
        }
        let low = self.boolean_or_word(number);
        Value { lane: number.lane, low, high: None, valid: computed.valid }
    }

    fn boolean_or_word(&mut self, number: Number) -> Reg {
        match (number.lane, number.low) {
            (Lane::Pred, Operand::Integer(bit)) => self.f.constant_pred(bit != 0),
            _ => number.low_reg(self.f),
        }
    }

    /// The value of a node, in the lane of its type.
    fn node(&mut self, id: NodeId) -> Result<Computed, CodegenError> {
        if !self.graph.contains(id) {
            return Err(CodegenError::Malformed { what: format!("node {}", id.0), why: "is not in the graph".into() });
        }
        if let Some(&computed) = self.known.values.get(&id) {
            self.report_again(id)?;
            return Ok(computed);
        }
        self.mark_reported(id);
        let computed = self.compute(id)?;
        self.known.values.insert(id, computed);
        Ok(computed)
    }

    fn compute(&mut self, id: NodeId) -> Result<Computed, CodegenError> {
        let graph = self.graph;
        let ty = graph.ty(id);
        match graph.node(id) {
            Node::Column { index } => {
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.column(&mut emit, *index)?;
                self.leaf(value, ty)
            }
            Node::Literal { slot } => {
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.literal(&mut emit, *slot)?;
                self.leaf(value, ty)
            }
            Node::Lookup { code, table } => {
                let code = self.code(*code)?;
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.lookup(&mut emit, *table, code)?;
                self.leaf(value, ty)
            }
            Node::Find { sought, places, nulls } => self.find(*sought, *places, *nulls),
            Node::CountOf { sought, places, nulls } => self.count_of(*sought, *places, *nulls),
            Node::Among { of, inside, any } => self.among(*of, *inside, *any),
            Node::Probe { table, keys } => {
                let mut values = Vec::with_capacity(keys.len());
                for key in keys {
                    let computed = self.node(*key)?;
                    values.push(self.as_value(computed));
                }
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.probe(&mut emit, *table, &values)?;
                self.leaf(value, ty)
            }
            Node::Ordinal => {
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.ordinal(&mut emit)?;
                self.leaf(value, ty)
            }
            Node::Present { of } => Ok(Computed { valid: None, ..self.node(*of)? }),
            Node::SourceRow => {
                let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
                let value = self.leaves.source_row(&mut emit)?;
                self.leaf(value, ty)
            }
            Node::Constant { bits } => Ok(Computed { number: self.constant(ty, *bits), valid: None }),
            Node::Null => {
                let valid = self.f.constant_pred(false);
                Ok(Computed {
                    number: self.constant(ty, ty.bounds().map_or(0, |b| 0.clamp(b.low, b.high))),
                    valid: Some(valid),
                })
            }
            Node::Arithmetic { op, left, right, overflow } => {
                if ty.repr.is_float() {
                    self.float_arithmetic(*op, *left, *right)
                } else {
                    self.integer_arithmetic(id, *op, *left, *right, *overflow)
                }
            }
            Node::Negate { of, overflow } => self.negate(id, *of, *overflow),
            Node::Absolute { of, overflow } => self.absolute(id, *of, *overflow),
            Node::Bitwise { op, left, right } => self.bitwise(id, *op, *left, *right),
            Node::Float { function, of } => self.float_function(*function, *of),
            Node::FloatTest { test, of } => self.float_test(*test, *of),
            Node::FloatKey { of } => self.float_order(*of),
            Node::Call { function, arguments } => self.call_function(function, arguments),
            Node::Require { of, that, overflow, code } => self.require(id, (*of, *that), *overflow, *code),
            Node::Compare { op, left, right } => self.compare(*op, *left, *right),
            Node::And { left, right } => self.kleene(*left, *right, true),
            Node::Or { left, right } => self.kleene(*left, *right, false),
            Node::Not { of } => self.not(*of),
            Node::Test { test, of } => self.test(*test, *of),
            Node::Case { branches, otherwise } => self.case(id, branches, *otherwise),
            Node::InList { of, list, negated } => self.in_list(*of, list, *negated),
            Node::Convert { of, overflow } => self.convert(id, *of, *overflow),
            Node::DivideConstant { of, divisor, rounding } => self.divide_constant(id, *of, *divisor, *rounding),
            Node::Check { of, range, overflow } => self.check(id, *of, *range, *overflow),
            Node::DatePart { part, of, unit } => self.date_part(id, *part, *of, *unit),
            Node::DateTruncate { grain, of, unit } => self.date_truncate(id, *grain, *of, *unit),
            Node::AddMonths { of, months, unit } => self.add_months(id, *of, *months, *unit),
            Node::Text { function, of } => self.text(id, *function, of),
        }
    }

    /// Code of a lookup.
    fn code(&mut self, code: NodeId) -> Result<Value, CodegenError> {
        let Computed { number, valid } = self.node(code)?;
        Ok(Value { lane: number.lane, low: number.low_reg(self.f), high: None, valid })
    }

    /// Checks that a value from outside is in the lane of its type.
    fn leaf(&mut self, value: Value, ty: Ty) -> Result<Computed, CodegenError> {
        let wanted = lane(ty);
        if value.lane != wanted {
            let why = format!("comes as {:?} where its type needs {wanted:?}", value.lane);
            return Err(CodegenError::Malformed { what: "a leaf".into(), why });
        }
        let number = match value.high {
            Some(high) if wanted == Lane::S128 => Number::wide(value.low, high),
            Some(high) if wanted == Lane::Text => Number::text(value.low, high),
            _ => Number::reg(wanted, value.low),
        };
        Ok(Computed { number, valid: value.valid.filter(|_| ty.nullable) })
    }

    fn constant(&mut self, ty: Ty, bits: i128) -> Number {
        match lane(ty) {
            Lane::F32 => Number { lane: Lane::F32, low: Operand::F32(f32::from_bits(bits as u32)), high: None },
            Lane::F64 => Number { lane: Lane::F64, low: Operand::F64(f64::from_bits(bits as u64)), high: None },
            Lane::Pred => Number::reg(Lane::Pred, self.f.constant_pred(bits != 0)),
            lane => Number::constant(lane, bits),
        }
    }

    // Validity.

    /// Validity of two operands together.
    fn both_valid(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
        match (a, b) {
            (Some(a), Some(b)) if a == b => Some(a),
            (Some(a), Some(b)) => Some(self.f.and(a, b)),
            (one, other) => one.or(other),
        }
    }

    /// A predicate, restricted to valid rows.
    fn where_valid(&mut self, what: Reg, valid: Option<Reg>) -> Reg {
        match valid {
            Some(valid) => self.f.and(what, valid),
            None => what,
        }
    }

    // Errors.

    /// Handles rows where a node's result does not fit: raises an error, or makes the result NULL. Returns the result's
    /// validity.
    fn overflowed(
        &mut self,
        id: NodeId,
        code: ErrorCode,
        when: Reg,
        valid: Option<Reg>,
        overflow: Overflow,
    ) -> Result<Option<Reg>, CodegenError> {
        match overflow {
            Overflow::Null => {
                let fits = self.f.not(when);
                Ok(Some(self.where_valid(fits, valid)))
            }
            Overflow::Fail | Overflow::Wrap => {
                let when = self.where_valid(when, valid);
                self.fail(id, code, when)?;
                Ok(valid)
            }
        }
    }

    /// Records where a node fails, and reports it for the rows that reach it.
    fn fail(&mut self, id: NodeId, code: ErrorCode, when: Reg) -> Result<(), CodegenError> {
        self.known.fails.entry(id).or_default().push((code, when));
        self.report(id, code, when)
    }

    fn report(&mut self, id: NodeId, code: ErrorCode, when: Reg) -> Result<(), CodegenError> {
        let when = match self.masks.last() {
            Some(&(_, mask)) => self.f.and(when, mask),
            None => when,
        };
        let mut emit = Emit { module: &mut *self.module, f: &mut *self.f };
        self.leaves.raise(&mut emit, code, id, when)
    }

    fn mask_number(&self) -> usize {
        self.masks.last().map_or(0, |&(number, _)| number)
    }

    fn mark_reported(&mut self, id: NodeId) {
        if self.can_fail[id.0 as usize] {
            let mask = self.mask_number();
            self.known.reported.insert((id, mask));
        }
    }

    /// Reports the failures of a cached value under the current mask, unless that was done before.
    fn report_again(&mut self, id: NodeId) -> Result<(), CodegenError> {
        if !self.can_fail[id.0 as usize] {
            return Ok(());
        }
        let covered = self.known.reported.contains(&(id, 0))
            || self.masks.iter().any(|&(mask, _)| self.known.reported.contains(&(id, mask)));
        if covered {
            return Ok(());
        }
        self.mark_reported(id);
        for (code, when) in self.known.fails.get(&id).cloned().unwrap_or_default() {
            self.report(id, code, when)?;
        }
        let graph = self.graph;
        match graph.node(id) {
            Node::Case { branches, otherwise } => self.case(id, branches, *otherwise).map(|_| ()),
            node => node.inputs().into_iter().try_for_each(|input| self.report_again(input)),
        }
    }

    /// Runs `body` with errors restricted to rows where `mask` is true.
    fn masked<T>(
        &mut self,
        mask: Reg,
        body: impl FnOnce(&mut Self) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        self.known.num_masks += 1;
        let number = self.known.num_masks;
        let mask = match self.masks.last() {
            Some(&(_, outer)) => self.f.and(outer, mask),
            None => mask,
        };
        self.masks.push((number, mask));
        let result = body(self);
        self.masks.pop();
        result
    }
}
