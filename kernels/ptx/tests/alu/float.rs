//! Floating-point arithmetic: special values, rounding at known bits, flushing, saturation.

use crate::harness::*;

const ONE: u64 = 0x3f80_0000;
const MAX: u64 = 0x7f7f_ffff;
const MIN_NORMAL: u64 = 0x0080_0000;
const D_ONE: u64 = 0x3ff0_0000_0000_0000;
const D_MAX: u64 = 0x7fef_ffff_ffff_ffff;

#[test]
fn add_rounds_in_four_directions() {
    // 1 + 2^-24 is halfway between 1 and 1 + 2^-23; 1 + 3·2^-25 is above halfway.
    let (half, more) = (0x3380_0000, 0x33c0_0000);
    table("add.f32 %f0, %f1, %f2", &[([ONE, half], ONE), ([ONE + 1, half], ONE + 2), ([ONE, more], ONE + 1)]);
    table("add.rn.f32 %f0, %f1, %f2", &[([ONE, half], ONE), ([f(1.5), f(2.25)], f(3.75))]);
    table("add.rz.f32 %f0, %f1, %f2", &[([ONE, more], ONE), ([f(-1.0), more | NEG_ZERO], f(-1.0))]);
    table("add.rm.f32 %f0, %f1, %f2", &[([ONE, more], ONE), ([f(-1.0), half | NEG_ZERO], 0xbf80_0001)]);
    table("add.rp.f32 %f0, %f1, %f2", &[([ONE, half], ONE + 1), ([f(-1.0), more | NEG_ZERO], f(-1.0))]);
    // overflow to infinity or to the largest number, by rounding direction
    table("add.rn.f32 %f0, %f1, %f2", &[([MAX, MAX], INF)]);
    table("add.rz.f32 %f0, %f1, %f2", &[([MAX, MAX], MAX), ([MAX | NEG_ZERO, MAX | NEG_ZERO], MAX | NEG_ZERO)]);
    table("add.rm.f32 %f0, %f1, %f2", &[([MAX, MAX], MAX), ([MAX | NEG_ZERO, MAX | NEG_ZERO], NEG_INF)]);
    table("add.rp.f32 %f0, %f1, %f2", &[([MAX, MAX], INF), ([MAX | NEG_ZERO, MAX | NEG_ZERO], MAX | NEG_ZERO)]);
    table(
        "add.rz.f64 %fd0, %fd1, %fd2",
        &[([D_ONE, d(3e-16)], D_ONE + 1), ([D_ONE, d(1e-300)], D_ONE), ([D_MAX, D_MAX], D_MAX)],
    );
    table("add.rp.f64 %fd0, %fd1, %fd2", &[([D_ONE, d(1e-300)], D_ONE + 1), ([D_ONE, d(-1e-300)], D_ONE)]);
    table("add.rm.f64 %fd0, %fd1, %fd2", &[([D_ONE, d(1e-300)], D_ONE), ([D_ONE, d(-1e-300)], D_ONE - 1)]);
    table("add.f64 %fd0, %fd1, %fd2", &[([d(0.1), d(0.2)], 0x3fd3_3333_3333_3334)]);
}

#[test]
fn exact_zero_has_the_sign_of_the_direction() {
    for (rounding, zero) in [("rn", 0), ("rz", 0), ("rp", 0), ("rm", NEG_ZERO)] {
        table(
            &format!("add.{rounding}.f32 %f0, %f1, %f2"),
            &[([ONE, f(-1.0)], zero), ([0, NEG_ZERO], zero), ([NEG_ZERO, NEG_ZERO], NEG_ZERO), ([0, 0], 0)],
        );
        table(
            &format!("sub.{rounding}.f32 %f0, %f1, %f2"),
            &[([ONE, ONE], zero), ([NEG_ZERO, 0], NEG_ZERO), ([0, 0], zero)],
        );
        let zero64 = zero << 32;
        table(&format!("sub.{rounding}.f64 %fd0, %fd1, %fd2"), &[([D_ONE, D_ONE], zero64)]);
        table(
            &format!("fma.{rounding}.f32 %f0, %f1, %f2, %f3"),
            &[([ONE, f(2.0), f(-2.0)], zero), ([0, ONE, NEG_ZERO], zero)],
        );
        table(&format!("fma.{rounding}.f64 %fd0, %fd1, %fd2, %fd3"), &[([D_ONE, d(2.0), d(-2.0)], zero64)]);
    }
}

