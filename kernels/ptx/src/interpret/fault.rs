//! Faults of a running kernel, with the details that locate them.
//!
//!   out of bounds: reading 4 bytes at 0x700000100 (256 bytes into the allocation of 256 bytes at 0x700000000)
//!     by block (3, 0, 0) thread (31, 0, 0) of kernel `scale`, PTX line 41: `ld.global.u32 %r2, [%rd3];`

use super::AllocationInfo;

/// A finding of one check. Its display has two lines with all details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Name of the launched kernel.
    pub kernel: String,
    /// Line of the PTX text; 0 if the module was built, not parsed.
    pub line: u32,
    /// The instruction as PTX text; empty if no instruction caused the fault.
    pub instruction: String,
    /// Coordinates of the block in the grid and of the thread in the block.
    pub block: [u32; 3],
    pub thread: [u32; 3],
    /// The accessed address, for memory faults.
    pub address: Option<u64>,
    /// The live allocation that contains the address, or the nearest one below it.
    pub allocation: Option<AllocationInfo>,
    /// One sentence with the values.
    pub message: String,
}

/// The check that found the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch itself is invalid: an unknown kernel, a block too large, missing parameters.
    InvalidLaunch,
    /// Outside every live allocation, shared, local or parameter space.
    OutOfBounds,
    /// The address is not a multiple of the access's size.
    Misaligned,
    /// Read of a byte that was never written.
    Uninitialised,
    /// A store or atomic to constant or parameter memory.
    ReadOnly,
    /// Two threads of one block access shared memory without an order, one of them writing.
    SharedRace,
    /// Two threads access global memory without an order, one of them writing.
    GlobalRace,
    /// Every thread waits, and none can continue.
    Deadlock,
    /// More instructions than [`super::Options::max_warp_instructions`].
    Runaway,
    /// A barrier, shuffle, vote or match with inconsistent participants.
    Barrier,
    /// Calls nested deeper than [`super::Options::max_call_depth`], or a call through a bad address.
    Call,
    /// `trap` or `brkpt`.
    Trap,
}

impl FaultKind {
    /// Start of the messages of this kind.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::InvalidLaunch => "invalid launch",
            FaultKind::OutOfBounds => "out of bounds",
            FaultKind::Misaligned => "misaligned",
            FaultKind::Uninitialised => "never written",
            FaultKind::ReadOnly => "read only",
            FaultKind::SharedRace => "race in shared memory",
            FaultKind::GlobalRace => "race in global memory",
            FaultKind::Deadlock => "deadlock",
            FaultKind::Runaway => "runaway",
            FaultKind::Barrier => "barrier misuse",
            FaultKind::Call => "bad call",
            FaultKind::Trap => "trap",
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)?;
        if let (Some(address), Some(AllocationInfo { base, len })) = (self.address, self.allocation) {
            match address.checked_sub(base) {
                Some(offset) => write!(f, " ({offset} bytes into the allocation of {len} bytes at {base:#x})")?,
                None => write!(f, " ({} bytes before the allocation of {len} bytes at {base:#x})", base - address)?,
            }
        }
        write!(f, "\n  in kernel `{}`", self.kernel)?;
        if self.kind != FaultKind::InvalidLaunch {
            let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
            write!(f, " by block ({bx}, {by}, {bz}) thread ({tx}, {ty}, {tz})")?;
        }
        if !self.instruction.is_empty() {
            write!(f, ", PTX line {}: `{}`", self.line, self.instruction)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
