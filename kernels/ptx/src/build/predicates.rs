//! Truth tables of predicates, and rewriting of predicate forms that the driver's assembler gets wrong.
//!
//! ```text
//!   or.pred  %p3, %p1, %p2
//!   and.pred %p4, %p1, %p2           and.pred %p6, %p1, %p2         one operation where two predicates decide
//!   and.pred %p6, %p4, %p3
//!
//!   and.pred %p6, %p1, %p2           selp.b32 %r1, 1, 0, %p2        a choice by `selp`
//!   not.pred %p4, %p1                selp.b32 %r2, 1, 0, %p3
//!   and.pred %p5, %p4, %p3           selp.b32 %r3, %r1, %r2, %p1
//!   or.pred  %p6, %p6, %p5           setp.ne.u32 %p6, %r3, 0
//! ```
//!
//! Why       ptxas computes `a & b` and `a | b` with one instruction of two results and miscompiles the uses of both:
//!           `docs/decisions/012-predicates-by-selp.md`.
//! Tables    a formula is the truth table of at most six other predicates; a predicate that depends on more is a
//!           variable itself.
//! Regions   as in `tidy`: a formula is used inside its region, or anywhere if computed before the first label or
//!           branch.

use std::collections::HashMap;

use super::FunctionBuilder;
use super::tidy::{Facts, Register, only_result, register, results};
use crate::ast::{Instruction, Module, Operand, Statement, Type};

/// Bit `row` of entry `i` is the value of predicate `i` in that row of the truth table.
const VALUES: [u64; 6] = [
    0xaaaa_aaaa_aaaa_aaaa,
    0xcccc_cccc_cccc_cccc,
    0xf0f0_f0f0_f0f0_f0f0,
    0xff00_ff00_ff00_ff00,
    0xffff_0000_ffff_0000,
    0xffff_ffff_0000_0000,
];

/// A predicate, or a word that is 0 or 1, as a truth table over other predicates.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Formula {
    /// The predicates it depends on, ascending.
    of: Vec<Register>,
    /// The result in each row.
    table: u64,
    /// Number of operations with two or three operands that computed it.
    operations: u32,
}

impl Formula {
    fn leaf(own: Register) -> Formula {
        Formula { of: vec![own], table: VALUES[0], operations: 0 }
    }

    fn constant(truth: bool) -> Formula {
        Formula { of: vec![], table: if truth { u64::MAX } else { 0 }, operations: 0 }
    }

    fn not(mut self) -> Formula {
        self.table = !self.table;
        self
    }

    /// The table extended to the predicates `all`.
    fn over(&self, all: &[Register]) -> u64 {
        let places: Vec<usize> = self.of.iter().filter_map(|own| all.iter().position(|other| other == own)).collect();
        (0..64).fold(0, |table, row| {
            let from = places.iter().enumerate().fold(0, |from, (i, place)| from | (row >> place & 1) << i);
            table | (self.table >> from & 1) << row
        })
    }

    /// Combines formulas by applying `operation` to their tables; `None` if they depend on too many predicates.
    fn join<const N: usize>(operands: [&Formula; N], operation: impl Fn([u64; N]) -> u64) -> Option<Formula> {
        let mut of: Vec<Register> = operands.iter().flat_map(|operand| operand.of.iter().copied()).collect();
        of.sort_unstable();
        of.dedup();
        if of.len() > VALUES.len() {
            return None;
        }
        let table = operation(operands.map(|operand| operand.over(&of)));
        let operations = operands.iter().fold(1_u32, |sum, operand| sum.saturating_add(operand.operations));
        let depends = |i: usize| {
            let (yes, no) = (table & VALUES[i], table & !VALUES[i]);
            yes >> (1 << i) != no
        };
        let left: Vec<Register> = (0..of.len()).filter(|i| depends(*i)).map(|i| of[i]).collect();
        // A predicate that the result does not depend on is read as false.
        let places: Vec<usize> = left.iter().filter_map(|own| of.iter().position(|other| other == own)).collect();
        let table = (0..64).fold(0, |reduced, row| {
            let from = places.iter().enumerate().fold(0, |from, (i, place)| from | (row >> i & 1) << place);
            reduced | (table >> from & 1) << row
        });
        Some(Formula { of: left, table, operations })
    }

    /// Whether fewer operations suffice.
    fn is_roundabout(&self) -> bool {
        self.of.len() <= 2 && self.operations > u32::from(self.of.len() == 2)
    }
}

/// Computes the formulas of the registers of a body in program order.
struct Walk {
    facts: Facts,
    /// The formula and the region where it was computed.
    known: HashMap<Register, (Formula, u32)>,
    /// The operands of each `and` and its region.
    ands: HashMap<Register, ([Register; 2], u32)>,
}

/// A risky form of an instruction.
enum Fault {
    /// Several operations for a formula of at most two predicates.
    Roundabout(Formula),
    /// A selection by logic operations: the condition, the value where it holds and the value where it does not.
    Choice([Register; 3]),
}

