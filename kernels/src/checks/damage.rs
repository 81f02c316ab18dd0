//! Claim about damaged pages of Parquet files: whatever their bytes and sizes, kernels terminate, write only to their
//! own rows, and decode the neighbouring pages.
//!
//!   pages   [ sound | damaged · damaged · damaged | sound | … ]      bytes flipped, truncated, other sizes or levels
//!   output  [ rows ▒ rows ▒ rows ▒ … ]                               ▒ must not be written
//!
//! Reads  outside a page's bytes are detected by the simulated device, and by compute-sanitizer on a GPU.

use millpond_memory::checks::{CheckError, same};
use millpond_memory::driver::DriverKind;
use millpond_memory::{Device, DeviceBuffer};

use super::parquet::{hybrid, snappy, varint};
use super::{Rig, mixed, packed};
use crate::codegen::ir::Physical;
use crate::parquet::{self, Codec, ColumnOutput, Dictionary, Encoding, PageInput, Plan, Source};

const ROWS: usize = 300;
/// Bytes between the rows of columns, and their fill value.
const GAP: usize = 64;
const UNTOUCHED: u8 = 0xa5;
/// One in this many pages is sound.
const SOUND: u64 = 4;
/// Pages that are decoded in one batch.
const TOGETHER: u64 = 20_000;

/// A few hundred pages on the simulated device, 20,000 on a GPU.
pub(super) fn damaged_pages(device: &Device) -> Result<(), CheckError> {
    let is_simulated = device.driver().kind() == DriverKind::Sim;
    survive(device, if is_simulated { 160 } else { TOGETHER }, 1)
}

/// A million damaged pages; 2,000 on the simulated device.
pub(super) fn a_million_damaged_pages(device: &Device) -> Result<(), CheckError> {
    let is_simulated = device.driver().kind() == DriverKind::Sim;
    let (together, batches) = if is_simulated { (500, 5) } else { (TOGETHER, 67) };
    survive(device, together, batches)
}

/// A sound page that has no destination yet.
struct Sound {
    bytes: Vec<u8>,
    raw: u32,
    codec: Codec,
    encoding: Encoding,
    has_levels: bool,
    source: Source,
    stored: Physical,
}

impl Sound {
    /// Bytes of its rows in the output.
    fn output_bytes(&self) -> usize {
        let texts = if self.stored == Physical::Text { 16 * ROWS } else { 0 };
        (self.stored.value_bytes(ROWS as u64) as usize + texts).next_multiple_of(GAP)
    }
}

/// Deltas of full width: nothing has to be bit-packed.
fn deltas(values: &[i64], bytes: usize) -> Vec<u8> {
    let zigzag = |value: i64| (value << 1 ^ value >> 63) as usize;
    let mut out = Vec::new();
    [128, 4, values.len(), zigzag(values[0])].into_iter().for_each(|number| varint(number, &mut out));
    let all: Vec<i64> = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    for block in all.chunks(128) {
        varint(0, &mut out);
        out.extend([bytes as u8 * 8; 4]);
        let padded = block.iter().copied().chain(std::iter::repeat(0)).take(block.len().next_multiple_of(32));
        padded.for_each(|delta| out.extend_from_slice(&delta.to_le_bytes()[..bytes]));
    }
    out
}

/// LZ4 with literals only.
fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes.len() < 15 {
        out.push((bytes.len() as u8) << 4);
    } else {
        out.push(0xf0);
        let more = bytes.len() - 15;
        out.extend(std::iter::repeat_n(255, more / 255));
        out.push((more % 255) as u8);
    }
    out.extend(bytes);
    out
}

