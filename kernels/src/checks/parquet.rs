//! Claim about pages of Parquet files: compressed, with NULLs, as numbers, codes and texts.

use millpond_memory::checks::{CheckError, same};
use millpond_memory::{Device, DeviceBuffer, DeviceView};

use super::{LENGTHS, Rig, mixed, packed, some_bits};
use crate::codegen::ir::Physical;
use crate::parquet::{self, Codec, ColumnOutput, Dictionary, Encoding, Fault, PageInput, Plan, Source};

pub(super) fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Minimal Snappy: copies only runs that repeat the preceding eight bytes.
pub(super) fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(bytes.len(), &mut out);
    let literal = |bytes: &[u8], out: &mut Vec<u8>| {
        for bytes in bytes.chunks(60) {
            out.push((bytes.len() as u8 - 1) << 2);
            out.extend(bytes);
        }
    };
    let (mut at, mut done) = (8, 0);
    while at < bytes.len() {
        let same = bytes[at..].iter().zip(&bytes[at - 8..]).take(64).take_while(|(a, b)| a == b).count();
        if same < 4 {
            at += 1;
            continue;
        }
        literal(&bytes[done..at], &mut out);
        out.extend([2 | (same as u8 - 1) << 2, 8, 0]);
        at += same;
        done = at;
    }
    literal(&bytes[done..], &mut out);
    out
}

/// Alternates repeated runs and bit-packed runs of 24 codes.
pub(super) fn hybrid(codes: &[u32], width: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, codes) in codes.chunks(24).enumerate() {
        if number % 3 == 0 && codes.iter().all(|code| *code == codes[0]) {
            varint(codes.len() << 1, &mut out);
            out.extend_from_slice(&codes[0].to_le_bytes()[..width.div_ceil(8) as usize]);
            continue;
        }
        varint(codes.len().div_ceil(8) << 1 | 1, &mut out);
        let bits: Vec<bool> = codes.iter().flat_map(|code| (0..width).map(move |bit| code >> bit & 1 == 1)).collect();
        let bytes = packed(&bits);
        out.extend((0..codes.len().div_ceil(8) * width as usize).map(|at| bytes.get(at).copied().unwrap_or(0)));
    }
    out
}

struct File {
    staging: Vec<u8>,
    pages: Vec<PageInput>,
}

impl File {
    fn page(&mut self, column: u32, encoding: Encoding, codec: Codec, valid: &[bool], values: &[u8]) {
        let levels = hybrid(&valid.iter().map(|valid| u32::from(*valid)).collect::<Vec<_>>(), 1);
        let raw = [&(levels.len() as u32).to_le_bytes(), &levels[..], values].concat();
        let start = self.staging.len() as u64;
        self.staging.extend(if codec == Codec::Snappy { snappy(&raw) } else { raw.clone() });
        self.pages.push(PageInput {
            bytes: start..self.staging.len() as u64,
            raw_bytes: raw.len() as u32,
            codec,
            encoding,
            level_bytes: None,
            has_levels: true,
            values: valid.len() as u32,
            skip: 0,
            rows: valid.len() as u32,
            first_row: 0,
            column,
            dictionary: (encoding == Encoding::Dictionary).then_some(0),
            blocks: vec![],
        });
    }
}

