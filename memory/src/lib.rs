//! Device memory in stream order: devices, streams, events, pools and buffers, over CUDA or a simulated device.
//!
//! ```text
//!   Device ─► Stream, StreamPool       queues of a device, and positions in them
//!          ─► MemoryPool               a limit, counts, and what to do when memory runs out
//!               └─► adaptors ─► Strategy: cuda · cuda_async_default · cuda_async · caching · arena · binning
//!          ─► DeviceBuffer ─► views    memory that knows who uses it: waits are inserted, frees come last
//!          ─► PinnedPool ─► Pending    copies to and from the host, and what is still on its way
//!          ─► Module ─► Kernel         PTX, loaded; a launch names the buffers it touches
//!   ──────────────────────────────────────────────────────────────────────────────────────────────────────
//!   trait Driver ├── CudaDriver        libcuda, opened at run time: nothing to link, nothing to install but the driver
//!                └── SimDriver         interprets the same PTX without a GPU, and checks memory and order while it does
//! ```
//!
//! *Order*   Whoever uses a buffer on another stream than the last user gets the waits that takes, on the device, and no more:
//!           a wait that is already implied makes no call. \
//! *Waits*   The host waits where the code says `.await`, `wait` or `synchronize`, and nowhere else. \
//! *Errors*  [`MemoryError`], one enum for all of it: it names what could not be done, with which values, and what to try. \
//! *Drop*    frees in stream order, never panics, and leaks with a report where an order cannot be made. \
//! *Threads* Everything but a guard is `Send` and `Sync`.
//!
//! The examples below run on the simulated device, as every test of this crate does; with
//! [`CudaDriver::open`](driver::CudaDriver::open) in the first line they run on a GPU. `examples/whole_layer.rs` is all of them
//! together, on whichever there is.
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
//! drop(buffer); // freed in stream order; nobody waits
//! assert_eq!((pool.used_bytes(), pool.peak_bytes()), (ByteSize::ZERO, ByteSize(1024)));
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Handed from stream to stream
//!
//! A buffer knows its last write and its readers. Using it on another stream inserts the wait, once:
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
//! // Another wait for the same is implied already: no call reaches the driver.
//! assert_eq!(reader.wait_for(writer.position())?, Waited::Elided);
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Results that are on their way
//!
//! A copy home is a [`Pending`]: a future, and for tools also something to wait for. Dropped early it leaves no copy behind
//! that writes into memory of somebody else.
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
//! Where memory comes from is a choice that is measured, not a type parameter; what is put around it stacks:
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
//! assert_eq!(tracked.outstanding().len(), 1); // with the place in the source that asked for it
//! assert!(DeviceBuffer::new(16 << 20, &stream, &pool).is_err_and(|error| error.is_out_of_memory()));
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # When memory runs out
//!
//! Before an allocation fails, frees that the device has not come to are waited for, unused memory is given back, and whoever
//! holds memory that is not needed now is asked for it:
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
//! let needed = DeviceBuffer::new(2 << 20, &stream, &pool)?; // the cache went instead
//! assert!(cache.lock().expect("not poisoned").is_empty());
//!
//! let error = DeviceBuffer::new(3 << 20, &stream, &pool).unwrap_err();
//! assert!(error.is_out_of_memory()); // names who holds what, and the option to change
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! # Mistakes are found, not met
//!
//! The simulated device runs work late, in any order that events allow, and reports what is not ordered: on every run that
//! submits the two pieces of work, whatever the timing. Below, something goes past the buffer's own order:
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
//! assert!(!driver.take_findings().is_empty()); // both streams, both places in the source, and the seed
//! # Ok::<(), millpond_memory::MemoryError>(())
//! ```
//!
//! `docs/memory.md` says which strategy is for what, lists the options, and has the figures.

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
pub mod units;
mod uses;
pub mod watch;

pub use buffer::{DeviceBuffer, DeviceView, UseGuard, UseGuards, UseSet};
pub use counters::{Counters, Scope};
pub use device::{Device, DeviceLimits};
pub use driver::{Access, DevicePtr, Driver, DriverKind, Finding, FindingKind, HandleTypes, HostKind, Site};
pub use error::{DriverCode, DriverError, DriverUnavailable, MemoryError, OomCause, OomSnapshot, Result};
pub use event::{Event, TimeMark};
pub use governor::{MemoryGovernor, MemorySpace, Participant, Request, Reservation, Watermarks};
pub use idle::IdleTrim;
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
pub use stream::{Stream, StreamId, StreamPool};
pub use units::ByteSize;
pub use watch::{Clock, DeviceOptions};
