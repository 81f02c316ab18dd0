//! What rewriting keeps: every type of the format with its annotations, levels, values, metadata and orders, byte by
//! byte.
//!
//!   kinds × repetitions × nesting × codecs × versions × encodings × row groups ──► file ──► rewrite ──► the same
//!
//! `cargo test` writes [`CASES`] random files. More: `MILLPOND_CASES=5000 cargo test -p millpond-parquet random_files`;
//! one alone, which a failure names: `MILLPOND_CASE=17 cargo test -p millpond-parquet random_files`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::file::metadata::{
    KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData, SortingColumn,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use crate::cases::Random;
use crate::records::{Column, Kind, kinds, read, records, tame, write};
use crate::targets::rewrite;
use millpond_parquet::rewrite::{Options, Written};

/// Random files that a test writes.
const CASES: u64 = 60;

fn metadata(path: &Path) -> ParquetMetaData {
    ParquetMetaDataReader::new().parse_and_finish(&fs::File::open(path).unwrap()).unwrap()
}

fn schema(path: &Path) -> SchemaDescriptor {
    metadata(path).file_metadata().schema_descr().clone()
}

/// A column of numbers, whatever their form: decimals and times before and after.
fn numbers(leaf: &Type, column: &Column) -> Vec<i128> {
    let number = |bytes: &Vec<u8>| match leaf.get_physical_type() {
        Physical::INT32 => i128::from(i32::from_le_bytes(bytes[..].try_into().unwrap())),
        Physical::INT64 => {
            let nanos = match leaf.get_basic_info().logical_type_ref() {
                Some(LogicalType::Timestamp(timestamp)) => match timestamp.unit {
                    TimeUnit::NANOS => 1,
                    TimeUnit::MICROS => 1_000,
                    TimeUnit::MILLIS => 1_000_000,
                },
                _ => 1,
            };
            i128::from(i64::from_le_bytes(bytes[..].try_into().unwrap())) * nanos
        }
        Physical::INT96 => {
            let nanos = i64::from_le_bytes(bytes[..8].try_into().unwrap());
            let day = u32::from_le_bytes(bytes[8..].try_into().unwrap());
            (i128::from(day) - 2_440_588) * 86_400_000_000_000 + i128::from(nanos)
        }
        _ => bytes.iter().skip(1).fold(i128::from(bytes[0] as i8), |all, byte| all << 8 | i128::from(*byte)),
    };
    column.values.iter().map(number).collect()
}

/// Tests that `to` has what `columns` of `from` were written with. Returns the leaves whose physical type is another.
fn is_kept(from: &Path, to: &Path, columns: &[Column]) -> Vec<String> {
    let (old, new) = (schema(from), schema(to));
    let found = read(to);
    let mut converted = Vec::new();
    for (index, expected) in columns.iter().enumerate() {
        let (old, new, found) = (old.column(index), new.column(index), &found[index]);
        let name = old.path().string();
        assert_eq!(old.path(), new.path());
        assert_eq!((&found.definitions, &found.repetitions), (&expected.definitions, &expected.repetitions), "{name}");
        if old.physical_type() == new.physical_type() {
            assert_eq!(old.self_type(), new.self_type());
            assert!(found.values == expected.values, "values of {name} differ");
            continue;
        }
        assert_eq!(numbers(new.self_type(), found), numbers(old.self_type(), expected), "{name}");
        assert_eq!(old.self_type().get_basic_info().repetition(), new.self_type().get_basic_info().repetition());
        if old.physical_type() != Physical::INT96 {
            assert_eq!(
                (old.logical_type_ref(), old.converted_type()),
                (new.logical_type_ref(), new.converted_type()),
                "{name}"
            );
        }
        converted.push(name);
    }
    if converted.is_empty() {
        assert_eq!(old.root_schema(), new.root_schema());
    }
    let pairs = |path: &Path| metadata(path).file_metadata().key_value_metadata().cloned();
    assert_eq!(pairs(from), pairs(to));
    let order = metadata(from).row_groups().first().and_then(|group| group.sorting_columns().cloned());
    let order = order.filter(|columns| !columns.is_empty());
    assert!(metadata(to).row_groups().iter().all(|group| group.sorting_columns() == order.as_ref()));
    converted
}

fn written(from: &Path, to: &Path) -> Written {
    rewrite(from, to, &Options { force: true, ..Options::default() }, &|_, _| {}).unwrap().remove(0)
}

fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.parquet"), folder.path().join("to.parquet"));
    (folder, from, to)
}

fn group(name: &str, fields: Vec<TypePtr>, repetition: Repetition, logical: Option<LogicalType>) -> TypePtr {
    let builder = Type::group_type_builder(name).with_repetition(repetition).with_fields(fields);
    Arc::new(builder.with_logical_type(logical).with_id(Some(900 + name.len() as i32)).build().unwrap())
}

fn message(fields: Vec<TypePtr>) -> TypePtr {
    Arc::new(Type::group_type_builder("spark_schema").with_fields(fields).build().unwrap())
}

/// Each kind required, optional and in a list of structures, beside maps, variants and lists of old forms.
#[test]
fn every_type_of_the_format_is_kept() {
    let kinds = kinds();
    let mut fields = Vec::new();
    let nullable = |kind: &Kind| kind.column("x", Repetition::OPTIONAL, None);
    let is_null = |kind: &Kind| nullable(kind).get_basic_info().logical_type_ref() == Some(&LogicalType::Unknown);
    for (index, kind) in kinds.iter().enumerate() {
        if !is_null(kind) {
            fields.push(kind.column(&format!("r{index}"), Repetition::REQUIRED, Some(index as i32)));
        }
        fields.push(kind.column(&format!("o{index}"), Repetition::OPTIONAL, (index % 2 == 0).then_some(index as i32)));
    }
    let items: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(index, kind)| kind.column(&format!("i{index}"), Repetition::OPTIONAL, None))
        .collect();
    let element = group("element", items, Repetition::OPTIONAL, None);
    let list = group("list", vec![element], Repetition::REPEATED, None);
    fields.push(group("deep", vec![list], Repetition::OPTIONAL, Some(LogicalType::List)));
    fields.extend(
        parse_message_type(
            "message m {
               optional group map (MAP) { repeated group key_value { required binary key (STRING);
                 optional group value (LIST) { repeated group list { optional int64 element (TIMESTAMP(NANOS, true)); } } } }
               optional group old_map (MAP_KEY_VALUE) { repeated group map { required binary key (UTF8); optional int32 value; } }
               optional group two_levels (LIST) { repeated int32 array; }
               optional group tuples (LIST) { repeated group two_levels_tuple { required int32 a; optional binary b (ENUM); } }
               repeated int64 plain; repeated group groups { optional int96 at; repeated binary tags (JSON); }
             }",
        )
        .unwrap()
        .get_fields()
        .iter()
        .map(Arc::clone),
    );
    let binary = |name: &str| {
        Arc::new(
            Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
                .with_repetition(Repetition::REQUIRED)
                .build()
                .unwrap(),
        )
    };
    let variant = Some(LogicalType::variant(Some(1)));
    fields.push(group("variant", vec![binary("metadata"), binary("value")], Repetition::OPTIONAL, variant));
    let schema = message(fields);

    let (_folder, from, to) = folder();
    let random = &mut Random(15);
    let groups: Vec<_> = [700, 300].map(|rows| records(&schema, rows, random)).into();
    let pairs = vec![
        KeyValue::new("org.apache.spark.sql.parquet.row.metadata".into(), "{\"type\":\"struct\"}".to_string()),
        KeyValue { key: "without a value".into(), value: None },
        KeyValue::new("twice".into(), "1".to_string()),
        KeyValue::new("twice".into(), "2".to_string()),
    ];
    let properties = WriterProperties::builder().set_key_value_metadata(Some(pairs));
    write(&from, &schema, &groups, properties.build());
    let notes = written(&from, &to).notes;
    let whole = all(&groups);
    let converted = is_kept(&from, &to, &whole);
    let expected: Vec<String> = SchemaDescriptor::new(Arc::clone(&schema))
        .columns()
        .iter()
        .filter(|column| {
            let is_bytes = matches!(column.physical_type(), Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY);
            column.physical_type() == Physical::INT96 || (is_bytes && (1..=18).contains(&column.type_precision()))
        })
        .map(|column| column.path().string())
        .collect();
    assert_eq!(converted, expected);
    // Times of all years are in them, none with nanoseconds.
    assert!(notes.iter().all(|note| note.ends_with("and becomes a TIMESTAMP of microseconds")), "{notes:?}");

    // Once more, from the new one: nothing is left to convert.
    let again = to.with_file_name("again.parquet");
    let columns = read(&to);
    assert_eq!(written(&to, &again).notes, [""; 0]);
    assert_eq!(is_kept(&to, &again, &columns), [""; 0]);
}

