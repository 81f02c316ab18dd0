//! Makes a session from the command line's flags: device, options, tables.

use std::path::Path;

use millpond::datafusion::datasource::file_format::options::ArrowReadOptions;
use millpond::datafusion::execution::context::SessionContext;
use millpond::datafusion::prelude::{CsvReadOptions, JsonReadOptions, ParquetReadOptions};
use millpond::session::default_config;
use millpond::{DeviceChoice, Millpond, MillpondBuilder};

use crate::args::SessionArgs;
use crate::error::CliError;
use crate::unreadable::{missing_file, refuse_false_footer, unreadable};

/// Opens the session that `args` describe.
///
/// # Errors
/// Exit 2 for an unknown option or table form, 3 for an absent device, 4 for a file that cannot be read.
pub async fn open(args: &SessionArgs, device: Option<DeviceChoice>) -> Result<Millpond, CliError> {
    opened(builder(args)?.with_url_tables(), args, device).await
}

/// The same, without files that a query names: it reads tables that are registered.
///
/// # Errors
/// As [`open`].
pub async fn open_over_tables(args: &SessionArgs, device: Option<DeviceChoice>) -> Result<Millpond, CliError> {
    opened(builder(args)?, args, device).await
}

async fn opened(
    mut builder: MillpondBuilder,
    args: &SessionArgs,
    device: Option<DeviceChoice>,
) -> Result<Millpond, CliError> {
    if let Some(device) = device {
        builder = builder.with_device(device);
    }
    let session = builder.build()?;
    let registered = millpond_queries::functions::register(session.context());
    registered.map_err(|error| CliError::from_datafusion(&error))?;
    for table in &args.tables {
        register(session.context(), table).await?;
    }
    Ok(session)
}

/// What `args` say about a session, but for its tables.
///
/// # Errors
/// Exit 2 for an unknown option or value.
pub fn builder(args: &SessionArgs) -> Result<MillpondBuilder, CliError> {
    let mut builder = Millpond::builder().with_environment()?;
    let mut config = default_config().with_information_schema(true);
    config.options_mut().sql_parser.collect_spans = true;
    if let Some(device) = &args.device {
        builder = builder.with_option("device", device).map_err(|error| flag("--device", error))?;
    }
    if let Some(fallback) = &args.fallback {
        builder = builder.with_option("fallback", fallback).map_err(|error| flag("--fallback", error))?;
    }
    if let Some(allocator) = &args.allocator {
        builder = builder.with_option("memory_resource", allocator).map_err(|error| flag("--allocator", error))?;
    }
    if let Some(file) = &args.memory_log {
        builder = builder.with_option("memory_log", file).map_err(|error| flag("--memory-log", error))?;
    }
    for setting in &args.set {
        let (key, value) = setting.split_once('=').ok_or_else(|| {
            CliError::usage(format!("--set takes KEY=VALUE, such as millpond.batch_rows=1000, not '{setting}'"))
        })?;
        match key.trim().split_once('.') {
            Some(("millpond", name)) => builder = builder.with_option(name, value.trim())?,
            Some(("datafusion", _)) => config
                .options_mut()
                .set(key.trim(), value.trim())
                .map_err(|error| CliError::usage(format!("--set {setting}: {}", error.strip_backtrace())))?,
            _ => return Err(unknown_setting(key.trim())),
        }
    }
    Ok(builder.with_config(config))
}

/// Writes what `--memory-log` has so far.
///
/// # Errors
/// Exit 4 when it cannot be written.
pub fn finish_log(session: &Millpond) -> Result<(), CliError> {
    Ok(session.engine().map_or(Ok(()), |engine| engine.flush_memory_log())?)
}

/// The error of a flag, under its own name.
pub fn flag(name: &str, error: millpond::EngineError) -> CliError {
    match error {
        millpond::EngineError::OptionValue { value, expected, .. } => {
            CliError::usage(format!("{name} cannot be '{value}': it takes {expected}"))
        }
        other => other.into(),
    }
}

fn unknown_setting(key: &str) -> CliError {
    // A forgotten prefix is the likeliest slip.
    let with_prefix = millpond::MillpondOptions::NAMES.contains(&key);
    let hint = if with_prefix {
        format!("; did you mean millpond.{key}?")
    } else {
        "; options begin with millpond. or datafusion. (SHOW ALL lists them)".to_string()
    };
    CliError::usage(format!("there is no option {key}{hint}"))
}

/// Registers `name=path`.
async fn register(context: &SessionContext, table: &str) -> Result<(), CliError> {
    let (name, path) = table
        .split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        .ok_or_else(|| CliError::usage(format!("--table takes NAME=PATH, not '{table}'")))?;
    if !is_remote(path) && !path.contains(['*', '?', '[']) && !Path::new(path).exists() {
        return Err(CliError::file(missing_file(path)));
    }
    refuse_false_footer(path)?;
    let registered = match extension(path).as_str() {
        "csv" => context.register_csv(name, path, CsvReadOptions::new()).await,
        "tsv" => context.register_csv(name, path, CsvReadOptions::new().delimiter(b'\t').file_extension(".tsv")).await,
        "json" | "ndjson" | "jsonl" => {
            let extension = format!(".{}", extension(path));
            context.register_json(name, path, JsonReadOptions::default().file_extension(&extension)).await
        }
        "arrow" | "feather" => context.register_arrow(name, path, ArrowReadOptions::default()).await,
        _ => context.register_parquet(name, path, ParquetReadOptions::default()).await,
    };
    registered.map_err(|error| unreadable(path, &error))
}

/// The ending that tells a file's kind: the path's own, or that of the first file in a folder.
fn extension(path: &str) -> String {
    let of = |path: &Path| path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let path = Path::new(path);
    if !path.is_dir() {
        return of(path);
    }
    let mut files: Vec<_> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|p| p.is_file() && !p.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
        .collect();
    files.sort();
    files.first().map(|file| of(file)).unwrap_or_default()
}

/// True for a path with a scheme, which only its object store can look up.
pub fn is_remote(path: &str) -> bool {
    path.contains("://")
}
