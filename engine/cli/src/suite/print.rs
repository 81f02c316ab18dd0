//! Rows as tables for people: on the terminal, and as Markdown.
//!
//! ```text
//!   one allocator     query · counts · times                          then reasons, notes and texts
//!   several           allocator · sums · share in the allocator       query · ms of each, and its ratio to the first
//! ```

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

use super::row::Row;
use crate::query::bytes;

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

/// Prints for a terminal.
pub(super) fn table(runs: &[Vec<Row>], quiet: bool) {
    for rows in runs {
        if let Some(name) = allocator(rows).filter(|_| runs.len() > 1) {
            println!("{name}");
        }
        println!("{}", counts(rows).terminal());
        let failed = rows.iter().filter(|row| row.problem.is_some()).count();
        let noun = if rows.len() == 1 { "query" } else { "queries" };
        println!("{} {noun}, {failed} with problems", rows.len());
    }
    if let [only] = runs {
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

/// Prints Markdown: where the queries ran and what they took, then the allocators side by side.
pub(super) fn markdown(runs: &[Vec<Row>]) {
    println!("{}", places(&runs[0]).markdown());
    if runs.len() > 1 {
        println!("{}", allocators(runs).markdown());
    }
    if let Some(times) = times(runs) {
        println!("{}", times.markdown());
    }
}

fn allocator(rows: &[Row]) -> Option<&'static str> {
    rows.iter().find_map(|row| row.outcome.as_ref()?.report.memory_resource)
}

fn milliseconds(ms: Option<f64>) -> String {
    ms.map_or("-".to_string(), |ms| format!("{ms:.1}"))
}

/// Everything that is counted, for one allocator.
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

/// What ran where, and why not on the device.
fn places(rows: &[Row]) -> Grid {
    let header =
        ["query", "on the CPU because", "rows", "on device", "launches", "waits", "allocations", "allocated", "peak"];
    let mut grid = Grid::new(&header, 2);
    for row in rows {
        let mut cells = vec![row.query.clone()];
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
            None => cells.push(format!("failed: {}", row.problem.as_deref().unwrap_or("no answer"))),
        }
        cells.resize(grid.header.len(), String::new());
        grid.rows.push(cells);
    }
    grid
}

/// Sums over the queries, one line for each allocator.
fn allocators(runs: &[Vec<Row>]) -> Grid {
    let timed = runs.iter().flatten().any(|row| row.ms().is_some());
    let mut header = vec!["allocator", "equal", "launches", "waits", "allocations", "allocated", "greatest peak"];
    header.extend(if timed { &["ms in all", "ratio", "ms in the allocator", "share"][..] } else { &[] });
    let mut grid = Grid::new(&header, 1);
    let all = |rows: &[Row]| rows.iter().map(Row::ms).sum::<Option<f64>>();
    let first = runs.first().and_then(|rows| all(rows));
    for rows in runs {
        let reports = || rows.iter().filter_map(|row| row.outcome.as_ref()).map(|outcome| &outcome.report);
        let equal = rows.iter().filter(|row| row.validated == Some(true) && row.problem.is_none()).count();
        let mut cells = vec![
            allocator(rows).unwrap_or("none").to_string(),
            format!("{equal}/{}", rows.len()),
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

/// Milliseconds of each query from each allocator, and how many times those of the first.
fn times(runs: &[Vec<Row>]) -> Option<Grid> {
    let timed: Vec<&Vec<Row>> = runs.iter().filter(|rows| rows.iter().any(|row| row.ms().is_some())).collect();
    let names: Vec<String> = timed.iter().map(|rows| allocator(rows).unwrap_or("cpu").to_string()).collect();
    let (first, others) = names.split_first()?;
    let mut header = vec!["query".to_string(), format!("{first} ms"), "in allocator".to_string()];
    for name in others {
        header.extend([format!("{name} ms"), "ratio".to_string(), "in allocator".to_string()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut grid = Grid::new(&header, 1);
    let mut queries: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in timed.iter().copied().flatten() {
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
}
