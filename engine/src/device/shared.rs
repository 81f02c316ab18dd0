//! One engine for each device and its settings in a process.
//!
//!   build() ─ settings ─► an engine with these, open and alive? ─ yes ─► that one
//!                                                            └─ no ──► opened, and remembered as long as a session holds it
//!
//! Settings  those that a device is opened with: its number, allocator, limits, logs. Sessions that differ in one have two engines, and each
//!           takes memory of its own: a log line says so.
//! Lost      a device that is lost is not handed out again.
//! Forks     a process that was forked opens its own, and gets an error from the engine of its parent.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::device::{Engine, Opened};
use crate::error::EngineError;
use crate::options::{DeviceChoice, MillpondOptions};

/// Engines that sessions may hold, with what they were opened with.
static ENGINES: Mutex<Vec<(MillpondOptions, Weak<Engine>)>> = Mutex::new(Vec::new());

impl Engine {
    /// The engine of this process for the device that `options` name, which is opened if no session holds it. Sessions that are built
    /// without an engine of their own take this one.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn shared(options: &MillpondOptions) -> Result<Opened, EngineError> {
        let mut settings = options.of_engine();
        if settings.device == DeviceChoice::Auto {
            settings.device = DeviceChoice::Cuda(0);
        }
        // Held while a device is opened: two sessions that begin at once have one engine.
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
