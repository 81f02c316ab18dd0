//! What simulated processes share: pools by descriptor, allocations and events by 64 bytes.
//!
//!   process 0   pool ── buffer ──────────────────────────── free        behind the importer's free, or a finding
//!                │        │
//!   descriptor ──┘        └── import in process 1 ── uses ── free       ordered after `ready`, or a finding
//!
//! Bytes        are there once: both processes see the same memory, at the same address.
//! Descriptors  are real ones, of a pipe whose other end stays here: they are identified by their inode.
//! Access       memory of another process needs an import that is not freed yet, and an imported pool that lets the
//!              device in. A kernel without it loses its device.
//! Silence      what an importer does not free is its leak; a process that crashes leaves nothing imported.

use super::clock::Moment;
use super::heap::{Buffer, Label, Origin};
use super::pool::{BLOCK_BYTES, Pool, Sharing};
use super::queue::Work;
use super::report::{Submission, What};
use super::state::{Device, Event, State, refuse};
use crate::driver::{
    DeviceId, DevicePtr, DriverCode, EventHandle, FindingKind, OpaqueHandle, PoolHandle, Result, Site,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, PipeWriter, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// A descriptor that was given out.
#[derive(Debug)]
struct Export {
    pool: PoolHandle,
    /// Keeps the inode alive; a write to it fails once every copy of the descriptor is closed.
    other_end: PipeWriter,
}

/// An allocation of another process (or of this process), opened here.
#[derive(Debug)]
struct Import {
    process: u32,
    pool: PoolHandle,
    buffer: u64,
    label: Label,
    site: Site,
    freed: Option<Arc<Submission>>,
    /// Freed without a stream, or gone with its process.
    gone: bool,
}

impl Import {
    fn is_open(&self) -> bool {
        self.freed.is_none() && !self.gone
    }
}

#[derive(Debug, Default)]
pub(super) struct Ipc {
    exports: BTreeMap<u64, Export>,
    imports: BTreeMap<u64, Import>,
    next_import: u64,
}

/// What 64 bytes stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Event = 1,
    Allocation = 2,
}

fn opaque(stands: Stands, number: u64) -> OpaqueHandle {
    let mut bytes = [0; size_of::<OpaqueHandle>()];
    // Every byte matters: who changes or cuts one has another handle.
    let mut word = number ^ (stands as u64) << 56;
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ stands as u64;
    }
    bytes
}

fn number_of(stands: Stands, handle: &OpaqueHandle) -> Option<u64> {
    let first: [u8; 8] = *handle.first_chunk()?;
    let number = u64::from_le_bytes(first) ^ (stands as u64) << 56;
    (opaque(stands, number) == *handle).then_some(number)
}

fn inode(descriptor: BorrowedFd<'_>) -> std::io::Result<u64> {
    Ok(File::from(descriptor.try_clone_to_owned()?).metadata()?.ino())
}

// 1. Processes.
impl State {
    pub(super) fn new_process(&mut self) -> u32 {
        let process = self.process_of(self.devices.len() as u32);
        self.devices.extend((0..self.options.devices).map(|_| Device::default()));
        process
    }

    pub(super) fn crash(&mut self) {
        let process = self.process;
        let first = process * self.options.devices;
        for context in first..first + self.options.devices {
            self.lose(context, DriverCode::CONTEXT_IS_DESTROYED, format!("process {process} crashed"));
            // Nothing of it runs any more, and who learns of its end comes after all that did.
            for lane in self.queues.lanes_of(context) {
                if let Some(last) = self.queues.last(lane) {
                    self.queues.host_saw(&last);
                }
            }
        }
        self.ipc.imports.values_mut().filter(|import| import.process == process).for_each(|import| import.gone = true);
    }

    /// Reports what this context has imported and not freed.
    pub(super) fn report_open_imports(&mut self, context: u32, over: &str) {
        let process = self.process_of(context);
        let of_context = |import: &&Import| {
            let pool = self.pools.get(&import.pool);
            import.is_open() && import.process == process && pool.is_none_or(|pool| pool.device == context)
        };
        let open: Vec<_> =
            self.ipc.imports.values().filter(of_context).map(|import| (import.label.clone(), import.site)).collect();
        for (label, site) in open {
            let message = format!("{label} of another process is still imported at {over}");
            if let Some(finding) = self.reports.add(FindingKind::Leak, label.id, None, None, message) {
                finding.site = Some(site);
            }
        }
    }
}

