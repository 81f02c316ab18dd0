//! Device memory that knows who uses it.
//!
//!   write on A ──► read on B ──► dropped: freed on B, after C
//!        │            ╱
//!        └──► read on C          each first use on another stream waits for what it must, and no more
//!
//!   buffer     [ prices ............ | validity .. | padding 0 ]     256-byte aligned, padded to 256, padding zeroed
//!   views        ^^^^^^^^^^^^^^^^^^^   ^^^^^^^^^^^                   share the buffer's order, and keep it alive
//!
//! Uses       a read waits for the last write and the sharers; a write waits for readers, too; a share waits for
//!            the last write and the readers, but not for other sharers. Allocation counts as the first write.
//! Guards     hold a use from before it is submitted until after. Launches and copies take theirs themselves. A use
//!            of another thread that conflicts waits for the guard on the host, briefly; on one thread it is an error.
//! Drop       frees in stream order, on the stream of the newest use, behind all the others. Never panics; where the driver
//!            refuses an event the host waits instead, and when no order can be made the memory is leaked and the device
//!            told. Host code may drop while kernels run.
//! Empty      buffers of no bytes have no allocation and no order.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::counters::Scope;
use crate::device::Device;
use crate::driver::{Access, CopyOp, DeclaredAccess, DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pool::MemoryPool;
use crate::recorder::{Submission, WorkKind};
use crate::resource::RawAllocation;
use crate::stream::Stream;
use crate::units::ByteSize;
use crate::uses::{ThreadNumber, Uses};

/// Every buffer begins and ends at a multiple of this.
pub const ALIGNMENT: usize = 256;

/// Where an empty buffer points: not null, aligned, and never touched.
const DANGLING: DevicePtr = DevicePtr(ALIGNMENT as u64);

/// Numbers of buffers that a thread takes at once.
const IDS: u64 = 1024;

static NEXT_IDS: AtomicU64 = AtomicU64::new(0);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Counted from 1; 0 until somebody asks.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// The next number of a buffer, and how many are left after it.
    static OWN_IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[inline]
fn this_thread() -> ThreadNumber {
    let mut number = THREAD.get();
    if number == 0 {
        number = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
        THREAD.set(number);
    }
    ThreadNumber(number)
}

/// A number that no other buffer has.
fn next_id() -> u64 {
    OWN_IDS.with(|own| {
        let (next, left) = match own.get() {
            (_, 0) => (NEXT_IDS.fetch_add(IDS, Ordering::Relaxed), IDS),
            ids => ids,
        };
        own.set((next + 1, left - 1));
        next
    })
}

fn words(access: Access) -> &'static str {
    match access {
        Access::Read => "reading",
        Access::Write | Access::ReadWrite => "writing",
        Access::Atomic => "sharing",
    }
}

/// One piece of memory and its uses; views and the buffer hold it together.
struct Allocation {
    id: u64,
    /// `None` when empty, and once freed.
    raw: Option<RawAllocation>,
    ptr: DevicePtr,
    len: usize,
    pool: MemoryPool,
    /// The stream and the scope that it was allocated under.
    home: Stream,
    site: Site,
    uses: Uses,
    /// Somebody whose uses are not known may have it: it is not freed.
    leaked: AtomicBool,
}

impl Allocation {
    fn device(&self) -> &Device {
        self.pool.device()
    }

