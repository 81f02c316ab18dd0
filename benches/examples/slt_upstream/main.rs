//! DataFusion's own SQL logic tests, on the CPU and on the simulated device: `cargo slt-upstream [FILTER …]`.
//!
//! ```text
//!   files of DataFusion's test crate ─► each record on the CPU ─► passes? ─► the same on the simulated device ─►
//!                                                                            passes?
//!                                                                               └─► without an operator on the CPU?
//!   ─► docs/compatibility.md
//! ```
//!
//! Files    the registry's source of `datafusion-sqllogictest` in the version of the `datafusion` that is built in; or
//!          `--checkout DIR`, a clone of DataFusion with its submodules. The published crate lacks the data folders of
//!          the clone (`testing`, `parquet-testing`, `datafusion/core/tests`): records that read them fail on the CPU,
//!          so they count nowhere. `--data DIR` names a folder that has them. The tables of TPC-H are made here.
//! Counts   queries with an answer. EXPLAIN, SHOW, SET, DESCRIBE and the information schema say what an engine is, not
//!          what it answers: they are exempt. Statements run, and count apart.

#[path = "../../tests/slt/database.rs"]
mod database;
mod known;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use database::{Database, Engine, Kind, Last, LastSlot};
use known::{KNOWN, OFTEN, OVERRULED, SKIPPED, why};
use millpond::datafusion::DATAFUSION_VERSION;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::{DeviceChoice, Millpond};
use millpond_bench::runner::is_ordered;
use millpond_queries::answer::{Answer, compare};
use sqllogictest::{QueryExpect, Record, RecordOutput, Runner, parse_file, strict_column_validator};

const USAGE: &str = "cargo slt-upstream [--checkout DIR] [--data DIR] [--write FILE] [--threads N] [--reasons] [FILTER …]
A filter is part of a file's path, such as joins or aggregate.slt; without one, all files run and docs/compatibility.md is written.
--reasons prints each query that left an operator on the CPU, and why.
Exit code 0: nothing that passes on the CPU fails on the device, nor here what passes in DataFusion alone, and every frequent reason has a sentence; 1: not so; 2: usage; 4: no files.";

/// The files whose share is the aim of "on the device alone".
const CORE: [&str; 6] = ["select", "join", "aggregate", "group_by", "order", "union"];

/// Longest time that one record may take.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Arguments {
    checkout: Option<PathBuf>,
    data: Option<PathBuf>,
    write: Option<PathBuf>,
    threads: Option<usize>,
    reasons: bool,
    filters: Vec<String>,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments::default();
    while let Some(name) = given.next() {
        match name.as_str() {
            "--checkout" => arguments.checkout = Some(given.next()?.into()),
            "--data" => arguments.data = Some(given.next()?.into()),
            "--write" => arguments.write = Some(given.next()?.into()),
            "--threads" => arguments.threads = Some(given.next()?.parse().ok().filter(|n| *n > 0)?),
            "--reasons" => arguments.reasons = true,
            flag if flag.starts_with('-') => return None,
            filter => arguments.filters.push(filter.to_string()),
        }
    }
    Some(arguments)
}

/// The folder of DataFusion's test crate: its `test_files` and `data`.
fn crate_folder(scratch: &Path) -> Result<PathBuf, String> {
    // A manifest of its own outside the workspace: nothing of that crate is built, and its features do not leak in.
    let manifest = scratch.join("fetch/Cargo.toml");
    let text = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[lib]\npath = \"lib.rs\"\n\
         [dependencies]\ndatafusion-sqllogictest = {{ version = \"={DATAFUSION_VERSION}\", default-features = false }}\n"
    );
    let written = std::fs::create_dir_all(scratch.join("fetch"))
        .and_then(|()| std::fs::write(&manifest, text))
        .and_then(|()| std::fs::write(scratch.join("fetch/lib.rs"), ""));
    written.map_err(|error| format!("cannot write {}: {error}", manifest.display()))?;
    let way_out = "name a clone of DataFusion instead: cargo slt-upstream --checkout DIR";
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--manifest-path"])
        .arg(&manifest)
        .output()
        .map_err(|error| format!("cargo does not run: {error}; {way_out}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("datafusion-sqllogictest {DATAFUSION_VERSION} cannot be fetched: {said}\n{way_out}"));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}; {way_out}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.filter(|package| package["name"] == "datafusion-sqllogictest");
    let manifest = found.filter_map(|package| package["manifest_path"].as_str()).next();
    let folder = manifest.and_then(|path| Path::new(path).parent()).map(Path::to_path_buf);
    folder.ok_or_else(|| format!("cargo metadata does not name datafusion-sqllogictest; {way_out}"))
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let (entry, path) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        match entry.is_dir() {
            true => copy_folder(&entry, &path)?,
            false => drop(std::fs::copy(&entry, &path)?),
        }
    }
    Ok(())
}

