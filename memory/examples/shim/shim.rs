//! The single simulated driver of the process, and extra state of the C interface.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use millpond_memory::driver::sim::SimDriver;
use millpond_memory::driver::{DeviceId, DriverCode, DriverError, HostBlock, HostSpan, Site};

use crate::Answer;
use crate::leaving::Registers;
use crate::options::Options;

pub(crate) struct Shim {
    pub(crate) options: Options,
    pub(crate) driver: Arc<SimDriver>,
    /// Kernel names by handle, for reports of launches.
    pub(crate) functions: Mutex<HashMap<u64, String>>,
    initialised: AtomicBool,
    /// Pinned memory by address.
    blocks: Mutex<BTreeMap<u64, Pinned>>,
    /// Whether work was queued since the time thread last checked.
    queued: Mutex<bool>,
    changed: Condvar,
}

struct Pinned {
    block: Arc<HostBlock>,
    mapped: bool,
}

pub(crate) fn get() -> &'static Shim {
    static SHIM: OnceLock<Shim> = OnceLock::new();
    SHIM.get_or_init(|| {
        let options = Options::from_environment();
        let driver = SimDriver::new(options.sim.clone());
        Shim {
            options,
            driver,
            functions: Mutex::default(),
            initialised: AtomicBool::new(false),
            blocks: Mutex::default(),
            queued: Mutex::new(false),
            changed: Condvar::new(),
        }
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports the reason of a refusal, which the C interface cannot return.
pub(crate) fn log(error: &DriverError) {
    if get().options.log {
        eprintln!("libcuda shim: {error}");
    }
}

/// Source location of a call, as far as known here: the function of the C interface.
#[track_caller]
pub(crate) fn site() -> Site {
    Location::caller()
}

// 1. The process.
impl Shim {
    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.load(Ordering::Acquire)
    }

    pub(crate) fn initialise(&'static self) -> Answer {
        static STARTED: Once = Once::new();
        if self.options.sim.devices == 0 {
            return Err(DriverCode::NO_DEVICE.into());
        }
        STARTED.call_once(|| {
            std::thread::Builder::new()
                .name("libcuda-shim-time".into())
                .spawn(|| self.run_time())
                .expect("a thread can be started");
        });
        Registers::Initialised.now();
        self.initialised.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs queued work, as a GPU does.
    fn run_time(&self) {
        loop {
            // The panic hook reports a panic in the interpreter; a thread that waits for that work meets it again.
            let idle = catch_unwind(AssertUnwindSafe(|| !self.driver.pass_time())).unwrap_or(true);
            if idle {
                let mut queued = lock(&self.queued);
                while !*queued {
                    queued = self.changed.wait(queued).unwrap_or_else(PoisonError::into_inner);
                }
                *queued = false;
            }
        }
    }

    /// Notifies the time thread of queued work.
    pub(crate) fn submitted(&self) {
        *lock(&self.queued) = true;
        self.changed.notify_one();
    }
}

/// Reports counts and findings: to the configured file, or only findings on standard error.
pub(crate) fn report() {
    let shim = get();
    let findings = shim.driver.take_findings();
    let counters = shim.driver.counters();
    let (launches, assembled) = (counters.launches, counters.texts_assembled);
    let mut text = format!("launches {launches}\nassembled {assembled}\nfindings {}\n", findings.len());
    for finding in &findings {
        text.push_str(&format!("{finding}\n"));
    }
    match &shim.options.report {
        Some(path) => std::fs::write(path, text).unwrap_or_else(|error| eprintln!("{}: {error}", path.display())),
        None if !findings.is_empty() => eprintln!("findings of the simulated device:\n{text}"),
        None => {}
    }
}

// 2. Contexts: a number per device, disguised as a pointer.

const CONTEXTS: u64 = 0xc0de_0000;
const CONTEXT_GAP: u64 = 0x100;

thread_local! {
    static CURRENT: Cell<Option<DeviceId>> = const { Cell::new(None) };
}

pub(crate) fn context_of(device: DeviceId) -> *mut c_void {
    std::ptr::without_provenance_mut((CONTEXTS + CONTEXT_GAP * u64::from(device.0)) as usize)
}

pub(crate) fn make_current(context: *mut c_void) -> Answer {
    if context.is_null() {
        CURRENT.set(None);
        return Ok(());
    }
    CURRENT.set(Some(device_of(context)?));
    Ok(())
}

/// The device of this primary context.
pub(crate) fn device_of(context: *mut c_void) -> Answer<DeviceId> {
    let place = (context.addr() as u64).checked_sub(CONTEXTS).filter(|place| place.is_multiple_of(CONTEXT_GAP));
    let device = place.map(|place| place / CONTEXT_GAP).filter(|&device| device < get().options.sim.devices.into());
    Ok(DeviceId(device.ok_or(DriverCode::INVALID_CONTEXT)? as u32))
}

/// The device whose context is current on this thread.
pub(crate) fn current() -> Answer<DeviceId> {
    Ok(CURRENT.get().ok_or(DriverCode::INVALID_CONTEXT)?)
}

// 3. Pinned memory: the C interface identifies it by address, the simulated device by block.
impl Shim {
    pub(crate) fn add_block(&self, block: Arc<HostBlock>, mapped: bool) {
        lock(&self.blocks).insert(block.address(), Pinned { block, mapped });
    }

    /// Removes the block that begins at `address`.
    pub(crate) fn take_block(&self, address: u64) -> Answer<Arc<HostBlock>> {
        Ok(lock(&self.blocks).remove(&address).ok_or(DriverCode::INVALID_VALUE)?.block)
    }

    /// A range of `len` bytes in one block; `mapped` requires a block that devices can access.
    pub(crate) fn span(&self, address: u64, len: usize, mapped: bool) -> Answer<HostSpan> {
        let blocks = lock(&self.blocks);
        let (start, pinned) = blocks.range(..=address).next_back().ok_or(DriverCode::INVALID_VALUE)?;
        if mapped && !pinned.mapped {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let span = HostSpan::new(&pinned.block, (address - start) as usize, len);
        Ok(span.map_err(|_| DriverCode::INVALID_VALUE)?)
    }
}
