//! Host costs of the TPC-H queries: launches, waits, allocations, generated instructions.
//!
//!   22 queries at scale 0.01, device = sim ─► counts ─► limits          `docs/launches.md` has the counts
//!        once with strings as codes of dictionaries, once as texts
//!
//! Limits   those of the design: 12 launches for each extent that is fed and each pipeline (copies and memsets are
//!          none), 2 more for each pass of a sort; 4 allocations for each extent and pipeline, 6 over texts; 2,500 PTX
//!          instructions for a query.
//! Whom     the limits hold for a query that runs on the device alone.

use std::collections::BTreeMap;

use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::operator::sort::DeviceSortExec;
use millpond::source::is_source;
use millpond::{DeviceChoice, Fallback, QueryResult};

use crate::tpch::{config, data, parquet_session, queries};

const LAUNCHES_PER_EXTENT_AND_PIPELINE: u64 = 12;
/// Radix passes of a key of 16 bytes, at 8 bits a pass, and the tie rounds of texts; two launches each.
const LAUNCHES_PER_SORT: u64 = 2 * 24;
const ALLOCATIONS_PER_PIPELINE: u64 = 4;
/// Texts lie beside their views, and those that a join or a group keeps are copied: allocations of their own.
const ALLOCATIONS_PER_PIPELINE_OVER_TEXTS: u64 = 6;
const INSTRUCTIONS_PER_QUERY: u64 = 2500;

/// Extents that went up, and sorts.
fn of_plan(result: &QueryResult) -> (u64, u64) {
    let (mut extents, mut sorts) = (0, 0);
    let walked = result.plan.apply(|node| {
        if is_source(node.as_ref()) {
            let metrics = node.metrics().unwrap_or_default();
            extents += metrics.sum_by_name("extents").map_or(0, |value| value.as_usize() as u64);
        }
        sorts += u64::from(node.is::<DeviceSortExec>());
        Ok(TreeNodeRecursion::Continue)
    });
    walked.expect("the walk returns no error");
    (extents, sorts)
}

/// Runs the 22 queries with at most `dictionary_values` values in a dictionary (0: no limit) and holds them to the
/// limits.
async fn hold_to_the_limits(dictionary_values: usize, allocations: u64) {
    let session = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(4), &data("0.01")).await;
    let set = format!("SET millpond.debug_dictionary_values = {dictionary_values}");
    session.context().sql(&set).await.expect("the option is taken");
    let (mut broken, mut alone) = (Vec::new(), Vec::new());
    let mut counts = BTreeMap::new();
    for (number, sql) in queries() {
        let result = session.execute(&sql).await.expect("an answer");
        let report = &result.report;
        if !report.reasons.is_empty() || report.operators_on_device < report.operators {
            continue;
        }
        alone.push(number);
        let (extents, sorts) = of_plan(&result);
        let limits = [
            (
                "launches",
                report.launches,
                LAUNCHES_PER_EXTENT_AND_PIPELINE * (extents + report.pipelines) + LAUNCHES_PER_SORT * sorts,
            ),
            ("allocations", report.allocations, allocations * (extents + report.pipelines)),
            ("ptx_instructions", report.ptx_instructions, INSTRUCTIONS_PER_QUERY),
        ];
        for (what, is, limit) in limits {
            if is > limit {
                broken.push(format!("Q{number}: {is} {what}, and the limit is {limit}"));
            }
        }
        assert!(report.pipelines > 0 && report.ptx_instructions > 0, "Q{number}: {report:?}");
        counts
            .insert(number, (report.launches, extents, report.pipelines, report.allocations, report.ptx_instructions));
    }
    println!("launches, extents, pipelines, allocations, instructions: {counts:?}");
    assert_eq!(alone.len(), 22, "only {alone:?} run on the device alone");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_on_the_device_keep_the_limits() {
    hold_to_the_limits(0, ALLOCATIONS_PER_PIPELINE).await;
}

/// As at large scales, where columns have more values than a dictionary takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_over_texts_keep_the_limits() {
    hold_to_the_limits(3, ALLOCATIONS_PER_PIPELINE_OVER_TEXTS).await;
}
