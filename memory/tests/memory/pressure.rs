//! The steps when memory runs out: each one, in order, and no unnecessary one.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use millpond_memory::adaptor::Count;
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions};
use millpond_memory::driver::{Driver, Site};
use millpond_memory::resource::{RawAllocation, ResourceStatistics};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceMemoryResource, MemoryError, MemoryPool, OomAction, OomCause, OomContext,
    OomSnapshot, Result, ReusePolicy, Strategy, Stream,
};

use crate::recording::{Call, Recording};

fn simulated(options: SimOptions) -> (Arc<SimDriver>, Device) {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    (driver, device)
}

fn snapshot(error: MemoryError) -> OomSnapshot {
    match error {
        MemoryError::OutOfMemory { snapshot, .. } => *snapshot,
        other => panic!("{other}"),
    }
}

fn assert_silent(driver: &SimDriver) {
    driver.settle().unwrap();
    let findings: Vec<String> = driver.take_findings().iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

/// Spare buffers that a callback frees one at a time.
fn spare(pool: &MemoryPool, stream: &Stream, count: usize, bytes: usize) -> Arc<Mutex<Vec<DeviceBuffer>>> {
    let buffers = (0..count).map(|_| DeviceBuffer::new(bytes, stream, pool).unwrap()).collect();
    Arc::new(Mutex::new(buffers))
}

fn give_one(spare: &Mutex<Vec<DeviceBuffer>>) -> OomAction {
    match spare.lock().unwrap().pop() {
        Some(_) => OomAction::Retry,
        None => OomAction::Fail,
    }
}

#[test]
fn a_stream_has_its_own_frees_at_once_and_another_waits_for_them() {
    let (driver, device) = simulated(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(1)).build().unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    drop(DeviceBuffer::zeroed(1 << 20, &a, &pool).unwrap());
    assert_eq!((pool.used_bytes(), pool.pending_free_bytes()), (ByteSize::ZERO, ByteSize::mib(1)));
    drop(DeviceBuffer::zeroed(1 << 20, &a, &pool).unwrap());
    let calm = pool.pressure_statistics();
    assert_eq!((calm.num_alloc_retries, calm.num_free_waits, calm.num_stream_syncs), (0, 0, 0));
    let buffer = DeviceBuffer::zeroed(1 << 20, &b, &pool).unwrap();
    let waited = pool.pressure_statistics();
    assert_eq!((waited.num_free_waits, waited.num_ooms), (1, 0), "nothing else would keep b within the limit");
    assert_eq!(pool.pending_free_bytes(), ByteSize::ZERO);
    let counts = pool.bytes().unwrap();
    let triple = |count: Count| (count.current >> 20, count.peak >> 20, count.total >> 20);
    assert_eq!(triple(counts.allocated_bytes), (1, 1, 3));
    assert_eq!(triple(counts.pending_free_bytes), (0, 1, 2));
    drop(buffer);
    assert_silent(&driver);
}

#[test]
fn a_stream_that_is_ordered_after_a_free_needs_no_wait_of_the_host() {
    let (driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(1)).build().unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    drop(DeviceBuffer::zeroed(1 << 20, &a, &pool).unwrap());
    b.wait_for(a.position()).unwrap();
    drop(DeviceBuffer::zeroed(1 << 20, &b, &pool).unwrap());
    assert_eq!(pool.pressure_statistics().num_free_waits, 0);
    assert_silent(&driver);
}

#[test]
fn memory_that_is_freed_but_not_reached_is_waited_for_before_anyone_is_asked() {
    // The device is full of memory that stream a has freed but not reached yet: rmm#1245.
    for seed in 0..8 {
        let (driver, device) = simulated(SimOptions { seed, memory_bytes: 64 << 20, ..SimOptions::default() });
        let reuse =
            ReusePolicy { follow_event_dependencies: false, opportunistic: false, internal_dependencies: false };
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).reuse(reuse).build().unwrap();
        let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let _callback = pool.on_out_of_memory(|context| panic!("asked for {context:?}"));
        drop(DeviceBuffer::zeroed(40 << 20, &a, &pool).unwrap());
        let buffer = DeviceBuffer::zeroed(40 << 20, &b, &pool).unwrap();
        let counts = pool.pressure_statistics();
        assert!(counts.num_free_waits >= 1 && counts.num_alloc_retries >= 1, "{counts:?}");
        assert_eq!(counts.num_ooms, 0);
        assert_eq!(device.counters().num_alloc_retries, counts.num_alloc_retries, "the scopes count the same");
        drop(buffer);
        assert_silent(&driver);
    }
}

