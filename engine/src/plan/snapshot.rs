//! Snapshots of file metadata from planning, so that the run need not request them again.
//!
//!   repeated statement ─► its files are checked ─► unchanged ─► a copy of its plan, with these snapshots ─► the run
//!
//! Fresh    a snapshot belongs to one run and is taken while that is planned. A plan that runs much later requests the
//!          metadata again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;

/// Maximum age of the snapshots; a run that starts later requests the metadata again.
const BEGINS_WITHIN: Duration = Duration::from_millis(100);

/// File metadata as reported by object stores.
#[derive(Debug)]
pub struct Looks {
    begun: Instant,
    /// Keyed by the store's address.
    files: HashMap<String, HashMap<Path, ObjectMeta>>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { begun: Instant::now(), files: HashMap::new() }
    }
}

impl Looks {
    /// Records metadata that `store` reported for some files.
    pub fn note(&mut self, store: &str, files: &[ObjectMeta]) {
        let known = match self.files.get_mut(store) {
            Some(known) => known,
            None => self.files.entry(store.to_string()).or_default(),
        };
        known.extend(files.iter().map(|file| (file.location.clone(), file.clone())));
    }

    /// Metadata of a file, as recorded by the run's planning.
    pub fn file(&self, store: &str, path: &Path) -> Option<&ObjectMeta> {
        self.files.get(store)?.get(path).filter(|_| self.begun.elapsed() < BEGINS_WITHIN)
    }
}
