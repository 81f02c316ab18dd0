//! The arithmetic of promises: books, participants and those who wait. No hook, no waker is called here.
//!
//!   queue    [ prio 5, holds | prio 5 | prio 0, holds | prio 0 | prio 0 ]
//!   settle   grants from the front while there is room; who stands behind one that lacks room waits with it
//!            (but for those who may use the head-room, when only that is left)
//!   stuck    no request can be granted, and every holder waits ─► one holder's requests are refused, then settle

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::task::Waker;

use super::Request;
use crate::error::Holder;
use crate::ids::MemorySpace;
use crate::units::ByteSize;

/// Counts of one book.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GovernorStatistics {
    pub capacity: ByteSize,
    /// Promised now, the most ever, and in sum.
    pub reserved: ByteSize,
    pub reserved_peak: ByteSize,
    pub reserved_total: u64,
    /// Promised to what is spilled, until the device has come to its free.
    pub leaving: ByteSize,
    /// Requests that wait now, and that ever did.
    pub waiting: usize,
    pub waited: u64,
    pub granted: u64,
    pub refused: u64,
    /// Of the refused, those that ended a deadlock.
    pub deadlocks: u64,
    /// Requests whose future was dropped while they waited.
    pub cancelled: u64,
    pub spills: Spills,
}

/// Occasions on which participants were to spill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spills {
    /// The trigger was passed.
    pub triggers: u64,
    /// Spillers were called.
    pub shortages: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) peak: u64,
    pub(super) total: u64,
    pub(super) waited: u64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) deadlocks: u64,
    pub(super) cancelled: u64,
    pub(super) triggers: u64,
    pub(super) shortages: u64,
}

pub(super) struct Book {
    pub(super) capacity: u64,
    headroom: u64,
    pub(super) reserved: u64,
    /// Of `reserved`, what can be spilled.
    spillable: u64,
    /// Of `reserved`, what comes back by itself.
    pub(super) leaving: u64,
    pub(super) counts: Counts,
}

enum Fit {
    Yes,
    /// There is room, but only the head-room.
    Headroom,
    No,
}

impl Book {
    fn fits(&self, bytes: u64, spillable: bool) -> Fit {
        let room = |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
        if !room(self.reserved, self.capacity) {
            Fit::No
        } else if spillable && !room(self.reserved, self.capacity - self.headroom) {
            Fit::Headroom
        } else {
            Fit::Yes
        }
    }

    fn add(&mut self, bytes: u64, spillable: bool) {
        self.reserved = self.reserved.saturating_add(bytes);
        self.spillable += if spillable { bytes } else { 0 };
        self.counts.total = self.counts.total.saturating_add(bytes);
        self.counts.peak = self.counts.peak.max(self.reserved);
    }
}

struct Member {
    name: String,
    priority: i32,
    held: [u64; 2],
    waiting: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Granted,
    Deadlock,
}

struct Waiter {
    member: u64,
    bytes: u64,
    space: MemorySpace,
    spillable: bool,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

pub(super) struct State {
    books: [Book; 2],
    members: BTreeMap<u64, Member>,
    /// By number, which is the order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    last_id: u64,
}

impl State {
    pub(super) fn new(capacity: [u64; 2], headroom: u64) -> Self {
        let book = |capacity, headroom| Book {
            capacity,
            headroom,
            reserved: 0,
            spillable: 0,
            leaving: 0,
            counts: Counts::default(),
        };
        State {
            books: [book(capacity[0], headroom), book(capacity[1], 0)],
            members: BTreeMap::new(),
            waiters: BTreeMap::new(),
            last_id: 0,
        }
    }

    pub(super) fn book(&self, space: MemorySpace) -> &Book {
        &self.books[space as usize]
    }

