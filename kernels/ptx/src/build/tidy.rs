//! Removes duplicate and unused instructions of generated code: fewer instructions for the driver to assemble.
//!
//! ```text
//!   add.u32 %r30, %r27, %r29         add.u32 %r27, %r27, %r29          a result written to its destination
//!   mov.u32 %r27, %r30
//!   mov.u32 %r5, %tid.x              (gone, %r0 stands for %r5)        computed earlier on every path
//!   mul.lo.u32 %r6, %r4, 4           (gone)                            result never read
//!   not.pred %p9, %p8                @%p8 bra $L_end_7                 a guard can be negated itself
//!   @!%p9 bra $L_end_7
//!   @%p3 bra $L_end_2                @!%p3 bra $L_loop_1               a branch around a branch
//!   bra $L_loop_1
//!   $L_end_2:
//! ```
//!
//! Predicates of predicates are rewritten by `predicates`, because an assembler gets some forms wrong.
//!
//! Kept     ordered loads, atomics, stores, calls and exchanges with other lanes stay unchanged and in place.
//! Regions  a region is a run of statements without a label or a branch: a thread that enters it runs to its end. A
//!          value computed before the first label or branch is valid everywhere.
//! Registers  written once, before their first read, are values; the others are variables.

use std::collections::{HashMap, HashSet};

use super::FunctionBuilder;
use crate::ast::{AddressBase, Instruction, Opcode, Operand, Statement};

impl FunctionBuilder {
    /// Removes redundant instructions of the function so far, without changing its results.
    pub fn tidy(&mut self) {
        let mut body = std::mem::take(&mut self.statements);
        loop {
            let before = body.len();
            let mut changed = share(&mut body);
            changed |= self.separate_predicates(&mut body);
            changed |= negate(&mut body);
            changed |= move_at_once(&mut body);
            changed |= turn_branches(&mut body);
            changed |= drop_unread(&mut body);
            if !changed && body.len() == before {
                break;
            }
        }
        self.statements = body;
    }
}

/// A register's class and number in one.
pub(super) type Register = u64;

/// The register called `name`; `None` for special registers and other names.
pub(super) fn register(name: &str) -> Option<Register> {
    // Hot: called several times for each operand.
    let (class, digits) = match name.as_bytes() {
        [b'%', b'r', b'd', digits @ ..] => (2, digits),
        [b'%', b'f', b'd', digits @ ..] => (4, digits),
        [b'%', b'p', digits @ ..] => (0, digits),
        [b'%', b'r', digits @ ..] => (1, digits),
        [b'%', b'f', digits @ ..] => (3, digits),
        _ => return None,
    };
    let mut number = 0_u32;
    for digit in digits {
        number = number.checked_mul(10)?.checked_add(digit.checked_sub(b'0').filter(|digit| *digit < 10)?.into())?;
    }
    (!digits.is_empty()).then_some(class << 32 | u64::from(number))
}

/// Instructions that only compute their result from their operands.
fn computes(opcode: &Opcode) -> bool {
    const NAMES: [&str; 40] = [
        "mov", "add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "and", "or", "xor", "not",
        "cnot", "shl", "shr", "shf", "bfe", "bfi", "popc", "clz", "brev", "bfind", "prmt", "selp", "slct", "setp",
        "cvt", "cvta", "lop3", "sqrt", "rcp", "rsqrt", "copysign", "testp", "ex2", "lg2",
    ];
    NAMES.contains(&opcode.name.as_str()) && !opcode.has("cc")
}

/// Loads that may be omitted if their result is unused.
fn loads_plainly(opcode: &Opcode) -> bool {
    opcode.name == "ld" && !["relaxed", "acquire", "volatile", "mmio"].iter().any(|order| opcode.has(order))
}

/// Whether the first operand is written: one register or several.
fn has_result(opcode: &Opcode) -> bool {
    const WITHOUT: [&str; 18] = [
        "st",
        "red",
        "bra",
        "brx",
        "call",
        "ret",
        "exit",
        "trap",
        "bar",
        "barrier",
        "membar",
        "fence",
        "prefetch",
        "prefetchu",
        "nanosleep",
        "brkpt",
        "pmevent",
        "discard",
    ];
    !WITHOUT.contains(&opcode.name.as_str())
}

