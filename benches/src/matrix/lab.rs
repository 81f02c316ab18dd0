//! Reads one Parquet file on the CPU and on a device, in every way that the device supports, and reports differences.
//!
//! ```text
//!          ┌─► DataFusion alone ─────────────────────────────► rows or error ─┐
//!   file ──┤                                                                  ├─► Counts · Difference
//!          └─► device: cache off, pages by the host ─────────► rows or error ─┤
//!              device: cache off, pages by the device ───────► rows or error ─┤
//!              device: loaded by the device ─────────────────► rows or error ─┤
//!              device: columns stored, and found stored ─────► rows or error ─┘
//! ```
//!
//! Sessions  two, which all files of a worker share: a simulated device is slow to open. A file is the table `t`, until
//!           the next one is.
//! Errors    of DataFusion are the device's, in the same words; a panic of its reader is such an error.
//! Alarms    a finding of the simulated device, bytes of the pool that stay in use, a hang and a panic are differences,
//!           too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use millpond::column::{is_string, plain_repr};
use millpond::datafusion::arrow::datatypes::{DataType, Field, SchemaRef};
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::parquet::file::metadata::ParquetMetaDataReader;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::source::{is_parquet_scan, is_source};
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond, MillpondOptions, QueryResult, metric};
use millpond_data::matrix::ROW_ID;

use super::reading::Reading;
use super::rows::Rows;
use crate::fuzz::rng::Rng;

/// Longest time that a query may take; most take milliseconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Results, counted over files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    pub files: u64,
    /// Number of files that DataFusion reads, that it refuses, and whose columns all have a device form.
    pub read: u64,
    pub refused: u64,
    pub flat: u64,
    pub queries: u64,
    pub rows: u64,
    /// Row groups of all files that are read, and of flat ones.
    pub all: Groups,
    pub of_flat: Groups,
    /// Columns of row groups that the device decoded, and files in which it decoded some.
    pub columns_on_device: u64,
    pub files_on_device: u64,
    /// Files whose second run over stored columns decoded nothing.
    pub found_stored: u64,
    /// Why DataFusion read a row group or a file, and why a scan stayed with it; how often.
    pub notes: BTreeMap<String, u64>,
}

/// Row groups, by who read them where all columns of all rows were asked for and nothing was stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Groups {
    pub all: u64,
    /// By the engine's decoder.
    pub decoded: u64,
    /// By DataFusion below a `DeviceScanExec`: row groups of wrong bytes, and files.
    pub foreign: u64,
    /// By DataFusion below an `UploadExec`, or with no device at all.
    pub uploaded: u64,
}

impl Groups {
    fn add(&mut self, other: Groups) {
        self.all += other.all;
        self.decoded += other.decoded;
        self.foreign += other.foreign;
        self.uploaded += other.uploaded;
    }

    /// The share that the engine's decoder read, in percent.
    pub fn percent_decoded(&self) -> f64 {
        100.0 * self.decoded as f64 / self.all.max(1) as f64
    }
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.files += other.files;
        self.read += other.read;
        self.refused += other.refused;
        self.flat += other.flat;
        self.queries += other.queries;
        self.rows += other.rows;
        self.all.add(other.all);
        self.of_flat.add(other.of_flat);
        self.columns_on_device += other.columns_on_device;
        self.files_on_device += other.files_on_device;
        self.found_stored += other.found_stored;
        for (note, times) in other.notes {
            *self.notes.entry(note).or_default() += times;
        }
    }

    /// Counts a note; notes that differ in numbers alone count as one.
    fn note(&mut self, note: &str) {
        let numbers = note.split(' ').map(|word| if word.parse::<u64>().is_ok() { "N" } else { word });
        *self.notes.entry(numbers.collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
}

/// Difference between the answers of a device and of DataFusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The setting of the device's session, in words.
    pub setting: &'static str,
    pub sql: String,
    pub why: String,
}

/// A setting of the device's session: its name, its options, and whether all queries run under it or only that of all
/// rows.
const SETTINGS: [(&str, &[&str], bool); 5] = [
    ("cache off, pages by the host", &["millpond.cache = off", "millpond.parquet_decoder = host"], true),
    ("cache off, pages by the device", &["millpond.parquet_decoder = device"], true),
    ("cache auto, loaded by the device", &["millpond.cache = auto"], false),
    ("cache auto, first run", &["millpond.parquet_decoder = auto"], false),
    ("cache auto, second run", &[], false),
];
const HOST: usize = 0;
const DEVICE: usize = 1;
const LOAD: usize = 3;
const SECOND: usize = 4;

