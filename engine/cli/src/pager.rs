//! Pager for long answers of the shell: `$PAGER`, else `less`.
//!
//! ```text
//!   rows ─► held ─┬─ the answer ends, and fits the screen ─► standard output
//!                 └─ more lines than the screen has ───────► the pager's standard input ─► ends when the user quits it
//! ```
//!
//! Ctrl-C is handled by the pager while it runs. If the pager cannot be started, the answer is written to standard
//! output.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of lines that are never paged: a terminal scrolls back that far.
const LINES_UNPAGED: usize = 60;

/// True while a pager runs.
static RUNS: AtomicBool = AtomicBool::new(false);

/// True while a pager has the terminal.
pub fn runs() -> bool {
    RUNS.load(Ordering::Relaxed)
}

/// Standard output, through a pager if the answer is long.
pub struct Pager {
    command: String,
    /// Maximum number of lines of an answer that is not paged.
    lines: usize,
    held: Vec<u8>,
    held_lines: usize,
    child: Option<Child>,
    has_failed: bool,
}

impl Pager {
    /// A pager for a terminal of `height` lines.
    pub fn new(height: usize) -> Self {
        let named = std::env::var("PAGER").ok().filter(|command| !command.trim().is_empty());
        // -S: cut wide rows, which can be scrolled; -R: colors.
        let command = named.unwrap_or_else(|| "less -SR".to_string());
        Self { command, lines: height.max(LINES_UNPAGED), held: vec![], held_lines: 0, child: None, has_failed: false }
    }

    /// Ends an answer: writes the held rows, or waits until the user leaves the pager.
    ///
    /// # Errors
    /// Errors of standard output.
    pub fn end(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.held_lines = 0;
        self.has_failed = false;
        match self.child.take() {
            Some(mut child) => {
                drop(child.stdin.take());
                let ended = child.wait();
                RUNS.store(false, Ordering::Relaxed);
                ended.map(drop)
            }
            None => {
                io::stdout().write_all(&held)?;
                io::stdout().flush()
            }
        }
    }

    fn start(&mut self) {
        RUNS.store(true, Ordering::Relaxed);
        let mut words = self.command.split_whitespace();
        let started = match words.next() {
            Some(program) => Command::new(program).args(words).stdin(Stdio::piped()).spawn().ok(),
            None => None,
        };
        if started.is_none() {
            RUNS.store(false, Ordering::Relaxed);
            self.has_failed = true;
        }
        self.child = started;
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(stdin) = self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            return stdin.write(bytes);
        }
        if self.has_failed {
            return io::stdout().write(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.held_lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        if self.held_lines > self.lines {
            self.start();
            let held = std::mem::take(&mut self.held);
            match self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
                Some(stdin) => stdin.write_all(&held)?,
                None => io::stdout().write_all(&held)?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            Some(stdin) => stdin.flush(),
            None if self.has_failed => io::stdout().flush(),
            None => Ok(()),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
