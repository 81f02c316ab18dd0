//! Loads PTX, and submits launches.
//!
//!   launch { kernel, params, accesses } ─► CUDA's refusals ─► queue ─► interpreter ─► footprints ─► declared? ordered?
//!
//! Declared     every byte range that a kernel may touch, by reading, writing or atomics. Writing includes reading
//!              back.
//! Footprints   what the interpreter saw, per 32-byte sector: so partitions may write disjoint parts of one buffer.
//! Variables    of a module are buffers that need no declaration.

use super::clock::Moment;
use super::heap::Origin;
use super::pool::BLOCK_BYTES;
use super::queue::Work;
use super::report::{Submission, What};
use super::shape::{MAX_THREADS_PER_BLOCK, REGISTERS_PER_MULTIPROCESSOR, Shape, registers};
use super::state::State;
use crate::driver::{
    DeclaredAccess, DeviceId, DevicePtr, DriverCode, DriverError, FindingKind, FunctionAttribute, FunctionHandle,
    KernelLaunch, LaunchFigures, ModuleHandle, ParamLayout, Result, StreamHandle,
};
use millpond_ptx::interpret::{self, Image, KernelInfo, Running};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

pub(super) const MAX_GRID_X: u32 = i32::MAX as u32;
const MAX_GRID_YZ: u32 = 65535;

/// The newest PTX that a driver of this version reads.
const NEWEST_PTX: (u32, u32) = (8, 2);

/// A module on a device.
#[derive(Debug)]
pub(super) struct Loaded {
    device: u32,
    pub(super) image: Image,
    /// Number and address of each variable's buffer, in the image's order.
    buffers: Vec<u64>,
    addresses: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Function {
    module: ModuleHandle,
    loaded: Arc<Loaded>,
    kernel: usize,
    max_dynamic_shared: u32,
}

impl Function {
    fn info(&self) -> &KernelInfo {
        &self.loaded.image.kernels()[self.kernel]
    }

    fn max_threads(&self) -> u32 {
        let declared = self.info().max_threads.unwrap_or(MAX_THREADS_PER_BLOCK).min(MAX_THREADS_PER_BLOCK);
        declared.min(REGISTERS_PER_MULTIPROCESSOR / Shape::block_registers(self.info(), 32) * 32)
    }
}

#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: BTreeMap<ModuleHandle, Arc<Loaded>>,
    functions: BTreeMap<FunctionHandle, Function>,
}

impl Modules {
    pub(super) fn device_of(&self, module: ModuleHandle) -> Option<u32> {
        self.loaded.get(&module).map(|loaded| loaded.device)
    }

    pub(super) fn device_of_function(&self, function: FunctionHandle) -> Option<u32> {
        self.functions.get(&function).map(|function| function.loaded.device)
    }
}

/// A launch that waits for its turn.
#[derive(Debug)]
pub(super) struct QueuedLaunch {
    pub(super) loaded: Arc<Loaded>,
    kernel: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: Vec<u8>,
    pub(super) accesses: Vec<DeclaredAccess>,
    /// Chooses which block and warp moves next.
    pub(super) seed: Option<u64>,
    /// Where its counts go.
    pub(super) figures: Option<Arc<OnceLock<LaunchFigures>>>,
}

impl QueuedLaunch {
    /// The launch as the interpreter takes it.
    pub(super) fn running(&self, shape: Shape, multiprocessors: u32) -> Running<'_> {
        let kernel = &self.loaded.image.kernels()[self.kernel];
        let held = shape.resident_blocks(kernel, self.block.iter().product(), self.shared_bytes);
        let launch = interpret::Launch {
            kernel: &kernel.name,
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.shared_bytes,
            params: &self.params,
            globals: &self.loaded.addresses,
        };
        // CUDA refuses a launch where not even one block fits.
        Running { image: &self.loaded.image, launch, resident_blocks: held.max(1) * multiprocessors.max(1) }
    }
}

/// How code of the simulated device begins: as that of NVIDIA's does.
const CODE: &[u8] = b"\x7fELF";

/// What an assembler makes of PTX for devices of a shape.
fn assembled(call: &'static str, ptx: &str, shape: Shape) -> Result<Image> {
    let refused = |code, detail: String| Err(DriverError::new(call, code).with_detail(detail));
    let module = match millpond_ptx::parse(ptx) {
        Ok(module) => module,
        Err(error) => return refused(DriverCode::INVALID_PTX, error.to_string()),
    };
    if module.version > NEWEST_PTX {
        let (major, minor) = module.version;
        let detail =
            format!("PTX {major}.{minor} is newer than {}.{}, which this driver reads", NEWEST_PTX.0, NEWEST_PTX.1);
        return refused(DriverCode::UNSUPPORTED_PTX_VERSION, detail);
    }
    for target in &module.target {
        let digits: String =
            target.strip_prefix("sm_").unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        if digits.parse().is_ok_and(|target: u32| target > shape.target()) {
            let detail = format!("target {target} is newer than this device, {}", shape.name());
            return refused(DriverCode::NO_BINARY_FOR_GPU, detail);
        }
    }
    // What an assembler refuses although it could be run: a wrong type, a name out of scope.
    if let Err(error) = millpond_ptx::check(&module) {
        return refused(DriverCode::INVALID_PTX, error.to_string());
    }
    Image::load(&module).or_else(|error| refused(DriverCode::INVALID_PTX, error.to_string()))
}

