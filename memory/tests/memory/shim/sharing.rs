//! Peers and sharing between processes through the C interface. Each test here runs only over the shim.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use millpond_memory::driver::*;
use millpond_memory::ipc::{ImportedPool, OnSilence, Returned, SharedAllocation};
use millpond_memory::{Device, DeviceBuffer, ExportedPool, IpcChannel, MemoryPool, PinnedPool, Stream};

use super::is_inside;

const LEN: usize = 5000;
/// Bounds a hang; the awaited message has been sent.
const SOON: Duration = Duration::from_secs(600);

/// The driver over the shim, or `None` outside the child.
fn cuda() -> Option<Arc<CudaDriver>> {
    is_inside().then(|| CudaDriver::open().unwrap())
}

#[test]
fn peers() {
    let Some(driver) = cuda() else { return };
    let open = |ordinal| {
        let device = Device::open(driver.clone(), ordinal).unwrap();
        let (pool, stream) = (MemoryPool::builder(&device).build().unwrap(), Stream::new(&device).unwrap());
        (PinnedPool::builder(&device).build(), pool, stream, device)
    };
    let (home, peer) = (open(0), open(1));
    let fetch = |buffer: &DeviceBuffer, at: &(PinnedPool, MemoryPool, Stream, Device)| {
        buffer.download_vec(&at.2, &at.0).unwrap().wait().unwrap()
    };
    let (a, b) = (&home.2, &peer.2);
    let here = DeviceBuffer::new(LEN, a, &home.1).unwrap();
    let there = DeviceBuffer::new(LEN, b, &peer.1).unwrap();
    here.fill(1, a).unwrap();
    here.copy_to_peer(a, &there, b).unwrap();
    here.fill(2, a).unwrap();
    assert_eq!(fetch(&there, &peer), vec![1; LEN]);

    let access = home.1.peer_access(&peer.3).unwrap();
    assert!(access.is_supported().unwrap() && !access.is_enabled());
    access.enable().unwrap();
    let on_peer = here.use_on_peer(Access::Write, a, b).unwrap();
    on_peer.fill(7).unwrap();
    on_peer.hand_back().unwrap();
    assert_eq!(fetch(&here, &home), vec![7; LEN]);
}

/// The complete exchange of a buffer over a socket, with the exporter and the importer in one process.
#[test]
fn both_ends() {
    let Some(driver) = cuda() else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut exporter, mut importer) = (IpcChannel::new(ours), IpcChannel::new(theirs));
    let device = Device::open(driver.clone(), 0).unwrap();
    let (pinned, stream) = (PinnedPool::builder(&device).build(), Stream::new(&device).unwrap());
    let pool = MemoryPool::builder(&device).export(HandleTypes::POSIX_FD).build().unwrap();
    let exported = ExportedPool::of(&pool).unwrap();
    exporter.send_pool(&exported).unwrap();
    let imported = importer.receive_pool(&device, SOON).unwrap().unwrap().enable_access(&[&device]).unwrap();
    for round in 0..3u8 {
        let buffer = DeviceBuffer::new(LEN, &stream, &pool).unwrap();
        buffer.fill(round, &stream).unwrap();
        let (lent, shared) = exported.share(buffer, &stream).unwrap();
        exporter.send(&shared).unwrap();

        let other = Stream::new(&device).unwrap();
        let shared: SharedAllocation = importer.receive(SOON).unwrap().unwrap();
        let opened = imported.open(shared, &other).unwrap();
        assert_eq!(opened.download_vec(&other, &pinned).unwrap().wait().unwrap(), vec![round; LEN]);
        opened.fill(round + 100, &other).unwrap();
        if round == 2 {
            importer.send_finished(&opened.finish_on_host().unwrap()).unwrap();
        } else {
            drop(opened);
            importer.send_all_finished(&imported).unwrap();
        }
        let back = exporter.reclaim(lent, &stream, SOON, OnSilence::Keep).unwrap();
        let Returned::Buffer(buffer) = back else { panic!("{back:?}") };
        assert_eq!(buffer.download_vec(&stream, &pinned).unwrap().wait().unwrap(), vec![round + 100; LEN]);
    }
    assert_eq!(imported.statistics().imported_bytes.as_u64(), 0);
}

/// A refusal of the driver returns its code, not a panic or a handle.
#[test]
fn refusals() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver.clone(), 0).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = ImportedPool::import(null.as_fd(), &device).unwrap_err();
    assert_eq!(error.driver_code(), Some(DriverCode::INVALID_VALUE));
    let event = driver.event_create(DeviceId(0), EventFlags::ORDER).unwrap();
    assert_eq!(driver.event_ipc_handle(event).unwrap_err().code, DriverCode::INVALID_HANDLE);
    driver.event_destroy(event).unwrap();
    let event = driver.event_create(DeviceId(0), EventFlags::INTERPROCESS).unwrap();
    let own = driver.event_ipc_handle(event).unwrap();
    assert_eq!(driver.event_open_ipc(DeviceId(0), &own).unwrap_err().code, DriverCode::INVALID_CONTEXT);
    assert_eq!(driver.event_open_ipc(DeviceId(0), &[7; 64]).unwrap_err().code, DriverCode::INVALID_VALUE);
    driver.event_destroy(event).unwrap();
    let plain = driver.pool_create(&PoolProperties::on(DeviceId(0))).unwrap();
    assert_eq!(driver.pool_export(plain).unwrap_err().code, DriverCode::INVALID_VALUE);
    driver.pool_destroy(plain).unwrap();
}
