//! Description of a stored column for users.

use std::time::Duration;

/// A stored column as `millpond_cache()` lists it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub table: String,
    pub column: String,
    /// Tier: device or host.
    pub tier: &'static str,
    pub bytes: u64,
    /// Bytes per value; `None` for bits and texts.
    pub width: Option<u32>,
    /// Facts about its values.
    pub facts: String,
    /// Number of runs that have read it.
    pub hits: u64,
    /// Time since it was loaded.
    pub age: Duration,
}
