//! Integer arithmetic equals 128-bit arithmetic that is wrapped or checked at the width of the type.

use millpond_kernels::codegen::ir::{Arithmetic, Bitwise, ErrorCode, NodeId, Overflow, Range, Repr, Rounding, Ty};

use crate::expr_bench::{Bench, Cell, Int, Null, assert_rows, pairs};

const SIGNED: [Repr; 4] = [Repr::I8, Repr::I16, Repr::I32, Repr::I64];
const ALL: [Repr; 8] = [Repr::I8, Repr::I16, Repr::I32, Repr::I64, Repr::U8, Repr::U16, Repr::U32, Repr::U64];

/// Values at the boundaries of every width that fits `repr`, and NULL.
pub fn edges(repr: Repr) -> Vec<Cell> {
    let bounds = repr.bounds().expect("an integer");
    let mut values = vec![0, 1, -1, 2, -2, 3, 7, -7, 10, 100, -100, 999_983, -999_983];
    for bits in [7, 8, 15, 16, 31, 32, 52, 53, 63, 64, 96, 126] {
        let power = 1_i128 << bits;
        values.extend([power, power - 1, power + 1, -power, 1 - power, -power - 1]);
    }
    values.extend([bounds.low, bounds.high, bounds.low + 1, bounds.high - 1]);
    values.retain(|&value| bounds.holds(value));
    values.sort_unstable();
    values.dedup();
    values.into_iter().map(Int).chain([Null]).collect()
}

/// The low bits of the type's width, read with its signedness.
pub fn wrapped(repr: Repr, value: i128) -> i128 {
    match repr {
        Repr::I8 => value as i8 as i128,
        Repr::I16 => value as i16 as i128,
        Repr::I32 => value as i32 as i128,
        Repr::I64 => value as i64 as i128,
        Repr::U8 => value as u8 as i128,
        Repr::U16 => value as u16 as i128,
        Repr::U32 => value as u32 as i128,
        Repr::U64 => value as u64 as i128,
        _ => value,
    }
}

fn wrapping(op: Arithmetic, a: i128, b: i128) -> i128 {
    match op {
        Arithmetic::Add => a.wrapping_add(b),
        Arithmetic::Subtract => a.wrapping_sub(b),
        Arithmetic::Multiply => a.wrapping_mul(b),
        Arithmetic::Divide => a.wrapping_div(b),
        Arithmetic::Remainder => a.wrapping_rem(b),
    }
}

/// The exact result, if it fits 128 bits.
fn exact(op: Arithmetic, a: i128, b: i128) -> Option<i128> {
    match op {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide => a.checked_div(b),
        Arithmetic::Remainder => {
            if b == -1 {
                Some(0)
            } else {
                a.checked_rem(b)
            }
        }
    }
}

const ADD_LIKE: [Arithmetic; 3] = [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply];

#[test]
fn integers_wrap_at_their_width() {
    for repr in ALL {
        let (left, right) = pairs(&edges(repr), &edges(repr));
        let mut bench = Bench::new();
        let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
        for op in ADD_LIKE {
            let root = bench.graph.arithmetic(op, a, b, Overflow::Wrap).expect("numbers");
            let got = bench.values(root);
            assert_rows(&format!("{repr:?} {op:?}"), &[&left, &right], &got, |row| match row {
                [Int(a), Int(b)] => Int(wrapped(repr, wrapping(op, *a, *b))),
                _ => Null,
            });
        }
    }
}

/// Exactly the valid rows whose result does not fit fail; other results are exact.
#[test]
fn checked_arithmetic_fails_exactly_where_it_overflows() {
    for repr in ALL.into_iter().chain([Repr::I128]) {
        let (left, right) = pairs(&edges(repr), &edges(repr));
        let bounds = repr.bounds().expect("an integer");
        for op in ADD_LIKE {
            for overflow in [Overflow::Fail, Overflow::Null] {
                let mut bench = Bench::new();
                let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
                let root = bench.graph.arithmetic(op, a, b, overflow).expect("numbers");
                let outcome = bench.run(&[root]);
                for row in 0..left.len() {
                    let what = format!("{repr:?} {:?} {op:?} {:?}, {overflow:?}", left[row], right[row]);
                    let got = outcome.values[0][row];
                    let error = outcome.errors[row].map(|(code, _)| code);
                    let (Int(x), Int(y)) = (left[row], right[row]) else {
                        assert_eq!((got, error), (Null, None), "{what}");
                        continue;
                    };
                    match exact(op, x, y).filter(|&value| bounds.holds(value)) {
                        Some(value) => assert_eq!((got, error), (Int(value), None), "{what}"),
                        None if overflow == Overflow::Null => assert_eq!((got, error), (Null, None), "{what}"),
                        None => assert_eq!(error, Some(ErrorCode::Overflow), "{what}"),
                    }
                }
            }
        }
    }
}

