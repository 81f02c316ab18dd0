//! The end of a process that uses CUDA's driver: devices close, then no call reaches the driver any more.
//!
//!   leave(within) ─► work beside queries begins nothing new ─► devices close, as their last handles go ─┬─► calls are refused, and ─► Left
//!                                                    └────── the time is over ────────────────────────┘   those under way end
//!
//! Who        a program that ends by itself: it drops its sessions, its pools and its runtime, and calls this last.
//! Without    any exit handler of ours shuts the driver (`driver::cuda::leaving`), before the driver's own run. So a program that forgets to
//!            drop, exits on one thread while others query, or panics, calls no driver that has gone. What it holds is left behind.
//! After      every call of the driver is refused with `DriverCode::DEINITIALIZED`: devices are lost, drops do nothing, and threads that wait
//!            for a device end in an error.
//! Simulated  devices are not waited for: no handler of a process takes them away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::DriverKind;
use crate::driver::cuda;

pub use crate::driver::cuda::exit_at_once;

static LEAVING: AtomicBool = AtomicBool::new(false);
/// Devices of CUDA that are open.
static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

fn open() -> MutexGuard<'static, usize> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Devices that were still in use.
    pub devices: usize,
    /// Calls that were still inside the driver. Its exit handlers may meet them: [`exit_at_once`] does without.
    pub calls: u64,
}

/// Closes CUDA's driver for this process, for good. Each of the two waits takes at most `within`.
pub fn leave(within: Duration) -> Left {
    LEAVING.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let mut devices = open();
    while *devices > 0 {
        let Some(rest) = within.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) else { break };
        (devices, _) = CLOSED.wait_timeout(devices, rest).unwrap_or_else(PoisonError::into_inner);
    }
    let devices = *devices;
    Left { devices, calls: cuda::shut(within) }
}

/// True from the begin of [`leave`] on, and while the process exits: work that no query waits for is not begun.
pub fn is_leaving() -> bool {
    LEAVING.load(Ordering::Relaxed) || cuda::is_shut()
}

/// An open device, which `leave` waits for.
pub(crate) struct Open(DriverKind);

impl Open {
    pub(crate) fn new(kind: DriverKind) -> Self {
        if kind == DriverKind::Cuda {
            *open() += 1;
        }
        Open(kind)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0 == DriverKind::Cuda {
            *open() -= 1;
            CLOSED.notify_all();
        }
    }
}
