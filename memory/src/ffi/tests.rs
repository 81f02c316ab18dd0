//! The allocator on the simulated device, with streams that the caller creates and submits to directly.

use std::panic::Location;
use std::sync::Arc;

use super::allocator::Allocator;
use super::options::Options;
use super::report;
use crate::driver::sim::{SimDriver, SimOptions};
use crate::driver::*;
use crate::error::MemoryError;
use crate::resource::Strategy;

const DEVICE: DeviceId = DeviceId(0);
const KIB: isize = 1024;

struct Rig {
    driver: Arc<SimDriver>,
    allocator: Allocator,
}

fn rig_with(sim: SimOptions, strategy: Strategy) -> Rig {
    let driver = SimDriver::new(sim);
    let options = Options { strategy, ..Options::default() };
    let allocator = Allocator::new(driver.clone(), options).unwrap();
    for device in 0..driver.options().devices {
        driver.device_open(DeviceId(device)).unwrap();
    }
    Rig { driver, allocator }
}

fn rig(strategy: Strategy, seed: u64) -> Rig {
    rig_with(SimOptions { seed, ..SimOptions::default() }, strategy)
}

impl Rig {
    fn stream(&self) -> StreamHandle {
        self.driver.stream_create(DEVICE, StreamPriority::Normal).unwrap()
    }

    fn alloc(&self, size: isize, stream: StreamHandle) -> u64 {
        let ptr = self.allocator.allocate(size, 0, self.driver.stream_raw(stream)).unwrap();
        assert!(ptr != 0 && ptr.is_multiple_of(256));
        ptr
    }

    fn free(&self, ptr: u64, size: isize, stream: StreamHandle) {
        self.allocator.free(ptr, size, 0, self.driver.stream_raw(stream)).unwrap();
    }

    fn fill(&self, ptr: u64, size: isize, stream: StreamHandle) {
        self.driver.fill(DevicePtr(ptr), 1, size as usize, stream, Location::caller()).unwrap();
    }

    /// Orders `later` behind `earlier` as the caller would.
    fn order(&self, earlier: StreamHandle, later: StreamHandle) {
        let event = self.driver.event_create(DEVICE, EventFlags::ORDER).unwrap();
        self.driver.event_record(event, earlier, Location::caller()).unwrap();
        self.driver.stream_wait(later, event, Location::caller()).unwrap();
        self.driver.event_destroy(event).unwrap();
    }

    fn number(&self, name: &str) -> u64 {
        let json = report::json(&self.allocator, 0).unwrap();
        let (_, rest) = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}"));
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    }

    fn end(&self) {
        self.driver.settle().unwrap();
        assert_eq!(self.driver.take_findings(), []);
        for place in self.allocator.places() {
            assert!(place.device.take_errors().is_empty());
        }
    }
}

fn words<T: std::fmt::Debug>(result: Result<T, MemoryError>) -> String {
    result.unwrap_err().to_string()
}

/// A workload like PyTorch's: tensors live on their own streams, and some are used on other streams.
#[test]
fn tensors_come_and_go_without_a_finding() {
    for strategy in Strategy::ALL {
        for seed in 0..4 {
            let rig = rig(strategy, seed);
            let default = rig.driver.stream_wrap(DEVICE, 0).unwrap();
            let (a, b) = (rig.stream(), rig.stream());
            let mut kept = Vec::new();
            for round in 1..=40 {
                let size = 300 * round;
                for stream in [default, a, b] {
                    let ptr = rig.alloc(size, stream);
                    rig.fill(ptr, size, stream);
                    kept.push((ptr, size, stream));
                }
                if round % 3 == 0 {
                    for (ptr, size, stream) in kept.drain(..kept.len() / 2) {
                        rig.free(ptr, size, stream);
                    }
                }
            }
            for (ptr, size, stream) in kept {
                rig.free(ptr, size, stream);
            }
            assert_eq!((rig.number("allocations"), rig.number("frees")), (120, 120));
            assert_eq!((rig.number("live_allocations"), rig.number("allocated_bytes")), (0, 0));
            rig.end();
        }
    }
}

