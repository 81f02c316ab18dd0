//! What can go wrong while a kernel runs, with everything needed to find the place.
//!
//!   out of bounds: reading 4 bytes at 0x700000100 (256 bytes into the allocation of 256 bytes at 0x700000000)
//!     by block (3, 0, 0) thread (31, 0, 0) of kernel `scale`, PTX line 41: `ld.global.u32 %r2, [%rd3];`

use super::AllocationInfo;

/// A finding of one check. Displayed, it is two lines that name all there is to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// The kernel that was launched.
    pub kernel: String,
    /// The line of the PTX text (0 when the module was built, not parsed).
    pub line: u32,
    /// The instruction as PTX text, or empty where the fault is nobody's instruction.
    pub instruction: String,
    /// The block's coordinates in the grid, and the thread's in its block.
    pub block: [u32; 3],
    pub thread: [u32; 3],
    /// The address as the instruction saw it, for faults of memory.
    pub address: Option<u64>,
    /// The live allocation that holds the address, or ends nearest below it.
    pub allocation: Option<AllocationInfo>,
    /// One sentence with the values.
    pub message: String,
}

/// Which check fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch itself cannot be: an unknown kernel, a block too large, missing parameters.
    InvalidLaunch,
    /// Outside every live allocation, shared, local or parameter space.
    OutOfBounds,
    /// The address is not a multiple of the access's size.
    Misaligned,
    /// A byte that nothing wrote was read.
    Uninitialised,
    /// A store or atomic to constant or parameter memory.
    ReadOnly,
    /// Two threads of one block touch shared memory in no order, one writing.
    SharedRace,
    /// Two threads touch global memory in no order, one writing.
    GlobalRace,
    /// Nothing can move any more: every thread waits.
    Deadlock,
    /// More instructions than [`super::Options::max_warp_instructions`].
    Runaway,
    /// A barrier, shuffle, vote or match that its threads do not agree on.
    Barrier,
    /// Calls nested deeper than [`super::Options::max_call_depth`], or a call through a bad address.
    Call,
    /// `trap` or `brkpt`.
    Trap,
}

impl FaultKind {
    /// The words that messages start with.
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
