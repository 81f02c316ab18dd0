//! Tables of a folder, read one column at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{Decimal128Type, Float64Type, Int32Type, Int64Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Replaces NULL in columns read as integers.
pub const NULL: i64 = i64::MIN;

/// A folder with one folder per table.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn parts(&self, table: &str) -> Result<Vec<PathBuf>, String> {
        let folder = self.path.join(table);
        let listed =
            std::fs::read_dir(&folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
        let mut parts: Vec<PathBuf> = listed
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
            .collect();
        parts.sort();
        if parts.is_empty() { Err(format!("no Parquet files in {}", folder.display())) } else { Ok(parts) }
    }

    fn reader(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, String> {
        let say = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
        let file = File::open(path).map_err(|error| say(&error))?;
        ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| say(&error))
    }

    /// Metadata that the generator stored in its files.
    pub fn noted(&self, key: &str) -> Result<String, String> {
        let parts = self.parts("reason")?;
        let reader = Self::reader(&parts[0])?;
        let noted = reader.metadata().file_metadata().key_value_metadata().into_iter().flatten();
        noted
            .filter(|entry| entry.key == format!("millpond.{key}"))
            .find_map(|entry| entry.value.clone())
            .ok_or_else(|| format!("{} does not say its {key}", parts[0].display()))
    }

    /// Scale that is stored in the files.
    pub fn scale(&self) -> Result<f64, String> {
        self.noted("scale")?.parse().map_err(|error| format!("the scale of the files is no number: {error}"))
    }

    pub fn num_rows(&self, table: &str) -> Result<u64, String> {
        let mut rows = 0;
        for part in self.parts(table)? {
            rows += Self::reader(&part)?.metadata().file_metadata().num_rows() as u64;
        }
        Ok(rows)
    }

    /// Names of a table's columns.
    pub fn columns(&self, table: &str) -> Result<Vec<String>, String> {
        let reader = Self::reader(&self.parts(table)?[0])?;
        Ok(reader.schema().fields().iter().map(|field| field.name().clone()).collect())
    }

    /// Passes the arrays of a column to `take`, in order.
    pub fn each(&self, table: &str, column: &str, mut take: impl FnMut(&ArrayRef)) -> Result<(), String> {
        for part in self.parts(table)? {
            let builder = Self::reader(&part)?;
            let mask = ProjectionMask::columns(builder.parquet_schema(), [column]);
            let say = |error: &dyn std::fmt::Display| format!("cannot read {column} of {}: {error}", part.display());
            let reader = builder.with_projection(mask).build().map_err(|error| say(&error))?;
            for batch in reader {
                let batch = batch.map_err(|error| say(&error))?;
                take(batch.column_by_name(column).ok_or_else(|| format!("{table} has no column {column}"))?);
            }
        }
        Ok(())
    }

    /// A column of integers, or of money in hundredths.
    pub fn numbers(&self, table: &str, column: &str) -> Result<Vec<i64>, String> {
        let mut numbers = Vec::new();
        self.each(table, column, |array| {
            if let Some(values) = array.as_primitive_opt::<Int64Type>() {
                numbers.extend(values.iter().map(|value| value.unwrap_or(NULL)));
            } else if let Some(values) = array.as_primitive_opt::<Int32Type>() {
                numbers.extend(values.iter().map(|value| value.map_or(NULL, i64::from)));
            } else if let Some(values) = array.as_primitive_opt::<Decimal128Type>() {
                numbers.extend(values.iter().map(|value| value.map_or(NULL, |value| value as i64)));
            } else {
                let values = array.as_primitive::<Float64Type>();
                numbers.extend(values.iter().map(|value| value.map_or(NULL, |value| (value * 100.0).round() as i64)));
            }
        })?;
        Ok(numbers)
    }

    /// A column of text; NULL becomes empty.
    pub fn texts(&self, table: &str, column: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        self.each(table, column, |array| {
            let values = array.as_string::<i32>();
            texts.extend(values.iter().map(|value| value.unwrap_or_default().to_string()));
        })?;
        Ok(texts)
    }

    /// Number of NULLs of a column, and of its rows.
    pub fn nulls(&self, table: &str, column: &str) -> Result<(usize, usize), String> {
        let (mut nulls, mut rows) = (0, 0);
        self.each(table, column, |array| {
            nulls += array.null_count();
            rows += array.len();
        })?;
        Ok((nulls, rows))
    }
}
