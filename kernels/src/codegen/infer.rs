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

use super::graph::*;
use super::ir::{ErrorCode, TableSpec};
use super::text_function::{Nulls, Raises, TextFunction};

impl Graph {
    // Leaves

    /// Column `index` of the pipeline's input.
    pub fn column(&mut self, index: u32, ty: Ty) -> NodeId {
        self.push(Node::Column { index }, ty)
    }

    /// The literal in parameter `slot`.
    pub fn literal(&mut self, slot: u32, ty: Ty) -> NodeId {
        self.push(Node::Literal { slot }, ty)
    }

    /// An integer that belongs to the operator, not to the query. It is part of the kernel's text.
    pub fn integer(&mut self, value: i128, repr: Repr) -> NodeId {
        self.push(Node::Constant { bits: value }, Ty::new(repr).within(value, value))
    }

    /// A float that belongs to the operator, not to the query. It is part of the kernel's text.
    pub fn float(&mut self, value: f64, repr: Repr) -> NodeId {
        let bits = match repr {
            Repr::F32 => i128::from((value as f32).to_bits()),
            _ => i128::from(value.to_bits()),
        };
        self.push(Node::Constant { bits }, Ty::new(repr))
    }

    pub fn boolean(&mut self, value: bool) -> NodeId {
        self.push(Node::Constant { bits: i128::from(value) }, Ty::new(Repr::Bool))
    }

    /// NULL of a type.
    pub fn null(&mut self, repr: Repr) -> NodeId {
        self.push(Node::Null, Ty::new(repr).nullable(true))
    }

    /// Value of a scalar function for a dictionary code. `ty` says whether the table itself contains NULLs.
    ///
    /// # Errors
    /// If `code` is not `U32`.
    pub fn lookup(&mut self, code: NodeId, table: u32, ty: Ty) -> Result<NodeId, GraphError> {
        self.expect("a lookup table", &[code], |repr| repr == Repr::U32)?;
        let nullable = ty.nullable || self.ty(code).nullable;
        Ok(self.push(Node::Lookup { code, table }, ty.nullable(nullable)))
    }

    /// First of some places of a lookup table at which it has `sought` (`U32`); NULL if there is none. `item` is the
    /// type of the table's values.
    ///
    /// # Errors
    /// If a place is not `U32`, or `sought` does not have the table's representation.
    pub fn find(&mut self, sought: NodeId, (places, item): (Places, Ty), nulls: bool) -> Result<NodeId, GraphError> {
        self.expect_search(sought, places, item)?;
        Ok(self.push(Node::Find { sought, places, nulls }, Ty::new(Repr::U32).nullable(true)))
    }

    /// Number of these places at which the table has `sought` (`U32`, never NULL).
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn count_of(
        &mut self,
        sought: NodeId,
        (places, item): (Places, Ty),
        nulls: bool,
    ) -> Result<NodeId, GraphError> {
        self.expect_search(sought, places, item)?;
        Ok(self.push(Node::CountOf { sought, places, nulls }, Ty::new(Repr::U32)))
    }

    fn expect_search(&self, sought: NodeId, places: Places, item: Ty) -> Result<(), GraphError> {
        self.expect("a place in a lookup table", &[places.from, places.to], |repr| repr == Repr::U32)?;
        self.expect("a search in a lookup table", &[sought], |repr| repr == item.repr)
    }

    /// Whether each value (or `any` value) in a range of a lookup table occurs in a second range, of that or another
    /// table.
    ///
    /// # Errors
    /// If a place is not `U32`, or the tables have different representations.
    pub fn among(
        &mut self,
        (of, item): (Places, Ty),
        (inside, other): (Places, Ty),
        any: bool,
    ) -> Result<NodeId, GraphError> {
        let places = [of.from, of.to, inside.from, inside.to];
        self.expect("a place in a lookup table", &places, |repr| repr == Repr::U32)?;
        if item.repr != other.repr {
            let operands = vec![item.repr, other.repr];
            return Err(GraphError::Operands { operator: "a search in a lookup table".into(), operands });
        }
        Ok(self.push(Node::Among { of, inside, any }, Ty::new(Repr::Bool)))
    }

    // Joins

    /// Rows of join table `table` (described by `spec`) with these keys: a list of matches, NULL if it is empty.
    ///
    /// # Errors
    /// If the number or the representations of the keys do not match the table.
    pub fn probe(&mut self, table: u32, spec: &TableSpec, keys: &[NodeId]) -> Result<NodeId, GraphError> {
        let given: Vec<Repr> = keys.iter().map(|key| self.ty(*key).repr).collect();
        let wanted: Vec<Repr> = spec.keys.iter().map(|key| key.repr).collect();
        if given != wanted {
            return Err(GraphError::Operands { operator: format!("a join table of {wanted:?}"), operands: given });
        }
        Ok(self.push(Node::Probe { table, keys: keys.to_vec() }, Ty::new(Repr::U64).nullable(true)))
    }

