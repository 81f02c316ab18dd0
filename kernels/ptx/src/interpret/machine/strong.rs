//! Loads and stores that synchronize threads, fences, and their messages.
//!
//!   st.release         ─► stores the thread's view at the address   ld.acquire         ─► merges it into the reader's
//!   fence, st.relaxed  ─► stores the view at the fence              ld.relaxed, fence  ─► merges it at the fence
//!
//! Lanes are processed one at a time, because each may have its own message (see `order`). With a seed a load from
//! global memory may return an older value (see `history`).

use super::block::{Common, memory_tag};
use super::memory::{Values, destination, extend, fetch, get};
use super::region::Doing;
use super::warp::{Group, Warp, lanes_of};
use super::{Machine, Trouble};
use crate::interpret::alu::Row;
use crate::interpret::history::{Held, Older, Place};
use crate::interpret::op::{Access, Scope, Strength};
use crate::interpret::order::{BLOCK_NUMBER, Mark, Message, join};
use std::rc::Rc;

impl Machine<'_> {
    /// Loads with `.relaxed`, `.acquire` or `.volatile`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
    pub(super) fn load_strong(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        shared: bool,
    ) -> Result<(), Box<Trouble>> {
        let coordinates = self.coordinates();
        let unit = u64::from(access.size) * u64::from(access.count);
        let scope = access.strength.scope.unwrap_or(Scope::Device);
        let weak = self.is_weak(shared, scope);
        for lane in lanes_of(mask) {
            let (number, address) = (common.number, addresses[lane]);
            let held = {
                let Warp { registers, views, index, sync, .. } = &mut *warp;
                let observer = Warp::observer(*index, *sync, views, common);
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Read)?
                };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Read)?;
                region.check_written(offset, unit as usize, unit, lane as u32, unit)?;
                let place = (offset, unit as usize, lane as u32);
                let writer = region.touch_strong(&coordinates, place, (true, false), scope, &observer)?;
                fetch(&region, access, registers, group, offset, lane);
                (weak && access.count == 1).then(|| Held { bits: get(region.bytes, offset, unit as usize), writer })
            };
            match held {
                Some(held) => {
                    let place = Place { address, bytes: unit as usize };
                    let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
                    let Machine { histories, random, .. } = &mut *self;
                    if let Some(older) = histories.load(place, &held, &observer, lane as u32, random) {
                        warp.load_older(access, group, lane, number, &older);
                        continue;
                    }
                }
                None if weak => self.histories.forget(address, unit as usize),
                None => {}
            }
            self.take_message(warp, key(shared, number, address), number, lane, access.strength.acquire);
        }
        if !shared {
            self.may_cut();
        }
        Ok(())
    }

    /// The lanes of a mask in random order if there is a seed: PTX does not order lanes of one instruction.
    pub(super) fn in_some_order(&mut self, mask: u32) -> impl Iterator<Item = usize> + use<> {
        let mut lanes = [0; 32];
        let mut count = 0;
        for lane in lanes_of(mask) {
            lanes[count] = lane as u8;
            count += 1;
        }
        if self.random.on {
            for last in (1..count).rev() {
                lanes.swap(last, self.random.below(last as u64 + 1) as usize);
            }
        }
        lanes.into_iter().take(count).map(usize::from)
    }

    /// Whether loads may return older values: only with a seed and with race checks, which track knowledge. Never
    /// within a block.
    pub(super) fn is_weak(&self, shared: bool, scope: Scope) -> bool {
        self.random.on && self.options.checks.global_races && !shared && scope == Scope::Device
    }

    /// Stores with `.relaxed`, `.release` or `.volatile`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
    pub(super) fn store_strong(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        shared: bool,
    ) -> Result<(), Box<Trouble>> {
        let coordinates = self.coordinates();
        let unit = u64::from(access.size) * u64::from(access.count);
        let scope = access.strength.scope.unwrap_or(Scope::Device);
        let weak = self.is_weak(shared, scope);
        let lanes = self.in_some_order(mask);
        let constants = std::mem::take(&mut self.grid.constants);
        for lane in lanes {
            let (number, address) = (common.number, addresses[lane]);
            let change = {
                let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Write)?
                };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Write)?;
                let bytes = unit as usize;
                let writer =
                    region.touch_strong(&coordinates, (offset, bytes, lane as u32), (false, true), scope, &observer)?;
                let values = Values { access, registers: &warp.registers[group.frame..], constants: &constants };
                let one = weak && access.count == 1;
                let before = (one && region.is_written(offset, bytes))
                    .then(|| Held { bits: get(region.bytes, offset, bytes), writer });
                values.put(&mut region, offset, lane);
                one.then(|| (before, get(region.bytes, offset, bytes)))
            };
            match change {
                Some((before, bits)) => {
                    let place = Place { address, bytes: unit as usize };
                    self.keep_older(common, warp, lane, place, before, bits);
                }
                None if weak => self.histories.forget(address, unit as usize),
                None => {}
            }
            self.leave_message(common, warp, key(shared, number, address), lane, access.strength, false);
        }
        self.grid.constants = constants;
        if access.strength.release {
            common.tick();
        }
        if !shared {
            self.may_cut();
        }
        Ok(())
    }

    /// Keeps the value before a strong write, so that a later load may return it.
    pub(super) fn keep_older(
        &mut self,
        common: &Common,
        warp: &Warp,
        lane: usize,
        place: Place,
        before: Option<Held>,
        bits: u64,
    ) {
        let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
        let writer = observer.epoch(lane as u32);
        let message = self.messages.get(&place.address);
        self.histories.push(place, before, message, bits, writer, &observer);
    }

    /// Takes the message of a strong read of the newest value.
    pub(super) fn take_message(&mut self, warp: &mut Warp, key: u64, block: u32, lane: usize, acquire: bool) {
        warp.reads = 0;
        if self.messages.is_empty() {
            return;
        }
        if let Some(message) = self.messages.get(&key) {
            warp.take(message, block, lane, acquire);
        }
    }

    /// Stores the message of a strong write.
    pub(super) fn leave_message(
        &mut self,
        common: &Common,
        warp: &mut Warp,
        key: u64,
        lane: usize,
        strength: Strength,
        update: bool,
    ) {
        let block_scope = strength.scope == Some(Scope::Block);
        let published = if strength.release {
            let mut mark = warp.mark(common, lane, block_scope);
            Some((mark.publish(), block_scope))
        } else {
            let fence = warp.views.as_mut().and_then(|views| views.fence[lane].as_mut());
            fence.map(|mark| (mark.publish(), mark.block_scope || block_scope))
        };
        match published {
            Some((view, block_scope)) => {
                let only_block = block_scope.then_some(common.number);
                let view = match self.messages.get(&key) {
                    Some(older) if update => join(&Some(older.view.clone()), &Some(view)).unwrap_or_default(),
                    _ => view,
                };
                self.messages.insert(key, Message { view, only_block });
            }
            // A value written without a message removes the old message; a read-modify-write keeps it.
            None if !update && !self.messages.is_empty() => {
                self.messages.remove(&key);
            }
            None => {}
        }
    }

    pub(super) fn fence(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        (scope, sequential): (Scope, bool),
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let in_order = sequential && self.is_weak(false, scope);
        for lane in lanes_of(mask) {
            let views = warp.views.get_or_insert_default();
            if let Some(pending) = views.pending[lane].take() {
                views.known[lane] = join(&views.known[lane], &Some(pending));
            }
            if in_order {
                views.known[lane] = join(&views.known[lane], &self.fenced);
            }
            let mut mark = warp.mark(common, lane, scope == Scope::Block);
            if in_order {
                self.fenced = join(&self.fenced, &Some(Rc::new(mark.publish().by_fence())));
            }
            if let Some(views) = &mut warp.views {
                views.fence[lane] = Some(Box::new(mark));
            }
        }
        common.tick();
        Ok(())
    }
}

