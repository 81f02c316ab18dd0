//! Two devices: access to each other's memory, and its order.

use std::sync::Arc;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{
    Access, DeviceId, Driver, FindingKind, KernelLaunch, PoolAccess, PoolAttribute, StreamHandle,
};
use millpond_memory::{Device, DeviceBuffer, DriverCode, MemoryError, MemoryPool, PinnedPool, Strategy, Stream};

use super::sim_rig::{declare, seeds};

const LEN: usize = 4096;

/// One device of a driver, with what is needed to use it.
struct Side {
    device: Device,
    pool: MemoryPool,
    pinned: PinnedPool,
    stream: Stream,
}

fn side(driver: &Arc<SimDriver>, ordinal: u32) -> Side {
    let device = Device::open(driver.clone(), ordinal).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let (pinned, stream) = (PinnedPool::builder(&device).build(), Stream::new(&device).unwrap());
    Side { device, pool, pinned, stream }
}

fn two(options: SimOptions) -> (Arc<SimDriver>, Side, Side) {
    let driver = SimDriver::new(SimOptions { devices: 2, ..options });
    let (a, b) = (side(&driver, 0), side(&driver, 1));
    (driver, a, b)
}

fn fetch(buffer: &DeviceBuffer, on: &Side) -> Vec<u8> {
    buffer.download_vec(&on.stream, &on.pinned).unwrap().wait().unwrap()
}

#[track_caller]
fn silent(driver: &SimDriver) {
    driver.settle().unwrap();
    let findings: Vec<String> = driver.take_findings().iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// S1.25: the check comes first, reports its own error, and leaves the pool unchanged (S1.23: an empty pool would have
/// accepted).
#[test]
fn peers_that_cannot_reach_are_refused_before_the_driver_is_asked() {
    let (driver, a, b) = two(SimOptions { refuse_peers: true, ..SimOptions::default() });
    let access = a.pool.peer_access(&b.device).unwrap();
    assert!(!access.is_supported().unwrap() && !access.is_enabled());
    let error = access.enable().unwrap_err();
    assert!(matches!(error, MemoryError::PeerUnsupported { peer: DeviceId(1), owner: DeviceId(0) }));
    assert_eq!(
        error.to_string(),
        "peer access unsupported: device 1 cannot reach the memory of device 0; copy with `copy_to_peer`, which needs no access"
    );
    // The pool is unharmed: the next allocation works.
    let buffer = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    assert_eq!(fetch(&buffer, &a), vec![0; LEN]);
    drop(buffer);
    silent(&driver);
}

/// The accessing device is checked, not the accessed one.
#[test]
fn access_has_a_direction() {
    let (_, a, b) = two(SimOptions { one_way_peers: true, ..SimOptions::default() });
    assert!(a.pool.peer_access(&b.device).unwrap().is_supported().unwrap(), "1 reaches 0");
    assert!(!b.pool.peer_access(&a.device).unwrap().is_supported().unwrap(), "0 does not reach 1");
    a.pool.peer_access(&b.device).unwrap().enable().unwrap();
    assert!(b.pool.peer_access(&a.device).unwrap().enable().is_err());
}

/// S1.20: the pool's own device has access, and no function revokes it; the driver refuses that, too.
#[test]
fn the_own_device_always_has_access() {
    let (driver, a, _) = two(SimOptions::default());
    let access = a.pool.peer_access(&a.device).unwrap();
    assert!(access.is_supported().unwrap() && access.is_enabled());
    access.enable().unwrap();
    let raw = driver.pool_create(&millpond_memory::driver::PoolProperties::on(DeviceId(0))).unwrap();
    assert_eq!(driver.pool_set_access(raw, DeviceId(0), false).unwrap_err().code, DriverCode::INVALID_VALUE);
    driver.pool_destroy(raw).unwrap();
}

/// S1.22, S1.24: one call covers current and future allocations; a repeated call changes nothing.
#[test]
fn access_is_for_the_whole_pool_and_for_good() {
    let (driver, a, b) = two(SimOptions::default());
    let before = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    let enable = || a.pool.peer_access(&b.device).unwrap().enable();
    enable().unwrap();
    enable().unwrap();
    assert!(a.pool.peer_access(&b.device).unwrap().is_enabled());
    assert!(a.pool.clone().peer_access(&b.device).unwrap().is_enabled(), "clones share it");
    let after = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    for buffer in [&before, &after] {
        let on_peer = buffer.use_on_peer(Access::Write, &a.stream, &b.stream).unwrap();
        on_peer.fill(0x5A).unwrap();
        on_peer.hand_back().unwrap();
        assert_eq!(fetch(buffer, &a), vec![0x5A; LEN]);
    }
    drop((before, after));
    silent(&driver);
}

/// S1.19, S3.22: without `enable` a peer's use is refused here, with the call to make; nothing else opens a pool.
#[test]
fn a_peer_without_access_is_refused_with_the_way_out() {
    let (driver, a, b) = two(SimOptions::default());
    let buffer = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    let error = buffer.use_on_peer(Access::Read, &a.stream, &b.stream).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 1 has no access to this memory of device 0; call `pool.peer_access(&peer)?.enable()` first"
    );
    let error = buffer.read(&b.stream).map(drop).unwrap_err();
    assert!(matches!(error, MemoryError::ForeignDevice { .. }), "{error}");
    drop(buffer);
    silent(&driver);
}

