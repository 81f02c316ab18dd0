//! `millpond gen`: writes a suite's tables as Parquet.
//!
//! ```text
//!   gen tpch      DIR/lineitem.parquet …                                              and DIR/millpond.json,
//!   gen gpu-bdb   DIR/store_sales/part-00000.parquet …      a folder per table        which records the settings
//! ```
//!
//! Prints    One line per file; on a terminal also a bar with the remaining time.
//! Mixed     Tables of different scales, seeds or types in one folder are refused unless --force is set
//!           ([`crate::manifest`]).
//! Files     Existing files are replaced, by the rules of `-o`: links followed, modes kept, read-only files refused
//!           before the work.
//! Errors    Exit 2 for an unknown suite or table, an unusable scale, or an option of another suite; 4 for files.
//! Ctrl-C    Ends it with exit 130: finished files stay, unfinished ones are removed.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_data::{DataError, WrittenFile, gpu_bdb, tpch};

use crate::args::{Codec, GenArgs, Keys, Money};
use crate::error::CliError;
use crate::interrupt::Interrupts;
use crate::manifest::Manifest;
use crate::places::Places;
use crate::query::bytes;

/// Generates the tables and prints one line per file.
///
/// # Errors
/// Exit 2 for an unknown suite or table, an unusable scale or option; 4 if a file cannot be written; 130 if
/// interrupted.
pub fn run(args: &GenArgs, quiet: bool) -> Result<(), CliError> {
    let stop = Interrupts::listen()?.flag();
    let files = match args.suite.as_str() {
        "tpch" => run_tpch(args, quiet, stop)?,
        "gpu-bdb" => run_gpu_bdb(args, quiet, stop)?,
        other => return Err(CliError::usage(format!("no data set named '{other}'; the data sets are tpch, gpu-bdb"))),
    };
    for file in files {
        println!(
            "{}: {} rows, {} row group{}, {}",
            file.path.display(),
            file.num_rows,
            file.num_row_groups,
            if file.num_row_groups == 1 { "" } else { "s" },
            bytes(file.bytes)
        );
    }
    Ok(())
}

fn run_tpch(args: &GenArgs, quiet: bool, stop: Arc<AtomicBool>) -> Result<Vec<WrittenFile>, CliError> {
    let others = [
        ("--seed", args.seed.is_some()),
        ("--no-plants", args.no_plants),
        ("--money", args.money.is_some()),
        ("--keys", args.keys.is_some()),
    ];
    if let Some((option, _)) = others.into_iter().find(|(_, given)| *given) {
        return Err(CliError::usage(format!(
            "tpch has no option {option}: its rows and types are fixed; leave it out"
        )));
    }
    let mut options = tpch::Options::new(args.scale, &args.out);
    options.threads = args.threads;
    options.codec = codec(args.codec);
    options.stop = stop;
    options.files = Arc::new(Places::default());
    if !args.tables.is_empty() {
        options.tables = tables(args, tpch::Table::from_name)?;
    }
    let names = options.tables.iter().map(|table| table.name());
    let mut manifest = Manifest::new("tpch", args.scale, None, &[("codec", codec_name(args.codec))], names);
    manifest.begin(&args.out, args.force)?;
    let total = options.tables.iter().map(|table| table.approximate_rows(args.scale)).sum();
    let bar = bar(total, quiet);
    let files = tpch::generate(&options, &|table, rows| {
        bar.set_message(table.name());
        bar.inc(rows);
    });
    bar.finish_and_clear();
    let files = files.map_err(cli)?;
    manifest.write(&args.out)?;
    Ok(files)
}

fn run_gpu_bdb(args: &GenArgs, quiet: bool, stop: Arc<AtomicBool>) -> Result<Vec<WrittenFile>, CliError> {
    let mut options = gpu_bdb::Options::new(args.scale, &args.out);
    options.threads = args.threads;
    options.codec = codec(args.codec);
    options.stop = stop;
    options.files = Arc::new(Places::default());
    options.seed = args.seed.unwrap_or(options.seed);
    options.plants = !args.no_plants;
    if args.money == Some(Money::Decimal) {
        options.format.money = gpu_bdb::Money::Decimal;
    }
    if args.keys == Some(Keys::Int32) {
        options.format.keys = gpu_bdb::Keys::Int32;
    }
    if !args.tables.is_empty() {
        options.tables = tables(args, gpu_bdb::Table::from_name)?;
    }
    let data = gpu_bdb::DataSet::new(options.scale, options.seed, options.plants).map_err(cli)?;
    let of = |is_so: bool, so: &'static str, other: &'static str| if is_so { so } else { other };
    let settings = [
        ("codec", codec_name(args.codec)),
        ("money", of(options.format.money == gpu_bdb::Money::Decimal, "decimal", "double")),
        ("keys", of(options.format.keys == gpu_bdb::Keys::Int32, "int32", "int64")),
        ("plants", of(options.plants, "true", "false")),
    ];
    let names = options.tables.iter().map(|table| table.name());
    let mut manifest = Manifest::new("gpu-bdb", options.scale, Some(options.seed), &settings, names);
    manifest.begin(&args.out, args.force)?;
    let total = options.tables.iter().map(|&table| data.approximate_rows(table)).sum();
    let bar = bar(total, quiet);
    let files = gpu_bdb::generate(&options, &|table, rows| {
        bar.set_message(table.name());
        bar.inc(rows);
    });
    bar.finish_and_clear();
    let files = files.map_err(cli)?;
    manifest.write(&args.out)?;
    Ok(files)
}

/// The requested tables, without duplicates.
fn tables<T: PartialEq>(args: &GenArgs, named: impl Fn(&str) -> Result<T, DataError>) -> Result<Vec<T>, CliError> {
    let mut tables = Vec::with_capacity(args.tables.len());
    for name in &args.tables {
        let table = named(name.trim()).map_err(cli)?;
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    Ok(tables)
}

fn codec(codec: Codec) -> millpond_data::Codec {
    match codec {
        Codec::None => millpond_data::Codec::None,
        Codec::Snappy => millpond_data::Codec::Snappy,
        Codec::Zstd => millpond_data::Codec::Zstd,
    }
}

fn codec_name(codec: Codec) -> &'static str {
    match codec {
        Codec::None => "none",
        Codec::Snappy => "snappy",
        Codec::Zstd => "zstd",
    }
}

/// A bar over `total` rows with the remaining time; hidden when quiet or not on a terminal.
fn bar(total: u64, quiet: bool) -> ProgressBar {
    let show = !quiet && std::io::stderr().is_terminal();
    let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(Some(total), target).with_style(
        ProgressStyle::with_template("{msg:22} {wide_bar} {human_pos}/{human_len} rows, {eta} left")
            .expect("the template is well formed"),
    )
}

fn cli(error: DataError) -> CliError {
    match &error {
        DataError::Scale { .. } | DataError::ScaleRange { .. } | DataError::UnknownTable { .. } => {
            CliError::usage(error.to_string())
        }
        DataError::Stopped => CliError::interrupted(),
        other if other.is_io() => CliError::file(error.to_string()),
        _ => CliError::sql(error.to_string()),
    }
}