#[test]
fn division_truncates_and_fails_on_zero_and_on_the_minimum_by_minus_one() {
    for repr in ALL.into_iter().chain([Repr::I128]) {
        let (left, right) = pairs(&edges(repr), &edges(repr));
        let bounds = repr.bounds().expect("an integer");
        for op in [Arithmetic::Divide, Arithmetic::Remainder] {
            for overflow in [Overflow::Wrap, Overflow::Null] {
                let mut bench = Bench::new();
                let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
                let root = bench.graph.arithmetic(op, a, b, overflow).expect("numbers");
                let outcome = bench.run(&[root]);
                for row in 0..left.len() {
                    let what = format!("{repr:?} {:?} {op:?} {:?}, {overflow:?}", left[row], right[row]);
                    let got = outcome.values[0][row];
                    let error = outcome.errors[row].map(|(code, _)| code);
                    let (Int(x), Int(y)) = (left[row], right[row]) else {
                        assert_eq!((got, error), (Null, None), "{what}");
                        continue;
                    };
                    let value = if y == 0 { None } else { exact(op, x, y).filter(|&value| bounds.holds(value)) };
                    match value {
                        Some(value) => assert_eq!((got, error), (Int(value), None), "{what}"),
                        None if overflow == Overflow::Null => assert_eq!((got, error), (Null, None), "{what}"),
                        None if y == 0 => assert_eq!(error, Some(ErrorCode::DivisionByZero), "{what}"),
                        None => assert_eq!(error, Some(ErrorCode::Overflow), "{what}"),
                    }
                }
            }
        }
    }
}

/// Arithmetic over columns whose ranges narrow the lanes: mixtures of 32, 64 and 128 bits.
#[test]
fn proven_ranges_change_no_result() {
    let scales: [i128; 5] = [50, 1 << 20, 1 << 40, 1 << 62, 1 << 90];
    let sample = |scale: i128| -> Vec<Cell> {
        [-scale, -scale / 3, -1, 0, 1, 2, scale / 7, scale].into_iter().map(Int).chain([Null]).collect()
    };
    for repr in [Repr::I32, Repr::I64, Repr::I128] {
        let fits = |scale: &&i128| repr.bounds().expect("an integer").holds(**scale);
        for &x in scales.iter().filter(fits) {
            for &y in scales.iter().filter(fits) {
                let (left, right) = pairs(&sample(x), &sample(y));
                let mut bench = Bench::new();
                let (a, b) = (bench.ranged(repr, &left), bench.ranged(repr, &right));
                for op in ADD_LIKE {
                    let root = bench.graph.arithmetic(op, a, b, Overflow::Wrap).expect("numbers");
                    let got = bench.values(root);
                    assert_rows(&format!("{repr:?} {op:?}"), &[&left, &right], &got, |row| match row {
                        [Int(a), Int(b)] => Int(wrapped(repr, wrapping(op, *a, *b))),
                        _ => Null,
                    });
                }
            }
        }
    }
}

