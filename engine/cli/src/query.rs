//! Runs the scripts that the command line gives, statement by statement.
//!
//! ```text
//!   SQL, FILE, -c, -f, stdin ─► statements ─► Runner ─► Output
//! ```
//!
//! Errors   The first one ends the script, unless --keep-going is set; the exit code reports it in both cases. A panic
//!          is an error.
//! -o FILE  replaces the old file after all statements (with --keep-going, the successful ones). A statement that reads
//!          or writes FILE ends the script before it has any effect.
//! Ctrl-C   Drops the running query, which frees its device memory.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use millpond::Millpond;
use millpond::options::nearest;

use crate::answer::{Look, Runner};
use crate::args::{Cli, Format, QueryArgs, Rows, Script};
use crate::error::{CliError, Exit, tell, tell_error};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::session;
use crate::statements::split;
use crate::table::Fit;
use crate::trace::Trace;
use crate::unreadable::missing_file;

/// An optional mark before a script's text, not part of it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Default number of rows of a table on a terminal.
const ROWS_ON_A_TERMINAL: usize = 40;

/// Runs the scripts of the command line; `Ok` carries the exit code of `--keep-going`.
///
/// # Errors
/// The first error, unless `--keep-going` is set.
pub async fn run(cli: &Cli) -> Result<Exit, CliError> {
    let scripts = scripts(cli)?;
    let look = Look {
        format: chosen_format(&cli.query)?,
        fit: chosen_fit(&cli.query),
        footer: !cli.session.quiet,
        notes: !cli.session.quiet,
        is_shell: false,
    };
    let interrupts = Interrupts::listen()?;
    let session = session::open(&cli.session, None).await?;
    session::add_folders(&session, &cli.query.data).await?;
    if let (Some(note), false) = (session.device_note(), cli.session.quiet) {
        tell(format_args!("note: {note}"));
    }
    let mut trace = match cli.session.trace.clone() {
        Some(path) => Some(interrupts.or_waiting(move || Trace::begin(&path)).await?),
        None => None,
    };
    let output = match cli.query.output.clone() {
        Some(path) => interrupts.or_waiting(move || Output::open(&path)).await?,
        None => Output::standard(),
    };
    refuse_shared_files(&session, &output, trace.as_ref())?;
    let runner = Runner::new(&session, look);
    let ended = run_scripts(cli, &runner, &scripts, output, &interrupts, trace.as_mut()).await;
    let logged = session::finish_log(&session);
    let traced = trace.map_or(Ok(()), |trace| trace.write());
    // The statement's error has priority.
    let worst = ended?;
    logged?;
    traced?;
    Ok(worst)
}

/// Refuses a file that is used for two of the answers, the trace and the memory log: the last write would replace the
/// others.
///
/// # Errors
/// Exit 2, naming the flags and the file.
pub fn refuse_shared_files(session: &Millpond, output: &Output, trace: Option<&Trace>) -> Result<(), CliError> {
    let shared = |flags: &str, path: &Path| {
        Err(CliError::usage(format!("{flags} cannot both be '{}': name two files", path.display())))
    };
    if let Some(trace) = trace.filter(|trace| output.is_at_file(trace.path())) {
        return shared("-o and --trace", trace.path());
    }
    let Some(log) = session::memory_log(session) else { return Ok(()) };
    if output.is_at_file(&log) {
        return shared("-o and --memory-log", &log);
    }
    match trace {
        Some(trace) if trace.output().is_at_file(&log) => shared("--trace and --memory-log", &log),
        _ => Ok(()),
    }
}

async fn run_scripts(
    cli: &Cli,
    runner: &Runner<'_>,
    scripts: &[String],
    mut output: Output,
    interrupts: &Interrupts,
    mut trace: Option<&mut Trace>,
) -> Result<Exit, CliError> {
    let (mut worst, mut succeeded) = (Exit::Ok, false);
    let mut failed = |error: CliError| {
        if !cli.query.keep_going {
            return Err(error);
        }
        tell_error(&error);
        worst = worst.max(error.exit);
        Ok(())
    };
    'scripts: for script in scripts {
        let statements = match split(script) {
            Ok(statements) => statements,
            Err(error) => {
                failed(CliError::script(&error, script))?;
                continue;
            }
        };
        for statement in &statements {
            let mark = output.mark()?;
            let traced = trace.as_deref().map(|trace| trace.query(&statement.sql));
            let traces = trace.as_deref().map(Trace::output);
            let done = match &traced {
                None => interrupts.or_interrupted(runner.run_profiled(statement, &mut output)).await?,
                Some(traced) => {
                    let work = runner.run(statement, &mut output, traces);
                    interrupts.or_interrupted(traced.profiler.around(work)).await?
                }
            };
            if let (Some(trace), Some(traced)) = (trace.as_deref_mut(), &traced) {
                trace.add(traced, &runner.session().profile(&traced.profiler));
            }
            match done {
                Ok(()) => succeeded = true,
                Err(error) if error.is_reader_gone() => break 'scripts,
                Err(error) => {
                    failed(error)?;
                    output.cut_to(mark)?;
                }
            }
        }
    }
    // If no statement succeeded, the old file stays.
    if succeeded || worst == Exit::Ok {
        output.commit()?;
    }
    Ok(worst)
}

