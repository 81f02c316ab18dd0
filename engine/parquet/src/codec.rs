//! Decompresses pages.
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

/// The body of `page` within `chunk`, still compressed.
pub(crate) fn stored<'a>(page: &Page, chunk: &'a [u8]) -> Result<&'a [u8]> {
    chunk.get(page.bytes.clone()).ok_or_else(|| PageError::Shape("a page lies outside its chunk".into()))
}

/// Fills `into` with the body of `page`, decompressed: [`Page::raw`] bytes, the levels in front as they were.
///
/// # Errors
/// [`PageError::Codec`] of damaged bytes, [`PageError::Unsupported`] of LZO.
pub fn decompress(page: &Page, chunk: &[u8], codec: CompressionCodec, into: &mut Vec<u8>) -> Result<()> {
    let body = stored(page, chunk)?;
    // The old contents of `into` are overwritten; only growth has a cost.
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

/// Starts of the blocks of a Snappy stream, as offsets in the stream and in its output, if all blocks have 64 KiB and
/// no copy reaches back beyond its block. Snappy's format_description.txt allows more, but its compressors do not use
/// it. `None` for other streams and for malformed ones.
pub fn snappy_blocks(stream: &[u8]) -> Option<Vec<(u32, u32)>> {
    const BLOCK: usize = 1 << 16;
    let (mut size, mut at) = (0_usize, 0);
    loop {
        let byte = *stream.get(at)?;
        size |= usize::from(byte & 127).checked_shl(7 * at as u32).filter(|_| at < 5)?;
        at += 1;
        if byte < 128 {
            break;
        }
    }
    let (mut blocks, mut begin, mut out) = (vec![(at as u32, 0)], 0, 0);
    while at < stream.len() {
        let tag = usize::from(stream[at]);
        let argument = |bytes: usize| {
            let all = stream.get(at + 1..at + 1 + bytes)?;
            Some(all.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
        };
        let (length, step, back) = match (tag & 3, tag >> 2) {
            (0, short @ ..60) => (short + 1, short + 2, 0),
            (0, long) => {
                let length = argument(long - 59)? + 1;
                (length, 1 + long - 59 + length, 0)
            }
            (1, more) => (4 + (more & 7), 2, (tag >> 5) << 8 | argument(1)?),
            (2, more) => (1 + more, 3, argument(2)?),
            (_, more) => (1 + more, 5, argument(4)?),
        };
        if back > out - begin || out + length > begin + BLOCK {
            return None;
        }
        out += length;
        at += step;
        if out == begin + BLOCK && at < stream.len() {
            begin = out;
            blocks.push((at as u32, out as u32));
        }
    }
    (out == size && at == stream.len()).then_some(blocks)
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
    /// Reused: the tables are too large to rebuild for each page.
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

/// Hadoop frames: two big-endian sizes (decompressed, compressed) and a block each.
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

/// Reads until `out` is full; a longer stream is an error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_snappy_decompress_by_themselves() {
        for len in [0, 1, 1000, 65_536, 65_537, 300_000] {
            // Partly repetitive, partly not.
            let bytes: Vec<u8> = (0..len as u32).map(|at| ((at / 7 * 31) ^ (at.wrapping_mul(at) >> 9)) as u8).collect();
            let stream = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
            let blocks = snappy_blocks(&stream).expect("the compressor works block by block");
            assert_eq!(blocks.len(), (len as usize).div_ceil(65_536).max(1), "{len} bytes");
            let ends = blocks.iter().skip(1).copied().chain([(stream.len() as u32, len as u32)]);
            for ((at, out), (end, out_end)) in blocks.iter().copied().zip(ends) {
                // With its own size in front, each block is a stream.
                let mut alone = Vec::new();
                let mut size = out_end - out;
                while size >= 128 {
                    alone.push(size as u8 | 128);
                    size >>= 7;
                }
                alone.push(size as u8);
                alone.extend_from_slice(&stream[at as usize..end as usize]);
                let found = snap::raw::Decoder::new().decompress_vec(&alone).unwrap();
                assert!(found == bytes[out as usize..out_end as usize]);
            }
        }
    }

    #[test]
    fn streams_that_reach_back_or_end_early_have_no_blocks() {
        let mut long = vec![0x80, 0x80, 0x08];
        // 131,072 bytes: literals of 2^16, then copies from the block before.
        long.extend([61 << 2, 0xff, 0xff]);
        long.extend(vec![7; 65_536]);
        for _ in 0..1024 {
            long.extend([63 << 2 | 2, 0, 1]);
        }
        assert_eq!(snap::raw::Decoder::new().decompress_vec(&long).unwrap().len(), 131_072);
        assert_eq!(snappy_blocks(&long), None);
        let stream = snap::raw::Encoder::new().compress_vec(&[5; 70_000]).unwrap();
        for end in 0..stream.len() {
            assert_eq!(snappy_blocks(&stream[..end]), None, "{end} bytes");
        }
    }
}
