//! Modules, kernels, launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use millpond_memory::driver::{
    Driver, DriverCode, FunctionAttribute, FunctionHandle, KernelLaunch, ModuleHandle, ParamLayout,
};

use crate::leaving::Registers;
use crate::order::{opaque, stream};
use crate::shim::{current, lock, site};
use crate::{Answer, Out, Refused, exports, give};

// Values from cuda.h.
const JIT_INPUT_PTX: c_uint = 1;
const JIT_ERROR_LOG_BUFFER: c_uint = 5;
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
const LAUNCH_PARAM_END: usize = 0;
const LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
const LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

fn module(handle: *mut c_void) -> ModuleHandle {
    ModuleHandle(handle.addr() as u64)
}

fn function(handle: *mut c_void) -> FunctionHandle {
    FunctionHandle(handle.addr() as u64)
}

/// `CUfunction_attribute`.
fn attribute(number: c_int) -> Answer<FunctionAttribute> {
    Ok(match number {
        0 => FunctionAttribute::MaxThreadsPerBlock,
        1 => FunctionAttribute::StaticSharedBytes,
        3 => FunctionAttribute::LocalBytes,
        4 => FunctionAttribute::Registers,
        MAX_DYNAMIC_SHARED_SIZE_BYTES => FunctionAttribute::MaxDynamicSharedBytes,
        _ => return Err(DriverCode::INVALID_VALUE.into()),
    })
}

/// A C string as text.
///
/// # Safety
/// `text` is null or points to a zero-terminated string that does not change meanwhile.
unsafe fn text<'a>(text: *const c_char, otherwise: DriverCode) -> Answer<&'a str> {
    if text.is_null() {
        return Err(DriverCode::INVALID_VALUE.into());
    }
    // SAFETY: not null; the rest is the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| otherwise.into())
}

/// Reads the parameters that `extra` points to: keys and values alternately, then the end.
///
/// # Safety
/// `extra` is such a list, and its buffer has the stated size.
unsafe fn packed_params<'a>(mut extra: *mut *mut c_void) -> Answer<&'a [u8]> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    loop {
        // SAFETY: the list has an end, which is not reached yet.
        let key = unsafe { extra.read() }.addr();
        if key == LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: a value follows each key except the end.
        let value = unsafe { extra.add(1).read() };
        match key {
            LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast_const().cast(),
            // SAFETY: this key's value points to a size.
            LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => size = Some(unsafe { value.cast::<usize>().read() }),
            _ => return Err(DriverCode::INVALID_VALUE.into()),
        }
        // SAFETY: the pair was not the end, so the list continues.
        extra = unsafe { extra.add(2) };
    }
    match (buffer.is_null(), size) {
        // SAFETY: the caller's buffer has `size` bytes.
        (false, Some(size)) => Ok(unsafe { std::slice::from_raw_parts(buffer, size) }),
        _ => Err(DriverCode::INVALID_VALUE.into()),
    }
}

/// Packs the parameters that `params` points to individually.
///
/// # Safety
/// `params` has a pointer for each parameter, to a value of its size.
unsafe fn gathered_params(params: *mut *mut c_void, layout: &[ParamLayout]) -> Vec<u8> {
    let end = layout.last().map_or(0, |last| last.offset + last.size);
    let mut packed = vec![0; end];
    for (index, param) in layout.iter().enumerate() {
        // SAFETY: the caller's contract; `layout` has the value's offset, inside `packed`.
        unsafe {
            let value = params.add(index).read().cast::<u8>();
            std::ptr::copy_nonoverlapping(value, packed.as_mut_ptr().add(param.offset), param.size);
        }
    }
    packed
}

/// The caller's buffer for an error log, if any.
struct Log {
    buffer: *mut c_char,
    bytes: usize,
}

impl Log {
    /// # Safety
    /// `options` and `values` have `count` entries.
    unsafe fn wanted(count: c_uint, options: *const c_uint, values: *const *mut c_void) -> Self {
        let mut log = Log { buffer: std::ptr::null_mut(), bytes: 0 };
        for index in 0..count as usize {
            // SAFETY: the caller's contract.
            let (option, value) = unsafe { (options.add(index).read(), values.add(index).read()) };
            match option {
                JIT_ERROR_LOG_BUFFER => log.buffer = value.cast(),
                JIT_ERROR_LOG_BUFFER_SIZE_BYTES => log.bytes = value.addr(),
                _ => {}
            }
        }
        log
    }

    fn write(&self, words: &str) {
        if self.buffer.is_null() || self.bytes == 0 {
            return;
        }
        let words = &words.as_bytes()[..words.len().min(self.bytes - 1)];
        // SAFETY: the caller's buffer has `bytes` bytes; the text and its terminating zero fit.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr(), self.buffer.cast(), words.len());
            self.buffer.add(words.len()).write(0);
        }
    }
}

/// A link in progress, from PTX to code: of a single text, since no test needs more.
struct Link {
    log: Log,
    code: Vec<u8>,
}

