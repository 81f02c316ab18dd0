//! Errors of the memory layer: one enum with predicates.
//!
//!   DriverCode    a CUDA result code as a value, including unknown codes
//!   DriverError   the failed call, its code, and the driver's message
//!   MemoryError   the error of this crate's API: what failed, with which values, and what to try
//!
//! Lost device   some codes poison the context permanently. The device keeps the first of them, and every later call
//!               and every `Pending` ends in `MemoryError::DeviceLost`.
//! Unknown code  from a call that submits, queries or waits for work: the device is lost, since its remaining work is
//!               unknown. From any other call: an error of that call.

use std::fmt;

use crate::driver::{DeviceId, DevicePtr, DriverVersion, Site};
use crate::ids::StreamId;
use crate::ids::{MemorySpace, Refusal};
use crate::units::ByteSize;

pub type Result<T, E = MemoryError> = std::result::Result<T, E>;

/// A result code of the CUDA driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverCode(pub u32);

/// Effect of a code on the device that returned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    /// The call was refused; the device still works.
    Refusal,
    /// A refusal, if the call finishes before it returns. From a call that submits, queries or waits for work it is an
    /// error of that work, and the device's state is unknown.
    LateError,
    /// The context is lost, whichever call returned the code.
    Lost,
}

macro_rules! codes {
    ($($name:ident = $value:literal $words:literal $(, $harm:ident)?;)*) => {
        impl DriverCode {
            $(pub const $name: DriverCode = DriverCode($value);)*

            /// All named codes in ascending order.
            pub const NAMED: &'static [DriverCode] = &[$(DriverCode($value)),*];

            /// Description of the code; "unknown result" for a code that this table lacks.
            pub fn words(self) -> &'static str {
                match self.0 {
                    $($value => $words,)*
                    _ => "unknown result",
                }
            }

            fn harm(self) -> Harm {
                match self.0 {
                    $($value => codes!(@harm $($harm)?),)*
                    _ => Harm::LateError,
                }
            }
        }
    };
    (@harm sticky) => { Harm::Lost };
    (@harm late) => { Harm::LateError };
    (@harm) => { Harm::Refusal };
}

impl DriverCode {
    /// True if the context can no longer be used, whichever call returned the code.
    pub fn is_sticky(self) -> bool {
        self.harm() == Harm::Lost
    }

    /// True if the code is about an active capture or captured work.
    pub(crate) fn is_of_capture(self) -> bool {
        (DriverCode::STREAM_CAPTURE_UNSUPPORTED..=DriverCode::STREAM_CAPTURE_WRONG_THREAD).contains(&self)
    }

    /// True if the device is lost when a call that submits, queries or waits for work returns this code: all sticky
    /// codes, failures of the driver's service, and unknown codes. Such a call also reports errors of earlier work, so
    /// an ambiguous code counts as one.
    pub fn loses_work(self) -> bool {
        self.harm() != Harm::Refusal
    }
}

