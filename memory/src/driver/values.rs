//! Values that calls of the driver take and give: handles, addresses, attributes, flags, launches.
//!
//! Names      are CUDA's. A handle means one object while it is open; identities that last are counted by `device`.
//! Imports    nothing: every file of the crate may name these types.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

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
    /// Work that was captured instead of run.
    GraphHandle
    /// A graph made ready to launch.
    GraphExecHandle
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
    /// Bits of `HandleTypes` that pools of the device can be exported by.
    MemoryPoolSupportedHandleTypes,
    /// 1 when pools can live on a NUMA node of the host. Drivers before CUDA 13.0 do not know the question.
    HostNumaMemoryPoolsSupported,
    /// The host's NUMA node nearest to the device; negative when there is none.
    HostNumaId,
    /// 1 when device and host addresses are apart, so that an address alone says whose it is.
    UnifiedAddressing,
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

/// Where the memory of a pool lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolLocation {
    Device(DeviceId),
    /// A NUMA node of the host. At first only the host has access: devices are let in by `pool_set_access`.
    HostNuma(u32),
}

impl Default for PoolLocation {
    fn default() -> Self {
        PoolLocation::Device(DeviceId(0))
    }
}

impl fmt::Display for PoolLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolLocation::Device(device) => write!(f, "{device}"),
            PoolLocation::HostNuma(node) => write!(f, "host NUMA node {node}"),
        }
    }
}

/// The operating system's handles that a pool can be exported by, as bits of `CUmemAllocationHandleType`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HandleTypes(pub u32);

impl HandleTypes {
    /// The pool stays in its process.
    pub const NONE: HandleTypes = HandleTypes(0);
    pub const POSIX_FD: HandleTypes = HandleTypes(1);

    pub fn contains(self, other: HandleTypes) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn is_none(self) -> bool {
        self == HandleTypes::NONE
    }
}

/// What a pool is created with. Everything else about it is an attribute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolProperties {
    pub location: PoolLocation,
    /// The most the driver lets the pool hold; `None` is the memory of its place.
    pub max_bytes: Option<u64>,
    /// A pool with any cannot be trimmed and ignores its release threshold.
    pub handle_types: HandleTypes,
}

impl PoolProperties {
    /// A pool in the memory of a device, for this process, without a maximum.
    pub fn on(device: DeviceId) -> Self {
        PoolProperties { location: PoolLocation::Device(device), ..PoolProperties::default() }
    }
}

/// What a device may do with the memory of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolAccess {
    None,
    Read,
    ReadWrite,
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
    /// Where the simulated device puts what it counted, once the launch has run. Others leave it empty.
    pub figures: Option<&'a Arc<OnceLock<LaunchFigures>>>,
    pub site: Site,
}

/// What the simulated device counts of one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaunchFigures {
    pub warp_instructions: u64,
    /// Instructions times the lanes that took part.
    pub lane_instructions: u64,
    /// 32-byte sectors of device memory that were read, written and changed atomically, each counted once for the
    /// launch.
    pub sectors_read: u64,
    pub sectors_written: u64,
    pub sectors_atomic: u64,
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

/// What an event is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventFlags {
    /// It takes the device's time. Without, it is cheaper, and `event_elapsed_ms` refuses it.
    pub timing: bool,
    /// Other processes may open it. Not together with `timing`.
    pub interprocess: bool,
}

impl EventFlags {
    /// For order alone.
    pub const ORDER: EventFlags = EventFlags { timing: false, interprocess: false };
    pub const TIMING: EventFlags = EventFlags { timing: true, interprocess: false };
    pub const INTERPROCESS: EventFlags = EventFlags { timing: false, interprocess: true };
}

/// What the driver gives out about an event or an allocation for another process. Opaque: any transport will do.
pub type OpaqueHandle = [u8; 64];

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryType {
    Host,
    Device,
    /// A number that we have no name for: managed memory or arrays.
    Other(u32),
}

/// What the driver knows about an address that is allocated now. About one that was given back it says nothing of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointerAttributes {
    pub memory: MemoryType,
    /// The context it was allocated in, as the driver's number. `None` for memory of a pool, which has no context.
    pub context: Option<u64>,
    /// Where it lies; `None` for memory of the host.
    pub device: Option<DeviceId>,
    /// The pool it is from.
    pub pool: Option<PoolHandle>,
    /// Where its allocation begins.
    pub start: DevicePtr,
    /// Bytes of its allocation.
    pub len: usize,
}

/// Threads that may make calls that are unsafe under capture while a stream captures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CaptureMode {
    /// No thread of the process.
    #[default]
    Global,
    /// Other threads.
    ThreadLocal,
    /// All threads.
    Relaxed,
}

/// Whether what is submitted to a stream runs or becomes part of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaptureStatus {
    /// It runs.
    None,
    /// It is captured. The number is the capture's own.
    Active { id: u64 },
    /// A rule was broken: `stream_capture_end` gives an error.
    Invalidated,
}

/// What graphs of a device hold: their memory is in a pool of its own that has no handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GraphMemoryAttribute {
    UsedCurrent,
    /// Only 0 may be written: it starts a new watermark.
    UsedHigh,
    ReservedCurrent,
    /// Only 0 may be written.
    ReservedHigh,
}

/// The context that was current on a thread before we changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadContext(pub u64);
