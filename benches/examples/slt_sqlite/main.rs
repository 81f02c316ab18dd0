//! SQLite's own logic tests, on the CPU and on a device: `cargo slt-sqlite DIR [--seed S] [--records N] …`.
//!
//! ```text
//!   a checkout's files ─► drawn records ─┬─► cpu ─┬─► SQLite's answer? ─► equal · differs by a kind that has a name ·
//!                                                                         differs
//!                                        └─► sim ─┴─► the CPU's answer?
//! ```
//!
//! Counts   queries. Statements make their tables, and one that fails is listed once.
//! Oracle   the answers in the files, which SQLite gave. A digest stands for an answer of more than eight values.

#[path = "../../tests/slt/database.rs"]
mod database;
mod draw;
mod kinds;
mod reader;
mod run;
mod sample;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millpond::{DeviceChoice, Millpond};
use rayon::prelude::*;
use reader::{Kind, Record};
use run::{Came, Outcome};

const USAGE: &str = "cargo slt-sqlite DIR [--seed S] [--records N] [--devices LIST] [--threads N] [--only PART]
                     [--differences N] [--named] [--write FOLDER]
DIR is a checkout of SQLite's logic tests, of the commit that docs/sql.md names, or its folder `test`. Devices are separated by commas,
cpu,sim if not said otherwise. --only runs those of the drawn records whose files have PART in their path. --differences N prints at most N
records that differ without a name, and with --named those of all kinds.
--write runs nothing: it writes N records into FOLDER as files of `benches/tests/slt`, without those that differ by their form.
Exit code 0: every difference has a name, and all devices agree; 1: not so; 2: usage; 4: no files.";

struct Arguments {
    folder: PathBuf,
    seed: u64,
    records: usize,
    devices: Vec<DeviceChoice>,
    threads: usize,
    only: Option<String>,
    differences: usize,
    named: bool,
    write: Option<PathBuf>,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        folder: PathBuf::new(),
        seed: 1,
        records: 50_000,
        devices: vec![DeviceChoice::Cpu, DeviceChoice::Sim],
        threads: 2,
        only: None,
        differences: 50,
        named: false,
        write: None,
    };
    while let Some(name) = given.next() {
        match name.as_str() {
            "--seed" => arguments.seed = given.next()?.parse().ok()?,
            "--records" => arguments.records = given.next()?.parse().ok()?,
            "--threads" => arguments.threads = given.next()?.parse().ok().filter(|n| *n > 0)?,
            "--write" => arguments.write = Some(given.next()?.into()),
            "--named" => arguments.named = true,
            "--only" => arguments.only = Some(given.next()?),
            "--differences" => arguments.differences = given.next()?.parse().ok()?,
            "--devices" => {
                let names = given.next()?;
                let devices = names.split(',').map(|name| name.parse().ok());
                arguments.devices = devices.collect::<Option<_>>()?;
            }
            flag if flag.starts_with('-') => return None,
            folder if arguments.folder.as_os_str().is_empty() => arguments.folder = folder.into(),
            _ => return None,
        }
    }
    (!arguments.folder.as_os_str().is_empty()).then_some(arguments)
}

/// The drawn records of a file.
struct Script {
    name: String,
    records: Vec<Record>,
}

