//! Bump allocation in chunks: which bytes of an arena are taken, and what the next user of the others comes after.
//!
//!   chunk   [ a live | b freed | c live | ........ ]      free c: the cursor falls back over c and b, to the end of a
//!                                       ^ cursor          behind: the positions of both frees
//!
//! Frees      only what ends at the cursor comes back at once; what lies below waits for its neighbours above.
//! Order      a chunk keeps the newest position of each stream that freed something in it; what is allocated in it next
//!            comes after all of them.
//! Pure       no driver, no lock, no clock.

use super::{Released, note};
use crate::driver::Site;
use crate::order::Position;

#[derive(Debug)]
struct Piece {
    offset: u64,
    /// Counts allocations of the arena; what was allocated after a mark has a larger one.
    serial: u64,
    live: Option<Site>,
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    len: u64,
    cursor: u64,
    pieces: Vec<Piece>,
    behind: Vec<Position>,
}

/// What was allocated after a mark and is not free.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) bytes: u64,
    pub(super) allocations: usize,
    pub(super) first: Site,
}

#[derive(Debug, Default)]
pub(super) struct Bump {
    chunks: Vec<Chunk>,
    serial: u64,
    live_bytes: u64,
}

impl Bump {
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Adds a chunk; it is the first that is tried.
    pub(super) fn add_chunk(&mut self, base: u64, len: u64) {
        self.chunks.push(Chunk { base, len, cursor: 0, pieces: Vec::new(), behind: Vec::new() });
    }

    /// Takes `len` bytes from the newest chunk that has them. They may be used behind the positions.
    pub(super) fn take(&mut self, len: u64, site: Site) -> Option<(u64, Vec<Position>)> {
        let chunk = self.chunks.iter_mut().rev().find(|chunk| chunk.len - chunk.cursor >= len)?;
        self.serial += 1;
        let offset = chunk.cursor;
        chunk.pieces.push(Piece { offset, serial: self.serial, live: Some(site) });
        chunk.cursor += len;
        self.live_bytes += len;
        Some((chunk.base + offset, chunk.behind.clone()))
    }

    /// The arena's stream now comes after `positions`: its next allocation need not wait for them.
    pub(super) fn ordered(&mut self, ptr: u64, positions: &[Position]) {
        if let Some(chunk) = self.chunk_of(ptr) {
            chunk.behind.retain(|behind| !positions.iter().any(|p| p.stream == behind.stream && p.seq >= behind.seq));
        }
    }

    /// Takes a piece back, behind `after`. Returns its length, or `None` if nothing live begins there.
    pub(super) fn free(&mut self, ptr: u64, after: Position) -> Option<u64> {
        let chunk = self.chunk_of(ptr)?;
        let offset = ptr - chunk.base;
        let index = chunk.pieces.binary_search_by_key(&offset, |piece| piece.offset).ok()?;
        chunk.pieces[index].live.take()?;
        let len = chunk.end_of(index) - offset;
        note(&mut chunk.behind, after);
        while let Some(last) = chunk.pieces.pop_if(|piece| piece.live.is_none()) {
            chunk.cursor = last.offset;
        }
        self.live_bytes -= len;
        Some(len)
    }

    pub(super) fn mark(&self) -> u64 {
        self.serial
    }

    /// What was allocated since `mark` and is live.
    pub(super) fn in_use_since(&self, mark: u64) -> Option<InUse> {
        let mut found: Option<(u64, InUse)> = None;
        for chunk in &self.chunks {
            for (index, piece) in chunk.pieces.iter().enumerate().filter(|(_, piece)| piece.serial > mark) {
                let Some(site) = piece.live else { continue };
                let (first, in_use) =
                    found.get_or_insert((piece.serial, InUse { bytes: 0, allocations: 0, first: site }));
                in_use.bytes += chunk.end_of(index) - piece.offset;
                in_use.allocations += 1;
                if piece.serial < *first {
                    (*first, in_use.first) = (piece.serial, site);
                }
            }
        }
        found.map(|(_, in_use)| in_use)
    }

    /// Lets go of empty chunks, the newest first, while more than `keep` bytes of them are held.
    pub(super) fn release(&mut self, keep: u64) -> Vec<Released> {
        let mut idle: u64 = self.chunks.iter().filter(|chunk| chunk.pieces.is_empty()).map(|chunk| chunk.len).sum();
        let mut released = Vec::new();
        for index in (0..self.chunks.len()).rev() {
            if idle > keep && self.chunks[index].pieces.is_empty() {
                let chunk = self.chunks.remove(index);
                idle -= chunk.len;
                released.push(Released { base: chunk.base, after: chunk.behind });
            }
        }
        released
    }

