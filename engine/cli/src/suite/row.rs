//! A query's row of a report: counts, times, problems.

use millpond::Profile;
use millpond_bench::runner::Outcome;
use millpond_queries::gpu_bdb::Rows;
use serde_json::{Map, Value, json};

use super::profile;
use crate::error::Exit;

/// Status of an answer without another answer to compare with.
pub(super) const NOT_COMPARED: &str = "not compared";

/// Result of one query with one allocator.
pub(super) struct Row {
    pub query: String,
    /// Outcome of the first run.
    pub outcome: Option<Outcome>,
    /// Every run, in order.
    pub samples: Vec<Sample>,
    /// Milliseconds to open the device of its session.
    pub opening_ms: Option<f64>,
    /// Profile of the last run, if it was recorded.
    pub profile: Option<Profile>,
    /// Whether all answers equal those they were compared with; `None` if there was nothing to compare with.
    pub validated: Option<bool>,
    pub problem: Option<String>,
    pub exit: Exit,
}

/// The times of one run; `None` where a time is meaningless.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub elapsed_ms: Option<f64>,
    pub allocator_ms: Option<f64>,
}

impl Sample {
    /// The simulated device's time is meaningless, and the CPU does not use a Millpond allocator.
    pub fn of(outcome: &Outcome) -> Sample {
        let device = outcome.report.device.as_deref();
        let simulated = device.is_some_and(|device| device.contains("sim"));
        Sample {
            elapsed_ms: (!simulated).then_some(outcome.elapsed.as_secs_f64() * 1e3),
            allocator_ms: (device.is_some() && !simulated).then_some(outcome.report.allocator_ns as f64 / 1e6),
        }
    }
}

/// The median and the minimum of some numbers; `None` if there are none.
pub(super) fn median_and_least(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (least, middle) = (*values.first()?, values.len() / 2);
    let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
    Some((median, least))
}

impl Row {
    pub fn new(query: &str) -> Row {
        let (query, samples) = (query.to_string(), Vec::new());
        Row {
            query,
            outcome: None,
            samples,
            opening_ms: None,
            profile: None,
            validated: None,
            problem: None,
            exit: Exit::Ok,
        }
    }

    /// Records a problem; the row keeps the first problem and the worst exit code.
    pub fn trouble(&mut self, exit: Exit, problem: String) {
        self.exit = self.exit.max(exit);
        self.problem.get_or_insert(problem);
    }

