//! Codes that lose a device, and the time limit of a device: the consequences are the same.
//!
//! Clock      time passes when a test advances it, or at every reading of the clock; nothing here sleeps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_memory::driver::{EventHandle, KernelLaunch};
use millpond_memory::{
    Clock, Device, DeviceBuffer, DeviceOptions, DriverCode, HostKind, MemoryPool, Pending, PinnedPool, Result, Stream,
};

use crate::pending::block_on;
use crate::recording::{Call, Recording};

/// A clock that a test advances.
#[derive(Default)]
pub struct TestClock {
    now_ms: AtomicU64,
    /// Milliseconds that each reading advances the clock.
    step_ms: u64,
}

impl TestClock {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Advances a second with every reading.
    pub fn ticking() -> Arc<Self> {
        Arc::new(TestClock { step_ms: 1000, ..TestClock::default() })
    }

    pub fn advance(&self, seconds: u64) {
        self.now_ms.fetch_add(seconds * 1000, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.fetch_add(self.step_ms, Ordering::SeqCst))
    }
}

fn options(clock: &Arc<TestClock>) -> DeviceOptions {
    DeviceOptions { timeout: Some(Duration::from_secs(600)), clock: clock.clone() }
}

/// Every `CUresult` of CUDA 13.0's cuda.h.
const ALL: &[std::ops::RangeInclusive<u32>] = &[
    0..=8,
    34..=34,
    36..=36,
    46..=47,
    100..=102,
    200..=202,
    205..=227,
    300..=304,
    400..=402,
    500..=500,
    600..=600,
    700..=705,
    708..=721,
    800..=812,
    900..=919,
    999..=999,
];

/// Codes after which, by the same file, the process must end before CUDA can be used again, and those of a driver that
/// has lost its service.
const ENDS_THE_CONTEXT: &[u32] =
    &[4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 909, 911, 999];

/// Codes that are an error of the call alone if the call finishes before it returns, and otherwise leave the device's
/// state unknown.
const NOT_WELL: &[u32] = &[46, 802, 805, 807, 808, 809, 916, 917, 919];

/// Codes that no header defines.
const UNKNOWN: &[u32] = &[9, 228, 722, 920, 12345, u32::MAX];

#[test]
fn every_code_of_cuda_has_a_name_of_its_own() {
    let all: Vec<u32> = ALL.iter().flat_map(Clone::clone).collect();
    assert_eq!(DriverCode::NAMED.iter().map(|code| code.0).collect::<Vec<_>>(), all);
    let words: BTreeSet<&str> = DriverCode::NAMED.iter().map(|code| code.words()).collect();
    assert_eq!(words.len(), all.len());
    for &code in UNKNOWN {
        assert_eq!(DriverCode(code).to_string(), format!("unknown result ({code})"));
    }
}

#[test]
fn codes_that_end_a_context_are_known() {
    for &code in DriverCode::NAMED {
        assert_eq!(code.is_sticky(), ENDS_THE_CONTEXT.contains(&code.0), "{code}");
        let loses = ENDS_THE_CONTEXT.contains(&code.0) || NOT_WELL.contains(&code.0);
        assert_eq!(code.loses_work(), loses, "{code}");
    }
    for &code in UNKNOWN {
        assert!(!DriverCode(code).is_sticky() && DriverCode(code).loses_work(), "{code}");
    }
}

struct Setup {
    driver: Arc<Recording>,
    device: Device,
    pinned: PinnedPool,
    pool: MemoryPool,
    stream: Stream,
    buffer: DeviceBuffer,
}

fn setup(options: DeviceOptions) -> Setup {
    let driver = Recording::new();
    let device = Device::open_with(driver.clone(), 0, options).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::new(1 << 20, &stream, &pool).unwrap();
    driver.take();
    Setup { driver, device, pinned, pool, stream, buffer }
}

impl Setup {
    /// Makes the driver call `name` through this crate's API.
    fn call(&self, name: &str) -> Result<()> {
        let here = std::panic::Location::caller();
        match name {
            "fill" => self.buffer.fill(1, &self.stream),
            "copy" => self.buffer.view(0..4096)?.upload_from(&[1; 4096], &self.stream, &self.pinned),
            "launch" => {
                let kernel = self.device.load_module(".entry k")?.kernel("k")?;
                let launch = KernelLaunch {
                    function: kernel.function(),
                    name: "k",
                    grid: [1; 3],
                    block: [1; 3],
                    shared_bytes: 0,
                    params: &[],
                    accesses: &[],
                    figures: None,
                    site: here,
                };
                // SAFETY: the recording driver only stores it.
                self.stream.submit(|driver, on| unsafe { driver.launch(&launch, on) }).map(|_| ())
            }
            "pool_alloc" => DeviceBuffer::new(64, &self.stream, &self.pool).map(|_| ()),
            "event_record" => {
                self.buffer.fill(1, &self.stream)?;
                self.stream.record().map(|_| ())
            }
            "event_query" => {
                self.buffer.fill(1, &self.stream)?;
                self.stream.record()?.query().map(|_| ())
            }
            "event_synchronize" => {
                self.buffer.fill(1, &self.stream)?;
                self.stream.record()?.synchronize()
            }
            "stream_synchronize" => self.stream.synchronize(),
            "device_synchronize" => self.device.synchronize(),
            "stream_create" => Stream::new(&self.device).map(|_| ()),
            "host_alloc" => self.pinned.take_now(HostKind::Upload, 5 << 20).map(|_| ()),
            "pool_set_attribute" => self.pool.set_reuse(Default::default()),
            _ => unreachable!("{name}"),
        }
    }

