//! `millpond soak`: many sessions on one device, for a given time, with a verdict.
//!
//! ```text
//!   simulated device, 8 sessions at a time for 600 s: 9,214 statements, 61 sessions opened
//!     equal 8,102   fail alike 212   one side fails 88   cancelled 498   made tables 530   set options 790
//!   figure                       middle third     last third   may gain
//!   resident bytes                  812.0 MiB      815.2 MiB     64.0 MiB   flat
//!   descriptors                            41             41            2   flat
//!   good: all answers are DataFusion's, nothing grows, nothing is left
//! ```
//!
//! Judged   By `millpond_bench::soak`. Figures without a bound are caches, which are bounded elsewhere.
//! Data     Each folder is used for the suite whose tables it contains.
//! Ctrl-C   Ends it early: the results so far are judged and reported, with exit 130 if they are good.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond::DeviceChoice;
use millpond::datafusion::error::DataFusionError;
use millpond::device::Engine;
use millpond_bench::soak::judge::{LEAST_SEEN, Trend};
use millpond_bench::soak::sighting::{FIGURES, Sighting};
use millpond_bench::soak::workload::Source;
use millpond_bench::soak::{self, Options, Report};
use millpond_queries::Suite;
use serde_json::{Value, json};

use crate::args::{SessionArgs, SoakArgs};
use crate::error::{CliError, Exit, tell};
use crate::interrupt::{Ending, Interrupts};
use crate::query::bytes;
use crate::session;

/// Runs the sessions; `Ok` carries exit 1 if something differed, grew or was left, and 130 if the user ended it.
///
/// # Errors
/// Exit 2 for an unknown suite or a flag of statements, 3 without a device, 4 for missing tables.
pub async fn run(args: &SoakArgs, session: &SessionArgs) -> Result<Exit, CliError> {
    let sources = sources(args)?;
    let mut millpond = session::builder(session)?.options().clone();
    if millpond.device == DeviceChoice::Sim && millpond.debug_sim_seed == 0 {
        // Each seed gives another order of streams, blocks and warps.
        millpond.debug_sim_seed = usize::try_from(args.seed).unwrap_or(usize::MAX);
    }
    let opened = Engine::open(&millpond)?;
    let Some(engine) = opened.engine else {
        let reason = opened.note.unwrap_or_else(|| "the CPU has no device memory".to_string());
        let reason = reason.trim_end_matches('.');
        let message = format!("there is no device to soak: {reason}; use --device sim for the simulated device");
        return Err(CliError { exit: Exit::Device, message });
    };
    let options = Options {
        millpond,
        seconds: args.seconds,
        sessions: args.sessions as usize,
        seed: args.seed,
        sources,
        every: Options::every_of(args.seconds),
    };
    let bar = bar(args.seconds, session.quiet);
    let stop = Interrupts::listen()?.flag();
    if !session.quiet {
        let (sessions, seconds) = (args.sessions, args.seconds);
        tell(format_args!("soaking {} with {sessions} sessions at a time for {seconds} s", engine.name()));
    }
    let ran = soak::run(options, engine, stop, |seen| progress(&bar, seen)).await;
    bar.finish_and_clear();
    let report = ran.map_err(|error| not_begun(&error))?;
    if args.json {
        println!("{}", as_json(args, &report));
    } else {
        print(args, &report);
    }
    Ok(match (report.wrong().is_empty(), report.interrupted) {
        (false, _) => Exit::Sql,
        (true, true) => Ending::first().exit(),
        (true, false) => Exit::Ok,
    })
}

fn not_begun(error: &DataFusionError) -> CliError {
    match error {
        // The suite's tables are missing; the runner's message names them.
        DataFusionError::External(_) => CliError::file(error.strip_backtrace()),
        _ => CliError::from_datafusion(error),
    }
}

/// Suites with their own tables.
const WITH_TABLES: [&str; 2] = ["tpch", "gpu-bdb"];

/// The requested suites with their data; by default random queries, and the suites whose tables the folders contain.
fn sources(args: &SoakArgs) -> Result<Vec<Source>, CliError> {
    let opened = |name: &str| Suite::open(name).map_err(|error| CliError::usage(error.to_string()));
    let seed = args.seed;
    let mut sources = Vec::new();
    if args.suites.is_empty() {
        sources.push(Source::Random { seed });
        for data in &args.data {
            let mut fitting = None;
            for name in WITH_TABLES {
                let suite = opened(name)?;
                fitting = fitting.or(has_tables(data, &suite).then_some(suite));
            }
            let suite = fitting.map(Box::new).ok_or_else(|| {
                CliError::file(format!("{} has the tables of neither tpch nor gpu-bdb", data.display()))
            })?;
            sources.push(Source::Suite { suite, data: data.clone(), seed });
        }
        return Ok(sources);
    }
    for name in &args.suites {
        if name == "random" {
            sources.push(Source::Random { seed });
            continue;
        }
        let suite = Box::new(opened(name)?);
        let fitting: Vec<&PathBuf> = args.data.iter().filter(|data| has_tables(data, &suite)).collect();
        let data = match (fitting.first(), args.data.as_slice()) {
            (Some(data), _) => (*data).clone(),
            // Opening the suite reports the missing table.
            (None, [only]) => only.clone(),
            _ => return Err(CliError::usage(format!("suite {name} needs the folder of its tables: --data DIR"))),
        };
        sources.push(Source::Suite { suite, data, seed });
    }
    Ok(sources)
}

fn has_tables(data: &Path, suite: &Suite) -> bool {
    let there = |table: &String| data.join(format!("{table}.parquet")).exists() || data.join(table).is_dir();
    suite.tables.as_ref().is_some_and(|tables| tables.iter().all(there))
}

