//! A launch: what is asked for, and what came of it; and launches that run at the same time.

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

/// A launch that runs beside others.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    pub image: &'a Image,
    pub launch: Launch<'a>,
    /// Of its blocks so many fill the device, in place of [`Options::resident_blocks`].
    pub resident_blocks: u32,
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
    let running = Running { image, launch: *launch, resident_blocks: options.resident_blocks };
    let mut reports = run_together(&[running], heap, options).map_err(|(_, fault)| fault)?;
    Ok(reports.pop().unwrap_or_default())
}

/// Runs launches to their ends at the same time: their blocks share the device and take turns as the seed draws them, or one
/// launch after the other without a seed, as far as they do not wait. What two of them touch plainly is not compared: that is
/// up to whoever knows what orders them. A report for each, in their order.
///
/// # Errors
/// The first [`Fault`], and which launch it is of.
pub fn run_together(
    launches: &[Running<'_>],
    heap: &mut Heap,
    options: &Options,
) -> Result<Vec<Report>, (usize, Box<Fault>)> {
    machine::run(launches, heap, options)
}
