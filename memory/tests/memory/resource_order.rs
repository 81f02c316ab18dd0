//! Specifics of each strategy: its waits, the memory it keeps, and that each wait is needed.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex};

use millpond_memory::adaptor::LimitingResourceAdaptor;
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{Driver, FindingKind, Site};
use millpond_memory::resource::{
    ArenaMemoryResource, ArenaOptions, BinningMemoryResource, BinningOptions, CachingMemoryResource, CachingOptions,
    CudaMemoryResource, RawAllocation, TakeOver,
};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceMemoryResource, MemoryError, MemoryPool, ResourceStatistics, Result,
    Strategy, Stream,
};

const MIB: usize = 1 << 20;

fn open(options: SimOptions) -> (Arc<SimDriver>, Device) {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    (driver, device)
}

fn pool_over(resource: Arc<dyn DeviceMemoryResource>) -> MemoryPool {
    let device = resource.device().clone();
    MemoryPool::builder(&device).limit(ByteSize::MAX).resource(resource).build().unwrap()
}

fn kinds(driver: &SimDriver) -> Vec<FindingKind> {
    let _ = driver.settle();
    driver.take_findings().iter().map(|finding| finding.kind).collect()
}

/// Writes a buffer on one stream, which holds others of its size, and drops it; then writes the same bytes on another
/// stream. Returns the findings, the device's waits and those that the resource made.
fn hand_over(
    ignore_wait: Option<u64>,
    (len, held): (usize, usize),
    resource: impl Fn(&Device) -> Arc<dyn DeviceMemoryResource>,
) -> (Vec<FindingKind>, u64, ResourceStatistics) {
    let (driver, device) = open(SimOptions { seed: 3, ignore_wait, ..SimOptions::default() });
    let resource = resource(&device);
    let pool = pool_over(Arc::clone(&resource));
    let [a, b] = [0; 2].map(|_| Stream::new(&device).unwrap());
    let first = DeviceBuffer::new(len, &a, &pool).unwrap();
    first.fill(1, &a).unwrap();
    let address = first.address();
    let held: Vec<DeviceBuffer> = (0..held).map(|_| DeviceBuffer::new(len, &a, &pool).unwrap()).collect();
    drop(first);
    let second = DeviceBuffer::new(len, &b, &pool).unwrap();
    second.fill(2, &b).unwrap();
    assert_eq!(second.address(), address, "the bytes are the same");
    let waits = driver.counters().stream_waits;
    let found = kinds(&driver);
    drop((second, held));
    (found, waits, resource.statistics().unwrap())
}

fn needs_its_wait(len: (usize, usize), resource: impl Fn(&Device) -> Arc<dyn DeviceMemoryResource>) {
    let (found, waits, statistics) = hand_over(None, len, &resource);
    assert_eq!((found, waits), (vec![], 1));
    assert_eq!((statistics.cross_stream_reuses, statistics.waits_inserted), (1, 1));
    let (found, ..) = hand_over(Some(1), len, &resource);
    assert!(found.contains(&FindingKind::UnorderedAccess), "without the wait the checker must fire: {found:?}");
}

#[test]
fn cached_block_is_taken_over_behind_a_wait() {
    needs_its_wait((MIB, 0), |device| {
        let options = CachingOptions { take_over: TakeOver::BeforeGrowing, ..CachingOptions::default() };
        Arc::new(CachingMemoryResource::new(Arc::new(CudaMemoryResource::new(device)), options))
    });
}

#[test]
fn cached_block_is_taken_over_when_the_device_is_full() {
    needs_its_wait((30 * MIB, 0), |device| {
        let cuda = Arc::new(CudaMemoryResource::new(device));
        let full = Arc::new(LimitingResourceAdaptor::new(cuda, ByteSize::mib(40)));
        Arc::new(CachingMemoryResource::new(full, CachingOptions::default()))
    });
}

#[test]
fn slot_is_taken_over_when_the_device_is_full() {
    // One slab of sixteen slots.
    needs_its_wait((60_000, 15), |device| {
        let full = LimitingResourceAdaptor::new(Strategy::CudaAsync.create(device).unwrap(), ByteSize::mib(1));
        Arc::new(BinningMemoryResource::new(Arc::new(full), BinningOptions::default()))
    });
}