/// A file for each kind, for data/foreign/kept.py, in the folder that MILLPOND_KEEP names.
#[test]
fn every_type_is_a_file_for_other_readers() {
    let Ok(folder) = std::env::var("MILLPOND_KEEP") else { return };
    fs::create_dir_all(&folder).unwrap();
    for (index, kind) in kinds().iter().enumerate() {
        let schema = message(vec![kind.column("x", Repetition::OPTIONAL, Some(7))]);
        let mut columns = records(&schema, 200, &mut Random(index as u64));
        let leaf = &schema.get_fields()[0];
        columns[0].values.iter_mut().enumerate().for_each(|(row, value)| tame(leaf, row, value));
        let name = format!("{index:02}-{}.parquet", kind.name());
        write(&Path::new(&folder).join(name), &schema, &[columns], WriterProperties::builder().build());
    }
}

fn all(groups: &[Vec<Column>]) -> Vec<Column> {
    let mut whole = vec![Column::default(); groups.first().map_or(0, Vec::len)];
    for columns in groups {
        for (all, column) in whole.iter_mut().zip(columns) {
            all.definitions.extend(&column.definitions);
            all.repetitions.extend(&column.repetitions);
            all.values.extend(column.values.iter().cloned());
        }
    }
    whole
}

fn random_schema(random: &mut Random, kinds: &[Kind]) -> TypePtr {
    let mut fields = Vec::new();
    for index in 0..1 + random.below(5) {
        fields.push(random_field(&format!("f{index}"), 0, random, kinds));
    }
    message(fields)
}

fn random_field(name: &str, depth: usize, random: &mut Random, kinds: &[Kind]) -> TypePtr {
    let repetition =
        random.one_of(&[Repetition::REQUIRED, Repetition::OPTIONAL, Repetition::OPTIONAL, Repetition::REPEATED]);
    if depth < 3 && random.is_one_in(4) {
        let fields =
            (0..1 + random.below(3)).map(|index| random_field(&format!("{name}_{index}"), depth + 1, random, kinds));
        return group(name, fields.collect(), repetition, None);
    }
    if depth < 3 && random.is_one_in(6) {
        let element = random_field("element", depth + 2, random, kinds);
        let list = group("list", vec![element], Repetition::REPEATED, None);
        return group(name, vec![list], Repetition::OPTIONAL, Some(LogicalType::List));
    }
    let id = random.is_one_in(3).then(|| random.below(1_000) as i32);
    let kind = &kinds[random.below(kinds.len())];
    let column = kind.column(name, Repetition::OPTIONAL, id);
    match column.get_basic_info().logical_type_ref() {
        Some(LogicalType::Unknown) => column,
        _ => kind.column(name, repetition, id),
    }
}

fn random_properties(random: &mut Random, schema: &TypePtr) -> WriterPropertiesBuilder {
    let codec = random.one_of(&[
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::ZSTD(Default::default()),
        Compression::LZ4_RAW,
    ]);
    let version = random.one_of(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]);
    let mut properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_dictionary_enabled(random.is_one_in(2))
        .set_dictionary_page_size_limit(random.one_of(&[100, 2_000, 1 << 20]))
        .set_data_page_row_count_limit(random.one_of(&[7, 500, 20_000]))
        .set_data_page_size_limit(random.one_of(&[300, 1 << 20]))
        .set_write_batch_size(random.one_of(&[5, 1_024]))
        .set_statistics_enabled(random.one_of(&[
            EnabledStatistics::None,
            EnabledStatistics::Chunk,
            EnabledStatistics::Page,
        ]))
        .set_bloom_filter_enabled(random.is_one_in(4));
    if random.is_one_in(3) {
        let columns = SchemaDescriptor::new(Arc::clone(schema)).num_columns();
        let mut column = || sorted(random.below(columns) as i32, random.is_one_in(2), random.is_one_in(2));
        properties = properties.set_sorting_columns(Some(vec![column(), column()]));
    }
    if random.is_one_in(2) {
        properties = properties.set_key_value_metadata(Some(vec![KeyValue::new("k".into(), "v".to_string())]));
    }
    for column in SchemaDescriptor::new(Arc::clone(schema)).columns() {
        let encodings: &[Encoding] = match column.physical_type() {
            Physical::BOOLEAN => &[Encoding::PLAIN, Encoding::RLE],
            Physical::INT32 | Physical::INT64 => {
                &[Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT]
            }
            Physical::INT96 => &[Encoding::PLAIN],
            Physical::FLOAT | Physical::DOUBLE => &[Encoding::PLAIN, Encoding::BYTE_STREAM_SPLIT],
            Physical::BYTE_ARRAY => &[Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY],
            Physical::FIXED_LEN_BYTE_ARRAY => {
                &[Encoding::PLAIN, Encoding::DELTA_BYTE_ARRAY, Encoding::BYTE_STREAM_SPLIT]
            }
        };
        properties = properties.set_column_encoding(column.path().clone(), random.one_of(encodings));
    }
    properties
}

