//! Races in shared and global memory: reported for unordered accesses, and not for ordered ones.

use crate::device::*;
use millpond_ptx::interpret::{FaultKind, Options};

/// Kernel of a test on shared memory, initially zero: `%r1` is the thread, `%r2` its word, `%r3` the next thread's word
/// (of 64), `%r4` and `%r11` the words of the threads whose numbers differ in bit 0 and bit 1, `%r10` the start.
fn in_shared(body: &str) -> String {
    format!(
        ".shared .align 8 .b8 s[1024];
 mov.u32 %r1, %tid.x; mov.u32 %r10, s; shl.b32 %r2, %r1, 2; add.u32 %r2, %r2, %r10;
 add.u32 %r3, %r1, 1; and.b32 %r3, %r3, 63; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r10;
 xor.b32 %r4, %r1, 1; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r10;
 xor.b32 %r11, %r1, 2; shl.b32 %r11, %r11, 2; add.u32 %r11, %r11, %r10;
 st.shared.u32 [%r2], 0; st.shared.u32 [%r2+512], 0; bar.sync 0;
{body}"
    )
}

/// Whether the body passes under the fixed schedule and several random ones; a race must be found under all of them.
#[track_caller]
fn judge(threads: u32, body: &str) -> bool {
    let verdicts: Vec<bool> = std::iter::once(None)
        .chain((0..10).map(Some))
        .map(|seed| {
            let options = Options { seed, ..Options::default() };
            match Device::new().body_with(1, threads, &[], body, &options) {
                Ok(_) => true,
                Err(fault) => {
                    assert_eq!(fault.kind, FaultKind::SharedRace, "{fault}");
                    assert!(fault.message.contains("nothing orders the two"), "{fault}");
                    false
                }
            }
        })
        .collect();
    assert!(verdicts.iter().all(|&verdict| verdict == verdicts[0]), "some orders hide it: {verdicts:?}\n{body}");
    verdicts[0]
}

#[test]
fn a_missing_barrier_is_a_shared_race() {
    assert!(!judge(64, &in_shared("st.shared.u32 [%r2], %r1; ld.shared.u32 %r5, [%r3];")));
    assert!(judge(64, &in_shared("st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r5, [%r3];")));
    assert!(judge(64, &in_shared("st.shared.u32 [%r2], %r1; barrier.sync 0; ld.shared.u32 %r5, [%r3];")));
}

#[test]
fn a_read_before_a_write_needs_a_barrier_too() {
    let reads = "st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r5, [%r3];";
    assert!(!judge(64, &in_shared(&format!("{reads} st.shared.u32 [%r2], %r5;"))));
    assert!(judge(64, &in_shared(&format!("{reads} bar.sync 0; st.shared.u32 [%r2], %r5;"))));
}

#[test]
fn lanes_of_a_warp_need_a_warp_barrier() {
    let write = "st.shared.u32 [%r2], %r1;";
    assert!(!judge(32, &in_shared(&format!("{write} ld.shared.u32 %r5, [%r4];"))));
    assert!(judge(32, &in_shared(&format!("{write} bar.warp.sync 0xFFFFFFFF; ld.shared.u32 %r5, [%r4];"))));
    // A shuffle synchronizes lanes, but does not order memory accesses in PTX.
    assert!(!judge(
        32,
        &in_shared(&format!("{write} shfl.sync.bfly.b32 %r6, %r1, 1, 31, 0xFFFFFFFF; ld.shared.u32 %r5, [%r4];"))
    ));
    // Pairs of lanes may be ordered by a barrier of two lanes.
    let pair = "mov.u32 %r6, %lanemask_eq; and.b32 %r7, %r1, 30; mov.u32 %r8, 3; shl.b32 %r8, %r8, %r7;";
    assert!(judge(32, &in_shared(&format!("{write} {pair} bar.warp.sync %r8; ld.shared.u32 %r5, [%r4];"))));
    assert!(!judge(32, &in_shared(&format!("{write} {pair} bar.warp.sync %r8; ld.shared.u32 %r5, [%r11];"))));
    // A barrier of the warp does not order other warps.
    assert!(!judge(64, &in_shared(&format!("{write} bar.warp.sync 0xFFFFFFFF; ld.shared.u32 %r5, [%r3];"))));
}