/// Calls `visit` on the name of every register in an operand.
fn names<'a>(operand: &'a Operand, visit: &mut dyn FnMut(&'a str)) {
    match operand {
        Operand::Name(name) | Operand::Address { base: AddressBase::Name(name), .. } => visit(name),
        Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|operand| names(operand, visit)),
        Operand::Pair(first, second) => {
            names(first, visit);
            names(second, visit);
        }
        Operand::Not(inner) => names(inner, visit),
        _ => {}
    }
}

fn rename(operand: &mut Operand, to: &HashMap<Register, String>) {
    match operand {
        Operand::Name(name) | Operand::Address { base: AddressBase::Name(name), .. } => {
            if let Some(new) = register(name).and_then(|own| to.get(&own)) {
                *name = new.clone();
            }
        }
        Operand::Vector(list) | Operand::List(list) => list.iter_mut().for_each(|operand| rename(operand, to)),
        Operand::Pair(first, second) => {
            rename(first, to);
            rename(second, to);
        }
        Operand::Not(inner) => rename(inner, to),
        _ => {}
    }
}

/// The operands that an instruction writes, and those that it reads.
pub(super) fn results(instruction: &Instruction) -> (&[Operand], &[Operand]) {
    let count = usize::from(has_result(&instruction.opcode)).min(instruction.operands.len());
    instruction.operands.split_at(count)
}

/// The only register that an instruction writes.
pub(super) fn only_result(instruction: &Instruction) -> Option<(&str, Register)> {
    match results(instruction).0 {
        [Operand::Name(name)] => register(name).map(|own| (name.as_str(), own)),
        _ => None,
    }
}

/// Writes and reads of each register.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// By class and number; numbers are consecutive.
    of: [Vec<Uses>; 5],
    /// The region of each statement.
    pub(super) regions: Vec<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Uses {
    writes: u32,
    reads: u32,
    /// Reads as the guard of an instruction.
    guards: u32,
    /// Index of the first statement that writes it.
    pub(super) written_at: Option<usize>,
    /// Index of the first statement that reads it.
    read_at: Option<usize>,
}

impl Facts {
    pub(super) fn of(body: &[Statement]) -> Facts {
        let mut facts = Facts::default();
        let mut region = 0;
        for (at, statement) in body.iter().enumerate() {
            if matches!(statement, Statement::Label { .. }) {
                region += 1;
            }
            facts.regions.push(region);
            facts.note(at, statement);
            if let Statement::Instruction(instruction) = statement
                && matches!(instruction.opcode.name.as_str(), "bra" | "brx" | "ret" | "exit" | "trap")
            {
                region += 1;
            }
        }
        facts
    }

    fn note(&mut self, at: usize, statement: &Statement) {
        match statement {
            Statement::Block(inner) => inner.iter().for_each(|statement| self.note(at, statement)),
            Statement::Instruction(instruction) => {
                if let Some(guard) = &instruction.guard
                    && let Some(own) = register(&guard.register)
                {
                    self.entry(own).guards += 1;
                    self.read(at, own);
                }
                let (written, read) = results(instruction);
                for operand in read {
                    names(operand, &mut |name| {
                        if let Some(own) = register(name) {
                            self.read(at, own);
                        }
                    });
                }
                for operand in written {
                    names(operand, &mut |name| {
                        if let Some(own) = register(name) {
                            let uses = self.entry(own);
                            uses.writes += 1;
                            uses.written_at.get_or_insert(at);
                        }
                    });
                }
            }
            _ => {}
        }
    }

    fn read(&mut self, at: usize, own: Register) {
        let uses = self.entry(own);
        uses.reads += 1;
        uses.read_at.get_or_insert(at);
    }

    fn entry(&mut self, own: Register) -> &mut Uses {
        let (of, number) = (&mut self.of[(own >> 32) as usize], own as u32 as usize);
        if of.len() <= number {
            of.resize(number + 1, Uses::default());
        }
        &mut of[number]
    }

    pub(super) fn uses(&self, own: Register) -> Uses {
        self.of[(own >> 32) as usize].get(own as u32 as usize).copied().unwrap_or_default()
    }

    /// Whether a register is written once and read only after that.
    pub(super) fn is_value(&self, own: Register) -> bool {
        let uses = self.uses(own);
        uses.writes == 1 && uses.read_at.is_none_or(|read| uses.written_at.is_some_and(|written| written < read))
    }
}

