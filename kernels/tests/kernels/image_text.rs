//! The images: fresh, well-typed, and loadable by the interpreter. Needs no compiler.

#[path = "../../examples/images/recipe.rs"]
mod recipe;

use millpond_kernels::image::IMAGES;
use millpond_ptx::ast::{Instruction, Module, Statement};
use millpond_ptx::build::risky_predicates;
use millpond_ptx::{interpret, parse};
use std::collections::BTreeSet;

fn modules() -> Vec<(&'static str, Module)> {
    IMAGES.iter().map(|image| (image.name, parse(image.text).unwrap())).collect()
}

#[test]
fn images_are_as_fresh_as_their_sources() {
    for image in IMAGES {
        let now = recipe::source_hash(image.name).unwrap();
        assert_eq!(
            image.source_hash(),
            Some(now.as_str()),
            "images/{}.ptx is older than its sources: run `cargo images`",
            image.name
        );
    }
}

#[test]
fn every_source_has_its_image() {
    let mut sources: Vec<String> = std::fs::read_dir(recipe::sources())
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".cu")?.to_string()))
        .collect();
    sources.sort();
    let images: Vec<_> = IMAGES.iter().map(|image| image.name).collect();
    assert_eq!(sources, images, "IMAGES in image.rs lists the sources in order");
}

#[test]
fn images_are_what_the_recipe_makes_of_them() {
    for image in IMAGES {
        assert_eq!(recipe::image(image.name, image.text).unwrap(), image.text, "{} was edited by hand", image.name);
    }
}

#[test]
fn images_are_for_drivers_from_535_on() {
    for (name, module) in modules() {
        assert_eq!((module.version, module.address_size), ((8, 2), 64), "{name}");
        assert_eq!(module.target, ["sm_70"], "{name}");
    }
}

#[test]
fn an_image_names_its_kernels() {
    for (image, (_, module)) in IMAGES.iter().zip(modules()) {
        let entries = module.functions().filter(|f| f.kind == millpond_ptx::ast::FunctionKind::Entry);
        let names: Vec<&str> = entries.map(|function| function.name.as_str()).collect();
        assert_eq!(image.kernels().collect::<Vec<_>>(), names, "{}", image.name);
    }
}

#[test]
fn recorded_resources_name_every_kernel() {
    let path = recipe::sources().with_file_name("images").join("resources.txt");
    let recorded = std::fs::read_to_string(path).unwrap();
    for (_, module) in modules() {
        for function in module.functions().filter(|f| f.kind == millpond_ptx::ast::FunctionKind::Entry) {
            let listed = recorded.lines().any(|line| line.split_whitespace().next() == Some(&function.name));
            assert!(listed, "{} is not in resources.txt: run `cargo images`", function.name);
        }
    }
}

fn instructions<'a>(statements: &'a [Statement], all: &mut Vec<&'a Instruction>) {
    for statement in statements {
        match statement {
            Statement::Instruction(instruction) => all.push(instruction),
            Statement::Block(inner) => instructions(inner, all),
            _ => {}
        }
    }
}

#[test]
fn interpreter_loads_every_image() {
    for (name, module) in modules() {
        if let Err(error) = interpret::Image::load(&module) {
            panic!("{name}: {error}");
        }
    }
}

/// Instruction forms that the compiler uses in our images. The interpreter must know each form. A new form fails this
/// test, so that its arithmetic is tested before a kernel depends on it.
#[test]
fn instruction_forms_are_known() {
    let modules = modules();
    let mut all = Vec::new();
    for (_, module) in &modules {
        module.functions().filter_map(|f| f.body.as_deref()).for_each(|body| instructions(body, &mut all));
    }
    let forms: BTreeSet<String> = all.iter().map(|instruction| instruction.opcode.to_string()).collect();
    let known: BTreeSet<String> = KNOWN_FORMS.split_whitespace().map(str::to_string).collect();
    let new: Vec<_> = forms.difference(&known).collect();
    assert!(new.is_empty(), "new forms: {new:?}");
    let gone: Vec<_> = known.difference(&forms).collect();
    assert!(gone.is_empty(), "forms that no image uses any more: {gone:?}");
}

