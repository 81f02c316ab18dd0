//! Decodes pages of Parquet files, against plain Rust.

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::Physical;
use millpond_kernels::parquet::{self, Codec, ColumnOutput, Encoding, Fault, PageInput, Plan, Source};

use crate::parquet_pages::{Batch, ColumnSpec, Decoded, Form, Random, Runs, deltas, hybrid};
use crate::pipeline_rig::Rig;

/// Row counts around a word, a step of a warp, and a segment.
const LENGTHS: [usize; 9] = [0, 1, 31, 33, 127, 129, 504, 4_097, 9_000];

fn run(batch: &Batch) -> Decoded {
    let rig = Rig::new();
    let decoded = batch.run(&rig);
    rig.assert_clean();
    decoded
}

fn little(values: &[i64], width: usize) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
}

/// Expects these stored cells of a column, and no errors.
fn expect(decoded: &Decoded, column: usize, spec: &ColumnSpec, cells: &[Option<i128>]) {
    assert_eq!(decoded.outcome.errors, [], "{spec:?}");
    let found = decoded.cells(column, spec);
    let first = found.iter().zip(cells).position(|(found, cell)| found != cell);
    assert!(found.len() == cells.len() && first.is_none(), "{spec:?}: row {first:?} differs");
    let mask = if spec.stored == Physical::I128 { -1 } else { (1_i128 << (8 * spec.stored.width().max(1))) - 1 };
    assert!(cells.iter().flatten().all(|cell| *cell & mask == *cell), "the test's own cells");
}

fn valid_of(rows: usize, share: u64, random: &mut Random) -> Vec<bool> {
    (0..rows).map(|_| random.below(100) < share).collect()
}

#[test]
fn plain_numbers_are_narrowed() {
    let kinds = [
        (Source::Int64, Physical::U8, -5_000_000_000, 256),
        (Source::Int64, Physical::U16, 1_000, 65_536),
        (Source::Int64, Physical::U32, 0, 1 << 32),
        (Source::Int64, Physical::I64, 0, 1 << 62),
        (Source::Int32, Physical::U8, -100, 256),
        (Source::Int32, Physical::U16, 70_000, 65_536),
        (Source::Int32, Physical::I32, 0, 1 << 31),
        (Source::UInt32, Physical::U32, 0, 1 << 32),
    ];
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    let mut random = Random(1);
    for (source, stored, base, span) in kinds {
        let rows: usize = LENGTHS.iter().sum();
        let spec = ColumnSpec { base, ..ColumnSpec::new(source, stored, rows) };
        let column = batch.column(spec.clone());
        let (mut first, mut cells) = (0, Vec::new());
        for rows in LENGTHS {
            let values: Vec<i64> = (0..rows).map(|_| base + random.below(span) as i64).collect();
            let width = if source == Source::Int64 { 8 } else { 4 };
            batch.page(column, Encoding::Plain, Form::PLAIN, &vec![true; rows], &little(&values, width), first);
            cells.extend(values.iter().map(|value| Some(i128::from(value - base))));
            first += rows;
        }
        expected.push((spec, cells));
    }
    let decoded = run(&batch);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        expect(&decoded, column, spec, cells);
    }
}

#[test]
fn codes_become_what_the_table_has_for_them() {
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    let mut random = Random(2);
    let stored = [Physical::U8, Physical::U16, Physical::U32, Physical::I64, Physical::I128];
    for (index, width) in [0, 1, 3, 8, 11, 16, 17, 20, 24, 29, 32].into_iter().enumerate() {
        let stored = stored[index % 5];
        let entries = 1_u64 << width.min(9);
        let table: Vec<i128> = (0..entries).map(|entry| i128::from(entry * 7 % 251)).collect();
        let dictionary = batch.table(&table, stored);
        let runs = [Runs::Packed(63), Runs::Packed(1), Runs::Mixed, Runs::Packed(100_000)];
        let rows: usize = LENGTHS.iter().sum::<usize>() * runs.len();
        let spec = ColumnSpec::new(Source::Int64, stored, rows);
        let column = batch.column(spec.clone());
        let (mut first, mut cells) = (0, Vec::new());
        for runs in runs {
            for rows in LENGTHS {
                // Some codes are repeated in runs.
                let mut last = 0;
                let mut codes = Vec::new();
                for _ in 0..rows {
                    if runs != Runs::Mixed || random.below(12) == 0 {
                        last = random.below(entries) as u32;
                    }
                    codes.push(last);
                }
                let mut values = vec![width as u8];
                values.extend(hybrid(&codes, width, runs));
                batch.page(column, Encoding::Dictionary, Form::PLAIN, &vec![true; rows], &values, first);
                batch.with_dictionary(dictionary);
                cells.extend(codes.iter().map(|code| Some(table[*code as usize])));
                first += rows;
            }
        }
        expected.push((spec, cells));
    }
    let decoded = run(&batch);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        expect(&decoded, column, spec, cells);
    }
}

#[test]
fn pages_are_decompressed() {
    let mut random = Random(3);
    let prices: Vec<i64> = (0..4_000).map(|_| 90_000 + random.below(10_000_000) as i64).collect();
    let sorted: Vec<i64> = (0..6_000).map(|row| row / 4 * 3 + 1_000_000).collect();
    let constant = vec![77_i64; 20_000];
    let noise: Vec<i64> = (0..3_000).map(|_| random.next() as i64).collect();
    let half: Vec<i64> = (0..9_000).map(|row| if row / 1_000 % 2 == 0 { random.next() as i64 } else { 5 }).collect();
    for codec in [Codec::Snappy, Codec::Lz4Raw] {
        let mut batch = Batch::default();
        let mut cells = Vec::new();
        let all = [&prices, &sorted, &constant, &noise, &half, &vec![], &vec![1], &vec![1, 2], &vec![3; 3]];
        let rows = all.iter().map(|values| values.len()).sum::<usize>();
        let spec = ColumnSpec::new(Source::Int64, Physical::I64, rows);
        batch.column(spec.clone());
        for values in all {
            let form = Form { codec, ..Form::PLAIN };
            batch.page(0, Encoding::Plain, form, &vec![true; values.len()], &little(values, 8), cells.len());
            cells.extend(values.iter().map(|value| Some(i128::from(*value as u64))));
        }
        expect(&run(&batch), 0, &spec, &cells);
    }
}