/// Reuses an equal earlier result: one of the same region, or one from before the first label or branch.
fn share(body: &mut Vec<Statement>) -> bool {
    let facts = Facts::of(body);
    let mut known: HashMap<(&Opcode, &[Operand], Register), (&str, u32)> = HashMap::new();
    let mut renamed: HashMap<Register, String> = HashMap::new();
    let mut gone = HashSet::new();
    for (at, statement) in body.iter().enumerate() {
        let Statement::Instruction(instruction) = statement else { continue };
        let parameter = loads_plainly(&instruction.opcode) && instruction.opcode.has("param");
        if !computes(&instruction.opcode) && !parameter {
            continue;
        }
        let Some((name, own)) = only_result(instruction) else { continue };
        let read = results(instruction).1;
        let mut values = facts.is_value(own);
        // A special register is a value if it is constant: clocks and timers are not.
        for operand in read {
            names(operand, &mut |name| {
                values &= match register(name) {
                    Some(source) => facts.is_value(source) && facts.uses(source).written_at < Some(at),
                    None => !name.contains("clock") && !name.contains("timer"),
                };
            });
        }
        // Rename one step only: the next round finds renamings that follow from it.
        let mut fresh = true;
        for operand in read {
            names(operand, &mut |name| fresh &= register(name).is_none_or(|own| !renamed.contains_key(&own)));
        }
        if !values || !fresh {
            continue;
        }
        let region = facts.regions[at];
        let key = (&instruction.opcode, read, own >> 32);
        match known.get(&key) {
            Some(&(first, there)) if there == 0 || there == region => {
                renamed.insert(own, first.to_string());
                gone.insert(at);
            }
            _ if instruction.guard.is_none() => {
                known.insert(key, (name, region));
            }
            _ => {}
        }
    }
    if gone.is_empty() {
        return false;
    }
    let mut at = 0;
    body.retain(|_| {
        at += 1;
        !gone.contains(&(at - 1))
    });
    body.iter_mut().for_each(|statement| rename_in(statement, &renamed));
    true
}

fn rename_in(statement: &mut Statement, to: &HashMap<Register, String>) {
    match statement {
        Statement::Block(inner) => inner.iter_mut().for_each(|statement| rename_in(statement, to)),
        Statement::Instruction(instruction) => {
            if let Some(guard) = &mut instruction.guard
                && let Some(new) = register(&guard.register).and_then(|own| to.get(&own))
            {
                guard.register = new.clone();
            }
            instruction.operands.iter_mut().for_each(|operand| rename(operand, to));
        }
        _ => {}
    }
}

/// Replaces guards by `not p` with negated guards by `p`.
fn negate(body: &mut [Statement]) -> bool {
    let facts = Facts::of(body);
    let mut turned: HashMap<Register, String> = HashMap::new();
    for (at, statement) in body.iter().enumerate() {
        let Statement::Instruction(instruction) = statement else { continue };
        if instruction.opcode.name != "not" || !instruction.opcode.has("pred") || instruction.guard.is_some() {
            continue;
        }
        let (Some((_, own)), [Operand::Name(source)]) = (only_result(instruction), results(instruction).1) else {
            continue;
        };
        let Some(of) = register(source) else { continue };
        let uses = facts.uses(own);
        if uses.guards == 0 || uses.reads != uses.guards || !facts.is_value(own) {
            continue;
        }
        // Requires that `p` does not change between the `not` and the guard.
        let together = facts.is_value(of)
            && facts.uses(of).written_at.is_some_and(|written| facts.regions[written] == facts.regions[at]);
        let at_once = uses.reads == 1 && uses.read_at == Some(at + 1);
        if (together || at_once) && !turned.contains_key(&of) {
            turned.insert(own, source.clone());
        }
    }
    fn turn(statement: &mut Statement, turned: &HashMap<Register, String>) {
        match statement {
            Statement::Block(inner) => inner.iter_mut().for_each(|statement| turn(statement, turned)),
            Statement::Instruction(instruction) => {
                if let Some(guard) = &mut instruction.guard
                    && let Some(of) = register(&guard.register).and_then(|own| turned.get(&own))
                {
                    guard.register = of.clone();
                    guard.negated = !guard.negated;
                }
            }
            _ => {}
        }
    }
    body.iter_mut().for_each(|statement| turn(statement, &turned));
    !turned.is_empty()
}

