//! Kernels on a device: PTX is loaded once, kernels are found by name.
//!
//!   device.load_module(ptx)?.kernel("filter_i64")? ──► kernels::launch::Launch
//!
//! Kept       assembled code, if the device has a folder for it: see `kernel_cache`.
//! Lifetime   a kernel keeps its module alive. When its last handle is dropped, a module is kept by the poller until
//!            the device is past its last launch, and then unloaded.
//! Errors     PTX that the driver refuses: the error contains its log.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::device::Device;
use crate::driver::{FunctionAttribute, FunctionHandle, ModuleHandle, ParamLayout};
use crate::error::{DriverCode, MemoryError, Result};
use crate::kernel_cache::{KernelCache, Key};
use crate::order::Position;
use crate::pending::Pending;
use crate::recorder;
use crate::stream::Stream;

struct Loaded {
    device: Device,
    handle: ModuleHandle,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.device.check(self.device.driver().module_unload(self.handle)) {
            self.device.report(error);
        }
    }
}

struct ModuleInner {
    /// `None` only while it is dropped.
    loaded: Option<Arc<Loaded>>,
    kernels: Vec<String>,
    /// Newest launch on each stream.
    launches: Mutex<Vec<Position>>,
}

impl ModuleInner {
    fn loaded(&self) -> &Loaded {
        self.loaded.as_ref().expect("a module in use is loaded")
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        let Some(loaded) = self.loaded.take() else { return };
        let device = loaded.device.clone();
        let launches = std::mem::take(self.launches.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Each stream that ran a kernel keeps the module until it is past the launch.
        for position in launches {
            let event = device
                .stream_cell(position.stream)
                .and_then(|cell| Stream::of(&device, cell, device.scope().clone()).event_behind(position));
            match event {
                Ok(event) => drop(Pending::behind(event, Arc::clone(&loaded))),
                // A lost device keeps its resources; without an event the host waits instead.
                Err(_) if device.is_lost() || device.wait_without_event(position).is_ok() => {}
                Err(error) => {
                    std::mem::forget(Arc::clone(&loaded));
                    device.report(error);
                }
            }
        }
    }
}

/// PTX loaded on a device.
#[derive(Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

impl Module {
    pub fn load(device: &Device, ptx: &str) -> Result<Self> {
        device.alive()?;
        let _step = recorder::step(recorder::ASSEMBLE);
        let handle = match device.kernel_cache() {
            Some(cache) => load_kept(device, cache, ptx)?,
            None => device.check(device.driver().module_load(device.id(), ptx))?,
        };
        Ok(Self::of(device, ptx, handle))
    }

    fn of(device: &Device, ptx: &str, handle: ModuleHandle) -> Self {
        let loaded = Some(Arc::new(Loaded { device: device.clone(), handle }));
        let inner = ModuleInner { loaded, kernels: entry_names(ptx), launches: Mutex::default() };
        Module { inner: Arc::new(inner) }
    }

    /// Loads PTX if its assembled code is on disk; otherwise returns `None` without assembling.
    pub(crate) fn load_kept(device: &Device, ptx: &str) -> Result<Option<Self>> {
        device.alive()?;
        let Some(cache) = device.kernel_cache() else { return Ok(None) };
        let key = Key::of(ptx, device.limits(), &device.driver().build());
        Ok(read_kept(device, cache, key).map(|handle| Self::of(device, ptx, handle)))
    }

