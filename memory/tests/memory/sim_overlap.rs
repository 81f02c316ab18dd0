//! Unordered launches overlap, depending on the seed; a device runs at most as many blocks at once as fit on it.

use super::sim_launch::{ALL, KERNELS};
use super::sim_rig::{Rig, declare};
use millpond_memory::driver::sim::SimOptions;
use millpond_memory::driver::*;
use std::collections::BTreeSet;

const SEEDS: u64 = 40;
const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

/// One thread takes five tickets, and writes `name` at each ticket's position.
const TICKETS: &str = "
.visible .entry tickets(.param .u64 counter, .param .u64 log, .param .u64 name)
{
    .reg .pred %p; .reg .u32 %r<4>; .reg .u64 %rd<6>;
    ld.param.u64 %rd1, [counter]; ld.param.u64 %rd2, [log]; ld.param.u64 %rd3, [name];
    cvt.u32.u64 %r1, %rd3; mov.u32 %r2, 0;
AGAIN:
    atom.global.add.u32 %r3, [%rd1], 1;
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd5, %rd2, %rd4;
    st.relaxed.gpu.global.u32 [%rd5], %r1;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p, %r2, 5;
    @%p bra AGAIN;
    ret;
}

// all blocks wait for the last
.visible .entry wait_for_last(.param .u64 flag)
{
    .reg .pred %p; .reg .u32 %r<4>; .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [flag];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r2, %r2, 1;
    setp.eq.u32 %p, %r1, %r2;
    @%p st.release.gpu.global.u32 [%rd1], 1;
WAIT:
    ld.acquire.gpu.global.u32 %r3, [%rd1];
    setp.eq.u32 %p, %r3, 0;
    @%p bra WAIT;
    ret;
}
";

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// The tickets of launches 1, 2, … on separate streams, in order; `ordered` inserts events between the launches.
fn log(rig: &Rig, launches: u64, ordered: bool) -> Vec<u32> {
    let kernel = rig.kernel(&format!("{HEADER}{TICKETS}"), "tickets");
    let home = rig.stream();
    let (counter, log) = (rig.alloc(64, home), rig.alloc(256, home));
    rig.fill(counter, 0, 64, home);
    rig.fill(log, 0, 256, home);
    let mut before = home;
    let streams: Vec<_> = (1..=launches).map(|name| (name, rig.stream())).collect();
    for &(name, stream) in &streams {
        rig.order(home, stream);
        if ordered {
            rig.order(before, stream);
        }
        let accesses = [declare(counter, 4, Access::Atomic), declare(log, 256, Access::Atomic)];
        rig.launch(kernel, (1, 1), &[counter.0, log.0, name], &accesses, stream);
        before = stream;
    }
    for &(_, stream) in &streams {
        rig.order(stream, home);
    }
    let log = words(&rig.fetch(log, 20 * launches as usize, home));
    rig.assert_silent();
    log
}

