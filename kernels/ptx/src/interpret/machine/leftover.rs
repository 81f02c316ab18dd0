//! Initial content of registers and local memory: random with a seed, else zero.
//!
//!   @%p1 ld.u32 %r1, [%rd1]      where %p1 does not hold, %r1 is 0x7d…, and another number in another block
//!
//! Registers  only those that some path reads before writing them are filled: the others are never observed. Values fit
//!            the register's width, and predicates are 0 or 1.
//! Memory     only if the check of unwritten reads is off.
//! Frames     of callees are filled likewise.

use super::Machine;
use super::warp::{blend, lanes_of};
use crate::interpret::alu::Row;
use crate::interpret::op::Function;

/// Constants that differ by lane: the first outputs of splitmix64.
const LANES: Row = {
    let mut lanes = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        lanes[lane] = mix(lane as u64 + 1);
        lane += 1;
    }
    lanes
};

const fn mix(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

pub(super) struct Leftovers {
    /// `None` without a seed.
    pattern: Option<u64>,
    memory: bool,
}

impl Leftovers {
    /// Content for a new frame; `number` selects a sequence.
    pub fn of(machine: &Machine<'_>, number: u64) -> Leftovers {
        Leftovers {
            pattern: machine.options.seed.map(|seed| mix(seed ^ mix(number)) | 1),
            memory: !machine.options.checks.initialised,
        }
    }

    /// The next row, from Marsaglia's xorshift generator.
    fn row(pattern: &mut u64, keep: u64) -> Row {
        *pattern ^= *pattern << 13;
        *pattern ^= *pattern >> 7;
        *pattern ^= *pattern << 17;
        LANES.map(|lane| (*pattern ^ lane) & keep)
    }

    /// Fills the rows of a function's frame in the given lanes.
    pub fn in_registers(&mut self, frame: &mut [Row], function: &Function, lanes: u32) {
        for &(row, keep) in &function.unwritten {
            let old = &mut frame[row as usize];
            match &mut self.pattern {
                Some(pattern) => blend(old, &Self::row(pattern, keep), lanes),
                None => blend(old, &[0; 32], lanes),
            }
        }
    }

    /// Fills words of local memory in the given lanes.
    pub fn in_memory(&mut self, words: &mut [Row], lanes: u32) {
        let Some(pattern) = self.pattern.as_mut().filter(|_| self.memory) else { return };
        for word in words {
            let row = Self::row(pattern, u64::MAX);
            lanes_of(lanes).for_each(|lane| word[lane] = row[lane]);
        }
    }
}
