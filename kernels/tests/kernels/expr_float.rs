//! Floats: the host's IEEE 754 arithmetic, total order with equal zeros, and conversions that truncate or fail.

use std::cmp::Ordering;

use millpond_kernels::codegen::ir::{Arithmetic, Comparison, ErrorCode, FloatFunction, Overflow, Repr};

use crate::expr_bench::{Bench, Bool, Cell, F32, F64, Int, Null, assert_rows, pairs};
use crate::expr_integer::edges;

const ARITHMETIC: [Arithmetic; 5] =
    [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide, Arithmetic::Remainder];

fn doubles() -> Vec<f64> {
    vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        0.5,
        -0.5,
        0.49999999999999994,
        1.5,
        2.5,
        -2.5,
        3.0,
        1e10,
        9007199254740993.0,
        -1e300,
        1e300,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        -5e-324,
        1.7e-310,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
    ]
}

fn singles() -> Vec<f32> {
    vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        0.5,
        -0.5,
        0.49999997,
        2.5,
        -3.5,
        16777217.0,
        3e38,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-40,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ]
}

fn double_cells() -> Vec<Cell> {
    doubles().into_iter().map(F64).chain([Null]).collect()
}

fn single_cells() -> Vec<Cell> {
    singles().into_iter().map(F32).chain([Null]).collect()
}

#[test]
fn arithmetic_rounds_as_the_host_does() {
    let (left, right) = pairs(&double_cells(), &double_cells());
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::F64, &left), bench.column(Repr::F64, &right));
    for op in ARITHMETIC {
        let root = bench.graph.arithmetic(op, a, b, Overflow::Wrap).expect("floats");
        let got = bench.values(root);
        assert_rows(&format!("f64 {op:?}"), &[&left, &right], &got, |row| match row {
            [F64(a), F64(b)] => F64(match op {
                Arithmetic::Add => a + b,
                Arithmetic::Subtract => a - b,
                Arithmetic::Multiply => a * b,
                Arithmetic::Divide => a / b,
                Arithmetic::Remainder => a % b,
            }),
            _ => Null,
        });
    }
    let (left, right) = pairs(&single_cells(), &single_cells());
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::F32, &left), bench.column(Repr::F32, &right));
    for op in ARITHMETIC {
        let root = bench.graph.arithmetic(op, a, b, Overflow::Wrap).expect("floats");
        let got = bench.values(root);
        assert_rows(&format!("f32 {op:?}"), &[&left, &right], &got, |row| match row {
            [F32(a), F32(b)] => F32(match op {
                Arithmetic::Add => a + b,
                Arithmetic::Subtract => a - b,
                Arithmetic::Multiply => a * b,
                Arithmetic::Divide => a / b,
                Arithmetic::Remainder => a % b,
            }),
            _ => Null,
        });
    }
}

#[test]
fn a_product_is_rounded_before_it_is_added() {
    // With fused operations the low bits of the product would survive.
    let x = 1.0 + f64::EPSILON;
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &[F64(x)]);
    let c = bench.column(Repr::F64, &[F64(-1.0 - 2.0 * f64::EPSILON)]);
    let product = bench.graph.arithmetic(Arithmetic::Multiply, a, a, Overflow::Wrap).expect("floats");
    let root = bench.graph.arithmetic(Arithmetic::Add, product, c, Overflow::Wrap).expect("floats");
    assert_eq!(bench.values(root), [F64(0.0)]);
}

/// Total order, after replacing -0.0 by 0.0.
fn order(a: f64, b: f64) -> Ordering {
    let one_zero = |x: f64| if x == 0.0 { 0.0 } else { x };
    one_zero(a).total_cmp(&one_zero(b))
}

#[test]
fn comparisons_follow_the_total_order_with_one_zero() {
    type Holds = fn(Ordering) -> bool;
    let relations: [(Comparison, Holds); 6] = [
        (Comparison::Equal, Ordering::is_eq),
        (Comparison::NotEqual, Ordering::is_ne),
        (Comparison::Less, Ordering::is_lt),
        (Comparison::LessEqual, Ordering::is_le),
        (Comparison::Greater, Ordering::is_gt),
        (Comparison::GreaterEqual, Ordering::is_ge),
    ];
    let (left, right) = pairs(&double_cells(), &double_cells());
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::F64, &left), bench.column(Repr::F64, &right));
    for (op, holds) in relations {
        let root = bench.graph.compare(op, a, b).expect("floats");
        let got = bench.values(root);
        assert_rows(&format!("f64 {op:?}"), &[&left, &right], &got, |row| match row {
            [F64(a), F64(b)] => Bool(holds(order(*a, *b))),
            _ => Null,
        });
    }
    let (left, right) = pairs(&single_cells(), &single_cells());
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::F32, &left), bench.column(Repr::F32, &right));
    for (op, holds) in relations {
        let root = bench.graph.compare(op, a, b).expect("floats");
        let got = bench.values(root);
        assert_rows(&format!("f32 {op:?}"), &[&left, &right], &got, |row| match row {
            // Widening keeps order and sign, and NaN.
            [F32(a), F32(b)] => Bool(holds(order(f64::from(*a), f64::from(*b)))),
            _ => Null,
        });
    }
}

