//! Allocation patterns: small models of how programs use an allocator.
//!
//!   loop       one stream: allocate, write, free, wait for the stream; repeat
//!   streams    n streams: allocate, write, hand over to the next stream, which reads and frees
//!   random     random sizes and lifetimes: 73 of 100 calls allocate, the rest free a block, below a cap
//!   query      the log of three TPC-H queries, replayed
//!   sizes      one stream: allocate and free without a wait in between, for one size
//!
//! Fixed      the work of a pass depends only on the plan and the seed, unless a deadline ends it.
//! Origin     the loop of a hundred of S0 and S3; RMM's `random_allocations` and `multi_stream_allocations`.

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use super::samples::Samples;
use crate::device::Device;
use crate::driver::CopyOp;
use crate::error::Result;
use crate::log::LogFile;
use crate::replay::{CallTimes, Footprint, Player};
use crate::resource::{CudaMemoryResource, DeviceMemoryResource, RawAllocation};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Bytes that a pattern writes per allocation, in place of a kernel whose own time is irrelevant.
const WRITTEN_BYTES: usize = 256;

/// Percentage of calls that allocate, as in RMM's benchmark.
const ALLOCATE_PERCENT: u64 = 73;

/// Log of TPC-H's queries 1, 6 and 18 at scale 0.01 on the simulated device, recorded with
/// `millpond run tpch --data DIR --query 1,6,18 --device sim --set millpond.batch_rows=8192 --memory-log query.csv`
/// over the data that `millpond gen tpch --scale 0.01 --out DIR` writes.
const QUERY: &str = include_str!("query.csv");

/// A pattern with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Loop { bytes: usize, laps: u32 },
    Streams { streams: usize, bytes: usize, laps: u32 },
    Random { least: usize, most: usize, cap: u64, calls: u32 },
    Query,
    Sizes { bytes: usize, laps: u32 },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: usize| ByteSize::from(bytes);
        match *self {
            Work::Loop { bytes, .. } | Work::Sizes { bytes, .. } => write!(f, "{}", size(bytes)),
            Work::Streams { streams: 1, bytes, .. } => write!(f, "1 stream, {}", size(bytes)),
            Work::Streams { streams, bytes, .. } => write!(f, "{streams} streams, {}", size(bytes)),
            Work::Random { least, most, cap, .. } => {
                write!(f, "{} to {}, cap {}", size(least), size(most), ByteSize(cap))
            }
            Work::Query => f.write_str("TPC-H queries 1, 6, 18"),
        }
    }
}

/// Measurements of a pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// If false, no clock is read.
    pub(super) timed: bool,
    pub(super) deadline: Option<Instant>,
    /// The peak, if it is tracked.
    pub(super) peak: Option<Footprint>,
    pub(super) allocate: Samples,
    pub(super) free: Samples,
    /// Times of the pattern's own unit: a lap of the loop, a call, a query.
    pub(super) step: Samples,
    pub(super) steps: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) failures: u64,
    /// The deadline has passed.
    pub(super) cut: bool,
}

impl Meter {
    fn clock(&self) -> Option<Instant> {
        self.timed.then(Instant::now)
    }

    fn late(&mut self) -> bool {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.cut |= late;
        late
    }

    pub(super) fn add(&mut self, other: Meter) {
        self.allocate.append(other.allocate);
        self.free.append(other.free);
        self.step.append(other.step);
        self.steps += other.steps;
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.failures += other.failures;
    }

