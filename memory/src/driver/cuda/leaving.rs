//! The end of the process: no call reaches libcuda from the moment on when its own exit handlers may run.
//!
//!   call ─► [ gate ] ─► libcuda            exit ─► `process_ends`: shut gate, drain calls ─► libcuda's exit handlers
//!              └ shut ─► an error
//!
//! Why        "Using any of these interfaces (implicitly or explicitly) during program initiation or termination after
//!            main returns results in undefined behavior" (CUDA C++ Programming Guide, Initialization). Other threads
//!            go on while a process exits.
//! Ahead      exit handlers run in the reverse order of their registration. Ours is registered behind each step in
//!            which libcuda may have registered one: loading, its start, contexts, code (the compiler is a library of
//!            its own). It may run more than once. What a first such step has just registered is ahead of ours until
//!            that call returns: for a program that exits on one thread in the middle of it, only `leave` is early
//!            enough.
//! Bound      a call may hang. After `LONGEST` the process ends beside it: its handlers may then meet it, as they did
//!            before.
//! Inside     an exit out of a call (by a signal handler, say) does not wait for that call.
//! Forks      a child of `fork` has the parent's handles, and no driver: its calls are refused, and its exit waits for
//!            nothing.
//! Unloaded   a handler belongs to the library that registers it: unloading ours runs it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

use crate::error::{DriverCode, DriverError};
use crate::gate::{Gate, Reason};

/// The longest wait of an exit handler for the calls inside.
const LONGEST: Duration = Duration::from_secs(10);
/// Time between two looks at the calls inside.
const PAUSE: Duration = Duration::from_micros(50);
const SHARDS: usize = 32;

/// The process ends.
const ENDS: Reason = 1;
/// This process is a child that was forked from one with a driver.
const FORKED: Reason = 2;

static GATE: LazyLock<Gate<SHARDS>> = LazyLock::new(Gate::new);

/// A thread's shard, and its calls inside.
#[derive(Clone, Copy)]
struct Here {
    shard: usize,
    calls: u64,
}

thread_local! {
    /// Nothing to drop: a destructor of another thread-local value may still call.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
}

fn here() -> Here {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    HERE.get().unwrap_or_else(|| Here { shard: NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS, calls: 0 })
}

/// A call that is inside, on this thread.
pub(super) struct Call {
    _of_this_thread: PhantomData<*const ()>,
}

/// Lets a call in.
///
/// # Errors
/// [`DriverCode::DEINITIALIZED`], as from a driver that shuts down, once the gate is shut.
#[inline]
pub(super) fn enter(call: &'static str) -> Result<Call, DriverError> {
    let Here { shard, calls } = here();
    GATE.enter(shard).map_err(|reason| refused(call, reason))?;
    HERE.set(Some(Here { shard, calls: calls + 1 }));
    Ok(Call { _of_this_thread: PhantomData })
}

#[cold]
fn refused(call: &'static str, reason: Reason) -> DriverError {
    let words = match reason {
        FORKED => "the process was forked from one that uses the driver; start another program instead (exec)",
        _ => "the process ends",
    };
    DriverError::new(call, DriverCode::DEINITIALIZED).with_detail(words)
}

impl Drop for Call {
    fn drop(&mut self) {
        let Here { shard, calls } = here();
        HERE.set(Some(Here { shard, calls: calls - 1 }));
        GATE.leave(shard);
    }
}

/// True once every call is refused.
pub(crate) fn is_shut() -> bool {
    GATE.reason().is_some()
}

/// Refuses every call from now on, and waits for those inside. How many are inside when the time is over: none, most
/// likely.
pub(crate) fn shut(within: Duration) -> u64 {
    GATE.shut(ENDS);
    if GATE.reason() == Some(FORKED) {
        // The threads that were inside are the parent's.
        return 0;
    }
    let Here { shard: own, calls: below } = here();
    let inside = |shard: usize| GATE.calls(shard) - if shard == own { below } else { 0 };
    let began = Instant::now();
    let mut shard = 0;
    while shard < SHARDS {
        if inside(shard) == 0 {
            shard += 1;
        } else if began.elapsed() < within {
            std::thread::sleep(PAUSE);
        } else {
            return (shard..SHARDS).map(inside).sum();
        }
    }
    0
}

/// A step in which libcuda may have registered exit handlers.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Loaded,
    Started,
    Context,
    Code,
}

impl Step {
    /// Registers a handler that runs before those of the step, which is over. At the first time of a step and ever more
    /// rarely: two threads may do the first one together.
    pub(super) fn over(self) {
        static TIMES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
        static FORKS: Once = Once::new();
        if is_shut() {
            return;
        }
        if (TIMES[self as usize].fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            // SAFETY: `process_ends` does not unwind, and may run in any thread at any time. The C library keeps it for
            // as long as
            //         the code is loaded. Without room for another one, the process ends as if there were none.
            unsafe { libc::atexit(process_ends) };
        }
        FORKS.call_once(|| {
            // SAFETY: `forked` changes one atomic number, which is allowed in the child of a process with threads.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
    }
}

extern "C" fn process_ends() {
    shut(LONGEST);
}

extern "C" fn forked() {
    GATE.shut(FORKED);
}

/// Ends the process at once, without exit handlers: for one in which a call hangs, which those of the driver would
/// meet. What is buffered is not written.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: it ends the process, and touches no memory of it.
    unsafe { libc::_exit(code) }
}
