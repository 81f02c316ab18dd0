//! Properties that the device pool passes to the driver's pool, and refusals with their rule, on the simulated device.

use std::sync::Arc;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::resource::CudaMemoryResource;
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DriverCode, DriverPool, HandleTypes, Location, MaxSize, MemoryError, MemoryPool,
    PinnedPool, ReleaseThreshold, ReusePolicy, Strategy, Stream,
};

use crate::pending::block_on;

fn device_with(options: SimOptions) -> (Arc<SimDriver>, Device) {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    (driver, device)
}

fn small() -> (Arc<SimDriver>, Device) {
    device_with(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() })
}

/// The rule of a refusal, with the refused setting before it.
fn rule<T>(result: Result<T, MemoryError>) -> String {
    match result {
        Err(error @ MemoryError::PoolRule { .. }) => error.to_string(),
        Err(error) => panic!("not a rule: {error}"),
        Ok(_) => panic!("nothing was refused"),
    }
}

fn threshold(pool: &MemoryPool) -> ByteSize {
    pool.attributes().unwrap().release_threshold
}

#[test]
fn a_fraction_is_of_the_maximum_or_of_the_device() {
    let (_driver, device) = small();
    let half = ReleaseThreshold::Fraction(0.5);
    let of_device = MemoryPool::builder(&device).release_threshold(half).build().unwrap();
    assert_eq!(threshold(&of_device), ByteSize::mib(32));
    let max = MaxSize::Bytes(ByteSize::mib(8));
    let of_max = MemoryPool::builder(&device).max_size(max).release_threshold(half).build().unwrap();
    assert_eq!(threshold(&of_max), ByteSize::mib(4));
    for (fraction, bytes) in [(0.0, 0), (1.0, 64 << 20)] {
        of_device.set_release_threshold(ReleaseThreshold::Fraction(fraction)).unwrap();
        assert_eq!(threshold(&of_device), ByteSize(bytes));
    }
    for fraction in [-0.1, 1.01, f64::NAN, f64::INFINITY] {
        let words = rule(of_device.set_release_threshold(ReleaseThreshold::Fraction(fraction)));
        assert!(words.contains("between 0 and 1") && words.contains(&fraction.to_string()), "{words}");
    }
    assert_eq!(threshold(&of_device), ByteSize::mib(64), "a refusal changes nothing");
}

#[test]
fn a_maximum_is_the_drivers_and_zero_would_be_none() {
    let (_driver, device) = small();
    let pool = MemoryPool::builder(&device).max_size(MaxSize::Bytes(ByteSize::mib(8))).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let held = DeviceBuffer::new(6 << 20, &stream, &pool).unwrap();
    assert!(DeviceBuffer::new(6 << 20, &stream, &pool).unwrap_err().is_out_of_memory());
    drop(held);
    DeviceBuffer::new(8 << 20, &stream, &pool).unwrap();
    let words = rule(MemoryPool::builder(&device).max_size(MaxSize::Bytes(ByteSize::ZERO)).build());
    assert_eq!(
        words,
        "a maximum size of 0 is refused: to the driver it means no maximum; leave `max_size` out for that"
    );
}

#[test]
fn the_default_pool_is_taken_as_it_is() {
    let (driver, device) = small();
    let pool = MemoryPool::default_of(&device).unwrap();
    let attributes = pool.attributes().unwrap();
    assert_eq!(attributes.release_threshold, ByteSize::ZERO);
    assert!(attributes.reuse.internal_dependencies, "CUDA's own policies");
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::new(1 << 20, &stream, &pool).unwrap();
    let again = MemoryPool::default_of(&device).unwrap();
    assert_eq!(again.attributes().unwrap().used_current, ByteSize::mib(1), "there is one");
    drop((pool, again));
    drop(buffer);
    drop(MemoryPool::default_of(&device).unwrap());
    stream.synchronize().unwrap();
    drop((stream, device));
    assert_eq!(driver.take_findings(), []);
}

#[test]
fn what_is_decided_when_a_pool_is_made_cannot_be_asked_of_one_that_is_there() {
    let (_driver, device) = small();
    let shared = |pool| MemoryPool::builder(&device).driver_pool(pool);
    for (pool, name) in [
        (DriverPool::DeviceDefault, "the device's default pool"),
        (DriverPool::DeviceCurrent, "the device's current pool"),
    ] {
        for (builder, what) in [
            (shared(pool).max_size(MaxSize::Bytes(ByteSize::mib(8))), "a maximum size"),
            (shared(pool).export(HandleTypes::POSIX_FD), "an export to other processes"),
            (shared(pool).location(Location::HostNuma(0)).limit(ByteSize::mib(8)), "a pool on the host"),
        ] {
            let words = rule(builder.build());
            assert!(words.starts_with(&format!("{what} is refused: it is decided when a pool is made")), "{words}");
            assert!(words.contains(name), "{words}");
        }
    }
}

