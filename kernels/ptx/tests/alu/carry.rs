//! Carry chains, compared with u128.

use crate::harness::*;

fn step(text: &str, inputs: &[u64], carry: u64) -> (u64, u64) {
    let out = load(text).run_with_carry(&[inputs.to_vec()], &[carry])[0];
    (out.first, out.carry)
}

#[test]
fn addition_carries() {
    assert_eq!(step("add.cc.u32 %r0, %r1, %r2", &[0xffff_ffff, 1], 0), (0, 1));
    assert_eq!(step("add.cc.u32 %r0, %r1, %r2", &[1, 2], 1), (3, 0), "add.cc does not read the carry");
    assert_eq!(step("add.cc.s32 %r0, %r1, %r2", &[0x7fff_ffff, 1], 0), (0x8000_0000, 0), "the carry is unsigned");
    assert_eq!(step("addc.u32 %r0, %r1, %r2", &[1, 2], 1), (4, 1), "addc leaves the carry");
    assert_eq!(step("addc.u32 %r0, 0, 0", &[], 1), (1, 1));
    assert_eq!(step("addc.cc.u32 %r0, %r1, %r2", &[0xffff_ffff, 0], 1), (0, 1));
    assert_eq!(step("addc.cc.u32 %r0, %r1, %r2", &[0xffff_ffff, 0xffff_ffff], 1), (0xffff_ffff, 1));
    assert_eq!(step("addc.cc.u32 %r0, %r1, %r2", &[1, 2], 1), (4, 0));
    assert_eq!(step("add.cc.u64 %rd0, %rd1, %rd2", &[u64::MAX, 1], 0), (0, 1));
    assert_eq!(step("addc.cc.s64 %rd0, %rd1, %rd2", &[u64::MAX, 0], 1), (0, 1));
}

#[test]
fn subtraction_borrows() {
    assert_eq!(step("sub.cc.u32 %r0, %r1, %r2", &[0, 1], 0), (0xffff_ffff, 1));
    assert_eq!(step("sub.cc.u32 %r0, %r1, %r2", &[5, 3], 1), (2, 0));
    assert_eq!(step("subc.u32 %r0, %r1, %r2", &[5, 3], 1), (1, 1));
    assert_eq!(step("subc.cc.u32 %r0, %r1, %r2", &[3, 3], 1), (0xffff_ffff, 1));
    assert_eq!(step("subc.cc.u32 %r0, %r1, %r2", &[0, 0xffff_ffff], 1), (0, 1));
    assert_eq!(step("sub.cc.s64 %rd0, %rd1, %rd2", &[0, 1], 0), (u64::MAX, 1));
    assert_eq!(step("subc.cc.u64 %rd0, %rd1, %rd2", &[1, 0], 1), (0, 0));
}

#[test]
fn products_carry_their_addition() {
    assert_eq!(step("mad.lo.cc.u32 %r0, %r1, %r2, %r3", &[0xffff_ffff, 2, 2], 0), (0, 1));
    assert_eq!(step("mad.hi.cc.u32 %r0, %r1, %r2, %r3", &[0xffff_ffff, 0xffff_ffff, 2], 0), (0, 1));
    assert_eq!(step("madc.lo.u32 %r0, %r1, %r2, %r3", &[3, 4, 5], 1), (18, 1));
    assert_eq!(step("madc.lo.cc.u32 %r0, %r1, %r2, %r3", &[3, 4, 0xffff_fff3], 1), (0, 1));
    assert_eq!(step("madc.hi.u32 %r0, %r1, %r2, 0", &[1 << 31, 2], 1), (2, 1));
    assert_eq!(step("madc.hi.cc.s32 %r0, %r1, %r2, %r3", &[s32(-1), 1, 0], 1), (0, 1));
    assert_eq!(step("madc.hi.cc.u64 %rd0, %rd1, %rd2, %rd3", &[u64::MAX, u64::MAX, 1], 1), (0, 1));
    assert_eq!(step("mad.lo.cc.u64 %rd0, %rd1, %rd2, %rd3", &[1 << 40, 1 << 30, 7], 0), (7, 0));
}

/// Example from the manual: [r3, r2, r1, r0] = [r5, r4] · [r7, r6], in 32-bit steps.
#[test]
fn a_chain_multiplies_64_bits_by_64() {
    let mut random = Random(7);
    for _ in 0..2_000 {
        let (x, y) = (random.word(64), random.word(64));
        let (r5, r4, r7, r6) = (x >> 32, x & 0xffff_ffff, y >> 32, y & 0xffff_ffff);
        let mut carry = 0;
        let mut run = |text: &str, a: u64, b: u64, c: u64| {
            let (value, flag) = step(text, &[a, b, c], carry);
            carry = flag;
            value
        };
        let r0 = run("mul.lo.u32 %r0, %r1, %r2", r4, r6, 0);
        let r1 = run("mul.hi.u32 %r0, %r1, %r2", r4, r6, 0);
        let r1 = run("mad.lo.cc.u32 %r0, %r1, %r2, %r3", r5, r6, r1);
        let r2 = run("madc.hi.u32 %r0, %r1, %r2, 0", r5, r6, 0);
        let r1 = run("mad.lo.cc.u32 %r0, %r1, %r2, %r3", r4, r7, r1);
        let r2 = run("madc.hi.cc.u32 %r0, %r1, %r2, %r3", r4, r7, r2);
        let r3 = run("addc.u32 %r0, 0, 0", 0, 0, 0);
        let r2 = run("mad.lo.cc.u32 %r0, %r1, %r2, %r3", r5, r7, r2);
        let r3 = run("madc.hi.u32 %r0, %r1, %r2, %r3", r5, r7, r3);
        let product = u128::from(x) * u128::from(y);
        let found = [r3, r2, r1, r0].iter().fold(0u128, |all, word| all << 32 | u128::from(*word));
        assert_eq!(found, product, "{x:#x} · {y:#x}");
    }
}

#[test]
fn carry_stays_in_lanes_that_are_off() {
    // The harness also runs each case with half of the lanes off, and checks that their rows do not change.
    let loaded = load("add.cc.u32 %r0, %r1, %r2");
    let cases: Vec<_> = (0..32).map(|lane| vec![0xffff_ffff, lane % 2]).collect();
    let carries = [1; 32];
    for (lane, out) in loaded.run_with_carry(&cases, &carries).iter().enumerate() {
        assert_eq!(out.carry, lane as u64 % 2);
    }
}
