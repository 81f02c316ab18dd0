//! Runs launches: starts their blocks, schedules turns, and reports faults.
//!
//!   grid   0 1 2 3 4 5 …  ──admit──►  resident blocks  ──a turn each──►  warps  ──►  lanes
//!   grid   0 1 2 …        ──admit──►       ▲                │ not done
//!                                          └────────────────┘
//!
//! Order      without a seed a block runs until it ends or its turn is over, then the next one starts. With a seed the
//!            order of blocks and warps and the length of turns are random; a turn may end right after a strong access.
//! Together   concurrent launches share the device, its memory and the schedule. State of a single launch is in its
//!            `grid`.
//! Progress   only resident blocks get turns, as on a GPU: blocks that fill the device and wait for an unstarted one
//!            wait forever. A launch in which nothing changes is a deadlock.

mod atomic;
mod block;
mod call;
mod grid;
mod lanes;
mod leftover;
mod local;
mod memory;
mod region;
mod strong;
mod warp;

use super::heap::{AllocationInfo, Heap};
use super::history::Histories;
use super::launch::Running;
use super::order::{Messages, View};
use super::random::Random;
use super::shadow::Shadow;
use super::{Fault, FaultKind, Options, Report};
use block::{Block, Turn};
use grid::{DEVICE, Grid};
use std::rc::Rc;

/// Windows of the generic address space below [`Heap::LOWEST`].
pub(super) const SHARED_WINDOW: u64 = 0x0100_0000;
pub(super) const LOCAL_WINDOW: u64 = 0x0200_0000;
pub(super) const PARAM_WINDOW: u64 = 0x0400_0000;
pub(super) const WINDOWS_END: u64 = 0x0500_0000;

/// Maximum length of a block's turn, in warp instructions.
const LONG_TURN: u64 = 1 << 20;
/// One in this number of strong accesses ends a turn; 0 for none. A seed selects an entry.
const ODDS_OF_CUTS: [u64; 4] = [0, 64, 8, 2];

pub(super) struct Machine<'a> {
    /// The active launch, whose block has its turn; and the concurrent ones.
    grid: Grid<'a>,
    others: Vec<Grid<'a>>,
    pub options: &'a Options,
    pub heap: &'a mut Heap,
    /// Access records of global memory, by slot of the heap.
    pub shadows: Vec<Option<Shadow>>,
    pub messages: Messages,
    /// Older values of global memory; only with a seed and race checks.
    pub histories: Histories,
    /// View that the next `fence.sc` learns.
    pub fenced: Option<Rc<View>>,
    pub random: Random,
    odds_of_cuts: u64,
    /// Whether the turn must end here.
    pub cut: bool,
    pub warp_instructions: u64,
    pub lane_instructions: u64,
    /// Instruction count at the last change that another thread may wait for.
    pub changed_at: u64,
    /// Instruction count when a warp was last seen working without waiting.
    pub busy_at: u64,
}

/// A fault of an instruction; the warp adds thread and location.
#[derive(Debug)]
pub(super) struct Trouble {
    pub kind: FaultKind,
    pub lane: u32,
    pub address: Option<u64>,
    pub allocation: Option<AllocationInfo>,
    pub message: String,
}

impl Trouble {
    pub fn new(kind: FaultKind, lane: u32, message: impl Into<String>) -> Box<Trouble> {
        Box::new(Trouble { kind, lane, address: None, allocation: None, message: message.into() })
    }
}