    /// Checks that no call reaches the driver any more, and that memory in flight is not reused.
    fn assert_given_up(self, in_flight: Pending<millpond_memory::PinnedBuffer>) {
        assert!(block_on(in_flight).unwrap_err().is_device_lost());
        while self.pinned.statistics().lent > millpond_memory::ByteSize::ZERO {
            std::thread::yield_now();
        }
        self.driver.take();
        for name in ["fill", "pool_alloc", "event_record", "stream_synchronize", "device_synchronize", "stream_create"]
        {
            assert!(self.call(name).unwrap_err().is_device_lost(), "{name}");
        }
        assert!(self.pinned.take_now(HostKind::Download, 1 << 20).unwrap_err().is_device_lost());
        assert_eq!(self.driver.take(), []);
        let Setup { driver, device, pinned, pool, stream, buffer } = self;
        drop((device, pinned, pool, stream, buffer));
        assert_eq!(driver.take(), [], "nothing waits for a lost device, and nothing of it is given back");
    }
}

/// Pinned memory that a copy is writing.
fn in_flight(setup: &Setup) -> Pending<millpond_memory::PinnedBuffer> {
    let buffer = setup.pinned.take_now(HostKind::Download, 1 << 20).unwrap();
    buffer.copy_to_host(&setup.buffer, &setup.stream).unwrap()
}

#[test]
fn a_code_that_may_belong_to_earlier_work_loses_the_device() {
    let calls = [
        "fill",
        "copy",
        "launch",
        "pool_alloc",
        "event_record",
        "event_query",
        "event_synchronize",
        "stream_synchronize",
        "device_synchronize",
    ];
    for name in calls {
        for code in [226, 721, 810, 911, 999, 802, 805, 12345, u32::MAX].map(DriverCode) {
            let setup = setup(DeviceOptions::default());
            setup.driver.hold();
            let in_flight = in_flight(&setup);
            setup.driver.fail(name, u32::MAX, code);
            let error = setup.call(name).unwrap_err();
            assert!(error.is_device_lost() && setup.device.is_lost(), "{name}: {error}");
            assert_eq!(error.driver_code(), Some(code), "{name}");
            setup.assert_given_up(in_flight);
        }
    }
}

#[test]
fn a_refusal_is_an_error_of_its_call_alone() {
    for name in ["fill", "copy", "launch", "event_record", "stream_synchronize", "device_synchronize"] {
        for code in [1, 2, 400, 701, 801, 900].map(DriverCode) {
            let setup = setup(DeviceOptions::default());
            setup.driver.fail(name, 1, code);
            let error = setup.call(name).unwrap_err();
            assert!(!error.is_device_lost() && !setup.device.is_lost(), "{name}: {error}");
            setup.call(name).unwrap();
        }
    }
}

#[test]
fn an_unknown_code_of_a_call_that_does_its_work_at_once_loses_nothing() {
    for name in ["stream_create", "pool_set_attribute"] {
        for code in [802, 805, 808, 12345, u32::MAX].map(DriverCode) {
            let setup = setup(DeviceOptions::default());
            setup.driver.fail(name, 1, code);
            let error = setup.call(name).unwrap_err();
            assert!(!error.is_device_lost() && !setup.device.is_lost(), "{name}: {error}");
            setup.call(name).unwrap();
        }
        let setup = setup(DeviceOptions::default());
        setup.driver.fail(name, 1, DriverCode::MPS_CLIENT_TERMINATED);
        assert!(setup.call(name).unwrap_err().is_device_lost() && setup.device.is_lost());
    }
}

const HANGS: &str = "device 0 is lost: a wait for the device failed: timed out (909): no event of the device completed for \
                     600 s, which is millpond.device_timeout, so it may hang; raise the option where one kernel may take \
                     longer, or set it to 0 to wait for ever";

