//! Local files: their identity, and cached facts about them.
//!
//!   DataFusion, the store ─► LocalFiles ─► meta { size, time, tag }     tag = device, inode, size, both times
//!                                └─ noted ─► LastTags ◄─ checked ─ caches of footers and statistics
//!
//! Lists    of local folders are not cached: each planning lists them.
//! Writes   of a failed statement create or replace no file (`whole`); keys are written as texts (`keys`).
//! Patterns of paths follow shell rules (`pattern`).
//! Pipes    are read once, and only under the names that a shell uses for them (`streams`).
//! Others   remote stores and their caches are unchanged.

pub mod address;
mod caches;
pub(crate) mod keys;
mod local;
pub(crate) mod pattern;
mod streams;
mod whole;
mod written;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datafusion::error::Result;
use datafusion::execution::cache::cache_manager::{
    CacheManager, CacheManagerConfig, CachedFileMetadata, CachedFileMetadataEntry, FileStatisticsCache, ListFilesCache,
};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use url::Url;

use crate::files::caches::{Checked, LastTags, RemoteLists};
use crate::files::local::LocalFiles;

pub(crate) use crate::files::local::{is_same_file, kind_of_special, refusal};
pub(crate) use crate::files::streams::is_name_of_stream;
pub use crate::files::streams::standard_input_was_read_as;
pub(crate) use crate::files::whole::WholeFiles;
pub(crate) use crate::files::written::Writes;

/// A runtime like `given`, with [`LocalFiles`] instead of DataFusion's store of local files, and caches that check its
/// tags. A file that changed less than `settles` ago is always read again.
///
/// # Errors
/// DataFusion's, from the caches.
pub(crate) fn runtime(given: &Arc<RuntimeEnv>, settles: Duration) -> Result<Arc<RuntimeEnv>> {
    if format!("{:?}", given.object_store_registry).starts_with(Registry::NAME) {
        return Ok(Arc::clone(given));
    }
    let seen = Arc::<LastTags>::default();
    let known = &given.cache_manager;
    let footers = Checked::new(known.get_file_metadata_cache(), &seen, |footer: &CachedFileMetadataEntry| &footer.meta);
    let checked = |cache| {
        Arc::new(Checked::new(cache, &seen, |file: &CachedFileMetadata| &file.meta)) as Arc<FileStatisticsCache>
    };
    let statistics = known.get_file_statistic_cache().map(checked);
    let remote = |cache| Arc::new(RemoteLists::new(cache)) as Arc<ListFilesCache>;
    let lists = known.get_list_files_cache().map(remote);
    let caches = CacheManager::try_new(&CacheManagerConfig {
        file_statistics_cache: statistics,
        file_statistics_cache_limit: known.get_file_statistic_cache_limit(),
        list_files_cache: lists,
        list_files_cache_limit: known.get_list_files_cache_limit(),
        list_files_cache_ttl: known.get_list_files_cache_ttl(),
        file_metadata_cache: Some(Arc::new(footers)),
        metadata_cache_limit: known.get_metadata_cache_limit(),
    })?;
    let files = Arc::new(LocalFiles::new(&seen, settles, Arc::new(SystemTime::now)));
    let registry = Registry { given: Arc::clone(&given.object_store_registry), plain: files.to_string(), files };
    Ok(Arc::new(RuntimeEnv {
        cache_manager: caches,
        object_store_registry: Arc::new(registry),
        ..given.as_ref().clone()
    }))
}

/// Object stores of a session, with [`LocalFiles`] instead of DataFusion's store.
struct Registry {
    given: Arc<dyn ObjectStoreRegistry>,
    /// Display text of DataFusion's store of local files.
    plain: String,
    files: Arc<LocalFiles>,
}

impl Registry {
    const NAME: &str = "Millpond's registry over ";
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", Self::NAME, self.given)
    }
}

impl ObjectStoreRegistry for Registry {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.given.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.given.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let store = self.given.get_store(url)?;
        // A local store that a program has registered is kept.
        let is_plain = url.scheme() == "file" && store.to_string() == self.plain;
        Ok(if is_plain { Arc::clone(&self.files) as _ } else { store })
    }
}

/// True for metadata from [`LocalFiles`].
fn is_local(meta: &ObjectMeta) -> bool {
    meta.e_tag.as_deref().is_some_and(|tag| tag.starts_with(local::TAG))
}
