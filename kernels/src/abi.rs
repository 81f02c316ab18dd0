//! Layouts shared by host and generated kernels: the extent descriptor, the control block, the order of parameters.
//!
//!   extent descriptor   rows | source control | column 0: values, validity, base | column 1: … |      all u64
//!   control block       error word | rows | ticket …                                                64 bytes
//!   output allocation   control block | tile status | bitmaps (all zeroed) | values
//!   state allocation    control block | records (all zeroed)
//!
//! Rows      an extent written by a kernel points to that kernel's control block: the row count is read there and
//!           `rows` is its upper bound. An error found there becomes the error of this launch, so the last control
//!           block of a chain of launches reports every failure.
//! Validity  address 0 means that no row of the extent is NULL.
//! Errors    the first error wins: the word is set once, from 0, by compare-and-swap.

use crate::codegen::ir::Physical;

/// Bytes before the first column of an extent descriptor.
pub const EXTENT_HEADER_BYTES: u64 = 16;
/// Byte offset of the row count (or its upper bound).
pub const EXTENT_ROWS: u64 = 0;
/// Byte offset of the address of the control block that holds the row count; 0 if `rows` is the count itself.
pub const EXTENT_SOURCE: u64 = 8;
/// Bytes of one column in an extent descriptor.
pub const EXTENT_COLUMN_BYTES: u64 = 24;

/// Bytes of an extent descriptor with `columns` columns.
pub const fn extent_bytes(columns: usize) -> u64 {
    EXTENT_HEADER_BYTES + EXTENT_COLUMN_BYTES * columns as u64
}

/// Bytes of the longest text that a view holds inline.
pub const INLINE_TEXT_BYTES: u32 = 12;
/// Byte offset of the inline bytes in a view.
pub const INLINE_TEXT_OFFSET: u64 = 4;

/// Maximum rows of one extent: row numbers are 32-bit, and a loop may step past the end.
pub const MAX_EXTENT_ROWS: u64 = 1 << 31;

/// Bytes of a control block. The host copies the first [`CONTROL_RESULT_BYTES`].
pub const CONTROL_BYTES: u64 = 64;
/// Bytes of the error word and the row count.
pub const CONTROL_RESULT_BYTES: u64 = 16;
/// Byte offset of the error word (u64; see `ErrorCode::from_word`).
pub const CONTROL_ERROR: u64 = 0;
/// Byte offset of the row count (u64).
pub const CONTROL_ROWS: u64 = 8;
/// Byte offset of the number of rows that passed the filter (u64), including rows that found no room in the output.
pub const CONTROL_PASSED: u64 = 24;
/// Byte offset of the tile ticket (u32).
pub const CONTROL_TICKET: u64 = 16;
/// Byte offset. Lists of a join table: the number of rows listed so far (u32). Expansions: the number of source rows
/// (u64).
pub const CONTROL_LISTED: u64 = 24;
/// Byte offset of a word of a join table that is not 0 if some key has several rows (u32).
pub const CONTROL_DUPLICATES: u64 = 32;
/// Byte offset of a word of a join table that is not 0 if some row has a NULL among its keys (u32).
pub const CONTROL_NULL_KEYS: u64 = 36;

/// Byte offset of the bitmap in a buffer of marks, behind the control block.
pub const MARK_BITS: u64 = 256;

/// Byte offset of the bitmap in a buffer of leftover rows, behind their number (u64, at 0).
pub const LEFTOVER_BITS: u64 = 256;

/// Address of one column of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnAddress {
    pub values: u64,
    /// 0 if no row is NULL.
    pub validity: u64,
    pub base: i64,
}

/// Number of rows of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    Known(u64),
    /// The control block of the kernel that wrote the extent, and an upper bound of its count.
    OnDevice {
        control: u64,
        upper_bound: u64,
    },
}

impl RowCount {
    pub fn upper_bound(self) -> u64 {
        match self {
            RowCount::Known(rows) => rows,
            RowCount::OnDevice { upper_bound, .. } => upper_bound,
        }
    }
}

/// Appends one extent descriptor to `bytes`.
pub fn write_extent(bytes: &mut Vec<u8>, rows: RowCount, columns: &[ColumnAddress]) {
    let source = match rows {
        RowCount::Known(_) => 0,
        RowCount::OnDevice { control, .. } => control,
    };
    let mut word = |value: u64| bytes.extend_from_slice(&value.to_le_bytes());
    word(rows.upper_bound());
    word(source);
    for column in columns {
        word(column.values);
        word(column.validity);
        word(column.base as u64);
    }
}
/// Number of an integer width in `enum Kind` of reduce.cu and store.cu; `None` for other types.
pub(crate) fn integer_kind(physical: Physical) -> Option<u32> {
    Some(match physical {
        Physical::I8 => 0,
        Physical::I16 => 1,
        Physical::I32 => 2,
        Physical::I64 => 3,
        Physical::U8 => 4,
        Physical::U16 => 5,
        Physical::U32 => 6,
        Physical::U64 => 7,
        Physical::I128 => 8,
        _ => return None,
    })
}
