//! Functions that expressions call: compiled functions against the host's, user PTX, requirements and tests of floats.

use std::sync::Arc;

use millpond_kernels::codegen::ir::{ErrorCode, FloatTest, NodeId, Overflow, Repr, TimeUnit};
use millpond_kernels::codegen::{Decimal, Function, Math, Nulls};

use crate::expr_bench::{Bench, Bool, Cell, F32, F64, Int, Null, assert_rows, pairs};

fn doubles() -> Vec<f64> {
    let mut all =
        vec![0.0, 0.5, 1.0, 1.0 + f64::EPSILON, 2.0, 3.0, 0.1, 1e-9, 1e-300, 5e-324, 1e16, 1e22, 1e300, f64::MAX];
    all.extend([
        std::f64::consts::PI,
        std::f64::consts::FRAC_PI_2,
        0.999_999,
        20.0,
        88.5,
        700.0,
        709.7,
        1e5,
        123_456.789,
    ]);
    let negative: Vec<f64> = all.iter().map(|x| -x).collect();
    all.extend(negative);
    all.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    all
}

/// A function of one number, and its implementation on the host.
type Unary = (Math, fn(f64) -> f64);

type Binary = fn(f64, f64) -> f64;
type Tested = fn(f64) -> bool;

const UNARY: [Unary; 15] = [
    (Math::Acos, f64::acos),
    (Math::Asin, f64::asin),
    (Math::Atan, f64::atan),
    (Math::Cbrt, f64::cbrt),
    (Math::Cos, f64::cos),
    (Math::Cosh, f64::cosh),
    (Math::Exp, f64::exp),
    (Math::Ln, f64::ln),
    (Math::Ln1p, f64::ln_1p),
    (Math::Log10, f64::log10),
    (Math::Log2, f64::log2),
    (Math::Sin, f64::sin),
    (Math::Sinh, f64::sinh),
    (Math::Tan, f64::tan),
    (Math::Tanh, f64::tanh),
];

/// Equal within a few units of the last place; special values exactly.
fn agrees(what: &str, got: f64, expected: f64) {
    let close = got == expected && got.is_sign_negative() == expected.is_sign_negative()
        || got.is_nan() && expected.is_nan()
        || (got - expected).abs() <= 4.0 * f64::EPSILON * expected.abs() + f64::MIN_POSITIVE * f64::EPSILON;
    assert!(close, "{what} is {got:e}, where the host says {expected:e}");
}