// CUresult of CUDA 12 and 13.
codes! {
    SUCCESS = 0 "success";
    INVALID_VALUE = 1 "invalid value";
    OUT_OF_MEMORY = 2 "out of memory";
    NOT_INITIALIZED = 3 "driver not initialised";
    DEINITIALIZED = 4 "driver is shutting down", sticky;
    PROFILER_DISABLED = 5 "profiler disabled";
    PROFILER_NOT_INITIALIZED = 6 "profiler not initialised";
    PROFILER_ALREADY_STARTED = 7 "profiler already started";
    PROFILER_ALREADY_STOPPED = 8 "profiler already stopped";
    STUB_LIBRARY = 34 "libcuda is a stub";
    CALL_REQUIRES_NEWER_DRIVER = 36 "the call needs a newer driver";
    DEVICE_UNAVAILABLE = 46 "device in use or unavailable", late;
    MULTICAST_RESOURCE_FULL = 47 "no room for another multicast group";
    NO_DEVICE = 100 "no device";
    INVALID_DEVICE = 101 "invalid device";
    DEVICE_NOT_LICENSED = 102 "device not licensed";
    INVALID_IMAGE = 200 "invalid image";
    INVALID_CONTEXT = 201 "invalid context";
    CONTEXT_ALREADY_CURRENT = 202 "context is current already";
    MAP_FAILED = 205 "mapping failed";
    UNMAP_FAILED = 206 "unmapping failed";
    ARRAY_IS_MAPPED = 207 "array is mapped";
    ALREADY_MAPPED = 208 "mapped already";
    NO_BINARY_FOR_GPU = 209 "no code for this GPU";
    ALREADY_ACQUIRED = 210 "acquired already";
    NOT_MAPPED = 211 "not mapped";
    NOT_MAPPED_AS_ARRAY = 212 "not mapped as an array";
    NOT_MAPPED_AS_POINTER = 213 "not mapped as a pointer";
    ECC_UNCORRECTABLE = 214 "uncorrectable memory error", sticky;
    UNSUPPORTED_LIMIT = 215 "limit not supported";
    CONTEXT_ALREADY_IN_USE = 216 "context is bound to another thread";
    PEER_ACCESS_UNSUPPORTED = 217 "peer access unsupported";
    INVALID_PTX = 218 "invalid PTX";
    INVALID_GRAPHICS_CONTEXT = 219 "invalid graphics context";
    NVLINK_UNCORRECTABLE = 220 "uncorrectable NVLink error", sticky;
    JIT_COMPILER_NOT_FOUND = 221 "PTX compiler not found";
    UNSUPPORTED_PTX_VERSION = 222 "PTX version newer than the driver";
    JIT_COMPILATION_DISABLED = 223 "PTX compilation disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224 "execution affinity not supported";
    UNSUPPORTED_DEVSIDE_SYNC = 225 "device-side synchronisation not supported";
    CONTAINED = 226 "memory error that the GPU contained", sticky;
    INSUFFICIENT_LOADER_VERSION = 227 "loader older than the driver needs";
    INVALID_SOURCE = 300 "invalid source";
    FILE_NOT_FOUND = 301 "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 "symbol of a shared object not found";
    SHARED_OBJECT_INIT_FAILED = 303 "a shared object did not start";
    OPERATING_SYSTEM = 304 "a call to the operating system failed";
    INVALID_HANDLE = 400 "invalid handle";
    ILLEGAL_STATE = 401 "illegal state";
    LOSSY_QUERY = 402 "the answer would lose information";
    NOT_FOUND = 500 "not found";
    NOT_READY = 600 "not ready";
    ILLEGAL_ADDRESS = 700 "illegal address", sticky;
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources asked for by a launch";
    LAUNCH_TIMEOUT = 702 "launch timed out", sticky;
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 "launch with another texturing mode";
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access enabled already";
    PEER_ACCESS_NOT_ENABLED = 705 "peer access not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708 "primary context is active";
    CONTEXT_IS_DESTROYED = 709 "context is destroyed", sticky;
    ASSERT = 710 "device-side assertion", sticky;
    TOO_MANY_PEERS = 711 "too many peers";
    HOST_MEMORY_ALREADY_REGISTERED = 712 "host memory registered already";
    HOST_MEMORY_NOT_REGISTERED = 713 "host memory not registered";
    HARDWARE_STACK_ERROR = 714 "device stack error", sticky;
    ILLEGAL_INSTRUCTION = 715 "illegal instruction", sticky;
    MISALIGNED_ADDRESS = 716 "misaligned address", sticky;
    INVALID_ADDRESS_SPACE = 717 "invalid address space", sticky;
    INVALID_PC = 718 "invalid program counter", sticky;
    LAUNCH_FAILED = 719 "launch failed", sticky;
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "cooperative launch too large";
    TENSOR_MEMORY_LEAK = 721 "a kernel left tensor memory allocated", sticky;
    NOT_PERMITTED = 800 "not permitted";
    NOT_SUPPORTED = 801 "not supported";
    SYSTEM_NOT_READY = 802 "system not ready: a service such as the fabric manager is missing", late;
    SYSTEM_DRIVER_MISMATCH = 803 "driver and library versions differ";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "the compatibility library does not support the device";
    MPS_CONNECTION_FAILED = 805 "no connection to the MPS server", late;
    MPS_RPC_FAILURE = 806 "a call to the MPS server failed", sticky;
    MPS_SERVER_NOT_READY = 807 "MPS server not ready", late;
    MPS_MAX_CLIENTS_REACHED = 808 "MPS server has too many clients", late;
    MPS_MAX_CONNECTIONS_REACHED = 809 "MPS server has too many connections", late;
    MPS_CLIENT_TERMINATED = 810 "ended by the MPS server, after an error of another client", sticky;
    CDP_NOT_SUPPORTED = 811 "launches by the device not supported";
    CDP_VERSION_MISMATCH = 812 "launches by the device of another version";
    STREAM_CAPTURE_UNSUPPORTED = 900 "not permitted while a stream is captured";
    STREAM_CAPTURE_INVALIDATED = 901 "the capture was invalidated by an earlier error";
    STREAM_CAPTURE_MERGE = 902 "two captures would be merged";
    STREAM_CAPTURE_UNMATCHED = 903 "the capture was not begun on this stream";
    STREAM_CAPTURE_UNJOINED = 904 "a stream that joined the capture has not come back";
    STREAM_CAPTURE_ISOLATION = 905 "a dependency would cross into the capture";
    STREAM_CAPTURE_IMPLICIT = 906 "the default stream would depend on a capture";
    CAPTURED_EVENT = 907 "the event was last recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908 "the capture was begun by another thread";
    TIMEOUT = 909 "timed out", sticky;
    GRAPH_EXEC_UPDATE_FAILURE = 910 "the graph could not be updated";
    EXTERNAL_DEVICE = 911 "error of an external device", sticky;
    INVALID_CLUSTER_SIZE = 912 "invalid cluster size";
    FUNCTION_NOT_LOADED = 913 "function not loaded";
    INVALID_RESOURCE_TYPE = 914 "invalid type of resource";
    INVALID_RESOURCE_CONFIGURATION = 915 "invalid configuration of a resource";
    KEY_ROTATION = 916 "encryption keys are being changed", late;
    STREAM_DETACHED = 917 "the stream is detached from its context", late;
    GRAPH_RECAPTURE_FAILURE = 918 "the graph could not be captured again";
    FABRIC_NOT_READY = 919 "fabric not ready", late;
    UNKNOWN = 999 "unknown error", sticky;
}

