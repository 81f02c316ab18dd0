//! Truth and choice: comparisons, Kleene logic, tests, CASE, IN.
//!
//!   AND   value = a & b     valid = (va & vb) | (va & !a) | (vb & !b)
//!   OR    value = a | b     valid = (va & vb) | (va &  a) | (vb &  b)
//!   truth(a AND b) = truth(a) & truth(b): a filter needs no validity of its parts

use std::ops::Range;

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg, Value as Operand};

use super::integer::{relate_numbers, select};
use super::lanes::{Number, join};
use super::{Computed, Row};
use crate::codegen::ir::{Comparison, Lane, Node, NodeId, Test};
use crate::codegen::text;
use crate::codegen::value::{CodegenError, Emit, Value};

impl Row<'_, '_> {
    /// Predicate: a boolean node is true.
    pub(super) fn truth(&mut self, id: NodeId) -> Result<Reg, CodegenError> {
        if !self.graph.contains(id) || self.lane(id) != Lane::Pred {
            let why = "is no boolean of this graph".to_string();
            return Err(CodegenError::Malformed { what: format!("node {}", id.0), why });
        }
        if let Some(&truth) = self.known.truths.get(&id) {
            self.report_again(id)?;
            return Ok(truth);
        }
        let graph = self.graph;
        let truth = match graph.node(id) {
            Node::And { left, right } if !self.known.values.contains_key(&id) => {
                self.mark_reported(id);
                let (left, right) = (self.truth(*left)?, self.truth(*right)?);
                self.f.and(left, right)
            }
            Node::Or { left, right } if !self.known.values.contains_key(&id) => {
                self.mark_reported(id);
                let (left, right) = (self.truth(*left)?, self.truth(*right)?);
                self.f.or(left, right)
            }
            _ => {
                let computed = self.node(id)?;
                let value = computed.number.low_reg(self.f);
                self.where_valid(value, computed.valid)
            }
        };
        self.known.truths.insert(id, truth);
        Ok(truth)
    }

    fn boolean(&mut self, id: NodeId) -> Result<(Reg, Option<Reg>), CodegenError> {
        let computed = self.node(id)?;
        Ok((computed.number.low_reg(self.f), computed.valid))
    }

    fn known_boolean(value: Reg, valid: Option<Reg>) -> Computed {
        Computed { number: Number::reg(Lane::Pred, value), valid }
    }

    pub(super) fn kleene(&mut self, left: NodeId, right: NodeId, and: bool) -> Result<Computed, CodegenError> {
        let (a, va) = self.boolean(left)?;
        let (b, vb) = self.boolean(right)?;
        let value = if and { self.f.and(a, b) } else { self.f.or(a, b) };
        // Predicate: one side decides alone (false for AND, true for OR).
        let mut decides = |x: Reg, valid: Option<Reg>| {
            let x = if and { self.f.not(x) } else { x };
            self.where_valid(x, valid)
        };
        let valid = match (va, vb) {
            (None, None) => None,
            (Some(va), None) => {
                let decided = decides(b, None);
                Some(self.f.or(va, decided))
            }
            (None, Some(vb)) => {
                let decided = decides(a, None);
                Some(self.f.or(vb, decided))
            }
            (Some(va), Some(vb)) => {
                let by_a = decides(a, Some(va));
                let by_b = decides(b, Some(vb));
                let both = self.f.and(va, vb);
                let either = self.f.or(by_a, by_b);
                Some(self.f.or(both, either))
            }
        };
        Ok(Self::known_boolean(value, valid))
    }

    pub(super) fn not(&mut self, of: NodeId) -> Result<Computed, CodegenError> {
        let (a, valid) = self.boolean(of)?;
        let value = self.f.not(a);
        Ok(Self::known_boolean(value, valid))
    }

    pub(super) fn test(&mut self, test: Test, of: NodeId) -> Result<Computed, CodegenError> {
        let value = match test {
            Test::IsNull | Test::IsNotNull => {
                let valid = self.node(of)?.valid;
                match (valid, test) {
                    (Some(valid), Test::IsNotNull) => valid,
                    (Some(valid), _) => self.f.not(valid),
                    (None, test) => self.f.constant_pred(test == Test::IsNotNull),
                }
            }
            Test::IsTrue => self.truth(of)?,
            Test::IsNotTrue => {
                let truth = self.truth(of)?;
                self.f.not(truth)
            }
            Test::IsFalse | Test::IsNotFalse => {
                let (a, valid) = self.boolean(of)?;
                let falsity = self.f.not(a);
                let falsity = self.where_valid(falsity, valid);
                if test == Test::IsFalse { falsity } else { self.f.not(falsity) }
            }
        };
        Ok(Self::known_boolean(value, None))
    }