/// Writes a result directly to the destination of the following `mov` if that is its only read.
fn move_at_once(body: &mut Vec<Statement>) -> bool {
    let facts = Facts::of(body);
    let mut changed = false;
    let mut at = 0;
    while at + 1 < body.len() {
        let (before, after) = body.split_at_mut(at + 1);
        if let (Some(Statement::Instruction(first)), Some(Statement::Instruction(second))) =
            (before.last_mut(), after.first())
            && second.opcode.name == "mov"
            && let [Operand::Name(to), Operand::Name(from)] = second.operands.as_slice()
            && let (Some(to_register), Some(from_register)) = (register(to), register(from))
            && to_register >> 32 == from_register >> 32
            && only_result(first).is_some_and(|(_, own)| own == from_register)
            && (computes(&first.opcode) || loads_plainly(&first.opcode))
            && (first.guard.is_none() || first.guard == second.guard)
            && facts.uses(from_register).writes == 1
            && facts.uses(from_register).reads == 1
        {
            first.operands[0] = Operand::Name(to.clone());
            first.guard = second.guard.clone();
            body.remove(at + 1);
            changed = true;
        } else {
            at += 1;
        }
    }
    changed
}

/// Replaces a guarded branch over an unconditional branch by one branch with the negated guard.
fn turn_branches(body: &mut Vec<Statement>) -> bool {
    fn target(statement: &Statement) -> Option<(&Instruction, &str)> {
        match statement {
            Statement::Instruction(branch) if branch.opcode.name == "bra" => match branch.operands.as_slice() {
                [Operand::Name(to)] => Some((branch, to)),
                _ => None,
            },
            _ => None,
        }
    }
    let mut changed = false;
    let mut at = 0;
    while at + 1 < body.len() {
        let over = target(&body[at]).filter(|(branch, _)| branch.guard.is_some());
        let plain = target(&body[at + 1]).filter(|(branch, _)| branch.guard.is_none());
        let label = match body.get(at + 2) {
            Some(Statement::Label { name, .. }) => Some(name.as_str()),
            _ => None,
        };
        match (over, plain) {
            (Some((_, end)), Some((_, there))) if label == Some(end) => {
                let there = there.to_string();
                if let Statement::Instruction(branch) = &mut body[at] {
                    branch.operands = vec![Operand::Name(there)];
                    if let Some(guard) = &mut branch.guard {
                        guard.negated = !guard.negated;
                    }
                }
                body.remove(at + 1);
                changed = true;
            }
            _ => at += 1,
        }
    }
    changed
}

/// Removes instructions whose results are never read.
fn drop_unread(body: &mut Vec<Statement>) -> bool {
    let facts = Facts::of(body);
    let before = body.len();
    body.retain(|statement| {
        let Statement::Instruction(instruction) = statement else { return true };
        if !computes(&instruction.opcode) && !loads_plainly(&instruction.opcode) {
            return true;
        }
        let mut read = false;
        for operand in results(instruction).0 {
            names(operand, &mut |name| read |= register(name).is_none_or(|own| facts.uses(own).reads > 0));
        }
        read
    });
    body.len() != before
}

#[cfg(test)]
mod tests {
    use crate::ast::{Space, Type};
    use crate::build::{Compare, FunctionBuilder, ModuleBuilder};

    /// The instructions, after tidying, of a kernel that stores one U32 at `to`, without parameter loads and `ret`.
    fn tidied(body: impl FnOnce(&mut FunctionBuilder) -> crate::build::Reg) -> Vec<String> {
        let mut f = FunctionBuilder::kernel("k");
        let to = f.param("to", Type::U64);
        let to = f.load_param(&to);
        let value = body(&mut f);
        f.store(Space::Global, Type::U32, to, value);
        f.tidy();
        let mut module = ModuleBuilder::new();
        module.add(f);
        let text = module.finish().expect("it is well-typed").to_string();
        let body = text.split_once("{\n").expect("a body").1;
        let lines = body.lines().map(|line| line.trim().to_string());
        lines
            .filter(|line| {
                !line.starts_with(".reg")
                    && !line.starts_with("ld.param")
                    && !["ret;", "}", ""].contains(&line.as_str())
            })
            .collect()
    }

