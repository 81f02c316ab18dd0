//! Results: the border node, and the fallback to the CPU. The download of rows to Arrow belongs to a run.

pub mod node;
pub(crate) mod takeover;
