//! Runs one queued operation, and checks what it touches.
//!
//!   operation ─► is the buffer live, begun and not yet freed for it? ─► are earlier touches of these sectors
//!             ordered before it? ─► bytes move
//!
//! Findings    never stop a copy or a fill that can be done. A kernel that faults loses the device, as on CUDA.
//! Order       the pair is reported as "later in program order" and "earlier", whichever of the two ran first.

use super::clock::Moment;
use super::heap::{Label, Origin};
use super::order::{Classes, Conflict, Run, SECTOR_BYTES, Touch, run_over};
use super::queue::{Queued, Work};
use super::report::Submission;
use super::run::Started;
use super::state::State;
use crate::driver::{FindingKind, HostSpan};
use std::sync::Arc;

impl State {
    pub(super) fn execute(&mut self, queued: Queued) {
        let Queued { moment, by, work } = queued;
        let device = self.queues.lane(moment.epoch.lane).device;
        match work {
            Work::Launch(launch) => return self.execute_launch(device, Started { moment, by, launch }),
            Work::Wait { .. } | Work::Record | Work::Hang | Work::Skipped => {}
            Work::Fail { code } => self.lose(device, code, format!("{by} failed on order")),
            Work::Allocate { block } => {
                if let Err(error) = self.memory.begin(block) {
                    self.reports.add(FindingKind::Fault, block, Some(&by), None, format!("{by}: {error}"));
                }
            }
            Work::Free { block } => self.execute_free(block, &moment, &by),
            Work::Unmap { pool, buffer, bytes } => self.execute_unmap((pool, buffer, bytes), &moment, &by),
            Work::Upload { from, to } => {
                if self.touch(&moment, &by, to.0, from.len() as u64, Classes::WRITE) {
                    let mut bytes = vec![0; from.len()];
                    self.host_bytes(&by, &from, |from| from.block().copy_out(from.offset(), &mut bytes));
                    self.heap_result(&by, |heap| heap.write(to.0, &bytes));
                }
            }
            Work::Give { read, to } => {
                // The run that was kept has ended, so its downloads have run.
                if let Some(bytes) = read.get() {
                    self.host_bytes(&by, &to, |to| to.block().copy_in(to.offset(), bytes));
                }
            }
            Work::Download { from, to, keep } => {
                if self.touch(&moment, &by, from.0, to.len() as u64, Classes::READ) {
                    self.check_written(&by, from.0, to.len() as u64);
                    let bytes = self.memory.heap.bytes(from.0, to.len() as u64).map(<[u8]>::to_vec);
                    if let Ok(bytes) = bytes {
                        self.host_bytes(&by, &to, |to| to.block().copy_in(to.offset(), &bytes));
                        if let Some(read) = keep {
                            // Each download runs once.
                            let _ = read.set(bytes.into());
                        }
                    }
                }
            }
            Work::Copy { from, to, len } => {
                let readable = self.touch(&moment, &by, from.0, len, Classes::READ);
                if self.touch(&moment, &by, to.0, len, Classes::WRITE) && readable {
                    self.heap_result(&by, |heap| heap.copy(to.0, from.0, len));
                }
            }
            Work::Fill { ptr, byte, len } => {
                if self.touch(&moment, &by, ptr.0, len, Classes::WRITE) {
                    self.heap_result(&by, |heap| heap.set(ptr.0, &[byte], len));
                }
            }
            Work::Word { word, value } => {
                self.host_bytes(&by, &word, |word| word.block().store_word(word.offset(), value));
            }
        }
        // Who has lost the device has abandoned its lanes, and everything there counts as over.
        if self.devices[device as usize].lost.is_none() {
            self.queues.finish(moment.epoch);
        }
    }

    fn execute_free(&mut self, id: u64, moment: &Moment, by: &Arc<Submission>) {
        let Some(buffer) = self.memory.get(id) else { return };
        let label = buffer.label.clone();
        for conflict in buffer.shadow.unfinished(&|epoch| moment.is_after(epoch)) {
            self.unordered_free(&label, by, &conflict.other);
        }
        let Some(buffer) = self.memory.end(id) else { return };
        match buffer.origin {
            Origin::Pool(pool) => {
                if let Some(pool) = self.pools.get_mut(&pool) {
                    let len = label.len.next_multiple_of(super::pool::BLOCK_BYTES);
                    pool.free_has_run(label.base, len);
                }
                self.drop_closed_pools();
            }
            Origin::Device | Origin::Module => {
                let bytes = label.len.next_multiple_of(super::pool::BLOCK_BYTES);
                self.devices[buffer.device as usize].used_bytes -= bytes;
            }
        }
    }

