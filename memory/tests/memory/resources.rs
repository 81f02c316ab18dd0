//! Claims for every strategy, on every device: one suite, instantiated for each.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use millpond_memory::adaptor::{
    AllocationStatistics, FailureAction, FailureCallbackResourceAdaptor, LimitingResourceAdaptor,
    LoggingResourceAdaptor, StatisticsResourceAdaptor, TrackingResourceAdaptor,
};
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{DeviceId, DriverKind};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceMemoryResource, MemoryError, MemoryPool, PinnedPool, Strategy, Stream,
};

use crate::conformance::{is_sim, on_every_device};

/// Sizes around every boundary of every strategy: units, bins, kinds of segments, chunks.
const SIZES: [usize; 15] = [
    1,
    255,
    256,
    257,
    4096,
    65_535,
    65_536,
    65_537,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    3 << 20,
    (10 << 20) + 1,
    (32 << 20) - 1,
    (32 << 20) + 1,
];

fn pool(strategy: Strategy, device: &Device) -> MemoryPool {
    MemoryPool::builder(device).limit(ByteSize::gib(1)).strategy(strategy).build().unwrap()
}

fn streams(device: &Device, count: usize) -> Vec<Stream> {
    (0..count).map(|_| Stream::new(device).unwrap()).collect()
}

/// A pseudorandom number below `bound`, equal on all machines.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    /// A length from 1 to one of `most`.
    pub fn len(&mut self, most: [usize; 4]) -> usize {
        let most = most[self.below(4)];
        1 + self.below(most)
    }
}

