//! CUDA's numbers for our words, and handles that know their device.
//!
//!   PoolHandle = device in the top 7 bits │ the driver's pointer
//!
//! Enums    cross as plain numbers, so that one from a newer driver is a value here and never undefined.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys;

use super::*;

// Handles: user addresses use at most 57 bits, so the device fits above them.

pub(super) const ADDRESS_BITS: u32 = 57;

/// Stands for the host in the handles of pools that lie on a NUMA node. No device has this ordinal.
pub(super) const HOST: DeviceId = DeviceId((1 << (64 - ADDRESS_BITS)) - 1);

pub(super) fn pack<T>(device: DeviceId, pointer: *mut T) -> u64 {
    pointer as u64 | u64::from(device.0) << ADDRESS_BITS
}

pub(super) fn device_of(handle: u64) -> DeviceId {
    DeviceId((handle >> ADDRESS_BITS) as u32)
}

pub(super) fn pointer<T>(handle: u64) -> *mut T {
    (handle & ((1 << ADDRESS_BITS) - 1)) as *mut T
}

pub(super) fn raw_stream(stream: StreamHandle) -> sys::CUstream {
    pointer(stream.0)
}

pub(super) fn raw_graph(graph: GraphHandle) -> sys::CUgraph {
    pointer(graph.0)
}

pub(super) fn raw_exec(graph: GraphExecHandle) -> sys::CUgraphExec {
    pointer(graph.0)
}

pub(super) fn raw_event(event: EventHandle) -> sys::CUevent {
    pointer(event.0)
}

pub(super) fn raw_pool(pool: PoolHandle) -> sys::CUmemoryPool {
    pointer(pool.0)
}

pub(super) fn raw_function(function: FunctionHandle) -> sys::CUfunction {
    pointer(function.0)
}

pub(super) fn attribute_number(attribute: DeviceAttribute) -> c_int {
    use sys::CUdevice_attribute as A;
    let attribute = match attribute {
        DeviceAttribute::ComputeCapabilityMajor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        DeviceAttribute::ComputeCapabilityMinor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        DeviceAttribute::MultiprocessorCount => A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        DeviceAttribute::WarpSize => A::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
        DeviceAttribute::MaxThreadsPerBlock => A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        DeviceAttribute::MaxThreadsPerMultiprocessor => A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        DeviceAttribute::MaxRegistersPerMultiprocessor => A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        DeviceAttribute::MaxSharedMemoryPerBlock => A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        DeviceAttribute::MaxSharedMemoryPerBlockOptin => A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        DeviceAttribute::MaxSharedMemoryPerMultiprocessor => {
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        }
        DeviceAttribute::MaxGridDimX => A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        DeviceAttribute::L2CacheBytes => A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
        DeviceAttribute::ClockRateKhz => A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
        DeviceAttribute::MemoryClockRateKhz => A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
        DeviceAttribute::GlobalMemoryBusWidthBits => A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
        DeviceAttribute::MemoryPoolsSupported => A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        DeviceAttribute::MemoryPoolSupportedHandleTypes => A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
        DeviceAttribute::HostNumaMemoryPoolsSupported => return HOST_NUMA_MEMORY_POOLS_SUPPORTED,
        DeviceAttribute::HostNumaId => A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
        DeviceAttribute::UnifiedAddressing => A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
        // The second version of these operations has no attribute but this one; a refusal costs words, nothing else.
        DeviceAttribute::StreamMemoryOperations => A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
        DeviceAttribute::Integrated => A::CU_DEVICE_ATTRIBUTE_INTEGRATED,
    };
    attribute as c_int
}

/// Of CUDA 13.0: newer than the headers we speak. Older drivers refuse it as an invalid value.
pub(super) const HOST_NUMA_MEMORY_POOLS_SUPPORTED: c_int = 142;

