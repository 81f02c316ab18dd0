//! Records of any schema, by seed, written and read without Arrow: what a file has is levels and bytes.
//!
//!   schema ──► records, shredded to levels and values ──► low-level writer ──► file
//!   file ──► low-level reader ──► levels and values of each leaf column

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{
    AsBytes, BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type, Int96, Int96Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::cases::Random;

/// Levels and values of a leaf column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    pub definitions: Vec<i16>,
    pub repetitions: Vec<i16>,
    /// Numbers are little-endian, and an INT96 has 12 bytes.
    pub values: Vec<Vec<u8>>,
}

/// A type that a leaf column can have.
#[derive(Debug, Clone)]
pub struct Kind {
    physical: Physical,
    length: i32,
    logical: Option<LogicalType>,
    converted: ConvertedType,
    digits: (i32, i32),
}

impl Kind {
    fn new(physical: Physical, logical: Option<LogicalType>) -> Self {
        Self { physical, length: -1, logical, converted: ConvertedType::NONE, digits: (-1, -1) }
    }

    fn old(physical: Physical, converted: ConvertedType) -> Self {
        Self { converted, ..Self::new(physical, None) }
    }

    fn fixed(length: i32, logical: Option<LogicalType>) -> Self {
        Self { length, ..Self::new(Physical::FIXED_LEN_BYTE_ARRAY, logical) }
    }

    /// A decimal of `precision` digits; with `is_old`, by its converted type alone.
    fn decimal(physical: Physical, length: i32, precision: i32, is_old: bool) -> Self {
        let (logical, converted) = match is_old {
            true => (None, ConvertedType::DECIMAL),
            false => (Some(LogicalType::decimal(2.min(precision), precision)), ConvertedType::NONE),
        };
        Self { physical, length, logical, converted, digits: (precision, 2.min(precision)) }
    }

    pub fn column(&self, name: &str, repetition: Repetition, id: Option<i32>) -> TypePtr {
        let builder = Type::primitive_type_builder(name, self.physical).with_repetition(repetition).with_id(id);
        let builder = builder.with_length(self.length).with_logical_type(self.logical.clone());
        let builder = builder.with_converted_type(self.converted);
        Arc::new(builder.with_precision(self.digits.0).with_scale(self.digits.1).build().unwrap())
    }

    /// Its name in a file's name.
    pub fn name(&self) -> String {
        let logical = self.logical.as_ref().map(|logical| format!("{logical:?}"));
        let (length, (precision, _)) = (self.length, self.digits);
        let text = format!("{}-{}-{}-{length}-{precision}", self.physical, logical.unwrap_or_default(), self.converted);
        let parts = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        parts.filter(|part| !matches!(*part, "" | "NONE" | "None" | "1")).collect::<Vec<_>>().join("-").to_lowercase()
    }
}