/// LZ4 sequences of every length and distance, built one by one: many in a few bytes, empty ones, and ones with extra
/// length bytes, in any order; the last without a match.
#[test]
fn every_sequence_of_lz4_is_known() {
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    for seed in 0..40 {
        let mut random = Random(seed);
        let (mut page, mut raw): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let more = |page: &mut Vec<u8>, length: u64, most: u64| {
            if length >= most {
                let rest = length - most;
                page.extend(std::iter::repeat_n(255, (rest / 255) as usize));
                page.push((rest % 255) as u8);
            }
        };
        let share = [0, 1, 5, 50][seed as usize % 4];
        for number in 0..1_500 {
            let long = random.below(100) < share;
            let mut length = |least: u64, short: u64| match long && random.below(2) == 0 {
                true => least + random.below(700),
                false => least + random.below(short),
            };
            let literal = if number == 0 { 20 } else { length(0, [3, 15, 16][number % 3]) };
            let matched = length(4, [15, 8, 20][number / 7 % 3]);
            page.push((literal.min(15) << 4 | (matched - 4).min(15)) as u8);
            more(&mut page, literal, 15);
            for _ in 0..literal {
                let byte = random.below(4) as u8 + b'a';
                page.push(byte);
                raw.push(byte);
            }
            let near = [1, 8, 40, 65_535][random.below(4) as usize].min(raw.len() as u64);
            let back = 1 + random.below(near) as usize;
            page.extend_from_slice(&(back as u16).to_le_bytes());
            more(&mut page, matched - 4, 15);
            for _ in 0..matched {
                raw.push(raw[raw.len() - back]);
            }
        }
        // Literals up to the end of a value.
        let last = 8 - raw.len() % 8 + [0, 8, 16][seed as usize % 3];
        page.push((last.min(15) << 4) as u8);
        more(&mut page, last as u64, 15);
        page.extend(vec![b'z'; last]);
        raw.extend(vec![b'z'; last]);
        assert_eq!(lz4_flex::block::decompress(&page, raw.len()).expect("it is LZ4"), raw, "seed {seed}");
        let spec = ColumnSpec::new(Source::Int64, Physical::I64, raw.len() / 8);
        let column = batch.column(spec.clone());
        batch.page(column, Encoding::Plain, Form::PLAIN, &vec![true; raw.len() / 8], &[], 0);
        let at = batch.staging.len() as u64;
        batch.staging.extend(&page);
        let input = batch.pages.last_mut().expect("a page");
        (input.bytes, input.raw_bytes, input.codec) = (at..at + page.len() as u64, raw.len() as u32, Codec::Lz4Raw);
        let cells = raw.as_chunks::<8>().0.iter().map(|word| Some(i128::from(u64::from_le_bytes(*word))));
        expected.push((spec, cells.collect::<Vec<_>>()));
    }
    let decoded = run(&batch);
    assert_eq!(decoded.outcome.errors, []);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        expect(&decoded, column, spec, cells);
    }
}

/// Element types that encoders rarely write.
#[test]
fn every_element_of_snappy_is_known() {
    let mut page = Vec::new();
    let mut raw: Vec<u8> = Vec::new();
    let mut random = Random(4);
    let literal = |page: &mut Vec<u8>, raw: &mut Vec<u8>, bytes: &[u8], extra: u32| {
        let length = bytes.len() - 1;
        if extra == 0 {
            page.push((length as u8) << 2);
        } else {
            page.push((59 + extra as u8) << 2);
            page.extend_from_slice(&(length as u32).to_le_bytes()[..extra as usize]);
        }
        page.extend(bytes);
        raw.extend(bytes);
    };
    let copy = |page: &mut Vec<u8>, raw: &mut Vec<u8>, offset: usize, length: usize, size: u32| {
        match size {
            2 => page.extend([1 | (length as u8 - 4) << 2 | (offset >> 8 << 5) as u8, offset as u8]),
            3 => {
                page.push(2 | (length as u8 - 1) << 2);
                page.extend((offset as u16).to_le_bytes());
            }
            _ => {
                page.push(3 | (length as u8 - 1) << 2);
                page.extend((offset as u32).to_le_bytes());
            }
        }
        (0..length).for_each(|_| raw.push(raw[raw.len() - offset]));
    };
    literal(&mut page, &mut raw, b"a", 0);
    while raw.len() < 60_000 {
        let most = raw.len().min(if random.below(2) == 0 { 16 } else { 65_535 }) as u64;
        let offset = 1 + random.below(most) as usize;
        match random.below(6) {
            0 => {
                let bytes: Vec<u8> = (0..=random.below(59)).map(|_| random.next() as u8).collect();
                literal(&mut page, &mut raw, &bytes, random.below(5) as u32);
            }
            1 => {
                let bytes: Vec<u8> = (0..=random.below(300)).map(|_| random.next() as u8).collect();
                literal(&mut page, &mut raw, &bytes, 2 + random.below(3) as u32);
            }
            2 | 3 if offset < 2_048 => copy(&mut page, &mut raw, offset, 4 + random.below(8) as usize, 2),
            4 => copy(&mut page, &mut raw, offset, 1 + random.below(64) as usize, 5),
            _ => copy(&mut page, &mut raw, offset, 1 + random.below(64) as usize, 3),
        }
    }
    let rest = 4 - raw.len() % 4;
    literal(&mut page, &mut raw, &[9; 4][..rest], 0);
    let mut whole = Vec::new();
    crate::parquet_pages::varint(raw.len() as u64, &mut whole);
    whole.extend(&page);
    assert_eq!(snap::raw::Decoder::new().decompress_vec(&whole).unwrap(), raw);
    let rows = raw.len() / 4;
    let spec = ColumnSpec::new(Source::UInt32, Physical::U32, rows);
    let mut batch = Batch::default();
    batch.column(spec.clone());
    batch.page(0, Encoding::Plain, Form::PLAIN, &vec![true; rows], &whole, 0);
    batch.pages[0].codec = Codec::Snappy;
    batch.pages[0].raw_bytes = raw.len() as u32;
    let cells: Vec<Option<i128>> =
        raw.chunks_exact(4).map(|bytes| Some(i128::from(u32::from_le_bytes(bytes.try_into().unwrap())))).collect();
    expect(&run(&batch), 0, &spec, &cells);
}

