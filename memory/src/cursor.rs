//! Order of one stream behind a lock, with its newest position readable without the lock.
//!
//! ```text
//!   submit   lock ─ driver call ─ next number ─ unlock    the lock is held across the call: our order is the driver's
//!   wait     lock theirs ─ mark ─ unlock · lock own ─ driver call ─ join ─ unlock      one stream's lock at a time
//!   newest   one load
//! ```
//!
//! Pure       no driver: locks come from `sync`, so that loom can test every interleaving.

use std::ops::{Deref, DerefMut};

use crate::order::OrderTracker;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The order of one stream. `E` is an event; tests use plain numbers.
#[derive(Debug)]
pub(crate) struct Cursor<E> {
    order: Mutex<OrderTracker<E>>,
    newest: AtomicU64,
}

impl<E> Cursor<E> {
    pub(crate) fn new(order: OrderTracker<E>) -> Self {
        Cursor { order: Mutex::new(order), newest: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> Locked<'_, E> {
        Locked { order: self.order.lock().unwrap_or_else(PoisonError::into_inner), newest: &self.newest }
    }

    /// Locks unless another thread holds the lock, which may be inside a driver call that does not return.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, E>> {
        let order = match self.order.try_lock() {
            Ok(order) => order,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { order, newest: &self.newest })
    }

    /// Number of the newest work: includes all work whose submission happened before this call.
    #[inline(always)]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }
}

/// The locked order of a stream.
pub(crate) struct Locked<'a, E> {
    order: MutexGuard<'a, OrderTracker<E>>,
    newest: &'a AtomicU64,
}

impl<E> Deref for Locked<'_, E> {
    type Target = OrderTracker<E>;
    fn deref(&self) -> &OrderTracker<E> {
        &self.order
    }
}

impl<E> DerefMut for Locked<'_, E> {
    fn deref_mut(&mut self) -> &mut OrderTracker<E> {
        &mut self.order
    }
}

impl<E> Drop for Locked<'_, E> {
    /// Runs while the lock is still held.
    fn drop(&mut self) {
        self.newest.store(self.order.seq(), Ordering::Release);
    }
}
