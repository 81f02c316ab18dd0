//! Generated files: the promised rows, equal for any number of threads, and clear errors.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, Int64Array, RecordBatch};
use millpond_data::{sample, tpch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

fn read(path: &Path) -> (Vec<RecordBatch>, usize) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).expect("file")).expect("Parquet");
    let num_row_groups = reader.metadata().num_row_groups();
    (reader.build().expect("reader").map(|batch| batch.expect("batch")).collect(), num_row_groups)
}

#[test]
fn checked_in_sample_is_what_the_generator_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/sales.parquet");
    assert!(path.metadata().expect("sample").len() <= 2 << 20);
    let (batches, num_row_groups) = read(&path);
    assert_eq!(num_row_groups, 1);
    let mut first = 0;
    for batch in &batches {
        let expected = sample::rows(first, batch.num_rows() as u64).expect("rows");
        assert_eq!(batch.columns(), expected.columns());
        first += batch.num_rows() as u64;
    }
    assert_eq!(first, sample::NUM_ROWS);
}

#[test]
fn sample_has_nulls_in_each_nullable_column() {
    let batch = sample::rows(0, sample::NUM_ROWS).expect("rows");
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        assert_eq!(field.is_nullable(), column.null_count() > 0, "{}", field.name());
    }
}

#[test]
fn tpch_rows_at_a_hundredth() {
    // Row counts of the TPC's generator at scale 0.01.
    let expected = [
        ("nation", 25),
        ("region", 5),
        ("supplier", 100),
        ("customer", 1_500),
        ("part", 2_000),
        ("partsupp", 8_000),
        ("orders", 15_000),
        ("lineitem", 60_175),
    ];
    let folder = tempfile::tempdir().expect("folder");
    let files = tpch::generate(&tpch::Options::new(0.01, folder.path()), &|_, _| ()).expect("files");
    for (file, (name, rows)) in files.iter().zip(expected) {
        assert_eq!(file.path.file_stem().and_then(|stem| stem.to_str()), Some(name));
        assert_eq!(file.num_rows, rows, "{name}");
        let (batches, num_row_groups) = read(&file.path);
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() as u64, rows);
        assert_eq!(num_row_groups > 1, rows > 4_000, "{name} has {num_row_groups} row groups");
    }
    let (lines, _) = read(&folder.path().join("lineitem.parquet"));
    let keys = lines[0].column(0).as_any().downcast_ref::<Int64Array>().expect("order keys");
    assert_eq!(keys.value(0), 1);
}

#[test]
fn same_bytes_for_any_number_of_threads() {
    let bytes = |threads| {
        let folder = tempfile::tempdir().expect("folder");
        let mut options = tpch::Options::new(0.01, folder.path());
        options.tables = vec![tpch::Table::Orders, tpch::Table::Customer];
        options.threads = threads;
        let files = tpch::generate(&options, &|_, _| ()).expect("files");
        files.iter().map(|file| std::fs::read(&file.path).expect("bytes")).collect::<Vec<_>>()
    };
    assert_eq!(bytes(1), bytes(3));
}

#[test]
fn refusals_name_the_value() {
    let folder = tempfile::tempdir().expect("folder");
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = tpch::generate(&tpch::Options::new(scale, folder.path()), &|_, _| ()).expect_err("refused");
        assert!(error.to_string().contains(&format!("scale factor {scale}")), "{error}");
    }
    let error = tpch::Table::from_name("lineitems").expect_err("refused");
    assert!(error.to_string().contains("'lineitems'") && error.to_string().contains("lineitem"), "{error}");

    let occupied = folder.path().join("file");
    std::fs::write(&occupied, "not a folder").expect("file");
    let error = tpch::generate(&tpch::Options::new(0.01, &occupied), &|_, _| ()).expect_err("refused");
    assert!(error.to_string().contains("/file: a file has that name"), "{error}");
}
