//! Device memory in stream order: devices, streams, events, pools and buffers, over CUDA or a simulated device.
//!
//! ```text
//!   Device ─► Stream, StreamPool       queues of a device, and positions in them
//!          ─► MemoryPool               a limit, counts, and what to do when memory runs out
//!               └─► adaptors ─► Strategy: cuda · cuda_async_default · cuda_async · caching · arena · binning
//!          ─► DeviceBuffer ─► views    memory that records its uses: waits are inserted, frees are ordered last
//!          ─► PinnedPool ─► Pending    copies to and from the host, and results in flight
//!          ─► Module ─► Kernel         loaded PTX; a launch names the buffers it accesses
//!   ──────────────────────────────────────────────────────────────────────────────────────────────────────
//!   trait Driver ├── CudaDriver        libcuda, opened at run time: nothing to link, only the driver to install
//!                └── SimDriver         interprets the same PTX without a GPU, and checks memory and order
//! ```
//!
//! *Order*   A buffer's use on another stream inserts the device-side waits that it requires, and no others:
//!           a wait that is already implied makes no call. \
//! *Waits*   The host waits where the code says `.await`, `wait` or `synchronize`, and nowhere else. \
//! *Errors*  [`MemoryError`], one enum for the whole crate: it names the failed action, its values, and a remedy. \
//! *Drop*    frees in stream order, never panics, and leaks with a report if no order can be established. \
//! *Threads* Everything except guards is `Send` and `Sync`.
//!
//! The examples below run on the simulated device, as every test of this crate does; with
//! [`CudaDriver::open`](driver::CudaDriver::open) in the first line they run on a GPU. `examples/whole_layer.rs`
//! combines them and runs on either.
//!
//! # A device, a pool, a buffer
//!
//! ```
//! use millpond_memory::driver::sim::SimDriver;
//! use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, Stream};
//!
//! let device = Device::open(SimDriver::with_seed(1), 0)?;
//! let pool = MemoryPool::builder(&device).limit(ByteSize::mib(64)).build()?;
//! let stream = Stream::new(&device)?;
//!
//! let buffer = DeviceBuffer::zeroed(1000, &stream, &pool)?;
//! assert_eq!(pool.used_bytes(), ByteSize(1024)); // padded to 256 bytes, and the padding is zeroed
//! drop(buffer); // freed in stream order; no thread waits
//! assert_eq!((pool.used_bytes(), pool.peak_bytes()), (ByteSize::ZERO, ByteSize(1024)));
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Use on several streams
//!
//! A buffer records its last write and its readers. Using it on another stream inserts the wait, once:
//!
//! ```
//! # use millpond_memory::driver::sim::SimDriver;
//! # use millpond_memory::{Device, DeviceBuffer, MemoryPool, Stream, Waited};
//! # let device = Device::open(SimDriver::with_seed(1), 0)?;
//! # let pool = MemoryPool::builder(&device).build()?;
//! let [writer, reader] = [Stream::new(&device)?, Stream::new(&device)?];
//! let prices = DeviceBuffer::new(4096, &writer, &pool)?;
//! prices.fill(7, &writer)?;
//!
//! let copy = DeviceBuffer::new(4096, &reader, &pool)?;
//! prices.copy_to(&copy, &reader)?; // `reader` waits for the fill, on the device
//! drop(prices); // freed behind the copy
//!
//! // A repeated wait is already implied: no call reaches the driver.
//! assert_eq!(reader.wait_for(writer.position())?, Waited::Elided);
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Results in flight
//!
//! A copy to the host returns a [`Pending`]: a future that tools can also wait for. If it is dropped early, the copy's
//! destination stays reserved until the copy has finished.
//!
//! ```
//! # use millpond_memory::driver::sim::SimDriver;
//! # use millpond_memory::{Device, DeviceBuffer, MemoryPool, PinnedPool, Stream};
//! # let device = Device::open(SimDriver::with_seed(1), 0)?;
//! # let pool = MemoryPool::builder(&device).build()?;
//! # let stream = Stream::new(&device)?;
//! let pinned = PinnedPool::builder(&device).build();
//! let buffer = DeviceBuffer::upload(&[1, 2, 3], &stream, &pool, &pinned)?;
//! let home = buffer.download_vec(&stream, &pinned)?.map(|bytes| bytes.len());
//! assert_eq!(home.wait()?, 3); // `.await` in a query
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Strategies and adaptors
//!
//! The source of memory is a measured choice, not a type parameter; adaptors wrap it and stack:
//!
//! ```
//! # use millpond_memory::driver::sim::SimDriver;
//! # use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, Stream};
//! use std::sync::Arc;
//!
//! use millpond_memory::Strategy;
//! use millpond_memory::adaptor::{LimitingResourceAdaptor, TrackingResourceAdaptor};
//!
//! # let device = Device::open(SimDriver::with_seed(1), 0)?;
//! # let stream = Stream::new(&device)?;
//! let caching = "caching".parse::<Strategy>()?.create(&device)?;
//! let limited = Arc::new(LimitingResourceAdaptor::new(caching, ByteSize::mib(16)));
//! let tracked = Arc::new(TrackingResourceAdaptor::new(limited));
//! let pool = MemoryPool::builder(&device).resource(tracked.clone()).build()?;
//!
//! let buffer = DeviceBuffer::new(1 << 20, &stream, &pool)?;
//! assert_eq!(tracked.outstanding().len(), 1); // with the source location that requested it
//! assert!(DeviceBuffer::new(16 << 20, &stream, &pool).is_err_and(|error| error.is_out_of_memory()));
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # When memory runs out
//!
//! Before an allocation fails, the pool waits for pending frees, trims unused memory, and calls callbacks that can free
//! memory not needed now:
//!
//! ```
//! # use millpond_memory::driver::sim::SimDriver;
//! # use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, Stream};
//! use std::sync::{Arc, Mutex};
//!
//! use millpond_memory::OomAction;
//!
//! # let device = Device::open(SimDriver::with_seed(1), 0)?;
//! # let stream = Stream::new(&device)?;
//! let pool = MemoryPool::builder(&device).limit(ByteSize::mib(4)).build()?;
//! let cache = Arc::new(Mutex::new(vec![DeviceBuffer::new(3 << 20, &stream, &pool)?]));
//! let held = Arc::clone(&cache);
//! let _asked = pool.on_out_of_memory(move |_| {
//!     held.lock().expect("not poisoned").clear();
//!     OomAction::Retry
//! });
//!
//! let needed = DeviceBuffer::new(2 << 20, &stream, &pool)?; // the cache was freed instead
//! assert!(cache.lock().expect("not poisoned").is_empty());
//!
//! let error = DeviceBuffer::new(3 << 20, &stream, &pool).unwrap_err();
//! assert!(error.is_out_of_memory()); // names the holders, and the option to change
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Ordering errors are detected
//!
//! The simulated device delays work, in any order that events allow, and reports unordered accesses: in every run that
//! submits both pieces of work, whatever the timing. The example bypasses the buffer's own order:
//!
//! ```
//! # use millpond_memory::driver::sim::SimDriver;
//! # use millpond_memory::{Device, DeviceBuffer, Driver, FindingKind, MemoryPool, Stream};
//! # use std::panic::Location;
//! let driver = SimDriver::with_seed(1);
//! let device = Device::open(driver.clone(), 0)?;
//! # let pool = MemoryPool::builder(&device).build()?;
//! let [a, b] = [Stream::new(&device)?, Stream::new(&device)?];
//! let buffer = DeviceBuffer::new(256, &a, &pool)?;
//! buffer.fill(1, &a)?;
//! let address = buffer.address();
//! // The driver's own fill, on a stream that has not waited:
//! b.submit(|driver, b| driver.fill(address, 2, 256, b, Location::caller()))?;
//! driver.settle().ok();
//! assert!(!driver.take_findings().is_empty()); // both streams, both source locations, and the seed
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! `docs/memory.md` recommends a strategy per use case, lists the options, and has the measurements.

