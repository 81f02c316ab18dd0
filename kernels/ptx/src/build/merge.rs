//! Merges several modules into one, so that the driver assembles them together.
//!
//!   module 0: pipeline, tile      ┐      one module: pipeline$0, pipeline$1, emit$1, tile, table$1
//!   module 1: pipeline, emit,     ├─►
//!               tile, table         ┘      equal helpers and variables exist once
//!
//! Names    kernels get the number of their module as a suffix; a function or variable gets it if its name is taken.

use std::collections::{HashMap, HashSet};

use super::paste::{item_name, names_in_item, rename_item};
use crate::ast::{FunctionKind, Item, Module};

/// Merges all items of `modules` into one module. The kernel `k` of module `n` is called [`merged_name`]`(k, n)` there.
///
/// Header  is that of the first module: all modules must have equal headers.
pub fn merge(modules: &[Module]) -> Module {
    let mut merged = modules.first().map_or_else(Module::new, |first| Module { items: Vec::new(), ..first.clone() });
    let mut taken: HashMap<String, Item> = HashMap::new();
    for (number, module) in modules.iter().enumerate() {
        let shared = shared(module, &taken);
        let mut names: HashMap<String, String> = HashMap::new();
        for item in &module.items {
            let name = item_name(item);
            if is_kernel(item) || (taken.contains_key(name) && !shared.contains(name)) {
                names.insert(name.to_string(), merged_name(name, number));
            }
        }
        for item in &module.items {
            let name = item_name(item);
            if shared.contains(name) {
                continue;
            }
            let item = rename_item(item.clone(), &names);
            // Only the definition of a function is recorded, not an earlier declaration.
            let declares = matches!(&item, Item::Function(function) if function.body.is_none());
            if !declares && !matches!(item, Item::Pragma(_)) {
                taken.insert(item_name(&item).to_string(), item.clone());
            }
            merged.items.push(item);
        }
    }
    merged
}

/// The name in the merged module of the kernel `name` of module `number`.
pub fn merged_name(name: &str, number: usize) -> String {
    format!("{name}${number}")
}

fn is_kernel(item: &Item) -> bool {
    matches!(item, Item::Function(function) if function.kind == FunctionKind::Entry)
}

/// Names of the module's items that are already merged: equal items whose references are equal, too.
fn shared(module: &Module, taken: &HashMap<String, Item>) -> HashSet<String> {
    let defined = |item: &&Item| !matches!(item, Item::Function(function) if function.body.is_none());
    let mut shared: HashSet<String> = (module.items.iter().filter(defined))
        .filter(|item| !is_kernel(item) && taken.get(item_name(item)) == Some(*item))
        .map(|item| item_name(item).to_string())
        .collect();
    let own: HashSet<&str> = module.items.iter().map(item_name).collect();
    loop {
        let before = shared.len();
        for item in module.items.iter().filter(defined) {
            let mut all = true;
            names_in_item(item, &mut |name| all &= !own.contains(name) || shared.contains(name));
            if !all {
                shared.remove(item_name(item));
            }
        }
        if shared.len() == before {
            return shared;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn module(items: &str) -> Module {
        parse(&format!(".version 8.2\n.target sm_70\n.address_size 64\n{items}")).expect("the text parses")
    }

    const TILE: &str = ".shared .align 4 .u32 tile[1];\n";

    fn kernel(value: u32, callee: &str) -> String {
        format!(
            ".visible .entry pipeline(.param .u64 to)\n{{\n\t.reg .b32 %r<3>;\n\tmov.u32 %r1, {value};\n\tst.shared.u32 [tile], %r1;\n\t{callee}\n\tret;\n}}\n"
        )
    }

    fn helper(value: u32) -> String {
        format!(
            ".func inner()\n{{\n\t.reg .b32 %r<2>;\n\tmov.u32 %r1, {value};\n\tret;\n}}\n.func outer()\n{{\n\tcall inner;\n\tret;\n}}\n"
        )
    }

    #[test]
    fn kernels_get_numbers_and_equal_items_are_there_once() {
        let texts = [1, 2].map(|value| format!("{TILE}{}{}", helper(7), kernel(value, "call outer;")));
        let merged = merge(&texts.each_ref().map(|text| module(text)));
        let names: Vec<&str> = merged.items.iter().map(item_name).collect();
        assert_eq!(names, ["tile", "inner", "outer", "pipeline$0", "pipeline$1"]);
        assert_eq!(parse(&merged.to_string()).expect("it parses").to_string(), merged.to_string());
    }

    #[test]
    fn a_helper_that_calls_another_one_is_another_one() {
        let texts = [7, 8].map(|value| format!("{TILE}{}{}", helper(value), kernel(1, "call outer;")));
        let merged = merge(&texts.each_ref().map(|text| module(text)));
        let names: Vec<&str> = merged.items.iter().map(item_name).collect();
        assert_eq!(names, ["tile", "inner", "outer", "pipeline$0", "inner$1", "outer$1", "pipeline$1"]);
        let text = merged.to_string();
        let second = text.split("outer$1()").nth(1).expect("the second helper");
        assert!(second.contains("call inner$1;") && second.contains("call outer$1;"), "{text}");
    }
}
