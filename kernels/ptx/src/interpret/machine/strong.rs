//! Loads and stores that take part in order between threads, fences, and the messages that they carry.
//!
//!   st.release  ─► the thread's view lies at the address      ld.acquire  ─► the view becomes the reader's
//!   fence, st.relaxed  ─► the view at the fence               ld.relaxed, fence  ─► at the fence
//!
//! Lane after lane: each may carry a message of its own (see `order`).

use super::block::{Common, memory_tag};
use super::memory::{Values, fetch};
use super::region::Doing;
use super::warp::{Group, Warp, lanes_of};
use super::{Machine, Trouble};
use crate::interpret::alu::Row;
use crate::interpret::op::{Access, Scope, Strength};
use crate::interpret::order::{Mark, Message, Observer, join};
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
        for lane in lanes_of(mask) {
            let (number, address) = (common.number, addresses[lane]);
            let (block, clock, full) = (common.number & 0xFF_FFFF, common.clock, common.full);
            {
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Read)?
                };
                let Warp { registers, views, index, sync, .. } = &mut *warp;
                let observer = Observer { block, warp: *index, clock, full, sync: *sync, views: views.as_deref() };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Read)?;
                region.check_written(offset, unit as usize, unit, lane as u32, unit)?;
                let place = (offset, unit as usize, lane as u32);
                region.touch_strong(&coordinates, place, (true, false), scope, &observer)?;
                fetch(&region, access, registers, group, offset, lane);
            }
            self.take_message(warp, key(shared, number, address), number, lane, access.strength.acquire);
        }
        Ok(())
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
        let constants = std::mem::take(&mut self.constants);
        for lane in lanes_of(mask) {
            let (number, address) = (common.number, addresses[lane]);
            let (block, clock, full) = (common.number & 0xFF_FFFF, common.clock, common.full);
            {
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Write)?
                };
                let observer =
                    Observer { block, warp: warp.index, clock, full, sync: warp.sync, views: warp.views.as_deref() };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Write)?;
                let place = (offset, unit as usize, lane as u32);
                region.touch_strong(&coordinates, place, (false, true), scope, &observer)?;
                let values = Values { access, registers: &warp.registers[group.frame..], constants: &constants };
                values.put(&mut region, offset, lane);
            }
            self.leave_message(common, warp, key(shared, number, address), lane, access.strength, false);
        }
        self.constants = constants;
        if access.strength.release {
            common.tick();
        }
        Ok(())
    }

    /// What a strong read finds at an address besides the value.
    pub(super) fn take_message(&mut self, warp: &mut Warp, key: u64, block: u32, lane: usize, acquire: bool) {
        warp.reads = 0;
        if self.messages.is_empty() {
            return;
        }
        let Some(message) = self.messages.get(&key) else { return };
        if message.only_block.is_some_and(|only| only != block) {
            return;
        }
        let views = warp.views.get_or_insert_default();
        if !acquire {
            views.pending[lane] = join(&views.pending[lane], &Some(message.view.clone()));
            return;
        }
        if !views.taken[lane].as_ref().is_some_and(|taken| Rc::ptr_eq(taken, &message.view)) {
            views.known[lane] = join(&views.known[lane], &Some(message.view.clone()));
            views.taken[lane] = Some(message.view.clone());
        }
    }

    /// What a strong write leaves at an address besides the value.
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
        let told = if strength.release {
            let mut mark = warp.mark(common, lane, block_scope);
            Some((mark.tell(), block_scope))
        } else {
            let fence = warp.views.as_mut().and_then(|views| views.fence[lane].as_mut());
            fence.map(|mark| (mark.tell(), mark.block_scope || block_scope))
        };
        match told {
            Some((view, block_scope)) => {
                let only_block = block_scope.then_some(common.number);
                let view = match self.messages.get(&key) {
                    Some(older) if update => join(&Some(older.view.clone()), &Some(view)).unwrap_or_default(),
                    _ => view,
                };
                self.messages.insert(key, Message { view, only_block });
            }
            // A plain value hides the message; a read-modify-write hands it on.
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
        scope: Scope,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        for lane in lanes_of(mask) {
            let views = warp.views.get_or_insert_default();
            if let Some(pending) = views.pending[lane].take() {
                views.known[lane] = join(&views.known[lane], &Some(pending));
            }
            let mark = warp.mark(common, lane, scope == Scope::Block);
            if let Some(views) = &mut warp.views {
                views.fence[lane] = Some(Box::new(mark));
            }
        }
        common.tick();
        Ok(())
    }
}

impl Warp {
    /// What a lane would tell at this moment.
    fn mark(&self, common: &Common, lane: usize, block_scope: bool) -> Mark {
        Mark {
            block: common.number & 0xFF_FFFF,
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

/// The key of an address among the messages.
pub(super) fn key(shared: bool, block: u32, address: u64) -> u64 {
    if shared { memory_tag(block) << 32 | address & 0xFFFF_FFFF } else { address }
}