#[test]
fn two_writers_of_one_word_race_unless_they_are_one_store_of_one_value() {
    assert!(!judge(64, &in_shared("st.shared.u32 [%r10], %r1;")));
    assert!(!judge(64, &in_shared("st.shared.u32 [%r10], 5;")));
    assert!(judge(32, &in_shared("st.shared.u32 [%r10], 5;")));
    assert!(!judge(32, &in_shared("st.shared.u32 [%r10], %r1;")));
}

#[test]
fn neighbouring_bytes_do_not_race() {
    assert!(judge(64, &in_shared("add.u32 %r5, %r10, %r1; st.shared.u8 [%r5], %r1; ld.shared.u8 %r6, [%r5];")));
    assert!(judge(64, &in_shared("add.u32 %r5, %r10, %r1; add.u32 %r5, %r5, %r1; st.shared.u16 [%r5+2], %r1;")));
    assert!(!judge(64, &in_shared("add.u32 %r5, %r10, %r1; st.shared.u8 [%r5], %r1; ld.shared.u8 %r6, [%r5+1];")));
    // Words among bytes, and bytes among words.
    assert!(!judge(
        64,
        &in_shared("add.u32 %r5, %r10, %r1; st.shared.u8 [%r5], %r1; and.b32 %r5, %r5, -4; ld.shared.u8 %r6, [%r5];")
    ));
}

#[test]
fn atomics_and_volatiles_do_not_race_with_themselves() {
    let zero = "st.shared.u32 [%r2], 0; bar.sync 0;";
    assert!(judge(
        64,
        &in_shared(&format!("{zero} atom.shared.add.u32 %r5, [%r10], 1; red.shared.max.u32 [%r10+4], %r1;"))
    ));
    assert!(judge(
        64,
        &in_shared(&format!("{zero} st.volatile.shared.u32 [%r10], %r1; ld.volatile.shared.u32 %r5, [%r10];"))
    ));
    assert!(!judge(64, &in_shared(&format!("{zero} atom.shared.add.u32 %r5, [%r10], 1; ld.shared.u32 %r5, [%r10];"))));
    assert!(judge(
        64,
        &in_shared(&format!("{zero} atom.shared.add.u32 %r5, [%r10], 1; bar.sync 0; ld.shared.u32 %r5, [%r10];"))
    ));
}

#[test]
fn named_barriers_order_those_that_take_part() {
    // Warps 0 and 1 use barrier 1, warps 2 and 3 barrier 2; each warp reads its partner's word.
    let body = |reads: &str| {
        in_shared(&format!(
            "shr.u32 %r5, %r1, 6; add.u32 %r5, %r5, 1; st.shared.u32 [%r2], %r1; bar.sync %r5, 64;
 xor.b32 %r6, %r1, {reads}; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r10; ld.shared.u32 %r7, [%r6];"
        ))
    };
    assert!(judge(128, &body("32")));
    assert!(!judge(128, &body("64")));
}

#[test]
fn arriving_without_waiting_orders_one_way() {
    // Warp 0 produces and arrives without waiting; warp 1 waits and consumes.
    let body = |late: &str| {
        in_shared(&format!(
            "setp.ge.u32 %p1, %r1, 32; @%p1 bra consume;
 st.shared.u32 [%r2], %r1; bar.arrive 1, 64; {late} bra done;
consume: bar.sync 1, 64; ld.shared.u32 %r5, [%r2+-128];
done:"
        ))
    };
    assert!(judge(64, &body("")));
    assert!(!judge(64, &body("st.shared.u32 [%r2], 3;")));
}

