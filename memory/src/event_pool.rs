//! Handles of events that nobody holds, to be recorded again.
//!
//! Whose      a handle is either in the pool or behind one recorded event, which gives it back with its last clone: what others
//!            still wait for is never recorded anew.
//! Pure       no driver: locks come from `sync`, so that loom can try every interleaving.

use crate::driver::EventHandle;
use crate::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct EventPool {
    free: Mutex<Vec<EventHandle>>,
}

impl EventPool {
    pub(crate) fn take(&self) -> Option<EventHandle> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn give(&self, handle: EventHandle) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    /// All of them, to be destroyed.
    pub(crate) fn drain(&self) -> Vec<EventHandle> {
        std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
