//! Forward progress: waiting threads do not block others, and cooperation gives correct results under every schedule.

use crate::device::*;
use millpond_ptx::interpret::{FaultKind, Options};
use std::collections::HashMap;

const SEEDS: u64 = 100;

fn schedules() -> impl Iterator<Item = Options> {
    std::iter::once(Options::default()).chain((0..SEEDS).map(seeded))
}

/// Every thread takes a lock, increments a plain counter, and releases the lock. `lock` is one loop around `critical`.
fn lock_kernel(style: &str) -> String {
    let critical = "ld.global.u32 %r5, [%rd2]; add.u32 %r5, %r5, 1; st.global.u32 [%rd2], %r5;";
    let prelude = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];";
    match style {
        // A lane leaves the loop before its critical section: other lanes spin in the meantime.
        "spin first" => format!(
            "{prelude}
take: atom.acquire.gpu.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra take;
 {critical}
 st.release.gpu.global.u32 [%rd1], 0;"
        ),
        // The critical section is inside the loop, with fences around relaxed atomics.
        _ => format!(
            "{prelude} mov.u32 %r9, 0;
take: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra again;
 membar.gl; {critical} membar.gl; atom.global.exch.b32 %r2, [%rd1], 0; mov.u32 %r9, 1;
again: setp.eq.u32 %p2, %r9, 0; @%p2 bra take;"
        ),
    }
}

#[test]
fn a_spin_lock_counts_every_thread() {
    for style in ["spin first", "section in the loop"] {
        let image = load(&kernel(2, &lock_kernel(style))).unwrap();
        for options in schedules() {
            let mut device = Device::new();
            let (lock, counter) = (device.zeros(4), device.zeros(4));
            expect_ok(device.launch(&image, 3, 48, &[Arg::U64(lock), Arg::U64(counter)], &options));
            assert_eq!(device.download::<u32>(counter, 1), [3 * 48], "{style} {options:?}");
        }
    }
}

#[test]
fn a_lock_without_an_acquire_is_a_race() {
    let body = lock_kernel("spin first").replace("atom.acquire.gpu", "atom.relaxed.gpu");
    let mut device = Device::new();
    let (lock, counter) = (device.zeros(4), device.zeros(4));
    let found = fault(device.body(2, 32, &[lock, counter], &body));
    assert_eq!(found.kind, FaultKind::GlobalRace, "{found}");
}

/// A single-pass prefix sum with decoupled look-back (Merrill & Garland 2016): 64 values per block, blocks in any
/// order.
const LOOK_BACK: &str = "
 .shared .align 4 .b8 s[256]; .shared .align 4 .b8 carry[4];
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; ld.param.u64 %rd4, [p3]; ld.param.u64 %rd5, [p4];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 64, %r2; mul.wide.u32 %rd6, %r3, 4;
 add.s64 %rd7, %rd1, %rd6; ld.global.u32 %r4, [%rd7];
 mov.u32 %r5, s; shl.b32 %r6, %r2, 2; add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r4; bar.sync 0;
 mov.u32 %r7, 1;
scan: setp.lt.u32 %p1, %r2, %r7; mov.u32 %r8, 0; shl.b32 %r9, %r7, 2; sub.u32 %r9, %r5, %r9;
 @!%p1 ld.shared.u32 %r8, [%r9]; bar.sync 0; add.u32 %r4, %r4, %r8; st.shared.u32 [%r5], %r4; bar.sync 0;
 shl.b32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 64; @%p2 bra scan;
 setp.ne.u32 %p3, %r2, 63; @%p3 bra wait;
 // Thread 63 has the block's total: publish it, walk back, publish the inclusive sum.
 mul.wide.u32 %rd8, %r1, 4; add.s64 %rd9, %rd3, %rd8; add.s64 %rd10, %rd4, %rd8; add.s64 %rd11, %rd5, %rd8;
 st.global.u32 [%rd9], %r4; st.release.gpu.global.u32 [%rd11], 1;
 mov.u32 %r10, 0; mov.u32 %r11, %r1;
back: setp.eq.u32 %p4, %r11, 0; @%p4 bra found; sub.u32 %r11, %r11, 1;
 mul.wide.u32 %rd12, %r11, 4; add.s64 %rd13, %rd5, %rd12;
poll: ld.acquire.gpu.global.u32 %r12, [%rd13]; setp.eq.u32 %p5, %r12, 0; @%p5 bra poll;
 setp.eq.u32 %p6, %r12, 2; @%p6 bra whole;
 add.s64 %rd14, %rd3, %rd12; ld.global.u32 %r13, [%rd14]; add.u32 %r10, %r10, %r13; bra back;