#[test]
fn a_device_that_hangs_is_lost_to_all_who_wait() {
    let clock = TestClock::new();
    let setup = setup(options(&clock));
    setup.driver.hang();
    let in_flight = in_flight(&setup);
    let other = Stream::new(&setup.device).unwrap();
    setup.buffer.fill(1, &other).unwrap();
    let [first, second] = [setup.stream.record().unwrap(), other.record().unwrap()];
    let pending = Pending::behind(second.clone(), ());
    let asked = setup.driver.queries();
    std::thread::scope(|scope| {
        let waiters = [
            scope.spawn(|| first.synchronize()),
            scope.spawn(|| other.synchronize()),
            scope.spawn(|| setup.device.synchronize()),
            scope.spawn(|| setup.pool.trim_to(millpond_memory::ByteSize::ZERO).map(|_| ())),
            scope.spawn(|| block_on(pending)),
        ];
        while setup.driver.queries() < asked + 100 {
            std::thread::yield_now();
        }
        clock.advance(599);
        let asked = setup.driver.queries();
        while setup.driver.queries() < asked + 100 {
            std::thread::yield_now();
        }
        assert!(!setup.device.is_lost(), "a second is left");
        clock.advance(1);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().unwrap_err().to_string(), HANGS);
        }
    });
    drop((first, second, other));
    setup.assert_given_up(in_flight);
}

/// Handles of the recorded events, oldest first.
fn recorded(driver: &Recording) -> Vec<EventHandle> {
    let event = |call| if let Call::Record { event, .. } = call { Some(event) } else { None };
    driver.take().into_iter().filter_map(event).collect()
}

#[test]
fn time_begins_anew_with_every_event_that_completes() {
    let clock = TestClock::new();
    let Setup { driver, device, stream, buffer, .. } = setup(options(&clock));
    driver.hang();
    let mut kernels = Vec::new();
    for _ in 0..20 {
        buffer.fill(1, &stream).unwrap();
        kernels.push(Pending::behind(stream.record().unwrap(), ()));
    }
    for (kernel, event) in kernels.into_iter().zip(recorded(&driver)) {
        clock.advance(599);
        driver.pass(event);
        block_on(kernel).unwrap();
    }
    assert!(!device.is_lost(), "three hours of it, and none of the kernels took too long");
    // Closing waits for the stream, too.
    driver.release();
}

#[test]
fn an_event_that_nobody_waits_for_is_progress_too() {
    let clock = TestClock::new();
    let Setup { driver, device, stream, buffer, .. } = setup(options(&clock));
    driver.hang();
    buffer.fill(1, &stream).unwrap();
    let _unwatched = stream.record().unwrap();
    let unwatched = recorded(&driver)[0];
    buffer.fill(1, &stream).unwrap();
    let last = Pending::behind(stream.record().unwrap(), ());
    let last_event = recorded(&driver)[0];
    clock.advance(599);
    driver.pass(unwatched);
    clock.advance(1);
    // The poller finds the limit exceeded, checks which other events have passed, and continues to wait.
    let asked = driver.queries();
    while driver.queries() < asked + 100 {
        std::thread::yield_now();
    }
    assert!(!device.is_lost());
    driver.pass(last_event);
    block_on(last).unwrap();
    driver.release();
}

#[test]
fn closing_a_device_that_hangs_does_not_wait_for_it() {
    let setup = setup(options(&TestClock::ticking()));
    setup.buffer.fill(1, &setup.stream).unwrap();
    setup.driver.hang();
    let Setup { driver, device, pinned, pool, stream, buffer } = setup;
    drop((device, pinned, pool, stream, buffer));
    let calls = driver.take();
    assert!(!calls.contains(&Call::Synchronize) && !calls.contains(&Call::DeviceClose), "{calls:?}");
}

#[test]
fn closing_a_device_that_works_gives_everything_back() {
    let setup = setup(options(&TestClock::new()));
    setup.buffer.fill(1, &setup.stream).unwrap();
    setup.stream.synchronize().unwrap();
    let Setup { driver, device, pinned, pool, stream, buffer } = setup;
    drop((device, pinned, pool, stream, buffer));
    let calls = driver.take();
    assert!(calls.contains(&Call::StreamDestroy), "{calls:?}");
    assert_eq!(calls.last(), Some(&Call::DeviceClose));
}

#[test]
fn without_a_limit_the_driver_waits() {
    let clock = TestClock::ticking();
    let Setup { driver, device, stream, buffer, .. } = setup(DeviceOptions { timeout: None, ..options(&clock) });
    driver.hold();
    buffer.fill(1, &stream).unwrap();
    stream.synchronize().unwrap();
    device.synchronize().unwrap();
    assert_eq!(driver.take().iter().filter(|call| **call == Call::Synchronize).count(), 2);
    assert_eq!(clock.now(), Duration::ZERO, "nobody looks at the clock");
}
