//! Conversion of a column's file values to Arrow types, with the results of parquet's own Arrow reader.
//!
//!   INT32 (UINT_8)            ──► UInt8           the low 8 bits
//!   INT32 (DATE)              ──► Date64          × 86,400,000
//!   INT96                     ──► Timestamp(µs)   days and nanoseconds, wrapping
//!   FIXED(7) (DECIMAL(15, 2)) ──► Decimal128      big-endian, sign extended
//!
//! Refused   nested columns · intervals · Float16 · Decimal256 · NULL types · everything that the Arrow reader refuses.
//! Types other than the column's own (`Int64` of an INT32) need a cast, and are refused here.

use arrow::datatypes::{DataType, TimeUnit};
use parquet::basic::{ConvertedType, LogicalType, TimeUnit as FileUnit, Type as Physical};
use parquet::schema::types::ColumnDescriptor;

/// A short reason, readable for users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Conversion of the values of a leaf column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    pub(crate) kind: Kind,
}

/// Values of a file that are numbers as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw {
    Boolean,
    Int32,
    UInt32,
    Int64,
    Float,
    Double,
    /// Nanoseconds since 1970, once they are put together.
    Int96,
    /// A signed big-endian number of this many bytes.
    Fixed(u8),
}

/// How the physical values are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Float32,
    Float64,
    /// INT32, cut to the low 8 or 16 bits where the type has no more.
    Int32(Cut),
    UInt32,
    /// INT32 days that become milliseconds.
    Days,
    Int64,
    UInt64,
    /// INT96 that becomes a number of `1 / per_second` seconds.
    Int96 {
        per_second: i64,
    },
    /// Big-endian numbers of at most 8 bytes.
    Fixed64 {
        bytes: u8,
    },
    /// Big-endian numbers of 9 to 16 bytes.
    Fixed128 {
        bytes: u8,
    },
    /// Big-endian numbers of any length up to 16 bytes.
    Variable128,
    /// Strings and binary values; `utf8` ones are checked.
    Text {
        utf8: bool,
    },
    FixedText {
        bytes: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    None,
    I8,
    U8,
    I16,
    U16,
}

/// The logical type of a column of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logical {
    Integer {
        bits: i8,
        signed: bool,
    },
    Decimal {
        precision: i32,
        scale: i32,
    },
    Date,
    Time(FileUnit),
    Timestamp(FileUnit),
    Utf8,
    None,
    /// Never read here.
    Other,
}

impl Conversion {
    /// How `column`'s values become `to`.
    ///
    /// # Errors
    /// [`Unsupported`] if the conversion is impossible or not implemented.
    pub fn of(column: &ColumnDescriptor, to: &DataType) -> Result<Self, Unsupported> {
        let name = column.path().parts().join(".");
        if column.max_rep_level() > 0 || column.max_def_level() > 1 || column.path().parts().len() > 1 {
            return Err(Unsupported(format!("{name} is nested")));
        }
        let refused = || Unsupported(format!("{} {name} is not read as {to}", column.physical_type()));
        Self::kind_of(column, to).map(|kind| Self { kind }).ok_or_else(refused)
    }

    fn kind_of(column: &ColumnDescriptor, to: &DataType) -> Option<Kind> {
        // A dictionary is made of the values after they are read, so its type changes none of them.
        if let DataType::Dictionary(_, values) = to {
            return match **values {
                DataType::Dictionary(..) => None,
                _ => Self::kind_of(column, values),
            };
        }
        let logical = Logical::of(column);
        match column.physical_type() {
            Physical::BOOLEAN => (logical == Logical::None && *to == DataType::Boolean).then_some(Kind::Bool),
            Physical::FLOAT => (logical == Logical::None && *to == DataType::Float32).then_some(Kind::Float32),
            Physical::DOUBLE => (logical == Logical::None && *to == DataType::Float64).then_some(Kind::Float64),
            Physical::INT32 => of_int32(logical, to),
            Physical::INT64 => of_int64(logical, to),
            Physical::INT96 => match to {
                DataType::Timestamp(unit, _) => Some(Kind::Int96 { per_second: per_second(*unit) }),
                _ => None,
            },
            Physical::BYTE_ARRAY => of_bytes(logical, to),
            Physical::FIXED_LEN_BYTE_ARRAY => of_fixed(logical, column.type_length(), to),
        }
    }