/// A copy of what the tests read and write, laid out as in a clone; its folder of SQL logic tests.
fn lay_out(arguments: &Arguments, scratch: &Path) -> Result<PathBuf, String> {
    let tests = scratch.join("datafusion/sqllogictest");
    let source = match &arguments.checkout {
        Some(checkout) => checkout.join("datafusion/sqllogictest"),
        None => crate_folder(scratch)?,
    };
    for folder in ["test_files", "data"] {
        let from = source.join(folder);
        copy_folder(&from, &tests.join(folder)).map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
    }
    let tpch = tests.join("test_files/tpch/data");
    write_tpch(&tpch).map_err(|error| format!("cannot write {}: {error}", tpch.display()))?;
    let data = arguments.data.as_ref().or(arguments.checkout.as_ref());
    for folder in DATA_FOLDERS {
        let Some(from) = data.map(|data| data.join(folder)).filter(|from| from.is_dir()) else { continue };
        copy_folder(&from, &scratch.join(folder))
            .map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
    }
    Ok(tests)
}

/// The tables of TPC-H at scale 0.1, which the answers in `tpch/` are of, as text with bars.
fn write_tpch(folder: &Path) -> std::io::Result<()> {
    use tpchgen::generators::{
        CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
        RegionGenerator, SupplierGenerator,
    };
    std::fs::create_dir_all(folder)?;
    macro_rules! write_table {
        ($($name:literal: $generator:ident),*) => {$(
            let mut file = BufWriter::new(File::create(folder.join(concat!($name, ".tbl")))?);
            for row in $generator::new(0.1, 1, 1).iter() {
                writeln!(file, "{row}")?;
            }
            file.flush()?;
        )*};
    }
    write_table!(
        "nation": NationGenerator, "region": RegionGenerator, "supplier": SupplierGenerator,
        "customer": CustomerGenerator, "part": PartGenerator, "partsupp": PartSuppGenerator,
        "orders": OrderGenerator, "lineitem": LineItemGenerator
    );
    Ok(())
}

fn slt_files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            slt_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            found.push(path);
        }
    }
    Ok(())
}

/// Result of one record on one engine.
#[derive(Debug, Clone)]
enum Came {
    Passed(Box<Passed>),
    /// The file's expectation, and the actual rows if the query returned any.
    Failed(String, Option<Box<Passed>>),
    /// A condition names another engine, or the record is no statement and no query.
    Nothing,
}

#[derive(Debug, Clone, Default)]
struct Passed {
    alone: bool,
    launched: bool,
    reasons: Vec<String>,
    answer: Option<Answer>,
}

impl Passed {
    fn of(last: Option<Last>) -> Self {
        let Some(Last { report, answer }) = last else { return Self { alone: true, ..Self::default() } };
        let alone = report.reasons.is_empty() && report.notes.is_empty();
        // What a run leaves to the CPU is a reason like what planning leaves there.
        let reasons = [report.reasons, report.notes].concat();
        Self { alone, launched: report.launches > 0, reasons, answer }
    }

