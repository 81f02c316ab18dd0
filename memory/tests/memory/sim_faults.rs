//! Injected faults: failing calls of every kind, full memory, work that fails on the device, lost devices.

use super::sim_launch::KERNELS;
use super::sim_rig::{DEVICE, Rig, declare, seeds};
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions};
use millpond_memory::driver::*;
use std::num::NonZeroUsize;
use std::panic::Location;

fn failing(nth: u64, lasts: FailureLasts) -> Rig {
    let fail_calls = vec![FailCall::new(CallKind::Allocate, nth, lasts)];
    Rig::with(SimOptions { fail_calls, ..SimOptions::default() })
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
        // The device still uses the freed memory: its parts are not joined for a larger request.
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
        // The other device works, and no call hangs on work that will never run.
        rig.driver.stream_synchronize(other).unwrap();
        rig.driver.device_synchronize(DeviceId(1)).unwrap();
        assert_eq!(rig.close(), [], "what a lost device held is not a leak of the program");
    }
}

/// A rig with one object of each kind, so that any call can be made alone.
struct Bench {
    rig: Rig,
    stream: StreamHandle,
    event: EventHandle,
    module: ModuleHandle,
    count: FunctionHandle,
    code: Vec<u8>,
    near: DevicePtr,
    far: DevicePtr,
    host: HostSpan,
    word: HostSpan,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let rig = Rig::new(seed);
        let stream = rig.stream();
        let (near, far) = (rig.alloc(64, stream), rig.alloc(64, stream));
        rig.fill(near, 1, 64, stream);
        rig.fill(far, 1, 64, stream);
        let module = rig.driver.module_load(DEVICE, KERNELS).unwrap();
        let count = rig.driver.module_function(module, "count").unwrap();
        let code = rig.driver.assemble(DEVICE, KERNELS).unwrap();
        let (host, word) = (rig.host(64), rig.host(4));
        word.block().claim_words().unwrap();
        let event = rig.record(stream);
        rig.sync(stream);
        Bench { rig, stream, event, module, count, code, near, far, host, word }
    }

    /// Makes one call of this kind, and reverts its effect.
    fn ask(&self, call: CallKind) -> Result<()> {
        let Bench { rig, stream, event, module, count, code, near, far, host, word } = self;
        let (driver, stream, event, module): (&SimDriver, _, _, _) = (&rig.driver, *stream, *event, *module);
        let site = Location::caller();
        let bytes = NonZeroUsize::new(64).unwrap();
        match call {
            CallKind::Allocate => rig.try_alloc(64, stream).map(|ptr| rig.free(ptr, stream)),
            CallKind::AllocatePinned => {
                let block = driver.host_alloc(DEVICE, bytes, HostKind::Upload, site)?;
                driver.host_free(&block, site)
            }
            CallKind::MemoryInfo => driver.memory_info(DEVICE).map(drop),
            CallKind::PoolCreate => driver.pool_destroy(driver.pool_create(&PoolProperties::on(DEVICE))?),
            CallKind::PoolAttribute => driver.pool_attribute(rig.pool, PoolAttribute::UsedCurrent).map(drop),
            CallKind::PoolTrim => driver.pool_trim(rig.pool, 0),
            CallKind::StreamCreate => driver.stream_destroy(driver.stream_create(DEVICE, StreamPriority::Normal)?),
            CallKind::StreamWait => driver.stream_wait(stream, event, site),
            CallKind::StreamQuery => driver.stream_query(stream).map(drop),
            CallKind::StreamSynchronize => driver.stream_synchronize(stream),
            CallKind::EventCreate => driver.event_destroy(driver.event_create(DEVICE, EventFlags::ORDER)?),
            CallKind::EventRecord => driver.event_record(event, stream, site),
            CallKind::EventQuery => driver.event_query(event).map(drop),
            CallKind::EventSynchronize => driver.event_synchronize(event),
            CallKind::DeviceSynchronize => driver.device_synchronize(DEVICE),
            CallKind::Upload => driver.copy(&CopyOp::HostToDevice { from: host.clone(), to: *near }, stream, site),
            CallKind::Download => driver.copy(&CopyOp::DeviceToHost { from: *near, to: host.clone() }, stream, site),
            CallKind::Copy => driver.copy(&CopyOp::DeviceToDevice { from: *near, to: *far, len: 64 }, stream, site),
            CallKind::Fill => driver.fill(*near, 2, 64, stream, site),
            CallKind::WriteWord => driver.write_word(word, 7, stream, site),
            CallKind::Launch => rig.try_launch(*count, (1, 1), &[near.0], &[declare(*near, 4, Access::Atomic)], stream),
            CallKind::ModuleLoad => driver.module_unload(driver.module_load(DEVICE, KERNELS)?),
            CallKind::Assemble => driver.assemble(DEVICE, KERNELS).map(drop),
            CallKind::CodeLoad => driver.module_unload(driver.module_load_code(DEVICE, code)?),
            CallKind::ModuleFunction => driver.module_function(module, "add_one").map(drop),
            CallKind::FunctionAttribute => driver.function_attribute(*count, FunctionAttribute::Registers).map(drop),
        }
    }

    fn close(self) -> Vec<Finding> {
        let Bench { rig, stream, near, far, host, word, .. } = self;
        // All of this fails on a lost device, which keeps its resources.
        for ptr in [near, far] {
            let _ = rig.driver.free_async(ptr, stream, Location::caller());
        }
        let _ = rig.driver.stream_synchronize(stream);
        rig.host_free(&host);
        rig.host_free(&word);
        rig.close()
    }
}

