//! The one door to the device's memory for a run: what it takes is promised by the governor first, and counted under a tag.
//!
//!   take(bytes, tag) ─► governor: may spill what waits, here and in other runs ─► pool ─► buffer, and the promise that it keeps
//!
//! A promise counts until it is dropped: whoever keeps a buffer, or a view of it, keeps its promise too.

use millpond_memory::{
    ByteSize, DeviceBuffer, MemoryError, MemoryPool, Participant, Request, Reservation, Scope, Stream,
};

/// What a run takes device memory through.
pub struct MemoryDoor {
    pool: MemoryPool,
    /// Whom the governor knows as the run.
    participant: Participant,
}

impl MemoryDoor {
    /// Memory of `pool` for one participant of the governor.
    pub fn new(pool: &MemoryPool, participant: Participant) -> Self {
        Self { pool: pool.clone(), participant }
    }

    /// `bytes` in stream order, with anything in them.
    ///
    /// # Errors
    /// Out of memory: the governor promises no more, or the pool has none.
    pub fn take(&self, bytes: usize, tag: &Scope, stream: &Stream) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.promise(bytes)?;
        Ok((DeviceBuffer::new(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// The same, cleared.
    ///
    /// # Errors
    /// As of `take`.
    pub fn take_zeroed(
        &self,
        bytes: usize,
        tag: &Scope,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.promise(bytes)?;
        Ok((DeviceBuffer::zeroed(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// The same as `take` when other runs have given enough back.
    ///
    /// # Errors
    /// As of `take`, where no other run holds anything.
    pub async fn take_in_turn(
        &self,
        bytes: usize,
        tag: &Scope,
        stream: &Stream,
    ) -> Result<(DeviceBuffer, Reservation), MemoryError> {
        let promise = self.participant.reserve(request(bytes)).await?;
        Ok((DeviceBuffer::new(bytes, &stream.with_scope(tag), &self.pool)?, promise))
    }

    /// A promise for memory that is there already.
    ///
    /// # Errors
    /// The governor promises no more.
    pub fn promise(&self, bytes: usize) -> Result<Reservation, MemoryError> {
        self.participant.try_reserve(request(bytes))
    }
}

fn request(bytes: usize) -> Request {
    Request::device(ByteSize::from(bytes.next_multiple_of(256)))
}
