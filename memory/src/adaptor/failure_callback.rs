//! Calls a callback that frees memory after an allocation fails for lack of memory, then retries.
//!
//!   allocate ─► out of memory ─► callback(0) ─► Retry ─► allocate ─► out of memory ─► callback(1) ─► Fail
//!
//! Only       out of memory is worth a call; other errors pass.
//! Re-entry   a callback that allocates, and runs out of memory again, is not called from inside itself.
//! Locks      none is held while the callback runs.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Site;
use crate::error::Result;
use crate::ids::StreamId;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Maximum retries per request: a callback that never returns `Fail` must not hang the program.
const MAX_ATTEMPTS: u32 = 100;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// An allocation that found no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub wanted: ByteSize,
    pub stream: StreamId,
    /// Counts from 0.
    pub attempt: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureAction {
    /// Something was freed: worth another try.
    Retry,
    Fail,
}

type Callback = Box<dyn Fn(Failure) -> FailureAction + Send + Sync>;

pub struct FailureCallbackResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    callback: Callback,
}

impl FailureCallbackResourceAdaptor {
    pub fn new(
        upstream: Arc<dyn DeviceMemoryResource>,
        callback: impl Fn(Failure) -> FailureAction + Send + Sync + 'static,
    ) -> Self {
        FailureCallbackResourceAdaptor { upstream, callback: Box::new(callback) }
    }

    fn ask(&self, failure: Failure) -> FailureAction {
        /// Ends the stay inside, also when the callback panics.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                INSIDE.set(false);
            }
        }
        if failure.attempt >= MAX_ATTEMPTS || INSIDE.replace(true) {
            return FailureAction::Fail;
        }
        let _leave = Leave;
        (self.callback)(failure)
    }
}

impl fmt::Debug for FailureCallbackResourceAdaptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailureCallbackResourceAdaptor").field(&self.upstream).finish()
    }
}

impl DeviceMemoryResource for FailureCallbackResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let mut attempt = 0;
        loop {
            let error = match self.upstream.allocate(len, stream, site) {
                Err(error) if error.is_out_of_memory() => error,
                other => return other,
            };
            let failure = Failure { wanted: ByteSize::from(len.get()), stream: stream.id(), attempt };
            if self.ask(failure) == FailureAction::Fail {
                return Err(error);
            }
            attempt += 1;
        }
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.upstream.trim(keep)
    }

    fn end_of_query(&self) -> Result<()> {
        self.upstream.end_of_query()
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.upstream.reclaim(want)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.upstream.reset_peaks()
    }
}
