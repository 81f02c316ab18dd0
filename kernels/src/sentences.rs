//! Finds lexicon words with their sentences, all sentences, or all words of texts. Device side: `cuda/sentences.cu`.
//!
//! ```text
//!   views   ["Good. So bad"] [NULL]     lexicon  good: says 1, bad: says 0     rule  any
//!   count   [1, 0]   ──►  running sums [1, 1], 1 hit
//!   write   rows [0]   sentences [" So bad"]   words [1: bad]   says [0]
//! ```
//!
//! Match    exact: "Good" does not match the lexicon's "good".
//! Memory   callers allocate. Views of sentences point into the input texts.
//! Waits    never.

use std::ops::Range;

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, abi, scan, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a view.
const VIEW_BYTES: u64 = 16;
/// Bytes of a slot: hash, offset and length of the word's bytes, its number, its meaning bits.
const SLOT_BYTES: usize = 24;

/// Rule for the end of a sentence. `è` counts as `?` and `!` do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Ends {
    /// Every `.`, `?` and `!`.
    Any = 0,
    /// Every `. `, `? ` and `! `, with the blank.
    Spaced = 1,
    /// Every `.`.
    Stop = 2,
    /// Only the end of the text.
    Never = 3,
}

/// Kind of parts to find.
#[derive(Clone, Copy)]
pub enum What<'a> {
    /// Words of a lexicon; `uploaded` holds its bytes on the device.
    Hits { lexicon: &'a Lexicon, uploaded: &'a DeviceView },
    /// Every sentence that is not empty.
    Sentences,
    /// Every run between blanks that is not empty after removal of [`DELETED`]. The result keeps these characters.
    Words,
}

/// Characters that are removed from words before comparison.
pub const DELETED: &str = ".,;-\"";

/// Lexicon in the kernels' format.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lexicon {
    bytes: Vec<u8>,
    slots: u32,
}

impl Lexicon {
    /// Builds a lexicon from distinct words with their meaning bits. The number of a word is its position.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for too many words, or too many bytes of words.
    pub fn new<'a>(words: impl ExactSizeIterator<Item = (&'a str, u32)>) -> Result<Lexicon> {
        let refused = |why: &str| KernelError::Shape { what: "sentences_count", why: why.to_string() };
        let slots = u32::try_from(words.len() * 2).ok().and_then(|slots| slots.max(2).checked_next_power_of_two());
        let slots = slots.ok_or_else(|| refused("more than 2^30 words"))?;
        let mut bytes = vec![0; slots as usize * SLOT_BYTES];
        for (number, (word, says)) in words.enumerate() {
            // A word of a sentence is never empty.
            if word.is_empty() || says == 0 {
                continue;
            }
            let at = u32::try_from(bytes.len()).map_err(|_| refused("more than 4 GiB of words"))?;
            let length = u32::try_from(word.len()).map_err(|_| refused("more than 4 GiB of words"))?;
            bytes.extend_from_slice(word.as_bytes());
            let hash = hash(word.as_bytes());
            let mut slot = (hash ^ hash >> 32) as u32 & (slots - 1);
            while bytes[place(slot)].iter().skip(12).take(4).any(|byte| *byte != 0) {
                slot = (slot + 1) & (slots - 1);
            }
            let words = [at, length, number as u32, says];
            let entry = hash.to_le_bytes().into_iter().chain(words.into_iter().flat_map(u32::to_le_bytes));
            bytes[place(slot)].iter_mut().zip(entry).for_each(|(to, from)| *to = from);
        }
        Ok(Lexicon { bytes, slots })
    }

    /// Bytes to upload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Byte range of a slot.
fn place(slot: u32) -> Range<usize> {
    let start = slot as usize * SLOT_BYTES;
    start..start + SLOT_BYTES
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Texts and the search over them.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// 16-byte views; empty for NULL.
    pub views: &'a DeviceView,
    pub rows: &'a ExtentRows,
    /// Buffers that the views point into.
    pub reached: &'a [DeviceView],
    pub what: What<'a>,
    pub ends: Ends,
}

/// Columns of hits, or of parts; parts have neither words nor meanings.
pub struct Hits {
    /// u32: row number.
    pub rows: DeviceView,
    /// 16-byte views: the sentence of a hit, or the part.
    pub sentences: DeviceView,
    /// u32: word number.
    pub words: DeviceView,
    /// u32: index of the meaning bit. A word with several bits is several hits.
    pub says: DeviceView,
}

