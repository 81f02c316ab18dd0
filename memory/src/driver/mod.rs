//! The narrow waist: everything the engine asks of a GPU, in CUDA's own words.
//!
//!   Device, Stream, Event, MemoryPool, DeviceBuffer, PinnedPool, Module      safe and ordered
//!   ───────────────────────────────────────────────────────────────────
//!   trait Driver                                                            this page
//!   ├── cuda    libcuda, opened at run time
//!   └── sim     a simulated device: interprets the same PTX and checks memory and stream order
//!
//! Used as    `Arc<dyn Driver>`: one indirect call is nothing beside a driver call, and no type parameter spreads.
//! Refuses    what CUDA refuses, with CUDA's result codes. `NOT_READY` is an answer (`Ok(false)`), not an error.
//! Order      the driver keeps order inside a stream and across recorded events, nothing else; `order` builds on it.
//! Threads    every method may be called from every thread; the driver binds contexts itself.
//! Sites      calls that a finding may have to name take the place in the source that asked for them.

#[expect(unsafe_code, reason = "calls into libcuda")]
pub mod cuda;
pub mod finding;
pub mod sim;

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;

pub use crate::error::{DriverCode, DriverError};
pub use crate::pinned::{HostBlock, HostSpan};
pub use cuda::CudaDriver;
pub use finding::{Finding, FindingKind};

pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// The place in the source that asked for something.
pub type Site = &'static Location<'static>;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// A stream of one device. Raw handles may come back after destroy: identity is `StreamId`.
    StreamHandle
    /// An event of one device.
    EventHandle
    /// A stream-ordered memory pool of one device.
    PoolHandle
    /// PTX loaded on a device.
    ModuleHandle
    /// A kernel of a loaded module.
    FunctionHandle
}

/// The ordinal of a device, as the driver counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// An address in device memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    pub const NULL: DevicePtr = DevicePtr(0);

    pub fn offset(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverKind {
    Cuda,
    Sim,
}

/// A driver's version in CUDA's counting: 12020 is CUDA 12.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DriverVersion(pub u32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What is fixed about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    pub name: String,
    pub total_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// Attributes of a device that we ask for. The names are CUDA's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceAttribute {
    ComputeCapabilityMajor,
    ComputeCapabilityMinor,
    MultiprocessorCount,
    WarpSize,
    MaxThreadsPerBlock,
    MaxThreadsPerMultiprocessor,
    MaxRegistersPerMultiprocessor,
    MaxSharedMemoryPerBlock,
    MaxSharedMemoryPerBlockOptin,
    MaxSharedMemoryPerMultiprocessor,
    MaxGridDimX,
    L2CacheBytes,
    ClockRateKhz,
    MemoryClockRateKhz,
    GlobalMemoryBusWidthBits,
    MemoryPoolsSupported,
    /// 1 when `write_word` works.
    StreamMemoryOperations,
    Integrated,
}

/// Attributes of a loaded kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionAttribute {
    MaxThreadsPerBlock,
    StaticSharedBytes,
    LocalBytes,
    Registers,
    MaxDynamicSharedBytes,
}

/// One parameter of a kernel, in the packed parameter block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamLayout {
    pub offset: usize,
    pub size: usize,
}

/// What a pool is created with. Everything else about it is an attribute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolProperties {
    /// The most the driver lets the pool hold; `None` is the device's memory.
    pub max_bytes: Option<u64>,
}

/// `cuMemPoolSetAttribute` / `GetAttribute`. All values cross as `u64`; the driver narrows policies itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolAttribute {
    ReuseFollowEventDependencies,
    ReuseAllowOpportunistic,
    ReuseAllowInternalDependencies,
    ReleaseThreshold,
    ReservedCurrent,
    /// Only 0 may be written: it starts a new watermark.
    ReservedHigh,
    UsedCurrent,
    /// Only 0 may be written.
    UsedHigh,
}

/// How a kernel or a copy touches bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
    /// Touched by several streams at once through atomics (or in disjoint parts).
    Atomic,
}

impl Access {
    pub fn reads(self) -> bool {
        !matches!(self, Access::Write)
    }

    pub fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }
}

/// Device bytes that a launch says it may touch. A launch touching other bytes is a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclaredAccess {
    pub ptr: DevicePtr,
    pub len: usize,
    pub access: Access,
}

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch<'a> {
    pub function: FunctionHandle,
    /// The kernel's name, for errors and findings.
    pub name: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Every parameter at its PTX offset: each aligned to its own size, little endian.
    pub params: &'a [u8],
    pub accesses: &'a [DeclaredAccess],
    pub site: Site,
}

/// One copy. Each end names its bytes; the lengths agree.
#[derive(Clone, Debug)]
pub enum CopyOp {
    HostToDevice { from: HostSpan, to: DevicePtr },
    DeviceToHost { from: DevicePtr, to: HostSpan },
    DeviceToDevice { from: DevicePtr, to: DevicePtr, len: usize },
}