// 2. Events.
impl State {
    /// The context that an event of the caller belongs to, and the event that keeps what was recorded.
    pub(super) fn event_ends(&mut self, call: &'static str, event: EventHandle) -> Result<(u32, EventHandle)> {
        let found = self.events.get(&event).filter(|found| self.process_of(found.device) == self.process);
        match found.map(|found| (found.device, found.opened)) {
            None => Err(self.stale(call, "event", event.0)),
            Some((device, None)) => Ok((device, event)),
            Some((device, Some(target))) if self.events.contains_key(&target) => Ok((device, target)),
            Some((_, Some(target))) => {
                let (event, target) = (event.0, target.0);
                let message = format!(
                    "{call}: event {event} stands for event {target} of another process, which has destroyed it"
                );
                self.reports.add(FindingKind::Handle, event, None, None, message.clone());
                refuse(call, DriverCode::INVALID_HANDLE, message)
            }
        }
    }

    pub(super) fn event_destroy(&mut self, event: EventHandle) -> Result<()> {
        const CALL: &str = "cuEventDestroy";
        let mine = self.events.get(&event).filter(|found| self.process_of(found.device) == self.process);
        let Some(device) = mine.map(|found| found.device) else {
            return Err(self.stale(CALL, "event", event.0));
        };
        self.alive(CALL, device)?;
        self.events.remove(&event);
        self.event_gone(event);
        Ok(())
    }

    pub(super) fn event_ipc_handle(&mut self, event: EventHandle) -> Result<OpaqueHandle> {
        const CALL: &str = "cuIpcGetEventHandle";
        let found = self.event(CALL, event)?;
        if !found.interprocess || self.event_ends(CALL, event)?.1 != event {
            let detail = format!("event {} was not made for other processes", event.0);
            return refuse(CALL, DriverCode::INVALID_HANDLE, detail);
        }
        Ok(opaque(Stands::Event, event.0))
    }

    pub(super) fn event_open_ipc(&mut self, device: DeviceId, handle: &OpaqueHandle) -> Result<EventHandle> {
        const CALL: &str = "cuIpcOpenEventHandle";
        let device = self.usable(CALL, device)?;
        let Some(target) = number_of(Stands::Event, handle).map(EventHandle) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, "these 64 bytes are not the handle of an event");
        };
        let Some(found) = self.events.get(&target) else {
            return refuse(CALL, DriverCode::INVALID_HANDLE, format!("event {} is destroyed", target.0));
        };
        if self.process_of(found.device) == self.process && !self.options.open_own_events {
            return refuse(CALL, DriverCode::INVALID_CONTEXT, "an event is opened in other processes than its own");
        }
        let event = EventHandle(self.new_handle());
        let opened =
            Event { device, timing: false, interprocess: true, opened: Some(target), recorded: None, patience: 0 };
        self.events.insert(event, opened);
        Ok(event)
    }
}

// 3. Pools.
impl State {
    pub(super) fn pool_export(&mut self, handle: PoolHandle) -> Result<OwnedFd> {
        const CALL: &str = "cuMemPoolExportToShareableHandle";
        if self.pool(CALL, handle)?.sharing != Sharing::Exportable {
            return refuse(CALL, DriverCode::INVALID_VALUE, "the pool was not made with a handle type to export by");
        }
        let made = std::io::pipe().and_then(|(reader, writer)| {
            let descriptor = OwnedFd::from(reader);
            let inode = inode(std::os::fd::AsFd::as_fd(&descriptor))?;
            Ok((inode, descriptor, writer))
        });
        match made {
            Ok((inode, descriptor, other_end)) => {
                self.ipc.exports.insert(inode, Export { pool: handle, other_end });
                Ok(descriptor)
            }
            Err(error) => refuse(CALL, DriverCode::UNKNOWN, format!("no descriptor: {error}")),
        }
    }

