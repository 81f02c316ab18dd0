//! The list covers all goals, and parquet-rs reads the written values back.

use std::collections::HashSet;
use std::fs::File;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Encoding as Written;
use parquet::column::page::Page;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;

use super::*;

#[test]
fn names_differ_and_say_their_number() {
    let cases = cases();
    assert!(cases.len() >= 1_600, "{} cases", cases.len());
    let names: HashSet<String> = cases.iter().map(Case::name).collect();
    assert_eq!(names.len(), cases.len());
    for (number, case) in cases.iter().enumerate() {
        assert!(case.name().starts_with(&format!("{number:04}-")) && case.name().len() <= 250, "{}", case.name());
        assert!((1..=4).contains(&case.columns.len()));
    }
}

#[test]
fn numbers_keep_their_cases() {
    // FNV-1a of all names. A change renumbers cases that people have cited: make it deliberately.
    let names = cases().iter().map(Case::name).collect::<Vec<_>>().join("\n");
    let digest = names
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    assert_eq!(digest, 0xd844_d60d_e853_21d8, "{digest:#x}");
}

#[test]
fn each_legal_combination_occurs() {
    let mut met: HashSet<cover::Goal> = HashSet::new();
    let goals = cover::goals();
    let sets: HashSet<Vec<usize>> = goals.iter().map(|goal| goal.iter().map(|&(factor, _)| factor).collect()).collect();
    for case in cases().iter().filter(|case| ROWS.contains(&case.num_rows)) {
        for column in &case.columns {
            let choices = choices(case, column);
            let shown = sets.iter().filter(|set| cover::shows(&choices, set));
            met.extend(shown.map(|set| set.iter().map(|&factor| (factor, choices[factor])).collect()));
        }
    }
    let missing: Vec<_> = goals.iter().filter(|goal| !met.contains(*goal)).collect();
    assert!(missing.is_empty(), "{} of {} do not occur, as {:?}", missing.len(), goals.len(), missing[0]);
    // Every encoding that the format allows for a kind occurs.
    let units: usize = Kind::combined().iter().map(|kind| kind.encodings().len()).sum();
    let pairs = |goal: &&cover::Goal| goal.len() == 2 && goal[0].0 == cover::KIND && goal[1].0 == cover::ENCODING;
    assert_eq!(goals.iter().filter(pairs).count(), units);
}

#[test]
fn all_files_give_back_their_rows_and_show_what_they_say() {
    let mut shown = Shown::default();
    let mut sizes: Vec<u64> = cases().iter().map(|case| shown.look(case, &read_back(case))).collect();
    sizes.sort_unstable();
    let total: u64 = sizes.iter().sum();
    println!(
        "{} files, {total} bytes, median {}, largest {}",
        sizes.len(),
        sizes[sizes.len() / 2],
        sizes[sizes.len() - 1]
    );
    println!("{shown:?}");
    assert!(sizes[sizes.len() / 2] < 20_000);
    assert!(shown.dictionary_then_plain > 100 && shown.dictionary_then_delta > 50, "{shown:?}");
    assert!(shown.stored_pages > 100 && shown.null_first_pages > 50 && shown.many_pages > 500, "{shown:?}");
}

/// Features found in files, counted by column chunk.
#[derive(Debug, Default)]
struct Shown {
    dictionary_then_plain: usize,
    dictionary_then_delta: usize,
    /// Pages of version 2 that the codec did not shrink.
    stored_pages: usize,
    null_first_pages: usize,
    many_pages: usize,
}

impl Shown {
    /// Counts the features of a file; returns its bytes.
    fn look(&mut self, case: &Case, file: &tempfile::NamedTempFile) -> u64 {
        let reader = SerializedFileReader::new(file.reopen().expect("file")).expect("Parquet");
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).expect("row group");
            for (index, column) in case.columns.iter().enumerate() {
                let (mut encodings, mut num_pages, mut null_first) = (HashSet::new(), 0, false);
                for page in group.get_column_page_reader(index + 1).expect("pages") {
                    let page = page.expect("page");
                    if let Page::DataPageV2 { is_compressed, num_nulls, num_values, .. } = &page {
                        let stored = !is_compressed && case.codec != Compress::None;
                        self.stored_pages += usize::from(stored);
                        null_first |= num_pages == 0 && num_nulls == num_values;
                    }
                    if !matches!(page, Page::DictionaryPage { .. }) {
                        num_pages += 1;
                        encodings.insert(page.encoding());
                    }
                }
                let both = |other| encodings.contains(&Written::RLE_DICTIONARY) && encodings.contains(&other);
                self.dictionary_then_plain += usize::from(both(Written::PLAIN));
                let delta = both(Written::DELTA_BINARY_PACKED) || both(Written::DELTA_BYTE_ARRAY);
                self.dictionary_then_delta += usize::from(delta);
                self.many_pages += usize::from(num_pages > 3);
                self.null_first_pages += usize::from(null_first && num_pages > 1 && column.nulls == Nulls::FirstPage);
            }
        }
        file.as_file().metadata().expect("size").len()
    }
}

/// Writes a case, reads it with parquet-rs and compares the rows, bit by bit. Returns the file.
fn read_back(case: &Case) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("file");
    let written = write(case, file.path()).unwrap_or_else(|error| panic!("{}: {error}", case.name()));
    if case.number.is_multiple_of(16) {
        assert!(std::fs::read(file.path()).expect("file") == bytes(case).expect("bytes"), "{}", case.name());
    }
    let expected = rows(case).expect("rows");
    let read = read(file.reopen().expect("file"), expected.schema().clone())
        .unwrap_or_else(|error| panic!("{}: {error}", case.name()));
    assert_eq!(written.num_rows, expected.num_rows() as u64);
    for (index, (expected, read)) in expected.columns().iter().zip(read.columns()).enumerate() {
        assert_eq!(expected.to_data(), read.to_data(), "column {index} of {}", case.name());
    }
    file
}

fn read(file: File, schema: arrow::datatypes::SchemaRef) -> Result<RecordBatch, parquet::errors::ParquetError> {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)?;
    let metadata: &ParquetMetaData = builder.metadata();
    assert!(metadata.row_groups().iter().all(|group| group.num_rows() > 0));
    let batches = builder.build()?.collect::<Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, batches.iter())?)
}

/// Index of each choice of a column, in the cover's form.
fn choices(case: &Case, column: &Column) -> cover::Choices {
    let rows = ROWS.iter().position(|&rows| rows == case.num_rows).expect("rows of the cover") as u8;
    let mut choices = [0; cover::FACTORS];
    choices[cover::KIND] = column.kind as u8;
    choices[cover::ENCODING] = column.encoding as u8;
    choices[cover::DICTIONARY] = column.dictionary as u8;
    choices[cover::NULLS] = column.nulls as u8;
    choices[cover::VALUES] = column.values as u8;
    choices[cover::BLOOM] = column.bloom as u8;
    choices[cover::CODEC] = case.codec as u8;
    choices[cover::VERSION] = case.version as u8;
    choices[cover::NUM_ROWS] = rows;
    choices[cover::PAGES] = case.pages as u8;
    choices[cover::GROUPS] = case.groups as u8;
    choices[cover::STATISTICS] = case.statistics as u8;
    choices[cover::INDEX] = case.index as u8;
    choices
}
