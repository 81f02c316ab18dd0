//! What object stores said of files lately.
//!
//!   file? ─► local, or `cache_check_seconds` = 0 ─► its store is asked
//!        └─► remote ─ answered less than so many seconds ago? ─ yes ─► that answer
//!                                                             └─ no ──► its store is asked
//!
//! One per session, found among its extensions; a session without one asks each time, and so does one that has written files since.
//! After a load it is always asked: a file that changed meanwhile may have given rows of both.

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

/// How old an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Now,
    /// As the session allows.
    Lately,
}

/// Answers that are kept, at most; then the old ones go.
const ANSWERS: usize = 1 << 16;

/// Answers of object stores, by store and path.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// How long an answer holds.
    holds: Duration,
    /// How often the session had written files when these were asked for.
    writes: u64,
    answers: Arc<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    files: Mutex<Kept<ObjectMeta>>,
    folders: Mutex<Kept<Arc<Vec<ObjectMeta>>>>,
}

/// When an answer was given, after how many writes of the session, and the answer.
type Kept<T> = HashMap<(String, Path), (Instant, u64, T)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checks {
    /// Gives a session answers of its own.
    pub fn add_to(config: &mut SessionConfig) {
        config.set_extension(Arc::new(Answers::default()));
        Writes::add_to(config);
    }

    /// Those of a session.
    pub fn of(config: &SessionConfig) -> Self {
        let options = config.options().extensions.get::<MillpondOptions>();
        let seconds = options.map_or(0, |options| options.cache_check_seconds);
        let answers = config.get_extension::<Answers>();
        let holds = if answers.is_some() { Duration::from_secs(seconds.into()) } else { Duration::ZERO };
        Self { holds, writes: Writes::of(config), answers: answers.unwrap_or_default() }
    }

    /// What `store` says of a file.
    ///
    /// # Errors
    /// The store's: a file that is not there, or cannot be reached.
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

    /// The files of a folder and below it, by name.
    ///
    /// # Errors
    /// The store's: a folder that cannot be listed.
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

    /// The files of a table's path: those of its folder, or the one file.
    ///
    /// # Errors
    /// As of [`list`](Self::list) and [`head`](Self::head).
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
