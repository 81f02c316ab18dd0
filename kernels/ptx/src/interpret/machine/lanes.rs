//! Collective instructions of a warp: lanes wait until all lanes of the mask arrive, then act together.
//!
//!   shfl.sync.up  b = 1      lane   0 1 2 3 …         lanes without a source lane keep their own value
//!                            value  a b c d …   ─►   a a b c …
//!
//! Waiting   a lane waits at its instruction until every live lane of its mask is at the same instruction
//!           (`bar.warp.sync`: at any with an equal mask).
//! Order     `bar.warp.sync` orders the memory accesses of its lanes; the other instructions do not.
//! Undefined values from non-participating lanes are poison.

use super::block::Common;
use super::warp::{Flow, Group, Warp, blend, lanes_of, lanes_true};
use super::{FaultKind, Machine, Trouble, atomic};
use crate::interpret::alu::Row;
use crate::interpret::op::{Match, Op, Shuffle, ShuffleMode, VoteMode};
use crate::interpret::order::{BLOCK_NUMBER, View, join, lanes_entry};
use std::rc::Rc;

const POISON: u64 = 0xDEAD_BEEF;

impl Warp {
    /// Executes a collective instruction: lanes arrive with their masks.
    pub(super) fn meet(
        &mut self,
        machine: &mut Machine<'_>,
        common: &mut Common,
        op: &Op,
        masks: Row,
        group: Group,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        let first = masks[active.trailing_zeros() as usize] as u32;
        let mut one = true;
        for lane in lanes_of(active) {
            let mask = masks[lane] as u32;
            one &= mask == first;
            if mask >> lane & 1 == 0 {
                let message = format!("lane {lane} executes this with the mask {mask:#010x}, which leaves it out");
                return Err(Trouble::new(FaultKind::Barrier, lane as u32, message));
            }
        }
        if one && first & self.live == active {
            self.act(machine, common, op, group.frame, active);
            return Ok(Flow::Next);
        }
        self.set_pc(group.mask & !active, group.pc + 1);
        self.ready &= !active;
        self.converging |= active;
        for lane in lanes_of(active) {
            self.convergence[lane] = masks[lane] as u32;
        }
        self.converge(machine, common)?;
        Ok(Flow::Moved)
    }

    /// Releases waiting lanes whose partners have all arrived or exited.
    pub(super) fn converge(&mut self, machine: &mut Machine<'_>, common: &mut Common) -> Result<(), Box<Trouble>> {
        let mut seen = 0;
        while self.converging & !seen != 0 {
            let first = (self.converging & !seen).trailing_zeros() as usize;
            let mask = self.convergence[first];
            let image = machine.grid.image;
            let op = &image.steps[self.pc[first] as usize].op;
            let barrier = matches!(op, Op::WarpBarrier { .. });
            let mut here = 0;
            for lane in lanes_of(self.converging & mask) {
                let same_place = self.pc[lane] == self.pc[first] && self.frame[lane] == self.frame[first];
                let both_barriers = barrier && matches!(image.steps[self.pc[lane] as usize].op, Op::WarpBarrier { .. });
                if self.convergence[lane] == mask && (same_place || both_barriers) {
                    here |= 1 << lane;
                }
            }
            seen |= here;
            if mask & self.live & !here == 0 {
                self.act(machine, common, op, self.frame[first] as usize, here);
                for lane in lanes_of(here) {
                    self.pc[lane] += 1;
                }
                self.converging &= !here;
                self.ready |= here;
                machine.progress();
            }
        }
        Ok(())
    }

