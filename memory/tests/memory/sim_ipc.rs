//! Two simulated processes: permitted sharing, its order, and the findings for violations.

use super::ipc::left_open;
use super::sim_rig::{Rig, declare, seeds};
use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::*;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;

const BYTES: usize = 1024;
const HOME: DeviceId = DeviceId(0);
const OTHER: DeviceId = DeviceId(1);

/// An exporter with a pool and a filled buffer, and an importer that has opened it; no stream has waited yet.
struct Two {
    exporter: Rig,
    pool: PoolHandle,
    stream: StreamHandle,
    buffer: DevicePtr,
    ready: EventHandle,
    importer: Rig,
    their_stream: StreamHandle,
    their_ready: EventHandle,
    their_buffer: DevicePtr,
}

fn exportable(driver: &SimDriver) -> PoolHandle {
    let properties = PoolProperties { handle_types: HandleTypes::POSIX_FD, ..PoolProperties::on(HOME) };
    driver.pool_create(&properties).unwrap()
}

/// Another process on the machine of `rig`, with every device open.
fn second(rig: &Rig) -> Rig {
    let driver = rig.driver.second_process();
    (0..driver.options().devices).for_each(|device| driver.device_open(DeviceId(device)).unwrap());
    Rig { pool: PoolHandle(0), driver }
}

impl Two {
    fn new(options: SimOptions) -> Self {
        let exporter = Rig::with(options);
        let driver = &exporter.driver;
        let pool = exportable(driver);
        let stream = exporter.stream();
        let buffer = driver.pool_alloc(pool, NonZeroUsize::new(BYTES).unwrap(), stream, Location::caller()).unwrap();
        exporter.fill(buffer, 0x11, BYTES, stream);
        let ready = driver.event_create(HOME, EventFlags::INTERPROCESS).unwrap();
        driver.event_record(ready, stream, Location::caller()).unwrap();

        let mut importer = second(&exporter);
        let descriptor = driver.pool_export(pool).unwrap();
        importer.pool = importer.driver.pool_import(HOME, descriptor.as_fd()).unwrap();
        let their_stream = importer.stream();
        let their_ready = importer.driver.event_open_ipc(HOME, &driver.event_ipc_handle(ready).unwrap()).unwrap();
        let export = driver.pool_export_pointer(buffer).unwrap();
        let their_buffer = importer.driver.pool_import_pointer(importer.pool, &export, Location::caller()).unwrap();
        Two { exporter, pool, stream, buffer, ready, importer, their_stream, their_ready, their_buffer }
    }

    fn default_for(seed: u64) -> Self {
        Self::new(SimOptions { seed, ..SimOptions::default() })
    }

