//! The limit of a query: before a run the largest source of its plan, after it the largest share of the time.
//!
//! ```text
//!   before   no device ─► CPU operators ─► the largest source
//!   after    plan+place │ assemble+generate │ feed: read, decode … │ wait: kernels, copies │ download │ cpu ─► max
//! ```

use millpond_memory::ByteSize;
use millpond_memory::recorder::Step;

use super::cost::Source;
use super::plan::{Explained, Placement};
use super::text::thousands;
use super::tree::{Line, Side, files};
use crate::profile::{Profile, step};

/// Limit of a plan that has not run.
pub(super) fn planned(explained: &Explained<'_>, lines: &[Line], placement: &Placement, sources: &[Source]) -> String {
    if placement.operators == 0 && sources.is_empty() {
        // A scan without operators stays with DataFusion.
        return match lines.iter().find_map(|line| files(line.node.as_ref())) {
            Some(file) => format!("reading {file} on the CPU"),
            None => "planning: no rows of tables are read".to_string(),
        };
    }
    if explained.simulated.is_some() {
        // The part of the note after the dash describes consequences.
        let note = explained.note.and_then(|note| note.split(" – ").next());
        let why = note.unwrap_or("millpond.device is cpu, or millpond.enabled is off");
        return format!("the CPU: no device ({why})");
    }
    let stays = lines.iter().find(|line| line.counts && line.side == Side::Cpu);
    if let Some(line) = stays {
        let code = placement.reasons.first().map(|reason| format!(" ({})", reason.code)).unwrap_or_default();
        let own = line.reasons.first().map(|reason| format!(" ({})", reason.code()));
        return format!("CPU operators: {}{}", line.node.name(), own.unwrap_or(code));
    }
    let all: u64 = sources.iter().filter_map(|source| source.bytes).sum();
    let largest = sources.iter().max_by_key(|source| source.bytes);
    match largest {
        None => "planning: no rows of tables are read".to_string(),
        Some(source) => {
            let does = if source.is_file { "reading" } else { "uploading rows of" };
            let size = match (source.bytes, source.rows) {
                (Some(bytes), Some(rows)) => {
                    let of = if bytes < all { format!(" of {} in all", ByteSize::bytes(all)) } else { String::new() };
                    format!(": {} rows, {}{of}", thousands(rows), ByteSize::bytes(bytes))
                }
                _ => ", whose size is not known".to_string(),
            };
            format!("{does} {}{size}", source.name)
        }
    }
}

/// Groups of query steps with a common cause, and the name of the cause.
const CAUSES: [(&[Step], &str); 11] = [
    (&[step::PLAN, step::PLACE], "planning"),
    (&[step::GENERATE, step::ASSEMBLE], "assembling kernels"),
    (&[step::PREPARE], "preparing the program"),
    (&[step::LAUNCH], "submitting launches"),
    (&[step::DOWNLOAD], "download"),
    (&[step::WAIT], "kernels"),
    (&[step::FEED], "feeding the device"),
    (&[step::CPU, step::DELIVER], "CPU operators"),
    // Stored columns are loaded in the query's own thread.
    (&[step::OPEN, step::READ, step::DECODE], "reading files"),
    (&[step::INTERN], "giving codes to strings"),
    (&[step::NARROW, step::COPY], "upload"),
];

/// Groups of steps of feeders and readers. A step in which one waits for the other has no cause of its own.
const CAUSES_OF_FEEDING: [(&[Step], &str); 7] = [
    (&[step::OPEN, step::READ, step::DECODE], "reading files"),
    (&[step::INTERN], "giving codes to strings"),
    (&[step::NARROW, step::COPY], "upload"),
    (&[step::GENERATE, step::ASSEMBLE], "assembling kernels"),
    (&[step::WAIT], "kernels"),
    (&[step::LAUNCH], "submitting launches"),
    (&[step::PREPARE], "preparing the program"),
];

/// Reading and decoding where files are Parquet.
const PARQUET: &str = "reading Parquet";

/// The cause with the most time, and its time.
fn most(steps: &[(Step, u64)], causes: &[(&[Step], &'static str)]) -> Option<(&'static str, u64)> {
    let sum = |of: &[Step]| steps.iter().filter(|(step, _)| of.contains(step)).map(|(_, ns)| ns).sum::<u64>();
    causes.iter().map(|(of, name)| (*name, sum(of))).max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0)
}

/// Kinds of scans in a plan.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reads {
    /// Parquet files are read by the engine's decoder.
    pub parquet: bool,
    /// Files of any format are read by DataFusion.
    pub on_cpu: bool,
}

