//! The checker accepts and rejects the same code as an assembler. Every line of the two tables below was verified with
//! NVIDIA's assembler (ptxas 12.2, sm_70).

use crate::NVRTC;
use millpond_ptx::{ast::*, check, parse};

const DECLARATIONS: &str = "
.extern .func g(.param .b64 g0);
.func (.param .b32 r) h(.param .b32 h0, .param .align 4 .b8 h1[12]) { .reg .b32 %r; mov.u32 %r, 1; st.param.b32 [r], %r; ret; }
.global .align 8 .b8 table[64];
.const .align 4 .b32 limits[4] = {1, 2, 3, 4};
.shared .align 4 .b32 counts[32];
";

const REGISTERS: &str = "
.reg .pred %p<4>; .reg .b8 %c<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .f64 %g<8>;
.reg .u32 %u<4>; .reg .s32 %s<4>; .reg .u64 %ud<4>; .reg .v2 .b32 %v; .local .align 8 .b8 stack[16];
ld.param.u64 %d0, [a];
";

fn kernel(line: &str) -> String {
    format!(
        ".version 8.2\n.target sm_70\n.address_size 64\n{DECLARATIONS}\n.visible .entry k(.param .u64 a, .param .u32 b)\n\
         {{\n{REGISTERS}\n{line}\n$end:\nret;\n}}\n"
    )
}

