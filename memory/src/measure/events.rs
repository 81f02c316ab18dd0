//! Cost of events and waits: the driver's own calls, and this crate's, which elide some of them.
//!
//!   driver   event create + destroy · record · stream wait · query          one call each
//!   layer    record · wait · wait that is implied already · query           as many calls as needed, from 0
//!
//! Samples    of 32 operations in a row: a single one is as short as reading the clock.

use std::panic::Location;
use std::time::Instant;

use super::pattern::nanos;
use super::samples::{Samples, Summary};
use crate::device::Device;
use crate::driver::{Driver, EventFlags, StreamHandle};
use crate::error::{DriverError, Result};
use crate::stream::Stream;

/// Operations per sample.
const IN_A_ROW: u64 = 32;

/// Cost of one operation.
#[derive(Clone, PartialEq, Debug)]
pub struct EventFigure {
    pub operation: &'static str,
    pub operations: u64,
    pub driver_calls_per_operation: f64,
    /// Time per operation; `None` on the simulated device.
    pub time: Option<Summary>,
}

struct Gauge<'a> {
    device: &'a Device,
    timed: bool,
    rows: u64,
}

impl Gauge<'_> {
    /// Samples `one`, of whose driver calls `empty` are empty submissions.
    fn layer(&self, operation: &'static str, empty: u64, mut one: impl FnMut() -> Result<()>) -> Result<EventFigure> {
        let (mut samples, mut calls) = (Samples::default(), 0);
        for _ in 0..self.rows {
            let calls_before = self.device.driver_calls();
            let started = self.timed.then(Instant::now);
            for _ in 0..IN_A_ROW {
                one()?;
            }
            if let Some(started) = started {
                samples.push(nanos(started) / IN_A_ROW);
            }
            calls += self.device.driver_calls() - calls_before - empty * IN_A_ROW;
        }
        let operations = self.rows * IN_A_ROW;
        let driver_calls_per_operation = calls as f64 / operations as f64;
        Ok(EventFigure { operation, operations, driver_calls_per_operation, time: samples.summary() })
    }

    /// Samples `one` call of the driver, on a stream.
    fn driver(
        &self,
        operation: &'static str,
        calls: f64,
        on: &Stream,
        one: impl Fn(&dyn Driver, StreamHandle) -> Result<(), DriverError>,
    ) -> Result<EventFigure> {
        let mut samples = Samples::default();
        for _ in 0..self.rows {
            on.submit(|driver, stream| {
                let started = self.timed.then(Instant::now);
                for _ in 0..IN_A_ROW {
                    one(driver, stream)?;
                }
                if let Some(started) = started {
                    samples.push(nanos(started) / IN_A_ROW);
                }
                Ok(())
            })?;
            on.synchronize()?;
        }
        let operations = self.rows * IN_A_ROW;
        Ok(EventFigure { operation, operations, driver_calls_per_operation: calls, time: samples.summary() })
    }
}

/// Figures of all operations.
pub(super) fn figures(device: &Device, timed: bool) -> Result<Vec<EventFigure>> {
    let gauge = Gauge { device, timed, rows: if timed { 100 } else { 2 } };
    let (first, second) = (Stream::new(device)?, Stream::new(device)?);
    let site = Location::caller();
    let driver = device.driver();
    let event = device.check(driver.event_create(device.id(), EventFlags::ORDER))?;
    let id = device.id();
    let raw = || -> Result<Vec<EventFigure>> {
        Ok(vec![
            gauge.driver("driver: event create + destroy", 2.0, &first, |driver, _| {
                driver.event_create(id, EventFlags::ORDER).and_then(|event| driver.event_destroy(event))
            })?,
            gauge.driver("driver: event record", 1.0, &first, |driver, on| driver.event_record(event, on, site))?,
            gauge.driver("driver: stream wait", 1.0, &second, |driver, on| driver.stream_wait(on, event, site))?,
            gauge.driver("driver: event query, passed", 1.0, &first, |driver, _| {
                driver.event_query(event).map(|_| ())
            })?,
        ])
    };
    let raw = raw();
    let destroyed = device.check(driver.event_destroy(event));
    let mut figures = raw?;
    destroyed?;

    // An empty submission gives the stream new work to record an event behind. Its time is included.
    let nothing = |on: &Stream| on.submit(|_, _| Ok(())).map(|_| ());
    figures.push(gauge.layer("layer: event record", 1, || {
        nothing(&first)?;
        first.record().map(|_| ())
    })?);
    figures.push(gauge.layer("layer: wait of another stream", 1, || {
        nothing(&first)?;
        second.wait_for(first.position()).map(|_| ())
    })?);
    let known = first.position();
    second.wait_for(known)?;
    figures.push(gauge.layer("layer: wait that is implied", 0, || second.wait_for(known).map(|_| ()))?);
    let passed = first.record()?;
    passed.synchronize()?;
    figures.push(gauge.layer("layer: event query, passed", 0, || passed.query().map(|_| ()))?);
    device.synchronize()?;
    Ok(figures)
}
