//! Results in flight: awaited without a blocked worker, ended by a lost device, dropped at any time.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use millpond_memory::{Device, DriverCode, MemoryError, Pending, Stream};

use crate::recording::{Call, Recording};

/// Runs a future on this thread, parked between polls.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Park(Mutex<bool>, Condvar);
    impl Wake for Park {
        fn wake(self: Arc<Self>) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }
    let park = Arc::new(Park(Mutex::new(false), Condvar::new()));
    let waker = Waker::from(Arc::clone(&park));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = park.0.lock().unwrap();
        while !*woken {
            woken = park.1.wait(woken).unwrap();
        }
        *woken = false;
    }
}

fn work(stream: &Stream) {
    let here = std::panic::Location::caller();
    stream.submit(|driver, on| driver.fill(millpond_memory::DevicePtr(256), 0, 1, on, here)).unwrap();
}

fn poll_once<T>(pending: &mut Pending<T>) -> Poll<millpond_memory::Result<T>> {
    std::pin::Pin::new(pending).poll(&mut Context::from_waker(Waker::noop()))
}

/// Counts its drops.
struct Watched(Arc<AtomicUsize>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn ends_when_the_event_passes_and_not_before() {
    for driver in [Recording::new(), Recording::with_words()] {
        let device = Device::open(driver.clone(), 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        driver.hold();
        work(&stream);
        let mut pending = Pending::behind(stream.record().unwrap(), 42);
        for _ in 0..100 {
            assert!(poll_once(&mut pending).is_pending());
        }
        assert!(!pending.is_ready());
        driver.release();
        assert_eq!(block_on(pending).unwrap(), 42);
        assert_eq!(device.counters().host_waits, 1, "however often it is polled");
    }
}

#[test]
fn a_thousand_end_in_any_order() {
    let driver = Recording::with_words();
    let device = Device::open(driver.clone(), 0).unwrap();
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
    driver.hold();
    let mut all = Vec::new();
    for i in 0..1000 {
        let stream = &streams[i % 4];
        work(stream);
        all.push((i, Pending::behind(stream.record().unwrap(), i)));
    }
    driver.release();
    for (i, pending) in all.into_iter().rev() {
        assert_eq!(block_on(pending).unwrap(), i);
    }
}

#[test]
fn words_spare_the_driver_queries() {
    let driver = Recording::with_words();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    work(&stream);
    let pending = Pending::behind(stream.record().unwrap(), ());
    block_on(pending).unwrap();
    let calls = driver.take();
    let record = calls.iter().position(|call| matches!(call, Call::Record { .. })).unwrap();
    let word = calls.iter().position(|call| matches!(call, Call::Word { .. })).unwrap();
    assert!(record < word, "a word says that its event has passed: {calls:?}");
}

#[test]
fn a_lost_device_ends_every_one_of_them() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    driver.hold();
    work(&a);
    work(&b);
    let first = Pending::behind(a.record().unwrap(), 1);
    let second = Pending::behind(b.record().unwrap(), 2);
    let dropped = Arc::new(AtomicUsize::new(0));
    drop(Pending::behind(b.record().unwrap(), Watched(Arc::clone(&dropped))));
    driver.fail("event_query", u32::MAX, DriverCode::LAUNCH_FAILED);
    for pending in [first, second] {
        let error = block_on(pending).unwrap_err();
        assert!(error.is_device_lost(), "{error}");
    }
    while dropped.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(a.record().unwrap_err().is_device_lost());
}

#[test]
fn dropped_early_keeps_what_it_held_until_the_device_is_past_it() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    driver.hold();
    work(&stream);
    let dropped = Arc::new(AtomicUsize::new(0));
    let pending = Pending::behind(stream.record().unwrap(), Watched(Arc::clone(&dropped))).map(|watched| (watched, 1));
    drop(pending);
    let asked = driver.queries();
    while driver.queries() < asked + 20 {
        std::thread::yield_now();
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    driver.release();
    while dropped.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(device.counters().host_waits, 0, "nobody waited");
}

#[test]
fn values_are_made_when_they_are_there() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    work(&stream);
    let event = stream.record().unwrap();
    assert_eq!(Pending::behind(event.clone(), 20).map(|n| n + 1).map(|n| n * 2).wait().unwrap(), 42);
    let refused = Pending::behind(event.clone(), 1).and_then(|_| Err::<(), _>(MemoryError::HostBusy("for the test")));
    assert!(refused.wait().is_err());
    assert_eq!(block_on(Pending::ready("now")).unwrap(), "now");
    event.completed().wait().unwrap();
}

#[test]
fn the_last_handle_of_a_device_may_be_the_pollers() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    driver.hold();
    work(&stream);
    drop(Pending::behind(stream.record().unwrap(), ()));
    drop((stream, device));
    assert!(!driver.take().contains(&Call::DeviceClose));
    driver.release();
    while !driver.take().contains(&Call::DeviceClose) {
        std::thread::yield_now();
    }
}
