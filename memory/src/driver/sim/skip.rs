//! Launches that are accepted and not run: what is left of a query is what it costs its host.
//!
//!   keep    launches run; the bytes of each download are kept
//!   skip    nothing on the device runs or moves; a download gets the bytes that the same download got in the kept run
//!
//! Same     downloads of as many bytes by the same line of the host, the n-th time in either run: so a host that does
//!          the same again reads the same, its counts and sizes among it, and takes the same path.
//! Refuses  a download that the kept run did not have: the host took another path, and nothing is known of it.
//! Checks   of handles, pinned memory and the order of the host's calls stay. Those of bytes on the device see nothing.
//! Since    the host's path depends on what it reads alone, no form of query is left out; what differs between two runs
//!          of its own accord (several feeders that share one source) may be refused.

use super::state::{State, refuse};
use crate::driver::{DriverCode, Result, Site};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The bytes of one download; empty until it has run.
pub(super) type Read = Arc<OnceLock<Box<[u8]>>>;

/// Who downloads, and how many bytes.
type Place = (Site, u64);

/// What the host read in a run, by [`SimDriver::keep_downloads`](super::SimDriver::keep_downloads).
#[derive(Debug, Clone, Default)]
pub struct KeptDownloads {
    reads: HashMap<Place, Vec<Read>>,
}

impl KeptDownloads {
    /// How many downloads were kept.
    pub fn len(&self) -> usize {
        self.reads.values().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }
}

/// What becomes of launches.
#[derive(Debug, Default)]
pub(super) struct Launches {
    mode: Mode,
    /// When the first was skipped since they last began to be.
    pub(super) first_skipped: Option<Instant>,
}

#[derive(Debug, Default)]
enum Mode {
    #[default]
    Run,
    /// They run, and downloads are kept.
    Keep(KeptDownloads),
    /// They do not run. How many downloads of each place were given.
    Skip { kept: Arc<KeptDownloads>, given: HashMap<Place, usize> },
}

/// What a download does when its turn comes.
pub(super) enum Download {
    Run,
    Keep(Read),
    Give(Read),
}

impl Launches {
    pub(super) fn keep(&mut self) {
        self.mode = Mode::Keep(KeptDownloads::default());
    }

    pub(super) fn skip(&mut self, kept: &Arc<KeptDownloads>) {
        self.first_skipped = None;
        self.mode = Mode::Skip { kept: Arc::clone(kept), given: HashMap::new() };
    }

    /// Launches run again. Gives what was kept, if it was to be.
    pub(super) fn run(&mut self) -> Option<KeptDownloads> {
        match std::mem::take(&mut self.mode) {
            Mode::Keep(kept) => Some(kept),
            _ => None,
        }
    }

    pub(super) fn are_skipped(&self) -> bool {
        matches!(self.mode, Mode::Skip { .. })
    }

    /// Whether launches may run at the same time: what the host reads is neither kept nor given.
    pub(super) fn may_overlap(&self) -> bool {
        matches!(self.mode, Mode::Run)
    }

    /// True where a launch is skipped; notes when the host has got as far as the first.
    pub(super) fn is_skipped(&mut self) -> bool {
        if self.are_skipped() {
            self.first_skipped.get_or_insert_with(Instant::now);
        }
        self.are_skipped()
    }
}

impl State {
    /// Decides how a download of `bytes` bytes is handled.
    pub(super) fn downloads(&mut self, call: &'static str, bytes: u64, site: Site) -> Result<Download> {
        match &mut self.launches.mode {
            Mode::Run => Ok(Download::Run),
            Mode::Keep(kept) => {
                let read = Read::default();
                kept.reads.entry((site, bytes)).or_default().push(Arc::clone(&read));
                Ok(Download::Keep(read))
            }
            Mode::Skip { kept, given } => {
                let nth = given.entry((site, bytes)).or_default();
                *nth += 1;
                match kept.reads.get(&(site, bytes)).and_then(|reads| reads.get(*nth - 1)) {
                    Some(read) => Ok(Download::Give(Arc::clone(read))),
                    None => {
                        let detail = format!(
                            "launches are skipped, and the run that was kept has no download {nth} of {bytes} bytes at {site}: keep one that takes this path"
                        );
                        refuse(call, DriverCode::NOT_SUPPORTED, detail)
                    }
                }
            }
        }
    }
}
