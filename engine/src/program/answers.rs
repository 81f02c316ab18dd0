//! What earlier runs of a plan waited for, taken for granted by later ones, and checked before their results leave.
//!
//!   first run     launch ─► control block ── waits ──► 4,711 rows ─────────────── kept with the plan ─┐
//!   later ones    launch ─► control block ── copied, no wait ─► … ─► last wait: still 4,711? ◄───┘
//!                      └──► go on with 4,711                                │ yes: the result leaves
//!                                                                           └ no: nothing is kept; again, and wait
//!
//! Holds    for runs of one plan over columns that stay: what is asked there has the same answer each time, unless sums of floats decide.
//! Safe     an answer that is too small makes kernels leave rows out, since they never pass an upper bound; one that is too large lets them
//!          see the count on the device. Nothing is read or written that is not there, and the check tells.
//! Waits    none of its own: the copies come before that of the result.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_kernels::abi::CONTROL_BYTES;
use millpond_memory::PinnedBuffer;

use crate::program::failure::{Failure, control_words, flagged};

/// A plan whose answers have changed so often is one where everybody waits.
const SURPRISES: u32 = 3;

/// What a segment asks of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// How many rows parts have.
    Rows,
    /// How many rows the only part of a segment has, so that it gets no more room: see [`keep_room`](super::run::Run::keep_room).
    Room,
    /// How many rows an expansion has.
    Pairs,
    /// How many items were found in the texts of rows.
    Hits,
    /// How many groups a table has.
    Groups,
    /// How many rows found no room in a table.
    Leftover,
    /// How many rows passed, with or without room.
    Passed,
    /// Whether an error was raised.
    Raised,
}

/// A question of a segment, and the how many-th of its kind.
pub type Site = (usize, Question, u32);

/// The words in the control blocks that are asked for; fails where one of them holds an error.
pub type Reading = fn(&[u8]) -> Result<Vec<u64>, Failure>;

/// The answers that runs of a plan have had.
#[derive(Default)]
pub struct Answers {
    known: Mutex<Known>,
    surprises: AtomicU32,
}

#[derive(Default)]
pub(super) struct Known {
    pub words: HashMap<Site, Vec<u64>>,
    /// What operators keep of their segments, in their own words.
    pub things: HashMap<usize, Thing>,
}

/// What an operator keeps of a segment.
pub type Thing = Arc<dyn Any + Send + Sync>;

impl Answers {
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets them, since one was wrong.
    pub fn forget(&self) {
        self.surprises.fetch_add(1, Ordering::Relaxed);
        *self.known() = Known::default();
    }

    /// True for a plan whose answers have changed too often.
    pub(super) fn change(&self) -> bool {
        self.surprises.load(Ordering::Relaxed) >= SURPRISES
    }
}

/// What one attempt asks.
#[derive(Default)]
pub struct Asked {
    state: Mutex<State>,
    /// Answers of earlier runs hold, and this one's are kept: it is a first attempt over columns that stay.
    pub(super) holds: bool,
    /// Some answer was assumed.
    pub(super) assumed: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub turns: HashMap<(usize, Question), u32>,
    pub found: Known,
    pub checks: Vec<Check>,
    /// Control blocks, copied one after the other up to `end`.
    pub copied: Option<PinnedBuffer>,
    pub end: usize,
    /// What sinks have left for segments that do not read theirs.
    pub left: HashMap<usize, Thing>,
    /// Answers that were taken over, while some of them are to be wrong.
    pub taken_over: usize,
}

/// An answer that was assumed, and where the true one will be.
pub(super) struct Check {
    pub at: Range<usize>,
    pub read: Reading,
    pub assumed: Vec<u64>,
}

impl Asked {
    /// For an attempt of which answers `hold` or not.
    pub fn new(hold: bool) -> Self {
        Self { holds: hold, ..Self::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once every assumption so far has been checked.
    pub fn is_checked(&self) -> bool {
        self.state().checks.is_empty()
    }

    /// True if some answer was assumed: a failure may come from that.
    pub fn has_assumed(&self) -> bool {
        self.assumed.load(Ordering::Relaxed)
    }
}

/// The rows of each control block.
///
/// # Errors
/// The error that one of them holds.
pub fn rows_of_each(blocks: &[u8]) -> Result<Vec<u64>, Failure> {
    let rows = |block: &[u8]| {
        let (error, rows) = control_words(block)?;
        flagged(error)?;
        Ok(rows)
    };
    blocks.chunks(CONTROL_BYTES as usize).map(rows).collect()
}

/// Nothing but that no error was raised.
///
/// # Errors
/// The error that was.
pub fn no_error(block: &[u8]) -> Result<Vec<u64>, Failure> {
    flagged(control_words(block)?.0)?;
    Ok(vec![])
}
