//! The command line of Millpond: SQL over Parquet on the GPU.
//!
//! ```text
//!   millpond [-c SQL | -f FILE]   statements            millpond gen    data
//!   millpond info, selftest       devices               millpond run    a suite, with counts
//!   millpond mem bench, replay    device memory         millpond parquet check, measure, rewrite    files
//!   millpond qualify              plans, without a GPU
//!   millpond soak                 many concurrent sessions      millpond man, completions    for packages
//! ```
//!
//! Standard output carries only data; notes, errors and footers are written to standard error.

#![forbid(unsafe_code)]

mod answer;
pub mod args;
mod binary;
mod delimited;
pub mod error;
mod format;
mod generate;
mod info;
mod interrupt;
mod leave;
mod log;
mod manifest;
mod manual;
mod mem;
mod names;
mod nested;
mod options;
mod output;
mod pager;
mod parquet;
mod places;
mod plans;
mod progress;
mod qualify;
mod query;
mod reads;
mod selftest;
pub mod session;
mod shell;
mod soak;
pub mod statements;
mod suite;
mod table;
mod terminal;
mod trace;
pub mod types;
mod unfinished;
pub mod unreadable;
mod version;
mod work;
mod written;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, Command};
use crate::error::{CliError, Exit, tell, tell_error};

/// Number of malloc arenas of the C library; here only the driver's compiler uses them.
const MALLOC_ARENAS: u16 = 4;

/// Runs the program with these arguments (the first is its name), and ends the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ! {
    millpond_memory::driver::cuda::limit_malloc_arenas(MALLOC_ARENAS);
    let cli = parsed(arguments);
    log::to_stderr(&cli.session);
    // A panic is reported as an error with a message and an exit code; -v and RUST_BACKTRACE add details.
    millpond::error::panics::note_panics();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell(format_args!("error: cannot start worker threads: {error}"));
            std::process::exit(Exit::Sql as i32);
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(dispatch(&cli))))
        .unwrap_or_else(|payload| Err(CliError::panicked(payload.as_ref())));
    runtime.shutdown_background();
    let exit = match ended {
        Ok(exit) => exit,
        Err(error) => {
            tell_error(&error);
            error.exit
        }
    };
    leave::in_order(exit)
}

/// The command line; its `--version` lists what the program is built from.
fn command() -> clap::Command {
    options::shown_where_used(Cli::command().version(version::line()))
}

fn parsed(arguments: impl IntoIterator<Item = OsString>) -> Cli {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(arguments).unwrap_or_else(|error| error.exit());
    if let Err(message) = options::refuse_unused(&command, &matches) {
        command.error(ErrorKind::ArgumentConflict, message).exit();
    }
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.query.scripts = options::scripts(&matches);
    if let (Some(Command::Qualify(args)), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        args.scripts = options::scripts(matches);
    }
    cli
}

async fn dispatch(cli: &Cli) -> Result<Exit, CliError> {
    if let (Some(text), Some(_)) = (&cli.text, &cli.command) {
        return Err(CliError::usage(format!("'{text}' before a command: statements are run without one")));
    }
    match &cli.command {
        Some(Command::Info(args)) => info::run(args, &cli.session),
        Some(Command::Completions(args)) => manual::completions(args),
        Some(Command::Man) => manual::page(),
        Some(Command::Selftest(args)) => selftest::run(args, &cli.session).await,
        Some(Command::Soak(args)) => soak::run(args, &cli.session).await,
        Some(Command::Gen(args)) => generate::run(args, cli.session.quiet).map(|()| Exit::Ok),
        Some(Command::Run(args)) => suite::run(args, &cli.session).await,
        Some(Command::Qualify(args)) => qualify::run(args, &cli.session).await,
        Some(Command::Mem(command)) => mem::run(command, &cli.session),
        Some(Command::Parquet(command)) => parquet::run(command, &cli.session).await,
        None if is_idle(cli) && shell::is_possible() => shell::run(cli).await,
        None if is_idle(cli) => {
            let _ = command().print_help();
            Ok(Exit::Usage)
        }
        None => query::run(cli).await,
    }
}

/// True if neither a flag nor standard input can provide a statement.
fn is_idle(cli: &Cli) -> bool {
    let query = &cli.query;
    query.scripts.is_empty() && std::io::stdin().is_terminal()
}
