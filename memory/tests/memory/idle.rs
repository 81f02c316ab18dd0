//! Pools free unused memory: after a delay, and when another process has taken the rest of the device.

use std::sync::Arc;
use std::time::Duration;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::{ByteSize, Device, DeviceBuffer, IdleTrim, MemoryError, MemoryPool, OomCause, Strategy, Stream};

use crate::lost::TestClock;
use crate::recording::{Call, Recording};

const AFTER: Option<Duration> = Some(Duration::from_secs(30));

fn trims(driver: &Recording) -> usize {
    driver.take().iter().filter(|call| matches!(call, Call::PoolTrim { .. })).count()
}

#[test]
fn a_pool_that_was_idle_for_long_enough_is_trimmed_once() {
    let (driver, clock) = (Recording::new(), TestClock::new());
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let idle = IdleTrim::new(&pool, AFTER, clock.clone());
    clock.advance(100);
    assert_eq!(idle.look(), None, "nobody has used it yet");

    idle.begin();
    drop(DeviceBuffer::new(1 << 20, &stream, &pool).unwrap());
    clock.advance(100);
    assert_eq!(idle.look(), None, "a query runs, however long");
    idle.begin();
    idle.end();
    clock.advance(100);
    assert_eq!(idle.look(), None, "another one ended, and the first still runs");
    idle.end();
    assert_eq!(idle.look(), None);
    clock.advance(29);
    assert_eq!((idle.look(), trims(&driver)), (None, 0));
    clock.advance(1);
    assert_eq!((idle.look(), trims(&driver)), (Some(ByteSize::mib(1)), 1));
    clock.advance(1000);
    assert_eq!((idle.look(), trims(&driver)), (None, 0), "once");
}

#[test]
fn what_is_allocated_or_freed_in_between_begins_the_time_anew() {
    let (driver, clock) = (Recording::new(), TestClock::new());
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let idle = IdleTrim::new(&pool, AFTER, clock.clone());
    idle.begin();
    idle.end();
    let mut kept = None;
    for _ in 0..3 {
        clock.advance(29);
        kept = Some(DeviceBuffer::new(256, &stream, &pool).unwrap());
        assert_eq!(idle.look(), None);
    }
    clock.advance(29);
    drop(kept);
    assert_eq!(idle.look(), None, "a free");
    clock.advance(30);
    assert!(idle.look().is_some());
}

#[test]
fn a_use_that_begins_in_time_keeps_the_memory() {
    let (driver, clock) = (Recording::new(), TestClock::new());
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let idle = IdleTrim::new(&pool, AFTER, clock.clone());
    idle.begin();
    idle.end();
    clock.advance(29);
    idle.begin();
    clock.advance(1);
    assert_eq!((idle.look(), trims(&driver)), (None, 0));
    idle.end();
    assert_eq!(idle.look(), None);
    clock.advance(30);
    assert!(idle.look().is_some());
}

#[test]
fn no_time_means_never() {
    let (driver, clock) = (Recording::new(), TestClock::new());
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let idle = IdleTrim::new(&pool, None, clock.clone());
    idle.begin();
    idle.end();
    clock.advance(1_000_000);
    assert_eq!((idle.look(), trims(&driver)), (None, 0));
}

/// Live memory stays, for every strategy that keeps memory.
#[test]
fn live_memory_stays_and_the_rest_goes_back_to_the_device() {
    for strategy in [Strategy::CudaAsync, Strategy::Caching, Strategy::Arena, Strategy::Binning] {
        let (driver, clock) = (SimDriver::with_seed(1), TestClock::new());
        {
            let device = Device::open(driver.clone(), 0).unwrap();
            let pool = MemoryPool::builder(&device).strategy(strategy).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let idle = IdleTrim::new(&pool, AFTER, clock.clone());
            idle.begin();
            let live = DeviceBuffer::zeroed(4 << 20, &stream, &pool).unwrap();
            let spare: Vec<_> = (0..8).map(|_| DeviceBuffer::zeroed(32 << 20, &stream, &pool).unwrap()).collect();
            drop(spare);
            idle.end();
            assert_eq!(idle.look(), None);
            clock.advance(30);
            let went = idle.look().unwrap();
            assert!(went >= ByteSize::mib(192), "{strategy}: {went}");
            let free = device.memory_info().unwrap().free_bytes;
            assert!(free >= (8 << 30) - (64 << 20), "{strategy}: {free} free");
            live.fill(1, &stream).unwrap();
            stream.synchronize().unwrap();
        }
        assert_eq!(driver.take_findings(), [], "{strategy}");
    }
}

#[test]
fn the_thread_trims_by_itself_and_keeps_nothing_alive() {
    let (driver, clock) = (Recording::new(), TestClock::ticking());
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let idle = IdleTrim::new(&pool, Some(Duration::from_secs(1)), clock);
    idle.begin();
    // The clock advances a second per reading: the thread's first reading is late enough.
    idle.end();
    while trims(&driver) == 0 {
        std::thread::yield_now();
    }
    drop(idle);
    drop((pool, device));
    while !driver.take().contains(&Call::DeviceClose) {
        std::thread::yield_now();
    }
}

/// Another process takes most of the device after the pool has set its limit.
#[test]
fn a_neighbour_lowers_the_limit_until_nothing_is_used() {
    let driver = SimDriver::new(SimOptions { memory_bytes: 1 << 30, ..SimOptions::default() });
    let other = driver.second_process();
    {
        let device = Device::open(driver.clone(), 0).unwrap();
        let pool = MemoryPool::builder(&device).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        assert_eq!(pool.limit(), ByteSize::mib(768));

        let their_device = Device::open(other.clone(), 0).unwrap();
        let their_pool = MemoryPool::builder(&their_device).limit(ByteSize::mib(704)).build().unwrap();
        let theirs = Stream::new(&their_device).unwrap();
        let taken = DeviceBuffer::new(704 << 20, &theirs, &their_pool).unwrap();
        theirs.synchronize().unwrap();

        let held = DeviceBuffer::new(64 << 20, &stream, &pool).unwrap();
        let error = DeviceBuffer::new(512 << 20, &stream, &pool).unwrap_err();
        assert!(
            matches!(&error, MemoryError::OutOfMemory { snapshot, .. } if snapshot.cause == OomCause::Device),
            "{error}"
        );
        assert_eq!(pool.limit(), ByteSize::mib(320), "64 MiB of ours and 256 MiB that are free");
        assert_eq!(pool.configured_limit(), ByteSize::mib(768));

        // A request too large for the device is refused without a driver call, with the device named as the cause.
        let trims = pool.pressure_statistics().num_trims;
        let error = DeviceBuffer::new(512 << 20, &stream, &pool).unwrap_err();
        assert!(error.to_string().contains("but the device has only 256 MiB of 1 GiB left"), "{error}");
        assert_eq!(pool.pressure_statistics().num_trims, trims);
        // Smaller requests succeed.
        drop(DeviceBuffer::new(128 << 20, &stream, &pool).unwrap());

        drop(taken);
        theirs.synchronize().unwrap();
        their_pool.trim_to(ByteSize::ZERO).unwrap();
        pool.end_of_query().unwrap();
        assert_eq!(pool.limit(), ByteSize::mib(320), "something is used");
        drop(held);
        pool.end_of_query().unwrap();
        assert_eq!(pool.limit(), ByteSize::mib(768));
        drop(DeviceBuffer::new(512 << 20, &stream, &pool).unwrap());
    }
    assert_eq!(driver.take_findings(), []);
    drop(Arc::clone(&other));
}
