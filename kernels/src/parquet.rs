//! Decodes pages of Parquet files on the device. Device side: `cuda/parquet_*.cu`.
//!
//! ```text
//!   staging      bytes of pages, as the file has them ──► decompress ─► prepare ─► codes · numbers · texts ──► columns
//!   Plan         what each page is, and where its rows go: uploaded as one buffer
//!   results      an error word per page │ facts per column                                  ──► one copy home
//! ```
//!
//! Pages      of any columns, encodings and codecs in one batch; as many launches as it has kinds of work, ten at most
//! NULL       rows without a value are 0 in validity, and 0 in the values; texts have no bytes there
//! Errors     a page that is damaged, or that statistics lied about, has an error word and zeros from some row on. The caller
//!            decodes it otherwise: nothing else of the batch is wrong
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

/// How the bytes of a page are compressed. What the device cannot decompress the host does, and stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    Stored,
    Snappy,
    Lz4Raw,
}

/// How the values of a page are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    Plain,
    /// Codes of a dictionary: PLAIN_DICTIONARY and RLE_DICTIONARY.
    Dictionary,
    /// RLE, of booleans.
    RleBoolean,
    /// DELTA_BINARY_PACKED.
    DeltaBinary,
    /// BYTE_STREAM_SPLIT.
    StreamSplit,
    /// DELTA_LENGTH_BYTE_ARRAY.
    DeltaLength,
}

/// What the file's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Int32,
    Int64,
    /// INT32 that is annotated as unsigned.
    UInt32,
    Float,
    Double,
    Boolean,
    /// FIXED_LEN_BYTE_ARRAY of at most 16 bytes: a signed number, the highest byte first.
    Fixed(u32),
    /// A timestamp, of which nanoseconds since 1970 are stored.
    Int96,
    /// BYTE_ARRAY.
    Text,
}

impl Source {
    /// Of `enum Source` in parquet.cuh.
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

    /// Bytes of a value; 0 where they differ.
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
    /// What is behind its header, in the staging buffer. Levels of a page of version 2 are its first bytes.
    pub bytes: Range<u64>,
    /// As many bytes once they are decompressed, levels included.
    pub raw_bytes: u32,
    pub codec: Codec,
    pub encoding: Encoding,
    /// Of a page of version 2, the bytes of its levels, which are never compressed; `None` for version 1.
    pub level_bytes: Option<u32>,
    /// The column may have NULLs in the file: the page begins with definition levels, of one bit.
    pub has_levels: bool,
    /// Rows of the page, NULLs included.
    pub values: u32,
    /// Rows at its beginning that are not wanted.
    pub skip: u32,
    /// Rows behind those that are.
    pub rows: u32,
    /// The row of the column that the first of them becomes.
    pub first_row: u64,
    /// Of the plan's columns.
    pub column: u32,
    /// Of the plan's dictionaries, for codes.
    pub dictionary: Option<u32>,
    /// Of a page that Snappy has compressed: where blocks of it begin that do not reach back before themselves, in its bytes behind
    /// the levels of version 2 and in what they decompress to. None: it is decompressed as a whole.
    pub blocks: Vec<(u32, u32)>,
}

/// Where the rows of a column go, and how they lie there.
#[derive(Debug, Clone)]
pub struct ColumnOutput {
    pub source: Source,
    /// Integers in any width, [`Physical::F32`], [`Physical::F64`], [`Physical::Bit`] or [`Physical::Text`]. Codes of a dictionary
    /// may become anything of fixed width, whatever the source is.
    pub stored: Physical,
    /// At least `rows` values; of texts the offsets, and behind them as many bytes as the texts may have: the pages' raw bytes less
    /// four for each value are enough for plain pages. Bits are zero before.
    pub values: DeviceView,
    /// At least `rows` bits in whole words, all zero before; `None` where a NULL is an error.
    pub validity: Option<DeviceView>,
    /// Subtracted from each integer.
    pub base: i64,
    /// What integers lie between, both included, as statistics have it: others are errors. So is what `stored` cannot hold.
    pub range: Option<(i64, i64)>,
    /// Texts have to be UTF-8.
    pub utf8: bool,
    pub rows: u64,
    /// Look for [`Facts`].
    pub facts: bool,
}

/// What codes of a chunk mean.
#[derive(Debug, Clone)]
pub enum Dictionary {
    /// A value for each code, as the column stores it; it may be the values of another column of the plan that has no codes.
    Table { values: DeviceView, entries: u32 },
    /// An offset (u32) for each code and one more, and the bytes that they lead to: offsets never fall and stay inside.
    Texts { offsets: DeviceView, bytes: DeviceView },
}

