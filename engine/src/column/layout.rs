//! Converts Arrow batches to one extent, and an extent's columns to Arrow arrays. Only this module knows both layouts.
//!
//!   batches ──► [ values | pad | validity | pad | values | … ]      one pinned buffer, one copy, one allocation
//!   values    narrowed to the stored width, minus the base; booleans as bits; strings as codes, or offsets and bytes
//!   validity  least significant bit first; absent when nothing is NULL
//!
//! Checked   every valid value is checked against the range that the plan assumed; a value outside it is a
//!           [`Violation`].
//! Padding   regions begin at multiples of 256 bytes and are zero-padded.

use std::ops::Range as ByteRange;
use std::sync::Arc;

use arrow::util::bit_mask::set_bits;
use datafusion::arrow::array::types::*;
use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, UInt32Array, as_boolean_array, new_null_array,
};
use datafusion::arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use millpond_kernels::codegen::ir::{ColumnSpec, Physical, Range};

use crate::column::{
    day_time, day_time_of, half, is_coded, month_day_nano, month_day_nano_of, packed, text, value_type,
};
use crate::error::EngineError;

/// Assumption of the plan that a batch violates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A value of column `0` is outside its range, or is NULL although the column is not nullable.
    Range(usize),
}

/// Byte ranges of an uploaded column within its extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    pub values: ByteRange<usize>,
    pub validity: Option<ByteRange<usize>>,
}

/// Byte ranges of all columns of an extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentLayout {
    pub bytes: usize,
    pub rows: usize,
    /// In the order of the source's columns; `None` for columns that nothing reads.
    pub columns: Vec<Option<Region>>,
}

const ALIGNMENT: usize = 256;

/// Properties of a column that determine its size.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub physical: Physical,
    /// Bytes of texts, including their offsets.
    pub text_bytes: usize,
    pub has_nulls: bool,
}

impl ExtentLayout {
    /// Lays out the columns `used` of `batches`, stored as `specs` says.
    pub fn new(batches: &[RecordBatch], specs: &[ColumnSpec], used: &[bool]) -> Self {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let shape = |(index, spec): (usize, &ColumnSpec)| {
            used[index].then(|| {
                let arrays = || batches.iter().map(|batch| batch.column(index));
                let text_bytes = if spec.physical == Physical::Text { text::stored_bytes(arrays()) } else { 0 };
                let has_nulls = arrays().any(|array| array.logical_null_count() > 0);
                Shape { physical: spec.physical, text_bytes, has_nulls }
            })
        };
        let shapes: Vec<Option<Shape>> = specs.iter().enumerate().map(shape).collect();
        Self::of(rows, &shapes)
    }

    /// Lays out columns of these shapes.
    pub fn of(rows: usize, shapes: &[Option<Shape>]) -> Self {
        let mut end = 0_usize;
        let mut place = |bytes: usize| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            start..end
        };
        let bitmap = rows.div_ceil(32) * 4;
        let mut region = |shape: &Shape| {
            let values = place(match shape.physical {
                Physical::Bit => bitmap,
                Physical::Text => shape.text_bytes,
                physical => physical.width() as usize * rows,
            });
            Region { values, validity: shape.has_nulls.then(|| place(bitmap)) }
        };
        let columns = shapes.iter().map(|shape| shape.as_ref().map(&mut region)).collect();
        Self { bytes: end.next_multiple_of(ALIGNMENT), rows, columns }
    }

    /// A region including its padding. It is written as a whole, with zeros as padding, because kernels load it in wide
    /// words.
    pub fn padded(range: &ByteRange<usize>) -> ByteRange<usize> {
        range.start..range.end.next_multiple_of(ALIGNMENT)
    }

    /// Writes column `index` of `batches` into `out`, the buffer of the whole extent. `codes` converts a string
    /// column's arrays to codes.
    pub fn write(
        &self,
        out: &mut [u8],
        index: usize,
        spec: &ColumnSpec,
        base: i64,
        batches: &[RecordBatch],
        mut codes: impl FnMut(&ArrayRef) -> Result<UInt32Array>,
    ) -> Result<std::result::Result<(), Violation>> {
        // Also checked for a column that no kernel reads: the plan may count its values by counting rows.
        if !spec.ty.nullable && batches.iter().any(|batch| batch.column(index).logical_null_count() > 0) {
            return Ok(Err(Violation::Range(index)));
        }
        let Some(region) = &self.columns[index] else { return Ok(Ok(())) };
        if let Some(validity) = &region.validity {
            let bits = &mut out[Self::padded(validity)];
            bits.fill(0);
            let mut row = 0;
            for batch in batches {
                let array = batch.column(index);
                match array.logical_nulls() {
                    Some(nulls) => append_bits(bits, row, nulls.inner()),
                    None => append_bits(bits, row, &BooleanBuffer::new_set(array.len())),
                }
                row += array.len();
            }
        }
        let values = &mut out[Self::padded(&region.values)];
        let used = region.values.len();
        values[used..].fill(0);
        if spec.physical == Physical::Bit {
            values.fill(0);
            let mut row = 0;
            for batch in batches {
                let array = stored(batch.column(index))?;
                append_bits(values, row, as_boolean_array(&array).values());
                row += array.len();
            }
            return Ok(Ok(()));
        }
        if spec.physical == Physical::Text {
            text::write(&mut values[..used], batches.iter().map(|batch| batch.column(index)))?;
            return Ok(Ok(()));
        }
        let width = spec.physical.width() as usize;
        let mut rest = &mut values[..used];
        for batch in batches {
            let array = &stored(batch.column(index))?;
            let (mine, others) = rest.split_at_mut(array.len() * width);
            rest = others;
            let coded = if is_coded(array.data_type()) { Some(Arc::new(codes(array)?) as ArrayRef) } else { None };
            let written = write_values(mine, coded.as_ref().unwrap_or(array), spec, base)?;
            if !written {
                return Ok(Err(Violation::Range(index)));
            }
        }
        Ok(Ok(()))
    }
}