/// S0.6, S1.4: valid from the allocation on; aligned; padded; disjoint.
pub fn pieces_are_aligned_apart_and_padded_with_zeros(strategy: Strategy) {
    on_every_device(|device| {
        let (pool, pinned) = (pool(strategy, &device), PinnedPool::builder(&device).build());
        let streams = streams(&device, 3);
        let live: Vec<DeviceBuffer> = SIZES
            .into_iter()
            .enumerate()
            .map(|(i, len)| DeviceBuffer::new(len, &streams[i % 3], &pool).unwrap())
            .collect();
        let mut ranges: Vec<(u64, u64)> =
            live.iter().map(|buffer| (buffer.address().0, buffer.allocated_bytes().as_u64())).collect();
        for (buffer, (address, bytes)) in live.iter().zip(&ranges) {
            assert_eq!(address % 256, 0, "{buffer:?}");
            assert_eq!(*bytes, buffer.len().next_multiple_of(256) as u64);
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{ranges:x?}");
        for (i, buffer) in live.iter().enumerate().take(9) {
            let on = &streams[(i + 1) % 3];
            buffer.fill(i as u8 + 1, on).unwrap();
            let bytes = buffer.padded().download_vec(on, &pinned).unwrap().wait().unwrap();
            let (own, padding) = bytes.split_at(buffer.len());
            assert!(own.iter().all(|byte| *byte == i as u8 + 1) && padding.iter().all(|byte| *byte == 0), "{buffer:?}");
        }
    });
}

/// Zero bytes allocate nothing and have an address that is not null.
pub fn empty_buffers_take_nothing(strategy: Strategy) {
    on_every_device(|device| {
        let pool = pool(strategy, &device);
        let stream = Stream::new(&device).unwrap();
        let empty = DeviceBuffer::new(0, &stream, &pool).unwrap();
        assert_ne!(empty.address().0, 0);
        assert_eq!((empty.allocated_bytes(), pool.statistics().unwrap().used), (ByteSize::ZERO, ByteSize::ZERO));
        assert_eq!(device.counters().allocations, 0);
    });
}

/// Impossible sizes are errors, not overflows.
pub fn sizes_that_overflow_are_refused(strategy: Strategy) {
    on_every_device(|device| {
        let resource = strategy.create(&device).unwrap();
        let stream = Stream::new(&device).unwrap();
        for len in [usize::MAX, usize::MAX - 255, usize::MAX / 2, 1 << 60] {
            let error = resource.allocate(NonZeroUsize::new(len).unwrap(), &stream, Location::caller()).unwrap_err();
            assert!(error.is_out_of_memory() || matches!(error, MemoryError::Range { .. }), "{len:#x}: {error}");
        }
        assert!(!device.is_lost());
        let pool = MemoryPool::builder(&device).limit(ByteSize::MAX).resource(resource).build().unwrap();
        assert!(DeviceBuffer::new(usize::MAX, &stream, &pool).is_err());
        drop(DeviceBuffer::new(1, &stream, &pool).unwrap());
    });
}

/// S0.16, S1.37: freed memory is reused, and a trim frees the rest to the device.
pub fn everything_comes_back(strategy: Strategy) {
    on_every_device(|device| {
        let before = device.memory_info().unwrap().free_bytes;
        let pool = pool(strategy, &device);
        let streams = streams(&device, 4);
        for round in 0..3 {
            let mut live = Vec::new();
            for (i, len) in SIZES.into_iter().enumerate() {
                let buffer = DeviceBuffer::zeroed(len, &streams[(i + round) % 4], &pool).unwrap();
                buffer.fill(1, &streams[i % 4]).unwrap();
                live.push(buffer);
            }
            let statistics = pool.statistics().unwrap();
            assert!(statistics.used >= pool.used_bytes() && statistics.reserved >= statistics.used, "{statistics:?}");
            assert!(statistics.used_peak >= statistics.used && statistics.reserved_peak >= statistics.reserved);
        }
        device.synchronize().unwrap();
        assert_eq!((pool.used_bytes(), pool.statistics().unwrap().used), (ByteSize::ZERO, ByteSize::ZERO));
        let reserved = pool.statistics().unwrap().reserved;
        assert_eq!(pool.trim_to(ByteSize::ZERO).unwrap(), reserved);
        assert_eq!(pool.statistics().unwrap().reserved, ByteSize::ZERO);
        pool.reset_high().unwrap();
        assert_eq!(pool.statistics().unwrap().reserved_peak, ByteSize::ZERO);
        // With libcuda, other processes use the device as well.
        if device.driver().kind() == DriverKind::Sim {
            assert_eq!(device.memory_info().unwrap().free_bytes, before);
        }
        assert!(device.take_errors().is_empty());
    });
}

/// A resource serves only streams of its own device.
pub fn streams_of_another_device_are_refused(strategy: Strategy) {
    let driver = SimDriver::new(SimOptions { devices: 2, ..SimOptions::default() });
    let [own, other] = [0, 1].map(|ordinal| Device::open(driver.clone(), ordinal).unwrap());
    let resource = strategy.create(&own).unwrap();
    let (home, foreign) = (Stream::new(&own).unwrap(), Stream::new(&other).unwrap());
    let len = NonZeroUsize::new(100).unwrap();
    let error = resource.allocate(len, &foreign, Location::caller()).unwrap_err();
    assert!(matches!(error, MemoryError::ForeignDevice { .. }), "{error}");
    let builder = MemoryPool::builder(&other).resource(Arc::clone(&resource));
    assert!(builder.build().is_err_and(|error| error.to_string().contains("of another device")));
    let raw = resource.allocate(len, &home, Location::caller()).unwrap();
    resource.deallocate(raw, &home, Location::caller()).unwrap();
    drop((resource, home, foreign, own, other));
    assert!(driver.take_findings().is_empty());
}

/// Out of memory is an error that changes nothing; a free anywhere resolves it.
pub fn out_of_memory_passes(strategy: Strategy) {
    let driver = SimDriver::new(SimOptions { memory_bytes: 96 << 20, ..SimOptions::default() });
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).limit(ByteSize::MAX).strategy(strategy).build().unwrap();
    let streams = streams(&device, 3);
    for len in [40 << 20, 100, 5 << 20, 60_000, 300_000] {
        let mut live = Vec::new();
        let error = loop {
            match DeviceBuffer::new(len, &streams[live.len() % 3], &pool) {
                Ok(buffer) => live.push(buffer),
                Err(error) => break error,
            }
            if live.len() * len > 4 << 20 && len < 1000 {
                // Small ones would take too long to fill the device; the other sizes cover this.
                break DeviceBuffer::new(96 << 20, &streams[0], &pool).unwrap_err();
            }
        };
        assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error}");
        assert!(!live.is_empty(), "{len} bytes fit once at least");
        for (i, buffer) in live.iter().enumerate() {
            buffer.view(0..64).unwrap().fill(i as u8, &streams[(i + 1) % 3]).unwrap();
        }
    }
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
    drop((pool, streams, device));
    let findings = driver.take_findings();
    assert!(findings.is_empty(), "{findings:#?}");
}

