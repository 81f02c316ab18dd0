//! Cost model of layouts. All figures are estimates; none is measured on the current machine.
//!
//! | constant                    | value      | from                                                                  |
//! |-----------------------------|------------|-----------------------------------------------------------------------|
//! | [`LINK`]                    | 55 GB/s    | measured, host to device over PCIe 5 x16                              |
//! | [`PAGE_DECOMPRESSION`]      | 0.15 GB/s  | estimate of compressed bytes that a warp reads; 0.15 to 0.2           |
//! | [`DEVICE_DECOMPRESSION`]    | 300 GB/s   | estimate of compressed bytes that a device reads                      |
//! | [`PAGES_IN_FLIGHT`]         | 400        | the link over what a page reads: `LINK / PAGE_DECOMPRESSION`          |
//! | [`EXTENT_ROWS`]             | 2^24       | rows that are decoded at a time                                       |
//! | [`HOST_CORES`]              | 16         | assumed                                                               |
//! | [`HOST_DECODING`]           | 0.75 GB/s  | estimate of raw bytes a core decodes; parquet-rs 0.5 to 1.5           |
//! | [`host_decompression`]      | 0.3 to 1.2 | estimate of raw bytes a core makes; ZSTD 1.2 to 3.3                   |
//! | [`PAGE_HEADER`]             | 0.4 µs     | estimate of the host's work for a page; 0.3 to 0.5                    |
//! | [`CHUNK`], [`FILE`]         | 20, 100 µs | guesses: a read and a dictionary for each chunk; a footer for a file  |
//! | [`STRING_WALK`]             | 26 ns      | estimate: 45 cycles for each string of a PLAIN page, one by one       |
//! | [`TEXT_BYTES`]              | 40 GB/s    | others' figure for strings as bytes: cuDF, 36 to 39                   |
//! | [`MEMORY`]                  | 3,300 GB/s | 70 % of an H200's memory bandwidth                                    |
//!
//! The link, the device and the host work at the same time, so a scan takes as long as the slowest of them.

use parquet::basic::CompressionCodec;

use super::ColumnReport;

const GIGA: f64 = 1e9;
pub const LINK: f64 = 55.0 * GIGA;
pub const PAGE_DECOMPRESSION: f64 = 0.15 * GIGA;
pub const DEVICE_DECOMPRESSION: f64 = 300.0 * GIGA;
pub const PAGES_IN_FLIGHT: f64 = 400.0;
pub const EXTENT_ROWS: f64 = 16_777_216.0;
pub const HOST_CORES: f64 = 16.0;
pub const HOST_DECODING: f64 = 0.75 * GIGA;
pub const PAGE_HEADER: f64 = 0.4e-6;
pub const CHUNK: f64 = 20e-6;
pub const FILE: f64 = 100e-6;
pub const STRING_WALK: f64 = 26e-9;
pub const TEXT_BYTES: f64 = 40.0 * GIGA;
pub const MEMORY: f64 = 3_300.0 * GIGA;

/// Raw bytes per second that one core decompresses.
pub fn host_decompression(codec: CompressionCodec) -> f64 {
    match codec {
        CompressionCodec::ZSTD => 1.2 * GIGA,
        CompressionCodec::GZIP => 0.3 * GIGA,
        CompressionCodec::BROTLI => 0.35 * GIGA,
        _ => 1.0 * GIGA,
    }
}

/// Estimated duration of a scan of all columns, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Bytes over the link.
    pub link: f64,
    /// Decompression on the device.
    pub device: f64,
    /// Decompression and decoding on the host.
    pub host: f64,
}

impl Estimate {
    /// Maximum of the three: they overlap.
    pub fn total(&self) -> f64 {
        self.link.max(self.device).max(self.host)
    }

    pub(super) fn of(columns: &[ColumnReport], rows: u64) -> Self {
        let in_flight = in_flight(columns, rows);
        let mut estimate = Self::default();
        let mut decompressed = 0;
        for column in columns {
            if column.is_read_by_device() {
                estimate.link += (column.device_bytes() as f64) / LINK;
                estimate.host += column.host_decompression + decoding(column.host_page_raw_bytes);
                decompressed += column.device_compressed_bytes;
            } else {
                estimate.link += column.raw_bytes as f64 / LINK;
                estimate.host += decoding(column.raw_bytes);
            }
        }
        estimate.device = decompression(decompressed, in_flight);
        estimate
    }
}

/// Pages of all columns that are decoded at the same time.
pub(super) fn in_flight(columns: &[ColumnReport], rows: u64) -> f64 {
    let pages: u64 = columns.iter().filter(|column| column.is_read_by_device()).map(ColumnReport::likely_pages).sum();
    pages as f64 * of_extent(rows)
}

/// The share of a table that is decoded at the same time.
pub(super) fn of_extent(rows: u64) -> f64 {
    (EXTENT_ROWS / rows.max(1) as f64).min(1.0)
}

/// Seconds to decompress on the device.
pub(super) fn decompression(compressed_bytes: u64, in_flight: f64) -> f64 {
    if compressed_bytes == 0 {
        return 0.0;
    }
    compressed_bytes as f64 / DEVICE_DECOMPRESSION.min(in_flight.max(1.0) * PAGE_DECOMPRESSION)
}

/// Seconds to decode on the host.
pub(super) fn decoding(raw_bytes: u64) -> f64 {
    raw_bytes as f64 / (HOST_DECODING * HOST_CORES)
}
