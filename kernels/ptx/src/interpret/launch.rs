//! Launches with their options and reports, alone or concurrently.

use super::{Fault, Footprint, Heap, Image, machine};

/// A launch of one kernel of an image.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    /// The parameter block, laid out by [`super::KernelInfo::params`].
    pub params: &'a [u8],
    /// Addresses of the image's module variables, in the order of [`Image::globals`].
    pub globals: &'a [u64],
}

/// A launch that runs concurrently with others.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    pub image: &'a Image,
    pub launch: Launch<'a>,
    /// Maximum number of its blocks resident at once, in place of [`Options::resident_blocks`].
    pub resident_blocks: u32,
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of the schedule: which block and warp runs next, and how long. `None`: one fixed order.
    pub seed: Option<u64>,
    /// Maximum number of resident blocks: others start when a resident one ends.
    pub resident_blocks: u32,
    /// Number of warp instructions after which a launch counts as runaway.
    pub max_warp_instructions: u64,
    /// Number of consecutive warp instructions without a change of memory, while every warp only polls or reads
    /// nothing, after which a launch counts as deadlocked.
    pub max_idle_instructions: u64,
    /// Maximum depth of nested `.func` calls.
    pub max_call_depth: u32,
    /// Value of `%nsmid`; `%smid` is the block number modulo this.
    pub multiprocessors: u32,
    /// Maximum bytes of shared memory per block, static and dynamic together.
    pub max_shared_bytes: u32,
    pub checks: Checks,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: None,
            // The number of blocks that four multiprocessors hold.
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

/// Optional checks. Bounds and alignment are always checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Reads of bytes that were never written.
    pub initialised: bool,
    pub shared_races: bool,
    pub global_races: bool,
}

impl Checks {
    pub const ALL: Checks = Checks { initialised: true, shared_races: true, global_races: true };
    pub const NONE: Checks = Checks { initialised: false, shared_races: false, global_races: false };
}

/// Counts and footprints of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub warp_instructions: u64,
    /// Instructions times participating lanes.
    pub lane_instructions: u64,
    /// One per accessed allocation, ordered by address.
    pub footprints: Vec<Footprint>,
}

/// Runs a launch to completion.
///
/// # Errors
/// The first [`Fault`]. Writes up to that point remain in the heap.
pub fn run(image: &Image, launch: &Launch<'_>, heap: &mut Heap, options: &Options) -> Result<Report, Box<Fault>> {
    let running = Running { image, launch: *launch, resident_blocks: options.resident_blocks };
    let mut reports = run_together(&[running], heap, options).map_err(|(_, fault)| fault)?;
    Ok(reports.pop().unwrap_or_default())
}

/// Runs launches concurrently to completion: their blocks share the device and alternate as drawn from the seed.
/// Without a seed, launches run one after another unless they wait. Races of plain accesses between launches are not
/// checked, because their order is known only to the caller. Returns one report per launch, in order.
///
/// # Errors
/// The first [`Fault`], with the index of its launch.
pub fn run_together(
    launches: &[Running<'_>],
    heap: &mut Heap,
    options: &Options,
) -> Result<Vec<Report>, (usize, Box<Fault>)> {
    machine::run(launches, heap, options)
}