/// Sound pages: every encoding with each codec, with and without levels.
fn sound_pages() -> Vec<Sound> {
    let valid: Vec<bool> = (0..ROWS).map(|row| row % 7 != 3).collect();
    let mut all = Vec::new();
    for (codec, has_levels) in
        [(Codec::Stored, true), (Codec::Snappy, true), (Codec::Lz4Raw, false), (Codec::Snappy, false)]
    {
        let count = if has_levels { valid.iter().filter(|valid| **valid).count() } else { ROWS };
        let codes: Vec<u32> = (0..count as u64).map(|row| (mixed(row / 30) % 90) as u32).collect();
        let numbers: Vec<i64> = codes.iter().map(|code| i64::from(*code) * 1_000_003).collect();
        let words = |values: &[i64], bytes: usize| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()[..bytes].to_vec()).collect()
        };
        let split: Vec<u8> = (0..4).flat_map(|byte| codes.iter().map(move |code| code.to_le_bytes()[byte])).collect();
        let texts: Vec<String> = codes.iter().map(|code| "mill".repeat(*code as usize % 4)).collect();
        let plain: Vec<u8> =
            texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect();
        let lengths: Vec<i64> = texts.iter().map(|text| text.len() as i64).collect();
        let runs = hybrid(&codes.iter().map(|code| code % 2).collect::<Vec<_>>(), 1);
        let flags = [&(runs.len() as u32).to_le_bytes(), &runs[..]].concat();
        let levels = hybrid(&valid.iter().map(|valid| u32::from(*valid)).collect::<Vec<_>>(), 1);
        let levels = if has_levels { [&(levels.len() as u32).to_le_bytes(), &levels[..]].concat() } else { vec![] };
        let mut add = |encoding, source, stored, values: Vec<u8>| {
            let raw = [&levels[..], &values].concat();
            let bytes = match codec {
                Codec::Stored => raw.clone(),
                Codec::Snappy => snappy(&raw),
                Codec::Lz4Raw => lz4(&raw),
            };
            all.push(Sound { bytes, raw: raw.len() as u32, codec, encoding, has_levels, source, stored });
        };
        add(Encoding::Plain, Source::Int64, Physical::I64, words(&numbers, 8));
        add(Encoding::Plain, Source::Int32, Physical::I32, words(&numbers, 4));
        add(Encoding::Dictionary, Source::Int64, Physical::U8, [vec![7], hybrid(&codes, 7)].concat());
        add(Encoding::DeltaBinary, Source::Int64, Physical::I64, deltas(&numbers, 8));
        add(Encoding::StreamSplit, Source::Int32, Physical::I32, split);
        add(Encoding::RleBoolean, Source::Boolean, Physical::Bit, flags);
        add(Encoding::Plain, Source::Text, Physical::Text, plain);
        add(Encoding::Dictionary, Source::Text, Physical::Text, [vec![7], hybrid(&codes, 7)].concat());
        let texts: Vec<u8> = texts.concat().into_bytes();
        add(Encoding::DeltaLength, Source::Text, Physical::Text, [deltas(&lengths, 4), texts].concat());
    }
    all
}

/// Seeded random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 += 1;
        (mixed(self.0) % limit.max(1) as u64) as usize
    }
}

/// Changes bytes of a page or fields of its header, to values that a plan accepts.
fn damage(page: &mut PageInput, bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let early = if random.below(2) == 0 { bytes.len().min(12) } else { bytes.len() };
        let at = random.below(early);
        match random.below(8) {
            0 => bytes[at] = 0,
            1 => bytes[at] = 0xff,
            2 | 3 => bytes[at] ^= 1 << random.below(8),
            4 => bytes[at] = random.below(256) as u8,
            5 if page.codec != Codec::Stored => page.raw_bytes = random.below(2 * page.raw_bytes as usize + 9) as u32,
            6 => {
                page.bytes.end = page.bytes.start + random.below(bytes.len() + 1) as u64;
                if page.codec == Codec::Stored {
                    page.raw_bytes = (page.bytes.end - page.bytes.start) as u32;
                }
            }
            _ => {
                page.has_levels ^= true;
                page.level_bytes = [None, Some(random.below(page.raw_bytes as usize + 1) as u32)][random.below(2)];
            }
        }
        let most = page.raw_bytes.min((page.bytes.end - page.bytes.start) as u32);
        page.level_bytes = page.level_bytes.map(|bytes| bytes.min(most));
    }
}