#[test]
fn infinities_and_nans() {
    table(
        "add.f32 %f0, %f1, %f2",
        &[([INF, NEG_INF], NAN), ([INF, ONE], INF), ([SNAN, ONE], NAN), ([ONE, 0xffc0_0000], NAN)],
    );
    table("sub.f32 %f0, %f1, %f2", &[([INF, INF], NAN), ([ONE, INF], NEG_INF)]);
    table("mul.f32 %f0, %f1, %f2", &[([INF, 0], NAN), ([NEG_INF, f(-2.0)], INF), ([NEG_ZERO, ONE], NEG_ZERO)]);
    table(
        "fma.rn.f32 %f0, %f1, %f2, %f3",
        &[([INF, 0, ONE], NAN), ([INF, ONE, NEG_INF], NAN), ([ONE, ONE, NEG_INF], NEG_INF)],
    );
    table(
        "div.rn.f32 %f0, %f1, %f2",
        &[([0, 0], NAN), ([INF, INF], NAN), ([ONE, 0], INF), ([ONE, NEG_ZERO], NEG_INF), ([ONE, NEG_INF], NEG_ZERO)],
    );
    table("sqrt.rn.f32 %f0, %f1", &[([f(-1.0)], NAN), ([NEG_ZERO], NEG_ZERO), ([INF], INF), ([NEG_INF], NAN)]);
    table("rcp.rn.f32 %f0, %f1", &[([0], INF), ([NEG_ZERO], NEG_INF), ([INF], 0), ([NEG_INF], NEG_ZERO), ([NAN], NAN)]);
    for rounding in ["rz", "rm", "rp"] {
        table(
            &format!("add.{rounding}.f32 %f0, %f1, %f2"),
            &[([INF, NEG_INF], NAN), ([INF, ONE], INF), ([SNAN, ONE], NAN)],
        );
        table(
            &format!("mul.{rounding}.f32 %f0, %f1, %f2"),
            &[([INF, 0], NAN), ([NEG_INF, f(-2.0)], INF), ([NEG_ZERO, ONE], NEG_ZERO)],
        );
        table(
            &format!("fma.{rounding}.f32 %f0, %f1, %f2, %f3"),
            &[([INF, 0, ONE], NAN), ([ONE, ONE, NEG_INF], NEG_INF)],
        );
        table(
            &format!("div.{rounding}.f32 %f0, %f1, %f2"),
            &[([0, 0], NAN), ([ONE, NEG_ZERO], NEG_INF), ([NEG_ZERO, ONE], NEG_ZERO), ([ONE, NEG_INF], NEG_ZERO)],
        );
        table(&format!("sqrt.{rounding}.f32 %f0, %f1"), &[([f(-1.0)], NAN), ([NEG_ZERO], NEG_ZERO), ([INF], INF)]);
        table(&format!("rcp.{rounding}.f32 %f0, %f1"), &[([0], INF), ([NEG_ZERO], NEG_INF), ([NEG_INF], NEG_ZERO)]);
    }
}