#[test]
fn known_orders() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &[F64(f64::NAN), F64(f64::NAN), F64(-0.0), F64(-0.0)]);
    let b = bench.column(Repr::F64, &[F64(f64::NAN), F64(f64::INFINITY), F64(0.0), F64(0.0)]);
    let equal = bench.graph.compare(Comparison::Equal, a, b).expect("floats");
    let greater = bench.graph.compare(Comparison::Greater, a, b).expect("floats");
    let identical = bench.graph.compare(Comparison::Identical, a, b).expect("floats");
    let outcome = bench.run(&[equal, greater, identical]);
    assert_eq!(outcome.values[0], [Bool(true), Bool(false), Bool(true), Bool(true)]);
    assert_eq!(outcome.values[1], [Bool(false), Bool(true), Bool(false), Bool(false)]);
    assert_eq!(outcome.values[2], [Bool(true), Bool(false), Bool(false), Bool(false)]);
}

#[test]
fn functions_of_one_float() {
    let cells = double_cells();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &cells);
    type Meaning = fn(f64) -> f64;
    let functions: [(FloatFunction, Meaning); 5] = [
        (FloatFunction::Sqrt, f64::sqrt),
        (FloatFunction::Floor, f64::floor),
        (FloatFunction::Ceil, f64::ceil),
        (FloatFunction::Truncate, f64::trunc),
        (FloatFunction::Round, f64::round),
    ];
    for (function, meaning) in functions {
        let root = bench.graph.float_function(function, a).expect("a float");
        let got = bench.values(root);
        assert_rows(&format!("{function:?}"), &[&cells], &got, |row| match row {
            [F64(a)] => F64(meaning(*a)),
            _ => Null,
        });
    }
    let negated = bench.graph.negate(a, Overflow::Wrap).expect("a float");
    let absolute = bench.graph.absolute(a, Overflow::Wrap).expect("a float");
    let outcome = bench.run(&[negated, absolute]);
    for (row, cell) in cells.iter().enumerate() {
        if let F64(a) = cell {
            assert_eq!(outcome.values[0][row], F64(-a));
            assert_eq!(outcome.values[1][row], F64(a.abs()));
        }
    }
}

/// The nearest of the non-negative 16-bit floats, given by `all` in order; of a tie the float with an even last bit.
fn nearest(of: f32, all: &[f64]) -> f32 {
    let size = f64::from(of.abs());
    let above = all.partition_point(|half| *half < size);
    // The next float has no encoding: values from halfway to it on are infinite.
    let (below, above) = (above.saturating_sub(1), above.min(all.len()));
    let value = |at: usize| all.get(at).copied().unwrap_or(65536.0);
    let (down, up) = (size - value(below), value(above) - size);
    let at = match down.total_cmp(&up) {
        Ordering::Less => below,
        Ordering::Greater => above,
        Ordering::Equal => below + below % 2,
    };
    let rounded = if at == all.len() || size.is_infinite() { f32::INFINITY } else { value(at) as f32 };
    rounded.copysign(of)
}

#[test]
fn floats_are_rounded_to_16_bits() {
    // Subnormal floats first: 2^-24 apart, like those of the first exponent.
    let all: Vec<f64> = (0..31 * 1024)
        .map(|bits| match (bits / 1024, bits % 1024) {
            (0, part) => f64::from(part) * 2_f64.powi(-24),
            (exponent, part) => f64::from(1024 + part) * 2_f64.powi(exponent - 25),
        })
        .collect();
    assert_eq!(all.last(), Some(&65504.0));
    let mut values = singles();
    for at in (0..all.len()).filter(|at| at % 97 < 2 || (1000..1100).contains(at) || *at < 8 || *at + 8 > all.len()) {
        let (own, next) = (all[at], all.get(at + 1).copied().unwrap_or(65536.0));
        for near in [own as f32, ((own + next) / 2.0) as f32] {
            let sign = if at % 3 == 0 { -1.0 } else { 1.0 };
            values.extend([near.next_down(), near, near.next_up()].map(|near| near * sign));
        }
    }
    values.retain(|value| !value.is_nan());
    let cells: Vec<Cell> = values.iter().map(|value| F32(*value)).chain([Null]).collect();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F32, &cells);
    let root = bench.graph.float_function(FloatFunction::Narrow, a).expect("a float of 32 bits");
    let got = bench.values(root);
    assert_rows("Narrow", &[&cells], &got, |row| match row {
        [F32(a)] => F32(nearest(*a, &all)),
        _ => Null,
    });
    let wide = bench.column(Repr::F64, &[F64(1.0)]);
    assert!(bench.graph.float_function(FloatFunction::Narrow, wide).is_err());
}