#[test]
fn null_rows_have_no_values_in_the_page() {
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    let mut random = Random(5);
    for (version, codec) in [(1, Codec::Stored), (1, Codec::Snappy), (2, Codec::Lz4Raw), (2, Codec::Snappy)] {
        for encoding in [Encoding::Plain, Encoding::Dictionary, Encoding::DeltaBinary, Encoding::StreamSplit] {
            let rows: usize = LENGTHS.iter().sum();
            let stored = if encoding == Encoding::Plain { Physical::U16 } else { Physical::U32 };
            let spec = ColumnSpec { nullable: true, ..ColumnSpec::new(Source::Int64, stored, rows) };
            let column = batch.column(spec.clone());
            let table: Vec<i128> = (0..100).map(|entry| i128::from(entry * 3)).collect();
            let dictionary = batch.table(&table, stored);
            let (mut first, mut cells) = (0, Vec::new());
            for (index, rows) in LENGTHS.into_iter().enumerate() {
                let share = [0, 50, 100, 3, 97][index % 5];
                let level_runs = [Runs::Mixed, Runs::Packed(63), Runs::Repeated][index % 3];
                let valid = valid_of(rows, share, &mut random);
                let codes: Vec<u32> = valid.iter().filter(|valid| **valid).map(|_| random.below(100) as u32).collect();
                let numbers: Vec<i64> = codes.iter().map(|code| i64::from(*code) * 3).collect();
                let mut values = match encoding {
                    Encoding::Plain => little(&numbers, 8),
                    Encoding::DeltaBinary => deltas(&numbers, 64),
                    Encoding::StreamSplit => split(&little(&numbers, 8), 8),
                    _ => [vec![7], hybrid(&codes, 7, [Runs::Mixed, Runs::Packed(3)][index % 2])].concat(),
                };
                if index == 4 {
                    // Bytes after the values are ignored.
                    values.extend([1, 2, 3]);
                }
                if numbers.is_empty() && index % 2 == 0 {
                    values.clear();
                }
                let form = Form { codec, version, has_levels: true, level_runs };
                batch.page(column, encoding, form, &valid, &values, first);
                if encoding == Encoding::Dictionary {
                    batch.with_dictionary(dictionary);
                }
                let mut numbers = numbers.into_iter();
                cells.extend(valid.iter().map(|valid| valid.then(|| i128::from(numbers.next().unwrap()))));
                first += rows;
            }
            expected.push((spec, cells));
        }
    }
    let decoded = run(&batch);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        expect(&decoded, column, spec, cells);
        let facts = decoded.outcome.facts[column].unwrap();
        assert_eq!(facts.nulls, cells.iter().filter(|cell| cell.is_none()).count() as u64);
        let (low, high) = (cells.iter().flatten().min(), cells.iter().flatten().max());
        assert_eq!(facts.range, low.copied().zip(high.copied()));
    }
}

/// A writer may omit the compressed form: no values need no bytes.
#[test]
fn a_page_of_nulls_needs_no_compressed_form_of_nothing() {
    for codec in [Codec::Snappy, Codec::Lz4Raw] {
        let mut batch = Batch::default();
        let spec = ColumnSpec { nullable: true, ..ColumnSpec::new(Source::Int64, Physical::U32, 500) };
        let column = batch.column(spec.clone());
        let form = Form { codec, version: 2, has_levels: true, level_runs: Runs::Repeated };
        batch.page(column, Encoding::Plain, form, &[false; 500], &[], 0);
        let page = batch.pages.last_mut().expect("a page");
        page.bytes.end = page.bytes.start + u64::from(page.level_bytes.expect("version 2"));
        expect(&run(&batch), 0, &spec, &vec![None; 500]);
    }
}

/// Encodes BYTE_STREAM_SPLIT.
fn split(bytes: &[u8], width: usize) -> Vec<u8> {
    (0..width).flat_map(|byte| bytes.iter().skip(byte).step_by(width).copied().collect::<Vec<_>>()).collect()
}

#[test]
fn facts_tell_how_values_follow_one_another() {
    let cases: [(&[i64], bool, bool); 4] =
        [(&[1, 2, 3, 9], true, true), (&[1, 1, 4], true, false), (&[3, 2, 9], false, false), (&[5], true, true)];
    for stored in [Physical::I64, Physical::U8, Physical::I32] {
        for (values, sorted, ascending) in cases {
            // Spread out, so that several blocks and warps take part.
            let values: Vec<i64> = (0..20_000).map(|row| values[row * values.len() / 20_000]).collect();
            let values = if ascending && values[0] != 5 { (0..256).collect() } else { values };
            let values = if values[0] == 5 { vec![5] } else { values };
            let base = if stored == Physical::U8 { 0 } else { 3 };
            let spec = ColumnSpec { base, ..ColumnSpec::new(Source::Int64, stored, values.len()) };
            let mut batch = Batch::default();
            batch.column(spec);
            batch.page(0, Encoding::Plain, Form::PLAIN, &vec![true; values.len()], &little(&values, 8), 0);
            let facts = run(&batch).outcome.facts[0].unwrap();
            let (low, high) = (*values.iter().min().unwrap() - base, *values.iter().max().unwrap() - base);
            assert_eq!(facts.range, Some((low.into(), high.into())));
            assert_eq!((facts.is_sorted(), facts.is_ascending(values.len() as u64)), (sorted, ascending), "{values:?}");
            let count =
                |wanted: fn(&i64, &i64) -> bool| values.windows(2).filter(|w| wanted(&w[1], &w[0])).count() as u64;
            assert_eq!((facts.rises, facts.falls), (count(i64::gt), count(i64::lt)));
        }
    }
}

fn some_texts(rows: usize, random: &mut Random) -> Vec<String> {
    let words = ["", "a", "Wasser", "fox", "é", "carefully final deposits", " ", "日本"];
    let text = |random: &mut Random| {
        let count = if random.below(500) == 0 { 400 } else { random.below(4) };
        (0..count).map(|_| words[random.below(8) as usize]).collect()
    };
    (0..rows).map(|_| text(random)).collect()
}