/// Only pools of the driver have access settings.
#[test]
fn other_memory_has_no_access_to_set() {
    let (_, a, b) = two(SimOptions::default());
    let caching = MemoryPool::builder(&a.device).strategy(Strategy::Caching).build().unwrap();
    let error = caching.peer_access(&b.device).map(drop).unwrap_err();
    assert_eq!(error.driver_code(), Some(DriverCode::NOT_SUPPORTED));
    let stranger = side(&SimDriver::with_seed(1), 0);
    let error = a.pool.peer_access(&stranger.device).map(drop).unwrap_err();
    assert!(error.to_string().contains("different drivers"), "{error}");
}

#[test]
fn a_use_for_reading_does_not_write() {
    let (driver, a, b) = two(SimOptions::default());
    a.pool.peer_access(&b.device).unwrap().enable().unwrap();
    let buffer = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    let on_peer = buffer.use_on_peer(Access::Read, &a.stream, &b.stream).unwrap();
    assert!(matches!(on_peer.fill(1), Err(MemoryError::PeerReadOnly { .. })));
    drop(on_peer);
    drop(buffer);
    silent(&driver);
}

/// Copies need no access, and are ordered both ways: after writes of their source, and before later writes to it.
#[test]
fn copies_between_devices_are_ordered() {
    for seed in seeds() {
        for refuse_peers in [false, true] {
            let (driver, a, b) = two(SimOptions { seed, refuse_peers, ..SimOptions::default() });
            let from = DeviceBuffer::new(LEN, &a.stream, &a.pool).unwrap();
            let to = DeviceBuffer::zeroed(LEN, &b.stream, &b.pool).unwrap();
            from.fill(1, &a.stream).unwrap();
            from.copy_to_peer(&a.stream, &to, &b.stream).unwrap();
            // A later write on the source device, on another of its streams: after the copy.
            let other = Stream::new(&a.device).unwrap();
            from.fill(2, &other).unwrap();
            // The reverse direction, into a part of a buffer.
            let back = DeviceBuffer::zeroed(2 * LEN, &a.stream, &a.pool).unwrap();
            to.copy_to_peer(&b.stream, &back.view(LEN..2 * LEN).unwrap(), &a.stream).unwrap();
            drop(from);
            assert_eq!(fetch(&to, &b), vec![1; LEN]);
            let bytes = fetch(&back, &a);
            assert_eq!((&bytes[..LEN], &bytes[LEN..]), (&vec![0; LEN][..], &vec![1; LEN][..]));
            drop((to, back));
            silent(&driver);
        }
    }
}

