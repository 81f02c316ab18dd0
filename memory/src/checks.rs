//! What checks that run on any device are made of: a name, a rig, and a result that says what was wrong.
//!
//!   Check::run(device) ─► CheckRig ─► upload, launch, download ─► same(what, actual, expected)? ─► nothing is left
//!
//! Run by   `cargo test` on the simulated device, and by `millpond selftest` on the device a user has. This crate's own are
//!          `conformance::claims`; crates above bring theirs.
//! Memory   a pool and pinned memory of their own; nothing is left when a check ends.
//! Waits    each check waits for its own work. None asserts on time.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::pinned::PinnedPool;
use crate::{ByteSize, Device, DeviceBuffer, MemoryError, MemoryPool, Strategy, Stream};

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
    pub streams: [Stream; 4],
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
    pub(crate) fn with(device: &Device, strategy: Strategy) -> Result<Self, CheckError> {
        let pool = MemoryPool::builder(device).limit(ByteSize::mib(256)).strategy(strategy).build()?;
        let pinned = PinnedPool::builder(device).build();
        let stream = || Stream::new(device);
        let streams = [stream()?, stream()?, stream()?, stream()?];
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

/// Runs a future on this thread, which sleeps until it is woken. For checks and tests; queries await.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
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

/// Says that the running test was skipped, wholly or in part. The line goes to standard error itself, since the harness keeps what
/// `eprintln!` says in a test that passes, and to the end of the file that `MILLPOND_TEST_SKIPPED` names.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    let Some(file) = std::env::var_os("MILLPOND_TEST_SKIPPED") else { return };
    // One write at the end of the file: lines of several processes do not mix.
    let told = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    told.and_then(|mut told| told.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("MILLPOND_TEST_SKIPPED={}: {error}", file.display()));
}

/// For a test that needs a GPU and finds none: it is skipped, and fails if `MILLPOND_TEST_CUDA` is 1.
///
/// # Panics
/// As the failure of the test.
pub fn skipped_without_gpu(reason: &dyn std::fmt::Display) {
    let demanded = std::env::var("MILLPOND_TEST_CUDA").is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
    assert!(!demanded, "MILLPOND_TEST_CUDA demands a GPU: {reason}");
    skipped(&format!("needs a GPU ({reason})"));
}
