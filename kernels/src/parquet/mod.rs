//! Decodes pages of Parquet files on the device. Device side: `cuda/parquet_*.cu`.
//!
//! ```text
//!   staging      pages, as the file stores them ──► decompress ─► prepare ─► codes · numbers · texts ──► columns
//!   Plan         describes each page and the destination of its rows: uploaded as one buffer
//!   results      an error word per page │ facts per column                                  ──► one copy to the host
//! ```
//!
//! Pages      of any columns, encodings and codecs in one batch; one launch per kind of work in it, ten at most
//! NULL       rows without a value are 0 in validity and 0 in the values; texts of such rows are empty
//! Errors     a page that is damaged, or that contradicts the statistics, gets an error word, and zeros from some row
//!            on. The caller decodes it on the host; the other pages of the batch are not affected
//! Memory     callers allocate everything: see [`decode`]
//! Waits      never

mod descriptors;
mod plan;

use std::ops::Range;

use millpond_memory::{DeviceView, Kernel, Stream};

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{expect_bytes, striding};
use crate::{Launch, LaunchConfig, tune};
use plan::List;

pub use plan::Plan;

type Result<T> = std::result::Result<T, KernelError>;

fn shape(why: String) -> KernelError {
    KernelError::Shape { what: "parquet", why }
}

/// Compression of a page. The host decompresses pages of other codecs and passes them as stored pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    Stored,
    Snappy,
    Lz4Raw,
}

/// Encoding of a page's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    Plain,
    /// Codes of a dictionary: PLAIN_DICTIONARY and RLE_DICTIONARY.
    Dictionary,
    /// RLE of booleans.
    RleBoolean,
    /// DELTA_BINARY_PACKED.
    DeltaBinary,
    /// BYTE_STREAM_SPLIT.
    StreamSplit,
    /// DELTA_LENGTH_BYTE_ARRAY.
    DeltaLength,
}

/// Type of the file's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Int32,
    Int64,
    /// INT32 with an unsigned annotation.
    UInt32,
    Float,
    Double,
    Boolean,
    /// FIXED_LEN_BYTE_ARRAY of at most 16 bytes: a signed big-endian number.
    Fixed(u32),
    /// A timestamp; it is stored as nanoseconds since 1970.
    Int96,
    /// BYTE_ARRAY.
    Text,
}

impl Source {
    /// Number in `enum Source` of parquet.cuh.
    fn number(self) -> u32 {
        match self {
            Source::Int32 => 0,
            Source::Int64 => 1,
            Source::UInt32 => 2,
            Source::Float => 3,
            Source::Double => 4,
            Source::Boolean => 5,
            Source::Fixed(_) => 6,
            Source::Int96 => 7,
            Source::Text => 8,
        }
    }

    /// Bytes of a value; 0 if the length varies.
    fn width(self) -> u32 {
        match self {
            Source::Int32 | Source::UInt32 | Source::Float => 4,
            Source::Int64 | Source::Double => 8,
            Source::Fixed(width) => width,
            Source::Int96 => 12,
            Source::Boolean | Source::Text => 0,
        }
    }
}

/// A page whose header the host has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageInput {
    /// Range of the page in the staging buffer, without its header. A page of version 2 begins with its levels.
    pub bytes: Range<u64>,
    /// Bytes of the page after decompression, including levels.
    pub raw_bytes: u32,
    pub codec: Codec,
    pub encoding: Encoding,
    /// Bytes of the levels of a page of version 2, which are never compressed; `None` for version 1.
    pub level_bytes: Option<u32>,
    /// True if the column may have NULLs in the file: the page then begins with definition levels of one bit.
    pub has_levels: bool,
    /// Rows of the page, NULLs included.
    pub values: u32,
    /// Rows to skip at the beginning of the page.
    pub skip: u32,
    /// Rows to decode after the skipped rows.
    pub rows: u32,
    /// Destination of the first decoded row: a row of the column.
    pub first_row: u64,
    /// Index into the plan's columns.
    pub column: u32,
    /// Index into the plan's dictionaries; for codes.
    pub dictionary: Option<u32>,
    /// Independent blocks of a page compressed with Snappy: each block's offset in the page's bytes (behind the levels
    /// of version 2) and in the decompressed bytes. No copy in a block reaches back before it. Empty: the page is
    /// decompressed as a whole.
    pub blocks: Vec<(u32, u32)>,
}

