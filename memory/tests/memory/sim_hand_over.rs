//! Buffers that pass between streams and the host: correct chains are silent, and each way to break one is found.

use super::sim_rig::{DEVICE, Rig, seeds};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::driver::*;
use std::num::NonZeroUsize;
use std::panic::Location;

const BYTES: usize = 4096;

// 1. Cases without a finding.

#[test]
fn one_stream_needs_nothing_more() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.fill(a, 7, BYTES, s);
        assert_eq!(rig.fetch(a, BYTES, s), [7; BYTES]);
        rig.free(a, s);
        assert_eq!(rig.close(), []);
    }
}

/// Allocated, used and freed on three streams: an event says "ready", another says "done" (S1.10).
#[test]
fn three_streams_hand_over_by_events() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2, s3) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        rig.order(s1, s2);
        rig.fill(a, 1, BYTES, s2);
        rig.order(s2, s3);
        rig.free(a, s3);
        rig.assert_silent();
    }
}

#[test]
fn two_readers_are_both_waited_for() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
        let buffer = rig.alloc(BYTES, a);
        rig.fill(buffer, 3, BYTES, a);
        rig.order(a, b);
        rig.order(a, c);
        let from_b = rig.download(buffer, BYTES, b);
        let from_c = rig.download(buffer, BYTES, c);
        rig.order(b, a);
        rig.order(c, a);
        rig.fill(buffer, 4, BYTES, a);
        rig.free(buffer, a);
        for stream in [a, b, c] {
            rig.sync(stream);
        }
        assert_eq!((rig.look(&from_b), rig.look(&from_c)), (vec![3; BYTES], vec![3; BYTES]));
        rig.assert_silent();
    }
}

/// After the host has waited for the allocation, any stream may use it (S0.9).
#[test]
fn a_host_wait_orders_every_stream() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        rig.sync(s1);
        rig.fill(a, 1, BYTES, s2);
        let done = rig.record(s2);
        rig.driver.event_synchronize(done).unwrap();
        rig.free(a, s1);
        rig.assert_silent();
    }
}

#[test]
fn a_query_that_says_done_orders_like_a_wait() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        let ready = rig.record(s1);
        while !rig.driver.event_query(ready).unwrap() {}
        rig.fill(a, 1, BYTES, s2);
        while !rig.driver.stream_query(s2).unwrap() {}
        rig.free(a, s1);
        rig.assert_silent();
    }
}

#[test]
fn disjoint_parts_are_written_by_several_streams() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let home = rig.stream();
        let a = rig.alloc(8 * BYTES, home);
        let streams: Vec<_> = (0..8).map(|_| rig.stream()).collect();
        for (i, &stream) in streams.iter().enumerate() {
            rig.order(home, stream);
            rig.fill(a.offset(i * BYTES), i as u8, BYTES, stream);
        }
        for &stream in &streams {
            rig.order(stream, home);
        }
        let bytes = rig.fetch(a, 8 * BYTES, home);
        assert!(bytes.chunks(BYTES).enumerate().all(|(i, part)| part.iter().all(|&b| b == i as u8)));
        rig.free(a, home);
        rig.assert_silent();
    }
}

/// Recording an event again does not change what an earlier wait waited for.
#[test]
fn a_wait_keeps_what_it_saw_when_the_event_is_recorded_again() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        let event = rig.record(s1);
        rig.wait(s2, event);
        let b = rig.alloc(BYTES, s1);
        rig.driver.event_record(event, s1, Location::caller()).unwrap();
        rig.fill(a, 1, BYTES, s2);
        rig.assert_silent();
        rig.fill(b, 1, BYTES, s2);
        // The first `assert_silent` waited for everything, so the fill of `b` is ordered by the host.
        rig.assert_silent();
    }
}

#[test]
fn memory_without_a_stream_may_be_used_at_once_and_freed_in_stream_order() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let bytes = NonZeroUsize::new(BYTES).unwrap();
        let a = rig.driver.alloc_sync(DEVICE, bytes, Location::caller()).unwrap();
        rig.fill(a, 1, BYTES, s);
        rig.free(a, s);
        let b = rig.driver.alloc_sync(DEVICE, bytes, Location::caller()).unwrap();
        rig.fill(b, 1, BYTES, s);
        rig.driver.free_sync(b, Location::caller()).unwrap();
        assert_eq!(rig.close(), []);
    }
}

