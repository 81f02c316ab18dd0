//! Implied waits make no driver call, and a needed wait is never omitted.

use std::collections::HashMap;

use millpond_memory::order::OrderTracker;
use millpond_memory::{Device, DeviceBuffer, DriverCode, MemoryPool, Position, Stream, Waited};
use proptest::prelude::*;

use crate::recording::{Call, Recording};

/// Plain reachability: for each piece of work, the set of all work ordered before it.
#[derive(Default)]
struct Graph {
    /// By stream, then by position: all work ordered before, including itself.
    ancestors: Vec<Vec<std::collections::BTreeSet<(usize, u64)>>>,
}

impl Graph {
    fn new(streams: usize) -> Self {
        Graph { ancestors: vec![Vec::new(); streams] }
    }

    fn submit(&mut self, stream: usize, also_after: Option<(usize, u64)>) {
        let seq = self.ancestors[stream].len() as u64 + 1;
        let mut set = self.ancestors[stream].last().cloned().unwrap_or_default();
        if let Some((other, seq)) = also_after
            && seq > 0
        {
            set.extend(self.ancestors[other][seq as usize - 1].iter().copied());
        }
        set.insert((stream, seq));
        self.ancestors[stream].push(set);
    }

    /// Whether the next work of `stream` is ordered after that position.
    fn is_after(&self, stream: usize, position: (usize, u64)) -> bool {
        position.1 == 0
            || position.0 == stream
            || self.ancestors[stream].last().is_some_and(|set| set.contains(&position))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize),
    Record(usize),
    /// The first stream waits for a position of the second, the given number of steps back.
    Wait(usize, usize, u64),
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (2usize..=8).prop_flat_map(|streams| {
        let step = prop_oneof![
            (0..streams).prop_map(Step::Submit),
            (0..streams).prop_map(Step::Record),
            (0..streams, 0..streams, 0u64..4).prop_map(|(s, t, back)| Step::Wait(s, t, back)),
        ];
        (Just(streams), proptest::collection::vec(step, 1..120))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// The tracker reports "already after" exactly where the graph of driver-level edges does.
    #[test]
    fn elided_exactly_when_reachable((streams, steps) in steps()) {
        let mut graph = Graph::new(streams);
        let mut trackers: Vec<OrderTracker<u64>> = (0..streams).map(|s| OrderTracker::new(s as u32)).collect();
        let mut events = 0;
        for step in steps {
            match step {
                Step::Submit(s) => {
                    trackers[s].submitted();
                    graph.submit(s, None);
                }
                Step::Record(s) => {
                    events += 1;
                    trackers[s].recorded(events);
                }
                Step::Wait(s, t, back) => {
                    let seq = trackers[t].seq().saturating_sub(back);
                    prop_assert_eq!(trackers[s].is_after(t as u32, seq), graph.is_after(s, (t, seq)));
                    if trackers[s].is_after(t as u32, seq) {
                        continue;
                    }
                    let mark = match trackers[t].mark_behind(seq) {
                        Some(mark) => mark.clone(),
                        None => trackers[t].recorded(0),
                    };
                    prop_assert!(mark.seq >= seq);
                    trackers[s].waited(&mark);
                    graph.submit(s, Some((t, mark.seq)));
                    prop_assert!(graph.is_after(s, (t, seq)));
                }
            }
        }
    }

    /// From the driver's log alone: all conflicting uses of a buffer are ordered, and its free is ordered after all
    /// uses.
    #[test]
    fn conflicting_uses_are_ordered_in_the_drivers_log(
        streams in 2usize..=6,
        uses in proptest::collection::vec((0usize..6, 0usize..3, 0u8..3), 1..80),
    ) {
        let driver = Recording::new();
        let device = Device::open(driver.clone(), 0).unwrap();
        let pool = MemoryPool::builder(&device).build().unwrap();
        let lanes: Vec<Stream> = (0..streams).map(|_| Stream::new(&device).unwrap()).collect();
        let buffers: Vec<DeviceBuffer> =
            (0..3).map(|i| DeviceBuffer::new(256, &lanes[i % streams], &pool).unwrap()).collect();
        driver.take();
        // A fill marks each use in the log: its length is the use's number, its byte the kind.
        for (number, (stream, buffer, kind)) in uses.iter().enumerate() {
            let (on, buffer) = (&lanes[stream % streams], &buffers[*buffer]);
            let mut guard = match kind {
                0 => buffer.read(on),
                1 => buffer.write(on),
                _ => buffer.share(on),
            }
            .unwrap();
            let ptr = guard.address();
            let work = on.submit(|driver, on| {
                driver.fill(ptr, *kind, number + 1, on, std::panic::Location::caller())
            });
            guard.submitted(work.unwrap().1);
        }
        drop(buffers);
        check_log(&driver.take())?;
    }
}

/// Computes reachability from the log, and searches for unordered pairs.
fn check_log(log: &[Call]) -> Result<(), TestCaseError> {
    let mut index = HashMap::new();
    for call in log {
        let stream = match call {
            Call::Record { stream, .. } | Call::Wait { stream, .. } | Call::Fill { stream, .. } => stream,
            Call::Free { stream, .. } => stream,
            _ => continue,
        };
        let next = index.len();
        index.entry(*stream).or_insert(next);
    }
    let mut graph = Graph::new(index.len());
    let mut recorded = HashMap::new();
    let mut uses: Vec<(u64, u8, (usize, u64))> = Vec::new();
    for call in log {
        match call {
            Call::Record { event, stream } => {
                let stream = index[stream];
                recorded.insert(*event, (stream, graph.ancestors[stream].len() as u64));
            }
            Call::Wait { stream, event } => {
                prop_assert!(recorded.contains_key(event), "a wait on an event that was never recorded");
                graph.submit(index[stream], Some(recorded[event]));
            }
            Call::Fill { ptr, byte, stream, .. } => {
                let stream = index[stream];
                for (other, kind, position) in &uses {
                    let apart = *other != ptr.0 || (*kind == *byte && *kind != 1);
                    prop_assert!(apart || graph.is_after(stream, *position), "{call:?} races with {position:?}");
                }
                graph.submit(stream, None);
                uses.push((ptr.0, *byte, (stream, graph.ancestors[stream].len() as u64)));
            }
            Call::Free { ptr, stream } => {
                let stream = index[stream];
                for (other, _, position) in &uses {
                    prop_assert!(*other != ptr.0 || graph.is_after(stream, *position), "free before a use is done");
                }
                graph.submit(stream, None);
            }
            _ => {}
        }
    }
    Ok(())
}

fn waits(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::Wait { .. } | Call::Record { .. })).count()
}

