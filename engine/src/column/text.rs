//! Converts strings of Arrow arrays to offsets and bytes and back: the device form of a column without a dictionary.
//!
//!   ["ab", NULL, "é"]  ──►  [ 16 18 18 20 | a b é ]          offsets are relative to the start of the column
//!   ends [2, 2, 4] + "abé"  ──►  an array of any string type
//!
//! NULL     takes no bytes, whatever the array stores in that row.
//! Limit    2 GiB including the offsets; a larger extent is refused and the query falls back to the CPU.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, LargeBinaryArray, LargeStringArray, StringArray, downcast_dictionary_array,
};
use datafusion::arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use millpond_kernels::codegen::ir::MAX_TEXT_BYTES;

use crate::column::{is_characters, packed};
use crate::error::EngineError;

/// Strings of an array, in any of Arrow's layouts.
enum Strings<'a> {
    /// Offsets and bytes, unchanged.
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    View(&'a datafusion::arrow::array::BinaryViewArray),
}

/// The array with its strings as bytes; only dictionaries are copied.
fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8 => cast(array, &DataType::Binary)?,
        DataType::LargeUtf8 => cast(array, &DataType::LargeBinary)?,
        DataType::Utf8View => cast(array, &DataType::BinaryView)?,
        DataType::Dictionary(..) => {
            let array: &dyn Array = array.as_ref();
            let (values, keys) = downcast_dictionary_array!(
                array => (Arc::clone(array.values()), cast(array.keys(), &DataType::UInt64)?),
                other => return Err(EngineError::internal(format!("{other} is no dictionary")).into())
            );
            plain(&take(&values, &keys, None)?)?
        }
        DataType::RunEndEncoded(_, values) => plain(&cast(array, values.data_type())?)?,
        DataType::FixedSizeBinary(_) => cast(array, &DataType::Binary)?,
        _ => Arc::clone(array),
    })
}

fn strings(array: &ArrayRef) -> Result<Strings<'_>> {
    Ok(match array.data_type() {
        DataType::Binary => Strings::Binary(array.as_binary()),
        DataType::LargeBinary => Strings::LargeBinary(array.as_binary()),
        DataType::BinaryView => Strings::View(array.as_binary_view()),
        other => return Err(EngineError::internal(format!("{other} is no string")).into()),
    })
}

impl Strings<'_> {
    /// Bytes of all strings.
    fn bytes(&self) -> usize {
        match self {
            Self::Binary(array) if array.null_count() == 0 => {
                let offsets = array.value_offsets();
                (offsets[array.len()] - offsets[0]) as usize
            }
            Self::LargeBinary(array) if array.null_count() == 0 => {
                let offsets = array.value_offsets();
                (offsets[array.len()] - offsets[0]) as usize
            }
            Self::View(array) if array.null_count() == 0 => array.lengths().map(|length| length as usize).sum(),
            Self::Binary(array) => array.iter().flatten().map(<[u8]>::len).sum(),
            Self::LargeBinary(array) => array.iter().flatten().map(<[u8]>::len).sum(),
            Self::View(array) => array.iter().flatten().map(<[u8]>::len).sum(),
        }
    }
}

/// Bytes that a column of these arrays takes. Arrays that are not strings count as zero bytes; [`write()`] refuses
/// them.
pub fn stored_bytes<'a>(arrays: impl Iterator<Item = &'a ArrayRef>) -> usize {
    let mut bytes = 4;
    for array in arrays {
        bytes += array.len() * 4;
        bytes += plain(array).and_then(|plain| Ok(strings(&plain)?.bytes())).unwrap_or(0);
    }
    bytes
}

/// Writes the strings of `arrays` to `out`, which has [`stored_bytes`] bytes.
pub fn write<'a>(out: &mut [u8], arrays: impl Iterator<Item = &'a ArrayRef> + Clone) -> Result<()> {
    if out.len() > MAX_TEXT_BYTES as usize {
        let why = format!("{} bytes of a string column in one extent are more than {MAX_TEXT_BYTES}", out.len());
        return Err(EngineError::internal(why).into());
    }
    let rows: usize = arrays.clone().map(|array| array.len()).sum();
    let (offsets, mut bytes) = out.split_at_mut((rows + 1) * 4);
    let mut offsets = offsets.as_chunks_mut::<4>().0.iter_mut();
    let mut at = (rows as u32 + 1) * 4;
    let mut put = |at: u32| {
        if let Some(offset) = offsets.next() {
            *offset = at.to_le_bytes();
        }
    };
    put(at);
    for array in arrays {
        let array = plain(array)?;
        // Without NULLs the bytes are already contiguous.
        macro_rules! run {
            ($array:expr) => {{
                let offsets = $array.value_offsets();
                let (first, last) = (offsets[0] as usize, offsets[$array.len()] as usize);
                let (mine, others) = bytes.split_at_mut(last - first);
                mine.copy_from_slice(&$array.value_data()[first..last]);
                bytes = others;
                for end in &offsets[1..] {
                    put(at + (*end as usize - first) as u32);
                }
                at += (last - first) as u32;
            }};
        }
        macro_rules! each {
            ($array:expr) => {
                for value in $array.iter() {
                    if let Some(value) = value {
                        let (mine, others) = bytes.split_at_mut(value.len());
                        mine.copy_from_slice(value);
                        bytes = others;
                        at += value.len() as u32;
                    }
                    put(at);
                }
            };
        }
        match strings(&array)? {
            Strings::Binary(array) if array.null_count() == 0 => run!(array),
            Strings::LargeBinary(array) if array.null_count() == 0 => run!(array),
            Strings::Binary(array) => each!(array),
            Strings::LargeBinary(array) => each!(array),
            Strings::View(array) => each!(array),
        }
    }
    Ok(())
}

