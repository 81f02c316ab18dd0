//! What parquet's Arrow writer does not write: INT96, decimals in short bytes, columns without a logical type.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use millpond_parquet::{Conversion, Layout, is_all_dictionary, walk};
use parquet::basic::Compression;
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType as Physical, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
    Int96, Int96Type,
};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::cases::Random;
use crate::file::File;
use crate::matrix::layout;
use crate::read::check;

/// A file of a column declared as `column`, with half of the rows NULL if it is optional.
fn write<T: Physical>(column: &str, properties: WriterProperties, values: &[T::T], rows: usize) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(&format!("message m {{ {column}; }}")).unwrap());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let levels: Vec<i16> = (0..rows).map(|row| (row % 2) as i16).collect();
    let levels = (values.len() < rows).then_some(&levels[..]);
    column.typed::<T>().write_batch(values, levels, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    file
}

const ROWS: usize = 3_000;

fn all_ways(mut of: impl FnMut(&mut Random, WriterProperties, &str, usize)) {
    for seed in 0..16 {
        let random = &mut Random(seed);
        let (repetition, values) = random.one_of(&[("required", ROWS), ("optional", ROWS / 2)]);
        let version = random.one_of(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]);
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_compression(random.one_of(&[Compression::UNCOMPRESSED, Compression::SNAPPY]))
            .set_dictionary_enabled(random.is_one_in(2))
            .set_dictionary_page_size_limit(2_000)
            .set_data_page_row_count_limit(700)
            .set_write_batch_size(100);
        of(random, properties.build(), repetition, values);
    }
}

#[test]
fn int96_in_every_unit() {
    all_ways(|random, properties, repetition, values| {
        let value = |random: &mut Random| {
            let mut value = Int96::new();
            // Days of which nanoseconds overflow now and then.
            let day = 2_440_588 + (random.next() % 40_000) as u32 * if random.is_one_in(50) { 1_000 } else { 1 };
            let nanos = random.next() % 86_400_000_000_000;
            value.set_data(nanos as u32, (nanos >> 32) as u32, day);
            value
        };
        let values: Vec<Int96> = (0..values).map(|_| value(random)).collect();
        let bytes = write::<Int96Type>(&format!("{repetition} int96 x"), properties, &values, ROWS);
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
            let file = File::of(bytes.clone(), Some(DataType::Timestamp(unit, None)));
            check(&file, Layout::Integers { width: 8, base: 0, range: None }, || (7, 900));
        }
    });
}

#[test]
fn decimals_of_every_length() {
    for length in 1..=16_usize {
        all_ways(|random, properties, repetition, values| {
            let precision = [2, 4, 6, 9, 11, 14, 16, 18, 21, 23, 26, 28, 31, 33, 35, 38][length - 1];
            let bytes = |random: &mut Random| {
                let number = i128::from(random.next() as i64 % if random.is_one_in(3) { 100 } else { 1 << 60 })
                    << (8 * length.saturating_sub(8));
                number.to_be_bytes()[16 - length..].to_vec()
            };
            let values: Vec<FixedLenByteArray> = (0..values).map(|_| ByteArray::from(bytes(random)).into()).collect();
            let column = format!("{repetition} fixed_len_byte_array({length}) x (decimal({precision}, 2))");
            let bytes = write::<FixedLenByteArrayType>(&column, properties, &values, ROWS);
            let file = File::of(bytes.clone(), None);
            check(&file, Layout::Integers { width: 16, base: -7, range: None }, || (0, 1_111));
            if length <= 8 {
                let file = File::of(bytes, Some(DataType::Decimal64(precision, 2)));
                check(&file, Layout::Integers { width: 8, base: 0, range: None }, || (100, 300));
            }
        });
    }
}

#[test]
fn decimals_of_any_length() {
    all_ways(|random, properties, repetition, values| {
        let bytes = |random: &mut Random| {
            let number = random.next() as i64 as i128 * random.one_of(&[0, 1, -1, 1 << 40]);
            let length = [1, 2, 4, 8, 13, 16].into_iter().find(|length| number >> (8 * length - 1) == number >> 127);
            ByteArray::from(number.to_be_bytes()[16 - length.unwrap_or(16)..].to_vec())
        };
        let values: Vec<ByteArray> = (0..values).map(|_| bytes(random)).collect();
        let column = format!("{repetition} byte_array x (decimal(38, 2))");
        let file = File::of(write::<ByteArrayType>(&column, properties, &values, ROWS), None);
        check(&file, Layout::Integers { width: 16, base: 0, range: None }, || (10, 777));
    });
}

#[test]
fn unsigned_numbers_and_cut_ones() {
    for (annotation, width) in [("UINT_8", 1), ("INT_8", 1), ("UINT_16", 2), ("INT_16", 2), ("UINT_32", 4), ("DATE", 4)]
    {
        all_ways(|random, properties, repetition, values| {
            let values: Vec<i32> = (0..values).map(|_| random.next() as i32).collect();
            let bytes = write::<Int32Type>(&format!("{repetition} int32 x ({annotation})"), properties, &values, ROWS);
            let file = File::of(bytes.clone(), None);
            // Dates of parquet's own type, and as milliseconds.
            check(&file, Layout::Integers { width, base: 0, range: None }, || (0, 64));
            if annotation == "DATE" {
                let file = File::of(bytes, Some(DataType::Date64));
                check(&file, Layout::Integers { width: 8, base: 5, range: None }, || (0, 2_000));
            }
        });
    }
}