#[test]
fn random_files_are_kept() {
    let one = std::env::var("MILLPOND_CASE").ok().and_then(|case| case.parse().ok());
    let cases = std::env::var("MILLPOND_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let kinds = kinds();
    let (_folder, from, to) = folder();
    for case in one.map_or(0..cases, |one| one..one + 1) {
        let random = &mut Random(case);
        let schema = random_schema(random, &kinds);
        let groups: Vec<Vec<Column>> = (0..random.below(4))
            .map(|_| records(&schema, random.one_of(&[1, 50, 700, 2_000, 5_000]), random))
            .collect();
        let properties = random_properties(random, &schema);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            write(&from, &schema, &groups, properties.build());
            let columns = if groups.is_empty() { read(&from) } else { all(&groups) };
            let row_group_rows = if case % 2 == 0 { 1_024 } else { 4_000 };
            let options = Options { row_group_rows, force: true, ..Options::default() };
            rewrite(&from, &to, &options, &|_, _| {}).unwrap();
            is_kept(&from, &to, &columns);
        }));
        if let Err(error) = result {
            eprintln!("MILLPOND_CASE={case}");
            std::panic::resume_unwind(error);
        }
    }
}

/// Files of other writers, as they lie in the repository.
#[test]
fn files_of_other_writers_are_kept() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/foreign");
    let (_folder, _, to) = folder();
    let (mut kept, mut refused) = (0, Vec::new());
    for folder in ["files", "parquet-testing"] {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
        paths.sort();
        for path in paths {
            match rewrite(&path, &to, &Options { force: true, ..Options::default() }, &|_, _| {}) {
                Ok(_) => {
                    is_kept(&path, &to, &read(&path));
                    kept += 1;
                }
                Err(error) => refused.push(format!("{}: {error}", path.file_name().unwrap().to_string_lossy())),
            }
        }
    }
    println!("{kept} kept; refused: {refused:#?}");
    assert!(kept >= 100, "{kept} kept; refused: {refused:#?}");
    let named = |name: &str, reason: &str| refused.iter().any(|line| line.contains(name) && line.contains(reason));
    assert!(named("column_chunk_key_value_metadata", "has key-value metadata of its own"), "{refused:#?}");
    assert!(named("unknown-logical-type", "has a logical type that is newer"), "{refused:#?}");
}

fn instants(times: &[(i64, i64)]) -> Vec<Column> {
    let value = |(days, nanos): &(i64, i64)| {
        let day = (*days + 2_440_588) as u32;
        [&nanos.to_le_bytes()[..], &day.to_le_bytes()[..]].concat()
    };
    let values: Vec<Vec<u8>> = times.iter().map(value).collect();
    vec![Column { definitions: vec![0; values.len()], repetitions: vec![0; values.len()], values }]
}

/// 9999-12-31, 0001-01-01 and a nanosecond after 1970.
const FOR_EVER: (i64, i64) = (2_932_896, 0);
const YEAR_ONE: (i64, i64) = (-719_162, 0);
const NANO: (i64, i64) = (0, 1);