    /// Panics on a broken invariant.
    pub(super) fn check(&self) {
        for chunk in &self.chunks {
            let mut end = 0;
            for (index, piece) in chunk.pieces.iter().enumerate() {
                assert!(index == 0 || piece.offset > end, "pieces ascend");
                end = piece.offset;
            }
            assert!(chunk.pieces.first().is_none_or(|piece| piece.offset == 0), "the first piece begins the chunk");
            assert!(chunk.pieces.last().is_none_or(|piece| piece.live.is_some()), "the cursor falls over freed pieces");
            assert!(chunk.cursor <= chunk.len && end <= chunk.cursor, "pieces lie in the chunk");
            assert!(!chunk.pieces.is_empty() || chunk.cursor == 0, "an empty chunk begins again");
        }
    }

    fn chunk_of(&mut self, ptr: u64) -> Option<&mut Chunk> {
        self.chunks.iter_mut().find(|chunk| chunk.base <= ptr && ptr - chunk.base < chunk.len)
    }
}

impl Chunk {
    fn end_of(&self, index: usize) -> u64 {
        self.pieces.get(index + 1).map_or(self.cursor, |next| next.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamId;
    use std::panic::Location;

    fn at(index: u32, seq: u64) -> Position {
        Position { stream: StreamId { device_serial: 0, index }, seq }
    }

    fn bump() -> Bump {
        let mut bump = Bump::default();
        bump.add_chunk(0x1000, 1024);
        bump
    }

    fn take(bump: &mut Bump, len: u64) -> (u64, Vec<Position>) {
        bump.take(len, Location::caller()).unwrap()
    }

    #[test]
    fn the_cursor_falls_back_over_everything_freed_at_the_end() {
        let mut bump = bump();
        let [a, b, c] = [256, 512, 256].map(|len| take(&mut bump, len).0);
        assert_eq!((a, b, c), (0x1000, 0x1100, 0x1300));
        assert!(bump.take(256, Location::caller()).is_none(), "full");
        assert_eq!(bump.free(b, at(0, 1)), Some(512));
        assert!(bump.take(256, Location::caller()).is_none(), "what lies below waits for what lies above");
        assert_eq!(bump.free(c, at(0, 2)), Some(256));
        bump.check();
        assert_eq!(take(&mut bump, 768).0, b);
        assert_eq!(bump.live_bytes(), 1024);
    }

    #[test]
    fn next_user_comes_after_every_stream_that_freed_there() {
        let mut bump = bump();
        let [a, b, c] = [256; 3].map(|len| take(&mut bump, len).0);
        bump.free(a, at(1, 5));
        bump.free(b, at(2, 6));
        bump.free(c, at(1, 9));
        let (ptr, behind) = take(&mut bump, 128);
        assert_eq!((ptr, behind.as_slice()), (a, [at(1, 9), at(2, 6)].as_slice()));
        bump.ordered(ptr, &behind[..1]);
        assert_eq!(take(&mut bump, 128).1, [at(2, 6)], "one wait was made, the other was not");
    }

    #[test]
    fn only_what_is_live_can_be_freed() {
        let mut bump = bump();
        let (a, _) = take(&mut bump, 512);
        let (_, _) = take(&mut bump, 256);
        assert_eq!(bump.free(a + 256, at(0, 1)), None);
        assert_eq!(bump.free(0x9000, at(0, 1)), None);
        assert_eq!(bump.free(a, at(0, 1)), Some(512));
        assert_eq!(bump.free(a, at(0, 1)), None);
    }

    #[test]
    fn marks_know_what_came_later() {
        let mut bump = bump();
        let (old, _) = take(&mut bump, 256);
        let mark = bump.mark();
        assert_eq!(bump.in_use_since(mark), None);
        let (new, _) = take(&mut bump, 512);
        let in_use = bump.in_use_since(mark).unwrap();
        assert_eq!((in_use.bytes, in_use.allocations), (512, 1));
        bump.free(old, at(0, 1));
        bump.free(new, at(0, 2));
        assert_eq!(bump.in_use_since(mark), None);
        bump.check();
    }

    #[test]
    fn empty_chunks_go_with_all_their_positions() {
        let mut bump = bump();
        let (a, _) = take(&mut bump, 1024);
        bump.add_chunk(0x8000, 256);
        let (b, _) = take(&mut bump, 256);
        bump.free(a, at(3, 1));
        assert!(bump.release(1024).is_empty(), "that much may stay");
        assert_eq!(bump.release(0), [Released { base: 0x1000, after: vec![at(3, 1)] }]);
        bump.free(b, at(0, 2));
        assert_eq!(bump.release(0), [Released { base: 0x8000, after: vec![at(0, 2)] }]);
    }
}