/// Destination of a column's rows, and their format.
#[derive(Debug, Clone)]
pub struct ColumnOutput {
    pub source: Source,
    /// Any integer type, [`Physical::F32`], [`Physical::F64`], [`Physical::Bit`] or [`Physical::Text`]. Dictionary
    /// codes may become any type of fixed width, whatever the source.
    pub stored: Physical,
    /// At least `rows` values. For texts: the offsets, then room for the bytes of the texts; for plain pages, their raw
    /// bytes less four per value are enough. Bits must be zero before.
    pub values: DeviceView,
    /// At least `rows` bits in whole words, zeroed by the caller; if `None`, a NULL is an error.
    pub validity: Option<DeviceView>,
    /// Subtracted from each integer.
    pub base: i64,
    /// Inclusive range of the integers according to statistics: other values are errors, as are values that `stored`
    /// cannot hold.
    pub range: Option<(i64, i64)>,
    /// True if texts must be valid UTF-8.
    pub utf8: bool,
    pub rows: u64,
    /// True to compute [`Facts`].
    pub facts: bool,
}

/// Values of a chunk's codes.
#[derive(Debug, Clone)]
pub enum Dictionary {
    /// One value per code, in the column's format; it may be the values of another column of the plan that has no
    /// codes.
    Table { values: DeviceView, entries: u32 },
    /// Offsets (u32), one per code and one more, and the bytes that they point into: offsets never decrease and stay in
    /// bounds.
    Texts { offsets: DeviceView, bytes: DeviceView },
}

/// Why a page was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A stream ends before, or continues after, the end that its sizes give.
    Size,
    /// An element extends beyond the compressed bytes.
    Input,
    /// An element extends beyond the decompressed bytes.
    Output,
    /// A copy reaches back before the first byte.
    Offset,
    /// Definition levels are malformed.
    Levels,
    /// A NULL in a column without validity.
    Null,
    /// The page has fewer bytes than its values need.
    Short,
    /// Codes of more than 32 bits.
    Width,
    /// Runs end early, or there are too many short runs.
    Runs,
    /// A code beyond the end of the dictionary.
    Code,
    /// A value outside the column's range.
    Range,
    /// A text extends beyond the end of the page.
    Length,
    /// The texts have more bytes than the column has capacity for.
    Capacity,
    /// An invalid header of a delta encoding.
    Delta,
    /// A text that is not UTF-8.
    Utf8,
    /// A fault number that no kernel writes.
    Unknown(u32),
}

/// The error word of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageError {
    /// Index into the plan's pages.
    pub page: u32,
    pub fault: Fault,
    /// Kernel that found it: 0 decompress, 1 prepare, 2 codes, 3 numbers, 4 texts, 5 deltas.
    pub stage: u32,
    /// Approximate position: a byte of the output (decompress) or a row (other kernels), at most 2²² − 1.
    pub position: u32,
}

/// Facts about the stored values of a column (with the base subtracted).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub nulls: u64,
    /// Range of the integers that are not NULL.
    pub range: Option<(i128, i128)>,
    /// Rows whose value is smaller than the previous row's: 0 if the column is sorted. NULL rows count as 0.
    pub falls: u64,
    /// Rows whose value is larger than the previous row's.
    pub rises: u64,
    /// Total bytes of the texts.
    pub text_bytes: u64,
}

impl Facts {
    /// True if no integer is smaller than the previous one and none is NULL.
    pub fn is_sorted(&self) -> bool {
        self.nulls == 0 && self.falls == 0
    }

    /// True if the column is sorted and no two of its `rows` values are equal.
    pub fn is_ascending(&self, rows: u64) -> bool {
        self.is_sorted() && self.rises + 1 >= rows
    }
}

/// Result of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Errors of the pages that were not decoded, in page order.
    pub errors: Vec<PageError>,
    /// Facts per column, if requested.
    pub facts: Vec<Option<Facts>>,
}