const ACCEPTED: &[&str] = &[
    "add.s32 %r1, %r2, -5;",
    "add.u32 %s1, %u1, %r1;",
    "add.sat.s32 %r1, %r1, %r2;",
    "add.cc.u64 %d1, %d2, %d3; addc.u64 %d1, %d1, 0;",
    "mul.wide.s16 %r1, %h1, %h2;",
    "mad.wide.u32 %d1, %r1, %r2, %d2;",
    "mad.lo.cc.u32 %r1, %r2, %r3, %r4; madc.hi.u32 %r1, %r2, %r3, 0;",
    "fma.rn.ftz.f32 %f1, %f2, %f3, 0f3F800000;",
    "add.f64 %g1, %g2, 0d3FF0000000000000;",
    "add.rn.f32 %r1, %f2, %f3;",
    "div.rn.f64 %g1, %g2, %g3; div.s64 %d1, %d2, %d3; rem.u32 %r1, %r2, 7;",
    "min.s64 %d1, %d2, %d3; max.f32 %f1, %f2, %f3; abs.s32 %r1, %r2; neg.f64 %g1, %g2;",
    "rcp.rn.f64 %g1, %g2; sqrt.approx.f32 %f1, %f2; ex2.approx.ftz.f32 %f1, %f2; rcp.approx.ftz.f64 %g1, %g2;",
    "testp.notanumber.f64 %p1, %g1; copysign.f32 %f1, %f2, %f3;",
    "and.b32 %f1, %f2, %r3; xor.pred %p1, %p2, %p3; not.b64 %g1, %d1;",
    "shl.b64 %d1, %d2, %r1; shr.s16 %h1, %h2, 3; shf.l.wrap.b32 %r1, %r2, %r3, %r4;",
    "lop3.b32 %r1, %r2, %r3, %r4, 0x96; prmt.b32 %r1, %r2, %r3, 0x5410;",
    "bfe.u64 %d1, %d2, 3, %r1; bfi.b32 %r1, %r2, %r3, 4, 5; bfind.s32 %r1, %r2; brev.b64 %d1, %d2;",
    "popc.b64 %r1, %d1; clz.b32 %r1, %r2;",
    "setp.lt.u32 %p1, %r1, 5; setp.eq.and.b64 %p1|%p2, %d1, %d2, !%p3; setp.geu.f32 %p1, %f1, %f2;",
    "set.gt.u32.f32 %r1, %f1, %f2; selp.f32 %f1, %f2, 0f00000000, %p1; slct.u64.s32 %d1, %d2, %d3, %r1;",
    "mov.u32 %r1, %tid.x; mov.u64 %d1, %globaltimer; mov.u32 %r1, WARP_SZ;",
    "mov.u64 %d1, table; mov.u64 %d1, table+8; mov.u32 %r1, counts; mov.u64 %d1, g; mov.u64 %d1, stack;",
    "mov.b64 %d1, {%r1, %r2}; mov.b64 {%r1, %f1}, %g1; mov.b32 %r1, {%h1, %h2}; mov.b64 {%r1, _}, %d1;",
    "mov.pred %p1, %p2; mov.pred %p1, -1; mov.f32 %f1, 0f00000000; mov.b32 %r1, 0f00000000; mov.u32 %v.x, %r1;",
    "cvt.u64.u32 %d1, %r1; cvt.u8.u32 %r1, %r2; cvt.s16.s8 %h1, %r1; cvt.rn.f32.s64 %f1, %d1; cvt.rzi.s32.f64 %r1, %g1;",
    "cvt.rn.f32.f64 %f1, %g1; cvt.f64.f32 %g1, %f1; cvt.rni.f32.f32 %f1, %f2; cvt.sat.u8.s32 %r1, %r2;",
    "cvta.to.global.u64 %d1, %d2; cvta.local.u64 %d1, %d2; cvta.global.u64 %d1, table; isspacep.shared %p1, %d1;",
    "ld.global.u8 %r1, [%d1]; ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%d1+16]; ld.u16 %d1, [%d2+-4];",
    "ld.global.v2.u32 {%r1, %r2}, [%d1]; ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r1, [counts+4]; ld.const.b32 %r1, [limits];",
    "ld.global.b32 %f1, [%d1]; ld.global.f32 %r1, [%d1]; ld.global.u8 %h1, [%d1]; ld.global.b8 %c1, [%d1];",
    "mov.u64 %d1, b; ld.param.u32 %r1, [%d1]; cvta.param.u64 %d2, %d1; ld.u32 %r1, [%d2]; cvta.param.u64 %d1, b;",
    "ld.param.u32 %r1, [b]; ld.volatile.global.u32 %r1, [%d1]; ld.acquire.gpu.u32 %r1, [%d1]; ld.relaxed.sys.global.u64 %d1, [%d2];",
    "st.global.u8 [%d1], %r1; st.v2.b64 [%d1], {%d2, %g1}; st.shared.u32 [counts], 5; st.local.f32 [stack], %f1;",
    "st.release.gpu.global.u32 [%d1], %r1; st.global.cs.u16 [%d1], %d2;",
    "atom.global.add.u32 %r1, [%d1], 1; atom.global.add.u32 _, [%d1], 1; atom.shared.cas.b64 %d1, [%r1], %d2, %d3;",
    "red.global.add.f64 [%d1], %g1; red.relaxed.gpu.global.max.s64 [%d1], %d2; atom.acq_rel.gpu.exch.b32 %r1, [%d1], %r2;",
    "membar.gl; fence.acq_rel.gpu; fence.sc.sys; nanosleep.u32 300; prefetch.global.L2 [%d1];",
    "shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1; shfl.sync.idx.b32 %f1, %f2, %r1, 31, -1;",
    "vote.sync.ballot.b32 %r1, %p1, -1; vote.sync.any.pred %p1, !%p2, -1; match.any.sync.b64 %r1, %d1, -1; activemask.b32 %r1;",
    "bar.sync 0; bar.sync 1, 64; barrier.sync 0; bar.red.popc.u32 %r1, 0, %p1; bar.red.and.pred %p1, 0, !%p2; bar.warp.sync -1;",
    "@%p1 bra $end; @!%p2 bra.uni $end; trap; exit;",
    "t: .branchtargets $end, $other; $other: brx.idx %r1, t;",
    "{ .reg .b32 %r1; .reg .b64 %only; mov.u64 %only, 1; mov.u32 %r1, 5; bra $end; }",
    "{ .param .b64 x; st.param.b64 [x+0], %d1; call.uni g, (x); }",
    "{ .param .b32 x; .param .align 4 .b8 y[12]; .param .b32 z; st.param.b32 [x], 1; st.param.b32 [y+8], 1; call (z), h, (x, y); ld.param.b32 %r1, [z]; }",
    "{ .param .b64 x; proto: .callprototype () _ (.param .b64 _); call %d1, (x), proto; }",
];

