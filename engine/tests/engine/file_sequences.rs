//! Random sequences of file changes below tables, views and names of files: every statement's answer is that of the
//! files as they are.
//!
//! ```text
//!   seed ─► write, rename over, swap, move, remove, link, in place with the time put back, a column more, partitions
//!           that come and go
//!       └─► statements of two sessions by text, stream and DataFusion's door, constants that vary ─► the rows of a
//!           model in plain Rust
//! ```
//!
//! Model     names lead to files (inodes), links to names; a file's rows follow from its number. No reader has a part
//!           in it.
//! Alike     nearly all files have one size and one time of change.
//! Sessions  one that reads a file anew while it is younger than two seconds, and one that trusts its times at once.
//!           Where a file is written in place, the write is repeated until the time of its inode is another one.
//! More      `MILLPOND_FILE_SEQUENCES=1000 cargo test --workspace --test engine -- file_sequences`, and
//!           `MILLPOND_FUZZ_SEED=…` to begin elsewhere.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use millpond::datafusion::common::cast::as_int64_array;
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::basic::Compression;
use millpond::datafusion::parquet::file::properties::WriterProperties;
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond};
use millpond_data::seed::of_commit;

/// Sequences of a test run, and changes of one.
const SEQUENCES: u64 = 6;
const STEPS: usize = 25;
/// Names of files in the folder.
const NAMES: [&str; 4] = ["a.parquet", "b.parquet", "c.parquet", "d.parquet"];
const PARTITIONS: i64 = 4;

/// SplitMix64.
struct Source(u64);

impl Source {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len())]
    }
}

/// Content of a file.
#[derive(Debug, Clone, Copy)]
struct Content {
    number: i64,
    rows: i64,
    /// Columns `b, a` in this order; and a column `c`.
    swapped: bool,
    wider: bool,
}

impl Content {
    fn a(self) -> impl Iterator<Item = i64> {
        (0..self.rows).map(move |row| (self.number * 37 + row) % 250)
    }

    fn b(self) -> impl Iterator<Item = i64> {
        (0..self.rows).map(move |row| self.number * 1000 + row)
    }

    fn c(self) -> impl Iterator<Item = i64> {
        let some = if self.wider { self.rows } else { 0 };
        (0..some).map(move |row| self.number + row)
    }

    fn bytes(self) -> Vec<u8> {
        let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let mut columns = vec![("a", column(self.a().collect())), ("b", column(self.b().collect()))];
        if self.swapped {
            columns.reverse();
        }
        if self.wider {
            columns.push(("c", column(self.c().collect())));
        }
        let columns = columns.into_iter().map(|(name, values)| (name, values, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
        let properties =
            WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).set_dictionary_enabled(false);
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build())).expect("a writer");
        writer.write(&batch).expect("rows");
        writer.close().expect("a footer");
        bytes
    }
}

fn old() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800)
}

/// The folder, and what the model says is in it.
struct Files {
    root: PathBuf,
    contents: Vec<Content>,
    /// Which content each name of `d/` leads to: names that share one are hard links.
    names: BTreeMap<&'static str, usize>,
    /// The name that `current.parquet` is a link to.
    current: &'static str,
    /// The content of each partition of `h/`.
    partitions: BTreeMap<i64, usize>,
}

impl Files {
    fn begin(root: &Path) -> Self {
        fs::create_dir_all(root.join("d")).and_then(|()| fs::create_dir_all(root.join("h"))).expect("folders");
        let mut files = Self {
            root: root.to_path_buf(),
            contents: vec![],
            names: BTreeMap::new(),
            current: NAMES[0],
            partitions: BTreeMap::new(),
        };
        symlink("d/a.parquet", root.join("current.parquet")).expect("a link");
        files.write(NAMES[0], false, false);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join("d").join(name)
    }

    fn content(&mut self, swapped: bool, wider: bool) -> usize {
        let number = self.contents.len() as i64;
        // A few files are longer than the others.
        let rows = if number % 5 == 4 { 70 } else { 60 };
        self.contents.push(Content { number, rows, swapped, wider });
        self.contents.len() - 1
    }