#[test]
fn compiled_functions_agree_with_the_host() {
    let cells: Vec<Cell> = doubles().into_iter().map(F64).chain([Null]).collect();
    for (math, host) in UNARY {
        let mut bench = Bench::new();
        let x = bench.column(Repr::F64, &cells);
        let root = bench.graph.math(math, &[x]).expect("a float");
        let got = bench.values(root);
        for (cell, got) in cells.iter().zip(got) {
            match (cell, got) {
                (F64(x), F64(got)) => agrees(&format!("{math:?} of {x:e}"), got, host(*x)),
                (Null, Null) => {}
                other => panic!("{math:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn functions_of_two_numbers_agree_with_the_host() {
    let cells: Vec<Cell> =
        doubles().into_iter().step_by(2).map(F64).chain([Null, F64(f64::NAN), F64(-3.0), F64(0.5)]).collect();
    let (left, right) = pairs(&cells, &cells);
    let all: [(Math, Binary); 3] = [(Math::Atan2, f64::atan2), (Math::Hypot, f64::hypot), (Math::Power, f64::powf)];
    for (math, host) in all {
        // The largest number is outside the range that hypot scales.
        let huge = |cell: &Cell| matches!(cell, F64(x) if math == Math::Hypot && x.abs() == f64::MAX);
        let rows = left.iter().zip(&right).filter(|(x, y)| !huge(x) && !huge(y));
        let (left, right): (Vec<Cell>, Vec<Cell>) = rows.map(|(x, y)| (*x, *y)).unzip();
        let mut bench = Bench::new();
        let (x, y) = (bench.column(Repr::F64, &left), bench.column(Repr::F64, &right));
        let root = bench.graph.math(math, &[x, y]).expect("floats");
        for ((x, y), got) in left.iter().zip(&right).zip(bench.values(root)) {
            match (x, y, got) {
                (F64(x), F64(y), F64(got)) => agrees(&format!("{math:?} of {x:e} and {y:e}"), got, host(*x, *y)),
                (Null, _, Null) | (_, Null, Null) => {}
                other => panic!("{math:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn single_precision_is_rounded_once() {
    let cells: Vec<Cell> = doubles().into_iter().map(|x| F32(x as f32)).chain([Null]).collect();
    let mut bench = Bench::new();
    let x = bench.column(Repr::F32, &cells);
    let root = bench.graph.math(Math::Atan, &[x]).expect("a float");
    let got = bench.values(root);
    assert_rows("atan", &[&cells], &got, |row| match row {
        [F32(x)] => F32(f64::from(*x).atan() as f32),
        _ => Null,
    });
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

#[test]
fn divisors_and_multiples_fit_or_say_so() {
    let edges = [0, 1, -1, 2, 12, -18, 35, 1 << 40, 6_700_417, i64::MAX, i64::MIN, i64::MIN + 1, 1 << 62];
    let cells: Vec<Cell> = edges.iter().map(|x| Int(i128::from(*x))).chain([Null]).collect();
    let (left, right) = pairs(&cells, &cells);
    let fits = |value: i128| if i64::try_from(value).is_ok() { Int(value) } else { Int(-1) };
    for math in [Math::Gcd, Math::Lcm] {
        let mut bench = Bench::new();
        let (x, y) = (bench.column(Repr::I64, &left), bench.column(Repr::I64, &right));
        let root = bench.graph.math(math, &[x, y]).expect("integers");
        let got = bench.values(root);
        assert_rows(&format!("{math:?}"), &[&left, &right], &got, |row| match row {
            [Int(0), Int(_)] | [Int(_), Int(0)] if math == Math::Lcm => Int(0),
            [Int(a), Int(b)] if math == Math::Lcm => fits((a / gcd(*a, *b) * b).abs()),
            [Int(a), Int(b)] => fits(gcd(*a, *b)),
            _ => Null,
        });
    }
    let cells: Vec<Cell> = (-2..23).map(Int).chain([Int(i64::MAX.into()), Null]).collect();
    let mut bench = Bench::new();
    let x = bench.column(Repr::I64, &cells);
    let root = bench.graph.math(Math::Factorial, &[x]).expect("an integer");
    let got = bench.values(root);
    assert_rows("factorial", &[&cells], &got, |row| match row {
        [Int(n @ 0..=20)] => Int((1..=*n).product()),
        [Int(_)] => Int(-1),
        _ => Null,
    });
}

#[test]
fn floats_are_tested_by_ieee_and_ordered_totally() {
    let values = [0.0, -0.0, 1.0, -1.0, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
    let cells: Vec<Cell> = values.into_iter().map(F64).chain([Null]).collect();
    let mut bench = Bench::new();
    let x = bench.column(Repr::F64, &cells);
    let tests: [(FloatTest, Tested); 3] =
        [(FloatTest::Nan, f64::is_nan), (FloatTest::Zero, |x| x == 0.0), (FloatTest::Negative, |x| x < 0.0)];
    for (test, host) in tests {
        let root = bench.graph.float_test(test, x).expect("a float");
        let got = bench.values(root);
        assert_rows(&format!("{test:?}"), &[&cells], &got, |row| match row {
            [F64(x)] => Bool(host(*x)),
            _ => Null,
        });
    }
    let key = bench.graph.float_key(x).expect("a float");
    let keys = bench.values(key);
    for (x, kx) in values.iter().zip(&keys) {
        for (y, ky) in values.iter().zip(&keys) {
            let (Int(kx), Int(ky)) = (kx, ky) else { panic!("keys are integers") };
            assert_eq!(kx.cmp(ky), x.total_cmp(y), "{x} and {y}");
        }
    }
}

#[test]
fn a_requirement_fails_where_it_is_false() {
    let (of, that) = pairs(&[Int(1), Null], &[Bool(true), Bool(false), Null]);
    let mut bench = Bench::new();
    let (x, condition) = (bench.column(Repr::I64, &of), bench.column(Repr::Bool, &that));
    let root = bench.graph.require(x, condition, Overflow::Fail).expect("a boolean");
    let outcome = bench.run(&[root]);
    for ((of, that), error) in of.iter().zip(&that).zip(&outcome.errors) {
        let expected = matches!((of, that), (Int(_), Bool(false))).then_some((ErrorCode::Overflow, root));
        assert_eq!(*error, expected, "{of:?} where {that:?}");
    }
    let root = bench.graph.decided(x, condition).expect("a boolean");
    for ((of, that), error) in of.iter().zip(&that).zip(&bench.run(&[root]).errors) {
        let expected = matches!((of, that), (Int(_), Bool(false))).then_some((ErrorCode::Undecided, root));
        assert_eq!(*error, expected, "{of:?} where {that:?}");
    }
    let root = bench.graph.require(x, condition, Overflow::Null).expect("a boolean");
    let outcome = bench.run(&[root]);
    assert!(outcome.errors.iter().all(Option::is_none));
    assert_rows("require", &[&of, &that], &outcome.values[0], |row| match row {
        [_, Bool(false)] => Null,
        [of, _] => *of,
        _ => Null,
    });
}

const HEADER: &str = ".version 8.0\n.target sm_60\n.address_size 64\n";

/// Calls `text`'s function `f` on columns.
fn called(text: &str, columns: &[(Repr, Vec<Cell>)], result: Repr, nulls: Nulls) -> Vec<Cell> {
    let reprs = columns.iter().map(|(repr, _)| *repr).collect();
    let function =
        Function::from_ptx(&format!("{HEADER}{text}"), "f", reprs, result, nulls).expect("the function is fine");
    let mut bench = Bench::new();
    let nodes: Vec<NodeId> = columns.iter().map(|(repr, cells)| bench.column(*repr, cells)).collect();
    let root = bench.graph.call(&Arc::new(function), &nodes).expect("the arguments are right");
    bench.values(root)
}

#[test]
fn every_type_crosses_the_border() {
    let identity = |ty: &str, bits: u32| {
        let (file, prefix) = if ty.starts_with('f') { (ty.to_string(), "%f") } else { (format!("b{bits}"), "%r") };
        format!(
            ".func (.param .{ty} out) f(.param .{ty} x) {{ .reg .{file} {prefix}0; ld.param.{ty} {prefix}0, [x]; st.param.{ty} [out], {prefix}0; ret; }}"
        )
    };
    let int = |values: &[i128]| values.iter().map(|value| Int(*value)).chain([Null]).collect::<Vec<_>>();
    let cases: Vec<(String, Repr, Vec<Cell>)> = vec![
        (identity("b32", 32), Repr::Bool, vec![Bool(true), Bool(false), Null]),
        (identity("s32", 32), Repr::I8, int(&[-128, 127, 0])),
        (identity("b32", 32), Repr::I16, int(&[-32_768, 5])),
        (identity("u32", 32), Repr::U16, int(&[65_535, 5])),
        (identity("s32", 32), Repr::I32, int(&[i32::MIN.into(), i32::MAX.into()])),
        (identity("u32", 32), Repr::U32, int(&[u32::MAX.into(), 0])),
        (identity("b64", 64), Repr::I64, int(&[i64::MIN.into(), 7])),
        (identity("u64", 64), Repr::U64, int(&[u64::MAX.into(), 7])),
        (identity("f32", 32), Repr::F32, vec![F32(1.5), F32(-0.0), Null]),
        (identity("f64", 64), Repr::F64, vec![F64(1.5), F64(f64::NAN), Null]),
        (identity("b64", 64), Repr::F64, vec![F64(1.5), F64(-0.0), Null]),
    ];
    for (text, repr, cells) in cases {
        assert_eq!(called(&text, &[(repr, cells.clone())], repr, Nulls::Strict), cells, "{repr:?}: {text}");
        // Ranges narrow the registers; the function receives the full type.
        if repr.is_integer() {
            let mut bench = Bench::new();
            let x = bench.ranged(repr, &cells[..1]);
            let text = format!("{HEADER}{text}");
            let function = Function::from_ptx(&text, "f", vec![repr], repr, Nulls::Strict).expect("fine");
            let root = bench.graph.call(&Arc::new(function), &[x]).expect("one argument");
            assert_eq!(bench.values(root), cells[..1], "{repr:?} of a range");
        }
    }
    let wide = ".func (.param .align 16 .b8 out[16]) f(.param .align 16 .b8 x[16]) {
        .reg .b64 %d<2>;
        ld.param.v2.b64 {%d0, %d1}, [x];
        st.param.v2.b64 [out], {%d0, %d1};
        ret; }";
    let cells = int(&[i128::MIN, -1, 1 << 100]);
    assert_eq!(called(wide, &[(Repr::I128, cells.clone())], Repr::I128, Nulls::Strict), cells);
}

#[test]
fn a_function_that_sees_null_decides_about_it() {
    // NULL if both are NULL, else the sum of the valid arguments.
    let text = ".func (.param .align 8 .b8 out[16]) f(
            .param .b64 x, .param .b32 x_valid, .param .b64 y, .param .b32 y_valid) {
        .reg .pred %p<2>; .reg .b32 %r<3>; .reg .s64 %d<3>;
        ld.param.b64 %d0, [x]; ld.param.b32 %r0, [x_valid];
        ld.param.b64 %d1, [y]; ld.param.b32 %r1, [y_valid];
        setp.eq.s32 %p0, %r0, 0; @%p0 mov.s64 %d0, 0;
        setp.eq.s32 %p1, %r1, 0; @%p1 mov.s64 %d1, 0;
        add.s64 %d2, %d0, %d1; or.b32 %r2, %r0, %r1;
        st.param.b64 [out], %d2; st.param.b32 [out+8], %r2;
        ret; }";
    let (x, y) = pairs(&[Int(3), Int(-3), Null], &[Int(40), Null]);
    let got = called(text, &[(Repr::I64, x.clone()), (Repr::I64, y.clone())], Repr::I64, Nulls::Seen);
    assert_rows("sum of what is there", &[&x, &y], &got, |row| match row {
        [Int(a), Int(b)] => Int(a + b),
        [Int(a), _] | [_, Int(a)] => Int(*a),
        _ => Null,
    });
    // A 32-bit value leaves the upper half of its word unwritten.
    let text = ".func (.param .align 8 .b8 out[16]) f(.param .b32 x, .param .b32 x_valid) {
        .reg .b32 %r<2>;
        ld.param.b32 %r0, [x]; ld.param.b32 %r1, [x_valid];
        st.param.b32 [out], %r0; st.param.b32 [out+8], %r1;
        ret; }";
    let cells = vec![Int(-7), Null, Int(9)];
    assert_eq!(called(text, &[(Repr::I32, cells.clone())], Repr::I32, Nulls::Seen), cells);
    let cells = vec![F32(-7.5), Null];
    assert_eq!(called(text, &[(Repr::F32, cells.clone())], Repr::F32, Nulls::Seen), cells);
}

/// Rounds halves away from zero.
fn rounded(value: i128, divisor: i128) -> i128 {
    (value + value.signum() * (divisor / 2)) / divisor
}

#[test]
fn integers_and_decimals_are_rounded_whatever_their_range() {
    let small = [0, 1, 4, 5, 9, 14, 15, 49, 50, 99, 149, 150, -5, -14, -15, -50, -149];
    let large = [i128::from(i64::MAX) / 1_000, -(1 << 40), 10_i128.pow(15) + 5, 5 - 10_i128.pow(15)];
    for edges in [small.to_vec(), small.iter().chain(&large).copied().collect()] {
        let cells: Vec<Cell> = edges.iter().map(|value| Int(*value)).chain([Null]).collect();
        let from = Decimal::new(18, 2);
        for places in [-3_i32, -1, 0, 1, 2, 5] {
            let to = Decimal::new(18, places.clamp(0, 2) as i8);
            let mut bench = Bench::new();
            let x = bench.ranged(Repr::I128, &cells);
            let roots = [
                bench.graph.round_decimal(x, from, to, places).expect("a decimal"),
                bench.graph.truncate_decimal(x, from, places.into()).expect("a decimal"),
                bench.graph.floor_decimal(x, from, false).expect("a decimal"),
                bench.graph.floor_decimal(x, from, true).expect("a decimal"),
            ];
            let outcome = bench.run(&roots);
            assert!(outcome.errors.iter().all(Option::is_none), "{places}: {:?}", outcome.errors);
            let unit = 10_i128.pow(2_u32.saturating_sub_signed(places.min(2)));
            let expected: [Box<dyn Fn(i128) -> i128>; 4] =
                [
                    Box::new(|value| {
                        if places >= 2 { value } else { rounded(value, unit) * 10_i128.pow((-places).max(0) as u32) }
                    }),
                    Box::new(|value| value / unit * unit),
                    Box::new(|value| value.div_euclid(100) * 100),
                    Box::new(|value| -(-value).div_euclid(100) * 100),
                ];
            for (at, (values, expected)) in outcome.values.iter().zip(&expected).enumerate() {
                assert_rows(&format!("form {at} to {places} places"), &[&cells], values, |row| match row {
                    [Int(value)] => Int(expected(*value)),
                    _ => Null,
                });
            }
        }
        let mut bench = Bench::new();
        let x = bench.ranged(Repr::I64, &cells);
        let root = bench.graph.round_integer(x, 1).expect("an integer");
        let got = bench.values(root);
        assert_rows("round to tens", &[&cells], &got, |row| match row {
            [Int(value)] => Int(rounded(*value, 10) * 10),
            _ => Null,
        });
    }
}

/// Days since 1970 of a date in the proleptic Gregorian calendar, by counting; `None` if the date does not exist.
fn days_of(year: i128, month: i128, day: i128) -> Option<i128> {
    let leap = |year: i128| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = (1..=12).contains(&month).then(|| lengths[month as usize - 1])?;
    let years: i128 = if year >= 1970 {
        (1970..year).map(|year| 365 + i128::from(leap(year))).sum()
    } else {
        -(year..1970).map(|year| 365 + i128::from(leap(year))).sum::<i128>()
    };
    (1..=length).contains(&day).then(|| years + lengths[..month as usize - 1].iter().sum::<i128>() + day - 1)
}

#[test]
fn dates_are_made_of_their_parts() {
    let rows: Vec<[i128; 3]> = [-4, 0, 1, 1600, 1900, 1969, 1970, 2000, 2023, 2024, 9999]
        .into_iter()
        .flat_map(|year| {
            [0, 1, 2, 4, 12, 13]
                .into_iter()
                .flat_map(move |month| [0, 1, 28, 29, 30, 31, 32].map(|day| [year, month, day]))
        })
        .collect();
    let column = |at: usize| rows.iter().map(|row| Int(row[at])).chain([Null]).collect::<Vec<Cell>>();
    let columns = [column(0), column(1), column(2)];
    let mut bench = Bench::new();
    let [year, month, day] = [0, 1, 2].map(|at| bench.column(Repr::I32, &columns[at]));
    let root = bench.graph.make_date(year, month, day).expect("integers");
    let outcome = bench.run(&[root]);
    for (row, parts) in rows.iter().enumerate() {
        let expected = days_of(parts[0], parts[1], parts[2]);
        assert_eq!(outcome.errors[row].is_some(), expected.is_none(), "{parts:?}");
        if let Some(days) = expected {
            assert_eq!(outcome.values[0][row], Int(days), "{parts:?}");
        }
    }
    assert!(outcome.errors[rows.len()].is_none() && outcome.values[0][rows.len()] == Null);
}

#[test]
fn bins_are_counted_from_their_origin() {
    let edges = [0, 1, -1, 59, 60, 61, -60, 3_601, 86_400 * 365, -86_400 * 365, i64::MAX.into(), i64::MIN.into()];
    let cells: Vec<Cell> = edges.into_iter().map(Int).chain([Null]).collect();
    for (stride, origin) in
        [(60_000_000_000_i64, 0_i128), (7, 3), (1, 0), (86_400_000_000_000, 946_684_800_000_000_000)]
    {
        let mut bench = Bench::new();
        let x = bench.column(Repr::I64, &cells);
        let start = bench.graph.integer(origin, Repr::I64);
        let root = bench.graph.date_bin(x, TimeUnit::Second, stride, start).expect("an integer");
        let got = bench.values(root);
        assert_rows(&format!("bins of {stride}"), &[&cells], &got, |row| {
            let [Int(seconds)] = row else { return Null };
            let fits = |value: i128| i64::try_from(value).ok().map(i128::from);
            let bin = fits(seconds * 1_000_000_000).and_then(|nanos| fits(nanos - origin)).and_then(|since| {
                let start = fits(since.div_euclid(stride.into()) * i128::from(stride))?;
                fits(start + origin)
            });
            Cell::from(bin.map(|nanos| nanos / 1_000_000_000))
        });
    }
}
