//! Pinned host memory: what copies to and from a device go through.

#[expect(unsafe_code, reason = "the one place where raw host memory becomes slices and words")]
mod block;

pub use block::{HostBlock, HostReadGuard, HostSpan, HostWriteGuard};
