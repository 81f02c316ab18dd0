//! Threads of Python's when it ends.
//!
//! ```text
//!   a daemon thread in a query ─► the query ends ─► Returning ─► takes the GIL ─► back in Python
//!                                                   parked, once Python ends
//! ```
//!
//! A thread that asks for the GIL of a Python that has ended is ended there, in the middle of Rust's frames: the
//! process aborts. Python waits for its other threads itself, before it calls `begin`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often threads that return to Python are looked for.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct State {
    has_begun: bool,
    /// Threads that take the GIL, or have it.
    returning: usize,
}

static STATE: Mutex<State> = Mutex::new(State { has_begun: false, returning: 0 });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread on its way to the GIL. Python does not end before it is dropped.
#[derive(Debug)]
pub struct Returning(());

impl Returning {
    /// `None` once Python ends.
    pub fn begin() -> Option<Self> {
        let mut state = state();
        if state.has_begun {
            return None;
        }
        state.returning += 1;
        Some(Self(()))
    }

    /// The same for a thread of Python's, which never comes back from here once Python ends.
    pub fn or_park() -> Self {
        loop {
            match Self::begin() {
                Some(returning) => return returning,
                None => thread::park(),
            }
        }
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        state().returning -= 1;
    }
}

/// Lets no further thread return to Python, and waits for those on their way. The caller does not hold the GIL.
pub fn begin(longest: Duration) {
    state().has_begun = true;
    let deadline = Instant::now() + longest;
    while state().returning > 0 && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
}
