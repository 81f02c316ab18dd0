//! Runs the script of a file on a session.

use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond};
use sqllogictest::{Runner, TestErrorKind, parse_with_name};
use tokio::runtime::Runtime;

use crate::database::{self, Database, Engine, LastSlot, LettersSlot};
use crate::kinds;
use crate::reader::{Kind, Record};

/// Longest time that one record may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Result of a record on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// SQLite's answer; of a statement, that it was carried out or refused as there.
    Equal,
    Answer(String),
    Error(String),
}

/// Outcome of one record.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub came: Came,
    /// Kernels ran, and no operator stayed on the CPU.
    pub alone: bool,
}

/// A session without tables, on the device of `other` if that has one.
pub fn session(device: DeviceChoice, other: Option<&Millpond>) -> Result<Millpond, String> {
    let config = SessionConfig::new().with_target_partitions(2);
    let mut builder = Millpond::builder().with_own_engine().with_config(config).with_device(device);
    if let Some(engine) = other.and_then(Millpond::engine) {
        builder = builder.with_engine(Arc::clone(engine));
    }
    builder.build().map_err(|error| error.to_string())
}

/// The outcome of each record of a script.
pub fn outcomes(name: &str, script: &[Record], session: &Millpond, runtime: &Runtime) -> Result<Vec<Outcome>, String> {
    let (last, letters) = (LastSlot::default(), LettersSlot::default());
    let mut runner = Runner::new(|| {
        let database =
            Database::new(Engine::Millpond(session.clone()), runtime.handle().clone(), PATIENCE, Arc::clone(&last));
        let database = database.with_letters(Arc::clone(&letters));
        async { Ok(database) }
    });
    runner.with_normalizer(database::normalize);
    runner.with_validator(database::validate);
    runner.run_script("control resultmode valuewise\n\nhash-threshold 8\n").map_err(|error| error.to_string())?;
    let mut outcomes = Vec::new();
    for record in script {
        *letters.lock().expect("no panic holds the lock") = match &record.kind {
            Kind::Query(query) => query.letters.chars().collect(),
            Kind::Statement { .. } => Vec::new(),
        };
        let place = format!("{name}:{}", record.line);
        let parsed = parse_with_name(&record.text(), place.as_str()).map_err(|error| format!("{place}: {error}"))?;
        let mut came = Came::Equal;
        for part in parsed {
            if let Err(error) = runner.run(part) {
                came = came_of(error.kind());
            }
        }
        let last = last.lock().expect("no panic holds the lock").take();
        let report = last.map(|last| last.report);
        let alone = report.is_some_and(|it| it.launches > 0 && it.reasons.is_empty() && it.notes.is_empty());
        outcomes.push(Outcome { came, alone });
    }
    Ok(outcomes)
}

fn came_of(error: TestErrorKind) -> Came {
    match error {
        TestErrorKind::QueryResultMismatch { actual, .. } => Came::Answer(actual),
        TestErrorKind::Fail { err, .. } => Came::Error(err.to_string()),
        TestErrorKind::Ok { .. } => Came::Answer("no error".to_string()),
        other => Came::Error(other.to_string()),
    }
}

/// A statement's failure that has a name leaves tables as they were: later differences have the same name.
pub fn kind_of(record: &Record, came: &Came) -> Option<&'static str> {
    match came {
        Came::Equal => None,
        Came::Error(error) => kinds::of_error(error).or_else(|| kinds::of_statement(&record.sql)),
        Came::Answer(_) => kinds::of_answer(record),
    }
}
