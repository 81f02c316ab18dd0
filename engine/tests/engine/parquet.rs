//! Scans of Parquet files by the engine's own decoder: which files it reads, what it leaves to DataFusion, and that
//! answers are equal.
//!
//!   files ─► DeviceScanExec ─┬─ decoded            row groups, counted
//!                            └─ DataFusion's       files of other types, row groups of wrong bytes: with a note
//!
//! Oracle  DataFusion on the CPU, over the same files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::datasource::file_format::parquet::ParquetFormat;
use millpond::datafusion::datasource::listing::ListingOptions;
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::basic::{Compression, Encoding};
use millpond::datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use millpond::datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::source::{is_parquet_scan, is_source};
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};

use crate::answers::Answer;
use crate::edges::edges;
use crate::support::{plan_text, session_with};
use crate::tpch::{config, data, parquet_session, queries};

pub fn write(path: &Path, batches: &[RecordBatch], properties: WriterProperties) {
    let file = fs::File::create(path).expect("a new file");
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), Some(properties)).expect("a writer");
    batches.iter().for_each(|batch| writer.write(batch).expect("rows are written"));
    writer.close().expect("the file is written");
}

/// Row groups of 500 rows, pages of 100.
pub fn small_pages() -> millpond::datafusion::parquet::file::properties::WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(500))
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50)
        .set_compression(Compression::SNAPPY)
}

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

async fn over(device: DeviceChoice, path: &Path) -> Millpond {
    let session = session_with(device, 3, Fallback::Allow);
    let path = path.to_str().expect("a UTF-8 path");
    session.context().register_parquet("t", path, ParquetReadOptions::default()).await.expect("the files are read");
    session
}

/// Sum of the metric `name` over a plan's scans.
pub fn counted(result: &QueryResult, name: &str) -> usize {
    millpond::source::counted(&result.plan, name)
}

/// How many scans of a plan are of each kind: the decoder's, and those of which DataFusion gives the rows.
fn scans(result: &QueryResult) -> (usize, usize) {
    let (mut own, mut uploads) = (0, 0);
    let walked = result.plan.apply(|node| {
        own += usize::from(is_parquet_scan(node.as_ref()));
        uploads += usize::from(is_source(node.as_ref()) && !is_parquet_scan(node.as_ref()));
        Ok(TreeNodeRecursion::Continue)
    });
    walked.expect("the walk returns no error");
    (own, uploads)
}

async fn run(session: &Millpond, sql: &str) -> (Answer, QueryResult) {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    (Answer::new(&result.schema, &result.batches), result)
}

/// The answers of both, with the cache off and pages decoded on the host and on the device, with the cache filled by
/// each of them, and found filled; gives the result of pages that the device decoded.
async fn same(cpu: &Millpond, sim: &Millpond, sql: &str) -> QueryResult {
    let expected = run(cpu, sql).await.0;
    set(sim, "millpond.cache = off").await;
    let fed = run(sim, sql).await.0;
    assert_eq!(expected.difference(&fed, false), None, "{sql}, fed");
    set(sim, "millpond.parquet_decoder = device").await;
    let (fed, result) = run(sim, sql).await;
    assert_eq!(expected.difference(&fed, false), None, "{sql}, fed and decoded on the device");
    set(sim, "millpond.cache = auto").await;
    for decoder in ["device", "auto"] {
        set(sim, &format!("millpond.parquet_decoder = {decoder}")).await;
        run(sim, "SELECT * FROM millpond_cache_clear()").await;
        for time in ["first", "second"] {
            let stored = run(sim, sql).await.0;
            assert_eq!(expected.difference(&stored, false), None, "{sql}, stored by {decoder}, {time} run");
        }
    }
    result
}