#[test]
fn f64_keeps_nan_payloads() {
    let (payload, other) = (0x7ff0_0000_0000_0123, 0xfff8_0000_0000_0456);
    for rounding in ["rn", "rz"] {
        table(
            &format!("add.{rounding}.f64 %fd0, %fd1, %fd2"),
            &[([payload, D_ONE], 0x7ff8_0000_0000_0123), ([D_ONE, other], other), ([D_INF, D_NEG_INF], D_NAN)],
        );
        table(&format!("mul.{rounding}.f64 %fd0, %fd1, %fd2"), &[([D_ONE, other], other), ([D_INF, 0], D_NAN)]);
        table(
            &format!("fma.{rounding}.f64 %fd0, %fd1, %fd2, %fd3"),
            &[([D_ONE, D_ONE, other], other), ([D_INF, 0, D_ONE], D_NAN)],
        );
        table(
            &format!("div.{rounding}.f64 %fd0, %fd1, %fd2"),
            &[([0, 0], D_NAN), ([D_ONE, payload], 0x7ff8_0000_0000_0123)],
        );
        // Choice among several NaNs, as recorded on an H200.
        let [a, b, c] = [0xfff8_0000_0000_0001, 0x7ff8_0000_0000_0002, 0xfff8_0000_0000_0003];
        for name in ["add", "sub", "mul"] {
            table(
                &format!("{name}.{rounding}.f64 %fd0, %fd1, %fd2"),
                &[([a, b], b), ([a, payload], payload | 1 << 51)],
            );
        }
        table(&format!("div.{rounding}.f64 %fd0, %fd1, %fd2"), &[([a, b], a), ([payload, b], payload | 1 << 51)]);
        table(
            &format!("fma.{rounding}.f64 %fd0, %fd1, %fd2, %fd3"),
            &[([a, b, c], b), ([a, D_ONE, c], c), ([D_ONE, b, c], b), ([a, b, D_ONE], b)],
        );
        table(
            &format!("sqrt.{rounding}.f64 %fd0, %fd1"),
            &[([d(-1.0)], D_NAN), ([other], other), ([D_NEG_ZERO], D_NEG_ZERO)],
        );
        table(&format!("rcp.{rounding}.f64 %fd0, %fd1"), &[([0], D_INF), ([other], other), ([D_NEG_INF], D_NEG_ZERO)]);
    }
}

#[test]
fn mul_and_div_round() {
    // (1 + 2^-23)² = 1 + 2^-22 + 2^-46
    table("mul.rn.f32 %f0, %f1, %f2", &[([ONE + 1, ONE + 1], ONE + 2), ([f(3.0), f(-7.0)], f(-21.0))]);
    table("mul.rp.f32 %f0, %f1, %f2", &[([ONE + 1, ONE + 1], ONE + 3)]);
    table(
        "mul.rm.f32 %f0, %f1, %f2",
        &[([ONE + 1, ONE + 1], ONE + 2), ([ONE + 1, (ONE + 1) | NEG_ZERO], (ONE + 3) | NEG_ZERO)],
    );
    table("mul.rz.f32 %f0, %f1, %f2", &[([ONE + 1, (ONE + 1) | NEG_ZERO], (ONE + 2) | NEG_ZERO)]);
    // 1/3 = 0x3eaaaaaa.aaaa…
    table("div.rn.f32 %f0, %f1, %f2", &[([ONE, f(3.0)], 0x3eaa_aaab)]);
    table("div.rz.f32 %f0, %f1, %f2", &[([ONE, f(3.0)], 0x3eaa_aaaa), ([f(-1.0), f(3.0)], 0xbeaa_aaaa)]);
    table("div.rm.f32 %f0, %f1, %f2", &[([ONE, f(3.0)], 0x3eaa_aaaa), ([f(-1.0), f(3.0)], 0xbeaa_aaab)]);
    table("div.rp.f32 %f0, %f1, %f2", &[([ONE, f(3.0)], 0x3eaa_aaab), ([f(-1.0), f(3.0)], 0xbeaa_aaaa)]);
    table("div.rn.f64 %fd0, %fd1, %fd2", &[([D_ONE, d(3.0)], 0x3fd5_5555_5555_5555)]);
    table("div.rp.f64 %fd0, %fd1, %fd2", &[([D_ONE, d(3.0)], 0x3fd5_5555_5555_5556), ([D_ONE, d(4.0)], d(0.25))]);
    table("rcp.rn.f32 %f0, %f1", &[([f(3.0)], 0x3eaa_aaab)]);
    table("rcp.rz.f32 %f0, %f1", &[([f(3.0)], 0x3eaa_aaaa), ([f(-8.0)], f(-0.125))]);
    table("rcp.rp.f64 %fd0, %fd1", &[([d(3.0)], 0x3fd5_5555_5555_5556)]);
    table("div.full.f32 %f0, %f1, %f2", &[([f(6.0), f(3.0)], f(2.0)), ([MAX, MAX], ONE)]);
    table("mul.f64 %fd0, %fd1, %fd2", &[([d(3.0), d(-7.0)], d(-21.0)), ([D_MAX, d(2.0)], D_INF)]);
    table("mul.rz.f64 %fd0, %fd1, %fd2", &[([D_MAX, d(2.0)], D_MAX), ([D_ONE + 1, D_ONE + 1], D_ONE + 2)]);
    table("sub.f64 %fd0, %fd1, %fd2", &[([d(3.0), d(-7.0)], d(10.0))]);
}

