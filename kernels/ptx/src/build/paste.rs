//! Calls, and merging of compiled helpers into a module under construction.
//!
//!   helper image                         module being built
//!     .func helper ── calls ─► inner       .func helper_1 ─► inner_1      table_1       kernel ── call ─► helper_1
//!                  └─ reads ─► table
//!
//! Names    every merged function and variable gets a name that is new in the module; helpers of one image share their
//!          common dependencies, and a repeated paste merges nothing new.

use std::collections::{HashMap, HashSet};

use super::{FunctionBuilder, ModuleBuilder, Reg, Value};
use crate::PtxError;
use crate::ast::{
    AddressBase, Function, FunctionKind, Init, Item, Linkage, Module, Operand, Space, Span, Statement, Type, Variable,
};

/// A callable function: its name in the module and the layout of its parameters and results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callee {
    name: String,
    returns: Vec<Variable>,
    params: Vec<Variable>,
}

impl Callee {
    pub(super) fn of(function: &Function) -> Callee {
        Callee { name: function.name.clone(), returns: function.returns.clone(), params: function.params.clone() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The merged items: new name by (image, old name).
#[derive(Debug, Default)]
pub(super) struct Pasted {
    names: HashMap<(u64, String), String>,
}

impl ModuleBuilder {
    /// Merges the function `name` of a compiled image and all functions and variables that it needs, under new names. A
    /// repeated call returns the merged function.
    ///
    /// # Errors
    /// [`PtxError::Rule`] if the image has no body of a required function.
    pub fn paste(&mut self, image: &Module, name: &str) -> Result<Callee, PtxError> {
        self.paste_known(image, fingerprint(image), name)
    }

    /// Like [`Self::paste`] with a [`fingerprint`] kept by the caller, because large images take time to hash.
    ///
    /// # Errors
    /// Those of [`Self::paste`].
    pub fn paste_known(&mut self, image: &Module, fingerprint: u64, name: &str) -> Result<Callee, PtxError> {
        if let Some(new) = self.pasted.names.get(&(fingerprint, name.to_string()))
            && let Some(function) = self.module.function(new)
        {
            return Ok(Callee::of(function));
        }
        let mut needed = Vec::new();
        let mut seen = HashSet::new();
        let mut open = vec![name.to_string()];
        while let Some(next) = open.pop() {
            if !seen.insert(next.clone()) {
                continue;
            }
            let item = find(image, &next).ok_or_else(|| missing(&next))?;
            if let Item::Function(function) = &item
                && function.body.is_none()
            {
                return Err(missing(&next));
            }
            names_in_item(&item, &mut |used| {
                if used != next && find(image, used).is_some() {
                    open.push(used.to_string());
                }
            });
            needed.push(item);
        }
        needed.reverse();
        let mut renamed = HashMap::new();
        let mut fresh = HashSet::new();
        for item in &needed {
            let old = item_name(item).to_string();
            let new = match self.pasted.names.get(&(fingerprint, old.clone())) {
                Some(new) => new.clone(),
                None => {
                    let new = self.unique_name(&old);
                    self.pasted.names.insert((fingerprint, old.clone()), new.clone());
                    fresh.insert(old.clone());
                    new
                }
            };
            renamed.insert(old, new);
        }
        // Forward declarations let functions call one another in any order.
        let mut bodies = Vec::new();
        for item in needed.into_iter().filter(|item| fresh.contains(item_name(item))) {
            let item = rename_item(item, &renamed);
            if let Item::Function(function) = &item {
                self.module.items.push(Item::Function(Function { body: None, ..function.clone() }));
                bodies.push(item);
            } else {
                self.module.items.push(item);
            }
        }
        self.module.items.extend(bodies);
        let new = &renamed[name];
        self.module.function(new).map(Callee::of).ok_or_else(|| missing(name))
    }

    fn unique_name(&self, wanted: &str) -> String {
        let taken = |name: &str| {
            self.pasted.names.values().any(|other| other == name)
                || self.module.items.iter().any(|item| item_name(item) == name)
        };
        if !taken(wanted) {
            return wanted.to_string();
        }
        (1..).map(|n| format!("{wanted}_{n}")).find(|name| !taken(name)).expect("there is always a further number")
    }
}

impl FunctionBuilder {
    /// Calls a function in every active thread. A parameter of a fundamental type takes one argument, a parameter of
    /// bytes takes one per 8 bytes; likewise for the results.
    pub fn call(&mut self, callee: &Callee, arguments: &[Value]) -> Vec<Reg> {
        let reads: Vec<Vec<(Type, i64)>> = callee.returns.iter().map(words).collect();
        self.call_reading(callee, arguments, &reads)
    }

    /// Calls a function and reads only the parts of each result listed in `reads`: types and offsets in bytes. For
    /// results of bytes that the function may leave partly unwritten.
    pub fn call_reading(&mut self, callee: &Callee, arguments: &[Value], reads: &[Vec<(Type, i64)>]) -> Vec<Reg> {
        self.calls += 1;
        let call = self.calls;
        let outer = std::mem::take(&mut self.statements);
        let mut arguments = arguments.iter();
        let mut names = Vec::new();
        for (index, param) in callee.params.iter().enumerate() {
            let local = format!("argument_{call}_{index}");
            self.statements.push(Statement::Variable(local_copy(param, &local)));
            for (ty, offset) in words(param) {
                let opcode = format!("st.param.{}", ty.name());
                match arguments.next() {
                    Some(&value) => {
                        let value = self.operand(&opcode, ty, value);
                        self.emit(&opcode, vec![Operand::address(local.as_str(), offset), value]);
                    }
                    None => self.refuse(format!("call of {}: too few arguments", callee.name)),
                }
            }
            names.push(Operand::Name(local));
        }
        if arguments.next().is_some() {
            self.refuse(format!("call of {}: too many arguments", callee.name));
        }
        let mut returns = Vec::new();
        for (index, result) in callee.returns.iter().enumerate() {
            let local = format!("result_{call}_{index}");
            self.statements.push(Statement::Variable(local_copy(result, &local)));
            returns.push(Operand::Name(local));
        }
        let mut operands = Vec::new();
        if !returns.is_empty() {
            operands.push(Operand::List(returns));
        }
        operands.push(Operand::Name(callee.name.clone()));
        if !names.is_empty() || !callee.returns.is_empty() {
            operands.push(Operand::List(names));
        }
        self.emit("call", operands);
        let mut results = Vec::new();
        for (index, result) in reads.iter().enumerate().take(callee.returns.len()) {
            let local = format!("result_{call}_{index}");
            for &(ty, offset) in result {
                let register = self.register(ty);
                self.emit(
                    &format!("ld.param.{}", ty.name()),
                    vec![Operand::Name(register.name()), Operand::address(local.as_str(), offset)],
                );
                results.push(register);
            }
        }
        let block = std::mem::replace(&mut self.statements, outer);
        self.statements.push(Statement::Block(block));
        results
    }
}

/// The parameter as a local variable of the calling block.
fn local_copy(param: &Variable, name: &str) -> Variable {
    let mut local = Variable::new(Space::Param, param.ty, name);
    local.align = param.align;
    local.dims = param.dims.clone();
    local
}

/// The registers of a parameter: the parameter itself, or the 8-byte words of its bytes.
fn words(param: &Variable) -> Vec<(Type, i64)> {
    if param.dims.is_empty() {
        return vec![(param.ty, 0)];
    }
    let bytes = param.size().unwrap_or(0) as i64;
    (0..bytes / 8)
        .map(|word| (Type::B64, word * 8))
        .chain((bytes % 8 >= 4).then_some((Type::B32, bytes / 8 * 8)))
        .collect()
}

fn missing(name: &str) -> PtxError {
    let message = format!("the image has no function or variable {name} with a body");
    PtxError::Rule { span: Span::NONE, place: name.to_string(), message }
}

/// A hash that identifies an image.
pub fn fingerprint(image: &Module) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn item_name(item: &Item) -> &str {
    match item {
        Item::Variable(variable) => &variable.name,
        Item::Function(function) => &function.name,
        Item::Alias { name, .. } => name,
        Item::Pragma(_) => "",
    }
}

/// The definition called `name`, else its declaration.
fn find(image: &Module, name: &str) -> Option<Item> {
    if let Some(function) = image.function(name) {
        let mut function = function.clone();
        if function.kind == FunctionKind::Func {
            function.linkage = Linkage::Private;
        }
        return Some(Item::Function(function));
    }
    image.variables().find(|variable| variable.name == name).map(|variable| {
        let mut variable = variable.clone();
        if variable.linkage != Linkage::Extern {
            variable.linkage = Linkage::Private;
        }
        Item::Variable(variable)
    })
}

/// Calls `visit` for every name in an item.
pub(super) fn names_in_item(item: &Item, visit: &mut dyn FnMut(&str)) {
    // One traversal serves reading and renaming, so both visit the same places: names go through `rename_item`.
    let visit = std::cell::RefCell::new(visit);
    let mut copy = item.clone();
    for_each_name(&mut copy, &mut |name| (visit.borrow_mut())(name));
}

pub(super) fn rename_item(mut item: Item, names: &HashMap<String, String>) -> Item {
    // A name declared inside the function hides the module's name.
    let mut hidden = HashSet::new();
    if let Item::Function(function) = &item {
        hidden.extend(function.params.iter().chain(&function.returns).map(|param| param.name.clone()));
        hide_locals(function.body.as_deref().unwrap_or(&[]), &mut hidden);
    }
    let own = item_name(&item).to_string();
    for_each_name(&mut item, &mut |name| {
        if (*name == own || !hidden.contains(name))
            && let Some(new) = names.get(name)
        {
            *name = new.clone();
        }
    });
    item
}

fn hide_locals(body: &[Statement], hidden: &mut HashSet<String>) {
    for statement in body {
        match statement {
            Statement::Variable(variable) => {
                hidden.insert(variable.name.clone());
            }
            Statement::Label { name, .. } => {
                hidden.insert(name.clone());
            }
            Statement::Block(block) => hide_locals(block, hidden),
            _ => {}
        }
    }
}

fn for_each_name(item: &mut Item, visit: &mut dyn FnMut(&mut String)) {
    match item {
        Item::Variable(variable) => names_in_variable(variable, visit),
        Item::Function(function) => {
            visit(&mut function.name);
            for statement in function.body.iter_mut().flatten() {
                names_in_statement(statement, visit);
            }
        }
        Item::Alias { name, target, .. } => {
            visit(name);
            visit(target);
        }
        Item::Pragma(_) => {}
    }
}

fn names_in_variable(variable: &mut Variable, visit: &mut dyn FnMut(&mut String)) {
    visit(&mut variable.name);
    if let Some(init) = &mut variable.init {
        names_in_init(init, visit);
    }
}

fn names_in_init(init: &mut Init, visit: &mut dyn FnMut(&mut String)) {
    match init {
        Init::List(list) => list.iter_mut().for_each(|init| names_in_init(init, visit)),
        Init::Symbol { name, .. } | Init::Mask { name, .. } => visit(name),
        Init::Integer(_) | Init::F32(_) | Init::F64(_) => {}
    }
}

fn names_in_statement(statement: &mut Statement, visit: &mut dyn FnMut(&mut String)) {
    match statement {
        Statement::Instruction(instruction) => {
            instruction.operands.iter_mut().for_each(|operand| names_in_operand(operand, visit))
        }
        Statement::Block(block) => block.iter_mut().for_each(|statement| names_in_statement(statement, visit)),
        Statement::CallTargets { targets, .. } => targets.iter_mut().for_each(visit),
        Statement::Variable(variable) => {
            if let Some(init) = &mut variable.init {
                names_in_init(init, visit);
            }
        }
        Statement::Label { .. }
        | Statement::Pragma(_)
        | Statement::BranchTargets { .. }
        | Statement::CallPrototype { .. } => {}
    }
}

fn names_in_operand(operand: &mut Operand, visit: &mut dyn FnMut(&mut String)) {
    match operand {
        Operand::Name(name) | Operand::SymbolOffset { name, .. } => visit(name),
        Operand::Address { base: AddressBase::Name(name), .. } => visit(name),
        Operand::Vector(list) | Operand::List(list) => {
            list.iter_mut().for_each(|operand| names_in_operand(operand, visit))
        }
        Operand::Pair(first, second) => {
            names_in_operand(first, visit);
            names_in_operand(second, visit);
        }
        Operand::Not(inner) => names_in_operand(inner, visit),
        Operand::Address { base: AddressBase::Absolute(_), .. }
        | Operand::Integer(_)
        | Operand::F32(_)
        | Operand::F64(_)
        | Operand::Sink => {}
    }
}
