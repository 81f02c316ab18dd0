//! Hand-over of buffers, observed in the driver's calls.

use std::sync::Arc;

use millpond_memory::{Access, Device, DeviceBuffer, DriverCode, MemoryError, MemoryPool, Stream, UseSet};

use crate::recording::{Call, Recording};

struct Setup {
    driver: Arc<Recording>,
    device: Device,
    pool: MemoryPool,
    a: Stream,
    b: Stream,
}

fn setup() -> Setup {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    driver.take();
    Setup { driver, device, pool, a, b }
}

fn count(calls: &[Call], matches: impl Fn(&Call) -> bool) -> usize {
    calls.iter().filter(|call| matches(call)).count()
}

fn is_wait(call: &Call) -> bool {
    matches!(call, Call::Wait { .. })
}

#[test]
fn one_stream_makes_only_the_calls_it_needs() {
    let Setup { driver, pool, a, .. } = setup();
    let buffer = DeviceBuffer::new(1024, &a, &pool).unwrap();
    buffer.fill(7, &a).unwrap();
    drop(buffer);
    let calls = driver.take();
    assert!(
        matches!(calls[..], [Call::Alloc { bytes: 1024, .. }, Call::Fill { byte: 7, .. }, Call::Free { .. }]),
        "{calls:?}"
    );
}

#[test]
fn padding_is_allocated_and_zeroed() {
    let Setup { driver, pool, a, .. } = setup();
    let buffer = DeviceBuffer::new(300, &a, &pool).unwrap();
    let calls = driver.take();
    let [Call::Alloc { ptr, bytes: 512, .. }, Call::Fill { ptr: from, byte: 0, len: 212, .. }] = calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(from, ptr.offset(300));
    assert_eq!((buffer.len(), buffer.padded().len(), buffer.allocated_bytes().as_u64()), (300, 512, 512));
    let zeroed = DeviceBuffer::zeroed(300, &a, &pool).unwrap();
    let calls = driver.take();
    assert!(matches!(calls[..], [Call::Alloc { .. }, Call::Fill { byte: 0, len: 512, .. }]), "{calls:?}");
    drop(zeroed);
}

#[test]
fn a_fresh_buffer_is_ordered_on_another_stream() {
    let Setup { driver, pool, a, b, .. } = setup();
    let buffer = DeviceBuffer::new(256, &a, &pool).unwrap();
    let guard = buffer.write(&b).unwrap();
    assert_eq!(count(&driver.take(), is_wait), 1, "b waits for the allocation on a");
    drop(guard);
}

#[test]
fn a_write_waits_for_every_reader_and_readers_not_for_each_other() {
    let Setup { driver, device, pool, a, b } = setup();
    let c = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    let out = [&b, &c].map(|s| DeviceBuffer::new(256, s, &pool).unwrap());
    driver.take();
    buffer.copy_to(&out[0], &b).unwrap();
    buffer.copy_to(&out[1], &c).unwrap();
    assert_eq!(count(&driver.take(), is_wait), 2, "each reader waits for the write, and for nothing else");
    buffer.fill(1, &a).unwrap();
    assert_eq!(count(&driver.take(), is_wait), 2, "the write waits for both readers");
}

#[test]
fn sharers_run_together_between_plain_uses() {
    let Setup { driver, device, pool, a, b } = setup();
    let c = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    driver.take();
    let work = |on: &Stream| {
        let here = std::panic::Location::caller();
        let mut guard = buffer.share(on).unwrap();
        let ptr = guard.address();
        guard.submitted(on.submit(|driver, on| driver.fill(ptr, 1, 1, on, here)).unwrap().1);
    };
    for _ in 0..3 {
        work(&b);
        work(&c);
    }
    assert_eq!(count(&driver.take(), is_wait), 2, "each sharer waits for the write once, and never for the other");
    drop(buffer.read(&a).unwrap());
    assert_eq!(count(&driver.take(), is_wait), 2, "a reader waits for both sharers");
    work(&b);
    assert_eq!(count(&driver.take(), is_wait), 1, "and a sharer for the reader");
}

#[test]
fn dropped_on_the_stream_of_the_last_use_behind_the_others() {
    let Setup { driver, pool, a, b, .. } = setup();
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    let to = DeviceBuffer::new(256, &b, &pool).unwrap();
    buffer.copy_to(&to, &b).unwrap();
    let calls = driver.take();
    let Some(Call::Copy { stream: reader, .. }) = calls.last() else { panic!("{calls:?}") };
    drop(buffer);
    let calls = driver.take();
    assert!(matches!(&calls[..], [Call::Free { stream, .. }] if stream == reader), "{calls:?}");
}

