//! Sixteen threads on eight streams: 100,000 random operations over all strategies, without findings or hangs.
//!
//! ```text
//!   each thread   allocate · drop · fill · copy · share a part · hand over · wait · record · download and check
//!   shelf         buffers that threads pass to each other, each with its fill byte
//!   watchdog      on a hang, prints the state of every thread and aborts the process
//! ```
//!
//! `MILLPOND_THREAD_OPERATIONS=1000000 cargo test -p millpond-memory --test memory -- threads` runs more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, PinnedPool, Strategy, Stream};

use crate::resources::Random;

const THREADS: usize = 16;
const STREAMS: usize = 8;
const SHELF: usize = 64;
/// Bytes per stream in a buffer that all streams share: whole sectors, disjoint.
const PART: usize = 64;

const OPERATIONS: [&str; 9] =
    ["allocate", "drop", "fill", "copy", "share", "hand over", "wait", "record", "bring home"];

fn operations() -> usize {
    let asked = std::env::var("MILLPOND_THREAD_OPERATIONS").ok();
    asked.map_or(100_000, |number| number.parse().expect("MILLPOND_THREAD_OPERATIONS is a number"))
}

/// State of each thread: the step times 16, plus the operation.
struct Progress([AtomicU64; THREADS]);

impl Progress {
    fn new() -> Self {
        Progress([const { AtomicU64::new(0) }; THREADS])
    }

    fn note(&self, thread: usize, step: usize, operation: usize) {
        self.0[thread].store(step as u64 * 16 + operation as u64, Ordering::Relaxed);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|thread| thread.load(Ordering::Relaxed)).sum()
    }

    fn dump(&self, strategy: Strategy) {
        eprintln!("{strategy}: nothing has moved for a minute");
        for (thread, progress) in self.0.iter().enumerate() {
            let progress = progress.load(Ordering::Relaxed);
            let operation = OPERATIONS.get(progress as usize % 16).copied().unwrap_or("done");
            eprintln!("  thread {thread}: step {}, {operation}", progress / 16);
        }
    }
}

/// A buffer and its fill byte.
type Filled = (Arc<DeviceBuffer>, u8);

struct World {
    pool: MemoryPool,
    pinned: PinnedPool,
    streams: Vec<Stream>,
    shelf: Mutex<Vec<Filled>>,
    board: DeviceBuffer,
    progress: Progress,
}

impl World {
    fn some(&self, random: &mut Random) -> Option<Filled> {
        let shelf = self.shelf.lock().unwrap();
        (!shelf.is_empty()).then(|| shelf[random.below(shelf.len())].clone())
    }

    fn put(&self, filled: Filled, random: &mut Random) {
        let mut shelf = self.shelf.lock().unwrap();
        let gone = (shelf.len() >= SHELF).then(|| random.below(shelf.len())).map(|index| shelf.swap_remove(index));
        shelf.push(filled);
        drop(shelf);
        drop(gone);
    }

    fn work(&self, thread: usize, steps: usize, seed: u64) {
        let mut random = Random(seed * 1000 + thread as u64);
        for step in 0..steps {
            let operation = random.below(OPERATIONS.len());
            self.progress.note(thread, step, operation);
            self.step(operation, (thread * 31 + step) as u8, &mut random);
        }
        self.progress.note(thread, steps, 15);
    }