    fn heap_result(
        &mut self,
        by: &Arc<Submission>,
        change: impl FnOnce(&mut millpond_ptx::interpret::Heap) -> Result<(), millpond_ptx::interpret::HeapError>,
    ) {
        if let Err(error) = change(&mut self.memory.heap) {
            self.reports.add(FindingKind::OutOfBounds, 0, Some(by), None, format!("{by}: {error}"));
        }
    }

    /// Moves bytes of pinned memory; a guard that the host holds meanwhile is a race.
    fn host_bytes(
        &mut self,
        by: &Arc<Submission>,
        span: &HostSpan,
        change: impl FnOnce(&HostSpan) -> Result<(), crate::error::MemoryError>,
    ) {
        if let Err(error) = change(span) {
            let block = span.block();
            let message = format!("{by} meets the host in {block:?}: {error}");
            self.reports.add(FindingKind::HostRace, block.id(), Some(by), None, message);
        }
    }

    /// Reports a download of bytes that were never written.
    fn check_written(&mut self, by: &Arc<Submission>, address: u64, len: u64) {
        if !self.options.checks.initialised {
            return;
        }
        if let Ok(Some(first)) = self.memory.heap.first_uninitialised(address, len)
            && let Some(buffer) = self.memory.on_device(first)
        {
            let offset = first - buffer.label.base;
            let message = format!("{by} reads byte {offset} of {}, which nothing wrote", buffer.label);
            let id = buffer.label.id;
            self.reports.add(FindingKind::Uninitialised, id, Some(by), None, message);
        }
    }

    /// Checks and notes a touch of some bytes. `false` when they are not there.
    fn touch(&mut self, moment: &Moment, by: &Arc<Submission>, address: u64, len: u64, classes: Classes) -> bool {
        let Some(buffer) = self.memory.on_device(address) else {
            self.missing(by, address, len);
            return false;
        };
        let offset = address - buffer.label.base;
        if len > buffer.label.len - offset {
            let message = format!("{by} touches bytes {offset}..{} of {}", offset + len, buffer.label);
            let id = buffer.label.id;
            self.reports.add(FindingKind::OutOfBounds, id, Some(by), None, message);
            return false;
        }
        let id = buffer.label.id;
        self.touch_buffer(id, moment, by, &[run_over(offset, len, classes)]);
        true
    }

    /// Checks and notes touches of a buffer that is live on the device.
    pub(super) fn touch_buffer(&mut self, id: u64, moment: &Moment, by: &Arc<Submission>, runs: &[Run]) {
        let Some(buffer) = self.memory.get_mut(id) else { return };
        let label = buffer.label.clone();
        let (allocated, freed) = (buffer.allocated.clone(), buffer.freed.clone());
        let conflicts = buffer.shadow.touch(moment, by, runs);
        if let Some(allocated) = allocated {
            self.check_begun(&label, &allocated, moment, by);
        }
        if let Some(freed) = freed.filter(|freed| freed.number < by.number) {
            self.use_after_free(&label, by, Some(&freed));
        }
        for conflict in conflicts {
            self.unordered_access(&label, by, &conflict);
        }
    }

    /// Reports a use that its buffer's allocation is not ordered before.
    pub(super) fn check_begun(
        &mut self,
        label: &Label,
        allocated: &Arc<Submission>,
        moment: &Moment,
        by: &Arc<Submission>,
    ) {
        if !moment.is_after(allocated.epoch) {
            let message = format!("{by} uses {label} unordered after its allocation on stream {}", allocated.stream.0);
            self.reports.add(FindingKind::UseBeforeAllocation, label.id, Some(by), Some(allocated), message);
        }
    }

    pub(super) fn use_after_free(&mut self, label: &Label, by: &Arc<Submission>, freed: Option<&Arc<Submission>>) {
        let message = match freed {
            Some(freed) => format!("{by} uses {label} after its {freed}"),
            None => format!("{by} uses {label} after its free"),
        };
        self.reports.add(FindingKind::UseAfterFree, label.id, Some(by), freed.map(AsRef::as_ref), message);
    }

