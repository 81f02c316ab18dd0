//! PTX and assembled code: loaded as modules, assembled by the driver's linker; a refusal carries the driver's log.

use super::*;

/// Where the driver's assembler writes what it refuses.
struct ErrorLog(Vec<u8>);

impl ErrorLog {
    fn new() -> Self {
        Self(vec![0; 16 << 10])
    }

    /// The options that name this log, and their values. The log must live until the driver has ended the call or the
    /// link.
    fn options(&mut self) -> ([c_uint; 2], [*mut c_void; 2]) {
        let options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_uint,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
        ];
        (options, [self.0.as_mut_ptr().cast::<c_void>(), (self.0.len() - 1) as *mut c_void])
    }

    fn explain(&self, error: DriverError) -> DriverError {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        match String::from_utf8_lossy(&self.0[..end]).trim() {
            "" => error,
            words => error.with_detail(words),
        }
    }
}

pub(super) fn c_name(call: &'static str, name: &str) -> Result<CString> {
    CString::new(name)
        .map_err(|_| DriverError::new(call, DriverCode::INVALID_VALUE).with_detail(format!("{name:?} has a zero byte")))
}

impl CudaDriver {
    pub(super) fn load_ptx(&self, device: DeviceId, ptx: &str) -> Result<ModuleHandle> {
        self.enter(device)?;
        let text = c_name("cuModuleLoadDataEx", ptx)
            .map_err(|_| DriverError::new("cuModuleLoadDataEx", DriverCode::INVALID_PTX).with_detail("a zero byte"))?;
        let mut log = ErrorLog::new();
        let (mut options, mut values) = log.options();
        let mut module = null_mut();
        let loaded = call!(
            self,
            cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        );
        Step::Code.over();
        loaded.map_err(|error| log.explain(error))?;
        Ok(ModuleHandle(pack(device, module)))
    }

    pub(super) fn assemble_ptx(&self, device: DeviceId, ptx: &str) -> Result<Vec<u8>> {
        self.enter(device)?;
        let text = c_name("cuLinkAddData", ptx)
            .map_err(|_| DriverError::new("cuLinkAddData", DriverCode::INVALID_PTX).with_detail("a zero byte"))?;
        let mut log = ErrorLog::new();
        let (mut options, mut values) = log.options();
        let mut link = null_mut();
        call!(self, cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut link))?;
        let bytes = text.as_bytes_with_nul();
        let input = sys::CUjitInputType::CU_JIT_INPUT_PTX as c_uint;
        let added = call!(
            self,
            cuLinkAddData_v2(
                link,
                input,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                c"kernels".as_ptr(),
                0,
                null_mut(),
                null_mut()
            )
        );
        let (mut code, mut len) = (null_mut(), 0);
        let linked = added.and_then(|()| call!(self, cuLinkComplete(link, &mut code, &mut len)));
        let assembled = linked.and_then(|()| match code.is_null() {
            true => Err(DriverError::new("cuLinkComplete", DriverCode::INVALID_IMAGE).with_detail("it gave no code")),
            // SAFETY: the driver says so; the code is the link's, and copied before that is destroyed.
            false => Ok(unsafe { std::slice::from_raw_parts(code.cast::<u8>(), len) }.to_vec()),
        });
        let destroyed = call!(self, cuLinkDestroy(link));
        Step::Code.over();
        let assembled = assembled.map_err(|error| log.explain(error))?;
        destroyed?;
        Ok(assembled)
    }

    pub(super) fn load_code(&self, device: DeviceId, code: &[u8]) -> Result<ModuleHandle> {
        self.enter(device)?;
        // The driver reads as far as the code's own header says.
        if !code.starts_with(b"\x7fELF") {
            return Err(DriverError::new("cuModuleLoadDataEx", DriverCode::INVALID_IMAGE).with_detail("it is no code"));
        }
        let mut module = null_mut();
        call!(self, cuModuleLoadDataEx(&mut module, code.as_ptr().cast(), 0, null_mut(), null_mut()))?;
        Step::Code.over();
        Ok(ModuleHandle(pack(device, module)))
    }
}