impl Warp {
    /// Takes a message for a lane: merged at once by an acquire, else pending until a fence.
    fn take(&mut self, message: &Message, block: u32, lane: usize, acquire: bool) {
        if message.only_block.is_some_and(|only| only != block) {
            return;
        }
        let views = self.views.get_or_insert_default();
        if !acquire {
            views.pending[lane] = join(&views.pending[lane], &Some(message.view.clone()));
            return;
        }
        if !views.taken[lane].as_ref().is_some_and(|taken| Rc::ptr_eq(taken, &message.view)) {
            views.known[lane] = join(&views.known[lane], &Some(message.view.clone()));
            views.taken[lane] = Some(message.view.clone());
        }
    }

    /// Replaces the loaded value with an older one and takes the older value's message.
    fn load_older(&mut self, access: &Access, group: Group, lane: usize, block: u32, older: &Older) {
        self.reads = 0;
        if let Some(to) = destination(access, 0) {
            let value = match access.extend {
                0 => older.bits,
                bits => extend(older.bits, access.size, bits),
            };
            self.registers[group.frame + to][lane] = value;
        }
        if let Some(message) = &older.message {
            self.take(message, block, lane, access.strength.acquire);
        }
    }

    /// The current mark of a lane.
    fn mark(&self, common: &Common, lane: usize, block_scope: bool) -> Mark {
        Mark {
            block: common.number & BLOCK_NUMBER,
            thread: self.index << 5 | lane as u32,
            clock: common.clock,
            full: common.full,
            sync: self.sync,
            view: self.views.as_ref().and_then(|views| views.known[lane].clone()),
            block_scope,
            ..Mark::default()
        }
    }
}

/// The message key of an address.
pub(super) fn key(shared: bool, block: u32, address: u64) -> u64 {
    if shared { memory_tag(block) << 32 | address & 0xFFFF_FFFF } else { address }
}
