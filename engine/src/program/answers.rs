//! Device counts that earlier runs of a plan waited for: later runs assume them, and check them before results leave.
//!
//!   first run     launch ─► control block ── waits ──► 4,711 rows ─────────────── kept with the plan ─┐
//!   later ones    launch ─► control block ── copied, no wait ─► … ─► last wait: still 4,711? ◄───┘
//!                      └──► go on with 4,711                                │ yes: the result leaves
//!                                                                           └ no: nothing is kept; again, and wait
//!
//! Holds    for runs of one plan over unchanged columns: each question has one answer, unless sums of floats decide it.
//! Safe     with an answer that is too small, kernels omit rows, since they never pass an upper bound; with one that is
//!          too large, they read the count on the device. No access is out of bounds, and the check finds both.
//! Waits    none of its own: the copies precede the copy of the result.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_kernels::abi::CONTROL_BYTES;
use millpond_memory::PinnedBuffer;

use crate::error::failure::{Failure, control_words, flagged};

/// Number of wrong answers after which a plan stops reusing answers.
const SURPRISES: u32 = 3;

/// Value that a segment reads back from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// Row counts of parts.
    Rows,
    /// Row count of a segment's only part; later runs allocate no more for it: see
    /// [`keep_capacity`](super::run::Run::keep_capacity).
    Capacity,
    /// Row count of an expansion.
    Expanded,
    /// Number of items found in the texts of rows.
    Hits,
    /// Number of groups in a table.
    Groups,
    /// Number of rows that did not fit into a table.
    Leftover,
    /// Number of rows that passed, whether or not they fit.
    Passed,
    /// Whether an error was raised.
    Raised,
}

/// A segment's n-th question of a kind.
pub type Site = (usize, Question, u32);

/// Reads the requested words from control blocks; fails if one of them holds an error.
pub type Reading = fn(&[u8]) -> Result<Vec<u64>, Failure>;

/// Answers that earlier runs of a plan received.
#[derive(Default)]
pub struct Answers {
    known: Mutex<Known>,
    surprises: AtomicU32,
}

#[derive(Default)]
pub(super) struct Known {
    pub words: HashMap<Site, Vec<u64>>,
    /// Operators' own data about their segments.
    pub things: HashMap<usize, Thing>,
}

/// An operator's own data about a segment.
pub type Thing = Arc<dyn Any + Send + Sync>;

impl Answers {
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all answers, because one was wrong.
    pub fn forget(&self) {
        self.surprises.fetch_add(1, Ordering::Relaxed);
        *self.known() = Known::default();
    }

    /// True if the plan's answers have changed too often.
    pub(super) fn change(&self) -> bool {
        self.surprises.load(Ordering::Relaxed) >= SURPRISES
    }
}

/// Questions and answers of one attempt.
#[derive(Default)]
pub struct Questions {
    state: Mutex<State>,
    /// Reuses earlier answers and keeps new ones: set for a first attempt over columns that stay.
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
    /// Data that sinks leave for segments that do not read their rows.
    pub left: HashMap<usize, Thing>,
    /// Number of reused answers, some of which `debug_surprises` falsifies.
    pub taken_over: usize,
}

/// An assumed answer, and the location of the true one.
pub(super) struct Check {
    pub at: Range<usize>,
    pub read: Reading,
    pub assumed: Vec<u64>,
}

impl Questions {
    /// State of an attempt; `hold` if it may reuse earlier answers.
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

    /// True if some answer was assumed: a failure may result from it.
    pub fn has_assumed(&self) -> bool {
        self.assumed.load(Ordering::Relaxed)
    }
}

/// Row count of each control block.
///
/// # Errors
/// The error that one of the blocks holds.
pub fn rows_of_each(blocks: &[u8]) -> Result<Vec<u64>, Failure> {
    let rows = |block: &[u8]| {
        let (error, rows) = control_words(block)?;
        flagged(error)?;
        Ok(rows)
    };
    blocks.chunks(CONTROL_BYTES as usize).map(rows).collect()
}

/// Checks only that no error was raised.
///
/// # Errors
/// The error that was raised.
pub fn no_error(block: &[u8]) -> Result<Vec<u64>, Failure> {
    flagged(control_words(block)?.0)?;
    Ok(vec![])
}