/// With the record the free waits for the other stream; without it the check fires, so the record is what orders them.
#[test]
fn a_free_waits_for_the_recorded_streams() {
    for strategy in Strategy::ALL {
        for recorded in [true, false] {
            let rig = rig(strategy, 9);
            let (a, b) = (rig.stream(), rig.stream());
            for _ in 0..20 {
                let ptr = rig.alloc(64 * KIB, a);
                rig.fill(ptr, 64 * KIB, a);
                rig.order(a, b);
                rig.fill(ptr, 64 * KIB, b);
                if recorded {
                    rig.allocator.record(ptr, b.0).unwrap();
                }
                rig.free(ptr, 64 * KIB, a);
                // The next owner of the bytes writes them.
                let next = rig.alloc(64 * KIB, a);
                rig.fill(next, 64 * KIB, a);
                rig.free(next, 64 * KIB, a);
            }
            if recorded {
                assert_eq!((rig.number("record_streams"), rig.number("shared_frees")), (20, 20));
                rig.end();
            } else if strategy != Strategy::Cuda {
                // cuMemFree waits for the whole device even without the record.
                rig.driver.settle().unwrap();
                assert!(!rig.driver.take_findings().is_empty(), "{strategy}: a use that nobody told of");
            }
        }
    }
}

/// A record covers the stream's work at the free, not at the record: the use may be submitted in between.
#[test]
fn a_record_holds_for_work_that_is_submitted_after_it() {
    let rig = rig(Strategy::Caching, 2);
    let (a, b) = (rig.stream(), rig.stream());
    let ptr = rig.alloc(KIB, a);
    rig.fill(ptr, KIB, a);
    rig.allocator.record(ptr, b.0).unwrap();
    rig.allocator.record(ptr, b.0).unwrap();
    rig.order(a, b);
    rig.fill(ptr, KIB, b);
    rig.free(ptr, KIB, a);
    let next = rig.alloc(KIB, a);
    rig.fill(next, KIB, a);
    rig.free(next, KIB, a);
    rig.end();
}

/// Recording the allocation's own stream costs nothing; the users' streams do not wait for each other at a free.
#[test]
fn one_stream_costs_no_events_and_several_do_not_wait_for_each_other() {
    let rig = rig(Strategy::CudaAsync, 1);
    let (a, b) = (rig.stream(), rig.stream());
    let ptr = rig.alloc(KIB, a);
    rig.allocator.record(ptr, a.0).unwrap();
    rig.free(ptr, KIB, a);
    assert_eq!((rig.number("events_recorded"), rig.number("shared_frees")), (0, 0));
    let ptr = rig.alloc(KIB, a);
    rig.allocator.record(ptr, b.0).unwrap();
    rig.free(ptr, KIB, a);
    assert_eq!((rig.number("events_recorded"), rig.number("waits_inserted")), (2, 2));
    // Both waits are on the internal stream: a third stream's work is not ordered behind either user.
    assert_eq!(rig.driver.counters().stream_waits, 2);
    rig.end();
}

/// S0.11: allocated on one stream, freed on another.
#[test]
fn the_stream_of_the_free_may_be_another() {
    for strategy in Strategy::ALL {
        let rig = rig(strategy, 6);
        let (a, b) = (rig.stream(), rig.stream());
        let ptr = rig.alloc(KIB, a);
        rig.fill(ptr, KIB, a);
        rig.order(a, b);
        rig.fill(ptr, KIB, b);
        rig.fill(ptr, KIB, b);
        rig.free(ptr, KIB, b);
        let next = rig.alloc(KIB, a);
        rig.fill(next, KIB, a);
        rig.free(next, KIB, a);
        rig.end();
    }
}