#[test]
fn quotients_of_narrow_and_wide_operands_agree() {
    let narrow: Vec<Cell> = [1, 3, 7, 10, 1_000, 65_537].into_iter().map(Int).collect();
    let wide: Vec<Cell> = [-(1_i128 << 100), -12_345_678_901_234_567_890_123, -7, 0, 5, 1 << 70, (1 << 120) + 12_345]
        .into_iter()
        .map(Int)
        .collect();
    let (left, right) = pairs(&wide, &narrow);
    let mut bench = Bench::new();
    let (a, b) = (bench.ranged(Repr::I128, &left), bench.ranged(Repr::I128, &right));
    for op in [Arithmetic::Divide, Arithmetic::Remainder] {
        let root = bench.graph.arithmetic(op, a, b, Overflow::Fail).expect("numbers");
        let got = bench.values(root);
        assert_rows(&format!("{op:?}"), &[&left, &right], &got, |row| match row {
            [Int(a), Int(b)] => Int(wrapping(op, *a, *b)),
            _ => Null,
        });
    }
}

/// The quotient of the lowest 32-bit value and -1 does not fit 32 bits; in 64 bits it is an ordinary number.
#[test]
fn lowest_values_divide_and_lose_their_sign_in_wider_types() {
    for (narrow, wide) in [(Repr::I32, Repr::I64), (Repr::I64, Repr::I128)] {
        let low = narrow.bounds().expect("an integer").low;
        let mut bench = Bench::new();
        let a = bench.column(narrow, &[Int(low), Int(low)]);
        let b = bench.ranged(narrow, &[Int(-1), Int(1)]);
        let a = bench.graph.convert(a, wide, Overflow::Fail).expect("integers");
        let b = bench.graph.convert(b, wide, Overflow::Fail).expect("integers");
        let quotient = bench.graph.arithmetic(Arithmetic::Divide, a, b, Overflow::Null).expect("integers");
        let magnitude = bench.graph.absolute(a, Overflow::Fail).expect("an integer");
        let negated = bench.graph.negate(a, Overflow::Fail).expect("an integer");
        assert_eq!(bench.values(magnitude), [Int(-low), Int(-low)]);
        assert_eq!(bench.values(negated), [Int(-low), Int(-low)]);
        // The range of the divisor contains 0, so the result may be NULL.
        assert_eq!(bench.values(quotient), [Int(-low), Int(low)]);
    }
}

/// Dividends and divisors with every pattern of words that long division distinguishes.
#[test]
fn long_division_of_128_bits() {
    let words: [u64; 9] =
        [0, 1, 2, 0x7fff_ffff, 0xffff_ffff, 0x1_0000_0000, 0x8000_0000_0000_0000, u64::MAX - 1, u64::MAX];
    let mut values = Vec::new();
    for high in words {
        for low in words {
            values.push((i128::from(high) << 64) | i128::from(low));
        }
    }
    values.retain(|value| *value != i128::MIN);
    let cells: Vec<Cell> = values.into_iter().map(Int).collect();
    let divisors: Vec<Cell> = cells.iter().copied().filter(|cell| *cell != Int(0)).collect();
    let (left, right) = pairs(&cells, &divisors);
    let mut bench = Bench::new();
    let (a, b) = (bench.column(Repr::I128, &left), bench.column(Repr::I128, &right));
    let quotient = bench.graph.arithmetic(Arithmetic::Divide, a, b, Overflow::Fail).expect("numbers");
    let rest = bench.graph.arithmetic(Arithmetic::Remainder, a, b, Overflow::Fail).expect("numbers");
    let outcome = bench.run(&[quotient, rest]);
    for row in 0..left.len() {
        let (Int(x), Int(y)) = (left[row], right[row]) else { unreachable!("no NULLs") };
        assert_eq!(outcome.values[0][row], Int(x / y), "{x:#x} / {y:#x}");
        assert_eq!(outcome.values[1][row], Int(x % y), "{x:#x} % {y:#x}");
    }
}

#[test]
fn unary_minus_and_absolute_value() {
    for repr in SIGNED.into_iter().chain([Repr::I128]) {
        let cells = edges(repr);
        let low = repr.bounds().expect("an integer").low;
        for overflow in [Overflow::Wrap, Overflow::Fail, Overflow::Null] {
            let mut bench = Bench::new();
            let a = bench.column(repr, &cells);
            let negated = bench.graph.negate(a, overflow).expect("signed");
            let absolute = bench.graph.absolute(a, overflow).expect("a number");
            for (root, f) in [(negated, i128::wrapping_neg as fn(i128) -> i128), (absolute, i128::wrapping_abs)] {
                let outcome = bench.run(&[root]);
                for (row, &cell) in cells.iter().enumerate() {
                    let got = outcome.values[0][row];
                    let error = outcome.errors[row].map(|(code, _)| code);
                    match (cell, overflow) {
                        (Int(x), Overflow::Fail) if x == low => assert_eq!(error, Some(ErrorCode::Overflow)),
                        (Int(x), Overflow::Null) if x == low => assert_eq!((got, error), (Null, None)),
                        (Int(x), _) => assert_eq!((got, error), (Int(wrapped(repr, f(x))), None), "{repr:?} {x}"),
                        _ => assert_eq!((got, error), (Null, None)),
                    }
                }
            }
        }
    }
}

