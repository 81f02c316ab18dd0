//! Ctrl-C: the first ends what is running, the second ends the process.
//!
//! ```text
//!   signal ─► a thread of its own ─► counter ─► whoever awaits a statement
//!                                └─► flag ─► whoever is busy and looks at it
//! ```
//!
//! The listener has its own thread because a busy query may keep every worker from looking at signals.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;

use tokio::sync::watch;

use crate::error::{CliError, Exit};
use crate::output;

/// Tells how often the user has interrupted.
#[derive(Debug, Clone)]
pub struct Interrupts {
    count: watch::Receiver<u32>,
    flag: Arc<AtomicBool>,
}

impl Interrupts {
    /// Starts to listen: from its return on, an interrupt no longer ends the process by itself.
    ///
    /// # Errors
    /// If the system gives no thread or no signal handler.
    pub fn listen() -> Result<Self, CliError> {
        let cannot = |error: &dyn std::fmt::Display| CliError::sql(format!("cannot listen for Ctrl-C: {error}"));
        let (sender, count) = watch::channel(0);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| cannot(&error))?;
        let flag = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&flag);
        let (installed, listens) = mpsc::channel();
        let listener = move || {
            runtime.block_on(async {
                loop {
                    let mut next = pin!(tokio::signal::ctrl_c());
                    // The first look installs the handler.
                    let early = futures::poll!(&mut next);
                    let _ = installed.send(());
                    let ended = match early {
                        Poll::Ready(ended) => ended,
                        Poll::Pending => next.await,
                    };
                    if ended.is_err() {
                        break;
                    }
                    raised.store(true, Ordering::Relaxed);
                    sender.send_modify(|count| *count += 1);
                    if *sender.borrow() > 1 {
                        output::remove_temporary();
                        std::process::exit(Exit::Interrupted as i32);
                    }
                }
            });
        };
        thread::Builder::new().name("interrupts".to_string()).spawn(listener).map_err(|error| cannot(&error))?;
        listens.recv().map_err(|error| cannot(&error))?;
        Ok(Self { count, flag })
    }

    /// Is true once the user has interrupted.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Runs `work` until it ends or the user interrupts, which drops it.
    ///
    /// # Errors
    /// Those of `work`, and exit 130.
    pub async fn or_interrupted<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        let mut count = self.count.clone();
        tokio::select! {
            result = work => result,
            changed = count.changed() => match changed {
                Ok(()) => Err(CliError::interrupted()),
                Err(_) => Err(CliError::sql("the listener for Ctrl-C ended early")),
            },
        }
    }
}
