//! `millpond info`: the build of this binary, the devices it finds, and why it finds no GPU.
//!
//! ```text
//!   millpond 0.1.0 (commit 3dab2ef9a, DataFusion 55.2.0, features: none)
//!   needs  glibc 2.28 in packages (2.36 here); for a GPU NVIDIA driver 535 and compute capability 7.0, or newer
//!   caches kernels in /home/me/.cache/millpond/kernels; columns on the device, as millpond.cache says
//!   cuda   none: no NVIDIA driver found (libcuda.so.1 not loadable)
//!   sim    simulated device · 8 GiB, of which the pool may hold 6 GiB from cuda_async
//! ```

use millpond::DeviceChoice;
use millpond_memory::driver::cuda::glibc_version;
use serde_json::json;

use crate::args::{InfoArgs, SessionArgs};
use crate::error::{CliError, Exit};
use crate::query::bytes;
use crate::{session, version};

/// Prints the devices; with `--device` only that one.
///
/// # Errors
/// Exit 2 for an unknown device name, and for a wrong option.
pub fn run(args: &InfoArgs, session: &SessionArgs) -> Result<Exit, CliError> {
    let choices = match &session.device {
        Some(text) => {
            let choice: DeviceChoice = text
                .parse()
                .map_err(|expected| CliError::usage(format!("--device cannot be '{text}': it takes {expected}")))?;
            vec![choice]
        }
        None => vec![DeviceChoice::Cuda(0), DeviceChoice::Sim],
    };
    let mut devices: Vec<(DeviceChoice, Result<Found, String>)> = Vec::new();
    for choice in choices {
        devices.push((choice, look(choice, session)?));
    }
    if args.json {
        let devices: Vec<_> = devices
            .iter()
            .map(|(choice, found)| match found {
                Ok(found) => json!({
                    "device": choice.to_string(),
                    "available": true,
                    "description": found.description,
                    "memory_resource": found.memory_resource,
                    "memory_bytes": found.memory_bytes,
                    "memory_limit_bytes": found.limit_bytes,
                }),
                Err(reason) => json!({ "device": choice.to_string(), "available": false, "reason": reason }),
            })
            .collect();
        println!(
            "{}",
            json!({
                "millpond": version::VERSION,
                "commit": version::COMMIT,
                "datafusion": millpond::datafusion::DATAFUSION_VERSION,
                "features": version::features(),
                "glibc": glibc_version(),
                "needs": {
                    "glibc": version::GLIBC_FLOOR,
                    "nvidia_driver": version::DRIVER_FLOOR,
                    "compute_capability": version::COMPUTE_FLOOR,
                },
                "kernel_cache": kernel_cache(session)?,
                "devices": devices,
            })
        );
        return Ok(Exit::Ok);
    }
    println!("millpond {}", version::line());
    let here = glibc_version().map_or("another C library here".to_string(), |version| format!("{version} here"));
    println!(
        "needs  glibc {} in packages ({here}); for a GPU NVIDIA driver {} and compute capability {}, or newer",
        version::GLIBC_FLOOR,
        version::DRIVER_FLOOR,
        version::COMPUTE_FLOOR
    );
    println!("caches kernels in {}; columns on the device, as millpond.cache says", kernel_cache(session)?);
    for (choice, found) in devices {
        match found {
            Ok(found) => println!("{:6} {}", choice.to_string(), found.line()),
            Err(reason) => println!("{:6} none: {reason}", choice.to_string()),
        }
    }
    Ok(Exit::Ok)
}

/// An opened device, with the options that are set.
struct Found {
    description: String,
    memory_resource: Option<&'static str>,
    memory_bytes: Option<u64>,
    limit_bytes: Option<u64>,
}

impl Found {
    fn line(&self) -> String {
        match (self.memory_resource, self.memory_bytes, self.limit_bytes) {
            (Some(resource), Some(memory), Some(limit)) => format!(
                "{} · {}, of which the pool may hold {} from {resource}",
                self.description,
                bytes(memory),
                bytes(limit)
            ),
            _ => self.description.clone(),
        }
    }
}

/// The location of the cache of assembled kernels.
fn kernel_cache(session: &SessionArgs) -> Result<String, CliError> {
    let builder = session::builder(session)?;
    Ok(match builder.options().kernel_cache.as_str() {
        "off" => "none (millpond.kernel_cache = 'off')".to_string(),
        "auto" => millpond::device::usual_kernel_cache()
            .map_or("none (no HOME)".to_string(), |folder| folder.display().to_string()),
        folder => folder.to_string(),
    })
}

/// # Errors
/// For a wrong option, regardless of the device.
fn look(choice: DeviceChoice, session: &SessionArgs) -> Result<Result<Found, String>, CliError> {
    if choice == DeviceChoice::Cpu {
        let description = "queries run on the CPU by DataFusion alone".to_string();
        return Ok(Ok(Found { description, memory_resource: None, memory_bytes: None, limit_bytes: None }));
    }
    match session::builder(session)?.with_device(choice).build() {
        Ok(session) => Ok(match session.engine() {
            Some(engine) => Ok(Found {
                description: engine.name().to_string(),
                memory_resource: Some(engine.memory_resource().name()),
                memory_bytes: Some(engine.device().limits().total_memory.as_u64()),
                limit_bytes: Some(engine.pool().limit().as_u64()),
            }),
            None => Err(session.device_note().unwrap_or("no device").to_string()),
        }),
        Err(millpond::EngineError::DeviceMissing { reason, .. }) => Ok(Err(reason)),
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}
