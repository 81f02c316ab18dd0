//! Locks and atomics of the concurrent modules: one place, so that tests can replace them.
//!
//! ```text
//!   gate · gauge · uses · cursor · event_pool      `use crate::sync::…`, no driver, no clock
//!   in this crate                                  the standard library's
//!   in the test binary                             loom's, which tests every interleaving of a few threads
//! ```

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}