#[test]
fn every_kind_of_call_fails_on_order_and_leaves_the_device_usable() {
    for (seed, &call) in (0..).zip(CallKind::ALL) {
        let bench = Bench::new(seed);
        let order = FailCall::new(call, 2, FailureLasts::Once);
        bench.rig.driver.order_failure(order);
        bench.ask(call).unwrap_or_else(|error| panic!("{call:?} 1: {error}"));
        let error = bench.ask(call).expect_err("the second was ordered to fail");
        assert_eq!((error.call, error.code), (call.name(), call.refusal()));
        assert!(!error.code.is_sticky() && !error.code.loses_work(), "{call:?}");
        // The device works, for this call and all others.
        for &other in CallKind::ALL {
            bench.ask(other).unwrap_or_else(|error| panic!("{other:?} after {call:?} failed: {error}"));
        }
        let seen = bench.rig.driver.take_order_back(call);
        assert!(seen >= 3, "{call:?} was seen {seen} times");
        assert_eq!(bench.close(), [], "{call:?}");
    }
}

#[test]
fn a_call_that_tells_of_a_lost_device_loses_it() {
    for (seed, &call) in (0..).zip(CallKind::ALL) {
        let bench = Bench::new(seed);
        bench.rig.driver.order_failure(FailCall::with_code(call, 1, DriverCode::ECC_UNCORRECTABLE));
        assert_eq!(bench.ask(call).unwrap_err().code, DriverCode::ECC_UNCORRECTABLE, "{call:?}");
        for &other in CallKind::ALL {
            assert_eq!(bench.ask(other).unwrap_err().code, DriverCode::ECC_UNCORRECTABLE, "{other:?} after {call:?}");
        }
        assert_eq!(bench.close(), [], "{call:?}");
    }
}

/// Codes by which a device reports late that it is lost: from memory, a kernel, the MPS server or another client.
const LATE: [DriverCode; 7] = [
    DriverCode::ECC_UNCORRECTABLE,
    DriverCode::CONTAINED,
    DriverCode::ILLEGAL_ADDRESS,
    DriverCode::LAUNCH_FAILED,
    DriverCode::MPS_CONNECTION_FAILED,
    DriverCode::MPS_RPC_FAILURE,
    DriverCode::MPS_CLIENT_TERMINATED,
];

#[test]
fn work_that_fails_late_is_told_when_the_host_looks_and_not_before() {
    let work = CallKind::ALL.iter().copied().filter(|call| call.is_work());
    for (seed, call) in (0..).zip(work) {
        for code in LATE {
            for look in [CallKind::EventSynchronize, CallKind::StreamSynchronize, CallKind::DeviceSynchronize] {
                let bench = Bench::new(seed);
                bench.rig.driver.order_failure(FailCall::late(call, 2, code));
                // Accepted, like all later work.
                bench.ask(call).unwrap();
                bench.ask(call).unwrap();
                for behind in [CallKind::Fill, CallKind::Launch, CallKind::Allocate, CallKind::EventRecord] {
                    bench.ask(behind).unwrap_or_else(|error| panic!("{behind:?} behind {call:?}: {error}"));
                }
                assert_eq!(bench.ask(look).unwrap_err().code, code, "{look:?} behind {call:?}");
                assert_eq!(bench.ask(CallKind::MemoryInfo).unwrap_err().code, code, "the device stays lost");
                assert_eq!(bench.close(), [], "{call:?}");
            }
        }
    }
}

#[test]
fn who_asks_an_event_hears_of_late_failures_in_the_end() {
    for seed in seeds() {
        let bench = Bench::new(seed);
        bench.rig.driver.order_failure(FailCall::late(CallKind::Launch, 1, DriverCode::ILLEGAL_ADDRESS));
        bench.ask(CallKind::Launch).unwrap();
        let event = bench.rig.record(bench.stream);
        let answers = (0..1000).map(|_| bench.rig.driver.event_query(event));
        let told = answers.into_iter().find(|answer| *answer != Ok(false)).expect("it gets there");
        assert_eq!(told.unwrap_err().code, DriverCode::ILLEGAL_ADDRESS);
        assert_eq!(bench.close(), []);
    }
}

#[test]
fn a_failure_of_streams_lasts_until_memory_is_freed() {
    let bench = Bench::new(1);
    bench.rig.driver.order_failure(FailCall::new(CallKind::StreamCreate, 1, FailureLasts::UntilFree));
    for _ in 0..3 {
        assert_eq!(bench.ask(CallKind::StreamCreate).unwrap_err().code, DriverCode::OUT_OF_MEMORY);
    }
    bench.ask(CallKind::Allocate).unwrap();
    bench.ask(CallKind::StreamCreate).unwrap();
    assert_eq!(bench.rig.driver.take_order_back(CallKind::StreamCreate), 4);
    assert_eq!(bench.close(), []);
}
