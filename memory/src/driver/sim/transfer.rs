//! Copies, fills and words: refuses what cannot be, notes who touches which pinned bytes, and queues the rest.
//!
//!   copy ─► both ends exist in program order? ─► pinned end: ordered against host and other copies? ─► queue
//!
//! Device ends    are checked again, per sector, when the copy runs.
//! Pinned ends    are checked here, in program order, for the host does not queue.

use super::capture::Node;
use super::clock::Moment;
use super::order::Classes;
use super::queue::Work;
use super::report::{Submission, What};
use super::skip::Download;
use super::state::{State, refuse};
use crate::driver::{
    Access, CopyOp, DevicePtr, DriverCode, FindingKind, HostBlock, HostSpan, Result, Site, StreamHandle,
};
use std::sync::Arc;

impl State {
    /// The number of the buffer that holds these device bytes in program order, or a finding and an error.
    fn device_range(&mut self, call: &'static str, ptr: DevicePtr, len: u64, site: Site) -> Result<u64> {
        let (kind, id, message) = match self.memory.in_program(ptr) {
            Some(buffer) => {
                let offset = ptr.0 - buffer.label.base;
                if len <= buffer.label.len - offset {
                    return Ok(buffer.label.id);
                }
                let message = format!("{call} touches bytes {offset}..{} of {}", offset + len, buffer.label);
                (FindingKind::OutOfBounds, buffer.label.id, message)
            }
            None => match self.memory.formerly(ptr.0) {
                Some((label, _)) => {
                    (FindingKind::UseAfterFree, label.id, format!("{call} uses {label} after its free"))
                }
                None => (FindingKind::OutOfBounds, ptr.0, format!("{call}: nothing is allocated at {ptr:?}")),
            },
        };
        if let Some(finding) = self.reports.add(kind, id, None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    fn host_range(&mut self, call: &'static str, span: &HostSpan, site: Site) -> Result<()> {
        if self.host.contains(span.block()) {
            return Ok(());
        }
        let message = format!("{call}: {:?} is not pinned memory of this driver (any more)", span.block());
        if let Some(finding) = self.reports.add(FindingKind::Handle, span.block().id(), None, None, message.clone()) {
            finding.site = Some(site);
        }
        refuse(call, DriverCode::INVALID_VALUE, message)
    }

    pub(super) fn copy(&mut self, copy: &CopyOp, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemcpyAsync";
        let lane = self.lane(CALL, stream)?;
        let len = copy.len() as u64;
        if len == 0 {
            return Ok(());
        }
        if let Some(done) = self.captured(CALL, lane, || Node::Copy { copy: copy.clone(), site }) {
            return done;
        }
        let (what, ends, host, work) = match copy {
            CopyOp::HostToDevice { from, to } => {
                self.host_range(CALL, from, site)?;
                let work = Work::Upload { from: from.clone(), to: *to };
                self.counters.uploaded_bytes += len;
                (What::Upload, vec![self.device_range(CALL, *to, len, site)?], Some((from, Classes::READ)), work)
            }
            CopyOp::DeviceToHost { from, to } => {
                self.host_range(CALL, to, site)?;
                let work = match self.downloads(CALL, len, site)? {
                    Download::Run => Work::Download { from: *from, to: to.clone(), keep: None },
                    Download::Keep(read) => Work::Download { from: *from, to: to.clone(), keep: Some(read) },
                    Download::Give(read) => Work::Give { read, to: to.clone() },
                };
                self.counters.downloaded_bytes += len;
                (What::Download, vec![self.device_range(CALL, *from, len, site)?], Some((to, Classes::WRITE)), work)
            }
            CopyOp::DeviceToDevice { from, to, .. } => {
                if from.0 < to.0 + len && to.0 < from.0 + len {
                    let detail = format!("{len} bytes at {from:?} and {to:?} overlap");
                    return refuse(CALL, DriverCode::INVALID_VALUE, detail);
                }
                let ends = vec![self.device_range(CALL, *from, len, site)?, self.device_range(CALL, *to, len, site)?];
                self.counters.copied_bytes += len;
                (What::Copy, ends, None, Work::Copy { from: *from, to: *to, len })
            }
            CopyOp::Peer { from, from_device, to, to_device, .. } => {
                let ends = vec![self.device_range(CALL, *from, len, site)?, self.device_range(CALL, *to, len, site)?];
                for (&id, device) in ends.iter().zip([*from_device, *to_device]) {
                    self.usable(CALL, device)?;
                    let home = self.memory.get(id).map(|buffer| self.device_id(buffer.device));
                    if home != Some(device) {
                        let detail = format!("{device} is named as the place of memory that lies elsewhere");
                        return refuse(CALL, DriverCode::INVALID_VALUE, detail);
                    }
                }
                self.counters.copied_bytes += len;
                (What::Copy, ends, None, Work::Copy { from: *from, to: *to, len })
            }
        };
        let context = self.queues.lane(lane).device;
        let staged = matches!(copy, CopyOp::Peer { .. });
        ends.iter().try_for_each(|&id| self.may_use(CALL, context, id, staged, site))?;
        self.counters.copies += 1;
        let (moment, by) = self.prepare(lane, what, Some(site));
        for id in ends {
            self.name_ordered(id, &moment, &by);
        }
        if let Some((span, classes)) = host {
            let conflicts = self.host.touch(span, classes, &moment, &by);
            self.unordered_host_access(span, &by, &conflicts);
        }
        let moves = !self.launches.are_skipped() || matches!(work, Work::Give { .. });
        self.push(moment, by, if moves { work } else { Work::Skipped });
        Ok(())
    }

    /// Notes that a submission names a buffer, which must have been allocated before it.
    fn name_ordered(&mut self, id: u64, moment: &Moment, by: &Arc<Submission>) {
        self.memory.name(id, by);
        if let Some(buffer) = self.memory.get(id)
            && let Some(allocated) = buffer.allocated.clone()
        {
            let label = buffer.label.clone();
            self.check_begun(&label, &allocated, moment, by);
        }
    }

    pub(super) fn fill(&mut self, ptr: DevicePtr, byte: u8, len: u64, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuMemsetD8Async";
        let lane = self.lane(CALL, stream)?;
        if len == 0 {
            return Ok(());
        }
        if let Some(done) = self.captured(CALL, lane, || Node::Fill { ptr, byte, len, site }) {
            return done;
        }
        let id = self.device_range(CALL, ptr, len, site)?;
        self.may_use(CALL, self.queues.lane(lane).device, id, false, site)?;
        self.counters.fills += 1;
        let (moment, by) = self.prepare(lane, What::Fill, Some(site));
        self.name_ordered(id, &moment, &by);
        let skipped = self.launches.are_skipped();
        self.push(moment, by, if skipped { Work::Skipped } else { Work::Fill { ptr, byte, len } });
        Ok(())
    }

    pub(super) fn write_word(&mut self, word: &HostSpan, value: u32, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuStreamWriteValue32";
        let lane = self.lane(CALL, stream)?;
        if !self.options.stream_memory_operations {
            return refuse(CALL, DriverCode::NOT_SUPPORTED, "StreamMemoryOperations is 0");
        }
        if word.len() != 4 || !word.offset().is_multiple_of(4) {
            let detail = format!("a word has 4 bytes at a multiple of 4, not {} at {}", word.len(), word.offset());
            return refuse(CALL, DriverCode::INVALID_VALUE, detail);
        }
        self.host_range(CALL, word, site)?;
        if let Some(done) = self.captured(CALL, lane, || Node::Word { word: word.clone(), value, site }) {
            return done;
        }
        let (moment, by) = self.prepare(lane, What::Word, Some(site));
        let conflicts = self.host.touch(word, Classes::ATOMIC, &moment, &by);
        self.unordered_host_access(word, &by, &conflicts);
        let Self { host, queues, .. } = self;
        host.word_submitted(word, &moment, &|epoch| queues.has_finished(epoch));
        self.push(moment, by, Work::Word { word: word.clone(), value });
        Ok(())
    }

    pub(super) fn host_access(&mut self, span: &HostSpan, access: Access, site: Site) {
        if access == Access::Atomic {
            let Self { host, queues, .. } = self;
            match host.words_seen(span, &|epoch| queues.has_finished(epoch)) {
                Ok(seen) => seen.iter().for_each(|moment| self.queues.host_saw(moment)),
                Err(Some((moment, patience))) => {
                    self.poll(&moment, patience);
                }
                Err(None) => {}
            }
        }
        let verb = match access {
            Access::Read => "reads",
            Access::Write | Access::ReadWrite => "writes",
            Access::Atomic => "looks at words of",
        };
        self.check_host(span, access, site, verb);
    }

    fn check_host(&mut self, span: &HostSpan, access: Access, site: Site, verb: &str) {
        let Self { host, queues, reports, .. } = self;
        let block = span.block();
        for conflict in host.disturbed(span, access, &|epoch| queues.host().has_passed(epoch)) {
            let message = format!("the host {verb} {block:?} without having waited for {}", conflict.other);
            let finding = reports.add(FindingKind::HostRace, block.id(), None, Some(&conflict.other), message);
            if let Some(finding) = finding {
                finding.site = Some(site);
            }
        }
    }

    pub(super) fn host_free(&mut self, block: &Arc<HostBlock>, site: Site) -> Result<()> {
        const CALL: &str = "cuMemFreeHost";
        self.unsafe_under_capture(CALL)?;
        let Ok(span) = HostSpan::new(block, 0, block.len()) else {
            return refuse(CALL, DriverCode::INVALID_VALUE, format!("{block:?}"));
        };
        self.host_range(CALL, &span, site)?;
        self.check_host(&span, Access::Write, site, "frees");
        self.host.remove(block);
        self.faults.pinned_freed();
        Ok(())
    }
}
