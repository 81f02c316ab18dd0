//! Device buffers that record their uses, so that work on several streams is ordered.
//!
//!   write on A ──► read on B ──► dropped: freed on B, after C
//!        │            ╱
//!        └──► read on C          the first use on another stream inserts the waits that are needed, and no others
//!
//!   buffer     [ prices ............ | validity .. | padding 0 ]     256-byte aligned, padded to 256, padding zeroed
//!   views        ^^^^^^^^^^^^^^^^^^^   ^^^^^^^^^^^                   share the buffer's order, and keep it alive
//!
//! Uses       a read waits for the last write and the shares; a write waits for reads, too; a share waits for the last
//!            write and the reads, but not for other shares. Allocation counts as the first write.
//! Guards     hold a use from before the work is submitted until after. Launches and copies take guards themselves. A
//!            conflicting use by another thread waits briefly on the host for the guard; on the same thread it is an
//!            error.
//! Drop       frees in stream order, on the stream of the newest use, behind all other uses. Never panics. If the
//!            driver refuses an event, the host waits instead; if no order can be established, the memory is leaked and
//!            the device gets a report. Host code may drop a buffer while kernels run.
//! Empty      buffers of 0 bytes have no allocation and no order.

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

/// Alignment in bytes of both ends of every buffer.
pub const ALIGNMENT: usize = 256;

/// Address of an empty buffer: not null, aligned, and never accessed.
const DANGLING: DevicePtr = DevicePtr(ALIGNMENT as u64);

/// Number of buffer IDs that a thread reserves at once.
const IDS: u64 = 1024;

static NEXT_IDS: AtomicU64 = AtomicU64::new(0);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// ID of this thread, counted from 1; 0 until it is first needed.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Next buffer ID of this thread, and the number of IDs left in its range.
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

/// Returns a unique buffer ID.
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

/// One allocation and its uses, shared by the buffer and its views.
struct Allocation {
    id: u64,
    /// `None` if empty or already freed.
    raw: Option<RawAllocation>,
    ptr: DevicePtr,
    len: usize,
    pool: MemoryPool,
    /// Stream that allocated it; its scope counts the bytes.
    home: Stream,
    site: Site,
    uses: Uses,
    /// Not freed on drop, because work that is not tracked may still use the memory.
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

    /// Ends a use that `take` began. If `used` is set, work up to that position has used the bytes.
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

    /// Frees the memory on the stream of the newest use, behind all other uses.
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
    /// Allocates `len` bytes in stream order. The contents are undefined, except for the padding, which is 0.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`], which names the largest holders.
    #[track_caller]
    pub fn new(len: usize, stream: &Stream, pool: &MemoryPool) -> Result<Self> {
        Self::allocate(len, stream, pool, len, Location::caller())
    }

    /// Allocates `len` zeroed bytes.
    #[track_caller]
    pub fn zeroed(len: usize, stream: &Stream, pool: &MemoryPool) -> Result<Self> {
        Self::allocate(len, stream, pool, 0, Location::caller())
    }

    /// Allocates `len` bytes and zeroes those from `zero_from` to the end of the padding.
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

    /// Takes ownership of an existing allocation, which is freed to `pool`. Earlier work on `stream` counts as its last
    /// write.
    pub(crate) fn adopt(raw: RawAllocation, len: usize, stream: &Stream, pool: &MemoryPool, site: Site) -> Self {
        let ptr = raw.ptr();
        stream.scope().allocated(raw.len().get() as u64);
        Self::around(Some(raw), ptr, len, stream, pool, site)
    }

    /// The whole buffer as a view.
    pub fn as_view(&self) -> &DeviceView {
        &self.view
    }

    /// Allocated bytes, including padding.
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

/// All or part of a buffer. Keeps the memory alive and shares its order with all other views.
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

    /// Scope that allocated the buffer.
    pub fn scope(&self) -> &Scope {
        self.allocation.home.scope()
    }

    pub(crate) fn pool(&self) -> &MemoryPool {
        &self.allocation.pool
    }

    /// Sort key: several buffers are always locked in this order.
    pub(crate) fn order_key(&self) -> u64 {
        self.allocation.id
    }

    /// Marks the memory as never to be freed, because untracked work may still use it. The caller reports the leak.
    pub(crate) fn leak(&self) {
        if !self.allocation.leaked.swap(true, Ordering::Relaxed)
            && let Some(raw) = &self.allocation.raw
        {
            self.scope().add(|c| &c.leaked_bytes, raw.len().get() as u64);
        }
    }

    /// Returns a part of this view.
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

    /// This view, extended by the padding if it ends where its buffer does. Kernels may load whole words there.
    pub fn padded(&self) -> DeviceView {
        let end = self.offset + self.len;
        let padded = if end == self.allocation.len { end.next_multiple_of(ALIGNMENT) } else { end };
        DeviceView { len: padded - self.offset, ..self.clone() }
    }

    /// Device address, for use in device memory. A launch that accesses the bytes through it must declare the view.
    pub fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.offset)
    }

    /// True if both views belong to the same buffer.
    pub fn same_buffer(&self, other: &DeviceView) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Begins a read of the bytes on `stream`.
    #[inline]
    #[track_caller]
    pub fn read<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Read, stream, Location::caller())
    }

    /// Begins a write (and read) of the bytes on `stream`.
    #[inline]
    #[track_caller]
    pub fn write<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Write, stream, Location::caller())
    }

    /// Begins a shared use by several streams at once: by atomics, or with each stream in a disjoint part.
    #[inline]
    #[track_caller]
    pub fn share<'a>(&'a self, stream: &'a Stream) -> Result<UseGuard<'a>> {
        UseGuard::take(self, Access::Atomic, stream, Location::caller())
    }

    /// Sets every byte of the view to `byte`.
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

    /// Copies this view to `to` on the device.
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

/// Accessors for code that moves a buffer's bytes elsewhere.
impl DeviceView {
    /// Number of views and handles that keep the memory alive, including this one.
    pub(crate) fn num_holders(&self) -> usize {
        Arc::strong_count(&self.allocation)
    }

    /// ID of the buffer.
    pub(crate) fn buffer_id(&self) -> u64 {
        self.allocation.id
    }

    /// Byte range of the view in its buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Allocated bytes of the whole buffer, including padding.
    pub(crate) fn buffer_bytes(&self) -> ByteSize {
        ByteSize::from(self.allocation.raw.as_ref().map_or(0, |raw| raw.len().get()))
    }

    /// A view of the whole buffer.
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

/// A use of a buffer on a stream, held from before the work is submitted until after. Not `Send`.
///
/// Hold only one at a time: work that needs several buffers takes them through a `UseSet`, which cannot deadlock.
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

    /// The access that a launch declares.
    pub fn declared(&self) -> DeclaredAccess {
        DeclaredAccess { ptr: self.view.address(), len: self.view.len, access: self.access }
    }

    /// Sets the position of the submitted work. Without it, the guard uses the stream's position at its drop.
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

/// Buffer uses that one piece of work needs together.
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

    /// Takes all uses for `stream`: in one global order of buffers, so that threads cannot deadlock, and each buffer
    /// once, with its strongest access.
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

/// Uses that were taken together. Not `Send`.
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
    /// The accesses that a launch declares, in the order they were added.
    pub fn declared(&self) -> &[DeclaredAccess] {
        &self.declared
    }

    /// Sets the position of the submitted work. Without it, the guards use the stream's position at their drop.
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
