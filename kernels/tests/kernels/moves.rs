//! Fill, gather, select and bitmaps against their meaning in plain Rust.

use crate::pipeline_rig::Rig;
use millpond_kernels::{Images, KernelError, Rows, bitmap, fill, gather, select, tune};
use millpond_memory::{DeviceBuffer, DeviceView};

/// Lengths around a lane, a warp, a thread block and a tile.
fn lengths() -> Vec<usize> {
    let tile = tune::SELECT_TILE_ROWS as usize;
    vec![0, 1, 31, 32, 33, 255, 256, 257, tile - 1, tile, tile + 1, 5 * tile + 77]
}

/// Bits that are all set, none, alternating, rare, and irregular.
fn patterns(rows: usize) -> Vec<Vec<bool>> {
    let irregular = |row: usize| (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 > 3;
    let make = |bit: &dyn Fn(usize) -> bool| (0..rows).map(bit).collect();
    vec![make(&|_| true), make(&|_| false), make(&|row| row % 2 == 0), make(&|row| row % 1000 == 999), make(&irregular)]
}

fn packed(bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; bits.len().div_ceil(8)];
    bits.iter().enumerate().for_each(|(row, &bit)| bytes[row / 8] |= u8::from(bit) << (row % 8));
    bytes
}

/// Whole words, as kernels write them: the bits behind the last row are 0.
fn packed_words(bits: &[bool]) -> Vec<u8> {
    let mut bytes = packed(bits);
    bytes.resize(bits.len().div_ceil(32) * 4, 0);
    bytes
}

/// `rows` values of `width` bytes, no two the same as far as the width allows.
fn values(rows: usize, width: usize) -> Vec<u8> {
    (0..rows)
        .flat_map(|row| {
            ((row as u128 + 1).wrapping_mul(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978)).to_le_bytes()[..width].to_vec()
        })
        .collect()
}

/// An output without initial contents: a kernel that reads it, or leaves a byte unwritten, is found out.
fn output(rig: &Rig, bytes: usize) -> DeviceBuffer {
    DeviceBuffer::new(bytes, &rig.stream, &rig.pool).unwrap()
}

fn count_of(rig: &Rig, buffer: &DeviceBuffer) -> u64 {
    u64::from_le_bytes(rig.download(buffer).try_into().unwrap())
}

/// The number of rows known to the host, and the same number on the device below a larger bound.
fn both_rows(rig: &Rig, rows: usize) -> Vec<(Rows, DeviceBuffer)> {
    let count = rig.upload(&(rows as u64).to_le_bytes(), &rig.stream);
    let on_device = Rows::on_device(count.as_view(), rows as u64 + 100).unwrap();
    vec![(Rows::known(rows as u64), output(rig, 0)), (on_device, count)]
}

#[test]
fn fill_sets_every_row_and_none_behind() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        for width in [1usize, 2, 4, 8, 16] {
            for (number, _count) in both_rows(&rig, rows) {
                let bytes = number.upper_bound() as usize * width;
                let out = rig.upload(&vec![0xee; bytes], &rig.stream);
                let value = values(1, width);
                fill::fill(&images, &value, &number, out.as_view(), &rig.stream).unwrap();
                let mut expected = value.repeat(rows);
                expected.resize(bytes, 0xee);
                assert_eq!(rig.download(&out), expected, "{rows} rows of {width} bytes");
            }
        }
    }
    rig.assert_clean();
}

#[test]
fn fill_bits_clears_the_tail_of_its_last_word() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        for bit in [true, false] {
            let out = output(&rig, rows.div_ceil(32) * 4);
            fill::fill_bits(&images, bit, &Rows::known(rows as u64), out.as_view(), &rig.stream).unwrap();
            assert_eq!(rig.download(&out), packed_words(&vec![bit; rows]), "{rows} rows");
        }
    }
    rig.assert_clean();
}

#[test]
fn iota_counts() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let out = output(&rig, 4 * 1000);
    fill::iota(&images, u32::MAX - 10, &Rows::known(1000), out.as_view(), &rig.stream).unwrap();
    let expected: Vec<u8> = (0..1000u32).flat_map(|row| (u32::MAX - 10).wrapping_add(row).to_le_bytes()).collect();
    assert_eq!(rig.download(&out), expected);
    rig.assert_clean();
}

/// What a combination of bitmaps does to one pair of bits.
type TruthFunction = fn(bool, bool) -> bool;

