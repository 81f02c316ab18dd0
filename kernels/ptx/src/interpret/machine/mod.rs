//! Runs one launch: admits blocks, lets them take turns, and turns trouble into faults.
//!
//!   grid   0 1 2 3 4 5 …  ──admit──►  resident blocks  ──a turn each──►  warps  ──►  lanes
//!                                          ▲                │ not done
//!                                          └────────────────┘
//!
//! Order      without a seed a block runs as long as it can, and the next starts when one is done or has had its turn. With a
//!            seed the order of blocks, warps and the length of turns are drawn.
//! Progress   every resident block gets turns; while none finishes, more blocks are admitted, so that a block may wait for
//!            any other. A launch in which nothing changes any more is a deadlock.

mod atomic;
mod block;
mod call;
mod lanes;
mod leftover;
mod local;
mod memory;
mod region;
mod strong;
mod warp;

use super::alu::Row;
use super::heap::{AllocationInfo, Heap};
use super::image::{Image, Kernel};
use super::op::Relocation;
use super::order::Messages;
use super::shadow::Shadow;
use super::{Fault, FaultKind, Footprint, Launch, Options, Report};
use block::{Block, Turn};

/// The generic address space below [`Heap::LOWEST`].
pub(super) const SHARED_WINDOW: u64 = 0x0100_0000;
pub(super) const LOCAL_WINDOW: u64 = 0x0200_0000;
pub(super) const PARAM_WINDOW: u64 = 0x0400_0000;
pub(super) const WINDOWS_END: u64 = 0x0500_0000;

/// Blocks that are resident at first, and that are added when none of them finishes.
const RESIDENT: usize = 64;
/// Rounds of turns without a finished block after which more are admitted.
const PATIENT_ROUNDS: u32 = 4;
/// The longest turn of a block, in instructions of its warps.
const LONG_TURN: u64 = 1 << 20;

pub(super) struct Machine<'a> {
    pub image: &'a Image,
    pub kernel: &'a Kernel,
    pub launch: &'a Launch<'a>,
    pub options: &'a Options,
    pub heap: &'a mut Heap,
    pub constants: Vec<Row>,
    pub shared_bytes: u32,
    /// For each step, the allocation it touched last.
    pub hints: Vec<u32>,
    /// By the heap's slots.
    pub tracks: Vec<Track>,
    pub messages: Messages,
    pub random: Random,
    pub warp_instructions: u64,
    pub lane_instructions: u64,
    /// The count of instructions when something last changed that others may wait for.
    pub changed_at: u64,
    /// The same when a warp was last seen to wait for nobody.
    pub busy_at: u64,
}

/// What the launch did to one allocation.
#[derive(Default)]
pub(super) struct Track {
    pub footprint: Option<Box<Footprint>>,
    pub shadow: Option<Shadow>,
}

/// Something went wrong in an instruction; the warp adds who and where.
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

/// A small generator (splitmix64), so that a seed means the same schedule everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
    pub on: bool,
}