#[test]
fn streams_do_not_wait_for_each_other_while_there_is_room() {
    for strategy in [Strategy::Caching, Strategy::Arena, Strategy::Binning] {
        let (driver, device) = open(SimOptions::default());
        let pool = pool_over(strategy.create(&device).unwrap());
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
        for round in 0..10 {
            for stream in &streams {
                let buffer = DeviceBuffer::new(5000 + round, stream, &pool).unwrap();
                buffer.fill(1, stream).unwrap();
            }
        }
        assert_eq!(driver.counters().stream_waits, 0, "{strategy}");
        assert_eq!(pool.statistics().unwrap().cross_stream_reuses, 0);
        // Each stream allocated once from the driver, and used the memory ten times.
        assert_eq!(driver.counters().allocations, 4, "{strategy}");
    }
}

#[test]
fn what_a_stream_comes_after_anyway_is_taken_without_a_wait() {
    let (driver, device) = open(SimOptions::default());
    let pool = pool_over(Strategy::Caching.create(&device).unwrap());
    let [a, b] = [0; 2].map(|_| Stream::new(&device).unwrap());
    drop(DeviceBuffer::zeroed(MIB, &a, &pool).unwrap());
    b.wait_for(a.position()).unwrap();
    let again = DeviceBuffer::zeroed(MIB, &b, &pool).unwrap();
    assert_eq!((driver.counters().stream_waits, driver.counters().allocations), (1, 1));
    let statistics = pool.statistics().unwrap();
    assert_eq!((statistics.cross_stream_reuses, statistics.waits_inserted), (1, 0));
    drop(again);
    assert_eq!(kinds(&driver), []);
}

/// A buffer of the arena's stream is read on another, which frees it: the arena is returned, and its next allocation
/// must wait.
fn arena_under_a_reader(ignore_wait: Option<u64>) -> (Vec<FindingKind>, u64) {
    let (driver, device) = open(SimOptions { seed: 5, ignore_wait, ..SimOptions::default() });
    let upstream = Strategy::CudaAsync.create(&device).unwrap();
    let arena = Arc::new(ArenaMemoryResource::new(upstream, ArenaOptions::default()));
    let pool = pool_over(arena.clone());
    let [a, reader] = [0; 2].map(|_| Stream::new(&device).unwrap());
    let target = DeviceBuffer::new(4096, &reader, &pool).unwrap();
    let mark = arena.mark(&a);
    let source = DeviceBuffer::new(4096, &a, &pool).unwrap();
    source.fill(1, &a).unwrap();
    let address = source.address();
    source.copy_to(&target, &reader).unwrap();
    let error = arena.reset(mark).unwrap_err();
    assert!(matches!(error, MemoryError::ArenaInUse { allocations: 1, bytes: ByteSize(4096), .. }), "{error}");
    assert!(error.to_string().contains("resource_order.rs"), "{error}");
    drop(source);
    arena.reset(mark).unwrap();
    let next = DeviceBuffer::new(4096, &a, &pool).unwrap();
    next.fill(2, &a).unwrap();
    assert_eq!(next.address(), address, "the arena stands where it stood");
    arena.check();
    let waits = driver.counters().stream_waits;
    (kinds(&driver), waits)
}

#[test]
fn arena_that_is_reset_waits_for_readers_on_other_streams() {
    assert_eq!(arena_under_a_reader(None), (vec![], 2));
    for wait in 1..=2 {
        let (found, _) = arena_under_a_reader(Some(wait));
        assert!(found.contains(&FindingKind::UnorderedAccess), "nothing found without wait {wait}: {found:?}");
    }
}

#[test]
fn suballocators_refuse_what_they_did_not_hand_out() {
    let (_driver, device) = open(SimOptions::default());
    let stream = Stream::new(&device).unwrap();
    let len = NonZeroUsize::new(1000).unwrap();
    for strategy in [Strategy::Caching, Strategy::Arena, Strategy::Binning] {
        let [own, other] = [0; 2].map(|_| strategy.create(&device).unwrap());
        drop((other.allocate(len, &stream, Location::caller()), own.allocate(len, &stream, Location::caller())));
        let raw = own.allocate(len, &stream, Location::caller()).unwrap();
        let error = other.deallocate(raw, &stream, Location::caller()).unwrap_err();
        assert!(matches!(error, MemoryError::NotHandedOut { .. }), "{strategy}: {error}");
        assert!(error.to_string().starts_with(&format!("{strategy} was given 0x")), "{error}");
    }
}

