//! NaNs of expressions, bit by bit, independent of the host's own arithmetic.
//!
//!   made        inf - inf, 0 * inf, 0 / 0, 1 % 0, √-1          ─► the negative quiet NaN
//!   operands    the first NaN among them, made quiet           stored and selected NaNs are unchanged

use millpond_kernels::codegen::ir::{Arithmetic, FloatFunction, Overflow, Repr, Ty};

use crate::expr_bench::{Bench, Bool, Cell, F32, F64, Int, pairs};

const DOUBLES: [u64; 12] = [
    0xfff8_0000_0000_0000,
    0x7ff8_0000_0000_0123,
    0xfff8_000a_bc00_0456,
    0xffff_ffff_ffff_ffff,
    0x7ff0_0000_0000_0001,
    0xfff4_5000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x0000_0000_0000_0000,
    0x8000_0000_0000_0000,
    0x3ff8_0000_0000_0000,
    0xc008_0000_0000_0000,
];

const SINGLES: [u32; 12] = [
    0xffc0_0000,
    0x7fc0_0123,
    0xffc0_a456,
    0xffff_ffff,
    0x7f80_0001,
    0xffa8_0000,
    0x7f80_0000,
    0xff80_0000,
    0x0000_0000,
    0x8000_0000,
    0x3fc0_0000,
    0xc040_0000,
];

fn doubles() -> Vec<Cell> {
    DOUBLES.iter().map(|bits| F64(f64::from_bits(*bits))).collect()
}

fn singles() -> Vec<Cell> {
    SINGLES.iter().map(|bits| F32(f32::from_bits(*bits))).collect()
}

/// The bits of a float.
fn bits(cell: Cell) -> u64 {
    match cell {
        F64(value) => value.to_bits(),
        F32(value) => value.to_bits().into(),
        other => panic!("{other:?} is no float"),
    }
}

fn is_nan(cell: Cell) -> bool {
    matches!(cell, F64(value) if value.is_nan()) || matches!(cell, F32(value) if value.is_nan())
}

/// Expected bits of an operation over `operands`, given the host's result `number`.
fn expected(operands: &[Cell], number: Cell) -> u64 {
    let (quiet, made) = match number {
        F32(_) => (1 << 22, 0xffc0_0000),
        _ => (1 << 51, 0xfff8_0000_0000_0000),
    };
    let nan = operands.iter().copied().find(|operand| is_nan(*operand));
    match nan {
        Some(nan) => bits(nan) | quiet,
        None if is_nan(number) => made,
        None => bits(number),
    }
}

#[test]
fn arithmetic_keeps_a_nan_and_makes_the_negative_one() {
    use Arithmetic::*;
    for (repr, cells) in [(Repr::F64, doubles()), (Repr::F32, singles())] {
        let (left, right) = pairs(&cells, &cells);
        let mut bench = Bench::new();
        let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
        for op in [Add, Subtract, Multiply, Divide, Remainder] {
            let root = bench.graph.arithmetic(op, a, b, Overflow::Wrap).expect("floats");
            for (row, found) in bench.values(root).into_iter().enumerate() {
                let number = match (left[row], right[row]) {
                    (F64(a), F64(b)) => F64([a + b, a - b, a * b, a / b, a % b][op as usize]),
                    (F32(a), F32(b)) => F32([a + b, a - b, a * b, a / b, a % b][op as usize]),
                    other => panic!("{other:?} are no floats"),
                };
                let expected = expected(&[left[row], right[row]], number);
                assert_eq!(bits(found), expected, "{op:?} of {:?}, {:?}: {:#x}", left[row], right[row], bits(found));
            }
        }
        // An operand used twice gives its own NaN.
        let root = bench.graph.arithmetic(Subtract, a, a, Overflow::Wrap).expect("floats");
        for (row, found) in bench.values(root).into_iter().enumerate() {
            let number = match left[row] {
                F64(a) => F64(a - a),
                F32(a) => F32(a - a),
                other => panic!("{other:?} is no float"),
            };
            assert_eq!(bits(found), expected(&[left[row]], number), "{:?} less itself", left[row]);
        }
    }
}

