//! Rules: limits on the scan of a table, and how to remove them.
//!
//! A rule reports only what can be changed, or columns that the device does not read. A small table has few pages in
//! any layout, which is not a finding.

use super::cost::{self, CHUNK, FILE, HOST_CORES, LINK, MEMORY, PAGE_HEADER, PAGES_IN_FLIGHT, STRING_WALK, TEXT_BYTES};
use super::{ColumnReport, TableReport};
use crate::rewrite::{DICTIONARY_BYTES, PAGE_ROWS};

/// Minimum rows per row group: the overhead of smaller groups outweighs their data.
const LEAST_GROUP_ROWS: u64 = 100_000;
/// Maximum rows per row group: a device decodes no more at a time.
const MOST_GROUP_ROWS: u64 = cost::EXTENT_ROWS as u64;
/// Maximum rows per page; writers usually make pages of 20,000.
const MOST_PAGE_ROWS: u64 = 40_000;
/// Minimum rows per page: smaller pages are mostly headers, unless their rows are long.
const LEAST_PAGE_ROWS: u64 = 4_096;
const LEAST_PAGE_BYTES: u64 = 64 << 10;
/// Minimum compressed bytes per chunk: smaller chunks are not reported.
const LEAST_CHUNK_BYTES: u64 = 16 << 10;
/// Minimum number of small files that is reported.
const MANY_FILES: u64 = 8;

/// One finding about a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub kind: FindingKind,
    pub table: String,
    /// Affected columns; empty if the finding is about the table.
    pub columns: Vec<String>,
    /// Description, with its figure.
    pub what: String,
    /// Estimated seconds by which a scan of all columns is slowed down; `None` without an estimate.
    pub seconds: Option<f64>,
    pub way_out: WayOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    HostType,
    HostPages,
    HostCodec,
    MixedDictionary,
    LargePages,
    SmallPages,
    HardlyCompressed,
    SmallRowGroups,
    LargeRowGroups,
    SmallFiles,
    Int96,
    DecimalBytes,
    NoStatistics,
    NoNullCounts,
    NoPageIndex,
}

impl FindingKind {
    /// Stable name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostType => "host_type",
            Self::HostPages => "host_pages",
            Self::HostCodec => "host_codec",
            Self::MixedDictionary => "mixed_dictionary",
            Self::LargePages => "large_pages",
            Self::SmallPages => "small_pages",
            Self::HardlyCompressed => "hardly_compressed",
            Self::SmallRowGroups => "small_row_groups",
            Self::LargeRowGroups => "large_row_groups",
            Self::SmallFiles => "small_files",
            Self::Int96 => "int96",
            Self::DecimalBytes => "decimal_bytes",
            Self::NoStatistics => "no_statistics",
            Self::NoNullCounts => "no_null_counts",
            Self::NoPageIndex => "no_page_index",
        }
    }
}

