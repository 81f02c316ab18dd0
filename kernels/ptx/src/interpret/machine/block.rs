//! One block with its warps, shared memory and barriers.
//!
//!   barrier 1   expects 64   ─ arrived: warp 0 all lanes, warp 2 all lanes ─►  complete: both continue, synchronized
//!
//! Exited threads count as arrived. Lanes wait at a barrier individually: other lanes of the warp may arrive later.

use super::warp::{Outcome, Warp};
use super::{FaultKind, Machine, Trouble};
use crate::interpret::Fault;
use crate::interpret::op::{Barrier, BarrierReduction};
use crate::interpret::order::{BLOCK_NUMBER, View, join, lanes_entry, warp_entry};
use crate::interpret::shadow::Shadow;
use std::rc::Rc;

/// Instructions per turn of a warp; fewer if its last turn changed nothing, as in a spin loop.
const WARP_TURN: u64 = 4096;
const IDLE_WARP_TURN: u64 = 128;
/// Instructions without a change after which a block's turn ends, because it may wait for another block.
const PATIENCE: u64 = 16_384;
const IDLE_PATIENCE: u64 = 512;
/// Number of plain reads without a strong read after which a warp counts as busy with its own work, not waiting.
const READS_OF_ITS_OWN: u32 = 256;

/// Result of a turn.
pub(super) enum Turn {
    Finished,
    Over,
}

pub(super) struct Block {
    /// Index of the launch among the machine's launches.
    pub launch: usize,
    pub common: Common,
    pub warps: Vec<Warp>,
    next_warp: usize,
    /// Whether the last turn changed nothing.
    idle: bool,
}

/// State shared by the warps of a block.
pub(super) struct Common {
    /// Number among the blocks of all concurrent launches.
    pub number: u32,
    /// First block and block count of its launch.
    pub launch: (u32, u32),
    pub coordinates: [u32; 3],
    pub threads: u32,
    pub shared: Vec<u8>,
    pub shared_written: Vec<u64>,
    pub shadow: Shadow,
    /// See `order`.
    pub clock: u32,
    pub full: u32,
    pub barriers: [BarrierState; 16],
    /// A thread arrived at a barrier or exited, so the barriers must be checked.
    pub arrival: bool,
}

#[derive(Debug, Default, Clone)]
pub(super) struct BarrierState {
    /// Number of threads to wait for; `None` until a thread arrives, zero for the whole block.
    expected: Option<u32>,
    /// By warp: lanes that wait, and lanes that arrived without waiting.
    waiting: Vec<u32>,
    arrived: Vec<u32>,
    /// By warp: clock of the last arrival without waiting.
    arrived_at: Vec<u32>,
    /// Number of true predicates of a reduction.
    truths: u32,
    reduces: bool,
}

impl BarrierState {
    fn count(&self) -> u32 {
        self.waiting.iter().chain(&self.arrived).map(|mask| mask.count_ones()).sum()
    }

    fn reset(&mut self) {
        self.expected = None;
        self.truths = 0;
        self.reduces = false;
        self.waiting.fill(0);
        self.arrived.fill(0);
    }
}

impl Common {
    pub fn tick(&mut self) {
        self.clock = self.clock.saturating_add(1);
    }