    #[inline]
    fn take(&self, access: Access, stream: &Stream, thread: ThreadNumber, site: Site) -> Result<()> {
        if self.raw.is_none() {
            return Ok(());
        }
        if stream.device() != self.device() {
            return Err(MemoryError::ForeignDevice { what: "a buffer", stream: stream.id() });
        }
        let before = self.uses.take(access, stream.id(), thread, site).map_err(|own| {
            let (wanted, held, held_site) = (words(access), words(own.held), own.site);
            MemoryError::Conflict { wanted, site, held, held_site }
        })?;
        for position in before.iter() {
            if let Err(error) = stream.wait_for(*position) {
                self.release(access, stream, thread, None);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a use that `take` began. With a position, what was submitted up to it used the bytes.
    #[inline(always)]
    fn release(&self, access: Access, stream: &Stream, thread: ThreadNumber, used: Option<Position>) {
        if self.raw.is_some() {
            self.uses.release(access, stream.id(), thread, used, |position| self.log(access, stream, position));
        }
    }

    fn log(&self, access: Access, stream: &Stream, position: Position) {
        if let (Some(log), Some(raw)) = (self.device().log(), &self.raw) {
            log.used(access, raw.ptr(), raw.len().get(), stream, position);
        }
    }

    /// Gives the memory back, on the stream of the newest use and behind all the others.
    fn free(&mut self, raw: RawAllocation) -> Result<()> {
        let (newest, before) = self.uses.last();
        let other;
        let on = if newest.stream == self.home.id() {
            &self.home
        } else {
            let cell = match self.device().stream_cell(newest.stream) {
                Ok(cell) => cell,
                Err(error) => return Err(self.leak(raw, error)),
            };
            other = Stream::of(self.device(), cell, self.home.scope().clone());
            &other
        };
        let ordered = on.usable("a free").and_then(|()| before.iter().try_for_each(|p| on.free_after(*p)));
        match ordered {
            Ok(()) => {}
            Err(error) if error.is_capturing() => {
                self.pool.put_off(raw, before.iter().copied().collect(), newest.stream, self.site);
                return Ok(());
            }
            Err(error) => return Err(self.leak(raw, error)),
        }
        self.pool.deallocate(raw, on, self.site)
    }

    fn leak(&self, raw: RawAllocation, error: MemoryError) -> MemoryError {
        self.pool.abandon(raw);
        error
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let bytes = raw.len().get() as u64;
        self.home.scope().freed(bytes);
        if self.device().is_lost() || *self.leaked.get_mut() {
            return self.pool.abandon(raw);
        }
        if let Err(error) = self.free(raw)
            && !error.is_device_lost()
        {
            self.home.scope().add(|c| &c.leaked_bytes, bytes);
            self.device().report(error);
        }
    }
}

/// Device memory with one owner.
pub struct DeviceBuffer {
    view: DeviceView,
}

impl DeviceBuffer {
    /// Allocates `len` bytes in the order of `stream`. Their contents are undefined, but for the padding, which is 0.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`], naming who holds what.
    #[track_caller]
    pub fn new(len: usize, stream: &Stream, pool: &MemoryPool) -> Result<Self> {
        Self::allocate(len, stream, pool, len, Location::caller())
    }

    /// Allocates `len` bytes of 0.
    #[track_caller]
    pub fn zeroed(len: usize, stream: &Stream, pool: &MemoryPool) -> Result<Self> {
        Self::allocate(len, stream, pool, 0, Location::caller())
    }

    /// Bytes from `zero_from` to the end of the padding are zeroed.
    pub(crate) fn allocate(
        len: usize,
        stream: &Stream,
        pool: &MemoryPool,
        zero_from: usize,
        site: Site,
    ) -> Result<Self> {
        let Some(padded) = len.checked_next_multiple_of(ALIGNMENT) else {
            return Err(MemoryError::Range { what: "a buffer", offset: 0, wanted: len, len: usize::MAX });
        };
        let raw = match NonZeroUsize::new(padded) {
            Some(padded) => Some(pool.allocate(padded, stream, site)?),
            None => None,
        };
        let ptr = raw.as_ref().map_or(DANGLING, RawAllocation::ptr);
        let buffer = Self::around(raw, ptr, len, stream, pool, site);
        let tail = padded - zero_from;
        if tail > 0 {
            let from = ptr.offset(zero_from);
            let submission = Submission::begin(stream);
            let (_, position) = stream.submit(|driver, on| driver.fill(from, 0, tail, on, site))?;
            if let Some(submission) = submission {
                submission.submitted(WorkKind::Fill, 0, tail as u64);
            }
            buffer.view.allocation.log(Access::Write, stream, position);
            buffer.view.allocation.uses.note(Access::Write, position);
        }
        Ok(buffer)
    }

    fn around(
        raw: Option<RawAllocation>,
        ptr: DevicePtr,
        len: usize,
        stream: &Stream,
        pool: &MemoryPool,
        site: Site,
    ) -> Self {
        let allocation = Allocation {
            id: next_id(),
            raw,
            ptr,
            len,
            pool: pool.clone(),
            home: stream.unleased(),
            site,
            uses: Uses::new(stream.position()),
            leaked: AtomicBool::new(false),
        };
        DeviceBuffer { view: DeviceView { allocation: Arc::new(allocation), offset: 0, len } }
    }

    /// Memory that somebody else allocated and that goes back to `pool`. What `stream` holds counts as its last write.
    pub(crate) fn adopt(raw: RawAllocation, len: usize, stream: &Stream, pool: &MemoryPool, site: Site) -> Self {
        let ptr = raw.ptr();
        stream.scope().allocated(raw.len().get() as u64);
        Self::around(Some(raw), ptr, len, stream, pool, site)
    }

    /// All of it.
    pub fn as_view(&self) -> &DeviceView {
        &self.view
    }

    /// Bytes that the allocation takes, padding and all.
    pub fn allocated_bytes(&self) -> ByteSize {
        ByteSize::from(self.view.allocation.raw.as_ref().map_or(0, |raw| raw.len().get()))
    }
}

impl std::ops::Deref for DeviceBuffer {
    type Target = DeviceView;
    fn deref(&self) -> &DeviceView {
        &self.view
    }
}

impl AsRef<DeviceView> for DeviceBuffer {
    fn as_ref(&self) -> &DeviceView {
        &self.view
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer #{} of {} bytes", self.view.allocation.id, self.view.len)
    }
}

/// Part of a buffer, or all of it. Keeps the memory alive, and shares its order with every other view.
#[derive(Clone)]
pub struct DeviceView {
    allocation: Arc<Allocation>,
    offset: usize,
    len: usize,
}

impl DeviceView {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn device(&self) -> &Device {
        self.allocation.device()
    }

    /// Who allocated it.
    pub fn scope(&self) -> &Scope {
        self.allocation.home.scope()
    }

    pub(crate) fn pool(&self) -> &MemoryPool {
        &self.allocation.pool
    }

    /// Buffers that are taken together are taken in the order of these.
    pub(crate) fn order_key(&self) -> u64 {
        self.allocation.id
    }

    /// The memory is never freed: somebody whose uses nobody knows may have it. Who says so reports it.
    pub(crate) fn leak(&self) {
        if !self.allocation.leaked.swap(true, Ordering::Relaxed)
            && let Some(raw) = &self.allocation.raw
        {
            self.scope().add(|c| &c.leaked_bytes, raw.len().get() as u64);
        }
    }

    /// Part of this view.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if `range` does not fit.
    pub fn view(&self, range: Range<usize>) -> Result<DeviceView> {
        let wanted = range.end.saturating_sub(range.start);
        if range.start > range.end || range.end > self.len {
            return Err(MemoryError::Range { what: "a view", offset: range.start, wanted, len: self.len });
        }
        Ok(DeviceView { allocation: Arc::clone(&self.allocation), offset: self.offset + range.start, len: wanted })
    }

    /// This view and the padding behind it, if it ends where its buffer does; kernels may load whole words there.
    pub fn padded(&self) -> DeviceView {
        let end = self.offset + self.len;
        let padded = if end == self.allocation.len { end.next_multiple_of(ALIGNMENT) } else { end };
        DeviceView { len: padded - self.offset, ..self.clone() }
    }

    /// The address, to be stored in device memory. A launch that reaches the bytes through it must declare the view.
    pub fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.offset)
    }

    /// True if both are parts of one buffer.
    pub fn same_buffer(&self, other: &DeviceView) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Takes the bytes for reading on `stream`.
    #[inline]
    #[track_caller]
    pub fn read<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Read, stream, Location::caller())
    }

    /// Takes the bytes for writing (and reading) on `stream`.
    #[inline]
    #[track_caller]
    pub fn write<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Write, stream, Location::caller())
    }

    /// Takes the bytes for use by several streams at once: by atomics, or each in parts of its own.
    #[inline]
    #[track_caller]
    pub fn share<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Atomic, stream, Location::caller())
    }

    /// Sets every byte of the view.
    #[track_caller]
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        let site = Location::caller();
        if self.is_empty() {
            return Ok(());
        }
        let mut guard = UseGuard::take(self, Access::Write, stream, site)?;
        let (ptr, len) = (self.address(), self.len);
        let submission = Submission::begin(stream);
        let (_, position) = stream.submit(|driver, on| driver.fill(ptr, byte, len, on, site))?;
        guard.submitted(position);
        if let Some(submission) = submission {
            submission.submitted(WorkKind::Fill, 0, len as u64);
        }
        Ok(())
    }

    /// Copies this view into `to`, on the device.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ.
    #[track_caller]
    pub fn copy_to(&self, to: &DeviceView, stream: &Stream) -> Result<()> {
        let site = Location::caller();
        if self.len != to.len {
            return Err(MemoryError::Range { what: "a copy", offset: 0, wanted: self.len, len: to.len });
        }
        if self.is_empty() {
            return Ok(());
        }
        let mut uses = UseSet::new();
        uses.add(self, Access::Read);
        uses.add(to, Access::Write);
        let mut guards = uses.take(stream, site)?;
        let copy = CopyOp::DeviceToDevice { from: self.address(), to: to.address(), len: self.len };
        let submission = Submission::begin(stream);
        let (_, position) = stream.submit(|driver, on| driver.copy(&copy, on, site))?;
        guards.submitted(position);
        if let Some(submission) = submission {
            submission.submitted(WorkKind::Copy, self.len as u64, self.len as u64);
        }
        Ok(())
    }
}

