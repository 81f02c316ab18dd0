//! Row groups of a file as a reader decodes them: the selected rows, the bytes of their chunks, and their pages.
//!
//!   Unit, Unit ─► Units ─ read ─► Chunks of each ─ readers of a column ─► rows 0..n ─► rows n..m ─► …
//!   small row groups are combined     │                                  rows excluded by the page index are skipped
//!                                     └─ invalid bytes ─► DataFusion reads the remaining rows

use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::error::Result;
use datafusion::parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use datafusion::parquet::basic::Encoding;
use datafusion::physical_plan::ExecutionPlan;
use millpond_kernels::codegen::ir::Range as ValueRange;
use millpond_memory::{HostKind, PinnedBytes, PinnedPool, recorder};
use millpond_parquet::{ColumnReader, Layout, Page, PageError, statistics, walk};

use crate::column::scalar_integer;
use crate::device::workers::off_workers;
use crate::parquet::file::{ColumnSource, FileBytes, OpenFile};
use crate::parquet::scan::ParquetScan;
use crate::parquet::scratch::{ChunkPages, FilePages, ScratchPool};
use crate::profile::step;
use crate::program::texts;

/// Minimum number of rows that are decoded together, if available.
const LEAST_TOGETHER: u64 = 1 << 16;
/// Maximum bytes of chunks read together: with their alignment gaps, a block of 32 MiB of pinned memory.
const MOST_BYTES: u64 = (32 << 20) - (1 << 16);
/// Alignment in bytes of chunks in pinned memory.
const ALIGNMENT: usize = 64;
/// Bytes of padding after the last chunk.
pub(super) const OVERRUN: usize = 16;
/// Divisor of the pinned memory limit that bounds a single read.
const PINNED_SHARE: u64 = 8;

/// Selected rows of a row group.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub file: Arc<OpenFile>,
    pub row_group: usize,
    /// In row group order; adjacent spans are merged.
    pub(super) spans: Vec<Span>,
}

/// Row groups of one file that are decoded together, in the order of the file.
#[derive(Debug, Clone)]
pub(crate) struct Units(Vec<Unit>);

/// Selected rows of one of several units.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub unit: usize,
    pub spans: Vec<Span>,
}

/// Number of rows to skip, and number of rows to read after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub skip: u64,
    pub rows: u64,
}

/// Bytes of a unit's chunks, by the scan's columns.
pub(crate) struct Chunks {
    pub(super) chunks: Vec<Option<Chunk>>,
}

pub(super) struct Chunk {
    pub(super) bytes: FileBytes,
    pub(super) pages: Arc<ChunkPages>,
}

/// Byte ranges of chunks in a file, by the scan's columns.
type Ranges = Vec<Option<Range<u64>>>;

/// Limits for combining units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    pub readers: usize,
    pub most_rows: u64,
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

    /// Number of rows to read.
    pub fn rows(&self) -> u64 {
        self.spans.iter().map(|span| span.rows).sum()
    }

    /// Bytes of the chunks that are read.
    fn bytes(&self) -> u64 {
        let bytes = |source: &ColumnSource| match source {
            ColumnSource::Leaf(leaf, _) => self.file.chunk(self.row_group, *leaf).compressed_size().max(0) as u64,
            _ => 0,
        };
        self.file.columns.iter().map(bytes).sum()
    }

    /// True if the device may decode some of the chunks in their file format.
    fn has_device_form(&self) -> bool {
        let codec = |leaf: usize| self.file.chunk(self.row_group, leaf).compression();
        self.file.columns.iter().any(|source| match source {
            ColumnSource::Leaf(leaf, _) => crate::parquet::pages::codec(codec(*leaf)).is_some(),
            _ => false,
        })
    }

    /// Spans of the selected rows `first..first + rows`, relative to the start of the row group.
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

    /// Reads the chunks in these ranges.
    ///
    /// # Errors
    /// The system's or the store's, or if the file has changed.
    async fn read(&self, ranges: &Ranges, scratch: &Arc<ScratchPool>) -> Result<Vec<FileBytes>> {
        self.read_ranges(ranges.iter().flatten().cloned().collect(), scratch).await
    }

    /// Reads ranges of the file.
    ///
    /// # Errors
    /// Like `read`.
    pub(super) async fn read_ranges(
        &self,
        only: Vec<Range<u64>>,
        scratch: &Arc<ScratchPool>,
    ) -> Result<Vec<FileBytes>> {
        // A worker that blocks on a read would delay the task that it has just woken.
        let local = off_workers(|| {
            let _step = recorder::step(step::READ);
            self.file.read_local(&only, scratch)
        });
        match local {
            Some(read) => read,
            None => recorder::during(step::READ, self.file.read_remote(only)).await,
        }
    }

    /// Finds the pages of the chunks.
    fn chunks(
        &self,
        ranges: &Ranges,
        read: Vec<FileBytes>,
        known: &FilePages,
    ) -> std::result::Result<Chunks, PageError> {
        let mut read = read.into_iter();
        let rows = self.file.metadata.row_group(self.row_group).num_rows().max(0) as u64;
        let mut chunks = Vec::with_capacity(ranges.len());
        for (source, range) in self.file.columns.iter().zip(ranges) {
            let (ColumnSource::Leaf(leaf, _), Some(_), Some(bytes)) =
                (source, range, if range.is_some() { read.next() } else { None })
            else {
                chunks.push(None);
                continue;
            };
            let find = || walk(bytes.as_slice(), self.file.chunk(self.row_group, *leaf), rows);
            let pages = known.chunk(self.row_group, *leaf, find)?;
            chunks.push(Some(Chunk { bytes, pages }));
        }
        Ok(Chunks { chunks })
    }

    /// Byte ranges of the chunks in the file, by the scan's columns.
    fn ranges(&self) -> std::result::Result<Ranges, PageError> {
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

    /// DataFusion's scan of the given spans of the row group.
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

    /// Footer facts about a column's values: the range of its integers, if known, and whether a value may be NULL.
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

    /// Approximate bytes per text of column `column`, from the footer.
    fn text_bytes(&self, column: usize) -> usize {
        let ColumnSource::Leaf(leaf, _) = &self.file.columns[column] else { return texts::TYPICAL_BYTES };
        let chunk = self.file.chunk(self.row_group, *leaf);
        // A dictionary value may occur in many rows.
        let known = chunk.unencoded_byte_array_data_bytes().unwrap_or_else(|| chunk.uncompressed_size());
        let mean = usize::try_from(known).unwrap_or(0) / chunk.num_values().max(1) as usize;
        mean.max(texts::TYPICAL_BYTES)
    }
}

