//! What rewriting promises: the same rows, in the layout that it describes, with nothing left to mend.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use millpond_parquet::check::{self, check};
use millpond_parquet::file::FileError;
use millpond_parquet::rewrite::{Codec, Options, PAGE_ROWS};
use millpond_parquet::{PageKind, Pages, is_all_dictionary, walk};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter};
use parquet::basic::{Compression, CompressionCodec, Encoding, Type as Physical};
use parquet::file::metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::targets::rewrite;

const ROWS: i64 = 300_000;

/// A column for each encoding that the layout chooses.
fn batch(rows: i64) -> RecordBatch {
    let numbers = |value: fn(i64) -> i64| Arc::new(Int64Array::from_iter_values((0..rows).map(value))) as ArrayRef;
    let texts = |value: fn(i64) -> Option<String>| Arc::new(StringArray::from_iter((0..rows).map(value))) as ArrayRef;
    // Low digits of a product, so that nothing compresses them.
    let scattered = |i: i64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 3;
    let price = (0..rows).map(|i| Some(i128::from(scattered(i) % 1_000_000_000)));
    let price = Decimal128Array::from_iter(price).with_precision_and_scale(15, 2).unwrap();
    let tags = ListArray::from_iter_primitive::<Int64Type, _, _>((0..rows).map(|i| Some((0..i % 3).map(Some))));
    let inside = Arc::new(Field::new("x", DataType::Int64, false));
    let point = StructArray::new(vec![inside].into(), vec![numbers(|i| i % 5)], None);
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("key", numbers(|i| i * 3), false),
        ("random", numbers(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)), false),
        ("kind", numbers(|i| i % 9), false),
        ("shop", texts(|i| (i % 11 > 0).then(|| format!("shop {}", i % 11))), true),
        ("note", texts(|i| Some(format!("order {i}, made on day {}", i % 365))), false),
        ("day", Arc::new(Date32Array::from_iter_values((0..rows).map(|i| (i / 500) as i32))), false),
        ("price", Arc::new(price), false),
        ("weight", Arc::new(Float64Array::from_iter((0..rows).map(|i| (i % 4 > 0).then_some(i as f64 / 7.0)))), true),
        ("tags", Arc::new(tags), true),
        ("point", Arc::new(point), false),
    ];
    let fields: Vec<Field> =
        columns.iter().map(|(name, array, nullable)| Field::new(*name, array.data_type().clone(), *nullable)).collect();
    let metadata = HashMap::from([("made by".to_string(), "a test".to_string())]);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array, _)| array).collect()).unwrap()
}

fn store(path: &Path, batch: &RecordBatch, properties: WriterPropertiesBuilder) {
    let properties = properties.set_key_value_metadata(Some(vec![KeyValue::new("note".into(), "kept".to_string())]));
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// All rows of a file, by parquet's own reader.
fn rows_of(path: &Path) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).unwrap()).unwrap();
    let schema = Arc::clone(builder.schema());
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn metadata_of(path: &Path) -> ParquetMetaData {
    ParquetMetaDataReader::new().parse_and_finish(&fs::File::open(path).unwrap()).unwrap()
}

/// Column, row group and pages of each flat chunk.
fn pages_of(path: &Path) -> Vec<(String, usize, Pages)> {
    let (bytes, metadata) = (fs::read(path).unwrap(), metadata_of(path));
    let mut found = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        for chunk in group.columns().iter().filter(|chunk| chunk.column_descr().max_rep_level() == 0) {
            let (start, length) = chunk.byte_range();
            let bytes = &bytes[start as usize..(start + length) as usize];
            let pages = walk(bytes, chunk, group.num_rows() as u64).unwrap();
            found.push((chunk.column_path().string(), number, pages));
        }
    }
    found
}

fn options() -> Options {
    Options { row_group_rows: 120_000, ..Options::default() }
}

fn findings_to_mend(path: &Path) -> Vec<check::FindingKind> {
    let report = check(path, &check::Options::default(), &|_, _| {}).unwrap();
    report.findings.iter().filter(|finding| finding.way_out.is_rewrite()).map(|finding| finding.kind).collect()
}

