//! Pools of a simulated device: their kinds, locations, access, and the owner of an address.

use super::sim_rig::{DEVICE, Rig, declare};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::driver::*;
use std::num::NonZeroUsize;
use std::panic::Location;

const OTHER: DeviceId = DeviceId(1);
const MIB: usize = 1 << 20;

const POKE: &str = "
.version 8.2
.target sm_70
.address_size 64
.visible .entry poke(.param .u64 address)
{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [address];
    st.global.u64 [%rd1], 7;
    ret;
}
";

fn bytes(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn two_devices() -> Rig {
    Rig::with(SimOptions { devices: 2, ..SimOptions::default() })
}

fn on_host(node: u32) -> PoolProperties {
    PoolProperties { location: PoolLocation::HostNuma(node), ..PoolProperties::default() }
}

#[test]
fn a_device_has_a_default_pool_as_cuda_makes_it() {
    let rig = two_devices();
    let pool = rig.driver.device_default_pool(DEVICE).unwrap();
    assert_eq!(rig.driver.device_default_pool(DEVICE).unwrap(), pool);
    assert_ne!(rig.driver.device_default_pool(OTHER).unwrap(), pool);
    assert_ne!(pool, rig.pool);
    let get = |attribute| rig.driver.pool_attribute(pool, attribute).unwrap();
    assert_eq!(get(PoolAttribute::ReleaseThreshold), 0);
    for policy in [
        PoolAttribute::ReuseFollowEventDependencies,
        PoolAttribute::ReuseAllowOpportunistic,
        PoolAttribute::ReuseAllowInternalDependencies,
    ] {
        assert_eq!(get(policy), 1, "{policy:?}");
    }
    assert_eq!(rig.driver.pool_destroy(pool).unwrap_err().code, DriverCode::INVALID_VALUE);
    assert_eq!(rig.driver.pool_access(pool, DEVICE), Ok(PoolAccess::ReadWrite));
    assert_eq!(rig.driver.device_default_pool(DeviceId(2)).unwrap_err().code, DriverCode::INVALID_DEVICE);
    rig.assert_silent();
}

#[test]
fn an_allocation_without_a_pool_takes_the_current_one() {
    let rig = two_devices();
    let s = rig.stream();
    let default = rig.driver.device_default_pool(DEVICE).unwrap();
    let used = |pool| rig.driver.pool_attribute(pool, PoolAttribute::UsedCurrent).unwrap();
    assert_eq!(rig.driver.device_current_pool(DEVICE), Ok(default));
    let a = rig.driver.alloc_current(bytes(MIB), s, Location::caller()).unwrap();
    assert_eq!((used(default), used(rig.pool)), (MIB as u64, 0));
    rig.driver.device_set_current_pool(DEVICE, rig.pool).unwrap();
    assert_eq!(rig.driver.device_current_pool(DEVICE), Ok(rig.pool));
    let b = rig.driver.alloc_current(bytes(MIB), s, Location::caller()).unwrap();
    assert_eq!((used(default), used(rig.pool)), (MIB as u64, MIB as u64));
    rig.free(a, s);
    rig.free(b, s);
    rig.sync(s);
    // A free returns memory to its pool, whichever pool is current.
    assert_eq!((used(default), used(rig.pool)), (0, 0));
    rig.driver.pool_destroy(rig.pool).unwrap();
    assert_eq!(rig.driver.device_current_pool(DEVICE), Ok(default), "the default pool takes its place");
    rig.assert_silent();
}

#[test]
fn a_current_pool_is_local_to_its_device() {
    let rig = two_devices();
    let refused = rig.driver.device_set_current_pool(OTHER, rig.pool).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_VALUE);
    let host = rig.driver.pool_create(&on_host(0)).unwrap();
    let refused = rig.driver.device_set_current_pool(DEVICE, host).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_VALUE, "{refused}");
    assert_eq!(rig.driver.device_current_pool(OTHER), rig.driver.device_default_pool(OTHER));
    rig.assert_silent();
}