#[test]
fn int96_is_exact_in_nanoseconds_or_microseconds_or_stays() {
    let schema = Arc::new(parse_message_type("message m { required int96 ts; }").unwrap());
    for (times, becomes, note) in [
        (vec![NANO, (20_000, 86_399_999_999_999)], Some(TimeUnit::NANOS), ""),
        (vec![FOR_EVER, YEAR_ONE, (0, 1_000)], Some(TimeUnit::MICROS), "column ts has times before 1677 or after 2262"),
        (vec![FOR_EVER, NANO], None, "column ts stays INT96"),
        // Later than microseconds of 64 bits.
        (vec![(2_000_000_000, 0)], None, "column ts stays INT96"),
    ] {
        let (_folder, from, to) = folder();
        let columns = instants(&times);
        write(&from, &schema, std::slice::from_ref(&columns), WriterProperties::builder().build());
        let notes = written(&from, &to).notes;
        assert!(notes.iter().all(|found| found.starts_with(note)) && notes.is_empty() == note.is_empty(), "{notes:?}");
        is_kept(&from, &to, &columns);
        let logical = self::schema(&to).column(0).logical_type_ref().cloned();
        // Without a zone, as readers take INT96 for.
        assert_eq!(logical, becomes.map(|unit| LogicalType::timestamp(false, unit)), "{times:?}");
    }
}

#[test]
fn int96_of_a_folder_gets_one_unit() {
    let schema = Arc::new(parse_message_type("message m { required int96 ts; }").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&from).unwrap();
    let files = [("a.parquet", vec![FOR_EVER]), ("b.parquet", vec![(1, 2_000)]), ("c.parquet", vec![])];
    for (name, times) in &files {
        write(&from.join(name), &schema, &[instants(times)], WriterProperties::builder().build());
    }
    rewrite(&from, &to, &Options::default(), &|_, _| {}).unwrap();
    for (name, times) in &files {
        is_kept(&from.join(name), &to.join(name), &instants(times));
        let micros = Some(LogicalType::timestamp(false, TimeUnit::MICROS));
        assert_eq!(self::schema(&to.join(name)).column(0).logical_type_ref(), micros.as_ref(), "{name}");
    }
}

/// Such files say DECIMAL(4, 2) and have more digits: no integer of four digits, and no reason to change a value.
#[test]
fn decimals_that_no_integer_holds_stay_in_bytes() {
    let schema =
        "message m { required fixed_len_byte_array(9) price (DECIMAL(4, 2)); required binary b (DECIMAL(18, 0)); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let column = |values: Vec<Vec<u8>>| Column { definitions: vec![0; 2], repetitions: vec![0; 2], values };
    let columns = vec![
        column(vec![vec![0, 0, 0, 0, 0x80, 0, 0, 0, 1], vec![0xff; 9]]),
        column(vec![vec![0x7f], vec![1, 0, 0, 0, 0, 0, 0, 0]]),
    ];
    let (_folder, from, to) = folder();
    write(&from, &schema, std::slice::from_ref(&columns), WriterProperties::builder().build());
    let notes = written(&from, &to).notes;
    assert_eq!(notes, ["column price stays in bytes: it has decimals of more digits than its type"]);
    assert_eq!(is_kept(&from, &to, &columns), ["b"]);
}

fn sorted(index: i32, descending: bool, nulls_first: bool) -> SortingColumn {
    SortingColumn { column_idx: index, descending, nulls_first }
}

/// Row groups of a column of numbers; NULL is none.
fn rows(values: &[Option<i32>]) -> Vec<Column> {
    let column = Column {
        definitions: values.iter().map(|value| i16::from(value.is_some())).collect(),
        repetitions: vec![0; values.len()],
        values: values.iter().flatten().map(|value| value.to_le_bytes().to_vec()).collect(),
    };
    vec![column]
}

#[test]
fn row_groups_end_where_the_order_does() {
    let some = |values: &[i32]| values.iter().copied().map(Some).collect::<Vec<_>>();
    let ascending = || sorted(0, false, false);
    let types = ["int32 a", "int32 a (INTEGER(32, false))"];
    for (name, sorting, groups, expected) in [
        (types[0], ascending(), vec![some(&[1, 4, 9]), some(&[9, 12]), some(&[3, 5])], vec![5, 2]),
        (types[0], ascending(), vec![some(&[1, 2]), vec![Some(2), None], vec![None, None]], vec![6]),
        (types[0], ascending(), vec![vec![Some(1), None], some(&[2])], vec![2, 1]),
        (types[0], sorted(0, false, true), vec![vec![None, Some(1)], some(&[2]), vec![None]], vec![3, 1]),
        (types[0], sorted(0, true, true), vec![vec![None, Some(7)], some(&[7, 1]), some(&[2])], vec![4, 1]),
        (types[0], ascending(), vec![some(&[1, 5]), some(&[-1])], vec![2, 1]),
        (types[1], ascending(), vec![some(&[1, 5]), some(&[-1])], vec![3]),
    ] {
        let schema = Arc::new(parse_message_type(&format!("message m {{ optional {name}; }}")).unwrap());
        let (_folder, from, to) = folder();
        let columns: Vec<_> = groups.iter().map(|values| rows(values)).collect();
        write(
            &from,
            &schema,
            &columns,
            WriterProperties::builder().set_sorting_columns(Some(vec![sorting.clone()])).build(),
        );
        written(&from, &to);
        is_kept(&from, &to, &all(&columns));
        let (new, sorting) = (metadata(&to), vec![sorting]);
        let found: Vec<i64> = new.row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(found, expected, "{groups:?}");
        assert!(new.row_groups().iter().all(|group| group.sorting_columns() == Some(&sorting)));
    }
}