    pub(super) fn unordered_free(&mut self, label: &Label, free: &Arc<Submission>, user: &Arc<Submission>) {
        let message = format!("{free} of {label} is not ordered after {user}");
        self.reports.add(FindingKind::UnorderedFree, label.id, Some(free), Some(user), message);
    }

    /// Reports bytes that are not live on the device now.
    pub(super) fn missing(&mut self, by: &Arc<Submission>, address: u64, len: u64) -> FindingKind {
        // In program order the buffer may be there: its allocation has not run, so nothing orders it before this use.
        if let Some(buffer) = self.memory.in_program(crate::driver::DevicePtr(address))
            && let Some(allocated) = buffer.allocated.clone()
            && allocated.number < by.number
        {
            let label = buffer.label.clone();
            let message = format!("{by} uses {label} unordered after its allocation on stream {}", allocated.stream.0);
            self.reports.add(FindingKind::UseBeforeAllocation, label.id, Some(by), Some(&allocated), message);
            return FindingKind::UseBeforeAllocation;
        }
        let former = self.memory.formerly(address);
        // Or it is freed in program order by now, and has not begun on the device all the same.
        if let Some((label, Some(freed))) = &former
            && freed.number > by.number
            && let Some(allocated) = self.memory.get(label.id).and_then(|buffer| buffer.allocated.clone())
        {
            let message = format!("{by} uses {label} unordered after its allocation on stream {}", allocated.stream.0);
            self.reports.add(FindingKind::UseBeforeAllocation, label.id, Some(by), Some(&allocated), message);
            return FindingKind::UseBeforeAllocation;
        }
        match former {
            Some((label, Some(freed))) if freed.number > by.number => {
                self.unordered_free(&label, &freed, by);
                FindingKind::UnorderedFree
            }
            Some((label, freed)) => {
                self.use_after_free(&label, by, freed.as_ref());
                FindingKind::UseAfterFree
            }
            None => {
                let message = format!("{by} touches {len} bytes at {address:#x}, where nothing is allocated");
                self.reports.add(FindingKind::OutOfBounds, address, Some(by), None, message);
                FindingKind::OutOfBounds
            }
        }
    }

    fn unordered_access(&mut self, label: &Label, by: &Arc<Submission>, conflict: &Conflict) {
        let (mut later, mut earlier) = ((by, conflict.touch), (&conflict.other, conflict.other_touch));
        if later.0.number < earlier.0.number {
            std::mem::swap(&mut later, &mut earlier);
        }
        let verb = |touch: Touch| match touch {
            Touch::Read => "reads",
            Touch::Write => "writes",
            Touch::Atomic => "changes atomically",
        };
        let start = u64::from(conflict.sector) * SECTOR_BYTES;
        let line = |(by, touch): (&Arc<Submission>, Touch)| by.line(label.id, touch);
        let message = format!(
            "{} {} bytes {start}..{} of {label}, not ordered after {}, which {} them{}",
            later.0,
            verb(later.1),
            (start + SECTOR_BYTES).min(label.len),
            earlier.0,
            verb(earlier.1),
            line(earlier).map(|line| format!(" (PTX line {line})")).unwrap_or_default(),
        );
        // The finding's kernel is the later one, or the earlier if that alone is a kernel.
        let line = if later.0.kernel().is_some() { line(later) } else { line(earlier) };
        let kind = FindingKind::UnorderedAccess;
        if let Some(finding) = self.reports.add(kind, label.id, Some(later.0), Some(earlier.0), message) {
            finding.ptx_line = line;
        }
    }

    /// Reports copies that meet in pinned memory.
    pub(super) fn unordered_host_access(&mut self, span: &HostSpan, by: &Arc<Submission>, conflicts: &[Conflict]) {
        for conflict in conflicts {
            let block = span.block();
            let message = format!("{by} uses bytes of {block:?}, not ordered after {}", conflict.other);
            let kind = FindingKind::UnorderedAccess;
            self.reports.add(kind, block.id(), Some(by), Some(&conflict.other), message);
        }
    }
}
