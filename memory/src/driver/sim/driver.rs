//! The driver's calls, one by one, under the lock.

use super::fault::Place;
use super::queue::Queues;
use super::shape::{MAX_THREADS_PER_BLOCK, REGISTERS_PER_MULTIPROCESSOR};
use super::state::{Event, State, refuse};
use super::{CallKind, SimDriver, launch};
use crate::driver::*;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

impl Driver for SimDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Sim
    }

    fn version(&self) -> DriverVersion {
        DriverVersion(self.options.version)
    }

    fn build(&self) -> String {
        format!("simulated device, CUDA {}", self.version())
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
        let unknown = Err(DriverError::new("cuDeviceGetAttribute", DriverCode::INVALID_VALUE));
        let shape = self.options.shape;
        let value = match attribute {
            DeviceAttribute::ComputeCapabilityMajor => shape.compute_capability.0,
            DeviceAttribute::ComputeCapabilityMinor => shape.compute_capability.1,
            DeviceAttribute::MultiprocessorCount => self.options.multiprocessors,
            DeviceAttribute::WarpSize => 32,
            DeviceAttribute::MaxThreadsPerBlock => MAX_THREADS_PER_BLOCK,
            DeviceAttribute::MaxThreadsPerMultiprocessor => shape.threads_per_multiprocessor,
            DeviceAttribute::MaxRegistersPerMultiprocessor => REGISTERS_PER_MULTIPROCESSOR,
            DeviceAttribute::MaxSharedMemoryPerBlock => shape.shared_bytes_per_block,
            DeviceAttribute::MaxSharedMemoryPerBlockOptin => shape.shared_bytes_per_block_optin,
            DeviceAttribute::MaxSharedMemoryPerMultiprocessor => shape.shared_bytes_per_multiprocessor,
            DeviceAttribute::MaxGridDimX => launch::MAX_GRID_X,
            DeviceAttribute::L2CacheBytes => 4 << 20,
            DeviceAttribute::ClockRateKhz | DeviceAttribute::MemoryClockRateKhz => 0,
            DeviceAttribute::GlobalMemoryBusWidthBits => 0,
            // Questions that older drivers do not know.
            DeviceAttribute::MemoryPoolsSupported if self.options.version < 11020 => return unknown,
            DeviceAttribute::MemoryPoolSupportedHandleTypes if self.options.version < 11030 => return unknown,
            DeviceAttribute::HostNumaId if self.options.version < 12020 => return unknown,
            DeviceAttribute::HostNumaMemoryPoolsSupported if self.options.version < 13000 => return unknown,
            DeviceAttribute::MemoryPoolsSupported => self.options.memory_pools.into(),
            DeviceAttribute::MemoryPoolSupportedHandleTypes if self.options.memory_pools => HandleTypes::POSIX_FD.0,
            DeviceAttribute::MemoryPoolSupportedHandleTypes => 0,
            DeviceAttribute::HostNumaMemoryPoolsSupported => {
                (self.options.memory_pools && self.options.host_numa_nodes > 0).into()
            }
            DeviceAttribute::HostNumaId if self.options.host_numa_nodes == 0 => return Ok(-1),
            DeviceAttribute::HostNumaId => 0,
            DeviceAttribute::UnifiedAddressing => 1,
            DeviceAttribute::StreamMemoryOperations => self.options.stream_memory_operations.into(),
            DeviceAttribute::Integrated => 0,
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    fn device_open(&self, device: DeviceId) -> Result<()> {
        self.existing("cuDevicePrimaryCtxRetain", device)?;
        let mut state = self.state();
        let context = state.context("cuDevicePrimaryCtxRetain", device)?;
        state.alive("cuDevicePrimaryCtxRetain", context)?;
        state.devices[context as usize].open += 1;
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
        let mut state = self.called(CallKind::DeviceSynchronize, device)?;
        let device = state.usable(CALL, device)?;
        state.no_captures_on(CALL, device)?;
        let lanes = state.queues.lanes_of(device);
        state.synchronize(CALL, &lanes)?;
        state.alive(CALL, device)
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let state = self.called(CallKind::MemoryInfo, device)?;
        let device = state.usable("cuMemGetInfo", device)?;
        let total_bytes = self.options.memory_bytes;
        Ok(MemoryInfo { free_bytes: total_bytes - State::used_of(&state.devices, &state.options, device), total_bytes })
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> Result<bool> {
        self.existing("cuDeviceCanAccessPeer", device)?;
        self.existing("cuDeviceCanAccessPeer", peer)?;
        Ok(self.state().can_reach(device.0, peer.0))
    }

    fn stream_create(&self, device: DeviceId, _priority: StreamPriority) -> Result<StreamHandle> {
        let mut state = self.called(CallKind::StreamCreate, device)?;
        let device = state.usable("cuStreamCreateWithPriority", device)?;
        let old = if self.options.reuse_stream_handles { state.old_streams.pop() } else { None };
        let stream = old.unwrap_or_else(|| StreamHandle(state.new_handle()));
        state.queues.open(device, stream);
        Ok(stream)
    }

    fn stream_wrap(&self, device: DeviceId, raw: u64) -> Result<StreamHandle> {
        self.state().stream_wrap(device, raw)
    }

    fn stream_raw(&self, stream: StreamHandle) -> u64 {
        Queues::raw(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<u64> {
        self.state().stream_id(stream)
    }

    fn stream_capture_begin(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.state().stream_capture_begin(stream, mode)
    }

    fn stream_capture_end(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.state().stream_capture_end(stream)
    }

    fn stream_capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        self.state().stream_capture_status(stream)
    }

    fn thread_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        Ok(self.state().thread_capture_mode(mode))
    }

    fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        self.state().graph_destroy(graph)
    }

    fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        self.state().graph_instantiate(graph)
    }

    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        self.state().graph_exec_destroy(graph)
    }

    fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle, _: Site) -> Result<()> {
        self.state().graph_launch(graph, stream)
    }

    fn graph_memory_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute) -> Result<u64> {
        self.state().graph_memory_attribute(device, attribute)
    }

    fn graph_memory_set_attribute(&self, device: DeviceId, attribute: GraphMemoryAttribute, value: u64) -> Result<()> {
        self.state().graph_memory_set_attribute(device, attribute, value)
    }

    fn graph_memory_trim(&self, device: DeviceId) -> Result<()> {
        self.state().graph_memory_trim(device)
    }

    fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.state().stream_destroy(stream)
    }

    fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        self.called(CallKind::StreamQuery, stream)?.stream_query(stream)
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuStreamSynchronize";
        let mut state = self.called(CallKind::StreamSynchronize, stream)?;
        let lane = state.lane(CALL, stream)?;
        state.not_captured(CALL, lane)?;
        state.unsafe_under_capture(CALL)?;
        state.synchronize(CALL, &[lane])
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()> {
        self.called(CallKind::StreamWait, stream)?.stream_wait(stream, event, site)
    }

    fn event_create(&self, device: DeviceId, flags: EventFlags) -> Result<EventHandle> {
        let mut state = self.called(CallKind::EventCreate, device)?;
        let device = state.usable("cuEventCreate", device)?;
        if flags.timing && flags.interprocess {
            let detail = "an event for other processes cannot take times: leave `timing` out";
            return refuse("cuEventCreate", DriverCode::INVALID_VALUE, detail);
        }
        let event = EventHandle(state.new_handle());
        state.events.insert(
            event,
            Event {
                device,
                timing: flags.timing,
                interprocess: flags.interprocess,
                opened: None,
                recorded: None,
                patience: 0,
            },
        );
        Ok(event)
    }

    fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.state().event_destroy(event)
    }

    fn event_record(&self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()> {
        self.called(CallKind::EventRecord, stream)?.event_record(event, stream, site)
    }

    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.called(CallKind::EventQuery, event)?.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.called(CallKind::EventSynchronize, event)?.event_synchronize(event)
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.state().event_elapsed_ms(start, end)
    }

    fn pool_create(&self, properties: &PoolProperties) -> Result<PoolHandle> {
        let place = match properties.location {
            PoolLocation::Device(device) => device,
            PoolLocation::HostNuma(_) => DeviceId::default(),
        };
        self.called(CallKind::PoolCreate, place)?.pool_create(properties)
    }

    fn pool_destroy(&self, pool: PoolHandle) -> Result<()> {
        self.state().pool_destroy(pool)
    }

    fn device_default_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        self.state().device_default_pool(device)
    }

    fn device_current_pool(&self, device: DeviceId) -> Result<PoolHandle> {
        self.state().device_current_pool(device)
    }

    fn device_set_current_pool(&self, device: DeviceId, pool: PoolHandle) -> Result<()> {
        self.state().device_set_current_pool(device, pool)
    }

    fn pool_access(&self, pool: PoolHandle, device: DeviceId) -> Result<PoolAccess> {
        self.state().pool_access(pool, device)
    }

    fn pointer_attributes(&self, ptr: DevicePtr) -> Result<PointerAttributes> {
        self.state().pointer_attributes(ptr)
    }

    fn pool_attribute(&self, pool: PoolHandle, attribute: PoolAttribute) -> Result<u64> {
        self.called(CallKind::PoolAttribute, pool)?.pool_attribute(pool, attribute)
    }

    fn pool_set_attribute(&self, pool: PoolHandle, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.called(CallKind::PoolAttribute, pool)?.pool_set_attribute(pool, attribute, value)
    }

    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()> {
        self.called(CallKind::PoolTrim, pool)?.pool_trim(pool, keep_bytes)
    }

    fn pool_set_access(&self, pool: PoolHandle, peer: DeviceId, accessible: bool) -> Result<()> {
        self.state().pool_set_access(pool, peer, accessible)
    }

    fn event_ipc_handle(&self, event: EventHandle) -> Result<OpaqueHandle> {
        self.state().event_ipc_handle(event)
    }

    fn event_open_ipc(&self, device: DeviceId, handle: &OpaqueHandle) -> Result<EventHandle> {
        self.state().event_open_ipc(device, handle)
    }

    fn pool_export(&self, pool: PoolHandle) -> Result<OwnedFd> {
        self.state().pool_export(pool)
    }

    fn pool_import(&self, device: DeviceId, descriptor: BorrowedFd<'_>) -> Result<PoolHandle> {
        self.state().pool_import(device, descriptor)
    }

    fn pool_export_pointer(&self, ptr: DevicePtr) -> Result<OpaqueHandle> {
        self.state().pool_export_pointer(ptr)
    }

    fn pool_import_pointer(&self, pool: PoolHandle, handle: &OpaqueHandle, site: Site) -> Result<DevicePtr> {
        self.state().pool_import_pointer(pool, handle, site)
    }

    fn pool_alloc(&self, pool: PoolHandle, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        self.called(CallKind::Allocate, stream)?.pool_alloc(pool, bytes.get(), stream, site)
    }

    fn alloc_current(&self, bytes: NonZeroUsize, stream: StreamHandle, site: Site) -> Result<DevicePtr> {
        self.called(CallKind::Allocate, stream)?.alloc_current(bytes.get(), stream, site)
    }

    fn free_async(&self, ptr: DevicePtr, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().free_async(ptr, stream, site)
    }

    fn alloc_sync(&self, device: DeviceId, bytes: NonZeroUsize, site: Site) -> Result<DevicePtr> {
        self.called(CallKind::Allocate, device)?.alloc_sync(device, bytes.get(), site)
    }

    fn free_sync(&self, ptr: DevicePtr, site: Site) -> Result<()> {
        self.state().free_sync(ptr, site)
    }

    fn host_alloc(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind, site: Site) -> Result<Arc<HostBlock>> {
        let mut state = self.called(CallKind::AllocatePinned, device)?;
        state.unsafe_under_capture("cuMemHostAlloc")?;
        let device = state.usable("cuMemHostAlloc", device)?;
        let block = HostBlock::in_process(bytes.get(), kind);
        state.host.add(&block, device, site);
        Ok(block)
    }

    /// Held to the rules of pinned memory: CUDA's copies of ordinary memory are done earlier, never later.
    fn host_alloc_pageable(
        &self,
        device: DeviceId,
        bytes: NonZeroUsize,
        kind: HostKind,
        site: Site,
    ) -> Result<Arc<HostBlock>> {
        let mut state = self.state();
        let device = state.usable("malloc", device)?;
        let block = HostBlock::pageable(bytes.get(), kind);
        let block = block.ok_or(DriverError::new("malloc", DriverCode::OUT_OF_MEMORY))?;
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
        self.state().submit(CallKind::of_copy(copy), stream, |state| state.copy(copy, stream, site))
    }

    fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().submit(CallKind::Fill, stream, |state| state.fill(ptr, byte, len as u64, stream, site))
    }

    fn write_word(&self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()> {
        self.state().submit(CallKind::WriteWord, stream, |state| state.write_word(word, value, stream, site))
    }

    #[expect(unsafe_code, reason = "the trait's promise; a simulated launch checks it instead of trusting it")]
    unsafe fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        self.launch_checked(launch, stream)
    }

    fn module_load(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        self.called(CallKind::ModuleLoad, device)?.module_load(device, ptx)
    }

    fn assemble(&self, device: DeviceId, ptx: &str) -> Result<Vec<u8>> {
        self.called(CallKind::Assemble, device)?.assemble(device, ptx)
    }

    fn module_load_code(&self, device: DeviceId, code: &[u8]) -> Result<ModuleHandle> {
        self.called(CallKind::CodeLoad, device)?.module_load_code(device, code)
    }

    fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        self.state().module_unload(module)
    }

    fn module_function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.called(CallKind::ModuleFunction, module)?.module_function(module, name)
    }

    fn module_global(&self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)> {
        self.state().module_global(module, name)
    }

    fn function_attribute(&self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32> {
        self.called(CallKind::FunctionAttribute, function)?.function_attribute(function, attribute)
    }

    fn function_set_max_dynamic_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        self.called(CallKind::FunctionAttribute, function)?.function_set_max_dynamic_shared(function, bytes)
    }

    fn function_params(&self, function: FunctionHandle) -> Option<Vec<ParamLayout>> {
        self.state().function_params(function)
    }

    fn occupancy(&self, function: FunctionHandle, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        self.called(CallKind::FunctionAttribute, function)?.occupancy(function, block_threads, shared_bytes)
    }

    fn findings(&self) -> Vec<Finding> {
        self.state().reports.all()
    }

    fn settle(&self) -> Result<()> {
        let mut state = self.state();
        // All of the machine's work; another process's trouble is its own.
        let (all, process) = (state.queues.all_lanes(), state.process);
        state.drain(&all);
        let mine = |lane: &u32| state.process_of(state.queues.lane(*lane).device) == process;
        let mine: Vec<u32> = all.into_iter().filter(mine).collect();
        state.synchronize("settle", &mine)
    }

    fn seed(&self) -> Option<u64> {
        Some(self.options.seed)
    }
}

impl SimDriver {
    /// The state, for a call that was not ordered to fail.
    fn called(&self, call: CallKind, place: impl Place) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.called(call, place)?;
        Ok(state)
    }

    fn existing(&self, call: &'static str, device: DeviceId) -> Result<()> {
        if device.0 < self.options.devices {
            return Ok(());
        }
        refuse(call, DriverCode::INVALID_DEVICE, format!("{device} of {} simulated devices", self.options.devices))
    }
}