    /// Number of rows of a list of matches (`U32`); NULL if it is empty.
    ///
    /// # Errors
    /// If `matches` is not `U64`.
    pub fn match_count(&mut self, matches: NodeId) -> Result<NodeId, GraphError> {
        let low = self.integer(u32::MAX.into(), Repr::U64);
        let count = self.bitwise(Bitwise::And, matches, low)?;
        self.convert(count, Repr::U32, Overflow::Wrap)
    }

    /// Start of a list of matches in the table's list of rows (`U32`); NULL if it is empty.
    ///
    /// # Errors
    /// If `matches` is not `U64`.
    pub fn match_start(&mut self, matches: NodeId) -> Result<NodeId, GraphError> {
        let half = self.integer(32, Repr::U64);
        let start = self.bitwise(Bitwise::ShiftRight, matches, half)?;
        let start = self.assume(start, Range { low: 0, high: u32::MAX.into() });
        self.convert(start, Repr::U32, Overflow::Wrap)
    }

    /// Index of the current row among the rows of its source row.
    pub fn ordinal(&mut self) -> NodeId {
        self.push(Node::Ordinal, Ty::new(Repr::U32))
    }

    /// Index of the current row in its extent; in an expanded pipeline, that of its source row.
    pub fn source_row(&mut self) -> NodeId {
        self.push(Node::SourceRow, Ty::new(Repr::U32))
    }

    /// `of` as a non-nullable value: the caller's filters remove rows with a NULL before this node.
    pub fn present(&mut self, of: NodeId) -> NodeId {
        let ty = self.ty(of);
        match ty.nullable {
            true => self.push(Node::Present { of }, ty.nullable(false)),
            false => of,
        }
    }

