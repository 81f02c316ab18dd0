//! How the process ends: the device closes before the driver's exit handlers run.
//!
//! ```text
//!   end, error, panic, a first signal ─► tasks are dropped ─► devices close ─► calls are refused, those inside end ─┬─► exit
//!   a second signal ────────────────────────────────────────► calls are refused, those inside end ──────────────────┘
//!                                                                 a call hangs ─► the process ends without exit handlers
//! ```
//!
//! Waits   for devices of CUDA alone: a thread that waits for a pipe, or computes, has none. Bounded: what hangs is left behind.

use std::io::{self, Write};
use std::time::Duration;

use crate::error::Exit;
use crate::{output, terminal, unfinished};

/// How long a device may take to close after work that ended by itself: a module that is being assembled takes seconds.
const ENDED: Duration = Duration::from_secs(5);
/// The same after a signal, whose sender waits.
const SIGNALLED: Duration = Duration::from_secs(1);
/// The same after a second signal.
const INSISTED: Duration = Duration::from_millis(100);

/// Ends the process after its work. The runtime was shut down: its threads drop what they have.
pub fn in_order(exit: Exit) -> ! {
    let by_signal = matches!(exit, Exit::Interrupted | Exit::Terminated | Exit::HungUp);
    let left = millpond::leave(if by_signal { SIGNALLED } else { ENDED });
    if by_signal {
        output::remove_at_end(unfinished::files());
    }
    end(exit, left.calls)
}

/// Ends the process beside work that goes on.
pub fn at_once(exit: Exit) -> ! {
    let left = millpond::leave(INSISTED);
    output::remove_at_end(unfinished::files());
    end(exit, left.calls)
}

/// Ends the process; `calls` hang in the driver, whose exit handlers would meet them.
fn end(exit: Exit, calls: u64) -> ! {
    // Last: dropped tasks may have begun files after the signal.
    output::remove_temporary();
    terminal::restore();
    // As the end of `main` does.
    let _ = io::stdout().flush();
    if calls > 0 {
        millpond_memory::leave::exit_at_once(exit as i32);
    }
    std::process::exit(exit as i32)
}
