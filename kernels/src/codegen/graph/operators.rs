//! Constructors of nodes: each checks its operands and infers type and range of the result.
//!
//! ```text
//!   l_discount ∈ [0, 10]                        1 - l_discount ∈ [90, 100]
//!   l_extendedprice ∈ [90000, 10494950]         price * (1 - discount) ∈ [8100000, 1049495000]: 32 bits, unchecked
//! ```
//!
//! Ranges   interval arithmetic over the operands' ranges. A result that provably fits needs neither check nor
//!          wrapping: the node's `Overflow` becomes `Wrap`, so that equal computations are equal nodes.
//! NULL     a result is nullable if an operand is, if `Overflow::Null` may apply, or if the operator's doc says so.

use super::range::*;
use super::*;
use crate::codegen::ir::ErrorCode;
use crate::codegen::text_function::{NullRule, Raises, TextFunction};

impl Graph {
    // Numbers

    /// `left op right` of two numbers of one representation.
    ///
    /// Integers follow `overflow`. Division and remainder by zero raise the error flag under `Wrap` and `Fail`, and
    /// give NULL under `Null`. The minimum divided by -1 overflows (`Wrap` also raises the error flag, as in arrow).
    ///
    /// # Errors
    /// If the operands are not numbers of one representation.
    pub fn arithmetic(
        &mut self,
        op: Arithmetic,
        left: NodeId,
        right: NodeId,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        self.expect(name_of(op), &[left, right], Repr::is_number)?;
        let (l, r) = (self.ty(left), self.ty(right));
        let nullable = l.nullable || r.nullable;
        let (Some(a), Some(b)) = (l.bounds(), r.bounds()) else {
            let node = Node::Arithmetic { op, left, right, overflow: Overflow::Wrap };
            return Ok(self.push(node, Ty::new(l.repr).nullable(nullable)));
        };
        let all = l.repr.bounds().expect("an integer has bounds");
        let exact = match op {
            Arithmetic::Add => sum(a, b),
            Arithmetic::Subtract => negated(b).and_then(|b| sum(a, b)),
            Arithmetic::Multiply => product(a, b),
            Arithmetic::Divide => quotient(a, b),
            Arithmetic::Remainder => Some(remainder(a, b)),
        };
        let divides = matches!(op, Arithmetic::Divide | Arithmetic::Remainder);
        let safe = exact.is_some_and(|exact| all.contains(exact));
        let range = match exact {
            Some(exact) if all.contains(exact) => exact,
            Some(exact) if overflow != Overflow::Wrap || divides => exact.intersect(all).unwrap_or(all),
            _ => all,
        };
        // Division keeps its mode while the divisor may be zero: that is an error or NULL, never wrapped.
        let proven = safe && !(divides && b.holds(0));
        let nullable = nullable || (overflow == Overflow::Null && !proven);
        let overflow = if proven { Overflow::Wrap } else { overflow };
        let ty = Ty::new(l.repr).nullable(nullable).within(range.low, range.high);
        Ok(self.push(Node::Arithmetic { op, left, right, overflow }, ty))
    }

    /// `-of`. Arrow checks overflow here, except for floats; unsigned numbers are rejected.
    ///
    /// # Errors
    /// If the operand is unsigned or a boolean.
    pub fn negate(&mut self, of: NodeId, overflow: Overflow) -> Result<NodeId, GraphError> {
        self.expect("unary minus", &[of], |repr| repr.is_signed() || repr.is_float())?;
        let (range, safe) = self.unary_range(of, negated);
        let ty = self.checked_type(of, range, safe, overflow);
        Ok(self.push(Node::Negate { of, overflow: if safe { Overflow::Wrap } else { overflow } }, ty))
    }

    /// The absolute value.
    ///
    /// # Errors
    /// If the operand is a boolean.
    pub fn absolute(&mut self, of: NodeId, overflow: Overflow) -> Result<NodeId, GraphError> {
        self.expect("abs", &[of], Repr::is_number)?;
        if self.ty(of).bounds().is_some_and(|bounds| bounds.low >= 0) {
            return Ok(of);
        }
        let (range, safe) = self.unary_range(of, magnitude);
        let ty = self.checked_type(of, range, safe, overflow);
        Ok(self.push(Node::Absolute { of, overflow: if safe { Overflow::Wrap } else { overflow } }, ty))
    }