impl Plan {
    /// Reads the results of [`decode`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if `results` has fewer bytes than [`Plan::result_bytes`].
    pub fn outcome(&self, results: &[u8]) -> Result<Outcome> {
        if (results.len() as u64) < self.result_bytes() {
            return Err(shape(format!("{} bytes of results, not {}", results.len(), self.result_bytes())));
        }
        let word = |at: usize| u32::from_le_bytes(results[at..at + 4].try_into().expect("four bytes"));
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let at = descriptors::TICKET_BYTES as usize;
        let errors = (0..self.num_pages).filter_map(|page| PageError::of(page, word(at + 4 * page as usize)));
        let facts = self.columns.iter().enumerate().map(|(number, column)| {
            let at = self.facts_at() as usize + number * descriptors::FACT_BYTES as usize;
            let present = wide(at);
            let sign = match column.stored {
                Physical::I8 | Physical::I16 | Physical::I32 | Physical::I64 => i128::from(i64::MIN),
                _ => 0,
            };
            let ordered = crate::abi::integer_kind(column.stored).is_some_and(|kind| kind < 8);
            let range =
                (ordered && present > 0).then(|| (i128::from(!wide(at + 8)) + sign, i128::from(wide(at + 16)) + sign));
            let nulls = column.rows - present;
            let (falls, rises, text_bytes) = (wide(at + 24), wide(at + 32), wide(at + 40));
            self.facts[number].then_some(Facts { nulls, range, falls, rises, text_bytes })
        });
        Ok(Outcome { errors: errors.collect(), facts: facts.collect() })
    }
}

impl PageError {
    fn of(page: u32, word: u32) -> Option<PageError> {
        let fault = match word & 63 {
            0 => return None,
            1 => Fault::Size,
            2 => Fault::Input,
            3 => Fault::Output,
            4 => Fault::Offset,
            5 => Fault::Levels,
            6 => Fault::Null,
            7 => Fault::Short,
            8 => Fault::Width,
            9 => Fault::Runs,
            10 => Fault::Code,
            11 => Fault::Range,
            12 => Fault::Length,
            13 => Fault::Capacity,
            14 => Fault::Delta,
            15 => Fault::Utf8,
            other => Fault::Unknown(other),
        };
        Some(PageError { page, fault, stage: word >> 6 & 15, position: word >> 10 })
    }
}

/// Bytes behind a page that kernels may read; their contents do not matter.
const OVERRUN_BYTES: u64 = 16;

