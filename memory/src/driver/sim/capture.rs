//! Captures: work of a stream becomes nodes of a graph instead of running. And the streams of others.
//!
//!   stream 17   begin ─ fill ─ record e ──────────────── wait f ─ end ─► graph: fill, launch
//!   stream 18                    └ wait e ─ launch ─ record f ┘          joined the capture, and came back
//!
//! Refused      as CUDA does, and what breaks a rule breaks the capture: waits of the host for what is captured, events
//!              across the border of a capture, two captures that meet, an end elsewhere than at the beginning, a
//!              stream that has not come back.
//! Threads      calls that are unsafe under capture (memory without a stream, pinned memory, questions about events and
//!              streams) are refused as the thread's mode and the modes of the captures say, and break those captures.
//! Stricter     a stream that joined must come back even if it did nothing. A graph allocates and frees nothing: a
//!              captured `cuMemAllocFromPoolAsync` would become a node of its own, which is not simulated.
//! Replays      in the order of capture, on the stream of the launch: one of the orders that the graph allows.
//! Default      stream: a lane of its own for each device. It does not wait for others, since all others are
//!              non-blocking.

use super::queue::Queues;
use super::state::{State, refuse};
use crate::driver::{
    CaptureMode, CaptureStatus, CopyOp, DeclaredAccess, DeviceId, DevicePtr, DriverCode, DriverError, EventHandle,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphMemoryAttribute, HostSpan, KernelLaunch, Result, Site,
    StreamHandle,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;

/// CUDA's names for the default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// Handles of the devices' default streams.
const DEFAULT_STREAMS: u64 = 1 << 48;

pub(super) fn default_stream(device: u32) -> StreamHandle {
    StreamHandle(DEFAULT_STREAMS + u64::from(device))
}

/// The device whose default stream this is.
pub(super) fn default_stream_of(stream: StreamHandle) -> Option<u32> {
    stream.0.checked_sub(DEFAULT_STREAMS).and_then(|device| u32::try_from(device).ok())
}

/// One thing that a graph does.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Fill { ptr: DevicePtr, byte: u8, len: u64, site: Site },
    Copy { copy: CopyOp, site: Site },
    Word { word: HostSpan, value: u32, site: Site },
    Launch(Box<LaunchNode>),
}

#[derive(Debug, Clone)]
pub(super) struct LaunchNode {
    function: FunctionHandle,
    name: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: Vec<u8>,
    accesses: Vec<DeclaredAccess>,
    site: Site,
}

impl From<&KernelLaunch<'_>> for Node {
    fn from(launch: &KernelLaunch<'_>) -> Self {
        Node::Launch(Box::new(LaunchNode {
            function: launch.function,
            name: launch.name.to_string(),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            params: launch.params.to_vec(),
            accesses: launch.accesses.to_vec(),
            site: launch.site,
        }))
    }
}

/// For each lane of a capture, how far.
type Reach = HashMap<u32, u64>;

fn join(mine: &mut Reach, theirs: &Reach) {
    for (lane, steps) in theirs {
        let known = mine.entry(*lane).or_default();
        *known = (*known).max(*steps);
    }
}

#[derive(Debug)]
struct Capture {
    device: u32,
    origin: u32,
    mode: CaptureMode,
    thread: ThreadId,
    broken: bool,
    nodes: Vec<Node>,
    /// What each lane of it comes after.
    lanes: HashMap<u32, Reach>,
}

impl Capture {
    fn step(&mut self, lane: u32) {
        *self.lanes.entry(lane).or_default().entry(lane).or_default() += 1;
    }
}

#[derive(Debug, Clone)]
struct Graph {
    device: u32,
    nodes: Arc<[Node]>,
}

/// All captures and graphs of a driver.
#[derive(Debug, Default)]
pub(super) struct Captures {
    last: u64,
    active: BTreeMap<u64, Capture>,
    by_lane: HashMap<u32, u64>,
    /// Events whose last record was captured: in which capture, and behind what.
    events: HashMap<EventHandle, (u64, Reach)>,
    modes: HashMap<ThreadId, CaptureMode>,
    graphs: BTreeMap<GraphHandle, Graph>,
    execs: BTreeMap<GraphExecHandle, Graph>,
}

impl Captures {
    /// The capture that a lane is part of.
    pub(super) fn of(&self, lane: u32) -> Option<u64> {
        self.by_lane.get(&lane).copied()
    }

    fn break_it(&mut self, id: u64) {
        if let Some(capture) = self.active.get_mut(&id) {
            capture.broken = true;
        }
    }

    fn add_lane(&mut self, id: u64, lane: u32, after: &Reach) {
        self.by_lane.insert(lane, id);
        if let Some(capture) = self.active.get_mut(&id) {
            join(capture.lanes.entry(lane).or_default(), after);
            capture.step(lane);
        }
    }