/// Converts an array to its stored form: dictionaries and runs of numbers to plain numbers, intervals to integers,
/// 16-bit floats to 32-bit floats, NULL arrays to booleans.
pub(super) fn stored(array: &ArrayRef) -> Result<ArrayRef> {
    let data_type = array.data_type();
    let values = value_type(data_type);
    if is_coded(data_type) {
        return Ok(Arc::clone(array));
    }
    if values != data_type {
        return stored(&cast(array, values)?);
    }
    Ok(match data_type {
        DataType::Null => Arc::new(BooleanArray::new_null(array.len())),
        DataType::Interval(IntervalUnit::DayTime) => {
            Arc::new(primitive::<IntervalDayTimeType>(array).unary::<_, Int64Type>(day_time))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            Arc::new(primitive::<IntervalMonthDayNanoType>(array).unary::<_, Decimal128Type>(month_day_nano))
        }
        DataType::Float16 => Arc::new(primitive::<Float16Type>(array).unary::<_, Float32Type>(half::widened)),
        _ => Arc::clone(array),
    })
}

/// Sets the bits of `bits` in `out` from position `at` on; the bits of `out` must be zero.
fn append_bits(out: &mut [u8], at: usize, bits: &BooleanBuffer) {
    set_bits(out, bits.values(), at, bits.offset(), bits.len());
}

/// Native value type with the arithmetic for narrowing.
pub(super) trait Narrow: Copy + PartialOrd {
    const LEAST: Self;
    const MOST: Self;
    /// `self - base`, as 64 bits.
    fn minus(self, base: i64) -> u64;
    fn wide(self) -> i128;
}

macro_rules! narrow {
    ($($ty:ty as $via:ty),*) => {$(
        impl Narrow for $ty {
            const LEAST: Self = <$ty>::MIN;
            const MOST: Self = <$ty>::MAX;
            fn minus(self, base: i64) -> u64 {
                (self as $via).wrapping_sub(base as $via) as u64
            }
            fn wide(self) -> i128 {
                self as i128
            }
        }
    )*};
}
narrow!(i8 as i64, i16 as i64, i32 as i64, i64 as i64, u8 as u64, u16 as u64, u32 as u64, u64 as u64, i128 as i128);

