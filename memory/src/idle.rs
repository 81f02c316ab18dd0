//! Trims a pool after it has been idle for some time.
//!
//!   use ends ─── no use begins, no allocation or free ───┤ the time is over ─► trim, once ─► asleep until the next use
//!
//! Why        a pool keeps freed memory, so that the next query need not allocate from the driver. Without a trim,
//!            another process on the device could not use that memory.
//! Kept       memory in use.
//! Waits      only its own thread waits for the device, and it holds no lock meanwhile. A use that begins in that
//!            moment allocates new memory.
//! Thread     one per pool, asleep while there is nothing to do. It keeps neither pool nor process alive, and ends with
//!            the `IdleTrim`.
//! Clock      the system's, or one that a test sets; `look` is the thread's step.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::MemoryError;
use crate::leave::is_leaving;
use crate::pool::{MemoryPool, PoolInner};
use crate::units::ByteSize;
use crate::watch::Clock;

struct State {
    /// Number of uses that have begun and not ended.
    uses: usize,
    /// Start of the idle time. `None` while a use is active, or after the pool was trimmed.
    idle_since: Option<Duration>,
    /// Total bytes allocated and freed at the last check.
    moved: (u64, u64),
    has_thread: bool,
    stop: bool,
}

struct Shared {
    pool: Weak<PoolInner>,
    after: Duration,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Next action of the thread.
enum Next {
    /// Sleep until a use has ended.
    Sleep,
    /// Check again after this time.
    Wait(Duration),
    Trim(MemoryPool),
    End,
}

/// Trims a pool whenever it has been idle for a given time.
pub struct IdleTrim {
    /// `None`: never trims.
    shared: Option<Arc<Shared>>,
}

impl IdleTrim {
    /// Trims `pool` when it has been idle for `after`; never for `None`.
    pub fn new(pool: &MemoryPool, after: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        let shared = |after| {
            let state = State { uses: 0, idle_since: None, moved: (0, 0), has_thread: false, stop: false };
            let (state, changed) = (Mutex::new(state), Condvar::new());
            Arc::new(Shared { pool: Arc::downgrade(&pool.inner), after, clock, state, changed })
        };
        IdleTrim { shared: after.map(shared) }
    }

    /// Marks the begin of a use.
    pub fn begin(&self) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.state();
        state.uses += 1;
        state.idle_since = None;
    }

    /// Marks the end of a use.
    pub fn end(&self) {
        if let Some(shared) = &self.shared
            && shared.ended()
        {
            let ours = Arc::clone(shared);
            // If the thread cannot be started, the pool keeps its memory.
            let thread = std::thread::Builder::new().name("millpond-idle".into()).spawn(move || ours.run());
            shared.state().has_thread = thread.is_ok();
        }
    }

    /// Trims if it is due. Returns the bytes freed. For tests that set the clock.
    pub fn look(&self) -> Option<ByteSize> {
        let shared = self.shared.as_ref()?;
        let next = shared.next(&mut shared.state());
        if let Next::Trim(pool) = next { Some(trim(&pool)) } else { None }
    }
}

impl Drop for IdleTrim {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.state().stop = true;
            shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of a use. True if the thread has yet to be started.
    fn ended(&self) -> bool {
        let mut state = self.state();
        state.uses = state.uses.saturating_sub(1);
        if state.uses == 0 {
            state.idle_since = Some(self.clock.now());
            self.changed.notify_one();
        }
        state.uses == 0 && !std::mem::replace(&mut state.has_thread, true)
    }

    fn next(&self, state: &mut State) -> Next {
        let Some(inner) = self.pool.upgrade().filter(|_| !state.stop && !is_leaving()) else { return Next::End };
        let Some(since) = state.idle_since else { return Next::Sleep };
        let now = self.clock.now();
        let ledger = &inner.pressure.ledger;
        let moved = (ledger.allocated_total(), ledger.freed_total());
        let since = if state.moved == moved { since } else { now };
        (state.moved, state.idle_since) = (moved, Some(since));
        let passed = now.saturating_sub(since);
        if passed < self.after {
            return Next::Wait(self.after - passed);
        }
        state.idle_since = None;
        Next::Trim(MemoryPool { inner })
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            match self.next(&mut state) {
                Next::End => return,
                Next::Sleep => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Next::Wait(time) => {
                    (state, _) = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner);
                }
                Next::Trim(pool) => {
                    drop(state);
                    trim(&pool);
                    drop(pool);
                    state = self.state();
                }
            }
        }
    }
}

fn trim(pool: &MemoryPool) -> ByteSize {
    match pool.trim_to(ByteSize::ZERO) {
        Ok(bytes) => {
            tracing::debug!(%bytes, "an idle pool was trimmed");
            bytes
        }
        // A shared pool keeps all its memory; a lost device has none to free.
        Err(MemoryError::PoolRule { .. } | MemoryError::DeviceLost { .. }) => ByteSize::ZERO,
        Err(error) => {
            tracing::warn!(%error, "an idle pool was not trimmed");
            ByteSize::ZERO
        }
    }
}
