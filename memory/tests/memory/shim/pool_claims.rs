//! Pools of every kind, IPC, peers and captures, through libcuda. Each test here runs only over the shim.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::Location;
use std::sync::Arc;

use millpond_memory::driver::*;

use super::is_inside;

const DEVICE: DeviceId = DeviceId(0);
const OTHER: DeviceId = DeviceId(1);

/// The driver with its devices open, or `None` outside the child.
fn opened() -> Option<Arc<CudaDriver>> {
    let driver = is_inside().then(|| CudaDriver::open().unwrap())?;
    for device in 0..driver.device_count().unwrap() {
        driver.device_open(DeviceId(device)).unwrap();
    }
    Some(driver)
}

fn closed(driver: &CudaDriver) {
    for device in 0..driver.device_count().unwrap() {
        driver.device_close(DeviceId(device)).unwrap();
    }
}

fn code<T>(result: Result<T>) -> DriverCode {
    match result {
        Ok(_) => DriverCode::SUCCESS,
        Err(error) => error.code,
    }
}

fn bytes(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn stream(driver: &CudaDriver, device: DeviceId) -> StreamHandle {
    driver.stream_create(device, StreamPriority::Normal).unwrap()
}

#[test]
fn default_and_current() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let s = stream(&driver, DEVICE);
    let default = driver.device_default_pool(DEVICE).unwrap();
    assert_eq!(driver.device_current_pool(DEVICE), Ok(default));
    assert_eq!(driver.pool_attribute(default, PoolAttribute::ReleaseThreshold), Ok(0));
    assert_eq!(code(driver.pool_destroy(default)), DriverCode::INVALID_VALUE);
    let own = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    driver.device_set_current_pool(DEVICE, own).unwrap();
    assert_eq!(driver.device_current_pool(DEVICE), Ok(own));
    let a = driver.alloc_current(bytes(1000), s, here).unwrap();
    assert_eq!(driver.pool_attribute(own, PoolAttribute::UsedCurrent), Ok(1024));
    assert_eq!(driver.pool_attribute(default, PoolAttribute::UsedCurrent), Ok(0));
    driver.free_async(a, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.pool_destroy(own).unwrap();
    assert_eq!(driver.device_current_pool(DEVICE), Ok(default));
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}

#[test]
fn whose_memory_an_address_is() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let s = stream(&driver, DEVICE);
    let pool = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    let a = driver.pool_alloc(pool, bytes(1000), s, here).unwrap();
    let expected = PointerAttributes {
        memory: MemoryType::Device,
        context: None,
        device: Some(DEVICE),
        pool: Some(pool),
        start: a,
        len: 1000,
    };
    assert_eq!(driver.pointer_attributes(a.offset(17)), Ok(expected));
    let b = driver.alloc_sync(DEVICE, bytes(64), here).unwrap();
    let plain = driver.pointer_attributes(b).unwrap();
    assert!(plain.context.is_some() && plain.pool.is_none());
    assert_eq!((plain.device, plain.start, plain.len), (Some(DEVICE), b, 64));
    assert_eq!(code(driver.pointer_attributes(DevicePtr(8))), DriverCode::INVALID_VALUE);
    // Memory of a pool is freed without a stream, after all uses were waited for; memory without a stream is freed on
    // one.
    driver.fill(a, 1, 1000, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.free_sync(a, here).unwrap();
    driver.free_async(b, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.pool_destroy(pool).unwrap();
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}

#[test]
fn pools_on_the_host() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let s = stream(&driver, DEVICE);
    let on = |node| PoolProperties { location: PoolLocation::HostNuma(node), ..PoolProperties::default() };
    let pool = driver.pool_create(&on(0)).unwrap();
    let error = driver.pool_create(&on(1)).unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_VALUE);
    assert!(error.to_string().contains("a pool on host NUMA node 1"), "{error}");
    assert_eq!(driver.pool_access(pool, DEVICE), Ok(PoolAccess::None));
    driver.pool_set_access(pool, DEVICE, true).unwrap();
    assert_eq!(driver.pool_access(pool, DEVICE), Ok(PoolAccess::ReadWrite));
    let a = driver.pool_alloc(pool, bytes(64), s, here).unwrap();
    let attributes = driver.pointer_attributes(a).unwrap();
    assert_eq!((attributes.memory, attributes.device, attributes.pool), (MemoryType::Host, None, Some(pool)));
    assert_eq!(code(driver.device_set_current_pool(DEVICE, pool)), DriverCode::INVALID_VALUE);
    driver.fill(a, 1, 64, s, here).unwrap();
    driver.free_async(a, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.pool_trim(pool, 0).unwrap();
    driver.pool_destroy(pool).unwrap();
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}

#[test]
fn sharing() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let s = stream(&driver, DEVICE);
    let private = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    assert!(driver.pool_export(private).is_err());
    driver.pool_destroy(private).unwrap();
    let properties = PoolProperties { handle_types: HandleTypes::POSIX_FD, ..PoolProperties::on(DEVICE) };
    let pool = driver.pool_create(&properties).unwrap();
    let descriptor = driver.pool_export(pool).unwrap();
    let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd())).unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    let close_on_exec = 0o2000000;
    assert_ne!(
        u32::from_str_radix(flags, 8).unwrap() & close_on_exec,
        0,
        "programs started from here do not inherit it"
    );
    let imported = driver.pool_import(DEVICE, descriptor.as_fd()).unwrap();
    drop(descriptor);
    assert_ne!(imported, pool);
    assert!(driver.pool_alloc(imported, bytes(64), s, here).is_err(), "an imported pool hands out nothing");
    let a = driver.pool_alloc(pool, bytes(64), s, here).unwrap();
    let opaque = driver.pool_export_pointer(a).unwrap();
    assert_ne!(opaque, [0; 64]);
    driver.free_async(a, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.pool_destroy(imported).unwrap();
    driver.pool_destroy(pool).unwrap();
    // A descriptor of another kind.
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(driver.pool_import(DEVICE, file.as_fd()).is_err());
    let event = driver.event_create(DEVICE, EventFlags::INTERPROCESS).unwrap();
    assert_ne!(driver.event_ipc_handle(event).unwrap(), [0; 64]);
    let plain = driver.event_create(DEVICE, EventFlags::ORDER).unwrap();
    assert!(driver.event_ipc_handle(plain).is_err());
    assert!(driver.event_open_ipc(DEVICE, &[3; 64]).is_err());
    let both = EventFlags { timing: true, interprocess: true };
    assert_eq!(code(driver.event_create(DEVICE, both)), DriverCode::INVALID_VALUE);
    driver.event_destroy(event).unwrap();
    driver.event_destroy(plain).unwrap();
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}