    /// NULL of any type.
    pub fn null_of(&mut self, ty: Ty) -> NodeId {
        self.push(Node::Null, ty.nullable(true))
    }

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
    pub(super) fn fails(&self, id: NodeId) -> bool {
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
            Nulls::Strict => nullable(of),
            Nulls::StrictOrUndefined => true,
            Nulls::OfFirst => nullable(&of[..1]),
            Nulls::Never => false,
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

    // Dates

    /// A field of a date (`I32` days) or of a timestamp or time (`I64` or `I32` of `unit`).
    ///
    /// # Errors
    /// If the operand is not `I32` or `I64`.
    pub fn date_part(&mut self, part: DatePart, of: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("date_part", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        let ty = self.ty(of);
        let nullable = ty.nullable || (part != DatePart::Epoch && !self.in_calendar(of, unit));
        // Years of 365 days overstate the distance from 1970, so the bound holds.
        let bounds = ty.bounds().expect("an integer has bounds");
        let year = |value: i128| 1970 + value.div_euclid(per_day(unit) * 365);
        let years = (year(bounds.low).min(1970) - 1, year(bounds.high).max(1970) + 1);
        let (repr, low, high) = match part {
            DatePart::Year | DatePart::IsoYear => (Repr::I32, years.0.max(-262_144), years.1.min(262_143)),
            DatePart::Quarter => (Repr::I32, 1, 4),
            DatePart::Month => (Repr::I32, 1, 12),
            DatePart::Week => (Repr::I32, 1, 53),
            DatePart::Day => (Repr::I32, 1, 31),
            DatePart::DayOfYear => (Repr::I32, 1, 366),
            DatePart::DayOfWeek => (Repr::I32, 0, 6),
            DatePart::IsoDayOfWeek => (Repr::I32, 1, 7),
            DatePart::Hour => (Repr::I32, 0, 23),
            DatePart::Minute | DatePart::Second => (Repr::I32, 0, 59),
            DatePart::Millisecond => (Repr::I32, 0, 59_999),
            DatePart::Microsecond => (Repr::I32, 0, 59_999_999),
            DatePart::Nanosecond => (Repr::I64, 0, 59_999_999_999),
            DatePart::Epoch => (Repr::F64, 0, 0),
        };
        let result = Ty::new(repr).nullable(nullable).within(low, high);
        Ok(self.push(Node::DatePart { part, of, unit }, result))
    }

    /// Start of the period that contains the timestamp. Raises the error flag if the start is not representable.
    ///
    /// # Errors
    /// If the operand is not `I32` or `I64`.
    pub fn date_truncate(&mut self, grain: DateGrain, of: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("date_trunc", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        let ty = self.ty(of);
        let bounds = ty.bounds().expect("an integer has bounds");
        let longest = per_day(unit).max(1) * 366;
        let all = ty.repr.bounds().expect("an integer has bounds");
        let ty = ty.within((bounds.low - longest).max(all.low), bounds.high);
        Ok(self.push(Node::DateTruncate { grain, of, unit }, ty))
    }

    /// A date or timestamp plus a number of months (`I32`), the day clamped to the last of the month.
    ///
    /// # Errors
    /// If `of` is not `I32` or `I64`, or `months` is not `I32`.
    pub fn add_months(&mut self, of: NodeId, months: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("adding months", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        self.expect("a number of months", &[months], |repr| repr == Repr::I32)?;
        let ty = Ty::new(self.ty(of).repr).nullable(self.ty(of).nullable || self.ty(months).nullable);
        Ok(self.push(Node::AddMonths { of, months, unit }, ty))
    }

    /// True if every value is inside the calendar, so that its fields exist.
    fn in_calendar(&self, of: NodeId, unit: TimeUnit) -> bool {
        let bounds = self.ty(of).bounds().expect("an integer has bounds");
        calendar(unit).contains(bounds)
    }

    // Helpers

    fn expect(&self, operator: &str, operands: &[NodeId], accepts: impl Fn(Repr) -> bool) -> Result<(), GraphError> {
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

/// Ticks of a unit in a day.
pub(super) fn per_day(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Day => 1,
        TimeUnit::Second => 86_400,
        TimeUnit::Millisecond => 86_400_000,
        TimeUnit::Microsecond => 86_400_000_000,
        TimeUnit::Nanosecond => 86_400_000_000_000,
    }
}

/// Range of instants that have a date: years -262143 to 262142.
pub(super) fn calendar(unit: TimeUnit) -> Range {
    let ticks = per_day(unit);
    Range::new(-96_465_292 * ticks, 95_026_237 * ticks - 1)
}

fn sum(a: Range, b: Range) -> Option<Range> {
    Some(Range::new(a.low.checked_add(b.low)?, a.high.checked_add(b.high)?))
}

fn negated(a: Range) -> Option<Range> {
    Some(Range::new(a.high.checked_neg()?, a.low.checked_neg()?))
}

fn magnitude(a: Range) -> Option<Range> {
    let (low, high) = (a.low.checked_abs()?, a.high.checked_abs()?);
    Some(Range::new(if a.holds(0) { 0 } else { low.min(high) }, low.max(high)))
}

fn product(a: Range, b: Range) -> Option<Range> {
    let corners = [
        a.low.checked_mul(b.low)?,
        a.low.checked_mul(b.high)?,
        a.high.checked_mul(b.low)?,
        a.high.checked_mul(b.high)?,
    ];
    hull(&corners)
}

fn hull(values: &[i128]) -> Option<Range> {
    Some(Range::new(*values.iter().min()?, *values.iter().max()?))
}

/// Range of a truncating division; a zero divisor contributes no value.
fn quotient(a: Range, b: Range) -> Option<Range> {
    let mut values = Vec::new();
    for divisor in [b.low, b.high, -1, 1] {
        if divisor != 0 && b.holds(divisor) {
            values.push(a.low.checked_div(divisor)?);
            values.push(a.high.checked_div(divisor)?);
        }
    }
    hull(&values).or(Some(Range::new(0, 0)))
}

fn remainder(a: Range, b: Range) -> Range {
    // |a % b| < |b|; the result has the sign of a, and at most its magnitude.
    let size = b.low.unsigned_abs().max(b.high.unsigned_abs()).saturating_sub(1);
    let size = i128::try_from(size).unwrap_or(i128::MAX);
    let low = if a.low < 0 { a.low.max(-size) } else { 0 };
    let high = if a.high > 0 { a.high.min(size) } else { 0 };
    Range::new(low, high)
}

/// Semantics of `Node::DivideConstant`.
pub(super) fn divide(value: i128, divisor: i128, rounding: Rounding) -> i128 {
    match rounding {
        Rounding::Truncate => value / divisor,
        Rounding::Floor => value.div_euclid(divisor),
        Rounding::HalfAway => {
            let (quotient, rest) = (value / divisor, value % divisor);
            let half = divisor / 2;
            if value >= 0 && rest >= half {
                quotient + 1
            } else if value < 0 && rest <= -half {
                quotient - 1
            } else {
                quotient
            }
        }
    }
}
