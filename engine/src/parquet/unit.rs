//! Row groups of a file, as one reader decodes them: which rows, the bytes of their chunks, and their pages.
//!
//!   Unit, Unit ─► Units ─ read ─► Chunks of each ─ readers of a column ─► rows 0..n ─► rows n..m ─► …
//!   small row groups go together      │                                  skip what the page index has left out
//!                                     └─ wrong bytes ─► DataFusion reads the rest of their rows

use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::error::Result;
use datafusion::parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use datafusion::parquet::basic::Encoding;
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::codegen::ir::Range as ValueRange;
use millpond_memory::recorder;
use millpond_parquet::{ColumnReader, Layout, Page, PageError, Pages, statistics, walk};

use crate::column::scalar_integer;
use crate::parquet::file::{ColumnSource, FileBytes, OpenFile};
use crate::parquet::room::Room;
use crate::parquet::scan::ParquetScan;
use crate::profile::step;
use crate::program::texts;
use crate::workers::off_workers;

/// Units that are decoded together have at least and at most so many rows, where there are as many.
const LEAST_TOGETHER: u64 = 1 << 16;
const MOST_TOGETHER: u64 = 1 << 20;

/// Rows of a row group.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub file: Arc<OpenFile>,
    pub row_group: usize,
    /// In the order of the row group; no two neighbours of a kind.
    spans: Vec<Span>,
}

/// Row groups of one file that are decoded together, in the order of the file.
#[derive(Debug, Clone)]
pub(crate) struct Units(Vec<Unit>);

/// Rows of one of several units.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub unit: usize,
    pub spans: Vec<Span>,
}

/// Rows to leave out, and rows to read behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub skip: u64,
    pub rows: u64,
}

/// The bytes of a unit's chunks, by the scan's columns.
pub(crate) struct Chunks {
    pub(super) chunks: Vec<Option<Chunk>>,
}

pub(super) struct Chunk {
    pub(super) bytes: FileBytes,
    pub(super) pages: Pages,
}

impl Unit {
    pub fn new(file: Arc<OpenFile>, row_group: usize, access: RowGroupAccess) -> Self {
        let all = file.metadata.row_group(row_group).num_rows().max(0) as u64;
        let spans = match access {
            RowGroupAccess::Skip => vec![],
            RowGroupAccess::Scan => vec![Span { skip: 0, rows: all }],
            RowGroupAccess::Selection(selection) => spans_of(&selection),
        };
        Self { file, row_group, spans }
    }

    /// Rows to read.
    pub fn rows(&self) -> u64 {
        self.spans.iter().map(|span| span.rows).sum()
    }

    /// Rows `first..first + rows` of those to read, for a reader at the beginning of the row group.
    fn spans(&self, first: u64, rows: u64) -> Vec<Span> {
        let (mut before, mut left, mut skip, mut spans) = (first, rows, 0, Vec::new());
        for span in &self.spans {
            let passed = before.min(span.rows);
            before -= passed;
            skip += span.skip + passed;
            let some = (span.rows - passed).min(left);
            if some > 0 {
                spans.push(Span { skip: std::mem::take(&mut skip), rows: some });
                left -= some;
            }
        }
        spans
    }

