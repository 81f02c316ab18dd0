//! Two processes share buffers: a pool by descriptor over a socket, allocations by their messages, and the order of
//! frees.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::{Driver, FindingKind, HandleTypes};
use millpond_memory::ipc::{Finished, FinishedBy, MOST_WAITING, OnSilence, Returned, SharedAllocation, Silence};
use millpond_memory::{
    Device, DeviceBuffer, DeviceView, DriverCode, ExportedPool, ImportedPool, IpcChannel, LentBuffer, MemoryError,
    MemoryPool, PinnedPool, Stream,
};
use sendfd::SendWithFd;

use super::sim_rig::seeds;

const LEN: usize = 5000;
/// Bounds a hang; the awaited message has been sent.
const SOON: Duration = Duration::from_secs(600);
/// Maximum time for a child to start its program.
const BRIEFLY: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

/// Number of open descriptors. A child of another test holds copies until it runs its own program.
pub fn left_open(driver: &SimDriver) -> usize {
    let begun = Instant::now();
    loop {
        let open = driver.open_descriptors();
        if open == 0 || begun.elapsed() > BRIEFLY {
            return open;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

struct Process {
    driver: Arc<SimDriver>,
    device: Device,
    pinned: PinnedPool,
    stream: Stream,
    channel: IpcChannel,
}

fn process(driver: Arc<SimDriver>, socket: UnixStream) -> Process {
    let device = Device::open(driver.clone(), 0).unwrap();
    let (pinned, stream) = (PinnedPool::builder(&device).build(), Stream::new(&device).unwrap());
    Process { driver, device, pinned, stream, channel: IpcChannel::new(socket) }
}

impl Process {
    fn fetch(&self, view: &DeviceView) -> Vec<u8> {
        view.download_vec(&self.stream, &self.pinned).unwrap().wait().unwrap()
    }
}

struct Two {
    exporter: Process,
    pool: MemoryPool,
    exported: ExportedPool,
    importer: Process,
    imported: ImportedPool,
}

fn shared_pool(device: &Device) -> MemoryPool {
    MemoryPool::builder(device).export(HandleTypes::POSIX_FD).build().unwrap()
}

/// An exporter and an importer; the pool is sent, and opened for device 0.
fn two(options: SimOptions) -> Two {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let driver = SimDriver::new(options);
    let mut importer = process(driver.second_process(), theirs);
    let mut exporter = process(driver, ours);
    let pool = shared_pool(&exporter.device);
    let exported = ExportedPool::of(&pool).unwrap();
    exporter.channel.send_pool(&exported).unwrap();
    let imported = importer.channel.receive_pool(&importer.device, SOON).unwrap().expect("it was sent");
    let imported = imported.enable_access(&[&importer.device]).unwrap();
    Two { exporter, pool, exported, importer, imported }
}

impl Two {
    /// A buffer filled with `byte`, lent and sent.
    fn lend(&mut self, byte: u8) -> LentBuffer {
        let buffer = DeviceBuffer::new(LEN, &self.exporter.stream, &self.pool).unwrap();
        buffer.fill(byte, &self.exporter.stream).unwrap();
        let (lent, shared) = self.exported.share(buffer, &self.exporter.stream).unwrap();
        self.exporter.channel.send(&shared).unwrap();
        lent
    }

    fn receive(&mut self) -> SharedAllocation {
        self.importer.channel.receive(SOON).unwrap().expect("it was sent")
    }

    /// Ends both in order, importer first, and returns the findings.
    fn close(self) -> Vec<String> {
        let Two { exporter, pool, exported, importer, imported } = self;
        let driver = exporter.driver.clone();
        drop((imported, importer, exported, pool, exporter));
        assert_eq!(left_open(&driver), 0, "no descriptor stays open");
        driver.take_findings().iter().map(ToString::to_string).collect()
    }
}

/// The complete exchange, in every order that the events allow: bytes both ways, both frees in order, no finding.
#[test]
fn a_buffer_goes_out_and_comes_back() {
    for seed in seeds() {
        let mut two = two(SimOptions { seed, ..SimOptions::default() });
        let lent = two.lend(0x11);
        let shared = two.receive();
        assert_eq!((shared.number(), shared.len()), (lent.number(), LEN));

        let opened = two.imported.open(shared, &two.importer.stream).unwrap();
        // Another stream of the importer: ordered after `ready` by the buffer itself.
        let other = Stream::new(&two.importer.device).unwrap();
        opened.view(LEN - 1000..LEN).unwrap().fill(0x22, &other).unwrap();
        assert_eq!(two.importer.fetch(&opened)[..4], [0x11; 4]);
        assert_eq!(two.imported.statistics().imported_bytes.as_u64(), 5120);
        drop(opened);
        assert_eq!(two.importer.channel.send_all_finished(&two.imported).unwrap(), 1);

        let returned = two.exporter.channel.reclaim(lent, &two.exporter.stream, SOON, OnSilence::Keep).unwrap();
        let Returned::Buffer(buffer) = returned else { panic!("{returned:?}") };
        assert_eq!(two.exporter.fetch(&buffer), [vec![0x11; LEN - 1000], vec![0x22; 1000]].concat());
        // Its next use on any stream is ordered behind the importer's last one.
        buffer.fill(3, &Stream::new(&two.exporter.device).unwrap()).unwrap();
        drop(buffer);
        assert_eq!(two.close(), [""; 0]);
    }
}

/// Acknowledged by the host: the importer waited, so the exporter has nothing to wait for.
#[test]
fn a_host_acknowledges() {
    for seed in seeds() {
        let mut two = two(SimOptions { seed, ..SimOptions::default() });
        let lent = two.lend(1);
        let shared = two.receive();
        let opened = two.imported.open(shared, &two.importer.stream).unwrap();
        opened.fill(2, &two.importer.stream).unwrap();
        let finished = opened.finish_on_host().unwrap();
        assert_eq!((finished.by(), finished.number()), (FinishedBy::Host, lent.number()));
        assert!(two.imported.take_finished().is_empty(), "one word for each allocation");
        let waits = two.exporter.driver.counters().stream_waits;
        let buffer = lent.reclaim(&finished, &two.exporter.stream).unwrap();
        assert_eq!(two.exporter.driver.counters().stream_waits, waits);
        assert_eq!(two.exporter.fetch(&buffer), vec![2; LEN]);
        drop(buffer);
        assert_eq!(two.close(), [""; 0]);
    }
}

/// `open` does not make the host wait, and each of its waits on the device is needed: without it the checks fire.
#[test]
fn open_waits_for_ready_on_the_device() {
    let mut two = two(SimOptions { ignore_wait: Some(1), ..SimOptions::default() });
    let lent = two.lend(1);
    let host_waits = two.exporter.driver.counters().host_waits;
    let shared = two.receive();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    assert_eq!(two.exporter.driver.counters().host_waits, host_waits);
    opened.fill(2, &two.importer.stream).unwrap();
    two.importer.driver.settle().unwrap();
    let kinds: Vec<_> = two.importer.driver.take_findings().iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::UseBeforeAllocation), "{kinds:?}");
    let finished = opened.finish_on_host().unwrap();
    drop(lent.reclaim(&finished, &two.exporter.stream).unwrap());
}

/// The exporter's wait for `finished` is needed, too.
#[test]
fn reclaim_waits_for_finished_on_the_device() {
    let mut two = two(SimOptions { ignore_wait: Some(2), ..SimOptions::default() });
    let lent = two.lend(1);
    let shared = two.receive();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    opened.fill(2, &two.importer.stream).unwrap();
    drop(opened);
    let finished = two.imported.take_finished().remove(0);
    assert_eq!(finished.by(), FinishedBy::Event);
    drop(lent.reclaim(&finished, &two.exporter.stream).unwrap());
    two.exporter.driver.settle().unwrap();
    let kinds: Vec<_> = two.exporter.driver.take_findings().iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::UnorderedFree), "{kinds:?}");
}

