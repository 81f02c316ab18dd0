//! Parquet files for the engine's own decoder: from DataFusion's scan to row groups to decode.
//!
//!   DataSourceExec ─► ParquetScan ─► footers ─► row groups that may match ─► Unit ─► chunks ─► values in device layout
//!                                       │       statistics, bloom filters, pages
//!                                       └─► a file that it does not support: DataFusion reads it, with a reason
//!
//! Semantics  are DataFusion's: file groups, ranges, pruning and schema rules use its own components.
//! Refused    parts that the decoder does not support are left to DataFusion: a whole scan, or single files.
//! Wrong      bytes that cannot be decoded are read again by DataFusion, which reports the error to the user.

mod codes;
mod decode;
mod device;
mod file;
mod pages;
mod provable;
mod prune;
mod reading;
mod scan;
mod scratch;
mod survivors;
mod unit;

pub(crate) use codes::{Codes, ColumnCodes};
pub(crate) use decode::{Decoded, Decoding, Target, Undecoded, Values};
pub(crate) use device::{Columns, OnDevice, Outcome, Refused, Spec};
pub(crate) use provable::{guarded, has_floats, is_guarded, unguarded};
pub(crate) use reading::{ColumnLayout, Destination, Reader, Reading, Rest};
pub(crate) use scan::ParquetScan;
pub(crate) use survivors::Worth;
pub(crate) use unit::{Together, Unit, Units};
