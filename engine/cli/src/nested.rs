//! Nested values as JSON, for formats with text fields.
//!
//! ```text
//!   [1, NULL]        ─► [1,null]                 {x: 'a', y: NULL} ─► {"x":"a","y":null}
//!   MAP {1: 'a'}     ─► {"1":"a"}                NULL              ─► NULL
//! ```
//!
//! Keys    Map keys become texts, since JSON has no other keys.
//! Values  As in `--format json`: binary values in hexadecimal, non-finite numbers as null.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, RecordBatch, StringBuilder};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::json::writer::{EncoderOptions, make_encoder};

/// The batch with its nested columns as JSON text.
///
/// # Errors
/// Arrow's, for a type without a JSON form: unions, and maps whose keys have no text form.
pub fn as_texts(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    each_column(&with_text_keys(batch)?, |field, column| {
        if !field.data_type().is_nested() {
            return Ok((field.clone(), column.clone()));
        }
        let options = EncoderOptions::default().with_explicit_nulls(true);
        let mut encoder = make_encoder(field, column, &options)?;
        let mut texts = StringBuilder::new();
        let mut text = Vec::new();
        for row in 0..column.len() {
            if encoder.is_null(row) {
                texts.append_null();
                continue;
            }
            text.clear();
            encoder.encode(row, &mut text);
            let text = std::str::from_utf8(&text).map_err(|error| ArrowError::JsonError(error.to_string()))?;
            texts.append_value(text);
        }
        Ok((Arc::new(Field::new(field.name(), DataType::Utf8, true)), Arc::new(texts.finish()) as ArrayRef))
    })
}

/// The batch with text keys in its maps, on every level.
///
/// # Errors
/// Arrow's, for keys that have no text form.
pub fn with_text_keys(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    each_column(batch, |field, column| {
        let wanted = text_keys(field);
        let column = if wanted == *field { column.clone() } else { cast(column, wanted.data_type())? };
        Ok((wanted, column))
    })
}

fn each_column(
    batch: &RecordBatch,
    change: impl Fn(&FieldRef, &ArrayRef) -> Result<(FieldRef, ArrayRef), ArrowError>,
) -> Result<RecordBatch, ArrowError> {
    let schema = batch.schema();
    let changed = schema.fields().iter().zip(batch.columns()).map(|(field, column)| change(field, column));
    let (fields, columns): (Vec<_>, Vec<_>) = changed.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// The field with text keys in its maps.
fn text_keys(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Map(entries, sorted) => {
            let DataType::Struct(pair) = entries.data_type() else { return field.clone() };
            let mut pair: Vec<FieldRef> = pair.iter().map(text_keys).collect();
            if let Some(key) = pair.first_mut()
                && !key.data_type().is_string()
            {
                *key = Arc::new(key.as_ref().clone().with_data_type(DataType::Utf8));
            }
            DataType::Map(of_type(entries, DataType::Struct(pair.into())), *sorted)
        }
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(text_keys).collect()),
        DataType::List(item) => DataType::List(text_keys(item)),
        DataType::LargeList(item) => DataType::LargeList(text_keys(item)),
        DataType::ListView(item) => DataType::ListView(text_keys(item)),
        DataType::LargeListView(item) => DataType::LargeListView(text_keys(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(text_keys(item), *size),
        _ => return field.clone(),
    };
    of_type(field, data_type)
}

fn of_type(field: &FieldRef, data_type: DataType) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

#[cfg(test)]
mod tests {
    use millpond::datafusion::arrow::array::{
        Array, AsArray, DictionaryArray, FixedSizeListArray, Float64Array, Int32Array, Int64Array, Int64Builder,
        ListArray, MapBuilder, StringArray, StringBuilder, StructArray,
    };
    use millpond::datafusion::arrow::buffer::NullBuffer;
    use millpond::datafusion::arrow::datatypes::{Fields, Int32Type};
    use serde_json::{Value, json};

    use super::*;

    /// The texts of a column, parsed as JSON; NULL is `None`.
    fn values(column: ArrayRef) -> Vec<Option<Value>> {
        let batch = RecordBatch::try_from_iter_with_nullable([("c", column, true)]).expect("batch");
        let texts = as_texts(&batch).expect("texts");
        let texts = texts.column(0).as_string::<i32>();
        texts.iter().map(|text| text.map(|text| serde_json::from_str(text).expect("JSON"))).collect()
    }

    #[test]
    fn a_list_keeps_nulls_apart_from_empty_lists_and_null_items() {
        let lists =
            ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None, Some(3)]), None, Some(vec![])]);
        assert_eq!(values(Arc::new(lists.clone())), [Some(json!([1, null, 3])), None, Some(json!([]))]);
        // A batch's rows may be a slice of longer arrays.
        assert_eq!(values(Arc::new(lists.slice(1, 2))), [None, Some(json!([]))]);
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None]), None], 2);
        assert_eq!(values(Arc::new(fixed)), [Some(json!([1, null])), None]);
    }

    #[test]
    fn a_struct_names_its_nulls_and_escapes_its_texts() {
        let texts = StringArray::from(vec![Some("quote \", comma, \n line, \\ and é"), None, Some("hidden")]);
        let numbers = Float64Array::from(vec![0.5, f64::NAN, 1.0]);
        let fields =
            Fields::from(vec![Field::new("a \"b\"", DataType::Utf8, true), Field::new("n", DataType::Float64, true)]);
        let nulls = NullBuffer::from(vec![true, true, false]);
        let structs = StructArray::new(fields, vec![Arc::new(texts), Arc::new(numbers)], Some(nulls));
        let first = json!({"a \"b\"": "quote \", comma, \n line, \\ and é", "n": 0.5});
        assert_eq!(values(Arc::new(structs)), [Some(first), Some(json!({"a \"b\"": null, "n": null})), None]);
    }

    #[test]
    fn keys_of_maps_are_texts_on_every_level() {
        let mut maps = MapBuilder::new(None, Int64Builder::new(), StringBuilder::new());
        maps.keys().append_slice(&[1, -2]);
        maps.values().append_value("one");
        maps.values().append_null();
        maps.append(true).expect("an entry");
        maps.append(false).expect("no entry");
        let maps: ArrayRef = Arc::new(maps.finish());
        assert_eq!(values(maps.clone()), [Some(json!({"1": "one", "-2": null})), None]);

        let field = Arc::new(Field::new("m", maps.data_type().clone(), true));
        let structs: ArrayRef = Arc::new(StructArray::new(Fields::from(vec![field.clone()]), vec![maps.clone()], None));
        assert_eq!(values(structs), [Some(json!({"m": {"1": "one", "-2": null}})), Some(json!({"m": null}))]);
        let lists =
            ListArray::try_new(field, millpond::datafusion::arrow::buffer::OffsetBuffer::from_lengths([2]), maps, None);
        assert_eq!(values(Arc::new(lists.expect("a list"))), [Some(json!([{"1": "one", "-2": null}, null]))]);
    }

    #[test]
    fn lists_behind_a_dictionary_are_lists() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(7)]), Some(vec![None])]);
        let keys = Int32Array::from(vec![Some(1), Some(0), None, Some(1)]);
        let dictionary = DictionaryArray::new(keys, Arc::new(lists));
        let expected = [Some(json!([null])), Some(json!([7])), None, Some(json!([null]))];
        assert_eq!(values(Arc::new(dictionary)), expected);
    }

    #[test]
    fn other_columns_are_left_alone() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let batch = RecordBatch::try_from_iter([("n", numbers)]).expect("batch");
        assert_eq!(as_texts(&batch).expect("texts"), batch);
    }
}