/// Pages, each with its column.
type Pages = (Vec<PageInput>, Vec<ColumnOutput>);

/// Pages of a batch, and where their rows and validity go.
struct Batch {
    kinds: Vec<Sound>,
    /// Bytes of each kind's rows, and of every page's validity.
    sizes: Vec<usize>,
    bits: usize,
    /// Offsets of each page's rows and validity, with an untouched gap before each.
    places: Vec<(usize, usize)>,
    /// Bytes of the output, which ends in a gap.
    end: usize,
}

impl Batch {
    fn new(pages: u64) -> Batch {
        let kinds = sound_pages();
        let sizes: Vec<usize> = kinds.iter().map(Sound::output_bytes).collect();
        let bits = (ROWS.div_ceil(32) * 4).next_multiple_of(GAP);
        let mut batch = Batch { kinds, sizes, bits, places: vec![], end: 0 };
        for number in 0..pages {
            let values = batch.end + GAP;
            let validity = values + batch.sizes[batch.kind(number)] + GAP;
            batch.end = validity + bits;
            batch.places.push((values, validity));
        }
        batch.end += GAP;
        batch
    }

    fn kind(&self, number: u64) -> usize {
        (number / SOUND) as usize % self.kinds.len()
    }

    /// The output before a launch: zeros, and gaps.
    fn empty(&self) -> Vec<u8> {
        let mut empty = vec![UNTOUCHED; self.end];
        for (number, (values, validity)) in self.places.iter().enumerate() {
            empty[*values..values + self.sizes[self.kind(number as u64)]].fill(0);
            empty[*validity..validity + self.bits].fill(0);
        }
        empty
    }

