//! Keepers of results on the device, such as a table that a query creates.
//!
//!   Keeps::look ── one wait ──► Run::check ── as assumed ──► Inspected::keep: columns that stay
//!                                         └─ a surprise ──► nothing was kept

use std::sync::Arc;

use futures::future::BoxFuture;
use millpond_memory::Stream;

use crate::column::DictionaryId;
use crate::column::dictionary::SharedDictionary;
use crate::error::failure::Failure;
use crate::expr::Dictionary;
use crate::program::part::Part;
use crate::program::run::Run;

/// Keeps results on the device. A program with a keeper emits no row before the result is complete.
pub(crate) trait Keeps: Send + Sync {
    /// Inspects a result, whose parts are on the device, and keeps nothing yet; `None` if its rows are to be
    /// downloaded.
    ///
    /// # Errors
    /// The run's failure, if a download would fail, too.
    fn look<'a>(
        &'a self,
        run: &'a Arc<Run>,
        parts: &'a [Part],
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<Option<Box<dyn Inspected + 'a>>, Failure>>;
}

/// A result that was inspected. It is kept once the run's assumptions have been checked.
pub(crate) trait Inspected: Send {
    /// Copies the rows; false if they are to be downloaded as usual.
    ///
    /// # Errors
    /// As for [`Keeps::look`].
    fn keep<'a>(self: Box<Self>) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a;
}

/// The dictionary of a source's column, if it was complete and sorted before the run began.
pub(crate) fn complete_dictionary(run: &Run, id: DictionaryId) -> Option<SharedDictionary> {
    let (source, column) = match run.prepared.tables().definitions.get(id)? {
        Dictionary::Source { upload, column, .. } => (*upload, *column),
        _ => return None,
    };
    run.prepared.sources.get(source)?.dictionaries.get(&column).cloned()
}