#[test]
fn sizes_that_are_none_are_told_and_no_bytes_are_nothing() {
    let rig = rig(Strategy::CudaAsync, 0);
    let a = rig.stream();
    assert_eq!(rig.allocator.allocate(0, 0, a.0).unwrap(), 0);
    rig.allocator.free(0, 0, 0, a.0).unwrap();
    rig.allocator.record(0, a.0).unwrap();
    assert_eq!(words(rig.allocator.allocate(-1, 0, a.0)), "millpond_alloc: -1 bytes are asked for");
    assert!(words(rig.allocator.allocate(isize::MIN, 0, a.0)).contains("bytes are asked for"));
    let error = rig.allocator.allocate(isize::MAX, 0, a.0).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    for device in [1, 7, -1, i32::MIN] {
        let told = words(rig.allocator.allocate(KIB, device, a.0));
        assert_eq!(told, format!("millpond_alloc: there is no device {device}: there are 1"));
    }
    assert_eq!((rig.number("live_allocations"), rig.number("num_ooms")), (0, 1));
    rig.end();
}

#[test]
fn what_does_not_fit_together_is_refused_and_stays() {
    let rig = rig_with(SimOptions { devices: 2, ..SimOptions::default() }, Strategy::CudaAsync);
    let a = rig.stream();
    let ptr = rig.alloc(1000, a);
    for (size, device) in [(999, 0), (0, 0), (-1000, 0), (1000, 1), (1000, -1)] {
        let told = words(rig.allocator.free(ptr, size, device, a.0));
        let expected = format!(
            "millpond_free: {ptr:#x} has 1000 bytes on device 0, not {size} on device {device}; it stays allocated"
        );
        assert_eq!(told, expected);
    }
    assert_eq!(rig.number("live_allocations"), 1);
    let told = words(rig.allocator.free(ptr, 1000, 0, 2));
    assert!(told.contains("per-thread default stream"), "{told}");
    rig.free(ptr, 1000, a);
    let gone = words(rig.allocator.free(ptr, 1000, 0, a.0));
    assert_eq!(gone, format!("millpond_free: {ptr:#x} is not allocated: freed twice, or never from here"));
    assert!(words(rig.allocator.free(ptr + 256, 1000, 0, a.0)).contains("is not allocated"));
    assert!(words(rig.allocator.record(ptr, a.0)).contains("is not allocated here"));
    assert!(words(rig.allocator.base(ptr)).contains("is not allocated here"));
    rig.end();
}

#[test]
fn a_base_has_the_bytes_that_were_asked_for() {
    let rig = rig(Strategy::Caching, 0);
    let a = rig.stream();
    let ptr = rig.alloc(1000, a);
    assert_eq!(rig.allocator.base(ptr).unwrap(), (ptr, 1000));
    rig.free(ptr, 1000, a);
    rig.end();
}

#[test]
fn a_limit_is_kept_and_what_was_freed_counts_no_more() {
    let rig = rig_with(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() }, Strategy::CudaAsync);
    rig.allocator.set_fraction(0.25, 0).unwrap();
    let a = rig.stream();
    let first = rig.alloc(12 << 20, a);
    let error = rig.allocator.allocate(8 << 20, 0, a.0).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("16 MiB"), "{error}");
    rig.free(first, 12 << 20, a);
    let second = rig.alloc(16 << 20, a);
    rig.free(second, 16 << 20, a);
    assert_eq!(rig.number("limit_bytes"), 16 << 20);
    let late = words(rig.allocator.set_fraction(0.5, 0));
    assert!(late.contains("device 0 is in use: its limit is set before the first allocation"), "{late}");
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(words(rig.allocator.set_fraction(share, 0)).contains("is not a share"), "{share}");
    }
    rig.end();
}

#[test]
fn trimming_gives_back_what_is_unused() {
    for strategy in Strategy::ALL {
        let rig = rig(strategy, 0);
        assert_eq!(rig.allocator.trim(0, 0).unwrap().as_u64(), 0, "not in use yet");
        let a = rig.stream();
        let (one, two) = (rig.alloc(8 << 20, a), rig.alloc(8 << 20, a));
        rig.fill(one, 8 << 20, a);
        rig.free(one, 8 << 20, a);
        let reserved = rig.number("reserved_bytes");
        let given = rig.allocator.trim(0, 0).unwrap().as_u64();
        // A pool without a threshold frees memory at every wait for the device, before it is trimmed.
        assert!(rig.number("reserved_bytes") <= reserved - given, "{strategy}");
        rig.free(two, 8 << 20, a);
        rig.allocator.trim_all().unwrap();
        assert_eq!(rig.number("reserved_bytes"), 0, "{strategy}");
        rig.end();
    }
}