#[test]
fn texts_become_offsets_and_bytes() {
    let mut random = Random(6);
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    for (nullable, codec) in [(false, Codec::Stored), (true, Codec::Snappy), (true, Codec::Lz4Raw)] {
        let lengths = [0_usize, 1, 31, 33, 700, 4_097, 33];
        let rows: usize = lengths.iter().sum();
        let entries = ["", "AIR", "MAIL", "日本", "REG AIR"];
        let dictionary = batch.texts(&entries);
        let column = batch.column(ColumnSpec { nullable, ..ColumnSpec::new(Source::Text, Physical::Text, rows) });
        let (mut first, mut cells, mut room) = (0, Vec::new(), 0);
        for (index, rows) in lengths.into_iter().enumerate() {
            let valid = if nullable { valid_of(rows, [100, 60, 0][index % 3], &mut random) } else { vec![true; rows] };
            let present = valid.iter().filter(|valid| **valid).count();
            let form = Form { codec, has_levels: nullable, version: 1 + index as u32 % 2, ..Form::PLAIN };
            let texts: Vec<String>;
            match index % 3 {
                0 => {
                    texts = some_texts(present, &mut random);
                    let values: Vec<u8> = texts
                        .iter()
                        .flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat())
                        .collect();
                    batch.page(column, Encoding::Plain, form, &valid, &values, first);
                }
                1 => {
                    let codes: Vec<u32> = (0..present).map(|_| random.below(5) as u32).collect();
                    texts = codes.iter().map(|code| entries[*code as usize].to_string()).collect();
                    let values = [vec![3], hybrid(&codes, 3, Runs::Mixed)].concat();
                    batch.page(column, Encoding::Dictionary, form, &valid, &values, first);
                    batch.with_dictionary(dictionary);
                }
                _ => {
                    texts = some_texts(present, &mut random);
                    let lengths: Vec<i64> = texts.iter().map(|text| text.len() as i64).collect();
                    let values = [deltas(&lengths, 32), texts.concat().into_bytes()].concat();
                    batch.page(column, Encoding::DeltaLength, form, &valid, &values, first);
                }
            }
            room += texts.iter().map(|text| text.len() as u64).sum::<u64>();
            let mut texts = texts.into_iter();
            cells.extend(valid.iter().map(|valid| valid.then(|| texts.next().unwrap().into_bytes())));
            first += rows;
        }
        batch.columns[column as usize].text_room = room;
        expected.push(cells);
    }
    let decoded = run(&batch);
    assert_eq!(decoded.outcome.errors, []);
    for (column, cells) in expected.iter().enumerate() {
        assert!(decoded.texts(column, &batch.columns[column]) == *cells, "column {column}");
        let facts = decoded.outcome.facts[column].unwrap();
        assert_eq!(facts.text_bytes, batch.columns[column].text_room);
        assert_eq!(facts.nulls, cells.iter().filter(|cell| cell.is_none()).count() as u64);
    }
    // One byte less than the texts need.
    batch.columns[1].text_room -= 1;
    let decoded = run(&batch);
    assert_eq!(decoded.outcome.errors.iter().map(|error| error.fault).collect::<Vec<_>>(), [Fault::Capacity]);
    assert!(decoded.texts(0, &batch.columns[0]) == expected[0]);
    decoded.texts(1, &batch.columns[1]);
}

/// More columns than a launch has warps.
#[test]
fn any_number_of_columns_of_texts_has_its_place() {
    let mut batch = Batch::default();
    let texts: Vec<String> = (0..600).map(|column| format!("column {column}")).collect();
    for text in &texts {
        let room = text.len() as u64;
        let column = batch.column(ColumnSpec { text_room: room, ..ColumnSpec::new(Source::Text, Physical::Text, 1) });
        let values = [&(room as u32).to_le_bytes(), text.as_bytes()].concat();
        batch.page(column, Encoding::Plain, Form::PLAIN, &[true], &values, 0);
    }
    let decoded = run(&batch);
    assert_eq!(decoded.outcome.errors, []);
    for (column, text) in texts.iter().enumerate() {
        assert!(decoded.texts(column, &batch.columns[column]) == [Some(text.clone().into_bytes())], "{text}");
    }
}

#[test]
fn blocks_of_a_page_are_decompressed_apart() {
    let mut random = Random(23);
    let rows = 30_000;
    let values: Vec<i64> = (0..rows).map(|row| row as i64 * 1000 + random.below(50) as i64).collect();
    let raw = little(&values, 8);
    let mut stream = Vec::new();
    crate::parquet_pages::varint(raw.len() as u64, &mut stream);
    let mut blocks = Vec::new();
    for (number, part) in raw.chunks(1 << 16).enumerate() {
        blocks.push((stream.len() as u32, (number << 16) as u32));
        let alone = snap::raw::Encoder::new().compress_vec(part).unwrap();
        let mut size = Vec::new();
        crate::parquet_pages::varint(part.len() as u64, &mut size);
        stream.extend(&alone[size.len()..]);
    }
    assert_eq!(blocks.len(), 4);
    let with = |blocks: &[(u32, u32)], stream: &[u8]| {
        let mut batch = Batch::default();
        let column = batch.column(ColumnSpec::new(Source::Int64, Physical::I64, rows));
        batch.page(column, Encoding::Plain, Form::PLAIN, &vec![true; rows], &[], 0);
        batch.staging = [&[0xee; 5], stream].concat();
        let page = &mut batch.pages[0];
        (page.bytes, page.raw_bytes) = (5..batch.staging.len() as u64, raw.len() as u32);
        (page.codec, page.blocks) = (Codec::Snappy, blocks.to_vec());
        batch
    };
    let cells: Vec<Option<i128>> = values.iter().map(|value| Some(i128::from(*value))).collect();
    for blocks in [&blocks[..], &[]] {
        let batch = with(blocks, &stream);
        let decoded = run(&batch);
        assert_eq!(decoded.outcome.errors, []);
        assert!(decoded.cells(0, &batch.columns[0]) == cells, "{} blocks", blocks.len());
    }
    // After the levels of a page of version 2, which are not compressed.
    let levels = hybrid(&vec![1; rows], 1, Runs::Packed(63));
    let mut batch = with(&blocks, &stream);
    batch.staging = [&levels[..], &stream].concat();
    let page = &mut batch.pages[0];
    (page.has_levels, page.level_bytes) = (true, Some(levels.len() as u32));
    (page.bytes, page.raw_bytes) = (0..batch.staging.len() as u64, (raw.len() + levels.len()) as u32);
    let decoded = run(&batch);
    assert_eq!(decoded.outcome.errors, []);
    assert!(decoded.cells(0, &batch.columns[0]) == cells, "version 2");
    // Invalid blocks: elements extend beyond a block, or reach back into another.
    for wrong in [[blocks[0], (blocks[1].0 + 1, blocks[1].1)], [blocks[0], (blocks[1].0, blocks[1].1 + 16)]] {
        let decoded = run(&with(&wrong, &stream));
        let faults: Vec<Fault> = decoded.outcome.errors.iter().map(|error| error.fault).collect();
        let known = [Fault::Size, Fault::Input, Fault::Output, Fault::Offset];
        assert!(matches!(faults[..], [fault] if known.contains(&fault)), "{faults:?}");
    }
    let damaged: Vec<u8> =
        stream.iter().enumerate().map(|(at, byte)| if at % 999 == 7 { !byte } else { *byte }).collect();
    run(&with(&blocks, &damaged));
}

