//! Pinned memory: bounded, recycled, and never reused while a copy may still touch it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DriverCode, HostKind, MemoryError, MemoryPool, PinnedPool, Stream,
};

use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions};

use crate::pending::block_on;
use crate::recording::{Call, Recording};

struct Setup {
    driver: Arc<Recording>,
    device: Device,
    pinned: PinnedPool,
    stream: Stream,
    buffer: DeviceBuffer,
}

fn setup(max: ByteSize) -> Setup {
    let driver = Recording::new();
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).max_bytes(max).build();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::zeroed(1 << 20, &stream, &pool).unwrap();
    driver.take();
    Setup { driver, device, pinned, stream, buffer }
}

fn host_allocs(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::HostAlloc { .. })).count()
}

#[test]
fn buffers_are_recycled_by_kind_and_class() {
    let Setup { driver, pinned, .. } = setup(ByteSize::mib(16));
    drop(pinned.take_now(HostKind::Upload, 100_000).unwrap());
    drop(pinned.take_now(HostKind::Upload, 99_000).unwrap());
    assert_eq!(host_allocs(&driver.take()), 1, "the same class");
    drop(pinned.take_now(HostKind::Download, 100_000).unwrap());
    drop(pinned.take_now(HostKind::Upload, 200_000).unwrap());
    assert_eq!(host_allocs(&driver.take()), 2, "another kind, and another class");
    let statistics = pinned.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.lent), (1, 3, ByteSize::ZERO));
}

#[test]
fn memory_in_flight_is_not_given_again() {
    let Setup { driver, pinned, stream, buffer, .. } = setup(ByteSize::mib(16));
    driver.hold();
    let staging = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
    drop(staging.copy_to_device(&buffer, &stream).unwrap());
    let mut parts = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
    parts.enqueue_to_device(0..1000, &buffer.view(0..1000).unwrap(), &stream).unwrap();
    drop(parts);
    assert_eq!(host_allocs(&driver.take()), 2, "the first was still in flight");
    let third = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
    assert_eq!(host_allocs(&driver.take()), 1, "so were both");
    drop(third);
    driver.release();
    while pinned.statistics().lent > ByteSize::ZERO {
        std::thread::yield_now();
    }
    let again: Vec<_> = (0..3).map(|_| pinned.take_now(HostKind::Upload, 1 << 20).unwrap()).collect();
    assert_eq!(host_allocs(&driver.take()), 0);
    drop(again);
}

#[test]
fn bytes_in_flight_cannot_be_touched() {
    let Setup { driver, pinned, stream, buffer, .. } = setup(ByteSize::mib(16));
    driver.hold();
    let mut staging = pinned.take_now(HostKind::Upload, 1000).unwrap();
    staging.write().unwrap().fill(7);
    staging.enqueue_to_device(0..500, &buffer.view(0..500).unwrap(), &stream).unwrap();
    assert!(matches!(staging.write().err().unwrap(), MemoryError::HostBusy(_)));
    assert!(staging.read().is_err());
    driver.release();
    let mut staging = block_on(staging.idle().unwrap()).unwrap();
    assert!(staging.read().unwrap().iter().all(|&byte| byte == 7));
    staging.write().unwrap()[0] = 8;
}

#[test]
fn a_second_stream_waits_for_the_first_so_that_one_event_tells_of_both() {
    let Setup { driver, device, pinned, stream, buffer } = setup(ByteSize::mib(16));
    let other = Stream::new(&device).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let second = DeviceBuffer::new(1000, &other, &pool).unwrap();
    let mut staging = pinned.take_now(HostKind::Upload, 1000).unwrap();
    staging.enqueue_to_device(0..1000, &buffer.view(0..1000).unwrap(), &stream).unwrap();
    driver.take();
    staging.enqueue_to_device(0..1000, &second, &other).unwrap();
    let calls = driver.take();
    let wait = calls.iter().position(|call| matches!(call, Call::Wait { .. })).unwrap();
    let copy = calls.iter().position(|call| matches!(call, Call::Copy { .. })).unwrap();
    assert!(wait < copy, "{calls:?}");
}

#[test]
fn copies_must_fit() {
    let Setup { pinned, stream, buffer, .. } = setup(ByteSize::mib(16));
    let mut staging = pinned.take_now(HostKind::Upload, 100).unwrap();
    assert!(staging.enqueue_to_device(0..100, &buffer.view(0..99).unwrap(), &stream).is_err());
    assert!(staging.enqueue_to_device(50..101, &buffer.view(0..51).unwrap(), &stream).is_err());
    assert!(staging.set_len(5000).is_err());
    staging.set_len(4096).unwrap();
    assert!(staging.copy_to_device(&buffer, &stream).is_err());
    let empty = pinned.take_now(HostKind::Upload, 0).unwrap();
    assert_eq!(block_on(empty.copy_to_device(&buffer.view(0..0).unwrap(), &stream).unwrap()).unwrap().len(), 0);
}

