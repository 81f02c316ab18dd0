//! Device and host memory as DataFusion counts it.
//!
//!   device bytes   MemoryGovernor ◄── DevicePool: MemoryPool      for anyone who asks in DataFusion's words
//!   host bytes     session's MemoryPool ◄── HostHold               batches, pinned staging and results of our operators
//!
//! Apart      a byte of the device is none of the host: each is counted in one pool, once.
//! Refused    by the session's pool, a feeder sends up what it has and takes smaller bites. A single batch and the smallest extent
//!            are counted beyond the limit, if need be; what the whole pool could not hold leaves the subplan to the CPU,
//!            whose operators may spill to disk. That keeps the promise of `with_can_spill`.
//! Cancelled  a hold goes back when it is dropped, and with the query's tasks all of them are.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use millpond_memory::{ByteSize, MemoryGovernor, MemorySpace, Participant, Request, Reservation};

/// Bytes of the host that one of our operators holds, as the session's memory pool knows them.
pub struct HostHold {
    reservation: MemoryReservation,
    /// Of the pool.
    limit: Option<usize>,
    refused: Option<String>,
}

impl HostHold {
    /// A hold of no bytes.
    pub fn new(name: &str, pool: &Arc<dyn MemoryPool>) -> Self {
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(limit) => Some(limit),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        };
        Self { reservation: MemoryConsumer::new(name).with_can_spill(true).register(pool), limit, refused: None }
    }

    /// Adds `bytes`; false when the pool has no room.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        match self.reservation.try_grow(bytes) {
            Ok(()) => true,
            Err(error) => {
                self.refused = Some(error.strip_backtrace());
                false
            }
        }
    }

    /// Adds `bytes` that are there already, whether the pool has room or not.
    pub fn grow(&mut self, bytes: usize) {
        self.reservation.grow(bytes);
    }

    /// False when the whole pool is smaller than `bytes`.
    pub fn could_hold(&self, bytes: usize) -> bool {
        match self.limit {
            Some(limit) => bytes <= limit,
            None => true,
        }
    }

    pub fn bytes(&self) -> usize {
        self.reservation.size()
    }

    /// Gives all of it back.
    pub fn free(&mut self) {
        self.reservation.free();
    }

    /// Why the pool refused, the last time it did.
    pub fn refused(&self) -> HostRefusal {
        HostRefusal { why: self.refused.clone().unwrap_or_else(|| "the pool is full".into()) }
    }
}

/// The session's memory pool had no room for what an operator of ours holds on the host.
#[derive(Debug, Clone, thiserror::Error)]
#[error("out of host memory: {why}; raise the limit of the session's memory pool or lower millpond.batch_bytes")]
pub struct HostRefusal {
    why: String,
}

/// The device's memory in DataFusion's words: promises of the governor, one participant per consumer.
pub struct DevicePool {
    governor: MemoryGovernor,
    consumers: Mutex<HashMap<usize, Consumer>>,
}

struct Consumer {
    participant: Participant,
    held: Reservation,
}

impl DevicePool {
    /// A pool over the promises of `governor`.
    pub fn new(governor: &MemoryGovernor) -> Self {
        Self { governor: governor.clone(), consumers: Mutex::default() }
    }

    fn consumers(&self) -> MutexGuard<'_, HashMap<usize, Consumer>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what a consumer holds. Spillers may be asked meanwhile, so the lock is not held; a reservation is changed by
    /// whoever has it, one at a time.
    fn with<T>(&self, of: &MemoryConsumer, change: impl FnOnce(&mut Reservation) -> T) -> T {
        let mut taken = {
            let mut consumers = self.consumers();
            let known = consumers.entry(of.id()).or_insert_with(|| self.consumer(of));
            known.participant.empty(request(of, 0))
        };
        let answer = change(&mut taken);
        let mut consumers = self.consumers();
        let known = consumers.entry(of.id()).or_insert_with(|| self.consumer(of));
        // Both are of one participant and one kind, so they fit together.
        let merged = known.held.merge(taken);
        debug_assert!(merged.is_ok(), "{merged:?}");
        answer
    }