#[test]
fn free_without_a_stream_waits_for_its_users_on_the_host() {
    let (driver, device) = open(SimOptions::default());
    let pool = pool_over(Strategy::Cuda.create(&device).unwrap());
    let [a, b] = [0; 2].map(|_| Stream::new(&device).unwrap());
    let buffer = DeviceBuffer::zeroed(MIB, &a, &pool).unwrap();
    buffer.fill(3, &b).unwrap();
    let before = (device.counters().host_waits, driver.counters().host_waits);
    drop(buffer);
    assert_eq!(device.counters().host_waits, before.0 + 1);
    assert!(driver.counters().host_waits > before.1);
    assert_eq!(device.memory_info().unwrap().free_bytes, driver.options().memory_bytes, "nothing is kept");
    assert_eq!(kinds(&driver), []);
}

/// S0.16–S0.18, S3.16, S3.17: the loop of allocate, use, free, synchronize.
#[test]
fn threshold_zero_gives_memory_back_at_every_synchronisation_and_the_tuned_pool_keeps_it() {
    for (strategy, kept) in [(Strategy::CudaAsyncDefault, false), (Strategy::CudaAsync, true)] {
        let (driver, device) = open(SimOptions::default());
        let pool = MemoryPool::builder(&device).strategy(strategy).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        for _ in 0..3 {
            drop(DeviceBuffer::zeroed(8 * MIB, &stream, &pool).unwrap());
            stream.synchronize().unwrap();
            assert_eq!(pool.statistics().unwrap().reserved > ByteSize::ZERO, kept, "{strategy}");
        }
        assert_eq!(pool.attributes().unwrap().release_threshold == ByteSize::MAX, kept);
        assert_eq!(pool.attributes().unwrap().reuse.internal_dependencies, !kept, "the driver's own policies");
        assert_eq!(kinds(&driver), []);
    }
}

#[test]
fn strategies_without_a_pool_of_the_drivers_say_so() {
    let (_driver, device) = open(SimOptions::default());
    let pool = MemoryPool::builder(&device).strategy(Strategy::Caching).build().unwrap();
    let error = pool.attributes().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuMemPoolGetAttribute failed: not supported (801): caching is not a pool of the driver's"
    );
    assert_eq!(pool.resource().name(), "caching");
}

#[test]
fn release_threshold_gives_whole_segments_back() {
    let (driver, device) = open(SimOptions::default());
    let options = CachingOptions { release_threshold: ByteSize::mib(30), ..CachingOptions::default() };
    let caching = Arc::new(CachingMemoryResource::new(Arc::new(CudaMemoryResource::new(&device)), options));
    let pool = pool_over(caching.clone());
    let stream = Stream::new(&device).unwrap();
    let live: Vec<DeviceBuffer> =
        [24, 16, 40].into_iter().map(|mib| DeviceBuffer::zeroed(mib * MIB, &stream, &pool).unwrap()).collect();
    caching.check();
    assert_eq!(pool.statistics().unwrap().reserved, ByteSize::mib(80));
    drop(live);
    caching.check();
    let statistics = pool.statistics().unwrap();
    assert!(statistics.reserved <= ByteSize::mib(30) && statistics.reserved > ByteSize::ZERO, "{statistics:?}");
    assert_eq!(statistics.reserved_peak, ByteSize::mib(80));
    assert_eq!(kinds(&driver), []);
}

#[test]
fn fragments_of_several_streams_become_one_block_once_they_have_passed() {
    let (driver, device) = open(SimOptions { memory_bytes: 48 << 20, ..SimOptions::default() });
    let caching = Arc::new(CachingMemoryResource::new(
        Arc::new(CudaMemoryResource::new(&device)),
        CachingOptions { take_over: TakeOver::BeforeGrowing, ..CachingOptions::default() },
    ));
    let pool = pool_over(caching.clone());
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&device).unwrap()).collect();
    drop(DeviceBuffer::new(40 * MIB, &streams[0], &pool).unwrap());
    let mut parts: Vec<DeviceBuffer> =
        (0..13).map(|i| DeviceBuffer::zeroed(3 * MIB, &streams[i % 3], &pool).unwrap()).collect();
    // One buffer stays, and with it the segment.
    let stays = parts.remove(0);
    drop(parts);
    caching.check();
    device.synchronize().unwrap();
    let large = DeviceBuffer::zeroed(33 * MIB, &streams[1], &pool).unwrap();
    caching.check();
    assert_eq!(driver.counters().allocations, 1, "all of it is one segment");
    drop((large, stays));
    assert_eq!(kinds(&driver), []);
}

