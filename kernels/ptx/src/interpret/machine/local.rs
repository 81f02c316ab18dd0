//! Memory private to threads: local memory; and the kernel's parameters.
//!
//!   word   0 │ lane 0 … lane 31 │      local memory is rows of words: one position in all lanes is contiguous
//!          1 │ lane 0 … lane 31 │      eight flags per word mark written bytes
//!
//! Frames  addresses are relative to the thread's first word, or with `frame` to the running function's frame.

use super::memory::{destination, destinations, extend, get};
use super::region::{Doing, misaligned};
use super::warp::{Group, Warp, blend, lanes_of};
use super::{FaultKind, Machine, Trouble};
use crate::interpret::alu::Row;
use crate::interpret::op::Access;

impl Machine<'_> {
    pub(super) fn load_param(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let params = self.grid.launch.params;
        let (size, unit) = (usize::from(access.size), u64::from(access.size) * u64::from(access.count));
        let first = mask.trailing_zeros() as usize;
        let uniform = lanes_of(mask).all(|lane| addresses[lane] == addresses[first]);
        for lane in lanes_of(mask) {
            let address = addresses[lane];
            if address > params.len() as u64 || unit > params.len() as u64 - address {
                let message = format!("reading {unit} bytes at {address} of {} bytes of parameters", params.len());
                return Err(Trouble::new(FaultKind::OutOfBounds, lane as u32, message));
            }
            if !address.is_multiple_of(unit) {
                return Err(misaligned(address, unit, lane as u32, Doing::Read, None));
            }
            for (number, to) in destinations(access) {
                let mut value = get(params, address as usize + number * size, size);
                if access.extend != 0 {
                    value = extend(value, access.size, access.extend);
                }
                let row = &mut warp.registers[group.frame + to];
                if uniform {
                    blend(row, &[value; 32], mask);
                } else {
                    row[lane] = value;
                }
            }
            if uniform {
                break;
            }
        }
        Ok(())
    }

    /// Word index and shift of a local memory access.
    fn local_place(
        &self,
        warp: &Warp,
        address: u64,
        unit: u64,
        lane: usize,
        frame: bool,
        doing: Doing,
    ) -> Result<u64, Box<Trouble>> {
        let start = if frame { u64::from(warp.local_frame[lane]) * 8 } else { 0 };
        let words = self.grid.image.functions[warp.function[lane] as usize].local_words;
        let end = u64::from(warp.local_frame[lane] + words) * 8;
        let at = address.wrapping_add(start);
        if at > end || unit > end - at {
            let message =
                format!("{} {unit} bytes at {address:#x} of local memory, which has {end} bytes here", doing.word());
            let mut trouble = Trouble::new(FaultKind::OutOfBounds, lane as u32, message);
            trouble.address = Some(address);
            return Err(trouble);
        }
        if !at.is_multiple_of(unit) {
            return Err(misaligned(at, unit, lane as u32, doing, None));
        }
        Ok(at)
    }

    pub(super) fn load_local(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        frame: bool,
    ) -> Result<(), Box<Trouble>> {
        let (size, unit) = (u64::from(access.size), u64::from(access.size) * u64::from(access.count));
        for lane in lanes_of(mask) {
            let at = self.local_place(warp, addresses[lane], unit, lane, frame, Doing::Read)?;
            for number in 0..u64::from(access.count) {
                let at = at + number * size;
                let (word, byte) = ((at / 8) as usize, (at % 8) as u32);
                let flags = ((1_u16 << size) - 1) as u8;
                if self.options.checks.initialised && warp.local_written[word][lane] >> byte & flags != flags {
                    let message = format!("reading {size} bytes at {at:#x} of local memory, which nothing wrote");
                    let mut trouble = Trouble::new(FaultKind::Uninitialised, lane as u32, message);
                    trouble.address = Some(at);
                    return Err(trouble);
                }
                let Some(to) = destination(access, number as usize) else { continue };
                let mut value = warp.local[word][lane] >> (byte * 8) & (u64::MAX >> (64 - size * 8));
                if access.extend != 0 {
                    value = extend(value, access.size, access.extend);
                }
                warp.registers[group.frame + to][lane] = value;
            }
        }
        Ok(())
    }

    pub(super) fn store_local(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        frame: bool,
    ) -> Result<(), Box<Trouble>> {
        let (size, unit) = (u64::from(access.size), u64::from(access.size) * u64::from(access.count));
        for lane in lanes_of(mask) {
            let at = self.local_place(warp, addresses[lane], unit, lane, frame, Doing::Write)?;
            for number in 0..u64::from(access.count) {
                let at = at + number * size;
                let (word, byte) = ((at / 8) as usize, (at % 8) as u32);
                let value =
                    access.values[number as usize].row(&warp.registers[group.frame..], &self.grid.constants)[lane];
                let keep = (u64::MAX >> (64 - size * 8)) << (byte * 8);
                let old = warp.local[word][lane];
                warp.local[word][lane] = old & !keep | value << (byte * 8) & keep;
                warp.local_written[word][lane] |= (((1_u16 << size) - 1) as u8) << byte;
            }
        }
        Ok(())
    }
}
