//! The driver's calls, one by one: what CUDA refuses is refused, the rest is queued.

use super::SimDriver;
use super::heap::Origin;
use super::launch;
use super::order::Classes;
use super::pool::{BLOCK_BYTES, Knowledge, Pool};
use super::queue::Work;
use super::report::What;
use super::state::{Event, State};
use crate::driver::*;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// CUDA 12.2, the oldest that is supported.
const VERSION: DriverVersion = DriverVersion(12020);
const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
const PAGE_BYTES: u64 = 2 << 20;

fn refuse<T>(call: &'static str, code: DriverCode, detail: impl Into<Box<str>>) -> Result<T> {
    Err(DriverError::new(call, code).with_detail(detail))
}

// 1. Allocation and free.
impl State {
    fn allocation_fails(&mut self, call: &'static str, bytes: usize) -> Result<()> {
        if self.faults.allocation_fails() {
            return refuse(call, DriverCode::OUT_OF_MEMORY, format!("failed on order: {bytes} bytes"));
        }
        Ok(())
    }

    fn pool_alloc(&mut self, handle: PoolHandle, bytes: usize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        const CALL: &str = "cuMemAllocFromPoolAsync";
        let lane = self.lane(CALL, stream)?;
        let device = self.queues.lane(lane).device;
        let refuse_peers = self.options.refuse_peers;
        let pool = self.pool(CALL, handle)?;
        if pool.device != device {
            let detail = format!("a pool of device {} and a stream of device {device}", pool.device);
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        if refuse_peers && !pool.peers.is_empty() {
            return refuse(CALL, DriverCode::INVALID_DEVICE, "access was set for a device that cannot have it");
        }
        self.allocation_fails(CALL, bytes)?;
        let moment = self.queues.next_moment(lane);
        let State { pools, devices, next_address, options, queues, random, .. } = self;
        let pool = pools.get_mut(&handle).expect("looked up above");
        let room = std::cell::RefCell::new((devices, next_address));
        let block = pool.allocate(
            bytes as u64,
            &Knowledge {
                moment: &moment,
                finished: &|epoch| queues.has_finished(epoch),
                host_saw: &|epoch| queues.host().has_passed(epoch),
            },
            random,
            &mut |bytes| {
                let (devices, next_address) = &mut *room.borrow_mut();
                State::place(devices, next_address, options, device, bytes)
            },
            &mut |_, bytes| room.borrow_mut().0[device as usize].used_bytes -= bytes,
        );
        let Some(block) = block else {
            let free = self.options.memory_bytes - self.devices[device as usize].used_bytes;
            return refuse(CALL, DriverCode::OUT_OF_MEMORY, format!("{bytes} bytes wanted, {free} free on the device"));
        };
        if let Some(epoch) = block.wait_for {
            let (moment, by) = self.prepare(lane, What::Wait, Some(site));
            self.push(moment, by, Work::Wait { epoch });
        }
        let (moment, by) = self.prepare(lane, What::Allocation, Some(site));
        let origin = Origin::Pool(handle);
        let id = self.memory.announce(block.base, bytes as u64, device, origin, Some(by.clone()), Some(site));
        self.push(moment, by, Work::Allocate { block: id });
        self.counters.allocations += 1;
        self.counters.allocated_bytes += bytes as u64;
        Ok(DevicePtr(block.base))
    }

    /// The buffer that begins at `ptr`, or a finding and an error.
    fn freeable(&mut self, call: &'static str, ptr: DevicePtr, site: Site) -> Result<u64> {
        let (kind, message) = match self.memory.in_program(ptr) {
            Some(buffer) if buffer.label.base != ptr.0 => {
                (FindingKind::ForeignFree, format!("{ptr:?} lies inside {}: only its start can be freed", buffer.label))
            }
            Some(buffer) if buffer.origin == Origin::Module => {
                (FindingKind::ForeignFree, format!("{} is a variable of a module", buffer.label))
            }
            Some(buffer) => return Ok(buffer.label.id),
            None => match self.memory.formerly(ptr.0) {
                Some((label, freed)) => {
                    let message = match &freed {
                        Some(freed) => format!("{label} is freed twice: first on stream {}", freed.stream.0),
                        None => format!("{label} is freed twice"),
                    };
                    if let Some(finding) =
                        self.reports.add(FindingKind::DoubleFree, label.id, None, freed.as_deref(), message.clone())
                    {
                        finding.site = Some(site);
                    }
                    return refuse(call, DriverCode::INVALID_VALUE, message);
                }
                None => (FindingKind::ForeignFree, format!("{ptr:?} was never allocated here")),
            },
        };
        if let Some(finding) = self.reports.add(kind, ptr.0, None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    fn free_async(&mut self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFreeAsync";
        let lane = self.lane(CALL, stream)?;
        let id = self.freeable(CALL, ptr, site)?;
        let device = self.queues.lane(lane).device;
        let (moment, by) = self.prepare(lane, What::Free, Some(site));
        let buffer = self.memory.get(id).expect("found above");
        let (label, owner, origin) = (buffer.label.clone(), buffer.device, buffer.origin);
        if owner != device {
            let message = format!("{label} of device {owner} is freed on a stream of device {device}");
            self.reports.add(FindingKind::ForeignFree, id, Some(&by), None, message.clone());
            return refuse(CALL, DriverCode::INVALID_VALUE, message);
        }
        let allocated = buffer.allocated.clone().filter(|allocated| !moment.is_after(allocated.epoch));
        for user in buffer.named_unordered(&moment).iter().chain(&allocated) {
            self.unordered_free(&label, &by, user);
        }
        self.memory.retire(id, Some(by.clone()));
        if let Origin::Pool(pool) = origin
            && let Some(pool) = self.pools.get_mut(&pool)
        {
            pool.free(label.base, Some(moment.epoch));
        }
        self.push(moment, by, Work::Free { block: id });
        self.faults.freed();
        self.counters.frees += 1;
        Ok(())
    }

    fn alloc_sync(&mut self, device: DeviceId, bytes: usize, site: Site) -> Result<DevicePtr> {
        const CALL: &str = "cuMemAlloc";
        let device = self.usable(CALL, device)?;
        self.allocation_fails(CALL, bytes)?;
        let Some(address) = self.place_here(device, (bytes as u64).next_multiple_of(BLOCK_BYTES)) else {
            let free = self.options.memory_bytes - self.devices[device as usize].used_bytes;
            return refuse(CALL, DriverCode::OUT_OF_MEMORY, format!("{bytes} bytes wanted, {free} free on the device"));
        };
        let id = self.memory.announce(address, bytes as u64, device, Origin::Device, None, Some(site));
        if let Err(error) = self.memory.begin(id) {
            return refuse(CALL, DriverCode::UNKNOWN, error);
        }
        self.counters.allocations += 1;
        self.counters.allocated_bytes += bytes as u64;
        Ok(DevicePtr(address))
    }

    fn free_sync(&mut self, ptr: DevicePtr, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFree";
        let id = self.freeable(CALL, ptr, site)?;
        let buffer = self.memory.get(id).expect("found above");
        let (label, device, origin) = (buffer.label.clone(), buffer.device, buffer.origin);
        self.alive(CALL, device)?;
        let lanes = self.queues.lanes_of(device);
        match origin {
            // Memory without a stream: the call waits for the whole device.
            Origin::Device | Origin::Module => {
                self.drain(&lanes);
                self.alive(CALL, device)?;
                self.devices[device as usize].used_bytes -= label.len.next_multiple_of(BLOCK_BYTES);
            }
            // Memory of a pool: the driver takes the caller's word that every use is over.
            Origin::Pool(pool) => {
                let mut users = buffer.named.clone();
                users.extend(buffer.shadow.unfinished(&|_| false).into_iter().map(|conflict| conflict.other));
                users.extend(buffer.allocated.clone());
                users.retain(|user| !self.queues.host().has_passed(user.epoch));
                for user in &users {
                    let message = format!("free of {label} without a stream, which has not waited for {user}");
                    if let Some(finding) = self.reports.add(FindingKind::UnorderedFree, id, None, Some(user), message) {
                        finding.site = Some(site);
                    }
                }
                if !users.is_empty() {
                    self.drain(&lanes);
                    self.alive(CALL, device)?;
                }
                if let Some(pool) = self.pools.get_mut(&pool) {
                    pool.free(label.base, None);
                }
            }
        }
        for conflict in self
            .memory
            .get(id)
            .map(|buffer| buffer.shadow.unfinished(&|epoch| self.queues.host().has_passed(epoch)))
            .unwrap_or_default()
        {
            let message = format!("free of {label} without a stream, which has not waited for {}", conflict.other);
            self.reports.add(FindingKind::UnorderedFree, id, None, Some(&conflict.other), message);
        }
        self.memory.retire(id, None);
        self.memory.end(id);
        self.drop_closed_pools();
        self.faults.freed();
        self.counters.frees += 1;
        Ok(())
    }
}

// 2. Copies.
impl State {
    /// The number of the buffer that holds these device bytes in program order, or a finding and an error.
    fn device_range(&mut self, call: &'static str, ptr: DevicePtr, len: u64, site: Site) -> Result<u64> {
        let (kind, id, message) = match self.memory.in_program(ptr) {
            Some(buffer) => {
                let offset = ptr.0 - buffer.label.base;
                if len <= buffer.label.len - offset {
                    return Ok(buffer.label.id);
                }
                let message = format!("{call} touches bytes {offset}..{} of {}", offset + len, buffer.label);
                (FindingKind::OutOfBounds, buffer.label.id, message)
            }
            None => match self.memory.formerly(ptr.0) {
                Some((label, _)) => {
                    (FindingKind::UseAfterFree, label.id, format!("{call} uses {label} after its free"))
                }
                None => (FindingKind::OutOfBounds, ptr.0, format!("{call}: nothing is allocated at {ptr:?}")),
            },
        };
        if let Some(finding) = self.reports.add(kind, id, None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    fn host_range(&mut self, call: &'static str, span: &HostSpan, site: Site) -> Result<()> {
        if self.host.contains(span.block()) {
            return Ok(());
        }
        let message = format!("{call}: {:?} is not pinned memory of this driver (any more)", span.block());
        if let Some(finding) = self.reports.add(FindingKind::Handle, span.block().id(), None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    fn copy(&mut self, copy: &CopyOp, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemcpyAsync";
        let lane = self.lane(CALL, stream)?;
        let len = copy.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let (what, ends, host, work) = match copy {
            CopyOp::HostToDevice { from, to } => {
                self.host_range(CALL, from, site)?;
                let work = Work::Upload { from: from.clone(), to: *to };
                self.counters.uploaded_bytes += len;
                (What::Upload, vec![self.device_range(CALL, *to, len, site)?], Some((from, Classes::READ)), work)
            }
            CopyOp::DeviceToHost { from, to } => {
                self.host_range(CALL, to, site)?;
                let work = Work::Download { from: *from, to: to.clone() };
                self.counters.downloaded_bytes += len;
                (What::Download, vec![self.device_range(CALL, *from, len, site)?], Some((to, Classes::WRITE)), work)
            }
            CopyOp::DeviceToDevice { from, to, .. } => {
                if from.0 < to.0 + len && to.0 < from.0 + len {
                    let detail = format!("{len} bytes at {from:?} and {to:?} overlap");
                    return refuse(CALL, DriverCode::INVALID_VALUE, detail);
                }
                let ends = vec![self.device_range(CALL, *from, len, site)?, self.device_range(CALL, *to, len, site)?];
                self.counters.copied_bytes += len;
                (What::Copy, ends, None, Work::Copy { from: *from, to: *to, len })
            }
        };
        self.counters.copies += 1;
        let (moment, by) = self.prepare(lane, what, Some(site));
        for id in ends {
            self.name_ordered(id, &moment, &by);
        }
        if let Some((span, classes)) = host {
            let conflicts = self.host.touch(span, classes, &moment, &by);
            self.unordered_host_access(span, &by, &conflicts);
        }
        self.push(moment, by, work);
        Ok(())
    }

    /// Notes that a submission names a buffer, which must have been allocated before it.
    fn name_ordered(&mut self, id: u64, moment: &super::clock::Moment, by: &Arc<super::report::Submission>) {
        self.memory.name(id, by);
        if let Some(buffer) = self.memory.get(id)
            && let Some(allocated) = buffer.allocated.clone()
        {
            let label = buffer.label.clone();
            self.check_begun(&label, &allocated, moment, by);
        }
    }

    fn fill(&mut self, ptr: DevicePtr, byte: u8, len: u64, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemsetD8Async";
        let lane = self.lane(CALL, stream)?;
        if len == 0 {
            return Ok(());
        }
        let id = self.device_range(CALL, ptr, len, site)?;
        self.counters.fills += 1;
        let (moment, by) = self.prepare(lane, What::Fill, Some(site));
        self.name_ordered(id, &moment, &by);
        self.push(moment, by, Work::Fill { ptr, byte, len });
        Ok(())
    }

    fn write_word(&mut self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuStreamWriteValue32";
        let lane = self.lane(CALL, stream)?;
        if !self.options.stream_memory_operations {
            return refuse(CALL, DriverCode::NOT_SUPPORTED, "StreamMemoryOperations is 0");
        }
        if word.len() != 4 || !word.offset().is_multiple_of(4) {
            let detail = format!("a word has 4 bytes at a multiple of 4, not {} at {}", word.len(), word.offset());
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        self.host_range(CALL, word, site)?;
        let (moment, by) = self.prepare(lane, What::Word, Some(site));
        let conflicts = self.host.touch(word, Classes::ATOMIC, &moment, &by);
        self.unordered_host_access(word, &by, &conflicts);
        let Self { host, queues, .. } = self;
        host.word_submitted(word, &moment, &|epoch| queues.has_finished(epoch));
        self.push(moment, by, Work::Word { word: word.clone(), value });
        Ok(())
    }

    fn host_access(&mut self, span: &HostSpan, access: Access, site: Site) {
        if access == Access::Atomic {
            let Self { host, queues, .. } = self;
            match host.words_seen(span, &|epoch| queues.has_finished(epoch)) {
                Ok(seen) => seen.iter().for_each(|moment| self.queues.host_saw(moment)),
                Err(Some((moment, patience))) => {
                    self.poll(&moment, patience);
                }
                Err(None) => {}
            }
        }
        let verb = match access {
            Access::Read => "reads",
            Access::Write | Access::ReadWrite => "writes",
            Access::Atomic => "looks at words of",
        };
        self.check_host(span, access, site, verb);
    }

    fn check_host(&mut self, span: &HostSpan, access: Access, site: Site, verb: &str) {
        let Self { host, queues, reports, .. } = self;
        let block = span.block();
        for conflict in host.disturbed(span, access, &|epoch| queues.host().has_passed(epoch)) {
            let message = format!("the host {verb} {block:?} without having waited for {}", conflict.other);
            let finding = reports.add(FindingKind::HostRace, block.id(), None, Some(&conflict.other), message);
            if let Some(finding) = finding {
                finding.site = Some(site);
            }
        }
    }

    fn host_free(&mut self, block: &Arc<HostBlock>, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFreeHost";
        let Ok(span) = HostSpan::new(block, 0, block.len()) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("{block:?}"));
        };
        self.host_range(CALL, &span, site)?;
        self.check_host(&span, Access::Write, site, "frees");
        self.host.remove(block);
        Ok(())
    }
}

// 3. Synchronisation.
impl State {
    fn synchronize(&mut self, call: &'static str, lanes: &[u32]) -> Result<()> {
        self.counters.host_waits += 1;
        self.drain(lanes);
        self.pools_synchronised();
        lanes.iter().try_for_each(|&lane| self.alive(call, self.queues.lane(lane).device))
    }

    fn stream_query(&mut self, stream: StreamHandle) -> Result<bool> {
        const CALL: &str = "cuStreamQuery";
        let lane = self.lane(CALL, stream)?;
        let Some(last) = self.queues.last(lane) else { return Ok(true) };
        let finished = self.poll(&last, self.queues.lane(lane).patience);
        let queue = self.queues.lane_mut(lane);
        queue.patience = if finished { 0 } else { queue.patience.saturating_add(1) };
        let device = queue.device;
        self.alive(CALL, device)?;
        Ok(finished)
    }

    fn stream_wait(&mut self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuStreamWaitEvent";
        let lane = self.lane(CALL, stream)?;
        let recorded = self.event(CALL, event)?.recorded.clone();
        self.counters.stream_waits += 1;
        if self.faults.wait_is_ignored() {
            return Ok(());
        }
        if let Some(record) = &recorded {
            self.queues.order_after(lane, record);
        }
        let (moment, by) = self.prepare(lane, What::Wait, Some(site));
        match recorded {
            Some(record) => self.push(moment, by, Work::Wait { epoch: record.epoch }),
            None => {
                let message = format!("stream {} waits for event {}, which was never recorded", stream.0, event.0);
                self.reports.add(FindingKind::UnrecordedEvent, event.0, Some(&by), None, message);
            }
        }
        Ok(())
    }

    fn stream_destroy(&mut self, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuStreamDestroy";
        let lane = self.lane(CALL, stream)?;
        if self.queues.lane(lane).last_free > self.queues.host().get(lane) {
            let message = format!("stream {} is destroyed with frees that nobody has waited for", stream.0);
            self.reports.add(FindingKind::Handle, stream.0, None, None, message);
        }
        self.queues.close(lane);
        Ok(())
    }

    fn event_record(&mut self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuEventRecord";
        let lane = self.lane(CALL, stream)?;
        let event_device = self.event(CALL, event)?.device;
        let device = self.queues.lane(lane).device;
        if event_device != device {
            let message =
                format!("event {} of device {event_device} on stream {} of device {device}", event.0, stream.0);
            if let Some(finding) = self.reports.add(FindingKind::Handle, event.0, None, None, message.clone()) {
                (finding.stream, finding.site) = (Some(stream), Some(site));
            }
            return refuse(CALL, DriverCode::INVALID_HANDLE, message);
        }
        self.counters.events_recorded += 1;
        let (moment, by) = self.prepare(lane, What::Record, Some(site));
        let event = self.event(CALL, event)?;
        (event.recorded, event.patience) = (Some(moment.clone()), 0);
        self.push(moment, by, Work::Record);
        Ok(())
    }

    fn event_query(&mut self, event: EventHandle) -> Result<bool> {
        const CALL: &str = "cuEventQuery";
        let found = self.event(CALL, event)?;
        let (device, patience) = (found.device, found.patience);
        let Some(record) = found.recorded.clone() else { return Ok(true) };
        let finished = self.poll(&record, patience);
        self.alive(CALL, device)?;
        self.event(CALL, event)?.patience = if finished { 0 } else { patience.saturating_add(1) };
        Ok(finished)
    }

    fn event_synchronize(&mut self, event: EventHandle) -> Result<()> {
        const CALL: &str = "cuEventSynchronize";
        let found = self.event(CALL, event)?;
        let device = found.device;
        let recorded = found.recorded.clone();
        self.counters.host_waits += 1;
        if let Some(record) = recorded {
            self.wait_for(&record);
        }
        self.pools_synchronised();
        self.alive(CALL, device)
    }

    fn event_elapsed_ms(&mut self, start: EventHandle, end: EventHandle) -> Result<f32> {
        const CALL: &str = "cuEventElapsedTime";
        for event in [start, end] {
            let found = self.event(CALL, event)?;
            if !found.timing {
                return refuse(CALL, DriverCode::INVALID_HANDLE, format!("event {} was made without timing", event.0));
            }
            let Some(record) = found.recorded.clone() else {
                return refuse(CALL, DriverCode::INVALID_HANDLE, format!("event {} was never recorded", event.0));
            };
            if !self.queues.has_finished(record.epoch) {
                return refuse(CALL, DriverCode::NOT_READY, format!("event {} has not happened", event.0));
            }
        }
        Ok(0.0)
    }

    fn device_close(&mut self, device: DeviceId) -> Result<String> {
        const CALL: &str = "cuDevicePrimaryCtxRelease";
        let Some(found) = self.devices.get_mut(device.0 as usize).filter(|found| found.open > 0) else {
            return refuse(CALL, DriverCode::INVALID_CONTEXT, format!("{device} is not open"));
        };
        found.open -= 1;
        if found.open > 0 {
            return Ok(String::new());
        }
        if self.devices[device.0 as usize].lost.is_none() {
            let lanes = self.queues.lanes_of(device.0);
            self.drain(&lanes);
            self.pools_synchronised();
        }
        if self.devices[device.0 as usize].lost.is_none() {
            let over = format!("the end of {device}");
            self.report_leaks(&over, &|buffer| buffer.device == device.0 && buffer.origin != Origin::Module);
            let pinned: Vec<_> = self
                .host
                .of_device(device.0)
                .into_iter()
                .map(|pinned| {
                    (format!("{:?} is still allocated at {over}", pinned.block), pinned.block.id(), pinned.site)
                })
                .collect();
            for (message, id, site) in pinned {
                if let Some(finding) = self.reports.add(FindingKind::Leak, id, None, None, message) {
                    finding.site = Some(site);
                }
            }
        }
        Ok(self.reports.unseen())
    }
}

// 4. Pools.
impl State {
    fn pool_create(&mut self, device: DeviceId, properties: &PoolProperties) -> Result<PoolHandle> {
        let device = self.usable("cuMemPoolCreate", device)?;
        let handle = PoolHandle(self.new_handle());
        // Real pages on a device of a real size; smaller ones where a test gives it little memory.
        let page = PAGE_BYTES.min((self.options.memory_bytes / 32).max(1).next_power_of_two()).max(BLOCK_BYTES);
        let max_bytes = properties.max_bytes.map_or(u64::MAX, |max| max.div_ceil(page).saturating_mul(page));
        self.pools.insert(handle, Pool::new(device, max_bytes, page));
        Ok(handle)
    }

    fn pool_destroy(&mut self, handle: PoolHandle) -> Result<()> {
        self.pool("cuMemPoolDestroy", handle)?.closing = true;
        let origin = Origin::Pool(handle);
        self.report_leaks("the end of its pool", &|buffer| buffer.origin == origin);
        self.drop_closed_pools();
        Ok(())
    }

    fn pool_attribute(&mut self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        let pool = self.pool("cuMemPoolGetAttribute", pool)?;
        Ok(match attribute {
            PoolAttribute::ReuseFollowEventDependencies => pool.reuse.follow_events.into(),
            PoolAttribute::ReuseAllowOpportunistic => pool.reuse.opportunistic.into(),
            PoolAttribute::ReuseAllowInternalDependencies => pool.reuse.internal_dependencies.into(),
            PoolAttribute::ReleaseThreshold => pool.release_threshold,
            PoolAttribute::ReservedCurrent => pool.reserved(),
            PoolAttribute::ReservedHigh => pool.reserved_high(),
            PoolAttribute::UsedCurrent => pool.used(),
            PoolAttribute::UsedHigh => pool.used_high(),
        })
    }

    fn pool_set_attribute(&mut self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        const CALL: &str = "cuMemPoolSetAttribute";
        let pool = self.pool(CALL, pool)?;
        let invalid = || refuse(CALL, DriverCode::INVALID_VALUE, format!("{attribute:?} cannot be {value}"));
        let switch = match attribute {
            PoolAttribute::ReuseFollowEventDependencies => &mut pool.reuse.follow_events,
            PoolAttribute::ReuseAllowOpportunistic => &mut pool.reuse.opportunistic,
            PoolAttribute::ReuseAllowInternalDependencies => &mut pool.reuse.internal_dependencies,
            PoolAttribute::ReleaseThreshold => {
                pool.release_threshold = value;
                return Ok(());
            }
            PoolAttribute::ReservedHigh if value == 0 => {
                pool.reset_reserved_high();
                return Ok(());
            }
            PoolAttribute::UsedHigh if value == 0 => {
                pool.reset_used_high();
                return Ok(());
            }
            _ => return invalid(),
        };
        match value {
            0 | 1 => *switch = value == 1,
            _ => return invalid(),
        }
        Ok(())
    }

    fn pool_trim(&mut self, handle: PoolHandle, keep_bytes: u64) -> Result<()> {
        self.pool("cuMemPoolTrimTo", handle)?;
        let Self { pools, devices, queues, .. } = self;
        if let Some(pool) = pools.get_mut(&handle) {
            let device = &mut devices[pool.device as usize];
            pool.trim(keep_bytes, &|epoch| queues.host().has_passed(epoch), &mut |_, bytes| device.used_bytes -= bytes);
        }
        Ok(())
    }

    fn pool_set_access(&mut self, handle: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        const CALL: &str = "cuMemPoolSetAccess";
        let refuse_peers = self.options.refuse_peers;
        if peer.0 as usize >= self.devices.len() {
            return refuse(CALL, DriverCode::INVALID_DEVICE, format!("{peer} does not exist"));
        }
        let pool = self.pool(CALL, handle)?;
        if pool.device == peer.0 {
            return match accessible {
                true => Ok(()),
                false => refuse(CALL, DriverCode::INVALID_VALUE, "a pool's own device always has access"),
            };
        }
        // CUDA accepts an impossible peer on an empty pool, and then fails the next allocation.
        if accessible && refuse_peers && pool.reserved() > 0 {
            return refuse(CALL, DriverCode::INVALID_DEVICE, format!("{peer} cannot reach device {}", pool.device));
        }
        if accessible {
            pool.peers.insert(peer.0);
        } else {
            pool.peers.remove(&peer.0);
        }
        Ok(())
    }
}

impl Driver for SimDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Sim
    }

    fn version(&self) -> DriverVersion {
        VERSION
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.options.devices)
    }

    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo> {
        self.existing("cuDeviceGetName", device)?;
        Ok(DeviceInfo { name: "simulated device".into(), total_bytes: self.options.memory_bytes })
    }

    fn attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> Result<i32> {
        self.existing("cuDeviceGetAttribute", device)?;
        let value = match attribute {
            DeviceAttribute::ComputeCapabilityMajor => return Ok(COMPUTE_CAPABILITY.0),
            DeviceAttribute::ComputeCapabilityMinor => return Ok(COMPUTE_CAPABILITY.1),
            DeviceAttribute::MultiprocessorCount => self.options.multiprocessors,
            DeviceAttribute::WarpSize => 32,
            DeviceAttribute::MaxThreadsPerBlock => launch::MAX_THREADS_PER_BLOCK,
            DeviceAttribute::MaxThreadsPerMultiprocessor => launch::THREADS_PER_MULTIPROCESSOR,
            DeviceAttribute::MaxRegistersPerMultiprocessor => launch::REGISTERS_PER_MULTIPROCESSOR,
            DeviceAttribute::MaxSharedMemoryPerBlock => launch::SHARED_PER_BLOCK,
            DeviceAttribute::MaxSharedMemoryPerBlockOptin => launch::SHARED_PER_BLOCK_OPTIN,
            DeviceAttribute::MaxSharedMemoryPerMultiprocessor => launch::SHARED_PER_MULTIPROCESSOR,
            DeviceAttribute::MaxGridDimX => launch::MAX_GRID_X,
            DeviceAttribute::L2CacheBytes => 4 << 20,
            DeviceAttribute::ClockRateKhz | DeviceAttribute::MemoryClockRateKhz => 0,
            DeviceAttribute::GlobalMemoryBusWidthBits => 0,
            DeviceAttribute::MemoryPoolsSupported => 1,
            DeviceAttribute::StreamMemoryOperations => self.options.stream_memory_operations.into(),
            DeviceAttribute::Integrated => 0,
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    fn device_open(&self, device: DeviceId) -> Result<()> {
        self.existing("cuDevicePrimaryCtxRetain", device)?;
        let mut state = self.state();
        state.alive("cuDevicePrimaryCtxRetain", device.0)?;
        state.devices[device.0 as usize].open += 1;
        Ok(())
    }

    fn device_close(&self, device: DeviceId) -> Result<()> {
        let unseen = self.state().device_close(device)?;
        if !unseen.is_empty() {
            eprintln!("findings of the simulated device:\n{unseen}");
        }
        Ok(())
    }

    fn device_synchronize(&self, device: DeviceId) -> Result<()> {
        const CALL: &str = "cuCtxSynchronize";
        let mut state = self.state();
        let device = state.usable(CALL, device)?;
        let lanes = state.queues.lanes_of(device);
        state.synchronize(CALL, &lanes)?;
        state.alive(CALL, device)
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let state = self.state();
        let device = state.usable("cuMemGetInfo", device)?;
        let total_bytes = self.options.memory_bytes;
        Ok(MemoryInfo { free_bytes: total_bytes - state.devices[device as usize].used_bytes, total_bytes })
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> Result<bool> {
        self.existing("cuDeviceCanAccessPeer", device)?;
        self.existing("cuDeviceCanAccessPeer", peer)?;
        Ok(device != peer && !self.options.refuse_peers)
    }

    fn stream_create(&self, device: DeviceId, _priority: StreamPriority) -> Result<StreamHandle> {
        let mut state = self.state();
        let device = state.usable("cuStreamCreateWithPriority", device)?;
        let stream = StreamHandle(state.new_handle());
        state.queues.open(device, stream);
        Ok(stream)
    }

    fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.state().stream_destroy(stream)
    }

    fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        self.state().stream_query(stream)
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuStreamSynchronize";
        let mut state = self.state();
        let lane = state.lane(CALL, stream)?;
        state.synchronize(CALL, &[lane])
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()> {
        self.state().stream_wait(stream, event, site)
    }

    fn event_create(&self, device: DeviceId, timing: bool) -> Result<EventHandle> {
        let mut state = self.state();
        let device = state.usable("cuEventCreate", device)?;
        let event = EventHandle(state.new_handle());
        state.events.insert(event, Event { device, timing, recorded: None, patience: 0 });
        Ok(event)
    }

    fn event_destroy(&self, event: EventHandle) -> Result<()> {
        let mut state = self.state();
        state.event("cuEventDestroy", event)?;
        state.events.remove(&event);
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().event_record(event, stream, site)
    }

    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.state().event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.state().event_synchronize(event)
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.state().event_elapsed_ms(start, end)
    }

    fn pool_create(&self, device: DeviceId, properties: &PoolProperties) -> Result<PoolHandle> {
        self.state().pool_create(device, properties)
    }

    fn pool_destroy(&self, pool: PoolHandle) -> Result<()> {
        self.state().pool_destroy(pool)
    }

    fn pool_attribute(&self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        self.state().pool_attribute(pool, attribute)
    }

    fn pool_set_attribute(&self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.state().pool_set_attribute(pool, attribute, value)
    }

    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()> {
        self.state().pool_trim(pool, keep_bytes)
    }

    fn pool_set_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        self.state().pool_set_access(pool, peer, accessible)
    }

    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        self.state().pool_alloc(pool, bytes.get(), stream, site)
    }

    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().free_async(ptr, stream, site)
    }

    fn alloc_sync(&self, device: DeviceId, bytes: NonZeroUsize, site: Site) -> Result<DevicePtr> {
        self.state().alloc_sync(device, bytes.get(), site)
    }

    fn free_sync(&self, ptr: DevicePtr, site: Site) -> Result<()> {
        self.state().free_sync(ptr, site)
    }

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, site: Site) -> Result<Arc<HostBlock>> {
        let mut state = self.state();
        let device = state.usable("cuMemHostAlloc", device)?;
        let block = HostBlock::in_process(bytes.get(), kind);
        state.host.add(&block, device, site);
        Ok(block)
    }

