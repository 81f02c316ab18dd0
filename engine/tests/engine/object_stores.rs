//! Files of object stores: found by their addresses, read by ranges, and never in two versions.
//!
//!   's3://bucket/…' · 'gs://…' · 'az://…' · 'http://…' ─► a server on the loopback, started here ─► scan
//!
//! Oracle  DataFusion on the CPU over the same files, from a local folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use millpond::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::{DeviceChoice, Millpond, ObjectStores};

use crate::answers::Answer;
use crate::edges::edges;
use crate::parquet::{counted, small_pages, write};
use crate::support::plan_text;

/// Content of the server, and the requests it received.
#[derive(Default)]
struct Shelf {
    /// Bytes by path, and their version.
    files: Mutex<BTreeMap<String, (Vec<u8>, u32)>>,
    ranges: AtomicUsize,
    /// Answers with the bytes of whole files.
    wholes: AtomicUsize,
}

/// GET with and without ranges and conditions, HEAD, and the lists of S3's second version and of Azure: what the four
/// kinds of stores ask to read. Files in folders named `weak` have weak tags, which match no condition.
struct Server {
    shelf: Arc<Shelf>,
    address: String,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let shelf = Arc::<Shelf>::default();
        let of_thread = Arc::clone(&shelf);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shelf = Arc::clone(&of_thread);
                thread::spawn(move || while shelf.answer(&connection).is_some() {});
            }
        });
        Self { shelf, address }
    }

    fn put(&self, path: &str, bytes: Vec<u8>) {
        let mut files = self.shelf.files.lock().expect("no panic");
        let version = files.get(path).map_or(1, |(_, version)| version + 1);
        files.insert(path.to_string(), (bytes, version));
    }

    /// A session that finds its stores here.
    fn session(&self, device: DeviceChoice) -> Millpond {
        let http = format!("http://{}", self.address);
        let options = [
            ("aws_endpoint", http.as_str()),
            ("aws_allow_http", "true"),
            ("aws_skip_signature", "true"),
            ("google_base_url", &http),
            ("google_skip_signature", "true"),
            ("azure_endpoint", &http),
            ("azure_allow_http", "true"),
            ("azure_skip_signature", "true"),
            ("azure_storage_account_name", "account"),
        ];
        let stores = ObjectStores::with_options(options.map(|(name, value)| (name.to_string(), value.to_string())));
        let runtime = RuntimeEnvBuilder::new().with_object_store_registry(Arc::new(stores)).build_arc();
        let builder = Millpond::builder().with_own_engine().with_device(device).with_url_tables();
        builder.with_runtime_env(runtime.expect("a runtime")).build().expect("a session")
    }
}

