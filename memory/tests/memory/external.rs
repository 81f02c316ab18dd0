//! External streams: nothing is assumed about their work, and nothing of theirs is destroyed.

use std::panic::Location;
use std::sync::Arc;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::*;
use millpond_memory::graph;
use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryError, MemoryPool, PinnedPool, Strategy, Stream, Waited};

const DEVICE: DeviceId = DeviceId(0);

struct Rig {
    driver: Arc<SimDriver>,
    device: Device,
    pool: MemoryPool,
}

fn rig_with(options: SimOptions, strategy: Strategy) -> Rig {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).strategy(strategy).limit(ByteSize::mib(256)).build().unwrap();
    Rig { driver, device, pool }
}

fn rig() -> Rig {
    rig_with(SimOptions { seed: 3, ..SimOptions::default() }, Strategy::CudaAsync)
}

impl Rig {
    /// An external stream, and our handle for it.
    fn theirs(&self) -> (StreamHandle, Stream) {
        let handle = self.driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        (handle, self.wrap(handle.0))
    }

    fn wrap(&self, raw: u64) -> Stream {
        self.try_wrap(raw).unwrap()
    }

    #[expect(unsafe_code, reason = "a stream of the simulated device's, which checks handles")]
    fn try_wrap(&self, raw: u64) -> millpond_memory::Result<Stream> {
        // SAFETY: the simulated device checks handles; the tests keep the streams they use.
        unsafe { millpond_memory::ffi::wrap_stream(&self.device, raw) }
    }

    fn fill(&self, buffer: &DeviceBuffer, byte: u8, on: StreamHandle) {
        self.driver.fill(buffer.address(), byte, buffer.len(), on, Location::caller()).unwrap();
    }

    /// Drops everything created by this crate; external streams are then destroyed by their owner.
    fn end(self, theirs: &[StreamHandle]) {
        let Rig { driver, device, pool } = self;
        device.synchronize().unwrap();
        drop(pool);
        device.synchronize().unwrap();
        for stream in theirs {
            driver.stream_destroy(*stream).unwrap();
        }
        assert!(device.take_errors().is_empty());
        drop(device);
        assert_eq!(driver.take_findings(), []);
    }
}

#[test]
fn a_handle_gives_the_same_stream_again_and_is_never_destroyed() {
    let rig = rig();
    let (handle, stream) = rig.theirs();
    assert_eq!(rig.wrap(handle.0), stream);
    assert!(stream.is_external() && !Stream::new(&rig.device).unwrap().is_external());
    let (other, other_stream) = rig.theirs();
    assert_ne!(other_stream, stream);
    let Rig { driver, device, pool } = rig;
    drop((pool, stream, other_stream, device));
    // Closing the device has not destroyed them.
    for handle in [handle, other] {
        driver.stream_destroy(handle).unwrap();
    }
    assert_eq!(driver.take_findings(), []);
}

/// External submissions are not counted, so two requests for one position need two events.
#[test]
fn every_hand_over_from_their_stream_records_a_fresh_event() {
    let rig = rig();
    let (handle, theirs) = rig.theirs();
    let ours = Stream::new(&rig.device).unwrap();
    let buffer = DeviceBuffer::zeroed(1024, &ours, &rig.pool).unwrap();
    theirs.wait_for(ours.position()).unwrap();
    for byte in 1..4 {
        rig.fill(&buffer, byte, handle); // Submitted by the owner, invisible to this crate.
        let before = rig.device.counters();
        assert_eq!(ours.wait_for(theirs.position()).unwrap(), Waited::Inserted);
        assert_eq!(rig.device.counters().since(&before).events_recorded, 1);
        buffer.fill(0, &ours).unwrap();
        // The reverse direction: our work is counted, so an unchanged position costs nothing.
        let position = ours.position();
        assert_eq!(theirs.wait_for(position).unwrap(), Waited::Inserted);
        assert_eq!(theirs.wait_for(position).unwrap(), Waited::Elided);
    }
    drop(buffer);
    rig.end(&[handle]);
}

#[test]
fn a_wait_for_their_stream_is_never_elided() {
    let rig = rig();
    let (handle, theirs) = rig.theirs();
    let ours = Stream::new(&rig.device).unwrap();
    let early = theirs.position();
    assert_eq!(ours.wait_for(early).unwrap(), Waited::Inserted);
    assert!(ours.is_after(early), "this very point was waited for");
    assert_eq!(ours.wait_for(early).unwrap(), Waited::Inserted, "and may stand for less than is there by now");
    assert!(!ours.is_after(theirs.position()), "a point asked for now is a new one");
    theirs.synchronize().unwrap();
    assert!(ours.is_after(early));
    assert!(!ours.is_after(theirs.position()), "the host saw what was there then, not what is there now");
    rig.end(&[handle]);
}

