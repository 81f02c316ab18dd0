//! Static properties of a column, known before any row is read: SQL type, device type, proven range, dictionary.
//!
//!   DECIMAL(15, 2), values 0.00 … 0.10   ──►  I128 in 0..=10, stored as u8 from 0
//!   VARCHAR                              ──►  U32 codes into a dictionary; with too many distinct values, texts
//!   INT[], STRUCT(…), MAP(…)             ──►  U32 codes into a dictionary
//!
//! The SQL type determines semantics; the range determines width. Ranges come from statistics and are checked when rows
//! are uploaded, so a wrong range costs a second run but never a wrong result.

pub mod dictionary;
pub mod facts;
pub(crate) mod half;
pub(crate) mod interner;
pub mod layout;
pub mod nested;
pub mod text;

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, IntervalDayTime, IntervalMonthDayNano, IntervalUnit, SchemaRef, TimeUnit,
};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::error::Result;
use millpond_kernels::codegen::ir::{Physical, Range, Repr, Ty};

use crate::error::EngineError;
use crate::error::reason::Reason;

pub use crate::column::nested::{is_nested, is_wide};

/// ID of a dictionary of a program: the values of a string column, or the result of an expression over another
/// dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub usize);

/// Flag bit: IDs with this bit name lists.
const LISTS: usize = 1 << (usize::BITS - 1);

impl DictionaryId {
    /// ID of the lists that an aggregate function of a program builds. `function` is the function's address, which is
    /// unique while the program exists.
    pub fn of_lists(function: usize) -> Self {
        Self(LISTS | function)
    }

    /// True if the ID names lists.
    pub fn is_of_lists(self) -> bool {
        self.0 & LISTS != 0
    }
}

/// Device representation of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Numbers, dates, times, booleans, decimals as scaled integers; also texts, which are strings without a
    /// dictionary.
    Plain(Ty),
    /// Dictionary codes.
    Codes(Ty, DictionaryId),
    /// Lists: the first row of a list in the column of its items (high half), and its number of items (low half). The
    /// device only copies them to the host, which assembles the lists.
    Lists(Ty, DictionaryId),
    /// No device form.
    Unsupported(Reason),
}

impl Form {
    /// This form, with NULLs.
    pub fn nullable(self) -> Self {
        match self {
            Self::Plain(ty) => Self::Plain(ty.nullable(true)),
            Self::Codes(ty, id) => Self::Codes(ty.nullable(true), id),
            Self::Lists(ty, id) => Self::Lists(ty.nullable(true), id),
            other => other,
        }
    }

    /// ID of the dictionary or the lists that the values refer to.
    pub fn dictionary(&self) -> Option<DictionaryId> {
        match self {
            Self::Codes(_, id) | Self::Lists(_, id) => Some(*id),
            Self::Plain(_) | Self::Unsupported(_) => None,
        }
    }

    /// Common form of two columns of one type.
    pub fn or(self, other: &Self) -> Self {
        let both = |a: Ty, b: Ty| {
            let range = a.bounds().zip(b.bounds()).map(|(a, b)| a.union(b));
            let ty = Ty::new(a.repr).nullable(a.nullable || b.nullable);
            range.map_or(ty, |range| ty.within(range.low, range.high))
        };
        match (self, other) {
            (Self::Plain(a), Self::Plain(b)) if a.repr == b.repr => Self::Plain(both(a, *b)),
            (Self::Codes(a, id), Self::Codes(b, _)) => Self::Codes(both(a, *b), id),
            (Self::Lists(a, id), Self::Lists(b, other)) if id == *other => Self::Lists(both(a, *b), id),
            (Self::Unsupported(reason), _) => Self::Unsupported(reason),
            (_, Self::Unsupported(reason)) => Self::Unsupported(reason.clone()),
            (Self::Lists(..), _) => Self::Unsupported(Reason::NodeUnsupported { node: "a union of lists".into() }),
            // Only one of the two string columns has a dictionary.
            _ => Self::Unsupported(Reason::NodeUnsupported { node: "a union of strings in two forms".into() }),
        }
    }
}

/// A column of a device node.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnInfo {
    pub name: String,
    pub data_type: DataType,
    pub form: Form,
    /// For texts of a stored column: their offsets are 64-bit.
    pub long: bool,
}

impl ColumnInfo {
    /// A column of a device node.
    pub fn new(name: String, data_type: DataType, form: Form) -> Self {
        Self { name, data_type, form, long: false }
    }