    pub fn status(&self) -> &'static str {
        match (&self.outcome, self.validated, &self.problem) {
            (None, ..) => "failed",
            (_, Some(false), _) => "differs",
            (Some(outcome), _, Some(_)) if !outcome.report.findings.is_empty() => "findings",
            (_, _, Some(_)) => "trouble",
            (_, Some(true), None) => "equal",
            (_, None, None) => NOT_COMPARED,
        }
    }

    /// Milliseconds of the first run.
    pub fn cold_ms(&self) -> Option<f64> {
        self.samples.first()?.elapsed_ms
    }

    /// Median and minimum milliseconds of the other runs.
    pub fn warm_ms(&self) -> Option<(f64, f64)> {
        median_and_least(self.samples.iter().skip(1).filter_map(|sample| sample.elapsed_ms).collect())
    }

    /// The query's milliseconds: the median of the warm runs, or the only run.
    pub fn ms(&self) -> Option<f64> {
        self.warm_ms().map(|(median, _)| median).or(self.cold_ms())
    }

    /// Milliseconds in the allocator: the median of the warm runs, or the only run.
    pub fn allocator_ms(&self) -> Option<f64> {
        let skipped = usize::from(self.samples.len() > 1);
        let warm = self.samples.iter().skip(skipped).filter_map(|sample| sample.allocator_ms);
        median_and_least(warm.collect()).map(|(median, _)| median)
    }

    /// The row as one object, with the `conditions` of its run.
    pub fn json(&self, conditions: Map<String, Value>) -> Value {
        let report = self.outcome.as_ref().map(|outcome| &outcome.report);
        let part = |(name, rows): &(String, Rows)| json!({ "name": name, "rows": rows.num_rows(), "digest": rows.digest().ok() });
        let mut row = json!({
            "query": self.query,
            "status": self.status(),
            "problem": self.problem,
            "rows": self.outcome.as_ref().map(|o| o.answer.num_rows()),
            "digest": self.outcome.as_ref().map(|o| o.answer.digest()),
            "parts": self.outcome.as_ref().map(|o| o.parts.iter().map(part).collect::<Vec<_>>()),
            "text": self.outcome.as_ref().and_then(|o| o.text.clone()),
            "memory_resource": report.and_then(|r| r.memory_resource),
            "opening_ms": self.opening_ms,
            "elapsed_ms": self.cold_ms(),
            "runs_ms": self.samples.iter().map(|sample| sample.elapsed_ms).collect::<Vec<_>>(),
            "median_ms": self.warm_ms().map(|(median, _)| median),
            "least_ms": self.warm_ms().map(|(_, least)| least),
            "allocator_ms": self.allocator_ms(),
            "launches": report.map(|r| r.launches),
            "pipelines": report.map(|r| r.pipelines),
            "ptx_instructions": report.map(|r| r.ptx_instructions),
            "segments": report.map(|r| r.segments),
            "attempts": report.map(|r| r.attempts),
            "lowerings": report.map(|r| r.lowerings),
            "placement_lowerings": report.map(|r| r.placement_lowerings),
            "statistics_read": report.map(|r| r.statistics_read),
            "prepare_ms": report.map(|r| r.prepare_ns as f64 / 1e6),
            "host_waits": report.map(|r| r.host_waits),
            "allocations": report.map(|r| r.allocations),
            "allocated_bytes": report.map(|r| r.allocated_bytes),
            "uploaded_bytes": report.map(|r| r.uploaded_bytes),
            "downloaded_bytes": report.map(|r| r.downloaded_bytes),
            "peak_bytes": report.map(|r| r.peak_bytes),
            "spilled_bytes": report.map(|r| r.spilled_bytes),
            "pool_used_bytes": report.map(|r| r.pool_used_bytes),
            "operators_on_device": report.map(|r| r.operators_on_device),
            "operators": report.map(|r| r.operators),
            "parquet_scans": report.map(|r| r.parquet_scans),
            "parquet_scans_by_datafusion": report.map(|r| r.parquet_scans_by_datafusion),
            "reasons": report.map(|r| r.reasons.clone()),
            "reason_codes": report.map(|r| r.reason_codes.clone()),
            "notes": report.map(|r| r.notes.clone()),
            "findings": report.map(|r| r.findings.clone()),
            "profile": self.profile.as_ref().map(profile::json),
        });
        if let Value::Object(fields) = &mut row {
            fields.extend(conditions);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_of_runs_lies_between_two() {
        assert_eq!(median_and_least(vec![]), None);
        assert_eq!(median_and_least(vec![3.0]), Some((3.0, 3.0)));
        assert_eq!(median_and_least(vec![5.0, 1.0, 3.0]), Some((3.0, 1.0)));
        assert_eq!(median_and_least(vec![5.0, 1.0, 3.0, 2.0]), Some((2.5, 1.0)));
    }

    #[test]
    fn the_first_run_is_cold_and_the_first_problem_stays() {
        let mut row = Row::new("q01");
        let sample = |ms| Sample { elapsed_ms: Some(ms), allocator_ms: Some(ms / 10.0) };
        row.samples.push(sample(90.0));
        assert_eq!(
            (row.cold_ms(), row.warm_ms(), row.ms(), row.allocator_ms()),
            (Some(90.0), None, Some(90.0), Some(9.0))
        );
        row.samples.extend([sample(20.0), sample(10.0), sample(30.0)]);
        assert_eq!((row.warm_ms(), row.ms(), row.allocator_ms()), (Some((20.0, 10.0)), Some(20.0), Some(2.0)));
        row.trouble(Exit::Sql, "first".into());
        row.trouble(Exit::File, "second".into());
        assert_eq!((row.problem.as_deref(), row.exit, row.status()), (Some("first"), Exit::File, "failed"));
    }
}
