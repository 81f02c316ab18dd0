//! Opens a session from the command line's flags: device, options, tables.

use std::path::{Path, PathBuf};

use millpond::datafusion::common::TableReference;
use millpond::datafusion::datasource::file_format::options::{ArrowReadOptions, ReadOptions};
use millpond::datafusion::execution::context::SessionContext;
use millpond::datafusion::prelude::{CsvReadOptions, JsonReadOptions, ParquetReadOptions};
use millpond::session::default_config;
use millpond::{DeviceChoice, Millpond, MillpondBuilder, MillpondOptions, tables};
use millpond_bench::named::also_in_lower_case;

use crate::args::SessionArgs;
use crate::error::CliError;
use crate::manifest;
use crate::output::lower;
use crate::unreadable::{missing_file, refuse_false_footer, unreadable};

/// Opens the session described by `args`.
///
/// # Errors
/// Exit 2 for an unknown option or table form, 3 for a missing device, 4 for a file that cannot be read.
pub async fn open(args: &SessionArgs, device: Option<DeviceChoice>) -> Result<Millpond, CliError> {
    opened(builder(args)?.with_url_tables(), args, device).await
}

/// Like [`open`], but queries can read only registered tables, not files by name.
///
/// # Errors
/// See [`open`].
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
    let mut tables = Vec::with_capacity(args.tables.len());
    for table in &args.tables {
        tables.push(register(session.context(), table).await?);
    }
    let folded = also_in_lower_case(session.context(), &tables).await;
    folded.map_err(|error| CliError::from_datafusion(&error))?;
    Ok(session)
}

/// Registers the tables in folders: each data file and each folder of data, named without its ending.
///
/// # Errors
/// Exit 4 for a folder that cannot be read or has no data, 2 for two tables with one name.
pub async fn add_folders(session: &Millpond, folders: &[PathBuf]) -> Result<(), CliError> {
    let context = session.context();
    let mut added: Vec<(TableReference, PathBuf)> = Vec::new();
    for folder in folders {
        let shown = folder.display();
        let cannot = |error: &std::io::Error| CliError::file(format!("cannot read folder '{shown}': {}", lower(error)));
        let entries = std::fs::read_dir(folder).map_err(|error| cannot(&error))?;
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(|e| cannot(&e))?;
        paths.retain(|path| is_data(path));
        paths.sort();
        if paths.is_empty() {
            let message =
                format!("folder '{shown}' has no tables: neither a file nor a folder of {}", KINDS.join(", "));
            return Err(CliError::file(message));
        }
        for path in paths {
            let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
            let reference = TableReference::bare(name.unwrap_or_default().to_string_lossy());
            match added.iter().find(|(known, _)| *known == reference) {
                // The folder is named twice.
                Some((_, other)) if *other == path => continue,
                Some((_, other)) => return Err(two_tables(&reference, &path, &format!("'{}'", other.display()))),
                None if context.table_exist(reference.clone()).unwrap_or(false) => {
                    return Err(two_tables(&reference, &path, "the file of --table"));
                }
                None => {}
            }
            register_as(context, reference.clone(), &path.to_string_lossy()).await?;
            added.push((reference, path));
        }
    }
    let added: Vec<TableReference> = added.into_iter().map(|(reference, _)| reference).collect();
    also_in_lower_case(context, &added).await.map_err(|error| CliError::from_datafusion(&error))
}

fn two_tables(name: &TableReference, path: &Path, other: &str) -> CliError {
    CliError::usage(format!(
        "'{}' and {other} would both be the table {name}: give one of them another name with --table NAME=PATH, and take it out of \
         the folder of --data",
        path.display()
    ))
}

/// Endings of data files.
const KINDS: [&str; 8] = ["parquet", "csv", "tsv", "json", "ndjson", "jsonl", "arrow", "feather"];

/// True for a file or a folder that can be a table.
fn is_data(path: &Path) -> bool {
    let is_manifest = path.file_name().is_some_and(|name| name == manifest::NAME);
    let is_of_a_kind = |ending: String| KINDS.contains(&ending.to_ascii_lowercase().as_str());
    !is_note(path) && !is_manifest && extension_of(path).is_some_and(is_of_a_kind)
}

/// A builder with the settings of `args`, without its tables.
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

/// The file of `--memory-log`, if there is a device whose memory is logged.
pub fn memory_log(session: &Millpond) -> Option<PathBuf> {
    session.engine()?;
    let config = session.context().copied_config();
    let log = &config.options().extensions.get::<MillpondOptions>()?.memory_log;
    (!log.is_empty()).then(|| PathBuf::from(log))
}

/// Flushes the `--memory-log`.
///
/// # Errors
/// Exit 4 if it cannot be written.
pub fn finish_log(session: &Millpond) -> Result<(), CliError> {
    Ok(session.engine().map_or(Ok(()), |engine| engine.flush_memory_log())?)
}

