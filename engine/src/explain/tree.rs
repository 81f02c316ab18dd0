//! The nodes of a physical plan in EXPLAIN order, each with its level, its label and the reasons why it stays on the
//! CPU.
//!
//! ```text
//!   SortExec: …                                  CPU, with its own reason
//!     DownloadExec                               border
//!       DeviceAggregateExec: …                   device
//!         DeviceScanExec: lineitem.parquet       a scan in one line: DataFusion's node below it never runs
//! ```
//!
//! Reasons  are those that placement recorded for the node; a reason without a node is shown at the border that carries
//!          it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};

use crate::contract::Operators;
use crate::placement::fallback::FallbackExec;
use crate::placement::judged::Judged;
use crate::reason::Reason;
use crate::result::node::DownloadExec;
use crate::source::{SourceExec, is_parquet_scan, is_source};

/// Side of a node: where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// In a device program.
    Device,
    /// Border: rows leave the device.
    Download,
    /// Border: rows are uploaded to the device.
    Source,
    /// On the CPU, by DataFusion.
    Cpu,
}

/// A line of the tree.
pub(super) struct Line {
    pub node: Arc<dyn ExecutionPlan>,
    /// Number of ancestors.
    pub level: usize,
    /// Label of the node.
    pub words: String,
    pub side: Side,
    /// Whether it counts as an operator over table rows.
    pub counts: bool,
    /// Reasons why it stays on the CPU.
    pub reasons: Vec<Reason>,
}

/// Nodes of `plan` in depth-first order, each before its inputs.
pub(super) fn lines(plan: &Arc<dyn ExecutionPlan>, operators: &Operators) -> Vec<Line> {
    let judged = judged(plan);
    let mut walk = Walk { operators, judged: &judged, lines: vec![] };
    walk.node(plan, 0);
    walk.carried(plan);
    walk.lines
}

/// Records of placement, deduplicated.
fn judged(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<Judged>> {
    let mut all: Vec<Arc<Judged>> = vec![];
    let walked = plan.apply(|node| {
        let download = node.downcast_ref::<DownloadExec>().map(DownloadExec::judged);
        let own = download.or_else(|| node.downcast_ref::<FallbackExec>().map(FallbackExec::judged));
        all.extend(own.filter(|own| !all.iter().any(|known| Arc::ptr_eq(known, own))).cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    all
}

struct Walk<'a> {
    operators: &'a Operators,
    judged: &'a [Arc<Judged>],
    lines: Vec<Line>,
}

impl Walk<'_> {
    fn node(&mut self, plan: &Arc<dyn ExecutionPlan>, level: usize) {
        if let Some(fallback) = plan.downcast_ref::<FallbackExec>() {
            // The node only carries reasons, which are shown at the nodes they belong to.
            fallback.children().into_iter().for_each(|child| self.node(child, level));
            return;
        }
        let side = match () {
            () if plan.is::<DownloadExec>() => Side::Download,
            () if is_source(plan.as_ref()) => Side::Source,
            () if self.operators.is_device_node(plan.as_ref()) => Side::Device,
            () => Side::Cpu,
        };
        let counts = self.operators.counts(plan.as_ref());
        let mut reasons: Vec<Reason> = match side {
            Side::Cpu => self.judged.iter().flat_map(|judged| judged.why(plan)).collect(),
            _ => vec![],
        };
        reasons.dedup();
        self.lines.push(Line { node: Arc::clone(plan), level, words: words(plan), side, counts, reasons });
        if !is_parquet_scan(plan.as_ref()) {
            plan.children().into_iter().for_each(|child| self.node(child, level + 1));
        }
    }

    /// Assigns reasons of a border or the root that belong to no node to the first CPU operator, else to the first
    /// line.
    fn carried(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        for reason in crate::placement::reasons_of(plan) {
            if self.lines.iter().any(|line| line.reasons.contains(&reason)) {
                continue;
            }
            let place = self.lines.iter().position(|line| line.side == Side::Cpu && line.counts).unwrap_or(0);
            if let Some(line) = self.lines.get_mut(place) {
                line.reasons.push(reason);
            }
        }
    }
}

/// Label of a node as DataFusion displays it; files are shown by name only.
fn words(plan: &Arc<dyn ExecutionPlan>) -> String {
    if plan.is::<DownloadExec>() {
        return plan.name().to_string();
    }
    if let Some(source) = plan.downcast_ref::<SourceExec>() {
        let input = source.input().as_ref();
        return match source.reasons() {
            _ if source.is_parquet() => {
                format!("{}: {}{}", source.name(), files(input).unwrap_or_default(), columns(input))
            }
            [] => default_words(plan),
            // They are shown at the nodes below.
            _ => source.name().to_string(),
        };
    }
    match files(plan.as_ref()) {
        Some(files) => format!("{}: {files}{}{}", plan.name(), columns(plan.as_ref()), predicate(plan)),
        None => default_words(plan),
    }
}

fn default_words(plan: &Arc<dyn ExecutionPlan>) -> String {
    struct Words<'a>(&'a dyn ExecutionPlan);
    impl fmt::Display for Words<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt_as(DisplayFormatType::Default, f)
        }
    }
    Words(plan.as_ref()).to_string()
}

/// Name of the file that a scan reads, or its folder and the number of files.
pub(super) fn files(scan: &dyn ExecutionPlan) -> Option<String> {
    let config = scan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let mut paths: Vec<String> = config
        .file_groups
        .iter()
        .flat_map(|group| group.files())
        .map(|file| file.object_meta.location.to_string())
        .collect();
    paths.sort();
    paths.dedup();
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    match paths.as_slice() {
        [] => Some("no file".to_string()),
        [one] => Some(name(one)),
        [first, ..] => {
            let folder = first.rsplit_once('/').map_or("", |(folder, _)| folder);
            Some(format!("{}/ ({} files)", name(folder), paths.len()))
        }
    }
}

fn columns(scan: &dyn ExecutionPlan) -> String {
    let names: Vec<String> = scan.schema().fields().iter().map(|field| field.name().clone()).collect();
    if names.is_empty() { String::new() } else { format!(" [{}]", names.join(", ")) }
}

/// Predicate of a DataFusion scan.
fn predicate(plan: &Arc<dyn ExecutionPlan>) -> String {
    let words = default_words(plan);
    let found = words.find(", predicate=").map(|at| &words[at..]);
    let text = found.map(|text| text.split(", pruning_predicate=").next().unwrap_or(text));
    text.unwrap_or_default().to_string()
}