#[test]
fn words_tell_the_host_that_work_is_over() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.fill(a, 9, BYTES, s);
        let result = rig.download(a, BYTES, s);
        let word = rig.host(4);
        word.block().claim_words().unwrap();
        rig.driver.write_word(&word, 1, s, Location::caller()).unwrap();
        loop {
            rig.driver.host_access(&word, Access::Atomic, Location::caller());
            if word.block().load_word(0).unwrap() == 1 {
                break;
            }
        }
        rig.driver.host_access(&word, Access::Atomic, Location::caller());
        assert_eq!(rig.look(&result), [9; BYTES]);
        rig.free(a, s);
        rig.assert_silent();
    }
}

// 2. Cases with a finding: one test for each way to break a hand-over, found under every seed.

#[test]
fn use_before_the_allocation_is_ordered() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        let (line, here) = (line!() + 1, file!());
        rig.fill(a, 1, BYTES, s2);
        let finding = rig.only_finding(FindingKind::UseBeforeAllocation);
        assert_eq!((finding.stream, finding.earlier_stream), (Some(s2), Some(s1)));
        assert_eq!(finding.site.map(|site| (site.file(), site.line())), Some((here, line)));
        assert_eq!(finding.earlier_site.map(Location::line), Some(line - 2));
        assert_eq!(finding.seed, Some(seed));
    }
}

#[test]
fn use_after_free_in_program_order() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.free(a, s);
        // Invalid even if the device has not reached the free (S1.9).
        let error = rig.driver.fill(a, 1, BYTES, s, Location::caller()).unwrap_err();
        assert_eq!(error.code, DriverCode::INVALID_VALUE);
        rig.only_finding(FindingKind::UseAfterFree);
    }
}

#[test]
fn free_not_after_the_last_use() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        rig.fill(a, 1, BYTES, s1);
        rig.order(s1, s2);
        let _copy = rig.download(a, BYTES, s2);
        rig.free(a, s1);
        let finding = rig.only_finding(FindingKind::UnorderedFree);
        assert_eq!((finding.stream, finding.earlier_stream), (Some(s1), Some(s2)));
        assert!(finding.message.contains("download"), "{finding}");
    }
}

#[test]
fn free_before_the_allocation_is_ordered() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        rig.free(a, s2);
        let finding = rig.only_finding(FindingKind::UnorderedFree);
        assert!(finding.message.contains("allocation on stream"), "{finding}");
    }
}

#[test]
fn double_free() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.free(a, s);
        if seed % 2 == 0 {
            rig.sync(s);
        }
        assert!(rig.driver.free_async(a, s, Location::caller()).is_err());
        rig.only_finding(FindingKind::DoubleFree);
    }
}

#[test]
fn foreign_frees() {
    let rig = Rig::with(SimOptions { devices: 2, ..SimOptions::default() });
    let s = rig.stream();
    let other = rig.driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap();
    let a = rig.alloc(BYTES, s);
    let plain = rig.driver.alloc_sync(DEVICE, NonZeroUsize::new(BYTES).unwrap(), Location::caller()).unwrap();
    for (ptr, stream) in [(DevicePtr(0xdead_0000), s), (a.offset(256), s), (plain, other)] {
        assert!(rig.driver.free_async(ptr, stream, Location::caller()).is_err());
        rig.only_finding(FindingKind::ForeignFree);
    }
    rig.free(plain, s);
    // Memory of a pool may be freed on any stream that is ordered after its uses.
    rig.free(a, other);
    let b = rig.alloc(BYTES, s);
    let event = rig.record(s);
    rig.wait(other, event);
    rig.free(b, other);
    rig.assert_silent();
    let c = rig.alloc(BYTES, s);
    rig.free(c, other);
    rig.only_finding(FindingKind::UnorderedFree);
}

