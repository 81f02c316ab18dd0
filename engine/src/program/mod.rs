//! Programs: device subtrees compiled into pipelines, and the runs of these.
//!
//!   DownloadExec ─ DeviceAggregateExec ─ DeviceJoinExec ─┬─ UploadExec
//!        │                                               └─ DeviceFilterExec ─ UploadExec
//!        └─► Program  [ upload → build ] [ upload → filter → probe → aggregate ] [ groups → averages → materialise ]
//!               └─► Run   feeders · tables on the device · results         one per attempt; nothing outlives it
//!
//! Trouble  out of memory, a lost device or an error flag before the first batch re-runs the CPU subplan, with a note.

pub mod answers;
mod ask;
pub(crate) mod attempts;
pub(crate) mod background_compile;
pub mod build_side;
pub(crate) mod common_subplans;
pub mod context;
pub mod contract;
pub mod counts;
pub(crate) mod expansion;
pub mod extents;
pub mod given;
pub(crate) mod interning;
pub(crate) mod keep;
pub(crate) mod kept_ptx;
pub mod lower;
pub mod materialise;
pub mod movers;
mod pack;
pub mod part;
pub mod prepared;
pub mod run;
mod schedule;
pub mod segments;
pub mod tables;
pub mod texts;