/// Block 0 writes data and publishes a flag, block 1 waits for the flag and reads the data.
struct Publish {
    before: &'static str,
    publish: &'static str,
    poll: &'static str,
    after: &'static str,
    meet: &'static str,
}

const GOOD: Publish = Publish {
    before: "bar.sync 0;",
    publish: "st.release.gpu.global.u32 [%rd2], 1;",
    poll: "ld.acquire.gpu.global.u32 %r4, [%rd2];",
    after: "",
    meet: "bar.sync 0;",
};

impl Publish {
    fn passes(&self) -> bool {
        let Publish { before, publish, poll, after, meet } = self;
        let body = format!(
            "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mul.wide.u32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd3, %rd4;
 setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; @%p1 bra consumer;
 add.u32 %r3, %r2, 1000; st.global.u32 [%rd5], %r3;
 {before}
 @%p2 bra done;
 {publish}
 bra done;
consumer:
 @%p2 bra joined;
spin: {poll} setp.eq.u32 %p3, %r4, 0; @%p3 bra spin;
 {after}
joined:
 {meet}
 ld.global.u32 %r5, [%rd5]; st.global.u32 [%rd6], %r5;
done:"
        );
        let mut verdicts = Vec::new();
        for seed in std::iter::once(None).chain((0..20).map(Some)) {
            let mut device = Device::new();
            let (data, flag, out) = (device.zeros(256), device.zeros(4), device.zeros(256));
            let options = Options { seed, ..Options::default() };
            match device.body_with(2, 64, &[data, flag, out], &body, &options) {
                Ok(_) => {
                    assert_eq!(device.download::<u32>(out, 64), (1000..1064).collect::<Vec<_>>());
                    verdicts.push(true);
                }
                Err(fault) => {
                    assert_eq!(fault.kind, FaultKind::GlobalRace, "{fault}");
                    verdicts.push(false);
                }
            }
        }
        assert!(verdicts.iter().all(|&verdict| verdict == verdicts[0]), "some orders hide it: {verdicts:?}\n{body}");
        verdicts[0]
    }
}

#[test]
fn a_release_and_an_acquire_order_two_blocks() {
    assert!(GOOD.passes());
}

#[test]
fn fences_around_relaxed_or_volatile_accesses_do_too() {
    let fenced = Publish {
        publish: "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd2], 1;",
        poll: "ld.relaxed.gpu.global.u32 %r4, [%rd2];",
        after: "fence.acq_rel.gpu;",
        ..GOOD
    };
    assert!(fenced.passes());
    let idiom = Publish {
        publish: "membar.gl; st.volatile.global.u32 [%rd2], 1;",
        poll: "ld.volatile.global.u32 %r4, [%rd2];",
        after: "membar.gl;",
        ..GOOD
    };
    assert!(idiom.passes());
    let atomics = Publish {
        publish: "membar.gl; atom.global.exch.b32 %r6, [%rd2], 1;",
        poll: "atom.global.or.b32 %r4, [%rd2], 0;",
        after: "membar.gl;",
        ..GOOD
    };
    assert!(atomics.passes());
    let ordered = Publish {
        publish: "atom.release.gpu.global.exch.b32 %r6, [%rd2], 1;",
        poll: "atom.acquire.gpu.global.cas.b32 %r4, [%rd2], 7, 7;",
        ..GOOD
    };
    assert!(ordered.passes());
}