#[test]
fn an_out_of_memory_names_the_call_that_was_made() {
    let rig = Rig::with(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
    let s = rig.stream();
    let error = rig.driver.alloc_current(bytes(65 * MIB), s, Location::caller()).unwrap_err();
    assert_eq!((error.call, error.code), ("cuMemAllocAsync", DriverCode::OUT_OF_MEMORY));
}

/// The pool determines where memory is located, the stream when it is valid (S1.6).
#[test]
fn a_pool_of_another_device_can_be_named() {
    let rig = two_devices();
    let far = rig.driver.pool_create(&PoolProperties::on(OTHER)).unwrap();
    let s = rig.stream();
    let free = |device| rig.driver.memory_info(device).unwrap().free_bytes;
    let before = (free(DEVICE), free(OTHER));
    let a = rig.driver.pool_alloc(far, bytes(2 * MIB), s, Location::caller()).unwrap();
    assert_eq!((free(DEVICE), free(OTHER)), (before.0, before.1 - 2 * MIB as u64));
    assert_eq!(rig.driver.pointer_attributes(a).unwrap().device, Some(OTHER));
    rig.free(a, s);
    rig.sync(s);
    assert_eq!(free(OTHER), before.1);
    rig.assert_silent();
}

#[test]
fn a_pool_tells_who_has_access() {
    let rig = two_devices();
    let access = |device| rig.driver.pool_access(rig.pool, device).unwrap();
    assert_eq!((access(DEVICE), access(OTHER)), (PoolAccess::ReadWrite, PoolAccess::None));
    rig.driver.pool_set_access(rig.pool, OTHER, true).unwrap();
    assert_eq!((access(DEVICE), access(OTHER)), (PoolAccess::ReadWrite, PoolAccess::ReadWrite));
    let refused = rig.driver.pool_set_access(rig.pool, DEVICE, false).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_VALUE, "a pool's own device cannot be shut out (S1.20)");
    rig.driver.pool_set_access(rig.pool, OTHER, false).unwrap();
    assert_eq!(access(OTHER), PoolAccess::None);
    assert!(rig.driver.pool_access(rig.pool, DeviceId(2)).is_err());
}

#[test]
fn a_pool_on_the_host_takes_the_hosts_memory() {
    let rig = Rig::with(SimOptions { host_memory_bytes: 64 << 20, ..SimOptions::default() });
    let pool = rig.driver.pool_create(&on_host(0)).unwrap();
    let s = rig.stream();
    let before = rig.driver.memory_info(DEVICE).unwrap();
    let a = rig.driver.pool_alloc(pool, bytes(40 * MIB), s, Location::caller()).unwrap();
    assert_eq!(rig.driver.memory_info(DEVICE).unwrap(), before);
    let error = rig.driver.pool_alloc(pool, bytes(40 * MIB), s, Location::caller()).unwrap_err();
    assert_eq!(error.code, DriverCode::OUT_OF_MEMORY);
    let attributes = rig.driver.pointer_attributes(a).unwrap();
    assert_eq!((attributes.memory, attributes.device, attributes.pool), (MemoryType::Host, None, Some(pool)));
    rig.free(a, s);
    rig.sync(s);
    assert_eq!(rig.driver.pool_attribute(pool, PoolAttribute::ReservedCurrent), Ok(0));
    rig.driver.pool_destroy(pool).unwrap();
    assert_eq!(rig.driver.pool_create(&on_host(1)).unwrap_err().code, DriverCode::INVALID_VALUE, "there is one node");
    rig.assert_silent();
}

#[test]
fn a_pool_on_the_host_lets_devices_in_only_when_told() {
    for told in [true, false] {
        let rig = Rig::new(3);
        let pool = rig.driver.pool_create(&on_host(0)).unwrap();
        assert_eq!(rig.driver.pool_access(pool, DEVICE), Ok(PoolAccess::None));
        if told {
            rig.driver.pool_set_access(pool, DEVICE, true).unwrap();
        }
        let (s, poke) = (rig.stream(), rig.kernel(POKE, "poke"));
        let a = rig.driver.pool_alloc(pool, bytes(64), s, Location::caller()).unwrap();
        rig.launch(poke, (1, 1), &[a.0], &[declare(a, 64, Access::Write)], s);
        let ended = rig.driver.stream_synchronize(s);
        if told {
            assert_eq!(ended, Ok(()));
            rig.driver.fill(a.offset(8), 0, 56, s, Location::caller()).unwrap();
            assert_eq!(rig.fetch(a, 8, s), [7, 0, 0, 0, 0, 0, 0, 0]);
            rig.free(a, s);
            rig.sync(s);
            rig.assert_silent();
        } else {
            assert_eq!(ended.unwrap_err().code, DriverCode::ILLEGAL_ADDRESS, "kernels");
            let finding = rig.only_finding(FindingKind::OutOfBounds);
            assert!(finding.to_string().contains("on the host, to which it has no access"), "{finding}");
        }
    }
}

