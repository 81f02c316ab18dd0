//! Statements that write rows: COPY, INSERT, UPDATE, DELETE. Their row count is printed as a note on standard error,
//! not as an answer.
//!
//! ```text
//!   COPY … TO 'x.csv'                      written by DataFusion          ─► note: 10 rows written to 'x.csv'
//!   COPY … TO '/dev/stdout' (FORMAT csv)   a temporary file ─ its bytes ─► standard output, a device, a pipe
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use futures::StreamExt;
use millpond::QueryStream;
use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::datatypes::UInt64Type;
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::dml::CopyTo;
use millpond::datafusion::logical_expr::{LogicalPlan, WriteOp};
use millpond::files::address;
use tempfile::TempPath;

use crate::error::CliError;
use crate::output::{self, Output, lower};

/// Description of the counted rows' destination, such as `written to 'x.csv'`; `None` for a statement with an answer.
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

/// The number of rows written by a running statement.
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

/// A COPY to a descriptor, a device or a pipe. It writes a temporary file first, because DataFusion writes only files.
pub struct Redirected {
    temporary: TempPath,
    target: PathBuf,
}

/// Redirects a COPY whose target is not a file. Returns the COPY, and the redirection if one is needed.
///
/// # Errors
/// Exit 1 for a partitioned COPY to such a target, 4 if no temporary file can be created.
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
    /// Copies the bytes to the target on a separate thread, since a pipe may wait for its reader.
    ///
    /// # Errors
    /// Exit 4, as for any [`Output`].
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
