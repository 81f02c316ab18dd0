//! Rejects reads of registers that some path leaves unassigned: their value is undefined.
//!
//!   @%p1 ld.u32 %r1, [%rd1]      %r1: where %p1
//!   @%p1 add.u32 %r2, %r1, 1     fine: %r1 is read where %p1 holds
//!   and.pred %p3, %p1, %p2       %p3 implies %p1
//!   @!%p3 bra end                below, %p3 holds
//!   st.u32 [%rd2], %r1           fine, too
//!   end: st.u32 [%rd3], %r1      rejected
//!
//! States     assigned; assigned where one of some predicates is true, or false; unassigned. Joins keep what both
//!            states know.
//! Flags      %p4 = false; … %r2 = 7; %p4 = true; …    where %p4 holds, %r2 is assigned: constants are facts, too.
//! Masks      an operand is not read where another one makes it irrelevant: `and.pred d, a, b` reads `b` where `a`
//!            holds.
//! Copies     `not.pred d, a` does not count as a read: `d` is assigned where `a` is.
//! Predicates lose all knowledge about their old value when they are written again.
//! After      forward dataflow by Kildall: a block is visited again when its entry state loses knowledge.
//! Cost       registers written in the first block, or in each block that reads them, are not tracked.

mod state;

use crate::PtxError;
use crate::ast::Function;
use crate::flow::{Flow, Formula, Literal, Read, Step};
use state::{Predicates, State};
use std::collections::BTreeSet;

/// Checks that every register of a function is assigned on every path before it is read. The function must pass
/// [`check`](crate::check) otherwise.
///
/// # Errors
/// [`PtxError::Rule`] for the first such read, in the order of the text.
pub fn check_assigned(function: &Function) -> Result<(), PtxError> {
    let flow = Flow::of(function);
    let (followed, count) = followed(&flow);
    if count == 0 {
        return Ok(());
    }
    let predicates = Predicates::of(&flow);
    let walk = Walk { flow: &flow, followed: &followed, predicates: &predicates };
    let begins = walk.begins(count);
    for (block, begin) in flow.blocks.iter().zip(begins) {
        // A block without a state is unreachable.
        let Some(mut state) = begin else { continue };
        for (offset, step) in flow.steps_of(block).iter().enumerate() {
            if let Some((register, own)) = walk.unassigned(&state, step)
                && copied(step).is_none()
            {
                let message = walk.message(register, own);
                let message = format!("{}: {message}; it is read by `{}`", function.name, step.instruction);
                let number = block.steps.start as usize + offset;
                return Err(super::broken(step.instruction.span, Some(function), number, message));
            }
            walk.step(&mut state, step);
        }
    }
    Ok(())
}

/// The predicate that a step copies or negates in every thread.
fn copied(step: &Step<'_>) -> Option<u32> {
    match (step.formula, step.guard) {
        (Some(Formula::Same(of)), None) => Some(of.register()),
        _ => None,
    }
}

/// By register, its number among the tracked registers; and their count.
fn followed(flow: &Flow<'_>) -> (Vec<Option<u32>>, usize) {
    const NOWHERE: u32 = u32::MAX;
    let mut written_in = vec![NOWHERE; flow.registers.len()];
    let mut is_followed = vec![false; flow.registers.len()];
    for &given in &flow.given {
        written_in[given as usize] = 0;
    }
    for (number, block) in flow.blocks.iter().enumerate() {
        for step in flow.steps_of(block) {
            let guard = step.guard.map(|guard| guard.register());
            for register in flow.reads(step).iter().map(|read| read.register).chain(guard) {
                let place = written_in[register as usize];
                is_followed[register as usize] |= place != 0 && place != number as u32;
            }
            for &register in flow.writes(step).iter().filter(|_| step.guard.is_none()) {
                let place = &mut written_in[register as usize];
                if *place != 0 {
                    *place = number as u32;
                }
            }
        }
    }
    // A copy of a tracked register is tracked, too.
    while let Some(copy) = flow.steps.iter().find_map(|step| {
        let (Some(of), [own]) = (copied(step), flow.writes(step)) else { return None };
        (is_followed[of as usize] && !is_followed[*own as usize]).then_some(*own)
    }) {
        is_followed[copy as usize] = true;
    }
    let mut count = 0;
    let numbers = is_followed.into_iter().map(|is_followed| {
        is_followed.then(|| {
            count += 1;
            count - 1
        })
    });
    (numbers.collect(), count as usize)
}

struct Walk<'w, 'a> {
    flow: &'w Flow<'a>,
    followed: &'w [Option<u32>],
    predicates: &'w Predicates,
}

