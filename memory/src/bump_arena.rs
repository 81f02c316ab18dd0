//! Memory that kernels allocate from themselves: for results whose size nobody knows before they run.
//!
//!   cursor   bytes asked for so far, one 64-bit word on the device
//!   bytes    [ thread block 2's | thread block 0's | thread block 1's | free ........ ]
//!   a thread block adds up what its threads need, rounds it up to 256, and moves the cursor once:
//!       start = atom.add.u64 [cursor], needed        start + needed ≤ capacity: its bytes; else it writes nothing
//!
//! Overflow   the cursor moves on all the same, and nothing is written behind the end: afterwards it says how many bytes are
//!            needed in all, and the kernel runs again with an arena of that size.
//! Order      the cursor is reset in stream order, behind everything that used the arena. Kernels share both views.
//! Which      thread block gets which bytes varies from run to run; whoever needs an order makes one of his own.

use std::num::NonZeroUsize;
use std::panic::Location;

use crate::buffer::{ALIGNMENT, DeviceBuffer, DeviceView, UseSet};
use crate::driver::Access;
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
        let Some(rounded) = capacity.get().checked_next_multiple_of(ALIGNMENT) else {
            return Err(MemoryError::Range { what: "an arena", offset: 0, wanted: capacity.get(), len: usize::MAX });
        };
        let bytes = DeviceBuffer::new(rounded, stream, pool)?;
        let cursor = DeviceBuffer::zeroed(CURSOR_BYTES, stream, pool)?;
        Ok(DeviceBumpArena { bytes, cursor })
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
