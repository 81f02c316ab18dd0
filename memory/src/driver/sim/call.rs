//! The calls of a driver that can be ordered to fail, by kind.
//!
//! ```text
//!   nth = 3, Once             ok  ok  FAIL  ok  ok
//!   nth = 3, UntilFree        ok  ok  FAIL  FAIL  (free)  ok
//!   nth = 3, Forever          ok  ok  FAIL  FAIL  (free)  FAIL
//!   nth = 3, late             ok  ok  ok    ok    ok … until the host waits, or polls often enough: FAIL, device lost
//! ```
//!
//! Code      one that CUDA's manual names for the call. A sticky one loses the device; any other leaves it as it was,
//!           the call undone. `NOT_READY` is an answer and no error.
//! Late      a launch or a copy that is accepted and fails on the device: the error appears only when the device
//!           reaches the operation.
//! Counted   calls on a device that is open and not lost. Calls that CUDA refuses anyway count as well.

use crate::driver::{CopyOp, DriverCode};

/// For how long an injected failure lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureLasts {
    /// The next try succeeds.
    Once,
    /// Every try fails until something is freed: device memory, or pinned memory where that is what fails.
    UntilFree,
    /// Every try fails from then on.
    Forever,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $kind:ident = $name:literal $code:ident;)*) => {
        /// What a driver is asked for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum CallKind {
            $($(#[$doc])* $kind,)*
        }

        impl CallKind {
            pub const ALL: &'static [CallKind] = &[$(CallKind::$kind),*];

            /// CUDA's name of the call; of the first where several are counted together.
            pub fn name(self) -> &'static str {
                match self {
                    $(CallKind::$kind => $name,)*
                }
            }

            /// How CUDA refuses such a call and leaves the device usable.
            pub fn refusal(self) -> DriverCode {
                match self {
                    $(CallKind::$kind => DriverCode::$code,)*
                }
            }
        }
    };
}

calls! {
    /// Device memory, in stream order or not.
    Allocate = "cuMemAllocFromPoolAsync" OUT_OF_MEMORY;
    AllocatePinned = "cuMemHostAlloc" OUT_OF_MEMORY;
    MemoryInfo = "cuMemGetInfo" INVALID_VALUE;
    PoolCreate = "cuMemPoolCreate" OUT_OF_MEMORY;
    /// Read or set.
    PoolAttribute = "cuMemPoolGetAttribute" INVALID_VALUE;
    PoolTrim = "cuMemPoolTrimTo" INVALID_VALUE;
    StreamCreate = "cuStreamCreateWithPriority" OUT_OF_MEMORY;
    StreamWait = "cuStreamWaitEvent" INVALID_HANDLE;
    StreamQuery = "cuStreamQuery" INVALID_HANDLE;
    StreamSynchronize = "cuStreamSynchronize" INVALID_HANDLE;
    EventCreate = "cuEventCreate" OUT_OF_MEMORY;
    EventRecord = "cuEventRecord" INVALID_HANDLE;
    EventQuery = "cuEventQuery" INVALID_HANDLE;
    EventSynchronize = "cuEventSynchronize" INVALID_HANDLE;
    DeviceSynchronize = "cuCtxSynchronize" INVALID_CONTEXT;
    Upload = "cuMemcpyHtoDAsync" INVALID_VALUE;
    Download = "cuMemcpyDtoHAsync" INVALID_VALUE;
    /// On a device, or between two.
    Copy = "cuMemcpyDtoDAsync" INVALID_VALUE;
    Fill = "cuMemsetD8Async" INVALID_VALUE;
    WriteWord = "cuStreamWriteValue32" INVALID_VALUE;
    Launch = "cuLaunchKernel" LAUNCH_OUT_OF_RESOURCES;
    /// PTX is assembled and loaded.
    ModuleLoad = "cuModuleLoadData" OUT_OF_MEMORY;
    Assemble = "cuLinkComplete" OUT_OF_MEMORY;
    /// Code that was assembled earlier is loaded.
    CodeLoad = "cuModuleLoadData" OUT_OF_MEMORY;
    ModuleFunction = "cuModuleGetFunction" NOT_FOUND;
    /// Read, set, or what follows from them.
    FunctionAttribute = "cuFuncGetAttribute" INVALID_VALUE;
}

impl CallKind {
    /// Work of the device, which can fail after it was accepted.
    pub fn is_work(self) -> bool {
        use CallKind::{Copy, Download, Fill, Launch, Upload, WriteWord};
        matches!(self, Upload | Download | Copy | Fill | WriteWord | Launch)
    }

    /// A call that may tell errors of earlier work, too.
    pub(super) fn submits_or_waits(self) -> bool {
        use CallKind::{
            DeviceSynchronize, EventQuery, EventRecord, EventSynchronize, StreamQuery, StreamSynchronize, StreamWait,
        };
        let asks = matches!(self, StreamQuery | EventQuery | StreamSynchronize | EventSynchronize | DeviceSynchronize);
        self.is_work() || asks || matches!(self, EventRecord | StreamWait)
    }

    pub(super) fn of_copy(copy: &CopyOp) -> Self {
        match copy {
            CopyOp::HostToDevice { .. } => CallKind::Upload,
            CopyOp::DeviceToHost { .. } => CallKind::Download,
            CopyOp::DeviceToDevice { .. } | CopyOp::Peer { .. } => CallKind::Copy,
        }
    }
}

/// A call that fails although nothing is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailCall {
    pub call: CallKind,
    /// Which of its kind, counted from 1 over all devices since the order was given.
    pub nth: u64,
    pub lasts: FailureLasts,
    pub code: DriverCode,
    /// The call is accepted; its work fails on the device, which is lost.
    pub late: bool,
}

impl FailCall {
    /// Refused as CUDA refuses such a call.
    pub fn new(call: CallKind, nth: u64, lasts: FailureLasts) -> Self {
        FailCall { call, nth, lasts, code: call.refusal(), late: false }
    }

    /// The n-th ends in this code; the next try succeeds, unless the device is lost.
    pub fn with_code(call: CallKind, nth: u64, code: DriverCode) -> Self {
        FailCall { code, ..FailCall::new(call, nth, FailureLasts::Once) }
    }

    /// The n-th is accepted, and its work loses the device.
    pub fn late(call: CallKind, nth: u64, code: DriverCode) -> Self {
        FailCall { late: true, ..FailCall::with_code(call, nth, code) }
    }

    /// What an order may be.
    pub(super) fn check(&self) {
        assert_ne!(self.code, DriverCode::SUCCESS, "success is no failure");
        assert_ne!(self.code, DriverCode::NOT_READY, "not ready is an answer, no failure");
        assert!(
            !self.late || self.call.is_work(),
            "{:?} does its work before it returns: it cannot fail late",
            self.call
        );
    }
}
