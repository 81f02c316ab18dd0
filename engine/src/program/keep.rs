//! Who keeps a result on the device: a table that a query makes.

use std::sync::Arc;

use futures::future::BoxFuture;
use millpond_memory::Stream;

use crate::column::DictionaryId;
use crate::column::dictionary::SharedDictionary;
use crate::expr::Dictionary;
use crate::program::failure::Failure;
use crate::program::part::Part;
use crate::program::run::Run;

/// Takes over results. The program of who keeps one gives no row before all are there.
pub(crate) trait Keeps: Send + Sync {
    /// Copies the rows of a result, whose parts are on the device; false if they are to come home as usual.
    ///
    /// # Errors
    /// What the run has met, where the rows would not come home either.
    fn keep<'a>(
        &'a self,
        run: &'a Arc<Run>,
        parts: &'a [Part],
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<bool, Failure>>;
}

/// The dictionary of a source's column, where it was complete, and sorted, before the run began.
pub(crate) fn complete_dictionary(run: &Run, id: DictionaryId) -> Option<SharedDictionary> {
    let (source, column) = match run.prepared.tables().definitions.get(id)? {
        Dictionary::Source { upload, column, .. } => (*upload, *column),
        _ => return None,
    };
    run.prepared.sources.get(source)?.dictionaries.get(&column).cloned()
}