#[test]
fn an_address_tells_whose_it_is() {
    let rig = two_devices();
    let s = rig.stream();
    let a = rig.alloc(1000, s);
    let of_pool = rig.driver.pointer_attributes(a.offset(999)).unwrap();
    let expected = PointerAttributes {
        memory: MemoryType::Device,
        context: None,
        device: Some(DEVICE),
        pool: Some(rig.pool),
        start: a,
        len: 1000,
    };
    assert_eq!(of_pool, expected, "memory of a pool has no context (S1.49)");
    let b = rig.driver.alloc_sync(OTHER, bytes(64), Location::caller()).unwrap();
    let plain = rig.driver.pointer_attributes(b).unwrap();
    assert!(plain.context.is_some());
    assert_eq!((plain.device, plain.pool, plain.start, plain.len), (Some(OTHER), None, b, 64));
    assert_eq!(rig.driver.pointer_attributes(DevicePtr(16)).unwrap_err().code, DriverCode::INVALID_VALUE);
    rig.driver.free_sync(b, Location::caller()).unwrap();
    rig.assert_silent();
    // Undefined after the free, even if other work still uses the memory (S1.47).
    rig.free(a, s);
    assert!(rig.driver.pointer_attributes(a).is_err());
    let finding = rig.only_finding(FindingKind::UseAfterFree);
    assert!(finding.to_string().contains("cuPointerGetAttribute asks about buffer"), "{finding}");
}

#[test]
fn a_question_is_known_to_drivers_from_a_version_on() {
    use DeviceAttribute as A;
    let answers = |version| {
        let rig = Rig::with(SimOptions { version, ..SimOptions::default() });
        assert_eq!(rig.driver.version(), DriverVersion(version));
        [A::MemoryPoolsSupported, A::MemoryPoolSupportedHandleTypes, A::HostNumaId, A::HostNumaMemoryPoolsSupported]
            .map(|attribute| rig.driver.attribute(DEVICE, attribute).map_err(|error| error.code))
    };
    let unknown = Err(DriverCode::INVALID_VALUE);
    assert_eq!(answers(11010), [unknown, unknown, unknown, unknown]);
    assert_eq!(answers(11020), [Ok(1), unknown, unknown, unknown]);
    assert_eq!(answers(11030), [Ok(1), Ok(1), unknown, unknown]);
    assert_eq!(answers(12020), [Ok(1), Ok(1), Ok(0), unknown]);
    assert_eq!(answers(13000), [Ok(1), Ok(1), Ok(0), Ok(1)]);
}

#[test]
fn a_device_without_pools_has_none() {
    let driver = sim::SimDriver::new(SimOptions { memory_pools: false, ..SimOptions::default() });
    driver.device_open(DEVICE).unwrap();
    assert_eq!(driver.attribute(DEVICE, DeviceAttribute::MemoryPoolsSupported), Ok(0));
    assert_eq!(driver.attribute(DEVICE, DeviceAttribute::MemoryPoolSupportedHandleTypes), Ok(0));
    assert_eq!(driver.pool_create(&PoolProperties::on(DEVICE)).unwrap_err().code, DriverCode::NOT_SUPPORTED);
    assert_eq!(driver.device_default_pool(DEVICE).unwrap_err().code, DriverCode::NOT_SUPPORTED);
    let s = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
    assert_eq!(driver.alloc_current(bytes(64), s, Location::caller()).unwrap_err().code, DriverCode::NOT_SUPPORTED);
    let a = driver.alloc_sync(DEVICE, bytes(64), Location::caller()).unwrap();
    driver.free_sync(a, Location::caller()).unwrap();
    driver.device_close(DEVICE).unwrap();
    assert_eq!(driver.take_findings(), []);
}

#[test]
fn handle_types_nobody_knows_are_refused() {
    let rig = Rig::new(0);
    let properties = PoolProperties { handle_types: HandleTypes(2), ..PoolProperties::on(DEVICE) };
    assert_eq!(rig.driver.pool_create(&properties).unwrap_err().code, DriverCode::INVALID_VALUE);
}

#[test]
fn an_event_for_others_takes_no_times() {
    let rig = Rig::new(0);
    let flags = EventFlags { timing: true, interprocess: true };
    assert_eq!(rig.driver.event_create(DEVICE, flags).unwrap_err().code, DriverCode::INVALID_VALUE);
    let event = rig.driver.event_create(DEVICE, EventFlags::INTERPROCESS).unwrap();
    rig.driver.event_destroy(event).unwrap();
}

#[test]
fn copies_and_fills_need_access_to_a_pool_on_the_host_too() {
    let rig = Rig::new(1);
    let pool = rig.driver.pool_create(&on_host(0)).unwrap();
    let s = rig.stream();
    let a = rig.driver.pool_alloc(pool, bytes(64), s, Location::caller()).unwrap();
    let refused = rig.driver.fill(a, 1, 64, s, Location::caller()).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_VALUE);
    rig.only_finding(FindingKind::OutOfBounds);
    rig.driver.pool_set_access(pool, DEVICE, true).unwrap();
    rig.fill(a, 1, 64, s);
    rig.free(a, s);
    rig.assert_silent();
}
