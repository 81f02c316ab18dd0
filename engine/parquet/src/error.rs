//! What can be wrong with a page: with its bytes, or with what the plan expected of its values.
//!
//!   bytes     Header · Rows · Malformed · Codec · Utf8 · Unsupported    the chunk can be read by another reader, or by
//!                                                                       none
//!   plan      OutOfRange · UnexpectedNull · TextsTooLong                the column can be read again in another layout
//!   caller    Shape                                                     a buffer is too small, or starts between two
//!                                                                       words

use parquet::basic::CompressionCodec;

/// Reason why a column chunk cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    #[error("page header at byte {at} of the column chunk {what}")]
    Header { at: usize, what: &'static str },
    /// The pages of a chunk hold more or fewer rows than its row group.
    #[error("the pages of the column chunk hold {found} rows, but its row group has {rows}")]
    Rows { found: u64, rows: u64 },
    /// The bytes of a page are not what its header and encoding promise.
    #[error("page is malformed: {0}")]
    Malformed(&'static str),
    #[error("page cannot be decompressed as {codec}: {message}")]
    Codec { codec: CompressionCodec, message: String },
    #[error("a string of the page is not UTF-8")]
    Utf8,
    /// Possibly valid, but not supported by this reader.
    #[error("{0}")]
    Unsupported(String),
    /// A valid value lies outside the range of the layout.
    #[error("a value lies outside the range that the column is stored with")]
    OutOfRange,
    #[error("a row is NULL where the column is stored without validity")]
    UnexpectedNull,
    /// Offsets have 32 bits.
    #[error("the strings need {bytes} bytes, but their offsets end at {}", u32::MAX)]
    TextsTooLong { bytes: u64 },
    /// Arguments of the caller do not fit the request.
    #[error("{0}")]
    Shape(String),
}

impl PageError {
    /// True if the values contradict the layout; another layout may hold them.
    pub fn is_of_the_layout(&self) -> bool {
        matches!(self, Self::OutOfRange | Self::UnexpectedNull | Self::TextsTooLong { .. })
    }
}

/// Reason why rows were not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Page(#[from] PageError),
    /// The caller's [`Intern`](crate::Intern) stopped and holds the reason.
    #[error("the strings were given no codes")]
    Stopped,
}

impl From<Stopped> for ReadError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

/// The caller assigns no more codes and holds the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

pub(crate) type Result<T> = std::result::Result<T, PageError>;
