//! Decodes the body of one function: names become rows and offsets, labels become step numbers.
//!
//!   { .reg .b32 %r<3>; loop: … bra loop; }   ──►   rows 0…2 · label `loop` = step 17 · Branch { target: 17 }
//!
//! Scopes  names and labels of a block hide those of enclosing blocks.
//! Frame   registers are rows; .local variables and the .param variables of calls are words of local memory.

use super::{FUNCTION_BASE, FUNCTION_STRIDE, Loader, MOST_LOCAL, MOST_ROWS, Symbol, data, error};
use crate::ast::{self, AddressBase, FunctionKind, Instruction, Operand, Space, Statement, Variable};
use crate::flow::{self, Flow};
use crate::interpret::alu::{self, Names, Register, Source};
use crate::interpret::image::LoadError;
use crate::interpret::op::*;
use std::collections::HashMap;

/// A function being decoded.
pub(super) struct Body<'a> {
    loader: &'a mut Loader,
    pub kernel: bool,
    scopes: Vec<Scope>,
    rows: u32,
    /// First row and width of each declared register, in declaration order.
    declared: Vec<(u32, u32)>,
    local_bytes: u32,
    /// Step numbers of labels, by label number; `u32::MAX` until seen.
    labels: Vec<u32>,
    /// Steps whose targets are label numbers, not step numbers.
    patches: Vec<usize>,
    sink: Option<u32>,
    carry: Option<u32>,
    current: u32,
    line: u32,
    text: String,
    shared: Vec<u32>,
    calls: Vec<u32>,
    calls_any: bool,
}

#[derive(Default)]
struct Scope {
    names: HashMap<String, Symbol>,
    /// `%r<12>`: prefix to (count, first row, bits).
    ranges: HashMap<String, (u32, u32, u32)>,
    labels: HashMap<String, u32>,
    /// `.branchtargets` lists.
    targets: HashMap<String, Vec<String>>,
}

/// Base and offset of an address.
pub(super) struct Place {
    pub base: Source,
    pub narrow: bool,
    pub offset: i64,
    /// The space of a symbol; `None` for registers and plain numbers.
    pub space: Option<MemorySpace>,
}

impl Loader {
    pub(super) fn body(&mut self, index: u32, function: &ast::Function) -> Result<(), LoadError> {
        let entry = self.steps.len() as u32;
        let mut body = Body {
            kernel: function.kind == FunctionKind::Entry,
            scopes: vec![Scope::default()],
            rows: 0,
            declared: Vec::new(),
            local_bytes: 0,
            labels: Vec::new(),
            patches: Vec::new(),
            sink: None,
            carry: None,
            current: 0,
            line: function.span.line,
            text: String::new(),
            shared: Vec::new(),
            calls: Vec::new(),
            calls_any: false,
            loader: self,
        };
        let mut formals = Vec::new();
        if body.kernel {
            let (params, _) = super::params(&function.params)?;
            for param in params {
                let symbol = Symbol::Param { offset: param.offset };
                body.scopes[0].names.insert(param.name, symbol);
            }
        } else {
            for variable in &function.params {
                formals.push(body.formal(variable)?);
            }
        }
        let results = function.returns.iter().map(|variable| body.formal(variable)).collect::<Result<Vec<_>, _>>()?;
        body.statements(function.body.as_deref().unwrap_or_default())?;
        // A body may end without `ret`.
        body.current = body.loader.instructions.len() as u32;
        body.loader.instructions.push(Instruction::new("ret", Vec::new()));
        let last = if body.kernel { Op::Exit } else { Op::Return };
        body.push(NO_GUARD, last);
        body.patch()?;
        let flow = Flow::of(function);
        let unwritten = flow::unwritten(&flow).into_iter().filter_map(|register| body.row_of(register)).collect();
        let done = Function {
            name: function.name.clone(),
            entry,
            rows: body.rows,
            unwritten,
            live_words: flow::most_words(&flow),
            local_words: body.local_bytes.div_ceil(8),
            formals,
            results,
            shared: body.shared,
            calls: body.calls,
            calls_any: body.calls_any,
        };
        self.functions[index as usize] = done;
        Ok(())
    }
}