/// A failure of any single allocation of the device leaves a working resource.
pub fn one_failed_allocation_is_survived(strategy: Strategy) {
    use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts};
    for nth in 1..6 {
        for lasts in [FailureLasts::Once, FailureLasts::UntilFree] {
            let fail_calls = vec![FailCall::new(CallKind::Allocate, nth, lasts)];
            let driver = SimDriver::new(SimOptions { fail_calls, ..SimOptions::default() });
            let device = Device::open(driver.clone(), 0).unwrap();
            let pool = pool(strategy, &device);
            let streams = streams(&device, 2);
            let mut live = Vec::new();
            for (i, len) in [5000, 3 << 20, 40 << 20, 256, 70_000, 2 << 20].into_iter().enumerate() {
                match DeviceBuffer::zeroed(len, &streams[i % 2], &pool) {
                    Ok(buffer) => live.push(buffer),
                    // Live memory is the only memory that can be freed.
                    Err(error) if lasts == FailureLasts::UntilFree && error.is_out_of_memory() => live.clear(),
                    Err(error) => panic!("allocation {nth} fails {lasts:?}: {error}"),
                }
            }
            drop(live);
            assert_eq!(pool.used_bytes(), ByteSize::ZERO);
            pool.trim_to(ByteSize::ZERO).unwrap();
            drop((pool, streams));
            assert!(device.take_errors().is_empty());
            drop(device);
            let findings = driver.take_findings();
            assert!(findings.is_empty(), "{findings:#?}");
        }
    }
}

/// Drops after the device is lost neither panic nor free, and every other call is an error.
pub fn a_lost_device_lets_everything_be_dropped(strategy: Strategy) {
    let driver = SimDriver::with_seed(1);
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = pool(strategy, &device);
    let stream = Stream::new(&device).unwrap();
    let live: Vec<DeviceBuffer> =
        [100, 1 << 20, 3 << 20].into_iter().map(|len| DeviceBuffer::zeroed(len, &stream, &pool).unwrap()).collect();
    drop(DeviceBuffer::new(5000, &stream, &pool).unwrap());
    driver.lose_device(DeviceId(0));
    assert!(stream.synchronize().unwrap_err().is_device_lost());
    assert!(DeviceBuffer::new(100, &stream, &pool).unwrap_err().is_device_lost());
    assert!(pool.trim_to(ByteSize::ZERO).unwrap_err().is_device_lost());
    drop(live);
    drop((pool, stream, device));
}

/// Maximum number of buffers that a storm shares.
const MOST_SHARED: usize = 200;

/// Operations per thread of a storm; `MILLPOND_TEST_STEPS` overrides it.
fn steps(device: &Device) -> usize {
    let asked = std::env::var("MILLPOND_TEST_STEPS").ok();
    let default = if is_sim(device) { 60 } else { 6250 };
    asked.map_or(default, |steps| steps.parse().expect("MILLPOND_TEST_STEPS is a number"))
}

