//! The C interface as other programs use it: the shared library, opened by name, in a process whose libcuda is the
//! shim.
//!
//!   test ─► child process ─► dlopen libmillpond_allocator.so ─► millpond_alloc(…) ─► libcuda = the shim
//!                         └► CudaDriver of the test itself: the caller's streams, fills and captures

use std::path::{Path, PathBuf};
use std::process::Command;

use millpond_memory::checks::skipped;

use super::{Ended, Folder, exports, library, over, over_the_shim};

/// Path of the library, next to the other examples of this crate.
pub fn allocator_library() -> PathBuf {
    let library = library().with_file_name("libmillpond_allocator.so");
    assert!(library.exists(), "{} is not there: `cargo test` builds it", library.display());
    library
}

const HEADER: &str = include_str!("../../../examples/millpond_allocator.h");
const DOCS: &str = include_str!("../../../src/ffi/mod.rs");

/// Names that begin with `millpond_` and are called in `text`.
fn called(text: &str) -> Vec<&str> {
    let mut names: Vec<&str> = text
        .match_indices("millpond_")
        .map(|(at, _)| {
            let rest = &text[at..];
            &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
        })
        .filter(|name| text.contains(&format!("{name}(")))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn the_library_the_header_and_the_docs_name_the_same_functions() {
    let exported = exports::of(&std::fs::read(allocator_library()).unwrap());
    let exported: Vec<&str> = exported.iter().map(String::as_str).filter(|name| name.starts_with("millpond")).collect();
    assert_eq!(exported.len(), 15, "{exported:?}");
    assert_eq!(called(HEADER), exported);
    let table: String = DOCS.lines().filter(|line| line.starts_with("//! | `")).collect();
    assert_eq!(called(&table), exported);
}

/// A dependency on this crate alone exports nothing.
#[test]
fn nobody_else_exports_them() {
    let shim = exports::of(&std::fs::read(library()).unwrap());
    assert!(!shim.iter().any(|name| name.starts_with("millpond")));
}

/// C and C++ compilers accept the header, if they are installed.
#[test]
fn the_header_compiles() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/millpond_allocator.h");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let checked = Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", language])
            .arg(&header)
            .output();
        match checked {
            Ok(output) => {
                assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Err(error) => skipped(&format!("needs {compiler} ({error})")),
        }
    }
}

fn quiet(tests: &str, environment: &[(&str, &str)]) -> Ended {
    let ended = over_the_shim(&format!("shim::allocator::inside::{tests}"), environment);
    assert_eq!(ended.findings, [""; 0], "{}", ended.output);
    ended
}

#[test]
fn a_callers_day() {
    for strategy in ["cuda", "cuda_async_default", "cuda_async", "caching", "arena", "binning"] {
        let environment = [("MILLPOND_MEMORY_RESOURCE", strategy), ("CUDA_SHIM_DEFAULT_STREAM", "1")];
        quiet("everyday", &environment);
    }
}

#[test]
fn threads_and_streams_of_the_caller() {
    quiet("threads", &[("CUDA_SHIM_SEED", "3"), ("CUDA_SHIM_DEFAULT_STREAM", "1")]);
}

/// Otherwise the process would end with an error, or the shim would report a late call.
#[test]
fn a_process_may_end_while_memory_lives() {
    quiet("left_behind", &[]);
}

#[test]
fn a_missing_record_is_found_by_the_checks() {
    assert_eq!(quiet("recorded", &[("RECORDED", "1")]).findings.len(), 0);
    let ended = over_the_shim("shim::allocator::inside::recorded", &[("RECORDED", "0")]);
    assert!(ended.findings.join("\n").contains("not ordered after"), "{:#?}", ended.findings);
}

#[test]
fn errors_are_told_and_nothing_unwinds() {
    let ended = quiet("errors", &[("CUDA_SHIM_DEFAULT_STREAM", "1")]);
    assert!(ended.output.contains("millpond: millpond_free: "), "told on standard error: {}", ended.output);
    assert_eq!(ended.output.matches("millpond: millpond_alloc: -1 bytes").count(), 16 - 1, "{}", ended.output);
    assert!(ended.output.contains("(no more will be told here)"));
}

#[test]
fn the_callers_context_is_put_back() {
    quiet("contexts", &[("CUDA_SHIM_DEVICES", "2"), ("CUDA_SHIM_DEFAULT_STREAM", "1")]);
}