impl fmt::Display for DriverCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.words(), self.0)
    }
}

impl fmt::Debug for DriverCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A failed driver call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    pub call: &'static str,
    pub code: DriverCode,
    /// Message of the driver: a compiler log, a finding, or the missing name.
    pub detail: Option<Box<str>>,
}

impl DriverError {
    pub fn new(call: &'static str, code: DriverCode) -> Self {
        DriverError { call, code, detail: None }
    }

    pub fn with_detail(mut self, detail: impl Into<Box<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, self.code)?;
        match &self.detail {
            Some(detail) => write!(f, ": {}", detail.trim_end()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DriverError {}

/// "535.54 (CUDA 12.2)", or "for CUDA 12.2" if the system does not report the release. 0 is an unknown version.
fn driver_words(release: &Option<String>, found: u32) -> String {
    let version = DriverVersion(found);
    match release {
        Some(release) if found > 0 => format!("{release} (CUDA {version})"),
        Some(release) => release.clone(),
        None if found > 0 => format!("for CUDA {version}"),
        None => "of unknown version".into(),
    }
}

/// Reason why no CUDA device is usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverUnavailable {
    #[error("no NVIDIA driver found (libcuda.so.1 not loadable)")]
    NoLibrary,
    #[error("NVIDIA driver {} is older than the minimum 535 (CUDA 12.2)", driver_words(release, *found))]
    TooOld { found: u32, release: Option<String> },
    #[error("NVIDIA driver {} lacks {symbol}; reinstall it", driver_words(release, *found))]
    MissingSymbol { symbol: &'static str, found: u32, release: Option<String> },
    #[error(
        "driver {} present but no device visible{}",
        driver_words(release, *found),
        visible.as_ref().map_or(String::new(), |value| format!(" (CUDA_VISIBLE_DEVICES=\"{value}\")"))
    )]
    NoDevice { found: u32, release: Option<String>, visible: Option<String> },
    #[error("NVIDIA driver does not start: {0}")]
    Refused(DriverError),
}

/// One of the scopes that hold most of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub tag: String,
    pub bytes: ByteSize,
    pub allocations: u64,
}