#[test]
fn sqrt_rounds() {
    // sqrt(2) = 1.0110101000001001111001100110011111110011… in binary: 0x3fb504f3 and slightly less than half an ulp
    table("sqrt.rn.f32 %f0, %f1", &[([f(2.0)], 0x3fb5_04f3), ([f(9.0)], f(3.0))]);
    table("sqrt.rz.f32 %f0, %f1", &[([f(2.0)], 0x3fb5_04f3), ([f(4.0)], f(2.0))]);
    table("sqrt.rm.f32 %f0, %f1", &[([f(2.0)], 0x3fb5_04f3)]);
    table("sqrt.rp.f32 %f0, %f1", &[([f(2.0)], 0x3fb5_04f4), ([f(0.25)], f(0.5)), ([1], 0x1a35_04f4)]);
    table("sqrt.rn.f64 %fd0, %fd1", &[([d(2.0)], 0x3ff6_a09e_667f_3bcd)]);
    table("sqrt.rz.f64 %fd0, %fd1", &[([d(2.0)], 0x3ff6_a09e_667f_3bcc), ([d(16.0)], d(4.0))]);
    table("sqrt.rp.f64 %fd0, %fd1", &[([d(2.0)], 0x3ff6_a09e_667f_3bcd), ([1], 0x1e60_0000_0000_0000)]);
}

#[test]
fn fma_rounds_once() {
    // (1 + 2^-12)² - (1 + 2^-11) is exactly 2^-24; with separate rounding it is 0.
    table("fma.rn.f32 %f0, %f1, %f2, %f3", &[([ONE + 2048, ONE + 2048, (ONE + 4096) | NEG_ZERO], 0x3380_0000)]);
    table("mad.rn.f32 %f0, %f1, %f2, %f3", &[([ONE + 2048, ONE + 2048, (ONE + 4096) | NEG_ZERO], 0x3380_0000)]);
    table("fma.rz.f32 %f0, %f1, %f2, %f3", &[([ONE + 2048, ONE + 2048, (ONE + 4096) | NEG_ZERO], 0x3380_0000)]);
    // large exponent difference: 1·1 ± the smallest subnormal
    table("fma.rp.f32 %f0, %f1, %f2, %f3", &[([ONE, ONE, 1], ONE + 1)]);
    table("fma.rm.f32 %f0, %f1, %f2, %f3", &[([ONE, ONE, 1 | NEG_ZERO], ONE - 1), ([1, 1, ONE], ONE)]);
    table("fma.rz.f32 %f0, %f1, %f2, %f3", &[([ONE, ONE, 1 | NEG_ZERO], ONE - 1)]);
    table(
        "fma.rn.f64 %fd0, %fd1, %fd2, %fd3",
        &[([D_ONE + (1 << 26), D_ONE + (1 << 26), d(-1.0) + (1 << 27)], 0x3cb0_0000_0000_0000)],
    );
    table("fma.rp.f64 %fd0, %fd1, %fd2, %fd3", &[([D_ONE, D_ONE, 1], D_ONE + 1), ([1, 1, 0], 1)]);
    table("fma.rm.f64 %fd0, %fd1, %fd2, %fd3", &[([D_ONE, D_ONE, 1 | D_NEG_ZERO], D_ONE - 1), ([1, 1, 0], 0)]);
    table("mad.rz.f64 %fd0, %fd1, %fd2, %fd3", &[([d(2.0), d(3.0), d(4.0)], d(10.0))]);
}