#[test]
fn unordered_pairs_of_reads_and_writes() {
    type Op = fn(&Rig, DevicePtr, StreamHandle);
    let write: Op = |rig, ptr, s| rig.fill(ptr, 1, BYTES, s);
    let read: Op = |rig, ptr, s| drop(rig.download(ptr, BYTES, s));
    for (first, second, words) in
        [(write, write, ["writes", "writes"]), (write, read, ["reads", "writes"]), (read, write, ["writes", "reads"])]
    {
        for seed in seeds() {
            let rig = Rig::new(seed);
            let (home, s1, s2) = (rig.stream(), rig.stream(), rig.stream());
            let a = rig.alloc(BYTES, home);
            rig.fill(a, 0, BYTES, home);
            rig.order(home, s1);
            rig.order(home, s2);
            first(&rig, a, s1);
            second(&rig, a, s2);
            let finding = rig.only_finding(FindingKind::UnorderedAccess);
            assert_eq!((finding.stream, finding.earlier_stream), (Some(s2), Some(s1)), "{finding}");
            let [this, before] = words;
            assert!(finding.message.contains(&format!("on stream {} {this}", s2.0)), "{finding}");
            assert!(finding.message.ends_with(&format!("which {before} them")), "{finding}");
        }
    }
}

/// Two streams read, and the writer waits only for the last: the bug of tracking a single reader.
#[test]
fn a_lost_reader() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
        let buffer = rig.alloc(BYTES, a);
        rig.fill(buffer, 3, BYTES, a);
        rig.order(a, b);
        rig.order(a, c);
        let _from_b = rig.download(buffer, BYTES, b);
        let _from_c = rig.download(buffer, BYTES, c);
        rig.order(c, a);
        rig.fill(buffer, 4, BYTES, a);
        let finding = rig.only_finding(FindingKind::UnorderedAccess);
        assert_eq!(finding.earlier_stream, Some(b));
    }
}

#[test]
fn an_event_recorded_again_orders_only_what_came_before_its_last_record() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2, s3) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(BYTES, s1);
        let event = rig.record(s1);
        // Recorded again on another stream before any wait: the order after the allocation is lost.
        rig.driver.event_record(event, s3, Location::caller()).unwrap();
        rig.wait(s2, event);
        rig.fill(a, 1, BYTES, s2);
        rig.only_finding(FindingKind::UseBeforeAllocation);
    }
}

#[test]
fn a_free_without_a_stream_needs_the_host_to_have_waited() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.fill(a, 1, BYTES, s);
        rig.sync(s);
        rig.driver.free_sync(a, Location::caller()).unwrap();
        rig.assert_silent();
        let b = rig.alloc(BYTES, s);
        rig.sync(s);
        rig.fill(b, 1, BYTES, s);
        rig.driver.free_sync(b, Location::caller()).unwrap();
        let finding = rig.only_finding(FindingKind::UnorderedFree);
        assert!(finding.message.contains("fill"), "{finding}");
    }
}

#[test]
fn the_host_reads_before_the_download_is_over() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        rig.fill(a, 7, BYTES, s);
        let span = rig.download(a, BYTES, s);
        rig.look(&span);
        rig.only_finding(FindingKind::HostRace);
        assert_eq!(rig.look(&span), [7; BYTES]);
        rig.assert_silent();
    }
}

#[test]
fn the_host_writes_while_an_upload_reads() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        let span = rig.upload(&[1; BYTES], a, s);
        rig.driver.host_access(&span, Access::Read, Location::caller());
        rig.driver.host_access(&span, Access::Write, Location::caller());
        let finding = rig.only_finding(FindingKind::HostRace);
        assert!(finding.message.contains("upload"), "{finding}");
    }
}

#[test]
fn pinned_memory_freed_in_flight() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        let span = rig.upload(&[1; BYTES], a, s);
        rig.host_free(&span);
        rig.only_finding(FindingKind::HostRace);
        let again = rig.upload(&[1; BYTES], a, s);
        rig.sync(s);
        rig.host_free(&again);
        rig.assert_silent();
    }
}

#[test]
fn two_streams_meet_in_pinned_memory() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let (s1, s2) = (rig.stream(), rig.stream());
        let (a, b) = (rig.alloc(BYTES, s1), rig.alloc(BYTES, s2));
        rig.fill(a, 1, BYTES, s1);
        let span = rig.download(a, BYTES, s1);
        // The upload on the other stream does not wait for the download that produces its bytes.
        rig.driver.copy(&CopyOp::HostToDevice { from: span, to: b }, s2, Location::caller()).unwrap();
        rig.only_finding(FindingKind::UnorderedAccess);
    }
}