#[test]
fn orders_of_several_columns_are_kept_and_those_that_cannot_be_seen_end_row_groups() {
    let schema = "message m { required int32 a; required double d; repeated int32 r; required group g { required binary s (STRING); } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let of = |a: i32, d: f64, s: &str| -> Vec<Column> {
        let column = |value: &[u8]| Column { definitions: vec![0], repetitions: vec![0], values: vec![value.to_vec()] };
        let none = Column { definitions: vec![0], repetitions: vec![0], values: Vec::new() };
        vec![column(&a.to_le_bytes()), column(&d.to_le_bytes()), none, column(s.as_bytes())]
    };
    let groups = [of(1, 1.0, "b"), of(1, 2.0, "c"), of(1, 3.0, "a"), of(2, 4.0, "a")];
    for (sorting, expected) in [
        (vec![sorted(0, false, false), sorted(3, false, false)], vec![2, 2]),
        (vec![sorted(0, false, false), sorted(3, true, false)], vec![1, 3]),
        (vec![sorted(1, false, false)], vec![1, 1, 1, 1]),
        (vec![sorted(2, false, false)], vec![1, 1, 1, 1]),
        (vec![], vec![4]),
    ] {
        let (_folder, from, to) = folder();
        write(&from, &schema, &groups, WriterProperties::builder().set_sorting_columns(Some(sorting.clone())).build());
        written(&from, &to);
        is_kept(&from, &to, &all(&groups));
        let new = metadata(&to);
        let found: Vec<i64> = new.row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(found, expected, "{sorting:?}");
    }
}

#[test]
fn what_no_writer_here_keeps_is_refused_by_name() {
    let refused = |from: &Path, reason: &str| {
        let to = from.with_file_name("to.parquet");
        let error = rewrite(from, &to, &Options::default(), &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains(&from.display().to_string()) && error.contains(reason), "{error}");
        assert!(!to.exists());
    };
    let foreign = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/foreign/encrypted/plaintext-footer.parquet");
    refused(&foreign, "its columns are encrypted, and Millpond has no keys");

    // Row groups, changed in a footer that is written again.
    let (_folder, from, _) = folder();
    let schema = Arc::new(parse_message_type("message m { required int32 a; required int32 b; }").unwrap());
    let column = Column { definitions: vec![0], repetitions: vec![0], values: vec![vec![1, 0, 0, 0]] };
    let groups = [vec![column.clone(), column.clone()], vec![column.clone(), column]];
    let with = |change: &dyn Fn(&mut Vec<RowGroupMetaData>)| {
        write(&from, &schema, &groups, WriterProperties::builder().build());
        let old = metadata(&from);
        let mut changed = old.row_groups().to_vec();
        change(&mut changed);
        let bytes = fs::read(&from).unwrap();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize + 8;
        let mut file = bytes[..bytes.len() - footer].to_vec();
        let new = old.into_builder().set_row_groups(changed).build();
        ParquetMetaDataWriter::new(&mut file, &new).finish().unwrap();
        fs::write(&from, file).unwrap();
    };
    let sort = |group: &mut RowGroupMetaData, by: Vec<SortingColumn>| {
        *group = group.clone().into_builder().set_sorting_columns(Some(by)).build().unwrap();
    };
    with(&|groups| sort(&mut groups[0], vec![sorted(1, false, false)]));
    refused(&from, "its row groups have different sorting columns (b; none)");
    with(&|groups| groups.iter_mut().for_each(|group| sort(group, vec![sorted(2, false, false)])));
    refused(&from, "it says that it is sorted by column number 2, and has none");
    with(&|groups| {
        let mut columns = groups[1].columns().to_vec();
        columns[0] = columns[0].clone().into_builder().set_file_path("part-2.parquet".into()).build().unwrap();
        groups[1] = groups[1].clone().into_builder().set_column_metadata(columns).build().unwrap();
    });
    refused(&from, "column a lies in another file, 'part-2.parquet'");
}