whole: add.s64 %rd14, %rd4, %rd12; ld.global.u32 %r13, [%rd14]; add.u32 %r10, %r10, %r13;
found: add.u32 %r14, %r10, %r4; st.global.u32 [%rd10], %r14; st.release.gpu.global.u32 [%rd11], 2; st.shared.u32 [carry], %r10;
wait: bar.sync 0; ld.shared.u32 %r10, [carry]; add.u32 %r4, %r4, %r10; add.s64 %rd7, %rd2, %rd6; st.global.u32 [%rd7], %r4;";

#[test]
fn a_decoupled_look_back_scan_gives_prefix_sums() {
    let image = load(&kernel(5, LOOK_BACK)).unwrap();
    const BLOCKS: usize = 20;
    let input: Vec<u32> = (0..BLOCKS as u32 * 64).map(|n| n.wrapping_mul(40_503) % 1000).collect();
    let expected: Vec<u32> = input
        .iter()
        .scan(0_u32, |sum, value| {
            *sum += value;
            Some(*sum)
        })
        .collect();
    for options in schedules() {
        let mut device = Device::new();
        let args = [
            device.upload(&input),
            device.alloc(input.len() as u64 * 4),
            device.alloc(BLOCKS as u64 * 4),
            device.alloc(BLOCKS as u64 * 4),
            device.zeros(BLOCKS as u64 * 4),
        ];
        expect_ok(device.launch(&image, BLOCKS as u32, 64, &args.map(Arg::U64), &options));
        assert_eq!(device.download::<u32>(args[1], input.len()), expected, "{options:?}");
    }
}

#[test]
fn look_back_without_its_release_is_found() {
    for seed in [None, Some(3)] {
        let body = LOOK_BACK.replace("st.release.gpu.global.u32 [%rd11], 1", "st.relaxed.gpu.global.u32 [%rd11], 1");
        let mut device = Device::new();
        let args =
            [device.upload(&[1_u32; 640]), device.alloc(2560), device.alloc(40), device.alloc(40), device.zeros(40)];
        // Long turns would publish a block's inclusive sum before any other block polls: poll first.
        let body = body
            .replace("mov.u32 %r10, 0; mov.u32 %r11, %r1;", "nanosleep.u32 20; mov.u32 %r10, 0; mov.u32 %r11, %r1;");
        let options = Options { seed, ..Options::default() };
        let found: Vec<_> = (0..10)
            .filter_map(|n| {
                let options = Options { seed: seed.map(|seed| seed + n), ..options.clone() };
                device.heap.set(args[4], &[0], 40).unwrap();
                device.body_with(10, 64, &args, &body, &options).err()
            })
            .collect();
        if seed.is_some() {
            assert!(!found.is_empty());
        }
        assert!(found.iter().all(|fault| fault.kind == FaultKind::GlobalRace));
    }
}

/// Open addressing with linear probing: a CAS on the key claims a slot, then its count is incremented.
const HASH_TABLE: &str = "
 ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %tid.x; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd4, %rd1, %rd4;
 ld.global.u32 %r4, [%rd4]; mul.lo.u32 %r5, %r4, 0x9E3779B1; shr.u32 %r5, %r5, 24;
probe: mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd2, %rd5;
 ld.relaxed.gpu.global.u32 %r6, [%rd6]; setp.eq.u32 %p1, %r6, %r4; @%p1 bra count;
 setp.ne.u32 %p2, %r6, 0; @%p2 bra next;
 atom.global.cas.b32 %r6, [%rd6], 0, %r4; setp.eq.u32 %p1, %r6, 0; @%p1 bra count; setp.eq.u32 %p1, %r6, %r4; @%p1 bra count;
next: add.u32 %r5, %r5, 1; and.b32 %r5, %r5, 255; bra probe;
count: add.s64 %rd7, %rd3, %rd5; red.global.add.u32 [%rd7], 1;";

