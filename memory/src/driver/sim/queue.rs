//! Holds submitted work per stream, and decides what runs next.
//!
//! ```text
//!   stream 17   [ upload ][ record e ]                 runnable: upload
//!   stream 18   [ wait e ][ launch ]                   not runnable until `record e` has run
//! ```
//!
//! Lazy       nothing runs until a caller waits or polls; then in any order that the waits allow, chosen by the seed.
//! Progress   the oldest submission is always runnable: a wait only names what was submitted before it.
//! Host       what the host has seen finish is one more clock; every submission is ordered after it.

use super::clock::{Clock, Epoch, Moment};
use super::fault::Random;
use super::launch::QueuedLaunch;
use super::report::Submission;
use super::skip::Read;
use crate::driver::{DevicePtr, DriverCode, HostSpan, PoolHandle, StreamHandle};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What a stream does when its turn comes.
#[derive(Debug)]
pub(super) enum Work {
    Allocate {
        block: u64,
    },
    Free {
        block: u64,
    },
    /// An import is freed.
    Unmap {
        pool: PoolHandle,
        buffer: u64,
        bytes: u64,
    },
    Upload {
        from: HostSpan,
        to: DevicePtr,
    },
    Download {
        from: DevicePtr,
        to: HostSpan,
        /// Where its bytes are kept as well.
        keep: Option<Read>,
    },
    /// A download where launches are skipped: of bytes that an earlier run read.
    Give {
        read: Read,
        to: HostSpan,
    },
    Copy {
        from: DevicePtr,
        to: DevicePtr,
        len: u64,
    },
    Fill {
        ptr: DevicePtr,
        byte: u8,
        len: u64,
    },
    Word {
        word: HostSpan,
        value: u32,
    },
    Launch(Box<QueuedLaunch>),
    /// A launch that never ends.
    Hang,
    /// A launch or a copy that fails on the device, and loses it.
    Fail {
        code: DriverCode,
    },
    /// What is not run where launches are skipped.
    Skipped,
    Wait {
        epoch: Epoch,
    },
    Record,
}

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) moment: Moment,
    pub(super) by: Arc<Submission>,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: StreamHandle,
    pub(super) device: u32,
    /// No other stream ever had or gets it.
    pub(super) serial: u64,
    pub(super) submitted: u64,
    pub(super) finished: u64,
    /// The last free that was submitted.
    pub(super) last_free: u64,
    /// Number of consecutive queries that returned "not ready".
    pub(super) patience: u32,
    seen: Arc<Clock>,
    host_version: u64,
    pending: VecDeque<Queued>,
    open: bool,
}

/// All streams of a driver.
#[derive(Debug, Default)]
pub(super) struct Queues {
    lanes: Vec<Lane>,
    by_stream: HashMap<StreamHandle, u32>,
    opened: u64,
    host: Clock,
    host_version: u64,
}

impl Queues {
    pub(super) fn open(&mut self, device: u32, stream: StreamHandle) {
        let over = |(index, lane): (usize, &Lane)| {
            !lane.open && lane.pending.is_empty() && self.host.get(index as u32) >= lane.submitted
        };
        let reusable = self.lanes.iter().enumerate().position(over);
        self.opened += 1;
        let serial = self.opened;
        let lane = match reusable {
            Some(index) => {
                let lane = &mut self.lanes[index];
                (lane.stream, lane.device, lane.open, lane.patience) = (stream, device, true, 0);
                lane.serial = serial;
                lane.seen = Arc::default();
                lane.host_version = 0;
                index
            }
            None => {
                self.lanes.push(Lane {
                    stream,
                    device,
                    serial,
                    submitted: 0,
                    finished: 0,
                    last_free: 0,
                    patience: 0,
                    seen: Arc::default(),
                    host_version: 0,
                    pending: VecDeque::new(),
                    open: true,
                });
                self.lanes.len() - 1
            }
        };
        self.by_stream.insert(stream, lane as u32);
    }

    /// Ends a stream. What it still holds will run.
    pub(super) fn close(&mut self, lane: u32) {
        let lane = &mut self.lanes[lane as usize];
        lane.open = false;
        self.by_stream.remove(&lane.stream);
    }

    pub(super) fn lane_of(&self, stream: StreamHandle) -> Option<u32> {
        self.by_stream.get(&stream).copied()
    }

    pub(super) fn lane(&self, lane: u32) -> &Lane {
        &self.lanes[lane as usize]
    }

    pub(super) fn lane_mut(&mut self, lane: u32) -> &mut Lane {
        &mut self.lanes[lane as usize]
    }

    pub(super) fn lanes_of(&self, device: u32) -> Vec<u32> {
        (0..self.lanes.len() as u32).filter(|&lane| self.lanes[lane as usize].device == device).collect()
    }

    pub(super) fn all_lanes(&self) -> Vec<u32> {
        (0..self.lanes.len() as u32).collect()
    }

    /// Where the next submission to a lane will stand.
    pub(super) fn next_moment(&mut self, lane: u32) -> Moment {
        let queue = &mut self.lanes[lane as usize];
        if queue.host_version != self.host_version {
            queue.host_version = self.host_version;
            let mut seen = (*queue.seen).clone();
            if seen.join(&self.host) {
                queue.seen = Arc::new(seen);
            }
        }
        Moment { epoch: Epoch { lane, seq: queue.submitted + 1 }, seen: queue.seen.clone() }
    }

