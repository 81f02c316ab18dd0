//! Every atomic operation in every width, on global and shared memory: old value, new value, edges.

use crate::device::*;

/// One thread runs `atom` once on a word with the value `old`; returns (result, new word).
fn once(op: &str, bits: u32, old: u64, operands: &[u64], shared: bool) -> (u64, u64) {
    let mut device = Device::new();
    let word = device.upload(&[old]);
    let out = device.zeros(8);
    let reg = match bits {
        16 => "%h",
        32 => "%r",
        _ => "%rd",
    };
    let mut body = String::from("ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.global.u64 %rd3, [%rd1];\n");
    let mut list = String::new();
    for (index, value) in operands.iter().enumerate() {
        body += &format!("mov.b64 %rd{}, {value};\n", 10 + index);
        body += &match bits {
            16 => format!("cvt.u16.u64 %h{}, %rd{};\n", 10 + index, 10 + index),
            32 => format!("cvt.u32.u64 %r{}, %rd{};\n", 10 + index, 10 + index),
            _ => String::new(),
        };
        list += &format!(", {reg}{}", 10 + index);
    }
    let (space, base) = if shared { ("shared", "%rd25") } else { ("global", "%rd1") };
    if shared {
        body += ".shared .align 8 .b8 s[8]; mov.u64 %rd25, s; st.shared.u64 [%rd25], %rd3;\n";
    }
    body += &format!("{} {reg}7, [{base}]{list};\n", op.replace("SPACE", space));
    body += &format!("st.global.b{bits} [%rd2], {reg}7;\n");
    if shared {
        body += "ld.shared.u64 %rd3, [%rd25]; st.global.u64 [%rd1], %rd3;";
    }
    expect_ok(device.body(1, 1, &[word, out], &body));
    let mask = u64::MAX >> (64 - bits);
    (device.download::<u64>(out, 1)[0] & mask, device.download::<u64>(word, 1)[0])
}

/// Checks (old, operand) → new in both spaces; bytes beyond the width must not change.
#[track_caller]
fn table(op: &str, ty: &str, bits: u32, rows: &[(u64, u64, u64)]) {
    let mask = u64::MAX >> (64 - bits);
    let beyond = 0x5A5A_5A5A_5A5A_5A5A & !mask;
    for &(old, operand, new) in rows {
        for shared in [false, true] {
            let text = format!("atom.SPACE.{op}.{ty}");
            let (returned, stored) = once(&text, bits, old & mask | beyond, &[operand], shared);
            assert_eq!(returned, old & mask, "{op}.{ty} of {old:#x} and {operand:#x} returns the old value");
            assert_eq!(stored, new & mask | beyond, "{op}.{ty} of {old:#x} and {operand:#x}, shared {shared}");
        }
    }
}

const I32_MIN: u64 = 0x8000_0000;
const I32_MAX: u64 = 0x7FFF_FFFF;
const I64_MIN: u64 = 1 << 63;
const I64_MAX: u64 = u64::MAX >> 1;
const M1: u64 = u64::MAX;

#[test]
fn add_wraps() {
    for ty in ["u32", "s32"] {
        table("add", ty, 32, &[(1, 2, 3), (0xFFFF_FFFF, 1, 0), (I32_MAX, 1, I32_MIN), (5, M1, 4)]);
    }
    for ty in ["u64", "s64"] {
        table("add", ty, 64, &[(1, 2, 3), (M1, 1, 0), (I64_MAX, 1, I64_MIN), (0xFFFF_FFFF, 1, 1 << 32)]);
    }
}

#[test]
fn min_and_max_follow_the_type() {
    table("min", "u32", 32, &[(I32_MIN, I32_MAX, I32_MAX), (0, M1, 0), (M1, 0, 0), (4, 4, 4)]);
    table("max", "u32", 32, &[(I32_MIN, I32_MAX, I32_MIN), (0, M1, M1), (M1, 0, M1)]);
    table("min", "s32", 32, &[(I32_MIN, I32_MAX, I32_MIN), (0, M1, M1), (M1, 0, M1)]);
    table("max", "s32", 32, &[(I32_MIN, I32_MAX, I32_MAX), (0, M1, 0), (M1, 0, 0)]);
    table("min", "u64", 64, &[(I64_MIN, I64_MAX, I64_MAX), (0, M1, 0), (M1, 1 << 32, 1 << 32)]);
    table("max", "u64", 64, &[(I64_MIN, I64_MAX, I64_MIN), (0, M1, M1), (1 << 32, 5, 1 << 32)]);
    table("min", "s64", 64, &[(I64_MIN, I64_MAX, I64_MIN), (0, M1, M1), (1 << 32, M1, M1)]);
    table("max", "s64", 64, &[(I64_MIN, I64_MAX, I64_MAX), (0, M1, 0), (M1, I64_MIN, M1)]);
}

