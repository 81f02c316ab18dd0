//! Many Parquet files, a device against DataFusion: the engine's page decoder gives the same bits or the same error.
//!
//! ```text
//!   cases of millpond_data::matrix ──write──┐
//!                                           ├─► file ─► lab: read in every way ─► Counts · a difference, with the line
//!                                                                                 to paste
//!   files of a folder ──────────────────────┘
//! ```
//!
//! Again   `cargo parquet-matrix --seed S --first N --cases 1` writes and reads the same file again, `--files FILE` a
//!         file that is there.

pub mod lab;
pub mod reading;
pub mod rows;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::DeviceChoice;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond_data::matrix::{Case, write};

use self::lab::{Counts, Lab};
use self::reading::Reading;

/// A file to read.
#[derive(Debug, Clone)]
pub enum Input {
    /// Of the matrix, to be written first.
    Case(Case),
    File(PathBuf),
}

impl Input {
    /// The Parquet files of a folder and of the folders in it, by name; or one file.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn files(path: &Path) -> Result<Vec<Input>> {
        if path.is_file() {
            return Ok(vec![Input::File(path.to_path_buf())]);
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_dir() {
                files.extend(Input::files(&path)?);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                files.push(Input::File(path));
            }
        }
        files.sort_by_key(Input::name);
        Ok(files)
    }

    /// Name in reports.
    fn name(&self) -> String {
        match self {
            Input::Case(case) => case.name(),
            Input::File(path) => path.display().to_string(),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Input::Case(case) => case.number as u64,
            Input::File(path) => lab::number_of(path),
        }
    }

    /// How to read it alone.
    fn again(&self, seed: u64) -> String {
        match self {
            Input::Case(case) => format!("cargo parquet-matrix --seed {seed} --first {} --cases 1", case.number),
            Input::File(path) => format!("cargo parquet-matrix --seed {seed} --files {}", path.display()),
        }
    }
}

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Seed of the reader's options, and of the simulated device's schedule; 0 is the fixed order, in which few races
    /// show.
    pub seed: u64,
    pub device: DeviceChoice,
    /// Give up after this many differences.
    pub differences: usize,
    /// Files that are read at a time, each worker with sessions of its own.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, device: DeviceChoice::Sim, differences: 10, workers: 2 }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pub counts: Counts,
    /// One paragraph per difference.
    pub differences: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        writeln!(
            f,
            "{} files: {} read, {} refused by both, {} differ; {} rows, {} queries on the device",
            counts.files,
            counts.read,
            counts.refused,
            self.differences.len(),
            counts.rows,
            counts.queries
        )?;
        for (name, groups) in [("all files", counts.all), ("flat files with a device form", counts.of_flat)] {
            writeln!(
                f,
                "row groups of {name}: {} of {} by the engine's decoder ({:.1} %), {} by DataFusion below it, {} uploaded",
                groups.decoded,
                groups.all,
                groups.percent_decoded(),
                groups.foreign,
                groups.uploaded
            )?;
        }
        write!(
            f,
            "the device decoded {} columns, in {} files; {} files of {} were found stored",
            counts.columns_on_device, counts.files_on_device, counts.found_stored, counts.read
        )?;
        let mut notes: Vec<_> = counts.notes.iter().collect();
        notes.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        notes.iter().try_for_each(|(note, times)| write!(f, "\n{times:5} × {note}"))
    }
}

/// Reads the files, telling `say` how far it is, and about each difference as it is found.
///
/// # Errors
/// When the device is not there or a file cannot be written; what is wrong with a file is an outcome.
pub async fn run(inputs: Vec<Input>, options: Options, say: impl Fn(&str) + Clone + Send + 'static) -> Result<Summary> {
    let total = inputs.len();
    let shared = Arc::new(Shared { inputs, options, next: AtomicUsize::new(0), found: AtomicUsize::new(0) });
    let workers: Vec<_> = (0..options.workers.clamp(1, total.max(1)))
        .map(|_| tokio::spawn(work(Arc::clone(&shared), say.clone())))
        .collect();
    let mut summary = Summary::default();
    for worker in workers {
        let one = worker.await.map_err(|panic| DataFusionError::External(Box::new(panic)))??;
        summary.counts.add(one.counts);
        summary.differences.extend(one.differences);
    }
    Ok(summary)
}

/// State shared by the workers of a run.
struct Shared {
    inputs: Vec<Input>,
    options: Options,
    next: AtomicUsize,
    found: AtomicUsize,
}

/// Reads the next file until there are none.
async fn work(shared: Arc<Shared>, say: impl Fn(&str)) -> Result<Summary> {
    let Options { seed, device, differences, .. } = shared.options;
    let open = || Lab::open(device, (seed & 0xffff_ffff) as usize);
    let mut lab = open()?;
    let folder = tempfile::tempdir()?;
    let mut summary = Summary::default();
    loop {
        let at = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(input) = shared.inputs.get(at).filter(|_| shared.found.load(Ordering::Relaxed) < differences) else {
            return Ok(summary);
        };
        if at > 0 && at.is_multiple_of(100) {
            say(&format!("{at} of {} files", shared.inputs.len()));
        }
        let path = match input {
            Input::File(path) => path.clone(),
            Input::Case(case) => {
                let path = folder.path().join(format!("{:04}.parquet", case.number));
                write(case, &path).map_err(|error| DataFusionError::External(Box::new(error)))?;
                path
            }
        };
        let reading = Reading::of(seed, input.number());
        match lab.judge(&path, &reading).await {
            Ok(counts) => summary.counts.add(counts),
            Err(difference) => {
                shared.found.fetch_add(1, Ordering::Relaxed);
                let text = format!(
                    "{} differs: {}\n  setting  {}; {reading}\n  query    {}\n  because  {}",
                    input.name(),
                    input.again(seed),
                    difference.setting,
                    difference.sql,
                    difference.why
                );
                say(&text);
                summary.counts.files += 1;
                summary.differences.push(text);
                // A new lab, so that a failed run does not affect the next file.
                lab = open()?;
            }
        }
        if let Input::Case(_) = input {
            fs::remove_file(&path)?;
        }
    }
}
