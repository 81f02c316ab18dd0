//! Time zones: conversion between UTC and local time.
//!
//!   UTC     ───────────┬──────────────────┬─────►    changes, as in arrow's crate of time zones
//!              -18000  │      -14400      │ -18000   seconds ahead
//!   local   ──────────┐ ┌───────────────┌┐┌─────►    after a change forward no instant, after one back two
//!
//!   seconds ─ clamped ─ bucket ─► changes before it ─► + those of the bucket that are not later ─► offset
//!
//! Tables   are made once per zone in a process. Before its first and after its last change a zone's offset is
//!          constant, as in the crate.
//! Search   a value leads to its bucket, which holds one or two changes: three or four loads from memory.
//! Errors   a local time with no instant, or with two, raises the error flag under CAST and is NULL under TRY_CAST.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::datatypes::{TimeUnit, TimestampSecondType};
use datafusion::arrow::temporal_conversions::{as_datetime, as_datetime_with_timezone};
use datafusion::physical_expr::expressions::Column;
use millpond_kernels::codegen::ir::{Arithmetic, Comparison, GraphError, NodeId, Overflow, Range, Repr, Rounding, Ty};

use crate::expr::cast::{nanos, zone_offset};
use crate::expr::dictionary::{Dictionary, Lookup, LookupKind, NumberTable};
use crate::expr::{Lowered, Lowering, refusal};

/// First and last second of the years that are searched for changes: the crate has none outside of these.
const FIRST_SECOND: i64 = -5_364_662_400; // 1800
const LAST_SECOND: i64 = 7_258_118_400; // 2200
/// Seconds between two probes; changes of a zone's offset are further apart: the closest in the data are four days.
const STEP_SECONDS: i64 = 2 * 86_400;
/// Maximum number of buckets: more would only make tables larger.
const MOST_BUCKETS: i64 = 4096;
const THREE_HOURS: i64 = 3 * 3600;

/// Offset of local time from UTC.
#[derive(Clone)]
pub(super) enum Zone {
    /// A constant offset in seconds.
    Ahead(i64),
    Changing(Arc<Changing>),
}

/// A zone whose offset changes.
pub(super) struct Changing {
    /// Offsets, by seconds of UTC.
    offsets: Steps,
    /// Offsets before and after the nearest change, by seconds of local time. They are equal if there is one instant;
    /// the first is greater if there are two, and smaller if there is none.
    instants: Steps,
}

/// Numbers that change at known points.
struct Steps {
    low: i64,
    high: i64,
    shift: u32,
    /// Maximum number of changes in a bucket.
    most: usize,
    buckets: NumberTable,
    points: NumberTable,
    values: Vec<NumberTable>,
}

/// A zone's offsets; `None` if arrow knows no zone of this name.
pub(super) fn zone(name: &Option<Arc<str>>) -> Option<Zone> {
    static KNOWN: LazyLock<Mutex<HashMap<Arc<str>, Option<Zone>>>> = LazyLock::new(Mutex::default);
    if let Some(ahead) = zone_offset(name) {
        return Some(Zone::Ahead(ahead));
    }
    let name = name.as_ref()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(Arc::clone(name)).or_insert_with(|| Zone::of(name.parse().ok()?)).clone()
}

impl Zone {
    fn of(tz: Tz) -> Option<Zone> {
        let changes = changes(tz)?;
        if changes.is_empty() {
            return offset_at(tz, 0).map(Zone::Ahead);
        }
        let first = offset_at(tz, FIRST_SECOND)?;
        let offsets = Steps::new(
            changes.iter().map(|change| change.at).collect(),
            vec![std::iter::once(first).chain(changes.iter().map(|change| change.after)).collect()],
        )?;
        let instants = instants(tz, &changes, first)?;
        Some(Zone::Changing(Arc::new(Changing { offsets, instants })))
    }
}

/// A change of the offset at an instant.
struct Change {
    at: i64,
    before: i64,
    after: i64,
}

impl Change {
    /// Whether the change skips a local time.
    fn leaves_out(&self, local: i64) -> bool {
        (self.at + self.before..self.at + self.after).contains(&local)
    }
}

fn offset_at(tz: Tz, second: i64) -> Option<i64> {
    let local = as_datetime_with_timezone::<TimestampSecondType>(second, tz)?.naive_local();
    Some(local.and_utc().timestamp() - second)
}

/// The changes of a zone's offset, found by probing it.
fn changes(tz: Tz) -> Option<Vec<Change>> {
    let mut found = Vec::new();
    let (mut from, mut before) = (FIRST_SECOND, offset_at(tz, FIRST_SECOND)?);
    while from < LAST_SECOND {
        let to = from + STEP_SECONDS;
        let after = offset_at(tz, to)?;
        if after != before {
            let (mut earlier, mut later) = (from, to);
            while later - earlier > 1 {
                let middle = earlier + (later - earlier) / 2;
                match offset_at(tz, middle)? == before {
                    true => earlier = middle,
                    false => later = middle,
                }
            }
            found.push(Change { at: later, before, after });
        }
        (from, before) = (to, after);
    }
    Some(found)
}

