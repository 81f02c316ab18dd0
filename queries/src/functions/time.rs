//! Times as 64-bit numbers: integers unchanged, timestamps in their own unit.
//!
//! A distance is in the unit of an integer column, and in seconds for a timestamp.

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array};
use millpond::datafusion::arrow::compute::{CastOptions, cast_with_options};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type, TimeUnit};
use millpond::datafusion::error::Result;

use super::FunctionError;

/// Description of the types in [`fits`], for messages.
pub(crate) const WANTED: &str = "an integer or a TIMESTAMP; CAST it to BIGINT or TIMESTAMP";

pub(crate) fn fits(data_type: &DataType) -> bool {
    data_type.is_integer() || matches!(data_type, DataType::Timestamp(..))
}

/// Number of column units per unit of the distance.
pub(crate) fn scale(data_type: &DataType) -> i128 {
    match data_type {
        DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1_000_000_000,
        _ => 1,
    }
}

/// Values of the column.
///
/// # Errors
/// [`FunctionError::Value`] for an unsigned number of 2⁶³ or more.
pub(crate) fn values(function: &'static str, column: &str, array: &ArrayRef) -> Result<Int64Array> {
    // A "safe" cast would convert such a number to NULL.
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(array, &DataType::Int64, &options).map_err(|error| FunctionError::Value {
        function,
        column: column.to_string(),
        what: format!("a time that BIGINT cannot hold ({error})"),
        way_out: "subtract a constant first",
    })?;
    Ok(cast.as_primitive::<Int64Type>().clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{TimestampMillisecondArray, UInt64Array};

    use super::*;

    #[test]
    fn timestamps_keep_their_unit_and_numbers_beyond_bigint_are_refused() {
        let stamps: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1_500, -1]));
        assert_eq!(values("f", "t", &stamps).expect("timestamps are times").values().as_ref(), [1_500, -1]);
        assert_eq!(scale(stamps.data_type()), 1_000);
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        let error = values("f", "t", &large).expect_err("too large").to_string();
        assert!(error.contains("column 't'") && error.contains("subtract a constant"), "{error}");
    }
}
