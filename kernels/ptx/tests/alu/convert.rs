//! cvt: all types, roundings and clamps.

use crate::harness::*;

const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("u16", 16, false),
    ("u32", 32, false),
    ("u64", 64, false),
    ("s8", 8, true),
    ("s16", 16, true),
    ("s32", 32, true),
    ("s64", 64, true),
];

fn class(bits: u32) -> &'static str {
    match bits {
        8 => "b",
        16 => "rs",
        32 => "r",
        _ => "rd",
    }
}

fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The low bits of a word as an integer.
fn meaning(word: u64, bits: u32, signed: bool) -> i128 {
    let value = i128::from(word & u64::MAX >> (64 - bits));
    if signed && value >> (bits - 1) & 1 != 0 { value - (1 << bits) } else { value }
}

#[test]
fn integers_convert_by_meaning() {
    let mut random = Random(3);
    for (from, from_bits, from_signed) in INTEGERS {
        let cases: Vec<_> = (0..200).map(|_| vec![random.word(from_bits)]).collect();
        for (to, to_bits, to_signed) in INTEGERS {
            // all sufficiently wide source and destination registers
            for source in [8, 16, 32, 64].into_iter().filter(|bits| *bits >= from_bits) {
                for target in [8, 16, 32, 64].into_iter().filter(|bits| *bits >= to_bits) {
                    let text = format!("cvt.{to}.{from} %{}0, %{}1", class(target), class(source));
                    for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                        let value = meaning(case[0], from_bits, from_signed);
                        let wrapped = meaning(value as u64, to_bits, to_signed);
                        let expected = wrapped as u64 & u64::MAX >> (64 - target);
                        assert_eq!(out.first, expected, "{text} of {:#x}", case[0]);
                    }
                }
            }
            let ((low, high), (from_low, from_high)) = (range(to_bits, to_signed), range(from_bits, from_signed));
            if low <= from_low && high >= from_high {
                continue;
            }
            let text = format!("cvt.sat.{to}.{from} %{}0, %{}1", class(to_bits), class(from_bits));
            for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
                let expected =
                    meaning(case[0], from_bits, from_signed).clamp(low, high) as u64 & u64::MAX >> (64 - to_bits);
                assert_eq!(out.first, expected, "{text} of {:#x}", case[0]);
            }
        }
    }
}

#[test]
fn integers_extend_into_wider_registers() {
    table("cvt.s8.s32 %r0, %r1", &[([0x1ff], 0xffff_ffff), ([0x7f], 0x7f)]);
    table("cvt.u8.s32 %rd0, %r1", &[([0x1ff], 0xff)]);
    table("cvt.s16.s8 %rs0, %rs1", &[([0x0180], 0xff80)]);
    table("cvt.s64.s32 %rd0, %r1", &[([0x8000_0000], 0xffff_ffff_8000_0000)]);
    table("cvt.u64.u32 %rd0, -1", &[([], 0xffff_ffff)]);
    table("cvt.sat.s8.s32 %r0, %r1", &[([s32(-1000)], s32(-128)), ([1000], 127)]);
    table("cvt.sat.u8.s32 %rs0, %r1", &[([s32(-5)], 0), ([300], 255)]);
    table("cvt.sat.u32.s32 %r0, %r1", &[([s32(-5)], 0), ([5], 5)]);
    table("cvt.sat.s32.u32 %r0, %r1", &[([0xffff_ffff], 0x7fff_ffff)]);
}