/// The instants of local times. They can change only where skipped or repeated local times begin or end.
fn instants(tz: Tz, changes: &[Change], first: i64) -> Option<Steps> {
    let mut points: Vec<i64> =
        changes.iter().flat_map(|change| [change.at + change.before, change.at + change.after]).collect();
    points.sort_unstable();
    points.dedup();
    let (mut before, mut after) = (vec![first], vec![first]);
    for &local in &points {
        let instants = as_datetime::<TimestampSecondType>(local)?.and_local_timezone(tz);
        let ahead = instants.map(|instant| local - instant.timestamp());
        let (one, other) = match (ahead.earliest(), ahead.latest()) {
            (Some(one), Some(other)) => (one, other),
            _ => {
                let change = changes.iter().find(|change| change.leaves_out(local))?;
                (change.before, change.after)
            }
        };
        // The greater of the two offsets determines the number of instants.
        if ahead.single().is_none() && (one > other) != ahead.earliest().is_some() {
            return None;
        }
        before.push(one);
        after.push(other);
    }
    Steps::new(points, vec![before, after])
}

impl Steps {
    /// Each of `values` has one element more than there are points. There must be at least one point.
    fn new(points: Vec<i64>, values: Vec<Vec<i64>>) -> Option<Steps> {
        let (low, high) = (points.first()? - 1, *points.last()?);
        let mut shift = 0;
        while (high - low) >> shift >= MOST_BUCKETS {
            shift += 1;
        }
        let mut buckets = Vec::new();
        let mut most = 0;
        for bucket in 0..=(high - low) >> shift {
            let begin = low + (bucket << shift);
            // A change at the start of a bucket belongs to it.
            let earlier = points.partition_point(|point| *point < begin);
            let within = points.partition_point(|point| *point < begin + (1 << shift)) - earlier;
            most = most.max(within);
            buckets.push(earlier as i64);
        }
        // A bucket with fewer changes reads points that are later than all its values.
        let mut points = points;
        points.extend(std::iter::repeat_n(high + 1, most));
        let values = values.into_iter().map(NumberTable::new).collect();
        Some(Steps {
            low,
            high,
            shift,
            most,
            buckets: NumberTable::new(buckets),
            points: NumberTable::new(points),
            values,
        })
    }
}