/// A match over Arrow types: types stored as integers call `$integers!` with their type, the others match `$rest`.
macro_rules! by_type {
    ($data_type:expr, $integers:ident, { $($rest:tt)* }) => {
        match $data_type {
            DataType::Int8 => $integers!(Int8Type),
            DataType::Int16 => $integers!(Int16Type),
            DataType::Int32 => $integers!(Int32Type),
            DataType::Int64 => $integers!(Int64Type),
            DataType::UInt8 => $integers!(UInt8Type),
            DataType::UInt16 => $integers!(UInt16Type),
            DataType::UInt32 => $integers!(UInt32Type),
            DataType::UInt64 => $integers!(UInt64Type),
            DataType::Date32 => $integers!(Date32Type),
            DataType::Date64 => $integers!(Date64Type),
            DataType::Time32(TimeUnit::Second) => $integers!(Time32SecondType),
            DataType::Time32(_) => $integers!(Time32MillisecondType),
            DataType::Time64(TimeUnit::Microsecond) => $integers!(Time64MicrosecondType),
            DataType::Time64(_) => $integers!(Time64NanosecondType),
            DataType::Timestamp(TimeUnit::Second, _) => $integers!(TimestampSecondType),
            DataType::Timestamp(TimeUnit::Millisecond, _) => $integers!(TimestampMillisecondType),
            DataType::Timestamp(TimeUnit::Microsecond, _) => $integers!(TimestampMicrosecondType),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => $integers!(TimestampNanosecondType),
            DataType::Interval(IntervalUnit::YearMonth) => $integers!(IntervalYearMonthType),
            DataType::Duration(TimeUnit::Second) => $integers!(DurationSecondType),
            DataType::Duration(TimeUnit::Millisecond) => $integers!(DurationMillisecondType),
            DataType::Duration(TimeUnit::Microsecond) => $integers!(DurationMicrosecondType),
            DataType::Duration(TimeUnit::Nanosecond) => $integers!(DurationNanosecondType),
            DataType::Decimal32(..) => $integers!(Decimal32Type),
            DataType::Decimal64(..) => $integers!(Decimal64Type),
            DataType::Decimal128(..) => $integers!(Decimal128Type),
            $($rest)*
        }
    };
}
pub(super) use by_type;

/// Writes one array; returns false if a valid value is outside the column's range.
fn write_values(out: &mut [u8], array: &ArrayRef, spec: &ColumnSpec, base: i64) -> Result<bool> {
    macro_rules! integers {
        ($ty:ty) => {
            write_integers::<$ty>(out, array, spec, base)
        };
    }
    Ok(by_type!(array.data_type(), integers, {
        DataType::Float32 => copy_values::<Float32Type>(out, array),
        DataType::Float64 => copy_values::<Float64Type>(out, array),
        other => return Err(EngineError::internal(format!("{other} cannot be uploaded")).into()),
    }))
}

pub(super) fn primitive<T: ArrowPrimitiveType>(array: &ArrayRef) -> &PrimitiveArray<T> {
    array.as_any().downcast_ref::<PrimitiveArray<T>>().expect("the data type was matched by the caller")
}

fn copy_values<T: ArrowPrimitiveType>(out: &mut [u8], array: &ArrayRef) -> bool {
    out.copy_from_slice(primitive::<T>(array).values().inner().as_slice());
    true
}

fn write_integers<T: ArrowPrimitiveType>(out: &mut [u8], array: &ArrayRef, spec: &ColumnSpec, base: i64) -> bool
where
    T::Native: Narrow,
{
    let array = primitive::<T>(array);
    let values: &[T::Native] = array.values();
    if let Some(range) = spec.ty.range {
        let (mut least, mut most) = (T::Native::MOST, T::Native::LEAST);
        let mut see = |v: T::Native| {
            least = if v < least { v } else { least };
            most = if v > most { v } else { most };
        };
        match array.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => values.iter().for_each(|v| see(*v)),
            Some(nulls) => nulls.valid_indices().for_each(|row| see(values[row])),
        }
        let seen = least <= most;
        if seen && !range.contains(Range { low: least.wide(), high: most.wide() }) {
            return false;
        }
    }
    // Values of NULL rows are arbitrary; they are truncated to the stored width.
    match spec.physical.width() {
        width if width as usize == size_of::<T::Native>() && base == 0 => {
            out.copy_from_slice(array.values().inner().as_slice());
        }
        1 => out.iter_mut().zip(values).for_each(|(o, v)| *o = v.minus(base) as u8),
        2 => chunks::<2>(out).zip(values).for_each(|(o, v)| *o = (v.minus(base) as u16).to_le_bytes()),
        4 => chunks::<4>(out).zip(values).for_each(|(o, v)| *o = (v.minus(base) as u32).to_le_bytes()),
        8 => chunks::<8>(out).zip(values).for_each(|(o, v)| *o = v.minus(base).to_le_bytes()),
        _ => chunks::<16>(out).zip(values).for_each(|(o, v)| *o = v.wide().to_le_bytes()),
    }
    true
}

