//! MurmurHash3, the 32-bit variant for x86.
//!
//! After  Austin Appleby, MurmurHash3 (public domain): the algorithm, not its text.

/// The hash of `bytes` under `seed`.
///
/// ```
/// use millpond_queries::functions::ml::murmur3_32;
/// assert_eq!(murmur3_32(b"Hello, world!", 0x9747_b28c), 0x2488_4cba);
/// ```
pub fn murmur3_32(bytes: &[u8], seed: u32) -> u32 {
    let scramble = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (words, rest) = bytes.as_chunks::<4>();
    let mut hash = words.iter().fold(seed, |hash, word| {
        let mixed = (hash ^ scramble(u32::from_le_bytes(*word))).rotate_left(13);
        mixed.wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word: u32, byte| (word << 8) | u32::from(*byte));
        hash ^= scramble(word);
    }
    // The length is taken modulo 2³², as in the original.
    hash ^= bytes.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        let vectors: &[(&[u8], u32, u32)] = &[
            (b"", 0, 0),
            (b"", 1, 0x514e_28b7),
            (b"", 0xffff_ffff, 0x81f1_6f39),
            (&[0xff; 4], 0, 0x7629_3b50),
            (&[0x21, 0x43, 0x65, 0x87], 0, 0xf55b_516b),
            (&[0x21, 0x43, 0x65, 0x87], 0x5082_edee, 0x2362_f9de),
            (&[0x21, 0x43, 0x65], 0, 0x7e4a_8634),
            (&[0x21, 0x43], 0, 0xa0f7_b07a),
            (&[0x21], 0, 0x7266_1cf4),
            (&[0; 4], 0, 0x2362_f9de),
            (&[0; 3], 0, 0x85f0_b427),
            (&[0; 2], 0, 0x30f4_c306),
            (&[0; 1], 0, 0x514e_28b7),
            (b"aaaa", 0x9747_b28c, 0x5a97_808a),
            (b"aaa", 0x9747_b28c, 0x283e_0130),
            (b"aa", 0x9747_b28c, 0x5d21_1726),
            (b"a", 0x9747_b28c, 0x7fa0_9ea6),
            (b"abcd", 0x9747_b28c, 0xf047_8627),
            (b"abc", 0x9747_b28c, 0xc84a_62dd),
            (b"Hello, world!", 0x9747_b28c, 0x2488_4cba),
            (b"The quick brown fox jumps over the lazy dog", 0x9747_b28c, 0x2fa8_26cd),
        ];
        for (bytes, seed, hash) in vectors {
            assert_eq!(murmur3_32(bytes, *seed), *hash, "{bytes:?} under {seed:#x}");
        }
    }
}
