//! Control flow graph of a function: blocks of steps that read and write numbered registers.
//!
//!   @%p1 bra done;  add.u32 %r2, %r2, %r1;  done: ret;
//!
//!   block 0   @%p1 bra        ──► 2 where %p1 holds, 1 where it does not
//!   block 1   %r2 ◄── %r2 %r1 ──► 2
//!   block 2   ret
//!
//! Masks      an operand whose value matters only under a condition carries that condition: `and.pred d, a, b` needs
//!            `b` only where `a` holds, `selp` needs its first value only where the predicate holds.
//! Carry      the flag of `add.cc` is register 0.
//! Not here   memory, and the bodies of callees: a call reads arguments and writes results.

mod decode;
mod live;
mod names;

use crate::ast::{Function, Instruction};
use std::fmt;
use std::ops::Range;

pub(crate) use live::{most_words, unwritten};

/// Number of the register that stands for the carry flag.
pub(crate) const CARRY: u32 = 0;

/// A predicate or its negation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Literal(u32);

impl Literal {
    pub fn new(register: u32, negated: bool) -> Literal {
        Literal(register << 1 | u32::from(negated))
    }

    pub fn register(self) -> u32 {
        self.0 >> 1
    }

    pub fn is_negated(self) -> bool {
        self.0 & 1 == 1
    }

    pub fn not(self) -> Literal {
        Literal(self.0 ^ 1)
    }

    /// This literal, or its negation if `flip` is set.
    pub fn flipped(self, flip: bool) -> Literal {
        Literal(self.0 ^ u32::from(flip))
    }
}

/// A declared register.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Register<'a> {
    stem: &'a str,
    /// Index in a declaration such as `%r<12>`.
    number: Option<u32>,
    /// Component of a vector.
    component: Option<char>,
    /// Width in bits; 1 for a predicate.
    pub bits: u32,
}

impl fmt::Display for Register<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.stem)?;
        self.number.map_or(Ok(()), |number| write!(f, "{number}"))?;
        self.component.map_or(Ok(()), |component| write!(f, ".{component}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    pub register: u32,
    /// Condition without which the value does not matter. It counts only where its own predicate is assigned.
    pub mask: Option<Literal>,
}

/// The value of a predicate as a formula of other predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formula {
    Constant(bool),
    Same(Literal),
    /// The second operand may be unknown.
    And(Literal, Option<Literal>),
    Or(Literal, Option<Literal>),
}

#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub instruction: &'a Instruction,
    pub guard: Option<Literal>,
    reads: Range<u32>,
    writes: Range<u32>,
    pub formula: Option<Formula>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub to: u32,
    /// Condition that holds in threads that take this edge.
    pub fact: Option<Literal>,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub steps: Range<u32>,
    pub edges: Vec<Edge>,
}

#[derive(Debug)]
pub(crate) struct Flow<'a> {
    pub registers: Vec<Register<'a>>,
    pub steps: Vec<Step<'a>>,
    pub blocks: Vec<Block>,
    /// Parameters passed in registers.
    pub given: Vec<u32>,
    reads: Vec<Read>,
    writes: Vec<u32>,
}

impl<'a> Flow<'a> {
    /// The flow of a function that passes the other rules of `check`; parts that break them are left out.
    pub fn of(function: &'a Function) -> Flow<'a> {
        decode::flow(function)
    }

    pub fn reads(&self, step: &Step<'_>) -> &[Read] {
        &self.reads[step.reads.start as usize..step.reads.end as usize]
    }

    pub fn writes(&self, step: &Step<'_>) -> &[u32] {
        &self.writes[step.writes.start as usize..step.writes.end as usize]
    }

    pub fn steps_of(&self, block: &Block) -> &[Step<'a>] {
        &self.steps[block.steps.start as usize..block.steps.end as usize]
    }

    /// Number of 32-bit registers that a register takes.
    fn words(&self, register: u32) -> u32 {
        match self.registers[register as usize].bits {
            1 => 0,
            bits => bits.div_ceil(32),
        }
    }

    /// Number of instructions that write each register.
    pub fn writers(&self) -> Vec<u32> {
        let mut writers = vec![0; self.registers.len()];
        for &register in self.steps.iter().flat_map(|step| self.writes(step)) {
            writers[register as usize] += 1;
        }
        writers
    }

    pub fn is_predicate(&self, register: u32) -> bool {
        self.registers[register as usize].bits == 1 && register != CARRY
    }
}
