//! What a check of the simulated device reports.
//!
//!   stream order: `filter_i64` reads bytes 0..4096 of buffer #7 on stream 2, unordered after a write on stream 1
//!     here        kernels/src/select.rs:88:10
//!     before      engine/src/program/run.rs:140:17
//!     seed        24301
//!
//! A finding names the kernel and PTX line, the buffer, both streams and both places in the source, as far as they are
//! known.

use std::fmt;

use super::{Site, StreamHandle};

/// Which rule was broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// Outside every live allocation.
    OutOfBounds,
    Misaligned,
    /// A byte read that nothing wrote.
    Uninitialised,
    /// Touched before its allocation in stream order.
    UseBeforeAllocation,
    /// Touched after its free, in program order or in stream order.
    UseAfterFree,
    /// Two conflicting touches with no order between them.
    UnorderedAccess,
    /// A kernel touched bytes that its launch did not declare, or otherwise than declared.
    Undeclared,
    /// The free is not ordered after the last use, or not after the allocation.
    UnorderedFree,
    DoubleFree,
    /// Freed by a pool, device or size that is not its own.
    ForeignFree,
    /// Two threads of a block touch a shared word between barriers, one writing.
    SharedRace,
    /// Two blocks of a launch touch a word, one writing, with nothing that orders them.
    GlobalRace,
    /// A wait on an event that was never recorded.
    UnrecordedEvent,
    /// The host touched pinned memory that a copy still uses.
    HostRace,
    /// Live at the end of its pool, query or device.
    Leak,
    /// A handle was used after its end, or on another device.
    Handle,
    /// The kernel trapped, hung or executed an instruction that cannot be.
    Fault,
}

impl FindingKind {
    pub fn as_str(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "out of bounds",
            FindingKind::Misaligned => "misaligned",
            FindingKind::Uninitialised => "uninitialised read",
            FindingKind::UseBeforeAllocation => "use before allocation",
            FindingKind::UseAfterFree => "use after free",
            FindingKind::UnorderedAccess => "stream order",
            FindingKind::Undeclared => "undeclared access",
            FindingKind::UnorderedFree => "unordered free",
            FindingKind::DoubleFree => "double free",
            FindingKind::ForeignFree => "foreign free",
            FindingKind::SharedRace => "race in shared memory",
            FindingKind::GlobalRace => "race in global memory",
            FindingKind::UnrecordedEvent => "wait on an unrecorded event",
            FindingKind::HostRace => "host race",
            FindingKind::Leak => "leak",
            FindingKind::Handle => "stale handle",
            FindingKind::Fault => "fault",
        }
    }
}

/// One broken rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    pub kind: FindingKind,
    /// The whole story in one sentence: who touched what, and what came before.
    pub message: String,
    pub kernel: Option<String>,
    /// Line of the PTX text.
    pub ptx_line: Option<u32>,
    /// Stream of this access, and of the earlier one.
    pub stream: Option<StreamHandle>,
    pub earlier_stream: Option<StreamHandle>,
    /// Who asked for this access, and for the earlier one.
    pub site: Option<Site>,
    pub earlier_site: Option<Site>,
    pub seed: Option<u64>,
}

impl Finding {
    pub fn new(kind: FindingKind, message: impl Into<String>) -> Self {
        Finding {
            kind,
            message: message.into(),
            kernel: None,
            ptx_line: None,
            stream: None,
            earlier_stream: None,
            site: None,
            earlier_site: None,
            seed: None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "\n  kernel      {kernel}")?;
            if let Some(line) = self.ptx_line {
                write!(f, ", PTX line {line}")?;
            }
        }
        if let Some(site) = self.site {
            write!(f, "\n  here        {site}")?;
        }
        if let Some(site) = self.earlier_site {
            write!(f, "\n  before      {site}")?;
        }
        if let Some(seed) = self.seed {
            write!(f, "\n  seed        {seed}")?;
        }
        Ok(())
    }
}
