//! Host cost of the memory layer, beyond the driver's calls.
//!
//! ```text
//!   Varies    the operation; for allocations, the strategy behind them
//!   Holds     one thread, one device, warm; a driver that does almost nothing
//!   Reports   time per operation. `driver` is the cost of that driver's calls alone: the rest is this crate's
//!   Bounds    allocate and free through `cuda_async` 300 ns · an implied wait 50 ns · a guard 50 ns
//!             (docs/memory.md has the figures; that an implied wait makes no call is a test, not a benchmark)
//! ```

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use millpond_memory::driver::{PoolHandle, StreamHandle};
use millpond_memory::recorder::{Recorder, step};
use millpond_memory::{ByteSize, Device, DeviceBuffer, Driver, MemoryPool, Pending, Strategy, Stream};

#[path = "../src/gate.rs"]
#[allow(dead_code, reason = "nothing shuts this one")]
mod gate;
#[path = "../tests/memory/recording.rs"]
#[allow(dead_code, reason = "the tests' driver remembers calls as well")]
mod recording;

/// Source of the atomics of `gate`.
mod sync {
    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
    }
}

use gate::Gate;
use recording::Recording;

/// Bytes: a multiple of 256, so that there is no padding to zero.
const WHOLE: usize = 4096;
/// Bytes whose padding is zeroed: one more call of the driver.
const PADDED: usize = 1000;

fn device() -> Device {
    let driver = Recording::new();
    driver.quiet();
    Device::open(driver, 0).expect("it opens")
}

fn pool(device: &Device, strategy: Strategy) -> MemoryPool {
    MemoryPool::builder(device).limit(ByteSize::gib(1)).strategy(strategy).build().expect("a pool")
}

/// The calls alone, through `dyn Driver` as this crate makes them.
fn driver(c: &mut Criterion) {
    let device = device();
    let driver = device.driver().clone();
    let site = Location::caller();
    let len = NonZeroUsize::new(WHOLE).expect("not zero");
    let mut group = c.benchmark_group("driver");
    group.bench_function("pool_alloc + free_async", |b| {
        b.iter(|| {
            let driver: &dyn Driver = black_box(&*driver);
            let ptr = driver.pool_alloc(PoolHandle(1), len, StreamHandle(1), site).expect("allocates");
            driver.free_async(black_box(ptr), StreamHandle(1), site).expect("frees");
        });
    });
}

/// Entering and leaving the gate around a libcuda call, which the recording driver skips.
fn gate(c: &mut Criterion) {
    let open = Gate::<32>::new();
    let mut group = c.benchmark_group("gate");
    group.bench_function("a call goes in and out", |b| {
        b.iter(|| {
            black_box(&open).enter(black_box(3)).expect("open");
            black_box(&open).leave(black_box(3));
        });
    });
}

/// A resource's own allocate and deallocate, without the pool's limit and counts and without a buffer.
fn resources(c: &mut Criterion) {
    let mut group = c.benchmark_group("resource");
    for strategy in Strategy::ALL {
        let device = device();
        let stream = Stream::new(&device).expect("a stream");
        let resource = strategy.create(&device).expect("a resource");
        let len = NonZeroUsize::new(WHOLE).expect("not zero");
        let site = Location::caller();
        // A live allocation remains, as in a query: strategies that keep segments keep them.
        let below = resource.allocate(len, &stream, site).expect("allocates");
        group.bench_function(strategy.name(), |b| {
            b.iter(|| {
                let raw = resource.allocate(black_box(len), &stream, site).expect("allocates");
                resource.deallocate(black_box(raw), &stream, site).expect("frees");
            });
        });
        resource.deallocate(below, &stream, site).expect("frees");
    }
}

/// Creation and drop of a buffer, through a pool with its limit, its counts and the buffer's uses.
fn buffers(c: &mut Criterion) {
    let mut group = c.benchmark_group("buffer");
    for strategy in Strategy::ALL {
        let device = device();
        let (pool, stream) = (pool(&device, strategy), Stream::new(&device).expect("a stream"));
        let below = DeviceBuffer::new(WHOLE, &stream, &pool).expect("a buffer");
        group.bench_function(strategy.name(), |b| {
            b.iter(|| drop(black_box(DeviceBuffer::new(black_box(WHOLE), &stream, &pool).expect("a buffer"))));
        });
        drop(below);
    }
    let device = device();
    let (pool, stream) = (pool(&device, Strategy::CudaAsync), Stream::new(&device).expect("a stream"));
    group.bench_function("cuda_async, padding zeroed", |b| {
        b.iter(|| drop(black_box(DeviceBuffer::new(black_box(PADDED), &stream, &pool).expect("a buffer"))));
    });
    let query = stream.with_scope(&device.scope().child("query").child("operator"));
    group.bench_function("cuda_async, under a query and an operator", |b| {
        b.iter(|| drop(black_box(DeviceBuffer::new(black_box(WHOLE), &query, &pool).expect("a buffer"))));
    });
}