/// Writes 32-bit codes in the width of their column; returns false if the code of a valid row is outside its range. In
/// `validity`, bit `first` belongs to the first code.
pub(crate) fn write_codes(
    out: &mut [u8],
    codes: &[u8],
    validity: Option<&[u8]>,
    first: usize,
    (physical, base, range): (Physical, i64, Range),
) -> bool {
    let words = || codes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let is_valid = |row: usize| validity.is_none_or(|bits| bits[(first + row) / 8] >> ((first + row) % 8) & 1 == 1);
    let most = match validity {
        None => words().max(),
        Some(_) => words().enumerate().filter(|(row, _)| is_valid(*row)).map(|(_, code)| code).max(),
    };
    if most.is_some_and(|most| i128::from(most) > range.high) {
        return false;
    }
    let less = |code: u32| i64::from(code) - base;
    match physical.width() {
        1 => out.iter_mut().zip(words()).for_each(|(o, code)| *o = less(code) as u8),
        2 => chunks::<2>(out).zip(words()).for_each(|(o, code)| *o = (less(code) as u16).to_le_bytes()),
        _ if base == 0 => out.copy_from_slice(codes),
        _ => chunks::<4>(out).zip(words()).for_each(|(o, code)| *o = (less(code) as u32).to_le_bytes()),
    }
    true
}

fn chunks<const N: usize>(out: &mut [u8]) -> impl Iterator<Item = &mut [u8; N]> {
    out.as_chunks_mut::<N>().0.iter_mut()
}

/// Creates an array of `data_type` from `rows` stored values; for codes, `dictionary` holds their values.
pub fn read_array(
    data_type: &DataType,
    physical: Physical,
    rows: usize,
    bytes: &[u8],
    validity: Option<&[u8]>,
    dictionary: Option<&ArrayRef>,
) -> Result<ArrayRef> {
    let nulls = validity.map(|bits| NullBuffer::new(BooleanBuffer::new(Buffer::from(bits), 0, rows)));
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
    if let Some(values) = dictionary {
        let codes = words(physical, bytes, rows).map(|code| code as u32);
        // The code of a NULL row is arbitrary.
        let codes: Vec<u32> = match &nulls {
            Some(nulls) => codes.enumerate().map(|(row, code)| if nulls.is_valid(row) { code } else { 0 }).collect(),
            None => codes.collect(),
        };
        if values.is_empty() {
            return Ok(new_null_array(data_type, rows));
        }
        let taken = take(values, &UInt32Array::new(codes.into(), nulls), None)?;
        return packed(taken, data_type);
    }
    let plain = value_type(data_type);
    if plain != data_type {
        let array = read_array(plain, physical, rows, bytes, validity, None)?;
        return Ok(cast(&array, data_type)?);
    }
    // A column of type NULL is stored as a boolean column without valid rows.
    if *data_type == DataType::Null {
        return Ok(new_null_array(data_type, rows));
    }
    if physical == Physical::Bit {
        let bits = BooleanBuffer::new(Buffer::from(bytes), 0, rows);
        return Ok(Arc::new(BooleanArray::new(bits, nulls)));
    }
    macro_rules! integers {
        ($ty:ty) => {{
            type Native = <$ty as ArrowPrimitiveType>::Native;
            let values: Vec<Native> = words(physical, bytes, rows).map(|v| v as Native).collect();
            Arc::new(PrimitiveArray::<$ty>::new(values.into(), nulls).with_data_type(data_type.clone())) as ArrayRef
        }};
    }
    macro_rules! floats {
        ($ty:ty, $n:literal) => {{
            type Native = <$ty as ArrowPrimitiveType>::Native;
            let values = bytes.as_chunks::<$n>().0.iter().take(rows).map(|b| Native::from_le_bytes(*b));
            Arc::new(PrimitiveArray::<$ty>::new(values.collect::<Vec<_>>().into(), nulls)) as ArrayRef
        }};
    }
    Ok(by_type!(data_type, integers, {
        DataType::Interval(IntervalUnit::DayTime) => {
            let values: Vec<_> = words(physical, bytes, rows).map(|v| day_time_of(v as i64)).collect();
            Arc::new(PrimitiveArray::<IntervalDayTimeType>::new(values.into(), nulls))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let values: Vec<_> = words(physical, bytes, rows).map(month_day_nano_of).collect();
            Arc::new(PrimitiveArray::<IntervalMonthDayNanoType>::new(values.into(), nulls))
        }
        DataType::Float16 => {
            let values = bytes.as_chunks::<4>().0.iter().take(rows).map(|b| half::narrowed(f32::from_le_bytes(*b)));
            Arc::new(PrimitiveArray::<Float16Type>::new(values.collect::<Vec<_>>().into(), nulls)) as ArrayRef
        }
        DataType::Float32 => floats!(Float32Type, 4),
        DataType::Float64 => floats!(Float64Type, 8),
        other => {
            return Err(DataFusionError::from(EngineError::internal(format!("{other} cannot be downloaded"))));
        }
    }))
}