#[test]
fn rows_stay_and_the_layout_is_the_promised_one() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.parquet"), folder.path().join("made/here/to.parquet"));
    // Everything that the layout avoids: one page a chunk, GZIP, no statistics.
    let bad = WriterProperties::builder()
        .set_compression(Compression::GZIP(Default::default()))
        .set_data_page_row_count_limit(usize::MAX)
        .set_data_page_size_limit(usize::MAX)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(Some(170_000));
    store(&from, &batch(ROWS), bad);
    assert!(findings_to_mend(&from).len() >= 4, "{:?}", findings_to_mend(&from));

    let told = AtomicU64::new(0);
    let progress = |done, all| {
        assert_eq!(all, ROWS as u64);
        told.fetch_add(done, Ordering::Relaxed);
    };
    let written = rewrite(&from, &to, &options(), &progress).unwrap();
    assert_eq!((written[0].num_rows, written[0].num_row_groups, told.into_inner()), (ROWS as u64, 3, ROWS as u64));
    assert_eq!(written[0].bytes, fs::metadata(&to).unwrap().len());
    let names: Vec<_> = fs::read_dir(to.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["to.parquet"]);

    assert_eq!(rows_of(&to), rows_of(&from));
    let metadata = metadata_of(&to);
    let pairs = metadata.file_metadata().key_value_metadata().unwrap();
    assert!(pairs.iter().any(|pair| pair.key == "note" && pair.value.as_deref() == Some("kept")));
    assert_eq!(pairs.iter().filter(|pair| pair.key == ARROW_SCHEMA_META_KEY).count(), 1);
    for (group, rows) in metadata.row_groups().iter().zip([120_000, 120_000, 60_000]) {
        assert_eq!(group.num_rows(), rows);
        for chunk in group.columns() {
            assert_eq!(chunk.compression_codec(), CompressionCodec::SNAPPY);
            assert!(chunk.statistics().is_some() && chunk.offset_index_offset().is_some());
            assert!(chunk.column_index_offset().is_some());
        }
    }
    assert_eq!(metadata.row_group(0).column(6).column_type(), Physical::INT64, "decimals are integers");

    let expected = HashMap::from([
        ("key", Encoding::DELTA_BINARY_PACKED),
        ("random", Encoding::PLAIN),
        ("kind", Encoding::RLE_DICTIONARY),
        ("shop", Encoding::RLE_DICTIONARY),
        ("note", Encoding::DELTA_LENGTH_BYTE_ARRAY),
        ("day", Encoding::RLE_DICTIONARY),
        ("price", Encoding::PLAIN),
        ("weight", Encoding::PLAIN),
        ("point.x", Encoding::RLE_DICTIONARY),
    ]);
    for (column, group, pages) in pages_of(&to) {
        let sizes: Vec<usize> = pages.data.iter().map(|page| page.values as usize).collect();
        let (full, last) = if group < 2 { (7, 5_312) } else { (3, 10_848) };
        assert_eq!(sizes, [vec![PAGE_ROWS; full], vec![last]].concat(), "{column}");
        for page in &pages.data {
            assert_eq!((page.kind, page.encoding), (PageKind::V2, expected[column.as_str()]), "{column}");
        }
        // What no codec makes smaller lies there as it is.
        assert!(column != "random" || pages.data.iter().all(|page| !page.is_compressed));
    }
    assert_eq!(findings_to_mend(&to), []);
}

#[test]
fn every_codec_keeps_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.parquet");
    store(&from, &batch(5_000), WriterProperties::builder());
    let codecs = [
        (Codec::None, CompressionCodec::UNCOMPRESSED),
        (Codec::Lz4Raw, CompressionCodec::LZ4_RAW),
        (Codec::Zstd, CompressionCodec::ZSTD),
    ];
    for (codec, stored) in codecs {
        let to = folder.path().join(format!("{codec:?}.parquet"));
        rewrite(&from, &to, &Options { codec, ..Options::default() }, &|_, _| {}).unwrap();
        assert_eq!(rows_of(&to), rows_of(&from), "{codec:?}");
        let metadata = metadata_of(&to);
        assert!(metadata.row_group(0).columns().iter().all(|chunk| chunk.compression_codec() == stored));
    }
}

/// The first rows promise a small dictionary, and later ones overflow it.
#[test]
fn a_dictionary_that_overflows_later_is_given_up_from_its_row_group_on() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.parquet"), folder.path().join("to.parquet"));
    let text = |i: i64| if i < 160_000 { format!("{}", i % 7) } else { format!("a long text of its own: number {i}") };
    let texts = StringArray::from_iter_values((0..600_000).map(text));
    let list = |i: i64| if i < 160_000 { i % 7 } else { i * 0x5851_f42d };
    let values = Arc::new(Int64Array::from_iter_values((0..600_000).map(list)));
    let item = Arc::new(Field::new("item", DataType::Int64, false));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths(vec![1; 600_000]), values, None);
    let schema = Schema::new(vec![
        Field::new("text", DataType::Utf8, false),
        Field::new("list", lists.data_type().clone(), false),
        Field::new("few", DataType::Int64, false),
    ]);
    let few = Int64Array::from_iter_values((0..600_000).map(|i| i % 3));
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(texts), Arc::new(lists), Arc::new(few)]).unwrap();
    store(&from, &batch, WriterProperties::builder().set_max_row_group_row_count(Some(105_000)));
    rewrite(&from, &to, &Options { row_group_rows: 300_000, ..Options::default() }, &|_, _| {}).unwrap();
    assert_eq!(rows_of(&to), rows_of(&from));

    let options = Options { row_group_rows: 150_000, force: true, ..Options::default() };
    rewrite(&from, &to, &options, &|_, _| {}).unwrap();
    assert_eq!(rows_of(&to), rows_of(&from));
    let encodings = |column: &str| -> Vec<Vec<Encoding>> {
        let of = pages_of(&to).into_iter().filter(|(name, ..)| name == column);
        of.map(|(_, _, pages)| {
            let mut encodings: Vec<Encoding> = pages.data.iter().map(|page| page.encoding).collect();
            encodings.dedup();
            encodings
        })
        .collect()
    };
    let (codes, lengths) = (vec![Encoding::RLE_DICTIONARY], vec![Encoding::DELTA_LENGTH_BYTE_ARRAY]);
    assert_eq!(encodings("text"), [codes.clone(), lengths.clone(), lengths.clone(), lengths]);
    assert_eq!(encodings("few"), [codes.clone(), codes.clone(), codes.clone(), codes]);
    let metadata = metadata_of(&to);
    for group in metadata.row_groups() {
        let list = group.column(1);
        assert!(list.dictionary_page_offset().is_none() || is_all_dictionary(list));
    }
    assert_eq!(findings_to_mend(&to), []);
}

