//! `millpond mem bench`: allocation strategies side by side.
//!
//! ```text
//!   loop · 16 MiB          allocate, p99    free, p99    step, p99, least    calls   waits  peak …  /cuda  /cuda_async
//!   cuda                   210 µs  350 µs   …
//! ```
//!
//! Figures  From one run on one machine: the conditions and the command are printed above them, and in the JSON.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millpond::MillpondOptions;
use millpond_memory::Strategy;
use millpond_memory::measure::{Cell, EventFigure, MeasureOptions, Measurements, Pattern, Summary, measure};
use serde_json::{Value, json};

use super::{command_line, described, described_in_words, figures, memory, open, percent, strategies};
use crate::args::{MemBenchArgs, SessionArgs};
use crate::error::{CliError, Exit};
use crate::output::Output;

/// Measures and prints.
pub(super) fn run(args: &MemBenchArgs, session: &SessionArgs, options: &MillpondOptions) -> Result<Exit, CliError> {
    let measured = MeasureOptions {
        strategies: strategies(session, &Strategy::ALL)?,
        patterns: patterns(&args.patterns)?,
        rounds: args.rounds,
        budget: Duration::from_secs(args.seconds.into()),
        seed: args.seed,
    };
    let json_to = args.json.as_deref();
    // Fail before a minute of measuring, not after it.
    let file = match json_to {
        Some(path) if path != Path::new("-") => Some(Output::open(path)?),
        _ => None,
    };
    let opened = open(options, args.seed)?;
    let device = &opened.device;
    let progress = !session.quiet && std::io::stderr().is_terminal();
    let figures = measure(device, &measured, |cell| {
        if progress {
            eprintln!("{} · {} · {}", cell.pattern, cell.case, cell.subject);
        }
    });
    let figures = figures.map_err(memory)?;
    if let Some(error) = device.take_errors().into_iter().next() {
        return Err(memory(error));
    }
    let report = json!({
        "schema": "millpond-mem-bench/1",
        "unix_time": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        "command_line": command_line(),
        "millpond": env!("CARGO_PKG_VERSION"),
        "device": described(device),
        "method": {
            "timed": figures.timed,
            "clock": "host",
            "clock_read": summary_json(figures.clock),
            "order": "interleaved",
            "warm_up_passes": 1,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "seed": args.seed,
        },
        "cells": figures.cells.iter().map(cell_json).collect::<Vec<_>>(),
        "events": figures.events.iter().map(event_json).collect::<Vec<_>>(),
    });
    match (json_to, file) {
        (_, Some(mut file)) => {
            let written = writeln!(file, "{report:#}");
            written.map_err(|error| file.failure(&error))?;
            file.commit()?;
            print(&described_in_words(device), &measured, &figures);
        }
        (Some(_), None) => println!("{report}"),
        (None, _) => print(&described_in_words(device), &measured, &figures),
    }
    drop(figures);
    let found = opened.sim.as_ref().map(|sim| sim.take_findings()).unwrap_or_default();
    if found.is_empty() {
        return Ok(Exit::Ok);
    }
    let found: Vec<String> = found.iter().map(|finding| finding.to_string()).collect();
    Err(CliError::sql(format!("the simulated device found: {}", found.join(" | "))))
}

fn patterns(names: &[String]) -> Result<Vec<Pattern>, CliError> {
    let mut found: Vec<Pattern> = Vec::new();
    for name in names {
        let more = match name.trim() {
            "all" => Pattern::ALL.to_vec(),
            name => vec![name.parse().map_err(|expected| {
                CliError::usage(format!("--pattern cannot be '{name}': it takes {expected}, or all"))
            })?],
        };
        found.extend(more.into_iter().filter(|pattern| !found.contains(pattern)).collect::<Vec<_>>());
    }
    Ok(if found.is_empty() { Pattern::ALL.to_vec() } else { found })
}

fn summary_json(summary: Option<Summary>) -> Value {
    summary.map_or(Value::Null, |s| {
        json!({
            "count": s.count,
            "min_ns": s.min_ns,
            "median_ns": s.median_ns,
            "p99_ns": s.p99_ns,
            "median_deviation_ns": s.deviation_ns,
        })
    })
}

fn cell_json(cell: &Cell) -> Value {
    json!({
        "pattern": cell.pattern.name(),
        "case": cell.case,
        "resource": cell.subject,
        "problem": cell.problem,
        "rounds": cell.rounds,
        "cut": cell.cut,
        "peak_cut": cell.peak_cut,
        "steps": cell.steps,
        "allocations": cell.allocations,
        "frees": cell.frees,
        "failures": cell.failures,
        "driver_calls": cell.driver_calls,
        "host_waits": cell.host_waits,
        "peak_used_bytes": cell.peak.used.as_u64(),
        "peak_reserved_bytes": cell.peak.reserved.as_u64(),
        "fragmentation": cell.peak.fragmentation(),
        "allocate": summary_json(cell.allocate),
        "free": summary_json(cell.free),
        "step": summary_json(cell.step),
        "round_medians_ns": cell.round_medians_ns,
        "against_cuda": cell.against_cuda,
        "against_cuda_async": cell.against_cuda_async,
    })
}