/// Every physical type with every annotation that the format has for it, of today and of old files.
pub fn kinds() -> Vec<Kind> {
    use ConvertedType as C;
    use LogicalType as L;
    use Physical::{BOOLEAN, BYTE_ARRAY, DOUBLE, FIXED_LEN_BYTE_ARRAY, FLOAT, INT32, INT64, INT96};
    let mut kinds = Vec::new();
    for physical in [BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY] {
        kinds.push(Kind::new(physical, None));
    }
    for logical in [L::String, L::Enum, L::Json, L::Bson, L::geometry(None), L::geometry(Some("EPSG:4326".into()))] {
        kinds.push(Kind::new(BYTE_ARRAY, Some(logical)));
    }
    kinds.push(Kind::new(BYTE_ARRAY, Some(L::geography(Some("EPSG:4326".into()), None))));
    for physical in [INT32, INT64, BYTE_ARRAY] {
        kinds.push(Kind::new(physical, Some(L::Unknown)));
    }
    for (bits, signed) in [(8, true), (16, true), (32, true), (8, false), (16, false), (32, false)] {
        kinds.push(Kind::new(INT32, Some(L::integer(bits, signed))));
    }
    for utc in [true, false] {
        kinds.push(Kind::new(INT64, Some(L::integer(64, utc))));
        kinds.push(Kind::new(INT32, Some(L::time(utc, TimeUnit::MILLIS))));
        for unit in [TimeUnit::MICROS, TimeUnit::NANOS] {
            kinds.push(Kind::new(INT64, Some(L::time(utc, unit))));
        }
        for unit in [TimeUnit::MILLIS, TimeUnit::MICROS, TimeUnit::NANOS] {
            kinds.push(Kind::new(INT64, Some(L::timestamp(utc, unit))));
        }
    }
    kinds.push(Kind::new(INT32, Some(L::Date)));
    for length in [1, 7, 12, 16, 33] {
        kinds.push(Kind::fixed(length, None));
    }
    kinds.push(Kind::fixed(16, Some(L::Uuid)));
    kinds.push(Kind::fixed(2, Some(L::Float16)));
    kinds.push(Kind { converted: C::INTERVAL, ..Kind::fixed(12, None) });
    for is_old in [false, true] {
        kinds.push(Kind::decimal(INT32, -1, 9, is_old));
        kinds.push(Kind::decimal(INT64, -1, 18, is_old));
        for (length, precision) in [(2, 4), (4, 9), (5, 9), (8, 18), (16, 18), (9, 19), (16, 38), (32, 76)] {
            kinds.push(Kind::decimal(FIXED_LEN_BYTE_ARRAY, length, precision, is_old));
        }
        for precision in [5, 18, 38] {
            kinds.push(Kind::decimal(BYTE_ARRAY, -1, precision, is_old));
        }
    }
    for converted in [C::INT_8, C::INT_16, C::INT_32, C::UINT_8, C::UINT_16, C::UINT_32, C::DATE, C::TIME_MILLIS] {
        kinds.push(Kind::old(INT32, converted));
    }
    for converted in [C::INT_64, C::UINT_64, C::TIME_MICROS, C::TIMESTAMP_MILLIS, C::TIMESTAMP_MICROS] {
        kinds.push(Kind::old(INT64, converted));
    }
    for converted in [C::UTF8, C::ENUM, C::JSON, C::BSON] {
        kinds.push(Kind::old(BYTE_ARRAY, converted));
    }
    kinds
}

/// Chooses values: small numbers, extremes, few different ones, long texts.
pub fn value(column: &Type, random: &mut Random) -> Vec<u8> {
    let few = random.is_one_in(3);
    let number = if few { random.next() % 5 } else { random.next() };
    match column.get_physical_type() {
        Physical::BOOLEAN => vec![(number % 2) as u8],
        Physical::INT32 => (number as i32).to_le_bytes().to_vec(),
        Physical::FLOAT if random.is_one_in(9) => 0xffc0_1234_u32.to_le_bytes().to_vec(),
        Physical::FLOAT => (number as i32 as f32 / 8.0).to_le_bytes().to_vec(),
        Physical::INT64 => number.to_le_bytes().to_vec(),
        Physical::DOUBLE if random.is_one_in(9) => 0xfff8_0000_0000_4321_u64.to_le_bytes().to_vec(),
        Physical::DOUBLE => (number as i64 as f64 / 8.0).to_le_bytes().to_vec(),
        // Whole microseconds between the years 1 and 9999.
        Physical::INT96 => {
            let nanos = number % 86_400_000_000 * 1_000;
            let day = 1_721_426 + (random.next() % 3_652_059) as u32;
            [&nanos.to_le_bytes()[..], &day.to_le_bytes()[..]].concat()
        }
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => bytes(column, number, few, random),
    }
}

fn bytes(column: &Type, number: u64, few: bool, random: &mut Random) -> Vec<u8> {
    let Type::PrimitiveType { type_length, precision, .. } = column else { unreachable!("a leaf has bytes") };
    let fixed = (column.get_physical_type() == Physical::FIXED_LEN_BYTE_ARRAY).then_some(*type_length as usize);
    if *precision > 0 {
        // A number within the precision, in all bytes that there are, or in few.
        let most = 10_i128.pow((*precision).min(38) as u32);
        let value = ((i128::from(number) << 60) ^ i128::from(random.next())) % most;
        let value = if random.is_one_in(2) { value } else { -value };
        let all = value.to_be_bytes();
        let sign = if value < 0 { 0xff } else { 0 };
        return match fixed {
            Some(length) if length > 16 => [vec![sign; length - 16], all.to_vec()].concat(),
            Some(length) => all[16 - length..].to_vec(),
            None => {
                let least = (1..=16).find(|length| value >> (8 * length - 1) == value >> 127).unwrap_or(16);
                all[16 - least..].to_vec()
            }
        };
    }
    let length = match fixed {
        Some(length) => length,
        None if random.is_one_in(200) => 5_000,
        None => number as usize % 24,
    };
    let letter = |index: usize| if few { b'a' + (number % 5) as u8 } else { (random_byte(number, index)) % 94 + 33 };
    (0..length).map(letter).collect()
}

