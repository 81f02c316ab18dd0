//! What host and generated kernels agree on: the extent descriptor, the control block, the order of parameters.
//!
//!   extent descriptor   rows | source control | column 0: values, validity, base | column 1: … |      all u64
//!   control block       error word | rows | ticket …                                                64 bytes
//!   output allocation   control block | tile status | bitmaps (all zeroed) | values
//!   state allocation    control block | records (all zeroed)
//!
//! Rows      an extent that a kernel made names that kernel's control block: the row count is read there, `rows` is then
//!           the upper bound, and an error there becomes this launch's own. So the last control block of a chain tells all.
//! Validity  address 0 means that no row of the extent is NULL.
//! Errors    the first error wins: the word is set once, from 0, by compare-and-swap.

use crate::codegen::ir::Physical;

/// Bytes before the first column of an extent descriptor.
pub const EXTENT_HEADER_BYTES: u64 = 16;
/// Byte offset of the row count (or its upper bound).
pub const EXTENT_ROWS: u64 = 0;
/// Byte offset of the address of the control block that holds the row count; 0 when `rows` is the count itself.
pub const EXTENT_SOURCE: u64 = 8;
/// Bytes of one column in an extent descriptor.
pub const EXTENT_COLUMN_BYTES: u64 = 24;

/// Bytes of an extent descriptor with `columns` columns.
pub const fn extent_bytes(columns: usize) -> u64 {
    EXTENT_HEADER_BYTES + EXTENT_COLUMN_BYTES * columns as u64
}

/// Bytes of a text that a view of it holds itself.
pub const INLINE_TEXT_BYTES: u32 = 12;
/// Byte offset of those bytes in a view.
pub const INLINE_TEXT_OFFSET: u64 = 4;

/// Rows of one extent: row numbers are 32-bit, with room to step over the end.
pub const MAX_EXTENT_ROWS: u64 = 1 << 31;

/// Bytes of a control block. The host copies the first [`CONTROL_RESULT_BYTES`] home.
pub const CONTROL_BYTES: u64 = 64;
/// Error word and row count.
pub const CONTROL_RESULT_BYTES: u64 = 16;
/// Byte offset of the error word (u64; see `ErrorCode::from_word`).
pub const CONTROL_ERROR: u64 = 0;
/// Byte offset of the row count (u64).
pub const CONTROL_ROWS: u64 = 8;
/// Outputs of rows that pass a filter: byte offset of the number of rows that passed (u64), whether they found room or not.
pub const CONTROL_PASSED: u64 = 24;
/// Byte offset of the tile ticket (u32).
pub const CONTROL_TICKET: u64 = 16;
/// Lists of a join table: byte offset of the number of rows listed so far (u32). Expansions: of the number of source rows (u64).
pub const CONTROL_LISTED: u64 = 24;
/// Join tables: byte offset of a word that is not 0 when some key has several rows (u32).
pub const CONTROL_DUPLICATES: u64 = 32;
/// Join tables: byte offset of a word that is not 0 when some row has a NULL among its keys (u32).
pub const CONTROL_NULL_KEYS: u64 = 36;

/// Marks: byte offset of the bitmap behind the control block.
pub const MARK_BITS: u64 = 256;

/// Leftover rows: byte offset of the bitmap behind their number (u64, at 0).
pub const LEFTOVER_BITS: u64 = 256;

/// Where one column of an extent lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnAddress {
    pub values: u64,
    /// 0: no row is NULL.
    pub validity: u64,
    pub base: i64,
}

/// Number of rows of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    Known(u64),
    /// The control block of the kernel that made the extent, and what its count cannot exceed.
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
/// The number of `enum Kind` in reduce.cu and store.cu for integers of a width; `None` for what is none.
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
