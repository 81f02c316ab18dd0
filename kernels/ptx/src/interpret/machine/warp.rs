//! One warp: 32 lanes that run together while they are at one instruction.
//!
//!   pc   7 7 7 9 9 7 …   ──►  the lanes at 7 run until they reach 9 and join the others
//!
//! Convergence  the deepest call runs first, and in it the lowest instruction: lanes ahead wait for lanes behind.
//! Progress     after some instructions of divergence the longest-waiting lane runs: a lane that spins on a lock does
//!              not keep another lane from releasing it.
//! Begin        initial registers and local memory are described in `leftover`.
//! Frames       a call moves the lane's frame up by the caller's rows; lanes in different frames run separately.

use super::{FaultKind, Machine, Trouble, block::Common, leftover::Leftovers};
use crate::interpret::alu::Row;
use crate::interpret::op::{Barrier, NO_GUARD, Op, Special, Step};
use crate::interpret::order::{BLOCK_NUMBER, LaneViews, Observer};

/// Instructions of divergence before the longest-waiting lane runs, and the length of its run. The first is short if
/// nothing changed in the meantime: the running lanes may be waiting for that lane.
const PATIENCE: u32 = 2048;
const IDLE_PATIENCE: u32 = 32;
const BURST: u32 = 128;

/// Reason why a warp stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its turn is over, or no lane is ready.
    Over,
    /// It executed a yield.
    Yielded,
    /// The turn of its block ends after a strong access.
    Cut,
}

/// Return state of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub pc: u32,
    pub frame: u32,
    pub local: u32,
    pub function: u32,
}

pub(super) struct Warp {
    pub index: u32,
    /// Lanes that exist in the block.
    present: u32,
    /// Lanes that have not exited.
    pub live: u32,
    /// Live lanes that are not waiting.
    pub ready: u32,
    /// Lanes that wait for lanes of the warp (`bar.warp.sync`, `shfl.sync`, …), and their masks.
    pub converging: u32,
    pub convergence: [u32; 32],
    pub registers: Vec<Row>,
    pub local: Vec<Row>,
    /// One bit per byte of a word.
    pub local_written: Vec<[u8; 32]>,
    pub pc: [u32; 32],
    /// First row, and first word of local memory, of the lane's frame.
    pub frame: [u32; 32],
    pub local_frame: [u32; 32],
    pub function: [u32; 32],
    pub callers: [Vec<Caller>; 32],
    /// Clock up to which all lanes know of one another (see `order`).
    pub sync: u32,
    pub views: Option<Box<LaneViews>>,
    patience: u32,
    /// The machine's `changed_at` when the running lanes were last switched.
    changed_at: u64,
    /// Whether its last turn changed nothing.
    pub idle: bool,
    /// Plain loads from global memory since the last strong read.
    pub reads: u32,
    /// The longest-waiting lane, while it has its turn.
    favourite: Option<u32>,
    last_run: [u64; 32],
}

/// Lanes that run together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub mask: u32,
    pub pc: u32,
    pub frame: usize,
    /// Lowest instruction at which lanes of this frame wait to be joined.
    limit: u32,
}

impl Warp {
    pub fn new(machine: &Machine<'_>, index: u32, threads: u32) -> Warp {
        let lanes = (threads - index * 32).min(32);
        let function = &machine.grid.image.functions[machine.grid.kernel.function as usize];
        Warp {
            index,
            present: u32::MAX >> (32 - lanes),
            live: 0,
            ready: 0,
            converging: 0,
            convergence: [0; 32],
            registers: vec![[0; 32]; function.rows as usize],
            local: vec![[0; 32]; function.local_words as usize],
            local_written: vec![[0; 32]; function.local_words as usize],
            pc: [0; 32],
            frame: [0; 32],
            local_frame: [0; 32],
            function: [0; 32],
            callers: std::array::from_fn(|_| Vec::new()),
            sync: 0,
            views: None,
            patience: IDLE_PATIENCE,
            changed_at: 0,
            idle: false,
            reads: 0,
            favourite: None,
            last_run: [0; 32],
        }
    }

