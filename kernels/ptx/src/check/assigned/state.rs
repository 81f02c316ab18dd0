//! Knowledge about registers and predicates at one point of a function.
//!
//!   assigned   %r1 %r4 …                  conditions   %r7 where %p1 · %r9 where !%p2
//!   facts      %p1 · !%p3                 fresh        %p5 = %p1 & %p4, of their current values
//!
//! Join       keeps what both states know. After a number of joins a state only loses knowledge, so that the analysis
//!            ends.

use crate::flow::{Flow, Formula, Literal};

/// Maximum depth of formulas of formulas.
const DEEPEST: u32 = 6;
/// Maximum number of conditions kept per register.
const MOST_CONDITIONS: usize = 8;
/// Number of joins after which a state gains no conditions, because two conditions might alternate forever. Large,
/// because many paths meet where nested tests end.
const MOST_MEETINGS: u32 = 128;

/// Formulas of the predicates that are written by exactly one unguarded instruction.
pub(super) struct Predicates {
    formulas: Vec<Option<(u32, Formula)>>,
    /// By register, the formulas that contain it.
    users: Vec<Vec<u32>>,
    /// By register: whether some instruction writes a constant to it.
    flags: Vec<bool>,
    count: usize,
}

impl Predicates {
    pub fn of(flow: &Flow<'_>) -> Predicates {
        let registers = flow.registers.len();
        let writers = flow.writers();
        let (users, flags) = (vec![Vec::new(); registers], vec![false; registers]);
        let mut all = Predicates { formulas: vec![None; registers], users, flags, count: 0 };
        for step in flow.steps.iter().filter(|step| step.guard.is_none()) {
            let (Some(formula), [own]) = (step.formula, flow.writes(step)) else { continue };
            all.flags[*own as usize] |= matches!(formula, Formula::Constant(_));
            if writers[*own as usize] != 1 {
                continue;
            }
            let (first, second) = match formula {
                Formula::Constant(_) => continue,
                Formula::Same(of) => (of, None),
                Formula::And(a, b) | Formula::Or(a, b) => (a, b),
            };
            let mentioned = || [Some(first), second].into_iter().flatten();
            // A formula of its own old value says nothing about the new one.
            if mentioned().any(|literal| literal.register() == *own) {
                continue;
            }
            for literal in mentioned() {
                all.users[literal.register() as usize].push(all.count as u32);
            }
            all.formulas[*own as usize] = Some((all.count as u32, formula));
            all.count += 1;
        }
        all
    }

    pub fn count(&self) -> usize {
        self.count
    }
}

#[derive(Debug, Clone)]
pub(super) struct State {
    assigned: Vec<u64>,
    /// Conditions under which registers outside `assigned` are assigned: one holding condition suffices. Ascending.
    conditions: Vec<(u32, Literal)>,
    /// Literals that hold in all threads here, the latest last.
    facts: Vec<Literal>,
    /// Formulas that hold for the current values of their predicates.
    fresh: Vec<u64>,
    /// Number of joins so far.
    meetings: u32,
}

fn has(set: &[u64], at: u32) -> bool {
    set[at as usize / 64] >> (at % 64) & 1 == 1
}

impl State {
    pub fn new(registers: usize, formulas: usize) -> State {
        State {
            assigned: vec![0; registers.div_ceil(64)],
            conditions: Vec::new(),
            facts: Vec::new(),
            fresh: vec![0; formulas.div_ceil(64)],
            meetings: 0,
        }
    }

    /// Conditions of a register: each of them alone implies that it is assigned.
    pub fn conditions(&self, register: u32) -> impl Iterator<Item = Literal> {
        let first = self.conditions.partition_point(|(own, _)| *own < register);
        self.conditions[first..].iter().take_while(move |(own, _)| *own == register).map(|(_, literal)| *literal)
    }

    /// Whether a register is assigned where all literals of `here` hold.
    pub fn is_assigned(&self, predicates: &Predicates, register: u32, here: [Option<Literal>; 2]) -> bool {
        has(&self.assigned, register)
            || self.conditions(register).any(|literal| self.follows(predicates, literal, here, DEEPEST))
    }

