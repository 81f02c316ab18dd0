//! Conversion of nested values to bytes and back: the dictionary contents of a column of lists, structures, maps or
//! wide decimals.
//!
//!   [1, NULL]  ──►  02 02 01 80 00 00 01 … in Arrow's row format  ──►  [1, NULL]
//!
//! Equal    bytes mean equal values, as DataFusion groups, joins and compares them: floats by their bits, inner NULLs
//!          equal.
//! NULL     of the column has no bytes; `[NULL]`, `[]` and a structure of NULLs are values.
//! Order    is DataFusion's: an inner NULL is last in a sort, and first in a comparison with `<`.
//! Refused  types that do not survive the round trip: dictionaries, runs, unions and list views inside; structures
//!          without fields, lists of no items.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt32Array, new_empty_array};
use datafusion::arrow::compute::{SortOptions, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::error::Result;

use crate::error::EngineError;

/// True for lists, structures and maps that the device represents as dictionary codes, and for 256-bit decimals, which
/// are represented in the same way because no register holds one.
pub fn is_nested(data_type: &DataType) -> bool {
    is_wide(data_type) || data_type.is_nested() && comes_back(data_type)
}

/// True for numbers that are represented as dictionary codes: computations on them run over the values of one
/// dictionary.
pub fn is_wide(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal256(..))
}

/// True for types whose values survive a round trip through Arrow's row format.
fn comes_back(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => comes_back(item.data_type()),
        DataType::FixedSizeList(item, items) => *items > 0 && comes_back(item.data_type()),
        DataType::Map(entries, _) => comes_back(entries.data_type()),
        DataType::Struct(fields) => !fields.is_empty() && fields.iter().all(|field| comes_back(field.data_type())),
        DataType::Dictionary(..) => false,
        other => !other.is_nested(),
    }
}

/// True if equal bytes are equal values of both types, which may differ only in the names of items.
pub(crate) fn same_nested(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::List(a), DataType::List(b)) | (DataType::LargeList(a), DataType::LargeList(b)) => {
            a.is_nullable() == b.is_nullable() && same_nested(a.data_type(), b.data_type())
        }
        _ => a == b,
    }
}

/// True for wide numbers, and for lists whose DataFusion MIN and MAX follow the sort order. For structures they do not:
/// an inner NULL compares equal to any value.
pub(crate) fn has_least(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            !item.data_type().is_nested() && *item.data_type() != DataType::Null
        }
        other => is_wide(other),
    }
}

fn converter(data_type: &DataType, nulls_first: bool) -> Result<RowConverter> {
    let options = SortOptions { descending: false, nulls_first };
    Ok(RowConverter::new(vec![SortField::new_with_options(data_type.clone(), options)])?)
}

/// Row-format bytes of each value.
pub(super) fn rows(array: &ArrayRef) -> Result<Rows> {
    Ok(converter(array.data_type(), true)?.convert_columns(&[Arc::clone(array)])?)
}

/// Array of type `data_type` from the bytes of its values.
pub(super) fn array<'v>(values: impl Iterator<Item = &'v [u8]>, data_type: &DataType) -> Result<ArrayRef> {
    let converter = converter(data_type, true)?;
    let parser = converter.parser();
    let mut values = values.map(|value| parser.parse(value)).peekable();
    if values.peek().is_none() {
        return Ok(new_empty_array(data_type));
    }
    let array = converter.convert_rows(values)?.pop();
    array.ok_or_else(|| EngineError::internal("one column has one array").into())
}

/// Indices of the values in ascending order; inner NULLs are first or last.
pub(crate) fn ascending(values: &ArrayRef, nulls_first: bool) -> Result<UInt32Array> {
    let rows = converter(values.data_type(), nulls_first)?.convert_columns(&[Arc::clone(values)])?;
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    Ok(order.into())
}

/// Item range of each list in the array of all items; empty for a NULL list.
fn lists(array: &ArrayRef) -> Result<(ArrayRef, Vec<Range<usize>>)> {
    let (items, ranges): (&ArrayRef, Vec<Range<usize>>) = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let ranges = list.value_offsets().windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
            (list.values(), ranges.collect())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let ranges = list.value_offsets().windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
            (list.values(), ranges.collect())
        }
        DataType::FixedSizeList(_, items) => {
            let (list, items) = (array.as_fixed_size_list(), *items as usize);
            (list.values(), (0..list.len()).map(|row| row * items..(row + 1) * items).collect())
        }
        other => return Err(EngineError::internal(format!("{other} is no list")).into()),
    };
    let own = |(row, range): (usize, Range<usize>)| if array.is_null(row) { 0..0 } else { range };
    Ok((Arc::clone(items), ranges.into_iter().enumerate().map(own).collect()))
}

/// Number of items of each list.
pub(crate) fn counts(array: &ArrayRef) -> Result<Vec<u32>> {
    Ok(lists(array)?.1.iter().map(|range| range.len() as u32).collect())
}