#[test]
fn beyond_the_limit_refused_now_or_given_later() {
    let Setup { pinned, device, .. } = setup(ByteSize::mib(1));
    let first = pinned.take_now(HostKind::Upload, 700 << 10).unwrap();
    let error = pinned.take_now(HostKind::Upload, 500 << 10).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of pinned host memory: wanted 500 KiB, 768 KiB in use of 1 MiB; raise millpond.pinned_bytes"
    );
    drop(pinned.take_now(HostKind::Download, 64 << 10).unwrap());
    {
        let mut later = pin!(pinned.take(HostKind::Upload, 500 << 10));
        let mut context = Context::from_waker(Waker::noop());
        assert!(later.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(matches!(later.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    }
    assert!(block_on(pinned.take(HostKind::Upload, 2 << 20)).unwrap_err().is_out_of_memory());
    assert!(pinned.take_now(HostKind::Upload, usize::MAX).unwrap_err().is_out_of_memory());
    assert_eq!((device.counters().feed_waits, device.counters().host_waits), (1, 0));
}

#[test]
fn waiting_takers_are_woken_by_what_comes_back() {
    let Setup { driver, pinned, stream, buffer, .. } = setup(ByteSize::mib(1));
    driver.hold();
    let staging = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
    drop(staging.copy_to_device(&buffer, &stream).unwrap());
    std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let pinned = &pinned;
                scope.spawn(move || block_on(pinned.take(HostKind::Upload, 1 << 20)).map(drop))
            })
            .collect();
        driver.release();
        for taker in takers {
            taker.join().unwrap().unwrap();
        }
    });
    assert_eq!(host_allocs(&driver.take()), 1);
}

#[test]
fn idle_memory_of_other_classes_makes_room() {
    let Setup { driver, pinned, .. } = setup(ByteSize::mib(1));
    drop(pinned.take_now(HostKind::Upload, 600 << 10).unwrap());
    driver.take();
    let other = pinned.take_now(HostKind::Download, 900 << 10).unwrap();
    assert!(matches!(driver.take()[..], [Call::HostFree, Call::HostAlloc { .. }]));
    assert!(pinned.statistics().held <= ByteSize::mib(1));
    drop(other);
}

#[test]
fn a_lost_device_keeps_what_it_may_still_write() {
    let Setup { driver, device, pinned, stream, buffer } = setup(ByteSize::mib(16));
    driver.hold();
    let pending = pinned.take_now(HostKind::Download, 1 << 20).unwrap().copy_to_host(&buffer, &stream).unwrap();
    driver.fail("event_query", 1, DriverCode::ECC_UNCORRECTABLE);
    assert!(block_on(pending).unwrap_err().is_device_lost());
    while pinned.statistics().lent > ByteSize::ZERO {
        std::thread::yield_now();
    }
    assert!(device.is_lost());
    assert!(pinned.take_now(HostKind::Download, 1 << 20).unwrap_err().is_device_lost());
    assert!(block_on(pinned.take(HostKind::Upload, 1)).unwrap_err().is_device_lost());
    driver.take();
    drop((pinned, buffer, stream, device));
    assert!(!driver.take().contains(&Call::HostFree));
}

#[test]
fn uploads_and_downloads_are_counted_where_they_belong() {
    let Setup { device, pinned, stream, buffer, .. } = setup(ByteSize::mib(16));
    let query = device.scope().child("query");
    let on = stream.with_scope(&query);
    buffer.view(0..100).unwrap().upload_from(&[1; 100], &on, &pinned).unwrap();
    let home = buffer.view(0..50).unwrap().download_vec(&on, &pinned).unwrap();
    assert_eq!(block_on(home).unwrap().len(), 50);
    let staging = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
    drop(block_on(staging.copy_to_device(&buffer, &on).unwrap()).unwrap());
    let counters = query.counters();
    assert_eq!((counters.uploads, counters.uploaded_bytes), (2, 100 + (1 << 20)));
    assert_eq!((counters.downloads, counters.downloaded_bytes), (1, 50));
    assert_eq!((counters.host_waits, counters.feed_waits), (1, 1));
}

#[test]
fn an_upload_beyond_the_limit_is_refused() {
    let Setup { pinned, stream, buffer, device, .. } = setup(ByteSize::kib(256));
    assert!(buffer.upload_from(&vec![3; 1 << 20], &stream, &pinned).unwrap_err().is_out_of_memory());
    assert_eq!((pinned.statistics().held, device.counters().uploads), (ByteSize::ZERO, 0));
}

