//! An object store in memory that counts requests, and fails on request.
//!
//!   Counted ─ heads, lists, reads by file ─► InMemory          clones of the memory serve sessions that are not
//!                                                              counted

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond::Millpond;
use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::execution::object_store::ObjectStoreUrl;
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::object_store::path::Path;
use millpond::datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::file::properties::WriterProperties;

/// Requests counted.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Asked {
    pub heads: usize,
    pub lists: usize,
    /// Requests for bytes, by file.
    pub reads: HashMap<String, usize>,
}

impl Asked {
    /// Files that were read since, by name.
    pub fn read_since(&self, before: &Self) -> Vec<String> {
        let since = |(file, reads): (&String, &usize)| {
            (*reads > before.reads.get(file).copied().unwrap_or(0)).then(|| file.clone())
        };
        let mut files: Vec<String> = self.reads.iter().filter_map(since).collect();
        files.sort();
        files
    }
}

/// Called before bytes of a file are read.
type Hook = Box<dyn FnMut(&Path) + Send>;

pub struct Counted {
    inner: Arc<InMemory>,
    asked: Mutex<Asked>,
    before_read: Mutex<Option<Hook>>,
    lists_fail: AtomicBool,
    /// Reads until one fails; 0: none will.
    good_reads: AtomicUsize,
    /// No read succeeds after one that failed.
    goes_away: AtomicBool,
    is_full: AtomicBool,
}

/// Error message of an unreachable store, and of a full one.
pub const UNREACHABLE: &str = "connection reset by peer";
pub const FULL: &str = "no space left on device";

fn failure(words: &'static str) -> Error {
    Error::Generic { store: "Counted", source: words.into() }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl Counted {
    pub fn over(inner: &Arc<InMemory>) -> Arc<Self> {
        let inner = Arc::clone(inner);
        let (asked, before_read, lists_fail) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let (good_reads, goes_away, is_full) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, asked, before_read, lists_fail, good_reads, goes_away, is_full })
    }

    /// Calls `hook` with the file before each later read of its bytes.
    pub fn before_read(&self, hook: impl FnMut(&Path) + Send + 'static) {
        *self.before_read.lock().expect("nobody panics") = Some(Box::new(hook));
    }

    /// From now on folders cannot be listed, or can again.
    pub fn fail_lists(&self, fail: bool) {
        self.lists_fail.store(fail, Ordering::Relaxed);
    }

    /// Makes the n-th read from now on fail, counted from 1, and all later ones if the store then goes away.
    pub fn fail_read(&self, nth: usize, goes_away: bool) {
        self.goes_away.store(goes_away, Ordering::Relaxed);
        self.good_reads.store(nth, Ordering::Relaxed);
    }

    /// Reads succeed again. Returns how many more would have without that.
    pub fn come_back(&self) -> usize {
        self.goes_away.store(false, Ordering::Relaxed);
        self.good_reads.swap(0, Ordering::Relaxed).saturating_sub(1)
    }

    /// From now on nothing can be written, or can again.
    pub fn fill_up(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub fn asked(&self) -> Asked {
        self.asked.lock().expect("nobody panics").clone()
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(failure(FULL));
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(failure(FULL));
        }
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        {
            let mut asked = self.asked.lock().expect("nobody panics");
            match options.head {
                true => asked.heads += 1,
                false => *asked.reads.entry(location.to_string()).or_default() += 1,
            }
        }
        if !options.head
            && let Some(hook) = self.before_read.lock().expect("nobody panics").as_mut()
        {
            hook(location);
        }
        let goes_away = self.goes_away.load(Ordering::Relaxed);
        let count = |left: usize| if left == 1 && goes_away { Some(1) } else { left.checked_sub(1) };
        if !options.head && self.good_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1) {
            return Err(failure(UNREACHABLE));
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.asked.lock().expect("nobody panics").lists += 1;
        if self.lists_fail.load(Ordering::Relaxed) {
            return futures::stream::once(async { Err(failure("no lists today")) }).boxed();
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.asked.lock().expect("nobody panics").lists += 1;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Address of the tests' files.
pub const URL: &str = "far://away/";

/// Has `session` find its files in `store`.
pub fn register(session: &Millpond, store: Arc<dyn ObjectStore>) {
    let url = ObjectStoreUrl::parse(URL).expect("a URL");
    session.context().register_object_store(url.as_ref(), store);
}

/// Puts rows into a file of Parquet.
pub async fn put(store: &Arc<InMemory>, file: &str, batch: &RecordBatch) {
    store.put(&Path::from(file), parquet(batch).into()).await.expect("there is room");
}

/// The bytes of a file of Parquet.
pub fn parquet(batch: &RecordBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(300)).build();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).expect("Parquet has the types");
    writer.write(batch).expect("rows are written");
    writer.close().expect("the file is finished");
    bytes
}

/// Takes a file away.
pub async fn remove(store: &Arc<InMemory>, file: &str) {
    store.delete(&Path::from(file)).await.expect("it was there");
}