/// Another library in the process may have set its threshold: it stays.
#[test]
fn a_shared_threshold_is_raised_only_while_it_is_zero() {
    let (_driver, device) = small();
    let first = MemoryPool::default_of(&device).unwrap();
    first.set_release_threshold(ReleaseThreshold::Bytes(ByteSize::mib(16))).unwrap();
    let words = rule(first.set_release_threshold(ReleaseThreshold::Max));
    assert!(words.contains("somebody has set it to 16 MiB already; take a pool of your own"), "{words}");
    // Set through the builder it is not an error, and changes nothing.
    let second = MemoryPool::builder(&device).driver_pool(DriverPool::DeviceDefault);
    let second = second.release_threshold(ReleaseThreshold::Max).build().unwrap();
    assert_eq!(threshold(&second), ByteSize::mib(16));
    let own = MemoryPool::builder(&device).build().unwrap();
    own.set_release_threshold(ReleaseThreshold::Bytes(ByteSize::ZERO)).unwrap();
    own.set_release_threshold(ReleaseThreshold::Max).unwrap();
    assert_eq!((threshold(&own), threshold(&first)), (ByteSize::MAX, ByteSize::mib(16)));
}

#[test]
fn a_pool_can_be_made_the_current_one_and_gives_way_when_it_goes() {
    let (driver, device) = small();
    let own = MemoryPool::builder(&device).build().unwrap();
    let current = MemoryPool::current_of(&device).unwrap();
    let stream = Stream::new(&device).unwrap();
    let used = |pool: &MemoryPool| pool.attributes().unwrap().used_current;
    let before = DeviceBuffer::new(1 << 20, &stream, &current).unwrap();
    assert_eq!(
        (used(&own), used(&current)),
        (ByteSize::ZERO, ByteSize::mib(1)),
        "the default pool is current at first"
    );
    own.set_current(&device).unwrap();
    let after = DeviceBuffer::new(2 << 20, &stream, &current).unwrap();
    assert_eq!((used(&own), used(&current)), (ByteSize::mib(2), ByteSize::mib(2)));
    assert_eq!(used(&MemoryPool::default_of(&device).unwrap()), ByteSize::mib(1));
    drop((before, after));
    stream.synchronize().unwrap();
    drop(own);
    assert_eq!(used(&current), ByteSize::ZERO);
    DeviceBuffer::new(1 << 20, &stream, &current).unwrap();
    drop((current, stream, device));
    assert_eq!(driver.take_findings(), []);
}

#[test]
fn a_current_pool_lies_on_its_device() {
    let (driver, device) = device_with(SimOptions { devices: 2, ..SimOptions::default() });
    let other = Device::open(driver.clone(), 1).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let words = rule(pool.set_current(&other));
    assert!(words.contains("the current pool of device 1 must lie on it, and this one lies on device 0"), "{words}");
    let host = MemoryPool::builder(&device).location(Location::HostNuma(0)).limit(ByteSize::mib(1)).build().unwrap();
    let words = rule(host.set_current(&device));
    assert!(words.contains("lies on host NUMA node 0"), "{words}");
    let arena = MemoryPool::builder(&device).strategy(Strategy::Arena).build().unwrap();
    assert_eq!(arena.set_current(&device).unwrap_err().driver_code(), Some(DriverCode::NOT_SUPPORTED));
}

#[test]
fn a_pool_on_the_host_serves_the_device() {
    let (driver, device) = small();
    let pool = MemoryPool::builder(&device).location(Location::HostNuma(0)).limit(ByteSize::gib(1)).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let stream = Stream::new(&device).unwrap();
    let free = device.memory_info().unwrap().free_bytes;
    // More than the device has.
    let large = DeviceBuffer::zeroed(80 << 20, &stream, &pool).unwrap();
    let buffer = DeviceBuffer::upload(&[1, 2, 3], &stream, &pool, &pinned).unwrap();
    assert_eq!(block_on(buffer.download_vec(&stream, &pinned).unwrap()).unwrap(), [1, 2, 3]);
    assert_eq!(device.memory_info().unwrap().free_bytes, free);
    drop((large, buffer));
    stream.synchronize().unwrap();
    assert!(pool.trim_to(ByteSize::ZERO).unwrap() >= ByteSize::mib(80));
    drop((pool, pinned, stream, device));
    assert_eq!(driver.take_findings(), []);
}

