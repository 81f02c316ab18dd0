//! What a layout cannot hold, what an output cannot take, and dictionaries apart from their pages.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use millpond_parquet::*;
use parquet::basic::{Compression, CompressionCodec};
use parquet::file::properties::WriterProperties;

use crate::file::File;
use crate::read::Numbering;

fn coded(is_coded: bool, codec: Compression) -> WriterProperties {
    let properties = WriterProperties::builder().set_dictionary_enabled(is_coded).set_compression(codec);
    properties.set_write_batch_size(100).set_data_page_row_count_limit(100).build()
}

fn integers(width: u8, base: i64, range: Option<(i128, i128)>) -> Layout {
    Layout::Integers { width, base, range }
}

/// Reads `rows` rows into an output of as many bytes as said.
fn read(file: &File, layout: Layout, skip: u64, rows: u64, bytes: usize, valid: bool) -> Result<Facts, ReadError> {
    let (chunk, meta, all) = file.chunks()[0];
    let conversion = Conversion::of(meta.column_descr(), &file.data_type).unwrap();
    let pages = walk(chunk, meta, all)?;
    let mut reader = ColumnReader::new(chunk, &pages, meta, meta.column_descr(), &conversion, layout)?;
    let (mut values, mut validity, mut texts) = (vec![0; bytes], vec![0; bytes], Vec::new());
    let mut out = Out::new(&mut values, valid.then_some(&mut validity), Some(&mut texts));
    reader.skip(skip)?;
    reader.read(rows, 0, &mut out, &mut Numbering::default())
}

#[test]
fn values_outside_the_range_are_told_where_they_are_read() {
    let mut values: Vec<i64> = (0..1_000).map(|i| i % 200).collect();
    values[700] = 1_000;
    let array: ArrayRef = Arc::new(Int64Array::from(values));
    for is_coded in [false, true] {
        let file = File::write(&array, false, coded(is_coded, Compression::SNAPPY));
        let layout = integers(1, 0, Some((0, 199)));
        assert_eq!(read(&file, layout, 0, 700, 700, false).unwrap().range, Some((0, 199)));
        assert_eq!(read(&file, layout, 0, 701, 701, false), Err(PageError::OutOfRange.into()));
        assert_eq!(read(&file, layout, 701, 299, 299, false).unwrap().range, Some((0, 199)));
        let wide = integers(2, 0, Some((0, 1_000)));
        assert_eq!(read(&file, wide, 0, 1_000, 2_000, false).unwrap().range, Some((0, 1_000)));
    }
}

#[test]
fn a_null_without_validity_is_told() {
    let array: ArrayRef = Arc::new(Int64Array::from_iter((0..1_000).map(|i| (i != 500).then_some(i))));
    let file = File::write(&array, true, coded(false, Compression::UNCOMPRESSED));
    let layout = integers(8, 0, None);
    assert_eq!(read(&file, layout, 0, 500, 8_000, false).unwrap().nulls, 0);
    assert_eq!(read(&file, layout, 0, 501, 8_000, false), Err(PageError::UnexpectedNull.into()));
    assert_eq!(read(&file, layout, 0, 501, 8_000, true).unwrap().nulls, 1);
}

#[test]
fn outputs_that_are_too_small_are_refused() {
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let file = File::write(&array, true, coded(false, Compression::UNCOMPRESSED));
    let is_shape = |result| matches!(result, Err(ReadError::Page(PageError::Shape(_))));
    assert!(is_shape(read(&file, integers(8, 0, None), 0, 1_000, 7_999, false)));
    assert!(is_shape(read(&file, integers(1, 0, None), 0, 1_001, 8_000, false)));
    assert!(is_shape(read(&file, integers(1, 0, None), 1, 1_000, 8_000, false)));
    assert!(matches!(read(&file, Layout::Codes, 0, 1, 8, false), Err(ReadError::Page(PageError::Unsupported(_)))));
    assert!(matches!(
        read(&file, integers(3, 0, None), 0, 1, 8, false),
        Err(ReadError::Page(PageError::Unsupported(_)))
    ));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true; 100]));
    let flags = File::write(&flags, false, coded(false, Compression::UNCOMPRESSED));
    assert!(is_shape(read(&flags, Layout::Bits, 0, 97, 12, false)));
    assert!(read(&flags, Layout::Bits, 0, 97, 16, true).is_ok());
}

