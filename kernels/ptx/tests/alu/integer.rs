//! Integer arithmetic, from the manual's definitions.

use crate::harness::*;

const MIN32: u64 = 0x8000_0000;
const MAX32: u64 = 0x7fff_ffff;
const MIN64: u64 = 1 << 63;

#[test]
fn add_wraps_in_every_width() {
    table("add.u16 %rs0, %rs1, %rs2", &[([0xffff, 1], 0), ([0x1234, 0x4321], 0x5555)]);
    table("add.s16 %rs0, %rs1, %rs2", &[([0x7fff, 1], 0x8000), ([s16(-5), 3], s16(-2))]);
    table("add.u32 %r0, %r1, %r2", &[([0xffff_ffff, 1], 0), ([2, 3], 5)]);
    table("add.s32 %r0, %r1, -7", &[([3], s32(-4)), ([MIN32], 0x7fff_fff9)]);
    table("add.u64 %rd0, %rd1, %rd2", &[([u64::MAX, 2], 1), ([1 << 32, 1 << 32], 1 << 33)]);
    table("add.s64 %rd0, %rd1, -1", &[([0], u64::MAX), ([MIN64], MIN64 - 1)]);
}

#[test]
fn add_and_sub_saturate_as_s32() {
    table(
        "add.sat.s32 %r0, %r1, %r2",
        &[([MAX32, 1], MAX32), ([MIN32, s32(-1)], MIN32), ([MIN32, MAX32], s32(-1)), ([5, s32(-7)], s32(-2))],
    );
    table(
        "sub.sat.s32 %r0, %r1, %r2",
        &[([MIN32, 1], MIN32), ([MAX32, s32(-1)], MAX32), ([0, MIN32], MAX32), ([5, 7], s32(-2))],
    );
}

#[test]
fn sub_wraps() {
    table("sub.u16 %rs0, %rs1, %rs2", &[([0, 1], 0xffff)]);
    table("sub.s32 %r0, %r1, %r2", &[([MIN32, 1], MAX32), ([5, 9], s32(-4))]);
    table("sub.u64 %rd0, %rd1, %rd2", &[([0, 1], u64::MAX), ([10, 3], 7)]);
    table("sub.s64 %rd0, 0, %rd1", &[([5], s64(-5)), ([MIN64], MIN64)]);
}

#[test]
fn mul_keeps_low_high_or_both_halves() {
    table("mul.lo.u16 %rs0, %rs1, %rs2", &[([0x100, 0x100], 0), ([300, 300], 90_000 - 65_536)]);
    table("mul.lo.s32 %r0, %r1, %r2", &[([s32(-3), 7], s32(-21)), ([0x1_0000, 0x1_0000], 0)]);
    table("mul.lo.u64 %rd0, %rd1, %rd2", &[([1 << 33, 1 << 32], 0), ([u64::MAX, u64::MAX], 1)]);
    table("mul.hi.u16 %rs0, %rs1, %rs2", &[([0xffff, 0xffff], 0xfffe)]);
    table("mul.hi.s16 %rs0, %rs1, %rs2", &[([0x8000, 0x8000], 0x4000), ([s16(-1), 1], 0xffff)]);
    table("mul.hi.u32 %r0, %r1, %r2", &[([0xffff_ffff, 0xffff_ffff], 0xffff_fffe), ([1 << 31, 2], 1)]);
    table(
        "mul.hi.s32 %r0, %r1, %r2",
        &[([MIN32, MIN32], 0x4000_0000), ([s32(-1), s32(-1)], 0), ([s32(-1), 1], s32(-1))],
    );
    table("mul.hi.u64 %rd0, %rd1, %rd2", &[([u64::MAX, u64::MAX], u64::MAX - 1), ([MIN64, 2], 1)]);
    table("mul.hi.s64 %rd0, %rd1, %rd2", &[([MIN64, MIN64], 1 << 62), ([u64::MAX, 1], u64::MAX)]);
    table("mul.wide.u16 %r0, %rs1, %rs2", &[([0xffff, 0xffff], 0xfffe_0001)]);
    table("mul.wide.s16 %r0, %rs1, %rs2", &[([0x8000, 0x8000], 0x4000_0000), ([s16(-1), 5], s32(-5))]);
    table("mul.wide.u32 %rd0, %r1, %r2", &[([0xffff_ffff, 0xffff_ffff], 0xffff_fffe_0000_0001)]);
    table("mul.wide.s32 %rd0, %r1, 8", &[([s32(-1)], s64(-8)), ([MIN32], s64(-(1 << 34)))]);
}