#![deny(unsafe_code)]

pub mod adaptor;
pub mod buffer;
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
mod gate;
mod gauge;
pub mod governor;
pub mod graph;
pub mod idle;
pub mod ids;
pub mod ipc;
pub mod kernel_cache;
pub mod leave;
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
pub mod recorder;
pub mod replay;
pub mod resource;
pub mod spill;
pub mod stream;
mod sync;
mod transfer;
pub mod units;
mod uses;
pub mod watch;

pub use buffer::{DeviceBuffer, DeviceView, UseGuard, UseGuards, UseSet};
pub use counters::{Counters, Scope};
pub use device::{Device, DeviceLimits};
pub use driver::{Access, DevicePtr, Driver, DriverKind, Finding, FindingKind, HandleTypes, HostKind, Site};
pub use error::{DriverCode, DriverError, DriverUnavailable, MemoryError, OomCause, OomSnapshot, Result};
pub use event::{Event, TimeMark};
pub use governor::{MemoryGovernor, Participant, Request, Reservation, Watermarks};
pub use idle::IdleTrim;
pub use ids::{MemorySpace, StreamId};
pub use ipc::{ExportedPool, ImportedBuffer, ImportedPool, IpcChannel, LentBuffer, SharedAllocation};
pub use kernel_cache::{KernelCache, KernelCacheStatistics};
pub use leave::{Left, is_leaving, leave};
pub use log::MemoryLog;
pub use module::{Kernel, KernelAttributes, Module};
pub use order::{Position, Waited};
pub use peer::{PeerAccess, PeerUse};
pub use pending::Pending;
pub use pinned::{HostReadGuard, HostWriteGuard, PinnedBuffer, PinnedBytes, PinnedPool};
pub use pool::{DriverPool, Location, MaxSize, MemoryPool, MemoryPoolBuilder, ReleaseThreshold, ReusePolicy};
pub use pressure::{OomAction, OomCallback, OomContext, PoolBytes, PressureStatistics};
pub use recorder::{Recorder, Recording};
pub use resource::{DeviceMemoryResource, ResourceStatistics, Strategy};
pub use spill::{Resident, SpillHandle, SpillOptions, Spillable, Spiller};
pub use stream::{Stream, StreamPool};
pub use units::ByteSize;
pub use watch::{Clock, DeviceOptions};
