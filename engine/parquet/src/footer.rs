//! The footer of a file, field by field, including fields that parquet's own reader drops.
//!
//! ```text
//!   FileMetaData  2 schema  4 row groups ─► 1 column chunks  4 sorting columns  5 key-value metadata  8 encryption
//! ```
//!
//! For   refusing what a writer cannot keep, and for comparing a new footer with the old one.

use std::collections::BTreeMap;

use crate::error::{PageError, Result};
use crate::thrift::{Compact, Field, Value};

/// Fields of the struct FileMetaData.
const SCHEMA: i16 = 2;
const ROW_GROUPS: i16 = 4;
const KEY_VALUES: i16 = 5;
const FILE_ENCRYPTION: i16 = 8;
/// Fields of the struct RowGroup.
const CHUNKS: i16 = 1;
const SORTING: i16 = 4;
/// Fields of the struct ColumnChunk.
const FILE_PATH: i16 = 1;
const METADATA: i16 = 3;
const CHUNK_ENCRYPTION: i16 = 8;
const ENCRYPTED_METADATA: i16 = 9;
/// Fields of the struct ColumnMetaData.
const PATH: i16 = 3;
const CHUNK_KEY_VALUES: i16 = 8;
/// Fields of the struct SchemaElement.
mod element {
    pub(super) const TYPE: i16 = 1;
    pub(super) const LENGTH: i16 = 2;
    pub(super) const REPETITION: i16 = 3;
    pub(super) const NAME: i16 = 4;
    pub(super) const CHILDREN: i16 = 5;
    pub(super) const CONVERTED: i16 = 6;
    pub(super) const SCALE: i16 = 7;
    pub(super) const PRECISION: i16 = 8;
    pub(super) const LOGICAL: i16 = 10;
}

/// Parts of a footer that are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    /// The elements of the schema in depth-first order, the root first.
    schema: Vec<BTreeMap<i16, Value>>,
    key_values: Option<Value>,
    /// The sorting columns of each row group, if it has some.
    sorting: Vec<Option<Value>>,
    /// First feature of the file that the writer cannot keep.
    obstacle: Option<String>,
}