    pub fn restart(&mut self, machine: &Machine<'_>, block: u32) {
        let kernel = machine.grid.kernel.function;
        self.live = self.present;
        self.ready = self.present;
        self.converging = 0;
        let mut leftovers = Leftovers::of(machine, u64::from(block) << 5 | u64::from(self.index));
        leftovers.in_registers(&mut self.registers, &machine.grid.image.functions[kernel as usize], self.present);
        leftovers.in_memory(&mut self.local, self.present);
        self.local_written.fill([0; 32]);
        self.pc = [machine.grid.image.functions[kernel as usize].entry; 32];
        self.frame = [0; 32];
        self.local_frame = [0; 32];
        self.function = [kernel; 32];
        self.callers.iter_mut().for_each(Vec::clear);
        self.sync = 0;
        self.views = None;
        self.patience = IDLE_PATIENCE;
        self.changed_at = 0;
        self.idle = false;
        self.reads = 0;
        self.favourite = None;
        self.last_run = [0; 32];
    }

    /// The barrier of a step.
    pub fn barrier_at<'i>(&self, step: &'i Step) -> Option<&'i Barrier> {
        match &step.op {
            Op::Barrier(barrier) => Some(barrier),
            _ => None,
        }
    }

    /// Selects the lanes to run.
    fn select(&mut self, machine: &mut Machine<'_>) -> Group {
        let ready = self.ready;
        let first = ready.trailing_zeros() as usize;
        let (pc, frame) = (self.pc[first], self.frame[first]);
        let mut same = 0;
        for lane in 0..32 {
            same |= u32::from(self.pc[lane] == pc && self.frame[lane] == frame) << lane;
        }
        if ready & !same == 0 {
            self.favourite = None;
            return Group { mask: ready, pc, frame: frame as usize, limit: u32::MAX };
        }
        let lanes = || (0..32usize).filter(move |lane| ready >> lane & 1 == 1);
        if self.patience == 0 {
            let (patience, burst) = match machine.random.on {
                true => (machine.random.span(8) as u32, machine.random.span(7) as u32),
                false if self.changed_at == machine.changed_at => (IDLE_PATIENCE, BURST),
                false => (PATIENCE, BURST),
            };
            self.changed_at = machine.changed_at;
            if self.favourite.is_some() {
                self.favourite = None;
                self.patience = patience;
            } else {
                self.favourite = lanes().min_by_key(|&lane| self.last_run[lane]).map(|lane| lane as u32);
                self.patience = burst;
            }
        }
        let leader = match self.favourite {
            Some(lane) if ready >> lane & 1 == 1 => lane as usize,
            _ => lanes()
                .min_by_key(|&lane| (usize::MAX - self.callers[lane].len(), self.pc[lane], self.frame[lane]))
                .unwrap_or(first),
        };
        let (pc, frame) = (self.pc[leader], self.frame[leader]);
        let (mut mask, mut limit) = (0, u32::MAX);
        for lane in lanes().filter(|&lane| self.frame[lane] == frame) {
            if self.pc[lane] == pc {
                mask |= 1 << lane;
                self.last_run[lane] = machine.warp_instructions + 1;
            } else if self.pc[lane] > pc {
                limit = limit.min(self.pc[lane]);
            }
        }
        Group { mask, pc, frame: frame as usize, limit }
    }

    /// Runs until `budget` instructions are executed, no lane is ready, or the warp yields.
    pub fn run(
        &mut self,
        machine: &mut Machine<'_>,
        common: &mut Common,
        budget: u64,
    ) -> Result<Outcome, Box<Trouble>> {
        let end = machine.warp_instructions + budget;
        let image = machine.grid.image;
        'groups: while self.ready != 0 {
            let mut group = self.select(machine);
            let diverged = group.mask != self.ready;
            loop {
                if machine.warp_instructions >= end {
                    self.park(group);
                    return Ok(Outcome::Over);
                }
                if diverged {
                    if self.patience == 0 {
                        self.park(group);
                        continue 'groups;
                    }
                    self.patience -= 1;
                }
                let step = &image.steps[group.pc as usize];
                let active = self.active(group, step);
                machine.warp_instructions += 1;
                machine.lane_instructions += u64::from(active.count_ones());
                match &step.op {
                    Op::Alu(op) => {
                        if active != 0 {
                            op.apply(&mut self.registers[group.frame..], &machine.grid.constants, active);
                        }
                        group.pc += 1;
                    }
                    Op::Branch { target } => {
                        if active == group.mask {
                            group.pc = *target;
                            if diverged {
                                self.park(group);
                                continue 'groups;
                            }
                            continue;
                        }
                        if active != 0 {
                            self.set_pc(active, *target);
                            self.set_pc(group.mask & !active, group.pc + 1);
                            continue 'groups;
                        }
                        group.pc += 1;
                    }
                    Op::Load(access) => {
                        if active != 0 {
                            self.set_pc(group.mask, group.pc);
                            machine.load(common, self, access, group, active)?;
                        }
                        group.pc += 1;
                        if std::mem::take(&mut machine.cut) {
                            self.park(group);
                            return Ok(Outcome::Cut);
                        }
                    }
                    Op::Store(access) => {
                        if active != 0 {
                            self.set_pc(group.mask, group.pc);
                            machine.store(common, self, access, group, active)?;
                        }
                        group.pc += 1;
                        if std::mem::take(&mut machine.cut) {
                            self.park(group);
                            return Ok(Outcome::Cut);
                        }
                    }
                    Op::Nothing => group.pc += 1,
                    _ if active == 0 => group.pc += 1,
                    other => {
                        // Other operations may diverge, block or end lanes: write back their program counters first.
                        self.set_pc(group.mask, group.pc);
                        let outcome = self.special(machine, common, other, group, active)?;
                        match outcome {
                            Flow::Next => group.pc += 1,
                            Flow::Moved => continue 'groups,
                            Flow::Yield | Flow::Cut => {
                                group.pc += 1;
                                self.park(group);
                                return Ok(if outcome == Flow::Cut { Outcome::Cut } else { Outcome::Yielded });
                            }
                        }
                    }
                }
                if group.pc == group.limit {
                    self.park(group);
                    continue 'groups;
                }
            }
        }
        Ok(Outcome::Over)
    }

    /// Lanes of the group for which the step's guard is true.
    #[inline]
    fn active(&self, group: Group, step: &Step) -> u32 {
        match step.guard {
            NO_GUARD => group.mask,
            guard => group.mask & lanes_true(&self.registers[group.frame + (guard >> 1) as usize], guard & 1 == 1),
        }
    }

    fn park(&mut self, group: Group) {
        self.set_pc(group.mask, group.pc);
    }

    #[inline]
    pub fn set_pc(&mut self, mask: u32, pc: u32) {
        if mask == u32::MAX {
            self.pc = [pc; 32];
            return;
        }
        for lane in 0..32 {
            if mask >> lane & 1 == 1 {
                self.pc[lane] = pc;
            }
        }
    }

    fn special(
        &mut self,
        machine: &mut Machine<'_>,
        common: &mut Common,
        op: &Op,
        group: Group,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        let rest = group.mask & !active;
        match op {
            Op::Atomic(atomic) => {
                machine.atomic(common, self, atomic, group, active)?;
                if std::mem::take(&mut machine.cut) {
                    return Ok(Flow::Cut);
                }
            }
            Op::Fence { scope, sequential } => machine.fence(common, self, (*scope, *sequential), active)?,
            Op::Move { to, from } => {
                let row = *from.row(&self.registers[group.frame..], &machine.grid.constants);
                blend(&mut self.registers[group.frame + *to as usize], &row, active);
            }
            Op::LocalAddress { to, offset } => {
                let local = self.local_frame;
                let row = std::array::from_fn(|lane| u64::from(local[lane]) * 8 + u64::from(*offset));
                blend(&mut self.registers[group.frame + *to as usize], &row, active);
            }
            Op::Special { to, what } => {
                let row = self.special_register(machine, common, *what);
                blend(&mut self.registers[group.frame + *to as usize], &row, active);
            }
            Op::Convert { to, from, space, to_generic } => {
                let row = from.row(&self.registers[group.frame..], &machine.grid.constants);
                let window = super::memory::window(*space);
                let row = row.map(|v| if *to_generic { v.wrapping_add(window) } else { v.wrapping_sub(window) });
                blend(&mut self.registers[group.frame + *to as usize], &row, active);
            }
            Op::IsSpace { to, from, space } => {
                let row = from.row(&self.registers[group.frame..], &machine.grid.constants);
                let row = row.map(|address| u64::from(super::memory::is_in(address, *space)));
                blend(&mut self.registers[group.frame + *to as usize], &row, active);
            }
            Op::BranchIndexed { index, targets } => {
                let row = *index.row(&self.registers[group.frame..], &machine.grid.constants);
                self.set_pc(rest, group.pc + 1);
                for lane in lanes_of(active) {
                    let at = row[lane] as u32 as usize;
                    let Some(&target) = targets.get(at) else {
                        let message = format!("index {at} of a branch with {} targets", targets.len());
                        return Err(Trouble::new(FaultKind::Call, lane as u32, message));
                    };
                    self.pc[lane] = target;
                }
                return Ok(Flow::Moved);
            }
            Op::Call(site) => {
                self.set_pc(rest, group.pc + 1);
                self.call(machine, site, group, active)?;
                return Ok(Flow::Moved);
            }
            Op::Return => {
                self.set_pc(rest, group.pc + 1);
                self.ret(machine, active);
                return Ok(Flow::Moved);
            }
            Op::Exit => {
                self.set_pc(rest, group.pc + 1);
                self.live &= !active;
                self.ready &= !active;
                common.arrival = true;
                machine.progress();
                self.converge(machine, common)?;
                return Ok(Flow::Moved);
            }
            Op::Trap { what } => {
                return Err(Trouble::new(FaultKind::Trap, active.trailing_zeros(), *what));
            }
            Op::Barrier(barrier) => {
                self.set_pc(rest, group.pc + 1);
                self.barrier(machine, common, barrier, group, active)?;
                return Ok(Flow::Moved);
            }
            Op::WarpBarrier { .. } | Op::Vote(_) | Op::Match(_) | Op::Reduce(_) | Op::Shuffle(_) => {
                let row = *mask_of(op).row(&self.registers[group.frame..], &machine.grid.constants);
                return self.meet(machine, common, op, row, group, active);
            }
            Op::ActiveMask { to } => {
                blend(&mut self.registers[group.frame + *to as usize], &[u64::from(active); 32], active);
            }
            Op::Yield => return Ok(Flow::Yield),
            Op::Alu(_) | Op::Branch { .. } | Op::Load(_) | Op::Store(_) | Op::Nothing => {}
        }
        Ok(Flow::Next)
    }

    fn barrier(
        &mut self,
        machine: &mut Machine<'_>,
        common: &mut Common,
        barrier: &Barrier,
        group: Group,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let rows = &self.registers[group.frame..];
        let ids = barrier.id.row(rows, &machine.grid.constants);
        let counts = barrier.count.map(|count| count.row(rows, &machine.grid.constants));
        let truths = match barrier.reduce {
            Some((_, predicate, negated, _)) => lanes_true(predicate.row(rows, &machine.grid.constants), negated),
            None => 0,
        };
        let mut pending = active;
        while pending != 0 {
            let first = pending.trailing_zeros() as usize;
            let key = |lane: usize| (ids[lane] as u32, counts.map(|counts| counts[lane] as u32));
            let same = lanes_of(pending).filter(|&lane| key(lane) == key(first)).fold(0, |mask, lane| mask | 1 << lane);
            let count = counts.map(|counts| u64::from(counts[first] as u32));
            common.arrive(self.index, same, (u64::from(ids[first] as u32), count), barrier, truths & same)?;
            pending &= !same;
        }
        if barrier.waits {
            self.ready &= !active;
        } else {
            // Threads that wait at the barrier synchronize with earlier accesses only.
            common.tick();
            self.set_pc(active, group.pc + 1);
        }
        Ok(())
    }

    pub fn observer<'w>(index: u32, sync: u32, views: &'w Option<Box<LaneViews>>, common: &Common) -> Observer<'w> {
        Observer {
            block: common.number & BLOCK_NUMBER,
            warp: index,
            clock: common.clock,
            full: common.full,
            sync,
            views: views.as_deref(),
            launch: common.launch,
        }
    }

    fn special_register(&self, machine: &Machine<'_>, common: &Common, what: Special) -> Row {
        let launch = &machine.grid.launch;
        let all = |value: u64| [value; 32];
        let lanes = |f: &dyn Fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
        let clock = machine.warp_instructions;
        match what {
            Special::Thread(axis) => {
                lanes(&|lane| machine.grid.thread_coordinates(self.index * 32 + lane)[axis as usize])
            }
            Special::Threads(axis) => all(u64::from(launch.block[axis as usize])),
            Special::Block(axis) => all(u64::from(common.coordinates[axis as usize])),
            Special::Blocks(axis) => all(u64::from(launch.grid[axis as usize])),
            Special::Lane => lanes(&|lane| lane),
            Special::Warp => all(u64::from(self.index)),
            Special::Warps => all(u64::from(common.threads.div_ceil(32))),
            Special::LanesEqual => lanes(&|lane| 1 << lane),
            Special::LanesLess => lanes(&|lane| (1 << lane) - 1),
            Special::LanesLessOrEqual => lanes(&|lane| u32::MAX >> (31 - lane)),
            Special::LanesGreater => lanes(&|lane| u32::MAX << lane << 1),
            Special::LanesGreaterOrEqual => lanes(&|lane| u32::MAX << lane),
            Special::Multiprocessor => all(u64::from(common.number % machine.options.multiprocessors.max(1))),
            Special::Multiprocessors => all(u64::from(machine.options.multiprocessors.max(1))),
            Special::Grid | Special::Zero => all(0),
            Special::Clock => all(clock & 0xFFFF_FFFF),
            Special::ClockHigh => all(clock >> 32),
            Special::Clock64 | Special::Nanoseconds => all(clock),
            Special::DynamicShared => all(u64::from(launch.dynamic_shared_bytes)),
            Special::TotalShared => all(u64::from(machine.grid.shared_bytes)),
        }
    }
}