const ALL: &str = "SELECT * FROM t WHERE id >= 0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_in_every_page_version_and_codec_is_decoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let codecs =
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, Compression::ZSTD(Default::default())];
    for (at, version) in versions.into_iter().enumerate() {
        for (codec, compression) in codecs.into_iter().enumerate() {
            for statistics in [EnabledStatistics::Chunk, EnabledStatistics::None] {
                let path = folder.path().join(format!("{at}{codec}{statistics:?}.parquet"));
                let properties = small_pages()
                    .set_writer_version(version)
                    .set_compression(compression)
                    .set_statistics_enabled(statistics)
                    .set_dictionary_page_size_limit(512)
                    .build();
                write(&path, &[edges()], properties);
                let (cpu, sim) = (over(DeviceChoice::Cpu, &path).await, over(DeviceChoice::Sim, &path).await);
                let result = same(&cpu, &sim, ALL).await;
                assert_eq!(scans(&result), (1, 0));
                assert_eq!(counted(&result, "row_groups_decoded"), 6, "{version:?} {compression:?} {statistics:?}");
                assert_eq!(counted(&result, "row_groups_by_datafusion"), 0, "{:?}", result.report.notes);
                assert_eq!(counted(&result, "files_by_datafusion"), 0, "{:?}", result.report.notes);
                let on_device = counted(&result, "columns_decoded_on_device");
                let has_kernels = !matches!(compression, Compression::ZSTD(_));
                assert_eq!(
                    on_device > 0,
                    has_kernels,
                    "{version:?} {compression:?}: {on_device} columns on the device"
                );
            }
        }
    }
}

/// Entries of more than 64 KiB: Snappy's go up in blocks that are decompressed apart, those of LZ4 the host
/// decompresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_dictionaries_are_decoded_on_the_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let ids: ArrayRef = Arc::new((0..40_000_i64).collect::<Int64Array>());
    let values: ArrayRef = Arc::new(
        (0..40_000_i64).map(|row| (row % 9 != 4).then_some(row * 7919 % 20_011 * 1_000_003)).collect::<Int64Array>(),
    );
    let batch = RecordBatch::try_from_iter([("id", ids), ("v", values)]).expect("columns");
    for compression in [Compression::SNAPPY, Compression::LZ4_RAW] {
        let path = folder.path().join(format!("{compression:?}.parquet"));
        let properties =
            WriterProperties::builder().set_compression(compression).set_column_dictionary_enabled("id".into(), false);
        write(&path, std::slice::from_ref(&batch), properties.build());
        let (cpu, sim) = (over(DeviceChoice::Cpu, &path).await, over(DeviceChoice::Sim, &path).await);
        let result = same(&cpu, &sim, ALL).await;
        assert_eq!(counted(&result, "columns_decoded_on_device"), 2, "{compression:?}: {:?}", result.report.notes);
    }
}

/// One page a column, as DuckDB writes them: more than 512 KiB, which go up in blocks that are decompressed apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_pages_are_decoded_in_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let ids: ArrayRef = Arc::new((0..70_000_i64).collect::<Int64Array>());
    let numbers: ArrayRef =
        Arc::new((0..70_000_i64).map(|row| (row % 7 != 2).then_some(row * 7919 % 100_003)).collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(
        (0..70_000_i64)
            .map(|row| (row % 11 != 5).then(|| format!("{} of {row}", row * row % 977)))
            .collect::<StringArray>(),
    );
    let batch = RecordBatch::try_from_iter([("id", ids), ("n", numbers), ("text", texts)]).expect("columns");
    for (version, compression) in [
        (WriterVersion::PARQUET_1_0, Compression::SNAPPY),
        (WriterVersion::PARQUET_2_0, Compression::SNAPPY),
        (WriterVersion::PARQUET_1_0, Compression::LZ4_RAW),
    ] {
        let path = folder.path().join(format!("{version:?}{compression:?}.parquet"));
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_compression(compression)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_data_page_row_count_limit(usize::MAX)
            .set_data_page_size_limit(1 << 30)
            .set_write_batch_size(1 << 20);
        write(&path, std::slice::from_ref(&batch), properties.build());
        let (cpu, sim) = (over(DeviceChoice::Cpu, &path).await, over(DeviceChoice::Sim, &path).await);
        // Strings without codes.
        set(&sim, "millpond.debug_dictionary_values = 3").await;
        let result = same(&cpu, &sim, ALL).await;
        assert_eq!(counted(&result, "columns_decoded_on_device"), 3, "{version:?}: {:?}", result.report.notes);
    }
}

