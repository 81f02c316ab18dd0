//! Conditions of a suite's run, which two reports must share before their figures are compared.
//!
//! ```text
//!   of the run       suite · data, with its manifest · commit · host · command
//!   of each session  device · settings that differ from the defaults · limit of its pool in bytes
//! ```
//!
//! JSON   Every line contains all conditions, and the time when its query finished.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use millpond::datafusion::arrow::array::TimestampMillisecondArray;
use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::datafusion::config::ExtensionOptions;
use millpond::{Millpond, MillpondOptions};
use millpond_queries::Suite;
use serde_json::{Map, Value, json};

use crate::args::{RunArgs, SessionArgs};
use crate::manifest::{self, Manifest};
use crate::version::COMMIT;

/// Conditions shared by all sessions of a run.
pub(super) struct Conditions {
    pub suite: String,
    pub title: String,
    /// The path as given on the command line.
    pub data: String,
    pub manifest: Option<Manifest>,
    pub host: String,
    pub cores: usize,
    /// `--param` and `--vary` as given.
    pub arguments: Vec<String>,
    pub command: String,
    pub began: String,
}

/// Conditions of one session, which has its own allocator.
pub(super) struct Lane {
    /// The device's name, or `cpu`.
    pub device: String,
    pub is_simulated: bool,
    /// The strategy of device memory; `None` without a device.
    pub allocator: Option<&'static str>,
    /// Limit of its pool in bytes.
    pub pool_limit_bytes: Option<u64>,
    /// Options that differ from their defaults.
    pub settings: BTreeMap<String, String>,
}

impl Conditions {
    pub fn new(suite: &Suite, args: &RunArgs, manifest: Option<Manifest>) -> Self {
        let parameters = args.parameters.iter().map(|parameter| format!("--param {parameter}"));
        Self {
            suite: suite.name.clone(),
            title: suite.title.clone(),
            data: args.data.display().to_string(),
            manifest,
            host: host(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            arguments: parameters.chain(args.vary.map(|seed| format!("--vary {seed}"))).collect(),
            command: command(std::env::args()),
            began: now(),
        }
    }

    /// The data in words: the folder, and its manifest's settings.
    pub fn data_in_words(&self) -> String {
        match &self.manifest {
            Some(manifest) => format!("{} ({manifest})", self.data),
            None => format!("{} (of unknown scale: it has no {})", self.data, manifest::NAME),
        }
    }

    /// The fields that conditions add to a query's line of JSON.
    pub fn json(&self, lane: &Lane) -> Map<String, Value> {
        let fields = json!({
            "suite": self.suite,
            "data": self.data,
            "scale": self.manifest.as_ref().map(|manifest| manifest.scale),
            "seed": self.manifest.as_ref().and_then(|manifest| manifest.seed),
            "commit": COMMIT,
            "host": self.host,
            "cores": self.cores,
            "arguments": self.arguments,
            "device": lane.device,
            "pool_limit_bytes": lane.pool_limit_bytes,
            "settings": lane.settings,
            "time": now(),
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

impl Lane {
    pub fn of(session: &Millpond, args: &SessionArgs) -> Self {
        let engine = session.engine();
        let allocator = engine.map(|engine| engine.memory_resource().name());
        Self {
            device: engine.map_or("cpu".to_string(), |engine| engine.name().to_string()),
            is_simulated: engine.is_some_and(|engine| engine.is_simulated()),
            allocator,
            pool_limit_bytes: engine.map(|engine| engine.pool().limit().as_u64()),
            settings: settings(session, args, allocator),
        }
    }
}

/// Options of Millpond that differ from their defaults, options of DataFusion set by `--set`, and the allocator.
fn settings(session: &Millpond, args: &SessionArgs, allocator: Option<&str>) -> BTreeMap<String, String> {
    let entries = |options: &MillpondOptions| {
        let entries = options.entries().into_iter();
        entries.map(|entry| (entry.key, entry.value.unwrap_or_default())).collect::<BTreeMap<_, _>>()
    };
    let defaults = entries(&MillpondOptions::default());
    let config = session.context().copied_config();
    let here = config.options().extensions.get::<MillpondOptions>().map(entries).unwrap_or_default();
    let given = args.set.iter().filter_map(|setting| setting.split_once('='));
    let given = given.map(|(key, value)| (key.trim().to_string(), value.trim().to_string()));
    let mut settings: BTreeMap<String, String> = given.filter(|(key, _)| key.starts_with("datafusion.")).collect();
    settings.extend(here.into_iter().filter(|(key, value)| defaults.get(key) != Some(value)));
    settings.extend(allocator.map(|name| ("millpond.memory_resource".to_string(), name.to_string())));
    settings
}

/// Tables of the suite that are in the folder but not in its manifest, so their scale is unknown.
pub(super) fn strangers(suite: &Suite, data: &Path, manifest: &Manifest) -> Vec<String> {
    let is_there =
        |table: &&String| data.join(format!("{table}.parquet")).exists() || data.join(table.as_str()).is_dir();
    let unknown = suite.tables.iter().flatten().filter(|table| !manifest.tables.contains(*table));
    unknown.filter(is_there).cloned().collect()
}

/// The current time in UTC, by RFC 3339.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    rfc3339(i64::try_from(since).unwrap_or(i64::MAX))
}

fn rfc3339(milliseconds: i64) -> String {
    let time = TimestampMillisecondArray::from(vec![milliseconds]).with_timezone("+00:00");
    array_value_to_string(&time, 0).unwrap_or_default()
}

/// The name of this machine.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_string(),
        name => name.to_string(),
    }
}

/// A command as typed, with the program's name instead of its path.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = arguments.map(|argument| quoted(&argument)).collect();
    if let Some(program) = words.first_mut() {
        *program = "millpond".to_string();
    }
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_utc_and_commands_can_be_typed_again() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_764_299_846_250), "2025-11-28T03:17:26.250Z");
        let typed = ["/usr/bin/millpond", "run", "my suite", "--param", "a='x'"].map(String::from);
        assert_eq!(command(typed.into_iter()), r"millpond run 'my suite' --param 'a='\''x'\'''");
    }
}
