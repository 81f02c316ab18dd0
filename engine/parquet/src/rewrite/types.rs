//! What the leaf columns of a file become. All but two kinds stay what they are, with every annotation:
//!
//! ```text
//!   DECIMAL of 18 digits or fewer in bytes ─► the same DECIMAL of INT32 or INT64     if each value fits
//!   INT96                                  ─► TIMESTAMP of INT64                     if one unit holds each value
//!                                                                                    exactly
//! ```
//!
//! Unit     the one that the column is read with: nanoseconds, unless the Arrow schema in the file says otherwise.
//!          Microseconds where nanoseconds end (before 1677, after 2262) and each time has whole ones. No unit: the
//!          column stays INT96.
//! Zone     none, as readers take INT96 for; UTC where the Arrow schema in the file has a zone.
//! Folders  columns of one name get one unit in all files, so that the files stay one table.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit as FileUnit, Type as Physical};
use parquet::data_type::Int96;
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type, TypePtr};

use crate::file::Opened;

const JULIAN_DAY_OF_EPOCH: i128 = 2_440_588;
const NANOS_OF_DAY: i128 = 86_400_000_000_000;
/// Decimals of more digits are not stored as integers.
const MOST_DIGITS: i32 = 18;
/// Digits that each INT32 holds.
const DIGITS_OF_INT32: i32 = 9;

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    Same,
    /// Big-endian numbers that become integers.
    Int32,
    Int64,
    /// INT96 that becomes a number of these nanoseconds.
    Instants {
        nanos: i64,
    },
}

/// What the values of a column allow, to be found out by reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Survey {
    /// Whether each decimal fits an integer of that width.
    Decimals { bytes: usize, fit: bool },
    /// Whether each instant is a whole number of the unit that fits 64 bits, in the order of [`UNITS`].
    Instants { first: usize, whole: [bool; 3] },
}

/// The units that a file has, in nanoseconds.
const UNITS: [i64; 3] = [1, 1_000, 1_000_000];

impl Survey {
    /// The survey that column `leaf` needs; `None` of one that stays as it is.
    pub(super) fn of(column: &ColumnDescriptor, read_as: Option<&DataType>) -> Option<Self> {
        match column.physical_type() {
            Physical::INT96 => {
                let first = match read_as {
                    Some(DataType::Timestamp(TimeUnit::Microsecond, _)) => 1,
                    Some(DataType::Timestamp(TimeUnit::Millisecond | TimeUnit::Second, _)) => 2,
                    _ => 0,
                };
                Some(Self::Instants { first, whole: [true; 3] })
            }
            Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => {
                let is_decimal = matches!(column.logical_type_ref(), Some(LogicalType::Decimal(_)))
                    || column.converted_type() == ConvertedType::DECIMAL;
                let digits = column.type_precision();
                let bytes = if digits <= DIGITS_OF_INT32 { 4 } else { 8 };
                (is_decimal && (1..=MOST_DIGITS).contains(&digits)).then_some(Self::Decimals { bytes, fit: true })
            }
            _ => None,
        }
    }

    pub(super) fn see_decimal(&mut self, big_endian: &[u8]) {
        if let Self::Decimals { bytes, fit } = self {
            *fit &= match bytes {
                4 => integer::<4>(big_endian).is_some(),
                _ => integer::<8>(big_endian).is_some(),
            };
        }
    }

    pub(super) fn see_instant(&mut self, value: &Int96) {
        if let Self::Instants { whole, .. } = self {
            for (whole, unit) in whole.iter_mut().zip(UNITS) {
                *whole &= instant(value, unit).is_some();
            }
        }
    }

    /// Adds what another file's column of the same name showed.
    pub(super) fn and(&mut self, other: Self) {
        match (self, other) {
            (Self::Decimals { fit, .. }, Self::Decimals { fit: other, .. }) => *fit &= other,
            (Self::Instants { first, whole }, Self::Instants { first: other, whole: of_other }) => {
                *first = (*first).min(other);
                whole.iter_mut().zip(of_other).for_each(|(whole, other)| *whole &= other);
            }
            _ => {}
        }
    }

    fn becomes(self) -> Becomes {
        match self {
            Self::Decimals { fit: false, .. } => Becomes::Same,
            Self::Decimals { bytes: 4, .. } => Becomes::Int32,
            Self::Decimals { .. } => Becomes::Int64,
            // Microseconds take over where nanoseconds end; coarser units have no end that a time reaches.
            Self::Instants { first: 0, whole: [false, true, _] } => Becomes::Instants { nanos: UNITS[1] },
            Self::Instants { first, whole } if whole[first] => Becomes::Instants { nanos: UNITS[first] },
            Self::Instants { .. } => Becomes::Same,
        }
    }
}

/// Surveys of columns by their names: those of all files that are written together.
pub(super) type Surveys = BTreeMap<Vec<String>, Survey>;