    fn finish(&mut self, id: u64) -> Option<Capture> {
        self.by_lane.retain(|_, of| *of != id);
        self.active.remove(&id)
    }
}

// 1. Streams of others.
impl State {
    pub(super) fn stream_wrap(&mut self, device: DeviceId, raw: u64) -> Result<StreamHandle> {
        const CALL: &str = "cuStreamGetCtx";
        let device = self.usable(CALL, device)?;
        match raw {
            0 | LEGACY => {
                self.open_default_stream(device);
                Ok(default_stream(device))
            }
            PER_THREAD => refuse(CALL, DriverCode::INVALID_HANDLE, "the per-thread default stream is not simulated"),
            _ => match self.queues.lane_of(StreamHandle(raw)) {
                Some(lane) if self.queues.lane(lane).device == device => Ok(StreamHandle(raw)),
                _ => refuse(CALL, DriverCode::INVALID_HANDLE, format!("{raw} is no stream of device {device}")),
            },
        }
    }

    pub(super) fn open_default_stream(&mut self, device: u32) {
        if self.queues.lane_of(default_stream(device)).is_none() {
            self.queues.open(device, default_stream(device));
        }
    }

    pub(super) fn stream_id(&mut self, stream: StreamHandle) -> Result<u64> {
        match self.queues.lane_of(stream) {
            Some(lane) => {
                // Not in the reference; an NVIDIA H200 with driver 580 refuses it, and the capture is broken then.
                self.not_captured("cuStreamGetId", lane)?;
                Ok(self.queues.lane(lane).serial)
            }
            None => refuse("cuStreamGetId", DriverCode::INVALID_HANDLE, format!("{} is no stream", stream.0)),
        }
    }
}

// 2. What captures forbid.
impl State {
    /// Refuses a call that is unsafe while something is captured, as this thread and the captures look at it.
    pub(super) fn unsafe_under_capture(&mut self, call: &'static str) -> Result<()> {
        let thread = std::thread::current().id();
        let mode = self.captures.modes.get(&thread).copied().unwrap_or_default();
        let forbids = |capture: &Capture| match mode {
            CaptureMode::Relaxed => false,
            CaptureMode::ThreadLocal => capture.thread == thread && capture.mode != CaptureMode::Relaxed,
            CaptureMode::Global => match capture.mode {
                CaptureMode::Relaxed => false,
                CaptureMode::ThreadLocal => capture.thread == thread,
                CaptureMode::Global => true,
            },
        };
        let mut forbidden = false;
        for capture in self.captures.active.values_mut().filter(|capture| forbids(capture)) {
            (capture.broken, forbidden) = (true, true);
        }
        match forbidden {
            true => refuse(call, DriverCode::STREAM_CAPTURE_UNSUPPORTED, "forbidden while a stream is captured"),
            false => Ok(()),
        }
    }

    /// Refuses a wait for, or the end of, a stream that is captured.
    pub(super) fn not_captured(&mut self, call: &'static str, lane: u32) -> Result<()> {
        match self.captures.of(lane) {
            None => Ok(()),
            Some(id) => {
                self.captures.break_it(id);
                let detail = format!("stream {} is captured", self.queues.lane(lane).stream.0);
                refuse(call, DriverCode::STREAM_CAPTURE_UNSUPPORTED, detail)
            }
        }
    }

    /// The same for all streams of a device.
    pub(super) fn no_captures_on(&mut self, call: &'static str, device: u32) -> Result<()> {
        let mut any = false;
        for capture in self.captures.active.values_mut().filter(|capture| capture.device == device) {
            (capture.broken, any) = (true, true);
        }
        match any {
            true => refuse(call, DriverCode::STREAM_CAPTURE_UNSUPPORTED, "a stream of the device is captured"),
            false => Ok(()),
        }
    }

    /// Refuses a question about an event whose last record is part of a capture.
    pub(super) fn not_captured_event(&self, call: &'static str, event: EventHandle) -> Result<()> {
        match self.captures.events.contains_key(&event) {
            true => refuse(call, DriverCode::CAPTURED_EVENT, format!("event {} was recorded in a capture", event.0)),
            false => Ok(()),
        }
    }

    /// Makes a node of what is submitted to a captured stream. `None`: the stream is not captured.
    pub(super) fn captured(
        &mut self,
        call: &'static str,
        lane: u32,
        node: impl FnOnce() -> Node,
    ) -> Option<Result<()>> {
        let id = self.captures.of(lane)?;
        let capture = self.captures.active.get_mut(&id)?;
        if capture.broken {
            return Some(refuse(call, DriverCode::STREAM_CAPTURE_INVALIDATED, "an earlier call broke a rule"));
        }
        capture.nodes.push(node());
        capture.step(lane);
        Some(Ok(()))
    }

