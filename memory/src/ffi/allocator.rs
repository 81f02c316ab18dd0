//! The allocator behind the C functions: opens devices on first use, and tracks their allocations.
//!
//!   allocate(bytes, device, stream) ─► captured? ─ no ─► pool, in stream order ─► table: address → bytes, stream
//!                                         └ yes ─► memory that is kept for the graph (`captured`)
//!   record(address, stream)         ─► adds a using stream to the entry
//!   free(address, …, stream)        ─► one using stream: freed on it
//!                                      several:          freed on an internal stream that waits for all of them
//!                                      one is captured:  later, after the capture
//!
//! Order      a free requires that every use is already submitted: to the stream of the allocation, to the stream of
//!            the free, or to a recorded one. The free waits for all current work of these streams.
//! No waits   among the caller's streams: freeing shared memory costs each of them one event, nothing else.
//! Refused    arguments that do not match (size, device, address) change nothing: memory leaks rather than being freed
//!            twice.
//! Limit      on all allocations of a device together, including captured ones while they are kept.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::captured::{Captured, GraphPool};
use super::options::Options;
use super::table::Table;
use crate::buffer::ALIGNMENT;
use crate::counters::{Counters, Scope};
use crate::device::Device;
use crate::driver::{CaptureStatus, DevicePtr, Driver};
use crate::error::{MemoryError, Result};
use crate::pool::MemoryPool;
use crate::resource::RawAllocation;
use crate::stream::Stream;
use crate::units::ByteSize;

/// An error of the C interface itself.
pub(super) fn refused<T>(function: &'static str, reason: impl Into<Box<str>>) -> Result<T> {
    Err(MemoryError::Call { function, reason: reason.into() })
}

/// Owner of the bytes of an entry.
#[derive(Debug)]
enum Bytes {
    Own(RawAllocation),
    /// Owned by the graph of the capture with this ID.
    Graph {
        capture: u64,
    },
}

/// A live allocation.
#[derive(Debug)]
pub(super) struct Live {
    bytes: Bytes,
    /// Requested size in bytes.
    size: usize,
    device: u32,
    /// Raw handle of its stream.
    handle: u64,
    stream: Stream,
    /// Other streams that use it.
    recorded: Vec<Stream>,
}

impl Live {
    /// All streams that may use it, without duplicates; `on` first.
    fn users(&self, on: &Stream) -> Vec<Stream> {
        let mut users = vec![on.clone()];
        for stream in std::iter::once(&self.stream).chain(&self.recorded) {
            if !users.contains(stream) {
                users.push(stream.clone());
            }
        }
        users
    }
}

/// Request counts of a device, for the statistics.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Allocations not yet freed.
    pub(super) live: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) recorded: AtomicU64,
    pub(super) deferred: AtomicU64,
    pub(super) shared_frees: AtomicU64,
}

/// An open device.
pub(super) struct Place {
    pub(super) device: Device,
    pub(super) pool: MemoryPool,
    scope: Scope,
    /// Internal stream: frees memory that several streams used, and allocates captured memory.
    pub(super) home: Stream,
    pub(super) captured: Mutex<Captured>,
    pub(super) asked: Asked,
}

impl Place {
    fn open(driver: &Arc<dyn Driver>, ordinal: u32, options: &Options) -> Result<Self> {
        let device = Device::open(Arc::clone(driver), ordinal)?;
        let builder = MemoryPool::builder(&device).strategy(options.strategy);
        let limit = options.limit_of(ordinal, device.limits().total_memory);
        let pool = match limit {
            Some(limit) => builder.limit(limit).build()?,
            None => builder.build()?,
        };
        let scope = device.scope().child("C interface");
        let home = Stream::new(&device)?.with_scope(&scope);
        Ok(Place { device, pool, scope, home, captured: Mutex::default(), asked: Asked::default() })
    }

    fn stream(&self, raw: u64) -> Result<Stream> {
        Ok(self.device.external_stream(raw)?.with_scope(&self.scope))
    }