impl Walk<'_, '_> {
    /// State at the start of each block; `None` for unreachable blocks.
    fn begins(&self, count: usize) -> Vec<Option<State>> {
        let mut begins: Vec<Option<State>> = vec![None; self.flow.blocks.len()];
        let mut first = State::new(count, self.predicates.count());
        for &given in &self.flow.given {
            self.assign(&mut first, given, None);
        }
        begins[0] = Some(first);
        let mut open = BTreeSet::from([0]);
        while let Some(number) = open.pop_first() {
            let Some(mut state) = begins[number as usize].clone() else { continue };
            let block = &self.flow.blocks[number as usize];
            for step in self.flow.steps_of(block) {
                self.step(&mut state, step);
            }
            for edge in &block.edges {
                let mut state = state.clone();
                if let Some(fact) = edge.fact {
                    state.learn(self.predicates, fact);
                }
                let changed = match &mut begins[edge.to as usize] {
                    Some(begin) => begin.meet(self.predicates, &state),
                    begin => {
                        *begin = Some(state);
                        true
                    }
                };
                if changed {
                    open.insert(edge.to);
                }
            }
        }
        begins
    }

    /// The first register that the step reads and that may be unassigned; with the condition under which it is
    /// assigned.
    fn unassigned(&self, state: &State, step: &Step<'_>) -> Option<(u32, Option<Literal>)> {
        let guard = step.guard;
        if let Some(guard) = guard
            && !self.is_assigned(state, guard.register(), [None, None])
        {
            return Some((guard.register(), None));
        }
        let fine = |read: &&Read| {
            self.is_assigned(state, read.register, [guard, None])
                || read.mask.is_some_and(|mask| {
                    self.is_assigned(state, mask.register(), [guard, None])
                        && self.is_assigned(state, read.register, [guard, Some(mask)])
                })
        };
        let bad = self.flow.reads(step).iter().find(|read| !fine(read))?;
        let own = self.followed[bad.register as usize].and_then(|number| state.conditions(number).next());
        Some((bad.register, own))
    }

    fn is_assigned(&self, state: &State, register: u32, here: [Option<Literal>; 2]) -> bool {
        self.followed[register as usize].is_none_or(|number| state.is_assigned(self.predicates, number, here))
    }

    /// Updates the state to the one after the step.
    fn step(&self, state: &mut State, step: &Step<'_>) {
        let writes = self.flow.writes(step);
        let copy = self.copy_of_unassigned(state, step);
        for &register in writes.iter().filter(|register| self.flow.is_predicate(**register)) {
            state.forget(self.predicates, register);
        }
        // A guarded write of the guard itself loses the condition of the write.
        let is_lost = step.guard.is_some_and(|guard| writes.contains(&guard.register()));
        match copy {
            Some((own, conditions)) => state.assign_where(self.predicates, own, &conditions),
            None => writes.iter().filter(|_| !is_lost).for_each(|own| self.assign(state, *own, step.guard)),
        }
        if let (Some(formula), None, [own]) = (step.formula, step.guard, writes) {
            state.define(self.predicates, *own, formula);
        }
    }

    /// For a step that copies a possibly unassigned register: the copy and the conditions that assign the original.
    fn copy_of_unassigned(&self, state: &State, step: &Step<'_>) -> Option<(u32, Vec<Literal>)> {
        let (Some(of), [own]) = (copied(step), self.flow.writes(step)) else { return None };
        let (number, copy) = (self.followed[of as usize]?, self.followed[*own as usize]?);
        if state.is_assigned(self.predicates, number, [None, None]) {
            return None;
        }
        // A condition on the copy's own old value is lost.
        Some((copy, state.conditions(number).filter(|literal| literal.register() != *own).collect()))
    }

    fn assign(&self, state: &mut State, register: u32, guard: Option<Literal>) {
        if let Some(number) = self.followed[register as usize] {
            state.assign(self.predicates, number, guard);
        }
    }

    fn message(&self, register: u32, own: Option<Literal>) -> String {
        let name = self.flow.registers[register as usize];
        let written = self.flow.steps.iter().any(|step| self.flow.writes(step).contains(&register));
        match own {
            Some(literal) => {
                let not = if literal.is_negated() { "does not hold" } else { "holds" };
                let predicate = self.flow.registers[literal.register() as usize];
                let guard = if literal.is_negated() { "@!" } else { "@" };
                format!(
                    "{name} is assigned only where {predicate} {not}: assign it before that, or read it under {guard}{predicate}"
                )
            }
            None if written => {
                format!("{name} is not assigned on every way that leads here: assign it before they part")
            }
            None => format!("{name} is read and never assigned"),
        }
    }
}