/// Items of all lists, concatenated; `None` if there are more than `most`.
pub(crate) fn items(array: &ArrayRef, most: usize) -> Result<Option<ArrayRef>> {
    let (items, ranges) = lists(array)?;
    if ranges.iter().map(ExactSizeIterator::len).sum::<usize>() > most {
        return Ok(None);
    }
    let places: Vec<u32> = ranges.into_iter().flatten().map(|place| place as u32).collect();
    Ok(Some(take(&items, &UInt32Array::from(places), None)?))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{
        Decimal256Array, FixedSizeListArray, Float64Array, Int64Array, LargeListArray, ListArray, ListBuilder,
        StringBuilder, StructArray, UInt32Array,
    };
    use datafusion::arrow::buffer::NullBuffer;
    use datafusion::arrow::datatypes::{Field, Float64Type, Int32Type, Int64Type, i256};

    use super::*;
    use crate::column::interner::Interner;

    /// Codes of a column's values, and the dictionary values.
    fn coded(array: &ArrayRef) -> (Vec<Option<u32>>, ArrayRef) {
        let mut interner = Interner::new(100);
        let codes = interner.codes(array).expect("few values");
        (codes.iter().collect(), interner.array(0, array.data_type()).expect("values"))
    }

    fn there_and_back(array: &ArrayRef) {
        assert!(is_nested(array.data_type()), "{}", array.data_type());
        let (codes, values) = coded(array);
        let codes: UInt32Array = codes.into_iter().collect();
        assert_eq!(&take(&values, &codes, None).expect("values"), array, "{}", array.data_type());
    }

    fn numbers() -> ListArray {
        let lists = [
            None,
            Some(vec![]),
            Some(vec![None]),
            Some(vec![Some(1), None]),
            Some(vec![None, None]),
            Some(vec![Some(1)]),
        ];
        ListArray::from_iter_primitive::<Int64Type, _, _>(lists.iter().chain(&lists).cloned())
    }

    #[test]
    fn null_empty_and_null_inside_are_apart() {
        let (codes, _) = coded(&(Arc::new(numbers()) as ArrayRef));
        assert_eq!(codes[..6], [None, Some(0), Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(codes[6..], codes[..6]);
        let fields = vec![Field::new("a", DataType::Int64, true)];
        let a: ArrayRef = Arc::new(Int64Array::from(vec![None, None, Some(1)]));
        let valid = NullBuffer::from(vec![false, true, true]);
        let structures: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![a], Some(valid)));
        assert_eq!(coded(&structures).0, [None, Some(0), Some(1)]);
    }

    #[test]
    fn floats_are_told_apart_by_their_bits() {
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN, f64::NAN].map(|value| Some(vec![Some(value)]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(floats));
        assert_eq!(coded(&lists).0, [0, 1, 2, 3, 2].map(Some));
        there_and_back(&lists);
    }

    #[test]
    fn every_kind_comes_back() {
        there_and_back(&(Arc::new(numbers()) as ArrayRef));
        there_and_back(&(Arc::new(numbers()) as ArrayRef).slice(3, 5));
        let some = |value| Some(vec![Some(value), None]);
        there_and_back(
            &(Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>([some(1), None, some(2)])) as ArrayRef),
        );
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([some(1), None, some(2)], 2);
        there_and_back(&(Arc::new(fixed) as ArrayRef));
        let mut lists = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
        for inner in 0..4 {
            for _ in 0..inner {
                lists.values().append_option((inner != 2).then(|| vec![Some("a"), None, Some("")]));
            }
            lists.append(inner != 1);
        }
        there_and_back(&(Arc::new(lists.finish()) as ArrayRef));
    }

    #[test]
    fn wide_decimals_come_back_in_their_order() {
        let wide = |value: i128| Some(i256::from_i128(value).wrapping_mul(i256::from_i128(i128::MAX)));
        let values = [wide(7), None, wide(-3), wide(i128::MAX), wide(0), wide(i128::MIN), wide(7)];
        let array: ArrayRef =
            Arc::new(Decimal256Array::from_iter(values).with_precision_and_scale(76, 4).expect("the precision fits"));
        there_and_back(&array);
        let (_, values) = coded(&array);
        assert_eq!(ascending(&values, false).expect("an order").values()[..], [4, 1, 3, 0, 2]);
    }

    #[test]
    fn what_does_not_come_back_has_no_form() {
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let packed = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for refused in [
            DataType::Int64,
            packed.clone(),
            list(packed),
            DataType::Struct(Vec::<Field>::new().into()),
            list(DataType::ListView(Arc::new(Field::new("item", DataType::Int64, true)))),
        ] {
            assert!(!is_nested(&refused), "{refused}");
        }
        assert!(is_nested(&list(list(DataType::Null))));
    }

    #[test]
    fn ranks_have_null_last_or_first_inside() {
        let lists = [Some(vec![Some(2)]), Some(vec![None]), Some(vec![]), Some(vec![Some(1), Some(9)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        assert_eq!(ascending(&lists, false).expect("an order").values()[..], [2, 3, 0, 1]);
        assert_eq!(ascending(&lists, true).expect("an order").values()[..], [2, 1, 3, 0]);
    }

    #[test]
    fn items_lie_behind_each_other() {
        let lists = (Arc::new(numbers()) as ArrayRef).slice(2, 5);
        assert_eq!(counts(&lists).expect("lists"), [1, 2, 2, 1, 0]);
        let found = items(&lists, 6).expect("lists").expect("few items");
        assert_eq!(
            found.as_primitive::<Int64Type>(),
            &Int64Array::from(vec![None, Some(1), None, None, None, Some(1)])
        );
        assert!(items(&lists, 5).expect("lists").is_none());
        assert!(counts(&(Arc::new(Float64Array::from(vec![1.0])) as ArrayRef)).is_err());
    }
}
