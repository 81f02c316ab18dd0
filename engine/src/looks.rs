//! Files as they were when a run was planned, so that the run need not ask for them again.
//!
//!   repeated statement ─► its files are looked at ─► same as before ─► a copy of its plan, with these looks ─► the run
//!
//! Fresh    a look is the run's own, taken by its planning. A plan that is run much later asks again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;

/// So long after a plan was found its run begins, or it asks again.
const BEGINS_WITHIN: Duration = Duration::from_millis(100);

/// What object stores said of files.
#[derive(Debug)]
pub struct Looks {
    begun: Instant,
    /// By the store's address.
    files: HashMap<String, HashMap<Path, ObjectMeta>>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { begun: Instant::now(), files: HashMap::new() }
    }
}

impl Looks {
    /// Notes what `store` says of some files.
    pub fn note(&mut self, store: &str, files: &[ObjectMeta]) {
        let known = match self.files.get_mut(store) {
            Some(known) => known,
            None => self.files.entry(store.to_string()).or_default(),
        };
        known.extend(files.iter().map(|file| (file.location.clone(), file.clone())));
    }

    /// A file, as the run's planning has seen it.
    pub fn file(&self, store: &str, path: &Path) -> Option<&ObjectMeta> {
        self.files.get(store)?.get(path).filter(|_| self.begun.elapsed() < BEGINS_WITHIN)
    }
}
