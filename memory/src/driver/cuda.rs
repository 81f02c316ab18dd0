//! CUDA: libcuda, opened when the program runs.
//!
//!   CudaDriver::open() ─► is libcuda there? ─► new enough? ─► has it every function we call? ─► cuInit ─► a device?
//!                              │ no                │ no             │ no                        │ no       │ no
//!                              └───────────────────┴────────────────┴── DriverUnavailable, in words ───────┘
//!
//! Library    cudarc finds and opens it, and lends its types. Functions are asked for up front and return plain numbers:
//!            a missing one is an answer here, not a panic later, and a code newer than us is a value, not undefined.
//! Contexts   each device's primary context, retained by `device_open`; every call that needs one makes it current first,
//!            since tasks move between threads.
//! Handles    the driver's pointers, with the device in the top bits.
//! Exit       nothing is called while the process ends: the driver may be gone by then.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::*;
use crate::error::DriverUnavailable;

/// CUDA 12.2, which driver 535 brings.
const MIN_VERSION: u32 = 12020;

/// Declares the functions of libcuda that we call, each found by its name in the library.
macro_rules! functions {
    ($($name:ident($($arg:ty),* $(,)?);)*) => {
        #[expect(non_snake_case, reason = "the library's own names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_uint,)*
        }

        /// Their names.
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Functions {
            /// Asks for all of them; the name of the first that is not there is the error.
            fn find() -> Result<Self, &'static str> {
                // SAFETY: the caller knows that the library can be opened; its initialisers are NVIDIA's.
                let library = unsafe { sys::culib() };
                Ok(Functions {
                    $($name: {
                        // SAFETY: the signature is the one in cuda.h for this name; the library is never closed.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> c_uint>(
                                concat!(stringify!($name), "\0").as_bytes(),
                            )
                        };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut sys::CUcontext, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxSetCurrent(sys::CUcontext);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuStreamCreateWithPriority(*mut sys::CUstream, c_uint, c_int);
    cuStreamDestroy_v2(sys::CUstream);
    cuStreamQuery(sys::CUstream);
    cuStreamSynchronize(sys::CUstream);
    cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    cuStreamWriteValue32_v2(sys::CUstream, sys::CUdeviceptr, u32, c_uint);
    cuEventCreate(*mut sys::CUevent, c_uint);
    cuEventDestroy_v2(sys::CUevent);
    cuEventRecord(sys::CUevent, sys::CUstream);
    cuEventQuery(sys::CUevent);
    cuEventSynchronize(sys::CUevent);
    cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
    cuMemPoolCreate(*mut sys::CUmemoryPool, *const sys::CUmemPoolProps);
    cuMemPoolDestroy(sys::CUmemoryPool);
    cuMemPoolGetAttribute(sys::CUmemoryPool, c_uint, *mut c_void);
    cuMemPoolSetAttribute(sys::CUmemoryPool, c_uint, *mut c_void);
    cuMemPoolTrimTo(sys::CUmemoryPool, usize);
    cuMemPoolSetAccess(sys::CUmemoryPool, *const sys::CUmemAccessDesc, usize);
    cuMemAllocFromPoolAsync(*mut sys::CUdeviceptr, usize, sys::CUmemoryPool, sys::CUstream);
    cuMemFreeAsync(sys::CUdeviceptr, sys::CUstream);
    cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
    cuMemFree_v2(sys::CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut sys::CUdeviceptr, *mut c_void, c_uint);
    cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemsetD8Async(sys::CUdeviceptr, u8, usize, sys::CUstream);
    cuModuleLoadDataEx(*mut sys::CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuModuleUnload(sys::CUmodule);
    cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    cuModuleGetGlobal_v2(*mut sys::CUdeviceptr, *mut usize, sys::CUmodule, *const c_char);
    cuFuncGetAttribute(*mut c_int, c_int, sys::CUfunction);
    cuFuncSetAttribute(sys::CUfunction, c_int, c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, sys::CUfunction, c_int, usize);
    cuLaunchKernel(
        sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void,
        *mut *mut c_void
    );
}

/// Calls a function of the library; a code other than success is a `DriverError` that names it.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the signature is the library's. Pointers passed are to live locals of the right type, or were given by
        //         the driver and are still owned by whoever calls; device addresses are the driver's to check.
        let code = unsafe { ($driver.functions.$name)($($arg),*) };
        if code == 0 { Ok(()) } else { Err(DriverError::new(stringify!($name), DriverCode(code))) }
    }};
}

/// The driver's version and, where the system tells, its release: "NVIDIA driver 470.82 (CUDA 11.4)".
fn release() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_string()).filter(|release| !release.is_empty())
}

