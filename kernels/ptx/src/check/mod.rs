//! Rejects modules that an assembler would reject: undefined names and operands of the wrong kind, width or type.
//!
//!   Module ──► symbols ──► per function: scopes of names ──► per instruction: its form, then each operand
//!                            { .reg .b32 %r<3>; L: …          add.s32 d, a, b   wants three 32-bit integers
//!                              { .param .b64 p; … } }
//!
//! Names     declared once per scope; functions before their calls; labels may be used before their definition.
//! Types     rules of the manual: equal width and compatible kind; wider registers in ld, st and cvt.
//! Position  line and column in a parsed module, else the function and the instruction number.
//! Apart     registers that are read before they are assigned, which an assembler does not check: `assigned`.
//! Not here  launch limits, alignment of computed addresses, instruction sets of architectures.

mod assigned;
mod form;
mod operand;

use crate::{PtxError, ast::*};
use operand::Operands;
use std::collections::HashMap;

pub use assigned::check_assigned;

/// Checks a whole module.
///
/// # Errors
/// [`PtxError::Rule`] for the first broken rule, in the order of the text.
pub fn check(module: &Module) -> Result<(), PtxError> {
    let mut checker = Checker { module: HashMap::new(), scopes: Vec::new(), function: None, number: 0 };
    if module.address_size != 64 {
        let message = format!("this project's device code has 64-bit addresses, not {}", module.address_size);
        return Err(checker.rule(Span::NONE, message));
    }
    for item in &module.items {
        checker.item(item)?;
    }
    Ok(())
}

/// Error for a broken rule, with its position if known.
fn broken(span: Span, function: Option<&Function>, number: usize, message: String) -> PtxError {
    let place = match function {
        _ if span.line > 0 => format!("line {}, column {}", span.line, span.column),
        Some(function) => format!("function {}, instruction {number}", function.name),
        None => "module".to_string(),
    };
    PtxError::Rule { span, place, message }
}