const REFUSED: &[(&str, &str)] = &[
    ("add.s32 %r1, %r2, %r9;", "%r9 is not declared"),
    ("add.s32 %r1, %r2;", "2 operands are too few"),
    ("add.s32 %r1, %r2, %r3, %r4;", "4 operands are 1 too many"),
    ("add.s32 %d1, %r2, %r3;", "%d1 is .b64, where .s32 is wanted"),
    ("add.s32 %r1, %h2, %r3;", "%h2 is .b16, where .s32 is wanted"),
    ("add.s32 %f1, %r2, %r3;", "%f1 is .f32, where .s32 is wanted"),
    ("add.f32 %f1, %u2, %f3;", "%u2 is .u32, where .f32 is wanted"),
    ("add.f32 %f1, %f2, 1;", "1 is an integer, where .f32 is wanted"),
    ("add.s32 %r1, %r2, 0f3F800000;", "0f3F800000 is no value of .s32"),
    ("add.b32 %r1, %r2, %r3;", ".b32 is no type for this instruction"),
    ("add.lo.s32 %r1, %r2, %r3;", ".lo does not belong here"),
    ("add %r1, %r2, %r3;", "the type is missing"),
    ("add.s32 5, %r2, %r3;", "5 is no register to write .s32 to"),
    ("add.s32 %r1, [%d1], %r3;", "[%d1] is no value of .s32"),
    ("mul.s32 %r1, %r2, %r3;", "one of .lo, .hi, .wide is missing"),
    ("mul.wide.s64 %d1, %d2, %d3;", ".wide has no form for .s64"),
    ("mul.wide.s32 %r1, %r2, %r3;", "%r1 is .b32, where .s64 is wanted"),
    ("fma.f32 %f1, %f2, %f3, %f4;", "one of .rn, .rz, .rm, .rp is missing"),
    ("div.f64 %g1, %g2, %g3;", "is missing"),
    ("rem.f32 %f1, %f2, %f3;", "rem is for integers"),
    ("abs.u32 %r1, %r2;", ".u32 is no type"),
    ("sin.approx.f64 %g1, %g2;", ".f64 is no type"),
    ("and.s32 %r1, %r2, %r3;", ".s32 is no type"),
    ("shl.b32 %r1, %r2, %d1;", "%d1 is .b64, where .u32 is wanted"),
    ("popc.b64 %d1, %d2;", "%d1 is .b64, where .u32 is wanted"),
    ("setp.lt.b32 %p1, %r1, %r2;", ".b32 values cannot be compared by .lt"),
    ("setp.lo.s32 %p1, %r1, %r2;", ".s32 values cannot be compared by .lo"),
    ("setp.ltu.u32 %p1, %r1, %r2;", ".u32 values cannot be compared by .ltu"),
    ("setp.eq.u32 %r1, %r1, %r2;", "%r1 is .b32, where .pred is wanted"),
    ("setp.eq.and.u32 %p1, %r1, %r2;", "3 operands are too few"),
    ("selp.u32 %r1, %r2, %r3, %r4;", "%r4 is .b32, where .pred is wanted"),
    ("@%r1 mov.u32 %r1, 1;", "the guard %r1 is no predicate"),
    ("@%p9 mov.u32 %r1, 1;", "%p9 is not declared"),
    ("mov.u32 %r1, table;", "the address of table is 64 bits, where .u32 is wanted"),
    ("mov.u32 %r1, nowhere;", "nowhere is not declared"),
    ("mov.u64 %d1, %tid.x;", "%tid.x is .u32, where .u64 is wanted"),
    ("add.u32 %r1, %tid.x, 1;", "%tid.x can only be read by mov"),
    ("mov.b64 %d1, {%d1, %d2};", "%d1 is .b64, where .b32 is wanted"),
    ("mov.b64 %d1, {%r1, %r2, %r3};", ".b64 is not packed from 3 parts"),
    ("mov.u32 %v, %r1;", "%v is a whole vector"),
    ("mov.u32 %r.x, %r1;", "%r is"),
    ("mov.u8 %r1, %r2;", ".u8 is no type"),
    ("cvt.f32.s32 %f1, %r1;", "integer to float needs .rn, .rz, .rm or .rp"),
    ("cvt.s32.f32 %r1, %f1;", "float to integer needs .rni, .rzi, .rmi or .rpi"),
    ("cvt.f32.f64 %f1, %g1;", "a narrower float needs .rn, .rz, .rm or .rp"),
    ("cvt.u64.u32 %r1, %r2;", "%r1 is .b32, where .u64 or wider is wanted"),
    ("cvt.u32.u64 %r1, %r2;", "%r2 is .b32, where .u64 or wider is wanted"),
    ("cvt.rn.f32.s32 %g1, %r1;", "%g1 is .f64, where .f32 or wider is wanted"),
    ("ld.global.u64 %r1, [%d1];", "%r1 is .b32, where .u64 or wider is wanted"),
    ("ld.global.u32 %f1, [%d1];", "%f1 is .f32, where .u32 or wider is wanted"),
    ("ld.global.f32 %u1, [%d1];", "%u1 is .u32, where .f32 or wider is wanted"),
    ("ld.global.f32 %g1, [%d1];", "%g1 is .f64, where .f32 or wider is wanted"),
    ("ld.global.u32 %r1, %d1;", "an address in brackets is wanted"),
    ("ld.global.u32 %r1, [%r2];", "%r2 is .b32, which holds no address of this space"),
    ("ld.global.u32 %r1, [%g1];", "%g1 is .f64, which holds no address of this space"),
    ("ld.shared.u32 %r1, [table];", "table is .global, not .shared"),
    ("ld.global.v2.u32 %r1, [%d1];", "%r1 is no vector of 2"),
    ("ld.global.v4.u32 {%r1, %r2}, [%d1];", "{%r1, %r2} is no vector of 4"),
    ("ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%d1];", "32 bytes at once, of at most 16"),
    ("ld.acquire.global.u32 %r1, [%d1];", "one of .cta, .gpu, .sys is missing"),
    ("ld.shared.nc.u32 %r1, [%r1];", "only .global loads are .nc"),
    ("st.const.u32 [limits], 1;", "st has no .const form"),
    ("st.global.u64 [%d1], %r1;", "%r1 is .b32, where .u64 or wider is wanted"),
    ("st.global.f32 [%d1], %g1;", "%g1 is .f64, where .f32 or wider is wanted"),
    ("atom.global.add.s64 %d1, [%d2], 1;", ".s64 is no type"),
    ("atom.global.and.u32 %r1, [%d1], 1;", ".u32 is no type"),
    ("atom.global.cas.b32 %r1, [%d1], 1;", "3 operands are too few"),
    ("atom.local.add.u32 %r1, [%d1], 1;", "atom has no .local form"),
    ("red.global.exch.b32 [%d1], 1;", "is missing"),
    ("shfl.sync.down.b32 %r1, %r2, 1, 31;", "4 operands are too few"),
    ("vote.sync.ballot.b32 %r1, %r2, -1;", "%r2 is .b32, where .pred is wanted"),
    ("bar.sync;", "0 operands are too few"),
    ("bra $nowhere;", "$nowhere is no label in this scope"),
    ("bra k;", "k is no label"),
    ("{ $inner: mov.u32 %r1, 1; } bra $inner;", "$inner is no label in this scope"),
    ("$end: ret;", "$end is declared twice in this scope"),
    (".reg .b32 %r1x; .reg .b32 %r1x;", "%r1x is declared twice in this scope"),
    ("{ .reg .b64 %inner; } mov.u64 %inner, 1;", "%inner is not declared"),
    ("brx.idx %r1, $end;", "$end names no .branchtargets"),
    ("{ .param .b32 x; call g, (x); }", "x has 4 bytes, where 8 are wanted"),
    ("call g;", "g takes 1 arguments, not 0"),
    ("{ .param .b64 x; .param .b32 y; call (y), g, (x); }", "g takes 0 results, not 1"),
    ("{ .param .b64 x; call missing, (x); }", "missing is no function declared before"),
    ("{ .param .b64 x; call %d1, (x); }", "an indirect call needs its prototype"),
    ("frobnicate.u32 %r1, %r2;", "frobnicate is no instruction that this project's device code uses"),
];