#[test]
fn bits_combine() {
    for (ty, bits) in [("b32", 32), ("b64", 64)] {
        table("and", ty, bits, &[(0xF0F0_F0F0_F0F0_F0F0, 0xFF00_FF00_FF00_FF00, 0xF000_F000_F000_F000)]);
        table("or", ty, bits, &[(0xF0F0_F0F0_F0F0_F0F0, 0xFF00_FF00_FF00_FF00, 0xFFF0_FFF0_FFF0_FFF0)]);
        table("xor", ty, bits, &[(0xF0F0_F0F0_F0F0_F0F0, 0xFF00_FF00_FF00_FF00, 0x0FF0_0FF0_0FF0_0FF0)]);
        table("exch", ty, bits, &[(1, M1, M1), (M1, 0x1234_5678_9ABC_DEF0, 0x1234_5678_9ABC_DEF0)]);
    }
}

#[test]
fn inc_and_dec_wrap_at_their_operand() {
    // inc: old >= b ? 0 : old + 1.  dec: old == 0 or old > b ? b : old - 1.
    table(
        "inc",
        "u32",
        32,
        &[(0, 3, 1), (2, 3, 3), (3, 3, 0), (4, 3, 0), (0, 0, 0), (0xFFFF_FFFE, 0xFFFF_FFFF, 0xFFFF_FFFF)],
    );
    table(
        "dec",
        "u32",
        32,
        &[(0, 3, 3), (1, 3, 0), (3, 3, 2), (4, 3, 3), (0, 0, 0), (0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFE)],
    );
}

#[test]
fn compare_and_swap_stores_only_on_equality() {
    for (ty, bits) in [("b16", 16), ("b32", 32), ("b64", 64)] {
        let mask = u64::MAX >> (64 - bits);
        let beyond = 0x7777_7777_7777_7777 & !mask;
        for shared in [false, true] {
            let op = format!("atom.SPACE.cas.{ty}");
            let run = |old: u64, expected: u64, new: u64| {
                once(&op, bits, old & mask | beyond, &[expected & mask, new & mask], shared)
            };
            assert_eq!(run(5, 5, M1), (5, mask | beyond));
            assert_eq!(run(5, 6, M1), (5, 5 | beyond));
            assert_eq!(run(M1, M1, 0), (mask, beyond));
        }
    }
}

fn f32s(a: f32, b: f32, c: f32) -> (u64, u64, u64) {
    (u64::from(a.to_bits()), u64::from(b.to_bits()), u64::from(c.to_bits()))
}

fn add_floats(ty: &str, bits: u32, old: u64, operand: u64, shared: bool) -> u64 {
    let op = format!("atom.SPACE.add.{ty}");
    // Float atomics take float registers; a move converts the bits.
    let (reg, mov) = if bits == 32 { ("%f", "mov.b32") } else { ("%fd", "mov.b64") };
    let mut device = Device::new();
    let word = device.upload(&[old]);
    let (space, base) = if shared { ("shared", "%rd5") } else { ("global", "%rd1") };
    let source = if bits == 32 { "%r10" } else { "%rd10" };
    let body = format!(
        "ld.param.u64 %rd1, [p0]; ld.global.u64 %rd3, [%rd1]; .shared .align 8 .b8 s[8]; mov.u64 %rd5, s; st.shared.u64 [%rd5], %rd3;
 mov.b64 %rd10, {operand}; cvt.u32.u64 %r10, %rd10; {mov} {reg}1, {source};
 {} {reg}2, [{base}], {reg}1;
 @{shared_guard}%p1 ld.shared.u64 %rd3, [%rd5]; @{shared_guard}%p1 st.global.u64 [%rd1], %rd3;",
        op.replace("SPACE", space),
        shared_guard = if shared { "!" } else { "" },
    );
    expect_ok(device.body(1, 1, &[word], &body));
    device.download::<u64>(word, 1)[0] & (u64::MAX >> (64 - bits))
}

#[test]
fn float_sums_round_to_nearest_even() {
    for shared in [false, true] {
        for (old, operand, sum) in [
            f32s(1.5, 2.25, 3.75),
            f32s(16_777_216.0, 1.0, 16_777_216.0),
            f32s(16_777_216.0, 3.0, 16_777_220.0),
            f32s(f32::MAX, f32::MAX, f32::INFINITY),
            f32s(0.0, -0.0, 0.0),
            f32s(-0.0, -0.0, -0.0),
            (0x7F80_0000, 0xFF80_0000, 0x7FFF_FFFF),
            (0x7FC1_2345, 0x3F80_0000, 0x7FFF_FFFF),
        ] {
            assert_eq!(add_floats("f32", 32, old, operand, shared), sum, "{old:#x} + {operand:#x}");
        }
        let bits = |value: f64| value.to_bits();
        for (old, operand, sum) in [
            (bits(1.5), bits(2.25), bits(3.75)),
            (bits(9_007_199_254_740_992.0), bits(1.0), bits(9_007_199_254_740_992.0)),
            (bits(f64::MAX), bits(f64::MAX), bits(f64::INFINITY)),
            (bits(5e-324), bits(5e-324), bits(1e-323)),
        ] {
            assert_eq!(add_floats("f64", 64, old, operand, shared), sum);
        }
    }
}

