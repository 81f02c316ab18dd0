//! Events, queries and synchronisation: everything by which streams and the host come to know of each other.
//!
//!   stream_wait   the waiter is ordered after all that the last record knew, for good
//!   synchronize   runs what must have run; the host knows it, pools retire frees and give memory back
//!   query         runs a little or nothing; "true" is knowledge like a synchronisation

use super::heap::Origin;
use super::queue::Work;
use super::report::What;
use super::state::{State, refuse};
use crate::driver::{DeviceId, DriverCode, EventHandle, FindingKind, Result, Site, StreamHandle};

impl State {
    pub(super) fn synchronize(&mut self, call: &'static str, lanes: &[u32]) -> Result<()> {
        self.counters.host_waits += 1;
        self.drain(lanes);
        self.pools_synchronised();
        lanes.iter().try_for_each(|&lane| self.alive(call, self.queues.lane(lane).device))
    }

    pub(super) fn stream_query(&mut self, stream: StreamHandle) -> Result<bool> {
        const CALL: &str = "cuStreamQuery";
        let lane = self.lane(CALL, stream)?;
        self.not_captured(CALL, lane)?;
        let Some(last) = self.queues.last(lane) else { return Ok(true) };
        let finished = self.poll(&last, self.queues.lane(lane).patience);
        let queue = self.queues.lane_mut(lane);
        queue.patience = if finished { 0 } else { queue.patience.saturating_add(1) };
        let device = queue.device;
        self.alive(CALL, device)?;
        Ok(finished)
    }

    pub(super) fn stream_wait(&mut self, stream: StreamHandle, event: EventHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuStreamWaitEvent";
        let lane = self.lane(CALL, stream)?;
        let recorded = self.event(CALL, event)?.recorded.clone();
        if let Some(done) = self.wait_captured(CALL, lane, event) {
            return done;
        }
        self.counters.stream_waits += 1;
        if self.faults.wait_is_ignored() || self.wait_is_left_out(lane, recorded.as_ref()) {
            return Ok(());
        }
        if let Some(record) = &recorded {
            self.queues.order_after(lane, record);
        }
        let (moment, by) = self.prepare(lane, What::Wait, Some(site));
        match recorded {
            Some(record) => self.push(moment, by, Work::Wait { epoch: record.epoch }),
            None => {
                let message = format!("stream {} waits for event {}, which was never recorded", stream.0, event.0);
                self.reports.add(FindingKind::UnrecordedEvent, event.0, Some(&by), None, message);
            }
        }
        Ok(())
    }

    pub(super) fn stream_destroy(&mut self, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuStreamDestroy";
        let lane = self.lane(CALL, stream)?;
        self.not_captured(CALL, lane)?;
        if self.queues.lane(lane).last_free > self.queues.host().get(lane) {
            let message = format!("stream {} is destroyed with frees that nobody has waited for", stream.0);
            self.reports.add(FindingKind::Handle, stream.0, None, None, message);
        }
        self.queues.close(lane);
        self.old_streams.push(stream);
        Ok(())
    }

    pub(super) fn event_record(&mut self, event: EventHandle, stream: StreamHandle, site: Site) -> Result<()> {
        const CALL: &str = "cuEventRecord";
        let lane = self.lane(CALL, stream)?;
        self.event(CALL, event)?;
        let (event_device, _) = self.event_ends(CALL, event)?;
        let device = self.queues.lane(lane).device;
        if event_device != device {
            let message =
                format!("event {} of device {event_device} on stream {} of device {device}", event.0, stream.0);
            if let Some(finding) = self.reports.add(FindingKind::Handle, event.0, None, None, message.clone()) {
                (finding.stream, finding.site) = (Some(stream), Some(site));
            }
            return refuse(CALL, DriverCode::INVALID_HANDLE, message);
        }
        self.counters.events_recorded += 1;
        if self.record_captured(event, lane) {
            return Ok(());
        }
        let (moment, by) = self.prepare(lane, What::Record, Some(site));
        let event = self.event(CALL, event)?;
        (event.recorded, event.patience) = (Some(moment.clone()), 0);
        self.push(moment, by, Work::Record);
        Ok(())
    }

    pub(super) fn event_query(&mut self, event: EventHandle) -> Result<bool> {
        const CALL: &str = "cuEventQuery";
        self.not_captured_event(CALL, event)?;
        self.unsafe_under_capture(CALL)?;
        let (device, _) = self.event_ends(CALL, event)?;
        let found = self.event(CALL, event)?;
        let patience = found.patience;
        let Some(record) = found.recorded.clone() else { return Ok(true) };
        let finished = self.poll(&record, patience);
        self.alive(CALL, device)?;
        self.event(CALL, event)?.patience = if finished { 0 } else { patience.saturating_add(1) };
        Ok(finished)
    }

    pub(super) fn event_synchronize(&mut self, event: EventHandle) -> Result<()> {
        const CALL: &str = "cuEventSynchronize";
        self.not_captured_event(CALL, event)?;
        self.unsafe_under_capture(CALL)?;
        let (device, _) = self.event_ends(CALL, event)?;
        let recorded = self.event(CALL, event)?.recorded.clone();
        self.counters.host_waits += 1;
        if let Some(record) = recorded {
            self.wait_for(&record);
        }
        self.pools_synchronised();
        self.alive(CALL, device)
    }

    pub(super) fn event_elapsed_ms(&mut self, start: EventHandle, end: EventHandle) -> Result<f32> {
        const CALL: &str = "cuEventElapsedTime";
        for event in [start, end] {
            let found = self.event(CALL, event)?;
            if !found.timing {
                return refuse(CALL, DriverCode::INVALID_HANDLE, format!("event {} was made without timing", event.0));
            }
            let Some(record) = found.recorded.clone() else {
                return refuse(CALL, DriverCode::INVALID_HANDLE, format!("event {} was never recorded", event.0));
            };
            if !self.queues.has_finished(record.epoch) {
                return refuse(CALL, DriverCode::NOT_READY, format!("event {} has not happened", event.0));
            }
        }
        Ok(0.0)
    }

    pub(super) fn device_close(&mut self, device: DeviceId) -> Result<String> {
        const CALL: &str = "cuDevicePrimaryCtxRelease";
        let context = self.context(CALL, device)?;
        let found = &mut self.devices[context as usize];
        if found.open == 0 {
            return refuse(CALL, DriverCode::INVALID_CONTEXT, format!("{device} is not open"));
        }
        found.open -= 1;
        if found.open > 0 {
            return Ok(String::new());
        }
        if self.devices[context as usize].lost.is_none() {
            let lanes = self.queues.lanes_of(context);
            self.drain(&lanes);
            self.pools_synchronised();
        }
        if self.devices[context as usize].lost.is_none() {
            let over = format!("the end of {device}");
            self.report_leaks(&over, &|buffer| buffer.device == context && buffer.origin != Origin::Module);
            self.report_open_imports(context, &over);
            let pinned: Vec<_> = self
                .host
                .of_device(context)
                .into_iter()
                .map(|pinned| {
                    (format!("{:?} is still allocated at {over}", pinned.block), pinned.block.id(), pinned.site)
                })
                .collect();
            for (message, id, site) in pinned {
                if let Some(finding) = self.reports.add(FindingKind::Leak, id, None, None, message) {
                    finding.site = Some(site);
                }
            }
        }
        Ok(self.reports.unseen())
    }
}
