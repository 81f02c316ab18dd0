//! Replays: a log's actions are repeated in order, with any strategy.

use std::sync::Arc;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::log::{Action, COLUMNS, LogFile};
use millpond_memory::replay::{Footprint, MOST_STREAMS, Player, ReplayReport};
use millpond_memory::{ByteSize, Device, DeviceBuffer, FindingKind, MemoryLog, MemoryPool, Strategy, Stream};

use crate::log::Shared;

fn device(options: SimOptions) -> (Arc<SimDriver>, Device) {
    let sim = SimDriver::new(options);
    (sim.clone(), Device::open(sim, 0).unwrap())
}

/// Plays `log`; returns the report and the findings of the simulated device.
fn play(log: &LogFile, strategy: Strategy, options: SimOptions) -> (ReplayReport, Vec<FindingKind>) {
    let (sim, device) = device(options);
    let resource = strategy.create(&device).unwrap();
    let report = Player::new(&device).play(log, &resource).unwrap();
    assert_eq!(resource.statistics().unwrap().used, ByteSize::ZERO, "{strategy} still lends");
    drop(resource);
    assert_eq!(device.take_errors().len(), 0);
    (report, sim.take_findings().iter().map(|finding| finding.kind).collect())
}

/// The log of a program that hands buffers from stream to stream.
fn program() -> LogFile {
    let (sim, device) = device(SimOptions::default());
    let out = Shared::default();
    let log = MemoryLog::new(out.clone()).unwrap();
    let pool = MemoryPool::builder(&device).log(Arc::clone(&log)).build().unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&device).unwrap()).collect();
    for round in 0..6 {
        let (first, second) = (&streams[round % 3], &streams[(round + 1) % 3]);
        let made = DeviceBuffer::zeroed(4096 << round, first, &pool).unwrap();
        let copy = DeviceBuffer::new(4096 << round, second, &pool).unwrap();
        made.copy_to(&copy, second).unwrap();
        made.fill(1, first).unwrap();
        drop(copy.share(first).unwrap());
        if round == 3 {
            second.synchronize().unwrap();
            pool.trim_to(ByteSize::ZERO).unwrap();
        }
    }
    log.flush().unwrap();
    assert_eq!(sim.take_findings(), []);
    LogFile::read(out.text().as_bytes()).unwrap()
}

#[test]
fn every_strategy_plays_a_log_in_order() {
    let log = program();
    let count = |action| log.records.iter().filter(|record| record.action == action).count() as u64;
    for strategy in Strategy::ALL {
        for seed in 0..4 {
            let (report, findings) = play(&log, strategy, SimOptions { seed, ..SimOptions::default() });
            assert_eq!(findings, [], "{strategy}, seed {seed}");
            assert_eq!((report.allocations, report.frees, report.streams), (12, 12, 3), "{strategy}");
            assert_eq!((report.failures, report.retries, report.skipped, report.left_allocations), (0, 0, 0, 0));
            let uses = count(Action::UseRead) + count(Action::UseWrite) + count(Action::UseShare);
            assert_eq!((report.uses, report.waits), (uses, count(Action::Wait)), "{strategy}");
            assert_eq!((report.syncs, report.trims), (count(Action::Sync), count(Action::Trim)), "{strategy}");
            // Two buffers of the last round are the maximum live at once.
            assert_eq!(report.asked_peak, ByteSize(2 * (4096 << 5)), "{strategy}");
            assert!(report.peak.reserved >= report.asked_peak.max(report.peak.used), "{strategy}: {report:?}");
        }
    }
}

#[test]
fn counts_depend_on_the_log_and_the_seed_alone() {
    let log = program();
    for strategy in Strategy::ALL {
        let seeded = |seed| play(&log, strategy, SimOptions { seed, ..SimOptions::default() }).0;
        assert_eq!(seeded(5), seeded(5), "{strategy}");
    }
}

