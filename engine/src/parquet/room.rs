//! Host memory that readers use again: bytes of files, and values on their way to the device.
//!
//!   take(4 MiB) ─► the smallest that is large enough, else a new one ─► Scratch ─ dropped ─► kept, up to a limit
//!
//! Why     memory that is new to a process costs more to touch than the values in it to decode.
//! Limit   what readers have given back beyond it goes to the system.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Engine;

/// Bytes that are kept for readers to come.
const MOST_KEPT: usize = 1 << 30;
/// A buffer of so many times what is asked for is not taken.
const TOO_LARGE: usize = 8;
/// Buffers have a multiple of so many bytes.
const UNIT: usize = 1 << 16;

/// Buffers that wait to be used again.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Vec<Vec<u8>>>);

/// A buffer; what is in it is of no meaning until it is written.
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    len: usize,
    of: Arc<Room>,
}

impl Room {
    /// The room that all readers of an engine share.
    pub fn of(engine: &Engine) -> Arc<Self> {
        engine.beside(|_| Arc::new(Self::default()))
    }

    /// A buffer of `len` bytes.
    pub fn take(self: &Arc<Self>, len: usize) -> Scratch {
        let found = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |bytes: &Vec<u8>| bytes.len() >= len && bytes.len() / TOO_LARGE <= len.max(UNIT);
            let best = kept.iter().enumerate().filter(|(_, bytes)| fits(bytes)).min_by_key(|(_, bytes)| bytes.len());
            best.map(|(at, _)| at).map(|at| kept.swap_remove(at))
        };
        let bytes = found.unwrap_or_else(|| vec![0; len.next_multiple_of(UNIT)]);
        Scratch { bytes, len, of: Arc::clone(self) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut kept = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.iter().map(Vec::len).sum::<usize>() + self.bytes.len() <= MOST_KEPT {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_where_it_is_not_far_too_large() {
        let room = Arc::new(Room::default());
        let address = |bytes: &Scratch| bytes.as_ptr();
        let first = room.take(100_000);
        let at = address(&first);
        drop(first);
        let again = room.take(90_000);
        assert_eq!((address(&again), again.len()), (at, 90_000));
        let other = room.take(90_000);
        assert_ne!(address(&other), at);
        drop(again);
        drop(other);
        assert_eq!(room.take(0).len(), 0);
        drop(room.take(10 << 20));
        assert!(room.take(10).bytes.len() < 10 << 20, "a large one is not taken for little");
    }
}
