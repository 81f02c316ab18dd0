//! Kinds of columns: a logical type together with its physical type.
//!
//! ```text
//!   Decimal9       INT32                     Decimal128(9, 2)
//!   Decimal18      INT64                     Decimal128(18, 4)
//!   Decimal18Fixed FIXED_LEN_BYTE_ARRAY(8)   Decimal128(18, 4), as older writers store it
//! ```

use arrow::datatypes::{DataType, TimeUnit};
use parquet::basic::Type as Physical;

use super::choice::{Encoding, choices};

choices! {
    /// Kind of a column.
    Kind {
        Boolean = "bool",
        Int8 = "i8",
        Int16 = "i16",
        Int32 = "i32",
        UInt8 = "u8",
        UInt16 = "u16",
        UInt32 = "u32",
        Date32 = "date32",
        Time32 = "time32ms",
        Decimal9 = "dec9",
        Int64 = "i64",
        UInt64 = "u64",
        Time64Micro = "time64us",
        Time64Nano = "time64ns",
        Decimal18 = "dec18",
        TimestampMilli = "ts_ms",
        TimestampMicro = "ts_us",
        TimestampNano = "ts_ns",
        TimestampMilliUtc = "ts_ms_utc",
        TimestampMicroUtc = "ts_us_utc",
        TimestampNanoUtc = "ts_ns_utc",
        /// A timestamp in nanoseconds, as a Julian day and a time of day.
        Int96 = "int96",
        Float16 = "f16",
        Float32 = "f32",
        Float64 = "f64",
        Utf8 = "utf8",
        /// Texts of multi-byte characters.
        Utf8Wide = "utf8_wide",
        Binary = "binary",
        Fixed1 = "fixed1",
        Fixed7 = "fixed7",
        Fixed16 = "fixed16",
        Decimal5Fixed = "dec5_fixed",
        Decimal18Fixed = "dec18_fixed",
        Decimal20 = "dec20",
        Decimal28 = "dec28",
        Decimal38 = "dec38",
        Decimal50 = "dec50",
        /// Texts of which one in five has 70,000 bytes; only in cases listed by hand.
        Utf8Long = "utf8_long",
    }
}

