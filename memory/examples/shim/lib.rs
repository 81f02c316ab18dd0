//! A libcuda.so for tests: CUDA's C functions, answered by the simulated device.
//!
//!   driver::cuda ─► cuLaunchKernel(…) ─► [ this library ] ─► SimDriver ─► interpreter and checks ─► report
//!
//! Use        in a child process that finds this file as libcuda.so and libcuda.so.1 in its own LD_LIBRARY_PATH, nowhere else.
//! Answers    CUDA's result codes and refusals: before cuInit, without a current context, for null pointers, for handles that
//!            are none. Numbers and layouts are those of cuda.h, written down here once more, so that both sides must agree.
//! Time       a thread of its own runs what is queued, as a GPU does; the host knows what it has asked for, and no more.
//! Checks     all of the simulated device's but one: launches cannot declare what they touch through this interface.
//! Exit       its exit handlers take everything away: a later call, or one under way, aborts the process (`leaving`).
//! Options    environment variables `CUDA_SHIM_*`, in `options`.
//! Panics     never cross into C: they are told on standard error and become CUDA_ERROR_UNKNOWN.

mod code;
mod device;
mod graph;
mod leaving;
mod memory;
mod options;
mod order;
mod shim;

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use millpond_memory::driver::{DriverCode, DriverError};
use shim::Shim;

/// A function's result code, where it is not success.
struct Refused(DriverCode);

impl From<DriverCode> for Refused {
    fn from(code: DriverCode) -> Self {
        Refused(code)
    }
}

impl From<DriverError> for Refused {
    fn from(error: DriverError) -> Self {
        shim::log(&error);
        Refused(error.code)
    }
}

type Answer<T = ()> = Result<T, Refused>;

/// A pointer to where an answer goes; null is refused.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

fn give<T>(to: Out<'_, T>, value: T) -> Answer {
    to.ok_or(DriverCode::INVALID_VALUE)?.write(value);
    Ok(())
}

/// CUDA tells "not yet" by a code.
fn finished(yes: bool) -> Answer {
    if yes { Ok(()) } else { Err(DriverCode::NOT_READY.into()) }
}

/// Declares functions of libcuda. Each body sees the shim, whose simulated driver it forwards to, and answers `Ok` or a code.
macro_rules! exports {
    ($(fn $name:ident($shim:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {$(
        /// # Safety
        /// As in cuda.h: pointers are null, or point to what the function's documentation says.
        // SAFETY: libcuda's names are exported by this library alone, which is a process's only libcuda.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_uint {
            $crate::answer(stringify!($name), move |$shim: &'static $crate::shim::Shim| -> $crate::Answer { $body })
        }
    )*};
}
use exports;

/// Runs a function's body: fails on order, and turns errors and panics into codes.
fn answer(name: &'static str, body: impl FnOnce(&'static Shim) -> Answer) -> c_uint {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _call = leaving::Call::begin(name);
        let shim = shim::get();
        shim.options.hang_in(name);
        if let Some(code) = shim.options.trouble_for(name) {
            return code;
        }
        if name != "cuInit" && name != "cuDriverGetVersion" && !shim.is_initialised() {
            return DriverCode::NOT_INITIALIZED;
        }
        match body(shim) {
            Ok(()) => DriverCode::SUCCESS,
            Err(Refused(code)) => code,
        }
    }));
    caught.unwrap_or(DriverCode::UNKNOWN).0
}
