//! What the engine is told of functions that have a device form.

pub(crate) mod node;
mod sentences;

use std::sync::Arc;

use millpond::operator::unnest::Unnest;

/// UNNEST of what the functions find in texts.
pub(crate) fn unnest() -> Unnest {
    Unnest::with(vec![Arc::new(sentences::TextFunctions)])
}
