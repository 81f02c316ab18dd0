//! What leaves the device: the border node, the way of rows to Arrow, and the CPU that takes over.

pub(crate) mod download;
pub(crate) mod lists;
pub mod node;
pub mod results;
pub(crate) mod takeover;