#[test]
fn functions_of_one_float_keep_its_nan() {
    for (repr, cells) in [(Repr::F64, doubles()), (Repr::F32, singles())] {
        let sign = if repr == Repr::F64 { 1 << 63 } else { 1 << 31 };
        let mut bench = Bench::new();
        let a = bench.column(repr, &cells);
        let root = bench.graph.float_function(FloatFunction::Sqrt, a).expect("a float");
        let negated = bench.graph.negate(a, Overflow::Wrap).expect("a float");
        let size = bench.graph.absolute(a, Overflow::Wrap).expect("a float");
        let floor = bench.graph.float_function(FloatFunction::Floor, a).expect("a float");
        let condition = bench.column(Repr::Bool, &vec![Bool(true); cells.len()]);
        let chosen = bench.graph.case(vec![(condition, a)], Some(negated)).expect("a choice");
        let outcome = bench.run(&[root, negated, size, floor, chosen]);
        for (row, &cell) in cells.iter().enumerate() {
            let number = match cell {
                F64(a) => F64(a.sqrt()),
                F32(a) => F32(a.sqrt()),
                other => panic!("{other:?} is no float"),
            };
            assert_eq!(bits(outcome.values[0][row]), expected(&[cell], number), "the root of {cell:?}");
            assert_eq!(bits(outcome.values[1][row]), bits(cell) ^ sign, "minus {cell:?}");
            assert_eq!(bits(outcome.values[2][row]), bits(cell) & !sign, "the magnitude of {cell:?}");
            if is_nan(cell) {
                assert_eq!(bits(outcome.values[3][row]), bits(cell), "the floor of {cell:?}");
            }
            assert_eq!(bits(outcome.values[4][row]), bits(cell), "{cell:?}, chosen");
        }
    }
}

#[test]
fn a_nan_that_is_rounded_to_16_bits_is_quiet() {
    let cells: Vec<Cell> =
        singles().into_iter().chain([0x7f80_0001, 0xff80_2fff, 0x7fbf_ffff].map(|b| F32(f32::from_bits(b)))).collect();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F32, &cells);
    let narrow = bench.graph.float_function(FloatFunction::Narrow, a).expect("a float");
    let outcome = bench.run(&[narrow]);
    for (row, &cell) in cells.iter().enumerate().filter(|(_, cell)| is_nan(**cell)) {
        assert_eq!(bits(outcome.values[0][row]), bits(cell) & 0xffff_e000 | 0x40_0000, "{cell:?}");
    }
}

#[test]
fn a_nan_of_another_width_keeps_its_sign() {
    let cells = doubles();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &cells);
    let single = bench.graph.convert(a, Repr::F32, Overflow::Wrap).expect("a float");
    let back = bench.graph.convert(single, Repr::F64, Overflow::Wrap).expect("a float");
    let outcome = bench.run(&[single, back]);
    for (row, &cell) in cells.iter().enumerate().filter(|(_, cell)| is_nan(**cell)) {
        let narrow = (bits(cell) >> 63) << 31 | 0x7fc0_0000 | bits(cell) >> 29 & 0x3f_ffff;
        assert_eq!(bits(outcome.values[0][row]), narrow, "{cell:?} in 32 bits");
        let wide = (narrow >> 31) << 63 | 0x7ff8_0000_0000_0000 | (narrow & 0x3f_ffff) << 29;
        assert_eq!(bits(outcome.values[1][row]), wide, "{cell:?}, there and back");
    }
}

/// Values that cannot be NaN get no code for NaNs.
#[test]
fn numbers_are_not_looked_at() {
    let mut bench = Bench::new();
    let whole = bench.typed_column(Ty::new(Repr::I64).within(0, 9), &[Int(7)]);
    let column = bench.column(Repr::F64, &[F64(1.5)]);
    let graph = &mut bench.graph;
    let float = graph.convert(whole, Repr::F64, Overflow::Wrap).expect("an integer");
    let two = graph.float(2.0, Repr::F64);
    let nothing = graph.float(0.0, Repr::F64);
    let mut of = |op, left, right| graph.arithmetic(op, left, right, Overflow::Wrap).expect("floats");
    let sum = of(Arithmetic::Add, float, float);
    let numbers = [
        sum,
        of(Arithmetic::Multiply, float, two),
        of(Arithmetic::Divide, sum, two),
        of(Arithmetic::Subtract, sum, float),
    ];
    let others = [
        of(Arithmetic::Divide, float, float),
        of(Arithmetic::Multiply, sum, nothing),
        of(Arithmetic::Subtract, sum, sum),
        of(Arithmetic::Add, column, two),
        of(Arithmetic::Remainder, sum, two),
    ];
    for root in numbers {
        let negated = bench.graph.negate(root, Overflow::Wrap).expect("a float");
        let text = bench.module(&[root, negated]).to_string();
        assert!(!text.contains("setp.nan"), "{text}");
        assert!(text.contains("neg.f64"), "{text}");
    }
    for root in others {
        let negated = bench.graph.negate(root, Overflow::Wrap).expect("a float");
        let text = bench.module(&[root, negated]).to_string();
        // A device's own negation leaves a NaN unchanged.
        assert!(!text.contains("neg.f64"), "{text}");
    }
}
