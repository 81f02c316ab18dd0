//! Device memory of a run: every allocation is first reserved with the governor and counted under a tag.
//!
//!   take(bytes, tag) ─► governor: may spill waiting data of this and other runs ─► pool ─► buffer and its reservation
//!
//! A reservation counts until it is dropped: the owner of a buffer, or of a view of it, also keeps its reservation.

use millpond_memory::{
    ByteSize, DeviceBuffer, MemoryError, MemoryPool, Participant, Request, Reservation, Scope, Stream,
};

/// Access of a run to device memory.
pub struct MemoryDoor {
    pool: MemoryPool,
    /// The run, as a participant of the governor.
    participant: Participant,
}

impl MemoryDoor {
    /// Memory of `pool` for one participant of the governor.
    pub fn new(pool: &MemoryPool, participant: Participant) -> Self {
        Self { pool: pool.clone(), participant }
    }

    /// Allocates `bytes` in stream order, uninitialized.
    ///
    /// # Errors
    /// Out of memory: the governor refuses the reservation, or the pool is exhausted.
    pub fn take(&self, bytes: usize, tag: &Scope, stream: &Stream) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.promise(bytes)?;
        Ok((DeviceBuffer::new(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// Like [`take`](Self::take), zeroed.
    ///
    /// # Errors
    /// Like [`take`](Self::take).
    pub fn take_zeroed(
        &self,
        bytes: usize,
        tag: &Scope,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.promise(bytes)?;
        Ok((DeviceBuffer::zeroed(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// Like [`take`](Self::take), but waits until other runs have released enough memory.
    ///
    /// # Errors
    /// Like [`take`](Self::take), if no other run holds memory.
    pub async fn take_in_turn(
        &self,
        bytes: usize,
        tag: &Scope,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.participant.reserve(request(bytes)).await?;
        Ok((DeviceBuffer::new(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// Reservation for memory that is already allocated.
    ///
    /// # Errors
    /// If the governor refuses.
    pub fn promise(&self, bytes: usize) -> Result<Reservation, MemoryError> {
        self.participant.try_reserve(request(bytes))
    }
}

fn request(bytes: usize) -> Request {
    Request::device(ByteSize::from(bytes.next_multiple_of(256)))
}