impl Units {
    /// Combines units in order if they are small: within one file and the limits, and so that there is about one group
    /// per reader.
    pub fn together(units: impl IntoIterator<Item = Unit>, limits: Together) -> Vec<Self> {
        let units: Vec<Unit> = units.into_iter().collect();
        let (rows, largest) = (units.iter().map(Unit::rows), units.iter().map(Unit::rows).max().unwrap_or(0));
        let share = rows.sum::<u64>() / limits.readers.max(1) as u64;
        // A reader with one unit above its share finishes earlier than one with a second turn.
        let most = (share + largest.saturating_sub(1)).max(LEAST_TOGETHER).min(limits.most_rows);
        let mut all: Vec<Self> = Vec::new();
        // Rows and bytes of the last group.
        let (mut rows, mut bytes) = (0, 0);
        for unit in units {
            let (more_rows, more) = (unit.rows(), unit.bytes());
            let fits = |last: &Self| {
                Arc::ptr_eq(last.file(), &unit.file) && rows + more_rows <= most && bytes + more <= MOST_BYTES
            };
            match all.last_mut().filter(|last| fits(last)) {
                Some(last) => {
                    last.0.push(unit);
                    (rows, bytes) = (rows + more_rows, bytes + more);
                }
                None => {
                    all.push(Self(vec![unit]));
                    (rows, bytes) = (more_rows, more);
                }
            }
        }
        all
    }

    pub fn file(&self) -> &Arc<OpenFile> {
        &self.0[0].file
    }