    pub(super) fn open_descriptors(&mut self) -> usize {
        let process = self.process;
        let mine = |pool: &PoolHandle| self.pools.get(pool).is_some_and(|pool| self.process_of(pool.device) == process);
        let is_open = |export: &&Export| {
            // The write succeeds only while a read end is open; the byte is never read.
            mine(&export.pool)
                && !matches!((&export.other_end).write(&[0]), Err(e) if e.kind() == ErrorKind::BrokenPipe)
        };
        self.ipc.exports.values().filter(is_open).count()
    }

    pub(super) fn pool_import(&mut self, device: DeviceId, descriptor: BorrowedFd<'_>) -> Result<PoolHandle> {
        const CALL: &str = "cuMemPoolImportFromShareableHandle";
        self.usable(CALL, device)?;
        let exported = inode(descriptor).ok().and_then(|inode| self.ipc.exports.get(&inode));
        let Some(from) = exported.map(|export| export.pool) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, "the descriptor is not that of an exported pool");
        };
        let Some((home, host_node)) = self.pools.get(&from).map(|pool| (self.device_id(pool.device), pool.host_node))
        else {
            return refuse(CALL, DriverCode::INVALID_VALUE, "the pool is gone");
        };
        let context = self.context(CALL, home)?;
        let mut pool = Pool::new(context, 0, BLOCK_BYTES);
        pool.sharing = Sharing::Imported { from };
        pool.host_node = host_node;
        let handle = PoolHandle(self.new_handle());
        self.pools.insert(handle, pool);
        Ok(handle)
    }

    pub(super) fn pool_export_pointer(&mut self, ptr: DevicePtr) -> Result<OpaqueHandle> {
        const CALL: &str = "cuMemPoolExportPointer";
        let Some(buffer) = self.memory.in_program(ptr) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("nothing is allocated at {ptr:?}"));
        };
        let exportable = match buffer.origin {
            Origin::Pool(pool) => self.pools.get(&pool).is_some_and(|pool| {
                pool.sharing == Sharing::Exportable && self.process_of(pool.device) == self.process
            }),
            Origin::Device | Origin::Module => false,
        };
        if !exportable || buffer.label.base != ptr.0 {
            let detail = format!("{ptr:?} is not the start of an allocation from a pool that is made for export");
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        Ok(opaque(Stands::Allocation, buffer.label.id))
    }

    pub(super) fn pool_import_pointer(
        &mut self,
        handle: PoolHandle,
        allocation: &OpaqueHandle,
        site: Site,
    ) -> Result<DevicePtr> {
        const CALL: &str = "cuMemPoolImportPointer";
        let unreachable = self.has_unreachable_peer(handle);
        let pool = self.pool(CALL, handle)?;
        let context = pool.device;
        let Sharing::Imported { from } = pool.sharing else {
            return refuse(CALL, DriverCode::INVALID_VALUE, "the pool is not an imported one");
        };
        if unreachable {
            return refuse(CALL, DriverCode::INVALID_DEVICE, "access was set for a device that cannot have it");
        }
        let Some(id) = number_of(Stands::Allocation, allocation) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, "these 64 bytes are not those of an allocation");
        };
        let Some(buffer) = self.memory.get(id).filter(|buffer| buffer.freed.is_none()) else {
            let message = format!("{CALL}: buffer #{id} is imported after its exporter freed it");
            if let Some(finding) = self.reports.add(FindingKind::UseAfterFree, id, None, None, message.clone()) {
                finding.site = Some(site);
            }
            return refuse(CALL, DriverCode::INVALID_VALUE, message);
        };
        let (label, process) = (buffer.label.clone(), self.process_of(context));
        if buffer.origin != Origin::Pool(from) {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("{label} is not from the pool that was imported"));
        }
        if self.import_of(process, id).is_some_and(|import| import.is_open()) {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("{label} is imported already and not freed"));
        }
        let (base, bytes) = (label.base, label.len);
        let import = Import { process, pool: handle, buffer: id, label, site, freed: None, gone: false };
        self.ipc.imports.insert(self.ipc.next_import, import);
        self.ipc.next_import += 1;
        self.pool(CALL, handle)?.imported(bytes);
        Ok(DevicePtr(base))
    }
}

// 4. Uses and frees.
impl State {
    /// Whether devices can reach each other at all, by their contexts.
    pub(super) fn can_reach(&self, user: u32, owner: u32) -> bool {
        let (user, owner) = (self.device_id(user).0, self.device_id(owner).0);
        user != owner && !self.options.refuse_peers && (!self.options.one_way_peers || user > owner)
    }