/// Meaning of a name.
#[derive(Clone, Copy)]
enum Entity<'a> {
    /// One register, or all of `%r<12>` under the name `%r`.
    Register(&'a Variable),
    Memory(&'a Variable),
    /// A parameter of the function being checked.
    Parameter(&'a Variable),
    Label,
    Function(&'a Function),
    Branches,
    Prototype(&'a [Variable], &'a [Variable]),
    CallTargets,
}

type Scope<'a> = HashMap<&'a str, Entity<'a>>;

struct Checker<'a> {
    module: Scope<'a>,
    scopes: Vec<Scope<'a>>,
    function: Option<&'a Function>,
    number: usize,
}

// 1. Items.
impl<'a> Checker<'a> {
    fn rule(&self, span: Span, message: impl Into<String>) -> PtxError {
        broken(span, self.function, self.number, message.into())
    }

    fn item(&mut self, item: &'a Item) -> Result<(), PtxError> {
        match item {
            Item::Pragma(_) => Ok(()),
            Item::Alias { name, target, span } => {
                let Some(Entity::Function(function)) = self.module.get(target.as_str()).copied() else {
                    return Err(self.rule(*span, format!("{target} is no function that an alias may name")));
                };
                match self.module.insert(name, Entity::Function(function)) {
                    None | Some(Entity::Function(_)) => Ok(()),
                    Some(_) => Err(self.rule(*span, format!("{name} is declared twice"))),
                }
            }
            Item::Variable(variable) => self.module_variable(variable),
            Item::Function(function) => self.function(function),
        }
    }

    fn module_variable(&mut self, variable: &'a Variable) -> Result<(), PtxError> {
        let span = variable.span;
        if matches!(variable.space, Space::Reg | Space::Param | Space::Local) {
            let message = format!("{} cannot be .{} outside a function", variable.name, variable.space.name());
            return Err(self.rule(span, message));
        }
        self.memory_variable(variable)?;
        match self.module.insert(&variable.name, Entity::Memory(variable)) {
            None => Ok(()),
            Some(Entity::Memory(old))
                if (old.space, old.ty, old.vector) == (variable.space, variable.ty, variable.vector)
                    && (old.linkage == Linkage::Extern || variable.linkage == Linkage::Extern) =>
            {
                Ok(())
            }
            Some(_) => Err(self.rule(span, format!("{} is declared twice", variable.name))),
        }
    }

    /// Checks any variable in memory: type, alignment, size, initializer.
    fn memory_variable(&self, variable: &'a Variable) -> Result<(), PtxError> {
        let fail = |message: String| Err(self.rule(variable.span, message));
        let name = &variable.name;
        if variable.ty == Type::Pred {
            return fail(format!("{name} is .pred, which only registers can be"));
        }
        if variable.vector.is_some() && variable.element_bytes() > 16 {
            return fail(format!("{name} has vector elements of {} bytes, of at most 16", variable.element_bytes()));
        }
        if variable.align.is_some_and(|align| u64::from(align) < variable.element_bytes() && variable.dims.is_empty()) {
            // Arrays of bytes and packed words may be under-aligned; scalar loads need natural alignment.
            return fail(format!("{name} is aligned to less than its {} bytes", variable.element_bytes()));
        }
        let Some(bytes) = variable.size() else { return fail(format!("{name} has more than 2^64 bytes")) };
        let Some(init) = &variable.init else { return Ok(()) };
        if !matches!(variable.space, Space::Global | Space::Const) {
            return fail(format!("{name} is .{}, which cannot be initialised", variable.space.name()));
        }
        if variable.linkage == Linkage::Extern {
            return fail(format!("{name} is .extern and initialised"));
        }
        let capacity = bytes / variable.element_bytes().max(1) * u64::from(variable.vector.unwrap_or(1));
        let (mut count, mut open) = (0, vec![init]);
        while let Some(init) = open.pop() {
            match init {
                Init::List(list) => {
                    if variable.dims.is_empty() && variable.vector.is_none() && list.len() > 1 {
                        return fail(format!("{name} is no array but has {} initial values", list.len()));
                    }
                    open.extend(list);
                    continue;
                }
                Init::Symbol { name: symbol, .. } | Init::Mask { name: symbol, .. } => {
                    if !matches!(self.module.get(symbol.as_str()), Some(Entity::Memory(_) | Entity::Function(_))) {
                        return fail(format!("{name} starts from {symbol}, which is not declared before it"));
                    }
                    if matches!(init, Init::Symbol { .. }) && variable.ty.bits() != 64 {
                        return fail(format!("{name} is .{}, too narrow for an address", variable.ty.name()));
                    }
                }
                Init::Integer(_) if variable.ty.is_float() => {
                    return fail(format!("{name} is .{} and starts from an integer", variable.ty.name()));
                }
                Init::F32(_) | Init::F64(_) if !variable.ty.is_float() => {
                    return fail(format!("{name} is .{} and starts from a float", variable.ty.name()));
                }
                Init::Integer(_) | Init::F32(_) | Init::F64(_) => {}
            }
            count += 1;
        }
        if count > capacity {
            return fail(format!("{name} has room for {capacity} values and {count} initial values"));
        }
        Ok(())
    }

    fn function(&mut self, function: &'a Function) -> Result<(), PtxError> {
        let fail = |checker: &Self, message: String| Err(checker.rule(function.span, message));
        let name = &function.name;
        match self.module.insert(name, Entity::Function(function)) {
            None => {}
            Some(Entity::Function(old)) if old.body.is_none() || function.body.is_none() => {
                if old.kind != function.kind
                    || !same(&old.params, &function.params)
                    || !same(&old.returns, &function.returns)
                {
                    return fail(self, format!("{name} is declared before with another signature"));
                }
                if old.body.is_some() {
                    self.module.insert(name, Entity::Function(old));
                }
            }
            Some(_) => return fail(self, format!("{name} is declared twice")),
        }
        self.function = Some(function);
        self.number = 0;
        let mut scope = Scope::new();
        for variable in function.params.iter().chain(&function.returns) {
            let entity = match variable.space {
                Space::Param => Entity::Parameter(variable),
                _ if function.kind == FunctionKind::Entry => {
                    return fail(self, format!("{name} is an .entry and takes {} in a register", variable.name));
                }
                _ => Entity::Register(variable),
            };
            if variable.ty == Type::Pred {
                return fail(self, format!("{} is .pred, which no parameter can be", variable.name));
            }
            if scope.insert(&variable.name, entity).is_some() {
                return Err(self.rule(variable.span, format!("{} is declared twice", variable.name)));
            }
        }
        self.scopes.push(scope);
        let result = function.body.as_ref().map_or(Ok(()), |body| self.block(body));
        self.scopes.pop();
        self.function = None;
        result
    }
}

/// Whether two lists of parameters have equal sizes and alignments.
fn same(a: &[Variable], b: &[Variable]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| (a.space, a.size(), a.alignment()) == (b.space, b.size(), b.alignment()))
}

// 2. Bodies.
impl<'a> Checker<'a> {
    fn block(&mut self, body: &'a [Statement]) -> Result<(), PtxError> {
        self.scopes.push(Scope::new());
        // Labels are visible in their whole block.
        for statement in body {
            let (name, entity, span) = match statement {
                Statement::Label { name, span } => (name, Entity::Label, *span),
                Statement::BranchTargets { name, span, .. } => (name, Entity::Branches, *span),
                Statement::CallTargets { name, span, .. } => (name, Entity::CallTargets, *span),
                Statement::CallPrototype { name, span, returns, params, .. } => {
                    (name, Entity::Prototype(returns, params), *span)
                }
                _ => continue,
            };
            self.declare(name, entity, span)?;
        }
        for statement in body {
            match statement {
                Statement::Variable(variable) => self.local_variable(variable)?,
                Statement::Instruction(instruction) => {
                    self.instruction(instruction)?;
                    self.number += 1;
                }
                Statement::Block(inner) => self.block(inner)?,
                Statement::BranchTargets { targets, span, .. } => {
                    for target in targets {
                        if !matches!(self.find(target), Some(Entity::Label)) {
                            return Err(self.rule(*span, format!("{target} is no label in this scope")));
                        }
                    }
                }
                Statement::CallTargets { targets, span, .. } => {
                    for target in targets {
                        if !matches!(self.find(target), Some(Entity::Function(_))) {
                            return Err(self.rule(*span, format!("{target} is no function declared before")));
                        }
                    }
                }
                Statement::Label { .. } | Statement::Pragma(_) | Statement::CallPrototype { .. } => {}
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn declare(&mut self, name: &'a str, entity: Entity<'a>, span: Span) -> Result<(), PtxError> {
        let twice = match self.scopes.last_mut() {
            Some(scope) => scope.insert(name, entity).is_some(),
            None => false,
        };
        if twice { Err(self.rule(span, format!("{name} is declared twice in this scope"))) } else { Ok(()) }
    }

    fn local_variable(&mut self, variable: &'a Variable) -> Result<(), PtxError> {
        if variable.space == Space::Reg {
            if !variable.dims.is_empty() || variable.init.is_some() {
                return Err(self.rule(variable.span, format!("{} is a register, not an array", variable.name)));
            }
            return self.declare(&variable.name, Entity::Register(variable), variable.span);
        }
        self.memory_variable(variable)?;
        self.declare(&variable.name, Entity::Memory(variable), variable.span)
    }

    /// The meaning of a name here, innermost scope first. `%r7` is found under `%r` if its count exceeds 7.
    fn find(&self, name: &str) -> Option<Entity<'a>> {
        let scopes = || self.scopes.iter().rev().chain(std::iter::once(&self.module));
        for scope in scopes() {
            match scope.get(name) {
                Some(Entity::Register(register)) if register.count.is_some() => {}
                Some(entity) => return Some(*entity),
                None => {}
            }
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            // `%r1` belongs to `%r<2>`; a stem may itself end in digits, as in `%r1<4>`.
            for split in stem.len().max(1)..name.len() {
                let (stem, digits) = name.split_at(split);
                if digits.len() > 1 && digits.starts_with('0') {
                    continue;
                }
                if let Some(Entity::Register(register)) = scope.get(stem)
                    && register.count.is_some_and(|count| digits.parse::<u32>().is_ok_and(|digits| digits < count))
                {
                    return Some(Entity::Register(register));
                }
            }
        }
        None
    }

    fn instruction(&self, instruction: &'a Instruction) -> Result<(), PtxError> {
        let fail = |message: String| self.rule(instruction.span, format!("{message} in `{instruction}`"));
        if let Some(guard) = &instruction.guard {
            match self.find(&guard.register) {
                Some(Entity::Register(register)) if register.ty == Type::Pred && register.vector.is_none() => {}
                Some(_) => return Err(fail(format!("the guard {} is no predicate", guard.register))),
                None => return Err(fail(format!("{} is not declared", guard.register))),
            }
        }
        let mut operands = Operands::new(self, instruction);
        form::check(&instruction.opcode, &mut operands).and_then(|()| operands.finish()).map_err(fail)
    }
}