#[test]
fn well_typed_instructions_pass() {
    for line in ACCEPTED {
        check(&parse(&kernel(line)).unwrap()).unwrap_or_else(|error| panic!("{line}\n{error}"));
    }
}

#[test]
fn ill_typed_instructions_are_refused() {
    for (line, message) in REFUSED {
        let error = check(&parse(&kernel(line)).unwrap()).expect_err(line);
        assert!(error.message().contains(message), "{line}\n{error}");
        assert!(error.span().line > 10, "{error}");
    }
}

/// Additional rules: an assembler accepts these lines, although they are mistakes.
#[test]
fn mistakes_that_an_assembler_overlooks_are_refused() {
    for (line, message) in [
        ("ld.param.u64 %d1, [b];", "bytes 0..8 are outside b, which has 4"),
        ("st.shared.u32 [counts+128], 1;", "bytes 128..132 are outside counts, which has 128"),
        ("ld.global.u32 %r1, [%h1];", "%h1 is .b16, which holds no address of this space"),
        ("ld.u32 %r1, [table];", "table is .global, not a generic address"),
        ("and.b16 %h1, %h2, 65536;", "65536 does not fit .b16"),
    ] {
        let error = check(&parse(&kernel(line)).unwrap()).expect_err(line);
        assert!(error.message().contains(message), "{line}\n{error}");
    }
}