#[test]
fn subnormals_are_kept() {
    table("add.f32 %f0, %f1, %f2", &[([1, 1], 2), ([MIN_NORMAL, 1 | NEG_ZERO], MIN_NORMAL - 1)]);
    table("mul.f32 %f0, %f1, %f2", &[([MIN_NORMAL, f(0.5)], MIN_NORMAL / 2), ([1, f(0.5)], 0), ([3, f(0.5)], 2)]);
    table("mul.rp.f32 %f0, %f1, %f2", &[([1, f(0.5)], 1), ([1, f(-0.5)], NEG_ZERO)]);
    table("mul.rm.f32 %f0, %f1, %f2", &[([1, f(0.5)], 0), ([1, f(-0.5)], 1 | NEG_ZERO)]);
    table("mul.rz.f32 %f0, %f1, %f2", &[([3, f(0.5)], 1), ([1, 1], 0)]);
    table("div.rn.f32 %f0, %f1, %f2", &[([1, f(2.0)], 0), ([MIN_NORMAL, f(2.0)], MIN_NORMAL / 2)]);
    table("div.rp.f32 %f0, %f1, %f2", &[([1, MAX], 1)]);
    table("mul.f64 %fd0, %fd1, %fd2", &[([1, d(0.5)], 0), ([3, d(0.5)], 2)]);
    table("mul.rp.f64 %fd0, %fd1, %fd2", &[([1, d(0.25)], 1)]);
}

#[test]
fn ftz_flushes_both_sides() {
    table(
        "add.ftz.f32 %f0, %f1, %f2",
        &[
            ([1, 1], 0),
            ([1 | NEG_ZERO, 1 | NEG_ZERO], NEG_ZERO),
            ([MIN_NORMAL + 1, MIN_NORMAL | NEG_ZERO], 0), // the result is subnormal
            ([MIN_NORMAL, (MIN_NORMAL + 1) | NEG_ZERO], NEG_ZERO),
            ([MIN_NORMAL, 1], MIN_NORMAL),
        ],
    );
    table("sub.ftz.f32 %f0, %f1, %f2", &[([MIN_NORMAL, 1], MIN_NORMAL)]);
    table("mul.ftz.f32 %f0, %f1, %f2", &[([MIN_NORMAL, f(0.5)], 0), ([MIN_NORMAL, f(-0.5)], NEG_ZERO), ([1, MAX], 0)]);
    table("mul.rp.ftz.f32 %f0, %f1, %f2", &[([MIN_NORMAL, f(0.5)], 0), ([1, MAX], 0)]);
    table("fma.rn.ftz.f32 %f0, %f1, %f2, %f3", &[([1, MAX, 0], 0), ([MIN_NORMAL, f(0.5), 0], 0), ([ONE, ONE, 1], ONE)]);
    table("fma.rz.ftz.f32 %f0, %f1, %f2, %f3", &[([ONE, ONE, 1 | NEG_ZERO], ONE)]);
    table("div.rn.ftz.f32 %f0, %f1, %f2", &[([ONE, 1], INF), ([1, ONE], 0), ([MIN_NORMAL, f(2.0)], 0)]);
    table("sqrt.rn.ftz.f32 %f0, %f1", &[([1], 0), ([1 | NEG_ZERO], NEG_ZERO)]);
    table("sqrt.rm.ftz.f32 %f0, %f1", &[([1 | NEG_ZERO], NEG_ZERO), ([f(2.0)], 0x3fb5_04f3)]);
    table("rcp.rn.ftz.f32 %f0, %f1", &[([1], INF), ([1 | NEG_ZERO], NEG_INF), ([MAX], 0)]);
    table("abs.ftz.f32 %f0, %f1", &[([1 | NEG_ZERO], 0), ([f(-2.0)], f(2.0))]);
    table("neg.ftz.f32 %f0, %f1", &[([1], NEG_ZERO), ([f(-2.0)], f(2.0))]);
    table("min.ftz.f32 %f0, %f1, %f2", &[([1, f(2.0)], 0), ([1 | NEG_ZERO, 1], NEG_ZERO)]);
}

