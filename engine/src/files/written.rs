//! Counts a session's writes of files: folder facts recorded before a write are outdated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::execution::config::SessionConfig;

/// Number of statements of one session that have written files.
#[derive(Debug, Default)]
pub(crate) struct Writes(AtomicU64);

impl Writes {
    /// Adds a write counter to a session's configuration.
    pub fn add_to(config: &mut SessionConfig) {
        config.set_extension(Arc::new(Self::default()));
    }

    /// Counts a statement that wrote files.
    pub(super) fn note(config: &SessionConfig) {
        if let Some(writes) = config.get_extension::<Self>() {
            writes.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Write count of a session; 0 without a counter.
    pub fn of(config: &SessionConfig) -> u64 {
        config.get_extension::<Self>().map_or(0, |writes| writes.0.load(Ordering::Relaxed))
    }
}
