//! What can go wrong in the memory layer: one enum, asked by predicates.
//!
//!   DriverCode    a CUDA result code as a value; codes nobody knows are values too
//!   DriverError   which call failed, with which code, and the driver's own words
//!   MemoryError   what this crate's callers see: could not be done, with which values, what to try
//!
//! Lost device   some codes poison the context for good. The device remembers the first of them, and every later call
//!               and every `Pending` ends in `MemoryError::DeviceLost`.

use std::fmt;

use crate::driver::{DeviceId, DevicePtr, DriverVersion, Site};
use crate::governor::{MemorySpace, Refusal};
use crate::stream::StreamId;
use crate::units::ByteSize;

pub type Result<T, E = MemoryError> = std::result::Result<T, E>;

/// A result code of the CUDA driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverCode(pub u32);

macro_rules! codes {
    ($($name:ident = $value:literal $words:literal $(, $sticky:ident)?;)*) => {
        impl DriverCode {
            $(pub const $name: DriverCode = DriverCode($value);)*

            /// The code in words; "unknown result" for a code newer than this table.
            pub fn words(self) -> &'static str {
                match self.0 {
                    $($value => $words,)*
                    _ => "unknown result",
                }
            }

            /// True if the context cannot be used any more.
            pub fn is_sticky(self) -> bool {
                match self.0 {
                    $($value => codes!(@sticky $($sticky)?),)*
                    _ => false,
                }
            }
        }
    };
    (@sticky sticky) => { true };
    (@sticky) => { false };
}

codes! {
    SUCCESS = 0 "success";
    INVALID_VALUE = 1 "invalid value";
    OUT_OF_MEMORY = 2 "out of memory";
    NOT_INITIALIZED = 3 "driver not initialised";
    DEINITIALIZED = 4 "driver is shutting down", sticky;
    STUB_LIBRARY = 34 "libcuda is a stub";
    DEVICE_UNAVAILABLE = 46 "device in use or unavailable";
    NO_DEVICE = 100 "no device";
    INVALID_DEVICE = 101 "invalid device";
    INVALID_IMAGE = 200 "invalid image";
    INVALID_CONTEXT = 201 "invalid context";
    NO_BINARY_FOR_GPU = 209 "no code for this GPU";
    ECC_UNCORRECTABLE = 214 "uncorrectable memory error", sticky;
    PEER_ACCESS_UNSUPPORTED = 217 "peer access unsupported";
    INVALID_PTX = 218 "invalid PTX";
    NVLINK_UNCORRECTABLE = 220 "uncorrectable NVLink error", sticky;
    UNSUPPORTED_PTX_VERSION = 222 "PTX version newer than the driver";
    OPERATING_SYSTEM = 304 "a call to the operating system failed";
    INVALID_HANDLE = 400 "invalid handle";
    ILLEGAL_STATE = 401 "illegal state";
    NOT_FOUND = 500 "not found";
    NOT_READY = 600 "not ready";
    ILLEGAL_ADDRESS = 700 "illegal address", sticky;
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources asked for by a launch";
    LAUNCH_TIMEOUT = 702 "launch timed out", sticky;
    CONTEXT_IS_DESTROYED = 709 "context is destroyed", sticky;
    ASSERT = 710 "device-side assertion", sticky;
    HARDWARE_STACK_ERROR = 714 "device stack error", sticky;
    ILLEGAL_INSTRUCTION = 715 "illegal instruction", sticky;
    MISALIGNED_ADDRESS = 716 "misaligned address", sticky;
    INVALID_ADDRESS_SPACE = 717 "invalid address space", sticky;
    INVALID_PC = 718 "invalid program counter", sticky;
    LAUNCH_FAILED = 719 "launch failed", sticky;
    NOT_PERMITTED = 800 "not permitted";
    NOT_SUPPORTED = 801 "not supported";
    SYSTEM_DRIVER_MISMATCH = 803 "driver and library versions differ";
    STREAM_CAPTURE_UNSUPPORTED = 900 "not permitted while a stream is captured";
    STREAM_CAPTURE_INVALIDATED = 901 "the capture was invalidated by an earlier error";
    STREAM_CAPTURE_MERGE = 902 "two captures would be merged";
    STREAM_CAPTURE_UNMATCHED = 903 "the capture was not begun on this stream";
    STREAM_CAPTURE_UNJOINED = 904 "a stream that joined the capture has not come back";
    STREAM_CAPTURE_ISOLATION = 905 "a dependency would cross into the capture";
    STREAM_CAPTURE_IMPLICIT = 906 "the default stream would depend on a capture";
    CAPTURED_EVENT = 907 "the event was last recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908 "the capture was begun by another thread";
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

/// A driver call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    pub call: &'static str,
    pub code: DriverCode,
    /// The driver's own words: a compiler log, a finding, the name that was not found.
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

/// "535.54 (CUDA 12.2)", or "for CUDA 12.2" where the system does not tell the release. 0 is a version not told.
fn driver_words(release: &Option<String>, found: u32) -> String {
    let version = DriverVersion(found);
    match release {
        Some(release) if found > 0 => format!("{release} (CUDA {version})"),
        Some(release) => release.clone(),
        None if found > 0 => format!("for CUDA {version}"),
        None => "of unknown version".into(),
    }
}

/// Why there is no CUDA device to use.
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

/// One of those who hold most of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub tag: String,
    pub bytes: ByteSize,
    pub allocations: u64,
}

