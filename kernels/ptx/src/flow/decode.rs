//! Decodes a body once: the reads of each instruction with their masks, its writes and its branch targets.
//!
//!   @!%p3 ld.global.v2.u32 {%r1, %r2}, [%rd4];     guard !%p3 · reads %rd4 · writes %r1 %r2
//!   setp.lt.and.s32 %p1, %r1, %r2, %p2;         reads %p2, and %r1 %r2 where it holds · writes %p1, which implies %p2
//!
//! Results   are the first operand of every instruction that has a result.

use super::names::Names;
use super::{Block, CARRY, Edge, Flow, Formula, Literal, Read, Step};
use crate::ast::{AddressBase, Function, Instruction, Operand, Statement};

/// Successors of a step other than the next step.
#[derive(Default, Clone)]
struct Leap {
    labels: Vec<u32>,
    /// The next step is not a successor, unless a guard skips this one.
    ends: bool,
}

struct Decoder<'a> {
    names: Names<'a>,
    steps: Vec<Step<'a>>,
    reads: Vec<Read>,
    writes: Vec<u32>,
    /// By label, the number of the step that follows it.
    places: Vec<u32>,
    /// The steps with successors other than the next step, in order.
    leaps: Vec<(u32, Leap)>,
    /// Result variables in registers, which `ret` reads.
    returns: Vec<u32>,
}

pub(super) fn flow(function: &Function) -> Flow<'_> {
    let mut decoder = Decoder {
        names: Names::new(),
        steps: Vec::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        places: Vec::new(),
        leaps: Vec::new(),
        returns: Vec::new(),
    };
    let given = function.params.iter().filter_map(|variable| decoder.names.declare(variable)).collect();
    decoder.returns = function.returns.iter().filter_map(|variable| decoder.names.declare(variable)).collect();
    decoder.body(function.body.as_deref().unwrap_or_default());
    let blocks = decoder.blocks();
    let Decoder { names, steps, reads, writes, .. } = decoder;
    Flow { registers: names.registers, steps, blocks, given, reads, writes }
}

impl<'a> Decoder<'a> {
    fn body(&mut self, body: &'a [Statement]) {
        self.names.open(body);
        self.places.resize(self.names.num_labels() as usize, u32::MAX);
        for statement in body {
            match statement {
                Statement::Variable(variable) => {
                    self.names.declare(variable);
                }
                Statement::Label { name, .. } => {
                    if let Some(label) = self.names.label(name) {
                        self.places[label as usize] = self.steps.len() as u32;
                    }
                }
                Statement::Instruction(instruction) => self.instruction(instruction),
                Statement::Block(inner) => self.body(inner),
                _ => {}
            }
        }
        self.names.close();
    }

    fn instruction(&mut self, instruction: &'a Instruction) {
        let (first_read, first_write) = (self.reads.len() as u32, self.writes.len() as u32);
        let opcode = &instruction.opcode;
        let operands = instruction.operands.as_slice();
        let guard = instruction.guard.as_ref();
        let guard = guard.and_then(|guard| Some(Literal::new(self.names.register(&guard.register)?, guard.negated)));
        let mut formula = None;
        match (opcode.name.as_str(), operands) {
            ("bra", [Operand::Name(label)]) => {
                let labels = self.names.label(label).into_iter().collect();
                self.leap(Leap { labels, ends: true });
            }
            ("brx", [index, Operand::Name(list)]) => {
                self.read(index, None);
                let labels = self.names.targets(list);
                self.leap(Leap { labels, ends: true });
            }
            ("ret" | "exit" | "trap", _) => {
                if opcode.name == "ret" {
                    self.reads.extend(self.returns.iter().map(|&register| Read { register, mask: None }));
                }
                self.leap(Leap { labels: Vec::new(), ends: true });
            }
            ("call", _) => {
                if let Some(call) = instruction.call() {
                    self.reads.extend(self.names.register(call.target).map(|register| Read { register, mask: None }));
                    call.arguments.iter().for_each(|argument| self.read(argument, None));
                    call.returns.iter().for_each(|result| self.write(result));
                }
            }
            ("selp", [to, yes, no, condition]) => {
                let condition = self.literal(condition);
                self.read(yes, condition);
                self.read(no, condition.map(Literal::not));
                self.reads.extend(condition.map(|literal| Read { register: literal.register(), mask: None }));
                self.write(to);
            }
            ("and" | "or", [to, a, b]) if opcode.has("pred") => {
                let and = opcode.name == "and";
                let (left, right) = (self.literal(a), self.literal(b));
                self.read(a, right.map(|mask| mask.flipped(!and)));
                self.read(b, left.map(|mask| mask.flipped(!and)));
                self.write(to);
                if let (Some(left), Some(right)) = (left, right) {
                    formula = Some(if and { Formula::And(left, Some(right)) } else { Formula::Or(left, Some(right)) });
                }
            }
            ("not" | "mov", [to, of]) if opcode.has("pred") => {
                self.read(of, None);
                self.write(to);
                let not = opcode.name == "not";
                formula = match of {
                    Operand::Integer(value) => Some(Formula::Constant((*value != 0) != not)),
                    of => self.literal(of).map(|of| Formula::Same(of.flipped(not))),
                };
            }
            ("setp", [to, Operand::Integer(a), Operand::Integer(b)]) if opcode.has("eq") || opcode.has("ne") => {
                self.write(to);
                formula = Some(Formula::Constant((a == b) == opcode.has("eq")));
            }
            ("setp", [to, a, b, with]) => {
                let literal = self.literal(with);
                let or = opcode.has("or");
                let mask = literal.filter(|_| !opcode.has("xor")).map(|mask| mask.flipped(or));
                self.read(a, mask);
                self.read(b, mask);
                self.read(with, None);
                self.write(to);
                if matches!(to, Operand::Name(_)) && mask.is_some() {
                    formula = literal.map(|with| if or { Formula::Or(with, None) } else { Formula::And(with, None) });
                }
            }
            (name, operands) => {
                let results = usize::from(has_result(name, opcode.has("red"))).min(operands.len());
                operands[results..].iter().for_each(|operand| self.read(operand, None));
                operands[..results].iter().for_each(|operand| self.write(operand));
                if matches!(name, "addc" | "subc" | "madc") {
                    self.reads.push(Read { register: CARRY, mask: None });
                }
                if opcode.has("cc") {
                    self.writes.push(CARRY);
                }
            }
        }
        let (reads, writes) = (first_read..self.reads.len() as u32, first_write..self.writes.len() as u32);
        self.steps.push(Step { instruction, guard, reads, writes, formula });
    }

