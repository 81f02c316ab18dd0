//! Kernels that allocate from an arena on the device: apart from each other, and never behind its end.

use std::num::NonZeroUsize;
use std::panic::Location;

use millpond_memory::bump_arena::{BumpOutcome, DeviceBumpArena};
use millpond_memory::driver::KernelLaunch;
use millpond_memory::{
    Access, ByteSize, Device, DeviceBuffer, DeviceView, Kernel, MemoryPool, PinnedPool, Stream, UseSet,
};

use crate::conformance::on_every_device;

/// Thread block `b` of 32 threads needs 100 · (b + 1) bytes. Thread 0 asks for them, rounded up to 256, notes the start (or
/// 2⁶⁴ − 1) in `starts[b]`, and the threads fill them with the byte b + 1.
const FILL: &str = "
.version 8.2
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 cursor, .param .u64 bytes, .param .u64 capacity, .param .u64 starts)
{
    .reg .pred %p<5>;
    .reg .b16 %h<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<16>;
    .shared .align 8 .b64 start;
    ld.param.u64 %rd1, [cursor];
    ld.param.u64 %rd2, [bytes];
    ld.param.u64 %rd3, [capacity];
    ld.param.u64 %rd4, [starts];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    cvta.to.global.u64 %rd4, %rd4;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    add.u32 %r3, %r1, 1;
    mul.lo.u32 %r4, %r3, 100;
    cvt.u64.u32 %rd5, %r4;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra ASKED;
    add.u64 %rd6, %rd5, 255;
    and.b64 %rd6, %rd6, -256;
    atom.global.add.u64 %rd7, [%rd1], %rd6;
    add.u64 %rd8, %rd7, %rd6;
    setp.gt.u64 %p2, %rd8, %rd3;
    selp.b64 %rd7, -1, %rd7, %p2;
    st.shared.u64 [start], %rd7;
    mul.wide.u32 %rd9, %r1, 8;
    add.u64 %rd9, %rd4, %rd9;
    st.global.u64 [%rd9], %rd7;
ASKED:
    bar.sync 0;
    ld.shared.u64 %rd10, [start];
    setp.eq.s64 %p3, %rd10, -1;
    @%p3 bra DONE;
    add.u64 %rd11, %rd2, %rd10;
    cvt.u16.u32 %h1, %r3;
    mov.u32 %r5, %r2;
NEXT:
    setp.ge.u32 %p4, %r5, %r4;
    @%p4 bra DONE;
    cvt.u64.u32 %rd12, %r5;
    add.u64 %rd13, %rd11, %rd12;
    st.global.u8 [%rd13], %h1;
    add.u32 %r5, %r5, 32;
    bra NEXT;
DONE:
    ret;
}";

const BLOCKS: u32 = 12;

/// What `FILL` needs in all: each block's bytes rounded up.
fn needed() -> u64 {
    (1..=u64::from(BLOCKS)).map(|block| (100 * block).next_multiple_of(256)).sum()
}

