//! Groups of buffers that are spilled to host memory and restored unchanged.

use crate::pending::block_on;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use millpond_memory::driver::Driver;
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::governor::Shortage;
use millpond_memory::ids::Refusal;
use millpond_memory::spill::{SpillState, Spilled};
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceView, MemoryError, MemoryGovernor, MemoryPool, MemorySpace, PinnedPool,
    Request, Result, SpillHandle, SpillOptions, Spillable, Spiller, Strategy, Stream,
};

const KIB: usize = 1 << 10;

struct World {
    driver: Arc<SimDriver>,
    device: Device,
    pool: MemoryPool,
    pinned: PinnedPool,
    stream: Stream,
    spiller: Spiller,
}

const SMALL: SpillOptions = SpillOptions {
    page: ByteSize::kib(4),
    pinned_reserve: ByteSize::kib(16),
    pinned_limit: ByteSize::mib(1),
    host_limit: ByteSize::mib(1),
};

fn world(seed: u64, limit: ByteSize, options: SpillOptions) -> World {
    let driver = SimDriver::new(SimOptions { seed, memory_bytes: 64 << 20, ..SimOptions::default() });
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).limit(limit).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let stream = Stream::new(&device).unwrap();
    let spiller = Spiller::new(&pool, options).unwrap();
    World { driver, device, pool, pinned, stream, spiller }
}

/// Drops everything, and checks for findings, including leaks.
fn close(world: World) {
    let World { driver, device, pool, pinned, stream, spiller } = world;
    device.synchronize().unwrap();
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
    assert!(device.take_errors().is_empty());
    let (pinned_bytes, host_bytes) = {
        // The poller returns the last pages.
        while spiller.statistics().pinned_bytes > ByteSize::ZERO {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let statistics = spiller.statistics();
        (statistics.pinned_bytes, statistics.host_bytes)
    };
    assert_eq!((pinned_bytes, host_bytes), (ByteSize::ZERO, ByteSize::ZERO));
    drop((spiller, pool, pinned, stream, device));
    driver.settle().unwrap();
    let findings: Vec<String> = driver.take_findings().iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(101)) as u8).collect()
}

impl World {
    fn view(&self, content: &[u8]) -> DeviceView {
        self.view_on(content, &self.stream)
    }

    fn view_on(&self, content: &[u8], stream: &Stream) -> DeviceView {
        let buffer = DeviceBuffer::upload(content, stream, &self.pool, &self.pinned).unwrap();
        buffer.view(0..content.len()).unwrap()
    }

    /// A group of one buffer.
    fn group(&self, seed: usize, len: usize, priority: i32) -> SpillHandle {
        self.spiller.register(vec![self.view(&bytes(seed, len))], priority).unwrap()
    }

    fn read(&self, view: &DeviceView) -> Vec<u8> {
        view.download_vec(&self.stream, &self.pinned).unwrap().wait().unwrap()
    }

    fn assert_holds(&self, handle: &SpillHandle, contents: &[Vec<u8>]) {
        let resident = handle.get(&self.stream).unwrap();
        assert_eq!(resident.len(), contents.len());
        for (view, content) in resident.iter().zip(contents) {
            assert_eq!(&self.read(view), content);
        }
    }
}

