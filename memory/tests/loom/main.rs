//! The concurrent parts of the memory layer, tested under every interleaving of a few threads.
//!
//! ```text
//!   src/{gate, gauge, uses, cursor, event_pool}.rs ──by path──► compiled here again, with loom's locks and atomics
//! ```
//!
//! Bounded    at most three preemptions per run, which covers the interactions of two or three threads in a few
//!            seconds. `LOOM_MAX_PREEMPTIONS=5 cargo test -p millpond-memory --test loom` searches further.

#![allow(dead_code, reason = "the modules have more than the models call")]

#[path = "../../src/cursor.rs"]
mod cursor;
#[path = "../../src/event_pool.rs"]
mod event_pool;
#[path = "../../src/few.rs"]
mod few;
#[path = "../../src/gate.rs"]
mod gate;
#[path = "../../src/gauge.rs"]
mod gauge;
#[path = "../../src/ids.rs"]
mod ids;
#[path = "../../src/order.rs"]
mod order;
#[path = "../../src/uses.rs"]
mod uses;

/// Source of the modules' locks.
mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::{PoisonError, TryLockError};

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

mod units {
    pub(crate) use millpond_memory::units::ByteSize;
}

mod driver {
    pub(crate) use millpond_memory::driver::{Access, EventHandle, Site};
}

use std::panic::Location;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use cursor::Cursor;
use driver::{Access, EventHandle};
use event_pool::EventPool;
use gate::Gate;
use gauge::Gauge;
use ids::StreamId;
use order::{OrderTracker, Position};
use uses::{ThreadNumber, Uses};

/// Runs `claim` under every interleaving within the bound.
fn every_way(claim: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(claim);
}

fn stream(index: u32) -> StreamId {
    StreamId { device_serial: 0, index }
}

fn at(index: u32, seq: u64) -> Position {
    Position { stream: stream(index), seq }
}

#[test]
fn a_limit_is_never_passed_and_the_peak_is_a_level_that_was_reached() {
    every_way(|| {
        let gauge = Arc::new(Gauge::default());
        let threads: Vec<_> = [3, 4]
            .into_iter()
            .map(|bytes| {
                let gauge = Arc::clone(&gauge);
                thread::spawn(move || {
                    let taken = gauge.raise_within(bytes, 5);
                    assert!(gauge.level().as_u64() <= 5);
                    if taken {
                        gauge.lower(bytes);
                    }
                    taken
                })
            })
            .collect();
        let taken: Vec<bool> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(taken.contains(&true), "one of them found room");
        assert_eq!(gauge.level().as_u64(), 0);
        assert!([3, 4].contains(&gauge.peak().as_u64()), "never both at once");
    });
}

#[test]
fn two_that_fit_together_are_both_in_the_peak() {
    every_way(|| {
        let gauge = Arc::new(Gauge::default());
        let other = Arc::clone(&gauge);
        let thread = thread::spawn(move || other.raise(3));
        gauge.raise(4);
        thread.join().unwrap();
        assert_eq!((gauge.level().as_u64(), gauge.peak().as_u64()), (7, 7));
    });
}

#[test]
fn a_peak_that_starts_anew_is_never_below_the_level() {
    every_way(|| {
        let gauge = Arc::new(Gauge::default());
        gauge.raise(2);
        gauge.raise(8);
        gauge.lower(8);
        let other = Arc::clone(&gauge);
        let thread = thread::spawn(move || other.raise(3));
        gauge.reset_peak();
        thread.join().unwrap();
        let peak = gauge.peak().as_u64();
        assert_eq!(gauge.level().as_u64(), 5);
        assert!((5..10).contains(&peak), "{peak}");
    });
}

/// Takes the use, accesses bytes that loom watches, and records the position of the work.
fn use_once(uses: &Uses, bytes: &UnsafeCell<u32>, access: Access, of: u32, seq: u64) -> Vec<Position> {
    let thread = ThreadNumber(u64::from(of));
    let before = uses.take(access, stream(of), thread, Location::caller()).expect("a thread of its own");
    match access {
        // Loom reports two concurrent writes, or one concurrent with a read.
        Access::Write => bytes.with_mut(|_| ()),
        _ => bytes.with(|_| ()),
    }
    uses.release(access, stream(of), thread, Some(at(of, seq)), |_| ());
    before.iter().copied().collect()
}

#[test]
fn guards_that_conflict_exclude_each_other_and_the_later_one_waits_for_the_earlier() {
    every_way(|| {
        let shared = Arc::new((Uses::new(at(0, 1)), UnsafeCell::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || use_once(&other.0, &other.1, Access::Write, 1, 10));
        let second = use_once(&shared.0, &shared.1, Access::Write, 2, 20);
        let first = thread.join().unwrap();
        // The first use is ordered after the allocation, the second after the first.
        let expected = [(vec![at(0, 1)], vec![at(1, 10)]), (vec![at(2, 20)], vec![at(0, 1)])];
        assert!(expected.contains(&(first.clone(), second.clone())), "{first:?} {second:?}");
    });
}

#[test]
fn who_waits_for_a_guard_is_always_woken() {
    every_way(|| {
        let shared = Arc::new((Uses::new(at(0, 1)), UnsafeCell::new(0)));
        let threads: Vec<_> = [(1, Access::Write), (2, Access::Read)]
            .into_iter()
            .map(|(of, access)| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || use_once(&shared.0, &shared.1, access, of, 10))
            })
            .collect();
        // A lost wake-up would leave a thread waiting forever, which loom reports.
        use_once(&shared.0, &shared.1, Access::Read, 3, 10);
        threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
        let mut uses = Arc::try_unwrap(shared).expect("nobody else has it").0;
        let (newest, before) = uses.last();
        let mut all: Vec<Position> = before.iter().copied().collect();
        all.push(newest);
        assert!(all.contains(&at(1, 10)), "whatever came first, a free comes after the write: {all:?}");
    });
}