/// A source dropped right after the copy is freed behind the copy, on its own device.
#[test]
fn a_source_may_be_dropped_while_it_is_copied() {
    for seed in seeds() {
        let (driver, a, b) = two(SimOptions { seed, ..SimOptions::default() });
        let to = DeviceBuffer::new(LEN, &b.stream, &b.pool).unwrap();
        {
            let from = DeviceBuffer::new(LEN, &a.stream, &a.pool).unwrap();
            from.fill(9, &a.stream).unwrap();
            from.copy_to_peer(&a.stream, &to, &b.stream).unwrap();
        }
        let next = DeviceBuffer::new(LEN, &a.stream, &a.pool).unwrap();
        next.fill(0xFF, &a.stream).unwrap();
        assert_eq!(fetch(&to, &b), vec![9; LEN]);
        drop((to, next));
        silent(&driver);
    }
}

/// Without any single wait, the checks fire or another wait implies the order: never silently wrong.
#[test]
fn every_wait_of_a_peer_copy_is_needed() {
    let mut noticed = 0;
    for wait in 1..=2 {
        let (driver, a, b) = two(SimOptions { ignore_wait: Some(wait), ..SimOptions::default() });
        let from = DeviceBuffer::new(LEN, &a.stream, &a.pool).unwrap();
        let to = DeviceBuffer::new(LEN, &b.stream, &b.pool).unwrap();
        from.fill(1, &a.stream).unwrap();
        from.copy_to_peer(&a.stream, &to, &b.stream).unwrap();
        from.fill(2, &a.stream).unwrap();
        driver.settle().unwrap();
        noticed += usize::from(!driver.take_findings().is_empty());
        drop((from, to));
    }
    assert_eq!(noticed, 2, "one wait before the copy, one behind it");
}

#[test]
fn lengths_and_streams_of_a_peer_copy_are_checked() {
    let (_, a, b) = two(SimOptions::default());
    let from = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    let to = DeviceBuffer::zeroed(2 * LEN, &b.stream, &b.pool).unwrap();
    let error = from.copy_to_peer(&a.stream, &to, &b.stream).unwrap_err();
    assert!(matches!(error, MemoryError::Range { wanted: LEN, .. }), "{error}");
    let half = to.view(0..LEN).unwrap();
    for (home, away) in [(&b.stream, &b.stream), (&a.stream, &a.stream)] {
        let error = from.copy_to_peer(home, &half, away).unwrap_err();
        assert!(matches!(error, MemoryError::ForeignDevice { .. }), "{error}");
    }
    let empty = from.view(0..0).unwrap();
    empty.copy_to_peer(&a.stream, &to.view(0..0).unwrap(), &b.stream).unwrap();
}

/// Events are per device: recorded on their own, waited for on any; a position belongs to one device.
#[test]
fn an_event_is_the_hand_over_between_devices() {
    let (driver, a, b) = two(SimOptions::default());
    let error = b.stream.wait_for(a.stream.position()).unwrap_err();
    assert!(matches!(error, MemoryError::ForeignDevice { .. }), "{error}");
    let event = a.stream.record().unwrap();
    b.stream.wait_event(&event).unwrap();

    let raw = driver.event_create(DeviceId(0), millpond_memory::driver::EventFlags::ORDER).unwrap();
    let stream: StreamHandle = driver.stream_create(DeviceId(1), Default::default()).unwrap();
    let refused = driver.event_record(raw, stream, std::panic::Location::caller()).unwrap_err();
    assert_eq!(refused.code, DriverCode::INVALID_HANDLE, "recorded on another device's stream");
    assert_eq!(driver.take_findings()[0].kind, FindingKind::Handle);
    driver.stream_destroy(stream).unwrap();
    driver.event_destroy(raw).unwrap();

    let stranger = side(&SimDriver::with_seed(1), 0);
    assert!(matches!(b.stream.wait_event(&stranger.stream.record().unwrap()), Err(MemoryError::ForeignDevice { .. })));
}