/// The purpose of keeping waits: a log without one reproduces a race.
#[test]
fn a_wait_that_is_missing_is_found() {
    let log = program();
    let waits: Vec<usize> = (0..log.records.len()).filter(|&at| log.records[at].action == Action::Wait).collect();
    assert!(waits.len() > 5);
    let without = |missing: &dyn Fn(usize) -> bool| {
        let mut cut = log.clone();
        let mut at = 0;
        cut.records.retain(|_| {
            at += 1;
            !missing(at - 1)
        });
        play(&cut, Strategy::Cuda, SimOptions::default()).1
    };
    assert_eq!(without(&|_| false), []);
    assert!(!without(&|at| waits.contains(&at)).is_empty(), "no wait at all");
    let found = waits.iter().filter(|&&wait| !without(&|at| at == wait).is_empty()).count();
    assert!(found * 2 > waits.len(), "{found} of {} missing waits are found", waits.len());
}

fn rmm(lines: &[&str]) -> LogFile {
    let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{}\n", lines.join("\n"));
    LogFile::read(text.as_bytes()).unwrap()
}

#[test]
fn a_log_without_order_is_given_one() {
    let log = rmm(&[
        "1,00:00:00.0,allocate,0x100,1000,0x1",
        "1,00:00:00.0,allocate,0x900,2000,0x2",
        "1,00:00:00.0,free,0x100,1000,0x2",
        "1,00:00:00.0,allocate,0x100,500,0x2",
        "1,00:00:00.0,free,0x900,2000,0x1",
        "1,00:00:00.0,free,0x777,1,0x1",
        "1,00:00:00.0,allocate,0x0,0,0x1",
        "1,00:00:00.0,allocate failure,(nil),99,0x1",
    ]);
    for strategy in Strategy::ALL {
        let (report, findings) = play(&log, strategy, SimOptions::default());
        assert_eq!(findings, [], "{strategy}");
        assert_eq!((report.allocations, report.frees, report.streams), (3, 2, 2));
        // A free of an unknown allocation, and an allocation of no bytes.
        assert_eq!((report.skipped, report.told), (2, 1));
        assert_eq!((report.left_allocations, report.left_bytes), (1, ByteSize(500)));
        assert_eq!(report.asked_peak, ByteSize(3000));
    }
}

#[test]
fn memory_that_is_short_is_counted_and_the_rest_goes_on() {
    let log = rmm(&[
        "1,00:00:00.0,allocate,0x1,8388608,0x1",
        "1,00:00:00.0,allocate,0x2,33554432,0x1",
        "1,00:00:00.0,free,0x2,33554432,0x1",
        "1,00:00:00.0,free,0x1,8388608,0x1",
        "1,00:00:00.0,allocate,0x3,8388608,0x1",
        "1,00:00:00.0,free,0x3,8388608,0x1",
    ]);
    for strategy in [Strategy::Cuda, Strategy::CudaAsync, Strategy::CudaAsyncDefault, Strategy::Caching] {
        let (report, findings) = play(&log, strategy, SimOptions { memory_bytes: 32 << 20, ..SimOptions::default() });
        assert_eq!(findings, [], "{strategy}");
        assert_eq!((report.allocations, report.failures, report.frees, report.skipped), (2, 1, 2, 1), "{strategy}");
    }
}

