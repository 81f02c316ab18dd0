//! The counts of TPC-H, whatever can be counted: the witness that a change of the engine's structure changes nothing
//! else.
//!
//!   22 queries at scale 0.01, device = sim, one partition ─► counts ─► `counts/tpch.txt`
//!        strings as codes: the first run, and the next, which uses what the first has learnt; strings as texts: the
//!        first run
//!
//! Write   `MILLPOND_COUNTS_WRITE=1 cargo test --workspace --test engine -- counts` writes the file; what changes wants
//!         a reason.
//! One     feeder for each source, and one partition: with more, extents and what follows from them differ from run to
//!         run.

use std::fmt::Write;
use std::path::Path;

use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::source::is_source;
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};

use crate::tpch::{config, data, parquet_session, queries};

/// The columns of the file.
fn counts(result: &QueryResult) -> Vec<(&'static str, u64)> {
    let report = &result.report;
    let mut extents = 0;
    let walked = result.plan.apply(|node| {
        if is_source(node.as_ref()) {
            let metrics = node.metrics().unwrap_or_default();
            extents += metrics.sum_by_name("extents").map_or(0, |value| value.as_usize() as u64);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    walked.expect("the walk returns no error");
    vec![
        ("rows", report.rows),
        ("segments", report.segments),
        ("attempts", report.attempts),
        ("lowerings", report.lowerings),
        ("placing", report.placement_lowerings),
        ("statistics", report.statistics_read),
        ("extents", extents),
        ("launches", report.launches),
        ("of pipelines", report.pipeline_launches),
        ("pipelines", report.pipelines),
        ("PTX", report.ptx_instructions),
        ("waits", report.host_waits),
        ("allocations", report.allocations),
        ("allocated", report.allocated_bytes),
        ("peak", report.peak_bytes),
        ("up", report.uploaded_bytes),
        ("down", report.downloaded_bytes),
        ("spilled", report.spilled_bytes + report.restored_bytes),
    ]
}

/// A line for each query, under the names of what is counted.
async fn table(session: &Millpond) -> String {
    let mut text = String::new();
    for (number, sql) in queries() {
        let result = session.execute(&sql).await.expect("an answer");
        let counts = counts(&result);
        if text.is_empty() {
            let names: Vec<String> = counts.iter().map(|(name, _)| format!("{name:>13}")).collect();
            writeln!(text, "   {}", names.join("")).expect("a string takes it");
        }
        let numbers: Vec<String> = counts.iter().map(|(_, count)| format!("{count:>13}")).collect();
        writeln!(text, "q{number:02}{}", numbers.join("")).expect("a string takes it");
    }
    text
}

async fn session(options: &[(&str, &str)]) -> Millpond {
    let session = parquet_session(DeviceChoice::Sim, Fallback::Error, config(1), &data("0.01")).await;
    for (name, value) in options {
        let set = format!("SET millpond.{name} = {value}");
        session.context().sql(&set).await.expect("the option is taken");
    }
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_those_on_file() {
    let codes = session(&[("partitions", "1"), ("cache", "off")]).await;
    let texts = session(&[("partitions", "1"), ("cache", "off"), ("debug_dictionary_values", "3")]).await;
    let stored = session(&[("partitions", "1")]).await;
    let mut text = String::from(
        "Counts of TPC-H at scale 0.01 on the simulated device, partitions = 1: see tests/engine/counts.rs.\n",
    );
    // Tables are loaded side by side: what that takes at most is not the same each time.
    table(&stored).await;
    for (name, session) in [
        ("first run", &codes),
        ("next run", &codes),
        ("first run over texts", &texts),
        ("next run over columns that stay", &stored),
    ] {
        write!(text, "\n{name}\n{}", table(session).await).expect("a string takes it");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counts/tpch.txt");
    if std::env::var_os("MILLPOND_COUNTS_WRITE").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&file, &text).expect("a file");
        return;
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    let changed: Vec<String> = (expected.lines().zip(text.lines()))
        .filter(|(old, new)| old != new)
        .map(|(old, new)| format!("-{old}\n+{new}"))
        .collect();
    assert!(
        expected == text,
        "counts changed in {} lines; MILLPOND_COUNTS_WRITE=1 writes them\n{}",
        changed.len(),
        changed.join("\n")
    );
}
