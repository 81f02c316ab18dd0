//! The narrow waist: everything the engine asks of a GPU, in CUDA's own words.
//!
//!   Device, Stream, Event, MemoryPool, DeviceBuffer, PinnedPool, Module      safe and ordered
//!   ───────────────────────────────────────────────────────────────────
//!   trait Driver                                                            this page
//!   ├── cuda    libcuda, opened at run time
//!   └── sim     a simulated device: interprets the same PTX and checks memory and stream order
//!
//! Used as    `Arc<dyn Driver>`: one indirect call is nothing beside a driver call, and no type parameter spreads.
//! Refuses    what CUDA refuses, with CUDA's result codes. `NOT_READY` is an answer (`Ok(false)`), not an error.
//! Order      the driver keeps order inside a stream and across recorded events, nothing else; `order` builds on it.
//! Threads    every method may be called from every thread; the driver binds contexts itself.
//! Sites      calls that a finding may have to name take the place in the source that asked for them.

#[expect(unsafe_code, reason = "calls into libcuda")]
pub mod cuda;
pub mod finding;
pub mod sim;
mod values;

use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use crate::error::{DriverCode, DriverError};
pub use crate::pinned::{HostBlock, HostSpan};
pub use cuda::CudaDriver;
pub use finding::{Finding, FindingKind};
pub use values::*;

pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// One copy. Each end names its bytes; the lengths agree.
#[derive(Clone, Debug)]
pub enum CopyOp {
    HostToDevice {
        from: HostSpan,
        to: DevicePtr,
    },
    DeviceToHost {
        from: DevicePtr,
        to: HostSpan,
    },
    DeviceToDevice {
        from: DevicePtr,
        to: DevicePtr,
        len: usize,
    },
    /// Between two devices, both open. Works without peer access: the driver stages the bytes then.
    Peer {
        from: DevicePtr,
        from_device: DeviceId,
        to: DevicePtr,
        to_device: DeviceId,
        len: usize,
    },
}

