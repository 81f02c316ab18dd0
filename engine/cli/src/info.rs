//! `millpond info`: what this binary is made of, which devices it sees, and why there is no GPU.
//!
//! ```text
//!   millpond 0.1.0 (DataFusion 55.2.0)
//!   cuda   none: no NVIDIA driver found (libcuda.so.1 not loadable)
//!   sim    simulated device, for tests: …
//! ```

use millpond::{DeviceChoice, Millpond};
use serde_json::json;

use crate::args::{InfoArgs, SessionArgs};
use crate::error::{CliError, Exit};

/// Prints the devices. Asking for a device by `--device` shows that one alone.
///
/// # Errors
/// Exit 2 for a device that is no device's name.
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
    let devices: Vec<(DeviceChoice, Result<String, String>)> = choices.into_iter().map(|c| (c, look(c))).collect();
    if args.json {
        let devices: Vec<_> = devices
            .iter()
            .map(|(choice, found)| match found {
                Ok(device) => json!({ "device": choice.to_string(), "available": true, "description": device }),
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
            Ok(device) => println!("{:6} {device}", choice.to_string()),
            Err(reason) => println!("{:6} none: {reason}", choice.to_string()),
        }
    }
    Ok(Exit::Ok)
}

fn look(choice: DeviceChoice) -> Result<String, String> {
    if choice == DeviceChoice::Cpu {
        return Ok("queries run on the CPU by DataFusion alone".to_string());
    }
    match Millpond::builder().with_device(choice).build() {
        Ok(session) => match session.engine() {
            Some(engine) => Ok(engine.name().to_string()),
            None => Err(session.device_note().unwrap_or("no device").to_string()),
        },
        Err(millpond::EngineError::DeviceMissing { reason, .. }) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}