#[test]
fn bitwise_operators_work_at_the_width() {
    for repr in ALL {
        let bits = match repr {
            Repr::I8 | Repr::U8 => 8,
            Repr::I16 | Repr::U16 => 16,
            Repr::I32 | Repr::U32 => 32,
            _ => 64,
        };
        let (left, right) = pairs(&edges(repr), &edges(repr));
        let mut bench = Bench::new();
        let (a, b) = (bench.column(repr, &left), bench.column(repr, &right));
        for op in [Bitwise::And, Bitwise::Or, Bitwise::Xor, Bitwise::ShiftLeft, Bitwise::ShiftRight] {
            let root = bench.graph.bitwise(op, a, b).expect("integers");
            let got = bench.values(root);
            assert_rows(&format!("{repr:?} {op:?}"), &[&left, &right], &got, |row| match row {
                [Int(a), Int(b)] => {
                    let count = (*b as u64 & (bits - 1)) as u32;
                    Int(wrapped(
                        repr,
                        match op {
                            Bitwise::And => a & b,
                            Bitwise::Or => a | b,
                            Bitwise::Xor => a ^ b,
                            Bitwise::ShiftLeft => a << count,
                            Bitwise::ShiftRight => a >> count,
                        },
                    ))
                }
                _ => Null,
            });
        }
    }
}

/// Rounding by definition, independent of the generator's method.
fn rounded(value: i128, divisor: i128, rounding: Rounding) -> i128 {
    let floor = value.div_euclid(divisor);
    let rest = value.rem_euclid(divisor);
    match rounding {
        Rounding::Floor => floor,
        Rounding::Truncate => {
            if value < 0 && rest != 0 {
                floor + 1
            } else {
                floor
            }
        }
        Rounding::HalfAway => match (rest.cmp(&(divisor - rest)), value < 0) {
            (std::cmp::Ordering::Less, _) => floor,
            (std::cmp::Ordering::Greater, _) => floor + 1,
            (std::cmp::Ordering::Equal, negative) => {
                if negative {
                    floor
                } else {
                    floor + 1
                }
            }
        },
    }
}

#[test]
fn division_by_constants_rounds_as_requested() {
    let divisors: [i128; 14] = [
        2,
        3,
        7,
        10,
        100,
        1_000,
        1_460,
        146_097,
        1_000_000_007,
        86_400_000,
        86_400_000_000_000,
        10_i128.pow(18),
        10_i128.pow(19),
        10_i128.pow(30),
    ];
    for repr in [Repr::I8, Repr::U8, Repr::I32, Repr::U32, Repr::I64, Repr::U64, Repr::I128] {
        let mut cells = edges(repr);
        for divisor in divisors {
            for near in
                [divisor / 2 - 1, divisor / 2, divisor / 2 + 1, divisor - 1, divisor, divisor + 1, 3 * divisor / 2]
            {
                for value in [near, -near] {
                    if repr.bounds().expect("an integer").holds(value) {
                        cells.push(Int(value));
                    }
                }
            }
        }
        let (whole, natural) = (
            cells.clone(),
            cells.iter().map(|c| if let Int(v) = c { Int((*v).max(0)) } else { *c }).collect::<Vec<_>>(),
        );
        for cells in [whole, natural] {
            let mut bench = Bench::new();
            let a = bench.ranged(repr, &cells);
            for divisor in divisors {
                for rounding in [Rounding::Truncate, Rounding::Floor, Rounding::HalfAway] {
                    // Halves of odd divisors do not exist; arrow rounds by powers of ten only.
                    if rounding == Rounding::HalfAway && divisor % 2 == 1 {
                        continue;
                    }
                    let root = bench.graph.divide_constant(a, divisor, rounding).expect("an integer");
                    let got = bench.values(root);
                    assert_rows(&format!("{repr:?} / {divisor} {rounding:?}"), &[&cells], &got, |row| match row {
                        [Int(a)] => Int(rounded(*a, divisor, rounding)),
                        _ => Null,
                    });
                }
            }
        }
    }
}