/// The sessions of a worker.
pub struct Lab {
    cpu: Millpond,
    device: Millpond,
}

/// How a run ended.
enum Ran {
    Rows(Rows, Box<QueryResult>),
    Failed(String),
    /// A panic or a hang: never as it should be.
    Lost(String),
}

impl Lab {
    /// Opens the sessions. `schedule` is the seed of a simulated device; 0 is the fixed order.
    ///
    /// # Errors
    /// When the device is not there.
    pub fn open(device: DeviceChoice, schedule: usize) -> Result<Lab> {
        let config = || SessionConfig::new().with_target_partitions(3);
        let mut options = MillpondOptions::default();
        options.device = device;
        options.fallback = Fallback::Allow;
        options.debug_sim_seed = schedule;
        let outside = |error| DataFusionError::External(Box::new(error));
        let cpu = Millpond::builder().with_device(DeviceChoice::Cpu).with_config(config()).build().map_err(outside)?;
        let device = Millpond::builder()
            .with_own_engine()
            .with_options(options)
            .with_config(config())
            .build()
            .map_err(outside)?;
        Ok(Lab { cpu, device })
    }

    /// Reads a file in every way.
    ///
    /// # Errors
    /// The first difference.
    pub async fn judge(&self, file: &Path, reading: &Reading) -> std::result::Result<Counts, Difference> {
        self.judge_over([file, file], reading).await
    }