#[test]
fn floats_round_to_integers() {
    // -2.5 -1.5 -0.5 0.5 1.5 2.5 2.75
    let inputs = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.75];
    for (rounding, expected) in [
        ("rni", [-2, -2, 0, 0, 2, 2, 3]),
        ("rzi", [-2, -1, 0, 0, 1, 2, 2]),
        ("rmi", [-3, -2, -1, 0, 1, 2, 2]),
        ("rpi", [-2, -1, 0, 1, 2, 3, 3]),
    ] {
        for (input, integer) in inputs.into_iter().zip(expected) {
            let float = integer as f64;
            let signed_zero = if integer == 0 && input < 0.0 { D_NEG_ZERO } else { d(float) };
            table(&format!("cvt.{rounding}.s32.f64 %r0, %fd1"), &[([d(input)], s32(integer))]);
            table(&format!("cvt.{rounding}.s32.f32 %r0, %f1"), &[([f(input as f32)], s32(integer))]);
            table(&format!("cvt.{rounding}.s64.f32 %rd0, %f1"), &[([f(input as f32)], s64(integer))]);
            table(&format!("cvt.{rounding}.s64.f64 %rd0, %fd1"), &[([d(input)], s64(integer))]);
            table(&format!("cvt.{rounding}.s8.f64 %r0, %fd1"), &[([d(input)], s32(integer))]);
            table(&format!("cvt.{rounding}.u32.f64 %r0, %fd1"), &[([d(input)], integer.max(0) as u64)]);
            table(&format!("cvt.{rounding}.f64.f64 %fd0, %fd1"), &[([d(input)], signed_zero)]);
            let signed_zero = if integer == 0 && input < 0.0 { NEG_ZERO } else { f(integer as f32) };
            table(&format!("cvt.{rounding}.f32.f32 %f0, %f1"), &[([f(input as f32)], signed_zero)]);
            table(&format!("cvt.{rounding}.ftz.f32.f32 %f0, %f1"), &[([f(input as f32)], signed_zero), ([1], 0)]);
        }
    }
    table("cvt.rpi.f32.f32 %f0, %f1", &[([1], f(1.0)), ([INF], INF), ([NAN], NAN), ([0x4b80_0001], 0x4b80_0001)]);
    table("cvt.rpi.ftz.s32.f32 %r0, %f1", &[([1], 0)]);
    table("cvt.rpi.s32.f32 %r0, %f1", &[([1], 1)]);
    table(
        "cvt.rmi.f64.f64 %fd0, %fd1",
        &[([1 | D_NEG_ZERO], d(-1.0)), ([D_INF], D_INF), ([D_INF | 5], D_INF | 1 << 51 | 5)],
    );
    table("cvt.rzi.sat.f32.f32 %f0, %f1", &[([f(1.75)], f(1.0)), ([f(-3.5)], 0)]);
}

#[test]
fn floats_clamp_to_the_integer_range() {
    for (ty, bits, signed) in INTEGERS {
        let (low, high) = range(bits, signed);
        let (low, high) = (low as u64 & u64::MAX >> (64 - bits), high as u64);
        let register = class(bits);
        let top = 1 << (bits - 1);
        table(
            &format!("cvt.rzi.{ty}.f32 %{register}0, %f1"),
            &[
                ([f(1e30)], high),
                ([f(-1e30)], low),
                ([INF], high),
                ([NEG_INF], low),
                ([NAN], if bits == 64 { top } else { 0 }),
                ([f(100.0)], 100),
            ],
        );
        table(
            &format!("cvt.rni.{ty}.f64 %{register}0, %fd1"),
            &[([d(1e300)], high), ([D_NEG_INF], low), ([D_NAN], top), ([d(100.5)], 100)],
        );
        table(
            &format!("cvt.rzi.{ty}.f16 %{register}0, %rs1"),
            &[([0x7c00], high), ([0xfc00], low), ([0x7e00], if bits == 64 { top } else { 0 }), ([0x5640], 100)],
        );
    }
    table("cvt.rzi.u32.f64 %r0, %fd1", &[([d(4_294_967_295.9)], 0xffff_ffff), ([d(-0.9)], 0)]);
    table(
        "cvt.rzi.s64.f64 %rd0, %fd1",
        &[([d(9.3e18)], i64::MAX as u64), ([d(-9_223_372_036_854_775_808.0)], 1 << 63)],
    );
    table("cvt.rzi.u64.f64 %rd0, %fd1", &[([d(1.8e19)], 18_000_000_000_000_000_000)]);
    table("cvt.rzi.s32.bf16 %r0, %rs1", &[([0xc2c8], s32(-100)), ([0x7f80], 0x7fff_ffff)]);
}

