//! Options of a matrix file, other than the kinds of its columns.
//!
//! ```text
//!   per column    encoding · dictionary · nulls · values · bloom
//!   per file      codec · version · rows · pages · groups · statistics · index
//! ```
//!
//! Names   each choice has a short name, which is part of the file's name.

use parquet::basic::{BrotliLevel, Compression, Encoding as Written, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterVersion};

/// Defines an enum of choices, with a list of all and a name for each.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$of_one:meta])* $one:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$of_one])* $one),* }

        impl $name {
            /// All choices, in numbering order.
            pub const ALL: &[$name] = &[$($name::$one),*];

            /// Name of the choice in file names.
            pub fn name(self) -> &'static str {
                match self { $($name::$one => $text),* }
            }
        }
    };
}
pub(super) use choices;

choices! {
    /// Encoding of a column's values.
    Encoding {
        Plain = "plain",
        /// RLE_DICTIONARY; [`Dictionary`] determines what follows a full dictionary.
        Dictionary = "dictionary",
        /// RLE of booleans, preceded by its length.
        Rle = "rle",
        DeltaBinaryPacked = "delta",
        DeltaLengthByteArray = "delta_length",
        DeltaByteArray = "delta_bytes",
        ByteStreamSplit = "split",
    }
}

impl Encoding {
    /// Encoding to set on a writer; a dictionary is requested by another option.
    pub(super) fn written(self) -> Option<Written> {
        match self {
            Encoding::Dictionary => None,
            Encoding::Plain => Some(Written::PLAIN),
            Encoding::Rle => Some(Written::RLE),
            Encoding::DeltaBinaryPacked => Some(Written::DELTA_BINARY_PACKED),
            Encoding::DeltaLengthByteArray => Some(Written::DELTA_LENGTH_BYTE_ARRAY),
            Encoding::DeltaByteArray => Some(Written::DELTA_BYTE_ARRAY),
            Encoding::ByteStreamSplit => Some(Written::BYTE_STREAM_SPLIT),
        }
    }
}

choices! {
    /// Limit after which a dictionary is abandoned within a column chunk.
    Dictionary {
        /// The column has no dictionary.
        Unused = "",
        /// Not reached at these sizes.
        Whole = "_whole",
        /// 64 bytes; then pages of the writer's choice: PLAIN in version 1, DELTA_… in version 2.
        Bytes64 = "_64",
        /// 1,024 bytes; then as above.
        Bytes1024 = "_1024",
        /// 1,024 bytes; then PLAIN pages in both versions.
        Bytes1024ThenPlain = "_1024_plain",
    }
}

impl Dictionary {
    /// Limit of the dictionary in bytes, if it has one.
    pub fn limit_bytes(self) -> Option<usize> {
        match self {
            Dictionary::Unused | Dictionary::Whole => None,
            Dictionary::Bytes64 => Some(64),
            Dictionary::Bytes1024 | Dictionary::Bytes1024ThenPlain => Some(1_024),
        }
    }
}

choices! {
    /// Rows of a column that are NULL.
    Nulls {
        /// The column is required: no definition levels.
        Required = "required",
        /// The column is optional, and no row is NULL.
        Without = "no_null",
        Seventh = "seventh",
        /// A random half of the rows.
        Half = "half",
        All = "all_null",
        /// Alternating runs of NULLs and values, with lengths around bytes and words.
        Runs = "null_runs",
        /// All rows of the first page, and no other rows.
        FirstPage = "first_page",
    }
}

choices! {
    /// Distribution of a column's values.
    Values {
        Constant = "constant",
        /// Ascending and distinct, as far as the type has values.
        Sorted = "sorted",
        /// Ascending, thirteen rows per value.
        Repeats = "repeats",
        /// Six distinct values.
        Few = "few",
        /// All bits random.
        Random = "random",
        /// Limits of the type; NaN, −0.0 and infinities; empty, long and unusual texts.
        Extremes = "extremes",
    }
}