    /// Reads the chunks of the columns that are read from leaves, and finds their pages. The second error is of bytes that are there and
    /// wrong.
    ///
    /// # Errors
    /// The system's or the store's, and of a file that has changed.
    async fn read(&self, room: &Arc<Room>) -> Result<std::result::Result<Chunks, PageError>> {
        let ranges = match self.ranges() {
            Ok(ranges) => ranges,
            Err(error) => return Ok(Err(error)),
        };
        let only: Vec<Range<u64>> = ranges.iter().flatten().cloned().collect();
        // A worker that reads would keep the task that it has just woken waiting.
        let local = off_workers(|| {
            let _step = recorder::step(step::READ);
            self.file.read_local(&only, room)
        });
        let read = match local {
            Some(read) => read?,
            None => recorder::during(step::READ, self.file.read_remote(only)).await?,
        };
        let mut read = read.into_iter();
        let rows = self.file.metadata.row_group(self.row_group).num_rows().max(0) as u64;
        let mut chunks = Vec::with_capacity(ranges.len());
        for (source, range) in self.file.columns.iter().zip(&ranges) {
            let (ColumnSource::Leaf(leaf, _), Some(_), Some(bytes)) =
                (source, range, if range.is_some() { read.next() } else { None })
            else {
                chunks.push(None);
                continue;
            };
            match walk(bytes.as_slice(), self.file.chunk(self.row_group, *leaf), rows) {
                Ok(pages) => chunks.push(Some(Chunk { bytes, pages })),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(Chunks { chunks }))
    }

    /// Where the chunks lie in the file, by the scan's columns.
    fn ranges(&self) -> std::result::Result<Vec<Option<Range<u64>>>, PageError> {
        let size = self.file.file.object_meta.size;
        let range = |source: &ColumnSource| {
            let ColumnSource::Leaf(leaf, _) = source else { return Ok(None) };
            let chunk = self.file.chunk(self.row_group, *leaf);
            let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
            let range = u64::try_from(start).ok().zip(u64::try_from(chunk.compressed_size()).ok());
            let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
            match range.filter(|range| range.end <= size) {
                Some(range) => Ok(Some(range)),
                None => Err(PageError::Malformed("the column chunk lies outside its file")),
            }
        };
        self.file.columns.iter().map(range).collect()
    }

    /// The scan of these of its rows, as DataFusion reads it.
    fn rest(&self, scan: &ParquetScan, spans: Vec<Span>) -> Arc<dyn ExecutionPlan> {
        let mut access = ParquetAccessPlan::new_none(self.file.metadata.num_row_groups());
        access.scan(self.row_group);
        let all = self.file.metadata.row_group(self.row_group).num_rows().max(0) as u64;
        if spans.iter().map(|span| span.rows).sum::<u64>() < all {
            let (mut selectors, mut at) = (Vec::new(), 0);
            for Span { skip, rows } in spans {
                selectors.extend([RowSelector::skip(skip as usize), RowSelector::select(rows as usize)]);
                at += skip + rows;
            }
            selectors.push(RowSelector::skip(all.saturating_sub(at) as usize));
            access.scan_selection(self.row_group, RowSelection::from(selectors));
        }
        scan.of_rows(&self.file.file, access)
    }

    /// What the footer says of the values of a column's rows: the range of its integers, if it is known, and whether one may be NULL.
    fn bounds(&self, column: usize) -> (Option<ValueRange>, bool) {
        match &self.file.columns[column] {
            ColumnSource::Leaf(leaf, conversion) => {
                let bounds = statistics(self.file.chunk(self.row_group, *leaf), conversion);
                let required = self.file.metadata.file_metadata().schema_descr().column(*leaf).max_def_level() == 0;
                let range = bounds.range.map(|(low, high)| ValueRange::new(low, high));
                (range, !required && bounds.nulls != Some(0))
            }
            ColumnSource::Constant(value) => {
                let of = scalar_integer(value);
                (of.map(|value| ValueRange::new(value, value)), value.is_null())
            }
            ColumnSource::Unused => (None, true),
        }
    }

    /// Bytes of a text of column `column`, about, by the footer.
    fn text_bytes(&self, column: usize) -> usize {
        let ColumnSource::Leaf(leaf, _) = &self.file.columns[column] else { return texts::TYPICAL_BYTES };
        let chunk = self.file.chunk(self.row_group, *leaf);
        // Of a dictionary's values each may be in many rows.
        let known = chunk.unencoded_byte_array_data_bytes().unwrap_or_else(|| chunk.uncompressed_size());
        let mean = usize::try_from(known).unwrap_or(0) / chunk.num_values().max(1) as usize;
        mean.max(texts::TYPICAL_BYTES)
    }
}

impl Units {
    /// Units in the order in which they come, together where they are small: no more than `most` rows of one file, and about as many as
    /// each of `readers` gets.
    pub fn together(units: impl IntoIterator<Item = Unit>, readers: usize, most: u64) -> Vec<Self> {
        let units: Vec<Unit> = units.into_iter().collect();
        let share = units.iter().map(Unit::rows).sum::<u64>() / readers.max(1) as u64;
        let most = share.clamp(LEAST_TOGETHER, MOST_TOGETHER).min(most);
        let mut all: Vec<Self> = Vec::new();
        for unit in units {
            match all.last_mut() {
                Some(last) if Arc::ptr_eq(last.file(), &unit.file) && last.rows() + unit.rows() <= most => {
                    last.0.push(unit);
                }
                _ => all.push(Self(vec![unit])),
            }
        }
        all
    }

    pub fn file(&self) -> &Arc<OpenFile> {
        &self.0[0].file
    }

    pub fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.0.iter()
    }

    pub fn unit(&self, at: usize) -> &Unit {
        &self.0[at]
    }

    /// Rows to read.
    pub fn rows(&self) -> u64 {
        self.iter().map(Unit::rows).sum()
    }