#[test]
fn readers_do_not_wait_and_a_write_comes_after_all_of_them() {
    every_way(|| {
        let shared = Arc::new((Uses::new(at(0, 1)), UnsafeCell::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || use_once(&other.0, &other.1, Access::Read, 1, 10));
        assert_eq!(use_once(&shared.0, &shared.1, Access::Read, 2, 20), [at(0, 1)]);
        assert_eq!(thread.join().unwrap(), [at(0, 1)]);
        let mut before = use_once(&shared.0, &shared.1, Access::Write, 3, 30);
        before.sort_by_key(|position| position.stream);
        assert_eq!(before, [at(0, 1), at(1, 10), at(2, 20)]);
        assert_eq!(use_once(&shared.0, &shared.1, Access::Read, 4, 40), [at(3, 30)]);
    });
}

#[test]
fn who_hears_of_work_sees_where_its_stream_stands() {
    every_way(|| {
        let shared = Arc::new((Cursor::<u64>::new(OrderTracker::new(0)), AtomicBool::new(false)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.0.lock().submitted();
            other.1.store(true, Ordering::Release);
            other.0.lock().submitted();
        });
        let heard = shared.1.load(Ordering::Acquire);
        let (once, twice) = (shared.0.newest(), shared.0.newest());
        assert!(!heard || once >= 1, "heard of the first work, but saw {once}");
        assert!(once <= twice && twice <= 2);
        thread.join().unwrap();
        assert_eq!(shared.0.newest(), 2);
    });
}

/// Orders `own` after everything on `other`, as a stream does: one lock at a time.
fn wait_for(own: &Cursor<u64>, other: &Cursor<u64>, event: u64) -> u64 {
    let position = other.newest();
    let mark = {
        let mut order = other.lock();
        match order.mark_behind(position) {
            Some(mark) => mark.clone(),
            None => order.recorded(event),
        }
    };
    own.lock().waited(&mark);
    position
}

#[test]
fn two_streams_wait_for_each_other_without_a_deadlock_and_each_covers_what_it_saw() {
    every_way(|| {
        let cursors = Arc::new([0, 1].map(|index| Cursor::<u64>::new(OrderTracker::new(index))));
        let other = Arc::clone(&cursors);
        let thread = thread::spawn(move || {
            other[0].lock().submitted();
            let seen = wait_for(&other[0], &other[1], 100);
            assert!(other[0].lock().is_after(1, seen));
        });
        cursors[1].lock().submitted();
        let seen = wait_for(&cursors[1], &cursors[0], 200);
        assert!(cursors[1].lock().is_after(0, seen));
        thread.join().unwrap();
        // A wait is work of its stream: one submission and one wait each.
        assert_eq!((cursors[0].newest(), cursors[1].newest()), (2, 2));
    });
}

#[test]
fn an_event_is_never_handed_out_twice_at_once() {
    every_way(|| {
        let pool = Arc::new(EventPool::default());
        pool.give(EventHandle(1));
        pool.give(EventHandle(2));
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let taken = other.take();
            taken.into_iter().for_each(|handle| other.give(handle));
            other.take()
        });
        let own = pool.take();
        let others = thread.join().unwrap();
        assert!(own.is_some() && own != others, "{own:?} {others:?}");
        assert_eq!(pool.drain().len() + [own, others].iter().flatten().count(), 2, "none is lost");
    });
}

#[test]
fn a_call_is_refused_or_waited_for() {
    every_way(|| {
        // The driver's state, which the shutting thread destroys.
        let shared = Arc::new((Gate::<2>::new(), UnsafeCell::new(0)));
        let threads: Vec<_> = [0, 1]
            .into_iter()
            .map(|shard| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || match shared.0.enter(shard) {
                    Ok(()) => {
                        shared.1.with(|_| ());
                        shared.0.leave(shard);
                    }
                    Err(reason) => assert_eq!(reason, 7),
                })
            })
            .collect();
        shared.0.shut(7);
        for shard in [0, 1] {
            while shared.0.calls(shard) > 0 {
                thread::yield_now();
            }
        }
        // Loom reports a call that still reads it.
        shared.1.with_mut(|_| ());
        assert_eq!(shared.0.enter(0), Err(7));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn the_first_reason_stays() {
    every_way(|| {
        let gate = Arc::new(Gate::<1>::new());
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            other.shut(1);
            other.reason()
        });
        gate.shut(2);
        let first = gate.reason();
        assert_eq!(thread.join().unwrap(), first);
        assert!(gate.enter(0).is_err() && gate.calls(0) == 0);
    });
}
