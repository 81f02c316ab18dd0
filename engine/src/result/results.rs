//! Result batches: kept until all are downloaded, counted against LIMIT and OFFSET, sent in the session's batch size.
//!
//!   download ─► keep ─► … the last one ─► send ─► reader        a few rows suffice, or rows leave as they come: at once
//!
//! Until a batch has left the CPU can take over, and an attempt can be given up for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use millpond_memory::recorder;
use tokio::sync::mpsc;

use crate::column::DictionaryId;
use crate::error::EngineError;
use crate::profile::step;
use crate::program::answers::Asked;
use crate::program::failure::Failure;
use crate::program::part::Kept;

/// Where result batches go.
#[derive(Clone)]
pub struct Output {
    pub sender: mpsc::Sender<datafusion::error::Result<RecordBatch>>,
    pub sent: Arc<AtomicU64>,
    pub batch_rows: usize,
    /// No batch leaves; they are counted as if they did.
    pub is_mute: bool,
}

impl Output {
    /// Sends a batch in pieces of the session's batch size.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), Failure> {
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = self.batch_rows.max(1).min(batch.num_rows() - from);
            self.sent.fetch_add(rows as u64, Ordering::Relaxed);
            if !self.is_mute {
                let sent = self.sender.send(Ok(batch.slice(from, rows)));
                recorder::during(step::DELIVER, sent).await.map_err(|_| Failure::Cancelled)?;
            }
            from += rows;
        }
        Ok(())
    }
}

/// The result of one attempt, as far as it has come.
pub struct Results {
    /// Rows that may still leave, those among them that an offset leaves out; and how many it has left out.
    remaining: AtomicUsize,
    left_out: AtomicUsize,
    offset: usize,
    /// Batches that wait for the others, and their rows.
    kept: Mutex<Vec<RecordBatch>>,
    rows_kept: AtomicUsize,
    beginning: Beginning,
    out: Output,
    /// What must be so before they leave.
    pub(crate) asked: Asked,
    /// The items of lists in them.
    pub(crate) lists: Lists,
}

/// The items of lists and structures that the program has made (lists.rs).
#[derive(Default)]
pub(crate) struct Lists(Mutex<HashMap<DictionaryId, Items>>);

/// Items, one part behind the other, and where they are.
#[derive(Clone, Default)]
pub(crate) struct Items {
    /// Each with its number of items, if that was known when it was kept.
    pub parts: Vec<(Arc<Kept>, Option<u64>)>,
    /// All of them, once they have been asked for.
    pub here: Option<ArrayRef>,
}

impl Items {
    /// How many there are, of which the numbers are known.
    pub fn known(&self) -> u64 {
        self.parts.iter().filter_map(|(_, rows)| *rows).sum()
    }
}

impl Lists {
    /// The items known by a number, while something is done with them.
    pub fn with<T>(&self, id: DictionaryId, then: impl FnOnce(&mut Items) -> T) -> T {
        then(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default())
    }
}

impl Results {
    /// For at most `limit` rows behind the first `offset`, once what was `asked` is so.
    pub fn new(out: Output, offset: usize, limit: Option<usize>, asked: Asked) -> Self {
        Self {
            remaining: AtomicUsize::new(limit.map_or(usize::MAX, |n| n.saturating_add(offset))),
            left_out: AtomicUsize::new(0),
            offset,
            kept: Mutex::default(),
            rows_kept: AtomicUsize::new(0),
            beginning: Beginning::default(),
            out,
            asked,
            lists: Lists::default(),
        }
    }

    /// True once a row has left.
    pub fn has_left(&self) -> bool {
        self.out.sent.load(Ordering::Relaxed) > 0
    }

    /// Rows that may still leave.
    pub fn wanted(&self) -> usize {
        self.remaining.load(Ordering::Relaxed).saturating_sub(self.rows_kept.load(Ordering::Relaxed))
    }

    /// Keeps a batch until the others are downloaded, too.
    pub fn keep(&self, batch: RecordBatch) {
        self.rows_kept.fetch_add(batch.num_rows(), Ordering::Relaxed);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    }

    /// Sends all batches that were kept.
    pub async fn send_kept(&self) -> Result<(), Failure> {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        self.rows_kept.store(0, Ordering::Relaxed);
        for batch in kept {
            self.send(batch).await?;
        }
        Ok(())
    }

    /// Gives the attempt up for another with texts in these columns, unless rows have left.
    pub fn give_up(&self, columns: &[(usize, usize)]) -> bool {
        self.beginning.give_up(columns)
    }

    /// Sends as many rows of a batch as may still leave, behind those that an offset leaves out. They are counted here, once nothing
    /// can fail any more, so that rows whose download failed are not missing from a LIMIT.
    ///
    /// # Errors
    /// An answer of an earlier run was taken over and is not checked yet: rows may be wrong.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), Failure> {
        if !self.asked.is_checked() {
            return Err(EngineError::internal("rows leave before answers of earlier runs are checked").into());
        }
        self.beginning.leave()?;
        let mut taken = 0;
        let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            taken = batch.num_rows().min(left);
            Some(left - taken)
        });
        let mut skipped = 0;
        let _ = self.left_out.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            skipped = taken.min(self.offset - before);
            Some(before + skipped)
        });
        self.out.send(batch.slice(skipped, taken - skipped)).await
    }
}

/// Whether an attempt may still be given up for another with other forms of strings, or rows have left already. Feeders run
/// beside each other: one may find that a column is better off without a dictionary while another has rows to send.
#[derive(Debug, Default)]
pub struct Beginning(Mutex<Begun>);

#[derive(Debug, Default)]
enum Begun {
    #[default]
    Open,
    /// For texts of these columns.
    GivenUp(Vec<(usize, usize)>),
    Left,
}

impl Beginning {
    /// Gives the attempt up, unless rows have left.
    fn give_up(&self, columns: &[(usize, usize)]) -> bool {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *begun {
            Begun::Left => return false,
            Begun::GivenUp(known) => known.extend(columns),
            Begun::Open => *begun = Begun::GivenUp(columns.to_vec()),
        }
        true
    }

    /// Rows are about to leave: from now on there is no other attempt.
    pub fn leave(&self) -> Result<(), Failure> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*begun {
            Begun::GivenUp(columns) => return Err(Failure::Texts(columns.clone())),
            Begun::Open => *begun = Begun::Left,
            Begun::Left => {}
        }
        Ok(())
    }
}
