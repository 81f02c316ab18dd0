//! How fast are typical columns decoded, on one core?
//!
//!   cargo run -p millpond-parquet --example decode_speed -- [part of a name]
//!
//! Reports  ns a value, GB/s of output and of file, best of several runs over a warm chunk, decompression included
//! Note     in the dev profile only this crate is fully optimised; codecs are dependencies at opt-level 1

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::datatypes::{Field, Schema};
use bytes::Bytes;
use millpond_parquet::*;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

const ROWS: usize = 1 << 17;
/// The best of many runs, since others use the machine as well.
const TIME: Duration = Duration::from_millis(400);

struct Codes(u32);

impl Intern for Codes {
    fn codes(&mut self, values: &ArrayRef) -> Result<Vec<u32>, Stopped> {
        let first = self.0;
        self.0 += values.len() as u32;
        Ok((first..self.0).collect())
    }
}

fn random(row: usize) -> u64 {
    let mut z = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn integers(width: u8, base: i64) -> Layout {
    Layout::Integers { width, base, range: None }
}

fn measure(name: &str, array: ArrayRef, properties: WriterPropertiesBuilder, layout: Layout) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let is_nullable = array.null_count() > 0;
    let schema = Arc::new(Schema::new(vec![Field::new("x", array.data_type().clone(), is_nullable)]));
    let properties = properties.set_max_row_group_row_count(Some(ROWS)).build();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, Arc::clone(&schema), Some(properties)).expect("a writer");
    writer.write(&RecordBatch::try_new(schema, vec![array]).expect("a batch")).expect("written");
    writer.close().expect("closed");
    let file = Bytes::from(file);
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).expect("metadata");
    let meta = metadata.metadata().row_group(0).column(0);
    let (offset, length) = meta.byte_range();
    let chunk = &file[offset as usize..(offset + length) as usize];
    let conversion = Conversion::of(meta.column_descr(), metadata.schema().field(0).data_type()).expect("a conversion");
    let width = match layout {
        Layout::Integers { width, .. } => width.into(),
        Layout::Floats => 8,
        Layout::Bits | Layout::Codes | Layout::Texts | Layout::Positions => 4,
    };
    let mut values = vec![0; (ROWS + 1) * width];
    let mut validity = vec![0; ROWS / 8];
    let mut best = Duration::MAX;
    let mut texts = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME {
        texts.clear();
        let mut out = Out::new(&mut values, is_nullable.then_some(&mut validity), Some(&mut texts));
        let begin = Instant::now();
        let pages = walk(chunk, meta, ROWS as u64).expect("pages");
        let mut reader =
            ColumnReader::new(chunk, &pages, meta, meta.column_descr(), &conversion, layout).expect("a reader");
        let facts = reader.read(ROWS as u64, 0, &mut out, &mut Codes(0)).expect("decoded");
        best = best.min(begin.elapsed());
        assert_eq!(facts.rows, ROWS as u64);
    }
    let seconds = best.as_secs_f64();
    let written = (ROWS * width + texts.len()) as f64;
    println!(
        "{name:<44} {:>6.2} ns/value {:>7.2} GB/s out {:>7.2} GB/s in",
        seconds * 1e9 / ROWS as f64,
        written / seconds / 1e9,
        length as f64 / seconds / 1e9
    );
}