/// What becomes of each leaf column of a file.
#[derive(Debug, Clone)]
pub(super) struct Types {
    pub(super) becomes: Vec<Becomes>,
    /// Columns that an Arrow schema in the file makes dictionaries of their values.
    pub(super) dictionaries: Vec<bool>,
    /// The schema as it is written.
    pub(super) schema: SchemaDescriptor,
    /// What a user should know of columns.
    pub(super) notes: Vec<String>,
}

impl Types {
    pub(super) fn new(opened: &Opened, surveys: &Surveys) -> Result<Self, ParquetError> {
        let old = opened.metadata.file_metadata().schema_descr();
        let read_as = arrow_types(opened);
        let mut notes = Vec::new();
        let mut becomes = Vec::with_capacity(old.num_columns());
        for column in old.columns() {
            let survey = surveys.get(column.path().parts()).copied();
            let into = survey.map_or(Becomes::Same, Survey::becomes);
            becomes.push(into);
            let name = column.path().string();
            match (survey, into) {
                (Some(Survey::Decimals { .. }), Becomes::Same) => {
                    notes.push(format!("column {name} stays in bytes: it has decimals of more digits than its type"));
                }
                (Some(Survey::Instants { .. }), Becomes::Same) => notes.push(format!(
                    "column {name} stays INT96: no unit of TIMESTAMP holds all of its times (nanoseconds end in 1677 and 2262)"
                )),
                (Some(Survey::Instants { first: 0, .. }), Becomes::Instants { nanos }) if nanos > 1 => notes.push(format!(
                    "column {name} has times before 1677 or after 2262, and becomes a TIMESTAMP of microseconds"
                )),
                _ => {}
            }
        }
        let mut leaf = 0;
        let zoned = |leaf: usize| {
            matches!(read_as.as_ref().and_then(|types| types.get(leaf)), Some(DataType::Timestamp(_, Some(_))))
        };
        let root = converted(&old.root_schema_ptr(), &becomes, &zoned, &mut leaf)?;
        let is_dictionary =
            |leaf: usize| matches!(read_as.as_ref().and_then(|types| types.get(leaf)), Some(DataType::Dictionary(..)));
        let dictionaries = (0..old.num_columns()).map(is_dictionary).collect();
        Ok(Self { becomes, dictionaries, schema: SchemaDescriptor::new(root), notes })
    }

    pub(super) fn converted(&self) -> Vec<bool> {
        self.becomes.iter().map(|becomes| *becomes != Becomes::Same).collect()
    }
}

/// The name of a column or group whose logical type the parquet crate does not know.
pub(super) fn unknown(node: &Type) -> Option<&str> {
    if let Some(LogicalType::_Unknown { .. }) = node.get_basic_info().logical_type_ref() {
        return Some(node.name());
    }
    if node.is_primitive() { None } else { node.get_fields().iter().find_map(|field| unknown(field)) }
}

/// The type that parquet's reader of Arrow arrays gives each leaf column; `None` where it does not read the schema.
pub(super) fn arrow_types(opened: &Opened) -> Option<Vec<DataType>> {
    let metadata = opened.metadata.file_metadata();
    let schema = parquet_to_arrow_schema(metadata.schema_descr(), metadata.key_value_metadata()).ok()?;
    let mut types = Vec::new();
    schema.fields().iter().for_each(|field| leaves(field.data_type(), &mut types));
    (types.len() == metadata.schema_descr().num_columns()).then_some(types)
}

fn leaves(data_type: &DataType, types: &mut Vec<DataType>) {
    match data_type {
        DataType::Struct(fields) => fields.iter().for_each(|field| leaves(field.data_type(), types)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)
        | DataType::RunEndEncoded(_, item) => leaves(item.data_type(), types),
        leaf => types.push(leaf.clone()),
    }
}