#[test]
fn folders_are_written_file_by_file_and_nothing_is_replaced_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir_all(from.join("year=2024")).unwrap();
    store(&from.join("a.parquet"), &batch(100), WriterProperties::builder());
    store(&from.join("year=2024/b.parquet"), &batch(200), WriterProperties::builder());
    let run = |options: &Options| rewrite(&from, &to, options, &|_, _| {});
    assert_eq!(run(&Options::default()).unwrap().len(), 2);
    assert_eq!(rows_of(&to.join("year=2024/b.parquet")), rows_of(&from.join("year=2024/b.parquet")));

    let before = fs::read(to.join("a.parquet")).unwrap();
    assert_eq!(run(&Options::default()), Err(FileError::Exists { path: to.join("a.parquet") }));
    let codec = Codec::None;
    assert_eq!(run(&Options { codec, force: true, ..Options::default() }).unwrap().len(), 2);
    assert_ne!(fs::read(to.join("a.parquet")).unwrap(), before);

    // In its own place, too.
    let (path, rows) = (from.join("a.parquet"), rows_of(&from.join("a.parquet")));
    assert!(matches!(rewrite(&path, &path, &Options::default(), &|_, _| {}), Err(FileError::Exists { .. })));
    rewrite(&path, &path, &Options { force: true, ..Options::default() }, &|_, _| {}).unwrap();
    assert_eq!(rows_of(&path), rows);
}

#[test]
fn bad_input_is_refused_with_the_file_and_the_reason_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    store(&at("good.parquet"), &batch(50_000), WriterProperties::builder().set_compression(Compression::SNAPPY));
    let whole = fs::read(at("good.parquet")).unwrap();
    fs::write(at("empty.parquet"), "").unwrap();
    fs::write(at("words.parquet"), "these are words, and no Parquet file").unwrap();
    fs::write(at("cut.parquet"), &whole[..whole.len() - 20]).unwrap();
    // The footer is whole, and the bytes of the last columns are gone.
    let footer = u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().unwrap()) as usize + 8;
    fs::write(at("short.parquet"), [&whole[..1_000], &whole[whole.len() - footer..]].concat()).unwrap();
    let mut pages = whole.clone();
    pages[1_000..whole.len() - footer].fill(0xff);
    fs::write(at("pages.parquet"), pages).unwrap();
    for (name, reason) in [
        ("empty.parquet", "the file is empty"),
        ("words.parquet", "no Parquet file"),
        ("cut.parquet", "cut short"),
        ("short.parquet", "row group 0 has bytes of column"),
        ("pages.parquet", ""),
        ("nowhere.parquet", "no such file or folder"),
    ] {
        let to = at("made.parquet");
        let refused = [
            rewrite(&at(name), &to, &Options::default(), &|_, _| {}).unwrap_err(),
            check(&at(name), &check::Options::default(), &|_, _| {}).unwrap_err(),
        ];
        for error in refused {
            let message = error.to_string();
            let named = format!("cannot read '{}': ", at(name).display());
            assert!(message.starts_with(&named) && message.contains(reason), "{message}");
        }
        assert!(!to.exists());
    }
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with(".millpond")));

    let rows = Options { row_group_rows: 10, ..Options::default() };
    assert!(rewrite(&at("good.parquet"), &at("to.parquet"), &rows, &|_, _| {}).unwrap_err().is_usage());
    let stop = Options::default();
    stop.stop.store(true, Ordering::Relaxed);
    assert!(rewrite(&at("good.parquet"), &at("to.parquet"), &stop, &|_, _| {}).unwrap_err().is_stopped());
    assert!(!at("to.parquet").exists());
}

#[test]
fn files_without_rows_stay_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.parquet"), folder.path().join("to.parquet"));
    store(&from, &batch(0), WriterProperties::builder().set_writer_version(WriterVersion::PARQUET_1_0));
    let written = rewrite(&from, &to, &Options::default(), &|_, _| {}).unwrap();
    assert_eq!((written[0].num_rows, written[0].num_row_groups), (0, 0));
    assert_eq!(rows_of(&to), rows_of(&from));
}
