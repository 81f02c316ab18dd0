//! Programs: device subtrees compiled into pipelines, and the runs of these.
//!
//!   DownloadExec ─ DeviceAggregateExec ─ DeviceJoinExec ─┬─ UploadExec
//!        │                                               └─ DeviceFilterExec ─ UploadExec
//!        └─► Program  [ upload → build ] [ upload → filter → probe → aggregate ] [ groups → averages → materialise ]
//!               └─► Run   feeders · tables on the device · results         one per attempt; nothing outlives it
//!
//! Trouble  out of memory, a lost device or an error flag before the first batch re-runs the CPU subplan, with a note.

pub mod answers;
pub(crate) mod attempts;
pub(crate) mod background_compile;
pub mod build_side;
pub mod context;
pub mod contract;
pub mod counts;
pub(crate) mod download;
pub(crate) mod expand;
pub mod extent;
pub(crate) mod interning;
pub(crate) mod judged;
pub(crate) mod keeper;
pub(crate) mod kept_ptx;
pub(crate) mod lists;
pub mod lower;
pub mod materialise;
pub mod movers;
mod packing;
pub mod part;
pub mod piece;
pub mod prepared;
mod read_back;
pub mod results;
pub mod run;
mod schedule;
pub mod segment_result;
pub mod segment_run;
pub mod segments;
pub mod shape;
pub mod tables;
pub mod texts;
