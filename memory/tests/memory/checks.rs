//! The self-test's checks of this crate, on the simulated device: all pass, and a forgotten wait does not.

use std::collections::HashSet;

use millpond_memory::Device;
use millpond_memory::checks::{Check, CheckError, checks};
use millpond_memory::driver::sim::{SimDriver, SimOptions};

fn run(check: &Check, options: SimOptions) -> (Result<(), CheckError>, usize) {
    let driver = SimDriver::new(options);
    let ended = (check.run)(&Device::open(driver.clone(), 0).unwrap());
    (ended, driver.take_findings().len())
}

#[test]
fn every_check_passes_under_any_schedule() {
    for check in checks() {
        for seed in 0..3 {
            let (ended, findings) = run(check, SimOptions { seed, ..SimOptions::default() });
            assert!(ended.is_ok(), "{check:?} with seed {seed}: {}", ended.unwrap_err());
            assert_eq!(findings, 0, "{check:?} with seed {seed}");
        }
    }
}

#[test]
fn names_are_different_and_claims_are_sentences() {
    let names: HashSet<&str> = checks().iter().map(|check| check.name).collect();
    assert_eq!(names.len(), checks().len());
    for check in checks() {
        assert!(check.name.starts_with("memory/") && check.claim.contains(' '), "{check:?}: {}", check.claim);
    }
}

#[test]
fn a_forgotten_wait_is_noticed() {
    for name in ["memory/hand_over", "memory/readers", "memory/reuse"] {
        let check = checks().iter().find(|check| check.name == name).unwrap();
        let noticed = (1..=4).filter(|wait| {
            let (ended, findings) = run(check, SimOptions { ignore_wait: Some(*wait), ..SimOptions::default() });
            ended.is_err() || findings > 0
        });
        assert!(noticed.count() > 0, "{name} goes on as if nothing were missing");
    }
}
