//! A pool and its allocations in two processes.
//!
//!   exporter   pool ─ descriptor ─► socket ─► imported pool      step 1
//!              buffer ─ 64 bytes ─► anything ─► imported buffer  step 2: waits on `ready`; its free comes first
//!
//! Processes  two simulated ones, in one thread: what each does is in the order written here. Two real ones are in
//!            `memory/examples`.

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::time::Duration;

use super::rig::{Outcome, refused};
use super::{Claim, Needs, Over, Rig};
use crate::checks::{CheckError, same};
use crate::driver::{FindingKind, HandleTypes, PoolAttribute, PoolProperties};
use crate::error::MemoryError;
use crate::ipc::{ExportedPool, Finished, ImportedPool, IpcChannel, SharedAllocation};
use crate::stream::Stream;
use crate::{ByteSize, Device, DeviceBuffer, MemoryPool, PinnedPool, ReleaseThreshold};

pub(super) const CLAIMS: &[Claim] = &[
    Claim::new(
        "ipc/two_steps",
        &["S1.26", "S1.27", "S1.28", "S3.23"],
        "a pool goes over a socket as a descriptor, then its allocations as bytes, and both processes see the same memory",
        two_steps,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses)
    .every_edge_counts(),
    Claim::new(
        "ipc/opaque",
        &["S1.28"],
        "an allocation's data travels as plain bytes; what was cut or changed on the way is refused",
        opaque,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses),
    Claim::new(
        "ipc/access",
        &["S1.29"],
        "an imported pool inherits no access: nothing is opened before the importer has said which devices use it",
        access,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses),
    Claim::new(
        "ipc/ready",
        &["S1.30"],
        "an import waits for nothing on the host, and on the device for what the exporter had submitted",
        ready,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses)
    .every_edge_counts(),
    Claim::new(
        "ipc/free_order",
        &["S1.31"],
        "the importer frees first, and the exporter goes on with the memory afterwards",
        free_order,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses)
    .every_edge_counts(),
    Claim::new(
        "ipc/not_freed_under_the_importer",
        &["S1.31"],
        "a lent buffer that is dropped is leaked and told, not freed under its importer",
        not_freed_under_the_importer,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses)
    .finds(FindingKind::Leak),
    Claim::new(
        "ipc/keeps_its_memory",
        &["S1.32"],
        "a pool made for export keeps its memory whatever its threshold and a trim say; both are refused by our own",
        keeps_its_memory,
    )
    .over(Over::Driver)
    .only_simulated("keeps memory until the pool ends"),
    Claim::new(
        "ipc/only_opens",
        &["S1.33", "S1.34"],
        "an imported pool does not allocate and is not made current, and counts only what was imported",
        only_opens,
    )
    .over(Over::Driver)
    .needs(Needs::TwoProcesses),
    Claim::new(
        "ipc/needs_a_handle_type",
        &["S1.18", "S1.27"],
        "only a pool that was made for it is exported, and only a pool's descriptor is imported",
        needs_a_handle_type,
    )
    .over(Over::Driver),
];

const LEN: usize = 100_000;
/// Bounds a hang; what it waits for has been sent.
const PATIENCE: Duration = Duration::from_secs(300);

/// Both ends of an exported pool.
struct Two {
    exported: ExportedPool,
    imported: ImportedPool,
    to_importer: IpcChannel,
    to_exporter: IpcChannel,
    /// The importer's stream and pinned memory.
    there: Stream,
    pinned: PinnedPool,
}

fn arrived<T>(what: &str, received: Option<T>) -> Outcome<T> {
    received.ok_or_else(|| CheckError::Wrong(format!("{what} does not arrive")))
}

fn exportable(rig: &Rig) -> Outcome<MemoryPool> {
    let pool = MemoryPool::builder(&rig.base.device).limit(ByteSize::mib(64)).export(HandleTypes::POSIX_FD);
    Ok(pool.build()?)
}

fn channels() -> Outcome<(IpcChannel, IpcChannel)> {
    let (a, b) = UnixStream::pair().map_err(|error| CheckError::Refused(format!("no pair of sockets: {error}")))?;
    Ok((IpcChannel::new(a), IpcChannel::new(b)))
}

impl Two {
    fn new(rig: &Rig) -> Outcome<Self> {
        let importer: &Device = rig.other()?;
        let exported = ExportedPool::of(&exportable(rig)?)?;
        let (mut to_importer, mut to_exporter) = channels()?;
        to_importer.send_pool(&exported)?;
        let imported = arrived("the pool", to_exporter.receive_pool(importer, PATIENCE)?)?;
        let imported = imported.enable_access(&[importer])?;
        let (there, pinned) = (Stream::new(importer)?, PinnedPool::builder(importer).build());
        Ok(Two { exported, imported, to_importer, to_exporter, there, pinned })
    }