#[test]
fn streams_of_others_and_captures() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let (s, t) = (stream(&driver, DEVICE), stream(&driver, DEVICE));
    assert_ne!(driver.stream_id(s).unwrap(), driver.stream_id(t).unwrap());
    assert_eq!(driver.stream_wrap(DEVICE, driver.stream_raw(s)), Ok(s));
    assert!(driver.stream_wrap(DEVICE, 0xdead_0000).is_err());
    assert_eq!(code(driver.stream_wrap(DEVICE, u64::MAX)), DriverCode::INVALID_HANDLE);
    let a = driver.alloc_sync(DEVICE, bytes(64), here).unwrap();
    assert_eq!(driver.stream_capture_status(s), Ok(CaptureStatus::None));
    driver.stream_capture_begin(s, CaptureMode::Relaxed).unwrap();
    assert!(matches!(driver.stream_capture_status(s), Ok(CaptureStatus::Active { .. })));
    driver.fill(a, 5, 64, s, here).unwrap();
    let graph = driver.stream_capture_end(s).unwrap();
    let exec = driver.graph_instantiate(graph).unwrap();
    driver.graph_destroy(graph).unwrap();
    driver.graph_launch(exec, t, here).unwrap();
    let down = driver.host_alloc(DEVICE, bytes(64), HostKind::Download, here).unwrap();
    let to = HostSpan::new(&down, 0, 64).unwrap();
    driver.copy(&CopyOp::DeviceToHost { from: a, to }, t, here).unwrap();
    driver.stream_synchronize(t).unwrap();
    assert_eq!(*down.read().unwrap(), [5; 64]);
    driver.graph_exec_destroy(exec).unwrap();
    use GraphMemoryAttribute as G;
    for attribute in [G::UsedCurrent, G::UsedHigh, G::ReservedCurrent, G::ReservedHigh] {
        assert_eq!(driver.graph_memory_attribute(DEVICE, attribute), Ok(0));
    }
    driver.graph_memory_set_attribute(DEVICE, G::UsedHigh, 0).unwrap();
    assert_eq!(code(driver.graph_memory_set_attribute(DEVICE, G::UsedHigh, 1)), DriverCode::INVALID_VALUE);
    driver.graph_memory_trim(DEVICE).unwrap();
    assert_eq!(driver.thread_capture_mode(CaptureMode::Relaxed), Ok(CaptureMode::Global));
    assert_eq!(driver.thread_capture_mode(CaptureMode::Global), Ok(CaptureMode::Relaxed));
    driver.host_free(&down, here).unwrap();
    driver.free_sync(a, here).unwrap();
    driver.stream_destroy(s).unwrap();
    driver.stream_destroy(t).unwrap();
    closed(&driver);
}

