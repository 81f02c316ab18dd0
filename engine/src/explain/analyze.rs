//! EXPLAIN ANALYZE: one line per node with its figures, then totals and the limit of the query.
//!
//! ```text
//!                                           rows        ms  wall         bytes  memory segment
//!   DownloadExec                              10     0.120   3 %    240 B down
//!     DeviceSortExec: TopK(fetch=10), …       10     0.031   1 %   1.2 KiB dev    12 %       2
//!       DeviceAggregateExec: gby=[…], …              0.940  24 %   3.1 MiB dev    54 %     1→2
//!         DeviceScanExec: lineitem.parquet 60,175                  1.9 MiB up                1
//! ```
//!
//! Segments   device operators that run in one kernel; the node that ends the segment shows its time and traffic. 1→2
//!            ends segment 1, such as the build of a join, and does the rest of its work in segment 2. Rows between two
//!            nodes of one segment are not counted.
//! ms         for segments on the device's clock (blank on the simulated device), for CPU nodes the sum over host
//! threads.
//! bytes      dev: read and written in device memory; up, down: over the link; read: from files, by the CPU.
//! memory     share of the device's memory bandwidth; blank if that is unknown.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use millpond_memory::ByteSize;

use super::limit::{self, Reads, share};
use super::plan::{Placement, indent, reason_lines};
use super::text::{WIDTH, cut, glued, padded, thousands, wrapped};
use super::tree::{Line, Side, lines};
use crate::contract::Operators;
use crate::metric;
use crate::profile::{Profile, SegmentProfile, step, steps_text};
use crate::program::segments::NodeWork;
use crate::report::QueryReport;
use crate::result::node::{DownloadExec, downloads};
use crate::source::{is_parquet_scan, is_source};

/// A plan that has run, with its figures.
pub(super) struct Analyzed<'a> {
    pub plan: &'a Arc<dyn ExecutionPlan>,
    pub operators: &'a Operators,
    pub profile: &'a Profile,
    /// Number of result rows.
    pub rows: u64,
    /// True on the simulated device, whose times are not those of a GPU.
    pub simulated: bool,
}