    /// Refuses memory in the order of a captured stream: nodes for it are not simulated.
    pub(super) fn no_memory_nodes(&mut self, call: &'static str, lane: u32) -> Result<()> {
        match self.captures.of(lane) {
            None => Ok(()),
            Some(_) => refuse(call, DriverCode::NOT_SUPPORTED, "nodes that allocate or free are not simulated"),
        }
    }

    /// A record on a captured stream. `false`: the stream is not captured.
    pub(super) fn record_captured(&mut self, event: EventHandle, lane: u32) -> bool {
        let Some(id) = self.captures.of(lane) else {
            self.captures.events.remove(&event);
            return false;
        };
        let reach = self.captures.active.get(&id).and_then(|capture| capture.lanes.get(&lane)).cloned();
        self.captures.events.insert(event, (id, reach.unwrap_or_default()));
        true
    }

    /// A wait that has to do with a capture. `None`: it has not.
    pub(super) fn wait_captured(&mut self, call: &'static str, lane: u32, event: EventHandle) -> Option<Result<()>> {
        let own = self.captures.of(lane);
        let of_event = self.captures.events.get(&event).cloned();
        match (own, of_event) {
            (None, None) => None,
            (Some(id), None) => {
                // Nothing was recorded, so nothing is waited for.
                if self.events.get(&event).is_none_or(|event| event.recorded.is_none()) {
                    return Some(Ok(()));
                }
                self.captures.break_it(id);
                Some(refuse(
                    call,
                    DriverCode::STREAM_CAPTURE_ISOLATION,
                    "a captured stream cannot wait for what is outside",
                ))
            }
            (_, Some((id, _))) if !self.captures.active.contains_key(&id) => {
                Some(refuse(call, DriverCode::CAPTURED_EVENT, format!("the capture of event {} is over", event.0)))
            }
            (Some(own), Some((id, _))) if own != id => {
                self.captures.break_it(own);
                self.captures.break_it(id);
                Some(refuse(call, DriverCode::STREAM_CAPTURE_MERGE, "the event belongs to another capture"))
            }
            (_, Some((id, reach))) => {
                self.captures.add_lane(id, lane, &reach);
                Some(Ok(()))
            }
        }
    }

    pub(super) fn event_gone(&mut self, event: EventHandle) {
        self.captures.events.remove(&event);
    }
}

// 3. Begin, end, status.
impl State {
    pub(super) fn stream_capture_begin(&mut self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        const CALL: &str = "cuStreamBeginCapture";
        let lane = self.lane(CALL, stream)?;
        if default_stream_of(stream).is_some() {
            return refuse(CALL, DriverCode::STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
        }
        if self.captures.of(lane).is_some() {
            return refuse(CALL, DriverCode::ILLEGAL_STATE, format!("stream {} is captured already", stream.0));
        }
        self.captures.last += 1;
        let id = self.captures.last;
        let capture = Capture {
            device: self.queues.lane(lane).device,
            origin: lane,
            mode,
            thread: std::thread::current().id(),
            broken: false,
            nodes: Vec::new(),
            lanes: HashMap::from([(lane, Reach::new())]),
        };
        self.captures.active.insert(id, capture);
        self.captures.by_lane.insert(lane, id);
        Ok(())
    }

    pub(super) fn stream_capture_status(&mut self, stream: StreamHandle) -> Result<CaptureStatus> {
        let lane = self.lane("cuStreamGetCaptureInfo", stream)?;
        let capture = self.captures.of(lane).and_then(|id| Some((id, self.captures.active.get(&id)?)));
        Ok(match capture {
            None => CaptureStatus::None,
            Some((_, capture)) if capture.broken => CaptureStatus::Invalidated,
            Some((id, _)) => CaptureStatus::Active { id },
        })
    }

    pub(super) fn stream_capture_end(&mut self, stream: StreamHandle) -> Result<GraphHandle> {
        const CALL: &str = "cuStreamEndCapture";
        let lane = self.lane(CALL, stream)?;
        let Some((id, capture)) = self.captures.of(lane).and_then(|id| Some((id, self.captures.active.get_mut(&id)?)))
        else {
            return refuse(CALL, DriverCode::ILLEGAL_STATE, format!("stream {} is not captured", stream.0));
        };
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return refuse(CALL, DriverCode::STREAM_CAPTURE_WRONG_THREAD, "another thread began it");
        }
        if capture.origin != lane {
            capture.broken = true;
            let detail = format!("it was begun on stream {}", self.queues.lane(capture.origin).stream.0);
            return refuse(CALL, DriverCode::STREAM_CAPTURE_UNMATCHED, detail);
        }
        let capture = self.captures.finish(id).expect("looked up above");
        if capture.broken {
            return refuse(CALL, DriverCode::STREAM_CAPTURE_INVALIDATED, "an earlier call broke a rule");
        }
        let origin = &capture.lanes[&lane];
        let away = |(other, reach): &(&u32, &Reach)| {
            origin.get(*other).copied().unwrap_or(0) < reach.get(*other).copied().unwrap_or(0)
        };
        if let Some((other, _)) = capture.lanes.iter().find(away) {
            let detail = format!("stream {} has not come back", self.queues.lane(*other).stream.0);
            return refuse(CALL, DriverCode::STREAM_CAPTURE_UNJOINED, detail);
        }
        let handle = GraphHandle(self.new_handle());
        let graph = Graph { device: capture.device, nodes: capture.nodes.into() };
        self.captures.graphs.insert(handle, graph);
        Ok(handle)
    }

