//! What a file of the matrix can choose, beside the kinds of its columns.
//!
//! ```text
//!   of a column   encoding · dictionary · nulls · values · bloom
//!   of the file   codec · version · rows · pages · groups · statistics · index
//! ```
//!
//! Names   each choice has a short name, which is part of the file's name.

use parquet::basic::{BrotliLevel, Compression, Encoding as Written, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterVersion};

/// An enum of choices: all of them in a list, and a name for each.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$of_one:meta])* $one:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$of_one])* $one),* }

        impl $name {
            /// All of them, in the order in which they are numbered.
            pub const ALL: &[$name] = &[$($name::$one),*];

            /// The word for it in names of files.
            pub fn name(self) -> &'static str {
                match self { $($name::$one => $text),* }
            }
        }
    };
}
pub(super) use choices;

choices! {
    /// How the values of a column are written.
    Encoding {
        Plain = "plain",
        /// RLE_DICTIONARY; what follows a dictionary that is full is the business of [`Dictionary`].
        Dictionary = "dictionary",
        /// Runs of booleans, with their length in front.
        Rle = "rle",
        DeltaBinaryPacked = "delta",
        DeltaLengthByteArray = "delta_length",
        DeltaByteArray = "delta_bytes",
        ByteStreamSplit = "split",
    }
}

impl Encoding {
    /// The encoding to ask a writer for; a dictionary is asked for otherwise.
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
    /// When a dictionary gives up in the middle of a column chunk.
    Dictionary {
        /// The column has none.
        Unused = "",
        /// Never, at these sizes.
        Whole = "_whole",
        /// At 64 bytes; pages of the writer's own choice follow: PLAIN in version 1, DELTA_… in version 2.
        Bytes64 = "_64",
        /// At 1,024 bytes, likewise.
        Bytes1024 = "_1024",
        /// At 1,024 bytes; PLAIN pages follow in both versions.
        Bytes1024ThenPlain = "_1024_plain",
    }
}

impl Dictionary {
    /// The bytes after which the dictionary gives up, if it ever does.
    pub fn limit_bytes(self) -> Option<usize> {
        match self {
            Dictionary::Unused | Dictionary::Whole => None,
            Dictionary::Bytes64 => Some(64),
            Dictionary::Bytes1024 | Dictionary::Bytes1024ThenPlain => Some(1_024),
        }
    }
}

choices! {
    /// Which rows of a column are NULL.
    Nulls {
        /// The column is required: no definition levels.
        Required = "required",
        /// The column is optional, and no row is NULL.
        Without = "no_null",
        Seventh = "seventh",
        /// A random half.
        Half = "half",
        All = "all_null",
        /// Runs of lengths around bytes and words, NULL and not in turn.
        Runs = "null_runs",
        /// All rows of the first page, and no others.
        FirstPage = "first_page",
    }
}

choices! {
    /// How the values of a column are distributed.
    Values {
        Constant = "constant",
        /// Ascending and different, as far as the type has values.
        Sorted = "sorted",
        /// Ascending, thirteen rows a value.
        Repeats = "repeats",
        /// Six different values.
        Few = "few",
        /// All bits random.
        Random = "random",
        /// The ends of the type; NaN, −0.0 and infinities; empty, long and odd texts.
        Extremes = "extremes",
    }
}

choices! {
    /// Whether a column chunk has a Bloom filter.
    Bloom { Without = "", With = "bloom" }
}

choices! {
    /// How pages are compressed.
    Compress {
        None = "none",
        Snappy = "snappy",
        Lz4Raw = "lz4_raw",
        /// The deprecated LZ4 of Hadoop: blocks with lengths in front.
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
    /// The version of the data pages.
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
    /// Where a data page ends.
    Pages {
        /// Nowhere before the row group, at these sizes.
        Whole = "one_page",
        Rows32 = "page32r",
        Rows100 = "page100r",
        /// 256 bytes of values, or 400 rows.
        Bytes256 = "page256b",
        /// 4,096 bytes of values, or 500 rows.
        Bytes4096 = "page4096b",
    }
}

/// The sizes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    pub rows: usize,
    pub bytes: usize,
    /// After how many values the writer compares a page with its limits: a divisor of `rows`.
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
    /// Rows of a row group.
    Groups {
        One = "one_group",
        /// 24, in files of 31 to 33 rows.
        Of24 = "groups24",
        /// 333, so that groups begin inside a byte of a bitmap.
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
    /// What the file says about its values.
    Statistics {
        None = "no_stats",
        Chunk = "chunk_stats",
        Page = "page_stats",
        /// In page headers, too, which makes headers long.
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
    /// Whether the file has an offset index; it has a column index when statistics are by page.
    Index { With = "index", Without = "no_index" }
}

/// Numbers of rows: around a word of validity, and enough for many pages.
pub const ROWS: [usize; 7] = [1_000, 3_001, 0, 1, 31, 32, 33];
