//! Selected values in an arena, against their meaning in plain Rust: too small an arena, several streams, every length.

use std::num::NonZeroUsize;

use millpond_kernels::pick::{self, Run};
use millpond_kernels::{Images, KernelError, Rows, tune};
use millpond_memory::checks::block_on;
use millpond_memory::{BumpOutcome, ByteSize, DeviceBuffer, DeviceBumpArena, MemoryError, Stream};
use proptest::prelude::*;

use crate::pipeline_rig::Rig;

const TILE: usize = tune::SELECT_TILE_ROWS as usize;

fn lengths() -> Vec<usize> {
    vec![0, 1, 31, 32, 33, TILE - 1, TILE, TILE + 1, 5 * TILE + 77]
}

fn patterns(rows: usize) -> Vec<Vec<bool>> {
    let irregular = |row: usize| (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 > 3;
    let make = |bit: &dyn Fn(usize) -> bool| (0..rows).map(bit).collect();
    vec![make(&|_| true), make(&|_| false), make(&|row| row % 2 == 0), make(&|row| row == rows - 1), make(&irregular)]
}

fn packed(bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; bits.len().div_ceil(8)];
    bits.iter().enumerate().for_each(|(row, &bit)| bytes[row / 8] |= u8::from(bit) << (row % 8));
    bytes
}

/// Row `r` is the little-endian bytes of a number that depends on `r` in every byte.
fn values(rows: usize, width: usize) -> Vec<u8> {
    let value = |row: usize| (row as u128 + 1).wrapping_mul(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978);
    (0..rows).flat_map(|row| value(row).to_le_bytes()[..width].to_vec()).collect()
}

fn kept(bits: &[bool], bytes: &[u8], width: usize) -> Vec<u8> {
    let rows = (0..bits.len()).filter(|row| bits[*row]);
    rows.flat_map(|row| bytes[row * width..(row + 1) * width].to_vec()).collect()
}

/// What all runs together take: each rounded up to 256 bytes.
fn needed(bits: &[bool], width: usize) -> u64 {
    let count = |tile: &[bool]| tile.iter().filter(|bit| **bit).count();
    bits.chunks(TILE).map(|tile| (count(tile) * width).next_multiple_of(256) as u64).sum()
}

fn arena(capacity: usize, on: &Stream, rig: &Rig) -> DeviceBumpArena {
    DeviceBumpArena::new(NonZeroUsize::new(capacity).unwrap(), on, &rig.pool).unwrap()
}

fn directory(rows: u64, rig: &Rig) -> DeviceBuffer {
    DeviceBuffer::new(pick::directory_bytes(rows) as usize, &rig.stream, &rig.pool).unwrap()
}

fn outcome(arena: &DeviceBumpArena, rig: &Rig) -> BumpOutcome {
    arena.outcome(&rig.stream, &rig.pinned).unwrap().wait().unwrap()
}

/// The runs one after the other. What no run covers was never written, and is not looked at.
fn gathered(arena: &DeviceBumpArena, runs: &[Run], width: usize, rig: &Rig) -> Vec<u8> {
    let run = |run: &Run| {
        let start = run.start.expect("the arena has room") as usize;
        assert!(start.is_multiple_of(256), "{run:?}");
        rig.download(&arena.bytes().view(start..start + run.count as usize * width).unwrap())
    };
    runs.iter().flat_map(run).collect()
}

#[test]
fn runs_in_the_order_of_their_tiles_are_the_selected_values_in_order() {
    for seed in 0..2 {
        let rig = Rig::seeded(seed);
        let images = Images::new(&rig.device);
        for rows in lengths() {
            for bits in patterns(rows) {
                let mask = rig.upload(&packed(&bits), &rig.stream);
                for width in [1usize, 2, 4, 8, 16] {
                    let bytes = values(rows, width);
                    let input = rig.upload(&bytes, &rig.stream);
                    // Exactly as large as it has to be, and untouched where there is nothing to write.
                    let arena = arena(needed(&bits, width).max(1) as usize, &rig.stream, &rig);
                    let (number, runs) = (Rows::known(rows as u64), directory(rows as u64, &rig));
                    pick::pick(&images, &input, width as u32, &mask, &number, &arena, &runs, &rig.stream).unwrap();
                    assert_eq!(outcome(&arena, &rig).needed, ByteSize(needed(&bits, width)));
                    let runs = Run::list(&rig.download(&runs));
                    let actual = gathered(&arena, &runs, width, &rig);
                    assert_eq!(actual, kept(&bits, &bytes, width), "{rows} rows of {width} bytes, seed {seed}");
                    assert_eq!(rig.download(&input), bytes, "the input is as it was");
                }
            }
        }
        rig.assert_clean();
    }
}