#[test]
fn captures_of_the_caller() {
    for strategy in ["cuda", "cuda_async", "caching"] {
        quiet("captures", &[("MILLPOND_MEMORY_RESOURCE", strategy)]);
    }
}

#[test]
fn streams_that_the_caller_destroys() {
    quiet("destroyed_streams", &[("CUDA_SHIM_REUSE_STREAMS", "1")]);
}

#[test]
fn what_the_environment_says_wrong_is_told() {
    let wrong: [(&str, &str, &str); 3] = [
        ("MILLPOND_MEMORY_RESOURCE", "pool", "there is no memory resource `pool`; choose cuda,"),
        ("MILLPOND_MEMORY_LIMIT_BYTES", "4G", "MILLPOND_MEMORY_LIMIT_BYTES: \"4G\" is not a number of bytes"),
        ("CUDA_SHIM_DEVICES", "0", "present but no device visible"),
    ];
    for (name, value, words) in wrong {
        quiet("refuses_everything", &[(name, value), ("EXPECTED_WORDS", words)]);
    }
    let ended = quiet("limited", &[("MILLPOND_MEMORY_LIMIT_BYTES", "1048576")]);
    assert!(ended.output.contains("out of device memory"), "{}", ended.output);
}

#[test]
fn without_a_driver_there_is_no_memory_and_a_reason() {
    if millpond_memory::driver::CudaDriver::open().is_ok() {
        skipped("needs a machine without an NVIDIA driver");
        return;
    }
    let environment = [("EXPECTED_WORDS", "no NVIDIA driver found")];
    over(&Folder::new(), "shim::allocator::inside::refuses_everything", &environment);
}

/// Tests that run in the child.
mod inside {
    #![expect(unsafe_code, reason = "calls of C functions, as their callers make them")]

    use std::collections::BTreeMap;
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::panic::Location;
    use std::sync::Arc;

    use libloading::Library;
    use millpond_memory::driver::*;
    use millpond_memory::ffi::GraphPoolId;

    use super::allocator_library;
    use crate::shim::is_inside;

    const DEVICE: DeviceId = DeviceId(0);

