//! Which pools a device has: the default one, the current one; who has access; and whose memory an address is.
//!
//!   device ──► default pool ── current unless another is set ──► alloc_current
//!
//! Default    created at the first request; lives as long as the driver and cannot be destroyed.
//! Current    lies on its device. When it is destroyed the default pool takes its place.

use super::allocate::PAGE_BYTES;
use super::heap::Origin;
use super::pool::{BLOCK_BYTES, Pool, Sharing};
use super::state::{State, refuse};
use crate::driver::{
    DeviceId, DevicePtr, DriverCode, DriverError, FindingKind, MemoryType, PointerAttributes, PoolAccess, PoolHandle,
    PoolLocation, Result, Site, StreamHandle,
};

/// Handle of the first device's context; never dereferenced.
const FIRST_CONTEXT: u64 = 0xc0de_0000;

impl State {
    /// The device, if it is there and alive. Pools need no context.
    fn with_pools(&self, call: &'static str, device: DeviceId) -> Result<u32> {
        let context = self.context(call, device)?;
        if !self.options.memory_pools {
            return refuse(call, DriverCode::NOT_SUPPORTED, "MemoryPoolsSupported is 0");
        }
        self.alive(call, context)?;
        Ok(context)
    }

    /// The device that looks after a pool of the host: the first that is open.
    pub(super) fn caretaker(&self) -> u32 {
        let first = self.process * self.options.devices;
        let open = |context: &u32| self.devices[*context as usize].open > 0;
        (first..first + self.options.devices).find(open).unwrap_or(first)
    }

    /// Bytes that a pool takes from a device at once: real pages where the device has a real size, smaller ones where a
    /// test gives it little memory.
    pub(super) fn page_bytes(&self) -> u64 {
        PAGE_BYTES.min((self.options.memory_bytes / 32).max(1).next_power_of_two()).max(BLOCK_BYTES)
    }

    pub(super) fn device_default_pool(&mut self, device: DeviceId) -> Result<PoolHandle> {
        let device = self.with_pools("cuDeviceGetDefaultMemPool", device)?;
        if let Some(pool) = self.devices[device as usize].default_pool {
            return Ok(pool);
        }
        let handle = PoolHandle(self.new_handle());
        self.pools.insert(handle, Pool::new(device, u64::MAX, self.page_bytes()));
        self.devices[device as usize].default_pool = Some(handle);
        Ok(handle)
    }

    pub(super) fn device_current_pool(&mut self, device: DeviceId) -> Result<PoolHandle> {
        let found = self.with_pools("cuDeviceGetMemPool", device)?;
        match self.devices[found as usize].current_pool {
            Some(pool) => Ok(pool),
            None => self.device_default_pool(device),
        }
    }

    pub(super) fn device_set_current_pool(&mut self, device: DeviceId, pool: PoolHandle) -> Result<()> {
        const CALL: &str = "cuDeviceSetMemPool";
        let device = self.with_pools(CALL, device)?;
        let found = self.pool(CALL, pool)?;
        let (place, host_node, sharing) = (found.device, found.host_node, found.sharing);
        if place != device || host_node.is_some() {
            let place = match host_node {
                Some(node) => PoolLocation::HostNuma(node),
                None => PoolLocation::Device(self.device_id(place)),
            };
            let detail = format!("a pool of {place} cannot be the current one of {}", self.device_id(device));
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        if matches!(sharing, Sharing::Imported { .. }) {
            let detail = "an imported pool hands out nothing, so it cannot be the current one";
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        self.devices[device as usize].current_pool = Some(pool);
        Ok(())
    }

    /// Refuses to destroy a default pool; makes place for it where the current one goes.
    pub(super) fn before_destroy(&mut self, call: &'static str, pool: PoolHandle) -> Result<()> {
        if self.devices.iter().any(|device| device.default_pool == Some(pool)) {
            return refuse(call, DriverCode::INVALID_VALUE, "a device's default pool cannot be destroyed");
        }
        for device in &mut self.devices {
            device.current_pool = device.current_pool.filter(|&current| current != pool);
        }
        Ok(())
    }

    pub(super) fn alloc_current(&mut self, bytes: usize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        const CALL: &str = "cuMemAllocAsync";
        let lane = self.lane(CALL, stream)?;
        let pool = self.device_current_pool(self.device_id(self.queues.lane(lane).device))?;
        self.pool_alloc(pool, bytes, stream, site).map_err(|error| DriverError { call: CALL, ..error })
    }

    /// Whether memory is a pool's on the host that lets this device not in.
    pub(super) fn is_shut_out(&self, device: u32, origin: Origin) -> bool {
        let Origin::Pool(pool) = origin else { return false };
        self.pools.get(&pool).is_some_and(|pool| pool.host_node.is_some() && !pool.lets_in(device))
    }

    pub(super) fn pool_access(&mut self, pool: PoolHandle, device: DeviceId) -> Result<PoolAccess> {
        const CALL: &str = "cuMemPoolGetAccess";
        let device = self.with_pools(CALL, device)?;
        let pool = self.pool(CALL, pool)?;
        Ok(if pool.lets_in(device) { PoolAccess::ReadWrite } else { PoolAccess::None })
    }

    pub(super) fn pointer_attributes(&mut self, ptr: DevicePtr) -> Result<PointerAttributes> {
        const CALL: &str = "cuPointerGetAttribute";
        if let Some((buffer, pool)) = self.memory.in_program(ptr).and_then(|buffer| self.pool_here(buffer)) {
            let on_host = pool.and_then(|pool| self.pools.get(&pool)).is_some_and(|pool| pool.host_node.is_some());
            return Ok(PointerAttributes {
                memory: if on_host { MemoryType::Host } else { MemoryType::Device },
                // Memory of a pool belongs to no context.
                context: pool.is_none().then_some(FIRST_CONTEXT + u64::from(buffer.device)),
                device: (!on_host).then_some(self.device_id(buffer.device)),
                pool,
                start: DevicePtr(buffer.label.base),
                len: buffer.label.len as usize,
            });
        }
        // After the free of memory the answer is not defined, even while streams may still touch it.
        if let Some((label, freed)) = self.memory.formerly(ptr.0) {
            let message = format!("{CALL} asks about {label} after its free");
            self.reports.add(FindingKind::UseAfterFree, label.id, None, freed.as_deref(), message.clone());
            return refuse(CALL, DriverCode::INVALID_VALUE, message);
        }
        refuse(CALL, DriverCode::INVALID_VALUE, format!("nothing is allocated at {ptr:?}"))
    }
}
