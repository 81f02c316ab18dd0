//! mov: copies, immediates, packing and unpacking.

use crate::harness::*;

#[test]
fn mov_copies_words() {
    table("mov.b16 %rs0, %rs1", &[([0xabcd], 0xabcd)]);
    table("mov.u16 %rs0, -1", &[([], 0xffff)]);
    table("mov.b32 %r0, %f1", &[([SNAN], SNAN)]);
    table("mov.f32 %f0, %f1", &[([0x8000_0001], 0x8000_0001)]);
    table("mov.u32 %r0, 4294967295", &[([], 0xffff_ffff)]);
    table("mov.s32 %r0, -5", &[([], 0xffff_fffb)]);
    table("mov.u32 %r0, WARP_SZ", &[([], 32)]);
    table("mov.b64 %rd0, %fd1", &[([d(1.0)], 0x3ff0_0000_0000_0000)]);
    table("mov.u64 %rd0, -1", &[([], u64::MAX)]);
    table("mov.f32 %f0, 0f3F800000", &[([], f(1.0))]);
    table("mov.f64 %fd0, 0d400921FB54442D18", &[([], std::f64::consts::PI.to_bits())]);
    table("mov.b32 %r0, 0f3F800000", &[([], f(1.0))]);
    table("mov.pred %p0, %p1", &[([1], 1), ([0], 0)]);
    table("mov.pred %p0, -1", &[([], 1)]);
    table("mov.pred %p0, 0", &[([], 0)]);
}

#[test]
fn mov_packs_lowest_first() {
    table("mov.b32 %r0, {%rs1, %rs2}", &[([0x1234, 0xabcd], 0xabcd_1234)]);
    table("mov.b64 %rd0, {%r1, %r2}", &[([0x1234_5678, 0x9abc_def0], 0x9abc_def0_1234_5678)]);
    table("mov.b64 %rd0, {%r1, 0}", &[([0x1234_5678], 0x1234_5678)]);
    table("mov.b64 %rd0, {%rs1, %rs2, %rs3, %rs4}", &[([1, 2, 3, 4], 0x0004_0003_0002_0001)]);
    table("mov.b32 %r0, {%b1, %b2, %b3, %b4}", &[([1, 2, 3, 4], 0x0403_0201)]);
    table("mov.b16 %rs0, {%b1, %b2}", &[([0xab, 0xcd], 0xcdab)]);
    table("mov.b64 %fd0, {%r1, %r2}", &[([0, 0x3ff0_0000], d(1.0))]);
}

#[test]
fn mov_unpacks_and_drops() {
    table2("mov.b64 {%r0, %r9}, %rd1", &[([0x9abc_def0_1234_5678], (0x1234_5678, 0x9abc_def0))]);
    table2("mov.b32 {%rs0, %rs9}, %r1", &[([0xabcd_1234], (0x1234, 0xabcd))]);
    table2("mov.b64 {%rs0, %rs8, %rs7, %rs9}, %rd1", &[([0x0004_0003_0002_0001], (1, 4))]);
    table2("mov.b16 {%b0, %b9}, %rs1", &[([0xcdab], (0xab, 0xcd))]);
    table("mov.b64 {_, %r0}, %rd1", &[([0x9abc_def0_1234_5678], 0x9abc_def0)]);
    table("mov.b64 {%r0, _}, %fd1", &[([d(-2.0)], 0)]);
}

#[test]
fn a_destination_may_be_a_source() {
    // %r1 is source and destination: all parts are read before any is written.
    let out = load("mov.b64 {%r0, %r9}, %rd1").run(&[vec![5 << 32 | 6]])[0];
    assert_eq!((out.first, out.second), (6, 5));
    let loaded = load("add.u32 %r0, %r0, %r0");
    assert_eq!(loaded.one(&[]), u64::from(0xbeef_u32.wrapping_add(0xdead_0000).wrapping_mul(2)), "the poison, doubled");
}

#[test]
fn moves_of_symbols_are_not_arithmetic() {
    for text in ["mov.u32 %r0, %tid.x", "mov.u64 %rd0, table", "mov.u64 %rd0, table+8"] {
        assert!(try_load(text).is_none(), "{text}");
    }
}
