//! Invalid instructions are rejected with line, text, and a reason that says how to fix them.

use crate::harness::*;

#[track_caller]
fn refused(text: &str, reason: &str) {
    match try_load(text) {
        Some(Err(error)) => {
            assert_eq!(error.line, 4, "{error}");
            assert!(error.reason.contains(reason), "`{error}` does not say `{reason}`");
            let shown = error.to_string();
            assert!(shown.starts_with("line 4: `") && shown.contains(text.split(' ').next().unwrap()), "{shown}");
        }
        Some(Ok(_)) => panic!("`{text}` was accepted"),
        None => panic!("`{text}` is not arithmetic"),
    }
}

#[test]
fn forms_that_do_not_exist() {
    refused("mul.wide.u64 %rd0, %rd1, %rd2", "mul.wide` takes .u16 .u32 .s16 .s32");
    refused("mul.u32 %r0, %r1, %r2", "needs .lo, .hi or .wide");
    refused("add.u8 %b0, %b1, %b2", "has no .u8 form");
    refused("add.b32 %r0, %r1, %r2", "has no .b32 form");
    refused("add.sat.u32 %r0, %r1, %r2", "cannot have .sat");
    refused("mad.lo.sat.s32 %r0, %r1, %r2, %r3", "cannot have .sat");
    refused("abs.u32 %r0, %r1", ".s16 .s32 .s64");
    refused("shl.u32 %r0, %r1, %r2", ".b16 .b32 .b64");
    refused("brev.b16 %rs0, %rs1", ".b32 .b64");
    refused("and.u32 %r0, %r1, %r2", ".pred .b16 .b32 .b64");
    refused("prmt.b64 %rd0, %rd1, %rd2, %rd3", ".b32");
    refused("shf.l.b32 %r0, %r1, %r2, %r3", ".clamp or .wrap");
    refused("bmsk.b32 %r0, %r1, %r2", ".clamp or .wrap");
    refused("addc.u16 %rs0, %rs1, %rs2", ".u32 .u64 .s32 .s64");
    refused("setp.lo.s32 %p0, %r1, %r2", "needs a comparison that .s32 has: .eq .ne .lt .le .gt .ge");
    refused("setp.ltu.u32 %p0, %r1, %r2", "needs a comparison");
    refused("setp.lt.b32 %p0, %r1, %r2", "needs a comparison that .b32 has: .eq .ne");
    refused("fma.f32 %f0, %f1, %f2, %f3", "needs a rounding");
    refused("div.f64 %fd0, %fd1, %fd2", "needs a rounding");
    refused("add.ftz.f64 %fd0, %fd1, %fd2", "cannot have .ftz");
    refused("sqrt.approx.f64 %fd0, %fd1", ".f32");
    refused("sin.f32 %f0, %f1", "needs .approx");
    refused("add.f16 %rs0, %rs1, %rs2", "arithmetic on halves is not interpreted");
    refused("dp4a.u32.u16 %r0, %r1, %r2, %r3", ".u32 .s32");
    refused("lop3.b32 %r0, %r1, %r2, %r3, 256", "0 … 0xff");
    refused("lop3.b32 %r0, %r1, %r2, %r3, %r4", "integer constant");
}

#[test]
fn conversions_that_do_not_exist() {
    refused("cvt.f32.s32 %f0, %r1", "needs .rn, .rz, .rm or .rp");
    refused("cvt.s32.f32 %r0, %f1", "needs .rni, .rzi, .rmi or .rpi");
    refused("cvt.rn.s32.f32 %r0, %f1", "needs .rni");
    refused("cvt.rni.f32.s32 %f0, %r1", "needs .rn");
    refused("cvt.f32.f64 %f0, %fd1", "needs .rn");
    refused("cvt.rn.f64.f32 %fd0, %f1", "this conversion is exact");
    refused("cvt.rni.f32.f64 %f0, %fd1", "only within one float type");
    refused("cvt.rn.s32.s64 %r0, %rd1", "nothing is rounded");
    refused("cvt.sat.s64.s32 %rd0, %r1", ".s64 holds every .s32");
    refused("cvt.ftz.f64.f64 %fd0, %fd1", "cannot have .ftz");
    refused("cvt.u32.u64 %rs0, %rd1", "register of 16 bits");
    refused("cvt.u32.b32 %r0, %r1", ".u8 .u16");
}

#[test]
fn operands_that_do_not_fit() {
    refused("add.u32 %r0, %r1, %rd2", "uses `%rd2`, a register of 64 bits, where 32 are needed");
    refused("add.u32 %rd0, %r1, %r2", "uses `%rd0`");
    refused("add.u32 %r0, %r1", "has 2 operands; this form takes 3");
    refused("add.u32 %r0, %r1, %r2, %r3", "has 4 operands");
    refused("add.u32 %r0, %r1, nothing", "names `nothing`, which is not a register");
    refused("add.u32 %r0, %r1, 0f3F800000", "floating-point constant");
    refused("add.f32 %f0, %f1, 1", "an integer constant where a .f32 is needed");
    refused("selp.b32 %r0, %r1, %r2, %r3", "where 1 are needed");
    refused("mov.b64 {%r0, %r1, %r2}, %rd1", "cannot split .b64 into 3");
    refused("mov.b32 {%r0, %r1}, %r2", "where 16 are needed");
    refused("mul.wide.u32 %r0, %r1, %r2", "where 64 are needed");
    refused("popc.b64 %rd0, %rd1", "where 32 are needed");
}

#[test]
fn other_instructions_are_not_ours() {
    for text in
        ["ld.global.u32 %r0, [%rd1]", "bra there", "bar.sync 0", "shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1", "ret"]
    {
        assert!(try_load(text).is_none(), "{text}");
    }
}
