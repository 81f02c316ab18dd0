//! Values for parameters: what the Python half has sorted into kinds (`_parameter` of `__init__.py`).

use std::collections::HashMap;

use arrow::datatypes::DataType;
use millpond::datafusion::common::{ParamValues, ScalarValue};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::UsageError;

/// A list for `$1`, `$2` and so on, or a map from names.
pub fn values(of: &Bound<'_, PyAny>) -> PyResult<ParamValues> {
    if let Ok(named) = of.cast::<PyDict>() {
        let mut values = HashMap::new();
        for (name, value) in named {
            values.insert(name.extract::<String>()?, scalar(&value)?);
        }
        return Ok(ParamValues::from(values));
    }
    let list = of.cast::<PyList>()?;
    let values = list.iter().map(|value| scalar(&value)).collect::<PyResult<Vec<_>>>()?;
    Ok(ParamValues::from(values))
}

/// One value, as its kind and what it is made of.
fn scalar(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let (kind, value): (String, Bound<'_, PyAny>) = value.extract()?;
    Ok(match kind.as_str() {
        "null" => ScalarValue::Null,
        "bool" => ScalarValue::Boolean(Some(value.extract()?)),
        "int" => ScalarValue::Int64(Some(value.extract()?)),
        "unsigned" => ScalarValue::UInt64(Some(value.extract()?)),
        "float" => ScalarValue::Float64(Some(value.extract()?)),
        "str" => ScalarValue::Utf8(Some(value.extract()?)),
        "bytes" => ScalarValue::Binary(Some(value.extract()?)),
        "date" => ScalarValue::Date32(Some(value.extract()?)),
        "time" => ScalarValue::Time64Microsecond(Some(value.extract()?)),
        "timestamp" => ScalarValue::TimestampMicrosecond(Some(value.extract()?), None),
        "instant" => ScalarValue::TimestampMicrosecond(Some(value.extract()?), Some("+00:00".into())),
        "timestamp_ns" => ScalarValue::TimestampNanosecond(Some(value.extract()?), None),
        "instant_ns" => ScalarValue::TimestampNanosecond(Some(value.extract()?), Some("+00:00".into())),
        "duration" => ScalarValue::IntervalMonthDayNano(Some(arrow::datatypes::IntervalMonthDayNano::new(
            0,
            0,
            value.extract::<i64>()?,
        ))),
        "decimal" => {
            let (unscaled, precision, scale) = value.extract()?;
            ScalarValue::Decimal128(Some(unscaled), precision, scale)
        }
        "list" => {
            let items = value.extract::<Vec<Bound<'_, PyAny>>>()?;
            let items = items.iter().map(scalar).collect::<PyResult<Vec<_>>>()?;
            let of = items.iter().map(ScalarValue::data_type).find(|of| *of != DataType::Null);
            let of = of.unwrap_or(DataType::Null);
            let cast = items.into_iter().map(|item| item.cast_to(&of)).collect::<Result<Vec<_>, _>>();
            let items = cast.map_err(|error| UsageError::new_err(format!("a list of several types: {error}")))?;
            ScalarValue::List(ScalarValue::new_list_nullable(&items, &of))
        }
        kind => return Err(UsageError::new_err(format!("no parameter is of kind {kind}"))),
    })
}