#[test]
fn mad_adds_to_the_chosen_part() {
    table("mad.lo.s32 %r0, %r1, %r2, %r3", &[([3, 4, 5], 17), ([s32(-3), 4, 5], s32(-7)), ([1 << 31, 2, 1], 1)]);
    table("mad.lo.u16 %rs0, %rs1, %rs2, %rs3", &[([0x100, 0x100, 7], 7)]);
    table("mad.lo.u64 %rd0, %rd1, %rd2, %rd3", &[([1 << 40, 1 << 30, 9], 9)]);
    table("mad.hi.u32 %r0, %r1, %r2, %r3", &[([0xffff_ffff, 0xffff_ffff, 3], 1)]);
    table("mad.hi.s32 %r0, %r1, %r2, %r3", &[([MIN32, 2, 0], s32(-1)), ([MIN32, MIN32, 1], 0x4000_0001)]);
    table("mad.hi.s64 %rd0, %rd1, %rd2, %rd3", &[([MIN64, 2, 1], 0)]);
    table(
        "mad.hi.sat.s32 %r0, %r1, %r2, %r3",
        &[([MIN32, MIN32, MAX32], MAX32), ([MIN32, MAX32, MIN32], MIN32), ([s32(-1), 1, 5], 4)],
    );
    table("mad.wide.u16 %r0, %rs1, %rs2, %r3", &[([0xffff, 0xffff, 0xffff_ffff], 0xfffe_0000)]);
    table("mad.wide.s16 %r0, %rs1, %rs2, %r3", &[([s16(-2), 3, 10], 4)]);
    table("mad.wide.u32 %rd0, %r1, %r2, %rd3", &[([0xffff_ffff, 0xffff_ffff, u64::MAX], 0xffff_fffe_0000_0000)]);
    table(
        "mad.wide.s32 %rd0, %r1, %r2, %rd3",
        &[([s32(-1), 1 << 30, 1 << 30], 0), ([MIN32, 4, 1], s64(1 - (1 << 33)))],
    );
}

#[test]
fn mul24_reads_24_bits() {
    table("mul24.lo.u32 %r0, %r1, %r2", &[([0xff00_0003, 5], 15), ([0x00ff_ffff, 0x00ff_ffff], 0xfe00_0001)]);
    table("mul24.hi.u32 %r0, %r1, %r2", &[([0x00ff_ffff, 0x00ff_ffff], 0xffff_fe00), ([1 << 16, 1 << 16], 1 << 16)]);
    // bit 23 is the sign of a signed factor
    table("mul24.lo.s32 %r0, %r1, %r2", &[([0x00ff_ffff, 5], s32(-5)), ([0x0080_0000, 1], s32(-(1 << 23)))]);
    table("mul24.hi.s32 %r0, %r1, %r2", &[([0x00ff_ffff, 1], s32(-1)), ([0x0080_0000, 0x0080_0000], 1 << 30)]);
    table("mad24.lo.u32 %r0, %r1, %r2, %r3", &[([3, 5, 0xffff_ffff], 14)]);
    table("mad24.hi.u32 %r0, %r1, %r2, %r3", &[([1 << 16, 1 << 16, 1], (1 << 16) + 1)]);
    table("mad24.lo.s32 %r0, %r1, %r2, %r3", &[([0x00ff_ffff, 5, 3], s32(-2))]);
    table("mad24.hi.s32 %r0, %r1, %r2, %r3", &[([0x0080_0000, 0x0080_0000, MAX32], s32((1i64 << 30) + (1 << 31) - 1))]);
    table("mad24.hi.sat.s32 %r0, %r1, %r2, %r3", &[([0x0080_0000, 0x0080_0000, MAX32], MAX32), ([2, 3, 4], 4)]);
}

