//! Rows that can match a predicate, by evaluating it on the dictionaries of its columns.
//!
//!   mode = 'air' AND price < 10
//!     mode   dictionary  [rail, truck]        ──► no entry passes: the row group has no matching rows
//!     price  dictionary  [3, 99, 12, … 9,000] ──► bitmap 100…  ──► codes of the chunk ──► 4,096 rows with a match · …
//!
//! Right    DataFusion evaluates each entry, and NULL, once. Removed rows would be dropped by the filter above, which
//!          may receive others.
//! Worth    only if few entries pass: codes are read if most pieces of rows may contain no match. A scan that gains
//!          nothing stops trying.
//! Errors   none: an entry that cannot be read or evaluated removes nothing, and decoding the rows reports the error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::{AsArray, RecordBatch, new_null_array};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::cast::as_boolean_array;
use datafusion::parquet::arrow::parquet_column;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns, split_conjunction};
use datafusion::physical_expr_common::physical_expr::{is_volatile, snapshot_physical_expr};
use millpond_parquet::{ColumnReader, Conversion, Layout, Out, ReadError, entries, is_all_dictionary, walk};

use crate::device::workers::off_workers;
use crate::parquet::decode::NoCodes;
use crate::parquet::file::OpenFile;
use crate::parquet::provable::unguarded;
use crate::parquet::scan::ParquetScan;
use crate::parquet::scratch::ScratchPool;
use crate::parquet::unit::{Span, Unit, Units};

/// Rows that are kept or removed together: about a quarter of a page of common writers.
const PIECE: u64 = 1 << 12;
/// Maximum bytes of a dictionary that is evaluated.
const MOST_DICTIONARY: u64 = 1 << 20;
/// Minimum number of row groups that a scan tries; each useful one allows eight more.
const LEAST_TRIED: u64 = 4;

/// Statistics on whether evaluating a scan's dictionaries is worthwhile.
#[derive(Debug, Default)]
pub(crate) struct Worth {
    tried: AtomicU64,
    of_use: AtomicU64,
}

impl Worth {
    fn is_worth(&self) -> bool {
        self.tried.load(Ordering::Relaxed) < LEAST_TRIED + 8 * self.of_use.load(Ordering::Relaxed)
    }
}

/// Conditions of a predicate on one column of a file.
struct Question {
    /// Conditions over a batch of only that column.
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    schema: Arc<Schema>,
    leaf: usize,
    conversion: Conversion,
}

/// Values that pass.
struct Passing {
    /// By dictionary position.
    entries: Vec<bool>,
    null: bool,
}

impl Passing {
    fn count(&self) -> u64 {
        self.entries.iter().filter(|passes| **passes).count() as u64
    }

    /// True if any of `rows` rows passes, given 4-byte dictionary positions and validity bits.
    fn has_one(&self, rows: usize, places: &[u8], validity: &[u8]) -> bool {
        let passes = |(row, place): (usize, &[u8; 4])| match validity[row / 8] >> (row % 8) & 1 {
            0 => self.null,
            _ => self.entries.get(u32::from_le_bytes(*place) as usize).is_none_or(|passes| *passes),
        };
        places.as_chunks::<4>().0[..rows].iter().enumerate().any(passes)
    }
}

impl ParquetScan {
    /// Conditions of the current predicate on single columns of a file.
    fn questions(&self, file: &OpenFile) -> Vec<Question> {
        let options = &self.source().table_parquet_options().global;
        let predicate = self.predicate_of(file).ok().flatten().filter(|_| options.pruning);
        // Entries are evaluated directly, without bounds, so the guards are removed.
        let snapshot = predicate.and_then(|predicate| snapshot_physical_expr(unguarded(&predicate).ok()?).ok());
        let Some(predicate) = snapshot else { return vec![] };
        let leaves = file.metadata.file_metadata().schema_descr();
        let mut questions: BTreeMap<usize, Question> = BTreeMap::new();
        for expr in split_conjunction(&predicate) {
            let columns = collect_columns(expr);
            let (Some(column), 1) = (columns.iter().next(), columns.len()) else { continue };
            let Some((leaf, _)) = parquet_column(leaves, &file.schema, column.name()) else { continue };
            let Ok(field) = file.schema.field_with_name(column.name()) else { continue };
            let Ok(conversion) = Conversion::of(&leaves.column(leaf), field.data_type()) else { continue };
            let schema = Arc::new(Schema::new(vec![Field::clone(field).with_nullable(true)]));
            let Ok(expr) = reassign_expr_columns(Arc::clone(expr), &schema) else { continue };
            if is_volatile(&expr) {
                continue;
            }
            let question = questions.entry(leaf).or_insert(Question { exprs: vec![], schema, leaf, conversion });
            question.exprs.push(expr);
        }
        questions.into_values().collect()
    }
}

