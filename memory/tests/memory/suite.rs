//! The conformance suite: every claim of `millpond_memory::conformance`, on the simulated device and over the shim; its
//! table; and the effect of removing one ordering edge.
//!
//!   claim × strategy × seed ─► its own device ─► run ─► closed ─► findings as planned, or none ─► no byte is left

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use millpond_memory::checks::CheckError;
use millpond_memory::conformance::table::{ELSEWHERE, LINES, UNTESTED, page};
use millpond_memory::conformance::{Claim, Needs, Over, claims};
use millpond_memory::driver::sim::{SimCounters, SimDriver, SimOptions};
use millpond_memory::driver::{DeviceId, Driver, Finding, FindingKind, PoolAttribute};
use millpond_memory::{Device, Strategy};

const SEEDS: u64 = 3;

fn options(claim: &Claim, seed: u64) -> SimOptions {
    let devices = if matches!(claim.needs, Needs::TwoDevices | Needs::DevicesApart) { 2 } else { 1 };
    SimOptions { seed, devices, refuse_peers: claim.needs == Needs::DevicesApart, ..SimOptions::default() }
}

struct Ended {
    result: Result<(), CheckError>,
    findings: Vec<Finding>,
    counters: SimCounters,
    free_bytes: u64,
}

/// Runs a claim on its own device, which is closed afterwards: leftovers are a finding.
fn run(claim: &Claim, strategy: Strategy, options: SimOptions) -> Ended {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    let other = match claim.needs {
        Needs::Nothing => None,
        Needs::TwoDevices | Needs::DevicesApart => Some(Device::open(driver.clone(), 1).unwrap()),
        Needs::TwoProcesses => Some(Device::open(driver.second_process(), 0).unwrap()),
    };
    let result = claim.try_with(&device, strategy, other);
    let counters = driver.counters();
    drop(device);
    driver.device_open(DeviceId(0)).unwrap();
    let free_bytes = driver.memory_info(DeviceId(0)).unwrap().free_bytes;
    Ended { result, findings: driver.take_findings(), counters, free_bytes }
}

fn kinds(findings: &[Finding]) -> BTreeSet<&'static str> {
    findings.iter().map(|finding| finding.kind.as_str()).collect()
}

/// Runs every claim of an area under every seed.
fn holds(area: &str) {
    let mut ran = 0;
    for claim in claims().iter().filter(|claim| claim.name.starts_with(area)) {
        for &strategy in claim.over.strategies() {
            for seed in 0..SEEDS {
                let what = format!("{claim:?} with {strategy}, seed {seed}");
                let options = options(claim, seed);
                let memory = options.memory_bytes;
                let ended = run(claim, strategy, options);
                assert!(ended.result.is_ok(), "{what}: {}", ended.result.unwrap_err());
                match claim.finds {
                    None => assert!(ended.findings.is_empty(), "{what}: {:#?}", ended.findings),
                    Some(kind) => {
                        assert_eq!(
                            kinds(&ended.findings),
                            BTreeSet::from([kind.as_str()]),
                            "{what}: {:#?}",
                            ended.findings
                        )
                    }
                }
                if claim.finds != Some(FindingKind::Leak) {
                    assert_eq!(ended.free_bytes, memory, "{what}: bytes of the device are still taken");
                }
                ran += 1;
            }
        }
    }
    assert!(ran > 0, "there is no claim {area}…");
}

#[test]
fn what_this_crate_promises_of_itself() {
    holds("memory/");
}

#[test]
fn stream_order() {
    holds("order/");
}

#[test]
fn pools() {
    holds("pools/");
}

#[test]
fn kinds_of_pools() {
    holds("kinds/");
}

#[test]
fn reuse() {
    holds("reuse/");
}

#[test]
fn peers() {
    holds("peers/");
}

#[test]
fn two_processes() {
    holds("ipc/");
}

#[test]
fn what_is_undefined_is_found() {
    holds("found/");
}

/// Otherwise a claim would never run.
#[test]
fn every_claim_is_of_an_area_above() {
    let areas = ["memory", "order", "kinds", "pools", "reuse", "peers", "ipc", "found"];
    let names: BTreeSet<&str> = claims().iter().map(|claim| claim.name).collect();
    assert_eq!(names.len(), claims().len(), "names are different");
    for claim in claims() {
        let area = claim.name.split('/').next().unwrap();
        assert!(areas.contains(&area), "{claim:?}");
        assert!(claim.claim.contains(' ') && !claim.claim.ends_with('.'), "{claim:?}: {}", claim.claim);
        assert!(area != "found" || claim.finds.is_some(), "{claim:?}");
    }
}