#[test]
fn sad_adds_the_distance() {
    table("sad.u16 %rs0, %rs1, %rs2, %rs3", &[([3, 0xffff, 10], 0xfffc + 10 - 0x1_0000)]);
    table("sad.u32 %r0, %r1, %r2, %r3", &[([3, 0xffff_ffff, 0], 0xffff_fffc), ([9, 4, 1], 6)]);
    table("sad.s32 %r0, %r1, %r2, %r3", &[([3, s32(-1), 0], 4), ([MIN32, MAX32, 0], 0xffff_ffff)]);
    table("sad.s64 %rd0, %rd1, %rd2, %rd3", &[([s64(-5), 5, 1], 11)]);
    table("sad.u64 %rd0, %rd1, %rd2, %rd3", &[([s64(-5), 5, 0], s64(-10))]);
    table("sad.s16 %rs0, %rs1, %rs2, %rs3", &[([s16(-5), 5, 1], 11)]);
}

#[test]
fn division_truncates() {
    table("div.u16 %rs0, %rs1, %rs2", &[([0xffff, 2], 0x7fff)]);
    table("div.s16 %rs0, %rs1, %rs2", &[([s16(-7), 2], s16(-3))]);
    table("div.u32 %r0, %r1, %r2", &[([0xffff_ffff, 10], 429_496_729), ([7, 8], 0)]);
    table("div.s32 %r0, %r1, %r2", &[([s32(-7), 2], s32(-3)), ([7, s32(-2)], s32(-3)), ([MIN32, 1], MIN32)]);
    table("div.u64 %rd0, %rd1, %rd2", &[([u64::MAX, 3], 0x5555_5555_5555_5555)]);
    table("div.s64 %rd0, %rd1, %rd2", &[([s64(-9), 4], s64(-2))]);
    table("rem.u16 %rs0, %rs1, %rs2", &[([0xffff, 10], 5)]);
    table("rem.u32 %r0, %r1, %r2", &[([0xffff_ffff, 10], 5)]);
    table("rem.s32 %r0, %r1, 8", &[([s32(-7)], s32(-7)), ([15], 7), ([s32(-16)], 0)]);
    table("rem.s16 %rs0, %rs1, %rs2", &[([7, s16(-4)], 3)]);
    table("rem.u64 %rd0, %rd1, %rd2", &[([u64::MAX, 1 << 32], 0xffff_ffff)]);
    table("rem.s64 %rd0, %rd1, %rd2", &[([s64(-9), 4], s64(-1))]);
}

#[test]
fn division_without_an_answer_is_total() {
    // The manual leaves division by zero unspecified; these are the results documented in `alu::integer`.
    table("div.u32 %r0, %r1, 0", &[([5], 0xffff_ffff), ([0], 0xffff_ffff)]);
    table("div.s64 %rd0, %rd1, 0", &[([5], u64::MAX)]);
    table("rem.u32 %r0, %r1, 0", &[([5], 0xffff_ffff)]);
    table("div.s32 %r0, %r1, -1", &[([MIN32], MIN32)]);
    table("rem.s32 %r0, %r1, -1", &[([MIN32], 0)]);
    table("div.s64 %rd0, %rd1, -1", &[([MIN64], MIN64)]);
    table("rem.s64 %rd0, %rd1, -1", &[([MIN64], 0)]);
}

