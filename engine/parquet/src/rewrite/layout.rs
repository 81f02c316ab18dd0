//! The layout of files that a device reads fast, as properties of the parquet crate's writer.
//!
//! ```text
//!   row group   1 Mi rows: 64 pages of 16,384 rows in each column, so that 1,024 pages of a column are decoded at a
//!               time
//!   page        V2, stored as it is where compression gains less than a tenth
//!   column      few values ► RLE_DICTIONARY     sorted integers ► DELTA_BINARY_PACKED
//!               strings ► DELTA_LENGTH_BYTE_ARRAY, whose lengths decode in parallel     everything else ► PLAIN
//!               (decimals in bytes, geometries, and strings that an Arrow schema in the file makes a dictionary of are
//!               PLAIN)
//! ```
//!
//! Never     DELTA_BYTE_ARRAY, which the writer would choose for strings in V2 pages · a dictionary that ends in
//!           mid-chunk.
//! Index     of pages, with statistics, for every column.

use parquet::basic::{Compression, ConvertedType, Encoding, LogicalType, Type as Physical, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

/// Rows of a data page. The writer counts them after each 1,024, so pages have exactly these.
pub const PAGE_ROWS: usize = 16_384;
/// Default rows per row group.
pub const ROW_GROUP_ROWS: usize = 1 << 20;
/// Maximum bytes of a dictionary. Strings with larger dictionaries get no codes on the device either.
pub const DICTIONARY_BYTES: usize = 1 << 20;
/// A page whose compressed values are larger than this share of the page is stored as it is.
pub const STORED_ABOVE: f64 = 0.9;

/// Compression of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    None,
    #[default]
    Snappy,
    Lz4Raw,
    /// Smaller, and decompressed on the host.
    Zstd,
}

impl Codec {
    fn compression(self) -> Compression {
        match self {
            Self::None => Compression::UNCOMPRESSED,
            Self::Snappy => Compression::SNAPPY,
            Self::Lz4Raw => Compression::LZ4_RAW,
            // Higher levels cost much time for few bytes.
            Self::Zstd => Compression::ZSTD(ZstdLevel::default()),
        }
    }
}

/// Facts about a column's values, known before they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hint {
    /// Few values, so that a dictionary holds them in every chunk. `None` lets the writer try, and give up in
    /// mid-chunk.
    pub dictionary: Option<bool>,
    /// Ascending integers without NULLs.
    pub sorted: bool,
    /// With a Bloom filter.
    pub bloom_filter: bool,
    /// Strings whose readers make dictionaries of them: pyarrow cannot where pages have DELTA_LENGTH_BYTE_ARRAY.
    pub plain: bool,
}

/// The properties that write `schema` in the layout for devices. `hints` are those of its leaf columns, in order;
/// columns without one get [`Hint::default`].
pub fn writer_properties(
    schema: &SchemaDescriptor,
    codec: Codec,
    row_group_rows: usize,
    hints: &[Hint],
) -> WriterPropertiesBuilder {
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(codec.compression())
        .set_data_page_v2_compression_ratio_threshold(STORED_ABOVE)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_max_row_group_row_count(Some(row_group_rows))
        .set_statistics_enabled(EnabledStatistics::Page);
    for (index, column) in schema.columns().iter().enumerate() {
        let hint = hints.get(index).copied().unwrap_or_default();
        let is_dictionary = hint.dictionary.unwrap_or(true) && column.physical_type() != Physical::BOOLEAN;
        properties = properties
            .set_column_dictionary_enabled(column.path().clone(), is_dictionary)
            .set_column_encoding(column.path().clone(), encoding(column, hint));
        if hint.bloom_filter {
            properties = properties.set_column_bloom_filter_enabled(column.path().clone(), true);
        }
    }
    properties
}

/// The encoding of pages without a dictionary.
fn encoding(column: &ColumnDescriptor, hint: Hint) -> Encoding {
    match column.physical_type() {
        Physical::BYTE_ARRAY if is_text(column) && !hint.plain => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Physical::INT32 | Physical::INT64 if hint.sorted => Encoding::DELTA_BINARY_PACKED,
        _ => Encoding::PLAIN,
    }
}

/// Strings and bytes. Of decimals and geometries DuckDB does not read DELTA_LENGTH_BYTE_ARRAY.
fn is_text(column: &ColumnDescriptor) -> bool {
    match column.logical_type_ref() {
        Some(LogicalType::String | LogicalType::Enum | LogicalType::Json | LogicalType::Bson) => true,
        Some(_) => false,
        None => column.converted_type() != ConvertedType::DECIMAL,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;

    use super::*;

    #[test]
    fn each_column_gets_the_encoding_that_suits_it() {
        let message = "message m { required int64 key; required int32 size; optional binary note (UTF8); \
                       required boolean flag; required fixed_len_byte_array(16) id; \
                       required binary price (DECIMAL(30, 2)); }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(message).unwrap()));
        let sorted = Hint { dictionary: Some(false), sorted: true, bloom_filter: true, plain: false };
        let properties = writer_properties(&schema, Codec::default(), 1 << 20, &[sorted]).build();
        let of = |index: usize| {
            let path = schema.column(index).path().clone();
            (properties.encoding(&path).unwrap(), properties.dictionary_enabled(&path))
        };
        assert_eq!(of(0), (Encoding::DELTA_BINARY_PACKED, false));
        assert_eq!(of(1), (Encoding::PLAIN, true));
        assert_eq!(of(2), (Encoding::DELTA_LENGTH_BYTE_ARRAY, true));
        assert_eq!(of(3), (Encoding::PLAIN, false));
        assert_eq!(of(4), (Encoding::PLAIN, true));
        assert_eq!(of(5), (Encoding::PLAIN, true));
        let hints = [Hint::default(), Hint::default(), Hint { plain: true, ..Hint::default() }];
        let plain = writer_properties(&schema, Codec::default(), 1 << 20, &hints).build();
        assert_eq!(plain.encoding(schema.column(2).path()), Some(Encoding::PLAIN));
        let key = schema.column(0).path().clone();
        assert!(properties.bloom_filter_properties(&key).is_some());
        assert_eq!(properties.data_page_v2_compression_ratio_threshold(), 0.9);
        assert_eq!(properties.compression(&key), Compression::SNAPPY);
    }
}