/// Cause of a failed allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OomCause {
    /// The limit of the pool or of an adaptor.
    #[default]
    Limit,
    /// The device is full.
    Device,
    /// Enough bytes are free, but no block is large enough.
    Fragmentation,
}

/// State of the memory when an allocation failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OomSnapshot {
    pub cause: OomCause,
    /// Bytes handed out, and bytes freed but not yet reached by the device.
    pub used: ByteSize,
    pub pending_free: ByteSize,
    /// Bytes the pool has from the device, and the unused part of them.
    pub reserved: ByteSize,
    pub reusable: ByteSize,
    /// Memory of the device. Zero if it was not queried.
    pub device_free: ByteSize,
    pub device_total: ByteSize,
    /// Largest first.
    pub holders: Vec<Holder>,
}

impl OomSnapshot {
    /// Describes the memory the pool could not use, and the setting to change.
    fn words(&self) -> String {
        let OomSnapshot { pending_free, reserved, reusable, device_free, device_total, holders, .. } = self;
        let holders = list_holders(holders);
        let pending = match *pending_free {
            ByteSize::ZERO => String::new(),
            pending => format!(", {pending} more on its way"),
        };
        match self.cause {
            OomCause::Limit => {
                format!("{pending}{holders}; lower millpond.batch_bytes or raise millpond.memory_limit_bytes")
            }
            OomCause::Device => format!(
                "{pending}, but the device has only {device_free} of {device_total} left ({reserved} are this pool's){holders}; \
                 lower millpond.batch_bytes or millpond.memory_limit_bytes, or end other programs on the device"
            ),
            OomCause::Fragmentation => format!(
                "{pending}, but in pieces ({device_free} of the device, {reusable} of {reserved} reserved){holders}; \
                 lower millpond.batch_bytes, or choose cuda_async for millpond.memory_resource"
            ),
        }
    }
}

fn list_holders(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let list: Vec<String> = holders.iter().map(|h| format!("{} {} in {}", h.tag, h.bytes, h.allocations)).collect();
    format!("; largest holders: {}", list.join(", "))
}