/// Remedy for a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayOut {
    /// `millpond parquet rewrite`.
    Rewrite,
    /// `millpond parquet rewrite` with this option.
    RewriteWith(&'static str),
    /// Another remedy, or none.
    Other(&'static str),
}

impl WayOut {
    pub fn is_rewrite(&self) -> bool {
        !matches!(self, Self::Other(_))
    }
}

/// All findings of a table, unordered.
pub(super) fn of(table: &TableReport) -> Vec<Finding> {
    let rules: [fn(&TableReport) -> Option<Finding>; 15] = [
        host_types,
        host_pages,
        host_codecs,
        mixed_dictionaries,
        large_pages,
        small_pages,
        hardly_compressed,
        small_row_groups,
        large_row_groups,
        small_files,
        int96,
        decimals,
        no_statistics,
        no_null_counts,
        no_page_index,
    ];
    if table.rows == 0 {
        return Vec::new();
    }
    rules.into_iter().filter_map(|rule| rule(table)).collect()
}

/// A finding about the columns that satisfy `is`; `None` if there are none. `tell` returns the description and the
/// cost.
fn about(
    table: &TableReport,
    kind: FindingKind,
    way_out: WayOut,
    is: impl Fn(&ColumnReport) -> bool,
    tell: impl FnOnce(&[&ColumnReport]) -> (String, Option<f64>),
) -> Option<Finding> {
    let columns: Vec<&ColumnReport> = table.columns.iter().filter(|column| is(column)).collect();
    if columns.is_empty() {
        return None;
    }
    let (what, seconds) = tell(&columns);
    let columns = columns.into_iter().map(|column| column.name.clone()).collect();
    Some(Finding { kind, table: table.name.clone(), columns, what, seconds, way_out })
}

/// A finding about the table.
fn whole(
    table: &TableReport,
    kind: FindingKind,
    way_out: WayOut,
    what: String,
    seconds: Option<f64>,
) -> Option<Finding> {
    Some(Finding { kind, table: table.name.clone(), columns: Vec::new(), what, seconds, way_out })
}

fn sum(columns: &[&ColumnReport], of: impl Fn(&ColumnReport) -> u64) -> u64 {
    columns.iter().map(|column| of(column)).sum()
}

fn names<'a>(sets: impl Iterator<Item = &'a std::collections::BTreeSet<String>>) -> String {
    let names: std::collections::BTreeSet<&str> = sets.flatten().map(String::as_str).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn host_types(table: &TableReport) -> Option<Finding> {
    let way_out = WayOut::Other("queries that do not name these columns do not read them");
    about(
        table,
        FindingKind::HostType,
        way_out,
        |column| !column.is_read_by_device(),
        |columns| {
            let reasons: Vec<&str> =
                columns.iter().filter_map(|column| column.host_reason.as_deref()).take(3).collect();
            let raw = sum(columns, |column| column.raw_bytes);
            let more = if columns.len() > reasons.len() { ", …" } else { "" };
            let what =
                format!("DataFusion decodes columns without a device form on the host: {}{more}", reasons.join(", "));
            (what, Some(cost::decoding(raw) + raw as f64 / LINK))
        },
    )
}

fn host_pages(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.host_page_raw_bytes > 0;
    about(table, FindingKind::HostPages, WayOut::Rewrite, is, |columns| {
        let raw = sum(columns, |column| column.host_page_raw_bytes);
        let more = raw.saturating_sub(sum(columns, |column| column.host_page_bytes));
        let reasons = names(columns.iter().map(|column| &column.host_page_reasons));
        let what = format!("{} are decoded on the host: {reasons}", crate::file::bytes(raw));
        (what, Some(cost::decoding(raw) + more as f64 / LINK))
    })
}

fn host_codecs(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && !column.host_codecs.is_empty();
    about(table, FindingKind::HostCodec, WayOut::Rewrite, is, |columns| {
        let raw = sum(columns, |column| column.host_codec_raw_bytes);
        let compressed = sum(columns, |column| column.host_codec_bytes);
        let codecs = names(columns.iter().map(|column| &column.host_codecs));
        let what = format!(
            "{codecs} is decompressed on the host; {} go over the link instead of {}",
            crate::file::bytes(raw),
            crate::file::bytes(compressed)
        );
        let host: f64 = columns.iter().map(|column| column.host_decompression).sum();
        (what, Some(host + raw.saturating_sub(compressed) as f64 / LINK))
    })
}

fn mixed_dictionaries(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.mixed_chunks > 0;
    about(table, FindingKind::MixedDictionary, WayOut::Rewrite, is, |columns| {
        let (mixed, chunks) = (sum(columns, |column| column.mixed_chunks), sum(columns, |column| column.chunks));
        let texts = columns.iter().filter(|column| column.is_text).map(|column| column.raw_bytes).sum::<u64>();
        let numbers: u64 = columns.iter().filter(|column| !column.is_text).map(|column| column.mixed_chunks).sum();
        let what = format!(
            "the dictionary was given up in the middle of {mixed} of {chunks} chunks: strings get no codes, and the \
             dictionary is read for nothing"
        );
        (what, Some(texts as f64 / TEXT_BYTES + (numbers * DICTIONARY_BYTES as u64) as f64 / LINK))
    })
}

/// Pages with too many rows, where their number limits decompression or the walk along strings.
fn large_pages(table: &TableReport) -> Option<Finding> {
    let rows_of_page = |column: &ColumnReport| column.pages.filter(|pages| *pages > 0).map(|pages| column.rows / pages);
    let is_plain_text = |column: &ColumnReport| column.is_text && column.encodings.contains_key("PLAIN");
    let is = |column: &ColumnReport| {
        let is_limited = column.device_compressed_bytes > 0 || is_plain_text(column);
        column.is_read_by_device() && is_limited && rows_of_page(column).is_some_and(|rows| rows > MOST_PAGE_ROWS)
    };
    about(table, FindingKind::LargePages, WayOut::Rewrite, is, |columns| {
        let (pages, chunks) = (sum(columns, ColumnReport::likely_pages), sum(columns, |column| column.chunks));
        let in_flight = cost::in_flight(&table.columns, table.rows);
        let ideal: u64 = table.columns.iter().map(|column| column.rows.div_ceil(PAGE_ROWS as u64)).sum();
        let ideal = (ideal as f64 * cost::of_extent(table.rows)).max(in_flight);
        let compressed = table.columns.iter().map(|column| column.device_compressed_bytes).sum();
        let slower = cost::decompression(compressed, in_flight) - cost::decompression(compressed, ideal);
        let texts = columns.iter().filter(|column| is_plain_text(column));
        let longest = texts.filter_map(|column| rows_of_page(column)).max().unwrap_or(0);
        let walk = longest.saturating_sub(PAGE_ROWS as u64) as f64 * STRING_WALK;
        let what = format!(
            "{:.1} pages a chunk, with {} rows each: {} pages of the table are in flight, and {PAGES_IN_FLIGHT} keep the link busy",
            pages as f64 / chunks.max(1) as f64,
            super::text::count(sum(columns, |column| column.rows) / pages.max(1)),
            super::text::count(in_flight as u64),
        );
        (what, Some(slower + walk))
    })
}

fn small_pages(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| {
        let Some(pages) = column.pages.filter(|pages| *pages > column.chunks) else { return false };
        let is_small = column.rows / pages < LEAST_PAGE_ROWS && column.raw_bytes / pages < LEAST_PAGE_BYTES;
        // Chunks of few rows have small pages in any layout.
        column.is_read_by_device() && is_small && column.rows / column.chunks.max(1) >= LEAST_PAGE_ROWS
    };
    about(table, FindingKind::SmallPages, WayOut::Rewrite, is, |columns| {
        let pages = sum(columns, ColumnReport::likely_pages);
        let rows = super::text::count(sum(columns, |column| column.rows) / pages.max(1));
        let what = format!("{} pages of {rows} rows: the host reads a header for each", super::text::count(pages));
        (what, Some(pages as f64 * PAGE_HEADER / HOST_CORES))
    })
}

fn hardly_compressed(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| {
        let hardly = column.hardly_compressed_bytes;
        let is_much =
            hardly / column.chunks.max(1) >= LEAST_CHUNK_BYTES && hardly * 10 > column.device_compressed_bytes;
        column.is_read_by_device() && is_much
    };
    let way_out = WayOut::RewriteWith("stores such pages as they are; --codec none stores all");
    about(table, FindingKind::HardlyCompressed, way_out, is, |columns| {
        let bytes = sum(columns, |column| column.hardly_compressed_bytes);
        let what = format!("{} of pages gain less than a tenth by compression", crate::file::bytes(bytes));
        (what, Some(cost::decompression(bytes, cost::in_flight(&table.columns, table.rows))))
    })
}

fn small_row_groups(table: &TableReport) -> Option<Finding> {
    if table.groups_of_several == 0 || table.rows_of_several / table.groups_of_several >= LEAST_GROUP_ROWS {
        return None;
    }
    let groups = table.groups_of_several;
    let rows = super::text::count(table.rows_of_several / groups);
    let what = format!("{} row groups with {rows} rows each: many reads and dictionaries", super::text::count(groups));
    let fewer = table.rows_of_several.div_ceil(crate::rewrite::ROW_GROUP_ROWS as u64);
    let chunks = groups.saturating_sub(fewer) * table.columns.len() as u64;
    whole(table, FindingKind::SmallRowGroups, WayOut::Rewrite, what, Some(chunks as f64 * CHUNK / HOST_CORES))
}

fn large_row_groups(table: &TableReport) -> Option<Finding> {
    if table.most_group_rows <= MOST_GROUP_ROWS {
        return None;
    }
    let rows = super::text::count(table.most_group_rows);
    let what = format!("a row group has {rows} rows: it is read in parts, and skipped as a whole or not at all");
    whole(table, FindingKind::LargeRowGroups, WayOut::Rewrite, what, None)
}

fn small_files(table: &TableReport) -> Option<Finding> {
    if table.files < MANY_FILES || table.rows / table.files >= LEAST_GROUP_ROWS {
        return None;
    }
    let rows = super::text::count(table.rows / table.files);
    let what = format!("{} files with {rows} rows each: a footer is read for each", super::text::count(table.files));
    let way_out = WayOut::Other("COPY (SELECT * FROM 'folder/') TO 'one.parquet' makes one file of them");
    let chunks = table.row_groups * table.columns.len() as u64;
    let seconds = (table.files as f64 * FILE + chunks as f64 * CHUNK) / HOST_CORES;
    whole(table, FindingKind::SmallFiles, way_out, what, Some(seconds))
}

fn int96(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.is_int96;
    about(table, FindingKind::Int96, WayOut::Rewrite, is, |columns| {
        let rows = sum(columns, |column| column.rows);
        let what = "timestamps are INT96: 12 bytes a value, and no statistics that could be trusted".to_string();
        (what, Some((rows * 4) as f64 / LINK))
    })
}

fn decimals(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.decimal_bytes.is_some();
    about(table, FindingKind::DecimalBytes, WayOut::Rewrite, is, |columns| {
        let most = columns.iter().filter_map(|column| column.decimal_bytes).max().unwrap_or(0);
        let what = format!(
            "decimals of up to 18 digits are byte arrays of up to {most} bytes, big-endian, instead of integers"
        );
        let more = |column: &ColumnReport| column.rows * u64::from(column.decimal_bytes.unwrap_or(0).saturating_sub(8));
        (what, Some(sum(columns, more) as f64 / LINK))
    })
}

fn no_statistics(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.chunks_without_statistics > 0;
    about(table, FindingKind::NoStatistics, WayOut::Rewrite, is, |columns| {
        let chunks = sum(columns, |column| column.chunks_without_statistics);
        let what = format!(
            "{} chunks have no minimum and maximum: none is skipped, and integers are stored at full width",
            super::text::count(chunks)
        );
        let integers = columns.iter().filter(|column| column.is_integer).map(|column| column.rows).sum::<u64>();
        (what, Some((integers * 8) as f64 / MEMORY))
    })
}

fn no_null_counts(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.chunks_without_null_count > 0;
    about(table, FindingKind::NoNullCounts, WayOut::Rewrite, is, |columns| {
        let chunks = sum(columns, |column| column.chunks_without_null_count);
        let what = format!(
            "{} chunks do not say how many NULLs they have: validity is stored for all rows",
            super::text::count(chunks)
        );
        (what, Some(sum(columns, |column| column.rows.div_ceil(8)) as f64 / MEMORY))
    })
}

fn no_page_index(table: &TableReport) -> Option<Finding> {
    let is = |column: &ColumnReport| column.is_read_by_device() && column.chunks_without_page_index > 0;
    about(table, FindingKind::NoPageIndex, WayOut::Rewrite, is, |columns| {
        let chunks = sum(columns, |column| column.chunks_without_page_index);
        let what = format!(
            "{} chunks have no page index: pages are found one after the other, and none is skipped",
            super::text::count(chunks)
        );
        let pages = sum(columns, ColumnReport::likely_pages);
        (what, Some(pages as f64 * PAGE_HEADER / HOST_CORES))
    })
}
