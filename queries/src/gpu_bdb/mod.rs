//! Steps of gpu-bdb queries after their SQL: model metrics, and the required texts.
//!
//! ```text
//!   q28.sql ─► rows (review, rating, prediction) ─► step ─► tables metrics, confusion · text "accuracy 0.886 …"
//! ```
//!
//! Tables   a step reads the answer of the last statement and the tables created by earlier statements.
//! Errors   contain the name of a missing column.

mod clusters;
mod interest;
mod ratings;

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray};
use millpond::datafusion::arrow::compute::{cast, concat_batches};
use millpond::datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::error::{DataFusionError, Result};
use rayon::prelude::*;

use crate::answer::Answer;

/// Rows of an answer, or of a table created by a query.
#[derive(Debug, Clone)]
pub struct Rows {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
}

impl Rows {
    pub fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// [`Answer::digest`] of the rows, one batch at a time.
    ///
    /// # Errors
    /// Arrow's error for a type without a text form.
    pub fn digest(&self) -> Result<String, ArrowError> {
        let of_batch = |batch: &RecordBatch| -> Result<u64, ArrowError> {
            Ok(Answer::try_new(&self.schema, std::slice::from_ref(batch))?.row_hashes())
        };
        let sum = self.batches.par_iter().map(of_batch).try_reduce(|| 0, |a, b| Ok(a.wrapping_add(b)))?;
        Ok(Answer::digest_of(self.num_rows(), sum))
    }
}

/// Results of a query's statements: the answer, and the tables by name.
#[derive(Debug, Clone)]
pub struct Tables {
    pub answer: Rows,
    pub made: Vec<(String, Rows)>,
}

/// Additional results of a step.
#[derive(Debug, Clone, Default)]
pub struct StepOutput {
    pub tables: Vec<(String, Rows)>,
    /// Report for people; every line ends with a line feed.
    pub text: String,
}

/// A function that runs after a query's last statement.
pub type Step = fn(&Tables) -> Result<StepOutput>;

/// The step of the query `id`, if it has one.
pub fn step(id: &str) -> Option<Step> {
    match id {
        "q05" => Some(interest::report),
        "q20" | "q25" | "q26" => Some(clusters::report),
        "q28" => Some(ratings::report),
        _ => None,
    }
}

impl Rows {
    /// A table of one batch.
    fn of(columns: Vec<(&str, ArrayRef)>) -> Result<Rows> {
        let batch = RecordBatch::try_from_iter(columns)?;
        Ok(Rows { schema: batch.schema(), batches: vec![batch] })
    }

    fn column(&self, name: &str, as_type: &DataType) -> Result<ArrayRef> {
        let all = concat_batches(&self.schema, &self.batches)?;
        let missing = || {
            let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
            DataFusionError::Execution(format!("a report needs column {name}; the rows have {}", names.join(", ")))
        };
        let column = all.column_by_name(name).ok_or_else(missing)?;
        Ok(cast(column, as_type)?)
    }

    /// A column of integers without NULLs.
    fn integers(&self, name: &str) -> Result<Vec<i64>> {
        Ok(self
            .column(name, &DataType::Int64)?
            .as_primitive::<Int64Type>()
            .iter()
            .map(Option::unwrap_or_default)
            .collect())
    }

    /// A column of floats; NULL is NaN.
    fn floats(&self, name: &str) -> Result<Vec<f64>> {
        let column = self.column(name, &DataType::Float64)?;
        Ok(column.as_primitive::<Float64Type>().iter().map(|value| value.unwrap_or(f64::NAN)).collect())
    }

    /// A column of text; NULL is empty.
    fn texts(&self, name: &str) -> Result<Vec<String>> {
        let column = self.column(name, &DataType::Utf8)?;
        let column = column.as_string::<i32>();
        Ok((0..column.len())
            .map(|row| if column.is_null(row) { String::new() } else { column.value(row).into() })
            .collect())
    }
}

impl Tables {
    /// The table whose name ends in `suffix`.
    fn made(&self, suffix: &str) -> Result<&Rows> {
        let found = self.made.iter().find(|(name, _)| name.ends_with(suffix)).map(|(_, rows)| rows);
        found
            .ok_or_else(|| DataFusionError::Execution(format!("a report needs a table …{suffix}; the query made none")))
    }
}

fn array<T>(values: Vec<T>) -> ArrayRef
where
    Vec<T>: IntoArray,
{
    values.into_array()
}

/// Columns from plain vectors.
trait IntoArray {
    fn into_array(self) -> ArrayRef;
}

impl IntoArray for Vec<i64> {
    fn into_array(self) -> ArrayRef {
        Arc::new(millpond::datafusion::arrow::array::Int64Array::from(self))
    }
}

impl IntoArray for Vec<f64> {
    fn into_array(self) -> ArrayRef {
        Arc::new(millpond::datafusion::arrow::array::Float64Array::from(self))
    }
}

impl IntoArray for Vec<&str> {
    fn into_array(self) -> ArrayRef {
        Arc::new(millpond::datafusion::arrow::array::StringArray::from(self))
    }
}