    pub(super) fn compare(&mut self, op: Comparison, left: NodeId, right: NodeId) -> Result<Computed, CodegenError> {
        let (a, b) = (self.node(left)?, self.node(right)?);
        let value = self.relate(op, (left, a.number), (right, b.number))?;
        match op {
            Comparison::Distinct | Comparison::NotDistinct => {
                // `value` compares the values; NULL equals only NULL.
                let same = match (a.valid, b.valid) {
                    (None, None) => value,
                    (Some(va), None) => self.f.and(value, va),
                    (None, Some(vb)) => self.f.and(value, vb),
                    (Some(va), Some(vb)) => {
                        let both = self.f.and(va, vb);
                        let either = self.f.or(va, vb);
                        let equal = self.f.and(value, both);
                        let neither = self.f.not(either);
                        self.f.or(equal, neither)
                    }
                };
                let value = if op == Comparison::Distinct { self.f.not(same) } else { same };
                Ok(Self::known_boolean(value, None))
            }
            _ => {
                let valid = self.both_valid(a.valid, b.valid);
                Ok(Self::known_boolean(value, valid))
            }
        }
    }

    /// Compares values; the DISTINCT forms compare for equality.
    fn relate(
        &mut self,
        op: Comparison,
        (left, a): (NodeId, Number),
        (right, b): (NodeId, Number),
    ) -> Result<Reg, CodegenError> {
        let relation = match op {
            Comparison::Equal | Comparison::Distinct | Comparison::NotDistinct | Comparison::Identical => Compare::Eq,
            Comparison::NotEqual => Compare::Ne,
            Comparison::Less => Compare::Lt,
            Comparison::LessEqual => Compare::Le,
            Comparison::Greater => Compare::Gt,
            Comparison::GreaterEqual => Compare::Ge,
        };
        Ok(match a.lane {
            Lane::Text => self.relate_texts(relation, a, b)?,
            Lane::Pred => self.relate_booleans(relation, a, b),
            Lane::F32 | Lane::F64 => {
                if matches!(relation, Compare::Eq | Compare::Ne) {
                    let one_zero = op != Comparison::Identical;
                    let (x, y) = (self.float_bits(a, one_zero), self.float_bits(b, one_zero));
                    return Ok(self.f.setp(relation, x, y));
                }
                let (x, y) = (self.float_key(left, a), self.float_key(right, b));
                self.f.setp(relation, x, y)
            }
            _ => {
                let lane = join(a.lane, b.lane);
                let (a, b) = (a.to(self.f, lane), b.to(self.f, lane));
                relate_numbers(self.f, relation, a, b)
            }
        })
    }

    /// false < true.
    fn relate_booleans(&mut self, relation: Compare, a: Number, b: Number) -> Reg {
        let (a, b) = (a.low_reg(self.f), b.low_reg(self.f));
        let f = &mut *self.f;
        match relation {
            Compare::Ne => f.xor(a, b),
            Compare::Lt => f.and_not(b, a),
            Compare::Gt => f.and_not(a, b),
            Compare::Le => {
                let greater = f.and_not(a, b);
                f.not(greater)
            }
            Compare::Ge => {
                let less = f.and_not(b, a);
                f.not(less)
            }
            _ => {
                let differ = f.xor(a, b);
                f.not(differ)
            }
        }
    }

    pub(super) fn in_list(&mut self, of: NodeId, list: &[NodeId], negated: bool) -> Result<Computed, CodegenError> {
        let needle = self.node(of)?;
        let mut hit: Option<Reg> = None;
        let mut all_valid: Option<Reg> = None;
        let mut rest = list;
        while let [item, later @ ..] = rest {
            let equal = match self.constant_texts(rest) {
                Some((table, codes)) if codes.len() > 2 => {
                    rest = &rest[codes.len()..];
                    self.is_among(needle.number, table, codes)?
                }
                _ => {
                    rest = later;
                    let value = self.node(*item)?;
                    let equal = self.relate(Comparison::Identical, (of, needle.number), (*item, value.number))?;
                    all_valid = self.both_valid(all_valid, value.valid);
                    self.where_valid(equal, value.valid)
                }
            };
            hit = Some(match hit {
                Some(hit) => self.f.or(hit, equal),
                None => equal,
            });
        }
        let hit = match hit {
            Some(hit) => hit,
            None => self.f.constant_pred(false),
        };
        let valid = match all_valid {
            Some(all_valid) => {
                let decided = self.f.or(hit, all_valid);
                Some(self.where_valid(decided, needle.valid))
            }
            None => needle.valid,
        };
        let value = if negated { self.f.not(hit) } else { hit };
        Ok(Self::known_boolean(value, valid))
    }