    /// True if the device may decode some of the chunks in their file format.
    pub fn has_device_form(&self) -> bool {
        self.iter().any(Unit::has_device_form)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Unit> {
        self.0.iter_mut()
    }

    pub fn unit(&self, at: usize) -> &Unit {
        &self.0[at]
    }

    /// Number of rows to read.
    pub fn rows(&self) -> u64 {
        self.iter().map(Unit::rows).sum()
    }

    /// Removes the row groups for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&Unit) -> bool) {
        self.0.retain(keep);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parts with the selected rows `first..first + rows`, relative to the start of each row group.
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

    /// Reads the chunks of each unit; those of a local file into pinned memory, if available. The inner error reports
    /// invalid bytes.
    ///
    /// # Errors
    /// The system's or the store's, or if the file has changed.
    pub async fn read(
        &self,
        scratch: &Arc<ScratchPool>,
        pinned: Option<&PinnedPool>,
    ) -> Result<std::result::Result<Vec<Chunks>, PageError>> {
        let ranges: std::result::Result<Vec<Ranges>, PageError> = self.iter().map(Unit::ranges).collect();
        let ranges = match ranges {
            Ok(ranges) => ranges,
            Err(error) => return Ok(Err(error)),
        };
        let read = match pinned {
            Some(pool) => self.read_pinned(&ranges, pool).await?,
            None => None,
        };
        let read = match read {
            Some(read) => read,
            None => {
                let mut all = Vec::with_capacity(ranges.len());
                for (unit, ranges) in self.iter().zip(&ranges) {
                    all.push(unit.read(ranges, scratch).await?);
                }
                all
            }
        };
        let units = self.iter().zip(&ranges).zip(read);
        // Only local files are checked for changes when they are read.
        let known = if self.file().is_local() { scratch.pages(&self.file().metadata) } else { Arc::default() };
        Ok(units.map(|((unit, ranges), read)| unit.chunks(ranges, read, &known)).collect())
    }

    /// Reads the chunks into pinned memory; `None` if there is too little of it, or if the file is not local.
    async fn read_pinned(&self, ranges: &[Ranges], pool: &PinnedPool) -> Result<Option<Vec<Vec<FileBytes>>>> {
        let file = self.file();
        let len = |range: &Range<u64>| ((range.end - range.start) as usize).next_multiple_of(ALIGNMENT);
        let bytes: usize = ranges.iter().flatten().flatten().map(len).sum();
        // Powers of two, so that queries can reuse each other's blocks.
        let block = (bytes + OVERRUN).next_power_of_two();
        if !file.is_local() || bytes == 0 || block as u64 > pool.limit().as_u64() / PINNED_SHARE {
            return Ok(None);
        }
        // A lost device is reported at the next launch.
        let Ok(mut buffer) = pool.take(HostKind::Download, block).await else { return Ok(None) };
        let read = off_workers(|| {
            let _step = recorder::step(step::READ);
            let Ok(mut out) = buffer.write() else { return Ok(false) };
            let mut at = 0;
            for range in ranges.iter().flatten().flatten() {
                file.read_exact(range, &mut out[at..at + (range.end - range.start) as usize])?;
                at += len(range);
            }
            file.is_as_planned().map(|()| true)
        });
        if !read? {
            return Ok(None);
        }
        let Ok(frozen) = buffer.freeze() else { return Ok(None) };
        let (frozen, mut at) = (Arc::new(frozen), 0);
        let mut piece = |range: &Range<u64>| {
            let bytes = at..at + (range.end - range.start) as usize;
            at += len(range);
            FileBytes::Pinned(Arc::clone(&frozen), bytes)
        };
        Ok(Some(ranges.iter().map(|of| of.iter().flatten().map(&mut piece).collect()).collect()))
    }

    /// DataFusion's scans of the selected rows `first..first + rows`.
    pub fn rest(&self, scan: &ParquetScan, first: u64, rows: u64) -> Vec<Arc<dyn ExecutionPlan>> {
        let plan = |part: Part| self.0[part.unit].rest(scan, part.spans);
        self.parts(first, rows).into_iter().map(plan).collect()
    }

    /// Footer facts about a column's values: the range of its integers, if known, and whether a value may be NULL.
    pub fn bounds(&self, column: usize) -> (Option<ValueRange>, bool) {
        let both = |(range, null): (Option<ValueRange>, bool), (other, other_null): (Option<ValueRange>, bool)| {
            (range.zip(other).map(|(a, b)| a.union(b)), null || other_null)
        };
        self.iter().map(|unit| unit.bounds(column)).reduce(both).unwrap_or((None, true))
    }

    /// Approximate bytes per text of a column.
    pub fn text_bytes(&self, column: usize) -> usize {
        self.iter().map(|unit| unit.text_bytes(column)).max().unwrap_or(texts::TYPICAL_BYTES)
    }
}

impl Part {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.spans.iter().map(|span| span.rows).sum()
    }
}

impl Chunks {
    /// Pinned memory of a column's chunk, and its range there.
    pub fn pinned(&self, column: usize) -> Option<(&Arc<PinnedBytes>, &Range<usize>)> {
        match &self.chunks[column].as_ref()?.bytes {
            FileBytes::Pinned(bytes, range) => Some((bytes, range)),
            _ => None,
        }
    }

    pub fn is_pinned(&self) -> bool {
        (0..self.chunks.len()).any(|column| self.pinned(column).is_some())
    }

    /// Moves the chunks out of pinned memory, so that a task waiting for pinned memory holds none.
    pub fn unpin(&mut self, scratch: &Arc<ScratchPool>) {
        for chunk in self.chunks.iter_mut().flatten() {
            if let FileBytes::Pinned(..) = &chunk.bytes {
                let mut own = scratch.take(chunk.bytes.as_slice().len());
                own.copy_from_slice(chunk.bytes.as_slice());
                chunk.bytes = FileBytes::Own(own);
            }
        }
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.bytes.as_slice().len()).sum()
    }

    /// Number of rows in pages that contain codes of the chunk's dictionary.
    pub fn coded_rows(&self, column: usize) -> usize {
        let is_coded = |page: &&Page| matches!(page.encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
        let pages = self.chunks[column].iter().flat_map(|chunk| &chunk.pages.data);
        pages.filter(is_coded).map(|page| page.values as usize).sum()
    }

    /// Reader of the scan's column `column` from its first row on; `None` if the column has no chunk.
    ///
    /// # Errors
    /// If the chunk cannot be read in this layout.
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