/// What an allocation failed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OomCause {
    /// The pool's limit, or an adaptor's.
    #[default]
    Limit,
    /// The device has no more.
    Device,
    /// Enough is free, but in pieces that are too small.
    Fragmentation,
}

/// How things stood when an allocation failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OomSnapshot {
    pub cause: OomCause,
    /// Handed out; freed, and not yet reached by the device.
    pub used: ByteSize,
    pub pending_free: ByteSize,
    /// What the pool has from the device, and what of it is unused.
    pub reserved: ByteSize,
    pub reusable: ByteSize,
    /// The device's own memory. Zero where it was not asked.
    pub device_free: ByteSize,
    pub device_total: ByteSize,
    /// The largest first.
    pub holders: Vec<Holder>,
}

impl OomSnapshot {
    /// What the pool could not use, and what to change.
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
    /// Neither the limit nor the device has room, and nothing can be given back.
    #[error(
        "out of device memory: wanted {wanted}, {free} free of {limit}{}",
        snapshot.words()
    )]
    OutOfMemory { wanted: ByteSize, free: ByteSize, limit: ByteSize, snapshot: Box<OomSnapshot> },
    /// Pinned host memory is bounded, and what is out has not come back.
    #[error("out of pinned host memory: wanted {wanted}, {in_use} in use of {limit}; raise millpond.pinned_bytes")]
    PinnedExhausted { wanted: ByteSize, in_use: ByteSize, limit: ByteSize },
    /// A governor did not promise the bytes.
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
    /// A setting that cannot be.
    #[error("{what} cannot be {value}: {valid}")]
    Setting { what: &'static str, value: String, valid: String },
    /// A driver call failed. The fault may belong to earlier work on the same stream.
    #[error("{error}{}", match stream { Some(stream) => format!(" (on {stream})"), None => String::new() })]
    Driver { error: DriverError, stream: Option<StreamId> },
    /// The device had an error it cannot recover from; it is not used again in this process.
    #[error("{device} is lost: {error}")]
    DeviceLost { device: DeviceId, error: DriverError },
    #[error(transparent)]
    Unavailable(#[from] DriverUnavailable),
    #[error("{device} does not exist: there {} {count}", if *count == 1 { "is" } else { "are" })]
    NoSuchDevice { device: DeviceId, count: u32 },
    #[error("{device} \"{name}\" has compute capability {}.{}, minimum is 7.0", capability.0, capability.1)]
    TooOldDevice { device: DeviceId, name: String, capability: (u32, u32) },
    /// Positions and buffers belong to one device.
    #[error("{what} belongs to another device than {stream}")]
    ForeignDevice { what: &'static str, stream: StreamId },
    /// A graph is replayed with the addresses it was captured with, and without the order that is kept here.
    #[error(
        "{what} is refused while {stream} is captured into a graph, which would replay it without the order that this memory \
         needs; do it before the capture begins or after it has ended"
    )]
    Capturing { what: &'static str, stream: StreamId },
    /// A stream that somebody else made, and has destroyed or is about to.
    #[error("{stream} was given up by its owner: nothing can be submitted to it")]
    StreamGone { stream: StreamId },
    /// What a function of the C interface was given does not fit together, or names nothing.
    #[error("{function}: {reason}")]
    Call { function: &'static str, reason: Box<str> },
    /// CUDA's pools do not do this, or not for everybody who shares them.
    #[error("{what} is refused: {rule}")]
    PoolRule { what: &'static str, rule: Box<str> },
    /// The devices cannot reach each other's memory.
    #[error(
        "peer access unsupported: {peer} cannot reach the memory of {owner}; copy with `copy_to_peer`, which needs no access"
    )]
    PeerUnsupported { peer: DeviceId, owner: DeviceId },
    /// They can, and the pool was not opened.
    #[error("{peer} has no access to this memory of {owner}; call `pool.peer_access(&peer)?.enable()` first")]
    NoPeerAccess { peer: DeviceId, owner: DeviceId },
    #[error("the use by a peer taken at {site} is for reading; take it for writing")]
    PeerReadOnly { site: Site },
    /// Bytes of another process that mean nothing here.
    #[error("the bytes of {what} cannot be read: {problem}")]
    IpcMessage { what: &'static str, problem: String },
    #[error("{what} did not cross the socket: {error}")]
    IpcTransport { what: &'static str, error: String },
    /// The other process closed its end, most likely by ending.
    #[error("{what} cannot be exchanged: the other process has closed its end")]
    IpcClosed { what: &'static str },
    #[error("the acknowledgement is for shared allocation {given}, the lent buffer is allocation {lent}")]
    IpcOtherAllocation { given: u64, lent: u64 },
    /// A lent buffer was dropped without its importer's word.
    #[error(
        "{bytes} lent as shared allocation {number} are leaked: dropped before its importer was done; \
         reclaim a lent buffer, or give it up"
    )]
    IpcLeaked { number: u64, bytes: ByteSize },
    /// A range or a length does not fit.
    #[error("{what} of {wanted} bytes at {offset} does not fit into {len} bytes")]
    Range { what: &'static str, offset: usize, wanted: usize, len: usize },
    /// The thread already holds an unfinished use of the buffer that this one would have to wait for.
    #[error("buffer taken for {wanted} at {site} while this thread still holds it for {held} (since {held_site})")]
    Conflict { wanted: &'static str, site: Site, held: &'static str, held_site: Site },
    #[error("there is no memory resource `{name}`; choose {}", one_of(known))]
    UnknownStrategy { name: String, known: Vec<&'static str> },
    /// Given back to a resource that it is not from, or that has it back already.
    #[error("{resource} was given {ptr:?} at {site}, which it has not handed out")]
    NotHandedOut { resource: &'static str, ptr: DevicePtr, site: Site },
    /// An arena is reset while something allocated since the mark is live.
    #[error(
        "the arena of {stream} cannot be reset: {bytes} in {allocations} allocations since the mark are live, the first \
         allocated at {first}; drop them before the reset"
    )]
    ArenaInUse { stream: StreamId, bytes: ByteSize, allocations: usize, first: Site },
    /// Host bytes are being read, written or copied.
    #[error("pinned memory is busy: {0}")]
    HostBusy(&'static str),
    #[error("module has no kernel `{name}`; it has {}", known.join(", "))]
    NoSuchKernel { name: String, known: Vec<String> },
    #[error("kernel `{kernel}` takes {expected} parameters of {expected_bytes} bytes; given {given} of {given_bytes}")]
    Parameters { kernel: String, expected: usize, expected_bytes: usize, given: usize, given_bytes: usize },
}

impl MemoryError {
    /// True if it was refused because a stream is being captured into a graph.
    pub fn is_capturing(&self) -> bool {
        matches!(self, MemoryError::Capturing { .. })
    }

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

    /// The device asked for is not there or cannot be used.
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
