//! The device of a session: found, opened, or explained away.
//!
//!   auto ─► CUDA there? ─ yes ─► Engine          cuda:n ─► Engine or error
//!                     └─ no ──► note, CPU        sim ────► Engine        cpu ─► nothing
//!
//! One [`Engine`] is one device with its pools; sessions and their runs share it behind an `Arc`.

use std::sync::Arc;

use crate::error::EngineError;
use crate::options::{DeviceChoice, MillpondOptions};

/// One device with its pools, shared by the queries that run on it.
#[derive(Debug)]
pub struct Engine {
    name: String,
}

/// What opening a device came to.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    pub engine: Option<Arc<Engine>>,
    /// Why there is no device although one was welcome.
    pub note: Option<String>,
}

impl Engine {
    /// Opens the device that `options.device` names.
    ///
    /// # Errors
    /// [`EngineError::DeviceMissing`] if a device was asked for by name and is absent.
    pub fn open(options: &MillpondOptions) -> Result<Opened, EngineError> {
        let missing = |reason: &str| {
            Err(EngineError::DeviceMissing { device: options.device.to_string(), reason: reason.to_string() })
        };
        match options.device {
            DeviceChoice::Cpu => Ok(Opened::default()),
            DeviceChoice::Auto => Ok(Opened {
                engine: None,
                note: Some(
                    "no NVIDIA driver found (libcuda.so.1 not loadable) – running on CPU. See \"millpond info\"."
                        .to_string(),
                ),
            }),
            DeviceChoice::Cuda(_) => missing("no NVIDIA driver found (libcuda.so.1 not loadable)"),
            DeviceChoice::Sim => missing("the simulated device is not wired to this build yet"),
        }
    }

    /// The device's name, as the driver gives it.
    pub fn name(&self) -> &str {
        &self.name
    }
}
