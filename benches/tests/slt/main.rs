//! SQL logic tests of our own: the files of `benches/slt`, each under several configurations.
//!
//! ```text
//!   joins.slt ─┬─► cpu                 DataFusion alone: the expected answers are right
//!              ├─► sim                 the simulated device: each query twice, the second over columns that stay
//!              ├─► sim_short_cache     the same where columns leave for others all the time
//!              ├─► sim_tiny_batches    extents of 3 rows, 7 feeders, 7 partitions, a schedule that changes with the
//!                                      commit
//!              ├─► sim_few_codes       string columns of more than 2 values have no dictionary, of more than 8 none at
//!                                      all
//!              ├─► sim_tight_memory    a device with very little memory: operators spill or hand over to the CPU
//!              └─► cuda                where there is one; MILLPOND_TEST_CUDA=1 makes a missing one a failure
//! ```
//!
//! Right     files of `slt/right` have the answers of PostgreSQL and DuckDB. Those of kinds that are mended run on
//!           `cpu` and `sim`; the others are ignored, with that reason.
//! SQLite    files of `slt/sqlite` are 2,000 random queries with the answers of SQLite (`make.py` there), on `cpu` and
//!           `sim`.
//! Expected  answers of the others come from DataFusion, whose own run is the configuration `cpu`.
//!           `MILLPOND_SLT_WRITE=1 cargo slt cpu` writes them into the files; what it changes wants reading.

mod database;
#[path = "../../examples/slt_sqlite/draw.rs"]
mod draw;
#[path = "../../examples/slt_sqlite/kinds.rs"]
mod kinds;
#[path = "../../examples/slt_sqlite/reader.rs"]
mod reader;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use database::{Database, Engine, LastSlot, LettersSlot};
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond, QueryReport};
use millpond_data::seed::of_commit;
use millpond_memory::checks::skipped_without_gpu;
use sqllogictest::{ColumnType, QueryExpect, Record, Runner, parse_file, strict_column_validator};

/// A record that takes longer hangs, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(900);

struct Configuration {
    device: DeviceChoice,
    partitions: usize,
    options: &'static [(&'static str, &'static str)],
    /// How often each query runs.
    times: usize,
    /// The simulated device runs by a schedule that `MILLPOND_FUZZ_SEED` names, or the commit.
    shuffled: bool,
}

const CPU: Configuration =
    Configuration { device: DeviceChoice::Cpu, partitions: 4, options: &[], times: 1, shuffled: false };
const SIM: Configuration =
    Configuration { device: DeviceChoice::Sim, partitions: 4, options: &[], times: 2, shuffled: false };
const SIM_ONCE: Configuration =
    Configuration { device: DeviceChoice::Sim, partitions: 2, options: &[], times: 1, shuffled: false };
const SIM_SHORT_CACHE: Configuration = Configuration {
    device: DeviceChoice::Sim,
    partitions: 2,
    options: &[("cache_bytes", "400"), ("partitions", "2")],
    times: 2,
    shuffled: false,
};
const SIM_TINY_BATCHES: Configuration = Configuration {
    device: DeviceChoice::Sim,
    partitions: 7,
    options: &[("batch_rows", "3"), ("partitions", "7"), ("cache", "off")],
    times: 1,
    shuffled: true,
};
const SIM_FEW_CODES: Configuration = Configuration {
    device: DeviceChoice::Sim,
    partitions: 3,
    options: &[("debug_dictionary_values", "2"), ("batch_rows", "40"), ("partitions", "2")],
    times: 2,
    shuffled: false,
};
const SIM_TIGHT_MEMORY: Configuration = Configuration {
    device: DeviceChoice::Sim,
    partitions: 3,
    options: &[("memory_limit_bytes", "64KiB"), ("batch_rows", "50"), ("partitions", "2")],
    times: 1,
    shuffled: false,
};
const CUDA: Configuration =
    Configuration { device: DeviceChoice::Cuda(0), partitions: 4, options: &[], times: 2, shuffled: false };

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("slt").join(format!("{name}.slt"))
}

