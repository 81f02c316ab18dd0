//! Uses of an allocation: the last write, the reads and shares since, and the guards held now.
//!
//! ```text
//!   take(Read, on B)    held guards that conflict? ── of another thread: wait for their release
//!        │                                         └─ of this thread:    an error, since the wait would never end
//!        └─► positions of other streams to wait for: B waits for them on the device
//!   release(.., at)     the use is recorded at `at`; threads that wait for the guard continue
//! ```
//!
//! Order      a read comes after the last write and the shares; a write also after the reads; a share after the last
//!            write and the reads. The stream's own uses are ordered already and not listed.
//! Threads    one lock, held for list operations only. A release without waiting threads wakes none, because waking is
//!            a system call.
//! Pure       no driver and no stream: locks come from `sync`, so that loom can test every interleaving.

use crate::driver::{Access, Site};
use crate::few::Few;
use crate::ids::StreamId;
use crate::order::Position;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// ID of a host thread: cheaper to obtain than the standard library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadNumber(pub(crate) u64);

/// Newest position per stream.
#[derive(Default, Debug)]
struct Users(Few<Position>);

impl Users {
    #[inline]
    fn note(&mut self, position: Position) {
        match self.0.find_mut(|known| known.stream() == position.stream()) {
            Some(known) if known.seq() < position.seq() => *known = position,
            Some(_) => {}
            None => self.0.push(position),
        }
    }
}

/// A use whose work is being submitted.
#[derive(Debug)]
struct Held {
    access: Access,
    stream: StreamId,
    thread: ThreadNumber,
    site: Site,
}

/// A guard that this thread already holds and would have to wait for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnConflict {
    pub(crate) held: Access,
    pub(crate) site: Site,
}

#[derive(Debug)]
struct State {
    write: Position,
    readers: Users,
    sharers: Users,
    newest: Position,
    held: Few<Held>,
    /// Number of threads that wait for a release.
    waiting: u32,
}

impl State {
    /// Everything that `access` must be ordered after, except work of `stream` itself. The last write comes last,
    /// because reads and shares mostly imply it.
    #[inline(always)]
    fn before(&self, access: Access, stream: StreamId) -> Few<Position> {
        let mut positions = Few::new();
        let mut add = |position: &Position| {
            if position.stream() != stream {
                positions.push(*position);
            }
        };
        if access != Access::Read {
            self.readers.0.iter().for_each(&mut add);
        }
        if access != Access::Atomic {
            self.sharers.0.iter().for_each(&mut add);
        }
        add(&self.write);
        positions
    }

    #[inline(always)]
    fn note(&mut self, access: Access, position: Position) {
        self.newest = position;
        match access {
            Access::Read => self.readers.note(position),
            Access::Atomic => self.sharers.note(position),
            Access::Write | Access::ReadWrite => {
                self.write = position;
                self.readers.0.clear();
                self.sharers.0.clear();
            }
        }
    }
}

fn conflict(a: Access, b: Access) -> bool {
    !matches!((a, b), (Access::Read, Access::Read) | (Access::Atomic, Access::Atomic))
}

/// The uses of an allocation.
#[derive(Debug)]
pub(crate) struct Uses {
    state: Mutex<State>,
    released: Condvar,
}

impl Uses {
    /// The allocation counts as the first write.
    pub(crate) fn new(allocated: Position) -> Self {
        let state = State {
            write: allocated,
            readers: Users::default(),
            sharers: Users::default(),
            newest: allocated,
            held: Few::new(),
            waiting: 0,
        };
        Uses { state: Mutex::new(state), released: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a use: waits on the host until no other thread holds a conflicting guard, and returns the positions that
    /// the stream must wait for on the device before the work is submitted.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        access: Access,
        stream: StreamId,
        thread: ThreadNumber,
        site: Site,
    ) -> Result<Few<Position>, OwnConflict> {
        let mut state = self.state();
        // One stream used by one thread is always in order.
        let stands_in_the_way =
            |held: &Held| conflict(held.access, access) && (held.stream, held.thread) != (stream, thread);
        while let Some(held) = state.held.find(stands_in_the_way) {
            if held.thread == thread {
                return Err(OwnConflict { held: held.access, site: held.site });
            }
            state.waiting += 1;
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        let before = state.before(access, stream);
        state.held.push(Held { access, stream, thread, site });
        Ok(before)
    }

    /// Ends a use that `take` began. If `used` is set, work up to that position has used the bytes; `noted` is called
    /// with it before another thread can take them.
    #[inline(always)]
    pub(crate) fn release(
        &self,
        access: Access,
        stream: StreamId,
        thread: ThreadNumber,
        used: Option<Position>,
        noted: impl FnOnce(Position),
    ) {
        let mut state = self.state();
        state.held.remove(|held| (held.access, held.stream, held.thread) == (access, stream, thread));
        if let Some(position) = used {
            noted(position);
            state.note(access, position);
        }
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.released.notify_all();
        }
    }

    /// Records a use without a guard, while no other code can access the memory.
    pub(crate) fn note(&self, access: Access, position: Position) {
        self.state().note(access, position);
    }

    /// The newest use, and all others that a free on its stream must be ordered after. No other code can access the
    /// memory.
    pub(crate) fn last(&mut self) -> (Position, Few<Position>) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.newest, state.before(Access::Write, state.newest.stream()))
    }
}