#[test]
fn row_numbers_follow_a_number_of_rows_on_the_device() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    for rows in lengths() {
        for bits in patterns(rows) {
            // Bits behind the true number of rows are set, and must not count; whole tiles lie behind it.
            let bound = rows + 2 * TILE;
            let mut padded = bits.clone();
            padded.resize(bound, true);
            let mask = rig.upload(&packed(&padded), &rig.stream);
            let count = rig.upload(&(rows as u64).to_le_bytes(), &rig.stream);
            let number = Rows::on_device(count.as_view(), bound as u64).unwrap();
            let (arena, runs) =
                (arena(needed(&bits, 4).max(1) as usize, &rig.stream, &rig), directory(bound as u64, &rig));
            pick::pick_rows(&images, &mask, &number, &arena, &runs, &rig.stream).unwrap();
            let runs = Run::list(&rig.download(&runs));
            assert_eq!(runs.len(), bound.div_ceil(TILE));
            let expected = (0..rows as u32).filter(|row| bits[*row as usize]).flat_map(u32::to_le_bytes);
            assert_eq!(gathered(&arena, &runs, 4, &rig), expected.collect::<Vec<_>>(), "{rows} rows");
        }
    }
    rig.assert_clean();
}

#[test]
fn an_arena_too_small_by_one_piece_or_by_much_counts_on_and_is_left_alone_behind_its_end() {
    let rig = Rig::seeded(3);
    let images = Images::new(&rig.device);
    let rows = 5 * TILE + 77;
    let bits = vec![true; rows];
    let (mask, input) = (rig.upload(&packed(&bits), &rig.stream), rig.upload(&values(rows, 8), &rig.stream));
    let needed = needed(&bits, 8);
    for capacity in [needed - 256, (needed / 2).next_multiple_of(256), 256] {
        let arena = arena(capacity as usize, &rig.stream, &rig);
        let (number, runs) = (Rows::known(rows as u64), directory(rows as u64, &rig));
        pick::pick(&images, &input, 8, &mask, &number, &arena, &runs, &rig.stream).unwrap();
        let outcome = outcome(&arena, &rig);
        assert!(!outcome.fits());
        assert_eq!((outcome.needed, outcome.capacity), (ByteSize(needed), ByteSize(capacity)));
        let runs = Run::list(&rig.download(&runs));
        assert!(runs.iter().any(|run| run.start.is_none()), "{runs:?}");
        let room = |run: &Run| run.start.is_none_or(|start| start + run.count * 8 <= capacity);
        assert!(runs.iter().all(room), "{runs:?}");
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), rows as u64, "counted all the same");
    }
    rig.assert_clean();
}

#[test]
fn a_second_run_has_room_for_all_and_the_first_ones_memory_is_back() {
    let rig = Rig::seeded(4);
    let images = Images::new(&rig.device);
    let rows = 3 * TILE + 5;
    let bits: Vec<bool> = (0..rows).map(|row| row % 3 != 0).collect();
    let bytes = values(rows, 16);
    let (mask, input) = (rig.upload(&packed(&bits), &rig.stream), rig.upload(&bytes, &rig.stream));
    let runs = directory(rows as u64, &rig);
    let number = Rows::known(rows as u64);
    for (first, expected_runs) in [(1, 2), (needed(&bits, 16) as usize - 1, 1), (needed(&bits, 16) as usize - 256, 2)] {
        let mut times = 0;
        let used = rig.pool.used_bytes();
        let filled = DeviceBumpArena::filled_by(
            NonZeroUsize::new(first).unwrap(),
            &rig.stream,
            &rig.pool,
            &rig.pinned,
            |arena| {
                times += 1;
                pick::pick(&images, &input, 16, &mask, &number, arena, &runs, &rig.stream)
            },
        );
        let (arena, outcome) = block_on(filled).unwrap();
        assert_eq!(times, expected_runs, "with {first} bytes at first");
        assert_eq!(outcome.needed, ByteSize(needed(&bits, 16)));
        assert_eq!(rig.pool.used_bytes(), used + arena.capacity() + ByteSize(256), "one arena and its cursor");
        let runs = Run::list(&rig.download(&runs));
        assert_eq!(gathered(&arena, &runs, 16, &rig), kept(&bits, &bytes, 16));
    }
    rig.assert_clean();
}

#[test]
fn what_fails_in_a_run_is_the_error_and_leaves_nothing() {
    let rig = Rig::new();
    let one = NonZeroUsize::new(1).unwrap();
    let refuse = |_: &DeviceBumpArena| Err(KernelError::Shape { what: "pick", why: "no".into() });
    let ended = block_on(DeviceBumpArena::filled_by(one, &rig.stream, &rig.pool, &rig.pinned, refuse));
    assert!(matches!(ended, Err(KernelError::Shape { .. })));
    let beyond = NonZeroUsize::new(rig.pool.limit().as_u64() as usize + 1).unwrap();
    let filled = DeviceBumpArena::filled_by(beyond, &rig.stream, &rig.pool, &rig.pinned, |_| Ok::<_, MemoryError>(()));
    assert!(block_on(filled).is_err_and(|error| error.is_out_of_memory()));
    assert_eq!(rig.pool.used_bytes(), ByteSize::ZERO);
    rig.assert_clean();
}

