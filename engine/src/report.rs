//! Report of a query's work: where it ran, why not on the device, and its costs.
//!
//!   executed plan ─ walk ─► QueryReport { launches, host waits, bytes, reasons, … } ─► footer, EXPLAIN ANALYZE, tests
//!
//! Figures come from the runs of the executed plan, so concurrent queries do not mix.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::ParquetSource;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use millpond_memory::{ByteSize, Strategy};
use serde::Serialize;

use crate::contract::Operators;
use crate::placement::judged::Judged;
use crate::placement::{plan_reasons, reasons_of};
use crate::reason::Reason;
use crate::result::node::DownloadExec;
use crate::source::is_parquet_scan;

pub use crate::metric;

/// Report of one query. All counts are zero if nothing ran on a device.
///
/// [`Display`](fmt::Display) formats the line that the program prints below a result: rows, time, share on the device,
/// peak, reasons. Serialized, it is a map of the fields by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueryReport {
    /// Number of result rows, as far as they were read.
    pub answer_rows: u64,
    /// Nanoseconds from the statement to the end of its result, including [`planning_ns`](Self::planning_ns).
    pub wall_ns: u64,
    /// Nanoseconds from the statement to its physical plan; 0 if a physical plan was given.
    pub planning_ns: u64,
    /// Name of the device, if any.
    pub device: Option<String>,
    /// Allocation strategy of device memory (`millpond.memory_resource`), if there is a device.
    pub memory_resource: Option<&'static str>,
    /// Number of downloaded rows.
    pub rows: u64,
    /// Number of kernel launches, including [`pipeline_launches`](Self::pipeline_launches).
    pub launches: u64,
    /// Number of launches of generated pipelines.
    pub pipeline_launches: u64,
    /// Number of generated pipelines.
    pub pipelines: u64,
    /// Number of instructions in the pipelines' modules; a shared module counts once.
    pub ptx_instructions: u64,
    /// Number of segments of the programs that ran.
    pub segments: u64,
    /// Number of attempts to run programs.
    pub attempts: u64,
    /// Number of times that runs lowered a segment, or the build part of a join: for planning, for prediction and for
    /// launches.
    pub lowerings: u64,
    /// Number of times that placement lowered a node's expressions to check whether it can run on the device.
    pub placement_lowerings: u64,
    /// Number of times that statistics of a source were computed, by placement and by runs.
    pub statistics_read: u64,
    /// Host nanoseconds for preparing pipelines: segmenting, lowering, lookup or compilation.
    pub prepare_ns: u64,
    /// Number of times that the host waited for the device.
    pub host_waits: u64,
    /// Number of device allocations.
    pub allocations: u64,
    /// Total bytes of these allocations.
    pub allocated_bytes: u64,
    /// Nanoseconds that host threads spent on allocating and freeing device memory, totaled. 0 on the simulated device,
    /// whose times are meaningless.
    pub allocator_ns: u64,
    /// Bytes copied to the device.
    pub uploaded_bytes: u64,
    /// Bytes copied from the device.
    pub downloaded_bytes: u64,
    /// Maximum device bytes in use at once.
    pub peak_bytes: u64,
    /// Device bytes that were spilled to host memory.
    pub spilled_bytes: u64,
    /// Bytes that were restored from host memory.
    pub restored_bytes: u64,
    /// Number of operators over table rows that ran on the device (scans and pass-through nodes do not count).
    /// Operators that the CPU ran again do not count.
    pub operators_on_device: usize,
    /// All operators over table rows.
    pub operators: usize,
    /// Number of Parquet scans that the engine's own decoder or its store serves.
    pub parquet_scans: usize,
    /// Number of Parquet scans that DataFusion reads.
    pub parquet_scans_by_datafusion: usize,
    /// Why operators stayed on the CPU; sorted and deduplicated.
    pub reasons: Vec<String>,
    /// [Codes](crate::reason::Reason::code) of the reasons; sorted and deduplicated.
    pub reason_codes: Vec<&'static str>,
    /// Events during the run, such as a subplan that was run again on the CPU.
    pub notes: Vec<String>,
    /// Findings of the simulated device's checks since the last report; empty on a real device.
    pub findings: Vec<String>,
    /// Bytes of the pool that are still in use after the query.
    pub pool_used_bytes: u64,
}