#[test]
fn f64_sums_keep_a_nan() {
    // Recorded on an H200; the manual does not specify the NaN.
    let (one, inf, minus_inf) = (1.0f64.to_bits(), f64::INFINITY.to_bits(), f64::NEG_INFINITY.to_bits());
    let (plus, minus) = (0x7ff8_0000_0000_0123, 0xfff8_000a_bc00_0456);
    let (signalling, quiet) = (0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0001);
    let made = 0xfff8_0000_0000_0000;
    for (old, operand, global, shared) in [
        (inf, minus_inf, made, made),
        (one, plus, plus, plus),
        (minus, one, minus, minus),
        (plus, minus, minus, plus),
        (minus, plus, plus, minus),
        (one, signalling, signalling, quiet),
        (signalling, inf, signalling, quiet),
    ] {
        assert_eq!(add_floats("f64", 64, old, operand, false), global, "{old:#x} + {operand:#x}, global");
        assert_eq!(add_floats("f64", 64, old, operand, true), shared, "{old:#x} + {operand:#x}, shared");
    }
}

#[test]
fn subnormal_f32_sums_vanish_in_global_memory_only() {
    // The manual: `atom.add.f32` flushes subnormal inputs and results on global memory, but not on shared memory.
    assert_eq!(add_floats("f32", 32, 1, 1, false), 0);
    assert_eq!(add_floats("f32", 32, 1, 1, true), 2);
    assert_eq!(add_floats("f32", 32, 0x8000_0001, 0x8000_0001, false), 0x8000_0000);
    assert_eq!(add_floats("f32", 32, 0x0080_0001, 0x8080_0000, false), 0);
    assert_eq!(add_floats("f32", 32, 0x0080_0001, 0x8080_0000, true), 1);
}

#[test]
fn half_sums() {
    // 1.0 + 2^-11 is a tie and rounds to even; 2^-24 is the smallest subnormal; 65504 + 16 is a tie that overflows.
    table(
        "add.noftz",
        "f16",
        16,
        &[
            (0x3C00, 0x4000, 0x4200),
            (0x3C00, 0x1000, 0x3C00),
            (0x3C01, 0x1000, 0x3C02),
            (1, 1, 2),
            (0x7BFF, 0x4C00, 0x7C00),
            (0x7BFF, 0x4BFF, 0x7BFF),
            (0xBC00, 0x3C00, 0),
        ],
    );
    table("add.noftz", "f16x2", 32, &[(0x3C00_4000, 0x4000_4000, 0x4200_4400)]);
}

#[test]
fn a_red_gives_the_same_and_returns_nothing() {
    let mut device = Device::new();
    let words = device.upload(&[10_u32, 10, 10, 10, 0xF, 0xF0, 0xFF, 0]);
    let wide = device.upload(&[10_u64, 1 << 40]);
    expect_ok(device.body(
        2,
        64,
        &[words, wide],
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x;
 red.global.add.u32 [%rd1], 1; red.global.min.u32 [%rd1+4], %r1; red.global.max.s32 [%rd1+8], %r1;
 red.relaxed.sys.global.inc.u32 [%rd1+12], 200; red.global.and.b32 [%rd1+16], 6; red.global.or.b32 [%rd1+20], %r1;
 red.global.xor.b32 [%rd1+24], %r1; red.global.add.f32 [%rd1+28], 0f3F000000;
 red.global.add.u64 [%rd2], 3; red.add.s64 [%rd2+8], -1;",
    ));
    let got = device.download::<u32>(words, 8);
    assert_eq!(got, [10 + 128, 0, 63, 10 + 128, 6, 0xFF, 0xFF, 64.0_f32.to_bits()]);
    assert_eq!(device.download::<u64>(wide, 2), [10 + 384, (1 << 40) - 128]);
}

#[test]
fn lanes_of_one_atomic_each_get_another_old_value() {
    let mut device = Device::new();
    let (counter, out) = (device.zeros(4), device.zeros(4 * 96));
    expect_ok(device.body(
        1,
        96,
        &[counter, out],
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; atom.add.u32 %r1, [%rd1], 1;
 mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], 1;",
    ));
    assert_eq!(device.download::<u32>(out, 96), [1; 96]);
}