    /// Records the arrival of lanes of a warp at a barrier.
    pub fn arrive(
        &mut self,
        warp: u32,
        mask: u32,
        (id, count): (u64, Option<u64>),
        barrier: &Barrier,
        truths: u32,
    ) -> Result<(), Box<Trouble>> {
        let lane = mask.trailing_zeros();
        let Some(state) = usize::try_from(id).ok().and_then(|id| self.barriers.get_mut(id)) else {
            return Err(Trouble::new(FaultKind::Barrier, lane, format!("barrier {id}; a block has 16")));
        };
        let expected = count.unwrap_or(0);
        if count.is_some() && (expected == 0 || expected % 32 != 0 || expected > 1024) {
            return Err(Trouble::new(
                FaultKind::Barrier,
                lane,
                format!("a barrier for {expected} threads; it must be a multiple of 32 up to 1024"),
            ));
        }
        let expected = expected as u32;
        match state.expected {
            Some(known) if known != expected => {
                return Err(Trouble::new(
                    FaultKind::Barrier,
                    lane,
                    format!("barrier {id} for {expected} threads, while others wait at it for {known} (0: all)"),
                ));
            }
            Some(_) if state.reduces != barrier.reduce.is_some() => {
                return Err(Trouble::new(
                    FaultKind::Barrier,
                    lane,
                    format!("some threads reduce at barrier {id}, others only wait"),
                ));
            }
            _ => {}
        }
        state.expected = Some(expected);
        state.reduces = barrier.reduce.is_some();
        state.truths += truths.count_ones();
        let list = if barrier.waits { &mut state.waiting } else { &mut state.arrived };
        list[warp as usize] |= mask;
        state.arrived_at[warp as usize] = self.clock;
        self.arrival = true;
        if expected != 0 && self.barriers[id as usize].count() > expected {
            return Err(Trouble::new(
                FaultKind::Barrier,
                lane,
                format!("more than {expected} threads arrived at barrier {id}"),
            ));
        }
        Ok(())
    }
}

impl Block {
    pub fn new(machine: &mut Machine<'_>, number: u32) -> Block {
        let threads: u32 = machine.grid.launch.block.iter().product();
        let num_warps = threads.div_ceil(32);
        let bytes = machine.grid.shared_bytes as usize;
        let state = BarrierState {
            waiting: vec![0; num_warps as usize],
            arrived: vec![0; num_warps as usize],
            arrived_at: vec![0; num_warps as usize],
            ..BarrierState::default()
        };
        let shadow_bytes = if machine.options.checks.shared_races { bytes } else { 0 };
        let mut block = Block {
            launch: machine.grid.index,
            common: Common {
                number,
                launch: machine.grid.blocks,
                coordinates: [0; 3],
                threads,
                shared: vec![0; bytes],
                shared_written: vec![0; bytes.div_ceil(64)],
                shadow: Shadow::new(shadow_bytes, true),
                clock: 1,
                full: 0,
                barriers: std::array::from_fn(|_| state.clone()),
                arrival: false,
            },
            warps: (0..num_warps).map(|index| Warp::new(machine, index, threads)).collect(),
            next_warp: 0,
            idle: false,
        };
        block.restart(machine, number);
        block
    }

    /// Resets the block to run as another block of the grid.
    pub fn restart(&mut self, machine: &mut Machine<'_>, number: u32) {
        let common = &mut self.common;
        common.number = number;
        common.coordinates = machine.grid.block_coordinates(number);
        common.shared.fill(0xA5);
        common.shared_written.fill(0);
        common.shadow.clear();
        common.clock = 1;
        common.full = 0;
        common.arrival = false;
        common.barriers.iter_mut().for_each(BarrierState::reset);
        for warp in &mut self.warps {
            warp.restart(machine, number);
        }
        self.next_warp = 0;
        self.idle = false;
    }

