//! A tenth of the matrix of generated Parquet files, and all files of other writers: the device reads them as
//! DataFusion does.
//!
//! ```text
//!   millpond_data::matrix, a tenth ─┐
//!   data/foreign/files              ├─► millpond_bench::matrix ─► no difference · row groups by the engine's decoder
//!   data/foreign/parquet-testing    │
//!   …/refused, …/bad_data           ┘
//! ```
//!
//! Whole   `cargo parquet-matrix` reads all of the matrix.
//! Own     a binary by itself: all of its sessions read files, two at a time, and nothing beside them uses the cores.

use std::path::{Path, PathBuf};

use millpond::DeviceChoice;
use millpond_bench::fuzz::rng::Rng;
use millpond_bench::matrix::lab::Lab;
use millpond_bench::matrix::reading::Reading;
use millpond_bench::matrix::{Input, Options, Summary, run};
use millpond_data::matrix::{Case, Column, Dictionary, Encoding, Groups, Kind, Nulls, Values, cases, write};

/// Chooses the tenth, and the options under which files are read.
const SEED: u64 = 0x7e47;

fn foreign() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    workspace.join("data/foreign")
}

async fn same(inputs: Vec<Input>) -> Summary {
    let files = inputs.len() as u64;
    let options = Options { seed: SEED, ..Options::default() };
    let summary = run(inputs, options, |line| println!("{line}")).await.expect("the sessions open");
    println!("{summary}");
    assert!(summary.differences.is_empty(), "{}", summary.differences.join("\n"));
    assert_eq!(summary.counts.files, files);
    summary
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenth_of_the_matrix_is_read_as_by_datafusion() {
    let tenth = cases().into_iter().filter(|case| Rng::new(SEED, case.number as u64).below(10) == 0);
    let summary = same(tenth.map(Input::Case).collect()).await;
    let counts = &summary.counts;
    assert!(counts.files > 120 && counts.refused * 20 < counts.files, "{summary}");
    assert!(counts.of_flat.percent_decoded() >= 90.0, "DataFusion read too many row groups: {summary}");
    assert!(counts.files_on_device * 4 > counts.files, "the device decoded too little: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_other_writers_are_read_or_refused_as_by_datafusion() {
    let all = Input::files(&foreign()).expect("the folder is read");
    assert!(all.len() > 100, "{} files", all.len());
    let summary = same(all).await;
    let counts = &summary.counts;
    assert!(counts.refused > 0 && counts.read > 90, "{summary}");
    assert!(counts.of_flat.percent_decoded() >= 90.0, "DataFusion read too many row groups: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_reads_another_file_is_caught() {
    let lab = Lab::open(DeviceChoice::Sim, 0).expect("a simulated device needs nothing");
    let folder = tempfile::tempdir().expect("a folder");
    // Files of one schema whose values differ.
    let of = |values| {
        let column = Column { values, ..cases()[0].columns[0] };
        let (kind, encoding, dictionary) = (Kind::Int64, Encoding::Plain, Dictionary::Unused);
        let column = Column { kind, encoding, dictionary, nulls: Nulls::Seventh, ..column };
        Case { columns: vec![column], num_rows: 1_000, groups: Groups::One, ..cases()[0].clone() }
    };
    let [one, other] = [Values::Sorted, Values::Random].map(|values| {
        let path = folder.path().join(format!("{}.parquet", values.name()));
        write(&of(values), &path).expect("the file is written");
        path
    });
    let reading = Reading::of(SEED, 1);
    let counts = lab.judge_over([&one, &one], &reading).await.expect("the same values");
    assert_eq!(counts.read, 1);
    let difference = lab.judge_over([&one, &other], &reading).await.expect_err("other values");
    assert!(difference.why.contains("column c0 (Int64)"), "{difference:?}");
}
