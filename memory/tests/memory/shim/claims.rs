//! Claims in a process whose libcuda is the shim. Each test here runs only there.

use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use millpond_memory::driver::sim::SimDriver;
use millpond_memory::driver::*;
use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceLimits, DeviceOptions, MemoryError, MemoryPool, PinnedPool, Stream,
};

use super::is_inside;
use crate::conformance::{ADD_ONE, add_one};
use crate::lost::TestClock;
use crate::pending::block_on;

const DEVICE: DeviceId = DeviceId(0);

/// The driver over the shim, or `None` outside the child.
fn cuda() -> Option<Arc<CudaDriver>> {
    is_inside().then(|| CudaDriver::open().unwrap())
}

/// Like `cuda`, with device 0 open.
fn opened() -> Option<Arc<CudaDriver>> {
    let driver = cuda()?;
    driver.device_open(DEVICE).unwrap();
    Some(driver)
}

fn code<T>(result: Result<T>) -> DriverCode {
    match result {
        Ok(_) => DriverCode::SUCCESS,
        Err(error) => error.code,
    }
}

fn bytes(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

mod anywhere {
    use super::*;

    /// The values of all attributes match on both sides of the C interface.
    #[test]
    fn limits_are_the_simulated_devices() {
        let Some(driver) = cuda() else { return };
        let cuda = Device::open(driver.clone(), 0).unwrap();
        let sim = Device::open(SimDriver::with_seed(0), 0).unwrap();
        assert_eq!(cuda.limits().name, "simulated device behind a libcuda for tests");
        let named = DeviceLimits { name: cuda.limits().name.clone(), ..sim.limits().clone() };
        assert_eq!(format!("{:?}", cuda.limits()), format!("{named:?}"));
        assert_eq!((driver.kind(), driver.version()), (DriverKind::Cuda, DriverVersion(12020)));
        assert_eq!(format!("{driver:?}"), "CUDA 12.2");
        for attribute in [DeviceAttribute::MaxGridDimX, DeviceAttribute::Integrated, DeviceAttribute::ClockRateKhz] {
            assert_eq!(driver.attribute(DEVICE, attribute), sim.driver().attribute(DEVICE, attribute));
        }
        let memory = cuda.memory_info().unwrap();
        assert_eq!(memory.total_bytes, sim.memory_info().unwrap().total_bytes);
    }

    #[test]
    fn devices_that_are_not_there_or_not_open() {
        let Some(driver) = cuda() else { return };
        for ordinal in [1, 127, 128, 1 << 20] {
            assert_eq!(code(driver.device_open(DeviceId(ordinal))), DriverCode::INVALID_DEVICE, "{ordinal}");
        }
        assert_eq!(code(driver.device_info(DeviceId(1))), DriverCode::INVALID_DEVICE);
        // Not opened by this driver; other code of the process may have opened it.
        assert_eq!(code(driver.stream_create(DEVICE, StreamPriority::Normal)), DriverCode::INVALID_CONTEXT);
        assert_eq!(code(driver.memory_info(DEVICE)), DriverCode::INVALID_CONTEXT);
        driver.device_open(DEVICE).unwrap();
        driver.device_open(DEVICE).unwrap();
        driver.device_close(DEVICE).unwrap();
        let stream = driver.stream_create(DEVICE, StreamPriority::High).unwrap();
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
        assert_eq!(code(driver.device_synchronize(DEVICE)), DriverCode::INVALID_CONTEXT);
        assert_eq!(code(driver.device_close(DEVICE)), DriverCode::INVALID_CONTEXT, "closed more often than opened");
    }

    #[test]
    fn a_thread_that_never_called_before_has_its_context_set() {
        let Some(driver) = opened() else { return };
        let stream = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        let there = {
            let driver = Arc::clone(&driver);
            std::thread::spawn(move || driver.stream_query(stream).and_then(|_| driver.stream_synchronize(stream)))
        };
        there.join().unwrap().unwrap();
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn events_mark_and_measure() {
        let Some(driver) = opened() else { return };
        let here = Location::caller();
        let stream = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        let event = |timing| driver.event_create(DEVICE, EventFlags { timing, interprocess: false }).unwrap();
        let (start, end, plain) = (event(true), event(true), event(false));
        assert_eq!(driver.event_query(plain), Ok(true), "never recorded: nothing to wait for");
        driver.event_record(start, stream, here).unwrap();
        driver.event_record(end, stream, here).unwrap();
        driver.event_record(plain, stream, here).unwrap();
        driver.event_synchronize(end).unwrap();
        assert_eq!(driver.event_elapsed_ms(start, end), Ok(0.0), "time is not simulated");
        assert_eq!(code(driver.event_elapsed_ms(start, plain)), DriverCode::INVALID_HANDLE);
        let mut asked = 0;
        while !driver.event_query(plain).unwrap() {
            asked += 1;
            assert!(asked < 1_000_000, "time passes");
        }
        for event in [start, end, plain] {
            driver.event_destroy(event).unwrap();
        }
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn pool_attributes_are_read_and_written() {
        let Some(driver) = opened() else { return };
        use PoolAttribute as A;
        let pool =
            driver.pool_create(&PoolProperties { max_bytes: Some(1 << 24), ..PoolProperties::on(DEVICE) }).unwrap();
        let get = |attribute| driver.pool_attribute(pool, attribute).unwrap();
        let set = |attribute, value| driver.pool_set_attribute(pool, attribute, value);
        assert_eq!(get(A::ReleaseThreshold), 0, "CUDA's own");
        for value in [u64::MAX, 1 << 40, 5] {
            set(A::ReleaseThreshold, value).unwrap();
            assert_eq!(get(A::ReleaseThreshold), value);
        }
        let policies = [A::ReuseFollowEventDependencies, A::ReuseAllowOpportunistic, A::ReuseAllowInternalDependencies];
        for policy in policies {
            assert_eq!(get(policy), 1, "CUDA's own");
            set(policy, 0).unwrap();
            assert_eq!(policies.map(get), policies.map(|other| u64::from(other != policy)), "{policy:?} alone");
            set(policy, 1).unwrap();
        }
        set(A::ReleaseThreshold, u64::MAX).unwrap();
        let (here, stream) = (Location::caller(), driver.stream_create(DEVICE, StreamPriority::Normal).unwrap());
        let a = driver.pool_alloc(pool, bytes(1 << 20), stream, here).unwrap();
        assert!(a.0.is_multiple_of(256));
        assert!(get(A::UsedCurrent) >= 1 << 20 && get(A::ReservedCurrent) >= get(A::UsedCurrent));
        assert_eq!(
            code(driver.pool_alloc(pool, bytes(1 << 25), stream, here)),
            DriverCode::OUT_OF_MEMORY,
            "the maximum"
        );
        driver.free_async(a, stream, here).unwrap();
        driver.stream_synchronize(stream).unwrap();
        assert_eq!(get(A::UsedCurrent), 0);
        assert!(get(A::UsedHigh) >= 1 << 20);
        assert_eq!(code(set(A::UsedHigh, 1)), DriverCode::INVALID_VALUE, "a watermark is only reset");
        assert_eq!(code(set(A::UsedCurrent, 0)), DriverCode::INVALID_VALUE);
        set(A::UsedHigh, 0).unwrap();
        assert_eq!(get(A::UsedHigh), 0);
        driver.pool_trim(pool, 0).unwrap();
        set(A::ReservedHigh, 0).unwrap();
        assert_eq!((get(A::ReservedCurrent), get(A::ReservedHigh)), (0, 0));
        driver.pool_destroy(pool).unwrap();
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn memory_without_a_stream_and_every_kind_of_copy() {
        let Some(driver) = opened() else { return };
        let here = Location::caller();
        let stream = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        let a = driver.alloc_sync(DEVICE, bytes(1024), here).unwrap();
        let b = driver.alloc_sync(DEVICE, bytes(1024), here).unwrap();
        let block = |kind| driver.host_alloc(DEVICE, bytes(8192), kind, here).unwrap();
        let (up, down) = (block(HostKind::Upload), block(HostKind::Download));
        up.write().unwrap()[100..200].fill(7);
        // From and to the middle of a block.
        let from = HostSpan::new(&up, 100, 100).unwrap();
        driver.fill(a, 3, 1024, stream, here).unwrap();
        driver.copy(&CopyOp::HostToDevice { from, to: a.offset(10) }, stream, here).unwrap();
        driver.copy(&CopyOp::DeviceToDevice { from: a, to: b, len: 512 }, stream, here).unwrap();
        let to = HostSpan::new(&down, 4096, 512).unwrap();
        driver.copy(&CopyOp::DeviceToHost { from: b, to }, stream, here).unwrap();
        driver.stream_synchronize(stream).unwrap();
        let expected: Vec<u8> = (0..512).map(|at| if (10..110).contains(&at) { 7 } else { 3 }).collect();
        assert_eq!(down.read().unwrap()[4096..4096 + 512], expected);
        assert_eq!(down.read().unwrap()[..4096], [0; 4096]);
        driver.free_sync(a, here).unwrap();
        driver.free_sync(b, here).unwrap();
        driver.host_free(&up, here).unwrap();
        driver.host_free(&down, here).unwrap();
        assert_eq!(code(driver.host_free(&up, here)), DriverCode::INVALID_VALUE, "freed twice");
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn words_are_stored_in_stream_order() {
        let Some(driver) = opened() else { return };
        let here = Location::caller();
        let stream = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        let block = driver.host_alloc(DEVICE, bytes(64), HostKind::Download, here).unwrap();
        block.claim_words().unwrap();
        for value in [5, 6] {
            driver.write_word(&HostSpan::new(&block, 8, 4).unwrap(), value, stream, here).unwrap();
        }
        // Without a driver query: the device proceeds by itself.
        while block.load_word(8).unwrap() != 6 {
            std::thread::yield_now();
        }
        assert_eq!(block.load_word(4).unwrap(), 0);
        let upload = driver.host_alloc(DEVICE, bytes(64), HostKind::Upload, here).unwrap();
        let unmapped = driver.write_word(&HostSpan::new(&upload, 0, 4).unwrap(), 1, stream, here);
        assert_eq!(code(unmapped), DriverCode::INVALID_VALUE);
        driver.stream_synchronize(stream).unwrap();
        driver.host_free(&block, here).unwrap();
        driver.host_free(&upload, here).unwrap();
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn modules_kernels_and_their_attributes() {
        let Some(driver) = opened() else { return };
        let ptx = "
            .version 8.2
            .target sm_70
            .address_size 64
            .visible .global .align 4 .u32 table[3] = {11, 22, 33};
            .visible .entry small(.param .u32 n) .maxntid 128, 1, 1 {
                .shared .align 4 .b8 block[512];
                .reg .b32 %r<4>;
                mov.u32 %r1, %tid.x;
                mov.u32 %r2, block;
                mad.lo.u32 %r3, %r1, 4, %r2;
                st.shared.u32 [%r3], %r1;
                ret;
            }
            .visible .entry bare() { ret; }";
        let module = driver.module_load(DEVICE, ptx).unwrap();
        assert_eq!(driver.module_global(module, "table").unwrap().1, 12);
        assert_eq!(code(driver.module_global(module, "absent")), DriverCode::NOT_FOUND);
        assert_eq!(code(driver.module_function(module, "absent")), DriverCode::NOT_FOUND);
        assert_eq!(code(driver.module_function(module, "a\0b")), DriverCode::INVALID_VALUE);
        let small = driver.module_function(module, "small").unwrap();
        let get = |attribute| driver.function_attribute(small, attribute).unwrap();
        assert_eq!(get(FunctionAttribute::MaxThreadsPerBlock), 128);
        assert_eq!(get(FunctionAttribute::StaticSharedBytes), 512);
        assert_eq!(get(FunctionAttribute::LocalBytes), 0);
        assert_eq!(get(FunctionAttribute::MaxDynamicSharedBytes), (48 << 10) - 512);
        driver.function_set_max_dynamic_shared(small, 100 << 10).unwrap();
        assert_eq!(get(FunctionAttribute::MaxDynamicSharedBytes), 100 << 10);
        assert_eq!(code(driver.function_set_max_dynamic_shared(small, 228 << 10)), DriverCode::INVALID_VALUE);
        assert_eq!(driver.occupancy(small, 256, 0), Ok(0), "more threads than it allows");
        assert!(driver.occupancy(small, 128, 0).unwrap() > driver.occupancy(small, 128, 64 << 10).unwrap());
        // The driver cannot report parameters before CUDA 12.4, and checks them itself.
        assert_eq!(driver.function_params(small), None);
        let here = Location::caller();
        let stream = driver.stream_create(DEVICE, StreamPriority::Normal).unwrap();
        let bare = driver.module_function(module, "bare").unwrap();
        let launch = |function, grid, params: &[u8]| {
            let (block, shared_bytes) = ([32, 1, 1], 0);
            let launch = KernelLaunch {
                function,
                name: "k",
                grid,
                block,
                shared_bytes,
                params,
                accesses: &[],
                figures: None,
                site: here,
            };
            // SAFETY: neither kernel accesses memory beyond its own shared words, whatever the parameters are.
            unsafe { driver.launch(&launch, stream) }
        };
        launch(small, [2, 1, 1], &7u32.to_le_bytes()).unwrap();
        launch(bare, [1, 2, 3], &[]).unwrap();
        let refused = launch(bare, [0, 1, 1], &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cuLaunchKernel failed: invalid value (1): k in [0, 1, 1] blocks of [32, 1, 1]"
        );
        driver.stream_synchronize(stream).unwrap();
        driver.module_unload(module).unwrap();
        driver.stream_destroy(stream).unwrap();
        driver.device_close(DEVICE).unwrap();
    }

    #[test]
    fn refused_ptx_comes_with_the_compilers_words_and_code() {
        let Some(driver) = opened() else { return };
        let load = |ptx: &str| driver.module_load(DEVICE, ptx).unwrap_err();
        let error = load(".version 8.2\n.target sm_70\n.address_size 64\nnonsense here");
        assert_eq!(error.code, DriverCode::INVALID_PTX);
        assert!(error.to_string().contains("line 4"), "{error}");
        assert_eq!(load(".version 9.1\n.target sm_70\n.address_size 64\n").code, DriverCode::UNSUPPORTED_PTX_VERSION);
        assert_eq!(load(".version 8.2\n.target sm_100\n.address_size 64\n").code, DriverCode::NO_BINARY_FOR_GPU);
        assert_eq!(load(".version 8.2\0").code, DriverCode::INVALID_PTX);
        driver.device_close(DEVICE).unwrap();
    }
}

mod two_devices {
    use super::*;

    /// Every handle is used with its own device, from any thread and in any order.
    #[test]
    fn work_goes_to_the_device_of_its_handles() {
        let Some(driver) = cuda() else { return };
        assert_eq!(driver.device_count(), Ok(2));
        let devices: Vec<Device> = (0..2).map(|ordinal| Device::open(driver.clone(), ordinal).unwrap()).collect();
        let threads: Vec<_> = devices
            .iter()
            .cloned()
            .map(|device| {
                std::thread::spawn(move || {
                    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(64)).build().unwrap();
                    let pinned = PinnedPool::builder(&device).build();
                    let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
                    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
                    for round in 0..10u32 {
                        let input: Vec<u8> = (0..100).flat_map(|row| (row * round).to_le_bytes()).collect();
                        let buffer = DeviceBuffer::upload(&input, &a, &pool, &pinned).unwrap();
                        add_one(&device, &kernel, &buffer, &b);
                        let home = block_on(buffer.download_vec(&a, &pinned).unwrap()).unwrap();
                        let expected: Vec<u8> = (0..100).flat_map(|row| (row * round + 1).to_le_bytes()).collect();
                        assert_eq!(home, expected);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn what_belongs_to_another_device_is_refused() {
        let Some(driver) = cuda() else { return };
        let here = Location::caller();
        for device in [DeviceId(0), DeviceId(1)] {
            driver.device_open(device).unwrap();
        }
        let pool = driver.pool_create(&PoolProperties::on(DeviceId(0))).unwrap();
        let other = driver.stream_create(DeviceId(1), StreamPriority::Normal).unwrap();
        // The pool determines the location of the memory; any stream may be used.
        let far = driver.pool_alloc(pool, bytes(64), other, here).unwrap();
        assert_eq!(driver.pointer_attributes(far).unwrap().device, Some(DeviceId(0)));
        driver.free_async(far, other, here).unwrap();
        driver.stream_synchronize(other).unwrap();
        assert_eq!(driver.can_access_peer(DeviceId(0), DeviceId(1)), Ok(true));
        assert_eq!(driver.can_access_peer(DeviceId(0), DeviceId(0)), Ok(false));
        driver.pool_set_access(pool, DeviceId(1), true).unwrap();
        driver.pool_set_access(pool, DeviceId(1), false).unwrap();
        assert_eq!(code(driver.pool_set_access(pool, DeviceId(0), false)), DriverCode::INVALID_VALUE, "its own device");
        assert_eq!(code(driver.pool_set_access(pool, DeviceId(2), true)), DriverCode::INVALID_DEVICE);
        driver.pool_destroy(pool).unwrap();
        driver.stream_destroy(other).unwrap();
        for device in [DeviceId(0), DeviceId(1)] {
            driver.device_close(device).unwrap();
        }
    }
}

#[test]
fn freed_twice() {
    let Some(driver) = opened() else { return };
    let here = Location::caller();
    let a = driver.alloc_sync(DEVICE, bytes(64), here).unwrap();
    driver.free_sync(a, here).unwrap();
    assert_eq!(code(driver.free_sync(a, here)), DriverCode::INVALID_VALUE);
    assert_eq!(code(driver.free_sync(DevicePtr::NULL, here)), DriverCode::INVALID_VALUE);
    driver.device_close(DEVICE).unwrap();
}

#[test]
fn refused_peers() {
    let Some(driver) = opened() else { return };
    let pool = driver.pool_create(&PoolProperties::on(DEVICE)).unwrap();
    assert_eq!(driver.can_access_peer(DeviceId(1), DEVICE), Ok(false));
    // Refused here, not at the next allocation as in CUDA (S1.23).
    assert_eq!(code(driver.pool_set_access(pool, DeviceId(1), true)), DriverCode::PEER_ACCESS_UNSUPPORTED);
    driver.pool_destroy(pool).unwrap();
    driver.device_close(DEVICE).unwrap();
}

#[test]
fn without_words() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver, 0).unwrap();
    assert!(!device.limits().write_word);
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::upload(&[1, 2, 3], &stream, &pool, &pinned).unwrap();
    assert_eq!(block_on(buffer.download_vec(&stream, &pinned).unwrap()).unwrap(), [1, 2, 3]);
}

#[test]
fn full_device() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver, 0).unwrap();
    let pool = MemoryPool::builder(&device).limit(ByteSize::MAX).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let first = DeviceBuffer::zeroed(40 << 20, &stream, &pool).unwrap();
    let error = DeviceBuffer::zeroed(40 << 20, &stream, &pool).unwrap_err();
    assert!(error.is_out_of_memory() && !device.is_lost(), "{error}");
    assert!(matches!(error, MemoryError::OutOfMemory { .. }), "in our words, not the driver's: {error}");
    drop(first);
    drop(DeviceBuffer::zeroed(40 << 20, &stream, &pool).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(pool.used_bytes(), ByteSize::ZERO);
}

#[test]
fn hand_over() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver, 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let buffer = DeviceBuffer::zeroed(256, &a, &pool).unwrap();
    buffer.fill(1, &b).unwrap();
    drop(buffer);
    device.synchronize().unwrap();
}

#[test]
fn unknown_code() {
    let Some(driver) = cuda() else { return };
    let expected = std::env::var("EXPECTED_CODE").unwrap();
    let device = Device::open(driver, 0).unwrap();
    let error = Stream::new(&device).unwrap_err();
    assert_eq!(error.to_string(), format!("cuStreamCreateWithPriority failed: unknown result ({expected})"));
    assert!(!error.is_device_lost() && !device.is_lost());
    let stream = Stream::new(&device).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let error = DeviceBuffer::upload(&[1, 2, 3], &stream, &pool, &pinned).unwrap_err();
    assert!(error.to_string().contains(&format!("unknown result ({expected})")), "{error}");
    // A copy also reports errors of earlier work.
    assert!(error.is_device_lost() && device.is_lost());
    assert!(DeviceBuffer::upload(&[1, 2, 3], &stream, &pool, &pinned).unwrap_err().is_device_lost());
}

/// A kernel that never ends: no call here waits inside the driver, which would not return.
#[test]
fn hangs() {
    let Some(driver) = cuda() else { return };
    let clock = TestClock::new();
    let options = DeviceOptions { timeout: Some(Duration::from_secs(600)), clock: clock.clone() };
    let device = Device::open_with(driver, 0, options).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::upload(&[1, 0, 0, 0], &stream, &pool, &pinned).unwrap();
    stream.synchronize().unwrap();
    add_one(&device, &kernel, &buffer, &stream);
    let home = buffer.download_vec(&stream, &pinned).unwrap();
    let calls = device.driver_calls();
    while device.driver_calls() < calls + 20 {
        std::thread::yield_now();
    }
    assert!(!home.is_ready() && !device.is_lost());
    clock.advance(600);
    for error in [block_on(home).unwrap_err(), stream.synchronize().unwrap_err(), device.synchronize().unwrap_err()] {
        assert!(error.is_device_lost() && error.to_string().contains("millpond.device_timeout"), "{error}");
    }
    drop((buffer, kernel, stream, pinned, pool, device));
}

#[test]
fn lost_at_launch() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver, 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::upload(&[1, 0, 0, 0], &stream, &pool, &pinned).unwrap();
    add_one(&device, &kernel, &buffer, &stream);
    assert_eq!(block_on(buffer.download_vec(&stream, &pinned).unwrap()).unwrap(), [2, 0, 0, 0]);
    let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        add_one(&device, &kernel, &buffer, &stream);
    }));
    assert!(lost.is_err() && device.is_lost());
    for error in [
        buffer.fill(1, &stream).unwrap_err(),
        DeviceBuffer::new(1, &stream, &pool).unwrap_err(),
        device.synchronize().unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "device 0 is lost: cuLaunchKernel failed: launch failed (719): add_one in [1, 1, 1] blocks of [256, 1, 1]"
        );
    }
}

#[test]
fn stray_kernel() {
    let Some(driver) = cuda() else { return };
    let device = Device::open(driver, 0).unwrap();
    let pool = MemoryPool::builder(&device).build().unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::zeroed(1024, &stream, &pool).unwrap();
    let before = buffer.download_vec(&stream, &pinned).unwrap();
    assert_eq!(block_on(before).unwrap(), [0; 1024]);
    let mut params = buffer.write(&stream).unwrap().address().0.to_le_bytes().to_vec();
    params.extend(100_000u32.to_le_bytes());
    let launch = KernelLaunch {
        function: kernel.function(),
        name: kernel.name(),
        grid: [400, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        params: &params,
        accesses: &[],
        figures: None,
        site: Location::caller(),
    };
    // SAFETY: deliberately invalid; on the simulated device an invalid address is a finding.
    stream.submit(|driver, on| unsafe { driver.launch(&launch, on) }).unwrap();
    let after = buffer.download_vec(&stream, &pinned).and_then(block_on);
    assert!(after.as_ref().is_err_and(MemoryError::is_device_lost), "{after:?}");
    assert!(device.is_lost());
    let words = device.synchronize().unwrap_err().to_string();
    assert!(words.contains("illegal address (700)"), "{words}");
}