impl Lowering<'_> {
    /// A zone's offsets, or the reason why it has no device form.
    pub(super) fn known_zone(name: &Option<Arc<str>>) -> Lowered<Zone> {
        let of = name.as_deref().unwrap_or_default();
        zone(name).ok_or_else(|| refusal(format!("the time zone {of} has no device form")))
    }

    /// Local time of an instant.
    pub(super) fn local_time(&mut self, of: NodeId, unit: &TimeUnit, zone: &Zone) -> Lowered<NodeId> {
        match zone {
            Zone::Ahead(seconds) => self.moved(of, unit, *seconds, Overflow::Fail),
            Zone::Changing(zone) => {
                let ahead = self.offset(of, unit, zone);
                let local = ahead.and_then(|ahead| self.shifted(of, unit, Arithmetic::Add, ahead, Overflow::Fail));
                Ok(local?)
            }
        }
    }

    /// The instant of a local time. It is an error, or NULL, if there is no instant or if there are two.
    pub(super) fn instant(
        &mut self,
        local: NodeId,
        unit: &TimeUnit,
        zone: &Zone,
        overflow: Overflow,
    ) -> Lowered<NodeId> {
        match zone {
            Zone::Ahead(seconds) => self.moved(local, unit, -seconds, overflow),
            Zone::Changing(zone) => {
                let instant = self.instants_near(local, unit, zone).and_then(|(before, after)| {
                    let one = self.graph.compare(Comparison::Equal, before, after)?;
                    let ahead = self.graph.require(before, one, overflow)?;
                    self.shifted(local, unit, Arithmetic::Subtract, ahead, overflow)
                });
                Ok(instant?)
            }
        }
    }

    /// The instant of a local time at which a period that contains `within` begins, as in DataFusion: of two instants
    /// the one with the offset of `within`; without an instant, that of three hours before, three hours later.
    pub(super) fn instant_of_start(
        &mut self,
        local: NodeId,
        unit: &TimeUnit,
        zone: &Zone,
        within: NodeId,
    ) -> Lowered<NodeId> {
        let Zone::Changing(zone) = zone else {
            return self.instant(local, unit, zone, Overflow::Fail);
        };
        let instant = self.instants_near(local, unit, zone).and_then(|(before, after)| {
            let own = self.offset(within, unit, zone)?;
            let three_hours = self.graph.integer(THREE_HOURS.into(), Repr::I64);
            let earlier = self.shifted(local, unit, Arithmetic::Subtract, three_hours, Overflow::Wrap)?;
            let (one, other) = self.instants_near(earlier, unit, zone)?;
            let certain = self.graph.compare(Comparison::Equal, one, other)?;
            let left_out = self.graph.compare(Comparison::Less, before, after)?;
            let there = self.graph.not(left_out)?;
            let certain = self.graph.or(there, certain)?;
            let same = self.graph.compare(Comparison::Equal, before, own)?;
            let ahead = self.graph.case(vec![(left_out, one), (same, before)], Some(after))?;
            let ahead = self.graph.require(ahead, certain, Overflow::Fail)?;
            self.shifted(local, unit, Arithmetic::Subtract, ahead, Overflow::Fail)
        });
        Ok(instant?)
    }

    /// `of` plus or minus seconds.
    fn shifted(
        &mut self,
        of: NodeId,
        unit: &TimeUnit,
        op: Arithmetic,
        seconds: NodeId,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let ticks = self.graph.integer((1_000_000_000 / nanos(unit)).into(), Repr::I64);
        let ticks = self.graph.arithmetic(Arithmetic::Multiply, seconds, ticks, Overflow::Wrap)?;
        self.graph.arithmetic(op, of, ticks, overflow)
    }

    /// Offset of local time at an instant, in seconds.
    fn offset(&mut self, of: NodeId, unit: &TimeUnit, zone: &Changing) -> Result<NodeId, GraphError> {
        let step = self.step(of, unit, &zone.offsets)?;
        self.entry(&zone.offsets.values[0], step)
    }

    /// The offsets before and after the change nearest to a local time.
    fn instants_near(
        &mut self,
        local: NodeId,
        unit: &TimeUnit,
        zone: &Changing,
    ) -> Result<(NodeId, NodeId), GraphError> {
        let step = self.step(local, unit, &zone.instants)?;
        let [before, after] = zone.instants.values.as_slice() else {
            unreachable!("two offsets belong to a local time")
        };
        Ok((self.entry(before, step)?, self.entry(after, step)?))
    }

    /// Number of points that are not later.
    fn step(&mut self, of: NodeId, unit: &TimeUnit, steps: &Steps) -> Result<NodeId, GraphError> {
        let graph = &mut self.graph;
        let seconds = graph.divide_constant(of, (1_000_000_000 / nanos(unit)).into(), Rounding::Floor)?;
        // Values outside have the number of the edge. An invalid value must not leave the table, either.
        let (low, high) = (graph.integer(steps.low.into(), Repr::I64), graph.integer(steps.high.into(), Repr::I64));
        let below = graph.compare(Comparison::Less, seconds, low)?;
        let above = graph.compare(Comparison::Greater, seconds, high)?;
        let seconds = graph.case(vec![(below, low), (above, high)], Some(seconds))?;
        let seconds = graph.assume(seconds, Range::new(steps.low.into(), steps.high.into()));
        let since = graph.arithmetic(Arithmetic::Subtract, seconds, low, Overflow::Wrap)?;
        let bucket = graph.divide_constant(since, 1 << steps.shift, Rounding::Floor)?;
        let bucket = graph.convert(bucket, Repr::U32, Overflow::Wrap)?;
        let earlier = self.entry(&steps.buckets, bucket)?;
        let earlier = self.graph.convert(earlier, Repr::U32, Overflow::Wrap)?;
        let mut step = earlier;
        for next in 0..steps.most {
            let next = self.graph.integer(next as i128, Repr::U32);
            let at = self.graph.arithmetic(Arithmetic::Add, earlier, next, Overflow::Wrap)?;
            let point = self.entry(&steps.points, at)?;
            let reached = self.graph.compare(Comparison::LessEqual, point, seconds)?;
            let reached = self.graph.convert(reached, Repr::U32, Overflow::Wrap)?;
            step = self.graph.arithmetic(Arithmetic::Add, step, reached, Overflow::Wrap)?;
        }
        Ok(step)
    }

    /// An entry of a table.
    fn entry(&mut self, table: &NumberTable, at: NodeId) -> Result<NodeId, GraphError> {
        let (low, high) = table.range();
        let dictionary = self.dictionaries.add(Dictionary::Numbers(table.clone()));
        let ty = Ty::new(Repr::I64).within(low.into(), high.into());
        let kind = LookupKind::Value(Arc::new(Column::new("value", 0)));
        let table = self.table(Lookup { dictionary, kind, ty });
        self.graph.lookup(at, table, ty)
    }
}
