//! Parquet files, read by the engine's own decoder.

pub(super) mod feed;
mod rows;
