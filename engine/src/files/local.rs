//! Object store of local files: writes through DataFusion's store, with tags that change whenever a file may have
//! changed.
//!
//!   local:DEVICE-INODE-SIZE-MTIME-CTIME      a program can restore all of these except CTIME, the inode's change time
//!   local:…~N                                tag of a file that is changing; each request returns another N
//!
//! Changing  the inode changed less than `settles` ago (compare git's racy entries): another write within one tick of
//!           the file system's clock would leave all times unchanged. Such a file counts as different at the next
//!           request.
//! Costs     one system call per file request, and one per folder entry.
//! Special   pipes, sockets and devices are refused before they are opened, skipped in folders, and never replaced.
//! Mapped    writes through a memory mapping become visible when the system updates the times: at the first write to a
//!           page, and after each write-back.

use std::fmt;
use std::fs::{DirEntry, File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use url::Url;

use crate::files::caches::LastTags;
use crate::files::streams::{self, Streamed};

/// Prefix of the tags of local files.
pub(super) const TAG: &str = "local:";
/// Separator between a tag and the request number, for a file that is changing.
const CHANGING: char = '~';
/// `O_NONBLOCK`: opens a pipe that has replaced a file without waiting for its writer.
const NONBLOCK: i32 = 0o4000;

/// Bytes of a range, in the type that stores return.
pub(super) type Bytes = <PutPayload as IntoIterator>::Item;
type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Object store of local files.
#[derive(Clone)]
pub(crate) struct LocalFiles {
    inner: Arc<LocalFileSystem>,
    seen: Arc<LastTags>,
    settles: Duration,
    now: Clock,
}

impl LocalFiles {
    /// Store that records file tags in `seen`, with `now` as its clock.
    pub fn new(seen: &Arc<LastTags>, settles: Duration, now: Clock) -> Self {
        Self { inner: Arc::new(LocalFileSystem::new()), seen: Arc::clone(seen), settles, now }
    }

    fn meta(&self, location: Path, of: &Metadata) -> ObjectMeta {
        let (dev, ino, size) = (of.dev(), of.ino(), of.len());
        let mut tag = format!(
            "{TAG}{dev:x}-{ino:x}-{size:x}-{}.{}-{}.{}",
            of.mtime(),
            of.mtime_nsec(),
            of.ctime(),
            of.ctime_nsec()
        );
        if self.is_changing(of) {
            static LOOKS: AtomicU64 = AtomicU64::new(0);
            tag.push_str(&format!("{CHANGING}{}", LOOKS.fetch_add(1, Ordering::Relaxed)));
        }
        let modified = of.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let meta = ObjectMeta { location, last_modified: modified.into(), size, e_tag: Some(tag), version: None };
        self.seen.note(&meta);
        meta
    }

    fn is_changing(&self, of: &Metadata) -> bool {
        let changed = Duration::new(of.ctime().try_into().unwrap_or(0), of.ctime_nsec().try_into().unwrap_or(0));
        let settled = SystemTime::UNIX_EPOCH.checked_add(changed).and_then(|changed| changed.checked_add(self.settles));
        // A time in the future, from another machine's clock, counts as now.
        !self.settles.is_zero() && settled.is_none_or(|settled| settled > (self.now)())
    }

    fn get(&self, location: &Path, options: &GetOptions) -> Result<GetResult> {
        let path = self.inner.path_to_filesystem(location)?;
        let (meta, payload) = match streams::read(&path).map_err(|error| of_open(error, &path))? {
            Some(streamed) => (streamed.meta(location.clone()), Payload::Bytes(streamed)),
            None if options.head => {
                let metadata = std::fs::metadata(&path).map_err(|error| of_open(error, &path))?;
                (self.meta(location.clone(), regular(&metadata, &path)?), Payload::Nothing)
            }
            None => {
                let file = File::options().read(true).custom_flags(NONBLOCK).open(&path);
                let file = file.map_err(|error| of_open(error, &path))?;
                let metadata = file.metadata().map_err(|error| of_open(error, &path))?;
                (self.meta(location.clone(), regular(&metadata, &path)?), Payload::File(file))
            }
        };
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => {
                range.as_range(meta.size).map_err(|error| generic(format!("Requested range was invalid: {error}")))?
            }
            None => 0..meta.size,
        };
        let payload = match payload {
            Payload::File(file) => GetResultPayload::File(file, path),
            Payload::Nothing => GetResultPayload::Stream(stream::empty().boxed()),
            Payload::Bytes(streamed) => {
                let bytes = streamed.range(&range).map_err(|error| of_open(error, &path))?;
                GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed())
            }
        };
        Ok(GetResult { payload, attributes: Attributes::default(), range, meta })
    }

    /// # Errors
    /// If the target is a pipe, a socket or a device: DataFusion's store would replace it with a file.
    fn may_write(&self, location: &Path) -> Result<()> {
        let path = self.inner.path_to_filesystem(location)?;
        let special = std::fs::metadata(&path).ok().and_then(|of| kind_of_special(&of));
        special.map_or(Ok(()), |kind| {
            let path = path.display();
            Err(generic(format!("'{path}' is {kind}, and what is written there would take its place: name a file")))
        })
    }

    /// Lists the files of a folder, recursively.
    fn files(&self, folder: &FilePath, above: &mut Vec<(u64, u64)>, found: &mut Vec<ObjectMeta>) -> Result<()> {
        let unread = |error: io::Error, path: &FilePath| match error.kind() {
            // Deleted meanwhile, or a dangling link.
            ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(()),
            _ => Err(generic(format!("Unable to walk dir: {}: {error}", path.display()))),
        };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return unread(error, folder),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return unread(error, folder),
            };
            let path = entry.path();
            match followed(&entry) {
                Ok(of) if of.is_dir() => {
                    let id = (of.dev(), of.ino());
                    if above.contains(&id) {
                        let what = "a link to a folder that it is in itself: remove it, or name the files' own folder";
                        return Err(generic(format!("Unable to walk dir: {} is {what}", path.display())));
                    }
                    above.push(id);
                    self.files(&path, above, found)?;
                    above.pop();
                }
                Ok(of) if of.is_file() => {
                    let location = Path::from_absolute_path(&path)?;
                    // Skips temporary names that DataFusion's store gives to files being written.
                    if self.inner.path_to_filesystem(&location).is_ok() {
                        found.push(self.meta(location, &of));
                    }
                }
                Ok(_) => {}
                Err(error) => unread(error, &path)?,
            }
        }
        Ok(())
    }
}

