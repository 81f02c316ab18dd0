//! Turns a panic into an error of the statement in which it happened.
//!
//!   panic ─► hook: message, place, owner ─► notes          only after `note_panics`
//!     └─ unwinds, or is stored in a JoinError ─► caught ─► EngineError::Panicked { whose, message, place }
//!
//! Owner    a panic in a crate of this workspace is Millpond's, any other is DataFusion's; without notes it is unknown.
//! Locks    of the engine ignore poisoning, and DataFusion's locks have none: the session stays usable.
//! Streams  that panicked are not polled again.

use std::any::Any;
use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, Once, PoisonError};

use datafusion::error::{DataFusionError, Result};
use futures::FutureExt;
use tokio::task::JoinError;

use crate::error::EngineError;

/// Owner of the code that panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Millpond,
    /// DataFusion, or a crate that it or the engine uses.
    DataFusion,
    Unknown,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Millpond => "Millpond",
            Self::DataFusion => "DataFusion",
            Self::Unknown => "Millpond or DataFusion",
        })
    }
}

/// A panic not yet reported by an error.
struct Note {
    message: String,
    place: String,
    whose: Whose,
}

static NOTES: Mutex<VecDeque<Note>> = Mutex::new(VecDeque::new());

/// Maximum number of notes: panics of detached tasks are never collected.
const MOST_NOTES: usize = 100;

/// Records from now on where panics start, so that errors can name the place; prints panics only if `RUST_BACKTRACE` is
/// set.
///
/// For applications: it replaces the panic hook of the process.
pub fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        let prints = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
        std::panic::set_hook(Box::new(move |panic| {
            note(panic);
            if prints {
                before(panic);
            }
        }));
    });
}

fn note(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or(NO_MESSAGE).to_string();
    let (file, place) = match panic.location() {
        Some(location) => (location.file(), location.to_string()),
        None => ("", "an unknown place".to_string()),
    };
    // The standard library panics on behalf of its caller, which only the backtrace names.
    let (whose, place) = match whose_file(file) {
        Some(whose) => (whose, place),
        None => match whose_frames(&Backtrace::force_capture().to_string()) {
            Some((whose, function)) => (whose, function),
            None => (Whose::Unknown, place),
        },
    };
    tracing::info!("panic at {place}: {message}");
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    if notes.len() == MOST_NOTES {
        notes.pop_front();
    }
    notes.push_back(Note { message, place, whose });
}

const NO_MESSAGE: &str = "a panic without a message";

/// Crates of the workspace, by folder and by their name in a registry.
const FOLDERS: [&str; 6] = ["engine/", "kernels/", "memory/", "queries/", "data/", "benches/"];
const NAME: &str = "millpond";

/// Owner of a source file; `None` for the standard library.
fn whose_file(file: &str) -> Option<Whose> {
    if file.is_empty() || file.starts_with("/rustc/") || file.contains("/rustlib/") || file.starts_with("library/") {
        return None;
    }
    let in_workspace = file!().strip_suffix("engine/src/error/panics.rs").and_then(|root| file.strip_prefix(root));
    let ours = in_workspace.is_some_and(|path| FOLDERS.iter().any(|folder| path.starts_with(folder)))
        || file.split(['/', '\\']).any(|part| part.starts_with(NAME) && part.contains('-'));
    Some(if ours { Whose::Millpond } else { Whose::DataFusion })
}

/// Innermost frame outside the standard library and the hook, and its owner.
fn whose_frames(backtrace: &str) -> Option<(Whose, String)> {
    // "  12: <datafusion_functions::string::repeat::RepeatFunc as …>::invoke": a symbol's first word is its crate.
    let symbols = backtrace.lines().filter_map(|line| line.trim_start().split_once(": "));
    let frames = symbols.filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit())).map(|(_, symbol)| {
        let name = symbol.trim_start_matches(['<', '&', '(', '[', '*']);
        let name = name.strip_prefix("dyn ").unwrap_or(name);
        (&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())], symbol)
    });
    // The hook's own frames end where the unwinder's begin. Types without a crate, as in "<i128>::pow", are core's.
    let mut frames = frames.skip_while(|(name, _)| !["rust_begin_unwind", "__rustc"].contains(name)).skip(1);
    let (name, symbol) = frames.find(|(name, symbol)| {
        let path = symbol.trim_start_matches(['<', '&']).strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
        path && !["std", "core", "alloc", "rust_begin_unwind", "__rustc", ""].contains(name)
    })?;
    let whose = if name.starts_with(NAME) { Whose::Millpond } else { Whose::DataFusion };
    Some((whose, symbol.to_string()))
}

/// Error for a panic payload.
pub fn panicked(payload: &(dyn Any + Send)) -> EngineError {
    let text = payload.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or(NO_MESSAGE);
    noted(message, |note| note.message == message)
}

