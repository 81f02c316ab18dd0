//! Takes the compression off a page.
//!
//!   V1  [ levels, values ] compressed                 V2  levels │ [ values ] compressed
//!   LZ4 is three things: frames of Hadoop, the frame format, or a bare block; tried in this order, as parquet does.
//!
//! Memory   the output has the size that the page's header promises, no byte more; another size is an error.

use std::cell::RefCell;
use std::io::Read;

use parquet::basic::CompressionCodec;

use crate::error::{PageError, Result};
use crate::pages::Page;

/// The body of `page` within `chunk`, as it lies there.
pub(crate) fn stored<'a>(page: &Page, chunk: &'a [u8]) -> Result<&'a [u8]> {
    chunk.get(page.bytes.clone()).ok_or_else(|| PageError::Shape("a page lies outside its chunk".into()))
}

/// Fills `into` with the body of `page`, decompressed: [`Page::raw`] bytes, the levels in front as they were.
///
/// # Errors
/// [`PageError::Codec`] of damaged bytes, [`PageError::Unsupported`] of LZO.
pub fn decompress(page: &Page, chunk: &[u8], codec: CompressionCodec, into: &mut Vec<u8>) -> Result<()> {
    let body = stored(page, chunk)?;
    // What lies in `into` is overwritten, so only growth costs anything.
    into.resize(page.raw as usize, 0);
    if !page.is_compressed {
        if body.len() != into.len() {
            return Err(PageError::Malformed("a stored page has two sizes"));
        }
        into.copy_from_slice(body);
        return Ok(());
    }
    let levels = page.level_bytes.0 as usize + page.level_bytes.1 as usize;
    if levels > body.len() || levels > into.len() {
        return Err(PageError::Malformed("levels are longer than the page"));
    }
    let (front, values) = into.split_at_mut(levels);
    front.copy_from_slice(&body[..levels]);
    // A page of NULLs alone has no values, and not always a compressed form of nothing.
    if values.is_empty() { Ok(()) } else { inflate(&body[levels..], codec, values) }
}

fn inflate(body: &[u8], codec: CompressionCodec, out: &mut [u8]) -> Result<()> {
    let failed = |message: String| PageError::Codec { codec, message };
    let size = out.len();
    let written = match codec {
        CompressionCodec::SNAPPY => snappy(body, out),
        CompressionCodec::LZ4_RAW => lz4_flex::block::decompress_into(body, out).map_err(|error| error.to_string()),
        CompressionCodec::LZ4 => lz4(body, out),
        CompressionCodec::ZSTD => zstd(body, out),
        CompressionCodec::GZIP => fill(flate2::read::MultiGzDecoder::new(body), out),
        CompressionCodec::BROTLI => fill(brotli::Decompressor::new(body, 1 << 16), out),
        CompressionCodec::UNCOMPRESSED | CompressionCodec::LZO => {
            return Err(PageError::Unsupported(format!("pages compressed as {codec} are not read")));
        }
    };
    match written.map_err(failed)? {
        written if written == size => Ok(()),
        written => Err(failed(format!("{written} bytes, but its header promises {size}"))),
    }
}

fn snappy(body: &[u8], out: &mut [u8]) -> std::result::Result<usize, String> {
    match snap::raw::decompress_len(body) {
        Ok(length) if length == out.len() => {
            snap::raw::Decoder::new().decompress(body, out).map_err(|error| error.to_string())
        }
        Ok(length) => Ok(length),
        Err(error) => Err(error.to_string()),
    }
}

thread_local! {
    /// Its tables are too large to be made anew for each page.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

fn zstd(body: &[u8], out: &mut [u8]) -> std::result::Result<usize, String> {
    ZSTD.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(zstd::bulk::Decompressor::new().map_err(|error| error.to_string())?),
        };
        decompressor.decompress_to_buffer(body, out).map_err(|error| error.to_string())
    })
}

fn lz4(body: &[u8], out: &mut [u8]) -> std::result::Result<usize, String> {
    let whole = Ok(out.len());
    let written = hadoop(body, out);
    if written == whole {
        return written;
    }
    let written = fill(lz4_flex::frame::FrameDecoder::new(body), out);
    if written == whole {
        return written;
    }
    lz4_flex::block::decompress_into(body, out).map_err(|error| error.to_string())
}

/// Frames of Hadoop: two big-endian sizes, decompressed and compressed, and a block.
fn hadoop(mut body: &[u8], out: &mut [u8]) -> std::result::Result<usize, String> {
    let cut_short = || String::from("a frame is cut short");
    let mut at = 0;
    while !body.is_empty() {
        let (raw, rest) = body.split_first_chunk::<4>().ok_or_else(cut_short)?;
        let (size, rest) = rest.split_first_chunk::<4>().ok_or_else(cut_short)?;
        let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize).ok_or_else(cut_short)?;
        let end = at + u32::from_be_bytes(*raw) as usize;
        let out = out.get_mut(at..end).ok_or_else(cut_short)?;
        let written = lz4_flex::block::decompress_into(block, out).map_err(|error| error.to_string())?;
        if written != out.len() {
            return Err(cut_short());
        }
        (body, at) = (rest, end);
    }
    Ok(at)
}

/// Reads until `out` is full, and tells a stream that is longer.
fn fill(mut from: impl Read, out: &mut [u8]) -> std::result::Result<usize, String> {
    let mut at = 0;
    while at < out.len() {
        match from.read(&mut out[at..]) {
            Ok(0) => return Ok(at),
            Ok(read) => at += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    match from.read(&mut [0]) {
        Ok(more) => Ok(at + more),
        Err(error) => Err(error.to_string()),
    }
}
