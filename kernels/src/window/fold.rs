//! Aggregates over frames, through a tree of states. Device side: `window_leaves`, `window_nodes` and `window_fold` in
//! `cuda/window.cu`.
//!
//! ```text
//!   an argument ── grow ──► states of 8 rows, of 64, … ── fold ──► count, sum, avg, min, max, variances of each frame
//! ```
//!
//! NULL     a row whose argument is NULL is in no state.
//! Memory   [`tree_bytes`]: 32 bytes per state, 4.6 bytes per row.
//! Waits    never.

use millpond_memory::DeviceView;

use crate::error::KernelError;
use crate::rows::expect_bytes;
use crate::sort::kind;
use crate::window::{Column, Frame, Out, Positions, Result, Window, levels, put_address};
use crate::{Launch, tune};

/// Bytes of `struct State` in window.cu.
const STATE_BYTES: u64 = 32;

/// Aggregate of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Count,
    /// Sum of integers, modulo the width of the result.
    Sum,
    /// Sum of floats, as a double.
    SumFloats,
    /// Mean of floats, or of integers that floats represent exactly, as a double.
    Mean,
    /// Mean of decimals: the sum times this factor, divided by the count.
    DecimalMean(u64),
    Min,
    Max,
    /// The number is subtracted from the count: 0 (population) or 1 (sample).
    Variance(u64),
    Deviation(u64),
    BitAnd,
    BitOr,
    BitXor,
}

/// The argument of an aggregate.
#[derive(Debug, Clone)]
pub struct Argument {
    /// `None` counts rows.
    pub column: Option<Column>,
    /// Ranks of a string argument's codes (u32): strings compare by rank.
    pub ranks: Option<DeviceView>,
}

/// An aggregate function with its argument.
#[derive(Debug, Clone)]
pub struct Folding {
    pub argument: Argument,
    pub operation: Operation,
}

/// Bytes of the states of one argument.
pub fn tree_bytes(rows: u64) -> u64 {
    levels(rows).map(|(states, _)| states * STATE_BYTES).sum::<u64>().max(STATE_BYTES)
}

impl Window<'_> {
    /// Builds the states of an argument in `tree`, a buffer of [`tree_bytes`] bytes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn grow(&self, folding: &Folding, tree: &DeviceView) -> Result<()> {
        folding.argument.check(self.bound())?;
        expect_bytes("window", "states", tree, tree_bytes(self.bound()))?;
        let mut below: Option<DeviceView> = None;
        let mut end = 0;
        for (states, each) in levels(self.bound()) {
            let level = tree.view(end..end + (states * STATE_BYTES) as usize)?;
            end += level.len();
            let config = self.striding(states);
            match &below {
                None => {
                    let kernel = self.images.kernel("window", "window_leaves")?;
                    let launch = Launch::new(&kernel, config).bytes(&folding.bytes(), 8).write(&level);
                    self.submit(folding.argument.read_by(launch))?;
                }
                Some(below) => {
                    let kernel = self.images.kernel("window", "window_nodes")?;
                    let launch = Launch::new(&kernel, config).read(below).write(&level).value(folding.operation.code());
                    let launch = launch.value(each / u64::from(tune::WINDOW_FANOUT));
                    self.submit(launch)?;
                }
            }
            below = Some(level);
        }
        Ok(())
    }

    /// Number of launches of [`grow`](Self::grow).
    pub fn grow_launches(&self) -> u64 {
        levels(self.bound()).count() as u64
    }

    /// Aggregates each row's frame from the states that [`grow`](Self::grow) built. A count of all rows needs no
    /// states.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn fold(
        &self,
        positions: &Positions,
        frame: &Frame,
        folding: &Folding,
        tree: Option<&DeviceView>,
        out: &Out,
    ) -> Result<()> {
        folding.argument.check(self.bound())?;
        out.check(self.bound())?;
        if tree.is_none() && folding.argument.needs_states() {
            return Err(KernelError::Shape { what: "window", why: "there are no states".into() });
        }
        let mut bytes = frame.bytes();
        bytes.extend(folding.bytes());
        let mut end = 0;
        let mut addresses = [0u64; tune::WINDOW_LEVELS as usize];
        if let Some(tree) = tree {
            expect_bytes("window", "states", tree, tree_bytes(self.bound()))?;
            for ((states, _), address) in levels(self.bound()).zip(&mut addresses) {
                *address = tree.address().0 + end;
                end += states * STATE_BYTES;
            }
        }
        addresses.iter().for_each(|address| bytes.extend(address.to_le_bytes()));
        let (given, factor) = folding.operation.given(folding.argument.ranks.is_some());
        bytes.extend(given.to_le_bytes());
        bytes.extend(out.physical.width().to_le_bytes());
        bytes.extend(factor.to_le_bytes());
        let kernel = self.images.kernel("window", "window_fold")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&bytes, 8);
        let mut launch = frame.read_by(folding.argument.read_by(launch));
        if let Some(tree) = tree {
            launch = launch.reads(tree);
        }
        self.submit(out.put(launch))
    }
}

impl Argument {
    fn check(&self, rows: u64) -> Result<()> {
        self.column.iter().try_for_each(|column| column.check("an argument", rows))
    }

    /// False for a count of all rows.
    pub fn needs_states(&self) -> bool {
        self.column.is_some()
    }

    fn read_by<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = self.column.iter().fold(launch, |launch, column| column.read_by(launch));
        self.ranks.iter().fold(launch, |launch, ranks| launch.reads(ranks.padded()))
    }
}

impl Folding {
    /// Bytes of `struct Folded` in window.cu.
    fn bytes(&self) -> Vec<u8> {
        let Argument { column, ranks } = &self.argument;
        let mut bytes = Vec::with_capacity(32);
        put_address(&mut bytes, column.as_ref().map(|column| &column.values));
        put_address(&mut bytes, column.as_ref().and_then(|column| column.validity.as_ref()));
        put_address(&mut bytes, ranks.as_ref());
        bytes.extend(column.as_ref().map_or(0, |column| kind(column.physical)).to_le_bytes());
        bytes.extend(self.operation.code().to_le_bytes());
        bytes
    }
}

impl Operation {
    /// Number in `enum Op` of window.cu.
    fn code(self) -> u32 {
        match self {
            Self::Count => 0,
            Self::Sum | Self::DecimalMean(_) => 1,
            Self::SumFloats | Self::Mean => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::Variance(_) | Self::Deviation(_) => 5,
            Self::BitAnd => 6,
            Self::BitOr => 7,
            Self::BitXor => 8,
        }
    }

    /// Number in `enum Given` of window.cu, and the factor.
    fn given(self, codes: bool) -> (u32, u64) {
        match self {
            Self::Count => (0, 0),
            Self::Sum | Self::BitAnd | Self::BitOr | Self::BitXor => (1, 0),
            Self::SumFloats => (2, 0),
            Self::Min | Self::Max if codes => (4, 0),
            Self::Min | Self::Max => (3, 0),
            Self::Mean => (5, 0),
            Self::DecimalMean(factor) => (6, factor),
            Self::Variance(off) => (7, off),
            Self::Deviation(off) => (8, off),
        }
    }
}
