//! Calls and returns: a new frame above the caller's, with parameters copied in and results copied out.
//!
//!   caller   rows 0…11 │ callee   rows 12…20        the callee's row 0 is row 12 of the warp, for the calling lanes
//!
//! Lanes of one indirect call may call different functions: the lanes of each target are grouped.

use super::leftover::Leftovers;
use super::warp::{Caller, Group, Warp, lanes_of};
use super::{FaultKind, Machine, Trouble};
use crate::interpret::load::{FUNCTION_BASE, FUNCTION_STRIDE, MOST_LOCAL};
use crate::interpret::op::{Actual, CallSite, CallTarget, Formal, Op, SINK};

impl Warp {
    pub(super) fn call(
        &mut self,
        machine: &Machine<'_>,
        site: &CallSite,
        group: Group,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let mut pending = active;
        while pending != 0 {
            let first = pending.trailing_zeros() as usize;
            let (target, mask) = match &site.target {
                CallTarget::Function(target) => (*target, pending),
                CallTarget::Address(source) => {
                    let row = source.row(&self.registers[group.frame..], &machine.grid.constants);
                    let address = row[first];
                    let mask = lanes_of(pending).filter(|&l| row[l] == address).fold(0, |m, l| m | 1 << l);
                    let index = address.wrapping_sub(FUNCTION_BASE) / FUNCTION_STRIDE;
                    let fits = address % FUNCTION_STRIDE == 0 && index < machine.grid.image.functions.len() as u64;
                    let kernel = fits && machine.grid.image.kernels.iter().any(|k| u64::from(k.function) == index);
                    if !fits || kernel {
                        let message = format!("a call through {address:#x}, where no function is");
                        return Err(Trouble::new(FaultKind::Call, first as u32, message));
                    }
                    (index as u32, mask)
                }
            };
            self.enter(machine, site, group, target, mask)?;
            pending &= !mask;
        }
        Ok(())
    }

    fn enter(
        &mut self,
        machine: &Machine<'_>,
        site: &CallSite,
        group: Group,
        target: u32,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let first = mask.trailing_zeros() as usize;
        let callee = &machine.grid.image.functions[target as usize];
        let caller = &machine.grid.image.functions[self.function[first] as usize];
        let bad = |message: String| Err(Trouble::new(FaultKind::Call, first as u32, message));
        if site.arguments.len() != callee.formals.len() || site.results.len() > callee.results.len() {
            return bad(format!(
                "`{}` takes {} arguments and gives {} results; the call has {} and {}",
                callee.name,
                callee.formals.len(),
                callee.results.len(),
                site.arguments.len(),
                site.results.len()
            ));
        }
        if self.callers[first].len() >= machine.options.max_call_depth as usize {
            return bad(format!("calls nested more than {} deep", machine.options.max_call_depth));
        }
        let words = self.local_frame[first] + caller.local_words + callee.local_words;
        if words > MOST_LOCAL / 8 {
            return bad(format!(
                "`{}` would need {} bytes of local memory; a thread has {MOST_LOCAL}",
                callee.name,
                words * 8
            ));
        }
        let frame = group.frame + caller.rows as usize;
        let rows = frame + callee.rows as usize;
        if rows > self.registers.len() {
            self.registers.resize(rows, [0; 32]);
        }
        let mut leftovers = Leftovers::of(machine, machine.warp_instructions << 5 | u64::from(self.index));
        leftovers.in_registers(&mut self.registers[frame..rows], callee, mask);
        let mut most_words = 0;
        for lane in lanes_of(mask) {
            let caller_function = self.function[lane];
            let local = self.local_frame[lane];
            self.callers[lane].push(Caller {
                pc: group.pc + 1,
                frame: group.frame as u32,
                local,
                function: caller_function,
            });
            self.frame[lane] = frame as u32;
            self.local_frame[lane] = local + caller.local_words;
            self.function[lane] = target;
            self.pc[lane] = callee.entry;
            most_words = most_words.max(self.local_frame[lane] + callee.local_words);
        }
        if most_words as usize > self.local.len() {
            self.local.resize(most_words as usize, [0; 32]);
            self.local_written.resize(most_words as usize, [0; 32]);
        }
        for lane in lanes_of(mask) {
            let start = self.local_frame[lane] as usize;
            let words = start..start + callee.local_words as usize;
            leftovers.in_memory(&mut self.local[words.clone()], 1 << lane);
            for word in words {
                self.local_written[word][lane] = 0;
            }
        }
        for (actual, formal) in site.arguments.iter().zip(&callee.formals) {
            for lane in lanes_of(mask) {
                let base = self.local_frame[lane] - caller.local_words;
                let (to_frame, to_local) = (frame, self.local_frame[lane]);
                self.pass(machine, lane, (*actual, group.frame, base), (*formal, to_frame, to_local));
            }
        }
        Ok(())
    }

