//! `millpond man` and `millpond completions SHELL`: files that a package installs beside the program, generated from
//! the command line.

use std::io::{self, Write};

use crate::args::CompletionsArgs;
use crate::error::{CliError, Exit};

/// Prints the man page, in roff.
///
/// # Errors
/// Exit 4 if standard output cannot be written.
pub fn page() -> Result<Exit, CliError> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(crate::command()).render(&mut page);
    rendered.map_err(|error| CliError::sql(format!("the man page cannot be made: {error}")))?;
    written(&page)
}

/// Prints the completions of a shell.
///
/// # Errors
/// See [`page`].
pub fn completions(args: &CompletionsArgs) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "millpond", &mut script);
    written(&script)
}

fn written(text: &[u8]) -> Result<Exit, CliError> {
    match io::stdout().write_all(text).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(Exit::Ok),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::reader_gone()),
        Err(error) => Err(CliError::file(format!("cannot write to standard output: {error}"))),
    }
}
