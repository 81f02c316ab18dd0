//! What it took to place a plan, for its report.
//!
//!   walk, statistics ─ count ─► Judged ─ kept by every border of the plan ─► QueryReport

use std::sync::atomic::AtomicU64;

/// What placement read and lowered to place a plan, all tries together.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// Times that the expressions of a node were lowered, to see whether it can run on the device.
    pub lowerings: AtomicU64,
    /// Times that statistics of a source were computed.
    pub statistics_read: AtomicU64,
}
