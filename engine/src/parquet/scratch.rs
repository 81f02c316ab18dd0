//! Resources that readers reuse: host memory for file bytes and for values on their way to the device, and page
//! positions of chunks.
//!
//!   take(4 MiB) ─► the smallest kept buffer that fits, else a new one ─► Scratch ─ dropped ─► kept, up to a limit
//!
//! Why     touching memory for the first time costs more than decoding values into it.
//! Limit   buffers returned beyond the limit are freed.
//! Pages   of a local file are known as long as DataFusion caches its footer: a reader of the bytes checks that the
//!         file is unchanged.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use datafusion::parquet::file::metadata::ParquetMetaData;
use millpond_parquet::{PageError, Pages};

use crate::device::Engine;

/// Maximum bytes of buffers kept for later readers.
const MOST_KEPT: usize = 1 << 30;
/// Buffers this many times larger than requested are not reused.
const TOO_LARGE: usize = 8;
/// Buffer sizes are multiples of this many bytes.
const UNIT: usize = 1 << 16;

/// Resources for reuse.
#[derive(Debug, Default)]
pub(crate) struct ScratchPool {
    buffers: Mutex<Vec<Vec<u8>>>,
    /// By the address of the footer.
    files: Mutex<HashMap<usize, KnownFile>>,
}

/// A file's footer, and its page positions.
type KnownFile = (Weak<ParquetMetaData>, Arc<FilePages>);

/// Page positions of a file's chunks, in order of row groups, then leaf columns.
#[derive(Debug, Default)]
pub(crate) struct FilePages {
    leaves: usize,
    chunks: Vec<OnceLock<Arc<ChunkPages>>>,
}

/// Page positions of a chunk.
#[derive(Debug)]
pub(crate) struct ChunkPages {
    pages: Pages,
    /// Blocks that are decompressed independently: first those of the dictionary, then those of each data page.
    blocks: Vec<OnceLock<Blocks>>,
    /// Set once a reader has decoded the chunk.
    was_decoded: AtomicBool,
}

/// Start offsets of independently decompressed blocks of a page, in its compressed and in its decompressed bytes.
type Blocks = Vec<(u32, u32)>;

impl FilePages {
    /// Pages of a chunk; calls `walk` the first time.
    ///
    /// # Errors
    /// Those of `walk`.
    pub fn chunk(
        &self,
        row_group: usize,
        leaf: usize,
        walk: impl FnOnce() -> Result<Pages, PageError>,
    ) -> Result<Arc<ChunkPages>, PageError> {
        let slot = self.chunks.get(row_group * self.leaves + leaf);
        if let Some(known) = slot.and_then(OnceLock::get) {
            return Ok(Arc::clone(known));
        }
        let pages = walk()?;
        let blocks = (0..=pages.data.len()).map(|_| OnceLock::new()).collect();
        let found = Arc::new(ChunkPages { pages, blocks, was_decoded: AtomicBool::new(false) });
        Ok(match slot {
            Some(slot) => Arc::clone(slot.get_or_init(|| found)),
            None => found,
        })
    }
}

impl ChunkPages {
    /// Blocks of the dictionary; calls `find` the first time.
    pub fn dictionary_blocks(&self, find: impl FnOnce() -> Blocks) -> &[(u32, u32)] {
        self.blocks[0].get_or_init(find)
    }

    /// Blocks of a data page; calls `find` the first time.
    pub fn blocks(&self, page: usize, find: impl FnOnce() -> Blocks) -> &[(u32, u32)] {
        self.blocks[page + 1].get_or_init(find)
    }

    /// Marks the chunk as decoded; returns whether it already was.
    pub fn decode_again(&self) -> bool {
        self.was_decoded.swap(true, Ordering::Relaxed)
    }
}

impl Deref for ChunkPages {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

/// A buffer; its contents are arbitrary until they are written.
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    len: usize,
    of: Arc<ScratchPool>,
}

impl ScratchPool {
    /// The resources shared by all readers of an engine.
    pub fn of(engine: &Engine) -> Arc<Self> {
        engine.beside(|_| Arc::new(Self::default()))
    }

    /// Page positions of a file, as far as they are known.
    pub fn pages(&self, footer: &Arc<ParquetMetaData>) -> Arc<FilePages> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Arc::as_ptr(footer).addr();
        if let Some((of, known)) = files.get(&at)
            && of.upgrade().is_some_and(|of| Arc::ptr_eq(&of, footer))
        {
            return Arc::clone(known);
        }
        // Only at powers of two: a full scan on each insertion would be too slow with many files.
        if files.len().is_power_of_two() {
            files.retain(|_, (of, _)| of.strong_count() > 0);
        }
        let leaves = footer.file_metadata().schema_descr().num_columns();
        let chunks = (0..footer.num_row_groups() * leaves).map(|_| OnceLock::new()).collect();
        let new = Arc::new(FilePages { leaves, chunks });
        files.insert(at, (Arc::downgrade(footer), Arc::clone(&new)));
        new
    }

    /// Takes a buffer of `len` bytes.
    pub fn take(self: &Arc<Self>, len: usize) -> Scratch {
        let found = {
            let mut kept = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut kept = self.of.buffers.lock().unwrap_or_else(PoisonError::into_inner);
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
        let scratch = Arc::new(ScratchPool::default());
        let address = |bytes: &Scratch| bytes.as_ptr();
        let first = scratch.take(100_000);
        let at = address(&first);
        drop(first);
        let again = scratch.take(90_000);
        assert_eq!((address(&again), again.len()), (at, 90_000));
        let other = scratch.take(90_000);
        assert_ne!(address(&other), at);
        drop(again);
        drop(other);
        assert_eq!(scratch.take(0).len(), 0);
        drop(scratch.take(10 << 20));
        assert!(scratch.take(10).bytes.len() < 10 << 20, "a large one is not taken for little");
    }
}
