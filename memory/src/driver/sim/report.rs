//! Keeps what the checks found, and words it.
//!
//!   stream order: launch of `scale` on stream 18 writes bytes 0..32 of buffer #7 (4 KiB at 0x700000000000, allocated
//!                 at engine/src/a.rs:3:5), not ordered after download on stream 17, which reads them
//!
//! Once     a pair of submissions is reported once per buffer and rule, however often the two meet.
//! Bounds   `MOST_FINDINGS` are kept; the rest is counted.

use super::clock::Epoch;
use super::order::Touch;
use crate::driver::{Finding, FindingKind, Site, StreamHandle};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

const MOST_FINDINGS: usize = 256;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Allocation,
    Free,
    Upload,
    Download,
    Copy,
    Fill,
    Word,
    Launch(Arc<str>),
    Wait,
    Record,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Allocation => f.write_str("allocation"),
            What::Free => f.write_str("free"),
            What::Upload => f.write_str("upload"),
            What::Download => f.write_str("download"),
            What::Copy => f.write_str("copy"),
            What::Fill => f.write_str("fill"),
            What::Word => f.write_str("store of a word"),
            What::Launch(kernel) => write!(f, "launch of `{kernel}`"),
            What::Wait => f.write_str("wait"),
            What::Record => f.write_str("record"),
        }
    }
}

/// One operation that was submitted to a stream, shared by the records that refer to it.
#[derive(Debug)]
pub(super) struct Submission {
    /// Counts all submissions of the driver, in program order.
    pub(super) number: u64,
    pub(super) epoch: Epoch,
    pub(super) stream: StreamHandle,
    pub(super) site: Option<Site>,
    pub(super) what: What,
    /// For each buffer that a kernel touched: the PTX lines of its first load, store and atomic. Known when it has run.
    pub(super) lines: OnceLock<Vec<(u64, [Option<u32>; 3])>>,
}

impl Submission {
    /// The kernel, if it is a launch.
    pub(super) fn kernel(&self) -> Option<&str> {
        match &self.what {
            What::Launch(kernel) => Some(kernel),
            _ => None,
        }
    }

    /// The PTX line that first touched a buffer so.
    pub(super) fn line(&self, buffer: u64, touch: Touch) -> Option<u32> {
        let (_, lines) = self.lines.get()?.iter().find(|(touched, _)| *touched == buffer)?;
        lines[touch as usize]
    }

    #[cfg(test)]
    pub(super) fn for_test(epoch: Epoch) -> Self {
        let number = epoch.seq * 1000 + u64::from(epoch.lane);
        Self {
            number,
            epoch,
            stream: StreamHandle(u64::from(epoch.lane)),
            site: None,
            what: What::Fill,
            lines: OnceLock::new(),
        }
    }
}

impl fmt::Display for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on stream {}", self.what, self.stream.0)
    }
}

/// All findings of one driver.
#[derive(Debug)]
pub(super) struct Reports {
    seed: u64,
    findings: Vec<Finding>,
    dropped: u64,
    /// Number of `findings` that the caller has read.
    seen: usize,
    known: HashSet<(FindingKind, u64, u64, u64)>,
}

impl Reports {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, findings: Vec::new(), dropped: 0, seen: 0, known: HashSet::new() }
    }

    /// Keeps a finding about `by` and, if there is one, the earlier submission that it clashes with.
    pub(super) fn add(
        &mut self,
        kind: FindingKind,
        buffer: u64,
        by: Option<&Submission>,
        earlier: Option<&Submission>,
        message: String,
    ) -> Option<&mut Finding> {
        let number = |by: Option<&Submission>| by.map_or(0, |by| by.number);
        let key = (kind, buffer, number(by), number(earlier));
        if (by.is_some() || earlier.is_some()) && self.known.contains(&key) {
            return None;
        }
        if self.findings.len() >= MOST_FINDINGS {
            self.dropped += 1;
            return None;
        }
        self.known.insert(key);
        let mut finding = Finding::new(kind, message);
        finding.seed = Some(self.seed);
        if let Some(by) = by {
            finding.stream = Some(by.stream);
            finding.site = by.site;
        }
        if let Some(earlier) = earlier {
            finding.earlier_stream = Some(earlier.stream);
            finding.earlier_site = earlier.site;
        }
        finding.kernel = by.and_then(Submission::kernel).or(earlier.and_then(Submission::kernel)).map(str::to_owned);
        self.findings.push(finding);
        self.findings.last_mut()
    }

    /// All findings, oldest first.
    pub(super) fn all(&mut self) -> Vec<Finding> {
        self.seen = self.findings.len();
        self.findings.clone()
    }

    /// Returns all findings and clears them.
    pub(super) fn take(&mut self) -> Vec<Finding> {
        self.seen = 0;
        self.dropped = 0;
        self.known.clear();
        std::mem::take(&mut self.findings)
    }

    /// Findings that were never read, as one text; empty if there are none.
    pub(super) fn unseen(&mut self) -> String {
        let mut text = String::new();
        for finding in &self.findings[self.seen..] {
            text.push_str(&format!("{finding}\n"));
        }
        if self.dropped > 0 && !text.is_empty() {
            text.push_str(&format!("and {} more\n", self.dropped));
        }
        self.seen = self.findings.len();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_reported_once_and_unseen_findings_are_told_once() {
        let mut reports = Reports::new(9);
        let a = Submission::for_test(Epoch { lane: 0, seq: 1 });
        let b = Submission::for_test(Epoch { lane: 1, seq: 1 });
        let kind = FindingKind::UnorderedAccess;
        assert!(reports.add(kind, 1, Some(&a), Some(&b), "one".into()).is_some());
        assert!(reports.add(kind, 1, Some(&a), Some(&b), "one".into()).is_none());
        assert!(reports.add(kind, 2, Some(&a), Some(&b), "two".into()).is_some());
        assert!(reports.unseen().contains("seed        9"));
        assert!(reports.unseen().is_empty());
        assert_eq!(reports.all().len(), 2);
        assert_eq!(reports.take().len(), 2);
        assert!(reports.all().is_empty());
    }

    #[test]
    fn findings_stay_bounded() {
        let mut reports = Reports::new(0);
        for _ in 0..MOST_FINDINGS + 7 {
            reports.add(FindingKind::Leak, 0, None, None, "leak".into());
        }
        assert_eq!(reports.all().len(), MOST_FINDINGS);
        assert_eq!(reports.dropped, 7);
    }
}
