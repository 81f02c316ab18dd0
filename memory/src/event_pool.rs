//! Pool of unused event handles.
//!
//! Ownership  a handle is either in the pool or owned by one recorded event, whose last clone returns it: a handle that
//!            is still waited for is never recorded again.
//! Pure       no driver: locks come from `sync`, so that loom can test every interleaving.

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

    /// Removes all handles, to be destroyed.
    pub(crate) fn drain(&self) -> Vec<EventHandle> {
        std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