    type Alloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
    type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);
    type Record = unsafe extern "C" fn(*mut c_void, *mut c_void);
    type LastError = unsafe extern "C" fn() -> *const c_char;
    type Stats = unsafe extern "C" fn(c_int, *mut c_char, usize) -> i64;
    type Trim = unsafe extern "C" fn(c_int, usize) -> i64;
    type Forget = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    type OfDevice = unsafe extern "C" fn(c_int);
    type Base = unsafe extern "C" fn(*mut c_void, *mut usize) -> *mut c_void;
    type Fraction = unsafe extern "C" fn(f64, c_int);
    type Nothing = unsafe extern "C" fn();
    /// The C++ signature `int, std::pair<unsigned long long, unsigned long long>, std::function<…>`.
    type Begin = unsafe extern "C" fn(c_int, GraphPoolId, *const c_void);
    type OfPool = unsafe extern "C" fn(c_int, GraphPoolId);

    /// The library, and the caller's own access to the device.
    struct Caller {
        library: Library,
        driver: Arc<CudaDriver>,
    }

    impl Caller {
        fn new() -> Option<Self> {
            let library = Self::library()?;
            let driver = CudaDriver::open().unwrap();
            for device in 0..driver.device_count().unwrap() {
                driver.device_open(DeviceId(device)).unwrap();
            }
            Some(Caller { library, driver })
        }

        fn library() -> Option<Library> {
            // SAFETY: a library of this crate, without its own initialisers.
            is_inside().then(|| unsafe { Library::new(allocator_library()) }.unwrap())
        }

        /// # Safety
        /// `T` is the function's type.
        unsafe fn function<T: Copy>(&self, name: &str) -> T {
            // SAFETY: the caller's contract; the library is open as long as `self`.
            *unsafe { self.library.get::<T>(name.as_bytes()) }.unwrap_or_else(|_| panic!("{name} is exported"))
        }

        fn raw(&self, stream: StreamHandle) -> *mut c_void {
            std::ptr::without_provenance_mut(self.driver.stream_raw(stream) as usize)
        }

        fn try_alloc(&self, size: isize, device: c_int, stream: *mut c_void) -> u64 {
            // SAFETY: the header's type; the tests' streams live.
            unsafe { self.function::<Alloc>("millpond_alloc")(size, device, stream) }.addr() as u64
        }

        fn alloc(&self, size: isize, stream: StreamHandle) -> u64 {
            let ptr = self.try_alloc(size, 0, self.raw(stream));
            assert!(ptr != 0, "{:?}", self.last_error());
            assert_eq!(self.last_error(), None);
            ptr
        }

        fn free_raw(&self, ptr: u64, size: isize, device: c_int, stream: *mut c_void) {
            let ptr = std::ptr::without_provenance_mut(ptr as usize);
            // SAFETY: the header's type; a wrong pointer is refused.
            unsafe { self.function::<Free>("millpond_free")(ptr, size, device, stream) }
        }

        fn free(&self, ptr: u64, size: isize, stream: StreamHandle) {
            self.free_raw(ptr, size, 0, self.raw(stream));
            assert_eq!(self.last_error(), None);
        }

        fn record(&self, ptr: u64, stream: StreamHandle) {
            let ptr = std::ptr::without_provenance_mut(ptr as usize);
            // SAFETY: the header's type; a wrong pointer is refused.
            unsafe { self.function::<Record>("millpond_record_stream")(ptr, self.raw(stream)) }
        }

        fn last_error(&self) -> Option<String> {
            // SAFETY: the header's type; the words are read before this thread's next call.
            unsafe {
                let words = self.function::<LastError>("millpond_last_error")();
                (!words.is_null()).then(|| CStr::from_ptr(words).to_str().unwrap().to_string())
            }
        }

        fn trim(&self, device: c_int, keep: usize) -> i64 {
            // SAFETY: the header's type.
            unsafe { self.function::<Trim>("millpond_trim")(device, keep) }
        }

        fn json(&self, device: c_int) -> String {
            // SAFETY: the header's type; the buffer has the stated length.
            unsafe {
                let stats = self.function::<Stats>("millpond_stats_json");
                let needed = stats(device, std::ptr::null_mut(), 0);
                assert!(needed > 0, "{:?}", self.last_error());
                // The device continues meanwhile: numbers may have more digits in the next call.
                let mut room = vec![1u8; needed as usize + 64];
                let written = stats(device, room.as_mut_ptr().cast(), room.len());
                let whole = CStr::from_bytes_until_nul(&room).unwrap().to_str().unwrap().to_string();
                assert_eq!(whole.len(), written as usize);
                // A short buffer gets as much as fits, and always a terminator.
                let mut little = [1u8; 8];
                assert!(stats(device, little.as_mut_ptr().cast(), little.len()) > 64);
                assert_eq!(CStr::from_bytes_with_nul(&little).unwrap().to_str().unwrap(), &whole[..7]);
                whole
            }
        }

        fn number(&self, name: &str) -> u64 {
            let object = parse(&self.json(0));
            object.get(name).unwrap_or_else(|| panic!("no {name} in {object:?}")).parse().unwrap()
        }

        fn stream(&self) -> StreamHandle {
            self.driver.stream_create(DEVICE, StreamPriority::Normal).unwrap()
        }

        fn fill(&self, ptr: u64, size: isize, stream: StreamHandle) {
            self.driver.fill(DevicePtr(ptr), 1, size as usize, stream, Location::caller()).unwrap();
        }

        fn order(&self, earlier: StreamHandle, later: StreamHandle) {
            let event = self.driver.event_create(DEVICE, EventFlags::ORDER).unwrap();
            self.driver.event_record(event, earlier, Location::caller()).unwrap();
            self.driver.stream_wait(later, event, Location::caller()).unwrap();
            self.driver.event_destroy(event).unwrap();
        }
    }

    /// Parses a flat JSON object of numbers and plain strings, strictly.
    fn parse(json: &str) -> BTreeMap<String, String> {
        let inner = json.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).expect("an object");
        let mut object = BTreeMap::new();
        for member in inner.split(',') {
            let (name, value) = member.split_once(':').expect("a name and a value");
            let name = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("a name in quotes");
            let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            assert!(text.is_some() || value.parse::<u64>().is_ok(), "{value} is a number or a string");
            assert!(!text.unwrap_or("").contains(['"', '\\']), "{value} needs no escape");
            let before = object.insert(name.to_string(), text.unwrap_or(value).to_string());
            assert_eq!(before, None, "{name} comes once");
        }
        object
    }

    #[test]
    fn everyday() {
        let Some(caller) = Caller::new() else { return };
        // SAFETY: the header's type.
        unsafe { caller.function::<OfDevice>("millpond_init")(1) };
        assert_eq!(caller.last_error(), None);
        let default = caller.driver.stream_wrap(DEVICE, 0).unwrap();
        let (a, b) = (caller.stream(), caller.stream());
        let mut live = Vec::new();
        for round in 1..=30 {
            for stream in [default, a, b] {
                let size = round * 700;
                let ptr = caller.alloc(size, stream);
                assert!(ptr.is_multiple_of(256));
                caller.fill(ptr, size, stream);
                if round % 5 == 0 && stream != b {
                    caller.order(stream, b);
                    caller.fill(ptr, size, b);
                    caller.record(ptr, b);
                }
                live.push((ptr, size, stream));
            }
            if round % 2 == 0 {
                for (ptr, size, stream) in live.drain(..live.len() * 2 / 3) {
                    caller.free(ptr, size, stream);
                }
            }
        }
        let held: isize = live.iter().map(|(_, size, _)| (size + 255) / 256 * 256).sum();
        assert_eq!(caller.number("allocated_bytes"), held as u64);
        assert_eq!(caller.number("live_allocations"), live.len() as u64);
        let mut bytes = 0;
        let (ptr, size, _) = live[0];
        let at = std::ptr::without_provenance_mut(ptr as usize);
        // SAFETY: the header's type; `bytes` is writable.
        let base = unsafe { caller.function::<Base>("millpond_base_alloc")(at, &mut bytes) };
        assert_eq!((base, bytes), (at, size as usize));
        live.drain(..).for_each(|(ptr, size, stream)| caller.free(ptr, size, stream));
        let object = parse(&caller.json(0));
        assert_eq!(object["memory_resource"], std::env::var("MILLPOND_MEMORY_RESOURCE").unwrap());
        for (name, expected) in [("allocations", 90), ("frees", 90), ("live_allocations", 0), ("allocated_bytes", 0)] {
            assert_eq!(object[name], expected.to_string(), "{name}");
        }
        assert_eq!((&*object["leaked_bytes"], &*object["errors"], &*object["record_streams"]), ("0", "0", "12"));
        let reserved = caller.number("reserved_bytes");
        let given = caller.trim(0, 0);
        assert!(given >= 0 && given as u64 <= reserved, "{:?}", caller.last_error());
        assert_eq!(caller.number("reserved_bytes"), 0);
        // SAFETY: the header's type.
        unsafe { caller.function::<Nothing>("millpond_reset")() };
        assert_eq!(caller.last_error(), None);
        let all = caller.json(-1);
        assert_eq!(all, format!("[{}]", caller.json(0)));
    }

    #[test]
    fn threads() {
        let Some(caller) = Caller::new() else { return };
        std::thread::scope(|scope| {
            for thread in 0..4isize {
                let caller = &caller;
                scope.spawn(move || {
                    let default = caller.driver.stream_wrap(DEVICE, 0).unwrap();
                    let own = caller.stream();
                    for round in 0..50isize {
                        let size = 1 + (thread * 131 + round * 977) % 20_000;
                        let on = if round % 3 == 0 { default } else { own };
                        let ptr = caller.alloc(size, on);
                        caller.fill(ptr, size, on);
                        if round % 3 == 1 {
                            caller.order(own, default);
                            caller.fill(ptr, size, default);
                            caller.record(ptr, default);
                        }
                        caller.free(ptr, size, on);
                    }
                });
            }
        });
        assert_eq!((caller.number("allocations"), caller.number("live_allocations")), (200, 0));
    }

    #[test]
    fn left_behind() {
        let Some(caller) = Caller::new() else { return };
        let stream = caller.stream();
        for _ in 0..10 {
            let ptr = caller.alloc(10_000, stream);
            caller.fill(ptr, 10_000, stream);
        }
        // The library is never unloaded: its memory, streams and device remain.
        std::mem::forget(caller);
    }

    #[test]
    fn recorded() {
        let Some(caller) = Caller::new() else { return };
        let (a, b) = (caller.stream(), caller.stream());
        for _ in 0..5 {
            let ptr = caller.alloc(4096, a);
            caller.fill(ptr, 4096, a);
            caller.order(a, b);
            caller.fill(ptr, 4096, b);
            if std::env::var("RECORDED").unwrap() == "1" {
                caller.record(ptr, b);
            }
            caller.free(ptr, 4096, a);
            let next = caller.alloc(4096, a);
            caller.fill(next, 4096, a);
            caller.free(next, 4096, a);
        }
        caller.driver.device_synchronize(DEVICE).unwrap();
    }

    #[test]
    fn errors() {
        let Some(caller) = Caller::new() else { return };
        let stream = caller.stream();
        let raw = caller.raw(stream);
        let ptr = caller.alloc(1000, stream);
        let told = |words: &str| {
            let error = caller.last_error().unwrap_or_else(|| panic!("no error, but {words}"));
            assert!(error.contains(words), "{error}: {words}");
        };
        caller.free_raw(ptr, 999, 0, raw);
        told("has 1000 bytes on device 0, not 999 on device 0; it stays allocated");
        for _ in 0..30 {
            assert_eq!(caller.try_alloc(-1, 0, raw), 0);
            told("millpond_alloc: -1 bytes are asked for");
        }
        assert_eq!(caller.try_alloc(0, 0, raw), 0);
        assert_eq!(caller.last_error(), None, "no bytes are no error");
        assert_eq!(caller.try_alloc(8, 1, raw), 0);
        told("there is no device 1: there are 1");
        assert_eq!(caller.try_alloc(isize::MAX, 0, raw), 0);
        told("out of device memory");
        assert_eq!(caller.try_alloc(8, 0, std::ptr::without_provenance_mut(2)), 0);
        told("per-thread default stream");
        assert_eq!(caller.try_alloc(8, 0, std::ptr::without_provenance_mut(0x1234_5670)), 0);
        told("invalid handle (400)");
        caller.free(ptr, 1000, stream);
        caller.free_raw(ptr, 1000, 0, raw);
        told("is not allocated: freed twice, or never from here");
        caller.free_raw(0, 1000, 0, raw);
        assert_eq!(caller.last_error(), None, "null is nothing");
        caller.record(ptr, stream);
        told("is not allocated here");
        assert_eq!(caller.trim(9, 0), -1);
        told("there is no device 9");
        // SAFETY: the header's types; no buffer is written.
        unsafe {
            assert_eq!(caller.function::<Stats>("millpond_stats_json")(9, std::ptr::null_mut(), 0), -1);
            let base = caller.function::<Base>("millpond_base_alloc");
            let at = std::ptr::without_provenance_mut(ptr as usize);
            assert!(base(at, std::ptr::null_mut()).is_null());
            caller.function::<OfDevice>("millpond_init")(7);
            told("7 devices are expected, and there are 1");
            caller.function::<Fraction>("millpond_memory_fraction")(0.5, 0);
            told("its limit is set before the first allocation");
        }
        // Another thread has its own last error.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(caller.last_error(), None));
        });
        let again = caller.alloc(1000, stream);
        caller.free(again, 1000, stream);
    }

    #[test]
    fn contexts() {
        let Some(caller) = Caller::new() else { return };
        // The current context determines the current device: no call of this crate may change it.
        let first = caller.driver.stream_create(DeviceId(0), StreamPriority::Normal).unwrap();
        let context = caller.driver.context_save().unwrap();
        let ptr = caller.try_alloc(4096, 1, std::ptr::null_mut());
        assert!(ptr != 0, "{:?}", caller.last_error());
        assert_eq!(caller.driver.context_save().unwrap(), context, "after an allocation on another device");
        caller.free_raw(ptr, 4096, 1, std::ptr::null_mut());
        assert_eq!(caller.driver.context_save().unwrap(), context);
        assert!(caller.trim(1, 0) >= 0);
        assert_eq!(caller.driver.context_save().unwrap(), context);
        assert_eq!(caller.driver.thread_capture_mode(CaptureMode::Global).unwrap(), CaptureMode::Global);
        // A stream of device 0 is not valid on device 1.
        assert_eq!(caller.try_alloc(8, 1, caller.raw(first)), 0);
        assert!(caller.last_error().unwrap().contains("does not belong to the primary context of device 1"));
        // A thread without a context has none afterwards.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(caller.driver.context_save().unwrap(), ThreadContext(0));
                let ptr = caller.try_alloc(64, 0, std::ptr::null_mut());
                caller.free_raw(ptr, 64, 0, std::ptr::null_mut());
                assert_eq!(caller.driver.context_save().unwrap(), ThreadContext(0));
            });
        });
        let all = caller.json(-1);
        assert!(all.starts_with("[{\"device\":0,") && all.contains("{\"device\":1,"), "{all}");
    }

    #[test]
    fn captures() {
        let Some(caller) = Caller::new() else { return };
        let (a, b) = (caller.stream(), caller.stream());
        let before = caller.alloc(8192, a);
        caller.fill(before, 8192, a);
        let pool = GraphPoolId { first: 0, second: 5 };
        // SAFETY: the header's types; the function object is ignored.
        let (begin, end, release) = unsafe {
            (
                caller.function::<Begin>("millpond_begin_allocate_to_pool"),
                caller.function::<OfPool>("millpond_end_allocate_to_pool"),
                caller.function::<OfPool>("millpond_release_pool"),
            )
        };
        // SAFETY: as above.
        unsafe { begin(0, pool, std::ptr::null()) };
        caller.driver.stream_capture_begin(a, CaptureMode::Global).unwrap();
        let inside = caller.alloc(8192, a);
        caller.fill(inside, 8192, a);
        caller.free(before, 8192, a);
        caller.free(inside, 8192, a);
        let again = caller.alloc(8192, a);
        assert_eq!(again, inside);
        caller.fill(again, 8192, a);
        // Other streams continue.
        let other = caller.alloc(8192, b);
        caller.fill(other, 8192, b);
        assert_eq!(caller.trim(0, 0), -1);
        assert!(caller.last_error().unwrap().contains("is captured into a graph"));
        let graph = caller.driver.stream_capture_end(a).expect("the capture is whole");
        // SAFETY: as above.
        unsafe { end(0, pool) };
        let exec = caller.driver.graph_instantiate(graph).unwrap();
        caller.driver.graph_destroy(graph).unwrap();
        caller.free(again, 8192, a);
        for _ in 0..3 {
            let next = caller.alloc(8192, b);
            assert_ne!(next, inside);
            caller.fill(next, 8192, b);
            caller.driver.graph_launch(exec, a, Location::caller()).unwrap();
            caller.free(next, 8192, b);
        }
        caller.free(other, 8192, b);
        assert_eq!((caller.number("graph_allocations"), caller.number("pending_frees")), (1, 0));
        // SAFETY: as above.
        unsafe { release(0, pool) };
        caller.driver.graph_exec_destroy(exec).unwrap();
        assert_eq!((caller.number("graph_allocations"), caller.number("allocated_bytes")), (0, 0));
    }

    #[test]
    fn destroyed_streams() {
        let Some(caller) = Caller::new() else { return };
        // SAFETY: the header's type.
        let forget = unsafe { caller.function::<Forget>("millpond_forget_stream") };
        let a = caller.stream();
        let raw = caller.raw(a);
        let ptr = caller.alloc(4096, a);
        caller.fill(ptr, 4096, a);
        // SAFETY: the stream lives.
        assert_eq!(unsafe { forget(0, raw) }, 0);
        caller.driver.stream_synchronize(a).unwrap();
        caller.driver.stream_destroy(a).unwrap();
        let b = caller.stream();
        assert_eq!(caller.raw(b), raw, "the handle came back");
        caller.free_raw(ptr, 4096, 0, raw);
        assert_eq!(caller.last_error(), None);
        let next = caller.alloc(4096, b);
        caller.fill(next, 4096, b);
        caller.free(next, 4096, b);
        assert_eq!(caller.number("live_allocations"), 0);
    }

    #[test]
    fn refuses_everything() {
        let Some(library) = Caller::library() else { return };
        let expected = std::env::var("EXPECTED_WORDS").unwrap();
        // SAFETY: the header's types.
        unsafe {
            let last = library.get::<LastError>(b"millpond_last_error").unwrap();
            let told = || {
                let words = last();
                assert!(!words.is_null());
                let words = CStr::from_ptr(words).to_str().unwrap();
                assert!(words.contains(&expected), "{words}: {expected}");
            };
            library.get::<OfDevice>(b"millpond_init").unwrap()(1);
            told();
            assert!(library.get::<Alloc>(b"millpond_alloc").unwrap()(64, 0, std::ptr::null_mut()).is_null());
            told();
            assert_eq!(library.get::<Trim>(b"millpond_trim").unwrap()(0, 0), -1);
            told();
        }
    }

    #[test]
    fn limited() {
        let Some(caller) = Caller::new() else { return };
        let stream = caller.stream();
        let first = caller.alloc(900 << 10, stream);
        assert_eq!(caller.try_alloc(200 << 10, 0, caller.raw(stream)), 0);
        let words = caller.last_error().unwrap();
        assert!(words.contains("out of device memory") && words.contains("1 MiB"), "{words}");
        caller.free(first, 900 << 10, stream);
        let second = caller.alloc(1 << 20, stream);
        caller.free(second, 1 << 20, stream);
        assert_eq!((caller.number("limit_bytes"), caller.number("num_ooms")), (1 << 20, 1));
    }
}
