//! Tables of gpu-bdb: the promises of docs/gpu-bdb-data.md, equality over threads and parts, and clear errors.

mod acceptance;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Decimal128Type, Float64Type, Int32Type, Int64Type};
use millpond_data::gpu_bdb::digest::TableDigest;
use millpond_data::gpu_bdb::{DEFAULT_SEED, DataSet, Format, Keys, Money, Options, Table, generate};
use millpond_data::{DataError, WrittenFile};

fn write(options: &Options) -> Vec<WrittenFile> {
    generate(options, &|_, _| ()).expect("files")
}

fn data() -> DataSet {
    DataSet::new(0.01, DEFAULT_SEED, true).expect("data")
}

fn batches(data: &DataSet, table: Table, units: std::ops::Range<u64>, format: Format) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    let mut take = |batch| {
        batches.push(batch);
        Ok(())
    };
    data.rows(table, units, format, &mut take).expect("rows");
    batches
}

fn digest(batches: &[RecordBatch]) -> (u64, u64) {
    let mut digest = TableDigest::new();
    batches.iter().for_each(|batch| digest.add(batch));
    (digest.num_rows(), digest.value())
}

#[test]
fn promises_of_the_specification_are_kept_at_a_hundredth() {
    let folder = tempfile::tempdir().expect("folder");
    write(&Options::new(0.01, folder.path()));
    let report = acceptance::check(&acceptance::Folder::new(folder.path())).expect("readable files");
    let broken: Vec<_> = report.findings.iter().filter(|finding| !finding.kept).collect();
    assert!(broken.is_empty() && report.findings.len() > 500, "{broken:#?}");
}

/// Rows and digests of generator version 1 at scale 0.01. Other values require another `GENERATOR_VERSION`.
#[test]
fn values_are_those_of_every_machine() {
    let expected: BTreeMap<&str, (u64, u64)> = DIGESTS.iter().copied().collect();
    let data = data();
    let found: BTreeMap<&str, (u64, u64)> = Table::ALL
        .into_iter()
        .map(|table| {
            let whole = batches(&data, table, 0..data.num_units(table), Format::default());
            (table.name(), digest(&whole))
        })
        .collect();
    assert_eq!(found, expected, "{found:?}");
}

#[rustfmt::skip]
const DIGESTS: &[(&str, (u64, u64))] = &[
    ("customer", (10_000, 0x1540_9273_9c30_9209)),
    ("customer_address", (5_000, 0xc067_0bd7_a223_1b74)),
    ("customer_demographics", (19_208, 0xde2f_c180_40ff_eab5)),
    ("date_dim", (109_573, 0xb81e_9a22_92af_ea2b)),
    ("household_demographics", (7_200, 0xdbdb_acd9_fa52_74e6)),
    ("income_band", (20, 0xc292_dc48_b821_65ab)),
    ("inventory", (172_260, 0xf747_2f4a_c38b_7cc1)),
    ("item", (12_000, 0x3ab8_7db0_d844_28b8)),
    ("item_marketprices", (60_000, 0xfe51_a54b_062a_2120)),
    ("product_reviews", (9_009, 0x274f_2852_bbc3_5171)),
    ("promotion", (300, 0x427d_8cfc_b2bc_f626)),
    ("reason", (35, 0x8879_e55c_fc76_e7bb)),
    ("ship_mode", (20, 0x2333_a22d_1812_4c7d)),
    ("store", (12, 0xbf6a_809d_5c05_8835)),
    ("store_returns", (396, 0x0958_b9cc_40d9_8ebc)),
    ("store_sales", (7_041, 0xc7c6_d94c_621c_357c)),
    ("time_dim", (86_400, 0x4774_b534_8560_3195)),
    ("warehouse", (5, 0xe014_b69e_3e00_f52d)),
    ("web_clickstreams", (68_606, 0x2f63_fea9_d5c1_aa73)),
    ("web_page", (60, 0x2de5_d111_7497_cdf4)),
    ("web_returns", (446, 0x074a_fabd_096a_fd69)),
    ("web_sales", (6_805, 0xadf1_2f12_9d0c_bc15)),
    ("web_site", (30, 0x68b5_cabb_cea8_e178)),
];

#[test]
fn any_part_alone_has_the_rows_of_the_whole() {
    let data = data();
    for table in Table::ALL {
        let units = data.num_units(table);
        // Only the beginning: calendars and demographics are simple but long.
        let end = units.min(20_000);
        let whole = digest(&batches(&data, table, 0..end, Format::default()));
        let mut parts = Vec::new();
        let mut first = 0;
        for width in [1, 2, 7, 31, 333, 4_096].into_iter().cycle() {
            let next = (first + width).min(end);
            parts.extend(batches(&data, table, first..next, Format::default()));
            first = next;
            if first == end {
                break;
            }
        }
        assert_eq!(digest(&parts), whole, "{}", table.name());
        assert!(batches(&data, table, units..units + 5, Format::default()).is_empty(), "{}", table.name());
    }
}

#[test]
fn files_are_the_same_for_any_number_of_threads() {
    let tables = vec![Table::WebClickstreams, Table::StoreSales, Table::WebReturns, Table::Inventory, Table::Store];
    let bytes = |threads| {
        let folder = tempfile::tempdir().expect("folder");
        let mut options = Options::new(0.01, folder.path());
        options.tables = tables.clone();
        options.threads = threads;
        let files = write(&options);
        assert_eq!(files.len(), tables.len());
        files.iter().map(|file| fs::read(&file.path).expect("bytes")).collect::<Vec<_>>()
    };
    let one = bytes(1);
    assert_eq!(one, bytes(5));
    assert_eq!(one, bytes(16));
}