/// What moving a buffer's bytes elsewhere needs to know.
impl DeviceView {
    /// How many views and handles keep the memory alive, this one among them.
    pub(crate) fn num_holders(&self) -> usize {
        Arc::strong_count(&self.allocation)
    }

    /// Tells buffers apart.
    pub(crate) fn buffer_id(&self) -> u64 {
        self.allocation.id
    }

    /// Where the view lies in its buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Bytes that the whole buffer takes, padding and all.
    pub(crate) fn buffer_bytes(&self) -> ByteSize {
        ByteSize::from(self.allocation.raw.as_ref().map_or(0, |raw| raw.len().get()))
    }

    /// The whole buffer.
    pub(crate) fn whole(&self) -> DeviceView {
        DeviceView { offset: 0, len: self.allocation.len, ..self.clone() }
    }
}

impl AsRef<DeviceView> for DeviceView {
    fn as_ref(&self) -> &DeviceView {
        self
    }
}

impl fmt::Debug for DeviceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.offset + self.len;
        write!(f, "bytes {}..{end} of buffer #{}", self.offset, self.allocation.id)
    }
}

/// A use of a buffer on a stream, from before it is submitted until after. Stays on its thread.
///
/// Hold one at a time: work that needs several takes them as a `UseSet`, which cannot deadlock.
#[must_use = "a guard is held until the work that needs it is submitted"]
pub struct UseGuard<'a> {
    view: &'a DeviceView,
    access: Access,
    stream: &'a Stream,
    thread: ThreadNumber,
    position: Option<Position>,
    stays: PhantomData<*const ()>,
}