#[test]
fn two_devices() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let pool = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    let far = driver.pool_create(&PoolProperties::on(OTHER)).unwrap();
    let refused = code(driver.device_set_current_pool(OTHER, pool));
    assert_eq!(refused, DriverCode::INVALID_VALUE, "a current pool is local to its device");
    assert_eq!(
        (driver.pool_access(pool, DEVICE), driver.pool_access(pool, OTHER)),
        (Ok(PoolAccess::ReadWrite), Ok(PoolAccess::None))
    );
    driver.pool_set_access(pool, OTHER, true).unwrap();
    assert_eq!(driver.pool_access(pool, OTHER), Ok(PoolAccess::ReadWrite));
    let s = stream(&driver, DEVICE);
    let a = driver.pool_alloc(pool, bytes(64), s, here).unwrap();
    let b = driver.pool_alloc(far, bytes(64), s, here).unwrap();
    assert_eq!(driver.pointer_attributes(b).unwrap().pool, Some(far));
    driver.fill(a, 9, 64, s, here).unwrap();
    let copy = CopyOp::Peer { from: a, from_device: DEVICE, to: b, to_device: OTHER, len: 64 };
    driver.copy(&copy, s, here).unwrap();
    let back = CopyOp::Peer { from: b, from_device: OTHER, to: a, to_device: DEVICE, len: 32 };
    driver.fill(a, 0, 64, s, here).unwrap();
    driver.copy(&back, s, here).unwrap();
    let down = driver.host_alloc(DEVICE, bytes(64), HostKind::Download, here).unwrap();
    let to = HostSpan::new(&down, 0, 64).unwrap();
    driver.copy(&CopyOp::DeviceToHost { from: a, to }, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    assert_eq!((&down.read().unwrap()[..32], &down.read().unwrap()[32..]), (&[9; 32][..], &[0; 32][..]));
    // The caller's current context is restored after any calls in between.
    driver.memory_info(OTHER).unwrap();
    let before = driver.context_save().unwrap();
    driver.memory_info(DEVICE).unwrap();
    assert_ne!(driver.context_save().unwrap(), before);
    driver.context_restore(before).unwrap();
    assert_eq!(driver.context_save().unwrap(), before);
    driver.host_free(&down, here).unwrap();
    driver.free_async(a, s, here).unwrap();
    driver.free_async(b, s, here).unwrap();
    driver.stream_synchronize(s).unwrap();
    driver.pool_destroy(pool).unwrap();
    driver.pool_destroy(far).unwrap();
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}

#[test]
fn questions() {
    let Some(driver) = opened() else { return };
    let newer = driver.version() >= DriverVersion(13000);
    assert_eq!(driver.attribute(DEVICE, DeviceAttribute::MemoryPoolsSupported), Ok(1));
    assert_eq!(driver.attribute(DEVICE, DeviceAttribute::MemoryPoolSupportedHandleTypes), Ok(1));
    assert_eq!(driver.attribute(DEVICE, DeviceAttribute::HostNumaId), Ok(0));
    let host = driver.attribute(DEVICE, DeviceAttribute::HostNumaMemoryPoolsSupported).map_err(|error| error.code);
    assert_eq!(host, if newer { Ok(1) } else { Err(DriverCode::INVALID_VALUE) });
    closed(&driver);
}

#[test]
fn codes_nobody_knows() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let s = stream(&driver, DEVICE);
    let unknown = DriverCode(4242);
    assert_eq!(code(driver.device_default_pool(DEVICE)), unknown);
    assert_eq!(code(driver.alloc_current(bytes(64), s, here)), unknown);
    assert_eq!(code(driver.pointer_attributes(DevicePtr(64))), unknown);
    assert_eq!(code(driver.stream_capture_status(s)), unknown);
    assert_eq!(code(driver.stream_id(s)), unknown);
    driver.stream_destroy(s).unwrap();
    closed(&driver);
}
