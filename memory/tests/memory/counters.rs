//! Counts per device and per scope.

use millpond_memory::{Device, DeviceBuffer, MemoryPool, Stream};

use crate::recording::Recording;

#[test]
fn each_query_has_its_own_counts_and_the_device_has_all() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let [one, two] = ["query 1", "query 2"].map(|name| device.scope().child(name));
    let before = device.counters();
    let mine = DeviceBuffer::new(1000, &stream.with_scope(&one), &pool).unwrap();
    let yours = DeviceBuffer::new(256, &stream.with_scope(&two), &pool).unwrap();
    drop(mine);
    let counts = |c: millpond_memory::Counters| (c.allocations, c.frees, c.allocated_bytes, c.used_bytes, c.peak_bytes);
    assert_eq!(counts(one.counters()), (1, 1, 1024, 0, 1024));
    assert_eq!(counts(two.counters()), (1, 0, 256, 256, 256));
    assert_eq!(counts(device.counters().since(&before)), (2, 1, 1280, 256, 1280));
    drop(yours);
    assert_eq!(two.used_bytes().as_u64(), 0);
}

#[test]
fn waits_are_counted_by_what_they_cost() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let query = device.scope().child("query");
    let [a, b] = std::array::from_fn(|_| Stream::new(&device).unwrap().with_scope(&query));
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    drop(buffer.read(&b).unwrap());
    drop(buffer.read(&b).unwrap());
    let counters = query.counters();
    assert_eq!((counters.waits_inserted, counters.events_recorded), (1, 1));
    assert!(counters.waits_elided >= 1);
    a.synchronize().unwrap();
    assert_eq!(query.counters().host_waits, 1);
}
