//! Gives the unused memory of a pool back once nobody has used the pool for a while.
//!
//!   use ends ─── no use begins, nothing is allocated or freed ───┤ the time is over ─► trim, once ─► asleep until the next use
//!
//! Why        a pool keeps what was freed, so that the next query need not ask the driver. Another process on the same device
//!            would wait for that memory for ever.
//! Kept       what is in use.
//! Waits      only its own thread, for the device: no lock is held while the driver works. A use that begins in that moment
//!            takes new memory.
//! Thread     one for each pool, asleep unless there is something to wait for. It keeps neither pool nor process alive, and ends
//!            with the `IdleTrim`.
//! Clock      the system's, or one that a test moves; `look` is what the thread does each time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::MemoryError;
use crate::leave::is_leaving;
use crate::pool::{MemoryPool, PoolInner};
use crate::units::ByteSize;
use crate::watch::Clock;

struct State {
    /// Uses that have begun and not ended.
    uses: usize,
    /// Since when nobody uses it. `None`: somebody does, or it was trimmed since.
    idle_since: Option<Duration>,
    /// Bytes ever allocated and ever freed, when somebody last looked.
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

/// What there is to do.
enum Next {
    /// Nothing, until a use has ended.
    Sleep,
    /// Look again then.
    Wait(Duration),
    Trim(MemoryPool),
    End,
}

/// Trims a pool that nobody has used for a while, for as long as it lives.
pub struct IdleTrim {
    /// `None`: never.
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

    /// Somebody uses the pool from now on.
    pub fn begin(&self) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.state();
        state.uses += 1;
        state.idle_since = None;
    }

    /// A use has ended.
    pub fn end(&self) {
        if let Some(shared) = &self.shared
            && shared.ended()
        {
            let ours = Arc::clone(shared);
            // Without a thread the pool keeps its memory, as it would without this.
            let thread = std::thread::Builder::new().name("millpond-idle".into()).spawn(move || ours.run());
            shared.state().has_thread = thread.is_ok();
        }
    }

    /// Trims if it is time. Returns how much went back. For tests that move the clock.
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

    /// Notes the end of a use. True if there is no thread yet that would see it.
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
        // Shared with other processes, it keeps everything; a lost device has nothing to give.
        Err(MemoryError::PoolRule { .. } | MemoryError::DeviceLost { .. }) => ByteSize::ZERO,
        Err(error) => {
            tracing::warn!(%error, "an idle pool was not trimmed");
            ByteSize::ZERO
        }
    }
}
