//! List words, against plain Rust.

use millpond_kernels::Images;
use millpond_kernels::join::Expansion;
use millpond_kernels::lists::{self, Whose};
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::{abi, scan};

use crate::pipeline_rig::Rig;

const LENGTHS: [usize; 6] = [1, 31, 33, 255, 257, 3000];

/// Number of items per row: none, some, many.
fn counts(rows: usize) -> Vec<u32> {
    (0..rows).map(|row| [0, 2, 1, 0, 0, 7][row % 6] + if row % 97 == 5 { 300 } else { 0 }).collect()
}

fn word(start: u64, count: u64) -> u64 {
    start << 32 | count
}

/// Runs `write` over a buffer for the words of `rows` rows, and checks that the word after them is unchanged.
fn words(rig: &Rig, rows: usize, write: impl FnOnce(&millpond_memory::DeviceView)) -> Vec<u64> {
    let room = rig.upload(&vec![0xaa; (rows + 1) * 8], &rig.stream);
    write(&room.view(0..rows * 8).expect("inside"));
    let mut words: Vec<u64> =
        rig.download(&room).chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    assert_eq!(words.pop(), Some(0xaaaa_aaaa_aaaa_aaaa), "nothing is written behind {rows} rows");
    words
}

#[test]
fn words_follow_running_sums() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in LENGTHS {
        let (counts, base) = (counts(rows), 4_000_000_000);
        let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let known = ExtentRows::Known(rows as u64);
        let view = rig.upload(&bytes, &rig.stream);
        let sums = rig.upload(&vec![0xaa; scan::expansion_bytes(rows as u64) as usize], &rig.stream);
        let scratch = rig.upload(&vec![0xaa; scan::scratch_bytes(rows as u64) as usize], &rig.stream);
        scan::running_sums(&images, &view, &known, &sums, &scratch, &rig.stream).expect("launched");
        let expansion = Expansion { sums: sums.clone(), source_rows: rows as u64, first: 0 };
        let found = words(&rig, rows, |room| {
            lists::words(&images, Whose::Ends(&expansion), base, &known, room, &rig.stream).expect("launched");
        });
        let mut start = base;
        let expected: Vec<u64> = counts
            .iter()
            .map(|count| {
                let word = word(start, u64::from(*count));
                start += u64::from(*count);
                word
            })
            .collect();
        assert_eq!(found, expected, "{rows} rows");
    }
}

#[test]
fn words_are_found_in_the_rows_of_items() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in LENGTHS {
        let counts = counts(rows);
        let of: Vec<u32> =
            (0..rows as u32).flat_map(|row| std::iter::repeat_n(row, counts[row as usize] as usize)).collect();
        let items = of.len();
        // The buffer is longer than the items; the rest has arbitrary contents.
        let mut bytes: Vec<u8> = of.iter().flat_map(|row| row.to_le_bytes()).collect();
        bytes.resize((items + 9) * 4, 0x01);
        let mut control = vec![0; abi::CONTROL_BYTES as usize];
        control[abi::CONTROL_ROWS as usize..][..8].copy_from_slice(&(items as u64).to_le_bytes());
        let (of, control) = (rig.upload(&bytes, &rig.stream), rig.upload(&control, &rig.stream));
        let whose = Whose::Rows { of: &of, control: &control, most: items as u64 + 9 };
        let found = words(&rig, rows, |room| {
            let known = ExtentRows::Known(rows as u64);
            lists::words(&images, whose, 7, &known, room, &rig.stream).expect("launched");
        });
        let mut start = 7;
        for (row, count) in counts.iter().enumerate() {
            assert_eq!(found[row], word(start, u64::from(*count)), "row {row} of {rows}");
            start += u64::from(*count);
        }
        let found = words(&rig, rows, |room| {
            let known = ExtentRows::Known(rows as u64);
            lists::words(&images, Whose::One, 5, &known, room, &rig.stream).expect("launched");
        });
        let expected: Vec<u64> = (0..rows as u64).map(|row| word(5 + row, 1)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn short_views_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let room = rig.upload(&[0; 24], &rig.stream);
    for rows in [4, 1 << 20] {
        let error = lists::words(&images, Whose::One, 0, &ExtentRows::Known(rows), &room, &rig.stream);
        assert!(error.expect_err("room for three").to_string().contains("words has 24 bytes"));
    }
    let whose = Whose::Rows { of: &room, control: &room, most: 7 };
    let error = lists::words(&images, whose, 0, &ExtentRows::Known(3), &room, &rig.stream);
    assert!(error.expect_err("room for six").to_string().contains("rows of items has 24 bytes"));
}
