//! The 32-byte sectors of an allocation that a launch accessed, by kind of access.
//!
//!   allocation   │ 32 B │ 32 B │ 32 B │ 32 B │ …
//!   reads           1      1      0      0        plain loads
//!   writes          0      0      1      0        plain stores
//!   atomics         0      0      0      1        atom, red, and .relaxed .acquire .release .volatile accesses
//!
//! Memory   chunks of 4,096 sectors, allocated at the first access: a launch over a part of a large arena stays small.

/// Bytes per sector, the granularity of the stream-order check.
pub const SECTOR_BYTES: u64 = 32;

const CHUNK_WORDS: usize = 64;
const CHUNK_SECTORS: u64 = CHUNK_WORDS as u64 * 64;

/// Accesses of one launch to one allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Base address and length of the allocation.
    pub base: u64,
    pub len: u64,
    pub reads: SectorSet,
    pub writes: SectorSet,
    pub atomics: SectorSet,
    /// Step of the first access of each kind (read, write, atomic); [`super::Image::line_of`] returns its line.
    pub first_steps: [Option<u32>; 3],
}

/// A set of sector numbers, counted from the start of the allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SectorSet {
    chunks: Vec<Option<Box<[u64; CHUNK_WORDS]>>>,
}

impl SectorSet {
    pub fn is_empty(&self) -> bool {
        self.chunks.iter().flatten().all(|chunk| chunk.iter().all(|&word| word == 0))
    }

    /// Number of sectors in the set.
    pub fn len(&self) -> u64 {
        let words = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether the sector is in the set.
    pub fn contains(&self, sector: u64) -> bool {
        match self.chunks.get((sector / CHUNK_SECTORS) as usize) {
            Some(Some(chunk)) => chunk[(sector % CHUNK_SECTORS / 64) as usize] >> (sector % 64) & 1 == 1,
            _ => false,
        }
    }

    /// Adds `first ..= last`.
    #[inline]
    pub fn insert(&mut self, first: u64, last: u64) {
        for sector in first..=last {
            let chunk = (sector / CHUNK_SECTORS) as usize;
            if chunk >= self.chunks.len() {
                self.chunks.resize(chunk + 1, None);
            }
            let words = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
            words[(sector % CHUNK_SECTORS / 64) as usize] |= 1 << (sector % 64);
        }
    }

    /// The sectors as maximal runs, in order: (first, number of sectors).
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Some(words) = chunk else { continue };
            for (word_index, &word) in words.iter().enumerate() {
                let first = index as u64 * CHUNK_SECTORS + word_index as u64 * 64;
                let mut rest = word;
                let mut done = 0;
                while rest != 0 {
                    let skip = u64::from(rest.trailing_zeros());
                    rest >>= skip;
                    let length = u64::from(rest.trailing_ones());
                    let start = first + done + skip;
                    match runs.last_mut() {
                        Some((last_start, last_length)) if *last_start + *last_length == start => {
                            *last_length += length
                        }
                        _ => runs.push((start, length)),
                    }
                    done += skip + length;
                    rest = if length == 64 { 0 } else { rest >> length };
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_across_words_and_chunks() {
        let mut set = SectorSet::default();
        assert!(set.is_empty() && set.runs().is_empty());
        set.insert(3, 3);
        set.insert(60, 130);
        set.insert(4090, 4100);
        set.insert(20_000, 20_000);
        assert_eq!(set.runs(), [(3, 1), (60, 71), (4090, 11), (20_000, 1)]);
        assert_eq!(set.len(), 1 + 71 + 11 + 1);
        assert!(set.contains(130) && !set.contains(131) && !set.contains(1 << 40));
    }
}