    /// A new file at `path`, of the time that nearly all have.
    fn place(&self, content: usize, path: &Path) {
        let aside = self.root.join("aside");
        fs::write(&aside, self.contents[content].bytes()).expect("written");
        File::options().write(true).open(&aside).and_then(|file| file.set_modified(old())).expect("a time");
        fs::rename(&aside, path).expect("renamed over");
    }

    fn write(&mut self, name: &'static str, swapped: bool, wider: bool) {
        let content = self.content(swapped, wider);
        self.place(content, &self.path(name));
        self.names.insert(name, content);
    }

    /// Other bytes in the file itself; all its names have them.
    fn write_in_place(&mut self, name: &'static str, put_back: bool) {
        let Some(&content) = self.names.get(name) else { return };
        let (path, next) = (self.path(name), self.content(false, false));
        let before = fs::metadata(&path).expect("the file");
        loop {
            fs::write(&path, self.contents[next].bytes()).expect("written");
            if put_back {
                let file = File::options().write(true).open(&path).expect("the file");
                file.set_modified(before.modified().expect("a time")).expect("a time");
            }
            let now = fs::metadata(&path).expect("the file");
            if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
                break;
            }
        }
        self.contents[content] = self.contents[next];
    }

    fn remove(&mut self, name: &str) {
        if self.names.remove(name).is_some() {
            fs::remove_file(self.path(name)).expect("removed");
        }
    }

    /// A change, in words for a failure's report.
    fn change(&mut self, of: &mut Source) -> String {
        let (one, other) = (of.name(), of.name());
        let there = (self.names.get(one).copied(), self.names.get(other).copied());
        match (of.below(14), there) {
            (0 | 1, _) => {
                let swapped = of.below(2) == 0;
                self.write(one, swapped, false);
                format!("{one} is new{}", if swapped { ", its columns the other way round" } else { "" })
            }
            (2, _) => {
                self.write(one, false, true);
                format!("{one} is new, with a column more")
            }
            (3 | 4, (Some(_), _)) => {
                self.write_in_place(one, true);
                format!("{one} in place, its time put back")
            }
            (5, (Some(_), _)) => {
                self.write_in_place(one, false);
                format!("{one} in place")
            }
            (6, (Some(a), Some(b))) if a != b => {
                let aside = self.root.join("aside");
                fs::rename(self.path(one), &aside).expect("moved");
                fs::rename(self.path(other), self.path(one)).expect("moved");
                fs::rename(&aside, self.path(other)).expect("moved");
                self.names.extend([(one, b), (other, a)]);
                format!("{one} and {other} change places")
            }
            (7, (Some(a), b)) if one != other && b != Some(a) => {
                fs::rename(self.path(one), self.path(other)).expect("moved");
                self.names.remove(one);
                self.names.insert(other, a);
                format!("{one} becomes {other}")
            }
            (8, _) => {
                self.remove(one);
                format!("{one} goes")
            }
            (9, _) if of.below(2) == 0 => {
                NAMES.iter().for_each(|name| self.remove(name));
                "all go".to_string()
            }
            (10, (Some(a), _)) if one != other => {
                self.remove(other);
                fs::hard_link(self.path(one), self.path(other)).expect("a hard link");
                self.names.insert(other, a);
                format!("{other} is {one}, too")
            }
            (11, _) => {
                let link = self.root.join("current.parquet");
                fs::remove_file(&link).and_then(|()| symlink(Path::new("d").join(one), &link)).expect("a link");
                self.current = one;
                format!("the link leads to {one}")
            }
            (12 | 13, _) => self.change_partition(of),
            _ => {
                self.write(one, false, false);
                format!("{one} is new")
            }
        }
    }

    fn change_partition(&mut self, of: &mut Source) -> String {
        let (one, other) = (of.below(PARTITIONS as usize) as i64, of.below(PARTITIONS as usize) as i64);
        let folder = |p: i64| self.root.join(format!("h/p={p}"));
        match self.partitions.get(&one).copied() {
            None => {
                fs::create_dir(folder(one)).expect("a folder");
                let content = self.content(false, false);
                self.place(content, &self.root.join(format!("h/p={one}/x.parquet")));
                self.partitions.insert(one, content);
                format!("partition {one} comes")
            }
            Some(content) if one != other && !self.partitions.contains_key(&other) => {
                fs::rename(folder(one), folder(other)).expect("moved");
                self.partitions.remove(&one);
                self.partitions.insert(other, content);
                format!("partition {one} becomes {other}")
            }
            Some(_) => {
                fs::remove_dir_all(folder(one)).expect("removed");
                self.partitions.remove(&one);
                format!("partition {one} goes")
            }
        }
    }

    fn of_names(&self, wanted: impl Fn(&str) -> bool) -> Vec<Content> {
        self.names.iter().filter(|(name, _)| wanted(name)).map(|(_, content)| self.contents[*content]).collect()
    }
}