#[test]
fn abs_and_neg_wrap_at_the_smallest() {
    table("abs.s16 %rs0, %rs1", &[([s16(-3)], 3), ([0x8000], 0x8000)]);
    table("abs.s32 %r0, %r1", &[([s32(-3)], 3), ([MIN32], MIN32), ([7], 7)]);
    table("abs.s64 %rd0, %rd1", &[([s64(-3)], 3), ([MIN64], MIN64)]);
    table("neg.s16 %rs0, %rs1", &[([1], 0xffff), ([0x8000], 0x8000)]);
    table("neg.s32 %r0, %r1", &[([1], s32(-1)), ([MIN32], MIN32), ([0], 0)]);
    table("neg.s64 %rd0, %rd1", &[([1], u64::MAX), ([MIN64], MIN64)]);
}

#[test]
fn min_and_max_follow_the_sign_of_the_type() {
    table("min.u16 %rs0, %rs1, %rs2", &[([0xffff, 1], 1)]);
    table("min.s16 %rs0, %rs1, %rs2", &[([0xffff, 1], 0xffff)]);
    table("min.u32 %r0, %r1, %r2", &[([0xffff_ffff, 1], 1)]);
    table("min.s32 %r0, %r1, %r2", &[([0xffff_ffff, 1], 0xffff_ffff)]);
    table("min.u64 %rd0, %rd1, %rd2", &[([u64::MAX, 1], 1)]);
    table("min.s64 %rd0, %rd1, %rd2", &[([u64::MAX, 1], u64::MAX)]);
    table("max.u16 %rs0, %rs1, %rs2", &[([0xffff, 1], 0xffff)]);
    table("max.s16 %rs0, %rs1, %rs2", &[([0xffff, 1], 1)]);
    table("max.u32 %r0, %r1, %r2", &[([0xffff_ffff, 1], 0xffff_ffff)]);
    table("max.s32 %r0, %r1, %r2", &[([0xffff_ffff, 1], 1)]);
    table("max.u64 %rd0, %rd1, %rd2", &[([u64::MAX, 1], u64::MAX)]);
    table("max.s64 %rd0, %rd1, %rd2", &[([u64::MAX, 1], 1)]);
}

#[test]
fn dot_products_accumulate() {
    // bytes 4, 3, 2, 1 (lowest first) times 1, 1, 1, 0xff
    table("dp4a.u32.u32 %r0, %r1, %r2, %r3", &[([0x0102_0304, 0xff01_0101, 10], 4 + 3 + 2 + 255 + 10)]);
    table("dp4a.u32.s32 %r0, %r1, %r2, %r3", &[([0x0102_0304, 0xff01_0101, 10], 4 + 3 + 2 - 1 + 10)]);
    table("dp4a.s32.u32 %r0, %r1, %r2, %r3", &[([0x8000_0000, 0xff00_0000, 0], s32(-128 * 255))]);
    table("dp4a.s32.s32 %r0, %r1, %r2, %r3", &[([0x8000_0000, 0x8000_0000, s32(-1)], 128 * 128 - 1)]);
    // halves 0x0002, 0xffff; bytes 3, 4 below and 5, 6 above
    table("dp2a.lo.u32.u32 %r0, %r1, %r2, %r3", &[([0xffff_0002, 0x0605_0403, 1], 2 * 3 + 65_535 * 4 + 1)]);
    table("dp2a.hi.u32.u32 %r0, %r1, %r2, %r3", &[([0xffff_0002, 0x0605_0403, 1], 2 * 5 + 65_535 * 6 + 1)]);
    table("dp2a.lo.s32.u32 %r0, %r1, %r2, %r3", &[([0xffff_0002, 0x0605_0403, 1], 2 * 3 - 4 + 1)]);
    table("dp2a.lo.u32.s32 %r0, %r1, %r2, %r3", &[([0x0001_0002, 0xff03, 0], 2 * 3 - 1)]);
    table("dp2a.hi.s32.s32 %r0, %r1, %r2, %r3", &[([0xffff_0002, 0x80ff_0000, 0], s32(-2 + 128))]);
}