/// Runs launches concurrently to completion. An error contains the index of its launch.
pub(super) fn run(
    launches: &[Running<'_>],
    heap: &mut Heap,
    options: &Options,
) -> Result<Vec<Report>, (usize, Box<Fault>)> {
    let mut grids = Vec::with_capacity(launches.len());
    let mut first_block: u32 = 0;
    for (index, running) in launches.iter().enumerate() {
        let grid = Grid::new(index, running, first_block, heap, options).map_err(|fault| (index, fault))?;
        first_block = first_block.wrapping_add(grid.blocks.1);
        grids.push(grid);
    }
    let mut grids = grids.into_iter();
    let Some(grid) = grids.next() else { return Ok(Vec::new()) };
    let mut machine = Machine::new(grid, grids.collect(), heap, options);
    machine.go().map_err(|fault| (machine.grid.index, fault))?;
    let Machine { grid, mut others, .. } = machine;
    others.push(grid);
    others.sort_by_key(|grid| grid.index);
    Ok(others.into_iter().map(Grid::report).collect())
}

impl<'a> Machine<'a> {
    fn new(grid: Grid<'a>, others: Vec<Grid<'a>>, heap: &'a mut Heap, options: &'a Options) -> Machine<'a> {
        let mut random = Random::new(options.seed);
        let odds_of_cuts = if random.on { ODDS_OF_CUTS[random.below(ODDS_OF_CUTS.len() as u64) as usize] } else { 0 };
        Machine {
            grid,
            others,
            options,
            shadows: std::iter::repeat_with(|| None).take(heap.num_slots()).collect(),
            heap,
            messages: Messages::default(),
            histories: Histories::default(),
            fenced: None,
            random,
            odds_of_cuts,
            cut: false,
            warp_instructions: 0,
            lane_instructions: 0,
            changed_at: 0,
            busy_at: 0,
        }
    }

    fn go(&mut self) -> Result<(), Box<Fault>> {
        let mut resident: Vec<Block> = Vec::new();
        let mut taken = 0;
        let mut barren = false;
        loop {
            // Without a seed, one block at a time while blocks finish in their turn; otherwise the number of blocks
            // doubles.
            let limit = match self.random.on {
                true => usize::MAX,
                false if barren => resident.len() * 2,
                false => resident.len().max(1),
            };
            while resident.len() < limit
                && let Some(block) = self.admit(&mut taken)
            {
                resident.push(block);
                self.changed_at = self.warp_instructions;
            }
            if resident.is_empty() {
                return Ok(());
            }
            barren = true;
            if self.random.on {
                for last in (1..resident.len()).rev() {
                    let other = self.random.below(last as u64 + 1) as usize;
                    resident.swap(last, other);
                }
            }
            let mut index = 0;
            while index < resident.len() {
                match self.turn(&mut resident[index])? {
                    Turn::Finished => {
                        let block = resident.swap_remove(index);
                        taken -= self.grid.block_takes;
                        self.grid.spare.push(block);
                        barren = false;
                    }
                    Turn::Over => index += 1,
                }
            }
            if let Some(first) = resident.first() {
                self.look_for_deadlock(first, resident.len(), taken)?;
            }
        }
    }

    /// Starts a block if one fits on the device: with a seed from a random launch, else from the first.
    fn admit(&mut self, taken: &mut u64) -> Option<Block> {
        let fitting = (0..=self.others.len()).filter(|&index| self.fits(index, *taken));
        let nth = match fitting.count() {
            0 => return None,
            count if self.random.on && count > 1 => self.random.below(count as u64) as usize,
            _ => 0,
        };
        let index = (0..=self.others.len()).filter(|&index| self.fits(index, *taken)).nth(nth)?;
        self.enter(index);
        *taken += self.grid.block_takes;
        self.next_block()
    }

    /// Whether the launch has an unstarted block that fits on the device.
    fn fits(&self, index: usize, taken: u64) -> bool {
        let grid = self.grids().find(|grid| grid.index == index);
        grid.is_some_and(|grid| grid.num_waiting() > 0 && taken + grid.block_takes <= DEVICE)
    }

    fn turn(&mut self, block: &mut Block) -> Result<Turn, Box<Fault>> {
        self.enter(block.launch);
        let budget = if self.random.on { self.random.span(14) } else { LONG_TURN };
        let before = (self.warp_instructions, self.lane_instructions);
        let turn = block.turn(self, budget)?;
        self.grid.warp_instructions += self.warp_instructions - before.0;
        self.grid.lane_instructions += self.lane_instructions - before.1;
        let most = self.options.max_warp_instructions;
        if self.grid.warp_instructions > most && matches!(turn, Turn::Over) {
            return Err(block.stuck(self, FaultKind::Runaway, format!("more than {most} instructions of warps")));
        }
        Ok(turn)
    }

    fn look_for_deadlock(&mut self, first: &Block, num_resident: usize, taken: u64) -> Result<(), Box<Fault>> {
        let idle = self.options.max_idle_instructions;
        if self.warp_instructions - self.changed_at.max(self.busy_at) <= idle
            || (0..=self.others.len()).any(|index| self.fits(index, taken))
        {
            return Ok(());
        }
        let waiting: usize = self.grids().map(Grid::num_waiting).sum();
        let mut message = format!("{idle} instructions changed nothing: every thread waits for another");
        if waiting > 0 {
            message += &format!(", and {waiting} blocks for one of the {num_resident} that run to end");
        }
        self.enter(first.launch);
        Err(first.stuck(self, FaultKind::Deadlock, message))
    }

    fn grids(&self) -> impl Iterator<Item = &Grid<'a>> {
        std::iter::once(&self.grid).chain(&self.others)
    }

    /// Records a change that another thread may wait for.
    #[inline(always)]
    pub fn progress(&mut self) {
        self.changed_at = self.warp_instructions;
    }

    /// Ends a turn at random after a strong access to global memory, to interleave blocks finely.
    #[inline]
    pub fn may_cut(&mut self) {
        if self.odds_of_cuts > 0 && self.random.below(self.odds_of_cuts) == 0 {
            self.cut = true;
        }
    }
}