/// Bytes of a spilled view are read in host memory, from any offset.
#[test]
fn bytes_that_are_away_are_read_where_they_are() {
    for options in [SMALL, SpillOptions { pinned_limit: ByteSize::kib(16), pinned_reserve: ByteSize::kib(8), ..SMALL }]
    {
        let w = world(7, ByteSize::mib(1), options);
        let contents = [bytes(1, 9_000), bytes(2, 300), bytes(3, 40_960)];
        // Two views of one buffer overlap.
        let mut views: Vec<DeviceView> = contents.iter().map(|content| w.view(content)).collect();
        views.push(views[0].view(700..6_000).unwrap());
        let contents = [&contents[0][..], &contents[1], &contents[2], &contents[0][700..6_000]];
        let handle = w.spiller.register(views, 0).unwrap();
        let mut read = vec![0; 300];
        assert!(!handle.read_spilled(1, 0, &mut read).unwrap(), "it is on the device");
        assert!(handle.spill().unwrap() > ByteSize::ZERO);
        w.spiller.settle().unwrap();
        for (view, content) in contents.iter().enumerate() {
            for from in [0, 1, 299, content.len() / 2, content.len() - 1, content.len()] {
                let mut read = vec![0; content.len().saturating_sub(from)];
                if from <= content.len() {
                    assert!(handle.read_spilled(view, from, &mut read).unwrap());
                    assert_eq!(read, content[from.min(content.len())..], "view {view} from {from}");
                }
            }
        }
        assert!(matches!(handle.read_spilled(4, 0, &mut read), Err(MemoryError::Range { .. })));
        assert!(matches!(handle.read_spilled(1, 1, &mut read), Err(MemoryError::Range { .. })), "one byte too many");
        assert_eq!((handle.state(), w.spiller.statistics().restores), (SpillState::Spilled, 0));
        w.assert_holds(&handle, &contents.map(<[u8]>::to_vec));
        drop(handle);
        close(w);
    }
}

#[test]
fn bytes_leave_the_device_and_return_as_they_were() {
    let w = world(1, ByteSize::mib(1), SMALL);
    let contents = [bytes(1, 9_000), bytes(2, 300), bytes(3, 4_096)];
    let views: Vec<DeviceView> = contents.iter().map(|content| w.view(content)).collect();
    let before = w.pool.used_bytes();
    let handle = w.spiller.register(views, 0).unwrap();
    assert_eq!((handle.state(), handle.bytes(), before), (SpillState::Resident, before, ByteSize(9_216 + 512 + 4_096)));
    assert_eq!(w.spiller.statistics().spillable_bytes, before);

    assert_eq!(handle.spill().unwrap(), before);
    assert_eq!((handle.state(), w.pool.used_bytes()), (SpillState::Spilled, ByteSize::ZERO));
    assert_eq!(w.pool.pending_free_bytes(), before, "not free before the device has come to it");
    w.spiller.settle().unwrap();
    assert_eq!(w.pool.pending_free_bytes(), ByteSize::ZERO);
    let away = w.spiller.statistics();
    assert_eq!((away.spills, away.spilled_bytes, away.restores), (1, before.as_u64(), 0));
    assert_eq!(away.pinned_bytes, ByteSize(4 * 4096), "13,396 bytes in whole pages");
    assert_eq!((away.host_bytes, away.spillable_bytes), (ByteSize::ZERO, ByteSize::ZERO));
    assert_eq!(handle.spill().unwrap(), ByteSize::ZERO, "it is away already");

    w.assert_holds(&handle, &contents);
    assert_eq!((handle.state(), w.pool.used_bytes()), (SpillState::Resident, before));
    let back = w.spiller.statistics();
    assert_eq!((back.restores, back.restored_bytes, back.groups), (1, before.as_u64(), 1));
    let counters = w.device.counters();
    assert_eq!((counters.spilled_bytes, counters.restored_bytes), (before.as_u64(), before.as_u64()));
    drop(handle);
    assert_eq!(w.spiller.statistics().groups, 0);
    close(w);
}

#[test]
fn the_host_waits_for_nothing_while_there_are_pages() {
    let w = world(2, ByteSize::mib(1), SMALL);
    let handle = w.group(1, 10_000, 0);
    let before = w.driver.counters().host_waits;
    handle.spill().unwrap();
    let resident = handle.get(&w.stream).unwrap();
    assert_eq!(w.driver.counters().host_waits, before);
    assert_eq!(w.read(&resident[0]), bytes(1, 10_000));
    drop((resident, handle));
    close(w);
}

