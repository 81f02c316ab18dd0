//! One engine for each device and its settings in a process.
//!
//!   build() ─ settings ─► an open engine with equal settings, not lost? ─ yes ─► reused
//!                                                                       └─ no ──► opened, and known while it is held
//!
//! Settings  are those that a device is opened with: its number, allocator, limits, logs. Sessions that differ in one
//!           use two engines, each with its own memory: a log line says so.
//! Lost      a lost device is not reused.
//! Forks     a forked process opens its own engine; the engine of its parent returns an error.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::device::{Engine, Opened};
use crate::error::EngineError;
use crate::options::{DeviceChoice, MillpondOptions};

/// Engines that sessions may hold, with their settings.
static ENGINES: Mutex<Vec<(MillpondOptions, Weak<Engine>)>> = Mutex::new(Vec::new());

impl Engine {
    /// This process's engine for the device that `options` name; opened if no session holds it. Sessions built without
    /// an engine of their own use this one.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn shared(options: &MillpondOptions) -> Result<Opened, EngineError> {
        let mut settings = options.of_engine();
        if settings.device == DeviceChoice::Auto {
            settings.device = DeviceChoice::Cuda(0);
        }
        // Held while a device is opened: two sessions that start concurrently share one engine.
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|(_, engine)| engine.strong_count() > 0);
        let mut others = 0;
        for (known, engine) in engines.iter() {
            let Some(engine) = engine.upgrade().filter(|engine| !engine.device().is_lost() && engine.is_of_process())
            else {
                continue;
            };
            if *known == settings {
                return Ok(Opened { engine: Some(engine), note: None });
            }
            others += usize::from(known.device == settings.device);
        }
        let opened = Self::open(options)?;
        if let Some(engine) = &opened.engine {
            if others > 0 {
                tracing::info!(
                    "{} is opened again: other sessions have opened it with other options, and each takes memory of its own",
                    engine.name()
                );
            }
            engines.push((settings, Arc::downgrade(engine)));
        }
        Ok(opened)
    }
}

impl From<&Arc<Engine>> for Opened {
    fn from(engine: &Arc<Engine>) -> Self {
        Self { engine: Some(Arc::clone(engine)), note: None }
    }
}

impl From<&Opened> for Opened {
    fn from(opened: &Opened) -> Self {
        opened.clone()
    }
}
