//! The comparison of strategies on the simulated device: counts, equal for equal seeds, and nothing left allocated.

use std::time::Duration;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::measure::{MeasureOptions, Measurements, Pattern, measure};
use millpond_memory::{ByteSize, Device, Strategy};

fn measured(options: &MeasureOptions, sim: SimOptions) -> Measurements {
    let sim = SimDriver::new(sim);
    let device = Device::open(sim.clone(), 0).unwrap();
    let before = device.memory_info().unwrap().free_bytes;
    let measured = measure(&device, options, |_| ()).unwrap();
    assert_eq!(device.memory_info().unwrap().free_bytes, before, "everything is given back");
    assert_eq!(device.take_errors().len(), 0);
    assert_eq!(sim.take_findings(), []);
    measured
}

fn of(patterns: &[Pattern]) -> MeasureOptions {
    MeasureOptions { patterns: patterns.to_vec(), ..MeasureOptions::default() }
}

#[test]
fn the_whole_matrix_runs_counts_and_gives_everything_back() {
    let all = measured(&MeasureOptions::default(), SimOptions::default());
    assert!(!all.timed);
    for pattern in Pattern::ALL.into_iter().filter(|pattern| *pattern != Pattern::Events) {
        let cells: Vec<_> = all.cells.iter().filter(|cell| cell.pattern == pattern).collect();
        assert!(!cells.is_empty(), "{pattern}");
        for cell in cells {
            assert_eq!((&cell.problem, cell.failures, cell.cut), (&None, 0, false), "{cell:?}");
            assert!(cell.steps > 0 && cell.allocations > 0, "{cell:?}");
            assert_eq!(cell.allocations, cell.frees, "{cell:?}");
            assert!(cell.peak.reserved >= cell.peak.used && cell.peak.used > ByteSize::ZERO, "{cell:?}");
            assert_eq!((cell.allocate, cell.free, cell.step), (None, None, None), "simulated time says nothing");
        }
    }
    assert!(all.events.iter().all(|figure| figure.time.is_none()));
    let calls = |operation: &str| {
        let figure = all.events.iter().find(|figure| figure.operation == operation);
        figure.unwrap_or_else(|| panic!("{operation}")).driver_calls_per_operation
    };
    assert_eq!(calls("layer: wait that is implied"), 0.0);
    assert_eq!(calls("layer: event query, passed"), 0.0);
    assert!(calls("layer: wait of another stream") >= 2.0, "a record and a wait");
}

#[test]
fn counts_of_the_loop_are_those_of_the_strategies() {
    let all = measured(&of(&[Pattern::Loop]), SimOptions::default());
    let cell = |name: &str| all.cells.iter().find(|cell| cell.subject == name && cell.case == "4 KiB").unwrap();
    for strategy in Strategy::ALL {
        assert_eq!((cell(strategy.name()).allocations, cell(strategy.name()).steps), (20, 20), "{strategy}");
    }
    // The loop itself waits once per lap; cuda's free waits again.
    assert_eq!(cell("cuda_async").host_waits, 20);
    assert!(cell("cuda").host_waits >= 40);
    // Cached memory is reused without a driver call.
    assert!(cell("caching").driver_calls < cell("cuda_async").driver_calls);
    assert_eq!(cell("cuda").against_cuda, Some(1.0));
    assert_eq!(cell("cuda_async").against_cuda_async, Some(1.0));
    assert!(cell("caching").against_cuda_async.unwrap() < 1.0);
    // cuda takes the requested bytes; the others take more at once.
    assert_eq!(cell("cuda").peak.reserved, ByteSize::kib(4));
    assert!(cell("arena").peak.fragmentation().unwrap() > 0.9);
}

#[test]
fn counts_depend_on_the_seed_alone() {
    let options = |seed| MeasureOptions { seed, ..of(&[Pattern::Random, Pattern::Query, Pattern::Streams]) };
    let seeded = |seed| measured(&options(seed), SimOptions { seed, ..SimOptions::default() });
    assert_eq!(seeded(3), seeded(3));
    assert_ne!(seeded(3), seeded(4));
}

#[test]
fn a_small_device_has_failures_and_no_error() {
    let sim = SimOptions { memory_bytes: 4 << 20, ..SimOptions::default() };
    let all = measured(&MeasureOptions { budget: Duration::ZERO, ..MeasureOptions::default() }, sim);
    // An arena's chunk of 32 MiB does not fit; it then takes the requested bytes. The others manage with little memory,
    // or report failures.
    assert!(all.cells.iter().all(|cell| cell.allocations == cell.frees), "{all:#?}");
}

#[test]
fn a_lost_device_is_an_error() {
    let sim = SimDriver::new(SimOptions::default());
    let device = Device::open(sim.clone(), 0).unwrap();
    let lost = measure(&device, &of(&[Pattern::Loop]), |_| sim.lose_device(device.id()));
    assert!(lost.unwrap_err().is_device_lost());
}

#[test]
fn patterns_have_names() {
    for pattern in Pattern::ALL {
        assert_eq!(pattern.name().parse(), Ok(pattern));
        assert!(!pattern.claim().is_empty() && !pattern.claim().starts_with(' '));
    }
    assert!("warp".parse::<Pattern>().unwrap_err().contains("threshold or reuse"));
}