fn work(stream: &Stream) -> Position {
    let here = std::panic::Location::caller();
    stream.submit(|driver, on| driver.fill(millpond_memory::DevicePtr(256), 0, 1, on, here)).unwrap().1
}

#[test]
fn waiting_twice_costs_once() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let first = work(&a);
    let second = work(&a);
    assert_eq!(b.wait_for(second).unwrap(), Waited::Inserted);
    driver.take();
    assert_eq!(b.wait_for(second).unwrap(), Waited::Elided);
    assert_eq!(b.wait_for(first).unwrap(), Waited::Elided);
    assert_eq!(waits(&driver.take()), 0);
}

#[test]
fn transitive_order_costs_nothing() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let [a, b, c] = std::array::from_fn(|_| Stream::new(&device).unwrap());
    let on_a = work(&a);
    b.wait_for(on_a).unwrap();
    let on_b = work(&b);
    c.wait_for(on_b).unwrap();
    driver.take();
    assert_eq!(c.wait_for(on_a).unwrap(), Waited::Elided);
    assert!(driver.take().is_empty());
}

#[test]
fn who_waits_for_a_waiting_stream_waits_for_what_it_waits_for() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let [a, b, c] = std::array::from_fn(|_| Stream::new(&device).unwrap());
    let old = work(&b);
    c.wait_for(old).unwrap();
    let on_a = work(&a);
    b.wait_for(on_a).unwrap();
    // Nothing was submitted to b since: c must wait for b's wait alone.
    assert_eq!(c.wait_for(b.position()).unwrap(), Waited::Inserted);
    assert!(c.is_after(on_a));
}

