//! The device pool: its settings, its limit, and its errors when memory runs out.

use millpond_memory::driver::PoolAttribute;
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DriverCode, MemoryError, MemoryPool, ReleaseThreshold, ReusePolicy, Stream,
};

use crate::recording::{Call, Recording};

fn set(calls: &[Call]) -> Vec<(PoolAttribute, u64)> {
    let setting = |call: &Call| match call {
        Call::PoolSet { attribute, value } => Some((*attribute, *value)),
        _ => None,
    };
    calls.iter().filter_map(setting).collect()
}

#[test]
fn everything_is_kept_and_plans_repeat_by_default() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    assert_eq!(
        set(&driver.take()),
        [
            (PoolAttribute::ReleaseThreshold, u64::MAX),
            (PoolAttribute::ReuseFollowEventDependencies, 1),
            (PoolAttribute::ReuseAllowOpportunistic, 1),
            (PoolAttribute::ReuseAllowInternalDependencies, 0),
        ]
    );
    assert_eq!(pool.limit(), ByteSize::mib(768), "three quarters of what is free");
    let attributes = pool.attributes().unwrap();
    assert_eq!((attributes.release_threshold, attributes.reuse), (ByteSize::MAX, ReusePolicy::default()));
    drop(pool);
    assert_eq!(driver.take(), [Call::PoolDestroy]);
}

#[test]
fn settings_reach_the_driver() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let reuse = ReusePolicy { follow_event_dependencies: false, opportunistic: false, internal_dependencies: true };
    let pool = MemoryPool::builder(&device)
        .limit(ByteSize::mib(1))
        .release_threshold(ReleaseThreshold::Bytes(ByteSize(77)))
        .reuse(reuse)
        .build()
        .unwrap();
    let values: Vec<u64> = set(&driver.take()).iter().map(|(_, value)| *value).collect();
    assert_eq!(values, [77, 0, 0, 1]);
    pool.reset_high().unwrap();
    assert_eq!(set(&driver.take()), [(PoolAttribute::ReservedHigh, 0), (PoolAttribute::UsedHigh, 0)]);
    let untouched = MemoryPool::builder(&device).release_threshold(ReleaseThreshold::DriverDefault).build().unwrap();
    assert!(!set(&driver.take()).iter().any(|(attribute, _)| *attribute == PoolAttribute::ReleaseThreshold));
    drop(untouched);
}

#[test]
fn trimming_waits_first_and_says_what_went() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    drop(DeviceBuffer::new(1024, &stream, &pool).unwrap());
    driver.take();
    assert_eq!(pool.trim_to(ByteSize(256)).unwrap(), ByteSize(768));
    assert_eq!(driver.take(), [Call::Synchronize, Call::PoolTrim { keep: 256 }]);
}

#[test]
fn used_and_peak_are_the_pools_own() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let first = DeviceBuffer::new(1000, &stream, &pool).unwrap();
    let second = DeviceBuffer::new(256, &stream, &pool).unwrap();
    assert_eq!(pool.used_bytes(), ByteSize(1280));
    drop(first);
    assert_eq!((pool.used_bytes(), pool.peak_bytes()), (ByteSize(256), ByteSize(1280)));
    pool.reset_high().unwrap();
    assert_eq!(pool.peak_bytes(), ByteSize(256));
    drop(second);
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
}

#[test]
fn the_limit_is_an_error_that_says_who_holds_what_and_what_to_change() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(1)).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let query = device.scope().child("query 7");
    let sort = stream.with_scope(&query.child("sort"));
    let scan = stream.with_scope(&query.child("scan"));
    let held = [(&sort, 600), (&scan, 300)].map(|(on, kib)| DeviceBuffer::new(kib << 10, on, &pool).unwrap());
    let error = DeviceBuffer::new(200 << 10, &scan, &pool).unwrap_err();
    let MemoryError::OutOfMemory { wanted, free, limit, ref snapshot } = error else { panic!("{error}") };
    assert_eq!((wanted, free, limit), (ByteSize::kib(200), ByteSize::kib(124), ByteSize::mib(1)));
    let holders: Vec<_> = snapshot.holders.iter().map(|h| (h.tag.as_str(), h.bytes)).collect();
    assert_eq!(holders, [("query 7/sort", ByteSize::kib(600)), ("query 7/scan", ByteSize::kib(300))]);
    assert_eq!(
        error.to_string(),
        "out of device memory: wanted 200 KiB, 124 KiB free of 1 MiB; largest holders: query 7/sort 600 KiB in 1, \
         query 7/scan 300 KiB in 1; lower millpond.batch_bytes or raise millpond.memory_limit_bytes"
    );
    assert!(error.is_out_of_memory() && !error.is_device_lost());
    drop(held);
    assert!(DeviceBuffer::new(1 << 20, &scan, &pool).is_ok());
}

#[test]
fn out_of_memory_in_the_driver_is_cured_by_waiting_for_frees() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    driver.fail("pool_alloc", 1, DriverCode::OUT_OF_MEMORY);
    driver.take();
    let buffer = DeviceBuffer::new(256, &stream, &pool).unwrap();
    let calls = driver.take();
    let synced = calls.iter().position(|call| *call == Call::Synchronize).unwrap();
    let allocated = calls.iter().position(|call| matches!(call, Call::Alloc { .. })).unwrap();
    assert!(synced < allocated, "{calls:?}");
    drop(buffer);

    driver.fail("pool_alloc", u32::MAX, DriverCode::OUT_OF_MEMORY);
    let error = DeviceBuffer::new(256, &stream, &pool).unwrap_err();
    assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error}");
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
}
