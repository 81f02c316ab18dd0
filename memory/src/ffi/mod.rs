//! A C interface to the memory layer, for PyTorch's pluggable allocator and similar callers.
//!
//!   torch.cuda.memory.CUDAPluggableAllocator("libmillpond_allocator.so", "millpond_alloc", "millpond_free")
//!     tensor created ─► millpond_alloc(bytes, device, stream)       bytes, valid in stream order
//!     record_stream ─► millpond_record_stream(ptr, stream)          one more stream uses them
//!     tensor dropped ─► millpond_free(ptr, bytes, device, stream)   freed behind all current work of all its streams
//!
//! The library is the example `millpond_allocator`:
//! `cargo build --release -p millpond-memory --example millpond_allocator`
//! builds `target/release/examples/libmillpond_allocator.so`. Another cdylib exports the same functions with
//! [`export_c_interface!`](crate::export_c_interface). `memory/examples/millpond_allocator.h` declares them for C, and
//! `torch_allocator.py` next to it uses them from Python.
//!
//! | function                              | PyTorch's hook                | effect                                   |
//! |---------------------------------------|-------------------------------|------------------------------------------|
//! | `millpond_alloc(..)`                  | `alloc_fn`                    | allocates at a multiple of 256, or null  |
//! | `millpond_free(..)`                   | `free_fn`                     | must match size and device of the block  |
//! | `millpond_record_stream(..)`          | `set_record_stream_fn`        | the free waits for this stream, too      |
//! | `millpond_init(..)`                   | `set_init_fn`                 | opens the driver, checks the options     |
//! | `millpond_reset(..)`                  | `set_reset_fn`                | frees all unused memory (`empty_cache`)  |
//! | `millpond_memory_fraction(..)`        | `set_memory_fraction_fn`      | sets a limit before the first use        |
//! | `millpond_base_alloc(..)`             | `set_base_alloc_fn`           | start and length of an allocation        |
//! | `millpond_begin_allocate_to_pool(..)` | `set_begin_allocate_to_pool`  | assigns captures to a graph pool         |
//! | `millpond_end_allocate_to_pool(..)`   | `set_end_allocate_to_pool_fn` | ends that assignment                     |
//! | `millpond_release_pool(..)`           | `set_release_pool`            | one graph of the pool is destroyed       |
//! | `millpond_trim(..)`                   |                               | frees unused memory: bytes, or -1        |
//! | `millpond_stats_json(..)`             |                               | statistics: length of the text, or -1    |
//! | `millpond_forget_stream(..)`          |                               | its owner will destroy it: 0, or -1      |
//! | `millpond_release_graphs(..)`         |                               | all graphs are destroyed: 0, or -1       |
//! | `millpond_last_error(..)`             |                               | error of the thread's last call, or null |
//!
//! Streams    raw handles, as the CUDA runtime and the driver share them. Null (and 1) is the legacy default stream,
//!            PyTorch's default. The per-thread default stream (2) is refused. A stream must live until `millpond_free`
//!            of all memory that was allocated on it or recorded for it, or until `millpond_forget_stream`.
//! Order      a free is ordered after all work submitted so far to the streams of the allocation and of the free, and
//!            to the recorded ones. With one stream that costs nothing; with several, one event each on an internal
//!            stream: the caller's streams do not wait.
//! Contexts   each device's primary context, which the CUDA runtime also uses. Every call restores the caller's current
//!            context (and so its current device).
//! Captures   memory allocated on a stream that is being captured keeps its address for the graph: see `captured`. A
//!            free of older memory during a capture happens after the capture.
//! Errors     never unwind into C. A failed call returns null or -1, sets `millpond_last_error`, and reports the first
//!            few errors of a process on standard error, because PyTorch does not check for null. Mismatched arguments
//!            are refused and the memory leaks; nothing is freed twice.
//! Exit       nothing is closed or freed when the process ends. After that no call reaches the driver (`leave`): a
//!            later free is dropped.
//! Options    `MILLPOND_MEMORY_RESOURCE`: cuda, cuda_async_default, cuda_async (the default), caching, arena, binning.
//!            `MILLPOND_MEMORY_LIMIT_BYTES`: maximum bytes handed out per device; 0 is three quarters of the initially
//!            free memory; unset, all memory.
//! Threads    any thread may call any function. A lookup locks one of 64 shards; a stream's lock is held across its own
//!            calls.

