//! Signals that end the program: Ctrl-C, SIGTERM, SIGHUP. The first ends what is running; the second, or ten seconds, ends the process.
//!
//! ```text
//!   signal ─► a thread of its own ─► counter ─► a statement that is awaited
//!                                └─► flag ─► work that is busy and looks at it
//! ```
//!
//! The listener has its own thread because a busy query may keep every worker from looking at signals.
//!
//! Shell     stays: Ctrl-C ends the statement that runs, a second one before that has ended the process. With no statement, and while a
//!           pager has the terminal, it does nothing.
//! Exit      130, 143 or 129, as a shell has it for a process that the signal ended.
//! Ignored   a SIGTERM or SIGHUP that the process was started to ignore (nohup) stays ignored.
//! Files     that were begun are gone at the end, after a second signal, too.

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

/// A signal that asks the program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Interrupt,
    Terminate,
    HangUp,
}

/// The longest time from the first signal to the end of the process.
const LONGEST_END: Duration = Duration::from_secs(10);

/// The first one that came.
static FIRST: OnceLock<Ending> = OnceLock::new();

impl Ending {
    const ALL: [Ending; 3] = [Ending::Interrupt, Ending::Terminate, Ending::HangUp];

    /// The signal that the program is ending by; Ctrl-C if none has come.
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

    /// What has happened to what was running.
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

    /// True where the process was started to ignore it. A shell ignores Ctrl-C for what it starts in the background, and a Ctrl-C
    /// that is sent there is meant: it counts.
    fn is_ignored(self, ignored: u64) -> bool {
        self != Ending::Interrupt && ignored & (1 << (self.kind().as_raw_value() - 1)) != 0
    }
}

/// The signals that this process ignores, one bit each from the lowest on, as the system tells them; none where it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Tells how often a signal has asked the program to end.
#[derive(Debug, Clone)]
pub struct Interrupts {
    count: watch::Receiver<u32>,
    flag: Arc<AtomicBool>,
    shell: Option<Arc<ShellWork>>,
}

/// The statement that a shell runs.
#[derive(Debug, Default)]
struct ShellWork {
    runs: AtomicBool,
    is_cancelled: AtomicBool,
    /// Files that COPY had begun when the statement was cancelled.
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

    /// Takes a Ctrl-C. Returns whether the statement is to be cancelled now.
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
    /// Starts to listen: from its return on, none of the signals ends the process by itself.
    ///
    /// # Errors
    /// If the system gives no thread or no signal handler.
    pub fn listen() -> Result<Self, CliError> {
        Self::listening(None)
    }

    /// The same for a shell, which Ctrl-C does not end.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
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
        // The handlers are installed here, before the thread runs.
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
                        // At the prompt nothing has to end first.
                        Some(work) if !work.runs.load(Ordering::Relaxed) => leave::at_once(ending.exit()),
                        _ => break ending,
                    }
                };
                let _ = FIRST.set(ending);
                // COPY's files may be closed and left behind once its tasks are dropped.
                output::remove_at_end(unfinished::files());
                raised.store(true, Ordering::Relaxed);
                sender.send_modify(|count| *count += 1);
                // Another signal, or work that looks at none: a statement that is planned for long, a pipe without a reader.
                let _ = tokio::time::timeout(LONGEST_END, signals.next()).await;
                leave::at_once(ending.exit());
            });
        };
        thread::Builder::new().name("interrupts".to_string()).spawn(listener).map_err(|error| cannot(&error))?;
        Ok(Self { count, flag, shell })
    }

    /// Is true once a signal has come.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Runs `work` until it ends or a signal comes, which drops it.
    ///
    /// # Errors
    /// Those of `work`, and the exit code of the signal.
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

    /// Runs `work` on a thread of its own, because it may wait for another process, until it ends or a signal comes.
    ///
    /// # Errors
    /// As [`or_interrupted`](Self::or_interrupted).
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