    /// Runs the block for about `budget` warp instructions.
    pub fn turn(&mut self, machine: &mut Machine<'_>, budget: u64) -> Result<Turn, Box<Fault>> {
        let start = machine.warp_instructions;
        let end = start + budget;
        let patience = if self.idle { IDLE_PATIENCE * self.warps.len() as u64 } else { PATIENCE };
        loop {
            let mut live = false;
            let mut moved = false;
            let num_warps = self.warps.len();
            for _ in 0..num_warps {
                let index = if machine.random.on {
                    machine.random.below(num_warps as u64) as usize
                } else {
                    self.next_warp = (self.next_warp + 1) % num_warps;
                    (self.next_warp + num_warps - 1) % num_warps
                };
                let warp = &mut self.warps[index];
                live |= warp.live != 0;
                if warp.ready == 0 {
                    continue;
                }
                moved = true;
                let most = if warp.idle { IDLE_WARP_TURN } else { WARP_TURN };
                let turn = if machine.random.on { machine.random.span(11).min(most) } else { most };
                let before = machine.changed_at;
                let outcome = match warp.run(machine, &mut self.common, turn) {
                    Ok(outcome) => outcome,
                    Err(trouble) => return Err(self.fault(machine, index, *trouble)),
                };
                warp.idle = machine.changed_at == before;
                if warp.reads > READS_OF_ITS_OWN {
                    warp.reads = 0;
                    machine.busy_at = machine.warp_instructions;
                }
                if self.common.arrival {
                    self.barriers(machine)?;
                }
                // A block with one yielding warp may wait for another block.
                if outcome == Outcome::Cut || outcome == Outcome::Yielded && num_warps == 1 {
                    return Ok(Turn::Over);
                }
                let now = machine.warp_instructions;
                let idle = now - machine.changed_at.max(start) > patience;
                if now >= end || idle {
                    self.idle = idle;
                    return Ok(if self.warps.iter().any(|warp| warp.live != 0) {
                        Turn::Over
                    } else {
                        self.finish(machine)
                    });
                }
            }
            if moved {
                continue;
            }
            if !live && self.warps.iter().all(|warp| warp.live == 0) {
                return Ok(self.finish(machine));
            }
            if self.warps.iter().all(|warp| warp.ready == 0) && self.warps.iter().any(|warp| warp.live != 0) {
                let message = self.waiters();
                return Err(self.stuck(machine, FaultKind::Deadlock, message));
            }
        }
    }

    fn finish(&mut self, machine: &mut Machine<'_>) -> Turn {
        machine.progress();
        if !machine.messages.is_empty() {
            let tag = memory_tag(self.common.number);
            machine.messages.retain(|&key, _| key >> 32 != tag);
        }
        Turn::Finished
    }

    /// Releases the threads of every complete barrier.
    fn barriers(&mut self, machine: &mut Machine<'_>) -> Result<(), Box<Fault>> {
        self.common.arrival = false;
        let live: u32 = self.warps.iter().map(|warp| warp.live.count_ones()).sum();
        for id in 0..self.common.barriers.len() {
            let state = &self.common.barriers[id];
            let Some(expected) = state.expected else { continue };
            let count = state.count();
            let complete = if expected == 0 { count >= live } else { count >= expected };
            if complete && state.waiting.iter().any(|&mask| mask != 0) {
                self.complete(machine, id)?;
            } else if complete {
                self.common.barriers[id].reset();
            }
        }
        Ok(())
    }