#[test]
fn views_share_order_and_keep_the_memory() {
    let Setup { driver, pool, a, b, .. } = setup();
    let buffer = DeviceBuffer::zeroed(1024, &a, &pool).unwrap();
    let (values, validity) = (buffer.view(0..512).unwrap(), buffer.view(512..600).unwrap());
    assert_eq!(validity.address(), buffer.address().offset(512));
    assert_eq!(validity.view(8..16).unwrap().address(), buffer.address().offset(520));
    assert!(validity.view(0..89).is_err() && buffer.view(1000..1025).is_err());
    assert_eq!((values.padded().len(), validity.padded().len()), (512, 88), "only the end of the buffer is padded");
    driver.take();
    values.fill(1, &b).unwrap();
    drop(validity.read(&a).unwrap());
    assert_eq!(count(&driver.take(), is_wait), 2, "order is the buffer's");
    drop(buffer);
    drop(values);
    assert_eq!(count(&driver.take(), |call| matches!(call, Call::Free { .. })), 0);
    drop(validity);
    assert_eq!(count(&driver.take(), |call| matches!(call, Call::Free { .. })), 1);
    assert_eq!(pool.used_bytes().as_u64(), 0);
}

#[test]
fn empty_buffers_never_reach_the_driver() {
    let Setup { driver, pool, a, b, .. } = setup();
    let empty = DeviceBuffer::zeroed(0, &a, &pool).unwrap();
    let other = DeviceBuffer::new(0, &b, &pool).unwrap();
    empty.fill(1, &b).unwrap();
    empty.copy_to(&other, &a).unwrap();
    drop(empty.write(&b).unwrap());
    assert_ne!(empty.address().0, 0);
    assert_eq!(empty.view(0..0).unwrap().len(), 0);
    drop((empty, other));
    assert_eq!(driver.take(), []);
}

#[test]
fn conflicting_guards_of_one_thread_are_an_error_that_names_both_places() {
    let Setup { pool, a, b, .. } = setup();
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    let reading = buffer.read(&a).unwrap();
    drop(buffer.read(&b).unwrap());
    let error = buffer.write(&b).err().unwrap();
    assert!(matches!(error, MemoryError::Conflict { .. }));
    assert_eq!(error.to_string().matches("buffers.rs").count(), 2, "{error}");
    drop(buffer.write(&a).unwrap());
    drop(reading);
    drop(buffer.write(&b).unwrap());
}

#[test]
fn a_use_of_another_thread_is_waited_for_until_it_is_submitted() {
    let Setup { driver, pool, a, b, .. } = setup();
    let buffer = Arc::new(DeviceBuffer::zeroed(256, &a, &pool).unwrap());
    let here = std::panic::Location::caller();
    let mut guard = buffer.write(&a).unwrap();
    let reader = std::thread::spawn({
        let (buffer, b) = (Arc::clone(&buffer), b.clone());
        move || {
            let mut guard = buffer.read(&b).unwrap();
            let ptr = guard.address();
            guard.submitted(b.submit(|driver, on| driver.fill(ptr, 2, 1, on, here)).unwrap().1);
        }
    });
    let ptr = guard.address();
    // Whether the reader called `read` before or after, it is ordered after this.
    guard.submitted(a.submit(|driver, on| driver.fill(ptr, 1, 1, on, here)).unwrap().1);
    drop(guard);
    reader.join().unwrap();
    let calls = driver.take();
    let place = |byte| calls.iter().position(|call| matches!(call, Call::Fill { byte: b, len: 1, .. } if *b == byte));
    let wait = calls.iter().position(is_wait).unwrap();
    assert!(place(1).unwrap() < wait && wait < place(2).unwrap(), "{calls:?}");
}

#[test]
fn two_threads_taking_the_same_buffers_never_wait_for_each_other() {
    let Setup { pool, a, b, device, .. } = setup();
    let one = Arc::new(DeviceBuffer::zeroed(256, &a, &pool).unwrap());
    let two = Arc::new(DeviceBuffer::zeroed(256, &a, &pool).unwrap());
    std::thread::scope(|scope| {
        for (first, second, on) in [(&one, &two, &a), (&two, &one, &b)] {
            scope.spawn(move || {
                for _ in 0..500 {
                    first.copy_to(second, on).unwrap();
                }
            });
        }
    });
    assert!(device.take_errors().is_empty());
}

