//! Reads numbers from the device that decide the next step: waits for them, or continues with those of an earlier run.
//!
//!   ask(segment, question, control block) ─┬─ a first run: awaited, kept          see [`answers`](super::answers)
//!                                          └─ known: copied for the check, used at once
//!
//! Waits    in a first run, once for each question; in later runs never.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_kernels::abi::CONTROL_BYTES;
use millpond_memory::{DeviceView, HostKind, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::answers::{Answers, Check, Question, Reading, Site, State, Thing};
use crate::program::run::Run;

/// Maximum number of control blocks copied for the final check; further questions wait as in a first run.
const CHECKS: usize = 256;

impl Run {
    /// Returns what `read` finds in the control blocks `views`, written on `stream`: known from an earlier run, or
    /// awaited.
    pub async fn read_back(
        &self,
        (segment, question): (usize, Question),
        views: &[DeviceView],
        read: Reading,
        stream: &Stream,
    ) -> Result<Vec<u64>, Failure> {
        self.read_back_below((segment, question), u64::MAX, views, read, stream).await.map(|(words, _)| words)
    }

    /// Like [`read_back`](Self::read_back), but reuses an earlier answer only if none of its words exceeds `most`. The
    /// flag is true if the answer was assumed.
    pub async fn read_back_below(
        &self,
        (segment, question): (usize, Question),
        most: u64,
        views: &[DeviceView],
        read: Reading,
        stream: &Stream,
    ) -> Result<(Vec<u64>, bool), Failure> {
        let site = self.site(segment, question);
        let known = self.answers().and_then(|answers| answers.known().words.get(&site).cloned());
        let known =
            known.map(|words| if self.is_to_be_wrong() { words.into_iter().map(wrong).collect() } else { words });
        if let Some(words) = known.filter(|words| words.iter().all(|word| *word <= most))
            && self.assume(words.clone(), views, read, stream)?
        {
            return Ok((words, true));
        }
        let mut staging =
            self.context.engine.pinned.take(HostKind::Download, views.iter().map(DeviceView::len).sum()).await?;
        let mut at = 0;
        for view in views {
            staging.enqueue_to_host(at..at + view.len(), view, stream)?;
            at += view.len();
        }
        let staging = staging.idle()?.await?;
        let words = read(&staging.read()?)?;
        self.answer(site, words.clone());
        Ok((words, false))
    }

    /// Answers of earlier runs, if this attempt may reuse them.
    fn answers(&self) -> Option<&Answers> {
        let answers = self.prepared.answers();
        (self.results.questions.holds && !answers.change()).then_some(answers)
    }

    /// Counts a reused answer; true if `debug_surprises` falsifies it.
    pub fn is_to_be_wrong(&self) -> bool {
        let each = self.context.options.debug_surprises;
        let mut state = self.results.questions.state();
        state.taken_over += 1;
        each > 0 && state.taken_over.is_multiple_of(each)
    }

    /// Site of the segment's next question of this kind.
    fn site(&self, segment: usize, question: Question) -> Site {
        let mut state = self.results.questions.state();
        let turn = state.turns.entry((segment, question)).or_default();
        *turn += 1;
        (segment, question, *turn - 1)
    }

    /// Keeps an answer for later runs; stored when this run succeeds.
    fn answer(&self, site: Site, words: Vec<u64>) {
        self.results.questions.state().found.words.insert(site, words);
    }

    /// Merges the last `asked` questions into one with the answer `words`: a later run asks only once.
    pub fn answer_at_once(&self, (segment, question): (usize, Question), asked: u32, words: Vec<u64>) {
        let mut state = self.results.questions.state();
        let State { turns, found, .. } = &mut *state;
        let turn = turns.entry((segment, question)).or_default();
        let first = turn.saturating_sub(asked);
        (first..*turn).for_each(|turn| drop(found.words.remove(&(segment, question, turn))));
        *turn = first + 1;
        found.words.insert((segment, question, first), words);
    }

    /// Keeps the row count of a segment's part. If the segment has no other part, later runs allocate no more for it.
    pub fn keep_capacity(&self, segment: usize, rows: u64) {
        let site = (segment, Question::Capacity, 0);
        if self.answers().is_some_and(|answers| answers.known().words.contains_key(&site)) {
            return;
        }
        let mut state = self.results.questions.state();
        state.found.words.entry(site).and_modify(Vec::clear).or_insert_with(|| vec![rows]);
    }

    /// Row count of the segment's only part in an earlier run.
    pub fn known_capacity(&self, segment: usize) -> Option<u64> {
        let words = self.answers()?.known().words.get(&(segment, Question::Capacity, 0)).cloned()?;
        let [rows] = words.as_slice() else { return None };
        Some(if self.is_to_be_wrong() { wrong(*rows) } else { *rows })
    }

    /// Continues with `words`; [`check`](Self::check) compares them with the control blocks `views` before the result
    /// leaves. False if there is no room for another check.
    pub fn assume(
        &self,
        words: Vec<u64>,
        views: &[DeviceView],
        read: Reading,
        stream: &Stream,
    ) -> Result<bool, Failure> {
        let asked = &self.results.questions;
        let mut state = asked.state();
        let (from, room) = (state.end, CHECKS * CONTROL_BYTES as usize);
        let to = from + views.iter().map(DeviceView::len).sum::<usize>();
        if to > room {
            return Ok(false);
        }
        if state.copied.is_none() {
            let Ok(copied) = self.context.engine.pinned.take_now(HostKind::Download, room) else { return Ok(false) };
            state.copied = Some(copied);
        }
        let copied = state.copied.as_mut().ok_or_else(|| EngineError::internal("the copies have a place"))?;
        let mut at = from;
        for view in views {
            copied.enqueue_to_host(at..at + view.len(), view, stream)?;
            at += view.len();
        }
        state.end = to;
        state.checks.push(Check { at: from..to, read, assumed: words });
        asked.assumed.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// An operator's data about a segment from an earlier run.
    pub fn known<T: Send + Sync + 'static>(&self, segment: usize) -> Option<Arc<T>> {
        let thing = self.answers()?.known().things.get(&segment).cloned()?;
        thing.downcast().ok()
    }

    /// Keeps an operator's data about a segment for later runs; stored when this run succeeds.
    pub fn keep_known(&self, segment: usize, thing: Thing) {
        self.results.questions.state().found.things.insert(segment, thing);
    }

    /// Leaves data about a segment for later segments of this attempt that do not read its rows.
    pub fn leave(&self, segment: usize, thing: Thing) {
        self.results.questions.state().left.insert(segment, thing);
    }

    /// Data that segment `segment` has left.
    pub fn left<T: Send + Sync + 'static>(&self, segment: usize) -> Option<Arc<T>> {
        let left = self.results.questions.state().left.get(&segment).cloned();
        left.and_then(|thing| thing.downcast().ok())
    }

    /// Orders later work on `stream` after the copies for the check.
    pub fn check_before(&self, stream: &Stream) -> Result<(), Failure> {
        let state = self.results.questions.state();
        Ok(state.copied.as_ref().map_or(Ok(()), |copied| copied.goes_before(stream))?)
    }

    /// Checks the assumed answers, and keeps the new ones for later runs.
    ///
    /// # Errors
    /// [`Failure::Surprise`] if an assumption was wrong.
    pub async fn check(&self) -> Result<(), Failure> {
        let asked = &self.results.questions;
        let State { found, checks, copied, .. } = std::mem::take(&mut *asked.state());
        if let Some(copied) = copied {
            let copied = if copied.is_idle()? { copied } else { copied.idle()?.await? };
            let bytes = copied.read()?;
            for Check { at, read, assumed } in checks {
                let is_so = bytes.get(at).is_some_and(|bytes| read(bytes).is_ok_and(|words| words == assumed));
                if !is_so {
                    return Err(Failure::Surprise);
                }
            }
        }
        if let Some(answers) = self.answers() {
            let kept = found.words.len() + found.things.len();
            self.context.tally.answers_kept.fetch_add(kept as u64, Ordering::Relaxed);
            let mut known = answers.known();
            known.words.extend(found.words);
            known.things.extend(found.things);
        }
        Ok(())
    }
}

/// A falsified answer, too large or too small.
fn wrong(word: u64) -> u64 {
    if word.is_multiple_of(2) { word / 2 + 1 } else { word * 3 }
}