    pub(super) fn captured(&self) -> MutexGuard<'_, Captured> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counters(&self) -> Counters {
        self.scope.counters()
    }

    fn is_captured(&self, stream: &Stream) -> Result<bool> {
        Ok(self.device.capture_status_of(stream.cell())? != CaptureStatus::None)
    }

    /// Frees behind all current work of `users`. If no order can be established, the memory stays allocated for good.
    fn free(&self, raw: RawAllocation, users: &[Stream]) -> Result<()> {
        let bytes = raw.len().get() as u64;
        self.scope.freed(bytes);
        let site = Location::caller();
        let on = match users {
            [only] if !only.is_gone() => Ok(only),
            several => {
                self.asked.shared_frees.fetch_add(1, Relaxed);
                several.iter().try_for_each(|user| self.come_after(user)).map(|()| &self.home)
            }
        };
        let freed = match on {
            Ok(on) => self.pool.deallocate(raw, on, site),
            Err(error) => {
                self.pool.abandon(raw);
                Err(error)
            }
        };
        freed.inspect_err(|_| self.scope.add(|c| &c.leaked_bytes, bytes))
    }

    /// Makes the internal stream wait for `user`. No event orders streams of two devices here, so the host waits for
    /// those.
    fn come_after(&self, user: &Stream) -> Result<()> {
        if *user.device() == self.device { self.home.wait_for(user.position()).map(|_| ()) } else { user.synchronize() }
    }

    /// Frees behind `users` once none of them is captured any more.
    fn defer(&self, raw: RawAllocation, users: &[Stream]) {
        self.asked.deferred.fetch_add(1, Relaxed);
        self.scope.freed(raw.len().get() as u64);
        let after = users.iter().map(Stream::position).collect();
        self.pool.put_off(raw, after, self.home.id(), Location::caller());
    }

    /// Allocates counted memory from the device's pool.
    pub(super) fn take(&self, len: NonZeroUsize, on: &Stream) -> Result<RawAllocation> {
        self.pool.allocate(len, on, Location::caller())
    }

    /// Frees captured memory that no graph uses any more.
    pub(super) fn give_back(&self, raws: Vec<RawAllocation>) -> Result<()> {
        raws.into_iter().try_for_each(|raw| self.free(raw, std::slice::from_ref(&self.home)))
    }
}

/// All devices of a driver.
pub(super) struct Allocator {
    driver: Arc<dyn Driver>,
    options: Options,
    places: Vec<OnceLock<Place>>,
    opening: Mutex<()>,
    live: Table<Live>,
}

impl Allocator {
    pub(super) fn new(driver: Arc<dyn Driver>, options: Options) -> Result<Self> {
        let count = driver.device_count()?;
        let places = (0..count).map(|_| OnceLock::new()).collect();
        Ok(Allocator { driver, options, places, opening: Mutex::default(), live: Table::new() })
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Number of live allocations on all devices.
    #[cfg(test)]
    pub(super) fn num_live(&self) -> usize {
        self.live.len()
    }

    fn slot(&self, function: &'static str, device: i32) -> Result<(u32, &OnceLock<Place>)> {
        let found = usize::try_from(device).ok().and_then(|ordinal| Some((device as u32, self.places.get(ordinal)?)));
        found.ok_or_else(|| {
            let reason = format!("there is no device {device}: there are {}", self.places.len());
            MemoryError::Call { function, reason: reason.into() }
        })
    }

    /// The device, if it is already open.
    pub(super) fn place_in_use(&self, function: &'static str, device: i32) -> Result<Option<&Place>> {
        Ok(self.slot(function, device)?.1.get())
    }

    /// All open devices.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter_map(OnceLock::get)
    }

