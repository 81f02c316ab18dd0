//! Wrappers of DataFusion's caches of footers, statistics and listings that ignore entries of files that have changed.
//!
//!   get(path) ─► entry, for the file with tag x ─ x the last tag of this path? ─ yes ─► the entry
//!                                                                              └─ no ──► none: the file is read again
//!
//! Why      DataFusion compares only size and modification time. These can be equal after an in-place write whose time
//!          was set back, and for another file behind a link.
//! Threads  one lock around the tags, held only for lookups.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datafusion::common::{HashMap as Entries, TableReference};
use datafusion::error::Result;
use datafusion::execution::cache::cache_manager::CachedFileList;
use datafusion::execution::cache::{Cache, CacheEntryInfo, CacheKey, CacheValue, TableScopedPath};
use datafusion::object_store::ObjectMeta;

use crate::files::is_local;

/// Maximum number of remembered local files, 16 bytes each; beyond it, all are forgotten and cached entries are read
/// again.
const FILES: usize = 1 << 20;

/// Last seen tag of each path; hashes of both.
#[derive(Debug, Default)]
pub(crate) struct LastTags {
    tags: Mutex<HashMap<u64, u64>>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl LastTags {
    fn tags(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the current tag of a file.
    pub fn note(&self, meta: &ObjectMeta) {
        let mut tags = self.tags();
        if tags.len() >= FILES {
            tags.clear();
        }
        tags.insert(hash(&meta.location), hash(&meta.e_tag));
    }

    /// True if the file is the one last seen at its path, and for files of other stores.
    fn is_current(&self, meta: &ObjectMeta) -> bool {
        !is_local(meta) || self.tags().get(&hash(&meta.location)) == Some(&hash(&meta.e_tag))
    }
}

/// A cache in which each entry belongs to one file.
pub(crate) struct Checked<K: CacheKey, V: CacheValue> {
    inner: Arc<dyn Cache<K, V>>,
    seen: Arc<LastTags>,
    file: fn(&V) -> &ObjectMeta,
}

impl<K: CacheKey, V: CacheValue> Checked<K, V> {
    pub fn new(inner: Arc<dyn Cache<K, V>>, seen: &Arc<LastTags>, file: fn(&V) -> &ObjectMeta) -> Self {
        Self { inner, seen: Arc::clone(seen), file }
    }
}

/// Cache methods that delegate to the inner cache.
macro_rules! as_inner {
    ($key:ty, $value:ty) => {
        fn remove(&self, key: &$key) -> Option<$value> {
            self.inner.remove(key)
        }

        fn len(&self) -> usize {
            self.inner.len()
        }

        fn clear(&self) {
            self.inner.clear();
        }

        fn name(&self) -> String {
            self.inner.name()
        }

        fn cache_limit(&self) -> usize {
            self.inner.cache_limit()
        }

        fn update_cache_limit(&self, limit: usize) {
            self.inner.update_cache_limit(limit);
        }

        fn cache_ttl(&self) -> Option<Duration> {
            self.inner.cache_ttl()
        }

        fn update_cache_ttl(&self, ttl: Option<Duration>) {
            self.inner.update_cache_ttl(ttl);
        }

        fn drop_table_entries(&self, table: &TableReference) -> Result<()> {
            self.inner.drop_table_entries(table)
        }

        fn list_entries(&self) -> Entries<$key, CacheEntryInfo<$value>> {
            self.inner.list_entries()
        }
    };
}

impl<K: CacheKey, V: CacheValue> Cache<K, V> for Checked<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entry = self.inner.get(key)?;
        if self.seen.is_current((self.file)(&entry)) {
            return Some(entry);
        }
        self.inner.remove(key);
        None
    }

    fn put(&self, key: &K, value: V) -> Option<V> {
        self.inner.put(key, value)
    }

    fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    as_inner!(K, V);
}

/// A cache of listings of remote folders only: a cached listing of a local folder would miss changes in it.
pub(crate) struct RemoteLists {
    inner: Arc<dyn Cache<TableScopedPath, CachedFileList>>,
}

impl RemoteLists {
    pub fn new(inner: Arc<dyn Cache<TableScopedPath, CachedFileList>>) -> Self {
        Self { inner }
    }
}

impl Cache<TableScopedPath, CachedFileList> for RemoteLists {
    fn get(&self, key: &TableScopedPath) -> Option<CachedFileList> {
        self.inner.get(key)
    }

    fn put(&self, key: &TableScopedPath, list: CachedFileList) -> Option<CachedFileList> {
        match list.files.first() {
            Some(file) if is_local(file) => self.inner.remove(key),
            _ => self.inner.put(key, list),
        }
    }

    fn contains_key(&self, key: &TableScopedPath) -> bool {
        self.inner.contains_key(key)
    }

    as_inner!(TableScopedPath, CachedFileList);
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::time::SystemTime;

    use datafusion::execution::cache::cache_manager::{CachedFileMetadataEntry, FileMetadata};
    use datafusion::execution::cache::default_cache::DefaultCache;
    use datafusion::object_store::path::Path;

    use super::*;
    use crate::files::local::TAG;

    struct Footer;

    impl FileMetadata for Footer {
        fn as_any(&self) -> &dyn Any {
            self
        }

        fn memory_size(&self) -> usize {
            1
        }

        fn extra_info(&self) -> Entries<String, String> {
            Entries::default()
        }
    }

    fn meta(tag: &str) -> ObjectMeta {
        let (location, last_modified) = (Path::from("a"), SystemTime::UNIX_EPOCH.into());
        ObjectMeta { location, last_modified, size: 1, e_tag: Some(tag.to_string()), version: None }
    }

    #[test]
    fn an_entry_of_another_file_is_forgotten() {
        let seen = Arc::<LastTags>::default();
        let inner: Arc<dyn Cache<Path, CachedFileMetadataEntry>> = Arc::new(DefaultCache::new(1000));
        let cache = Checked::new(Arc::clone(&inner), &seen, |footer: &CachedFileMetadataEntry| &footer.meta);
        let (one, other) = (meta(&format!("{TAG}1")), meta(&format!("{TAG}2")));
        let has = |meta: &ObjectMeta| {
            cache.put(&meta.location, CachedFileMetadataEntry::new(meta.clone(), Arc::new(Footer)));
            cache.contains_key(&meta.location)
        };
        seen.note(&one);
        assert!(has(&one));
        seen.note(&other);
        assert!(!cache.contains_key(&one.location), "of equal size and time, but another file");
        assert_eq!(inner.len(), 0);
        assert!(!has(&one), "a look that is older than the last one");
        assert!(has(&other));
        assert!(has(&meta("\"another store's\"")), "what other stores say is theirs to judge");
    }

    #[test]
    fn lists_of_local_folders_are_not_kept() {
        let cache = RemoteLists::new(Arc::new(DefaultCache::new(10_000)));
        let key = TableScopedPath { table: None, path: Path::from("d") };
        cache.put(&key, CachedFileList::new(vec![meta("\"remote\"")]));
        assert!(cache.contains_key(&key));
        cache.put(&key, CachedFileList::new(vec![meta(&format!("{TAG}1"))]));
        assert!(!cache.contains_key(&key));
    }
}
