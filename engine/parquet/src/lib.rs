//! Decodes column chunks of Parquet files directly into the layout of device columns.
//!
//!   footer ──► statistics, is_all_dictionary            what to expect: ranges, NULLs, dictionaries
//!   chunk  ──► walk ──► Pages ──► ColumnReader::read ──► values | validity | texts, and Facts
//!                         └─────► dictionary, decompress   for a device that decodes the rest itself
//!
//! NULL     a NULL row is stored as 0, and its validity bit is 0.
//! Memory   what the chunk's metadata and page headers promise, checked before it is allocated; one page at a time.
//! Output   is written from front to back and never read, as write-combined memory wants it.
//! Errors   any damaged byte ends in a [`PageError`]; nothing panics, and every loop is bounded by bytes or rows.
//! Flat     columns only: nested ones, and types that [`Conversion::of`] refuses, stay with parquet's own reader.

#![forbid(unsafe_code)]

pub mod check;
mod codec;
mod column;
mod conversion;
mod decode;
mod delta;
mod entries;
mod error;
mod facts;
pub mod file;
mod footer;
mod native;
mod out;
mod pages;
mod reader;
pub mod rewrite;
mod rle;
mod statistics;
mod strings;
mod thrift;
mod unpack;

pub use codec::{decompress, snappy_blocks};
pub use column::{Intern, Layout};
pub use conversion::{Conversion, Raw, Unsupported};
pub use entries::entries;
pub use error::{PageError, ReadError, Stopped};
pub use facts::Facts;
pub use out::Out;
pub use pages::{MOST_PAGE_BYTES, Page, PageKind, Pages, walk};
pub use reader::{ColumnReader, dictionary, dictionary_bytes};
pub use statistics::{Bounds, is_all_dictionary, statistics};
