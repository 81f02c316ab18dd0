//! Sorting columns: the order that a file says its row groups have, and row groups that keep it.
//!
//! ```text
//!   old   | 1 4 9 | 9 12 | 3 5 |        sorted by one column, each row group for itself
//!   new   | 1 4 9   9 12 | 3 5 |        9 ≤ 9: one row group     12 > 3: another one begins
//! ```
//!
//! Seen     the last row of a row group beside the first row of the next one. The order within a row group is the
//!          file's word.
//! Joined   columns of integers, Booleans and strings; of others, and of repeated ones, row groups end where they ended
//!          before.

use std::cmp::Ordering;

use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::file::metadata::SortingColumn;
use parquet::schema::types::ColumnDescriptor;

use super::leaf::Leaf;
use super::types::Becomes;
use crate::file::{FileError, Opened};

/// A row's value of a sorting column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Signed(i64),
    Unsigned(u64),
    Bytes(Vec<u8>),
}

/// The sorting columns of all row groups, none where there is no order.
///
/// # Errors
/// [`FileError::Read`] where row groups have different ones, which no writer here can keep, or name no column.
pub(super) fn sorting_columns(opened: &Opened) -> Result<Vec<SortingColumn>, FileError> {
    let refused = |reason: String| Err(FileError::read(&opened.path, reason));
    let columns = opened.metadata.file_metadata().schema_descr().columns();
    let name = |sorting: &SortingColumn| {
        let column = usize::try_from(sorting.column_idx).ok().and_then(|index| columns.get(index));
        column.map(|column| column.path().string())
    };
    let mut all = opened.metadata.row_groups().iter().map(|group| group.sorting_columns().cloned().unwrap_or_default());
    let Some(first) = all.next() else { return Ok(Vec::new()) };
    for other in std::iter::once(first.clone()).chain(all) {
        if let Some(unknown) = other.iter().find(|sorting| name(sorting).is_none()) {
            return refused(format!("it says that it is sorted by column number {}, and has none", unknown.column_idx));
        }
        if other != first {
            let named = |sorting: &[SortingColumn]| match sorting {
                [] => "none".to_string(),
                some => some.iter().filter_map(name).collect::<Vec<_>>().join(", "),
            };
            return refused(format!(
                "its row groups have different sorting columns ({}; {}), which no writer here can keep: write the rows \
                 without them by COPY … TO",
                named(&first),
                named(&other)
            ));
        }
    }
    Ok(first)
}

/// The first rows of the row groups that are written, and how many rows each has: `most` at most.
///
/// # Errors
/// [`FileError::Read`] where a row cannot be read.
pub(super) fn row_groups(
    opened: &Opened,
    sorting: &[SortingColumn],
    most: usize,
) -> Result<Vec<(u64, usize)>, FileError> {
    let rows = opened.rows();
    let mut ends: Vec<u64> = Vec::new();
    if !sorting.is_empty() {
        let mut end = 0;
        for group in opened.metadata.row_groups().iter().filter(|group| group.num_rows() > 0) {
            if end > 0 && !is_joined(opened, sorting, end)? {
                ends.push(end);
            }
            end += group.num_rows() as u64;
        }
    }
    ends.push(rows);
    let (mut groups, mut first) = (Vec::new(), 0);
    for end in ends {
        while first < end {
            let rows = (end - first).min(most as u64);
            groups.push((first, rows as usize));
            first += rows;
        }
    }
    Ok(groups)
}

/// True if the row before `row` may come before it in one row group.
fn is_joined(opened: &Opened, sorting: &[SortingColumn], row: u64) -> Result<bool, FileError> {
    let columns = opened.metadata.file_metadata().schema_descr().columns();
    for sorted in sorting {
        let index = sorted.column_idx as usize;
        let column = &columns[index];
        if column.max_rep_level() > 0 {
            return Ok(false);
        }
        let mut keys = [None, None];
        for (key, row) in keys.iter_mut().zip([row - 1, row]) {
            if let Some(bytes) = Leaf::at(opened, index, Becomes::Same, row).value()? {
                let Some(found) = Key::of(column, bytes) else { return Ok(false) };
                *key = Some(found);
            }
        }
        let [last, next] = keys;
        let order = match (&last, &next) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) if sorted.nulls_first => Ordering::Less,
            (Some(_), None) if !sorted.nulls_first => Ordering::Less,
            (None, _) | (_, None) => Ordering::Greater,
            (Some(last), Some(next)) if sorted.descending => next.cmp(last),
            (Some(last), Some(next)) => last.cmp(next),
        };
        match order {
            Ordering::Less => return Ok(true),
            Ordering::Equal => {}
            Ordering::Greater => return Ok(false),
        }
    }
    Ok(true)
}

impl Key {
    /// A value in the order of its type; `None` where that is not the order of its bytes or number.
    fn of(column: &ColumnDescriptor, bytes: Vec<u8>) -> Option<Self> {
        let logical = column.logical_type_ref();
        let is_unsigned = match logical {
            Some(LogicalType::Integer(integer)) => !integer.is_signed,
            _ => matches!(
                column.converted_type(),
                ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
            ),
        };
        match column.physical_type() {
            Physical::BOOLEAN => Some(Self::Unsigned(u64::from(*bytes.first()?))),
            Physical::INT32 => {
                let value = i32::from_le_bytes(bytes.try_into().ok()?);
                let unsigned = Self::Unsigned(u64::from(value as u32));
                Some(if is_unsigned { unsigned } else { Self::Signed(value.into()) })
            }
            Physical::INT64 => {
                let value = i64::from_le_bytes(bytes.try_into().ok()?);
                Some(if is_unsigned { Self::Unsigned(value as u64) } else { Self::Signed(value) })
            }
            Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => {
                let is_plain = matches!(
                    (logical, column.converted_type()),
                    (Some(LogicalType::String | LogicalType::Enum | LogicalType::Json | LogicalType::Uuid), _)
                        | (None, ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON)
                );
                is_plain.then_some(Self::Bytes(bytes))
            }
            Physical::INT96 | Physical::FLOAT | Physical::DOUBLE => None,
        }
    }
}