#[test]
fn several_streams_append_to_one_arena() {
    for seed in 0..3 {
        let rig = Rig::seeded(seed);
        let images = Images::new(&rig.device);
        let rows = 2 * TILE + 100;
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&rig.device).unwrap()).collect();
        let inputs: Vec<(Vec<bool>, Vec<u8>)> = (0..4usize)
            .map(|of| {
                ((0..rows).map(|row| (row + of) % (of + 2) == 0).collect(), values(rows + of, 8)[of * 8..].to_vec())
            })
            .collect();
        let total: u64 = inputs.iter().map(|(bits, _)| needed(bits, 8)).sum();
        let arena = arena(total as usize, &rig.stream, &rig);
        let runs: Vec<DeviceBuffer> = streams
            .iter()
            .zip(&inputs)
            .map(|(on, (bits, bytes))| {
                let (mask, input) = (rig.upload(&packed(bits), on), rig.upload(bytes, on));
                let runs = directory(rows as u64, &rig);
                pick::pick(&images, &input, 8, &mask, &Rows::known(rows as u64), &arena, &runs, on).unwrap();
                runs
            })
            .collect();
        assert_eq!(outcome(&arena, &rig), BumpOutcome { needed: ByteSize(total), capacity: ByteSize(total) });
        let mut pieces = Vec::new();
        for (runs, (bits, bytes)) in runs.iter().zip(&inputs) {
            let runs = Run::list(&rig.download(runs));
            assert_eq!(gathered(&arena, &runs, 8, &rig), kept(bits, bytes, 8), "seed {seed}");
            pieces.extend(runs.iter().filter(|run| run.count > 0).map(|run| (run.start.unwrap(), run.count * 8)));
        }
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{pieces:?}");
        // From the beginning once more, behind all that reads it.
        arena.reset(&streams[1]).unwrap();
        assert_eq!(outcome(&arena, &rig).needed, ByteSize::ZERO);
        rig.assert_clean();
    }
}

#[test]
fn lengths_that_disagree_are_refused() {
    let rig = Rig::new();
    let images = Images::new(&rig.device);
    let small = rig.upload(&[0; 8], &rig.stream);
    let arena = arena(256, &rig.stream, &rig);
    let (view, on) = (small.as_view(), &rig.stream);
    let launches = rig.device.counters().launches;
    for refused in [
        pick::pick(&images, view, 4, view, &Rows::known(100), &arena, view, on),
        pick::pick(&images, view, 3, view, &Rows::known(1), &arena, view, on),
        pick::pick(&images, view, 16, view, &Rows::known(u64::MAX), &arena, view, on),
        pick::pick_rows(&images, view, &Rows::known(1 << 40), &arena, view, on),
        pick::pick_rows(&images, view, &Rows::known(3000), &arena, view, on),
    ] {
        assert!(matches!(refused, Err(KernelError::Shape { .. })), "{refused:?}");
    }
    let message = pick::pick_rows(&images, view, &Rows::known(40), &arena, view, on).unwrap_err().to_string();
    assert_eq!(message, "pick_rows: directory has 8 bytes but 16 are needed");
    assert_eq!(rig.device.counters().launches, launches);
    rig.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bits, any width, any room: a run is whole or has none, and no two overlap.
    #[test]
    fn runs_are_whole_or_absent_and_apart(
        bits in proptest::collection::vec(any::<bool>(), 0..2 * TILE + 300),
        width in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        room in 0u64..=110,
        seed in 0u64..8,
    ) {
        let rig = Rig::seeded(seed);
        let images = Images::new(&rig.device);
        let bytes = values(bits.len(), width);
        let (mask, input) = (rig.upload(&packed(&bits), &rig.stream), rig.upload(&bytes, &rig.stream));
        let needed = needed(&bits, width);
        let arena = arena((needed * room / 100).max(1) as usize, &rig.stream, &rig);
        let (number, runs) = (Rows::known(bits.len() as u64), directory(bits.len() as u64, &rig));
        pick::pick(&images, &input, width as u32, &mask, &number, &arena, &runs, &rig.stream).unwrap();
        let ended = outcome(&arena, &rig);
        prop_assert_eq!(ended.needed, ByteSize(needed));
        let runs = Run::list(&rig.download(&runs));
        for (tile, (run, own)) in runs.iter().zip(bits.chunks(TILE)).enumerate() {
            let own_bytes = &bytes[tile * TILE * width..][..own.len() * width];
            prop_assert_eq!(run.count as usize, own.iter().filter(|bit| **bit).count());
            if run.start.is_some() {
                prop_assert_eq!(gathered(&arena, &[*run], width, &rig), kept(own, own_bytes, width));
            }
        }
        prop_assert_eq!(ended.fits(), runs.iter().all(|run| run.start.is_some()));
        rig.assert_clean();
    }
}
