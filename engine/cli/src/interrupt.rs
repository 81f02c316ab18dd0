//! Signals that end the program: Ctrl-C, SIGTERM, SIGHUP. The first one ends the current work; a second one, or ten
//! seconds, ends the process.
//!
//! ```text
//!   signal ─► listener thread ─► counter ─► an awaited statement
//!                             └─► flag ─► busy work that polls it
//! ```
//!
//! The listener has its own thread because a busy query may keep all workers from polling signals.
//!
//! Shell     Keeps running: Ctrl-C ends the current statement; a second one before the statement has ended exits the
//!           process. Without a statement, and while a pager has the terminal, Ctrl-C does nothing.
//! Exit      130, 143 or 129: a shell's exit codes for a process ended by that signal.
//! Ignored   If the process was started with SIGTERM or SIGHUP ignored (nohup), the signal stays ignored.
//! Files     Unfinished files are removed at the end, also after a second signal.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, SelectAll};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{CliError, Exit};
use crate::{leave, output, pager, unfinished};

/// A signal that requests the program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Interrupt,
    Terminate,
    HangUp,
}

/// Maximum time from the first signal to the end of the process.
const LONGEST_END: Duration = Duration::from_secs(10);

/// The first signal received.
static FIRST: OnceLock<Ending> = OnceLock::new();

impl Ending {
    const ALL: [Ending; 3] = [Ending::Interrupt, Ending::Terminate, Ending::HangUp];

    /// The first signal received; Ctrl-C if there was none.
    pub fn first() -> Self {
        FIRST.get().copied().unwrap_or(Ending::Interrupt)
    }

    pub fn exit(self) -> Exit {
        match self {
            Ending::Interrupt => Exit::Interrupted,
            Ending::Terminate => Exit::Terminated,
            Ending::HangUp => Exit::HungUp,
        }
    }

    /// Word for the interrupted work's state, for messages.
    pub fn word(self) -> &'static str {
        match self {
            Ending::Interrupt => "interrupted",
            Ending::Terminate => "terminated",
            Ending::HangUp => "hung up",
        }
    }

    fn kind(self) -> SignalKind {
        match self {
            Ending::Interrupt => SignalKind::interrupt(),
            Ending::Terminate => SignalKind::terminate(),
            Ending::HangUp => SignalKind::hangup(),
        }
    }

    /// True if the process was started with this signal ignored. Ctrl-C is never ignored: shells start background jobs
    /// with it ignored, but a Ctrl-C sent there is intended.
    fn is_ignored(self, ignored: u64) -> bool {
        self != Ending::Interrupt && ignored & (1 << (self.kind().as_raw_value() - 1)) != 0
    }
}

/// The process's mask of ignored signals, lowest signal in the lowest bit; 0 if the system does not report it.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Counts the signals received.
#[derive(Debug, Clone)]
pub struct Interrupts {
    count: watch::Receiver<u32>,
    flag: Arc<AtomicBool>,
    shell: Option<Arc<ShellWork>>,
}

/// The current statement of a shell.
#[derive(Debug, Default)]
struct ShellWork {
    runs: AtomicBool,
    is_cancelled: AtomicBool,
    /// Unfinished files of COPY at the time the statement was cancelled.
    begun: Mutex<Vec<PathBuf>>,
}

impl ShellWork {
    fn begin(&self) {
        self.is_cancelled.store(false, Ordering::Relaxed);
        self.runs.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        self.runs.store(false, Ordering::Relaxed);
        let begun = std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner));
        unfinished::remove(begun.into_iter());
    }

    /// Handles a Ctrl-C. Returns whether the statement must be cancelled now.
    fn interrupt(&self) -> bool {
        if pager::runs() || !self.runs.load(Ordering::Relaxed) {
            return false;
        }
        if self.is_cancelled.swap(true, Ordering::Relaxed) {
            leave::at_once(Exit::Interrupted);
        }
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = output::begun_by_copies();
        true
    }
}

impl Interrupts {
    /// Starts to listen. After it returns, none of these signals ends the process by default.
    ///
    /// # Errors
    /// If the thread or a signal handler cannot be created.
    pub fn listen() -> Result<Self, CliError> {
        Self::listening(None)
    }