// 1. Modules and functions.
impl State {
    pub(super) fn module_load(&mut self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        const CALL: &str = "cuModuleLoadData";
        let device = self.usable(CALL, device)?;
        let mutated = self.mutations.of_text(ptx);
        let image = assembled(CALL, mutated.as_deref().unwrap_or(ptx), self.options.shape)?;
        self.counters.texts_assembled += 1;
        self.place_module(CALL, device, image)
    }

    /// The code of the simulated device is its PTX, behind four bytes that say so.
    pub(super) fn assemble(&mut self, device: DeviceId, ptx: &str) -> Result<Vec<u8>> {
        const CALL: &str = "cuLinkComplete";
        self.usable(CALL, device)?;
        assembled(CALL, ptx, self.options.shape)?;
        self.counters.texts_assembled += 1;
        Ok([CODE, ptx.as_bytes()].concat())
    }

    pub(super) fn module_load_code(&mut self, device: DeviceId, code: &[u8]) -> Result<ModuleHandle> {
        const CALL: &str = "cuModuleLoadData";
        let device = self.usable(CALL, device)?;
        let ptx = code.strip_prefix(CODE).and_then(|text| std::str::from_utf8(text).ok());
        let Some(ptx) = ptx else {
            return Err(DriverError::new(CALL, DriverCode::INVALID_IMAGE).with_detail("it is no code of this device"));
        };
        let image = assembled(CALL, ptx, self.options.shape)?;
        self.place_module(CALL, device, image)
    }

    fn place_module(&mut self, call: &'static str, device: u32, image: Image) -> Result<ModuleHandle> {
        let (buffers, addresses) = self.place_variables(call, device, &image)?;
        let handle = ModuleHandle(self.new_handle());
        self.modules.loaded.insert(handle, Arc::new(Loaded { device, image, buffers, addresses }));
        Ok(handle)
    }

    /// Gives each variable of a module a buffer with its first bytes.
    fn place_variables(&mut self, call: &'static str, device: u32, image: &Image) -> Result<(Vec<u64>, Vec<u64>)> {
        let mut buffers = Vec::new();
        let mut addresses = Vec::new();
        for global in image.globals() {
            let Some(address) = self.place_here(device, global.size.max(1).next_multiple_of(BLOCK_BYTES)) else {
                buffers.drain(..).for_each(|id| self.drop_variable(device, id));
                let detail = format!("variable `{}` of {} bytes", global.name, global.size);
                return Err(DriverError::new(call, DriverCode::OUT_OF_MEMORY).with_detail(detail));
            };
            let id = self.memory.announce(address, global.size.max(1), device, Origin::Module, None, None);
            buffers.push(id);
            addresses.push(address);
            self.memory.begin(id).map_err(|error| DriverError::new(call, DriverCode::UNKNOWN).with_detail(error))?;
        }
        for (index, &address) in addresses.iter().enumerate() {
            let bytes = image.initial_bytes(index, &addresses);
            if let Err(error) = self.memory.heap.write(address, &bytes) {
                return Err(DriverError::new(call, DriverCode::UNKNOWN).with_detail(error.to_string()));
            }
        }
        Ok((buffers, addresses))
    }

    fn drop_variable(&mut self, device: u32, id: u64) {
        self.memory.retire(id, None);
        if let Some(buffer) = self.memory.end(id) {
            self.devices[device as usize].used_bytes -= buffer.label.len.next_multiple_of(BLOCK_BYTES);
        }
    }

    pub(super) fn module_unload(&mut self, module: ModuleHandle) -> Result<()> {
        const CALL: &str = "cuModuleUnload";
        let Some(loaded) = self.modules.loaded.get(&module).cloned() else {
            return Err(self.stale(CALL, "module", module.0));
        };
        self.alive(CALL, loaded.device)?;
        let lanes = self.queues.all_lanes();
        let uses = |work: &Work| matches!(work, Work::Launch(launch) if Arc::ptr_eq(&launch.loaded, &loaded));
        let running: Vec<_> = lanes
            .iter()
            .flat_map(|&lane| self.queues.pending(lane).filter(|queued| uses(&queued.work)))
            .map(|queued| (queued.moment.clone(), queued.by.clone()))
            .collect();
        for (moment, by) in running {
            let message = format!("module {} is unloaded while {by} may still run", module.0);
            self.reports.add(FindingKind::Handle, module.0, Some(&by), None, message);
            self.run_to(&moment);
        }
        self.modules.loaded.remove(&module);
        self.modules.functions.retain(|_, function| function.module != module);
        for &id in &loaded.buffers {
            self.drop_variable(loaded.device, id);
        }
        Ok(())
    }

