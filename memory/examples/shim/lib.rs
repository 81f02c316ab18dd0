//! A libcuda.so for tests: CUDA's C functions, implemented by the simulated device.
//!
//!   driver::cuda ─► cuLaunchKernel(…) ─► [ this library ] ─► SimDriver ─► interpreter and checks ─► report
//!
//! Use        in a child process with this file as libcuda.so and libcuda.so.1 in its own LD_LIBRARY_PATH, nowhere
//!            else.
//! Answers    CUDA's result codes and refusals: before cuInit, without a current context, for null pointers, for
//!            invalid handles. Constants and layouts of cuda.h are repeated here independently, so that both sides must
//!            agree.
//! Time       a separate thread runs queued work, as a GPU does; the host sees only what it has queried.
//! Checks     all of the simulated device's except one: this interface cannot declare the accesses of launches.
//! Exit       the exit handlers destroy all state: a later or active call aborts the process (`leaving`).
//! Options    environment variables `CUDA_SHIM_*`, in `options`.
//! Panics     never unwind into C: they are reported on standard error and become CUDA_ERROR_UNKNOWN.

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

/// A function's result code, if it is not success.
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

/// Pointer to a result; null is refused.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

fn give<T>(to: Out<'_, T>, value: T) -> Answer {
    to.ok_or(DriverCode::INVALID_VALUE)?.write(value);
    Ok(())
}

/// CUDA reports "not yet" as a code.
fn finished(yes: bool) -> Answer {
    if yes { Ok(()) } else { Err(DriverCode::NOT_READY.into()) }
}

/// Declares functions of libcuda. Each body gets the shim, forwards to its simulated driver, and returns `Ok` or a
/// code.
macro_rules! exports {
    ($(fn $name:ident($shim:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {$(
        /// # Safety
        /// As in cuda.h: pointers are null, or valid as the function's documentation requires.
        // SAFETY: only this library exports libcuda's names, and it is the process's only libcuda.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_uint {
            $crate::answer(stringify!($name), move |$shim: &'static $crate::shim::Shim| -> $crate::Answer { $body })
        }
    )*};
}
use exports;

/// Runs a function's body: injects failures, and converts errors and panics to codes.
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