#[test]
fn a_pool_on_the_host_says_how_much_it_may_take() {
    let (_driver, device) = small();
    let host = || MemoryPool::builder(&device).location(Location::HostNuma(0));
    let words = rule(host().build());
    assert!(words.contains("give it `limit` or `max_size`"), "{words}");
    let pool = host().max_size(MaxSize::Bytes(ByteSize::mib(16))).build().unwrap();
    assert_eq!(pool.limit(), ByteSize::mib(16));
    let words = rule(host().limit(ByteSize::mib(1)).release_threshold(ReleaseThreshold::Fraction(0.5)).build());
    assert!(words.contains("needs a `max_size`"), "{words}");
    let absent = MemoryPool::builder(&device).location(Location::HostNuma(7)).limit(ByteSize::mib(1)).build();
    assert_eq!(absent.unwrap_err().driver_code(), Some(DriverCode::INVALID_VALUE), "an older driver says it only now");
}

#[test]
fn a_driver_that_can_tell_refuses_pools_on_the_host_beforehand() {
    for (version, nodes, expected) in [(12020, 0, None), (13000, 0, Some(false)), (13000, 1, Some(true))] {
        let (_driver, device) = device_with(SimOptions { version, host_numa_nodes: nodes, ..SimOptions::default() });
        assert_eq!(device.limits().host_numa_pools, expected);
        let pool = MemoryPool::builder(&device).location(Location::HostNuma(0)).limit(ByteSize::mib(1)).build();
        match expected {
            Some(true) => drop(pool.unwrap()),
            Some(false) => assert!(rule(pool).contains("says that it cannot have one"), "no"),
            None => assert!(pool.unwrap_err().driver_code().is_some()),
        }
    }
}

