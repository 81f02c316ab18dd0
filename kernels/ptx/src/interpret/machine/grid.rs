//! One launch of a machine: its image, its blocks, and its accesses.
//!
//!   machine   blocks of launch 0 ··· of launch 1 ···        consecutive numbers: a block number identifies its launch
//!   grid      image, constants, footprints, counts          active while a block of the launch has its turn

use super::Machine;
use super::block::Block;
use crate::interpret::alu::Row;
use crate::interpret::heap::Heap;
use crate::interpret::image::{Image, Kernel};
use crate::interpret::launch::Running;
use crate::interpret::op::Relocation;
use crate::interpret::random::Random;
use crate::interpret::{Fault, FaultKind, Footprint, Launch, Options, Report};

/// Maximum number of blocks from which a seed draws the next block to start.
const WINDOW: usize = 64;
/// Capacity of the device, in units of [`Grid::block_takes`].
pub(super) const DEVICE: u64 = 1 << 32;

pub(super) struct Grid<'a> {
    /// Index among the machine's launches.
    pub index: usize,
    pub image: &'a Image,
    pub kernel: &'a Kernel,
    pub launch: Launch<'a>,
    pub constants: Vec<Row>,
    pub shared_bytes: u32,
    /// By step, the allocation of its last access.
    pub hints: Vec<u32>,
    /// By slot of the heap.
    pub footprints: Vec<Option<Box<Footprint>>>,
    /// Number of the first block in the machine, and the number of blocks.
    pub blocks: (u32, u32),
    /// Share of [`DEVICE`] that a block occupies.
    pub block_takes: u64,
    pub warp_instructions: u64,
    pub lane_instructions: u64,
    admission: Admission,
    /// Finished blocks for reuse.
    pub spare: Vec<Block>,
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

impl<'a> Grid<'a> {
    pub fn new(
        index: usize,
        running: &Running<'a>,
        first_block: u32,
        heap: &Heap,
        options: &Options,
    ) -> Result<Grid<'a>, Box<Fault>> {
        let Running { image, launch, resident_blocks } = running;
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
        let constants = constants_of(image, kernel, launch);
        let footprints = std::iter::repeat_with(|| None).take(heap.num_slots()).collect();
        let total = x * y * z;
        Ok(Grid {
            index,
            image,
            kernel,
            launch: *launch,
            constants,
            shared_bytes,
            hints: vec![0; image.steps.len()],
            footprints,
            blocks: (first_block, total),
            block_takes: DEVICE / u64::from(*resident_blocks).max(1),
            warp_instructions: 0,
            lane_instructions: 0,
            admission: Admission { next: 0, total, window: Vec::new() },
            spare: Vec::new(),
        })
    }

    /// Number of blocks that have not started.
    pub fn num_waiting(&self) -> usize {
        self.admission.waiting()
    }

    pub fn block_coordinates(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.grid;
        let number = number.wrapping_sub(self.blocks.0);
        [number % x, number / x % y, number / x / y]
    }

    pub fn thread_coordinates(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        [thread % x, thread / x % y, thread / x / y]
    }

    pub fn report(self) -> Report {
        let mut footprints: Vec<Footprint> =
            self.footprints.into_iter().flatten().map(|footprint| *footprint).collect();
        footprints.sort_by_key(|footprint| footprint.base);
        Report { warp_instructions: self.warp_instructions, lane_instructions: self.lane_instructions, footprints }
    }
}

/// The image's constants with the values that depend on the launch.
fn constants_of(image: &Image, kernel: &Kernel, launch: &Launch<'_>) -> Vec<Row> {
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
    constants
}

impl Machine<'_> {
    /// Makes launch `index` the active one.
    pub(super) fn enter(&mut self, index: usize) {
        if self.grid.index != index
            && let Some(other) = self.others.iter_mut().find(|other| other.index == index)
        {
            std::mem::swap(&mut self.grid, other);
        }
    }

    /// The next unstarted block of the active launch, ready to run.
    pub(super) fn next_block(&mut self) -> Option<Block> {
        let number = self.grid.blocks.0.wrapping_add(self.grid.admission.take(&mut self.random)?);
        Some(match self.grid.spare.pop() {
            Some(mut block) => {
                block.restart(self, number);
                block
            }
            None => Block::new(self, number),
        })
    }
}

/// Unstarted blocks. With a seed the next one is drawn from the first few.
struct Admission {
    next: u32,
    total: u32,
    window: Vec<u32>,
}

impl Admission {
    /// Number of unstarted blocks.
    fn waiting(&self) -> usize {
        (self.total - self.next) as usize + self.window.len()
    }

    fn take(&mut self, random: &mut Random) -> Option<u32> {
        if !random.on {
            let number = self.next;
            return (number < self.total).then(|| {
                self.next += 1;
                number
            });
        }
        while self.window.len() < WINDOW && self.next < self.total {
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
