//! A driver that does nothing and records every call, to test which calls reach a driver.
//!
//! Events pass at once, or, if held, when the test releases them. Errors are injected by the test. In quiet mode it
//! does almost nothing: `benches/host_cost.rs` measures the cost of this crate's code over it.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millpond_memory::driver::*;
use millpond_memory::{DriverCode, DriverError};

#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    Record { event: EventHandle, stream: StreamHandle },
    Wait { stream: StreamHandle, event: EventHandle },
    Alloc { ptr: DevicePtr, bytes: usize, stream: StreamHandle },
    Free { ptr: DevicePtr, stream: StreamHandle },
    Copy { stream: StreamHandle, len: usize },
    Fill { ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle },
    Word { stream: StreamHandle, value: u32 },
    Launch { name: String, stream: StreamHandle, params: Vec<u8>, accesses: Vec<DeclaredAccess> },
    EventCreate,
    EventDestroy,
    StreamDestroy,
    HostAlloc { bytes: usize },
    HostFree,
    PoolSet { attribute: PoolAttribute, value: u64 },
    PoolTrim { keep: u64 },
    PoolDestroy,
    ModuleUnload,
    Synchronize,
    DeviceClose,
}

#[derive(Default, Debug)]
struct State {
    calls: Vec<Call>,
    queries: u64,
    held: bool,
    /// A wait for held events is an error of the caller.
    strict: bool,
    /// Events that pass although the others are held.
    passed: BTreeSet<EventHandle>,
    fail: Vec<(&'static str, u32, DriverCode)>,
    reserved: u64,
}

#[derive(Debug)]
pub struct Recording {
    next: AtomicU64,
    words: bool,
    capability: i32,
    quiet: AtomicBool,
    state: Mutex<State>,
}

impl Recording {
    pub fn new() -> Arc<Self> {
        Self::with(false, 8)
    }

    pub fn with_words() -> Arc<Self> {
        Self::with(true, 8)
    }