#[test]
fn views_of_one_buffer_leave_together_and_gaps_stay_behind() {
    let w = world(3, ByteSize::mib(1), SMALL);
    let buffer = DeviceBuffer::new(64 * KIB, &w.stream, &w.pool).unwrap();
    // Only these bytes are written; a read of the others would be a finding.
    let parts = [(1_000, 500), (1_200, 800), (40_000, 300)];
    for (start, len) in parts {
        buffer.view(start..start + len).unwrap().upload_from(&bytes(7, len), &w.stream, &w.pinned).unwrap();
    }
    let mut views: Vec<_> = parts.iter().map(|(start, len)| buffer.view(*start..start + len).unwrap()).collect();
    views.push(buffer.view(5..5).unwrap());
    let expected: Vec<_> = views.iter().map(|view| w.read(view)).collect();
    drop(buffer);
    let handle = w.spiller.register(views, 0).unwrap();
    assert_eq!(handle.spill().unwrap(), ByteSize::kib(64));
    assert_eq!(
        handle.bytes(),
        ByteSize((40_300 - 768_usize).next_multiple_of(256) as u64),
        "from 768 to the last byte"
    );
    w.assert_holds(&handle, &expected);
    let resident = handle.get(&w.stream).unwrap();
    assert!(resident[0].same_buffer(&resident[2]) && resident[0].address().0.is_multiple_of(4));
    drop((resident, handle));
    close(w);
}

#[test]
fn what_is_in_use_or_shared_stays() {
    let w = world(4, ByteSize::mib(1), SMALL);
    let shared = w.view(&bytes(1, 5_000));
    let handle = w.spiller.register(vec![shared.clone()], 0).unwrap();
    assert_eq!(handle.spill().unwrap(), ByteSize::ZERO, "somebody else has a view");
    drop(shared);
    let (first, second) = (handle.get(&w.stream).unwrap(), handle.get(&w.stream).unwrap());
    assert_eq!((handle.spill().unwrap(), w.spiller.statistics().spillable_bytes), (ByteSize::ZERO, ByteSize::ZERO));
    drop(first);
    assert_eq!(handle.spill().unwrap(), ByteSize::ZERO, "held once more");
    drop(second);
    assert_eq!(handle.spill().unwrap(), ByteSize(5_120));
    let (views, reservation) = handle.into_parts(&w.stream).unwrap();
    assert!(reservation.is_none());
    assert_eq!((w.read(&views[0]), w.spiller.statistics().groups), (bytes(1, 5_000), 0));
    drop(views);
    close(w);
}

#[test]
fn running_out_of_memory_spills_the_least_recently_used_of_the_lowest_priority() {
    let w = world(5, ByteSize::kib(64), SMALL);
    let dear = w.group(0, 16 * KIB, 5);
    let groups: Vec<_> = (1..4).map(|seed| w.group(seed, 16 * KIB, 0)).collect();
    // Used again: now the second of them is the oldest.
    drop(groups[0].get(&w.stream).unwrap());
    let one = DeviceBuffer::zeroed(16 * KIB, &w.stream, &w.pool).unwrap();
    let states = |groups: &[SpillHandle]| groups.iter().map(SpillHandle::state).collect::<Vec<_>>();
    use SpillState::{Resident, Spilled};
    assert_eq!(states(&groups), [Resident, Spilled, Resident]);
    let two = DeviceBuffer::zeroed(32 * KIB, &w.stream, &w.pool).unwrap();
    assert_eq!((states(&groups), dear.state()), (vec![Spilled; 3], Resident));
    let pressure = w.pool.pressure_statistics();
    assert_eq!((pressure.num_callbacks, pressure.num_ooms, pressure.num_empty_promises), (2, 0, 0));
    assert!(pressure.num_free_waits >= 2, "a spilled buffer is free when its free is reached: {pressure:?}");
    drop((one, two));
    for (seed, group) in groups.iter().enumerate() {
        w.assert_holds(group, &[bytes(seed + 1, 16 * KIB)]);
    }
    w.assert_holds(&dear, &[bytes(0, 16 * KIB)]);
    drop((groups, dear));
    close(w);
}

#[test]
fn what_the_failing_operator_holds_is_not_spilled_under_its_hands() {
    let w = world(6, ByteSize::kib(64), SMALL);
    let mine = w.group(1, 32 * KIB, 0);
    let other = w.group(2, 16 * KIB, 9);
    let held = mine.get(&w.stream).unwrap();
    let error = DeviceBuffer::new(48 * KIB, &w.stream, &w.pool).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!((mine.state(), other.state()), (SpillState::Resident, SpillState::Spilled));
    drop(held);
    drop(DeviceBuffer::zeroed(48 * KIB, &w.stream, &w.pool).unwrap());
    assert_eq!(mine.state(), SpillState::Spilled);
    drop((mine, other));
    close(w);
}