    /// The pages, most of them damaged, with a column of `output` for each, and their bytes.
    fn pages(&self, output: &DeviceBuffer, random: &mut Random) -> Result<(Pages, Vec<u8>), CheckError> {
        let (mut staging, mut inputs, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        for (number, &(values, validity)) in (0..).zip(&self.places) {
            let sound = &self.kinds[self.kind(number)];
            let start = staging.len();
            staging.extend(&sound.bytes);
            let dictionary =
                (sound.encoding == Encoding::Dictionary).then_some(u32::from(sound.stored == Physical::Text));
            let mut page = PageInput {
                bytes: start as u64..staging.len() as u64,
                raw_bytes: sound.raw,
                codec: sound.codec,
                encoding: sound.encoding,
                level_bytes: None,
                has_levels: sound.has_levels,
                values: ROWS as u32,
                skip: 0,
                rows: ROWS as u32,
                first_row: 0,
                column: number as u32,
                dictionary,
                blocks: vec![],
            };
            if !number.is_multiple_of(SOUND) {
                damage(&mut page, &mut staging[start..], random);
            }
            inputs.push(page);
            columns.push(ColumnOutput {
                source: sound.source,
                stored: sound.stored,
                values: output.view(values..values + self.sizes[self.kind(number)])?,
                validity: Some(output.view(validity..validity + ROWS.div_ceil(32) * 4)?),
                base: 0,
                range: None,
                utf8: number % 3 == 0,
                rows: ROWS as u64,
                facts: number % 2 == 0,
            });
        }
        staging.extend([0; 16]);
        Ok(((inputs, columns), staging))
    }

    /// Gaps must be untouched, and all sound pages of a kind must have the rows and validity of its first, `expected`.
    fn check(&self, found: &[u8], expected: &mut [Option<(Vec<u8>, Vec<u8>)>]) -> Result<(), CheckError> {
        for (number, (values, validity)) in self.places.iter().enumerate() {
            let of = self.kind(number as u64);
            let gap = |at: usize| found[at - GAP..at].iter().all(|byte| *byte == UNTOUCHED);
            if !gap(*values) || !gap(*validity) {
                return Err(CheckError::Refused(format!("page {number} wrote where no rows are")));
            }
            if !(number as u64).is_multiple_of(SOUND) {
                continue;
            }
            let rows = found[*values..values + self.sizes[of]].to_vec();
            let valid = found[*validity..validity + self.bits].to_vec();
            match &expected[of] {
                None => expected[of] = Some((rows, valid)),
                Some((first, first_valid)) => {
                    same(&format!("the rows of sound page {number}"), &rows, first)?;
                    same(&format!("the validity of sound page {number}"), &valid, first_valid)?;
                }
            }
        }
        same("the last gap", found[self.end - GAP..].iter().all(|byte| *byte == UNTOUCHED), true)
    }
}

/// Decodes `batches` of `pages`; one in four pages is sound.
fn survive(device: &Device, pages: u64, batches: u64) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let batch = Batch::new(pages);
    let table = rig.upload(&(0..90).collect::<Vec<u8>>())?;
    let offsets = rig.upload(&(0..=90_u32).flat_map(|entry| (entry * 4).to_le_bytes()).collect::<Vec<_>>())?;
    let words = rig.upload(&b"mill".repeat(90))?;
    let dictionaries = [
        Dictionary::Table { values: table.as_view().clone(), entries: 90 },
        Dictionary::Texts { offsets: offsets.as_view().clone(), bytes: words.as_view().clone() },
    ];
    let empty = batch.empty();
    let mut random = Random(0x5eed);
    let mut expected = vec![None; batch.kinds.len()];
    for _ in 0..batches {
        let output: DeviceBuffer = rig.upload(&empty)?;
        let ((inputs, columns), staging) = batch.pages(&output, &mut random)?;
        let plan = Plan::of(&inputs, &columns, &dictionaries)?;
        let (descriptors, staging) = (rig.upload(plan.descriptors())?, rig.upload(&staging)?);
        let (scratch, results) =
            (rig.upload(&vec![0; plan.scratch_bytes() as usize])?, rig.output(plan.result_bytes() as usize)?);
        parquet::decode(&rig.images, &plan, &descriptors, &staging, &scratch, &results, rig.stream())?;
        let outcome = plan.outcome(&rig.download(&results)?)?;
        let found = rig.download(&output)?;
        let sound_error = outcome.errors.iter().find(|error| u64::from(error.page).is_multiple_of(SOUND));
        same("a sound page's error", sound_error, None)?;
        let damaged = pages - pages.div_ceil(SOUND);
        let many = outcome.errors.len() as u64 > damaged / 4;
        same(&format!("many errors: {} of {damaged} damaged pages", outcome.errors.len()), many, true)?;
        batch.check(&found, &mut expected)?;
    }
    check_integers(expected[0].as_ref())?;
    drop((dictionaries, table, offsets, words));
    rig.base.finish()
}

/// Sound pages must not only agree with one another: integers with levels must equal the encoded values.
fn check_integers(found: Option<&(Vec<u8>, Vec<u8>)>) -> Result<(), CheckError> {
    let valid: Vec<bool> = (0..ROWS).map(|row| row % 7 != 3).collect();
    let mut next = 0_u64;
    let numbers = valid.iter().flat_map(|valid| {
        let code = mixed(next / 30) % 90;
        next += u64::from(*valid);
        (if *valid { code as i64 * 1_000_003 } else { 0 }).to_le_bytes()
    });
    let numbers: Vec<u8> = numbers.collect();
    let (rows, bits) = found.map_or((&[][..], &[][..]), |(rows, bits)| (&rows[..ROWS * 8], &bits[..]));
    same("integers of sound pages", rows, &numbers[..])?;
    same("their validity", &bits[..ROWS.div_ceil(32) * 4], &packed(&valid)[..])
}