mod allocator;
mod captured;
pub(crate) mod descriptor;
mod options;
mod report;
mod table;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_double, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::allocator::{Allocator, refused};
use self::options::Options;
use crate::device::Device;
use crate::driver::{CaptureMode, CudaDriver, Driver, DriverCode, ThreadContext};
use crate::error::{MemoryError, Result};
use crate::stream::Stream;

/// PyTorch's ID of a graph pool: C++'s `std::pair<uint64_t, uint64_t>`, which is passed like this struct.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphPoolId {
    pub first: u64,
    pub second: u64,
}

/// Wraps an external stream, given by CUDA's handle as an address; 0 is the legacy default stream.
///
/// # Safety
/// The handle is a live stream of the device's primary context, and its owner keeps it until `Stream::give_up` has
/// returned, or as long as the device is open.
pub unsafe fn wrap_stream(device: &Device, raw: u64) -> Result<Stream> {
    device.external_stream(raw)
}

// 1. The process.

/// Maximum number of errors printed on standard error; later ones are only counted.
const MOST_TOLD: u64 = 16;

static ERRORS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The allocator of the process. Never dropped: no call may be made while the process exits.
fn allocator() -> Result<&'static Allocator> {
    static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(allocator) = ALLOCATOR.get() {
        return Ok(allocator);
    }
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if ALLOCATOR.get().is_none() {
        let options = Options::from_environment()?;
        let driver: Arc<dyn Driver> = CudaDriver::open()?;
        // No other thread sets it: the lock is held.
        let _ = ALLOCATOR.set(Allocator::new(driver, options)?);
    }
    Ok(ALLOCATOR.get().expect("set above"))
}

/// State of the caller's thread to restore: its current context and its capture mode.
struct Visit<'a> {
    driver: &'a dyn Driver,
    context: ThreadContext,
    mode: CaptureMode,
}

impl<'a> Visit<'a> {
    fn begin(driver: &'a dyn Driver) -> Result<Self> {
        let context = driver.context_save()?;
        // Calls of this crate are not part of a capture, so none is unsafe for one.
        let mode = driver.thread_capture_mode(CaptureMode::Relaxed)?;
        Ok(Visit { driver, context, mode })
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Errors cannot be returned here, and the driver accepted both values a moment ago.
        let _ = self.driver.thread_capture_mode(self.mode);
        let _ = self.driver.context_restore(self.context);
    }
}

fn is_the_end(error: &MemoryError) -> bool {
    match error {
        MemoryError::Driver { error, .. } | MemoryError::DeviceLost { error, .. } => {
            error.code == DriverCode::DEINITIALIZED
        }
        _ => false,
    }
}

fn tell(function: &'static str, error: &MemoryError) {
    let words = match error {
        MemoryError::Call { .. } => error.to_string(),
        _ => format!("{function}: {error}"),
    };
    match ERRORS.fetch_add(1, Relaxed) + 1 {
        // An exiting process shuts down its driver before its last frees.
        _ if is_the_end(error) => {}
        told @ 1..=MOST_TOLD => {
            let last = if told == MOST_TOLD { " (no more will be told here)" } else { "" };
            eprintln!("millpond: {words}{last}");
        }
        _ => {}
    }
    let words = CString::new(words.replace('\0', " ")).ok();
    // The thread may be exiting, with its thread-local storage gone.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = words);
}

/// Runs the body of a C function: errors and panics return `otherwise`.
fn call<T>(function: &'static str, otherwise: T, body: impl FnOnce(&'static Allocator) -> Result<T>) -> T {
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = None);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let allocator = allocator()?;
        let _visit = Visit::begin(&**allocator.driver())?;
        body(allocator)
    }));
    let error = match ended {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(_) => {
            MemoryError::Call { function, reason: "a fault in this library, told above on standard error".into() }
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(|| tell(function, &error)));
    otherwise
}

/// Number of errors so far.
fn num_errors() -> u64 {
    ERRORS.load(Relaxed)
}

fn raw(stream: *mut c_void) -> u64 {
    stream.addr() as u64
}