/// Figures of a node; `None` if unknown.
#[derive(Debug, Clone, Default, PartialEq)]
struct Figures {
    rows: Option<u64>,
    ns: Option<u64>,
    /// Bytes and their direction.
    bytes: Option<(u64, &'static str)>,
    /// Share of the device's memory bandwidth.
    memory: Option<f64>,
    /// Segment numbers, or the side.
    segments: String,
}

/// The text of EXPLAIN ANALYZE.
pub(super) fn analyzed(analyzed: &Analyzed<'_>) -> String {
    let Analyzed { plan, operators, profile, .. } = analyzed;
    let lines = lines(plan, operators);
    let known = device_figures(plan);
    let figures: Vec<Figures> = lines.iter().map(|line| figures(line, &known)).collect();
    let mut text = vec![header()];
    text.extend(lines.iter().zip(&figures).map(|(line, figures)| row(line, figures, profile.wall_ns)));
    text.push(String::new());
    let placement = Placement::of(plan, operators);
    if !placement.reasons.is_empty() {
        text.extend(reason_lines(&placement.reasons));
        text.push(String::new());
    }
    text.extend(totals(analyzed));
    let longest = |side: Side| {
        let with_time = lines.iter().zip(&figures).filter(|(line, figures)| line.side == side && figures.ns.is_some());
        with_time.max_by_key(|(_, figures)| figures.ns).map(|(line, _)| line)
    };
    let reads = Reads {
        parquet: lines.iter().any(|line| is_parquet_scan(line.node.as_ref())),
        on_cpu: lines.iter().any(|line| line.side == Side::Cpu && line.node.children().is_empty()),
    };
    let limited = limit::ran(profile, reads, longest(Side::Cpu), longest(Side::Device));
    let caveat = if analyzed.simulated { "; times on the simulated device say nothing of a GPU" } else { "" };
    text.push(cut(&format!("limited by: {limited}{caveat}"), WIDTH));
    text.join("\n")
}

/// Width of the figures in a line: rows, ms, wall, bytes, memory, segment.
const FIGURES: usize = 11 + 10 + 6 + 14 + 7 + 8;

fn header() -> String {
    format!(
        "{}{:>11}{:>10}{:>6}{:>14}{:>7}{:>8}",
        padded("", WIDTH - FIGURES),
        "rows",
        "ms",
        "wall",
        "bytes",
        "memory",
        "segment"
    )
}

fn row(line: &Line, figures: &Figures, wall_ns: u64) -> String {
    let words = padded(&format!("{}{}", indent(line.level), line.words), WIDTH - FIGURES);
    let Figures { rows, ns, bytes, memory, segments } = figures;
    let rows = rows.map(thousands).unwrap_or_default();
    let ms = ns.map(|ns| format!("{:.3}", ns as f64 / 1e6)).unwrap_or_default();
    let wall = ns.map(|ns| share(ns, wall_ns)).unwrap_or_default();
    let bytes = bytes.map(|(bytes, way)| format!("{} {way}", ByteSize::bytes(bytes))).unwrap_or_default();
    let memory = memory.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default();
    let line = format!("{words}{rows:>11}{ms:>10}{wall:>6}{bytes:>14}{memory:>7}{:>8}", cut(segments, 7));
    line.trim_end().to_string()
}

/// Figures of nodes below borders, by node address.
type Known = HashMap<*const (), Figures>;

fn address(node: &Arc<dyn ExecutionPlan>) -> *const () {
    Arc::as_ptr(node).cast()
}

/// Figures of segments, attributed to the nodes that end them.
fn device_figures(plan: &Arc<dyn ExecutionPlan>) -> Known {
    let mut known = Known::new();
    for border in downloads(plan) {
        let runs = border.run_profiles();
        let segments = segments(&runs);
        let bandwidth = runs.iter().find_map(|run| run.memory_bandwidth);
        for (place, work) in border.works().iter().enumerate() {
            let mut figures = of_work(work, &segments, bandwidth);
            if place == 0 {
                // The root's rows are the downloaded ones.
                figures.rows = border.metrics_set().clone_inner().output_rows().map(|rows| rows as u64);
            }
            known.insert(address(&work.node), figures);
        }
    }
    known
}

/// Segments of all runs of a border, by number.
fn segments(runs: &[Profile]) -> HashMap<usize, SegmentProfile> {
    let mut segments: HashMap<usize, SegmentProfile> = HashMap::new();
    let add = |sum: &mut Option<u64>, ns: Option<u64>| {
        if let Some(ns) = ns {
            *sum.get_or_insert_default() += ns;
        }
    };
    for segment in runs.iter().flat_map(|run| &run.segments) {
        let number = segment.name.strip_prefix("segment ").and_then(|name| name.split_once(':'));
        let Some(number) = number.and_then(|(number, _)| number.parse().ok()) else { continue };
        let sum = segments.entry(number).or_default();
        sum.launches += segment.launches;
        add(&mut sum.device_ns, segment.device_ns);
        sum.bytes_read += segment.bytes_read;
        sum.bytes_written += segment.bytes_written;
        sum.uploaded_bytes += segment.uploaded_bytes;
    }
    segments
}

fn of_work(work: &NodeWork, segments: &HashMap<usize, SegmentProfile>, bandwidth: Option<f64>) -> Figures {
    let mut figures = Figures::default();
    let ends: Vec<String> = work.ends.iter().map(ToString::to_string).collect();
    let within = work.within.filter(|within| !work.ends.contains(within)).map(|within| within.to_string());
    figures.segments = match (work.ends.is_empty(), within) {
        (true, Some(within)) if work.shared => format!("= {within}"),
        (true, within) => within.unwrap_or_default(),
        (false, Some(within)) => format!("{}→{within}", ends.join(" ")),
        (false, None) => ends.join(" "),
    };
    if work.shared {
        return figures;
    }
    let mut own = SegmentProfile::default();
    for segment in work.ends.iter().filter_map(|number| segments.get(number)) {
        own.bytes_read += segment.bytes_read;
        own.bytes_written += segment.bytes_written;
        if let Some(ns) = segment.device_ns {
            *own.device_ns.get_or_insert_default() += ns;
        }
    }
    figures.ns = own.device_ns;
    let traffic = own.bytes_read + own.bytes_written;
    figures.bytes = (traffic > 0).then_some((traffic, "dev"));
    figures.memory = bandwidth.and_then(|most| Some(own.bytes_per_second()? / most));
    if is_source(work.node.as_ref()) {
        let reading = work.within.or_else(|| work.ends.first().copied());
        let uploaded = reading.and_then(|number| segments.get(&number)).map_or(0, |segment| segment.uploaded_bytes);
        figures.bytes = (uploaded > 0).then_some((uploaded, "up")).or(figures.bytes);
    }
    figures
}

fn figures(line: &Line, known: &Known) -> Figures {
    let metrics = line.node.metrics().unwrap_or_default();
    let of_segments = known.get(&address(&line.node)).cloned().unwrap_or_default();
    match line.side {
        Side::Device => of_segments,
        Side::Source => Figures { rows: sum(&metrics, "output_rows").or(of_segments.rows), ..of_segments },
        Side::Download => {
            let download = line.node.downcast_ref::<DownloadExec>();
            let runs = download.map(DownloadExec::run_profiles).unwrap_or_default();
            let steps = runs.iter().flat_map(|run| &run.steps);
            let ns = steps.filter(|(step, _)| *step == step::DOWNLOAD).map(|(_, ns)| ns).sum();
            Figures {
                rows: metrics.output_rows().map(|rows| rows as u64),
                ns: (!runs.is_empty()).then_some(ns),
                bytes: sum(&metrics, metric::DOWNLOADED_BYTES).filter(|bytes| *bytes > 0).map(|bytes| (bytes, "down")),
                ..Figures::default()
            }
        }
        Side::Cpu => {
            let elapsed = metrics.elapsed_compute().map(|ns| ns as u64).filter(|ns| *ns > 0);
            Figures {
                rows: metrics.output_rows().map(|rows| rows as u64),
                ns: elapsed.or_else(|| sum(&metrics, "time_elapsed_processing")),
                bytes: sum(&metrics, "bytes_scanned").filter(|bytes| *bytes > 0).map(|bytes| (bytes, "read")),
                segments: "cpu".to_string(),
                ..Figures::default()
            }
        }
    }
}

fn sum(metrics: &MetricsSet, name: &str) -> Option<u64> {
    metrics.sum_by_name(name).map(|value| value.as_usize() as u64)
}

/// Time per step, device activity, and notes.
fn totals(analyzed: &Analyzed<'_>) -> Vec<String> {
    let Analyzed { plan, operators, profile, rows, .. } = analyzed;
    let report = QueryReport::of(plan, operators);
    let mut text = wrapped("wall: ", &glued(&steps_text(&profile.steps, profile.wall_ns)));
    let feeding = &profile.feeding;
    if feeding.feeders > 0 {
        let feeders = counted(feeding.feeders as u64, "feeder", "feeders");
        let readers = counted(feeding.readers as u64, "reader", "readers");
        let steps = glued(&steps_text(&feeding.steps, feeding.ns));
        text.extend(wrapped("feeding: ", &format!("{feeders} and {readers}: {steps}")));
    }
    if !downloads(plan).is_empty() {
        let bytes = |bytes: u64| ByteSize::bytes(bytes).to_string();
        let mut parts = vec![
            counted(report.launches, "launch", "launches"),
            counted(report.host_waits, "host wait", "host waits"),
            counted(report.allocations, "allocation", "allocations"),
            format!("peak {}", bytes(report.peak_bytes)),
            format!("{} up", bytes(report.uploaded_bytes)),
            format!("{} down", bytes(report.downloaded_bytes)),
        ];
        if report.spilled_bytes > 0 {
            parts.push(format!("{} spilled", bytes(report.spilled_bytes)));
        }
        if profile.attempts > 1 {
            parts.push(format!("{} attempts", profile.attempts));
        }
        text.extend(wrapped("device: ", &parts.join(" · ")));
    }
    text.extend(report.notes.iter().flat_map(|note| wrapped("note: ", note)));
    text.push(format!(
        "ran: {} of {} operators on the device · {}",
        report.operators_on_device,
        report.operators,
        counted(*rows, "row", "rows")
    ));
    text
}

/// "1 row", "2,000 rows"
fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", thousands(count), if count == 1 { one } else { several })
}