/// The last view releases the import, on any thread; until then no message is sent.
#[test]
fn views_keep_an_import_open() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(7);
    let shared = two.receive();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    let view = opened.view(0..16).unwrap();
    let error = opened.finish_on_host().unwrap_err();
    assert!(error.to_string().contains("other views of the memory exist"), "{error}");
    assert!(two.imported.take_finished().is_empty());
    assert_eq!(two.importer.fetch(&view), [7; 16]);
    drop(view);
    let finished = two.imported.take_finished();
    assert_eq!(finished.len(), 1);
    drop(lent.reclaim(&finished[0], &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}

/// S1.29: every device that uses the pool is named, including the one that holds it.
#[test]
fn a_device_without_access_opens_nothing() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let driver = SimDriver::new(SimOptions { devices: 2, ..SimOptions::default() });
    let mut importer = process(driver.second_process(), theirs);
    let mut exporter = process(driver.clone(), ours);
    let pool = shared_pool(&exporter.device);
    let exported = ExportedPool::of(&pool).unwrap();
    exporter.channel.send_pool(&exported).unwrap();
    let imported = importer.channel.receive_pool(&importer.device, SOON).unwrap().unwrap();
    let share = || {
        let buffer = DeviceBuffer::zeroed(LEN, &exporter.stream, &pool).unwrap();
        exported.share(buffer, &exporter.stream).unwrap()
    };

    let (lent, shared) = share();
    let copy = SharedAllocation::from_bytes(&shared.to_bytes()).unwrap();
    let error = imported.open(shared, &importer.stream).unwrap_err();
    assert!(error.to_string().contains("call enable_access with the stream's device"), "{error}");

    let second = Device::open(importer.driver.clone(), 1).unwrap();
    let imported = imported.enable_access(&[&second]).unwrap();
    assert!(imported.has_access(&second) && !imported.has_access(&importer.device));
    let on_second = Stream::new(&second).unwrap();
    let opened = imported.open(copy, &on_second).unwrap();
    assert_eq!(opened.device(), &second, "a buffer of the device that opened it");
    opened.fill(5, &on_second).unwrap();
    drop(opened);
    let finished = imported.take_finished().remove(0);
    let buffer = lent.reclaim(&finished, &exporter.stream).unwrap();
    assert_eq!(exporter.fetch(&buffer), vec![5; LEN]);
    drop((buffer, on_second, second, imported, importer, exported, pool, exporter));
    assert_eq!(driver.take_findings(), []);
}