#[test]
fn a_concurrent_hash_table_counts_its_keys() {
    let image = load(&kernel(3, HASH_TABLE)).unwrap();
    let keys: Vec<u32> = (0..512_u32).map(|n| 1 + n.wrapping_mul(7919) % 200).collect();
    let mut expected: HashMap<u32, u32> = HashMap::new();
    keys.iter().for_each(|&key| *expected.entry(key).or_default() += 1);
    for options in schedules() {
        let mut device = Device::new();
        let args = [device.upload(&keys), device.zeros(1024), device.zeros(1024)];
        let report = expect_ok(device.launch(&image, 8, 64, &args.map(Arg::U64), &options));
        let (slots, counts) = (device.download::<u32>(args[1], 256), device.download::<u32>(args[2], 256));
        let table: HashMap<u32, u32> = slots.into_iter().zip(counts).filter(|(key, _)| *key != 0).collect();
        assert_eq!(table, expected, "{options:?}");
        assert!(report.footprints[1].reads.is_empty() && report.footprints[1].writes.is_empty());
    }
}

/// Options of a device with a number of resident blocks and early deadlock detection.
fn holding(resident_blocks: u32, seed: Option<u64>) -> Options {
    Options { seed, resident_blocks, max_idle_instructions: 1_000_000, ..Options::default() }
}

#[test]
fn a_block_may_wait_for_any_other_that_fits_beside_it() {
    // Block 0 waits for the last of 300, and the last for block 0's answer.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r2, %r2, 1;
 setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, %r2; @%p1 bra first; @%p2 bra last; bra done;
first: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.eq.u32 %p3, %r3, 0; @%p3 bra first;
 st.release.gpu.global.u32 [%rd1+4], 1; bra done;
last: st.release.gpu.global.u32 [%rd1], 1;
answer: ld.acquire.gpu.global.u32 %r3, [%rd1+4]; setp.eq.u32 %p3, %r3, 0; @%p3 bra answer;
done:";
    let image = load(&kernel(1, body)).unwrap();
    let run = |resident, seed| {
        let mut device = Device::new();
        let flags = device.zeros(8);
        device.launch(&image, 300, 64, &[Arg::U64(flags)], &holding(resident, seed))
    };
    for seed in [None, Some(1), Some(2), Some(3)] {
        expect_ok(run(2, seed));
        expect_ok(run(64, seed));
        let fault = expect_fault(run(1, seed), FaultKind::Deadlock);
        assert!(fault.message.contains("blocks for one of the 1 that run to end"), "{fault}");
    }
}

#[test]
fn blocks_that_fill_the_device_and_wait_for_one_that_has_not_started_are_a_deadlock() {
    // All blocks wait for the last one.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r2, %r2, 1;
 setp.eq.u32 %p1, %r1, %r2; @%p1 st.release.gpu.global.u32 [%rd1], 1;
wait: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.eq.u32 %p2, %r3, 0; @%p2 bra wait;";
    let image = load(&kernel(1, body)).unwrap();
    for seed in [None, Some(1), Some(2), Some(3)] {
        let run = |resident| {
            let mut device = Device::new();
            let flag = device.zeros(4);
            device.launch(&image, 200, 32, &[Arg::U64(flag)], &holding(resident, seed))
        };
        expect_ok(run(200));
        expect_fault(run(128), FaultKind::Deadlock);
    }
}

#[test]
fn whoever_takes_a_ticket_waits_only_for_blocks_that_run() {
    let by_number = load(&kernel(6, LOOK_BACK)).unwrap();
    let ticket = ".shared .align 4 .b8 ticket[4]; ld.param.u64 %rd20, [p5]; mov.u32 %r2, %tid.x; setp.ne.u32 %p9, %r2, 0; @%p9 bra taken;
 atom.global.add.u32 %r1, [%rd20], 1; st.shared.u32 [ticket], %r1;
taken: bar.sync 0; ld.shared.u32 %r1, [ticket];";
    let by_ticket = load(&kernel(6, &LOOK_BACK.replace("mov.u32 %r1, %ctaid.x;", ticket))).unwrap();
    let run = |image, seed| {
        let mut device = Device::new();
        let input = vec![1_u32; 20 * 64];
        let args = [
            device.upload(&input),
            device.alloc(20 * 256),
            device.alloc(80),
            device.alloc(80),
            device.zeros(80),
            device.zeros(4),
        ];
        let ended = device.launch(image, 20, 64, &args.map(Arg::U64), &holding(3, Some(seed)));
        ended.map(|_| device.download::<u32>(args[1], 20 * 64)).map_err(|fault| fault.kind)
    };
    for seed in 0..20 {
        assert_eq!(run(&by_ticket, seed), Ok((1..=20 * 64).collect()), "seed {seed}");
    }
    // Blocks start in random order, so all resident blocks may be waiting for a block with another number.
    assert!((0..20).any(|seed| run(&by_number, seed) == Err(FaultKind::Deadlock)));
}