#[test]
fn a_pool_for_other_processes_never_gives_back() {
    let (_driver, device) = small();
    let export = || MemoryPool::builder(&device).export(HandleTypes::POSIX_FD);
    let pool = export().build().unwrap();
    let stream = Stream::new(&device).unwrap();
    drop(DeviceBuffer::new(4 << 20, &stream, &pool).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(pool.attributes().unwrap().reserved_current, ByteSize::mib(4), "whatever its threshold");
    let never = "memory that other processes may have mapped is never given back";
    for (words, what) in [
        (rule(pool.trim_to(ByteSize::ZERO)), "trimming a pool"),
        (rule(pool.set_release_threshold(ReleaseThreshold::Max)), "setting a release threshold"),
        (rule(export().release_threshold(ReleaseThreshold::Max).build()), "setting a release threshold"),
    ] {
        assert!(words.starts_with(what) && words.contains(never), "{words}");
    }
    // With an idle pool like this one, a full device is out of memory, not a violated rule.
    let error = DeviceBuffer::new(80 << 20, &stream, &export().limit(ByteSize::MAX).build().unwrap()).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let unknown = MemoryPool::builder(&device).export(HandleTypes(8)).build();
    assert!(rule(unknown).contains("device 0 exports pools by handle types 0x1, and 0x8 was asked for"));
}

#[test]
fn properties_of_the_drivers_pool_are_refused_elsewhere() {
    let (_driver, device) = small();
    let with = |strategy| MemoryPool::builder(&device).strategy(strategy);
    for (builder, what) in [
        (with(Strategy::Caching).max_size(MaxSize::Bytes(ByteSize::mib(1))), "a maximum size"),
        (with(Strategy::Arena).export(HandleTypes::POSIX_FD), "an export to other processes"),
        (with(Strategy::Binning).release_threshold(ReleaseThreshold::Max), "a release threshold"),
        (with(Strategy::CudaAsyncDefault).reuse(ReusePolicy::default()), "a policy of reuse"),
        (with(Strategy::Cuda).driver_pool(DriverPool::DeviceDefault), "a shared pool of the driver's"),
        (
            MemoryPool::builder(&device)
                .resource(Arc::new(CudaMemoryResource::new(&device)))
                .reuse(ReusePolicy::default()),
            "a policy of reuse",
        ),
    ] {
        let words = rule(builder.build());
        assert!(
            words.starts_with(what) && words.contains("use the strategy `cuda_async` without a resource"),
            "{words}"
        );
    }
}

#[test]
fn priming_takes_memory_and_frees_it_into_the_pool() {
    let (_driver, device) = small();
    let pool = MemoryPool::builder(&device).prime(ByteSize::mib(16)).build().unwrap();
    let attributes = pool.attributes().unwrap();
    assert_eq!((attributes.reserved_current, attributes.used_current), (ByteSize::mib(16), ByteSize::ZERO));
    let error = MemoryPool::builder(&device).prime(ByteSize::mib(65)).build().unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}

#[test]
fn without_pools_the_default_falls_back_and_a_choice_is_an_error() {
    let (_driver, device) = device_with(SimOptions { memory_pools: false, ..SimOptions::default() });
    assert!(!device.limits().memory_pools && device.limits().pool_handle_types.is_none());
    let pool = MemoryPool::builder(&device).build().unwrap();
    assert_eq!(pool.resource().name(), "cuda");
    let stream = Stream::new(&device).unwrap();
    drop(DeviceBuffer::zeroed(1000, &stream, &pool).unwrap());
    let asked = [
        MemoryPool::builder(&device).strategy(Strategy::CudaAsync).build(),
        MemoryPool::builder(&device).max_size(MaxSize::Bytes(ByteSize::mib(1))).build(),
        MemoryPool::default_of(&device),
    ];
    for asked in asked {
        let error = asked.unwrap_err();
        assert_eq!(error.driver_code(), Some(DriverCode::NOT_SUPPORTED));
        assert!(error.to_string().contains("choose cuda or caching"), "{error}");
    }
}

/// The version is checked first: an older driver would refuse the query itself (S1.35).
#[test]
fn support_is_asked_by_the_drivers_version() {
    for (version, pools, exports) in [(11010, false, false), (11020, true, false), (11030, true, true)] {
        let (_driver, device) = device_with(SimOptions { version, ..SimOptions::default() });
        assert_eq!(device.limits().memory_pools, pools, "{version}");
        assert_eq!(device.limits().pool_handle_types.contains(HandleTypes::POSIX_FD), exports, "{version}");
    }
}

/// Every synchronization applies the threshold (S1.45); a trim returns the bytes it freed.
#[test]
fn statistics_tell_what_is_used_and_what_is_kept() {
    let (_driver, device) = small();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let get = || {
        let a = pool.attributes().unwrap();
        [a.reserved_current, a.reserved_high, a.used_current, a.used_high].map(|bytes| bytes.as_u64() >> 20)
    };
    let first = DeviceBuffer::new(4 << 20, &stream, &pool).unwrap();
    let second = DeviceBuffer::new(8 << 20, &stream, &pool).unwrap();
    assert_eq!(get(), [12, 12, 12, 12]);
    drop(second);
    assert_eq!(get(), [12, 12, 12, 12], "a free that the device has not come to counts as used");
    stream.synchronize().unwrap();
    assert_eq!(get(), [12, 12, 4, 12]);
    assert_eq!(pool.trim_to(ByteSize::mib(4)).unwrap(), ByteSize::mib(8));
    assert_eq!(get(), [4, 12, 4, 12]);
    pool.reset_high().unwrap();
    assert_eq!(get(), [4, 4, 4, 4]);
    assert_eq!(pool.trim_to(ByteSize::ZERO).unwrap(), ByteSize::ZERO, "what is in use stays");
    drop(first);
    assert_eq!(pool.trim_to(ByteSize::ZERO).unwrap(), ByteSize::mib(4), "a trim synchronises first");
    assert_eq!(get(), [0, 4, 0, 4]);
}

/// The pool lives as long as its allocations.
#[test]
fn a_buffer_outlives_the_handles_of_its_pool() {
    let (driver, device) = small();
    let stream = Stream::new(&device).unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let buffer = DeviceBuffer::upload(&[5; 100], &stream, &pool, &pinned).unwrap();
    drop(pool);
    assert_eq!(block_on(buffer.download_vec(&stream, &pinned).unwrap()).unwrap(), [5; 100]);
    drop((buffer, stream, pinned, device));
    assert_eq!(driver.take_findings(), []);
}

/// Memory of a pool belongs to no context, but to a location and a pool (S1.49).
#[test]
fn a_view_tells_whose_memory_it_is() {
    let (_driver, device) = small();
    let stream = Stream::new(&device).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let other = MemoryPool::builder(&device).build().unwrap();
    let of = |buffer: &DeviceBuffer| device.pointer_attributes(&buffer.view(0..buffer.len()).unwrap()).unwrap();
    let (a, b) = (DeviceBuffer::new(100, &stream, &pool).unwrap(), DeviceBuffer::new(100, &stream, &pool).unwrap());
    let c = DeviceBuffer::new(100, &stream, &other).unwrap();
    assert_eq!((of(&a).context, of(&a).device), (None, Some(device.id())));
    assert!(of(&a).pool.is_some() && of(&a).pool == of(&b).pool && of(&a).pool != of(&c).pool);
    let plain = MemoryPool::builder(&device).strategy(Strategy::Cuda).build().unwrap();
    let plain = of(&DeviceBuffer::new(100, &stream, &plain).unwrap());
    assert!(plain.context.is_some() && plain.pool.is_none());
}
