//! How often a session has written files: what it knew of folders before is of an older state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::execution::config::SessionConfig;

/// Statements that have written files, of one session.
#[derive(Debug, Default)]
pub(crate) struct Writes(AtomicU64);

impl Writes {
    /// Gives a session a number of its own.
    pub fn add_to(config: &mut SessionConfig) {
        config.set_extension(Arc::new(Self::default()));
    }

    /// Notes that files were written.
    pub(super) fn note(config: &SessionConfig) {
        if let Some(writes) = config.get_extension::<Self>() {
            writes.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of a session; 0 for one without.
    pub fn of(config: &SessionConfig) -> u64 {
        config.get_extension::<Self>().map_or(0, |writes| writes.0.load(Ordering::Relaxed))
    }
}