fn map_bytes(map: &[u32]) -> Vec<u8> {
    map.iter().flat_map(|row| row.to_le_bytes()).collect()
}

#[test]
fn gather_fetches_by_row_number() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        let source = rows / 2 + 1;
        // Repeats, skips, and comes back.
        let map: Vec<u32> = (0..rows).map(|row| (row * 7919 % source) as u32).collect();
        let device_map = rig.upload(&map_bytes(&map), &rig.stream);
        for width in [1usize, 2, 4, 8, 16] {
            let input = values(source, width);
            let device_input = rig.upload(&input, &rig.stream);
            let expected: Vec<u8> =
                map.iter().flat_map(|&row| input[row as usize * width..][..width].to_vec()).collect();
            let out = output(&rig, rows * width);
            let known = Rows::known(rows as u64);
            let (input_view, map_view): (&DeviceView, &DeviceView) = (&device_input, &device_map);
            gather::gather(&images, input_view, width as u32, map_view, &known, &out, &rig.stream).unwrap();
            assert_eq!(rig.download(&out), expected, "{rows} rows of {width} bytes");
            assert_eq!(rig.download(&device_input), input, "the input is left alone");
        }
        for bits in patterns(source) {
            let device_bits = rig.upload(&packed(&bits), &rig.stream);
            let expected: Vec<bool> = map.iter().map(|&row| bits[row as usize]).collect();
            let out = output(&rig, rows.div_ceil(32) * 4);
            let known = Rows::known(rows as u64);
            gather::gather_bits(&images, &device_bits, &device_map, &known, &out, &rig.stream).unwrap();
            assert_eq!(rig.download(&out), packed_words(&expected), "{rows} bits");
        }
    }
    rig.assert_clean();
}

#[test]
fn gather_reads_its_row_count_from_the_device() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let map = rig.upload(&map_bytes(&[2, 0, 1, 1]), &rig.stream);
    let input = rig.upload(&values(3, 8), &rig.stream);
    let count = rig.upload(&2u64.to_le_bytes(), &rig.stream);
    let rows = Rows::on_device(&count, 4).unwrap();
    let out = rig.upload(&[0xee; 32], &rig.stream);
    gather::gather(&images, &input, 8, &map, &rows, &out, &rig.stream).unwrap();
    let all = values(3, 8);
    let expected = [&all[16..24], &all[0..8], &[0xee; 16]].concat();
    assert_eq!(rig.download(&out), expected);
    rig.assert_clean();
}

#[test]
fn select_keeps_selected_rows_in_order() {
    for seed in [0, 1] {
        let rig = Rig::seeded(seed);
        let images = Images::new(&rig.device);
        for rows in lengths() {
            for bits in patterns(rows) {
                let mask = rig.upload(&packed(&bits), &rig.stream);
                let kept: Vec<usize> = (0..rows).filter(|&row| bits[row]).collect();
                for width in [1usize, 2, 4, 8, 16] {
                    // One width at each length is enough, and all of them at one.
                    if width != 4 && rows != tune::SELECT_TILE_ROWS as usize + 1 {
                        continue;
                    }
                    let input = values(rows, width);
                    let device_input = rig.upload(&input, &rig.stream);
                    let expected: Vec<u8> =
                        kept.iter().flat_map(|&row| input[row * width..][..width].to_vec()).collect();
                    let out = output(&rig, expected.len());
                    let selected = output(&rig, 8);
                    let scratch = output(&rig, select::scratch_bytes(rows as u64) as usize);
                    let known = Rows::known(rows as u64);
                    select::select(
                        &images,
                        &device_input,
                        width as u32,
                        &mask,
                        &known,
                        &out,
                        &selected,
                        &scratch,
                        &rig.stream,
                    )
                    .unwrap();
                    assert_eq!(count_of(&rig, &selected), kept.len() as u64);
                    assert_eq!(rig.download(&out), expected, "{rows} rows of {width} bytes");
                }
            }
        }
        rig.assert_clean();
    }
}