    /// Texts at the beginning of `list` that are consecutive codes of one lookup table, as constants are stored.
    fn constant_texts(&self, list: &[NodeId]) -> Option<(u32, Range<u32>)> {
        let entry = |item: &NodeId| match self.graph.node(*item) {
            Node::Lookup { code, table } if self.lane(*item) == Lane::Text && !self.ty(*item).nullable => {
                match self.graph.node(*code) {
                    Node::Constant { bits } => u32::try_from(*bits).ok().map(|code| (*table, code)),
                    _ => None,
                }
            }
            _ => None,
        };
        let (table, first) = entry(list.first()?)?;
        let follows = |(item, number): &(&NodeId, u32)| entry(item) == Some((table, first + number));
        let count = list.iter().zip(0..u32::MAX - first).take_while(follows).count() as u32;
        Some((table, first..first + count))
    }

    /// True if a text is one of the entries `codes` of a lookup table. A loop, which a row leaves at the first match.
    fn is_among(&mut self, text: Number, table: u32, codes: Range<u32>) -> Result<Reg, CodegenError> {
        let (at, bytes) = text.words(self.f);
        let hit = self.f.constant_pred(false);
        let end = self.f.copy(Type::U32, codes.end);
        let Row { f, module, leaves, .. } = self;
        f.for_(codes.start, end, 1u32, |f, low| {
            let mut emit = Emit { module, f };
            let value = leaves.lookup(&mut emit, table, Value { lane: Lane::U32, low, high: None, valid: None })?;
            let (own, own_bytes) = text::words(value)?;
            let callee = text::paste(emit.module, "text_equal")?;
            let arguments = [at, bytes.view(Type::U64), own, own_bytes].map(Operand::from);
            let equal = emit.f.call(&callee, &arguments);
            emit.f.setp_into(hit, Compare::Ne, equal[0].view(Type::U32), 0u32);
            emit.f.break_if(hit);
            Ok(())
        })?;
        Ok(hit)
    }

    pub(super) fn case(
        &mut self,
        id: NodeId,
        branches: &[(NodeId, NodeId)],
        otherwise: Option<NodeId>,
    ) -> Result<Computed, CodegenError> {
        let lane = self.lane(id);
        // Masks are only created if a later part can fail.
        let fallible = |row: &Self, from: usize| {
            branches[from..]
                .iter()
                .flat_map(|&(when, then)| [when, then])
                .chain(otherwise)
                .any(|node| row.can_fail[node.0 as usize])
        };
        let mut remaining: Option<Reg> = None;
        let mut sides = Vec::new();
        for (index, &(when, then)) in branches.iter().enumerate() {
            let condition = match remaining {
                Some(mask) if self.can_fail[when.0 as usize] => self.masked(mask, |row| row.truth(when))?,
                _ => self.truth(when)?,
            };
            let value = if self.can_fail[then.0 as usize] {
                let taken = match remaining {
                    Some(mask) => self.f.and(mask, condition),
                    None => condition,
                };
                self.masked(taken, |row| row.node(then))?
            } else {
                self.node(then)?
            };
            sides.push((condition, value));
            let more = branches.get(index + 1).is_some_and(|_| fallible(self, index + 1))
                || (index + 1 == branches.len() && otherwise.is_some_and(|node| self.can_fail[node.0 as usize]));
            if more {
                let not_taken = self.f.not(condition);
                remaining = Some(match remaining {
                    Some(mask) => self.f.and(mask, not_taken),
                    None => not_taken,
                });
            }
        }
        let mut result = match otherwise {
            Some(node) => {
                let value = match remaining {
                    Some(mask) if self.can_fail[node.0 as usize] => self.masked(mask, |row| row.node(node))?,
                    _ => self.node(node)?,
                };
                Some(value)
            }
            None => None,
        };
        let nullable = self.ty(id).nullable;
        for (condition, side) in sides.into_iter().rev() {
            result = Some(self.choose(condition, side, result, lane, nullable));
        }
        result.ok_or_else(|| CodegenError::Malformed {
            what: format!("CASE, node {}", id.0),
            why: "has no branches".into(),
        })
    }

    /// `side` if the condition is true, else `rest`, else NULL.
    fn choose(
        &mut self,
        condition: Reg,
        side: Computed,
        rest: Option<Computed>,
        lane: Lane,
        nullable: bool,
    ) -> Computed {
        let integer = !matches!(lane, Lane::Pred | Lane::F32 | Lane::F64 | Lane::Text);
        let in_lane = |row: &mut Self, number: Number| if integer { number.to(row.f, lane) } else { number };
        let Some(rest) = rest else {
            let valid = self.where_valid(condition, side.valid);
            return Computed { number: in_lane(self, side.number), valid: Some(valid) };
        };
        let valid = match (side.valid, rest.valid) {
            _ if !nullable => None,
            (None, None) => None,
            (Some(a), Some(b)) if a == b => Some(a),
            (Some(a), Some(b)) => Some(self.f.select(condition, a, b)),
            (None, Some(b)) => Some(self.f.or(condition, b)),
            (Some(a), None) => {
                let no = self.f.not(condition);
                Some(self.f.or(no, a))
            }
        };
        let (a, b) = (in_lane(self, side.number), in_lane(self, rest.number));
        Computed { number: select(self.f, condition, a, b), valid }
    }
}
