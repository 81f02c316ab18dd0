//! The launch builder: parameters, uses and order, on the simulated device.

use std::sync::Arc;

use millpond_kernels::{Launch, LaunchConfig};
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::recorder::{Recorder, WorkKind};
use millpond_memory::{Device, DeviceBuffer, Driver, Kernel, MemoryError, MemoryPool, PinnedPool, Stream};

/// Adds `by` to every value, and the sum of the previous values to a total.
const ADD: &str = "
.version 8.2
.target sm_70
.address_size 64
.visible .entry add(.param .u64 data, .param .u64 total, .param .u32 rows, .param .u64 by)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [data];
    ld.param.u64 %rd2, [total];
    ld.param.u32 %r1, [rows];
    ld.param.u64 %rd3, [by];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mad.wide.u32 %rd4, %r2, 8, %rd1;
    ld.global.u64 %rd5, [%rd4];
    atom.global.add.u64 %rd6, [%rd2], %rd5;
    add.u64 %rd5, %rd5, %rd3;
    st.global.u64 [%rd4], %rd5;
DONE:
    ret;
}
// Reads the address of the data from memory.
.visible .entry sum_through(.param .u64 pointer, .param .u64 total)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [pointer];
    ld.param.u64 %rd2, [total];
    ld.global.u64 %rd3, [%rd1];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd4, %r1, 8, %rd3;
    ld.global.u64 %rd5, [%rd4];
    red.global.add.u64 [%rd2], %rd5;
    ret;
}
";

struct Rig {
    driver: Arc<SimDriver>,
    device: Device,
    pool: MemoryPool,
    pinned: PinnedPool,
    streams: Vec<Stream>,
    add: Kernel,
    sum_through: Kernel,
}

