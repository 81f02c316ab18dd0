//! Host memory as DataFusion counts it.
//!
//!   host bytes     session's MemoryPool ◄── HostHold               batches, pinned staging and results of our operators
//!   device bytes   MemoryGovernor: see `millpond_memory`
//!
//! Apart      a byte of the device is none of the host: each is counted in one place, once.
//! Refused    by the session's pool, a feeder sends up what it has and takes smaller bites. A single batch and the smallest extent
//!            are counted beyond the limit, if need be; what the whole pool could not hold leaves the subplan to the CPU,
//!            whose operators may spill to disk. That keeps the promise of `with_can_spill`.
//! Cancelled  a hold goes back when it is dropped, and with the query's tasks all of them are.

use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

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

    /// Its size in bytes.
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

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

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