/// Truncated, if the result fits: tested on integers, without the generator's bounds.
fn truncated(value: f64, repr: Repr) -> Option<i128> {
    if !value.is_finite() || value.abs() >= 2_f64.powi(127) {
        return None;
    }
    let whole = value.trunc() as i128;
    repr.bounds().expect("an integer").holds(whole).then_some(whole)
}

#[test]
fn floats_to_integers_truncate_or_fail() {
    let mut values = doubles();
    for bits in [7, 8, 15, 16, 31, 32, 63, 64, 126] {
        let power = 2_f64.powi(bits);
        for near in [power - 1.0, power - 0.5, power, power + 0.5, power + 1.0, power * (1.0 - f64::EPSILON)] {
            values.extend([near, -near]);
        }
    }
    let cells: Vec<Cell> = values.into_iter().map(F64).chain([Null]).collect();
    let narrow: Vec<Cell> = cells.iter().map(|c| if let F64(v) = c { F32(*v as f32) } else { *c }).collect();
    for repr in [Repr::I8, Repr::I16, Repr::I32, Repr::I64, Repr::U8, Repr::U16, Repr::U32, Repr::U64, Repr::I128] {
        for (source, cells) in [(Repr::F64, &cells), (Repr::F32, &narrow)] {
            for overflow in [Overflow::Fail, Overflow::Null] {
                let mut bench = Bench::new();
                let a = bench.column(source, cells);
                let root = bench.graph.convert(a, repr, overflow).expect("a float");
                let outcome = bench.run(&[root]);
                for (row, &cell) in cells.iter().enumerate() {
                    let got = outcome.values[0][row];
                    let error = outcome.errors[row].map(|(code, _)| code);
                    let value = match cell {
                        F64(value) => Some(truncated(value, repr)),
                        F32(value) => Some(truncated(f64::from(value), repr)),
                        _ => None,
                    };
                    let what = format!("{cell:?} to {repr:?}, {overflow:?}");
                    match value {
                        Some(Some(value)) => assert_eq!((got, error), (Int(value), None), "{what}"),
                        Some(None) if overflow == Overflow::Fail => assert_eq!(error, Some(ErrorCode::Cast), "{what}"),
                        _ => assert_eq!((got, error), (Null, None), "{what}"),
                    }
                }
            }
        }
    }
}

#[test]
fn integers_to_floats_round_once() {
    for repr in [Repr::I8, Repr::I32, Repr::U32, Repr::I64, Repr::U64] {
        let cells = edges(repr);
        let mut bench = Bench::new();
        let a = bench.column(repr, &cells);
        let double = bench.graph.convert(a, Repr::F64, Overflow::Wrap).expect("an integer");
        let single = bench.graph.convert(a, Repr::F32, Overflow::Wrap).expect("an integer");
        let outcome = bench.run(&[double, single]);
        assert_rows("integer to f64", &[&cells], &outcome.values[0], |row| match row {
            [Int(a)] => F64(*a as f64),
            _ => Null,
        });
        assert_rows("integer to f32", &[&cells], &outcome.values[1], |row| match row {
            [Int(a)] => F32(*a as f32),
            _ => Null,
        });
    }
}

#[test]
fn floats_between_widths_and_truth() {
    let cells = double_cells();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &cells);
    let single = bench.graph.convert(a, Repr::F32, Overflow::Wrap).expect("a float");
    let back = bench.graph.convert(single, Repr::F64, Overflow::Wrap).expect("a float");
    let truth = bench.graph.convert(a, Repr::Bool, Overflow::Wrap).expect("a float");
    let one = bench.graph.convert(truth, Repr::F64, Overflow::Wrap).expect("a boolean");
    let outcome = bench.run(&[single, back, truth, one]);
    for (row, cell) in cells.iter().enumerate() {
        let F64(a) = cell else { continue };
        assert_eq!(outcome.values[0][row], F32(*a as f32));
        assert_eq!(outcome.values[1][row], F64(f64::from(*a as f32)));
        assert_eq!(outcome.values[2][row], Bool(*a != 0.0), "NaN is true");
        assert_eq!(outcome.values[3][row], F64(if *a != 0.0 { 1.0 } else { 0.0 }));
    }
}