#[test]
fn compiled_module_passes() {
    check(&parse(NVRTC).unwrap()).unwrap();
}

#[test]
fn module_rules_hold() {
    let refused = [
        (".global .b32 a; .global .b32 a;", "a is declared twice"),
        (".func f() { ret; } .func f() { ret; }", "f is declared twice"),
        (".func f(.param .b32 a); .func f(.param .b64 a) { ret; }", "f is declared before with another signature"),
        (".visible .entry k(.reg .b32 %r) { ret; }", "k is an .entry and takes %r in a register"),
        (".visible .entry k(.param .b32 a, .param .b32 a) { ret; }", "a is declared twice"),
        (".reg .b32 %r;", "%r cannot be .reg outside a function"),
        (".global .pred p;", "p is .pred, which only registers can be"),
        (".global .b8 a[2] = {1, 2, 3};", "a has room for 2 values and 3 initial values"),
        (".global .b32 a = 0f3F800000;", "a is .b32 and starts from a float"),
        (".global .f32 a = 1;", "a is .f32 and starts from an integer"),
        (".shared .b32 a = 1;", "a is .shared, which cannot be initialised"),
        (".global .u64 a = generic(b);", "a starts from b, which is not declared before it"),
        (".global .b8 b; .global .u32 a = generic(b);", "a is .u32, too narrow for an address"),
    ];
    for (items, message) in refused {
        let text = format!(".version 8.2\n.target sm_70\n.address_size 64\n{items}\n");
        let error = check(&parse(&text).unwrap()).expect_err(items);
        assert!(error.message().contains(message), "{items}\n{error}");
    }
    let accepted = ".version 8.2\n.target sm_70\n.address_size 64\n.func f(.param .b32 a);\n.func f(.param .b32 a) { ret; }\n\
                    .extern .global .b32 b; .global .b8 c[3] = {1}; .global .u64 d[2] = {generic(c), f};\n";
    check(&parse(accepted).unwrap()).unwrap();
}

#[test]
fn place_is_a_line_or_a_function() {
    let error = check(&parse(&kernel("add.s32 %r1, %r2, %r99;")).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "PTX line 18, column 1: %r99 is not declared in `add.s32 %r1, %r2, %r99`");

    let operands = ["%a", "%b"].map(|name| Operand::Name(name.into())).to_vec();
    let body = vec![
        Statement::Instruction(Instruction::new("ret", Vec::new())),
        Statement::Instruction(Instruction::new("mov.u32", operands)),
    ];
    let mut module = Module::new();
    module.items.push(Item::Function(Function {
        linkage: Linkage::Visible,
        kind: FunctionKind::Entry,
        name: "built".into(),
        returns: Vec::new(),
        params: Vec::new(),
        directives: Vec::new(),
        body: Some(body),
        span: Span::NONE,
    }));
    let error = check(&module).unwrap_err();
    assert_eq!(error.to_string(), "PTX function built, instruction 1: %a is not declared in `mov.u32 %a, %b`");
}