    /// Without the row groups that `keep` leaves out.
    pub fn retain(&mut self, keep: impl Fn(&Unit) -> bool) {
        self.0.retain(keep);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Rows `first..first + rows` of those to read, for readers at the beginnings of the row groups.
    pub fn parts(&self, first: u64, rows: u64) -> Vec<Part> {
        let (mut before, mut left, mut parts) = (first, rows, Vec::new());
        for (at, unit) in self.iter().enumerate() {
            let passed = before.min(unit.rows());
            before -= passed;
            let some = (unit.rows() - passed).min(left);
            if some > 0 {
                parts.push(Part { unit: at, spans: unit.spans(passed, some) });
                left -= some;
            }
        }
        parts
    }

    /// Reads the chunks of each unit. The second error is of bytes that are there and wrong.
    ///
    /// # Errors
    /// As of [`Unit::read`].
    pub async fn read(&self, room: &Arc<Room>) -> Result<std::result::Result<Vec<Chunks>, PageError>> {
        let mut all = Vec::with_capacity(self.0.len());
        for unit in self.iter() {
            match unit.read(room).await? {
                Ok(chunks) => all.push(chunks),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(all))
    }

    /// Scans of rows `first..first + rows` of those to read, as DataFusion reads them.
    pub fn rest(&self, scan: &ParquetScan, first: u64, rows: u64) -> Vec<Arc<dyn ExecutionPlan>> {
        let plan = |part: Part| self.0[part.unit].rest(scan, part.spans);
        self.parts(first, rows).into_iter().map(plan).collect()
    }

    /// What footers say of a column's rows: the range of its integers, if it is known, and whether one may be NULL.
    pub fn bounds(&self, column: usize) -> (Option<ValueRange>, bool) {
        let both = |(range, null): (Option<ValueRange>, bool), (other, other_null): (Option<ValueRange>, bool)| {
            (range.zip(other).map(|(a, b)| a.union(b)), null || other_null)
        };
        self.iter().map(|unit| unit.bounds(column)).reduce(both).unwrap_or((None, true))
    }

    /// Bytes of a text of a column, about.
    pub fn text_bytes(&self, column: usize) -> usize {
        self.iter().map(|unit| unit.text_bytes(column)).max().unwrap_or(texts::TYPICAL_BYTES)
    }
}

impl Part {
    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.spans.iter().map(|span| span.rows).sum()
    }
}

impl Chunks {
    /// Bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.bytes.as_slice().len()).sum()
    }

    /// Rows of a column whose pages are codes of its chunk's dictionary.
    pub fn coded_rows(&self, column: usize) -> usize {
        let is_coded = |page: &&Page| matches!(page.encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
        let pages = self.chunks[column].iter().flat_map(|chunk| &chunk.pages.data);
        pages.filter(is_coded).map(|page| page.values as usize).sum()
    }

    /// A reader of column `column` of the scan's, from its first row on; `None` for one that is in no chunk.
    ///
    /// # Errors
    /// Why the chunk cannot be read in this layout.
    pub fn reader(
        &self,
        unit: &Unit,
        column: usize,
        layout: Layout,
    ) -> std::result::Result<Option<ColumnReader<'_>>, PageError> {
        let (Some(chunk), ColumnSource::Leaf(leaf, conversion)) = (&self.chunks[column], &unit.file.columns[column])
        else {
            return Ok(None);
        };
        let descriptor = unit.file.metadata.file_metadata().schema_descr().column(*leaf);
        let meta = unit.file.chunk(unit.row_group, *leaf);
        ColumnReader::new(chunk.bytes.as_slice(), &chunk.pages, meta, &descriptor, conversion, layout).map(Some)
    }
}

fn spans_of(selection: &RowSelection) -> Vec<Span> {
    let (mut spans, mut skip) = (Vec::new(), 0);
    for selector in selection.iter() {
        match (selector.skip, selector.row_count as u64) {
            (_, 0) => {}
            (true, rows) => skip += rows,
            (false, rows) => spans.push(Span { skip: std::mem::take(&mut skip), rows }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_rows_to_leave_out_and_rows_to_read() {
        let of = |selectors: Vec<RowSelector>| spans_of(&RowSelection::from(selectors));
        let (skip, select) = (RowSelector::skip, RowSelector::select);
        let span = |skip, rows| Span { skip, rows };
        assert_eq!(of(vec![skip(3), select(4), skip(1), select(2), skip(9)]), [span(3, 4), span(1, 2)]);
        assert_eq!(of(vec![select(5)]), [span(0, 5)]);
        assert_eq!(of(vec![skip(5)]), []);
    }
}
