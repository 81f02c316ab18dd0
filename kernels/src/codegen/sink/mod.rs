//! Sinks: destinations of the rows that pass the filters.
//!
//!   materialise   compact ─ write                 rows to dense columns, in order
//!   aggregate     cells ─ keys ─ accumulate ─ runs │ fold │ block │ hash       rows to words of groups
//!   table         rows by number to slots by key                 (build side of a join)
//!   emit          a table of groups to dense columns, through compact and write

pub(crate) mod accumulate;
pub(crate) mod block;
pub(crate) mod cells;
pub(crate) mod compact;
pub(crate) mod emit;
pub(crate) mod exact;
pub(crate) mod fold;
pub(crate) mod hash;
pub(crate) mod keys;
pub(crate) mod runs;
pub(crate) mod table;
pub(crate) mod write;
