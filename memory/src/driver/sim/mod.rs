//! A simulated CUDA device: it runs the PTX that ships, and checks memory and stream order while it does.
//!
//!   submit ─► queues, one per stream ─► (host waits) ─► any order events allow ─► interpreter ─► checks ─► findings
//!
//! Overlap     launches that nothing orders may run at the same time: their blocks take turns, and share the
//!             multiprocessors.
//! Lazy        work runs when a caller waits or polls, in an order chosen by the seed.
//! Checks      bounds, bytes never written, races inside a launch (the interpreter's); lifetime, stream order per
//!             32-byte sector, declarations, pinned memory and handles (here).
//! Findings    `Driver::findings`; those that were never read are printed when their device closes.
//! Refuses     what CUDA refuses. A kernel that faults loses the device, for good.
//! Replay      the same calls in the same order with the same seed do the same. Poller threads may vary it.
//! Time        is not simulated: `event_elapsed_ms` is 0, and clock rates are 0.

mod allocate;
mod call;
mod capture;
mod clock;
mod driver;
mod fault;
mod heap;
mod host;
mod ipc;
mod launch;
mod mutation;
mod order;
mod pool;
mod pools;
mod queue;
mod report;
mod run;
mod shape;
mod skip;
mod state;
mod transfer;
mod wait;
mod work;

pub use call::{CallKind, FailCall, FailureLasts};
pub use millpond_ptx::interpret::Checks;
pub use mutation::{Mutated, Mutation};
pub use shape::Shape;
pub use skip::KeptDownloads;

use crate::driver::{DeviceId, Finding, KernelLaunch, PoolAttribute, Result, StreamHandle};
use state::State;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// How a simulated driver behaves. The default is one patient device with all checks on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimOptions {
    /// Chooses the order of work, the reuse of memory and the interleaving of blocks. Printed with every finding. By
    /// default that of [`test_seed`], or 0.
    pub seed: u64,
    pub devices: u32,
    /// Memory of each device.
    pub memory_bytes: u64,
    /// Multiprocessors of each device: persistent grids scale with it, and so does the work to interpret them.
    pub multiprocessors: u32,
    /// Their kind, and with it the limits of thread blocks.
    pub shape: Shape,
    /// Checks of the interpreter. Bounds, lifetime and stream order are always checked.
    pub checks: Checks,
    /// Interleave the blocks and warps of a launch, and launches that nothing orders, by the seed, and let strong loads
    /// return older values; otherwise launches run one by one, always in the same order.
    pub shuffle_blocks: bool,
    /// Instructions of warps after which a launch counts as hung.
    pub max_warp_instructions: u64,
    /// The driver's version, as 12020: what it does not know yet it refuses.
    pub version: u32,
    /// Whether devices have pools. Virtual GPUs may not.
    pub memory_pools: bool,
    /// NUMA nodes of the host, on which pools can lie.
    pub host_numa_nodes: u32,
    /// What pools on the host may hold, together.
    pub host_memory_bytes: u64,
    /// Whether streams can store words into pinned memory.
    pub stream_memory_operations: bool,
    /// No device reaches another's memory.
    pub refuse_peers: bool,
    /// A device reaches the memory of those with lower numbers, and not the other way round.
    pub one_way_peers: bool,
    /// A process may open its own events as if they were another's, which CUDA refuses. For who has one process only.
    pub open_own_events: bool,
    /// Handle 0 is the default stream of the current device, as a C interface has it. Otherwise it has to be wrapped
    /// first.
    pub default_stream: bool,
    /// A new stream gets the handle of one that was destroyed, as CUDA may do.
    pub reuse_stream_handles: bool,
    /// Launches declare what they touch, and are held to it. A C interface has no way to declare.
    pub must_declare: bool,
    /// Calls that fail, one order for each kind of call.
    pub fail_calls: Vec<FailCall>,
    /// The launch with this number, counted from 1, never ends, and neither does what comes after it. A call that would
    /// wait for it inside the driver panics instead: a real one would not come back.
    pub hang_at_launch: Option<u64>,
    /// The wait of a stream for an event with this number, counted from 1, does nothing: then a check must fire.
    pub ignore_wait: Option<u64>,
    /// Setting this attribute of a pool does nothing: then a claim must fail.
    pub forget_attribute: Option<PoolAttribute>,
}

/// The seed of tests that name none: the number in the variable `MILLPOND_TEST_SIM_SEED`, if it is there and not 0.
///
/// # Panics
/// If it is no number: a test run under another seed than its user asked for would be worse.
pub fn test_seed() -> Option<u64> {
    static SEED: OnceLock<Option<u64>> = OnceLock::new();
    *SEED.get_or_init(|| {
        let text = std::env::var("MILLPOND_TEST_SIM_SEED").ok()?;
        let seed: u64 = text.parse().unwrap_or_else(|error| panic!("MILLPOND_TEST_SIM_SEED={text}: {error}"));
        (seed != 0).then_some(seed)
    })
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: test_seed().unwrap_or(0),
            devices: 1,
            memory_bytes: 8 << 30,
            multiprocessors: 4,
            shape: Shape::SM_90,
            checks: Checks::ALL,
            shuffle_blocks: true,
            max_warp_instructions: 20_000_000_000,
            version: 12020,
            memory_pools: true,
            host_numa_nodes: 1,
            host_memory_bytes: 16 << 30,
            stream_memory_operations: true,
            refuse_peers: false,
            one_way_peers: false,
            open_own_events: false,
            default_stream: false,
            reuse_stream_handles: false,
            must_declare: true,
            fail_calls: Vec::new(),
            hang_at_launch: None,
            ignore_wait: None,
            forget_attribute: None,
        }
    }
}

