//! A C interface to the memory layer, made for PyTorch's pluggable allocator and fit for others.
//!
//!   torch.cuda.memory.CUDAPluggableAllocator("libmillpond_allocator.so", "millpond_alloc", "millpond_free")
//!     tensor made ─► millpond_alloc(bytes, device, stream)          bytes, valid in the stream's order
//!     record_stream ─► millpond_record_stream(ptr, stream)          one more stream uses them
//!     tensor gone ─► millpond_free(ptr, bytes, device, stream)      freed behind everything that all its streams hold
//!
//! The library is the example `millpond_allocator`: `cargo build --release -p millpond-memory --example millpond_allocator`
//! makes `target/release/examples/libmillpond_allocator.so`. Another cdylib exports the same functions by
//! [`export_c_interface!`](crate::export_c_interface). `memory/examples/millpond_allocator.h` declares them for C, and
//! `torch_allocator.py` beside it uses them from Python.
//!
//! | function                                                        | PyTorch's hook                | does                                                                     |
//! |-----------------------------------------------------------------|-------------------------------|--------------------------------------------------------------------------|
//! | `void *millpond_alloc(ssize_t, int, cudaStream_t)`              | `alloc_fn`                    | bytes at a multiple of 256; null for none, and on failure                |
//! | `void millpond_free(void *, ssize_t, int, cudaStream_t)`        | `free_fn`                     | four arguments: the bytes and the device must be those of the allocation |
//! | `void millpond_record_stream(void *, cudaStream_t)`             | `set_record_stream_fn`        | the free waits for this stream, too                                      |
//! | `void millpond_init(int)`                                       | `set_init_fn`                 | opens the driver; says on standard error what is wrong with the options  |
//! | `void millpond_reset(void)`                                     | `set_reset_fn`                | `torch.cuda.empty_cache`: trims every device in use to nothing           |
//! | `void millpond_memory_fraction(double, int)`                    | `set_memory_fraction_fn`      | a device's limit, before it is first used                                |
//! | `void *millpond_base_alloc(void *, size_t *)`                   | `set_base_alloc_fn`           | where an allocation begins, and its bytes                                |
//! | `void millpond_begin_allocate_to_pool(int, pair, function *)`   | `set_begin_allocate_to_pool`  | captures are for this graph pool                                         |
//! | `void millpond_end_allocate_to_pool(int, pair)`                 | `set_end_allocate_to_pool_fn` | until now                                                                |
//! | `void millpond_release_pool(int, pair)`                         | `set_release_pool`            | one graph of the pool is gone                                            |
//! | `int64_t millpond_trim(int, size_t)`                            |                               | gives unused memory beyond that back; bytes, or -1                       |
//! | `int64_t millpond_stats_json(int, char *, size_t)`              |                               | statistics; the length they need, or -1                                  |
//! | `int millpond_forget_stream(int, cudaStream_t)`                 |                               | its owner is about to destroy it; 0, or -1                               |
//! | `int millpond_release_graphs(int)`                              |                               | every graph captured on the device is gone; 0, or -1                     |
//! | `const char *millpond_last_error(void)`                         |                               | what went wrong in this thread's last call; null if nothing did          |
//!
//! Streams    raw handles, as the CUDA runtime and the driver share them. Null (and 1) is the legacy default stream, PyTorch's
//!            default. The per-thread default stream (2) is refused. A stream must live until `millpond_free` of what was
//!            allocated on it or recorded for it, or until `millpond_forget_stream`.
//! Order      a free comes after everything that was submitted by then to the allocation's stream, the free's and the recorded
//!            ones. With one stream that costs nothing; with several, an event each, on a stream of ours: theirs do not wait.
//! Contexts   each device's primary context, which the CUDA runtime uses, too. The caller's current context (and so its current
//!            device) is put back at the end of every call.
//! Captures   what is allocated on a stream that is being captured into a graph keeps its address for the graph: `captured`
//!            says how long. What is freed meanwhile, and is from before, is freed after the capture.
//! Errors     never unwind into C. Null or -1, `millpond_last_error`, and the first few of a process on standard error, for
//!            PyTorch does not look at null. What does not fit together is refused and leaks; nothing is freed twice.
//! Exit       nothing is closed or freed when the process ends. Once it exits no call reaches the driver (`leave`): a free that comes
//!            then is dropped.
//! Options    `MILLPOND_MEMORY_RESOURCE`: cuda, cuda_async_default, cuda_async (the default), caching, arena, binning.
//!            `MILLPOND_MEMORY_LIMIT_BYTES`: the most handed out per device; 0 is three quarters of what is free at first;
//!            unset, all there is.
//! Threads    any thread may call anything. A look-up locks one of 64 shards; a stream's lock is held across its own calls.

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