    /// Starts to listen for a shell, which Ctrl-C does not end.
    ///
    /// # Errors
    /// See [`listen`](Self::listen).
    pub fn listen_in_shell() -> Result<Self, CliError> {
        Self::listening(Some(Arc::default()))
    }

    fn listening(shell: Option<Arc<ShellWork>>) -> Result<Self, CliError> {
        let cannot = |error: &dyn std::fmt::Display| CliError::sql(format!("cannot listen for Ctrl-C: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| cannot(&error))?;
        unfinished::leave_inherited_alone();
        let ignored = ignored();
        let mut signals = SelectAll::new();
        // Install the handlers here, before the thread runs.
        let entered = runtime.enter();
        for ending in Ending::ALL.into_iter().filter(|ending| !ending.is_ignored(ignored)) {
            let one = signal(ending.kind()).map_err(|error| cannot(&error))?;
            let one = stream::unfold(one, move |mut one| async move { one.recv().await.map(|()| (ending, one)) });
            signals.push(Box::pin(one));
        }
        drop(entered);
        let (sender, count) = watch::channel(0);
        let flag = Arc::new(AtomicBool::new(false));
        let (raised, work) = (Arc::clone(&flag), shell.clone());
        let listener = move || {
            runtime.block_on(async {
                let ending = loop {
                    let Some(ending) = signals.next().await else { return };
                    match &work {
                        Some(work) if ending == Ending::Interrupt => {
                            if work.interrupt() {
                                sender.send_modify(|count| *count += 1);
                            }
                        }
                        // At the prompt there is no work to end first.
                        Some(work) if !work.runs.load(Ordering::Relaxed) => leave::at_once(ending.exit()),
                        _ => break ending,
                    }
                };
                let _ = FIRST.set(ending);
                // Dropped tasks may close COPY's files without removing them.
                output::remove_at_end(unfinished::files());
                raised.store(true, Ordering::Relaxed);
                sender.send_modify(|count| *count += 1);
                // Ends after another signal, or when work ignores the flag, such as long planning or a pipe without a
                // reader.
                let _ = tokio::time::timeout(LONGEST_END, signals.next()).await;
                leave::at_once(ending.exit());
            });
        };
        thread::Builder::new().name("interrupts".to_string()).spawn(listener).map_err(|error| cannot(&error))?;
        Ok(Self { count, flag, shell })
    }

    /// A flag that becomes true when a signal is received.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Runs `work` until it ends or a signal is received, which drops it.
    ///
    /// # Errors
    /// Errors of `work`, and the exit code of the signal.
    pub async fn or_interrupted<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        let mut count = self.count.clone();
        if let Some(shell) = &self.shell {
            count.mark_unchanged();
            shell.begin();
        }
        let ended = tokio::select! {
            result = work => result,
            changed = count.changed() => match changed {
                Ok(()) => Err(CliError::interrupted()),
                Err(_) => Err(CliError::sql("the listener for Ctrl-C ended early")),
            },
        };
        if let Some(shell) = &self.shell {
            shell.end();
        }
        ended
    }

    /// Runs `work`, which may wait for another process, on a separate thread until it ends or a signal is received.
    ///
    /// # Errors
    /// See [`or_interrupted`](Self::or_interrupted).
    pub async fn or_waiting<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
    ) -> Result<T, CliError> {
        let done = tokio::task::spawn_blocking(work);
        let done = async { done.await.unwrap_or_else(|error| Err(CliError::sql(format!("a thread ended: {error}")))) };
        self.or_interrupted(done).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_from_the_beginning_are_told_by_their_bits() {
        // SIGHUP is 1, SIGINT 2, SIGTERM 15.
        let listened = |mask: u64| Ending::ALL.into_iter().filter(|e| !e.is_ignored(mask)).collect::<Vec<_>>();
        assert_eq!(listened(0), Ending::ALL);
        assert_eq!(listened(1), [Ending::Interrupt, Ending::Terminate]);
        assert_eq!(listened(1 << 14), [Ending::Interrupt, Ending::HangUp]);
        assert_eq!(listened(0b10), Ending::ALL);
    }
}