    pub(super) fn thread_capture_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        let thread = std::thread::current().id();
        let before = match mode {
            CaptureMode::Global => self.captures.modes.remove(&thread),
            mode => self.captures.modes.insert(thread, mode),
        };
        before.unwrap_or_default()
    }
}

// 4. Graphs.
impl State {
    fn graph(&self, call: &'static str, graph: GraphHandle) -> Result<Graph> {
        let found = self.captures.graphs.get(&graph).cloned();
        found.ok_or_else(|| {
            DriverError::new(call, DriverCode::INVALID_VALUE).with_detail(format!("{} is no graph", graph.0))
        })
    }

    pub(super) fn graph_destroy(&mut self, graph: GraphHandle) -> Result<()> {
        self.graph("cuGraphDestroy", graph)?;
        self.captures.graphs.remove(&graph);
        Ok(())
    }

    pub(super) fn graph_instantiate(&mut self, graph: GraphHandle) -> Result<GraphExecHandle> {
        let graph = self.graph("cuGraphInstantiate", graph)?;
        let handle = GraphExecHandle(self.new_handle());
        self.captures.execs.insert(handle, graph);
        Ok(handle)
    }

    pub(super) fn graph_exec_destroy(&mut self, graph: GraphExecHandle) -> Result<()> {
        match self.captures.execs.remove(&graph) {
            Some(_) => Ok(()),
            None => refuse("cuGraphExecDestroy", DriverCode::INVALID_VALUE, format!("{} is no graph", graph.0)),
        }
    }

    pub(super) fn graph_launch(&mut self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuGraphLaunch";
        let lane = self.lane(CALL, stream)?;
        let Some(graph) = self.captures.execs.get(&graph).cloned() else {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("{} is no graph to launch", graph.0));
        };
        if graph.device != self.queues.lane(lane).device {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("a graph of device {}", graph.device));
        }
        if self.captures.of(lane).is_some() {
            return refuse(CALL, DriverCode::NOT_SUPPORTED, "graphs inside graphs are not simulated");
        }
        for node in graph.nodes.iter() {
            match node {
                Node::Fill { ptr, byte, len, site } => self.fill(*ptr, *byte, *len, stream, site)?,
                Node::Copy { copy, site } => self.copy(copy, stream, site)?,
                Node::Word { word, value, site } => self.write_word(word, *value, stream, site)?,
                Node::Launch(node) => {
                    let launch = KernelLaunch {
                        function: node.function,
                        name: &node.name,
                        grid: node.grid,
                        block: node.block,
                        shared_bytes: node.shared_bytes,
                        params: &node.params,
                        accesses: &node.accesses,
                        figures: None,
                        site: node.site,
                    };
                    self.launch(&launch, stream)?;
                }
            }
        }
        Ok(())
    }

    /// Graphs hold nothing here, since none allocates.
    pub(super) fn graph_memory_attribute(&self, device: DeviceId, _: GraphMemoryAttribute) -> Result<u64> {
        self.usable("cuDeviceGetGraphMemAttribute", device).map(|_| 0)
    }

    pub(super) fn graph_memory_set_attribute(
        &self,
        device: DeviceId,
        attribute: GraphMemoryAttribute,
        value: u64,
    ) -> Result<()> {
        const CALL: &str = "cuDeviceSetGraphMemAttribute";
        self.usable(CALL, device)?;
        match (attribute, value) {
            (GraphMemoryAttribute::UsedHigh | GraphMemoryAttribute::ReservedHigh, 0) => Ok(()),
            _ => refuse(CALL, DriverCode::INVALID_VALUE, "a watermark is only reset, to 0"),
        }
    }

    pub(super) fn graph_memory_trim(&self, device: DeviceId) -> Result<()> {
        self.usable("cuDeviceGraphMemTrim", device).map(|_| ())
    }
}

impl Queues {
    /// The raw handle as its owner has it.
    pub(super) fn raw(stream: StreamHandle) -> u64 {
        if default_stream_of(stream).is_some() { 0 } else { stream.0 }
    }
}
