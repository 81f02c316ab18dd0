//! The end of the process: the device closes before the driver's exit handlers run.
//!
//! ```text
//!   end, error, panic, first signal ─► drop tasks ─► close devices ─► refuse new calls, wait for old ones ─┬─► exit
//!   second signal ───────────────────────────────────────────────────► refuse new calls, wait for old ones ─┘
//!                                                           a call hangs ─► the process ends without exit handlers
//! ```
//!
//! Waits   Only for CUDA devices: threads that compute or wait for a pipe use none. Bounded: hanging calls are
//!         abandoned.

use std::io::{self, Write};
use std::time::Duration;

use crate::error::Exit;
use crate::{output, terminal, unfinished};

/// Maximum time for a device to close after work that ended normally: assembling a module takes seconds.
const ENDED: Duration = Duration::from_secs(5);
/// Maximum time for a device to close after a signal.
const SIGNALLED: Duration = Duration::from_secs(1);
/// Maximum time for a device to close after a second signal.
const INSISTED: Duration = Duration::from_millis(100);

/// Ends the process after its work. The runtime is already shut down, so its threads are dropping their state.
pub fn in_order(exit: Exit) -> ! {
    let by_signal = matches!(exit, Exit::Interrupted | Exit::Terminated | Exit::HungUp);
    let left = millpond::leave(if by_signal { SIGNALLED } else { ENDED });
    if by_signal {
        output::remove_at_end(unfinished::files());
    }
    end(exit, left.calls)
}

/// Ends the process while work is still running.
pub fn at_once(exit: Exit) -> ! {
    let left = millpond::leave(INSISTED);
    output::remove_at_end(unfinished::files());
    end(exit, left.calls)
}

/// Ends the process. If `calls` are hanging in the driver, skips its exit handlers, which must not run during a call.
fn end(exit: Exit, calls: u64) -> ! {
    // Must be last: dropped tasks may have created files after the signal.
    output::remove_temporary();
    terminal::restore();
    // As at the end of `main`.
    let _ = io::stdout().flush();
    if calls > 0 {
        millpond_memory::leave::exit_at_once(exit as i32);
    }
    std::process::exit(exit as i32)
}