    /// Device type of the column.
    pub fn ty(&self) -> Result<Ty, Reason> {
        match &self.form {
            Form::Plain(ty) | Form::Codes(ty, _) | Form::Lists(ty, _) => Ok(*ty),
            Form::Unsupported(reason) => Err(reason.clone()),
        }
    }
}

impl ColumnInfo {
    /// Drops the dictionary of a string column; other columns are unchanged.
    pub fn as_text(mut self) -> Self {
        if let Form::Codes(ty, _) = self.form
            && !is_nested(&self.data_type)
        {
            self.form = Form::Plain(Ty::new(Repr::Text).nullable(ty.nullable));
        }
        self
    }

    /// True for a string column without a dictionary.
    pub fn is_text(&self) -> bool {
        matches!(self.form, Form::Plain(ty) if ty.repr == Repr::Text)
    }
}

/// Type of a column's values inside dictionaries and runs.
pub fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::RunEndEncoded(_, values) => value_type(values.data_type()),
        other => other,
    }
}

/// Reason why packed floats cannot be keys on the device.
pub(crate) const TWO_ZEROS: &str =
    "DataFusion takes 0.0 and -0.0 in a dictionary or in runs for two values, where it takes plain ones for one";

/// True for floats in dictionaries or runs: DataFusion treats 0.0 and -0.0 in them as two keys.
pub(crate) fn has_two_zeros(data_type: &DataType) -> bool {
    let values = value_type(data_type);
    values != data_type && values.is_floating()
}

/// True for nested packing: runs or dictionaries of runs or dictionaries.
fn is_packed_twice(data_type: &DataType) -> bool {
    let values = match data_type {
        DataType::Dictionary(_, values) => values,
        DataType::RunEndEncoded(_, values) => values.data_type(),
        _ => return false,
    };
    matches!(values, DataType::Dictionary(..) | DataType::RunEndEncoded(..))
}

/// Packs values into an array of `data_type`. Arrow packs only plain values into dictionaries, so nested dictionaries
/// and runs are packed from the inside out.
///
/// # Errors
/// Arrow's, if the key type of a dictionary is too small.
pub fn packed(values: ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if values.data_type() == data_type {
        return Ok(values);
    }
    let DataType::Dictionary(keys, inner) = data_type else { return Ok(cast(&values, data_type)?) };
    if !is_packed_twice(data_type) {
        return Ok(cast(&values, data_type)?);
    }
    let plain = DataType::Dictionary(keys.clone(), Box::new(value_type(data_type).clone()));
    let outer = cast(&values, &plain)?;
    let outer = outer.as_any_dictionary_opt().ok_or_else(|| EngineError::internal("a dictionary was asked for"))?;
    Ok(outer.with_values(packed(Arc::clone(outer.values()), inner)?))
}

/// True for types that the device represents as dictionary codes or as texts.
pub fn is_string(data_type: &DataType) -> bool {
    if matches!(data_type, DataType::RunEndEncoded(..)) && is_packed_twice(data_type) {
        return false;
    }
    let bytes = matches!(
        value_type(data_type),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    );
    bytes || is_characters(data_type)
}

/// True for types that the device represents as dictionary codes: strings, lists, structures, maps, 256-bit decimals.
pub fn is_coded(data_type: &DataType) -> bool {
    is_string(data_type) || is_nested(data_type)
}

