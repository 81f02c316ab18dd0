//! Promises of memory: who may allocate how much, decided before anything is allocated.
//!
//!   participant ── reserve(bytes) ──► room? ── yes ──► Reservation ── dropped ──► room for others
//!                                      │ no              grow · shrink · split · merge
//!                                      ├─ spillers are asked ── something goes ──┐
//!                                      └─ waits its turn ◄───────────────────────┘ or refused: `try_reserve`, deadlock
//!
//!   0 ───────────────── stop 65 % ───── trigger 85 % ──── capacity     past the trigger: spill down to the stop
//!   ├── spillable requests ──────────────────┤ head-room ┤             the rest is for those who cannot spill
//!
//! Bytes      device and host memory have separate books: a promise in one does not affect the other.
//! Turns      higher priority first; within a priority, participants that hold memory first, since they finish soonest;
//!            then the oldest request. Small requests do not overtake a large one.
//! Deadlock   when every holder of memory waits, the holder with the lowest priority, the youngest among equals, is
//!            refused: it releases or spills memory and retries.
//! Cancelled  a future that is dropped leaves the queue; what it was granted goes back.
//! Threads    one lock, for arithmetic only: spillers are called and wakers woken outside of it.
//!
//! ```
//! use millpond_memory::{ByteSize, MemoryGovernor, MemorySpace, Request};
//!
//! # fn main() -> millpond_memory::Result<()> {
//! let governor = MemoryGovernor::builder(ByteSize::gib(8)).headroom(ByteSize::gib(1)).build()?;
//! let join = governor.participant("query 7/join", 0);
//! let mut table = join.try_reserve(Request::device(ByteSize::gib(5)))?;
//! // Asked for at once or not at all; `reserve(…).await` waits its turn.
//! assert!(join.try_reserve(Request::device(ByteSize::gib(3)).spillable()).is_err());
//! table.shrink(ByteSize::gib(2));
//! assert_eq!(governor.available(MemorySpace::Device), ByteSize::gib(5));
//! # Ok(())
//! # }
//! ```

mod book;
mod reserve;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub use book::{GovernorStatistics, Spills};
use book::{Outcome, State};
pub use reserve::{Grow, Reservation, Reserve};

use crate::error::{Holder, MemoryError, Result};
use crate::ids::{MemorySpace, Refusal};
use crate::units::ByteSize;

/// Limits, in percent of the capacity, at which proactive spilling starts and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    pub trigger_percent: u8,
    pub stop_percent: u8,
}

impl Default for Watermarks {
    /// Far enough apart that spilling comes in batches, not with every request.
    fn default() -> Self {
        Watermarks { trigger_percent: 85, stop_percent: 65 }
    }
}

/// What a participant wants to be promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub bytes: ByteSize,
    pub space: MemorySpace,
    /// The participant releases the memory on request. Other requests may use the head-room.
    pub spillable: bool,
}

impl Request {
    /// Device bytes, for a participant that cannot spill.
    pub fn device(bytes: ByteSize) -> Self {
        Request { bytes, space: MemorySpace::Device, spillable: false }
    }

    /// Host bytes, for a participant that cannot spill.
    pub fn host(bytes: ByteSize) -> Self {
        Request { bytes, space: MemorySpace::Host, spillable: false }
    }

    /// Marks the request as spillable.
    pub fn spillable(self) -> Self {
        Request { spillable: true, ..self }
    }
}

/// What a spiller is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    pub space: MemorySpace,
    pub wanted: ByteSize,
    /// The caller blocks anyway: the spiller may wait until the device has come to its frees.
    pub may_block: bool,
}

/// Releases promised memory and returns the number of bytes that will become free. Called without the governor's lock;
/// must not wait for a reservation.
type Hook = Arc<dyn Fn(Shortage) -> ByteSize + Send + Sync>;

pub struct GovernorBuilder {
    capacity: [ByteSize; 2],
    headroom: ByteSize,
    watermarks: Watermarks,
}

impl GovernorBuilder {
    /// Maximum host memory that is promised. Unlimited by default.
    pub fn host_capacity(mut self, capacity: ByteSize) -> Self {
        self.capacity[1] = capacity;
        self
    }

    /// Device memory that spillable requests leave to the others. None by default.
    pub fn headroom(mut self, headroom: ByteSize) -> Self {
        self.headroom = headroom;
        self
    }