/// What a simulated driver was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounters {
    pub launches: u64,
    pub copies: u64,
    pub fills: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    /// Device to device.
    pub copied_bytes: u64,
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub frees: u64,
    /// Calls that block the host: synchronisations of streams, events and devices.
    pub host_waits: u64,
    pub events_recorded: u64,
    pub stream_waits: u64,
    /// Texts of PTX that were assembled; loading code assembles none.
    pub texts_assembled: u64,
    pub warp_instructions: u64,
    pub lane_instructions: u64,
}

/// A point in the life of a driver: what is allocated after it belongs to a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    first_buffer: u64,
}

/// The simulated driver, as one process sees it.
#[derive(Debug)]
pub struct SimDriver {
    options: SimOptions,
    state: Arc<Mutex<State>>,
    process: u32,
}

impl SimDriver {
    /// A driver with these devices, all idle and empty.
    pub fn new(options: SimOptions) -> Arc<Self> {
        let state = Arc::new(Mutex::new(State::new(options.clone())));
        Arc::new(Self { options, state, process: 0 })
    }

    /// Another process on the same machine: the same devices and their memory, but contexts, streams, events and pools
    /// of its own. Findings, counters and ordered faults are the machine's. What one host has waited for counts for
    /// both: messages between them are not tracked, so each may have notified the other.
    pub fn second_process(&self) -> Arc<Self> {
        let process = self.state().new_process();
        Arc::new(Self { options: self.options.clone(), state: Arc::clone(&self.state), process })
    }

    /// The process crashes: its queued work never runs, its contexts are gone, and the system takes away what it had
    /// imported. Its own memory stays with those who imported it.
    pub fn crash(&self) {
        self.state().crash();
    }

    /// Number of descriptors of this process's exported pools that are still open in any process.
    pub fn open_descriptors(&self) -> usize {
        self.state().open_descriptors()
    }

    /// A driver with one device and this seed.
    pub fn with_seed(seed: u64) -> Arc<Self> {
        Self::new(SimOptions { seed, ..SimOptions::default() })
    }

    pub fn options(&self) -> &SimOptions {
        &self.options
    }

    pub fn counters(&self) -> SimCounters {
        self.state().counters
    }

    /// The kernels that were launched, by name, and how often each.
    pub fn launched(&self) -> BTreeMap<String, u64> {
        self.state().launched.clone()
    }

    /// All findings so far, which are then forgotten.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.state().reports.take()
    }

    /// Begins a scope, such as a query.
    pub fn scope(&self) -> Scope {
        Scope { first_buffer: self.state().memory.next_id() }
    }

    /// Ends a scope: what was allocated in it and is still live is a leak. Returns how many.
    pub fn end_scope(&self, scope: Scope) -> usize {
        self.state().report_leaks("the end of its scope", &|buffer| {
            buffer.label.id >= scope.first_buffer && buffer.origin != heap::Origin::Module
        })
    }

    /// [`Driver::launch`](crate::driver::Driver::launch) without a promise from the caller: here all of it is checked.
    ///
    /// # Errors
    /// What CUDA refuses at once. What a kernel does wrong is a finding.
    pub fn launch_checked(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        self.state().submit(CallKind::Launch, stream, |state| state.launch(launch, stream))
    }

    /// The handle by which the default stream of a device is known here.
    pub fn default_stream(device: DeviceId) -> StreamHandle {
        capture::default_stream(device.0)
    }

    /// Runs one piece of queued work that may run, if there is any, without the host knowing. For who wants time to
    /// pass by itself.
    pub fn pass_time(&self) -> bool {
        self.state().pass_time()
    }

    /// Orders a call to fail, counted from now. Returns how many of its kind there were since the last order for it,
    /// those that failed among them. One live driver can so serve a whole sweep.
    pub fn order_failure(&self, fail: FailCall) -> u64 {
        self.state().faults.order(fail.call, Some(fail))
    }

    /// Takes the order for a kind of call back. Returns how many there were since it was given.
    pub fn take_order_back(&self, call: CallKind) -> u64 {
        self.state().faults.order(call, None)
    }

    /// Keeps what the host reads from now on, until [`Self::run_launches`].
    pub fn keep_downloads(&self) {
        self.state().launches.keep();
    }

    /// From now on launches are accepted and not run, and neither are copies and fills; the host reads what was kept.
    pub fn skip_launches(&self, kept: &Arc<KeptDownloads>) {
        self.state().launches.skip(kept);
    }

    /// Launches run again. Returns what was kept; `None` unless something was to be.
    pub fn run_launches(&self) -> Option<KeptDownloads> {
        self.state().launches.run()
    }

    /// When the first launch was skipped since the last [`Self::skip_launches`].
    pub fn first_skipped_launch(&self) -> Option<Instant> {
        self.state().launches.first_skipped
    }

    /// Loses a device now, as if its hardware had failed.
    pub fn lose_device(&self, device: DeviceId) {
        let mut state = self.state();
        if let Ok(context) = state.context("lose_device", device) {
            state.lose(context, crate::error::DriverCode::ECC_UNCORRECTABLE, "lost on order");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a failed assertion of ours; what others still ask is answered from what is there.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.process = self.process;
        state
    }
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        let text = self.state().reports.unseen();
        if !text.is_empty() {
            eprintln!("findings of the simulated device:\n{text}");
        }
    }
}
