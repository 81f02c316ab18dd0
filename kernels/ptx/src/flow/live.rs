//! Liveness of registers: the register demand of a kernel, and registers that it reads before writing them.
//!
//!   add.u64 %rd3, %rd1, %rd2     before: %rd1 %rd2, four words
//!   st.u64  [%rd0], %rd3         before: %rd0 %rd3
//!
//! Words     32-bit registers; a 64-bit value takes two. Predicates and the carry flag are in separate register files.
//! After     liveness by Kildall: the registers live at the start of a block are propagated to its predecessors until
//!           nothing changes.

use super::{Flow, Step};

/// Effect of a guarded write on the register's old value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guarded {
    /// Threads where the guard fails keep the old value.
    Keeps,
    /// There is no old value if this is the only write of the register.
    Replaces,
}

/// Maximum number of 32-bit registers live at one point.
pub(crate) fn most_words(flow: &Flow<'_>) -> u32 {
    Live::of(flow, Guarded::Replaces).most_words
}

/// Registers that some path reads before writing them, guarded writes not counting as writes.
pub(crate) fn unwritten(flow: &Flow<'_>) -> Vec<u32> {
    let live = Live::of(flow, Guarded::Keeps);
    let is_live = |register: &u32| has(&live.at_begin[..live.width], *register);
    (0..flow.registers.len() as u32).filter(is_live).filter(|register| !flow.given.contains(register)).collect()
}

struct Live {
    /// Number of 64-bit words in a set of registers.
    width: usize,
    /// By block, the set of registers live at its start.
    at_begin: Vec<u64>,
    most_words: u32,
}

fn has(set: &[u64], register: u32) -> bool {
    set[register as usize / 64] >> (register % 64) & 1 == 1
}

impl Live {
    fn of(flow: &Flow<'_>, guarded: Guarded) -> Live {
        let num_blocks = flow.blocks.len();
        let width = flow.registers.len().div_ceil(64);
        let mut all = Live { width, at_begin: vec![0; width * num_blocks], most_words: 0 };
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); num_blocks];
        for (number, block) in flow.blocks.iter().enumerate() {
            block.edges.iter().for_each(|edge| before[edge.to as usize].push(number as u32));
        }
        let writers = flow.writers();
        let replaces = |step: &Step<'_>, register: u32| {
            step.guard.is_none() || guarded == Guarded::Replaces && writers[register as usize] == 1
        };
        let mut open: Vec<u32> = (0..num_blocks as u32).collect();
        let mut is_open = vec![true; num_blocks];
        let mut live = vec![0_u64; width];
        while let Some(number) = open.pop() {
            is_open[number as usize] = false;
            let block = &flow.blocks[number as usize];
            live.fill(0);
            for edge in &block.edges {
                let from = edge.to as usize * width;
                live.iter_mut().zip(&all.at_begin[from..from + width]).for_each(|(word, other)| *word |= other);
            }
            let num_registers = flow.registers.len() as u32;
            let mut words: u32 = (0..num_registers).filter(|r| has(&live, *r)).map(|r| flow.words(r)).sum();
            all.most_words = all.most_words.max(words);
            for step in flow.steps_of(block).iter().rev() {
                for &register in flow.writes(step).iter().filter(|register| replaces(step, **register)) {
                    if has(&live, register) {
                        live[register as usize / 64] &= !(1 << (register % 64));
                        words -= flow.words(register);
                    }
                }
                let guard = step.guard.map(|guard| guard.register());
                for register in flow.reads(step).iter().map(|read| read.register).chain(guard) {
                    if !has(&live, register) {
                        live[register as usize / 64] |= 1 << (register % 64);
                        words += flow.words(register);
                    }
                }
                all.most_words = all.most_words.max(words);
            }
            let own = number as usize * width;
            if all.at_begin[own..own + width] != live[..] {
                all.at_begin[own..own + width].copy_from_slice(&live);
                for &other in &before[number as usize] {
                    if !std::mem::replace(&mut is_open[other as usize], true) {
                        open.push(other);
                    }
                }
            }
        }
        all
    }
}
