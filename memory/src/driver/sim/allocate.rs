//! Allocates and frees: in stream order from pools, or without a stream; and sets and reads pool attributes.
//!
//!   pool_alloc   pool gives a block ─► the buffer exists in program order ─► its turn comes: it exists on the device
//!   free_async   are all uses that named it ordered before? ─► the pool has it back ─► its turn comes: it is gone
//!
//! Without a stream   `alloc_sync` is usable at once anywhere. `free_sync` waits for the device, but not for memory of
//!                    a pool: there the driver takes the caller's word, and the checks do not.

use super::heap::Origin;
use super::pool::{BLOCK_BYTES, Knowledge, Pool, Sharing};
use super::queue::Work;
use super::report::What;
use super::state::{State, refuse};
use crate::driver::{
    DeviceId, DevicePtr, DriverCode, FindingKind, HandleTypes, PoolAttribute, PoolHandle, PoolLocation, PoolProperties,
    Result, Site, StreamHandle,
};

pub(super) const PAGE_BYTES: u64 = 2 << 20;

// 1. Buffers.
impl State {
    pub(super) fn pool_alloc(
        &mut self,
        handle: PoolHandle,
        bytes: usize,
        stream: StreamHandle,
        site: Site,
    ) -> Result<DevicePtr> {
        const CALL: &str = "cuMemAllocFromPoolAsync";
        let lane = self.lane(CALL, stream)?;
        self.no_memory_nodes(CALL, lane)?;
        let unreachable = self.has_unreachable_peer(handle);
        let pool = self.pool(CALL, handle)?;
        if matches!(pool.sharing, Sharing::Imported { .. }) {
            let detail = "an imported pool hands out nothing: it opens what its exporter allocated";
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        // The pool says where the memory is; its order is the stream's, which may be of another device.
        let (place, on_host) = pool.place();
        if unreachable && !on_host {
            return refuse(CALL, DriverCode::INVALID_DEVICE, "access was set for a device that cannot have it");
        }
        let moment = self.queues.next_moment(lane);
        let State { pools, devices, host_used_bytes, next_address, options, queues, random, .. } = self;
        let pool = pools.get_mut(&handle).expect("looked up above");
        let block = pool.allocate(
            bytes as u64,
            &Knowledge {
                moment: &moment,
                finished: &|epoch| queues.has_finished(epoch),
                host_saw: &|epoch| queues.host().has_passed(epoch),
            },
            random,
            &mut State::room(devices, host_used_bytes, next_address, options, (place, on_host)),
        );
        let Some(block) = block else {
            let detail = match on_host {
                true => {
                    let free = self.options.host_memory_bytes - self.host_used_bytes;
                    format!("{bytes} bytes wanted, {free} free on the host")
                }
                false => {
                    let free = self.free_bytes(place);
                    format!("{bytes} bytes wanted, {free} free on the device")
                }
            };
            return refuse(CALL, DriverCode::OUT_OF_MEMORY, detail);
        };
        if let Some(epoch) = block.wait_for {
            let (moment, by) = self.prepare(lane, What::Wait, Some(site));
            self.push(moment, by, Work::Wait { epoch });
        }
        let (moment, by) = self.prepare(lane, What::Allocation, Some(site));
        let origin = Origin::Pool(handle);
        let id = self.memory.announce(block.base, bytes as u64, place, origin, Some(by.clone()), Some(site));
        self.push(moment, by, Work::Allocate { block: id });
        self.counters.allocations += 1;
        self.counters.allocated_bytes += bytes as u64;
        Ok(DevicePtr(block.base))
    }

    /// The buffer that begins at `ptr`, or a finding and an error.
    fn freeable(&mut self, call: &'static str, ptr: DevicePtr, site: Site) -> Result<u64> {
        let foreign = |device: u32| self.process_of(device) != self.process;
        let (kind, message) = match self.memory.in_program(ptr) {
            Some(buffer) if foreign(buffer.device) && self.has_freed_import(buffer.label.id) => {
                (FindingKind::DoubleFree, format!("the import of {} is freed twice", buffer.label))
            }
            Some(buffer) if foreign(buffer.device) => {
                (FindingKind::ForeignFree, format!("{} is of another process, and not imported here", buffer.label))
            }
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

    pub(super) fn free_async(&mut self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFreeAsync";
        let lane = self.lane(CALL, stream)?;
        self.no_memory_nodes(CALL, lane)?;
        if let Some(import) = self.open_import(ptr) {
            self.free_import(import, lane, site);
            return Ok(());
        }
        let id = self.freeable(CALL, ptr, site)?;
        let device = self.queues.lane(lane).device;
        let (moment, by) = self.prepare(lane, What::Free, Some(site));
        let buffer = self.memory.get(id).expect("found above");
        let (label, owner, origin) = (buffer.label.clone(), buffer.device, buffer.origin);
        if owner != device && !matches!(origin, Origin::Pool(_)) {
            let message = format!("{label} of device {owner} is freed on a stream of device {device}");
            self.reports.add(FindingKind::ForeignFree, id, Some(&by), None, message.clone());
            return refuse(CALL, DriverCode::INVALID_VALUE, message);
        }
        let allocated = buffer.allocated.clone().filter(|allocated| !moment.is_after(allocated.epoch));
        for user in buffer.named_unordered(&moment).iter().chain(&allocated) {
            self.unordered_free(&label, &by, user);
        }
        self.check_importers(id, Some((&moment, &by)), site);
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

    pub(super) fn alloc_sync(&mut self, device: DeviceId, bytes: usize, site: Site) -> Result<DevicePtr> {
        const CALL: &str = "cuMemAlloc";
        self.unsafe_under_capture(CALL)?;
        let device = self.usable(CALL, device)?;
        let Some(address) =
            self.place_here(device, (bytes as u64).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX))
        else {
            let free = self.free_bytes(device);
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

    pub(super) fn free_sync(&mut self, ptr: DevicePtr, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFree";
        self.unsafe_under_capture(CALL)?;
        if let Some(import) = self.open_import(ptr) {
            self.free_import_sync(import, site);
            return Ok(());
        }
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
        self.check_importers(id, None, site);
        self.memory.retire(id, None);
        self.memory.end(id);
        self.drop_closed_pools();
        self.faults.freed();
        self.counters.frees += 1;
        Ok(())
    }
}

// 2. Pools.
impl State {
    pub(super) fn pool_create(&mut self, properties: &PoolProperties) -> Result<PoolHandle> {
        const CALL: &str = "cuMemPoolCreate";
        if !self.options.memory_pools {
            return refuse(CALL, DriverCode::NOT_SUPPORTED, "MemoryPoolsSupported is 0");
        }
        if !HandleTypes::POSIX_FD.contains(properties.handle_types) {
            let detail = format!("handle types {:#x}: POSIX descriptors are 1", properties.handle_types.0);
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        let (device, host_node) = match properties.location {
            PoolLocation::Device(device) => (self.usable(CALL, device)?, None),
            PoolLocation::HostNuma(node) if node >= self.options.host_numa_nodes => {
                let detail = format!("host NUMA node {node} of {}", self.options.host_numa_nodes);
                return refuse(CALL, DriverCode::INVALID_VALUE, detail);
            }
            PoolLocation::HostNuma(node) => (self.caretaker(), Some(node)),
        };
        let handle = PoolHandle(self.new_handle());
        let page = self.page_bytes();
        let max_bytes = properties.max_bytes.map_or(u64::MAX, |max| max.div_ceil(page).saturating_mul(page));
        let mut pool = Pool::new(device, max_bytes, page);
        if properties.handle_types.contains(HandleTypes::POSIX_FD) {
            pool.sharing = Sharing::Exportable;
        }
        pool.host_node = host_node;
        self.pools.insert(handle, pool);
        Ok(handle)
    }

    pub(super) fn pool_destroy(&mut self, handle: PoolHandle) -> Result<()> {
        const CALL: &str = "cuMemPoolDestroy";
        self.pool(CALL, handle)?;
        self.before_destroy(CALL, handle)?;
        self.pool(CALL, handle)?.closing = true;
        let origin = Origin::Pool(handle);
        self.report_leaks("the end of its pool", &|buffer| buffer.origin == origin);
        self.drop_closed_pools();
        Ok(())
    }

    /// Not an imported one. Its statistics should show what this process imported; but an NVIDIA H200 with driver 580
    /// refuses every attribute of it, and a trim.
    fn own_pool(&mut self, call: &'static str, pool: PoolHandle) -> Result<&mut Pool> {
        let pool = self.pool(call, pool)?;
        match pool.sharing {
            Sharing::Imported { .. } => refuse(call, DriverCode::INVALID_VALUE, "the pool is imported"),
            _ => Ok(pool),
        }
    }

    pub(super) fn pool_attribute(&mut self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        let pool = self.own_pool("cuMemPoolGetAttribute", pool)?;
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

    pub(super) fn pool_set_attribute(&mut self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        const CALL: &str = "cuMemPoolSetAttribute";
        let forgotten = self.options.forget_attribute == Some(attribute);
        let pool = self.own_pool(CALL, pool)?;
        if forgotten {
            return Ok(());
        }
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

    pub(super) fn pool_trim(&mut self, handle: PoolHandle, keep_bytes: u64) -> Result<()> {
        self.own_pool("cuMemPoolTrimTo", handle)?;
        let Self { pools, devices, host_used_bytes, next_address, options, queues, .. } = self;
        if let Some(pool) = pools.get_mut(&handle) {
            let mut room = State::room(devices, host_used_bytes, next_address, options, pool.place());
            pool.trim(keep_bytes, &|epoch| queues.host().has_passed(epoch), &mut room);
        }
        Ok(())
    }

    pub(super) fn pool_set_access(&mut self, handle: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        const CALL: &str = "cuMemPoolSetAccess";
        let context = self.context(CALL, peer)?;
        let owner = self.pool(CALL, handle)?.device;
        let unreachable = !self.can_reach(context, owner);
        let pool = self.pool(CALL, handle)?;
        if pool.host_node.is_some() {
            match accessible {
                true => pool.peers.insert(context),
                false => pool.peers.remove(&context),
            };
            return Ok(());
        }
        if pool.device == context {
            return match accessible {
                true => Ok(()),
                false => refuse(CALL, DriverCode::INVALID_VALUE, "a pool's own device always has access"),
            };
        }
        // CUDA accepts an impossible peer on an empty pool, and then fails the next allocation.
        if accessible && unreachable && pool.reserved() > 0 {
            return refuse(CALL, DriverCode::INVALID_DEVICE, format!("{peer} cannot reach device {}", pool.device));
        }
        if accessible {
            pool.peers.insert(context);
        } else {
            pool.peers.remove(&context);
        }
        Ok(())
    }
}
