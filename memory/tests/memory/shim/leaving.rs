//! Short processes that end in various ways while threads use the driver: none calls it after its exit handlers have
//! run.
//!
//!   test ─► child ─► threads that allocate, copy, launch, load code ─► an end ─► exit code; a late call aborts
//!
//! Seeds   the child's seed delays the shim's calls and exit handlers at random. `MILLPOND_TEST_EXITS` is the number of
//!         children.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use super::{Folder, INSIDE, library};

/// Ways to end: the test in the child, and its exit code.
const WAYS: [(&str, i32); 11] = [
    ("exits_beside_workers", 7),
    ("exits_on_another_thread", 8),
    ("returns_while_a_static_holds_the_device", 0),
    ("forgets_its_handles", 0),
    ("drops_the_last_handle_beside_the_exit", 9),
    ("exits_in_a_panic_hook", 10),
    ("exits_while_code_is_assembled", 11),
    ("frees_in_an_exit_handler_of_its_own", 12),
    ("leaves_in_order", 0),
    ("leaves_beside_workers", 13),
    ("calls_through_the_c_interface", 14),
];

fn end(folder: &Folder, way: &str, seed: u64) -> Output {
    end_with(folder, way, seed, &[])
}

fn end_with(folder: &Folder, way: &str, seed: u64, environment: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("shim::leaving::inside::{way}"), "--exact", "--nocapture"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", &folder.0)
        .env("CUDA_SHIM_DELAYS", seed.to_string())
        .env("SEED", seed.to_string())
        .env(INSIDE, "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn told(way: &str, seed: u64, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{way}, seed {seed}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

#[test]
fn no_call_comes_after_the_exit_handlers() {
    let children: u64 = std::env::var("MILLPOND_TEST_EXITS").map_or(33, |text| text.parse().expect("a number"));
    let folder = Folder::with(&library());
    let mut wrong = Vec::new();
    for seed in 0..children {
        let (way, code) = WAYS[seed as usize % WAYS.len()];
        let output = end(&folder, way, seed);
        if output.status.code() != Some(code) {
            wrong.push(told(way, seed, &output));
        }
    }
    assert!(wrong.is_empty(), "{} of {children}: {}", wrong.len(), wrong.join("\n"));
}

/// Otherwise the tests above would pass whatever the driver does.
#[test]
fn a_call_that_comes_too_late_is_noticed() {
    let folder = Folder::with(&library());
    for way in ["calls_the_library_itself_after_the_handlers", "calls_the_library_itself_beside_the_handlers"] {
        let output = end(&folder, way, 1);
        let told = told(way, 1, &output);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
        assert!(told.contains("after the driver's exit handlers") || told.contains("calls were under way"), "{told}");
    }
}

#[test]
fn a_call_that_hangs_does_not_keep_the_process() {
    let folder = Folder::with(&library());
    let file = folder.0.join("hangs");
    let file = file.to_str().unwrap();
    let hang = format!("cuMemGetInfo_v2={file}");
    let environment = [("CUDA_SHIM_HANG", hang.as_str()), ("FILE", file)];
    let output = end_with(&folder, "leaves_beside_a_call_that_hangs", 0, &environment);
    assert_eq!(output.status.code(), Some(15), "{}", told("hangs", 0, &output));
}

#[test]
fn a_forked_child_does_not_call_its_parents_driver() {
    let folder = Folder::with(&library());
    let output = end(&folder, "forks", 0);
    assert_eq!(output.status.code(), Some(0), "{}", told("forks", 0, &output));
}

/// Tests that run in the children.
mod inside {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, OnceLock, mpsc};
    use std::time::Duration;

    use millpond_memory::driver::{CudaDriver, DeviceId, DriverCode, StreamPriority};
    use millpond_memory::{
        ByteSize, Device, DeviceBuffer, Driver, KernelCache, Left, MemoryPool, PinnedPool, Strategy, Stream, leave,
    };

    use super::super::is_inside;
    use crate::conformance::{ADD_ONE, add_one};

    fn seed() -> u64 {
        std::env::var("SEED").unwrap().parse().unwrap()
    }

    /// The driver of a child, or `None` outside a child.
    fn driver() -> Option<Arc<CudaDriver>> {
        is_inside().then(|| CudaDriver::open().unwrap())
    }

    fn device() -> Option<Device> {
        Some(Device::open(driver()?, 0).unwrap())
    }

    fn pool(device: &Device) -> MemoryPool {
        let strategy = Strategy::ALL[seed() as usize / 11 % Strategy::ALL.len()];
        MemoryPool::builder(device).limit(ByteSize::gib(1)).strategy(strategy).build().unwrap()
    }

    /// A small model of a query. Errors are expected while the process ends.
    fn work(device: &Device, pool: &MemoryPool) -> millpond_memory::Result<()> {
        let pinned = PinnedPool::builder(device).build();
        let kernel = device.load_module(ADD_ONE)?.kernel("add_one")?;
        let (a, b) = (Stream::new(device)?, Stream::new(device)?);
        let bytes = [1u8; 4096];
        let buffer = DeviceBuffer::upload(&bytes, &a, pool, &pinned)?;
        buffer.fill(2, &a)?;
        let copy = DeviceBuffer::new(4096, &b, pool)?;
        buffer.copy_to(&copy, &b)?;
        drop(buffer);
        let home = copy.download_vec(&b, &pinned)?;
        if seed().is_multiple_of(2) {
            // The poller keeps memory in flight.
            drop(home);
        } else {
            assert_eq!(home.wait()?.len(), 4096);
        }
        drop(kernel);
        Ok(())
    }

    /// Starts threads that work until the process ends; returns once each has worked `rounds` times.
    fn workers(device: &Device, threads: u64, rounds: u64) {
        let pool = pool(device);
        let (done, finished) = mpsc::channel();
        for _ in 0..threads {
            let (device, pool, done) = (device.clone(), pool.clone(), done.clone());
            std::thread::spawn(move || {
                for round in 1.. {
                    let worked = work(&device, &pool);
                    if round == rounds {
                        let _ = done.send(worked.is_ok());
                    }
                }
            });
        }
        assert!((0..threads).all(|_| finished.recv().unwrap()));
    }

    #[test]
    fn exits_beside_workers() {
        let Some(device) = device() else { return };
        workers(&device, 3, 1 + seed() % 3);
        std::process::exit(7);
    }

    #[test]
    fn exits_on_another_thread() {
        let Some(device) = device() else { return };
        workers(&device, 2, 1);
        std::thread::spawn(|| std::process::exit(8));
        let pool = pool(&device);
        loop {
            let _ = work(&device, &pool);
        }
    }

    #[test]
    fn returns_while_a_static_holds_the_device() {
        static HELD: OnceLock<(Device, Mutex<Vec<DeviceBuffer>>)> = OnceLock::new();
        let Some(device) = device() else { return };
        let (pool, stream) = (pool(&device), Stream::new(&device).unwrap());
        work(&device, &pool).unwrap();
        let held = (0..4).map(|_| DeviceBuffer::zeroed(4096, &stream, &pool).unwrap()).collect();
        let _ = HELD.set((device, Mutex::new(held)));
        let (begun, begins) = mpsc::channel();
        std::thread::spawn(move || {
            let (device, held) = HELD.get().unwrap();
            held.lock().unwrap().pop();
            begun.send(()).unwrap();
            held.lock().unwrap().clear();
            let pool = self::pool(device);
            loop {
                let _ = work(device, &pool);
            }
        });
        begins.recv().unwrap();
    }

    #[test]
    fn forgets_its_handles() {
        let Some(device) = device() else { return };
        let (pool, stream) = (pool(&device), Stream::new(&device).unwrap());
        workers(&device, 1, 1);
        std::mem::forget((DeviceBuffer::zeroed(4096, &stream, &pool).unwrap(), pool, stream, device));
    }

    #[test]
    fn drops_the_last_handle_beside_the_exit() {
        let Some(device) = device() else { return };
        let pool = pool(&device);
        let streams: Vec<Stream> = (0..16).map(|_| Stream::new(&device).unwrap()).collect();
        let held: Vec<_> = streams.iter().map(|on| DeviceBuffer::zeroed(4096, on, &pool).unwrap()).collect();
        let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
        add_one(&device, &kernel, &held[0], &streams[0]);
        let (begun, begins) = mpsc::channel();
        std::thread::spawn(move || {
            let all = (held, kernel, streams, pool, device);
            begun.send(()).unwrap();
            drop(all);
        });
        begins.recv().unwrap();
        std::process::exit(9);
    }

    #[test]
    fn exits_in_a_panic_hook() {
        let Some(device) = device() else { return };
        workers(&device, 2, 1);
        std::panic::set_hook(Box::new(|_| std::process::exit(10)));
        let pool = pool(&device);
        let _ = std::thread::spawn(move || {
            let _ = work(&device, &pool);
            panic!("on purpose");
        })
        .join();
    }

    #[test]
    fn exits_while_code_is_assembled() {
        let Some(device) = device() else { return };
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::open(&folder.path().join("kernels"), ByteSize::mib(1)).unwrap();
        assert!(device.keep_kernels(&Arc::new(cache)).is_ok());
        static LOADED: AtomicU64 = AtomicU64::new(0);
        let (begun, begins) = mpsc::channel();
        for thread in 0..3 {
            let (device, begun) = (device.clone(), begun.clone());
            std::thread::spawn(move || {
                for number in 0.. {
                    // A different text each time.
                    let ptx = format!("{ADD_ONE}// {thread} {number}");
                    LOADED.fetch_add(device.load_module(&ptx).is_ok().into(), Ordering::Relaxed);
                    let _ = begun.send(());
                }
            });
        }
        (0..3 + seed() % 4).for_each(|_| begins.recv().unwrap());
        assert!(LOADED.load(Ordering::Relaxed) > 0);
        drop(folder);
        std::process::exit(11);
    }

    extern "C" fn frees() {
        let freed = HELD_TO_THE_END.lock().unwrap().take();
        let (buffer, device) = freed.expect("kept for this handler");
        drop(buffer);
        assert!(device.is_lost() && device.take_errors().is_empty());
    }

    static HELD_TO_THE_END: Mutex<Option<(DeviceBuffer, Device)>> = Mutex::new(None);

    /// A handler registered before the driver was opened runs after the driver's.
    #[test]
    fn frees_in_an_exit_handler_of_its_own() {
        if !is_inside() {
            return;
        }
        // SAFETY: the function does not unwind: a failed assertion there aborts.
        assert_eq!(unsafe { libc::atexit(frees) }, 0);
        let device = device().unwrap();
        let pool = MemoryPool::builder(&device).strategy(Strategy::CudaAsync).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        *HELD_TO_THE_END.lock().unwrap() = Some((DeviceBuffer::zeroed(4096, &stream, &pool).unwrap(), device));
        drop((stream, pool));
        std::process::exit(12);
    }

    fn code<T>(result: millpond_memory::driver::Result<T>) -> DriverCode {
        result.err().map_or(DriverCode::SUCCESS, |error| error.code)
    }

    #[test]
    fn leaves_in_order() {
        let Some(driver) = driver() else { return };
        let device = Device::open(driver.clone(), 0).unwrap();
        let pool = pool(&device);
        work(&device, &pool).unwrap();
        let (begun, begins) = mpsc::channel();
        // The last handles are dropped during the wait.
        std::thread::spawn(move || {
            begun.send(()).unwrap();
            drop((pool, device));
        });
        begins.recv().unwrap();
        assert_eq!(leave(Duration::from_secs(300)), Left { devices: 0, calls: 0 });
        let refused = driver.stream_create(DeviceId(0), StreamPriority::Normal);
        // Its context is gone; the gate refuses a call that needs none.
        assert_ne!(code(refused), DriverCode::SUCCESS);
        let refused = driver.device_count().unwrap_err();
        assert_eq!(refused.to_string(), "cuDeviceGetCount failed: driver is shutting down (4): the process ends");
        let refused = CudaDriver::open().expect_err("refused").to_string();
        assert!(refused.contains("driver is shutting down (4)"), "{refused}");
    }

    #[test]
    fn leaves_beside_workers() {
        let Some(device) = device() else { return };
        workers(&device, 3, 1);
        let left = leave(Duration::from_millis(seed() % 20));
        assert_eq!(left.devices, 1);
        let lost = (0..100_000).any(|_| device.is_lost() || device.memory_info().is_err());
        assert!(lost && device.take_errors().is_empty());
        if left.calls > 0 {
            millpond_memory::leave::exit_at_once(13);
        }
        std::process::exit(13);
    }

    #[test]
    fn leaves_beside_a_call_that_hangs() {
        let Some(device) = device() else { return };
        let hangs = std::env::var_os("FILE").unwrap();
        std::thread::spawn(move || device.memory_info());
        while !std::fs::exists(&hangs).unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(leave(Duration::from_millis(50)), Left { devices: 1, calls: 1 });
        millpond_memory::leave::exit_at_once(15);
    }

    #[test]
    fn forks() {
        let Some(device) = device() else { return };
        let (pool, stream) = (pool(&device), Stream::new(&device).unwrap());
        let buffer = DeviceBuffer::zeroed(4096, &stream, &pool).unwrap();
        // SAFETY: the child takes no lock that a thread of the parent may hold: the memory layer's locks are free.
        match unsafe { libc::fork() } {
            0 => {
                let refused = device.driver().device_count().unwrap_err();
                let silent = refused.code == DriverCode::DEINITIALIZED && refused.to_string().contains("forked");
                drop(buffer);
                let silent = silent && device.is_lost() && device.take_errors().is_empty();
                // SAFETY: exit handlers run, as in any exiting child.
                unsafe { libc::exit(if silent { 21 } else { 22 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child, and writes one integer.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 21), "{status:#x}");
                assert!(!device.is_lost());
                device.synchronize().unwrap();
            }
        }
    }

    #[test]
    fn calls_through_the_c_interface() {
        let Some(driver) = driver() else { return };
        driver.device_open(DeviceId(0)).unwrap();
        let raw = driver.stream_raw(driver.stream_create(DeviceId(0), StreamPriority::Normal).unwrap()) as usize;
        let (done, finished) = mpsc::channel();
        // SAFETY: a library of this crate, without its own initialisers, never closed.
        let library = unsafe { libloading::Library::new(super::super::allocator::allocator_library()) }.unwrap();
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        type Alloc = unsafe extern "C" fn(isize, i32, *mut std::ffi::c_void) -> *mut std::ffi::c_void;
        type Free = unsafe extern "C" fn(*mut std::ffi::c_void, isize, i32, *mut std::ffi::c_void);
        for _ in 0..3 {
            let done = done.clone();
            std::thread::spawn(move || {
                // SAFETY: the types are the header's; the stream is never destroyed.
                let (alloc, free) = unsafe {
                    (library.get::<Alloc>(b"millpond_alloc").unwrap(), library.get::<Free>(b"millpond_free").unwrap())
                };
                for round in 0.. {
                    let stream = std::ptr::without_provenance_mut(raw);
                    // SAFETY: as above; the allocation is freed once, with its own size and device.
                    unsafe {
                        let ptr = alloc(5000, 0, stream);
                        free(ptr, 5000, 0, stream);
                    }
                    if round == 2 {
                        let _ = done.send(());
                    }
                }
            });
        }
        (0..3).for_each(|_| finished.recv().unwrap());
        std::process::exit(14);
    }

    /// A function of the driver's library, as a program that bypasses this crate has it.
    fn count() -> extern "C" fn(*mut i32) -> u32 {
        // SAFETY: the shim's library is loaded and stays; the signature is cuda.h's.
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new("libcuda.so.1").unwrap()));
            *library.get::<extern "C" fn(*mut i32) -> u32>(b"cuDeviceGetCount").unwrap()
        }
    }

    extern "C" fn calls_late() {
        count()(&mut 0);
    }

    #[test]
    fn calls_the_library_itself_after_the_handlers() {
        if !is_inside() {
            return;
        }
        // SAFETY: the function does not unwind.
        assert_eq!(unsafe { libc::atexit(calls_late) }, 0);
        drop(device());
        std::process::exit(0);
    }

    #[test]
    fn calls_the_library_itself_beside_the_handlers() {
        let Some(_device) = device() else { return };
        let (begun, begins) = mpsc::channel();
        std::thread::spawn(move || {
            let count = count();
            for round in 0u64.. {
                count(&mut 0);
                if round == 0 {
                    begun.send(()).unwrap();
                }
            }
        });
        begins.recv().unwrap();
        std::process::exit(0);
    }
}