#[test]
fn files_say_what_they_were_made_from() {
    let folder = tempfile::tempdir().expect("folder");
    let mut options = Options::new(0.5, folder.path());
    options.tables = vec![Table::Reason, Table::Reason];
    options.seed = 42;
    options.plants = false;
    let progress = std::sync::atomic::AtomicU64::new(0);
    let files = generate(&options, &|table, rows| {
        assert_eq!(table, Table::Reason);
        progress.fetch_add(rows, std::sync::atomic::Ordering::Relaxed);
    });
    let rows: Vec<_> = files.expect("files").iter().map(|file| file.num_rows).collect();
    assert_eq!(rows, [35], "a table that is asked for twice is written once");
    assert_eq!(progress.into_inner(), 35);
    let files = acceptance::Folder::new(folder.path());
    for (key, value) in
        [("suite", "gpu-bdb"), ("scale", "0.5"), ("seed", "42"), ("plants", "false"), ("generator_version", "1")]
    {
        assert_eq!(files.noted(key).as_deref(), Ok(value));
    }
}

#[test]
fn without_plants_only_the_formulas_are_left() {
    let bare = DataSet::new(0.01, DEFAULT_SEED, false).expect("data");
    assert_eq!((bare.num_units(Table::StoreSales), bare.num_units(Table::WebSales)), (900, 900));
    assert_eq!((bare.num_units(Table::WebClickstreams), bare.num_units(Table::ProductReviews)), (900, 9_009));
    // Tickets of the formulas are equal with and without plants.
    let regular = |data: &DataSet| digest(&batches(data, Table::StoreSales, 0..900, Format::default()));
    assert_eq!(regular(&bare), regular(&data()));
}

#[test]
fn another_seed_gives_other_rows_of_the_same_kind() {
    let other = DataSet::new(0.01, 1, true).expect("data");
    for table in [Table::Customer, Table::StoreSales, Table::ProductReviews] {
        let rows = |data: &DataSet| batches(data, table, 0..100, Format::default());
        assert_eq!(rows(&other)[0].schema(), rows(&data())[0].schema());
        assert_ne!(digest(&rows(&other)), digest(&rows(&data())), "{}", table.name());
    }
}

#[test]
fn decimals_and_narrow_keys_hold_the_same_values() {
    let data = data();
    let narrow = Format { money: Money::Decimal, keys: Keys::Int32 };
    for table in Table::ALL {
        let units = 0..data.num_units(table).min(2_000);
        let wide = batches(&data, table, units.clone(), Format::default());
        for (wide, narrow) in wide.iter().zip(batches(&data, table, units, narrow)) {
            for (column, (wide, narrow)) in wide.columns().iter().zip(narrow.columns()).enumerate() {
                assert_eq!(wide.nulls(), narrow.nulls());
                if let (Some(wide), Some(narrow)) =
                    (wide.as_primitive_opt::<Float64Type>(), narrow.as_primitive_opt::<Decimal128Type>())
                {
                    let exact = |hundredths: i128| format!("{hundredths}e-2").parse::<f64>().expect("a number");
                    let same = wide.iter().zip(narrow).all(|pair| pair.0 == pair.1.map(exact));
                    assert!(same, "{} column {column}", table.name());
                } else if let (Some(wide), Some(narrow)) =
                    (wide.as_primitive_opt::<Int64Type>(), narrow.as_primitive_opt::<Int32Type>())
                {
                    let same = wide.iter().zip(narrow).all(|pair| pair.0 == pair.1.map(i64::from));
                    assert!(same, "{} column {column}", table.name());
                } else {
                    assert_eq!(wide, narrow, "{} column {column}", table.name());
                }
            }
        }
    }
}

#[test]
fn a_smaller_generation_leaves_no_part_of_a_larger_one() {
    let folder = tempfile::tempdir().expect("folder");
    let reason = folder.path().join("reason");
    fs::create_dir(&reason).expect("folder");
    for name in ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet", "notes.txt"] {
        fs::write(reason.join(name), "of an earlier generation").expect("file");
    }
    let mut options = Options::new(0.01, folder.path());
    options.tables = vec![Table::Reason];
    write(&options);
    let mut left: Vec<_> =
        fs::read_dir(&reason).expect("folder").map(|entry| entry.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["notes.txt", "part-00000.parquet"]);
    assert_eq!(acceptance::Folder::new(folder.path()).num_rows("reason"), Ok(35));
}

#[test]
fn refusals_name_the_value_or_the_path() {
    let folder = tempfile::tempdir().expect("folder");
    for scale in [0.0, 0.0099, -1.0, f64::NAN, f64::INFINITY, 1e6] {
        let error = generate(&Options::new(scale, folder.path()), &|_, _| ()).expect_err("refused");
        assert!(matches!(error, DataError::ScaleRange { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("scale factor {scale} is not usable")), "{error}");
    }
    let refused = |out: &Path, named: &str| {
        let mut options = Options::new(0.01, out);
        options.tables = vec![Table::Reason, Table::Store];
        let error = generate(&options, &|_, _| ()).expect_err("refused");
        assert!(error.is_io() && error.to_string().contains(named), "{error}");
    };
    let occupied = folder.path().join("file");
    fs::write(&occupied, "not a folder").expect("file");
    refused(&occupied, "file");
    fs::write(folder.path().join("store"), "not a folder").expect("file");
    refused(folder.path(), "store");
    // A non-empty folder occupies the final name of a part.
    let other = tempfile::tempdir().expect("folder");
    fs::create_dir_all(other.path().join("reason/part-00000.parquet/inside")).expect("folder");
    refused(other.path(), "part-00000.parquet");
    let left = fs::read_dir(other.path().join("reason")).expect("folder").count();
    assert_eq!(left, 1, "the half-made file is gone");
}
