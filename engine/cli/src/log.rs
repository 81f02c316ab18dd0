//! Notes of the engine, and the log of `-v`, on standard error.
//!
//! ```text
//!   warning       ─► note: part of the query runs on the CPU: …
//!   -v  info      ─► info: stored l_orderkey of lineitem: 60000 rows, 480 KiB
//!   -vv debug     ─► debug: millpond::session::find_plan: planned by template 3f
//! ```
//!
//! Others  Other crates log only warnings, and DataFusion only errors without `-vv`; RUST_LOG overrides the filter.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::SessionArgs;

/// Sends log events to standard error for the rest of the process.
pub fn to_stderr(args: &SessionArgs) {
    let filter = EnvFilter::try_from_env("RUST_LOG").unwrap_or_else(|_| EnvFilter::new(filter(args)));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).event_format(Lines).init();
}

fn filter(args: &SessionArgs) -> &'static str {
    match (args.quiet, args.verbose) {
        (true, _) => "error",
        (false, 0) => "warn,datafusion=error",
        (false, 1) => "warn,datafusion=error,millpond=info",
        (false, _) => "warn,millpond=debug",
    }
}

/// Formats each event as a line: a word for its level, its message, its fields.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let word = match level {
            Level::ERROR => "error",
            Level::WARN => "note",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "{word}: ")?;
        if level > Level::INFO || !target.starts_with("millpond") {
            write!(writer, "{target}: ")?;
        }
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(writer, "{}{}", text.message, text.fields)
    }
}

/// The message of an event, and its other fields in parentheses.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " ({name}: {value:?})"),
        };
    }
}