/// A resource that blocks every allocation while it is closed.
#[derive(Debug)]
struct Gate {
    upstream: Arc<dyn DeviceMemoryResource>,
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    fn wait_for_a_guest(&self) {
        let _state = self.changed.wait_while(self.state.lock().unwrap(), |(_, waiting)| *waiting == 0).unwrap();
    }
}

impl DeviceMemoryResource for Gate {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(closed, _)| *closed).unwrap();
        state.1 -= 1;
        drop(state);
        self.upstream.allocate(len, stream, site)
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.upstream.trim(keep)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.upstream.reset_peaks()
    }
}

/// While one thread waits for the driver to grow, others allocate and free: no lock is held meanwhile.
#[test]
fn growth_holds_nobody_up() {
    let (driver, device) = open(SimOptions::default());
    let gate = || {
        let upstream = Strategy::CudaAsync.create(&device).unwrap();
        Arc::new(Gate { upstream, state: Mutex::default(), changed: Condvar::new() })
    };
    let gates = [gate(), gate(), gate()];
    let resources: [Arc<dyn DeviceMemoryResource>; 3] = [
        Arc::new(CachingMemoryResource::new(gates[0].clone(), CachingOptions::default())),
        Arc::new(ArenaMemoryResource::new(gates[1].clone(), ArenaOptions::default())),
        Arc::new(BinningMemoryResource::new(gates[2].clone(), BinningOptions::default())),
    ];
    for (resource, gate) in resources.into_iter().zip(&gates) {
        let pool = pool_over(resource);
        let [a, b] = [0; 2].map(|_| Stream::new(&device).unwrap());
        drop(DeviceBuffer::zeroed(1000, &a, &pool).unwrap());
        gate.set(true);
        std::thread::scope(|scope| {
            let growing = scope.spawn(|| DeviceBuffer::zeroed(1000, &b, &pool).unwrap().len());
            gate.wait_for_a_guest();
            for _ in 0..10 {
                drop(DeviceBuffer::zeroed(1000, &a, &pool).unwrap());
            }
            gate.set(false);
            assert_eq!(growing.join().unwrap(), 1000);
        });
    }
    assert_eq!(kinds(&driver), []);
}

#[test]
fn invariants_hold_after_a_random_walk() {
    let (driver, device) = open(SimOptions::default());
    let upstream = || Strategy::CudaAsync.create(&device).unwrap();
    let caching = Arc::new(CachingMemoryResource::new(upstream(), CachingOptions::default()));
    let arena = Arc::new(ArenaMemoryResource::new(upstream(), ArenaOptions { chunk: ByteSize::mib(2) }));
    let binning = Arc::new(BinningMemoryResource::new(upstream(), BinningOptions::default()));
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
    let resources: [Arc<dyn DeviceMemoryResource>; 3] = [caching.clone(), arena.clone(), binning.clone()];
    for resource in resources {
        let pool = pool_over(resource);
        let mut random = super::resources::Random(11);
        let mut live: Vec<DeviceBuffer> = Vec::new();
        for step in 0..600 {
            if random.below(5) < 3 {
                let len = random.len([500, 9000, 300_000, 5 << 20]);
                let buffer = DeviceBuffer::new(len, &streams[random.below(4)], &pool).unwrap();
                buffer.view(0..1).unwrap().fill(1, &streams[random.below(4)]).unwrap();
                live.push(buffer);
            } else if !live.is_empty() {
                live.swap_remove(random.below(live.len()));
            }
            if step % 97 == 0 {
                pool.trim_to(ByteSize::mib(8)).unwrap();
            }
            if step % 10 == 0 {
                caching.check();
                arena.check();
                binning.check();
            }
        }
    }
    assert_eq!(kinds(&driver), []);
}
