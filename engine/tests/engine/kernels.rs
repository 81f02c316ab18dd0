//! Every compiled kernel has a query that launches it: a kernel that no query needs is deleted, with its image.
//!
//!   kernels/images ──► names ──┐
//!   LAUNCHED_BY    ──► names ──┴─► the same; each query launches what its line says, and gives the CPU's answer
//!
//! Seen   by the simulated device, which counts the launches of each kernel by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millpond::Fallback;
use millpond::datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::basic::{Compression, Encoding};
use millpond::datafusion::parquet::file::properties::WriterProperties;
use millpond_kernels::image::IMAGES;

use crate::sql_features::Rig;
use crate::unnest;

/// Strings have no dictionary here: columns of texts.
const TEXTS: &[&str] = &["millpond.debug_dictionary_values = 3"];

/// Pages are decoded on the device.
const DECODED: &[&str] = &["millpond.cache = off", "millpond.parquet_decoder = device"];

/// Images whose kernels the functions of the crate `queries` launch: its tests have the queries.
const OF_QUERIES: &[&str] = &["bayes", "clicks", "learn"];

/// Kernels, the settings that they need, and a query that launches all of them. `t` has 3,000 rows, `many` 120,000.
const LAUNCHED_BY: &[(&[&str], &[&str], &str)] = &[
    // A join table with several rows for a key, and an output of every match.
    (
        &["join_count", "join_allot", "join_place", "scan_counts"],
        &[],
        "SELECT a.id, b.id FROM t a JOIN t b ON a.k = b.k WHERE a.id < 300 AND b.id < 50",
    ),
    // The least and greatest key of a build side, which are pushed down to the scan of the probe side.
    (
        &["reduce_integers"],
        &["millpond.cache = off"],
        "SELECT a.id, b.i8 FROM t a JOIN t b ON a.id = b.id WHERE a.i8 = 1",
    ),
    (&["radix_encode_4", "radix_pass_4"], &[], "SELECT k, w FROM t ORDER BY k, w"),
    (&["radix_encode_8", "radix_pass_8"], &[], "SELECT key FROM many WHERE value < 6000 ORDER BY key"),
    (&["sort_tile"], &[], "SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY n, k"),
    // More keys than travel with a launch.
    (
        &["sort_keys"],
        &[],
        "SELECT id FROM t ORDER BY b, c, w, k, k + 1, k + 2, k + 3, k + 4, k + 5, k + 6, k + 7, k + 8, k + 9, i8, u8, i16, i32, id",
    ),
    // Strings without a dictionary are compared, tile by tile and then in merges.
    (&["sort_tile", "sort_merge", "text_sizes", "text_pack"], TEXTS, "SELECT s, id FROM t ORDER BY s, id"),
    // Columns that stay: values, validity and booleans; different values of those that are not sorted.
    (
        &["store_values", "store_bits", "store_mark", "store_count"],
        &["millpond.cache = auto"],
        "SELECT sum(i64), count(b), max(k) FROM t",
    ),
    // What is true of those that the device has decoded.
    (&["parquet_facts"], &["millpond.parquet_decoder = device"], "SELECT sum(k), max(d) FROM snappy"),
    // The same of texts.
    (&["store_offsets"], TEXTS, "SELECT count(DISTINCT s) FROM t"),
    // Words in texts, and their sentences.
    (
        &["sentences_count", "sentences_write"],
        &[],
        "SELECT hit['word'] AS w, id FROM (SELECT id, UNNEST(finds(s || ' good')) AS hit FROM t)",
    ),
    // Pages of columns that do not stay: numbers and codes, and texts.
    (
        &["parquet_prepare", "parquet_values_codes", "parquet_values_numbers"],
        DECODED,
        "SELECT s, sum(i64), max(x), count(c) FROM t GROUP BY s",
    ),
    (
        &["parquet_texts_measure", "parquet_texts_place", "parquet_texts_gather"],
        &["millpond.cache = off", "millpond.parquet_decoder = device", "millpond.debug_dictionary_values = 3"],
        "SELECT a FROM plain WHERE a > '2'",
    ),
    (&["parquet_decompress_snappy"], DECODED, "SELECT sum(k), max(d) FROM snappy"),
    (&["parquet_decompress_lz4", "parquet_values_deltas"], DECODED, "SELECT sum(k), max(d) FROM deltas"),
    (
        &["window_heads", "window_rank"],
        &[],
        "SELECT id, rank() OVER (PARTITION BY k ORDER BY w) AS n FROM t ORDER BY id",
    ),
    (
        &["window_valid", "window_take"],
        &[],
        "SELECT id, lag(i32) IGNORE NULLS OVER (PARTITION BY k ORDER BY id) AS n FROM t ORDER BY id",
    ),
    (
        &["window_leaves", "window_nodes", "window_fold"],
        &[],
        "SELECT id, sum(k) OVER (ORDER BY id) AS n FROM t ORDER BY id",
    ),
    (
        &["window_list", "window_chosen"],
        &[],
        "SELECT id, array_agg(k) IGNORE NULLS OVER (ORDER BY id ROWS 2 PRECEDING) AS l FROM t ORDER BY id",
    ),
    (
        &["distinct_near", "distinct_firsts"],
        &[],
        "SELECT id, count(DISTINCT k) OVER (ORDER BY id) AS n FROM t ORDER BY id",
    ),
    (
        &["distinct_near", "distinct_spans", "distinct_pairs", "distinct_less"],
        &[],
        "SELECT id, count(DISTINCT k) OVER (ORDER BY id ROWS 2 PRECEDING) AS n FROM t ORDER BY id",
    ),
    (
        &["percentile_ranks", "percentile_level", "percentile_pick"],
        &[],
        "SELECT id, median(CAST(k AS DOUBLE)) OVER (ORDER BY id ROWS 2 PRECEDING) AS m FROM t ORDER BY id",
    ),
    (
        &["bivariate_leaves", "bivariate_nodes", "bivariate_fold"],
        &[],
        "SELECT id, covar_pop(k, id) OVER (ORDER BY id) AS c FROM t ORDER BY id",
    ),
    (
        &["concat_parts"],
        &[],
        "SELECT id, string_agg(s, '-') OVER (PARTITION BY k ORDER BY id) AS j FROM t WHERE id < 300 ORDER BY id",
    ),
    (
        &["lists_by_ends", "lists_by_rows", "lists_of_one"],
        &[],
        "SELECT id, [k, id] AS l, array_remove([1, 2, NULL], k) AS r, struct(k, id) AS s FROM t ORDER BY id",
    ),
    (&["window_identity"], &[], "SELECT count(*) OVER () AS n FROM t ORDER BY n"),
    (&["top_rows"], &["millpond.batch_rows = 3000"], "SELECT id, i64 FROM t ORDER BY i64, id LIMIT 10"),
];

