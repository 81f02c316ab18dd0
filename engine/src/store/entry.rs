//! What users are told of a stored column.

use std::time::Duration;

/// A stored column as `millpond_cache()` lists it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub table: String,
    pub column: String,
    /// Where it is: device or host.
    pub tier: &'static str,
    pub bytes: u64,
    /// Bytes of a value; none for bits and texts.
    pub width: Option<u32>,
    /// What is known of its values.
    pub facts: String,
    /// Runs that have read it.
    pub hits: u64,
    /// Since it was loaded.
    pub age: Duration,
}
