//! Runs launches, by themselves or at the same time, and holds each to what it declared.
//!
//!   stream 17   [ launch ]  ──┐
//!   stream 18   [ launch ]  ──┴─►  one machine: blocks of both take turns      unordered, and the seed chose overlap
//!   stream 19   [ wait ][ launch ]                                            left alone: its wait is not over
//!
//! Overlap     a launch takes along others that may run now. Alone it runs where blocks are not shuffled, and where
//!             what the host reads is kept or given.
//! Conflicts   plain touches of two launches are compared per sector when they have run, as if they had not overlapped.
//! Counts      are per launch, and so are faults: a kernel that faults loses the device for all kernels.

use super::clock::Moment;
use super::fault::Random;
use super::heap::Origin;
use super::launch::QueuedLaunch;
use super::order::{Classes, Run, SECTOR_BYTES, Touch, merge_runs};
use super::queue::{Queued, Work};
use super::report::Submission;
use super::state::State;
use crate::driver::{Access, DeclaredAccess, DevicePtr, DriverCode, FindingKind, LaunchFigures};
use millpond_ptx::interpret::{self, Fault, FaultKind, Footprint, Running, SectorSet};
use std::sync::Arc;

/// Launches that run at the same time, at most.
const MOST_TOGETHER: usize = 4;

/// A launch whose time has come.
pub(super) struct Started {
    pub(super) moment: Moment,
    pub(super) by: Arc<Submission>,
    pub(super) launch: Box<QueuedLaunch>,
}

impl State {
    /// Runs a launch, and by its seed others beside it.
    pub(super) fn execute_launch(&mut self, device: u32, first: Started) {
        let mut started = vec![first];
        self.join_others(device, &mut started);
        let (shape, multiprocessors) = (self.options.shape, self.options.multiprocessors);
        let options = interpret::Options {
            seed: started[0].launch.seed,
            max_warp_instructions: self.options.max_warp_instructions,
            multiprocessors,
            max_shared_bytes: shape.shared_bytes_per_block_optin,
            checks: self.options.checks,
            ..interpret::Options::default()
        };
        let running: Vec<Running<'_>> =
            started.iter().map(|started| started.launch.running(shape, multiprocessors)).collect();
        match interpret::run_together(&running, &mut self.memory.heap, &options) {
            Ok(reports) => {
                for (started, report) in started.iter().zip(&reports) {
                    self.note_launch(device, started, report);
                }
            }
            Err((index, fault)) => self.report_fault(device, &started[index].by, &fault),
        }
        if self.devices[device as usize].lost.is_none() {
            started.iter().for_each(|started| self.queues.finish(started.moment.epoch));
        }
    }

    /// Takes along launches that other lanes of the device would run next: their seed draws which.
    fn join_others(&mut self, device: u32, started: &mut Vec<Started>) {
        let first = &started[0];
        let Some(seed) = first.launch.seed.filter(|_| self.launches.may_overlap()) else { return };
        let mut random = Random::new(!seed);
        let own_lane = first.moment.epoch.lane;
        for lane in self.queues.lanes_of(device) {
            if lane == own_lane || started.len() == MOST_TOGETHER || random.coin() {
                continue;
            }
            while let Some(queued) = self.queues.take_instant(lane) {
                self.execute(queued);
            }
            let unordered = |moment: &Moment| !started.iter().any(|started| moment.is_after(started.moment.epoch));
            if let Some(Queued { moment, by, work: Work::Launch(launch) }) = self.queues.take_launch(lane, unordered) {
                started.push(Started { moment, by, launch });
            }
        }
    }