impl<'a> UseGuard<'a> {
    pub(crate) fn take(view: &'a DeviceView, access: Access, stream: &'a Stream, site: Site) -> Result<Self> {
        let thread = this_thread();
        view.allocation.take(access, stream, thread, site)?;
        Ok(UseGuard { view, access, stream, thread, position: None, stays: PhantomData })
    }

    pub fn address(&self) -> DevicePtr {
        self.view.address()
    }

    pub fn view(&self) -> &DeviceView {
        self.view
    }

    pub fn access(&self) -> Access {
        self.access
    }

    /// What a launch declares about it.
    pub fn declared(&self) -> DeclaredAccess {
        DeclaredAccess { ptr: self.view.address(), len: self.view.len, access: self.access }
    }

    /// The work stands at `position`. Without this the guard assumes everything on the stream when it is dropped.
    pub fn submitted(&mut self, position: Position) {
        self.position = Some(position);
    }
}

impl Drop for UseGuard<'_> {
    fn drop(&mut self) {
        let position = self.position.unwrap_or_else(|| self.stream.position());
        self.view.allocation.release(self.access, self.stream, self.thread, Some(position));
    }
}

/// Uses that one piece of work needs together.
#[derive(Default)]
pub struct UseSet {
    uses: Vec<(DeviceView, Access)>,
}

