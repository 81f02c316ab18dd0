//! Rows as tables for people: on the terminal, and as Markdown.
//!
//! ```text
//!   Markdown          title · conditions                              then tables, for the allocators that they name
//!   one allocator     query · counts · times                          then reasons, notes and texts
//!   several           allocator · sums · share in the allocator       query · ms of each, and its ratio to the first
//! ```

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use millpond::QueryReport;

use super::conditions::{Conditions, Lane};
use super::row::{NOT_COMPARED, Row};
use crate::query::bytes;
use crate::version::{COMMIT, VERSION};

/// Cells with a header; the first `texts` columns hold text, the others numbers.
struct Grid {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    texts: usize,
}

impl Grid {
    fn new(header: &[&str], texts: usize) -> Grid {
        Grid { header: header.iter().map(|name| (*name).to_string()).collect(), rows: Vec::new(), texts }
    }

    fn terminal(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(&self.header);
        for row in &self.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(self.texts) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = |index: usize| if index < self.texts { "---" } else { "---:" };
        let rules: Vec<String> = (0..self.header.len()).map(|index| rule(index).to_string()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{}{rows}", line(&self.header), line(&rules))
    }
}

/// The rows of one allocator.
type Run = (Lane, Vec<Row>);

/// Prints for a terminal.
pub(super) fn table(runs: &[Run], quiet: bool) {
    for (lane, rows) in runs {
        if let Some(name) = lane.allocator {
            println!("from {name}");
        }
        println!("{}", counts(rows).terminal());
        let failed = rows.iter().filter(|row| row.problem.is_some()).count();
        let noun = if rows.len() == 1 { "query" } else { "queries" };
        println!("{} {noun}, {failed} with problems", rows.len());
    }
    if let [(_, only)] = runs {
        for row in only {
            let Some(outcome) = &row.outcome else { continue };
            if !outcome.report.reasons.is_empty() {
                println!("{} on the CPU because {}", row.query, outcome.report.reasons.join("; "));
            }
            for note in &outcome.report.notes {
                println!("{}: {note}", row.query);
            }
            for line in outcome.text.iter().filter(|_| !quiet).flat_map(|text| text.lines()) {
                println!("{} says {line}", row.query);
            }
        }
    } else {
        println!("{}", allocators(runs).terminal());
        if let Some(times) = times(runs) {
            println!("{}", times.terminal());
        }
    }
}

/// Prints Markdown: conditions, placement and times, then the allocators side by side.
pub(super) fn markdown(conditions: &Conditions, runs: &[Run]) {
    println!("# {}\n", conditions.title);
    let lanes: Vec<&Lane> = runs.iter().map(|(lane, _)| lane).collect();
    for (name, value) in heading(conditions, &lanes) {
        println!("- {name}: {value}");
    }
    if lanes.iter().any(|lane| lane.is_simulated) {
        println!("\nThe simulated device counts as a GPU does; its time says nothing, and is left out.");
    }
    let first = &runs[0];
    let from = first.0.allocator.map(|name| format!(", from `{name}`")).unwrap_or_default();
    println!("\n## Queries{from}\n\n{}", places(&first.1).markdown());
    if runs.len() > 1 {
        println!("## Allocators\n\n{}", allocators(runs).markdown());
    }
    if let Some(times) = times(runs) {
        println!("## Milliseconds\n\n{}", times.markdown());
    }
}

/// The conditions of a run, with their names.
fn heading(conditions: &Conditions, lanes: &[&Lane]) -> Vec<(&'static str, String)> {
    let mut devices: Vec<&str> = lanes.iter().map(|lane| lane.device.as_str()).collect();
    devices.dedup();
    let mut lines = vec![("device", devices.join(", ")), ("data", conditions.data_in_words())];
    for lane in lanes {
        let setting = |(key, value): (&String, &String)| format!("`{key} = {value}`");
        let mut settings: Vec<String> = lane.settings.iter().map(setting).collect();
        settings.extend(lane.pool_limit_bytes.map(|limit| format!("a pool of at most {}", bytes(limit))));
        let settings = if settings.is_empty() { "the defaults".to_string() } else { settings.join(", ") };
        lines.push(("settings", settings));
    }
    if !conditions.arguments.is_empty() {
        lines.push(("arguments", conditions.arguments.join(" ")));
    }
    lines.push(("commit", format!("{COMMIT}, Millpond {VERSION}")));
    lines.push(("host", format!("{}, {} cores", conditions.host, conditions.cores)));
    lines.push(("begun", conditions.began.clone()));
    lines.push(("command", format!("`{}`", conditions.command)));
    lines
}

fn milliseconds(ms: Option<f64>) -> String {
    ms.map_or("-".to_string(), |ms| format!("{ms:.1}"))
}

/// All counts, for one allocator.
fn counts(rows: &[Row]) -> Grid {
    let repeated = rows.iter().any(|row| row.samples.len() > 1);
    let mut header = vec!["query", "status", "digest", "rows", if repeated { "cold ms" } else { "ms" }];
    header.extend(if repeated { &["median", "least"][..] } else { &[] });
    header.extend([
        "alloc ms",
        "launches",
        "pipelines",
        "ptx",
        "waits",
        "allocs",
        "bytes",
        "up",
        "down",
        "peak",
        "on device",
    ]);
    let mut grid = Grid::new(&header, 3);
    for row in rows {
        let mut cells = vec![row.query.clone(), row.status().to_string()];
        if let Some(outcome) = &row.outcome {
            let report = &outcome.report;
            cells.extend([outcome.answer.digest(), outcome.answer.num_rows().to_string(), milliseconds(row.cold_ms())]);
            if repeated {
                let warm = row.warm_ms();
                cells.extend([milliseconds(warm.map(|ms| ms.0)), milliseconds(warm.map(|ms| ms.1))]);
            }
            cells.extend([
                milliseconds(row.allocator_ms()),
                report.launches.to_string(),
                report.pipelines.to_string(),
                report.ptx_instructions.to_string(),
                report.host_waits.to_string(),
                report.allocations.to_string(),
                bytes(report.allocated_bytes),
                bytes(report.uploaded_bytes),
                bytes(report.downloaded_bytes),
                bytes(report.peak_bytes),
                format!("{}/{}", report.operators_on_device, report.operators),
            ]);
        }
        grid.rows.push(cells);
    }
    grid
}

/// Placement of each query, and the reasons for fallbacks.
fn places(rows: &[Row]) -> Grid {
    let header = [
        "query",
        "status",
        "on the CPU because",
        "rows",
        "on device",
        "launches",
        "waits",
        "allocations",
        "allocated",
        "peak",
    ];
    let mut grid = Grid::new(&header, 3);
    for row in rows {
        let mut cells = vec![row.query.clone(), row.status().to_string()];
        match &row.outcome {
            Some(outcome) => {
                let report = &outcome.report;
                cells.extend([
                    report.reasons.join("; "),
                    outcome.answer.num_rows().to_string(),
                    format!("{}/{}", report.operators_on_device, report.operators),
                    report.launches.to_string(),
                    report.host_waits.to_string(),
                    report.allocations.to_string(),
                    bytes(report.allocated_bytes),
                    bytes(report.peak_bytes),
                ]);
            }
            None => cells.push(row.problem.clone().unwrap_or_else(|| "no answer".to_string())),
        }
        cells.resize(grid.header.len(), String::new());
        grid.rows.push(cells);
    }
    grid.rows.push(sums(rows));
    grid
}

/// The last line of [`places`]: sums, and the greatest peak.
fn sums(rows: &[Row]) -> Vec<String> {
    let reports = || rows.iter().filter_map(|row| row.outcome.as_ref()).map(|outcome| &outcome.report);
    let count = |of: fn(&QueryReport) -> u64| reports().map(of).sum::<u64>();
    let operators = |of: fn(&QueryReport) -> usize| reports().map(of).sum::<usize>();
    vec![
        "sum".to_string(),
        compared(rows),
        String::new(),
        String::new(),
        format!("{}/{}", operators(|report| report.operators_on_device), operators(|report| report.operators)),
        count(|report| report.launches).to_string(),
        count(|report| report.host_waits).to_string(),
        count(|report| report.allocations).to_string(),
        bytes(count(|report| report.allocated_bytes)),
        bytes(reports().map(|report| report.peak_bytes).max().unwrap_or(0)),
    ]
}

/// Number of answers that equal the answers they were compared with.
fn compared(rows: &[Row]) -> String {
    if rows.iter().all(|row| row.validated.is_none()) {
        return NOT_COMPARED.to_string();
    }
    let equal = rows.iter().filter(|row| row.validated == Some(true) && row.problem.is_none()).count();
    format!("{equal}/{}", rows.len())
}

/// Sums over the queries, one line for each allocator.
fn allocators(runs: &[Run]) -> Grid {
    let timed = runs.iter().flat_map(|(_, rows)| rows).any(|row| row.ms().is_some());
    let mut header = vec!["allocator", "equal", "launches", "waits", "allocations", "allocated", "greatest peak"];
    header.extend(if timed { &["ms in all", "ratio", "ms in the allocator", "share"][..] } else { &[] });
    let mut grid = Grid::new(&header, 1);
    let all = |rows: &[Row]| rows.iter().map(Row::ms).sum::<Option<f64>>();
    let first = runs.first().and_then(|(_, rows)| all(rows));
    for (lane, rows) in runs {
        let reports = || rows.iter().filter_map(|row| row.outcome.as_ref()).map(|outcome| &outcome.report);
        let mut cells = vec![
            lane.allocator.unwrap_or("none").to_string(),
            compared(rows),
            reports().map(|report| report.launches).sum::<u64>().to_string(),
            reports().map(|report| report.host_waits).sum::<u64>().to_string(),
            reports().map(|report| report.allocations).sum::<u64>().to_string(),
            bytes(reports().map(|report| report.allocated_bytes).sum()),
            bytes(reports().map(|report| report.peak_bytes).max().unwrap_or(0)),
        ];
        if timed {
            let (ms, inside) = (all(rows), rows.iter().map(Row::allocator_ms).sum::<Option<f64>>());
            let share = inside.zip(ms).map_or("-".to_string(), |(part, ms)| format!("{:.1} %", 100.0 * part / ms));
            cells.extend([milliseconds(ms), ratio(ms, first), milliseconds(inside), share]);
        }
        grid.rows.push(cells);
    }
    grid
}

fn ratio(ms: Option<f64>, first: Option<f64>) -> String {
    ms.zip(first).map_or("-".to_string(), |(ms, first)| format!("{:.2}", ms / first))
}

/// Milliseconds of each query with each allocator, and the ratios to the first one.
fn times(runs: &[Run]) -> Option<Grid> {
    let timed: Vec<&Run> = runs.iter().filter(|(_, rows)| rows.iter().any(|row| row.ms().is_some())).collect();
    let names: Vec<String> = timed.iter().map(|(lane, _)| lane.allocator.unwrap_or("cpu").to_string()).collect();
    let (first, others) = names.split_first()?;
    let mut header = vec!["query".to_string(), format!("{first} ms"), "in allocator".to_string()];
    for name in others {
        header.extend([format!("{name} ms"), "ratio".to_string(), "in allocator".to_string()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut grid = Grid::new(&header, 1);
    let mut queries: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in timed.iter().flat_map(|(_, rows)| rows) {
        queries.entry(&row.query).or_default().push(row);
    }
    for (query, rows) in queries {
        let mut cells = vec![query.to_string()];
        for (place, row) in rows.iter().enumerate() {
            cells.push(milliseconds(row.ms()));
            if place > 0 {
                cells.push(ratio(row.ms(), rows[0].ms()));
            }
            cells.push(milliseconds(row.allocator_ms()));
        }
        grid.rows.push(cells);
    }
    let all = |rows: &[Row], of: fn(&Row) -> Option<f64>| rows.iter().map(of).sum::<Option<f64>>();
    let mut sums = vec!["sum".to_string()];
    for (place, (_, rows)) in timed.iter().enumerate() {
        let ms = all(rows, Row::ms);
        sums.push(milliseconds(ms));
        if place > 0 {
            sums.push(ratio(ms, all(&timed[0].1, Row::ms)));
        }
        sums.push(milliseconds(all(rows, Row::allocator_ms)));
    }
    grid.rows.push(sums);
    Some(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_aligns_numbers_and_keeps_bars_out() {
        let mut grid = Grid::new(&["query", "rows"], 1);
        grid.rows.push(vec!["a|b".into(), "3".into()]);
        assert_eq!(grid.markdown(), "| query | rows |\n| --- | ---: |\n| a\\|b | 3 |\n");
    }

    #[test]
    fn answers_that_nothing_was_compared_with_are_not_called_unequal() {
        let row = |validated| Row { validated, ..Row::new("q01") };
        assert_eq!(compared(&[row(None), row(None)]), "not compared");
        assert_eq!(compared(&[row(Some(true)), row(Some(false))]), "1/2");
        assert_eq!(compared(&[row(Some(true)), row(None)]), "1/2");
    }
}
