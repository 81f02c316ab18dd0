//! Opening, losing and closing a device; streams and kernels of it.

use millpond_memory::{Device, DeviceBuffer, DriverCode, MemoryError, MemoryPool, Stream, StreamPool};

use crate::recording::{Call, Recording};

#[test]
fn a_device_that_is_not_there_is_named() {
    let error = Device::open(Recording::new(), 3).unwrap_err();
    assert_eq!(error.to_string(), "device 3 does not exist: there is 1");
    assert!(error.is_unavailable());
}

#[test]
fn a_device_that_is_too_old_is_named() {
    let error = Device::open(Recording::with(false, 6), 0).unwrap_err();
    assert_eq!(error.to_string(), "device 0 \"recorder\" has compute capability 6.0, minimum is 7.0");
}

#[test]
fn the_first_fatal_error_stays() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::new(256, &stream, &pool).unwrap();

    driver.fail("fill", 1, DriverCode::INVALID_VALUE);
    let error = buffer.fill(1, &stream).unwrap_err();
    assert!(!error.is_device_lost() && !device.is_lost());
    assert_eq!(error.to_string(), "fill failed: invalid value (1) (on stream 0)");

    driver.fail("fill", 1, DriverCode::MISALIGNED_ADDRESS);
    assert!(buffer.fill(1, &stream).unwrap_err().is_device_lost());
    assert!(device.is_lost());
    driver.take();
    let later = [
        buffer.fill(1, &stream).unwrap_err(),
        stream.record().unwrap_err(),
        DeviceBuffer::new(1, &stream, &pool).unwrap_err(),
        device.memory_info().unwrap_err(),
        device.load_module(".entry k").unwrap_err(),
        Stream::new(&device).unwrap_err(),
    ];
    for error in later {
        assert_eq!(error.to_string(), "device 0 is lost: fill failed: misaligned address (716)");
    }
    assert_eq!(driver.take(), [], "nothing reaches a lost device");
}

#[test]
fn unknown_codes_are_values() {
    let code = DriverCode(12345);
    assert_eq!(code.to_string(), "unknown result (12345)");
    assert!(!code.is_sticky());
}

#[test]
fn closing_leaves_nothing_behind() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let streams = StreamPool::with_capacity(&device, 2);
    let (a, b) = (streams.take(device.scope()).unwrap(), streams.take(device.scope()).unwrap());
    let buffer = DeviceBuffer::new(256, &a, &pool).unwrap();
    buffer.fill(1, &b).unwrap();
    let event = b.record().unwrap();
    drop((device, pool, streams, a, b, buffer));
    let calls = driver.take();
    assert!(!calls.contains(&Call::DeviceClose), "an event keeps its device");
    drop(event);
    let calls = [calls, driver.take()].concat();
    let count = |wanted: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| wanted(call)).count();
    assert_eq!(count(&|c| matches!(c, Call::EventCreate)), count(&|c| matches!(c, Call::EventDestroy)));
    assert_eq!(count(&|c| matches!(c, Call::StreamDestroy)), 2);
    assert_eq!(calls.last(), Some(&Call::DeviceClose));
    let place = |wanted: &Call| calls.iter().position(|call| call == wanted).unwrap();
    assert!(place(&Call::PoolDestroy) < place(&Call::StreamDestroy));
}

#[test]
fn streams_are_lent_to_the_fewest_users_and_come_back() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let streams = StreamPool::with_capacity(&device, 2);
    let scope = device.scope().child("query 1");
    let (a, b) = (streams.take(&scope).unwrap(), streams.take(&scope).unwrap());
    assert_ne!(a, b);
    assert_eq!(a.scope().path(), "query 1");
    let c = streams.take(&scope).unwrap();
    assert_eq!(streams.len(), 2, "a full pool lends a stream twice");
    assert!(c == a || c == b);
    let id = b.id();
    let clone = b.clone();
    drop(b);
    drop(c);
    drop(clone);
    assert_eq!(streams.take(&scope).unwrap().id(), id);
}

#[test]
fn kernels_are_found_by_name_and_missing_ones_listed() {
    let device = Device::open(Recording::new(), 0).unwrap();
    let module = device.load_module(".visible .entry fill(.param .u64 p) { ret; } .entry scan() { ret; }").unwrap();
    let kernel = module.kernel("fill").unwrap();
    assert_eq!((kernel.name(), kernel.persistent_blocks(256, 0).unwrap()), ("fill", 8));
    let error = module.kernel("absent").unwrap_err();
    assert_eq!(error.to_string(), "module has no kernel `absent`; it has fill, scan");
    let error = device.load_module("").unwrap_err();
    assert!(matches!(error, MemoryError::Driver { .. }));
    assert_eq!(error.to_string(), "cuModuleLoadDataEx failed: invalid PTX (218): line 1: nothing");
}

#[test]
fn a_module_is_unloaded_when_the_device_is_past_its_last_launch() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let kernel = device.load_module(".entry k() { ret; }").unwrap().kernel("k").unwrap();
    let here = std::panic::Location::caller();
    let ptr = millpond_memory::DevicePtr(256);
    let (_, position) = stream.submit(|driver, on| driver.fill(ptr, 0, 1, on, here)).unwrap();
    kernel.launched(&stream, position);
    driver.hold();
    drop(kernel);
    let event = stream.record().unwrap();
    while driver.queries() < 50 {
        let _ = event.query().unwrap();
    }
    assert!(!driver.take().contains(&Call::ModuleUnload));
    driver.release();
    event.completed().wait().unwrap();
    while !driver.take().contains(&Call::ModuleUnload) {
        std::thread::yield_now();
    }
    assert_eq!(stream.scope().counters().launches, 1);
}

#[test]
fn time_marks_are_events_of_their_own() {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let (start, end) = (stream.mark_time().unwrap(), stream.mark_time().unwrap());
    assert_eq!(end.ms_since(&start).unwrap(), 0.0);
    drop((start, end));
    let destroyed = driver.take().iter().filter(|call| matches!(call, Call::EventDestroy)).count();
    assert_eq!(destroyed, 2, "they are not kept for order");
}

#[test]
fn handles_may_be_shared_between_threads_and_held_across_awaits() {
    fn sent<T: Send>(_: &T) {}
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<Stream>();
    shared::<DeviceBuffer>();
    shared::<millpond_memory::DeviceView>();
    shared::<millpond_memory::Kernel>();
    shared::<MemoryPool>();
    shared::<millpond_memory::PinnedPool>();
    let device = Device::open(Recording::new(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = millpond_memory::PinnedPool::builder(&device).build();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::zeroed(8, &stream, &pool).unwrap();
    sent(&buffer.download_vec(&stream, &pinned).unwrap());
    sent(&pinned.take(millpond_memory::HostKind::Upload, 1));
}