    fn leap(&mut self, leap: Leap) {
        self.leaps.push((self.steps.len() as u32, leap));
    }

    fn literal(&self, operand: &Operand) -> Option<Literal> {
        match operand {
            Operand::Name(name) => self.names.register(name).map(|register| Literal::new(register, false)),
            Operand::Not(inner) => self.literal(inner).map(Literal::not),
            _ => None,
        }
    }

    fn read(&mut self, operand: &Operand, mask: Option<Literal>) {
        match operand {
            Operand::Name(name) | Operand::Address { base: AddressBase::Name(name), .. } => {
                self.reads.extend(self.names.register(name).map(|register| Read { register, mask }));
            }
            Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|operand| self.read(operand, mask)),
            Operand::Not(inner) => self.read(inner, mask),
            _ => {}
        }
    }

    fn write(&mut self, operand: &Operand) {
        match operand {
            Operand::Name(name) => self.writes.extend(self.names.register(name)),
            Operand::Vector(list) => list.iter().for_each(|operand| self.write(operand)),
            Operand::Pair(first, second) => {
                self.write(first);
                self.write(second);
            }
            _ => {}
        }
    }

    fn blocks(&self) -> Vec<Block> {
        let end = self.steps.len() as u32;
        let mut first = vec![0];
        first.extend(self.places.iter().copied().filter(|place| *place < end));
        first.extend(self.leaps.iter().map(|(step, _)| step + 1).filter(|step| *step < end));
        first.sort_unstable();
        first.dedup();
        let block_at = |step: u32| first.binary_search(&step).ok().map(|block| block as u32);
        let mut leaps = self.leaps.iter().peekable();
        let mut blocks = Vec::with_capacity(first.len());
        for (number, &start) in first.iter().enumerate() {
            let stop = first.get(number + 1).copied().unwrap_or(end);
            let leap = leaps.next_if(|(step, _)| *step + 1 == stop);
            let guard = leap.and_then(|(step, _)| self.steps[*step as usize].guard);
            let mut edges = Vec::new();
            if let Some((_, leap)) = leap {
                let places = leap.labels.iter().filter_map(|label| block_at(self.places[*label as usize]));
                edges.extend(places.map(|to| Edge { to, fact: guard }));
            }
            if stop < end && (guard.is_some() || !leap.is_some_and(|(_, leap)| leap.ends)) {
                edges.push(Edge { to: number as u32 + 1, fact: guard.map(Literal::not) });
            }
            blocks.push(Block { steps: start..stop, edges });
        }
        blocks
    }
}

/// Whether the first operand is written.
fn has_result(name: &str, reduces: bool) -> bool {
    match name {
        "bar" | "barrier" => reduces,
        "st" | "red" | "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "brkpt" | "pmevent"
        | "discard" | "applypriority" => false,
        _ => true,
    }
}
