//! Allocation from a pool, and what happens when there is no room.
//!
//!   limit? ─► resource.allocate ─► counted under the stream's scope
//!     │ no          │ no
//!     └─────────────┴─► wait for frees, trim, ask the holders (`on_pressure`), else OutOfMemory
//!
//! Frees      count as free when they are submitted: later work in stream order may have the bytes.
//! Waits      only when memory runs out: for frees that the device has not come to, before an allocation fails.
//! Locks      none is held while a holder is asked.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::Site;
use crate::error::{MemoryError, Result};
use crate::gauge::Gauge;
use crate::pool::MemoryPool;
use crate::resource::RawAllocation;
use crate::stream::Stream;
use crate::units::ByteSize;

/// What a holder of spare memory is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    pub wanted: ByteSize,
    /// Counts from 0; a holder may give up more the longer it takes.
    pub attempt: u32,
}

/// Gives spare memory up and says how many bytes. Never called twice at once on one thread; must not wait for a query.
type PressureHook = Arc<dyn Fn(Pressure) -> ByteSize + Send + Sync>;

/// How many times the holders are asked before an allocation fails.
const MAX_PRESSURE_ATTEMPTS: u32 = 8;

thread_local! {
    static UNDER_PRESSURE: Cell<bool> = const { Cell::new(false) };
}

/// What a pool counts, and whom it asks.
#[derive(Default)]
pub(crate) struct PressureState {
    pub(crate) used: Gauge,
    hooks: Mutex<Vec<PressureHook>>,
}

impl MemoryPool {
    /// Asks `hook` for memory before an allocation fails.
    pub fn on_pressure(&self, hook: impl Fn(Pressure) -> ByteSize + Send + Sync + 'static) {
        self.inner.pressure.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(hook));
    }

    /// Allocates `len` bytes in the order of `stream`, counted under its scope.
    pub(crate) fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        if stream.device() != self.device() {
            return Err(MemoryError::ForeignDevice { what: "the memory pool", stream: stream.id() });
        }
        let bytes = len.get() as u64;
        let mut attempt = 0;
        while !self.reserve(bytes) {
            self.relieve(bytes, &mut attempt)?;
        }
        match self.allocate_reserved(len, stream, site) {
            Ok(raw) => {
                stream.scope().allocated(bytes);
                Ok(raw)
            }
            Err(error) => {
                self.inner.pressure.used.lower(bytes);
                Err(error)
            }
        }
    }

    fn allocate_reserved(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let allocate = || match self.inner.resource.allocate(len, stream, site) {
            Err(error) if error.is_out_of_memory() => Ok(None),
            other => other.map(Some),
        };
        if let Some(raw) = allocate()? {
            return Ok(raw);
        }
        // Frees that were submitted may not have been come to: waiting for them is often enough.
        stream.synchronize()?;
        if let Some(raw) = allocate()? {
            return Ok(raw);
        }
        self.trim_to(ByteSize::ZERO)?;
        let mut attempt = 0;
        loop {
            if let Some(raw) = allocate()? {
                return Ok(raw);
            }
            self.relieve(len.get() as u64, &mut attempt)?;
            stream.synchronize()?;
        }
    }

    /// Takes `bytes` of the limit.
    fn reserve(&self, bytes: u64) -> bool {
        self.inner.pressure.used.raise_within(bytes, self.inner.limit.as_u64())
    }

    /// Asks the holders of spare memory; an error when none gives any.
    fn relieve(&self, wanted: u64, attempt: &mut u32) -> Result<()> {
        let hooks = self.inner.pressure.hooks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nested = UNDER_PRESSURE.replace(true);
        let pressure = Pressure { wanted: ByteSize(wanted), attempt: *attempt };
        let given = if nested || *attempt >= MAX_PRESSURE_ATTEMPTS {
            ByteSize::ZERO
        } else {
            hooks.iter().map(|hook| hook(pressure)).sum()
        };
        UNDER_PRESSURE.set(nested);
        *attempt += 1;
        if given > ByteSize::ZERO { Ok(()) } else { Err(self.out_of_memory(ByteSize(wanted))) }
    }

    fn out_of_memory(&self, wanted: ByteSize) -> MemoryError {
        let mut free = self.free_bytes();
        if let Ok(info) = self.inner.device.memory_info() {
            let reusable = self.statistics().map(|s| s.reserved.saturating_sub(s.used)).unwrap_or_default();
            free = free.min(ByteSize(info.free_bytes) + reusable);
        }
        let holders = self.inner.device.scope().largest_holders(3);
        MemoryError::OutOfMemory { wanted, free, limit: self.limit(), holders }
    }

    /// Gives `raw` back in the order of `stream`.
    pub(crate) fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.inner.pressure.used.lower(raw.len.get() as u64);
        self.inner.resource.deallocate(raw, stream, site)
    }

    /// `raw` is gone with its device, or cannot be freed safely.
    pub(crate) fn abandon(&self, raw: RawAllocation) {
        self.inner.pressure.used.lower(raw.len.get() as u64);
    }
}
