//! Removes memory orders from kernels, one at a time: a check or a wrong answer must show each.
//!
//! ```text
//!   st.release ─► st.relaxed        ld.acquire ─► ld.relaxed        ─┐
//!   atom.release, .acquire ─► .relaxed      membar ─► nothing        ├─► many seeds ─► finding, wrong answer, hang
//!   ld.relaxed, st.relaxed ─► plain                                 ─┘
//! ```
//!
//! Places    each occurrence in a text is mutated on its own. Tests list the occurrences that go unnoticed, with the
//!           reason.
//! Unchanged kernels give no finding under these seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::*;
use millpond_kernels::image::IMAGES;
use millpond_kernels::sort::Method;
use millpond_kernels::tune;
use millpond_memory::driver::sim::{Mutation, SimOptions};

use super::learn::sums_over_chunks;
use super::pipeline_rig::*;
use super::{clicks, join, pipeline_groups, reduce, sort};

/// Work of one kernel family; it panics if its answer is wrong.
type Work = fn(&Rig);

/// Number of schedules; a mutation must be noticed under at least one.
const SEEDS: u64 = 24;

fn rig(seed: u64) -> Rig {
    Rig::with(SimOptions { seed, max_warp_instructions: 3_000_000, ..SimOptions::default() })
}

/// True if `work` succeeds without a finding; and the number of occurrences.
fn unnoticed(work: Work, seed: u64, mutation: Option<Mutation>) -> (bool, u64) {
    let rig = rig(seed);
    rig.driver.mutate(mutation);
    let ended = catch_unwind(AssertUnwindSafe(|| work(&rig)));
    let findings = rig.driver.take_findings();
    (ended.is_ok() && findings.is_empty(), rig.driver.mutate(None).places)
}

/// Occurrences of `from` in the work's kernels whose mutation goes unnoticed under every seed.
fn survivors(work: Work, from: &'static str, to: &'static str) -> (Vec<u64>, u64) {
    let (_, places) = unnoticed(work, 1, Some(Mutation::Text { from, to, nth: u64::MAX }));
    let survives = |nth: &u64| {
        let mutation = Some(Mutation::Text { from, to, nth: *nth });
        (1..=SEEDS).all(|seed| unnoticed(work, seed, mutation).0)
    };
    ((1..=places).filter(survives).collect(), places)
}

