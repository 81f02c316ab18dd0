//! Each bad layout is found, and a small table is not scolded for being small.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Float16Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{ArrowPrimitiveType, Float16Type, Int64Type};
use millpond_parquet::check::{FindingKind, Options, Report, WayOut, check};
use millpond_parquet::file::FileError;
use millpond_parquet::rewrite;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{FixedLenByteArray, FixedLenByteArrayType, Int96, Int96Type};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use crate::targets::rewrite;

/// A file of its own folder.
struct Made {
    folder: TempDir,
    path: PathBuf,
}

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        Self { folder, path }
    }

    fn of(columns: Vec<(&str, ArrayRef, bool)>, properties: WriterPropertiesBuilder) -> Self {
        let made = Self::new();
        made.store("t.parquet", columns, properties);
        made
    }

    fn store(&self, name: &str, columns: Vec<(&str, ArrayRef, bool)>, properties: WriterPropertiesBuilder) {
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let file = fs::File::create(self.folder.path().join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn report(&self, footers_only: bool) -> Report {
        check(&self.path, &Options { footers_only, ..Options::default() }, &|_, _| {}).unwrap()
    }

    fn findings(&self) -> Vec<(FindingKind, Vec<String>)> {
        found(&self.report(false))
    }
}

fn found(report: &Report) -> Vec<(FindingKind, Vec<String>)> {
    let mut found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.columns.clone())).collect();
    found.sort();
    found
}

fn numbers(rows: i64, value: fn(i64) -> i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values((0..rows).map(value)))
}

fn some_numbers(rows: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter((0..rows).map(|i| (i % 3 > 0).then_some(i / 1_000))))
}

fn texts(rows: i64) -> ArrayRef {
    Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("a text of some length, number {i}"))))
}

fn good() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::SNAPPY)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn good_and_small_files_have_no_findings() {
    let columns = || vec![("few", numbers(100, |i| i % 5), false), ("some", some_numbers(100), true)];
    assert_eq!(Made::of(columns(), good()).findings(), []);
    let columns = vec![("few", numbers(300_000, |i| i % 5), false), ("some", some_numbers(300_000), true)];
    let made = Made::of(columns, good());
    assert_eq!((made.findings(), found(&made.report(true))), (vec![], vec![]));
    assert!(made.report(false).to_string().contains("no findings: the layout suits a device"));
}

#[test]
fn codecs_of_the_host_are_found() {
    for codec in [Compression::ZSTD(ZstdLevel::default()), Compression::GZIP(Default::default()), Compression::LZ4] {
        let made = Made::of(vec![("few", numbers(30_000, |i| i % 5), false)], good().set_compression(codec));
        for report in [made.report(false), made.report(true)] {
            assert_eq!(found(&report), [(FindingKind::HostCodec, names(&["few"]))], "{codec}");
            assert!(report.findings[0].seconds > Some(0.0) && report.findings[0].way_out == WayOut::Rewrite);
        }
    }
    for codec in [Compression::UNCOMPRESSED, Compression::LZ4_RAW] {
        let made = Made::of(vec![("few", numbers(30_000, |i| i % 5), false)], good().set_compression(codec));
        assert_eq!(made.findings(), [], "{codec}");
    }
}

#[test]
fn dictionaries_that_end_in_mid_chunk_are_found() {
    let columns = vec![("note", texts(100_000), false), ("few", numbers(100_000, |i| i % 5), false)];
    let made = Made::of(columns, good());
    assert_eq!(made.findings(), [(FindingKind::MixedDictionary, names(&["note"]))]);
    assert_eq!(found(&made.report(true)), [(FindingKind::MixedDictionary, names(&["note"]))]);
}