/// The attribute's number, and whether its value is a C `int` (policies) rather than a `cuuint64_t`.
pub(super) fn pool_attribute_number(attribute: PoolAttribute) -> (c_uint, bool) {
    use sys::CUmemPool_attribute as A;
    let (attribute, is_int) = match attribute {
        PoolAttribute::ReuseFollowEventDependencies => (A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, true),
        PoolAttribute::ReuseAllowOpportunistic => (A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, true),
        PoolAttribute::ReuseAllowInternalDependencies => (A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, true),
        PoolAttribute::ReleaseThreshold => (A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, false),
        PoolAttribute::ReservedCurrent => (A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, false),
        PoolAttribute::ReservedHigh => (A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, false),
        PoolAttribute::UsedCurrent => (A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, false),
        PoolAttribute::UsedHigh => (A::CU_MEMPOOL_ATTR_USED_MEM_HIGH, false),
    };
    (attribute as c_uint, is_int)
}

pub(super) fn graph_memory_attribute_number(attribute: GraphMemoryAttribute) -> c_uint {
    use sys::CUgraphMem_attribute as A;
    let attribute = match attribute {
        GraphMemoryAttribute::UsedCurrent => A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
        GraphMemoryAttribute::UsedHigh => A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        GraphMemoryAttribute::ReservedCurrent => A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
        GraphMemoryAttribute::ReservedHigh => A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
    };
    attribute as c_uint
}