impl Kind {
    /// Kinds that are combined with all other choices: those before [`Kind::Utf8Long`].
    pub fn combined() -> &'static [Kind] {
        &Kind::ALL[..Kind::Utf8Long as usize]
    }

    pub fn physical(self) -> Physical {
        match self {
            Kind::Boolean => Physical::BOOLEAN,
            Kind::Int8 | Kind::Int16 | Kind::Int32 | Kind::UInt8 | Kind::UInt16 | Kind::UInt32 => Physical::INT32,
            Kind::Date32 | Kind::Time32 | Kind::Decimal9 => Physical::INT32,
            Kind::Int64 | Kind::UInt64 | Kind::Time64Micro | Kind::Time64Nano | Kind::Decimal18 => Physical::INT64,
            Kind::TimestampMilli | Kind::TimestampMicro | Kind::TimestampNano => Physical::INT64,
            Kind::TimestampMilliUtc | Kind::TimestampMicroUtc | Kind::TimestampNanoUtc => Physical::INT64,
            Kind::Int96 => Physical::INT96,
            Kind::Float32 => Physical::FLOAT,
            Kind::Float64 => Physical::DOUBLE,
            Kind::Utf8 | Kind::Utf8Wide | Kind::Utf8Long | Kind::Binary => Physical::BYTE_ARRAY,
            Kind::Float16 | Kind::Fixed1 | Kind::Fixed7 | Kind::Fixed16 => Physical::FIXED_LEN_BYTE_ARRAY,
            Kind::Decimal5Fixed | Kind::Decimal18Fixed => Physical::FIXED_LEN_BYTE_ARRAY,
            Kind::Decimal20 | Kind::Decimal28 | Kind::Decimal38 | Kind::Decimal50 => Physical::FIXED_LEN_BYTE_ARRAY,
        }
    }

    /// Arrow type of the column's rows.
    pub fn data_type(self) -> DataType {
        let zone = || Some("UTC".into());
        match self {
            Kind::Boolean => DataType::Boolean,
            Kind::Int8 => DataType::Int8,
            Kind::Int16 => DataType::Int16,
            Kind::Int32 => DataType::Int32,
            Kind::UInt8 => DataType::UInt8,
            Kind::UInt16 => DataType::UInt16,
            Kind::UInt32 => DataType::UInt32,
            Kind::Date32 => DataType::Date32,
            Kind::Time32 => DataType::Time32(TimeUnit::Millisecond),
            Kind::Int64 => DataType::Int64,
            Kind::UInt64 => DataType::UInt64,
            Kind::Time64Micro => DataType::Time64(TimeUnit::Microsecond),
            Kind::Time64Nano => DataType::Time64(TimeUnit::Nanosecond),
            Kind::TimestampMilli => DataType::Timestamp(TimeUnit::Millisecond, None),
            Kind::TimestampMicro => DataType::Timestamp(TimeUnit::Microsecond, None),
            Kind::TimestampNano | Kind::Int96 => DataType::Timestamp(TimeUnit::Nanosecond, None),
            Kind::TimestampMilliUtc => DataType::Timestamp(TimeUnit::Millisecond, zone()),
            Kind::TimestampMicroUtc => DataType::Timestamp(TimeUnit::Microsecond, zone()),
            Kind::TimestampNanoUtc => DataType::Timestamp(TimeUnit::Nanosecond, zone()),
            Kind::Float16 => DataType::Float16,
            Kind::Float32 => DataType::Float32,
            Kind::Float64 => DataType::Float64,
            Kind::Utf8 | Kind::Utf8Wide | Kind::Utf8Long => DataType::Utf8,
            Kind::Binary => DataType::Binary,
            Kind::Fixed1 => DataType::FixedSizeBinary(1),
            Kind::Fixed7 => DataType::FixedSizeBinary(7),
            Kind::Fixed16 => DataType::FixedSizeBinary(16),
            Kind::Decimal5Fixed => DataType::Decimal128(5, 2),
            Kind::Decimal9 => DataType::Decimal128(9, 2),
            Kind::Decimal18 | Kind::Decimal18Fixed => DataType::Decimal128(18, 4),
            Kind::Decimal20 => DataType::Decimal128(20, 0),
            Kind::Decimal28 => DataType::Decimal128(28, 6),
            Kind::Decimal38 => DataType::Decimal128(38, 10),
            Kind::Decimal50 => DataType::Decimal256(50, 12),
        }
    }

    /// Encodings that the format allows for the physical type.
    pub fn encodings(self) -> &'static [Encoding] {
        use Encoding::*;
        match self.physical() {
            Physical::BOOLEAN => &[Plain, Rle],
            Physical::INT32 | Physical::INT64 => &[Plain, Dictionary, DeltaBinaryPacked, ByteStreamSplit],
            Physical::INT96 => &[Plain, Dictionary],
            Physical::FLOAT | Physical::DOUBLE => &[Plain, Dictionary, ByteStreamSplit],
            Physical::BYTE_ARRAY => &[Plain, Dictionary, DeltaLengthByteArray, DeltaByteArray],
            Physical::FIXED_LEN_BYTE_ARRAY => &[Plain, Dictionary, DeltaByteArray, ByteStreamSplit],
        }
    }

    /// Width of a decimal stored as FIXED_LEN_BYTE_ARRAY although parquet-rs would write an integer.
    pub(super) fn narrow_fixed(self) -> Option<NarrowFixed> {
        match self {
            Kind::Decimal5Fixed => Some(NarrowFixed { bytes: 3, precision: 5, scale: 2 }),
            Kind::Decimal18Fixed => Some(NarrowFixed { bytes: 8, precision: 18, scale: 4 }),
            _ => None,
        }
    }

    /// Kinds that may share a file with this one, including itself.
    pub fn related(self) -> &'static [Kind] {
        use Kind::*;
        const FAMILIES: &[&[Kind]] = &[
            &[Boolean],
            &[Int8, Int16, Int32, UInt8, UInt16, UInt32],
            &[Date32, Time32, Decimal9],
            &[Int64, UInt64, Time64Micro, Time64Nano, Decimal18],
            &[TimestampMilli, TimestampMicro, TimestampNano, TimestampMilliUtc, TimestampMicroUtc, TimestampNanoUtc],
            &[Int96],
            &[Float16, Float32, Float64],
            &[Utf8, Utf8Wide, Binary],
            &[Fixed1, Fixed7, Fixed16],
            &[Decimal5Fixed, Decimal18Fixed, Decimal20, Decimal28, Decimal38, Decimal50],
            &[Utf8Long],
        ];
        FAMILIES.iter().find(|family| family.contains(&self)).expect("each kind has a family")
    }
}

/// A decimal in fewer bytes than a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NarrowFixed {
    pub bytes: i32,
    pub precision: i32,
    pub scale: i32,
}