#[test]
fn texts_of_characters_are_utf8() {
    let mut random = Random(19);
    let words: [&[u8]; 8] =
        [b"a", "é".as_bytes(), "日".as_bytes(), "😀".as_bytes(), b"\xc3", b"\xa9", b"\xed\xa0\x80", b"\xf4\x8f"];
    let text = |choices: u64, random: &mut Random| -> Vec<u8> {
        (0..random.below(6)).flat_map(|_| words[random.below(choices) as usize].to_vec()).collect()
    };
    for round in 0..40 {
        // The first four words are each valid UTF-8 on their own; few combinations of the others are.
        let texts: Vec<Vec<u8>> =
            (0..100).map(|row| text(if row == 7 * round % 100 { 8 } else { 4 }, &mut random)).collect();
        let is_valid = texts.iter().all(|text| std::str::from_utf8(text).is_ok());
        for utf8 in [false, true] {
            let mut batch = Batch::default();
            let text_room = texts.iter().map(|text| text.len() as u64).sum();
            let spec = ColumnSpec { text_room, utf8, ..ColumnSpec::new(Source::Text, Physical::Text, texts.len()) };
            let column = batch.column(spec);
            let values: Vec<u8> =
                texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), &text[..]].concat()).collect();
            batch.page(column, Encoding::Plain, Form::PLAIN, &[true; 100], &values, 0);
            let decoded = run(&batch);
            let faults: Vec<Fault> = decoded.outcome.errors.iter().map(|error| error.fault).collect();
            assert_eq!(faults, if utf8 && !is_valid { vec![Fault::Utf8] } else { vec![] }, "{texts:?}");
        }
    }
}

#[test]
fn deltas_streams_fields_and_timestamps_are_numbers() {
    let mut random = Random(7);
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    let rows = 3_000;
    let mut add = |spec: ColumnSpec, encoding: Encoding, values: Vec<u8>, cells: Vec<i128>| {
        let column = batch.column(spec.clone());
        batch.page(column, encoding, Form { codec: Codec::Snappy, ..Form::PLAIN }, &vec![true; rows], &values, 0);
        let mask = if spec.stored == Physical::I128 { -1 } else { (1_i128 << (8 * spec.stored.width())) - 1 };
        expected.push((spec, cells.into_iter().map(|cell| Some(cell & mask)).collect::<Vec<_>>()));
    };
    let wide = |values: &[i64]| values.iter().map(|value| i128::from(*value)).collect::<Vec<_>>();
    for span in [1, 10, 1 << 20, 1 << 40, u64::MAX] {
        let values: Vec<i64> = (0..rows).map(|_| random.below(span) as i64).collect();
        add(
            ColumnSpec::new(Source::Int64, Physical::I64, rows),
            Encoding::DeltaBinary,
            deltas(&values, 64),
            wide(&values),
        );
        let values: Vec<i64> = values.iter().map(|value| i64::from(*value as i32)).collect();
        add(
            ColumnSpec::new(Source::Int32, Physical::I32, rows),
            Encoding::DeltaBinary,
            deltas(&values, 32),
            wide(&values),
        );
        add(
            ColumnSpec::new(Source::Int32, Physical::I64, rows),
            Encoding::StreamSplit,
            split(&little(&values, 4), 4),
            wide(&values),
        );
    }
    let floats: Vec<f64> = (0..rows).map(|row| if row % 50 == 0 { f64::NAN } else { row as f64 / 7.0 }).collect();
    let bits: Vec<i64> = floats.iter().map(|value| value.to_bits() as i64).collect();
    add(ColumnSpec::new(Source::Double, Physical::F64, rows), Encoding::Plain, little(&bits, 8), wide(&bits));
    add(
        ColumnSpec::new(Source::Double, Physical::F64, rows),
        Encoding::StreamSplit,
        split(&little(&bits, 8), 8),
        wide(&bits),
    );
    for width in [1, 3, 4, 8, 9, 13, 16_usize] {
        let values: Vec<i128> = (0..rows)
            .map(|_| (i128::from(random.next() as i64) << 64 | i128::from(random.next())) >> (128 - 8 * width))
            .collect();
        let fields: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()[16 - width..].to_vec()).collect();
        let source = Source::Fixed(width as u32);
        add(ColumnSpec::new(source, Physical::I128, rows), Encoding::Plain, fields.clone(), values.clone());
        add(
            ColumnSpec::new(source, Physical::I128, rows),
            Encoding::StreamSplit,
            split(&fields, width),
            values.clone(),
        );
        if width <= 8 {
            add(ColumnSpec::new(source, Physical::I64, rows), Encoding::Plain, fields, values);
        }
    }
    let stamps: Vec<i64> = (0..rows).map(|_| random.next() as i64 / 2).collect();
    let fields: Vec<u8> = stamps
        .iter()
        .flat_map(|stamp| {
            let (day, rest) = (stamp.div_euclid(86_400_000_000_000), stamp.rem_euclid(86_400_000_000_000));
            [&rest.to_le_bytes()[..], &((day + 2_440_588) as i32).to_le_bytes()].concat()
        })
        .collect();
    add(ColumnSpec::new(Source::Int96, Physical::I64, rows), Encoding::Plain, fields, wide(&stamps));
    let decoded = run(&batch);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        expect(&decoded, column, spec, cells);
    }
}