/// NVIDIA's driver.
pub struct CudaDriver {
    functions: Functions,
    version: DriverVersion,
    /// The primary context of each device that is open, as an address, and how often it was opened.
    contexts: Mutex<HashMap<u32, (usize, u32)>>,
    /// Whose memory `alloc_sync` gave.
    allocations: Mutex<HashMap<u64, DeviceId>>,
    /// On which device a block of pinned memory was made.
    blocks: Mutex<HashMap<u64, DeviceId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaDriver {
    /// The functions of libcuda that it must have.
    pub fn functions() -> impl Iterator<Item = &'static str> {
        ["cuDriverGetVersion"].into_iter().chain(NAMES.iter().copied())
    }

    /// Opens NVIDIA's driver.
    ///
    /// # Errors
    /// Why there is none to use: no library, too old, a function missing, no device visible.
    pub fn open() -> Result<Arc<CudaDriver>, DriverUnavailable> {
        // SAFETY: looks whether the library can be loaded, and runs its initialisers, which are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverUnavailable::NoLibrary);
        }
        // Its version first: that an old driver lacks functions is not its user's news.
        // SAFETY: the library can be opened.
        let library = unsafe { sys::culib() };
        // SAFETY: the signature is the one in cuda.h.
        let get_version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_uint>(b"cuDriverGetVersion\0") };
        let missing = |symbol, found| DriverUnavailable::MissingSymbol { symbol, found, release: release() };
        let get_version = get_version.map_err(|_| missing("cuDriverGetVersion", 0))?;
        let mut found = 0;
        // SAFETY: writes one integer.
        let code = unsafe { get_version(&mut found) };
        if code != 0 {
            let error = DriverError::new("cuDriverGetVersion", DriverCode(code));
            return Err(DriverUnavailable::Refused(error));
        }
        let found = found.max(0) as u32;
        if found < MIN_VERSION {
            return Err(DriverUnavailable::TooOld { found, release: release() });
        }
        let functions = Functions::find().map_err(|symbol| missing(symbol, found))?;
        let driver = CudaDriver {
            functions,
            version: DriverVersion(found),
            contexts: Mutex::default(),
            allocations: Mutex::default(),
            blocks: Mutex::default(),
        };
        let no_device = || {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            DriverUnavailable::NoDevice { found, release: release(), visible }
        };
        match call!(driver, cuInit(0)) {
            Err(error) if error.code == DriverCode::NO_DEVICE => return Err(no_device()),
            other => other.map_err(DriverUnavailable::Refused)?,
        }
        match driver.device_count() {
            Ok(0) => Err(no_device()),
            Ok(_) => Ok(Arc::new(driver)),
            Err(error) if error.code == DriverCode::NO_DEVICE => Err(no_device()),
            Err(error) => Err(DriverUnavailable::Refused(error)),
        }
    }

    fn device(&self, device: DeviceId) -> Result<c_int> {
        let mut handle = 0;
        call!(self, cuDeviceGet(&mut handle, device.0 as c_int))?;
        Ok(handle)
    }

    /// Makes the device's context current on this thread.
    fn enter(&self, device: DeviceId) -> Result<()> {
        let context = lock(&self.contexts).get(&device.0).map(|(context, _)| *context);
        let Some(context) = context else {
            return Err(DriverError::new("cuCtxSetCurrent", DriverCode::INVALID_CONTEXT)
                .with_detail(format!("{device} is not open")));
        };
        call!(self, cuCtxSetCurrent(context as sys::CUcontext))
    }

    fn enter_of(&self, handle: u64) -> Result<()> {
        self.enter(device_of(handle))
    }
}

