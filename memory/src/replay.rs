//! Replays an allocation log: on any device, with any strategy, with its streams and their order.
//!
//!   line of the log                        replayed as
//!   allocate, free on stream 2             a call of the resource, on the stream that represents 2
//!   use_read, use_write, use_share         a copy or a fill of a few bytes of the allocation, on that stream
//!   record, wait for 0x2:41                an event, a wait for the position that represents 41 of stream 2
//!   sync, trim                             a wait of the host, a trim of the resource
//!
//! Order      one host thread makes the calls in the order of the log. Waits are made only where the log has them: a
//!            log with a missing wait reproduces the race, and the simulated device reports it.
//! RMM        a log without this crate's columns has no waits: its frees are ordered behind the allocation, as its
//!            program must have done, and each allocation is written once.
//! Streams    at most `MOST_STREAMS`. With more, several log streams share one in rotation: each keeps its own order
//!            and is also ordered after the others on its stream. So no race is added, but one in the log may be
//!            missed. `ReplayReport` has both numbers.
//! Whole      a log is held in memory: its lines may be out of order, and a line may refer to later ones.
//! Time       is not that of the log: calls follow each other at once. The duration of a replay is not the cost of a
//!            query.
//! Short      an allocation that finds no memory is retried after a synchronization and a trim; then it counts as
//!            failed, and its uses are skipped.
//! Leftovers  allocations that the log does not free are freed at its end, and counted.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{CopyOp, DevicePtr};
use crate::error::Result;
use crate::log::{Action, After, LogFile, Record};
use crate::order::Position;
use crate::resource::{CudaMemoryResource, DeviceMemoryResource, RawAllocation};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Bytes accessed by a use: enough to conflict with any other use of the same allocation.
const TOUCHED_BYTES: usize = 256;

/// Bytes of the disjoint parts that several streams may write concurrently.
const SECTOR_BYTES: usize = 32;

/// Maximum number of streams of a player: more than a GPU runs at once, and few enough for a driver.
pub const MOST_STREAMS: usize = 256;

/// Number of positions kept per stream; a wait for an older one waits for the oldest of these.
const KEPT_PLACES: usize = 1024;

/// Maximum number of lines by which a line may be late, when threads log concurrently.
const NOTED_LATE: usize = 64;

/// Maximum length of a chain of threads, each late because of the next.
const NOTED_DEPTH: usize = 8;

/// Peak memory of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Maximum bytes taken from the device.
    pub reserved: ByteSize,
    /// Maximum bytes in use while that many were taken.
    pub used: ByteSize,
}

impl Footprint {
    /// Samples `resource`, which queries the driver in some strategies.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn note(&mut self, resource: &dyn DeviceMemoryResource) -> Result<()> {
        let now = resource.statistics()?;
        if now.reserved > self.reserved {
            *self = Footprint { reserved: now.reserved, used: now.used };
        } else if now.reserved == self.reserved {
            self.used = self.used.max(now.used);
        }
        Ok(())
    }

    /// Unused fraction of the reserved memory at the peak: 1 − used / reserved. `None` if nothing was reserved.
    pub fn fragmentation(&self) -> Option<f64> {
        let reserved = self.reserved.as_u64() as f64;
        (reserved > 0.0).then(|| (1.0 - self.used.as_u64() as f64 / reserved).max(0.0))
    }
}

/// Counts of a replay.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct ReplayReport {
    pub lines: u64,
    /// Number of streams in the log, and on the device.
    pub streams: u64,
    pub device_streams: u64,
    pub allocations: u64,
    /// Allocations that succeeded only after a synchronization and a trim.
    pub retries: u64,
    /// Allocations that failed.
    pub failures: u64,
    pub frees: u64,
    pub uses: u64,
    /// Waits, events and synchronizations of the log.
    pub waits: u64,
    pub records: u64,
    pub syncs: u64,
    pub trims: u64,
    /// Lines that need no action: failures and spills of the log.
    pub told: u64,
    /// Frees and uses of allocations that are missing from the log, failed, or have no bytes.
    pub skipped: u64,
    pub left_allocations: u64,
    pub left_bytes: ByteSize,
    /// Peak of the bytes requested by the log and not freed.
    pub asked_peak: ByteSize,
    pub peak: Footprint,
    /// Driver calls for the lines of the log; sampling the peak and freeing leftovers are excluded.
    pub driver_calls: u64,
    pub host_waits: u64,
    pub waits_inserted: u64,
    pub waits_elided: u64,
}

/// Durations of calls on the host, if requested.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallTimes {
    pub(crate) allocate_ns: Vec<u64>,
    pub(crate) free_ns: Vec<u64>,
}

