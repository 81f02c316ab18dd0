//! Golden vectors: every form in images and generated kernels has vectors, and the interpreter agrees with the GPU.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use millpond_kernels::image::IMAGES;
use millpond_kernels::vectors::{self, Recording};
use millpond_memory::Device;
use millpond_memory::driver::sim::SimDriver;
use millpond_ptx::ast::Module;

/// Panics if a module uses a form without vectors. The pipeline rig calls it for each compiled module.
pub fn assert_has_vectors(what: &str, module: &Module) {
    static NAMES: LazyLock<BTreeSet<String>> =
        LazyLock::new(|| vectors::forms().into_iter().map(|form| form.name).collect());
    let used = vectors::used(module).unwrap_or_else(|reason| panic!("{what}: {reason}"));
    let lacking: Vec<&String> = used.difference(&NAMES).collect();
    assert!(lacking.is_empty(), "{what} uses {lacking:?}: add them to `vectors::forms`, and record again");
}

fn simulated() -> Device {
    Device::open(SimDriver::with_seed(1), 0).unwrap()
}

#[test]
fn the_interpreter_gives_what_the_gpu_gave() {
    let recording = vectors::recorded().unwrap();
    assert!(recording.to_bytes().len() <= 2 << 20);
    let found = vectors::differences(&simulated(), &recording).unwrap();
    assert!(found.is_empty(), "{} differences from {}: {found:#?}", found.len(), recording.device);
}

#[test]
fn every_form_of_an_image_has_vectors() {
    for image in IMAGES {
        assert_has_vectors(image.name, &millpond_ptx::parse(image.text).unwrap());
    }
}

#[test]
fn a_form_without_vectors_is_noticed() {
    let module = |instruction: &str| {
        let registers = ".reg .b32 %r<4>; .reg .f32 %f<4>; .reg .pred %p<2>;";
        let head = ".version 8.2\n.target sm_70\n.address_size 64\n";
        millpond_ptx::parse(&format!("{head}.visible .entry k() {{ {registers} {instruction} ret; }}")).unwrap()
    };
    let names: BTreeSet<String> = vectors::forms().into_iter().map(|form| form.name).collect();
    for instruction in ["sad.u32 %r0, %r1, %r2, %r3;", "add.rz.f32 %f0, %f1, %f2;", "sin.approx.f32 %f0, %f1;"] {
        let used = vectors::used(&module(instruction)).unwrap();
        assert!(used.len() == 1 && used.is_disjoint(&names), "{instruction} {used:?}");
    }
    let refused = vectors::used(&module("setp.lt.and.u32 %p0, %r1, %r2, !%p1;")).unwrap_err();
    assert!(refused.contains("operands that no form has"), "{refused}");
    let outside = vectors::used(&module("mov.u32 %r0, %tid.x; bar.sync 0;")).unwrap();
    assert!(outside.is_empty(), "{outside:?}");
}

#[test]
fn forms_have_different_names_and_at_most_256_vectors() {
    let forms = vectors::forms();
    let names: BTreeSet<&str> = forms.iter().map(|form| form.name.as_str()).collect();
    assert_eq!(names.len(), forms.len());
    for form in &forms {
        let operands = vectors::operands(form);
        assert_eq!(operands.len(), form.sources.len(), "{}", form.name);
        assert!(operands.iter().all(|column| column.len() == operands[0].len()), "{}", form.name);
        assert!((2..=256).contains(&operands[0].len()), "{}", form.name);
        let tuples: BTreeSet<Vec<u64>> =
            (0..operands[0].len()).map(|row| operands.iter().map(|column| column[row]).collect()).collect();
        assert_eq!(tuples.len(), operands[0].len(), "{} has a tuple twice", form.name);
    }
}

#[test]
fn a_form_knows_itself_in_a_module() {
    let forms = vectors::forms();
    for form in &forms {
        let module = millpond_ptx::parse(&vectors::text(std::slice::from_ref(form))).unwrap();
        assert!(vectors::used(&module).unwrap().contains(&form.name), "{}", form.name);
    }
}

#[test]
fn a_recording_survives_its_file_and_agrees_with_its_device() {
    let device = simulated();
    let (recording, refused) = vectors::record(&device, "2026-11-22").unwrap();
    assert_eq!(refused, []);
    let bytes = recording.to_bytes();
    assert!(bytes.len() <= 2 << 20, "{} bytes", bytes.len());
    assert_eq!(Recording::from_bytes(&bytes).unwrap(), recording);
    assert_eq!(vectors::record(&device, "2026-11-22").unwrap().0.to_bytes(), bytes);
    assert_eq!(vectors::differences(&device, &recording).unwrap(), Vec::<String>::new());
}

#[test]
fn a_wrong_bit_a_missing_form_and_other_operands_are_found() {
    let device = simulated();
    let (recording, _) = vectors::record(&device, "2026-11-22").unwrap();
    let at = |name: &str| recording.forms.iter().position(|form| form.name == name).unwrap();
    let (sum, exponential, quotient) = (at("add.u32"), at("ex2.approx.ftz.f32"), at("div.u64"));
    let mut wrong = recording.clone();
    wrong.forms[sum].results[0][17] ^= 1;
    // One unit in the last place is within the error of an approximation.
    let near_one = wrong.forms[exponential].results[0].iter().position(|bits| bits >> 24 == 0x3f).unwrap();
    wrong.forms[exponential].results[0][near_one] += 1;
    wrong.forms[quotient].operands ^= 1;
    let missing = wrong.forms.remove(at("bfi.b64"));
    let found = vectors::differences(&device, &wrong).unwrap();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found.contains(&format!("{} was not recorded", missing.name)), "{found:#?}");
    assert!(found.contains(&"div.u64 was recorded with other operands".to_string()), "{found:#?}");
    assert!(found.iter().any(|line| line.starts_with("add.u32 of ")), "{found:#?}");
}

#[test]
fn a_damaged_file_is_refused() {
    let (recording, _) = vectors::record(&simulated(), "2026-11-22").unwrap();
    let bytes = recording.to_bytes();
    for length in (0..bytes.len()).step_by(997) {
        assert!(Recording::from_bytes(&bytes[..length]).is_err(), "its first {length} bytes");
    }
    let mut other = bytes.clone();
    other[0] ^= 1;
    assert!(Recording::from_bytes(&other).is_err());
}