    /// Bitwise operation on integers.
    ///
    /// # Errors
    /// If the operands are not integers of one representation of at most 64 bits.
    pub fn bitwise(&mut self, op: Bitwise, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        self.expect("a bitwise operator", &[left, right], |repr| repr.is_integer() && repr != Repr::I128)?;
        let (l, r) = (self.ty(left), self.ty(right));
        let mut ty = Ty::new(l.repr).nullable(l.nullable || r.nullable);
        if let (Bitwise::And, Some(a), Some(b)) = (op, l.bounds(), r.bounds())
            && a.low >= 0
            && b.low >= 0
        {
            ty = ty.within(0, a.high.min(b.high));
        }
        Ok(self.push(Node::Bitwise { op, left, right }, ty))
    }

    /// A function of one float.
    ///
    /// # Errors
    /// If the operand is not a float, or for `Narrow` not an `F32`.
    pub fn float_function(&mut self, function: FloatFunction, of: NodeId) -> Result<NodeId, GraphError> {
        self.expect("a float function", &[of], |repr| match function {
            FloatFunction::Narrow => repr == Repr::F32,
            _ => repr.is_float(),
        })?;
        let ty = self.ty(of);
        Ok(self.push(Node::Float { function, of }, ty))
    }

    /// A test of a float.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn float_test(&mut self, test: FloatTest, of: NodeId) -> Result<NodeId, GraphError> {
        self.expect("a test of a float", &[of], Repr::is_float)?;
        let ty = Ty::new(Repr::Bool).nullable(self.ty(of).nullable);
        Ok(self.push(Node::FloatTest { test, of }, ty))
    }

    /// Integer that sorts in the float's total order, with -0.0 below 0.0: `I32` for `F32`, `I64` for `F64`.
    ///
    /// # Errors
    /// If the operand is not a float.
    pub fn float_key(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        self.expect("the order of floats", &[of], Repr::is_float)?;
        let repr = if self.ty(of).repr == Repr::F32 { Repr::I32 } else { Repr::I64 };
        let ty = Ty::new(repr).nullable(self.ty(of).nullable);
        Ok(self.push(Node::FloatKey { of }, ty))
    }

    /// `of`; an error, or NULL, if `that` is false. Nothing fails if either is NULL.
    ///
    /// # Errors
    /// If `that` is not a boolean.
    pub fn require(&mut self, of: NodeId, that: NodeId, overflow: Overflow) -> Result<NodeId, GraphError> {
        self.required(of, that, overflow, ErrorCode::Overflow)
    }

    /// `of`; [`ErrorCode::Undecided`] if `that` is false. Nothing fails if either is NULL.
    ///
    /// # Errors
    /// If `that` is not a boolean.
    pub fn decided(&mut self, of: NodeId, that: NodeId) -> Result<NodeId, GraphError> {
        self.required(of, that, Overflow::Fail, ErrorCode::Undecided)
    }

    fn required(
        &mut self,
        of: NodeId,
        that: NodeId,
        overflow: Overflow,
        code: ErrorCode,
    ) -> Result<NodeId, GraphError> {
        self.logic("a requirement", &[that])?;
        if !self.contains(of) {
            return Err(GraphError::UnknownNode(of.0));
        }
        let ty = self.ty(of);
        let ty = ty.nullable(ty.nullable || overflow == Overflow::Null);
        Ok(self.push(Node::Require { of, that, overflow, code }, ty))
    }

    /// `of / divisor` with the given rounding. The divisor is part of the structure.
    ///
    /// # Errors
    /// If the operand is not an integer, or the divisor is below one.
    pub fn divide_constant(&mut self, of: NodeId, divisor: i128, rounding: Rounding) -> Result<NodeId, GraphError> {
        self.expect("division by a constant", &[of], |repr| repr.is_integer() && divisor > 0)?;
        if divisor == 1 {
            return Ok(of);
        }
        let ty = self.ty(of);
        let bounds = ty.bounds().expect("an integer has bounds");
        let (low, high) = (divide(bounds.low, divisor, rounding), divide(bounds.high, divisor, rounding));
        Ok(self.push(Node::DivideConstant { of, divisor, rounding }, ty.within(low, high)))
    }

    /// `of` if it is in `range`; otherwise an error or NULL.
    ///
    /// # Errors
    /// If the operand is not an integer.
    pub fn check(&mut self, of: NodeId, range: Range, overflow: Overflow) -> Result<NodeId, GraphError> {
        self.expect("a range check", &[of], Repr::is_integer)?;
        let ty = self.ty(of);
        let bounds = ty.bounds().expect("an integer has bounds");
        if range.contains(bounds) || overflow == Overflow::Wrap {
            return Ok(of);
        }
        let inside = bounds.intersect(range).unwrap_or(Range::new(range.low, range.low));
        let ty = ty.within(inside.low, inside.high).nullable(ty.nullable || overflow == Overflow::Null);
        Ok(self.push(Node::Check { of, range, overflow }, ty))
    }

    /// `of` with a range known to the caller, unchecked. A wrong range gives wrong results.
    pub fn assume(&mut self, of: NodeId, range: Range) -> NodeId {
        let ty = self.ty(of);
        match ty.bounds() {
            Some(own) if !range.contains(own) => {
                let inside = own.intersect(range).unwrap_or(range);
                let node = Node::Check { of, range, overflow: Overflow::Wrap };
                self.push(node, ty.within(inside.low, inside.high))
            }
            _ => of,
        }
    }

    /// `of` with a range extended to include `range`: as wide in registers and in memory as another value of that
    /// range.
    pub fn widen(&mut self, of: NodeId, range: Range) -> NodeId {
        let ty = self.ty(of);
        match ty.bounds() {
            Some(own) if !own.contains(range) => {
                let both = own.union(range);
                self.push(Node::Convert { of, overflow: Overflow::Wrap }, ty.within(both.low, both.high))
            }
            _ => of,
        }
    }

    /// A number in another representation. Floats to integers truncate; values that do not fit, including NaN, follow
    /// `overflow`; integers wrap under `Wrap`. Booleans are 0 and 1; numbers are true unless zero.
    ///
    /// # Errors
    /// For `Wrap` of a float, and between texts and any other representation.
    pub fn convert(&mut self, of: NodeId, repr: Repr, overflow: Overflow) -> Result<NodeId, GraphError> {
        let from = self.ty(of);
        if from.repr == repr {
            return Ok(of);
        }
        if from.repr == Repr::Text || repr == Repr::Text {
            return Err(GraphError::Operands { operator: "a conversion".into(), operands: vec![from.repr, repr] });
        }
        if from.repr.is_float() && repr.is_integer() && overflow == Overflow::Wrap {
            return Err(GraphError::Operands { operator: "a wrapping conversion".into(), operands: vec![from.repr] });
        }
        let mut ty = Ty::new(repr).nullable(from.nullable);
        let mut overflow = overflow;
        match (from.bounds(), repr.bounds()) {
            (Some(bounds), Some(all)) if all.contains(bounds) => {
                ty = ty.within(bounds.low, bounds.high);
                overflow = Overflow::Wrap;
            }
            (Some(bounds), Some(all)) if overflow != Overflow::Wrap => {
                let inside = bounds.intersect(all).unwrap_or(all);
                ty = ty.within(inside.low, inside.high).nullable(from.nullable || overflow == Overflow::Null);
            }
            (Some(_), Some(_)) => {}
            (None, Some(_)) if from.repr == Repr::Bool => {
                ty = ty.within(0, 1);
                overflow = Overflow::Wrap;
            }
            (None, Some(_)) => ty = ty.nullable(from.nullable || overflow == Overflow::Null),
            (_, None) => overflow = Overflow::Wrap,
        }
        Ok(self.push(Node::Convert { of, overflow }, ty))
    }

    // Truth

    /// Compares two values of one representation.
    ///
    /// # Errors
    /// If the representations differ.
    pub fn compare(&mut self, op: Comparison, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        self.expect("a comparison", &[left, right], |_| true)?;
        let total = matches!(op, Comparison::Distinct | Comparison::NotDistinct);
        let (l, r) = (self.ty(left), self.ty(right));
        // Two values that are never NULL are distinct if and only if they differ.
        let op = match op {
            Comparison::Distinct if !l.nullable && !r.nullable => Comparison::NotEqual,
            Comparison::NotDistinct if !l.nullable && !r.nullable => Comparison::Equal,
            Comparison::Identical if !l.repr.is_float() => Comparison::Equal,
            op => op,
        };
        let ty = Ty::new(Repr::Bool).nullable(!total && (l.nullable || r.nullable));
        Ok(self.push(Node::Compare { op, left, right }, ty))
    }

    /// Kleene AND.
    ///
    /// # Errors
    /// If an operand is not a boolean.
    pub fn and(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let ty = self.logic("AND", &[left, right])?;
        Ok(if left == right { left } else { self.push(Node::And { left, right }, ty) })
    }

    /// Kleene OR.
    ///
    /// # Errors
    /// If an operand is not a boolean.
    pub fn or(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let ty = self.logic("OR", &[left, right])?;
        Ok(if left == right { left } else { self.push(Node::Or { left, right }, ty) })
    }

    /// Kleene NOT.
    ///
    /// # Errors
    /// If the operand is not a boolean.
    pub fn not(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        let ty = self.logic("NOT", &[of])?;
        Ok(self.push(Node::Not { of }, ty))
    }

    /// `IS [NOT] NULL`, `TRUE`, `FALSE`; `UNKNOWN` is NULL of a boolean.
    ///
    /// # Errors
    /// If a truth test has an operand that is not a boolean.
    pub fn test(&mut self, test: Test, of: NodeId) -> Result<NodeId, GraphError> {
        let nullable = self.ty(of).nullable;
        match test {
            // An operand that can fail must still be computed.
            Test::IsNull | Test::IsNotNull if !nullable && !self.can_fail(of) => {
                return Ok(self.boolean(test == Test::IsNotNull));
            }
            Test::IsNull | Test::IsNotNull => {}
            _ => {
                self.logic("a truth test", &[of])?;
                match test {
                    Test::IsTrue | Test::IsNotFalse if !nullable => return Ok(of),
                    Test::IsFalse | Test::IsNotTrue if !nullable => return self.not(of),
                    _ => {}
                }
            }
        }
        Ok(self.push(Node::Test { test, of }, Ty::new(Repr::Bool)))
    }

    /// True if the node, or any node that it reads, can raise the error flag.
    pub fn can_fail(&self, of: NodeId) -> bool {
        let mut seen = vec![false; of.0 as usize + 1];
        let mut open = vec![of];
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut seen[id.0 as usize], true) {
                if self.fails(id) {
                    return true;
                }
                open.extend(self.inputs(id));
            }
        }
        false
    }

    /// True if the node itself can raise the error flag.
    pub(crate) fn fails(&self, id: NodeId) -> bool {
        match self.node(id) {
            Node::Arithmetic { op, left, right, overflow } => {
                let divides = matches!(op, Arithmetic::Divide | Arithmetic::Remainder);
                let (Some(a), Some(b)) = (self.ty(*left).bounds(), self.ty(*right).bounds()) else { return false };
                let lowest = self.ty(*left).repr.bounds().map_or(0, |all| all.low);
                let extreme = lowest < 0 && a.holds(lowest) && b.holds(-1) && *op == Arithmetic::Divide;
                *overflow == Overflow::Fail || (divides && *overflow == Overflow::Wrap && (b.holds(0) || extreme))
            }
            Node::Negate { overflow, .. }
            | Node::Absolute { overflow, .. }
            | Node::Convert { overflow, .. }
            | Node::Check { overflow, .. } => *overflow == Overflow::Fail,
            Node::Require { overflow, .. } => *overflow != Overflow::Null,
            Node::DateTruncate { .. } | Node::AddMonths { .. } => true,
            Node::Text { function, of } => match function.spec().raises {
                Raises::Never => false,
                Raises::Always => true,
                Raises::Outside(ranges) => ranges
                    .iter()
                    .any(|&(operand, range)| self.ty(of[operand]).bounds().is_none_or(|all| !range.contains(all))),
            },
            _ => false,
        }
    }

    // Texts

    /// A text function; [`TextFunction`] documents its arguments and results.
    ///
    /// # Errors
    /// If the operands do not match.
    pub fn text(&mut self, function: TextFunction, of: &[NodeId]) -> Result<NodeId, GraphError> {
        if let Some(id) = of.iter().find(|id| !self.contains(**id)) {
            return Err(GraphError::UnknownNode(id.0));
        }
        let given: Vec<Repr> = of.iter().map(|id| self.ty(*id).repr).collect();
        let spec = function.spec();
        if !spec.accepts(&given) {
            return Err(GraphError::Operands { operator: format!("{function:?}"), operands: given });
        }
        let nullable = |of: &[NodeId]| of.iter().any(|id| self.ty(*id).nullable);
        let ty = spec.gives.nullable(match spec.nulls {
            NullRule::Strict => nullable(of),
            NullRule::StrictOrUndefined => true,
            NullRule::OfFirst => nullable(&of[..1]),
            NullRule::Never => false,
        });
        Ok(self.push(Node::Text { function, of: of.to_vec() }, ty))
    }

    // Choice

    /// CASE WHEN … THEN … ELSE … END, without branches that have no effect. Write `CASE x WHEN v` with
    /// [`Comparison::Identical`].
    ///
    /// # Errors
    /// If a condition is not a boolean, or the results have different representations.
    pub fn case(&mut self, branches: Vec<(NodeId, NodeId)>, otherwise: Option<NodeId>) -> Result<NodeId, GraphError> {
        let conditions: Vec<NodeId> = branches.iter().map(|&(when, _)| when).collect();
        self.logic("CASE WHEN", &conditions)?;
        let results: Vec<NodeId> = branches.iter().map(|&(_, then)| then).chain(otherwise).collect();
        self.expect("CASE", &results, |_| true)?;
        let Some(&first) = results.first() else {
            return Err(GraphError::Operands { operator: "CASE without branches".into(), operands: vec![] });
        };
        let nullable = otherwise.is_none()
            || branches.iter().any(|&(when, then)| self.branch_nullable(when, then))
            || otherwise.is_some_and(|node| self.ty(node).nullable);
        let ty = self.union_of(self.ty(first).repr, &results).nullable(nullable);
        let branches = self.taken_branches(branches, otherwise);
        Ok(match otherwise {
            Some(otherwise) if branches.is_empty() => otherwise,
            _ => self.push(Node::Case { branches, otherwise }, ty),
        })
    }

    /// Drops branches whose condition repeats an earlier one, and last branches whose result equals the ELSE value.
    fn taken_branches(&self, branches: Vec<(NodeId, NodeId)>, otherwise: Option<NodeId>) -> Vec<(NodeId, NodeId)> {
        let mut taken: Vec<(NodeId, NodeId)> = Vec::with_capacity(branches.len());
        for (when, then) in branches {
            if taken.iter().all(|&(earlier, _)| earlier != when) {
                taken.push((when, then));
            }
        }
        // A condition that can fail must still be computed.
        while taken.last().is_some_and(|&(when, then)| Some(then) == otherwise && !self.can_fail(when)) {
            taken.pop();
        }
        taken
    }

    /// A result that is taken only if it is not NULL is never NULL.
    fn branch_nullable(&self, when: NodeId, then: NodeId) -> bool {
        let guarded = matches!(self.node(when), Node::Test { test: Test::IsNotNull, of } if *of == then);
        self.ty(then).nullable && !guarded
    }

    /// The first argument that is not NULL; a later argument is evaluated only if the earlier ones are NULL.
    ///
    /// # Errors
    /// If there are no arguments, or different representations.
    pub fn coalesce(&mut self, arguments: &[NodeId]) -> Result<NodeId, GraphError> {
        let Some((&last, earlier)) = arguments.split_last() else {
            return Err(GraphError::Operands { operator: "COALESCE without arguments".into(), operands: vec![] });
        };
        let mut branches = Vec::new();
        let mut otherwise = last;
        for &argument in earlier {
            if !self.ty(argument).nullable {
                otherwise = argument;
                break;
            }
            branches.push((self.test(Test::IsNotNull, argument)?, argument));
        }
        if branches.is_empty() { Ok(otherwise) } else { self.case(branches, Some(otherwise)) }
    }

    /// NULL if `left = right`, else `left`.
    ///
    /// # Errors
    /// If the representations differ.
    pub fn null_if(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        let equal = self.compare(Comparison::Identical, left, right)?;
        let null = self.null(self.ty(left).repr);
        self.case(vec![(equal, null)], Some(left))
    }

    /// `of IN (list)` or `of NOT IN (list)`.
    ///
    /// # Errors
    /// If the representations differ.
    pub fn in_list(&mut self, of: NodeId, list: Vec<NodeId>, negated: bool) -> Result<NodeId, GraphError> {
        let all: Vec<NodeId> = std::iter::once(of).chain(list.iter().copied()).collect();
        self.expect("IN", &all, |_| true)?;
        let nullable = all.iter().any(|&node| self.ty(node).nullable);
        Ok(self.push(Node::InList { of, list, negated }, Ty::new(Repr::Bool).nullable(nullable)))
    }

    /// `of BETWEEN low AND high`: `of >= low AND of <= high`.
    ///
    /// # Errors
    /// If the representations differ.
    pub fn between(&mut self, of: NodeId, low: NodeId, high: NodeId, negated: bool) -> Result<NodeId, GraphError> {
        let above = self.compare(Comparison::GreaterEqual, of, low)?;
        let below = self.compare(Comparison::LessEqual, of, high)?;
        let inside = self.and(above, below)?;
        if negated { self.not(inside) } else { Ok(inside) }
    }

    /// `0 <= of AND of < high`, or `<=`, of one representation.
    ///
    /// # Errors
    /// If the representations differ, or `of` is not an integer.
    pub fn between_zero_and(&mut self, of: NodeId, high: NodeId, below: Comparison) -> Result<NodeId, GraphError> {
        let zero = self.integer(0, self.ty(of).repr);
        let above = self.compare(Comparison::GreaterEqual, of, zero)?;
        let below = self.compare(below, of, high)?;
        self.and(above, below)
    }

    // Helpers

    pub(super) fn expect(
        &self,
        operator: &str,
        operands: &[NodeId],
        accepts: impl Fn(Repr) -> bool,
    ) -> Result<(), GraphError> {
        if let Some(id) = operands.iter().find(|id| !self.contains(**id)) {
            return Err(GraphError::UnknownNode(id.0));
        }
        let reprs: Vec<Repr> = operands.iter().map(|&id| self.ty(id).repr).collect();
        if reprs.iter().any(|&repr| !accepts(repr) || repr != reprs[0]) {
            return Err(GraphError::Operands { operator: operator.into(), operands: reprs });
        }
        Ok(())
    }

    fn logic(&self, operator: &str, operands: &[NodeId]) -> Result<Ty, GraphError> {
        self.expect(operator, operands, |repr| repr == Repr::Bool)?;
        Ok(Ty::new(Repr::Bool).nullable(operands.iter().any(|&id| self.ty(id).nullable)))
    }

    /// The range computed by `f`, and whether the representation holds it. Floats are always safe.
    fn unary_range(&self, of: NodeId, f: impl Fn(Range) -> Option<Range>) -> (Option<Range>, bool) {
        let ty = self.ty(of);
        let (Some(bounds), Some(all)) = (ty.bounds(), ty.repr.bounds()) else { return (None, true) };
        match f(bounds) {
            Some(exact) if all.contains(exact) => (Some(exact), true),
            Some(exact) => (exact.intersect(all), false),
            None => (None, false),
        }
    }

    fn checked_type(&self, of: NodeId, range: Option<Range>, safe: bool, overflow: Overflow) -> Ty {
        let from = self.ty(of);
        let ty = Ty::new(from.repr).nullable(from.nullable || (overflow == Overflow::Null && !safe));
        match range {
            Some(range) if safe || overflow != Overflow::Wrap => ty.within(range.low, range.high),
            _ => ty,
        }
    }

    fn union_of(&self, repr: Repr, nodes: &[NodeId]) -> Ty {
        let mut union: Option<Range> = None;
        for &node in nodes {
            if *self.node(node) == Node::Null {
                continue;
            }
            if let Some(bounds) = self.ty(node).bounds() {
                union = Some(union.map_or(bounds, |so_far| so_far.union(bounds)));
            }
        }
        match union {
            Some(range) => Ty::new(repr).within(range.low, range.high),
            None => Ty::new(repr),
        }
    }
}

fn name_of(op: Arithmetic) -> &'static str {
    match op {
        Arithmetic::Add => "+",
        Arithmetic::Subtract => "-",
        Arithmetic::Multiply => "*",
        Arithmetic::Divide => "/",
        Arithmetic::Remainder => "%",
    }
}