struct Live {
    raw: RawAllocation,
    home: u64,
    /// In a log without order: position that the free is ordered after.
    last: Position,
}

#[derive(Default)]
struct Places(Vec<(u64, Position)>);

impl Places {
    fn note(&mut self, logged: u64, now: Position) {
        let at = self.0.partition_point(|(known, _)| *known <= logged);
        self.0.insert(at, (logged, now));
        if self.0.len() > 2 * KEPT_PLACES {
            self.0.drain(..KEPT_PLACES);
        }
    }

    /// Position that represents `logged` or a later one; `None` for everything so far.
    fn at(&self, logged: u64) -> Option<Position> {
        let at = self.0.partition_point(|(known, _)| *known < logged);
        self.0.get(at).map(|(_, position)| *position)
    }
}

/// Plays logs on one device, whose streams represent those of the logs.
pub struct Player {
    device: Device,
    streams: Vec<Stream>,
    /// Index of the stream that represents a log's stream.
    stands_for: HashMap<u64, usize>,
    /// Destination of reads, with a part for each stream.
    scratch: Option<RawAllocation>,
    scratch_from: CudaMemoryResource,
}

impl Player {
    pub fn new(device: &Device) -> Self {
        Player {
            device: device.clone(),
            streams: Vec::new(),
            stands_for: HashMap::new(),
            scratch: None,
            scratch_from: CudaMemoryResource::new(device),
        }
    }

    /// Creates the streams of `log` before it is played.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn prepare(&mut self, log: &LogFile) -> Result<()> {
        for record in &log.records {
            let other = match record.after {
                Some(After::Place { stream, .. }) => stream,
                _ => record.stream,
            };
            for stream in [record.stream, other] {
                if self.stands_for.contains_key(&stream) {
                    continue;
                }
                let place = self.stands_for.len() % MOST_STREAMS;
                if place == self.streams.len() {
                    self.streams.push(Stream::new(&self.device)?);
                    self.give_back_scratch()?;
                }
                self.stands_for.insert(stream, place);
            }
        }
        if let (None, Some(first)) = (&self.scratch, self.streams.first()) {
            let bytes = NonZeroUsize::new(self.streams.len() * TOUCHED_BYTES).expect("there is a stream");
            self.scratch = Some(self.scratch_from.allocate(bytes, first, Location::caller())?);
        }
        Ok(())
    }

    fn give_back_scratch(&mut self) -> Result<()> {
        match (self.scratch.take(), self.streams.first()) {
            (Some(scratch), Some(first)) => {
                self.device.synchronize()?;
                self.scratch_from.deallocate(scratch, first, Location::caller())
            }
            _ => Ok(()),
        }
    }

    /// Plays `log` with memory of `resource`, and leaves nothing in use.
    ///
    /// # Errors
    /// A lost device and other errors that prevent the replay. Running out of memory is not an error.
    pub fn play(&mut self, log: &LogFile, resource: &Arc<dyn DeviceMemoryResource>) -> Result<ReplayReport> {
        self.play_with(log, resource, true, None)
    }

    pub(crate) fn play_with(
        &mut self,
        log: &LogFile,
        resource: &Arc<dyn DeviceMemoryResource>,
        watch_peak: bool,
        times: Option<&mut CallTimes>,
    ) -> Result<ReplayReport> {
        self.prepare(log)?;
        let before = (self.device.driver_calls(), self.device.counters());
        let mut play = Play {
            records: &log.records,
            done: vec![false; log.records.len()],
            player: self,
            resource: &**resource,
            ordered: log.ordered,
            written_first: written_first(log),
            live: HashMap::new(),
            places: HashMap::new(),
            asked: 0,
            watch: Watch { peak: watch_peak, calls: 0 },
            times,
            report: ReplayReport { lines: log.records.len() as u64, ..ReplayReport::default() },
        };
        let played = (0..log.records.len()).try_for_each(|index| play.line(index, 0));
        let (calls, since) = (self.device.driver_calls() - before.0, self.device.counters().since(&before.1));
        let finished = play.finish();
        let (mut report, watching_calls) = (play.report, play.watch.calls);
        played.and(finished)?;
        (report.streams, report.device_streams) = (self.stands_for.len() as u64, self.streams.len() as u64);
        report.driver_calls = calls - watching_calls;
        report.host_waits = since.host_waits;
        report.waits_inserted = since.waits_inserted;
        report.waits_elided = since.waits_elided;
        Ok(report)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.give_back_scratch() {
            self.device.report(error);
        }
    }
}

