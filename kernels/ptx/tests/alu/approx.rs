//! Approximations at inputs with known results, within the bounds of the manual.

use crate::harness::*;

const MIN_NORMAL: u64 = 0x0080_0000;

#[track_caller]
fn near(text: &str, cases: &[(f32, f64)], absolute: f64, relative: f64) {
    for &(input, expected) in cases {
        let found = f64::from(f32::from_bits(load(text).one(&[f(input)]) as u32));
        let error = (found - expected).abs();
        assert!(error <= absolute.max(relative * expected.abs()), "{text} of {input}: {found}, not {expected}");
    }
}

#[test]
fn powers_of_two_are_exact() {
    for e in -120..=120 {
        let x = |e: i32| u64::from(((e + 127) as u32) << 23);
        table("rcp.approx.f32 %f0, %f1", &[([x(e)], x(-e))]);
        table("lg2.approx.f32 %f0, %f1", &[([x(e)], f(e as f32))]);
        table("ex2.approx.f32 %f0, %f1", &[([f(e as f32)], x(e))]);
        if e % 2 == 0 {
            table("sqrt.approx.f32 %f0, %f1", &[([x(e)], x(e / 2))]);
            table("rsqrt.approx.f32 %f0, %f1", &[([x(e)], x(-e / 2))]);
        }
    }
}

#[test]
fn corner_cases_of_the_manual() {
    table(
        "rcp.approx.f32 %f0, %f1",
        &[([NEG_INF], NEG_ZERO), ([NEG_ZERO], NEG_INF), ([0], INF), ([INF], 0), ([NAN], NAN), ([1], INF)],
    );
    table(
        "rcp.approx.ftz.f32 %f0, %f1",
        &[([1], INF), ([1 | NEG_ZERO], NEG_INF), ([0x7f7f_ffff], 0), ([0xff00_0000], NEG_ZERO)],
    );
    table(
        "sqrt.approx.f32 %f0, %f1",
        &[([NEG_INF], NAN), ([f(-1.0)], NAN), ([NEG_ZERO], NEG_ZERO), ([0], 0), ([INF], INF), ([NAN], NAN)],
    );
    table("sqrt.approx.ftz.f32 %f0, %f1", &[([1], 0), ([1 | NEG_ZERO], NEG_ZERO)]);
    table(
        "rsqrt.approx.f32 %f0, %f1",
        &[([NEG_INF], NAN), ([f(-1.0)], NAN), ([NEG_ZERO], NEG_INF), ([0], INF), ([INF], 0), ([NAN], NAN)],
    );
    table("rsqrt.approx.ftz.f32 %f0, %f1", &[([1], INF), ([1 | NEG_ZERO], NEG_INF)]);
    table("sin.approx.f32 %f0, %f1", &[([NEG_INF], NAN), ([NEG_ZERO], NEG_ZERO), ([0], 0), ([INF], NAN), ([NAN], NAN)]);
    table("sin.approx.ftz.f32 %f0, %f1", &[([1], 0), ([1 | NEG_ZERO], NEG_ZERO)]);
    table(
        "cos.approx.f32 %f0, %f1",
        &[([NEG_INF], NAN), ([NEG_ZERO], f(1.0)), ([0], f(1.0)), ([INF], NAN), ([NAN], NAN)],
    );
    table(
        "lg2.approx.f32 %f0, %f1",
        &[([NEG_INF], NAN), ([f(-1.0)], NAN), ([NEG_ZERO], NEG_INF), ([0], NEG_INF), ([INF], INF), ([1], f(-149.0))],
    );
    table("lg2.approx.ftz.f32 %f0, %f1", &[([1], NEG_INF), ([MIN_NORMAL], f(-126.0))]);
    table(
        "ex2.approx.f32 %f0, %f1",
        &[
            ([NEG_INF], 0),
            ([NEG_ZERO], f(1.0)),
            ([0], f(1.0)),
            ([INF], INF),
            ([NAN], NAN),
            ([f(128.0)], INF),
            ([f(-149.0)], 1),
        ],
    );
    table("ex2.approx.ftz.f32 %f0, %f1", &[([f(-127.0)], 0), ([f(-126.0)], MIN_NORMAL), ([1], f(1.0))]);
    table(
        "tanh.approx.f32 %f0, %f1",
        &[([NEG_INF], f(-1.0)), ([NEG_ZERO], NEG_ZERO), ([0], 0), ([INF], f(1.0)), ([NAN], NAN), ([1], 1)],
    );
}

