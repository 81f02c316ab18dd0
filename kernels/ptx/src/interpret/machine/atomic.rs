//! Read-modify-writes, one lane at a time: in lane order, or in random order with a seed.
//!
//!   atom.add.u32 %r1, [%rd1], 1;     memory 7   ─►   lane 0 reads 7, lane 1 reads 8, …   memory 39
//!
//! Floats    `.f32` rounds to nearest even; subnormal inputs and results become zero in global memory, not in shared
//!           memory. A NaN of `.f32` and of 16-bit floats is the canonical one. `.f64` keeps a NaN: in global memory
//!           the operand unchanged, else the old value; in shared memory the old value made quiet, else the operand. A
//!           NaN from numbers is 0xfff8….
//! Order     relaxed unless the instruction specifies another.

use super::block::Common;
use super::memory::{get, put};
use super::region::{Doing, misaligned};
use super::strong::key;
use super::warp::{Group, Warp};
use super::{FaultKind, Machine, Trouble};
use crate::interpret::history::{Held, Place};
use crate::interpret::op::{Atomic, AtomicKind, MemorySpace, SINK, Scope};

impl Machine<'_> {
    pub(super) fn atomic(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        atomic: &Atomic,
        group: Group,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let mut addresses = self.addresses(warp, group, atomic.base, atomic.offset, atomic.narrow);
        let shared = match atomic.space {
            MemorySpace::Shared => mask,
            MemorySpace::Generic => {
                let parts = Machine::split(&mut addresses, mask);
                let other = parts[2].1 | parts[3].1;
                if other != 0 {
                    let lane = other.trailing_zeros();
                    return Err(Trouble::new(FaultKind::ReadOnly, lane, "an atomic on local or parameter memory"));
                }
                parts[1].1
            }
            _ => 0,
        };
        let coordinates = self.coordinates();
        let size = usize::from(atomic.size);
        let scope = atomic.strength.scope.unwrap_or(Scope::Device);
        let operands = *atomic.operand.row(&warp.registers[group.frame..], &self.grid.constants);
        let seconds = *atomic.second.row(&warp.registers[group.frame..], &self.grid.constants);
        let mut changed = false;
        for lane in self.in_some_order(mask) {
            let in_shared = shared >> lane & 1 == 1;
            let address = addresses[lane];
            let number = common.number;
            if !address.is_multiple_of(size as u64) {
                return Err(misaligned(address, size as u64, lane as u32, Doing::Update, self.heap.find(address)));
            }
            let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
            let (old, new, writer) = {
                let mut region = if in_shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, size as u64, lane as u32, Doing::Update)?
                };
                let offset = region.check(address, size as u64, size as u64, lane as u32, Doing::Update)?;
                region.check_written(offset, size, size as u64, lane as u32, size as u64)?;
                let place = (offset, size, lane as u32);
                let writer = region.touch_strong(&coordinates, place, (true, true), scope, &observer)?;
                let old = get(region.bytes, offset, size);
                let new = apply(atomic.kind, size, old, operands[lane], seconds[lane], in_shared);
                put(region.bytes, offset, size, new);
                (old, new, writer)
            };
            changed |= old != get(&new.to_le_bytes(), 0, size);
            let key = key(in_shared, number, address);
            self.take_message(warp, key, number, lane, atomic.strength.acquire);
            let failed =
                atomic.kind == AtomicKind::CompareSwap && old != operands[lane] & (u64::MAX >> (64 - size * 8));
            if self.is_weak(in_shared, scope) {
                let (place, before) = (Place { address, bytes: size }, Held { bits: old, writer });
                if failed {
                    let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
                    self.histories.saw_newest(place, &before, &observer);
                } else {
                    self.keep_older(common, warp, lane, place, Some(before), new);
                }
            }
            if !failed {
                self.leave_message(common, warp, key, lane, atomic.strength, true);
            }
            if atomic.to != SINK {
                warp.registers[group.frame + atomic.to as usize][lane] = old;
            }
        }
        if atomic.strength.release {
            common.tick();
        }
        if changed {
            self.progress();
        }
        if shared != mask {
            self.may_cut();
        }
        Ok(())
    }
}