/// PyTorch's name of a graph pool: C++'s `std::pair<uint64_t, uint64_t>`, which is passed like this struct.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphPoolId {
    pub first: u64,
    pub second: u64,
}

/// Wraps a stream that somebody else made: CUDA's handle for it, as an address; 0 is the legacy default stream.
///
/// # Safety
/// The handle is a live stream of the device's primary context, and its owner keeps it until `Stream::give_up` has returned,
/// or as long as the device is open.
pub unsafe fn wrap_stream(device: &Device, raw: u64) -> Result<Stream> {
    device.external_stream(raw)
}

// 1. The process.

/// Errors told on standard error; from then on they are only counted.
const MOST_TOLD: u64 = 16;

static ERRORS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The allocator of the process. Never dropped: nothing may be called while the process ends.
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
        // Nobody else sets it: the lock is held.
        let _ = ALLOCATOR.set(Allocator::new(driver, options)?);
    }
    Ok(ALLOCATOR.get().expect("set above"))
}

/// What a thread of the caller's had, and gets back: its current context, and how its captures look at unsafe calls.
struct Visit<'a> {
    driver: &'a dyn Driver,
    context: ThreadContext,
    mode: CaptureMode,
}

impl<'a> Visit<'a> {
    fn begin(driver: &'a dyn Driver) -> Result<Self> {
        let context = driver.context_save()?;
        // What is ours is no part of a capture, so none of our calls is unsafe for one.
        let mode = driver.thread_capture_mode(CaptureMode::Relaxed)?;
        Ok(Visit { driver, context, mode })
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Nobody can be told, and the driver took both a moment ago.
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
        // A process that ends takes its driver down before the last of its frees.
        _ if is_the_end(error) => {}
        told @ 1..=MOST_TOLD => {
            let last = if told == MOST_TOLD { " (no more will be told here)" } else { "" };
            eprintln!("millpond: {words}{last}");
        }
        _ => {}
    }
    let words = CString::new(words.replace('\0', " ")).ok();
    // The thread may be ending, and its storage gone.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = words);
}

/// Runs what a function does: its errors and panics become `otherwise`.
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

/// How many errors there were.
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

/// `size` bytes on `device` that work on `stream` may use from now on, at a multiple of 256. Null for no bytes, and on
/// failure: `millpond_last_error` tells.
///
/// # Safety
/// `stream` is a live stream of the device's primary context.
pub unsafe extern "C" fn millpond_alloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    pointer(call("millpond_alloc", 0, |allocator| allocator.allocate(size, device, raw(stream))))
}

/// Takes back what [`millpond_alloc`] gave, behind everything that its streams hold by now. Null is nothing.
///
/// # Safety
/// `stream` is a live stream of the device's primary context. All uses of the bytes were submitted, to it, to the stream of
/// the allocation or to a recorded one; those streams live, too, or were forgotten by [`millpond_forget_stream`].
pub unsafe extern "C" fn millpond_free(ptr: *mut c_void, size: isize, device: c_int, stream: *mut c_void) {
    call("millpond_free", (), |allocator| allocator.free(address(ptr), size, device, raw(stream)));
}

/// Work on `stream` uses what lives at `ptr`: its free will come after what the stream holds by then.
///
/// # Safety
/// `stream` is a live stream of the primary context of the allocation's device, and lives until the free.
pub unsafe extern "C" fn millpond_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    call("millpond_record_stream", (), |allocator| allocator.record(address(ptr), raw(stream)));
}

/// Opens the driver and reads the options, so that what is wrong with them is told early. Devices are opened when they are
/// first allocated on.
pub extern "C" fn millpond_init(device_count: c_int) {
    call("millpond_init", (), |allocator| allocator.expect_devices(device_count));
}

/// Gives the unused memory of every device in use back. Blocks until they have finished what they have.
pub extern "C" fn millpond_reset() {
    call("millpond_reset", (), Allocator::trim_all);
}

/// Limits what is handed out on a device to a share of its memory. Only before the device is first used.
pub extern "C" fn millpond_memory_fraction(fraction: c_double, device: c_int) {
    call("millpond_memory_fraction", (), |allocator| allocator.set_fraction(fraction, device));
}