/// Another stream now has the handle: work of the old stream is not attributed to the new one.
#[test]
fn streams_that_their_owner_destroyed() {
    let sim = SimOptions { seed: 4, reuse_stream_handles: true, ..SimOptions::default() };
    let rig = rig_with(sim, Strategy::Caching);
    let (a, b) = (rig.stream(), rig.stream());
    let (told, untold, recorded) = (rig.alloc(KIB, a), rig.alloc(KIB, b), rig.alloc(KIB, b));
    rig.fill(told, KIB, a);
    rig.fill(untold, KIB, b);
    rig.fill(recorded, KIB, b);
    rig.order(b, a);
    rig.fill(recorded, KIB, a);
    rig.allocator.record(recorded, a.0).unwrap();
    rig.allocator.forget_stream(0, a.0).unwrap();
    rig.driver.stream_destroy(a).unwrap();
    // `a` is no longer a live stream; its handle still identifies its allocations.
    rig.free(told, KIB, a);
    rig.driver.stream_destroy(b).unwrap();
    let c = rig.stream();
    assert_eq!(c, b);
    for (ptr, next) in [(untold, c), (recorded, c)] {
        rig.free(ptr, KIB, next);
        let again = rig.alloc(KIB, next);
        rig.fill(again, KIB, next);
        rig.free(again, KIB, next);
    }
    rig.end();
}

mod captures {
    use super::*;

    impl Rig {
        fn begin(&self, stream: StreamHandle) {
            self.driver.stream_capture_begin(stream, CaptureMode::Global).unwrap();
            // As the C functions do for their caller's thread.
            self.driver.thread_capture_mode(CaptureMode::Relaxed).unwrap();
        }

        fn end_capture(&self, stream: StreamHandle) -> GraphExecHandle {
            let graph = self.driver.stream_capture_end(stream).expect("nothing of ours broke the capture");
            self.driver.thread_capture_mode(CaptureMode::Global).unwrap();
            let exec = self.driver.graph_instantiate(graph).unwrap();
            self.driver.graph_destroy(graph).unwrap();
            exec
        }

        fn launch(&self, exec: GraphExecHandle, stream: StreamHandle) {
            self.driver.graph_launch(exec, stream, Location::caller()).unwrap();
        }
    }

    /// Captured memory stays reserved for the graph's replays, whatever else is allocated and freed.
    #[test]
    fn memory_of_a_capture_is_nobody_elses() {
        for strategy in Strategy::ALL {
            let rig = rig(strategy, 12);
            let (a, b) = (rig.stream(), rig.stream());
            let before = rig.alloc(64 * KIB, a);
            rig.fill(before, 64 * KIB, a);
            rig.begin(a);
            let inside = rig.alloc(64 * KIB, a);
            rig.fill(inside, 64 * KIB, a);
            rig.free(inside, 64 * KIB, a);
            let reused = rig.alloc(40 * KIB, a);
            assert_eq!(reused, inside, "{strategy}: a capture has its own memory again, on one stream");
            rig.fill(reused, 40 * KIB, a);
            let larger = rig.alloc(100 * KIB, a);
            assert_ne!(larger, inside);
            rig.fill(larger, 100 * KIB, a);
            rig.free(larger, 100 * KIB, a);
            // Allocated before the capture and freed inside it: the free is deferred.
            rig.free(before, 64 * KIB, a);
            assert_eq!((rig.number("deferred_frees"), rig.number("pending_frees")), (1, 1));
            let exec = rig.end_capture(a);
            rig.free(reused, 40 * KIB, a);
            let held = rig.number("graph_bytes");
            assert_eq!((held, rig.number("graph_allocations")), (((64 + 100) * KIB) as u64, 2));
            // Other allocations are written meanwhile, and each replay writes the graph's memory.
            for _ in 0..5 {
                let other = rig.alloc(64 * KIB, b);
                assert!(other != inside && other != larger, "{strategy}");
                rig.fill(other, 64 * KIB, b);
                rig.launch(exec, a);
                rig.free(other, 64 * KIB, b);
            }
            assert_eq!(rig.number("pending_frees"), 0, "the capture is over");
            rig.driver.stream_synchronize(a).unwrap();
            rig.driver.graph_exec_destroy(exec).unwrap();
            rig.allocator.release_graphs(0).unwrap();
            assert_eq!((rig.number("graph_bytes"), rig.number("live_allocations")), (0, 0));
            assert_eq!(rig.number("allocated_bytes"), 0);
            rig.end();
        }
    }