/// A row group larger than the pinned memory is uploaded piece by piece.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_larger_than_pinned_memory_are_decoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let texts: ArrayRef = Arc::new((0..140).map(|row| Some(format!("{row}").repeat(1 << 18))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([("id", ids(0, 140)), ("text", texts)]).expect("columns");
    let properties =
        WriterProperties::builder().set_dictionary_enabled(false).set_compression(Compression::UNCOMPRESSED);
    write(&path, &[batch], properties.build());
    let builder = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_fallback(Fallback::Allow);
    let builder = builder.with_option("pinned_bytes", &(64 << 20).to_string()).expect("an option");
    let sim = builder.build().expect("a session");
    let file = path.to_str().expect("a UTF-8 path");
    sim.context().register_parquet("t", file, ParquetReadOptions::default()).await.expect("the files are read");
    for setting in ["cache = off", "parquet_decoder = device", "debug_dictionary_values = 3"] {
        set(&sim, &format!("millpond.{setting}")).await;
    }
    let sql = "SELECT id, octet_length(text) AS bytes FROM t WHERE text LIKE '1%'";
    let expected = run(&over(DeviceChoice::Cpu, &path).await, sql).await.0;
    let (answer, result) = run(&sim, sql).await;
    assert_eq!(expected.difference(&answer, false), None);
    assert_eq!(result.report.notes, Vec::<String>::new(), "the CPU did not take over");
    assert!(result.report.launches > 0);
}

