//! Results: the border node, the download of rows to Arrow, and the fallback to the CPU.

pub(crate) mod download;
pub(crate) mod lists;
pub mod node;
pub mod results;
pub(crate) mod takeover;