/// A text for a memory order, its replacement, and the occurrences whose mutation goes unnoticed.
type Order = (&'static str, &'static str, &'static [u64]);

fn are_missed(work: Work, orders: &[Order]) {
    let mut wrong = Vec::new();
    for &(from, to, known) in orders {
        let (survivors, places) = survivors(work, from, to);
        if survivors != known || places <= known.len() as u64 {
            wrong.push(format!("{from} → {to:?}: nobody misses {survivors:?} of {places} places, not {known:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// The work.

/// Rows with few keys, from many thread blocks into one table.
fn groups(rig: &Rig) {
    let rows = 1500;
    let mut columns = pipeline_groups::many_keys(rows, 5);
    for (row, cell) in columns[0].cells.iter_mut().enumerate() {
        *cell = Cell::Int((row * 7 % 23) as i128);
    }
    let case = pipeline_groups::grouped(columns.clone(), 2, Some(Regime::Hash));
    let streams = std::slice::from_ref(&rig.stream);
    let feeds = pipeline_groups::split(&columns, &[900, 600]);
    assert_eq!(pipeline_groups::growing(rig, &case, &feeds, streams).0, pipeline_groups::expected(&columns, 2));
}

/// Groups of three rows, each in a different thread block at an equal position, so that they arrive at nearly one time.
/// Each group is one more chance of a race.
const GROUPS: i64 = 512;
const ROWS: i64 = 3 * GROUPS;

/// High and low part of a row's value. Of a group's three rows, one has a small high part and the largest low part; of
/// the two that tie by the high part, one has a small low part. They arrive in all orders.
fn parts(row: i64) -> (i64, i64) {
    [(1, 90), (2, 10), (2, 50)][((row / GROUPS + row % GROUPS) % 3) as usize]
}

/// The maximum of 128-bit values in many groups.
fn greatest_wide(rig: &Rig) {
    let wide = |row: i64| i128::from(parts(row).0) << 64 | i128::from(parts(row).1);
    let keys = column(Repr::I64, (0..ROWS).map(|row| row % GROUPS));
    let mut case = Case::new(vec![keys, column(Repr::I128, (0..ROWS).map(wide))]);
    let x = case.column(1);
    let case = case.group(&[0], Some(Regime::Hash), |_| vec![all(Aggregate::Max(x))]);
    let expected: Vec<Vec<Cell>> = (0..GROUPS).map(|key| cells([i128::from(key), 2 << 64 | 50])).collect();
    assert_eq!(rig.aggregate(&case), expected);
}

/// The first row of each of many groups, by two keys.
fn first_rows(rig: &Rig) {
    let mut case = Case::new(vec![
        column(Repr::I64, (0..ROWS).map(|row| row % GROUPS)),
        column(Repr::I64, (0..ROWS).map(|row| parts(row).0)),
        column(Repr::I64, (0..ROWS).map(|row| parts(row).1)),
        column(Repr::I64, 0..ROWS),
    ]);
    let nodes: Vec<NodeId> = (0..4).map(|at| case.column(at)).collect();
    let order = [nodes[1], nodes[2]].map(|node| OrderKey { node, descending: true, nulls_first: false });
    let key = nodes[0];
    let mut spec =
        AggregateSpec { regime: Some(Regime::Hash), orders: vec![order.to_vec()], ..AggregateSpec::new(vec![key]) };
    spec.accumulate(&case.spec.graph, all(Aggregate::First { of: nodes[3], order: 0, skip_nulls: false }));
    case.spec.sink = SinkSpec::Aggregate(spec);
    let best = |of: i64| (0..ROWS).filter(|row| row % GROUPS == of).max_by_key(|&row| parts(row)).expect("has rows");
    let expected: Vec<Vec<Cell>> = (0..GROUPS).map(|key| cells([key, best(key)])).collect();
    assert_eq!(rig.aggregate(&case), expected);
}

/// Rows with few keys, from many thread blocks into the slots of a join table.
fn slots(rig: &Rig) {
    let side: Vec<i64> = (0..1200).map(|row| row * 7 % 37).collect();
    let payload = column(Repr::I64, 0..1200i64);
    let probe = vec![column(Repr::I64, (0..50).map(|key| key - 5)), column(Repr::I64, 0..50i64)];
    join::check_on(rig, vec![column(Repr::I64, side), payload], probe, 1, TableKind::Hash, false);
}

fn sums(rig: &Rig) {
    join::check_sums(rig, &[5000]);
}

/// A filter that keeps some rows of every tile.
fn kept_rows(rig: &Rig) {
    let rows = 6000i64;
    let case = Case::new(vec![column(Repr::I64, (0..rows).map(|row| row * 31 % 97)), column(Repr::I64, 0..rows)]);
    let case = case.filter(|case| {
        let x = case.column(0);
        let bound = case.graph().integer(50, Repr::I64);
        case.graph().compare(Comparison::Less, x, bound).unwrap()
    });
    let kept: Vec<i64> = (0..rows).filter(|row| row * 31 % 97 < 50).collect();
    assert_eq!(rig.materialise(&case)[1], cells(kept));
}

/// Sums of many thread blocks, which the last block adds.
fn reduction(rig: &Rig) {
    let images = Images::new(&rig.device);
    let values: Vec<i64> = (0..20_000).map(|row| row * 12_345 % 1009).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let reduced = reduce::run(rig, &images, Physical::I64, &bytes, None, values.len());
    let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
    assert_eq!((reduced.sum, reduced.min, reduced.max), (sum, 0, 1008));
    rig.assert_clean();
}

fn digits(rig: &Rig) {
    sort::check_many(rig, Method::Radix, None, 3 * tune::RADIX_TILE_ROWS as usize + 3);
}

fn first_few(rig: &Rig) {
    let block = 2 * tune::SORT_THREADS * tune::TOP_TILES_PER_BLOCK;
    sort::check_many(rig, Method::Top, Some(10), 2 * block as usize + 3);
}

fn clicked(rig: &Rig) {
    clicks::check_many(rig, 6000);
}

const WORK: [(&str, Work); 11] = [
    ("groups", groups),
    ("greatest_wide", greatest_wide),
    ("first_rows", first_rows),
    ("slots", slots),
    ("sums", sums),
    ("kept_rows", kept_rows),
    ("reduction", reduction),
    ("digits", digits),
    ("first_few", first_few),
    ("clicked", clicked),
    ("sums_over_chunks", sums_over_chunks),
];

// The claims.

#[test]
fn nothing_is_found_where_nothing_is_left_out() {
    for (name, work) in WORK {
        for seed in 1..=SEEDS {
            assert!(unnoticed(work, seed, None).0, "{name}, seed {seed}");
        }
    }
}

const RELEASE_32: (&str, &str) = ("st.release.gpu.global.u32", "st.relaxed.gpu.global.u32");
const RELEASE_64: (&str, &str) = ("st.release.gpu.global.u64", "st.relaxed.gpu.global.u64");
const ACQUIRE_32: (&str, &str) = ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32");
const ACQUIRE_64: (&str, &str) = ("ld.acquire.gpu.global.u64", "ld.relaxed.gpu.global.u64");
const LOCK: (&str, &str) = ("atom.acquire.gpu.global", "atom.relaxed.gpu.global");
const TAKE: (&str, &str) = ("atom.release.gpu.global", "atom.relaxed.gpu.global");
const FENCE: (&str, &str) = ("membar.gl;", "");

const fn everywhere((from, to): (&'static str, &'static str)) -> Order {
    (from, to, &[])
}

/// A group's keys are published with its tag. The second occurrence of each is in the rehash: all keys there are
/// distinct, and only 30-bit tags that collide would be compared.
#[test]
fn a_group_needs_its_release_and_its_acquire() {
    are_missed(groups, &[(RELEASE_32.0, RELEASE_32.1, &[2]), (ACQUIRE_32.0, ACQUIRE_32.1, &[2])]);
}

/// A row's keys are published with its slot.
#[test]
fn a_slot_needs_its_release_and_its_acquire() {
    are_missed(slots, &[everywhere(TAKE), everywhere(ACQUIRE_64)]);
}

/// Halves of 128 bits are written low first and read high first. The second read is under the lock and needs no order.
#[test]
fn wide_bounds_need_their_lock_and_the_order_of_their_halves() {
    are_missed(greatest_wide, &[everywhere(RELEASE_64), (ACQUIRE_64.0, ACQUIRE_64.1, &[2]), everywhere(LOCK)]);
}

/// Keys and payload are replaced under a lock and read without it, first key before second. Reads under the lock need
/// no order; nothing is read after the last word; and after the first word, which says that a row exists, stale words
/// are those of smaller rows. The writes are symmetric: no word written before the last one is read without the lock.
#[test]
fn first_rows_need_their_lock_and_the_order_of_their_keys() {
    are_missed(
        first_rows,
        &[(RELEASE_64.0, RELEASE_64.1, &[1, 3]), (ACQUIRE_64.0, ACQUIRE_64.1, &[1, 3, 4, 5, 6]), everywhere(LOCK)],
    );
}

/// The last thread block reads the words written by the others after two fences and its ticket.
#[test]
fn the_last_block_needs_its_fences() {
    for work in [reduction as Work, digits, first_few, sums_over_chunks] {
        are_missed(work, &[everywhere(FENCE)]);
    }
}

/// A status word carries value and state: it needs no order, but all threads must see one and the same word.
#[test]
fn a_look_back_needs_words_that_others_see() {
    for work in [sums as Work, kept_rows, digits, clicked] {
        are_missed(work, &[("st.relaxed.gpu.global.u64", "st.global.u64", &[])]);
        are_missed(work, &[("ld.relaxed.gpu.global.u64", "ld.global.u64", &[])]);
    }
}

/// If this test fails, a kernel has a memory order that needs a mutation test.
#[test]
fn kernels_of_pages_and_columns_have_no_order_between_thread_blocks() {
    let of_pages = IMAGES.iter().filter(|image| image.name.starts_with("parquet_") || image.name == "store");
    for image in of_pages {
        for word in ["membar", "fence.", ".release", ".acquire", ".acq_rel"] {
            assert!(!image.text.contains(word), "{} has {word}", image.name);
        }
    }
}