    /// PyTorch's hooks: graph pools, some shared by several graphs.
    #[test]
    fn a_pool_of_graphs_is_given_back_with_its_last_graph() {
        let rig = rig(Strategy::CudaAsync, 5);
        let a = rig.stream();
        let (mine, other) = ((0, 7), (3, 0));
        let capture = |pool| {
            rig.allocator.begin_pool(0, pool).unwrap();
            rig.begin(a);
            let ptr = rig.alloc(KIB, a);
            rig.fill(ptr, KIB, a);
            let exec = rig.end_capture(a);
            rig.allocator.end_pool(0, pool).unwrap();
            (ptr, exec)
        };
        let graphs = [capture(mine), capture(mine), capture(other)];
        for (ptr, exec) in graphs {
            rig.launch(exec, a);
            rig.free(ptr, KIB, a);
        }
        assert_eq!(rig.number("graph_allocations"), 3);
        rig.driver.stream_synchronize(a).unwrap();
        rig.allocator.release_pool(0, mine).unwrap();
        assert_eq!(rig.number("graph_allocations"), 3, "its other graph lives");
        rig.allocator.release_pool(0, mine).unwrap();
        assert_eq!(rig.number("graph_allocations"), 1);
        // A tensor of a graph that outlives the graph.
        let (ptr, _) = capture(other);
        rig.allocator.release_pool(0, other).unwrap();
        rig.allocator.release_pool(0, other).unwrap();
        assert_eq!((rig.number("graph_allocations"), rig.number("live_allocations")), (1, 1));
        rig.fill(ptr, KIB, a);
        rig.free(ptr, KIB, a);
        assert_eq!((rig.number("graph_allocations"), rig.number("allocated_bytes")), (0, 0));
        rig.allocator.release_pool(0, (9, 9)).unwrap();
        rig.end();
    }

    /// With two open pools the pool of a capture is ambiguous: its memory is kept when either pool is released.
    #[test]
    fn memory_of_an_uncertain_pool_is_kept() {
        let rig = rig(Strategy::CudaAsync, 5);
        let a = rig.stream();
        let pools = [(0, 1), (0, 2)];
        pools.iter().for_each(|pool| rig.allocator.begin_pool(0, *pool).unwrap());
        rig.begin(a);
        let ptr = rig.alloc(KIB, a);
        let _exec = rig.end_capture(a);
        rig.free(ptr, KIB, a);
        for pool in pools {
            rig.allocator.end_pool(0, pool).unwrap();
            rig.allocator.release_pool(0, pool).unwrap();
        }
        assert_eq!(rig.number("graph_allocations"), 1);
        rig.end();
    }

    #[test]
    fn shared_memory_of_a_capture_is_not_reused_inside_it() {
        let rig = rig(Strategy::CudaAsync, 5);
        let (a, b) = (rig.stream(), rig.stream());
        rig.begin(a);
        let ptr = rig.alloc(KIB, a);
        rig.allocator.record(ptr, b.0).unwrap();
        rig.free(ptr, KIB, a);
        assert_ne!(rig.alloc(KIB, a), ptr);
        rig.end_capture(a);
        rig.end();
    }

    /// A call that would wait for the device is refused before it breaks the capture.
    #[test]
    fn trimming_waits_until_nothing_is_captured() {
        let rig = rig(Strategy::CudaAsync, 5);
        let (a, b) = (rig.stream(), rig.stream());
        let ptr = rig.alloc(KIB, a);
        rig.begin(a);
        assert!(rig.allocator.trim(0, 0).unwrap_err().is_capturing());
        assert!(rig.allocator.release_graphs(0).unwrap_err().is_capturing());
        let other = rig.alloc(KIB, b);
        rig.fill(other, KIB, b);
        rig.free(other, KIB, b);
        rig.end_capture(a);
        rig.free(ptr, KIB, a);
        rig.allocator.trim(0, 0).unwrap();
        rig.end();
    }

