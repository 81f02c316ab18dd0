//! `--trace FILE`: the time of queries as trace events for Perfetto (ui.perfetto.dev) or chrome://tracing.
//!
//! ```text
//!   host     queries · runs · feeders · readers · compilers     each path, with its successive steps
//!   device   stream 0 · stream 1 …                              launches, copies and fills, by the device's clock
//!   calls    launches · copies · allocations · waits            requests of the host, and the time each call took
//! ```
//!
//! Tracks   Events that overlap are put on separate tracks ("readers 2"), since events on one track must nest.
//! Times    Microseconds since tracing began. The simulated device has no clock: its work is shown at submission time,
//!          with its counts of sectors and instructions.
//! File     As with `-o`, the old file stays until the end. Only a new or empty file, or an earlier trace, is replaced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use millpond::profile::{Recording, Work, WorkKind};
use millpond::{Profile, Profiler};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::{Output, lower};

/// Groups of tracks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Host = 1,
    Device = 2,
    Calls = 3,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Device => "device",
            Place::Calls => "calls",
        }
    }
}

/// Tracks with one name, and the end of the last event on each.
struct Tracks {
    first: u32,
    taken_until_ns: Vec<u64>,
}

/// Range of track numbers reserved for each name.
const TRACKS_OF_A_NAME: u32 = 10_000;

/// First line of every trace.
const FIRST_LINE: &str = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";

/// The events of a program's queries.
pub struct Trace {
    path: PathBuf,
    output: Output,
    began: Instant,
    events: Vec<Value>,
    tracks: BTreeMap<(Place, String), Tracks>,
}

/// A query that is being traced.
pub struct Traced {
    pub profiler: Profiler,
    began_ns: u64,
}

impl Trace {
    /// Begins to trace into the file at `path`. Changes no existing data. Waits while a pipe has no reader.
    ///
    /// # Errors
    /// Exit 4 if it cannot be written, detected before a long query runs; 2 for a file with other content.
    pub fn begin(path: &Path) -> Result<Self, CliError> {
        refuse_other_files(path)?;
        let output = Output::open(path).map_err(of_trace)?;
        let path = path.to_path_buf();
        Ok(Trace { path, output, began: Instant::now(), events: Vec::new(), tracks: BTreeMap::new() })
    }

    /// The path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The trace's output.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Begins a query.
    pub fn query(&self, name: &str) -> Traced {
        Traced { began_ns: self.began.elapsed().as_nanos() as u64, profiler: Profiler::begin(name) }
    }

    /// Adds a query's events.
    pub fn add(&mut self, query: &Traced, profile: &Profile) {
        let zero = query.began_ns;
        let recording = &profile.recording;
        let mut order: Vec<usize> = (0..recording.paths.len()).collect();
        order.sort_by_key(|index| recording.paths[*index].began_ns);
        for index in order {
            let path = &recording.paths[index];
            let name = match path.kind {
                "query" => "queries".to_string(),
                kind => format!("{kind}s"),
            };
            let track = self.track(Place::Host, &name, zero + path.began_ns, zero + path.ended_ns);
            let args = json!({ "parent": path.parent.map(|parent| recording.paths[parent as usize].name.clone()) });
            self.event(Place::Host, track, &path.name, path.kind, zero, (path.began_ns, path.ended_ns), args);
            for (step, from, to) in recording.pieces(index as u32) {
                self.event(Place::Host, track, step, "step", zero, (from, to), json!({}));
            }
        }
        let mut work: Vec<&Work> = recording.work.iter().collect();
        work.sort_by_key(|work| work.began_ns);
        for work in &work {
            self.call(recording, work, zero);
        }
        work.sort_by_key(|work| device_span(work).0);
        for work in work {
            self.on_device(recording, work, zero);
        }
    }

    fn call(&mut self, recording: &Recording, work: &Work, zero: u64) {
        let (track, name) = match &work.kind {
            WorkKind::Launch(launch) => ("launches", launch.kernel.to_string()),
            WorkKind::Upload => ("copies", "upload".to_string()),
            WorkKind::Download => ("copies", "download".to_string()),
            WorkKind::Copy => ("copies", "copy".to_string()),
            WorkKind::Fill => ("copies", "fill".to_string()),
            WorkKind::Allocate => ("allocations", "allocate".to_string()),
            WorkKind::Free => ("allocations", "free".to_string()),
            WorkKind::Wait => ("waits", "wait".to_string()),
        };
        let number = self.track(Place::Calls, track, zero + work.began_ns, zero + work.ended_ns);
        let args = args(recording, work);
        self.event(Place::Calls, number, &name, track, zero, (work.began_ns, work.ended_ns), args);
    }

