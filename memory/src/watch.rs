//! A time limit for waits: a device on which nothing completes for so long counts as lost.
//!
//!   wait begins ─── event done ─── event done ─────── nothing ───────┤ the limit is over ─► lost
//!                        └ every event of the device that completes begins the time anew
//!
//! Progress   is the device's, not the waiter's: a query of many kernels is not cut while one after the other ends. Seen are
//!            the events that somebody waits for, and the newest of every stream.
//! Lost       without a call that waits for the device: the driver may never come back from one.
//! Off        with no limit, the host waits inside the driver, for ever if need be.
//! Clock      the system's, or one that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::driver::{DriverCode, DriverError};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pending::pause;

/// Tells how much time has passed.
pub trait Clock: Send + Sync + 'static {
    /// The time since some moment, which stays the same.
    fn now(&self) -> Duration;
}

/// The system's clock, which stands still while the machine sleeps.
struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The system's clock.
pub fn system_clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock(Instant::now()))
}

/// How a device is opened.
#[derive(Clone)]
pub struct DeviceOptions {
    /// A device on which no event completes for so long, while somebody waits, counts as lost. `None`: waits have no end.
    pub timeout: Option<Duration>,
    pub clock: Arc<dyn Clock>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions { timeout: None, clock: system_clock() }
    }
}

/// When a wait began, in nanoseconds of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began(u64);

/// Knows when a device last completed something.
pub(crate) struct Watchdog {
    clock: Arc<dyn Clock>,
    limit: Option<Duration>,
    progress_ns: AtomicU64,
}

impl Watchdog {
    pub(crate) fn new(options: DeviceOptions) -> Self {
        Watchdog { clock: options.clock, limit: options.timeout, progress_ns: AtomicU64::new(0) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.limit.is_some()
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A wait begins.
    pub(crate) fn begin(&self) -> Began {
        Began(if self.is_on() { self.now_ns() } else { 0 })
    }

    /// Something has completed.
    pub(crate) fn progressed(&self) {
        if self.is_on() {
            self.progress_ns.fetch_max(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// The limit, if it has passed since the wait began and since anything completed.
    pub(crate) fn exceeded(&self, began: Began) -> Option<Duration> {
        let limit = self.limit?;
        let since = began.0.max(self.progress_ns.load(Ordering::Relaxed));
        let passed = Duration::from_nanos(self.now_ns().saturating_sub(since));
        (passed >= limit).then_some(limit)
    }
}

/// Pauses a thread that looks again and again: shortly at first, longer the longer it looks.
pub(crate) fn rest(looks: u32) {
    match pause(looks) {
        None => std::thread::yield_now(),
        Some(pause) => std::thread::sleep(pause),
    }
}

impl Device {
    /// Blocks until `passed`. Where waits have no limit it returns at once: the driver's own wait comes next.
    ///
    /// # Errors
    /// [`MemoryError::DeviceLost`] if nothing of the device completes for too long; what `passed` says.
    pub(crate) fn wait_until(&self, mut passed: impl FnMut() -> Result<bool>) -> Result<()> {
        if !self.watchdog().is_on() {
            return Ok(());
        }
        let began = self.watchdog().begin();
        let mut looks = 0u32;
        while !passed()? {
            self.check_time(began)?;
            rest(looks);
            looks = looks.saturating_add(1);
        }
        Ok(())
    }

    /// Blocks until everything that was submitted to the stream of `position` so far has finished, without an event: for when the
    /// driver refuses one, and what the stream uses has to go. No call here waits inside the driver.
    ///
    /// # Errors
    /// If the stream is somebody else's, which may be gone; what the driver says.
    pub(crate) fn wait_without_event(&self, position: Position) -> Result<()> {
        let cell = self.stream_cell(position.stream)?;
        if cell.external.is_some() {
            return Err(MemoryError::StreamGone { stream: cell.id });
        }
        let (began, reached, clock) = (self.watchdog().begin(), cell.position(), cell.clock());
        let mut looks = 0u32;
        while !self.check_on(cell.id, self.harmless(|driver| driver.stream_query(cell.handle)))? {
            self.check_time(began)?;
            rest(looks);
            looks = looks.saturating_add(1);
        }
        if let Some(log) = self.log() {
            log.synchronized(reached);
        }
        self.watchdog().progressed();
        self.host_saw(&clock);
        Ok(())
    }

    /// `Err`, and a lost device, if a wait that began then has taken too long.
    pub(crate) fn check_time(&self, began: Began) -> Result<()> {
        let Some(limit) = self.watchdog().exceeded(began) else { return Ok(()) };
        if self.newest_event_passed()? {
            return Ok(());
        }
        self.alive()?;
        Err(self.lose(hangs(limit)))
    }

    /// True if one of the newest events of the streams has passed, and nobody had seen it.
    fn newest_event_passed(&self) -> Result<bool> {
        for event in self.newest_events() {
            match event.query() {
                Ok(false) | Err(MemoryError::Capturing { .. }) => {}
                Ok(true) => return Ok(true),
                Err(error) if error.is_device_lost() => return Err(error),
                // A captured event says nothing.
                Err(_) => {}
            }
        }
        Ok(false)
    }
}

/// Why a device that hangs is lost.
pub(crate) fn hangs(limit: Duration) -> DriverError {
    let detail = format!(
        "no event of the device completed for {} s, which is millpond.device_timeout, so it may hang; raise the option where \
         one kernel may take longer, or set it to 0 to wait for ever",
        limit.as_secs_f64()
    );
    DriverError::new("a wait for the device", DriverCode::TIMEOUT).with_detail(detail)
}
