//! Everything a simulated driver knows, and how time passes in it.
//!
//!   submit ─► queues ─► (host waits) ─► run_to ─► execute ─► shadows, heap, pools, findings
//!
//! Threads   one lock around all of it, in `SimDriver`.
//! Processes share all of it. A context is a device of a process: process 1 of a machine with two devices has the
//!           contexts 2 and 3, and everything here that is called a device is one. Handles are of the process that made
//!           them.
//! Waiting   runs queued work until the target is reached: by the seed, either what it needs or whatever may run.
//! Lost      a device that is lost forgets its queued work, and every call on it fails with the first error.

use super::capture::{Captures, default_stream_of};
use super::clock::Moment;
use super::fault::{Faults, Random};
use super::heap::{Buffer, Memory};
use super::host::HostMemory;
use super::ipc::Ipc;
use super::launch::Modules;
use super::mutation::Mutations;
use super::pool::{Ground, Pool};
use super::queue::{Queued, Queues, Work};
use super::report::{Reports, Submission, What};
use super::skip::Launches;
use super::{SimCounters, SimOptions};
use crate::driver::{
    DeviceId, DriverCode, DriverError, EventHandle, FindingKind, PoolHandle, Result, Site, StreamHandle,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stream that is this far behind makes its submitter wait, as CUDA does.
const MOST_QUEUED: usize = 1024;

/// Handles below are CUDA's default streams, or null.
const FIRST_HANDLE: u64 = 16;

/// Where device addresses begin, and how far segments lie apart.
const FIRST_ADDRESS: u64 = 0x7_0000_0000;
const ADDRESS_GAP: u64 = 1 << 21;

/// A refusal with its reason.
pub(super) fn refuse<T>(call: &'static str, code: DriverCode, detail: impl Into<Box<str>>) -> Result<T> {
    Err(DriverError::new(call, code).with_detail(detail))
}

#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) open: u32,
    pub(super) used_bytes: u64,
    pub(super) lost: Option<(DriverCode, Box<str>)>,
    pub(super) default_pool: Option<PoolHandle>,
    /// Unless it is the default one.
    pub(super) current_pool: Option<PoolHandle>,
}

/// The memory of one place, as a pool sees it.
pub(super) struct Room<'a> {
    used: &'a mut u64,
    total: u64,
    next_address: &'a mut u64,
}

impl Ground for Room<'_> {
    fn grow(&mut self, bytes: u64) -> Option<u64> {
        if bytes > self.total.saturating_sub(*self.used) {
            return None;
        }
        *self.used += bytes;
        Some(self.address(bytes))
    }

    fn address(&mut self, bytes: u64) -> u64 {
        let address = *self.next_address;
        *self.next_address = (address + bytes).next_multiple_of(ADDRESS_GAP) + ADDRESS_GAP;
        address
    }

    fn give_back(&mut self, bytes: u64) {
        *self.used -= bytes;
    }
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) device: u32,
    pub(super) timing: bool,
    /// Other processes may open it.
    pub(super) interprocess: bool,
    /// Opened here: the event of another process that it stands for.
    pub(super) opened: Option<EventHandle>,
    pub(super) recorded: Option<Moment>,
    pub(super) patience: u32,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) options: SimOptions,
    /// Whose call this is.
    pub(super) process: u32,
    pub(super) ipc: Ipc,
    pub(super) random: Random,
    /// Separate generator for polls, so that the number of polls does not change other random choices.
    poll_random: Random,
    pub(super) devices: Vec<Device>,
    /// What pools on the host hold.
    pub(super) host_used_bytes: u64,
    pub(super) queues: Queues,
    pub(super) captures: Captures,
    /// Handles of streams that were destroyed.
    pub(super) old_streams: Vec<StreamHandle>,
    pub(super) events: BTreeMap<EventHandle, Event>,
    pub(super) pools: BTreeMap<PoolHandle, Pool>,
    pub(super) memory: Memory,
    pub(super) host: HostMemory,
    pub(super) modules: Modules,
    pub(super) faults: Faults,
    pub(super) mutations: Mutations,
    pub(super) launches: Launches,
    pub(super) reports: Reports,
    pub(super) counters: SimCounters,
    /// How often each kernel was launched, by name.
    pub(super) launched: BTreeMap<String, u64>,
    next_handle: u64,
    pub(super) next_address: u64,
    submissions: u64,
}