/// Tables whose pages want other kernels: plain texts, compressed numbers, differences.
async fn pages_of_every_kind(rig: &Rig) {
    let k: ArrayRef = Arc::new((0..3000_i64).map(|row| row * 7 % 1001).collect::<Int64Array>());
    let d: ArrayRef = Arc::new((0..3000).collect::<Int32Array>());
    let a: ArrayRef = Arc::new((0..3000).map(|row| Some(format!("{row} bolts"))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([("k", k), ("d", d), ("a", a)]).expect("columns");
    let plain = || WriterProperties::builder().set_dictionary_enabled(false);
    let deltas = plain().set_encoding(Encoding::DELTA_BINARY_PACKED).set_column_encoding("a".into(), Encoding::PLAIN);
    for (name, properties) in [
        ("plain", plain()),
        ("snappy", plain().set_compression(Compression::SNAPPY)),
        ("deltas", deltas.set_compression(Compression::LZ4_RAW)),
    ] {
        let path = rig.folder.path().join(format!("{name}.parquet"));
        let file = std::fs::File::create(&path).expect("a new file");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).expect("a writer");
        writer.write(&batch).expect("rows are written");
        writer.close().expect("the file is written");
        for session in [&rig.cpu, &rig.sim] {
            let path = path.to_str().expect("a UTF-8 path");
            session.context().register_parquet(name, path, Default::default()).await.expect("the file is read");
        }
    }
}

#[tokio::test]
async fn every_compiled_kernel_is_launched_by_a_query() {
    let (mut unfulfilled, mut named) = (Vec::new(), BTreeSet::new());
    for (kernels, settings, sql) in LAUNCHED_BY {
        let rig = Rig::with_partitions(Fallback::Error, 2).await;
        pages_of_every_kind(&rig).await;
        unnest::register([&rig.cpu, &rig.sim]);
        for setting in *settings {
            rig.set(setting).await;
        }
        let engine = rig.sim.engine().expect("there is a device").clone();
        let sim = engine.simulated().expect("it is simulated");
        assert_eq!(sim.launched(), BTreeMap::new(), "the device is new");
        let answer = rig.run(sql).await;
        let launched = sim.launched();
        let missing: Vec<&&str> = kernels.iter().filter(|kernel| !launched.contains_key(**kernel)).collect();
        if answer.is_err() || !missing.is_empty() {
            unfulfilled
                .push(format!("{sql}\n    {:?}; not launched: {missing:?}; launched: {launched:?}", answer.err()));
        }
        named.extend(*kernels);
    }
    assert!(unfulfilled.is_empty(), "{}", unfulfilled.join("\n"));
    let own = IMAGES.iter().filter(|image| !OF_QUERIES.contains(&image.name));
    let compiled: BTreeSet<&str> = own.flat_map(|image| image.kernels()).collect();
    assert_eq!(named, compiled, "a kernel in kernels/images and its query in LAUNCHED_BY come and go together");
}