impl Question {
    /// Evaluates the entries of the dictionary at the start of a chunk.
    fn answer(&self, chunk: &[u8], unit: &Unit) -> Option<Passing> {
        let meta = unit.file.chunk(unit.row_group, self.leaf);
        let pages = walk(chunk, meta, 0).ok().filter(|pages| pages.dictionary.is_some())?;
        let data_type = self.schema.field(0).data_type();
        let found = entries(chunk, &pages, meta, (&self.conversion, data_type)).ok()?;
        // NULL is evaluated after the last entry.
        let values = concat(&[found.as_ref(), new_null_array(data_type, 1).as_ref()]).ok()?;
        let rows = values.len();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![values]).ok()?;
        let mut passing = vec![true; rows];
        for expr in &self.exprs {
            let answer = expr.evaluate(&batch).and_then(|answer| answer.into_array(rows)).ok()?;
            as_boolean_array(&answer).ok()?;
            let passes = answer.as_boolean().iter().map(|passes| passes == Some(true));
            passing.iter_mut().zip(passes).for_each(|(all, one)| *all &= one);
        }
        let null = passing.pop()?;
        Some(Passing { entries: passing, null })
    }

    /// Spans of a unit's rows that consist of pieces with a match.
    fn pieces(&self, chunk: &[u8], unit: &Unit, passing: &Passing) -> Result<Vec<Span>, ReadError> {
        let meta = unit.file.chunk(unit.row_group, self.leaf);
        let rows = unit.file.metadata.row_group(unit.row_group).num_rows().max(0) as u64;
        let pages = walk(chunk, meta, rows)?;
        let mut reader =
            ColumnReader::new(chunk, &pages, meta, meta.column_descr(), &self.conversion, Layout::Positions)?;
        let (mut places, mut validity) = (vec![0; PIECE as usize * 4], vec![0; PIECE as usize / 8]);
        let (mut spans, mut skip): (Vec<Span>, u64) = (vec![], 0);
        for span in &unit.spans {
            reader.skip(span.skip)?;
            skip += span.skip;
            let mut left = span.rows;
            while left > 0 {
                let rows = left.min(PIECE);
                reader.read(rows, 0, &mut Out::new(&mut places, Some(&mut validity), None), &mut NoCodes)?;
                left -= rows;
                if !passing.has_one(rows as usize, &places, &validity) {
                    skip += rows;
                    continue;
                }
                match spans.last_mut().filter(|_| skip == 0) {
                    Some(last) => last.rows += rows,
                    None => spans.push(Span { skip: std::mem::take(&mut skip), rows }),
                }
            }
        }
        Ok(spans)
    }
}

impl Unit {
    /// Byte ranges of a column's dictionary and of its chunk; `None` unless all values are in a dictionary.
    fn dictionary(&self, leaf: usize) -> Option<(Range<u64>, Range<u64>)> {
        let meta = self.file.chunk(self.row_group, leaf);
        let start = u64::try_from(meta.dictionary_page_offset()?).ok()?;
        let data = u64::try_from(meta.data_page_offset()).ok()?;
        let end = start.checked_add(u64::try_from(meta.compressed_size()).ok()?)?;
        let is_there = start < data && data <= end && end <= self.file.file.object_meta.size;
        (is_there && data - start <= MOST_DICTIONARY && is_all_dictionary(meta)).then_some((start..data, start..end))
    }

    /// Removes rows that do not pass; returns whether any were removed.
    async fn prune(&mut self, questions: &[Question], scratch: &Arc<ScratchPool>) -> bool {
        let before = self.rows();
        for question in questions {
            let Some((dictionary, chunk)) = self.dictionary(question.leaf) else { continue };
            let Ok(read) = self.read_ranges(vec![dictionary], scratch).await else { continue };
            let Some(bytes) = read.first() else { continue };
            let Some(passing) = off_workers(|| question.answer(bytes.as_slice(), self)) else { continue };
            let (count, all) = (passing.count(), passing.entries.len() as u64);
            let has_null = passing.null && self.file.chunk_nulls(self.row_group, question.leaf) != Some(0);
            if count == 0 && !has_null {
                self.spans.clear();
                return true;
            }
            // An estimated half of the pieces or more would remain.
            if has_null || count * PIECE * 2 > all {
                continue;
            }
            let Ok(read) = self.read_ranges(vec![chunk], scratch).await else { continue };
            let Some(bytes) = read.first() else { continue };
            if let Ok(spans) = off_workers(|| question.pieces(bytes.as_slice(), self, &passing)) {
                self.spans = spans;
            }
            if self.spans.is_empty() {
                break;
            }
        }
        self.rows() < before
    }
}

impl Units {
    /// Removes rows that the scan's predicate drops, by the dictionaries of their columns; returns their number.
    pub async fn prune_by_dictionaries(
        &mut self,
        scan: &ParquetScan,
        worth: &Worth,
        scratch: &Arc<ScratchPool>,
    ) -> u64 {
        if self.is_empty() || !worth.is_worth() {
            return 0;
        }
        let questions = scan.questions(self.file());
        let before = self.rows();
        for unit in self.iter_mut() {
            if questions.is_empty() || !worth.is_worth() {
                break;
            }
            let was_of_use = unit.prune(&questions, scratch).await;
            worth.tried.fetch_add(1, Ordering::Relaxed);
            worth.of_use.fetch_add(u64::from(was_of_use), Ordering::Relaxed);
        }
        self.retain(|unit| unit.rows() > 0);
        before - self.rows()
    }
}