    /// Whether access was set for a device that cannot have it: accepted while the pool was empty.
    pub(super) fn has_unreachable_peer(&self, pool: PoolHandle) -> bool {
        self.pools.get(&pool).is_some_and(|pool| pool.peers.iter().any(|&peer| !self.can_reach(peer, pool.device)))
    }

    /// The latest import of a buffer in a process.
    fn import_of(&self, process: u32, buffer: u64) -> Option<&Import> {
        self.ipc.imports.values().rev().find(|import| (import.process, import.buffer) == (process, buffer))
    }

    /// A buffer that the caller owns or has imported, and the pool it has it from.
    pub(super) fn pool_here<'a>(&self, buffer: &'a Buffer) -> Option<(&'a Buffer, Option<PoolHandle>)> {
        if self.process_of(buffer.device) == self.process {
            return match buffer.origin {
                Origin::Pool(pool) => Some((buffer, Some(pool))),
                Origin::Device | Origin::Module => Some((buffer, None)),
            };
        }
        let import = self.import_of(self.process, buffer.label.id).filter(|import| import.is_open())?;
        Some((buffer, Some(import.pool)))
    }

    /// The caller's import that begins at `ptr` and is not freed.
    pub(super) fn open_import(&self, ptr: DevicePtr) -> Option<u64> {
        let mine = |import: &Import| import.is_open() && (import.process, import.label.base) == (self.process, ptr.0);
        self.ipc.imports.iter().rev().find(|(_, import)| mine(import)).map(|(&id, _)| id)
    }

    /// Whether the caller has freed its import of a buffer.
    pub(super) fn has_freed_import(&self, buffer: u64) -> bool {
        self.import_of(self.process, buffer).is_some_and(|import| !import.is_open())
    }

    /// Whether submission `number` of a context may touch a buffer of another context.
    pub(super) fn reaches(&self, context: u32, owner: u32, origin: Origin, buffer: u64, number: u64) -> bool {
        let Origin::Pool(pool) = origin else { return false };
        let lets_in = |pool: PoolHandle| self.pools.get(&pool).is_some_and(|pool| pool.lets_in(context));
        if self.process_of(owner) == self.process_of(context) {
            return lets_in(pool);
        }
        self.import_of(self.process_of(context), buffer).is_some_and(|import| {
            let in_time = import.freed.as_ref().is_none_or(|freed| freed.number > number);
            !import.gone && in_time && lets_in(import.pool)
        })
    }

    /// Refuses a copy or a fill by a stream of `context` over bytes that are out of its reach. With `staged`, devices
    /// need not reach each other.
    pub(super) fn may_use(
        &mut self,
        call: &'static str,
        context: u32,
        id: u64,
        staged: bool,
        site: Site,
    ) -> Result<()> {
        let Some(buffer) = self.memory.get(id) else { return Ok(()) };
        let (label, owner, origin) = (buffer.label.clone(), buffer.device, buffer.origin);
        if owner == context && !self.is_shut_out(context, origin) {
            return Ok(());
        }
        let foreign = self.process_of(owner) != self.process;
        let (kind, message) = match self.import_of(self.process, id) {
            None if foreign => (
                FindingKind::OutOfBounds,
                format!("{call} uses {label} of another process, which this one has not imported"),
            ),
            Some(import) if foreign && !import.is_open() => (
                FindingKind::UseAfterFree,
                format!("{call} uses {label} of another process after its import was freed"),
            ),
            _ if staged || self.reaches(context, owner, origin, id, u64::MAX - 1) => return Ok(()),
            _ => {
                let (device, owner) = (self.device_id(context), self.device_id(owner));
                let message = format!("{call} on {device} touches {label} of {owner}, to which it has no access");
                (FindingKind::OutOfBounds, message)
            }
        };
        if let Some(finding) = self.reports.add(kind, id, None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    /// Frees an import in stream order.
    pub(super) fn free_import(&mut self, id: u64, lane: u32, site: Site) {
        let (moment, by) = self.prepare(lane, What::Free, Some(site));
        let Some(import) = self.ipc.imports.get_mut(&id) else { return };
        import.freed = Some(by.clone());
        let (buffer, pool, label, process) = (import.buffer, import.pool, import.label.clone(), import.process);
        let mut users = self.memory.get(buffer).map(|found| found.named_unordered(&moment)).unwrap_or_default();
        // The exporter's uses are its own affair.
        users.retain(|user| self.process_of(self.queues.lane(user.epoch.lane).device) == process);
        for user in &users {
            self.unordered_free(&label, &by, user);
        }
        self.push(moment, by, Work::Unmap { pool, buffer, bytes: label.len });
        self.faults.freed();
        self.counters.frees += 1;
    }

    /// The turn of such a free has come.
    pub(super) fn execute_unmap(
        &mut self,
        (pool, buffer, bytes): (PoolHandle, u64, u64),
        moment: &Moment,
        by: &Arc<Submission>,
    ) {
        let process = self.process_of(self.queues.lane(moment.epoch.lane).device);
        if let Some(found) = self.memory.get(buffer) {
            let label = found.label.clone();
            let conflicts = found.shadow.unfinished(&|epoch| {
                moment.is_after(epoch) || self.process_of(self.queues.lane(epoch.lane).device) != process
            });
            for conflict in conflicts {
                self.unordered_free(&label, by, &conflict.other);
            }
        }
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.unmapped(bytes);
        }
    }

    /// Frees an import without a stream: the driver takes the caller's word that every use is over.
    pub(super) fn free_import_sync(&mut self, id: u64, site: Site) {
        let Some(import) = self.ipc.imports.get_mut(&id) else { return };
        import.gone = true;
        let (buffer, pool, label, process) = (import.buffer, import.pool, import.label.clone(), import.process);
        let mut users = self.memory.get(buffer).map(|found| found.named.clone()).unwrap_or_default();
        users.retain(|user| self.process_of(self.queues.lane(user.epoch.lane).device) == process);
        users.retain(|user| !self.queues.host().has_passed(user.epoch));
        for user in &users {
            let message = format!("free of {label} without a stream, which has not waited for {user}");
            if let Some(finding) = self.reports.add(FindingKind::UnorderedFree, buffer, None, Some(user), message) {
                finding.site = Some(site);
            }
        }
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.unmapped(label.len);
        }
        self.faults.freed();
        self.counters.frees += 1;
    }

    /// The exporter frees: every importer must have done so before, in an order that its free comes after. With `None`
    /// the free has no stream, and comes after what the host has waited for.
    pub(super) fn check_importers(&mut self, buffer: u64, free: Option<(&Moment, &Arc<Submission>)>, site: Site) {
        let of_buffer: Vec<_> = self
            .ipc
            .imports
            .values()
            .filter(|import| import.buffer == buffer && !import.gone)
            .map(|import| (import.label.clone(), import.process, import.site, import.freed.clone()))
            .collect();
        let by = free.map(|(_, by)| &**by);
        for (label, process, imported_at, freed) in of_buffer {
            let message = match &freed {
                None => format!(
                    "{label} is freed by its exporter while process {process} still has it (imported at {imported_at})"
                ),
                Some(freed) => {
                    let ordered = match free {
                        Some((moment, _)) => moment.is_after(freed.epoch),
                        None => self.queues.host().has_passed(freed.epoch),
                    };
                    if ordered {
                        continue;
                    }
                    format!("the exporter's free of {label} is not ordered after the {freed} of process {process}")
                }
            };
            let found = self.reports.add(FindingKind::UnorderedFree, buffer, by, freed.as_deref(), message);
            if let Some(finding) = found {
                finding.site = Some(site);
            }
        }
        self.ipc.imports.retain(|_, import| import.buffer != buffer || import.is_open());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_bytes_stand_for_one_thing() {
        for number in [0, 1, 16, 1 << 40] {
            let handle = opaque(Stands::Event, number);
            assert_eq!(number_of(Stands::Event, &handle), Some(number));
            assert_eq!(number_of(Stands::Allocation, &handle), None);
            for index in 0..handle.len() {
                let mut bytes = handle;
                bytes[index] ^= 1;
                assert_eq!(number_of(Stands::Event, &bytes), None, "byte {index}");
            }
        }
    }
}