/// A bar with the remaining time, on a terminal.
fn bar(seconds: u64, quiet: bool) -> ProgressBar {
    let show = !quiet && std::io::stderr().is_terminal();
    let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(Some(seconds), target)
        .with_style(ProgressStyle::with_template("{pos}/{len} s  {msg}").expect("the template is well formed"))
}

fn progress(bar: &ProgressBar, seen: &Sighting) {
    bar.set_position(seen.at_ms / 1000);
    bar.set_message(format!(
        "{} statements, {} findings, {} resident, {} on the device, {} descriptors, {} threads",
        seen.statements,
        seen.findings,
        bytes(seen.resident_bytes),
        bytes(seen.memory.used_bytes),
        seen.descriptors,
        seen.threads
    ));
}

/// A figure with its unit.
fn figure(name: &str, value: f64) -> String {
    if name.contains("bytes") { bytes(value.max(0.0) as u64) } else { format!("{value:.0}") }
}

fn print(args: &SoakArgs, report: &Report) {
    let tally = &report.tally;
    println!(
        "{}, {} sessions at a time for {:.0} s: {} statements, {} sessions opened (--seed {:#x})",
        report.device,
        args.sessions,
        report.seconds,
        tally.statements(),
        tally.sessions,
        args.seed
    );
    println!(
        "  equal {}   fail alike {}   one side fails {}   cancelled {}   made tables {}   set options {}",
        tally.same, tally.both_fail, tally.one_fails, tally.cancelled, tally.made, tally.set
    );
    println!("  on the device {}", tally.on_device);
    report.notes.iter().for_each(|(note, times)| println!("  note {times} × {note}"));
    println!("{:26} {:>14} {:>14} {:>12}", "figure", "middle third", "last third", "may gain");
    for ((name, trend), (_, of, _)) in report.trends.iter().zip(FIGURES) {
        let [middle, last, bound, word] = match trend {
            Some(Trend::Flat { middle, last, bound }) => told(name, *middle, *last, *bound, "flat"),
            Some(Trend::Grows { middle, last, bound }) => told(name, *middle, *last, *bound, "GROWS"),
            Some(Trend::Unknown) => [figure(name, now(report, of)), String::new(), String::new(), "too short".into()],
            None => [figure(name, now(report, of)), String::new(), String::new(), "not judged".into()],
        };
        println!("{name:26} {middle:>14} {last:>14} {bound:>12}   {word}");
    }
    for failure in &report.failures {
        println!(
            "\nFAILED  {} · session {} · statement {}\n  {}\n  {}",
            failure.workload, failure.session, failure.statement, failure.what, failure.text
        );
        failure.settings.iter().for_each(|setting| println!("  SET {setting}"));
    }
    let wrong = report.wrong();
    if wrong.is_empty() {
        println!("good: all answers are DataFusion's, nothing grows, nothing is left");
    }
    wrong.iter().for_each(|wrong| println!("WRONG   {wrong}"));
    if report.seen.len() <= LEAST_SEEN {
        tell(format_args!("note: too short to judge growth: {LEAST_SEEN} sightings are needed"));
    }
}

fn told(name: &str, middle: f64, last: f64, bound: f64, word: &str) -> [String; 4] {
    [figure(name, middle), figure(name, last), figure(name, bound), word.to_string()]
}

/// A value from the second-to-last sighting, the last one while sessions ran.
fn now(report: &Report, of: fn(&Sighting) -> u64) -> f64 {
    let last = report.seen.len().saturating_sub(2);
    report.seen.get(last).map_or(0.0, |seen| of(seen) as f64)
}

fn as_json(args: &SoakArgs, report: &Report) -> Value {
    let tally = &report.tally;
    let trend = |trend: &Option<Trend>| match trend {
        Some(Trend::Flat { middle, last, bound }) => json!([middle, last, bound, "flat"]),
        Some(Trend::Grows { middle, last, bound }) => json!([middle, last, bound, "grows"]),
        Some(Trend::Unknown) => json!("unknown"),
        None => Value::Null,
    };
    let seen = report.seen.iter().map(|seen| {
        let figures = FIGURES.iter().map(|(name, of, _)| (name.replace(' ', "_"), json!(of(seen))));
        let whole = [("at_ms", seen.at_ms), ("statements", seen.statements), ("findings", seen.findings)];
        let whole = whole.into_iter().map(|(name, value)| (name.to_string(), json!(value)));
        Value::Object(whole.chain(figures).collect())
    });
    let failures = report.failures.iter().map(|failure| {
        json!({
            "workload": failure.workload, "session": failure.session, "statement": failure.statement,
            "settings": failure.settings, "text": failure.text, "what": failure.what,
        })
    });
    json!({
        "device": report.device, "seed": args.seed, "sessions": args.sessions, "seconds": report.seconds,
        "interrupted": report.interrupted, "good": report.wrong().is_empty(), "wrong": report.wrong(),
        "statements": tally.statements(), "equal": tally.same, "fail_alike": tally.both_fail,
        "one_side_fails": tally.one_fails, "cancelled": tally.cancelled, "made_tables": tally.made,
        "set_options": tally.set, "sessions_opened": tally.sessions, "on_device": tally.on_device,
        "notes": report.notes, "findings": tally.findings, "failed": tally.failures,
        "trends": report.trends.iter().map(|(name, of)| (name.replace(' ', "_"), trend(of))).collect::<serde_json::Map<_, _>>(),
        "failures": failures.collect::<Vec<_>>(), "seen": seen.collect::<Vec<_>>(),
    })
}