    /// Returns `None` when there is no memory.
    fn allocate(
        &mut self,
        bytes: usize,
        from: &dyn DeviceMemoryResource,
        on: &Stream,
    ) -> Result<Option<RawAllocation>> {
        let len = NonZeroUsize::new(bytes.max(1)).expect("at least one");
        let started = self.clock();
        let allocated = from.allocate(len, on, Location::caller());
        if let Some(started) = started {
            self.allocate.push(nanos(started));
        }
        match allocated {
            Ok(raw) => {
                self.allocations += 1;
                if let Some(Err(error)) = self.peak.as_mut().map(|peak| peak.note(from)) {
                    // The bytes are not used yet.
                    from.deallocate(raw, on, Location::caller())?;
                    return Err(error);
                }
                Ok(Some(raw))
            }
            Err(error) if error.is_out_of_memory() => {
                self.failures += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, raw: RawAllocation, to: &dyn DeviceMemoryResource, on: &Stream) -> Result<()> {
        let started = self.clock();
        to.deallocate(raw, on, Location::caller())?;
        if let Some(started) = started {
            self.free.push(nanos(started));
        }
        self.frees += 1;
        Ok(())
    }

    fn step(&mut self, started: Option<Instant>) {
        self.steps += 1;
        if let Some(started) = started {
            self.step.push(nanos(started));
        }
    }
}

pub(super) fn nanos(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Device and streams of the patterns. Streams are created once, because a device keeps its streams.
pub(super) struct Rig {
    device: Device,
    streams: Vec<Stream>,
    player: Player,
    log: LogFile,
    scratch: Option<RawAllocation>,
    scratch_from: CudaMemoryResource,
    seed: u64,
}

impl Rig {
    pub(super) fn new(device: &Device, seed: u64) -> Result<Self> {
        let log = LogFile::read(QUERY.as_bytes()).expect("the log is ours, and a test reads it");
        Ok(Rig {
            device: device.clone(),
            streams: Vec::new(),
            player: Player::new(device),
            log,
            scratch: None,
            scratch_from: CudaMemoryResource::new(device),
            seed,
        })
    }

    /// Creates the streams that `work` needs.
    pub(super) fn prepare(&mut self, work: Work) -> Result<()> {
        let wanted = match work {
            Work::Streams { streams, .. } => streams.max(1),
            _ => 1,
        };
        while self.streams.len() < wanted {
            self.streams.push(Stream::new(&self.device)?);
            self.give_back()?;
        }
        if self.scratch.is_none() {
            let bytes = NonZeroUsize::new(self.streams.len() * WRITTEN_BYTES).expect("there is a stream");
            self.scratch = Some(self.scratch_from.allocate(bytes, &self.streams[0], Location::caller())?);
        }
        if work == Work::Query {
            self.player.prepare(&self.log)?;
        }
        Ok(())
    }

    fn give_back(&mut self) -> Result<()> {
        match (self.scratch.take(), self.streams.first()) {
            (Some(scratch), Some(first)) => {
                self.device.synchronize()?;
                self.scratch_from.deallocate(scratch, first, Location::caller())
            }
            _ => Ok(()),
        }
    }

    /// Runs one pass of `work`. At its end everything it allocated is freed, and all work has finished.
    pub(super) fn pass(
        &mut self,
        work: Work,
        resource: &Arc<dyn DeviceMemoryResource>,
        meter: &mut Meter,
    ) -> Result<()> {
        match work {
            Work::Loop { bytes, laps } => self.laps(bytes, laps, &**resource, meter),
            Work::Sizes { bytes, laps } => self.sizes(bytes, laps, &**resource, meter),
            Work::Streams { streams, bytes, laps } => self.hand_over(streams, bytes, laps, &**resource, meter),
            Work::Random { least, most, cap, calls } => self.random(least, most, cap, calls, &**resource, meter),
            Work::Query => self.query(resource, meter),
        }
    }

    fn write(&self, raw: &RawAllocation, on: &Stream) -> Result<()> {
        let (ptr, bytes) = (raw.ptr(), raw.len().get().min(WRITTEN_BYTES));
        on.submit(|driver, stream| driver.fill(ptr, 0, bytes, stream, Location::caller())).map(|_| ())
    }

    fn read(&self, raw: &RawAllocation, place: usize, on: &Stream) -> Result<()> {
        let scratch = self.scratch.as_ref().expect("`prepare` made it");
        let (to, len) = (scratch.ptr().offset(place * WRITTEN_BYTES), raw.len().get().min(WRITTEN_BYTES));
        let copy = CopyOp::DeviceToDevice { from: raw.ptr(), to, len };
        on.submit(|driver, stream| driver.copy(&copy, stream, Location::caller())).map(|_| ())
    }

    fn laps(&self, bytes: usize, laps: u32, resource: &dyn DeviceMemoryResource, meter: &mut Meter) -> Result<()> {
        let stream = &self.streams[0];
        for lap in 1..=laps {
            let started = meter.clock();
            if let Some(raw) = meter.allocate(bytes, resource, stream)? {
                let written = self.write(&raw, stream);
                meter.free(raw, resource, stream)?;
                written?;
            }
            stream.synchronize()?;
            meter.step(started);
            if lap < laps && meter.late() {
                break;
            }
        }
        Ok(())
    }

    fn sizes(&self, bytes: usize, laps: u32, resource: &dyn DeviceMemoryResource, meter: &mut Meter) -> Result<()> {
        let stream = &self.streams[0];
        for lap in 1..=laps {
            let started = meter.clock();
            if let Some(raw) = meter.allocate(bytes, resource, stream)? {
                meter.free(raw, resource, stream)?;
            }
            meter.step(started);
            if lap < laps && meter.late() {
                break;
            }
        }
        stream.synchronize()
    }

    fn hand_over(
        &self,
        streams: usize,
        bytes: usize,
        laps: u32,
        resource: &dyn DeviceMemoryResource,
        meter: &mut Meter,
    ) -> Result<()> {
        let streams = &self.streams[..streams.clamp(1, self.streams.len())];
        for lap in 1..=laps {
            let started = meter.clock();
            for (place, stream) in streams.iter().enumerate() {
                let Some(raw) = meter.allocate(bytes, resource, stream)? else { continue };
                let next_place = (place + 1) % streams.len();
                let next = &streams[next_place];
                let handed_over = self.write(&raw, stream).and_then(|()| next.wait_for(stream.position()));
                let Ok(_) = handed_over else {
                    meter.free(raw, resource, stream)?;
                    return handed_over.map(|_| ());
                };
                let read = self.read(&raw, next_place, next);
                meter.free(raw, resource, next)?;
                read?;
            }
            if lap % 16 == 0 || lap == laps {
                for stream in streams {
                    stream.synchronize()?;
                }
            }
            meter.step(started);
            if lap < laps && meter.late() {
                break;
            }
        }
        for stream in streams {
            stream.synchronize()?;
        }
        Ok(())
    }

    fn random(
        &self,
        least: usize,
        most: usize,
        cap: u64,
        calls: u32,
        resource: &dyn DeviceMemoryResource,
        meter: &mut Meter,
    ) -> Result<()> {
        let stream = &self.streams[0];
        let mut chance = Chance(self.seed);
        let (mut live, mut live_bytes) = (Vec::new(), 0u64);
        let mut ended = Ok(());
        for call in 1..=calls {
            let bytes = least + chance.below((most - least) as u64 + 1) as usize;
            let allocate = chance.below(100) < ALLOCATE_PERCENT && live_bytes + bytes as u64 <= cap;
            let pick = chance.next();
            let started = meter.clock();
            let done = if allocate || live.is_empty() {
                meter.allocate(bytes, resource, stream).map(|raw| {
                    live_bytes += raw.as_ref().map_or(0, |raw| raw.len().get() as u64);
                    live.extend(raw);
                })
            } else {
                let raw: RawAllocation = live.swap_remove((pick % live.len() as u64) as usize);
                live_bytes -= raw.len().get() as u64;
                meter.free(raw, resource, stream)
            };
            if done.is_err() {
                ended = done;
                break;
            }
            meter.step(started);
            if call < calls && meter.late() {
                break;
            }
        }
        for raw in live {
            let freed = meter.free(raw, resource, stream);
            ended = ended.and(freed);
        }
        ended.and(stream.synchronize())
    }

    fn query(&mut self, resource: &Arc<dyn DeviceMemoryResource>, meter: &mut Meter) -> Result<()> {
        let mut times = CallTimes::default();
        let started = meter.clock();
        let watch = meter.peak.is_some();
        let report = self.player.play_with(&self.log, resource, watch, meter.timed.then_some(&mut times))?;
        meter.step(started);
        meter.allocate.extend(times.allocate_ns);
        meter.free.extend(times.free_ns);
        meter.allocations += report.allocations;
        meter.frees += report.frees + report.left_allocations;
        meter.failures += report.failures;
        if let Some(peak) = &mut meter.peak {
            *peak = report.peak;
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.give_back() {
            self.device.report(error);
        }
    }
}

/// Pseudorandom numbers, equal for equal seeds (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_splitmix() {
        // First outputs of SplitMix64 for seed 0, from its reference implementation.
        let mut chance = Chance(0);
        assert_eq!([chance.next(), chance.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert!((0..1000).all(|_| chance.below(7) < 7));
    }

    #[test]
    fn the_querys_log_reads_and_frees_what_it_allocates() {
        use crate::log::Action;
        let log = LogFile::read(QUERY.as_bytes()).unwrap();
        let count = |action| log.records.iter().filter(|record| record.action == action).count();
        assert!(log.ordered);
        assert!(count(Action::Allocate) > 30, "{}", count(Action::Allocate));
        assert_eq!(count(Action::Allocate), count(Action::Free));
        assert!(count(Action::UseRead) > 0 && count(Action::UseWrite) > 0);
    }
}
