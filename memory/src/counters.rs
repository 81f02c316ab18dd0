//! What was asked of the device, counted where it happens.
//!
//!   device ──┬── query 7 ──┬── scan          a count at "scan" is a count at "query 7" and at the device, too
//!            │             └── aggregate
//!            └── query 8
//!
//! A `Scope` is a name with counters, children and a parent; streams carry one, and buffers remember theirs until they are freed.
//!
//! Peak       of the scope's own live bytes and its children's together; exact, since `used` moves in one atomic step.
//! Threads    relaxed atomics; a snapshot taken while work is being submitted may be a few counts behind itself.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Holder;
use crate::units::ByteSize;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Counts at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes allocated and not yet freed.
            pub used_bytes: u64,
            /// The most that `used_bytes` ever was.
            pub peak_bytes: u64,
        }

        #[derive(Default)]
        pub(crate) struct Cells {
            $(pub(crate) $name: AtomicU64,)*
            used_bytes: AtomicU64,
            peak_bytes: AtomicU64,
        }

        impl Cells {
            fn snapshot(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    used_bytes: self.used_bytes.load(Relaxed),
                    peak_bytes: self.peak_bytes.load(Relaxed),
                }
            }
        }

        impl Counters {
            /// What happened between `earlier` and now. `used_bytes` and `peak_bytes` are those of now.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters {
                    $($name: self.$name - earlier.$name,)*
                    ..*self
                }
            }
        }
    };
}

counters! {
    launches
    /// Times the host waited for a result of the device.
    host_waits
    /// Times the host waited for an upload to let go of its pinned memory.
    feed_waits
    allocations
    frees
    allocated_bytes
    uploads
    uploaded_bytes
    downloads
    downloaded_bytes
    /// Waits of one stream for another that reached the driver, and that were already implied.
    waits_inserted
    waits_elided
    events_recorded
    /// Bytes that could not be freed safely and never will be.
    leaked_bytes
}

struct ScopeInner {
    name: String,
    cells: Cells,
    own_bytes: AtomicU64,
    own_allocations: AtomicU64,
    parent: Option<Scope>,
    registry: Arc<Mutex<Vec<Weak<ScopeInner>>>>,
}

/// A name under which work is counted: the device, a query, an operator.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ScopeInner>,
}

impl Scope {
    pub(crate) fn root(name: impl Into<String>) -> Scope {
        Self::with(name.into(), None, Arc::default())
    }

    fn with(name: String, parent: Option<Scope>, registry: Arc<Mutex<Vec<Weak<ScopeInner>>>>) -> Scope {
        let inner = Arc::new(ScopeInner {
            name,
            cells: Cells::default(),
            own_bytes: AtomicU64::new(0),
            own_allocations: AtomicU64::new(0),
            parent,
            registry,
        });
        let mut registered = inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|scope| scope.strong_count() > 0);
        registered.push(Arc::downgrade(&inner));
        drop(registered);
        Scope { inner }
    }

    /// Begins a scope inside this one.
    pub fn child(&self, name: impl Into<String>) -> Scope {
        Self::with(name.into(), Some(self.clone()), Arc::clone(&self.inner.registry))
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn counters(&self) -> Counters {
        self.inner.cells.snapshot()
    }

    /// Bytes allocated under this scope and its children, and not yet freed.
    pub fn used_bytes(&self) -> ByteSize {
        ByteSize(self.inner.cells.used_bytes.load(Relaxed))
    }

    /// Starts a new peak at what is used now, here and not in the parents.
    pub fn reset_peak(&self) {
        self.inner.cells.peak_bytes.store(self.inner.cells.used_bytes.load(Relaxed), Relaxed);
    }

    fn chain(&self) -> impl Iterator<Item = &ScopeInner> {
        std::iter::successors(Some(&*self.inner), |scope| scope.parent.as_ref().map(|p| &*p.inner))
    }

    pub(crate) fn count(&self, cell: impl Fn(&Cells) -> &AtomicU64) {
        self.add(cell, 1);
    }

    pub(crate) fn add(&self, cell: impl Fn(&Cells) -> &AtomicU64, n: u64) {
        for scope in self.chain() {
            cell(&scope.cells).fetch_add(n, Relaxed);
        }
    }

    pub(crate) fn allocated(&self, bytes: u64) {
        self.inner.own_bytes.fetch_add(bytes, Relaxed);
        self.inner.own_allocations.fetch_add(1, Relaxed);
        for scope in self.chain() {
            scope.cells.allocations.fetch_add(1, Relaxed);
            scope.cells.allocated_bytes.fetch_add(bytes, Relaxed);
            let used = scope.cells.used_bytes.fetch_add(bytes, Relaxed) + bytes;
            scope.cells.peak_bytes.fetch_max(used, Relaxed);
        }
    }

    pub(crate) fn freed(&self, bytes: u64) {
        self.inner.own_bytes.fetch_sub(bytes, Relaxed);
        self.inner.own_allocations.fetch_sub(1, Relaxed);
        for scope in self.chain() {
            scope.cells.frees.fetch_add(1, Relaxed);
            scope.cells.used_bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// The scopes of this device that hold most, largest first.
    pub(crate) fn largest_holders(&self, count: usize) -> Vec<Holder> {
        let registered = self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut holders: Vec<Holder> = registered
            .iter()
            .filter_map(Weak::upgrade)
            .map(|scope| Holder {
                tag: Scope { inner: Arc::clone(&scope) }.path(),
                bytes: ByteSize(scope.own_bytes.load(Relaxed)),
                allocations: scope.own_allocations.load(Relaxed),
            })
            .filter(|holder| holder.bytes > ByteSize::ZERO)
            .collect();
        drop(registered);
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
        holders.truncate(count);
        holders
    }

    /// "query 7/aggregate"; the device's own name stands only for itself.
    pub fn path(&self) -> String {
        let mut names: Vec<&str> = self.chain().map(|scope| scope.name.as_str()).collect();
        if names.len() > 1 {
            names.pop();
        }
        names.reverse();
        names.join("/")
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {}", self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_reach_every_parent_and_peaks_are_their_own() {
        let device = Scope::root("device 0");
        let (one, two) = (device.child("query 1"), device.child("query 2"));
        let sort = one.child("sort");
        sort.allocated(100);
        two.allocated(50);
        sort.freed(100);
        two.allocated(50);
        assert_eq!((sort.counters().peak_bytes, one.counters().peak_bytes), (100, 100));
        assert_eq!((two.counters().peak_bytes, device.counters().peak_bytes), (100, 150));
        assert_eq!((one.used_bytes(), device.used_bytes()), (ByteSize(0), ByteSize(100)));
        let holders = device.largest_holders(3);
        assert_eq!(holders.len(), 1);
        assert_eq!((holders[0].tag.as_str(), holders[0].allocations), ("query 2", 2));
        assert_eq!(sort.path(), "query 1/sort");
    }
}