    /// The same rows as `cpu`, by the rules of our own suites: floats within their tolerance, and in order where there
    /// is one.
    fn agrees(&self, cpu: &Self, sql: &str) -> bool {
        let both = cpu.answer.as_ref().zip(self.answer.as_ref());
        both.is_some_and(|(cpu, device)| compare(cpu, device, is_ordered(sql)).is_ok())
    }
}

/// Counts of one file.
#[derive(Debug, Default)]
struct Counts {
    queries: usize,
    cpu: usize,
    device: usize,
    alone: usize,
    /// Of these: kernels ran. The others have no operator over rows.
    launched: usize,
    statements: usize,
    statements_cpu: usize,
    exempt: usize,
    reasons: BTreeMap<String, usize>,
    /// Queries that left an operator on the CPU, and why.
    fallbacks: Vec<(String, String)>,
    /// Records that pass on the CPU and fail on the device.
    differences: Vec<String>,
    /// Answers that are the file's by the rules of our own suites, and not by its letters.
    agree: usize,
    /// Looked at by a person.
    known: Vec<(&'static str, &'static str)>,
    /// Records whose answer a mend changes.
    overruled: Vec<(&'static str, &'static str)>,
    failure: Option<String>,
}

impl Counts {
    fn passed(&mut self, came: Passed, sql: &str) {
        self.device += 1;
        self.alone += usize::from(came.alone);
        self.launched += usize::from(came.alone && came.launched);
        for reason in came.reasons {
            self.fallbacks.push((reason.clone(), sql.to_string()));
            *self.reasons.entry(kind_of(&reason)).or_default() += 1;
        }
    }

    fn add(&mut self, other: &Counts) {
        self.queries += other.queries;
        self.cpu += other.cpu;
        self.device += other.device;
        self.alone += other.alone;
        self.launched += other.launched;
        self.statements += other.statements;
        self.statements_cpu += other.statements_cpu;
        self.exempt += other.exempt;
        self.agree += other.agree;
        self.known.extend(&other.known);
        self.overruled.extend(&other.overruled);
        for (reason, times) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += times;
        }
    }
}

/// True for records that say what the engine is.
fn is_exempt(sql: &str) -> bool {
    let sql = sql.trim_start().to_lowercase();
    ["explain", "show", "describe", "desc "].iter().any(|word| sql.starts_with(word))
        || sql.contains("information_schema")
}

/// Runs the records of a file on one session.
fn outcomes(path: &Path, engine: &Engine, runtime: &tokio::runtime::Runtime) -> Result<Vec<Came>, String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("file");
    let scratch = Path::new("test_files/scratch").join(stem);
    _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let last = LastSlot::default();
    let handle = runtime.handle().clone();
    let connect = {
        let last = Arc::clone(&last);
        move || {
            let database = Database::new(engine.clone(), handle.clone(), PATIENCE, Arc::clone(&last));
            async { Ok(database) }
        }
    };
    let mut runner = Runner::new(connect);
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(database::normalize);
    runner.with_validator(database::validate);
    let records: Vec<Record<Kind>> = parse_file(path).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for record in records {
        if matches!(record, Record::Halt { .. }) {
            break;
        }
        let sql = match &record {
            Record::Query { sql, expected: QueryExpect::Results { .. }, .. } if is_exempt(sql) => {
                all.push(Came::Nothing);
                continue;
            }
            Record::Query { .. } | Record::Statement { .. } => true,
            _ => false,
        };
        let came = match runner.run(record) {
            _ if !sql => Came::Nothing,
            Ok(RecordOutput::Nothing) => Came::Nothing,
            Ok(_) => Came::Passed(Box::new(Passed::of(last.lock().expect("no panic holds the lock").take()))),
            Err(error) => {
                let answered = last.lock().expect("no panic holds the lock").take();
                let answered = answered.map(|last| Box::new(Passed::of(Some(last))));
                Came::Failed(error.display(false).to_string(), answered)
            }
        };
        all.push(came);
    }
    Ok(all)
}

fn config() -> SessionConfig {
    SessionConfig::new().with_target_partitions(4)
}

