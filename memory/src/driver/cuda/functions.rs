//! The functions of libcuda that we call, and where they are in the library.
//!
//!   Functions::find() ─► every name below, asked for once ─► a pointer each, or the first name that is missing
//!
//! Level    all of them are in driver 535 (CUDA 12.2); the signatures are those of its cuda.h, enums being plain
//!          numbers.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

/// Declares the functions of libcuda that we call, each found by its name in the library.
macro_rules! functions {
    ($($name:ident($($arg:ty),* $(,)?);)*) => {
        #[expect(non_snake_case, reason = "the library's own names")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_uint,)*
        }

        /// Their names.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Functions {
            /// Asks for all of them; the name of the first that is not there is the error.
            pub(super) fn find() -> Result<Self, &'static str> {
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
    cuCtxGetCurrent(*mut sys::CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuStreamCreateWithPriority(*mut sys::CUstream, c_uint, c_int);
    cuStreamDestroy_v2(sys::CUstream);
    cuStreamQuery(sys::CUstream);
    cuStreamSynchronize(sys::CUstream);
    cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    cuStreamGetCtx(sys::CUstream, *mut sys::CUcontext);
    cuStreamGetId(sys::CUstream, *mut u64);
    cuStreamBeginCapture_v2(sys::CUstream, c_uint);
    cuStreamEndCapture(sys::CUstream, *mut sys::CUgraph);
    cuStreamGetCaptureInfo_v2(
        sys::CUstream, *mut c_uint, *mut u64, *mut sys::CUgraph, *mut *const sys::CUgraphNode, *mut usize
    );
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuGraphDestroy(sys::CUgraph);
    cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, u64);
    cuGraphExecDestroy(sys::CUgraphExec);
    cuGraphLaunch(sys::CUgraphExec, sys::CUstream);
    cuDeviceGetGraphMemAttribute(c_int, c_uint, *mut c_void);
    cuDeviceSetGraphMemAttribute(c_int, c_uint, *mut c_void);
    cuDeviceGraphMemTrim(c_int);
    cuStreamWriteValue32_v2(sys::CUstream, sys::CUdeviceptr, u32, c_uint);
    cuEventCreate(*mut sys::CUevent, c_uint);
    cuEventDestroy_v2(sys::CUevent);
    cuEventRecord(sys::CUevent, sys::CUstream);
    cuEventQuery(sys::CUevent);
    cuEventSynchronize(sys::CUevent);
    cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
    cuIpcGetEventHandle(*mut sys::CUipcEventHandle, sys::CUevent);
    cuIpcOpenEventHandle(*mut sys::CUevent, sys::CUipcEventHandle);
    cuDeviceGetDefaultMemPool(*mut sys::CUmemoryPool, c_int);
    cuDeviceGetMemPool(*mut sys::CUmemoryPool, c_int);
    cuDeviceSetMemPool(c_int, sys::CUmemoryPool);
    cuMemPoolCreate(*mut sys::CUmemoryPool, *const sys::CUmemPoolProps);
    cuMemPoolDestroy(sys::CUmemoryPool);
    cuMemPoolGetAttribute(sys::CUmemoryPool, c_uint, *mut c_void);
    cuMemPoolSetAttribute(sys::CUmemoryPool, c_uint, *mut c_void);
    cuMemPoolTrimTo(sys::CUmemoryPool, usize);
    cuMemPoolSetAccess(sys::CUmemoryPool, *const sys::CUmemAccessDesc, usize);
    cuMemPoolGetAccess(*mut c_uint, sys::CUmemoryPool, *mut sys::CUmemLocation);
    cuMemPoolExportToShareableHandle(*mut c_void, sys::CUmemoryPool, c_uint, u64);
    cuMemPoolImportFromShareableHandle(*mut sys::CUmemoryPool, *mut c_void, c_uint, u64);
    cuMemPoolExportPointer(*mut sys::CUmemPoolPtrExportData, sys::CUdeviceptr);
    cuMemPoolImportPointer(*mut sys::CUdeviceptr, sys::CUmemoryPool, *mut sys::CUmemPoolPtrExportData);
    cuPointerGetAttribute(*mut c_void, c_uint, sys::CUdeviceptr);
    cuMemAllocAsync(*mut sys::CUdeviceptr, usize, sys::CUstream);
    cuMemAllocFromPoolAsync(*mut sys::CUdeviceptr, usize, sys::CUmemoryPool, sys::CUstream);
    cuMemFreeAsync(sys::CUdeviceptr, sys::CUstream);
    cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
    cuMemFree_v2(sys::CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut sys::CUdeviceptr, *mut c_void, c_uint);
    cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemcpyPeerAsync(
        sys::CUdeviceptr, sys::CUcontext, sys::CUdeviceptr, sys::CUcontext, usize, sys::CUstream
    );
    cuMemsetD8Async(sys::CUdeviceptr, u8, usize, sys::CUstream);
    cuModuleLoadDataEx(*mut sys::CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuLinkCreate_v2(c_uint, *mut c_uint, *mut *mut c_void, *mut sys::CUlinkState);
    cuLinkAddData_v2(
        sys::CUlinkState, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void
    );
    cuLinkComplete(sys::CUlinkState, *mut *mut c_void, *mut usize);
    cuLinkDestroy(sys::CUlinkState);
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