    /// True for integers, dates, times and decimals.
    pub fn is_integer(&self) -> bool {
        !matches!(self.kind, Kind::Bool | Kind::Float32 | Kind::Float64 | Kind::Text { .. } | Kind::FixedText { .. })
    }

    /// What the file has, where a device can make values of it that need no more than to be cut to a width.
    pub fn raw(&self) -> Option<Raw> {
        Some(match self.kind {
            Kind::Bool => Raw::Boolean,
            Kind::Float32 => Raw::Float,
            Kind::Float64 => Raw::Double,
            Kind::Int32(Cut::None) => Raw::Int32,
            Kind::UInt32 => Raw::UInt32,
            Kind::Int64 => Raw::Int64,
            Kind::Int96 { per_second: 1_000_000_000 } => Raw::Int96,
            Kind::Fixed64 { bytes } | Kind::Fixed128 { bytes } => Raw::Fixed(bytes),
            _ => return None,
        })
    }

    /// True for UTF-8 strings, which are validated.
    pub fn is_utf8(&self) -> bool {
        matches!(self.kind, Kind::Text { utf8: true })
    }

    /// True for strings and binary values.
    pub fn is_text(&self) -> bool {
        matches!(self.kind, Kind::Text { .. } | Kind::FixedText { .. })
    }
}

impl Kind {
    /// Bytes of a PLAIN value, if all have the same.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::Float32 | Self::Int32(_) | Self::UInt32 | Self::Days => Some(4),
            Self::Float64 | Self::Int64 | Self::UInt64 => Some(8),
            Self::Int96 { .. } => Some(12),
            Self::Fixed64 { bytes } | Self::Fixed128 { bytes } => Some(usize::from(bytes)),
            Self::FixedText { bytes } => Some(bytes as usize),
            Self::Bool | Self::Variable128 | Self::Text { .. } => None,
        }
    }
}

impl Logical {
    fn of(column: &ColumnDescriptor) -> Self {
        match column.logical_type_ref() {
            Some(LogicalType::Integer(int)) => Self::Integer { bits: int.bit_width, signed: int.is_signed },
            Some(LogicalType::Decimal(decimal)) => Self::Decimal { precision: decimal.precision, scale: decimal.scale },
            Some(LogicalType::Date) => Self::Date,
            Some(LogicalType::Time(time)) => Self::Time(time.unit),
            Some(LogicalType::Timestamp(timestamp)) => Self::Timestamp(timestamp.unit),
            Some(LogicalType::String | LogicalType::Json) => Self::Utf8,
            Some(LogicalType::Bson | LogicalType::Enum) => Self::None,
            Some(LogicalType::Uuid) => Self::None,
            Some(_) => Self::Other,
            None => Self::of_converted(column),
        }
    }

    fn of_converted(column: &ColumnDescriptor) -> Self {
        match column.converted_type() {
            ConvertedType::NONE | ConvertedType::BSON | ConvertedType::ENUM => Self::None,
            ConvertedType::UTF8 | ConvertedType::JSON => Self::Utf8,
            ConvertedType::INT_8 => Self::Integer { bits: 8, signed: true },
            ConvertedType::INT_16 => Self::Integer { bits: 16, signed: true },
            ConvertedType::INT_32 => Self::Integer { bits: 32, signed: true },
            ConvertedType::INT_64 => Self::Integer { bits: 64, signed: true },
            ConvertedType::UINT_8 => Self::Integer { bits: 8, signed: false },
            ConvertedType::UINT_16 => Self::Integer { bits: 16, signed: false },
            ConvertedType::UINT_32 => Self::Integer { bits: 32, signed: false },
            ConvertedType::UINT_64 => Self::Integer { bits: 64, signed: false },
            ConvertedType::DATE => Self::Date,
            ConvertedType::TIME_MILLIS => Self::Time(FileUnit::MILLIS),
            ConvertedType::TIME_MICROS => Self::Time(FileUnit::MICROS),
            ConvertedType::TIMESTAMP_MILLIS => Self::Timestamp(FileUnit::MILLIS),
            ConvertedType::TIMESTAMP_MICROS => Self::Timestamp(FileUnit::MICROS),
            ConvertedType::DECIMAL => Self::Decimal { precision: column.type_precision(), scale: column.type_scale() },
            _ => Self::Other,
        }
    }

    fn is_decimal(self, precision: u8, scale: i8) -> bool {
        self == Self::Decimal { precision: precision.into(), scale: scale.into() }
    }
}