    fn place(&self, function: &'static str, device: i32) -> Result<&Place> {
        let (ordinal, slot) = self.slot(function, device)?;
        if let Some(place) = slot.get() {
            return Ok(place);
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.get().is_none() {
            let opened = Place::open(&self.driver, ordinal, &self.options)?;
            // No other thread sets it: the lock is held.
            let _ = slot.set(opened);
        }
        Ok(slot.get().expect("set above, and never taken out"))
    }

    /// Allocates `size` bytes for work on the stream; returns 0 for zero bytes.
    pub(super) fn allocate(&self, size: isize, device: i32, stream: u64) -> Result<u64> {
        const FUNCTION: &str = "millpond_alloc";
        let Ok(size) = usize::try_from(size) else { return refused(FUNCTION, format!("{size} bytes are asked for")) };
        let place = self.place(FUNCTION, device)?;
        let Some(padded) = size.checked_next_multiple_of(ALIGNMENT) else {
            return Err(MemoryError::Range { what: "an allocation", offset: 0, wanted: size, len: usize::MAX });
        };
        let Some(padded) = NonZeroUsize::new(padded) else { return Ok(0) };
        let found = place.stream(stream).and_then(|on| Ok((self.allocate_on(place, padded, &on)?, on)));
        let ((ptr, bytes), on) = found.inspect_err(|_| {
            place.asked.failed.fetch_add(1, Relaxed);
        })?;
        let live = Live { bytes, size, device: device as u32, handle: stream, stream: on, recorded: Vec::new() };
        if let Some(old) = self.live.insert(ptr.0, live) {
            // Two live allocations at one address: impossible, so neither is freed.
            let reason = format!("{ptr:?} was handed out while {} bytes live there", old.size);
            return refused(FUNCTION, reason);
        }
        place.asked.live.fetch_add(1, Relaxed);
        Ok(ptr.0)
    }

    fn allocate_on(&self, place: &Place, len: NonZeroUsize, stream: &Stream) -> Result<(DevicePtr, Bytes)> {
        match place.device.capture_status_of(stream.cell())? {
            CaptureStatus::None => {
                let raw = place.take(len, stream)?;
                Ok((raw.ptr(), Bytes::Own(raw)))
            }
            CaptureStatus::Active { id } => {
                Ok((Captured::allocate(place, len, stream, id)?, Bytes::Graph { capture: id }))
            }
            CaptureStatus::Invalidated => Err(MemoryError::Capturing { what: "an allocation", stream: stream.id() }),
        }
    }

    /// Frees an allocation of `allocate`.
    pub(super) fn free(&self, ptr: u64, size: isize, device: i32, stream: u64) -> Result<()> {
        const FUNCTION: &str = "millpond_free";
        if ptr == 0 {
            return Ok(());
        }
        let agrees = |live: &Live| {
            let given = (i64::from(device), size as i64);
            let known = (i64::from(live.device), live.size as i64);
            if given == known {
                return Ok(());
            }
            let ((device, size), (own_device, own_size)) = (given, known);
            refused(
                FUNCTION,
                format!(
                    "{ptr:#x} has {own_size} bytes on device {own_device}, not {size} on device {device}; it stays allocated"
                ),
            )
        };
        let Some(live) = self.live.remove_if(ptr, agrees)? else {
            return refused(FUNCTION, format!("{ptr:#x} is not allocated: freed twice, or never from here"));
        };
        let place = self.place(FUNCTION, device)?;
        if place.device.is_lost() {
            place.asked.live.fetch_sub(1, Relaxed);
            // The memory is gone with its device. Reporting that at every free of an exiting program has no use.
            if let Bytes::Own(raw) = live.bytes {
                place.scope.freed(raw.len().get() as u64);
                place.pool.abandon(raw);
            }
            return Ok(());
        }
        // The handle of a stream that its owner gave up can no longer be looked up.
        let known = (stream == live.handle && live.stream.is_gone()).then(|| live.stream.clone());
        let on = match known.map_or_else(|| place.stream(stream), Ok) {
            Ok(on) => on,
            Err(error) => {
                self.live.insert(ptr, live);
                return Err(error);
            }
        };
        place.asked.live.fetch_sub(1, Relaxed);
        let users = live.users(&on);
        match live.bytes {
            Bytes::Graph { capture } => Captured::free(place, DevicePtr(ptr), capture, &users),
            Bytes::Own(raw) => {
                if users.iter().any(|user| place.is_captured(user).unwrap_or(false)) {
                    place.defer(raw, &users);
                    return Ok(());
                }
                place.free(raw, &users)
            }
        }
    }

    /// Records that work on another stream uses the allocation at `ptr`: the free is ordered after that stream's work
    /// at the time of the free.
    pub(super) fn record(&self, ptr: u64, stream: u64) -> Result<()> {
        const FUNCTION: &str = "millpond_record_stream";
        if ptr == 0 {
            return Ok(());
        }
        let unknown = || refused(FUNCTION, format!("{ptr:#x} is not allocated here"));
        let Some(device) = self.live.with(ptr, |live| live.device) else { return unknown() };
        let place = self.place(FUNCTION, device as i32)?;
        let stream = self.any_stream(place, stream)?;
        let noted = self.live.with(ptr, |live| {
            if stream != live.stream && !live.recorded.contains(&stream) {
                live.recorded.push(stream.clone());
            }
        });
        place.asked.recorded.fetch_add(1, Relaxed);
        noted.map_or_else(unknown, Ok)
    }

    /// A stream of this device or of another one: a peer may use the memory, too.
    fn any_stream(&self, place: &Place, raw: u64) -> Result<Stream> {
        let own = place.stream(raw);
        if own.is_ok() || self.places.len() == 1 {
            return own;
        }
        let others = self.places().filter(|other| other.device != place.device);
        others.filter_map(|other| other.stream(raw).ok()).next().map_or(own, Ok)
    }

    /// Start and length of the allocation at `ptr`.
    pub(super) fn base(&self, ptr: u64) -> Result<(u64, usize)> {
        let found = self.live.with(ptr, |live| (ptr, live.size));
        found.map_or_else(|| refused("millpond_base_alloc", format!("{ptr:#x} is not allocated here")), Ok)
    }

    /// Returns an error if there are fewer devices than `count`.
    pub(super) fn expect_devices(&self, count: i32) -> Result<()> {
        match usize::try_from(count) {
            Ok(count) if count <= self.places.len() => Ok(()),
            _ => refused("millpond_init", format!("{count} devices are expected, and there are {}", self.places.len())),
        }
    }

    pub(super) fn set_fraction(&self, fraction: f64, device: i32) -> Result<()> {
        const FUNCTION: &str = "millpond_memory_fraction";
        let (ordinal, slot) = self.slot(FUNCTION, device)?;
        if !(fraction > 0.0 && fraction <= 1.0) {
            return refused(FUNCTION, format!("{fraction} is not a share: more than 0 and at most 1"));
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.get().is_some() {
            return refused(
                FUNCTION,
                format!("device {device} is in use: its limit is set before the first allocation"),
            );
        }
        self.options.set_fraction(ordinal, fraction);
        Ok(())
    }

    /// Frees all unused memory of every open device; returns the first error after trying all.
    pub(super) fn trim_all(&self) -> Result<()> {
        self.places().map(|place| place.pool.trim_to(ByteSize::ZERO).map(|_| ())).fold(Ok(()), Result::and)
    }

    /// Frees unused memory beyond `keep` bytes. Blocks until the device has finished its current work.
    pub(super) fn trim(&self, device: i32, keep: u64) -> Result<ByteSize> {
        match self.place_in_use("millpond_trim", device)? {
            Some(place) => place.pool.trim_to(ByteSize(keep)),
            None => Ok(ByteSize::ZERO),
        }
    }

    /// Call before the owner destroys the stream.
    pub(super) fn forget_stream(&self, device: i32, stream: u64) -> Result<()> {
        match self.place_in_use("millpond_forget_stream", device)? {
            Some(place) => place.stream(stream)?.give_up(),
            None => Ok(()),
        }
    }

    /// Assigns later captures on the device to a graph pool of the caller.
    pub(super) fn begin_pool(&self, device: i32, pool: GraphPool) -> Result<()> {
        self.place("millpond_begin_allocate_to_pool", device)?.captured().begin(pool);
        Ok(())
    }

    pub(super) fn end_pool(&self, device: i32, pool: GraphPool) -> Result<()> {
        self.place("millpond_end_allocate_to_pool", device)?.captured().end(pool);
        Ok(())
    }

    /// Call when a graph of the pool is destroyed; the last one frees the pool's memory.
    pub(super) fn release_pool(&self, device: i32, pool: GraphPool) -> Result<()> {
        let place = self.place("millpond_release_pool", device)?;
        let released = place.captured().release(pool);
        if released { Captured::give_back(place) } else { Ok(()) }
    }

    /// Call when every graph of the device is destroyed.
    pub(super) fn release_graphs(&self, device: i32) -> Result<()> {
        match self.place_in_use("millpond_release_graphs", device)? {
            Some(place) => {
                place.captured().release_all();
                Captured::give_back(place)
            }
            None => Ok(()),
        }
    }
}
