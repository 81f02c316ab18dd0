//! Decimals: results by arrow's rules, computed on 128-bit integers.

use millpond_kernels::codegen::Decimal;
use millpond_kernels::codegen::ir::{Arithmetic, ErrorCode, Overflow, Repr, Ty};

use crate::expr_bench::{Bench, Cell, F32, F64, Int, Null, assert_rows, pairs};

fn ten(exponent: u32) -> i128 {
    10_i128.pow(exponent)
}

fn cells(values: &[i128]) -> Vec<Cell> {
    values.iter().copied().map(Int).chain([Null]).collect()
}

/// (type, values), from the narrow to the widest.
fn samples() -> Vec<(Decimal, Vec<Cell>)> {
    vec![
        (Decimal::new(4, 2), cells(&[0, 1, -1, 5, 99, 100, -4_999, 9_999, -9_999])),
        (Decimal::new(15, 2), cells(&[0, 1, -1, 10, 123_456_789_012_345, -999_999_999_999_999, 90_000, 10_494_950])),
        (Decimal::new(18, 6), cells(&[0, 3, -3, 1_000_000, 999_999_999_999_999_999, -500_000, 1_500_000])),
        (Decimal::new(38, 10), cells(&[0, 7, -7, ten(10), -ten(20) - 1, 99 * ten(36), -99 * ten(36), ten(37) / 3])),
    ]
}

/// Result or error of arrow's decimal operator.
fn expected(op: Arithmetic, (a, l): (i128, Decimal), (b, r): (i128, Decimal)) -> Result<i128, ErrorCode> {
    let up = |value: i128, by: i32| value.checked_mul(ten(by as u32)).ok_or(ErrorCode::Overflow);
    let (ls, rs) = (i32::from(l.scale), i32::from(r.scale));
    let scale = ls.max(rs);
    match op {
        Arithmetic::Multiply => a.checked_mul(b).ok_or(ErrorCode::Overflow),
        Arithmetic::Divide => {
            // Four more digits than the dividend's, up to 38.
            let shift = (ls + 4).min(38) - ls + rs;
            let a = up(a, shift.max(0))?;
            if b == 0 { Err(ErrorCode::DivisionByZero) } else { Ok(a / b) }
        }
        _ => {
            let (a, b) = (up(a, scale - ls)?, up(b, scale - rs)?);
            match op {
                Arithmetic::Add => a.checked_add(b).ok_or(ErrorCode::Overflow),
                Arithmetic::Subtract => a.checked_sub(b).ok_or(ErrorCode::Overflow),
                _ if b == 0 => Err(ErrorCode::DivisionByZero),
                _ => Ok(a % b),
            }
        }
    }
}

#[test]
fn arithmetic_follows_arrows_scales_and_overflows() {
    for (l, left) in samples() {
        for (r, right) in samples() {
            let (left, right) = pairs(&left, &right);
            for op in
                [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide, Arithmetic::Remainder]
            {
                // With and without proven ranges: the code differs, the results do not.
                for ranged in [false, true] {
                    let mut bench = Bench::new();
                    let (a, b) = if ranged {
                        (bench.ranged(Repr::I128, &left), bench.ranged(Repr::I128, &right))
                    } else {
                        (bench.column(Repr::I128, &left), bench.column(Repr::I128, &right))
                    };
                    let (root, _) = bench.graph.decimal_arithmetic(op, (a, l), (b, r)).expect("decimals");
                    let outcome = bench.run(&[root]);
                    for row in 0..left.len() {
                        let what = format!("{l:?} {:?} {op:?} {r:?} {:?}", left[row], right[row]);
                        let got = outcome.values[0][row];
                        let error = outcome.errors[row].map(|(code, _)| code);
                        match (left[row], right[row]) {
                            (Int(a), Int(b)) => match expected(op, (a, l), (b, r)) {
                                Ok(value) => assert_eq!((got, error), (Int(value), None), "{what}"),
                                Err(code) => assert_eq!(error, Some(code), "{what}"),
                            },
                            _ => assert_eq!((got, error), (Null, None), "{what}"),
                        }
                    }
                }
            }
        }
    }
}

/// Scaling is computed only if both operands are valid; the operands themselves are computed in every row.
#[test]
fn an_operand_fails_beside_a_null_but_its_scaling_does_not() {
    let wide = Decimal::new(38, 10);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I128, &[Int(99 * ten(36)), Int(99 * ten(36)), Int(1)]);
    let b = bench.column(Repr::I128, &[Int(3), Null, Null]);
    let (quotient, _) = bench.graph.decimal_arithmetic(Arithmetic::Divide, (a, wide), (b, wide)).expect("decimals");
    let failed =
        |outcome: crate::expr_bench::Outcome| -> Vec<bool> { outcome.errors.iter().map(Option::is_some).collect() };
    assert_eq!(failed(bench.run(&[quotient])), [true, false, false]);
    let (square, scale) = bench.graph.decimal_arithmetic(Arithmetic::Multiply, (a, wide), (a, wide)).expect("decimals");
    let (quotient, _) =
        bench.graph.decimal_arithmetic(Arithmetic::Divide, (square, scale), (b, wide)).expect("decimals");
    assert_eq!(failed(bench.run(&[quotient])), [true, true, false]);
}

