//! Captures on the simulated device: CUDA's refusals, calls that break a capture, and the effects of launching a graph.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::*;

const DEVICE: DeviceId = DeviceId(0);

fn site() -> Site {
    Location::caller()
}

struct Rig {
    driver: Arc<SimDriver>,
    a: StreamHandle,
    b: StreamHandle,
    memory: DevicePtr,
}

fn rig() -> Rig {
    let driver = SimDriver::new(SimOptions { seed: 5, ..SimOptions::default() });
    driver.device_open(DEVICE).unwrap();
    let stream = || driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
    let (a, b) = (stream(), stream());
    let memory = driver.alloc_sync(DEVICE, NonZeroUsize::new(1024).unwrap(), site()).unwrap();
    Rig { driver, a, b, memory }
}

impl Rig {
    fn begin(&self, stream: StreamHandle) {
        self.driver.stream_capture_begin(stream, CaptureMode::Global).unwrap();
    }

    fn fill(&self, byte: u8, stream: StreamHandle) -> Result<()> {
        self.driver.fill(self.memory, byte, 1024, stream, site())
    }

    fn event(&self) -> EventHandle {
        self.driver.event_create(DEVICE, EventFlags::ORDER).unwrap()
    }

    fn record(&self, event: EventHandle, stream: StreamHandle) {
        self.driver.event_record(event, stream, site()).unwrap();
    }

    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.driver.stream_wait(stream, event, site())
    }

    fn status(&self, stream: StreamHandle) -> CaptureStatus {
        self.driver.stream_capture_status(stream).unwrap()
    }

    /// First byte of the device memory.
    fn first_byte(&self) -> u8 {
        let block = self.driver.host_alloc(DEVICE, NonZeroUsize::new(64).unwrap(), HostKind::Download, site()).unwrap();
        let copy = CopyOp::DeviceToHost { from: self.memory, to: HostSpan::new(&block, 0, 64).unwrap() };
        self.driver.copy(&copy, self.a, site()).unwrap();
        self.driver.stream_synchronize(self.a).unwrap();
        let byte = block.read().unwrap()[0];
        self.driver.host_free(&block, site()).unwrap();
        byte
    }

    fn end(self) {
        self.driver.free_sync(self.memory, site()).unwrap();
        for stream in [self.a, self.b] {
            self.driver.stream_destroy(stream).unwrap();
        }
        self.driver.device_close(DEVICE).unwrap();
        let findings = self.driver.take_findings();
        assert!(findings.is_empty(), "{findings:?}");
    }
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> DriverCode {
    result.unwrap_err().code
}

#[test]
fn captured_work_runs_when_the_graph_is_launched_and_not_before() {
    let rig = rig();
    rig.fill(1, rig.a).unwrap();
    rig.begin(rig.a);
    let CaptureStatus::Active { id } = rig.status(rig.a) else { panic!("it is captured") };
    assert_eq!(rig.status(rig.b), CaptureStatus::None);
    rig.fill(2, rig.a).unwrap();
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    assert_eq!(rig.status(rig.a), CaptureStatus::None);
    assert_eq!(rig.first_byte(), 1, "a fill that was captured has not run");
    let exec = rig.driver.graph_instantiate(graph).unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    for byte in [3, 4] {
        rig.fill(byte, rig.a).unwrap();
        rig.driver.graph_launch(exec, rig.a, site()).unwrap();
        assert_eq!(rig.first_byte(), 2);
    }
    rig.driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(code(rig.driver.graph_launch(exec, rig.a, site())), DriverCode::INVALID_VALUE);
    assert_eq!(code(rig.driver.graph_destroy(graph)), DriverCode::INVALID_VALUE);
    rig.begin(rig.a);
    let again = rig.status(rig.a);
    assert!(matches!(again, CaptureStatus::Active { id: other } if other != id), "no number comes twice: {again:?}");
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    rig.end();
}

/// Two streams in one graph (S3.9): the second joins by an event and rejoins the first by another.
#[test]
fn a_stream_that_waits_for_a_captured_event_joins_and_must_come_back() {
    let rig = rig();
    let (fork, back) = (rig.event(), rig.event());
    rig.begin(rig.a);
    rig.record(fork, rig.a);
    rig.wait(rig.b, fork).unwrap();
    assert_eq!(rig.status(rig.a), rig.status(rig.b));
    rig.fill(7, rig.b).unwrap();
    assert_eq!(code(rig.driver.stream_capture_end(rig.b)), DriverCode::STREAM_CAPTURE_UNMATCHED);
    assert_eq!(code(rig.driver.stream_capture_end(rig.a)), DriverCode::STREAM_CAPTURE_INVALIDATED);

    rig.begin(rig.a);
    rig.record(fork, rig.a);
    rig.wait(rig.b, fork).unwrap();
    rig.fill(7, rig.b).unwrap();
    assert_eq!(code(rig.driver.stream_capture_end(rig.a)), DriverCode::STREAM_CAPTURE_UNJOINED);
    assert_eq!((rig.status(rig.a), rig.status(rig.b)), (CaptureStatus::None, CaptureStatus::None));

    rig.begin(rig.a);
    rig.record(fork, rig.a);
    rig.wait(rig.b, fork).unwrap();
    rig.fill(7, rig.b).unwrap();
    rig.record(back, rig.b);
    rig.wait(rig.a, back).unwrap();
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    let exec = rig.driver.graph_instantiate(graph).unwrap();
    rig.driver.graph_launch(exec, rig.a, site()).unwrap();
    assert_eq!(rig.first_byte(), 7);
    rig.driver.graph_exec_destroy(exec).unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    for event in [fork, back] {
        rig.driver.event_destroy(event).unwrap();
    }
    rig.end();
}