/// A fresh session for a file.
fn session(path: &Path, device: Option<&Millpond>) -> Result<Millpond, String> {
    let mut builder = Millpond::builder().with_own_engine().with_config(config());
    builder = match device.and_then(Millpond::engine) {
        Some(engine) => builder.with_device(DeviceChoice::Sim).with_engine(Arc::clone(engine)),
        None => builder.with_device(DeviceChoice::Cpu),
    };
    if path.ends_with("dynamic_file.slt") {
        builder = builder.with_url_tables();
    }
    builder.build().map_err(|error| error.to_string())
}

/// DataFusion alone: a record that it passes is one that a mend must not lose.
fn datafusion(path: &Path) -> Engine {
    let context = SessionContext::new_with_config(config());
    Engine::DataFusion(if path.ends_with("dynamic_file.slt") { context.enable_url_table() } else { context })
}

fn run_file(path: &Path, device: &Millpond, runtime: &tokio::runtime::Runtime) -> Counts {
    let mut counts = Counts::default();
    let ours = |device| session(path, device).and_then(|ours| outcomes(path, &Engine::Millpond(ours), runtime));
    let all =
        outcomes(path, &datafusion(path), runtime).and_then(|alone| Ok((alone, ours(None)?, ours(Some(device))?)));
    let (alone, on_cpu, on_device) = match all {
        Ok(all) => all,
        Err(error) => {
            counts.failure = Some(error);
            return counts;
        }
    };
    let records: Vec<Record<Kind>> = parse_file(path).unwrap_or_default();
    for (((record, alone), on_cpu), on_device) in records.iter().zip(alone).zip(on_cpu).zip(on_device) {
        let (is_query, sql) = match record {
            Record::Query { sql, expected: QueryExpect::Results { .. }, .. } => {
                if is_exempt(sql) {
                    counts.exempt += 1;
                    continue;
                }
                (true, sql)
            }
            Record::Query { sql, .. } | Record::Statement { sql, .. } => (false, sql),
            _ => continue,
        };
        if matches!(on_cpu, Came::Nothing) {
            continue;
        }
        *(if is_query { &mut counts.queries } else { &mut counts.statements }) += 1;
        let on_cpu = match (on_cpu, alone) {
            (Came::Passed(on_cpu), _) => on_cpu,
            (Came::Failed(why, _), Came::Passed(_)) => {
                match OVERRULED.iter().find(|(place, _)| why.contains(place)) {
                    Some((place, mend)) => counts.overruled.push((place, mend)),
                    None => counts.differences.push(format!("DataFusion alone passes\n{sql}\n{why}")),
                }
                continue;
            }
            _ => continue,
        };
        *(if is_query { &mut counts.cpu } else { &mut counts.statements_cpu }) += 1;
        match on_device {
            Came::Passed(came) if is_query => counts.passed(*came, sql),
            Came::Failed(_, Some(came)) if is_query && came.agrees(&on_cpu, sql) => {
                counts.agree += 1;
                counts.passed(*came, sql);
            }
            Came::Failed(why, came) => match KNOWN.iter().find(|(place, _)| why.contains(place)) {
                Some((place, reason)) => {
                    counts.known.push((place, reason));
                    if is_query {
                        counts.passed(came.map(|came| *came).unwrap_or_default(), sql);
                    }
                }
                None => counts.differences.push(format!("{sql}\n{why}")),
            },
            _ => {}
        }
    }
    counts
}