/// Why a page was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A stream ends before, or goes on behind, what its sizes say.
    Size,
    /// An element goes on behind the compressed bytes.
    Input,
    /// An element goes on behind the decompressed bytes.
    Output,
    /// A copy from before the first byte.
    Offset,
    /// Definition levels are no such stream.
    Levels,
    /// A NULL in a column that has no validity.
    Null,
    /// Fewer bytes than the values take.
    Short,
    /// Codes of more than 32 bits.
    Width,
    /// Runs that end early, or very short ones.
    Runs,
    /// A code that the dictionary does not have.
    Code,
    /// A value outside the column's range.
    Range,
    /// A text that is longer than what is left.
    Length,
    /// More bytes of texts than there is room for.
    Room,
    /// A header of deltas that makes no sense.
    Delta,
    /// A text that is not UTF-8.
    Utf8,
    /// A number that no kernel writes.
    Unknown(u32),
}

/// The error word of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageError {
    /// Of the plan's pages.
    pub page: u32,
    pub fault: Fault,
    /// Which kernel found it: 0 decompress, 1 prepare, 2 codes, 3 numbers, 4 texts, 5 deltas.
    pub stage: u32,
    /// The byte of the output (decompress), the row (others) about where it was found, up to 2²² − 1.
    pub position: u32,
}

/// What is true of the values of a column, as they are stored: with the base subtracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub nulls: u64,
    /// The least and the greatest of the integers that are not NULL.
    pub range: Option<(i128, i128)>,
    /// Rows whose value is smaller than the one before it: 0 if the column is sorted. NULL rows count as 0.
    pub falls: u64,
    /// Rows whose value is larger than the one before it.
    pub rises: u64,
    /// Of texts, their bytes.
    pub text_bytes: u64,
}

impl Facts {
    /// No integer is smaller than one before it, and none is NULL.
    pub fn is_sorted(&self) -> bool {
        self.nulls == 0 && self.falls == 0
    }

    /// The same, and none of `rows` is equal to one before it.
    pub fn is_ascending(&self, rows: u64) -> bool {
        self.is_sorted() && self.rises + 1 >= rows
    }
}

/// What a batch came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Of the pages that were not decoded, in their order.
    pub errors: Vec<PageError>,
    /// For each column that wanted them.
    pub facts: Vec<Option<Facts>>,
}

impl Plan {
    /// Reads what [`decode`] left in the results.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if there are not [`Plan::result_bytes`].
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
            13 => Fault::Room,
            14 => Fault::Delta,
            15 => Fault::Utf8,
            other => Fault::Unknown(other),
        };
        Some(PageError { page, fault, stage: word >> 6 & 15, position: word >> 10 })
    }
}

/// Kernels may read so many bytes behind a page, whatever lies there.
const OVERRUN_BYTES: u64 = 16;

/// Decodes the pages of a plan to its columns.
///
/// | name          | length                                                | contents                                     |
/// |---------------|-------------------------------------------------------|----------------------------------------------|
/// | `descriptors` | the plan's descriptors                                | those                                        |
/// | `staging`     | the last page's end, 16 more in it or in its padding  | bytes of pages; the 16 are read, and ignored |
/// | `scratch`     | [`Plan::scratch_bytes`]                               | any                                          |
/// | `results`     | [`Plan::result_bytes`]                                | any; then what [`Plan::outcome`] reads       |
///
/// Bits of the columns (validity, booleans) are zero before. What is wrong with a page is no error here, but in the outcome.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, before anything is launched.
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
    batch.launch("parquet_decompress", "snappy", plan.snappy, pages(plan.snappy.len), 0, Reach::Nothing)?;
    batch.launch("parquet_decompress", "lz4", plan.lz4, pages(plan.lz4.len), 1, Reach::Nothing)?;
    batch.launch("parquet_prepare", "", all, warps(all.len), 0, Reach::Validity)?;
    batch.launch("parquet_values", "deltas", plan.deltas, warps(plan.deltas.len), 0, Reach::Nothing)?;
    // Numbers may be the tables of codes.
    batch.launch("parquet_values", "numbers", plan.numbers, warps(plan.numbers.len), 0, Reach::Values)?;
    batch.launch("parquet_values", "codes", plan.codes, warps(plan.codes.len), 0, Reach::Values)?;
    batch.launch("parquet_texts", "measure", plan.texts, warps(plan.texts.len), 0, Reach::Values)?;
    batch.launch("parquet_texts", "place", plan.text_columns, warps(plan.text_columns.len), 0, Reach::Values)?;
    batch.launch("parquet_texts", "gather", plan.text_segments, warps(plan.text_segments.len), 0, Reach::Values)?;
    let pieces = striding(device, u64::from(plan.fact_pieces.len) * 256, tune::PARQUET_THREADS);
    batch.launch("parquet_facts", "", plan.fact_pieces, pieces, 0, Reach::Facts)
}

/// Which buffers a kernel reaches by addresses in the descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Nothing,
    /// Bits of columns are written.
    Validity,
    /// Values of columns are written, dictionaries are read.
    Values,
    /// Both are read.
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