    /// Copies an argument of the caller into a parameter of the callee.
    fn pass(
        &mut self,
        machine: &Machine<'_>,
        lane: usize,
        (actual, from_frame, from_local): (Actual, usize, u32),
        (formal, to_frame, to_local): (Formal, usize, u32),
    ) {
        let value = match actual {
            Actual::Value(source) => source.row(&self.registers[from_frame..], &machine.grid.constants)[lane],
            Actual::Register(row) => self.registers[from_frame + row as usize][lane],
            Actual::Memory { offset, size } => {
                if let Formal::Memory { offset: to, size: to_size } = formal {
                    self.copy_local(lane, from_local * 8 + offset, to_local * 8 + to, size.min(to_size));
                    return;
                }
                self.local[(from_local + offset / 8) as usize][lane]
            }
            Actual::Nowhere => return,
        };
        match formal {
            Formal::Register { row, bits } => {
                self.registers[to_frame + row as usize][lane] = value & (u64::MAX >> (64 - bits));
            }
            Formal::Memory { offset, size } => self.put_local(lane, to_local * 8 + offset, value, size.min(8)),
        }
    }

    pub(super) fn ret(&mut self, machine: &Machine<'_>, active: u32) {
        for lane in lanes_of(active) {
            // Only called functions return; `ret` in a kernel is an exit.
            let Some(caller) = self.callers[lane].pop() else { continue };
            let callee = &machine.grid.image.functions[self.function[lane] as usize];
            let (from_frame, from_local) = (self.frame[lane] as usize, self.local_frame[lane]);
            let (to_frame, to_local) = (caller.frame as usize, caller.local);
            if let Op::Call(site) = &machine.grid.image.steps[caller.pc as usize - 1].op {
                for (actual, formal) in site.results.iter().zip(&callee.results) {
                    match (*formal, *actual) {
                        (Formal::Memory { offset, size }, Actual::Memory { offset: to, size: to_size }) => {
                            self.copy_local(lane, from_local * 8 + offset, to_local * 8 + to, size.min(to_size));
                        }
                        (formal, actual) => {
                            let value = match formal {
                                Formal::Register { row, .. } => self.registers[from_frame + row as usize][lane],
                                Formal::Memory { offset, .. } => self.local[(from_local + offset / 8) as usize][lane],
                            };
                            match actual {
                                Actual::Register(row) if row != SINK => {
                                    self.registers[to_frame + row as usize][lane] = value;
                                }
                                Actual::Memory { offset, size } => {
                                    self.put_local(lane, to_local * 8 + offset, value, size.min(8));
                                }
                                _ => {}
                            }
                        }
                    }
                }
            }
            self.pc[lane] = caller.pc;
            self.frame[lane] = caller.frame;
            self.local_frame[lane] = caller.local;
            self.function[lane] = caller.function;
        }
    }

    /// Copies bytes between words of local memory, whether or not they were written. Both positions are word-aligned.
    fn copy_local(&mut self, lane: usize, from: u32, to: u32, bytes: u32) {
        for at in (0..bytes).step_by(8) {
            let (from, to) = ((from + at) as usize / 8, (to + at) as usize / 8);
            let part = (bytes - at).min(8);
            let keep = if part == 8 { u64::MAX } else { (1 << (part * 8)) - 1 };
            let flags = if part == 8 { u8::MAX } else { (1 << part) - 1 };
            self.local[to][lane] = self.local[from][lane] & keep | self.local[to][lane] & !keep;
            self.local_written[to][lane] =
                self.local_written[from][lane] & flags | self.local_written[to][lane] & !flags;
        }
    }

    /// Writes up to 8 bytes to a word of local memory.
    fn put_local(&mut self, lane: usize, at: u32, value: u64, bytes: u32) {
        let word = at as usize / 8;
        let keep = if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        self.local[word][lane] = value & keep | self.local[word][lane] & !keep;
        self.local_written[word][lane] |= if bytes == 8 { u8::MAX } else { (1 << bytes) - 1 };
    }
}