/// Random operations of many threads on many streams: no finding, and every byte is right.
fn storm(device: &Device, pool: &MemoryPool, seed: u64, threads: usize, steps: usize) {
    let pinned = PinnedPool::builder(device).build();
    let streams = streams(device, 8);
    let shared: Mutex<Vec<(Arc<DeviceBuffer>, u8)>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (streams, shared, pinned) = (&streams, &shared, &pinned);
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + thread as u64);
                for step in 0..steps {
                    let on = &streams[random.below(8)];
                    let byte = (thread * steps + step) as u8;
                    let known = |random: &mut Random| {
                        let shared = shared.lock().unwrap();
                        (!shared.is_empty()).then(|| shared[random.below(shared.len())].clone())
                    };
                    let full = shared.lock().unwrap().len() > MOST_SHARED;
                    match if full { 6 } else { random.below(10) } {
                        // Allocated and written on different streams, and shared.
                        0..4 => {
                            let len = random.len([300, 5000, 100_000, 2 << 20]);
                            let buffer = DeviceBuffer::new(len, on, pool).unwrap();
                            let writer = &streams[random.below(8)];
                            buffer.fill(byte, writer).unwrap();
                            shared.lock().unwrap().push((Arc::new(buffer), byte));
                        }
                        // Read on one stream into a buffer of another.
                        4..6 => {
                            let Some((buffer, byte)) = known(&mut random) else { continue };
                            let copy = DeviceBuffer::new(buffer.len(), &streams[random.below(8)], pool).unwrap();
                            buffer.copy_to(copy.as_view(), on).unwrap();
                            shared.lock().unwrap().push((Arc::new(copy), byte));
                        }
                        // Dropped while work may still run.
                        6..9 => {
                            let mut shared = shared.lock().unwrap();
                            if shared.len() > 4 {
                                let index = random.below(shared.len());
                                let gone = shared.swap_remove(index);
                                drop(shared);
                                drop(gone);
                            }
                        }
                        _ => {
                            let Some((buffer, byte)) = known(&mut random) else { continue };
                            let part = buffer.view(0..buffer.len().min(200)).unwrap();
                            let bytes = part.download_vec(on, pinned).unwrap().wait().unwrap();
                            assert!(
                                bytes.iter().all(|found| *found == byte),
                                "{buffer:?}: {bytes:?} instead of {byte}"
                            );
                        }
                    }
                }
            });
        }
    });
    for (buffer, byte) in shared.into_inner().unwrap() {
        let bytes = buffer.download_vec(&streams[0], &pinned).unwrap().wait().unwrap();
        assert!(bytes.iter().all(|found| *found == byte), "{buffer:?}");
    }
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
    assert!(device.take_errors().is_empty());
}

/// S0.8–S0.11: the allocating, the using and the freeing stream may all differ.
pub fn many_threads_on_many_streams_are_in_order(strategy: Strategy) {
    on_every_device(|device| {
        let pool = pool(strategy, &device);
        storm(&device, &pool, device.driver().seed().unwrap_or(7), 16, steps(&device));
    });
}