/// A column that an Arrow schema in the file makes a dictionary: pyarrow makes none of DELTA_LENGTH_BYTE_ARRAY.
#[test]
fn dictionaries_of_many_values_are_plain() {
    use arrow::array::{ArrayRef, DictionaryArray, RecordBatch, StringArray};
    use arrow::datatypes::Int32Type;
    let texts: Vec<String> = (0..20_000).map(|i| format!("a text of its own, number {i}")).collect();
    let dictionary: DictionaryArray<Int32Type> = texts.iter().map(String::as_str).collect();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("category", Arc::new(dictionary)), ("text", Arc::new(StringArray::from_iter_values(&texts)))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let (_folder, from, to) = folder();
    let file = fs::File::create(&from).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    written(&from, &to);
    is_kept(&from, &to, &read(&from));
    let new = metadata(&to);
    let has = |index: usize, encoding| new.row_group(0).column(index).encodings().any(|found| found == encoding);
    assert!(has(0, Encoding::PLAIN) && !has(0, Encoding::DELTA_LENGTH_BYTE_ARRAY));
    assert!(has(1, Encoding::DELTA_LENGTH_BYTE_ARRAY));
}

/// Arrow's writer says which unit and zone an INT96 had: readers that know its schema see the same type again.
#[test]
fn int96_keeps_the_type_that_an_arrow_schema_gives_it() {
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit as Unit};
    let schema = Arc::new(parse_message_type("message m { required int96 ts; }").unwrap());
    let berlin = || Some("Europe/Berlin".into());
    for (data_type, times, becomes) in [
        (DataType::Timestamp(Unit::Microsecond, None), vec![FOR_EVER], Some((false, TimeUnit::MICROS))),
        (DataType::Timestamp(Unit::Microsecond, berlin()), vec![FOR_EVER], Some((true, TimeUnit::MICROS))),
        (DataType::Timestamp(Unit::Millisecond, None), vec![(3, 5_000_000)], Some((false, TimeUnit::MILLIS))),
        (DataType::Timestamp(Unit::Nanosecond, berlin()), vec![NANO], Some((true, TimeUnit::NANOS))),
        // Read in microseconds it loses a nanosecond: it stays what it is.
        (DataType::Timestamp(Unit::Microsecond, None), vec![NANO], None),
    ] {
        let arrow = Schema::new(vec![Field::new("ts", data_type.clone(), false)]);
        let encoded = parquet::arrow::encode_arrow_schema(&arrow);
        let pair = KeyValue::new(parquet::arrow::ARROW_SCHEMA_META_KEY.into(), encoded);
        let (_folder, from, to) = folder();
        let columns = instants(&times);
        let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![pair])).build();
        write(&from, &schema, std::slice::from_ref(&columns), properties);
        written(&from, &to);
        is_kept(&from, &to, &columns);
        let logical = self::schema(&to).column(0).logical_type_ref().cloned();
        assert_eq!(logical, becomes.map(|(utc, unit)| LogicalType::timestamp(utc, unit)), "{data_type}");
        let file = fs::File::open(&to).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        assert_eq!(reader.schema().field(0).data_type(), &data_type);
    }
}

/// Bytes of pages that are not what they were end in an error, or in other values; never in a panic.
#[test]
fn damaged_pages_never_panic() {
    let kinds = kinds();
    let (_folder, from, to) = folder();
    let cases = std::env::var("MILLPOND_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    for seed in 0..cases {
        let random = &mut Random(9_000 + seed);
        let schema = random_schema(random, &kinds);
        let columns = records(&schema, 300, random);
        let properties = random_properties(random, &schema).set_compression(Compression::UNCOMPRESSED);
        write(&from, &schema, &[columns], properties.build());
        let whole = fs::read(&from).unwrap();
        let footer = u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().unwrap()) as usize + 8;
        for _ in 0..8 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(6) {
                let at = 4 + random.below(whole.len() - footer - 4);
                bytes[at] = random.next() as u8;
            }
            fs::write(&from, bytes).unwrap();
            let _ = rewrite(&from, &to, &Options { force: true, ..Options::default() }, &|_, _| {});
        }
    }
}