#[test]
fn an_unordered_publish_is_found() {
    assert!(!Publish { publish: "st.relaxed.gpu.global.u32 [%rd2], 1;", ..GOOD }.passes(), "no release");
    assert!(!Publish { publish: "st.volatile.global.u32 [%rd2], 1;", ..GOOD }.passes(), "volatile alone");
    assert!(!Publish { publish: "st.relaxed.gpu.global.u32 [%rd2], 1; membar.gl;", ..GOOD }.passes(), "fence too late");
    assert!(!Publish { poll: "ld.relaxed.gpu.global.u32 %r4, [%rd2];", ..GOOD }.passes(), "no acquire");
    assert!(!Publish { before: "", ..GOOD }.passes(), "the publisher does not wait for its block");
    assert!(!Publish { meet: "", ..GOOD }.passes(), "the readers do not wait for the poller");
    assert!(
        !Publish { publish: "st.release.cta.global.u32 [%rd2], 1;", ..GOOD }.passes(),
        "release to its own block only"
    );
    assert!(
        !Publish { publish: "membar.cta; st.relaxed.gpu.global.u32 [%rd2], 1;", ..GOOD }.passes(),
        "a fence of the block"
    );
    assert!(!Publish { publish: "membar.gl; st.global.u32 [%rd2], 1;", ..GOOD }.passes(), "the flag itself is plain");
}

#[test]
fn a_barrier_of_one_warp_does_not_publish_for_the_other() {
    assert!(!Publish { before: "bar.warp.sync 0xFFFFFFFF;", ..GOOD }.passes());
}

fn global(grid: u32, threads: u32, bytes: u64, body: &str, seed: Option<u64>) -> Result<(), FaultKind> {
    let mut device = Device::new();
    let buffer = device.zeros(bytes);
    let prelude = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
 mad.lo.u32 %r4, %r1, %r2, %r3; cvt.u64.u32 %rd2, %r4; add.s64 %rd3, %rd1, %rd2; mul.wide.u32 %rd4, %r4, 4; add.s64 %rd5, %rd1, %rd4;";
    let options = Options { seed, ..Options::default() };
    let result = device.body_with(grid, threads, &[buffer], &format!("{prelude}\n{body}"), &options);
    result.map(|_| ()).map_err(|fault| fault.kind)
}

#[test]
fn two_touches_of_one_word_by_two_blocks_race() {
    for seed in [None, Some(1), Some(2)] {
        let race = Err(FaultKind::GlobalRace);
        assert_eq!(global(2, 1, 4, "st.global.u32 [%rd1], %r1;", seed), race, "two writes");
        assert_eq!(
            global(
                2,
                1,
                4,
                "ld.global.u32 %r5, [%rd1]; setp.eq.u32 %p1, %r1, 1; @%p1 st.global.u32 [%rd1], %r1;",
                seed
            ),
            race
        );
        assert_eq!(global(2, 1, 4, "red.global.add.u32 [%rd1], 1; ld.global.u32 %r5, [%rd1];", seed), race);
        assert_eq!(global(9, 32, 1024, "ld.global.u32 %r5, [%rd5]; st.global.u32 [%rd1], 0;", seed), race);
        assert_eq!(global(2, 1, 4, "red.cta.global.add.u32 [%rd1], 1;", seed), race, "atomics of block scope");
        assert_eq!(
            global(5, 64, 4, "red.global.add.u32 [%rd1], 1; ld.relaxed.gpu.global.u32 %r5, [%rd1];", seed),
            Ok(())
        );
        assert_eq!(global(5, 64, 4, "ld.global.u32 %r5, [%rd1];", seed), Ok(()), "readers only");
        assert_eq!(
            global(8, 33, 8 * 33, "st.global.u8 [%rd3], %r1; ld.global.u8 %r5, [%rd3];", seed),
            Ok(()),
            "bytes side by side"
        );
        assert_eq!(global(8, 33, 8 * 33 * 4, "st.global.u32 [%rd5], %r1; ld.global.u32 %r5, [%rd5];", seed), Ok(()));
        assert_eq!(global(8, 33, 8 * 33 + 1, "st.global.u8 [%rd3], %r1; ld.global.u8 %r5, [%rd3+1];", seed), race);
    }
}

