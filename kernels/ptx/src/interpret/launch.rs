//! One launch: what is asked for, and what came of it.

use super::{Fault, Footprint, Heap, Image, machine};

/// A launch of one kernel of an image.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    /// The parameter block: [`super::KernelInfo::params`] says what lies where.
    pub params: &'a [u8],
    /// Addresses of the image's module variables, in the order of [`Image::globals`].
    pub globals: &'a [u64],
}

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Chooses which block and warp moves next, and for how long. `None`: one fixed order.
    pub seed: Option<u64>,
    /// Blocks that a device holds at once: the others start when some have ended.
    pub resident_blocks: u32,
    /// Instructions of warps after which a launch counts as runaway.
    pub max_warp_instructions: u64,
    /// Instructions of warps in which nothing in memory changed and every warp asked what others have written, or read
    /// nothing, after which a launch counts as deadlocked.
    pub max_idle_instructions: u64,
    /// Nested calls of `.func`.
    pub max_call_depth: u32,
    /// What `%nsmid` says; `%smid` is the block's number modulo this.
    pub multiprocessors: u32,
    /// Shared memory a block may have, static and dynamic together.
    pub max_shared_bytes: u32,
    pub checks: Checks,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: None,
            // As many as four multiprocessors hold.
            resident_blocks: 128,
            max_warp_instructions: 20_000_000_000,
            max_idle_instructions: 20_000_000,
            max_call_depth: 256,
            multiprocessors: 4,
            max_shared_bytes: 227 * 1024,
            checks: Checks::ALL,
        }
    }
}

/// Which checks are on. Bounds and alignment always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Bytes read before anything wrote them.
    pub initialised: bool,
    pub shared_races: bool,
    pub global_races: bool,
}

impl Checks {
    pub const ALL: Checks = Checks { initialised: true, shared_races: true, global_races: true };
    pub const NONE: Checks = Checks { initialised: false, shared_races: false, global_races: false };
}

/// What a launch did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub warp_instructions: u64,
    /// Instructions times the lanes that took part.
    pub lane_instructions: u64,
    /// One per allocation that was touched, ordered by address.
    pub footprints: Vec<Footprint>,
}

/// Runs a launch to its end.
///
/// # Errors
/// The first [`Fault`]. Writes up to that point stay in the heap.
pub fn run(image: &Image, launch: &Launch<'_>, heap: &mut Heap, options: &Options) -> Result<Report, Box<Fault>> {
    machine::run(image, launch, heap, options)
}