/// A device that cannot access the memory is refused before any driver call (S1.23 again).
#[test]
fn a_device_that_cannot_reach_an_imported_pool() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let driver = SimDriver::new(SimOptions { devices: 2, refuse_peers: true, ..SimOptions::default() });
    let importer = process(driver.second_process(), theirs);
    let exporter = process(driver, ours);
    let exported = ExportedPool::of(&shared_pool(&exporter.device)).unwrap();
    let second = Device::open(importer.driver.clone(), 1).unwrap();
    let imported = ImportedPool::import(exported.descriptor(), &importer.device).unwrap();
    let error = imported.enable_access(&[&importer.device, &second]).unwrap_err();
    assert!(matches!(error, MemoryError::PeerUnsupported { .. }), "{error}");
}

/// A message for another allocation reclaims nothing, and is not lost.
#[test]
fn the_right_word_for_the_right_buffer() {
    let mut two = two(SimOptions::default());
    let (first, second) = (two.lend(1), two.lend(2));
    for _ in 0..2 {
        let shared = two.receive();
        drop(two.imported.open(shared, &two.importer.stream).unwrap());
    }
    let finished = two.imported.take_finished();
    let failed = first.reclaim(&finished[1], &two.exporter.stream).unwrap_err();
    assert!(matches!(failed.error, MemoryError::IpcOtherAllocation { .. }), "{failed}");
    drop(failed.lent.reclaim(&finished[0], &two.exporter.stream).unwrap());
    drop(second.reclaim(&finished[1], &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}

/// Messages may arrive in any order; a wait for one keeps the others.
#[test]
fn words_come_in_any_order() {
    let mut two = two(SimOptions::default());
    let (first, second) = (two.lend(1), two.lend(2));
    let (a, b) = (two.receive(), two.receive());
    let a = two.imported.open(a, &two.importer.stream).unwrap();
    drop(two.imported.open(b, &two.importer.stream).unwrap());
    drop(a);
    two.importer.channel.send_all_finished(&two.imported).unwrap();
    for lent in [first, second] {
        let returned = two.exporter.channel.reclaim(lent, &two.exporter.stream, SOON, OnSilence::Keep).unwrap();
        assert!(matches!(returned, Returned::Buffer(_)), "{returned:?}");
    }
    assert_eq!(two.close(), [""; 0]);
}

/// A slow importer: the exporter keeps the memory, and reclaims it later.
#[test]
fn a_slow_importer_keeps_the_memory() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let shared = two.receive();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    let patience = Duration::from_millis(5);
    let returned = two.exporter.channel.reclaim(lent, &two.exporter.stream, patience, OnSilence::Keep).unwrap();
    let Returned::Kept { lent, silence } = returned else { panic!("{returned:?}") };
    assert_eq!(silence, Silence::TimedOut(patience));
    drop(opened);
    two.importer.channel.send_all_finished(&two.imported).unwrap();
    let returned = two.exporter.channel.reclaim(lent, &two.exporter.stream, SOON, OnSilence::Drop).unwrap();
    assert!(matches!(returned, Returned::Buffer(_)), "{returned:?}");
    assert_eq!(two.close(), [""; 0]);
}

/// A crashed importer: its socket is closed, so the exporter need not wait for the timeout, and applies its policy.
#[test]
fn a_crashed_importer() {
    for (policy, drops) in [(OnSilence::Drop, true), (OnSilence::Keep, false)] {
        let mut two = two(SimOptions::default());
        let lent = two.lend(1);
        let shared = two.receive();
        let opened = two.imported.open(shared, &two.importer.stream).unwrap();
        opened.fill(9, &two.importer.stream).unwrap();
        // Ended without a message: the system closes its socket and unmaps its memory. Its objects are never dropped.
        two.importer.driver.crash();
        let Two { mut exporter, pool, exported, importer, imported } = two;
        std::mem::forget((opened, imported));
        drop(importer.channel);
        std::mem::forget((importer.stream, importer.pinned, importer.device));
        let returned = exporter.channel.reclaim(lent, &exporter.stream, Duration::MAX, policy).unwrap();
        match returned {
            Returned::Dropped { silence } => assert!(drops && silence == Silence::Closed),
            Returned::Kept { lent, silence } => {
                assert!(!drops && silence == Silence::Closed);
                assert!(lent.give_up(OnSilence::Drop).is_none(), "decided later");
            }
            Returned::Buffer(_) => panic!("nobody gave it back"),
        }
        exporter.device.synchronize().unwrap();
        assert_eq!(pool.attributes().unwrap().used_current.as_u64(), 0);
        assert_eq!(exporter.device.take_errors().len(), 0);
        drop((exported, pool));
        let kinds: Vec<_> = exporter.driver.take_findings().into_iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, []);
    }
}