    /// The importer frees and records `finished`, and the exporter waits for it: the order of S1.31.
    fn hand_back(&self) {
        self.importer.free(self.their_buffer, self.their_stream);
        let finished = self.importer.driver.event_create(HOME, EventFlags::INTERPROCESS).unwrap();
        self.importer.driver.event_record(finished, self.their_stream, Location::caller()).unwrap();
        let handle = self.importer.driver.event_ipc_handle(finished).unwrap();
        let ours = self.exporter.driver.event_open_ipc(HOME, &handle).unwrap();
        self.exporter.wait(self.stream, ours);
    }
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> DriverCode {
    result.unwrap_err().code
}

/// S1.26 to S1.31, in the right order: both see each other's bytes, without a finding, in any order of execution.
#[test]
fn bytes_are_seen_both_ways() {
    for seed in seeds() {
        let two = Two::default_for(seed);
        two.importer.wait(two.their_stream, two.their_ready);
        let bytes = two.importer.download(two.their_buffer, BYTES, two.their_stream);
        two.importer.fill(two.their_buffer.offset(512), 0x22, 512, two.their_stream);
        two.hand_back();
        let back = two.exporter.download(two.buffer, BYTES, two.stream);
        two.exporter.free(two.buffer, two.stream);
        two.exporter.sync(two.stream);
        assert_eq!(two.importer.look(&bytes), vec![0x11; BYTES]);
        assert_eq!(two.exporter.look(&back), [vec![0x11; 512], vec![0x22; 512]].concat());
        two.importer.host_free(&bytes);
        two.exporter.host_free(&back);
        two.exporter.assert_silent();
    }
}

/// S1.30: import does not wait. A use without a wait for `ready` is found in every run.
#[test]
fn a_use_that_did_not_wait_for_ready() {
    for seed in seeds() {
        let two = Two::default_for(seed);
        two.importer.fill(two.their_buffer, 1, BYTES, two.their_stream);
        let kinds = two.importer.kinds();
        assert!(kinds.contains(&FindingKind::UseBeforeAllocation), "{kinds:?}");
    }
}

/// A wait for an event before its new record does not wait for that record.
#[test]
fn a_wait_on_an_event_that_is_not_recorded_yet() {
    let rig = Rig::new(0);
    let event = rig.driver.event_create(HOME, EventFlags::INTERPROCESS).unwrap();
    let importer = second(&rig);
    let stream = importer.stream();
    let opened = importer.driver.event_open_ipc(HOME, &rig.driver.event_ipc_handle(event).unwrap()).unwrap();
    importer.wait(stream, opened);
    importer.only_finding(FindingKind::UnrecordedEvent);
}

/// S1.31: the importer frees first, and the exporter's free is ordered behind it.
#[test]
fn an_exporter_that_frees_first() {
    for seed in seeds() {
        let two = Two::default_for(seed);
        two.importer.wait(two.their_stream, two.their_ready);
        two.exporter.free(two.buffer, two.stream);
        let finding = two.exporter.only_finding(FindingKind::UnorderedFree);
        assert!(finding.message.contains("freed by its exporter while process 1 still has it"), "{finding}");
        // A later use by the importer is a use after the free.
        let late = two.importer.driver.fill(two.their_buffer, 1, BYTES, two.their_stream, Location::caller());
        assert_eq!(code(late), DriverCode::INVALID_VALUE);
        two.importer.only_finding(FindingKind::UseAfterFree);
    }
}

#[test]
fn an_exporter_that_does_not_wait_for_the_importers_free() {
    for seed in seeds() {
        let two = Two::default_for(seed);
        two.importer.wait(two.their_stream, two.their_ready);
        two.importer.fill(two.their_buffer, 1, BYTES, two.their_stream);
        two.importer.free(two.their_buffer, two.their_stream);
        two.exporter.free(two.buffer, two.stream);
        let findings = two.exporter.findings();
        assert!(!findings.is_empty() && findings.iter().all(|f| f.kind == FindingKind::UnorderedFree), "{findings:?}");
        assert!(findings.iter().any(|f| f.message.contains("exporter's free")), "{findings:?}");
    }
}

/// S1.31: `cudaFree` is allowed at either end, once the host has waited.
#[test]
fn frees_without_a_stream() {
    for waited in [true, false] {
        let two = Two::default_for(3);
        two.importer.wait(two.their_stream, two.their_ready);
        two.importer.fill(two.their_buffer, 1, BYTES, two.their_stream);
        if waited {
            two.importer.sync(two.their_stream);
        }
        two.importer.driver.free_sync(two.their_buffer, Location::caller()).unwrap();
        if waited {
            two.exporter.sync(two.stream);
            two.exporter.driver.free_sync(two.buffer, Location::caller()).unwrap();
            two.exporter.assert_silent();
        } else {
            two.exporter.only_finding(FindingKind::UnorderedFree);
        }
    }
}

/// S1.31: the importer's free does not stop the exporter from using the memory.
#[test]
fn the_exporter_goes_on_after_the_importers_free() {
    let two = Two::default_for(1);
    two.importer.wait(two.their_stream, two.their_ready);
    two.hand_back();
    two.exporter.fill(two.buffer, 9, BYTES, two.stream);
    assert_eq!(two.exporter.fetch(two.buffer, BYTES, two.stream), vec![9; BYTES]);
    // And it may be imported again.
    let export = two.exporter.driver.pool_export_pointer(two.buffer).unwrap();
    two.importer.driver.pool_import_pointer(two.importer.pool, &export, Location::caller()).unwrap();
    two.importer.driver.free_sync(two.their_buffer, Location::caller()).unwrap();
    two.exporter.free(two.buffer, two.stream);
    two.exporter.assert_silent();
}

#[test]
fn an_import_is_freed_once_and_used_no_more() {
    let two = Two::default_for(0);
    two.importer.wait(two.their_stream, two.their_ready);
    two.importer.free(two.their_buffer, two.their_stream);
    let again = two.importer.driver.free_async(two.their_buffer, two.their_stream, Location::caller());
    assert_eq!(code(again), DriverCode::INVALID_VALUE);
    let finding = two.importer.only_finding(FindingKind::DoubleFree);
    assert!(finding.message.contains("import"), "{finding}");
    let late = two.importer.driver.fill(two.their_buffer, 1, 4, two.their_stream, Location::caller());
    assert_eq!(code(late), DriverCode::INVALID_VALUE);
    two.importer.only_finding(FindingKind::UseAfterFree);
}

/// An address alone is not enough: another process's memory is used and freed only through an import.
#[test]
fn memory_of_another_process_needs_an_import() {
    let rig = Rig::new(0);
    let stream = rig.stream();
    let buffer = rig.alloc(BYTES, stream);
    rig.sync(stream);
    let stranger = second(&rig);
    let theirs = stranger.stream();
    let fill = stranger.driver.fill(buffer, 1, 4, theirs, Location::caller());
    assert_eq!(code(fill), DriverCode::INVALID_VALUE);
    stranger.only_finding(FindingKind::OutOfBounds);
    let free = stranger.driver.free_async(buffer, theirs, Location::caller());
    assert_eq!(code(free), DriverCode::INVALID_VALUE);
    stranger.only_finding(FindingKind::ForeignFree);
    assert_eq!(code(stranger.driver.pointer_attributes(buffer)), DriverCode::INVALID_VALUE);
    // Handles of another process are invalid, too.
    assert_eq!(code(stranger.driver.stream_synchronize(stream)), DriverCode::INVALID_HANDLE);
    assert_eq!(code(stranger.driver.pool_trim(rig.pool, 0)), DriverCode::INVALID_HANDLE);
    assert_eq!(stranger.kinds(), [FindingKind::Handle, FindingKind::Handle]);
    rig.free(buffer, stream);
    rig.assert_silent();
}

const POKE: &str = ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry poke(.param .u64 at)\n{\n\
    .reg .u64 %rd<2>;\nld.param.u64 %rd1, [at];\nst.global.u32 [%rd1], 7;\nret;\n}\n";

/// S1.29: an imported pool is accessible to the device that holds it, inherits no access of the exporter, and is opened
/// by SetAccess.
#[test]
fn access_of_an_imported_pool() {
    for enable in [true, false] {
        let two = Two::new(SimOptions { devices: 2, ..SimOptions::default() });
        two.exporter.driver.pool_set_access(two.pool, OTHER, true).unwrap();
        let access = |device| two.importer.driver.pool_access(two.importer.pool, device).unwrap();
        assert_eq!((access(HOME), access(OTHER)), (PoolAccess::ReadWrite, PoolAccess::None), "nothing is inherited");
        if enable {
            two.importer.driver.pool_set_access(two.importer.pool, OTHER, true).unwrap();
        }
        let driver = &two.importer.driver;
        let stream = driver.stream_create(OTHER, StreamPriority::Normal).unwrap();
        let event = driver.event_open_ipc(OTHER, &two.exporter.driver.event_ipc_handle(two.ready).unwrap()).unwrap();
        two.importer.wait(stream, event);
        let module = driver.module_load(OTHER, POKE).unwrap();
        let poke = driver.module_function(module, "poke").unwrap();
        let accesses = [declare(two.their_buffer, BYTES, Access::Write)];
        two.importer.launch(poke, (1, 1), &[two.their_buffer.0], &accesses, stream);
        let result = driver.stream_synchronize(stream);
        if enable {
            result.unwrap();
            two.importer.free(two.their_buffer, stream);
            driver.stream_synchronize(stream).unwrap();
            assert_eq!(two.exporter.fetch(two.buffer, 8, two.stream), [7, 0, 0, 0, 0x11, 0x11, 0x11, 0x11]);
            two.exporter.free(two.buffer, two.stream);
            two.exporter.assert_silent();
        } else {
            assert_eq!(code(result), DriverCode::ILLEGAL_ADDRESS);
            let finding = two.importer.findings().remove(0);
            assert_eq!(finding.kind, FindingKind::OutOfBounds);
            assert!(finding.message.contains("device 0 and another process, to which it has no access"), "{finding}");
            two.exporter.sync(two.stream);
        }
    }
}

/// S1.33: an imported pool does not allocate, cannot be made current, and reports no attributes; S1.32: trim and
/// threshold have no effect in the exporter, and are refused in the importer.
#[test]
fn what_an_imported_pool_is_not_for() {
    let two = Two::default_for(0);
    let driver = &two.importer.driver;
    let alloc = driver.pool_alloc(two.importer.pool, NonZeroUsize::MIN, two.their_stream, Location::caller());
    assert_eq!(code(alloc), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.device_set_current_pool(HOME, two.importer.pool)), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.pool_export(two.importer.pool)), DriverCode::INVALID_VALUE, "nor exported again");

    let more =
        two.exporter.driver.pool_alloc(two.pool, NonZeroUsize::new(9 << 20).unwrap(), two.stream, Location::caller());
    let used = |rig: &Rig, pool| rig.driver.pool_attribute(pool, PoolAttribute::UsedCurrent).unwrap();
    assert!(used(&two.exporter, two.pool) >= (9 << 20) + BYTES as u64);

    let theirs = two.importer.pool;
    assert_eq!(code(driver.pool_attribute(theirs, PoolAttribute::UsedCurrent)), DriverCode::INVALID_VALUE);
    let threshold = driver.pool_set_attribute(theirs, PoolAttribute::ReleaseThreshold, 0);
    assert_eq!(code(threshold), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.pool_trim(theirs, 0)), DriverCode::INVALID_VALUE);
    two.importer.wait(two.their_stream, two.their_ready);
    two.hand_back();
    two.importer.sync(two.their_stream);

    two.exporter.driver.pool_set_attribute(two.pool, PoolAttribute::ReleaseThreshold, 0).unwrap();
    let reserved = || two.exporter.driver.pool_attribute(two.pool, PoolAttribute::ReservedCurrent).unwrap();
    let before = reserved();
    two.exporter.free(more.unwrap(), two.stream);
    two.exporter.free(two.buffer, two.stream);
    two.exporter.sync(two.stream);
    two.exporter.driver.pool_trim(two.pool, 0).unwrap();
    assert_eq!((reserved(), used(&two.exporter, two.pool)), (before, 0), "nothing goes back to the system");
    two.exporter.assert_silent();
}

