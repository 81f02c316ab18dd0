//! Statements that write rows: COPY, INSERT, UPDATE, DELETE. Their count is a note on standard error and no answer.
//!
//! ```text
//!   COPY … TO 'x.csv'                      written by DataFusion          ─► note: 10 rows written to 'x.csv'
//!   COPY … TO '/dev/stdout' (FORMAT csv)   a temporary file ─ its bytes ─► standard output, a device, a pipe
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use futures::StreamExt;
use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::datatypes::UInt64Type;
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::dml::CopyTo;
use millpond::datafusion::logical_expr::{LogicalPlan, WriteOp};
use millpond::{QueryStream, address};
use tempfile::TempPath;

use crate::error::CliError;
use crate::output::{self, Output, lower};

/// What becomes of the rows that a statement counts, such as `written to 'x.csv'`; `None` for a statement with an answer.
pub fn words(plan: &LogicalPlan) -> Option<String> {
    match plan {
        LogicalPlan::Copy(copy) => Some(format!("written to '{}'", address::path_of(&copy.output_url).display())),
        LogicalPlan::Dml(write) => {
            let verb = match write.op {
                WriteOp::Insert(_) => "inserted into",
                WriteOp::Update => "updated in",
                WriteOp::Delete => "deleted from",
                _ => "written to",
            };
            Some(format!("{verb} {}", write.table_name))
        }
        _ => None,
    }
}

/// The number of rows that a statement which runs has written.
///
/// # Errors
/// DataFusion's.
pub async fn rows(running: &mut QueryStream) -> Result<usize> {
    let mut rows = 0;
    while let Some(batch) = running.next().await {
        let batch = batch?;
        let counts = batch.columns().first().and_then(|column| column.as_primitive_opt::<UInt64Type>());
        rows += counts.map_or(0, |counts| counts.values().iter().sum::<u64>());
    }
    Ok(rows as usize)
}

/// A COPY to a descriptor, a device or a pipe, which is written to a temporary file first: DataFusion writes files alone.
pub struct Redirected {
    temporary: TempPath,
    target: PathBuf,
}

/// A COPY that writes a file, and where the bytes of that file go.
///
/// # Errors
/// Exit 1 for a COPY with partitions to such a target, 4 if there can be no temporary file.
pub fn redirected(mut copy: CopyTo) -> Result<(CopyTo, Option<Redirected>), CliError> {
    let target = address::path_of(&copy.output_url);
    if !output::is_stream(&target) {
        return Ok((copy, None));
    }
    if !copy.partition_by.is_empty() {
        return Err(CliError::sql(format!(
            "COPY … PARTITIONED BY writes folders, and '{}' is none: name a folder, or leave the partitions out",
            target.display()
        )));
    }
    let suffix = format!(".{}", copy.file_type.get_ext());
    let temporary = tempfile::Builder::new().prefix(".millpond-").suffix(&suffix).tempfile();
    let temporary = temporary.map_err(|error| {
        CliError::file(format!(
            "cannot make a temporary file in '{}': {}",
            std::env::temp_dir().display(),
            lower(&error)
        ))
    })?;
    let temporary = temporary.into_temp_path();
    output::remove_at_end(vec![temporary.to_path_buf()]);
    copy.output_url = address::of_target(&temporary.to_string_lossy());
    Ok((copy, Some(Redirected { temporary, target })))
}

impl Redirected {
    /// Writes the bytes to the target, on a thread of its own: a pipe may wait for its reader.
    ///
    /// # Errors
    /// Exit 4, as an [`Output`] says.
    pub async fn send(self) -> Result<(), CliError> {
        let sent = tokio::task::spawn_blocking(move || {
            let mut output = Output::open(&self.target)?;
            let copied = File::open(&self.temporary).and_then(|mut file| io::copy(&mut file, &mut output));
            copied.and_then(|_| output.flush()).map_err(|error| output.failure(&error))?;
            output.commit()
        });
        sent.await.unwrap_or_else(|error| Err(CliError::sql(format!("a thread ended: {error}"))))
    }
}
