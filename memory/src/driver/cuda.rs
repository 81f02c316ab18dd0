//! CUDA: libcuda, opened when the program runs.
//!
//!   CudaDriver::open() ─► is libcuda there? ─► new enough? ─► has it every function we call? ─► cuInit ─► a device?
//!                              │ no                │ no             │ no                        │ no       │ no
//!                              └───────────────────┴────────────────┴── DriverUnavailable, in words ───────┘
//!
//! Library    cudarc finds and opens it, and lends its types. Functions are asked for up front and return plain
//!            numbers: a missing one is an answer here, not a panic later, and a code newer than us is a value, not
//!            undefined.
//! Contexts   each device's primary context, retained by `device_open`; every call that needs one makes it current
//!            first, since tasks move between threads.
//! Handles    the driver's pointers, with the device in the top bits.
//! Exit       nothing is called while the process ends (`leaving`): every call of the library goes through one gate.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::*;
use crate::error::DriverUnavailable;
pub use arenas::{glibc_version, limit_malloc_arenas};
use code::c_name;
use functions::{Functions, NAMES};
use large_pages::LargePages;
use leaving::Step;
pub use leaving::exit_at_once;
pub(crate) use leaving::{is_shut, shut};
use numbers::*;

/// Calls a function of the library; a code other than success is a `DriverError` that names it, and so is a shut gate.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        match leaving::enter(stringify!($name)) {
            Ok(_inside) => {
                // SAFETY: the signature is the library's, and its exit handlers have not run. Pointers passed are to
                // live locals of the right type, or were given by the driver and are still owned by the caller; device
                // addresses are the driver's to check.
                let code = unsafe { ($driver.functions.$name)($($arg),*) };
                if code == 0 { Ok(()) } else { Err(DriverError::new(stringify!($name), DriverCode(code))) }
            }
            Err(refused) => Err(refused),
        }
    }};
}

mod arenas;
mod code;
mod functions;
mod large_pages;
mod leaving;
mod numbers;
mod open;
mod pinned;
mod pools;

/// NVIDIA's driver.
pub struct CudaDriver {
    functions: Functions,
    version: DriverVersion,
    /// How often each device that is open was opened.
    open: Mutex<HashMap<u32, u32>>,
    /// Their primary contexts, as addresses; 0 where there is none. Read at every call, so without a lock.
    contexts: Box<[AtomicUsize]>,
    /// On which device a block of pinned memory was made, and of which memory of ours.
    blocks: Mutex<HashMap<u64, (DeviceId, Option<LargePages>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaDriver {
    /// The functions of libcuda that it must have.
    pub fn functions() -> impl Iterator<Item = &'static str> {
        ["cuDriverGetVersion"].into_iter().chain(NAMES.iter().copied())
    }

    fn device(&self, device: DeviceId) -> Result<c_int> {
        let mut handle = 0;
        call!(self, cuDeviceGet(&mut handle, device.0 as c_int))?;
        Ok(handle)
    }

    /// Makes the device's context current on this thread.
    fn enter(&self, device: DeviceId) -> Result<()> {
        call!(self, cuCtxSetCurrent(self.context("cuCtxSetCurrent", device)?))
    }

    fn enter_of(&self, handle: u64) -> Result<()> {
        self.enter(device_of(handle))
    }

    /// Makes the context of a pool's device current; a pool of the host has none.
    fn enter_pool(&self, pool: PoolHandle) -> Result<()> {
        if device_of(pool.0) == HOST { Ok(()) } else { self.enter_of(pool.0) }
    }

    /// The primary context of a device that is open.
    fn context(&self, call: &'static str, device: DeviceId) -> Result<sys::CUcontext> {
        let context = self.contexts.get(device.0 as usize).map_or(0, |context| context.load(Ordering::Acquire));
        let context = Some(context).filter(|&context| context != 0);
        let absent =
            || DriverError::new(call, DriverCode::INVALID_CONTEXT).with_detail(format!("{device} is not open"));
        Ok(context.ok_or_else(absent)? as sys::CUcontext)
    }

    /// Where the memory at `ptr` lies; what is not allocated is an invalid value for `call`.
    fn device_at(&self, call: &'static str, ptr: DevicePtr) -> Result<DeviceId> {
        let mut ordinal: c_int = 0;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint;
        call!(self, cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, ptr.0))
            .map_err(|error| DriverError::new(call, error.code).with_detail(format!("{ptr:?} is not allocated")))?;
        Ok(u32::try_from(ordinal).map_or(HOST, DeviceId))
    }
}

