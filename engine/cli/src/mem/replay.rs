//! `millpond mem replay`: replays an allocation log with any strategy.
//!
//! ```text
//!   298 lines, 4 streams, with the order between them
//!   resource     allocations  failures  frees  uses  waits  driver calls  …  peak reserved  fragmentation  findings
//! ```
//!
//! Time      Never printed: a replay's time differs from the query's.
//! Findings  Findings of the simulated device are an error, as are failed allocations. The report is printed first.

use std::fs::File;
use std::io::BufReader;

use millpond::MillpondOptions;
use millpond_memory::log::LogFile;
use millpond_memory::replay::{Player, ReplayReport};
use millpond_memory::{Device, Strategy};
use serde_json::{Value, json};

use super::{command_line, described, described_in_words, figures, memory, open, percent, strategies};
use crate::args::{MemReplayArgs, SessionArgs};
use crate::error::{CliError, Exit};

/// Replays the log with each strategy, each on a new device.
pub(super) fn run(args: &MemReplayArgs, session: &SessionArgs, options: &MillpondOptions) -> Result<Exit, CliError> {
    let strategies = strategies(session, &[options.memory_resource])?;
    let path = args.log.display();
    let file = File::open(&args.log).map_err(|error| CliError::file(format!("cannot read '{path}': {error}")))?;
    let log = LogFile::read(BufReader::new(file)).map_err(|error| CliError::file(format!("'{path}': {error}")))?;
    let mut replays = Vec::new();
    for strategy in strategies {
        replays.push(replay(&log, strategy, args, options)?);
    }
    if args.json {
        let device = replays.first().map(|replay| replay.device.clone());
        let report = json!({
            "schema": "millpond-mem-replay/1",
            "command_line": command_line(),
            "millpond": env!("CARGO_PKG_VERSION"),
            "device": device,
            "seed": args.seed,
            "log": { "path": path.to_string(), "lines": log.records.len(), "ordered": log.ordered },
            "replays": replays.iter().map(Replay::json).collect::<Vec<_>>(),
        });
        println!("{report}");
    } else {
        print(&log, &replays);
    }
    let findings: Vec<&str> = replays.iter().flat_map(|replay| &replay.findings).map(String::as_str).collect();
    if !findings.is_empty() {
        return Err(CliError::sql(format!("the simulated device found: {}", findings.join(" | "))));
    }
    let failures: u64 = replays.iter().map(|replay| replay.report.failures).sum();
    if failures > 0 {
        let what = "allocations found no memory, and what the log does with them was left out";
        return Err(CliError::sql(format!(
            "{failures} {what}: replay it on a device with more, or with another --allocator"
        )));
    }
    Ok(Exit::Ok)
}

struct Replay {
    strategy: Strategy,
    device: Value,
    device_words: String,
    report: ReplayReport,
    findings: Vec<String>,
}

fn replay(
    log: &LogFile,
    strategy: Strategy,
    args: &MemReplayArgs,
    options: &MillpondOptions,
) -> Result<Replay, CliError> {
    let opened = open(options, args.seed)?;
    let device: &Device = &opened.device;
    let resource = strategy.create(device).map_err(memory)?;
    let mut player = Player::new(device);
    let report = player.play(log, &resource).map_err(memory)?;
    drop((player, resource));
    device.synchronize().map_err(memory)?;
    // Errors of drops, which could not return them.
    if let Some(error) = device.take_errors().into_iter().next() {
        return Err(memory(error));
    }
    let findings = opened.sim.as_ref().map(|sim| sim.take_findings()).unwrap_or_default();
    Ok(Replay {
        strategy,
        device: described(device),
        device_words: described_in_words(device),
        report,
        findings: findings.iter().map(|finding| finding.to_string()).collect(),
    })
}

impl Replay {
    fn json(&self) -> Value {
        let r = &self.report;
        json!({
            "resource": self.strategy.name(),
            "streams": r.streams,
            "device_streams": r.device_streams,
            "allocations": r.allocations,
            "retries": r.retries,
            "failures": r.failures,
            "frees": r.frees,
            "uses": r.uses,
            "waits": r.waits,
            "records": r.records,
            "syncs": r.syncs,
            "trims": r.trims,
            "told": r.told,
            "skipped": r.skipped,
            "left_allocations": r.left_allocations,
            "left_bytes": r.left_bytes.as_u64(),
            "driver_calls": r.driver_calls,
            "host_waits": r.host_waits,
            "waits_inserted": r.waits_inserted,
            "waits_elided": r.waits_elided,
            "peak_asked_bytes": r.asked_peak.as_u64(),
            "peak_used_bytes": r.peak.used.as_u64(),
            "peak_reserved_bytes": r.peak.reserved.as_u64(),
            "fragmentation": r.peak.fragmentation(),
            "findings": self.findings,
        })
    }

    fn row(&self) -> Vec<String> {
        let r = &self.report;
        vec![
            self.strategy.to_string(),
            r.allocations.to_string(),
            r.failures.to_string(),
            r.frees.to_string(),
            r.uses.to_string(),
            r.waits.to_string(),
            r.syncs.to_string(),
            r.driver_calls.to_string(),
            r.host_waits.to_string(),
            r.asked_peak.to_string(),
            r.peak.used.to_string(),
            r.peak.reserved.to_string(),
            percent(r.peak.fragmentation()),
            self.findings.len().to_string(),
        ]
    }
}

fn print(log: &LogFile, replays: &[Replay]) {
    let Some(first) = replays.first() else { return };
    println!("{}", first.device_words);
    let order = match log.ordered {
        true => "with the order between them",
        false => "without an order between them: frees are ordered behind their allocations",
    };
    println!("{} lines, {} streams, {order}", log.records.len(), first.report.streams);
    if first.report.device_streams < first.report.streams {
        let streams = first.report.device_streams;
        println!(
            "played on {streams} streams of the device: several of the log share one, and are ordered more than the log says"
        );
    }
    let header = [
        "resource",
        "allocations",
        "failures",
        "frees",
        "uses",
        "waits",
        "syncs",
        "driver calls",
        "host waits",
        "peak asked",
        "peak used",
        "peak reserved",
        "fragmentation",
        "findings",
    ];
    println!("{}", figures(&header, replays.iter().map(Replay::row).collect()));
    let r = &first.report;
    if r.skipped > 0 {
        println!("{} lines are about allocations that are not in the log, failed, or have no bytes", r.skipped);
    }
    if r.left_allocations > 0 {
        println!("{} allocations of {} are never freed in the log", r.left_allocations, r.left_bytes);
    }
    if r.told > 0 {
        println!("{} lines tell of failures and spills of the program, which are not made again", r.told);
    }
}