#[test]
fn integers_round_to_floats() {
    table(
        "cvt.rn.f32.s32 %f0, %r1",
        &[([s32(-7)], f(-7.0)), ([0], 0), ([16_777_217], f(16_777_216.0)), ([16_777_219], f(16_777_220.0))],
    );
    table("cvt.rz.f32.u32 %f0, %r1", &[([0xffff_ffff], 0x4f7f_ffff), ([16_777_219], f(16_777_218.0))]);
    table("cvt.rn.f32.u32 %f0, %r1", &[([0xffff_ffff], 0x4f80_0000)]);
    table("cvt.rp.f32.s32 %f0, %r1", &[([16_777_217], f(16_777_218.0)), ([s32(-16_777_217)], f(-16_777_216.0))]);
    table("cvt.rm.f32.s32 %f0, %r1", &[([16_777_217], f(16_777_216.0)), ([s32(-16_777_217)], f(-16_777_218.0))]);
    table("cvt.rn.f64.s32 %fd0, %r1", &[([s32(-7)], d(-7.0))]);
    table("cvt.rn.f64.u64 %fd0, %rd1", &[([u64::MAX], 0x43f0_0000_0000_0000), ([1 << 53 | 1], 0x4340_0000_0000_0000)]);
    table("cvt.rz.f64.u64 %fd0, %rd1", &[([u64::MAX], 0x43ef_ffff_ffff_ffff)]);
    table(
        "cvt.rp.f64.s64 %fd0, %rd1",
        &[([(1 << 53) + 1], 0x4340_0000_0000_0001), ([s64(i64::MIN)], 0xc3e0_0000_0000_0000)],
    );
    table("cvt.rm.f64.s64 %fd0, %rd1", &[([s64(-(1 << 53) - 1)], 0xc340_0000_0000_0001)]);
    table("cvt.rn.f32.s8 %f0, %r1", &[([0x1ff], f(-1.0))]);
    table("cvt.rn.f32.u16 %f0, %rs1", &[([0xffff], f(65_535.0))]);
    table(
        "cvt.rn.f16.s32 %rs0, %r1",
        &[([2049], 0x6800), ([2051], 0x6802), ([65_504], 0x7bff), ([65_519], 0x7bff), ([65_520], 0x7c00)],
    );
    table("cvt.rz.f16.u32 %rs0, %r1", &[([0xffff_ffff], 0x7bff)]);
    table("cvt.rn.bf16.s32 %rs0, %r1", &[([257], 0x4380), ([259], 0x4382)]);
    table("cvt.rn.sat.f32.s32 %f0, %r1", &[([5], f(1.0)), ([s32(-5)], 0), ([0], 0)]);
}

#[test]
fn floats_widen_exactly() {
    table(
        "cvt.f64.f32 %fd0, %f1",
        &[
            ([f(-1.5)], d(-1.5)),
            ([1], 0x36a0_0000_0000_0000),
            ([NEG_INF], D_NEG_INF),
            ([NEG_ZERO], D_NEG_ZERO),
            ([0xffc0_0001], 0xfff8_0000_2000_0000),
            // Recorded on an H200.
            ([0x7fc0_0123], 0x7ff8_0024_6000_0000),
            ([0xffc0_a456], 0xfff8_148a_c000_0000),
            ([SNAN], 0x7ff8_0000_2000_0000),
            ([0xffa8_0000], 0xfffd_0000_0000_0000),
        ],
    );
    table("cvt.ftz.f64.f32 %fd0, %f1", &[([1 | NEG_ZERO], D_NEG_ZERO)]);
    table("cvt.f32.f32 %f0, %f1", &[([1], 1), ([f(-2.5)], f(-2.5)), ([SNAN], NAN)]);
    table("cvt.ftz.f32.f32 %f0, %f1", &[([1 | NEG_ZERO], NEG_ZERO)]);
    table(
        "cvt.sat.f32.f32 %f0, %f1",
        &[([f(2.5)], f(1.0)), ([f(-2.5)], 0), ([NAN], 0), ([f(0.5)], f(0.5)), ([NEG_ZERO], 0)],
    );
    table("cvt.sat.f64.f64 %fd0, %fd1", &[([d(2.5)], d(1.0)), ([D_NAN], 0), ([d(0.5)], d(0.5))]);
    table("cvt.sat.f64.f32 %fd0, %f1", &[([f(2.5)], d(1.0)), ([NAN], 0), ([f(0.5)], d(0.5))]);
    table("cvt.f32.bf16 %f0, %rs1", &[([0x3fc0], f(1.5)), ([0x0001], 0x0001_0000), ([0xff80], NEG_INF)]);
    table("cvt.f64.bf16 %fd0, %rs1", &[([0x3fc0], d(1.5))]);
}