    /// The same, with another file for the device: an alarm that should ring.
    ///
    /// # Errors
    /// The first difference.
    pub async fn judge_over(
        &self,
        [file, of_device]: [&Path; 2],
        reading: &Reading,
    ) -> std::result::Result<Counts, Difference> {
        let judged = self.judge_tables([file, of_device], reading).await;
        for session in [&self.cpu, &self.device] {
            // A table that was refused is not there.
            let _ = session.context().deregister_table("t");
        }
        let judged = judged?;
        let differs = |why| Difference { setting: "after all runs", sql: String::new(), why };
        if let Some(engine) = self.device.engine() {
            Store::of(engine).clear();
            if let Some(finding) = engine.take_findings().first() {
                return Err(differs(format!("a finding: {finding}")));
            }
        }
        // A failed run frees its memory when its tasks end, which may be a moment later.
        for _ in 0..PATIENCE.as_millis() / 10 {
            if self.device.pool_used_bytes() == 0 {
                return Ok(judged);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(differs(format!("{} bytes of the pool stay in use", self.device.pool_used_bytes())))
    }

    async fn judge_tables(
        &self,
        [file, of_device]: [&Path; 2],
        reading: &Reading,
    ) -> std::result::Result<Counts, Difference> {
        let mut counts = Counts { files: 1, ..Counts::default() };
        let registering = |why| Difference { setting: "the table is registered", sql: String::new(), why };
        let (num_rows, num_groups) = size(file);
        let expected = open(&self.cpu, file, &reading.settings(false, num_rows)).await;
        let got = open(&self.device, of_device, &reading.settings(true, num_rows)).await;
        let schema = match (expected, got) {
            (Ok(expected), Ok(got)) if expected == got => expected,
            (Ok(expected), Ok(got)) => return Err(registering(format!("schemas {expected:?} and {got:?}"))),
            (Err(expected), Err(got)) if expected == got => {
                counts.refused += 1;
                return Ok(counts);
            }
            (expected, got) => {
                let text =
                    |opened: std::result::Result<SchemaRef, String>| opened.map_or_else(|why| why, |_| "none".into());
                return Err(registering(format!("expected error {:?}, got {:?}", text(expected), text(got))));
            }
        };
        counts.rows += num_rows;
        let is_flat = schema.fields().iter().all(|field| has_device_form(field.data_type()));
        counts.flat += u64::from(is_flat);
        let queries = queries(&schema, num_rows, number_of(file));
        let mut is_refused = false;
        for (index, sql) in queries.iter().enumerate() {
            let expected = run(&self.cpu, sql).await;
            for (setting, (name, options, is_for_all)) in SETTINGS.into_iter().enumerate() {
                let differs = |why| Difference { setting: name, sql: sql.clone(), why };
                if index > 0 && !is_for_all {
                    continue;
                }
                set(&self.device, options).await.map_err(|error| differs(error.to_string()))?;
                if setting == LOAD {
                    // It is loaded again, by the host.
                    let cleared = self.device.execute("SELECT * FROM millpond_cache_clear()").await;
                    cleared.map_err(|error| differs(error.to_string()))?;
                }
                counts.queries += 1;
                let result = match (&expected, run(&self.device, sql).await) {
                    (Ran::Lost(why), _) => return Err(differs(format!("DataFusion alone: {why}"))),
                    (_, Ran::Lost(why)) => return Err(differs(why)),
                    (Ran::Rows(expected, _), Ran::Rows(got, result)) => match expected.difference(&got) {
                        Some(why) => return Err(differs(why)),
                        None => result,
                    },
                    (Ran::Failed(expected), Ran::Failed(got)) if same_error(expected, &got, num_groups) => {
                        is_refused = true;
                        continue;
                    }
                    (Ran::Failed(expected), Ran::Failed(got)) => {
                        return Err(differs(format!("expected error {expected:?}, got error {got:?}")));
                    }
                    (Ran::Failed(expected), Ran::Rows(got, _)) => {
                        return Err(differs(format!("expected error {expected:?}, got {} rows", got.num_rows())));
                    }
                    (Ran::Rows(expected, _), Ran::Failed(got)) => {
                        return Err(differs(format!("expected {} rows, got error {got:?}", expected.num_rows())));
                    }
                };
                if let Some(finding) = result.report.findings.first() {
                    return Err(differs(format!("{} findings; the first: {finding}", result.report.findings.len())));
                }
                if index == 0 {
                    let groups = count(&mut counts, setting, &result, num_groups);
                    if setting == HOST {
                        counts.all.add(groups);
                        counts.of_flat.add(if is_flat { groups } else { Groups::default() });
                    }
                }
            }
        }
        counts.refused += u64::from(is_refused);
        counts.read += u64::from(!is_refused);
        Ok(counts)
    }
}

/// Adds what a run over all rows tells; gives who read the file's row groups.
fn count(counts: &mut Counts, setting: usize, result: &QueryResult, num_groups: u64) -> Groups {
    let (scans, uploads) = scans(result);
    let decoded = counted(result, metric::ROW_GROUPS).min(num_groups);
    let groups = match scans > 0 {
        true => Groups { all: num_groups, decoded, foreign: num_groups - decoded, uploaded: 0 },
        false => Groups { all: num_groups, decoded: 0, foreign: 0, uploaded: num_groups },
    };
    let on_device = counted(result, metric::COLUMNS_ON_DEVICE);
    match setting {
        HOST => {
            result.report.notes.iter().for_each(|note| counts.note(plain(note)));
            if scans == 0 {
                let below = if uploads > 0 { "uploaded" } else { "not on the device" };
                let why =
                    result.report.reasons.first().cloned().unwrap_or_else(|| format!("a plan of {}", nodes(result)));
                counts.note(&format!("{below}: {why}"));
            }
        }
        DEVICE => {
            counts.columns_on_device += on_device;
            counts.files_on_device += u64::from(on_device > 0);
        }
        SECOND => counts.found_stored += u64::from(scans > 0 && decoded == 0 && groups.foreign == num_groups),
        _ => {}
    }
    groups
}

/// A note without the name of its file.
fn plain(note: &str) -> &str {
    note.split_once(".parquet: ").map_or(note, |(_, why)| why)
}

/// Registers a file as `t`; gives its schema, or the error's text.
async fn open(session: &Millpond, file: &Path, settings: &[String]) -> std::result::Result<SchemaRef, String> {
    let opened = async {
        set(session, settings).await?;
        let path = file.to_str().ok_or_else(|| DataFusionError::Configuration("a path is not UTF-8".into()))?;
        session.context().register_parquet("t", path, ParquetReadOptions::default()).await?;
        Ok::<_, DataFusionError>(session.context().table_provider("t").await?.schema())
    };
    opened.await.map_err(|error| error.strip_backtrace())
}

async fn set<S: AsRef<str>>(session: &Millpond, settings: &[S]) -> Result<()> {
    for setting in settings {
        session.context().sql(&format!("SET {}", setting.as_ref())).await?;
    }
    Ok(())
}

/// Runs a query in a task of its own, so that a panic is an outcome.
async fn run(session: &Millpond, sql: &str) -> Ran {
    let (session, sql) = (session.clone(), sql.to_string());
    let task = tokio::spawn(async move {
        let result = session.execute(&sql).await?;
        let rows = Rows::try_new(&result.schema, &result.batches)?;
        Ok::<_, DataFusionError>((rows, result))
    });
    let stop = task.abort_handle();
    match tokio::time::timeout(PATIENCE, task).await {
        Err(_) => {
            stop.abort();
            Ran::Lost(format!("no answer after {} seconds", PATIENCE.as_secs()))
        }
        Ok(Err(panic)) => Ran::Lost(panic.to_string()),
        Ok(Ok(Err(error))) => Ran::Failed(error.strip_backtrace()),
        Ok(Ok(Ok((rows, result)))) => Ran::Rows(rows, Box::new(result)),
    }
}

/// Equal messages, except where DataFusion's own message varies: with wrong bytes in several row groups any of them may
/// be reported first; a scan that filters rows, which a device's does not, wraps the error of a page; so does a panic,
/// in quotes.
fn same_error(expected: &str, got: &str, num_groups: u64) -> bool {
    const PAGE: &str = "Parquet argument error: ";
    const PANIC: &str = "internal error in ";
    let told = |error: &str| {
        let told = [PAGE, PANIC].into_iter().find_map(|from| error.split_once(from).map(|(_, told)| told));
        told.unwrap_or(error).replace('\\', "")
    };
    let (expected, got) = (told(expected), told(got));
    let words = |error: &str| error.replace(|c: char| c.is_ascii_digit(), "");
    expected == got || num_groups > 1 && words(&expected) == words(&got)
}

/// Rows and row groups, as the footer has them; none of a file that has no footer.
fn size(file: &Path) -> (u64, u64) {
    let read = |file| ParquetMetaDataReader::new().parse_and_finish(&file).ok();
    let Some(footer) = File::open(file).ok().and_then(read) else { return (0, 0) };
    (footer.file_metadata().num_rows().max(0) as u64, footer.num_row_groups() as u64)
}

/// A number that the name of a file gives.
pub(super) fn number_of(file: &Path) -> u64 {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Queries with work for a device: all rows under a condition that holds always, then some columns of some rows.
fn queries(schema: &SchemaRef, num_rows: u64, number: u64) -> Vec<String> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    if schema.field_with_name(ROW_ID).is_err() {
        return match schema.fields().iter().find_map(|field| always(&quoted(field.name()), field)) {
            Some(always) => vec![format!("SELECT * FROM t WHERE {always}")],
            None => vec!["SELECT count(*) FROM t".to_string()],
        };
    }
    let mut queries = vec![format!("SELECT * FROM t WHERE {ROW_ID} >= 0")];
    if num_rows >= 32 {
        let mut rng = Rng::new(number, num_rows);
        let low = rng.below(num_rows as usize);
        let high = low + rng.below(num_rows as usize - low);
        // Without columns that would keep all others from the device.
        let columns = schema.fields().iter().rev().filter(|field| has_device_form(field.data_type()));
        let columns: Vec<String> = columns.map(|field| quoted(field.name())).collect();
        queries.push(format!("SELECT {} FROM t WHERE {ROW_ID} BETWEEN {low} AND {high}", columns.join(", ")));
    }
    queries
}

/// A condition on a column that holds for each of its rows, though no optimiser knows; `None` for a column without one.
fn always(name: &str, field: &Field) -> Option<String> {
    let data_type = field.data_type();
    match data_type {
        _ if !has_device_form(data_type) => None,
        _ if field.is_nullable() => Some(format!("CAST({name} IS NULL AS INT) >= 0")),
        DataType::Boolean => Some(format!("CAST({name} AS INT) >= 0")),
        _ if data_type.is_numeric() => Some(format!("CAST({name} > 3 AS INT) >= 0")),
        DataType::FixedSizeBinary(_) => None,
        _ => {
            let constant = if is_string(data_type) { "'b'" } else { "3" };
            Some(format!("CAST({name} > arrow_cast({constant}, '{data_type}') AS INT) >= 0"))
        }
    }
}

/// True for columns that the device may hold.
fn has_device_form(data_type: &DataType) -> bool {
    plain_repr(data_type).is_some() || is_string(data_type)
}

/// Sum of the metric `name` over a plan's scans.
fn counted(result: &QueryResult, name: &str) -> u64 {
    millpond::source::counted(&result.plan, name) as u64
}

/// The names of a plan's nodes, from the top.
fn nodes(result: &QueryResult) -> String {
    let mut names = Vec::new();
    let walked = result.plan.apply(|node| {
        names.push(node.name().to_string());
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    names.join(" ─ ")
}

/// Scans by the engine's decoder, and uploads.
fn scans(result: &QueryResult) -> (u64, u64) {
    let (mut scans, mut uploads) = (0, 0);
    let walked = result.plan.apply(|node| {
        scans += u64::from(is_parquet_scan(node.as_ref()));
        uploads += u64::from(is_source(node.as_ref()) && !is_parquet_scan(node.as_ref()));
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    (scans, uploads)
}