/// PyTorch's default: handle 0, which has an alias.
#[test]
fn the_legacy_default_stream_works_like_any_other() {
    let rig = rig();
    let default = rig.wrap(0);
    assert_eq!(rig.wrap(1), default);
    let ours = Stream::new(&rig.device).unwrap();
    let pinned = PinnedPool::builder(&rig.device).build();
    let buffer = DeviceBuffer::upload(&[1, 2, 3, 4], &default, &rig.pool, &pinned).unwrap();
    buffer.fill(7, &ours).unwrap();
    assert_eq!(buffer.download_vec(&default, &pinned).unwrap().wait().unwrap(), [7; 4]);
    drop((buffer, pinned));
    rig.end(&[]);
}

#[test]
fn the_per_thread_default_stream_and_nonsense_are_refused() {
    let rig = rig();
    let words = rig.try_wrap(2).unwrap_err().to_string();
    assert!(words.contains("per-thread default stream is another stream in every thread"), "{words}");
    let words = rig.try_wrap(0xdead_beef).unwrap_err().to_string();
    assert!(words.contains("invalid handle (400)"), "{words}");
    rig.end(&[]);
}

/// Work ordered behind a stream that was given up stays so, and nothing more can be submitted to it.
#[test]
fn a_stream_that_is_given_up_keeps_its_last_point() {
    let rig = rig();
    let (handle, theirs) = rig.theirs();
    let ours = Stream::new(&rig.device).unwrap();
    let buffer = DeviceBuffer::zeroed(512, &theirs, &rig.pool).unwrap();
    rig.fill(&buffer, 1, handle);
    theirs.give_up().unwrap();
    theirs.give_up().unwrap();
    rig.driver.stream_destroy(handle).unwrap();
    assert!(theirs.is_gone());
    let refused = theirs.submit(|_, _| Ok(())).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{} was given up by its owner: nothing can be submitted to it", theirs.id())
    );
    assert!(matches!(refused, MemoryError::StreamGone { .. }));
    // The buffer was last used there: the next use, and the free, are ordered after that use.
    buffer.fill(2, &ours).unwrap();
    drop(buffer);
    assert!(rig.try_wrap(handle.0).is_err(), "forgotten, and no stream any more");
    rig.end(&[]);
}

/// The owner did not give the stream up, and another stream now has the handle: the host waits for the old one's work.
#[test]
fn a_handle_that_came_back_is_another_stream() {
    let rig =
        rig_with(SimOptions { seed: 8, reuse_stream_handles: true, ..SimOptions::default() }, Strategy::CudaAsync);
    let (handle, first) = rig.theirs();
    let buffer = DeviceBuffer::zeroed(512, &first, &rig.pool).unwrap();
    rig.fill(&buffer, 1, handle);
    rig.driver.stream_destroy(handle).unwrap();
    let (again, second) = rig.theirs();
    assert_eq!(again, handle);
    assert_ne!(second, first, "a handle is no identity");
    assert!(first.is_gone() && !second.is_gone());
    buffer.fill(2, &second).unwrap();
    drop(buffer);
    rig.end(&[again]);
}

#[test]
fn buffers_are_freed_behind_what_their_stream_got_behind_our_back() {
    for strategy in Strategy::ALL {
        let rig = rig_with(SimOptions { seed: 11, ..SimOptions::default() }, strategy);
        let (handle, theirs) = rig.theirs();
        let ours = Stream::new(&rig.device).unwrap();
        for _ in 0..8 {
            let a = DeviceBuffer::zeroed(4096, &theirs, &rig.pool).unwrap();
            let b = DeviceBuffer::new(4096, &ours, &rig.pool).unwrap();
            a.copy_to(b.as_view(), &ours).unwrap();
            rig.fill(&a, 1, handle_after(&theirs, &ours, handle));
        }
        rig.end(&[handle]);
    }
}

/// The owner orders its stream behind ours, as it must before it accesses memory that ours used.
fn handle_after(theirs: &Stream, ours: &Stream, handle: StreamHandle) -> StreamHandle {
    theirs.wait_for(ours.position()).unwrap();
    handle
}

mod captured {
    use super::*;

    fn begin(rig: &Rig, handle: StreamHandle) {
        rig.driver.stream_capture_begin(handle, CaptureMode::Global).unwrap();
    }