#[test]
fn threads_of_one_block_race_in_global_memory_without_a_barrier() {
    for seed in [None, Some(1), Some(2)] {
        let race = Err(FaultKind::GlobalRace);
        let back = "sub.u32 %r6, 63, %r3; mul.wide.u32 %rd6, %r6, 4; add.s64 %rd6, %rd1, %rd6;";
        assert_eq!(
            global(1, 64, 256, &format!("{back} st.global.u32 [%rd5], %r3; ld.global.u32 %r5, [%rd6];"), seed),
            race
        );
        assert_eq!(
            global(
                1,
                64,
                256,
                &format!("{back} st.global.u32 [%rd5], %r3; bar.sync 0; ld.global.u32 %r5, [%rd6];"),
                seed
            ),
            Ok(())
        );
        assert_eq!(
            global(1, 64, 256, &format!("{back} ld.global.u32 %r5, [%rd6]; st.global.u32 [%rd5], %r3;"), seed),
            race
        );
        assert_eq!(
            global(
                1,
                64,
                256,
                &format!(
                    "{back} ld.global.u32 %r5, [%rd6]; bar.sync 0; st.global.u32 [%rd5], %r3; bar.sync 0; st.global.u32 [%rd6], 1;"
                ),
                seed
            ),
            Ok(())
        );
    }
}

/// Every block adds to a sum; the last one to take a ticket reads all of them.
#[test]
fn the_last_block_may_read_what_all_blocks_wrote() {
    let body = |fence: &str, late: &str| {
        format!(
            "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
 .shared .align 4 .b8 last[4];
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 64, %r2; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd5, %rd1, %rd4;
 st.global.u32 [%rd5], %r3; bar.sync 0;
 setp.ne.u32 %p1, %r2, 0; @%p1 bra wait;
 {fence} atom.global.add.u32 %r4, [%rd2], 1; {late} st.shared.u32 [last], %r4;
wait: bar.sync 0; ld.shared.u32 %r4, [last];
 mov.u32 %r5, %nctaid.x; sub.u32 %r5, %r5, 1; setp.ne.u32 %p2, %r4, %r5; @%p2 bra done;
 mov.u32 %r6, 0; mov.u32 %r7, %r2;
 shl.b32 %r8, %r5, 6; add.u32 %r8, %r8, 64;
sum: mul.wide.u32 %rd6, %r7, 4; add.s64 %rd6, %rd1, %rd6; ld.global.u32 %r9, [%rd6]; add.u32 %r6, %r6, %r9;
 add.u32 %r7, %r7, 64; setp.lt.u32 %p3, %r7, %r8; @%p3 bra sum;
 red.global.add.u32 [%rd3], %r6;
done:"
        )
    };
    let run = |fence: &str, late: &str, seed: Option<u64>| {
        let mut device = Device::new();
        let (data, ticket, out) = (device.alloc(10 * 256), device.zeros(4), device.zeros(4));
        let options = Options { seed, ..Options::default() };
        let result = device.body_with(10, 64, &[data, ticket, out], &body(fence, late), &options);
        result.map(|_| device.download::<u32>(out, 1)[0]).map_err(|fault| fault.kind)
    };
    for seed in std::iter::once(None).chain((0..20).map(Some)) {
        assert_eq!(run("membar.gl;", "membar.gl;", seed), Ok((0..640).sum()));
        assert_eq!(run("", "membar.gl;", seed), Err(FaultKind::GlobalRace));
        assert_eq!(run("membar.gl;", "", seed), Err(FaultKind::GlobalRace));
    }
}

#[test]
fn checks_can_be_switched_off() {
    let mut options = Options::default();
    options.checks.shared_races = false;
    let body = in_shared("st.shared.u32 [%r2], %r1; ld.shared.u32 %r5, [%r4];");
    expect_ok(Device::new().body_with(1, 64, &[], &body, &options));
    let mut device = Device::new();
    let buffer = device.zeros(4);
    options.checks.global_races = false;
    let report =
        expect_ok(device.body_with(2, 1, &[buffer], "ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], 1;", &options));
    assert_eq!(report.footprints[0].writes.runs(), [(0, 1)]);
}