    pub fn device(&self) -> &Device {
        &self.inner.loaded().device
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchKernel`], with the names of the module's kernels.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let Loaded { device, handle } = self.inner.loaded();
        device.alive()?;
        let function = match device.driver().module_function(*handle, name) {
            Err(error) if error.code == DriverCode::NOT_FOUND => {
                return Err(MemoryError::NoSuchKernel { name: name.into(), known: self.inner.kernels.clone() });
            }
            other => device.check(other)?,
        };
        let params = device.driver().function_params(function);
        let inner =
            KernelInner { module: self.clone(), function, name: name.into(), params, attributes: OnceLock::new() };
        Ok(Kernel { inner: Arc::new(inner) })
    }
}

/// Loads code that an earlier process assembled, or assembles it and stores it.
fn load_kept(device: &Device, cache: &KernelCache, ptx: &str) -> Result<ModuleHandle> {
    let (driver, id) = (device.driver(), device.id());
    let key = Key::of(ptx, device.limits(), &driver.build());
    if let Some(handle) = read_kept(device, cache, key) {
        return Ok(handle);
    }
    cache.assembled.fetch_add(1, Ordering::Relaxed);
    if let Ok(code) = driver.assemble(id, ptx)
        && let Ok(handle) = driver.module_load_code(id, &code)
    {
        cache.put(key, &code);
        return Ok(handle);
    }
    // Reports the driver's error for the text itself, or loads it where the driver cannot return code.
    device.check(driver.module_load(id, ptx))
}

/// Loads the code of a file; a file that the driver refuses is removed.
fn read_kept(device: &Device, cache: &KernelCache, key: Key) -> Option<ModuleHandle> {
    let code = cache.get(key)?;
    match device.driver().module_load_code(device.id(), &code) {
        Ok(handle) => {
            cache.read.fetch_add(1, Ordering::Relaxed);
            Some(handle)
        }
        Err(_) => {
            cache.refuse(key);
            None
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module with {}", self.inner.kernels.join(", "))
    }
}

/// Names after `.entry` in the PTX text.
fn entry_names(ptx: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    ptx.split(".entry")
        .skip(1)
        .map(|rest| rest.trim_start().chars().take_while(|&c| is_name(c)).collect::<String>())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Resources that a kernel needs on a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAttributes {
    pub registers: u32,
    pub static_shared_bytes: u32,
    pub local_bytes: u32,
    pub max_threads_per_block: u32,
}

struct KernelInner {
    module: Module,
    function: FunctionHandle,
    name: Box<str>,
    params: Option<Vec<ParamLayout>>,
    attributes: OnceLock<KernelAttributes>,
}

/// A kernel, ready to launch.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<KernelInner>,
}

impl Kernel {
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn device(&self) -> &Device {
        self.inner.module.device()
    }

    pub fn function(&self) -> FunctionHandle {
        self.inner.function
    }

    /// Its parameters, if the driver can report them.
    pub fn params(&self) -> Option<&[ParamLayout]> {
        self.inner.params.as_deref()
    }

    pub fn attributes(&self) -> Result<KernelAttributes> {
        if let Some(known) = self.inner.attributes.get() {
            return Ok(*known);
        }
        let device = self.device();
        device.alive()?;
        let get = |attribute| {
            device.check(device.driver().function_attribute(self.function(), attribute)).map(|v| v.max(0) as u32)
        };
        let attributes = KernelAttributes {
            registers: get(FunctionAttribute::Registers)?,
            static_shared_bytes: get(FunctionAttribute::StaticSharedBytes)?,
            local_bytes: get(FunctionAttribute::LocalBytes)?,
            max_threads_per_block: get(FunctionAttribute::MaxThreadsPerBlock)?,
        };
        Ok(*self.inner.attributes.get_or_init(|| attributes))
    }

    /// Allows launches with up to `bytes` of dynamic shared memory (48 KiB without this).
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let device = self.device();
        device.alive()?;
        device.check(device.driver().function_set_max_dynamic_shared(self.function(), bytes))
    }

    /// Number of thread blocks that fit on one multiprocessor at once.
    pub fn occupancy(&self, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        let device = self.device();
        device.alive()?;
        device.check(device.driver().occupancy(self.function(), block_threads, shared_bytes))
    }

    /// Number of thread blocks of a grid that fills the device once.
    pub fn persistent_blocks(&self, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        Ok(self.occupancy(block_threads, shared_bytes)?.max(1) * self.device().limits().multiprocessors.max(1))
    }

    /// Counts a submitted launch; the module stays loaded until the device is past it.
    pub fn launched(&self, stream: &Stream, position: Position) {
        stream.scope().count(|c| &c.launches);
        let mut launches = self.inner.module.inner.launches.lock().unwrap_or_else(PoisonError::into_inner);
        match launches.iter_mut().find(|p| p.stream == position.stream) {
            Some(known) => known.seq = known.seq.max(position.seq),
            None => launches.push(position),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}", self.inner.name)
    }
}

#[cfg(test)]
mod tests {
    use super::entry_names;

    #[test]
    fn names_behind_entry() {
        let ptx = ".visible .entry fill_u8(\n.param .u64 p\n)\n{ ret; }\n.entry  gather$2 () { ret; }";
        assert_eq!(entry_names(ptx), ["fill_u8", "gather$2"]);
    }
}