    /// Executes the instruction for exactly the lanes of `mask`.
    fn act(&mut self, machine: &Machine<'_>, common: &mut Common, op: &Op, frame: usize, mask: u32) {
        let constants = &machine.grid.constants;
        match op {
            Op::WarpBarrier { .. } => self.synchronise(common, mask),
            Op::Shuffle(shuffle) => {
                let rows = &self.registers[frame..];
                let (values, valid) = shuffled(
                    shuffle,
                    shuffle.value.row(rows, constants),
                    shuffle.lane.row(rows, constants),
                    shuffle.clamp.row(rows, constants),
                    mask,
                );
                blend(&mut self.registers[frame + shuffle.to as usize], &values, mask);
                if let Some(row) = self.registers.get_mut(frame.saturating_add(shuffle.valid as usize)) {
                    blend(row, &valid, mask);
                }
            }
            Op::Vote(vote) => {
                let row = vote.predicate.row(&self.registers[frame..], constants);
                let truths = lanes_true(row, vote.negated) & mask;
                let value = match vote.mode {
                    VoteMode::All => u64::from(truths == mask),
                    VoteMode::Any => u64::from(truths != 0),
                    VoteMode::Uniform => u64::from(truths == mask || truths == 0),
                    VoteMode::Ballot => u64::from(truths),
                };
                blend(&mut self.registers[frame + vote.to as usize], &[value; 32], mask);
            }
            Op::Match(matching) => {
                let row = matching.value.row(&self.registers[frame..], constants);
                let (values, valid) = matched(matching, row, mask);
                blend(&mut self.registers[frame + matching.to as usize], &values, mask);
                if let Some(row) = self.registers.get_mut(frame.saturating_add(matching.valid as usize)) {
                    blend(row, &valid, mask);
                }
            }
            Op::Reduce(reduce) => {
                let row = reduce.value.row(&self.registers[frame..], constants);
                let value = lanes_of(mask)
                    .map(|lane| row[lane] & 0xFFFF_FFFF)
                    .reduce(|a, b| atomic::apply(reduce.kind, 4, a, b, 0, true))
                    .unwrap_or(0);
                blend(&mut self.registers[frame + reduce.to as usize], &[value; 32], mask);
            }
            _ => {}
        }
    }

    /// Every lane of `mask` learns the accesses and the knowledge of the others.
    fn synchronise(&mut self, common: &mut Common, mask: u32) {
        let mut merged = None;
        if let Some(views) = &self.views {
            for lane in lanes_of(mask) {
                merged = join(&merged, &views.known[lane]);
            }
        }
        if mask == self.live {
            self.sync = common.clock;
        } else {
            let block = common.number & BLOCK_NUMBER;
            let entries = lanes_of(mask).map(|lane| lanes_entry(block, self.index, lane as u32, common.clock));
            merged = join(&merged, &Some(Rc::new(View::of(entries.collect()))));
        }
        common.tick();
        if merged.is_some() {
            let views = self.views.get_or_insert_default();
            for lane in lanes_of(mask) {
                views.known[lane] = join(&views.known[lane], &merged);
            }
        }
    }
}

/// Values and predicates of `shfl.sync`, computed as in the manual.
fn shuffled(shuffle: &Shuffle, values: &Row, lanes: &Row, clamps: &Row, mask: u32) -> (Row, Row) {
    let (mut out, mut valid) = ([0; 32], [0; 32]);
    for lane in lanes_of(mask) {
        let (b, c) = ((lanes[lane] & 31) as i64, clamps[lane] as u32);
        let (clamp, segment) = (i64::from(c & 31), i64::from(c >> 8 & 31));
        let own = lane as i64;
        let most = own & segment | clamp & !segment;
        let least = own & segment;
        let (source, inside) = match shuffle.mode {
            ShuffleMode::Up => (own - b, own - b >= most),
            ShuffleMode::Down => (own + b, own + b <= most),
            ShuffleMode::Butterfly => (own ^ b, own ^ b <= most),
            ShuffleMode::Index => (least | b & !segment, (least | b & !segment) <= most),
        };
        let source = if inside { source as usize & 31 } else { lane };
        out[lane] = if mask >> source & 1 == 1 { values[source] & 0xFFFF_FFFF } else { POISON };
        valid[lane] = u64::from(inside);
    }
    (out, valid)
}

fn matched(matching: &Match, values: &Row, mask: u32) -> (Row, Row) {
    let (mut out, mut valid) = ([0; 32], [0; 32]);
    let value = |lane: usize| if matching.wide { values[lane] } else { values[lane] & 0xFFFF_FFFF };
    let same = |as_lane: usize| {
        lanes_of(mask).filter(|&lane| value(lane) == value(as_lane)).fold(0_u32, |found, lane| found | 1 << lane)
    };
    for lane in lanes_of(mask) {
        let found = same(lane);
        if matching.all {
            let all = found == mask;
            out[lane] = if all { u64::from(mask) } else { 0 };
            valid[lane] = u64::from(all);
        } else {
            out[lane] = u64::from(found);
        }
    }
    (out, valid)
}