#[test]
fn when_pages_are_out_bytes_bounce_to_ordinary_memory_and_then_stay() {
    let options = SpillOptions {
        pinned_limit: ByteSize::kib(12),
        pinned_reserve: ByteSize::kib(12),
        host_limit: ByteSize::kib(40),
        ..SMALL
    };
    let w = world(7, ByteSize::mib(1), options);
    let groups: Vec<_> = (0..4).map(|seed| w.group(seed, 16 * KIB, 0)).collect();
    // Two of three pages are for groups, one is the bounce page: 8 + 8 KiB, then 16, then 16, then nothing.
    assert_eq!(groups[0].spill().unwrap(), ByteSize::kib(16));
    let first = w.spiller.statistics();
    assert_eq!((first.pinned_bytes, first.host_bytes), (ByteSize::kib(8), ByteSize::kib(8)));
    assert_eq!(groups[1].spill().unwrap(), ByteSize::kib(16));
    assert_eq!(groups[2].spill().unwrap(), ByteSize::kib(16));
    assert_eq!(groups[3].spill().unwrap(), ByteSize::ZERO, "nowhere to go");
    let full = w.spiller.statistics();
    assert_eq!(
        (full.pinned_bytes, full.host_bytes, full.bounced_bytes),
        (ByteSize::kib(8), ByteSize::kib(40), 40 << 10)
    );
    assert_eq!((full.no_host_memory, full.spills, groups[3].state()), (1, 3, SpillState::Resident));
    // A request for more than can be spilled spills as much as possible.
    assert_eq!(w.spiller.spill(ByteSize::mib(1)).unwrap(), Spilled::default());
    for (seed, group) in groups.iter().enumerate() {
        w.assert_holds(group, &[bytes(seed, 16 * KIB)]);
    }
    assert_eq!(w.spiller.statistics().host_bytes, ByteSize::ZERO);
    drop(groups);
    close(w);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let w = world(8, ByteSize::mib(1), SMALL);
    for (options, word) in [
        (SpillOptions { page: ByteSize(5000), ..SMALL }, "spill page cannot be 4.9 KiB: a power of two"),
        (SpillOptions { page: ByteSize(1024), ..SMALL }, "spill page cannot be 1 KiB"),
        (
            SpillOptions { pinned_limit: ByteSize::kib(8), ..SMALL },
            "limit of pinned spill memory cannot be 8 KiB: at least 16 KiB",
        ),
    ] {
        let error = Spiller::new(&w.pool, options).unwrap_err().to_string();
        assert!(error.starts_with(word), "{error}");
    }
    close(w);
}

#[test]
fn dropping_frees_everything_in_either_state() {
    let w = world(9, ByteSize::mib(1), SMALL);
    let (resident, away, held) = (w.group(1, 9_000, 0), w.group(2, 9_000, 0), w.group(3, 9_000, 0));
    away.spill().unwrap();
    drop(away);
    drop(resident);
    let guard = held.get(&w.stream).unwrap();
    drop(held);
    assert_eq!(w.read(&guard[0]), bytes(3, 9_000), "who holds it still has it");
    drop(guard);
    close(w);
}

#[test]
fn a_return_that_finds_no_memory_leaves_the_group_as_it_was() {
    let w = world(10, ByteSize::kib(64), SMALL);
    let contents = [bytes(1, 20 * KIB), bytes(2, 20 * KIB)];
    let handle = w.spiller.register(contents.iter().map(|content| w.view(content)).collect(), 0).unwrap();
    handle.spill().unwrap();
    let held = DeviceBuffer::zeroed(40 * KIB, &w.stream, &w.pool).unwrap();
    assert!(handle.get(&w.stream).unwrap_err().is_out_of_memory());
    assert_eq!((handle.state(), w.pool.used_bytes()), (SpillState::Spilled, ByteSize::kib(40)));
    drop(held);
    w.assert_holds(&handle, &contents);
    drop(handle);
    close(w);
}