impl CopyOp {
    pub fn len(&self) -> usize {
        match self {
            CopyOp::HostToDevice { from, .. } => from.len(),
            CopyOp::DeviceToHost { to, .. } => to.len(),
            CopyOp::DeviceToDevice { len, .. } | CopyOp::Peer { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A driver that lacks a function refuses it with CUDA's code for that.
fn lacks<T>(call: &'static str) -> Result<T> {
    Err(DriverError::new(call, DriverCode::NOT_SUPPORTED))
}

/// A GPU as its driver shows it.
pub trait Driver: Send + Sync + fmt::Debug + 'static {
    fn kind(&self) -> DriverKind;
    fn version(&self) -> DriverVersion;
    /// The driver's build: code that one build has assembled is not for another.
    fn build(&self) -> String {
        self.version().to_string()
    }

    // Devices. `device_open` retains the primary context, `device_close` releases it.

    fn device_count(&self) -> Result<u32>;
    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo>;
    fn attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> Result<i32>;
    fn device_open(&self, device: DeviceId) -> Result<()>;
    fn device_close(&self, device: DeviceId) -> Result<()>;
    fn device_synchronize(&self, device: DeviceId) -> Result<()>;
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;
    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> Result<bool>;

    /// The context current on this thread. For who is called by a program with contexts of its own: every other method
    /// may change it.
    fn context_save(&self) -> Result<ThreadContext> {
        Ok(ThreadContext::default())
    }
    fn context_restore(&self, context: ThreadContext) -> Result<()> {
        let _ = context;
        Ok(())
    }

    // Streams: non-blocking ones only; there is no default stream.

    fn stream_create(&self, device: DeviceId, priority: StreamPriority) -> Result<StreamHandle>;
    fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;
    fn stream_query(&self, stream: StreamHandle) -> Result<bool>;
    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;
    /// Everything submitted to `stream` from now on runs after what `event` was last recorded behind.
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()>;

    /// Wraps a stream that other code created on the device and keeps alive, by its raw handle: a pointer for CUDA; 0
    /// to 2 are its default streams. The wrapper needs no destroy call.
    fn stream_wrap(&self, device: DeviceId, raw: u64) -> Result<StreamHandle> {
        let _ = (device, raw);
        lacks("cuStreamGetCtx")
    }
    /// The raw handle, for who else talks to the driver.
    fn stream_raw(&self, stream: StreamHandle) -> u64 {
        stream.0
    }
    /// A number that no other stream of the process gets, not even after this one is destroyed.
    fn stream_id(&self, stream: StreamHandle) -> Result<u64> {
        let _ = stream;
        lacks("cuStreamGetId")
    }

    // Graphs: a stream that captures runs nothing; what is submitted to it becomes a graph.

    fn stream_capture_begin(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        let _ = (stream, mode);
        lacks("cuStreamBeginCapture_v2")
    }
    /// Ends the capture that was begun on `stream`; every stream that joined it must have come back.
    fn stream_capture_end(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let _ = stream;
        lacks("cuStreamEndCapture")
    }
    fn stream_capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        let _ = stream;
        lacks("cuStreamGetCaptureInfo_v2")
    }
    /// How this thread looks at calls that are unsafe under capture, from now on; returns how it did before. `Relaxed`
    /// is for threads and moments that touch nothing captured: without it a capture of another library breaks at our
    /// next poll.
    fn thread_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let _ = mode;
        Ok(CaptureMode::Global)
    }
    fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        let _ = graph;
        lacks("cuGraphDestroy")
    }
    fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        let _ = graph;
        lacks("cuGraphInstantiateWithFlags")
    }
    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        let _ = graph;
        lacks("cuGraphExecDestroy")
    }
    fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle, site: Site) -> Result<()> {
        let _ = (graph, stream, site);
        lacks("cuGraphLaunch")
    }
    fn graph_memory_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute) -> Result<u64> {
        let _ = (device, attribute);
        lacks("cuDeviceGetGraphMemAttribute")
    }
    fn graph_memory_set_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute, value: u64) -> Result<()> {
        let _ = (device, attribute, value);
        lacks("cuDeviceSetGraphMemAttribute")
    }
    /// Gives back to the system what no graph uses.
    fn graph_memory_trim(&self, device: DeviceId) -> Result<()> {
        let _ = device;
        lacks("cuDeviceGraphMemTrim")
    }

    // Events.

    fn event_create(&self, device: DeviceId, flags: EventFlags) -> Result<EventHandle>;
    fn event_destroy(&self, event: EventHandle) -> Result<()>;
    fn event_record(&self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()>;
    /// True once everything before the last record has finished. The host then is ordered after it. On the
    /// simulated device, asking is what lets time pass: a caller that keeps asking gets `true` or an error in the end.
    fn event_query(&self, event: EventHandle) -> Result<bool>;
    fn event_synchronize(&self, event: EventHandle) -> Result<()>;
    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    /// For another process: only of an event made with `interprocess`.
    fn event_ipc_handle(&self, event: EventHandle) -> Result<OpaqueHandle> {
        let _ = event;
        lacks("cuIpcGetEventHandle")
    }
    /// Another process's event. Destroyed like one of our own; the other must not have destroyed it.
    fn event_open_ipc(&self, device: DeviceId, handle: &OpaqueHandle) -> Result<EventHandle> {
        let _ = (device, handle);
        lacks("cuIpcOpenEventHandle")
    }

    // Pools and allocations.

    fn pool_create(&self, properties: &PoolProperties) -> Result<PoolHandle>;
    /// Live allocations keep their memory; a pool that was current makes place for the default one.
    fn pool_destroy(&self, pool: PoolHandle) -> Result<()>;
    /// The pool that every device has. It cannot be destroyed, exported or limited.
    fn device_default_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        let _ = device;
        lacks("cuDeviceGetDefaultMemPool")
    }
    /// The pool that `alloc_current` takes from: the default one unless another was set.
    fn device_current_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        let _ = device;
        lacks("cuDeviceGetMemPool")
    }
    /// For the whole process. The pool must lie on the device.
    fn device_set_current_pool(&self, device: DeviceId, pool: PoolHandle) -> Result<()> {
        let _ = (device, pool);
        lacks("cuDeviceSetMemPool")
    }
    fn pool_attribute(&self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64>;
    fn pool_set_attribute(&self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()>;
    /// Gives back to the system what is unused beyond `keep_bytes`. The driver must have seen the frees finish.
    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()>;
    /// Lets kernels on `peer` touch the pool's memory, now and later.
    fn pool_set_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()>;
    fn pool_access(&self, pool: PoolHandle, device: DeviceId) -> Result<PoolAccess> {
        let _ = (pool, device);
        lacks("cuMemPoolGetAccess")
    }
    /// A descriptor that lets another process import the pool. Only of a pool made with `HandleTypes::POSIX_FD`.
    fn pool_export(&self, pool: PoolHandle) -> Result<OwnedFd> {
        let _ = pool;
        lacks("cuMemPoolExportToShareableHandle")
    }
    /// Imports another process's pool, located on `device`. The pool cannot allocate, and only its own device has
    /// access so far. The descriptor may be closed afterwards.
    fn pool_import(&self, device: DeviceId, descriptor: BorrowedFd<'_>) -> Result<PoolHandle> {
        let _ = (device, descriptor);
        lacks("cuMemPoolImportFromShareableHandle")
    }
    /// For another process that has imported the pool that `ptr` was allocated from.
    fn pool_export_pointer(&self, ptr: DevicePtr) -> Result<OpaqueHandle> {
        let _ = ptr;
        lacks("cuMemPoolExportPointer")
    }
    /// Another process's allocation. Nothing waits until it is ready there. Freed here before it is freed there.
    fn pool_import_pointer(&self, pool: PoolHandle, handle: &OpaqueHandle, site: Site) -> Result<DevicePtr> {
        let _ = (pool, handle, site);
        lacks("cuMemPoolImportPointer")
    }
    /// What an address that is allocated now belongs to.
    fn pointer_attributes(&self, ptr: DevicePtr) -> Result<PointerAttributes> {
        let _ = ptr;
        lacks("cuPointerGetAttribute")
    }
    /// Allocates in stream order. Aligned to 256 bytes at least.
    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr>;
    /// Allocates from the current pool of the stream's device.
    fn alloc_current(&self, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        let _ = (bytes, stream, site);
        lacks("cuMemAllocAsync")
    }
    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()>;
    fn alloc_sync(&self, device: DeviceId, bytes: NonZeroUsize, site: Site) -> Result<DevicePtr>;
    fn free_sync(&self, ptr: DevicePtr, site: Site) -> Result<()>;

    // Pinned host memory. It is the driver's, so that the simulated device sees who touches it.

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, site: Site) -> Result<Arc<HostBlock>>;
    /// Ordinary host memory, for when no more can be page-locked. Copies may use it, and block their caller: until the
    /// bytes have been read where the host is the source, until they are there where it is the target. Words cannot lie
    /// in it.
    fn host_alloc_pageable(
        &self,
        device: DeviceId,
        bytes: NonZeroUsize,
        kind: HostKind,
        site: Site,
    ) -> Result<Arc<HostBlock>> {
        let _ = (device, site);
        HostBlock::pageable(bytes.get(), kind).ok_or(DriverError::new("malloc", DriverCode::OUT_OF_MEMORY))
    }
    /// Gives pinned or ordinary memory back. Nothing in flight may use it.
    fn host_free(&self, block: &Arc<HostBlock>, site: Site) -> Result<()>;
    /// The host is about to touch these bytes. The simulated device checks that no copy still does.
    fn host_access(&self, span: &HostSpan, access: Access, site: Site) {
        let _ = (span, access, site);
    }

    // Work, in stream order.

    fn copy(&self, copy: &CopyOp, stream: StreamHandle, site: Site) -> Result<()>;
    /// Sets `len` bytes to `byte`.
    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, site: Site) -> Result<()>;
    /// Stores `value` into a word of pinned memory (`HostBlock::store_word`), after everything before it in the
    /// stream. Refused with `NOT_SUPPORTED` where `DeviceAttribute::StreamMemoryOperations` is 0.
    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()>;
    /// Launches a kernel.
    ///
    /// # Safety
    /// `launch.params` has the kernel's layout, and every address the kernel reaches from it stays allocated until the
    /// kernel has finished, ordered after its last conflicting use.
    #[expect(
        unsafe_code,
        reason = "what a kernel reaches through addresses is beyond the types; `kernels::launch` answers for it"
    )]
    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()>;

    // Code.

    /// Loads PTX. A refusal carries the driver's log.
    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle>;
    /// Assembles PTX into code of the device. A refusal carries the driver's log.
    fn assemble(&self, device: DeviceId, ptx: &str) -> Result<Vec<u8>>;
    /// Loads code that the same build of the driver has assembled for the same compute capability, whole: a driver
    /// believes what the code's header says of its length. `KernelCache` keeps a checksum for that.
    fn module_load_code(&self, device: DeviceId, code: &[u8]) -> Result<ModuleHandle>;
    /// No kernel of the module may be running.
    fn module_unload(&self, module: ModuleHandle) -> Result<()>;
    fn module_function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle>;
    fn module_global(&self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)>;
    fn function_attribute(&self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32>;
    /// Lets the kernel be launched with up to `bytes` of dynamic shared memory.
    fn function_set_max_dynamic_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()>;
    /// The kernel's parameters, where the driver can tell (the simulated device can).
    fn function_params(&self, function: FunctionHandle) -> Option<Vec<ParamLayout>> {
        let _ = function;
        None
    }
    /// How many thread blocks of the kernel fit on one multiprocessor at once.
    fn occupancy(&self, function: FunctionHandle, block_threads: u32, shared_bytes: u32) -> Result<u32>;

    // Only the simulated device has more to say.

    /// What its checks found so far, oldest first.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
    /// Runs everything that is queued on every stream, as if the host had waited for all of it.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// The seed that replays this run, if there is one.
    fn seed(&self) -> Option<u64> {
        None
    }
}
