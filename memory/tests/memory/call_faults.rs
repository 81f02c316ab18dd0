//! Fault injection: each driver call in turn fails, under a small program on the memory layer.
//!
//! ```text
//!   upload ─► kernel ─► on another stream: copy, fill, download ─► everything dropped, half of it while in flight
//!        └─ the n-th call of a kind fails: once │ until a free │ forever │ and loses the device │ late, on the device
//! ```
//!
//! Afterwards  a result is right; an error names the call; nothing is in use, lent or found, and no drop had an error;
//!             the same program then produces the right bytes, unless the device is lost.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_memory::driver::KernelLaunch;
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions};
use millpond_memory::{
    Access, ByteSize, Device, DeviceBuffer, DriverCode, HostKind, MemoryError, MemoryPool, PinnedPool, Result,
    Strategy, Stream, UseSet,
};

use super::sim_launch::{ALL, BYTES, KERNELS, LEN};
use crate::pending::block_on;

struct World {
    driver: Arc<SimDriver>,
    device: Device,
    pool: MemoryPool,
    pinned: PinnedPool,
}

/// Far above the normal duration: turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(300);

impl World {
    fn open(seed: u64, strategy: Strategy) -> Self {
        let driver = SimDriver::new(SimOptions { seed, ..SimOptions::default() });
        let device = Device::open(driver.clone(), 0).unwrap();
        let pool = MemoryPool::builder(&device).strategy(strategy).build().unwrap();
        let pinned = PinnedPool::builder(&device).max_bytes(ByteSize::mib(4)).build();
        World { driver, device, pool, pinned }
    }

    /// Returns `input + 1`, except for the first word, which is filled; uses both streams.
    fn program(&self) -> Result<Vec<u8>> {
        let World { driver, device, pool, pinned } = self;
        let (a, b) = (Stream::new(device)?, Stream::new(device)?);
        let add_one = device.load_module(KERNELS)?.kernel("add_one")?;
        add_one.attributes()?;
        let info = device.memory_info()?;
        assert!(info.free_bytes <= info.total_bytes);

        let input: Vec<u8> = (0..LEN as u32).flat_map(u32::to_le_bytes).collect();
        let from = DeviceBuffer::upload(&input, &a, pool, pinned)?;
        let to = DeviceBuffer::new(BYTES, &a, pool)?;
        {
            let mut uses = UseSet::new();
            uses.add(&from, Access::Read);
            uses.add(&to, Access::Write);
            let mut guards = uses.take(&a, Location::caller())?;
            let words = [from.address().0, to.address().0, 0, LEN as u64];
            let params: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let accesses = guards.declared().to_vec();
            let launch = KernelLaunch {
                function: add_one.function(),
                name: "add_one",
                grid: [ALL.0, 1, 1],
                block: [ALL.1, 1, 1],
                shared_bytes: 0,
                params: &params,
                accesses: &accesses,
                figures: None,
                site: Location::caller(),
            };
            let (_, position) = a.submit(|_, on| driver.launch_checked(&launch, on))?;
            guards.submitted(position);
            add_one.launched(&a, position);
        }
        // Read on another stream while its own stream continues, and dropped in flight.
        let copied = DeviceBuffer::new(BYTES, &b, pool)?;
        to.copy_to(&copied, &b)?;
        drop((from, to));
        copied.view(0..4)?.fill(9, &b)?;
        drop(copied.download(&b, pinned)?);
        let home = copied.download_vec(&b, pinned)?;
        let staging = pinned.take_now(HostKind::Upload, 64)?;
        drop(staging.copy_to_device(&copied.view(64..128)?, &a)?);
        drop((copied, add_one));
        let bytes = block_on(home)?;
        a.synchronize()?;
        device.synchronize()?;
        pool.statistics()?;
        pool.trim_to(ByteSize::ZERO)?;
        Ok(bytes)
    }

    /// Describes what remains when the device has finished.
    fn left(&self) -> Option<String> {
        let began = Instant::now();
        loop {
            let (used, lent) = (self.pool.used_bytes(), self.pinned.statistics().lent);
            if (used, lent) == (ByteSize::ZERO, ByteSize::ZERO) {
                break;
            }
            if began.elapsed() > PATIENCE {
                return Some(format!("{used} of the device and {lent} of pinned memory stay in use"));
            }
            std::thread::yield_now();
        }
        if let Some(error) = self.device.take_errors().first() {
            return Some(format!("an error in a drop: {error}"));
        }
        self.driver.take_findings().first().map(|finding| format!("found: {finding}"))
    }

    /// Closes the device, and returns a finding, if any.
    fn close(self) -> Option<String> {
        let World { driver, device, pool, pinned } = self;
        drop((pool, pinned, device));
        driver.take_findings().first().map(|finding| format!("found at the end: {finding}"))
    }
}

fn expected() -> Vec<u8> {
    let mut words: Vec<u8> = (1..=LEN as u32).flat_map(u32::to_le_bytes).collect();
    words[..4].fill(9);
    words
}