/// S1.16, S1.18: only a pool created for export can be exported, and only allocations from it.
#[test]
fn what_is_not_exported() {
    let rig = Rig::new(0);
    let driver = &rig.driver;
    assert_eq!(code(driver.pool_export(rig.pool)), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.pool_export(driver.device_default_pool(HOME).unwrap())), DriverCode::INVALID_VALUE);
    let stream = rig.stream();
    let (plain, sync) =
        (rig.alloc(64, stream), driver.alloc_sync(HOME, NonZeroUsize::MIN, Location::caller()).unwrap());
    assert_eq!(code(driver.pool_export_pointer(plain)), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.pool_export_pointer(sync)), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.pool_export_pointer(DevicePtr(8))), DriverCode::INVALID_VALUE);
    let pool = exportable(driver);
    let ours = driver.pool_alloc(pool, NonZeroUsize::new(64).unwrap(), stream, Location::caller()).unwrap();
    assert_eq!(code(driver.pool_export_pointer(ours.offset(32))), DriverCode::INVALID_VALUE, "only its start");
    // Event flags 6: interprocess without timing, and no other combination.
    assert_eq!(
        code(driver.event_create(HOME, EventFlags { timing: true, interprocess: true })),
        DriverCode::INVALID_VALUE
    );
    let event = driver.event_create(HOME, EventFlags::ORDER).unwrap();
    assert_eq!(code(driver.event_ipc_handle(event)), DriverCode::INVALID_HANDLE);
}

