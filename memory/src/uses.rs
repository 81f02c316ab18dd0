//! Who uses a piece of memory: the last write, the readers and sharers since, and the guards that are held right now.
//!
//! ```text
//!   take(Read, on B)    held guards that conflict? ── of another thread: wait for their release
//!        │                                         └─ of this thread:    an error, waiting would never end
//!        └─► what of other streams it comes after: B waits for that on the device
//!   release(.., at)     the use stands at `at`; who waits for the guard goes on
//! ```
//!
//! Order      a read comes after the last write and the sharers; a write after the readers, too; a share after the last write
//!            and the readers. What the stream itself did is in order by itself and not mentioned.
//! Threads    one lock, held for list work only. Nobody is woken where nobody waits: waking is a system call.
//! Pure       no driver and no stream: locks come from `sync`, so that loom can try every interleaving.

use crate::driver::{Access, Site};
use crate::few::Few;
use crate::order::Position;
use crate::stream::StreamId;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A host thread, by a number of ours: cheaper to come by than the standard library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadNumber(pub(crate) u64);

/// The newest positions, one for each stream.
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

/// A use that is being submitted.
#[derive(Debug)]
struct Held {
    access: Access,
    stream: StreamId,
    thread: ThreadNumber,
    site: Site,
}

/// What this thread holds already, and would wait for itself.
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
    /// Threads that wait for a release.
    waiting: u32,
}

impl State {
    /// Everything that `access` comes after, but for what `stream` did itself; the last write at the end, because readers
    /// and sharers imply it mostly.
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

/// The uses of one piece of memory.
#[derive(Debug)]
pub(crate) struct Uses {
    state: Mutex<State>,
    released: Condvar,
}

impl Uses {
    /// Allocation counts as the first write.
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

    /// Begins a use: waits on the host until no other thread holds a guard that conflicts, and returns what the stream has
    /// to wait for on the device before it is given the work.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        access: Access,
        stream: StreamId,
        thread: ThreadNumber,
        site: Site,
    ) -> Result<Few<Position>, OwnConflict> {
        let mut state = self.state();
        // One stream used by one thread is in order by itself.
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

    /// Ends a use that `take` began. With a position, what was submitted up to it used the bytes; `noted` then sees it before
    /// anybody else can take them.
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

    /// Notes a use that needed no guard, because nobody else knows of the memory yet.
    pub(crate) fn note(&self, access: Access, position: Position) {
        self.state().note(access, position);
    }

    /// The newest use, and all that a free on its stream comes after beside it. Nobody else knows of the memory any more.
    pub(crate) fn last(&mut self) -> (Position, Few<Position>) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.newest, state.before(Access::Write, state.newest.stream()))
    }
}