#[test]
fn refused_memory_is_asked_for_again_without_what_is_free() {
    let Setup { driver, pinned, .. } = setup(ByteSize::mib(64));
    drop(pinned.take_now(HostKind::Upload, 1 << 20).unwrap());
    drop(pinned.take_now(HostKind::Download, 2 << 20).unwrap());
    driver.take();
    driver.fail("host_alloc", 1, DriverCode::OUT_OF_MEMORY);
    let buffer = pinned.take_now(HostKind::Upload, 3 << 20).unwrap();
    assert!(matches!(driver.take()[..], [Call::HostFree, Call::HostFree, Call::HostAlloc { .. }]));
    let statistics = pinned.statistics();
    assert_eq!((statistics.held, statistics.lent, statistics.pageable), (ByteSize::mib(3), ByteSize::mib(3), 0));
    drop(buffer);
}

#[test]
fn without_page_locked_memory_copies_go_through_ordinary_memory() {
    for code in [DriverCode::OUT_OF_MEMORY, DriverCode::OPERATING_SYSTEM] {
        let Setup { driver, pinned, stream, buffer, .. } = setup(ByteSize::mib(4));
        driver.fail("host_alloc", u32::MAX, code);
        let mut staging = pinned.take_now(HostKind::Upload, 1 << 20).unwrap();
        staging.write().unwrap().fill(7);
        block_on(staging.copy_to_device(&buffer, &stream).unwrap()).unwrap();
        assert!(driver.take().iter().any(|call| matches!(call, Call::Copy { len, .. } if *len == 1 << 20)));
        let statistics = pinned.statistics();
        assert_eq!((statistics.held, statistics.lent, statistics.pageable), (ByteSize::ZERO, ByteSize::ZERO, 1));
        // The limit still bounds memory in flight.
        let held = pinned.take_now(HostKind::Upload, 4 << 20).unwrap();
        assert!(matches!(pinned.take_now(HostKind::Upload, 1 << 20), Err(MemoryError::PinnedExhausted { .. })));
        drop(held);
        // Page-locked memory is requested each time, since it may be available again.
        driver.fail("host_alloc", 0, code);
        drop(pinned.take_now(HostKind::Upload, 1 << 20).unwrap());
        assert_eq!(pinned.statistics().held, ByteSize::mib(1));
    }
}

#[test]
fn other_errors_of_pinned_memory_are_told() {
    let Setup { driver, device, pinned, .. } = setup(ByteSize::mib(4));
    driver.fail("host_alloc", 1, DriverCode::INVALID_VALUE);
    let error = pinned.take_now(HostKind::Upload, 1 << 20).unwrap_err();
    assert_eq!(error.driver_code(), Some(DriverCode::INVALID_VALUE));
    assert_eq!((pinned.statistics().held, pinned.statistics().lent), (ByteSize::ZERO, ByteSize::ZERO));
    driver.fail("host_alloc", 1, DriverCode::ECC_UNCORRECTABLE);
    assert!(pinned.take_now(HostKind::Upload, 1 << 20).unwrap_err().is_device_lost() && device.is_lost());
}

#[test]
fn no_host_memory_at_all_is_the_hosts_trouble() {
    let error = MemoryError::PinnedRefused { wanted: ByteSize::mib(1), refused: "cuMemHostAlloc failed".into() };
    assert!(!error.is_out_of_memory());
    assert_eq!(
        error.to_string(),
        "out of host memory: 1 MiB of pinned memory were refused (cuMemHostAlloc failed), and ordinary memory has no room \
         either; lower millpond.pinned_bytes or millpond.batch_bytes, or end other programs"
    );
}

/// Bytes are uploaded and downloaded correctly, whichever allocation of pinned memory fails, and for any duration.
#[test]
fn bytes_are_right_without_pinned_memory() {
    for lasts in [FailureLasts::Once, FailureLasts::UntilFree, FailureLasts::Forever] {
        for nth in 1..=4 {
            let fail_calls = vec![FailCall::new(CallKind::AllocatePinned, nth, lasts)];
            let driver = SimDriver::new(SimOptions { seed: nth, fail_calls, ..SimOptions::default() });
            {
                let device = Device::open(driver.clone(), 0).unwrap();
                let pool = MemoryPool::builder(&device).build().unwrap();
                let pinned = PinnedPool::builder(&device).max_bytes(ByteSize::mib(1)).build();
                let stream = Stream::new(&device).unwrap();
                let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
                let buffer = DeviceBuffer::new(bytes.len(), &stream, &pool).unwrap();
                let mut staging = block_on(pinned.take(HostKind::Upload, bytes.len())).unwrap();
                staging.write().unwrap().copy_from_slice(&bytes);
                drop(block_on(staging.copy_to_device(&buffer, &stream).unwrap()).unwrap());
                let home = buffer.download_vec(&stream, &pinned).unwrap();
                assert_eq!(block_on(home).unwrap(), bytes);
            }
            assert_eq!(driver.take_findings(), []);
        }
    }
}