/// True for character strings, false for byte strings.
pub fn is_characters(data_type: &DataType) -> bool {
    matches!(value_type(data_type), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Device type of a plain SQL type, without a range; `None` for strings and for types without a device form. Intervals
/// become integers of equal order, 16-bit floats 32-bit floats, and the NULL type a boolean that is never valid.
pub fn plain_repr(data_type: &DataType) -> Option<Repr> {
    use DataType::{Boolean, Dictionary, Duration, Interval, Null, RunEndEncoded};
    let refused = match data_type {
        // Arrow cannot pack other types again after the download.
        Dictionary(_, values) => {
            matches!(**values, Boolean | Duration(_) | Interval(_) | Null) || is_packed_twice(data_type)
        }
        RunEndEncoded(..) => is_packed_twice(data_type),
        _ => false,
    };
    if refused {
        return None;
    }
    match value_type(data_type) {
        DataType::Null => Some(Repr::Bool),
        DataType::Interval(IntervalUnit::YearMonth) => Some(Repr::I32),
        DataType::Interval(IntervalUnit::DayTime) => Some(Repr::I64),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(Repr::I128),
        DataType::Float16 => Some(Repr::F32),
        other => number_repr(other),
    }
}

/// Like `plain_repr`, only for types whose device values are Arrow's native numbers.
pub fn number_repr(data_type: &DataType) -> Option<Repr> {
    Some(match data_type {
        DataType::Boolean => Repr::Bool,
        DataType::Int8 => Repr::I8,
        DataType::Int16 => Repr::I16,
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Repr::I32,
        DataType::Int64 | DataType::Date64 | DataType::Time64(_) => Repr::I64,
        DataType::Timestamp(..) | DataType::Duration(_) => Repr::I64,
        DataType::UInt8 => Repr::U8,
        DataType::UInt16 => Repr::U16,
        DataType::UInt32 => Repr::U32,
        DataType::UInt64 => Repr::U64,
        DataType::Float32 => Repr::F32,
        DataType::Float64 => Repr::F64,
        DataType::Decimal32(..) => Repr::I32,
        DataType::Decimal64(..) => Repr::I64,
        DataType::Decimal128(..) => Repr::I128,
        _ => return None,
    })
}

/// Reason for a type that has no device form.
pub fn type_unsupported(column: &str, data_type: &DataType) -> Reason {
    Reason::TypeUnsupported { column: column.to_string(), data_type: data_type.to_string() }
}

/// Columns of a CPU plan that is uploaded: types from the schema, ranges and absence of NULLs from `statistics`.
/// `dictionary` assigns an ID to each coded column, given the type of its values.
pub fn uploaded_columns(
    schema: &SchemaRef,
    statistics: Option<&Statistics>,
    mut dictionary: impl FnMut(usize, DataType) -> DictionaryId,
) -> Vec<ColumnInfo> {
    let column = |(index, field): (usize, &datafusion::arrow::datatypes::FieldRef)| {
        let statistics = statistics.and_then(|s| s.column_statistics.get(index));
        let no_nulls = statistics.is_some_and(|s| matches!(s.null_count, Precision::Exact(0)));
        let nullable = field.is_nullable() && !no_nulls;
        let form = if is_coded(field.data_type()) {
            // Runs are unpacked.
            let values = match field.data_type() {
                DataType::RunEndEncoded(..) => value_type(field.data_type()).clone(),
                other => other.clone(),
            };
            Form::Codes(Ty::new(Repr::U32).nullable(nullable), dictionary(index, values))
        } else if let Some(repr) = plain_repr(field.data_type()) {
            let mut ty = Ty::new(repr).nullable(nullable);
            if let Some(Range { low, high }) = uploaded_range(field.data_type(), statistics) {
                ty = ty.within(low, high);
            }
            Form::Plain(ty)
        } else {
            Form::Unsupported(type_unsupported(field.name(), field.data_type()))
        };
        ColumnInfo::new(field.name().clone(), field.data_type().clone(), form)
    };
    schema.fields().iter().enumerate().map(column).collect()
}

/// Bounds of a column's values: those of the statistics, limited by a decimal's precision.
fn uploaded_range(data_type: &DataType, statistics: Option<&ColumnStatistics>) -> Option<Range> {
    let precision = match data_type {
        DataType::Decimal32(p, _) | DataType::Decimal64(p, _) | DataType::Decimal128(p, _) => {
            10_i128.checked_pow(u32::from(*p)).map(|limit| Range::new(-(limit - 1), limit - 1))
        }
        _ => None,
    };
    let bound = |value: &Precision<ScalarValue>| match value {
        Precision::Exact(v) | Precision::Inexact(v) if v.data_type() == *data_type => {
            number_repr(data_type).and(scalar_integer(v))
        }
        _ => None,
    };
    let seen = statistics
        .and_then(|s| Some((bound(&s.min_value)?, bound(&s.max_value)?)))
        .filter(|(low, high)| low <= high)
        .map(|(low, high)| Range::new(low, high));
    match (precision, seen) {
        (Some(a), Some(b)) => a.intersect(b).or(Some(a)),
        (a, b) => b.or(a),
    }
}

/// Integer that represents a scalar on the device: scaled decimal, days, ticks. `None` for NULL and other types.
pub fn scalar_integer(value: &ScalarValue) -> Option<i128> {
    Some(match value {
        ScalarValue::Int8(v) => i128::from((*v)?),
        ScalarValue::Int16(v) => i128::from((*v)?),
        ScalarValue::Int32(v) | ScalarValue::Date32(v) => i128::from((*v)?),
        ScalarValue::Time32Second(v) | ScalarValue::Time32Millisecond(v) => i128::from((*v)?),
        ScalarValue::Int64(v) | ScalarValue::Date64(v) => i128::from((*v)?),
        ScalarValue::Time64Microsecond(v) | ScalarValue::Time64Nanosecond(v) => i128::from((*v)?),
        ScalarValue::TimestampSecond(v, _)
        | ScalarValue::TimestampMillisecond(v, _)
        | ScalarValue::TimestampMicrosecond(v, _)
        | ScalarValue::TimestampNanosecond(v, _) => i128::from((*v)?),
        ScalarValue::DurationSecond(v)
        | ScalarValue::DurationMillisecond(v)
        | ScalarValue::DurationMicrosecond(v)
        | ScalarValue::DurationNanosecond(v) => i128::from((*v)?),
        ScalarValue::UInt8(v) => i128::from((*v)?),
        ScalarValue::UInt16(v) => i128::from((*v)?),
        ScalarValue::UInt32(v) => i128::from((*v)?),
        ScalarValue::UInt64(v) => i128::from((*v)?),
        ScalarValue::Decimal32(v, ..) => i128::from((*v)?),
        ScalarValue::Decimal64(v, ..) => i128::from((*v)?),
        ScalarValue::Decimal128(v, ..) => (*v)?,
        ScalarValue::IntervalYearMonth(v) => i128::from((*v)?),
        ScalarValue::IntervalDayTime(v) => i128::from(day_time((*v)?)),
        ScalarValue::IntervalMonthDayNano(v) => month_day_nano((*v)?),
        ScalarValue::Dictionary(_, v) | ScalarValue::RunEndEncoded(_, _, v) => scalar_integer(v)?,
        _ => return None,
    })
}

/// Converts an interval to an integer, preserving equality and Arrow's order: days before milliseconds.
pub fn day_time(of: IntervalDayTime) -> i64 {
    i64::from(of.days) << 32 | i64::from(biased(of.milliseconds))
}

/// Inverse of [`day_time`].
pub fn day_time_of(integer: i64) -> IntervalDayTime {
    IntervalDayTime::new((integer >> 32) as i32, unbiased(integer as u32))
}

/// Converts an interval to an integer, preserving equality and Arrow's order: months before days before nanoseconds.
pub fn month_day_nano(of: IntervalMonthDayNano) -> i128 {
    let nanoseconds = of.nanoseconds as u64 ^ (1 << 63);
    i128::from(of.months) << 96 | i128::from(biased(of.days)) << 64 | i128::from(nanoseconds)
}

/// Inverse of [`month_day_nano`].
pub fn month_day_nano_of(integer: i128) -> IntervalMonthDayNano {
    let nanoseconds = (integer as u64 ^ (1 << 63)) as i64;
    IntervalMonthDayNano::new((integer >> 96) as i32, unbiased((integer >> 64) as u32), nanoseconds)
}

/// Maps a signed integer to an unsigned one, preserving the order.
fn biased(of: i32) -> u32 {
    of as u32 ^ (1 << 31)
}

fn unbiased(of: u32) -> i32 {
    (of ^ (1 << 31)) as i32
}

/// Stored width of an uploaded column of type `ty`, and the base that is subtracted from its values.
pub fn storage(ty: Ty) -> (Physical, i64) {
    if ty.repr == Repr::Text {
        return (Physical::Text, 0);
    }
    let native = Physical::of(ty);
    let Some(range) = ty.range else { return (native, 0) };
    if !ty.repr.is_integer() {
        return (native, 0);
    }
    // The base is a 64-bit number; a column entirely outside that range keeps its native width.
    let Ok(base) = i64::try_from(range.low) else { return (native, 0) };
    let span = range.high - range.low;
    let unsigned = match span {
        0..=0xff => Physical::U8,
        0x100..=0xffff => Physical::U16,
        0x1_0000..=0xffff_ffff => Physical::U32,
        _ => return (native, 0),
    };
    if unsigned.width() >= native.width() {
        return (native, 0);
    }
    // Small values need no base.
    let plain = unsigned.bounds().is_some_and(|all| all.contains(range));
    (unsigned, if plain { 0 } else { base })
}

/// Unit of a timestamp or time, for the kernels.
pub fn time_unit(unit: &TimeUnit) -> millpond_kernels::codegen::ir::TimeUnit {
    use millpond_kernels::codegen::ir::TimeUnit as Kernel;
    match unit {
        TimeUnit::Second => Kernel::Second,
        TimeUnit::Millisecond => Kernel::Millisecond,
        TimeUnit::Microsecond => Kernel::Microsecond,
        TimeUnit::Nanosecond => Kernel::Nanosecond,
    }
}
