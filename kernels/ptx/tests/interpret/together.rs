//! Concurrent launches: they share memory, the device and the schedule, and nothing else.

use crate::device::*;
use millpond_ptx::interpret::{Fault, FaultKind, Image, Launch, Options, Report, Running, run_together};
use std::collections::BTreeSet;

/// One launch of kernel `k`: its image, blocks of 32 threads, and arguments.
type Part<'a> = (&'a Image, u32, &'a [u64]);

fn together(device: &mut Device, parts: &[Part<'_>], options: &Options) -> Result<Vec<Report>, (usize, Box<Fault>)> {
    let params: Vec<Vec<u8>> =
        parts.iter().map(|part| part.2.iter().flat_map(|arg| arg.to_le_bytes()).collect()).collect();
    let launches: Vec<Running<'_>> = parts
        .iter()
        .zip(&params)
        .map(|(&(image, blocks, _), params)| {
            let (grid, block) = ([blocks, 1, 1], [32, 1, 1]);
            let launch = Launch { kernel: "k", grid, block, dynamic_shared_bytes: 0, params, globals: &[] };
            Running { image, launch, resident_blocks: options.resident_blocks }
        })
        .collect();
    run_together(&launches, &mut device.heap, options)
}

fn image(params: usize, body: &str) -> Image {
    load(&kernel(params, body)).unwrap_or_else(|error| panic!("{error}"))
}

/// The first lane of each block takes several tickets and writes its launch's number at each ticket's position.
const LOG: &str = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; cvt.u32.u64 %r1, %rd3;
 mov.u32 %r2, %tid.x; setp.ne.u32 %p1, %r2, 0; @%p1 bra done; mov.u32 %r3, 0;
again: atom.global.add.u32 %r4, [%rd1], 1; mul.wide.u32 %rd4, %r4, 4; add.s64 %rd4, %rd2, %rd4; st.relaxed.gpu.global.u32 [%rd4], %r1;
 add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 5; @%p2 bra again;
done:";

#[test]
fn their_accesses_mix_as_a_seed_draws_them() {
    let image = image(3, LOG);
    let log = |seed| {
        let mut device = Device::new();
        let (ticket, log) = (device.zeros(4), device.zeros(80));
        let (one, two) = ([ticket, log, 1], [ticket, log, 2]);
        let options = Options { seed, ..Options::default() };
        together(&mut device, &[(&image, 2, &one), (&image, 2, &two)], &options).unwrap();
        device.download::<u32>(log, 20)
    };
    assert_eq!(log(None), [[1; 10], [2; 10]].concat(), "without a seed one after the other");
    let logs: BTreeSet<Vec<u32>> = (0..60).map(|seed| log(Some(seed))).collect();
    let changes = |log: &Vec<u32>| log.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(logs.len() > 20, "{logs:?}");
    assert!(logs.iter().any(|log| changes(log) > 8) && logs.iter().any(|log| log[0] == 2), "{logs:?}");
    assert_eq!(log(Some(3)), log(Some(3)), "a seed is one order");
}

#[test]
fn they_may_wait_for_one_another_where_both_fit() {
    // Two launches alternate: each waits for the other's value.
    let play = |own: u32, other: u32| {
        format!(
            "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra done; mov.u32 %r2, {own};
again: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.ne.u32 %p2, %r3, %r2; @%p2 bra again;
 ld.global.u32 %r4, [%rd1+64]; add.u32 %r4, %r4, 1; st.global.u32 [%rd1+64], %r4;
 add.u32 %r5, %r2, {other}; st.release.gpu.global.u32 [%rd1], %r5; add.u32 %r2, %r2, 2; setp.lt.u32 %p2, %r2, 20; @%p2 bra again;
done:"
        )
    };
    let (ping, pong) = (image(1, &play(0, 1)), image(1, &play(1, 1)));
    for seed in std::iter::once(None).chain((0..40).map(Some)) {
        let mut device = Device::new();
        let words = device.zeros(128);
        let options = Options { seed, ..Options::default() };
        together(&mut device, &[(&ping, 1, &[words]), (&pong, 1, &[words])], &options).unwrap();
        assert_eq!(device.download::<u32>(words + 64, 1), [20]);
        let alone = Options { resident_blocks: 1, max_idle_instructions: 100_000, ..options };
        let mut device = Device::new();
        let words = device.zeros(128);
        let (_, fault) = together(&mut device, &[(&ping, 1, &[words]), (&pong, 1, &[words])], &alone).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Deadlock, "they do not fit together: {fault}");
    }
}