/// The schema below `old` with the leaf columns converted; `leaf` is the number of its first one.
fn converted(
    old: &TypePtr,
    becomes: &[Becomes],
    zoned: &dyn Fn(usize) -> bool,
    leaf: &mut usize,
) -> Result<TypePtr, ParquetError> {
    let info = old.get_basic_info();
    let id = info.has_id().then(|| info.id());
    if old.is_group() {
        let fields = old.get_fields();
        let new = fields.iter().map(|field| converted(field, becomes, zoned, leaf)).collect::<Result<Vec<_>, _>>()?;
        if fields.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new)) {
            return Ok(Arc::clone(old));
        }
        let builder = Type::group_type_builder(old.name()).with_id(id).with_fields(new);
        let builder =
            builder.with_logical_type(info.logical_type_ref().cloned()).with_converted_type(info.converted_type());
        let builder = if info.has_repetition() { builder.with_repetition(info.repetition()) } else { builder };
        return builder.build().map(Arc::new);
    }
    let at = *leaf;
    *leaf += 1;
    let into = becomes.get(at).copied().unwrap_or(Becomes::Same);
    let physical = match into {
        Becomes::Same => return Ok(Arc::clone(old)),
        Becomes::Int32 => Physical::INT32,
        Becomes::Int64 | Becomes::Instants { .. } => Physical::INT64,
    };
    let builder = Type::primitive_type_builder(old.name(), physical).with_repetition(info.repetition()).with_id(id);
    let builder = match into {
        Becomes::Instants { nanos } => {
            let unit = match nanos {
                1 => FileUnit::NANOS,
                1_000 => FileUnit::MICROS,
                _ => FileUnit::MILLIS,
            };
            builder.with_logical_type(Some(LogicalType::timestamp(zoned(at), unit)))
        }
        _ => builder
            .with_logical_type(info.logical_type_ref().cloned())
            .with_converted_type(info.converted_type())
            .with_precision(old.get_precision())
            .with_scale(old.get_scale()),
    };
    builder.build().map(Arc::new)
}

/// The instant as a whole number of `nanos` since 1970, if it is one that fits.
pub(super) fn instant(value: &Int96, nanos: i64) -> Option<i64> {
    let &[low, high, day] = value.data() else { return None };
    let of_day = (i128::from(high as i32) << 32) + i128::from(low);
    let since = (i128::from(day as i32) - JULIAN_DAY_OF_EPOCH) * NANOS_OF_DAY + of_day;
    let nanos = i128::from(nanos);
    (since % nanos == 0).then(|| i64::try_from(since / nanos).ok()).flatten()
}

/// A big-endian signed number in `N` bytes, if it fits them; none of no bytes.
pub(super) fn integer<const N: usize>(big_endian: &[u8]) -> Option<[u8; N]> {
    let first = *big_endian.first()?;
    let sign = if first < 0x80 { 0 } else { 0xff };
    let mut bytes = [sign; N];
    let (extra, rest) = big_endian.split_at(big_endian.len().saturating_sub(N));
    bytes[N - rest.len()..].copy_from_slice(rest);
    // What is left out may only repeat the sign.
    (extra.iter().all(|byte| *byte == sign) && (bytes[0] < 0x80) == (sign == 0)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_exact_or_none() {
        let at = |days: i64, nanos: i64| {
            let day = (days + 2_440_588) as i32 as u32;
            Int96::from(vec![nanos as u32, (nanos >> 32) as u32, day])
        };
        assert_eq!(instant(&at(0, 0), 1), Some(0));
        assert_eq!(instant(&at(-1, 86_399_999_999_999), 1), Some(-1));
        assert_eq!(instant(&at(1, 1_500), 1_000), None);
        // 9999-12-31, and the ends of 64 bits of nanoseconds.
        assert_eq!(instant(&at(2_932_896, 0), 1), None);
        assert_eq!(instant(&at(2_932_896, 0), 1_000), Some(253_402_214_400_000_000));
        assert_eq!(instant(&at(106_751, 85_636_854_775_807), 1), Some(i64::MAX));
        assert_eq!(instant(&at(106_751, 85_636_854_775_808), 1), None);
        assert_eq!(instant(&at(-106_752, 763_145_224_192), 1), Some(i64::MIN));
        assert_eq!(instant(&at(-106_752, 763_145_224_191), 1), None);
    }

    #[test]
    fn decimals_fit_or_do_not() {
        let number = |bytes: &[u8]| integer::<4>(bytes).map(i32::from_be_bytes);
        assert_eq!((number(&[0x80]), number(&[0, 0x80]), number(&[])), (Some(-128), Some(128), None));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Some(-129));
        assert_eq!(number(&[0, 0x7f, 0xff, 0xff, 0xff]), Some(i32::MAX));
        assert_eq!((number(&[0, 0x80, 0, 0, 0]), number(&[0xff, 0x7f, 0, 0, 0])), (None, None));
        assert_eq!(integer::<8>(&[1, 2]).map(i64::from_be_bytes), Some(258));
    }

    #[test]
    fn the_unit_is_the_finest_that_is_read_and_holds_all() {
        let of = |first: usize, whole: [bool; 3]| Survey::Instants { first, whole }.becomes();
        assert_eq!(of(0, [true, false, false]), Becomes::Instants { nanos: 1 });
        assert_eq!(of(0, [false, true, true]), Becomes::Instants { nanos: 1_000 });
        assert_eq!(of(0, [false, false, false]), Becomes::Same);
        assert_eq!(of(1, [true, false, false]), Becomes::Same);
        assert_eq!(of(1, [true, true, false]), Becomes::Instants { nanos: 1_000 });
        assert_eq!(of(2, [true, true, true]), Becomes::Instants { nanos: 1_000_000 });
    }
}