    pub(super) fn book_mut(&mut self, space: MemorySpace) -> &mut Book {
        &mut self.books[space as usize]
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn enlist(&mut self, name: String, priority: i32) -> u64 {
        let id = self.next_id();
        self.members.insert(id, Member { name, priority, held: [0; 2], waiting: 0 });
        id
    }

    pub(super) fn leave(&mut self, member: u64) {
        self.members.remove(&member);
    }

    pub(super) fn name(&self, member: u64) -> &str {
        self.members.get(&member).map_or("", |member| &member.name)
    }

    pub(super) fn held(&self, member: u64, space: MemorySpace) -> u64 {
        self.members.get(&member).map_or(0, |member| member.held[space as usize])
    }

    pub(super) fn num_waiting(&self, space: MemorySpace) -> usize {
        self.waiters.values().filter(|waiter| waiter.space == space && waiter.outcome.is_none()).count()
    }

    /// True if the request could be granted with nothing promised.
    pub(super) fn possible(&self, request: &Request) -> bool {
        let book = self.book(request.space);
        let most = if request.spillable { book.capacity - book.headroom } else { book.capacity };
        request.bytes.as_u64() <= most
    }

    /// Bytes missing for a request, ignoring all other waiters.
    pub(super) fn missing(&self, request: &Request) -> ByteSize {
        let book = self.book(request.space);
        let most = if request.spillable { book.capacity - book.headroom } else { book.capacity };
        ByteSize(book.reserved.saturating_add(request.bytes.as_u64()).saturating_sub(most))
    }

    /// Puts a request into the queue; `settle` looks whether it has its turn.
    pub(super) fn ask(&mut self, member: u64, request: &Request) -> u64 {
        let id = self.next_id();
        let Request { bytes, space, spillable } = *request;
        self.waiters.insert(id, Waiter { member, bytes: bytes.as_u64(), space, spillable, outcome: None, waker: None });
        if let Some(member) = self.members.get_mut(&member) {
            member.waiting += 1;
        }
        id
    }

    /// What became of a request; it leaves the queue with the answer. Otherwise `waker` is woken when there is one.
    pub(super) fn answer(&mut self, id: u64, waker: Option<&Waker>) -> Option<Outcome> {
        let waiter = self.waiters.get_mut(&id)?;
        match waiter.outcome {
            Some(outcome) => {
                self.waiters.remove(&id);
                Some(outcome)
            }
            None => {
                waiter.waker = waker.cloned();
                None
            }
        }
    }

    /// Takes a request out of the queue; what it was granted goes back.
    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(waiter) = self.waiters.remove(&id) else { return };
        match waiter.outcome {
            Some(Outcome::Granted) => self.give_back(waiter.member, waiter.bytes, waiter.space, waiter.spillable),
            Some(Outcome::Deadlock) => {}
            None => {
                if let Some(member) = self.members.get_mut(&waiter.member) {
                    member.waiting -= 1;
                }
            }
        }
    }

    fn grant(&mut self, member: u64, bytes: u64, space: MemorySpace, spillable: bool) {
        let book = self.book_mut(space);
        book.add(bytes, spillable);
        book.counts.granted += 1;
        if let Some(member) = self.members.get_mut(&member) {
            member.held[space as usize] += bytes;
        }
    }

    pub(super) fn give_back(&mut self, member: u64, bytes: u64, space: MemorySpace, spillable: bool) {
        let book = self.book_mut(space);
        book.reserved -= bytes;
        book.spillable -= if spillable { bytes } else { 0 };
        if let Some(member) = self.members.get_mut(&member) {
            member.held[space as usize] -= bytes;
        }
    }

    /// Moves a promise from one participant to another.
    pub(super) fn hand_over(&mut self, from: u64, to: u64, bytes: u64, space: MemorySpace) {
        for (id, up) in [(from, false), (to, true)] {
            if let Some(member) = self.members.get_mut(&id) {
                let held = &mut member.held[space as usize];
                *held = if up { *held + bytes } else { *held - bytes };
            }
        }
    }

    /// Grants the requests at the front of the queue that fit, and returns the wakers to call. Also wakes the first
    /// remaining waiter, which calls the spillers and checks for deadlock.
    pub(super) fn settle(&mut self) -> Vec<Waker> {
        let mut wake = Vec::new();
        self.grant_in_turn(&mut wake);
        for space in [MemorySpace::Device, MemorySpace::Host] {
            if let Some(first) = self.queue(space).first().copied() {
                wake.extend(self.waiters.get_mut(&first).and_then(|waiter| waiter.waker.take()));
            }
        }
        wake
    }

    /// Grants a request now, or forgets it.
    pub(super) fn try_now(&mut self, member: u64, request: &Request) -> (bool, Vec<Waker>) {
        let id = self.ask(member, request);
        let mut wake = Vec::new();
        self.grant_in_turn(&mut wake);
        if self.answer(id, None).is_some() {
            return (true, wake);
        }
        self.withdraw(id);
        (false, wake)
    }

    /// Outcome of a waiting request, if it has one; otherwise `waker` is kept for the next change. `end_deadlock` is
    /// set if spillers had nothing: then a deadlock is broken by refusing one holder's requests.
    pub(super) fn look(&mut self, id: u64, waker: &Waker, end_deadlock: bool) -> (Option<Outcome>, Vec<Waker>) {
        let mut wake = Vec::new();
        self.grant_in_turn(&mut wake);
        let mut outcome = self.answer(id, Some(waker));
        if outcome.is_none() && end_deadlock && self.break_deadlock(&mut wake) {
            outcome = self.answer(id, Some(waker));
        }
        (outcome, wake)
    }