/// Makes an option's error name its flag.
pub fn flag(name: &str, error: millpond::EngineError) -> CliError {
    match error {
        millpond::EngineError::OptionValue { value, expected, .. } => {
            CliError::usage(format!("{name} cannot be '{value}': it takes {expected}"))
        }
        other => other.into(),
    }
}

fn unknown_setting(key: &str) -> CliError {
    // A forgotten prefix is the most likely mistake.
    let with_prefix = millpond::MillpondOptions::NAMES.contains(&key);
    let hint = if with_prefix {
        format!("; did you mean millpond.{key}?")
    } else {
        "; options begin with millpond. or datafusion. (SHOW ALL lists them)".to_string()
    };
    CliError::usage(format!("there is no option {key}{hint}"))
}

/// Registers `name=path`, with the name's case preserved.
async fn register(context: &SessionContext, table: &str) -> Result<TableReference, CliError> {
    let (name, path) = name_and_path(table)
        .filter(|(name, path)| !matches!(*name, "" | "\"\"") && !path.is_empty())
        .ok_or_else(|| CliError::usage(format!("--table takes NAME=PATH, not '{table}'")))?;
    let reference = reference(context, name, path)?;
    if !is_remote(path) && !path.contains(['*', '?', '[', '{']) && !Path::new(path).exists() {
        return Err(CliError::file(missing_file(path)));
    }
    register_as(context, reference.clone(), path).await?;
    Ok(reference)
}

/// Registers a file or folder under a name.
async fn register_as(context: &SessionContext, reference: TableReference, path: &str) -> Result<(), CliError> {
    refuse_false_footer(path)?;
    let ending = extension(path);
    // The ending as written, because DataFusion compares it case-sensitively.
    let with_dot = format!(".{ending}");
    let (config, formats) = (context.copied_config(), context.state().table_options().clone());
    let options = match ending.to_ascii_lowercase().as_str() {
        "csv" => CsvReadOptions::new().file_extension(&with_dot).to_listing_options(&config, formats),
        "tsv" => {
            let options = CsvReadOptions::new().delimiter(b'\t').file_extension(&with_dot);
            options.to_listing_options(&config, formats)
        }
        "json" | "ndjson" | "jsonl" => {
            JsonReadOptions::default().file_extension(&with_dot).to_listing_options(&config, formats)
        }
        "arrow" | "feather" => {
            let options = ArrowReadOptions { file_extension: &with_dot, ..ArrowReadOptions::default() };
            options.to_listing_options(&config, formats)
        }
        _ => ParquetReadOptions::default().to_listing_options(&config, formats),
    };
    let table = tables::opened(context, reference.clone(), path, options).await;
    let registered = table.and_then(|table| context.register_table(reference, table));
    registered.map(drop).map_err(|error| unreadable(path, &error))
}

/// Splits `NAME=PATH` at the first `=` outside quotes; `None` if there is none.
fn name_and_path(table: &str) -> Option<(&str, &str)> {
    let mut is_quoted = false;
    let at = table.find(|c| {
        is_quoted ^= c == '"';
        c == '=' && !is_quoted
    })?;
    Some((&table[..at], &table[at + 1..]))
}

/// The reference of a table named on the command line. Dots and quotes in the name are read as in SQL.
fn reference(context: &SessionContext, name: &str, path: &str) -> Result<TableReference, CliError> {
    let reference = TableReference::parse_str_normalized(name, true);
    let Some(schema) = reference.schema() else { return Ok(reference) };
    let config = context.copied_config();
    let catalog = reference.catalog().unwrap_or(&config.options().catalog.default_catalog);
    if context.catalog(catalog).is_some_and(|catalog| catalog.schema(schema).is_some()) {
        return Ok(reference);
    }
    let quoted = format!("\"{}\"", name.replace('"', ""));
    Err(CliError::usage(format!(
        "--table {name}={path}: the dot makes '{schema}' a schema, and there is none of that name; for a table whose name has a \
         dot write --table '{quoted}={path}', and {quoted} in SQL"
    )))
}

/// The ending that determines a file's kind: the path's own, or that of the first file in a folder or its subfolders.
fn extension(path: &str) -> String {
    extension_of(Path::new(path)).unwrap_or_default()
}

fn extension_of(path: &Path) -> Option<String> {
    if !path.is_dir() {
        return path.extension().map(|ending| ending.to_string_lossy().into_owned());
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let (mut folders, mut files): (Vec<_>, Vec<_>) =
        entries.filter(|path| !is_note(path)).partition(|path| path.is_dir());
    folders.sort();
    files.sort();
    files.into_iter().chain(folders).find_map(|path| extension_of(&path))
}

/// True for names that mark files without data for other programs: those that begin with a dot or an underscore.
fn is_note(path: &Path) -> bool {
    path.file_name().is_none_or(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_') | None))
}

/// True for a path with a scheme, which only its object store can resolve.
pub fn is_remote(path: &str) -> bool {
    path.contains("://")
}