/// Creates an array of `data_type` from dense `bytes`; row `i` ends at the `i`-th value of `ends` (u64).
pub fn read(data_type: &DataType, rows: usize, ends: &[u8], bytes: &[u8], validity: Option<&[u8]>) -> Result<ArrayRef> {
    let nulls = validity
        .map(|bits| NullBuffer::new(datafusion::arrow::buffer::BooleanBuffer::new(Buffer::from(bits), 0, rows)));
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
    let ends = ends.as_chunks::<8>().0.iter().take(rows).map(|end| u64::from_le_bytes(*end) as i64);
    let text = is_characters(data_type);
    let buffer = Buffer::from(bytes);
    let array: ArrayRef = if bytes.len() <= i32::MAX as usize {
        let offsets: Vec<i32> = std::iter::once(0).chain(ends.map(|end| end as i32)).collect();
        let offsets = OffsetBuffer::new(offsets.into());
        match text {
            true => Arc::new(StringArray::try_new(offsets, buffer, nulls)?),
            false => Arc::new(BinaryArray::try_new(offsets, buffer, nulls)?),
        }
    } else {
        let offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();
        let offsets = OffsetBuffer::new(offsets.into());
        match text {
            true => Arc::new(LargeStringArray::try_new(offsets, buffer, nulls)?),
            false => Arc::new(LargeBinaryArray::try_new(offsets, buffer, nulls)?),
        }
    };
    packed(array, data_type)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{BinaryViewArray, DictionaryArray, StringViewArray};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    /// Stores arrays, and reads them back as a download would.
    fn there_and_back(arrays: &[ArrayRef], data_type: &DataType) -> ArrayRef {
        let mut stored = vec![0xaa; stored_bytes(arrays.iter())];
        write(&mut stored, arrays.iter()).unwrap();
        let rows: usize = arrays.iter().map(|array| array.len()).sum();
        let offset = |row: usize| u32::from_le_bytes(stored[row * 4..][..4].try_into().unwrap()) as usize;
        assert_eq!(offset(0), (rows + 1) * 4);
        assert_eq!(offset(rows), stored.len());
        let ends: Vec<u8> = (1..=rows).flat_map(|row| ((offset(row) - offset(0)) as u64).to_le_bytes()).collect();
        let valid: Vec<bool> = arrays.iter().flat_map(|a| (0..a.len()).map(move |row| !a.is_null(row))).collect();
        let bits: Vec<u8> = valid
            .chunks(8)
            .map(|eight| eight.iter().enumerate().fold(0, |byte, (i, bit)| byte | u8::from(*bit) << i))
            .collect();
        read(data_type, rows, &ends, &stored[offset(0)..], Some(&bits)).unwrap()
    }

    #[test]
    fn every_string_type_comes_back_as_any_other() {
        let values = vec![Some("ab"), None, Some(""), Some("é and more than twelve bytes"), Some("z")];
        let utf8: ArrayRef = Arc::new(StringArray::from(values.clone()));
        let arrays: Vec<ArrayRef> = vec![
            Arc::clone(&utf8),
            Arc::new(LargeStringArray::from(values.clone())),
            Arc::new(StringViewArray::from(values.clone())),
            Arc::new(values.clone().into_iter().collect::<DictionaryArray<Int32Type>>()),
            utf8.slice(1, 3),
            (Arc::new(StringArray::from(vec!["x", "", "yy"])) as ArrayRef).slice(1, 2),
        ];
        let expected: Vec<Option<&str>> =
            [values.clone(), values.clone(), values.clone(), values.clone(), values[1..4].to_vec()]
                .concat()
                .into_iter()
                .chain([Some(""), Some("yy")])
                .collect();
        let wanted: ArrayRef = Arc::new(StringArray::from(expected));
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, dictionary] {
            let back = there_and_back(&arrays, &data_type);
            assert_eq!(back.data_type(), &data_type);
            assert_eq!(cast(&back, &DataType::Utf8).unwrap().as_ref(), wanted.as_ref());
        }
    }

    #[test]
    fn bytes_need_not_be_text() {
        let values: Vec<Option<&[u8]>> = vec![Some(b"\xff\xfe"), None, Some(b"")];
        let wanted: ArrayRef = Arc::new(BinaryArray::from(values.clone()));
        let views: ArrayRef = Arc::new(BinaryViewArray::from(values));
        assert_eq!(there_and_back(&[Arc::clone(&wanted)], &DataType::Binary).as_ref(), wanted.as_ref());
        assert_eq!(there_and_back(&[views], &DataType::Binary).as_ref(), wanted.as_ref());
    }

    #[test]
    fn no_rows_are_one_offset() {
        let none: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
        assert_eq!(stored_bytes([&none].into_iter()), 4);
        assert_eq!(there_and_back(&[none], &DataType::Utf8View).len(), 0);
    }
}
