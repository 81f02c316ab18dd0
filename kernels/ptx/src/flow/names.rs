//! Resolves names to register numbers, scope by scope.
//!
//!   .reg .b32 %r<12>;   %r7 ──► the 8th of twelve       .reg .b32 x;  { .reg .b64 x; … }   the inner x hides the outer
//!
//! A scope has few ranges and thousands of uses, so ranges are searched linearly and not hashed.

use super::Register;
use crate::ast::{Space, Statement, Variable};
use std::collections::HashMap;

#[derive(Default)]
struct Scope<'a> {
    /// Prefix, first register and length of each range.
    ranges: Vec<(&'a str, u32, u32)>,
    /// Single registers and vectors; `None` for a name that is not a register.
    names: HashMap<&'a str, Option<u32>>,
    labels: HashMap<&'a str, u32>,
    /// `.branchtargets` lists.
    targets: HashMap<&'a str, &'a [String]>,
}

pub(super) struct Names<'a> {
    pub registers: Vec<Register<'a>>,
    scopes: Vec<Scope<'a>>,
    num_labels: u32,
}

impl<'a> Names<'a> {
    pub fn new() -> Names<'a> {
        let carry = Register { stem: "the carry flag", number: None, component: None, bits: 1 };
        Names { registers: vec![carry], scopes: vec![Scope::default()], num_labels: 0 }
    }

    /// Opens the scope of a body: its labels are visible in the whole body.
    pub fn open(&mut self, body: &'a [Statement]) {
        let mut scope = Scope::default();
        for statement in body {
            match statement {
                Statement::Label { name, .. } => {
                    scope.labels.insert(name, self.num_labels);
                    self.num_labels += 1;
                }
                Statement::BranchTargets { name, targets, .. } => {
                    scope.targets.insert(name, targets);
                }
                _ => {}
            }
        }
        self.scopes.push(scope);
    }

    pub fn close(&mut self) {
        self.scopes.pop();
    }

    pub fn num_labels(&self) -> u32 {
        self.num_labels
    }

    /// Numbers the registers of a variable. Returns the first one, or `None` if the variable is not a register.
    pub fn declare(&mut self, variable: &'a Variable) -> Option<u32> {
        let first = self.registers.len() as u32;
        let (stem, bits) = (variable.name.as_str(), variable.ty.bits());
        let scope = self.scopes.last_mut()?;
        if variable.space != Space::Reg {
            scope.names.insert(stem, None);
            return None;
        }
        let one = Register { stem, number: None, component: None, bits };
        if let Some(count) = variable.count {
            self.registers.extend((0..count).map(|number| Register { number: Some(number), ..one }));
            scope.ranges.push((stem, first, count));
            return Some(first);
        }
        scope.names.insert(stem, Some(first));
        match variable.vector {
            None => self.registers.push(one),
            Some(elements) => {
                let components = "xyzw".chars().take(elements.into());
                self.registers.extend(components.map(|component| Register { component: Some(component), ..one }));
            }
        }
        Some(first)
    }

    /// The register called `name`; `None` if `name` is not a register.
    pub fn register(&self, name: &str) -> Option<u32> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, component) = name.split_once('.').map_or((name, None), |(stem, rest)| (stem, rest.chars().next()));
        for scope in self.scopes.iter().rev() {
            if !scope.names.is_empty()
                && let Some(&found) = scope.names.get(stem)
            {
                let offset = component.map_or(Some(0), |letter| "xyzwrgba".find(letter).map(|at| at as u32 % 4));
                return Some(found? + offset?);
            }
            for &(prefix, first, count) in &scope.ranges {
                // The prefix itself may end in digits.
                let Some(number) = name.strip_prefix(prefix).filter(|_| prefix.len() >= digits) else { continue };
                if number.len() > 1 && number.starts_with('0') {
                    continue;
                }
                if let Some(number) = number.parse::<u32>().ok().filter(|number| *number < count) {
                    return Some(first + number);
                }
            }
        }
        None
    }

    pub fn label(&self, name: &str) -> Option<u32> {
        self.scopes.iter().rev().find_map(|scope| scope.labels.get(name)).copied()
    }

    /// The labels of a `.branchtargets` list.
    pub fn targets(&self, name: &str) -> Vec<u32> {
        let list = self.scopes.iter().rev().find_map(|scope| scope.targets.get(name)).copied().unwrap_or_default();
        list.iter().filter_map(|label| self.label(label)).collect()
    }
}