    /// A buffer of the exporter's, filled, not waited for.
    fn buffer(&self, byte: u8, on: &Stream) -> Outcome<DeviceBuffer> {
        let buffer = DeviceBuffer::new(LEN, on, self.exported.pool())?;
        buffer.fill(byte, on)?;
        Ok(buffer)
    }

    /// Carries an allocation to the importer.
    fn carry(&mut self, shared: &SharedAllocation) -> Outcome<SharedAllocation> {
        self.to_importer.send(shared)?;
        arrived("the allocation", self.to_exporter.receive(PATIENCE)?)
    }

    /// Carries the importer's word back.
    fn finished(&mut self) -> Outcome<Finished> {
        same("allocations that the importer is done with", self.to_exporter.send_all_finished(&self.imported)?, 1)?;
        arrived("the importer's word", self.to_importer.receive_finished(PATIENCE)?)
    }
}

fn foreign(what: &str, bytes: Vec<u8>, byte: u8) -> Outcome {
    same(&format!("a foreign byte {what}"), bytes.into_iter().find(|&found| found != byte), None)
}

fn two_steps(rig: &Rig) -> Outcome {
    let mut two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    for byte in 1..3 {
        let buffer = two.buffer(byte, on)?;
        let (lent, shared) = two.exported.share(buffer, on)?;
        let shared = two.carry(&shared)?;
        let opened = two.imported.open(shared, &two.there)?;
        foreign("in the importer", opened.download_vec(&two.there, &two.pinned)?.wait()?, byte)?;
        opened.fill(byte + 10, &two.there)?;
        drop(opened);
        let finished = two.finished()?;
        let buffer = lent.reclaim(&finished, on).map_err(MemoryError::from)?;
        foreign("in the exporter", rig.base.download(&buffer, on)?, byte + 10)?;
    }
    Ok(())
}

fn opaque(rig: &Rig) -> Outcome {
    let two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    let (lent, shared) = two.exported.share(two.buffer(1, on)?, on)?;
    let bytes = shared.to_bytes();
    refused("bytes that were cut", &rig.base.device, SharedAllocation::from_bytes(&bytes[..bytes.len() - 1]))?;
    refused("no bytes", &rig.base.device, SharedAllocation::from_bytes(&[]))?;
    let opened = two.imported.open(SharedAllocation::from_bytes(&bytes)?, &two.there)?;
    foreign("in the importer", opened.download_vec(&two.there, &two.pinned)?.wait()?, 1)?;
    let finished = Finished::from_bytes(&opened.finish_on_host()?.to_bytes())?;
    drop(lent.reclaim(&finished, on).map_err(MemoryError::from)?);
    Ok(())
}

fn access(rig: &Rig) -> Outcome {
    let importer = rig.other()?;
    let exported = ExportedPool::of(&exportable(rig)?)?;
    let imported = ImportedPool::import(&exported, importer)?;
    same("access of a pool just imported", imported.has_access(importer), false)?;
    let (on, there) = (&rig.base.streams[0], Stream::new(importer)?);
    let buffer = DeviceBuffer::new(LEN, on, exported.pool())?;
    buffer.fill(1, on)?;
    let (lent, shared) = exported.share(buffer, on)?;
    let again = SharedAllocation::from_bytes(&shared.to_bytes())?;
    refused("opening without access", &rig.base.device, imported.open(shared, &there))?;
    let imported = imported.enable_access(&[importer])?;
    same("access that was said", imported.has_access(importer), true)?;
    let opened = imported.open(again, &there)?;
    opened.fill(2, &there)?;
    let finished = opened.finish_on_host()?;
    let buffer = lent.reclaim(&finished, on).map_err(MemoryError::from)?;
    foreign("in the exporter", rig.base.download(&buffer, on)?, 2)
}

fn ready(rig: &Rig) -> Outcome {
    let mut two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    let buffer = two.buffer(7, on)?;
    let (lent, shared) = two.exported.share(buffer, on)?;
    let shared = two.carry(&shared)?;
    let before = (rig.base.device.counters().host_waits, two.there.device().counters().host_waits);
    let opened = two.imported.open(shared, &two.there)?;
    let after = (rig.base.device.counters().host_waits, two.there.device().counters().host_waits);
    same("waits of either host while importing", after, before)?;
    foreign("in the importer", opened.download_vec(&two.there, &two.pinned)?.wait()?, 7)?;
    drop(opened);
    let finished = two.finished()?;
    drop(lent.reclaim(&finished, on).map_err(MemoryError::from)?);
    Ok(())
}

fn free_order(rig: &Rig) -> Outcome {
    let mut two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    let buffer = two.buffer(1, on)?;
    let (lent, shared) = two.exported.share(buffer, on)?;
    let shared = two.carry(&shared)?;
    let opened = two.imported.open(shared, &two.there)?;
    opened.fill(2, &two.there)?;
    // Freed here, in the importer's stream; nothing is waited for.
    drop(opened);
    let finished = two.finished()?;
    let buffer = lent.reclaim(&finished, on).map_err(MemoryError::from)?;
    buffer.fill(3, on)?;
    foreign("in the exporter", rig.base.download(&buffer, on)?, 3)
}