#[test]
fn bytes_without_a_type_become_strings() {
    all_ways(|random, properties, repetition, values| {
        let text = |random: &mut Random| ByteArray::from(format!("é {}", random.next() % 500).as_bytes().to_vec());
        let values: Vec<ByteArray> = (0..values).map(|_| text(random)).collect();
        let bytes = write::<ByteArrayType>(&format!("{repetition} byte_array x"), properties, &values, ROWS);
        for data_type in [DataType::Binary, DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
            let file = File::of(bytes.clone(), Some(data_type));
            check(&file, Layout::Texts, || (3, 1_000));
            check(&file, Layout::Codes, || (0, 1_500));
        }
    });
}

/// Files of one column that other writers wrote. Needs a folder of them: `MILLPOND_FILES=… cargo test files_of_others`.
#[test]
fn files_of_others() {
    let Ok(folder) = std::env::var("MILLPOND_FILES") else {
        return eprintln!("skipped: MILLPOND_FILES names no folder");
    };
    let (mut read, mut refused, mut failed) = (0, Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let result = std::panic::catch_unwind(|| {
            let file = File::of(bytes, None);
            let column = file.chunks()[0].1.column_descr();
            if let Err(why) = Conversion::of(column, &file.data_type) {
                return Some(why.to_string());
            }
            for seed in 0..4 {
                let random = &mut Random(seed);
                let layout = layout(random, &file);
                let step =
                    |random: &mut Random| (random.one_of(&[0, 0, 100]), random.one_of(&[1_000, 5_000, u64::MAX]));
                check(&file, layout, || step(random));
            }
            None
        });
        match result {
            Ok(None) => read += 1,
            Ok(Some(why)) => refused.push(why),
            Err(_) => failed.push(path),
        }
    }
    println!("{read} files read, {} refused: {refused:?}", refused.len());
    assert!(failed.is_empty(), "{failed:?}");
}

/// The first column of a schema.
fn conversion(columns: &str, to: &DataType) -> Result<Conversion, String> {
    use parquet::schema::types::SchemaDescriptor;
    let schema = parse_message_type(&format!("message m {{ {columns} }}")).unwrap();
    Conversion::of(&SchemaDescriptor::new(Arc::new(schema)).column(0), to).map_err(|why| why.to_string())
}

#[test]
fn what_parquet_would_refuse_is_refused() {
    for (columns, to) in [
        ("required int32 x;", DataType::Int64),
        ("required int32 x;", DataType::UInt32),
        ("required int64 x (TIMESTAMP_MILLIS);", DataType::Timestamp(TimeUnit::Microsecond, None)),
        ("required int64 x (DECIMAL(10, 2));", DataType::Decimal128(10, 3)),
        ("required fixed_len_byte_array(12) x (INTERVAL);", DataType::FixedSizeBinary(12)),
        ("required fixed_len_byte_array(9) x (DECIMAL(20, 2));", DataType::Decimal64(20, 2)),
        ("required fixed_len_byte_array(2) x (FLOAT16);", DataType::Float16),
        ("required byte_array x (UTF8);", DataType::Binary),
        ("repeated int32 x;", DataType::Int32),
        ("optional group g { required int32 x; }", DataType::Int32),
        ("optional group g { optional int32 x; }", DataType::Int32),
    ] {
        assert!(conversion(columns, &to).is_err(), "{columns} as {to}");
    }
    let why = conversion("required int32 x;", &DataType::Int64).unwrap_err();
    assert_eq!(why, "INT32 x is not read as Int64");
}

#[test]
fn footers_tell_dictionary_coded_chunks() {
    for (limit, all) in [(1 << 20, true), (100, false)] {
        let properties = WriterProperties::builder().set_dictionary_page_size_limit(limit).set_write_batch_size(10);
        let values: Vec<i64> = (0..1_000).collect();
        let bytes = write::<Int64Type>("required int64 x", properties.build(), &values, 1_000);
        let bytes = bytes::Bytes::from(bytes);
        for as_mask in [true, false] {
            let options = parquet::file::metadata::ParquetMetaDataOptions::new().with_encoding_stats_as_mask(as_mask);
            let reader = ParquetMetaDataReader::new().with_metadata_options(Some(options));
            let metadata = reader.parse_and_finish(&bytes).unwrap();
            let meta = metadata.row_group(0).column(0);
            assert_eq!(is_all_dictionary(meta), all);
            let (start, length) = meta.byte_range();
            let chunk = &bytes[start as usize..(start + length) as usize];
            assert!(walk(chunk, meta, 1_000).unwrap().dictionary.is_some());
            assert!(walk(chunk, meta, 999).is_err() && walk(chunk, meta, 1_001).is_err());
        }
    }
}
