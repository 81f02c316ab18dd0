//! Decoded columns against parquet's own reader of Arrow arrays, on files that its writer wrote.
//!
//!   values ──► file ──► parquet's reader ──► expected bytes
//!                 └───► walk, ColumnReader ─► found bytes        equal, and the facts are those of a plain loop
//!
//! A failing case prints its number: `MILLPOND_CASE=17 cargo test -p millpond-parquet matrix`.

mod cases;
mod check;
mod damage;
mod entries;
mod file;
mod foreign;
mod kept;
mod layouts;
mod matrix;
mod read;
mod records;
mod rewrite;
mod targets;