impl State {
    pub(super) fn new(options: SimOptions) -> Self {
        Self {
            process: 0,
            ipc: Ipc::default(),
            random: Random::new(options.seed),
            poll_random: Random::new(!options.seed),
            devices: (0..options.devices).map(|_| Device::default()).collect(),
            host_used_bytes: 0,
            queues: Queues::default(),
            captures: Captures::default(),
            old_streams: Vec::new(),
            events: BTreeMap::new(),
            pools: BTreeMap::new(),
            memory: Memory::new(),
            host: HostMemory::default(),
            modules: Modules::default(),
            faults: Faults::new(&options),
            mutations: Mutations::default(),
            launches: Launches::default(),
            reports: Reports::new(options.seed),
            counters: SimCounters::default(),
            launched: BTreeMap::new(),
            next_handle: FIRST_HANDLE,
            next_address: FIRST_ADDRESS,
            submissions: 0,
            options,
        }
    }

    pub(super) fn new_handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle - 1
    }

    /// The memory of a place: of a device, or of the host where `host` says so.
    pub(super) fn room<'a>(
        devices: &'a mut [Device],
        host_used_bytes: &'a mut u64,
        next_address: &'a mut u64,
        options: &SimOptions,
        (device, host): (u32, bool),
    ) -> Room<'a> {
        if host {
            return Room { used: host_used_bytes, total: options.host_memory_bytes, next_address };
        }
        let others = Self::used_of(devices, options, device) - devices[device as usize].used_bytes;
        let total = options.memory_bytes.saturating_sub(others);
        Room { used: &mut devices[device as usize].used_bytes, total, next_address }
    }

    /// What all processes have of the device of a context.
    pub(super) fn used_of(devices: &[Device], options: &SimOptions, context: u32) -> u64 {
        let physical = context as usize % options.devices.max(1) as usize;
        devices.iter().skip(physical).step_by(options.devices.max(1) as usize).map(|device| device.used_bytes).sum()
    }

    /// Free bytes on the device of a context.
    pub(super) fn free_bytes(&self, context: u32) -> u64 {
        self.options.memory_bytes - Self::used_of(&self.devices, &self.options, context)
    }

    /// Takes `bytes` of a device's memory, at an address that was never used before.
    pub(super) fn place_here(&mut self, device: u32, bytes: u64) -> Option<u64> {
        let Self { devices, host_used_bytes, next_address, options, .. } = self;
        Self::room(devices, host_used_bytes, next_address, options, (device, false)).grow(bytes)
    }

    // 1. Refusals.

    /// The device, if it is there, open and alive.
    pub(super) fn usable(&self, call: &'static str, device: DeviceId) -> Result<u32> {
        let context = self.context(call, device)?;
        self.alive(call, context)?;
        if self.devices[context as usize].open == 0 {
            return Err(DriverError::new(call, DriverCode::INVALID_CONTEXT)
                .with_detail(format!("{device} is not open: call device_open first")));
        }
        Ok(context)
    }

    /// The caller's context of a device that exists.
    pub(super) fn context(&self, call: &'static str, device: DeviceId) -> Result<u32> {
        if device.0 >= self.options.devices {
            return Err(DriverError::new(call, DriverCode::INVALID_DEVICE)
                .with_detail(format!("{device} of {} simulated devices", self.options.devices)));
        }
        Ok(self.process * self.options.devices + device.0)
    }

    /// Whose context it is.
    pub(super) fn process_of(&self, context: u32) -> u32 {
        context / self.options.devices.max(1)
    }

    /// The caller's device of a context.
    pub(super) fn device_id(&self, context: u32) -> DeviceId {
        DeviceId(context % self.options.devices.max(1))
    }

    /// An error if the device is lost.
    pub(super) fn alive(&self, call: &'static str, device: u32) -> Result<()> {
        match &self.devices[device as usize].lost {
            Some((code, detail)) => Err(DriverError::new(call, *code).with_detail(detail.clone())),
            None => Ok(()),
        }
    }

    /// Loses a device for good.
    pub(super) fn lose(&mut self, device: u32, code: DriverCode, detail: impl Into<Box<str>>) {
        let lost = &mut self.devices[device as usize].lost;
        if lost.is_none() {
            *lost = Some((code, detail.into()));
            self.queues.abandon(device);
        }
    }

    /// The lane of a stream that exists and whose device is alive.
    pub(super) fn lane(&mut self, call: &'static str, stream: StreamHandle) -> Result<u32> {
        if self.options.default_stream
            && let Some(device) = default_stream_of(stream)
            && device < self.options.devices
        {
            let device = self.usable(call, DeviceId(device))?;
            self.open_default_stream(device);
        }
        let mine = |lane: &u32| self.process_of(self.queues.lane(*lane).device) == self.process;
        match self.queues.lane_of(stream).filter(mine) {
            Some(lane) => {
                self.alive(call, self.queues.lane(lane).device)?;
                Ok(lane)
            }
            None if stream.0 < FIRST_HANDLE || default_stream_of(stream).is_some() => {
                Err(DriverError::new(call, DriverCode::INVALID_HANDLE)
                    .with_detail("the default stream orders against every other stream and is not to be used"))
            }
            None => Err(self.stale(call, "stream", stream.0)),
        }
    }

    pub(super) fn event(&mut self, call: &'static str, event: EventHandle) -> Result<&mut Event> {
        let (device, target) = self.event_ends(call, event)?;
        self.alive(call, device)?;
        Ok(self.events.get_mut(&target).expect("looked up above"))
    }

    pub(super) fn pool(&mut self, call: &'static str, pool: PoolHandle) -> Result<&mut Pool> {
        let mine = |found: &&Pool| !found.closing && self.process_of(found.device) == self.process;
        let Some(device) = self.pools.get(&pool).filter(mine).map(|pool| pool.device) else {
            return Err(self.stale(call, "pool", pool.0));
        };
        self.alive(call, device)?;
        Ok(self.pools.get_mut(&pool).expect("looked up above"))
    }

    /// Reports a handle that is not, or no longer, one.
    pub(super) fn stale(&mut self, call: &'static str, what: &str, handle: u64) -> DriverError {
        let message = format!("{call}: {what} {handle} does not exist (any more)");
        self.reports.add(FindingKind::Handle, handle, None, None, message.clone());
        DriverError::new(call, DriverCode::INVALID_HANDLE).with_detail(message)
    }

    // 2. Submitting.

    /// A submission that is about to happen: where it stands, and who it is.
    pub(super) fn prepare(&mut self, lane: u32, what: What, site: Option<Site>) -> (Moment, Arc<Submission>) {
        let moment = self.queues.next_moment(lane);
        self.submissions += 1;
        let stream = self.queues.lane(lane).stream;
        let lines = std::sync::OnceLock::new();
        let by = Submission { number: self.submissions, epoch: moment.epoch, stream, site, what, lines };
        (moment, Arc::new(by))
    }

    /// Queues it.
    pub(super) fn push(&mut self, moment: Moment, by: Arc<Submission>, work: Work) {
        let epoch = moment.epoch;
        self.queues.push(Queued { moment, by, work });
        while self.queues.pending_in(epoch.lane) > MOST_QUEUED {
            let Some(queued) = self.queues.take_next(&mut self.random, Some(epoch)) else { break };
            self.execute(queued);
        }
    }

    // 3. Waiting.

    /// Runs queued work until `target` has run.
    pub(super) fn run_to(&mut self, target: &Moment) {
        let only_what_is_needed = self.random.coin();
        while !self.queues.has_finished(target.epoch) {
            let goal = only_what_is_needed.then_some(target.epoch);
            let Some(queued) = self.queues.take_next(&mut self.random, goal) else { break };
            self.execute(queued);
        }
    }

    /// The host waits for `target`, and knows afterwards all that came before it.
    pub(super) fn wait_for(&mut self, target: &Moment) {
        self.run_to(target);
        let reached = self.queues.has_finished(target.epoch);
        assert!(reached, "the host waits for ever: a launch before {:?} was ordered to hang", target.epoch);
        self.queues.host_saw(target);
    }

    /// Whether `target` has run. A poll may run queued work: more of it the higher `patience` is.
    pub(super) fn poll(&mut self, target: &Moment, patience: u32) -> bool {
        if !self.queues.has_finished(target.epoch) {
            let steps = self.poll_random.below(2 << patience.min(12)).max(patience.min(1).into());
            for step in 0..steps {
                let goal = (patience > 0 && step == 0 || self.poll_random.coin()).then_some(target.epoch);
                if self.queues.has_finished(target.epoch) {
                    break;
                }
                match self.queues.take_next(&mut self.poll_random, goal) {
                    Some(queued) => self.execute(queued),
                    None => break,
                }
            }
        }
        let finished = self.queues.has_finished(target.epoch);
        if finished {
            self.queues.host_saw(target);
        }
        finished
    }

    /// Runs one piece of work that may run; the host does not learn of it.
    pub(super) fn pass_time(&mut self) -> bool {
        let next = self.queues.take_next(&mut self.poll_random, None);
        next.map(|queued| self.execute(queued)).is_some()
    }

    /// Runs all that these lanes hold, and lets the host know it.
    pub(super) fn drain(&mut self, lanes: &[u32]) {
        for &lane in lanes {
            if let Some(last) = self.queues.last(lane) {
                self.wait_for(&last);
            }
        }
    }

    /// What every synchronisation does to the pools.
    pub(super) fn pools_synchronised(&mut self) {
        let Self { pools, devices, host_used_bytes, next_address, options, queues, .. } = self;
        for pool in pools.values_mut() {
            let mut room = Self::room(devices, host_used_bytes, next_address, options, pool.place());
            pool.synchronised(&|epoch| queues.host().has_passed(epoch), &mut room);
        }
        self.drop_closed_pools();
    }

    /// Ends destroyed pools whose last block is back.
    pub(super) fn drop_closed_pools(&mut self) {
        let Self { pools, devices, host_used_bytes, next_address, options, .. } = self;
        pools.retain(|_, pool| {
            let over = pool.closing && pool.num_live() == 0 && !pool.has_pending_frees();
            if over {
                pool.dissolve(&mut Self::room(devices, host_used_bytes, next_address, options, pool.place()));
            }
            !over
        });
    }

    // 4. Leaks.

    /// Reports buffers that are still live although their time is over.
    pub(super) fn report_leaks(&mut self, over: &str, is_leak: &dyn Fn(&Buffer) -> bool) -> usize {
        let leaks: Vec<_> = self
            .memory
            .live()
            .into_iter()
            .filter(|buffer| is_leak(buffer))
            .map(|buffer| (buffer.label.clone(), buffer.allocated.clone()))
            .collect();
        for (label, allocated) in &leaks {
            let message = format!("{label} is still allocated at {over}");
            let finding = self.reports.add(FindingKind::Leak, label.id, allocated.as_deref(), None, message);
            if let Some(finding) = finding {
                finding.site = label.site;
            }
        }
        leaks.len()
    }
}