/// Computes the new value.
pub(super) fn apply(kind: AtomicKind, size: usize, old: u64, operand: u64, second: u64, shared: bool) -> u64 {
    let bits = 64 - size * 8;
    let mask = u64::MAX >> bits;
    let (old, b) = (old & mask, operand & mask);
    let signed = |value: u64| (value << bits) as i64;
    match kind {
        AtomicKind::Exchange => b,
        AtomicKind::CompareSwap => {
            if old == b {
                second & mask
            } else {
                old
            }
        }
        AtomicKind::Add => old.wrapping_add(b) & mask,
        AtomicKind::MinSigned => {
            if signed(b) < signed(old) {
                b
            } else {
                old
            }
        }
        AtomicKind::MaxSigned => {
            if signed(b) > signed(old) {
                b
            } else {
                old
            }
        }
        AtomicKind::MinUnsigned => old.min(b),
        AtomicKind::MaxUnsigned => old.max(b),
        AtomicKind::And => old & b,
        AtomicKind::Or => old | b,
        AtomicKind::Xor => old ^ b,
        AtomicKind::Increment => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicKind::Decrement => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomicKind::AddF32 => u64::from(add_f32(old as u32, b as u32, !shared)),
        AtomicKind::AddF64 => add_f64(old, b, shared),
        AtomicKind::AddF16 => u64::from(add_f16(old as u16, b as u16)),
        AtomicKind::AddF16x2 => {
            u64::from(add_f16(old as u16, b as u16)) | u64::from(add_f16((old >> 16) as u16, (b >> 16) as u16)) << 16
        }
        AtomicKind::AddBf16 => u64::from(add_bf16(old as u16, b as u16)),
        AtomicKind::AddBf16x2 => {
            u64::from(add_bf16(old as u16, b as u16)) | u64::from(add_bf16((old >> 16) as u16, (b >> 16) as u16)) << 16
        }
    }
}

/// NaN results as measured on an H200: the manual does not specify them.
fn add_f64(old: u64, operand: u64, shared: bool) -> u64 {
    let sum = f64::from_bits(old) + f64::from_bits(operand);
    if !sum.is_nan() {
        return sum.to_bits();
    }
    let nan = |bits: &u64| f64::from_bits(*bits).is_nan();
    let default = 0xFFF8_0000_0000_0000;
    if shared {
        [old, operand].into_iter().find(nan).map_or(default, |bits| bits | 1 << 51)
    } else {
        [operand, old].into_iter().find(nan).unwrap_or(default)
    }
}

fn add_f32(a: u32, b: u32, flush: bool) -> u32 {
    let flushed = |bits: u32| {
        let value = f32::from_bits(bits);
        if flush && value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
    };
    let sum = flushed(a) + flushed(b);
    if sum.is_nan() { 0x7FFF_FFFF } else { flushed(sum.to_bits()).to_bits() }
}

/// Adds two halves: 24 bits of significand hold 2 · 11 + 2, so rounding twice equals rounding once.
fn add_f16(a: u16, b: u16) -> u16 {
    to_f16(from_f16(a) + from_f16(b))
}

fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
    match (exponent, fraction) {
        (31, 0) => f32::from_bits(sign | 0x7F80_0000),
        (31, _) => f32::NAN,
        (0, _) => {
            let value = fraction as f32 / 16_777_216.0;
            f32::from_bits(value.to_bits() | sign)
        }
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

fn to_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7FFF;
    }
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = value.abs();
    if magnitude >= 65_520.0 {
        return sign | 0x7C00;
    }
    if magnitude < 6.103_515_6e-5 {
        // A subnormal is a multiple of 2^-24; the product is exact, and rounds to even.
        return sign | (magnitude * 16_777_216.0).round_ties_even() as u16;
    }
    let exponent = (bits >> 23 & 255) - 112;
    let fraction = bits & 0x7F_FFFF;
    let kept = exponent << 10 | fraction >> 13;
    let lost = fraction & 0x1FFF;
    let up = u32::from(lost > 0x1000 || lost == 0x1000 && kept & 1 == 1);
    sign | (kept + up) as u16
}

fn add_bf16(a: u16, b: u16) -> u16 {
    let sum = f32::from_bits(u32::from(a) << 16) + f32::from_bits(u32::from(b) << 16);
    if sum.is_nan() {
        return 0x7FFF;
    }
    let bits = sum.to_bits();
    let (kept, lost) = (bits >> 16, bits & 0xFFFF);
    (kept + u32::from(lost > 0x8000 || lost == 0x8000 && kept & 1 == 1)) as u16
}
