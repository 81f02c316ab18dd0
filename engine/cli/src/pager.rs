//! Long answers of the shell go through a pager: `$PAGER`, else `less`.
//!
//! ```text
//!   rows ─► held ─┬─ the answer ends, and fits the screen ─► standard output
//!                 └─ more lines than the screen has ───────► the pager's standard input ─► it ends when the user leaves it
//! ```
//!
//! Ctrl-C is the pager's while it runs. A pager that cannot be started is none: the answer goes to standard output.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Answers of this number of lines are never paged: a terminal scrolls back over them.
const LINES_UNPAGED: usize = 60;

/// A pager runs.
static RUNS: AtomicBool = AtomicBool::new(false);

/// True while a pager has the terminal.
pub fn runs() -> bool {
    RUNS.load(Ordering::Relaxed)
}

/// Standard output, by way of a pager where an answer is long.
pub struct Pager {
    command: String,
    /// Lines beyond which an answer is long.
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
        // -S: wide rows are cut, and scrolled to; -R: colours.
        let command = named.unwrap_or_else(|| "less -SR".to_string());
        Self { command, lines: height.max(LINES_UNPAGED), held: vec![], held_lines: 0, child: None, has_failed: false }
    }

    /// Ends an answer: what is held is written, or the pager's user leaves it.
    ///
    /// # Errors
    /// Those of standard output.
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