fn after_refusal(why: Refusal, space: MemorySpace) -> String {
    let option = match space {
        MemorySpace::Device => "raise millpond.memory_limit_bytes",
        MemorySpace::Host => "raise the host memory it may use",
    };
    match why {
        Refusal::TooLarge => format!("that is more than there is: lower millpond.batch_bytes or {option}"),
        Refusal::NoRoom => format!("spill or try later, lower millpond.batch_bytes, or {option}"),
        Refusal::Deadlock => {
            format!("all who hold memory wait for more: give back or spill what is held and ask again, or {option}")
        }
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => names.join(""),
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Neither the limit nor the device allows the allocation, and nothing can be freed.
    #[error(
        "out of device memory: wanted {wanted}, {free} free of {limit}{}",
        snapshot.words()
    )]
    OutOfMemory { wanted: ByteSize, free: ByteSize, limit: ByteSize, snapshot: Box<OomSnapshot> },
    /// The limit of pinned host memory is reached, and the blocks in use have not been returned.
    #[error("out of pinned host memory: wanted {wanted}, {in_use} in use of {limit}; raise millpond.pinned_bytes")]
    PinnedExhausted { wanted: ByteSize, in_use: ByteSize, limit: ByteSize },
    /// Neither page-locked nor ordinary host memory is available.
    #[error(
        "out of host memory: {wanted} of pinned memory were refused ({refused}), and ordinary memory has no room either; lower \
         millpond.pinned_bytes or millpond.batch_bytes, or end other programs"
    )]
    PinnedRefused { wanted: ByteSize, refused: String },
    /// A governor refused a reservation.
    #[error(
        "{space} memory not promised: wanted {wanted}, {reserved} of {capacity} are{}; {}",
        list_holders(holders), after_refusal(*why, *space)
    )]
    ReservationRefused {
        wanted: ByteSize,
        reserved: ByteSize,
        capacity: ByteSize,
        space: MemorySpace,
        why: Refusal,
        holders: Vec<Holder>,
    },
    /// A setting has an invalid value.
    #[error("{what} cannot be {value}: {valid}")]
    Setting { what: &'static str, value: String, valid: String },
    /// A driver call failed. The cause may be earlier work on the same stream.
    #[error("{error}{}", match stream { Some(stream) => format!(" (on {stream})"), None => String::new() })]
    Driver { error: DriverError, stream: Option<StreamId> },
    /// The device had an unrecoverable error and is not used again in this process.
    #[error("{device} is lost: {error}")]
    DeviceLost { device: DeviceId, error: DriverError },
    #[error(transparent)]
    Unavailable(#[from] DriverUnavailable),
    #[error("{device} does not exist: there {} {count}", if *count == 1 { "is" } else { "are" })]
    NoSuchDevice { device: DeviceId, count: u32 },
    #[error("{device} \"{name}\" has compute capability {}.{}, minimum is 7.0", capability.0, capability.1)]
    TooOldDevice { device: DeviceId, name: String, capability: (u32, u32) },
    /// A position or buffer was used with another device.
    #[error("{what} belongs to another device than {stream}")]
    ForeignDevice { what: &'static str, stream: StreamId },
    /// A graph replays the captured addresses, without the order that this crate maintains.
    #[error(
        "{what} is refused while {stream} is captured into a graph, which would replay it without the order that this memory \
         needs; do it before the capture begins or after it has ended"
    )]
    Capturing { what: &'static str, stream: StreamId },
    /// An external stream that its owner has destroyed or is about to destroy.
    #[error("{stream} was given up by its owner: nothing can be submitted to it")]
    StreamGone { stream: StreamId },
    /// Arguments of a function of the C interface are inconsistent or refer to nothing.
    #[error("{function}: {reason}")]
    Call { function: &'static str, reason: Box<str> },
    /// CUDA's pools do not support this, or not for all processes that share them.
    #[error("{what} is refused: {rule}")]
    PoolRule { what: &'static str, rule: Box<str> },
    /// The devices cannot access each other's memory.
    #[error(
        "peer access unsupported: {peer} cannot reach the memory of {owner}; copy with `copy_to_peer`, which needs no access"
    )]
    PeerUnsupported { peer: DeviceId, owner: DeviceId },
    /// The devices support access, but the pool was not opened to the peer.
    #[error("{peer} has no access to this memory of {owner}; call `pool.peer_access(&peer)?.enable()` first")]
    NoPeerAccess { peer: DeviceId, owner: DeviceId },
    #[error("the use by a peer taken at {site} is for reading; take it for writing")]
    PeerReadOnly { site: Site },
    /// Bytes from another process that are not a valid message.
    #[error("the bytes of {what} cannot be read: {problem}")]
    IpcMessage { what: &'static str, problem: String },
    #[error("{what} did not cross the socket: {error}")]
    IpcTransport { what: &'static str, error: String },
    /// The process at the other end of the socket belongs to another user.
    #[error(
        "{what} is not exchanged: the process at the other end belongs to user {peer}, and only one of user {expected} is trusted \
         with the device; connect processes of one user, or name the other one (`IpcChannel::with_user`)"
    )]
    IpcForeignUser { what: &'static str, peer: u32, expected: u32 },
    /// The other process sends more than is received.
    #[error(
        "the other process has sent more than {limit} of {what} that were not received; the channel is closed: receive them as \
         they come"
    )]
    IpcFlooded { what: &'static str, limit: usize },
    /// The other process claims a larger allocation than it has.
    #[error(
        "shared allocation {number} is refused: its message says {claimed}, and {found} are allocated there; the exporter and this \
         process do not agree about it"
    )]
    IpcOversized { number: u64, claimed: ByteSize, found: ByteSize },
    /// The other process closed its end, most likely by exiting.
    #[error("{what} cannot be exchanged: the other process has closed its end")]
    IpcClosed { what: &'static str },
    #[error("the acknowledgement is for shared allocation {given}, the lent buffer is allocation {lent}")]
    IpcOtherAllocation { given: u64, lent: u64 },
    /// A lent buffer was dropped before its importer reported that it is done.
    #[error(
        "{bytes} lent as shared allocation {number} are leaked: dropped before its importer was done; \
         reclaim a lent buffer, or give it up"
    )]
    IpcLeaked { number: u64, bytes: ByteSize },
    /// A range or length does not fit.
    #[error("{what} of {wanted} bytes at {offset} does not fit into {len} bytes")]
    Range { what: &'static str, offset: usize, wanted: usize, len: usize },
    /// The thread already holds a use of the buffer that conflicts with this one.
    #[error("buffer taken for {wanted} at {site} while this thread still holds it for {held} (since {held_site})")]
    Conflict { wanted: &'static str, site: Site, held: &'static str, held_site: Site },
    #[error("there is no memory resource `{name}`; choose {}", one_of(known))]
    UnknownStrategy { name: String, known: Vec<&'static str> },
    /// Memory freed to a resource that did not allocate it, or freed twice.
    #[error("{resource} was given {ptr:?} at {site}, which it has not handed out")]
    NotHandedOut { resource: &'static str, ptr: DevicePtr, site: Site },
    /// An arena is reset while allocations since the mark are live.
    #[error(
        "the arena of {stream} cannot be reset: {bytes} in {allocations} allocations since the mark are live, the first \
         allocated at {first}; drop them before the reset"
    )]
    ArenaInUse { stream: StreamId, bytes: ByteSize, allocations: usize, first: Site },
    /// Host bytes are in use by a read, write or copy.
    #[error("pinned memory is busy: {0}")]
    HostBusy(&'static str),
    #[error("module has no kernel `{name}`; it has {}", known.join(", "))]
    NoSuchKernel { name: String, known: Vec<String> },
    #[error("kernel `{kernel}` takes {expected} parameters of {expected_bytes} bytes; given {given} of {given_bytes}")]
    Parameters { kernel: String, expected: usize, expected_bytes: usize, given: usize, given_bytes: usize },
}

impl MemoryError {
    /// True if the call was refused because a stream is being captured into a graph.
    pub fn is_capturing(&self) -> bool {
        matches!(self, MemoryError::Capturing { .. })
    }

    /// True if device memory, or the host memory reserved for copies, is exhausted.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            MemoryError::OutOfMemory { .. }
                | MemoryError::PinnedExhausted { .. }
                | MemoryError::ReservationRefused { .. }
        ) || self.driver_code() == Some(DriverCode::OUT_OF_MEMORY)
    }

    pub fn is_device_lost(&self) -> bool {
        matches!(self, MemoryError::DeviceLost { .. }) || self.driver_code().is_some_and(DriverCode::is_sticky)
    }

    /// True if the requested device does not exist or cannot be used.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            MemoryError::Unavailable(_) | MemoryError::NoSuchDevice { .. } | MemoryError::TooOldDevice { .. }
        )
    }

    pub fn driver_code(&self) -> Option<DriverCode> {
        match self {
            MemoryError::Driver { error, .. } | MemoryError::DeviceLost { error, .. } => Some(error.code),
            _ => None,
        }
    }
}

