//! Cache of recent metadata from object stores.
//!
//!   file? ─► local, or `cache_check_seconds` = 0 ─► request to its store
//!        └─► remote ─ answered within that time? ─ yes ─► cached answer
//!                                                └─ no ──► request to its store
//!
//! One per session, stored as an extension; a session without one always sends a request, and so does a session that
//! has written files since. After a load a request is always sent: a file that changed meanwhile may have contributed
//! rows of both versions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::Result;
use datafusion::execution::config::SessionConfig;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::path::Path;
use datafusion::object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use futures::TryStreamExt;

use crate::files::Writes;
use crate::options::MillpondOptions;

/// Maximum age of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Now,
    /// As configured in the session.
    Lately,
}

/// Maximum number of cached answers; beyond it, old ones are dropped.
const ANSWERS: usize = 1 << 16;

/// Answers of object stores, by store and path.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Time that an answer is valid.
    holds: Duration,
    /// The session's write count when the answers were requested.
    writes: u64,
    answers: Arc<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    files: Mutex<Kept<ObjectMeta>>,
    folders: Mutex<Kept<Arc<Vec<ObjectMeta>>>>,
}

/// Time of an answer, the session's write count at that time, and the answer.
type Kept<T> = HashMap<(String, Path), (Instant, u64, T)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checks {
    /// Adds an answer cache to a session.
    pub fn add_to(config: &mut SessionConfig) {
        config.set_extension(Arc::new(Answers::default()));
        Writes::add_to(config);
    }

    /// Checks with the cache of a session.
    pub fn of(config: &SessionConfig) -> Self {
        let options = config.options().extensions.get::<MillpondOptions>();
        let seconds = options.map_or(0, |options| options.cache_check_seconds);
        let answers = config.get_extension::<Answers>();
        let holds = if answers.is_some() { Duration::from_secs(seconds.into()) } else { Duration::ZERO };
        Self { holds, writes: Writes::of(config), answers: answers.unwrap_or_default() }
    }

    /// Metadata of a file, as reported by `store`.
    ///
    /// # Errors
    /// The store's: the file is missing or unreachable.
    pub async fn head(
        &self,
        url: &ObjectStoreUrl,
        store: &Arc<dyn ObjectStore>,
        file: &Path,
        age: Age,
    ) -> Result<ObjectMeta> {
        let key = (url.as_str().to_string(), file.clone());
        if age == Age::Lately
            && let Some(known) = self.known(&self.answers.files, &key)
        {
            return Ok(known);
        }
        let meta = store.head(file).await?;
        self.keep(&self.answers.files, key, &meta);
        Ok(meta)
    }

    /// Files of a folder, recursively, sorted by name.
    ///
    /// # Errors
    /// The store's: the folder cannot be listed.
    pub async fn list(
        &self,
        url: &ObjectStoreUrl,
        store: &Arc<dyn ObjectStore>,
        folder: &Path,
    ) -> Result<Arc<Vec<ObjectMeta>>> {
        let key = (url.as_str().to_string(), folder.clone());
        if let Some(known) = self.known(&self.answers.folders, &key) {
            return Ok(known);
        }
        let mut files: Vec<ObjectMeta> = store.list(Some(folder)).try_collect().await?;
        files.sort_by(|a, b| a.location.cmp(&b.location));
        let files = Arc::new(files);
        self.keep(&self.answers.folders, key, &files);
        Ok(files)
    }

    /// Files of a table's path: those of its folder, or the single file.
    ///
    /// # Errors
    /// Like [`list`](Self::list) and [`head`](Self::head).
    pub async fn files_of(&self, url: &ListingTableUrl, store: &Arc<dyn ObjectStore>) -> Result<Vec<ObjectMeta>> {
        let of = url.object_store();
        if url.is_collection() {
            return Ok(self.list(&of, store, url.prefix()).await?.to_vec());
        }
        Ok(vec![self.head(&of, store, url.prefix(), Age::Lately).await?])
    }

    fn known<T: Clone>(&self, of: &Mutex<Kept<T>>, key: &(String, Path)) -> Option<T> {
        if self.holds.is_zero() {
            return None;
        }
        let kept = lock(of);
        let (at, writes, answer) = kept.get(key)?;
        (at.elapsed() < self.holds && *writes == self.writes).then(|| answer.clone())
    }

    fn keep<T: Clone>(&self, of: &Mutex<Kept<T>>, key: (String, Path), answer: &T) {
        if self.holds.is_zero() || key.0.starts_with("file:") {
            return;
        }
        let mut kept = lock(of);
        if kept.len() >= ANSWERS {
            kept.retain(|_, (at, ..)| at.elapsed() < self.holds);
        }
        if kept.len() < ANSWERS {
            kept.insert(key, (Instant::now(), self.writes, answer.clone()));
        }
    }
}