    #[test]
    fn a_capture_that_broke_gives_no_memory() {
        let rig = rig(Strategy::CudaAsync, 5);
        let a = rig.stream();
        rig.begin(a);
        rig.driver.stream_query(a).unwrap_err();
        assert!(rig.allocator.allocate(KIB, 0, a.0).unwrap_err().is_capturing());
        rig.driver.stream_capture_end(a).unwrap_err();
        let ptr = rig.alloc(KIB, a);
        rig.free(ptr, KIB, a);
        rig.end();
    }
}

#[test]
fn a_lost_device_refuses_and_frees_are_dropped_in_silence() {
    let rig = rig(Strategy::CudaAsync, 0);
    let a = rig.stream();
    let ptr = rig.alloc(KIB, a);
    rig.driver.lose_device(DEVICE);
    assert!(rig.allocator.allocate(KIB, 0, a.0).unwrap_err().is_device_lost());
    rig.allocator.free(ptr, KIB, 0, a.0).unwrap();
    assert_eq!(rig.allocator.num_live(), 0);
}

#[test]
fn threads_share_it() {
    for strategy in Strategy::ALL {
        let rig = rig(strategy, 7);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let rig = &rig;
                scope.spawn(move || {
                    let (own, side) = (rig.stream(), rig.stream());
                    for round in 0..60u64 {
                        let size = (1 + (thread * 37 + round * 101) % 900) as isize * 16;
                        let ptr = rig.alloc(size, own);
                        rig.fill(ptr, size, own);
                        if round % 4 == 0 {
                            rig.order(own, side);
                            rig.fill(ptr, size, side);
                            rig.allocator.record(ptr, side.0).unwrap();
                        }
                        rig.free(ptr, size, own);
                    }
                });
            }
        });
        assert_eq!((rig.number("allocations"), rig.number("live_allocations")), (360, 0));
        rig.end();
    }
}

/// A peer's stream uses the memory: nothing orders streams of two devices here, so the free waits on the host.
#[test]
fn a_stream_of_another_device_may_be_recorded() {
    let rig = rig_with(SimOptions { devices: 2, seed: 3, ..SimOptions::default() }, Strategy::Cuda);
    let a = rig.stream();
    let peer = rig.driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap();
    let ptr = rig.alloc(KIB, a);
    let unknown = words(rig.allocator.record(ptr, peer.0));
    assert!(unknown.contains("is no stream of device 0"), "its device is not in use here: {unknown}");
    let there = rig.allocator.allocate(KIB, 1, peer.0).unwrap();
    rig.allocator.record(ptr, peer.0).unwrap();
    rig.free(ptr, KIB, a);
    assert_eq!((rig.number("record_streams"), rig.number("shared_frees"), rig.number("live_allocations")), (1, 1, 0));
    assert!(report::json(&rig.allocator, 1).unwrap().contains("\"live_allocations\":1,"));
    rig.allocator.free(there, KIB, 1, peer.0).unwrap();
    rig.end();
}

#[test]
fn the_report_names_the_strategy_and_all_devices_are_a_list() {
    let rig = rig_with(SimOptions { devices: 2, ..SimOptions::default() }, Strategy::Binning);
    assert_eq!(report::json(&rig.allocator, -1).unwrap(), "[]");
    assert_eq!(words(report::json(&rig.allocator, 1)), "millpond_stats_json: device 1 has not been used yet");
    assert!(words(report::json(&rig.allocator, 2)).contains("there is no device 2"));
    let a = rig.stream();
    let ptr = rig.alloc(100, a);
    let all = report::json(&rig.allocator, -1).unwrap();
    assert!(all.starts_with("[{\"device\":0,") && all.ends_with("\"memory_resource\":\"binning\"}]"), "{all}");
    rig.free(ptr, 100, a);
    rig.allocator.expect_devices(2).unwrap();
    assert!(words(rig.allocator.expect_devices(3)).contains("3 devices are expected, and there are 2"));
    rig.end();
}