impl UseSet {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&mut self, view: &DeviceView, access: Access) {
        self.uses.push((view.clone(), access));
    }

    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&DeviceView, Access)> {
        self.uses.iter().map(|(view, access)| (view, *access))
    }

    /// Takes all of them for `stream`: buffer by buffer in one global order, so that two threads never wait for each
    /// other, and each buffer once, for its strongest use.
    pub fn take(self, stream: &Stream, site: Site) -> Result<UseGuards<'_>> {
        let declared = self.uses.iter().map(|(view, access)| DeclaredAccess {
            ptr: view.address(),
            len: view.len,
            access: *access,
        });
        let declared = declared.filter(|declared| declared.len > 0).collect();
        let mut wanted: Vec<(DeviceView, Access)> = Vec::with_capacity(self.uses.len());
        for (view, access) in self.uses {
            match wanted.iter_mut().find(|(known, _)| known.same_buffer(&view)) {
                Some((_, known)) if *known == access => {}
                Some((_, known)) => *known = Access::ReadWrite,
                None => wanted.push((view, access)),
            }
        }
        wanted.sort_by_key(|(view, _)| view.allocation.id);
        let mut guards = UseGuards {
            stream,
            thread: this_thread(),
            held: Vec::with_capacity(wanted.len()),
            declared,
            position: None,
            stays: PhantomData,
        };
        for (view, access) in wanted {
            view.allocation.take(access, stream, guards.thread, site)?;
            guards.held.push((view, access));
        }
        Ok(guards)
    }
}

/// Uses that were taken together. Stay on their thread.
#[must_use = "guards are held until the work that needs them is submitted"]
pub struct UseGuards<'a> {
    stream: &'a Stream,
    thread: ThreadNumber,
    held: Vec<(DeviceView, Access)>,
    declared: Vec<DeclaredAccess>,
    position: Option<Position>,
    stays: PhantomData<*const ()>,
}

impl UseGuards<'_> {
    /// What a launch declares about them, in the order they were added.
    pub fn declared(&self) -> &[DeclaredAccess] {
        &self.declared
    }

    /// The work stands at `position`. Without this the guards assume everything on the stream when they are dropped.
    pub fn submitted(&mut self, position: Position) {
        self.position = Some(position);
    }
}

impl Drop for UseGuards<'_> {
    fn drop(&mut self) {
        let position = self.position.unwrap_or_else(|| self.stream.position());
        for (view, access) in &self.held {
            view.allocation.release(*access, self.stream, self.thread, Some(position));
        }
    }
}