enum Payload {
    File(File),
    Bytes(Streamed),
    Nothing,
}

/// Metadata of a folder entry, following a link.
fn followed(entry: &DirEntry) -> io::Result<Metadata> {
    match entry.metadata()? {
        link if link.is_symlink() => std::fs::metadata(entry.path()),
        own => Ok(own),
    }
}

/// True if both describe one file whose bytes did not change in between, as far as its times show. A file that is
/// changing is equal to itself here, unlike in a comparison of the tags.
pub(crate) fn is_same_file(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    let settled = |tag: &Option<String>| tag.as_deref().map(|tag| without_look(tag).to_string());
    let tags = match (settled(&a.e_tag), settled(&b.e_tag)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    tags && a.location == b.location && a.size == b.size && a.last_modified == b.last_modified && a.version == b.version
}

fn without_look(tag: &str) -> &str {
    match tag.split_once(CHANGING) {
        Some((file, _)) if tag.starts_with(TAG) => file,
        _ => tag,
    }
}

/// Kind of a path that cannot be read as a file.
pub(crate) fn kind_of_special(of: &Metadata) -> Option<&'static str> {
    let kind = of.file_type();
    let kinds = [
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
    ];
    kinds.into_iter().find_map(|(is, name)| is.then_some(name))
}

/// # Errors
/// If the path is not a regular file.
fn regular<'a>(of: &'a Metadata, path: &FilePath) -> Result<&'a Metadata> {
    if of.is_dir() {
        return Err(of_open(io::Error::new(ErrorKind::NotFound, "is directory"), path));
    }
    match kind_of_special(of) {
        Some(kind) => Err(refusal(path, kind)),
        None => Ok(of),
    }
}

