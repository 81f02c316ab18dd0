//! Shuffles, votes, matches and reductions, compared with the manual.

use crate::device::*;
use millpond_ptx::interpret::{FaultKind, Options};
use std::collections::BTreeSet;

/// Runs 32 lanes; each stores `%r20` and `%r21`.
fn lanes(body: &str) -> Vec<(u32, u32)> {
    lanes_of(32, body, &Options::default())
}

fn lanes_of(threads: u32, body: &str, options: &Options) -> Vec<(u32, u32)> {
    let mut device = Device::new();
    let out = device.upload(&vec![0_u32; threads as usize * 2]);
    let body = format!(
        "mov.u32 %r1, %laneid; mov.u32 %r20, 0; mov.u32 %r21, 0; add.u32 %r2, %r1, 100;\n{body}
 ld.param.u64 %rd1, [p0]; mov.u32 %r30, %tid.x; mul.wide.u32 %rd2, %r30, 8; add.s64 %rd1, %rd1, %rd2; st.global.v2.u32 [%rd1], {{%r20, %r21}};"
    );
    expect_ok(device.body_with(1, threads, &[out], &body, options));
    device.download::<u32>(out, threads as usize * 2).chunks(2).map(|c| (c[0], c[1])).collect()
}

fn shuffle(mode: &str, b: &str, c: &str) -> Vec<(u32, u32)> {
    lanes(&format!("shfl.sync.{mode}.b32 %r20|%p1, %r2, {b}, {c}, 0xFFFFFFFF; selp.u32 %r21, 1, 0, %p1;"))
}

#[test]
fn shuffles_move_values_and_say_whether_they_could() {
    let expected = |f: &dyn Fn(u32) -> (u32, bool)| -> Vec<(u32, u32)> {
        (0..32).map(f).map(|(from, valid)| (100 + from, u32::from(valid))).collect()
    };
    // Up by one over the whole warp: lane 0 keeps its own value.
    assert_eq!(shuffle("up", "1", "0"), expected(&|l| if l >= 1 { (l - 1, true) } else { (l, false) }));
    assert_eq!(shuffle("down", "1", "31"), expected(&|l| if l < 31 { (l + 1, true) } else { (l, false) }));
    assert_eq!(shuffle("bfly", "16", "31"), expected(&|l| (l ^ 16, true)));
    assert_eq!(shuffle("idx", "5", "31"), expected(&|_| (5, true)));
    assert_eq!(shuffle("idx", "%r1", "31"), expected(&|l| (l, true)));
    // Segments of eight: c = segment mask 0x18 in bits 8…12, clamp 7 (up: 0).
    assert_eq!(shuffle("up", "3", "0x1800"), expected(&|l| if l % 8 >= 3 { (l - 3, true) } else { (l, false) }));
    assert_eq!(shuffle("down", "3", "0x1807"), expected(&|l| if l % 8 < 5 { (l + 3, true) } else { (l, false) }));
    assert_eq!(shuffle("idx", "2", "0x1807"), expected(&|l| (l / 8 * 8 + 2, true)));
    // A clamp below the segment's end, and an index above it.
    assert_eq!(shuffle("idx", "9", "7"), expected(&|l| (l, false)));
    assert_eq!(shuffle("down", "1", "15"), expected(&|l| if l < 15 { (l + 1, true) } else { (l, false) }));
    // Only the low five bits of b count.
    assert_eq!(shuffle("up", "33", "0"), shuffle("up", "1", "0"));
}

#[test]
fn a_partial_mask_shuffles_among_its_lanes() {
    let got = lanes(
        "setp.ge.u32 %p1, %r1, 8; @%p1 bra rest;
 shfl.sync.down.b32 %r20|%p2, %r2, 4, 31, 0xFF; selp.u32 %r21, 1, 0, %p2; bra done;
rest: shfl.sync.bfly.b32 %r20|%p2, %r2, 8, 31, 0xFFFFFF00; selp.u32 %r21, 2, 0, %p2;
done:",
    );
    for (lane, &(value, valid)) in got.iter().enumerate() {
        let lane = lane as u32;
        match lane {
            0..4 => assert_eq!((value, valid), (104 + lane, 1)),
            // Values of lanes outside the mask are undefined; only the predicate is checked.
            4..8 => assert_eq!(valid, 1),
            8..16 => assert_eq!(valid, 2),
            _ => assert_eq!((value, valid), (100 + (lane ^ 8), 2)),
        }
    }
}