impl CopyOp {
    pub fn len(&self) -> usize {
        match self {
            CopyOp::HostToDevice { from, .. } => from.len(),
            CopyOp::DeviceToHost { to, .. } => to.len(),
            CopyOp::DeviceToDevice { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What pinned host memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostKind {
    /// Write-combined: the host only writes it, in order; reading it is very slow.
    Upload,
    /// Cached: the host reads what the device wrote.
    Download,
}

/// Higher runs first, where the device can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum StreamPriority {
    #[default]
    Normal,
    High,
}

/// A GPU as its driver shows it.
pub trait Driver: Send + Sync + fmt::Debug + 'static {
    fn kind(&self) -> DriverKind;
    fn version(&self) -> DriverVersion;

    // Devices. `device_open` retains the primary context, `device_close` releases it.

    fn device_count(&self) -> Result<u32>;
    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo>;
    fn attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> Result<i32>;
    fn device_open(&self, device: DeviceId) -> Result<()>;
    fn device_close(&self, device: DeviceId) -> Result<()>;
    fn device_synchronize(&self, device: DeviceId) -> Result<()>;
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;
    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> Result<bool>;

    // Streams: non-blocking ones only; there is no default stream.

    fn stream_create(&self, device: DeviceId, priority: StreamPriority) -> Result<StreamHandle>;
    fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;
    fn stream_query(&self, stream: StreamHandle) -> Result<bool>;
    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;
    /// Everything submitted to `stream` from now on runs after what `event` was last recorded behind.
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()>;

    // Events. Without `timing` they are cheaper and `event_elapsed_ms` refuses them.

    fn event_create(&self, device: DeviceId, timing: bool) -> Result<EventHandle>;
    fn event_destroy(&self, event: EventHandle) -> Result<()>;
    fn event_record(&self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()>;
    /// True once everything before the last record has finished. The host then is ordered after it. On the
    /// simulated device, asking is what lets time pass: a caller that keeps asking gets `true` or an error in the end.
    fn event_query(&self, event: EventHandle) -> Result<bool>;
    fn event_synchronize(&self, event: EventHandle) -> Result<()>;
    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // Pools and allocations.

    fn pool_create(&self, device: DeviceId, properties: &PoolProperties) -> Result<PoolHandle>;
    fn pool_destroy(&self, pool: PoolHandle) -> Result<()>;
    fn pool_attribute(&self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64>;
    fn pool_set_attribute(&self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()>;
    /// Gives back to the system what is unused beyond `keep_bytes`. The driver must have seen the frees finish.
    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()>;
    /// Lets kernels on `peer` touch the pool's memory, now and later.
    fn pool_set_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()>;
    /// Allocates in stream order. Aligned to 256 bytes at least.
    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr>;
    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()>;
    fn alloc_sync(&self, device: DeviceId, bytes: NonZeroUsize, site: Site) -> Result<DevicePtr>;
    fn free_sync(&self, ptr: DevicePtr, site: Site) -> Result<()>;

    // Pinned host memory. It is the driver's, so that the simulated device sees who touches it.

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, site: Site) -> Result<Arc<HostBlock>>;
    /// Gives pinned memory back. Nothing in flight may use it.
    fn host_free(&self, block: &Arc<HostBlock>, site: Site) -> Result<()>;
    /// The host is about to touch these bytes. The simulated device checks that no copy still does.
    fn host_access(&self, span: &HostSpan, access: Access, site: Site) {
        let _ = (span, access, site);
    }

    // Work, in stream order.

    fn copy(&self, copy: &CopyOp, stream: StreamHandle, site: Site) -> Result<()>;
    /// Sets `len` bytes to `byte`.
    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, site: Site) -> Result<()>;
    /// Stores `value` into a word of pinned memory (`HostBlock::store_word`), after everything before it in the
    /// stream. Refused with `NOT_SUPPORTED` where `DeviceAttribute::StreamMemoryOperations` is 0.
    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()>;
    /// Launches a kernel.
    ///
    /// # Safety
    /// `launch.params` has the kernel's layout, and every address the kernel reaches from it stays allocated until the
    /// kernel has finished, ordered after its last conflicting use.
    #[expect(
        unsafe_code,
        reason = "what a kernel reaches through addresses is beyond the types; `kernels::launch` answers for it"
    )]
    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()>;

    // Code.

    /// Loads PTX. A refusal carries the driver's log.
    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle>;
    /// No kernel of the module may be running.
    fn module_unload(&self, module: ModuleHandle) -> Result<()>;
    fn module_function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle>;
    fn module_global(&self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)>;
    fn function_attribute(&self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32>;
    /// Lets the kernel be launched with up to `bytes` of dynamic shared memory.
    fn function_set_max_dynamic_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()>;
    /// The kernel's parameters, where the driver can tell (the simulated device can).
    fn function_params(&self, function: FunctionHandle) -> Option<Vec<ParamLayout>> {
        let _ = function;
        None
    }
    /// How many thread blocks of the kernel fit on one multiprocessor at once.
    fn occupancy(&self, function: FunctionHandle, block_threads: u32, shared_bytes: u32) -> Result<u32>;

    // Only the simulated device has more to say.

    /// What its checks found so far, oldest first.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
    /// Runs everything that is queued on every stream, as if the host had waited for all of it.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// The seed that replays this run, if there is one.
    fn seed(&self) -> Option<u64> {
        None
    }
}