fn random_byte(number: u64, index: usize) -> u8 {
    Random(number ^ index as u64).next() as u8
}

/// Makes a value one that its type allows: readers refuse others.
pub fn tame(column: &Type, row: usize, value: &mut Vec<u8>) {
    let info = column.get_basic_info();
    let most = match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::Time(_)), _) | (_, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => 86_400_000,
        (Some(LogicalType::Timestamp(_)), _) | (_, ConvertedType::TIMESTAMP_MILLIS) => 4_000_000_000_000,
        (Some(LogicalType::Json), _) | (_, ConvertedType::JSON) => {
            *value = format!("{{\"row\": {row}}}").into_bytes();
            return;
        }
        // A point.
        (Some(LogicalType::Geometry(_) | LogicalType::Geography(_)), _) => {
            let place = (row % 90) as f64;
            *value = [&[1, 1, 0, 0, 0][..], &place.to_le_bytes(), &(-place).to_le_bytes()].concat();
            return;
        }
        _ => return,
    };
    match column.get_physical_type() {
        Physical::INT32 => {
            let number = i32::from_le_bytes(value[..].try_into().unwrap());
            *value = number.rem_euclid(most as i32).to_le_bytes().to_vec();
        }
        _ => {
            let number = i64::from_le_bytes(value[..].try_into().unwrap());
            *value = number.rem_euclid(most).to_le_bytes().to_vec();
        }
    }
}

/// Shreds `rows` records of `schema` into the columns of its leaves.
pub fn records(schema: &Type, rows: usize, random: &mut Random) -> Vec<Column> {
    let mut columns = vec![Column::default(); leaves(schema).len()];
    for _ in 0..rows {
        let mut leaf = 0;
        for field in schema.get_fields() {
            shred(field, (0, 0, 0), random, &mut columns, &mut leaf);
        }
    }
    columns
}

/// One value of `node` at these levels: definition, repetition, and the repetition of values that follow.
fn shred(node: &Type, at: (i16, i16, i16), random: &mut Random, columns: &mut [Column], leaf: &mut usize) {
    let (definition, repetition, repeated) = at;
    match node.get_basic_info().repetition() {
        Repetition::REQUIRED => content(node, at, random, columns, leaf),
        // Columns of the type UNKNOWN have no values.
        _ if node.get_basic_info().logical_type_ref() == Some(&LogicalType::Unknown) => {
            absent(node, definition, repetition, columns, leaf);
        }
        Repetition::OPTIONAL if random.is_one_in(5) => absent(node, definition, repetition, columns, leaf),
        Repetition::OPTIONAL => content(node, (definition + 1, repetition, repeated), random, columns, leaf),
        Repetition::REPEATED => {
            let times = random.below(4);
            if times == 0 {
                return absent(node, definition, repetition, columns, leaf);
            }
            let first = *leaf;
            for time in 0..times {
                *leaf = first;
                let repetition = if time == 0 { repetition } else { repeated + 1 };
                content(node, (definition + 1, repetition, repeated + 1), random, columns, leaf);
            }
        }
    }
}

fn content(node: &Type, at: (i16, i16, i16), random: &mut Random, columns: &mut [Column], leaf: &mut usize) {
    let (definition, mut repetition, repeated) = at;
    if node.is_primitive() {
        let column = &mut columns[*leaf];
        column.definitions.push(definition);
        column.repetitions.push(repetition);
        column.values.push(value(node, random));
        *leaf += 1;
        return;
    }
    for field in node.get_fields() {
        shred(field, (definition, repetition, repeated), random, columns, leaf);
        repetition = at.1;
    }
}