/// The same with little memory, where streams reuse memory freed by others, and segments are allocated and freed.
pub fn little_memory_is_shared_in_order(strategy: Strategy) {
    for seed in 0..2 {
        let driver = SimDriver::new(SimOptions { seed, memory_bytes: 48 << 20, ..SimOptions::default() });
        let device = Device::open(driver.clone(), 0).unwrap();
        let pool = MemoryPool::builder(&device).limit(ByteSize::MAX).strategy(strategy).build().unwrap();
        let streams = streams(&device, 4);
        let mut random = Random(seed);
        let mut live: Vec<(DeviceBuffer, u8)> = Vec::new();
        let pinned = PinnedPool::builder(&device).build();
        for step in 0..400 {
            let len = random.len([1000, 60_000, 1 << 20, 9 << 20]);
            let [on, writer] = [0; 2].map(|_| &streams[random.below(4)]);
            match DeviceBuffer::new(len, on, &pool) {
                Ok(buffer) => {
                    buffer.fill(step as u8, writer).unwrap();
                    live.push((buffer, step as u8));
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    live.truncate(live.len() / 2);
                }
            }
            if random.below(3) == 0 && !live.is_empty() {
                let (buffer, byte) = live.swap_remove(random.below(live.len()));
                let part = buffer.view(0..buffer.len().min(100)).unwrap();
                let pending = part.download_vec(writer, &pinned).unwrap();
                drop(buffer);
                assert!(pending.wait().unwrap().iter().all(|found| *found == byte));
            }
        }
        drop(live);
        assert_eq!(pool.used_bytes(), ByteSize::ZERO);
        drop((pool, pinned, streams));
        assert!(device.take_errors().is_empty());
        drop(device);
        let findings = driver.take_findings();
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}");
    }
}

/// All adaptors around the strategy: the order holds, and each counts once.
pub fn adaptors_stack(strategy: Strategy) {
    on_every_device(|device| {
        let inner = Arc::new(StatisticsResourceAdaptor::new(strategy.create(&device).unwrap()));
        let limiting = Arc::new(LimitingResourceAdaptor::new(inner.clone(), ByteSize::gib(1)));
        let asking = Arc::new(FailureCallbackResourceAdaptor::new(limiting.clone(), |_| FailureAction::Fail));
        let logging = Arc::new(LoggingResourceAdaptor::new(asking, std::io::sink()).unwrap());
        let tracking = Arc::new(TrackingResourceAdaptor::new(logging));
        let outer = Arc::new(StatisticsResourceAdaptor::new(tracking.clone()));
        assert_eq!(outer.name(), strategy.name());
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).resource(outer.clone()).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let buffer = DeviceBuffer::new(1000, &stream, &pool).unwrap();
        assert_eq!((inner.counts().bytes.current, outer.counts().bytes.current), (1024, 1024));
        assert_eq!((limiting.used_bytes(), tracking.outstanding().len()), (ByteSize(1024), 1));
        drop((buffer, stream));
        let before = outer.counts().allocations.total;
        storm(&device, &pool, 5, 4, 40);
        let (inside, outside) = (inner.counts(), outer.counts());
        // Peaks of several threads depend on the order of their counts.
        let totals = |counts: AllocationStatistics| (counts.bytes.total, counts.allocations.total, counts.failures);
        assert_eq!(totals(inside), totals(outside));
        assert!(outside.allocations.total > before && outside.bytes.peak >= 1024);
        assert_eq!((outside.bytes.current, outside.allocations.current), (0, 0));
        assert_eq!((limiting.used_bytes(), tracking.outstanding().len()), (ByteSize::ZERO, 0));
    });
}

macro_rules! suite {
    ($($name:ident: $strategy:ident;)*) => {$(
        mod $name {
            use super::*;
            suite!(@claims $strategy:
                pieces_are_aligned_apart_and_padded_with_zeros
                empty_buffers_take_nothing
                sizes_that_overflow_are_refused
                everything_comes_back
                streams_of_another_device_are_refused
                out_of_memory_passes
                one_failed_allocation_is_survived
                a_lost_device_lets_everything_be_dropped
                many_threads_on_many_streams_are_in_order
                little_memory_is_shared_in_order
                adaptors_stack
            );
        }
    )*};
    (@claims $strategy:ident: $($claim:ident)*) => {$(
        #[test]
        fn $claim() {
            super::$claim(Strategy::$strategy);
        }
    )*};
}

suite! {
    cuda: Cuda;
    cuda_async_default: CudaAsyncDefault;
    cuda_async: CudaAsync;
    caching: Caching;
    arena: Arena;
    binning: Binning;
}