fn address(ptr: *mut c_void) -> u64 {
    ptr.addr() as u64
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

// 2. PyTorch's functions.

/// Allocates `size` bytes on `device` for work on `stream`, at a multiple of 256. Returns null for zero bytes and on
/// failure: see `millpond_last_error`.
///
/// # Safety
/// `stream` is a live stream of the device's primary context.
pub unsafe extern "C" fn millpond_alloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    pointer(call("millpond_alloc", 0, |allocator| allocator.allocate(size, device, raw(stream))))
}

/// Frees an allocation of [`millpond_alloc`] behind all current work of its streams. Null has no effect.
///
/// # Safety
/// `stream` is a live stream of the device's primary context. All uses of the bytes were submitted: to `stream`, to the
/// stream of the allocation or to a recorded one. Those streams are live, too, or were forgotten by
/// [`millpond_forget_stream`].
pub unsafe extern "C" fn millpond_free(ptr: *mut c_void, size: isize, device: c_int, stream: *mut c_void) {
    call("millpond_free", (), |allocator| allocator.free(address(ptr), size, device, raw(stream)));
}

/// Records that work on `stream` uses the allocation at `ptr`: the free is ordered after the stream's work at the time
/// of the free.
///
/// # Safety
/// `stream` is a live stream of the primary context of the allocation's device, and lives until the free.
pub unsafe extern "C" fn millpond_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    call("millpond_record_stream", (), |allocator| allocator.record(address(ptr), raw(stream)));
}

/// Opens the driver and reads the options, so that invalid ones are reported early. A device is opened by its first
/// allocation.
pub extern "C" fn millpond_init(device_count: c_int) {
    call("millpond_init", (), |allocator| allocator.expect_devices(device_count));
}

/// Frees the unused memory of every open device. Blocks until the devices have finished their current work.
pub extern "C" fn millpond_reset() {
    call("millpond_reset", (), Allocator::trim_all);
}

/// Limits allocations on a device to a fraction of its memory. Valid only before the device's first use.
pub extern "C" fn millpond_memory_fraction(fraction: c_double, device: c_int) {
    call("millpond_memory_fraction", (), |allocator| allocator.set_fraction(fraction, device));
}

/// Returns the start of the allocation at `ptr` and writes its length to `size` unless that is null. Null if there is
/// none.
///
/// # Safety
/// `size` is null or points to a writable `size_t`.
pub unsafe extern "C" fn millpond_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let found = call("millpond_base_alloc", None, |allocator| allocator.base(address(ptr)).map(Some));
    let Some((base, bytes)) = found else { return std::ptr::null_mut() };
    if !size.is_null() {
        // SAFETY: not null; the caller guarantees that it is writable.
        unsafe { size.write(bytes) };
    }
    pointer(base)
}

/// Assigns later captures on the device to a graph pool. `filter`, a C++ function object, is ignored.
pub extern "C" fn millpond_begin_allocate_to_pool(device: c_int, pool: GraphPoolId, filter: *const c_void) {
    let _ = filter;
    call("millpond_begin_allocate_to_pool", (), |allocator| allocator.begin_pool(device, (pool.first, pool.second)));
}

/// Ends the assignment of [`millpond_begin_allocate_to_pool`].
pub extern "C" fn millpond_end_allocate_to_pool(device: c_int, pool: GraphPoolId) {
    call("millpond_end_allocate_to_pool", (), |allocator| allocator.end_pool(device, (pool.first, pool.second)));
}

/// Call when a graph of the pool is destroyed. The last one frees the memory captured for the pool.
pub extern "C" fn millpond_release_pool(device: c_int, pool: GraphPoolId) {
    call("millpond_release_pool", (), |allocator| allocator.release_pool(device, (pool.first, pool.second)));
}

// 3. Functions without a PyTorch hook.

/// Frees unused memory of a device beyond `keep` bytes. Blocks until the device has finished its current work. Returns
/// the bytes freed, or -1.
pub extern "C" fn millpond_trim(device: c_int, keep: usize) -> i64 {
    call("millpond_trim", -1, |allocator| {
        let given = allocator.trim(device, keep as u64)?.as_u64();
        Ok(i64::try_from(given).unwrap_or(i64::MAX))
    })
}

