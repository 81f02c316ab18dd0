//! Instructions that the generated text must not contain: widths, checks and divisions that ranges rule out.

use millpond_kernels::codegen::Decimal;
use millpond_kernels::codegen::ir::{Arithmetic, Comparison, DatePart, NodeId, Overflow, Range, Repr, TimeUnit, Ty};
use millpond_ptx::ast::{Instruction, Module, Statement};

use crate::expr_bench::{Bench, Bool, Int, Null};

/// Every instruction of the kernel, blocks included.
fn instructions(module: &Module) -> Vec<&Instruction> {
    fn walk<'m>(statements: &'m [Statement], found: &mut Vec<&'m Instruction>) {
        for statement in statements {
            match statement {
                Statement::Instruction(instruction) => found.push(instruction),
                Statement::Block(block) => walk(block, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    let kernel = module.function("bench").expect("the kernel");
    walk(kernel.body.as_deref().expect("a body"), &mut found);
    found
}

fn count(module: &Module, name: &str) -> usize {
    instructions(module).iter().filter(|instruction| instruction.opcode.name == name).count()
}

/// Number of instructions of the roots, beyond those of a kernel that computes only the given leaves.
fn cost(bench: &Bench, leaves: &[NodeId], roots: &[NodeId]) -> usize {
    let outputs = |count: usize| {
        // A kernel that writes the first leaf `count` times: loads and stores without arithmetic.
        instructions(&bench.module(&vec![leaves[0]; count])).len()
    };
    let all: Vec<NodeId> = leaves.iter().chain(roots).copied().collect();
    let with = instructions(&bench.module(&all)).len();
    let without = instructions(&bench.module(leaves)).len();
    with - without - (outputs(1 + roots.len()) - outputs(1))
}

/// Columns of Q1 with the ranges of their data at scale 1.
fn q1() -> (Bench, NodeId, NodeId, [NodeId; 3]) {
    let money = Decimal::new(15, 2);
    let mut bench = Bench::new();
    let price = bench.typed_column(Ty::new(Repr::I128).within(90_000, 10_494_950), &[Int(90_000), Int(10_494_950)]);
    let discount = bench.typed_column(Ty::new(Repr::I128).within(0, 10), &[Int(10), Int(4)]);
    let tax = bench.typed_column(Ty::new(Repr::I128).within(0, 8), &[Int(8), Int(0)]);
    let one = bench.literal(Ty::new(Repr::I128).within(-999, 999), Int(100));
    let g = &mut bench.graph;
    let (kept, kept_type) =
        g.decimal_arithmetic(Arithmetic::Subtract, (one, money), (discount, money)).expect("decimals");
    let (disc_price, disc_type) =
        g.decimal_arithmetic(Arithmetic::Multiply, (price, money), (kept, kept_type)).expect("decimals");
    let (taxed, taxed_type) = g.decimal_arithmetic(Arithmetic::Add, (one, money), (tax, money)).expect("decimals");
    let (charge, _) =
        g.decimal_arithmetic(Arithmetic::Multiply, (disc_price, disc_type), (taxed, taxed_type)).expect("decimals");
    (bench, disc_price, charge, [price, discount, tax])
}

#[test]
fn q1_needs_64_bits_and_no_checks() {
    let (bench, disc_price, charge, leaves) = q1();
    let outcome = bench.run(&[disc_price, charge]);
    assert_eq!(outcome.values[0], [Int(90_000 * 90), Int(10_494_950 * 96)]);
    assert_eq!(outcome.values[1], [Int(90_000 * 90 * 108), Int(10_494_950 * 96 * 100)]);
    for instruction in instructions(&outcome.module) {
        let opcode = &instruction.opcode;
        assert!(opcode.name != "mul" || !opcode.has("hi"), "no high half of a product: {opcode:?}");
        assert!(!opcode.has("cc"), "no carry chain: {opcode:?}");
        assert!(opcode.name != "call" && opcode.name != "div");
    }
    // A widening is one instruction, and so is each product; the limit leaves room for moves between lanes and the
    // literal's load.
    assert!(cost(&bench, &leaves, &[disc_price, charge]) <= 12, "{}", outcome.module);
}

#[test]
fn unproven_decimals_take_128_bits() {
    let money = Decimal::new(38, 2);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I128, &[Int(1 << 100)]);
    let b = bench.column(Repr::I128, &[Int(3)]);
    let (product, _) = bench.graph.decimal_arithmetic(Arithmetic::Multiply, (a, money), (b, money)).expect("decimals");
    let module = bench.run(&[product]).module;
    assert!(instructions(&module).iter().any(|i| i.opcode.name == "mul" && i.opcode.has("hi")));
}

#[test]
fn proven_ranges_need_no_checks() {
    let mut bench = Bench::new();
    let a = bench.typed_column(Ty::new(Repr::I32).within(0, 1_000), &[Int(7)]);
    let b = bench.typed_column(Ty::new(Repr::I32).within(1, 1_000), &[Int(3)]);
    let sum = bench.graph.arithmetic(Arithmetic::Add, a, b, Overflow::Fail).expect("integers");
    let quotient = bench.graph.arithmetic(Arithmetic::Divide, sum, b, Overflow::Fail).expect("integers");
    assert_eq!(bench.graph.ty(sum).range, Some(Range::new(1, 2_000)));
    assert_eq!(bench.graph.ty(quotient).range, Some(Range::new(0, 2_000)));
    assert!(!bench.graph.ty(quotient).nullable);
    assert_eq!(cost(&bench, &[a, b], &[sum, quotient]), 2, "an addition and a division");
}

#[test]
fn date_fields_divide_by_multiplication() {
    let mut bench = Bench::new();
    let date = bench.typed_column(Ty::new(Repr::I32).within(8_036, 10_591), &[Int(9_000)]);
    let year = bench.graph.date_part(DatePart::Year, date, TimeUnit::Day).expect("a date");
    let month = bench.graph.date_part(DatePart::Month, date, TimeUnit::Day).expect("a date");
    assert!(!bench.graph.ty(year).nullable, "in the calendar by its range");
    let outcome = bench.run(&[year, month]);
    assert_eq!(outcome.values, [[Int(1994)], [Int(8)]]);
    assert_eq!(count(&outcome.module, "div") + count(&outcome.module, "rem"), 0);
    assert!(cost(&bench, &[date], &[year, month]) <= 28);
}

#[test]
fn common_subexpressions_are_computed_once() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &[Int(3)]);
    let b = bench.column(Repr::I64, &[Int(4)]);
    let first = bench.graph.arithmetic(Arithmetic::Multiply, a, b, Overflow::Wrap).expect("integers");
    let second = bench.graph.arithmetic(Arithmetic::Multiply, a, b, Overflow::Wrap).expect("integers");
    assert_eq!(first, second);
    let sum = bench.graph.arithmetic(Arithmetic::Add, first, second, Overflow::Wrap).expect("integers");
    let module = bench.module(&[first, sum]);
    let products = instructions(&module).iter().filter(|i| i.opcode.name == "mul" && i.opcode.has("s64")).count();
    assert_eq!(products, 1);
}

#[test]
fn what_is_never_null_has_no_validity_code() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &[Int(3)]);
    let b = bench.column(Repr::I32, &[Int(4)]);
    let p = bench.column(Repr::Bool, &[Bool(true)]);
    let less = bench.graph.compare(Comparison::Less, a, b).expect("integers");
    let both = bench.graph.and(less, p).expect("booleans");
    assert_eq!(cost(&bench, &[p, a, b], &[both]), 2, "a comparison and an AND");
    let nullable = bench.column(Repr::I32, &[Null]);
    assert!(bench.graph.ty(nullable).nullable);
}

#[test]
fn literals_are_no_part_of_the_text() {
    let module = |value: i128| {
        let mut bench = Bench::new();
        let a = bench.column(Repr::I32, &[Int(3)]);
        let literal = bench.literal(Ty::new(Repr::I32), Int(value));
        let sum = bench.graph.arithmetic(Arithmetic::Add, a, literal, Overflow::Wrap).expect("integers");
        bench.module(&[sum]).to_string()
    };
    assert_eq!(module(12_345), module(67_890));
}