/// Next position of a group's lanes after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    /// The program counters are already written.
    Moved,
    Yield,
    /// The turn must end.
    Cut,
}

/// The source of the lane mask of a collective instruction.
pub(super) fn mask_of(op: &Op) -> &crate::interpret::alu::Source {
    match op {
        Op::WarpBarrier { mask } => mask,
        Op::Vote(vote) => &vote.mask,
        Op::Match(matching) => &matching.mask,
        Op::Reduce(reduce) => &reduce.mask,
        Op::Shuffle(shuffle) => &shuffle.mask,
        _ => unreachable!("only instructions with a lane mask have one"),
    }
}

/// The lanes of a mask, lowest first.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane as usize)
    })
}

/// The lanes whose predicate is true.
#[inline]
pub(super) fn lanes_true(row: &Row, negated: bool) -> u32 {
    let mut mask = 0;
    for (lane, &value) in row.iter().enumerate() {
        mask |= ((value & 1) as u32) << lane;
    }
    if negated { !mask } else { mask }
}

/// Copies the lanes of `mask` from `new`.
#[inline]
pub(super) fn blend(row: &mut Row, new: &Row, mask: u32) {
    if mask == u32::MAX {
        *row = *new;
        return;
    }
    for lane in 0..32 {
        if mask >> lane & 1 == 1 {
            row[lane] = new[lane];
        }
    }
}