    fn step(&self, operation: usize, byte: u8, random: &mut Random) {
        let lane = random.below(STREAMS);
        let (on, other) = (&self.streams[lane], &self.streams[random.below(STREAMS)]);
        match OPERATIONS[operation] {
            "allocate" => {
                let buffer = DeviceBuffer::new(random.len([40, 300, 1000, 3000]), on, &self.pool).unwrap();
                buffer.fill(byte, other).unwrap();
                self.put((Arc::new(buffer), byte), random);
            }
            "drop" => {
                let mut shelf = self.shelf.lock().unwrap();
                let gone = (shelf.len() > 4).then(|| random.below(shelf.len())).map(|index| shelf.swap_remove(index));
                drop(shelf);
                drop(gone);
            }
            // A buffer that no other thread has: the second write is on another stream than the first.
            "fill" => {
                let buffer = DeviceBuffer::zeroed(random.len([8, 64, 500, 1000]), on, &self.pool).unwrap();
                buffer.fill(byte, other).unwrap();
                drop(buffer.read(on).unwrap());
            }
            "copy" => {
                let Some((from, byte)) = self.some(random) else { return };
                let to = DeviceBuffer::new(from.len(), other, &self.pool).unwrap();
                from.copy_to(to.as_view(), on).unwrap();
                self.put((Arc::new(to), byte), random);
            }
            "share" => {
                let mut guard = self.board.share(on).unwrap();
                let part = guard.address().offset(lane * PART);
                let site = std::panic::Location::caller();
                let (_, position) = on.submit(|driver, on| driver.fill(part, byte, PART, on, site)).unwrap();
                guard.submitted(position);
            }
            // Two concurrent reads of the same buffer on two streams.
            "hand over" => {
                let Some((buffer, _)) = self.some(random) else { return };
                let first = buffer.read(on).unwrap();
                let second = buffer.read(other).unwrap();
                drop(first);
                drop(second);
            }
            "wait" => {
                on.wait_for(other.position()).unwrap();
            }
            "record" => {
                let event = on.record().unwrap();
                if random.below(4) == 0 {
                    event.synchronize().unwrap();
                } else {
                    event.query().unwrap();
                }
            }
            _ => {
                let Some((buffer, byte)) = self.some(random) else { return };
                let part = buffer.view(0..buffer.len().min(100)).unwrap();
                let home = part.download_vec(on, &self.pinned).unwrap();
                drop(buffer);
                let home = home.wait().unwrap();
                assert!(home.iter().all(|found| *found == byte), "{home:?} instead of {byte}");
            }
        }
    }
}

fn all_threads(strategy: Strategy, steps: usize) {
    let driver = SimDriver::new(SimOptions { seed: strategy as u64, ..SimOptions::default() });
    let device = Device::open(driver.clone(), 0).unwrap();
    let pool = MemoryPool::builder(&device).limit(ByteSize::mib(512)).strategy(strategy).build().unwrap();
    let streams: Vec<Stream> = (0..STREAMS).map(|_| Stream::new(&device).unwrap()).collect();
    let board = DeviceBuffer::zeroed(STREAMS * PART, &streams[0], &pool).unwrap();
    let pinned = PinnedPool::builder(&device).build();
    let progress = Progress::new();
    let world = World { pool, pinned, streams, shelf: Mutex::default(), board, progress };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watchdog = scope.spawn(|| {
            let (mut last, mut idle) = (0, 0);
            while !over.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_secs(1));
                let now = world.progress.sum();
                idle = if now == last { idle + 1 } else { 0 };
                last = now;
                // Ten minutes without an operation of any thread count as a hang, even on a busy machine.
                if idle > 600 {
                    world.progress.dump(strategy);
                    std::process::abort();
                }
            }
        });
        let world = &world;
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || world.work(thread, steps, strategy as u64 + 1))).collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Release);
        watchdog.thread().unpark();
        for worker in ended {
            worker.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let World { pool, shelf, board, streams, pinned, .. } = world;
    for (buffer, byte) in shelf.into_inner().unwrap() {
        let home = buffer.download_vec(&streams[0], &pinned).unwrap().wait().unwrap();
        assert!(home.iter().all(|found| *found == byte), "{strategy}: {buffer:?}");
    }
    drop(board);
    assert_eq!(pool.used_bytes(), ByteSize::ZERO, "{strategy}");
    drop((pool, pinned, streams));
    assert!(device.take_errors().is_empty(), "{strategy}");
    drop(device);
    let findings = driver.take_findings();
    assert!(findings.is_empty(), "{strategy}: {findings:#?}");
}

#[test]
fn random_operations_of_many_threads_end_in_order() {
    let steps = operations().div_ceil(Strategy::ALL.len() * THREADS);
    for strategy in Strategy::ALL {
        all_threads(strategy, steps);
    }
}
