//! Partition keys in folder names, in the format of Hive, Spark and DuckDB: `year=2024/name=a%2Fb/part.parquet`.
//!
//! ```text
//!   column ─ texts ─► a key as text, NULL as `__HIVE_DEFAULT_PARTITION__` ─► DataFusion's sink ─► folder, `/` as %2F …
//!   folder ─ key ─► name and text ─ value ─► a value of the key's type; that text is NULL
//! ```
//!
//! NULL     and the empty text are distinct keys.
//! Refused  the text `__HIVE_DEFAULT_PARTITION__`, which would be read as NULL, and column names that contain `=`.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, StringArray};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::arrow::util::display::FormatOptions;
use datafusion::common::{ScalarValue, exec_err, plan_err};
use datafusion::error::Result;

/// Folder text of a NULL key.
pub(crate) const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Strict cast: a value that does not fit its type is an error.
const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };

/// Decoded name and text of a folder's key; `None` for other folder names.
pub(crate) fn key(folder: &str) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let (name, text) = folder.split_once('=')?;
    Some((decoded(name), decoded(text)))
}

/// Decodes percent escapes: `%2F` is a slash. Invalid escapes, and texts that would not be valid UTF-8, stay unchanged.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    while let Some((first, after)) = rest.split_first() {
        let code = match (first, after) {
            (b'%', [high, low, ..]) => {
                digit(high).zip(digit(low)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Value of a key's text.
///
/// # Errors
/// A text that is not a value of the type, or NULL in a column without NULLs.
pub(crate) fn value(text: &str, column: &Field) -> Result<ScalarValue> {
    let (name, of) = (column.name(), column.data_type());
    if text == NULL {
        if !column.is_nullable() {
            return plan_err!("column {name} is NOT NULL, and there is a folder {name}={NULL}, which is NULL");
        }
        return ScalarValue::try_from(of);
    }
    match ScalarValue::from(text).cast_to_with_options(of, &STRICT) {
        Ok(value) if !value.is_null() => Ok(value),
        _ => plan_err!(
            "the key of the folder '{name}={text}' is no {of}: declare column {name} as VARCHAR, or rename the folder"
        ),
    }
}

/// Type of keys with these texts: integer or date if all texts except NULL are; `None` for other texts, and if all are
/// NULL.
pub(crate) fn type_of<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Option<DataType> {
    let mut known = texts.filter(|text| *text != NULL).peekable();
    known.peek()?;
    if known.clone().all(is_whole) {
        return Some(DataType::Int64);
    }
    known.all(is_date).then_some(DataType::Date32)
}

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_ok()
}

/// `2024-02-29`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let has_form = parts.iter().map(|part| part.len()).eq([4, 2, 2]);
    let is_digits = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    has_form && is_digits && ScalarValue::from(text).cast_to_with_options(&DataType::Date32, &STRICT).is_ok()
}

/// Keys of a column as texts, NULL as [`NULL`]; `None` for types that cannot be partition keys in DataFusion.
///
/// # Errors
/// A text, or a column name, that would be read back differently.
pub(crate) fn texts(name: &str, column: &ArrayRef) -> Result<Option<ArrayRef>> {
    if name.contains('=') {
        return exec_err!(
            "the folders of a key that is called '{name}' would have another name: give the column one without '='"
        );
    }
    if !has_text(column.data_type()) {
        return Ok(None);
    }
    let column = match column.data_type() {
        // Its text form would include a time of day.
        DataType::Date64 => &cast_with_options(column, &DataType::Date32, &STRICT)?,
        _ => column,
    };
    let cast = cast_with_options(column, &DataType::Utf8, &STRICT)?;
    let texts = cast.as_string::<i32>();
    if texts.iter().any(|text| text == Some(NULL)) {
        return exec_err!(
            "column {name} has the text '{NULL}', whose folder is that of NULL: write another text for it"
        );
    }
    let named: StringArray = texts.iter().map(|text| Some(text.unwrap_or(NULL))).collect();
    Ok(Some(Arc::new(named)))
}

fn has_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => has_text(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean => true,
        DataType::Date32 | DataType::Date64 => true,
        of => of.is_integer() || of.is_floating(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_decoded_once() {
        let both = |folder| key(folder).map(|(name, text)| (name.into_owned(), text.into_owned()));
        let pair = |name: &str, text: &str| Some((name.to_string(), text.to_string()));
        assert_eq!(both("k=b%2Fc"), pair("k", "b/c"));
        assert_eq!(both("k=x=y %25"), pair("k", "x=y %"));
        assert_eq!(both("a%20b=%C3%A9"), pair("a b", "é"));
        assert_eq!(both("k="), pair("k", ""));
        assert_eq!(both("k=100%"), pair("k", "100%"));
        assert_eq!(both("k=%2541"), pair("k", "%41"));
        assert_eq!(both("k=%FF"), pair("k", "%FF"));
        assert_eq!(both("plain"), None);
    }

    #[test]
    fn keys_are_numbers_or_dates_where_all_are() {
        let of = |texts: &[&str]| type_of(texts.iter().copied());
        assert_eq!(of(&["9", "10", "01", "-5", NULL]), Some(DataType::Int64));
        assert_eq!(of(&["2020-02-29", "0999-01-01"]), Some(DataType::Date32));
        for other in [
            &["9", ""][..],
            &["9", "x"],
            &["2020-02-30"],
            &["20-02-01"],
            &[NULL],
            &[],
            &["9223372036854775808"],
            &["1.5"],
            &["+1"],
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_key_is_a_value_of_its_type_or_an_error() {
        let field = |of: DataType| Field::new("k", of, true);
        assert_eq!(value("01", &field(DataType::Int32)).expect("a number"), ScalarValue::Int32(Some(1)));
        assert_eq!(value(NULL, &field(DataType::Int32)).expect("NULL"), ScalarValue::Int32(None));
        assert_eq!(value("", &field(DataType::Utf8View)).expect("a text"), ScalarValue::Utf8View(Some(String::new())));
        let dictionary = DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8));
        assert!(value(NULL, &field(dictionary)).expect("NULL").is_null());
        for (text, of) in [("", DataType::Int32), ("x", DataType::Date32), ("300", DataType::Int8)] {
            let error = value(text, &field(of)).expect_err("no value").to_string();
            assert!(error.contains("declare column k as VARCHAR"), "{error}");
        }
        assert!(value(NULL, &Field::new("k", DataType::Int32, false)).is_err());
    }
}