impl Random {
    fn new(seed: Option<u64>) -> Random {
        Random { state: seed.unwrap_or(0), on: seed.is_some() }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Mostly short, sometimes long: 1 up to about 2^`most`.
    pub fn span(&mut self, most: u64) -> u64 {
        let bits = self.below(most + 1);
        1 + self.below(1 << bits)
    }
}

fn invalid(launch: &Launch<'_>, message: String) -> Box<Fault> {
    Box::new(Fault {
        kind: FaultKind::InvalidLaunch,
        kernel: launch.kernel.into(),
        line: 0,
        instruction: String::new(),
        block: [0; 3],
        thread: [0; 3],
        address: None,
        allocation: None,
        message,
    })
}

/// Runs the launch to its end.
pub(super) fn run(
    image: &Image,
    launch: &Launch<'_>,
    heap: &mut Heap,
    options: &Options,
) -> Result<Report, Box<Fault>> {
    let mut machine = Machine::new(image, launch, heap, options)?;
    machine.grid()?;
    Ok(machine.report())
}

impl<'a> Machine<'a> {
    fn new(
        image: &'a Image,
        launch: &'a Launch<'a>,
        heap: &'a mut Heap,
        options: &'a Options,
    ) -> Result<Machine<'a>, Box<Fault>> {
        let Some(kernel) = image.kernels.iter().find(|kernel| kernel.info.name == launch.kernel) else {
            let names: Vec<_> = image.infos.iter().map(|info| info.name.as_str()).collect();
            return Err(invalid(launch, format!("no kernel `{}` in this module; it has {names:?}", launch.kernel)));
        };
        let info = &kernel.info;
        let threads: u64 = launch.block.iter().map(|&n| u64::from(n)).product();
        let [x, y, z] = launch.block;
        if threads == 0 || threads > 1024 || x > 1024 || y > 1024 || z > 64 {
            return Err(invalid(launch, format!("a block of {x} × {y} × {z} threads; 1 to 1024 can be run")));
        }
        if let Some(required) = info.required_threads
            && required != launch.block
        {
            return Err(invalid(launch, format!("a block of {x} × {y} × {z} threads; the kernel wants {required:?}")));
        }
        if let Some(most) = info.max_threads
            && threads > u64::from(most)
        {
            return Err(invalid(launch, format!("a block of {threads} threads; the kernel allows {most}")));
        }
        let [x, y, z] = launch.grid;
        if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(invalid(launch, format!("a grid of {x} × {y} × {z} blocks")));
        }
        if u64::from(x) * u64::from(y) * u64::from(z) > u64::from(u32::MAX) {
            return Err(invalid(launch, format!("a grid of {x} × {y} × {z} blocks is too large to run here")));
        }
        if launch.params.len() != info.param_bytes as usize {
            return Err(invalid(
                launch,
                format!("{} bytes of parameters; the kernel has {}", launch.params.len(), info.param_bytes),
            ));
        }
        if launch.globals.len() != image.globals.len() {
            return Err(invalid(
                launch,
                format!(
                    "{} addresses of module variables; the module has {}",
                    launch.globals.len(),
                    image.globals.len()
                ),
            ));
        }
        let shared_bytes = match launch.dynamic_shared_bytes {
            0 => Some(info.static_shared_bytes),
            dynamic => kernel.dynamic_offset.checked_add(dynamic),
        };
        let shared_bytes = match shared_bytes {
            Some(bytes) if bytes <= options.max_shared_bytes => bytes,
            _ => {
                return Err(invalid(
                    launch,
                    format!(
                        "{} bytes of static and {} of dynamic shared memory; a block has {}",
                        info.static_shared_bytes, launch.dynamic_shared_bytes, options.max_shared_bytes
                    ),
                ));
            }
        };
        let mut constants = image.constants.rows.clone();
        for &(row, relocation) in &image.constants.relocations {
            let value = match relocation {
                Relocation::Global { global, offset } => launch.globals[global as usize].wrapping_add_signed(offset),
                Relocation::Shared { shared, offset } => {
                    u64::from(kernel.shared_offsets[shared as usize]).wrapping_add_signed(offset)
                }
            };
            constants[row as usize] = [value; 32];
        }
        let tracks = std::iter::repeat_with(Track::default).take(heap.num_slots()).collect();
        Ok(Machine {
            image,
            kernel,
            launch,
            options,
            heap,
            constants,
            shared_bytes,
            hints: vec![0; image.steps.len()],
            tracks,
            messages: Messages::default(),
            random: Random::new(options.seed),
            warp_instructions: 0,
            lane_instructions: 0,
            changed_at: 0,
            busy_at: 0,
        })
    }

    fn grid(&mut self) -> Result<(), Box<Fault>> {
        let [x, y, z] = self.launch.grid;
        let total = x * y * z;
        let mut queue = Admission { next: 0, total, window: Vec::new() };
        let mut resident: Vec<Block> = Vec::new();
        let mut spare: Vec<Block> = Vec::new();
        let mut allowed = RESIDENT;
        let mut barren_rounds = 0;
        loop {
            // Without a seed blocks start one by one while each finishes in its turn, and in numbers when they wait.
            let room = match self.random.on {
                false if barren_rounds == 0 => resident.len().max(1).min(allowed),
                false => (resident.len() * 2).min(allowed),
                true => allowed,
            };
            while resident.len() < room {
                let Some(number) = queue.take(&mut self.random) else { break };
                let block = match spare.pop() {
                    Some(mut block) => {
                        block.restart(self, number);
                        block
                    }
                    None => Block::new(self, number),
                };
                resident.push(block);
                self.changed_at = self.warp_instructions;
            }
            if resident.is_empty() {
                return Ok(());
            }
            let mut finished = false;
            if self.random.on {
                for last in (1..resident.len()).rev() {
                    let other = self.random.below(last as u64 + 1) as usize;
                    resident.swap(last, other);
                }
            }
            let mut index = 0;
            while index < resident.len() {
                let turn = if self.random.on { self.random.span(14) } else { LONG_TURN };
                match resident[index].turn(self, turn)? {
                    Turn::Finished => {
                        spare.push(resident.swap_remove(index));
                        finished = true;
                    }
                    Turn::Over => index += 1,
                }
            }
            barren_rounds = if finished { 0 } else { barren_rounds + 1 };
            if barren_rounds > PATIENT_ROUNDS && resident.len() >= allowed {
                allowed *= 2;
                barren_rounds = 0;
            }
            let idle = self.options.max_idle_instructions;
            let stuck = self.warp_instructions - self.changed_at.max(self.busy_at) > idle;
            if stuck && (queue.next == total && queue.window.is_empty()) {
                return Err(resident[0].stuck(
                    self,
                    FaultKind::Deadlock,
                    format!("{idle} instructions changed nothing: every thread waits for another"),
                ));
            }
            if self.warp_instructions > self.options.max_warp_instructions {
                let most = self.options.max_warp_instructions;
                return Err(resident[0].stuck(
                    self,
                    FaultKind::Runaway,
                    format!("more than {most} instructions of warps"),
                ));
            }
        }
    }

    fn report(self) -> Report {
        let mut footprints: Vec<Footprint> =
            self.tracks.into_iter().filter_map(|track| track.footprint).map(|footprint| *footprint).collect();
        footprints.sort_by_key(|footprint| footprint.base);
        Report { warp_instructions: self.warp_instructions, lane_instructions: self.lane_instructions, footprints }
    }

    /// Something changed that another thread may wait for.
    #[inline(always)]
    pub fn progress(&mut self) {
        self.changed_at = self.warp_instructions;
    }

    pub fn block_coordinates(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.grid;
        [number % x, number / x % y, number / x / y]
    }

    pub fn thread_coordinates(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        [thread % x, thread / x % y, thread / x / y]
    }
}

/// Blocks that have not started. With a seed the next one is drawn from the first few.
struct Admission {
    next: u32,
    total: u32,
    window: Vec<u32>,
}

impl Admission {
    fn take(&mut self, random: &mut Random) -> Option<u32> {
        if !random.on {
            let number = self.next;
            return (number < self.total).then(|| {
                self.next += 1;
                number
            });
        }
        while self.window.len() < RESIDENT && self.next < self.total {
            self.window.push(self.next);
            self.next += 1;
        }
        if self.window.is_empty() {
            return None;
        }
        let index = random.below(self.window.len() as u64) as usize;
        Some(self.window.swap_remove(index))
    }
}