    fn end(rig: &Rig, handle: StreamHandle) {
        let graph = rig.driver.stream_capture_end(handle).expect("nothing of ours broke the capture");
        rig.driver.graph_destroy(graph).unwrap();
    }

    /// Refused before any driver call, so the capture continues.
    #[test]
    fn everything_on_a_captured_stream_is_refused_and_the_capture_lives() {
        for strategy in Strategy::ALL {
            let rig = rig_with(SimOptions::default(), strategy);
            let (handle, theirs) = rig.theirs();
            let ours = Stream::new(&rig.device).unwrap();
            let buffer = DeviceBuffer::zeroed(256, &theirs, &rig.pool).unwrap();
            assert_eq!(theirs.capture_status().unwrap(), CaptureStatus::None);
            let at = theirs.position();
            begin(&rig, handle);
            assert!(matches!(theirs.capture_status().unwrap(), CaptureStatus::Active { .. }));
            let refused: [(&str, MemoryError); 7] = [
                ("an allocation", DeviceBuffer::new(100, &theirs, &rig.pool).unwrap_err()),
                ("work", buffer.fill(1, &theirs).unwrap_err()),
                ("an event", theirs.record().unwrap_err()),
                ("an event", ours.wait_for(at).unwrap_err()),
                ("a wait", theirs.wait_for(ours.position()).and_then(|_| theirs.submit(|_, _| Ok(()))).unwrap_err()),
                ("a wait of the host", theirs.synchronize().unwrap_err()),
                ("a wait for the device", rig.device.synchronize().unwrap_err()),
            ];
            for (what, error) in refused {
                assert!(error.is_capturing(), "{strategy}: {error}");
                let words = error.to_string();
                let ends = "do it before the capture begins or after it has ended";
                assert!(words.ends_with(ends), "{words}");
                assert!(words.starts_with(what) || what == "a wait", "{strategy}: {words}");
            }
            // Our own streams continue meanwhile, behind positions that are already ordered.
            assert!(matches!(rig.pool.trim_to(ByteSize::ZERO), Err(error) if error.is_capturing()));
            end(&rig, handle);
            buffer.fill(1, &theirs).unwrap();
            drop(buffer);
            rig.end(&[handle]);
        }
    }

    /// A query of its ID would break the capture.
    #[test]
    fn a_captured_stream_is_known_by_its_handle() {
        let rig = rig();
        let (known, before) = rig.theirs();
        let new = rig.driver.stream_create(rig.device.id(), StreamPriority::Normal).unwrap();
        for handle in [known, new] {
            begin(&rig, handle);
        }
        assert_eq!(rig.wrap(known.0).id(), before.id());
        let seen = rig.wrap(new.0);
        assert!(matches!(seen.capture_status().unwrap(), CaptureStatus::Active { .. }));
        assert_eq!(rig.wrap(new.0).id(), seen.id());
        for handle in [known, new] {
            end(&rig, handle);
        }
        // The second stream's ID is queried now, and it stays the same stream.
        assert_eq!(rig.wrap(new.0).id(), seen.id());
        seen.give_up().unwrap();
        before.give_up().unwrap();
        rig.end(&[known, new]);
    }

    /// The free of memory last used by the captured stream waits for the end of the capture.
    #[test]
    fn frees_are_put_off_until_the_capture_is_over() {
        for strategy in Strategy::ALL {
            let rig = rig_with(SimOptions { seed: 21, ..SimOptions::default() }, strategy);
            let (handle, theirs) = rig.theirs();
            let ours = Stream::new(&rig.device).unwrap();
            let buffer = DeviceBuffer::zeroed(1 << 20, &theirs, &rig.pool).unwrap();
            let shared = DeviceBuffer::zeroed(1 << 20, &ours, &rig.pool).unwrap();
            shared.fill(1, &theirs).unwrap();
            begin(&rig, handle);
            drop((buffer, shared));
            assert_eq!((rig.pool.frees_put_off(), rig.pool.used_bytes()), (2, ByteSize::mib(2)), "{strategy}");
            rig.pool.finish_frees();
            assert_eq!(rig.pool.frees_put_off(), 2, "still captured");
            end(&rig, handle);
            drop(DeviceBuffer::zeroed(256, &ours, &rig.pool).unwrap());
            assert_eq!((rig.pool.frees_put_off(), rig.pool.used_bytes()), (0, ByteSize::ZERO), "{strategy}");
            rig.end(&[handle]);
        }
    }