    fn host_free(&self, block: &Arc<HostBlock>, site: Site) -> Result<()> {
        self.state().host_free(block, site)
    }

    fn host_access(&self, span: &HostSpan, access: Access, site: Site) {
        self.state().host_access(span, access, site);
    }

    fn copy(&self, copy: &CopyOp, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().copy(copy, stream, site)
    }

    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().fill(ptr, byte, len as u64, stream, site)
    }

    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().write_word(word, value, stream, site)
    }

    #[expect(unsafe_code, reason = "the trait's promise; a simulated launch checks it instead of trusting it")]
    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        self.launch_checked(launch, stream)
    }

    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        self.state().module_load(device, ptx)
    }

    fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        self.state().module_unload(module)
    }

    fn module_function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.state().module_function(module, name)
    }

    fn module_global(&self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)> {
        self.state().module_global(module, name)
    }

    fn function_attribute(&self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32> {
        self.state().function_attribute(function, attribute)
    }

    fn function_set_max_dynamic_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        self.state().function_set_max_dynamic_shared(function, bytes)
    }

    fn function_params(&self, function: FunctionHandle) -> Option<Vec<ParamLayout>> {
        self.state().function_params(function)
    }

    fn occupancy(&self, function: FunctionHandle, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        self.state().occupancy(function, block_threads, shared_bytes)
    }

    fn findings(&self) -> Vec<Finding> {
        self.state().reports.all()
    }

    fn settle(&self) -> Result<()> {
        let mut state = self.state();
        let lanes = state.queues.all_lanes();
        state.synchronize("settle", &lanes)
    }

    fn seed(&self) -> Option<u64> {
        Some(self.options.seed)
    }
}

impl SimDriver {
    fn existing(&self, call: &'static str, device: DeviceId) -> Result<()> {
        if device.0 < self.options.devices {
            return Ok(());
        }
        refuse(call, DriverCode::INVALID_DEVICE, format!("{device} of {} simulated devices", self.options.devices))
    }
}
