//! Parquet files as the engine's own decoder reads them: DataFusion's scan in, row groups to decode out.
//!
//!   DataSourceExec ─► ParquetScan ─► footers ─► row groups that may have rows ─► Unit ─► chunks read ─► values in device layout
//!                                       │       statistics, bloom filters, pages
//!                                       └─► a file that it does not decode: DataFusion reads it, with a reason
//!
//! Semantics  DataFusion's: its file groups, ranges, pruning and schema rules, by its own building blocks.
//! Refused    what the decoder has no form for stays with DataFusion: a whole scan, or single files of one.
//! Wrong      bytes that cannot be decoded are read again by DataFusion, whose message is then the user's.

mod decode;
mod device;
mod file;
mod pages;
mod provable;
mod prune;
mod room;
mod scan;
mod survivors;
mod unit;

pub(crate) use decode::{Decoded, Decoding, Interning, Target, Undecoded, Values};
pub(crate) use device::{Columns, OnDevice, Refused, Spec, Up};
pub(crate) use pages::DeviceColumn;
pub(crate) use provable::{guarded, has_floats, is_guarded, unguarded};
pub(crate) use room::Room;
pub(crate) use scan::ParquetScan;
pub(crate) use survivors::Worth;
pub(crate) use unit::{Chunks, Together, Unit, Units};