    /// One of our streams, captured by another library through its raw handle.
    #[test]
    fn one_of_our_streams_says_so_itself() {
        let rig = rig();
        let ours = Stream::new(&rig.device).unwrap();
        let (handle, _) = ours.submit(|_, handle| Ok(handle)).unwrap();
        ours.expect_capture(true);
        begin(&rig, handle);
        assert!(ours.record().unwrap_err().is_capturing());
        end(&rig, handle);
        ours.record().unwrap();
        ours.expect_capture(false);
        rig.end(&[]);
    }

    /// A wait for uncaptured work, from the capturing thread itself, does not affect the capture.
    #[test]
    fn our_own_streams_are_waited_for_while_this_thread_captures() {
        let rig = rig();
        let (handle, _theirs) = rig.theirs();
        let ours = Stream::new(&rig.device).unwrap();
        let buffer = DeviceBuffer::zeroed(512, &ours, &rig.pool).unwrap();
        begin(&rig, handle);
        let event = ours.record().unwrap();
        while !event.query().unwrap() {}
        buffer.fill(1, &ours).unwrap();
        ours.record().unwrap().synchronize().unwrap();
        ours.synchronize().unwrap();
        end(&rig, handle);
        drop(buffer);
        rig.end(&[handle]);
    }

    /// The polling thread queries events, which breaks captures if its capture mode is not relaxed.
    #[test]
    fn results_are_awaited_while_another_thread_captures() {
        let rig = rig();
        let (handle, _theirs) = rig.theirs();
        let ours = Stream::new(&rig.device).unwrap();
        let pinned = PinnedPool::builder(&rig.device).build();
        let buffer = DeviceBuffer::upload(&[5, 6], &ours, &rig.pool, &pinned).unwrap();
        let pending = buffer.download_vec(&ours, &pinned).unwrap();
        begin(&rig, handle);
        // Only the poller queries; this thread only waits for it.
        assert_eq!(crate::pending::block_on(pending).unwrap(), [5, 6]);
        end(&rig, handle);
        drop((buffer, pinned));
        rig.end(&[handle]);
    }

    /// S1.48: a memset node built by hand cannot use memory of a pool; a captured memset can.
    #[test]
    fn memory_of_a_pool_is_not_for_memset_nodes_but_for_captured_memsets() {
        for (strategy, node_takes_it) in [(Strategy::CudaAsync, false), (Strategy::Cuda, true)] {
            let rig = rig_with(SimOptions { seed: 2, ..SimOptions::default() }, strategy);
            let ours = Stream::new(&rig.device).unwrap();
            let pinned = PinnedPool::builder(&rig.device).build();
            let buffer = DeviceBuffer::zeroed(256, &ours, &rig.pool).unwrap();
            match graph::check_memset_node(buffer.as_view()) {
                Ok(()) => assert!(node_takes_it, "{strategy}"),
                Err(error) => {
                    assert!(!node_takes_it, "{strategy}: {error}");
                    let rule = "memory of a pool cannot be named by a memset node; capture the memset from a stream";
                    assert!(error.to_string().ends_with(rule), "{error}");
                }
            }
            graph::check_memset_node(&buffer.view(10..10).unwrap()).unwrap();
            let (handle, theirs) = rig.theirs();
            begin(&rig, handle);
            rig.fill(&buffer, 9, handle);
            let captured = rig.driver.stream_capture_end(handle).unwrap();
            let exec = rig.driver.graph_instantiate(captured).unwrap();
            rig.driver.graph_destroy(captured).unwrap();
            for _ in 0..2 {
                buffer.fill(0, &ours).unwrap();
                theirs.wait_for(ours.position()).unwrap();
                rig.driver.graph_launch(exec, handle, Location::caller()).unwrap();
                ours.wait_for(theirs.position()).unwrap();
                assert_eq!(buffer.download_vec(&ours, &pinned).unwrap().wait().unwrap(), [9; 256]);
            }
            rig.driver.graph_exec_destroy(exec).unwrap();
            drop((buffer, pinned));
            rig.end(&[handle]);
        }
    }

    #[test]
    fn memory_of_graphs_is_told_reset_and_trimmed() {
        let rig = rig();
        assert_eq!(graph::graph_memory(&rig.device).unwrap(), graph::GraphMemory::default());
        graph::reset_graph_memory_high(&rig.device).unwrap();
        assert_eq!(graph::trim_graph_memory(&rig.device).unwrap(), ByteSize::ZERO);
        rig.end(&[]);
    }
}