/// Descriptors, 64-byte handles and addresses of another kind are refused, as is an import at the wrong time.
#[test]
fn what_is_not_imported() {
    let two = Two::default_for(0);
    let driver = &two.importer.driver;
    let file = File::open("/dev/null").unwrap();
    assert_eq!(code(driver.pool_import(HOME, file.as_fd())), DriverCode::INVALID_VALUE);
    let (_, pipe) = std::io::pipe().unwrap();
    assert_eq!(code(driver.pool_import(HOME, OwnedFd::from(pipe).as_fd())), DriverCode::INVALID_VALUE);

    let import = |bytes: &OpaqueHandle| code(driver.pool_import_pointer(two.importer.pool, bytes, Location::caller()));
    let export = two.exporter.driver.pool_export_pointer(two.buffer).unwrap();
    assert_eq!(import(&export), DriverCode::INVALID_VALUE, "it is imported already");
    for index in [0, 1, 31, 63] {
        let mut bytes = export;
        bytes[index] ^= 0x10;
        assert_eq!(import(&bytes), DriverCode::INVALID_VALUE, "byte {index}");
        let event = driver.event_open_ipc(HOME, &bytes);
        assert_eq!(code(event), DriverCode::INVALID_VALUE);
    }
    let other = exportable(&two.exporter.driver);
    let elsewhere = two.exporter.driver.pool_alloc(other, NonZeroUsize::MIN, two.stream, Location::caller()).unwrap();
    let bytes = two.exporter.driver.pool_export_pointer(elsewhere).unwrap();
    assert_eq!(import(&bytes), DriverCode::INVALID_VALUE, "of another pool");
    two.exporter.free(elsewhere, two.stream);

    two.importer.wait(two.their_stream, two.their_ready);
    two.hand_back();
    two.exporter.free(two.buffer, two.stream);
    two.exporter.assert_silent();
    assert_eq!(import(&export), DriverCode::INVALID_VALUE);
    two.importer.only_finding(FindingKind::UseAfterFree);
    // An event can be opened only by other processes.
    let handle = two.exporter.driver.event_ipc_handle(two.ready).unwrap();
    assert_eq!(code(two.exporter.driver.event_open_ipc(HOME, &handle)), DriverCode::INVALID_CONTEXT);
}

