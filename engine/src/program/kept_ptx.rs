//! Writes the generated PTX of a run to the folder of `millpond.debug_keep_ptx`.
//!
//! ```text
//!   DIR/5d1c02aa-segment-2-91bc44e0.ptx     hash of the plan · part of the program · hash of the text
//!     // segment 2: rows of 1 → AggregateSink
//!     // DeviceAggregateExec: gby=[…], …
//!     .version …
//! ```
//!
//! Errors   a file that cannot be written is a warning: the run goes on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;

/// Part of a program that generated a pipeline.
#[derive(Debug, Clone, Copy)]
pub enum Generated {
    Segment(usize),
    /// Kernel that fills the table of a join's build side.
    JoinTable,
    /// Kernel that fetches the values of unnested rows.
    Unnest,
}

impl Generated {
    /// Part of the file's name.
    fn name(self) -> String {
        match self {
            Self::Segment(index) => format!("segment-{index}"),
            Self::JoinTable => "join-table".to_string(),
            Self::Unnest => "unnest".to_string(),
        }
    }
}

/// Writes one text under comments with its title and its plan.
pub fn write(folder: &Path, of: Generated, title: &str, plan: &str, text: &str) -> io::Result<()> {
    let comments: String = std::iter::once(title).chain(plan.lines()).map(|line| format!("// {line}\n")).collect();
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{:08x}-{}-{:08x}.ptx", hash(plan), of.name(), hash(text)));
    std::fs::write(path, comments + text)
}

fn hash(text: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish() as u32
}