choices! {
    /// Presence of a Bloom filter in a column chunk.
    Bloom { Without = "", With = "bloom" }
}

choices! {
    /// Compression of pages.
    Compress {
        None = "none",
        Snappy = "snappy",
        Lz4Raw = "lz4_raw",
        /// The deprecated LZ4 format of Hadoop: blocks preceded by their lengths.
        Lz4 = "lz4_hadoop",
        Zstd = "zstd",
        Gzip = "gzip",
        Brotli = "brotli",
    }
}

impl Compress {
    pub(super) fn written(self) -> Compression {
        match self {
            Compress::None => Compression::UNCOMPRESSED,
            Compress::Snappy => Compression::SNAPPY,
            Compress::Lz4Raw => Compression::LZ4_RAW,
            Compress::Lz4 => Compression::LZ4,
            Compress::Zstd => Compression::ZSTD(ZstdLevel::default()),
            Compress::Gzip => Compression::GZIP(GzipLevel::default()),
            Compress::Brotli => Compression::BROTLI(BrotliLevel::default()),
        }
    }
}

choices! {
    /// Version of the data pages.
    Version { V1 = "v1", V2 = "v2" }
}

impl Version {
    pub(super) fn written(self) -> WriterVersion {
        match self {
            Version::V1 => WriterVersion::PARQUET_1_0,
            Version::V2 => WriterVersion::PARQUET_2_0,
        }
    }
}

choices! {
    /// Size of data pages.
    Pages {
        /// One page per row group, at these sizes.
        Whole = "one_page",
        Rows32 = "page32r",
        Rows100 = "page100r",
        /// 256 bytes of values, or 400 rows.
        Bytes256 = "page256b",
        /// 4,096 bytes of values, or 500 rows.
        Bytes4096 = "page4096b",
    }
}

/// Limits of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    pub rows: usize,
    pub bytes: usize,
    /// Values after which the writer compares a page with its limits: a divisor of `rows`.
    pub batch: usize,
}

impl Pages {
    pub fn limits(self) -> PageLimits {
        match self {
            Pages::Whole => PageLimits { rows: 100_000, bytes: 16 << 20, batch: 1_000 },
            Pages::Rows32 => PageLimits { rows: 32, bytes: 1 << 20, batch: 16 },
            Pages::Rows100 => PageLimits { rows: 100, bytes: 1 << 20, batch: 20 },
            Pages::Bytes256 => PageLimits { rows: 400, bytes: 256, batch: 16 },
            Pages::Bytes4096 => PageLimits { rows: 500, bytes: 4_096, batch: 50 },
        }
    }
}

choices! {
    /// Rows per row group.
    Groups {
        One = "one_group",
        /// 24 rows, in files of 31 to 33 rows.
        Of24 = "groups24",
        /// 333 rows, so that groups begin inside a byte of a bitmap.
        Of333 = "groups333",
        Of512 = "groups512",
    }
}

impl Groups {
    pub fn rows(self) -> usize {
        match self {
            Groups::One => 1 << 20,
            Groups::Of24 => 24,
            Groups::Of333 => 333,
            Groups::Of512 => 512,
        }
    }
}

choices! {
    /// Statistics in the file.
    Statistics {
        None = "no_stats",
        Chunk = "chunk_stats",
        Page = "page_stats",
        /// Also in page headers, which become long.
        PageHeader = "header_stats",
    }
}

impl Statistics {
    pub(super) fn written(self) -> EnabledStatistics {
        match self {
            Statistics::None => EnabledStatistics::None,
            Statistics::Chunk => EnabledStatistics::Chunk,
            Statistics::Page | Statistics::PageHeader => EnabledStatistics::Page,
        }
    }
}

choices! {
    /// Presence of an offset index; with page statistics there is also a column index.
    Index { With = "index", Without = "no_index" }
}

/// Row counts: around a word of validity, and enough for many pages.
pub const ROWS: [usize; 7] = [1_000, 3_001, 0, 1, 31, 32, 33];