impl QueryReport {
    /// Collects the counts, reasons and notes of an executed plan.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>, operators: &Operators) -> Self {
        let mut codes: Vec<&'static str> = reasons_of(plan).iter().map(Reason::code).collect();
        codes.sort_unstable();
        codes.dedup();
        let mut report = Self { reasons: plan_reasons(plan), reason_codes: codes, ..Self::default() };
        report.count_operators(plan, operators, false);
        report.count_scans(plan);
        let mut placed: Vec<Arc<Judged>> = Vec::new();
        let walked = plan.apply(|node| {
            if let Some(download) = node.downcast_ref::<DownloadExec>() {
                report.notes.extend(download.notes());
                // Borders placed together share their counts.
                if !placed.iter().any(|judged| Arc::ptr_eq(judged, download.judged())) {
                    placed.push(Arc::clone(download.judged()));
                }
                if let Some(metrics) = node.metrics() {
                    let sum = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize() as u64);
                    report.rows += metrics.output_rows().unwrap_or(0) as u64;
                    report.launches += sum(metric::LAUNCHES);
                    report.pipeline_launches += sum(metric::PIPELINE_LAUNCHES);
                    report.pipelines += sum(metric::PIPELINES);
                    report.ptx_instructions += sum(metric::PTX_INSTRUCTIONS);
                    report.segments += sum(metric::SEGMENTS);
                    report.attempts += sum(metric::ATTEMPTS);
                    report.lowerings += sum(metric::LOWERINGS);
                    report.statistics_read += sum(metric::STATISTICS_READ);
                    report.prepare_ns += sum(metric::PREPARE_NS);
                    report.host_waits += sum(metric::HOST_WAITS);
                    report.allocations += sum(metric::ALLOCATIONS);
                    report.allocated_bytes += sum(metric::ALLOCATED_BYTES);
                    report.allocator_ns += sum(metric::ALLOCATOR_NS);
                    report.uploaded_bytes += sum(metric::UPLOADED_BYTES);
                    report.downloaded_bytes += sum(metric::DOWNLOADED_BYTES);
                    report.peak_bytes = report.peak_bytes.max(sum(metric::PEAK_BYTES));
                    report.spilled_bytes += sum(metric::SPILLED_BYTES);
                    report.restored_bytes += sum(metric::RESTORED_BYTES);
                }
            } else if node.children().is_empty()
                && let Some(metrics) = node.metrics()
            {
                // A scan of a kept table, converted to Arrow.
                let home = metrics.sum_by_name(metric::DOWNLOADED_BYTES);
                report.downloaded_bytes += home.map_or(0, |bytes| bytes.as_usize() as u64);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        debug_assert!(walked.is_ok(), "the walk above returns no error");
        for judged in placed {
            report.placement_lowerings += judged.lowerings.load(Ordering::Relaxed);
            report.statistics_read += judged.statistics_read.load(Ordering::Relaxed);
        }
        report
    }

    /// Counts the Parquet scans in `plan`.
    fn count_scans(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        if is_parquet_scan(plan.as_ref()) {
            self.parquet_scans += 1;
            return;
        }
        let scan = plan.downcast_ref::<DataSourceExec>();
        let is_parquet = scan.is_some_and(|scan| scan.downcast_to_file_source::<ParquetSource>().is_some());
        self.parquet_scans_by_datafusion += usize::from(is_parquet);
        plan.children().into_iter().for_each(|child| self.count_scans(child));
    }

    /// Counts the operators of `plan`; with `taken_over`, its device nodes are below a border whose rows came from the
    /// CPU.
    fn count_operators(&mut self, plan: &Arc<dyn ExecutionPlan>, operators: &Operators, taken_over: bool) {
        if operators.counts(plan.as_ref()) {
            self.operators += 1;
            self.operators_on_device += usize::from(operators.is_device_node(plan.as_ref()) && !taken_over);
        }
        let taken_over = match plan.downcast_ref::<DownloadExec>() {
            Some(download) => {
                let times = download.metrics().and_then(|metrics| metrics.sum_by_name(metric::TAKEN_OVER));
                times.is_some_and(|times| times.as_usize() > 0)
            }
            None => taken_over,
        };
        for child in plan.children() {
            self.count_operators(child, operators, taken_over);
        }
    }

    /// Adds the report of the next statement of the same query.
    pub fn absorb(&mut self, next: QueryReport) {
        self.device = next.device.or(self.device.take());
        self.memory_resource = next.memory_resource.or(self.memory_resource);
        self.answer_rows = next.answer_rows;
        self.wall_ns += next.wall_ns;
        self.planning_ns += next.planning_ns;
        self.rows += next.rows;
        self.launches += next.launches;
        self.pipeline_launches += next.pipeline_launches;
        self.pipelines += next.pipelines;
        self.ptx_instructions += next.ptx_instructions;
        self.segments += next.segments;
        self.attempts += next.attempts;
        self.lowerings += next.lowerings;
        self.placement_lowerings += next.placement_lowerings;
        self.statistics_read += next.statistics_read;
        self.prepare_ns += next.prepare_ns;
        self.host_waits += next.host_waits;
        self.allocations += next.allocations;
        self.allocated_bytes += next.allocated_bytes;
        self.allocator_ns += next.allocator_ns;
        self.uploaded_bytes += next.uploaded_bytes;
        self.downloaded_bytes += next.downloaded_bytes;
        self.peak_bytes = self.peak_bytes.max(next.peak_bytes);
        self.spilled_bytes += next.spilled_bytes;
        self.restored_bytes += next.restored_bytes;
        self.operators_on_device += next.operators_on_device;
        self.operators += next.operators;
        self.parquet_scans += next.parquet_scans;
        self.parquet_scans_by_datafusion += next.parquet_scans_by_datafusion;
        self.reasons.extend(next.reasons);
        self.reasons.sort();
        self.reasons.dedup();
        self.reason_codes.extend(next.reason_codes);
        self.reason_codes.sort_unstable();
        self.reason_codes.dedup();
        self.notes.extend(next.notes);
        self.findings.extend(next.findings);
        self.pool_used_bytes = next.pool_used_bytes;
    }

    /// Share of operators that ran on the device; `None` if the plan has no operator that counts.
    pub fn share_on_device(&self) -> Option<f64> {
        (self.operators > 0).then(|| self.operators_on_device as f64 / self.operators as f64)
    }
}

impl fmt::Display for QueryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.answer_rows;
        write!(f, "{rows} row{} · {:.3} s", if rows == 1 { "" } else { "s" }, self.wall_ns as f64 / 1e9)?;
        match (&self.device, self.share_on_device()) {
            (Some(device), Some(_)) => {
                write!(f, " · {device}: {} of {} operators", self.operators_on_device, self.operators)?;
            }
            (Some(device), None) => write!(f, " · {device}: nothing to run there")?,
            (None, _) => f.write_str(" · CPU")?,
        }
        if self.launches > 0 {
            write!(f, " · {} launches · peak {}", self.launches, ByteSize::bytes(self.peak_bytes))?;
        }
        if self.spilled_bytes > 0 {
            write!(f, " · {} spilled", ByteSize::bytes(self.spilled_bytes))?;
        }
        if let Some(resource) = self.memory_resource.filter(|name| *name != Strategy::default().name()) {
            write!(f, " · memory from {resource}")?;
        }
        if !self.reasons.is_empty() {
            write!(f, " · on the CPU because {}", self.reasons.join("; "))?;
        }
        self.notes.iter().try_for_each(|note| write!(f, " · {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_of_several_statements_has_one_report() {
        let first = QueryReport {
            device: Some("a device".into()),
            launches: 3,
            allocated_bytes: 100,
            peak_bytes: 70,
            operators: 2,
            operators_on_device: 2,
            reasons: vec!["b".into()],
            pool_used_bytes: 5,
            ..QueryReport::default()
        };
        let next = QueryReport {
            launches: 4,
            allocated_bytes: 1,
            peak_bytes: 60,
            operators: 3,
            operators_on_device: 1,
            reasons: vec!["a".into(), "b".into()],
            notes: vec!["ran again".into()],
            ..QueryReport::default()
        };
        let mut all = first;
        all.absorb(next);
        assert_eq!((all.launches, all.allocated_bytes, all.peak_bytes, all.pool_used_bytes), (7, 101, 70, 0));
        assert_eq!((all.share_on_device(), all.device.as_deref()), (Some(0.6), Some("a device")));
        assert_eq!((all.reasons, all.notes), (vec!["a".to_string(), "b".into()], vec!["ran again".to_string()]));
    }

    #[test]
    fn a_report_reads_as_one_line() {
        let cpu = QueryReport { answer_rows: 1, wall_ns: 250_000_000, ..QueryReport::default() };
        assert_eq!(cpu.to_string(), "1 row · 0.250 s · CPU");
        let device = QueryReport {
            answer_rows: 5,
            device: Some("a device".into()),
            memory_resource: Some("caching"),
            operators: 4,
            operators_on_device: 3,
            launches: 7,
            peak_bytes: 1_572_864,
            spilled_bytes: 4096,
            reasons: vec!["f has no device form".into()],
            notes: vec!["ran again".into()],
            ..QueryReport::default()
        };
        assert_eq!(
            device.to_string(),
            "5 rows · 0.000 s · a device: 3 of 4 operators · 7 launches · peak 1.5 MiB · 4 KiB spilled · memory from caching · \
             on the CPU because f has no device form · ran again"
        );
        assert_eq!(serde_json::to_value(&device).expect("a map")["operators_on_device"], 3);
    }
}
