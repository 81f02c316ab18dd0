//! Claims that hold on every driver: on the simulated device always, on NVIDIA's if there is one, otherwise reported as
//! skipped. `shim` runs this again in a process whose libcuda forwards to the simulated device.

use std::sync::Arc;

use millpond_memory::checks::skipped_without_gpu;
use millpond_memory::driver::sim::SimDriver;
use millpond_memory::driver::{CudaDriver, Driver, DriverKind};
use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, Pending, PinnedPool, Stream};

use crate::pending::block_on;

/// Runs `claim` on each available device, and checks the simulated one for findings.
pub fn on_every_device(claim: impl Fn(Device)) {
    #[cfg(target_os = "linux")]
    if crate::shim::is_inside() {
        let driver = CudaDriver::open().expect("the shim opens");
        return claim(Device::open(driver, 0).expect("its device opens"));
    }
    for seed in 0..3 {
        let driver = SimDriver::with_seed(seed);
        claim(Device::open(driver.clone(), 0).unwrap());
        let findings = driver.findings();
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}");
    }
    match CudaDriver::open() {
        Ok(driver) => claim(Device::open(driver, 0).expect("a visible device opens")),
        Err(reason) => skipped_without_gpu(&reason),
    }
}

/// True on a device that interprets kernels, behind any driver: its tests do less work.
pub fn is_sim(device: &Device) -> bool {
    device.driver().kind() == DriverKind::Sim || device.limits().name.starts_with("simulated device")
}

pub const ADD_ONE: &str = "
.version 8.2
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 rows)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [rows];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mad.wide.u32 %rd2, %r2, 4, %rd1;
    ld.global.u32 %r5, [%rd2];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd2], %r5;
DONE:
    ret;
}";

pub fn add_one(device: &Device, kernel: &millpond_memory::Kernel, buffer: &DeviceBuffer, on: &Stream) {
    let rows = (buffer.len() / 4) as u32;
    let mut guard = buffer.write(on).unwrap();
    let mut params = guard.address().0.to_le_bytes().to_vec();
    params.extend(rows.to_le_bytes());
    let accesses = [guard.declared()];
    let launch = millpond_memory::driver::KernelLaunch {
        function: kernel.function(),
        name: kernel.name(),
        grid: [rows.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        params: &params,
        accesses: &accesses,
        figures: None,
        site: std::panic::Location::caller(),
    };
    // SAFETY: the parameters match ADD_ONE, and the guard holds the buffer they point to.
    let (_, position) = on.submit(|driver, on| unsafe { driver.launch(&launch, on) }).unwrap();
    guard.submitted(position);
    kernel.launched(on, position);
    assert!(!device.is_lost());
}

#[test]
fn buffers_pass_between_streams() {
    on_every_device(|device| {
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
        let pinned = PinnedPool::builder(&device).build();
        let module = device.load_module(ADD_ONE).unwrap();
        let kernel = module.kernel("add_one").unwrap();
        assert!(kernel.persistent_blocks(256, 0).unwrap() >= device.limits().multiprocessors);
        assert!(kernel.attributes().unwrap().registers > 0);
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
        let (rows, rounds) = if is_sim(&device) { (3_003u32, 4) } else { (1_000_003, 20) };
        let input: Vec<u8> = (0..rows).flat_map(|row| row.to_le_bytes()).collect();
        for round in 0..rounds {
            let buffer = DeviceBuffer::upload(&input, &streams[round % 4], &pool, &pinned).unwrap();
            let steps = 13;
            for step in 0..steps {
                add_one(&device, &kernel, &buffer, &streams[(round + step) % 4]);
            }
            let copy = DeviceBuffer::new(buffer.len(), &streams[0], &pool).unwrap();
            buffer.copy_to(&copy, &streams[0]).unwrap();
            drop(buffer);
            let home = copy.download(&streams[1], &pinned).unwrap();
            drop(copy);
            let home = block_on(home).unwrap();
            let bytes = home.read().unwrap();
            for (row, value) in bytes.chunks_exact(4).enumerate() {
                assert_eq!(u32::from_le_bytes(value.try_into().unwrap()), row as u32 + steps as u32);
            }
        }
        assert_eq!(pool.used_bytes(), ByteSize::ZERO);
        let attributes = pool.attributes().unwrap();
        assert_eq!(attributes.release_threshold, ByteSize::MAX);
        assert!(attributes.reserved_current > ByteSize::ZERO);
        pool.trim_to(ByteSize::ZERO).unwrap();
        assert_eq!(pool.attributes().unwrap().reserved_current, ByteSize::ZERO);
        assert!(device.take_errors().is_empty());
    });
}

#[test]
fn many_small_results_come_home() {
    on_every_device(|device| {
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
        let pinned = PinnedPool::builder(&device).build();
        let streams: Vec<Stream> = (0..8).map(|_| Stream::new(&device).unwrap()).collect();
        let mut results = Vec::new();
        for i in 0..if is_sim(&device) { 200u32 } else { 2000 } {
            let on = &streams[i as usize % 8];
            let buffer = DeviceBuffer::upload(&i.to_le_bytes(), on, &pool, &pinned).unwrap();
            results.push((i, buffer.download_vec(on, &pinned).unwrap()));
        }
        for (i, result) in results {
            assert_eq!(block_on(result).unwrap(), i.to_le_bytes());
        }
        let event: Pending<()> = streams[0].record().unwrap().completed();
        event.wait().unwrap();
        assert!(device.limits().write_word, "streams store words on every GPU we know of");
    });
}

#[test]
fn ptx_that_cannot_be_compiled_gives_the_compilers_words() {
    on_every_device(|device| {
        let error = device.load_module(".version 8.2\n.target sm_70\n.address_size 64\nnonsense").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("line 4"), "{text}");
        assert!(!device.is_lost());
        let module = device.load_module(ADD_ONE).unwrap();
        let error = module.kernel("absent").unwrap_err();
        assert_eq!(error.to_string(), "module has no kernel `absent`; it has add_one");
    });
}

#[test]
fn more_than_there_is_is_out_of_memory() {
    on_every_device(|device| {
        let pool = MemoryPool::builder(&device).limit(ByteSize::MAX).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let error = DeviceBuffer::new(1 << 46, &stream, &pool).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert!(!device.is_lost());
        assert_eq!(pool.used_bytes(), ByteSize::ZERO);
        drop(DeviceBuffer::zeroed(1 << 20, &stream, &pool).unwrap());
        stream.synchronize().unwrap();
    });
}

#[test]
fn dropping_everything_while_work_runs_is_safe() {
    on_every_device(|device| {
        let driver: Arc<dyn Driver> = Arc::clone(device.driver());
        let pool = MemoryPool::builder(&device).limit(ByteSize::gib(1)).build().unwrap();
        let pinned = PinnedPool::builder(&device).build();
        let kernel = device.load_module(ADD_ONE).unwrap().kernel("add_one").unwrap();
        let stream = Stream::new(&device).unwrap();
        let buffer = DeviceBuffer::zeroed(if is_sim(&device) { 64 << 10 } else { 64 << 20 }, &stream, &pool).unwrap();
        for _ in 0..5 {
            add_one(&device, &kernel, &buffer, &stream);
        }
        drop(buffer.download(&stream, &pinned).unwrap());
        drop((kernel, buffer, pinned, pool, stream, device));
        assert!(driver.device_count().unwrap() > 0);
    });
}