    pub(super) fn module_function(&mut self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        const CALL: &str = "cuModuleGetFunction";
        let Some(loaded) = self.modules.loaded.get(&module).cloned() else {
            return Err(self.stale(CALL, "module", module.0));
        };
        self.alive(CALL, loaded.device)?;
        let Some(kernel) = loaded.image.kernels().iter().position(|kernel| kernel.name == name) else {
            return Err(DriverError::new(CALL, DriverCode::NOT_FOUND).with_detail(format!("no kernel `{name}`")));
        };
        let known =
            |(_, function): &(&FunctionHandle, &Function)| function.module == module && function.kernel == kernel;
        if let Some((&handle, _)) = self.modules.functions.iter().find(known) {
            return Ok(handle);
        }
        let handle = FunctionHandle(self.new_handle());
        let shared = self.options.shape.shared_bytes_per_block;
        let max_dynamic_shared = shared.saturating_sub(loaded.image.kernels()[kernel].static_shared_bytes);
        self.modules.functions.insert(handle, Function { module, loaded, kernel, max_dynamic_shared });
        Ok(handle)
    }

    pub(super) fn module_global(&mut self, module: ModuleHandle, name: &str) -> Result<(DevicePtr, usize)> {
        const CALL: &str = "cuModuleGetGlobal";
        let Some(loaded) = self.modules.loaded.get(&module).cloned() else {
            return Err(self.stale(CALL, "module", module.0));
        };
        self.alive(CALL, loaded.device)?;
        match loaded.image.globals().iter().position(|global| global.name == name) {
            Some(index) => Ok((DevicePtr(loaded.addresses[index]), loaded.image.globals()[index].size as usize)),
            None => Err(DriverError::new(CALL, DriverCode::NOT_FOUND).with_detail(format!("no variable `{name}`"))),
        }
    }

    fn function(&mut self, call: &'static str, function: FunctionHandle) -> Result<&mut Function> {
        let Some(device) = self.modules.functions.get(&function).map(|function| function.loaded.device) else {
            return Err(self.stale(call, "function", function.0));
        };
        self.alive(call, device)?;
        Ok(self.modules.functions.get_mut(&function).expect("looked up above"))
    }

