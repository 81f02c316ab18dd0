//! `millpond gen`: writes a suite's tables as Parquet.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_data::{DataError, tpch};

use crate::args::{Codec, GenArgs};
use crate::error::CliError;
use crate::query::bytes;

/// Generates and prints one line per file.
///
/// # Errors
/// Exit 2 for an unknown suite or table or an unusable scale, 4 when a file cannot be written.
pub fn run(args: &GenArgs, quiet: bool) -> Result<(), CliError> {
    if args.suite != "tpch" {
        return Err(CliError::usage(format!("no data set named '{}'; this version generates tpch", args.suite)));
    }
    let mut options = tpch::Options::new(args.scale, &args.out);
    options.threads = args.threads;
    options.codec = match args.codec {
        Codec::None => millpond_data::Codec::None,
        Codec::Snappy => millpond_data::Codec::Snappy,
        Codec::Zstd => millpond_data::Codec::Zstd,
    };
    if !args.tables.is_empty() {
        options.tables = args
            .tables
            .iter()
            .map(|name| tpch::Table::from_name(name.trim()))
            .collect::<Result<_, _>>()
            .map_err(cli)?;
    }

    let total = options.tables.iter().map(|table| table.approximate_rows(args.scale)).sum();
    let show = !quiet && std::io::stderr().is_terminal();
    let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target).with_style(
        ProgressStyle::with_template("{msg:10} {wide_bar} {human_pos}/{human_len} rows, {eta} left")
            .expect("the template is well formed"),
    );
    let files = tpch::generate(&options, &|table, rows| {
        bar.set_message(table.name());
        bar.inc(rows);
    });
    bar.finish_and_clear();
    for file in files.map_err(cli)? {
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

fn cli(error: DataError) -> CliError {
    match &error {
        DataError::Scale { .. } | DataError::UnknownTable { .. } => CliError::usage(error.to_string()),
        other if other.is_io() => CliError::file(error.to_string()),
        _ => CliError::sql(error.to_string()),
    }
}
