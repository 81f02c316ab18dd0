//! Shutdown of CUDA's driver in this process: devices close, then no call reaches the driver any more.
//!
//!   leave(within) ─► no new background work ─► devices close, with their last handles ─┬─► calls refused, ─► Left
//!                                               └────── the time is over ──────────────┘   active ones end
//!
//! Callers    a program that exits normally: it drops its sessions, pools and runtime, and calls this last.
//! Without    this call, an exit handler of this crate shuts the driver (`driver::cuda::leaving`) before the driver's
//!            own handler runs. So a program that does not drop everything, exits while other threads query, or panics,
//!            never calls a driver that is gone. Its resources are left behind.
//! After      every driver call is refused with `DriverCode::DEINITIALIZED`: devices are lost, drops do nothing, and
//!            threads that wait for a device end with an error.
//! Simulated  devices are not waited for: no exit handler destroys them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::DriverKind;
use crate::driver::cuda;

pub use crate::driver::cuda::exit_at_once;

static LEAVING: AtomicBool = AtomicBool::new(false);
/// Number of open CUDA devices.
static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

fn open() -> MutexGuard<'static, usize> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resources left behind by [`leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Number of devices still in use.
    pub devices: usize,
    /// Number of calls still inside the driver. Its exit handlers may conflict with them; [`exit_at_once`] skips the
    /// handlers.
    pub calls: u64,
}

/// Closes CUDA's driver for this process permanently. Each of the two waits takes at most `within`.
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

/// True from the start of [`leave`], and while the process exits: no background work is started.
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
