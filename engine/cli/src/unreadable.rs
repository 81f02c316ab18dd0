//! Messages for unreadable files: the file, the problem, and the solution.
//!
//! ```text
//!   error of a statement ─┬─ the store names the file ────────────┐
//!                         └─ else: the statement's files, tables ─┴─► cannot read 'sales.parquet': the file ends
//!                                                                     before data that belongs to it; …
//! ```
//!
//! Damaged  Files whose metadata refers to bytes beyond their end are called damaged, even if the reader hit another
//!          error first.
//! Order    The file that the store names; else those that the statement names, spelled as there; else those of its
//!          tables.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use millpond::Millpond;
use millpond::datafusion::common::{DataFusionError, TableReference};
use millpond::datafusion::prelude::ParquetReadOptions;

use crate::error::{CliError, Exit, file_of_store};
use crate::query::bytes;
use crate::reads::{files_of_table, tables_in};
use crate::session::is_remote;
use crate::statements::Statement;

/// The message for a path that does not exist.
pub fn missing_file(path: &str) -> String {
    let from = std::env::current_dir().map(|folder| format!(" (looked from {})", folder.display())).unwrap_or_default();
    format!("file '{path}' does not exist{from}")
}

/// The error for an existing file that cannot be read in the format of its name.
pub fn unreadable(path: &str, error: &DataFusionError) -> CliError {
    if let Err(error) = refuse_false_footer(path) {
        return error;
    }
    // For a folder, name the file in it if the store does.
    let file = file_of_store(error).filter(|_| Path::new(path).is_dir());
    let message = CliError::reason(error);
    CliError::file(format!("cannot read '{}': {message}", file.as_deref().unwrap_or(path)))
}

/// Refuses a Parquet file, or a folder with one, if its footer is impossible, before a reader trusts it.
///
/// # Errors
/// Exit 4, with the file, the claimed size and the actual size.
pub fn refuse_false_footer(path: &str) -> Result<(), CliError> {
    let path = Path::new(path);
    let mut files = vec![path.to_path_buf()];
    if let Ok(entries) = fs::read_dir(path) {
        files = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
    }
    for file in files {
        if let Some(reason) = false_footer(&file) {
            return Err(CliError::file(format!("cannot read '{}': {reason}", file.display())));
        }
    }
    Ok(())
}

/// The problem with the last 8 bytes of a Parquet file, which hold the length of its metadata and the format's magic
/// bytes.
fn false_footer(path: &Path) -> Option<String> {
    const MARK: &[u8; 4] = b"PAR1";
    const TAIL: u64 = 8;
    // Skip pipes, which would wait for their writer.
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.is_file() && metadata.len() >= TAIL)?;
    let mut file = File::open(path).ok()?;
    let (mut head, mut tail) = ([0; 4], [0; TAIL as usize]);
    file.read_exact(&mut head).ok()?;
    file.seek(SeekFrom::End(-(TAIL as i64))).ok()?;
    file.read_exact(&mut tail).ok()?;
    let (length, mark) = tail.split_at(4);
    let length = u64::from(u32::from_le_bytes(length.try_into().ok()?));
    let is_false = &head == MARK && mark == MARK && length > metadata.len() - TAIL;
    is_false.then(|| {
        format!(
            "its last bytes claim {} of metadata, and the whole file has {}; it is damaged or was cut short: \
             write or copy it again",
            bytes(length),
            bytes(metadata.len())
        )
    })
}

/// A statement's error; errors about a file name the file.
pub async fn statement_error(session: &Millpond, statement: &Statement, error: &DataFusionError) -> CliError {
    let plain = CliError::statement(error, statement);
    // A reader that trusts a wrong footer may even panic.
    let is_panic = millpond::error::is_panic(error);
    if plain.exit != Exit::File && !is_panic {
        return plain;
    }
    let files = files_of(session, &statement.sql).await;
    for file in &files {
        if let Err(error) = refuse_false_footer(file) {
            return error;
        }
    }
    if is_panic {
        return plain;
    }
    if let Some(file) = file_of_store(error) {
        // Prefer the statement's own spelling of the file.
        let named = files.iter().find(|named| fs::canonicalize(named).is_ok_and(|path| path == Path::new(&file)));
        return CliError::file(format!("cannot read '{}': {}", named.unwrap_or(&file), plain.message));
    }
    if files.is_empty() || files.iter().any(|file| plain.message.contains(file)) {
        return plain;
    }
    let names: Vec<String> = files.iter().map(|file| format!("'{file}'")).collect();
    CliError::file(format!("cannot read {}: {}", names.join(" or "), plain.message))
}

/// The error of a statement that could not be planned. If a table is "not found" but names a file, the error says
/// whether the file is missing, empty or damaged.
pub async fn planning_error(session: &Millpond, statement: &Statement, error: &DataFusionError) -> CliError {
    let from_statement = statement_error(session, statement, error).await;
    if !from_statement.message.contains("not found") {
        return from_statement;
    }
    for table in tables_in(session, &statement.sql).into_iter().filter(names_a_file) {
        let path = table.table().to_string();
        if path.contains(['*', '?', '[']) {
            continue;
        }
        if is_remote(&path) {
            // The query's own error only says that the table does not exist.
            if session.context().table_provider(table).await.is_err()
                && let Err(error) = session.context().read_parquet(path.as_str(), ParquetReadOptions::default()).await
            {
                return CliError::file(format!("cannot read '{path}': {}", CliError::reason(&error)));
            }
            continue;
        }
        let Ok(metadata) = fs::metadata(&path) else { return CliError::file(missing_file(&path)) };
        if metadata.is_file() && metadata.len() == 0 {
            return CliError::file(format!("cannot read '{path}': the file is empty, and has no columns"));
        }
        // The missing name is a column, not this file.
        if session.context().table_provider(table).await.is_ok() {
            continue;
        }
        if let Err(error) = refuse_false_footer(&path) {
            return error;
        }
        if let Err(error) = session.context().read_parquet(path.as_str(), ParquetReadOptions::default()).await {
            return unreadable(&path, &error);
        }
    }
    from_statement
}

/// True if a table is named by a file path.
fn names_a_file(table: &TableReference) -> bool {
    table.table().contains(['/', '.'])
}

/// The files that a statement names, and the files of its tables.
async fn files_of(session: &Millpond, sql: &str) -> Vec<String> {
    let mut files = Vec::new();
    for table in tables_in(session, sql) {
        if names_a_file(&table) {
            files.push(table.table().to_string());
        } else {
            files.extend(files_of_table(session, table).await);
        }
    }
    files
}