    pub fn watermarks(mut self, watermarks: Watermarks) -> Self {
        self.watermarks = watermarks;
        self
    }

    /// # Errors
    /// [`MemoryError::Setting`] if the stop is above the trigger, the trigger above 100, or the head-room above the
    /// capacity.
    pub fn build(self) -> Result<MemoryGovernor> {
        let Watermarks { trigger_percent: trigger, stop_percent: stop } = self.watermarks;
        if trigger > 100 || stop > trigger {
            return Err(MemoryError::Setting {
                what: "watermarks",
                value: format!("trigger {trigger} %, stop {stop} %"),
                valid: "stop <= trigger <= 100".into(),
            });
        }
        if self.headroom > self.capacity[0] {
            return Err(MemoryError::Setting {
                what: "head-room",
                value: self.headroom.to_string(),
                valid: format!("at most the capacity of {}", self.capacity[0]),
            });
        }
        let state = State::new(self.capacity.map(ByteSize::as_u64), self.headroom.as_u64());
        let inner = GovernorInner { watermarks: self.watermarks, state: Mutex::new(state), hooks: Mutex::default() };
        Ok(MemoryGovernor { inner: Arc::new(inner) })
    }
}

struct GovernorInner {
    watermarks: Watermarks,
    state: Mutex<State>,
    hooks: Mutex<Hooks>,
}

#[derive(Default)]
struct Hooks {
    last_id: u64,
    list: Vec<(u64, Hook)>,
}

/// Promises the memory of one device, and of the host beside it. Clones share it.
#[derive(Clone)]
pub struct MemoryGovernor {
    inner: Arc<GovernorInner>,
}

impl MemoryGovernor {
    /// A governor that promises up to `capacity` bytes of the device, mostly the limit of its pool.
    pub fn builder(capacity: ByteSize) -> GovernorBuilder {
        GovernorBuilder {
            capacity: [capacity, ByteSize::MAX],
            headroom: ByteSize::ZERO,
            watermarks: Watermarks::default(),
        }
    }

    /// Enlists someone who will ask for memory: one per task that waits by itself. Higher priorities have their turn
    /// first, and give way last.
    pub fn participant(&self, name: impl Into<String>, priority: i32) -> Participant {
        let id = self.state().enlist(name.into(), priority);
        Participant { inner: Arc::new(Membership { governor: self.clone(), id }) }
    }

    pub fn capacity(&self, space: MemorySpace) -> ByteSize {
        ByteSize(self.state().book(space).capacity)
    }

    /// What is promised now.
    pub fn reserved(&self, space: MemorySpace) -> ByteSize {
        ByteSize(self.state().book(space).reserved)
    }

    /// What a request of someone who cannot spill could be promised now.
    pub fn available(&self, space: MemorySpace) -> ByteSize {
        let state = self.state();
        let book = state.book(space);
        ByteSize(book.capacity.saturating_sub(book.reserved))
    }

    pub fn statistics(&self, space: MemorySpace) -> GovernorStatistics {
        self.state().statistics(space)
    }

    /// Asks `hook` for room, for as long as the returned handle lives.
    pub fn on_shortage(&self, hook: impl Fn(Shortage) -> ByteSize + Send + Sync + 'static) -> ShortageHook {
        let mut hooks = self.hooks();
        hooks.last_id += 1;
        let id = hooks.last_id;
        hooks.list.push((id, Arc::new(hook)));
        ShortageHook { governor: Arc::downgrade(&self.inner), id }
    }

    /// Something can be spilled that could not before: those who wait look again.
    pub fn nudge(&self) {
        self.change(|_| ());
    }

    /// Panics when the sums do not agree. For tests.
    pub fn check(&self) {
        self.state().check();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hooks(&self) -> MutexGuard<'_, Hooks> {
        self.inner.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the books, and then wakes whom that served.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let value = change(&mut state);
        let served: Vec<Waker> = state.settle();
        drop(state);
        served.into_iter().for_each(Waker::wake);
        value
    }

    /// Asks the spillers for `wanted` bytes. A spiller that itself asks for memory is not asked again meanwhile.
    fn relieve(&self, space: MemorySpace, wanted: ByteSize, may_block: bool) -> ByteSize {
        let Some(_inside) = reserve::Inside::enter() else { return ByteSize::ZERO };
        let hooks: Vec<Hook> = self.hooks().list.iter().map(|(_, hook)| Arc::clone(hook)).collect();
        let mut given = ByteSize::ZERO;
        for hook in hooks {
            let left = wanted.saturating_sub(given);
            if left == ByteSize::ZERO {
                break;
            }
            self.state().book_mut(space).counts.shortages += 1;
            given += hook(Shortage { space, wanted: left, may_block });
        }
        given
    }