#[test]
fn caches_of_other_pools_are_reclaimed_before_anyone_waits() {
    for strategy in [Strategy::CudaAsync, Strategy::Caching, Strategy::Arena, Strategy::Binning] {
        let (driver, device) = simulated(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
        let hoard = MemoryPool::builder(&device).limit(ByteSize::gib(1)).strategy(strategy).build().unwrap();
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        drop(DeviceBuffer::zeroed(40 << 20, &stream, &hoard).unwrap());
        device.synchronize().unwrap();
        assert!(hoard.statistics().unwrap().reserved >= ByteSize::mib(40), "{strategy} keeps what is freed");
        let buffer = DeviceBuffer::zeroed(40 << 20, &stream, &pool).unwrap();
        let counts = pool.pressure_statistics();
        assert_eq!(counts.num_ooms, 0);
        assert!(counts.reclaimed_bytes >= 40 << 20 || counts.trimmed_bytes >= 40 << 20, "{strategy}: {counts:?}");
        if strategy == Strategy::CudaAsync {
            assert_eq!((counts.num_stream_syncs, counts.num_trims), (0, 0), "{counts:?}");
        }
        drop(buffer);
        assert_silent(&driver);
    }
}

/// A resource that refuses until it is allowed to serve, and records its calls.
#[derive(Debug)]
struct Stubborn {
    upstream: Arc<dyn DeviceMemoryResource>,
    refusals: AtomicU64,
    calls: Mutex<Vec<&'static str>>,
}

impl Stubborn {
    fn new(device: &Device, refusals: u64) -> Arc<Self> {
        let upstream = Strategy::CudaAsync.create(device).unwrap();
        Arc::new(Stubborn { upstream, refusals: refusals.into(), calls: Mutex::default() })
    }

    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

impl DeviceMemoryResource for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        self.note("allocate");
        let refused = self.refusals.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if refused {
            let (wanted, free, limit) = (ByteSize::from(len.get()), ByteSize::ZERO, ByteSize::ZERO);
            return Err(MemoryError::OutOfMemory { wanted, free, limit, snapshot: Box::default() });
        }
        self.upstream.allocate(len, stream, site)
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.note("trim");
        self.upstream.trim(keep)
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.note("reclaim");
        self.upstream.reclaim(want)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.upstream.reset_peaks()
    }
}

#[test]
fn steps_come_in_their_order_and_each_is_counted() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let sibling = Stubborn::new(&device, 0);
    let beside = MemoryPool::builder(&device).resource(sibling.clone()).build().unwrap();
    let resource = Stubborn::new(&device, u64::MAX);
    let pool = MemoryPool::builder(&device).resource(resource.clone()).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let callback = pool.on_out_of_memory({
        let calls = Arc::clone(&calls);
        move |context| {
            calls.lock().unwrap().push(context);
            OomAction::Fail
        }
    });
    driver.take();
    let error = DeviceBuffer::new(256, &stream, &pool).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(*sibling.calls.lock().unwrap(), ["reclaim", "trim"]);
    assert_eq!(*resource.calls.lock().unwrap(), ["allocate", "allocate", "trim", "allocate"]);
    let (requested, stream_id) = (ByteSize(256), stream.id());
    let expected = OomContext { requested, missing: requested, stream: stream_id, attempt: 0 };
    assert_eq!(*calls.lock().unwrap(), [expected]);
    let counts = pool.pressure_statistics();
    assert_eq!((counts.num_alloc_retries, counts.num_stream_syncs, counts.num_trims), (2, 1, 2));
    assert_eq!((counts.num_callbacks, counts.num_ooms, counts.num_empty_promises), (1, 1, 0));
    assert_eq!((device.counters().num_ooms, device.counters().num_stream_syncs), (1, 1));
    let waits = driver.take().iter().filter(|call| **call == Call::Synchronize).count();
    assert_eq!(waits, 2, "the stream, and the device before trimming");
    drop((callback, beside));
}