/// Runs every record of a file, and tells all that fail.
fn run(name: &str, configuration: &Configuration) {
    let mut builder = Millpond::builder()
        .with_own_engine()
        .with_device(configuration.device)
        .with_url_tables()
        .with_config(SessionConfig::new().with_target_partitions(configuration.partitions));
    for (option, value) in configuration.options {
        builder = builder.with_option(option, value).expect("the option is taken");
    }
    let mut schedule = String::new();
    if configuration.shuffled {
        // Of 32 bits, and not zero, which is the fixed order.
        let seed = (of_commit("MILLPOND_FUZZ_SEED") & 0xffff_ffff).max(1);
        builder = builder.with_option("debug_sim_seed", &seed.to_string()).expect("the option is taken");
        schedule = format!(" with MILLPOND_FUZZ_SEED={seed:x}");
    }
    let session = match (builder.build(), configuration.device) {
        (Ok(session), _) => session,
        (Err(reason), DeviceChoice::Cuda(_)) => return skipped_without_gpu(&reason),
        (Err(error), _) => panic!("{error}"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let last = LastSlot::default();
    let (mut launches, mut rows) = (0, 0);
    let letters = name.starts_with("sqlite/").then(LettersSlot::default);
    let mut runner = Runner::new(|| {
        let database =
            Database::new(Engine::Millpond(session.clone()), runtime.handle().clone(), PATIENCE, Arc::clone(&last));
        let database = match &letters {
            Some(letters) => database.with_letters(Arc::clone(letters)),
            None => database,
        };
        async { Ok(database) }
    });
    if letters.is_none() {
        runner.with_column_validator(strict_column_validator);
    }
    runner.with_normalizer(database::normalize);
    runner.with_validator(database::validate);
    let path = file(name);
    let writes = std::env::var_os("MILLPOND_SLT_WRITE").is_some() && letters.is_none();
    if writes && configuration.device == DeviceChoice::Cpu {
        let written =
            runner.update_test_file(&path, " ", database::validate, database::normalize, strict_column_validator);
        return futures::executor::block_on(written).expect("the file is written");
    }
    let mut failures = Vec::new();
    for record in parse_file(&path).expect("the file is read") {
        if matches!(record, Record::Halt { .. }) {
            break;
        }
        let location = match &record {
            Record::Query { loc, .. } | Record::Statement { loc, .. } => loc.to_string(),
            _ => String::new(),
        };
        if let Some(letters) = &letters {
            *letters.lock().expect("no panic holds the lock") = match &record {
                Record::Query { expected: QueryExpect::Results { types, .. }, .. } => {
                    types.iter().map(ColumnType::to_char).collect()
                }
                _ => Vec::new(),
            };
        }
        let times = if matches!(record, Record::Query { .. }) { configuration.times } else { 1 };
        for time in 0..times {
            if let Err(error) = runner.run(record.clone()) {
                failures.push(format!("{}, run {}", error.display(false), time + 1));
            }
        }
        if let Some(last) = last.lock().expect("no panic holds the lock").take() {
            if let Some(why) = taken_over(&last.report) {
                failures.push(format!("{location}: {why}"));
            }
            launches += last.report.launches;
            rows += last.answer.map_or(0, |answer| answer.num_rows());
        }
    }
    assert!(failures.is_empty(), "{name}: {} records fail{schedule}\n{}", failures.len(), failures.join("\n\n"));
    assert!(rows > 0, "{name} asks for no rows");
    assert_eq!(launches > 0, configuration.device != DeviceChoice::Cpu, "launches of {name}");
}

/// What is wrong with a report: the CPU took an operator without a reason or a note, or the device is said to have run
/// some without a launch.
fn taken_over(report: &QueryReport) -> Option<String> {
    let left = report.operators - report.operators_on_device;
    report.device.as_ref()?;
    if left > 0 && report.reasons.is_empty() && report.notes.is_empty() {
        return Some(format!("{left} of {} operators on the CPU without a reason", report.operators));
    }
    let idle = report.launches == 0 && report.uploaded_bytes > 0 && report.operators_on_device > 0;
    idle.then(|| format!("{} operators on the device without a launch", report.operators_on_device))
}

macro_rules! files {
    ($($name:ident)+) => { $(
        mod $name {
            use super::{CPU, CUDA, SIM, SIM_FEW_CODES, SIM_SHORT_CACHE, SIM_TIGHT_MEMORY, SIM_TINY_BATCHES, run};

            #[test]
            fn cpu() {
                run(stringify!($name), &CPU);
            }
            #[test]
            fn sim() {
                run(stringify!($name), &SIM);
            }
            #[test]
            fn sim_short_cache() {
                run(stringify!($name), &SIM_SHORT_CACHE);
            }
            #[test]
            fn sim_tiny_batches() {
                run(stringify!($name), &SIM_TINY_BATCHES);
            }
            #[test]
            fn sim_few_codes() {
                run(stringify!($name), &SIM_FEW_CODES);
            }
            #[test]
            fn sim_tight_memory() {
                run(stringify!($name), &SIM_TIGHT_MEMORY);
            }
            #[test]
            fn cuda() {
                run(stringify!($name), &CUDA);
            }
        }
    )+
        const FILES: &[&str] = &[$(stringify!($name)),+];
    };
}

files! { aggregate cte dates decimals group_by joins order select strings subqueries union window }

/// Files of `slt/right`: the kinds in which DataFusion is wrong, with the answers of PostgreSQL and DuckDB (`make.py`
/// there).
macro_rules! right {
    ($($name:ident)+) => {
        mod right {
            $(
                mod $name {
                    use super::super::{CPU, SIM, run};

                    #[test]
                    fn cpu() {
                        run(concat!("right/", stringify!($name)), &CPU);
                    }
                    #[test]
                    fn sim() {
                        run(concat!("right/", stringify!($name)), &SIM);
                    }
                }
            )+
        }
        const RIGHT: &[&str] = &[$(stringify!($name)),+];
    };
}

right! {
    dropped_words extremes files floats in_exists integer_arithmetic integers names_and_bags simplified_nulls structures two_levels volatile
}

/// Files of `slt/sqlite`: random queries with the answers of SQLite.
macro_rules! sqlite {
    ($($name:ident)+) => {
        mod sqlite {
            $( mod $name {
                use super::super::{CPU, SIM_ONCE, run};

                #[test]
                fn cpu() {
                    run(concat!("sqlite/", stringify!($name)), &CPU);
                }
                #[test]
                fn sim() {
                    run(concat!("sqlite/", stringify!($name)), &SIM_ONCE);
                }
            } )+
        }
        const SQLITE: &[&str] = &[$(stringify!($name)),+];
    };
}

sqlite! { aggregates conditions expressions groups joins subqueries }

#[test]
fn every_file_is_run() {
    let mut right = RIGHT.to_vec();
    right.sort_unstable();
    assert_eq!(names_in("slt"), FILES);
    assert_eq!(names_in("slt/right"), right);
    assert_eq!(names_in("slt/sqlite"), SQLITE);
}

/// The files of SQL logic tests in a folder, in order.
fn names_in(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder is read")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "slt"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}
