//! The simulated device refuses the same calls as CUDA.

use super::sim_rig::{DEVICE, Rig};
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::*;
use std::num::NonZeroUsize;
use std::panic::Location;

fn code<T: std::fmt::Debug>(result: Result<T>) -> DriverCode {
    result.unwrap_err().code
}

#[test]
fn devices_that_are_not_there_or_not_open() {
    let driver = SimDriver::with_seed(0);
    assert_eq!(driver.device_count().unwrap(), 1);
    assert_eq!(code(driver.device_open(DeviceId(1))), DriverCode::INVALID_DEVICE);
    assert_eq!(code(driver.stream_create(DEVICE, StreamPriority::Normal)), DriverCode::INVALID_CONTEXT);
    driver.device_open(DEVICE).unwrap();
    assert!(driver.stream_create(DEVICE, StreamPriority::Normal).is_ok());
    driver.device_close(DEVICE).unwrap();
    assert_eq!(code(driver.device_close(DEVICE)), DriverCode::INVALID_CONTEXT);
}

#[test]
fn the_default_stream() {
    let rig = Rig::new(0);
    for stream in [0, 1, 2].map(StreamHandle) {
        assert_eq!(code(rig.driver.stream_synchronize(stream)), DriverCode::INVALID_HANDLE);
        assert_eq!(code(rig.try_alloc(64, stream)), DriverCode::INVALID_HANDLE);
    }
}

#[test]
fn handles_of_another_kind() {
    let rig = Rig::new(0);
    let s = rig.stream();
    assert_eq!(code(rig.driver.event_query(EventHandle(s.0))), DriverCode::INVALID_HANDLE);
    assert_eq!(code(rig.driver.pool_trim(PoolHandle(s.0), 0)), DriverCode::INVALID_HANDLE);
    assert_eq!(code(rig.driver.module_unload(ModuleHandle(s.0))), DriverCode::INVALID_HANDLE);
    assert_eq!(rig.kinds(), [FindingKind::Handle; 3]);
}

#[test]
fn copies_of_nothing_are_nothing_and_overlaps_are_refused() {
    let rig = Rig::new(0);
    let s = rig.stream();
    let a = rig.alloc(4096, s);
    rig.fill(DevicePtr(1), 0, 0, s);
    rig.copy(DevicePtr(1), DevicePtr(2), 0, s);
    let overlap = CopyOp::DeviceToDevice { from: a, to: a.offset(100), len: 101 };
    assert_eq!(code(rig.driver.copy(&overlap, s, Location::caller())), DriverCode::INVALID_VALUE);
    rig.fill(a, 1, 4096, s);
    rig.copy(a, a.offset(100), 100, s);
    rig.assert_silent();
}

#[test]
fn elapsed_time_needs_timing_and_both_events() {
    let rig = Rig::new(0);
    let s = rig.stream();
    let event = |timing| rig.driver.event_create(DEVICE, EventFlags { timing, interprocess: false }).unwrap();
    let (start, end, plain) = (event(true), event(true), event(false));
    rig.driver.event_record(start, s, Location::caller()).unwrap();
    assert_eq!(code(rig.driver.event_elapsed_ms(start, end)), DriverCode::NOT_READY);
    rig.driver.event_synchronize(start).unwrap();
    assert_eq!(code(rig.driver.event_elapsed_ms(start, end)), DriverCode::INVALID_HANDLE);
    rig.driver.event_record(end, s, Location::caller()).unwrap();
    rig.sync(s);
    assert_eq!(rig.driver.event_elapsed_ms(start, end).unwrap(), 0.0, "time is not simulated");
    assert_eq!(code(rig.driver.event_elapsed_ms(start, plain)), DriverCode::INVALID_HANDLE);
}

/// On an empty pool an impossible peer is accepted, and the next allocation fails (S1.23).
#[test]
fn peers_that_cannot_reach() {
    let rig = Rig::with(SimOptions { devices: 2, refuse_peers: true, ..SimOptions::default() });
    let s = rig.stream();
    assert!(!rig.driver.can_access_peer(DEVICE, DeviceId(1)).unwrap());
    rig.driver.pool_set_access(rig.pool, DeviceId(1), true).unwrap();
    assert_eq!(code(rig.try_alloc(64, s)), DriverCode::INVALID_DEVICE);
    rig.driver.pool_set_access(rig.pool, DeviceId(1), false).unwrap();
    let a = rig.alloc(64, s);
    assert_eq!(code(rig.driver.pool_set_access(rig.pool, DeviceId(1), true)), DriverCode::INVALID_DEVICE);
    assert_eq!(code(rig.driver.pool_set_access(rig.pool, DEVICE, false)), DriverCode::INVALID_VALUE, "its own device");
    rig.free(a, s);
}

#[test]
fn peers_that_can() {
    let rig = Rig::with(SimOptions { devices: 2, ..SimOptions::default() });
    assert!(rig.driver.can_access_peer(DEVICE, DeviceId(1)).unwrap());
    assert!(!rig.driver.can_access_peer(DEVICE, DEVICE).unwrap());
    rig.driver.pool_set_access(rig.pool, DeviceId(1), true).unwrap();
    assert_eq!(code(rig.driver.pool_set_access(rig.pool, DeviceId(2), true)), DriverCode::INVALID_DEVICE);
}

#[test]
fn words_where_the_device_cannot_store_them() {
    let rig = Rig::with(SimOptions { stream_memory_operations: false, ..SimOptions::default() });
    let s = rig.stream();
    let word = rig.host(4);
    let stored = rig.driver.write_word(&word, 1, s, Location::caller());
    assert_eq!(code(stored), DriverCode::NOT_SUPPORTED);
    assert_eq!(rig.driver.attribute(DEVICE, DeviceAttribute::StreamMemoryOperations).unwrap(), 0);
}

#[test]
fn modules_that_are_not_ptx() {
    let rig = Rig::new(0);
    let error = rig.driver.module_load(DEVICE, ".version 8.2\n.target sm_70\nnonsense here\n").unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_PTX);
    assert!(error.detail.as_deref().is_some_and(|detail| detail.contains("line 3")), "{error}");
    let mistyped = ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n    .reg .f32 %f<2>;\n\
                    add.s32 %f1, %f1, %f1;\n    ret;\n}\n";
    let error = rig.driver.module_load(DEVICE, mistyped).unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_PTX);
    assert!(error.detail.as_deref().is_some_and(|detail| detail.contains("line 7")), "{error}");
    let newer = ".version 9.1\n.target sm_70\n.address_size 64\n";
    assert_eq!(code(rig.driver.module_load(DEVICE, newer)), DriverCode::UNSUPPORTED_PTX_VERSION);
    let target = ".version 8.2\n.target sm_100\n.address_size 64\n";
    assert_eq!(code(rig.driver.module_load(DEVICE, target)), DriverCode::NO_BINARY_FOR_GPU);
}

#[test]
fn pinned_memory_that_was_freed() {
    let rig = Rig::new(0);
    let s = rig.stream();
    let a = rig.alloc(64, s);
    let span = rig.host(64);
    rig.host_free(&span);
    let copy = CopyOp::HostToDevice { from: span.clone(), to: a };
    assert_eq!(code(rig.driver.copy(&copy, s, Location::caller())), DriverCode::INVALID_VALUE);
    assert_eq!(code(rig.driver.host_free(span.block(), Location::caller())), DriverCode::INVALID_VALUE);
    let bytes = NonZeroUsize::new(1).unwrap();
    assert!(rig.driver.host_alloc(DeviceId(7), bytes, HostKind::Upload, Location::caller()).is_err());
}
