//! Errors of the engine, and predicates for callers.
//!
//!   EngineError ─► DataFusionError::External ─► … contexts … ─► EngineError::find ─► predicates
//!
//! Facts are fields; messages are formatted from them. In DataFusion an [`EngineError`] is wrapped in `External`;
//! [`EngineError::find`] unwraps it, whatever contexts surround it.

#[doc(hidden)]
pub mod failure;
#[doc(hidden)]
pub mod panics;
#[doc(hidden)]
pub mod reason;

use std::error::Error;

use datafusion::error::DataFusionError;

use crate::error::panics::Whose;

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The requested device does not exist.
    #[error("device {device} is not available: {reason}; choose device auto or cpu to run on the CPU")]
    DeviceMissing {
        /// The device as requested.
        device: String,
        /// Why it is missing.
        reason: String,
    },
    /// `millpond.fallback = 'error'`, and part of the query would run on the CPU.
    #[error(
        "part of the query would run on the CPU, which millpond.fallback = 'error' forbids: {}; \
         set millpond.fallback to 'allow' or 'warn' to run it",
        .reasons.join("; ")
    )]
    FallbackForbidden {
        /// Why parts of the query have no device form.
        reasons: Vec<String>,
    },
    /// No option has this name.
    #[error("there is no option {name}{}", match .suggestion { Some(s) => format!("; did you mean {s}?"), None => String::new() })]
    UnknownOption {
        /// The unknown name.
        name: String,
        /// The nearest name.
        suggestion: Option<String>,
    },
    /// The option exists, but does not accept this value.
    #[error("option {name} cannot be '{value}': it takes {expected}")]
    OptionValue {
        /// The option.
        name: String,
        /// The rejected value.
        value: String,
        /// The accepted values.
        expected: String,
    },
    /// The option is fixed when a device opens, and a device is open.
    #[error(
        "option {name} cannot become '{value}' while the device is open: it is {now} since the session began; \
         start a session with {}{value} or {}={value}",
        flag_of(name),
        variable_of(name)
    )]
    OptionFixed {
        /// The option.
        name: String,
        /// The rejected value.
        value: String,
        /// The current value.
        now: String,
    },
    /// A file that an option names cannot be written.
    #[error("cannot write '{path}', which {option} names: {reason}")]
    File {
        /// The option that names the file.
        option: &'static str,
        /// The path.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// The device failed during a query, and a CPU fallback is not possible.
    #[error("the device could not finish the query: {what}")]
    DeviceTrouble {
        /// Description of the failure.
        what: String,
        /// A CPU fallback is forbidden (`millpond.fallback = 'error'`).
        forbidden: bool,
        /// The device is lost.
        lost: bool,
        /// Its memory was exhausted.
        out_of_memory: bool,
    },
    /// The process was forked after the device was opened.
    #[error(
        "{device} was opened by process {opened_by}, of which this one is a fork: no device can be used across a fork; \
         start processes by spawn, or open the session after the fork"
    )]
    Forked {
        /// The name of the device.
        device: String,
        /// ID of the process that opened it.
        opened_by: u32,
    },
    /// A device was to be added to a session state that already has one.
    #[error("this session state has a device: with_millpond is called once, on a state that Millpond has not built")]
    HasDevice,
    /// The run skipped its launches, as requested by an option.
    #[error(
        "millpond.debug_sim_skip_launches is on, and this plan ran without its kernels, so it has no answer{}; \
         set the option to false for one",
        match .trouble { Some(trouble) => format!(" ({trouble})"), None => String::new() }
    )]
    LaunchesSkipped {
        /// An additional error of the run.
        trouble: Option<String>,
    },
    /// An invariant of this crate was violated; the query is refused rather than answered wrongly.
    #[error("internal error of the engine: {what}")]
    Internal {
        /// Description of the invariant.
        what: String,
    },
    /// Code panicked while a statement was planned or ran.
    #[error(
        "internal error in {whose}: {message} (a panic{}); it ended this statement alone",
        match .place { Some(place) => format!(" at {place}"), None => String::new() }
    )]
    Panicked {
        /// Owner of the code that panicked.
        whose: Whose,
        /// The panic's message.
        message: String,
        /// File and line.
        place: Option<String>,
    },
}

impl EngineError {
    /// The engine's error inside a DataFusion error, whatever contexts surround it.
    pub fn find(error: &DataFusionError) -> Option<&EngineError> {
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(e) = next {
            if let Some(found) = e.downcast_ref::<EngineError>() {
                return Some(found);
            }
            if let Some(shared) = e.downcast_ref::<std::sync::Arc<DataFusionError>>() {
                return Self::find(shared);
            }
            next = e.source();
        }
        None
    }

    /// True if a requested device is absent.
    pub fn is_device_missing(&self) -> bool {
        matches!(self, Self::DeviceMissing { .. })
    }

    /// True if the query needed the CPU although `millpond.fallback = 'error'`.
    pub fn is_forbidden_fallback(&self) -> bool {
        matches!(self, Self::FallbackForbidden { .. } | Self::DeviceTrouble { forbidden: true, .. })
    }

    /// True for an unknown option or a value that an option does not accept.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::UnknownOption { .. } | Self::OptionValue { .. } | Self::OptionFixed { .. })
    }

    /// True if a file cannot be written.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// True if a run skipped its launches because of `millpond.debug_sim_skip_launches`, and otherwise completed.
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::LaunchesSkipped { trouble: None })
    }

    /// True if code panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, Self::Panicked { .. })
    }

    /// Error for a violated invariant of this crate.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }
}

/// Command-line flag that sets the option.
fn flag_of(name: &str) -> String {
    match name {
        "millpond.memory_resource" => "--allocator ".into(),
        "millpond.memory_log" => "--memory-log ".into(),
        other => format!("--set {other}="),
    }
}

fn variable_of(name: &str) -> String {
    name.replace('.', "_").to_ascii_uppercase()
}

/// True if `error` says that a requested device is absent.
pub fn is_device_missing(error: &DataFusionError) -> bool {
    EngineError::find(error).is_some_and(EngineError::is_device_missing)
}

/// True if `error` says that the query needed the CPU although `millpond.fallback = 'error'`.
pub fn is_forbidden_fallback(error: &DataFusionError) -> bool {
    EngineError::find(error).is_some_and(EngineError::is_forbidden_fallback)
}

/// True if `error` names an unknown option or a value that an option does not accept.
pub fn is_usage(error: &DataFusionError) -> bool {
    EngineError::find(error).is_some_and(EngineError::is_usage)
}

/// True if `error` says that code panicked while a statement was planned or ran.
pub fn is_panic(error: &DataFusionError) -> bool {
    EngineError::find(error).is_some_and(EngineError::is_panic)
}

impl From<EngineError> for DataFusionError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Internal { what } => DataFusionError::Internal(what),
            other => DataFusionError::External(Box::new(other)),
        }
    }
}