#[test]
fn sat_clamps_into_zero_to_one() {
    table(
        "add.sat.f32 %f0, %f1, %f2",
        &[
            ([f(0.5), f(0.25)], f(0.75)),
            ([ONE, ONE], ONE),
            ([f(-1.0), f(0.5)], 0),
            ([NEG_ZERO, NEG_ZERO], 0),
            ([NAN, ONE], 0),
            ([INF, ONE], ONE),
            ([NEG_INF, ONE], 0),
        ],
    );
    table("sub.sat.f32 %f0, %f1, %f2", &[([f(0.5), f(0.75)], 0), ([f(3.0), ONE], ONE)]);
    table("mul.ftz.sat.f32 %f0, %f1, %f2", &[([f(0.5), f(0.5)], f(0.25)), ([1, ONE], 0), ([INF, 0], 0)]);
    table("fma.rn.sat.f32 %f0, %f1, %f2, %f3", &[([f(2.0), f(2.0), f(-3.5)], f(0.5)), ([f(2.0), f(2.0), ONE], ONE)]);
    table(
        "fma.rz.sat.f32 %f0, %f1, %f2, %f3",
        &[([f(2.0), f(2.0), f(-3.5)], f(0.5)), ([f(2.0), f(2.0), ONE], ONE), ([NAN, ONE, ONE], 0)],
    );
    table("add.rp.sat.f32 %f0, %f1, %f2", &[([f(0.5), f(0.25)], f(0.75)), ([NEG_ZERO, NEG_ZERO], 0)]);
}

#[test]
fn signs_and_classes() {
    table("abs.f32 %f0, %f1", &[([f(-2.5)], f(2.5)), ([NEG_ZERO], 0), ([NEG_INF], INF)]);
    table("abs.f64 %fd0, %fd1", &[([d(-2.5)], d(2.5)), ([D_NEG_INF], D_INF)]);
    table("neg.f32 %f0, %f1", &[([f(2.5)], f(-2.5)), ([0], NEG_ZERO)]);
    table("neg.f64 %fd0, %fd1", &[([d(2.5)], d(-2.5)), ([0], D_NEG_ZERO)]);
    // Recorded on an H200: the sign of a NaN is unchanged.
    for name in ["neg", "abs"] {
        table(&format!("{name}.f32 %f0, %f1"), &[([0x7fc0_0123], NAN), ([0xffc0_a456], NAN), ([SNAN], NAN)]);
        table(
            &format!("{name}.f64 %fd0, %fd1"),
            &[
                ([0x7ff8_0000_0000_0123], 0x7ff8_0000_0000_0123),
                ([0xfff8_000a_bc00_0456], 0xfff8_000a_bc00_0456),
                ([0x7ff0_0000_0000_0001], 0x7ff8_0000_0000_0001),
                ([0xfff4_5000_0000_0000], 0xfffc_5000_0000_0000),
            ],
        );
    }
    table(
        "copysign.f32 %f0, %f1, %f2",
        &[([NEG_ZERO, f(2.5)], f(-2.5)), ([ONE, f(-2.5)], f(2.5)), ([f(-3.0), NAN], 0xffff_ffff)],
    );
    table("copysign.f64 %fd0, %fd1, %fd2", &[([D_NEG_ZERO, d(2.5)], d(-2.5)), ([D_ONE, d(-2.5)], d(2.5))]);
    // finite, infinite, number, notanumber, normal, subnormal
    let single = [
        (0, [1, 0, 1, 0, 1, 0]),
        (NEG_ZERO, [1, 0, 1, 0, 1, 0]),
        (1, [1, 0, 1, 0, 0, 1]),
        (0x807f_ffff, [1, 0, 1, 0, 0, 1]),
        (MIN_NORMAL, [1, 0, 1, 0, 1, 0]),
        (MAX, [1, 0, 1, 0, 1, 0]),
        (NEG_INF, [0, 1, 1, 0, 0, 0]),
        (SNAN, [0, 0, 0, 1, 0, 0]),
        (NAN, [0, 0, 0, 1, 0, 0]),
    ];
    let double = [
        (0, [1, 0, 1, 0, 1, 0]),
        (D_NEG_ZERO | 1, [1, 0, 1, 0, 0, 1]),
        (D_ONE, [1, 0, 1, 0, 1, 0]),
        (D_INF, [0, 1, 1, 0, 0, 0]),
        (D_NAN, [0, 0, 0, 1, 0, 0]),
    ];
    for (index, class) in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"].iter().enumerate() {
        let cases = single.map(|(bits, classes)| ([bits], classes[index]));
        table(&format!("testp.{class}.f32 %p0, %f1"), &cases);
        let cases = double.map(|(bits, classes)| ([bits], classes[index]));
        table(&format!("testp.{class}.f64 %p0, %fd1"), &cases);
    }
}