#[test]
fn a_lost_device_is_an_error_and_everything_can_be_dropped() {
    let w = world(11, ByteSize::mib(1), SMALL);
    let (resident, away) = (w.group(1, 9_000, 0), w.group(2, 9_000, 0));
    away.spill().unwrap();
    w.driver.lose_device(w.device.id());
    assert!(w.stream.synchronize().is_err());
    assert!(resident.spill().unwrap_err().is_device_lost());
    assert!(away.get(&w.stream).unwrap_err().is_device_lost());
    assert!(resident.get(&w.stream).is_err() && w.spiller.spill(ByteSize::mib(1)).unwrap_err().is_device_lost());
    assert_eq!((resident.state(), away.state()), (SpillState::Lost, SpillState::Lost));
    drop((resident, away));
    assert_eq!(w.pool.used_bytes(), ByteSize::ZERO);
}

#[test]
fn a_device_that_is_lost_on_the_way_back_leaves_an_error_and_no_leak() {
    for bounced in [false, true] {
        let pinned_limit = if bounced { ByteSize::kib(16) } else { ByteSize::mib(1) };
        let w = world(16, ByteSize::mib(1), SpillOptions { pinned_limit, ..SMALL });
        let handle = w.group(1, 40 * KIB, 0);
        handle.spill().unwrap();
        w.spiller.settle().unwrap();
        let resident = handle.get(&w.stream).unwrap();
        w.driver.lose_device(w.device.id());
        assert!(resident[0].fill(0, &w.stream).unwrap_err().is_device_lost());
        drop(resident);
        assert!(handle.spill().is_err() && w.spiller.settle().is_ok());
        drop(handle);
        assert_eq!((w.pool.used_bytes(), w.spiller.statistics().groups), (ByteSize::ZERO, 0));
    }
}

/// Written on one stream, spilled, and read on another. Returns the number of stream waits and of findings.
fn there_and_back(ignore_wait: Option<u64>) -> (u64, usize) {
    let driver = SimDriver::new(SimOptions { ignore_wait, ..SimOptions::default() });
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let spiller = Spiller::new(&pool, SMALL).unwrap();
    let buffer = DeviceBuffer::zeroed(6_000, &a, &pool).unwrap();
    buffer.fill(7, &a).unwrap();
    let view = buffer.view(0..6_000).unwrap();
    drop(buffer);
    let handle = spiller.register(vec![view], 0).unwrap();
    handle.spill().unwrap();
    let resident = handle.get(&b).unwrap();
    let _ = resident[0].download_vec(&b, &pinned).unwrap().wait();
    drop((resident, handle));
    let _ = driver.settle();
    (driver.counters().stream_waits, driver.take_findings().len())
}

#[test]
fn every_wait_of_a_round_trip_is_needed() {
    let (waits, findings) = there_and_back(None);
    assert_eq!(findings, 0);
    assert!(waits >= 2, "the copies after the last use, the uploads after the copies: {waits}");
    for nth in 1..=waits {
        assert!(there_and_back(Some(nth)).1 > 0, "nobody missed wait {nth} of {waits}");
    }
}

/// Another spillable owner: a cache.
struct Cache {
    buffers: Mutex<Vec<DeviceBuffer>>,
    asked: AtomicU64,
    fails: bool,
}

impl Spillable for Cache {
    fn tag(&self) -> String {
        "cache".into()
    }

    fn spillable_bytes(&self) -> ByteSize {
        self.buffers.lock().unwrap().iter().map(DeviceBuffer::allocated_bytes).sum()
    }

    fn priority(&self) -> i32 {
        -1
    }

    fn spill(&self, wanted: ByteSize) -> Result<ByteSize> {
        self.asked.fetch_add(1, Relaxed);
        if self.fails {
            return Err(MemoryError::HostBusy("the cache is broken"));
        }
        let mut given = ByteSize::ZERO;
        while given < wanted
            && let Some(buffer) = self.buffers.lock().unwrap().pop()
        {
            given += buffer.allocated_bytes();
        }
        Ok(given)
    }
}

