//! Host memory, accounted in DataFusion's memory pool.
//!
//!   host bytes     session's MemoryPool ◄── HostHold           batches, pinned staging and results of our operators
//!   device bytes   MemoryGovernor: see `millpond_memory`
//!
//! Apart      device bytes are not host bytes: each byte is counted exactly once.
//! Refused    by the session's pool, a feeder uploads what it has and continues with smaller extents. A single batch
//!            and the smallest extent may exceed the limit; a subplan that needs more than the whole pool is left to
//!            the CPU, whose operators may spill to disk. That fulfills `with_can_spill`.
//! Cancelled  a hold is released when it is dropped, and a query's tasks drop all of them.

use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

use crate::error::failure::{Failure, Trouble};

/// Host bytes held by one of our operators, registered in the session's memory pool.
pub struct HostHold {
    reservation: MemoryReservation,
    /// Limit of the pool.
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

    /// Adds `bytes`; returns false if the pool is full.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        match self.reservation.try_grow(bytes) {
            Ok(()) => true,
            Err(error) => {
                self.refused = Some(error.strip_backtrace());
                false
            }
        }
    }

    /// Adds `bytes` that are already allocated, even beyond the pool's limit.
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

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.reservation.size()
    }

    /// Releases all bytes.
    pub fn free(&mut self) {
        self.reservation.free();
    }

    /// Reason of the pool's last refusal.
    pub fn refused(&self) -> HostRefusal {
        HostRefusal { why: self.refused.clone().unwrap_or_else(|| "the pool is full".into()) }
    }
}

/// Error: the session's memory pool refused host memory to one of our operators.
#[derive(Debug, Clone, thiserror::Error)]
#[error("out of host memory: {why}; raise the limit of the session's memory pool or lower millpond.batch_bytes")]
pub struct HostRefusal {
    why: String,
}

impl From<HostRefusal> for Failure {
    fn from(refusal: HostRefusal) -> Self {
        Self::Trouble(Trouble { what: refusal.to_string(), out_of_memory: true, lost: false, sql: None })
    }
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
        // Allocated bytes are counted beyond the limit.
        hold.grow(400);
        assert_eq!(pool.reserved(), 1100);
        hold.free();
        assert_eq!(pool.reserved(), 0);
        assert!(hold.try_grow(1000));
        drop(hold);
        assert_eq!(pool.reserved(), 0);
    }
}