fn event_json(figure: &EventFigure) -> Value {
    json!({
        "operation": figure.operation,
        "operations": figure.operations,
        "driver_calls_per_operation": figure.driver_calls_per_operation,
        "time": summary_json(figure.time),
    })
}

fn print(device: &str, options: &MeasureOptions, figures: &Measurements) {
    println!("{device}");
    println!("{}", command_line());
    if figures.timed {
        let clock = time(figures.clock.map(|clock| clock.median_ns));
        println!(
            "time of calls on the host, reading the clock ({clock}) included · {} interleaved rounds, each warmed up · \
             per step: driver calls, host waits · / is the median step as a multiple",
            options.rounds
        );
    } else {
        println!("counts alone: the simulated device's time says nothing · / is driver calls per step as a multiple");
    }
    let mut rest = figures.cells.as_slice();
    let mut pattern = None;
    while let Some(first) = rest.first() {
        let same = |cell: &&Cell| (cell.pattern, &cell.case) == (first.pattern, &first.case);
        let (cells, others) = rest.split_at(rest.iter().take_while(same).count());
        if pattern != Some(first.pattern) {
            println!("\n{}: {}", first.pattern, first.pattern.claim());
            pattern = Some(first.pattern);
        }
        println!("\n{}", case_table(cells, figures.timed));
        for cell in cells {
            if let Some(problem) = &cell.problem {
                println!(" {}: {problem}", cell.subject);
            }
            match (cell.cut, cell.peak_cut) {
                (true, _) => println!(" {}: cut short, after {} steps in all", cell.subject, cell.steps),
                (_, true) => println!(" {}: the pass for the peak was cut short", cell.subject),
                _ => {}
            }
        }
        rest = others;
    }
    if !figures.events.is_empty() {
        println!("\n{}: {}", Pattern::Events, Pattern::Events.claim());
        println!("{}", events_table(&figures.events, figures.timed));
    }
}

fn case_table(cells: &[Cell], timed: bool) -> String {
    let case = cells.first().map_or("", |cell| cell.case.as_str());
    let mut header = vec![case, "allocs"];
    if timed {
        header.extend(["alloc", "p99", "free", "p99", "step", "p99", "least", "±"]);
    }
    header.extend(["calls", "waits", "failed", "used", "reserved", "frag.", "/cuda", "/cuda_async"]);
    let per_step = |count: Option<f64>| count.map_or("-".to_string(), |count| format!("{count:.1}"));
    let multiple = |ratio: Option<f64>| ratio.map_or("-".to_string(), |ratio| format!("{ratio:.*}", digits(ratio)));
    let rows = cells.iter().map(|cell| {
        let mut row = vec![cell.subject.clone(), cell.allocations.to_string()];
        if timed {
            row.extend([cell.allocate.map(|s| s.median_ns), cell.allocate.map(|s| s.p99_ns)].map(time));
            row.extend([cell.free.map(|s| s.median_ns), cell.free.map(|s| s.p99_ns)].map(time));
            row.extend([cell.step.map(|s| s.median_ns), cell.step.map(|s| s.p99_ns)].map(time));
            row.extend([cell.step.map(|s| s.min_ns), cell.step.map(|s| s.deviation_ns)].map(time));
        }
        row.extend([
            per_step(cell.driver_calls_per_step()),
            per_step(cell.host_waits_per_step()),
            cell.failures.to_string(),
            cell.peak.used.to_string(),
            cell.peak.reserved.to_string(),
            percent(cell.peak.fragmentation()),
            multiple(cell.against_cuda),
            multiple(cell.against_cuda_async),
        ]);
        row
    });
    figures(&header, rows.collect())
}

fn events_table(events: &[EventFigure], timed: bool) -> String {
    let mut header = vec!["operation", "operations", "driver calls"];
    if timed {
        header.extend(["median", "p99", "least"]);
    }
    let rows = events.iter().map(|figure| {
        let mut row = vec![
            figure.operation.to_string(),
            figure.operations.to_string(),
            format!("{:.2}", figure.driver_calls_per_operation),
        ];
        if timed {
            let summary = figure.time;
            row.extend([summary.map(|s| s.median_ns), summary.map(|s| s.p99_ns), summary.map(|s| s.min_ns)].map(time));
        }
        row
    });
    figures(&header, rows.collect())
}

/// Decimal places for a ratio, so that small ones stay distinguishable.
fn digits(ratio: f64) -> usize {
    if ratio < 0.1 { 4 } else { 2 }
}

/// Nanoseconds in a suitable unit.
fn time(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_string() };
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_unit_that_suits() {
        let shown = [None, Some(312), Some(31_200), Some(12_345_678), Some(31_000_000_000)].map(time);
        assert_eq!(shown, ["-", "312 ns", "31.2 µs", "12.3 ms", "31.0 s"]);
    }

    #[test]
    fn patterns_by_name_each_once() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            patterns(&names).map_err(|error| error.message)
        };
        assert_eq!(chosen(&[]), Ok(Pattern::ALL.to_vec()));
        assert_eq!(chosen(&["loop", "all"]).map(|all| all.len()), Ok(Pattern::ALL.len()));
        let expected = "sizes, events, loop, streams, random, query, threshold or reuse, or all";
        assert_eq!(chosen(&["lop"]), Err(format!("--pattern cannot be 'lop': it takes {expected}")));
    }
}