    pub(super) fn function_attribute(&mut self, function: FunctionHandle, attribute: FunctionAttribute) -> Result<i32> {
        let function = self.function("cuFuncGetAttribute", function)?;
        let value = match attribute {
            FunctionAttribute::MaxThreadsPerBlock => function.max_threads(),
            FunctionAttribute::StaticSharedBytes => function.info().static_shared_bytes,
            FunctionAttribute::LocalBytes => function.info().local_bytes,
            FunctionAttribute::Registers => registers(function.info()),
            FunctionAttribute::MaxDynamicSharedBytes => function.max_dynamic_shared,
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    pub(super) fn function_set_max_dynamic_shared(&mut self, function: FunctionHandle, bytes: u32) -> Result<()> {
        const CALL: &str = "cuFuncSetAttribute";
        let most = self.options.shape.shared_bytes_per_block_optin;
        let function = self.function(CALL, function)?;
        let fixed = function.info().static_shared_bytes;
        if bytes > most.saturating_sub(fixed) {
            let detail = format!("{bytes} bytes of dynamic and {fixed} of static shared memory; {most} at most");
            return Err(DriverError::new(CALL, DriverCode::INVALID_VALUE).with_detail(detail));
        }
        function.max_dynamic_shared = bytes;
        Ok(())
    }

    pub(super) fn function_params(&self, function: FunctionHandle) -> Option<Vec<ParamLayout>> {
        let function = self.modules.functions.get(&function)?;
        let layout =
            |param: &interpret::ParamInfo| ParamLayout { offset: param.offset as usize, size: param.size as usize };
        Some(function.info().params.iter().map(layout).collect())
    }

    pub(super) fn occupancy(&mut self, function: FunctionHandle, threads: u32, shared_bytes: u32) -> Result<u32> {
        const CALL: &str = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        let shape = self.options.shape;
        let function = self.function(CALL, function)?;
        if threads == 0 {
            return Err(DriverError::new(CALL, DriverCode::INVALID_VALUE).with_detail("thread blocks of 0 threads"));
        }
        let fits = threads <= function.max_threads();
        Ok(if fits { shape.resident_blocks(function.info(), threads, shared_bytes) } else { 0 })
    }
}

// 2. Launching.
impl State {
    pub(super) fn launch(&mut self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuLaunchKernel";
        let lane = self.lane(CALL, stream)?;
        let device = self.queues.lane(lane).device;
        let function = self.function(CALL, launch.function)?.clone();
        if let Some((code, detail)) = refusal(launch, &function, device) {
            return Err(DriverError::new(CALL, code).with_detail(format!("{}: {detail}", launch.name)));
        }
        if let Some(done) = self.captured(CALL, lane, || launch.into()) {
            return done;
        }
        self.counters.launches += 1;
        *self.launched.entry(function.info().name.clone()).or_default() += 1;
        let what = What::Launch(function.info().name.as_str().into());
        let (moment, by) = self.prepare(lane, what, Some(launch.site));
        if self.launches.is_skipped() {
            self.push(moment, by, Work::Skipped);
            return Ok(());
        }
        for access in launch.accesses.iter().filter(|access| access.len > 0) {
            self.check_declaration(access, &moment, &by);
        }
        let seed =
            self.options.shuffle_blocks.then(|| self.options.seed ^ by.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let queued = QueuedLaunch {
            loaded: function.loaded.clone(),
            kernel: function.kernel,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            params: launch.params.to_vec(),
            accesses: launch.accesses.to_vec(),
            seed,
            figures: launch.figures.cloned(),
        };
        let queued = Box::new(queued);
        let work = if self.faults.launch_hangs() { Work::Hang } else { Work::Launch(queued) };
        self.push(moment, by, work);
        Ok(())
    }

    /// What is wrong with a declared range already when the launch is submitted.
    fn check_declaration(&mut self, access: &DeclaredAccess, moment: &Moment, by: &Arc<Submission>) {
        let Some(buffer) = self.memory.in_program(access.ptr) else {
            self.missing(by, access.ptr.0, access.len as u64);
            return;
        };
        let (label, allocated) = (buffer.label.clone(), buffer.allocated.clone());
        let offset = access.ptr.0 - label.base;
        if access.len as u64 > label.len - offset {
            let message = format!("{by} declares bytes {offset}..{} of {label}", offset + access.len as u64);
            self.reports.add(FindingKind::OutOfBounds, label.id, Some(by), None, message);
        }
        if let Some(allocated) = allocated {
            self.check_begun(&label, &allocated, moment, by);
        }
        self.memory.name(label.id, by);
    }
}

/// What CUDA refuses at once.
fn refusal(launch: &KernelLaunch<'_>, function: &Function, device: u32) -> Option<(DriverCode, String)> {
    let info = function.info();
    let threads = launch.block.iter().map(|&n| u64::from(n)).product::<u64>();
    let invalid = |detail: String| Some((DriverCode::INVALID_VALUE, detail));
    if function.loaded.device != device {
        let detail = format!("loaded on device {}, launched on a stream of device {device}", function.loaded.device);
        return Some((DriverCode::INVALID_HANDLE, detail));
    }
    if threads == 0 || launch.block[2] > 64 || threads > u64::from(MAX_THREADS_PER_BLOCK) {
        return invalid(format!(
            "a thread block of {:?}: 1 to {MAX_THREADS_PER_BLOCK} threads, z at most 64",
            launch.block
        ));
    }
    if launch.grid.contains(&0) || launch.grid[0] > MAX_GRID_X || launch.grid[1..].iter().any(|&n| n > MAX_GRID_YZ) {
        return invalid(format!(
            "a grid of {:?}: each at least 1, x at most 2^31-1, y and z at most 65535",
            launch.grid
        ));
    }
    let registers = Shape::block_registers(info, threads as u32);
    if registers > REGISTERS_PER_MULTIPROCESSOR {
        let detail = format!(
            "a thread block of {:?} takes {registers} registers; a multiprocessor has {REGISTERS_PER_MULTIPROCESSOR}",
            launch.block
        );
        return Some((DriverCode::LAUNCH_OUT_OF_RESOURCES, detail));
    }
    if threads > u64::from(function.max_threads())
        || info.required_threads.is_some_and(|required| required != launch.block)
    {
        let detail =
            format!("a thread block of {:?}, where the kernel allows {} threads", launch.block, function.max_threads());
        return Some((DriverCode::LAUNCH_OUT_OF_RESOURCES, detail));
    }
    if launch.shared_bytes > function.max_dynamic_shared {
        let detail =
            format!("{} bytes of dynamic shared memory of {}", launch.shared_bytes, function.max_dynamic_shared);
        return invalid(detail);
    }
    if launch.params.len() != info.param_bytes as usize {
        return invalid(format!(
            "{} bytes of parameters, where the kernel takes {}",
            launch.params.len(),
            info.param_bytes
        ));
    }
    None
}