    /// IDs of the waiting requests, in the order of their turns.
    fn queue(&self, space: MemorySpace) -> Vec<u64> {
        let waiting = self.waiters.iter().filter(|(_, waiter)| waiter.space == space && waiter.outcome.is_none());
        let mut queue: Vec<(Reverse<i32>, bool, u64)> = waiting
            .filter_map(|(&id, waiter)| {
                let member = self.members.get(&waiter.member)?;
                Some((Reverse(member.priority), member.held == [0; 2], id))
            })
            .collect();
        queue.sort_unstable();
        queue.into_iter().map(|(_, _, id)| id).collect()
    }

    fn grant_in_turn(&mut self, wake: &mut Vec<Waker>) {
        for space in [MemorySpace::Device, MemorySpace::Host] {
            let mut spillable_wait = false;
            for id in self.queue(space) {
                let Waiter { bytes, spillable, member, .. } = self.waiters[&id];
                if spillable && spillable_wait {
                    continue;
                }
                match self.book(space).fits(bytes, spillable) {
                    Fit::No => break,
                    Fit::Headroom => spillable_wait = true,
                    Fit::Yes => {
                        self.grant(member, bytes, space, spillable);
                        self.resolve(id, Outcome::Granted, wake);
                    }
                }
            }
        }
    }

    fn resolve(&mut self, id: u64, outcome: Outcome, wake: &mut Vec<Waker>) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.outcome = Some(outcome);
        wake.extend(waiter.waker.take());
        if let Some(member) = self.members.get_mut(&waiter.member) {
            member.waiting -= 1;
        }
    }

    /// When everyone who holds memory waits, refuses the one that gives way. True if there was one.
    fn break_deadlock(&mut self, wake: &mut Vec<Waker>) -> bool {
        let holds = |member: &Member| member.held != [0; 2];
        let leaving = self.books.iter().any(|book| book.leaving > 0);
        if leaving || self.members.values().any(|member| holds(member) && member.waiting == 0) {
            return false;
        }
        let holders = self.members.iter().filter(|(_, member)| holds(member));
        let Some(victim) = holders.min_by_key(|(id, member)| (member.priority, Reverse(**id))).map(|(&id, _)| id)
        else {
            return false;
        };
        let requests: Vec<(u64, MemorySpace)> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.member == victim && waiter.outcome.is_none())
            .map(|(&id, waiter)| (id, waiter.space))
            .collect();
        for (id, space) in requests {
            self.book_mut(space).counts.deadlocks += 1;
            self.book_mut(space).counts.refused += 1;
            self.resolve(id, Outcome::Deadlock, wake);
        }
        true
    }

    pub(super) fn largest_holders(&self, space: MemorySpace, count: usize) -> Vec<Holder> {
        let mut holders: Vec<Holder> = self
            .members
            .values()
            .filter(|member| member.held[space as usize] > 0)
            .map(|member| Holder {
                tag: member.name.clone(),
                bytes: ByteSize(member.held[space as usize]),
                allocations: 1,
            })
            .collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
        holders.truncate(count);
        holders
    }

    pub(super) fn statistics(&self, space: MemorySpace) -> GovernorStatistics {
        let book = self.book(space);
        let counts = &book.counts;
        GovernorStatistics {
            capacity: ByteSize(book.capacity),
            reserved: ByteSize(book.reserved),
            reserved_peak: ByteSize(counts.peak),
            reserved_total: counts.total,
            leaving: ByteSize(book.leaving),
            waiting: self.num_waiting(space),
            waited: counts.waited,
            granted: counts.granted,
            refused: counts.refused,
            deadlocks: counts.deadlocks,
            cancelled: counts.cancelled,
            spills: Spills { triggers: counts.triggers, shortages: counts.shortages },
        }
    }

    /// Panics when the sums do not agree. For tests.
    pub(super) fn check(&self) {
        for space in [MemorySpace::Device, MemorySpace::Host] {
            let held: u64 = self.members.values().map(|member| member.held[space as usize]).sum();
            assert_eq!(held, self.book(space).reserved, "what is held is what is promised of {space} memory");
        }
        for (id, member) in &self.members {
            let waiting = self.waiters.values().filter(|w| w.member == *id && w.outcome.is_none()).count();
            assert_eq!(waiting, member.waiting, "{} counts its waiting requests", member.name);
        }
    }
}
