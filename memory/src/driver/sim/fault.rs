//! Trouble on order: calls that fail, work that fails or hangs on the device, a wait that is forgotten. All off by
//! default.
//!
//!   call ─► counted by its kind ─► ordered to fail?  at once: refused, and the device lost if the code says so
//!                                                    late: queued, and in its place work that loses the device

use super::SimOptions;
use super::call::{CallKind, FailCall, FailureLasts};
use super::state::{State, refuse};
use crate::driver::{
    DeviceId, DriverCode, EventHandle, FunctionHandle, ModuleHandle, PoolHandle, Result, StreamHandle,
};
use std::collections::BTreeMap;

/// Random numbers from a seed: xorshift*, good enough for choosing and the same everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Splitmix64's finisher spreads small seeds, and never gives the one state that xorshift cannot leave.
        let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((x ^ (x >> 31)) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

/// An order for one kind of call, and how far it has come.
#[derive(Debug, Default)]
struct Order {
    fail: Option<FailCall>,
    seen: u64,
    lasting: bool,
}

impl Order {
    /// Counts a call, and says how it must fail, if it must.
    fn called(&mut self) -> Option<FailCall> {
        self.seen += 1;
        let fail = self.fail?;
        let first = fail.nth == self.seen;
        self.lasting |= first && fail.lasts != FailureLasts::Once;
        (first || self.lasting).then_some(fail)
    }

    fn freed(&mut self) {
        self.lasting &= self.fail.is_some_and(|fail| fail.lasts == FailureLasts::Forever);
    }
}

/// What of the ordered trouble has happened.
#[derive(Debug)]
pub(super) struct Faults {
    orders: BTreeMap<CallKind, Order>,
    hang_at_launch: Option<u64>,
    ignore_wait: Option<u64>,
    launches: u64,
    waits: u64,
}

impl Faults {
    pub(super) fn new(options: &SimOptions) -> Self {
        let mut faults = Self {
            orders: BTreeMap::new(),
            hang_at_launch: options.hang_at_launch,
            ignore_wait: options.ignore_wait,
            launches: 0,
            waits: 0,
        };
        options.fail_calls.iter().for_each(|fail| _ = faults.order(fail.call, Some(*fail)));
        faults
    }

    /// Replaces the order for a kind of call; counting begins anew. Returns how many were seen under the one before.
    pub(super) fn order(&mut self, call: CallKind, fail: Option<FailCall>) -> u64 {
        fail.iter().for_each(FailCall::check);
        self.orders.insert(call, Order { fail, ..Order::default() }).map_or(0, |before| before.seen)
    }

    /// Counts a call, and says how it must fail, if it must.
    fn called(&mut self, call: CallKind) -> Option<FailCall> {
        self.orders.entry(call).or_default().called()
    }

    /// Device memory came back.
    pub(super) fn freed(&mut self) {
        let others = self.orders.iter_mut().filter(|(call, _)| **call != CallKind::AllocatePinned);
        others.for_each(|(_, order)| order.freed());
    }

    pub(super) fn pinned_freed(&mut self) {
        self.orders.entry(CallKind::AllocatePinned).or_default().freed();
    }

    /// Counts a launch, and says whether it never ends.
    pub(super) fn launch_hangs(&mut self) -> bool {
        self.launches += 1;
        self.hang_at_launch == Some(self.launches)
    }

    /// Counts a wait of a stream, and says whether it is forgotten.
    pub(super) fn wait_is_ignored(&mut self) -> bool {
        self.waits += 1;
        self.ignore_wait == Some(self.waits)
    }
}

/// What a call is about, and so whose device it may lose.
pub(super) trait Place: Copy {
    /// The context it lies in; `None` if there is no such thing, which the call itself will refuse.
    fn context(self, state: &State) -> Option<u32>;
}

impl Place for DeviceId {
    fn context(self, state: &State) -> Option<u32> {
        state.context("", self).ok()
    }
}

impl Place for StreamHandle {
    fn context(self, state: &State) -> Option<u32> {
        state.queues.lane_of(self).map(|lane| state.queues.lane(lane).device)
    }
}

impl Place for EventHandle {
    fn context(self, state: &State) -> Option<u32> {
        state.events.get(&self).map(|event| event.device)
    }
}

impl Place for PoolHandle {
    fn context(self, state: &State) -> Option<u32> {
        state.pools.get(&self).map(|pool| pool.device)
    }
}

impl Place for ModuleHandle {
    fn context(self, state: &State) -> Option<u32> {
        state.modules.device_of(self)
    }
}

impl Place for FunctionHandle {
    fn context(self, state: &State) -> Option<u32> {
        state.modules.device_of_function(self)
    }
}

impl State {
    /// Counts a call. Fails if it was ordered to; the code is of one that is to be accepted and to fail on the device.
    pub(super) fn called(&mut self, call: CallKind, place: impl Place) -> Result<Option<DriverCode>> {
        let Some(context) = place.context(self) else { return Ok(None) };
        let device = &self.devices[context as usize];
        if device.open == 0 || device.lost.is_some() {
            return Ok(None);
        }
        match self.faults.called(call) {
            None => Ok(None),
            Some(fail) if fail.late => Ok(Some(fail.code)),
            Some(fail) => {
                // It was asked for, which is what is counted.
                self.counters.launches += u64::from(call == CallKind::Launch);
                let detail = format!("{call:?} {} failed on order", fail.nth);
                let loses = if call.submits_or_waits() { fail.code.loses_work() } else { fail.code.is_sticky() };
                if loses {
                    self.lose(context, fail.code, detail.clone());
                }
                refuse(call.name(), fail.code, detail)
            }
        }
    }

    /// Submits work, which fails on the device if that was ordered.
    pub(super) fn submit(
        &mut self,
        call: CallKind,
        stream: StreamHandle,
        submit: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        let late = self.called(call, stream)?;
        let Some(lane) = self.queues.lane_of(stream) else { return submit(self) };
        let before = self.queues.lane(lane).submitted;
        submit(self)?;
        if let Some(code) = late
            && self.queues.lane(lane).submitted > before
        {
            self.queues.fail_last(lane, code);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATE: CallKind = CallKind::Allocate;

    fn fails<const N: usize>(faults: &mut Faults, call: CallKind) -> [bool; N] {
        [(); N].map(|()| faults.called(call).is_some())
    }

    #[test]
    fn a_call_fails_once_until_a_free_or_for_good() {
        let plan = |lasts| {
            let fail_calls = vec![FailCall::new(ALLOCATE, 2, lasts)];
            Faults::new(&SimOptions { fail_calls, ..SimOptions::default() })
        };
        let mut once = plan(FailureLasts::Once);
        assert_eq!(fails(&mut once, ALLOCATE), [false, true, false, false]);
        let mut until = plan(FailureLasts::UntilFree);
        assert_eq!(fails(&mut until, ALLOCATE), [false, true, true, true]);
        until.pinned_freed();
        assert_eq!(fails(&mut until, ALLOCATE), [true], "pinned memory is no device memory");
        until.freed();
        assert_eq!(fails(&mut until, ALLOCATE), [false]);
        let mut forever = plan(FailureLasts::Forever);
        assert_eq!(fails(&mut forever, ALLOCATE), [false, true, true]);
        forever.freed();
        assert_eq!(fails(&mut forever, ALLOCATE), [true]);
    }

    #[test]
    fn a_new_order_begins_a_new_count() {
        let mut faults = Faults::new(&SimOptions::default());
        let fail = |nth, lasts| Some(FailCall::new(ALLOCATE, nth, lasts));
        assert_eq!(fails(&mut faults, ALLOCATE), [false; 3]);
        assert_eq!(faults.order(ALLOCATE, fail(2, FailureLasts::Once)), 3);
        assert_eq!(fails(&mut faults, ALLOCATE), [false, true, false]);
        assert_eq!(faults.order(ALLOCATE, fail(1, FailureLasts::Forever)), 3);
        assert_eq!(fails(&mut faults, ALLOCATE), [true, true]);
        // Taking an order back ends what it began.
        assert_eq!(faults.order(ALLOCATE, None), 2);
        assert_eq!(fails(&mut faults, ALLOCATE), [false, false]);
    }

    #[test]
    fn kinds_of_calls_are_counted_and_fail_by_themselves() {
        let fail_calls =
            [CallKind::EventCreate, CallKind::Launch].map(|call| FailCall::new(call, 2, FailureLasts::Once));
        let mut faults = Faults::new(&SimOptions { fail_calls: fail_calls.to_vec(), ..SimOptions::default() });
        assert_eq!(fails(&mut faults, CallKind::EventCreate), [false, true, false]);
        assert_eq!(fails(&mut faults, CallKind::Launch), [false, true]);
        assert_eq!(fails(&mut faults, CallKind::Upload), [false, false]);
        let seen = CallKind::ALL.iter().map(|call| faults.order(*call, None));
        assert_eq!(seen.sum::<u64>(), 7);
    }

    #[test]
    #[should_panic = "cannot fail late"]
    fn what_is_done_when_it_returns_cannot_fail_late() {
        let fail = FailCall::late(CallKind::EventCreate, 1, DriverCode::LAUNCH_FAILED);
        Faults::new(&SimOptions { fail_calls: vec![fail], ..SimOptions::default() });
    }

    #[test]
    fn random_numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
        assert_ne!(Random::new(1).next(), Random::new(2).next());
    }
}
