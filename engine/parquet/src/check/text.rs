//! A report as text for people.
//!
//! ```text
//!   sales.parquet: 1,000,000 rows in 1 row group, 12 columns, 612 pages, 23.1 MiB (57.9 MiB raw), ZSTD
//!     estimated scan of all columns: 4.2 ms (link 1.1 ms, device 0 s, host 4.2 ms)
//!
//!   1 finding, the costliest first; seconds are estimates for a scan of all columns
//!    1. 3.9 ms  ZSTD is decompressed on the host; …
//!               columns  price, quantity, note and 9 more
//!               mend     millpond parquet rewrite
//! ```

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter, Result};

use super::findings::{Finding, WayOut};
use super::{ColumnReport, FileReport, Report};

/// Maximum number of findings shown by default.
pub const MOST_FINDINGS: usize = 20;
/// Maximum number of columns named by a finding by default.
const MOST_COLUMNS: usize = 6;
/// Maximum number of files listed by default.
const MOST_FILES: usize = 20;

/// A report to print.
pub struct ReportText<'a> {
    report: &'a Report,
    all: bool,
}

impl Report {
    /// The report as text; with `all`, every file, finding and column.
    pub fn text(&self, all: bool) -> ReportText<'_> {
        ReportText { report: self, all }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.text(false).fmt(f)
    }
}

impl Display for ReportText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Report { files, tables, findings } = self.report;
        let shown = if self.all { files.len() } else { MOST_FILES };
        for file in files.iter().take(shown) {
            write_file(f, file)?;
        }
        if files.len() > shown {
            writeln!(f, "and {} more; --all shows them", plural(files.len() - shown, "file"))?;
        }
        if files.len() > 1 {
            let (rows, bytes) = files.iter().fold((0, 0), |(rows, bytes), file| (rows + file.rows, bytes + file.bytes));
            let of = plural(tables.len(), "table");
            writeln!(
                f,
                "{} of {of}: {} rows, {}",
                plural(files.len(), "file"),
                count(rows),
                crate::file::bytes(bytes)
            )?;
        }
        writeln!(f)?;
        if findings.is_empty() {
            return writeln!(f, "no findings: the layout suits a device");
        }
        writeln!(
            f,
            "{}, the costliest first; times are estimates for a scan of all columns",
            plural(findings.len(), "finding")
        )?;
        let shown = if self.all { findings.len() } else { MOST_FINDINGS };
        for (index, finding) in findings.iter().take(shown).enumerate() {
            self.write_finding(f, index + 1, finding, tables.len() > 1)?;
        }
        if findings.len() > shown {
            writeln!(f, "and {} more; --all shows them", plural(findings.len() - shown, "finding"))?;
        }
        Ok(())
    }
}

impl ReportText<'_> {
    fn write_finding(&self, f: &mut Formatter<'_>, number: usize, finding: &Finding, names_table: bool) -> Result {
        let time = finding.seconds.map_or("-".to_string(), seconds);
        let table = if names_table { format!("{}: ", finding.table) } else { String::new() };
        writeln!(f, "{number:3}. {time:>8}  {table}{}", finding.what)?;
        let most = if self.all { finding.columns.len() } else { MOST_COLUMNS };
        if !finding.columns.is_empty() {
            let names: Vec<&str> = finding.columns.iter().take(most).map(String::as_str).collect();
            let more = match finding.columns.len().saturating_sub(most) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            writeln!(f, "{:15}columns  {}{more}", "", names.join(", "))?;
        }
        match finding.way_out {
            WayOut::Rewrite => writeln!(f, "{:15}mend     millpond parquet rewrite", ""),
            WayOut::RewriteWith(how) => writeln!(f, "{:15}mend     millpond parquet rewrite {how}", ""),
            WayOut::Other(how) => writeln!(f, "{:15}instead  {how}", ""),
        }
    }
}

fn write_file(f: &mut Formatter<'_>, file: &FileReport) -> Result {
    let sum = |of: fn(&ColumnReport) -> u64| file.columns.iter().map(of).sum::<u64>();
    let pages: Option<u64> =
        file.columns.iter().filter(|column| column.is_read_by_device()).map(|column| column.pages).sum();
    let pages = pages.map_or(String::new(), |pages| format!("{}, ", plural(pages as usize, "page")));
    let codecs: BTreeSet<&str> = file.columns.iter().flat_map(|column| &column.codecs).map(String::as_str).collect();
    let codecs: Vec<&str> = codecs.into_iter().collect();
    let by = file.created_by.as_ref().map_or(String::new(), |by| format!(", by {by}"));
    writeln!(
        f,
        "{}: {} in {}, {}, {pages}{} ({} raw), {}{by}",
        file.path.display(),
        plural(file.rows as usize, "row"),
        plural(file.row_groups as usize, "row group"),
        plural(file.columns.len(), "column"),
        crate::file::bytes(sum(|column| column.compressed_bytes)),
        crate::file::bytes(sum(|column| column.raw_bytes)),
        if codecs.is_empty() { "no data".to_string() } else { codecs.join(", ") },
    )?;
    let estimate = file.estimate;
    writeln!(
        f,
        "  estimated scan of all columns: {} (link {}, device {}, host {})",
        seconds(estimate.total()),
        seconds(estimate.link),
        seconds(estimate.device),
        seconds(estimate.host)
    )
}

/// `1 file`, `2,000 files`.
fn plural(number: usize, thing: &str) -> String {
    format!("{} {thing}{}", count(number as u64), if number == 1 { "" } else { "s" })
}

/// A number with commas.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time of two digits with the unit that suits it.
fn seconds(time: f64) -> String {
    let (value, unit) = match time {
        time if time < 5e-10 => return "0 s".to_string(),
        time if time < 1e-6 => (time * 1e9, "ns"),
        time if time < 1e-3 => (time * 1e6, "µs"),
        time if time < 1.0 => (time * 1e3, "ms"),
        time => (time, "s"),
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 4e-8, 1.25e-3, 0.5, 42.0].map(seconds), ["0 s", "40 ns", "1.2 ms", "500 ms", "42 s"]);
        assert_eq!((plural(1, "row"), plural(2, "row")), ("1 row".into(), "2 rows".into()));
    }
}