#[test]
fn caches_go_first_and_one_that_fails_does_not_keep_the_others() {
    let w = world(12, ByteSize::kib(64), SMALL);
    let buffers = (0..2).map(|_| DeviceBuffer::zeroed(16 * KIB, &w.stream, &w.pool).unwrap()).collect();
    let cache = Arc::new(Cache { buffers: Mutex::new(buffers), asked: 0.into(), fails: false });
    let broken = Arc::new(Cache { buffers: Mutex::default(), asked: 0.into(), fails: true });
    for cache in [&cache, &broken] {
        w.spiller.add(&(Arc::clone(cache) as Arc<dyn Spillable>));
    }
    let group = w.group(1, 32 * KIB, 0);
    let one = DeviceBuffer::zeroed(16 * KIB, &w.stream, &w.pool).unwrap();
    assert_eq!((cache.buffers.lock().unwrap().len(), group.state()), (1, SpillState::Resident));
    let two = DeviceBuffer::zeroed(32 * KIB, &w.stream, &w.pool).unwrap();
    assert_eq!((cache.buffers.lock().unwrap().len(), group.state()), (0, SpillState::Spilled));
    assert!(broken.asked.load(Relaxed) > 0);
    let asked = cache.asked.load(Relaxed);
    drop(cache);
    w.spiller.spill(ByteSize::mib(1)).unwrap();
    assert!(asked > 0);
    drop((one, two, group));
    close(w);
}

#[test]
fn a_governed_group_gives_its_promise_back_when_its_free_is_reached() {
    let w = world(13, ByteSize::mib(1), SMALL);
    let governor = MemoryGovernor::builder(ByteSize::kib(64)).host_capacity(ByteSize::kib(64)).build().unwrap();
    w.spiller.serve(&governor);
    let builder = governor.participant("build side", 0);
    let promise = builder.try_reserve(Request::device(ByteSize::kib(40)).spillable()).unwrap();
    let handle = w.spiller.register_reserved(vec![w.view(&bytes(1, 40 * KIB))], 0, promise).unwrap();
    // Refused without spilling: larger than the capacity.
    let sorter = governor.participant("sort", 0);
    let error = sorter.try_reserve(Request::device(ByteSize::kib(65))).unwrap_err();
    assert!(matches!(error, MemoryError::ReservationRefused { why: Refusal::TooLarge, .. }), "{error}");
    assert_eq!(handle.state(), SpillState::Resident);
    // Granted after spilling, once the bytes are free on the device.
    let sort = sorter.try_reserve(Request::device(ByteSize::kib(60))).unwrap();
    assert_eq!((handle.state(), w.pool.pending_free_bytes()), (SpillState::Spilled, ByteSize::ZERO));
    assert_eq!(governor.reserved(MemorySpace::Device), ByteSize::kib(60));
    assert_eq!(governor.reserved(MemorySpace::Host), ByteSize::kib(40), "what is away is the host's");
    let error = handle.get(&w.stream).unwrap_err();
    assert!(matches!(error, MemoryError::ReservationRefused { why: Refusal::NoRoom, .. }), "{error}");
    drop(sort);
    w.assert_holds(&handle, &[bytes(1, 40 * KIB)]);
    assert_eq!(governor.reserved(MemorySpace::Device), ByteSize::kib(40));
    assert_eq!(governor.reserved(MemorySpace::Host), ByteSize::ZERO);
    drop(handle);
    assert_eq!(governor.reserved(MemorySpace::Device), ByteSize::ZERO);
    governor.check();
    close(w);
}

#[test]
fn a_request_that_waits_is_served_when_a_held_group_is_let_go() {
    let w = world(14, ByteSize::mib(1), SMALL);
    let governor = MemoryGovernor::builder(ByteSize::kib(64)).build().unwrap();
    w.spiller.serve(&governor);
    let builder = governor.participant("build side", 0);
    let busy = governor.participant("scan", 0);
    let _scan = busy.try_reserve(Request::device(ByteSize::kib(1))).unwrap();
    let promise = builder.try_reserve(Request::device(ByteSize::kib(40)).spillable()).unwrap();
    let handle = w.spiller.register_reserved(vec![w.view(&bytes(1, 40 * KIB))], 0, promise).unwrap();
    let held = handle.get(&w.stream).unwrap();
    let waiting = std::thread::spawn({
        let sorter = governor.participant("sort", 0);
        move || block_on(sorter.reserve(Request::device(ByteSize::kib(60)))).map(|sort| sort.bytes())
    });
    while governor.statistics(MemorySpace::Device).waiting == 0 {
        std::thread::yield_now();
    }
    assert_eq!(handle.state(), SpillState::Resident);
    drop(held);
    assert_eq!(waiting.join().unwrap().unwrap(), ByteSize::kib(60));
    assert_eq!(handle.state(), SpillState::Spilled);
    drop(handle);
    close(w);
}

