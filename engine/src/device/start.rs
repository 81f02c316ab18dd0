//! Start-up in the background of a session: a thread prepares what a first query would wait for, while the session
//! plans.
//!
//! ```text
//!   device opened ─┬─ session: tables, SQL, plans ───────────────► first query ─ requests its resources
//!                  └─ thread:  pinned memory ─ pool ─ images ───► ends           └─ waits only for one being prepared
//! ```
//!
//! Pinned    per core, one upload block of 4 MiB and one download block of 32 MiB.
//! Pool      grown by 4 GiB or 1 GiB, if its strategy keeps freed memory and its limit is at least 16 or 8 times as
//!           much.
//! Images    are loaded if their assembled code is on disk. None is assembled: the first query may need others first.
//! Counted   apart from what queries use: [`StartUp::without`] subtracts the growth of the pool.
//! Errors    are not reported here: the first query that needs the resource requests it again and reports the error.
//! Ends      when everything is prepared, or after the current step when the device is dropped or the process ends.
//!           Nothing starts without a device, nor on the simulated device, whose allocations tests count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use millpond_kernels::image::{IMAGES, Images};
use millpond_memory::{
    ByteSize, DeviceBuffer, HostKind, MemoryError, MemoryPool, PinnedPool, Scope, Strategy, Stream, is_leaving,
};

/// Pinned memory blocks per core: kind, size, and the divisor of the limit that bounds their total.
const BLOCKS: [(HostKind, ByteSize, u64); 2] =
    [(HostKind::Download, ByteSize::mib(32), 2), (HostKind::Upload, ByteSize::mib(4), 4)];
/// Growth of the pool in bytes, and the minimum ratio of the pool's limit to it.
const GROWTHS: [(ByteSize, u64); 2] = [(ByteSize::gib(4), 16), (ByteSize::gib(1), 8)];

/// Inputs of the start-up thread.
pub(crate) struct Start {
    pub pinned: PinnedPool,
    pub pool: MemoryPool,
    pub strategy: Strategy,
    pub images: Arc<Images>,
    /// Scope that the pool's growth is counted under.
    pub scope: Scope,
    pub growth: Arc<Growth>,
}

/// State of the pool's growth: pending (0), in progress (its bytes) or finished (1).
#[derive(Default)]
pub(crate) struct Growth(AtomicU64);

impl Growth {
    fn under_way(&self, bytes: ByteSize, grow: impl FnOnce() -> Result<(), MemoryError>) -> Result<(), MemoryError> {
        // Set before the pool allocates the bytes and until it has freed them.
        self.0.store(bytes.as_u64(), Ordering::SeqCst);
        let grown = grow();
        self.0.store(1, Ordering::SeqCst);
        grown
    }

    /// Result of `used`, without the bytes of the growth.
    fn without(&self, used: impl Fn() -> u64) -> u64 {
        loop {
            let phase = self.0.load(Ordering::SeqCst);
            let used = used();
            if self.0.load(Ordering::SeqCst) == phase {
                return if phase > 1 { used.saturating_sub(phase) } else { used };
            }
        }
    }
}

/// The start-up thread. When dropped, it ends after the current step.
pub(crate) struct StartUp {
    given_up: Arc<AtomicBool>,
    growth: Arc<Growth>,
    thread: Option<JoinHandle<()>>,
}

impl StartUp {
    /// Starts the thread.
    pub fn begin(start: Start) -> Self {
        let (given_up, growth) = (Arc::new(AtomicBool::new(false)), Arc::clone(&start.growth));
        let goes_on = {
            let given_up = Arc::clone(&given_up);
            move || !given_up.load(Ordering::Relaxed) && !is_leaving()
        };
        let making = move || {
            if let Err(error) = start.make(&goes_on) {
                tracing::debug!(%error, "start-up ended early: the first query meets what is wrong");
            }
        };
        // If the system cannot create a thread, the first query prepares what it needs.
        let thread = thread::Builder::new().name("millpond-start".to_string()).spawn(making).ok();
        Self { given_up, growth, thread }
    }

    /// Result of `used`, without the bytes of the start-up.
    pub fn without(&self, used: impl Fn() -> u64) -> u64 {
        self.growth.without(used)
    }
}

impl Drop for StartUp {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("start-up beside the session panicked");
        }
    }
}

impl Start {
    /// Runs all steps while `goes_on` returns true.
    pub fn make(&self, goes_on: &dyn Fn() -> bool) -> Result<(), MemoryError> {
        for (kind, bytes, share) in BLOCKS {
            let blocks = self.blocks(bytes, share);
            while goes_on() && self.pinned.prepare(kind, bytes.as_u64() as usize, blocks)? {}
            if self.pinned.statistics().pageable > 0 {
                // The system locks no more pages.
                break;
            }
        }
        if let Some(bytes) = self.grows().filter(|_| goes_on()) {
            let stream = Stream::new(self.images.device())?.with_scope(&self.scope);
            let grow = || DeviceBuffer::new(bytes.as_u64() as usize, &stream, &self.pool).map(drop);
            self.growth.under_way(bytes, grow)?;
        }
        for image in IMAGES.iter().filter(|image| image.kernels().next().is_some()) {
            if !goes_on() {
                return Ok(());
            }
            self.images.load_kept(image)?;
        }
        Ok(())
    }