#[test]
fn result_types_are_arrows() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I128, &[Int(1)]);
    let b = bench.column(Repr::I128, &[Int(2)]);
    let mut ty = |op, l: (u8, i8), r: (u8, i8)| {
        let (_, ty) = bench
            .graph
            .decimal_arithmetic(op, (a, Decimal::new(l.0, l.1)), (b, Decimal::new(r.0, r.1)))
            .expect("decimals");
        (ty.precision, ty.scale)
    };
    // From arrow's own tests of numeric kernels.
    assert_eq!(ty(Arithmetic::Add, (5, 2), (5, 2)), (6, 2));
    assert_eq!(ty(Arithmetic::Multiply, (15, 2), (15, 2)), (31, 4));
    assert_eq!(ty(Arithmetic::Multiply, (38, 2), (38, 2)), (38, 4));
    assert_eq!(ty(Arithmetic::Divide, (15, 2), (15, 2)), (21, 6));
    assert_eq!(ty(Arithmetic::Remainder, (5, 2), (7, 3)), (6, 3));
}

#[test]
fn a_product_whose_scale_exceeds_all_digits_is_refused() {
    let mut bench = Bench::new();
    let a = bench.column(Repr::I128, &[Int(1)]);
    let wide = Decimal::new(38, 20);
    assert!(bench.graph.decimal_arithmetic(Arithmetic::Multiply, (a, wide), (a, wide)).is_err());
}

#[test]
fn casts_between_decimals_round_halves_away_and_check_digits() {
    let from = Decimal::new(20, 4);
    let column = cells(&[
        0,
        4,
        5,
        -4,
        -5,
        49,
        50,
        51,
        -49,
        -50,
        -51,
        99_949,
        99_950,
        -99_950,
        9_999_999,
        -9_999_999,
        12_345_678_901_234,
    ]);
    for (to, overflow) in [
        (Decimal::new(5, 2), Overflow::Null),
        (Decimal::new(5, 3), Overflow::Null),
        (Decimal::new(9, 0), Overflow::Null),
        (Decimal::new(38, 10), Overflow::Fail),
        (Decimal::new(20, 1), Overflow::Fail),
        (Decimal::new(8, 6), Overflow::Null),
    ] {
        let mut bench = Bench::new();
        let a = bench.column(Repr::I128, &column);
        let root = bench.graph.decimal_to_decimal(a, from, to, Repr::I128, overflow).expect("decimals");
        let got = bench.values(root);
        assert_rows(&format!("{from:?} to {to:?}"), &[&column], &got, |row| {
            let [Int(value)] = row else { return Null };
            let shift = i32::from(to.scale) - i32::from(from.scale);
            let value = if shift >= 0 {
                value * ten(shift as u32)
            } else {
                // Adds half of the divisor, with the value's sign, then truncates: rounds halves away from zero.
                let divisor = ten(shift.unsigned_abs());
                (value + value.signum() * divisor / 2) / divisor
            };
            if value.abs() < ten(to.precision.into()) { Int(value) } else { Null }
        });
    }
}

#[test]
fn known_casts() {
    let mut bench = Bench::new();
    let column = cells(&[12_345, -12_345, 12_355, -12_355]);
    let a = bench.column(Repr::I128, &column);
    let one = bench
        .graph
        .decimal_to_decimal(a, Decimal::new(7, 2), Decimal::new(6, 1), Repr::I128, Overflow::Fail)
        .expect("decimals");
    // 123.45 → 123.5, -123.45 → -123.5, 123.55 → 123.6, -123.55 → -123.6
    assert_eq!(bench.values(one), [Int(1_235), Int(-1_235), Int(1_236), Int(-1_236), Null]);
}

#[test]
fn integers_become_decimals_and_back() {
    let column = cells(&[0, 7, -7, 999, 1_000, -1_000, i128::from(i64::MAX), i128::from(i64::MIN)]);
    let to = Decimal::new(5, 2);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &column);
    let decimal = bench.graph.integer_to_decimal(a, to, Repr::I128, Overflow::Null).expect("an integer");
    let got = bench.values(decimal);
    assert_rows("integer to DECIMAL(5, 2)", &[&column], &got, |row| match row {
        [Int(a)] if a.abs() < 1_000 => Int(a * 100),
        _ => Null,
    });

    let column = cells(&[0, 99, -99, 100, 150, -150, 12_799, 12_800, -12_899, -12_900, ten(30)]);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I128, &column);
    let root = bench.graph.decimal_to_integer(a, Decimal::new(38, 2), Repr::I8, Overflow::Null).expect("a decimal");
    let got = bench.values(root);
    assert_rows("DECIMAL(38, 2) to i8", &[&column], &got, |row| match row {
        [Int(a)] if (-128..=127).contains(&(a / 100)) => Int(a / 100),
        _ => Null,
    });
}