impl Footer {
    /// Reads the struct FileMetaData that `bytes` begin with.
    ///
    /// # Errors
    /// [`PageError::Header`] where it is malformed.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut footer = Self::default();
        let mut reader = Compact::new(bytes, 0);
        reader.fields(|reader, field| {
            match field.id {
                SCHEMA => footer.schema = elements(reader, field)?,
                KEY_VALUES => footer.key_values = Some(reader.value(field)?),
                ROW_GROUPS => reader.structures(field, |reader| footer.row_group(reader))?,
                FILE_ENCRYPTION => {
                    footer.obstacle = Some("its columns are encrypted, and Millpond has no keys".into());
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(footer)
    }

    fn row_group(&mut self, reader: &mut Compact<'_>) -> Result<()> {
        let mut sorting = None;
        reader.fields(|reader, field| {
            match field.id {
                CHUNKS => reader.structures(field, |reader| self.chunk(reader))?,
                SORTING => sorting = Some(reader.value(field)?).filter(|list| *list != Value::List(Vec::new())),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        self.sorting.push(sorting);
        Ok(())
    }

    fn chunk(&mut self, reader: &mut Compact<'_>) -> Result<()> {
        let (mut path, mut found) = (None, None);
        reader.fields(|reader, field| {
            match field.id {
                METADATA => reader.structure(field, |reader, field| {
                    match field.id {
                        PATH => path = Some(reader.value(field)?),
                        CHUNK_KEY_VALUES => {
                            let keys = keys(&reader.value(field)?);
                            if !keys.is_empty() {
                                found = Some(format!(
                                    "has key-value metadata of its own ({}), which no writer here can keep: write the \
                                     rows without it by COPY … TO",
                                    keys.join(", ")
                                ));
                            }
                        }
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                FILE_PATH => {
                    let Value::Bytes(file) = reader.value(field)? else { return Ok(true) };
                    found = Some(format!("lies in another file, '{}'", String::from_utf8_lossy(&file)));
                }
                CHUNK_ENCRYPTION | ENCRYPTED_METADATA => {
                    found = Some("is encrypted, and Millpond has no keys".into());
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if let (None, Some(found)) = (&self.obstacle, found) {
            let path = match path {
                Some(Value::List(parts)) => parts.iter().map(text).collect::<Vec<_>>().join("."),
                _ => "of unknown name".into(),
            };
            self.obstacle = Some(format!("column {path} {found}"));
        }
        Ok(())
    }

    /// First feature of the file that the writer cannot keep, as a reason for not rewriting it.
    pub(crate) fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// First difference in `new`; `None` if nothing is lost. The physical type of `converted` leaf columns may differ.
    pub(crate) fn lost_in(&self, new: &Self, converted: &[bool]) -> Option<String> {
        if self.key_values != new.key_values {
            return Some("its key-value metadata differ".into());
        }
        let first = self.sorting.iter().find(|sorting| sorting.is_some());
        if let Some(first) = first
            && new.sorting.iter().any(|sorting| sorting.as_ref() != first.as_ref())
        {
            return Some("its sorting columns differ".into());
        }
        if self.schema.len() != new.schema.len() {
            return Some("its schema has another number of elements".into());
        }
        let mut leaf = 0;
        for (index, (old, new)) in self.schema.iter().zip(&new.schema).enumerate() {
            let is_leaf = old.contains_key(&element::TYPE);
            let is_converted = is_leaf && converted.get(leaf).copied().unwrap_or(false);
            leaf += usize::from(is_leaf);
            let may_differ = |id: i16| match id {
                // The root has none; some writers give it one.
                element::REPETITION => index == 0,
                element::CHILDREN => old.get(&id) == Some(&Value::Int(0)),
                element::TYPE | element::LENGTH | element::LOGICAL | element::CONVERTED => is_converted,
                _ => false,
            };
            // The old form of a logical type is added where there is one.
            let may_come = |id: i16| match id {
                element::CONVERTED | element::SCALE | element::PRECISION => old.contains_key(&element::LOGICAL),
                _ => false,
            };
            let lost = old.iter().find(|(id, value)| new.get(id) != Some(value) && !may_differ(**id));
            let added = new.keys().find(|id| !old.contains_key(id) && !may_differ(**id) && !may_come(**id));
            if let Some(id) = lost.map(|(id, _)| id).or(added) {
                let name = old.get(&element::NAME).map_or_else(String::new, text);
                return Some(format!("{} of {name} differs", part(*id)));
            }
        }
        None
    }
}

/// The elements of a schema.
fn elements(reader: &mut Compact<'_>, field: Field) -> Result<Vec<BTreeMap<i16, Value>>> {
    let malformed = |reader: &Compact<'_>| -> PageError { reader.malformed("has a schema of an unexpected type") };
    let Value::List(elements) = reader.value(field)? else { return Err(malformed(reader)) };
    let fields = |element| match element {
        Value::Struct(fields) => Ok(fields),
        _ => Err(malformed(reader)),
    };
    elements.into_iter().map(fields).collect()
}

/// The keys of a list of the struct KeyValue.
fn keys(pairs: &Value) -> Vec<String> {
    let Value::List(pairs) = pairs else { return Vec::new() };
    let key = |pair: &Value| match pair {
        Value::Struct(fields) => fields.get(&1).map(text),
        _ => None,
    };
    pairs.iter().filter_map(key).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// A field of a schema's element, in words.
fn part(id: i16) -> &'static str {
    match id {
        element::TYPE | element::LENGTH => "the physical type",
        element::REPETITION => "whether NULL is possible",
        element::NAME => "the name",
        element::CHILDREN => "the number of fields",
        element::CONVERTED | element::LOGICAL => "the logical type",
        element::SCALE | element::PRECISION => "scale or precision",
        9 => "the field id",
        _ => "something unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// The footer of a file without rows.
    fn footer(message: &str) -> Footer {
        let schema = Arc::new(parse_message_type(message).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let bytes = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap().into_inner().unwrap();
        let length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        Footer::read(&bytes[bytes.len() - 8 - length..]).unwrap()
    }

    #[test]
    fn what_a_schema_has_lost_is_named() {
        let all = "message m { required int64 key = 1; optional fixed_len_byte_array(16) id (UUID); optional int64 t \
                   (TIME(MICROS, true)); optional group g (LIST) { repeated group list { optional binary item (JSON); } } }";
        let old = footer(all);
        assert_eq!(old.lost_in(&old, &[]), None);
        for (from, to, lost) in [
            ("required int64 key = 1", "required int64 key", "the field id of key differs"),
            ("required int64 key", "optional int64 key", "whether NULL is possible of key differs"),
            ("required int64 key", "required int64 kay", "the name of key differs"),
            ("id (UUID)", "id", "the logical type of id differs"),
            ("(TIME(MICROS, true))", "(TIME(MICROS, false))", "the logical type of t differs"),
            ("(JSON)", "(STRING)", "the logical type of item differs"),
            ("g (LIST)", "g", "the logical type of g differs"),
            ("required int64 key = 1;", "", "its schema has another number of elements"),
        ] {
            assert_eq!(old.lost_in(&footer(&all.replace(from, to)), &[]).as_deref(), Some(lost), "{from} to {to}");
        }
        let other = footer(&all.replace("required int64 key", "required int32 key"));
        assert_eq!(old.lost_in(&other, &[]).as_deref(), Some("the physical type of key differs"));
        assert_eq!(old.lost_in(&other, &[true, false]), None);
    }
}
