//! `millpond parquet`: reports which parts of a file's layout slow down device scans, measures decoding speed, and
//! rewrites files in a better layout.
//!
//! ```text
//!   parquet check sales.parquet             findings, their cost, and how to fix them
//!   parquet measure sales.parquet           decoding speed of each column, here and by parquet-rs
//!   parquet rewrite sales.parquet fast/     fast/sales.parquet
//! ```
//!
//! Prints    The report, or one line per file written (on standard error if the file itself is written to standard
//!           output); on a terminal also a progress bar.
//! Files     Targets are handled by [`Places`], by the rules of `-o`.
//! Errors    Exit 4 for files, including an existing target without --force; 2 for options. Findings are not errors.
//! Ctrl-C    Ends it with exit 130: finished files stay, unfinished ones are removed.

mod measure;

use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_parquet::check::{self, ColumnReport, Estimate, FileReport, Finding, Report, TableReport, WayOut};
use millpond_parquet::file::FileError;
use millpond_parquet::rewrite;
use serde_json::{Value, json};

use crate::args::{CheckFormat, ParquetCheckArgs, ParquetCommand, ParquetRewriteArgs, RewriteCodec, SessionArgs};
use crate::error::{CliError, Exit, tell};
use crate::interrupt::Interrupts;
use crate::places::Places;
use crate::query::bytes;
use crate::unreadable::missing_file;

/// Runs one of the commands.
///
/// # Errors
/// Exit 4 if a file cannot be read or written, 2 for an option, 130 if interrupted.
pub async fn run(command: &ParquetCommand, session: &SessionArgs) -> Result<Exit, CliError> {
    match command {
        ParquetCommand::Check(args) => run_check(args, session.quiet),
        ParquetCommand::Measure(args) => measure::run(args, session).await,
        ParquetCommand::Rewrite(args) => run_rewrite(args, session.quiet),
    }
}

fn run_check(args: &ParquetCheckArgs, quiet: bool) -> Result<Exit, CliError> {
    refuse_missing(&args.path)?;
    let options = check::Options { footers_only: args.footers_only, stop: Interrupts::listen()?.flag() };
    let bar = bar("{wide_bar} {binary_bytes}/{binary_total_bytes}, {eta} left", quiet);
    let report = check::check(&args.path, &options, &|done, all| advance(&bar, done, all));
    bar.finish_and_clear();
    let report = report.map_err(cli)?;
    match args.format {
        CheckFormat::Text => print!("{}", report.text(args.all)),
        CheckFormat::Json => println!("{}", report_json(&report)),
    }
    Ok(Exit::Ok)
}

fn run_rewrite(args: &ParquetRewriteArgs, quiet: bool) -> Result<Exit, CliError> {
    refuse_missing(&args.from)?;
    let options = rewrite::Options {
        codec: codec(args.codec),
        row_group_rows: args.row_group_rows,
        force: args.force,
        stop: Interrupts::listen()?.flag(),
    };
    let places = Places::default();
    let bar = bar("{wide_bar} {human_pos}/{human_len} rows, {eta} left", quiet);
    let files = rewrite::rewrite(&args.from, &args.to, &options, &places, &|done, all| advance(&bar, done, all));
    bar.finish_and_clear();
    for file in files.map_err(cli)? {
        let line = format!(
            "{}: {} rows, {} row group{}, {} (was {})",
            file.path.display(),
            file.num_rows,
            file.num_row_groups,
            if file.num_row_groups == 1 { "" } else { "s" },
            bytes(file.bytes),
            bytes(file.bytes_before)
        );
        if places.is_standard() {
            tell(line)
        } else {
            println!("{line}")
        }
        for note in &file.notes {
            tell(format_args!("note: {}: {note}", file.path.display()));
        }
    }
    Ok(Exit::Ok)
}

fn codec(codec: RewriteCodec) -> rewrite::Codec {
    match codec {
        RewriteCodec::None => rewrite::Codec::None,
        RewriteCodec::Snappy => rewrite::Codec::Snappy,
        RewriteCodec::Lz4Raw => rewrite::Codec::Lz4Raw,
        RewriteCodec::Zstd => rewrite::Codec::Zstd,
    }
}

/// # Errors
/// Exit 4, with the message a statement would give for that file.
fn refuse_missing(path: &Path) -> Result<(), CliError> {
    if path.exists() { Ok(()) } else { Err(CliError::file(missing_file(&path.display().to_string()))) }
}

fn cli(error: FileError) -> CliError {
    if error.is_stopped() {
        return CliError::interrupted();
    }
    if error.is_usage() {
        return CliError::usage(error.to_string());
    }
    CliError::file(error.to_string())
}

/// A progress bar, whose length is set once the work has begun; hidden when quiet or not on a terminal.
fn bar(template: &str, quiet: bool) -> ProgressBar {
    let show = !quiet && std::io::stderr().is_terminal();
    let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::with_draw_target(Some(0), target).with_style(style)
}

fn advance(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.inc(done);
}

fn report_json(report: &Report) -> Value {
    json!({
        "files": report.files.iter().map(file_json).collect::<Vec<_>>(),
        "tables": report.tables.iter().map(table_json).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
    })
}

fn file_json(file: &FileReport) -> Value {
    json!({
        "path": file.path.display().to_string(),
        "bytes": file.bytes,
        "rows": file.rows,
        "row_groups": file.row_groups,
        "largest_row_group_rows": file.most_group_rows,
        "created_by": file.created_by,
        "estimate": estimate_json(&file.estimate),
        "columns": file.columns.iter().map(column_json).collect::<Vec<_>>(),
    })
}

fn table_json(table: &TableReport) -> Value {
    json!({
        "name": table.name,
        "files": table.files,
        "bytes": table.bytes,
        "rows": table.rows,
        "row_groups": table.row_groups,
        "estimate": estimate_json(&table.estimate),
    })
}

fn estimate_json(estimate: &Estimate) -> Value {
    json!({
        "seconds": estimate.total(),
        "link_seconds": estimate.link,
        "device_seconds": estimate.device,
        "host_seconds": estimate.host,
    })
}

fn column_json(column: &ColumnReport) -> Value {
    json!({
        "name": column.name,
        "physical": column.physical,
        "type": column.data_type,
        "read_by": if column.is_read_by_device() { "device" } else { "host" },
        "host_reason": column.host_reason,
        "chunks": column.chunks,
        "compressed_bytes": column.compressed_bytes,
        "raw_bytes": column.raw_bytes,
        "codecs": column.codecs,
        "pages": column.pages,
        "encodings": column.encodings,
    })
}

fn finding_json(finding: &Finding) -> Value {
    let instead = match finding.way_out {
        WayOut::Rewrite => None,
        WayOut::RewriteWith(how) | WayOut::Other(how) => Some(how),
    };
    json!({
        "kind": finding.kind.name(),
        "table": finding.table,
        "columns": finding.columns,
        "what": finding.what,
        "estimated_seconds": finding.seconds,
        "mended_by_rewrite": finding.way_out.is_rewrite(),
        "way_out": instead,
    })
}