/// Allocations whose first use is a write. All others are written when they are allocated, so that reads find
/// initialized bytes.
fn written_first(log: &LogFile) -> HashSet<u64> {
    let (mut seen, mut written) = (HashSet::new(), HashSet::new());
    for record in &log.records {
        let used = matches!(record.action, Action::UseRead | Action::UseWrite | Action::UseShare);
        if used && seen.insert(record.alloc_id) && record.action == Action::UseWrite {
            written.insert(record.alloc_id);
        }
    }
    written
}

/// Whether the resource's peak is read after each allocation, and the driver calls that this took.
struct Watch {
    peak: bool,
    calls: u64,
}

struct Play<'a> {
    records: &'a [Record],
    done: Vec<bool>,
    player: &'a Player,
    resource: &'a dyn DeviceMemoryResource,
    ordered: bool,
    written_first: HashSet<u64>,
    live: HashMap<u64, Live>,
    places: HashMap<u64, Places>,
    asked: u64,
    watch: Watch,
    times: Option<&'a mut CallTimes>,
    report: ReplayReport,
}

impl<'a> Play<'a> {
    fn stream(&self, number: u64) -> &'a Stream {
        &self.player.streams[self.stand_in(number)]
    }

    fn stand_in(&self, number: u64) -> usize {
        *self.player.stands_for.get(&number).expect("`prepare` made every stream of the log")
    }

    fn device(&self) -> &'a Device {
        &self.player.device
    }

    /// Plays a line, unless it was already played.
    fn line(&mut self, index: usize, depth: usize) -> Result<()> {
        if std::mem::replace(&mut self.done[index], true) {
            return Ok(());
        }
        let record = &self.records[index];
        if let (Action::Wait | Action::Sync, Some(After::Place { stream, position })) = (record.action, record.after) {
            self.catch_up(index, stream, position, depth)?;
        }
        self.record(record)
    }

    /// Plays lines after `index` that belong before it: with two threads, one may have waited for work that the other
    /// had submitted but not yet logged.
    fn catch_up(&mut self, index: usize, stream: u64, position: u64, depth: usize) -> Result<()> {
        if !self.ordered || depth == NOTED_DEPTH {
            return Ok(());
        }
        for later in index + 1..self.records.len().min(index + 1 + NOTED_LATE) {
            let record = &self.records[later];
            let behind = match record.action {
                Action::UseRead | Action::UseWrite | Action::UseShare => {
                    record.position <= position && self.live.contains_key(&record.alloc_id)
                }
                Action::Wait => record.position < position,
                _ => false,
            };
            if behind && record.stream == stream {
                self.line(later, depth + 1)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: &Record) -> Result<()> {
        match record.action {
            Action::Allocate => self.allocate(record)?,
            Action::Free => self.free(record)?,
            Action::UseRead | Action::UseWrite | Action::UseShare => self.touch(record)?,
            Action::Record => {
                self.report.records += 1;
                self.stream(record.stream).record()?;
            }
            Action::Wait => self.wait(record)?,
            Action::Sync => self.sync(record)?,
            Action::Trim => {
                self.report.trims += 1;
                self.resource.trim(ByteSize(record.size))?;
            }
            Action::AllocateFailure | Action::Spill => self.report.told += 1,
        }
        if self.ordered && !matches!(record.action, Action::Sync | Action::Trim | Action::Spill) {
            let now = self.stream(record.stream).position();
            self.places.entry(record.stream).or_default().note(record.position, now);
        }
        Ok(())
    }

    fn allocate(&mut self, record: &Record) -> Result<()> {
        let Some(len) = usize::try_from(record.size).ok().and_then(NonZeroUsize::new) else {
            self.report.skipped += 1;
            return Ok(());
        };
        let stream = self.stream(record.stream);
        let Some(raw) = self.try_allocate(len, stream)? else {
            self.report.failures += 1;
            return Ok(());
        };
        self.report.allocations += 1;
        self.asked += len.get() as u64;
        self.report.asked_peak = self.report.asked_peak.max(ByteSize(self.asked));
        let (ptr, id) = (raw.ptr(), record.alloc_id);
        self.live.insert(id, Live { raw, home: record.stream, last: stream.position() });
        if self.watch.peak {
            let before = self.device().driver_calls();
            self.report.peak.note(self.resource)?;
            self.watch.calls += self.device().driver_calls() - before;
        }
        if !self.written_first.contains(&id) {
            self.fill(ptr, len.get().min(TOUCHED_BYTES), stream)?;
        }
        if let Some(live) = self.live.get_mut(&id) {
            live.last = stream.position();
        }
        Ok(())
    }

    fn try_allocate(&mut self, len: NonZeroUsize, stream: &Stream) -> Result<Option<RawAllocation>> {
        let started = self.times.as_ref().map(|_| std::time::Instant::now());
        let allocated = self.resource.allocate(len, stream, Location::caller());
        if let (Some(times), Some(started)) = (&mut self.times, started) {
            times.allocate_ns.push(started.elapsed().as_nanos() as u64);
        }
        match allocated {
            Ok(raw) => return Ok(Some(raw)),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
        }
        // As the engine's pool does.
        self.device().synchronize()?;
        self.resource.trim(ByteSize::ZERO)?;
        match self.resource.allocate(len, stream, Location::caller()) {
            Ok(raw) => {
                self.report.retries += 1;
                Ok(Some(raw))
            }
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, record: &Record) -> Result<()> {
        let Some(live) = self.live.remove(&record.alloc_id) else {
            self.report.skipped += 1;
            return Ok(());
        };
        let stream = self.stream(record.stream);
        if !self.ordered {
            stream.wait_for(live.last)?;
        }
        self.asked -= live.raw.len().get() as u64;
        self.report.frees += 1;
        let started = self.times.as_ref().map(|_| std::time::Instant::now());
        let freed = self.resource.deallocate(live.raw, stream, Location::caller());
        if let (Some(times), Some(started)) = (&mut self.times, started) {
            times.free_ns.push(started.elapsed().as_nanos() as u64);
        }
        freed
    }

    fn touch(&mut self, record: &Record) -> Result<()> {
        let Some(live) = self.live.get(&record.alloc_id) else {
            self.report.skipped += 1;
            return Ok(());
        };
        let (ptr, len) = (live.raw.ptr(), live.raw.len().get());
        let stream = self.stream(record.stream);
        let place = self.stand_in(record.stream);
        let bytes = len.min(TOUCHED_BYTES);
        self.report.uses += 1;
        match record.action {
            Action::UseRead => {
                let scratch = self.player.scratch.as_ref().expect("`prepare` made it");
                let to = scratch.ptr().offset(place * TOUCHED_BYTES);
                let copy = CopyOp::DeviceToDevice { from: ptr, to, len: bytes };
                stream.submit(|driver, on| driver.copy(&copy, on, Location::caller()))?;
            }
            // Each stream writes to its own sector; if the allocation has none for it, only the order is kept.
            Action::UseShare if (place + 1) * SECTOR_BYTES <= len => {
                self.fill(ptr.offset(place * SECTOR_BYTES), SECTOR_BYTES, stream)?;
            }
            Action::UseShare => {}
            _ => self.fill(ptr, bytes, stream)?,
        }
        let last = stream.position();
        if let Some(live) = self.live.get_mut(&record.alloc_id).filter(|live| live.last.stream() == last.stream()) {
            live.last = last;
        }
        Ok(())
    }

    fn fill(&self, ptr: DevicePtr, bytes: usize, stream: &Stream) -> Result<()> {
        stream.submit(|driver, on| driver.fill(ptr, 0, bytes, on, Location::caller())).map(|_| ())
    }

    fn place(&self, stream: u64, logged: u64) -> Position {
        let known = self.places.get(&stream).and_then(|places| places.at(logged));
        known.unwrap_or_else(|| self.stream(stream).position())
    }

    fn wait(&mut self, record: &Record) -> Result<()> {
        self.report.waits += 1;
        let stream = self.stream(record.stream);
        match record.after {
            Some(After::Place { stream: other, position }) => {
                stream.wait_for(self.place(other, position))?;
            }
            Some(After::All) => {
                for other in &self.player.streams {
                    stream.wait_for(other.position())?;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn sync(&mut self, record: &Record) -> Result<()> {
        self.report.syncs += 1;
        match record.after {
            Some(After::Place { stream, position }) => {
                self.stream(stream).event_behind(self.place(stream, position))?.synchronize()
            }
            _ => self.device().synchronize(),
        }
    }

    /// Frees the leftovers of the log, and waits for them.
    fn finish(&mut self) -> Result<()> {
        if self.device().is_lost() {
            self.live.clear();
            return self.device().alive();
        }
        let mut ended = self.device().synchronize();
        let mut left: Vec<(u64, Live)> = self.live.drain().collect();
        left.sort_by_key(|(id, _)| *id);
        for (_, live) in left {
            self.report.left_allocations += 1;
            self.report.left_bytes += ByteSize::from(live.raw.len().get());
            let home = self.stream(live.home);
            ended = ended.and(self.resource.deallocate(live.raw, home, Location::caller()));
        }
        ended.and(self.device().synchronize())
    }
}
