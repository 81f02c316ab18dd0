//! What runs: a device subtree compiled into pipelines, and one run of them.
//!
//!   DownloadExec ─ DeviceAggregateExec ─ DeviceJoinExec ─┬─ UploadExec
//!        │                                               └─ DeviceFilterExec ─ UploadExec
//!        └─► Program  [ upload → build ] [ upload → filter → probe → aggregate ] [ groups → averages → materialise ]
//!               └─► Run   feeders · dictionaries · tables · results         one per execution; nothing outlives it
//!
//! Trouble  out of memory, a lost device or an error flag before the first batch re-runs the CPU subplan, with a note.

pub(crate) mod background_compile;
pub(crate) mod common_subplans;
pub(crate) mod counts;
pub(crate) mod extents;
pub(crate) mod failure;
pub mod lower;
pub(crate) mod part;
pub(crate) mod run;
mod schedule;
pub mod segments;
pub(crate) mod tables;
pub(crate) mod texts;
