//! Every instruction of a compiled sample is either decoded as arithmetic or run by the machine.

use std::collections::BTreeSet;
use std::collections::HashMap;

use millpond_ptx::ast::{Item, Space, Statement, Variable};
use millpond_ptx::interpret::alu::{Names, Register, decode};

#[derive(Default)]
struct Declared {
    registers: HashMap<String, u32>,
    /// Declarations such as `%r<12>`: prefix, count, width.
    families: Vec<(String, u32, u32)>,
}

impl Declared {
    fn declare(&mut self, variable: &Variable) {
        if variable.space == Space::Reg {
            match variable.count {
                Some(count) => self.families.push((variable.name.clone(), count, variable.ty.bits())),
                None => drop(self.registers.insert(variable.name.clone(), variable.ty.bits())),
            }
        }
    }
}

impl Names for Declared {
    fn register(&mut self, name: &str) -> Option<Register> {
        let family = self.families.iter().find_map(|(prefix, count, bits)| {
            let number: u32 = name.strip_prefix(prefix.as_str())?.parse().ok()?;
            (number < *count).then_some(*bits)
        });
        let bits = self.registers.get(name).copied().or(family)?;
        Some(Register { row: 0, bits })
    }
    fn constant(&mut self, _: u64) -> u32 {
        0
    }
    fn sink(&mut self) -> u32 {
        0
    }
    fn carry(&mut self) -> u32 {
        0
    }
}

fn walk(statements: &[Statement], declared: &mut Declared, left: &mut BTreeSet<String>, decoded: &mut usize) {
    for statement in statements {
        match statement {
            Statement::Variable(variable) => declared.declare(variable),
            Statement::Block(inner) => walk(inner, declared, left, decoded),
            Statement::Instruction(instruction) => match decode(instruction, declared) {
                Some(Ok(_)) => *decoded += 1,
                Some(Err(error)) => panic!("{error}"),
                None => drop(left.insert(instruction.opcode.name.clone())),
            },
            _ => {}
        }
    }
}

#[test]
fn a_compiled_sample_decodes() {
    let module = millpond_ptx::parse(include_str!("../ptx/nvrtc.ptx")).expect("the sample parses");
    let (mut left, mut decoded) = (BTreeSet::new(), 0);
    for item in &module.items {
        if let Item::Function(function) = item {
            let mut declared = Declared::default();
            function.params.iter().chain(&function.returns).for_each(|variable| declared.declare(variable));
            walk(function.body.as_deref().unwrap_or(&[]), &mut declared, &mut left, &mut decoded);
        }
    }
    assert!(decoded > 100, "only {decoded} arithmetic instructions in the sample");
    // memory, control flow, other lanes, addresses; `mov` of symbols and special registers
    let machine: BTreeSet<String> = [
        "activemask",
        "atom",
        "bar",
        "barrier",
        "bra",
        "brx",
        "call",
        "cvta",
        "exit",
        "fence",
        "isspacep",
        "ld",
        "match",
        "membar",
        "mov",
        "nanosleep",
        "red",
        "redux",
        "ret",
        "shfl",
        "st",
        "trap",
        "vote",
    ]
    .map(str::to_string)
    .into();
    let unknown: Vec<_> = left.difference(&machine).collect();
    assert!(unknown.is_empty(), "nobody runs {unknown:?}");
}