impl Body<'_> {
    pub fn fail<T>(&self, reason: impl std::fmt::Display) -> Result<T, LoadError> {
        error(self.line, format!("`{}`: {reason}", self.text.trim_end_matches(';')))
    }

    fn formal(&mut self, variable: &Variable) -> Result<Formal, LoadError> {
        self.declare(variable)?;
        match self.scopes[0].names.get(&variable.name) {
            Some(&Symbol::Register { row, bits }) => Ok(Formal::Register { row, bits }),
            Some(&Symbol::Local { offset, size }) => Ok(Formal::Memory { offset, size }),
            _ => error(variable.span.line, format!("`{}` cannot be a parameter", variable.name)),
        }
    }

    fn declare(&mut self, variable: &Variable) -> Result<(), LoadError> {
        let line = variable.span.line;
        let symbol = match variable.space {
            Space::Reg => {
                let bits = variable.ty.bits();
                if bits > 64 {
                    return error(line, format!("`{}`: registers of {bits} bits cannot be run", variable.name));
                }
                let first = self.rows;
                let scope = self.scopes.last_mut().expect("a body has at least one scope");
                if let Some(count) = variable.count {
                    if self.rows.saturating_add(count) > MOST_ROWS {
                        return error(line, format!("`{}`: more than {MOST_ROWS} registers", variable.name));
                    }
                    self.rows += count;
                    self.declared.extend((first..self.rows).map(|row| (row, bits)));
                    scope.ranges.insert(variable.name.clone(), (count, first, bits));
                    return Ok(());
                }
                if let Some(elements) = variable.vector {
                    for (index, names) in ["xr", "yg", "zb", "wa"].iter().take(elements as usize).enumerate() {
                        for letter in names.chars() {
                            let symbol = Symbol::Register { row: first + index as u32, bits };
                            scope.names.insert(format!("{}.{letter}", variable.name), symbol);
                        }
                    }
                    self.rows += u32::from(elements);
                    self.declared.extend((first..self.rows).map(|row| (row, bits)));
                    return Ok(());
                }
                self.rows += 1;
                self.declared.push((first, bits));
                Symbol::Register { row: first, bits }
            }
            Space::Local | Space::Param => {
                let size = data::size(variable)?;
                let align = variable.alignment().max(1) as u32;
                let offset = self.local_bytes.next_multiple_of(align.max(8));
                let end = u64::from(offset).saturating_add(size);
                if end > u64::from(MOST_LOCAL) {
                    return error(line, format!("`{}`: more than {MOST_LOCAL} bytes of local memory", variable.name));
                }
                self.local_bytes = end as u32;
                Symbol::Local { offset, size: size as u32 }
            }
            Space::Shared => self.loader.shared(variable)?,
            Space::Global | Space::Const => {
                return error(
                    line,
                    format!("`{}`: .{} variables stand outside functions", variable.name, variable.space.name()),
                );
            }
        };
        let scope = self.scopes.last_mut().expect("a body has at least one scope");
        scope.names.insert(variable.name.clone(), symbol);
        Ok(())
    }

    fn statements(&mut self, statements: &[Statement]) -> Result<(), LoadError> {
        // Labels of this block are known throughout it, so jumps forward find them.
        for statement in statements {
            match statement {
                Statement::Label { name, .. } => {
                    let number = self.labels.len() as u32;
                    self.labels.push(u32::MAX);
                    let scope = self.scopes.last_mut().expect("a body has at least one scope");
                    scope.labels.insert(name.clone(), number);
                }
                Statement::BranchTargets { name, targets, .. } => {
                    let scope = self.scopes.last_mut().expect("a body has at least one scope");
                    scope.targets.insert(name.clone(), targets.clone());
                }
                _ => {}
            }
        }
        for statement in statements {
            match statement {
                Statement::Variable(variable) => self.declare(variable)?,
                Statement::Label { name, .. } => {
                    let scope = self.scopes.last().expect("a body has at least one scope");
                    let number = scope.labels[name];
                    self.labels[number as usize] = self.loader.steps.len() as u32;
                }
                Statement::Instruction(instruction) => self.instruction(instruction)?,
                Statement::Block(inner) => {
                    self.scopes.push(Scope::default());
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Statement::Pragma(_)
                | Statement::BranchTargets { .. }
                | Statement::CallTargets { .. }
                | Statement::CallPrototype { .. } => {}
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<(), LoadError> {
        self.line = instruction.span.line;
        self.text = instruction.to_string();
        self.current = self.loader.instructions.len() as u32;
        self.loader.instructions.push(instruction.clone());
        let guard = match &instruction.guard {
            None => NO_GUARD,
            Some(guard) => match self.lookup(&guard.register) {
                Some(Symbol::Register { row, bits: 1 }) => row * 2 + u32::from(guard.negated),
                _ => return self.fail(format!("the guard `{}` is not a predicate", guard.register)),
            },
        };
        let op = self.decode(instruction)?;
        self.push(guard, op);
        Ok(())
    }

    fn push(&mut self, guard: u32, op: Op) {
        if matches!(op, Op::Branch { .. } | Op::BranchIndexed { .. }) {
            self.patches.push(self.loader.steps.len());
        }
        self.loader.steps.push(Step { guard, op });
        self.loader.origins.push(self.current);
    }

    /// Turns label numbers into step numbers.
    fn patch(&mut self) -> Result<(), LoadError> {
        for &at in &self.patches {
            match &mut self.loader.steps[at].op {
                Op::Branch { target } => *target = self.labels[*target as usize],
                Op::BranchIndexed { targets, .. } => {
                    targets.iter_mut().for_each(|target| *target = self.labels[*target as usize]);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn decode(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let operands = instruction.operands.as_slice();
        let opcode = &instruction.opcode;
        match opcode.name.as_str() {
            "ld" | "ldu" => return self.load(instruction),
            "st" => return self.store(instruction),
            "atom" | "red" => return self.atomic(instruction),
            "fence" | "membar" => return self.fence(instruction),
            "bar" | "barrier" => return self.barrier(instruction),
            "shfl" => return self.shuffle(instruction),
            "vote" => return self.vote(instruction),
            "match" => return self.matching(instruction),
            "redux" => return self.redux(instruction),
            "activemask" => {
                let [to] = operands else { return self.fail("takes one operand") };
                return Ok(Op::ActiveMask { to: self.destination(to)? });
            }
            "mov" => {
                if let Some(op) = self.move_symbol(instruction)? {
                    return Ok(op);
                }
            }
            "cvta" | "isspacep" => {
                let [to, from] = operands else { return self.fail("takes two operands") };
                let (to, from) = (self.destination(to)?, self.value(from)?);
                let space = match opcode.space() {
                    Some(Space::Global) => MemorySpace::Global,
                    Some(Space::Const) => MemorySpace::Const,
                    Some(Space::Shared) => MemorySpace::Shared,
                    Some(Space::Local) => MemorySpace::Local { frame: false },
                    Some(Space::Param) if self.kernel => MemorySpace::Param,
                    Some(Space::Param) => MemorySpace::Local { frame: false },
                    _ => return self.fail("names no state space that has generic addresses"),
                };
                return Ok(if opcode.name == "isspacep" {
                    Op::IsSpace { to, from, space }
                } else {
                    Op::Convert { to, from, space, to_generic: !opcode.has("to") }
                });
            }
            "bra" => {
                let [Operand::Name(label)] = operands else { return self.fail("takes a label") };
                return Ok(Op::Branch { target: self.label(label)? });
            }
            "brx" => {
                let [index, Operand::Name(list)] = operands else { return self.fail("takes an index and a list") };
                let index = self.value(index)?;
                let targets = self.scopes.iter().rev().find_map(|scope| scope.targets.get(list)).cloned();
                let Some(targets) = targets else { return self.fail(format!("`{list}` is no .branchtargets")) };
                let targets = targets.iter().map(|label| self.label(label)).collect::<Result<_, _>>()?;
                return Ok(Op::BranchIndexed { index, targets });
            }
            "call" => return self.call(instruction),
            "ret" => return Ok(if self.kernel { Op::Exit } else { Op::Return }),
            "exit" => return Ok(Op::Exit),
            "trap" => return Ok(Op::Trap { what: "`trap` was executed" }),
            "brkpt" => return Ok(Op::Trap { what: "`brkpt` was executed" }),
            "nanosleep" => return Ok(Op::Yield),
            "prefetch" | "prefetchu" | "pmevent" | "discard" | "applypriority" => return Ok(Op::Nothing),
            _ => {}
        }
        match alu::decode(instruction, self) {
            Some(Ok(op)) => Ok(Op::Alu(op)),
            Some(Err(refused)) => error(refused.line, format!("`{}` {}", refused.instruction, refused.reason)),
            None => self.fail("this instruction is not known"),
        }
    }

    /// A `mov` of an address or special register; `None` for moves between registers.
    fn move_symbol(&mut self, instruction: &Instruction) -> Result<Option<Op>, LoadError> {
        let [to, from] = instruction.operands.as_slice() else { return Ok(None) };
        let (name, offset) = match from {
            Operand::Name(name) => (name, 0),
            Operand::SymbolOffset { name, offset } => (name, *offset),
            _ => return Ok(None),
        };
        if !matches!(to, Operand::Name(_) | Operand::Sink) || matches!(self.lookup(name), Some(Symbol::Register { .. }))
        {
            return Ok(None);
        }
        let to = self.destination(to)?;
        if let Some(what) = special(name) {
            return Ok(Some(Op::Special { to, what }));
        }
        if let Some(Symbol::Local { offset: at, .. }) = self.lookup(name) {
            return Ok(Some(Op::LocalAddress { to, offset: at.wrapping_add_signed(offset as i32) }));
        }
        let from = self.symbol_value(name, offset)?;
        Ok(Some(Op::Move { to, from }))
    }

    fn call(&mut self, instruction: &Instruction) -> Result<Op, LoadError> {
        let Some(call) = instruction.call() else { return self.fail("is not a well-formed call") };
        let target = match self.lookup(call.target) {
            Some(Symbol::Function(function)) => {
                self.calls.push(function);
                CallTarget::Function(function)
            }
            Some(Symbol::Register { row, .. }) => {
                self.calls_any = true;
                CallTarget::Address(Source::register(row))
            }
            Some(Symbol::Declared) if call.target == "__assertfail" => {
                return Ok(Op::Trap { what: "a device assertion failed" });
            }
            Some(Symbol::Declared) => return self.fail(format!("`{}` has no body in this module", call.target)),
            _ => return self.fail(format!("`{}` is not a function", call.target)),
        };
        let arguments = call.arguments.iter().map(|operand| self.actual(operand)).collect::<Result<Vec<_>, _>>()?;
        let results = call.returns.iter().map(|operand| self.actual(operand)).collect::<Result<Vec<_>, _>>()?;
        Ok(Op::Call(Box::new(CallSite { target, arguments, results })))
    }

    fn actual(&mut self, operand: &Operand) -> Result<Actual, LoadError> {
        if *operand == Operand::Sink {
            return Ok(Actual::Nowhere);
        }
        if let Operand::Name(name) = operand {
            match self.lookup(name) {
                Some(Symbol::Local { offset, size }) => return Ok(Actual::Memory { offset, size }),
                Some(Symbol::Register { row, .. }) => return Ok(Actual::Register(row)),
                _ => {}
            }
        }
        Ok(Actual::Value(self.value(operand)?))
    }

    fn lookup(&self, name: &str) -> Option<Symbol> {
        for scope in self.scopes.iter().rev() {
            if let Some(&symbol) = scope.names.get(name) {
                return Some(symbol);
            }
            if let Some((row, bits)) = scope.in_range(name) {
                return Some(Symbol::Register { row, bits });
            }
        }
        self.loader.symbols.get(name).copied()
    }

    fn label(&self, name: &str) -> Result<u32, LoadError> {
        match self.scopes.iter().rev().find_map(|scope| scope.labels.get(name)) {
            Some(&number) => Ok(number),
            None => self.fail(format!("there is no label `{name}` in this function")),
        }
    }

    /// Row of a destination register.
    pub fn destination(&mut self, operand: &Operand) -> Result<u32, LoadError> {
        self.destination_bits(operand).map(|(row, _)| row)
    }

    /// Row and width of a destination register; `_` is the sink row.
    pub fn destination_bits(&mut self, operand: &Operand) -> Result<(u32, u32), LoadError> {
        match operand {
            Operand::Sink => Ok((self.sink(), 64)),
            Operand::Name(name) => match self.lookup(name) {
                Some(Symbol::Register { row, bits }) => Ok((row, bits)),
                _ => self.fail(format!("`{name}` is not a register")),
            },
            _ => self.fail("a destination must be a register"),
        }
    }

    /// A row with the operand's value: a register, a number, an address or a special register.
    pub fn value(&mut self, operand: &Operand) -> Result<Source, LoadError> {
        match operand {
            Operand::Name(name) => self.symbol_value(name, 0),
            Operand::SymbolOffset { name, offset } => self.symbol_value(name, *offset),
            Operand::Integer(value) => Ok(self.number(*value as u64)),
            Operand::F32(bits) => Ok(self.number(u64::from(*bits))),
            Operand::F64(bits) => Ok(self.number(*bits)),
            _ => self.fail("an operand must be a register or a number"),
        }
    }

    pub fn number(&mut self, bits: u64) -> Source {
        Source::constant(self.loader.constants.bits(bits))
    }

    fn symbol_value(&mut self, name: &str, offset: i64) -> Result<Source, LoadError> {
        if let Some(what) = special(name) {
            let to = self.fresh_row();
            self.push(NO_GUARD, Op::Special { to, what });
            return Ok(Source::register(to));
        }
        Ok(match self.lookup(name) {
            Some(Symbol::Register { row, .. }) => Source::register(row),
            Some(Symbol::Global(global)) => {
                Source::constant(self.loader.constants.relocation(Relocation::Global { global, offset }))
            }
            Some(Symbol::Shared(shared)) => {
                self.use_shared(shared);
                Source::constant(self.loader.constants.relocation(Relocation::Shared { shared, offset }))
            }
            Some(Symbol::Local { offset: at, .. }) => {
                let to = self.fresh_row();
                self.push(NO_GUARD, Op::LocalAddress { to, offset: at.wrapping_add_signed(offset as i32) });
                Source::register(to)
            }
            Some(Symbol::Param { offset: at }) => self.number(u64::from(at).wrapping_add_signed(offset)),
            Some(Symbol::Function(function)) => {
                self.calls.push(function);
                self.number(FUNCTION_BASE + u64::from(function) * FUNCTION_STRIDE)
            }
            Some(Symbol::Declared) => return self.fail(format!("`{name}` has no body in this module")),
            None if name == "WARP_SZ" => self.number(32),
            None => return self.fail(format!("`{name}` is not known here")),
        })
    }

    fn use_shared(&mut self, shared: u32) {
        if !self.shared.contains(&shared) {
            self.shared.push(shared);
        }
    }

    /// `[base+offset]`, or a bare symbol.
    pub fn place(&mut self, operand: &Operand) -> Result<Place, LoadError> {
        let Operand::Address { base, offset } = operand else { return self.fail("takes an address in brackets") };
        let name = match base {
            AddressBase::Absolute(address) => {
                let base = self.number(address.wrapping_add_signed(*offset));
                return Ok(Place { base, narrow: false, offset: 0, space: None });
            }
            AddressBase::Name(name) => name,
        };
        let space = match self.lookup(name) {
            Some(Symbol::Register { row, bits }) => {
                let base = Source::register(row);
                return Ok(Place { base, narrow: bits == 32, offset: *offset, space: None });
            }
            Some(Symbol::Local { offset: at, .. }) => {
                let base = self.number(0);
                let space = Some(MemorySpace::Local { frame: true });
                return Ok(Place { base, narrow: false, offset: i64::from(at) + offset, space });
            }
            Some(Symbol::Param { offset: at }) => {
                let base = self.number(0);
                return Ok(Place {
                    base,
                    narrow: false,
                    offset: i64::from(at) + offset,
                    space: Some(MemorySpace::Param),
                });
            }
            Some(Symbol::Global(_)) => MemorySpace::Global,
            Some(Symbol::Shared(_)) => MemorySpace::Shared,
            _ => return self.fail(format!("`{name}` has no address")),
        };
        let base = self.symbol_value(name, 0)?;
        Ok(Place { base, narrow: false, offset: *offset, space: Some(space) })
    }

    /// The row of a register of the function's [`Flow`], and a mask of the bits that it can hold.
    fn row_of(&self, register: u32) -> Option<(u32, u64)> {
        let (row, bits) = match register {
            flow::CARRY => (self.carry?, 1),
            declared => self.declared[declared as usize - 1],
        };
        Some((row, u64::MAX >> (64 - bits)))
    }

    pub fn fresh_row(&mut self) -> u32 {
        self.rows += 1;
        self.rows - 1
    }
}

impl Scope {
    /// The register `name` of a range such as `%r<12>`: its row and width.
    fn in_range(&self, name: &str) -> Option<(u32, u32)> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // The prefix of a range may itself end in digits, as in `%x1_<4>`: try every split.
        for split in prefix.len()..name.len() {
            if let Some(&(count, first, bits)) = self.ranges.get(&name[..split]) {
                let digits = &name[split..];
                let index: u32 = digits.parse().ok()?;
                if index < count && (digits == "0" || !digits.starts_with('0')) {
                    return Some((first + index, bits));
                }
            }
        }
        None
    }
}

impl Names for Body<'_> {
    fn register(&mut self, name: &str) -> Option<Register> {
        match self.lookup(name) {
            Some(Symbol::Register { row, bits }) => Some(Register { row, bits }),
            // Any instruction may read a special register; it is copied to a row first.
            None if special(name).is_some() => {
                let bits = special_bits(name);
                let source = self.symbol_value(name, 0).ok()?;
                source.as_register().map(|row| Register { row, bits })
            }
            _ => None,
        }
    }

    fn constant(&mut self, bits: u64) -> u32 {
        self.loader.constants.bits(bits)
    }

    fn sink(&mut self) -> u32 {
        match self.sink {
            Some(row) => row,
            None => {
                let row = self.fresh_row();
                self.sink = Some(row);
                row
            }
        }
    }

    fn carry(&mut self) -> u32 {
        match self.carry {
            Some(row) => row,
            None => {
                let row = self.fresh_row();
                self.carry = Some(row);
                row
            }
        }
    }
}

fn special_bits(name: &str) -> u32 {
    if matches!(name, "%clock64" | "%globaltimer" | "%gridid") { 64 } else { 32 }
}

/// The special register called `name`.
fn special(name: &str) -> Option<Special> {
    let name = name.strip_prefix('%')?;
    if let Some((vector, axis)) = name.split_once('.') {
        let axis = match axis {
            "x" => 0,
            "y" => 1,
            "z" => 2,
            _ => return None,
        };
        return Some(match vector {
            "tid" => Special::Thread(axis),
            "ntid" => Special::Threads(axis),
            "ctaid" => Special::Block(axis),
            "nctaid" => Special::Blocks(axis),
            _ => return None,
        });
    }
    Some(match name {
        "laneid" => Special::Lane,
        "warpid" => Special::Warp,
        "nwarpid" => Special::Warps,
        "lanemask_eq" => Special::LanesEqual,
        "lanemask_lt" => Special::LanesLess,
        "lanemask_le" => Special::LanesLessOrEqual,
        "lanemask_gt" => Special::LanesGreater,
        "lanemask_ge" => Special::LanesGreaterOrEqual,
        "smid" => Special::Multiprocessor,
        "nsmid" => Special::Multiprocessors,
        "gridid" => Special::Grid,
        "clock" => Special::Clock,
        "clock_hi" => Special::ClockHigh,
        "clock64" => Special::Clock64,
        "globaltimer" | "globaltimer_lo" => Special::Nanoseconds,
        "globaltimer_hi" => Special::ClockHigh,
        "dynamic_smem_size" => Special::DynamicShared,
        "total_smem_size" => Special::TotalShared,
        "is_explicit_cluster" | "reserved_smem_offset_begin" | "reserved_smem_offset_end" => Special::Zero,
        _ => return None,
    })
}
