//! Reads the subset of the Thrift compact protocol that page headers and footers use.
//!
//!   15 04     field 1 (delta 1, type i32), zigzag varint 2
//!   19 2c …   field 2 (delta 1, list): two structs
//!   00        the struct ends
//!
//! Bounds   every read is checked, nesting is limited, and a skip takes no more steps than there are bytes.

use std::collections::BTreeMap;

use crate::error::{PageError, Result};

/// Deeper nesting than statistics of geometries have.
const DEPTH: u32 = 16;

pub(crate) struct Compact<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
    /// Byte offset of the header, for error messages.
    start: usize,
}

/// Contents of a field's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) id: i16,
    kind: u8,
}

/// A value of any type, for fields that are compared but not interpreted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    /// A floating-point number or a UUID, as it lies there, and binary values.
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Struct(BTreeMap<i16, Value>),
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

impl<'a> Compact<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, start: at }
    }

    pub(crate) fn malformed(&self, what: &'static str) -> PageError {
        PageError::Header { at: self.start, what }
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.malformed("is cut short"))?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed("has a number of more than 64 bits"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn advance(&mut self, bytes: u64) -> Result<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return Err(self.malformed("is cut short"));
        }
        self.at += bytes as usize;
        Ok(())
    }

    /// The next field of a struct, or `None` at its end. `last` is the ID of the previous field, 0 for the first.
    pub(crate) fn field(&mut self, last: i16) -> Result<Option<Field>> {
        let byte = self.byte()?;
        if byte & 0x0f == 0 {
            return Ok(None);
        }
        let id = match i16::from(byte >> 4) {
            0 => {
                i16::try_from(self.zigzag()?).map_err(|_| self.malformed("has a field number of more than 16 bits"))?
            }
            delta => last.checked_add(delta).ok_or_else(|| self.malformed("has too many fields"))?,
        };
        Ok(Some(Field { id, kind: byte & 0x0f }))
    }

    pub(crate) fn i32(&mut self, field: Field) -> Result<i32> {
        if field.kind != I32 {
            return Err(self.malformed("has a field of an unexpected type"));
        }
        i32::try_from(self.zigzag()?).map_err(|_| self.malformed("has a number of more than 32 bits"))
    }

    /// A number that cannot be negative.
    pub(crate) fn size(&mut self, field: Field) -> Result<u32> {
        u32::try_from(self.i32(field)?).map_err(|_| self.malformed("has a negative size"))
    }

    pub(crate) fn bool(&mut self, field: Field) -> Result<bool> {
        match field.kind {
            TRUE => Ok(true),
            FALSE => Ok(false),
            _ => Err(self.malformed("has a field of an unexpected type")),
        }
    }

    /// Calls `read` for each field of a struct. Skips the fields for which it returns false.
    pub(crate) fn fields(&mut self, mut read: impl FnMut(&mut Self, Field) -> Result<bool>) -> Result<()> {
        let mut last = 0;
        while let Some(field) = self.field(last)? {
            last = field.id;
            if !read(self, field)? {
                self.skip(field.kind, DEPTH)?;
            }
        }
        Ok(())
    }

    /// The struct that `field` is.
    pub(crate) fn structure(&mut self, field: Field, read: impl FnMut(&mut Self, Field) -> Result<bool>) -> Result<()> {
        if field.kind != STRUCT {
            return Err(self.malformed("has a field of an unexpected type"));
        }
        self.fields(read)
    }

    /// Calls `read` for each struct of the list that `field` is.
    pub(crate) fn structures(&mut self, field: Field, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if field.kind != LIST {
            return Err(self.malformed("has a field of an unexpected type"));
        }
        let (length, kind) = self.list()?;
        if length > 0 && kind != STRUCT {
            return Err(self.malformed("has a list of an unexpected type"));
        }
        (0..length).try_for_each(|_| read(self))
    }

    /// The value of `field`, whatever it is.
    pub(crate) fn value(&mut self, field: Field) -> Result<Value> {
        match field.kind {
            TRUE | FALSE => Ok(Value::Bool(field.kind == TRUE)),
            kind => self.value_of(kind, DEPTH),
        }
    }

    fn value_of(&mut self, kind: u8, depth: u32) -> Result<Value> {
        let Some(depth) = depth.checked_sub(1) else { return Err(self.malformed("is nested too deeply")) };
        match kind {
            // Only elements have a byte: a boolean field's value is in its header.
            TRUE | FALSE => Ok(Value::Bool(self.byte()? == TRUE)),
            BYTE => Ok(Value::Int(i64::from(self.byte()? as i8))),
            I16 | I32 | I64 => self.zigzag().map(Value::Int),
            DOUBLE => self.taken(8),
            UUID => self.taken(16),
            BINARY => {
                let bytes = self.varint()?;
                self.taken(bytes)
            }
            LIST | SET => {
                let (length, kind) = self.list()?;
                // Each element has a byte or more, so the bytes bound the list.
                (0..length).map(|_| self.value_of(kind, depth)).collect::<Result<_>>().map(Value::List)
            }
            MAP => {
                let length = self.varint()?;
                let kinds = if length > 0 { self.byte()? } else { 0 };
                let pair = |_| Ok((self.value_of(kinds >> 4, depth)?, self.value_of(kinds & 0x0f, depth)?));
                (0..length).map(pair).collect::<Result<_>>().map(Value::Map)
            }
            STRUCT => {
                let (mut fields, mut last) = (BTreeMap::new(), 0);
                while let Some(field) = self.field(last)? {
                    last = field.id;
                    let value = match field.kind {
                        TRUE | FALSE => Value::Bool(field.kind == TRUE),
                        kind => self.value_of(kind, depth)?,
                    };
                    fields.insert(field.id, value);
                }
                Ok(Value::Struct(fields))
            }
            _ => Err(self.malformed("has a field of an unknown type")),
        }
    }

    fn taken(&mut self, bytes: u64) -> Result<Value> {
        let from = self.at;
        self.advance(bytes)?;
        Ok(Value::Bytes(self.bytes[from..self.at].to_vec()))
    }

    /// The header of a list: the number of elements, and their type.
    fn list(&mut self) -> Result<(u64, u8)> {
        let byte = self.byte()?;
        let length = match byte >> 4 {
            15 => self.varint()?,
            length => length.into(),
        };
        Ok((length, byte & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<()> {
        let Some(depth) = depth.checked_sub(1) else { return Err(self.malformed("is nested too deeply")) };
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.advance(1),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.advance(8),
            UUID => self.advance(16),
            BINARY => {
                let bytes = self.varint()?;
                self.advance(bytes)
            }
            LIST | SET => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let length = self.varint()?;
                let kinds = if length > 0 { self.byte()? } else { 0 };
                for _ in 0..length {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 0x0f, depth)?;
                }
                Ok(())
            }
            STRUCT => {
                let mut last = 0;
                while let Some(field) = self.field(last)? {
                    last = field.id;
                    self.skip(field.kind, depth)?;
                }
                Ok(())
            }
            _ => Err(self.malformed("has a field of an unknown type")),
        }
    }

    /// Booleans in lists have a byte, unlike those in structs: so each element has one, and the bytes bound the steps.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<()> {
        match kind {
            TRUE | FALSE => self.advance(1),
            kind => self.skip(kind, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_every_type_are_skipped() {
        // 1: i32 2 · 2: list of two structs · 3: map of bytes to binaries · 4: double · 5: true · 6: i32 −1
        let bytes = [
            0x15, 0x04, 0x19, 0x2c, 0x15, 0x02, 0x00, 0x00, 0x1b, 0x01, 0x38, 0x07, 0x01, b'x', 0x17, 0, 0, 0, 0, 0, 0,
            0, 0, 0x11, 0x15, 0x01, 0x00,
        ];
        let mut reader = Compact::new(&bytes, 0);
        let mut found = Vec::new();
        let read = |reader: &mut Compact<'_>, field: Field| {
            if field.id == 1 || field.id == 6 {
                found.push(reader.i32(field)?);
                return Ok(true);
            }
            Ok(false)
        };
        reader.fields(read).unwrap();
        assert_eq!((found, reader.at), (vec![2, -1], bytes.len()));
    }

    #[test]
    fn lists_longer_than_the_bytes_end_at_once() {
        let bytes = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(Compact::new(&bytes, 0).fields(|_, _| Ok(false)).is_err());
        let nested = [0x1c; 100];
        assert!(Compact::new(&nested, 0).fields(|_, _| Ok(false)).is_err());
    }
}
