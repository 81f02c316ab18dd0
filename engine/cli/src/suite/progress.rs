//! Progress of a suite: a bar on standard error, if that is a terminal.
//!
//! ```text
//!   q07 from caching  ████████████░░░░░░░░░░  61/180 queries, 00:02:11
//! ```

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval at which the time is redrawn while a query runs.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar over `total` runs of a query with an allocator; hidden when quiet or not on a terminal.
    pub fn new(total: usize, quiet: bool) -> Self {
        let show = !quiet && io::stderr().is_terminal();
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{msg:30} {wide_bar} {pos}/{len} queries, {elapsed_precise}")
            .expect("the template is well formed");
        let bar = ProgressBar::with_draw_target(Some(total as u64), target).with_style(style);
        if show {
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }

    /// Shows the query that begins.
    pub fn begin(&self, query: &str, allocator: Option<&str>) {
        self.0.set_message(allocator.map_or(query.to_string(), |allocator| format!("{query} from {allocator}")));
    }

    /// Counts a finished query. `print` writes its report above the bar, and must not panic: the bar's lock is held.
    pub fn done<T>(&self, print: impl FnOnce() -> T) -> T {
        let printed = self.0.suspend(print);
        self.0.inc(1);
        printed
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