/// A log may use any number of streams: the driver creates at most a few hundred.
#[test]
fn streams_of_a_log_share_those_of_the_device() {
    const STREAMS: usize = 100_000;
    let lines: Vec<String> = (1..=STREAMS)
        .flat_map(|i| {
            let line = |action: &str| format!("1,00:00:00.0,{action},{:#x},256,{i:#x}", i * 4096);
            [line("allocate"), line("free")]
        })
        .collect();
    let log = rmm(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let (sim, device) = device(SimOptions::default());
    let resource = Strategy::Caching.create(&device).unwrap();
    let report = Player::new(&device).play(&log, &resource).unwrap();
    assert_eq!((report.streams, report.device_streams), (STREAMS as u64, MOST_STREAMS as u64));
    assert_eq!((report.allocations, report.frees), (STREAMS as u64, STREAMS as u64));
    let next = Stream::new(&device).unwrap();
    assert_eq!(next.id().to_string(), format!("stream {MOST_STREAMS}"), "the device counts them");
    drop((resource, next));
    assert_eq!(sim.take_findings(), []);
}

/// Streams that share one have more order than the log, never less: correct logs stay correct.
#[test]
fn a_log_of_more_streams_than_there_are_keeps_its_order() {
    let header = COLUMNS.join(",");
    let column = |name: &str| COLUMNS.iter().position(|column| *column == name).unwrap();
    let line = |seq: usize, values: &[(&str, String)]| {
        let mut fields = vec!["0".to_string(); COLUMNS.len()];
        fields[column("Time")] = "00:00:00.0".into();
        fields[column("After")] = String::new();
        fields[column("Tag")] = String::new();
        fields[column("Seq")] = seq.to_string();
        for (name, value) in values {
            fields[column(name)].clone_from(value);
        }
        fields.join(",")
    };
    // A buffer handed from stream to stream: each stream waits for the previous one, and writes it.
    let mut lines = vec![header];
    let on = |action: &str, stream: usize, position: usize| {
        [("Action", action.to_string()), ("Stream", stream.to_string()), ("Position", position.to_string())]
    };
    let of = [("Pointer", "0x1000".to_string()), ("Size", "4096".to_string()), ("AllocId", "1".to_string())];
    let mut push = |parts: &[&[(&str, String)]]| {
        let seq = lines.len();
        lines.push(line(seq, &parts.concat()));
    };
    push(&[&on("allocate", 1, 1), &of]);
    push(&[&on("use_write", 1, 2), &of]);
    for stream in 2..=600 {
        let after = [("After", format!("{:#x}:{}", stream - 1, 2))];
        push(&[&on("wait", stream, 1), &after]);
        push(&[&on("use_write", stream, 2), &of]);
    }
    push(&[&on("free", 600, 3), &of]);
    let log = LogFile::read(lines.join("\n").as_bytes()).unwrap();
    assert!(log.ordered);
    for seed in 0..3 {
        let (report, findings) = play(&log, Strategy::CudaAsync, SimOptions { seed, ..SimOptions::default() });
        assert_eq!(findings, [], "seed {seed}");
        assert_eq!((report.streams, report.device_streams, report.uses), (600, MOST_STREAMS as u64, 600));
    }
}

#[test]
fn a_lost_device_ends_a_replay_with_an_error() {
    let (sim, device) = device(SimOptions::default());
    let resource = Strategy::Caching.create(&device).unwrap();
    let mut player = Player::new(&device);
    player.prepare(&program()).unwrap();
    sim.lose_device(device.id());
    assert!(player.play(&program(), &resource).unwrap_err().is_device_lost());
    drop((player, resource));
}

#[test]
fn an_empty_log_plays() {
    let log = LogFile::read(COLUMNS.join(",").as_bytes()).unwrap();
    let (report, findings) = play(&log, Strategy::Arena, SimOptions::default());
    assert_eq!((report, findings), (ReplayReport::default(), vec![]));
}

#[test]
fn fragmentation_is_what_nothing_uses_at_the_peak() {
    let mib = ByteSize::mib;
    assert_eq!(Footprint::default().fragmentation(), None);
    assert_eq!(Footprint { reserved: mib(8), used: mib(6) }.fragmentation(), Some(0.25));
    // A driver may count frees it has not reached as used.
    assert_eq!(Footprint { reserved: mib(8), used: mib(9) }.fragmentation(), Some(0.0));
    let (_sim, device) = device(SimOptions::default());
    let stream = Stream::new(&device).unwrap();
    let resource = Strategy::Caching.create(&device).unwrap();
    let site = std::panic::Location::caller();
    let raw = resource.allocate(std::num::NonZeroUsize::new(1 << 19).unwrap(), &stream, site).unwrap();
    let mut peak = Footprint::default();
    peak.note(&*resource).unwrap();
    // Half a MiB of a small segment of 2 MiB.
    assert_eq!((peak.used, peak.reserved, peak.fragmentation()), (ByteSize(1 << 19), mib(2), Some(0.75)));
    resource.deallocate(raw, &stream, site).unwrap();
}