impl Walk {
    fn new(body: &[Statement]) -> Walk {
        Walk { facts: Facts::of(body), known: HashMap::new(), ands: HashMap::new() }
    }

    /// The formula of a predicate read by the statement `at`.
    fn predicate(&self, name: &Operand, at: usize) -> Option<Formula> {
        let Operand::Name(name) = name else { return None };
        let own = register(name).filter(|own| own >> 32 == 0)?;
        self.formula(own, at)
    }

    fn formula(&self, own: Register, at: usize) -> Option<Formula> {
        let uses = self.facts.uses(own);
        if !self.facts.is_value(own) || uses.written_at >= Some(at) {
            return None;
        }
        let known = self.known.get(&own).filter(|(_, region)| *region == 0 || *region == self.facts.regions[at]);
        Some(known.map_or_else(|| Formula::leaf(own), |(formula, _)| formula.clone()))
    }

    /// The formula of a word whose value is 0 or 1.
    fn word(&self, operand: &Operand, at: usize) -> Option<Formula> {
        match operand {
            Operand::Integer(0) => Some(Formula::constant(false)),
            Operand::Integer(1) => Some(Formula::constant(true)),
            Operand::Name(name) => {
                let own = register(name).filter(|own| self.known.contains_key(own))?;
                let formula = self.formula(own, at)?;
                (formula.of != [own]).then_some(formula)
            }
            _ => None,
        }
    }