#[test]
fn who_is_asked_is_asked_for_what_is_missing_until_it_is_enough() {
    let (driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(1)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let cache = spare(&pool, &stream, 4, 256 << 10);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let callback = pool.on_out_of_memory({
        let (cache, asked) = (Arc::clone(&cache), Arc::clone(&asked));
        move |context| {
            asked.lock().unwrap().push((context.requested, context.missing, context.attempt));
            give_one(&cache)
        }
    });
    let large = DeviceBuffer::new(700 << 10, &stream, &pool).unwrap();
    assert_eq!(cache.lock().unwrap().len(), 1);
    let requested = ByteSize::kib(700);
    let expected = [(700, 0), (444, 1), (188, 2)].map(|(kib, attempt)| (requested, ByteSize::kib(kib), attempt));
    assert_eq!(*asked.lock().unwrap(), expected);
    assert!(DeviceBuffer::new(800 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
    assert_eq!(cache.lock().unwrap().len(), 0);
    drop(callback);
    assert!(DeviceBuffer::new(800 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
    assert_eq!(asked.lock().unwrap().len(), 5, "not asked any more");
    drop(large);
    assert_silent(&driver);
}

#[test]
fn an_empty_promise_is_no_reason_to_try_again() {
    let (_driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::kib(4)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let held = DeviceBuffer::new(2048, &stream, &pool).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let callbacks: Vec<_> = (0..2)
        .map(|_| {
            let asked = Arc::clone(&asked);
            pool.on_out_of_memory(move |_| {
                asked.fetch_add(1, Relaxed);
                OomAction::Retry
            })
        })
        .collect();
    assert!(DeviceBuffer::new(4096, &stream, &pool).unwrap_err().is_out_of_memory());
    assert_eq!(asked.load(Relaxed), 2, "each once");
    assert_eq!(pool.pressure_statistics().num_empty_promises, 2);
    drop((held, callbacks));
}

#[test]
fn who_is_asked_may_allocate_but_is_not_asked_inside_itself() {
    let (driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::kib(4)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let held = DeviceBuffer::new(3 << 10, &stream, &pool).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let callback = pool.on_out_of_memory({
        let (pool, stream, asked) = (pool.clone(), stream.clone(), Arc::clone(&asked));
        move |_| {
            asked.fetch_add(1, Relaxed);
            assert!(DeviceBuffer::new(4 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
            // Some memory is free, and no lock is held: every call works.
            let scratch = DeviceBuffer::new(512, &stream, &pool).unwrap();
            pool.statistics().unwrap();
            drop(pool.on_out_of_memory(|_| OomAction::Fail));
            drop(scratch);
            OomAction::Fail
        }
    });
    assert!(DeviceBuffer::new(2 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
    assert_eq!(asked.load(Relaxed), 1);
    assert!(DeviceBuffer::new(2 << 10, &stream, &pool).unwrap_err().is_out_of_memory());
    assert_eq!(asked.load(Relaxed), 2, "the guard ends with the call");
    drop((callback, held));
    assert_silent(&driver);
}

#[test]
fn what_can_never_fit_fails_at_once() {
    let (_driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(1)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let _callback = pool.on_out_of_memory(|context| panic!("asked for {context:?}"));
    drop(DeviceBuffer::zeroed(1 << 20, &stream, &pool).unwrap());
    let error = DeviceBuffer::new((1 << 20) + 1, &stream, &pool).unwrap_err();
    assert_eq!(snapshot(error).cause, OomCause::Limit);
    let counts = pool.pressure_statistics();
    assert_eq!((counts.num_ooms, counts.num_alloc_retries, counts.num_free_waits), (1, 0, 0));
}

#[test]
fn a_limit_below_the_pools_granularity_is_kept_to_the_byte() {
    let (driver, device) = simulated(SimOptions::default());
    let pool = MemoryPool::builder(&device).limit(ByteSize::kib(64)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let whole = DeviceBuffer::new(64 << 10, &stream, &pool).unwrap();
    assert_eq!(pool.statistics().unwrap().reserved, ByteSize::mib(2), "what the driver takes at a time");
    let error = DeviceBuffer::new(1, &stream, &pool).unwrap_err();
    assert!(error.to_string().starts_with("out of device memory: wanted 256 B, 0 B free of 64 KiB; "), "{error}");
    assert_eq!(snapshot(error).cause, OomCause::Limit);
    drop(whole);
    for _ in 0..100 {
        drop(DeviceBuffer::new(64 << 10, &stream, &pool).unwrap());
    }
    assert_eq!(pool.pressure_statistics().num_trims, 0, "reserved beyond the limit is no pressure");
    assert_silent(&driver);
}

#[test]
fn a_full_device_is_told_apart_from_the_limit() {
    let (_driver, device) = simulated(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
    let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
    let other = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let theirs = DeviceBuffer::new(40 << 20, &stream, &other).unwrap();
    let ours = DeviceBuffer::new(10 << 20, &stream, &pool).unwrap();
    let error = DeviceBuffer::new(30 << 20, &stream, &pool).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("but the device has only 14 MiB of 64 MiB left (10 MiB are this pool's)"), "{text}");
    assert!(text.ends_with("or end other programs on the device"), "{text}");
    let found = snapshot(error);
    assert_eq!((found.cause, found.device_free, found.used), (OomCause::Device, ByteSize::mib(14), ByteSize::mib(10)));
    drop((theirs, ours));
}

#[test]
fn fragments_are_told_apart_from_exhaustion() {
    let (driver, device) = simulated(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(64)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    // Two buffers per page of the pool, and one of each pair stays: half of the memory is free, but no page.
    let mut buffers: Vec<_> = (0..64).map(|_| Some(DeviceBuffer::new(1 << 20, &stream, &pool).unwrap())).collect();
    let page = |buffer: &Option<DeviceBuffer>| buffer.as_ref().unwrap().address().0 >> 21;
    buffers.sort_by_key(|buffer| buffer.as_ref().unwrap().address());
    for pair in buffers.chunks_mut(2) {
        assert_eq!(page(&pair[0]), page(&pair[1]));
        pair[1].take();
    }
    let error = DeviceBuffer::new(2 << 20, &stream, &pool).unwrap_err();
    let MemoryError::OutOfMemory { wanted, free, .. } = error else { panic!("{error}") };
    assert_eq!((wanted, free), (ByteSize::mib(2), ByteSize::mib(32)));
    assert!(
        error.to_string().contains("32 MiB free of 64 MiB, but in pieces (0 B of the device, 32 MiB of 64 MiB"),
        "{error}"
    );
    assert_eq!(snapshot(error).cause, OomCause::Fragmentation);
    drop(buffers);
    assert_silent(&driver);
}

#[test]
fn a_failure_that_lasts_until_something_is_freed_is_survived_under_every_strategy() {
    for strategy in Strategy::ALL {
        let fail_calls = vec![FailCall::new(CallKind::Allocate, 3, FailureLasts::UntilFree)];
        let (driver, device) = simulated(SimOptions { fail_calls, ..SimOptions::default() });
        let pool = MemoryPool::builder(&device).strategy(strategy).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        // Larger than bins, chunks and segments, so that each is an allocation of the driver.
        let cache = spare(&pool, &stream, 2, 40 << 20);
        let callback = pool.on_out_of_memory({
            let cache = Arc::clone(&cache);
            move |_| give_one(&cache)
        });
        let buffer = DeviceBuffer::zeroed(40 << 20, &stream, &pool).unwrap();
        let counts = pool.pressure_statistics();
        assert_eq!((cache.lock().unwrap().len(), counts.num_callbacks, counts.num_ooms), (1, 1, 0), "{strategy}");
        drop((buffer, callback));
        cache.lock().unwrap().clear();
        assert_silent(&driver);
        drop((pool, stream, device));
        assert!(driver.take_findings().is_empty(), "{strategy} leaks nothing");
    }
}

#[test]
fn the_books_balance_after_random_use_near_the_limit() {
    const BLOCK: usize = 4 << 10;
    for seed in 0..12 {
        let (driver, device) = simulated(SimOptions { seed, ..SimOptions::default() });
        let limit = ByteSize((16 * BLOCK) as u64);
        let pool = MemoryPool::builder(&device).limit(limit).build().unwrap();
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
        let mut random = seed * 2 + 1;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let mut live: Vec<DeviceBuffer> = Vec::new();
        for _ in 0..400 {
            match below(8) {
                0..4 if live.len() < 14 => {
                    live.push(DeviceBuffer::zeroed(BLOCK, &streams[below(4)], &pool).unwrap());
                }
                // Last used, and so freed, on another stream.
                4..7 if !live.is_empty() => {
                    let buffer = live.swap_remove(below(live.len()));
                    buffer.fill(1, &streams[below(4)]).unwrap();
                }
                7 => {
                    let position = streams[below(4)].position();
                    streams[below(4)].wait_for(position).unwrap();
                }
                _ => {}
            }
        }
        assert_eq!(pool.pressure_statistics().num_ooms, 0);
        let live_bytes = live.iter().map(DeviceBuffer::allocated_bytes).sum::<ByteSize>();
        let counts = pool.bytes().unwrap();
        assert_eq!(pool.used_bytes(), live_bytes);
        // Bytes reused before their free is reached move from pending to allocated: the sum never exceeds the limit.
        assert!(counts.allocated_bytes.current + counts.pending_free_bytes.current <= limit.as_u64());
        drop(live);
        device.synchronize().unwrap();
        assert_eq!((pool.used_bytes(), pool.pending_free_bytes()), (ByteSize::ZERO, ByteSize::ZERO));
        assert_eq!(DeviceBuffer::new(16 * BLOCK, &streams[0], &pool).unwrap().allocated_bytes(), limit);
        assert_silent(&driver);
    }
}