/// Limit of a run. `busiest` is the CPU node with the most time, `slowest` the node whose kernels took longest.
pub(super) fn ran(profile: &Profile, reads: Reads, busiest: Option<&Line>, slowest: Option<&Line>) -> String {
    let Some((cause, ns)) = most(&profile.steps, &CAUSES) else { return "nothing that was measured".to_string() };
    let cause = match cause {
        "feeding the device" => match most(&profile.feeding.steps, &CAUSES_OF_FEEDING) {
            Some(("reading files", _)) if reads.parquet => PARQUET.to_string(),
            Some((cause, _)) => cause.to_string(),
            None => cause.to_string(),
        },
        "reading files" if reads.parquet => PARQUET.to_string(),
        "kernels" => {
            let (kernels, copies) = device_times(profile);
            match slowest {
                _ if copies > kernels => "copies between host and device".to_string(),
                Some(line) => format!("kernels of {}", line.node.name()),
                None => cause.to_string(),
            }
        }
        "CPU operators" => match busiest {
            Some(line) if line.counts => format!("CPU operators: {}", line.node.name()),
            Some(line) if reads.on_cpu => format!("reading files on the CPU: {}", line.node.name()),
            _ => "rows between operators, on the CPU".to_string(),
        },
        cause => cause.to_string(),
    };
    format!("{cause} ({} of wall)", share(ns, profile.wall_ns))
}

/// Nanoseconds of kernels and of copies, on the device's clock.
fn device_times(profile: &Profile) -> (u64, u64) {
    let sum = |of: fn(&crate::profile::SegmentProfile) -> Option<u64>| profile.segments.iter().filter_map(of).sum();
    (sum(|segment| segment.device_ns), sum(|segment| segment.transfer_ns))
}

/// "62 %"
pub(super) fn share(ns: u64, of: u64) -> String {
    if of == 0 { String::new() } else { format!("{:.0} %", ns as f64 * 100.0 / of as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Feeding;

    fn limited(steps: &[(Step, u64)], feeding: &[(Step, u64)], reads: Reads) -> String {
        let feeding = Feeding { steps: feeding.to_vec(), ..Feeding::default() };
        let wall_ns = steps.iter().map(|(_, ns)| ns).sum();
        let profile = Profile { steps: steps.to_vec(), feeding, wall_ns, ..Profile::default() };
        ran(&profile, reads, None, None)
    }

    #[test]
    fn the_largest_share_of_the_time_is_named() {
        let parquet = Reads { parquet: true, on_cpu: false };
        let fed = [(step::PLAN, 10), (step::FEED, 62), (step::WAIT, 28)];
        assert_eq!(limited(&fed, &[(step::DECODE, 5), (step::COPY, 3)], parquet), "reading Parquet (62 % of wall)");
        assert_eq!(limited(&fed, &[(step::DECODE, 5), (step::COPY, 8)], parquet), "upload (62 % of wall)");
        assert_eq!(limited(&fed, &[(step::WAIT, 9), (step::COPY, 8)], parquet), "kernels (62 % of wall)");
        assert_eq!(limited(&fed, &[], parquet), "feeding the device (62 % of wall)");
        let compiled = [(step::GENERATE, 30), (step::ASSEMBLE, 30), (step::PLAN, 20), (step::PLACE, 20)];
        assert_eq!(limited(&compiled, &[], parquet), "assembling kernels (60 % of wall)");
        assert_eq!(limited(&[(step::DOWNLOAD, 1)], &[], parquet), "download (100 % of wall)");
        assert_eq!(limited(&[(step::CPU, 1)], &[], parquet), "rows between operators, on the CPU (100 % of wall)");
        assert_eq!(limited(&[], &[], parquet), "nothing that was measured");
    }

    #[test]
    fn every_step_of_a_query_has_a_cause() {
        for step in [
            step::PLAN,
            step::PLACE,
            step::CPU,
            step::PREPARE,
            step::FEED,
            step::LAUNCH,
            step::DOWNLOAD,
            step::DELIVER,
            step::WAIT,
            step::GENERATE,
            step::ASSEMBLE,
            step::READ,
            step::COPY,
        ] {
            assert!(most(&[(step, 1)], &CAUSES).is_some(), "{step}");
        }
    }
}
