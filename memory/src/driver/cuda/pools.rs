//! Memory pools of the driver: made, shared with other devices and processes; and which of them an address is from.

use super::*;

impl CudaDriver {
    pub(super) fn create_pool(&self, properties: &PoolProperties) -> Result<PoolHandle> {
        let device = match properties.location {
            PoolLocation::Device(device) => device,
            PoolLocation::HostNuma(_) => HOST,
        };
        if device != HOST {
            self.enter(device)?;
        }
        // SAFETY: plain C data for which zero is valid; the driver wants reserved bytes to be zero.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = handle_types(properties.handle_types);
        props.location = location(properties.location);
        props.maxSize = properties.max_bytes.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut pool = null_mut();
        call!(self, cuMemPoolCreate(&mut pool, &props))
            .map_err(|error| error.with_detail(format!("a pool on {}", properties.location)))?;
        Ok(PoolHandle(pack(device, pool)))
    }

    pub(super) fn set_pool_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        use sys::CUmemAccess_flags as Flags;
        let flags = match accessible {
            true => Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => Flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        // On an empty pool the driver may accept what fails at the next allocation: ask first.
        let resident = device_of(pool.0);
        if accessible && resident != HOST && resident != peer && !self.can_access_peer(peer, resident)? {
            return Err(DriverError::new("cuMemPoolSetAccess", DriverCode::PEER_ACCESS_UNSUPPORTED)
                .with_detail(format!("{peer} cannot reach the memory of {resident}")));
        }
        let access = sys::CUmemAccessDesc { location: location(PoolLocation::Device(peer)), flags };
        call!(self, cuMemPoolSetAccess(raw_pool(pool), &access, 1))
    }

    pub(super) fn export_pool(&self, pool: PoolHandle) -> Result<OwnedFd> {
        const CALL: &str = "cuMemPoolExportToShareableHandle";
        let mut descriptor: c_int = -1;
        // Given by its address, unlike at import, where the number itself is the argument.
        let to = (&raw mut descriptor).cast();
        call!(self, cuMemPoolExportToShareableHandle(to, raw_pool(pool), POSIX_FD, 0))?;
        if descriptor < 0 {
            return Err(DriverError::new(CALL, DriverCode::INVALID_VALUE).with_detail("the driver gave no descriptor"));
        }
        // SAFETY: the driver has just opened the descriptor for this call; no other owner exists.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // A copy that programs started from here do not inherit.
        descriptor
            .try_clone()
            .map_err(|error| DriverError::new(CALL, DriverCode::OPERATING_SYSTEM).with_detail(error.to_string()))
    }

    pub(super) fn import_pool(&self, device: DeviceId, descriptor: BorrowedFd<'_>) -> Result<PoolHandle> {
        self.enter(device)?;
        let number = without_provenance_mut(descriptor.as_raw_fd() as usize);
        let mut pool = null_mut();
        call!(self, cuMemPoolImportFromShareableHandle(&mut pool, number, POSIX_FD, 0)).map_err(|error| match error
            .code
        {
            // Driver 580 says so of a descriptor that is no pool's. The context is well, unlike after other unknown
            // errors.
            DriverCode::UNKNOWN => DriverError::new(error.call, DriverCode::INVALID_VALUE)
                .with_detail("the descriptor is not that of an exported pool"),
            _ => error,
        })?;
        Ok(PoolHandle(pack(device, pool)))
    }

    pub(super) fn attributes_of(&self, ptr: DevicePtr) -> Result<PointerAttributes> {
        use sys::CUpointer_attribute as A;
        // Widths are those of cuda.h: `int` and `unsigned int` for numbers, pointers and `size_t` for the rest.
        let number = |attribute: A| {
            let mut value: c_uint = 0;
            call!(self, cuPointerGetAttribute((&raw mut value).cast(), attribute as c_uint, ptr.0)).map(|()| value)
        };
        let word = |attribute: A| {
            let mut value: u64 = 0;
            call!(self, cuPointerGetAttribute((&raw mut value).cast(), attribute as c_uint, ptr.0)).map(|()| value)
        };
        let memory = memory_type(number(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?);
        let device = self.device_at("cuPointerGetAttribute", ptr)?;
        let pool = word(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)?;
        // A pool of the host has the same handle here as when it was made, whatever ordinal the driver gives.
        let home = if memory == MemoryType::Host { HOST } else { device };
        Ok(PointerAttributes {
            memory,
            context: Some(word(A::CU_POINTER_ATTRIBUTE_CONTEXT)?).filter(|&context| context != 0),
            device: Some(home).filter(|&device| device != HOST),
            pool: (pool != 0).then(|| PoolHandle(pack(home, pool as *mut c_void))),
            start: DevicePtr(word(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?),
            len: word(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE)? as usize,
        })
    }
}