#[test]
fn texts_begin_where_the_bytes_end() {
    let array: ArrayRef = Arc::new(StringArray::from(vec!["a", "bc", "", "def"]));
    let file = File::write(&array, false, coded(true, Compression::UNCOMPRESSED));
    let (chunk, meta, rows) = file.chunks()[0];
    let conversion = Conversion::of(meta.column_descr(), &file.data_type).unwrap();
    let pages = walk(chunk, meta, rows).unwrap();
    let (mut values, mut texts) = (vec![9; 9 * 4], Vec::new());
    let mut out = Out::new(&mut values, None, Some(&mut texts));
    for first in [0, 4] {
        let column = meta.column_descr();
        let mut reader = ColumnReader::new(chunk, &pages, meta, column, &conversion, Layout::Texts).unwrap();
        reader.read(4, first, &mut out, &mut Numbering::default()).unwrap();
    }
    let offsets: Vec<u32> = values.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    assert_eq!((offsets, &texts[..]), (vec![0, 1, 3, 3, 6, 7, 9, 9, 12], &b"abcdefabcdef"[..]));
}

#[test]
fn dictionaries_are_stored_as_their_values_are() {
    let of = |array: ArrayRef, layout| {
        let file = File::write(&array, false, coded(true, Compression::ZSTD(Default::default())));
        let (chunk, meta, rows) = file.chunks()[0];
        let conversion = Conversion::of(meta.column_descr(), &file.data_type).unwrap();
        let pages = walk(chunk, meta, rows).unwrap();
        dictionary(chunk, &pages, meta, &conversion, layout, &mut Numbering::default())
    };
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![300, 301, 300, 310]));
    assert_eq!(of(Arc::clone(&numbers), integers(1, 300, Some((300, 310)))).unwrap(), [0, 1, 10]);
    assert_eq!(of(Arc::clone(&numbers), integers(2, 0, None)).unwrap(), [44, 1, 45, 1, 54, 1]);
    assert_eq!(of(numbers, integers(1, 300, Some((300, 309)))), Err(PageError::OutOfRange.into()));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.5, 1.5]));
    assert_eq!(of(floats, Layout::Floats).unwrap(), 1.5_f64.to_le_bytes());
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "x"]));
    assert_eq!(of(Arc::clone(&texts), Layout::Codes).unwrap(), [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(of(texts, Layout::Texts).unwrap(), b"\0\0\0\0\x01\0\0\0\x02\0\0\0xy");
}

#[test]
fn pages_are_decompressed_with_their_levels() {
    let array: ArrayRef = Arc::new(Int64Array::from_iter((0..1_000).map(|i| (i % 3 != 0).then_some(i % 50))));
    let pages_of = |codec: Compression, name: CompressionCodec| {
        let file = File::write(&array, true, coded(false, codec));
        let (chunk, meta, rows) = file.chunks()[0];
        let pages = walk(chunk, meta, rows).unwrap();
        let body = |page| {
            let mut body = vec![7; 9];
            decompress(page, chunk, name, &mut body).unwrap();
            body
        };
        pages.data.iter().map(body).collect::<Vec<_>>()
    };
    let stored = pages_of(Compression::UNCOMPRESSED, CompressionCodec::UNCOMPRESSED);
    assert!(stored.len() > 5);
    assert_eq!(pages_of(Compression::SNAPPY, CompressionCodec::SNAPPY), stored);
    assert_eq!(pages_of(Compression::LZ4_RAW, CompressionCodec::LZ4_RAW), stored);
}

#[test]
fn whoever_stops_is_obeyed() {
    struct Nobody;
    impl Intern for Nobody {
        fn codes(&mut self, _: &ArrayRef) -> Result<Vec<u32>, Stopped> {
            Err(Stopped)
        }
    }
    let array: ArrayRef = Arc::new(StringArray::from(vec!["a"; 100]));
    for is_coded in [false, true] {
        let file = File::write(&array, false, coded(is_coded, Compression::UNCOMPRESSED));
        let (chunk, meta, rows) = file.chunks()[0];
        let conversion = Conversion::of(meta.column_descr(), &file.data_type).unwrap();
        let pages = walk(chunk, meta, rows).unwrap();
        let column = meta.column_descr();
        let mut reader = ColumnReader::new(chunk, &pages, meta, column, &conversion, Layout::Codes).unwrap();
        let mut values = vec![0; 400];
        let read = reader.read(100, 0, &mut Out::new(&mut values, None, None), &mut Nobody);
        assert_eq!(read, Err(ReadError::Stopped));
    }
}