/// A kernel on the peer, with and without access: the driver's own rule, in addition to ours.
#[test]
fn kernels_on_the_peer() {
    const POKE: &str = ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry poke(.param .u64 at)\n{\n\
        .reg .u64 %rd<2>;\nld.param.u64 %rd1, [at];\nst.global.u32 [%rd1], 7;\nret;\n}\n";
    for access in [true, false] {
        let (driver, a, b) = two(SimOptions::default());
        let buffer = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
        let module = driver.module_load(DeviceId(1), POKE).unwrap();
        let function = driver.module_function(module, "poke").unwrap();
        let launch = |stream: StreamHandle, address: u64| {
            driver.launch_checked(
                &KernelLaunch {
                    function,
                    name: "poke",
                    grid: [1; 3],
                    block: [1; 3],
                    shared_bytes: 0,
                    params: &address.to_le_bytes(),
                    accesses: &[declare(buffer.address(), LEN, Access::Write)],
                    figures: None,
                    site: std::panic::Location::caller(),
                },
                stream,
            )
        };
        if access {
            a.pool.peer_access(&b.device).unwrap().enable().unwrap();
            let on_peer = buffer.use_on_peer(Access::Write, &a.stream, &b.stream).unwrap();
            b.stream.submit(|_, on| launch(on, on_peer.address().0)).unwrap();
            on_peer.hand_back().unwrap();
            assert_eq!(fetch(&buffer, &a)[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
            drop(buffer);
            silent(&driver);
        } else {
            b.stream.wait_event(&a.stream.record().unwrap()).unwrap();
            b.stream.submit(|_, on| launch(on, buffer.address().0)).unwrap();
            let error = b.stream.synchronize().unwrap_err();
            assert_eq!(error.driver_code(), Some(DriverCode::ILLEGAL_ADDRESS));
            assert!(b.device.is_lost() && !a.device.is_lost(), "the one that ran it");
            let findings = driver.take_findings();
            assert_eq!(findings[0].kind, FindingKind::OutOfBounds);
            assert!(findings[0].message.contains("no access"), "{}", findings[0]);
        }
    }
}

/// A use that cannot be handed back leaks the buffer: it must not be freed while the peer uses it.
#[test]
fn a_use_that_cannot_be_handed_back_leaks() {
    let (driver, a, b) = two(SimOptions::default());
    a.pool.peer_access(&b.device).unwrap().enable().unwrap();
    let buffer = DeviceBuffer::zeroed(LEN, &a.stream, &a.pool).unwrap();
    let on_peer = buffer.use_on_peer(Access::Write, &a.stream, &b.stream).unwrap();
    on_peer.fill(1).unwrap();
    driver.lose_device(DeviceId(1));
    assert!(on_peer.hand_back().unwrap_err().is_device_lost());
    drop(buffer);
    assert_eq!(a.device.counters().leaked_bytes, LEN as u64);
    assert_eq!(a.pool.attributes().unwrap().used_current.as_u64(), LEN as u64, "not given to anybody else");
    drop(a.pool);
    let kinds: Vec<_> = driver.take_findings().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Leak]);
}

/// The driver's view of the pool: access read back with `access_of`, before and after.
#[test]
fn access_can_be_read_back() {
    let driver = SimDriver::new(SimOptions { devices: 2, ..SimOptions::default() });
    driver.device_open(DeviceId(0)).unwrap();
    let pool = driver.pool_create(&millpond_memory::driver::PoolProperties::on(DeviceId(0))).unwrap();
    let access = |device| driver.pool_access(pool, DeviceId(device)).unwrap();
    assert_eq!((access(0), access(1)), (PoolAccess::ReadWrite, PoolAccess::None));
    driver.pool_set_access(pool, DeviceId(1), true).unwrap();
    assert_eq!(access(1), PoolAccess::ReadWrite);
    assert_eq!(driver.pool_attribute(pool, PoolAttribute::UsedCurrent).unwrap(), 0);
    driver.pool_destroy(pool).unwrap();
    driver.device_close(DeviceId(0)).unwrap();
}
