//! Golden vectors: results of a GPU for edge values of every instruction form that our kernels use.
//!
//! ```text
//!   forms ──► operands ──► run on a GPU ──► vectors/recorded.bin          cargo vectors --record FILE
//!                 └──────► run anywhere ──► the same bits?                `cargo test` on the simulated device,
//!                                                                          `millpond selftest` on the user's device
//! ```
//!
//! Why        the simulated device interprets PTX, a GPU runs the output of NVIDIA's assembler. If the two differ in an
//!            instruction, the recorded vector shows it, and the interpreter is wrong.
//! Agreement  equal bits, also for NaNs; approximations within the error of the PTX manual ([`Agreement`]).
//! Open       results that PTX leaves open and no query depends on are compared on the simulated device only, since
//!            another GPU may differ: division by zero, bit-field positions and lengths over 255, the choice among
//!            several NaNs.
//! Not here   combinations of instructions: other checks cover an assembler that combines several of them wrongly.

mod file;
mod forms;
mod operands;
mod run;

use std::collections::HashMap;

use millpond_memory::checks::CheckError;
use millpond_memory::driver::{DeviceAttribute, DriverKind};
use millpond_memory::{Device, MemoryError};
use millpond_ptx::ast::Type;

pub use file::{Recorded, Recording};
pub use forms::{Agreement, Form, Role, Source, forms, used};
pub use operands::{hash, operands};
pub use run::{Results, run, text};

/// Results of a device for every form, and the forms that it rejects, with its reasons.
///
/// # Errors
/// Errors of the device, except the rejection of forms.
pub fn record(device: &Device, date: &str) -> Result<(Recording, Vec<(String, String)>), CheckError> {
    let forms = forms();
    let (mut recorded, mut refused) = (Vec::new(), Vec::new());
    for (form, outcome) in forms.iter().zip(run(device, &forms)?) {
        match outcome {
            Ok(results) => recorded.push(Recorded::new(form, results)),
            Err(reason) => refused.push((form.name.clone(), reason)),
        }
    }
    let driver = device.driver();
    let attribute = |which| driver.attribute(device.id(), which).map_err(MemoryError::from);
    let (major, minor) =
        (attribute(DeviceAttribute::ComputeCapabilityMajor)?, attribute(DeviceAttribute::ComputeCapabilityMinor)?);
    let name = driver.device_info(device.id()).map_err(MemoryError::from)?.name;
    let recording = Recording {
        device: format!("{name}, compute capability {major}.{minor}"),
        driver: format!("CUDA {}", driver.version()),
        date: date.to_string(),
        forms: recorded,
    };
    Ok((recording, refused))
}

/// Describes every vector that differs between a device and a recording, after the forms that only one of them has.
///
/// # Errors
/// Errors of the device, except the rejection of forms.
pub fn differences(device: &Device, recording: &Recording) -> Result<Vec<String>, CheckError> {
    let forms = forms();
    let mut recorded: HashMap<&str, &Recorded> =
        recording.forms.iter().map(|form| (form.name.as_str(), form)).collect();
    let is_gpu = device.driver().kind() == DriverKind::Cuda;
    let mut found = Vec::new();
    let mut different = Vec::new();
    for (form, outcome) in forms.iter().zip(run(device, &forms)?) {
        let operands = operands(form);
        match (recorded.remove(form.name.as_str()), outcome) {
            (None, _) => found.push(format!("{} was not recorded", form.name)),
            (_, Err(reason)) => found.push(format!("{} is refused: {reason}", form.name)),
            (Some(there), Ok(_)) if there.operands != hash(&operands) => {
                found.push(format!("{} was recorded with other operands", form.name));
            }
            (Some(there), Ok(results)) => {
                different.extend(
                    (0..operands[0].len()).filter_map(|row| differs(form, &operands, there, &results, is_gpu, row)),
                );
            }
        }
    }
    let mut unknown: Vec<String> = recorded.into_keys().map(|name| format!("{name} is recorded and no form")).collect();
    unknown.sort();
    found.extend(unknown);
    found.extend(different);
    Ok(found)
}

