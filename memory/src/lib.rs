//! Devices, streams, events and the stream-ordered memory pool, over CUDA or a simulated device.
//!
//!   Device ─► Stream, StreamPool      queues, and positions in them
//!          ─► Strategy ─► DeviceMemoryResource ─► adaptors  where memory comes from
//!          ─► MemoryPool ─► DeviceBuffer ─► DeviceView      memory that knows its uses
//!          ─► PinnedPool ─► PinnedBuffer ─► Pending<T>      copies, and what is still on its way
//!          ─► Module ─► Kernel                              launched by `kernels::launch`
//!
//! Order      whoever uses a buffer on another stream waits on the device for what it must, without a thought of the caller.
//! Waits      the host waits where the code says `.await`, `wait` or `synchronize`, and nowhere else.
//! Errors     `MemoryError`, one enum for all of it.

#![deny(unsafe_code)]

pub mod adaptor;
pub mod buffer;
pub mod bump_arena;
pub mod checks;
pub mod conformance;
pub mod counters;
mod cursor;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
mod event_pool;
pub mod external;
mod few;
#[expect(unsafe_code, reason = "the C interface: pointers and handles of the caller's")]
pub mod ffi;
mod gauge;
pub mod governor;
pub mod graph;
pub mod ipc;
mod ledger;
pub mod log;
pub mod measure;
pub mod module;
pub mod order;
pub mod peer;
pub mod pending;
pub mod pinned;
pub mod pool;
pub mod pressure;
pub mod replay;
pub mod resource;
pub mod spill;
pub mod stream;
mod sync;
pub mod units;
mod uses;

pub use buffer::{DeviceBuffer, DeviceView, UseGuard, UseGuards, UseSet};
pub use bump_arena::{BumpOutcome, DeviceBumpArena};
pub use counters::{Counters, Scope};
pub use device::{Device, DeviceLimits};
pub use driver::{Access, DevicePtr, Driver, DriverKind, Finding, FindingKind, HandleTypes, HostKind, Site};
pub use error::{DriverCode, DriverError, DriverUnavailable, MemoryError, OomCause, OomSnapshot, Result};
pub use event::{Event, TimeMark};
pub use governor::{MemoryGovernor, MemorySpace, Participant, Request, Reservation, Watermarks};
pub use ipc::{ExportedPool, ImportedBuffer, ImportedPool, IpcChannel, LentBuffer, SharedAllocation};
pub use log::MemoryLog;
pub use module::{Kernel, KernelAttributes, Module};
pub use order::{Position, Waited};
pub use peer::{PeerAccess, PeerUse};
pub use pending::Pending;
pub use pinned::{HostReadGuard, HostWriteGuard, PinnedBuffer, PinnedPool};
pub use pool::{DriverPool, Location, MaxSize, MemoryPool, MemoryPoolBuilder, ReleaseThreshold, ReusePolicy};
pub use pressure::{OomAction, OomCallback, OomContext, PoolBytes, PressureStatistics};
pub use resource::{DeviceMemoryResource, ResourceStatistics, Strategy};
pub use spill::{Resident, SpillHandle, SpillOptions, Spillable, Spiller};
pub use stream::{Stream, StreamId, StreamPool};
pub use units::ByteSize;
