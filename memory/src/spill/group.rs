//! One group of views: on the device, in host memory, or moving.
//!
//!   Resident ─ spill ─► Moving ─► Spilled ─ get ─► Moving ─► Resident(held by 1)
//!      ▲  no host memory │  ▲                        │ out of memory
//!      └─────────────────┘  └──────── Spilled ◄──────┘
//!
//! Bytes      covered by the views, merged; not the gaps between them, which may be uninitialized.
//! Restore    each buffer returns as one that begins where its first view began, rounded down to a multiple of 256.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::store::Room;
use super::{SpillState, Spillable, SpillerInner};
use crate::buffer::{ALIGNMENT, DeviceBuffer, DeviceView};
use crate::counters::Scope;
use crate::driver::Site;
use crate::error::{MemoryError, Result};
use crate::governor::{Participant, Request, Reservation};
use crate::stream::Stream;
use crate::units::ByteSize;

/// A spilled view: its buffer, and its range there. Empty views need no buffer.
#[derive(Clone, Copy, Debug)]
struct Place {
    buffer: usize,
    start: usize,
    end: usize,
}

/// Layout of a spilled group.
struct Layout {
    /// Length of each buffer after the restore.
    buffers: Vec<usize>,
    /// Ranges to move: buffer and byte range, stored consecutively in host memory.
    moves: Vec<Place>,
    views: Vec<Option<Place>>,
}

impl Layout {
    /// The layout of `views`, and the parts to copy, in the order of `moves`.
    fn of(views: &[DeviceView]) -> Result<(Layout, Vec<DeviceView>)> {
        let mut covered: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for view in views.iter().filter(|view| !view.is_empty()) {
            let range = view.range();
            covered.entry(view.buffer_id()).or_default().push((range.start, range.end));
        }
        let mut layout = Layout { buffers: Vec::new(), moves: Vec::new(), views: Vec::new() };
        let mut index_of: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        let mut parts = Vec::new();
        for (id, mut ranges) in covered {
            ranges.sort_unstable();
            let whole = views.iter().find(|view| view.buffer_id() == id).map(DeviceView::whole);
            let whole = whole.expect("the ranges come from a view of this buffer");
            let base = ranges[0].0 / ALIGNMENT * ALIGNMENT;
            let buffer = layout.buffers.len();
            let mut merged: Vec<(usize, usize)> = Vec::new();
            for (start, end) in ranges {
                match merged.last_mut() {
                    Some(last) if start <= last.1 => last.1 = last.1.max(end),
                    _ => merged.push((start, end)),
                }
            }
            layout.buffers.push(merged.last().map_or(0, |last| last.1) - base);
            for (start, end) in merged {
                parts.push(whole.view(start..end)?);
                layout.moves.push(Place { buffer, start: start - base, end: end - base });
            }
            index_of.insert(id, (buffer, base));
        }
        layout.views = views
            .iter()
            .map(|view| {
                let (buffer, base) = *index_of.get(&view.buffer_id()).filter(|_| !view.is_empty())?;
                Some(Place { buffer, start: view.range().start - base, end: view.range().end - base })
            })
            .collect();
        Ok((layout, parts))
    }

    fn num_bytes(&self) -> usize {
        self.moves.iter().map(|place| place.end - place.start).sum()
    }

    /// Host offset of `bytes` bytes of view `view`, starting at `from`.
    fn place_of(&self, view: usize, from: usize, bytes: usize) -> Option<usize> {
        let place = (*self.views.get(view)?)?;
        let start = place.start.checked_add(from)?;
        if start.checked_add(bytes)? > place.end {
            return None;
        }
        let mut at = 0;
        for moved in &self.moves {
            // A view is contained in a single move.
            if moved.buffer == place.buffer && moved.start <= place.start && place.end <= moved.end {
                return Some(at + start - moved.start);
            }
            at += moved.end - moved.start;
        }
        None
    }

    fn device_bytes(&self) -> u64 {
        self.buffers.iter().map(|len| len.next_multiple_of(ALIGNMENT) as u64).sum()
    }
}

/// A group in host memory.
struct Away {
    layout: Layout,
    room: Room,
    /// Reservation of the host memory it uses.
    _host: Option<Reservation>,
}

enum State {
    Resident {
        views: Vec<DeviceView>,
        held: usize,
    },
    Moving {
        by: ThreadId,
        since: Site,
    },
    Spilled(Box<Away>),
    /// Taken by `into_parts`.
    Gone,
}

pub(super) struct Group {
    spiller: Arc<SpillerInner>,
    id: u64,
    priority: i32,
    scope: Scope,
    num_views: usize,
    inner: Mutex<Inner>,
    moved: Condvar,
}

struct Inner {
    state: State,
    last_used: u64,
    /// Device bytes when it is resident.
    bytes: u64,
    /// Participant that the device bytes are reserved for, if there is a governor; and the reservation, while they
    /// exist.
    participant: Option<Participant>,
    reservation: Option<Reservation>,
}

