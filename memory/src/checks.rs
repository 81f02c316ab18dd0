//! Building blocks of checks that run on any device: a name, a rig, and a result that describes a failure.
//!
//!   Check::run(device) ─► CheckRig ─► upload, launch, download ─► same(what, actual, expected)? ─► nothing left
//!
//! Run by   `cargo test` on the simulated device, and `millpond selftest` on the user's device. This crate's own checks
//!          are `conformance::claims`; crates above add theirs.
//! Memory   a separate pool and separate pinned memory; nothing is allocated when a check ends.
//! Waits    each check waits for its own work. No check asserts on time.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::pinned::PinnedPool;
use crate::{ByteSize, Device, DeviceBuffer, MemoryError, MemoryPool, Strategy, Stream};

/// A named claim and its test.
#[derive(Clone, Copy)]
pub struct Check {
    /// `family/claim`.
    pub name: &'static str,
    /// The claim as a sentence.
    pub claim: &'static str,
    /// Runs the check.
    pub run: fn(&Device) -> Result<(), CheckError>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Reason for a failed check.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A call returned an error.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A call of a crate above returned an error.
    #[error("{0}")]
    Refused(String),
    /// The check ran, but the result is wrong.
    #[error("{0}")]
    Wrong(String),
}

/// `Ok` if `actual` equals `expected`, else an error that shows both.
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

/// Device, pools and streams of a check.
pub struct CheckRig {
    pub device: Device,
    pub pool: MemoryPool,
    pub pinned: PinnedPool,
    pub streams: [Stream; 4],
}

impl CheckRig {
    /// Creates a pool of at most 256 MiB, pinned memory, and four streams.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(device: &Device) -> Result<Self, CheckError> {
        Self::with(device, Strategy::default())
    }

    /// Like `new`, with a pool of `strategy`.
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

    /// Downloads a view and waits for the bytes.
    pub fn download(&self, view: &crate::DeviceView, on: &Stream) -> Result<Vec<u8>, CheckError> {
        Ok(view.download_vec(on, &self.pinned)?.wait()?)
    }

    /// Checks that nothing of the pool is in use and that no drop reported an error.
    ///
    /// # Errors
    /// [`CheckError::Wrong`]
    pub fn finish(self) -> Result<(), CheckError> {
        same("memory in use at the end", self.pool.used_bytes(), ByteSize::ZERO)?;
        same("the list of errors of drops", self.device.take_errors().len(), 0)
    }
}

/// Runs a future on this thread, which parks until it is woken. For checks and tests; queries await.
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

/// Reports that the running test was skipped, wholly or in part. The line goes to standard error directly, because the
/// harness captures the `eprintln!` output of a passing test, and to the end of the file named by
/// `MILLPOND_TEST_SKIPPED`.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    let Some(file) = std::env::var_os("MILLPOND_TEST_SKIPPED") else { return };
    // A single append, so that lines of several processes do not mix.
    let told = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    told.and_then(|mut told| told.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("MILLPOND_TEST_SKIPPED={}: {error}", file.display()));
}

/// Skips a test that needs a GPU where there is none; fails it if `MILLPOND_TEST_CUDA` is 1.
///
/// # Panics
/// To fail the test.
pub fn skipped_without_gpu(reason: &dyn std::fmt::Display) {
    let demanded = std::env::var("MILLPOND_TEST_CUDA").is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
    assert!(!demanded, "MILLPOND_TEST_CUDA demands a GPU: {reason}");
    skipped(&format!("needs a GPU ({reason})"));
}