    fn complete(&mut self, machine: &mut Machine<'_>, id: usize) -> Result<(), Box<Fault>> {
        machine.progress();
        let Block { common, warps, .. } = self;
        let state = std::mem::take(&mut common.barriers[id]);
        let (count, truths) = (state.count(), state.truths);
        // `bar.sync` requires whole warps at one instruction.
        for (index, warp) in warps.iter().enumerate() {
            let waiting = state.waiting[index];
            if waiting == 0 {
                continue;
            }
            let first = waiting.trailing_zeros();
            let step = &machine.grid.image.steps[warp.pc[first as usize] as usize];
            if !warp.barrier_at(step).is_some_and(|barrier| barrier.aligned) {
                continue;
            }
            let elsewhere = (0..32).find(|&lane| {
                warp.live >> lane & 1 == 1
                    && (waiting >> lane & 1 == 0 || warp.pc[lane as usize] != warp.pc[first as usize])
            });
            if let Some(lane) = elsewhere {
                let trouble = Trouble::new(
                    FaultKind::Barrier,
                    first,
                    format!(
                        "lane {lane} of the warp is not at this barrier, and `.aligned` (which `bar` always is) needs \
                         all lanes at one instruction; use `barrier` without it, or converge first"
                    ),
                );
                return Err(self.fault(machine, index, *trouble));
            }
        }
        // Knowledge of the threads after the barrier.
        let all = state.arrived.iter().all(|&mask| mask == 0)
            && warps.iter().zip(&state.waiting).all(|(warp, &waiting)| warp.live & !waiting == 0);
        let mut merged = None;
        for (index, warp) in warps.iter().enumerate() {
            let Some(views) = &warp.views else { continue };
            let mask = state.waiting[index] | state.arrived[index];
            for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
                merged = join(&merged, &views.known[lane as usize]);
            }
        }
        if all {
            common.full = common.clock;
        } else {
            let mut entries = Vec::new();
            for (index, warp) in warps.iter().enumerate() {
                let mask = state.waiting[index] | state.arrived[index];
                let block = common.number & BLOCK_NUMBER;
                // A waiting thread has executed nothing since its arrival; a thread that did not wait may have.
                let clock = if state.arrived[index] == 0 { common.clock } else { state.arrived_at[index] };
                if mask != 0 && warp.live & !mask == 0 {
                    entries.push(warp_entry(block, index as u32, clock));
                    continue;
                }
                let lanes = (0..32).filter(|lane| mask >> lane & 1 == 1);
                entries.extend(lanes.map(|lane| lanes_entry(block, index as u32, lane, clock)));
            }
            merged = join(&merged, &Some(Rc::new(View::of(entries))));
        }
        common.tick();
        for (index, warp) in warps.iter_mut().enumerate() {
            let waiting = state.waiting[index];
            if waiting == 0 {
                continue;
            }
            if merged.is_some() {
                let views = warp.views.get_or_insert_default();
                for lane in (0..32).filter(|lane| waiting >> lane & 1 == 1) {
                    views.known[lane as usize] = join(&views.known[lane as usize], &merged);
                }
            }
            for lane in (0..32usize).filter(|lane| waiting >> lane & 1 == 1) {
                let step = &machine.grid.image.steps[warp.pc[lane] as usize];
                if let Some(Barrier { reduce: Some((kind, _, _, to)), .. }) = warp.barrier_at(step) {
                    let value = match kind {
                        BarrierReduction::Count => truths,
                        BarrierReduction::And => u32::from(truths == count),
                        BarrierReduction::Or => u32::from(truths != 0),
                    };
                    warp.registers[(warp.frame[lane] + to) as usize][lane] = u64::from(value);
                }
                warp.pc[lane] += 1;
            }
            warp.ready |= waiting;
        }
        let mut state = state;
        state.reset();
        common.barriers[id] = state;
        Ok(())
    }

    fn waiters(&self) -> String {
        let mut waiting = 0;
        let mut converging = 0;
        for warp in &self.warps {
            converging += warp.converging.count_ones();
            waiting += (warp.live & !warp.ready & !warp.converging).count_ones();
        }
        let live: u32 = self.warps.iter().map(|warp| warp.live.count_ones()).sum();
        format!(
            "of {live} threads of the block that have not exited {waiting} wait at a barrier and {converging} for \
             lanes of their warp, and nobody else can come"
        )
    }

    /// A fault of a thread that cannot continue.
    pub fn stuck(&self, machine: &Machine<'_>, kind: FaultKind, message: String) -> Box<Fault> {
        let index = self.warps.iter().position(|warp| warp.live != 0).unwrap_or(0);
        let lane = self.warps[index].live.trailing_zeros() & 31;
        self.fault(machine, index, *Trouble::new(kind, lane, message))
    }

    fn fault(&self, machine: &Machine<'_>, warp: usize, trouble: Trouble) -> Box<Fault> {
        let pc = self.warps[warp].pc[trouble.lane as usize & 31];
        let (line, instruction) = machine.grid.image.origin(pc);
        Box::new(Fault {
            kind: trouble.kind,
            kernel: machine.grid.kernel.info.name.clone(),
            line,
            instruction,
            block: self.common.coordinates,
            thread: machine.grid.thread_coordinates(warp as u32 * 32 + trouble.lane),
            address: trouble.address,
            allocation: trouble.allocation,
            message: trouble.message,
        })
    }
}

/// Upper half of the message keys of a block's shared memory.
pub(super) fn memory_tag(block: u32) -> u64 {
    // Global addresses are below 2^63, so the top bit distinguishes shared from global memory.
    1 << 31 | u64::from(block & 0x7FFF_FFFF)
}