#[test]
fn min_and_max_of_nan_and_zeros() {
    table(
        "min.f32 %f0, %f1, %f2",
        &[
            ([f(-3.0), f(2.0)], f(-3.0)),
            ([f(2.0), f(3.0)], f(2.0)),
            ([NEG_ZERO, 0], NEG_ZERO),
            ([0, NEG_ZERO], NEG_ZERO),
            ([NAN, ONE], ONE),
            ([ONE, SNAN], ONE),
            ([SNAN, 0xffc0_0000], NAN),
            ([NEG_INF, ONE], NEG_INF),
        ],
    );
    table(
        "max.f32 %f0, %f1, %f2",
        &[
            ([f(-3.0), f(-2.0)], f(-2.0)),
            ([NEG_ZERO, 0], 0),
            ([0, NEG_ZERO], 0),
            ([NAN, ONE], ONE),
            ([NAN, NAN], NAN),
            ([INF, ONE], INF),
        ],
    );
    table("min.NaN.f32 %f0, %f1, %f2", &[([NAN, ONE], NAN), ([ONE, SNAN], NAN), ([ONE, f(2.0)], ONE)]);
    table("max.NaN.f32 %f0, %f1, %f2", &[([0xffc0_0001, ONE], NAN), ([ONE, f(2.0)], f(2.0))]);
    table("max.xorsign.abs.f32 %f0, %f1, %f2", &[([f(-3.0), f(2.0)], f(-3.0)), ([f(-3.0), f(-4.0)], f(4.0))]);
    table("min.xorsign.abs.f32 %f0, %f1, %f2", &[([f(-3.0), f(2.0)], f(-2.0))]);
    table(
        "min.f64 %fd0, %fd1, %fd2",
        &[([0, D_NEG_ZERO], D_NEG_ZERO), ([D_NAN, D_ONE], D_ONE), ([d(-1.0), d(-2.0)], d(-2.0))],
    );
    table(
        "max.f64 %fd0, %fd1, %fd2",
        &[([0, D_NEG_ZERO], 0), ([D_ONE, D_NAN], D_ONE), ([d(-1.0), d(-2.0)], d(-1.0)), ([D_NAN, D_NAN], D_NAN)],
    );
}

#[test]
fn min_and_max_of_two_nans_give_the_second() {
    let (first, second) = (0xfff8_0000_0000_0001, 0x7ff0_0000_0000_0002);
    for name in ["min", "max"] {
        table(
            &format!("{name}.f64 %fd0, %fd1, %fd2"),
            &[([first, second], second | 1 << 51), ([second, first], first)],
        );
    }
}

#[test]
fn float_immediates() {
    table("add.f32 %f0, %f1, 0f3F800000", &[([f(2.0)], f(3.0))]);
    table("mul.f64 %fd0, %fd1, 0d4000000000000000", &[([d(1.5)], d(3.0))]);
    table("add.f32 %f0, %f1, 1.5", &[([f(2.0)], f(3.5))]);
    table("fma.rn.f64 %fd0, %fd1, %fd2, 0dBFF0000000000000", &[([d(2.0), d(3.0)], d(5.0))]);
}