#[test]
fn a_download_of_bytes_that_nothing_wrote() {
    for seed in seeds() {
        let rig = Rig::new(seed);
        let s = rig.stream();
        let a = rig.alloc(BYTES, s);
        let b = rig.alloc(BYTES, s);
        rig.fill(a, 1, 100, s);
        // Device copies propagate the initialized state; only a read of uninitialized bytes is reported.
        rig.copy(a, b, BYTES, s);
        let bytes = rig.fetch(b, 101, s);
        assert_eq!((bytes[99], bytes[100]), (1, 0xCD), "poison");
        let finding = rig.only_finding(FindingKind::Uninitialised);
        assert!(finding.message.contains("byte 100 of"), "{finding}");
        assert_eq!(rig.fetch(b, 100, s), [1; 100]);
        rig.assert_silent();
    }
}

#[test]
fn a_wait_for_an_event_that_was_never_recorded() {
    let rig = Rig::new(1);
    let s = rig.stream();
    let event = rig.driver.event_create(DEVICE, EventFlags::ORDER).unwrap();
    assert!(rig.driver.event_query(event).unwrap(), "nothing to wait for");
    rig.wait(s, event);
    let finding = rig.only_finding(FindingKind::UnrecordedEvent);
    assert_eq!(finding.stream, Some(s));
}

#[test]
fn leaks_at_the_end_of_a_scope_a_pool_and_a_device() {
    let rig = Rig::new(5);
    let s = rig.stream();
    let outside = rig.alloc(BYTES, s);
    let scope = rig.driver.scope();
    let inside = rig.alloc(BYTES, s);
    let gone = rig.alloc(BYTES, s);
    rig.free(gone, s);
    assert_eq!(rig.driver.end_scope(scope), 1);
    let finding = rig.only_finding(FindingKind::Leak);
    assert!(finding.message.contains(&format!("{:#x}", inside.0)), "{finding}");
    assert!(finding.site.is_some_and(|site| site.file() == file!()));

    rig.free(inside, s);
    rig.driver.pool_destroy(rig.pool).unwrap();
    let finding = rig.only_finding(FindingKind::Leak);
    assert!(finding.message.contains(&format!("{:#x}", outside.0)), "{finding}");
    rig.free(outside, s);
    rig.assert_silent();

    let bytes = NonZeroUsize::new(BYTES).unwrap();
    let _kept = rig.driver.alloc_sync(DEVICE, bytes, Location::caller()).unwrap();
    let _pinned = rig.host(64);
    let kinds: Vec<_> = rig.close().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Leak, FindingKind::Leak]);
}

#[test]
fn handles_after_their_end_and_on_the_wrong_device() {
    let rig = Rig::with(SimOptions { devices: 2, ..SimOptions::default() });
    let s = rig.stream();
    let a = rig.alloc(BYTES, s);
    rig.free(a, s);
    rig.driver.stream_destroy(s).unwrap();
    let finding = rig.only_finding(FindingKind::Handle);
    assert!(finding.message.contains("frees that nobody has waited for"), "{finding}");
    assert_eq!(rig.driver.stream_synchronize(s).unwrap_err().code, DriverCode::INVALID_HANDLE);
    rig.only_finding(FindingKind::Handle);

    let t = rig.stream();
    let foreign = rig.driver.event_create(DeviceId(1), EventFlags::ORDER).unwrap();
    let error = rig.driver.event_record(foreign, t, Location::caller()).unwrap_err();
    assert_eq!(error.code, DriverCode::INVALID_HANDLE);
    rig.only_finding(FindingKind::Handle);
    rig.driver.event_destroy(foreign).unwrap();
    assert!(rig.driver.event_query(foreign).is_err());
    rig.only_finding(FindingKind::Handle);
}

#[test]
fn ranges_beyond_a_buffer() {
    let rig = Rig::new(2);
    let s = rig.stream();
    let a = rig.alloc(BYTES, s);
    assert!(rig.driver.fill(a.offset(1), 0, BYTES, s, Location::caller()).is_err());
    let finding = rig.only_finding(FindingKind::OutOfBounds);
    assert!(finding.message.contains("bytes 1..4097"), "{finding}");
    assert!(rig.driver.fill(DevicePtr(0x1234_5678), 0, 1, s, Location::caller()).is_err());
    rig.only_finding(FindingKind::OutOfBounds);
}
