//! Named claims that a device, its driver and this crate hold together: a self-test for any machine.
//!
//!   checks() ──► [ memory/copies_come_home, memory/hand_over, … ]      each runs on a `Device` and says what was wrong
//!
//! Run by   `cargo test` on the simulated device, and by `millpond selftest` on the device a user has.
//! Memory   a pool and pinned memory of their own; nothing is left when a check ends.
//! Waits    each check waits for its own work. None asserts on time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::pinned::PinnedPool;
use crate::{ByteSize, Device, DeviceBuffer, HostKind, MemoryError, MemoryPool, Strategy, Stream, Waited};

/// A claim with a name.
#[derive(Clone, Copy)]
pub struct Check {
    /// `family/claim`.
    pub name: &'static str,
    /// The claim as a sentence.
    pub claim: &'static str,
    /// Tries it.
    pub run: fn(&Device) -> Result<(), CheckError>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Why a check failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A call was refused.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A call of a crate above was refused.
    #[error("{0}")]
    Refused(String),
    /// Everything ran, and the result is not what it must be.
    #[error("{0}")]
    Wrong(String),
}

/// `Ok` if `actual` is what it must be, else an error that shows both.
///
/// # Errors
/// [`CheckError::Wrong`]
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, actual: T, expected: T) -> Result<(), CheckError> {
    if actual == expected {
        return Ok(());
    }
    Err(CheckError::Wrong(format!("{what} is {} instead of {}", short(&actual), short(&expected))))
}

fn short(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What a check works with.
pub struct CheckRig {
    pub device: Device,
    pub pool: MemoryPool,
    pub pinned: PinnedPool,
    pub streams: Vec<Stream>,
}

impl CheckRig {
    /// A pool of at most 256 MiB, pinned memory, and four streams.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, CheckError> {
        Self::with(device, Strategy::default())
    }

    /// The same with memory of `strategy`.
    fn with(device: &Device, strategy: Strategy) -> Result<Self, CheckError> {
        let pool = MemoryPool::builder(device).limit(ByteSize::mib(256)).strategy(strategy).build()?;
        let pinned = PinnedPool::builder(device).build();
        let streams = (0..4).map(|_| Stream::new(device)).collect::<Result<_, _>>()?;
        Ok(Self { device: device.clone(), pool, pinned, streams })
    }

    pub fn upload(&self, bytes: &[u8], on: &Stream) -> Result<DeviceBuffer, CheckError> {
        Ok(DeviceBuffer::upload(bytes, on, &self.pool, &self.pinned)?)
    }

    /// The bytes of a view, waited for.
    pub fn download(&self, view: &crate::DeviceView, on: &Stream) -> Result<Vec<u8>, CheckError> {
        Ok(view.download_vec(on, &self.pinned)?.wait()?)
    }

    /// Nothing of the pool is in use, and no drop reported an error.
    ///
    /// # Errors
    /// [`CheckError::Wrong`]
    pub fn finish(self) -> Result<(), CheckError> {
        same("memory in use at the end", self.pool.used_bytes(), ByteSize::ZERO)?;
        same("the list of errors of drops", self.device.take_errors().len(), 0)
    }
}

/// Every check of this crate, cheap ones first.
pub fn checks() -> &'static [Check] {
    &CHECKS
}

const CHECKS: [Check; 12] = [
    Check { name: "memory/copies", claim: "bytes go up and come home, whatever their number", run: copies },
    Check { name: "memory/pieces", claim: "pinned memory is copied in pieces, each to its place", run: pieces },
    Check { name: "memory/zeroed", claim: "a zeroed buffer is zero to the end of its padding", run: zeroed },
    Check { name: "memory/hand_over", claim: "a buffer handed from stream to stream keeps its bytes", run: hand_over },
    Check { name: "memory/readers", claim: "a write waits for the readers on other streams", run: readers },
    Check {
        name: "memory/reuse",
        claim: "memory freed on one stream and reused on another is not mixed up",
        run: reuse,
    },
    Check {
        name: "memory/pool",
        claim: "the pool keeps its memory, counts it, and gives it back when told",
        run: pool,
    },
    Check {
        name: "memory/strategies",
        claim: "every strategy of allocation keeps bytes apart and gives its memory back",
        run: strategies,
    },
    Check { name: "memory/limit", claim: "too large an allocation is refused, and the next one works", run: limit },
    Check {
        name: "memory/events",
        claim: "events pass in order, and a wait that is implied costs nothing",
        run: events,
    },
    Check { name: "memory/pending", claim: "results are awaited without blocking, in any order", run: pending },
    Check {
        name: "memory/modules",
        claim: "PTX is loaded, and text that is not PTX is refused with a reason",
        run: modules,
    },
];

