//! Memory that kernels allocate from themselves: for results whose size nobody knows before they run.
//!
//! ```text
//!   cursor   bytes asked for so far, one 64-bit word on the device
//!   bytes    [ thread block 2's | thread block 0's | thread block 1's | free ........ ]
//!   a thread block adds up what its threads need, rounds it up to 256, and moves the cursor once:
//!       start = atom.add.u64 [cursor], needed        start + needed ≤ capacity: its bytes; else it writes nothing
//! ```
//!
//! Overflow   the cursor moves on all the same, and nothing is written behind the end: afterwards it says how many bytes are
//!            needed in all, and the kernel runs again with an arena of that size (`filled_by` does both).
//! Kernels    `arena.cuh` of the kernels crate is the device's side; `pick` is one that uses it.
//! Order      the cursor is reset in stream order, behind everything that used the arena. Kernels share both views.
//! Which      thread block gets which bytes varies from run to run; whoever needs an order makes one of his own.

use std::num::NonZeroUsize;
use std::panic::Location;

use crate::buffer::{ALIGNMENT, DeviceBuffer, DeviceView, UseSet};
use crate::driver::{Access, Site};
use crate::error::{MemoryError, Result};
use crate::pending::Pending;
use crate::pinned::PinnedPool;
use crate::pool::MemoryPool;
use crate::stream::Stream;
use crate::units::ByteSize;

/// The bytes of the cursor.
const CURSOR_BYTES: usize = 8;

/// How a kernel came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BumpOutcome {
    /// What all thread blocks asked for, each rounded up to 256.
    pub needed: ByteSize,
    pub capacity: ByteSize,
}

impl BumpOutcome {
    /// True if every thread block had its bytes. If not, what was written is not the whole result.
    pub fn fits(self) -> bool {
        self.needed <= self.capacity
    }
}

/// A piece of device memory and the cursor in it. Both are ordinary buffers: dropped in stream order.
#[derive(Debug)]
pub struct DeviceBumpArena {
    bytes: DeviceBuffer,
    cursor: DeviceBuffer,
}

impl DeviceBumpArena {
    /// Allocates room for `capacity` bytes, rounded up to 256, and a cursor at 0.
    #[track_caller]
    pub fn new(capacity: NonZeroUsize, stream: &Stream, pool: &MemoryPool) -> Result<Self> {
        Self::allocate(capacity, stream, pool, Location::caller())
    }

    fn allocate(capacity: NonZeroUsize, stream: &Stream, pool: &MemoryPool, site: Site) -> Result<Self> {
        let rounded = capacity.get().checked_next_multiple_of(ALIGNMENT);
        let rounded = rounded.ok_or_else(|| Self::too_large(capacity.get()))?;
        let bytes = DeviceBuffer::allocate(rounded, stream, pool, rounded, site)?;
        let cursor = DeviceBuffer::allocate(CURSOR_BYTES, stream, pool, 0, site)?;
        Ok(DeviceBumpArena { bytes, cursor })
    }

    fn too_large(wanted: usize) -> MemoryError {
        MemoryError::Range { what: "an arena", offset: 0, wanted, len: usize::MAX }
    }

    pub fn capacity(&self) -> ByteSize {
        ByteSize::from(self.bytes.len())
    }

    /// Where kernels write; a launch shares it, each thread block in its own part.
    pub fn bytes(&self) -> &DeviceView {
        self.bytes.as_view()
    }

    /// What kernels move by atomics; a launch shares it.
    pub fn cursor(&self) -> &DeviceView {
        self.cursor.as_view()
    }

    /// Begins again at 0, on `stream`, behind everything that has used the arena. What lies in it is given up.
    #[track_caller]
    pub fn reset(&self, stream: &Stream) -> Result<()> {
        let site = Location::caller();
        let mut uses = UseSet::new();
        // Behind the readers of the bytes as well, not only behind those of the cursor.
        uses.add(self.bytes(), Access::Write);
        uses.add(self.cursor(), Access::Write);
        let mut guards = uses.take(stream, site)?;
        let cursor = self.cursor.address();
        let (_, position) = stream.submit(|driver, on| driver.fill(cursor, 0, CURSOR_BYTES, on, site))?;
        guards.submitted(position);
        Ok(())
    }

    /// An arena that `work` has filled: of `capacity` bytes, or, when those were too few, of as many as `work` then asked for.
    ///
    /// `work` enqueues on `stream` what appends to the arena it is given, and all of it: it is called again where the first
    /// arena was too small, and what lay in that one is given up. Awaits the outcome of each run, since it decides a size.
    ///
    /// # Errors
    /// What `work` says; [`MemoryError::OutOfMemory`] where there is no room for what it needs.
    #[track_caller]
    pub fn filled_by<'a, E: From<MemoryError> + 'a>(
        capacity: NonZeroUsize,
        stream: &'a Stream,
        pool: &'a MemoryPool,
        pinned: &'a PinnedPool,
        mut work: impl FnMut(&DeviceBumpArena) -> Result<(), E> + 'a,
    ) -> impl Future<Output = Result<(DeviceBumpArena, BumpOutcome), E>> + 'a {
        let site = Location::caller();
        async move {
            let mut capacity = capacity;
            loop {
                let arena = DeviceBumpArena::allocate(capacity, stream, pool, site)?;
                work(&arena)?;
                let outcome = arena.outcome(stream, pinned)?.await?;
                if outcome.fits() {
                    return Ok((arena, outcome));
                }
                // More than there was, so this ends: with an arena that is large enough, or without memory for it.
                let needed = usize::try_from(outcome.needed.as_u64()).ok().and_then(NonZeroUsize::new);
                capacity = needed.ok_or_else(|| Self::too_large(usize::MAX))?;
            }
        }
    }

    /// How everything before it on the arena came out.
    #[track_caller]
    pub fn outcome(&self, stream: &Stream, pinned: &PinnedPool) -> Result<Pending<BumpOutcome>> {
        let capacity = self.capacity();
        let cursor = self.cursor.download_vec(stream, pinned)?;
        Ok(cursor.map(move |bytes| {
            let needed = u64::from_le_bytes(bytes.try_into().expect("a cursor has eight bytes"));
            BumpOutcome { needed: ByteSize(needed), capacity }
        }))
    }
}
