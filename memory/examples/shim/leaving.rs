//! Process exit as in NVIDIA's library: its exit handlers destroy its state, and a later call reads freed memory.
//!
//!   cuInit, first context, first code ─► atexit ─► [ gone ] ─► report
//!                                                     └─► a later or active call: a line on standard error, and abort
//!
//! Handlers  the library does not document when it registers its own. Here there are three, and the first to run ends
//!           everything: a caller has to stop before all of them.
//! Forks     a forked child has no driver: a call there aborts, too.
//! Delays    `CUDA_SHIM_DELAYS` is a seed. Calls that free something or load code take longer at random, as do the exit
//!           handlers: running threads then meet the end of the process during or just after such a call.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::shim;

/// Moments at which the library registers an exit handler.
#[derive(Clone, Copy)]
pub(crate) enum Registers {
    Initialised,
    FirstContext,
    FirstCode,
}

static GONE: AtomicBool = AtomicBool::new(false);
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
static DELAYED: AtomicU64 = AtomicU64::new(0);
/// ID of the process that initialized the library; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Maximum milliseconds that the exit handlers take, if calls are delayed.
const HANDLERS_MS: u64 = 40;

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

impl Registers {
    /// Registers the handler for this moment, once.
    pub(crate) fn now(self) {
        static ONCE: [Once; 3] = [const { Once::new() }; 3];
        // A forked child does not replace the initializing process.
        let _ = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        ONCE[self as usize].call_once(|| {
            // SAFETY: the function is in the C library; `end` never unwinds, and this library is never unloaded.
            unsafe { atexit(end) };
        });
    }
}

/// An active call of the C interface.
pub(crate) struct Call;

impl Call {
    /// Aborts the process once its driver has gone.
    pub(crate) fn begin(name: &'static str) -> Self {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        let call = Call;
        if GONE.load(Ordering::SeqCst) {
            abort(&format!("{name} was called after the driver's exit handlers"));
        }
        let process = PROCESS.load(Ordering::Relaxed);
        if process != 0 && process != std::process::id() {
            abort(&format!("{name} was called in a forked child"));
        }
        if let Some(time) = delay_of(name) {
            std::thread::sleep(time);
        }
        call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }
}

fn abort(words: &str) -> ! {
    eprintln!("libcuda shim: {words}");
    std::process::abort();
}

extern "C" fn end() {
    if GONE.swap(true, Ordering::SeqCst) {
        return;
    }
    // A forked child has copies of the counts, but none of the threads.
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let calls = UNDER_WAY.load(Ordering::SeqCst);
    if calls > 0 {
        abort(&format!("{calls} calls were under way when the driver's exit handlers ran"));
    }
    // A panic cannot be handled here; the panic hook has reported it.
    let _ = catch_unwind(shim::report);
    // Leaves time for late calls of other threads.
    if let Some(drawn) = draw() {
        std::thread::sleep(Duration::from_millis(drawn % (HANDLERS_MS + 1)));
    }
}

/// Delay of a call by the seed; `None` for no delay.
fn delay_of(name: &str) -> Option<Duration> {
    const LONG: [&str; 9] =
        ["Destroy", "Free", "Unload", "Release", "Unregister", "TrimTo", "Link", "ModuleLoad", "HostAlloc"];
    let drawn = draw()?;
    let micros = match (LONG.iter().any(|word| name.contains(word)), drawn % 16) {
        (true, 0) => 4000,
        (true, 1..=8) => 400,
        (false, 0) => 200,
        _ => return None,
    };
    Some(Duration::from_micros((drawn >> 8) % micros))
}

/// Next random number of the seed, if set.
fn draw() -> Option<u64> {
    let seed = shim::get().options.delays?;
    let number = DELAYED.fetch_add(1, Ordering::Relaxed);
    // splitmix64, Steele, Lea and Flood 2014
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(z ^ (z >> 31))
}