/// Bytes that differ from place to place and from round to round.
fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ round.wrapping_mul(97)) as u8).collect()
}

fn copies(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    for (round, len) in [0, 1, 3, 255, 256, 257, 4096, 65_537, 3 << 20].into_iter().enumerate() {
        let (up, down) = (&rig.streams[round % 4], &rig.streams[(round + 1) % 4]);
        let buffer = rig.upload(&pattern(round, len), up)?;
        same(&format!("what came home of {len} bytes"), rig.download(&buffer, down)?, pattern(round, len))?;
    }
    rig.finish()
}

fn pieces(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let on = &rig.streams[0];
    let bytes = pattern(1, 10_000);
    let buffer = DeviceBuffer::new(bytes.len(), on, &rig.pool)?;
    let mut staging = rig.pinned.take_now(HostKind::Upload, bytes.len())?;
    staging.write()?.copy_from_slice(&bytes);
    for range in [7_000..10_000, 0..1, 1..4_000, 4_000..7_000] {
        staging.enqueue_to_device(range.clone(), &buffer.view(range)?, on)?;
    }
    staging.idle()?.wait()?;
    let mut home = rig.pinned.take_now(HostKind::Download, bytes.len())?;
    for range in [5_000..10_000, 0..5_000] {
        home.enqueue_to_host(range.clone(), &buffer.view(range)?, &rig.streams[1])?;
    }
    let home = home.idle()?.wait()?;
    same("what came home in pieces", home.read()?.to_vec(), bytes)?;
    drop((home, buffer));
    rig.finish()
}

fn zeroed(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    for len in [1, 100, 256, 1_000_001] {
        // Dirty memory first, so that zeros are written and not found.
        drop(rig.upload(&vec![0xa5; len], &rig.streams[0])?);
        let buffer = DeviceBuffer::zeroed(len, &rig.streams[0], &rig.pool)?;
        let padded = buffer.padded();
        same("a zeroed buffer's padded length", padded.len() % 256, 0)?;
        let bytes = rig.download(&padded, &rig.streams[1])?;
        same("the place of a byte that is not zero", bytes.iter().position(|byte| *byte != 0), None)?;
    }
    rig.finish()
}

fn hand_over(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    hand_over_on(&rig)?;
    rig.finish()
}

fn hand_over_on(rig: &CheckRig) -> Result<(), CheckError> {
    for round in 0..8 {
        let len = 100_003 + round;
        let mut buffer = rig.upload(&pattern(round, len), &rig.streams[round % 4])?;
        for step in 1..7 {
            // Each step reads on a stream of its own what another stream has written, and frees it.
            let on = &rig.streams[(round + step) % 4];
            let next = DeviceBuffer::new(len, on, &rig.pool)?;
            buffer.copy_to(&next, on)?;
            buffer = next;
        }
        same("what was handed over", rig.download(&buffer, &rig.streams[(round + 3) % 4])?, pattern(round, len))?;
    }
    Ok(())
}

fn readers(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let len = 2 << 20;
    for round in 0..4 {
        let [writer, first, second, last] = &rig.streams[..] else {
            return Err(CheckError::Wrong("a rig has four streams".into()));
        };
        let buffer = rig.upload(&pattern(round, len), writer)?;
        let copies = [first, second].map(|on| {
            let copy = DeviceBuffer::new(len, on, &rig.pool)?;
            buffer.copy_to(&copy, on).map(|()| copy)
        });
        buffer.fill(0xee, last)?;
        for copy in copies {
            same("what a reader saw", rig.download(&copy?.view(0..len)?, first)?, pattern(round, len))?;
        }
        same("what the writer left", rig.download(&buffer, second)?, vec![0xee; len])?;
    }
    rig.finish()
}

fn reuse(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    reuse_on(&rig)?;
    rig.finish()
}

fn reuse_on(rig: &CheckRig) -> Result<(), CheckError> {
    let mut results = Vec::new();
    for round in 0..40 {
        let on = &rig.streams[round % 4];
        let buffer = DeviceBuffer::new(65_536, on, &rig.pool)?;
        buffer.fill(round as u8, on)?;
        let copy = DeviceBuffer::new(65_536, &rig.streams[(round + 1) % 4], &rig.pool)?;
        buffer.copy_to(&copy, &rig.streams[(round + 1) % 4])?;
        drop(buffer);
        results.push((round, copy.download_vec(&rig.streams[(round + 2) % 4], &rig.pinned)?));
    }
    for (round, result) in results {
        let bytes = result.wait()?;
        same(&format!("a foreign byte of round {round}"), bytes.iter().find(|byte| **byte != round as u8), None)?;
    }
    Ok(())
}