    fn blocks(&self, bytes: ByteSize, share: u64) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        cores.min((self.pinned.limit().as_u64() / share / bytes.as_u64()) as usize)
    }

    /// Bytes by which to grow the pool, if its strategy keeps freed memory.
    fn grows(&self) -> Option<ByteSize> {
        let keeps = matches!(self.strategy, Strategy::CudaAsync | Strategy::Caching | Strategy::Binning);
        let has_room = |(bytes, times): &&(ByteSize, u64)| self.pool.limit().as_u64() / bytes.as_u64() >= *times;
        GROWTHS.iter().find(has_room).map(|(bytes, _)| *bytes).filter(|_| keeps)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::device::Engine;
    use crate::options::MillpondOptions;

    fn engine(kernels: Option<&Path>, options: &[(&str, &str)]) -> Arc<Engine> {
        let mut all = MillpondOptions::default();
        let kernels = kernels.map_or("off", |folder| folder.to_str().expect("UTF-8"));
        for (name, value) in [("device", "sim"), ("kernel_cache", kernels)].iter().chain(options) {
            all.try_set(name, value).expect("an option");
        }
        Engine::open(&all).expect("it opens").engine.expect("a device")
    }

    #[test]
    fn what_is_made_is_there_for_the_first_query_and_nothing_is_assembled() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("kernels");
        let first = engine(Some(&folder), &[]);
        first
            .images
            .kernel("scan", IMAGES.iter().find(|image| image.name == "scan").unwrap().kernels().next().unwrap())
            .expect("a kernel");
        assert_eq!(first.kernel_cache().expect("a folder").statistics().written, 1);

        let second = engine(Some(&folder), &[]);
        second.start().make(&|| true).expect("it is made");
        let kernels = second.kernel_cache().expect("a folder").statistics();
        assert_eq!((kernels.read, kernels.assembled), (1, 0), "one image is on disk");
        let made = second.pinned.statistics();
        assert!(made.held >= ByteSize::mib(36) && made.lent == ByteSize::ZERO, "{made:?}");
        assert_eq!(second.pool.used_bytes(), ByteSize::ZERO);
        let staging = second.pinned.take_now(HostKind::Upload, 3 << 20).expect("a buffer");
        let taken = second.pinned.statistics();
        assert_eq!((taken.hits, taken.misses), (made.hits + 1, made.misses), "a first load finds its staging");
        drop(staging);
        assert_eq!(second.take_findings(), Vec::<String>::new());
    }

    #[test]
    fn the_pools_growth_is_counted_for_no_query() {
        let (growth, used) = (Growth::default(), AtomicU64::new(5));
        let without = || growth.without(|| used.load(Ordering::SeqCst));
        assert_eq!(without(), 5);
        let bytes = ByteSize::gib(4);
        growth
            .under_way(bytes, || {
                assert_eq!(without(), 0, "not in use yet");
                used.store(5 + bytes.as_u64(), Ordering::SeqCst);
                assert_eq!(without(), 5);
                used.store(5, Ordering::SeqCst);
                Ok(())
            })
            .expect("it grows");
        assert_eq!(without(), 5);
        // The growth starts and ends between two reads of the phase.
        let (growth, asked) = (Growth::default(), AtomicU64::new(0));
        let passing = || match asked.fetch_add(1, Ordering::SeqCst) {
            0 => growth.under_way(bytes, || Ok(())).map_or(0, |()| 7 + bytes.as_u64()),
            _ => 7,
        };
        assert_eq!(growth.without(passing), 7);
    }

    #[test]
    fn a_device_that_is_given_up_ends_it() {
        let engine = engine(None, &[]);
        engine.start().make(&|| false).expect("nothing to make");
        assert_eq!(engine.pinned.statistics().held, ByteSize::ZERO);
        engine.start_up();
        drop(engine);
    }

    #[test]
    fn trouble_is_left_to_who_needs_the_thing() {
        let no_pages = engine(None, &[("debug_sim_fail_pinned", "1")]);
        no_pages.start().make(&|| true).expect("the system locks no pages, and nothing is kept");
        let made = no_pages.pinned.statistics();
        assert_eq!((made.held, made.pageable), (ByteSize::ZERO, 1));

        let lost = engine(None, &[("debug_sim_fail_allocation", "1")]);
        let made = lost.start().make(&|| true);
        assert_eq!(made.is_err(), lost.start().grows().is_some(), "{made:?}");
        lost.start_up();
    }

    #[test]
    fn a_session_without_a_device_starts_nothing_and_one_on_the_simulated_device_neither() {
        let builder = crate::Millpond::builder().with_device(crate::DeviceChoice::Cpu);
        assert!(builder.build().expect("a session").engine().is_none());
        let session = crate::Millpond::builder()
            .with_own_engine()
            .with_device(crate::DeviceChoice::Sim)
            .build()
            .expect("a session");
        let engine = session.engine().expect("a device");
        assert!(engine.start_up.get().is_none() && engine.opening() > std::time::Duration::ZERO);
    }
}