/// Decodes the pages of a plan into its columns.
///
/// | name          | length                                      | contents                                       |
/// |---------------|---------------------------------------------|------------------------------------------------|
/// | `descriptors` | the plan's descriptors                      | a copy of them                                 |
/// | `staging`     | the last page's end, plus 16 (or padding)   | bytes of pages; the last 16 are read, not used |
/// | `scratch`     | [`Plan::scratch_bytes`]                     | any                                            |
/// | `results`     | [`Plan::result_bytes`]                      | any; afterwards the input of [`Plan::outcome`] |
///
/// The caller zeroes the columns' bits (validity, booleans). A damaged page is not an error here: the outcome reports
/// it.
///
/// # Errors
/// [`KernelError::Shape`] before any launch if a length does not fit.
pub fn decode(
    images: &Images,
    plan: &Plan,
    descriptors: &DeviceView,
    staging: &DeviceView,
    scratch: &DeviceView,
    results: &DeviceView,
    on: &Stream,
) -> Result<()> {
    expect_bytes("parquet", "descriptors", descriptors, plan.descriptors.len() as u64)?;
    expect_bytes("parquet", "staging", &staging.padded(), plan.staging_bytes + OVERRUN_BYTES)?;
    expect_bytes("parquet", "scratch", scratch, plan.scratch_bytes)?;
    expect_bytes("parquet", "results", results, plan.result_bytes())?;
    for view in [descriptors, staging, scratch, results] {
        if !view.address().0.is_multiple_of(16) {
            return Err(shape("a buffer does not begin at a multiple of 16".into()));
        }
    }
    results.fill(0, on)?;
    let staging = staging.padded();
    let device = images.device();
    let batch = Decode { images, plan, buffers: [descriptors, &staging, scratch, results], on };
    let warps = |items: u32| striding(device, u64::from(items) * 32, tune::PARQUET_THREADS);
    let pages = |items: u32| {
        let most = device.limits().multiprocessors * tune::PARQUET_BLOCKS;
        LaunchConfig::linear(items.min(most), tune::PARQUET_PAGE_THREADS)
    };
    let all = List { at: 0, len: plan.num_pages };
    batch.launch("parquet_decompress", "snappy", plan.lists.snappy, pages(plan.lists.snappy.len), 0, Reach::Nothing)?;
    batch.launch("parquet_decompress", "lz4", plan.lists.lz4, pages(plan.lists.lz4.len), 1, Reach::Nothing)?;
    batch.launch("parquet_prepare", "", all, warps(all.len), 0, Reach::Validity)?;
    batch.launch("parquet_values", "deltas", plan.lists.deltas, warps(plan.lists.deltas.len), 0, Reach::Nothing)?;
    // Numbers are decoded first: they may be the dictionary tables of codes.
    batch.launch("parquet_values", "numbers", plan.lists.numbers, warps(plan.lists.numbers.len), 0, Reach::Values)?;
    batch.launch("parquet_values", "codes", plan.lists.codes, warps(plan.lists.codes.len), 0, Reach::Values)?;
    batch.launch("parquet_texts", "measure", plan.lists.texts, warps(plan.lists.texts.len), 0, Reach::Values)?;
    batch.launch(
        "parquet_texts",
        "place",
        plan.lists.text_columns,
        warps(plan.lists.text_columns.len),
        0,
        Reach::Values,
    )?;
    batch.launch(
        "parquet_texts",
        "gather",
        plan.lists.text_segments,
        warps(plan.lists.text_segments.len),
        0,
        Reach::Values,
    )?;
    let pieces = striding(device, u64::from(plan.lists.fact_pieces.len) * 256, tune::PARQUET_THREADS);
    batch.launch("parquet_facts", "", plan.lists.fact_pieces, pieces, 0, Reach::Facts)
}

/// Buffers that a kernel reaches through addresses in the descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Nothing,
    /// Writes bits of columns.
    Validity,
    /// Writes values of columns, reads dictionaries.
    Values,
    /// Reads both.
    Facts,
}

struct Decode<'a> {
    images: &'a Images,
    plan: &'a Plan,
    buffers: [&'a DeviceView; 4],
    on: &'a Stream,
}

impl Decode<'_> {
    fn launch(
        &self,
        image: &'static str,
        suffix: &str,
        list: List,
        config: LaunchConfig,
        ticket: u32,
        reach: Reach,
    ) -> Result<()> {
        if list.len == 0 {
            return Ok(());
        }
        let name = if suffix.is_empty() { image.to_string() } else { format!("{image}_{suffix}") };
        let kernel: Kernel = self.images.kernel(image, &name)?;
        let [descriptors, staging, scratch, results] = self.buffers;
        let launch = Launch::new(&kernel, config).read(descriptors).read(staging).write(scratch).write(results);
        let mut launch = launch.value(list.at).value(list.len).value(ticket);
        for column in &self.plan.columns {
            let validity = column.validity.as_ref().map(DeviceView::padded);
            launch = match (reach, validity) {
                (Reach::Validity, Some(validity)) => launch.writes(validity),
                (Reach::Values, _) => launch.writes(column.values.padded()),
                (Reach::Facts, validity) => {
                    validity.into_iter().fold(launch.reads(column.values.padded()), |launch, bits| launch.reads(bits))
                }
                _ => launch,
            };
        }
        for dictionary in self.plan.dictionaries.iter().filter(|_| reach == Reach::Values) {
            launch = match dictionary {
                Dictionary::Table { values, .. } => launch.reads(values.padded()),
                Dictionary::Texts { offsets, bytes } => launch.reads(offsets).reads(bytes.padded()),
            };
        }
        launch.submit(self.on)?;
        Ok(())
    }
}
