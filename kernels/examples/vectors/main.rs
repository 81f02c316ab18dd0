//! `cargo vectors --record FILE | --check [FILE]`: records or compares a GPU's results of every instruction form.
//!
//!   --record FILE   runs the forms on the GPU and writes their results; a simulated device is refused, since its
//!                   results would only be compared with themselves
//!   --check [FILE]  compares the GPU with FILE, or with the checked-in file; without a GPU, the simulated device
//!
//! The program does not read the source tree: built here, it records on any machine with a GPU.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use millpond_kernels::vectors::{self, Recording};
use millpond_memory::driver::CudaDriver;
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::{Device, Driver};

const USAGE: &str = "usage: vectors --record FILE | --check [FILE]";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--record", file] => record(Path::new(file)),
        ["--check"] => check(None),
        ["--check", file] => check(Some(Path::new(file))),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn record(path: &Path) -> Result<(), Box<dyn Error>> {
    let driver = CudaDriver::open().map_err(|reason| format!("vectors are recorded on a GPU only: {reason}"))?;
    let device = Device::open(driver, 0)?;
    let start = Instant::now();
    let (mut recording, refused) = vectors::record(&device, &today())?;
    if let Some(release) = release() {
        recording.driver = format!("{release}, {}", recording.driver);
    }
    let bytes = recording.to_bytes();
    fs::write(path, &bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    for (form, reason) in &refused {
        eprintln!("refused: {form}: {}", reason.trim());
    }
    println!(
        "{}: {} forms, {} vectors, {} bytes, {} refused, {:.1} s on {} (driver {})",
        path.display(),
        recording.forms.len(),
        recording.vectors(),
        bytes.len(),
        refused.len(),
        start.elapsed().as_secs_f64(),
        recording.device,
        recording.driver,
    );
    Ok(())
}

fn check(path: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let recording = match path {
        Some(path) => {
            let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Recording::from_bytes(&bytes).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => vectors::recorded()?,
    };
    let driver: Arc<dyn Driver> = match CudaDriver::open() {
        Ok(driver) => driver,
        Err(reason) => {
            println!("no GPU: {reason}; the simulated device is compared");
            SimDriver::with_seed(1)
        }
    };
    let device = Device::open(driver, 0)?;
    let found = vectors::differences(&device, &recording)?;
    found.iter().for_each(|difference| println!("{difference}"));
    let (forms, vectors) = (recording.forms.len(), recording.vectors());
    match found.len() {
        0 => println!("{forms} forms, {vectors} vectors of {} agree", recording.device),
        many => {
            return Err(
                format!("{many} differences from {forms} forms, {vectors} vectors of {}", recording.device).into()
            );
        }
    }
    Ok(())
}

/// Release of NVIDIA's kernel module, which the driver's API does not report.
fn release() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_string()).filter(|release| !release.is_empty())
}

/// Current UTC date: converts days since 1970 to year, month and day, in years that begin in March.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