/// The value of an .f16, from its definition.
fn half(bits: u64) -> f64 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[test]
fn every_half_goes_there_and_back() {
    let cases: Vec<_> = (0..0x1_0000).map(|bits| vec![bits]).collect();
    let singles = load("cvt.f32.f16 %f0, %rs1").run(&cases);
    let doubles = load("cvt.f64.f16 %fd0, %rs1").run(&cases);
    for (bits, (single, double)) in singles.iter().zip(&doubles).enumerate() {
        let expected = half(bits as u64);
        if expected.is_nan() {
            assert_eq!(single.first, NAN);
            assert!(f64::from_bits(double.first).is_nan());
        } else {
            assert_eq!(single.first, f(expected as f32), "{bits:#x}");
            assert_eq!(double.first, d(expected), "{bits:#x}");
        }
    }
    for rounding in ["rn", "rz", "rm", "rp"] {
        let back = load(&format!("cvt.{rounding}.f16.f32 %rs0, %f1"));
        let inputs: Vec<_> = singles.iter().map(|single| vec![single.first]).collect();
        for (bits, out) in back.run(&inputs).iter().enumerate() {
            let expected = if half(bits as u64).is_nan() { 0x7fff } else { bits as u64 };
            assert_eq!(out.first, expected, "{rounding} {bits:#x}");
        }
    }
}

#[test]
fn halves_round() {
    // between two adjacent halves: below, at and above the midpoint
    for bits in 0..0x7bffu64 {
        let (below, above) = (half(bits), half(bits + 1));
        let middle = (below + above) / 2.0;
        let inputs = [middle, (below + middle) / 2.0, (middle + above) / 2.0].map(|value| vec![f(value as f32)]);
        let even = bits + (bits & 1);
        for (rounding, expected) in
            [("rn", [even, bits, bits + 1]), ("rz", [bits; 3]), ("rm", [bits; 3]), ("rp", [bits + 1; 3])]
        {
            if bits % 97 != 0 && rounding != "rn" {
                continue;
            }
            let text = format!("cvt.{rounding}.f16.f32 %rs0, %f1");
            for (out, expected) in load(&text).run(&inputs).iter().zip(expected) {
                assert_eq!(out.first, expected, "{text} above {bits:#x}");
            }
        }
    }
    table(
        "cvt.rn.f16.f32 %rs0, %f1",
        &[([f(65_519.99)], 0x7bff), ([f(65_520.0)], 0x7c00), ([f(-1e30)], 0xfc00), ([NAN], 0x7fff), ([1], 0)],
    );
    table("cvt.rp.f16.f32 %rs0, %f1", &[([1], 1), ([1 | NEG_ZERO], 0x8000), ([f(-1e30)], 0xfbff)]);
    table("cvt.rp.ftz.f16.f32 %rs0, %f1", &[([1], 0)]);
    table(
        "cvt.rn.f16.f64 %rs0, %fd1",
        &[([d(1.5)], 0x3e00), ([d(1.0 + 1.0 / 2048.0)], 0x3c00), ([0x3ff0_0200_0000_0001], 0x3c01)],
    );
    table("cvt.rn.relu.f16.f32 %rs0, %f1", &[([f(-1.0)], 0), ([NEG_ZERO], 0), ([f(1.0)], 0x3c00), ([NAN], 0x7fff)]);
    table("cvt.rn.satfinite.f16.f32 %rs0, %f1", &[([f(1e30)], 0x7bff), ([NEG_INF], 0xfbff), ([NAN], 0x7fff)]);
    table("cvt.rn.sat.f16.f32 %rs0, %f1", &[([f(3.0)], 0x3c00), ([f(-3.0)], 0), ([NAN], 0)]);
    table(
        "cvt.rn.bf16.f32 %rs0, %f1",
        &[
            ([0x3f80_8000], 0x3f80),
            ([0x3f81_8000], 0x3f82),
            ([0x3f80_8001], 0x3f81),
            ([0x7f7f_ffff], 0x7f80),
            ([NAN], 0x7fff),
        ],
    );
    table("cvt.rz.bf16.f32 %rs0, %f1", &[([0x3f80_ffff], 0x3f80), ([0x7f7f_ffff], 0x7f7f)]);
    table("cvt.rn.bf16.f16 %rs0, %rs1", &[([0x3c01], 0x3f80), ([0x4248], 0x4049)]);
    table("cvt.rn.f16x2.f32 %r0, %f1, %f2", &[([f(1.0), f(-2.0)], 0x3c00_c000)]);
    table("cvt.rz.bf16x2.f32 %r0, %f1, %f2", &[([0x3f80_ffff, f(-2.0)], 0x3f80_c000)]);
    table("cvt.rn.relu.f16x2.f32 %r0, %f1, %f2", &[([f(-1.0), f(2.0)], 0x0000_4000)]);
}

