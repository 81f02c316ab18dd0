//! Arithmetic of PTX: the effect of register-only instructions on the 32 lanes of a warp.
//!
//! ```text
//!   "mad.lo.s32 %r4, %r1, 7, %r2;"  ──decode──►  AluOp { run, sources [r1, #7, r2], destinations [r4] }
//! ```
//!
//! ```text
//!   registers   r1 │ 3 5 … 9 │        constants   #7 │ 7 7 … 7 │        one row = one register, one word per lane
//!               r2 │ 1 1 … 1 │
//!               r4 │ 22 36 … 64 │  ◄── apply(registers, constants, mask): one indirect call, then a loop over 32 lanes
//! ```
//!
//! Rows      predicates are 0 or 1; narrower values are zero-extended; floats are their bits. Reads ignore bits beyond
//!           the type's width, writes zero-extend.
//! Carry     the condition-code flag of `add.cc` etc. is an ordinary row (0 or 1 per lane) reserved by the machine.
//! Lanes     registers of lanes outside the mask are unchanged.
//! Errors    only from `decode`: an unknown or illegal combination is an error with its line. `apply` cannot fail.

mod approx;
mod bits;
mod carry;
mod compare;
mod convert;
mod decode;
mod exact;
mod float;
mod integer;
mod lanes;
mod moves;

pub use decode::decode;

/// One register of a warp: a word for each of the 32 lanes.
pub type Row = [u64; 32];

/// Source of an operand: a register row, or a row of the table of constants shared by all warps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(u32);

const CONSTANT: u32 = 1 << 31;

impl Source {
    pub const fn register(row: u32) -> Source {
        Source(row)
    }

    pub const fn constant(row: u32) -> Source {
        Source(row | CONSTANT)
    }

    /// The register row, or `None` for a constant.
    pub const fn as_register(self) -> Option<u32> {
        if self.0 & CONSTANT == 0 { Some(self.0) } else { None }
    }

    /// The row that is read.
    #[inline(always)]
    pub fn row<'a>(self, registers: &'a [Row], constants: &'a [Row]) -> &'a Row {
        if self.0 & CONSTANT == 0 { &registers[self.0 as usize] } else { &constants[(self.0 & !CONSTANT) as usize] }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.as_register() {
            Some(row) => write!(f, "r{row}"),
            None => write!(f, "#{}", self.0 & !CONSTANT),
        }
    }
}

/// A declared register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    pub row: u32,
    /// Declared width: 1 for a predicate, else 8, 16, 32, 64 or 128.
    pub bits: u32,
}

/// Names of the function around an instruction, for `decode`. The machine implements it.
pub trait Names {
    /// The register called `name`, or `None` for a symbol or a special register.
    fn register(&mut self, name: &str) -> Option<Register>;
    /// Index in the table of constants of a row with `bits` in every lane. Equal bits may share a row.
    fn constant(&mut self, bits: u64) -> u32;
    /// The register row for discarded results (the operand `_`).
    fn sink(&mut self) -> u32;
    /// The register row of the carry flag.
    fn carry(&mut self) -> u32;
}

/// An instruction that cannot be run, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{instruction}` {reason}")]
pub struct AluError {
    pub line: u32,
    pub instruction: String,
    pub reason: String,
}

type Run = fn(&AluOp, &mut [Row], &[Row], u32);

/// A decoded instruction: a loop over lanes, compiled for its operation and types, with its rows.
#[derive(Clone, Copy)]
pub struct AluOp {
    run: Run,
    destinations: [u32; 4],
    sources: [Source; 5],
    num_destinations: u8,
    num_sources: u8,
    /// Parameter of the operation: a lookup table, a width, a rounding.
    detail: u32,
}

impl AluOp {
    /// Writes the results to the lanes of `mask`. `registers` are the rows of one warp; `constants` is the table filled
    /// through [`Names::constant`].
    ///
    /// # Panics
    /// If a row is outside `registers` or `constants`: they do not match the [`Names`] used for decoding.
    #[inline(always)]
    pub fn apply(&self, registers: &mut [Row], constants: &[Row], mask: u32) {
        (self.run)(self, registers, constants, mask);
    }

    /// Rows read, in operand order; a carry read is the last one.
    pub fn sources(&self) -> &[Source] {
        &self.sources[..self.num_sources as usize]
    }

    /// Register rows written, in operand order; a carry written is the last one.
    pub fn destinations(&self) -> &[u32] {
        &self.destinations[..self.num_destinations as usize]
    }
}

impl std::fmt::Debug for AluOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AluOp").field("sources", &self.sources()).field("destinations", &self.destinations()).finish()
    }
}