impl From<DriverError> for MemoryError {
    fn from(error: DriverError) -> Self {
        MemoryError::Driver { error, stream: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_for_no_device_read_as_the_user_is_told() {
        let release = Some("470.82".to_string());
        let reasons = [
            (DriverUnavailable::NoLibrary, "no NVIDIA driver found (libcuda.so.1 not loadable)"),
            (
                DriverUnavailable::TooOld { found: 11040, release: release.clone() },
                "NVIDIA driver 470.82 (CUDA 11.4) is older than the minimum 535 (CUDA 12.2)",
            ),
            (
                DriverUnavailable::TooOld { found: 11040, release: None },
                "NVIDIA driver for CUDA 11.4 is older than the minimum 535 (CUDA 12.2)",
            ),
            (
                DriverUnavailable::NoDevice { found: 13000, release: Some("580.65".into()), visible: Some("".into()) },
                "driver 580.65 (CUDA 13.0) present but no device visible (CUDA_VISIBLE_DEVICES=\"\")",
            ),
            (
                DriverUnavailable::Refused(DriverError::new("cuInit", DriverCode(4242))),
                "NVIDIA driver does not start: cuInit failed: unknown result (4242)",
            ),
        ];
        for (reason, text) in reasons {
            assert_eq!(reason.to_string(), text);
            assert!(MemoryError::from(reason).is_unavailable());
        }
    }
}