    /// Counts a launch that has run, and checks what it touched.
    fn note_launch(&mut self, device: u32, started: &Started, report: &interpret::Report) {
        let Started { moment, by, launch } = started;
        self.counters.warp_instructions += report.warp_instructions;
        self.counters.lane_instructions += report.lane_instructions;
        if let Some(figures) = &launch.figures {
            // Set once: a launch runs once.
            let _ = figures.set(figures_of(report));
        }
        let lines = report.footprints.iter().filter_map(|footprint| {
            let line = |step: Option<u32>| launch.loaded.image.line_of(step?);
            Some((self.memory.on_device(footprint.base)?.label.id, footprint.first_steps.map(line)))
        });
        // Set once: a submission runs once.
        let _ = by.lines.set(lines.collect());
        for footprint in &report.footprints {
            let Some(buffer) = self.memory.on_device(footprint.base) else { continue };
            let (label, origin, owner) = (buffer.label.clone(), buffer.origin, buffer.device);
            let runs = merge_runs(&footprint.reads.runs(), &footprint.writes.runs(), &footprint.atomics.runs());
            if self.is_shut_out(device, origin) {
                let user = self.device_id(device);
                let message = format!("{by} on {user} touches {label} on the host, to which it has no access");
                self.reports.add(FindingKind::OutOfBounds, label.id, Some(by), None, message.clone());
                return self.lose(device, DriverCode::ILLEGAL_ADDRESS, message);
            }
            if owner != device && !self.reaches(device, owner, origin, label.id, by.number) {
                let (user, home) = (self.device_id(device), self.device_id(owner));
                let whose = if self.process_of(device) == self.process_of(owner) { "" } else { " and another process" };
                let message = format!("{by} on {user} touches {label} of {home}{whose}, to which it has no access");
                self.reports.add(FindingKind::OutOfBounds, label.id, Some(by), None, message.clone());
                return self.lose(device, DriverCode::ILLEGAL_ADDRESS, message);
            }
            if self.options.must_declare
                && origin != Origin::Module
                && let Some(run) = first_undeclared(&runs, &declared_ranges(&launch.accesses, label.base, label.len))
            {
                let start = u64::from(run.start) * SECTOR_BYTES;
                let end = (u64::from(run.end) * SECTOR_BYTES).min(label.len);
                let (verb, touch) = match () {
                    () if run.classes.has(Classes::WRITE) => ("writes", Touch::Write),
                    () if run.classes.has(Classes::ATOMIC) => ("changes atomically", Touch::Atomic),
                    () => ("reads", Touch::Read),
                };
                let message = format!("{by} {verb} bytes {start}..{end} of {label} without having declared it");
                let line = by.line(label.id, touch);
                if let Some(finding) = self.reports.add(FindingKind::Undeclared, label.id, Some(by), None, message) {
                    finding.ptx_line = line;
                }
            }
            self.touch_buffer(label.id, moment, by, &runs);
        }
    }

    /// A kernel could not go on. The device is lost with it, as it would be on CUDA, or should be.
    fn report_fault(&mut self, device: u32, by: &Arc<Submission>, fault: &Fault) {
        let (kind, code) = match fault.kind {
            FaultKind::OutOfBounds => (FindingKind::OutOfBounds, DriverCode::ILLEGAL_ADDRESS),
            FaultKind::Misaligned => (FindingKind::Misaligned, DriverCode::MISALIGNED_ADDRESS),
            FaultKind::Uninitialised => (FindingKind::Uninitialised, DriverCode::LAUNCH_FAILED),
            FaultKind::ReadOnly => (FindingKind::Fault, DriverCode::INVALID_ADDRESS_SPACE),
            FaultKind::SharedRace => (FindingKind::SharedRace, DriverCode::LAUNCH_FAILED),
            FaultKind::GlobalRace => (FindingKind::GlobalRace, DriverCode::LAUNCH_FAILED),
            FaultKind::Deadlock | FaultKind::Runaway => (FindingKind::Fault, DriverCode::LAUNCH_TIMEOUT),
            FaultKind::Call => (FindingKind::Fault, DriverCode::HARDWARE_STACK_ERROR),
            _ => (FindingKind::Fault, DriverCode::LAUNCH_FAILED),
        };
        let mut text = fault.to_string();
        if let Some(buffer) = fault.allocation.and_then(|near| self.memory.on_device(near.base)) {
            text.push_str(&format!("\n  near {}", buffer.label));
        }
        // The finding says the kind by itself.
        let said = text.strip_prefix(fault.kind.name()).map_or(text.as_str(), |rest| rest.trim_start_matches(": "));
        let said = said.to_owned();
        // An address that was freed, or whose allocation has not run, tells more than "out of bounds".
        let explained = match fault.address {
            Some(address) if kind == FindingKind::OutOfBounds && self.memory.on_device(address).is_none() => {
                self.memory.formerly(address).is_some()
                    || self.memory.in_program(DevicePtr(address)).is_some_and(|buffer| buffer.allocated.is_some())
            }
            _ => false,
        };
        if explained {
            self.missing(by, fault.address.unwrap_or_default(), 1);
        } else if let Some(finding) = self.reports.add(kind, 0, Some(by), None, said) {
            finding.ptx_line = (fault.line > 0).then_some(fault.line);
        }
        self.lose(device, code, text);
    }
}

