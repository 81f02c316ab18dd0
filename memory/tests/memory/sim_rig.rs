//! A simulated driver with short method names, for tests of the driver itself.

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::driver::*;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;

pub const DEVICE: DeviceId = DeviceId(0);

pub struct Rig {
    pub driver: Arc<SimDriver>,
    pub pool: PoolHandle,
}

impl Rig {
    pub fn new(seed: u64) -> Self {
        Self::with(SimOptions { seed, ..SimOptions::default() })
    }

    /// Opens every device, and creates a pool on device 0 that keeps its memory.
    pub fn with(options: SimOptions) -> Self {
        let driver = SimDriver::new(options);
        for device in 0..driver.options().devices {
            driver.device_open(DeviceId(device)).unwrap();
        }
        let pool = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
        driver.pool_set_attribute(pool, PoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
        Self { driver, pool }
    }

    pub fn stream(&self) -> StreamHandle {
        self.driver.stream_create(DEVICE, StreamPriority::Normal).unwrap()
    }

    #[track_caller]
    pub fn try_alloc(&self, bytes: usize, stream: StreamHandle) -> Result<DevicePtr> {
        self.driver.pool_alloc(self.pool, NonZeroUsize::new(bytes).unwrap(), stream, Location::caller())
    }

    #[track_caller]
    pub fn alloc(&self, bytes: usize, stream: StreamHandle) -> DevicePtr {
        self.try_alloc(bytes, stream).unwrap()
    }

    #[track_caller]
    pub fn free(&self, ptr: DevicePtr, stream: StreamHandle) {
        self.driver.free_async(ptr, stream, Location::caller()).unwrap();
    }

    #[track_caller]
    pub fn fill(&self, ptr: DevicePtr, byte: u8, len: usize, stream: StreamHandle) {
        self.driver.fill(ptr, byte, len, stream, Location::caller()).unwrap();
    }

    #[track_caller]
    pub fn copy(&self, from: DevicePtr, to: DevicePtr, len: usize, stream: StreamHandle) {
        self.driver.copy(&CopyOp::DeviceToDevice { from, to, len }, stream, Location::caller()).unwrap();
    }

    #[track_caller]
    pub fn host(&self, len: usize) -> HostSpan {
        let bytes = NonZeroUsize::new(len).unwrap();
        let block = self.driver.host_alloc(DEVICE, bytes, HostKind::Download, Location::caller()).unwrap();
        HostSpan::new(&block, 0, len).unwrap()
    }

    #[track_caller]
    pub fn host_free(&self, span: &HostSpan) {
        self.driver.host_free(span.block(), Location::caller()).unwrap();
    }

    /// Pinned bytes whose upload to the device is submitted.
    #[track_caller]
    pub fn upload(&self, bytes: &[u8], to: DevicePtr, stream: StreamHandle) -> HostSpan {
        let from = self.host(bytes.len());
        from.block().write().unwrap().copy_from_slice(bytes);
        self.driver.copy(&CopyOp::HostToDevice { from: from.clone(), to }, stream, Location::caller()).unwrap();
        from
    }

    #[track_caller]
    pub fn download(&self, from: DevicePtr, len: usize, stream: StreamHandle) -> HostSpan {
        let to = self.host(len);
        self.driver.copy(&CopyOp::DeviceToHost { from, to: to.clone() }, stream, Location::caller()).unwrap();
        to
    }

    /// Loads a module and finds its kernel.
    pub fn kernel(&self, ptx: &str, name: &str) -> FunctionHandle {
        let module = self.driver.module_load(DEVICE, ptx).unwrap();
        self.driver.module_function(module, name).unwrap()
    }

    /// Launches one-dimensional blocks; every parameter is a 64-bit word.
    #[track_caller]
    pub fn try_launch(
        &self,
        function: FunctionHandle,
        (blocks, threads): (u32, u32),
        params: &[u64],
        accesses: &[DeclaredAccess],
        stream: StreamHandle,
    ) -> Result<()> {
        let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let launch = KernelLaunch {
            function,
            name: "test",
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            params: &params,
            accesses,
            figures: None,
            site: Location::caller(),
        };
        self.driver.launch_checked(&launch, stream)
    }

    #[track_caller]
    pub fn launch(
        &self,
        function: FunctionHandle,
        geometry: (u32, u32),
        params: &[u64],
        accesses: &[DeclaredAccess],
        stream: StreamHandle,
    ) {
        self.try_launch(function, geometry, params, accesses, stream).unwrap();
    }

    /// The bytes as the host sees them now; declares the host's read.
    #[track_caller]
    pub fn look(&self, span: &HostSpan) -> Vec<u8> {
        self.driver.host_access(span, Access::Read, Location::caller());
        span.block().read().unwrap().to_vec()
    }

    /// Downloads, waits and reads.
    #[track_caller]
    pub fn fetch(&self, from: DevicePtr, len: usize, stream: StreamHandle) -> Vec<u8> {
        let span = self.download(from, len, stream);
        self.sync(stream);
        let bytes = self.look(&span);
        self.host_free(&span);
        bytes
    }

    #[track_caller]
    pub fn record(&self, stream: StreamHandle) -> EventHandle {
        let event = self.driver.event_create(DEVICE, EventFlags::ORDER).unwrap();
        self.driver.event_record(event, stream, Location::caller()).unwrap();
        event
    }

    #[track_caller]
    pub fn wait(&self, stream: StreamHandle, event: EventHandle) {
        self.driver.stream_wait(stream, event, Location::caller()).unwrap();
    }

    /// Orders `later` behind all current work of `earlier`.
    #[track_caller]
    pub fn order(&self, earlier: StreamHandle, later: StreamHandle) {
        let event = self.record(earlier);
        self.wait(later, event);
        self.driver.event_destroy(event).unwrap();
    }

    pub fn sync(&self, stream: StreamHandle) {
        self.driver.stream_synchronize(stream).unwrap();
    }

    /// Runs everything, and returns the findings, oldest first.
    pub fn findings(&self) -> Vec<Finding> {
        // A lost device does not settle; its findings exist already.
        let _ = self.driver.settle();
        self.driver.take_findings()
    }

    pub fn kinds(&self) -> Vec<FindingKind> {
        self.findings().iter().map(|finding| finding.kind).collect()
    }

    #[track_caller]
    pub fn assert_silent(&self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
    }

    /// Checks that there is exactly one finding, of this kind.
    #[track_caller]
    pub fn only_finding(&self, kind: FindingKind) -> Finding {
        let mut findings = self.findings();
        let text = || findings.iter().map(|f| format!("{f}\n")).collect::<String>();
        assert_eq!(findings.len(), 1, "{}", text());
        assert_eq!(findings[0].kind, kind, "{}", text());
        findings.remove(0)
    }

    /// Closes every device, and returns the findings until then.
    pub fn close(self) -> Vec<Finding> {
        let _ = self.driver.settle();
        for device in 0..self.driver.options().devices {
            self.driver.device_close(DeviceId(device)).unwrap();
        }
        self.driver.take_findings()
    }

    pub fn pool_attribute(&self, attribute: PoolAttribute) -> u64 {
        self.driver.pool_attribute(self.pool, attribute).unwrap()
    }

    pub fn reuse(&self, follow: bool, opportunistic: bool, internal: bool) {
        for (attribute, on) in [
            (PoolAttribute::ReuseFollowEventDependencies, follow),
            (PoolAttribute::ReuseAllowOpportunistic, opportunistic),
            (PoolAttribute::ReuseAllowInternalDependencies, internal),
        ] {
            self.driver.pool_set_attribute(self.pool, attribute, on.into()).unwrap();
        }
    }
}

pub fn declare(ptr: DevicePtr, len: usize, access: Access) -> DeclaredAccess {
    DeclaredAccess { ptr, len, access }
}

/// Seeds for all tests of order.
pub fn seeds() -> impl Iterator<Item = u64> {
    0..24
}
