//! `millpond mem`: comparison and replay of device memory strategies.
//!
//! ```text
//!   millpond mem bench  --device cuda --allocator all --json figures.json
//!   millpond mem replay memory.csv --device sim --allocator caching,arena
//! ```
//!
//! Device   A real one by default; the simulated one reports only counts. There is nothing to measure on the CPU.

mod bench;
mod replay;

use std::sync::Arc;

use comfy_table::{CellAlignment, Table, presets};
use millpond::{DeviceChoice, MillpondOptions};
use millpond_memory::driver::CudaDriver;
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::{Device, Driver, DriverKind, MemoryError, Strategy};
use serde_json::{Value, json};

use crate::args::{MemCommand, SessionArgs};
use crate::error::{CliError, Exit};
use crate::session;

/// Runs one of the commands.
///
/// # Errors
/// Exit 2 for a wrong name, 3 for an absent device, 4 for a file that cannot be read or written, 1 for the rest.
pub fn run(command: &MemCommand, session: &SessionArgs) -> Result<Exit, CliError> {
    // Here --allocator may name several strategies.
    let one = SessionArgs { allocator: None, ..session.clone() };
    let options = session::builder(&one)?.options().clone();
    match command {
        MemCommand::Bench(args) => bench::run(args, session, &options),
        MemCommand::Replay(args) => replay::run(args, session, &options),
    }
}

/// A requested device, and its description.
struct Opened {
    device: Device,
    sim: Option<Arc<SimDriver>>,
}

fn open(options: &MillpondOptions, seed: u64) -> Result<Opened, CliError> {
    let cuda = |ordinal: usize| -> Result<Device, MemoryError> {
        Device::open(CudaDriver::open()?, u32::try_from(ordinal).unwrap_or(u32::MAX))
    };
    let opened = match options.device {
        DeviceChoice::Cpu => {
            return Err(CliError::usage("the CPU has no device memory; --device takes cuda, cuda:N or sim here"));
        }
        DeviceChoice::Sim => {
            let defaults = SimOptions { seed, ..SimOptions::default() };
            let memory_bytes = match options.debug_sim_memory_bytes {
                0 => defaults.memory_bytes,
                bytes => bytes as u64,
            };
            let sim = SimDriver::new(SimOptions { memory_bytes, ..defaults });
            Device::open(Arc::clone(&sim) as Arc<dyn Driver>, 0).map(|device| Opened { device, sim: Some(sim) })
        }
        DeviceChoice::Auto => cuda(0).map(|device| Opened { device, sim: None }),
        DeviceChoice::Cuda(ordinal) => cuda(ordinal).map(|device| Opened { device, sim: None }),
    };
    opened.map_err(|error| CliError {
        exit: Exit::Device,
        message: format!("there is no device to use: {error}; --device sim gives counts without a GPU"),
    })
}

/// The strategies of `--allocator` (several, or `all`); `default` if the flag is absent.
pub fn strategies(session: &SessionArgs, default: &[Strategy]) -> Result<Vec<Strategy>, CliError> {
    let Some(list) = &session.allocator else { return Ok(default.to_vec()) };
    let mut found = Vec::new();
    for name in list.split(',').map(str::trim) {
        let more = match name {
            "all" => Strategy::ALL.to_vec(),
            name => {
                // Use the option's own error message, with the nearest name.
                let mut options = MillpondOptions::default();
                options.try_set("memory_resource", name).map_err(|error| session::flag("--allocator", error))?;
                vec![options.memory_resource]
            }
        };
        found.extend(more.into_iter().filter(|strategy| !found.contains(strategy)).collect::<Vec<_>>());
    }
    Ok(found)
}

/// The device properties needed to interpret a figure.
fn described(device: &Device) -> Value {
    let limits = device.limits();
    let driver = device.driver();
    json!({
        "name": limits.name,
        "kind": if driver.kind() == DriverKind::Sim { "sim" } else { "cuda" },
        "cuda_driver": driver.version().to_string(),
        "driver_release": release(device),
        "compute_capability": format!("{}.{}", limits.compute_capability.0, limits.compute_capability.1),
        "memory_bytes": limits.total_memory.as_u64(),
    })
}

/// The device's description in one line.
fn described_in_words(device: &Device) -> String {
    let limits = device.limits();
    let release = release(device).map(|release| format!("driver {release}, ")).unwrap_or_default();
    format!("{} · {} · {release}CUDA {}", limits.name, limits.total_memory, device.driver().version())
}

/// The driver's release, if the system reports it.
fn release(device: &Device) -> Option<String> {
    if device.driver().kind() == DriverKind::Sim {
        return None;
    }
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}

/// The command as it was typed.
fn command_line() -> String {
    std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// A table of figures: the first column has names, the others numbers.
fn figures(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_string(), |share| format!("{:.1} %", share * 100.0))
}

fn memory(error: MemoryError) -> CliError {
    let exit = if error.is_unavailable() { Exit::Device } else { Exit::Sql };
    CliError { exit, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_strategies_each_once() {
        let chosen = |list: &str| {
            let session = SessionArgs { allocator: Some(list.to_string()), ..SessionArgs::default() };
            strategies(&session, &[]).map_err(|error| error.message)
        };
        assert_eq!(chosen("arena, cuda,arena"), Ok(vec![Strategy::Arena, Strategy::Cuda]));
        assert_eq!(chosen("binning,all").map(|all| all.len()), Ok(6));
        assert!(chosen("cuda,cachin").unwrap_err().contains("did you mean caching?"));
        assert!(chosen("").is_err());
    }
}