/// Values of 10,000 in 20,000 rows a row group: statistics tell nothing of one of them, and a dictionary where it is
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_dictionaries_leave_out_are_not_decoded() {
    const ROWS: i64 = 20_000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let batch = |group: i64| {
        // Even ones in even row groups, odd ones in the others; NULL here and there.
        let of = move |row: i64| (row * 7919 % 10_000) * 2 + group % 2;
        let rows = || 0..ROWS;
        let ids: ArrayRef = Arc::new(rows().map(|row| group * ROWS + row).collect::<Int64Array>());
        let texts: ArrayRef = Arc::new(rows().map(|row| Some(format!("k{:05}", of(row)))).collect::<StringArray>());
        let numbers: ArrayRef =
            Arc::new(rows().map(|row| (row % 97 != 3).then(|| of(row) * 1001)).collect::<Int64Array>());
        let prices = rows().map(|row| i128::from(of(row))).collect::<Decimal128Array>();
        let prices: ArrayRef = Arc::new(prices.with_precision_and_scale(12, 2).expect("a decimal"));
        let days: ArrayRef = Arc::new(rows().map(|row| of(row) as i32).collect::<Int32Array>());
        let days = cast(&days, &DataType::Date32).expect("dates");
        let payload: ArrayRef =
            Arc::new(rows().map(|row| format!("payload of {row}")).map(Some).collect::<StringArray>());
        let columns =
            [("id", ids), ("kind", texts), ("n", numbers), ("price", prices), ("day", days), ("payload", payload)];
        RecordBatch::try_from_iter(columns).expect("columns")
    };
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(ROWS as usize))
        .set_data_page_row_count_limit(4_000)
        .set_compression(Compression::SNAPPY)
        .set_column_dictionary_enabled("id".into(), false)
        .set_column_dictionary_enabled("payload".into(), false);
    write(&path, &(0..4).map(batch).collect::<Vec<_>>(), properties.build());
    let (cpu, sim) = (over(DeviceChoice::Cpu, &path).await, over(DeviceChoice::Sim, &path).await);
    let all = 4 * ROWS as usize;
    // Of a row group with an even value, two pieces of 4,096 rows have it; those with odd ones go.
    let few = all / 2 + 2 * (ROWS as usize - 2 * 4096)..all;
    for (filter, left_out) in [
        ("kind = 'k01234'", few.clone()),
        ("n = 1234 * 1001", few.clone()),
        ("price = 12.34", few.clone()),
        ("day = date '1970-01-01' + 1234", few.clone()),
        ("kind = 'k01234' AND n + id > 0", few),
        // None at all, though all lie between the least and the greatest.
        ("kind = 'k01234x'", all..all + 1),
        // Many values pass: nothing is left out, and the scan stops evaluating dictionaries.
        ("(kind LIKE '%2' OR kind LIKE '%3') AND id >= 0", 0..1),
        // NULL passes as well.
        ("(n = 1234 * 1001 OR n IS NULL) AND id >= 0", 0..1),
        ("n IS NOT NULL AND id >= 0", 0..1),
    ] {
        let result = same(&cpu, &sim, &format!("SELECT * FROM t WHERE {filter}")).await;
        let found = counted(&result, "rows_left_out_by_dictionaries");
        assert!(left_out.contains(&found), "{filter}: {found} of {all} rows are left out, not {left_out:?}");
        assert!(counted(&result, "output_rows") <= all - found, "{filter}");
    }
    let whole = session_with(DeviceChoice::Sim, 3, Fallback::Allow);
    for setting in ["datafusion.execution.parquet.pruning = false", "millpond.cache = off"] {
        set(&whole, setting).await;
    }
    let path = path.to_str().expect("a UTF-8 path");
    whole.context().register_parquet("t", path, ParquetReadOptions::default()).await.expect("the files are read");
    let result = run(&whole, "SELECT * FROM t WHERE kind = 'k01234'").await.1;
    assert_eq!(counted(&result, "rows_left_out_by_dictionaries"), 0, "pruning is off");
    assert_eq!(counted(&result, "output_rows"), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scan_of_tpch_is_decoded() {
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Error, config(4), &data("0.001")).await;
    let session = parquet_session(DeviceChoice::Sim, Fallback::Error, config(4), &data("0.001")).await;
    set(&session, "millpond.cache = off").await;
    for ((number, sql), (decoder, values)) in queries()
        .into_iter()
        .flat_map(|query| [("host", 0), ("host", 3), ("device", 0), ("device", 3)].map(|how| (query.clone(), how)))
    {
        set(&session, &format!("millpond.parquet_decoder = {decoder}")).await;
        set(&session, &format!("millpond.debug_dictionary_values = {values}")).await;
        let (answer, result) = run(&session, &sql).await;
        let expected = run(&cpu, &sql).await.0;
        assert_eq!(expected.difference(&answer, false), None, "Q{number} {decoder} {values}");
        let (own, uploads) = scans(&result);
        assert!(own > 0 && uploads == 0, "Q{number}: {own} scans are decoded, {uploads} are uploaded");
        let foreign = counted(&result, "row_groups_by_datafusion") + counted(&result, "files_by_datafusion");
        assert_eq!(foreign, 0, "Q{number}: {:?}", result.report.notes);
        assert!(counted(&result, "row_groups_decoded") > 0, "Q{number}");
    }
}

fn ids(from: i64, rows: i64) -> ArrayRef {
    Arc::new((from..from + rows).collect::<Int64Array>())
}