/// Device bytes of the buffers behind `views`.
fn device_bytes(views: &[DeviceView]) -> u64 {
    let mut buffers: BTreeMap<u64, u64> = BTreeMap::new();
    for view in views {
        buffers.insert(view.buffer_id(), view.buffer_bytes().as_u64());
    }
    buffers.values().sum()
}

/// True if only `views` keep the buffers alive.
fn alone(views: &[DeviceView]) -> bool {
    let mut own: BTreeMap<u64, usize> = BTreeMap::new();
    for view in views {
        *own.entry(view.buffer_id()).or_default() += 1;
    }
    views.iter().all(|view| own[&view.buffer_id()] == view.num_holders())
}

impl Group {
    pub(super) fn new(
        spiller: &Arc<SpillerInner>,
        id: u64,
        views: Vec<DeviceView>,
        priority: i32,
        reservation: Option<Reservation>,
    ) -> Self {
        let scope = views.iter().find(|view| !view.is_empty()).map(|view| view.scope().clone());
        let inner = Inner {
            last_used: spiller.tick(),
            bytes: device_bytes(&views),
            participant: reservation.as_ref().map(|reservation| reservation.participant().clone()),
            reservation,
            state: State::Resident { held: 0, views: Vec::new() },
        };
        let group = Group {
            id,
            priority,
            scope: scope.unwrap_or_else(|| spiller.pool.device().scope().clone()),
            num_views: views.len(),
            spiller: Arc::clone(spiller),
            inner: Mutex::new(inner),
            moved: Condvar::new(),
        };
        group.inner().state = State::Resident { views, held: 0 };
        group
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn num_views(&self) -> usize {
        self.num_views
    }

    pub(super) fn bytes(&self) -> ByteSize {
        ByteSize(self.inner().bytes)
    }

    pub(super) fn state(&self) -> SpillState {
        if self.spiller.pool.device().is_lost() {
            return SpillState::Lost;
        }
        match self.inner().state {
            State::Resident { .. } | State::Gone => SpillState::Resident,
            State::Moving { .. } => SpillState::Moving,
            State::Spilled(_) => SpillState::Spilled,
        }
    }

    fn settle_on(&self, state: State) {
        self.inner().state = state;
        self.moved.notify_all();
    }

    /// Takes the views if they can be spilled.
    fn begin_spill(&self, site: Site) -> Option<Vec<DeviceView>> {
        let mut inner = self.inner();
        match &mut inner.state {
            State::Resident { views, held: 0 } if device_bytes(views) > 0 && alone(views) => {
                let views = std::mem::take(views);
                inner.state = State::Moving { by: std::thread::current().id(), since: site };
                Some(views)
            }
            _ => None,
        }
    }

    /// Copies to the host, and frees the device bytes behind the copies. Zero if it cannot be spilled, or if host
    /// memory is full.
    #[track_caller]
    pub(super) fn spill_now(&self) -> Result<ByteSize> {
        let device = self.spiller.pool.device();
        device.alive()?;
        let Some(views) = self.begin_spill(Location::caller()) else { return Ok(ByteSize::ZERO) };
        let away = match self.copy_out(&views) {
            Ok(Some(away)) => away,
            nowhere => {
                self.settle_on(State::Resident { views, held: 0 });
                return nowhere.map(|_| ByteSize::ZERO);
            }
        };
        let bytes = device_bytes(&views);
        let (pinned, plain) = (away.room.pinned_bytes(), away.room.plain_bytes());
        // The frees run on the stream of the newest use, which is that of the copies.
        drop(views);
        let reservation = {
            let mut inner = self.inner();
            inner.bytes = away.layout.device_bytes();
            inner.state = State::Spilled(Box::new(away));
            inner.reservation.take()
        };
        self.moved.notify_all();
        self.spiller.left(bytes, pinned, plain, &self.scope);
        match reservation {
            Some(reservation) => self.spiller.leaving(reservation)?,
            None => drop(self.spiller.note_free()?),
        }
        Ok(ByteSize(bytes))
    }

    fn copy_out(&self, views: &[DeviceView]) -> Result<Option<Away>> {
        let (layout, parts) = Layout::of(views)?;
        let Some(mut room) = self.spiller.store.room(layout.num_bytes()) else {
            self.spiller.nowhere();
            return Ok(None);
        };
        let participant = self.inner().participant.clone();
        let host = match participant {
            None => None,
            Some(participant) => {
                let taken = ByteSize(room.pinned_bytes() + room.plain_bytes());
                match participant.try_reserve(Request::host(taken)) {
                    Ok(promise) => Some(promise),
                    Err(_) => {
                        self.spiller.nowhere();
                        return Ok(None);
                    }
                }
            }
        };
        let stream = self.spiller.stream.with_scope(&self.scope);
        let mut at = 0;
        for part in &parts {
            room.save(part, at, &stream)?;
            at += part.len();
        }
        Ok(Some(Away { layout, room, _host: host }))
    }

    /// Returns the views on the device, and adds a holder that keeps them there.
    pub(super) fn get(&self, stream: &Stream, site: Site) -> Result<Vec<DeviceView>> {
        let device = self.spiller.pool.device();
        if stream.device() != device {
            return Err(MemoryError::ForeignDevice { what: "a spilled group", stream: stream.id() });
        }
        device.alive()?;
        let mut away = {
            let mut inner = self.inner();
            loop {
                inner.last_used = self.spiller.tick();
                let state =
                    std::mem::replace(&mut inner.state, State::Moving { by: std::thread::current().id(), since: site });
                match state {
                    State::Resident { views, held } => {
                        inner.state = State::Resident { views: views.clone(), held: held + 1 };
                        return Ok(views);
                    }
                    State::Spilled(away) => break away,
                    State::Gone => {
                        inner.state = State::Gone;
                        return Err(MemoryError::Range { what: "a group", offset: 0, wanted: self.num_views, len: 0 });
                    }
                    State::Moving { by, since } => {
                        inner.state = State::Moving { by, since };
                        if by == std::thread::current().id() {
                            let (wanted, held) = ("use", "moving it");
                            return Err(MemoryError::Conflict { wanted, site, held, held_site: since });
                        }
                        inner = self.moved.wait(inner).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        };
        match self.copy_in(&mut away, stream) {
            Ok((views, reservation)) => {
                let bytes = device_bytes(&views);
                let mut inner = self.inner();
                inner.reservation = reservation;
                inner.bytes = bytes;
                inner.state = State::Resident { views: views.clone(), held: 1 };
                drop(inner);
                self.moved.notify_all();
                self.spiller.returned(bytes, &self.scope);
                Ok(views)
            }
            Err(error) => {
                self.settle_on(State::Spilled(away));
                Err(error)
            }
        }
    }

    fn copy_in(&self, away: &mut Away, stream: &Stream) -> Result<(Vec<DeviceView>, Option<Reservation>)> {
        let stream = stream.with_scope(&self.scope);
        let pool = &self.spiller.pool;
        let participant = self.inner().participant.clone();
        let reservation = match participant {
            None => None,
            Some(participant) => {
                let wanted = Request::device(ByteSize(away.layout.device_bytes())).spillable();
                Some(participant.try_reserve(wanted)?)
            }
        };
        let buffers = away.layout.buffers.iter().map(|len| DeviceBuffer::new(*len, &stream, pool));
        let buffers: Vec<DeviceBuffer> = buffers.collect::<Result<_>>()?;
        let mut at = 0;
        for place in &away.layout.moves {
            let to = buffers[place.buffer].view(place.start..place.end)?;
            away.room.load(at, &to, &stream)?;
            at += to.len();
        }
        let views = away.layout.views.iter().map(|place| match place {
            Some(place) => buffers[place.buffer].view(place.start..place.end),
            None => DeviceBuffer::new(0, &stream, pool)?.view(0..0),
        });
        Ok((views.collect::<Result<_>>()?, reservation))
    }

    /// Copies the bytes of view `view`, starting at `from`, to `to` if the group is in host memory; false if it is not.
    pub(super) fn read_away(&self, view: usize, from: usize, to: &mut [u8], site: Site) -> Result<bool> {
        let away = {
            let mut inner = self.inner();
            inner.last_used = self.spiller.tick();
            let moving = State::Moving { by: std::thread::current().id(), since: site };
            match std::mem::replace(&mut inner.state, moving) {
                State::Spilled(away) => away,
                other => {
                    inner.state = other;
                    return Ok(false);
                }
            }
        };
        let read = match away.layout.place_of(view, from, to.len()) {
            Some(at) => away.room.read(at, to),
            None => Err(MemoryError::Range { what: "a spilled view", offset: from, wanted: to.len(), len: 0 }),
        };
        self.settle_on(State::Spilled(away));
        read.map(|()| true)
    }

    /// Removes a holder.
    pub(super) fn release(&self) {
        let free = {
            let mut inner = self.inner();
            let State::Resident { held, .. } = &mut inner.state else { return };
            *held -= 1;
            *held == 0
        };
        if free {
            self.spiller.nudge();
        }
    }

    /// Dissolves the group after its views were taken out.
    pub(super) fn dissolve(&self) -> Option<Reservation> {
        let mut inner = self.inner();
        let state = std::mem::replace(&mut inner.state, State::Gone);
        let reservation = inner.reservation.take();
        drop(inner);
        drop(state);
        reservation
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.spiller.forget(self.id);
    }
}

impl Spillable for Group {
    fn tag(&self) -> String {
        self.scope.path()
    }

    fn spillable_bytes(&self) -> ByteSize {
        match &self.inner().state {
            State::Resident { views, held: 0 } if alone(views) => ByteSize(device_bytes(views)),
            _ => ByteSize::ZERO,
        }
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn last_used(&self) -> u64 {
        self.inner().last_used
    }

    fn spill(&self, _wanted: ByteSize) -> Result<ByteSize> {
        self.spill_now()
    }
}