exports! {
    fn cuModuleLoadDataEx(
        shim, handle: Out<'_, *mut c_void>, image: *const c_void, count: c_uint, options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        let device = current()?;
        Registers::FirstCode.now();
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: an image that is PTX ends with a zero, as does code from here; the lists have `count` entries each.
        let (image, log) = unsafe { (text(image.cast(), DriverCode::INVALID_IMAGE)?, Log::wanted(count, options, values)) };
        let loaded = match image.starts_with("\x7fELF") {
            true => shim.driver.module_load_code(device, image.as_bytes()),
            false => shim.driver.module_load(device, image),
        };
        let loaded = loaded.map_err(|error| {
            log.write(error.detail.as_deref().unwrap_or(""));
            Refused::from(error)
        })?;
        give(handle, opaque(loaded.0))
    }

    fn cuLinkCreate_v2(
        _shim, count: c_uint, options: *mut c_uint, values: *mut *mut c_void, link: Out<'_, *mut c_void>,
    ) {
        current()?;
        Registers::FirstCode.now();
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: the lists have `count` entries each, and the log outlives the link.
        let log = unsafe { Log::wanted(count, options, values) };
        give(link, Box::into_raw(Box::new(Link { log, code: vec![] })).cast())
    }

    fn cuLinkAddData_v2(
        shim, link: *mut c_void, kind: c_uint, data: *mut c_void, size: usize, _name: *const c_char, _count: c_uint,
        _options: *mut c_uint, _values: *mut *mut c_void,
    ) {
        let device = current()?;
        if kind != JIT_INPUT_PTX || data.is_null() || size == 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: a link of `cuLinkCreate`, and PTX of `size` bytes, including its terminating zero.
        let (link, ptx) = unsafe { (&mut *link.cast::<Link>(), std::slice::from_raw_parts(data.cast::<u8>(), size)) };
        let ptx = CStr::from_bytes_with_nul(ptx).ok().and_then(|text| text.to_str().ok());
        let code = shim.driver.assemble(device, ptx.ok_or(DriverCode::INVALID_PTX)?).map_err(|error| {
            link.log.write(error.detail.as_deref().unwrap_or(""));
            Refused::from(error)
        })?;
        link.code = [&code[..], b"\0"].concat();
        Ok(())
    }

    fn cuLinkComplete(_shim, link: *mut c_void, code: Out<'_, *mut c_void>, size: Out<'_, usize>) {
        current()?;
        // SAFETY: a link of `cuLinkCreate`, which its caller does not destroy meanwhile.
        let link = unsafe { &mut *link.cast::<Link>() };
        give(code, link.code.as_mut_ptr().cast())?;
        give(size, link.code.len())
    }

    fn cuLinkDestroy(_shim, link: *mut c_void) {
        current()?;
        // SAFETY: a link of `cuLinkCreate`, which is not used again.
        drop(unsafe { Box::from_raw(link.cast::<Link>()) });
        Ok(())
    }

    fn cuModuleUnload(shim, handle: *mut c_void) {
        current()?;
        Ok(shim.driver.module_unload(module(handle))?)
    }

    fn cuModuleGetFunction(shim, handle: Out<'_, *mut c_void>, from: *mut c_void, name: *const c_char) {
        current()?;
        // SAFETY: a name is a C string.
        let name = unsafe { text(name, DriverCode::NOT_FOUND)? };
        let found = shim.driver.module_function(module(from), name)?;
        lock(&shim.functions).insert(found.0, name.to_string());
        give(handle, opaque(found.0))
    }

    fn cuModuleGetGlobal_v2(
        shim, ptr: Out<'_, u64>, bytes: Out<'_, usize>, from: *mut c_void, name: *const c_char,
    ) {
        current()?;
        // SAFETY: a name is a C string.
        let name = unsafe { text(name, DriverCode::NOT_FOUND)? };
        let (found, len) = shim.driver.module_global(module(from), name)?;
        give(ptr, found.0)?;
        give(bytes, len)
    }

    fn cuFuncGetAttribute(shim, value: Out<'_, c_int>, number: c_int, handle: *mut c_void) {
        current()?;
        give(value, shim.driver.function_attribute(function(handle), attribute(number)?)?)
    }

    fn cuFuncSetAttribute(shim, handle: *mut c_void, number: c_int, value: c_int) {
        current()?;
        let bytes = u32::try_from(value).map_err(|_| DriverCode::INVALID_VALUE)?;
        match number {
            MAX_DYNAMIC_SHARED_SIZE_BYTES => Ok(shim.driver.function_set_max_dynamic_shared(function(handle), bytes)?),
            _ => Err(DriverCode::INVALID_VALUE.into()),
        }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        shim, blocks: Out<'_, c_int>, handle: *mut c_void, threads: c_int, shared_bytes: usize,
    ) {
        current()?;
        let threads = u32::try_from(threads).map_err(|_| DriverCode::INVALID_VALUE)?;
        let shared_bytes = u32::try_from(shared_bytes).map_err(|_| DriverCode::INVALID_VALUE)?;
        give(blocks, shim.driver.occupancy(function(handle), threads, shared_bytes)? as c_int)
    }

    fn cuLaunchKernel(
        shim, handle: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, on: *mut c_void, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        current()?;
        let function = function(handle);
        let gathered;
        let params = match (params.is_null(), extra.is_null()) {
            (false, false) => return Err(DriverCode::INVALID_VALUE.into()),
            (true, true) => &[][..],
            // SAFETY: the caller follows cuda.h.
            (true, false) => unsafe { packed_params(extra)? },
            (false, true) => {
                let layout = shim.driver.function_params(function).ok_or(DriverCode::INVALID_HANDLE)?;
                // SAFETY: the caller follows cuda.h, and the layout is the kernel's.
                gathered = unsafe { gathered_params(params, &layout) };
                &gathered
            }
        };
        let name = lock(&shim.functions).get(&function.0).cloned().unwrap_or_default();
        let launch = KernelLaunch {
            function,
            name: &name,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            params,
            accesses: &[],
            figures: None,
            site: site(),
        };
        shim.driver.launch_checked(&launch, stream(on))?;
        shim.submitted();
        Ok(())
    }
}