    /// Records a write of a register in the threads where `guard` holds.
    pub fn assign(&mut self, predicates: &Predicates, register: u32, guard: Option<Literal>) {
        if has(&self.assigned, register) {
            return;
        }
        if let Some(guard) = guard {
            let follows = |here| self.follows(predicates, guard, [here, None], DEEPEST);
            if !follows(None) && !self.conditions(register).any(|literal| follows(Some(literal.not()))) {
                let place = self.conditions.binary_search(&(register, guard));
                if let Err(at) = place
                    && self.conditions(register).count() < MOST_CONDITIONS
                {
                    self.conditions.insert(at, (register, guard));
                }
                return;
            }
        }
        self.settle(register);
    }

    /// Records a copy into a register in every thread: its value is assigned where one of `conditions` holds.
    pub fn assign_where(&mut self, predicates: &Predicates, register: u32, conditions: &[Literal]) {
        self.assigned[register as usize / 64] &= !(1 << (register % 64));
        self.conditions.retain(|(own, _)| *own != register);
        conditions.iter().for_each(|literal| self.assign(predicates, register, Some(*literal)));
    }

    fn settle(&mut self, register: u32) {
        self.assigned[register as usize / 64] |= 1 << (register % 64);
        self.conditions.retain(|(own, _)| *own != register);
    }

    /// Records that a predicate changes its value.
    pub fn forget(&mut self, predicates: &Predicates, predicate: u32) {
        self.conditions.retain(|(_, literal)| literal.register() != predicate);
        self.facts.retain(|literal| literal.register() != predicate);
        let own = predicates.formulas[predicate as usize].map(|(number, _)| number);
        for &formula in predicates.users[predicate as usize].iter().chain(&own) {
            self.fresh[formula as usize / 64] &= !(1 << (formula % 64));
        }
    }

    /// Records that a predicate was computed by a formula.
    pub fn define(&mut self, predicates: &Predicates, predicate: u32, formula: Formula) {
        if let Formula::Constant(truth) = formula {
            self.learn(predicates, Literal::new(predicate, !truth));
        }
        if let Some((number, known)) = predicates.formulas[predicate as usize]
            && known == formula
        {
            self.fresh[number as usize / 64] |= 1 << (number % 64);
        }
    }

    /// Records that `fact` holds from here on.
    pub fn learn(&mut self, predicates: &Predicates, fact: Literal) {
        self.facts.retain(|literal| *literal != fact);
        self.facts.push(fact);
        let settled: Vec<u32> = (self.conditions.iter())
            .filter(|(_, literal)| self.follows(predicates, *literal, [None, None], DEEPEST))
            .map(|(register, _)| *register)
            .collect();
        settled.into_iter().for_each(|register| self.settle(register));
    }

    fn formula(&self, predicates: &Predicates, predicate: u32) -> Option<Formula> {
        let (number, formula) = predicates.formulas[predicate as usize]?;
        has(&self.fresh, number).then_some(formula)
    }

    /// Whether a literal follows from the facts and `here`.
    fn follows(&self, predicates: &Predicates, wanted: Literal, here: [Option<Literal>; 2], depth: u32) -> bool {
        let known = || self.facts.iter().copied().chain(here.into_iter().flatten());
        if known().any(|fact| fact == wanted) || known().any(|fact| self.implies(predicates, fact, wanted, DEEPEST)) {
            return true;
        }
        if depth == 0 {
            return false;
        }
        let flip = wanted.is_negated();
        let all = |a: Literal| self.follows(predicates, a.flipped(flip), here, depth - 1);
        match self.formula(predicates, wanted.register()) {
            Some(Formula::Same(of)) => all(of),
            Some(Formula::And(a, b)) if !flip => all(a) && b.is_some_and(all),
            Some(Formula::And(a, b)) => all(a) || b.is_some_and(all),
            Some(Formula::Or(a, b)) if flip => all(a) && b.is_some_and(all),
            Some(Formula::Or(a, b)) => all(a) || b.is_some_and(all),
            Some(Formula::Constant(_)) | None => false,
        }
    }