#[test]
fn booleans_are_bits() {
    let mut random = Random(8);
    let mut batch = Batch::default();
    let mut expected = Vec::new();
    for encoding in [Encoding::Plain, Encoding::RleBoolean] {
        for nullable in [false, true] {
            let rows: usize = LENGTHS.iter().sum();
            let spec = ColumnSpec { nullable, ..ColumnSpec::new(Source::Boolean, Physical::Bit, rows) };
            let column = batch.column(spec.clone());
            let (mut first, mut cells) = (0, Vec::new());
            for rows in LENGTHS {
                let valid = if nullable { valid_of(rows, 70, &mut random) } else { vec![true; rows] };
                let present = valid.iter().filter(|valid| **valid).count();
                let bits: Vec<u32> = (0..present).map(|_| random.below(2) as u32).collect();
                let mut values = Vec::new();
                if encoding == Encoding::Plain {
                    crate::parquet_pages::packed(&bits, 1, &mut values);
                } else {
                    let runs = hybrid(&bits, 1, Runs::Mixed);
                    values.extend((runs.len() as u32).to_le_bytes());
                    values.extend(runs);
                }
                let form = Form { has_levels: nullable, ..Form::PLAIN };
                batch.page(column, encoding, form, &valid, &values, first);
                let mut bits = bits.into_iter();
                cells.extend(valid.iter().map(|valid| valid.then(|| i128::from(bits.next().unwrap()))));
                first += rows;
            }
            expected.push((spec, cells));
        }
    }
    let decoded = run(&batch);
    for (column, (spec, cells)) in expected.iter().enumerate() {
        assert_eq!(decoded.outcome.errors, []);
        assert!(decoded.cells(column, spec) == *cells, "{spec:?}");
    }
}

/// A page whose rows go to two columns, as if it crossed the boundary of two extents.
#[test]
fn a_page_is_cut_in_two() {
    let mut random = Random(9);
    let rows = 10_000;
    for cut in [1, 31, 4_096, 5_003] {
        let valid = valid_of(rows, 80, &mut random);
        let codes: Vec<u32> = valid.iter().filter(|valid| **valid).map(|_| random.below(100) as u32).collect();
        let texts: Vec<String> = codes.iter().map(|code| "ab".repeat(*code as usize % 9)).collect();
        let plain: Vec<u8> =
            texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect();
        let mut batch = Batch::default();
        let table = batch.table(&(0..100).collect::<Vec<i128>>(), Physical::U8);
        let form = Form { has_levels: true, codec: Codec::Snappy, ..Form::PLAIN };
        for (from, to) in [(0, cut), (cut, rows)] {
            // The row before them belongs to another page.
            let spec = ColumnSpec { nullable: true, ..ColumnSpec::new(Source::Int64, Physical::U8, to - from + 1) };
            let column = batch.column(spec);
            batch.page(
                column,
                Encoding::Dictionary,
                form,
                &valid,
                &[vec![7], hybrid(&codes, 7, Runs::Packed(63))].concat(),
                1,
            );
            batch.with_dictionary(table);
            let spec = ColumnSpec { nullable: true, ..ColumnSpec::new(Source::Text, Physical::Text, to - from) };
            let column = batch.column(ColumnSpec { text_room: plain.len() as u64, ..spec });
            batch.page(column, Encoding::Plain, form, &valid, &plain, 0);
            for page in batch.pages.iter_mut().rev().take(2) {
                (page.skip, page.rows) = (from as u32, (to - from) as u32);
            }
        }
        let mut cells = codes.iter().zip(texts);
        let cells: Vec<Option<(i128, Vec<u8>)>> = valid
            .iter()
            .map(|valid| {
                valid.then(|| cells.next().map(|(code, text)| (i128::from(*code), text.into_bytes())).unwrap())
            })
            .collect();
        // The first row of codes is in a page of one NULL, which writes no code.
        for column in [0, 2] {
            batch.page(column, Encoding::Plain, Form { has_levels: true, ..Form::PLAIN }, &[false], &[], 0);
        }
        let decoded = run(&batch);
        assert_eq!(decoded.outcome.errors, []);
        for (half, range) in [(0, 0..cut), (1, cut..rows)] {
            let numbers = decoded.cells(2 * half, &batch.columns[2 * half]);
            let texts = decoded.texts(2 * half + 1, &batch.columns[2 * half + 1]);
            for (row, cell) in cells[range].iter().enumerate() {
                assert_eq!(numbers[row + 1], cell.as_ref().map(|cell| cell.0));
                assert_eq!(texts[row], cell.as_ref().map(|cell| cell.1.clone()));
            }
        }
    }
}

