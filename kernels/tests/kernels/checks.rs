//! The self-test's checks of this crate, on the simulated device.

use std::collections::HashSet;

use millpond_kernels::checks::{checks, relaxed_messages, thorough_checks};
use millpond_memory::Device;
use millpond_memory::driver::sim::{Shape, SimDriver, SimOptions};

#[test]
fn every_check_passes_under_any_schedule() {
    for check in checks() {
        for seed in 0..2 {
            let driver = SimDriver::new(SimOptions { seed, ..SimOptions::default() });
            let ended = (check.run)(&Device::open(driver.clone(), 0).unwrap());
            assert!(ended.is_ok(), "{check:?} with seed {seed}: {}", ended.unwrap_err());
            let findings = driver.take_findings();
            assert!(findings.is_empty(), "{check:?} with seed {seed}: {findings:#?}");
        }
    }
}

/// Checks that do not depend on a limit of blocks and take long: instruction results, memory order, damaged pages.
const ALIKE_EVERYWHERE: [&str; 3] = ["kernels/vectors", "order/", "kernels/parquet_damage"];

/// The schedule decides which lane of a warp runs first; damaged pages depend on it more than others do.
#[test]
fn damaged_pages_are_survived_under_many_schedules() {
    for check in checks().iter().filter(|check| check.name.starts_with("kernels/parquet")) {
        for seed in 2..14 {
            let driver = SimDriver::new(SimOptions { seed, ..SimOptions::default() });
            let ended = (check.run)(&Device::open(driver.clone(), 0).unwrap());
            let findings = driver.take_findings();
            assert!(findings.is_empty() && ended.is_ok(), "{check:?} with seed {seed}: {findings:#?} {ended:?}");
        }
    }
}

#[test]
fn checks_pass_on_devices_of_every_shape() {
    let is_alike = |name: &str| ALIKE_EVERYWHERE.iter().any(|start| name.starts_with(start));
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != SimOptions::default().shape) {
        for check in checks().iter().filter(|check| !is_alike(check.name)) {
            let driver = SimDriver::new(SimOptions { shape, ..SimOptions::default() });
            let ended = (check.run)(&Device::open(driver.clone(), 0).unwrap());
            assert!(ended.is_ok(), "{check:?} on {}: {}", shape.name(), ended.unwrap_err());
            let findings = driver.take_findings();
            assert!(findings.is_empty(), "{check:?} on {}: {findings:#?}", shape.name());
        }
    }
}

#[test]
fn messages_without_a_release_and_an_acquire_arrive_before_their_data() {
    // As on a GPU, where some of a million messages are stale: so the check of messages can detect a missing release or
    // acquire.
    for seed in 0..4 {
        let stale = |shuffle_blocks| {
            let driver = SimDriver::new(SimOptions { seed, shuffle_blocks, ..SimOptions::default() });
            let stale = relaxed_messages(&Device::open(driver.clone(), 0).unwrap()).unwrap();
            assert!(driver.take_findings().is_empty(), "relaxed accesses do not race");
            stale
        };
        assert!(stale(true) > 0, "seed {seed}");
        assert_eq!(stale(false), 0, "without shuffling every load is the newest");
    }
}

#[test]
fn names_are_different() {
    let names: HashSet<&str> = checks().iter().chain(thorough_checks()).map(|check| check.name).collect();
    assert_eq!(names.len(), checks().len() + thorough_checks().len());
}