/// Draws `wanted` records from all files.
fn scripts(arguments: &Arguments, wanted: usize) -> Result<Vec<Script>, String> {
    let inner = arguments.folder.join("test");
    let folder = if inner.is_dir() { inner } else { arguments.folder.clone() };
    let files = draw::files(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let read = |path: &PathBuf| reader::read(&folder.join(path));
    let count = |path| read(path).map(|records| records.iter().filter(|record| record.is_query()).count());
    let has: Vec<usize> = files.par_iter().map(count).collect::<Result<_, _>>()?;
    let shares = draw::shares(&has, wanted);
    let wants = |path: &Path| arguments.only.as_ref().is_none_or(|part| path.to_string_lossy().contains(part));
    let all = files.par_iter().zip(has).zip(shares);
    let drawn = all.filter(|((path, _), _)| wants(path)).map(|((path, has), share)| {
        let chosen = draw::drawn(arguments.seed, path, has, share);
        let mut records = draw::script(read(path)?, &chosen);
        records.retain(|record| !kinds::is_about_an_index(&record.sql));
        Ok(Script { name: path.to_string_lossy().into_owned(), records })
    });
    let drawn: Vec<Script> = drawn.collect::<Result<_, String>>()?;
    match drawn.iter().all(|script| script.records.is_empty()) {
        true => Err(format!("no such file of {} has a query", folder.display())),
        false => Ok(drawn),
    }
}

/// Counts of one device.
#[derive(Debug, Default)]
struct Counts {
    queries: usize,
    equal: usize,
    alone: usize,
    named: BTreeMap<&'static str, usize>,
    unnamed: usize,
    time: Duration,
}

/// Results of all files.
#[derive(Debug, Default)]
struct Results {
    counts: Vec<Counts>,
    statements: BTreeMap<String, usize>,
    /// Records that differ without a name, on whichever device.
    differences: Vec<String>,
    /// Also print differences that have a named kind.
    tells_named: bool,
    /// Records about which the devices disagree.
    disagreements: Vec<String>,
}

impl Results {
    fn add(&mut self, script: &Script, outcomes: &[Vec<Outcome>], times: &[Duration]) {
        self.counts.resize_with(outcomes.len(), Counts::default);
        for (device, (outcomes, time)) in outcomes.iter().zip(times).enumerate() {
            self.counts[device].time += *time;
            self.add_device(device, script, outcomes);
        }
        for (index, record) in script.records.iter().enumerate() {
            let all: Vec<&Came> = outcomes.iter().map(|device| &device[index].came).collect();
            if all.windows(2).any(|pair| !alike(pair[0], pair[1])) {
                let came: Vec<String> = all.iter().map(|came| format!("{came:?}")).collect();
                self.disagreements.push(format!("{}\n{}", place(script, record), came.join("\n")));
            }
        }
    }

    fn add_device(&mut self, device: usize, script: &Script, outcomes: &[Outcome]) {
        let mut lost = None;
        for (record, outcome) in script.records.iter().zip(outcomes) {
            let equal = outcome.came == Came::Equal;
            let own = run::kind_of(record, &outcome.came);
            let Kind::Query(query) = &record.kind else {
                if !equal {
                    // Later queries do not see the effects of a failed statement.
                    lost = own.or(lost);
                    let name = own.map_or_else(|| format!("{}: {:?}", record.sql, outcome.came), str::to_string);
                    *self.statements.entry(name).or_default() += 1;
                }
                continue;
            };
            let counts = &mut self.counts[device];
            counts.queries += 1;
            counts.equal += usize::from(equal);
            counts.alone += usize::from(outcome.alone);
            if equal {
                continue;
            }
            let kind = own.or(lost);
            match kind {
                Some(kind) => *counts.named.entry(kind).or_default() += 1,
                None => counts.unnamed += 1,
            }
            if kind.is_none() || self.tells_named {
                let (name, answer, came) = (kind.unwrap_or("without a name"), query.answer.join(" "), &outcome.came);
                let place = place(script, record);
                self.differences.push(format!("{name}: {place}\nSQLite: {answer}\ndevice {device}: {came:?}"));
            }
        }
    }
}

/// True for equal outcomes; error messages may differ.
fn alike(left: &Came, right: &Came) -> bool {
    left == right || matches!((left, right), (Came::Error(_), Came::Error(_)))
}

fn place(script: &Script, record: &Record) -> String {
    format!("{}:{}\n{}", script.name, record.line, record.sql)
}

/// Runs scripts on every device, those of a file one after the other.
fn run_all(arguments: &Arguments, scripts: Vec<Script>) -> Result<Results, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let results = Results { tells_named: arguments.named, ..Results::default() };
    let (waiting, results) = (Mutex::new(VecDeque::from(scripts)), Mutex::new(results));
    let worker = || -> Result<(), String> {
        // A device for each thread: what stays in its pool is the record's own.
        let device = |device: &DeviceChoice| Ok((*device, run::session(*device, None)?));
        let devices: Vec<(DeviceChoice, Millpond)> =
            arguments.devices.iter().map(device).collect::<Result<_, String>>()?;
        loop {
            let Some(script) = waiting.lock().expect("no panic holds the lock").pop_front() else { return Ok(()) };
            let (mut all, mut times) = (Vec::new(), Vec::new());
            for (choice, device) in &devices {
                let begun = Instant::now();
                let session = run::session(*choice, Some(device))?;
                all.push(run::outcomes(&script.name, &script.records, &session, &runtime)?);
                times.push(begun.elapsed());
            }
            let spent: Vec<String> = times.iter().map(|time| format!("{:.1} s", time.as_secs_f64())).collect();
            println!("{}: {} records, {}", script.name, script.records.len(), spent.join(", "));
            let mut results = results.lock().expect("no panic holds the lock");
            let (differences, disagreements) = (results.differences.len(), results.disagreements.len());
            results.add(&script, &all, &times);
            let disagreements = results.disagreements.iter().enumerate().skip(disagreements);
            let disagreements = disagreements.map(|(number, text)| (number, "DISAGREE", text));
            let differences = results.differences.iter().enumerate().skip(differences);
            let differences = differences.map(|(number, text)| (number, "DIFFERS", text));
            for (_, word, text) in
                disagreements.chain(differences).filter(|(number, ..)| *number < arguments.differences)
            {
                println!("{word} {text}\n");
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    Ok(results.into_inner().expect("the threads have ended"))
}

fn report(arguments: &Arguments, results: &Results) {
    println!("\nseed {}: statements that fail, on all devices together", arguments.seed);
    for (name, times) in &results.statements {
        println!("{times:8}  {name}");
    }
    for (device, counts) in arguments.devices.iter().zip(&results.counts) {
        let Counts { queries, equal, alone, unnamed, .. } = counts;
        println!(
            "\n{device}: {queries} queries, {equal} with SQLite's answer, {alone} on the device alone, {:.0} s",
            counts.time.as_secs_f64()
        );
        for (kind, times) in &counts.named {
            println!("{times:8}  differ by {kind}");
        }
        println!("{unnamed:8}  differ without a name");
    }
    println!("\n{} records about which devices disagree", results.disagreements.len());
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let good = match &arguments.write {
        Some(folder) => write(&arguments, folder).map(|()| true),
        None => {
            scripts(&arguments, arguments.records).and_then(|scripts| run_all(&arguments, scripts)).map(|results| {
                report(&arguments, &results);
                results.disagreements.is_empty() && results.counts.iter().all(|counts| counts.unnamed == 0)
            })
        }
    };
    match good {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(4)
        }
    }
}

/// Writes a sample.
fn write(arguments: &Arguments, folder: &Path) -> Result<(), String> {
    // The rule leaves records out, so more of them are drawn.
    let drawn = scripts(arguments, arguments.records.saturating_mul(2))?;
    let written = sample::write(folder, &drawn, arguments.records)?;
    println!("{written} records of seed {} in {}", arguments.seed, folder.display());
    Ok(())
}