#[test]
fn without_host_memory_a_governed_group_stays() {
    let w = world(15, ByteSize::mib(1), SMALL);
    let governor = MemoryGovernor::builder(ByteSize::kib(64)).host_capacity(ByteSize::kib(8)).build().unwrap();
    w.spiller.serve(&governor);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let _hook = governor.on_shortage({
        let asked = Arc::clone(&asked);
        move |shortage: Shortage| {
            asked.lock().unwrap().push(shortage.space);
            ByteSize::ZERO
        }
    });
    let builder = governor.participant("build side", 0);
    let promise = builder.try_reserve(Request::device(ByteSize::kib(40)).spillable()).unwrap();
    let handle = w.spiller.register_reserved(vec![w.view(&bytes(1, 40 * KIB))], 0, promise).unwrap();
    assert!(builder.try_reserve(Request::device(ByteSize::kib(60))).is_err());
    assert_eq!((handle.state(), w.spiller.statistics().no_host_memory), (SpillState::Resident, 1));
    assert_eq!(*asked.lock().unwrap(), [MemorySpace::Device], "nobody is asked for host memory while spilling");
    drop(handle);
    close(w);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

/// Uses, changes, spills and drops groups on several streams, with far too little memory.
fn storm(w: &World, seed: u64, steps: usize) {
    let mut random = Random(seed);
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&w.device).unwrap()).collect();
    let mut groups: Vec<(SpillHandle, Vec<Vec<u8>>)> = Vec::new();
    for step in 0..steps {
        let stream = &streams[random.below(streams.len())];
        match random.below(10) {
            0..=2 if groups.len() < 8 => {
                let contents: Vec<_> = (0..1 + random.below(3)).map(|i| bytes(step + i, random.below(9_000))).collect();
                let views: Result<Vec<_>> = contents
                    .iter()
                    .map(|content| {
                        DeviceBuffer::upload(content, stream, &w.pool, &w.pinned)
                            .map(|b| b.view(0..content.len()).unwrap())
                    })
                    .collect();
                match views {
                    Ok(views) => groups.push((w.spiller.register(views, random.below(3) as i32).unwrap(), contents)),
                    Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                }
            }
            3 if !groups.is_empty() => drop(groups.swap_remove(random.below(groups.len()))),
            4 if !groups.is_empty() => drop(groups[random.below(groups.len())].0.spill().unwrap()),
            _ if !groups.is_empty() => {
                let index = random.below(groups.len());
                let (handle, contents) = &mut groups[index];
                let resident = match handle.get(stream) {
                    Ok(resident) => resident,
                    Err(error) => {
                        assert!(error.is_out_of_memory(), "{error}");
                        continue;
                    }
                };
                let which = random.below(contents.len());
                match random.below(3) {
                    0 => {
                        resident[which].fill(step as u8, stream).unwrap();
                        contents[which].fill(step as u8);
                    }
                    1 => {
                        let scratch = DeviceBuffer::new(resident[which].len(), &streams[0], &w.pool);
                        if let Ok(scratch) = scratch {
                            resident[which].copy_to(&scratch, &streams[0]).unwrap();
                        }
                    }
                    _ => {
                        let read = resident[which].download_vec(stream, &w.pinned).unwrap();
                        assert_eq!(read.wait().unwrap(), contents[which]);
                    }
                }
            }
            _ => {}
        }
    }
    for (handle, contents) in &groups {
        match handle.get(&w.stream) {
            Ok(resident) => {
                for (view, content) in resident.iter().zip(contents) {
                    assert_eq!(&w.read(view), content);
                }
            }
            Err(error) => panic!("each group alone fits: {error}"),
        }
    }
}