/// Byte ranges of the columns of `hits` hits in one allocation, and its length: rows, words, meanings, sentences.
pub fn hits_layout(hits: u64) -> ([Range<usize>; 4], usize) {
    let (mut at, mut columns) = (0, [const { 0..0 }; 4]);
    for (column, width) in columns.iter_mut().zip([4, 4, 4, VIEW_BYTES]) {
        *column = at..at + (hits * width) as usize;
        at = column.end.next_multiple_of(256);
    }
    (columns, at.max(256))
}

impl Hits {
    /// Views of the columns in `buffer`, at the ranges of [`hits_layout`].
    ///
    /// # Errors
    /// Errors of the memory layer if the buffer is too short.
    pub fn within(buffer: &DeviceView, hits: u64) -> std::result::Result<Hits, millpond_memory::MemoryError> {
        let ([rows, words, says, sentences], _) = hits_layout(hits);
        Ok(Hits {
            rows: buffer.view(rows)?,
            sentences: buffer.view(sentences)?,
            words: buffer.view(words)?,
            says: buffer.view(says)?,
        })
    }
}

impl Texts<'_> {
    /// A launch of `kernel` with the parameters that `count` and `write` share.
    fn launch<'k>(&self, kernel: &'k millpond_memory::Kernel, images: &Images) -> Result<Launch<'k>> {
        expect_bytes("sentences_count", "views", self.views, self.rows.upper_bound() * VIEW_BYTES)?;
        let launch = Launch::new(kernel, striding(images.device(), self.rows.upper_bound(), tune::MOVE_THREADS));
        let launch = self.reached.iter().fold(launch, |launch, view| launch.reads(view.padded()));
        let launch = launch.read(self.views);
        let launch = match self.what {
            What::Hits { lexicon, uploaded } => {
                expect_bytes("sentences_count", "lexicon", uploaded, lexicon.bytes.len() as u64)?;
                launch.value(0_u32).read(uploaded).value(lexicon.slots)
            }
            What::Sentences => launch.value(1_u32).value(0_u64).value(0_u32),
            What::Words => launch.value(2_u32).value(0_u64).value(0_u32),
        };
        Ok(launch.value(self.ends as u32))
    }
}

/// Writes the number of hits or parts of each row.
///
/// | name     | length         | unit |
/// |----------|----------------|------|
/// | `counts` | at least `rows` | u32  |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn count(images: &Images, texts: Texts<'_>, counts: &DeviceView, on: &Stream) -> Result<()> {
    expect_bytes("sentences_count", "counts", counts, texts.rows.upper_bound() * 4)?;
    let kernel = images.kernel("sentences", "sentences_count")?;
    let launch = texts.launch(&kernel, images)?.write(counts);
    Rows::try_from(texts.rows)?.put(launch).submit(on)?;
    Ok(())
}

/// Writes the hits from number `first` on, at most `capacity` of them.
///
/// | name        | length                                | unit                                            |
/// |-------------|---------------------------------------|-------------------------------------------------|
/// | `expansion` | [`scan::expansion_bytes`]`(rows)`     | running sums of the counts                      |
/// | `hits`      | at least `capacity` each                  | columns                                         |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn write(
    images: &Images,
    texts: Texts<'_>,
    expansion: &DeviceView,
    first: u64,
    capacity: u64,
    hits: &Hits,
    on: &Stream,
) -> Result<()> {
    let bound = texts.rows.upper_bound();
    expect_bytes("sentences_write", "expansion", expansion, scan::expansion_bytes(bound))?;
    for (what, column, width) in [
        ("rows", &hits.rows, 4),
        ("sentences", &hits.sentences, VIEW_BYTES),
        ("words", &hits.words, 4),
        ("says", &hits.says, 4),
    ] {
        expect_bytes("sentences_write", what, column, capacity * width)?;
    }
    let ends = expansion.view(abi::CONTROL_BYTES as usize..scan::expansion_bytes(bound) as usize)?;
    let kernel = images.kernel("sentences", "sentences_write")?;
    let launch = texts.launch(&kernel, images)?.read(&ends).value(first).value(capacity);
    let launch = launch.write(&hits.rows).write(&hits.sentences).write(&hits.words).write(&hits.says);
    Rows::try_from(texts.rows)?.put(launch).submit(on)?;
    Ok(())
}