/// Number of calls of each kind that the program makes without faults.
fn undisturbed(world: &World) -> Vec<(CallKind, u64)> {
    CallKind::ALL.iter().for_each(|call| _ = world.driver.take_order_back(*call));
    assert_eq!(world.program().unwrap(), expected());
    assert_eq!(world.left(), None);
    CallKind::ALL
        .iter()
        .map(|call| (*call, world.driver.take_order_back(*call)))
        .filter(|(_, seen)| *seen > 0)
        .collect()
}

/// Runs the program with an injected failure, and checks what remains. `None` if that call never occurred: the number
/// of queries, and of blocks requested at once, depends on timing.
fn survived(world: &World, fail: FailCall) -> Option<Result<Vec<u8>>> {
    world.driver.order_failure(fail);
    let ran = world.program();
    let came = world.driver.take_order_back(fail.call) >= fail.nth;
    if let Ok(bytes) = &ran {
        assert_eq!(*bytes, expected(), "{fail:?}");
    }
    assert_eq!(world.left(), None, "{fail:?}, which ended in {ran:?}");
    came.then_some(ran)
}

#[test]
fn a_call_that_is_refused_leaves_nothing_and_the_next_run_is_right() {
    for strategy in Strategy::ALL {
        // The second run is counted: one-time resources exist by then.
        let open = || {
            let world = World::open(1, strategy);
            let _first = undisturbed(&world);
            (undisturbed(&world), world)
        };
        let (calls, mut world) = open();
        for (call, seen) in calls {
            for lasts in [FailureLasts::Once, FailureLasts::UntilFree, FailureLasts::Forever] {
                // Only allocating calls can succeed after a free.
                if lasts == FailureLasts::UntilFree && call.refusal() != DriverCode::OUT_OF_MEMORY {
                    continue;
                }
                for nth in (1..=seen).step_by(seen.div_ceil(4) as usize) {
                    let fail = FailCall::new(call, nth, lasts);
                    match survived(&world, fail) {
                        Some(Err(error @ MemoryError::OutOfMemory { .. })) => {
                            assert_eq!(call, CallKind::Allocate, "{error}")
                        }
                        // A device that repeatedly refuses event queries is given up; a single refusal does not
                        // suffice.
                        Some(Err(error)) if error.is_device_lost() => {
                            let goes_on = lasts != FailureLasts::Once;
                            assert!(call == CallKind::EventQuery && goes_on, "{strategy} {fail:?}: {error}");
                            assert_eq!(world.close(), None, "{strategy}, after {fail:?}");
                            world = open().1;
                        }
                        _ => {}
                    }
                    assert_eq!(world.program().unwrap(), expected(), "{strategy}, after {fail:?}");
                    assert_eq!(world.left(), None, "{strategy}, after {fail:?}");
                }
            }
        }
        assert_eq!(world.close(), None, "{strategy}");
    }
}

#[test]
fn a_device_that_is_lost_at_any_call_leaves_nothing() {
    let calls = undisturbed(&World::open(1, Strategy::default()));
    for (call, seen) in calls {
        for nth in [1, seen.div_ceil(2), seen] {
            let world = World::open(nth, Strategy::default());
            match survived(&world, FailCall::with_code(call, nth, DriverCode::MPS_CLIENT_TERMINATED)) {
                Some(ran) => {
                    let error = ran.expect_err("the device is lost");
                    assert!(error.is_device_lost(), "{call:?} {nth}: {error}");
                    assert!(world.program().expect_err("it stays lost").is_device_lost());
                }
                None => assert!(nth > 1, "{call:?} never came"),
            }
            assert_eq!(world.close(), None, "{call:?} {nth}");
        }
    }
}

/// A free may be the first call to notice the loss, and must not report an error that other calls do not see.
#[test]
fn a_free_that_finds_the_device_lost_is_no_error() {
    for strategy in Strategy::ALL {
        let world = World::open(1, strategy);
        let stream = Stream::new(&world.device).unwrap();
        let buffer = DeviceBuffer::zeroed(BYTES, &stream, &world.pool).unwrap();
        world.driver.lose_device(world.device.id());
        drop(buffer);
        assert_eq!(world.left(), None, "{strategy}");
        assert!(stream.synchronize().unwrap_err().is_device_lost(), "{strategy}");
        drop(stream);
        assert_eq!(world.close(), None, "{strategy}");
    }
}

#[test]
fn work_that_fails_on_the_device_is_never_taken_for_an_answer() {
    let calls = undisturbed(&World::open(1, Strategy::default()));
    for (call, seen) in calls.into_iter().filter(|(call, _)| call.is_work()) {
        for nth in 1..=seen {
            for code in [DriverCode::ILLEGAL_ADDRESS, DriverCode::CONTAINED, DriverCode::MPS_CONNECTION_FAILED] {
                let world = World::open(nth, Strategy::default());
                let ran = survived(&world, FailCall::late(call, nth, code)).expect("work is the program's own");
                let error = ran.expect_err("the device is lost");
                assert!(error.is_device_lost(), "{call:?} {nth}: {error}");
                assert!(error.to_string().contains(&code.to_string()), "{call:?} {nth}: {error}");
                assert_eq!(world.close(), None, "{call:?} {nth}");
            }
        }
    }
}