/// True for success, false for "not ready"; everything else stays an error.
fn ready(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code == DriverCode::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
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
        if device.0 >= HOST.0 {
            return Err(DriverError::new("cuDeviceGet", DriverCode::INVALID_DEVICE));
        }
        let handle = self.device(device)?;
        let mut open = lock(&self.open);
        let mut context = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut context, handle))?;
        Step::Context.over();
        self.contexts[device.0 as usize].store(context as usize, Ordering::Release);
        *open.entry(device.0).or_default() += 1;
        Ok(())
    }

    fn device_close(&self, device: DeviceId) -> Result<()> {
        let handle = self.device(device)?;
        let mut open = lock(&self.open);
        // The driver counts for the whole process: what others retained is not ours to release.
        let Some(users) = open.get_mut(&device.0) else {
            return Err(DriverError::new("cuDevicePrimaryCtxRelease_v2", DriverCode::INVALID_CONTEXT)
                .with_detail(format!("{device} is not open")));
        };
        *users -= 1;
        if *users == 0 {
            open.remove(&device.0);
            self.contexts[device.0 as usize].store(0, Ordering::Release);
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

    fn context_save(&self) -> Result<ThreadContext> {
        let mut context = null_mut();
        call!(self, cuCtxGetCurrent(&mut context))?;
        Ok(ThreadContext(context as u64))
    }

    fn context_restore(&self, context: ThreadContext) -> Result<()> {
        call!(self, cuCtxSetCurrent(context.0 as sys::CUcontext))
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

    fn stream_wrap(&self, device: DeviceId, raw: u64) -> Result<StreamHandle> {
        const CALL: &str = "cuStreamGetCtx";
        self.enter(device)?;
        let stream = StreamHandle(pack(device, raw as *mut c_void));
        if device_of(stream.0) != device || raw_stream(stream) as u64 != raw {
            let detail = format!("{raw:#x} is no stream's address");
            return Err(DriverError::new(CALL, DriverCode::INVALID_HANDLE).with_detail(detail));
        }
        // What we submit to it belongs to our context: a stream of another one would refuse it later, and less clearly.
        let mut context = null_mut();
        call!(self, cuStreamGetCtx(raw_stream(stream), &mut context))?;
        if context != self.context(CALL, device)? {
            let detail = format!("stream {raw:#x} does not belong to the primary context of {device}");
            return Err(DriverError::new(CALL, DriverCode::INVALID_CONTEXT).with_detail(detail));
        }
        Ok(stream)
    }

    fn stream_raw(&self, stream: StreamHandle) -> u64 {
        raw_stream(stream) as u64
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<u64> {
        self.enter_of(stream.0)?;
        let mut id = 0;
        call!(self, cuStreamGetId(raw_stream(stream), &mut id))?;
        Ok(id)
    }

    fn stream_capture_begin(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuStreamBeginCapture_v2(raw_stream(stream), capture_mode_number(mode)))
    }

    fn stream_capture_end(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.enter_of(stream.0)?;
        let mut graph = null_mut();
        call!(self, cuStreamEndCapture(raw_stream(stream), &mut graph))?;
        Ok(GraphHandle(pack(device_of(stream.0), graph)))
    }

    fn stream_capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        use sys::CUstreamCaptureStatus as S;
        const NONE: c_uint = S::CU_STREAM_CAPTURE_STATUS_NONE as c_uint;
        const ACTIVE: c_uint = S::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_uint;
        self.enter_of(stream.0)?;
        let (mut status, mut id) = (NONE, 0);
        let on = raw_stream(stream);
        call!(self, cuStreamGetCaptureInfo_v2(on, &mut status, &mut id, null_mut(), null_mut(), null_mut()))?;
        Ok(match status {
            NONE => CaptureStatus::None,
            ACTIVE => CaptureStatus::Active { id },
            _ => CaptureStatus::Invalidated,
        })
    }

    fn thread_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut mode = capture_mode_number(mode);
        call!(self, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        Ok(capture_mode(mode))
    }

    fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        self.enter_of(graph.0)?;
        call!(self, cuGraphDestroy(raw_graph(graph)))
    }

    fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        self.enter_of(graph.0)?;
        let mut exec = null_mut();
        call!(self, cuGraphInstantiateWithFlags(&mut exec, raw_graph(graph), 0))?;
        Ok(GraphExecHandle(pack(device_of(graph.0), exec)))
    }

    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        self.enter_of(graph.0)?;
        call!(self, cuGraphExecDestroy(raw_exec(graph)))
    }

    fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle, _: Site) -> Result<()> {
        self.enter_of(stream.0)?;
        call!(self, cuGraphLaunch(raw_exec(graph), raw_stream(stream)))
    }

    fn graph_memory_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute) -> Result<u64> {
        let (handle, attribute) = (self.device(device)?, graph_memory_attribute_number(attribute));
        let mut value: u64 = 0;
        call!(self, cuDeviceGetGraphMemAttribute(handle, attribute, (&raw mut value).cast()))?;
        Ok(value)
    }

    fn graph_memory_set_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute, value: u64) -> Result<()> {
        let (handle, attribute) = (self.device(device)?, graph_memory_attribute_number(attribute));
        let mut value = value;
        call!(self, cuDeviceSetGraphMemAttribute(handle, attribute, (&raw mut value).cast()))
    }

    fn graph_memory_trim(&self, device: DeviceId) -> Result<()> {
        call!(self, cuDeviceGraphMemTrim(self.device(device)?))
    }

    fn event_create(&self, device: DeviceId, flags: EventFlags) -> Result<EventHandle> {
        self.enter(device)?;
        let mut event = null_mut();
        call!(self, cuEventCreate(&mut event, event_flags_number(flags)))?;
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

    fn event_ipc_handle(&self, event: EventHandle) -> Result<OpaqueHandle> {
        self.enter_of(event.0)?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        call!(self, cuIpcGetEventHandle(&mut handle, raw_event(event)))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    fn event_open_ipc(&self, device: DeviceId, handle: &OpaqueHandle) -> Result<EventHandle> {
        self.enter(device)?;
        let handle = sys::CUipcEventHandle { reserved: handle.map(|byte| byte as _) };
        let mut event = null_mut();
        call!(self, cuIpcOpenEventHandle(&mut event, handle))?;
        Ok(EventHandle(pack(device, event)))
    }

    fn pool_create(&self, properties: &PoolProperties) -> Result<PoolHandle> {
        self.create_pool(properties)
    }

    fn pool_destroy(&self, pool: PoolHandle) -> Result<()> {
        self.enter_pool(pool)?;
        call!(self, cuMemPoolDestroy(raw_pool(pool)))
    }

    fn device_default_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        let handle = self.device(device)?;
        let mut pool = null_mut();
        call!(self, cuDeviceGetDefaultMemPool(&mut pool, handle))?;
        Ok(PoolHandle(pack(device, pool)))
    }

    fn device_current_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        let handle = self.device(device)?;
        let mut pool = null_mut();
        call!(self, cuDeviceGetMemPool(&mut pool, handle))?;
        Ok(PoolHandle(pack(device, pool)))
    }

    fn device_set_current_pool(&self, device: DeviceId, pool: PoolHandle) -> Result<()> {
        call!(self, cuDeviceSetMemPool(self.device(device)?, raw_pool(pool)))
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
        self.set_pool_access(pool, peer, accessible)
    }

    fn pool_access(&self, pool: PoolHandle, device: DeviceId) -> Result<PoolAccess> {
        let mut place = location(PoolLocation::Device(device));
        let mut flags: c_uint = 0;
        call!(self, cuMemPoolGetAccess(&mut flags, raw_pool(pool), &mut place))?;
        pool_access(flags).ok_or_else(|| {
            let detail = format!("access {flags:#x} has no name here");
            DriverError::new("cuMemPoolGetAccess", DriverCode::NOT_SUPPORTED).with_detail(detail)
        })
    }

    fn pool_export(&self, pool: PoolHandle) -> Result<OwnedFd> {
        self.export_pool(pool)
    }

    fn pool_import(&self, device: DeviceId, descriptor: BorrowedFd<'_>) -> Result<PoolHandle> {
        self.import_pool(device, descriptor)
    }

    fn pool_export_pointer(&self, ptr: DevicePtr) -> Result<OpaqueHandle> {
        let mut data = sys::CUmemPoolPtrExportData { reserved: [0; 64] };
        call!(self, cuMemPoolExportPointer(&mut data, ptr.0))?;
        Ok(data.reserved)
    }

    fn pool_import_pointer(&self, pool: PoolHandle, handle: &OpaqueHandle, _: Site) -> Result<DevicePtr> {
        self.enter_pool(pool)?;
        let mut data = sys::CUmemPoolPtrExportData { reserved: *handle };
        let mut ptr = 0;
        call!(self, cuMemPoolImportPointer(&mut ptr, raw_pool(pool), &mut data))?;
        Ok(DevicePtr(ptr))
    }

    fn pointer_attributes(&self, ptr: DevicePtr) -> Result<PointerAttributes> {
        self.attributes_of(ptr)
    }

    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, _: Site) -> Result<DevicePtr> {
        self.enter_of(stream.0)?;
        let mut ptr = 0;
        call!(self, cuMemAllocFromPoolAsync(&mut ptr, bytes.get(), raw_pool(pool), raw_stream(stream)))?;
        Ok(DevicePtr(ptr))
    }

    fn alloc_current(&self, bytes: NonZeroUsize, stream: StreamHandle, _: Site) -> Result<DevicePtr> {
        self.enter_of(stream.0)?;
        let mut ptr = 0;
        call!(self, cuMemAllocAsync(&mut ptr, bytes.get(), raw_stream(stream)))?;
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
        Ok(DevicePtr(ptr))
    }

    fn free_sync(&self, ptr: DevicePtr, _: Site) -> Result<()> {
        // The free of null does nothing in CUDA; here it is always a mistake.
        if ptr == DevicePtr::NULL {
            return Err(DriverError::new("cuMemFree_v2", DriverCode::INVALID_VALUE).with_detail("the address is null"));
        }
        // Of a pool's memory, too: it is free at once, for the driver takes the caller's word that every use is over.
        match self.device_at("cuMemFree_v2", ptr)? {
            HOST => {}
            device => self.enter(device)?,
        }
        call!(self, cuMemFree_v2(ptr.0))
    }

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, _: Site) -> Result<Arc<HostBlock>> {
        self.alloc_pinned(device, bytes, kind)
    }

    fn host_free(&self, block: &Arc<HostBlock>, _: Site) -> Result<()> {
        self.free_pinned(block)
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
            CopyOp::Peer { from, from_device, to, to_device, len } => {
                const CALL: &str = "cuMemcpyPeerAsync";
                let (source, target) = (self.context(CALL, *from_device)?, self.context(CALL, *to_device)?);
                call!(self, cuMemcpyPeerAsync(to.0, target, from.0, source, *len, on))
            }
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

    fn build(&self) -> String {
        // The driver's release, compiler and date; where the system does not tell, its version.
        match std::fs::read_to_string("/proc/driver/nvidia/version") {
            Ok(text) if !text.trim().is_empty() => text.trim().to_string(),
            _ => format!("CUDA {}", self.version),
        }
    }

    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        self.load_ptx(device, ptx)
    }

    fn assemble(&self, device: DeviceId, ptx: &str) -> Result<Vec<u8>> {
        self.assemble_ptx(device, ptx)
    }

    fn module_load_code(&self, device: DeviceId, code: &[u8]) -> Result<ModuleHandle> {
        self.load_code(device, code)
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
    fn not_ready_is_an_answer_and_errors_are_not() {
        let error = |code| Err(DriverError::new("cuEventQuery", code));
        assert_eq!(ready(Ok(())), Ok(true));
        assert_eq!(ready(error(DriverCode::NOT_READY)), Ok(false));
        assert!(ready(error(DriverCode::ILLEGAL_ADDRESS)).is_err());
    }
}