/// Adds the base back to stored integers; returns 128 bits per integer.
pub(crate) fn with_base(physical: Physical, base: i64, bytes: &[u8], rows: usize) -> Vec<u8> {
    words(physical, bytes, rows).flat_map(|word| (word + i128::from(base)).to_le_bytes()).collect()
}

/// Stored integers, widened to 128 bits.
fn words(physical: Physical, bytes: &[u8], rows: usize) -> Box<dyn Iterator<Item = i128> + '_> {
    macro_rules! stored {
        ($ty:ty, $n:literal) => {
            Box::new(bytes.as_chunks::<$n>().0.iter().take(rows).map(|b| <$ty>::from_le_bytes(*b) as i128))
        };
    }
    match physical {
        Physical::U8 => stored!(u8, 1),
        Physical::U16 => stored!(u16, 2),
        Physical::U32 => stored!(u32, 4),
        Physical::U64 => stored!(u64, 8),
        Physical::I8 => stored!(i8, 1),
        Physical::I16 => stored!(i16, 2),
        Physical::I32 => stored!(i32, 4),
        Physical::I64 => stored!(i64, 8),
        Physical::I128 => stored!(i128, 16),
        Physical::Bit | Physical::F32 | Physical::F64 | Physical::Text | Physical::LongText | Physical::View => {
            Box::new(std::iter::empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Decimal128Array, DictionaryArray, Int32Array, StringArray};
    use datafusion::arrow::datatypes::{IntervalDayTime, IntervalMonthDayNano};
    use millpond_kernels::codegen::ir::{Repr, Ty};

    use super::*;

    fn extent(arrays: Vec<ArrayRef>, spec: ColumnSpec, base: i64) -> (Vec<u8>, ExtentLayout, Option<Violation>) {
        let batches: Vec<RecordBatch> =
            arrays.into_iter().map(|array| RecordBatch::try_from_iter([("x", array)]).unwrap()).collect();
        let layout = ExtentLayout::new(&batches, &[spec], &[true]);
        let mut bytes = vec![0xaa; layout.bytes];
        let no_strings = |_: &ArrayRef| unreachable!("numbers only");
        let written = layout.write(&mut bytes, 0, &spec, base, &batches, no_strings).unwrap();
        (bytes, layout, written.err())
    }

    #[test]
    fn narrowed_values_come_back() {
        let ty = Ty::new(Repr::I32).nullable(true).within(1000, 1200);
        let spec = ColumnSpec { physical: Physical::U8, has_base: true, ty };
        let one: ArrayRef = Arc::new(Int32Array::from(vec![Some(1000), None, Some(1200)]));
        let two: ArrayRef = Arc::new(Int32Array::from(vec![Some(1007)]));
        let (bytes, layout, violation) = extent(vec![one, two], spec, 1000);
        assert_eq!(violation, None);
        let region = layout.columns[0].clone().unwrap();
        let stored = &bytes[region.values];
        assert_eq!((stored[0], stored[2], stored[3]), (0, 200, 7));
        assert_eq!(bytes[region.validity.unwrap()][0], 0b1101);
    }

    #[test]
    fn a_value_outside_the_range_is_a_violation_and_one_below_null_is_not() {
        let ty = Ty::new(Repr::I32).nullable(true).within(0, 9);
        let spec = ColumnSpec { physical: Physical::U8, has_base: false, ty };
        let outside: ArrayRef = Arc::new(Int32Array::from(vec![3, 10]));
        assert_eq!(extent(vec![outside], spec, 0).2, Some(Violation::Range(0)));
        let nulls = NullBuffer::from(vec![true, false]);
        let below: ArrayRef = Arc::new(Int32Array::new(vec![3, 1000].into(), Some(nulls)));
        assert_eq!(extent(vec![below], spec, 0).2, None);
    }

    #[test]
    fn an_unexpected_null_is_a_violation() {
        let spec = ColumnSpec { physical: Physical::I32, has_base: false, ty: Ty::new(Repr::I32) };
        let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        assert_eq!(extent(vec![array], spec, 0).2, Some(Violation::Range(0)));
    }

    #[test]
    fn a_null_among_the_values_of_a_dictionary_is_one() {
        let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let array = DictionaryArray::<Int32Type>::try_new(Int32Array::from(vec![0, 1, 0]), values).unwrap();
        let batch = RecordBatch::try_from_iter([("x", Arc::new(array) as ArrayRef)]).unwrap();
        let spec = ColumnSpec { physical: Physical::U32, has_base: false, ty: Ty::new(Repr::U32).nullable(true) };
        let layout = ExtentLayout::new(std::slice::from_ref(&batch), &[spec], &[true]);
        let mut bytes = vec![0xaa; layout.bytes];
        let codes = |_: &ArrayRef| Ok(UInt32Array::from(vec![Some(0), None, Some(0)]));
        layout.write(&mut bytes, 0, &spec, 0, &[batch], codes).unwrap().unwrap();
        let validity = layout.columns[0].clone().unwrap().validity.expect("a row is NULL");
        assert_eq!(bytes[validity][0], 0b101);
    }

    #[test]
    fn intervals_come_back_and_keep_their_order() {
        const EDGES: [i32; 5] = [i32::MIN, -1, 0, 1, i32::MAX];
        let of_day = |days: i32| EDGES.map(|milliseconds| IntervalDayTime::new(days, milliseconds));
        let times: Vec<IntervalDayTime> = EDGES.map(of_day).concat();
        let integers: Vec<i64> = times.iter().map(|time| day_time(*time)).collect();
        assert!(integers.is_sorted() && times.is_sorted());
        assert!(times.iter().zip(&integers).all(|(time, integer)| day_time_of(*integer) == *time));
        let mut all = Vec::new();
        for months in EDGES {
            for days in EDGES {
                all.extend([i64::MIN, -1, 0, 7, i64::MAX].map(|nanos| IntervalMonthDayNano::new(months, days, nanos)));
            }
        }
        let integers: Vec<i128> = all.iter().map(|interval| month_day_nano(*interval)).collect();
        assert!(integers.is_sorted() && all.is_sorted());
        assert!(all.iter().zip(&integers).all(|(interval, integer)| month_day_nano_of(*integer) == *interval));
    }

    #[test]
    fn sliced_bits_move_to_the_front() {
        let spec = ColumnSpec { physical: Physical::Bit, has_base: false, ty: Ty::new(Repr::Bool).nullable(true) };
        let bits: Vec<Option<bool>> = (0..100).map(|i| (i % 7 != 0).then_some(i % 3 == 0)).collect();
        let array = BooleanArray::from(bits.clone());
        let parts: Vec<ArrayRef> = vec![Arc::new(array.slice(3, 30)), Arc::new(array.slice(33, 41))];
        let (bytes, layout, _) = extent(parts, spec, 0);
        let region = layout.columns[0].clone().unwrap();
        let validity = &bytes[region.validity.unwrap()];
        let back =
            read_array(&DataType::Boolean, Physical::Bit, 71, &bytes[region.values], Some(validity), None).unwrap();
        assert_eq!(as_boolean_array(&back), &BooleanArray::from(bits[3..74].to_vec()));
    }

    #[test]
    fn decimals_come_back_from_narrow_storage() {
        let stored: Vec<u8> = [-5_i32, 70_000].iter().flat_map(|v| v.to_le_bytes()).collect();
        let array = read_array(&DataType::Decimal128(12, 2), Physical::I32, 2, &stored, None, None).unwrap();
        let expected = Decimal128Array::from(vec![-5, 70_000]).with_precision_and_scale(12, 2).unwrap();
        assert_eq!(array.as_ref(), &expected as &dyn Array);
    }

    #[test]
    fn codes_become_strings_and_null_rows_hold_no_code() {
        let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "é"]));
        let codes: Vec<u8> = [1_u32, 999, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let array =
            read_array(&DataType::Utf8, Physical::U32, 3, &codes, Some(&[0b101, 0, 0, 0]), Some(&values)).unwrap();
        assert_eq!(array.as_ref(), &StringArray::from(vec![Some("é"), None, Some("a")]) as &dyn Array);
    }
}