#[test]
fn conversions_between_integers() {
    for from in ALL.into_iter().chain([Repr::I128]) {
        let cells = edges(from);
        for to in ALL.into_iter().chain([Repr::I128]) {
            let bounds = to.bounds().expect("an integer");
            for overflow in [Overflow::Wrap, Overflow::Fail, Overflow::Null] {
                let mut bench = Bench::new();
                let a = bench.column(from, &cells);
                let root = bench.graph.convert(a, to, overflow).expect("integers");
                let outcome = bench.run(&[root]);
                for (row, &cell) in cells.iter().enumerate() {
                    let got = outcome.values[0][row];
                    let error = outcome.errors[row].map(|(code, _)| code);
                    let what = format!("{from:?} {cell:?} to {to:?}, {overflow:?}");
                    match (cell, overflow) {
                        (Int(x), _) if bounds.holds(x) => assert_eq!((got, error), (Int(x), None), "{what}"),
                        (Int(x), Overflow::Wrap) => assert_eq!((got, error), (Int(wrapped(to, x)), None), "{what}"),
                        (Int(_), Overflow::Fail) => assert_eq!(error, Some(ErrorCode::Cast), "{what}"),
                        _ => assert_eq!((got, error), (Null, None), "{what}"),
                    }
                }
            }
        }
    }
}

#[test]
fn range_checks_let_through_what_lies_inside() {
    for repr in [Repr::I8, Repr::U32, Repr::I64, Repr::U64, Repr::I128] {
        let cells = edges(repr);
        let range = Range::new(-9_999, 99_999_999_999);
        let mut bench = Bench::new();
        let a = bench.column(repr, &cells);
        let root = bench.graph.check(a, range, Overflow::Null).expect("an integer");
        let got = bench.values(root);
        assert_rows(&format!("{repr:?} in range"), &[&cells], &got, |row| match row {
            [Int(a)] if range.holds(*a) => Int(*a),
            _ => Null,
        });
    }
}

#[test]
fn constants_take_part_like_columns() {
    let cells = edges(Repr::I32);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &cells);
    let seven = bench.graph.integer(7, Repr::I32);
    let minus_two = bench.graph.integer(-2, Repr::I32);
    let both = bench.graph.arithmetic(Arithmetic::Multiply, seven, minus_two, Overflow::Wrap).expect("numbers");
    let left = bench.graph.arithmetic(Arithmetic::Subtract, seven, a, Overflow::Wrap).expect("numbers");
    let root: NodeId = bench.graph.arithmetic(Arithmetic::Add, left, both, Overflow::Wrap).expect("numbers");
    let got = bench.values(root);
    assert_rows("7 - a + 7 * -2", &[&cells], &got, |row| match row {
        [Int(a)] => Int(wrapped(Repr::I32, 7 - a - 14)),
        _ => Null,
    });
}

#[test]
fn literals_are_parameters_and_may_be_null() {
    let cells = edges(Repr::I64);
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &cells);
    let five = bench.literal(Ty::new(Repr::I64).within(-9, 9), Int(5));
    let null = bench.literal(Ty::new(Repr::I64).nullable(true), Null);
    let sum = bench.graph.arithmetic(Arithmetic::Add, a, five, Overflow::Wrap).expect("numbers");
    let nothing = bench.graph.arithmetic(Arithmetic::Add, a, null, Overflow::Wrap).expect("numbers");
    let outcome = bench.run(&[sum, nothing]);
    assert_rows("a + 5", &[&cells], &outcome.values[0], |row| match row {
        [Int(a)] => Int(wrapped(Repr::I64, a + 5)),
        _ => Null,
    });
    assert!(outcome.values[1].iter().all(|cell| *cell == Null));
}