#[test]
fn one_event_serves_many_waiters() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let a = Stream::new(&device).unwrap();
    let position = work(&a);
    driver.take();
    for _ in 0..4 {
        Stream::new(&device).unwrap().wait_for(position).unwrap();
    }
    let records = driver.take().iter().filter(|call| matches!(call, Call::Record { .. })).count();
    assert_eq!(records, 1);
}

#[test]
fn a_held_event_is_never_recorded_again() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let a = Stream::new(&device).unwrap();
    let mut events = Vec::new();
    for _ in 0..40 {
        work(&a);
        events.push(a.record().unwrap());
    }
    let mut seen = std::collections::HashSet::new();
    for call in driver.take() {
        if let Call::Record { event, .. } = call {
            assert!(seen.insert(event), "{event:?} was recorded again while it was held");
        }
    }
    drop(events);
    for _ in 0..40 {
        work(&a);
        let _ = a.record().unwrap();
    }
    let creates = driver.take().iter().filter(|call| matches!(call, Call::EventCreate)).count();
    assert_eq!(creates, 0, "forty handles came back");
}

#[test]
fn what_the_host_saw_done_needs_no_wait() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let seen = work(&a);
    assert!(a.record().unwrap().query().unwrap());
    let unseen = work(&a);
    driver.take();
    assert_eq!(b.wait_for(seen).unwrap(), Waited::Elided);
    assert!(driver.take().is_empty());
    assert_eq!(b.wait_for(unseen).unwrap(), Waited::Inserted);
}

#[test]
fn positions_of_another_device_are_refused() {
    let driver = Recording::new();
    let one = Device::open(driver.clone(), 0).unwrap();
    let other = Device::open(driver, 0).unwrap();
    let position = work(&Stream::new(&one).unwrap());
    let error = Stream::new(&other).unwrap().wait_for(position).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
}

#[test]
fn a_failed_wait_gives_no_order() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let position = work(&a);
    driver.fail("stream_wait", 1, DriverCode::INVALID_HANDLE);
    assert!(b.wait_for(position).is_err());
    assert!(!b.is_after(position));
    assert_eq!(b.wait_for(position).unwrap(), Waited::Inserted);
}

#[test]
fn an_implied_wait_and_a_guard_on_the_same_stream_make_no_call() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let [a, b] = [0; 2].map(|_| Stream::new(&device).unwrap());
    let buffer = DeviceBuffer::new(256, &a, &pool).unwrap();
    buffer.fill(1, &a).unwrap();
    let filled = a.position();
    assert_eq!(b.wait_for(filled).unwrap(), Waited::Inserted);
    driver.take();
    assert_eq!(a.wait_for(filled).unwrap(), Waited::Elided, "its own");
    assert_eq!(b.wait_for(filled).unwrap(), Waited::Elided, "waited for before");
    drop(buffer.read(&a).unwrap());
    drop(buffer.read(&b).unwrap());
    drop(buffer.read(&b).unwrap());
    assert_eq!(driver.take(), []);
    // A write on one of the two is ordered after the read on the other, once.
    drop(buffer.write(&a).unwrap());
    assert_eq!(driver.take().iter().filter(|call| matches!(call, Call::Wait { .. })).count(), 1);
    drop(buffer.write(&a).unwrap());
    drop(buffer.share(&a).unwrap());
    assert_eq!(driver.take(), []);
    assert_eq!(driver.queries(), 0);
}