fn fill(kernel: &Kernel, arena: &DeviceBumpArena, starts: &DeviceView, on: &Stream) {
    let mut uses = UseSet::new();
    uses.add(arena.cursor(), Access::Atomic);
    uses.add(arena.bytes(), Access::Atomic);
    uses.add(starts, Access::Write);
    let mut guards = uses.take(on, Location::caller()).unwrap();
    let capacity = arena.capacity().as_u64();
    let params: Vec<u8> = [arena.cursor().address().0, arena.bytes().address().0, capacity, starts.address().0]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let launch = KernelLaunch {
        function: kernel.function(),
        name: kernel.name(),
        grid: [BLOCKS, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: &params,
        accesses: guards.declared(),
        site: Location::caller(),
    };
    // SAFETY: the parameters are those of FILL, and the guards hold the buffers they point to.
    let (_, position) = on.submit(|driver, on| unsafe { driver.launch(&launch, on) }).unwrap();
    guards.submitted(position);
    kernel.launched(on, position);
}

struct World {
    pool: MemoryPool,
    pinned: PinnedPool,
    kernel: Kernel,
    streams: [Stream; 2],
}

fn world(device: &Device) -> World {
    World {
        pool: MemoryPool::builder(device).limit(ByteSize::mib(64)).build().unwrap(),
        pinned: PinnedPool::builder(device).build(),
        kernel: device.load_module(FILL).unwrap().kernel("fill").unwrap(),
        streams: [0; 2].map(|_| Stream::new(device).unwrap()),
    }
}

/// Runs the kernel; returns how it came out, where the blocks' bytes begin, and checks the bytes of those that had any.
fn run(world: &World, arena: &DeviceBumpArena) -> (BumpOutcome, Vec<Option<u64>>) {
    let World { pool, pinned, kernel, streams: [on, reader] } = world;
    let starts = DeviceBuffer::zeroed(BLOCKS as usize * 8, on, pool).unwrap();
    fill(kernel, arena, &starts, on);
    let outcome = arena.outcome(reader, pinned).unwrap();
    let starts = starts.download_vec(reader, pinned).unwrap().wait().unwrap();
    let starts: Vec<Option<u64>> = starts
        .chunks_exact(8)
        .map(|start| u64::from_le_bytes(start.try_into().unwrap()))
        .map(|start| (start != u64::MAX).then_some(start))
        .collect();
    for (block, start) in starts.iter().enumerate() {
        let Some(start) = *start else { continue };
        let range = start as usize..start as usize + 100 * (block + 1);
        let bytes = arena.bytes().view(range).unwrap().download_vec(reader, pinned).unwrap().wait().unwrap();
        assert!(bytes.iter().all(|byte| usize::from(*byte) == block + 1), "block {block}: {bytes:?}");
    }
    (outcome.wait().unwrap(), starts)
}

#[test]
fn thread_blocks_get_bytes_of_their_own() {
    on_every_device(|device| {
        let world = world(&device);
        let capacity = NonZeroUsize::new(needed() as usize).unwrap();
        let arena = DeviceBumpArena::new(capacity, &world.streams[0], &world.pool).unwrap();
        // Each time from the beginning, on the stream that is ready first, while the last result is hardly read.
        for round in 0..3 {
            let (outcome, starts) = run(&world, &arena);
            assert!(outcome.fits() && outcome.needed == ByteSize(needed()), "round {round}: {outcome:?}");
            assert!(starts.iter().all(|start| start.is_some_and(|start| start.is_multiple_of(256))), "{starts:?}");
            arena.reset(&world.streams[round % 2]).unwrap();
        }
        drop(arena);
        assert_eq!(world.pool.used_bytes(), ByteSize::ZERO);
    });
}

#[test]
fn overflow_writes_nothing_behind_the_end_and_says_how_much_is_needed() {
    on_every_device(|device| {
        let world = world(&device);
        let small = NonZeroUsize::new(needed() as usize / 2).unwrap();
        let arena = DeviceBumpArena::new(small, &world.streams[0], &world.pool).unwrap();
        let (outcome, starts) = run(&world, &arena);
        assert!(!outcome.fits());
        assert_eq!((outcome.needed, outcome.capacity), (ByteSize(needed()), arena.capacity()));
        assert!(starts.iter().any(Option::is_none), "{starts:?}");
        let enough = NonZeroUsize::new(outcome.needed.as_u64() as usize).unwrap();
        let arena = DeviceBumpArena::new(enough, &world.streams[0], &world.pool).unwrap();
        let (outcome, starts) = run(&world, &arena);
        assert!(outcome.fits() && starts.iter().all(Option::is_some));
    });
}

#[test]
fn an_arena_too_large_to_be_is_refused() {
    on_every_device(|device| {
        let World { pool, streams, .. } = world(&device);
        let error = DeviceBumpArena::new(NonZeroUsize::MAX, &streams[0], &pool).unwrap_err();
        assert_eq!(error.to_string(), format!("an arena of {0} bytes at 0 does not fit into {0} bytes", usize::MAX));
    });
}