/// A reason without the names in it, so that equal kinds count together.
fn kind_of(reason: &str) -> String {
    let text = match reason.split_once(" has no device form: ") {
        Some((_, why)) => format!("expression: {why}"),
        None => match reason.split_once(" has type ") {
            Some((_, what)) => format!("column of type {what}"),
            None if reason.ends_with("computed inside the scan, by DataFusion") => {
                "expression computed inside the scan, by DataFusion".to_string()
            }
            None => reason.to_string(),
        },
    };
    text.chars().take(110).collect()
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// The folders of a clone that hold data.
const DATA_FOLDERS: [&str; 3] = ["testing", "parquet-testing", "datafusion/core/tests"];

/// The page. `data` has some of [`DATA_FOLDERS`].
fn report(files: &BTreeMap<String, Counts>, data: Option<&Path>) -> String {
    let (mut all, mut core) = (Counts::default(), Counts::default());
    for (name, counts) in files {
        all.add(counts);
        if CORE.iter().any(|part| name.contains(part)) || name.starts_with("string") {
            core.add(counts);
        }
    }
    let differences: usize = files.values().map(|counts| counts.differences.len()).sum();
    let is_here = |folder: &&&str| data.is_some_and(|data| data.join(folder).is_dir());
    let here: Vec<&str> = DATA_FOLDERS.iter().filter(is_here).copied().collect();
    let mut text = format!(
        "# Compatibility: DataFusion's own SQL logic tests\n\n\
         Written by `cargo slt-upstream` (the simulated device, `millpond.fallback = allow`); do not edit.\n\
         Files: `datafusion-sqllogictest` {DATAFUSION_VERSION}, {} of them{}.\n\n\
         | records | number | pass on the CPU | pass on the device | of these, without a fallback | of these, with kernels |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
        files.len(),
        if here.is_empty() {
            "; their data folders were not at hand".into()
        } else {
            format!(", with a clone's {}", here.join(", "))
        },
    );
    for (name, counts) in [("all queries", &all), ("select, join, aggregate, group by, order, union, string", &core)] {
        _ = writeln!(
            text,
            "| {name} | {} | {} | {} ({}) | {} ({}) | {} |",
            counts.queries,
            counts.cpu,
            counts.device,
            percent(counts.device, counts.cpu),
            counts.alone,
            percent(counts.alone, counts.cpu),
            counts.launched
        );
    }
    _ = write!(
        text,
        "\nShares are of the queries that pass on the CPU. A query that the CPU side fails reads a file, a table or a \
         function that this build lacks. {} statements ran as well ({} pass on the CPU); {} queries are exempt: EXPLAIN, \
         SHOW, DESCRIBE and the information schema. \"Without a fallback\" counts a fallback as a failure; of those queries, the \
         ones without kernels have no operator over table rows.\n\nSkipped files:\n",
        all.statements, all.statements_cpu, all.exempt
    );
    for (part, why) in SKIPPED {
        _ = writeln!(text, "- `{part}`: {why}");
    }
    _ = writeln!(
        text,
        "\n## What passes on the CPU and fails on the device, or in DataFusion alone and here on neither: {differences}\n"
    );
    for (name, counts) in files.iter().filter(|(_, counts)| !counts.differences.is_empty()) {
        for difference in &counts.differences {
            _ = writeln!(text, "`{name}`\n```text\n{difference}\n```");
        }
    }
    _ = writeln!(
        text,
        "\n{} answers are the file's by the rules of our own suites and not by its letters: floats within 1e-9 (f64) or 1e-5 (f32), \
         and rows in another order where the query has no ORDER BY. {} differ for a known reason, and count as passed:\n",
        all.agree,
        all.known.len()
    );
    for (place, why) in &all.known {
        _ = writeln!(text, "- `{place}`: {why}");
    }
    _ = writeln!(
        text,
        "\n{} records pass in DataFusion alone, and not here, on the CPU as on the device: their answers are mistakes that are mended, or \
         they are refused ([upstream.md](upstream.md)):\n",
        all.overruled.len()
    );
    for (place, mend) in &all.overruled {
        _ = writeln!(text, "- `{place}`: {mend}");
    }
    text += "\n## Why operators stay on the CPU\n\n| queries | reason | why it remains |\n| ---: | --- | --- |\n";
    let mut reasons: Vec<_> = all.reasons.iter().collect();
    reasons.sort_by_key(|(reason, times)| (std::cmp::Reverse(**times), reason.as_str()));
    for (reason, times) in reasons.iter().take(60) {
        let sentence = why(reason).unwrap_or_default();
        _ = writeln!(text, "| {times} | {} | {sentence} |", reason.replace('|', "\\|").replace('\n', " "));
    }
    if reasons.len() > 60 {
        _ = writeln!(text, "\n{} rarer reasons are left out.", reasons.len() - 60);
    }
    text += "\n## Files\n\n| file | queries | CPU | device | device alone |\n| --- | ---: | ---: | ---: | ---: |\n";
    for (name, counts) in files {
        match &counts.failure {
            Some(why) => _ = writeln!(text, "| {name} | not run: {} | | | |", why.replace('\n', " ")),
            None if counts.queries == 0 => {}
            None => {
                let Counts { queries, cpu, device, alone, .. } = counts;
                _ = writeln!(text, "| {name} | {queries} | {cpu} | {device} | {alone} |");
            }
        }
    }
    text
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let written = match (&arguments.write, arguments.filters.is_empty()) {
        (Some(path), _) => Some(std::path::absolute(path).map_err(|error| error.to_string())?),
        (None, true) => Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md")),
        (None, false) => None,
    };
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let tests = lay_out(arguments, scratch.path())?;
    // The files name their data relative to this folder.
    std::env::set_current_dir(&tests).map_err(|error| error.to_string())?;
    let mut paths = Vec::new();
    slt_files(Path::new("test_files"), &mut paths).map_err(|error| format!("test_files: {error}"))?;
    let name = |path: &Path| path.to_string_lossy().trim_start_matches("test_files/").to_string();
    paths.retain(|path| {
        let name = name(path);
        let wanted = arguments.filters.is_empty() || arguments.filters.iter().any(|filter| name.contains(filter));
        wanted && !SKIPPED.iter().any(|(part, _)| name.starts_with(part))
    });
    // Start the longest file first.
    paths.sort_by_key(|path| (!path.ends_with("tpch/tpch.slt"), path.clone()));
    if paths.is_empty() {
        return Err(format!("no file of {} has one of {:?} in its path", tests.display(), arguments.filters));
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let threads = arguments.threads.unwrap_or(2);
    // One device for each thread: what stays in its pool is the record's own.
    let device = || Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_config(config()).build();
    let devices: Vec<Millpond> =
        (0..threads).map(|_| device()).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let (waiting, done) = (Mutex::new(VecDeque::from(paths)), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for device in &devices {
            scope.spawn(|| {
                loop {
                    let Some(path) = waiting.lock().expect("no panic holds the lock").pop_front() else { break };
                    let counts = run_file(&path, device, &runtime);
                    println!(
                        "{}: {} queries, {} pass on the CPU, {} on the device, {} on the device alone{}",
                        name(&path),
                        counts.queries,
                        counts.cpu,
                        counts.device,
                        counts.alone,
                        counts.failure.as_ref().map(|why| format!("; not run: {why}")).unwrap_or_default(),
                    );
                    for difference in &counts.differences {
                        println!("DIFFERS {}\n{difference}\n", name(&path));
                    }
                    for (reason, sql) in counts.fallbacks.iter().filter(|_| arguments.reasons) {
                        println!("STAYS {}: {reason}\n{sql}\n", name(&path));
                    }
                    done.lock().expect("no panic holds the lock").insert(name(&path), counts);
                }
            });
        }
    });
    let done = done.into_inner().expect("the threads have ended");
    let text = report(&done, arguments.data.as_deref().or(arguments.checkout.as_deref()));
    match &written {
        Some(path) => std::fs::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))?,
        None => println!("{}", text.split("\n## Files").next().unwrap_or_default()),
    }
    let mut all = Counts::default();
    done.values().for_each(|counts| all.add(counts));
    let unexplained = all.reasons.iter().filter(|(reason, times)| **times >= OFTEN && why(reason).is_none());
    let unexplained: Vec<_> = unexplained
        .map(|(reason, times)| format!("{times} queries have a reason without a sentence: {reason}"))
        .collect();
    unexplained.iter().for_each(|line| println!("{line}"));
    Ok(done.values().all(|counts| counts.differences.is_empty()) && unexplained.is_empty())
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(4)
        }
    }
}
