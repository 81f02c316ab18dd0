//! Result batches: kept until all are downloaded, limited by LIMIT and OFFSET, sent in the session's batch size.
//!
//!   download ─► keep ─► … the last one ─► send ─► reader        a small limit, or streaming: sent at once
//!
//! Until a batch has been sent, the CPU can take over, and an attempt can be abandoned for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use millpond_memory::recorder;
use tokio::sync::mpsc;

use crate::column::DictionaryId;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::profile::step;
use crate::program::answers::Questions;
use crate::program::part::Kept;

/// Destination of result batches.
#[derive(Clone)]
pub struct Output {
    pub sender: mpsc::Sender<datafusion::error::Result<RecordBatch>>,
    pub sent: Arc<AtomicU64>,
    pub batch_rows: usize,
    /// Batches are counted but not sent.
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

/// Partial result of one attempt.
pub struct Results {
    /// Rows that may still be sent, including those that the offset skips; and rows skipped so far.
    remaining: AtomicUsize,
    left_out: AtomicUsize,
    offset: usize,
    /// Batches that wait for the others, and their number of rows.
    kept: Mutex<Vec<RecordBatch>>,
    rows_kept: AtomicUsize,
    beginning: Beginning,
    out: Output,
    /// Assumptions to be checked before rows are sent.
    pub(crate) questions: Questions,
    /// Items of the lists in the rows.
    pub(crate) lists: Lists,
}

/// Items of lists and structures constructed by the program (`lists.rs`).
#[derive(Default)]
pub(crate) struct Lists(Mutex<HashMap<DictionaryId, Items>>);

/// Items in consecutive parts, on the device and on the host.
#[derive(Clone, Default)]
pub(crate) struct Items {
    /// Each part with its number of items, if known when it was kept.
    pub parts: Vec<(Arc<Kept>, Option<u64>)>,
    /// All items on the host, once downloaded.
    pub here: Option<ArrayRef>,
}

impl Items {
    /// Total number of items in parts of known size.
    pub fn known(&self) -> u64 {
        self.parts.iter().filter_map(|(_, rows)| *rows).sum()
    }
}

impl Lists {
    /// Calls `then` with the items of an ID, under the lock.
    pub fn with<T>(&self, id: DictionaryId, then: impl FnOnce(&mut Items) -> T) -> T {
        then(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default())
    }
}

impl Results {
    /// Result of at most `limit` rows after the first `offset`, sent once `asked` is checked.
    pub fn new(out: Output, offset: usize, limit: Option<usize>, questions: Questions) -> Self {
        Self {
            remaining: AtomicUsize::new(limit.map_or(usize::MAX, |n| n.saturating_add(offset))),
            left_out: AtomicUsize::new(0),
            offset,
            kept: Mutex::default(),
            rows_kept: AtomicUsize::new(0),
            beginning: Beginning::default(),
            out,
            questions,
            lists: Lists::default(),
        }
    }

    /// True once a row has been sent.
    pub fn has_left(&self) -> bool {
        self.out.sent.load(Ordering::Relaxed) > 0
    }

    /// Number of rows that may still be sent.
    pub fn wanted(&self) -> usize {
        self.remaining.load(Ordering::Relaxed).saturating_sub(self.rows_kept.load(Ordering::Relaxed))
    }

    /// Keeps a batch until all others are downloaded.
    pub fn keep(&self, batch: RecordBatch) {
        self.rows_kept.fetch_add(batch.num_rows(), Ordering::Relaxed);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    }

    /// Sends all kept batches.
    pub async fn send_kept(&self) -> Result<(), Failure> {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        self.rows_kept.store(0, Ordering::Relaxed);
        for batch in kept {
            self.send(batch).await?;
        }
        Ok(())
    }

    /// Abandons the attempt for another with texts in these columns, unless rows have been sent.
    pub fn give_up(&self, columns: &[(usize, usize)]) -> bool {
        self.beginning.give_up(columns)
    }

    /// Sends the rows of a batch that the limit still allows, after those that the offset skips. They are counted only
    /// here, where nothing can fail any more, so that a failed download does not use up the LIMIT.
    ///
    /// # Errors
    /// If an answer reused from an earlier run is not checked yet: rows may be wrong.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), Failure> {
        if !self.questions.is_checked() {
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

/// State of an attempt: it may still be abandoned for another with other string forms, or rows have been sent. Feeders
/// run concurrently: one may find that a column is better without a dictionary while another is ready to send rows.
#[derive(Debug, Default)]
pub struct Beginning(Mutex<Begun>);

#[derive(Debug, Default)]
enum Begun {
    #[default]
    Open,
    /// For another attempt with texts in these columns.
    GivenUp(Vec<(usize, usize)>),
    Left,
}

impl Beginning {
    /// Abandons the attempt, unless rows have been sent.
    fn give_up(&self, columns: &[(usize, usize)]) -> bool {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *begun {
            Begun::Left => return false,
            Begun::GivenUp(known) => known.extend(columns),
            Begun::Open => *begun = Begun::GivenUp(columns.to_vec()),
        }
        true
    }

    /// Marks rows as sent: from now on the attempt cannot be abandoned.
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
