//! Trouble on order: allocations that fail, a device that is lost or hangs, an order that is forgotten. All off by default.
//!
//!   fail_allocation = 3, Once             ok  ok  FAIL  ok  ok
//!   fail_allocation = 3, UntilFree        ok  ok  FAIL  FAIL  (free)  ok
//!   fail_allocation = 3, Forever          ok  ok  FAIL  FAIL  (free)  FAIL

use super::SimOptions;

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

/// For how long an injected allocation failure lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureLasts {
    /// The next try succeeds.
    Once,
    /// Every try fails until something is freed.
    UntilFree,
    /// Every try fails from then on: out of memory that nothing cures.
    Forever,
}

/// An allocation that fails although there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailAllocation {
    /// Which device allocation fails, counted from 1 over all devices since the order was given.
    pub nth: u64,
    pub lasts: FailureLasts,
}

/// What of the ordered trouble has happened.
#[derive(Debug)]
pub(super) struct Faults {
    fail_allocation: Option<FailAllocation>,
    lose_device_at_launch: Option<u64>,
    hang_at_launch: Option<u64>,
    fail_pinned: Option<FailAllocation>,
    ignore_wait: Option<u64>,
    allocations: u64,
    pinned_allocations: u64,
    launches: u64,
    waits: u64,
    lasting: Option<FailureLasts>,
    pinned_lasting: Option<FailureLasts>,
}

impl Faults {
    pub(super) fn new(options: &SimOptions) -> Self {
        Self {
            fail_allocation: options.fail_allocation,
            lose_device_at_launch: options.lose_device_at_launch,
            hang_at_launch: options.hang_at_launch,
            fail_pinned: options.fail_pinned_allocation,
            ignore_wait: options.ignore_wait,
            allocations: 0,
            pinned_allocations: 0,
            launches: 0,
            waits: 0,
            lasting: None,
            pinned_lasting: None,
        }
    }

    /// Replaces the order for allocations; counting begins anew. Returns how many were tried under the one before.
    pub(super) fn order_allocation(&mut self, fail: Option<FailAllocation>) -> u64 {
        (self.fail_allocation, self.lasting) = (fail, None);
        std::mem::take(&mut self.allocations)
    }

    /// Counts an allocation, and says whether it must fail.
    pub(super) fn allocation_fails(&mut self) -> bool {
        self.allocations += 1;
        match self.fail_allocation {
            Some(fail) if fail.nth == self.allocations => {
                self.lasting = (fail.lasts != FailureLasts::Once).then_some(fail.lasts);
                true
            }
            _ => self.lasting.is_some(),
        }
    }

    pub(super) fn freed(&mut self) {
        self.lasting = self.lasting.filter(|lasts| *lasts == FailureLasts::Forever);
    }

    /// Replaces the order for pinned allocations; counting begins anew.
    pub(super) fn order_pinned_allocation(&mut self, fail: Option<FailAllocation>) -> u64 {
        (self.fail_pinned, self.pinned_lasting) = (fail, None);
        std::mem::take(&mut self.pinned_allocations)
    }

    /// Counts an allocation of pinned memory, and says whether it must fail.
    pub(super) fn pinned_allocation_fails(&mut self) -> bool {
        self.pinned_allocations += 1;
        match self.fail_pinned {
            Some(fail) if fail.nth == self.pinned_allocations => {
                self.pinned_lasting = (fail.lasts != FailureLasts::Once).then_some(fail.lasts);
                true
            }
            _ => self.pinned_lasting.is_some(),
        }
    }

    pub(super) fn pinned_freed(&mut self) {
        self.pinned_lasting = self.pinned_lasting.filter(|lasts| *lasts == FailureLasts::Forever);
    }

    /// Counts a launch, and says whether the device is lost with it.
    pub(super) fn launch_loses_device(&mut self) -> bool {
        self.launches += 1;
        self.lose_device_at_launch == Some(self.launches)
    }

    /// Whether the launch that was counted last never ends.
    pub(super) fn launch_hangs(&self) -> bool {
        self.hang_at_launch == Some(self.launches)
    }

    /// Counts a wait of a stream, and says whether it is forgotten.
    pub(super) fn wait_is_ignored(&mut self) -> bool {
        self.waits += 1;
        self.ignore_wait == Some(self.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_fails_once_until_a_free_or_for_good() {
        let plan = |lasts| {
            let fail_allocation = Some(FailAllocation { nth: 2, lasts });
            Faults::new(&SimOptions { fail_allocation, ..SimOptions::default() })
        };
        let mut once = plan(FailureLasts::Once);
        assert_eq!([(); 4].map(|()| once.allocation_fails()), [false, true, false, false]);
        let mut until = plan(FailureLasts::UntilFree);
        assert_eq!([(); 4].map(|()| until.allocation_fails()), [false, true, true, true]);
        until.freed();
        assert!(!until.allocation_fails());
        let mut forever = plan(FailureLasts::Forever);
        assert_eq!([(); 3].map(|()| forever.allocation_fails()), [false, true, true]);
        forever.freed();
        assert!(forever.allocation_fails());
    }

    #[test]
    fn a_new_order_begins_a_new_count() {
        let mut faults = Faults::new(&SimOptions::default());
        let once = |nth| Some(FailAllocation { nth, lasts: FailureLasts::Once });
        assert_eq!([(); 3].map(|()| faults.allocation_fails()), [false; 3]);
        assert_eq!(faults.order_allocation(once(2)), 3);
        assert_eq!([(); 3].map(|()| faults.allocation_fails()), [false, true, false]);
        assert_eq!(faults.order_allocation(Some(FailAllocation { nth: 1, lasts: FailureLasts::Forever })), 3);
        assert_eq!([(); 2].map(|()| faults.allocation_fails()), [true, true]);
        // Taking an order back ends what it began.
        assert_eq!(faults.order_allocation(None), 2);
        assert_eq!([(); 2].map(|()| faults.allocation_fails()), [false, false]);
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
