//! Interprets PTX on the host and checks every memory access.
//!
//!   ast::Module ──load──► Image ──┐
//!                                 ├──run──► Report { counts, footprints } or Fault { kind, line, thread, address }
//!   Heap (device bytes) ──────────┤
//!   Launch (kernel, grid, params) ┘
//!
//! Checks    out of bounds, misaligned, never written, races in shared and global memory, deadlock, runaway, misuse of
//!           barriers. Each reports a [`Fault`] with kernel, PTX line, instruction, thread and address.
//! Progress  every lane of a warp and every block of a grid makes progress, even while others wait. [`Options::seed`]
//!           draws the schedule and which of the allowed values a load returns. Without a seed the order is fixed and
//!           loads return the newest value.
//! Together  unordered launches may run concurrently ([`run_together`]), on the calling thread.
//! Errors    loading an image rejects unknown instructions. A fault leaves the heap usable.

pub mod alu;
mod fault;
mod footprint;
mod heap;
mod history;
mod image;
mod launch;
mod load;
mod machine;
mod op;
mod order;
mod random;
mod shadow;

pub use fault::{Fault, FaultKind};
pub use footprint::{Footprint, SECTOR_BYTES, SectorSet};
pub use heap::{AllocationInfo, Fill, Heap, HeapError};
pub use image::{GlobalInfo, GlobalSpace, Image, KernelInfo, LoadError, ParamInfo};
pub use launch::{Checks, Launch, Options, Report, Running, run, run_together};
