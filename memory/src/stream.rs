//! Streams.
use std::fmt;

/// Which stream, for good: never reused, unlike the driver's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId {
    pub(crate) device_serial: u32,
    pub(crate) index: u32,
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.index)
    }
}
