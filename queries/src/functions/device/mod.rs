//! Device forms of functions, as the engine needs them.

pub(crate) mod node;
mod sentences;

use std::sync::Arc;

use millpond::operator::unnest::Unnest;

/// UNNEST with the text functions.
pub(crate) fn unnest() -> Unnest {
    Unnest::with(vec![Arc::new(sentences::TextFunctions)])
}