pub(super) fn capture_mode_number(mode: CaptureMode) -> c_uint {
    use sys::CUstreamCaptureMode as M;
    let mode = match mode {
        CaptureMode::Global => M::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CaptureMode::ThreadLocal => M::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CaptureMode::Relaxed => M::CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    mode as c_uint
}

/// What is not known counts as the strictest.
pub(super) fn capture_mode(number: c_uint) -> CaptureMode {
    let known = [CaptureMode::ThreadLocal, CaptureMode::Relaxed];
    known.into_iter().find(|&mode| capture_mode_number(mode) == number).unwrap_or_default()
}

/// An event's flags as a number: the enum of the headers has no name for two of them at once.
pub(super) fn event_flags_number(flags: EventFlags) -> c_uint {
    use sys::CUevent_flags as F;
    let timing = if flags.timing { F::CU_EVENT_DEFAULT } else { F::CU_EVENT_DISABLE_TIMING };
    let processes = if flags.interprocess { F::CU_EVENT_INTERPROCESS } else { F::CU_EVENT_DEFAULT };
    timing as c_uint | processes as c_uint
}

pub(super) fn pool_access(number: c_uint) -> Option<PoolAccess> {
    use sys::CUmemAccess_flags as F;
    const NONE: c_uint = F::CU_MEM_ACCESS_FLAGS_PROT_NONE as c_uint;
    const READ: c_uint = F::CU_MEM_ACCESS_FLAGS_PROT_READ as c_uint;
    const READ_WRITE: c_uint = F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint;
    match number {
        NONE => Some(PoolAccess::None),
        READ => Some(PoolAccess::Read),
        READ_WRITE => Some(PoolAccess::ReadWrite),
        _ => None,
    }
}

pub(super) fn memory_type(number: c_uint) -> MemoryType {
    use sys::CUmemorytype as T;
    const HOST: c_uint = T::CU_MEMORYTYPE_HOST as c_uint;
    const DEVICE: c_uint = T::CU_MEMORYTYPE_DEVICE as c_uint;
    match number {
        HOST => MemoryType::Host,
        DEVICE => MemoryType::Device,
        other => MemoryType::Other(other),
    }
}

pub(super) fn function_attribute_number(attribute: FunctionAttribute) -> c_int {
    use sys::CUfunction_attribute as A;
    let attribute = match attribute {
        FunctionAttribute::MaxThreadsPerBlock => A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        FunctionAttribute::StaticSharedBytes => A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        FunctionAttribute::LocalBytes => A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        FunctionAttribute::Registers => A::CU_FUNC_ATTRIBUTE_NUM_REGS,
        FunctionAttribute::MaxDynamicSharedBytes => A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    };
    attribute as c_int
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, for calls that take one type.
pub(super) const POSIX_FD: c_uint = HandleTypes::POSIX_FD.0;

pub(super) fn handle_types(types: HandleTypes) -> sys::CUmemAllocationHandleType {
    sys::CUmemAllocationHandleType(types.0)
}

pub(super) fn location(place: PoolLocation) -> sys::CUmemLocation {
    use sys::CUmemLocationType as T;
    match place {
        PoolLocation::Device(device) => {
            sys::CUmemLocation { type_: T::CU_MEM_LOCATION_TYPE_DEVICE, id: device.0 as c_int }
        }
        PoolLocation::HostNuma(node) => {
            sys::CUmemLocation { type_: T::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node as c_int }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_carry_their_device() {
        let address = 0x7f12_3456_7890usize as *mut u8;
        for device in [DeviceId(3), HOST] {
            let handle = pack(device, address);
            assert_eq!(device_of(handle), device);
            assert_eq!(pointer::<u8>(handle), address);
        }
    }

    /// Of cuda.h.
    #[test]
    fn event_flags_are_cudas_bits() {
        assert_eq!(event_flags_number(EventFlags::ORDER), 2);
        assert_eq!(event_flags_number(EventFlags::TIMING), 0);
        assert_eq!(event_flags_number(EventFlags::INTERPROCESS), 6);
    }

    /// Of cuda.h: a threshold is a `cuuint64_t`, a policy an `int`.
    #[test]
    fn attributes_have_cudas_numbers_and_widths() {
        use PoolAttribute as P;
        let numbers = [
            (P::ReuseFollowEventDependencies, 1, true),
            (P::ReuseAllowOpportunistic, 2, true),
            (P::ReuseAllowInternalDependencies, 3, true),
            (P::ReleaseThreshold, 4, false),
            (P::ReservedCurrent, 5, false),
            (P::ReservedHigh, 6, false),
            (P::UsedCurrent, 7, false),
            (P::UsedHigh, 8, false),
        ];
        for (attribute, number, is_int) in numbers {
            assert_eq!(pool_attribute_number(attribute), (number, is_int));
        }
        let numbers = [
            (DeviceAttribute::UnifiedAddressing, 41),
            (DeviceAttribute::MemoryPoolsSupported, 115),
            (DeviceAttribute::MemoryPoolSupportedHandleTypes, 119),
            (DeviceAttribute::HostNumaId, 134),
            (DeviceAttribute::HostNumaMemoryPoolsSupported, 142),
        ];
        for (attribute, number) in numbers {
            assert_eq!(attribute_number(attribute), number);
        }
        for (attribute, number) in [
            (GraphMemoryAttribute::UsedCurrent, 0),
            (GraphMemoryAttribute::UsedHigh, 1),
            (GraphMemoryAttribute::ReservedCurrent, 2),
            (GraphMemoryAttribute::ReservedHigh, 3),
        ] {
            assert_eq!(graph_memory_attribute_number(attribute), number);
        }
    }

    /// Of cuda.h.
    #[test]
    fn capture_modes_are_cudas_numbers() {
        let modes = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
        assert_eq!(modes.map(capture_mode_number), [0, 1, 2]);
        assert_eq!([0, 1, 2].map(capture_mode), modes);
    }

    #[test]
    fn numbers_nobody_knows_are_values() {
        assert_eq!(pool_access(2), None);
        assert_eq!(memory_type(77), MemoryType::Other(77));
    }

    /// Of cuda.h.
    #[test]
    fn handle_types_are_cudas_bits() {
        assert_eq!((handle_types(HandleTypes::NONE).0, handle_types(HandleTypes::POSIX_FD).0, POSIX_FD), (0, 1, 1));
        let known = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        assert_eq!(handle_types(HandleTypes::POSIX_FD), known);
    }

    /// `CU_MEM_LOCATION_TYPE_DEVICE` and `_HOST_NUMA` of cuda.h.
    #[test]
    fn places_have_cudas_numbers() {
        let device = location(PoolLocation::Device(DeviceId(4)));
        let host = location(PoolLocation::HostNuma(1));
        assert_eq!((device.type_ as u32, device.id, host.type_ as u32, host.id), (1, 4, 3, 1));
    }
}