/// Error message: why a pipe, a socket or a device cannot be a table, and the alternatives.
pub(crate) fn refusal(path: &FilePath, kind: &str) -> Error {
    generic(format!(
        "'{}' is {kind}, and a table's files are read more than once: write its bytes to a file, or hand them over as standard input \
         and name that in CREATE EXTERNAL TABLE … STORED AS … LOCATION '/dev/stdin'",
        path.display()
    ))
}

fn of_open(source: io::Error, path: &FilePath) -> Error {
    match source.kind() {
        ErrorKind::NotFound => Error::NotFound { path: path.display().to_string(), source: source.into() },
        _ => generic(format!("Unable to open file {}: {source}", path.display())),
    }
}

fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "LocalFileSystem", source: source.into() }
}

/// Runs work that may wait for a disk on a blocking thread, if there is a tokio runtime.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(generic)?,
        Err(_) => work(),
    }
}

impl fmt::Debug for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalFiles({:?})", self.inner)
    }
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.may_write(location)?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.may_write(location)?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (store, location) = (self.clone(), location.clone());
        beside(move || store.get(&location, &options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.inner.path_to_filesystem(location)?;
        if !streams::is_name_of_stream(&path) {
            return self.inner.get_ranges(location, ranges).await;
        }
        let own = ranges.to_vec();
        let read = beside(move || match streams::read(&path).map_err(|error| of_open(error, &path))? {
            Some(streamed) => {
                let bytes = own.iter().map(|range| streamed.range(range)).collect::<io::Result<Vec<_>>>();
                Ok(Some(bytes.map_err(|error| of_open(error, &path))?))
            }
            None => Ok(None),
        });
        match read.await? {
            Some(bytes) => Ok(bytes),
            None => self.inner.get_ranges(location, ranges).await,
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, folder) = (self.clone(), on_disk(prefix));
        let listed = beside(move || {
            let (mut above, mut found) = (Vec::new(), Vec::new());
            let folder = folder?;
            if let Ok(of) = std::fs::metadata(&folder) {
                above.push((of.dev(), of.ino()));
            }
            store.files(&folder, &mut above, &mut found)?;
            Ok(stream::iter(found.into_iter().map(Ok::<_, Error>)))
        });
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        let store = self.clone();
        beside(move || {
            let mut objects = Vec::with_capacity(listed.objects.len());
            for object in listed.objects {
                let path = store.inner.path_to_filesystem(&object.location)?;
                if let Ok(of) = std::fs::metadata(path)
                    && of.is_file()
                {
                    objects.push(store.meta(object.location, &of));
                }
            }
            listed.objects = objects;
            Ok(listed)
        })
        .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.may_write(to)?;
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.may_write(to)?;
        self.inner.rename_opts(from, to, options).await
    }
}