// Handles: user addresses use at most 57 bits, so the device fits above them.

const ADDRESS_BITS: u32 = 57;

fn pack<T>(device: DeviceId, pointer: *mut T) -> u64 {
    pointer as u64 | u64::from(device.0) << ADDRESS_BITS
}

fn device_of(handle: u64) -> DeviceId {
    DeviceId((handle >> ADDRESS_BITS) as u32)
}

fn pointer<T>(handle: u64) -> *mut T {
    (handle & ((1 << ADDRESS_BITS) - 1)) as *mut T
}

fn raw_stream(stream: StreamHandle) -> sys::CUstream {
    pointer(stream.0)
}

fn raw_event(event: EventHandle) -> sys::CUevent {
    pointer(event.0)
}

fn raw_pool(pool: PoolHandle) -> sys::CUmemoryPool {
    pointer(pool.0)
}

fn raw_function(function: FunctionHandle) -> sys::CUfunction {
    pointer(function.0)
}

fn attribute_number(attribute: DeviceAttribute) -> c_int {
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
const HOST_NUMA_MEMORY_POOLS_SUPPORTED: c_int = 142;

/// The attribute's number, and whether its value is a C `int` (policies) rather than a `cuuint64_t`.
fn pool_attribute_number(attribute: PoolAttribute) -> (c_uint, bool) {
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

fn function_attribute_number(attribute: FunctionAttribute) -> c_int {
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

fn location(device: DeviceId) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: device.0 as c_int }
}

/// True for success, false for "not ready"; everything else stays an error.
fn ready(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code == DriverCode::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

fn c_name(call: &'static str, name: &str) -> Result<CString> {
    CString::new(name)
        .map_err(|_| DriverError::new(call, DriverCode::INVALID_VALUE).with_detail(format!("{name:?} has a zero byte")))
}

impl Driver for CudaDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Cuda
    }

    fn version(&self) -> DriverVersion {
        self.version
    }

    fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&mut count))?;
        Ok(count.max(0) as u32)
    }

    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo> {
        let handle = self.device(device)?;
        let mut name = [0u8; 256];
        call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int - 1, handle))?;
        let mut bytes = 0;
        call!(self, cuDeviceTotalMem_v2(&mut bytes, handle))?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(DeviceInfo { name: String::from_utf8_lossy(&name[..end]).into_owned(), total_bytes: bytes as u64 })
    }

    fn attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> Result<i32> {
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&mut value, attribute_number(attribute), self.device(device)?))?;
        Ok(value)
    }

    fn device_open(&self, device: DeviceId) -> Result<()> {
        if device.0 >= 1 << (64 - ADDRESS_BITS) {
            return Err(DriverError::new("cuDeviceGet", DriverCode::INVALID_DEVICE));
        }
        let handle = self.device(device)?;
        let mut contexts = lock(&self.contexts);
        let mut context = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut context, handle))?;
        contexts.entry(device.0).or_insert((context as usize, 0)).1 += 1;
        Ok(())
    }

    fn device_close(&self, device: DeviceId) -> Result<()> {
        let handle = self.device(device)?;
        let mut contexts = lock(&self.contexts);
        // The driver counts for the whole process: what others retained is not ours to release.
        let Some((_, users)) = contexts.get_mut(&device.0) else {
            return Err(DriverError::new("cuDevicePrimaryCtxRelease_v2", DriverCode::INVALID_CONTEXT)
                .with_detail(format!("{device} is not open")));
        };
        *users -= 1;
        if *users == 0 {
            contexts.remove(&device.0);
        }
        call!(self, cuDevicePrimaryCtxRelease_v2(handle))
    }

    fn device_synchronize(&self, device: DeviceId) -> Result<()> {
        self.enter(device)?;
        call!(self, cuCtxSynchronize())
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.enter(device)?;
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> Result<bool> {
        let mut can = 0;
        call!(self, cuDeviceCanAccessPeer(&mut can, self.device(device)?, self.device(peer)?))?;
        Ok(can != 0)
    }

    fn stream_create(&self, device: DeviceId, priority: StreamPriority) -> Result<StreamHandle> {
        self.enter(device)?;
        let (mut least, mut greatest) = (0, 0);
        call!(self, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        let priority = match priority {
            StreamPriority::Normal => least,
            StreamPriority::High => greatest,
        };
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        let mut stream = null_mut();
        call!(self, cuStreamCreateWithPriority(&mut stream, flags, priority))?;
        Ok(StreamHandle(pack(device, stream)))
    }

    fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuStreamDestroy_v2(raw_stream(stream)))
    }

    fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        self.enter_of(stream.0)?;
        ready(call!(self, cuStreamQuery(raw_stream(stream))))
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuStreamSynchronize(raw_stream(stream)))
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuStreamWaitEvent(raw_stream(stream), raw_event(event), 0))
    }

    fn event_create(&self, device: DeviceId, flags: EventFlags) -> Result<EventHandle> {
        self.enter(device)?;
        // A number, for the enum of the library has no name for two flags at once.
        let mut bits = sys::CUevent_flags::CU_EVENT_DEFAULT as c_uint;
        if !flags.timing {
            bits |= sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        }
        if flags.interprocess {
            bits |= sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
        }
        let mut event = null_mut();
        call!(self, cuEventCreate(&mut event, bits))?;
        Ok(EventHandle(pack(device, event)))
    }

    fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.enter_of(event.0)?;
        call!(self, cuEventDestroy_v2(raw_event(event)))
    }

    fn event_record(&self, event: EventHandle, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuEventRecord(raw_event(event), raw_stream(stream)))
    }

    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.enter_of(event.0)?;
        ready(call!(self, cuEventQuery(raw_event(event))))
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.enter_of(event.0)?;
        call!(self, cuEventSynchronize(raw_event(event)))
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.enter_of(start.0)?;
        let mut ms = 0.0;
        call!(self, cuEventElapsedTime(&mut ms, raw_event(start), raw_event(end)))?;
        Ok(ms)
    }

    fn pool_create(&self, properties: &PoolProperties) -> Result<PoolHandle> {
        let PoolLocation::Device(device) = properties.location else {
            return Err(DriverError::new("cuMemPoolCreate", DriverCode::NOT_SUPPORTED));
        };
        self.enter(device)?;
        // SAFETY: plain C data for which zero is valid; the driver wants reserved bytes to be zero.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = location(device);
        props.maxSize = properties.max_bytes.unwrap_or(0) as usize;
        let mut pool = null_mut();
        call!(self, cuMemPoolCreate(&mut pool, &props))?;
        Ok(PoolHandle(pack(device, pool)))
    }

    fn pool_destroy(&self, pool: PoolHandle) -> Result<()> {
        self.enter_of(pool.0)?;
        call!(self, cuMemPoolDestroy(raw_pool(pool)))
    }

    fn pool_attribute(&self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        let (attribute, is_int) = pool_attribute_number(attribute);
        if is_int {
            let mut value: c_int = 0;
            call!(self, cuMemPoolGetAttribute(raw_pool(pool), attribute, (&raw mut value).cast()))?;
            Ok(value.max(0) as u64)
        } else {
            let mut value: u64 = 0;
            call!(self, cuMemPoolGetAttribute(raw_pool(pool), attribute, (&raw mut value).cast()))?;
            Ok(value)
        }
    }

    fn pool_set_attribute(&self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        let (attribute, is_int) = pool_attribute_number(attribute);
        if is_int {
            let mut value = c_int::from(value != 0);
            call!(self, cuMemPoolSetAttribute(raw_pool(pool), attribute, (&raw mut value).cast()))
        } else {
            let mut value = value;
            call!(self, cuMemPoolSetAttribute(raw_pool(pool), attribute, (&raw mut value).cast()))
        }
    }

    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()> {
        call!(self, cuMemPoolTrimTo(raw_pool(pool), usize::try_from(keep_bytes).unwrap_or(usize::MAX)))
    }

    fn pool_set_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        use sys::CUmemAccess_flags as Flags;
        let flags = match accessible {
            true => Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => Flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        // On an empty pool the driver may accept what fails at the next allocation: ask first.
        if accessible && device_of(pool.0) != peer && !self.can_access_peer(peer, device_of(pool.0))? {
            return Err(DriverError::new("cuMemPoolSetAccess", DriverCode::PEER_ACCESS_UNSUPPORTED));
        }
        let access = sys::CUmemAccessDesc { location: location(peer), flags };
        call!(self, cuMemPoolSetAccess(raw_pool(pool), &access, 1))
    }

    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, _: Site) -> Result<DevicePtr> {
        self.enter_of(stream.0)?;
        let mut ptr = 0;
        call!(self, cuMemAllocFromPoolAsync(&mut ptr, bytes.get(), raw_pool(pool), raw_stream(stream)))?;
        Ok(DevicePtr(ptr))
    }

    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuMemFreeAsync(ptr.0, raw_stream(stream)))
    }

    fn alloc_sync(&self, device: DeviceId, bytes: NonZeroUsize, _: Site) -> Result<DevicePtr> {
        self.enter(device)?;
        let mut ptr = 0;
        call!(self, cuMemAlloc_v2(&mut ptr, bytes.get()))?;
        lock(&self.allocations).insert(ptr, device);
        Ok(DevicePtr(ptr))
    }

    fn free_sync(&self, ptr: DevicePtr, _: Site) -> Result<()> {
        let device = lock(&self.allocations).remove(&ptr.0);
        self.enter(device.ok_or(DriverError::new("cuMemFree_v2", DriverCode::INVALID_VALUE))?)?;
        call!(self, cuMemFree_v2(ptr.0))
    }

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, _: Site) -> Result<Arc<HostBlock>> {
        self.enter(device)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE
            | match kind {
                HostKind::Upload => sys::CU_MEMHOSTALLOC_WRITECOMBINED,
                // Mapped, so that a stream can store words into it.
                HostKind::Download => sys::CU_MEMHOSTALLOC_DEVICEMAP,
            };
        let mut memory = null_mut();
        call!(self, cuMemHostAlloc(&mut memory, bytes.get(), flags))?;
        let Some(memory) = NonNull::new(memory.cast::<u8>()) else {
            return Err(DriverError::new("cuMemHostAlloc", DriverCode::OUT_OF_MEMORY));
        };
        // SAFETY: `bytes` bytes that were just given to us, page-aligned; zeroing makes them initialised. They stay until
        //         `host_free`, whose callers give up the block.
        let block = unsafe {
            memory.write_bytes(0, bytes.get());
            HostBlock::from_driver(memory, bytes.get(), kind)
        };
        lock(&self.blocks).insert(block.id(), device);
        Ok(block)
    }

    fn host_free(&self, block: &Arc<HostBlock>, _: Site) -> Result<()> {
        let device = lock(&self.blocks).remove(&block.id());
        self.enter(device.ok_or(DriverError::new("cuMemFreeHost", DriverCode::INVALID_VALUE))?)?;
        call!(self, cuMemFreeHost(block.address() as *mut c_void))
    }

    fn copy(&self, copy: &CopyOp, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        let on = raw_stream(stream);
        match copy {
            CopyOp::HostToDevice { from, to } => {
                call!(self, cuMemcpyHtoDAsync_v2(to.0, from.address() as *const c_void, from.len(), on))
            }
            CopyOp::DeviceToHost { from, to } => {
                call!(self, cuMemcpyDtoHAsync_v2(to.address() as *mut c_void, from.0, to.len(), on))
            }
            CopyOp::DeviceToDevice { from, to, len } => {
                call!(self, cuMemcpyDtoDAsync_v2(to.0, from.0, *len, on))
            }
            CopyOp::Peer { .. } => Err(DriverError::new("cuMemcpyPeerAsync", DriverCode::NOT_SUPPORTED)),
        }
    }

    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuMemsetD8Async(ptr.0, byte, len, raw_stream(stream)))
    }

    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        let mut ptr = 0;
        call!(self, cuMemHostGetDevicePointer_v2(&mut ptr, word.address() as *mut c_void, 0))?;
        // Without flags the store comes after a fence of the whole system.
        call!(self, cuStreamWriteValue32_v2(raw_stream(stream), ptr, value, 0))
    }

    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        self.enter_of(stream.0)?;
        // CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END of cuda.h: pairs of key and value, then the end.
        let mut size = launch.params.len();
        let mut extra: [*mut c_void; 5] = [
            without_provenance_mut(1),
            launch.params.as_ptr().cast_mut().cast(),
            without_provenance_mut(2),
            (&raw mut size).cast(),
            null_mut(),
        ];
        let extra = if launch.params.is_empty() { null_mut() } else { extra.as_mut_ptr() };
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let (function, on) = (raw_function(launch.function), raw_stream(stream));
        call!(self, cuLaunchKernel(function, gx, gy, gz, bx, by, bz, launch.shared_bytes, on, null_mut(), extra))
            .map_err(|error| {
                error.with_detail(format!("{} in {:?} blocks of {:?}", launch.name, launch.grid, launch.block))
            })
    }

    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        self.enter(device)?;
        let text = c_name("cuModuleLoadDataEx", ptx)
            .map_err(|_| DriverError::new("cuModuleLoadDataEx", DriverCode::INVALID_PTX).with_detail("a zero byte"))?;
        let mut log = vec![0u8; 16 << 10];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_uint,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), (log.len() - 1) as *mut c_void];
        let mut module = null_mut();
        let loaded = call!(
            self,
            cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        );
        loaded.map_err(|error| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            match String::from_utf8_lossy(&log[..end]).trim() {
                "" => error,
                words => error.with_detail(words),
            }
        })?;
        Ok(ModuleHandle(pack(device, module)))
    }

    fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        self.enter_of(module.0)?;
        call!(self, cuModuleUnload(pointer(module.0)))
    }

    fn module_function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.enter_of(module.0)?;
        let text = c_name("cuModuleGetFunction", name)?;
        let mut function = null_mut();
        call!(self, cuModuleGetFunction(&mut function, pointer(module.0), text.as_ptr()))
            .map_err(|error| error.with_detail(name))?;
        Ok(FunctionHandle(pack(device_of(module.0), function)))
    }

    fn module_global(&self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)> {
        self.enter_of(module.0)?;
        let text = c_name("cuModuleGetGlobal_v2", name)?;
        let (mut ptr, mut bytes) = (0, 0);
        call!(self, cuModuleGetGlobal_v2(&mut ptr, &mut bytes, pointer(module.0), text.as_ptr()))
            .map_err(|error| error.with_detail(name))?;
        Ok((DevicePtr(ptr), bytes))
    }

    fn function_attribute(&self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32> {
        self.enter_of(function.0)?;
        let mut value = 0;
        call!(self, cuFuncGetAttribute(&mut value, function_attribute_number(attribute), raw_function(function)))?;
        Ok(value)
    }

    fn function_set_max_dynamic_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        self.enter_of(function.0)?;
        let attribute = function_attribute_number(FunctionAttribute::MaxDynamicSharedBytes);
        call!(self, cuFuncSetAttribute(raw_function(function), attribute, bytes as c_int))
    }

    fn occupancy(&self, function: FunctionHandle, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        self.enter_of(function.0)?;
        let mut blocks = 0;
        let (function, threads) = (raw_function(function), block_threads as c_int);
        call!(
            self,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared_bytes as usize)
        )?;
        Ok(blocks.max(0) as u32)
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}", self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_carry_their_device() {
        let address = 0x7f12_3456_7890usize as *mut u8;
        let handle = pack(DeviceId(3), address);
        assert_eq!(device_of(handle), DeviceId(3));
        assert_eq!(pointer::<u8>(handle), address);
    }

    #[test]
    fn not_ready_is_an_answer_and_errors_are_not() {
        let error = |code| Err(DriverError::new("cuEventQuery", code));
        assert_eq!(ready(Ok(())), Ok(true));
        assert_eq!(ready(error(DriverCode::NOT_READY)), Ok(false));
        assert!(ready(error(DriverCode::ILLEGAL_ADDRESS)).is_err());
    }
}