#[test]
fn a_message_between_them_needs_a_release_and_an_acquire() {
    let write = |release: &str| {
        image(
            1,
            &format!(
                "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra done;
 st.relaxed.gpu.global.u32 [%rd1], 1; st.{release}.gpu.global.u32 [%rd1+64], 1; done:"
            ),
        )
    };
    let read = |acquire: &str| {
        image(
            2,
            &format!(
                "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra done;
 ld.{acquire}.gpu.global.u32 %r2, [%rd1+64]; ld.relaxed.gpu.global.u32 %r3, [%rd1]; st.global.v2.u32 [%rd2], {{%r2, %r3}}; done:"
            ),
        )
    };
    let outcomes = |write: &Image, read: &Image| -> BTreeSet<Vec<u32>> {
        let outcome = |seed| {
            let mut device = Device::new();
            let (words, seen) = (device.zeros(128), device.zeros(8));
            together(&mut device, &[(write, 1, &[words]), (read, 1, &[words, seen])], &seeded(seed)).unwrap();
            device.download(seen, 2)
        };
        (0..300).map(outcome).collect()
    };
    assert!(outcomes(&write("relaxed"), &read("relaxed")).contains([1, 0].as_slice()));
    let ordered = outcomes(&write("release"), &read("acquire"));
    assert_eq!(ordered, BTreeSet::from([vec![0, 0], vec![0, 1], vec![1, 1]]));
}

#[test]
fn plain_touches_are_compared_within_a_launch_alone() {
    let one = image(
        1,
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd1], 1;",
    );
    let all = image(
        1,
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0; @%p1 st.global.u32 [%rd1], %r1;",
    );
    for seed in 0..20 {
        let mut device = Device::new();
        let word = device.zeros(8);
        assert!(together(&mut device, &[(&one, 1, &[word]), (&one, 1, &[word])], &seeded(seed)).is_ok());
        let (index, fault) =
            together(&mut device, &[(&one, 1, &[word + 4]), (&all, 2, &[word])], &seeded(seed)).unwrap_err();
        assert_eq!((index, fault.kind), (1, FaultKind::GlobalRace), "{fault}");
        assert!(fault.message.contains("block (0, 0, 0)") || fault.message.contains("block (1, 0, 0)"), "{fault}");
    }
}

#[test]
fn each_has_its_own_shape_parameters_shared_memory_and_report() {
    // Writes its number in the grid through shared memory; the second launch has another shape.
    let body = "ld.param.u64 %rd1, [p0]; .shared .align 4 .b8 s[128]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2; mov.u32 %r4, s; add.u32 %r3, %r3, %r4;
 mad.lo.u32 %r5, %r1, 32, %r2; st.shared.u32 [%r3], %r5; bar.sync 0; ld.shared.u32 %r6, [%r3]; mul.wide.u32 %rd2, %r5, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r6;";
    let (first, second) =
        (image(1, body), image(1, &format!("{body} mov.u32 %r7, %nctaid.x; st.global.u32 [%rd2], %r7;")));
    let alone = |image: &Image, blocks: u32| {
        let mut device = Device::new();
        let out = device.zeros(u64::from(blocks) * 128);
        expect_ok(device.launch(image, blocks, 32, &[Arg::U64(out)], &seeded(1))).warp_instructions
    };
    for seed in 0..20 {
        let mut device = Device::new();
        let (a, b) = (device.zeros(3 * 128), device.zeros(200 * 128));
        let reports = together(&mut device, &[(&first, 3, &[a]), (&second, 200, &[b])], &seeded(seed)).unwrap();
        assert_eq!(device.download::<u32>(a, 96), (0..96).collect::<Vec<_>>());
        assert_eq!(device.download::<u32>(b, 6400), [200; 6400]);
        let touched =
            reports.iter().map(|report| report.footprints.iter().map(|f| (f.base, f.writes.len())).collect::<Vec<_>>());
        assert_eq!(touched.collect::<Vec<_>>(), [[(a, 12)], [(b, 800)]]);
        let counts = reports.iter().map(|report| report.warp_instructions);
        assert_eq!(counts.collect::<Vec<_>>(), [alone(&first, 3), alone(&second, 200)]);
    }
}

#[test]
fn a_launch_that_cannot_be_is_named() {
    let image = image(1, "ld.param.u64 %rd1, [p0];");
    let mut device = Device::new();
    let (index, fault) = together(&mut device, &[(&image, 1, &[0]), (&image, 0, &[0])], &seeded(1)).unwrap_err();
    assert_eq!((index, fault.kind), (1, FaultKind::InvalidLaunch));
    assert_eq!(together(&mut device, &[], &seeded(1)), Ok(Vec::new()));
}