/// Rows of an answer; `None` for a statement that fails.
type Rows = Option<Vec<Vec<Option<i64>>>>;

fn pairs(of: &[Content]) -> Vec<(i64, i64)> {
    of.iter().flat_map(|content| content.a().zip(content.b())).collect()
}

fn sum(values: impl Iterator<Item = i64>) -> Option<i64> {
    values.fold(None, |sum, value| Some(sum.unwrap_or(0) + value))
}

/// `count(*), min(a), max(a), sum(b)`.
fn whole(of: &[(i64, i64)]) -> Rows {
    let a = || of.iter().map(|(a, _)| *a);
    Some(vec![vec![Some(of.len() as i64), a().min(), a().max(), sum(of.iter().map(|(_, b)| *b))]])
}

const WHOLE: &str = "SELECT count(*), min(a), max(a), sum(b)";

/// A statement, and what the model says.
fn statement(files: &Files, of: &mut Source) -> (String, Rows) {
    let folder = files.root.join("d").display().to_string();
    let all = files.of_names(|_| true);
    let rows = pairs(&all);
    let bound = of.below(250) as i64;
    let above = |rows: &[(i64, i64)]| rows.iter().filter(|(a, _)| *a > bound).copied().collect::<Vec<_>>();
    match of.below(9) {
        0 => (format!("{WHOLE} FROM t"), whole(&rows)),
        1 => (format!("{WHOLE} FROM t WHERE a > {bound}"), whole(&above(&rows))),
        2 => {
            let list: Vec<i64> = (0..3).map(|_| of.below(250) as i64).collect();
            let kept: Vec<_> = rows.iter().filter(|(a, b)| list.contains(a) && *b != bound).copied().collect();
            let [x, y, z] = [list[0], list[1], list[2]];
            (format!("{WHOLE} FROM t WHERE a IN ({x}, {y}, {z}) AND b NOT IN ({bound})"), whole(&kept))
        }
        3 => {
            let mut groups: BTreeMap<i64, i64> = BTreeMap::new();
            rows.iter().for_each(|(a, b)| *groups.entry(a % 5).or_default() += b);
            let expected = groups.into_iter().map(|(g, s)| vec![Some(g), Some(s)]).collect();
            ("SELECT g, s FROM v ORDER BY g".to_string(), Some(expected))
        }
        4 => {
            let current = files.names.get(files.current).map(|content| files.contents[*content]);
            let rows = pairs(&current.into_iter().collect::<Vec<_>>());
            (format!("{WHOLE} FROM cur WHERE a > {bound}"), whole(&above(&rows)))
        }
        5 => {
            let group = |(p, content): (&i64, &usize)| {
                let of = files.contents[*content];
                vec![Some(*p), Some(of.rows), sum(of.b())]
            };
            let expected = files.partitions.iter().map(group).collect();
            let sql = "SELECT CAST(p AS BIGINT) AS q, count(*), sum(b) FROM h GROUP BY 1 ORDER BY 1";
            (sql.to_string(), Some(expected))
        }
        6 => {
            let p = of.below(PARTITIONS as usize) as i64;
            let rows = files.partitions.get(&p).map(|content| pairs(&[files.contents[*content]])).unwrap_or_default();
            (format!("{WHOLE} FROM h WHERE p = {p}"), whole(&rows))
        }
        // A column that no file has is an error, and so is a folder without files.
        7 => {
            let known = all.iter().any(|content| content.wider);
            let c = sum(all.iter().flat_map(|content| content.c()));
            (format!("SELECT count(*), sum(c) FROM '{folder}/'"), known.then(|| vec![vec![Some(rows.len() as i64), c]]))
        }
        _ => {
            let some = files.of_names(|name| name < "c");
            let rows = pairs(&some);
            let sql = format!("{WHOLE} FROM '{folder}/[ab].parquet'");
            (sql, if some.is_empty() { None } else { whole(&rows) })
        }
    }
}

