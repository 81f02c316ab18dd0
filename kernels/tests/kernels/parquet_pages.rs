//! Pages in Parquet's format, written by small encoders, and batches of them decoded on the simulated device.

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::parquet::{self, Codec, ColumnOutput, Dictionary, Encoding, Outcome, PageInput, Plan, Source};
use millpond_memory::DeviceBuffer;

use crate::pipeline_rig::Rig;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Division of a stream of codes into runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// Bit-packed runs of this many groups of eight.
    Packed(usize),
    /// Repeated runs for codes that occur at least eight times in a row, bit-packed runs otherwise.
    Mixed,
    /// Repeated runs only.
    Repeated,
}

pub fn packed(codes: &[u32], width: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + codes.len().div_ceil(8) * width as usize, 0);
    for (index, code) in codes.iter().enumerate() {
        for bit in 0..width {
            let at = index * width as usize + bit as usize;
            out[start + at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
}

/// Encodes the hybrid of repeated runs and bit-packed groups.
pub fn hybrid(codes: &[u32], width: u32, runs: Runs) -> Vec<u8> {
    let mut out = Vec::new();
    let pack = |codes: &[u32], out: &mut Vec<u8>| {
        varint((codes.len().div_ceil(8) as u64) << 1 | 1, out);
        packed(codes, width, out);
    };
    let repeat = |count: usize, code: u32, out: &mut Vec<u8>| {
        varint((count as u64) << 1, out);
        out.extend_from_slice(&code.to_le_bytes()[..width.div_ceil(8) as usize]);
    };
    match runs {
        Runs::Packed(groups) => codes.chunks(groups * 8).for_each(|codes| pack(codes, &mut out)),
        Runs::Repeated => codes.chunk_by(|a, b| a == b).for_each(|codes| repeat(codes.len(), codes[0], &mut out)),
        Runs::Mixed => {
            let (mut at, mut open) = (0, 0);
            while at < codes.len() {
                let same = codes[at..].iter().take_while(|code| **code == codes[at]).count();
                if same >= 8 && (at - open).is_multiple_of(8) {
                    if at > open {
                        pack(&codes[open..at], &mut out);
                    }
                    repeat(same, codes[at], &mut out);
                    at += same;
                    open = at;
                } else {
                    at += 1;
                }
            }
            if at > open {
                pack(&codes[open..], &mut out);
            }
        }
    }
    out
}

/// Encodes DELTA_BINARY_PACKED, with blocks of 128 in four miniblocks.
pub fn deltas(values: &[i64], bits: u32) -> Vec<u8> {
    let zigzag = |value: i64| (value << 1 ^ value >> 63) as u64;
    let wrap = |value: i64| if bits == 32 { i64::from(value as i32) } else { value };
    let mut out = Vec::new();
    varint(128, &mut out);
    varint(4, &mut out);
    varint(values.len() as u64, &mut out);
    varint(zigzag(values.first().copied().unwrap_or(0)), &mut out);
    let all: Vec<i64> = values.windows(2).map(|pair| wrap(pair[1].wrapping_sub(pair[0]))).collect();
    for block in all.chunks(128) {
        let least = *block.iter().min().unwrap();
        varint(zigzag(least), &mut out);
        let mask = if bits == 32 { u64::from(u32::MAX) } else { u64::MAX };
        let rest: Vec<u64> = block.iter().map(|delta| delta.wrapping_sub(least) as u64 & mask).collect();
        let width = |part: &[u64]| 64 - part.iter().fold(0, |all, value| all | value).leading_zeros();
        let parts: Vec<&[u64]> = rest.chunks(32).collect();
        out.extend((0..4).map(|part| parts.get(part).map_or(0, |part| width(part) as u8)));
        for part in parts {
            let (width, start) = (width(part) as usize, out.len());
            out.resize(start + 4 * width, 0);
            for (index, value) in part.iter().enumerate() {
                (0..width).for_each(|bit| {
                    let at = index * width + bit;
                    out[start + at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
                });
            }
        }
    }
    out
}

pub fn compress(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Stored => bytes.to_vec(),
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
        Codec::Lz4Raw => lz4_flex::block::compress(bytes),
    }
}

/// Format of a page around its values.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub codec: Codec,
    pub version: u32,
    /// True if the page has definition levels.
    pub has_levels: bool,
    pub level_runs: Runs,
}

impl Form {
    pub const PLAIN: Form = Form { codec: Codec::Stored, version: 1, has_levels: false, level_runs: Runs::Mixed };
}

/// A column to decode, and the format of its cells.
#[derive(Debug, Clone)]
pub struct ColumnSpec {
    pub source: Source,
    pub stored: Physical,
    pub nullable: bool,
    pub base: i64,
    pub range: Option<(i64, i64)>,
    pub rows: u64,
    pub text_room: u64,
    pub utf8: bool,
}

impl ColumnSpec {
    pub fn new(source: Source, stored: Physical, rows: usize) -> ColumnSpec {
        let (base, rows) = (0, rows as u64);
        ColumnSpec { source, stored, nullable: false, base, range: None, rows, text_room: 0, utf8: true }
    }
}

/// A batch under construction: staging bytes and descriptors.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub staging: Vec<u8>,
    pub pages: Vec<PageInput>,
    pub columns: Vec<ColumnSpec>,
    /// Tables, with the bytes per value; texts, with their offsets.
    pub dictionaries: Vec<(Vec<u8>, DictionaryKind)>,
}