/// Where the allocation at `ptr` begins; its bytes go to `size` unless that is null. Null if nothing lives there.
///
/// # Safety
/// `size` is null, or has room for a `size_t`.
pub unsafe extern "C" fn millpond_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let found = call("millpond_base_alloc", None, |allocator| allocator.base(address(ptr)).map(Some));
    let Some((base, bytes)) = found else { return std::ptr::null_mut() };
    if !size.is_null() {
        // SAFETY: not null; the caller has room there.
        unsafe { size.write(bytes) };
    }
    pointer(base)
}

/// What is captured on the device from now on is for a pool of graphs. `filter`, a C++ function object, is not looked at.
pub extern "C" fn millpond_begin_allocate_to_pool(device: c_int, pool: GraphPoolId, filter: *const c_void) {
    let _ = filter;
    call("millpond_begin_allocate_to_pool", (), |allocator| allocator.begin_pool(device, (pool.first, pool.second)));
}

/// Ends what [`millpond_begin_allocate_to_pool`] began.
pub extern "C" fn millpond_end_allocate_to_pool(device: c_int, pool: GraphPoolId) {
    call("millpond_end_allocate_to_pool", (), |allocator| allocator.end_pool(device, (pool.first, pool.second)));
}

/// A graph of the pool is gone. With the last one, memory that graphs of the pool were captured with comes back.
pub extern "C" fn millpond_release_pool(device: c_int, pool: GraphPoolId) {
    call("millpond_release_pool", (), |allocator| allocator.release_pool(device, (pool.first, pool.second)));
}

// 3. What PyTorch does not ask for.

/// Gives unused memory of a device beyond `keep` bytes back. Blocks until the device has finished what it has. Returns how
/// many bytes went, or -1.
pub extern "C" fn millpond_trim(device: c_int, keep: usize) -> i64 {
    call("millpond_trim", -1, |allocator| {
        let given = allocator.trim(device, keep as u64)?.as_u64();
        Ok(i64::try_from(given).unwrap_or(i64::MAX))
    })
}

/// Statistics of a device as a JSON object; -1 for `device` is all in use, as a list. Writes what fits into `len` bytes, with
/// a zero at the end, and returns the length that all of it has without the zero, or -1. Asking with no room tells the length.
///
/// # Safety
/// `text` has room for `len` bytes, or `len` is 0.
pub unsafe extern "C" fn millpond_stats_json(device: c_int, text: *mut c_char, len: usize) -> i64 {
    let Some(json) = call("millpond_stats_json", None, |allocator| report::json(allocator, device).map(Some)) else {
        return -1;
    };
    if len > 0 && !text.is_null() {
        let fits = json.len().min(len - 1);
        // SAFETY: the caller has room for `len` bytes; `fits` of them and the zero are no more than that.
        unsafe {
            std::ptr::copy_nonoverlapping(json.as_ptr(), text.cast::<u8>(), fits);
            text.add(fits).write(0);
        }
    }
    i64::try_from(json.len()).unwrap_or(i64::MAX)
}

/// The owner of a stream is about to destroy it: what it still holds is remembered, and the handle is forgotten. 0, or -1.
///
/// # Safety
/// `stream` is a live stream of the device's primary context.
pub unsafe extern "C" fn millpond_forget_stream(device: c_int, stream: *mut c_void) -> c_int {
    call("millpond_forget_stream", -1, |allocator| allocator.forget_stream(device, raw(stream)).map(|()| 0))
}

/// Every graph that was captured on the device is gone, so what they were captured with comes back. 0, or -1. For callers
/// that have no pools of graphs to tell of.
///
/// # Safety
/// No such graph is launched any more.
pub unsafe extern "C" fn millpond_release_graphs(device: c_int) -> c_int {
    call("millpond_release_graphs", -1, |allocator| allocator.release_graphs(device).map(|()| 0))
}

/// What went wrong in the last call of this thread; null if nothing did. Valid until its next call.
pub extern "C" fn millpond_last_error() -> *const c_char {
    let found = LAST_ERROR.try_with(|last| last.borrow().as_ref().map_or(std::ptr::null(), |words| words.as_ptr()));
    found.unwrap_or(std::ptr::null())
}

/// Exports the functions of [`ffi`](crate::ffi) from the library that names this, under their own names.
///
/// A crate exports nothing by depending on this one; one cdylib says so, once.
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
            /// As it says there.
            // SAFETY: the names are exported by one library of a process.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $answer {
                $crate::export_c_interface!(@$kind $name($($arg),*))
            }
        )*
    };
    (@unsafe $name:ident($($arg:ident),*)) => {
        // SAFETY: the caller's promise is the same.
        unsafe { $crate::ffi::$name($($arg),*) }
    };
    (@safe $name:ident($($arg:ident),*)) => {
        $crate::ffi::$name($($arg),*)
    };
}