impl Shelf {
    /// Answers one request; `None` once the connection has ended.
    fn answer(&self, connection: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(connection).lines();
        let first = lines.next()?.ok()?;
        let (mut range, mut condition, mut length) = (None, None, 0);
        for line in lines.by_ref() {
            let line = line.ok()?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "range" => range = value.trim().strip_prefix("bytes=").map(str::to_string),
                "if-match" => condition = Some(value.trim().to_string()),
                "content-length" => length = value.trim().parse().ok()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        (&mut &*connection).read_exact(&mut body).ok()?;
        let mut words = first.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let target = target.replace("%2F", "/").replace("%2E", ".");
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (list, azures) = (query.contains("list-type=2"), query.contains("comp=list"));
        let (status, headers, body) = match list || azures {
            true => ("200 OK", String::new(), self.list(path, query, azures).into_bytes()),
            false => self.file(path, range.as_deref(), condition.as_deref()),
        };
        if method == "GET" && status == "200 OK" && !list && !azures {
            self.wholes.fetch_add(1, Ordering::Relaxed);
        }
        let length = body.len();
        write!(&mut &*connection, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n").ok()?;
        if method != "HEAD" {
            (&mut &*connection).write_all(&body).ok()?;
        }
        Some(())
    }

    fn file(&self, path: &str, range: Option<&str>, condition: Option<&str>) -> (&'static str, String, Vec<u8>) {
        let files = self.files.lock().expect("no panic");
        let Some((bytes, version)) = files.get(path.trim_start_matches('/')) else {
            return ("404 Not Found", String::new(), b"there is no such file".to_vec());
        };
        let weak = if path.contains("weak") { "W/" } else { "" };
        let tag = format!("{weak}\"{version}\"");
        if condition.is_some_and(|condition| condition != tag || !weak.is_empty()) {
            return ("412 Precondition Failed", String::new(), b"the tag is another one".to_vec());
        }
        let mut headers = format!("etag: {tag}\r\nlast-modified: Mon, 01 Jan 2024 00:00:0{version} GMT\r\n");
        let Some(range) = range else { return ("200 OK", headers, bytes.clone()) };
        self.ranges.fetch_add(1, Ordering::Relaxed);
        let (begin, last) = match range.split_once('-').expect("a range has two ends") {
            ("", last) => (bytes.len() - last.parse::<usize>().expect("a number"), bytes.len() - 1),
            (begin, "") => (begin.parse().expect("a number"), bytes.len() - 1),
            (begin, last) => (begin.parse().expect("a number"), last.parse::<usize>().expect("a number")),
        };
        let last = last.min(bytes.len() - 1);
        if begin > last {
            return ("416 Range Not Satisfiable", String::new(), vec![]);
        }
        let _ = write!(headers, "content-range: bytes {begin}-{last}/{}\r\n", bytes.len());
        ("206 Partial Content", headers, bytes[begin..=last].to_vec())
    }

    fn list(&self, bucket: &str, query: &str, azures: bool) -> String {
        let bucket = format!("{}/", bucket.trim_matches('/'));
        let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or("");
        let mut found = String::new();
        for (path, (bytes, version)) in self.files.lock().expect("no panic").iter() {
            let Some(key) = path.strip_prefix(&bucket).filter(|key| key.starts_with(prefix)) else { continue };
            let size = bytes.len();
            let _ = match azures {
                false => write!(
                    found,
                    "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"{version}\"</ETag>\
                     <LastModified>2024-01-01T00:00:0{version}.000Z</LastModified></Contents>"
                ),
                // Without the quotes that its other answers have.
                true => write!(
                    found,
                    "<Blob><Name>{key}</Name><Properties><Last-Modified>Mon, 01 Jan 2024 00:00:0{version} GMT</Last-Modified>\
                     <Etag>{version}</Etag><Content-Length>{size}</Content-Length><Content-Type>text/plain</Content-Type>\
                     </Properties></Blob>"
                ),
            };
        }
        match azures {
            false => format!("<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"),
            true => format!("<EnumerationResults><Blobs>{found}</Blobs></EnumerationResults>"),
        }
    }
}

/// The rows of `edges()`, whose ids are moved by `by`, as a file.
fn file(rows: std::ops::Range<usize>) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    write(&path, &[edges().slice(rows.start, rows.len())], small_pages().build());
    std::fs::read(path).expect("the file was written")
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    Answer::new(&result.schema, &result.batches)
}

/// The same rows from a local folder.
async fn expected(files: &[Vec<u8>], sql: &str) -> Answer {
    let folder = tempfile::tempdir().expect("a folder");
    for (at, bytes) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{at}.parquet")), bytes).expect("written");
    }
    let session = Millpond::builder().with_device(DeviceChoice::Cpu).build().expect("a session");
    let path = folder.path().to_str().expect("UTF-8");
    session.context().register_parquet("t", path, ParquetReadOptions::default()).await.expect("the files are read");
    answer(&session, sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_store_is_read_by_ranges() {
    let server = Server::start();
    let bytes = file(0..edges().num_rows());
    let sql = |table: &str| format!("SELECT * FROM {table} WHERE id >= 100 ORDER BY id");
    let expected = expected(std::slice::from_ref(&bytes), &sql("t")).await;
    for place in ["bucket/a/t.parquet", "account/bucket/a/t.parquet", "a/t.parquet"] {
        server.put(place, bytes.clone());
    }
    let plain = format!("http://{}/a/t.parquet", server.address);
    for address in ["s3://bucket/a/t.parquet", "gs://bucket/a/t.parquet", "az://bucket/a/t.parquet", &plain] {
        let sim = server.session(DeviceChoice::Sim);
        // A name that is not found is all that a query says of a file that cannot be read.
        let made = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{address}'");
        sim.context().sql(&made).await.unwrap_or_else(|error| panic!("{address}: {error}"));
        for (cache, decoder) in [("off", "host"), ("off", "device"), ("auto", "auto")] {
            for setting in [format!("cache = {cache}"), format!("parquet_decoder = {decoder}")] {
                sim.context().sql(&format!("SET millpond.{setting}")).await.expect("the option is taken");
            }
            let query = sql(&format!("'{address}'"));
            let result = sim.execute(&query).await.unwrap_or_else(|error| panic!("{address}: {error}"));
            let same = expected.difference(&Answer::new(&result.schema, &result.batches), false);
            assert_eq!(same, None, "{address}, {cache}, {decoder}");
            let text = plan_text(&sim, &query).await;
            assert!(text.contains("DeviceScanExec"), "{address}: {text}");
            if cache == "off" {
                assert_eq!(counted(&result, "row_groups_by_datafusion"), 0, "{:?}", result.report.notes);
                assert!(counted(&result, "row_groups_decoded") > 0, "{address}: {text}");
            }
        }
    }
    assert!(server.shelf.ranges.load(Ordering::Relaxed) > 0);
    assert_eq!(server.shelf.wholes.load(Ordering::Relaxed), 0, "no file is sent whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_a_store_is_listed() {
    let half = edges().num_rows() / 2;
    let files = [file(0..half), file(half..edges().num_rows())];
    let sql = "SELECT * FROM t WHERE id >= 0 ORDER BY id";
    let expected = expected(&files, sql).await;
    for address in ["s3://bucket/t/", "az://bucket/t/"] {
        let (server, bucket) = (Server::start(), "bucket");
        files.iter().enumerate().for_each(|(at, bytes)| server.put(&format!("{bucket}/t/{at}.parquet"), bytes.clone()));
        server.put(&format!("{bucket}/other/1.parquet"), b"no Parquet".to_vec());
        let sim = server.session(DeviceChoice::Sim);
        let made = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{address}'");
        sim.context().sql(&made).await.unwrap_or_else(|error| panic!("{address}: {error}"));
        assert_eq!(expected.difference(&answer(&sim, sql).await, false), None, "{address}");
    }
}

/// The container stands where an address has its user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_one_account_are_stores_of_their_own() {
    let server = Server::start();
    let half = edges().num_rows() / 2;
    let sql = |container: &str| {
        format!("SELECT count(*) FROM 'abfss://{container}@account.dfs.core.windows.net/t.parquet' WHERE id >= 0")
    };
    let (few, many) = (file(0..10), file(0..half));
    server.put("few/t.parquet", few.clone());
    server.put("many/t.parquet", many.clone());
    let sim = server.session(DeviceChoice::Sim);
    for (container, bytes) in [("few", &few), ("many", &many), ("few", &few)] {
        let expected = expected(std::slice::from_ref(bytes), "SELECT count(*) FROM t WHERE id >= 0").await;
        assert_eq!(expected.difference(&answer(&sim, &sql(container)).await, false), None, "{container}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_weak_tags_is_read() {
    let server = Server::start();
    let bytes = file(0..edges().num_rows());
    server.put("weak/t.parquet", bytes.clone());
    let sim = server.session(DeviceChoice::Sim);
    let sql = |table: &str| format!("SELECT * FROM {table} WHERE id >= 100 ORDER BY id");
    let expected = expected(&[bytes], &sql("t")).await;
    let address = format!("'http://{}/weak/t.parquet'", server.address);
    assert_eq!(expected.difference(&answer(&sim, &sql(&address)).await, false), None);
    // Another version is noticed by the answer's tag.
    sim.context().sql("SET millpond.cache = off").await.expect("the option is taken");
    let plan = sim.plan(&sql(&address)).await.expect("the query is planned");
    server.put("weak/t.parquet", file(1..edges().num_rows()));
    let error = sim.execute_plan(plan).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("t.parquet has changed since the query was planned"), "{error}");
}

/// A file that is replaced once its query is planned: an error that names it, whether it has become longer or shorter;
/// never rows of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_in_its_store_is_an_error() {
    let rows = edges().num_rows();
    for (before, after) in [(0..rows / 2, 0..rows), (0..rows, 0..10), (0..rows / 2, 1..rows / 2 + 1)] {
        let server = Server::start();
        server.put("bucket/t.parquet", file(before));
        let sim = server.session(DeviceChoice::Sim);
        sim.context().sql("SET millpond.cache = off").await.expect("the option is taken");
        let sql = "SELECT * FROM 's3://bucket/t.parquet' WHERE id >= 0";
        let plan = sim.plan(sql).await.expect("the query is planned");
        server.put("bucket/t.parquet", file(after));
        let error = sim.execute_plan(plan).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("t.parquet has changed since the query was planned"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_store_lacks_is_an_error_that_names_it() {
    let server = Server::start();
    let cpu = server.session(DeviceChoice::Cpu);
    for (address, says) in [
        ("s3://bucket/none.parquet", "none.parquet"),
        ("ftp://bucket/t.parquet", "no store for ftp://bucket; addresses begin with s3"),
    ] {
        let sql = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{address}'; ");
        let error = cpu.context().sql(&sql).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(says), "{address}: {error}");
    }
}