pub(super) fn pages_become_columns(device: &Device) -> Result<(), CheckError> {
    let rig = Rig::new(device)?;
    let view = |buffer: DeviceBuffer| -> DeviceView { buffer.as_view().clone() };
    for rows in LENGTHS.into_iter().filter(|rows| *rows > 0) {
        let valid = some_bits(rows, 11).iter().map(|bit| !bit).collect::<Vec<_>>();
        let present = valid.iter().filter(|valid| **valid).count();
        let codes: Vec<u32> = (0..present as u64).map(|row| (mixed(row / 30) % 90) as u32).collect();
        let numbers: Vec<u8> = codes.iter().flat_map(|code| (i64::from(*code) - 5).to_le_bytes()).collect();
        let texts: Vec<String> = codes.iter().map(|code| "mill pond ".repeat(*code as usize % 5)).collect();
        let plain: Vec<u8> =
            texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect();
        let mut file = File { staging: vec![], pages: vec![] };
        for codec in [Codec::Stored, Codec::Snappy] {
            let first = file.pages.len() as u32;
            file.page(first, Encoding::Plain, codec, &valid, &numbers);
            file.page(first + 1, Encoding::Dictionary, codec, &valid, &[vec![7], hybrid(&codes, 7)].concat());
            file.page(first + 2, Encoding::Plain, codec, &valid, &plain);
        }
        // A page that is truncated.
        file.page(6, Encoding::Plain, Codec::Snappy, &valid, &numbers);
        let cut = file.pages[6].bytes.end - 1;
        file.pages[6].bytes.end = cut;
        file.staging.extend([0; 16]);

        let bits = rows.div_ceil(32) * 4;
        let mut columns = Vec::new();
        for number in 0..file.pages.len() {
            let text = number % 3 == 2;
            let (source, stored) = if text { (Source::Text, Physical::Text) } else { (Source::Int64, Physical::U8) };
            let bytes = stored.value_bytes(rows as u64) as usize + if text { plain.len() - 4 * present } else { 0 };
            columns.push(ColumnOutput {
                source,
                stored,
                values: view(rig.output(bytes)?),
                validity: Some(view(rig.upload(&vec![0; bits])?)),
                base: if number % 3 == 0 { -5 } else { 0 },
                range: None,
                utf8: text,
                rows: rows as u64,
                facts: true,
            });
        }
        let table: Vec<u8> = (0..90).collect();
        let dictionaries = [Dictionary::Table { values: view(rig.upload(&table)?), entries: 90 }];
        let plan = Plan::of(&file.pages, &columns, &dictionaries)?;
        let (descriptors, staging) = (rig.upload(plan.descriptors())?, rig.upload(&file.staging)?);
        let (scratch, results) =
            (rig.output(plan.scratch_bytes() as usize)?, rig.output(plan.result_bytes() as usize)?);
        parquet::decode(&rig.images, &plan, &descriptors, &staging, &scratch, &results, rig.stream())?;
        let outcome = plan.outcome(&rig.download(&results)?)?;

        let what = |number: usize| format!("page {number} of {rows} rows");
        let errors: Vec<u32> = outcome.errors.iter().map(|error| error.page).collect();
        same("the pages with an error", errors, vec![6])?;
        let known = matches!(outcome.errors[0].fault, Fault::Input | Fault::Size);
        same("an error of its size", known, true)?;
        let mut dense = codes.iter().zip(&texts);
        let cells: Vec<Option<(&u32, &String)>> =
            valid.iter().map(|valid| if *valid { dense.next() } else { None }).collect();
        for (number, column) in columns.iter().enumerate().take(6) {
            let values = rig.download(&column.values)?;
            if let Some(validity) = &column.validity {
                same(&what(number), rig.download(validity)?, packed(&valid))?;
            }
            let facts = outcome.facts[number];
            same("the NULLs", facts.map(|facts| facts.nulls), Some((rows - present) as u64))?;
            if number % 3 == 2 {
                let mut ends = vec![];
                let mut bytes = vec![];
                let start = 4 * (rows as u32 + 1);
                ends.extend(start.to_le_bytes());
                for cell in &cells {
                    bytes.extend(cell.map_or("", |cell| cell.1).bytes());
                    ends.extend((start + bytes.len() as u32).to_le_bytes());
                }
                same("the bytes of texts", facts.map(|facts| facts.text_bytes), Some(bytes.len() as u64))?;
                same(&what(number), values, [ends, bytes].concat())?;
            } else {
                let expected: Vec<u8> = cells.iter().map(|cell| cell.map_or(0, |cell| *cell.0 as u8)).collect();
                same(&what(number), values, expected)?;
                let (low, high) = (codes.iter().min(), codes.iter().max());
                let range = low.zip(high).map(|(low, high)| (i128::from(*low), i128::from(*high)));
                same("the range", facts.and_then(|facts| facts.range), range)?;
            }
        }
    }
    rig.base.finish()
}
