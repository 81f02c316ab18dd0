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
use std::path::Path;
use std::sync::Arc;

use datafusion::physical_plan::displayable;
use millpond_kernels::pipeline::Pipeline;

use crate::program::run::Run;
use crate::program::segments::Program;

/// Part of a program that generated a pipeline.
#[derive(Debug, Clone, Copy)]
pub enum Generated {
    Segment(usize),
    /// Kernel that fills the table of a join's build side.
    JoinTable,
    /// Kernel that fetches the values of unnested rows.
    Unnest,
}

/// Writes pipelines of a run, where the session keeps PTX.
pub fn keep_ptx<'p>(run: &Run, of: Generated, pipelines: impl IntoIterator<Item = &'p Arc<Pipeline>>) {
    let folder = &run.options.debug_keep_ptx;
    if folder.is_empty() {
        return;
    }
    for pipeline in pipelines {
        if let Err(error) = write(Path::new(folder), &run.prepared.program, of, &pipeline.compiled().text) {
            tracing::warn!("PTX is not kept in '{folder}': {error}");
            return;
        }
    }
}

fn write(folder: &Path, program: &Program, of: Generated, text: &str) -> std::io::Result<()> {
    let plan = program.works.first().map(|work| displayable(work.node.as_ref()).indent(false).to_string());
    let plan = plan.unwrap_or_default();
    let (name, title) = match of {
        Generated::Segment(index) => (format!("segment-{index}"), program.segment_name(index)),
        Generated::JoinTable => ("join-table".to_string(), "table of a join's build side".to_string()),
        Generated::Unnest => ("unnest".to_string(), "values of unnested rows".to_string()),
    };
    let comments: String =
        std::iter::once(title.as_str()).chain(plan.lines()).map(|line| format!("// {line}\n")).collect();
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{:08x}-{name}-{:08x}.ptx", hash(&plan), hash(text)));
    std::fs::write(path, comments + text)
}

fn hash(text: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish() as u32
}