    fn consumer(&self, of: &MemoryConsumer) -> Consumer {
        let participant = self.governor.participant(of.name(), 0);
        let held = participant.empty(request(of, 0));
        Consumer { participant, held }
    }
}

fn request(of: &MemoryConsumer, bytes: usize) -> Request {
    let request = Request::device(ByteSize::from(bytes));
    if of.can_spill() { request.spillable() } else { request }
}

impl MemoryPool for DevicePool {
    fn name(&self) -> &str {
        "millpond_device"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.consumers().insert(consumer.id(), self.consumer(consumer));
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let gone = self.consumers().remove(&consumer.id());
        drop(gone);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.with(reservation.consumer(), |held| held.grow_anyway(ByteSize::from(additional)));
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if let Some(known) = self.consumers().get_mut(&reservation.consumer().id()) {
            known.held.shrink(ByteSize::from(shrink));
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let grown = self.with(reservation.consumer(), |held| held.try_grow(ByteSize::from(additional)));
        grown.map_err(|error| DataFusionError::ResourcesExhausted(error.to_string()))
    }

    fn reserved(&self) -> usize {
        usize::try_from(self.governor.reserved(MemorySpace::Device).as_u64()).unwrap_or(usize::MAX)
    }

    fn memory_limit(&self) -> MemoryLimit {
        let capacity = self.governor.capacity(MemorySpace::Device).as_u64();
        usize::try_from(capacity).map_or(MemoryLimit::Infinite, MemoryLimit::Finite)
    }
}

impl fmt::Display for DevicePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reserved, capacity) = (self.reserved(), self.governor.capacity(MemorySpace::Device));
        write!(f, "{}({} of {capacity})", self.name(), ByteSize::from(reserved))
    }
}

impl fmt::Debug for DevicePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.governor)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    fn device_pool(bytes: u64) -> (MemoryGovernor, Arc<dyn MemoryPool>) {
        let governor = MemoryGovernor::builder(ByteSize::bytes(bytes)).build().expect("the settings are the defaults");
        let pool: Arc<dyn MemoryPool> = Arc::new(DevicePool::new(&governor));
        (governor, pool)
    }

    #[test]
    fn consumers_of_datafusion_share_the_governors_promises() {
        let (governor, pool) = device_pool(1000);
        let ours = governor.participant("a query", 0);
        let first = MemoryConsumer::new("cache").with_can_spill(true).register(&pool);
        let second = MemoryConsumer::new("sort").register(&pool);
        first.try_grow(600).expect("there is room");
        let kept = ours.try_reserve(Request::device(ByteSize::bytes(300))).expect("there is room");
        assert_eq!((pool.reserved(), first.size()), (900, 600));
        let refused = second.try_grow(200).expect_err("no room").to_string();
        assert!(refused.contains("cache") && refused.contains("200"), "{refused}");
        assert_eq!((pool.reserved(), second.size()), (900, 0));
        drop(kept);
        second.try_grow(200).expect("now there is");
        first.shrink(500);
        assert_eq!(pool.reserved(), 300);
        // What must succeed goes beyond the limit, and is seen there.
        second.grow(900);
        assert_eq!(pool.reserved(), 1200);
        drop((first, second));
        assert_eq!((pool.reserved(), governor.reserved(MemorySpace::Device)), (0, ByteSize::ZERO));
        assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(1000)));
        governor.check();
    }

    #[test]
    fn a_hold_is_seen_by_the_sessions_pool_and_goes_back_when_dropped() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let mut hold = HostHold::new("millpond query 1 extents", &pool);
        assert!(hold.try_grow(700));
        assert_eq!((pool.reserved(), hold.bytes()), (700, 700));
        assert!(!hold.try_grow(400));
        assert_eq!(pool.reserved(), 700);
        let refused = hold.refused().to_string();
        assert!(refused.contains("out of host memory") && refused.contains("millpond.batch_bytes"), "{refused}");
        assert!(hold.could_hold(1000) && !hold.could_hold(1001));
        // What is there already is counted beyond the limit.
        hold.grow(400);
        assert_eq!(pool.reserved(), 1100);
        hold.free();
        assert_eq!(pool.reserved(), 0);
        assert!(hold.try_grow(1000));
        drop(hold);
        assert_eq!(pool.reserved(), 0);
    }
}