#[test]
fn encodings_of_the_host_are_found() {
    let v2 = good().set_writer_version(WriterVersion::PARQUET_2_0).set_dictionary_enabled(false);
    let made = Made::of(vec![("note", texts(30_000), false)], v2);
    for report in [made.report(false), made.report(true)] {
        assert_eq!(found(&report), [(FindingKind::HostPages, names(&["note"]))]);
        assert!(report.findings[0].what.contains("DELTA_BYTE_ARRAY"), "{}", report.findings[0].what);
    }

    // The encoding of definition levels, as old writers had it: BIT_PACKED instead of RLE.
    let made = Made::of(vec![("some", some_numbers(1_000), true)], good());
    let mut bytes = fs::read(&made.path).unwrap();
    let levels = bytes.windows(4).position(|window| window == [0x15, 0x06, 0x15, 0x06]).unwrap();
    bytes[levels + 1] = 0x08;
    fs::write(&made.path, bytes).unwrap();
    let report = made.report(false);
    assert_eq!(found(&report), [(FindingKind::HostPages, names(&["some"]))]);
    assert!(report.findings[0].what.contains("not coded as RLE"), "{}", report.findings[0].what);
}

#[test]
fn pages_of_a_bad_size_are_found() {
    let one = good().set_data_page_row_count_limit(usize::MAX).set_data_page_size_limit(usize::MAX);
    let made = Made::of(vec![("few", numbers(200_000, |i| i % 50), false)], one);
    let report = made.report(false);
    assert_eq!(found(&report), [(FindingKind::LargePages, names(&["few"]))]);
    assert!(report.findings[0].what.starts_with("1.0 pages a chunk, with 200,000 rows each"), "{report}");

    let many = good().set_data_page_row_count_limit(100).set_write_batch_size(100);
    let made = Made::of(vec![("few", numbers(50_000, |i| i / 5_000), false)], many);
    assert_eq!(made.findings(), [(FindingKind::SmallPages, names(&["few"]))]);
}

#[test]
fn compression_that_gains_nothing_is_found() {
    let random = numbers(100_000, |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
    let made = Made::of(vec![("random", random, false)], good().set_dictionary_enabled(false));
    assert_eq!(made.findings(), [(FindingKind::HardlyCompressed, names(&["random"]))]);
}

#[test]
fn row_groups_and_files_of_a_bad_size_are_found() {
    let few = |rows| vec![("few", numbers(rows, |i| i % 5), false)];
    let made = Made::of(few(100_000), good().set_max_row_group_row_count(Some(10_000)));
    let report = made.report(false);
    assert_eq!(found(&report), [(FindingKind::SmallRowGroups, vec![])]);
    assert!(report.findings[0].what.starts_with("10 row groups with 10,000 rows each"), "{report}");

    let made = Made::of(few(17 << 20), good().set_max_row_group_row_count(None));
    let report = made.report(true);
    assert_eq!(found(&report), [(FindingKind::LargeRowGroups, vec![])]);

    let mut made = Made::new();
    (0..8).for_each(|file| made.store(&format!("{file}.parquet"), few(1_000), good()));
    made.store("other.parquet", vec![("else", texts(10), false)], good());
    made.path = made.folder.path().to_path_buf();
    let report = made.report(false);
    assert_eq!(found(&report), [(FindingKind::SmallFiles, vec![])]);
    assert_eq!((report.files.len(), report.tables.len(), report.tables[0].rows), (9, 2, 8_000));
}

#[test]
fn missing_statistics_and_indexes_are_found() {
    let columns = || vec![("few", numbers(30_000, |i| i % 5), false), ("some", some_numbers(30_000), true)];
    let none = good().set_statistics_enabled(EnabledStatistics::None).set_offset_index_disabled(true);
    let both = names(&["few", "some"]);
    let made = Made::of(columns(), none);
    let expected = [
        (FindingKind::NoStatistics, both.clone()),
        (FindingKind::NoNullCounts, names(&["some"])),
        (FindingKind::NoPageIndex, both),
    ];
    assert_eq!(made.findings(), expected);
    assert_eq!(found(&made.report(true)), expected);

    // Statistics that do not count NULLs.
    let made = Made::of(columns(), good());
    made.with_footer(|metadata| {
        let mut builder = metadata.into_builder();
        let mut groups = builder.take_row_groups();
        let group = groups.remove(0);
        let mut columns = group.columns().to_vec();
        let uncounted = Statistics::int64(Some(0), Some(999), None, None, false);
        columns[1] = columns[1].clone().into_builder().set_statistics(uncounted).build().unwrap();
        let group = group.into_builder().set_column_metadata(columns).build().unwrap();
        builder.set_row_groups(vec![group]).build()
    });
    assert_eq!(made.findings(), [(FindingKind::NoNullCounts, names(&["some"]))]);
}

impl Made {
    /// Writes the file again with another footer behind its data.
    fn with_footer(&self, change: impl FnOnce(ParquetMetaData) -> ParquetMetaData) {
        let bytes = fs::read(&self.path).unwrap();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(bytes.clone())).unwrap();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize + 8;
        let mut file = bytes[..bytes.len() - footer].to_vec();
        ParquetMetaDataWriter::new(&mut file, &change(metadata)).finish().unwrap();
        fs::write(&self.path, file).unwrap();
    }
}