fn absent(node: &Type, definition: i16, repetition: i16, columns: &mut [Column], leaf: &mut usize) {
    for _ in 0..leaves(node).len() {
        columns[*leaf].definitions.push(definition);
        columns[*leaf].repetitions.push(repetition);
        *leaf += 1;
    }
}

/// The leaves below a type.
pub fn leaves(node: &Type) -> Vec<&Type> {
    if node.is_primitive() {
        return vec![node];
    }
    node.get_fields().iter().flat_map(|field| leaves(field)).collect()
}

/// Writes row groups of records, one after the other.
pub fn write(path: &Path, schema: &TypePtr, groups: &[Vec<Column>], properties: WriterProperties) {
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::clone(schema), Arc::new(properties)).unwrap();
    for columns in groups {
        let mut group = writer.next_row_group().unwrap();
        for (column, leaf) in columns.iter().zip(leaves(schema)) {
            match leaf.get_physical_type() {
                Physical::BOOLEAN => put::<BoolType>(&mut group, column, |bytes| bytes[0] == 1),
                Physical::INT32 => put::<Int32Type>(&mut group, column, |b| i32::from_le_bytes(b.try_into().unwrap())),
                Physical::INT64 => put::<Int64Type>(&mut group, column, |b| i64::from_le_bytes(b.try_into().unwrap())),
                Physical::INT96 => put::<Int96Type>(&mut group, column, |bytes| {
                    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                    Int96::from(vec![word(0), word(4), word(8)])
                }),
                Physical::FLOAT => put::<FloatType>(&mut group, column, |b| f32::from_le_bytes(b.try_into().unwrap())),
                Physical::DOUBLE => {
                    put::<DoubleType>(&mut group, column, |b| f64::from_le_bytes(b.try_into().unwrap()))
                }
                Physical::BYTE_ARRAY => put::<ByteArrayType>(&mut group, column, |b| ByteArray::from(b.to_vec())),
                Physical::FIXED_LEN_BYTE_ARRAY => {
                    put::<FixedLenByteArrayType>(&mut group, column, |b| ByteArray::from(b.to_vec()).into());
                }
            }
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn put<T: DataType>(
    group: &mut parquet::file::writer::SerializedRowGroupWriter<'_, File>,
    column: &Column,
    of: impl Fn(&[u8]) -> T::T,
) {
    let values: Vec<T::T> = column.values.iter().map(|bytes| of(bytes)).collect();
    let mut writer = group.next_column().unwrap().unwrap();
    let (definitions, repetitions) = (Some(&column.definitions[..]), Some(&column.repetitions[..]));
    let typed = writer.typed::<T>();
    let has_repetitions = typed.get_descriptor().max_rep_level() > 0;
    typed.write_batch(&values, definitions, repetitions.filter(|_| has_repetitions)).unwrap();
    writer.close().unwrap();
}

/// The columns of a file, all row groups together.
pub fn read(path: &Path) -> Vec<Column> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let mut columns = vec![Column::default(); reader.metadata().file_metadata().schema_descr().num_columns()];
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).unwrap();
        for (index, column) in columns.iter_mut().enumerate() {
            match group.get_column_reader(index).unwrap() {
                ColumnReader::BoolColumnReader(reader) => take(reader, column),
                ColumnReader::Int32ColumnReader(reader) => take(reader, column),
                ColumnReader::Int64ColumnReader(reader) => take(reader, column),
                ColumnReader::Int96ColumnReader(reader) => take(reader, column),
                ColumnReader::FloatColumnReader(reader) => take(reader, column),
                ColumnReader::DoubleColumnReader(reader) => take(reader, column),
                ColumnReader::ByteArrayColumnReader(reader) => take(reader, column),
                ColumnReader::FixedLenByteArrayColumnReader(reader) => take(reader, column),
            }
        }
    }
    columns
}

fn take<T: DataType>(mut reader: ColumnReaderImpl<T>, column: &mut Column) {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let read = reader.read_records(usize::MAX, Some(&mut definitions), Some(&mut repetitions), &mut values);
    let (_, num_values, levels) = read.unwrap();
    // Levels that can only be zero are not there.
    definitions.resize(levels.max(num_values), 0);
    repetitions.resize(definitions.len(), 0);
    column.definitions.extend(definitions);
    column.repetitions.extend(repetitions);
    column.values.extend(values.iter().map(|value| value.as_bytes().to_vec()));
}
