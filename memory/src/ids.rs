//! Plain names that every part of the crate uses: streams, spaces of memory, reasons for refusals. Imports nothing.

use std::fmt;

/// ID of a stream: never reused, unlike the driver's handle.
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

/// The space that bytes are promised in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemorySpace {
    #[default]
    Device,
    Host,
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemorySpace::Device => "device",
            MemorySpace::Host => "host",
        })
    }
}

/// Reason for a refused request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is more than could ever be promised.
    TooLarge,
    /// There is no room now, and the caller did not want to wait.
    NoRoom,
    /// Everyone who holds memory was waiting for more, and this one's turn to give way had come.
    Deadlock,
}