fn main() {
    let plain = || WriterProperties::builder().set_dictionary_enabled(false);
    let coded = || WriterProperties::builder().set_dictionary_page_size_limit(64 << 20);
    let snappy = |properties: WriterPropertiesBuilder| properties.set_compression(Compression::SNAPPY);
    let delta = || plain().set_encoding(Encoding::DELTA_BINARY_PACKED);
    let ints = |of: &dyn Fn(usize) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values((0..ROWS).map(of))) };
    let below = |n: u64| move |row: usize| (random(row) % n) as i64;
    for n in [7, 50, 200, 2_500, 60_000, 500_000] {
        let width = if n <= 256 {
            1
        } else if n <= 65_536 {
            2
        } else {
            4
        };
        measure(&format!("dictionary of {n}, INT64 to {width} bytes"), ints(&below(n)), coded(), integers(width, 0));
    }
    let dates: ArrayRef = Arc::new(arrow::array::Date32Array::from_iter_values(
        (0..ROWS).map(|row| 8_000 + (random(row) % 2_500) as i32),
    ));
    measure("dictionary of 2,500 dates to 2 bytes, Snappy", dates, snappy(coded()), integers(2, 8_000));
    measure("dictionary, sorted, 50 rows each, to 2 bytes", ints(&|row| row as i64 / 50), coded(), integers(2, 0));
    let half: ArrayRef = Arc::new(Int64Array::from_iter(
        (0..ROWS).map(|row| random(row).is_multiple_of(2).then_some((random(row) >> 8) as i64 % 200)),
    ));
    measure("dictionary of 200, half NULL, to 1 byte", Arc::clone(&half), coded(), integers(1, 0));
    measure("PLAIN INT64, half NULL, to 1 byte", half, plain(), integers(1, 0));
    measure("PLAIN INT64 to 1 byte", ints(&below(200)), plain(), integers(1, 0));
    measure("PLAIN INT64 to 4 bytes", ints(&below(1 << 31)), plain(), integers(4, 0));
    measure(
        "PLAIN INT64 to 4 bytes, in range",
        ints(&below(1 << 31)),
        plain(),
        Layout::Integers { width: 4, base: 0, range: Some((0, 1 << 31)) },
    );
    measure("PLAIN INT64 to 8 bytes", ints(&|row| random(row) as i64), plain(), integers(8, 0));
    measure("PLAIN INT64 sorted to 4 bytes", ints(&|row| row as i64), plain(), integers(4, 0));
    measure("PLAIN INT64 to 4 bytes, Snappy", ints(&below(1 << 31)), snappy(plain()), integers(4, 0));
    let narrow: ArrayRef = Arc::new(Int32Array::from_iter_values((0..ROWS).map(|row| (random(row) % 200) as i32)));
    measure("PLAIN INT32 to 1 byte", Arc::clone(&narrow), plain(), integers(1, 0));
    measure("PLAIN INT32 to 4 bytes", narrow, plain(), integers(4, 0));
    measure("DELTA INT64 random to 4 bytes", ints(&below(1 << 20)), delta(), integers(4, 0));
    measure("DELTA INT64 sorted to 4 bytes", ints(&|row| row as i64 * 3), delta(), integers(4, 0));
    let decimals = |precision| -> ArrayRef {
        let values = Decimal128Array::from_iter_values((0..ROWS).map(|row| i128::from(random(row) % 1_000_000)));
        Arc::new(values.with_precision_and_scale(precision, 2).expect("they fit"))
    };
    measure("PLAIN FIXED(11) decimals to 4 bytes", decimals(25), plain(), integers(4, 0));
    measure("PLAIN INT64 decimals to 4 bytes", decimals(15), plain(), integers(4, 0));
    let floats: ArrayRef = Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| random(row) as f64)));
    measure("PLAIN DOUBLE", Arc::clone(&floats), plain(), Layout::Floats);
    measure("BYTE_STREAM_SPLIT DOUBLE", floats, plain().set_encoding(Encoding::BYTE_STREAM_SPLIT), Layout::Floats);
    let flags: ArrayRef = Arc::new(BooleanArray::from_iter((0..ROWS).map(|row| Some(random(row).is_multiple_of(3)))));
    measure("PLAIN BOOLEAN", flags, plain(), Layout::Bits);
    let texts = |n: u64, long: &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("{long}{}", random(row) % n))))
    };
    measure("dictionary of 200 strings to codes", texts(200, "name "), coded(), Layout::Codes);
    measure("dictionary of 200 strings to texts", texts(200, "name "), coded(), Layout::Texts);
    measure("PLAIN strings of 12 bytes to texts", texts(9_000_000, "text "), plain(), Layout::Texts);
    measure("PLAIN strings of 12 bytes to texts, Snappy", texts(9_000_000, "text "), snappy(plain()), Layout::Texts);
    let comment = "carefully final deposits detect ";
    measure("PLAIN strings of 40 bytes to texts, Snappy", texts(9_000_000, comment), snappy(plain()), Layout::Texts);
    let lengths = plain().set_encoding(Encoding::DELTA_LENGTH_BYTE_ARRAY);
    measure("DELTA_LENGTH strings of 12 bytes to texts", texts(9_000_000, "text "), lengths, Layout::Texts);
}