    pub fn with(words: bool, capability: i32) -> Arc<Self> {
        Arc::new(Recording {
            next: AtomicU64::new(1),
            words,
            capability,
            quiet: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stops recording and failing calls from now on.
    #[allow(dead_code, reason = "for the bench")]
    pub fn quiet(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Returns and clears the recorded calls.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    pub fn queries(&self) -> u64 {
        self.state().queries
    }

    /// Holds all events until `release`.
    pub fn hold(&self) {
        self.state().held = true;
    }

    pub fn release(&self) {
        self.state().held = false;
    }

    /// Holds all events; a call that would wait for them inside the driver panics.
    pub fn hang(&self) {
        let mut state = self.state();
        (state.held, state.strict) = (true, true);
    }

    /// Lets one event pass although the others are held.
    pub fn pass(&self, event: EventHandle) {
        self.state().passed.insert(event);
    }

    /// Makes the next `times` calls of `call` fail, and no others.
    pub fn fail(&self, call: &'static str, times: u32, code: DriverCode) {
        self.state().fail = vec![(call, times, code)];
    }

    /// Additionally makes the next `times` calls of `call` fail.
    pub fn fail_too(&self, call: &'static str, times: u32, code: DriverCode) {
        self.state().fail.push((call, times, code));
    }

    fn check(&self, call: &'static str) -> Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        let mut state = self.state();
        let ordered = state.fail.iter_mut().find(|(failing, times, _)| *failing == call && *times > 0);
        if let Some((_, times, code)) = ordered {
            *times -= 1;
            return Err(DriverError::new(call, *code));
        }
        Ok(())
    }

    /// Held events never pass unless released: a real driver would not return from this call.
    fn blocks(&self, call: &str) {
        let held = self.state().strict && self.state().held;
        assert!(!held, "{call} would wait for ever");
    }

    fn note(&self, name: &'static str, call: Call) -> Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        self.check(name)?;
        self.state().calls.push(call);
        Ok(())
    }
}

impl Driver for Recording {
    fn kind(&self) -> DriverKind {
        DriverKind::Cuda
    }
    fn version(&self) -> DriverVersion {
        DriverVersion(12020)
    }
    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }
    fn device_info(&self, _: DeviceId) -> Result<DeviceInfo> {
        Ok(DeviceInfo { name: "recorder".into(), total_bytes: 1 << 30 })
    }
    fn attribute(&self, _: DeviceId, attribute: DeviceAttribute) -> Result<i32> {
        Ok(match attribute {
            DeviceAttribute::ComputeCapabilityMajor => self.capability,
            DeviceAttribute::MemoryPoolsSupported => 1,
            DeviceAttribute::StreamMemoryOperations => self.words.into(),
            DeviceAttribute::MultiprocessorCount => 4,
            DeviceAttribute::WarpSize => 32,
            _ => 0,
        })
    }
    fn device_open(&self, _: DeviceId) -> Result<()> {
        Ok(())
    }
    fn device_close(&self, _: DeviceId) -> Result<()> {
        self.note("device_close", Call::DeviceClose)
    }
    fn device_synchronize(&self, _: DeviceId) -> Result<()> {
        self.blocks("device_synchronize");
        self.note("device_synchronize", Call::Synchronize)
    }
    fn memory_info(&self, _: DeviceId) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free_bytes: 1 << 30, total_bytes: 1 << 30 })
    }
    fn can_access_peer(&self, _: DeviceId, _: DeviceId) -> Result<bool> {
        Ok(false)
    }
    fn stream_create(&self, _: DeviceId, _: StreamPriority) -> Result<StreamHandle> {
        self.check("stream_create")?;
        Ok(StreamHandle(self.number()))
    }
    fn stream_destroy(&self, _: StreamHandle) -> Result<()> {
        self.note("stream_destroy", Call::StreamDestroy)
    }
    fn stream_query(&self, _: StreamHandle) -> Result<bool> {
        self.check("stream_query")?;
        Ok(!self.state().held)
    }
    fn stream_synchronize(&self, _: StreamHandle) -> Result<()> {
        self.blocks("stream_synchronize");
        self.note("stream_synchronize", Call::Synchronize)
    }
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, _: Site) -> Result<()> {
        self.note("stream_wait", Call::Wait { stream, event })
    }
    fn event_create(&self, _: DeviceId, _: EventFlags) -> Result<EventHandle> {
        self.note("event_create", Call::EventCreate)?;
        Ok(EventHandle(self.number()))
    }
    fn event_destroy(&self, _: EventHandle) -> Result<()> {
        self.note("event_destroy", Call::EventDestroy)
    }
    fn event_record(&self, event: EventHandle, stream: StreamHandle, _: Site) -> Result<()> {
        self.note("event_record", Call::Record { event, stream })
    }
    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.check("event_query")?;
        if self.is_quiet() {
            return Ok(true);
        }
        let mut state = self.state();
        state.queries += 1;
        Ok(!state.held || state.passed.contains(&event))
    }
    fn event_synchronize(&self, _: EventHandle) -> Result<()> {
        self.note("event_synchronize", Call::Synchronize)
    }
    fn event_elapsed_ms(&self, _: EventHandle, _: EventHandle) -> Result<f32> {
        Ok(0.0)
    }
    fn pool_create(&self, _: &PoolProperties) -> Result<PoolHandle> {
        Ok(PoolHandle(self.number()))
    }
    fn pool_destroy(&self, _: PoolHandle) -> Result<()> {
        self.note("pool_destroy", Call::PoolDestroy)
    }
    fn pool_attribute(&self, _: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        Ok(match attribute {
            PoolAttribute::ReservedCurrent => self.state().reserved,
            PoolAttribute::ReleaseThreshold => u64::MAX,
            PoolAttribute::ReuseFollowEventDependencies | PoolAttribute::ReuseAllowOpportunistic => 1,
            _ => 0,
        })
    }
    fn pool_set_attribute(&self, _: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.note("pool_set_attribute", Call::PoolSet { attribute, value })
    }
    fn pool_trim(&self, _: PoolHandle, keep: u64) -> Result<()> {
        let mut state = self.state();
        state.reserved = state.reserved.min(keep);
        state.calls.push(Call::PoolTrim { keep });
        Ok(())
    }
    fn pool_set_access(&self, _: PoolHandle, _: DeviceId, _: bool) -> Result<()> {
        Ok(())
    }
    fn pool_alloc(&self, _: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, _: Site) -> Result<DevicePtr> {
        let ptr = DevicePtr(self.number() << 32);
        if self.is_quiet() {
            return Ok(ptr);
        }
        self.note("pool_alloc", Call::Alloc { ptr, bytes: bytes.get(), stream })?;
        self.state().reserved += bytes.get() as u64;
        Ok(ptr)
    }
    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, _: Site) -> Result<()> {
        self.note("free_async", Call::Free { ptr, stream })
    }
    fn alloc_sync(&self, _: DeviceId, _: NonZeroUsize, _: Site) -> Result<DevicePtr> {
        if self.is_quiet() {
            return Ok(DevicePtr(self.number() << 32));
        }
        Err(DriverError::new("alloc_sync", DriverCode::NOT_SUPPORTED))
    }
    fn free_sync(&self, _: DevicePtr, _: Site) -> Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        Err(DriverError::new("free_sync", DriverCode::NOT_SUPPORTED))
    }
    fn host_alloc(&self, _: DeviceId, bytes: NonZeroUsize, kind: HostKind, _: Site) -> Result<Arc<HostBlock>> {
        self.note("host_alloc", Call::HostAlloc { bytes: bytes.get() })?;
        Ok(HostBlock::in_process(bytes.get(), kind))
    }
    fn host_free(&self, _: &Arc<HostBlock>, _: Site) -> Result<()> {
        self.note("host_free", Call::HostFree)
    }
    fn copy(&self, copy: &CopyOp, stream: StreamHandle, _: Site) -> Result<()> {
        self.note("copy", Call::Copy { stream, len: copy.len() })
    }
    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, _: Site) -> Result<()> {
        self.note("fill", Call::Fill { ptr, byte, len, stream })
    }
    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, _: Site) -> Result<()> {
        self.note("write_word", Call::Word { stream, value })?;
        if !self.state().held {
            word.block().store_word(word.offset(), value).unwrap();
        }
        Ok(())
    }
    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        let (name, params, accesses) = (launch.name.to_string(), launch.params.to_vec(), launch.accesses.to_vec());
        self.note("launch", Call::Launch { name, stream, params, accesses })
    }
    fn module_load(&self, _: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        if ptx.is_empty() {
            return Err(DriverError::new("cuModuleLoadDataEx", DriverCode::INVALID_PTX).with_detail("line 1: nothing"));
        }
        Ok(ModuleHandle(self.number()))
    }
    fn assemble(&self, _: DeviceId, ptx: &str) -> Result<Vec<u8>> {
        Ok(ptx.as_bytes().to_vec())
    }
    fn module_load_code(&self, _: DeviceId, _: &[u8]) -> Result<ModuleHandle> {
        Ok(ModuleHandle(self.number()))
    }
    fn module_unload(&self, _: ModuleHandle) -> Result<()> {
        self.note("module_unload", Call::ModuleUnload)
    }
    fn module_function(&self, _: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        match name {
            "absent" => Err(DriverError::new("cuModuleGetFunction", DriverCode::NOT_FOUND)),
            _ => Ok(FunctionHandle(self.number())),
        }
    }
    fn module_global(&self, _: ModuleHandle, _: &str) -> Result<(DevicePtr, usize)> {
        Err(DriverError::new("cuModuleGetGlobal", DriverCode::NOT_FOUND))
    }
    fn function_attribute(&self, _: FunctionHandle, _: FunctionAttribute) -> Result<i32> {
        Ok(32)
    }
    fn function_set_max_dynamic_shared(&self, _: FunctionHandle, _: u32) -> Result<()> {
        Ok(())
    }
    fn occupancy(&self, _: FunctionHandle, _: u32, _: u32) -> Result<u32> {
        Ok(2)
    }
}