    #[test]
    fn what_is_computed_before_the_first_branch_is_not_computed_again() {
        let lines = tidied(|f| {
            let first = f.thread_index();
            let some = f.setp(Compare::Ne, first, 0u32);
            let sum = f.copy(Type::U32, first);
            f.if_(some, |f| {
                let again = f.thread_index();
                let both = f.add(sum, again);
                f.assign(sum, both);
            });
            sum
        });
        assert_eq!(
            lines,
            [
                "mov.u32 %r0, %tid.x;",
                "setp.ne.u32 %p0, %r0, 0;",
                "mov.u32 %r1, %r0;",
                "@!%p0 bra $L_end_1;",
                "add.u32 %r1, %r1, %r0;",
                "$L_end_1:",
                "st.global.u32 [%rd0], %r1;",
            ]
        );
    }

    #[test]
    fn variables_and_branches_apart_are_left_alone() {
        let lines = tidied(|f| {
            let thread = f.thread_index();
            let sum = f.copy(Type::U32, 0u32);
            let low = f.setp(Compare::Lt, thread, 7u32);
            f.if_(low, |f| {
                let one = f.add(thread, 1u32);
                f.assign(sum, one);
            });
            let high = f.setp(Compare::Gt, thread, 9u32);
            f.if_(high, |f| {
                // The first computation may not have run.
                let one = f.add(thread, 1u32);
                let two = f.add(one, sum);
                f.assign(sum, two);
            });
            sum
        });
        assert_eq!(lines.iter().filter(|line| line.contains("add.u32")).count(), 3, "{lines:?}");
        assert!(lines.contains(&"mov.u32 %r1, 0;".to_string()), "{lines:?}");
    }

    #[test]
    fn a_loop_that_waits_takes_one_branch() {
        let lines = tidied(|f| {
            let word = f.copy(Type::U32, 0u32);
            let at = f.copy(Type::U64, 64u64);
            f.loop_(|f| {
                f.load_into("ld.relaxed.gpu.global", Type::U32, word, at);
                let missing = f.setp(Compare::Eq, word, 0u32);
                let done = f.not(missing);
                f.break_if(done);
            });
            word
        });
        assert_eq!(
            lines,
            [
                "mov.u32 %r0, 0;",
                "mov.u64 %rd1, 64;",
                "$L_loop_1:",
                "ld.relaxed.gpu.global.u32 %r0, [%rd1];",
                "setp.eq.u32 %p0, %r0, 0;",
                "@%p0 bra $L_loop_1;",
                "$L_end_2:",
                "st.global.u32 [%rd0], %r0;",
            ]
        );
    }

    #[test]
    fn unread_results_go_and_what_others_see_stays() {
        let lines = tidied(|f| {
            let thread = f.thread_index();
            let double = f.mul(thread, 2u32);
            let _unread = f.add(double, 1u32);
            let at = f.copy(Type::U64, 64u64);
            let _plain = f.load(Space::Global, Type::U32, at);
            let _ordered = f.load_with("ld.acquire.gpu.global", Type::U32, at);
            let some = f.setp(Compare::Ne, thread, 0u32);
            let _ballot = f.ballot(some);
            thread
        });
        assert_eq!(
            lines,
            [
                "mov.u32 %r0, %tid.x;",
                "mov.u64 %rd1, 64;",
                "ld.acquire.gpu.global.u32 %r4, [%rd1];",
                "setp.ne.u32 %p0, %r0, 0;",
                "vote.sync.ballot.b32 %r5, %p0, 4294967295;",
                "st.global.u32 [%rd0], %r0;",
            ]
        );
    }

    #[test]
    fn guards_say_not_themselves_but_values_do_not() {
        let lines = tidied(|f| {
            let thread = f.thread_index();
            let sum = f.copy(Type::U32, 0u32);
            let low = f.setp(Compare::Lt, thread, 7u32);
            let high = f.not(low);
            f.if_(high, |f| f.assign(sum, 5u32));
            let odd = f.setp(Compare::Ne, sum, 0u32);
            let even = f.not(odd);
            let both = f.and(even, low);
            f.guarded(both, true, |f| f.assign(sum, 7u32));
            sum
        });
        assert_eq!(lines.iter().filter(|line| line.contains("not.pred")).count(), 1, "{lines:?}");
        assert!(lines.contains(&"@%p0 bra $L_end_1;".to_string()), "{lines:?}");
    }
}
