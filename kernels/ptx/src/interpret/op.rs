//! Decoded instructions of the machine: dense, with register rows instead of names.
//!
//!   @%p1 ld.global.v2.u32 {%r1, %r2}, [%rd3+8];  ──►  Step { guard: row of %p1, op: Load(Access { base, offset 8 }) }
//!
//! Rows       an operand is a row of the frame's registers or of the launch's constants ([`Source`]).
//! Symbols    addresses unknown before the launch are constants filled in at launch ([`Relocation`]).
//! Text       line and instruction are stored separately, by step number: only faults read them.

use super::alu::{AluOp, Source};

/// Destination of a discarded result.
pub(super) const SINK: u32 = u32::MAX;
/// A step without a guard.
pub(super) const NO_GUARD: u32 = u32::MAX;

/// One decoded instruction.
#[derive(Debug)]
pub(super) struct Step {
    /// Row of the guarding predicate times two, plus one if negated; or [`NO_GUARD`].
    pub guard: u32,
    pub op: Op,
}

#[derive(Debug)]
pub(super) enum Op {
    Alu(AluOp),
    Load(Access),
    Store(Access),
    Atomic(Box<Atomic>),
    Fence {
        scope: Scope,
        /// `fence.sc` and `membar`: they have one total order.
        sequential: bool,
    },
    /// Moves a frame-relative address or a plain row.
    Move {
        to: u32,
        from: Source,
    },
    LocalAddress {
        to: u32,
        offset: u32,
    },
    Special {
        to: u32,
        what: Special,
    },
    /// Converts between a window of the generic address space and the space itself.
    Convert {
        to: u32,
        from: Source,
        space: MemorySpace,
        to_generic: bool,
    },
    IsSpace {
        to: u32,
        from: Source,
        space: MemorySpace,
    },
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Source,
        targets: Box<[u32]>,
    },
    Call(Box<CallSite>),
    Return,
    Exit,
    Trap {
        what: &'static str,
    },
    Barrier(Box<Barrier>),
    WarpBarrier {
        mask: Source,
    },
    Shuffle(Box<Shuffle>),
    Vote(Box<Vote>),
    Match(Box<Match>),
    Reduce(Box<Reduce>),
    ActiveMask {
        to: u32,
    },
    /// `nanosleep`: lets others run.
    Yield,
    /// Hints: prefetches, profiler events.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemorySpace {
    Generic,
    Global,
    Const,
    Shared,
    /// Memory of the thread. `frame`: relative to the frame of the running function.
    Local {
        frame: bool,
    },
    /// Parameters of the kernel.
    Param,
}

/// Threads that a strong access may synchronize with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Block,
    Device,
}

/// Ordering semantics of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strength {
    /// `None`: a plain (weak) access.
    pub scope: Option<Scope>,
    pub acquire: bool,
    pub release: bool,
}

impl Strength {
    pub(super) const WEAK: Strength = Strength { scope: None, acquire: false, release: false };
    pub(super) const RELAXED: Strength = Strength { scope: Some(Scope::Device), acquire: false, release: false };
}

/// A load or a store of one to four elements.
#[derive(Debug)]
pub(super) struct Access {
    pub base: Source,
    /// The base is a 32-bit register: address arithmetic wraps at 32 bits.
    pub narrow: bool,
    pub offset: i64,
    pub space: MemorySpace,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub size: u8,
    /// Elements per lane: 1, 2 or 4.
    pub count: u8,
    /// Loads: sign-extend to this many bits; 0 means zero-extend.
    pub extend: u8,
    pub strength: Strength,
    /// Registers to load (row numbers; [`SINK`] for `_`), or values to store.
    pub values: [Source; 4],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtomicKind {
    Exchange,
    CompareSwap,
    Add,
    AddF16,
    AddF16x2,
    AddBf16,
    AddBf16x2,
    AddF32,
    AddF64,
    MinSigned,
    MinUnsigned,
    MaxSigned,
    MaxUnsigned,
    And,
    Or,
    Xor,
    Increment,
    Decrement,
}

#[derive(Debug)]
pub(super) struct Atomic {
    pub base: Source,
    pub narrow: bool,
    pub offset: i64,
    pub space: MemorySpace,
    pub size: u8,
    pub kind: AtomicKind,
    pub strength: Strength,
    /// Receives the old value; [`SINK`] for `red`.
    pub to: u32,
    pub operand: Source,
    /// The new value of `cas`.
    pub second: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    /// `%tid`, `%ntid`, `%ctaid`, `%nctaid`: index of x, y, z.
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    Warp,
    Warps,
    LanesEqual,
    LanesLess,
    LanesLessOrEqual,
    LanesGreater,
    LanesGreaterOrEqual,
    Multiprocessor,
    Multiprocessors,
    Grid,
    Clock,
    ClockHigh,
    Clock64,
    Nanoseconds,
    DynamicShared,
    TotalShared,
    Zero,
}

/// Location of a parameter of a `.func` in its frame, and the source of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Formal {
    Register { row: u32, bits: u32 },
    Memory { offset: u32, size: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Actual {
    Value(Source),
    Register(u32),
    Memory { offset: u32, size: u32 },
    Nowhere,
}

#[derive(Debug)]
pub(super) struct CallSite {
    pub target: CallTarget,
    pub arguments: Vec<Actual>,
    pub results: Vec<Actual>,
}

#[derive(Debug)]
pub(super) enum CallTarget {
    Function(u32),
    Address(Source),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarrierReduction {
    Count,
    And,
    Or,
}

#[derive(Debug)]
pub(super) struct Barrier {
    pub id: Source,
    /// Number of participating threads; `None`: all of the block.
    pub count: Option<Source>,
    /// False for `barrier.arrive`.
    pub waits: bool,
    pub aligned: bool,
    pub reduce: Option<(BarrierReduction, Source, bool, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug)]
pub(super) struct Shuffle {
    pub mode: ShuffleMode,
    pub to: u32,
    /// [`SINK`] without a `|p`.
    pub valid: u32,
    pub value: Source,
    pub lane: Source,
    pub clamp: Source,
    pub mask: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Debug)]
pub(super) struct Vote {
    pub mode: VoteMode,
    pub to: u32,
    pub predicate: Source,
    pub negated: bool,
    pub mask: Source,
}

#[derive(Debug)]
pub(super) struct Match {
    pub all: bool,
    pub to: u32,
    pub valid: u32,
    pub value: Source,
    pub wide: bool,
    pub mask: Source,
}

#[derive(Debug)]
pub(super) struct Reduce {
    pub kind: AtomicKind,
    pub to: u32,
    pub value: Source,
    pub mask: Source,
}

/// A constant that depends on the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Relocation {
    /// Address of a module variable.
    Global { global: u32, offset: i64 },
    /// Offset of a shared variable in the kernel's shared memory; `generic` adds the window.
    Shared { shared: u32, offset: i64 },
}

/// A `.func` or `.entry` with a body.
#[derive(Debug, Default)]
pub(super) struct Function {
    pub name: String,
    pub entry: u32,
    /// Register rows per frame.
    pub rows: u32,
    /// Rows that some path reads before writing them, with the bits that each may have.
    pub unwritten: Vec<(u32, u64)>,
    /// Maximum number of 32-bit registers live at once.
    pub live_words: u32,
    /// Words (8 bytes) of local memory per frame.
    pub local_words: u32,
    pub formals: Vec<Formal>,
    pub results: Vec<Formal>,
    /// Shared variables that it uses, and functions that it calls.
    pub shared: Vec<u32>,
    pub calls: Vec<u32>,
    /// It calls through an address, and so possibly any function.
    pub calls_any: bool,
}