// Over the shim.

/// Tests that run in a process whose libcuda is the shim, and do nothing elsewhere.
#[cfg(target_os = "linux")]
mod inside {
    use super::*;
    use millpond_memory::driver::CudaDriver;

    fn each(wanted: impl Fn(&Claim) -> bool) {
        if !crate::shim::is_inside() {
            return;
        }
        let driver = CudaDriver::open().unwrap();
        let device = || Device::open(driver.clone(), 0).unwrap();
        for claim in claims().iter().filter(|claim| wanted(claim)) {
            let device = device();
            if claim.unfit(&device).is_none() {
                let ended = claim.try_on(&device);
                assert!(ended.is_ok(), "{claim:?}: {}", ended.unwrap_err());
                println!("held: {}", claim.name);
            }
        }
    }

    #[test]
    fn what_holds() {
        each(|claim| claim.finds.is_none());
    }

    #[test]
    fn what_is_found() {
        each(|claim| claim.finds.is_some());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn claims_hold_through_libcuda() {
    let mut held = BTreeSet::new();
    for (seed, refuse_peers) in [("1", "0"), ("2", "1")] {
        let environment =
            [("CUDA_SHIM_SEED", seed), ("CUDA_SHIM_DEVICES", "2"), ("CUDA_SHIM_REFUSE_PEERS", refuse_peers)];
        let ended = crate::shim::over_the_shim("suite::inside::what_holds", &environment);
        assert_eq!(ended.findings, [""; 0], "seed {seed}");
        let told = ended.output.lines().filter_map(|line| line.split_once("held: ")).map(|(_, name)| name.to_string());
        held.extend(told);
    }
    let elsewhere = |claim: &&Claim| claim.only_simulated.is_none() && claim.needs != Needs::TwoProcesses;
    let expected = claims().iter().filter(elsewhere).filter(|claim| claim.finds.is_none());
    assert_eq!(held, expected.map(|claim| claim.name.to_string()).collect());
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_undefined_is_found_through_libcuda() {
    let ended = crate::shim::over_the_shim("suite::inside::what_is_found", &[("CUDA_SHIM_SEED", "3")]);
    let text = ended.findings.join("\n");
    let mut found: Vec<&str> =
        text.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    found.dedup();
    let planted = claims().iter().filter(|claim| claim.only_simulated.is_none() && claim.needs == Needs::Nothing);
    let mut expected: Vec<&str> = planted.filter_map(|claim| claim.finds).map(FindingKind::as_str).collect();
    expected.dedup();
    assert_eq!(found, expected, "{text}");
}

// Mutations: the claims must detect them.

/// Removes one ordering edge at a time, by ignoring each stream wait in turn: the checker must fire.
#[test]
fn no_edge_may_be_missing() {
    let mut removed = 0;
    for claim in claims().iter().filter(|claim| claim.edges) {
        for &strategy in claim.over.strategies() {
            let waits = run(claim, strategy, options(claim, 1)).counters.stream_waits;
            let goes_on = |wait: &u64| {
                let ended = run(claim, strategy, SimOptions { ignore_wait: Some(*wait), ..options(claim, 1) });
                ended.result.is_ok() && ended.findings.is_empty()
            };
            let unnoticed: Vec<u64> = (1..=waits).filter(goes_on).collect();
            // Memory that our resources free on a stream may stay unused, and a free of plain memory waits for the
            // whole device: such waits are missed only if another use of the bytes follows.
            let most = if Over::Pools.strategies().contains(&strategy) { 0 } else { waits as usize - 1 };
            assert!(
                unnoticed.len() <= most,
                "{claim:?} with {strategy} goes on without {unnoticed:?} of {waits} waits"
            );
            removed += waits;
        }
    }
    assert!(removed > 100, "{removed}");
}

/// A driver that ignores a setting must fail the claims about it.
#[test]
fn no_setting_may_be_forgotten() {
    for (attribute, names) in [
        (PoolAttribute::ReleaseThreshold, &["memory/pool", "pools/threshold", "pools/loop", "pools/trim"][..]),
        (PoolAttribute::ReuseFollowEventDependencies, &["reuse/never_unordered", "reuse/switches"]),
        (PoolAttribute::ReuseAllowOpportunistic, &["reuse/switches"]),
        (
            PoolAttribute::ReuseAllowInternalDependencies,
            &["reuse/never_unordered", "reuse/event_chain", "reuse/switches"],
        ),
        (PoolAttribute::UsedHigh, &["pools/statistics"]),
        (PoolAttribute::ReservedHigh, &["pools/statistics"]),
    ] {
        for name in names {
            let claim = claims().iter().find(|claim| claim.name == *name).unwrap();
            let options = SimOptions { forget_attribute: Some(attribute), ..options(claim, 1) };
            let ended = run(claim, Strategy::CudaAsync, options);
            assert!(ended.result.is_err(), "{name} holds although {attribute:?} was forgotten");
        }
    }
}

/// Claims ordered by the buffers themselves: some of their waits may be implied by others.
#[test]
fn a_forgotten_wait_is_noticed() {
    for name in ["memory/hand_over", "memory/readers", "memory/reuse", "order/one_pool_or_many"] {
        let claim = claims().iter().find(|claim| claim.name == name).unwrap();
        let noticed = (1..=4).filter(|wait| {
            let options = SimOptions { ignore_wait: Some(*wait), ..options(claim, 0) };
            let ended = run(claim, Strategy::CudaAsync, options);
            ended.result.is_err() || !ended.findings.is_empty()
        });
        assert!(noticed.count() > 0, "{name} goes on as if nothing were missing");
    }
}

// The table.

/// The lines that `docs/memory-conformance.md` must have, listed independently.
fn required() -> Vec<String> {
    let parts: [(&str, &[(u32, u32)]); 4] = [
        ("S0", &[(6, 11), (14, 14), (16, 20)]),
        ("S1", &[(6, 13), (15, 45), (47, 49)]),
        ("S2", &[(3, 3), (6, 6)]),
        ("S3", &[(2, 5), (14, 18), (22, 23)]),
    ];
    let lines = |(part, ranges): (&str, &[(u32, u32)])| {
        ranges.iter().flat_map(|&(from, to)| from..=to).map(|number| format!("{part}.{number}")).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(lines).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

#[test]
fn every_line_has_a_test_and_every_test_a_line() {
    let required = required();
    assert_eq!(required.len(), 67);
    let listed: Vec<&str> = LINES.iter().map(|line| line.id).collect();
    assert_eq!(listed, required);
    let mut witnesses: BTreeMap<&str, usize> = BTreeMap::new();
    let own = claims().iter().flat_map(|claim| claim.lines.iter().map(move |line| (*line, claim.name)));
    let others = ELSEWHERE.iter().flat_map(|other| other.lines.iter().map(move |line| (*line, other.test)));
    for (line, test) in own.chain(others) {
        assert!(listed.contains(&line), "{test} names {line}, which is no line of the list");
        *witnesses.entry(line).or_default() += 1;
    }
    let missing: Vec<&str> = listed.iter().filter(|line| !witnesses.contains_key(*line)).copied().collect();
    assert!(missing.is_empty(), "no test stands for {missing:?}");
    for (lines, why) in UNTESTED {
        assert!(!lines.is_empty() && why.contains(' '));
    }
}

/// Tests that the table names must exist, and must be tests.
#[test]
fn tests_elsewhere_are_there() {
    for other in ELSEWHERE {
        let text = std::fs::read_to_string(root().join(other.file)).unwrap_or_default();
        let at = text.find(&format!("fn {}(", other.test));
        let Some(at) = at else { panic!("{} has no test {}", other.file, other.test) };
        let before = text[..at].trim_end().rsplit("\n\n").next().unwrap();
        assert!(before.contains("#[test]"), "{} in {} is no test", other.test, other.file);
    }
}

#[test]
fn the_page_is_fresh() {
    let path = root().join("docs/memory-conformance.md");
    let page = page();
    if std::env::var_os("MILLPOND_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(page.lines()).find(|(found, page)| found != page);
    let how = "MILLPOND_WRITE_DOCS=1 cargo test -p millpond-memory the_page_is_fresh writes it";
    assert!(found == page, "docs/memory-conformance.md is stale ({how}): {differs:?}");
}