fn of_int32(logical: Logical, to: &DataType) -> Option<Kind> {
    const PLAIN: Kind = Kind::Int32(Cut::None);
    let is_number = matches!(logical, Logical::None | Logical::Integer { bits: 32, signed: true });
    Some(match (logical, to) {
        (_, DataType::Int32 | DataType::Time32(TimeUnit::Second) | DataType::Timestamp(..)) if is_number => PLAIN,
        (_, DataType::Time32(TimeUnit::Millisecond)) if is_number => PLAIN,
        (Logical::Integer { bits: 8, signed: true }, DataType::Int8) => Kind::Int32(Cut::I8),
        (Logical::Integer { bits: 8, signed: false }, DataType::UInt8) => Kind::Int32(Cut::U8),
        (Logical::Integer { bits: 16, signed: true }, DataType::Int16) => Kind::Int32(Cut::I16),
        (Logical::Integer { bits: 16, signed: false }, DataType::UInt16) => Kind::Int32(Cut::U16),
        (Logical::Integer { bits: 32, signed: false }, DataType::UInt32) => Kind::UInt32,
        (Logical::Date, DataType::Date32) => PLAIN,
        (Logical::Date, DataType::Date64) => Kind::Days,
        (Logical::Time(FileUnit::MILLIS), DataType::Time32(TimeUnit::Millisecond)) => PLAIN,
        (
            decimal,
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale),
        ) if decimal.is_decimal(*precision, *scale) => PLAIN,
        _ => return None,
    })
}

fn of_int64(logical: Logical, to: &DataType) -> Option<Kind> {
    let is_number = matches!(logical, Logical::None | Logical::Integer { bits: 64, signed: true });
    Some(match (logical, to) {
        (_, DataType::Int64 | DataType::Timestamp(..) | DataType::Duration(_) | DataType::Date64) if is_number => {
            Kind::Int64
        }
        (_, DataType::Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond)) if is_number => Kind::Int64,
        (Logical::Integer { bits: 64, signed: false }, DataType::UInt64) => Kind::UInt64,
        (Logical::Time(FileUnit::MICROS), DataType::Time64(TimeUnit::Microsecond)) => Kind::Int64,
        (Logical::Time(FileUnit::NANOS), DataType::Time64(TimeUnit::Nanosecond)) => Kind::Int64,
        (Logical::Timestamp(FileUnit::MILLIS), DataType::Timestamp(TimeUnit::Millisecond, _)) => Kind::Int64,
        (Logical::Timestamp(FileUnit::MICROS), DataType::Timestamp(TimeUnit::Microsecond, _)) => Kind::Int64,
        (Logical::Timestamp(FileUnit::NANOS), DataType::Timestamp(TimeUnit::Nanosecond, _)) => Kind::Int64,
        (decimal, DataType::Decimal64(precision, scale) | DataType::Decimal128(precision, scale))
            if decimal.is_decimal(*precision, *scale) =>
        {
            Kind::Int64
        }
        _ => return None,
    })
}

fn of_bytes(logical: Logical, to: &DataType) -> Option<Kind> {
    Some(match (logical, to) {
        (Logical::Utf8 | Logical::None, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => {
            Kind::Text { utf8: true }
        }
        (Logical::None, DataType::Binary | DataType::LargeBinary | DataType::BinaryView) => Kind::Text { utf8: false },
        (decimal, DataType::Decimal128(precision, scale)) if decimal.is_decimal(*precision, *scale) => {
            Kind::Variable128
        }
        _ => return None,
    })
}

fn of_fixed(logical: Logical, bytes: i32, to: &DataType) -> Option<Kind> {
    let most = match to {
        DataType::FixedSizeBinary(length) if logical == Logical::None && *length == bytes && bytes > 0 => {
            return Some(Kind::FixedText { bytes: bytes.unsigned_abs() });
        }
        DataType::Decimal32(precision, scale) if logical.is_decimal(*precision, *scale) => 4,
        DataType::Decimal64(precision, scale) if logical.is_decimal(*precision, *scale) => 8,
        DataType::Decimal128(precision, scale) if logical.is_decimal(*precision, *scale) => 16,
        _ => return None,
    };
    match u8::try_from(bytes).ok().filter(|bytes| (1..=most).contains(bytes))? {
        bytes @ ..=8 => Some(Kind::Fixed64 { bytes }),
        bytes => Some(Kind::Fixed128 { bytes }),
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}