fn waits(c: &mut Criterion) {
    let device = device();
    let streams: Vec<Stream> = (0..16).map(|_| Stream::new(&device).expect("a stream")).collect();
    let work = |on: &Stream| on.submit(|_, _| Ok(())).expect("submitted").1;
    let mut group = c.benchmark_group("wait");
    let own = work(&streams[0]);
    group.bench_function("implied: the same stream", |b| {
        b.iter(|| streams[0].wait_for(black_box(own)).expect("waits"));
    });
    streams[1].wait_for(own).expect("waits");
    group.bench_function("implied: another stream, waited for before", |b| {
        b.iter(|| streams[1].wait_for(black_box(own)).expect("waits"));
    });
    let other = work(&streams[2]);
    streams[2].record().expect("records").synchronize().expect("waits");
    group.bench_function("implied: the host saw it done", |b| {
        b.iter(|| streams[3].wait_for(black_box(other)).expect("waits"));
    });
    group.bench_function("inserted: submit, record, wait", |b| {
        b.iter(|| {
            let position = work(&streams[4]);
            streams[5].wait_for(black_box(position)).expect("waits")
        });
    });
}

fn guards(c: &mut Criterion) {
    let device = device();
    let pool = pool(&device, Strategy::CudaAsync);
    let [one, two] = [0; 2].map(|_| Stream::new(&device).expect("a stream"));
    let buffer = DeviceBuffer::new(WHOLE, &one, &pool).expect("a buffer");
    let mut group = c.benchmark_group("guard");
    group.bench_function("read, the same stream", |b| {
        b.iter(|| {
            let guard = buffer.read(black_box(&one)).expect("a guard");
            black_box(&guard);
        });
    });
    group.bench_function("write, the same stream", |b| {
        b.iter(|| {
            let guard = buffer.write(black_box(&one)).expect("a guard");
            black_box(&guard);
        });
    });
    group.bench_function("share, the same stream", |b| {
        b.iter(|| {
            let guard = buffer.share(black_box(&one)).expect("a guard");
            black_box(&guard);
        });
    });
    buffer.fill(0, &one).expect("fills");
    drop(buffer.read(&two).expect("a guard"));
    group.bench_function("read, another stream, implied", |b| {
        b.iter(|| {
            let guard = buffer.read(black_box(&two)).expect("a guard");
            black_box(&guard);
        });
    });
    group.bench_function("fill: guard and submission", |b| {
        b.iter(|| black_box(&buffer).fill(0, &one).expect("fills"));
    });
    group.bench_function("hand-over: write on one stream, read on another", |b| {
        b.iter(|| {
            buffer.fill(0, &one).expect("fills");
            drop(black_box(buffer.read(&two).expect("a guard")));
        });
    });
}

fn pendings(c: &mut Criterion) {
    let device = device();
    let stream = Stream::new(&device).expect("a stream");
    let work = || stream.submit(|_, _| Ok(())).expect("submitted").1;
    let mut group = c.benchmark_group("pending");
    group.bench_function("ready", |b| b.iter(|| drop(black_box(Pending::ready(black_box(1u64))))));
    work();
    let done = stream.record().expect("records");
    done.synchronize().expect("waits");
    group.bench_function("behind an event that has passed", |b| {
        b.iter(|| drop(black_box(Pending::behind(done.clone(), black_box(1u64)))));
    });
    group.bench_function("behind new work, waited for", |b| {
        b.iter(|| {
            work();
            stream.record().expect("records").completed().wait().expect("waits");
        });
    });
}

/// Cost of an instrumented call without and with a recorder.
fn recorders(c: &mut Criterion) {
    let device = device();
    let pool = pool(&device, Strategy::CudaAsync);
    let stream = Stream::new(&device).expect("a stream");
    let buffer = DeviceBuffer::new(WHOLE, &stream, &pool).expect("allocates");
    let mut group = c.benchmark_group("recorder");
    let mut both = |whose: &str| {
        group.bench_function(format!("a step, {whose}"), |b| b.iter(|| drop(black_box(step(black_box("a step"))))));
        group.bench_function(format!("a fill, {whose}"), |b| {
            b.iter(|| black_box(&buffer).fill(0, &stream).expect("fills"));
        });
    };
    both("nobody records");
    let _on = Recorder::new().path("run", "one", "rest").enter();
    both("recorded");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots();
    targets = driver, gate, resources, buffers, waits, guards, pendings, recorders
}
criterion_main!(benches);