#[test]
fn damaged_pages_have_an_error_and_others_are_decoded() {
    let rows = 300;
    let values: Vec<i64> = (0..rows as i64).collect();
    let plain = little(&values, 8);
    type Case<'a> = (&'a str, Encoding, Form, &'a [u8], fn(&mut Batch), &'a [Fault]);
    let page = |batch: &mut Batch, encoding: Encoding, form: Form, values: &[u8]| {
        let spec = ColumnSpec { range: Some((0, 299)), ..ColumnSpec::new(Source::Int64, Physical::U16, rows) };
        let column = batch.column(spec);
        batch.page(column, encoding, form, &vec![true; rows], values, 0);
    };
    let snappy = Form { codec: Codec::Snappy, ..Form::PLAIN };
    let leveled = Form { has_levels: true, ..Form::PLAIN };
    let codes = [vec![4], hybrid(&vec![3; rows], 4, Runs::Packed(1))].concat();
    let cases: Vec<Case> = vec![
        ("no values", Encoding::Plain, Form::PLAIN, &[], |_| {}, &[Fault::Short]),
        ("one byte less", Encoding::Plain, Form::PLAIN, &plain[1..], |_| {}, &[Fault::Short]),
        ("another size", Encoding::Plain, snappy, &plain, |batch| batch.pages[0].raw_bytes += 8, &[Fault::Size]),
        (
            "a cut stream",
            Encoding::Plain,
            snappy,
            &plain,
            |batch| batch.pages[0].bytes.end -= 3,
            &[Fault::Input, Fault::Size],
        ),
        ("levels too long", Encoding::Plain, leveled, &plain, |batch| batch.staging[2] = 1, &[Fault::Levels]),
        ("a level of 5", Encoding::Plain, leveled, &plain, |batch| batch.staging[6] = 5, &[Fault::Levels]),
        ("a NULL too many", Encoding::Plain, leveled, &plain, |batch| batch.staging[6] = 0, &[Fault::Null]),
        ("codes of 33 bits", Encoding::Dictionary, Form::PLAIN, &codes, |batch| batch.staging[0] = 33, &[Fault::Width]),
        ("a run of nothing", Encoding::Dictionary, Form::PLAIN, &codes, |batch| batch.staging[1] = 0, &[Fault::Runs]),
        ("no such code", Encoding::Dictionary, Form::PLAIN, &codes, |batch| batch.staging[2] = 0xff, &[Fault::Code]),
        ("out of range", Encoding::Plain, Form::PLAIN, &plain, |batch| batch.staging[10] = 9, &[Fault::Range]),
        ("no blocks", Encoding::DeltaBinary, Form::PLAIN, &[0; 9], |_| {}, &[Fault::Delta]),
    ];
    for (what, encoding, form, values, damage, faults) in cases {
        let mut batch = Batch::default();
        page(&mut batch, encoding, form, values);
        damage(&mut batch);
        let table = batch.table(&(0..10).collect::<Vec<i128>>(), Physical::U16);
        if encoding == Encoding::Dictionary {
            batch.with_dictionary(table);
        }
        page(&mut batch, Encoding::Plain, Form::PLAIN, &plain);
        let decoded = run(&batch);
        let [error] = decoded.outcome.errors[..] else { panic!("{what}: {:?}", decoded.outcome.errors) };
        assert!(error.page == 0 && faults.contains(&error.fault), "{what}: {error:?}");
        let cells: Vec<Option<i128>> = (0..rows as i128).map(Some).collect();
        assert_eq!(decoded.cells(1, &batch.columns[1]), cells, "{what}");
        if !matches!(faults[0], Fault::Range | Fault::Code) {
            assert!(decoded.cells(0, &batch.columns[0]).iter().all(|cell| *cell == Some(0)), "{what}");
        }
    }
}

/// A batch that uses every kernel, small enough to be run many times.
fn mixture(random: &mut Random) -> Batch {
    let mut batch = Batch::default();
    let table = batch.table(&(0..60).map(|entry| entry * 2).collect::<Vec<i128>>(), Physical::U16);
    let entries = ["", "AIR", "MAIL", "日本", "REG AIR"];
    let texts = batch.texts(&entries);
    let runs = [Runs::Mixed, Runs::Packed(4), Runs::Packed(63)];
    for number in 0..10 {
        let rows = 1 + random.below(300) as usize;
        let nullable = random.below(2) == 0;
        let valid = if nullable { valid_of(rows, 70, random) } else { vec![true; rows] };
        let present = valid.iter().filter(|valid| **valid).count();
        let codec = [Codec::Stored, Codec::Snappy, Codec::Lz4Raw][random.below(3) as usize];
        let level_runs = runs[random.below(3) as usize];
        let form = Form { codec, version: 1 + random.below(2) as u32, has_levels: nullable, level_runs };
        let codes: Vec<u32> = (0..present).map(|_| (random.below(20) * random.below(4)) as u32).collect();
        let numbers: Vec<i64> = codes.iter().map(|code| i64::from(*code)).collect();
        let coded = |modulo: u32| -> Vec<u8> {
            let codes: Vec<u32> = codes.iter().map(|code| code % modulo).collect();
            [vec![6], hybrid(&codes, 6, level_runs)].concat()
        };
        let texts_of = || numbers.iter().map(|number| "abcdefgh"[..*number as usize % 9].to_string());
        let spec = ColumnSpec { nullable, ..ColumnSpec::new(Source::Int64, Physical::U16, rows) };
        let text =
            ColumnSpec { source: Source::Text, stored: Physical::Text, text_room: 9 * rows as u64, ..spec.clone() };
        let (spec, encoding, values) = match number {
            0 => (spec, Encoding::Plain, little(&numbers, 8)),
            1 => (ColumnSpec { source: Source::Int32, ..spec }, Encoding::Plain, little(&numbers, 4)),
            2 | 3 => (spec, Encoding::Dictionary, coded(60)),
            4 => (spec, Encoding::DeltaBinary, deltas(&numbers, 64)),
            5 => (spec, Encoding::StreamSplit, split(&little(&numbers, 8), 8)),
            6 => {
                let bytes = texts_of().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat());
                (text, Encoding::Plain, bytes.collect())
            }
            7 => (text, Encoding::Dictionary, coded(5)),
            8 => {
                let lengths: Vec<i64> = texts_of().map(|text| text.len() as i64).collect();
                (
                    text,
                    Encoding::DeltaLength,
                    [deltas(&lengths, 32), texts_of().collect::<String>().into_bytes()].concat(),
                )
            }
            _ => {
                let bits: Vec<u32> = codes.iter().map(|code| code & 1).collect();
                let runs = hybrid(&bits, 1, level_runs);
                let boolean = ColumnSpec { source: Source::Boolean, stored: Physical::Bit, ..spec };
                (boolean, Encoding::RleBoolean, [(runs.len() as u32).to_le_bytes().to_vec(), runs].concat())
            }
        };
        let column = batch.column(spec);
        batch.page(column, encoding, form, &valid, &values, 0);
        match number {
            2 | 3 => batch.with_dictionary(table),
            7 => batch.with_dictionary(texts),
            _ => {}
        }
    }
    batch
}