const KNOWN_FORMS: &str = "
    abs.f32 abs.f64 abs.s64 add.cc.s64 add.cc.u32 add.f32 add.f64 add.rn.f32 add.rn.f64 add.s16 add.s32 add.s64 add.u64
    addc.cc.s64 addc.cc.u32 addc.u32 and.b16 and.b32 and.b64 and.pred atom.add.u64 atom.global.add.u32
    atom.global.add.u64 atom.global.cas.b32 atom.global.cas.b64 atom.shared.add.u32 atom.shared.cas.b32 bar.sync bar.warp.sync bfi.b32 bfi.b64
    bfind.shiftamt.u32 bra bra.uni brev.b32 call.uni clz.b64 cvt.f64.f32 cvt.rn.f32.f64 cvt.rn.f32.s32 cvt.rn.f64.s32
    cvt.rmi.f64.f64 cvt.rn.f64.s64 cvt.rn.f64.u32 cvt.rn.f64.u64 cvt.rni.f32.f32 cvt.rpi.f64.f64 cvt.rni.s32.f32 cvt.rni.s32.f64 cvt.rzi.f64.f64
    cvt.rzi.s32.f64 cvt.rzi.u32.f64 cvt.s16.s8 cvt.s32.s16 cvt.s32.s8 cvt.s64.s32 cvt.u16.u32 cvt.u16.u64 cvt.u32.u16 cvt.u32.u64
    cvt.u64.u16 cvt.u64.u32 cvta.local.u64 cvta.param.u64 cvta.shared.u64 cvta.to.global.u64 cvta.to.local.u64
    cvta.to.shared.u64 div.rn.f64 div.u32 div.u64 ex2.approx.ftz.f32 fma.rn.f64 ld.f32 ld.f64 ld.global.f64
    ld.global.nc.f64 ld.global.nc.u64 ld.global.s16 ld.global.s32 ld.global.s8 ld.global.u16 ld.global.u32
    ld.global.u64 ld.global.u8 ld.global.v2.f64 ld.global.v2.u32 ld.global.v2.u64 ld.global.v4.u32 ld.local.f64 ld.local.u32 ld.local.u64 ld.local.v2.f64
    ld.local.v2.u64 ld.param.b32 ld.param.b64 ld.param.f64 ld.param.s8 ld.param.u16 ld.param.u32 ld.param.u64
    ld.param.u8 ld.param.v4.u32 ld.relaxed.gpu.global.u32 ld.relaxed.gpu.global.u64 ld.s16 ld.s32 ld.s8 ld.shared.u32 ld.shared.u64 ld.shared.u8
    ld.shared.v2.u32 ld.shared.v2.u64 ld.shared.v4.u32 ld.u16 ld.u32 ld.u64 ld.u8 ld.v2.f64 ld.v2.u32 ld.v2.u64 ld.v4.u32
    lg2.approx.ftz.f32 mad.lo.cc.u32 mad.lo.s32 madc.hi.cc.u32 madc.hi.u32 madc.lo.cc.u32 match.any.sync.b32 max.f64
    max.s64 max.u32 max.u64 membar.gl min.f64 min.u32 min.u64 mov.b32 mov.b64 mov.f32 mov.f64 mov.pred mov.u16 mov.u32 mov.u64
    mul.f32 mul.f64 mul.hi.u32 mul.hi.u64 mul.lo.s32 mul.lo.s64 mul.lo.u32 mul.rn.f32 mul.rn.f64 mul.wide.s32 mul.wide.u16
    mul.wide.u32 nanosleep.u32 neg.f32 neg.f64 neg.s32 neg.s64 not.b32 not.b64 not.pred or.b16 or.b32 or.b64 or.pred
    popc.b32 popc.b64 prmt.b32 rcp.approx.ftz.f64 red.global.add.u32 red.global.add.u64 red.global.max.u64
    red.global.min.u64 red.global.or.b32 red.or.b32 red.shared.add.u32 red.shared.add.u64 red.shared.or.b32 rem.u32 rem.u64 ret
    rsqrt.approx.ftz.f64 selp.b16 selp.b32 selp.b64 selp.f32 selp.f64 selp.s64 selp.u16 selp.u32 selp.u64 setp.eq.b16
    setp.eq.b32 setp.eq.b64 setp.eq.f32 setp.eq.f64 setp.eq.s16 setp.eq.s32 setp.eq.s64 setp.ge.f64 setp.ge.s64
    setp.ge.u16 setp.ge.u32 setp.ge.u64 setp.geu.f32 setp.geu.f64 setp.gt.f32 setp.gt.f64 setp.gt.s16 setp.gt.s32
    setp.gt.s64 setp.gt.u16 setp.gt.u32 setp.gt.u64 setp.gtu.f64 setp.le.f64 setp.le.s64 setp.le.u32 setp.le.u64
    setp.leu.f64 setp.lt.f32 setp.lt.f64 setp.lt.s16 setp.lt.s32 setp.lt.s64 setp.lt.u16 setp.lt.u32 setp.lt.u64
    setp.ltu.f64 setp.nan.f32 setp.nan.f64 setp.ne.f64 setp.ne.s16 setp.ne.s32 setp.ne.s64 setp.neu.f64 setp.num.f64 shf.l.wrap.b32
    shf.r.wrap.b32
    shfl.sync.bfly.b32 shfl.sync.down.b32 shfl.sync.idx.b32 shfl.sync.up.b32 shl.b32 shl.b64 shr.s32 shr.s64
    shr.u16 shr.u32 shr.u64 sqrt.rn.f64 st.global.f64 st.global.u16 st.global.u32 st.global.u64 st.global.u8
    st.global.v2.f64 st.global.v2.u32 st.global.v2.u64 st.global.v4.u32 st.local.u32 st.local.u64 st.local.v2.f64 st.local.v2.u64 st.param.b32 st.param.b64 st.param.f64
    st.relaxed.gpu.global.u64 st.shared.u32 st.shared.u64 st.shared.u8 st.shared.v2.u32 st.shared.v2.u64
    st.shared.v4.u32 st.u16 st.u32 st.u64 st.u8 st.v2.u64 sub.cc.s64 sub.cc.u32 sub.f64 sub.rn.f64 sub.s32 sub.s64
    subc.cc.s64 subc.cc.u32 subc.u32 vote.sync.all.pred vote.sync.any.pred vote.sync.ballot.b32 xor.b32 xor.b64
    xor.pred
";

#[test]
fn images_have_no_predicates_that_an_assembler_may_get_wrong() {
    for (name, module) in modules() {
        assert_eq!(risky_predicates(&module), Vec::<String>::new(), "{name}");
    }
}
