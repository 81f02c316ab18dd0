//! A recorder sees the device work of its paths, with times; code without a recorder pays nothing.

use millpond_memory::driver::sim::SimDriver;
use millpond_memory::measure::{link_bandwidth, memory_bandwidth};
use millpond_memory::recorder::{Recorder, Recording, WAIT, WorkKind};
use millpond_memory::{Device, DeviceBuffer, HostKind, MemoryPool, PinnedPool, Stream};

use crate::pending::block_on;

const LEN: usize = 4096;

/// Uploads, fills, copies and downloads on a path, except for one upload.
fn record(device: &Device) -> Recording {
    let pool = MemoryPool::builder(device).build().unwrap();
    let pinned = PinnedPool::builder(device).build();
    let stream = Stream::new(device).unwrap();
    let unseen = DeviceBuffer::upload(&[1; LEN], &stream, &pool, &pinned).unwrap();
    let recorder = Recorder::new();
    let path = recorder.path("run", "one", "rest");
    block_on(path.clone().life(async {
        let buffer = DeviceBuffer::upload(&[2; LEN], &stream, &pool, &pinned).unwrap();
        buffer.fill(3, &stream).unwrap();
        buffer.copy_to(&unseen, &stream).unwrap();
        let home = pinned.take(HostKind::Download, LEN).await.unwrap();
        let home = home.copy_to_host(&buffer, &stream).unwrap().await.unwrap();
        assert_eq!(home.read().unwrap()[..], [3; LEN]);
    }));
    drop(unseen);
    recorder.recording()
}

fn of(recording: &Recording, kind: fn(&WorkKind) -> bool) -> Vec<(u64, u64)> {
    let work = recording.work.iter().filter(|work| kind(&work.kind));
    work.map(|work| (work.bytes_read, work.bytes_written)).collect()
}

fn assert_all_is_there(recording: &Recording) {
    const BYTES: u64 = LEN as u64;
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Upload)), [(0, BYTES)]);
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Fill)), [(0, BYTES)]);
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Copy)), [(BYTES, BYTES)]);
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Download)), [(BYTES, 0)]);
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Allocate)), [(0, BYTES)]);
    assert_eq!(of(recording, |kind| matches!(kind, WorkKind::Free)), [(0, BYTES)], "what was allocated outside is not");
    let path = &recording.paths[0];
    let steps = recording.steps(0);
    assert_eq!(steps.iter().map(|(_, ns)| ns).sum::<u64>(), path.ns());
    assert!(recording.work.iter().all(|work| (path.began_ns..=path.ended_ns).contains(&work.began_ns)));
    let waits = of(recording, |kind| matches!(kind, WorkKind::Wait)).len();
    assert_eq!(waits, recording.spans.iter().filter(|span| span.step == WAIT).count());
}

#[test]
fn work_is_recorded_on_the_path_that_submits_it() {
    let device = Device::open(SimDriver::with_seed(3), 0).unwrap();
    let recording = record(&device);
    assert_all_is_there(&recording);
    assert!(recording.work.iter().all(|work| work.device.is_none()), "the simulated device has no time");
    let pool = MemoryPool::builder(&device).build().unwrap();
    assert_eq!(memory_bandwidth(&device, &pool).unwrap(), None);
    assert_eq!(link_bandwidth(&device, &pool, &PinnedPool::builder(&device).build()).unwrap(), None);
}

/// In the process whose libcuda is the shim: the calls that time work are made, although all times are 0 there.
#[cfg(target_os = "linux")]
#[test]
fn shim_work_stands_between_events_with_a_clock() {
    if !crate::shim::is_inside() {
        return;
    }
    let device = Device::open(millpond_memory::driver::CudaDriver::open().unwrap(), 0).unwrap();
    let recording = record(&device);
    assert_all_is_there(&recording);
    for work in &recording.work {
        let timed = matches!(work.kind, WorkKind::Upload | WorkKind::Fill | WorkKind::Copy | WorkKind::Download);
        assert_eq!(work.device.map(|device| device.ns), timed.then_some(0), "{work:?}");
    }
    let pool = MemoryPool::builder(&device).build().unwrap();
    assert_eq!(memory_bandwidth(&device, &pool).unwrap(), None, "a copy that takes no time has no speed");
    let pinned = PinnedPool::builder(&device).build();
    assert_eq!(link_bandwidth(&device, &pool, &pinned).unwrap(), None, "nor has the link");
}

#[cfg(target_os = "linux")]
#[test]
fn work_is_timed_by_the_drivers_events() {
    let ended = crate::shim::over_the_shim("recorder::shim_", &[]);
    assert!(ended.findings.is_empty(), "{:?}", ended.findings);
    assert!(ended.output.contains("1 passed"), "{}", ended.output);
}