/// Statistics of a device as a JSON object; with -1 for `device`, a list of all open devices. Writes at most `len`
/// bytes, including a terminating zero, and returns the full length without the zero, or -1. Call with `len` 0 to get
/// the length.
///
/// # Safety
/// `text` is writable for `len` bytes, or `len` is 0.
pub unsafe extern "C" fn millpond_stats_json(device: c_int, text: *mut c_char, len: usize) -> i64 {
    let Some(json) = call("millpond_stats_json", None, |allocator| report::json(allocator, device).map(Some)) else {
        return -1;
    };
    if len > 0 && !text.is_null() {
        let fits = json.len().min(len - 1);
        // SAFETY: `text` is writable for `len` bytes; `fits` bytes and the zero are at most that.
        unsafe {
            std::ptr::copy_nonoverlapping(json.as_ptr(), text.cast::<u8>(), fits);
            text.add(fits).write(0);
        }
    }
    i64::try_from(json.len()).unwrap_or(i64::MAX)
}

/// Call before the owner destroys a stream: records its pending work and forgets the handle. 0, or -1.
///
/// # Safety
/// `stream` is a live stream of the device's primary context.
pub unsafe extern "C" fn millpond_forget_stream(device: c_int, stream: *mut c_void) -> c_int {
    call("millpond_forget_stream", -1, |allocator| allocator.forget_stream(device, raw(stream)).map(|()| 0))
}

/// Call when every graph captured on the device is destroyed: frees their memory. 0, or -1. For callers without graph
/// pools.
///
/// # Safety
/// No such graph is launched afterwards.
pub unsafe extern "C" fn millpond_release_graphs(device: c_int) -> c_int {
    call("millpond_release_graphs", -1, |allocator| allocator.release_graphs(device).map(|()| 0))
}

/// Message of the error in this thread's last call; null if there was none. Valid until the thread's next call.
pub extern "C" fn millpond_last_error() -> *const c_char {
    let found = LAST_ERROR.try_with(|last| last.borrow().as_ref().map_or(std::ptr::null(), |words| words.as_ptr()));
    found.unwrap_or(std::ptr::null())
}

/// Exports the functions of [`ffi`](crate::ffi) from the invoking library, under their own names.
///
/// A dependency on this crate alone exports nothing; invoke this once, in one cdylib.
#[macro_export]
macro_rules! export_c_interface {
    () => {
        $crate::export_c_interface! {
            unsafe millpond_alloc(size: isize, device: i32, stream: *mut c_void) -> *mut c_void;
            unsafe millpond_free(ptr: *mut c_void, size: isize, device: i32, stream: *mut c_void) -> ();
            unsafe millpond_record_stream(ptr: *mut c_void, stream: *mut c_void) -> ();
            safe millpond_init(device_count: i32) -> ();
            safe millpond_reset() -> ();
            safe millpond_memory_fraction(fraction: f64, device: i32) -> ();
            unsafe millpond_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void;
            safe millpond_begin_allocate_to_pool(device: i32, pool: GraphPoolId, filter: *const c_void) -> ();
            safe millpond_end_allocate_to_pool(device: i32, pool: GraphPoolId) -> ();
            safe millpond_release_pool(device: i32, pool: GraphPoolId) -> ();
            safe millpond_trim(device: i32, keep: usize) -> i64;
            unsafe millpond_stats_json(device: i32, text: *mut c_char, len: usize) -> i64;
            unsafe millpond_forget_stream(device: i32, stream: *mut c_void) -> i32;
            unsafe millpond_release_graphs(device: i32) -> i32;
            safe millpond_last_error() -> *const c_char;
        }
    };
    ($($kind:ident $name:ident($($arg:ident: $ty:ty),*) -> $answer:ty;)*) => {
        #[allow(unused_imports)]
        use ::std::ffi::{c_char, c_void};
        #[allow(unused_imports)]
        use $crate::ffi::GraphPoolId;

        $(
            /// Forwards to the function of this name in `millpond_memory::ffi`.
            ///
            /// # Safety
            /// See the function there.
            // SAFETY: only one library of a process exports the names.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $answer {
                $crate::export_c_interface!(@$kind $name($($arg),*))
            }
        )*
    };
    (@unsafe $name:ident($($arg:ident),*)) => {
        // SAFETY: the caller's contract is the same.
        unsafe { $crate::ffi::$name($($arg),*) }
    };
    (@safe $name:ident($($arg:ident),*)) => {
        $crate::ffi::$name($($arg),*)
    };
}
