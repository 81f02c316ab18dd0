//! Trouble on order: full memory, allocations that fail, devices that are lost.

use super::sim_rig::{DEVICE, Rig, seeds};
use millpond_memory::driver::sim::{FailAllocation, FailureLasts, SimOptions};
use millpond_memory::driver::*;

fn failing(nth: u64, lasts: FailureLasts) -> Rig {
    Rig::with(SimOptions { fail_allocation: Some(FailAllocation { nth, lasts }), ..SimOptions::default() })
}

#[test]
fn the_nth_allocation_fails_once() {
    let rig = failing(2, FailureLasts::Once);
    let s = rig.stream();
    let first = rig.alloc(64, s);
    assert_eq!(rig.try_alloc(64, s).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
    let third = rig.alloc(64, s);
    rig.free(first, s);
    rig.free(third, s);
    assert_eq!(rig.close(), []);
}

#[test]
fn allocations_fail_until_something_is_freed() {
    let rig = failing(2, FailureLasts::UntilFree);
    let s = rig.stream();
    let first = rig.alloc(64, s);
    for _ in 0..5 {
        assert_eq!(rig.try_alloc(64, s).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
    }
    rig.free(first, s);
    let next = rig.alloc(64, s);
    rig.free(next, s);
    assert_eq!(rig.close(), []);
}

#[test]
fn memory_has_an_end() {
    for seed in seeds() {
        let rig = Rig::with(SimOptions { seed, memory_bytes: 1 << 20, ..SimOptions::default() });
        let s = rig.stream();
        let mut held = Vec::new();
        let error = loop {
            match rig.try_alloc(100_000, s) {
                Ok(ptr) => held.push(ptr),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code, DriverCode::OUT_OF_MEMORY);
        assert!((7..=10).contains(&held.len()), "{} of ten", held.len());
        held.into_iter().for_each(|ptr| rig.free(ptr, s));
        // The device still uses what was freed: pieces of it serve, and nothing moves.
        assert_eq!(rig.try_alloc(600_000, s).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
        rig.sync(s);
        let again = rig.alloc(600_000, s);
        rig.free(again, s);
        assert_eq!(rig.close(), []);
    }
}

#[test]
fn a_lost_device_stays_lost() {
    for seed in seeds() {
        let rig = Rig::with(SimOptions { seed, devices: 2, ..SimOptions::default() });
        let (s, other) = (rig.stream(), rig.driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap());
        let a = rig.alloc(64, s);
        rig.fill(a, 1, 64, s);
        let event = rig.record(s);
        rig.wait(other, event);
        rig.driver.lose_device(DEVICE);
        let lost = DriverCode::ECC_UNCORRECTABLE;
        assert_eq!(rig.driver.event_query(event).unwrap_err().code, lost);
        assert_eq!(rig.driver.event_synchronize(event).unwrap_err().code, lost);
        assert_eq!(rig.driver.stream_synchronize(s).unwrap_err().code, lost);
        assert_eq!(rig.driver.device_synchronize(DEVICE).unwrap_err().code, lost);
        assert_eq!(rig.driver.memory_info(DEVICE).unwrap_err().code, lost);
        assert_eq!(rig.try_alloc(64, s).unwrap_err().code, lost);
        assert!(lost.is_sticky());
        // The other device works on, and nobody hangs on what will never happen.
        rig.driver.stream_synchronize(other).unwrap();
        rig.driver.device_synchronize(DeviceId(1)).unwrap();
        assert_eq!(rig.close(), [], "what a lost device held is not a leak of the program");
    }
}