    /// Adds work at the moment that [`Self::next_moment`] returned.
    pub(super) fn push(&mut self, queued: Queued) {
        let lane = &mut self.lanes[queued.moment.epoch.lane as usize];
        debug_assert_eq!(lane.submitted + 1, queued.moment.epoch.seq);
        lane.submitted += 1;
        if matches!(queued.work, Work::Free { .. } | Work::Unmap { .. }) {
            lane.last_free = lane.submitted;
        }
        lane.pending.push_back(queued);
    }

    /// Whether an order of `lane` after `record` says more than there is already.
    pub(super) fn is_news(&self, lane: u32, record: &Moment) -> bool {
        let mut seen = (*self.lanes[lane as usize].seen).clone();
        // What the host has seen finish is before every submission.
        seen.join(&self.host);
        record.epoch.lane != lane && seen.join(&record.knowledge())
    }

    /// Puts a failure in the place of what was submitted to `lane` last.
    pub(super) fn fail_last(&mut self, lane: u32, code: DriverCode) {
        if let Some(last) = self.lanes[lane as usize].pending.back_mut() {
            last.work = Work::Fail { code };
        }
    }

    /// Orders everything that is submitted to `lane` from now on after `record`.
    pub(super) fn order_after(&mut self, lane: u32, record: &Moment) {
        let queue = &mut self.lanes[lane as usize];
        let mut seen = (*queue.seen).clone();
        if seen.join(&record.knowledge()) {
            queue.seen = Arc::new(seen);
        }
    }

    /// The last submission of a lane, as something to wait for; `None` if there never was one.
    pub(super) fn last(&self, lane: u32) -> Option<Moment> {
        let queue = &self.lanes[lane as usize];
        (queue.submitted > 0).then(|| Moment { epoch: Epoch { lane, seq: queue.submitted }, seen: queue.seen.clone() })
    }

    pub(super) fn has_finished(&self, epoch: Epoch) -> bool {
        self.lanes[epoch.lane as usize].finished >= epoch.seq
    }

    pub(super) fn pending_in(&self, lane: u32) -> usize {
        self.lanes[lane as usize].pending.len()
    }

    pub(super) fn pending(&self, lane: u32) -> impl Iterator<Item = &Queued> {
        self.lanes[lane as usize].pending.iter()
    }

    /// What the host knows to be over.
    pub(super) fn host(&self) -> &Clock {
        &self.host
    }

    /// The host has seen `moment` finish, and all that came before it.
    pub(super) fn host_saw(&mut self, moment: &Moment) {
        let news = self.host.join(&moment.seen) | self.host.advance(moment.epoch);
        self.host_version += u64::from(news);
    }

    fn blocked_by(&self, lane: u32) -> Option<Epoch> {
        match self.lanes[lane as usize].pending.front() {
            Some(Queued { work: Work::Wait { epoch }, .. }) if !self.has_finished(*epoch) => Some(*epoch),
            _ => None,
        }
    }

    fn hangs(&self, lane: u32) -> bool {
        matches!(self.lanes[lane as usize].pending.front(), Some(Queued { work: Work::Hang, .. }))
    }

    /// The lane that must move for `target` to get nearer.
    fn needed_for(&self, target: Epoch) -> u32 {
        let mut lane = target.lane;
        while let Some(epoch) = self.blocked_by(lane) {
            lane = epoch.lane;
        }
        lane
    }

    /// Takes the next work to run: what `target` needs, or anything that may run. `None` when nothing is left, or all
    /// that is hangs.
    pub(super) fn take_next(&mut self, random: &mut Random, target: Option<Epoch>) -> Option<Queued> {
        let lane = match target {
            Some(target) => self.needed_for(target),
            None => {
                let runnable = |lane: &u32| {
                    let waits = self.blocked_by(*lane).is_some() || self.hangs(*lane);
                    !self.lanes[*lane as usize].pending.is_empty() && !waits
                };
                let count = (0..self.lanes.len() as u32).filter(runnable).count() as u64;
                if count == 0 {
                    return None;
                }
                let nth = random.below(count) as usize;
                (0..self.lanes.len() as u32).filter(runnable).nth(nth)?
            }
        };
        if self.hangs(lane) { None } else { self.lanes[lane as usize].pending.pop_front() }
    }

    /// Takes what a lane would do next, if that takes no time: a record, or a wait for what has run.
    pub(super) fn take_instant(&mut self, lane: u32) -> Option<Queued> {
        let instant = matches!(self.pending(lane).next()?.work, Work::Wait { .. } | Work::Record);
        if instant && self.blocked_by(lane).is_none() { self.lanes[lane as usize].pending.pop_front() } else { None }
    }

    /// Takes the launch that a lane would run next, if there is one, and `may` says so of its moment.
    pub(super) fn take_launch(&mut self, lane: u32, may: impl Fn(&Moment) -> bool) -> Option<Queued> {
        let next = self.pending(lane).next()?;
        let is_launch = matches!(next.work, Work::Launch(_)) && may(&next.moment);
        if is_launch { self.lanes[lane as usize].pending.pop_front() } else { None }
    }

    /// Notes that work has run.
    pub(super) fn finish(&mut self, epoch: Epoch) {
        self.lanes[epoch.lane as usize].finished = epoch.seq;
    }

    /// Drops everything that a device still had to do.
    pub(super) fn abandon(&mut self, device: u32) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.device == device) {
            lane.pending.clear();
            lane.finished = lane.submitted;
        }
    }
}