#[test]
fn waiting_on_the_host_for_what_is_captured_breaks_the_capture() {
    let rig = rig();
    type Breaks = fn(&Rig) -> DriverCode;
    let breaks: [Breaks; 4] = [
        |rig| code(rig.driver.stream_synchronize(rig.a)),
        |rig| code(rig.driver.stream_query(rig.a)),
        |rig| code(rig.driver.device_synchronize(DEVICE)),
        |rig| code(rig.driver.stream_destroy(rig.a)),
    ];
    for breaks in breaks {
        rig.begin(rig.a);
        assert_eq!(breaks(&rig), DriverCode::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(rig.status(rig.a), CaptureStatus::Invalidated);
        assert_eq!(code(rig.fill(1, rig.a)), DriverCode::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(code(rig.driver.stream_capture_end(rig.a)), DriverCode::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(rig.status(rig.a), CaptureStatus::None, "ended, if without a graph");
    }
    rig.end();
}

#[test]
fn a_captured_event_answers_no_questions() {
    let rig = rig();
    let event = rig.event();
    rig.begin(rig.a);
    rig.record(event, rig.a);
    assert_eq!(code(rig.driver.event_query(event)), DriverCode::CAPTURED_EVENT);
    assert_eq!(code(rig.driver.event_synchronize(event)), DriverCode::CAPTURED_EVENT);
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    assert_eq!(code(rig.wait(rig.b, event)), DriverCode::CAPTURED_EVENT, "its capture is over");
    rig.record(event, rig.a);
    rig.driver.event_synchronize(event).unwrap();
    rig.driver.event_destroy(event).unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    rig.end();
}

#[test]
fn nothing_crosses_into_a_capture_or_from_one_to_another() {
    let rig = rig();
    let (outside, inside) = (rig.event(), rig.event());
    rig.record(outside, rig.b);
    rig.begin(rig.a);
    assert_eq!(code(rig.wait(rig.a, outside)), DriverCode::STREAM_CAPTURE_ISOLATION);
    assert_eq!(rig.status(rig.a), CaptureStatus::Invalidated);
    rig.driver.stream_capture_end(rig.a).unwrap_err();

    rig.begin(rig.a);
    rig.record(inside, rig.a);
    rig.begin(rig.b);
    assert_eq!(code(rig.wait(rig.b, inside)), DriverCode::STREAM_CAPTURE_MERGE);
    for stream in [rig.a, rig.b] {
        assert_eq!(rig.status(stream), CaptureStatus::Invalidated);
        assert_eq!(code(rig.driver.stream_capture_end(stream)), DriverCode::STREAM_CAPTURE_INVALIDATED);
    }
    for event in [outside, inside] {
        rig.driver.event_destroy(event).unwrap();
    }
    rig.end();
}

#[test]
fn begin_and_end_are_a_pair_on_one_stream_and_thread() {
    let rig = rig();
    assert_eq!(code(rig.driver.stream_capture_end(rig.a)), DriverCode::ILLEGAL_STATE);
    rig.begin(rig.a);
    let again = rig.driver.stream_capture_begin(rig.a, CaptureMode::Relaxed);
    assert_eq!(code(again), DriverCode::ILLEGAL_STATE);
    let (driver, a) = (Arc::clone(&rig.driver), rig.a);
    let elsewhere = std::thread::spawn(move || driver.stream_capture_end(a)).join().unwrap();
    assert_eq!(code(elsewhere), DriverCode::STREAM_CAPTURE_WRONG_THREAD);
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    rig.driver.graph_destroy(graph).unwrap();

    rig.driver.stream_capture_begin(rig.a, CaptureMode::Relaxed).unwrap();
    let driver = Arc::clone(&rig.driver);
    let graph = std::thread::spawn(move || driver.stream_capture_end(a)).join().unwrap().unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    let default = rig.driver.stream_wrap(DEVICE, 0).unwrap();
    let refused = rig.driver.stream_capture_begin(default, CaptureMode::Global);
    assert_eq!(code(refused), DriverCode::STREAM_CAPTURE_UNSUPPORTED);
    rig.end();
}

/// Whether a thread may make unsafe calls, by the mode of the capture and the mode of the thread.
#[test]
fn unsafe_calls_are_refused_as_the_modes_say() {
    let rig = rig();
    let ask = |driver: &SimDriver, mode| {
        assert_eq!(driver.thread_capture_mode(mode), Ok(CaptureMode::Global));
        let made = driver.alloc_sync(DEVICE, NonZeroUsize::new(64).unwrap(), site());
        let made = made.map(|ptr| driver.free_sync(ptr, site()).unwrap());
        assert_eq!(driver.thread_capture_mode(CaptureMode::Global), Ok(mode));
        made.is_ok()
    };
    use CaptureMode::*;
    for (capture, thread, same_may, other_may) in [
        (Global, Global, false, false),
        (Global, ThreadLocal, false, true),
        (Global, Relaxed, true, true),
        (ThreadLocal, Global, false, true),
        (ThreadLocal, ThreadLocal, false, true),
        (Relaxed, Global, true, true),
    ] {
        for other in [false, true] {
            rig.driver.stream_capture_begin(rig.a, capture).unwrap();
            let may = if other {
                let driver = Arc::clone(&rig.driver);
                std::thread::spawn(move || ask(&driver, thread)).join().unwrap()
            } else {
                ask(&rig.driver, thread)
            };
            assert_eq!(may, if other { other_may } else { same_may }, "{capture:?} {thread:?} other {other}");
            // A refused call broke the capture.
            assert_eq!(rig.driver.stream_capture_end(rig.a).is_ok(), may, "{capture:?} {thread:?} other {other}");
        }
    }
    rig.end();
}

#[test]
fn graphs_hold_no_memory_here_and_their_watermarks_only_reset() {
    let rig = rig();
    use GraphMemoryAttribute::*;
    for attribute in [UsedCurrent, UsedHigh, ReservedCurrent, ReservedHigh] {
        assert_eq!(rig.driver.graph_memory_attribute(DEVICE, attribute), Ok(0));
    }
    rig.driver.graph_memory_set_attribute(DEVICE, UsedHigh, 0).unwrap();
    for (attribute, value) in [(UsedHigh, 1), (UsedCurrent, 0)] {
        let refused = rig.driver.graph_memory_set_attribute(DEVICE, attribute, value);
        assert_eq!(code(refused), DriverCode::INVALID_VALUE);
    }
    rig.driver.graph_memory_trim(DEVICE).unwrap();
    let pool = rig.driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    rig.begin(rig.a);
    let bytes = NonZeroUsize::new(64).unwrap();
    assert_eq!(code(rig.driver.pool_alloc(pool, bytes, rig.a, site())), DriverCode::NOT_SUPPORTED);
    assert_eq!(code(rig.driver.free_async(rig.memory, rig.a, site())), DriverCode::NOT_SUPPORTED);
    let graph = rig.driver.stream_capture_end(rig.a).unwrap();
    rig.driver.graph_destroy(graph).unwrap();
    rig.driver.pool_destroy(pool).unwrap();
    rig.end();
}

#[test]
fn streams_are_wrapped_and_numbered() {
    let rig = rig();
    assert_eq!(rig.driver.stream_wrap(DEVICE, rig.a.0), Ok(rig.a));
    assert_eq!(code(rig.driver.stream_wrap(DEVICE, 12345)), DriverCode::INVALID_HANDLE);
    assert_eq!(code(rig.driver.stream_wrap(DEVICE, 2)), DriverCode::INVALID_HANDLE, "the per-thread default stream");
    let default = rig.driver.stream_wrap(DEVICE, 0).unwrap();
    assert_eq!(rig.driver.stream_wrap(DEVICE, 1), Ok(default), "the legacy default stream has two names");
    let ids = [rig.a, rig.b, default].map(|stream| rig.driver.stream_id(stream).unwrap());
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    assert_eq!((rig.driver.stream_raw(default), rig.driver.stream_raw(rig.a)), (0, rig.a.0));
    rig.fill(9, default).unwrap();
    rig.driver.stream_synchronize(default).unwrap();
    assert_eq!(rig.first_byte(), 9);
    rig.end();
}

#[test]
fn a_handle_may_come_back_and_its_number_does_not() {
    let driver = SimDriver::new(SimOptions { reuse_stream_handles: true, ..SimOptions::default() });
    driver.device_open(DEVICE).unwrap();
    let first = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
    let number = driver.stream_id(first).unwrap();
    driver.stream_destroy(first).unwrap();
    assert_eq!(code(driver.stream_id(first)), DriverCode::INVALID_HANDLE);
    let second = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
    assert_eq!(second, first);
    assert_ne!(driver.stream_id(second).unwrap(), number);
    driver.stream_destroy(second).unwrap();
    driver.device_close(DEVICE).unwrap();
    assert!(driver.take_findings().is_empty());
}