/// Error from the newest note that `is_it` accepts.
fn noted(message: &str, is_it: impl Fn(&Note) -> bool) -> EngineError {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = notes.iter().rposition(is_it).and_then(|at| notes.remove(at));
    let (message, place, whose) = match found {
        Some(note) => (note.message, Some(note.place), note.whose),
        None => (message.to_string(), None, Whose::Unknown),
    };
    EngineError::Panicked { whose, message, place }
}

/// Error for a task that did not complete.
pub(crate) fn task_ended(error: JoinError) -> EngineError {
    match error.try_into_panic() {
        Ok(payload) => panicked(payload.as_ref()),
        Err(error) => EngineError::internal(format!("a task ended early: {error}")),
    }
}

/// Returns `error`, or the error of the panic if it reports a panicked task.
pub(crate) fn named(error: DataFusionError) -> DataFusionError {
    let Some(join) = joined(&error).filter(|join| join.is_panic()) else { return error };
    // The payload cannot be moved out of a shared error; its text contains the quoted message.
    let text = join.to_string();
    let quoted = text.split_once(" panicked with message ").map_or(NO_MESSAGE, |(_, quoted)| quoted);
    noted(quoted.trim_matches('"'), |note| format!("{:?}", note.message) == quoted || note.message == quoted).into()
}

/// The `JoinError` inside `error`, whatever contexts surround it.
fn joined(error: &DataFusionError) -> Option<&JoinError> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(join) = error.downcast_ref::<JoinError>() {
            return Some(join);
        }
        if let Some(join) = error.downcast_ref::<Arc<JoinError>>() {
            return Some(join);
        }
        if let Some(shared) = error.downcast_ref::<Arc<DataFusionError>>() {
            return joined(shared);
        }
        next = error.source();
    }
    None
}

/// Awaits `future`; a panic becomes an error.
pub(crate) async fn caught<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(result) => result.map_err(named),
        Err(payload) => Err(panicked(payload.as_ref()).into()),
    }
}

/// Runs `work`; a panic becomes an error.
pub(crate) fn caught_now<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| panicked(payload.as_ref()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_whose_a_panic_is() {
        assert_eq!(whose_file(file!()), Some(Whose::Millpond));
        assert_eq!(whose_file("kernels/ptx/src/parse.rs"), Some(Whose::Millpond));
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        assert_eq!(whose_file(&format!("{registry}/millpond-memory-0.1.0/src/pool.rs")), Some(Whose::Millpond));
        assert_eq!(whose_file(&format!("{registry}/datafusion-expr-55.2.0/src/expr.rs")), Some(Whose::DataFusion));
        assert_eq!(whose_file(&format!("{registry}/arrow-arith-59.3.2/src/numeric.rs")), Some(Whose::DataFusion));
        assert_eq!(whose_file("/rustc/254b59607d4417e9dffbc307138ae5c86280fe4c/library/alloc/src/slice.rs"), None);
    }

    #[test]
    fn frames_tell_for_whom_the_standard_library_panicked() {
        let trace = |symbol: &str| {
            format!(
                "   0: millpond::error::panics::note\n             at ./engine/src/panics.rs:90:5\n   1: std::panicking::panic_with_hook\n   \
                 2: __rustc::rust_begin_unwind\n   3: core::panicking::panic_fmt\n   4: <i128>::pow\n   \
                 5: {symbol}\n   6: tokio::runtime::task::harness::poll\n"
            )
        };
        for (symbol, whose) in [
            ("datafusion_functions::string::repeat::repeat_impl", Whose::DataFusion),
            ("<millpond::exec::FilterExec as core::fmt::Debug>::fmt", Whose::Millpond),
            ("millpond_kernels::codegen::lower", Whose::Millpond),
        ] {
            assert_eq!(whose_frames(&trace(symbol)), Some((whose, symbol.to_string())));
        }
        assert_eq!(whose_frames("disabled backtrace"), None);
    }

    #[tokio::test]
    async fn panics_of_futures_and_of_their_tasks_are_errors() {
        let plain = caught::<()>(async { panic!("wheel {} fell off", 7) }).await.expect_err("it panics");
        let found = EngineError::find(&plain).expect("ours");
        assert!(found.is_panic() && found.to_string().contains("wheel 7 fell off"), "{found}");

        let task = tokio::spawn(async { panic!("the \"axle\" broke") });
        let shared =
            |error| DataFusionError::Shared(Arc::new(DataFusionError::External(Box::new(error)).context("join")));
        let joined: Result<()> = caught(async move { task.await.map_err(shared) }).await;
        let found = joined.expect_err("it panics");
        let found = EngineError::find(&found).expect("ours");
        assert!(found.is_panic() && found.to_string().contains("axle"), "{found}");

        let error = caught::<()>(async { Err(DataFusionError::Plan("no table".into())) }).await.expect_err("refused");
        assert!(matches!(error, DataFusionError::Plan(_)), "{error}");
    }
}