#[test]
fn known_values_inside_the_bounds() {
    use std::f64::consts::*;
    // sin and cos of the nearest floats differ from the ideal by less than the error of the angle, 2^-24
    let angle = 2f64.powi(-20) * FRAC_1_SQRT_2; // 2^-20.5
    near(
        "sin.approx.f32 %f0, %f1",
        &[(FRAC_PI_6 as f32, 0.5), (FRAC_PI_2 as f32, 1.0), (-FRAC_PI_4 as f32, -FRAC_1_SQRT_2), (PI as f32, 0.0)],
        angle,
        0.0,
    );
    near(
        "cos.approx.f32 %f0, %f1",
        &[(FRAC_PI_3 as f32, 0.5), (PI as f32, -1.0), (FRAC_PI_4 as f32, FRAC_1_SQRT_2), (FRAC_PI_2 as f32, 0.0)],
        angle,
        0.0,
    );
    near(
        "lg2.approx.f32 %f0, %f1",
        &[(1.5, 0.584_962_500_721_156_2), (0.75, -0.415_037_499_278_843_8), (10.0, LOG2_10)],
        2f64.powi(-22),
        2f64.powi(-22),
    );
    near(
        "ex2.approx.f32 %f0, %f1",
        &[(0.5, SQRT_2), (-0.5, FRAC_1_SQRT_2), (3.25, 9.513_656_920_021_768)],
        0.0,
        2f64.powi(-22),
    );
    near(
        "tanh.approx.f32 %f0, %f1",
        &[(1.0, 0.761_594_155_955_764_9), (-0.5, -0.462_117_157_260_009_8), (10.0, 1.0)],
        0.0,
        2f64.powi(-11),
    );
    near("rsqrt.approx.f32 %f0, %f1", &[(2.0, FRAC_1_SQRT_2), (3.0, 0.577_350_269_189_625_8)], 0.0, 2f64.powf(-22.9));
    near("sqrt.approx.f32 %f0, %f1", &[(2.0, SQRT_2), (3.0, 1.732_050_807_568_877_2)], 0.0, 2f64.powi(-23));
    near("rcp.approx.f32 %f0, %f1", &[(3.0, 1.0 / 3.0), (10.0, 0.1)], 0.0, 2f64.powi(-23));
}

#[test]
fn division_approximates() {
    table(
        "div.approx.f32 %f0, %f1, %f2",
        &[
            ([f(6.0), f(3.0)], f(2.0)),
            ([f(1.0), 0], INF),
            ([0, 0], NAN),
            ([f(1.0), 0x7e80_0000], MIN_NORMAL), // by 2^126: 2^-126
            ([f(1.0), 0x7e80_0001], 0),          // a larger divisor: zero with its sign
            ([f(-1.0), 0x7f00_0000], NEG_ZERO),
            ([INF, 0x7f00_0000], NAN),
            ([f(1.0), INF], 0),
            ([INF, INF], NAN),
        ],
    );
    table("div.approx.ftz.f32 %f0, %f1, %f2", &[([f(1.0), 1], INF), ([1, f(1.0)], 0), ([f(9.0), f(-3.0)], f(-3.0))]);
    table("div.full.ftz.f32 %f0, %f1, %f2", &[([f(1.0), 1], INF), ([f(9.0), f(-3.0)], f(-3.0))]);
}

#[test]
fn upper_words_of_f64() {
    let nan = 0x7fff_ffff_0000_0000;
    table(
        "rcp.approx.ftz.f64 %fd0, %fd1",
        &[
            ([d(2.0)], d(0.5)),
            ([d(-4.0)], d(-0.25)),
            ([d(1.0) | 0xffff_ffff], d(1.0)), // the lower word is not read
            ([D_NEG_INF], D_NEG_ZERO),
            ([D_NEG_ZERO], D_NEG_INF),
            ([1], D_INF),
            ([D_NEG_ZERO | 1 << 51], D_NEG_INF),
            ([D_INF], 0),
            ([D_NAN], nan),
            ([D_INF | 1 << 32], nan),
            ([D_INF | 1], 0),   // an infinity by its upper word, as recorded on an H200
            ([d(f64::MAX)], 0), // 2^-1024 is subnormal
        ],
    );
    table(
        "rsqrt.approx.ftz.f64 %fd0, %fd1",
        &[
            ([d(4.0)], d(0.5)),
            ([d(0.25)], d(2.0)),
            ([D_NEG_INF], nan),
            ([d(-1.0)], nan),
            ([D_NEG_ZERO | 1], D_NEG_INF),
            ([D_NEG_ZERO], D_NEG_INF),
            ([0], D_INF),
            ([1], D_INF),
            ([D_INF], 0),
            ([D_INF | 1], 0),
            ([D_NAN], nan),
        ],
    );
    for x in [3.0, 10.0, 1e300, -7e-200] {
        let found = load("rcp.approx.ftz.f64 %fd0, %fd1").one(&[d(x)]);
        assert_eq!(found & 0xffff_ffff, 0);
        assert!((f64::from_bits(found) * x - 1.0).abs() < 2f64.powi(-19), "1/{x}");
    }
    table(
        "rsqrt.approx.f64 %fd0, %fd1",
        &[([d(4.0)], d(0.5)), ([D_NEG_ZERO], D_NEG_INF), ([D_INF], 0), ([d(-1.0)], D_NAN)],
    );
}