    /// Past the trigger, asks for what is above the stop.
    fn keep_below_trigger(&self, space: MemorySpace, may_block: bool) {
        let Watermarks { trigger_percent, stop_percent } = self.inner.watermarks;
        let excess = {
            let mut state = self.state();
            let book = state.book_mut(space);
            let percent = |percent: u8| (u128::from(book.capacity) * u128::from(percent) / 100) as u64;
            let (trigger, stop) = (percent(trigger_percent), percent(stop_percent));
            // What is on its way out already needs no asking.
            let staying = book.reserved - book.leaving.min(book.reserved);
            if book.capacity == u64::MAX || staying <= trigger {
                return;
            }
            book.counts.triggers += 1;
            staying - stop
        };
        self.relieve(space, ByteSize(excess), may_block);
    }

    fn refused(&self, request: Request, why: Refusal) -> MemoryError {
        let state = self.state();
        let book = state.book(request.space);
        let (wanted, space) = (request.bytes, request.space);
        let (reserved, capacity) = (ByteSize(book.reserved), ByteSize(book.capacity));
        let holders: Vec<Holder> = state.largest_holders(space, 3);
        MemoryError::ReservationRefused { wanted, reserved, capacity, space, why, holders }
    }

    fn answer(&self, request: Request, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Granted => Ok(()),
            Outcome::Deadlock => Err(self.refused(request, Refusal::Deadlock)),
        }
    }
}

impl fmt::Debug for MemoryGovernor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let book = state.book(MemorySpace::Device);
        let (reserved, capacity) = (ByteSize(book.reserved), ByteSize(book.capacity));
        write!(f, "governor: {reserved} promised of {capacity}, {} waiting", state.num_waiting(MemorySpace::Device))
    }
}

/// A hook of a governor; dropped, it is not asked any more.
#[must_use = "a hook is asked for as long as this lives"]
pub struct ShortageHook {
    governor: std::sync::Weak<GovernorInner>,
    id: u64,
}

impl Drop for ShortageHook {
    fn drop(&mut self) {
        if let Some(inner) = self.governor.upgrade() {
            let hook = {
                let mut hooks = inner.hooks.lock().unwrap_or_else(PoisonError::into_inner);
                let index = hooks.list.iter().position(|(id, _)| *id == self.id);
                index.map(|index| hooks.list.remove(index))
            };
            drop(hook);
        }
    }
}

struct Membership {
    governor: MemoryGovernor,
    id: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.governor.change(|state| state.leave(self.id));
    }
}

/// Someone who asks for memory. Clones are the same one; a task that waits by itself is one of its own, or a deadlock
/// may go unseen, or be seen too early.
#[derive(Clone)]
pub struct Participant {
    inner: Arc<Membership>,
}

impl Participant {
    pub fn governor(&self) -> &MemoryGovernor {
        &self.inner.governor
    }

    /// What it holds.
    pub fn held(&self, space: MemorySpace) -> ByteSize {
        ByteSize(self.inner.governor.state().held(self.inner.id, space))
    }

    /// Promises the bytes, or says no at once. Spillers are asked before, and may be waited for; other participants are
    /// not.
    ///
    /// # Errors
    /// [`MemoryError::ReservationRefused`], naming the largest holders.
    pub fn try_reserve(&self, request: Request) -> Result<Reservation> {
        let mut reservation = self.empty(request);
        reservation.try_grow(request.bytes)?;
        Ok(reservation)
    }

    /// Promises the bytes when their turn has come.
    ///
    /// # Errors
    /// [`MemoryError::ReservationRefused`] if it is more than there is, or to end a deadlock.
    pub fn reserve(&self, request: Request) -> Reserve {
        Reserve::new(self.empty(request), request.bytes)
    }

    /// A reservation of no bytes, to grow.
    pub fn empty(&self, request: Request) -> Reservation {
        Reservation::empty(self.clone(), request.space, request.spillable)
    }

    fn id(&self) -> u64 {
        self.inner.id
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.governor.state();
        write!(f, "participant {}", state.name(self.inner.id))
    }
}