fn differs(
    form: &Form,
    operands: &[Vec<u64>],
    recorded: &Recorded,
    results: &Results,
    is_gpu: bool,
    row: usize,
) -> Option<String> {
    let of = |columns: &[Vec<u64>]| columns.iter().map(|column| column[row]).collect::<Vec<u64>>();
    let (operands, recorded, results) = (of(operands), of(&recorded.results), of(results));
    // Another GPU may err in the other direction.
    let errors = if is_gpu { 2 } else { 1 };
    let open = is_gpu && is_open(form, &operands);
    let mut pairs = recorded.iter().zip(&results);
    let agrees =
        open || pairs.all(|(recorded, result)| agrees(form.agreement, errors, operands[0], *recorded, *result));
    let words = |words: &[u64], widths: &mut dyn Iterator<Item = u32>| {
        let words = words.iter().zip(widths).map(|(word, bits)| format!("{word:0w$x}", w = bits.div_ceil(4) as usize));
        words.collect::<Vec<_>>().join(" ")
    };
    (!agrees).then(|| {
        format!(
            "{} of {}: {}, recorded {}",
            form.name,
            words(&operands, &mut form.sources.iter().map(|source| source.bits)),
            words(&results, &mut form.results.iter().copied()),
            words(&recorded, &mut form.results.iter().copied()),
        )
    })
}

/// True if PTX leaves the result for these operands open.
fn is_open(form: &Form, operands: &[u64]) -> bool {
    let sources = || form.sources.iter().zip(operands);
    let is_nan = |(source, bits): &(&Source, &u64)| match source.ty {
        Type::F32 => f32::from_bits(**bits as u32).is_nan(),
        Type::F64 => f64::from_bits(**bits).is_nan(),
        _ => false,
    };
    match form.name.split('.').next() {
        Some("div" | "rem") if !form.sources[1].ty.is_float() => operands[1] == 0,
        Some("bfe" | "bfi") => sources().any(|(source, bits)| source.role == Role::Bits && *bits > 255),
        Some("setp" | "selp") => false,
        _ => sources().filter(is_nan).count() > 1,
    }
}

/// True if the recorded result allows `result`: each of two devices may err by `errors`/2 times the manual's bound,
/// plus half a unit in the last place for rounding.
fn agrees(agreement: Agreement, errors: u32, argument: u64, recorded: u64, result: u64) -> bool {
    let single = |bits: u64| f32::from_bits(bits as u32);
    let special = |value: f64| !value.is_finite() || value == 0.0;
    if recorded == result {
        return true;
    }
    match agreement {
        Agreement::Bits => false,
        Agreement::Ulps(ulps) => {
            let (a, b) = (single(recorded), single(result));
            a.is_finite() && b.is_finite() && ordered32(a).abs_diff(ordered32(b)) <= u64::from(ulps * errors)
        }
        Agreement::NearOne(error) => {
            let (a, b) = (f64::from(single(recorded)), f64::from(single(result)));
            let allowed = if (0.5..=2.0).contains(&single(argument)) { error } else { error * a.abs() };
            let rounding = a.abs() * f64::from(f32::EPSILON) / 2.0;
            !special(a) && !special(b) && (a - b).abs() <= allowed * f64::from(errors) + rounding
        }
        Agreement::UpperWord(units) => {
            let (a, b) = (f64::from_bits(recorded), f64::from_bits(result));
            let near = (recorded >> 32).abs_diff(result >> 32) <= u64::from(units * errors);
            !special(a) && !special(b) && near && recorded as u32 == result as u32
        }
    }
}

/// Maps a float to an integer; neighbouring floats map to consecutive integers.
fn ordered32(value: f32) -> i64 {
    let bits = i64::from(value.to_bits() & 0x7fff_ffff);
    if value.is_sign_negative() { -bits } else { bits }
}

/// The checked-in recording.
///
/// # Errors
/// A description of its first defect.
pub fn recorded() -> Result<Recording, String> {
    Recording::from_bytes(include_bytes!("../../vectors/recorded.bin"))
}