/// The other process destroys its event: our handle becomes invalid.
#[test]
fn an_event_that_its_owner_has_destroyed() {
    let two = Two::default_for(0);
    two.exporter.driver.event_destroy(two.ready).unwrap();
    let wait = two.importer.driver.stream_wait(two.their_stream, two.their_ready, Location::caller());
    assert_eq!(code(wait), DriverCode::INVALID_HANDLE);
    two.importer.only_finding(FindingKind::Handle);
    two.importer.driver.event_destroy(two.their_ready).unwrap();
    two.importer.assert_silent();
}

/// An importer that exits without freeing leaks; one that crashes leaves nothing imported, and the exporter may free.
#[test]
fn an_importer_that_ends() {
    let two = Two::default_for(0);
    two.importer.wait(two.their_stream, two.their_ready);
    two.importer.sync(two.their_stream);
    two.importer.driver.device_close(HOME).unwrap();
    let finding = two.importer.only_finding(FindingKind::Leak);
    assert!(finding.message.contains("of another process is still imported at the end of device 0"), "{finding}");

    let two = Two::default_for(0);
    two.importer.wait(two.their_stream, two.their_ready);
    two.importer.fill(two.their_buffer, 1, BYTES, two.their_stream);
    two.importer.driver.crash();
    assert_eq!(code(two.importer.driver.stream_synchronize(two.their_stream)), DriverCode::CONTEXT_IS_DESTROYED);
    two.exporter.sync(two.stream);
    let bytes = two.exporter.fetch(two.buffer, BYTES, two.stream);
    assert_eq!(bytes, vec![0x11; BYTES], "its queued work never ran");
    two.exporter.driver.take_findings();
    two.exporter.free(two.buffer, two.stream);
    two.exporter.sync(two.stream);
}

/// The descriptor belongs to the system: copies keep it open, and the last close is detected.
#[test]
fn descriptors_are_counted() {
    let rig = Rig::new(0);
    let pool = exportable(&rig.driver);
    assert_eq!(left_open(&rig.driver), 0);
    let descriptor = rig.driver.pool_export(pool).unwrap();
    let copy = descriptor.try_clone().unwrap();
    drop(descriptor);
    assert_eq!(rig.driver.open_descriptors(), 1);
    let importer = second(&rig);
    let imported = importer.driver.pool_import(HOME, copy.as_fd()).unwrap();
    drop(copy);
    assert_eq!(left_open(&rig.driver), 0, "the imported pool needs it no more");
    importer.driver.pool_destroy(imported).unwrap();
}

/// Both processes allocate from one device's memory.
#[test]
fn memory_of_the_device_is_shared_out() {
    let rig = Rig::with(SimOptions { memory_bytes: 64 << 20, ..SimOptions::default() });
    let mut other = second(&rig);
    other.pool = other.driver.pool_create(&PoolProperties::on(HOME)).unwrap();
    let (s, t) = (rig.stream(), other.stream());
    let ours = rig.alloc(40 << 20, s);
    assert_eq!(other.driver.memory_info(HOME).unwrap().free_bytes, 24 << 20);
    assert_eq!(code(other.try_alloc(40 << 20, t)), DriverCode::OUT_OF_MEMORY);
    rig.free(ours, s);
    rig.sync(s);
    rig.driver.pool_trim(rig.pool, 0).unwrap();
    let theirs = other.alloc(40 << 20, t);
    other.free(theirs, t);
    other.assert_silent();
}

/// Each process has its own contexts: one's fault does not poison the other's.
#[test]
fn a_fault_stays_in_its_process() {
    let rig = Rig::new(0);
    let other = second(&rig);
    let s = rig.stream();
    other.driver.lose_device(HOME);
    assert!(other.driver.device_synchronize(HOME).is_err());
    rig.driver.device_synchronize(HOME).unwrap();
    rig.sync(s);
    let third: Arc<SimDriver> = rig.driver.second_process();
    third.device_open(HOME).unwrap();
    third.device_close(HOME).unwrap();
}
