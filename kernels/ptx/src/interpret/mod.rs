//! Runs PTX on the host, and checks every access to memory while it does.
//!
//!   ast::Module ──load──► Image ──┐
//!                                 ├──run──► Report { counts, footprints }   or   Fault { kind, kernel, line, thread, address }
//!   Heap (device bytes) ──────────┤
//!   Launch (kernel, grid, params) ┘
//!
//! Checks    out of bounds, misaligned, never written, races in shared and in global memory, deadlock, runaway,
//!           misuse of barriers. Each is a [`Fault`] that names the kernel, PTX line, instruction, thread and address.
//! Progress  every lane of a warp and every block of a grid moves on, whoever it waits for. [`Options::seed`] chooses who
//!           moves next, for how long, and which of the allowed values a load returns; without a seed the order is always the
//!           same, and the values are the newest.
//! Together  launches that nothing orders may run at the same time ([`run_together`]), on the calling thread.
//! Errors    an unknown instruction is refused when the image is loaded. A fault leaves the heap usable.

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