#[derive(Debug, Clone)]
pub enum DictionaryKind {
    Table { entries: u32 },
    Texts { offsets: Vec<u32> },
}

/// Result of a batch.
#[derive(Debug, Clone)]
pub struct Decoded {
    pub values: Vec<Vec<u8>>,
    pub validity: Vec<Option<Vec<u8>>>,
    pub outcome: Outcome,
}

impl Batch {
    pub fn column(&mut self, spec: ColumnSpec) -> u32 {
        self.columns.push(spec);
        self.columns.len() as u32 - 1
    }

    /// Adds a page of `valid.len()` rows with the given `values` at the end of staging, at an odd offset.
    pub fn page(
        &mut self,
        column: u32,
        encoding: Encoding,
        form: Form,
        valid: &[bool],
        values: &[u8],
        first_row: usize,
    ) {
        let mut levels = Vec::new();
        if form.has_levels {
            let bits: Vec<u32> = valid.iter().map(|valid| u32::from(*valid)).collect();
            levels = hybrid(&bits, 1, form.level_runs);
        }
        let mut raw = Vec::new();
        if form.version == 1 {
            if form.has_levels {
                raw.extend((levels.len() as u32).to_le_bytes());
                raw.extend(&levels);
            }
            levels.clear();
        }
        raw.extend(values);
        let start = self.staging.len() as u64;
        self.staging.extend(&levels);
        self.staging.extend(compress(form.codec, &raw));
        self.pages.push(PageInput {
            bytes: start..self.staging.len() as u64,
            raw_bytes: (levels.len() + raw.len()) as u32,
            codec: form.codec,
            encoding,
            level_bytes: (form.version == 2).then_some(levels.len() as u32),
            has_levels: form.has_levels,
            values: valid.len() as u32,
            skip: 0,
            rows: valid.len() as u32,
            first_row: first_row as u64,
            column,
            dictionary: None,
            blocks: vec![],
        });
        // Pages may begin at any offset.
        self.staging.resize(self.staging.len() + 1 + self.pages.len() % 7, 0xee);
    }

    /// Sets the dictionary of the last page.
    pub fn with_dictionary(&mut self, dictionary: u32) {
        self.pages.last_mut().unwrap().dictionary = Some(dictionary);
    }

    pub fn table(&mut self, values: &[i128], physical: Physical) -> u32 {
        let width = physical.width() as usize;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
        self.dictionaries.push((bytes, DictionaryKind::Table { entries: values.len() as u32 }));
        self.dictionaries.len() as u32 - 1
    }

    pub fn texts(&mut self, texts: &[&str]) -> u32 {
        let mut offsets = vec![0];
        texts.iter().for_each(|text| offsets.push(offsets[offsets.len() - 1] + text.len() as u32));
        self.dictionaries.push((texts.concat().into_bytes(), DictionaryKind::Texts { offsets }));
        self.dictionaries.len() as u32 - 1
    }