/// Changes bytes of a page or fields of its header, to values that a plan accepts.
fn damage(batch: &mut Batch, number: usize, random: &mut Random) {
    let (column, bytes) = (batch.pages[number].column as usize, batch.pages[number].bytes.clone());
    let len = bytes.end - bytes.start;
    for _ in 0..1 + random.below(3) {
        let page = &mut batch.pages[number];
        match random.below(8) {
            0..=4 if len > 0 => {
                let early = if random.below(2) == 0 { len.min(12) } else { len };
                let at = (bytes.start + random.below(early)) as usize;
                batch.staging[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => batch.staging[at] ^ 1 << random.below(8),
                    _ => random.next() as u8,
                };
            }
            5 if page.codec != Codec::Stored => page.raw_bytes = random.below(2 * u64::from(page.raw_bytes) + 9) as u32,
            6 => {
                page.bytes.end = bytes.start + random.below(len + 1);
                if page.codec == Codec::Stored {
                    page.raw_bytes = (page.bytes.end - bytes.start) as u32;
                }
            }
            7 => {
                page.has_levels ^= true;
                page.level_bytes =
                    [None, Some(random.below(len.min(u64::from(page.raw_bytes)) + 1) as u32)][random.below(2) as usize];
            }
            _ => batch.columns[column].range = Some((random.below(40) as i64, 40)),
        }
        let most = page.raw_bytes.min((page.bytes.end - page.bytes.start) as u32);
        page.level_bytes = page.level_bytes.map(|bytes| bytes.min(most));
    }
}

/// Whatever the bytes are, only the page's own rows are written, and the other pages are decoded.
#[test]
fn any_bytes_at_all_are_survived() {
    let rounds = std::env::var("PARQUET_ROUNDS").map_or(12, |rounds| rounds.parse().expect("a number"));
    let first = std::env::var("PARQUET_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut errors = 0;
    for seed in first..first + rounds {
        let mut random = Random(seed * 7919 + 5);
        let sound = mixture(&mut random);
        let expected = run(&sound);
        assert_eq!(expected.outcome.errors, [], "seed {seed}");
        for _ in 0..4 {
            let mut batch = sound.clone();
            let damaged: Vec<usize> = (0..batch.pages.len()).filter(|_| random.below(2) == 0).collect();
            damaged.iter().for_each(|page| damage(&mut batch, *page, &mut random));
            let rig = Rig::new();
            let decoded = batch.run(&rig);
            let findings = rig.driver.take_findings();
            assert!(findings.is_empty(), "seed {seed}: {findings:#?}\n{:#?}", batch.pages);
            errors += decoded.outcome.errors.len();
            for (column, spec) in batch.columns.iter().enumerate() {
                if !damaged.contains(&column) {
                    assert!(decoded.values[column] == expected.values[column], "seed {seed}: {spec:?}");
                    assert!(decoded.validity[column] == expected.validity[column], "seed {seed}: {spec:?}");
                } else if spec.stored == Physical::Text {
                    decoded.texts(column, spec);
                } else {
                    let filled = decoded.values[column].chunks_exact(2).all(|value| value != [0xaa, 0xaa]);
                    assert!(filled || spec.stored == Physical::Bit, "seed {seed}: {spec:?} has rows that nobody wrote");
                }
            }
            assert!(decoded.outcome.errors.iter().all(|error| damaged.contains(&(error.page as usize))), "seed {seed}");
        }
    }
    assert!(errors as u64 >= rounds, "{errors} errors in {rounds} rounds");
}

#[test]
fn pages_that_do_not_fit_are_refused() {
    let rig = Rig::new();
    let values = rig.upload(&[0; 800], &rig.stream).as_view().clone();
    let column = ColumnOutput {
        source: Source::Int64,
        stored: Physical::I64,
        values: values.clone(),
        validity: None,
        base: 0,
        range: None,
        utf8: false,
        rows: 100,
        facts: false,
    };
    let page = PageInput {
        bytes: 0..800,
        raw_bytes: 800,
        codec: Codec::Stored,
        encoding: Encoding::Plain,
        level_bytes: None,
        has_levels: false,
        values: 100,
        skip: 0,
        rows: 100,
        first_row: 0,
        column: 0,
        dictionary: None,
        blocks: vec![],
    };
    let plan = |page: &PageInput, column: &ColumnOutput| {
        Plan::of(std::slice::from_ref(page), std::slice::from_ref(column), &[])
    };
    assert_eq!(plan(&page, &column).unwrap().num_launches(), 2);
    let pages = [
        PageInput { column: 1, ..page.clone() },
        PageInput { blocks: vec![(2, 0)], ..page.clone() },
        PageInput { blocks: vec![(2, 0), (2, 100)], codec: Codec::Snappy, ..page.clone() },
        PageInput { blocks: vec![(2, 0), (801, 100)], codec: Codec::Snappy, ..page.clone() },
        PageInput { blocks: vec![(2, 8)], codec: Codec::Snappy, ..page.clone() },
        PageInput { raw_bytes: 799, ..page.clone() },
        PageInput { raw_bytes: 1 << 30, codec: Codec::Snappy, ..page.clone() },
        PageInput { level_bytes: Some(801), ..page.clone() },
        PageInput { skip: 1, ..page.clone() },
        PageInput { first_row: 1, ..page.clone() },
        PageInput { dictionary: Some(0), ..page.clone() },
        PageInput { encoding: Encoding::Dictionary, ..page.clone() },
        PageInput { encoding: Encoding::RleBoolean, ..page.clone() },
        PageInput { encoding: Encoding::DeltaLength, ..page.clone() },
    ];
    for page in pages {
        assert!(plan(&page, &column).is_err(), "{page:?}");
    }
    let columns = [
        ColumnOutput { rows: 101, ..column.clone() },
        ColumnOutput { values: values.view(4..800).unwrap(), rows: 99, ..column.clone() },
        ColumnOutput { stored: Physical::View, ..column.clone() },
        ColumnOutput { stored: Physical::Bit, ..column.clone() },
        ColumnOutput { stored: Physical::F64, base: 1, ..column.clone() },
        ColumnOutput { source: Source::Text, ..column.clone() },
    ];
    for column in columns {
        assert!(plan(&page, &column).is_err(), "{column:?}");
    }
    // The bytes after the last page may have any contents, but must exist.
    let images = Images::new(&rig.device);
    let plan = plan(&page, &column).unwrap();
    let room = |bytes: usize| rig.upload(&vec![0; bytes], &rig.stream);
    let (descriptors, scratch, results) =
        (room(plan.descriptors().len()), room(plan.scratch_bytes() as usize), room(plan.result_bytes() as usize));
    for (staging, fits) in [(room(799), true), (room(500), false)] {
        let decoded = parquet::decode(&images, &plan, &descriptors, &staging, &scratch, &results, &rig.stream);
        assert_eq!(decoded.is_ok(), fits);
    }
}
