//! A promise in hand, and the futures that end in one.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{MemoryGovernor, Participant, Request};
use crate::error::{MemoryError, Result};
use crate::ids::{MemorySpace, Refusal};
use crate::units::ByteSize;

/// Maximum number of spiller calls for one request that does not wait.
const MAX_ATTEMPTS: u32 = 8;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread is asking spillers. What they ask for is not answered by asking spillers again.
pub(super) struct Inside {
    stays: PhantomData<*const ()>,
}

impl Inside {
    pub(super) fn enter() -> Option<Inside> {
        (!INSIDE.replace(true)).then(|| Inside { stays: PhantomData })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// A promise of bytes. Dropped, it goes back.
pub struct Reservation {
    participant: Participant,
    space: MemorySpace,
    spillable: bool,
    bytes: u64,
    /// Already being released: counted so that the wait is not mistaken for a deadlock.
    leaving: bool,
}

impl Reservation {
    pub(super) fn empty(participant: Participant, space: MemorySpace, spillable: bool) -> Self {
        Reservation { participant, space, spillable, bytes: 0, leaving: false }
    }

    pub fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes)
    }

    pub fn space(&self) -> MemorySpace {
        self.space
    }

    pub fn is_spillable(&self) -> bool {
        self.spillable
    }

    pub fn participant(&self) -> &Participant {
        &self.participant
    }

    fn governor(&self) -> &MemoryGovernor {
        self.participant.governor()
    }

    fn request(&self, by: ByteSize) -> Request {
        Request { bytes: by, space: self.space, spillable: self.spillable }
    }

    /// Refuses what could never be granted.
    fn check_possible(&self, request: &Request) -> Result<()> {
        let governor = self.governor();
        if governor.state().possible(request) {
            return Ok(());
        }
        governor.state().book_mut(self.space).counts.refused += 1;
        Err(governor.refused(*request, Refusal::TooLarge))
    }

    /// Adds `by` bytes or fails at once; on an error the reservation is unchanged. Spillers are called first, and may
    /// be waited for.
    pub fn try_grow(&mut self, by: ByteSize) -> Result<()> {
        let request = self.request(by);
        self.check_possible(&request)?;
        let (governor, member) = (self.governor().clone(), self.participant.id());
        for attempt in 0.. {
            let (granted, wake) = governor.state().try_now(member, &request);
            wake.into_iter().for_each(Waker::wake);
            if granted {
                self.bytes += by.as_u64();
                governor.keep_below_trigger(self.space, true);
                break;
            }
            let missing = governor.state().missing(&request);
            let asked = attempt < MAX_ATTEMPTS && missing > ByteSize::ZERO;
            if !asked || governor.relieve(self.space, missing, true) == ByteSize::ZERO {
                governor.state().book_mut(self.space).counts.refused += 1;
                return Err(governor.refused(request, Refusal::NoRoom));
            }
        }
        Ok(())
    }

    /// Adds `by` bytes when their turn has come.
    ///
    /// # Errors
    /// [`MemoryError::ReservationRefused`] if it is more than there is, or to end a deadlock; then nothing changed.
    pub fn grow(&mut self, by: ByteSize) -> Grow<'_> {
        let asking = Asking::new(self, by);
        Grow { reservation: self, asking }
    }

    /// Gives `by` bytes back, or all if there are fewer. Returns how many.
    pub fn shrink(&mut self, by: ByteSize) -> ByteSize {
        let bytes = by.as_u64().min(self.bytes);
        if bytes > 0 {
            let (member, space, spillable) = (self.participant.id(), self.space, self.spillable);
            let leaving = if self.leaving { bytes } else { 0 };
            self.governor().change(|state| {
                state.book_mut(space).leaving -= leaving;
                state.give_back(member, bytes, space, spillable);
            });
            self.bytes -= bytes;
        }
        ByteSize(bytes)
    }

    /// Takes `bytes` out, as a reservation of their own.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if there are fewer.
    pub fn split(&mut self, bytes: ByteSize) -> Result<Reservation> {
        if bytes.as_u64() > self.bytes {
            let clamp = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            let (wanted, len) = (clamp(bytes.as_u64()), clamp(self.bytes));
            return Err(MemoryError::Range { what: "a split of a reservation", offset: 0, wanted, len });
        }
        self.bytes -= bytes.as_u64();
        let (participant, space, spillable, leaving) =
            (self.participant.clone(), self.space, self.spillable, self.leaving);
        Ok(Reservation { participant, space, spillable, bytes: bytes.as_u64(), leaving })
    }

    /// Takes all of `other` in, which is of the same governor, space and kind.
    ///
    /// # Errors
    /// [`MemoryError::Setting`] if it is not; `other` then goes back.
    pub fn merge(&mut self, mut other: Reservation) -> Result<()> {
        let same = Arc::ptr_eq(&self.governor().inner, &other.governor().inner)
            && (self.space, self.spillable, self.leaving) == (other.space, other.spillable, other.leaving);
        if !same {
            return Err(MemoryError::Setting {
                what: "merged reservation",
                value: format!("{other:?}"),
                valid: format!("one like {self:?}"),
            });
        }
        let bytes = std::mem::take(&mut other.bytes);
        let (from, to, space) = (other.participant.id(), self.participant.id(), self.space);
        self.governor().change(|state| state.hand_over(from, to, bytes, space));
        self.bytes += bytes;
        Ok(())
    }

    /// All of it, as another reservation; this one is empty.
    pub fn take(&mut self) -> Reservation {
        let (participant, space) = (self.participant.clone(), self.space);
        let empty = Reservation { participant, space, spillable: self.spillable, bytes: 0, leaving: self.leaving };
        std::mem::replace(self, empty)
    }

    /// Marks the memory as being released: until this is dropped, no waiter counts as deadlocked.
    pub(crate) fn start_leaving(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.governor().state().book_mut(self.space).leaving += self.bytes;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(ByteSize::MAX);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.spillable { ", spillable" } else { "" };
        write!(f, "{} of {} memory for {:?}{kind}", self.bytes(), self.space, self.participant)
    }
}