/// A lent buffer that is dropped before an acknowledgement is leaked and reported to the device: never freed while the
/// importer uses it.
#[test]
fn a_lent_buffer_that_is_dropped_leaks() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(4);
    let shared = two.receive();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    drop(lent);
    let errors = two.exporter.device.take_errors();
    assert!(matches!(errors[..], [MemoryError::IpcLeaked { .. }]), "{errors:?}");
    assert!(errors[0].to_string().contains("leaked: dropped before its importer was done"), "{}", errors[0]);
    assert_eq!(two.exporter.device.counters().leaked_bytes, 5120);
    // The importer continues undisturbed.
    assert_eq!(two.importer.fetch(&opened), vec![4; LEN]);
    drop(opened);
    let findings = two.close();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("still allocated at the end of its pool"), "{}", findings[0]);
}

/// A view kept by the exporter does not free lent memory either, and reclaimed memory is freed with its last view.
#[test]
fn views_of_the_exporter() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(6);
    let view = lent.view().clone();
    assert_eq!(two.exporter.fetch(&view), vec![6; LEN], "both may read");
    let shared = two.receive();
    drop(two.imported.open(shared, &two.importer.stream).unwrap());
    let finished = two.imported.take_finished().remove(0);
    drop(lent.reclaim(&finished, &two.exporter.stream).unwrap());
    assert_eq!(two.pool.used_bytes().as_u64(), 5120);
    drop(view);
    assert_eq!(two.close(), [""; 0]);
}