fn rig(seed: u64) -> Rig {
    let driver = SimDriver::with_seed(seed);
    let device = Device::open(driver.clone(), 0).unwrap();
    let module = device.load_module(ADD).unwrap();
    Rig {
        driver,
        pool: MemoryPool::builder(&device).build().unwrap(),
        pinned: PinnedPool::builder(&device).build(),
        streams: (0..3).map(|_| Stream::new(&device).unwrap()).collect(),
        add: module.kernel("add").unwrap(),
        sum_through: module.kernel("sum_through").unwrap(),
        device,
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn streams_share_a_total_and_hand_over_the_rest() {
    for seed in 0..10 {
        let Rig { driver, device, pool, pinned, streams, add, .. } = rig(seed);
        let values: Vec<u64> = (1..=100).collect();
        let total = DeviceBuffer::zeroed(8, &streams[0], &pool).unwrap();
        let parts: Vec<DeviceBuffer> =
            (0..6).map(|i| DeviceBuffer::upload(&bytes(&values), &streams[i % 3], &pool, &pinned).unwrap()).collect();
        for (i, part) in parts.iter().enumerate() {
            for round in 0..2 {
                let on = &streams[(i + round) % 3];
                Launch::new(&add, LaunchConfig::over(values.len(), 32))
                    .write(part)
                    .share(&total)
                    .value(values.len() as u32)
                    .value(1000u64)
                    .submit(on)
                    .unwrap();
            }
        }
        let sum: u64 = values.iter().sum();
        let bytes = total.download_vec(&streams[1], &pinned).unwrap().wait().unwrap();
        assert_eq!(words(&bytes), [6 * (2 * sum + 100 * 1000)]);
        let bytes = parts[5].download_vec(&streams[0], &pinned).unwrap().wait().unwrap();
        assert_eq!(words(&bytes), values.iter().map(|value| value + 2000).collect::<Vec<_>>());
        assert_eq!(device.counters().launches, 12);
        drop((total, parts));
        assert_eq!(pool.used_bytes().as_u64(), 0);
        assert!(driver.findings().is_empty(), "seed {seed}: {:#?}", driver.findings());
    }
}

#[test]
fn what_is_reached_through_memory_is_declared_and_ordered() {
    let Rig { driver, pool, pinned, streams, sum_through, .. } = rig(1);
    let [a, b, _] = &streams[..] else { unreachable!() };
    let values = DeviceBuffer::upload(&bytes(&[5; 32]), a, &pool, &pinned).unwrap();
    let pointer = DeviceBuffer::upload(&values.address().0.to_le_bytes(), a, &pool, &pinned).unwrap();
    let total = DeviceBuffer::zeroed(8, b, &pool).unwrap();
    let launch = || Launch::new(&sum_through, LaunchConfig::linear(1, 32)).read(&pointer).share(&total);
    launch().reads(&values).submit(b).unwrap();
    let result = total.download_vec(b, &pinned).unwrap().wait().unwrap();
    assert_eq!(words(&result), [160]);
    drop(values);
    driver.settle().unwrap();
    assert!(driver.findings().is_empty(), "{:#?}", driver.findings());

    let values = DeviceBuffer::upload(&bytes(&[5; 32]), a, &pool, &pinned).unwrap();
    pointer.upload_from(&values.address().0.to_le_bytes(), a, &pinned).unwrap();
    let undeclared = launch().submit(b).and_then(|_| b.synchronize());
    let found = driver.findings();
    assert!(undeclared.is_err() || !found.is_empty(), "a launch must say what it reaches");
}

#[test]
fn parameters_that_do_not_fit_are_refused_before_anything_runs() {
    let Rig { device, pool, streams, add, .. } = rig(0);
    let buffer = DeviceBuffer::zeroed(8, &streams[0], &pool).unwrap();
    let launch = || Launch::new(&add, LaunchConfig::linear(1, 32)).write(&buffer).share(&buffer);
    for launch in [launch(), launch().value(1u32), launch().value(1u32).value(2u32), launch().value(1u64).value(2u64)] {
        let error = launch.submit(&streams[0]).unwrap_err();
        assert!(matches!(error, MemoryError::Parameters { .. }), "{error}");
        assert!(error.to_string().contains("kernel `add` takes 4 parameters of 32 bytes"), "{error}");
    }
    assert_eq!(device.counters().launches, 0);
}

#[test]
fn an_empty_grid_launches_nothing() {
    let Rig { device, pool, streams, add, .. } = rig(0);
    let empty = DeviceBuffer::new(0, &streams[0], &pool).unwrap();
    let launch = Launch::new(&add, LaunchConfig::over(0, 256)).write(&empty).write(&empty).value(0u32).value(0u64);
    launch.submit(&streams[0]).unwrap();
    assert_eq!(device.counters().launches, 0);
}

#[test]
fn a_recorder_receives_what_a_launch_touched() {
    const ROWS: usize = 64;
    let rig = rig(1);
    let stream = &rig.streams[0];
    let data = DeviceBuffer::zeroed(ROWS * 8, stream, &rig.pool).unwrap();
    let total = DeviceBuffer::zeroed(8, stream, &rig.pool).unwrap();
    let add = || {
        let launch = Launch::new(&rig.add, LaunchConfig::over(ROWS, 32)).over_rows(ROWS as u64);
        launch.write(&data).write(&total).value(ROWS as u32).value(1u64).submit(stream).unwrap()
    };
    add();
    let recorder = Recorder::new();
    let path = recorder.path("run", "one", "rest").enter();
    add();
    stream.synchronize().unwrap();
    drop(path);
    add();
    let recording = recorder.recording();
    let work: Vec<_> = recording.work.iter().filter(|work| matches!(work.kind, WorkKind::Launch(_))).collect();
    let [work] = work[..] else { panic!("one launch was on the path: {work:?}") };
    assert_eq!((work.bytes_read, work.bytes_written), (0, 512 + 8));
    let WorkKind::Launch(launch) = &work.kind else { unreachable!() };
    assert_eq!((&*launch.kernel, launch.blocks, launch.threads, launch.rows), ("add", 2, 32, Some(64)));
    let figures = launch.figures.expect("the simulated device counts");
    assert_eq!((figures.sectors_read, figures.sectors_written, figures.sectors_atomic), (16, 16, 1));
    // 16 instructions in total, and two warps; no lane takes the branch.
    assert_eq!((figures.warp_instructions, figures.lane_instructions), (2 * 16, 64 * 15));
    assert!(rig.driver.take_findings().is_empty());
}
