//! Reservations of memory: order, refusals, deadlocks, and random use against a simple model.

use crate::pending::block_on;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use millpond_memory::governor::Reserve;
use millpond_memory::ids::Refusal;
use millpond_memory::{ByteSize, MemoryError, MemoryGovernor, MemorySpace, Request, Reservation, Result, Watermarks};
use proptest::prelude::*;

use MemorySpace::{Device, Host};

fn governor(capacity: u64) -> MemoryGovernor {
    MemoryGovernor::builder(ByteSize(capacity)).build().unwrap()
}

fn device(bytes: u64) -> Request {
    Request::device(ByteSize(bytes))
}

#[track_caller]
fn refusal<T>(result: Result<T>) -> Refusal {
    match result {
        Err(MemoryError::ReservationRefused { why, .. }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("granted"),
    }
}

/// A task that is polled only after a wake-up: a lost one would leave it waiting forever.
struct Task<F: Future> {
    future: Pin<Box<F>>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl<F: Future> Task<F> {
    fn new(future: F) -> Self {
        Task { future: Box::pin(future), woken: Arc::new(Flag(AtomicBool::new(true))) }
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(SeqCst)
    }

    fn run(&mut self) -> Option<F::Output> {
        if !self.woken.0.swap(false, SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

#[test]
fn promises_are_kept_within_the_capacity_and_come_back_with_a_drop() {
    let g = governor(100);
    let p = g.participant("sort", 0);
    let mut a = p.try_reserve(device(60)).unwrap();
    assert_eq!(refusal(p.try_reserve(device(41))), Refusal::NoRoom);
    let error = p.try_reserve(device(101)).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(
        error.to_string(),
        "device memory not promised: wanted 101 B, 60 B of 100 B are; largest holders: sort 60 B in 1; that is more than \
         there is: lower millpond.batch_bytes or raise millpond.memory_limit_bytes"
    );
    a.try_grow(ByteSize(40)).unwrap();
    assert_eq!(refusal(a.try_grow(ByteSize(1))), Refusal::NoRoom);
    assert_eq!((a.bytes(), g.available(Device), p.held(Device)), (ByteSize(100), ByteSize::ZERO, ByteSize(100)));
    assert_eq!(a.shrink(ByteSize(30)), ByteSize(30));
    let mut b = a.split(ByteSize(50)).unwrap();
    assert_eq!((a.bytes(), b.bytes(), g.reserved(Device)), (ByteSize(20), ByteSize(50), ByteSize(70)));
    assert!(matches!(a.split(ByteSize(21)), Err(MemoryError::Range { wanted: 21, len: 20, .. })));
    b.merge(a).unwrap();
    assert_eq!((b.bytes(), b.shrink(ByteSize::MAX), g.reserved(Device)), (ByteSize(70), ByteSize(70), ByteSize::ZERO));
    g.check();
    let counts = g.statistics(Device);
    assert_eq!(
        (counts.granted, counts.refused, counts.reserved_peak, counts.reserved_total),
        (2, 3, ByteSize(100), 100)
    );
}

#[test]
fn host_bytes_are_another_book() {
    let g = MemoryGovernor::builder(ByteSize(10)).host_capacity(ByteSize(1000)).build().unwrap();
    let p = g.participant("spill", 0);
    let mut host = p.try_reserve(Request::host(ByteSize(900))).unwrap();
    let on_device = p.try_reserve(device(10)).unwrap();
    assert_eq!((g.reserved(Device), g.reserved(Host)), (ByteSize(10), ByteSize(900)));
    assert_eq!(refusal(host.try_grow(ByteSize(101))), Refusal::NoRoom);
    assert!(matches!(host.merge(on_device), Err(MemoryError::Setting { .. })), "device bytes are no host bytes");
    assert_eq!(g.reserved(Device), ByteSize::ZERO, "the other went back");
    g.check();
}

#[test]
fn a_promise_can_be_handed_to_somebody_else() {
    let g = governor(100);
    let (scan, join) = (g.participant("scan", 0), g.participant("join", 0));
    let a = scan.try_reserve(device(60)).unwrap();
    let mut theirs = join.empty(device(0));
    theirs.merge(a).unwrap();
    assert_eq!((scan.held(Device), join.held(Device)), (ByteSize::ZERO, ByteSize(60)));
    assert_eq!((g.reserved(Device), g.available(Device)), (ByteSize(60), ByteSize(40)));
    assert_eq!(refusal(scan.try_reserve(device(41))), Refusal::NoRoom);
    drop(theirs);
    assert!(scan.try_reserve(device(100)).is_ok());
    g.check();
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let build = |trigger_percent, stop_percent| {
        MemoryGovernor::builder(ByteSize(100))
            .watermarks(Watermarks { trigger_percent, stop_percent })
            .build()
            .map(|_| ())
    };
    assert!(build(85, 85).is_ok() && build(100, 0).is_ok());
    let text = build(60, 70).unwrap_err().to_string();
    assert_eq!(text, "watermarks cannot be trigger 60 %, stop 70 %: stop <= trigger <= 100");
    assert!(build(101, 0).is_err());
    assert!(MemoryGovernor::builder(ByteSize(100)).headroom(ByteSize(101)).build().is_err());
}

#[test]
fn head_room_is_for_those_who_cannot_spill() {
    let g = MemoryGovernor::builder(ByteSize(100)).headroom(ByteSize(20)).build().unwrap();
    let p = g.participant("aggregate", 0);
    assert_eq!(refusal(p.try_reserve(device(81).spillable())), Refusal::TooLarge);
    let spillable = p.try_reserve(device(80).spillable()).unwrap();
    assert_eq!(refusal(p.try_reserve(device(1).spillable())), Refusal::NoRoom);
    // A request that waits for head-room does not delay one that may use it.
    let other = g.participant("other", 0);
    let mut waits = Task::new(other.reserve(device(10).spillable()));
    assert!(waits.run().is_none());
    let rest = p.try_reserve(device(20)).unwrap();
    drop((spillable, rest));
    assert!(waits.run().unwrap().is_ok());
    g.check();
}

#[test]
fn turns_go_by_priority_then_to_holders_then_by_age_and_nobody_overtakes() {
    let g = governor(100);
    let names = ["filler", "young", "holder", "high", "old"];
    let [filler, young, holder, high, old] =
        [0, 1, 2, 3, 4].map(|i| g.participant(names[i], if names[i] == "high" { 1 } else { 0 }));
    let all = filler.try_reserve(device(90)).unwrap();
    let _small = holder.try_reserve(device(10)).unwrap();
    let mut waiting = [&old, &young, &holder, &high].map(|p| Task::new(p.reserve(device(60))));
    for task in &mut waiting {
        assert!(task.run().is_none());
    }
    assert_eq!(g.statistics(Device).waiting, 4);
    drop(all);
    // One of them fits; a small request does not overtake the others.
    let [mut o, mut y, mut h, mut first] = waiting;
    let high_has = first.run().unwrap().unwrap();
    assert!(h.run().is_none() && o.run().is_none() && y.run().is_none());
    assert_eq!(refusal(filler.try_reserve(device(1))), Refusal::NoRoom);
    drop(high_has);
    let holder_has = h.run().unwrap().unwrap();
    drop(holder_has);
    let old_has = o.run().unwrap().unwrap();
    assert!(y.run().is_none());
    drop(old_has);
    assert!(y.run().unwrap().is_ok());
    assert_eq!((g.statistics(Device).waiting, g.statistics(Device).waited), (0, 4));
    g.check();
}

#[test]
fn a_dropped_future_leaves_the_queue_and_gives_back_what_it_was_granted() {
    let g = governor(100);
    let (a, b) = (g.participant("a", 0), g.participant("b", 0));
    let mut held = a.try_reserve(device(100)).unwrap();
    let (mut waits, mut behind) = (Task::new(b.reserve(device(80))), Task::new(b.reserve(device(30))));
    assert!(waits.run().is_none() && behind.run().is_none());
    held.shrink(ByteSize(50));
    assert!(!behind.is_woken() || behind.run().is_none(), "the larger one is first");
    drop(waits);
    let behind = behind.run().expect("woken").unwrap();
    assert_eq!((behind.bytes(), g.reserved(Device)), (ByteSize(30), ByteSize(80)));
    // Granted, and dropped before it is polled.
    let mut granted = Task::new(b.reserve(device(30)));
    assert!(granted.run().is_none());
    held.shrink(ByteSize(50));
    assert_eq!((granted.is_woken(), g.reserved(Device)), (true, ByteSize(60)));
    drop(granted);
    assert_eq!(g.reserved(Device), ByteSize(30));
    // Likewise for a grow: the reservation is unchanged.
    let mut grown = a.try_reserve(device(60)).unwrap();
    {
        let mut grow = Task::new(grown.grow(ByteSize(20)));
        assert!(grow.run().is_none());
    }
    assert_eq!((grown.bytes(), g.statistics(Device).waiting), (ByteSize(60), 0));
    drop((grown, behind, held));
    assert_eq!(g.reserved(Device), ByteSize::ZERO);
    g.check();
}

#[test]
fn when_all_holders_wait_the_lowest_youngest_gives_way() {
    let g = governor(100);
    let (old, young, high) = (g.participant("old", 0), g.participant("young", 0), g.participant("high", 3));
    let mut held = [&old, &young, &high].map(|p| p.try_reserve(device(30)).unwrap());
    let [a, b, c] = &mut held;
    let mut tasks = [a, b, c].map(|r| Task::new(r.grow(ByteSize(50))));
    assert!(tasks[2].run().is_none() && tasks[1].run().is_none(), "somebody still runs");
    assert!(tasks[0].run().is_none(), "the last to wait is not the one to go");
    assert_eq!(refusal(tasks[1].run().expect("woken")), Refusal::Deadlock);
    let [first, second, third] = tasks;
    drop(second);
    // It releases its reservation, as the refusal advises.
    let (mut first, mut third) = (first, third);
    assert!(first.run().is_none() && third.run().is_none());
    assert_eq!(g.statistics(Device).deadlocks, 1);
    drop((first, third));
    let counts = g.statistics(Device);
    assert_eq!((counts.deadlocks, counts.waiting), (1, 0));
    g.check();
}

#[test]
fn two_threads_that_wait_for_each_other_both_end() {
    for round in 0..20 {
        let g = governor(100);
        let refused = AtomicU64::new(0);
        let meet = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (name, priority) in [("one", 0), ("two", round % 2)] {
                let (g, refused, meet) = (&g, &refused, &meet);
                scope.spawn(move || {
                    let p = g.participant(name, priority);
                    let mut held = block_on(p.reserve(device(50))).unwrap();
                    meet.wait();
                    while let Err(error) = block_on(held.grow(ByteSize(30))) {
                        assert_eq!(refusal::<()>(Err(error)), Refusal::Deadlock);
                        refused.fetch_add(1, SeqCst);
                        // Back to a state in which it held nothing.
                        held.shrink(ByteSize::MAX);
                        block_on(held.grow(ByteSize(50))).unwrap();
                    }
                });
            }
        });
        assert!(refused.load(SeqCst) >= 1);
        assert_eq!(g.reserved(Device), ByteSize::ZERO);
        g.check();
    }
}

/// Spillable reservations that a hook releases, one at a time.
type Spillables = Arc<Mutex<Vec<Reservation>>>;

fn spill_from(
    spillables: &Spillables,
) -> impl Fn(millpond_memory::governor::Shortage) -> ByteSize + Send + Sync + 'static {
    let spillables = Arc::clone(spillables);
    move |shortage| {
        let mut given = ByteSize::ZERO;
        while given < shortage.wanted {
            // Dropped outside the lock, because that may wake tasks.
            let next = {
                let mut list = spillables.lock().unwrap();
                let index = list.iter().position(|reservation| reservation.space() == shortage.space);
                index.map(|index| list.remove(index))
            };
            let Some(reservation) = next else { break };
            given += reservation.bytes();
        }
        given
    }
}

#[test]
fn past_the_trigger_spilling_goes_down_to_the_stop() {
    let g = governor(1000);
    let spillables = Spillables::default();
    let _hook = g.on_shortage(spill_from(&spillables));
    let p = g.participant("batches", 0);
    for _ in 0..17 {
        let one = p.try_reserve(device(50).spillable()).unwrap();
        spillables.lock().unwrap().push(one);
    }
    assert_eq!(
        (g.reserved(Device), g.statistics(Device).spills.triggers),
        (ByteSize(850), 0),
        "at the trigger, not past it"
    );
    let one = p.try_reserve(device(50)).unwrap();
    assert_eq!((g.reserved(Device), g.statistics(Device).spills.triggers), (ByteSize(650), 1), "down to 65 %");
    let more = p.try_reserve(device(150)).unwrap();
    assert_eq!(g.statistics(Device).spills.triggers, 1, "not again at once");
    drop((one, more));
    g.check();
}

#[test]
fn a_request_asks_spillers_before_it_waits_and_before_it_is_refused() {
    let watermarks = Watermarks { trigger_percent: 100, stop_percent: 100 };
    let g = MemoryGovernor::builder(ByteSize(100)).watermarks(watermarks).build().unwrap();
    let spillables = Spillables::default();
    let hook = g.on_shortage(spill_from(&spillables));
    let p = g.participant("batches", 0);
    for _ in 0..3 {
        let one = p.try_reserve(device(20).spillable()).unwrap();
        spillables.lock().unwrap().push(one);
    }
    let a = p.try_reserve(device(70)).unwrap();
    assert_eq!((g.reserved(Device), spillables.lock().unwrap().len()), (ByteSize(90), 1));
    let other = g.participant("other", 0);
    let b = Task::new(other.reserve(device(30))).run().expect("spilled for at the first look").unwrap();
    assert_eq!((g.reserved(Device), spillables.lock().unwrap().len()), (ByteSize(100), 0));
    drop(hook);
    let asked = g.statistics(Device).spills.shortages;
    assert_eq!(refusal(other.try_reserve(device(1))), Refusal::NoRoom);
    assert_eq!(g.statistics(Device).spills.shortages, asked, "nobody is left to ask");
    drop((a, b));
    g.check();
}

#[test]
fn a_spiller_that_asks_for_memory_is_not_asked_inside_itself_and_lies_do_not_hang() {
    let g = governor(100);
    let asked = Arc::new(AtomicU64::new(0));
    let _hook = g.on_shortage({
        let (g, asked) = (g.clone(), Arc::clone(&asked));
        move |_| {
            asked.fetch_add(1, SeqCst);
            let p = g.participant("spiller", 0);
            assert_eq!(refusal(p.try_reserve(device(90))), Refusal::NoRoom);
            // Some memory is free, unless a request waits for it.
            assert_eq!(p.try_reserve(device(5)).is_ok(), g.statistics(Device).waiting == 0);
            // A false report.
            ByteSize(1)
        }
    });
    let p = g.participant("p", 0);
    let held = p.try_reserve(device(80)).unwrap();
    assert_eq!(asked.load(SeqCst), 0);
    assert_eq!(refusal(p.try_reserve(device(30))), Refusal::NoRoom);
    assert!((1..20).contains(&asked.load(SeqCst)), "{asked:?}");
    // A task alone that waits for itself is refused, too.
    let mut held = held;
    assert_eq!(refusal(Task::new(held.grow(ByteSize(30))).run().expect("an answer at once")), Refusal::Deadlock);
    drop(held);
    g.check();
}

#[derive(Clone, Debug)]
enum Step {
    Try { who: usize, bytes: u64, spillable: bool },
    Ask { who: usize, bytes: u64, spillable: bool },
    Grow { which: usize, by: u64 },
    Shrink { which: usize, by: u64 },
    Split { which: usize, at: u64 },
    Merge { which: usize, other: usize },
    Drop { which: usize },
    Cancel { which: usize },
    Offer { which: usize },
    Run,
}

fn step() -> impl Strategy<Value = Step> {
    let (who, which, bytes) = (0..4usize, 0..16usize, 0..70u64);
    prop_oneof![
        3 => (who.clone(), bytes.clone(), any::<bool>()).prop_map(|(who, bytes, spillable)| Step::Try { who, bytes, spillable }),
        4 => (who, bytes.clone(), any::<bool>()).prop_map(|(who, bytes, spillable)| Step::Ask { who, bytes, spillable }),
        2 => (which.clone(), bytes.clone()).prop_map(|(which, by)| Step::Grow { which, by }),
        2 => (which.clone(), bytes.clone()).prop_map(|(which, by)| Step::Shrink { which, by }),
        1 => (which.clone(), bytes).prop_map(|(which, at)| Step::Split { which, at }),
        1 => (which.clone(), which.clone()).prop_map(|(which, other)| Step::Merge { which, other }),
        3 => which.clone().prop_map(|which| Step::Drop { which }),
        1 => which.clone().prop_map(|which| Step::Cancel { which }),
        1 => which.prop_map(|which| Step::Offer { which }),
        3 => Just(Step::Run),
    ]
}

const CAPACITY: u64 = 100;
const HEADROOM: u64 = 15;

/// Reservations held, and waiting tasks.
struct Model {
    held: Vec<Reservation>,
    waiting: Vec<Task<Reserve>>,
    offered: Spillables,
}

impl Model {
    fn sum(&self) -> u64 {
        let held: u64 = self.held.iter().map(|r| r.bytes().as_u64()).sum();
        held + self.offered.lock().unwrap().iter().map(|r| r.bytes().as_u64()).sum::<u64>()
    }

    /// Polls woken tasks until there are none.
    fn run(&mut self) {
        while let Some(index) = self.waiting.iter().position(Task::is_woken) {
            match self.waiting[index].run() {
                Some(Ok(reservation)) => {
                    self.held.push(reservation);
                    drop(self.waiting.swap_remove(index));
                }
                Some(Err(error)) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    drop(self.waiting.swap_remove(index));
                }
                None => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_use_keeps_every_promise_and_loses_no_wake_up(steps in prop::collection::vec(step(), 1..80)) {
        let g = MemoryGovernor::builder(ByteSize(CAPACITY)).headroom(ByteSize(HEADROOM)).build().unwrap();
        let offered = Spillables::default();
        let _hook = g.on_shortage(spill_from(&offered));
        let participants: Vec<_> = (0..4).map(|i| g.participant(format!("p{i}"), i / 2)).collect();
        let mut model = Model { held: Vec::new(), waiting: Vec::new(), offered };
        for step in steps {
            let request = |bytes, spillable| if spillable { device(bytes).spillable() } else { device(bytes) };
            let pick = |which: usize, len: usize| (len > 0).then(|| which % len);
            match step {
                Step::Try { who, bytes, spillable } => {
                    let (before, alone) = (model.sum(), g.statistics(Device).waiting == 0);
                    let nothing_offered = model.offered.lock().unwrap().is_empty();
                    let most = if spillable { CAPACITY - HEADROOM } else { CAPACITY };
                    let granted = participants[who].try_reserve(request(bytes, spillable));
                    if alone && nothing_offered && model.waiting.is_empty() {
                        prop_assert_eq!(granted.is_ok(), before + bytes <= most);
                    }
                    model.held.extend(granted.ok());
                }
                Step::Ask { who, bytes, spillable } => {
                    model.waiting.push(Task::new(participants[who].reserve(request(bytes, spillable))));
                }
                Step::Grow { which, by } => {
                    if let Some(index) = pick(which, model.held.len()) {
                        let before = model.held[index].bytes();
                        let grown = model.held[index].try_grow(ByteSize(by)).is_ok();
                        let expected = if grown { before + ByteSize(by) } else { before };
                        prop_assert_eq!(model.held[index].bytes(), expected);
                    }
                }
                Step::Shrink { which, by } => {
                    if let Some(index) = pick(which, model.held.len()) {
                        let before = model.held[index].bytes();
                        let given = model.held[index].shrink(ByteSize(by));
                        prop_assert_eq!(given, ByteSize(by).min(before));
                    }
                }
                Step::Split { which, at } => {
                    if let Some(index) = pick(which, model.held.len()) {
                        let enough = model.held[index].bytes() >= ByteSize(at);
                        let part = model.held[index].split(ByteSize(at));
                        prop_assert_eq!(part.is_ok(), enough);
                        model.held.extend(part.ok());
                    }
                }
                Step::Merge { which, other } => {
                    if model.held.len() >= 2 {
                        let other = model.held.swap_remove(other % model.held.len());
                        let index = which % model.held.len();
                        let same = other.is_spillable() == model.held[index].is_spillable();
                        prop_assert_eq!(model.held[index].merge(other).is_ok(), same);
                    }
                }
                Step::Drop { which } => {
                    if let Some(index) = pick(which, model.held.len()) {
                        drop(model.held.swap_remove(index));
                    }
                }
                Step::Cancel { which } => {
                    if let Some(index) = pick(which, model.waiting.len()) {
                        drop(model.waiting.swap_remove(index));
                    }
                }
                Step::Offer { which } => {
                    if let Some(index) = pick(which, model.held.len()) {
                        let reservation = model.held.swap_remove(index);
                        model.offered.lock().unwrap().push(reservation);
                        g.nudge();
                    }
                }
                Step::Run => model.run(),
            }
            g.check();
            let reserved = g.reserved(Device).as_u64();
            prop_assert!(reserved <= CAPACITY);
            // Granted reservations that are not polled yet are reserved, but not held.
            prop_assert!(model.sum() <= reserved);
            if !model.waiting.iter().any(Task::is_woken) {
                prop_assert_eq!(model.sum(), reserved);
            }
        }
        // After everything is released, all waiting tasks are served, one after the other, since each releases in turn.
        model.run();
        for _ in 0..1000 {
            if model.waiting.is_empty() {
                break;
            }
            model.held.clear();
            model.offered.lock().unwrap().clear();
            model.run();
        }
        prop_assert!(model.waiting.is_empty(), "{} wait for ever", model.waiting.len());
        model.held.clear();
        model.offered.lock().unwrap().clear();
        prop_assert_eq!((g.reserved(Device), g.statistics(Device).waiting), (ByteSize::ZERO, 0));
        g.check();
    }
}