/// Memory that cannot be shared is refused with the rule.
#[test]
fn what_is_not_shared() {
    let two = two(SimOptions::default());
    let stream = &two.exporter.stream;
    let share = |buffer| two.exported.share(buffer, stream).map(drop).unwrap_err().to_string();
    let empty = DeviceBuffer::new(0, stream, &two.pool).unwrap();
    assert_eq!(share(empty), "sharing a buffer is refused: it has no bytes, so there is nothing to share");
    let plain = MemoryPool::builder(&two.exporter.device).build().unwrap();
    let elsewhere = DeviceBuffer::new(64, stream, &plain).unwrap();
    assert!(share(elsewhere).contains("allocate it from the pool that is exported"));
    let error = ExportedPool::of(&plain).unwrap_err().to_string();
    assert!(error.contains("build it with `.export(HandleTypes::POSIX_FD)`"), "{error}");
    let arena = MemoryPool::builder(&two.exporter.device).strategy(millpond_memory::Strategy::Arena).build().unwrap();
    assert_eq!(ExportedPool::of(&arena).unwrap_err().driver_code(), Some(DriverCode::NOT_SUPPORTED));
    drop((plain, arena));
    assert_eq!(two.close(), [""; 0]);
}

/// S1.32: threshold and trim would have no effect, and are refused with the rule.
#[test]
fn an_exported_pool_gives_nothing_back() {
    let two = two(SimOptions::default());
    let threshold = two
        .pool
        .set_release_threshold(millpond_memory::ReleaseThreshold::Bytes(millpond_memory::ByteSize(1)))
        .unwrap_err();
    assert!(threshold.to_string().contains("made for export"), "{threshold}");
    let trim = two.pool.trim_to(millpond_memory::ByteSize::ZERO).unwrap_err();
    assert!(trim.to_string().contains("never given back"), "{trim}");
    assert_eq!(two.close(), [""; 0]);
}

/// An allocation is opened once, from its own pool.
#[test]
fn an_allocation_is_opened_once_from_its_own_pool() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let shared = two.receive();
    let copy = SharedAllocation::from_bytes(&shared.to_bytes()).unwrap();
    let opened = two.imported.open(shared, &two.importer.stream).unwrap();
    let error = two.imported.open(copy, &two.importer.stream).unwrap_err();
    assert!(error.to_string().contains("it is open here already"), "{error}");

    let other = shared_pool(&two.exporter.device);
    let exported = ExportedPool::of(&other).unwrap();
    let buffer = DeviceBuffer::zeroed(64, &two.exporter.stream, &other).unwrap();
    let (lent_other, shared_other) = exported.share(buffer, &two.exporter.stream).unwrap();
    let error = two.imported.open(shared_other, &two.importer.stream).unwrap_err();
    assert!(error.to_string().contains("it is of another pool"), "{error}");
    assert!(lent_other.give_up(OnSilence::Drop).is_none(), "nobody has it");

    drop(opened);
    drop(lent.reclaim(&two.imported.take_finished()[0], &two.exporter.stream).unwrap());
    drop((exported, other));
    assert_eq!(two.close(), [""; 0]);
}