#[test]
fn types_that_cost_more_than_they_hold_are_found() {
    let made = Made::new();
    let message = "message m { required int96 at; required fixed_len_byte_array(7) price (DECIMAL(15,2)); }";
    let schema = Arc::new(parse_message_type(message).unwrap());
    let file = fs::File::create(&made.path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(good().build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let days: Vec<Int96> = (0..1_000).map(|i| Int96::from(vec![i, 0, 2_440_588])).collect();
    column.typed::<Int96Type>().write_batch(&days, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let prices: Vec<FixedLenByteArray> =
        (0..1_000_i64).map(|i| i.to_be_bytes()[1..].to_vec()).map(FixedLenByteArray::from).collect();
    column.typed::<FixedLenByteArrayType>().write_batch(&prices, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let expected = [(FindingKind::Int96, names(&["at"])), (FindingKind::DecimalBytes, names(&["price"]))];
    assert_eq!(made.findings(), expected);

    let to = made.folder.path().join("to.parquet");
    rewrite(&made.path, &to, &rewrite::Options::default(), &|_, _| {}).unwrap();
    let made = Made { path: to, ..made };
    assert_eq!(made.findings(), []);
    let report = made.report(false);
    let types: Vec<&str> = report.files[0].columns.iter().map(|column| column.physical.as_str()).collect();
    assert_eq!(types, ["INT64", "INT64"]);
}

#[test]
fn columns_without_a_device_form_are_named_with_the_reason() {
    let halves = Float16Array::from_iter_values([<Float16Type as ArrowPrimitiveType>::Native::default(); 100]);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..100).map(|i| Some(vec![Some(i)])));
    let columns: Vec<(&str, ArrayRef, bool)> =
        vec![("half", Arc::new(halves), false), ("list", Arc::new(lists), true), ("few", numbers(100, |i| i), false)];
    let made = Made::of(columns, good());
    let report = made.report(false);
    assert_eq!(found(&report), [(FindingKind::HostType, names(&["half", "list.list.item"]))]);
    let what = &report.findings[0].what;
    assert!(what.contains("DataFusion decodes") && what.contains("Float16") && what.contains("is nested"), "{what}");
    assert!(!report.findings[0].way_out.is_rewrite());
}

#[test]
fn the_text_orders_findings_by_cost_and_shortens_what_is_long() {
    let columns: Vec<(String, ArrayRef)> =
        (0..9).map(|index| (format!("column{index}"), numbers(30_000, |i| i % 5))).collect();
    let columns = columns.iter().map(|(name, array)| (name.as_str(), Arc::clone(array), false)).collect();
    let bad = good().set_compression(Compression::GZIP(Default::default())).set_max_row_group_row_count(Some(5_000));
    let made = Made::of(columns, bad);
    let report = made.report(false);
    let text = report.to_string();
    let costs: Vec<f64> = report.findings.iter().filter_map(|finding| finding.seconds).collect();
    assert!(costs.len() == 2 && costs[0] >= costs[1], "{costs:?}");
    assert!(text.contains("30,000 rows in 6 row groups, 9 columns, 54 pages, "), "{text}");
    assert!(text.contains("2 findings, the costliest first; times are estimates"), "{text}");
    assert!(text.contains("columns  column0, column1, column2, column3, column4, column5 and 3 more"), "{text}");
    assert!(text.contains("mend     millpond parquet rewrite"), "{text}");
    assert!(report.text(true).to_string().contains("column7, column8\n"));
}

#[test]
fn a_stop_ends_it() {
    let made = Made::of(vec![("few", numbers(10, |i| i), false)], good());
    let options = Options::default();
    options.stop.store(true, Ordering::Relaxed);
    assert_eq!(check(&made.path, &options, &|_, _| {}), Err(FileError::Stopped));
}
