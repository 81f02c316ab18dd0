//! Pinned host memory, and whether host and copies keep out of each other's way.
//!
//!   host      write ──────────────────────── write again        the second write needs proof that the upload is over
//!   stream           └─ upload reads ─┘
//!
//! Order    copies are noted when they are submitted; the host is ordered after what it has waited for, and every
//!          submission after all that the host did before it.
//! Words    stored by a stream and polled by the host. A host that says it looked (`host_access`, atomic) is ordered
//!          after the last store that had landed.

use super::clock::{Epoch, Moment};
use super::order::{Classes, Conflict, Shadow, run_over};
use super::report::Submission;
use crate::driver::{Access, HostBlock, HostSpan, Site};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) block: Arc<HostBlock>,
    pub(super) device: u32,
    pub(super) site: Site,
    shadow: Shadow,
    /// Stores into each word, oldest first; those that are surely over are dropped.
    words: HashMap<usize, VecDeque<Moment>>,
    /// How often the host looked at a word in vain, in a row.
    patience: u32,
}

#[derive(Debug, Default)]
pub(super) struct HostMemory {
    blocks: HashMap<u64, Pinned>,
}

impl HostMemory {
    pub(super) fn add(&mut self, block: &Arc<HostBlock>, device: u32, site: Site) {
        let shadow = Shadow::new(block.len() as u64);
        let pinned = Pinned { block: block.clone(), device, site, shadow, words: HashMap::new(), patience: 0 };
        self.blocks.insert(block.id(), pinned);
    }

    pub(super) fn remove(&mut self, block: &HostBlock) -> Option<Pinned> {
        self.blocks.remove(&block.id())
    }

    pub(super) fn contains(&self, block: &HostBlock) -> bool {
        self.blocks.contains_key(&block.id())
    }

    /// What a device still has at its end.
    pub(super) fn of_device(&self, device: u32) -> Vec<&Pinned> {
        let mut blocks: Vec<_> = self.blocks.values().filter(|pinned| pinned.device == device).collect();
        blocks.sort_unstable_by_key(|pinned| pinned.block.id());
        blocks
    }

    /// Notes that a submission touches these bytes; returns whom it is not ordered after.
    pub(super) fn touch(
        &mut self,
        span: &HostSpan,
        classes: Classes,
        moment: &Moment,
        by: &Arc<Submission>,
    ) -> Vec<Conflict> {
        let Some(pinned) = self.blocks.get_mut(&span.block().id()) else { return Vec::new() };
        let run = run_over(span.offset() as u64, span.len() as u64, classes);
        pinned.shadow.touch(moment, by, &[run])
    }

    /// Whom the host disturbs by touching these bytes now.
    pub(super) fn disturbed(&self, span: &HostSpan, access: Access, host_saw: &dyn Fn(Epoch) -> bool) -> Vec<Conflict> {
        let Some(pinned) = self.blocks.get(&span.block().id()) else { return Vec::new() };
        let classes = match access {
            Access::Read => Classes::READ,
            Access::Write | Access::ReadWrite => Classes::WRITE,
            Access::Atomic => Classes::ATOMIC,
        };
        pinned.shadow.conflicts(run_over(span.offset() as u64, span.len() as u64, classes), host_saw)
    }

    /// Notes a store into a word.
    pub(super) fn word_submitted(&mut self, word: &HostSpan, moment: &Moment, finished: &dyn Fn(Epoch) -> bool) {
        if let Some(pinned) = self.blocks.get_mut(&word.block().id()) {
            let stores = pinned.words.entry(word.offset()).or_default();
            while stores.len() > 1 && finished(stores[1].epoch) {
                stores.pop_front();
            }
            stores.push_back(moment.clone());
        }
    }

    /// The stores that the host sees when it looks at these words now; or else a store that it may be waiting for, and
    /// how often it has looked in vain.
    pub(super) fn words_seen(
        &mut self,
        span: &HostSpan,
        finished: &dyn Fn(Epoch) -> bool,
    ) -> Result<Vec<Moment>, Option<(Moment, u32)>> {
        let Some(pinned) = self.blocks.get_mut(&span.block().id()) else { return Err(None) };
        let looked_at = |offset: usize| offset + 4 > span.offset() && offset < span.offset() + span.len();
        let stores: Vec<&VecDeque<Moment>> =
            pinned.words.iter().filter(|(offset, _)| looked_at(**offset)).map(|(_, stores)| stores).collect();
        let last = |stores: &&VecDeque<Moment>| stores.iter().rev().find(|moment| finished(moment.epoch)).cloned();
        let seen: Vec<Moment> = stores.iter().filter_map(last).collect();
        let waiting = stores.iter().flat_map(|stores| stores.iter()).find(|moment| !finished(moment.epoch)).cloned();
        match waiting {
            Some(moment) if seen.is_empty() => {
                pinned.patience = pinned.patience.saturating_add(1);
                Err(Some((moment, pinned.patience - 1)))
            }
            _ => {
                pinned.patience = 0;
                Ok(seen)
            }
        }
    }
}