/// The scripts to run, in the order of the command line; standard input if there is none.
fn scripts(cli: &Cli) -> Result<Vec<String>, CliError> {
    let args = &cli.query;
    let mut scripts = Vec::new();
    for script in &args.scripts {
        scripts.push(match script {
            Script::Bare(text) => script_of(text)?,
            Script::Text(text) => text.clone(),
            Script::File(file) if file == Path::new("-") => read_stdin()?,
            Script::File(file) => read_script(file)?,
        });
    }
    if scripts.is_empty() {
        scripts.push(read_stdin()?);
    }
    for script in &mut scripts {
        // Some editors write a byte order mark.
        if script.starts_with(BYTE_ORDER_MARK) {
            script.remove(0);
        }
    }
    Ok(scripts)
}

/// The script for a text without a flag: statements, a file of statements, or all rows of another file.
fn script_of(text: &str) -> Result<String, CliError> {
    let path = Path::new(text);
    if path.exists() || session::is_remote(text) {
        let has_statements = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("sql"));
        return if has_statements {
            read_script(path)
        } else {
            Ok(format!("SELECT * FROM '{}'", text.replace('\'', "''")))
        };
    }
    // A single word is probably a mistyped command or path.
    if text.contains(|letter: char| letter.is_whitespace() || "(;".contains(letter)) {
        return Ok(text.to_string());
    }
    if text.contains(['.', '/']) {
        return Err(CliError::file(missing_file(text)));
    }
    let command = crate::command();
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let meant = nearest(text, &names).map_or_else(String::new, |name| format!("; did you mean {name}?"));
    Err(CliError::usage(format!(
        "'{text}' is no command, no file that is there, and no statement{meant} (millpond --help lists the commands; statements \
         stand in quotes)"
    )))
}

/// The text of standard input.
///
/// # Errors
/// Exit 4 if it cannot be read.
pub fn read_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::file(format!("cannot read SQL from standard input: {error}")))?;
    millpond::standard_input_was_read_as("the script");
    Ok(text)
}

/// The text of a script.
///
/// # Errors
/// Exit 4 for a file that cannot be read.
pub fn read_script(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|error| CliError::file(format!("cannot read SQL from '{}': {error}", path.display())))
}

/// The format: the requested one, else by the output file's name, else by whether the output is a terminal.
fn chosen_format(args: &QueryArgs) -> Result<Format, CliError> {
    if args.format.is_binary() && args.output.is_none() && io::stdout().is_terminal() {
        let format = args.format.name();
        return Err(CliError::usage(format!("a terminal cannot show {format}: write a file (-o FILE), or a pipe")));
    }
    if args.format != Format::Auto {
        return Ok(args.format);
    }
    match &args.output {
        Some(path) => format_of_file(args, path),
        None => Ok(if io::stdout().is_terminal() { Format::Table } else { Format::Csv }),
    }
}

/// The format for answers in a file: the requested one, else by the file's name.
///
/// # Errors
/// Exit 2 if the ending is not a format's.
pub fn format_of_file(args: &QueryArgs, path: &Path) -> Result<Format, CliError> {
    if args.format != Format::Auto {
        return Ok(args.format);
    }
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "csv" => Ok(Format::Csv),
        "tsv" => Ok(Format::Tsv),
        "json" => Ok(Format::Json),
        "ndjson" | "jsonl" => Ok(Format::Ndjson),
        "md" => Ok(Format::Markdown),
        "txt" => Ok(Format::Table),
        "" => Ok(Format::Csv),
        "parquet" => Ok(Format::Parquet),
        "arrow" | "feather" => Ok(Format::Arrow),
        other => Err(CliError::usage(format!("no format is known for files ending in .{other}; add --format"))),
    }
}

/// Limits for tables: none, except on a terminal.
pub fn chosen_fit(args: &QueryArgs) -> Fit {
    let is_terminal = args.output.is_none() && io::stdout().is_terminal();
    let rows = match args.rows {
        Some(Rows::All) => None,
        Some(Rows::AtMost(rows)) => Some(rows),
        None => is_terminal.then_some(ROWS_ON_A_TERMINAL),
    };
    let size = if is_terminal { terminal_size::terminal_size_of(io::stdout()) } else { None };
    // A terminal of unknown size reports 0.
    let width = size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
    Fit { rows, width }
}

/// A byte count in a suitable unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_unit_that_suits() {
        assert_eq!([0, 1023, 1024, 1_572_864].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
    }
}
