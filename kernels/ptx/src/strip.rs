//! Removes unreachable items, so that an image contains only its kernels and their dependencies.
//!
//!   roots: entries, visible functions ──► names in their bodies ──► functions and variables ──► names in those ──► …
//!
//! Kept      everything reachable by name from a root, in its old order; initial values count as uses.
//! Dropped   the rest, such as private helpers inlined at every call and constants of headers.

use crate::ast::*;
use std::collections::{HashMap, HashSet};

/// Removes the functions, variables and aliases that no kernel or visible function reaches.
pub fn strip(module: &mut Module) {
    let mut uses: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut open: Vec<&str> = Vec::new();
    for item in &module.items {
        match item {
            Item::Function(function) => {
                let names = uses.entry(&function.name).or_default();
                for statement in function.body.iter().flatten() {
                    statement_names(statement, names);
                }
                let visible = matches!(function.linkage, Linkage::Visible) && function.body.is_some();
                if visible || function.kind == FunctionKind::Entry {
                    open.push(&function.name);
                }
            }
            Item::Variable(variable) => {
                let names = uses.entry(&variable.name).or_default();
                if let Some(init) = &variable.init {
                    init_names(init, names);
                }
            }
            Item::Alias { name, target, .. } => uses.entry(name).or_default().push(target),
            Item::Pragma(_) => {}
        }
    }
    let mut reached: HashSet<String> = HashSet::new();
    while let Some(name) = open.pop() {
        if let Some(names) = uses.get(name)
            && reached.insert(name.to_string())
        {
            open.extend(names);
        }
    }
    module.items.retain(|item| match item {
        Item::Function(Function { name, .. }) | Item::Variable(Variable { name, .. }) | Item::Alias { name, .. } => {
            reached.contains(name)
        }
        Item::Pragma(_) => true,
    });
}

/// Bytes of shared memory declared by a kernel and the functions that it calls, without dynamic shared memory.
pub fn static_shared_bytes(module: &Module, kernel: &str) -> u64 {
    let is_static = |variable: &&Variable| variable.space == Space::Shared && variable.linkage != Linkage::Extern;
    let variables: HashMap<&str, u64> = (module.variables().filter(is_static))
        .map(|variable| (variable.name.as_str(), variable.size().unwrap_or(u64::MAX)))
        .collect();
    let functions: HashMap<&str, &Function> =
        (module.functions().filter(|function| function.body.is_some())).map(|f| (f.name.as_str(), f)).collect();
    let mut reached = HashSet::new();
    let mut open = vec![kernel];
    let mut bytes = 0_u64;
    while let Some(name) = open.pop() {
        let (function, variable) = (functions.get(name), variables.get(name));
        if function.is_none() && variable.is_none() || !reached.insert(name) {
            continue;
        }
        bytes = bytes.saturating_add(variable.copied().unwrap_or(0));
        for statement in function.iter().flat_map(|function| function.body.iter().flatten()) {
            statement_names(statement, &mut open);
            if let Statement::Variable(variable) = statement
                && is_static(&variable)
            {
                bytes = bytes.saturating_add(variable.size().unwrap_or(u64::MAX));
            }
        }
    }
    bytes
}

fn statement_names<'a>(statement: &'a Statement, names: &mut Vec<&'a str>) {
    match statement {
        Statement::Instruction(instruction) => {
            instruction.operands.iter().for_each(|operand| operand_names(operand, names));
        }
        Statement::Block(inner) => inner.iter().for_each(|statement| statement_names(statement, names)),
        Statement::CallTargets { targets, .. } => names.extend(targets.iter().map(String::as_str)),
        _ => {}
    }
}

fn operand_names<'a>(operand: &'a Operand, names: &mut Vec<&'a str>) {
    match operand {
        Operand::Name(name)
        | Operand::SymbolOffset { name, .. }
        | Operand::Address { base: AddressBase::Name(name), .. } => names.push(name),
        Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|operand| operand_names(operand, names)),
        Operand::Pair(first, second) => {
            operand_names(first, names);
            operand_names(second, names);
        }
        Operand::Not(inner) => operand_names(inner, names),
        _ => {}
    }
}

fn init_names<'a>(init: &'a Init, names: &mut Vec<&'a str>) {
    match init {
        Init::List(list) => list.iter().for_each(|init| init_names(init, names)),
        Init::Symbol { name, .. } | Init::Mask { name, .. } => names.push(name),
        Init::Integer(_) | Init::F32(_) | Init::F64(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_root_reaches_stays() {
        let text = "
            .version 8.2 .target sm_70 .address_size 64
            .global .b8 unused[4];
            .global .b8 deep[4];
            .global .u64 pointer = generic(deep);
            .shared .b32 counts[4];
            .extern .func elsewhere();
            .func lonely() { call elsewhere; }
            .func helper();
            .func helper() { .reg .b64 %d; ld.global.u64 %d, [pointer]; ret; }
            .visible .func pasted() { ret; }
            .visible .entry k() { .reg .b32 %r; { st.shared.u32 [counts+4], 1; } call helper; ret; }";
        let mut module = crate::parse(text).unwrap();
        strip(&mut module);
        let kept: Vec<_> = module.variables().map(|v| &v.name).chain(module.functions().map(|f| &f.name)).collect();
        assert_eq!(kept, ["deep", "pointer", "counts", "helper", "helper", "pasted", "k"]);
    }

    #[test]
    fn a_kernel_declares_the_shared_memory_that_it_reaches() {
        let text = "
            .version 8.2 .target sm_70 .address_size 64
            .shared .b32 counts[4];
            .shared .b64 others[4];
            .extern .shared .align 16 .b8 dynamic[];
            .func helper() { .reg .b32 %r; ld.shared.u32 %r, [counts]; ld.shared.u32 %r, [counts+4]; ret; }
            .visible .entry plain() { .reg .b32 %r; ld.shared.u32 %r, [dynamic]; ret; }
            .visible .entry calls() { .shared .b32 own[3]; call helper; call helper; ret; }
            .visible .entry all() { .reg .b64 %d; mov.u64 %d, others; call helper; ret; }";
        let module = crate::parse(text).unwrap();
        let bytes = ["plain", "calls", "all"].map(|kernel| static_shared_bytes(&module, kernel));
        assert_eq!(bytes, [0, 12 + 16, 32 + 16]);
    }
}
