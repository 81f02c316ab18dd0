//! `millpond info`: what this binary is made of, which devices it sees, and why there is no GPU.
//!
//! ```text
//!   millpond 0.1.0 (DataFusion 55.2.0)
//!   cuda   none: no NVIDIA driver found (libcuda.so.1 not loadable)
//!   sim    simulated device · 8 GiB, of which the pool may hold 6 GiB from cuda_async
//! ```

use millpond::DeviceChoice;
use serde_json::json;

use crate::args::{InfoArgs, SessionArgs};
use crate::error::{CliError, Exit};
use crate::query::bytes;
use crate::session;

/// Prints the devices. Asking for a device by `--device` shows that one alone.
///
/// # Errors
/// Exit 2 for a device that is no device's name, and for an option that is wrong.
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
        let version = env!("CARGO_PKG_VERSION");
        println!(
            "{}",
            json!({ "millpond": version, "datafusion": millpond::datafusion::DATAFUSION_VERSION, "devices": devices })
        );
        return Ok(Exit::Ok);
    }
    println!("millpond {} (DataFusion {})", env!("CARGO_PKG_VERSION"), millpond::datafusion::DATAFUSION_VERSION);
    for (choice, found) in devices {
        match found {
            Ok(found) => println!("{:6} {}", choice.to_string(), found.line()),
            Err(reason) => println!("{:6} none: {reason}", choice.to_string()),
        }
    }
    Ok(Exit::Ok)
}

/// A device that opened, with the options that are set.
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

/// # Errors
/// An option that is wrong, which no device can help.
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