#[test]
fn f64_narrows_in_every_direction() {
    table("cvt.rn.f32.f64 %f0, %fd1", &[([d(0.1)], 0x3dcc_cccd), ([d(1e300)], INF), ([d(-1e-300)], NEG_ZERO)]);
    // Recorded on an H200: quiet, with the sign and the upper payload bits.
    for rounding in ["rn", "rz"] {
        table(
            &format!("cvt.{rounding}.f32.f64 %f0, %fd1"),
            &[
                ([D_NAN], 0xffc0_0000),
                ([0x7ff8_0000_0000_0123], 0x7fc0_0000),
                ([0xfff8_000a_bc00_0456], 0xffc0_0055),
                ([0x7ff0_0000_0000_0001], 0x7fc0_0000),
                ([0xfff4_5000_0000_0000], 0xffe2_8000),
            ],
        );
    }
    table("cvt.rz.f32.f64 %f0, %fd1", &[([d(0.1)], 0x3dcc_cccc), ([d(1e300)], 0x7f7f_ffff)]);
    table("cvt.rm.f32.f64 %f0, %fd1", &[([d(-0.1)], 0xbdcc_cccd), ([d(-1e-300)], 0x8000_0001), ([d(-1e300)], NEG_INF)]);
    table("cvt.rp.f32.f64 %f0, %fd1", &[([d(0.1)], 0x3dcc_cccd), ([d(1e-300)], 1), ([d(-1e300)], 0xff7f_ffff)]);
    table("cvt.rn.ftz.f32.f64 %f0, %fd1", &[([d(1e-40)], 0)]);
    table("cvt.rn.sat.f32.f64 %f0, %fd1", &[([d(1.5)], f(1.0)), ([D_NAN], 0)]);
    let mut random = Random(4);
    for rounding in ["rn", "rz", "rm", "rp"] {
        let cases: Vec<_> = (0..4_000)
            .map(|_| {
                // exponents around the range of .f32, including subnormal results and overflow
                let exponent = 1023 - 155 + random.below(300);
                vec![random.next() & (D_NEG_ZERO | 0xf_ffff_ffff_ffff) | exponent << 52]
            })
            .collect();
        let text = format!("cvt.{rounding}.f32.f64 %f0, %fd1");
        for (case, out) in cases.iter().zip(load(&text).run(&cases)) {
            let (exact, found) = (f64::from_bits(case[0]), f32::from_bits(out.first as u32));
            let wide = f64::from(found);
            let holds = match rounding {
                "rm" => wide <= exact && (f64::from(found.next_up()) > exact || found == f32::INFINITY),
                "rp" => wide >= exact && (f64::from(found.next_down()) < exact || found == f32::NEG_INFINITY),
                "rz" => {
                    wide.abs() <= exact.abs()
                        && f64::from(f32::from_bits((out.first as u32 & 0x7fff_ffff) + 1)).abs() > exact.abs()
                }
                _ => found == exact as f32,
            };
            assert!(holds, "{text} of {exact:e}: {found:e}");
        }
    }
}