    fn on_device(&mut self, recording: &Recording, work: &Work, zero: u64) {
        let (name, category) = match &work.kind {
            WorkKind::Launch(launch) => (launch.kernel.to_string(), "launch"),
            WorkKind::Upload => ("upload".to_string(), "copy"),
            WorkKind::Download => ("download".to_string(), "copy"),
            WorkKind::Copy => ("copy".to_string(), "copy"),
            WorkKind::Fill => ("fill".to_string(), "copy"),
            WorkKind::Allocate | WorkKind::Free | WorkKind::Wait => return,
        };
        let (from, to) = device_span(work);
        let number = self.track(Place::Device, &format!("stream {}", work.stream), zero + from, zero + to);
        let args = args(recording, work);
        self.event(Place::Device, number, &name, category, zero, (from, to), args);
    }

    /// A track with that name that is free at time `from`. Events of one name must be added in the order in which they
    /// begin.
    fn track(&mut self, place: Place, name: &str, from: u64, to: u64) -> u32 {
        let first = (self.tracks.len() as u32 + 1) * TRACKS_OF_A_NAME;
        let tracks = self
            .tracks
            .entry((place, name.to_string()))
            .or_insert_with(|| Tracks { first, taken_until_ns: Vec::new() });
        let free = tracks.taken_until_ns.iter().position(|until| *until <= from);
        let index = free.unwrap_or_else(|| {
            tracks.taken_until_ns.push(0);
            tracks.taken_until_ns.len() - 1
        });
        tracks.taken_until_ns[index] = to;
        tracks.first + index as u32
    }

    #[expect(clippy::too_many_arguments, reason = "an event is all of these")]
    fn event(
        &mut self,
        place: Place,
        track: u32,
        name: &str,
        category: &str,
        zero: u64,
        (from, to): (u64, u64),
        args: Value,
    ) {
        self.events.push(json!({
            "ph": "X",
            "pid": place as u32,
            "tid": track,
            "name": name,
            "cat": category,
            "ts": micros(zero + from),
            "dur": micros(to - from),
            "args": args,
        }));
    }

    /// Writes the file, replacing an old one.
    ///
    /// # Errors
    /// Exit 4 if it cannot be written.
    pub fn write(mut self) -> Result<(), CliError> {
        let mut events = Vec::new();
        for place in [Place::Host, Place::Device, Place::Calls] {
            let args = json!({ "name": place.name() });
            events.push(json!({ "ph": "M", "pid": place as u32, "name": "process_name", "args": args }));
        }
        for ((place, name), tracks) in &self.tracks {
            for (index, _) in tracks.taken_until_ns.iter().enumerate() {
                let name = if index == 0 { name.clone() } else { format!("{name} {}", index + 1) };
                let (pid, tid) = (*place as u32, tracks.first + index as u32);
                let args = json!({ "name": name });
                events.push(json!({ "ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": args }));
            }
        }
        events.append(&mut self.events);
        let written = write_events(&mut self.output, &events);
        match written.map_err(|error| self.output.failure(&error)).and_then(|()| self.output.commit()) {
            // The reader has closed the pipe.
            Err(error) if error.is_reader_gone() => Ok(()),
            ended => ended.map_err(of_trace),
        }
    }
}

fn write_events(out: &mut impl Write, events: &[Value]) -> io::Result<()> {
    writeln!(out, "{FIRST_LINE}")?;
    let mut separator = "";
    for event in events {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
    }
    writeln!(out, "\n]}}")?;
    out.flush()
}

/// The error of an output, as an error of the trace.
fn of_trace(error: CliError) -> CliError {
    CliError { message: format!("--trace: {}", error.message), ..error }
}

/// # Errors
/// Exit 2 for a file with content other than a trace, 4 for one that cannot be read.
fn refuse_other_files(path: &Path) -> Result<(), CliError> {
    // Only non-empty regular files are read: reading a pipe would block.
    if !fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(());
    }
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FIRST_LINE.len() as u64).read_to_end(&mut first));
    read.map_err(|error| {
        let reason = lower(&error);
        CliError::file(format!("--trace: cannot tell whether '{}' is a trace: {reason}", path.display()))
    })?;
    if first == FIRST_LINE.as_bytes() {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "--trace cannot be '{}': it takes a new or empty file, or the trace of an earlier run; the file exists and is no trace: \
         name a new file, or remove this one",
        path.display()
    )))
}

/// The time of work on the device; without a clock, its submission.
fn device_span(work: &Work) -> (u64, u64) {
    work.device.map_or((work.began_ns, work.ended_ns), |device| (device.began_ns, device.began_ns + device.ns))
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn args(recording: &Recording, work: &Work) -> Value {
    let segment = work.group.map(|group| recording.groups[group as usize].clone());
    let mut args = json!({
        "segment": segment,
        "stream": work.stream,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
    });
    if let WorkKind::Launch(launch) = &work.kind {
        args["blocks"] = json!(launch.blocks);
        args["threads"] = json!(launch.threads);
        args["shared_bytes"] = json!(launch.shared_bytes);
        args["rows"] = json!(launch.rows);
        if let Some(figures) = launch.figures {
            args["warp_instructions"] = json!(figures.warp_instructions);
            args["sectors_read"] = json!(figures.sectors_read);
            args["sectors_written"] = json!(figures.sectors_written);
            args["sectors_atomic"] = json!(figures.sectors_atomic);
        }
    }
    args
}
