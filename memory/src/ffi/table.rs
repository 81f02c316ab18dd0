//! Live allocations of the C functions: address → allocation.
//!
//!   0x7f00_0002_0000 ─► hash ─► shard 37 of 64 ─► { bytes, device, stream, using streams }
//!
//! Threads    a lock per shard, held for one lookup: threads contend only when their addresses share a shard.
//! Addresses  are reused by the driver. An entry is removed before its memory is freed, and inserted after its memory
//!            was allocated, so an address has at most one entry.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Table<T> {
    shards: Vec<Mutex<HashMap<u64, T>>>,
    hasher: RandomState,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, address: u64) -> MutexGuard<'_, HashMap<u64, T>> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(address);
        let shard = &self.shards[hasher.finish() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts an entry and returns the previous one at `address`: two live allocations at one address are a fault.
    pub(super) fn insert(&self, address: u64, entry: T) -> Option<T> {
        self.shard(address).insert(address, entry)
    }

    /// Removes an entry if `may` accepts it. `None` if there is none; a refusal leaves the entry in place.
    pub(super) fn remove_if<E>(&self, address: u64, may: impl FnOnce(&T) -> Result<(), E>) -> Result<Option<T>, E> {
        let mut shard = self.shard(address);
        match shard.get(&address) {
            Some(entry) => may(entry)?,
            None => return Ok(None),
        }
        Ok(shard.remove(&address))
    }

    /// Reads or changes an entry.
    pub(super) fn with<R>(&self, address: u64, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.shard(address).get_mut(&address).map(look)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_taken_out_once_and_a_refusal_leaves_it() {
        let table = Table::new();
        assert!(table.insert(0x100, "a").is_none());
        assert_eq!(table.insert(0x100, "b"), Some("a"), "two things at one address are told");
        assert_eq!(table.remove_if(0x100, |_| Err("no")), Err("no"));
        assert_eq!(table.len(), 1);
        assert_eq!(table.remove_if(0x100, |_| Ok::<(), ()>(())), Ok(Some("b")));
        assert_eq!(table.remove_if(0x100, |_| Ok::<(), ()>(())), Ok(None));
    }

    #[test]
    fn threads_do_not_lose_entries() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let table = &table;
                scope.spawn(move || {
                    for i in 0..500u64 {
                        let address = (thread * 500 + i) << 9;
                        assert!(table.insert(address, i).is_none());
                        assert_eq!(table.with(address, |entry| *entry), Some(i));
                        if i % 2 == 0 {
                            assert_eq!(table.remove_if(address, |_| Ok::<(), ()>(())), Ok(Some(i)));
                        }
                    }
                });
            }
        });
        assert_eq!(table.len(), 8 * 250);
    }

    #[test]
    fn aligned_addresses_spread_over_the_shards() {
        let table = Table::new();
        for i in 0..6400u64 {
            table.insert(i << 21, ());
        }
        let fullest = table.shards.iter().map(|shard| shard.lock().unwrap().len()).max().unwrap();
        assert!(fullest < 200, "{fullest} of 6400 in one of {SHARDS} shards");
    }
}