    /// Whether one literal implies another one by the formulas.
    fn implies(&self, predicates: &Predicates, fact: Literal, wanted: Literal, depth: u32) -> bool {
        if fact == wanted {
            return true;
        }
        if depth == 0 {
            return false;
        }
        let flip = fact.is_negated();
        let each = |a: Literal| self.implies(predicates, a.flipped(flip), wanted, depth - 1);
        match self.formula(predicates, fact.register()) {
            Some(Formula::Same(of)) => each(of),
            Some(Formula::And(a, b)) if !flip => each(a) || b.is_some_and(each),
            Some(Formula::Or(a, b)) if flip => each(a) || b.is_some_and(each),
            _ => false,
        }
    }

    /// Joins another state that reaches this point: keeps what both know. Returns whether this state changed.
    pub fn meet(&mut self, predicates: &Predicates, other: &State) -> bool {
        self.meetings += 1;
        let is_late = self.meetings > MOST_MEETINGS;
        // Literals that hold on one side only: under them, no thread comes from the side where the register is
        // unassigned.
        let (only_here, only_there) = (other.distinguishing(predicates, self), self.distinguishing(predicates, other));
        let mut changed = false;
        let mut assigned = self.assigned.clone();
        let mut conditions = Vec::new();
        for register in self.touched(other) {
            let (mine, theirs) = (has(&self.assigned, register), has(&other.assigned, register));
            if mine && theirs {
                continue;
            }
            assigned[register as usize / 64] &= !(1 << (register % 64));
            if !mine && !theirs && self.conditions(register).eq(other.conditions(register)) {
                conditions.extend(self.conditions(register).map(|literal| (register, literal)));
                continue;
            }
            let before: Vec<Literal> = self.conditions(register).collect();
            let literals: &[Literal] = if mine { &only_here } else { &only_there };
            let mut both: Vec<Literal> = before.iter().copied().chain(other.conditions(register)).collect();
            if mine || theirs {
                both.extend(literals);
            }
            both.retain(|literal| !is_late || mine || before.contains(literal));
            both.retain(|literal| {
                self.is_assigned_where(predicates, register, *literal)
                    && other.is_assigned_where(predicates, register, *literal)
            });
            both.sort_unstable();
            both.dedup();
            both.truncate(MOST_CONDITIONS);
            changed |= mine || before != both;
            conditions.extend(both.into_iter().map(|literal| (register, literal)));
        }
        self.assigned = assigned;
        self.conditions = conditions;
        let facts = self.facts.len();
        self.facts.retain(|fact| other.follows(predicates, *fact, [None, None], 0));
        changed |= self.facts.len() != facts;
        for (mine, theirs) in self.fresh.iter_mut().zip(&other.fresh) {
            changed |= *mine & !theirs != 0;
            *mine &= theirs;
        }
        changed
    }

    /// Registers whose knowledge differs between two states or includes conditions; ascending.
    fn touched(&self, other: &State) -> Vec<u32> {
        let mut registers: Vec<u32> =
            self.conditions.iter().chain(&other.conditions).map(|(register, _)| *register).collect();
        for (at, (mine, theirs)) in self.assigned.iter().zip(&other.assigned).enumerate() {
            let mut differ = mine ^ theirs;
            while differ != 0 {
                registers.push(at as u32 * 64 + differ.trailing_zeros());
                differ &= differ - 1;
            }
        }
        registers.sort_unstable();
        registers.dedup();
        registers
    }

    /// Literals that hold in `with` and fail here, the latest first; if there are none, one that fails here. Also flags
    /// that are false here: `with` may have lost the value of its flags, but not the registers assigned under them.
    fn distinguishing(&self, predicates: &Predicates, with: &State) -> Vec<Literal> {
        let opposites = || self.facts.iter().rev().map(|fact| fact.not());
        let mut literals: Vec<Literal> =
            opposites().filter(|literal| with.follows(predicates, *literal, [None, None], 2)).collect();
        if literals.is_empty() {
            literals.extend(opposites().next());
        }
        literals.truncate(MOST_CONDITIONS);
        literals.extend(opposites().filter(|literal| predicates.flags[literal.register() as usize]));
        literals
    }

    /// Whether a register is assigned in the threads where `literal` holds; true if there are no such threads.
    fn is_assigned_where(&self, predicates: &Predicates, register: u32, literal: Literal) -> bool {
        self.is_assigned(predicates, register, [Some(literal), None])
            || self.follows(predicates, literal.not(), [None, None], DEEPEST)
    }
}