async fn answer(session: &Millpond, door: usize, sql: &str) -> Result<Vec<Vec<Option<i64>>>, String> {
    let batches = async {
        match door {
            0 => session.context().sql(sql).await?.collect().await,
            1 => session.stream(sql).await?.try_collect().await,
            _ => session.execute(sql).await.map(|result| result.batches),
        }
    };
    let batches: Vec<RecordBatch> = batches.await.map_err(|error| error.strip_backtrace())?;
    let mut rows = Vec::new();
    for batch in &batches {
        let columns: Vec<&Int64Array> =
            batch.columns().iter().map(|column| as_int64_array(column).expect("a BIGINT")).collect();
        rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c.iter().nth(row).flatten()).collect()));
    }
    Ok(rows)
}

async fn session(root: &Path, settles: &str, with: Option<&Millpond>) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(2);
    let mut builder = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Sim)
        .with_config(config)
        .with_url_tables()
        .with_option("cache_settle_seconds", settles)
        .expect("an option");
    if let Some(engine) = with.and_then(Millpond::engine) {
        builder = builder.with_engine(Arc::clone(engine));
    }
    let session = builder.build().expect("the device opens");
    let root = root.display();
    let columns = "(a BIGINT, b BIGINT) STORED AS PARQUET LOCATION";
    for sql in [
        format!("CREATE EXTERNAL TABLE t {columns} '{root}/d/'"),
        format!("CREATE EXTERNAL TABLE cur {columns} '{root}/current.parquet'"),
        format!(
            "CREATE EXTERNAL TABLE h (a BIGINT, b BIGINT, p INT) STORED AS PARQUET PARTITIONED BY (p) LOCATION '{root}/h/'"
        ),
        "CREATE VIEW v AS SELECT a % 5 AS g, sum(b) AS s FROM t GROUP BY a % 5".to_string(),
    ] {
        session.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    session
}

/// Runs one sequence; returns its statements, and those whose plan was found.
async fn sequence(seed: u64) -> Result<(usize, u64), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut of, mut files) = (Source(seed), Files::begin(folder.path()));
    let young = session(folder.path(), "2", None).await;
    let trusting = session(folder.path(), "0", Some(&young)).await;
    let (mut told, mut statements) = (Vec::new(), 0);
    for _ in 0..STEPS {
        told.push(files.change(&mut of));
        for _ in 0..3 {
            let (sql, expected) = statement(&files, &mut of);
            let (which, door) = (of.below(2), of.below(4));
            let session = [&young, &trusting][which];
            // Twice: what is kept of a statement serves the next one.
            for run in 0..1 + of.below(2) {
                let got = answer(session, door, &sql).await;
                statements += 1;
                if got.as_ref().ok() != expected.as_ref() {
                    let told = told.join("\n  ");
                    return Err(format!(
                        "seed {seed:x}, after\n  {told}\nsession {which}, door {door}, run {run}: {sql}\nexpected {expected:?}\ngot {got:?}"
                    ));
                }
            }
        }
    }
    let findings = young.engine().map(|engine| engine.take_findings()).unwrap_or_default();
    if !findings.is_empty() {
        return Err(format!("seed {seed:x}: {findings:?}"));
    }
    let found = [young.plans_found(), trusting.plans_found()].map(|found| found.kept + found.by_template);
    Ok((statements, found.iter().sum()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_files_as_they_are() {
    let first = of_commit("MILLPOND_FUZZ_SEED");
    let sequences = std::env::var("MILLPOND_FILE_SEQUENCES").ok().and_then(|number| number.parse().ok());
    let sequences = sequences.unwrap_or(SEQUENCES);
    let (mut statements, mut found, mut wrong) = (0, 0, Vec::new());
    for number in 0..sequences {
        match sequence(first.wrapping_add(number)).await {
            Ok((of, plans)) => (statements, found) = (statements + of, found + plans),
            Err(why) => wrong.push(why),
        }
    }
    println!("{sequences} sequences from seed {first:x}: {statements} statements, {found} by plans that were found");
    assert!(wrong.is_empty(), "{} of {sequences} differ:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(found > 0, "no plan was found");
}