/// Invalid bytes end the channel with the problem; a closed socket is reported as such.
#[test]
fn bad_bytes_on_the_socket() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut channel = IpcChannel::new(theirs);
    assert!(channel.receive(NOW).unwrap().is_none(), "nothing yet");
    ours.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let error = channel.receive(SOON).unwrap_err();
    assert!(matches!(error, MemoryError::IpcMessage { .. }), "{error}");
    assert!(error.to_string().contains("not with \"MPIP\""), "{error}");
    assert_eq!(channel.receive_finished(SOON).unwrap_err().to_string(), error.to_string(), "it stays so");

    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut channel = IpcChannel::new(theirs);
    drop(ours);
    let error = channel.receive(SOON).unwrap_err();
    assert!(matches!(error, MemoryError::IpcClosed { .. }), "{error}");
    let two = two(SimOptions::default());
    let error = channel.send_pool(&two.exported).unwrap_err();
    assert!(matches!(error, MemoryError::IpcClosed { .. }), "{error}");
}

/// A message in fragments is reassembled, across any timeouts; a pool without its descriptor is refused.
#[test]
fn messages_in_pieces() {
    let two = two(SimOptions::default());
    let buffer = DeviceBuffer::zeroed(64, &two.exporter.stream, &two.pool).unwrap();
    let (lent, shared) = two.exported.share(buffer, &two.exporter.stream).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut channel = IpcChannel::new(theirs);
    let bytes = shared.to_bytes();
    for piece in [&bytes[..5], &bytes[5..12], &bytes[12..100]] {
        ours.write_all(piece).unwrap();
        assert!(channel.receive(NOW).unwrap().is_none());
    }
    ours.write_all(&bytes[100..]).unwrap();
    assert_eq!(channel.receive(SOON).unwrap().unwrap(), shared);

    let pool_message = [b"MPIP".as_slice(), &[1, 0, 1, 0, 8, 0, 0, 0], &[0; 8]].concat();
    ours.write_all(&pool_message).unwrap();
    let error = channel.receive_pool(&two.importer.device, SOON).unwrap_err();
    assert!(error.to_string().contains("no descriptor came with it"), "{error}");
    assert!(lent.give_up(OnSilence::Drop).is_none());
    assert_eq!(two.close(), [""; 0]);
}

/// The driver refuses a descriptor of another kind, and it is closed anyway.
#[test]
fn a_descriptor_of_something_else() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut importer = process(SimDriver::with_seed(0), theirs);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let message = [b"MPIP".as_slice(), &[1, 0, 1, 0, 8, 0, 0, 0], &[0; 8]].concat();
    ours.send_with_fd(&message, &[reader.as_raw_fd()]).unwrap();
    drop(reader);
    let error = importer.channel.receive_pool(&importer.device, SOON).unwrap_err();
    assert_eq!(error.driver_code(), Some(DriverCode::INVALID_VALUE));
    assert!(writer.write(&[0]).is_err(), "nobody holds the other end");
}

