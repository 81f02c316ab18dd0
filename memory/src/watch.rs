//! Time limit of waits: a device on which nothing completes within it counts as lost.
//!
//!   wait begins ─── event done ─── event done ─────── nothing ───────┤ the limit is over ─► lost
//!                        └ every completed event of the device restarts the time
//!
//! Progress   is the device's, not the waiter's: a query of many kernels is not cut off while its kernels complete one
//!            after another. It is detected on the events that are waited for, and on the newest event of every stream.
//! Lost       without a call that waits for the device: such a driver call may never return.
//! Off        without a limit, the host waits inside the driver, possibly forever.
//! Clock      the system's, or one that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::driver::{DriverCode, DriverError};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pending::pause;

/// A source of elapsed time.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed moment.
    fn now(&self) -> Duration;
}

/// The system's clock, which stops while the machine sleeps.
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

/// Options for opening a device.
#[derive(Clone)]
pub struct DeviceOptions {
    /// Time limit: a device on which no event completes for this time, during a wait, counts as lost. `None`: no limit.
    pub timeout: Option<Duration>,
    pub clock: Arc<dyn Clock>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions { timeout: None, clock: system_clock() }
    }
}

/// Start of a wait, in nanoseconds of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began(u64);

/// Tracks when a device last completed something.
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

    /// Marks the start of a wait.
    pub(crate) fn begin(&self) -> Began {
        Began(if self.is_on() { self.now_ns() } else { 0 })
    }

    /// Records progress of the device.
    pub(crate) fn progressed(&self) {
        if self.is_on() {
            self.progress_ns.fetch_max(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// The limit, if it has passed since the start of the wait and since the last progress.
    pub(crate) fn exceeded(&self, began: Began) -> Option<Duration> {
        let limit = self.limit?;
        let since = began.0.max(self.progress_ns.load(Ordering::Relaxed));
        let passed = Duration::from_nanos(self.now_ns().saturating_sub(since));
        (passed >= limit).then_some(limit)
    }
}

/// Pauses a polling thread: briefly at first, longer after more polls.
pub(crate) fn rest(looks: u32) {
    match pause(looks) {
        None => std::thread::yield_now(),
        Some(pause) => std::thread::sleep(pause),
    }
}

impl Device {
    /// Blocks until `passed` returns true. Returns at once if waits have no limit: the driver's own wait follows.
    ///
    /// # Errors
    /// [`MemoryError::DeviceLost`] if nothing on the device completes within the limit; errors of `passed`.
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

    /// Blocks until everything submitted so far to the stream of `position` has finished, without an event: used if the
    /// driver refuses an event, and the stream's memory must be freed. No call here blocks inside the driver.
    ///
    /// # Errors
    /// If the stream is external, since it may be gone; errors of the driver.
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

    /// `Err`, with the device lost, if a wait since `began` has exceeded the limit.
    pub(crate) fn check_time(&self, began: Began) -> Result<()> {
        let Some(limit) = self.watchdog().exceeded(began) else { return Ok(()) };
        if self.newest_event_passed()? {
            return Ok(());
        }
        self.alive()?;
        Err(self.lose(hangs(limit)))
    }

    /// True if one of the streams' newest events has passed that was not known to have passed.
    fn newest_event_passed(&self) -> Result<bool> {
        for event in self.newest_events() {
            match event.query() {
                Ok(false) | Err(MemoryError::Capturing { .. }) => {}
                Ok(true) => return Ok(true),
                Err(error) if error.is_device_lost() => return Err(error),
                // The event of a captured stream gives no information.
                Err(_) => {}
            }
        }
        Ok(false)
    }
}

/// Reason for the loss of a device that hangs.
pub(crate) fn hangs(limit: Duration) -> DriverError {
    let detail = format!(
        "no event of the device completed for {} s, which is millpond.device_timeout, so it may hang; raise the option where \
         one kernel may take longer, or set it to 0 to wait for ever",
        limit.as_secs_f64()
    );
    DriverError::new("a wait for the device", DriverCode::TIMEOUT).with_detail(detail)
}
