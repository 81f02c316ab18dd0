//! Columns of every type, by seed: how many different values, in which order, which of them NULL, and how written.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, StringArray, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub fn is_one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

pub fn types() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Date32,
        Date64,
        Time32(TimeUnit::Second),
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Microsecond),
        Time64(TimeUnit::Nanosecond),
        Duration(TimeUnit::Millisecond),
        Duration(TimeUnit::Nanosecond),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(5),
        FixedSizeBinary(16),
        Dictionary(Box::new(Int32), Box::new(Utf8)),
        Decimal32(7, 2),
        Decimal64(9, 1),
        Decimal64(17, 2),
        Decimal128(5, 2),
        Decimal128(15, 2),
        Decimal128(25, 3),
        Decimal128(38, 9),
    ];
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        types.push(Timestamp(unit, None));
        types.push(Timestamp(unit, Some("UTC".into())));
    }
    types
}

/// Which rows are NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    None,
    Few,
    Half,
    Runs,
    All,
}

/// Values below `distinct`, in some order; offset by something that depends on the type.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    Random,
    Sorted,
    Ascending,
    Runs,
}

fn numbers(random: &mut Random, rows: usize, distinct: u64, order: Order) -> Vec<u64> {
    let mut run = 0;
    let mut numbers: Vec<u64> = (0..rows as u64)
        .map(|row| match order {
            Order::Ascending => row,
            Order::Runs => {
                if random.is_one_in(50) {
                    run = random.next() % distinct;
                }
                run
            }
            Order::Random | Order::Sorted => random.next() % distinct,
        })
        .collect();
    if matches!(order, Order::Sorted) {
        numbers.sort_unstable();
    }
    numbers
}

pub fn nulls(random: &mut Random, rows: usize, nulls: Nulls) -> Option<NullBuffer> {
    let mut run = true;
    let valid: Vec<bool> = (0..rows)
        .map(|_| match nulls {
            Nulls::None => true,
            Nulls::Few => !random.is_one_in(100),
            Nulls::Half => random.is_one_in(2),
            Nulls::Runs => {
                run ^= random.is_one_in(70);
                run
            }
            Nulls::All => false,
        })
        .collect();
    (nulls != Nulls::None).then(|| NullBuffer::from(valid))
}

/// An array of `data_type`.
pub fn array(
    random: &mut Random,
    data_type: &DataType,
    rows: usize,
    distinct: u64,
    order: Order,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    let numbers = numbers(random, rows, distinct, order);
    let text = |number: u64| match number % 5 {
        0 => String::new(),
        1 => format!("é{number}"),
        2 => format!("{number:x}"),
        3 => format!("a longer text about the number {number}, which goes on for a while"),
        _ => format!("shared front {}", number / 3),
    };
    let texts = || numbers.iter().map(|number| text(*number));
    match data_type {
        DataType::Boolean => {
            let bits = numbers.iter().map(|number| number % 3 == 0).collect::<Vec<_>>();
            Arc::new(BooleanArray::new(bits.into(), nulls))
        }
        DataType::FixedSizeBinary(length) => {
            let bytes =
                numbers.iter().flat_map(|number| u128::from(*number).to_be_bytes()[16 - *length as usize..].to_vec());
            let bytes: Vec<u8> = bytes.collect();
            Arc::new(FixedSizeBinaryArray::new(*length, bytes.into(), nulls))
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let bytes = texts().map(|text| [text.as_bytes(), &[0xff]].concat()).collect::<Vec<_>>();
            let plain = BinaryArray::from_iter_values(bytes);
            let (offsets, values, _) = plain.into_parts();
            cast(&BinaryArray::new(offsets, values, nulls), data_type).unwrap()
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
            let (offsets, values, _) = StringArray::from_iter_values(texts()).into_parts();
            cast(&StringArray::new(offsets, values, nulls), data_type).unwrap()
        }
        _ => {
            let width = data_type.primitive_width().unwrap();
            let most = match data_type {
                DataType::Decimal32(precision, _)
                | DataType::Decimal64(precision, _)
                | DataType::Decimal128(precision, _) => 10_i128.pow(u32::from(*precision)) - 1,
                DataType::Time32(TimeUnit::Second) => 86_400,
                DataType::Time32(_) => 86_400_000,
                DataType::Time64(_) => 86_400_000_000,
                _ => i128::MAX,
            };
            // Negative numbers, and large ones, where the type has them.
            let offset = match random.below(3) {
                _ if matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) => 0,
                0 => 0,
                1 => -((distinct / 2) as i128),
                _ => i128::from(random.next() as i64) << random.below(60),
            };
            let mut bytes = Vec::new();
            for number in &numbers {
                let number = (i128::from(*number) + offset) % most.max(1);
                bytes.extend_from_slice(&number.to_le_bytes()[..width]);
            }
            let data = ArrayData::builder(data_type.clone()).len(rows).add_buffer(Buffer::from_vec(bytes)).nulls(nulls);
            make_array(data.align_buffers(true).build().unwrap())
        }
    }
}

/// Encodings that a writer can be set to use for a type, besides a dictionary.
fn encodings(data_type: &DataType) -> &'static [Encoding] {
    use Encoding::*;
    match data_type {
        DataType::Boolean => &[PLAIN, RLE],
        DataType::Float32 | DataType::Float64 => &[PLAIN, BYTE_STREAM_SPLIT],
        DataType::FixedSizeBinary(_) | DataType::Decimal128(19.., _) => &[PLAIN, DELTA_BYTE_ARRAY, BYTE_STREAM_SPLIT],
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::Dictionary(..) => &[PLAIN, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY],
        _ => &[PLAIN, DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT],
    }
}

/// Properties of a writer, as many different ones as there are seeds.
pub fn properties(random: &mut Random, data_type: &DataType) -> WriterProperties {
    let codec = random.one_of(&[
        Compression::UNCOMPRESSED,
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::LZ4,
        Compression::ZSTD(Default::default()),
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
    ]);
    let is_coded = !random.is_one_in(3);
    let mut properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(random.one_of(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]))
        .set_write_batch_size(random.one_of(&[64, 1_000]))
        .set_data_page_row_count_limit(random.one_of(&[100, 1_000, 20_000]))
        .set_data_page_size_limit(random.one_of(&[500, 10_000, 1 << 20]))
        .set_dictionary_page_size_limit(random.one_of(&[100, 2_000, 1 << 20]))
        .set_max_row_group_row_count(Some(random.one_of(&[1_500, 100_000])))
        .set_dictionary_enabled(is_coded);
    if !is_coded || random.is_one_in(2) {
        properties = properties.set_encoding(random.one_of(encodings(data_type)));
    }
    properties.build()
}