#[test]
fn select_rows_gives_row_numbers() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        for bits in patterns(rows) {
            for (number, _count) in both_rows(&rig, rows) {
                let bound = number.upper_bound();
                // Bits behind the true number of rows are set, and must not count.
                let mut padded = bits.clone();
                padded.resize(bound as usize, true);
                let mask = rig.upload(&packed(&padded), &rig.stream);
                let kept: Vec<u32> = (0..rows).filter(|&row| bits[row]).map(|row| row as u32).collect();
                let out = output(&rig, kept.len() * 4);
                let selected = output(&rig, 8);
                let scratch = output(&rig, select::scratch_bytes(bound) as usize);
                select::select_rows(&images, &mask, &number, &out, &selected, &scratch, &rig.stream).unwrap();
                assert_eq!(count_of(&rig, &selected), kept.len() as u64, "{rows} rows");
                assert_eq!(rig.download(&out), map_bytes(&kept), "{rows} rows");
            }
        }
    }
    rig.assert_clean();
}

#[test]
fn limit_count_is_what_offset_and_limit_leave() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for (rows, skip, fetch, expected) in [
        (10, 0, 3, 3),
        (10, 8, 3, 2),
        (10, 10, 3, 0),
        (10, 11, 3, 0),
        (10, 0, u64::MAX, 10),
        (0, 0, 5, 0),
        (7, 2, 0, 0),
    ] {
        for (number, _count) in both_rows(&rig, rows) {
            let out = output(&rig, 8);
            select::limit_count(&images, &number, skip, fetch, &out, &rig.stream).unwrap();
            assert_eq!(count_of(&rig, &out), expected, "{rows} rows, skip {skip}, fetch {fetch}");
        }
    }
    rig.assert_clean();
}

#[test]
fn bitmaps_combine_and_count() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        let number = Rows::known(rows as u64);
        let all = patterns(rows);
        for (i, a) in all.iter().enumerate() {
            let b = &all[(i + 2) % all.len()];
            // The bits behind the last row are set in one of the inputs.
            let mut tail = packed(a);
            if let Some(last) = tail.last_mut().filter(|_| rows % 8 != 0) {
                *last |= 0xff << (rows % 8);
            }
            let device_a = rig.upload(&tail, &rig.stream);
            let device_b = rig.upload(&packed(b), &rig.stream);
            let combine: [(bitmap::Combine, TruthFunction); 3] = [
                (bitmap::Combine::And, |a, b| a && b),
                (bitmap::Combine::Or, |a, b| a || b),
                (bitmap::Combine::AndNot, |a, b| a && !b),
            ];
            for (how, meaning) in combine {
                let expected: Vec<bool> = a.iter().zip(b).map(|(&a, &b)| meaning(a, b)).collect();
                let out = output(&rig, rows.div_ceil(32) * 4);
                bitmap::combine(&images, how, &device_a, &device_b, &number, &out, &rig.stream).unwrap();
                assert_eq!(rig.download(&out), packed_words(&expected), "{how:?} of {rows} bits");
            }
            let out = output(&rig, rows.div_ceil(32) * 4);
            bitmap::not(&images, &device_a, &number, &out, &rig.stream).unwrap();
            let inverted: Vec<bool> = a.iter().map(|bit| !bit).collect();
            assert_eq!(rig.download(&out), packed_words(&inverted), "not of {rows} bits");
            let out = output(&rig, 8);
            bitmap::count(&images, &device_a, &number, &out, &rig.stream).unwrap();
            assert_eq!(count_of(&rig, &out), a.iter().filter(|bit| **bit).count() as u64);
        }
    }
    rig.assert_clean();
}

#[test]
fn lengths_that_disagree_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let small = rig.upload(&[0; 8], &rig.stream);
    let rows = Rows::known(100);
    let (view, stream) = (small.as_view(), &rig.stream);
    let launches = rig.device.counters().launches;
    let refused = [
        fill::fill(&images, &[1, 2, 3], &rows, view, stream),
        fill::fill(&images, &[1, 2], &rows, view, stream),
        fill::fill_bits(&images, true, &rows, view, stream),
        gather::gather(&images, view, 4, view, &rows, view, stream),
        gather::gather(&images, view, 3, view, &Rows::known(1), view, stream),
        select::select_rows(&images, view, &Rows::known(1 << 40), view, view, view, stream),
        bitmap::not(&images, view, &Rows::known(1 << 20), view, stream),
    ];
    for result in refused {
        assert!(matches!(result, Err(KernelError::Shape { .. })), "{result:?}");
    }
    assert_eq!(rig.device.counters().launches, launches);
    let message = fill::fill(&images, &[1, 2], &rows, view, stream).unwrap_err().to_string();
    assert_eq!(message, "fill: out has 8 bytes but 200 are needed");
    rig.assert_clean();
}