/// Path of the folder that a prefix names.
fn on_disk(prefix: Option<&Path>) -> Result<PathBuf> {
    let mut url = Url::parse("file:///").map_err(generic)?;
    if let (Some(prefix), Ok(mut segments)) = (prefix, url.path_segments_mut()) {
        segments.pop_if_empty().extend(prefix.parts());
    }
    url.to_file_path().map_err(|()| generic(format!("{url} is no path of this machine")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use datafusion::object_store::ObjectStoreExt;

    use super::*;

    /// A store whose clock is set by the test.
    fn store(settles: Duration) -> (LocalFiles, Arc<Mutex<SystemTime>>) {
        let clock = Arc::new(Mutex::new(SystemTime::now()));
        let now = Arc::clone(&clock);
        let now: Clock = Arc::new(move || *now.lock().expect("no test panics here"));
        (LocalFiles::new(&Arc::default(), settles, now), clock)
    }

    async fn head(store: &LocalFiles, path: &FilePath) -> ObjectMeta {
        store.head(&Path::from_absolute_path(path).expect("a path")).await.expect("a file")
    }

    #[tokio::test]
    async fn a_file_that_has_just_changed_is_not_the_same_the_next_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a");
        std::fs::write(&file, "one").expect("written");
        let (store, clock) = store(Duration::from_secs(2));
        let (first, second) = (head(&store, &file).await, head(&store, &file).await);
        assert_ne!(first, second);
        assert!(is_same_file(&first, &second), "its times are those of one file");
        *clock.lock().expect("a clock") += Duration::from_secs(3);
        let (settled, again) = (head(&store, &file).await, head(&store, &file).await);
        assert_ne!(second, settled, "what was seen while it changed is seen once more");
        assert_eq!(settled, again);
        let listed: Vec<ObjectMeta> = store
            .list(Some(&Path::from_absolute_path(folder.path()).expect("a path")))
            .try_collect()
            .await
            .expect("a folder");
        assert_eq!(listed, std::slice::from_ref(&settled), "a list says the same of it");
        let got = store.get_opts(&settled.location, GetOptions::new()).await.expect("a file");
        assert_eq!(got.meta, settled);
    }

    #[tokio::test]
    async fn a_write_in_place_with_its_time_put_back_is_another_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a");
        std::fs::write(&file, "one").expect("written");
        let (store, _) = store(Duration::ZERO);
        let before = head(&store, &file).await;
        // The file system's clock may not have advanced: the write is repeated until it has.
        let after = loop {
            let mut open = File::options().write(true).open(&file).expect("a file");
            open.write_all(b"two").expect("written");
            open.set_modified(before.last_modified.into()).expect("a time");
            let after = head(&store, &file).await;
            if after.e_tag != before.e_tag {
                break after;
            }
        };
        assert_eq!((after.size, after.last_modified), (before.size, before.last_modified));
        assert!(!is_same_file(&before, &after));
    }

    #[tokio::test]
    async fn a_link_to_another_file_of_equal_size_and_time_is_another_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b, link) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("link"));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
        for file in [&a, &b] {
            std::fs::write(file, "one").expect("written");
            File::options().write(true).open(file).and_then(|open| open.set_modified(time)).expect("a time");
        }
        let (store, _) = store(Duration::ZERO);
        std::os::unix::fs::symlink(&a, &link).expect("a link");
        let before = head(&store, &link).await;
        std::fs::remove_file(&link).and_then(|()| std::os::unix::fs::symlink(&b, &link)).expect("a link");
        let after = head(&store, &link).await;
        assert_eq!((after.size, after.last_modified), (before.size, before.last_modified));
        assert!(!is_same_file(&before, &after));
    }

    #[tokio::test]
    async fn lists_are_those_of_datafusion() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::create_dir_all(root.join("p=1/q=%25 x")).expect("folders");
        for name in ["a.parquet", "p=1/b.csv", "p=1/q=%25 x/c d.parquet", ".hidden", "é.parquet", "up#1", "up#x"] {
            std::fs::write(root.join(name), name).expect("written");
        }
        std::os::unix::fs::symlink("nowhere", root.join("broken")).expect("a link");
        std::os::unix::fs::symlink("p=1", root.join("folder")).expect("a link");
        std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
        let (store, _) = store(Duration::ZERO);
        let prefix = Path::from_absolute_path(root).expect("a path");
        let of = async |store: &dyn ObjectStore| {
            let listed: Vec<ObjectMeta> = store.list(Some(&prefix)).try_collect().await.expect("a folder");
            let mut files: Vec<_> =
                listed.into_iter().map(|file| (file.location, file.size, file.last_modified)).collect();
            files.sort();
            files
        };
        let own = of(&store).await;
        assert_eq!(own, of(&LocalFileSystem::new()).await);
        assert_eq!(own.len(), 8);
        std::os::unix::fs::symlink("..", root.join("p=1/round")).expect("a link");
        let circle: Result<Vec<ObjectMeta>> = store.list(Some(&prefix)).try_collect().await;
        let error = circle.expect_err("folders in a circle").to_string();
        assert!(error.contains("p=1/round is a link to a folder that it is in itself"), "{error}");
    }
}
