//! The progress line of a query on a terminal, shown after its first second.
//!
//! ```text
//!   progress thread, every 200 ms ─► counters of the plan's scans
//!     ─► 12.4 s · 41 % · 24,600,000 of 60,000,000 rows · 1.2 GiB · about 18 s left
//!   rows of the answer ─► the line is erased while they are written
//! ```
//!
//! Only on standard error, only if that is a terminal and notes are enabled: never in a pipe or a file.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millpond::Millpond;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::explain::thousands;
use millpond::progress::Progress as Scanned;

use crate::answer::shows_progress;
use crate::query::bytes;

/// Time before a query shows progress.
const QUIET: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(200);

/// Shows the progress of one query until it is dropped.
pub struct Progress {
    shared: Option<(Arc<Shared>, JoinHandle<()>)>,
}

struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    is_drawn: bool,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn draw(&mut self, line: &str) {
        let width = terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0).max(1));
        let line: String = line.chars().take(width - 1).collect();
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
        self.is_drawn = true;
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Progress {
    /// Starts to watch a running plan if `is_wanted` and standard error is a terminal.
    pub fn begin(session: &Millpond, plan: &Arc<dyn ExecutionPlan>, is_wanted: bool) -> Self {
        if !is_wanted || !shows_progress() {
            return Self { shared: None };
        }
        let shared = Arc::new(Shared { state: Mutex::default(), ended: Condvar::new() });
        let (watched, session, plan, began) = (Arc::clone(&shared), session.clone(), Arc::clone(plan), Instant::now());
        let watch = move || {
            let mut state = watched.lock();
            let mut pause = QUIET;
            let mut moved = (0, began);
            loop {
                let waited = watched.ended.wait_timeout_while(state, pause, |state| !state.has_ended);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.has_ended {
                    return state.erase();
                }
                let assembling = session.engine().map_or(0, |engine| engine.kernels_assembling());
                let scanned = Scanned::of(&plan);
                if scanned.rows != moved.0 {
                    moved = (scanned.rows, Instant::now());
                }
                // If the scans have not moved lately, the remaining work is not theirs.
                let is_scanning = moved.1.elapsed() < QUIET;
                state.draw(&line(began.elapsed(), &scanned, assembling, is_scanning));
                pause = EVERY;
            }
        };
        // Without the thread the query still runs.
        let thread = thread::Builder::new().name("progress".to_string()).spawn(watch).ok();
        Self { shared: thread.map(|thread| (shared, thread)) }
    }

    /// Runs `work`, which writes to the terminal, with the progress line erased.
    pub fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some((shared, _)) = &self.shared else { return work() };
        let mut state = shared.lock();
        state.erase();
        work()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some((shared, thread)) = self.shared.take() else { return };
        shared.lock().has_ended = true;
        shared.ended.notify_all();
        let _ = thread.join();
    }
}

/// The text of the progress line.
fn line(elapsed: Duration, scanned: &Scanned, assembling: usize, is_scanning: bool) -> String {
    let mut parts = vec![format!("{:.1} s", elapsed.as_secs_f64())];
    let share = scanned.share();
    if let Some(share) = share {
        parts.push(format!("{:.0} %", 100.0 * share));
    }
    match scanned.of_rows {
        Some(of_rows) if of_rows > 0 => {
            parts.push(format!("{} of {} rows", thousands(scanned.rows), thousands(of_rows)))
        }
        _ if scanned.rows > 0 => parts.push(format!("{} rows", thousands(scanned.rows))),
        _ => {}
    }
    if scanned.bytes > 0 {
        parts.push(bytes(scanned.bytes));
    }
    if assembling > 0 {
        parts.push(format!("{assembling} kernels being assembled"));
    }
    // The first rows predict little, and after the last ones the scans say nothing about the remaining work.
    if let Some(share) = share.filter(|share| is_scanning && (0.02..0.99).contains(share)) {
        parts.push(format!("about {:.0} s left", elapsed.as_secs_f64() * (1.0 - share) / share));
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_known() {
        let second = Duration::from_millis(2500);
        let scanned = |rows, of_rows, bytes| Scanned { rows, of_rows, bytes };
        assert_eq!(line(second, &scanned(0, None, 0), 0, true), "2.5 s");
        assert_eq!(line(second, &scanned(0, Some(0), 0), 3, true), "2.5 s · 3 kernels being assembled");
        let half = line(second, &scanned(600_000, Some(1_200_000), 1 << 20), 0, true);
        assert_eq!(half, "2.5 s · 50 % · 600,000 of 1,200,000 rows · 1.0 MiB · about 2 s left");
        let still = line(second, &scanned(600_000, Some(1_200_000), 1 << 20), 0, false);
        assert_eq!(still, "2.5 s · 50 % · 600,000 of 1,200,000 rows · 1.0 MiB");
        assert_eq!(line(second, &scanned(1200, Some(1200), 0), 0, true), "2.5 s · 100 % · 1,200 of 1,200 rows");
        assert_eq!(line(second, &scanned(70, None, 10), 0, true), "2.5 s · 70 rows · 10 B");
    }
}