/// A request on its way.
struct Asking {
    participant: Participant,
    request: Request,
    /// Its place in the queue. `None` before the first look and after the answer.
    ticket: Option<u64>,
}

impl Asking {
    fn new(reservation: &Reservation, by: ByteSize) -> Self {
        Asking { participant: reservation.participant.clone(), request: reservation.request(by), ticket: None }
    }

    fn poll(&mut self, reservation: &mut Reservation, waker: &Waker) -> Option<Result<()>> {
        let governor = self.participant.governor().clone();
        let request = self.request;
        let look = |ticket: u64, end_deadlock: bool| {
            let (outcome, wake) = governor.state().look(ticket, waker, end_deadlock);
            wake.into_iter().for_each(Waker::wake);
            outcome
        };
        let first = self.ticket.is_none();
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None => {
                if let Err(error) = reservation.check_possible(&request) {
                    return Some(Err(error));
                }
                *self.ticket.insert(governor.state().ask(self.participant.id(), &request))
            }
        };
        let mut outcome = look(ticket, false);
        if outcome.is_none() {
            if first {
                governor.state().book_mut(request.space).counts.waited += 1;
            }
            // What stays, and what of it is too much for this request; what is on its way already needs no asking.
            let standing = || {
                let state = governor.state();
                let book = state.book(request.space);
                let leaving = ByteSize(book.leaving);
                (ByteSize(book.reserved).saturating_sub(leaving), state.missing(&request).saturating_sub(leaving))
            };
            loop {
                let (before, missing) = standing();
                let asked = missing > ByteSize::ZERO
                    && governor.relieve(request.space, missing, false) > ByteSize::ZERO
                    && standing().0 < before;
                outcome = look(ticket, !asked);
                if outcome.is_some() || !asked {
                    break;
                }
            }
        }
        let outcome = outcome?;
        self.ticket = None;
        let answer = governor.answer(request, outcome);
        if answer.is_ok() {
            reservation.bytes += request.bytes.as_u64();
            governor.keep_below_trigger(request.space, false);
        }
        Some(answer)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.participant.governor().change(|state| state.withdraw(ticket));
        }
    }
}

/// Ends when a reservation has grown.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Grow<'a> {
    reservation: &'a mut Reservation,
    asking: Asking,
}

impl Future for Grow<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Grow { reservation, asking } = &mut *self;
        match asking.poll(reservation, context.waker()) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

/// Ends in a reservation.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Reserve {
    /// `None` once it is ready.
    reservation: Option<Reservation>,
    asking: Asking,
}

impl Reserve {
    pub(super) fn new(reservation: Reservation, bytes: ByteSize) -> Self {
        let asking = Asking::new(&reservation, bytes);
        Reserve { reservation: Some(reservation), asking }
    }
}

impl Future for Reserve {
    type Output = Result<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Reserve { reservation, asking } = &mut *self;
        let mut own = reservation.take().expect("a future is not polled after it is ready");
        match asking.poll(&mut own, context.waker()) {
            Some(answer) => Poll::Ready(answer.map(|()| own)),
            None => {
                *reservation = Some(own);
                Poll::Pending
            }
        }
    }
}