fn figures_of(report: &interpret::Report) -> LaunchFigures {
    let sectors =
        |of: fn(&Footprint) -> &SectorSet| report.footprints.iter().map(|footprint| of(footprint).len()).sum();
    LaunchFigures {
        warp_instructions: report.warp_instructions,
        lane_instructions: report.lane_instructions,
        sectors_read: sectors(|footprint| &footprint.reads),
        sectors_written: sectors(|footprint| &footprint.writes),
        sectors_atomic: sectors(|footprint| &footprint.atomics),
    }
}

/// The declared ranges that lie in a buffer, in sectors, with what they allow.
fn declared_ranges(accesses: &[DeclaredAccess], base: u64, len: u64) -> Vec<Run> {
    let all = Classes::READ.with(Classes::WRITE).with(Classes::ATOMIC);
    accesses
        .iter()
        .filter(|access| access.ptr.0 < base + len && access.ptr.0 + access.len as u64 > base)
        .map(|access| {
            let start = access.ptr.0.saturating_sub(base);
            let end = (access.ptr.0 + access.len as u64).min(base + len) - base;
            let classes = if access.access == Access::Read { Classes::READ } else { all };
            super::order::run_over(start, end - start, classes)
        })
        .collect()
}

/// The first sectors that are touched otherwise than declared.
fn first_undeclared(runs: &[Run], declared: &[Run]) -> Option<Run> {
    let class_is_open = |run: &Run, class: Classes| {
        if !run.classes.has(class) {
            return None;
        }
        let mut allowed: Vec<&Run> = declared.iter().filter(|range| range.classes.has(class)).collect();
        allowed.sort_unstable_by_key(|range| range.start);
        let mut at = run.start;
        for range in allowed {
            if range.start > at {
                break;
            }
            at = at.max(range.end);
        }
        (at < run.end).then_some(Run { start: at, end: run.end, classes: class })
    };
    // Nearly every launch declares whole buffers for all that it does there.
    runs.iter().find_map(|run| {
        if declared
            .iter()
            .any(|range| range.start <= run.start && range.end >= run.end && range.classes.covers(run.classes))
        {
            return None;
        }
        [Classes::WRITE, Classes::ATOMIC, Classes::READ].into_iter().find_map(|class| class_is_open(run, class))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, end: u32, classes: Classes) -> Run {
        Run { start, end, classes }
    }

    #[test]
    fn touches_must_lie_in_ranges_that_allow_them() {
        let all = Classes::READ.with(Classes::WRITE).with(Classes::ATOMIC);
        let declared = [run(10, 20, Classes::READ), run(20, 30, all), run(4, 12, Classes::READ)];
        assert_eq!(first_undeclared(&[run(4, 30, Classes::READ)], &declared), None);
        assert_eq!(first_undeclared(&[run(20, 30, all)], &declared), None);
        assert_eq!(
            first_undeclared(&[run(4, 32, Classes::READ)], &declared),
            Some(run(30, 32, Classes::READ)),
            "past the end"
        );
        assert_eq!(
            first_undeclared(&[run(18, 22, Classes::WRITE)], &declared),
            Some(run(18, 22, Classes::WRITE)),
            "a write where only reading is allowed"
        );
        assert_eq!(first_undeclared(&[run(0, 1, Classes::ATOMIC)], &[]), Some(run(0, 1, Classes::ATOMIC)));
    }

    #[test]
    fn declarations_are_cut_to_the_buffer() {
        let access = |ptr, len, access| DeclaredAccess { ptr: DevicePtr(ptr), len, access };
        let accesses = [access(96, 64, Access::Read), access(128, 32, Access::Write), access(4096, 8, Access::Write)];
        let ranges = declared_ranges(&accesses, 128, 64);
        let all = Classes::READ.with(Classes::WRITE).with(Classes::ATOMIC);
        assert_eq!(ranges, [run(0, 1, Classes::READ), run(0, 1, all)]);
    }
}
