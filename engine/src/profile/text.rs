//! Text of a profile for EXPLAIN ANALYZE: one line each for the steps, feeding, every segment and kernel, and what
//! attempts learnt.
//!
//! Units  ms on the host's clock; thread seconds for feeding; ms on the device's clock; bytes in powers of 1024, but
//!        GB/s in 1000³ bytes, as in data sheets.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::physical_plan::metrics::CustomMetricValue;
use millpond_memory::ByteSize;
use millpond_memory::recorder::Step;

use super::figures::{KernelProfile, Profile, SegmentProfile};

/// Names and values of a profile's lines.
pub(super) fn lines(profile: &Profile) -> Vec<(String, String)> {
    let mut lines = vec![("host_steps".to_string(), steps_text(&profile.steps, profile.wall_ns))];
    let feeding = &profile.feeding;
    if feeding.feeders > 0 {
        let tasks = format!("{} feeders, {} readers: ", feeding.feeders, feeding.readers);
        lines.push(("feeding".to_string(), tasks + &steps_text(&feeding.steps, feeding.ns)));
    }
    for (index, segment) in profile.segments.iter().enumerate() {
        lines.push((format!("device_{index}"), segment_text(segment, profile.memory_bandwidth)));
    }
    for (index, kernel) in profile.kernels.iter().enumerate() {
        lines.push((format!("kernel_{index}"), kernel_text(kernel)));
    }
    if !profile.learnt.is_empty() {
        lines.push(("learnt".to_string(), profile.learnt.join(" · ")));
    }
    lines
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// "plan 1.200 ms + wait 0.300 ms = 1.500 ms"
pub fn steps_text(steps: &[(Step, u64)], sum: u64) -> String {
    let steps: Vec<String> = steps.iter().map(|(step, ns)| format!("{step} {}", ms(*ns))).collect();
    format!("{} = {}", steps.join(" + "), ms(sum))
}

/// A segment, with its share of the device's memory bandwidth.
pub fn segment_text(segment: &SegmentProfile, memory_bandwidth: Option<f64>) -> String {
    let mut parts = vec![format!("{} launches", segment.launches)];
    if let Some(ns) = segment.device_ns {
        parts.push(format!("{} on the device", ms(ns)));
    }
    let bytes = |bytes: u64| ByteSize::bytes(bytes).to_string();
    parts.push(format!("{} read and {} written", bytes(segment.bytes_read), bytes(segment.bytes_written)));
    if let Some(speed) = segment.bytes_per_second() {
        let share = memory_bandwidth.map(|most| format!(" ({:.0} % of the memory's)", speed / most * 100.0));
        parts.push(format!("{:.1} GB/s{}", speed / 1e9, share.unwrap_or_default()));
    }
    if segment.uploaded_bytes + segment.downloaded_bytes > 0 {
        let time = segment.transfer_ns.map(|ns| format!(" in {}", ms(ns))).unwrap_or_default();
        parts.push(format!("{} up and {} down{time}", bytes(segment.uploaded_bytes), bytes(segment.downloaded_bytes)));
    }
    parts.extend(counted(segment.figures, segment.rows));
    format!("{}: {}", segment.name, parts.join(" · "))
}

/// Counters of the simulated device, per row.
fn counted(figures: Option<millpond_memory::driver::LaunchFigures>, rows: u64) -> Option<String> {
    let figures = figures.filter(|_| rows > 0)?;
    let per_row = |count: u64| format!("{:.3}", count as f64 / rows as f64);
    Some(format!(
        "a row of {rows}: {} sectors read and {} written and {} atomic and {} warp instructions",
        per_row(figures.sectors_read),
        per_row(figures.sectors_written),
        per_row(figures.sectors_atomic),
        per_row(figures.warp_instructions)
    ))
}

/// A kernel, with the resources of its blocks.
pub fn kernel_text(kernel: &KernelProfile) -> String {
    let shared = u64::from(kernel.static_shared_bytes) + u64::from(kernel.dynamic_shared_bytes);
    let mut parts = vec![
        format!("{} launches", kernel.launches),
        format!("{} threads a block", kernel.threads),
        format!("{} registers", kernel.registers),
        format!("{} local bytes", kernel.local_bytes),
        format!("{shared} shared bytes"),
        format!("{} blocks a multiprocessor", kernel.blocks_per_multiprocessor),
    ];
    if let Some(ns) = kernel.device_ns {
        parts.insert(1, format!("{} on the device", ms(ns)));
    }
    parts.extend(counted(kernel.figures, kernel.rows));
    let place = kernel.segment.as_ref().map(|segment| format!(" in {segment}")).unwrap_or_default();
    format!("{}{place}: {}", kernel.name, parts.join(" · "))
}

/// A line as a metric. Lines are not aggregated: every run has its own.
#[derive(Debug)]
pub(super) struct Line(pub String);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CustomMetricValue for Line {
    fn new_empty(&self) -> Arc<dyn CustomMetricValue> {
        Arc::new(Line(self.0.clone()))
    }

    fn aggregate(&self, _other: Arc<dyn CustomMetricValue + 'static>) {}

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_eq(&self, other: &Arc<dyn CustomMetricValue>) -> bool {
        other.as_any().downcast_ref::<Line>().is_some_and(|other| other.0 == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_says_how_much_of_the_memorys_speed_it_has() {
        let segment = SegmentProfile {
            name: "segment 0: upload 0 → rows".into(),
            launches: 2,
            device_ns: Some(1_000_000),
            bytes_read: 2_000_000_000,
            bytes_written: 400_000_000,
            ..SegmentProfile::default()
        };
        let text = segment_text(&segment, Some(4.8e12));
        assert!(text.starts_with("segment 0: upload 0 → rows: 2 launches · 1.000 ms on the device · "), "{text}");
        assert!(text.ends_with("2400.0 GB/s (50 % of the memory's)"), "{text}");
    }

    #[test]
    fn steps_are_a_sum() {
        assert_eq!(
            steps_text(&[("plan", 1_500_000), ("wait", 700)], 1_500_700),
            "plan 1.500 ms + wait 0.001 ms = 1.501 ms"
        );
    }
}