fn not_freed_under_the_importer(rig: &Rig) -> Outcome {
    let mut two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    let buffer = two.buffer(1, on)?;
    let (lent, shared) = two.exported.share(buffer, on)?;
    let shared = two.carry(&shared)?;
    let opened = two.imported.open(shared, &two.there)?;
    drop(lent);
    let told = rig.base.device.take_errors();
    same(
        "errors that tell of the leak",
        told.iter().filter(|e| matches!(e, MemoryError::IpcLeaked { .. })).count(),
        1,
    )?;
    foreign("in the importer, still", opened.download_vec(&two.there, &two.pinned)?.wait()?, 1)?;
    opened.finish_on_host()?;
    Ok(())
}

fn keeps_its_memory(rig: &Rig) -> Outcome {
    let (driver, on, here) = (rig.driver(), &rig.base.streams[0], Location::caller());
    let len = NonZeroUsize::new(LEN).expect("not zero");
    let properties = PoolProperties { handle_types: HandleTypes::POSIX_FD, ..PoolProperties::on(rig.base.device.id()) };
    let bare = rig.call(driver.pool_create(&properties))?;
    let (ptr, _) = on.submit(|driver, on| driver.pool_alloc(bare, len, on, here))?;
    on.submit(|driver, on| driver.free_async(ptr, on, here))?;
    on.synchronize()?;
    let held = || rig.call(driver.pool_attribute(bare, PoolAttribute::ReservedCurrent));
    same("bytes held at a threshold of zero cover what was used", held()? >= LEN as u64, true)?;
    let before = held()?;
    rig.call(driver.pool_trim(bare, 0))?;
    same("bytes held after a trim", held()?, before)?;
    rig.call(driver.pool_destroy(bare))?;
    // Our own type has neither.
    let pool = exportable(rig)?;
    let zero = ReleaseThreshold::Bytes(ByteSize::ZERO);
    refused("a threshold of a pool made for export", &rig.base.device, pool.set_release_threshold(zero))?;
    refused("a trim of a pool made for export", &rig.base.device, pool.trim_to(ByteSize::ZERO))?;
    let built = MemoryPool::builder(&rig.base.device).export(HandleTypes::POSIX_FD).release_threshold(zero).build();
    refused("a pool made for export with a threshold", &rig.base.device, built)
}

fn only_opens(rig: &Rig) -> Outcome {
    let mut two = Two::new(rig)?;
    let on = &rig.base.streams[0];
    // The exporter uses more than it shares.
    let other = two.buffer(9, on)?;
    let buffer = two.buffer(1, on)?;
    let (lent, shared) = two.exported.share(buffer, on)?;
    same("bytes imported before anything is", two.imported.statistics().imported_bytes, ByteSize::ZERO)?;
    let shared = two.carry(&shared)?;
    let opened = two.imported.open(shared, &two.there)?;
    let counted = two.imported.statistics().imported_bytes;
    let (one, both) = (ByteSize::from(LEN), ByteSize::from(2 * LEN));
    same(&format!("{counted} counted are those of one buffer"), counted >= one && counted < both, true)?;
    let finished = opened.finish_on_host()?;
    drop((other, lent.reclaim(&finished, on).map_err(MemoryError::from)?));
    // The bare driver, asked for what our type has no word for.
    let importer = two.there.device();
    let driver = importer.driver();
    let bare = importer.check(driver.pool_import(importer.id(), two.exported.descriptor()))?;
    let len = NonZeroUsize::new(LEN).expect("not zero");
    let here = Location::caller();
    let allocated = two.there.submit(|driver, on| driver.pool_alloc(bare, len, on, here));
    refused("an allocation from an imported pool", importer, allocated)?;
    let current = importer.check(driver.device_set_current_pool(importer.id(), bare));
    refused("an imported pool as the current one", importer, current)?;
    let told = importer.check(driver.pool_attribute(bare, PoolAttribute::UsedCurrent));
    refused("what an imported pool holds", importer, told)?;
    importer.check(driver.pool_destroy(bare))?;
    Ok(())
}

fn needs_a_handle_type(rig: &Rig) -> Outcome {
    refused("exporting a pool that was not made for it", &rig.base.device, ExportedPool::of(&rig.base.pool))?;
    let driver = rig.driver();
    let bare = rig.call(driver.pool_create(&PoolProperties::on(rig.base.device.id())))?;
    refused("its export by the bare driver", &rig.base.device, rig.base.device.check(driver.pool_export(bare)))?;
    rig.call(driver.pool_destroy(bare))?;
    let (no_pool, _other) =
        UnixStream::pair().map_err(|error| CheckError::Refused(format!("no pair of sockets: {error}")))?;
    refused("a descriptor of something else", &rig.base.device, ImportedPool::import(&no_pool, &rig.base.device))
}