/// Acknowledgements as bytes, for callers with another transport.
#[test]
fn words_travel_as_bytes() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let shared = SharedAllocation::from_bytes(&two.receive().to_bytes()).unwrap();
    drop(two.imported.open(shared, &two.importer.stream).unwrap());
    let bytes = two.imported.take_finished()[0].to_bytes();
    drop(lent.reclaim(&Finished::from_bytes(&bytes).unwrap(), &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}

/// Many buffers at once, on several streams, opened and returned in other orders over one channel: no finding, and
/// nothing kept.
#[test]
fn many_buffers_at_once() {
    for seed in seeds().take(6) {
        let mut two = two(SimOptions { seed, ..SimOptions::default() });
        let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&two.importer.device).unwrap()).collect();
        for round in 0..4u8 {
            let lent: Vec<LentBuffer> = (0..20u8).map(|i| two.lend(round * 20 + i)).collect();
            let mut open = Vec::new();
            for i in 0..20u8 {
                let shared = two.receive();
                let opened = two.imported.open(shared, &streams[usize::from(i) % 3]).unwrap();
                opened.fill(200 - i, &streams[usize::from(i + 1) % 3]).unwrap();
                open.push(opened);
            }
            while let Some(opened) = (!open.is_empty()).then(|| open.swap_remove(open.len() / 2)) {
                drop(opened);
                two.importer.channel.send_all_finished(&two.imported).unwrap();
            }
            for (i, lent) in (0..20u8).zip(lent) {
                let stream = two.exporter.stream.clone();
                match two.exporter.channel.reclaim(lent, &stream, SOON, OnSilence::Keep).unwrap() {
                    Returned::Buffer(buffer) => assert_eq!(two.exporter.fetch(&buffer), vec![200 - i; LEN]),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(two.imported.statistics().imported_bytes.as_u64(), 0);
        assert_eq!(two.pool.used_bytes().as_u64(), 0);
        assert_eq!(two.close(), [""; 0]);
    }
}

/// The kernel reports the user of the process at the other end; nothing is exchanged with another user.
#[test]
fn a_peer_of_another_user_gets_nothing() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let shared = two.receive();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // No process here runs as this user.
    let mut channel = IpcChannel::with_user(theirs, u32::MAX - 1);
    ours.write_all(&shared.to_bytes()).unwrap();
    let errors = [
        channel.receive(SOON).unwrap_err(),
        channel.receive_pool(&two.importer.device, SOON).unwrap_err(),
        channel.send(&shared).unwrap_err(),
        channel.send_pool(&two.exported).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, MemoryError::IpcForeignUser { expected, .. } if expected == u32::MAX - 1), "{error}");
        assert!(error.to_string().contains("connect processes of one user"), "{error}");
    }
    let read = std::io::Read::read(&mut ours, &mut [0; 64]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock, "nothing was sent");
    drop(two.imported.open(shared, &two.importer.stream).unwrap());
    drop(lent.reclaim(&two.imported.take_finished()[0], &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}

/// An exporter that claims more bytes than it allocated would make kernels access memory outside: the driver reports
/// the true length.
#[test]
fn a_length_that_the_allocation_has_not_is_refused() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let honest = two.receive().to_bytes();
    let at =
        honest.windows(8).position(|word| word == (LEN as u64).to_le_bytes()).expect("the length is in the message");
    let claims = |len: u64| {
        let mut bytes = honest.clone();
        bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
        SharedAllocation::from_bytes(&bytes).unwrap()
    };
    // Buffers are padded to 256 bytes.
    for len in [5121, 1 << 20, 1 << 40] {
        let error = two.imported.open(claims(len), &two.importer.stream).unwrap_err();
        assert!(matches!(error, MemoryError::IpcOversized { found, .. } if found.as_u64() == 5120), "{error}");
        assert!(two.imported.take_finished().is_empty());
    }
    assert_eq!(two.imported.statistics().imported_bytes.as_u64(), 0);
    // The refused allocation is not open: the correct message is accepted.
    let opened = two.imported.open(claims(LEN as u64), &two.importer.stream).unwrap();
    assert_eq!(two.importer.fetch(&opened), vec![1; LEN]);
    drop(opened);
    drop(lent.reclaim(&two.imported.take_finished()[0], &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}

/// A peer that sends without end is cut off, so that it cannot fill the other process's memory.
#[test]
fn a_peer_that_floods_is_cut_off() {
    let mut two = two(SimOptions::default());
    let lent = two.lend(1);
    let shared = two.receive();
    drop(two.imported.open(shared, &two.importer.stream).unwrap());
    let finished = two.imported.take_finished().remove(0);
    let word = finished.to_bytes();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut channel = IpcChannel::new(theirs);
    std::thread::scope(|scope| {
        scope.spawn(move || while ours.write_all(&word).is_ok() {});
        let error = channel.receive(SOON).unwrap_err();
        assert!(matches!(error, MemoryError::IpcFlooded { limit: MOST_WAITING, .. }), "{error}");
        assert!(error.to_string().contains("more than 4096 of acknowledgements"), "{error}");
        // Earlier messages are still available.
        for _ in 0..MOST_WAITING {
            assert_eq!(channel.receive_finished(NOW).unwrap().unwrap().number(), lent.number());
        }
        assert!(channel.receive_finished(NOW).is_err());
        drop(channel);
    });
    drop(lent.reclaim(&finished, &two.exporter.stream).unwrap());
    assert_eq!(two.close(), [""; 0]);
}
