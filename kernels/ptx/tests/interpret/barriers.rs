//! Block barriers: all threads, some threads, reductions, misuse.

use crate::device::*;
use millpond_ptx::interpret::{FaultKind, Options};

fn seeds() -> impl Iterator<Item = Options> {
    std::iter::once(None).chain((0..20).map(Some)).map(|seed| Options { seed, ..Options::default() })
}

#[test]
fn a_tree_reduction_over_barriers_sums_the_block() {
    let body = ".shared .align 4 .b8 s[1024]; ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2;
 mul.lo.u32 %r4, %r1, %r1; st.shared.u32 [%r3], %r4; mov.u32 %r5, 128;
level: bar.sync 0; setp.ge.u32 %p1, %r1, %r5; @%p1 bra next;
 shl.b32 %r6, %r5, 2; add.u32 %r6, %r6, %r3; ld.shared.u32 %r7, [%r6]; ld.shared.u32 %r8, [%r3]; add.u32 %r8, %r8, %r7; st.shared.u32 [%r3], %r8;
next: shr.u32 %r5, %r5, 1; setp.ne.u32 %p2, %r5, 0; @%p2 bra level;
 setp.eq.u32 %p3, %r1, 0; @%p3 ld.shared.u32 %r8, [s]; mov.u32 %r9, %ctaid.x; mul.wide.u32 %rd2, %r9, 4; add.s64 %rd1, %rd1, %rd2; @%p3 st.global.u32 [%rd1], %r8;";
    for options in seeds() {
        let mut device = Device::new();
        let out = device.alloc(12);
        expect_ok(device.body_with(3, 256, &[out], body, &options));
        assert_eq!(device.download::<u32>(out, 3), [(0..256).map(|n| n * n).sum::<u32>(); 3]);
    }
}

#[test]
fn reductions_at_a_barrier() {
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; setp.lt.u32 %p2, %r1, 96; setp.gt.u32 %p3, %r1, 200;
 bar.red.popc.u32 %r2, 0, %p1; barrier.red.popc.aligned.u32 %r3, 1, !%p1;
 bar.red.and.pred %p4, 2, %p2; bar.red.and.pred %p5, 0, %p1; bar.red.or.pred %p6, 0, %p1; bar.red.or.pred %p7, 0, %p3;
 selp.u32 %r4, 1, 0, %p4; selp.u32 %r5, 2, 0, %p5; or.b32 %r4, %r4, %r5; selp.u32 %r5, 4, 0, %p6; or.b32 %r4, %r4, %r5; selp.u32 %r5, 8, 0, %p7; or.b32 %r4, %r4, %r5;
 mul.wide.u32 %rd2, %r1, 12; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r3; st.global.u32 [%rd1+8], %r4;";
    for options in seeds() {
        let mut device = Device::new();
        let out = device.alloc(96 * 12);
        expect_ok(device.body_with(1, 96, &[out], body, &options));
        assert!(device.download::<u32>(out, 96 * 3).chunks(3).all(|c| c == [40, 56, 1 | 4]));
    }
}

#[test]
fn named_barriers_pass_data_between_warps_round_after_round() {
    // A producer warp fills a buffer and a consumer warp empties it; barriers 1 (full) and 2 (empty).
    let body = ".shared .align 4 .b8 s[128]; ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shl.b32 %r3, %r2, 2; mov.u32 %r4, s; add.u32 %r3, %r3, %r4;
 mov.u32 %r5, 0; mov.u32 %r6, 0; setp.ge.u32 %p1, %r1, 32; @%p1 bra consumer;
produce: bar.sync 2, 64; mad.lo.u32 %r7, %r5, 100, %r2; st.shared.u32 [%r3], %r7; bar.arrive 1, 64;
 add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 10; @%p2 bra produce; bra done;
consumer: bar.arrive 2, 64; bar.sync 1, 64; ld.shared.u32 %r7, [%r3]; add.u32 %r6, %r6, %r7;
 add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 10; @%p2 bra consumer;
 mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r6;
done:";
    for options in seeds() {
        let mut device = Device::new();
        let out = device.alloc(128);
        expect_ok(device.body_with(1, 64, &[out], body, &options));
        assert_eq!(device.download::<u32>(out, 32), (0..32).map(|n| 4500 + 10 * n).collect::<Vec<_>>());
    }
}

#[test]
fn exited_threads_are_not_waited_for() {
    let body = ".shared .align 4 .b8 s[4]; mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 exit; setp.eq.u32 %p2, %r1, 39; @%p2 st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %r2, [s];";
    for options in seeds() {
        expect_ok(Device::new().body_with(1, 96, &[], body, &options));
    }
}

#[test]
fn a_barrier_that_some_never_reach_is_a_deadlock() {
    let found = expect_fault(
        Device::new().body(
            1,
            64,
            &[],
            "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0; @!%p1 bar.sync 1;",
        ),
        FaultKind::Deadlock,
    );
    assert!(found.message.contains("of 64 threads"), "{found}");
    assert!(found.instruction.contains("bar.sync"), "{found}");
}

#[test]
fn half_a_warp_may_not_use_an_aligned_barrier() {
    // Both halves reach a barrier, but at two different instructions.
    let body = |name: &str| {
        format!(
            "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 16; @%p1 bra low; {name} 0; bra done; low: {name} 0; add.u32 %r1, %r1, 1; done:"
        )
    };
    let found = expect_fault(Device::new().body(1, 64, &[], &body("bar.sync")), FaultKind::Barrier);
    assert!(found.message.contains("aligned"), "{found}");
    expect_fault(Device::new().body(1, 64, &[], &body("barrier.sync.aligned")), FaultKind::Barrier);
    for options in seeds() {
        expect_ok(Device::new().body_with(1, 64, &[], &body("barrier.sync"), &options));
    }
}

#[test]
fn misuse_of_barriers_is_found() {
    for (body, words) in [
        ("bar.sync 16;", "a block has 16"),
        ("bar.sync 0, 33;", "multiple of 32"),
        ("mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0, 64; @!%p1 bar.sync 0;", "for 64"),
        (
            "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0; @!%p1 bar.red.popc.u32 %r2, 0, %p1;",
            "reduce",
        ),
    ] {
        let found = expect_fault(Device::new().body(1, 64, &[], body), FaultKind::Barrier);
        assert!(found.message.contains(words), "{found}");
    }
}
