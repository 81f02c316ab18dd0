//! Bit-packed numbers, least significant bit first, eight to a group.
//!
//!   width 3   byte  0        1        2            a group of 8 values is `width` bytes, whatever the width
//!             bits  22111000 54443332 77766655
//!
//! The width of a group is a compile-time constant: a load, a shift and a mask per value. Values before and after whole
//! groups, and groups at the very end of the bytes, take a slower path.

/// Unpacks `out.len()` values of `width` ≤ 32 bits, the first of them `first` values after the start of `bytes`.
/// Bits past the end of `bytes` are 0.
pub(crate) fn unpack(bytes: &[u8], width: u8, first: usize, out: &mut [u32]) {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                0 => out.fill(0),
                $($width => unpack_by::<$width>(bytes, first, out),)*
                _ => unreachable!("widths were checked when the run began"),
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
}

fn unpack_by<const WIDTH: usize>(bytes: &[u8], first: usize, out: &mut [u32]) {
    let head = (first.next_multiple_of(8) - first).min(out.len());
    let (front, out) = out.split_at_mut(head);
    slowly::<WIDTH>(bytes, first, front);
    if out.is_empty() {
        return;
    }
    let start = (first + head) / 8 * WIDTH;
    let groups = bytes.get(start..).unwrap_or(&[]);
    // A group's last load may read up to 7 bytes past the group.
    let whole = (groups.len().saturating_sub(8) / WIDTH).min(out.len() / 8);
    let (fast, rest) = out.split_at_mut(whole * 8);
    let mask = (1_u64 << WIDTH) - 1;
    for (group, out) in fast.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let from = &groups[group * WIDTH..group * WIDTH + WIDTH + 8];
        let load = |at: usize| u64::from_le_bytes(*from[at..].first_chunk().unwrap_or(&[0; 8]));
        if WIDTH <= 8 {
            let all = load(0);
            for (i, out) in out.iter_mut().enumerate() {
                *out = (all >> (i * WIDTH) & mask) as u32;
            }
        } else {
            for (i, out) in out.iter_mut().enumerate() {
                *out = (load(i * WIDTH / 8) >> (i * WIDTH % 8) & mask) as u32;
            }
        }
    }
    slowly::<WIDTH>(bytes, first + head + whole * 8, rest);
}

fn slowly<const WIDTH: usize>(bytes: &[u8], first: usize, out: &mut [u32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let bit = (first + i) * WIDTH;
        *out = (bits_at(bytes, bit) & ((1 << WIDTH) - 1)) as u32;
    }
}

/// At least 57 bits from bit number `bit` on; 0 past the end.
#[inline]
pub(crate) fn bits_at(bytes: &[u8], bit: usize) -> u64 {
    let at = bit / 8;
    let word = match bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let rest = bytes.get(at..).unwrap_or(&[]);
            rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
        }
    };
    word >> (bit % 8)
}

/// A value of `width` ≤ 64 bits, `index` values behind the start of `bytes`.
#[inline]
pub(crate) fn wide_at(bytes: &[u8], width: u8, index: usize) -> u64 {
    let bit = index * usize::from(width);
    let low = bits_at(bytes, bit);
    match width {
        0 => 0,
        1..=56 => low & ((1 << width) - 1),
        _ => {
            let high = bits_at(bytes, bit + 32) << 32;
            (low & 0xffff_ffff | high) & (u64::MAX >> (64 - width))
        }
    }
}

/// Copies `count` bits, from bit `from` of `bytes` to bit `to` of `words`, which holds zeros from there on.
pub(crate) fn copy_bits(bytes: &[u8], from: usize, words: &mut [u32], to: usize, count: usize) {
    let mut done = 0;
    while done < count {
        let (word, shift) = ((to + done) / 32, (to + done) % 32);
        let step = (32 - shift).min(count - done);
        let bits = bits_at(bytes, from + done) as u32 & (u32::MAX >> (32 - step));
        words[word] |= bits << shift;
        done += step;
    }
}

/// Sets `count` bits of `words` from bit `to` on.
pub(crate) fn set_bits(words: &mut [u32], to: usize, count: usize) {
    let mut done = 0;
    while done < count {
        let (word, shift) = ((to + done) / 32, (to + done) % 32);
        let step = (32 - shift).min(count - done);
        words[word] |= u32::MAX >> (32 - step) << shift;
        done += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `unpack`, bit by bit.
    fn naive(bytes: &[u8], width: usize, index: usize) -> u64 {
        let bit = |bit: usize| u64::from(bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1));
        (0..width).map(|i| bit(index * width + i) << i).sum()
    }

    #[test]
    fn every_width_at_every_start() {
        let bytes: Vec<u8> = (0..200_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for width in 0..=32 {
            for (first, count) in [(0, 40), (1, 40), (7, 9), (8, 100), (3, 3), (0, 0), (30, 64)] {
                let mut out = vec![7; count];
                unpack(&bytes, width, first, &mut out);
                let expected: Vec<u32> =
                    (first..first + count).map(|i| naive(&bytes, width.into(), i) as u32).collect();
                assert_eq!(out, expected, "width {width} from {first}");
            }
        }
        for width in 0..=64 {
            for index in 0..30 {
                assert_eq!(wide_at(&bytes, width, index), naive(&bytes, width.into(), index), "width {width}");
            }
        }
    }

    #[test]
    fn bits_are_copied_to_any_place() {
        let bytes: Vec<u8> = (0..40_u32).map(|i| (i * 73) as u8).collect();
        for (from, to, count) in [(0, 0, 64), (3, 5, 100), (9, 31, 33), (0, 1, 1), (5, 32, 0)] {
            let mut words = [0; 8];
            copy_bits(&bytes, from, &mut words, to, count);
            for i in 0..256 {
                let expected = (to..to + count).contains(&i) && naive(&bytes, 1, from + i - to) == 1;
                assert_eq!(words[i / 32] >> (i % 32) & 1 == 1, expected, "bit {i} of {count} from {from} to {to}");
            }
            let mut words = [0; 8];
            set_bits(&mut words, to, count);
            assert_eq!(words.iter().map(|word| word.count_ones()).sum::<u32>(), count as u32);
        }
    }
}