    fn computed(&self, instruction: &Instruction, at: usize) -> Option<Formula> {
        let opcode = &instruction.opcode;
        let read = results(instruction).1;
        if opcode.has("pred") {
            return match (opcode.name.as_str(), read) {
                ("mov", [a]) => self.predicate(a, at),
                ("not", [a]) => self.predicate(a, at).map(Formula::not),
                ("and" | "or" | "xor", [a, b]) => {
                    let (a, b) = (self.predicate(a, at)?, self.predicate(b, at)?);
                    Formula::join([&a, &b], |[a, b]| match opcode.name.as_str() {
                        "and" => a & b,
                        "or" => a | b,
                        _ => a ^ b,
                    })
                }
                _ => None,
            };
        }
        match (opcode.name.as_str(), read) {
            ("selp", [yes, no, condition]) if opcode.has("b32") => {
                let (yes, no) = (self.word(yes, at)?, self.word(no, at)?);
                let condition = self.predicate(condition, at)?;
                let chosen = Formula::join([&condition, &yes, &no], |[c, yes, no]| c & yes | !c & no)?;
                let plain = yes.of.is_empty() && no.of.is_empty();
                Some(Formula { operations: chosen.operations - u32::from(plain), ..chosen })
            }
            ("setp", [word, Operand::Integer(0)]) if opcode.modifiers.len() == 2 && opcode.has("u32") => {
                let word = self.word(word, at)?;
                match opcode.modifiers[0].as_str() {
                    "ne" => Some(word),
                    "eq" => Some(word.not()),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The selection computed by an `or` of two `and`s.
    fn choice(&self, instruction: &Instruction, at: usize) -> Option<[Register; 3]> {
        let [Operand::Name(a), Operand::Name(b)] = results(instruction).1 else { return None };
        if instruction.opcode.name != "or" || !instruction.opcode.has("pred") {
            return None;
        }
        let operands = |name: &str| {
            let (operands, region) = self.ands.get(&register(name)?)?;
            (*region == 0 || *region == self.facts.regions[at]).then_some(*operands)
        };
        let (a, b) = (operands(a)?, operands(b)?);
        for (yes, condition) in [(a[1], a[0]), (a[0], a[1])] {
            for (no, other) in [(b[1], b[0]), (b[0], b[1])] {
                let (holds, fails) = (self.formula(condition, at)?, self.formula(other, at)?);
                if !holds.of.is_empty() && holds.of == fails.of && holds.table == !fails.table {
                    return Some([condition, yes, no]);
                }
            }
        }
        None
    }

    /// Processes the next statement.
    fn step(&mut self, statement: &Statement, at: usize) -> Option<Fault> {
        let Statement::Instruction(instruction) = statement else { return None };
        let (_, own) = only_result(instruction)?;
        if instruction.guard.is_some() || !self.facts.is_value(own) {
            return None;
        }
        let region = self.facts.regions[at];
        let formula = self.computed(instruction, at);
        let choice = self.choice(instruction, at);
        if instruction.opcode.name == "and"
            && let [Operand::Name(a), Operand::Name(b)] = results(instruction).1
            && let (Some(a), Some(b)) = (register(a), register(b))
        {
            self.ands.insert(own, ([a, b], region));
        }
        let is_predicate = own >> 32 == 0;
        let mut fault = choice.map(Fault::Choice);
        if let Some(formula) = formula {
            if is_predicate && formula.is_roundabout() {
                fault = Some(Fault::Roundabout(formula.clone()));
            }
            self.known.insert(own, (formula, region));
        }
        fault
    }
}

/// Location and kind of each form in a module that an assembler may get wrong; empty for generated code.
pub fn risky_predicates(module: &Module) -> Vec<String> {
    let mut risky = Vec::new();
    for function in module.functions() {
        let body = function.body.as_deref().unwrap_or_default();
        let mut walk = Walk::new(body);
        for (at, statement) in body.iter().enumerate() {
            let Some(fault) = walk.step(statement, at) else { continue };
            let what = match fault {
                Fault::Roundabout(formula) => {
                    format!("{} operations on {} predicates", formula.operations, formula.of.len())
                }
                Fault::Choice(_) => "a choice by logic".to_string(),
            };
            let Statement::Instruction(instruction) = statement else { continue };
            let result = only_result(instruction).map_or("", |(name, _)| name);
            risky.push(format!("{}, statement {at}, {result}: {what}", function.name));
        }
    }
    risky
}

/// The operand that names a predicate register.
fn name(own: Register) -> Operand {
    Operand::Name(format!("%p{}", own as u32))
}

impl FunctionBuilder {
    /// Rewrites risky forms.
    pub(super) fn separate_predicates(&mut self, body: &mut Vec<Statement>) -> bool {
        let mut walk = Walk::new(body);
        let mut replaced: Vec<(usize, Vec<Statement>)> = Vec::new();
        for (at, statement) in body.iter().enumerate() {
            let Some(fault) = walk.step(statement, at) else { continue };
            let Statement::Instruction(instruction) = statement else { continue };
            let result = instruction.operands[0].clone();
            let instructions = match fault {
                Fault::Roundabout(formula) => self.direct(&formula, result),
                Fault::Choice(operands) => self.chosen(operands, result),
            };
            replaced.push((at, instructions.into_iter().map(Statement::Instruction).collect()));
        }
        let changed = !replaced.is_empty();
        for (at, instructions) in replaced.into_iter().rev() {
            body.splice(at..=at, instructions);
        }
        changed
    }

    fn fresh(&mut self, ty: Type) -> Operand {
        Operand::Name(self.register(ty).name())
    }

    /// A formula of at most two predicates in one operation and at most one `not` before or after it.
    fn direct(&mut self, formula: &Formula, result: Operand) -> Vec<Instruction> {
        let (x, y) = match *formula.of.as_slice() {
            [] => {
                let opcode = if formula.table == 0 { "setp.ne.u32" } else { "setp.eq.u32" };
                return vec![Instruction::new(opcode, vec![result, Operand::Integer(0), Operand::Integer(0)])];
            }
            [x] => {
                let opcode = if formula.table == VALUES[0] { "mov.pred" } else { "not.pred" };
                return vec![Instruction::new(opcode, vec![result, name(x)])];
            }
            [x, y, ..] => (name(x), name(y)),
        };
        let mut list = Vec::new();
        let mut not = |f: &mut Self, of: Operand| {
            let other = f.fresh(Type::Pred);
            list.push(Instruction::new("not.pred", vec![other.clone(), of]));
            other
        };
        // Rows from bit 0: both false, only the first true, only the second true, both true.
        let (opcode, x, y, negated) = match formula.table & 0b1111 {
            0b1000 => ("and.pred", x, y, false),
            0b0111 => ("and.pred", x, y, true),
            0b1110 => ("or.pred", x, y, false),
            0b0001 => ("or.pred", x, y, true),
            0b0110 => ("xor.pred", x, y, false),
            0b1001 => ("xor.pred", x, y, true),
            0b0010 => ("and.pred", x, not(self, y), false),
            0b0100 => ("and.pred", not(self, x), y, false),
            0b1011 => ("or.pred", x, not(self, y), false),
            _ => ("or.pred", not(self, x), y, false),
        };
        if negated {
            let opposite = self.fresh(Type::Pred);
            list.push(Instruction::new(opcode, vec![opposite.clone(), x, y]));
            list.push(Instruction::new("not.pred", vec![result, opposite]));
        } else {
            list.push(Instruction::new(opcode, vec![result, x, y]));
        }
        list
    }

    /// Selects between predicates as words.
    fn chosen(&mut self, [condition, yes, no]: [Register; 3], result: Operand) -> Vec<Instruction> {
        let [first, second, word] = [(); 3].map(|()| self.fresh(Type::B32));
        let bit = |to: &Operand, of: Register| {
            let operands = vec![to.clone(), Operand::Integer(1), Operand::Integer(0), name(of)];
            Instruction::new("selp.b32", operands)
        };
        vec![
            bit(&first, yes),
            bit(&second, no),
            Instruction::new("selp.b32", vec![word.clone(), first, second, name(condition)]),
            Instruction::new("setp.ne.u32", vec![result, word, Operand::Integer(0)]),
        ]
    }
}