#[test]
fn decimals_become_floats_with_one_rounding_each_step() {
    let column = cells(&[
        0,
        1,
        -1,
        12_345,
        (1 << 53) + 1,
        -(1 << 53) - 3,
        i128::from(u64::MAX),
        (1 << 64) + 1,
        (1 << 100) + (1 << 46) + 1,
        (1 << 100) + (1 << 47),
        (1 << 100) + (3 << 47),
        -(1 << 126) - 1,
        i128::MAX,
        i128::MIN,
    ]);
    for scale in [0, 2, 10] {
        let mut bench = Bench::new();
        let a = bench.column(Repr::I128, &column);
        let from = Decimal::new(38, scale);
        let double = bench.graph.decimal_to_float(a, from, Repr::F64).expect("a decimal");
        let single = bench.graph.decimal_to_float(a, from, Repr::F32).expect("a decimal");
        let outcome = bench.run(&[double, single]);
        let divisor = 10_f64.powi(scale.into());
        assert_rows("decimal to f64", &[&column], &outcome.values[0], |row| match row {
            [Int(a)] => F64(*a as f64 / divisor),
            _ => Null,
        });
        assert_rows("decimal to f32", &[&column], &outcome.values[1], |row| match row {
            [Int(a)] => F32((*a as f64 / divisor) as f32),
            _ => Null,
        });
    }
}

#[test]
fn floats_become_decimals_rounded() {
    let values = [0.0, -0.0, 0.005, -0.005, 1.115, 2.5, -2.5, 999.994, 999.995, -1e30, 1e300, f64::NAN, f64::INFINITY];
    let column: Vec<Cell> = values.into_iter().map(F64).chain([Null]).collect();
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &column);
    let to = Decimal::new(5, 2);
    let root = bench.graph.float_to_decimal(a, to, Repr::I128, Overflow::Null).expect("a float");
    let got = bench.values(root);
    assert_rows("float to DECIMAL(5, 2)", &[&column], &got, |row| match row {
        [F64(a)] => {
            let scaled = (100.0 * a).round();
            if scaled.abs() < 1e5 { Int(scaled as i128) } else { Null }
        }
        _ => Null,
    });
    let wide = Decimal::new(38, 10);
    let mut bench = Bench::new();
    let a = bench.column(Repr::F64, &column);
    let root = bench.graph.float_to_decimal(a, wide, Repr::I128, Overflow::Null).expect("a float");
    let got = bench.values(root);
    assert_rows("float to DECIMAL(38, 10)", &[&column], &got, |row| match row {
        [F64(a)] => {
            let scaled = (1e10 * a).round();
            if scaled.abs() < 1e38 { Int(scaled as i128) } else { Null }
        }
        _ => Null,
    });
}

#[test]
fn averages_truncate_and_are_null_without_rows() {
    let sums = cells(&[100, -100, 7, 0, 99_999_999_999]);
    let counts: Vec<Cell> = [3, 3, 2, 0, 7, 0].into_iter().map(Int).collect();
    let mut bench = Bench::new();
    let sum = bench.column(Repr::I128, &sums);
    let count = bench.typed_column(Ty::new(Repr::I64), &counts);
    let root =
        bench.graph.decimal_average(sum, Decimal::new(25, 2), count, Decimal::new(19, 6)).expect("a sum and a count");
    let got = bench.values(root);
    assert_rows("average", &[&sums, &counts], &got, |row| match row {
        [Int(sum), Int(count)] if *count > 0 => Int(sum * 10_000 / count),
        _ => Null,
    });
}

#[test]
fn decimal64_overflows_at_64_bits() {
    let column = cells(&[i64::MAX.into(), i64::MIN.into(), 1, -1, 3_037_000_500]);
    let (left, right) = pairs(&column, &column);
    let ty = Decimal::new(18, 0);
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::I64, &left), bench.column(Repr::I64, &right));
    for op in [Arithmetic::Add, Arithmetic::Multiply] {
        let (root, result) = bench.graph.decimal_arithmetic(op, (a, ty), (b, ty)).expect("decimals");
        assert_eq!(result.precision, 18);
        let outcome = bench.run(&[root]);
        for row in 0..left.len() {
            let (Int(x), Int(y)) = (left[row], right[row]) else { continue };
            let value = if op == Arithmetic::Add { x + y } else { x * y };
            match i64::try_from(value) {
                Ok(value) => assert_eq!(outcome.values[0][row], Int(value.into())),
                Err(_) => assert_eq!(outcome.errors[row].map(|(code, _)| code), Some(ErrorCode::Overflow)),
            }
        }
    }
}