#[test]
fn all_blocks_may_meet() {
    // Each block writes its number, arrives, waits for all blocks, and reads its neighbor's number.
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd1, %rd4;
 add.u32 %r3, %r1, 1; setp.ge.u32 %p1, %r3, %r2; selp.u32 %r3, 0, %r3, %p1; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd6, %rd1, %rd6;
 mul.lo.u32 %r4, %r1, %r1; st.global.u32 [%rd5], %r4;
 atom.acq_rel.gpu.global.add.u32 %r5, [%rd2], 1;
wait: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.lt.u32 %p2, %r5, %r2; @%p2 bra wait;
 ld.global.u32 %r6, [%rd6]; add.s64 %rd7, %rd3, %rd4; st.global.u32 [%rd7], %r6;";
    let image = load(&kernel(3, body)).unwrap();
    for seed in std::iter::once(None).chain((0..10).map(Some)) {
        let mut device = Device::new();
        let args = [device.alloc(400), device.zeros(4), device.alloc(400)];
        let options = Options { seed, ..Options::default() };
        expect_ok(device.launch(&image, 100, 1, &args.map(Arg::U64), &options));
        let expected: Vec<u32> = (0..100).map(|n| (n + 1) % 100).map(|n| n * n).collect();
        assert_eq!(device.download::<u32>(args[2], 100), expected);
    }
}

#[test]
fn lanes_may_wait_for_lanes_above_and_below_them() {
    // Lane n waits for the store of lane n + 7 modulo 32, except lane 3, which starts the chain.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %laneid; add.u32 %r2, %r1, 7; and.b32 %r2, %r2, 31;
 mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; mul.wide.u32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4;
 mov.u32 %r3, 0; setp.eq.u32 %p1, %r1, 3; @%p1 bra store;
wait: ld.volatile.global.u32 %r3, [%rd5]; setp.eq.u32 %p2, %r3, 0; @%p2 bra wait;
store: add.u32 %r3, %r3, 1; st.volatile.global.u32 [%rd3], %r3;";
    for seed in std::iter::once(None).chain((0..20).map(Some)) {
        let mut device = Device::new();
        let words = device.zeros(128);
        expect_ok(device.body_with(1, 32, &[words], body, &Options { seed, ..Options::default() }));
        let mut expected = [0; 32];
        let mut lane = 3;
        for step in 1..=32 {
            expected[lane] = step;
            lane = (lane + 32 - 7) % 32;
        }
        assert_eq!(device.download::<u32>(words, 32), expected);
    }
}

#[test]
fn warps_of_a_block_may_wait_for_one_another() {
    let body = ".shared .align 4 .b8 turn[4]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [turn], 3; bar.sync 0;
 ld.param.u64 %rd1, [p0]; mov.u32 %r2, %warpid;
wait: ld.acquire.cta.shared.u32 %r3, [turn]; setp.ne.u32 %p2, %r3, %r2; @%p2 bra wait;
 bar.warp.sync 0xFFFFFFFF; mov.u32 %r4, %laneid; setp.ne.u32 %p3, %r4, 0; @%p3 bra done;
 ld.global.u32 %r5, [%rd1]; mad.lo.u32 %r5, %r5, 10, %r2; st.global.u32 [%rd1], %r5;
 sub.u32 %r3, %r3, 1; st.release.cta.shared.u32 [turn], %r3;
done:";
    for seed in std::iter::once(None).chain((0..20).map(Some)) {
        let mut device = Device::new();
        let word = device.zeros(4);
        expect_ok(device.body_with(1, 128, &[word], body, &Options { seed, ..Options::default() }));
        assert_eq!(device.download::<u32>(word, 1), [3210]);
    }
}

#[test]
fn one_seed_is_one_schedule() {
    let image = load(&kernel(3, HASH_TABLE)).unwrap();
    let keys: Vec<u32> = (1..=512).collect();
    let keys: Vec<u32> = keys.iter().map(|key| key % 90 + 1).collect();
    let slots = |options: &Options| {
        let mut device = Device::new();
        let args = [device.upload(&keys), device.zeros(1024), device.zeros(1024)];
        let report = expect_ok(device.launch(&image, 8, 64, &args.map(Arg::U64), options));
        (device.download::<u32>(args[1], 256), report.warp_instructions)
    };
    assert_eq!(slots(&seeded(7)), slots(&seeded(7)));
    assert_eq!(slots(&Options::default()), slots(&Options::default()));
    assert!((0..20).any(|seed| slots(&seeded(seed)) != slots(&seeded(7))));
}
