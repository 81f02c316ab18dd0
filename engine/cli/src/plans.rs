//! Writes EXPLAIN's answer as text, with the planner's line breaks.
//!
//! ```text
//!   logical_plan                               several plans are headed by their kinds, and separated by an empty line
//!   Projection: Int64(1)
//!     EmptyRelation: rows=1
//!
//!   physical_plan
//!   ProjectionExec: expr=[1 as Int64(1)]       a single plan has no heading: EXPLAIN FORMAT PGJSON stays JSON
//!     PlaceholderRowExec
//! ```
//!
//! Why     A plan has many lines: a csv field would quote it, and a table would be as wide as its widest line.
//! Memory  The first plan, until a second one arrives.

use std::io::Write;

use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Writes the plans of one EXPLAIN.
#[derive(Default)]
pub struct PlanWriter {
    /// The kind and the text of the first plan, until a second one arrives.
    first: Option<(String, String)>,
    num_plans: usize,
}

impl PlanWriter {
    /// Writes rows of a kind and a plan.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn write(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), ArrowError> {
        let options = FormatOptions::default();
        let kinds = ArrayFormatter::try_new(batch.column(0), &options)?;
        let plans = ArrayFormatter::try_new(batch.column(1), &options)?;
        for row in 0..batch.num_rows() {
            let (kind, plan) = (kinds.value(row).to_string(), plans.value(row).to_string());
            self.num_plans += 1;
            if self.num_plans == 1 {
                self.first = Some((kind, plan));
                continue;
            }
            if let Some((kind, plan)) = self.first.take() {
                writeln!(out, "{kind}\n{}", plan.trim_end())?;
            }
            writeln!(out, "\n{kind}\n{}", plan.trim_end())?;
        }
        Ok(())
    }

    /// Writes the held plan if it is the only one.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(&mut self, out: &mut dyn Write) -> Result<(), ArrowError> {
        if let Some((_, plan)) = self.first.take() {
            writeln!(out, "{}", plan.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::StringArray;

    use super::*;

    fn written(plans: &[&[(&str, &str)]]) -> String {
        let (mut writer, mut out) = (PlanWriter::default(), Vec::new());
        for batch in plans {
            let kinds = Arc::new(StringArray::from_iter_values(batch.iter().map(|(kind, _)| kind)));
            let plans = Arc::new(StringArray::from_iter_values(batch.iter().map(|(_, plan)| plan)));
            let batch = RecordBatch::try_from_iter([("plan_type", kinds as _), ("plan", plans as _)]).expect("batch");
            writer.write(&batch, &mut out).expect("written");
        }
        writer.finish(&mut out).expect("finished");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn several_plans_have_headings_however_they_come() {
        let (logical, physical) =
            (("logical_plan", "Filter\n  Scan"), ("physical_plan", "FilterExec\n  \"Scan\", 1\n"));
        let expected = "logical_plan\nFilter\n  Scan\n\nphysical_plan\nFilterExec\n  \"Scan\", 1\n";
        assert_eq!(written(&[&[logical, physical]]), expected);
        assert_eq!(written(&[&[logical], &[physical]]), expected);
    }

    #[test]
    fn a_plan_alone_has_no_heading() {
        assert_eq!(written(&[&[("Plan with Metrics", "FilterExec\n  ScanExec\n")]]), "FilterExec\n  ScanExec\n");
        assert_eq!(written(&[]), "");
    }
}