/// Number of changes from one launch to another in the log.
fn changes(log: &[u32]) -> usize {
    log.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn launches_that_nothing_orders_overlap_under_some_seeds() {
    let logs: BTreeSet<Vec<u32>> = (0..SEEDS).map(|seed| log(&Rig::new(seed), 2, false)).collect();
    assert!(logs.iter().any(|log| changes(log) > 4), "{logs:?}");
    assert!(logs.contains([[1; 5], [2; 5]].concat().as_slice()), "and under some they do not: {logs:?}");
    assert!(logs.contains([[2; 5], [1; 5]].concat().as_slice()), "{logs:?}");
    let logs: Vec<Vec<u32>> = (0..SEEDS).map(|seed| log(&Rig::new(seed), 4, false)).collect();
    let first_half = |log: &Vec<u32>| log[..10].iter().collect::<BTreeSet<_>>().len();
    assert!(logs.iter().any(|log| first_half(log) == 4), "all four at once: {logs:?}");
}

#[test]
fn launches_that_an_event_orders_never_overlap() {
    for seed in 0..SEEDS {
        assert_eq!(log(&Rig::new(seed), 3, true), [[1; 5], [2; 5], [3; 5]].concat(), "seed {seed}");
    }
}

#[test]
fn without_shuffling_launches_run_one_by_one() {
    for seed in 0..SEEDS {
        let rig = Rig::with(SimOptions { seed, shuffle_blocks: false, ..SimOptions::default() });
        assert_eq!(changes(&log(&rig, 2, false)), 1, "seed {seed}");
    }
}

#[test]
fn what_the_host_reads_is_kept_from_launches_that_run_one_by_one() {
    for seed in 0..SEEDS {
        let rig = Rig::new(seed);
        rig.driver.keep_downloads();
        assert_eq!(changes(&log(&rig, 2, false)), 1, "seed {seed}");
    }
}

#[test]
fn a_seed_replays_an_overlap() {
    for seed in 0..SEEDS {
        let run = || {
            let rig = Rig::new(seed);
            (log(&rig, 4, false), rig.driver.counters())
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn an_update_that_another_launch_may_lose_is_a_finding() {
    for seed in 0..SEEDS {
        let rig = Rig::new(seed);
        let add_one = rig.kernel(KERNELS, "add_one");
        let (home, s, t) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(4096, home);
        rig.fill(a, 0, 4096, home);
        for stream in [s, t] {
            rig.order(home, stream);
            rig.launch(add_one, ALL, &[a.0, a.0, 0, 1024], &[declare(a, 4096, Access::Write)], stream);
        }
        rig.driver.stream_synchronize(s).unwrap();
        rig.driver.stream_synchronize(t).unwrap();
        let findings = rig.driver.take_findings();
        assert!(!findings.is_empty(), "seed {seed}");
        for finding in findings {
            assert_eq!(finding.kind, FindingKind::UnorderedAccess, "{finding}");
            assert_eq!((finding.stream, finding.earlier_stream), (Some(t), Some(s)), "{finding}");
            assert_eq!(finding.kernel.as_deref(), Some("add_one"));
        }
    }
}

#[test]
fn a_launch_that_faults_is_named_whoever_ran_beside_it() {
    for seed in 0..SEEDS {
        let rig = Rig::new(seed);
        let (count, fail) = (rig.kernel(KERNELS, "count"), rig.kernel(KERNELS, "fail"));
        let (home, s, t) = (rig.stream(), rig.stream(), rig.stream());
        let a = rig.alloc(64, home);
        rig.fill(a, 0, 64, home);
        rig.order(home, s);
        rig.order(home, t);
        rig.launch(count, ALL, &[a.0], &[declare(a, 4, Access::Atomic)], s);
        rig.launch(fail, (1, 1), &[], &[], t);
        assert!(rig.driver.stream_synchronize(t).is_err());
        assert!(rig.driver.stream_synchronize(s).is_err(), "the device is lost to both");
        let finding = rig.only_finding(FindingKind::Fault);
        assert_eq!((finding.kernel.as_deref(), finding.stream), (Some("fail"), Some(t)), "{finding}");
    }
}

#[test]
fn counts_are_the_same_whether_launches_overlap_or_not() {
    let counted = |seed| {
        let rig = Rig::new(seed);
        log(&rig, 2, false);
        let both = rig.driver.counters();
        (both.launches, both.warp_instructions)
    };
    assert_eq!((0..SEEDS).map(counted).collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn more_blocks_than_the_device_holds_cannot_wait_for_the_last() {
    for seed in 0..4 {
        let run = |blocks: u32, shuffle_blocks: bool| {
            let rig = Rig::with(SimOptions { seed, multiprocessors: 2, shuffle_blocks, ..SimOptions::default() });
            let kernel = rig.kernel(&format!("{HEADER}{TICKETS}"), "wait_for_last");
            let home = rig.stream();
            let flag = rig.alloc(64, home);
            rig.fill(flag, 0, 64, home);
            // Two multiprocessors hold 32 one-thread blocks each.
            rig.launch(kernel, (blocks, 1), &[flag.0], &[declare(flag, 4, Access::Atomic)], home);
            let ended = rig.driver.stream_synchronize(home).map_err(|error| error.code);
            let findings = rig.driver.take_findings();
            assert_eq!(ended.is_ok(), findings.is_empty(), "{findings:#?}");
            (ended, findings.into_iter().map(|finding| finding.message).collect::<String>())
        };
        for shuffle in [false, true] {
            assert_eq!(run(64, shuffle).0, Ok(()));
        }
        let (ended, message) = run(200, seed % 2 == 0);
        assert_eq!(ended, Err(DriverCode::LAUNCH_TIMEOUT));
        assert!(message.contains("136 blocks for one of the 64 that run to end"), "{message}");
    }
}
