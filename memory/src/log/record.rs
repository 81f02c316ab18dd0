//! One line of an allocation log: what it says, how it is written, how it is read back.
//!
//!   Thread,Time,Action,Pointer,Size,Stream,Seq,TimeNs,AllocId,Position,After,Tag
//!   3,10:42:07.000123,use_write,0x7f0000000000,4096,0x2,17,1834000,9,41,,query 7/sort
//!   3,10:42:07.000140,wait,0x0,0,0x3,18,1851000,0,7,0x2:41,query 7/sort
//!
//! Columns    RMM's six first. A reader finds columns by their names, in any order, and passes over those it does not
//!            know.
//! After      what is waited for: `stream:position`, and `all` for the whole device.

use std::fmt;
use std::io::{self, Write};

/// The columns, in the order in which they are written.
pub const COLUMNS: [&str; 12] =
    ["Thread", "Time", "Action", "Pointer", "Size", "Stream", "Seq", "TimeNs", "AllocId", "Position", "After", "Tag"];

macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal)*) => {
        /// What a line is about.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Action {
            $($(#[$doc])* $action,)*
        }

        impl Action {
            pub const ALL: [Action; [$($name),*].len()] = [$(Action::$action),*];

            /// Its name in the log; RMM's where RMM has one.
            pub fn name(self) -> &'static str {
                match self {
                    $(Action::$action => $name,)*
                }
            }
        }
    };
}

actions! {
    Allocate = "allocate"
    /// `Size` bytes were asked for, and there were none.
    AllocateFailure = "allocate failure"
    Free = "free"
    UseRead = "use_read"
    UseWrite = "use_write"
    /// A use by several streams at once: through atomics, or each in parts of its own.
    UseShare = "use_share"
    /// An event was recorded behind `Position` of `Stream`.
    Record = "record"
    /// `Stream`, standing at `Position`, now runs after `After`.
    Wait = "wait"
    /// The host knows that everything up to `After` has finished.
    Sync = "sync"
    /// What is cached beyond `Size` bytes was given back to the device.
    Trim = "trim"
    /// `Size` bytes were moved out of device memory to make room; their frees are lines of their own.
    Spill = "spill"
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a wait or a synchronisation is behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum After {
    /// Everything up to a position of a stream.
    Place { stream: u64, position: u64 },
    /// Everything on the device.
    All,
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            After::Place { stream, position } => write!(f, "{stream:#x}:{position}"),
            After::All => f.write_str("all"),
        }
    }
}

/// One line. RMM's columns are the first six; without the others a log has no order between streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub thread: u64,
    /// Microseconds since midnight, UTC.
    pub time_us: u64,
    pub action: Action,
    pub pointer: u64,
    pub size: u64,
    pub stream: u64,
    /// The order of the calls.
    pub seq: u64,
    /// Nanoseconds since the log began.
    pub time_ns: u64,
    /// Names an allocation for good; 0 for none.
    pub alloc_id: u64,
    /// How much had been submitted to `stream`.
    pub position: u64,
    pub after: Option<After>,
    pub tag: String,
}

impl Record {
    /// Writes it as a line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let (seconds, micros) = (self.time_us / 1_000_000 % 86_400, self.time_us % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let Record { thread, action, pointer, size, stream, seq, time_ns, alloc_id, position, after, tag, .. } = self;
        write!(
            out,
            "{thread},{hour:02}:{minute:02}:{second:02}.{micros:06},{action},{pointer:#x},{size},{stream:#x},"
        )?;
        write!(out, "{seq},{time_ns},{alloc_id},{position},")?;
        if let Some(after) = after {
            write!(out, "{after}")?;
        }
        writeln!(out, ",{}", quoted(tag))
    }
}

/// A field of CSV: in quotes where it holds what would end it.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) || field.trim() != field {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    }
}