#[test]
fn votes_count_their_lanes() {
    for (body, expected) in [
        ("setp.ge.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r20, %p1, 0xFFFFFFFF;", 0xFFFF_FFE0_u32),
        ("setp.ge.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r20, !%p1, 0xFFFFFFFF;", 0x1F),
        ("setp.ge.u32 %p1, %r1, 0; vote.sync.all.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 1),
        ("setp.ge.u32 %p1, %r1, 1; vote.sync.all.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 0),
        ("setp.eq.u32 %p1, %r1, 31; vote.sync.any.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 1),
        ("setp.eq.u32 %p1, %r1, 32; vote.sync.any.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 0),
        ("setp.eq.u32 %p1, %r1, 32; vote.sync.uni.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 1),
        ("setp.eq.u32 %p1, %r1, 3; vote.sync.uni.pred %p2, %p1, 0xFFFFFFFF; selp.u32 %r20, 1, 0, %p2;", 0),
    ] {
        assert!(lanes(body).iter().all(|&(value, _)| value == expected), "{body}");
    }
    // Lanes outside the mask keep their old value.
    let got = lanes(
        "setp.lt.u32 %p1, %r1, 4; @!%p1 bra skip; setp.ne.u32 %p2, %r1, 2; vote.sync.ballot.b32 %r20, %p2, 0xF; skip:",
    );
    assert!(got.iter().enumerate().all(|(lane, &(value, _))| value == if lane < 4 { 0b1011 } else { 0 }));
}

#[test]
fn matches_find_equal_values() {
    let got = lanes("and.b32 %r3, %r1, 3; match.any.sync.b32 %r20, %r3, 0xFFFFFFFF;");
    assert!(got.iter().enumerate().all(|(lane, &(value, _))| value == 0x1111_1111 << (lane % 4)));
    let wide = "mul.wide.u32 %rd5, %r1, 1; shr.u64 %rd5, %rd5, 4; shl.b64 %rd5, %rd5, 40; match.any.sync.b64 %r20, %rd5, 0xFFFFFFFF;";
    let got = lanes(wide);
    assert!(got.iter().enumerate().all(|(lane, &(value, _))| value == if lane < 16 { 0xFFFF } else { 0xFFFF_0000 }));
    let all = |value: &str| format!("match.all.sync.b32 %r20|%p1, {value}, 0xFFFFFFFF; selp.u32 %r21, 1, 0, %p1;");
    assert!(lanes(&all("7")).iter().all(|&pair| pair == (u32::MAX, 1)));
    assert!(lanes(&all("%r1")).iter().all(|&pair| pair == (0, 0)));
}

#[test]
fn reductions_over_the_warp() {
    for (op, expected) in [
        ("add.u32", 496_u32 + 3200),
        ("add.s32", 496 + 3200),
        ("min.u32", 100),
        ("max.u32", 131),
        ("min.s32", 100),
        ("max.s32", 131),
        ("and.b32", 0),
        ("or.b32", 255),
        ("xor.b32", 0),
    ] {
        let got = lanes(&format!("redux.sync.{op} %r20, %r2, 0xFFFFFFFF;"));
        let plain = (100..132).fold((u32::MAX, 0, 0), |(and, or, xor), v| (and & v, or | v, xor ^ v));
        let expected = match op {
            "and.b32" => plain.0,
            "or.b32" => plain.1,
            "xor.b32" => plain.2,
            _ => expected,
        };
        assert!(got.iter().all(|&(value, _)| value == expected), "{op}: {got:?}");
    }
    let got = lanes(
        "sub.u32 %r3, %r1, 5; redux.sync.min.s32 %r20, %r3, 0xFFFFFFFF; redux.sync.max.u32 %r21, %r3, 0xFFFFFFFF;",
    );
    assert!(got.iter().all(|&pair| pair == (-5_i32 as u32, u32::MAX)));
}

#[test]
fn activemask_names_the_lanes_that_run() {
    assert!(lanes("activemask.b32 %r20;").iter().all(|&(value, _)| value == u32::MAX));
    let got = lanes("and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 1; @%p1 activemask.b32 %r20;");
    assert!(got.iter().enumerate().all(|(lane, &(value, _))| value == if lane % 2 == 1 { 0xAAAA_AAAA } else { 0 }));
    let got = lanes_of(5, "activemask.b32 %r20;", &Options::default());
    assert!(got.iter().all(|&(value, _)| value == 0x1F));
}

#[test]
fn lanes_that_come_late_are_waited_for() {
    // Lane n iterates n times before the full-warp shuffle; the last warp is partial.
    for seed in std::iter::once(None).chain((0..20).map(Some)) {
        let options = Options { seed, ..Options::default() };
        let body = "mov.u32 %r5, %r1;
loop: setp.eq.u32 %p1, %r5, 0; @%p1 bra meet; sub.u32 %r5, %r5, 1; bra loop;
meet: mov.u32 %r6, %tid.x; setp.ge.u32 %p3, %r6, 32; selp.b32 %r7, 0xFF, 0xFFFFFFFF, %p3;
 shfl.sync.bfly.b32 %r20, %r2, 1, 31, %r7; vote.sync.ballot.b32 %r21, %p1, %r7;";
        let got = lanes_of(40, body, &options);
        for (thread, pair) in got.into_iter().enumerate() {
            let (lane, mask) = if thread < 32 { (thread as u32, u32::MAX) } else { (thread as u32 - 32, 0xFF) };
            assert_eq!(pair, (100 + (lane ^ 1), mask), "thread {thread}, seed {seed:?}");
        }
    }
}

#[test]
fn exited_lanes_are_not_waited_for() {
    let mut device = Device::new();
    let out = device.zeros(4);
    expect_ok(device.body(
        1,
        32,
        &[out],
        "mov.u32 %r1, %laneid; setp.ge.u32 %p1, %r1, 10; @%p1 exit; vote.sync.ballot.b32 %r2, %p1, 0xFFFFFFFF; vote.sync.ballot.b32 %r3, !%p1, 0xFFFFFFFF;
 ld.param.u64 %rd1, [p0]; setp.eq.u32 %p2, %r1, 0; @%p2 st.global.u32 [%rd1], %r3;",
    ));
    assert_eq!(device.download::<u32>(out, 1), [0x3FF]);
}

#[test]
fn a_lane_outside_its_own_mask_is_found() {
    let found = expect_fault(
        Device::new().body(1, 32, &[], "shfl.sync.idx.b32 %r1, %r2, 0, 31, 0x0000FFFF;"),
        FaultKind::Barrier,
    );
    assert_eq!(found.thread, [16, 0, 0]);
}

#[test]
fn a_mask_that_names_a_lane_that_never_comes_is_a_deadlock() {
    let body = "mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 3; @%p1 bra other; vote.sync.ballot.b32 %r2, %p1, 0xFFFFFFFF; bra done;
other: bar.sync 0;
done:";
    expect_fault(Device::new().body(1, 32, &[], body), FaultKind::Deadlock);
}

#[test]
fn lanes_reach_memory_in_any_order() {
    // The lanes that get each ticket of one atomic, and the lane whose store to one word remains: unordered strong
    // accesses.
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %laneid; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3;
 atom.global.add.u32 %r2, [%rd1], 1; st.global.u32 [%rd4], %r2; st.relaxed.gpu.global.u32 [%rd1+4], %r1;
 .shared .align 4 .b8 word[4]; st.volatile.shared.u32 [word], %r1; ld.volatile.shared.u32 %r3, [word]; st.relaxed.gpu.global.u32 [%rd1+8], %r3;";
    let image = load(&kernel(2, body)).unwrap();
    let run = |options: &Options| {
        let mut device = Device::new();
        let (words, tickets) = (device.zeros(12), device.zeros(128));
        expect_ok(device.launch(&image, 1, 32, &[Arg::U64(words), Arg::U64(tickets)], options));
        let last = device.download::<u32>(words, 3);
        (device.download::<u32>(tickets, 32), last[1], last[2])
    };
    assert_eq!(run(&Options::default()), ((0..32).collect(), 31, 31), "without a seed one after the other");
    let runs: Vec<_> = (0..40).map(|seed| run(&seeded(seed))).collect();
    for (tickets, _, _) in &runs {
        let mut sorted = tickets.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..32).collect::<Vec<_>>());
    }
    let different = |by: fn(&(Vec<u32>, u32, u32)) -> u32| runs.iter().map(by).collect::<BTreeSet<_>>().len();
    assert!(different(|run| run.0[0]) > 10 && different(|run| run.1) > 10 && different(|run| run.2) > 10, "{runs:?}");
}