fn names(rows: i64, every: i64) -> ArrayRef {
    Arc::new((0..rows).map(|row| (row % every != 0).then(|| format!("name {}", row % 40))).collect::<StringArray>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_other_schemas_are_read_by_who_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        let nullable = columns.into_iter().map(|(name, array)| (name, array, true));
        let batch = RecordBatch::try_from_iter_with_nullable(nullable).expect("columns of one length");
        write(&folder.path().join(name), &[batch], small_pages().build());
    };
    file(
        "a.parquet",
        vec![("id", ids(0, 1000)), ("x", Arc::new((0..1000).collect::<Int64Array>())), ("s", names(1000, 7))],
    );
    // Another order of columns, one that lacks, one of another type.
    file("b.parquet", vec![("s", names(700, 5)), ("id", ids(1000, 700))]);
    file(
        "c.parquet",
        vec![("id", ids(2000, 600)), ("x", Arc::new((0..600).collect::<Int32Array>())), ("s", names(600, 3))],
    );
    let over = async |device| {
        let session = session_with(device, 3, Fallback::Allow);
        let path = folder.path().to_str().expect("a UTF-8 path");
        let columns = "id BIGINT, x BIGINT, s VARCHAR";
        let sql = format!("CREATE EXTERNAL TABLE t ({columns}) STORED AS PARQUET LOCATION '{path}/'");
        session.context().sql(&sql).await.expect("the table is made");
        session
    };
    let (cpu, sim) = (over(DeviceChoice::Cpu).await, over(DeviceChoice::Sim).await);
    // Rows are counted over all files, across their readers.
    for limit in [5, 900, 1700, 2200] {
        same(&cpu, &sim, &format!("SELECT count(*), count(id) FROM (SELECT id FROM t LIMIT {limit})")).await;
    }
    let result = same(&cpu, &sim, ALL).await;
    assert_eq!(counted(&result, "files_by_datafusion"), 1);
    let notes = result.report.notes.join("\n");
    assert!(notes.contains("c.parquet: column x is Int32 there and Int64 here – DataFusion read it"), "{notes}");
    assert_eq!(counted(&result, "row_groups_decoded"), 4);
    for sql in [
        "SELECT s, count(*), sum(x), min(id) FROM t GROUP BY s",
        "SELECT count(x), count(*) FROM t",
        "SELECT id FROM t WHERE x IS NULL AND s > 'name 3'",
    ] {
        same(&cpu, &sim, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_columns_are_constants_of_their_files() {
    let folder = tempfile::tempdir().expect("a folder");
    for (day, rows) in [("2024-01-01", 400), ("2024-01-02", 300), ("__HIVE_DEFAULT_PARTITION__", 200)] {
        for store in [1, 22] {
            let path = folder.path().join(format!("day={day}/store={store}"));
            fs::create_dir_all(&path).expect("a folder");
            let batch = RecordBatch::try_from_iter([("id", ids(rows, rows)), ("s", names(rows, 9))]).expect("columns");
            write(&path.join("part.parquet"), &[batch], small_pages().build());
        }
    }
    let session = async |device| {
        let session = session_with(device, 3, Fallback::Allow);
        let columns = vec![("day".to_string(), DataType::Utf8), ("store".to_string(), DataType::Int32)];
        let options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_table_partition_cols(columns);
        let path = folder.path().to_str().expect("a UTF-8 path").to_string();
        session.context().register_listing_table("t", path, options, None, None).await.expect("the folder is read");
        session
    };
    let (cpu, sim) = (session(DeviceChoice::Cpu).await, session(DeviceChoice::Sim).await);
    for sql in [
        "SELECT * FROM t WHERE id > 250",
        "SELECT day, store, count(*), sum(id) FROM t GROUP BY day, store",
        "SELECT id, day FROM t WHERE store = 22 AND day = '2024-01-02'",
        "SELECT count(*), count(day) FROM t WHERE s = 'name 3' OR store < 5",
    ] {
        let result = same(&cpu, &sim, sql).await;
        assert_eq!(counted(&result, "files_by_datafusion"), 0, "{sql}: {:?}", result.report.notes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_left_out_as_datafusion_leaves_them_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let rows = 4000;
    let hashed: ArrayRef = Arc::new((0..rows).map(|row| row * 7919 % 100_003).collect::<Int64Array>());
    let batch =
        RecordBatch::try_from_iter([("id", ids(0, rows)), ("h", hashed), ("s", names(rows, 11))]).expect("rows");
    write(&path, &[batch], small_pages().set_bloom_filter_enabled(true).build());
    let (cpu, sim) = (over(DeviceChoice::Cpu, &path).await, over(DeviceChoice::Sim, &path).await);
    for (sql, most) in [
        // Statistics of row groups, and of pages within them.
        ("SELECT id, s FROM t WHERE id BETWEEN 1220 AND 1280", 100),
        ("SELECT sum(h) FROM t WHERE id >= 3900 OR id < 50", 1000),
        // A value that only bloom filters know to be in one row group.
        ("SELECT id FROM t WHERE h = 7919", 500),
        ("SELECT id FROM t WHERE id < 0", 0),
    ] {
        let result = same(&cpu, &sim, sql).await;
        let read = counted(&result, "output_rows");
        assert!(read <= most, "{sql} reads {read} rows");
    }
    // Key ranges that a build side pushes down while the query runs.
    let sql = "SELECT count(*), sum(b.h) FROM t a JOIN t b ON a.id = b.id WHERE a.h = 7919 * 2";
    let result = same(&cpu, &sim, sql).await;
    let read = counted(&result, "output_rows");
    assert!(read <= 1000, "{sql} reads {read} rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_stops_after_its_limit_and_filters_on_the_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let batch = RecordBatch::try_from_iter([("id", ids(0, 3000)), ("s", names(3000, 11))]).expect("rows");
    write(&path, &[batch], small_pages().build());
    let sim = over(DeviceChoice::Sim, &path).await;
    set(&sim, "millpond.cache = off").await;
    let sql = "SELECT count(*), min(id) >= 0 FROM (SELECT id FROM t LIMIT 70)";
    let (answer, _) = run(&sim, sql).await;
    let cpu = over(DeviceChoice::Cpu, &path).await;
    assert_eq!(run(&cpu, sql).await.0.difference(&answer, false), None);
    set(&sim, "datafusion.execution.parquet.pushdown_filters = true").await;
    let path = path.to_str().expect("a UTF-8 path");
    sim.context().register_parquet("u", path, Default::default()).await.expect("read");
    let sql = "SELECT s FROM u WHERE id > 2900";
    let plan = plan_text(&sim, sql).await;
    assert!(plan.contains("DeviceFilterExec") && plan.contains("DeviceScanExec"), "{plan}");
    let rows: usize = run(&sim, sql).await.1.batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, 99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_datafusions_to_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let batch = RecordBatch::try_from_iter([("id", ids(0, 3000)), ("s", names(3000, 11))]).expect("rows");
    write(&path, &[batch], small_pages().set_dictionary_enabled(false).build());
    let bytes = fs::read(&path).expect("the file");
    // The middle of the first row group's pages.
    for at in [200, 900, 3000] {
        let mut wrong = bytes.clone();
        wrong[at..at + 40].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let path = folder.path().join(format!("wrong{at}.parquet"));
        fs::write(&path, wrong).expect("the file is written");
        let cpu = over(DeviceChoice::Cpu, &path).await;
        let expected = cpu.execute(ALL).await;
        for cache in ["off", "auto"] {
            let sim = over(DeviceChoice::Sim, &path).await;
            set(&sim, &format!("millpond.cache = {cache}")).await;
            match (&expected, sim.execute(ALL).await) {
                (Ok(expected), Ok(result)) => {
                    let (a, b) = (
                        Answer::new(&expected.schema, &expected.batches),
                        Answer::new(&result.schema, &result.batches),
                    );
                    assert_eq!(a.difference(&b, false), None, "byte {at}, cache {cache}");
                }
                (Err(expected), Err(error)) => {
                    assert_eq!(error.to_string(), expected.to_string(), "byte {at}, cache {cache}")
                }
                (expected, result) => {
                    panic!("byte {at}, cache {cache}: {:?} {:?}", expected.as_ref().err(), result.err())
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_or_shrinks_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let rows = |from| RecordBatch::try_from_iter([("id", ids(from, 3000)), ("s", names(3000, 11))]).expect("rows");
    for cut in [true, false] {
        write(&path, &[rows(0)], small_pages().build());
        let sim = over(DeviceChoice::Sim, &path).await;
        set(&sim, "millpond.cache = off").await;
        let planned = sim.plan(ALL).await.expect("a plan");
        let bytes = fs::read(&path).expect("the file");
        match cut {
            true => fs::write(&path, &bytes[..bytes.len() / 3]).expect("the file is cut"),
            false => write(&path, &[rows(7), rows(9)], small_pages().build()),
        }
        let error = sim
            .execute_plan(planned)
            .await
            .err()
            .unwrap_or_else(|| panic!("cut: {cut}: rows of a file that has changed"));
        let message = error.to_string();
        assert!(message.contains("t.parquet has changed since the query was planned"), "cut: {cut}: {message}");
    }
}

/// The upload of a column has at most the bytes in the file or in the store, plus a twentieth and 4 KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_goes_up_as_the_file_has_it_or_as_it_is_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.parquet");
    let rows = 200_000_i64;
    let column = |of: &dyn Fn(i64) -> i64| Arc::new((0..rows).map(of).collect::<Int64Array>()) as ArrayRef;
    let hash = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64).rotate_left(31);
    let money = (0..rows).map(|row| i128::from(hash(row).rem_euclid(1 << 24))).collect::<Decimal128Array>();
    let money = money.with_precision_and_scale(15, 2).expect("they fit");
    let texts = |of: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new((0..rows).map(|row| Some(of(row))).collect::<StringArray>())
    };
    let number = "sum(# % 7), max(#)";
    let text = "count(*) FILTER (WHERE # LIKE '%7%'), count(#)";
    let long = texts(&|row| format!("{:016x} {:016x}", hash(row), hash(!row)));
    let columns = [
        ("few", column(&|row| hash(row).rem_euclid(50)), 1, number),
        ("many", column(&|row| hash(row).rem_euclid(3000)), 2, number),
        ("wide", column(&hash), 8, number),
        ("sorted", column(&|row| row / 3), 4, number),
        ("double", Arc::new((0..rows).map(|row| hash(row) as f64).collect::<Float64Array>()), 8, "sum(#)"),
        (
            "date",
            Arc::new(Date32Array::from_iter_values((0..rows).map(|row| hash(row).rem_euclid(2500) as i32))),
            2,
            "count(*) FILTER (WHERE # > DATE '1972-01-01')",
        ),
        ("money", Arc::new(money), 4, "sum(#), max(#)"),
        // Codes of 32 bits, while rows are fed: how many there will be is not known.
        ("word", texts(&|row| format!("word {}", hash(row).rem_euclid(200))), 4, text),
        // Offsets and bytes.
        ("long", long, 4 + 33, text),
    ];
    let batch = RecordBatch::try_from_iter(columns.iter().map(|(name, array, ..)| (*name, Arc::clone(array))));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    write(&path, &[batch.expect("columns")], properties.set_max_row_group_row_count(Some(100_000)).build());
    let footer = SerializedFileReader::new(fs::File::open(&path).expect("the file")).expect("a footer");
    let compressed = |column: usize| -> u64 {
        footer.metadata().row_groups().iter().map(|group| group.column(column).compressed_size() as u64).sum()
    };
    let sim = over(DeviceChoice::Sim, &path).await;
    set(&sim, "millpond.cache = off").await;
    for (index, (name, _, width, question)) in columns.iter().enumerate() {
        for (decoder, bytes) in [("host", rows as u64 * width), ("device", compressed(index))] {
            set(&sim, &format!("millpond.parquet_decoder = {decoder}")).await;
            let up = run(&sim, &format!("SELECT {} FROM t", question.replace('#', name))).await.1.report.uploaded_bytes;
            assert!(up <= bytes + bytes / 20 + 4096, "{name}, {decoder}: {up} bytes up for {bytes}");
            assert!(up > bytes / 2, "{name}, {decoder}: {up} bytes up for {bytes}");
        }
    }
}