#[test]
fn a_launch_reading_and_writing_one_buffer_takes_it_once() {
    let Setup { pool, a, b, .. } = setup();
    let buffer = DeviceBuffer::zeroed(1024, &a, &pool).unwrap();
    let mut uses = UseSet::new();
    uses.add(&buffer.view(0..256).unwrap(), Access::Read);
    uses.add(&buffer.view(256..512).unwrap(), Access::Write);
    uses.add(&buffer.view(512..512).unwrap(), Access::Read);
    let guards = uses.take(&b, std::panic::Location::caller()).unwrap();
    let declared: Vec<_> = guards.declared().iter().map(|d| (d.ptr, d.len, d.access)).collect();
    let start = buffer.address();
    assert_eq!(declared, [(start, 256, Access::Read), (start.offset(256), 256, Access::Write)]);
    drop(guards);
}

#[test]
fn copies_of_unequal_length_are_refused() {
    let Setup { pool, a, .. } = setup();
    let (small, large) = (DeviceBuffer::new(8, &a, &pool).unwrap(), DeviceBuffer::new(9, &a, &pool).unwrap());
    let error = small.copy_to(&large, &a).unwrap_err();
    assert!(error.to_string().contains("8 bytes") && error.to_string().contains("9 bytes"), "{error}");
}

/// A buffer with reads on two streams.
fn read_twice(Setup { driver, device, pool, a, b }: &Setup) -> DeviceBuffer {
    let buffer = DeviceBuffer::zeroed(256, a, pool).unwrap();
    let other = DeviceBuffer::zeroed(256, b, pool).unwrap();
    buffer.copy_to(&other, b).unwrap();
    let c = Stream::new(device).unwrap();
    buffer.copy_to(&DeviceBuffer::new(256, &c, pool).unwrap(), &c).unwrap();
    drop(other);
    driver.take();
    buffer
}

/// Without an event, the host waits for each stream that the free must be ordered after.
#[test]
fn memory_whose_event_is_refused_is_freed_once_the_host_has_seen_its_uses_done() {
    for refused in ["stream_wait", "event_record", "event_create"] {
        let setup = setup();
        let buffer = read_twice(&setup);
        setup.driver.fail(refused, u32::MAX, DriverCode::INVALID_HANDLE);
        drop(buffer);
        setup.driver.fail("none", 0, DriverCode::SUCCESS);
        assert_eq!(count(&setup.driver.take(), |call| matches!(call, Call::Free { .. })), 1, "{refused}");
        assert_eq!((setup.device.counters().leaked_bytes, setup.pool.used_bytes().as_u64()), (0, 0), "{refused}");
        assert_eq!(setup.device.take_errors().len(), 0, "{refused}");
    }
}

#[test]
fn memory_that_cannot_be_ordered_is_leaked_and_reported() {
    let setup = setup();
    let buffer = read_twice(&setup);
    let Setup { driver, device, .. } = setup;
    driver.fail("stream_wait", u32::MAX, DriverCode::INVALID_HANDLE);
    driver.fail_too("stream_query", u32::MAX, DriverCode::INVALID_HANDLE);
    drop(buffer);
    driver.fail("none", 0, DriverCode::SUCCESS);
    assert_eq!(count(&driver.take(), |call| matches!(call, Call::Free { .. })), 0, "its readers are not done");
    assert_eq!(device.counters().leaked_bytes, 256);
    let errors = device.take_errors();
    assert_eq!(errors.len(), 1);
    assert!(device.take_errors().is_empty());
}

#[test]
fn dropping_on_a_lost_device_touches_nothing() {
    let Setup { driver, device, pool, a, .. } = setup();
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    driver.fail("fill", 1, DriverCode::ILLEGAL_ADDRESS);
    assert!(buffer.fill(1, &a).unwrap_err().is_device_lost());
    driver.take();
    drop(buffer);
    assert_eq!(driver.take(), []);
    assert_eq!((pool.used_bytes().as_u64(), device.take_errors().len()), (0, 0));
}

#[test]
fn buffers_of_another_device_are_refused() {
    let Setup { pool, a, driver, .. } = setup();
    let other = Device::open(driver, 0).unwrap();
    let foreign = Stream::new(&other).unwrap();
    let buffer = DeviceBuffer::new(256, &a, &pool).unwrap();
    assert!(matches!(buffer.read(&foreign).err().unwrap(), MemoryError::ForeignDevice { .. }));
    assert!(matches!(DeviceBuffer::new(256, &foreign, &pool).unwrap_err(), MemoryError::ForeignDevice { .. }));
}

#[test]
fn impossible_lengths_are_errors() {
    let Setup { pool, a, .. } = setup();
    assert!(matches!(DeviceBuffer::new(usize::MAX, &a, &pool).unwrap_err(), MemoryError::Range { .. }));
    let error = DeviceBuffer::new(usize::MAX - 255, &a, &pool).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}