#[test]
fn random_spilling_is_silent_and_right_under_any_schedule() {
    for seed in 0..12 {
        let w = world(seed, ByteSize::kib(40), SMALL);
        storm(&w, seed, 150);
        let statistics = w.spiller.statistics();
        assert!(statistics.spills > 0 && statistics.restores > 0, "{statistics:?}");
        close(w);
    }
}

#[test]
fn every_strategy_spills_when_the_device_is_full_and_not_the_limit() {
    for (index, strategy) in Strategy::ALL.into_iter().enumerate() {
        for seed in 0..3 {
            let driver = SimDriver::new(SimOptions { seed, memory_bytes: 4 << 20, ..SimOptions::default() });
            let device = Device::open(driver.clone(), 0).unwrap();
            let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).strategy(strategy).build().unwrap();
            let pinned = PinnedPool::builder(&device).build();
            let stream = Stream::new(&device).unwrap();
            // Enough pages for every group at each spill: the poller returns pages late.
            let options = SpillOptions { page: ByteSize::kib(64), pinned_limit: ByteSize::mib(64), ..SMALL };
            let spiller = Spiller::new(&pool, SpillOptions { pinned_reserve: ByteSize::mib(1), ..options }).unwrap();
            let w = World { driver, device, pool, pinned, stream, spiller };
            let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&w.device).unwrap()).collect();
            let mut random = Random(seed * 17 + index as u64);
            let mut groups = Vec::new();
            // Three times the memory of the device.
            for step in 0..16 {
                let content = bytes(step, (700 << 10) + random.below(100 << 10));
                let view = w.view_on(&content, &streams[random.below(3)]);
                groups.push((w.spiller.register(vec![view], 0).unwrap(), content));
            }
            for _ in 0..12 {
                let (handle, content) = &groups[random.below(groups.len())];
                let resident = handle.get(&streams[random.below(3)]).unwrap();
                let read = resident[0].download_vec(&streams[random.below(3)], &w.pinned).unwrap();
                assert!(read.wait().unwrap() == *content, "{strategy}, seed {seed}");
            }
            let (spilled, pressure) = (w.spiller.statistics(), w.pool.pressure_statistics());
            assert!(spilled.spills > 0 && pressure.num_callbacks > 0, "{strategy}: {spilled:?} {pressure:?}");
            assert_eq!(pressure.num_ooms, 0, "{strategy}");
            drop(groups);
            drop(streams);
            close(w);
        }
    }
}

#[test]
fn threads_that_spill_each_other_neither_hang_nor_race() {
    for seed in 0..3 {
        let w = world(seed, ByteSize::kib(96), SMALL);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let w = &w;
                scope.spawn(move || storm_alone(w, seed * 10 + thread, 60));
            }
        });
        close(w);
    }
}

/// Like `storm`, but others may hold the memory: then there is an error, and nothing breaks.
fn storm_alone(w: &World, seed: u64, steps: usize) {
    let mut random = Random(seed);
    let stream = Stream::new(&w.device).unwrap();
    let mut groups: Vec<(SpillHandle, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        if groups.len() < 5 {
            let content = bytes(step, 1 + random.below(9_000));
            match DeviceBuffer::upload(&content, &stream, &w.pool, &w.pinned) {
                Ok(buffer) => {
                    let view = buffer.view(0..content.len()).unwrap();
                    drop(buffer);
                    groups.push((w.spiller.register(vec![view], 0).unwrap(), content));
                }
                Err(error) => assert!(error.is_out_of_memory(), "{error}"),
            }
        } else {
            drop(groups.swap_remove(random.below(groups.len())));
        }
        if let Some((handle, content)) = groups.get(random.below(groups.len().max(1))) {
            match handle.get(&stream) {
                Ok(resident) => {
                    let read = resident[0].download_vec(&stream, &w.pinned).unwrap().wait().unwrap();
                    assert_eq!(&read, content);
                }
                Err(error) => assert!(error.is_out_of_memory(), "{error}"),
            }
        }
    }
}