    pub fn run(&self, rig: &Rig) -> Decoded {
        let images = Images::new(&rig.device);
        let view = |buffer: &DeviceBuffer| buffer.as_view().clone();
        let words = |rows: u64| rows.div_ceil(32) as usize * 4;
        let columns: Vec<ColumnOutput> = self
            .columns
            .iter()
            .map(|spec| {
                let fill = if spec.stored == Physical::Bit { 0 } else { 0xaa };
                let bytes = match spec.stored {
                    Physical::Bit => words(spec.rows) as u64,
                    stored => stored.value_bytes(spec.rows) + spec.text_room,
                };
                let values = view(&rig.upload(&vec![fill; bytes as usize], &rig.stream));
                let validity = spec.nullable.then(|| view(&rig.upload(&vec![0; words(spec.rows)], &rig.stream)));
                let (source, stored, base, range) = (spec.source, spec.stored, spec.base, spec.range);
                let (rows, utf8) = (spec.rows, spec.utf8);
                ColumnOutput { source, stored, values, validity, base, range, utf8, rows, facts: true }
            })
            .collect();
        let little = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let dictionaries: Vec<Dictionary> = self
            .dictionaries
            .iter()
            .map(|(bytes, kind)| {
                let bytes = view(&rig.upload(bytes, &rig.stream));
                match kind {
                    DictionaryKind::Table { entries } => Dictionary::Table { values: bytes, entries: *entries },
                    DictionaryKind::Texts { offsets } => {
                        Dictionary::Texts { offsets: view(&rig.upload(&little(offsets), &rig.stream)), bytes }
                    }
                }
            })
            .collect();
        let plan = Plan::of(&self.pages, &columns, &dictionaries).unwrap_or_else(|error| panic!("{error}"));
        let staging = rig.upload(&[&self.staging[..], &[0; 16]].concat(), &rig.stream);
        let descriptors = rig.upload(plan.descriptors(), &rig.stream);
        let scratch = DeviceBuffer::new(plan.scratch_bytes() as usize, &rig.stream, &rig.pool).unwrap();
        let results = DeviceBuffer::new(plan.result_bytes() as usize, &rig.stream, &rig.pool).unwrap();
        parquet::decode(&images, &plan, &descriptors, &staging, &scratch, &results, &rig.stream).unwrap();
        let outcome = plan.outcome(&rig.download(&results)).unwrap();
        assert!(plan.num_launches() <= 10);
        Decoded {
            values: columns.iter().map(|column| rig.download(&column.values)).collect(),
            validity: columns.iter().map(|column| column.validity.as_ref().map(|bits| rig.download(bits))).collect(),
            outcome,
        }
    }
}

impl Decoded {
    /// Bits of a column's values, `None` for NULL.
    pub fn cells(&self, column: usize, spec: &ColumnSpec) -> Vec<Option<i128>> {
        let bit = |bytes: &[u8], row: usize| bytes[row / 8] >> (row % 8) & 1 == 1;
        let (values, width) = (&self.values[column], spec.stored.width() as usize);
        let cell = |row: usize| {
            let value = if spec.stored == Physical::Bit {
                i128::from(bit(values, row))
            } else {
                let mut wide = [0; 16];
                wide[..width].copy_from_slice(&values[row * width..(row + 1) * width]);
                i128::from_le_bytes(wide)
            };
            let valid = self.validity[column].as_ref().is_none_or(|bits| bit(bits, row));
            assert!(valid || value == 0, "row {row}: {value} below a NULL");
            valid.then_some(value)
        };
        (0..spec.rows as usize).map(cell).collect()
    }

    /// Texts of a column, by its offsets.
    pub fn texts(&self, column: usize, spec: &ColumnSpec) -> Vec<Option<Vec<u8>>> {
        let bytes = &self.values[column];
        let offset = |row: usize| u32::from_le_bytes(bytes[4 * row..4 * row + 4].try_into().unwrap()) as usize;
        let bit = |bytes: &[u8], row: usize| bytes[row / 8] >> (row % 8) & 1 == 1;
        assert!(spec.rows == 0 || offset(0) == 4 * (spec.rows as usize + 1));
        let text = |row: usize| {
            assert!(offset(row) <= offset(row + 1) && offset(row + 1) <= bytes.len(), "row {row}");
            let text = bytes[offset(row)..offset(row + 1)].to_vec();
            let valid = self.validity[column].as_ref().is_none_or(|bits| bit(bits, row));
            assert!(valid || text.is_empty());
            valid.then_some(text)
        };
        (0..spec.rows as usize).map(text).collect()
    }
}