fn strategies(device: &Device) -> Result<(), CheckError> {
    for strategy in Strategy::ALL {
        if !device.limits().memory_pools && !matches!(strategy, Strategy::Cuda | Strategy::Caching) {
            continue;
        }
        let rig = CheckRig::with(device, strategy)?;
        let named = |error| CheckError::Wrong(format!("{strategy}: {error}"));
        hand_over_on(&rig).and_then(|()| reuse_on(&rig)).map_err(named)?;
        rig.pool.trim_to(ByteSize::ZERO)?;
        same(&format!("what {strategy} holds after a trim"), rig.pool.statistics()?.reserved, ByteSize::ZERO)?;
        rig.finish().map_err(named)?;
    }
    Ok(())
}

fn pool(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let attributes = rig.pool.attributes()?;
    same("the release threshold", attributes.release_threshold, ByteSize::MAX)?;
    same("reuse along events", attributes.reuse.follow_event_dependencies, true)?;
    same("reuse with dependencies of the driver's own", attributes.reuse.internal_dependencies, false)?;
    let buffer = rig.upload(&pattern(0, 1 << 20), &rig.streams[0])?;
    same("used bytes beside one buffer", rig.pool.used_bytes() >= ByteSize::mib(1), true)?;
    drop(buffer);
    rig.device.synchronize()?;
    same("memory that is kept after a free", rig.pool.attributes()?.reserved_current >= ByteSize::mib(1), true)?;
    rig.pool.trim_to(ByteSize::ZERO)?;
    same("memory that is kept after a trim", rig.pool.attributes()?.reserved_current, ByteSize::ZERO)?;
    rig.finish()
}

fn limit(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let refused = DeviceBuffer::new(257 << 20, &rig.streams[0], &rig.pool);
    same("an allocation beyond the limit that is out of memory", refused.is_err_and(|e| e.is_out_of_memory()), true)?;
    let buffer = rig.upload(&pattern(3, 1000), &rig.streams[0])?;
    same("a buffer after the refusal", rig.download(&buffer, &rig.streams[0])?, pattern(3, 1000))?;
    drop(buffer);
    rig.finish()
}

fn events(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let [first, second, third, _] = &rig.streams[..] else {
        return Err(CheckError::Wrong("a rig has four streams".into()));
    };
    let buffer = DeviceBuffer::new(1 << 20, first, &rig.pool)?;
    buffer.fill(1, first)?;
    let filled = first.position();
    let earlier = first.record()?;
    same("the first wait for other work", second.wait_for(filled)?, Waited::Inserted)?;
    same("the same wait again", second.wait_for(filled)?, Waited::Elided)?;
    buffer.fill(2, second)?;
    // Waiting for the second stream implies the first.
    third.wait_for(second.position())?;
    same("a wait that another one implies", third.wait_for(filled)?, Waited::Elided)?;
    let later = second.record()?;
    later.synchronize()?;
    same("an event that was waited for", later.query()?, true)?;
    same("an event before it in order", earlier.query()?, true)?;
    drop(buffer);
    rig.finish()
}

fn pending(device: &Device) -> Result<(), CheckError> {
    let rig = CheckRig::new(device)?;
    let mut results = Vec::new();
    for round in 0..32 {
        let on = &rig.streams[round % 4];
        let buffer = rig.upload(&pattern(round, 1_000 + round), on)?;
        results.push(buffer.download_vec(on, &rig.pinned)?.map(move |bytes| (round, bytes)));
    }
    // The last first: none depends on the order in which they are asked for.
    for result in results.into_iter().rev() {
        let (round, bytes) = block_on(result)?;
        same("an awaited result", bytes, pattern(round, 1_000 + round))?;
    }
    block_on(rig.streams[0].record()?.completed())?;
    rig.finish()
}

fn modules(device: &Device) -> Result<(), CheckError> {
    const NOTHING: &str =
        ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry nothing(.param .u64 unused)\n{\n    ret;\n}\n";
    let module = device.load_module(NOTHING)?;
    let kernel = module.kernel("nothing")?;
    let attributes = kernel.attributes()?;
    same("a kernel that may run in blocks of 32", attributes.max_threads_per_block >= 32, true)?;
    same("a kernel that is not there", module.kernel("something").is_err(), true)?;
    match device.load_module("this is no PTX") {
        Ok(_) => Err(CheckError::Wrong("text that is no PTX was loaded".into())),
        Err(error) if error.is_device_lost() => Err(error.into()),
        Err(_) => Ok(()),
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
